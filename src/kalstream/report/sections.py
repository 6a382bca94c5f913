"""Sections of a report that are about time: scores, forgetting, calibration, cost and origin."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kalstream.report import format as fmt
from kalstream.report.headline import baseline_name, life_unit, typical_half_life
from kalstream.report.markup import Markup, join, tag
from kalstream.report.read import FloatArray, Run, Window
from kalstream.report.svg import Axis, Figure, covering, linear, percent_axis, rows_axis, scale
from kalstream.report.timeline import HEAT, Timeline, last_quarter, pooled, trend

STYLES = {"no_change": "repeat", "majority": "constant", "mean": "constant"}
_FEW_ALARMS = 60  # more lines than that are a curtain before the curve
_MANY_HALF_LIVES = 24
_FEW_ROWS = 20  # a bin with fewer says little: its dot is small
_FAR = 3.0  # a baseline so many times worse than the others would flatten them


def section(anchor: str, title: str, *children: object) -> Markup:
    """One section with its heading."""
    return tag("section", tag("h2", title), *children, id=anchor)


def word(text: str) -> Markup:
    """A paragraph that explains."""
    return tag("p", text, class_="prose")


def pair(*figures: object) -> Markup:
    """Figures beside each other where there is room."""
    return tag("div", *figures, class_="pair")


def alarm_rows(run: Run) -> list[int]:
    """Rows of all drift alarms."""
    return [alarm.row for window in run.windows for alarm in window.drift]


def alarm_key(run: Run) -> str:
    """What the marks of `mark_alarms` mean; empty if there are none."""
    number = len(alarm_rows(run))
    if not number:
        return ""
    few = number <= _FEW_ALARMS
    return "▾ is a drift alarm." if few else "The marks above the figure are drift alarms."


def mark_alarms(figure: Figure, run: Run) -> None:
    """Thin marks where the learner saw a drift."""
    rows = alarm_rows(run)
    if len(rows) <= _FEW_ALARMS:
        figure.moments(rows, "alarm")
        figure.flags(rows, "alarm")
    else:
        figure.rug(rows, "alarm")


# --- scores --------------------------------------------------------------------------------------


def _value_axis(metric: str, lo: float, hi: float) -> Axis:
    if metric in ("accuracy", "coverage"):
        return percent_axis(lo, hi)
    return linear(lo, hi, unit="number")


def _text(metric: str, value: float) -> str:
    if metric in ("accuracy", "coverage"):
        return fmt.percent(value)
    return fmt.significant(value)


def _grouped(run: Run, time: Timeline, key: str, metric: str) -> FloatArray:
    values = run.column(key)
    return time.rms(values) if metric == "rmse" else time.mean(values)


def _near(run: Run, metric: str) -> tuple[list[str], str]:
    """Baselines that fit into the frame with the learner, and a word on those that do not."""
    if metric == "accuracy":
        return list(run.baselines), ""
    level = [run.total(metric), run.total(metric, "no_change")]
    limit = _FAR * max([value for value in level if math.isfinite(value)], default=math.inf)
    far = [name for name in run.baselines if run.total(metric, name) > limit]
    told = fmt.listed([f"{baseline_name(n)} ({_text(metric, run.total(metric, n))})" for n in far])
    near = [name for name in run.baselines if name not in far]
    return near, f"Far above the frame: {told}." if far else ""


def windowed(
    run: Run, metric: str, title: str, target: float | None = None, explain: bool = True
) -> Markup | None:
    """A score window by window, against the baselines.

    Parameters
    ----------
    run : Run
        The run.
    metric : str
        The score.
    title : str
        What the figure is called.
    target : float, optional
        A value that it should have, drawn as a line.
    explain : bool
        Whether to say how the lines are to be read.

    Returns
    -------
    Markup or None
        None if the run does not have this score.
    """
    time = Timeline(run)
    ours = _grouped(run, time, f"window.{metric}", metric)
    if not np.isfinite(ours).any():
        return None
    smooth, width = trend(ours, time.weights)
    near, far = _near(run, metric)
    others = {
        name: trend(_grouped(run, time, f"{name}.window.{metric}", metric), time.weights)[0]
        for name in near
    }
    lo, hi, clipped = covering([ours, *others.values()], [] if target is None else [target])
    figure = Figure(
        title,
        _trend_words(run, metric, smooth, time),
        rows_axis(run.rows),
        _value_axis(metric, lo, hi),
        height=210,
    )
    mark_alarms(figure, run)
    if target is not None:
        figure.across(target, "nominal")
    if width > 1:
        figure.line(time.middle, ours, "model faint", name="learner, these rows")
    for name, values in others.items():
        style = STYLES.get(name, "constant")
        figure.line(time.middle, values, style, name=baseline_name(name), label=baseline_name(name))
    figure.line(time.middle, smooth, "model", name="learner", label="learner")
    how = _how_to_read(run, time, width) if explain else ""
    outside = "A few extreme values lie outside the frame." if clipped else ""
    return figure.render(" ".join(part for part in (how, far, outside) if part))


def _how_to_read(run: Run, time: Timeline, width: int) -> str:
    rows = round(float(np.median(time.right - time.left)))
    parts = [f"Each point is the mean over {fmt.count(rows)} rows."]
    if width > 1:
        parts = [
            f"The faint line is the mean over {fmt.count(rows)} rows, the strong ones are moving "
            f"averages over {fmt.count(rows * width)}."
        ]
    return " ".join([*parts, alarm_key(run)]).strip()


def _trend_words(run: Run, metric: str, values: FloatArray, time: Timeline) -> str:
    known = np.flatnonzero(np.isfinite(values))
    first, last = values[known[0]], values[known[-1]]
    low, high = np.nanargmin(values), np.nanargmax(values)
    return (
        f"Line over {fmt.count(run.rows)} rows. It begins at {_text(metric, first)} and ends at "
        f"{_text(metric, last)}; lowest {_text(metric, values[low])} near row "
        f"{fmt.count(time.middle[low])}, highest {_text(metric, values[high])} near row "
        f"{fmt.count(time.middle[high])}."
    )


def cumulative(run: Run, metric: str, title: str, target: float | None = None) -> Markup | None:
    """A score over all rows so far, against the baselines; see `windowed`."""
    time = Timeline(run)
    ours = time.last(run.column(f"total.{metric}"))
    if not np.isfinite(ours).any():
        return None
    near, far = _near(run, metric)
    others = {name: time.last(run.column(f"{name}.total.{metric}")) for name in near}
    keep = [run.total(metric), *(run.total(metric, name) for name in near)]
    keep += [] if target is None else [target]
    lo, hi, clipped = covering([ours, *others.values()], keep)
    figure = Figure(
        title,
        _trend_words(run, metric, ours, time),
        rows_axis(run.rows),
        _value_axis(metric, lo, hi),
        height=180,
    )
    mark_alarms(figure, run)
    if target is not None:
        figure.across(target, "nominal")
    for name, values in others.items():
        shown, style = baseline_name(name), STYLES.get(name, "constant")
        end = _text(metric, run.total(metric, name))
        figure.line(time.right, values, style, name=shown, label=shown, value=end)
    end = _text(metric, run.total(metric))
    figure.line(time.right, ours, "model", name="learner", label="learner", value=end)
    outside = "A few extreme values lie outside the frame." if clipped else ""
    return figure.render(" ".join(part for part in (far, outside) if part))


def scores(run: Run) -> Markup:
    """Section: the scores through the stream."""
    if run.classification:
        body = [
            windowed(run, "accuracy", "Accuracy, window by window"),
            windowed(run, "log_loss", "Log-loss in nats, window by window", explain=False),
            pair(
                cumulative(run, "accuracy", "Accuracy over all rows so far"),
                cumulative(run, "log_loss", "Log-loss over all rows so far"),
            ),
        ]
        if body[1] is None:
            body.append(word("This learner gives no probabilities, so that it has no log-loss."))
    else:
        body = [
            windowed(run, "rmse", "RMSE, window by window"),
            windowed(
                run, "nlpd", "Negative log predictive density, window by window", explain=False
            ),
            pair(
                cumulative(run, "rmse", "RMSE over all rows so far"),
                cumulative(run, "nlpd", "Negative log predictive density so far"),
            ),
        ]
        if body[1] is None:
            body.append(word("This learner gives no predictive density."))
    return section("scores", "How well, and when", *body, _further(run))


def _further(run: Run) -> Markup | None:
    """Scores that have no figure of their own."""
    named = {"macro_f1": "macro F1", "kappa_no_change": "kappa against no-change", "mae": "MAE"}
    told = [f"{name} {fmt.fixed(run.total(m))}" for m, name in named.items()]
    told = [text for text in told if not text.endswith(fmt.NOT_DEFINED)]
    if not told:
        return None
    return tag("p", f"Over all rows also: {fmt.listed(told)}.", class_="caption")


# --- forgetting ----------------------------------------------------------------------------------


def forgetting(run: Run) -> Markup:
    """Section: what the learner believed about forgetting, and the drift alarms."""
    told = [window for window in run.windows if window.half_life is not None]
    if not told:
        body: Markup | None = word(
            "This learner has no half-life: it does not say how fast it forgets."
        )
    elif all(window.half_life and len(window.half_life.half_lives) == 1 for window in told):
        body = _half_life_line(run)
    else:
        body = _posterior(run)
    return section("forgetting", "How fast it forgets", body, _alarms(run))


def _grid_of(run: Run) -> list[float]:
    lives = {h for window in run.windows if window.half_life for h in window.half_life.half_lives}
    return sorted(lives)


def _posterior(run: Run) -> Markup:
    lives = _grid_of(run)
    if len(lives) > _MANY_HALF_LIVES:
        return _half_life_line(run)
    time = Timeline(run, HEAT)
    table = np.array([time.mean(_weights_of(run, life)) for life in lives])
    rows = len(lives)
    ticks = tuple((i + 0.5, _never(life).replace(" ", "\n")) for i, life in enumerate(lives))
    figure = Figure(
        "Which half-life predicts best, by the learner's own account",
        _posterior_words(run, lives),
        rows_axis(run.rows),
        Axis(0, rows, ticks, "cells"),
        height=min(30 * rows, 360),
        css="heat",
    )
    edges = np.append(time.left, time.right[-1])
    figure.cells(edges, table, [_never(life) for life in lives], "forget")
    mark_alarms(figure, run)
    caption = join(
        [
            f"Half-lives in {life_unit(run)}; a longer one forgets more slowly. Probability ",
            scale("0", "1", "forget"),
            f" {alarm_key(run)}",
        ]
    )
    return figure.render(caption)


def _never(life: float) -> str:
    return "never forgets" if math.isinf(life) else fmt.half_life(life)


def _weights_of(run: Run, life: float) -> FloatArray:
    values = []
    for window in run.windows:
        held = window.half_life
        weights = dict(zip(held.half_lives, held.weights, strict=True)) if held else {}
        values.append(weights.get(life, 0.0) if held else math.nan)
    return np.array(values)


def _posterior_words(run: Run, lives: Sequence[float]) -> str:
    life, _ = typical_half_life(run)
    names = fmt.listed([_never(one) for one in lives])
    return (
        f"Heat map of the probability of each half-life ({names}) over {fmt.count(run.rows)} "
        f"rows. The median half-life over the stream is {_never(life)}."
    )


def _half_life_line(run: Run) -> Markup:
    life, fixed = typical_half_life(run)
    if fixed:
        text = (
            "nothing" if math.isinf(life) else f"half within {fmt.half_life(life)} {life_unit(run)}"
        )
        return word(f"The settings fix what is forgotten, all along the stream: {text}.")
    time = Timeline(run)
    held = [window.half_life for window in run.windows]
    lives = np.array([math.nan if h is None else _one(h.median, h.half_lives) for h in held])
    finite = lives[np.isfinite(lives)]
    ceiling = math.ceil(np.log10(finite.max()) + 1e-9) + 1 if finite.size else 1
    # "never" has no place on a logarithmic axis: it gets a line of its own above the others
    logs = np.where(np.isinf(lives), ceiling, np.log10(np.where(np.isfinite(lives), lives, 1.0)))
    logs = time.mean(np.where(np.isnan(lives), np.nan, logs))
    floor = math.floor(np.log10(finite.min()) + 1e-9) if finite.size else 0
    ticks = [(float(p), fmt.compact(10.0**p)) for p in range(floor, ceiling)]
    if np.isinf(lives).any():
        ticks.append((float(ceiling), "never\nforgets"))
    figure = Figure(
        f"Half-life in {life_unit(run)}",
        f"Line on a logarithmic axis; the median over the stream is {_never(life)}.",
        rows_axis(run.rows),
        Axis(floor, ticks[-1][0] if len(ticks) > 1 else floor + 1, tuple(ticks), "log"),
        height=190,
    )
    mark_alarms(figure, run)
    figure.line(time.middle, logs, "model", name="half-life", label="half-life")
    return figure.render("A row counts half after so long. The axis is logarithmic.")


def _one(median: float, lives: Sequence[float]) -> float:
    return lives[0] if math.isnan(median) else median


def _alarms(run: Run) -> Markup:
    alarms = [alarm for window in run.windows for alarm in window.drift]
    if not alarms:
        return word("No drift alarm was raised.")
    shown = alarms[:100]
    rows = [(fmt.count(a.row), fmt.percent(a.confidence, 0)) for a in shown]
    more = len(alarms) - len(shown)
    return details(
        f"{fmt.plural(len(alarms), 'drift alarm')}, with rows and confidence",
        table(("Row", "Confidence"), rows),
        word(f"… and {fmt.count(more)} more.") if more else None,
    )


# --- calibration ---------------------------------------------------------------------------------


def calibration(run: Run) -> Markup:
    """Section: whether the probabilities can be believed."""
    quarter = last_quarter(run)
    stretches = [("The whole stream", run.windows)]
    if len(quarter) < len(run.windows):
        stretches.append(("The last quarter", quarter))
    if run.classification:
        figures = [_reliability(title, windows, run) for title, windows in stretches]
        told = "Where the dots lie on the diagonal, a probability of 80% is right 80% of the time."
        none = "This learner gives no probabilities."
        over = None
    else:
        highest = max((_highest(windows) for _, windows in stretches), default=1.0)
        figures = [_pit(title, windows, highest) for title, windows in stretches]
        told = (
            "Where the value fell in the distribution that was predicted for it. Flat is right; a "
            "hill means intervals that are too wide, a valley intervals that are too narrow."
        )
        none = "This learner gives no predictive distribution."
        over = windowed(
            run, "coverage", "Share of values in the central 90% interval", 0.9, explain=False
        )
    figures = [figure for figure in figures if figure is not None]
    if not figures:
        return section("calibration", "Can its probabilities be believed?", word(none), over)
    return section(
        "calibration", "Can its probabilities be believed?", word(told), pair(*figures), over
    )


def _reliability(title: str, windows: Sequence[Window], run: Run) -> Markup | None:
    told = [window.reliability for window in windows if window.reliability is not None]
    if not told or len({one.shape for one in told}) != 1:
        return None
    count, confidence, right = np.sum(told, axis=0)
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
            "Across: the probability given to the predicted label; up: how often it was right, "
            "with 95% intervals. Bars: how often such a probability was given.",
        ]
    )
    return figure.render(caption)


def _wilson(right: FloatArray, count: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Wilson's 95% interval: unlike the plain one it stays within 0 and 1 in small bins."""
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


