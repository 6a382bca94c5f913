"""A stack weighs filters and layers, on a network and its slow copies, by how they predict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from kalstream.core import checks as check
from kalstream.deep.bank import BankRows, FilterBank
from kalstream.deep.head import Head, NetworkOutput, Prediction
from kalstream.deep.softmax import SoftmaxHead
from kalstream.errors import InvalidInput

_DECAYS: Final = (0.9, 0.98, 0.998)
GAMMAS: Final = (1.0, 0.9999, 0.999)
# The logits of an expert are multiplied by each of these factors, and the results are mixed.
_FACTORS: Final = (0.5, 0.65, 0.8, 1.0, 1.25)
# Each of these may be the probability that the next row is of an unseen class; they are mixed.
_NEW: Final = (1e-4, 1e-3, 1e-2, 0.1, 0.5)
# Forgetting coefficients of the two pools.
_KEPT: Final = (1.0, 0.9995)
_TOPS: Final = ("mixture", "pool", "pool that forgets")
_PRECISION: Final = 10.0  # of the pools' first weights
_FLOOR: Final = 1e-3  # sum of the least probabilities that enter the pools
_AWAY: Final = -1e4  # logit of an unseen class


class _Forecast(NamedTuple):
    """Logarithms of probabilities, among the seen classes unless a line names others.

    Attributes
    ----------
    scaled : (F, E, b, K)
        Of each expert, with each factor.
    experts : (E, b, K)
        Of each expert, with its factors mixed.
    logs : (E, b, K)
        The same with a floor; 0 for unseen classes.
    tops : (T, b, K)
        Of the mixture of the experts, and of the pools.
    whole : (b, K)
        Of the stack, among all classes.
    new : ()
        Probability of all unseen classes together.
    """

    scaled: Tensor
    experts: Tensor
    logs: Tensor
    tops: Tensor
    whole: Tensor
    new: Tensor


class Stack(Head):
    """Softmax filters and softmax layers on a network and its slow copies, stacked.

    The experts are the layer of the network, that of each slow copy, and a filter for each slow
    copy and gamma (without slow copies, for the network). Each expert's logits have a factor, mixed
    over five values. The experts are mixed, weighed by how well they predict, and pooled: a pool
    adds up their log-probabilities with weights learned by online Newton steps, with and without
    forgetting. The prediction mixes the mixture and the pools. All mixtures share a little of the
    weight evenly after each row, so that anything can regain weight.

    Unseen classes are left out of all this. Together they have the probability that the next class
    is new, which is mixed over five values. So you may declare a class that never appears.

    Parameters
    ----------
    n_features, n_classes : int
    decays : float or sequence of float
        Decays of the slow copies (`SlowCopies`), which the learner makes.
    gammas : float or sequence of float in (0, 1]
        Forgetting coefficients of the filters of each copy; empty for layers alone.
    layers : bool
        Whether the layers are experts too; `CrossEntropy` trains them. Pass False for a frozen
        network.
    prior_var : float
        Prior variance of a filter's weight. Features have length 1.
    share : float in (0, 1)
        Share of the weight that is distributed evenly after each row.

    Attributes
    ----------
    layer : SoftmaxHead or None
        The layer of the network.
    bank : FilterBank
    names : list of str
        The experts.
    seen : (K,) bool
        Classes learned so far.

    Examples
    --------
    >>> stack = Stack(3, 2, decays=(), gammas=(1.0, 0.99), layers=False)
    >>> stack.names
    ['filter, gamma 1', 'filter, gamma 0.99']
    >>> features, labels = torch.eye(3)[[0, 1] * 20], torch.tensor([0, 1] * 20)
    >>> stack.observe([NetworkOutput(features, None)], labels)
    >>> stack.probabilities([NetworkOutput(features[:2], None)]).argmax(1)
    tensor([0, 1])
    """

    at_once = True
    seen: Tensor
    count: Tensor
    log_factors: Tensor
    log_mixed: Tensor
    log_tops: Tensor
    log_new: Tensor
    pooled: Tensor
    precision: Tensor
    made_with: Tensor
    _factors: Tensor
    _rates: Tensor
    _kept: Tensor

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        *,
        decays: float | Sequence[float] = _DECAYS,
        gammas: float | Sequence[float] = GAMMAS,
        layers: bool = True,
        prior_var: float = 100.0,
        share: float = 0.001,
    ) -> None:
        super().__init__()
        self.decays, self.gammas = as_tuple(decays), as_tuple(gammas)
        self.share = check.positive("share", share)
        if share >= 1.0:
            raise InvalidInput(f"share must be above 0 and below 1, got {share!r}")
        if not layers and not self.gammas:
            raise InvalidInput("a stack needs layers or gammas; give at least one of them")
        n_sources = max(len(self.decays), 1)
        self.bank = FilterBank(n_features, n_classes, n_sources, self.gammas, prior_var)
        self.layer = SoftmaxHead(n_features, n_classes) if layers else None
        copies = [f" {decay:g}" for decay in self.decays]
        self.names = [f"layer{copy}" for copy in ("", *copies)] if layers else []
        self.names += [f"filter{s}, gamma {g:g}" for s in copies or [""] for g in self.gammas]
        n, n_tops = len(self.names), 1 + len(_KEPT)

        def even(*shape: int) -> Tensor:
            return torch.full(shape, -math.log(shape[-1]), dtype=torch.float64)

        self.register_buffer("log_factors", even(n, len(_FACTORS)))
        self.register_buffer("log_mixed", even(n))
        self.register_buffer("log_tops", even(n_tops))
        self.register_buffer("log_new", even(len(_NEW)))
        self.register_buffer("pooled", even(len(_KEPT), n).exp())
        eye = torch.eye(n, dtype=torch.float64)
        self.register_buffer("precision", _PRECISION * eye.repeat(len(_KEPT), 1, 1))
        self.register_buffer("seen", torch.zeros(n_classes, dtype=torch.bool))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        for name, values in (("factors", _FACTORS), ("rates", _NEW), ("kept", _KEPT)):
            constant = torch.tensor(values, dtype=torch.float64)
            self.register_buffer(f"_{name}", constant, persistent=False)
        made = [*self.decays, *self.gammas, prior_var, share, float(layers)]
        self.register_buffer("made_with", torch.tensor(made, dtype=torch.float64))

    @property
    def n_features(self) -> int:
        """Features of a row."""
        return int(self.bank.mean.shape[1]) - 1

    @property
    def softmax_layer(self) -> SoftmaxHead | None:
        """The layer of the network."""
        return self.layer

    def check_decays(self, decays: list[float]) -> None:
        """Refuse other slow copies than those that the experts are on."""
        if decays != list(self.decays):
            raise InvalidInput(
                f"the stack was made for slow copies with decays {list(self.decays)}, got "
                f"slow={decays}; give the stack these: Stack(decays=...)"
            )

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the mixture of the experts and of the two pools in the prediction."""
        return dict(zip(_TOPS, self.log_tops.exp().tolist(), strict=True))

    @property
    def expert_weights(self) -> dict[str, dict[str, float]]:
        """Weights of the experts in the mixture (they add up to 1), and in each pool (any sign)."""
        rows = [self.log_mixed.exp(), *self.pooled]
        named = (dict(zip(self.names, row.tolist(), strict=True)) for row in rows)
        return dict(zip(_TOPS, named, strict=True))

    @property
    def delta(self) -> Tensor:
        """Mean of the filters' deltas, weighted: the delta of the geometric mean of gammas."""
        if not len(self.bank.gamma):
            return torch.zeros_like(self.log_mixed[0])
        weights = self.log_mixed[-len(self.bank.gamma) :].softmax(0)
        return -2.0 * (weights * self.bank.gamma.log()).sum()

    # ---- predicting -----------------------------------------------------------------------

    def log_prob(self, features: Any, labels: Tensor) -> Tensor:
        """Log-probability (b,) of labels (b,) among all classes.

        ``features`` are a list of `NetworkOutput`, or features (b, m) of the network, which all
        experts then use. The result is differentiable with respect to them.
        """
        labels = self.checked(labels, len(labels))
        return self._forecast(features)[0].whole.gather(1, labels[:, None])[:, 0]

    def scores(self, features: Any) -> Tensor:
        """Logarithms of class probabilities (b, K)."""
        return self._forecast(features)[0].whole

    @torch.no_grad()
    def probabilities(self, features: Any) -> Tensor:
        """Class probabilities (b, K)."""
        return self._forecast(features)[0].whole.softmax(1)

    def _forecast(self, features: Any) -> tuple[_Forecast, BankRows, Tensor]:
        """The forecast of a chunk, and the rows and features (S, b, m) of the filters."""
        outputs = self._outputs(features) if isinstance(features, Tensor) else features
        stacked = torch.stack([each.features for each in outputs[-max(len(self.decays), 1) :]])
        rows = self.bank.rows(stacked)
        layers = [each.logits.double()[None] for each in outputs if each.logits is not None]
        return self._combined(torch.cat([*layers, self.bank.logits(rows)])), rows, stacked

    def _outputs(self, features: Tensor) -> list[NetworkOutput]:
        logits = None if self.layer is None else self.layer(features).mean
        return [NetworkOutput(features, logits)] * (1 + len(self.decays))

    def _combined(self, logits: Tensor) -> _Forecast:
        """Combine the logits (E, b, K) of all experts."""
        seen, n_seen = self.seen, self.seen.sum()
        own = logits.masked_fill(~seen, _AWAY).log_softmax(2)
        scaled = (self._factors[:, None, None, None] * own).log_softmax(3)
        experts = torch.logsumexp(self.log_factors.T[:, :, None, None] + scaled, 0)
        mixed = torch.logsumexp(self.log_mixed[:, None, None] + experts, 0)
        floor = _FLOOR / n_seen.clamp_min(1)
        logs = torch.log((1.0 - _FLOOR) * experts.exp() + floor).masked_fill(~seen, 0.0)
        pools = torch.einsum("pe,ebk->pbk", self.pooled, logs).masked_fill(~seen, _AWAY)
        tops = torch.cat([mixed[None], pools.log_softmax(2)])
        known = torch.logsumexp(self.log_tops[:, None, None] + tops, 0)
        new = (self.log_new.exp() * self._rates).sum()
        new = new.where(n_seen < len(seen), 0.0).where(n_seen > 0, 1.0)
        return _Forecast(scaled, experts, logs, tops, self._among_all(known, new), new)

    def _among_all(self, log_prob: Tensor, new: Tensor) -> Tensor:
        """Log-probabilities (..., K) among all classes, from those among seen classes."""
        n_new = (~self.seen).sum().clamp_min(1)
        known = torch.log1p(-new.clamp_max(1.0 - 1e-12)) + log_prob
        return torch.where(self.seen, known, torch.log(new / n_new))

    # ---- learning -------------------------------------------------------------------------

    def observe(self, outputs: list[NetworkOutput], labels: Tensor) -> None:
        """Update filters and weights with a chunk; if anything fails, nothing changes."""
        labels = self.checked(labels, len(labels))
        if not bool(self.predict_then_observe(outputs, labels)[2]):
            raise InvalidInput("the outputs hold NaN or infinity; the stack is unchanged")

    @torch.no_grad()
    def predict_then_observe(
        self, outputs: list[NetworkOutput], labels: Tensor
    ) -> tuple[Prediction, Prediction, Tensor]:
        """Predict a chunk, each row separately, then learn it.

        It can be captured as a CUDA graph.

        Returns
        -------
        prediction : Prediction
            Of the stack, (b,).
        experts : Prediction
            Of each expert, (E, b).
        sound : () bool
            Whether all numbers are finite. If not, nothing has changed.
        """
        forecast, rows, features = self._forecast(outputs)
        whole, experts = forecast.whole, self._among_all(forecast.experts, forecast.new)
        prediction = Prediction(_own(whole, labels), whole.argmax(1))
        each = Prediction(_own(experts, labels), experts.argmax(2))
        sound = torch.isfinite(each.log_prob).all()
        sound = self.bank.observe(rows, features, labels, self.seen, gate=sound)
        self._weigh(forecast, labels, sound)
        self.seen.logical_or_(torch.zeros_like(self.seen).index_fill_(0, labels, True) & sound)
        self.count.add_(sound * len(labels))
        return prediction, each, sound

    def _weigh(self, forecast: _Forecast, labels: Tensor, sound: Tensor) -> None:
        """Update all weights; rows of unseen classes only change the weights of `log_new`."""
        there = self.seen[labels].double()  # (b,)
        n_rows = len(labels)
        for log_weights, log_prob in (
            (self.log_factors, forecast.scaled.movedim(0, 1)),
            (self.log_mixed, forecast.experts),
            (self.log_tops, forecast.tops),
        ):
            gain = (_own(log_prob, labels) * there).sum(-1)
            self._reweigh(log_weights, gain, n_rows, sound)
        n_new = n_rows - there.sum()
        gain = n_new * self._rates.log() + (n_rows - n_new) * torch.log1p(-self._rates)
        any_left = (~self.seen).any()
        self._reweigh(self.log_new, gain, n_rows, sound & any_left)
        self._pool(forecast, labels, there, sound)

    def _reweigh(self, log_weights: Tensor, gain: Tensor, n_rows: int, gate: Tensor) -> None:
        """Multiply weights (..., J) by exp(gain), and share some of them, as ``n_rows`` rows do.

        The rows of a chunk are predicted with the same weights, so they count at once.
        """
        kept = (1.0 - self.share) ** n_rows
        weights = (log_weights + gain).log_softmax(-1) + math.log(kept)
        even = math.log((1.0 - kept) / log_weights.shape[-1])
        log_weights.copy_(
            torch.logaddexp(weights, torch.full_like(weights, even)).where(gate, log_weights)
        )

    def _pool(self, forecast: _Forecast, labels: Tensor, there: Tensor, sound: Tensor) -> None:
        """One Newton step of each pool on the log-probability of the chunk."""
        probability, logs = forecast.tops[1:].exp(), forecast.logs  # (P, b, K), (E, b, K)
        mean = torch.einsum("pbk,ebk->peb", probability, logs)
        slope = ((_own(logs, labels) - mean) * there).sum(2)  # (P, E)
        around = logs - mean[..., None]  # (P, E, b, K)
        weighed = around * (probability * there[:, None])[:, None]
        curvature = torch.einsum("pebk,pfbk->pef", weighed, around)
        kept = (self._kept ** len(labels))[:, None, None]
        eye = torch.eye(logs.shape[0], dtype=logs.dtype, device=logs.device)
        precision = kept * self.precision + curvature + (1.0 - kept) * _PRECISION * eye
        # One after the other: batches of solutions cannot be captured as a CUDA graph.
        move = torch.stack([_solved(*each) for each in zip(precision, slope, strict=True)])
        gate = sound & torch.isfinite(move).all()
        self.pooled.add_(move.where(gate, 0.0))
        self.precision.copy_(precision.where(gate, self.precision))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Refuse a state with other settings."""
        theirs = state.get(prefix + "made_with")
        if theirs is not None and not torch.equal(theirs.cpu(), self.made_with.cpu()):
            raise InvalidInput(
                f"the state comes from a stack with other decays, gammas, prior_var, share or "
                f"layers ({theirs.tolist()}, here {self.made_with.tolist()}); make it with the same"
            )
        super()._load_from_state_dict(state, prefix, *rest)


def as_tuple(values: float | Sequence[float]) -> tuple[float, ...]:
    """One number or several, as a tuple."""
    return (float(values),) if isinstance(values, int | float) else tuple(values)


def _solved(matrix: Tensor, vector: Tensor) -> Tensor:
    """The solution (n,) of a positive definite system (n, n); NaN if it is not."""
    return torch.cholesky_solve(vector[:, None], torch.linalg.cholesky_ex(matrix)[0])[:, 0]


def _own(log_prob: Tensor, labels: Tensor) -> Tensor:
    """Log-probabilities (..., b) of labels (b,), from those (..., b, K) of all classes."""
    index = labels[:, None].expand(*log_prob.shape[:-1], 1)
    return log_prob.gather(-1, index)[..., 0]
