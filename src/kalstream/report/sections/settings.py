"""Section on settings: everything that is needed to repeat the run."""

from __future__ import annotations

from typing import Any

from kalstream.report import format as fmt
from kalstream.report.elements import Children, details, prose, setting_text, table
from kalstream.report.markup import Markup, tag
from kalstream.report.read import RunRecord

# What became of rows whose labels come late; see `kalstream.estimators.Waiting`.
_WAITING = {
    "waiting": "rows that wait for labels",
    "asked": "rows kept for their labels",
    "told": "labels learned",
    "at_end": "labels learned after the last row",
    "expired": "rows given up",
    "repeated": "rows or labels that came again",
    "corrected": "labels corrected",
    "too_late": "labels of rows given up",
    "unknown": "labels of unknown rows",
}


def settings(run: RunRecord) -> Children:
    """The command, and everything else that is needed to repeat the run."""
    config = run.config
    stream = {k: v for k, v in run.stream.items() if k not in ("columns", "attribution")}
    counts = {k: getattr(run.end, k, None) for k in ("skipped", "infinite")}
    counted = {name: count for name, count in counts.items() if count is not None}
    stream |= {"rows read": run.rows, "rows scored": run.n, **counted}
    for row, source in run.extensions:
        stream[f"after row {fmt.count(row)}"] = source
    origin = config["origin"] or {}
    if origin:
        learned = fmt.plural(origin["rows"], "row")
        stream["model at the start"] = f"{origin['path']}, which had learned {learned}"
    stream["rows without target"] = sum(window.missing for window in run.windows)
    waiting = {} if run.end is None else run.end.waiting
    if waiting:
        learned_late = max(waiting.get("told", 0) - waiting.get("missing", 0), 0)
        waiting = waiting | {"told": learned_late}
    stream |= {_WAITING[name]: n for name, n in waiting.items() if name in _WAITING}
    params = config["learner"].get("params") or {}
    groups = [
        ("Data", stream),
        (run.learner, params if isinstance(params, dict) else {"params": params}),
        ("Protocol", config["protocol"]),
        ("Machine", {"kalstream": config.get("version", ""), **config["machine"]}),
    ]
    attribution = run.stream.get("attribution")
    return [
        tag("pre", tag("code", str(config.get("command") or "not recorded")), class_="command"),
        tag("div", *(_group(title, values) for title, values in groups), class_="settings"),
        tag("p", tag("b", "Attribution. "), attribution, class_="prose") if attribution else None,
        _options(run),
        _columns(run),
    ]


def _group(title: str, values: dict[str, Any]) -> Markup:
    pairs = [
        tag("div", tag("dt", fmt.shortened(key, 60)), tag("dd", setting_text(value)))
        for key, value in values.items()
    ]
    return tag("div", tag("h3", fmt.shortened(title, 60)), tag("dl", *pairs), class_="group")


def _options(run: RunRecord) -> Markup | None:
    options = run.config.get("options")
    if not isinstance(options, dict) or not options:
        return None
    rows = [(fmt.shortened(key, 60), setting_text(value)) for key, value in options.items()]
    return details("All options of the command", table(("Option", "Value"), rows, left=(1,)))


def _columns(run: RunRecord) -> Markup | None:
    columns = run.stream.get("columns")
    if not isinstance(columns, list) or not columns:
        return None
    rows = [_column(one) for one in columns[:200]]
    more = len(columns) - len(rows)
    return details(
        fmt.plural(len(columns), "column"),
        table(("Column", "Kind"), rows, left=(1,)),
        prose(f"… and {fmt.count(more)} more.") if more else None,
    )


def _column(value: object) -> tuple[str, str]:
    if isinstance(value, dict):
        return fmt.shortened(value.get("name", ""), 80), fmt.shortened(value.get("kind", ""), 40)
    return fmt.shortened(value, 80), ""
