"""A mixture of filters with fixed half-lives, weighted by how well each predicts.

It needs no tuning where SGD on delta is fragile: see core/README.md, "The mixture".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kalstream.core import checks as check
from kalstream.core.bank import Bank, How, joined_steps, run_between
from kalstream.core.chunk import Rows
from kalstream.core.judging import Case, Events, Judged, LateJudge, Sizes, n_answers, runs
from kalstream.core.likelihoods import LIKELIHOODS, ONEHOT, check_likelihood
from kalstream.core.medians import weighted_median
from kalstream.core.motion_reference import check_order
from kalstream.core.orders import MixedBank, predict_filters, run_filters, start_bank
from kalstream.core.policy import (
    JudgingPolicy,
    PolicyState,
    check_seen,
    gamma_of,
)
from kalstream.core.predictive import METHODS, class_probabilities
from kalstream.core.state import DEFERRED_ROWS, BankStep, Posterior
from kalstream.errors import InvalidInput

if TYPE_CHECKING:
    from kalstream.core.predictive import Method

Array = NDArray[Any]
# One grid for all filters, or one for each.
Calibrations = tuple[float, ...] | tuple[tuple[float, ...], ...]

# Rows predicted at a time, so that memory stays bounded.
_PREDICTED_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class MixtureState(PolicyState):
    """Filters with fixed half-lives, and the weight of each.

    Attributes
    ----------
    bank : Bank, or MixedBank if a filter has an order above 1
        The J filters.
    half_lives, calibrations : J and C numbers
    log_weights : (J, C)
    seen : (K,) bool
    spread : (J, 2)
        Degrees of freedom and sum of squares of each filter's scale, if that is learned.
    likelihoods, prior_scales, orders : J words, and twice J numbers
        As in `Mixture`.
    posteriors : J posteriors
    weights, half_life_weights : (J, C), (J,)
        Posterior over half-lives and calibrations, and over half-lives.
    half_life, gamma, calibration : float
        Medians of that posterior.
    posterior : Posterior
        Posterior of the filter with the largest weight.
    """

    tag: ClassVar[str] = "MixtureState"

    bank: Bank | MixedBank
    half_lives: tuple[float, ...]
    calibrations: Calibrations
    log_weights: Array
    seen: Array
    spread: Array
    likelihoods: tuple[str, ...] = ()
    prior_scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.bank, MixedBank):
            check.instance("the bank of the state", self.bank, Bank)
        shape = self.bank.n_filters, self.bank.n_features, self.bank.n_outputs
        object.__setattr__(self, "likelihoods", tuple(self.likelihoods) or ("onehot",) * shape[0])
        object.__setattr__(self, "prior_scales", tuple(self.prior_scales) or (1.0,) * shape[0])
        for name in ("half_lives", "prior_scales"):
            values = check.sequence(f"the {name} of the state", getattr(self, name))
            object.__setattr__(self, name, values)
            if not all(value > 0.0 for value in values):
                raise InvalidInput(f"the {name} of the state must be above 0, got {values}")
        for word in self.likelihoods:
            check_likelihood("a likelihood of the state", word)
        for name in ("half_lives", "prior_scales", "likelihoods"):
            if len(getattr(self, name)) != shape[0]:
                raise InvalidInput(
                    f"the state has {shape[0]} filters and {len(getattr(self, name))} "
                    f"{name.replace('half_', 'half-')}; give one for each filter"
                )
        if isinstance(self.bank, MixedBank):
            self.bank.check(self.half_lives)
        name, calibrations = "the calibrations of the state", self.calibrations
        object.__setattr__(self, "calibrations", _calibrations(name, calibrations, shape[0]))
        n_calibrations = _grid(self.calibrations, shape[0]).shape[1]
        shapes = {"log_weights": (shape[0], n_calibrations), "spread": (shape[0], 2)}
        for name, expected in shapes.items():
            part = check.block(f"the {name} of the state", getattr(self, name), expected)
            object.__setattr__(self, name, part)
        check_seen(self.seen, shape[2])
        if not (self.spread.min() >= 0.0 and self.spread.max() < math.inf):
            raise InvalidInput(
                f"the spread of the state must be finite and not negative, got {self.spread}"
            )
        whole = self.weights.sum() if self.log_weights.max() < 1.0 else math.inf
        if not abs(whole - 1.0) < 1e-6:
            raise InvalidInput(
                f"the log_weights of the state give weights that sum to {whole}, not to 1"
            )

    @property
    def orders(self) -> tuple[int, ...]:
        """Order of the motion of each filter (J,)."""
        return self.bank.orders if isinstance(self.bank, MixedBank) else (1,) * self.bank.n_filters

    @property
    def posteriors(self) -> tuple[Posterior, ...]:
        """Posterior of each filter."""
        return tuple(self.bank.posterior(j) for j in range(len(self.half_lives)))

    @property
    def posterior(self) -> Posterior:
        """Posterior of the filter with the largest weight."""
        return self.bank.posterior(self.heaviest)

    @property
    def n_features(self) -> int:
        """Number of features, m."""
        return self.bank.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the features."""
        return self.bank.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept from row to row."""
        return self.bank.nbytes

    @property
    def weights(self) -> Array:
        """Posterior over half-lives and calibrations (J, C)."""
        return np.exp(self.log_weights)

    @property
    def gammas(self) -> tuple[float, ...]:
        """Forgetting coefficient of each filter (J,)."""
        return tuple(gamma_of(value) for value in self.half_lives)

    @property
    def half_life_weights(self) -> Array:
        """Posterior over half-lives (J,)."""
        return self.weights.sum(axis=1)

    @property
    def half_life(self) -> float:
        """Median of the posterior over half-lives."""
        return float(weighted_median(self.half_lives, self.half_life_weights))

    @property
    def gamma(self) -> float:
        """Forgetting coefficient of the median half-life."""
        return gamma_of(self.half_life)

    @property
    def calibration(self) -> float:
        """Median of the posterior over calibrations."""
        grid, weights = np.asarray(self.calibrations), self.weights
        if grid.ndim == 1:
            weights = weights.sum(axis=0)
        return float(weighted_median(grid.ravel(), weights.ravel()))

    def add_outputs(self, n_outputs: int) -> Self:
        """Add classes that were never seen, as if they had been declared at the start."""
        n_outputs = check.count("n_outputs", n_outputs)
        return replace(
            self,
            bank=self.bank.add_outputs(n_outputs),
            seen=np.pad(self.seen, (0, n_outputs)),
        )

    def keep_outputs(self, columns: Array) -> Self:
        """Keep only these outputs. They do not change, because outputs are independent."""
        columns = check.columns("columns", columns, len(self.seen))
        return replace(self, bank=self.bank.keep_outputs(columns), seen=self.seen[columns])

    def add_features(self, n_features: int, prior_var: float) -> Self:
        """Add features that were 0 in all rows so far, as if they had been there from the start."""
        n_features = check.count("n_features", n_features)
        prior_vars = _prior_vars(self.prior_scales, prior_var, self.bank.dtype)
        return replace(self, bank=self.bank.add_features(n_features, prior_vars))


@dataclass(frozen=True, slots=True)
class MixtureStep:
    """Report of every row of a chunk under a mixture, made before its target was seen.

    Attributes
    ----------
    logit_mean, logit_var : (J, b, K), (J, b)
        Moments of each filter.
    weights : (b, J, C)
        Posterior over half-lives and calibrations.
    half_life, gamma : (b,)
        Median of the posterior over half-lives, and its coefficient.
    log_prob : (b,)
        Log predictive of the row's target, among the classes seen so far; NaN if it had none or
        was a class never seen.
    scale : (b, J)
        Scale of the variances: 1 unless the mixture learns it, NaN while unknown.
    calibrations : C numbers, or J times C numbers
    prior_scales : J numbers
        As in `Mixture`.
    evidence : (b, J) or None
        Log predictive of the row's target under each filter, times the sample weight; NaN where
        log_prob is. None if no target was given, as in a prediction.
    bank : BankStep
        The step of each filter.
    half_life_weights : (b, J)
        Posterior over half-lives.
    mean, var : (b, K)
        Predicted mean and variance (without noise) of the outputs, averaged over the mixture.
    """

    bank: BankStep
    weights: Array
    log_prob: Array
    scale: Array
    half_lives: tuple[float, ...]
    calibrations: Calibrations
    prior_scales: tuple[float, ...] = ()
    evidence: Array | None = None

    def __post_init__(self) -> None:
        check.instance("the bank of the step", self.bank, BankStep)
        means = check.numeric("the logit_mean of the step", self.bank.logit_mean)
        if means.ndim != 3:
            raise InvalidInput(f"the logit_mean of the step must be (J, b, K), got {means.shape}")
        n_filters, n, _ = means.shape
        calibrations = _calibrations("the calibrations of the step", self.calibrations, n_filters)
        scales = self.prior_scales or (1.0,) * n_filters
        scales = check.sequence("the prior_scales of the step", scales)
        shapes = {"logit_mean": means.shape, "logit_var": (n_filters, n)}
        parts = {
            name: check.block(f"the {name} of the step", getattr(self.bank, name), shape)
            for name, shape in shapes.items()
        }
        shape = n, *_grid(calibrations, n_filters).shape
        weights = check.block("the weights of the step", self.weights, shape)
        object.__setattr__(self, "bank", replace(self.bank, **parts))
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "calibrations", calibrations)
        object.__setattr__(self, "prior_scales", scales)

    @property
    def logit_mean(self) -> Array:
        """Predicted mean of each filter (J, b, K)."""
        return self.bank.logit_mean

    @property
    def logit_var(self) -> Array:
        """Predicted variance of each filter (J, b), shared by the outputs."""
        return self.bank.logit_var

    @property
    def nis(self) -> Array:
        """Normalised innovation squared (b,), averaged over filters."""
        return np.einsum("bj,jb->b", self.half_life_weights, self.bank.nis)

    @property
    def half_life(self) -> Array:
        """Median of the posterior over half-lives (b,)."""
        return weighted_median(self.half_lives, self.half_life_weights)

    @property
    def gamma(self) -> Array:
        """Forgetting coefficient of the median half-life (b,)."""
        return 0.5 ** (1.0 / self.half_life)

    @property
    def half_life_weights(self) -> Array:
        """Posterior over half-lives (b, J)."""
        return self.weights.sum(axis=2)

    @property
    def mean(self) -> Array:
        """Predicted mean of the outputs (b, K), averaged over the mixture."""
        return np.einsum("bj,jbk->bk", self.half_life_weights, self.logit_mean)

    @property
    def var(self) -> Array:
        """Predicted variance of the outputs without noise (b, K): within and between filters."""
        between = np.square(self.logit_mean - self.mean)
        within = self.scale.T * self.logit_var
        return np.einsum("bj,jbk->bk", self.half_life_weights, within[:, :, None] + between)

    @property
    def weight_variance(self) -> Array:
        """Variance of the outputs (b,) that comes from not knowing the weights.

        That of each filter is divided by its prior scale.
        """
        return np.einsum("bj,jb->b", self.half_life_weights, self.relative_variance)

    @property
    def relative_variance(self) -> Array:
        """Predicted variance of each filter (J, b), over its prior scale."""
        return self.logit_var / np.array(self.prior_scales)[:, None]

    def target_variance(self, noise_var: float, scale: float = 1.0) -> Array:
        """Variance of the targets (b, K), noise included; each filter has a scale of its own."""
        noise = np.einsum("bj,bj->b", self.half_life_weights, self.scale) * noise_var
        return self.var + noise[:, None]

    def keep_outputs(self, n_outputs: int) -> MixtureStep:
        """The same step, restricted to the first n_outputs outputs."""
        if self.logit_mean.shape[-1] == n_outputs:
            return self
        means = np.ascontiguousarray(self.logit_mean[..., :n_outputs])
        grids = self.half_lives, self.calibrations, self.prior_scales
        rest = self.weights, self.log_prob, self.scale, *grids, self.evidence
        return check.trusted(MixtureStep, replace(self.bank, logit_mean=means), *rest)

    def take(self, rows: Array) -> MixtureStep:
        """Some of the rows (n,), in this order."""
        grids = self.half_lives, self.calibrations, self.prior_scales
        parts = self.weights, self.log_prob, self.scale
        evidence = None if self.evidence is None else self.evidence[rows]
        each = (np.ascontiguousarray(part[rows]) for part in parts)
        return check.trusted(MixtureStep, self.bank.take(rows), *each, *grids, evidence)

    def class_probabilities(
        self,
        *,
        method: Method = "exact",
        light: float = 0.0,
        n_samples: int = 100,
        random_state: int | np.random.Generator | None = None,
    ) -> Array:
        """Class probabilities (b, K); see `mixture_probabilities`."""
        return mixture_probabilities(
            self, method=method, light=light, n_samples=n_samples, random_state=random_state
        )


@final
@dataclass(frozen=True, slots=True)
class Mixture(JudgingPolicy):
    """Filters with fixed half-lives, each with a grid of calibrations, weighted by evidence.

    The weights follow Bayes' rule on each filter's own predictive probability, with a fixed
    share of switching between any two: nothing has to be tuned.

    Parameters
    ----------
    half_lives : floats above 0, in rows
        inf forgets nothing.
    share : float in [0, 1]
        Probability of switching before a step (per unit of time, if there are time gaps).
    calibrations : C floats above 0, or J times C
        Grid of alpha, for all filters or for each; regression does not use it.
    predictive : "exact" or "probit"
        What weights the filters; the probit approximation is cheaper.
    learn_scale : bool
        Regression with a noise of unknown size: noise_var and prior_var are in units of a scale
        that each filter learns from its innovations (core/README.md, "The unknown scale").
    likelihood : "onehot", "softmax", "softmax-label", or J of these words
        How labels are observed; see `step_chunk`.
    prior_scale : float above 0, or J floats
        The prior variance of a filter, in units of prior_var.
    order : 1, 2 or 3, or J of these
        Order of the motion of a filter's weights; see `Fixed`.

    Examples
    --------
    >>> import numpy as np
    >>> policy = Mixture(half_lives=(10.0, float("inf")))
    >>> state = policy.start(1, 1, prior_var=1.0)
    >>> state, seen = policy.step_chunk(
    ...     state, np.ones((60, 1)), np.repeat([0.0, 3.0], 30), noise_var=0.1, prior_var=1.0
    ... )
    >>> bool(seen.half_life_weights[29, 1] > 0.5), bool(seen.half_life_weights[40, 0] > 0.9)
    (True, True)
    """

    tag: ClassVar[str] = "Mixture"
    state_type: ClassVar[type] = MixtureState
    combines: ClassVar[bool] = True
    compares: ClassVar[bool] = True

    half_lives: Sequence[float] = (1e2, 1e3, 1e4, 1e5, math.inf)
    share: float = 0.001
    calibrations: Sequence[float] | Sequence[Sequence[float]] = (3.0, 7.0, 15.0, 35.0, 80.0)
    predictive: str = "exact"
    learn_scale: bool = False
    likelihood: str | Sequence[str] = "onehot"
    prior_scale: float | Sequence[float] = 1.0
    order: int | Sequence[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "half_lives", check.sequence("half_lives", self.half_lives))
        for value in self.half_lives:
            gamma_of(value)
        grid = _calibrations("calibrations", self.calibrations, len(self.half_lives))
        object.__setattr__(self, "calibrations", grid)
        _grid(grid, len(self.half_lives))
        for name in ("likelihood", "prior_scale"):
            value = getattr(self, name)
            if not isinstance(value, str | float | int):
                object.__setattr__(self, name, _tuple(name, value))
        object.__setattr__(self, "order", _order(self.order))
        for name in ("likelihood", "prior_scale", "order"):
            if len(getattr(self, f"{name}s")) != self.n_filters:
                raise InvalidInput(
                    f"the mixture has {self.n_filters} half-lives, and its {name} is "
                    f"{getattr(self, name)}; give one, or one for each half-life"
                )
        for word in self.likelihoods:
            check_likelihood("likelihood", word)
        for value in self.prior_scales:
            check.factor("prior_scale", value)
        object.__setattr__(self, "share", check.unit_interval("share", self.share))
        check.choice("predictive", self.predictive, ("exact", "probit"))
        check.flag("learn_scale", self.learn_scale)

    @property
    def n_filters(self) -> int:
        """Number of filters, J."""
        return len(self.half_lives)

    @property
    def likelihoods(self) -> tuple[str, ...]:
        """How each filter (J,) observes labels."""
        if isinstance(self.likelihood, str):
            return (self.likelihood,) * self.n_filters
        return tuple(self.likelihood)

    @property
    def prior_scales(self) -> tuple[float, ...]:
        """Prior variance of each filter (J,), in units of prior_var."""
        if isinstance(self.prior_scale, float | int):
            return (float(self.prior_scale),) * self.n_filters
        return tuple(self.prior_scale)

    @property
    def orders(self) -> tuple[int, ...]:
        """Order of the motion of each filter (J,)."""
        return (self.order,) * self.n_filters if isinstance(self.order, int) else tuple(self.order)

    @property
    def learns_scale(self) -> bool:
        """Whether each filter of a regression learns the scale of the noise."""
        return self.learn_scale

    def with_noise(self, known: bool) -> Mixture:
        """The mixture for a regression whose noise variance is known, or has to be learned."""
        return replace(self, learn_scale=not known)

    def start(
        self, n_features: int, n_outputs: int, *, prior_var: float, dtype: Any = np.float64
    ) -> MixtureState:
        """State before any data: all filters have the same weight."""
        bank = start_bank(
            n_features,
            n_outputs,
            orders=self.orders,
            half_lives=tuple(self.half_lives),
            prior_vars=_prior_vars(self.prior_scales, prior_var, dtype),
            dtype=dtype,
        )
        shape = _grid(self.calibrations, self.n_filters).shape
        return MixtureState(
            bank,
            tuple(self.half_lives),
            _calibrations("calibrations", self.calibrations, self.n_filters),
            np.full(shape, -math.log(shape[0] * shape[1])),
            np.zeros(n_outputs, bool),
            np.zeros((shape[0], 2)),
            self.likelihoods,
            self.prior_scales,
        )

    def check_state(self, state: MixtureState) -> None:
        """Raise an error unless the state is of a mixture with the same grids."""
        check.instance("state", state, MixtureState)
        for name in ("half_lives", "calibrations", "likelihoods", "prior_scales", "orders"):
            if getattr(state, name) != getattr(self, name):
                raise InvalidInput(
                    f"state is of a mixture with {name} {getattr(state, name)}, this one has "
                    f"{getattr(self, name)}; use the policy that started it, or start again"
                )

    def step_rows(
        self, state: MixtureState, rows: Rows, donate: bool
    ) -> tuple[MixtureState, MixtureStep]:
        """Advance the filters over rows, and weigh them by how well they predicted."""
        bank, moments = run_filters(state.bank, rows, self._how(state, rows), donate)
        return self._weighed(state, bank, moments, rows)

    def _weighed(
        self, state: MixtureState, bank: Bank | MixedBank, moments: BankStep, rows: Rows
    ) -> tuple[MixtureState, MixtureStep]:
        """The state after rows, from the filters after them and the moments before each."""
        from kalstream.core._kernels.mixture import mix
        from kalstream.core.softmax_integral import table, workspace

        log_weights, spread = state.log_weights.copy(), state.spread.copy()
        weights, scale, log_prob, evidence = mix(
            moments.logit_mean,
            moments.logit_var,
            *rows.observed(),
            1.0 - (1.0 - self.share) ** rows.gap,
            _grid(state.calibrations, len(state.half_lives)),
            self.predictive == "exact",
            self.learn_scale and rows.targets.labels is None,
            log_weights,
            spread,
            *table(),
            workspace(),
        )
        grids, scales = (state.half_lives, state.calibrations), state.prior_scales
        report = moments, weights, log_prob, scale, *grids, scales
        learned = log_weights, rows.seen(state.seen), spread
        after = check.trusted(MixtureState, bank, *grids, *learned, state.likelihoods, scales)
        return after, check.trusted(MixtureStep, *report, evidence)

    def predict(
        self,
        state: MixtureState,
        features: ArrayLike,
        *,
        prior_var: float,
        time_gap: ArrayLike = 1.0,
        keep_mean: bool = False,
    ) -> MixtureStep:
        """Moments of each row (b, m) one step ahead, each on its own; the state is not touched.

        ``time_gap`` is the time since the last row that was learned, one number or (b,).
        """
        self.check_state(state)
        bank = state.bank
        phi = check.feature_rows(features, bank.n_features, bank.dtype)
        gap = check.non_negative_rows("time_gap", time_gap, len(phi))
        prior_vars = _prior_vars(state.prior_scales, prior_var, bank.dtype)
        keep_mean = check.flag("keep_mean", keep_mean)
        cuts = range(0, len(phi), _PREDICTED_ROWS)
        parts = [
            self._ahead(
                state,
                phi[i : i + _PREDICTED_ROWS],
                gap[i : i + _PREDICTED_ROWS],
                prior_vars,
                keep_mean,
            )
            for i in cuts
        ]
        *moments, weights, log_prob = parts[0]
        if len(parts) > 1:
            axes = 1, 1, 1, 1, 1, 0, 0
            joined = zip(zip(*parts, strict=True), axes, strict=True)
            *moments, weights, log_prob = (np.concatenate(each, axis=axis) for each, axis in joined)
        scale = np.ones((len(phi), len(self.half_lives)))
        if self.learn_scale:
            scale *= self.scale(state)
        grids = state.half_lives, state.calibrations, state.prior_scales
        report = BankStep(*moments), weights, log_prob, scale
        return check.trusted(MixtureStep, *report, *grids, None)

    def _ahead(
        self, state: MixtureState, phi: Array, gap: Array, prior_vars: Array, keep_mean: bool
    ) -> tuple[Array, ...]:
        """What `predict_rows` returns, of a few rows."""
        from kalstream.core._kernels.mixture import predict_rows

        gammas, log_weights = _gammas_of(self.half_lives), state.log_weights
        if isinstance(state.bank, MixedBank):
            step = predict_filters(state.bank, phi, gap, gammas, prior_vars, keep_mean)
            moments = step.logit_mean, step.logit_var, step.gamma, step.noise_var, step.nis
            kept = ((1.0 - self.share) ** gap)[:, None, None]
            weights = kept * np.exp(log_weights) + (1.0 - kept) / log_weights.size
            return *moments, weights, np.full(len(phi), np.nan)
        products = state.bank.foreseen(phi)
        settings = prior_vars, keep_mean, self.share, log_weights
        return predict_rows(*products, phi, gammas, gap, *settings)

    def step_events(
        self,
        state: MixtureState,
        features: Array,
        targets: Any,
        weight: Array,
        events: Events,
        *,
        noise_var: float,
        prior_var: float,
    ) -> tuple[MixtureState, MixtureStep, BankStep]:
        """Predict rows, and learn those that are told; see `JudgingPolicy.step_events`."""
        if isinstance(state.bank, Bank) and events.asked.all():
            step = self.predict(state, features, prior_var=prior_var, time_gap=0.0)
            near, far = self._ahead_of(step.bank, features, events, state, prior_var)
            grids = step.half_lives, step.calibrations, step.prior_scales
            report = near, step.weights, step.log_prob, step.scale, *grids, None
            return state, check.trusted(MixtureStep, *report), far
        given: dict[str, Any] = {"noise_var": noise_var, "prior_var": prior_var}
        # A row that is only asked for changes nothing if no time passes before it.
        gap = np.where(events.asked, 0.0, events.gap)
        own: dict[str, Any] = {"sample_weight": weight, "time_gap": gap}
        rows = Rows.read(state, features, targets, **given, **own)
        if isinstance(state.bank, Bank):
            bank, moments = self._moments(state, rows, targets, weight, events, given)
            near, far = self._ahead_of(moments, rows.features, events, state, prior_var)
        else:
            bank, near, far = self._in_runs(state, rows.features, targets, weight, events, given)
        return *self._weighed(state, bank, near, rows), far

    def _moments(
        self,
        state: MixtureState,
        rows: Rows,
        targets: Any,
        weight: Array,
        events: Events,
        given: dict[str, Any],
    ) -> tuple[Any, BankStep]:
        """The filters after all events, and moments of rows before any time has passed."""
        n_asked, made = int(events.asked.sum()), None
        if len(events) - n_asked > DEFERRED_ROWS and n_asked:
            made = self._between(state, rows.features, targets, weight, events, given)
        return made or run_filters(state.bank, rows, self._how(state, rows), False)

    def _in_runs(
        self,
        state: MixtureState,
        features: Array,
        targets: Any,
        weight: Array,
        events: Events,
        given: dict[str, Any],
    ) -> tuple[Any, BankStep, BankStep]:
        """As `_moments`, run by run: the filters after all events, and moments near and far."""
        after, near, far = state, [], []
        for part in runs(events.asked):
            phi, gap = features[part], events.gap[part]
            if events.asked[part.start]:
                prior = {"prior_var": given["prior_var"]}
                near.append(self.predict(after, phi, **prior, time_gap=events.step[part]).bank)
                far.append(self.predict(after, phi, **prior, time_gap=gap).bank)
            else:
                own: dict[str, Any] = {"sample_weight": weight[part], "time_gap": gap}
                after, step = self.step_chunk(after, phi, targets[part], **given, **own)
                near.append(step.bank)
                far.append(step.bank)
        return after.bank, joined_steps(near), joined_steps(far)

    def _between(
        self,
        state: MixtureState,
        features: Array,
        targets: Any,
        weight: Array,
        events: Events,
        given: dict[str, Any],
    ) -> tuple[Bank, BankStep] | None:
        """Learn the rows that are told in blocks, and predict the others in between."""
        told, asked = np.flatnonzero(~events.asked), np.flatnonzero(events.asked)
        own: dict[str, Any] = {"sample_weight": weight[told], "time_gap": events.gap[told]}
        rows = Rows.read(state, features[told], targets[told], **given, **own)
        how = self._how(state, rows)
        assert isinstance(state.bank, Bank)
        made = run_between(state.bank, rows, how, features[asked], np.searchsorted(told, asked))
        if made is None:
            return None
        bank, step, mean, var = made
        n_filters, n = len(mean), len(events)
        moments = np.empty((n_filters, n, mean.shape[2])), np.empty((n_filters, n))
        moments[0][:, asked], moments[1][:, asked] = mean, var
        moments[0][:, told], moments[1][:, told] = step.logit_mean, step.logit_var
        rest = np.ones((n_filters, n)), np.full((n_filters, n), np.inf)
        nis = np.full((n_filters, n), np.nan)
        rest[0][:, told], rest[1][:, told], nis[:, told] = step.gamma, step.noise_var, step.nis
        return bank, BankStep(*moments, *rest, nis)

    def _how(self, state: MixtureState, rows: Rows) -> How:
        """How the filters forget and observe."""
        prior_vars = _prior_vars(state.prior_scales, rows.prior_var, state.dtype)
        likelihoods = _codes_of(state.likelihoods, rows.targets.labels is not None)
        return How(_gammas_of(self.half_lives) ** rows.gap, prior_vars, likelihoods)

    def _ahead_of(
        self,
        step: BankStep,
        features: Array,
        events: Events,
        state: MixtureState,
        prior_var: float,
    ) -> tuple[BankStep, BankStep]:
        """Moments of rows that are asked for, one step ahead and as far as they are, eq. (7)."""
        asked = np.flatnonzero(events.asked)
        if not len(asked):
            return step, step
        phi = features[asked].astype(np.float64, copy=False)
        prior = _prior_vars(state.prior_scales, prior_var, state.dtype)[:, None]
        prior = prior * np.einsum("bm,bm->b", phi, phi)

        def after(gap: Array) -> BankStep:
            g = _gammas_of(self.half_lives) ** gap[asked]
            mean, var, gammas = step.logit_mean.copy(), step.logit_var.copy(), step.gamma.copy()
            mean[:, asked] *= g[:, :, None]
            own = g * g * np.maximum(var[:, asked], 0.0)
            var[:, asked], gammas[:, asked] = own + (1.0 - g) * (1.0 + g) * prior, g
            return BankStep(mean, var, gammas, step.noise_var, step.nis)

        return after(events.step), after(events.gap)

    def late_judge(self, state: MixtureState, sizes: Sizes) -> LateJudge:
        """A judge by the predictions that are made from now on; it begins with the weights now."""
        n = n_answers(sizes)
        begun = np.zeros(sizes[2]), np.full(n, 1.0 / max(n, 1))
        return LateJudge(state.log_weights, state.spread, *begun)

    def judge(self, judge: LateJudge, case: Case) -> tuple[LateJudge, MixtureStep, Judged]:
        """Weigh the filters by what they said; see `JudgingPolicy.judge`."""
        from kalstream.core._kernels.judging import judge_rows
        from kalstream.core.softmax_integral import table, workspace

        events, far, step, kept = case.events, case.far, case.step, case.kept
        kept.write(events, far)
        log_weights, spread = judge.log_weights.copy(), judge.spread.copy()
        beside = judge.beside.copy()
        labels, dense = case.targets.arrays()
        weights, shares, scale, log_prob, evidence, rates = judge_rows(
            *(events.asked, events.slot, events.gap, events.lag),
            *(labels, dense, case.noise_var, case.weight),
            (far.logit_mean, far.logit_var),
            (
                *(kept.means, kept.variances, kept.active, kept.experts),
                *(kept.spread, kept.n_targets, kept.said),
            ),
            _grid(step.calibrations, self.n_filters),
            _gammas_of(self.half_lives)[:, 0],
            self.share,
            self.predictive == "exact",
            self.learn_scale and case.targets.labels is None,
            case.n_targets,
            *(log_weights, beside, spread),
            (*table(), workspace()),
        )
        after = replace(judge, log_weights=log_weights, spread=spread, beside=beside)
        grids = step.half_lives, step.calibrations, step.prior_scales
        late = check.trusted(MixtureStep, far, weights, log_prob, scale, *grids, evidence)
        return after, late, Judged(shares, rates, self.share, np.zeros(len(events), np.int64))

    def judged_late(self, state: MixtureState, judge: LateJudge) -> MixtureState:
        """The state with the weights of a late judge."""
        return replace(state, log_weights=judge.log_weights, spread=judge.spread)

    def scale(self, state: MixtureState) -> Array:
        """What the variances of each filter are multiples of (J,)."""
        self.check_state(state)
        if not self.learn_scale:
            return np.ones(len(state.half_lives))
        with np.errstate(invalid="ignore"):
            return state.spread[:, 1] / state.spread[:, 0]

    def freedom(self, state: MixtureState) -> float:
        """How many targets the scale is known from."""
        return float(state.spread[0, 0])

    # ---- the drift alarm ------------------------------------------------------------------

    @property
    def watched(self) -> Array:
        """Half-life of each filter (J,), shortest first."""
        return _sorted(tuple(self.half_lives))

    def first_belief(self) -> Array:
        """All filters alike (J,)."""
        return np.full(self.n_filters, 1.0 / self.n_filters)

    def belief(
        self, step: MixtureStep, time_gap: Array | None, transition: str, before: Array
    ) -> tuple[Array, Array]:
        """Weight and relative variance of each filter (b, J), shortest half-life first."""
        from kalstream.core._kernels.mixture import watched_rows

        return watched_rows(step.weights, step.relative_variance, _order_of(step.half_lives))

    def evidence(self, step: MixtureStep) -> Array:
        """Log predictive of each row's target under each filter (b, J), in the same order."""
        if step.evidence is None:
            raise InvalidInput(
                "the step is of a prediction, without evidence; pass one that learned"
            )
        return step.evidence[:, _order_of(step.half_lives)]


