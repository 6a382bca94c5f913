"""Windows grouped into a small number of points, so that a long run makes a small page."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kalstream.evaluate.metrics import Metric
from kalstream.report.read import FloatArray, IntArray, RunRecord, Window

_CURVE = 600  # points of a curve: more than a wide screen has room for
HEAT = 200  # columns of a heat map: cells of about four pixels on a desktop
_TREND = 60  # independent points that a smoothed curve keeps, approximately


class Timeline:
    """Windows of a run, in at most ``limit`` groups of neighbours.

    Parameters
    ----------
    run : RunRecord
        The run.
    limit : int
        The largest number of groups.

    Attributes
    ----------
    left, right, middle : ndarray of shape (n_groups,)
        Rows at which each group begins and ends, and the row halfway.
    weights : ndarray of shape (n_groups,)
        Rows scored in each group.
    """

    def __init__(self, run: RunRecord, limit: int = _CURVE) -> None:
        windows = run.windows
        step = math.ceil(len(windows) / limit)
        self._starts = np.arange(0, len(windows), step)
        self._n = np.array([window.n for window in windows], dtype=float)
        ends = np.array([window.row for window in windows], dtype=float)
        begins = np.concatenate([[0.0], ends[:-1]])
        self._lasts = np.append(self._starts[1:], len(windows)) - 1
        self.left = begins[self._starts]
        self.right = ends[self._lasts]
        self.middle = (self.left + self.right) / 2
        self.weights = self.sum(self._n)

    def __len__(self) -> int:
        return len(self._starts)

    def group_of_window(self) -> IntArray:
        """Index of the group of each window."""
        sizes = self._lasts - self._starts + 1
        return np.repeat(np.arange(len(self)), sizes)

    def sum(self, values: FloatArray) -> FloatArray:
        """Sum of one value per window over each group; NaN counts as 0."""
        return np.add.reduceat(np.nan_to_num(values), self._starts)

    def mean(self, values: FloatArray) -> FloatArray:
        """Mean of one value per window over each group, weighted by the rows scored."""
        known = np.where(np.isnan(values), 0.0, self._n)
        weights = self.sum(known)
        sums = self.sum(known * np.nan_to_num(values))
        return np.where(weights > 0, sums / np.where(weights > 0, weights, 1.0), np.nan)

    def average(self, metric: Metric, values: FloatArray) -> FloatArray:
        """A metric over each group, from its value in each window."""
        return np.sqrt(self.mean(values**2)) if metric.average == "root" else self.mean(values)

    def last(self, values: FloatArray) -> FloatArray:
        """Value of each group's last window, for sums over all rows so far."""
        return values[self._lasts]


def trend(values: FloatArray, weights: FloatArray) -> tuple[FloatArray, int]:
    """Moving average that keeps about sixty independent points.

    Parameters
    ----------
    values, weights : ndarray of shape (n,)
        Values to smooth, and their weights; NaN is left out.

    Returns
    -------
    smooth : ndarray of shape (n,)
        Weighted means over centred stretches, shorter at both ends.
    width : int
        Points in a full stretch; 1 if nothing was smoothed.
    """
    half = len(values) // _TREND // 2 if len(values) > _TREND else 0
    if half == 0 and len(values) > _TREND:
        half = 1
    if half == 0:
        return values, 1
    known = np.where(np.isnan(values), 0.0, weights)
    sums = np.concatenate([[0.0], np.cumsum(known * np.nan_to_num(values))])
    totals = np.concatenate([[0.0], np.cumsum(known)])
    low = np.maximum(np.arange(len(values)) - half, 0)
    high = np.minimum(np.arange(len(values)) + half + 1, len(values))
    total = totals[high] - totals[low]
    smooth = (sums[high] - sums[low]) / np.where(total > 0, total, 1.0)
    return np.where(total > 0, smooth, np.nan), 2 * half + 1


def last_quarter(run: RunRecord) -> list[Window]:
    """Windows that end in the last quarter of the stream; at least the last one."""
    return [window for window in run.windows if window.row > 0.75 * run.rows] or run.windows[-1:]


def pooled(windows: Sequence[Window], metric: str) -> float:
    """Mean of a window score over some windows, weighted by the rows scored."""
    pairs = [(w.n, w.scores.get(f"window.{metric}", math.nan)) for w in windows]
    pairs = [(n, value) for n, value in pairs if n and not math.isnan(value)]
    total = sum(n for n, _ in pairs)
    return sum(n * value for n, value in pairs) / total if total else math.nan