def _density(windows: Sequence[Window]) -> tuple[FloatArray, float] | None:
    """Histogram of the transform in times the fair share, and the number of rows in it."""
    told = [window.pit for window in windows if window.pit is not None]
    if not told or len({one.shape for one in told}) != 1:
        return None
    count = np.sum(told, axis=0)
    return (count / count.mean(), float(count.sum())) if count.sum() else None


def _highest(windows: Sequence[Window]) -> float:
    found = _density(windows)
    return 1.5 if found is None else max(1.5, float(found[0].max()))


def _pit(title: str, windows: Sequence[Window], highest: float) -> Markup | None:
    found = _density(windows)
    if found is None:
        return None
    density, rows = found
    coverage = pooled(windows, "coverage")
    ticks = tuple((v, f"{v:.0%}") for v in (0, 0.25, 0.5, 0.75, 1))
    figure = Figure(
        title,
        f"Histogram of the probability integral transform in {len(density)} bins; the fullest "
        f"holds {fmt.fixed(density.max(), 2)} times its fair share, the emptiest "
        f"{fmt.fixed(density.min(), 2)} times.",
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
            f", {fmt.count(rows)} rows. Up: times the fair share.",
        ]
    )
    return figure.render(caption)


# --- code length and cost ------------------------------------------------------------------------


