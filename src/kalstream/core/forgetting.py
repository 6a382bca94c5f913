"""How fast to forget: `Fixed`, `Learned` (the paper's SGD on delta); `Mixture` has its own file.

A policy owns nothing but its settings. Its `start` makes a state, `step_chunk` advances one, and
`predict` looks one step ahead; a chunk learned at once equals its rows learned one by one.

Only classes that have been seen take part in what is learned from a softmax, so that a class
declared at the start equals a class added late.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kalstream.core import _checks as check
from kalstream.core._threads import OneThread
from kalstream.core.calibration import BOUND, Alpha, Calibration
from kalstream.core.chunk import Grams, Rows, Scan, fixed_scan, run
from kalstream.core.predictive import class_probabilities
from kalstream.core.recursion import init
from kalstream.core.state import Posterior, Step, add_features, add_outputs, keep_outputs
from kalstream.errors import InvalidInput

if TYPE_CHECKING:
    from kalstream.core.predictive import Method

Array = NDArray[Any]

_BOOL: Final = np.dtype(bool)
# gamma = 0.08 keeps nothing worth having, and the gradient of delta, which vanishes with gamma,
# still leads back: SGD that shot further would never return.
LARGEST_DELTA: Final = 5.0
# exp(-1000) is 0 in float64, and times a gap of 0 it is still 1.
_INFINITE_DELTA: Final = 2000.0


def half_life(gamma: float) -> float:
    """Examples after which a weight has halved, ln(1/2) / ln(gamma).

    Examples
    --------
    >>> half_life(0.5), half_life(1.0), half_life(0.0)
    (1.0, inf, 0.0)
    """
    gamma = check.unit_interval("gamma", gamma)
    if gamma == 0.0:
        return 0.0
    return math.inf if gamma == 1.0 else math.log(0.5) / math.log(gamma)


def gamma_of(half_life: float) -> float:
    """Forgetting coefficient of a half-life in examples; inf gives 1.

    Examples
    --------
    >>> gamma_of(1.0), gamma_of(float("inf"))
    (0.5, 1.0)
    """
    number = check.scalar("half_life", half_life)
    if not number > 0.0:
        raise InvalidInput(f"half_life must be above 0 (inf forgets nothing), got {half_life!r}")
    return 0.5 ** (1.0 / number)


@dataclass(frozen=True, slots=True)
class FilterState:
    """One filter, its forgetting and its calibration.

    Attributes
    ----------
    posterior : Posterior
    delta : float
        gamma = exp(-delta / 2).
    alpha : Alpha
    seen : (K,) bool
        Classes that have been learned at least once.
    gamma, half_life, calibration : float
        What delta and alpha stand for.
    """

    posterior: Posterior
    delta: float
    alpha: Alpha
    seen: Array

    def __post_init__(self) -> None:
        check.instance("the posterior of the state", self.posterior, Posterior)
        check.instance("the alpha of the state", self.alpha, Alpha)
        if not check.is_block(self.seen, (self.posterior.n_outputs,), _BOOL):
            raise InvalidInput(
                f"the seen of the state must be one bool for each of {self.posterior.n_outputs} "
                f"outputs, got {check.kind_of(self.seen)}; take a state from start or step_chunk"
            )
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
        """Current half-life in examples."""
        return half_life(self.gamma)

    @property
    def calibration(self) -> float:
        """Current alpha."""
        return self.alpha.value

    def add_outputs(self, n_outputs: int) -> FilterState:
        """Grow by classes never seen, exactly."""
        return replace(
            self,
            posterior=add_outputs(self.posterior, n_outputs),
            seen=np.pad(self.seen, (0, n_outputs)),
        )

    def keep_outputs(self, columns: Array) -> FilterState:
        """Keep these outputs only, exactly: outputs do not depend on one another."""
        columns = check.columns("columns", columns, len(self.seen))
        return replace(
            self, posterior=keep_outputs(self.posterior, columns), seen=self.seen[columns]
        )

    def add_features(self, n_features: int, prior_var: float) -> FilterState:
        """Grow by features that have been 0 in all rows so far, exactly."""
        return replace(self, posterior=add_features(self.posterior, n_features, prior_var))


class _OneFilter(ABC):
    """What `Fixed` and `Learned` share: one filter, a delta and an alpha."""

    __slots__ = ()

    calibration: Calibration | float

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
            _as_calibration(self.calibration).start(),
            np.zeros(n_outputs, bool),
        )

    def _own(self, state: FilterState) -> FilterState:
        """The state, which may come from another policy, with what this policy does not learn."""
        check.instance("state", state, FilterState)
        gamma, lr, _ = self._rule
        calibration = _as_calibration(self.calibration)
        return check.trusted(
            FilterState,
            state.posterior,
            state.delta if lr > 0.0 else _delta_of(gamma),
            state.alpha if calibration.learns else calibration.start(),
            state.seen,
        )

    def step_chunk(
        self,
        state: FilterState,
        features: ArrayLike,
        targets: ArrayLike,
        *,
        noise_var: float,
        prior_var: float,
        transition: str = "example",
        keep_mean: bool = False,
        sample_weight: ArrayLike | None = None,
        time_gap: ArrayLike | None = None,
        donate: bool = False,
    ) -> tuple[FilterState, Step]:
        """Advance over the rows of a chunk.

        Parameters
        ----------
        state : FilterState
        features : (b, m)
        targets, noise_var, prior_var, transition, keep_mean, sample_weight, time_gap, donate
            As in `kalstream.core.step_chunk`.

        Returns
        -------
        state : FilterState
        step : Step
            With arrays over the rows; `Step.calibration` is the alpha before each row.
        """
        state = self._own(state)
        rows = Rows.read(
            state.posterior,
            features,
            targets,
            noise_var=noise_var,
            prior_var=prior_var,
            transition=transition,
            keep_mean=keep_mean,
            sample_weight=sample_weight,
            time_gap=time_gap,
        )
        scan = _Scanner(state, rows, _as_calibration(self.calibration), *self._rule[1:])
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
        """Moments of each row (b, m) one step ahead, each on its own; the state is not touched.

        ``time_gap`` is the time since the last example that was learned, one number or (b,).
        """
        state = self._own(state)
        gamma = state.gamma
        ahead = one_ahead(state.posterior, features, gamma, prior_var, time_gap, keep_mean)
        return replace(ahead, calibration=np.full(len(ahead.gamma), state.calibration))

    def class_probabilities(
        self,
        state: FilterState,
        features: ArrayLike,
        *,
        prior_var: float,
        time_gap: ArrayLike = 1.0,
        keep_mean: bool = False,
        method: Method = "exact",
        n_samples: int = 100,
        random_state: int | np.random.Generator | None = None,
    ) -> Array:
        """Class probabilities (b, K) one step ahead; see `predict` and `class_probabilities`."""
        ahead = self.predict(
            state, features, prior_var=prior_var, time_gap=time_gap, keep_mean=keep_mean
        )
        return class_probabilities(
            ahead.logit_mean,
            ahead.logit_var,
            calibration=self._own(state).calibration,
            method=method,
            n_samples=n_samples,
            random_state=random_state,
        )


@final
@dataclass(frozen=True, slots=True)
class Fixed(_OneFilter):
    """One gamma for ever.

    Parameters
    ----------
    gamma : float in [0, 1]
    calibration : Calibration or float
        Alpha, learned or fixed.

    Examples
    --------
    >>> import numpy as np
    >>> policy = Fixed(0.5)
    >>> state = policy.start(1, 2, prior_var=1.0)
    >>> state, seen = policy.step_chunk(state, [[1.0]], [0], noise_var=1.0, prior_var=1.0)
    >>> state.gamma, state.half_life
    (0.5, 1.0)
    """

    gamma: float = 1.0
    calibration: Calibration | float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", check.unit_interval("gamma", self.gamma))
        _as_calibration(self.calibration)

    @property
    def _rule(self) -> tuple[float, float, bool]:
        return self.gamma, 0.0, True


@final
@dataclass(frozen=True, slots=True)
class Learned(_OneFilter):
    """Gamma learned online by clipped SGD on delta, eqs. (9) and (15), as in the paper.

    Row by row: the row is predicted with the delta before it, its target moves delta along the
    gradient of its log predictive (the exact softmax integral for labels, the Gaussian for
    values), and the row is learned with the delta after it.

    The learning rate matters: too large a one, or outliers, let delta run up (it is held below
    5, gamma = 0.08) and with it the error. `Mixture` needs no such choice.

    Parameters
    ----------
    init : float
        Gamma to start from, at least 0.083 and at most 1.
    lr : float
        Learning rate of delta; the paper considers 0.5 to 0.001.
    calibration : Calibration or float
        Alpha, learned or fixed.
    calibrated : bool
        Take the gradient through calibrated logits, eq. (13), or through raw ones, eq. (12).

    Examples
    --------
    >>> import numpy as np
    >>> policy = Learned(init=1.0, lr=1.0)
    >>> state = policy.start(1, 1, prior_var=0.01)
    >>> state, seen = policy.step_chunk(
    ...     state,
    ...     np.ones((200, 1)),
    ...     np.repeat([0.0, 5.0], 100),
    ...     noise_var=0.05,
    ...     prior_var=0.01,
    ...     keep_mean=True,
    ... )
    >>> bool(seen.gamma[99] > 0.99), bool(seen.gamma[100:].min() < 0.9)
    (True, True)
    """

    init: float = 1.0
    lr: float = 0.01
    calibration: Calibration | float = 1.0
    calibrated: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "init", check.unit_interval("init", self.init))
        if self.init < math.exp(-0.5 * LARGEST_DELTA):
            raise InvalidInput(
                f"init must be at least {math.exp(-0.5 * LARGEST_DELTA):.3f}, got {self.init!r}: "
                "from below, no gradient leads back"
            )
        object.__setattr__(self, "lr", check.positive("lr", self.lr))
        check.flag("calibrated", self.calibrated)
        _as_calibration(self.calibration)

    @property
    def _rule(self) -> tuple[float, float, bool]:
        return self.init, self.lr, self.calibrated


class _Scanner:
    """Scan of a `FilterState`, carrying what it learns from block to block."""

    def __init__(
        self, state: FilterState, rows: Rows, calibration: Calibration, lr: float, calibrated: bool
    ) -> None:
        self.rows, self.lr, self.calibrated = rows, lr, calibrated
        self.delta, self.alpha = state.delta, state.alpha
        self.seen = Seen(state.seen)
        self.alpha_rule = (
            math.log(calibration.init),
            calibration.spread**2,
            calibration.gamma,
            BOUND * calibration.spread,
        )
        self.plain = lr == 0.0 and (rows.targets.labels is None or not calibration.learns)
        self.alphas: list[Array] = []

    def __call__(self, grams: Grams, part: slice) -> Scan:
        rows = self.rows[part]
        if self.plain:
            found = fixed_scan(grams, rows, math.exp(-0.5 * self.delta) ** rows.gap)
            if rows.targets.labels is not None:
                learned = np.isfinite(rows.noise_var[: found.done])
                self.seen.add(rows.targets.labels[: found.done][learned])
            self.alphas.append(np.full(found.done, self.alpha.value))
            return found
        from kalstream.core._kernels.chunk import scan_learned
        from kalstream.core._kernels.softmax_integral import table, work

        scan, alphas, self.delta, log_mean, log_var, self.seen.count = scan_learned(
            grams.cov,
            grams.eye,
            grams.mean,
            *rows.targets.arrays(),
            rows.noise_var,
            rows.weight,
            rows.gap,
            rows.prior_var,
            rows.keep_mean,
            math.exp(-0.5 * self.delta),
            self.delta,
            self.lr,
            LARGEST_DELTA,
            self.alpha.log_mean,
            self.alpha.log_var,
            self.alpha_rule,
            self.calibrated,
            self.seen.classes,
            self.seen.count,
            *table(),
            work(),
        )
        self.alpha = Alpha(log_mean, log_var)
        found = Scan(*scan)
        self.alphas.append(alphas[: found.done])
        return found

    def state(self, posterior: Posterior) -> FilterState:
        return check.trusted(FilterState, posterior, self.delta, self.alpha, self.seen.mask())


class Seen:
    """Classes seen so far, as the compiled scans want them: first in an array, and a count."""

    def __init__(self, mask: Array) -> None:
        known = np.flatnonzero(mask)
        self.classes = np.zeros(len(mask), np.int64)
        self.classes[: len(known)] = known
        self.count = self._n_before = len(known)
        self._before = mask

    def add(self, labels: Array) -> None:
        """Note the classes of labels (n,)."""
        known = np.union1d(self.classes[: self.count], labels)
        self.classes[: len(known)] = known
        self.count = len(known)

    def mask(self) -> Array:
        """Which classes have been seen (K,), bool."""
        if self.count == self._n_before:
            return self._before
        mask = np.zeros(len(self.classes), bool)
        mask[self.classes[: self.count]] = True
        return mask


def _delta_of(gamma: float) -> float:
    return max(0.0, -2.0 * math.log(gamma)) if gamma > 0.0 else _INFINITE_DELTA


def one_ahead(
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


def _as_calibration(calibration: Any) -> Calibration:
    if isinstance(calibration, Calibration):
        return calibration
    if not isinstance(calibration, float | int | np.number):
        raise InvalidInput(f"calibration={calibration!r}: pass a number, or Calibration() to learn")
    return _fixed_at(float(calibration))


@lru_cache
def _fixed_at(calibration: float) -> Calibration:
    """Alpha that does not move; it is asked for with every step."""
    return Calibration.fixed(check.factor("calibration", calibration))