def mixture_probabilities(
    step: MixtureStep,
    *,
    method: Method = "exact",
    light: float = 0.0,
    n_samples: int = 100,
    random_state: int | np.random.Generator | None = None,
) -> Array:
    """Class probabilities (b, K) of a mixture's rows, made before their labels were seen.

    With method "exact" the lightest components, ``light`` of the mixture together, may be taken by
    probit: there are many of them, and their error hardly shows.

    Examples
    --------
    >>> policy = Mixture()
    >>> state = policy.start(1, 2, prior_var=1.0)
    >>> state, seen = policy.step_chunk(state, [[1.0]], [0], noise_var=0.5, prior_var=1.0)
    >>> mixture_probabilities(seen)
    array([[0.5, 0.5]])
    """
    moments = moments_of(step)
    means, variances, weights, calibrations = moments
    check.choice("method", method, METHODS)
    if method in ("exact", "probit"):
        from kalstream.core._kernels.mixture import mixed_probabilities
        from kalstream.core.softmax_integral import table, workspace

        light = check.unit_interval("light", light) if method == "exact" else math.inf
        out, bad = mixed_probabilities(*moments, light, *table(), workspace())
        if bad >= 0:
            _refuse_row(bad, moments)
        return out
    whole = weights.sum(axis=(1, 2))
    sound = (weights.min(axis=(1, 2)) >= 0.0) & (whole > 0.0) & (whole < math.inf)
    if not sound.all():
        _refuse_row(int(np.argmin(sound)), moments)
    weights = weights / whole[:, None, None]
    rng = check.generator("random_state", random_state)
    total = np.zeros(means.shape[1:])
    for j, (mean, var) in enumerate(zip(means, variances, strict=True)):
        for c, calibration in enumerate(calibrations[j].tolist()):
            total += weights[:, j, c, None] * class_probabilities(
                mean,
                np.maximum(var, 0.0),
                calibration=calibration,
                method=method,
                n_samples=n_samples,
                random_state=rng,
            )
    return total / total.sum(axis=1, keepdims=True)


