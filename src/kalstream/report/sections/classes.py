"""Section on classes: confusion matrices, recall over time, and first appearances."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kalstream.report import format as fmt
from kalstream.report.axes import Axis, linear, rows_axis
from kalstream.report.elements import Children, alarm_key, details, mark_alarms, prose, table
from kalstream.report.markup import Markup, join, tag
from kalstream.report.read import NOT_SCORED, FloatArray, IntArray, RunRecord
from kalstream.report.svg import LEVELS, Figure, scale
from kalstream.report.timeline import HEAT, Timeline

_SHOWN = 12  # classes that get a row of their own
_FREQUENT = 8  # of these: the most frequent ones; the others are those with the most mistakes
_PHASES = 4
_PAIRS = 10
_LEAST_UNPREDICTED = 0.002  # share of rows without a prediction that gets a column


@dataclass(frozen=True)
class Choice:
    """Classes that get a row of their own.

    Attributes
    ----------
    codes : list of int
        Their codes, in the order of appearance.
    names : list of str
        Their labels, and ``"others"`` at the end if there are more classes.
    rest : int
        Number of the other classes.
    """

    codes: list[int]
    names: list[str]
    rest: int


def _confusions(run: RunRecord) -> IntArray:
    """All confusions of a run (n, 4): window, true code, predicted code and number of rows."""
    sizes = [len(window.confusion) for window in run.windows]
    number = np.repeat(np.arange(len(sizes)), sizes)
    return np.column_stack([number, np.concatenate([window.confusion for window in run.windows])])


def choose(run: RunRecord, counted: IntArray) -> Choice:
    """Choose the classes that get a row of their own: frequent ones, and often confused ones.

    Parameters
    ----------
    run : RunRecord
        The run.
    counted : ndarray of shape (n, 4)
        Its confusions.
    """
    codes = np.unique(np.concatenate([counted[:, 1], counted[counted[:, 2] >= 0, 2]]))
    rows = _by_code(codes, counted[:, 1], counted[:, 3])
    wrong = counted[counted[:, 1] != counted[:, 2]]
    mistakes = _by_code(codes, wrong[:, 1], wrong[:, 3]) + _by_code(codes, wrong[:, 2], wrong[:, 3])
    if len(codes) <= _SHOWN:
        chosen = codes
    else:
        frequent = codes[np.argsort(-rows, kind="stable")[:_FREQUENT]]
        confused = [c for c in codes[np.argsort(-mistakes, kind="stable")] if c not in frequent]
        chosen = np.sort(np.concatenate([frequent, confused[: _SHOWN - _FREQUENT]]))
    names = [name_of(run, int(code)) for code in chosen]
    if len(set(names)) < len(names):  # the shortened labels are equal: add the codes
        names = [f"{name[:7]}… #{code}" for name, code in zip(names, chosen, strict=True)]
    rest = len(codes) - len(chosen)
    return Choice([int(code) for code in chosen], names + (["others"] if rest else []), rest)


def name_of(run: RunRecord, code: int) -> str:
    """Label of a class, short enough for an axis."""
    if code < 0:
        return "none"
    return fmt.shortened(run.labels.get(code, f"class {code}"), 14)


def _by_code(codes: IntArray, which: IntArray, times: IntArray) -> IntArray:
    """Number of rows of each code."""
    held = np.isin(which, codes)
    places = np.searchsorted(codes, which[held])
    return np.bincount(places, times[held], minlength=len(codes)).astype(np.int64)


def _places(choice: Choice, codes: IntArray) -> IntArray:
    """Row of each code in the tables: its own, or that of the others."""
    chosen = np.array(choice.codes)
    places = np.minimum(np.searchsorted(chosen, codes), len(chosen) - 1)
    return np.where(chosen[places] == codes, places, len(chosen))


def classes(run: RunRecord) -> Children:
    """Confusion matrices, recall over time, and first appearances of classes."""
    if not run.n:
        return [prose(NOT_SCORED)]
    counted = _confusions(run)
    if not len(counted):
        return [prose("The files hold no confusion matrix.")]
    choice = choose(run, counted)
    text = None
    if choice.rest:
        text = prose(
            f"Of {fmt.count(len(choice.codes) + choice.rest)} classes, this section shows the "
            f"{_FREQUENT} most frequent ones, and the {_SHOWN - _FREQUENT} of the rest with the "
            "most mistakes, in the order of their first appearance. “others” is the rest."
        )
    return [
        text,
        _phases(run, counted, choice),
        _worst(run, counted) if len(choice.codes) > 2 else None,
        _recall(run, counted, choice),
        _seen(run),
        _expected(run),
        _appearances(run),
    ]


def _phases(run: RunRecord, counted: IntArray, choice: Choice) -> Markup:
    """A confusion matrix for each quarter of the stream."""
    time = Timeline(run, min(_PHASES, len(run.windows)))
    group = time.group_of_window()[counted[:, 0]]
    without = counted[counted[:, 2] < 0, 3].sum()
    # the first row of a run has no prediction: it does not get a column of its own
    missed = bool(without >= _LEAST_UNPREDICTED * counted[:, 3].sum())
    if not missed:
        group, counted = group[counted[:, 2] >= 0], counted[counted[:, 2] >= 0]
    figures = []
    for i in range(len(time)):
        matrix = _matrix(counted[group == i], choice, missed)
        span = f"rows {fmt.count(time.left[i] + 1)}–{fmt.count(time.right[i])}"
        figures.append(_confusion(matrix, choice, span, missed))
    text = (
        "Each row of a table is a true class. The numbers are the percentages of its rows that "
        "were predicted as each column. Blue, on the diagonal, is right; orange is wrong."
    )
    if without and not missed:
        text += f" Without a prediction, and left out: {fmt.plural(int(without), 'row')}."
    if choice.rest:
        text += " Grey: within “others”, right and wrong are counted together."
    size = "few" if len(choice.names) <= 4 else "many"
    return join([tag("div", *figures, class_=f"phases {size}"), tag("p", text, class_="caption")])


def _matrix(counted: IntArray, choice: Choice, missed: bool) -> FloatArray:
    """Number of rows by true class and predicted class; the last column: no prediction."""
    size = len(choice.names)
    true = _places(choice, counted[:, 1])
    predicted = np.where(counted[:, 2] < 0, size, _places(choice, counted[:, 2]))
    matrix = np.zeros((size, size + 1))
    np.add.at(matrix, (true, predicted), counted[:, 3])
    return matrix if missed else matrix[:, :size]


def _confusion(matrix: FloatArray, choice: Choice, span: str, missed: bool) -> Markup:
    """A confusion matrix as a table."""
    heads = choice.names + (["none"] if missed else [])
    turned = "turned" if max(len(name) for name in heads) > 4 else None
    top = [tag("th", tag("span", name), scope="col", class_=turned) for name in heads]
    body = []
    for i, (name, values) in enumerate(zip(choice.names, matrix, strict=True)):
        total = values.sum()
        others = choice.rest and i == len(choice.codes)
        cells = [
            _cell(value, total, "mixed" if others and i == j else "right" if i == j else "wrong")
            for j, value in enumerate(values)
        ]
        body.append(tag("tr", tag("th", name, scope="row"), *cells))
    head = tag("tr", tag("td", "predicted →", tag("br"), "true ↓", class_="corner"), *top)
    return tag(
        "figure",
        tag("h3", span[0].upper() + span[1:]),
        tag(
            "div",
            tag("table", tag("thead", head), tag("tbody", *body), class_="confusion"),
            class_="scroll",
        ),
    )


def _cell(value: float, total: float, css: str) -> Markup:
    if not total:
        return tag("td", class_="empty")
    if not value:
        return tag("td", class_="zero")
    share = value / total
    level = round(LEVELS * share)
    text = f"{100 * share:.0f}" if share >= 0.005 else "<1"
    deep = " deep" if level >= LEVELS * 0.6 else ""
    return tag(
        "td",
        text,
        class_=f"{css} h{level}{deep}",
        title=f"{fmt.count(value)} of {fmt.count(total)} rows",
    )


def _worst(run: RunRecord, counted: IntArray) -> Markup | None:
    """Table of the most frequent mistakes."""
    wrong = counted[counted[:, 1] != counted[:, 2]]
    if not len(wrong):
        return prose("No row was predicted wrong.")
    codes = np.unique(counted[:, 1:3])
    # one number for each pair: sorting numbers is about twenty times faster than sorting pairs
    paired = np.searchsorted(codes, wrong[:, 1]) * len(codes) + np.searchsorted(codes, wrong[:, 2])
    pairs, where = np.unique(paired, return_inverse=True)
    times = np.bincount(where, wrong[:, 3])
    rows = dict(
        zip(codes.tolist(), _by_code(codes, counted[:, 1], counted[:, 3]).tolist(), strict=True)
    )
    lines = []
    for k in np.argsort(-times, kind="stable")[:_PAIRS]:
        true, predicted = (int(codes[place]) for place in divmod(int(pairs[k]), len(codes)))
        share = times[k] / rows[true] if rows[true] else math.nan
        shown = _full(run, true), _full(run, predicted)
        lines.append((*shown, fmt.count(times[k]), fmt.percent(share)))
    head = ("True class", "Predicted as", "Rows", "Of the class")
    return details("The most frequent mistakes", table(head, lines))


def _full(run: RunRecord, code: int) -> str:
    if code < 0:
        return "no prediction"
    return fmt.shortened(run.labels.get(code, f"class {code}"), 60)


def _recall(run: RunRecord, counted: IntArray, choice: Choice) -> Markup:
    """Heat map of the recall of each class."""
    time = Timeline(run, HEAT)
    group = time.group_of_window()[counted[:, 0]]
    size = len(choice.names)
    seen, right = np.zeros((size, len(time))), np.zeros((size, len(time)))
    line = _places(choice, counted[:, 1])
    np.add.at(seen, (line, group), counted[:, 3])
    hit = counted[:, 1] == counted[:, 2]
    np.add.at(right, (line[hit], group[hit]), counted[hit, 3])
    recall = np.where(seen > 0, right / np.where(seen > 0, seen, 1), np.nan)
    ticks = tuple((size - i - 0.5, name) for i, name in enumerate(choice.names))
    figure = Figure(
        "Recall of each class",
        f"Heat map: share of the rows of each of {size} classes that were predicted right, over "
        f"{fmt.count(run.rows)} rows.",
        rows_axis(run.rows, run.dates),
        Axis(0, size, ticks, "cells"),
        height=max(60, 24 * size),
        css="heat wide",
    )
    edges = np.append(time.left, time.right[-1])
    figure.cells(edges, recall[::-1], choice.names[::-1], "recall")
    mark_alarms(figure, run)
    _mark_new(figure, run, choice)
    caption = join(
        [
            "Share of a class's rows that were predicted right ",
            scale("0", "1", "recall"),
            " Empty: no rows. ",
            "◂ marks the first row of a class. "
            if any(w.new_classes for w in run.windows[1:])
            else "",
            alarm_key(run),
        ]
    )
    return figure.render(caption)


def _mark_new(figure: Figure, run: RunRecord, choice: Choice) -> None:
    """Mark the first row of each class that appeared after the first window."""
    later = [new for window in run.windows[1:] for new in window.new_classes]
    later = [new for new in later if new.code in choice.codes]
    places = [len(choice.names) - choice.codes.index(new.code) - 0.5 for new in later]
    rows = np.array([new.row for new in later], dtype=float)
    figure.texts(rows, np.array(places, dtype=float), ["◂"] * len(later), "appeared")


def _seen(run: RunRecord) -> Markup | None:
    """Figure of the number of classes over time, if there are too many to mark each."""
    if len(run.labels) <= _SHOWN or not any(window.new_classes for window in run.windows[1:]):
        return None
    time = Timeline(run)
    new = np.cumsum(time.sum(np.array([float(len(w.new_classes)) for w in run.windows])))
    figure = Figure(
        "Classes seen so far",
        f"Line that rises from {fmt.count(new[0])} to {fmt.count(new[-1])} classes.",
        rows_axis(run.rows, run.dates),
        linear(0, float(new[-1]), steps=3),
        height=120,
    )
    mark_alarms(figure, run)
    figure.line(time.right, new, "model", name="classes", label="classes")
    return figure.render()


def _expected(run: RunRecord) -> Markup | None:
    """Figure of the new classes that the learner expected and those that came, if it says so."""
    offered = [window.expected_new for window in run.windows]
    if not run.classification or all(value is None for value in offered):
        return None
    time = Timeline(run)
    expected = time.sum(np.array([value or 0.0 for value in offered]))
    came = time.sum(np.array([float(len(window.new_classes)) for window in run.windows]))
    total, all_came = fmt.compact(expected.sum()), fmt.plural(int(came.sum()), "class", "classes")
    figure = Figure(
        "New classes, expected and seen",
        f"Two lines: new classes that the learner expected, {total} in all, and {all_came} that "
        "appeared.",
        rows_axis(run.rows, run.dates),
        linear(0, max(expected.max(), came.max()), steps=3),
        height=120,
    )
    mark_alarms(figure, run)
    figure.line(time.right, came, "constant", name="appeared", label="appeared")
    figure.line(time.right, expected, "model", name="expected", label="expected")
    return figure.render(
        "Expected: the sum of the learner’s own probabilities that a row is of a class never seen. "
        f"In all it expected {total}, without the rows before its first label, and {all_came} "
        "appeared."
    )


def _appearances(run: RunRecord) -> Markup | None:
    """Table of the classes that appeared after the first window."""
    later = [new for window in run.windows[1:] for new in window.new_classes]
    if not later:
        return None
    lines = [(fmt.count(new.row), fmt.shortened(new.label, 60)) for new in later[:100]]
    more = len(later) - len(lines)
    return details(
        f"{fmt.plural(len(later), 'class', 'classes')} that appeared after the first window",
        table(("Row", "Class"), lines),
        prose(f"… and {fmt.count(more)} more.") if more else None,
    )
