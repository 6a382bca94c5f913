"""Parts that every page uses: sections, paragraphs, tables, and marks in figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from kalstream.evaluate.metrics import Metric
from kalstream.report import format as fmt
from kalstream.report.markup import Markup, tag
from kalstream.report.read import RunRecord
from kalstream.report.svg import Figure

Children = list[Markup | None]

_BASELINES = {"no_change": "no-change", "majority": "majority", "mean": "running mean"}
OUTSIDE = "A few extreme values lie outside the frame."
_MANY_ALARMS = 60  # more lines than that would hide the curve


def baseline_name(key: str) -> str:
    """Name of a baseline as pages write it."""
    return _BASELINES.get(key, key.replace("_", " "))


def baseline_style(key: str) -> str:
    """Class of the style sheet for the line of a baseline."""
    return "repeat" if key == "no_change" else "constant"


def metric_text(metric: Metric, value: float) -> str:
    """Value of a metric as pages write it."""
    if metric.unit == "share":
        return fmt.percent(value)
    return fmt.count(value) if metric.unit == "bits" else fmt.significant(value)


def section(anchor: str, title: str, *children: object) -> Markup:
    """One section with its heading."""
    return tag("section", tag("h2", title), *children, id=anchor)


def prose(text: str) -> Markup:
    """A paragraph of text."""
    return tag("p", text, class_="prose")


def pair(*figures: object) -> Markup:
    """Figures side by side where there is room."""
    return tag("div", *figures, class_="pair")


def details(summary: str, *children: object) -> Markup:
    """Content that opens on a click."""
    return tag("details", tag("summary", summary), *children)


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    row_heads: bool = False,
    left: Iterable[int] = (),
) -> Markup:
    """A table that scrolls by itself where the screen is narrow.

    Parameters
    ----------
    head : sequence
        The heads of the columns.
    rows : iterable of sequence
        The cells.
    row_heads : bool
        Whether the first cell of a row is its head.
    left : collection of int
        The columns that hold text, not numbers.
    """
    sides = dict.fromkeys(left, "left")
    top = [tag("th", cell, scope="col", class_=sides.get(j)) for j, cell in enumerate(head)]
    body = []
    for row in rows:
        first = tag("th", row[0], scope="row") if row_heads else tag("td", row[0])
        rest = [tag("td", cell, class_=sides.get(j)) for j, cell in enumerate(row[1:], start=1)]
        body.append(tag("tr", first, *rest))
    return tag(
        "div", tag("table", tag("thead", tag("tr", *top)), tag("tbody", *body)), class_="scroll"
    )


def setting_text(value: object) -> str:
    """Value of a setting as pages write it."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return fmt.shortened(value, 300)
    if isinstance(value, int) and not isinstance(value, bool):
        return fmt.count(value) if abs(value) >= 10_000 else str(value)
    return fmt.shortened(json.dumps(value, ensure_ascii=False, default=str), 300)


def _alarm_rows(run: RunRecord) -> list[int]:
    """Rows at which the drift alarms were raised."""
    return [alarm.at for alarm in run.alarms]


def alarm_key(run: RunRecord) -> str:
    """Explanation of the marks of `mark_alarms`; empty if there are none."""
    n_alarms = len(_alarm_rows(run))
    dashed = "A dashed vertical line marks where new data begin." if run.extensions else ""
    if not n_alarms:
        return dashed
    alarms = "▾ marks a drift alarm."
    if n_alarms > _MANY_ALARMS:
        alarms = "The marks above the figure are drift alarms."
    return f"{alarms} {dashed}".strip()


def mark_alarms(figure: Figure, run: RunRecord) -> None:
    """Mark the rows of the drift alarms, and those at which new data begin."""
    figure.moments([row for row, _ in run.extensions], "extension")
    rows = _alarm_rows(run)
    if len(rows) <= _MANY_ALARMS:
        figure.moments(rows, "alarm")
        figure.flags(rows, "alarm")
    else:
        figure.rug(rows, "alarm")
