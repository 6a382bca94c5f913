"""Section on time and memory."""

from __future__ import annotations

import math

import numpy as np

from kalstream.report import format as fmt
from kalstream.report.axes import covering, linear, rows_axis
from kalstream.report.elements import OUTSIDE, Children, pair, prose
from kalstream.report.markup import Markup
from kalstream.report.read import RunRecord
from kalstream.report.svg import Figure
from kalstream.report.timeline import Timeline


def cost(run: RunRecord) -> Children:
    """Time and memory, in total and over time."""
    used, wall = run.clock("seconds"), run.clock("wall_seconds")
    parts = [f"{fmt.seconds(used)} to predict and learn {fmt.count(run.rows)} rows"]
    if not math.isnan(wall):
        parts.append(f"{fmt.seconds(wall)} in all, with reading and scoring")
    parts.append(f"at most {fmt.count(run.clock('memory_mb'))} MB of memory")
    figures = pair(
        _resource(run, "clock.rows_per_second", "Rows a second", True),
        _resource(run, "clock.memory_mb", "Memory in MB", False),
    )
    return [prose(", ".join(parts) + "."), figures]


def _resource(run: RunRecord, key: str, title: str, average: bool) -> Markup | None:
    time = Timeline(run)
    values = run.column(key)
    # a rate over several windows is their harmonic mean: rows divided by seconds
    with np.errstate(divide="ignore"):
        shown = 1 / time.mean(1 / values) if average else time.last(values)
    shown = np.where(np.isfinite(shown), shown, np.nan)
    if not np.isfinite(shown).any():
        return None
    _, hi, clipped = covering([shown], [0.0])
    figure = Figure(
        title,
        f"Line over {fmt.count(run.rows)} rows, from {fmt.significant(shown[0])} to "
        f"{fmt.significant(shown[-1])}.",
        rows_axis(run.rows, run.dates),
        linear(0.0, hi),
        height=120,
        css="small",
    )
    figure.line(time.middle if average else time.right, shown, "model", name=title)
    if len(time) == 1:
        figure.dots(time.middle, shown, "model")
    return figure.render(OUTSIDE if clipped else None)
