"""Section on scores over time."""

from __future__ import annotations

import math

import numpy as np

from kalstream.evaluate.metrics import Metric, Show, shown
from kalstream.report import format as fmt
from kalstream.report.axes import covering, metric_axis, rows_axis
from kalstream.report.elements import (
    OUTSIDE,
    Children,
    alarm_key,
    baseline_name,
    baseline_style,
    mark_alarms,
    metric_text,
    pair,
    prose,
)
from kalstream.report.markup import Markup, tag
from kalstream.report.read import NOT_SCORED, FloatArray, RunRecord
from kalstream.report.svg import Figure
from kalstream.report.timeline import Timeline, trend

_MISSING = {
    "log_loss": "This learner gives no probabilities, so it has no log-loss.",
    "nlpd": "This learner gives no predictive density.",
}
_FAR = 3.0  # a baseline this many times worse than the others would flatten their curves


def scores(run: RunRecord) -> Children:
    """Scores over time, window by window and over all rows so far."""
    if not run.n:
        return [prose(NOT_SCORED)]
    metrics = shown(run.task, Show.CURVES)
    body = [windowed(run, metric, explain=i == 0) for i, metric in enumerate(metrics)]
    missing = [metric for metric, figure in zip(metrics, body, strict=True) if figure is None]
    body.append(pair(*(cumulative(run, metric) for metric in metrics)))
    body += [prose(_MISSING.get(m.name, f"This run has no {m.title}.")) for m in missing]
    return [*body, _more(run)]


def windowed(
    run: RunRecord, metric: Metric, title: str | None = None, *, explain: bool = True
) -> Markup | None:
    """Figure of a metric, window by window, with the baselines.

    Parameters
    ----------
    run : RunRecord
    metric : Metric
        If it has a nominal value, this is drawn as a line.
    title : str, optional
        Title of the figure, instead of that of the metric.
    explain : bool
        Whether the caption explains the lines.

    Returns
    -------
    Markup or None
        None if the run does not have the metric.
    """
    time = Timeline(run)
    ours = _grouped(run, time, metric)
    if not np.isfinite(ours).any():
        return None
    smooth, width = trend(ours, time.weights)
    near, far = _near(run, metric)
    others = {
        name: trend(_grouped(run, time, metric, f"{name}."), time.weights)[0] for name in near
    }
    nominal = [] if metric.nominal is None else [metric.nominal]
    lo, hi, clipped = covering([ours, *others.values()], nominal)
    figure = Figure(
        title or f"{metric.heading}, window by window",
        _description(run, metric, smooth, time),
        rows_axis(run.rows, run.dates),
        metric_axis(metric, lo, hi),
        height=210,
    )
    mark_alarms(figure, run)
    for value in nominal:
        figure.across(value, "nominal")
    if width > 1:
        figure.line(time.middle, ours, "model faint", name="learner, these rows")
    for name, values in others.items():
        shown_name, style = baseline_name(name), baseline_style(name)
        figure.line(time.middle, values, style, name=shown_name, label=shown_name)
    figure.line(time.middle, smooth, "model", name="learner", label="learner")
    lines = _explanation(run, time, width) if explain else ""
    meaning = f"{metric.title[0].upper()}{metric.title[1:]} is the {metric.meaning}."
    parts = ("" if title else meaning, lines, far, OUTSIDE if clipped else "")
    return figure.render(" ".join(part for part in parts if part))


def cumulative(run: RunRecord, metric: Metric) -> Markup | None:
    """Figure of a metric over all rows so far, with the baselines; see `windowed`."""
    time = Timeline(run)
    ours = time.last(run.column(f"total.{metric.name}"))
    if not np.isfinite(ours).any():
        return None
    near, far = _near(run, metric)
    others = {name: time.last(run.column(f"{name}.total.{metric.name}")) for name in near}
    keep = [run.total(metric.name), *(run.total(metric.name, name) for name in near)]
    lo, hi, clipped = covering([ours, *others.values()], keep)
    figure = Figure(
        f"{metric.heading} over all rows so far",
        _description(run, metric, ours, time),
        rows_axis(run.rows, run.dates),
        metric_axis(metric, lo, hi),
        height=180,
    )
    mark_alarms(figure, run)
    for name, values in others.items():
        shown_name, style = baseline_name(name), baseline_style(name)
        end = metric_text(metric, run.total(metric.name, name))
        figure.line(time.right, values, style, name=shown_name, label=shown_name, value=end)
    end = metric_text(metric, run.total(metric.name))
    figure.line(time.right, ours, "model", name="learner", label="learner", value=end)
    return figure.render(" ".join(part for part in (far, OUTSIDE if clipped else "") if part))


def _grouped(run: RunRecord, time: Timeline, metric: Metric, prefix: str = "") -> FloatArray:
    return time.average(metric, run.column(f"{prefix}window.{metric.name}"))


def _near(run: RunRecord, metric: Metric) -> tuple[list[str], str]:
    """Baselines that fit into the frame with the learner, and a sentence on those that do not."""
    if metric.unit == "share":
        return list(run.baselines), ""
    level = [run.total(metric.name), run.total(metric.name, "no_change")]
    limit = _FAR * max([value for value in level if math.isfinite(value)], default=math.inf)
    totals = {name: run.total(metric.name, name) for name in run.baselines}
    far = [name for name in run.baselines if totals[name] > limit]
    texts = [f"{baseline_name(name)} ({metric_text(metric, totals[name])})" for name in far]
    near = [name for name in run.baselines if name not in far]
    return near, f"Too large for this figure: {fmt.listed(texts)}." if far else ""


def _explanation(run: RunRecord, time: Timeline, width: int) -> str:
    rows = round(float(np.median(time.right - time.left)))
    parts = [f"Each point is the mean over {fmt.count(rows)} rows."]
    if width > 1:
        parts = [
            f"The faint line is the mean over {fmt.count(rows)} rows. The strong lines are moving "
            f"averages over {fmt.count(rows * width)} rows."
        ]
    return " ".join([*parts, alarm_key(run)]).strip()


def _description(run: RunRecord, metric: Metric, values: FloatArray, time: Timeline) -> str:
    """A curve in words, for screen readers."""
    known = np.flatnonzero(np.isfinite(values))
    first, last = (metric_text(metric, values[known[i]]) for i in (0, -1))
    low, high = int(np.nanargmin(values)), int(np.nanargmax(values))
    return (
        f"Line over {fmt.count(run.rows)} rows. It begins at {first} and ends at {last}; "
        f"lowest {metric_text(metric, values[low])} near row {fmt.count(time.middle[low])}, "
        f"highest {metric_text(metric, values[high])} near row {fmt.count(time.middle[high])}."
    )


def _more(run: RunRecord) -> Markup | None:
    """Metrics that have no figure of their own."""
    totals = {metric.title: run.total(metric.name) for metric in shown(run.task, Show.MORE)}
    texts = [f"{name} {fmt.fixed(value)}" for name, value in totals.items() if value == value]
    if not texts:
        return None
    return tag("p", f"Over all rows: {fmt.listed(texts)}.", class_="caption")
