"""A mixture of Kalman heads with different forgetting coefficients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from kalstream.core import checks as check
from kalstream.deep import predictive
from kalstream.deep.filter import FilterStep
from kalstream.deep.head import Head, Moments, Observation, Observed
from kalstream.deep.kalman import MOST_GRAPHS, KalmanHead, seen_before
from kalstream.errors import InvalidInput

GAMMAS = (1.0, 0.9999, 0.999, 0.99, 0.9)


class _MixtureObservation(NamedTuple):
    """A chunk that all heads of a mixture have begun to observe."""

    mixture: MixtureHead
    parts: list[Observation]
    labels: Tensor
    seen: Tensor

    def end(self) -> list[FilterStep]:
        """Wait for all heads, and weigh them."""
        steps = [part.end() for part in self.parts]
        self.mixture._weigh(*_stacked(steps), self.labels.long(), self.seen)
        return steps


class MixtureHead(Head):
    """Heads with fixed gammas on the same features, weighted by how well they predict.

    After each row the weight of a head is multiplied by its probability of the label. A share of
    all weight is then distributed evenly, so that any head can regain weight when the stream
    changes. No gradient is needed to adapt the forgetting.

    Only classes seen so far take part in these probabilities, and the first row of a class changes
    no weight: a class that appears late has the same effect as one declared at the start.
    `kalstream.core.Mixture` is the same for fixed features; it has a grid of calibrations where
    this head learns one.

    Parameters
    ----------
    n_features, n_classes : int
    gammas : sequence of float
    share : float in [0, 1)
        Share of the weight that is distributed evenly after each row, with any transition.
        (`core.Mixture` does so when it forgets: with transition="chunk", once per chunk.)
    **options
        Options of `KalmanHead`, except gamma and gamma_lr; ``likelihood="softmax"`` is one.

    Attributes
    ----------
    heads : list of KalmanHead
    log_weights : (J,)
        Logarithms of the weights.

    Examples
    --------
    >>> head = MixtureHead(2, 2, gammas=(1.0, 0.9))
    >>> features, labels = torch.eye(2).repeat(20, 1), torch.tensor([0, 1] * 20)
    >>> _ = head.observe(features, labels)
    >>> bool(head.log_weights[0] > head.log_weights[1])  # the stream has not changed
    True
    """

    trains_network = True
    checks_captured = True
    log_weights: Tensor

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        *,
        gammas: Sequence[float] = GAMMAS,
        share: float = 0.001,
        calibration: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__()
        if not gammas or {"gamma", "gamma_lr"} & options.keys():
            raise InvalidInput("give a mixture one or more gammas, and no gamma or gamma_lr")
        if not 0.0 <= share < 1.0:
            raise InvalidInput(f"share must be at least 0 and below 1, got {share!r}")
        check.positive("calibration", calibration)
        self.share = share
        self.heads = nn.ModuleList(
            KalmanHead(n_features, n_classes, gamma=gamma, **options) for gamma in gammas
        )
        self.log_calibration = nn.Parameter(
            torch.tensor(math.log(calibration), dtype=torch.float64)
        )
        for head in self._kalman_heads:  # all heads share one calibration
            del head.log_calibration
            head.log_calibration = self.log_calibration
        even = torch.full((len(gammas),), -math.log(len(gammas)), dtype=torch.float64)
        self.register_buffer("log_weights", even)

    @property
    def _kalman_heads(self) -> list[KalmanHead]:
        return cast("list[KalmanHead]", list(self.heads))

    @property
    def n_features(self) -> int:
        """Features of a row."""
        return self._kalman_heads[0].n_features

    @property
    def count(self) -> Tensor:
        """Rows observed, ()."""
        return self._kalman_heads[0].count

    @property
    def seen(self) -> Tensor:
        """Classes that have been observed, (K,) bool."""
        return self._kalman_heads[0].seen

    @property
    def calibration(self) -> Tensor:
        """Alpha, which multiplies the logits; differentiable."""
        return self.log_calibration.exp()

    @property
    def delta(self) -> Tensor:
        """Weighted mean of the heads' deltas; it belongs to the geometric mean of the gammas."""
        return (
            self.log_weights.exp() * torch.stack([head.delta for head in self._kalman_heads])
        ).sum()

    @property
    def gamma(self) -> float:
        """Weighted geometric mean of the gammas."""
        return float(torch.exp(-0.5 * self.delta))

    def forward(self, features: Tensor) -> Moments:
        """Weighted mean of the heads' logit moments one step ahead."""
        moments = [head(features) for head in self._kalman_heads]
        weights = self.log_weights.exp().to(moments[0].mean.dtype)
        mean = _weighted_sum(weights, [each.mean for each in moments])
        return Moments(mean, _weighted_sum(weights, [each.var for each in moments]))

    def scores(self, features: Tensor) -> Tensor:
        """Class probabilities (b, K), by the probit approximation of each head's integral."""
        alpha = self.calibration.detach()
        moments = [head(features) for head in self._kalman_heads]
        each = [predictive.probit_probabilities(m.mean, m.var, alpha) for m in moments]
        return _weighted_sum(self.log_weights.exp(), each)

    def log_prob(self, features: Tensor, labels: Tensor) -> Tensor:
        """Calibrated log-probability (b,) of labels (b,) under the mixture."""
        each = torch.stack(
            [head.log_prob(features, labels).double() for head in self._kalman_heads]
        )
        return torch.logsumexp(self.log_weights[:, None] + each, 0)

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """Class probabilities (b, K) one step ahead, exact."""
        each = [head.probabilities(features).double() for head in self._kalman_heads]
        return _weighted_sum(self.log_weights.exp(), each)

    def checked(self, labels: Tensor, n: int) -> Tensor:
        """Check the labels of n rows; returns them as int64."""
        return self._kalman_heads[0].checked(labels, n)

    def observe(self, features: Tensor, labels: Tensor) -> list[FilterStep]:
        """Update all filters with a chunk, and their weights row by row."""
        return self.begin(features, labels).end()

    def begin(self, features: Tensor, labels: Tensor) -> Observation:
        """Start `observe`; call ``end`` of the result before any other method of the head."""
        if not self.log_weights.is_cuda:
            return Observed(self._observe_eagerly(features, labels))
        seen = self._kalman_heads[0].seen.clone()
        parts = [head.begin(features, labels) for head in self._kalman_heads]
        return _MixtureObservation(self, parts, labels, seen)

    @torch.no_grad()
    def _observe_eagerly(self, features: Tensor, labels: Tensor) -> list[FilterStep]:
        """`observe` without CUDA graphs; if anything fails, nothing changes."""
        prepared = [head.prepared(features, labels) for head in self._kalman_heads]
        steps = [step for step, _ in prepared]
        log_weights = self._weighed(*_stacked(steps), labels.long(), self._kalman_heads[0].seen)
        for _, advance in prepared:
            advance()
        self.log_weights.copy_(log_weights)
        return steps

    @torch.no_grad()
    def _weigh(self, *inputs: Tensor) -> None:
        """`_weigh_rows`, as a CUDA graph if possible."""
        if not predictive.fused():
            return self._weigh_rows(*inputs)
        from kalstream.deep._graph import CapturedWeights

        graphs = self.__dict__.setdefault("_graphs", {})
        key = inputs[0].shape, self.log_weights.data_ptr(), self.log_calibration.data_ptr()
        if key not in graphs and len(graphs) < MOST_GRAPHS:
            graphs[key] = CapturedWeights(self, inputs)
        graphs.get(key, self._weigh_rows)(*inputs)

    def _weigh_rows(self, *inputs: Tensor) -> None:
        self.log_weights.copy_(self._weighed(*inputs))

    def _weighed(self, mean: Tensor, var: Tensor, labels: Tensor, seen: Tensor) -> Tensor:
        """Logarithms of the weights (J,) after rows with logits N(mean (J, b, K), var (J, b)).

        ``seen`` (K,) are the classes seen before the chunk.
        """
        n_heads, n_rows, _ = mean.shape
        known, alpha = seen_before(seen, labels), self.calibration.to(mean.dtype)
        every, among = labels.repeat(n_heads), known.repeat(n_heads, 1)
        # The first row of a class, and rows of the only class so far, do not change the weights.
        log_prob = predictive.log_prob_among(
            mean.flatten(0, 1), var.flatten(), every, alpha, among
        ).view(n_heads, n_rows)
        weights = self.log_weights
        even = torch.full_like(weights, math.log(self.share / n_heads or 1e-300))
        for row in log_prob.unbind(1):
            weights = torch.log_softmax(weights + row, 0) + math.log1p(-self.share)
            weights = torch.logaddexp(weights, even)
        return torch.log_softmax(weights, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_graphs"}

    def add_classes(self, n_classes: int) -> None:
        """Add classes that were never seen, exactly (noise_var stays)."""
        for head in self._kalman_heads:
            head.add_classes(n_classes)


def _stacked(steps: list[FilterStep]) -> tuple[Tensor, Tensor]:
    """Moments of all heads, (J, b, K) and (J, b)."""
    mean = torch.stack([step.logit_mean for step in steps])
    return mean, torch.stack([step.logit_var for step in steps])


def _weighted_sum(weights: Tensor, values: list[Tensor]) -> Tensor:
    """Sum of J tensors with weights (J,), added one after the other."""
    total = weights[0] * values[0]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        total = total + weight * value
    return total