def code_length(run: Run) -> Markup:
    """Section: the run as a compressor of the labels."""
    title = "Code length"
    ours = run.total("code_length")
    if math.isnan(ours):
        why = "regression" if not run.classification else "a learner without probabilities"
        return section("bits", title, word(f"The code length is not defined for {why}."))
    rows = [_bits(run, None, ours), *(_bits(run, name, ours) for name in run.baselines)]
    told = (
        "Bits that are needed to write down all labels with the help of the predictions: the sum "
        "of the log-losses in base 2. The shorter the code, the better the stream was understood."
    )
    head = ("", "Bits", "Bits a row", "Against the learner")
    return section("bits", title, word(told), table(head, rows, row_heads=True), _saved(run))


def _bits(run: Run, name: str | None, ours: float) -> tuple[str, ...]:
    bits = run.total("code_length", name)
    shown = run.learner if name is None else baseline_name(name)
    more = fmt.NOT_DEFINED if name is None or not ours > 0 else _more(bits / ours - 1)
    each = fmt.fixed(bits / run.n, 3) if run.n else fmt.NOT_DEFINED
    return fmt.shortened(shown, 40), fmt.count(bits), each, more


def _more(share: float) -> str:
    if math.isnan(share):
        return fmt.NOT_DEFINED
    return f"{fmt.percent(abs(share))} {'longer' if share >= 0 else 'shorter'}"


