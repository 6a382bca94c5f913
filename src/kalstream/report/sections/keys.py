"""Section on keys: how strongly they differ, the cold start, and the best and worst ones."""

from __future__ import annotations

import math

import numpy as np

from kalstream.evaluate.keys import LEAST_ROWS, MOST_KEYS
from kalstream.report import format as fmt
from kalstream.report.axes import Axis, covering, linear
from kalstream.report.elements import OUTSIDE, Children, details, prose, table
from kalstream.report.markup import Markup
from kalstream.report.read import FloatArray, RunRecord
from kalstream.report.svg import Figure
from kalstream.runs.lines import KeySummary, Ranked


def keys(run: RunRecord) -> Children:
    """How many keys there are, how strongly they differ, and how well they are predicted."""
    about = None if run.end is None else run.end.keys
    if about is None:
        return [prose("The last line of metrics.jsonl has the keys, and it is not written yet.")]
    return [
        prose(f"{fmt.plural(about.n, 'key')}. {_difference(about)}"),
        _weights(about),
        _cold_start(run, about),
        _ranking("The keys predicted best", about.best),
        _ranking("The keys predicted worst", about.worst),
        _left_out(about),
    ]


def _difference(about: KeySummary) -> str:
    """How strongly keys differ, in words."""
    if about.spread is None:
        return "The learner does not say how strongly they differ."
    alike = sum(s.weight for s in about.spread_weights if s.intercepts == s.columns == 0.0)
    return (
        "What a key adds to a logit has a standard deviation of "
        f"{fmt.significant(about.spread)}. By the labels of all keys, the probability that keys "
        f"do not differ is {fmt.percent(alike)}."
    )


def _weights(about: KeySummary) -> Markup | None:
    """Table of the posterior over how strongly keys differ."""
    if not about.spread_weights:
        return None
    rows = [
        (
            fmt.significant(each.intercepts),
            fmt.significant(each.columns),
            fmt.half_life(each.half_life),
            fmt.percent(each.weight),
        )
        for each in about.spread_weights
    ]
    head = ("Intercepts", "Columns", "Half-life in rows of the key", "Probability")
    text = "Standard deviations between keys, of intercepts and of the part of the columns."
    return details("How strongly keys differ", prose(text), table(head, rows))


def _cold_start(run: RunRecord, about: KeySummary) -> Markup | None:
    """Figure of the log-loss by how many rows of a key had come before."""
    means = np.array([math.nan if step.log_loss is None else step.log_loss for step in about.curve])
    if not np.isfinite(means).any():
        return None
    names = _names([step.first for step in about.curve])
    places: FloatArray = np.arange(0.5, len(names))
    lo, hi, clipped = covering([means], [0.0])
    counts = [fmt.count(step.rows) for step in about.curve]
    ticks = tuple(zip(places.tolist(), names, strict=True))
    figure = Figure(
        "Log-loss by place of a row among those of its key",
        "; ".join(f"{n}: {fmt.significant(m)}" for n, m in zip(names, means, strict=True)) + ".",
        Axis(0, len(names), ticks),
        linear(lo, hi),
        height=160,
    )
    figure.across(run.total("log_loss"), "nominal")
    figure.line(places, means, "model", name="log-loss")
    figure.dots(places, means, "model")
    caption = f"Rows, from left to right: {fmt.listed(counts)}. The flat line is all rows."
    return figure.render(f"{caption} {OUTSIDE}" if clipped else caption)


def _names(firsts: list[int]) -> list[str]:
    """Names of the steps, such as 1, 2–5 and 101 and more, given the first row of each."""
    lasts = [after - 1 for after in firsts[1:]]
    spans = [str(a) if a == b else f"{a}–{b}" for a, b in zip(firsts, lasts, strict=False)]
    return [*spans, f"{firsts[-1]} and more"]


def _ranking(title: str, ranked: list[Ranked]) -> Markup | None:
    """Table of the best or the worst keys."""
    if not ranked:
        return None
    rows = [
        (fmt.shortened(each.key, 60), fmt.count(each.rows), fmt.significant(each.log_loss))
        for each in ranked
    ]
    return details(title, table(("Key", "Rows", "Log-loss"), rows, row_heads=True))


def _left_out(about: KeySummary) -> Markup | None:
    """Which keys and rows the section leaves out."""
    parts = []
    if not about.best:
        parts.append(f"No key has {LEAST_ROWS} rows that were scored, so none is listed here.")
    if about.later_rows:
        parts.append(
            f"{fmt.plural(about.later_rows, 'row')} of keys that came after the first "
            f"{fmt.count(MOST_KEYS)} are in no figure and no table here."
        )
    return prose(" ".join(parts)) if parts else None
