"""Axes of figures: their range, and marks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from kalstream.evaluate.metrics import Metric
from kalstream.report import format as fmt
from kalstream.report.read import FloatArray


@dataclass(frozen=True)
class Axis:
    """Range of values along one side of a figure.

    Attributes
    ----------
    lo, hi : float
        The values at its ends.
    ticks : tuple of (float, str)
        Values of the marks, and their texts.
    unit : str
        How ``script.js`` writes the value under the pointer.
    dated : bool
        Whether the marks of rows are their dates.
    """

    lo: float
    hi: float
    ticks: tuple[tuple[float, str], ...]
    unit: str = "number"
    dated: bool = False

    def share(self, values: FloatArray) -> FloatArray:
        """Positions of values along the axis: 0 at its low end, 1 at its high end."""
        return (np.asarray(values, dtype=float) - self.lo) / (self.hi - self.lo)


def _nice_step(span: float, steps: int) -> float:
    """Round distance (1, 2, 2.5 or 5 times a power of ten) of marks, for about ``steps`` of them.

    Examples
    --------
    >>> _nice_step(45312, 5), _nice_step(0.12, 5)
    (10000.0, 0.025)
    """
    raw = span / steps
    power = 10.0 ** math.floor(math.log10(raw))
    options = (1.0, 2.0, 2.5, 5.0, 10.0)
    return power * next(option for option in options if option * power >= raw * 0.999)


def linear(
    lo: float,
    hi: float,
    *,
    steps: int = 4,
    label: Callable[[float], str] = fmt.compact,
    unit: str = "number",
    snug: bool = False,
) -> Axis:
    """An axis with marks at round numbers.

    Parameters
    ----------
    lo, hi : float
        Range that it must cover; equal ends are moved apart.
    steps : int
        Approximate number of marks.
    label : callable
        Text of a mark.
    unit : str
        See `Axis`.
    snug : bool
        Whether it ends exactly at `lo` and `hi` instead of at a mark.
    """
    size = max(abs(lo), abs(hi))
    if not hi - lo > max(1e-9 * size, 1e-200):
        room = 0.1 * size if size > 1e-200 else 1.0
        lo, hi = lo - room, hi + room
    step = _nice_step(hi - lo, steps)
    first = math.ceil(lo / step - 1e-9) if snug else math.floor(lo / step + 1e-9)
    last = math.floor(hi / step + 1e-9) if snug else math.ceil(hi / step - 1e-9)
    # rounding keeps 3 * 0.1 from being 0.30000000000000004 on the page
    marks = [float(f"{i * step:.12g}") for i in range(first, last + 1)]
    ends = (lo, hi) if snug else (marks[0], marks[-1])
    return Axis(*ends, tuple((mark, label(mark)) for mark in marks), unit)


def percent_axis(lo: float, hi: float, *, steps: int = 4) -> Axis:
    """An axis of shares, written as percentages and kept within 0 and 1."""
    label = lambda value: f"{100 * value:.4g}%"  # noqa: E731 - a name would say no more
    axis = linear(lo, hi, steps=steps, label=label, unit="percent")
    if axis.lo >= 0 and axis.hi <= 1:
        return axis
    ticks = tuple(tick for tick in axis.ticks if -1e-9 <= tick[0] <= 1 + 1e-9)
    return Axis(max(axis.lo, 0.0), min(axis.hi, 1.0), ticks, "percent")


def metric_axis(metric: Metric, lo: float, hi: float) -> Axis:
    """The axis of values of a metric."""
    return percent_axis(lo, hi) if metric.unit == "share" else linear(lo, hi)


def rows_axis(rows: int, dates: Mapping[int, np.datetime64] | None = None) -> Axis:
    """The axis of time: rows of the stream, with their dates if those of some rows are known."""
    axis = linear(0, max(rows, 1), steps=5, snug=True, unit="rows")
    if not dates or len(dates) < 2:
        return axis
    known = np.array(list(dates), float)
    seconds = np.array(list(dates.values())).astype("M8[s]").astype(float)
    days = (seconds[-1] - seconds[0]) / 86400
    written = "%d %b %H:%M" if days < 3 else "%d %b" if days < 330 else "%b %Y"
    # Rows before the first one that is known have its date: none is earlier than the stream.
    ticks = tuple(
        (row, datetime.fromtimestamp(np.interp(row, known, seconds), UTC).strftime(written))
        for row, _ in axis.ticks
    )
    return replace(axis, ticks=ticks, dated=True)


def covering(curves: Iterable[FloatArray], keep: Iterable[float] = ()) -> tuple[float, float, bool]:
    """Range that shows curves well: a few extreme values must not flatten the rest.

    Parameters
    ----------
    curves : iterable of ndarray
        The curves.
    keep : iterable of float
        Values that must be in the range.

    Returns
    -------
    lo, hi : float
        The range.
    clipped : bool
        Whether some values lie outside the range.
    """
    values = np.concatenate([np.asarray(curve, dtype=float) for curve in curves])
    values = values[np.isfinite(values)]
    kept = [value for value in keep if math.isfinite(value)]
    if not values.size and not kept:
        return 0.0, 1.0, False
    if not values.size:
        return min(kept), max(kept), False
    low, high = (
        np.quantile(values, [0.01, 0.99]) if values.size >= 50 else (values.min(), values.max())
    )
    room = high - low
    lo = float(values.min() if values.min() >= low - 0.5 * room else low)
    hi = float(values.max() if values.max() <= high + 0.5 * room else high)
    lo, hi = min([lo, *kept]), max([hi, *kept])
    return lo, hi, bool(values.min() < lo or values.max() > hi)
