"""Baselines that need no features: repeat the last target, or predict from frequencies.

On many streams repeating the last label is right most of the time. A score means little without
the scores of these beside it.
"""

from __future__ import annotations

import math
from typing import Any

from kalstream.evaluate.metrics import BaselineScore, Values
from kalstream.streams import CLASSIFICATION, REGRESSION


class NaiveLabels:
    """No-change and majority, in a few operations a label.

    No-change gives the last label that has come the frequency with which this was right so far,
    and divides the rest among the others by their frequencies. Majority gives every label its
    frequency.

    Examples
    --------
    >>> naive = NaiveLabels()
    >>> for code in (0, 0, 1, 1, 1):
    ...     naive.score(code)
    ...     naive.learn(code)
    >>> naive.values()["no_change"]["accuracy"], naive.values()["majority"]["accuracy"]
    (0.6, 0.2)
    """

    names = ("no_change", "majority")

    # The attributes are part of checkpoints, by their names.
    def __init__(self) -> None:
        self.counts: list[int] = []
        self.n = self.repeats = self.judged = 0  # predictions of no-change: right, and all
        self.last = self.top = -1
        self.sums = {name: [0, 0.0] for name in self.names}  # right, log probability
        self.n_scored = 0

    def score(self, code: int, knowing: NaiveLabels | None = None) -> None:
        """Score a true label; ``knowing``: what was known when it was predicted, if not now's."""
        at = self if knowing is None else knowing
        self.n_scored += 1
        for name, guess in zip(self.names, (at.last, at.top), strict=True):
            self.sums[name][0] += guess == code
        n, known = at.n, code < len(at.counts) and at.counts[code] > 0
        if not known:
            log_prob = -math.log(n + 1.0)
            self.sums["no_change"][1] += log_prob
            self.sums["majority"][1] += log_prob
            return
        share = at.counts[code] / (n + 1.0)
        self.sums["majority"][1] += math.log(share)
        others = n - at.counts[at.last]
        again = (at.repeats + 1.0) / (at.judged + 2.0) if others else 1.0
        if code == at.last:
            p = again * n / (n + 1.0)
        else:
            p = (1.0 - again) * at.counts[code] / others * n / (n + 1.0)
        self.sums["no_change"][1] += math.log(p)

    def learn(self, code: int, guess: int | None = None) -> None:
        """Learn a label; ``guess``: the last one (or -1) when it was predicted, if not now's."""
        guess = self.last if guess is None else guess
        self.judged += guess >= 0
        self.repeats += code == guess
        self.last = code
        self.n += 1
        while code >= len(self.counts):  # labels that come late come in any order
            self.counts.append(0)
        self.counts[code] += 1
        if self.top < 0 or self.counts[code] > self.counts[self.top]:
            self.top = code

    def restore(self, attributes: dict[str, Any]) -> None:
        """Restore the attributes, of this or an older version."""
        vars(self).update(attributes)
        if "judged" not in attributes:  # every label was taken as the guess of the next one
            self.judged = max(self.n - 1, 0)

    def values(self, *, window: bool = False) -> dict[str, Values]:
        """Metrics of each baseline."""
        return {
            name: BaselineScore(
                CLASSIFICATION, self.n_scored, int(right), log_loss=log_prob
            ).values(window=window)
            for name, (right, log_prob) in self.sums.items()
        }


class NaiveValues:
    """No-change and the running mean, for numbers.

    Examples
    --------
    >>> naive = NaiveValues()
    >>> for value in (1.0, 3.0, 2.0):
    ...     naive.score(value)
    ...     naive.learn(value)
    >>> naive.values()["no_change"]["mae"], naive.values()["mean"]["mae"]
    (1.5, 1.0)
    """

    names = ("no_change", "mean")

    # The attributes are part of checkpoints, by their names.
    def __init__(self) -> None:
        self.n = self.n_scored = 0
        self.last = self.mean = 0.0
        self.sums = {name: [0.0, 0.0] for name in self.names}  # squares, absolute values

    def score(self, value: float, knowing: NaiveValues | None = None) -> None:
        """Score a true value; ``knowing``: what was known when it was predicted, if not now's."""
        at = self if knowing is None else knowing
        if not at.n:
            return
        self.n_scored += 1
        for name, guess in zip(self.names, (at.last, at.mean), strict=True):
            sums, error = self.sums[name], value - guess
            sums[0] += error * error
            sums[1] += abs(error)

    def learn(self, value: float) -> None:
        """Learn a value."""
        self.n += 1
        self.last = value
        self.mean += (value - self.mean) / self.n

    def restore(self, attributes: dict[str, Any]) -> None:
        """Restore the attributes."""
        vars(self).update(attributes)

    def values(self, *, window: bool = False) -> dict[str, Values]:
        """Metrics of each baseline."""
        return {
            name: BaselineScore(REGRESSION, self.n_scored, rmse=squares, mae=absolute).values(
                window=window
            )
            for name, (squares, absolute) in self.sums.items()
        }


_Naive = NaiveLabels | NaiveValues


def values_since(now: _Naive, before: dict[str, Any]) -> dict[str, Values]:
    """Metrics over the rows that were scored after `sums_of` gave ``before``."""
    part = type(now)()
    part.n_scored = now.n_scored - before["n_scored"]
    for name, sums in now.sums.items():
        part.sums[name] = [a - b for a, b in zip(sums, before["sums"][name], strict=True)]
    return part.values(window=True)


def sums_of(naive: _Naive) -> dict[str, Any]:
    """The sums so far, as JSON, for `values_since`."""
    sums = {name: list(sums) for name, sums in naive.sums.items()}
    return {"n_scored": naive.n_scored, "sums": sums}
