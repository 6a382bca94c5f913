"""Section on forgetting: half-lives over time, and drift alarms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kalstream.core.half_lives import weighted_median
from kalstream.report import format as fmt
from kalstream.report.axes import Axis, rows_axis
from kalstream.report.elements import Children, alarm_key, details, mark_alarms, prose, table
from kalstream.report.markup import Markup, join
from kalstream.report.read import FloatArray, RunRecord
from kalstream.report.svg import Figure, scale
from kalstream.report.timeline import HEAT, Timeline

HALVES = "In this time a weight that learns nothing halves; the learner's memory is shorter"
_MANY_HALF_LIVES = 24


def forgetting(run: RunRecord) -> Children:
    """Half-lives over time, and the drift alarms."""
    posteriors = [window.half_life for window in run.windows if window.half_life is not None]
    if not posteriors:
        body = prose("This learner has no half-life: it does not report how fast it forgets.")
    elif all(len(posterior.half_lives) == 1 for posterior in posteriors):
        body = _half_life_line(run)
    else:
        body = _posterior(run)
    return [body, _alarms(run)]


def _all_half_lives(run: RunRecord) -> list[float]:
    lives = {h for window in run.windows if window.half_life for h in window.half_life.half_lives}
    return sorted(lives)


def _posterior(run: RunRecord) -> Markup:
    """Heat map of the probability of each half-life."""
    lives = _all_half_lives(run)
    if len(lives) > _MANY_HALF_LIVES:
        return _half_life_line(run)
    time = Timeline(run, HEAT)
    weights = np.array([time.mean(_weights_of(run, life)) for life in lives])
    rows = len(lives)
    ticks = tuple((i + 0.5, _life_text(life).replace(" ", "\n")) for i, life in enumerate(lives))
    figure = Figure(
        "Probability of each half-life, as the learner reports it",
        _posterior_description(run, lives),
        rows_axis(run.rows, run.dates),
        Axis(0, rows, ticks, "cells"),
        height=min(30 * rows, 360),
        css="heat",
    )
    edges = np.append(time.left, time.right[-1])
    figure.cells(edges, weights, [_life_text(life) for life in lives], "forget")
    mark_alarms(figure, run)
    caption = join(
        [
            f"Half-lives in {life_unit(run)}. A longer one forgets more slowly. Probability ",
            scale("0", "1", "forget"),
            f" {alarm_key(run)}",
        ]
    )
    return figure.render(caption)


def _weights_of(run: RunRecord, life: float) -> FloatArray:
    """Weight of a half-life in every window; NaN where the learner has none."""
    values = []
    for window in run.windows:
        held = window.half_life
        weights = dict(zip(held.half_lives, held.weights, strict=True)) if held else {}
        values.append(weights.get(life, 0.0) if held else math.nan)
    return np.array(values)


def _posterior_description(run: RunRecord, lives: Sequence[float]) -> str:
    life, _ = typical_half_life(run)
    names = fmt.listed([_life_text(one) for one in lives])
    return (
        f"Heat map of the probability of each half-life ({names}) over {fmt.count(run.rows)} "
        f"rows. The median half-life over the stream is {_life_text(life)}."
    )


def _half_life_line(run: RunRecord) -> Markup:
    """Line of the half-life over time, or a sentence if it is fixed."""
    life, fixed = typical_half_life(run)
    if fixed and math.isinf(life):
        return prose("The settings fix the half-life: nothing is forgotten.")
    if fixed:
        return prose(f"The settings fix the half-life: {fmt.half_life(life)} {life_unit(run)}.")
    time = Timeline(run)
    held = [window.half_life for window in run.windows]
    lives = np.array([math.nan if h is None else h.typical for h in held])
    finite = lives[np.isfinite(lives)]
    ceiling = math.ceil(np.log10(finite.max()) + 1e-9) + 1 if finite.size else 1
    # an infinite half-life gets a mark of its own above the logarithmic axis
    logs = np.where(np.isinf(lives), ceiling, np.log10(np.where(np.isfinite(lives), lives, 1.0)))
    logs = time.mean(np.where(np.isnan(lives), np.nan, logs))
    floor = math.floor(np.log10(finite.min()) + 1e-9) if finite.size else 0
    ticks = [(float(p), fmt.compact(10.0**p)) for p in range(floor, ceiling)]
    if np.isinf(lives).any():
        ticks.append((float(ceiling), "never\nforgets"))
    figure = Figure(
        f"Half-life in {life_unit(run)}",
        f"Line on a logarithmic axis; the median over the stream is {_life_text(life)}.",
        rows_axis(run.rows, run.dates),
        Axis(floor, ticks[-1][0] if len(ticks) > 1 else floor + 1, tuple(ticks), "log"),
        height=190,
    )
    mark_alarms(figure, run)
    figure.line(time.middle, logs, "model", name="half-life", label="half-life")
    return figure.render(f"{HALVES}. The axis is logarithmic.")


def _life_text(life: float) -> str:
    return "never forgets" if math.isinf(life) else fmt.half_life(life)


def _alarms(run: RunRecord) -> Markup:
    alarms = run.alarms
    if not alarms:
        return prose("There was no drift alarm.")
    shown = alarms[:100]
    more = len(alarms) - len(shown)
    names: tuple[str, ...] = ("Row", "Confidence")
    rows = [[fmt.count(a.at), fmt.percent(a.confidence, 0)] for a in shown]
    if any(a.at != a.row for a in alarms):  # labels are late
        names = ("Raised at row", "Since row", "Confidence")
        rows = [[at, fmt.count(a.row), sure] for a, (at, sure) in zip(shown, rows, strict=True)]
    return details(
        f"{fmt.plural(run.n_alarms, 'drift alarm')}, with rows and confidence",
        table(names, rows),
        prose(f"… and {fmt.count(more)} more.") if more else None,
    )


def typical_half_life(run: RunRecord) -> tuple[float, bool]:
    """Typical half-life of the learner over the stream.

    Returns
    -------
    half_life : float
        Median of the windows' medians, weighted by their rows; NaN if there are none.
    fixed : bool
        Whether the settings fix it: it never changes.
    """
    windows = [(w.half_life, w.n) for w in run.windows if w.half_life is not None and w.n]
    if not windows:
        return math.nan, False
    typical, rows = [held.typical for held, _ in windows], [n for _, n in windows]
    single = all(len(held.half_lives) == 1 for held, _ in windows)
    fixed = single and len({tuple(held.half_lives) for held, _ in windows}) == 1
    return float(weighted_median(typical, rows)), fixed


def life_unit(run: RunRecord) -> str:
    """Unit of the half-lives."""
    unit = run.config["learner"]["params"].get("time_unit") if run.dates else None
    if isinstance(unit, int | float) and unit > 0:
        return f"units of {fmt.duration(unit)}"
    return "units of time" if run.timed else "rows"
