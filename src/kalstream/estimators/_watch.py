"""What is watched beside the filters: whether memory is getting shorter, and what is usual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream.core.forgetting import Fixed, Learned, half_life
from kalstream.core.mixture import Mixture
from kalstream.core.state import Step

Array = NDArray[Any]

# Where each number stands in `Watch.numbers`.
N, DISTANCE, ON, BEGAN, PEAK, ALARMS, LATELY = range(7)

# The usual posterior over half-lives is an average over some this many rows.
_SLOW: Final = 1000.0
# What variance is usual is a geometric average over some this many rows.
_RECENT: Final = 200.0
# No alarm before the average means something.
_WARM_UP: Final = 200.0
# An alarm begins above the first, or when the average over some _LATELY rows passes the second; it
# ends when both are below the third. A sudden change passes 0.9; a slow one stays at 0.5 to 0.8 for
# hundreds of rows, where a stream without any is above 0.5 for ten rows at a time.
_ALARM: Final = (0.9, 0.45, 0.25)
_LATELY: Final = 50.0

# Half-lives into which a learned gamma is sorted, for the drift alarm.
GRID: Final = np.array([3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, math.inf])


@dataclass(frozen=True, slots=True)
class Drift:
    """Whether the posterior over half-lives has moved towards shorter ones.

    True in a condition while there is an alarm: ``if model.drift(): ...``.

    Attributes
    ----------
    detected : bool
        Whether there is an alarm now.
    confidence : float in [0, 1]
        How much of the posterior has moved: the largest difference between the probability
        that the half-life is at most h, now and usually, over h. An alarm begins above 0.9, or
        when the average over some 50 rows passes 0.45; it ends when both are below 0.25.
    since : int or None
        Number of the row (counted from 0) at which the last alarm began.
    peak : float
        Largest confidence of the last alarm.
    alarms : int
        How many alarms there have been.
    half_life, usual_half_life : float
        Medians of the posterior now, and of its average over the last thousand rows or so.

    Examples
    --------
    >>> drift = Drift(True, 0.9, 1234, 0.95, 1, 100.0, float("inf"))
    >>> f"since row {drift.since}" if drift else "none"
    'since row 1234'
    """

    detected: bool
    confidence: float
    since: int | None
    peak: float
    alarms: int
    half_life: float
    usual_half_life: float

    def __bool__(self) -> bool:
        return self.detected


@dataclass(frozen=True, slots=True)
class Watch:
    """Running averages. Never changed.

    Attributes
    ----------
    now, usual : (J,)
        Posterior over half-lives, shortest first: of the last row, and on average.
    levels : (J,)
        Logarithm of each filter's usual variance of the outputs, before a row is learned.
    numbers : (7,)
        See the names above.
    """

    now: Array
    usual: Array
    levels: Array
    numbers: Array

    @classmethod
    def start(cls, n_filters: int) -> Watch:
        """Nothing seen yet."""
        numbers = np.zeros(7)
        numbers[BEGAN] = -1.0
        nothing = np.zeros(n_filters)
        return cls(nothing, nothing, nothing, numbers)

    def after(self, weights: Array, variance: Array) -> Watch:
        """The watch after rows with half-life weights and variances (b, J)."""
        from kalstream.estimators._watch_scan import watch_rows

        kept = self
        if weights.shape[1] != len(self.usual):  # another policy, before anything was learned
            kept = Watch.start(weights.shape[1])
        usual, levels, numbers = kept.usual.copy(), kept.levels.copy(), kept.numbers.copy()
        how = _SLOW, _WARM_UP, *_ALARM, _LATELY, _RECENT
        watch_rows(weights, variance, *how, usual, levels, numbers)
        return Watch(weights[-1].copy(), usual, levels, numbers)

    def drift(self, half_lives: Array) -> Drift:
        """Report, given the half-lives (J,), shortest first."""
        numbers = self.numbers.tolist()
        return Drift(
            bool(numbers[ON]),
            numbers[DISTANCE],
            int(numbers[BEGAN]) if numbers[BEGAN] >= 0.0 else None,
            numbers[PEAK],
            int(numbers[ALARMS]),
            _median(half_lives, self.now),
            _median(half_lives, self.usual),
        )


def _median(values: Array, weights: Array) -> float:
    below = np.cumsum(weights)
    return float(values[np.argmax(below >= 0.5 * below[-1])])


@lru_cache
def order_of(half_lives: tuple[float, ...]) -> Array:
    """Order (J,) of half-lives, shortest first."""
    return np.argsort(half_lives)


def _sorted_in(half_life: Array) -> Array:
    """Half-lives (b,) as weights (b, J) of those of the grid."""
    weights = np.zeros((len(half_life), len(GRID)))
    weights[np.arange(len(half_life)), np.searchsorted(GRID, half_life * 0.999)] = 1.0
    return weights


def half_life_weights(step: Step, gap: Array | None, chunk: bool, before: Array) -> Array:
    """Half-lives of one filter, as weights (b, J) of those of the grid.

    A row forgets with gamma ** gap, and where it forgets nothing it does not tell: then the row
    before it counts, ``before`` (J,) at the beginning.
    """
    if gap is None and not chunk:
        return _sorted_in(step.half_life)
    n = len(step.gamma)
    gaps = np.ones(n) if gap is None else gap
    told = np.where((gaps > 0.0) & (step.gamma > 0.0), np.arange(n), -1)
    if chunk:
        told[:-1] = -1
    each = _sorted_in(step.half_life * np.where(gaps > 0.0, gaps, 1.0))
    return np.concatenate([before[None], each])[1 + np.maximum.accumulate(told)]


def at_start(policy: Fixed | Learned | Mixture, n: int) -> Array:
    """Weights (b, J) of the half-lives before anything is learned."""
    if isinstance(policy, Mixture):
        return np.full((n, len(policy.half_lives)), 1.0 / len(policy.half_lives))
    return _sorted_in(np.full(n, half_life(policy._rule[0])))


def like(values: Array, weights: Array) -> Array:
    """Values (b,) for each column of weights (b, J)."""
    return np.repeat(values.astype(np.float64)[:, None], weights.shape[1], axis=1)
