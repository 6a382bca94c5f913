"""Paired test of two runs on the same stream: whether their difference is more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.stats import t as student

from kalstream.errors import InvalidInput

LEVEL: Final = 0.05  # p-values below count as more than chance, in reports and comparisons
# With more stretches, neighbours are not independent, and the test rejects too often. If neighbour
# windows correlate by 0.8, equal runs of 200 windows differ "significantly" in 8% of the cases with
# 10 stretches, in 17% with 30, and in 24% by the standard error of Newey and West.
_STRETCHES: Final = 10


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
        Two-sided: probability of a difference this large between runs that are equally good.
    n : int
        Windows compared.
    margin : float
        Half the width of the 95% confidence interval of the difference.

    Examples
    --------
    >>> test = Paired(
    ...     "accuracy", difference=0.02, standard_error=0.005, p_value=0.003, n=40, margin=0.011
    ... )
    >>> f"{test.difference:.3f} ± {test.margin:.3f}"
    '0.020 ± 0.011'
    """

    metric: str
    difference: float
    standard_error: float
    p_value: float
    n: int
    margin: float


def paired_test(
    one: Sequence[dict[str, Any]], two: Sequence[dict[str, Any]], metric: str
) -> Paired:
    """Compare two runs over the same windows of the same stream.

    Neighbouring windows of a drifting stream are similar, so windows are grouped into ten stretches
    (fewer if there are fewer windows), whose mean differences are nearly independent. The test is
    Student's t-test on these. Windows are weighted by their rows.

    Parameters
    ----------
    one, two : window lines of `Result.windows` or metrics.jsonl
    metric : str
        Name of a metric of `METRICS` that is a mean over rows, such as "log_loss" or "mae".

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
            "run both with the same stream, --window, --chunk, --delay and --limit"
        )
    both = zip(one, two, strict=True)
    pairs = [(a["n"], a["window"].get(metric), b["window"].get(metric)) for a, b in both]
    pairs = [pair for pair in pairs if None not in pair and pair[0]]
    if len(pairs) < 2:
        raise InvalidInput(
            f"{metric!r} is defined in {len(pairs)} windows of both runs, and a test needs at "
            "least two; use a smaller --window, or another metric"
        )
    rows, a, b = np.array(pairs, np.float64).T
    difference = float(np.average(a - b, weights=rows))
    error, k = _standard_error(a - b, rows)
    if error <= 1e-12 * float(np.abs([a, b]).max()):  # rounding, nothing to test
        p_value = 1.0 if difference == 0.0 else 0.0
    else:
        p_value = float(2.0 * student.sf(abs(difference) / error, k - 1))
    margin = error * float(student.isf(LEVEL / 2.0, k - 1))
    return Paired(metric, difference, error, p_value, len(rows), margin)


def _standard_error(differences: Any, rows: Any) -> tuple[float, int]:
    """Standard error of the mean of window differences (n,), and the number of stretches."""
    k = min(len(rows), _STRETCHES)
    first = np.linspace(0, len(rows), k + 1).astype(int)[:-1]
    weights = np.add.reduceat(rows, first)  # (k,)
    means = np.add.reduceat(rows * differences, first) / weights
    weights /= weights.sum()
    deviations = weights * (means - weights @ means)
    return math.sqrt(float(deviations @ deviations) * k / (k - 1.0)), k