def moments_of(step: MixtureStep) -> tuple[Array, Array, Array, Array]:
    """Means (J, b, K), variances (J, b), weights (b, J, C) and calibrations (J, C) of a step.

    Compiled code may rely on the shapes; J, b and K are at least 1.
    """
    check.instance("step", step, MixtureStep)
    means = step.logit_mean
    if not means.size:
        raise InvalidInput(
            f"step has logit_mean of shape {means.shape}; it must have a row and a class"
        )
    return means, step.logit_var, step.weights, _grid(step.calibrations, len(means))


def _refuse_row(row: int, moments: tuple[Array, ...]) -> NoReturn:
    means, variances, weights, calibrations = moments
    raise InvalidInput(
        f"row {row} of the step has no probabilities: its means reach "
        f"{np.abs(means[:, row]).max():g} and its variances {variances[:, row].max():g} before "
        f"calibrations of up to {calibrations.max():g}, its weights lie between "
        f"{weights[row].min():g} and {weights[row].max():g}; logits must stay below 1e150 and "
        "weights be finite, at least 0 and not all 0"
    )


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    """A sequence of words or numbers; one number is a sequence of one."""
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return check.sequence(name, value if np.ndim(value) else [value])


def _order(value: Any) -> int | tuple[int, ...]:
    """One order of motion, or one for each filter."""
    if isinstance(value, Sequence | np.ndarray) and np.ndim(value) == 1:
        return tuple(check_order(each) for each in value)
    return check_order(value)


