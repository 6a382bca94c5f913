"""One filter whose forgetting is fixed or learned: what `Fixed` and `Learned` share."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core._threads import OneThread
from kalstream.core.calibration import Alpha, Calibration
from kalstream.core.chunk import Grams, Rows, Scan, fixed_scan, run
from kalstream.core.half_lives import half_life
from kalstream.core.likelihoods import LIKELIHOODS, check_likelihood
from kalstream.core.policy import Policy, PolicyState, check_seen
from kalstream.core.recursion import init
from kalstream.core.state import Posterior, Step, add_features, add_outputs, keep_outputs
from kalstream.errors import InvalidInput

# gamma = 0.08 keeps nothing worth having, and the gradient of delta, which vanishes with gamma,
# still leads back: SGD that overshot further would never return.
LARGEST_DELTA: Final = 5.0
# exp(-1000) is 0 in float64, and times a gap of 0 it is still 1.
_INFINITE_DELTA: Final = 2000.0
# Half-lives into which a learned gamma is sorted, for the drift alarm.
_GRID: Final = np.array([3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, math.inf])


class OneFilterState(PolicyState):
    """State of one filter: its weights, its forgetting, its calibration and the classes seen."""

    __slots__ = ()

    alpha: Alpha
    if TYPE_CHECKING:  # a field or a property

        @property
        def posterior(self) -> Posterior: ...  # noqa: D102

    @property
    def half_lives(self) -> tuple[float, ...]:
        """The half-life, of one filter."""
        return (self.half_life,)

    @property
    def gammas(self) -> tuple[float, ...]:
        """The forgetting coefficient, of one filter."""
        return (self.gamma,)

    @property
    def half_life_weights(self) -> Array:
        """All weight is on the one filter (1,)."""
        return np.ones(1)

    @property
    def posteriors(self) -> tuple[Posterior, ...]:
        """The posterior, of one filter."""
        return (copy.copy(self.posterior),)

    @property
    def calibration(self) -> float:
        """Current alpha."""
        return self.alpha.value


@dataclass(frozen=True, slots=True)
class FilterState(OneFilterState):
    """One filter, its forgetting and its calibration.

    Attributes
    ----------
    posterior : Posterior
    delta : float
        gamma = exp(-delta / 2).
    alpha : Alpha
    seen : (K,) bool
        Classes that have been learned at least once.
    likelihood : str
        How labels were observed.
    gamma, half_life, calibration : float
        What delta and alpha stand for.

    Examples
    --------
    The state of `Fixed` and `Learned`:

    >>> from kalstream.core import Fixed
    >>> state = Fixed(0.5).start(3, 2, prior_var=1.0)
    >>> type(state).__name__, round(state.gamma, 3), round(state.half_life, 3), state.n_features
    ('FilterState', 0.5, 1.0, 3)
    """

    tag: ClassVar[str] = "FilterState"

    posterior: Posterior
    delta: float
    alpha: Alpha
    seen: Array
    likelihood: str = "onehot"

    def __post_init__(self) -> None:
        check_likelihood("the likelihood of the state", self.likelihood)
        check.instance("the posterior of the state", self.posterior, Posterior)
        check.instance("the alpha of the state", self.alpha, Alpha)
        check_seen(self.seen, self.posterior.n_outputs)
        delta = check.scalar("the delta of the state", self.delta)
        object.__setattr__(self, "delta", delta)
        if not 0.0 <= delta <= _INFINITE_DELTA:
            raise InvalidInput(
                f"the delta of the state must lie between 0 and {_INFINITE_DELTA:g}, got {delta}"
            )

    @property
    def gamma(self) -> float:
        """Current forgetting coefficient."""
        return math.exp(-0.5 * self.delta)

    @property
    def half_life(self) -> float:
        """Current half-life in rows."""
        return half_life(self.gamma)

    @property
    def n_features(self) -> int:
        """Number of features, m."""
        return self.posterior.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the features."""
        return self.posterior.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept from row to row."""
        return self.posterior.stored.nbytes

    def add_outputs(self, n_outputs: int) -> Self:
        """Add classes that were never seen, as if they had been declared at the start."""
        return replace(
            self,
            posterior=add_outputs(self.posterior, n_outputs),
            seen=np.pad(self.seen, (0, n_outputs)),
        )

    def keep_outputs(self, columns: Array) -> Self:
        """Keep only these outputs. They do not change, because outputs are independent."""
        columns = check.columns("columns", columns, len(self.seen))
        return replace(
            self, posterior=keep_outputs(self.posterior, columns), seen=self.seen[columns]
        )

    def add_features(self, n_features: int, prior_var: float) -> Self:
        """Add features that were 0 in all rows so far, as if they had been there from the start."""
        return replace(self, posterior=add_features(self.posterior, n_features, prior_var))


class SingleFilter(Policy):
    """What `Fixed` and `Learned` share: one filter, a delta and an alpha."""

    __slots__ = ()

    calibration: Calibration | float
    likelihood: str

    @property
    def state_type(self) -> type:
        """Its states are of this class."""
        return FilterState

    @property
    def n_filters(self) -> int:
        """One."""
        return 1

    @property
    def likelihoods(self) -> tuple[str, ...]:
        """How the one filter observes labels."""
        return (self.likelihood,)

    @property
    def usual_prior_var(self) -> float:
        """1, or with the softmax, whose weights make logits, 100."""
        return LIKELIHOODS[self.likelihood].usual_prior_var

    @property
    @abstractmethod
    def _rule(self) -> tuple[float, float, bool]:
        """Gamma to start from, learning rate of delta, whether it learns from calibrated logits."""

    def start(
        self, n_features: int, n_outputs: int, *, prior_var: float, dtype: Any = np.float64
    ) -> FilterState:
        """State before any data."""
        return FilterState(
            init(n_features, n_outputs, prior_var=prior_var, dtype=dtype),
            _delta_of(self._rule[0]),
            as_calibration(self.calibration).start(),
            np.zeros(n_outputs, bool),
            self.likelihood,
        )

    def check_state(self, state: FilterState) -> None:
        """Raise an error unless the state is one of this policy, with the same likelihood."""
        check.instance("state", state, self.state_type)
        if state.likelihood != self.likelihood:
            raise InvalidInput(
                f"state is of a filter with likelihood {state.likelihood!r}, this one has "
                f"{self.likelihood!r}; use the policy that started it, or start again"
            )

    def _own(self, state: FilterState) -> FilterState:
        """The state, perhaps of another policy, with the fixed settings of this policy."""
        gamma, lr, _ = self._rule
        calibration = as_calibration(self.calibration)
        return check.trusted(
            FilterState,
            state.posterior,
            state.delta if lr > 0.0 else _delta_of(gamma),
            state.alpha if calibration.learns else calibration.start(),
            state.seen,
            state.likelihood,
        )

    def step_rows(self, state: FilterState, rows: Rows, donate: bool) -> tuple[FilterState, Step]:
        """Advance over rows; `Step.calibration` is the alpha before each row."""
        state = self._own(state)
        code = rows.likelihood(self.likelihood)
        scan = _Scanner(state, rows, as_calibration(self.calibration), *self._rule[1:], code)
        posterior, step = run(state.posterior, rows, scan, donate)
        return scan.state(posterior), replace(step, calibration=np.concatenate(scan.alphas))

    def predict(
        self,
        state: FilterState,
        features: ArrayLike,
        *,
        prior_var: float,
        time_gap: ArrayLike = 1.0,
        keep_mean: bool = False,
    ) -> Step:
        """Moments of each row (b, m), as if it were the next one; the state does not change.

        ``time_gap`` is the time since the last row that was learned, one number or (b,).
        """
        self.check_state(state)
        state = self._own(state)
        gamma = state.gamma
        ahead = _one_ahead(state.posterior, features, gamma, prior_var, time_gap, keep_mean)
        return replace(ahead, calibration=np.full(len(ahead.gamma), state.calibration))

    # ---- the drift alarm ------------------------------------------------------------------

    @property
    def watched(self) -> Array:
        """Half-lives (W,) into which that of the filter is sorted."""
        return _GRID

    def first_belief(self) -> Array:
        """Belief in the half-life to start from (W,)."""
        return _sorted_in(np.full(1, half_life(self._rule[0])))[0]

    def belief(
        self, step: Step, time_gap: Array | None, transition: str, before: Array
    ) -> tuple[Array, Array]:
        """Belief in the half-life of each row (b, W), and the row's variance (b, W).

        A row forgets with gamma ** gap. A row that forgets nothing does not show gamma: then the
        belief of the row before it counts.
        """
        belief = self._belief(step, time_gap, transition, before)
        variance = step.logit_var.astype(np.float64)[:, None]
        return belief, np.repeat(variance, belief.shape[1], axis=1)

    def _belief(self, step: Step, time_gap: Array | None, transition: str, before: Array) -> Array:
        if time_gap is None and transition == "example":
            return _sorted_in(step.half_life)
        if len(before) != len(_GRID) or not before.any():
            before = self.first_belief()
        n = len(step.gamma)
        gaps = np.ones(n) if time_gap is None else time_gap
        shown = np.where((gaps > 0.0) & (step.gamma > 0.0), np.arange(n), -1)
        if transition == "chunk":
            shown[:-1] = -1
        each = _sorted_in(step.half_life * np.where(gaps > 0.0, gaps, 1.0))
        return np.concatenate([before[None], each])[1 + np.maximum.accumulate(shown)]


class _Scanner:
    """Scan of a `FilterState`, carrying what it learns from block to block."""

    def __init__(
        self,
        state: FilterState,
        rows: Rows,
        calibration: Calibration,
        lr: float,
        calibrated: bool,
        likelihood: int,
    ) -> None:
        self.rows, self.lr, self.calibrated, self.likelihood = rows, lr, calibrated, likelihood
        self.delta, self.alpha = state.delta, state.alpha
        self.seen, self.word = rows.seen(state.seen), state.likelihood
        self.alpha_rule = calibration.rule
        self.plain = lr == 0.0 and (rows.targets.labels is None or not calibration.learns)
        self.alphas: list[Array] = []

    def __call__(self, grams: Grams, part: slice) -> Scan:
        rows = self.rows[part]
        if self.plain:
            gammas = math.exp(-0.5 * self.delta) ** rows.gap
            scan = fixed_scan(grams, rows, gammas, self.likelihood)
            self.alphas.append(np.full(scan.done, self.alpha.value))
            return scan
        from kalstream.core._kernels.chunk import scan_learned
        from kalstream.core.softmax_integral import table, workspace

        parts, alphas, self.delta, log_mean, log_var = scan_learned(
            (grams.cov, grams.eye, grams.mean),
            rows.observed(),
            rows.gap,
            rows.prior_var,
            rows.keep_mean,
            self.likelihood,
            math.exp(-0.5 * self.delta),
            self.delta,
            self.lr,
            LARGEST_DELTA,
            self.alpha.log_mean,
            self.alpha.log_var,
            self.alpha_rule,
            self.calibrated,
            (*table(), workspace()),
        )
        self.alpha = Alpha(log_mean, log_var)
        scan = Scan(*parts)
        self.alphas.append(alphas[: scan.done])
        return scan

    def state(self, posterior: Posterior) -> FilterState:
        learned = posterior, self.delta, self.alpha, self.seen
        return check.trusted(FilterState, *learned, self.word)


def _delta_of(gamma: float) -> float:
    return max(0.0, -2.0 * math.log(gamma)) if gamma > 0.0 else _INFINITE_DELTA


def _sorted_in(half_life: Array) -> Array:
    """Half-lives (b,) as weights (b, W) on the half-lives of the grid."""
    weights = np.zeros((len(half_life), len(_GRID)))
    weights[np.arange(len(half_life)), np.searchsorted(_GRID, half_life * 0.999)] = 1.0
    return weights


def _one_ahead(
    posterior: Posterior,
    features: ArrayLike,
    gamma: float,
    prior_var: float,
    time_gap: ArrayLike,
    keep_mean: bool,
) -> Step:
    """Moments after one transition, eqs. (6), (7), of each row on its own."""
    phi = check.feature_rows(features, posterior.n_features, posterior.dtype)
    prior_var = check.variance("prior_var", prior_var, posterior.dtype)
    n = len(phi)
    g = gamma ** check.non_negative_rows("time_gap", time_gap, n)
    with OneThread(2.0 * phi.size * phi.shape[1]):
        times_cov, times_mean, _ = posterior.stored.products(phi)
    spread = np.einsum("bm,bm->b", times_cov, phi, dtype=np.float64)
    norm = np.einsum("bm,bm->b", phi, phi, dtype=np.float64)
    var = g**2 * np.maximum(spread, 0.0) + (1.0 - g) * (1.0 + g) * prior_var * norm
    mean = times_mean if check.flag("keep_mean", keep_mean) else g[:, None] * times_mean
    return Step(mean, var, g, np.full(n, np.inf), np.full(n, np.nan))


def as_calibration(calibration: Any) -> Calibration:
    """The calibration; a number is a fixed one."""
    if isinstance(calibration, Calibration):
        return calibration
    if not isinstance(calibration, float | int | np.number):
        raise InvalidInput(f"calibration={calibration!r}: pass a number, or Calibration() to learn")
    return _fixed_at(float(calibration))


@lru_cache
def _fixed_at(calibration: float) -> Calibration:
    """A fixed alpha; cached, because every step asks for it."""
    return Calibration.fixed(check.factor("calibration", calibration))
