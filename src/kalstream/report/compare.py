"""Several runs on the same data, on one page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kalstream._files import write_whole
from kalstream.errors import InvalidInput
from kalstream.evaluate.compare import LEVEL
from kalstream.report import format as fmt
from kalstream.report.headline import METRICS, baseline_name, state
from kalstream.report.markup import Markup, join, tag
from kalstream.report.page import page
from kalstream.report.read import FloatArray, Run, read_run
from kalstream.report.sections import STYLES, pair, section, table, word
from kalstream.report.svg import Figure, covering, linear, percent_axis, rows_axis
from kalstream.report.timeline import Timeline, trend

_STYLES = 8  # colours with dashes of their own in the style sheet
_LESS_IS_BETTER = {"log_loss", "brier", "ece", "rmse", "mae", "nlpd", "code_length"}


def compare(runs: Sequence[Path], tests: Sequence[Mapping[str, Any]] = ()) -> str:
    """Page that lays several runs over each other.

    Parameters
    ----------
    runs : sequence of Path
        At least two folders that ``kalstream run`` wrote, on the same data.
    tests : sequence of dict
        Paired tests: ``a`` and ``b`` (names of runs), ``metric``, ``difference`` (the metric of `a`
        less that of `b`), ``standard_error``, ``p_value`` and ``n`` (windows).

    Returns
    -------
    str
        A page that is complete in itself.

    Raises
    ------
    InvalidInput
        If there are fewer than two runs, files are missing or damaged, or the data differ.
    """
    if len(runs) < 2:
        raise InvalidInput(f"a comparison needs at least two runs, not {len(runs)}")
    read = [read_run(Path(run)) for run in runs]
    _check_same_data(read)
    names = _names(read)
    first = read[0]
    top = join(
        [
            tag("p", tag("span", "kalstream comparison"), class_="over"),
            tag("h1", fmt.shortened(first.name, 80)),
            tag(
                "p",
                f"{fmt.plural(len(read), 'run')} on the same data, row by row",
                class_="facts",
            ),
        ]
    )
    body = [
        _unfinished(read, names),
        _totals(read, names),
        _tests(tests),
        _curves(read, names),
        _saved(read, names),
        _settings(read, names),
    ]
    return page(f"{first.name}: {fmt.plural(len(read), 'run')}", top, join(body))


def write_comparison(
    runs: Sequence[Path], out: Path, tests: Sequence[Mapping[str, Any]] = ()
) -> Path:
    """Write a comparison to a file.

    Parameters
    ----------
    runs, tests
        As in `compare`.
    out : Path
        The file. It is replaced whole or not at all.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InvalidInput
        As `compare`.
    """
    write_whole(out, compare(runs, tests))
    return Path(out)


def _check_same_data(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for key in ("fingerprint", "task", "target"):
            mine, other = first.stream.get(key), run.stream.get(key)
            if mine != other:
                raise InvalidInput(
                    f"{first.path} and {run.path} are not about the same data: the {key} of the "
                    f"one is {mine!r}, of the other {other!r}; only runs on the same rows compare"
                )


def _names(runs: Sequence[Run]) -> list[str]:
    """Names of folders, with as much of their paths as tells them apart."""
    parts = [run.path.resolve().parts for run in runs]
    for depth in range(1, max(len(part) for part in parts) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{part[-1]} ({i})" for i, part in enumerate(parts, start=1)]  # a run given twice


def _unfinished(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    told = [
        f"{name}: {state(run)[0]}, {fmt.count(run.rows)} rows"
        for run, name in zip(runs, names, strict=True)
        if state(run)[0] != "finished"
    ]
    if len({run.rows for run in runs}) > 1:
        told.append(
            "the runs have not seen the same number of rows, and totals differ for that reason too"
        )
    if runs[0].stream.get("fingerprint") is None:
        told.append("the files do not say which data they are about, so that it may differ")
    if not told:
        return None
    return tag("p", tag("strong", "Take care. "), "; ".join(told) + ".", class_="banner mixed")


def _shown(metric: str) -> Callable[[float], str]:
    if metric in ("accuracy", "coverage", "ece", "macro_f1"):
        return fmt.percent
    return fmt.count if metric == "code_length" else fmt.significant


def _totals(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    if runs[0].classification:
        metrics = ["accuracy", "log_loss", "brier", "ece", "macro_f1", "code_length"]
    else:
        metrics = ["rmse", "mae", "nlpd", "coverage"]
    metrics = [m for m in metrics if any(math.isfinite(run.total(m)) for run in runs)]
    titles = {
        "brier": "Brier",
        "ece": "ECE",
        "macro_f1": "Macro F1",
        "code_length": "Bits",
        "nlpd": "NLPD",
    }
    head = ["", "Learner", "Rows"]
    head += [
        titles.get(m, METRICS.get(m, m).capitalize() if m not in ("rmse", "mae") else METRICS[m])
        for m in metrics
    ]
    head += ["Alarms", "Rows/s"]
    best = {metric: _best(runs, metric) for metric in metrics}
    rows = []
    for i, (run, name) in enumerate(zip(runs, names, strict=True)):
        cells: list[object] = [
            _key(i, name),
            fmt.shortened(run.learner, 30),
            fmt.count(run.rows),
        ]
        for metric in metrics:
            text = _shown(metric)(run.total(metric))
            cells.append(tag("b", text, " ★") if i in best[metric] else text)
        alarms = sum(len(window.drift) for window in run.windows)
        rows.append([*cells, fmt.count(alarms), _rate(run)])
    for baseline in runs[0].baselines:
        cells = [baseline_name(baseline), "baseline", fmt.count(runs[0].rows)]
        cells += [_shown(metric)(runs[0].total(metric, baseline)) for metric in metrics]
        rows.append([*cells, "", ""])
    note = word(
        "★ marks the best run of a column. Whether it is better than chance would make it is "
        "another question: see the paired tests, where there are any."
    )
    return section("totals", "Totals", table(head, rows, row_heads=True, left=(1,)), note)


def _best(runs: Sequence[Run], metric: str) -> set[int]:
    if metric == "coverage":
        values = [-abs(run.total(metric) - 0.9) for run in runs]
    else:
        sign = -1.0 if metric in _LESS_IS_BETTER else 1.0
        values = [sign * run.total(metric) for run in runs]
    known = [value for value in values if math.isfinite(value)]
    if not known or (len(known) > 1 and max(known) == min(known)):
        return set()  # nobody is best where all are equal
    return {i for i, value in enumerate(values) if value == max(known)}


def _rate(run: Run) -> str:
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
    return f"r{i % _STYLES}"


def _tests(tests: Sequence[Mapping[str, Any]]) -> Markup | None:
    if not tests:
        return None
    told = (
        "Both runs predicted the same rows, so that they are compared window by window. The "
        "p-value says how often a difference as large as this would come about by chance if the "
        "two were equally good; below 0.05 one usually says that it is more than chance. With "
        "many pairs, some small p-values come about by chance as well."
    )
    head = ("Pair", "Metric", "Difference", "Standard error", "p", "Windows", "In words")
    rows = [_test(test) for test in tests]
    return section(
        "tests", "Paired tests", word(told), table(head, rows, row_heads=True, left=(1, 6))
    )


def _test(test: Mapping[str, Any]) -> list[str]:
    try:
        a, b, metric = str(test["a"]), str(test["b"]), str(test["metric"])
        numbers = [test[key] for key in ("difference", "standard_error", "p_value", "n")]
        difference, error, p, n = (math.nan if one is None else float(one) for one in numbers)
    except (KeyError, TypeError, ValueError) as problem:
        raise InvalidInput(f"tests: not a paired test: {dict(test)!r} ({problem})") from problem
    better = a if (difference < 0) == (metric in _LESS_IS_BETTER) else b
    if math.isnan(p) or math.isnan(difference):
        verdict = "Cannot be told."
    elif p < LEVEL and difference:
        verdict = f"{better} is better."
    else:
        verdict = "No more than chance would give."
    chance = "< 0.001" if p < 0.001 else fmt.fixed(p)
    size = fmt.significant(difference), fmt.significant(error, 2)
    return [f"{a} less {b}", METRICS.get(metric, metric), *size, chance, fmt.count(n), verdict]


def _curves(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    if runs[0].classification:
        metrics = [("accuracy", "Accuracy"), ("log_loss", "Log-loss in nats")]
    else:
        metrics = [("rmse", "RMSE"), ("nlpd", "Negative log predictive density")]
    body: list[Markup | None] = [
        _overlay(runs, names, metric, f"{title}, moving average", whole=False)
        for metric, title in metrics
    ]
    body.append(
        pair(*(_overlay(runs, names, m, f"{title} so far", whole=True) for m, title in metrics))
    )
    return section("curves", "How well, and when", *body)


def _values(run: Run, time: Timeline, metric: str, whole: bool, prefix: str = "") -> FloatArray:
    if whole:
        return time.last(run.column(f"{prefix}total.{metric}"))
    values = run.column(f"{prefix}window.{metric}")
    grouped = time.rms(values) if metric == "rmse" else time.mean(values)
    return trend(grouped, time.weights)[0]


def _overlay(
    runs: Sequence[Run], names: Sequence[str], metric: str, title: str, *, whole: bool
) -> Markup | None:
    times = [Timeline(run) for run in runs]
    curves = [_values(run, time, metric, whole) for run, time in zip(runs, times, strict=True)]
    if not any(np.isfinite(curve).any() for curve in curves):
        return None
    first = runs[0]
    others = {name: _values(first, times[0], metric, whole, f"{name}.") for name in first.baselines}
    keep = [run.total(metric) for run in runs] if whole else []
    lo, hi, clipped = covering([*curves, *others.values()], keep)
    axis = percent_axis(lo, hi) if metric == "accuracy" else linear(lo, hi)
    described = [
        f"{n} ends at {_shown(metric)(run.total(metric))}"
        for n, run in zip(names, runs, strict=True)
    ]
    figure = Figure(
        title,
        f"One line for each run. {fmt.listed(described)}.",
        rows_axis(max(run.rows for run in runs)),
        axis,
        height=180 if whole else 230,
    )
    for name, values in others.items():
        shown = baseline_name(name)
        xs = times[0].right if whole else times[0].middle
        figure.line(xs, values, f"back {STYLES.get(name, 'constant')}", name=shown, label=shown)
    for i, (name, time, values) in enumerate(zip(names, times, curves, strict=True)):
        shown = fmt.shortened(name, 13)
        figure.line(
            time.right if whole else time.middle, values, _style(i), name=shown, label=shown
        )
    return figure.render("A few extreme values lie outside the frame." if clipped else None)


def _saved(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    """Bits saved against the first run: the slope says who is better, and when."""
    first, time = runs[0], Timeline(runs[0])
    base = time.last(first.column("total.code_length"))
    if not np.isfinite(base).any():
        return None
    curves = {}
    for i, run in enumerate(runs[1:], start=1):
        other = Timeline(run)
        bits = other.last(run.column("total.code_length"))
        if np.isfinite(bits).all():
            # beyond its last row a run has no code length
            curves[i] = base - np.interp(time.right, other.right, bits, right=math.nan)
    if not curves:
        return None
    values = np.concatenate([*curves.values(), [0.0]])
    figure = Figure(
        f"Bits saved against {fmt.shortened(names[0], 40)}",
        "Lines of the difference in code length so far; rising means that the run predicts better.",
        rows_axis(max(run.rows for run in runs)),
        linear(float(np.nanmin(values)), float(np.nanmax(values))),
        height=200,
    )
    figure.across(0.0, "nominal")
    for i, saved in curves.items():
        shown = fmt.shortened(names[i], 13)
        figure.line(time.right, saved, _style(i), name=shown, label=shown)
    caption = f"A line that rises predicts better than {names[0]} there; one that falls, worse."
    return section("bits", "Code length", figure.render(caption))


def _settings(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Settings in which the runs differ, and the commands."""
    flat = [_flat({k: run.config[k] for k in ("learner", "protocol", "machine")}) for run in runs]
    for one, run in zip(flat, runs, strict=True):
        one["version"] = str(run.config.get("version"))
    keys = dict.fromkeys(key for one in flat for key in one)
    differing = [key for key in keys if len({one.get(key) for one in flat}) > 1]
    rows = [
        [key, *(fmt.shortened(one.get(key, fmt.NOT_DEFINED), 60) for one in flat)]
        for key in differing
    ]
    body = (
        table(["Setting", *names], rows, row_heads=True, left=range(len(names) + 1))
        if rows
        else word("The settings are the same.")
    )
    commands = [
        tag("pre", tag("code", f"{run.config.get('command') or 'not recorded'}"), class_="command")
        for run in runs
    ]
    fingerprint = runs[0].stream.get("fingerprint") or "not recorded"
    return section(
        "settings", "Where the runs differ", body, *commands, word(f"Data: {fingerprint}")
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            found[f"{prefix}{key}"] = text
    return found
