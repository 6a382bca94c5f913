"""A Kalman filter as the last layer of a network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from kalstream.core import checks as check
from kalstream.core import half_life
from kalstream.core.chunk import TRANSITIONS
from kalstream.core.likelihoods import LIKELIHOODS
from kalstream.core.single import LARGEST_DELTA
from kalstream.deep import predictive
from kalstream.deep.filter import FilterStep, Products, run_chunk, run_softmax, update_
from kalstream.deep.head import Head, Moments, Observation, Observed, check_labels, is_capturing
from kalstream.errors import InvalidInput, NumericalError

if TYPE_CHECKING:
    from kalstream.deep._graph import Captured

# Not all: for the others there is no compiled scan. Saved heads have the places of these words.
_WITH_SCAN: Final = tuple(word for word, each in LIKELIHOODS.items() if each.deep)
_PREDICTIVES: Final = ("exact", "monte-carlo")
# Settings that the posterior depends on; they are not buffers. A state has them as numbers, in this
# order. Add a new one at the end, with the value that older states had in _OLD.
_MADE_WITH: Final = (
    *("noise_var", "prior_var", "gamma_lr", "transition", "bias", "normalize"),
    "likelihood",
)
_OLD: Final = {"likelihood": 0.0}
# Settings that are words; their numbers are places in these lists.
_WORDS: Final = {"transition": TRANSITIONS, "likelihood": _WITH_SCAN}
# Most chunk sizes that are captured as CUDA graphs; each graph holds its own buffers.
MOST_GRAPHS: Final = 4


class _CapturedObservation(NamedTuple):
    """A chunk that a head observes as a CUDA graph."""

    head: KalmanHead
    graph: Captured
    features: Tensor
    labels: Tensor

    def end(self) -> FilterStep:
        """Wait for the graph; if it could not observe the chunk, observe it without one."""
        return self.graph.end() or self.head._observe_eagerly(self.features, self.labels)


class KalmanHead(Head):
    """A linear layer with Gaussian weights, updated exactly by a Kalman filter.

    ``forward`` and ``log_prob`` are differentiable with respect to the features, so the network
    below can be trained by gradients. ``log_prob`` is also differentiable with respect to the
    calibration. ``observe`` runs the filter, in place.

    Parameters
    ----------
    n_features, n_classes : int
    gamma : float in [0, 1]
        Forgetting coefficient, or its first value if it is learned.
    gamma_lr : float
        Learning rate of delta = -2 log gamma; 0 keeps gamma fixed. The gradient is that of each
        row's log-probability, with uncalibrated logits (with calibrated ones it overshoots). Only
        classes seen so far take part, and the first row of a class does not change gamma: a class
        that appears late has the same effect as one declared at the start. Delta stays between 0
        and 5.
    likelihood : "onehot" or "softmax"
        How a label is observed: as its one-hot vector with Gaussian noise, as in the paper, or
        through the softmax, as in `kalstream.core.update_softmax`. Classes that were not seen do
        not take part. The logits of the softmax need no calibration.
    noise_var : float, optional
        Variance of the noise of a one-hot target, 1/K by default. The softmax has none: the noise
        of each row follows from its own prediction. The attribute is then 0.
    prior_var : float, optional
        Prior variance of a weight. The default is 1/m, where m counts the bias, or 1 with
        ``normalize``: the prior variance of an output is then 1 if features are of size 1. With the
        softmax, whose weights make logits, it is 100 times as large. A head that was made without
        ``prior_var`` takes that of an older file, in which it was 1/m with ``normalize`` too.
    bias : bool
        Add a constant feature.
    normalize : bool
        Divide features by sqrt(m).
    transition : "example" or "chunk"
        When to forget: before every row (Always Markov), or before the last row of a chunk (Last
        Step Markov).
    calibration : float
        First value of alpha, which multiplies the logits. Its logarithm is the only parameter.
    predictive : "exact" or "monte-carlo"
        How `log_prob` averages over logits. "monte-carlo" is the paper's, with ``n_samples``.
    dtype : torch.float64 or torch.float32
        Data type of the posterior. With float32 and badly scaled features the covariance can lose
        positive definiteness.

    Attributes
    ----------
    mean, cov : (m, K), (m, m)
        The posterior, after the last row.
    seen : (K,) bool
        Classes that have been observed.
    n_seen : int
        Rows observed.

    Examples
    --------
    >>> head = KalmanHead(2, 2, noise_var=0.1, prior_var=1.0)
    >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 20)
    >>> labels = torch.tensor([0, 1] * 20)
    >>> _ = head.observe(features, labels)
    >>> head(features[:1]).mean.round(decimals=2)
    tensor([[1., 0.]], dtype=torch.float64)
    """

    trains_network = True
    checks_captured = True
    n_features: int
    mean: Tensor
    cov: Tensor
    delta: Tensor
    seen: Tensor
    count: Tensor

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        *,
        gamma: float = 1.0,
        gamma_lr: float = 0.0,
        likelihood: str = "onehot",
        noise_var: float | None = None,
        prior_var: float | None = None,
        bias: bool = False,
        normalize: bool = False,
        transition: str = "example",
        calibration: float = 1.0,
        predictive: str = "exact",
        n_samples: int = 100,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        n_features = check.count("n_features", n_features)
        n_classes = check.count("n_classes", n_classes)
        n_samples = check.count("n_samples", n_samples)
        check.unit_interval("gamma", gamma)
        check.choice("transition", transition, TRANSITIONS)
        check.choice("likelihood", likelihood, _WITH_SCAN)
        check.choice("predictive", predictive, _PREDICTIVES)
        check.positive("calibration", calibration)
        if dtype not in (torch.float64, torch.float32):
            raise InvalidInput(f"dtype must be torch.float64 or torch.float32, got {dtype}")
        if not gamma_lr >= 0.0 or (gamma_lr > 0.0 and gamma == 0.0):
            raise InvalidInput(
                f"gamma_lr must be 0 or more, and 0 if gamma is 0, got {gamma_lr!r} with gamma "
                f"{gamma!r}"
            )
        m = n_features + int(bias)
        self.n_features, self.bias, self.normalize = n_features, bias, normalize
        self.transition, self.gamma_lr, self.likelihood = transition, float(gamma_lr), likelihood
        self._forgets_all = gamma == 0.0
        self.predictive, self.n_samples = predictive, n_samples
        # Up to version 0.1 the default was 1/m with normalize too.
        self._usual_prior_vars: tuple[float, ...] = ()
        if prior_var is None:
            usual = LIKELIHOODS[likelihood].usual_prior_var
            prior_var = usual if normalize else usual / m
            if likelihood == "onehot":
                self._usual_prior_vars = prior_var, usual / m
        self.noise_var = self._noise_var(noise_var, n_classes)
        self.prior_var = check.positive("prior_var", prior_var)
        self.register_buffer("mean", torch.zeros(m, n_classes, dtype=dtype))
        self.register_buffer("cov", self.prior_var * torch.eye(m, dtype=dtype))
        delta = math.inf if gamma == 0.0 else -2.0 * math.log(gamma)
        self.register_buffer("delta", torch.tensor(delta, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(n_classes, dtype=torch.bool))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("made_with", self._made_with())
        self.log_calibration = nn.Parameter(
            torch.tensor(math.log(calibration), dtype=torch.float64)
        )

    def _noise_var(self, noise_var: float | None, n_classes: int) -> float:
        """The variance of the noise, 0 for the softmax."""
        softmax = LIKELIHOODS[self.likelihood].is_softmax
        if softmax and noise_var is not None:
            raise InvalidInput(
                f'noise_var={noise_var!r} has no effect with likelihood="softmax"; leave it out, '
                'or pass likelihood="onehot"'
            )
        if softmax:
            return 0.0
        return check.positive("noise_var", 1.0 / n_classes if noise_var is None else noise_var)

    @property
    def gamma(self) -> float:
        """Forgetting coefficient."""
        return float(torch.exp(-0.5 * self.delta))

    @property
    def half_life(self) -> float:
        """Rows (or chunks) after which a weight has halved."""
        return half_life(self.gamma)

    @property
    def calibration(self) -> Tensor:
        """Alpha, which multiplies the logits; differentiable."""
        return self.log_calibration.exp()

    # ---- predicting -----------------------------------------------------------------------

    def prepare(self, features: Tensor) -> Tensor:
        """Features (b, n_features) as the filter needs them, (b, m): bias added, normalised."""
        if not isinstance(features, torch.Tensor):
            raise InvalidInput(
                f"features must be a torch tensor, got {type(features).__name__}; "
                "convert it with torch.as_tensor"
            )
        if features.ndim != 2 or features.shape[1] != self.n_features:
            raise InvalidInput(
                f"features must be (b, {self.n_features}), got {tuple(features.shape)}; "
                "make KalmanHead with the n_features that the backbone returns"
            )
        if features.device != self.mean.device:
            raise InvalidInput(
                f"features are on {features.device}, the head is on {self.mean.device}; "
                "move one of them, for example with head.to(device)"
            )
        phi = features.to(self.mean.dtype)
        if self.bias:
            phi = torch.cat([phi, torch.ones_like(phi[:, :1])], 1)
        return phi / math.sqrt(phi.shape[1]) if self.normalize else phi

    def forward(self, features: Tensor) -> Moments:
        """Moments of the logits one step ahead, eq. (7), for each row separately."""
        phi = self.prepare(features)
        gamma = torch.exp(-0.5 * self.delta).to(phi.dtype)
        kept = gamma * gamma
        var = kept * ((phi @ self.cov) * phi).sum(1)
        var = var + (1.0 - kept) * self.prior_var * phi.square().sum(1)
        return Moments(gamma * (phi @ self.mean), var)

    def scores(self, features: Tensor) -> Tensor:
        """Scores (b, K), highest for the most probable class: the mean logits, eq. (7)."""
        return self(features).mean

    def log_prob(self, features: Tensor, labels: Tensor) -> Tensor:
        """Calibrated log-probability (b,) of labels (b,), eq. (13)."""
        labels = self.checked(labels, len(features))
        mean, var = self(features)
        alpha = self.calibration.to(mean.dtype)
        if self.predictive == "exact":
            return predictive.log_prob(mean, var, labels, alpha)
        noise = torch.randn(self.n_samples, *mean.shape, dtype=mean.dtype, device=mean.device)
        return predictive.monte_carlo_log_prob(mean, var, labels, alpha, noise)

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """Class probabilities (b, K) one step ahead, exact."""
        mean, var = self(features)
        if len(mean) == 0:
            return mean.new_zeros(mean.shape)
        return predictive.probabilities(mean, var, float(self.calibration))

    # ---- learning -------------------------------------------------------------------------

    @torch.no_grad()
    def observe(self, features: Tensor, labels: Tensor) -> FilterStep:
        """Update the posterior with a chunk; if anything fails, nothing changes.

        The result is that of filtering the rows one by one.

        Returns
        -------
        step : FilterStep
            Moments of each row before its label was seen, and the gamma of its transition. On a
            GPU its tensors are valid until the next chunk.
        """
        return self.begin(features, labels).end()

    @torch.no_grad()
    def begin(self, features: Tensor, labels: Tensor) -> Observation:
        """Start `observe`; call ``end`` of the result before any other method of the head."""
        graph = self._captured(features, labels) if self.mean.is_cuda else None
        if graph is None:
            return Observed(self._observe_eagerly(features, labels))
        graph.begin(features, labels)
        return _CapturedObservation(self, graph, features, labels)

    @torch.no_grad()
    def _observe_eagerly(self, features: Tensor, labels: Tensor) -> FilterStep:
        """`observe` without a CUDA graph."""
        step, advance = self.prepared(features, labels)
        advance()
        return step

    @torch.no_grad()
    def prepared(self, features: Tensor, labels: Tensor) -> tuple[FilterStep, Callable[[], None]]:
        """The step of a chunk, and a function that updates the head with this step.

        The head does not change until the function is called. All errors are raised before; the
        function itself cannot fail.
        """
        labels = self.checked(labels, len(features))
        step, update = self._prepared(self.prepare(features), labels)

        def advance() -> None:
            update()
            self.seen.index_fill_(0, labels, True)  # an assignment would wait for the device
            self.count += len(labels)

        return step, advance

    def _prepared(self, phi: Tensor, labels: Tensor) -> tuple[FilterStep, Callable[[], None]]:
        """As `prepared`, for posterior and delta alone; ``phi`` are prepared features (b, m)."""
        if not bool(torch.isfinite(phi).all()):
            row = int((~torch.isfinite(phi)).any(1).nonzero()[0, 0])
            raise InvalidInput(
                f"features hold NaN or infinity in row {row} of the chunk; the head is unchanged. "
                "Lower the learning rate of the backbone, or clip its gradients"
            )
        chunk = Products.of(self.mean, self.cov, phi)
        seen = seen_before(self.seen, labels)
        delta, step, *products = self._rounds(chunk, labels, seen)
        step = FilterStep(*(each.to(phi.dtype) for each in vars(step).values()))
        factor, kept = (each.to(phi.dtype) for each in products)
        sound = torch.isfinite(factor.diagonal()).all() & torch.isfinite(step.innovations).all()
        if not bool(sound):
            softmax = LIKELIHOODS[self.likelihood].is_softmax
            name, remedy = ("prior_var", "smaller") if softmax else ("noise_var", "larger")
            raise NumericalError(
                f"the filter failed in {phi.dtype}: an innovation variance is not positive "
                f"({name} {getattr(self, name):.3g}, largest feature {float(phi.abs().max()):.3g});"
                f" use float64, smaller features, or a {remedy} {name}"
            )

        def update() -> None:
            update_(self.mean, self.cov, chunk, step, factor, kept, self.prior_var)
            self.delta.copy_(delta)

        return step, update

    def _captured(self, features: Tensor, labels: Tensor) -> Captured | None:
        """The CUDA graph for such a chunk; None if there can be none."""
        from kalstream.deep._graph import Captured, places

        if not predictive.fused() or self._forgets_all:
            return None
        fits = features.shape == (len(labels), self.n_features) and len(labels) > 0
        if not (fits and features.is_cuda and labels.is_cuda and labels.dtype == torch.int64):
            return None
        graphs = self.__dict__.setdefault("_graphs", {})
        key = len(labels), features.dtype
        graph = graphs.get(key)
        if graph is None or graph.where != places(self):
            if graph is None and len(graphs) >= MOST_GRAPHS:  # the chunk size keeps changing
                return None
            graph = graphs[key] = Captured(self, *key)
        return graph

    def _run(
        self, chunk: Products, labels: Tensor, gamma: Tensor, seen: Tensor
    ) -> tuple[FilterStep, Tensor, Tensor]:
        """The step, factor and products of a chunk with known coefficients gamma (b,), float64."""
        if LIKELIHOODS[self.likelihood].is_softmax:
            return run_softmax(chunk, labels, gamma, seen, self.prior_var)
        phi = chunk.features
        targets = nn.functional.one_hot(labels, self.n_classes).to(phi.dtype)
        noise_var = torch.full_like(phi[:, 0], self.noise_var)
        return run_chunk(chunk, targets, gamma.to(phi.dtype), noise_var, self.prior_var)

    def _rounds(
        self, chunk: Products, labels: Tensor, seen: Tensor
    ) -> tuple[Tensor, FilterStep, Tensor, Tensor]:
        """The delta after the chunk, the step, and the factor and products that `update_` needs.

        Learned coefficients depend on one another: row i is predicted with the delta after row
        i - 1, and its label then changes delta. They are computed by fixed-point rounds over all
        rows at once. After n rounds the first n are exact. The dependence is weak, so a few rounds
        suffice.
        """
        moves = torch.ones_like(labels, dtype=torch.bool)
        if self.transition == "chunk":
            moves[:-1] = False
        deltas = self.delta.expand(len(labels)).clone()
        for _ in range(len(labels) + 1):
            gamma = torch.where(moves, torch.exp(-0.5 * deltas), torch.ones_like(deltas))
            step, factor, kept = self._run(chunk, labels, gamma, seen)
            if self.gamma_lr == 0.0:
                break
            before = torch.cat([self.delta[None], deltas[:-1]])
            slopes, step = self._slopes(chunk, step, labels, seen, before, moves)
            now = _clipped_sums(self.delta, self.gamma_lr * slopes)
            if bool((now - deltas).abs().max() <= 1e-14 * (1.0 + now.max())):
                break
            deltas = now
        return deltas[-1].clone(), step, factor, kept

    def _slopes(
        self,
        chunk: Products,
        step: FilterStep,
        labels: Tensor,
        seen: Tensor,
        before: Tensor,
        moves: Tensor,
    ) -> tuple[Tensor, FilterStep]:
        """Derivatives (b,) of the rows' log-probabilities by delta, and the step at that delta.

        Each row is predicted with the delta ``before`` it (b,).
        """
        size = chunk.gram_eye.diagonal() * self.prior_var
        gamma = step.gamma
        filtered_mean = step.logit_mean / gamma[:, None]
        filtered_var = (step.logit_var - (1.0 - gamma**2) * size) / gamma**2
        old = torch.where(moves, torch.exp(-0.5 * before), torch.ones_like(before)).to(gamma.dtype)
        mean = old[:, None] * filtered_mean
        var = (old**2 * filtered_var + (1.0 - old**2) * size).clamp_min(0.0)
        along, by_var = predictive.slopes(mean, var, labels, seen)
        slopes = by_var * (size - var).double() - 0.5 * along
        slopes = torch.where(moves, slopes, torch.zeros_like(slopes))
        return slopes, FilterStep(mean, var, gamma, step.innovations)

    def checked(self, labels: Tensor, n: int) -> Tensor:
        """Check the labels of n rows; returns them as int64."""
        check_labels(labels, n, self.n_classes, "add classes with add_classes")
        if labels.device != self.mean.device:
            raise InvalidInput(
                f"labels are on {labels.device}, the head is on {self.mean.device}; "
                "move them with labels.to(device)"
            )
        if is_capturing(labels):
            return labels.clamp(0, self.n_classes - 1)  # `observe` checks them
        return labels.long()

    # ---- state ---------------------------------------------------------------------------

    def _made_with(self) -> Tensor:
        """The settings that the posterior depends on, as numbers."""
        values = {name: getattr(self, name) for name in _MADE_WITH}
        numbers = [
            float(_WORDS[name].index(value) if name in _WORDS else value)
            for name, value in values.items()
        ]
        return torch.tensor(numbers, dtype=torch.float64)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Grow to the number of classes of the state; refuse fewer, and other settings."""
        mean, made_with = state.get(prefix + "mean"), state.get(prefix + "made_with")
        prior_var = self.prior_var
        if made_with is not None:
            old = [_OLD[name] for name in _MADE_WITH[len(made_with) :]]
            made_with = torch.cat([made_with, made_with.new_tensor(old)])
            state[prefix + "made_with"] = made_with
            pairs = zip(_MADE_WITH, made_with.tolist(), self._made_with().tolist(), strict=True)
            # The likelihood first: the defaults of the variances depend on it.
            for name, theirs, ours in sorted(pairs, key=lambda pair: pair[0] != "likelihood"):
                if name == "prior_var" and theirs in self._usual_prior_vars:
                    prior_var = theirs
                elif abs(theirs - ours) > 1e-6 * abs(ours):
                    one, other = (_shown(name, value) for value in (theirs, ours))
                    raise InvalidInput(
                        f"the state comes from a head with {name} {one}, this head has {other}; "
                        f"make it with the same setting: KalmanHead({name}=...)"
                    )
        if mean is not None and mean.ndim == 2 and mean.shape[1] != self.n_classes:
            if mean.shape[1] < self.n_classes:
                raise InvalidInput(
                    f"the state comes from a head of {mean.shape[1]} classes, this head has "
                    f"{self.n_classes}; make it with n_classes={mean.shape[1]}, restore the state, "
                    f"and call add_classes({self.n_classes - mean.shape[1]})"
                )
            self.mean = self.mean.new_zeros(len(self.mean), mean.shape[1])
            self.seen = self.seen.new_zeros(mean.shape[1])
        if prior_var != self.prior_var:
            self.prior_var = prior_var
            self.__dict__.pop("_graphs", None)  # they hold the other one
        super()._load_from_state_dict(state, prefix, *rest)

    def extra_repr(self) -> str:
        """The settings, for the representation of the module."""
        sizes = f"{self.n_features}, {self.n_classes}, gamma={self.gamma:.6g}, "
        return sizes + ", ".join(f"{name}={getattr(self, name)!r}" for name in _MADE_WITH)

    def __getstate__(self) -> dict[str, Any]:
        # Captured graphs work with the buffers of this object only.
        return {name: value for name, value in self.__dict__.items() if name != "_graphs"}

    def add_classes(self, n_classes: int) -> None:
        """Add classes that were never seen.

        The result is the same as if they had been declared at the start, except that noise_var
        keeps its value.
        """
        n_classes = check.count("n_classes", n_classes)
        new = torch.zeros(len(self.mean), n_classes, dtype=self.mean.dtype, device=self.mean.device)
        self.mean = torch.cat([self.mean, new], 1)
        self.seen = torch.cat([self.seen, torch.zeros_like(self.seen[:1]).expand(n_classes)])


