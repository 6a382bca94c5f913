"""Scores of a stream so far: over all rows and over the current window, beside the baselines."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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

Array = NDArray[Any]

_MANY: Final = 1 << 31  # more than any number of classes: a pair of codes is one number


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
    """

    def __init__(self) -> None:
        self.total, self.naive = LabelScore(), NaiveLabels()
        self.codes: dict[Any, int] = {}
        self.ranks: list[int] = []
        self.n_seen = self.n_known = 0
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
        self.missing = 0

    def score(self, batch: Batch, answer: Answer, *, row_by_row: bool) -> Scored:
        """Score an answer; row_by_row: each row was learned before the next was predicted.

        Rows before the first learned label are left out: no label was known then.
        """
        there = known(batch.targets)
        self.missing += len(there) - int(there.sum())
        codes = self._codes(batch, there)
        n_seen, n_known = np.full((2, len(codes)), [[self.n_seen], [self.n_known]])
        for i, code in enumerate(codes.tolist()):
            if row_by_row:
                n_seen[i], n_known[i] = self.n_seen, self.n_known
            if n_seen[i]:
                self.naive.score(code)
            if row_by_row:
                self._learn(code)
        if len(codes) and not n_seen[0]:
            there[np.flatnonzero(there)[n_seen == 0]] = False
            codes, n_seen, n_known = (each[n_seen > 0] for each in (codes, n_seen, n_known))
        if answer.probabilities is None:
            labels = answer.point_predictions()[there].tolist()
            predicted = np.array([self.codes.get(label, -1) for label in labels], np.int64)
            scored = scored_without_probabilities(codes, predicted)
        else:
            p = self._in_codes(answer.labels or [], answer.probabilities)
            scored = score_labels(codes, p[there], np.array(self.ranks), n_seen, n_known)
        self.total.add(scored)
        self.recent.add(scored)
        pairs, counts = np.unique(codes * _MANY + scored.predicted + 1, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            self.confusion[pair] = self.confusion.get(pair, 0) + count
        return scored

    def reveal(self, batch: Batch, *, learned: bool) -> None:
        """Take in the labels of rows: the baselines learn them, and the learner if ``learned``."""
        for code in self._codes(batch, known(batch.targets)).tolist():
            if learned:
                self._learn(code)
            else:
                self.naive.learn(code)

    def _learn(self, code: int) -> None:
        self.naive.learn(code)
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
            "confusion": [
                [pair // _MANY, pair % _MANY - 1, count]
                for pair, count in sorted(self.confusion.items())
            ],
            "reliability": self.recent.reliability(),
            "missing": self.missing,
        }

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            **_common_state(self),
            "new_classes": list(self.new_classes),
            "codes": list(self.codes),
            "confusion": list(self.confusion.items()),
            "ranks": list(self.ranks),
            "n_seen": self.n_seen,
            "n_known": self.n_known,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        _restore_common(self, state)
        self.n_seen, self.n_known = state["n_seen"], state["n_known"]
        self.ranks = list(state["ranks"])
        self.new_classes = list(state["new_classes"])
        self.codes = {label: code for code, label in enumerate(state["codes"])}
        self.confusion = dict(state["confusion"])


class ValueTracker:
    """Scores of numbers."""

    codes: Mapping[Any, int] = {}  # there are no classes

    def __init__(self) -> None:
        self.total, self.naive = ValueScore(), NaiveValues()
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

    def score(self, batch: Batch, answer: Answer, *, row_by_row: bool) -> None:
        """Score an answer; row_by_row: each row was learned before the next was predicted."""
        there = known(batch.targets)
        self.missing += len(there) - int(there.sum())
        targets, mean = batch.targets[there], answer.point_predictions()[there]
        for value in targets.tolist():
            self.naive.score(value)
            if row_by_row:
                self.naive.learn(value)
        std = None if answer.std is None else answer.std[there]
        self.total.add(targets, mean, std)
        self.recent.add(targets, mean, std)

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
    vars(tracker.naive).update(copy.deepcopy(state["simple"]))
