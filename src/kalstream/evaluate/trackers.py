"""What is remembered of a stream's predictions: one judge for labels, one for numbers."""

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
    ValueScore,
    score_labels,
    scored_without_probabilities,
)
from kalstream.evaluate.naive import SimpleLabels, SimpleValues, since, sums_of
from kalstream.streams import Batch

Array = NDArray[Any]
Values = dict[str, float | None]

_MANY: Final = 1 << 31  # more than there are classes: a pair of codes is one number


class LabelJudge:
    """Scores labels: over all rows, over a window, and beside the simple predictors.

    Attributes
    ----------
    codes : {label: code}
        In the order of their first appearance.
    ranks : list of int
        For each code, how many other labels the learner knew before it; large if it does not.
    n_seen, n_known : int
        Labels, and different ones, that the learner has learned.
    """

    def __init__(self) -> None:
        self.total, self.simple = LabelScore(), SimpleLabels()
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
        self.simple_before = sums_of(self.simple)
        self.confusion: dict[int, int] = {}
        self.new_classes: list[dict[str, Any]] = []
        self.missing = 0

    def score(self, batch: Batch, answer: Answer, *, row_by_row: bool) -> Scored:
        """Score an answer; row_by_row: each row was learned before the next was predicted.

        Rows that come before any label was learned are left out: nothing is known about them.
        """
        there = known(batch.targets)
        self.missing += len(there) - int(there.sum())
        codes = self._codes(batch, there)
        n_seen, n_known = np.full((2, len(codes)), [[self.n_seen], [self.n_known]])
        for i, code in enumerate(codes.tolist()):
            if row_by_row:
                n_seen[i], n_known[i] = self.n_seen, self.n_known
            if n_seen[i]:
                self.simple.score(code)
            if row_by_row:
                self._learn(code)
        if len(codes) and not n_seen[0]:
            there[np.flatnonzero(there)[n_seen == 0]] = False
            codes, n_seen, n_known = (each[n_seen > 0] for each in (codes, n_seen, n_known))
        if answer.probabilities is None:
            said = [self.codes.get(label, -1) for label in answer.said()[there].tolist()]
            scored = scored_without_probabilities(codes, np.array(said, np.int64))
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
        """The labels of rows become known, to the learner if it learned them."""
        for code in self._codes(batch, known(batch.targets)).tolist():
            if learned:
                self._learn(code)
            else:
                self.simple.learn(code)

    def _learn(self, code: int) -> None:
        self.simple.learn(code)
        self.n_seen += 1
        if self.ranks[code] == _MANY:
            self.ranks[code] = self.n_known
            self.n_known += 1

    def _codes(self, batch: Batch, there: Array) -> Array:
        """Codes of the rows that have a label; a new label gets the next."""
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
        total = self.total.values()
        kappa = _kappa(total, self.simple.values())
        return {**total, "kappa_no_change": kappa, "code_length": self.total.code_length}

    def line(self) -> dict[str, Any]:
        """Its part of a line about the window."""
        now, recent = self.simple.values(), since(self.simple, self.simple_before)
        window = self.recent.values()
        window["kappa_no_change"] = _kappa(window, recent)
        for each in recent.values():
            del each["code_length"]
        return {
            "n": self.recent.n,
            "window": window,
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
            **{name: getattr(self, name) for name in _KEPT},
            "new_classes": list(self.new_classes),
            "codes": list(self.codes),
            "confusion": list(self.confusion.items()),
            "ranks": list(self.ranks),
            "n_seen": self.n_seen,
            "n_known": self.n_known,
            **_scores(self),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        _restore(self, state)
        self.n_seen, self.n_known = state["n_seen"], state["n_known"]
        self.ranks = list(state["ranks"])
        self.new_classes = list(state["new_classes"])
        self.codes = {label: code for code, label in enumerate(state["codes"])}
        self.confusion = dict(state["confusion"])


class ValueJudge:
    """Scores numbers: over all rows, over a window, and beside the simple predictors."""

    def __init__(self) -> None:
        self.total, self.simple = ValueScore(), SimpleValues()
        self.clear()

    codes: Mapping[Any, int] = {}

    @property
    def n(self) -> int:
        """Rows scored."""
        return self.total.n

    def clear(self) -> None:
        """Begin a window."""
        self.recent = ValueScore()
        self.simple_before = sums_of(self.simple)
        self.missing = 0

    def score(self, batch: Batch, answer: Answer, *, row_by_row: bool) -> None:
        """Score an answer; row_by_row: each row was learned before the next was predicted."""
        there = known(batch.targets)
        self.missing += len(there) - int(there.sum())
        targets, mean = batch.targets[there], answer.said()[there]
        for value in targets.tolist():
            self.simple.score(value)
            if row_by_row:
                self.simple.learn(value)
        std = None if answer.std is None else answer.std[there]
        self.total.add(targets, mean, std)
        self.recent.add(targets, mean, std)

    def reveal(self, batch: Batch, *, learned: bool) -> None:
        """The targets of rows become known."""
        for value in batch.targets[known(batch.targets)].tolist():
            self.simple.learn(value)

    def values(self) -> Values:
        """Metrics over all rows."""
        return {**self.total.values(), "code_length": None}

    def line(self) -> dict[str, Any]:
        """Its part of a line about the window."""
        now, recent = self.simple.values(), since(self.simple, self.simple_before)
        said = self.recent.n_density > 0
        return {
            "n": self.recent.n,
            "window": self.recent.values(),
            "total": self.values(),
            "baselines": {name: {"window": recent[name], "total": now[name]} for name in now},
            "new_classes": [],
            "confusion": [],
            "pit": {"count": self.recent.pit.tolist()} if said else None,
            "missing": self.missing,
        }

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {**{name: getattr(self, name) for name in _KEPT}, **_scores(self)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        _restore(self, state)


Judge = LabelJudge | ValueJudge
_KEPT: Final = ("simple_before", "missing")


def _scores(judge: Judge) -> dict[str, Any]:
    simple = copy.deepcopy(vars(judge.simple))
    return {"total": judge.total.state(), "recent": judge.recent.state(), "simple": simple}


def _restore(judge: Judge, state: dict[str, Any]) -> None:
    for name in _KEPT:
        setattr(judge, name, state[name])
    judge.total.restore(state["total"])
    judge.recent.restore(state["recent"])
    vars(judge.simple).update(copy.deepcopy(state["simple"]))


def _kappa(own: Values, simple: dict[str, Values]) -> float | None:
    """How much of what no-change misses is got right."""
    accuracy, least = own["accuracy"], simple["no_change"]["accuracy"]
    if accuracy is None or least is None or least >= 1.0:
        return None
    return (accuracy - least) / (1.0 - least)
