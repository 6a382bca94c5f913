"""Compiled kernels: running moments and random waves. Imported on first use only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kalstream.core.jit import jit

Array = NDArray[np.float64]

LARGEST = 1e100  # sums of squares of larger numbers would overflow


@jit
def standardise(
    row: Array, count: Array, mean: Array, spread: Array, clip: float, out: Array
) -> None:
    """Row (d,) in standard deviations from the mean, clipped; 0 for NaN and new columns."""
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

    After ten rows a deviation is clipped to ``outlier`` standard deviations.
    """
    for k in range(row.shape[0]):
        if np.isnan(row[k]):
            continue
        deviation = min(max(row[k] - mean[k], -LARGEST), LARGEST)
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
    """`standardise` each row (b, d), then `learn` it, one row after the other."""
    for i in range(rows.shape[0]):
        standardise(rows[i], count, mean, spread, clip, out[i])
        learn(rows[i], count, mean, spread, keep, outlier)


@jit
def waves(scaled: Array, projection: Array, size: float, lead: int, linear: bool) -> Array:
    """Features of rows (b, d): ones, cosines, sines, and the rows themselves.

    First ``lead`` columns of ones, then cosines, then sines and, if ``linear``, the rows divided by
    ``size``. The waves of a row have norm 1.
    """
    n, d = scaled.shape
    n_directions = projection.shape[1]
    out = np.ones((n, lead + 2 * n_directions + (d if linear else 0)))
    angles = np.empty(n_directions)
    norm = 1.0 / np.sqrt(n_directions)
    for i in range(n):
        angles[:] = 0.0
        for k in range(d):
            for j in range(n_directions):
                angles[j] += scaled[i, k] * projection[k, j]
        for j in range(n_directions):
            out[i, lead + j] = norm * np.cos(angles[j])
            out[i, lead + n_directions + j] = norm * np.sin(angles[j])
        if linear:
            for k in range(d):
                out[i, lead + 2 * n_directions + k] = scaled[i, k] / size
    return out
