"""Section on calibration: whether probabilities and intervals match the frequencies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kalstream.evaluate.metrics import METRICS
from kalstream.report import format as fmt
from kalstream.report.axes import Axis, linear
from kalstream.report.elements import Children, pair, prose
from kalstream.report.markup import Markup, join, tag
from kalstream.report.read import NOT_SCORED, FloatArray, RunRecord, Window
from kalstream.report.sections.scores import windowed
from kalstream.report.svg import Figure
from kalstream.report.timeline import last_quarter, pooled

_FEW_ROWS = 20  # a bin with fewer rows is uncertain: its dot is small


def calibration(run: RunRecord) -> Children:
    """Reliability diagrams (classification), or histograms and coverage (regression)."""
    if not run.n:
        return [prose(NOT_SCORED)]
    quarter = last_quarter(run)
    stretches = [("The whole stream", run.windows)]
    if len(quarter) < len(run.windows):
        stretches.append(("The last quarter", quarter))
    if run.classification:
        figures = [_reliability(title, windows, run) for title, windows in stretches]
        text = "If the dots lie on the diagonal, a probability of 80% is right 80% of the time."
        none = "This learner gives no probabilities."
        coverage = None
    else:
        highest = max((_highest(windows) for _, windows in stretches), default=1.0)
        figures = [_pit(title, windows, highest) for title, windows in stretches]
        text = (
            "The histograms show where the true values were in the distributions predicted for "
            "them. A flat histogram is right. A hill means that intervals are too wide, a valley "
            "that they are too narrow."
        )
        none = "This learner gives no predictive distribution."
        title = "Share of values in the central 90% interval"
        coverage = windowed(run, METRICS["coverage"], title, explain=False)
    figures = [figure for figure in figures if figure is not None]
    if not figures:
        return [prose(none), coverage]
    return [prose(text), pair(*figures), coverage]


def _reliability(title: str, windows: Sequence[Window], run: RunRecord) -> Markup | None:
    bins = [w.reliability_bins for w in windows if w.reliability_bins is not None]
    if not bins or len({each.shape for each in bins}) != 1:
        return None
    count, confidence, right = np.sum(bins, axis=0)
    if not count.sum():
        return None
    whole = len(windows) == len(run.windows)
    ece = float(np.abs(confidence - right).sum() / count.sum())
    brier = run.total("brier") if whole else pooled(windows, "brier")
    ece = run.total("ece") if whole and not math.isnan(run.total("ece")) else ece
    some = np.where(count > 0, count, np.nan)
    mean, rate = confidence / some, right / some
    ticks = tuple((v, f"{v:.0%}") for v in (0, 0.25, 0.5, 0.75, 1))
    axis = Axis(0, 1, ticks, "percent")
    figure = Figure(
        title,
        f"Reliability diagram: share right against the probability given, in {len(count)} bins. "
        f"Expected calibration error {fmt.percent(ece)}.",
        axis,
        axis,
        height=270,
        time=False,
        css="square",
    )
    edges = np.linspace(0, 1, len(count) + 1)
    figure.bars(edges, 0.28 * count / count.max(), "histogram")
    figure.path("M0 1000L1000 0", "line nominal")
    figure.path(_whiskers(mean, *_wilson(right, some)), "line whisker")
    figure.line(mean, rate, "model", name="share right")
    few = count < _FEW_ROWS
    figure.dots(mean[few], rate[few], "model", 2)
    figure.dots(mean[~few], rate[~few], "model", 4)
    caption = join(
        [
            tag("b", f"ECE {fmt.percent(ece)}"),
            f", Brier {fmt.fixed(brier)}, {fmt.count(count.sum())} rows. ",
            "Horizontal: probability of the predicted label. Vertical: how often that label was "
            "right, with 95% intervals. Bars: how often such a probability was given.",
        ]
    )
    return figure.render(caption)


def _wilson(right: FloatArray, count: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Wilson's 95% interval: unlike the normal one it stays within 0 and 1 in small bins."""
    z = 1.96
    middle = (right + z * z / 2) / (count + z * z)
    spread = z / (count + z * z) * np.sqrt(np.maximum(right * (1 - right / count), 0) + z * z / 4)
    return middle - spread, middle + spread


def _whiskers(xs: FloatArray, low: FloatArray, high: FloatArray) -> str:
    return "".join(
        f"M{1000 * x:.1f} {1000 * (1 - a):.1f}V{1000 * (1 - b):.1f}"
        for x, a, b in zip(xs, low, high, strict=True)
        if math.isfinite(x)
    )


def _pit(title: str, windows: Sequence[Window], highest: float) -> Markup | None:
    histogram = _density(windows)
    if histogram is None:
        return None
    density, rows = histogram
    coverage = pooled(windows, "coverage")
    ticks = tuple((v, f"{v:.0%}") for v in (0, 0.25, 0.5, 0.75, 1))
    figure = Figure(
        title,
        f"Histogram of the probability integral transform in {len(density)} bins. Relative to a "
        f"flat histogram, the highest bar is {fmt.fixed(density.max(), 2)} and the lowest "
        f"{fmt.fixed(density.min(), 2)}.",
        Axis(0, 1, ticks, "percent"),
        linear(0, highest, steps=4),
        height=200,
        time=False,
        css="square",
    )
    figure.bars(np.linspace(0, 1, len(density) + 1), density, "model")
    figure.across(1.0, "nominal")
    caption = join(
        [
            tag("b", f"{fmt.percent(coverage)} in the central 90% interval"),
            f", {fmt.count(rows)} rows. Vertical: rows relative to a flat histogram.",
        ]
    )
    return figure.render(caption)


def _density(windows: Sequence[Window]) -> tuple[FloatArray, float] | None:
    """Histogram of the transform, relative to a flat one, and its number of rows."""
    bins = [w.pit_counts for w in windows if w.pit_counts is not None]
    if not bins or len({each.shape for each in bins}) != 1:
        return None
    count = np.sum(bins, axis=0)
    return (count / count.mean(), float(count.sum())) if count.sum() else None


def _highest(windows: Sequence[Window]) -> float:
    density = _density(windows)
    return 1.5 if density is None else max(1.5, float(density[0].max()))