def _saved(run: Run) -> Markup | None:
    time = Timeline(run)
    ours = time.last(run.column("total.code_length"))
    curves = {n: time.last(run.column(f"{n}.total.code_length")) - ours for n in run.baselines}
    curves = {name: values for name, values in curves.items() if np.isfinite(values).any()}
    if not curves:
        return None
    values = np.concatenate([*curves.values(), [0.0]])
    figure = Figure(
        "Bits saved against the baselines",
        "Lines of the bits that the learner has saved so far against each baseline; rising means "
        "that it predicts better than the baseline.",
        rows_axis(run.rows),
        linear(float(np.nanmin(values)), float(np.nanmax(values))),
        height=180,
    )
    mark_alarms(figure, run)
    figure.across(0.0, "nominal")
    for name, saved in curves.items():
        shown = baseline_name(name)
        style = STYLES.get(name, "constant")
        figure.line(time.right, saved, style, name=f"against {shown}", label=shown)
    return figure.render(
        "Rising: the learner predicts better than this baseline there; falling: worse."
    )


def cost(run: Run) -> Markup:
    """Section: time and memory."""
    used, wall = run.clock("seconds"), run.clock("wall_seconds")
    parts = [f"{fmt.seconds(used)} to predict and learn {fmt.count(run.rows)} rows"]
    if not math.isnan(wall):
        parts.append(f"{fmt.seconds(wall)} in all, with reading and scoring")
    parts.append(f"at most {fmt.count(run.clock('memory_mb'))} MB of memory")
    figures = pair(
        _resource(run, "clock.rows_per_second", "Rows a second", True),
        _resource(run, "clock.memory_mb", "Memory in MB", False),
    )
    return section("cost", "What it cost", word(", ".join(parts) + "."), figures)