def _shown(name: str, value: float) -> str:
    """A number of `_made_with`, as a reader knows it."""
    words = _WORDS.get(name, ())
    return repr(words[int(value)]) if 0 <= value < len(words) else f"{value:.10g}"


def seen_before(seen: Tensor, labels: Tensor) -> Tensor:
    """Which classes were seen before each row (b, K); ``seen`` (K,) are those before the chunk."""
    rows = torch.arange(len(labels), device=labels.device)
    first = labels.new_full((len(seen),), len(labels))
    first = first.scatter_reduce(0, labels, rows, "amin")  # row in which a class first appears
    return (rows[:, None] > first) | seen


def _clipped_sums(start: Tensor, steps: Tensor) -> Tensor:
    """Running sums (b,) from ``start``, clipped to [0, LARGEST_DELTA] after every step.

    The sum clipped at 0 is the free sum less its lowest value so far, if that is negative. If the
    upper bound is reached, the sums are computed step by step.
    """
    free = start + steps.cumsum(0)
    sums = free - free.cummin(0).values.clamp_max(0.0)
    if bool((sums <= LARGEST_DELTA).all()):
        return sums
    out, now = [], float(start)
    for step in steps.tolist():
        now = min(max(now + step, 0.0), LARGEST_DELTA)
        out.append(now)
    return torch.tensor(out, dtype=steps.dtype, device=steps.device)
