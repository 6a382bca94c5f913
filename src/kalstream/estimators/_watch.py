"""The drift alarm, and the usual variance of rows: running averages beside the filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream.core.medians import weighted_median

Array = NDArray[Any]

# Where each number stands in `Watch.numbers`.
N, DISTANCE, ON, BEGAN, PEAK, ALARMS, RECENT = range(7)

# The usual posterior over half-lives is an average over about this many rows.
_SLOW: Final = 1000.0
# The usual variance is a geometric average over about this many rows.
_VARIANCE: Final = 200.0
# No alarm before this many rows: the averages would mean little.
_WARM_UP: Final = 200.0
# An alarm begins when the confidence passes the first threshold, or when its average over about
# _RECENT rows passes the second. It ends when both are below the third. A sudden change passes 0.9.
# A slow change stays at 0.5 to 0.8 for hundreds of rows; without a change the confidence exceeds
# 0.5 for about ten rows at a time.
_ALARM: Final = (0.9, 0.45, 0.25)
_RECENT: Final = 50.0


@dataclass(frozen=True, slots=True)
class Drift:
    """Whether the posterior over half-lives has moved towards shorter ones.

    It is true while the alarm is on: ``if model.drift(): ...``.

    Attributes
    ----------
    detected : bool
        Whether the alarm is on.
    confidence : float in [0, 1]
        How much of the posterior has moved: the largest difference, over h, between the current
        and the usual probability that the half-life is at most h. An alarm begins above 0.9, or
        when the average over about 50 rows passes 0.45. It ends when both are below 0.25.
    since : int or None
        Number of the row (counted from 0) at which the last alarm began.
    peak : float
        Largest confidence of the last alarm.
    alarms : int
        Number of alarms so far.
    half_life, usual_half_life : float
        Medians of the current posterior, and of its average over about a thousand rows.

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
        Posterior over half-lives, shortest first: after the last row, and on average.
    levels : (J,)
        Logarithm of each filter's usual variance of the outputs, before a row is learned.
    numbers : (7,)
        Indexed by N, DISTANCE, ON, BEGAN, PEAK, ALARMS and RECENT.
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
        from kalstream.estimators._watch_kernel import watch_rows

        kept = self
        if weights.shape[1] != len(self.usual):  # another policy, before anything was learned
            kept = Watch.start(weights.shape[1])
        usual, levels, numbers = kept.usual.copy(), kept.levels.copy(), kept.numbers.copy()
        constants = _SLOW, _WARM_UP, *_ALARM, _RECENT, _VARIANCE
        watch_rows(weights, variance, *constants, usual, levels, numbers)
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
            float(weighted_median(half_lives, self.now)),
            float(weighted_median(half_lives, self.usual)),
        )