def _resource(run: Run, key: str, title: str, average: bool) -> Markup | None:
    time = Timeline(run)
    values = run.column(key)
    # a rate over several windows is their harmonic mean: rows by seconds
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
        rows_axis(run.rows),
        linear(0.0, hi),
        height=120,
        css="small",
    )
    figure.line(time.middle if average else time.right, shown, "model", name=title)
    if len(time) == 1:
        figure.dots(time.middle, shown, "model")
    return figure.render("A few extreme values lie outside the frame." if clipped else None)


# --- origin --------------------------------------------------------------------------------------


def origin(run: Run) -> Markup:
    """Section: everything that is needed to make the run again."""
    config = run.config
    stream = {k: v for k, v in run.stream.items() if k not in ("columns", "attribution")}
    end = run.end or {}
    counted = {k: end[k] for k in ("skipped", "infinite") if end.get(k) is not None}
    stream |= {"rows seen": run.rows, "rows scored": run.n, **counted}
    stream["rows without target"] = sum(window.missing for window in run.windows)
    params = config["learner"].get("params") or {}
    groups = [
        ("Data", stream),
        (run.learner, params if isinstance(params, dict) else {"params": params}),
        ("Protocol", config["protocol"]),
        ("Machine", {"kalstream": config.get("version", ""), **config["machine"]}),
    ]
    attribution = run.stream.get("attribution")
    return section(
        "origin",
        "How to make it again",
        tag("pre", tag("code", str(config.get("command") or "not recorded")), class_="command"),
        tag("div", *(_settings(title, values) for title, values in groups), class_="settings"),
        tag("p", tag("b", "Attribution. "), attribution, class_="prose") if attribution else None,
        _options(run),
        _columns(run),
    )


