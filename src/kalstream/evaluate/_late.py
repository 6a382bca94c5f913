"""Targets that come after the next row: which of them are due, and rows that have ids.

`LateTargets` is for streams that hold each target beside its row: the target comes some rows, or
some time, after its row was predicted. `NamedRows` is for streams in which a later row brings it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from kalstream._arrays import Array
from kalstream.errors import InvalidInput
from kalstream.evaluate._forgetting import Place
from kalstream.evaluate.adapters import Answer, known
from kalstream.evaluate.metrics import Scored
from kalstream.evaluate.trackers import LatePrediction, Tracker, restored, saved
from kalstream.streams import Batch


@dataclass(frozen=True, slots=True)
class DueTargets:
    """Targets that come while rows are asked for.

    Attributes
    ----------
    ids : list of t ids
        By default the numbers of their rows.
    targets : (t,)
    before : (t,)
        How many of the rows that are asked for come before each.
    """

    ids: list[Any]
    targets: Array
    before: Array

    def place(self, row: int, start: int) -> Place | None:
        """Where an alarm of the target of a row was raised, if rows from ``start`` on came."""
        if row not in self.ids:
            return None
        return Place(row, start + int(self.before[self.ids.index(row)]) - 1)


class _LastTime:
    """The time of the last row, which later ones must not precede."""

    time: float | None = None

    def check_times(self, batch: Batch) -> None:
        """Refuse rows that come before earlier ones, as those of another pipe may."""
        if batch.times is None or not len(batch):
            return
        first = float(np.fmin.reduce(batch.times))
        if self.time is not None and first < self.time:
            raise InvalidInput(
                f"time decreases from {self.time:.17g} to {first:.17g} after row {batch.start}; "
                "sort the rows by time"
            )

    def note_times(self, batch: Batch) -> None:
        """Note the time of the last row."""
        if batch.times is not None:
            before = -np.inf if self.time is None else self.time
            time = float(np.fmax.reduce(batch.times, initial=before))
            self.time = None if time == -np.inf else time


class LateTargets(_LastTime):
    """Targets that are known to the stream, but come late.

    Each target has an arrival: the row, or the time, from which on it may be learned.

    Parameters
    ----------
    chunk : int
    delay : int or float
        In rows, or on the clock of the stream.
    timed : bool
        Whether targets arrive at a time.
    labelled : bool
        Whether the stream says when each target comes; ``delay`` then has no meaning.

    Attributes
    ----------
    at_end : int
        Targets that were learned after the last row, because the stream ended.
    missing : int
        Rows that wait no more, because the stream has no target for them.
    """

    def __init__(self, chunk: int, delay: float, *, timed: bool, labelled: bool) -> None:
        self.chunk, self.delay, self.timed, self.labelled = chunk, delay, timed, labelled
        self.rows = np.empty(0, np.int64)
        self.arrivals = np.empty(0)
        self.targets: Array | None = None
        self.at_end = self.missing = 0

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, batch: Batch) -> Batch:
        """A batch without the targets that never come."""
        if not self.labelled:
            return batch
        assert batch.label_times is not None
        never = np.isnan(batch.label_times)
        if not never.any():
            return batch
        targets = batch.targets.copy()
        targets[never] = None
        return replace(batch, targets=targets)

    def due(self, batch: Batch) -> tuple[DueTargets, Callable[[], None]]:
        """Targets to tell while the rows of a batch are asked for; and what to do when it is done.

        A target that arrives at a time comes before the first row, after its own, whose time is
        not earlier; targets of the same time in the order of their rows.
        """
        n, own = len(batch), np.arange(len(batch))
        rows = np.concatenate([self.rows, batch.start + own])
        arrivals = np.concatenate([self.arrivals, self._arrivals(batch)])
        targets = batch.targets
        if self.targets is not None and len(self.targets):
            targets = np.concatenate([self.targets, targets])
        if self.timed:
            assert batch.times is not None
            is_due = arrivals <= batch.times[-1]
            place = np.searchsorted(batch.times, arrivals[is_due], side="left")
            place = np.maximum(place, rows[is_due] - batch.start + 1)
        else:
            is_due = arrivals <= batch.stop
            place = (arrivals[is_due] - batch.start).astype(np.int64)
        # Rows of a chunk are predicted before any target is learned.
        place = np.minimum(-(-np.maximum(place, 0) // self.chunk) * self.chunk, n)
        order = np.lexsort((rows[is_due], arrivals[is_due], place))
        due = DueTargets(rows[is_due][order].tolist(), targets[is_due][order], place[order])
        left = ~is_due & np.isfinite(arrivals)

        def done() -> None:
            self.missing += int((~known(due.targets)).sum())
            self.rows, self.arrivals, self.targets = rows[left], arrivals[left], targets[left]

        return due, done

    def _arrivals(self, batch: Batch) -> Array:
        if self.labelled:
            assert batch.label_times is not None
            return np.where(np.isnan(batch.label_times), np.inf, batch.label_times)
        if self.timed:
            assert batch.times is not None
            return batch.times + self.delay
        ends = -(-(batch.start + 1 + np.arange(len(batch))) // self.chunk) * self.chunk
        return np.minimum(ends, batch.stop) + float(self.delay)

    def rest(self) -> tuple[DueTargets, Callable[[], None]]:
        """The targets that still wait, in the order of their arrival."""
        order = np.lexsort((self.rows, self.arrivals))
        targets = np.empty(0, object) if self.targets is None else self.targets
        rows = self.rows[order].tolist()

        def done() -> None:
            there = int(known(targets).sum())
            self.at_end, self.missing = self.at_end + there, self.missing + len(targets) - there
            self.rows, self.arrivals, self.targets = self.rows[:0], self.arrivals[:0], targets[:0]

        return DueTargets(rows, targets[order], np.zeros(len(rows), np.int64)), done

    def first(self, row: int) -> int:
        """The first row whose target waits; ``row`` if there is none."""
        return int(self.rows.min(initial=row))

    def state(self) -> dict[str, Any]:
        """Everything that changes, as JSON."""
        targets = [] if self.targets is None else self.targets.tolist()
        targets = [None if target != target else target for target in targets]
        parts = {"rows": self.rows.tolist(), "arrivals": self.arrivals.tolist()}
        more = {"at_end": self.at_end, "missing": self.missing}
        return {**parts, "targets": targets, "time": self.time, **more}

    def restore(self, state: dict[str, Any], dtype: Any) -> None:
        """Restore what `state` returned; dtype: that of targets."""
        self.time = state["time"]
        self.at_end, self.missing = state.get("at_end", 0), state.get("missing", 0)
        self.rows = np.array(state["rows"], np.int64)
        self.arrivals = np.array(state["arrivals"], np.float64)
        self.targets = np.empty(len(self.rows), dtype)
        self.targets[:] = state["targets"]


class NamedRows(_LastTime):
    """Rows with ids: a row without a target waits, and a later row of its id brings the target.

    A row is scored when its target comes, by the prediction that was made when it came itself. The
    learner decides the status of a row; here are only the predictions of those that wait in it.

    Parameters
    ----------
    status_of : function
        That of the learner: for each id "waits", "told", "expired", or None if it is unknown.

    Attributes
    ----------
    waiting : {id: LatePrediction}
    repeated, again, unknown : int
        Rows that came again without a target, those of them that were predicted again, and targets
        of ids that nobody knows whose rows have nothing to predict from.
    missing : int
        Rows without an id and a target, for which none can come.
    """

    def __init__(self, status_of: Callable[[list[Any]], list[str | None]]) -> None:
        self.status_of = status_of
        self.waiting: dict[Any, LatePrediction] = {}
        self.repeated = self.again = self.unknown = self.missing = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def sorted_out(self, batch: Batch) -> BatchEvents:
        """Which rows of a batch are to be predicted, and which bring targets."""
        assert batch.ids is not None
        there = known(batch.targets).tolist()
        unusable: Array = np.asarray(np.isnan(batch.rows).all(axis=1))
        if batch.times is not None:
            unusable = unusable | np.isnan(batch.times)
        events = BatchEvents([], [], [])
        keys = [key for key in batch.ids.tolist() if key is not None]
        ids = {key for key, status in zip(keys, self.status_of(keys), strict=True) if status}
        for i, (key, has_target, empty) in enumerate(
            zip(batch.ids.tolist(), there, unusable.tolist(), strict=True)
        ):
            if key in ids:
                if not has_target:
                    events.repeated += 1
                    if empty:
                        continue
                    # Predicted again, and at once done with: the first row of the id may wait.
                    events.again += 1
                    key = batch.start + i
                    events.asked.append(i)
                    events.ids.append(key)
            elif key is not None and has_target and empty:
                events.unknown += 1
                continue
            else:
                key = batch.start + i if key is None else key  # a number: ids are strings
                events.asked.append(i)
                events.ids.append(key)
                ids.add(key)
                # The target of a row without an id can only be beside it.
                if not has_target and key != batch.start + i:
                    continue
            events.targets.append((key, i, len(events.asked)))
        return events

    def scored(
        self, batch: Batch, answer: Answer, events: BatchEvents, tracker: Tracker, n_asked: int
    ) -> tuple[Scored | None, dict[int, Place]]:
        """Take in what the learner did with a batch, after it was asked for n_asked rows in all.

        Returns
        -------
        scored : scores of rows whose targets came
        places : {number among the rows asked: Place}
        """
        there = known(batch.targets)
        judged: list[tuple[LatePrediction, Any]] = []
        places: dict[int, Place] = {}
        first = n_asked - len(events.ids)
        ids = [key for key, _, _ in events.targets]
        status = dict(zip(ids, self.status_of(ids), strict=True))
        rows = iter(enumerate(zip(events.ids, events.asked, strict=True)))

        def take(n_rows: int | None) -> None:
            for k, (new, i) in islice(rows, n_rows):
                self.waiting[new] = tracker.late_prediction(answer, k, (first + k, batch.start + i))

        n_taken = 0
        for key, i, before in events.targets:
            take(before - n_taken)
            n_taken = before
            prediction = self.waiting.pop(key, None)
            # Its target came before, or comes too late.
            if prediction is None or status[key] == "expired":
                continue
            number, row = prediction.place
            places[number] = Place(row, batch.start + i)
            if there[i]:
                judged.append((prediction, tracker.reveal_one(batch, i, prediction)))
            elif batch.ids is None or batch.ids[i] is None:  # no row that came again
                tracker.missing += 1
                self.missing += 1
        take(None)
        self.repeated += events.repeated
        self.again += events.again
        self.unknown += events.unknown
        # The oldest rows expire first.
        while self.waiting and self.status_of([key := next(iter(self.waiting))]) != ["waits"]:
            del self.waiting[key]
        return tracker.score_late(judged), places

    def state(self) -> dict[str, Any]:
        """Everything that changes, as JSON."""
        counts = {name: getattr(self, name) for name in ("repeated", "again", "unknown", "missing")}
        return {**saved(self.waiting), **counts, "time": self.time}

    def restore(self, state: dict[str, Any], tracker: Tracker) -> None:
        """Restore what `state` returned."""
        self.time = state["time"]
        self.waiting = restored(state, tracker)
        self.repeated, self.unknown = state["repeated"], state["unknown"]
        self.again, self.missing = state.get("again", 0), state.get("missing", 0)


@dataclass(slots=True)
class BatchEvents:
    """What the rows of a batch are.

    Attributes
    ----------
    asked, ids : lists
        Rows of the batch to predict, and their ids.
    targets : list of (id, row of the batch, rows asked for before)
    """

    asked: list[int]
    ids: list[Any]
    targets: list[tuple[Any, int, int]]
    repeated: int = 0
    again: int = 0
    unknown: int = 0

    def due(self, batch: Batch) -> DueTargets:
        """The targets, as `Adapter.tell` takes them."""
        places = np.array([before for _, _, before in self.targets], np.int64)
        rows = [i for _, i, _ in self.targets]
        return DueTargets([key for key, _, _ in self.targets], batch.targets[rows], places)
