"""Whether one run is better than another on the same stream, or it is chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from kalstream.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Paired:
    """A paired test of two runs, window by window.

    Attributes
    ----------
    metric : str
    difference : float
        Mean over rows of the first run's metric less the second's.
    standard_error : float
    p_value : float
        Two-sided: how probable a difference as large were, if there was none.
    n : int
        Windows compared.
    """

    metric: str
    difference: float
    standard_error: float
    p_value: float
    n: int


def paired_test(
    one: Sequence[dict[str, Any]], two: Sequence[dict[str, Any]], metric: str
) -> Paired:
    """Compare two runs over the same windows of the same stream.

    The differences of neighbouring windows go together, since streams drift, so their mean has
    the standard error of Newey and West (1987) with a lag of 4 (n / 100)^(2/9) windows; the test is
    Student's with n - 1 degrees of freedom. The windows count by their rows.

    Parameters
    ----------
    one, two : window lines of `Result.windows` or metrics.jsonl
    metric : str
        "log_loss", "accuracy", "brier", "mae" or "nlpd": one that is a mean over rows.

    Examples
    --------
    >>> def lines(values):
    ...     return [{"row": i, "n": 10, "window": {"accuracy": v}} for i, v in enumerate(values)]
    >>> test = paired_test(lines([0.8, 0.9, 0.85, 0.9]), lines([0.7, 0.8, 0.7, 0.8]), "accuracy")
    >>> round(test.difference, 4), test.p_value < 0.01
    (0.1125, True)
    """
    if [(line["row"], line["n"]) for line in one] != [(line["row"], line["n"]) for line in two]:
        raise InvalidInput(
            "the two runs were not scored on the same rows in the same windows; "
            "run both with the same stream, --window, --chunk and --limit"
        )
    both = zip(one, two, strict=True)
    pairs = [(a["n"], a["window"].get(metric), b["window"].get(metric)) for a, b in both]
    pairs = [pair for pair in pairs if None not in pair and pair[0]]
    if len(pairs) < 2:
        raise InvalidInput(
            f"{metric!r} is there in {len(pairs)} windows of both runs, and a test needs two at "
            "least; use a smaller --window, or another metric"
        )
    rows, a, b = np.array(pairs, np.float64).T
    n, weights = len(rows), rows / rows.mean()
    difference = float(np.average(a - b, weights=rows))
    error = _newey_west(weights * (a - b - difference))
    if error == 0.0:
        p_value = 1.0 if difference == 0.0 else 0.0
    else:
        p_value = float(2.0 * student.sf(abs(difference) / error, n - 1))
    return Paired(metric, difference, error, p_value, n)


def _newey_west(deviations: Any) -> float:
    """Standard error of the mean of a series (n,) of which the deviations are given."""
    n = len(deviations)
    lag = min(n - 1, math.floor(4.0 * (n / 100.0) ** (2.0 / 9.0)))
    variance = deviations @ deviations
    for k in range(1, lag + 1):
        variance += 2.0 * (1.0 - k / (lag + 1.0)) * (deviations[k:] @ deviations[:-k])
    return math.sqrt(max(variance, 0.0) / (n * (n - 1.0)))
