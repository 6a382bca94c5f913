"""What needs no learning: repeating the last target, and what came most often or on average.

Many streams are mostly predictable by repeating the last label, and a result that does not stand
beside these says little.
"""

from __future__ import annotations

import math
from typing import Any

from kalstream.evaluate.metrics import number

LOG2 = math.log(2.0)


class SimpleLabels:
    """No-change and majority, a few operations a label.

    No-change gives the last label the frequency with which labels have repeated so far, and the
    others the rest by their frequencies; majority gives every label its frequency.

    Examples
    --------
    >>> simple = SimpleLabels()
    >>> for code in (0, 0, 1, 1, 1):
    ...     simple.score(code)
    ...     simple.learn(code)
    >>> simple.values()["no_change"]["accuracy"], simple.values()["majority"]["accuracy"]
    (0.6, 0.2)
    """

    names = ("no_change", "majority")

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.n = self.repeats = 0
        self.last = self.top = -1
        self.sums = {name: [0, 0.0] for name in self.names}  # right, log probability
        self.n_scored = 0

    def score(self, code: int) -> None:
        """Score a label that came."""
        self.n_scored += 1
        for name, guess in zip(self.names, (self.last, self.top), strict=True):
            self.sums[name][0] += guess == code
        n, known = self.n, code < len(self.counts)
        if not known:
            log_prob = -math.log(n + 1.0)
            self.sums["no_change"][1] += log_prob
            self.sums["majority"][1] += log_prob
            return
        share = self.counts[code] / (n + 1.0)
        self.sums["majority"][1] += math.log(share)
        others = n - self.counts[self.last]
        again = (self.repeats + 1.0) / (n + 1.0) if others else 1.0  # n - 1 pairs so far
        if code == self.last:
            p = again * n / (n + 1.0)
        else:
            p = (1.0 - again) * self.counts[code] / others * n / (n + 1.0)
        self.sums["no_change"][1] += math.log(p)

    def learn(self, code: int) -> None:
        """Take a label in."""
        self.repeats += code == self.last
        self.last = code
        self.n += 1
        if code == len(self.counts):
            self.counts.append(0)
        self.counts[code] += 1
        if self.top < 0 or self.counts[code] > self.counts[self.top]:
            self.top = code

    def values(self) -> dict[str, dict[str, float | None]]:
        """Accuracy, log-loss and code length of each."""
        n = self.n_scored or math.nan
        return {
            name: {
                "accuracy": number(right / n),
                "log_loss": number(-log_prob / n),
                "code_length": number(-log_prob / LOG2),
            }
            for name, (right, log_prob) in self.sums.items()
        }


class SimpleValues:
    """No-change and the running mean, for numbers.

    Examples
    --------
    >>> simple = SimpleValues()
    >>> for value in (1.0, 3.0, 2.0):
    ...     simple.score(value)
    ...     simple.learn(value)
    >>> simple.values()["no_change"]["mae"], simple.values()["mean"]["mae"]
    (1.5, 1.0)
    """

    names = ("no_change", "mean")

    def __init__(self) -> None:
        self.n = self.n_scored = 0
        self.last = self.mean = 0.0
        self.sums = {name: [0.0, 0.0] for name in self.names}  # squares, absolute values

    def score(self, value: float) -> None:
        """Score a target that came."""
        if not self.n:
            return
        self.n_scored += 1
        for name, guess in zip(self.names, (self.last, self.mean), strict=True):
            sums, error = self.sums[name], value - guess
            sums[0] += error * error
            sums[1] += abs(error)

    def learn(self, value: float) -> None:
        """Take a target in."""
        self.n += 1
        self.last = value
        self.mean += (value - self.mean) / self.n

    def values(self) -> dict[str, dict[str, float | None]]:
        """RMSE and mean absolute error of each."""
        n = self.n_scored or math.nan
        return {
            name: {"rmse": number(math.sqrt(squares / n)), "mae": number(absolute / n)}
            for name, (squares, absolute) in self.sums.items()
        }


Simple = SimpleLabels | SimpleValues


def since(now: Simple, before: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Values of a simple predictor over what was scored after ``before``, what `sums_of` gave."""
    part = type(now)()
    part.n_scored = now.n_scored - before["n_scored"]
    for name, sums in now.sums.items():
        part.sums[name] = [a - b for a, b in zip(sums, before["sums"][name], strict=True)]
    return part.values()


def sums_of(simple: Simple) -> dict[str, Any]:
    """What `since` needs to remember, as JSON."""
    sums = {name: list(sums) for name, sums in simple.sums.items()}
    return {"n_scored": simple.n_scored, "sums": sums}
