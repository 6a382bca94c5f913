"""Scores of a stream so far: over all rows and over the current window, beside the baselines."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kalstream._arrays import Array
from kalstream.evaluate.adapters import Answer, known
from kalstream.evaluate.metrics import (
    LabelScore,
    Scored,
    Values,
    ValueScore,
    score_labels,
    scored_without_probabilities,
)
from kalstream.evaluate.naive import NaiveLabels, NaiveValues, sums_of, values_since
from kalstream.streams import Batch

_MANY: Final = 1 << 31  # more than any number of classes: a pair of codes is one number
# Targets (t,) that were learned while rows were predicted, before which of the rows each was, and
# the numbers of their own rows.
_Reveals = tuple[Array, Array, Sequence[int]]


@dataclass(frozen=True, slots=True)
class LatePrediction:
    """The prediction of a row whose target comes later.

    Attributes
    ----------
    labels : list
        Labels of the probabilities; empty for numbers.
    values : (K,)
        Probabilities, or mean and standard deviation.
    n_seen, n_known : int
        Labels that the learner had learned then; see `LabelTracker`.
    knowing : NaiveLabels or NaiveValues
        What the baselines knew then.
    place : (int, int)
        Number of the row among those that were asked for, and in the stream.
    """

    labels: list[Any]
    values: Array
    n_seen: int
    n_known: int
    knowing: Any
    place: tuple[int, int]


class LabelTracker:
    """Scores of labels.

    Attributes
    ----------
    codes : {label: code}
        In the order of their first appearance.
    ranks : list of int
        Place of each code in the order in which the learner learned the labels; very large if
        it has not learned the label.
    n_seen, n_known : int
        Labels, and different ones, that the learner has learned.
    late : bool
        Whether labels come after later rows were predicted.
    guesses : {row: code}
        If so: the last label that had come when the row was predicted, or -1, until its own comes.
    """

    def __init__(self) -> None:
        self.total, self.naive = LabelScore(), NaiveLabels()
        self.codes: dict[Any, int] = {}
        self.ranks: list[int] = []
        self.n_seen = self.n_known = 0
        self.snapshot: NaiveLabels | None = None
        self.late = False
        self.guesses: dict[int, int] = {}
        self.clear()

    @property
    def n(self) -> int:
        """Rows scored."""
        return self.total.n

    def clear(self) -> None:
        """Begin a window."""
        self.recent = LabelScore()
        self.naive_before = sums_of(self.naive)
        self.confusion: dict[int, int] = {}
        self.new_classes: list[dict[str, Any]] = []
        self.expected_new: float | None = None
        self.missing = 0

    def score(self, batch: Batch, answer: Answer, revealed: _Reveals | None = None) -> Scored:
        """Score an answer; revealed: targets learned before some of the rows were predicted.

        Rows before the first learned label are left out: no label was known then.
        """
        there = known(batch.targets)
        self.missing += len(there) - int(there.sum())
        codes = self._codes(batch, there)
        n_seen, n_known = np.full((2, len(codes)), [[self.n_seen], [self.n_known]])
        reveals = self._reveals(revealed)
        due, before, own = next(reveals)
        for i, (row, code) in enumerate(
            zip(np.flatnonzero(there).tolist(), codes.tolist(), strict=True)
        ):
            while before <= row:
                self._learn(due, self.guesses.pop(own, None))
                due, before, own = next(reveals)
            if self.late:
                self.guesses[batch.start + row] = self.naive.last
            n_seen[i], n_known[i] = self.n_seen, self.n_known
            if self.n_seen:
                self.naive.score(code)
        while before < _MANY:
            self._learn(due, self.guesses.pop(own, None))
            due, before, own = next(reveals)
        if len(codes) and not n_seen[0]:
            there[np.flatnonzero(there)[n_seen == 0]] = False
            codes, n_seen, n_known = (each[n_seen > 0] for each in (codes, n_seen, n_known))
        if answer.probabilities is None:
            labels = answer.point_predictions()[there].tolist()
            predicted = np.array([self.codes.get(label, -1) for label in labels], np.int64)
            scored = scored_without_probabilities(codes, predicted)
        else:
            p = self._in_codes(answer.labels or [], answer.probabilities)
            new = None if answer.new is None else answer.new[there]
            scored = score_labels(codes, p[there], np.array(self.ranks), n_seen, n_known, new)
            if new is not None:
                self.expected_new = (self.expected_new or 0.0) + float(new.sum())
        return self._added(scored)

    def _reveals(self, revealed: _Reveals | None) -> Iterator[tuple[int, int, int]]:
        """Code of each revealed label, how many rows come before it, and its row; then no more."""
        if revealed is not None:
            for label, place, row in zip(
                revealed[0].tolist(), revealed[1].tolist(), revealed[2], strict=True
            ):
                if label is not None:
                    yield self.codes[label], place, row
        yield -1, _MANY, -1

    def _added(self, scored: Scored) -> Scored:
        self.total.add(scored)
        self.recent.add(scored)
        pairs, counts = np.unique(scored.codes * _MANY + scored.predicted + 1, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            self.confusion[pair] = self.confusion.get(pair, 0) + count
        return scored

    # ---- rows whose labels come later -----------------------------------------------------

    def late_prediction(self, answer: Answer, row: int, place: tuple[int, int]) -> LatePrediction:
        """The prediction of a row of an answer, to be scored later."""
        assert answer.probabilities is not None
        knowing = _snapshot(self)
        values = answer.probabilities[row]
        return LatePrediction(
            answer.labels or [], values, self.n_seen, self.n_known, knowing, place
        )

    def reveal_one(self, batch: Batch, row: int, prediction: LatePrediction) -> int:
        """Take in a label, that of one row of a batch, after its prediction; returns its code."""
        (code,) = self._codes(batch[row : row + 1], np.array([True])).tolist()
        self._learn(code, prediction.knowing.last)
        return code

    def score_late(self, judged: list[tuple[LatePrediction, int]]) -> Scored:
        """Score predictions of rows whose labels have come: each with the code of its label."""
        judged = [(prediction, code) for prediction, code in judged if prediction.n_seen]
        p = np.zeros((len(judged), len(self.codes)))
        for i, (prediction, code) in enumerate(judged):
            self.naive.score(code, prediction.knowing)
            for label, value in zip(prediction.labels, prediction.values.tolist(), strict=True):
                if (column := self.codes.get(label, -1)) >= 0:
                    p[i, column] = value
        codes = np.array([code for _, code in judged], np.int64)
        n_seen = np.array([prediction.n_seen for prediction, _ in judged], np.int64)
        n_known = np.array([prediction.n_known for prediction, _ in judged], np.int64)
        return self._added(score_labels(codes, p, np.array(self.ranks), n_seen, n_known))

    def begin_with(self, state: dict[str, Any] | None, classes: list[Any]) -> None:
        """Begin with labels that were learned before: those of a state, or each seen once."""
        if state is not None:
            names = {"counts", "n", "repeats", "judged", "last", "top"} & state["simple"].keys()
            self.naive.restore(copy.deepcopy({name: state["simple"][name] for name in names}))
            # A label without a count was never revealed: it is not known yet.
            labels = state["codes"][: len(self.naive.counts)]
            self.codes = {label: code for code, label in enumerate(labels)}
            self.ranks = list(state["ranks"][: len(labels)])
            self.n_seen, self.n_known = state["n_seen"], state["n_known"]
        for label in classes:
            code = self.codes.setdefault(label, len(self.codes))
            if code == len(self.ranks):
                self.ranks.append(_MANY)
            if self.ranks[code] == _MANY:
                self._learn(code)
        self.clear()

    def reveal(self, batch: Batch, *, learned: bool) -> None:
        """Take in the labels of rows: the baselines learn them, and the learner if ``learned``."""
        there = known(batch.targets)
        rows = (batch.start + np.flatnonzero(there)).tolist()
        for row, code in zip(rows, self._codes(batch, there).tolist(), strict=True):
            guess = self.guesses.pop(row, None)
            if learned:
                self._learn(code, guess)
            else:
                self.naive.learn(code, guess)

    def learn(self, targets: Array, rows: Sequence[int]) -> None:
        """Take in labels of rows that come late, at the end of the stream."""
        for code, before, row in self._reveals((targets, np.zeros(len(rows), np.int64), rows)):
            if before < _MANY:
                self._learn(code, self.guesses.pop(row, None))

    def _learn(self, code: int, guess: int | None = None) -> None:
        self.naive.learn(code, guess)
        self.n_seen += 1
        if self.ranks[code] == _MANY:
            self.ranks[code] = self.n_known
            self.n_known += 1

    def _codes(self, batch: Batch, there: Array) -> Array:
        """Codes of the rows that have a label; a new label gets the next code."""
        codes = []
        for row, label in enumerate(batch.targets.tolist(), batch.start):
            if not there[row - batch.start]:
                continue
            code = self.codes.get(label)
            if code is None:
                code = self.codes[label] = len(self.codes)
                self.ranks.append(_MANY)
                self.new_classes.append({"code": code, "label": label, "row": row})
            codes.append(code)
        return np.array(codes, np.int64)

    def _in_codes(self, labels: list[Any], probabilities: Array) -> Array:
        """Probabilities (b, K) with codes for columns; labels that never came have none."""
        columns = [self.codes.get(label, -1) for label in labels]
        out = np.zeros((len(probabilities), len(self.codes)))
        for k, code in enumerate(columns):
            if code >= 0:
                out[:, code] = probabilities[:, k]
        return out

    def values(self) -> Values:
        """Metrics over all rows."""
        return self.total.values(self.naive.values())

    def line(self) -> dict[str, Any]:
        """Its part of the line of a window."""
        now, recent = self.naive.values(), values_since(self.naive, self.naive_before)
        return {
            "n": self.recent.n,
            "window": self.recent.values(recent, window=True),
            "total": self.values(),
            "baselines": {name: {"window": recent[name], "total": now[name]} for name in now},
            "new_classes": self.new_classes,
            **self._expected(),
            "confusion": [
                [pair // _MANY, pair % _MANY - 1, count]
                for pair, count in sorted(self.confusion.items())
            ],
            "reliability": self.recent.reliability(),
            "missing": self.missing,
        }

    def _expected(self) -> dict[str, float]:
        """How many new classes the learner expected in the window, if it says so."""
        return {} if self.expected_new is None else {"expected_new": self.expected_new}

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            **_common_state(self),
            "new_classes": list(self.new_classes),
            **self._expected(),
            "codes": list(self.codes),
            "confusion": list(self.confusion.items()),
            "ranks": list(self.ranks),
            "n_seen": self.n_seen,
            "n_known": self.n_known,
            **({"guesses": list(self.guesses.items())} if self.late else {}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        _restore_common(self, state)
        self.n_seen, self.n_known = state["n_seen"], state["n_known"]
        self.ranks = list(state["ranks"])
        self.new_classes = list(state["new_classes"])
        self.expected_new = state.get("expected_new")
        self.codes = {label: code for code, label in enumerate(state["codes"])}
        self.confusion = dict(state["confusion"])
        self.guesses = dict(state.get("guesses", ()))


class ValueTracker:
    """Scores of numbers."""

    codes: Mapping[Any, int] = {}  # there are no classes
    late = False  # as of `LabelTracker`; it makes no difference

    def __init__(self) -> None:
        self.total, self.naive = ValueScore(), NaiveValues()
        self.snapshot: NaiveValues | None = None
        self.clear()

    @property
    def n(self) -> int:
        """Rows scored."""
        return self.total.n

    def clear(self) -> None:
        """Begin a window."""
        self.recent = ValueScore()
        self.naive_before = sums_of(self.naive)
        self.missing = 0

    def score(self, batch: Batch, answer: Answer, revealed: _Reveals | None = None) -> None:
        """Score an answer; revealed: targets learned before some rows were predicted."""
        there = known(batch.targets)
        self.missing += len(there) - int(there.sum())
        targets, mean = batch.targets[there], answer.point_predictions()[there]
        learned, before = (
            ([], []) if revealed is None else (revealed[0].tolist(), revealed[1].tolist())
        )
        k = 0
        for row, value in zip(np.flatnonzero(there).tolist(), targets.tolist(), strict=True):
            while k < len(before) and before[k] <= row:
                self._learn(learned[k])
                k += 1
            self.naive.score(value)
        for value in learned[k:]:
            self._learn(value)
        std = None if answer.std is None else answer.std[there]
        self.total.add(targets, mean, std)
        self.recent.add(targets, mean, std)

    def learn(self, targets: Array, rows: Sequence[int]) -> None:
        """Take in targets of rows that come late, at the end of the stream."""
        for value in targets.tolist():
            self._learn(value)

    def _learn(self, value: float) -> None:
        if value == value:
            self.naive.learn(value)

    # ---- rows whose targets come later ----------------------------------------------------

    def late_prediction(self, answer: Answer, row: int, place: tuple[int, int]) -> LatePrediction:
        """The prediction of a row of an answer, to be scored later."""
        assert answer.predictions is not None
        assert answer.std is not None
        values = np.array([answer.predictions[row], answer.std[row]])
        return LatePrediction([], values, 0, 0, _snapshot(self), place)

    def reveal_one(self, batch: Batch, row: int, prediction: LatePrediction) -> float:
        """Take in the target of one row of a batch, and return it."""
        value = float(batch.targets[row])
        self.naive.learn(value)
        return value

    def score_late(self, judged: list[tuple[LatePrediction, float]]) -> None:
        """Score predictions of rows whose targets have come."""
        for prediction, value in judged:
            self.naive.score(value, prediction.knowing)
        targets = np.array([value for _, value in judged])
        values = np.array([prediction.values for prediction, _ in judged]).reshape(-1, 2)
        self.total.add(targets, values[:, 0], values[:, 1])
        self.recent.add(targets, values[:, 0], values[:, 1])

    def begin_with(self, state: dict[str, Any] | None, classes: list[Any]) -> None:
        """Begin with the baselines of a state, whose scores do not count."""
        if state is not None:
            for name in ("n", "last", "mean"):
                setattr(self.naive, name, state["simple"][name])

    def reveal(self, batch: Batch, *, learned: bool) -> None:
        """Take in the targets of rows: the baselines learn them."""
        for value in batch.targets[known(batch.targets)].tolist():
            self.naive.learn(value)

    def values(self) -> Values:
        """Metrics over all rows."""
        # Numbers have no code length, but readers of totals find the key for both tasks.
        return {**self.total.values(self.naive.values()), "code_length": None}

    def line(self) -> dict[str, Any]:
        """Its part of the line of a window."""
        now, recent = self.naive.values(), values_since(self.naive, self.naive_before)
        has_density = self.recent.n_density > 0
        return {
            "n": self.recent.n,
            "window": self.recent.values(recent, window=True),
            "total": self.values(),
            "baselines": {name: {"window": recent[name], "total": now[name]} for name in now},
            "new_classes": [],
            "confusion": [],
            "pit": {"count": self.recent.pit.tolist()} if has_density else None,
            "missing": self.missing,
        }

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return _common_state(self)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        _restore_common(self, state)


Tracker = LabelTracker | ValueTracker


def _snapshot(tracker: Tracker) -> Any:
    """What the baselines know now; the same object until they learn more."""
    last = tracker.snapshot
    if last is None or last.n != tracker.naive.n:
        last = copy.copy(tracker.naive)
        last.sums = {}
        if isinstance(last, NaiveLabels):
            last.counts = list(last.counts)
        tracker.snapshot = last
    return last


def saved(waiting: Mapping[Any, LatePrediction]) -> dict[str, Any]:
    """Predictions of rows that wait, by id, as JSON; what they share is written once."""
    labels: dict[tuple[Any, ...], int] = {}
    knowing: dict[int, tuple[int, Any]] = {}
    rows = []
    for key, prediction in waiting.items():
        names = labels.setdefault(tuple(prediction.labels), len(labels))
        naive, _ = knowing.setdefault(id(prediction.knowing), (len(knowing), prediction.knowing))
        values = [None if value != value else value for value in prediction.values.tolist()]
        values = ["inf" if value == math.inf else value for value in values]
        rows.append(
            [key, names, values, prediction.n_seen, prediction.n_known, naive, *prediction.place]
        )
    return {
        "waiting": rows,
        "labels": list(map(list, labels)),
        "knowing": [copy.deepcopy(vars(each)) for _, each in knowing.values()],
    }


def restored(state: dict[str, Any], tracker: Tracker) -> dict[Any, LatePrediction]:
    """Restore what `saved` returned."""
    knowing = []
    for attributes in state["knowing"]:
        then = type(tracker.naive)()
        then.restore(attributes)
        knowing.append(then)
    waiting = {}
    for key, names, values, n_seen, n_known, naive, *place in state["waiting"]:
        numbers = np.array([math.nan if value is None else float(value) for value in values])
        number, row = place or (-1, -1)  # not in earlier files
        about = state["labels"][names], numbers, n_seen, n_known, knowing[naive]
        waiting[key] = LatePrediction(*about, (number, row))
    if knowing:
        tracker.snapshot = knowing[-1]
    return waiting


def _common_state(tracker: Tracker) -> dict[str, Any]:
    """State that both trackers have; the keys are those of the file of a checkpoint."""
    return {
        "simple_before": tracker.naive_before,
        "missing": tracker.missing,
        "total": tracker.total.state(),
        "recent": tracker.recent.state(),
        "simple": copy.deepcopy(vars(tracker.naive)),
    }


def _restore_common(tracker: Tracker, state: dict[str, Any]) -> None:
    tracker.naive_before, tracker.missing = state["simple_before"], state["missing"]
    tracker.total.restore(state["total"])
    tracker.recent.restore(state["recent"])
    tracker.naive.restore(copy.deepcopy(state["simple"]))
