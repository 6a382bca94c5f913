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
from kalstream.core.bank import Bank, run_bank
from kalstream.core.chunk import Rows
from kalstream.core.medians import weighted_median
from kalstream.core.policy import (
    Policy,
    PolicyState,
    SeenClasses,
    check_seen,
    gamma_of,
)
from kalstream.core.predictive import METHODS, class_probabilities
from kalstream.core.recursion import init
from kalstream.core.state import BankStep, Posterior
from kalstream.errors import InvalidInput

if TYPE_CHECKING:
    from kalstream.core.predictive import Method

Array = NDArray[Any]

# Rows predicted at a time, so that memory stays bounded.
_PREDICTED_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class MixtureState(PolicyState):
    """Filters with fixed half-lives, and the weight of each.

    Attributes
    ----------
    bank : Bank
        The J filters.
    half_lives, calibrations : J and C numbers
    log_weights : (J, C)
    seen : (K,) bool
    spread : (J, 2)
        Degrees of freedom and sum of squares of each filter's scale, if that is learned.
    posteriors : J posteriors
    weights, half_life_weights : (J, C), (J,)
        Posterior over half-lives and calibrations, and over half-lives.
    half_life, gamma, calibration : float
        Medians of that posterior.
    posterior : Posterior
        Posterior of the filter with the largest weight.
    """

    tag: ClassVar[str] = "MixtureState"

    bank: Bank
    half_lives: tuple[float, ...]
    calibrations: tuple[float, ...]
    log_weights: Array
    seen: Array
    spread: Array

    def __post_init__(self) -> None:
        check.instance("the bank of the state", self.bank, Bank)
        shape = self.bank.arrays.mean.shape
        for name in ("half_lives", "calibrations"):
            values = check.sequence(f"the {name} of the state", getattr(self, name))
            object.__setattr__(self, name, values)
            if not all(value > 0.0 for value in values):
                raise InvalidInput(f"the {name} of the state must be above 0, got {values}")
        if len(self.half_lives) != shape[0]:
            raise InvalidInput(
                f"the state has {shape[0]} filters and the half-lives {self.half_lives}; give one "
                "half-life for each filter"
            )
        shapes = {"log_weights": (shape[0], len(self.calibrations)), "spread": (shape[0], 2)}
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
        return float(weighted_median(self.calibrations, self.weights.sum(axis=0)))

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
        prior_var = check.variance("prior_var", prior_var, self.bank.dtype)
        return replace(self, bank=self.bank.add_features(n_features, prior_var))


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
    calibrations : C numbers
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
    calibrations: tuple[float, ...]

    def __post_init__(self) -> None:
        check.instance("the bank of the step", self.bank, BankStep)
        means = check.numeric("the logit_mean of the step", self.bank.logit_mean)
        if means.ndim != 3:
            raise InvalidInput(f"the logit_mean of the step must be (J, b, K), got {means.shape}")
        n_filters, n, _ = means.shape
        calibrations = check.sequence("the calibrations of the step", self.calibrations)
        shapes = {"logit_mean": means.shape, "logit_var": (n_filters, n)}
        parts = {
            name: check.block(f"the {name} of the step", getattr(self.bank, name), shape)
            for name, shape in shapes.items()
        }
        weights = check.block(
            "the weights of the step", self.weights, (n, n_filters, len(calibrations))
        )
        object.__setattr__(self, "bank", replace(self.bank, **parts))
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "calibrations", calibrations)

    @property
    def logit_mean(self) -> Array:
        """Predicted mean of each filter (J, b, K)."""
        return self.bank.logit_mean

    @property
    def logit_var(self) -> Array:
        """Predicted variance of each filter (J, b), shared by the outputs."""
        return self.bank.logit_var

    @property
    def noise_var(self) -> Array:
        """Noise variance of each row's target (b,); inf where nothing was learned."""
        return self.bank.noise_var

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
        """Variance of the outputs (b,) that comes from not knowing the weights."""
        return np.einsum("bj,jb->b", self.half_life_weights, self.logit_var)

    def target_variance(self, noise_var: float, scale: float = 1.0) -> Array:
        """Variance of the targets (b, K), noise included; each filter has a scale of its own."""
        noise = np.einsum("bj,bj->b", self.half_life_weights, self.scale) * noise_var
        return self.var + noise[:, None]

    def keep_outputs(self, n_outputs: int) -> MixtureStep:
        """The same step, restricted to the first n_outputs outputs."""
        if self.logit_mean.shape[-1] == n_outputs:
            return self
        means = np.ascontiguousarray(self.logit_mean[..., :n_outputs])
        grids = self.half_lives, self.calibrations
        rest = self.weights, self.log_prob, self.scale, *grids
        return check.trusted(MixtureStep, replace(self.bank, logit_mean=means), *rest)

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
class Mixture(Policy):
    """Filters with fixed half-lives, each with a grid of calibrations, weighted by evidence.

    The weights follow Bayes' rule on each filter's own predictive probability, with a fixed
    share of switching between any two: nothing has to be tuned.

    Parameters
    ----------
    half_lives : floats above 0, in rows
        inf forgets nothing.
    share : float in [0, 1]
        Probability of switching before a step (per unit of time, if there are time gaps).
    calibrations : floats above 0
        Grid of alpha; regression does not use it.
    predictive : "exact" or "probit"
        What weights the filters; the probit approximation is cheaper.
    learn_scale : bool
        Regression with a noise of unknown size: noise_var and prior_var are in units of a scale
        that each filter learns from its innovations (core/README.md, "The unknown scale").

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

    half_lives: Sequence[float] = (1e2, 1e3, 1e4, 1e5, math.inf)
    share: float = 0.001
    calibrations: Sequence[float] = (3.0, 7.0, 15.0, 35.0, 80.0)
    predictive: str = "exact"
    learn_scale: bool = False

    def __post_init__(self) -> None:
        for name in ("half_lives", "calibrations"):
            object.__setattr__(self, name, check.sequence(name, getattr(self, name)))
        for value in self.half_lives:
            gamma_of(value)
        for value in self.calibrations:
            check.factor("calibrations", value)
        object.__setattr__(self, "share", check.unit_interval("share", self.share))
        check.choice("predictive", self.predictive, ("exact", "probit"))
        check.flag("learn_scale", self.learn_scale)

    @property
    def n_filters(self) -> int:
        """Number of filters, J."""
        return len(self.half_lives)

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
        """State before any data: all filters alike."""
        prior = init(n_features, n_outputs, prior_var=prior_var, dtype=dtype)
        shape = len(self.half_lives), len(self.calibrations)
        return MixtureState(
            Bank.of(prior, shape[0]),
            tuple(self.half_lives),
            tuple(self.calibrations),
            np.full(shape, -math.log(shape[0] * shape[1])),
            np.zeros(n_outputs, bool),
            np.zeros((shape[0], 2)),
        )

    def check_state(self, state: MixtureState) -> None:
        """Raise an error unless the state is of a mixture with the same grids."""
        check.instance("state", state, MixtureState)
        for name in ("half_lives", "calibrations"):
            if getattr(state, name) != getattr(self, name):
                raise InvalidInput(
                    f"state is of a mixture with {name} {getattr(state, name)}, this one has "
                    f"{getattr(self, name)}; use the policy that started it, or start again"
                )

    def step_rows(
        self, state: MixtureState, rows: Rows, donate: bool
    ) -> tuple[MixtureState, MixtureStep]:
        """Advance the filters over rows, and weigh them by how well they predicted."""
        from kalstream.core._kernels.mixture import mix
        from kalstream.core.softmax_integral import table, workspace

        bank, moments = run_bank(state.bank, rows, self._gammas(rows.gap), donate)
        log_weights, spread = state.log_weights.copy(), state.spread.copy()
        seen = SeenClasses(state.seen)
        weights, scale, log_prob, seen.count = mix(
            moments.logit_mean,
            moments.logit_var,
            *rows.targets.arrays(),
            rows.noise_var,
            rows.weight,
            1.0 - (1.0 - self.share) ** rows.gap,
            _array(state.calibrations),
            self.predictive == "exact",
            self.learn_scale and rows.targets.labels is None,
            log_weights,
            spread,
            seen.classes,
            seen.count,
            *table(),
            workspace(),
        )
        grids = state.half_lives, state.calibrations
        step = check.trusted(MixtureStep, moments, weights, log_prob, scale, *grids)
        after = check.trusted(MixtureState, bank, *grids, log_weights, seen.mask(), spread)
        return after, step

    def _gammas(self, gap: Array) -> Array:
        """Coefficients (J, b) of rows with these gaps (b,)."""
        return _gammas_of(self.half_lives) ** gap

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
        prior_var = check.variance("prior_var", prior_var, bank.dtype)
        keep_mean = check.flag("keep_mean", keep_mean)
        cuts = range(0, len(phi), _PREDICTED_ROWS)
        parts = [
            self._ahead(state, phi[i : i + _PREDICTED_ROWS], gap[i:], prior_var, keep_mean)
            for i in cuts
        ]
        *moments, weights, log_prob = parts[0]
        if len(parts) > 1:
            axes = 1, 1, 1, 0, 1, 0, 0
            joined = zip(zip(*parts, strict=True), axes, strict=True)
            *moments, weights, log_prob = (np.concatenate(each, axis=axis) for each, axis in joined)
        scale = np.ones((len(phi), len(self.half_lives)))
        if self.learn_scale:
            scale *= self.scale(state)
        grids = state.half_lives, state.calibrations
        return check.trusted(MixtureStep, BankStep(*moments), weights, log_prob, scale, *grids)

    def _ahead(
        self, state: MixtureState, phi: Array, gap: Array, prior_var: float, keep_mean: bool
    ) -> tuple[Array, ...]:
        """What `predict_rows` returns, of a few rows."""
        from kalstream.core._kernels.mixture import predict_rows

        products = state.bank.foreseen(phi)
        gammas = _gammas_of(self.half_lives)
        settings = prior_var, keep_mean, self.share, state.log_weights
        return predict_rows(*products, phi, gammas, gap, *settings)

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
        """The half-lives (J,), shortest first."""
        return np.sort(self.half_lives)

    def first_belief(self) -> Array:
        """All half-lives alike (J,)."""
        return np.full(self.n_filters, 1.0 / self.n_filters)

    def belief(
        self, step: MixtureStep, time_gap: Array | None, transition: str, before: Array
    ) -> tuple[Array, Array]:
        """Posterior over half-lives (b, J), and each filter's variance (b, J), shortest first."""
        from kalstream.core._kernels.mixture import watched_rows

        return watched_rows(step.weights, step.logit_var, _order_of(step.half_lives))


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
        for c, calibration in enumerate(calibrations.tolist()):
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
    """Means (J, b, K), variances (J, b), weights (b, J, C) and calibrations (C,) of a step.

    Compiled code may rely on the shapes; J, b and K are at least 1.
    """
    check.instance("step", step, MixtureStep)
    means = step.logit_mean
    if not means.size:
        raise InvalidInput(
            f"step has logit_mean of shape {means.shape}; it must have a row and a class"
        )
    return means, step.logit_var, step.weights, _array(step.calibrations)


def _refuse_row(row: int, moments: tuple[Array, ...]) -> NoReturn:
    means, variances, weights, calibrations = moments
    raise InvalidInput(
        f"row {row} of the step has no probabilities: its means reach "
        f"{np.abs(means[:, row]).max():g} and its variances {variances[:, row].max():g} before "
        f"calibrations of up to {calibrations.max():g}, its weights lie between "
        f"{weights[row].min():g} and {weights[row].max():g}; logits must stay below 1e150 and "
        "weights be finite, at least 0 and not all 0"
    )


@lru_cache
def _array(values: tuple[float, ...]) -> Array:
    """Calibrations as an array; not to be changed."""
    return np.array(
        [check.factor("calibrations", v) for v in check.sequence("calibrations", values)]
    )


@lru_cache
def _gammas_of(half_lives: Sequence[float]) -> Array:
    """Coefficients (J, 1) of half-lives; not to be changed."""
    return np.array([[gamma_of(value)] for value in half_lives])


@lru_cache
def _order_of(half_lives: tuple[float, ...]) -> Array:
    """Order (J,) of half-lives, shortest first; not to be changed."""
    return np.argsort(half_lives)