def _settings(title: str, values: dict[str, Any]) -> Markup:
    pairs = [
        tag("div", tag("dt", fmt.shortened(key, 60)), tag("dd", _setting(value)))
        for key, value in values.items()
    ]
    return tag("div", tag("h3", fmt.shortened(title, 60)), tag("dl", *pairs), class_="group")


def _setting(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return fmt.shortened(value, 300)
    if isinstance(value, int) and not isinstance(value, bool):
        return fmt.count(value) if abs(value) >= 10_000 else str(value)
    return fmt.shortened(json.dumps(value, ensure_ascii=False, default=str), 300)


def _options(run: Run) -> Markup | None:
    options = run.config.get("options")
    if not isinstance(options, dict) or not options:
        return None
    rows = [(fmt.shortened(key, 60), _setting(value)) for key, value in options.items()]
    return details("All options of the command", table(("Option", "Value"), rows, left=(1,)))


def _columns(run: Run) -> Markup | None:
    columns = run.stream.get("columns")
    if not isinstance(columns, list) or not columns:
        return None
    rows = [_column(one) for one in columns[:200]]
    more = len(columns) - len(rows)
    return details(
        fmt.plural(len(columns), "column"),
        table(("Column", "Kind"), rows, left=(1,)),
        word(f"… and {fmt.count(more)} more.") if more else None,
    )


def _column(value: object) -> tuple[str, str]:
    if isinstance(value, dict):
        return fmt.shortened(value.get("name", ""), 80), fmt.shortened(value.get("kind", ""), 40)
    return fmt.shortened(value, 80), ""


# --- pieces --------------------------------------------------------------------------------------


def details(summary: str, *children: object) -> Markup:
    """Something that opens on demand."""
    return tag("details", tag("summary", summary), *children)


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    row_heads: bool = False,
    left: Iterable[int] = (),
) -> Markup:
    """A table in a box of its own, that scrolls by itself where the screen is narrow.

    Parameters
    ----------
    head : sequence
        The heads of the columns.
    rows : iterable of sequence
        The cells.
    row_heads : bool
        Whether the first cell of a row is its head.
    left : collection of int
        The columns that hold words, not numbers.

    Returns
    -------
    Markup
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
