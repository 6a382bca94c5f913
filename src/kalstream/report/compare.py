"""The page of a comparison: several runs on the same data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kalstream._files import write_whole
from kalstream.errors import InvalidInput
from kalstream.evaluate.compare import LEVEL
from kalstream.evaluate.metrics import METRICS, Metric, Show, shown
from kalstream.report import format as fmt
from kalstream.report.axes import covering, linear, metric_axis, rows_axis
from kalstream.report.elements import (
    OUTSIDE,
    baseline_name,
    baseline_style,
    metric_text,
    pair,
    prose,
    section,
    table,
)
from kalstream.report.markup import Markup, join, tag
from kalstream.report.page import page
from kalstream.report.paired import read_runs
from kalstream.report.read import FloatArray, RunRecord
from kalstream.report.sections.headline import state
from kalstream.report.svg import Figure
from kalstream.report.timeline import Timeline, trend

_N_STYLES = 8  # colours with dashes of their own in the style sheet


def compare(
    runs: Sequence[Path], tests: Sequence[Mapping[str, Any]] = (), notes: Sequence[str] = ()
) -> str:
    """Compare several runs, as the text of an HTML page.

    Parameters
    ----------
    runs : sequence of Path
        At least two folders that ``kalstream run`` wrote, on the same data.
    tests : sequence of dict
        Paired tests, from `compare_runs`.
    notes : sequence of str
        What the reader should know, such as runs that are not compared.

    Returns
    -------
    str
        A page without links to other files.

    Raises
    ------
    InvalidInput
        If there are fewer than two runs, files are missing or damaged, or the data differ.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     runs = [Path(folder) / forgetting for forgetting in ("0.9", "1.0")]
    ...     for run in runs:
    ...         options = {"forgetting": run.name, "window": 100, "limit": 300, "features": "raw"}
    ...         end = Run(run, Options(source="weather", **options)).go()
    ...     page = compare(runs)
    >>> page[:15], "Settings that differ" in page
    ('<!doctype html>', True)
    """
    named = read_runs(runs)
    name = next(iter(named.values())).name
    top = join(
        [
            tag("p", tag("span", "kalstream comparison"), class_="over"),
            tag("h1", fmt.shortened(name, 80)),
            tag("p", f"{fmt.plural(len(named), 'run')} on the same data", class_="facts"),
        ]
    )
    listed = [tag("p", note, class_="banner mixed") for note in notes]
    body = [
        *listed,
        _warning(named),
        _totals(named),
        _tests(tests),
        _curves(named),
        _saved(named),
        _settings(named),
    ]
    return page(f"{name}: {fmt.plural(len(named), 'run')}", top, join(body))


def write_comparison(
    runs: Sequence[Path],
    out: Path,
    tests: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> Path:
    """Write a comparison to a file.

    Parameters
    ----------
    runs, tests, notes
        As for `compare`.
    out : Path
        The file. It is replaced completely or not at all.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InvalidInput
        As `compare`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     runs = [Path(folder) / forgetting for forgetting in ("0.9", "1.0")]
    ...     for run in runs:
    ...         options = {"forgetting": run.name, "window": 100, "limit": 300, "features": "raw"}
    ...         end = Run(run, Options(source="weather", **options)).go()
    ...     write_comparison(runs, Path(folder) / "comparison.html").name
    'comparison.html'
    """
    write_whole(out, compare(runs, tests, notes))
    return Path(out)


def _warning(runs: Mapping[str, RunRecord]) -> Markup | None:
    """Reasons why the runs may not be comparable."""
    first = next(iter(runs.values()))
    reasons = [
        f"{name}: {state(run)[0]}, {fmt.count(run.rows)} rows"
        for name, run in runs.items()
        if state(run)[0] != "finished"
    ]
    if len({run.rows for run in runs.values()}) > 1:
        reasons.append("the runs do not have the same number of rows, so totals differ anyway")
    if first.stream.get("fingerprint") is None:
        reasons.append("the files do not identify their data, so it may differ")
    if not reasons:
        return None
    return tag("p", tag("strong", "Warning. "), "; ".join(reasons) + ".", class_="banner mixed")


def _totals(runs: Mapping[str, RunRecord]) -> Markup:
    """Table of the metrics over all rows."""
    first, all_runs = next(iter(runs.values())), list(runs.values())
    metrics = [
        metric
        for metric in shown(first.task, Show.TOTALS)
        if any(math.isfinite(run.total(metric.name)) for run in all_runs)
    ]
    head = ["", "Learner", "Rows", *(metric.heading for metric in metrics), "Alarms", "Rows/s"]
    best = {metric.name: _best(all_runs, metric) for metric in metrics}
    rows = []
    for i, (name, run) in enumerate(runs.items()):
        cells: list[object] = [
            _key(i, name),
            fmt.shortened(run.learner, 30),
            fmt.count(run.rows),
        ]
        for metric in metrics:
            text = metric_text(metric, run.total(metric.name))
            cells.append(tag("b", text, " ★") if i in best[metric.name] else text)
        rows.append([*cells, fmt.count(run.n_alarms), _rate(run)])
    for baseline in first.baselines:
        cells = [baseline_name(baseline), "baseline", fmt.count(first.rows)]
        cells += [metric_text(m, first.total(m.name, baseline)) for m in metrics]
        rows.append([*cells, "", ""])
    note = prose(
        "★ marks the best run of a column. The paired tests, if there are any, show whether a "
        "difference is more than chance."
    )
    return section("totals", "Totals", table(head, rows, row_heads=True, left=(1,)), note)


def _best(runs: Sequence[RunRecord], metric: Metric) -> set[int]:
    """Indices of the best runs; none if all are equal."""
    values = [metric.merit(run.total(metric.name)) for run in runs]
    known = [value for value in values if math.isfinite(value)]
    if not known or (len(known) > 1 and max(known) == min(known)):
        return set()
    return {i for i, value in enumerate(values) if value == max(known)}


def _rate(run: RunRecord) -> str:
    used = run.clock("seconds")
    return fmt.significant(run.rows / used) if used > 0 else fmt.NOT_DEFINED


def _key(i: int, name: str) -> Markup:
    """Name of a run behind a sample of its line."""
    sample = tag(
        "svg",
        tag("line", x1=0, x2=26, y1=6, y2=6, class_=f"line {_style(i)}"),
        width=26,
        height=12,
        class_="sample",
        aria_hidden="true",
    )
    return tag("span", sample, fmt.shortened(name, 40), class_="key")


def _style(i: int) -> str:
    return f"r{i % _N_STYLES}"


def _tests(tests: Sequence[Mapping[str, Any]]) -> Markup | None:
    if not tests:
        return None
    text = (
        "Both runs predicted the same rows, so they are compared window by window. The p-value is "
        "the probability of a difference this large if both runs were equally good. A p-value "
        "below 0.05 usually counts as more than chance. With many pairs, some p-values are small "
        "by chance alone."
    )
    head = ("Pair", "Metric", "Difference", "Standard error", "p", "Windows", "Result")
    rows = [_test(test) for test in tests]
    return section(
        "tests", "Paired tests", prose(text), table(head, rows, row_heads=True, left=(1, 6))
    )


def _test(test: Mapping[str, Any]) -> list[str]:
    """A row of the table of paired tests."""
    try:
        a, b, metric = str(test["a"]), str(test["b"]), METRICS[test["metric"]]
        numbers = [test[key] for key in ("difference", "standard_error", "p_value", "n")]
        difference, error, p, n = (math.nan if one is None else float(one) for one in numbers)
    except (KeyError, TypeError, ValueError) as problem:
        raise InvalidInput(f"tests: not a paired test: {dict(test)!r} ({problem})") from problem
    better = a if (difference < 0) == (metric.better == "less") else b
    if math.isnan(p) or math.isnan(difference):
        verdict = "Not defined."
    elif p < LEVEL and difference:
        verdict = f"{better} is better."
    else:
        verdict = "No more than chance."
    chance = "< 0.001" if p < 0.001 else fmt.fixed(p)
    size = fmt.significant(difference), fmt.significant(error, 2)
    return [f"{a} minus {b}", metric.title, *size, chance, fmt.count(n), verdict]


def _curves(runs: Mapping[str, RunRecord]) -> Markup:
    """Figures of the metrics over time."""
    metrics = shown(next(iter(runs.values())).task, Show.CURVES)
    recent = [_overlay(runs, metric, whole=False) for metric in metrics]
    so_far = [_overlay(runs, metric, whole=True) for metric in metrics]
    return section("curves", "Scores over time", *recent, pair(*so_far))


def _values(
    run: RunRecord, time: Timeline, metric: Metric, whole: bool, prefix: str = ""
) -> FloatArray:
    """A metric over all rows so far, or its moving average."""
    if whole:
        return time.last(run.column(f"{prefix}total.{metric.name}"))
    grouped = time.average(metric, run.column(f"{prefix}window.{metric.name}"))
    return trend(grouped, time.weights)[0]


def _overlay(runs: Mapping[str, RunRecord], metric: Metric, *, whole: bool) -> Markup | None:
    """Figure of a metric, with a line for each run."""
    times = [Timeline(run) for run in runs.values()]
    pairs = zip(runs.values(), times, strict=True)
    curves = [_values(run, time, metric, whole) for run, time in pairs]
    if not any(np.isfinite(curve).any() for curve in curves):
        return None
    first = next(iter(runs.values()))
    others = {name: _values(first, times[0], metric, whole, f"{name}.") for name in first.baselines}
    totals = {name: run.total(metric.name) for name, run in runs.items()}
    lo, hi, clipped = covering([*curves, *others.values()], totals.values() if whole else [])
    ends = [f"{name} ends at {metric_text(metric, value)}" for name, value in totals.items()]
    figure = Figure(
        f"{metric.heading} so far" if whole else f"{metric.heading}, moving average",
        f"One line for each run. {fmt.listed(ends)}.",
        rows_axis(max(run.rows for run in runs.values())),
        metric_axis(metric, lo, hi),
        height=180 if whole else 230,
    )
    for name, values in others.items():
        shown_name, style = baseline_name(name), f"back {baseline_style(name)}"
        xs = times[0].right if whole else times[0].middle
        figure.line(xs, values, style, name=shown_name, label=shown_name)
    for i, (name, time, values) in enumerate(zip(runs, times, curves, strict=True)):
        shown_name = fmt.shortened(name, 13)
        xs = time.right if whole else time.middle
        figure.line(xs, values, _style(i), name=shown_name, label=shown_name)
    return figure.render(OUTSIDE if clipped else None)


def _saved(runs: Mapping[str, RunRecord]) -> Markup | None:
    """Figure of the bits saved against the first run: the slope shows which run is better."""
    (first_name, first), *rest = runs.items()
    time = Timeline(first)
    base = time.last(first.column("total.code_length"))
    if not np.isfinite(base).any():
        return None
    curves = {}
    for i, (name, run) in enumerate(rest, start=1):
        other = Timeline(run)
        bits = other.last(run.column("total.code_length"))
        if np.isfinite(bits).all():
            # after its last row a run has no code length
            saved = base - np.interp(time.right, other.right, bits, right=math.nan)
            curves[i, fmt.shortened(name, 13)] = saved
    if not curves:
        return None
    values = np.concatenate([*curves.values(), [0.0]])
    figure = Figure(
        f"Bits saved against {fmt.shortened(first_name, 40)}",
        "Lines of the difference in code length so far. Where a line rises, its run predicts "
        "better.",
        rows_axis(max(run.rows for run in runs.values())),
        linear(float(np.nanmin(values)), float(np.nanmax(values))),
        height=200,
    )
    figure.across(0.0, "nominal")
    for (i, shown_name), saved in curves.items():
        figure.line(time.right, saved, _style(i), name=shown_name, label=shown_name)
    caption = (
        f"Where a line rises, its run predicts better than {first_name}; where it falls, worse."
    )
    return section("bits", "Code length", figure.render(caption))


def _settings(runs: Mapping[str, RunRecord]) -> Markup:
    """Table of the settings that differ, and the commands."""
    configs = [run.config for run in runs.values()]
    flat = [_flat({k: config[k] for k in ("learner", "protocol", "machine")}) for config in configs]
    for settings, config in zip(flat, configs, strict=True):
        settings["version"] = str(config.get("version"))
    keys = dict.fromkeys(key for settings in flat for key in settings)
    differing = [key for key in keys if len({settings.get(key) for settings in flat}) > 1]
    rows = [
        [key, *(fmt.shortened(settings.get(key, fmt.NOT_DEFINED), 60) for settings in flat)]
        for key in differing
    ]
    body = (
        table(["Setting", *runs], rows, row_heads=True, left=range(len(runs) + 1))
        if rows
        else prose("The settings are the same.")
    )
    commands = [
        tag("pre", tag("code", f"{config.get('command') or 'not recorded'}"), class_="command")
        for config in configs
    ]
    fingerprint = configs[0]["stream"].get("fingerprint") or "not recorded"
    return section(
        "settings", "Settings that differ", body, *commands, prose(f"Data: {fingerprint}")
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings by their path."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            flat[f"{prefix}{key}"] = text
    return flat
