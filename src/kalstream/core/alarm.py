"""The drift alarm, and the usual variance of rows: running averages beside the filters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kalstream._arrays import Array
from kalstream.core.half_lives import weighted_median

# Where each number stands in `Watch.numbers`.
N, CONFIDENCE, ON, BEGAN, PEAK, ALARMS, RECENT, AGE = range(8)

# What is usual is an average over about this many rows, and so many rows are expected between two
# changes.
SLOW: Final = 1000.0
# The usual variance is an average of logarithms that stays near the larger ones, which differ most
# in cycles and where few rows teach: it rises over about the first number of rows, and falls over
# the second. A far outlier adds its logarithm only.
VARIANCE: Final = 100.0, 2000.0
# No alarm before this many rows with targets: the averages would mean little.
WARM_UP: Final = 200.0
# A row, which may be an outlier, counts at most as twenty to one for either side. Odds grow to at
# most 1e5 to one, so that they also fall again.
BOUNDS: Final = 20.0, 1e5, SLOW
# Share of the odds that is put on every row: all of it wins soonest after a sudden change, small
# shares win from a slow change, where single rows say little. The odds are their average.
BETS: Final = 1.0, 0.5, 0.2
N_BETS: Final = len(BETS)
# Thresholds of the confidence, and of its average over about so many rows: an alarm begins above
# the first or when the average passes the second, and ends when both are below the third. While it
# is on, what is usual is relearned as if it were as old as the last number says, in rows.
# A bet is fair if the ratios of likelihoods are as usual: then odds of A to one come once in A
# rows at most, on average. 0.75 stands for 3000 to one.
EVIDENCE: Final = 0.75, math.inf, 0.25, 200.0, 600.0
# The same for policies that report beliefs only. A sudden change passes 0.9; a slow one stays at
# 0.5 to 0.8 for hundreds of rows.
BELIEF: Final = 0.9, 0.45, 0.25, 50.0, math.inf


@dataclass(frozen=True, slots=True)
class Drift:
    """Whether shorter half-lives have begun to predict better than the usual ones.

    It is true while the alarm is on: ``if model.drift(): ...``.

    Attributes
    ----------
    detected : bool
        Whether the alarm is on.
    confidence : float in [0, 1]
        Probability of a change, from how well each half-life predicted the targets, if one change
        in a thousand rows is expected. An alarm begins above 0.75. It ends when the confidence and
        its average over about 200 rows are below 0.25.
    since : int or None
        Number of the row (counted from 0, among all rows that came) with whose target the last
        alarm began.
    peak : float
        Largest confidence of the last alarm.
    alarms : int
        Number of alarms so far.
    half_life, usual_half_life : float
        Medians of the current posterior, and of its average over about a thousand rows (since an
        alarm began, over about 200).

    Notes
    -----
    With a single filter, as with ``forgetting="learned"``, there is nothing to compare. The
    confidence is then how much of the belief has moved to the shorter side of some half-life,
    compared with its average over about a thousand rows. An alarm begins above 0.9, or when the
    average over about 50 rows passes 0.45.

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
    """Running averages and the evidence for a change. Never changed.

    Attributes
    ----------
    now, usual : (W,)
        Belief in the watched half-lives, shortest first: after the last row, and on average.
    levels : (W,)
        Logarithm of the usual variance of the outputs at each, before a row is learned: an average
        that stays near the larger ones (`VARIANCE`).
    gains : (W,)
        How much better the shorter half-lives predict than each half-life, as a ratio of
        likelihoods, on average. Where filters have the same half-life, the first stands for all.
    odds : (W, B)
        Odds for a change, of each bet that the ratio has become larger than usual.
    numbers : (8,)
        Indexed by N, CONFIDENCE, ON, BEGAN, PEAK, ALARMS, RECENT and AGE.
    """

    now: Array
    usual: Array
    levels: Array
    gains: Array
    odds: Array
    numbers: Array

    @classmethod
    def start(cls, n_watched: int) -> Watch:
        """Nothing seen yet."""
        numbers = np.zeros(8)
        numbers[BEGAN] = -1.0
        nothing, odds = np.zeros(n_watched), np.zeros((n_watched, N_BETS))
        return cls(nothing, nothing, nothing, np.ones(n_watched), odds, numbers)

    def after(
        self, half_lives: Array, belief: Array, variance: Array, evidence: Array | None
    ) -> tuple[Watch, Array]:
        """The watch after rows, from what a policy says of the half-lives (W,) that it watches.

        Belief, variance and evidence are (b, W), as in `Policy`. Also returns whether an alarm
        began with each row (b,).
        """
        from kalstream.core._kernels.alarm import watch_rows

        kept = self
        if belief.shape[1] != len(self.usual):  # another policy, before anything was learned
            kept = Watch.start(belief.shape[1])
        if evidence is None:
            evidence = np.empty((0, belief.shape[1]))
        parts = kept.usual, kept.levels, kept.gains, kept.odds, kept.numbers
        usual, levels, gains, odds, numbers = (part.copy() for part in parts)
        rows = half_lives, belief, variance, evidence
        began = watch_rows(*rows, usual, levels, gains, odds, numbers)
        return Watch(belief[-1].copy(), usual, levels, gains, odds, numbers), began

    def in_rows(self, before: Watch, rows: Array) -> Watch:
        """The watch, if the last rows that it was given since ``before`` have these numbers (b,).

        It counts rows in the order of their targets; an alarm began at the number of its row.
        """
        if self.numbers[ALARMS] == before.numbers[ALARMS]:
            return self
        numbers = self.numbers.copy()
        numbers[BEGAN] = rows[int(numbers[BEGAN] - (numbers[N] - len(rows)))]
        return replace(self, numbers=numbers)

    def drift(self, half_lives: Array) -> Drift:
        """Report, given the half-lives (J,), shortest first."""
        numbers = self.numbers.tolist()
        return Drift(
            bool(numbers[ON]),
            numbers[CONFIDENCE],
            int(numbers[BEGAN]) if numbers[BEGAN] >= 0.0 else None,
            numbers[PEAK],
            int(numbers[ALARMS]),
            float(weighted_median(half_lives, self.now)),
            float(weighted_median(half_lives, self.usual)),
        )