def _calibrations(name: str, values: Any, n_filters: int) -> Calibrations:
    """A sequence of numbers, or of J such sequences that are of the same length."""
    nested = isinstance(values, Sequence) and any(np.ndim(each) == 1 for each in values)
    if not nested:
        return check.sequence(name, values)
    rows = tuple(check.sequence(name, row) for row in values)
    if len(rows) != n_filters or len({len(row) for row in rows}) != 1:
        raise InvalidInput(
            f"{name} holds sequences of lengths {[len(row) for row in rows]}; give one sequence "
            f"for each of {n_filters} filters, all of the same length"
        )
    return rows


@lru_cache
def _grid(values: Calibrations, n_filters: int) -> Array:
    """Calibrations as an array (J, C); not to be changed."""
    grid = np.broadcast_to(np.array(values, np.float64), (n_filters, np.shape(values)[-1]))
    for value in grid.ravel():
        check.factor("calibrations", float(value))
    return np.ascontiguousarray(grid)


def _prior_vars(scales: tuple[float, ...], prior_var: float, dtype: Any) -> Array:
    """Prior variance of each filter (J,); not to be changed."""
    return _scaled(scales, check.variance("prior_var", prior_var, dtype), dtype)


@lru_cache
def _scaled(scales: tuple[float, ...], prior_var: float, dtype: Any) -> Array:
    name = "prior_var times a prior_scale"
    return np.array([check.variance(name, scale * prior_var, dtype) for scale in scales])


@lru_cache
def _codes_of(likelihoods: tuple[str, ...], labels: bool) -> Array:
    """`Rows.likelihood` of each filter (J,), for labels or for values; not to be changed."""
    return np.array([(LIKELIHOODS[word] if labels else ONEHOT).code for word in likelihoods])


@lru_cache
def _gammas_of(half_lives: Sequence[float]) -> Array:
    """Coefficients (J, 1) of half-lives; not to be changed."""
    return np.array([[gamma_of(value)] for value in half_lives])


@lru_cache
def _order_of(half_lives: tuple[float, ...]) -> Array:
    """Indices of the filters (J,), shortest half-life first."""
    return np.argsort(half_lives, kind="stable")


@lru_cache
def _sorted(half_lives: tuple[float, ...]) -> Array:
    """Half-lives (J,), shortest first; not to be changed."""
    return np.sort(half_lives)
