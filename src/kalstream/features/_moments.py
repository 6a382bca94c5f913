"""Running moments, compiled. Imported on first use only."""

from __future__ import annotations

from typing import Any

import numpy as np

from kalstream.core._jit import jit

Array = Any


@jit
def standardise(
    row: Array, count: Array, mean: Array, spread: Array, clip: float, out: Array
) -> None:
    """Row (d,) in standard deviations from the mean, clipped; NaN and unknown columns give 0."""
    for k in range(row.shape[0]):
        out[k] = 0.0
        if count[k] > 0.0 and not np.isnan(row[k]):
            deviation, variance = row[k] - mean[k], spread[k] / count[k]
            if variance > 0.0:
                out[k] = min(max(deviation / np.sqrt(variance), -clip), clip)
            elif deviation != 0.0:
                out[k] = clip if deviation > 0.0 else -clip


@jit
def learn(
    row: Array, count: Array, mean: Array, spread: Array, keep: float, outlier: float
) -> None:
    """Welford's update of count, mean and sum of squares (d,), in place.

    A deviation counts as at most ``outlier`` standard deviations, once there are a few.
    """
    for k in range(row.shape[0]):
        if np.isnan(row[k]):
            continue
        deviation = row[k] - mean[k]
        if count[k] > 10.0 and spread[k] > 0.0:
            reach = outlier * np.sqrt(spread[k] / count[k])
            deviation = min(max(deviation, -reach), reach)
        before = keep * count[k]
        count[k] = before + 1.0
        mean[k] += deviation / count[k]
        spread[k] = keep * spread[k] + deviation * deviation * before / count[k]


@jit
def standardise_rows(
    rows: Array, count: Array, mean: Array, spread: Array, clip: float, out: Array
) -> None:
    """`standardise` each row (b, d) with the same moments."""
    for i in range(rows.shape[0]):
        standardise(rows[i], count, mean, spread, clip, out[i])


@jit
def pass_over(
    rows: Array,
    count: Array,
    mean: Array,
    spread: Array,
    keep: float,
    clip: float,
    outlier: float,
    out: Array,
) -> None:
    """`standardise` each row (b, d) and then `learn` it, in turn."""
    for i in range(rows.shape[0]):
        standardise(rows[i], count, mean, spread, clip, out[i])
        learn(rows[i], count, mean, spread, keep, outlier)
