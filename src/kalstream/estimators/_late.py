"""Asking for predictions and telling targets later: pure functions, nothing published.

`exchange` takes a sequence of events. It is cut into pieces, in which no class is new; each piece
advances the filters in one call, and then judges them by earlier predictions (`core.judging`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.judging import Case, Events, Kept, Sizes, runs
from kalstream.core.stacking import Stack
from kalstream.errors import InvalidInput
from kalstream.estimators._chunk import Ahead, Chunk, LateRows, LateSteps
from kalstream.estimators._ids import listed
from kalstream.estimators._learning import (
    LAST_ROWS,
    learn_features,
    outputs_with_room,
    predict_features,
    state_with_room,
)
from kalstream.estimators._model import Model
from kalstream.estimators._settings import Settings
from kalstream.estimators._waiting import NOTHING, Book, Store, StoredRow

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class NewTargets:
    """Targets that have come.

    Attributes
    ----------
    ids : list of t ids
    targets : list of t labels, None where there will be none; or (t,) or (t, K) numbers
    weight : (t,) or None
    before : (t,)
        How many of the rows that are asked for in the same call come before each.
    """

    ids: list[Hashable]
    targets: Any
    weight: Array | None
    before: Array


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows to predict: columns (a, d), times (a,) or None, and their ids; None numbers them.

    A row is scaled by the rows that came before it, once, when it is asked for.
    """

    rows: Array
    times: Array | None
    ids: list[Hashable] | None

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Events in their order: rows of the store that are asked for or told.

    Attributes
    ----------
    asked : (n,) bool
    row : (n,)
        Row of the store.
    entry : (n,)
        Place among the rows asked, or among the targets told.
    """

    asked: Array
    row: Array
    entry: Array

    @classmethod
    def of(cls, book: Book) -> _Sequence:
        """The events of a book."""
        asked, row, entry = zip(*book.events, strict=True) if book.events else ((), (), ())
        return cls(np.array(asked, bool), np.array(row, np.int64), np.array(entry, np.int64))

    def __getitem__(self, part: slice) -> _Sequence:
        return _Sequence(self.asked[part], self.row[part], self.entry[part])


def exchange(
    model: Model,
    asked: Asked,
    told: NewTargets,
    settings: Settings,
    bounds: tuple[int, float | None],
    *,
    strict: bool,
) -> tuple[Model, Any]:
    """The model after rows were asked for and targets told, and the predictions of the rows.

    ``bounds`` are how many rows may wait, and how long. With ``strict`` an id that nobody knows is
    an error; otherwise it is counted.
    """
    if len(asked):
        representation, scaled = model.representation.scaled(asked.rows)
        model, asked = model.but(representation=representation), replace(asked, rows=scaled)
    book = _entered(model, asked, told, settings, bounds, strict)
    sequence = _Sequence.of(book)
    chunk = _chunk_of(told, sequence.entry[~sequence.asked])
    if len(chunk):
        settings.task.check(chunk)
    parts: list[Any] = []
    start, done, n = 0, 0, len(sequence.row)
    while start < n:
        stop = _end_of_piece(model, book, sequence, chunk, start, done, settings)
        piece = sequence[start:stop]
        n_told = int((~piece.asked).sum())
        model, answers = _piece(model, book, piece, asked, chunk[done : done + n_told], settings)
        _ask_again(model, book, stop, settings)
        if answers is not None:
            parts.append(answers)
        start, done = stop, done + n_told
    return model.but(store=book.store()), settings.task.answers(model, parts)


def _entered(
    model: Model,
    asked: Asked,
    told: NewTargets,
    settings: Settings,
    bounds: tuple[int, float | None],
    strict: bool,
) -> Book:
    """A book with all events of the call, in their order."""
    store = model.store or Store()
    age = bounds[1]
    if age is not None and (asked.times is not None or store.has_times):
        age *= settings.unit
    book, n = Book(store, bounds[0], age), len(asked)
    if n:
        book.n_columns = asked.rows.shape[1]
    ids = range(store.stop, store.stop + n) if asked.ids is None else asked.ids
    times = [math.nan] * n if asked.times is None else asked.times.tolist()
    data, width = np.asarray(asked.rows, np.float64).tobytes(), 8 * asked.rows.shape[1]
    # Targets that come before row k of the call stand before it.
    targets = iter(zip([*told.before.tolist(), n + 1], [*told.ids, None], strict=True))
    entry, (before, key) = 0, next(targets)
    for k in range(n + 1):
        while before <= k:
            book.tell(key, told.targets[entry], entry, strict=strict)
            entry, (before, key) = entry + 1, next(targets)
        if k < n:
            columns = data[k * width : (k + 1) * width]
            book.ask(StoredRow(ids[k], model.came + k, times[k], columns), k)
    return book


def _chunk_of(told: NewTargets, entries: Array) -> Chunk:
    """Targets in the order of their events; the rows are found piece by piece."""
    targets = told.targets
    if isinstance(targets, np.ndarray):
        targets = targets[entries]
    else:
        targets = [targets[entry] for entry in entries.tolist()]
    weight = None if told.weight is None else told.weight[entries]
    return Chunk(np.empty((len(entries), 0)), targets, weight, None, None)


def _end_of_piece(
    model: Model,
    book: Book,
    sequence: _Sequence,
    chunk: Chunk,
    start: int,
    done: int,
    settings: Settings,
) -> int:
    """Where the piece that begins at event ``start`` ends, ``done`` targets being told before.

    It ends behind a target that makes room for a class, or with which enough is known to predict
    rows that were asked for when nothing was known.
    """
    places = np.flatnonzero(~sequence.asked[start:])
    if not len(places):
        return len(sequence.row)
    if model.state is None and places[0] > 0:  # these rows are asked for while nothing is known
        return start + int(places[0])
    n_told = settings.task.end_of_piece(model, chunk, done, settings) - done
    if _judges(settings) and book.again < book.blank:
        n_told = min(n_told, max(book.again - model.n_targets, 1))
    if model.state is None:
        n_told = min(n_told, int(np.argmax(np.r_[np.diff(places) > 1, True])) + 1)
    return start + int(places[min(n_told, len(places)) - 1]) + 1


def _judges(settings: Settings) -> bool:
    return settings.judging is not None and settings.transition == "example"


def _piece(
    model: Model, book: Book, piece: _Sequence, asked: Asked, chunk: Chunk, settings: Settings
) -> tuple[Model, Any]:
    """Events among which only the last may bring a class."""
    own, judges = piece.entry[piece.asked], _judges(settings)
    if len(chunk) == 0 and model.state is None:  # nothing is known
        model = _came(model, book, piece, Kept.blank(len(own), NOTHING))
        return model, settings.task.nothing_known(len(own))
    sizes = _sizes(model, chunk, settings) if judges else NOTHING
    rows = _gathered(model, book, piece, asked, sizes)
    events = _timed(model, piece.asked, rows, settings)
    advance = _judged if judges else _by_runs
    after, answers = advance(model, rows.scaled, chunk, events, rows.kept, settings)
    tells = ~piece.asked
    last, time = int(np.max(rows.number[tells], initial=model.last)), model.time
    if rows.time is not None and len(chunk):
        time = float(np.max(rows.time[tells], initial=-np.inf if time is None else time))
    watch = after.watch.in_rows(model.watch, rows.number[tells])
    after = _came(after.but(last=last, time=time, watch=watch), book, piece, rows.kept)
    return after, answers if len(own) or not len(chunk) else None


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of n events.

    Attributes
    ----------
    scaled, number, time : (n, d), (n,), (n,) or None
        Scaled columns, place among all rows that came, and time.
    slot : (n,)
        The place of each in ``kept``: first those that are asked for, then those of the store.
    kept : Kept
    """

    scaled: Array
    number: Array
    time: Array | None
    slot: Array
    kept: Kept


def _gathered(model: Model, book: Book, piece: _Sequence, asked: Asked, sizes: Sizes) -> _Rows:
    """The rows of a piece: of the call those that are asked for in it, of the book the others."""
    own, n_columns = piece.entry[piece.asked], _width(model, book)
    n_own, first = len(own), piece.row[piece.asked][0] if len(own) else book.stop
    old = np.flatnonzero(piece.row < first)
    scaled, times, numbers, kept = book.take(piece.row[old].tolist(), n_columns, sizes)
    if n_own:
        workspace, n_old = Kept.blank(n_own + len(old), sizes), np.arange(len(old))
        if len(old):
            workspace.put(n_own + n_old, kept, n_old)
        # In the order of slots.
        scaled = np.concatenate([asked.rows[own], scaled])
        numbers = np.concatenate([model.came + np.arange(n_own), numbers])
        times = np.concatenate([np.full(n_own, np.nan), times])
        if asked.times is not None:
            times[:n_own] = asked.times[own]
        kept = workspace
    slot = piece.row - first
    slot[old] = n_own + np.arange(len(old))
    timed = len(times) > 0 and times[0] == times[0]
    return _Rows(scaled[slot], numbers[slot], times[slot] if timed else None, slot, kept)


def _width(model: Model, book: Book) -> int:
    """Columns of rows that were scaled; columns that came later are 0 in earlier rows."""
    width = model.representation.width(model.fitted["n_features_in_"])
    return book.n_columns if width is None else width


def _came(model: Model, book: Book, piece: _Sequence, kept: Kept) -> Model:
    """The model after the rows of a piece were asked for; what was predicted is in the book."""
    numbers = piece.row[piece.asked].tolist()
    if not numbers:
        return model
    book.predicted(numbers, kept)
    if kept.sizes == NOTHING:
        book.blank = numbers[-1] + 1
    return model.but(came=model.came + len(numbers))


def _timed(model: Model, asked: Array, rows: _Rows, settings: Settings) -> Events:
    """The events with the time between each row and the last one that was learned before it."""

    def latest(values: Array, first: float) -> Array:
        learned = np.where(asked, -np.inf, values)
        return np.maximum.accumulate(np.concatenate([[first], learned]))[:-1]

    last = latest(rows.number, model.last)
    gap = np.maximum(rows.number - last, 0.0)
    lag = np.maximum(rows.number - last - 1.0, 0.0)
    if rows.time is not None:
        clock = latest(rows.time, -np.inf if model.time is None else model.time)
        # Before the first target no time has passed.
        ahead = np.maximum(rows.time - clock, 0.0) / settings.unit
        gap = np.where(np.isinf(clock), 1.0, ahead)
    return Events(asked, rows.slot, gap, lag)


def _sizes(model: Model, chunk: Chunk, settings: Settings) -> Sizes:
    """Sizes of what is kept of a row while this chunk is learned."""
    policy, task = settings.policy, settings.task
    after, _ = task.read(model, chunk) if len(chunk) else (model, None)
    n_outputs = outputs_with_room(model.state, task.n_outputs(after))
    if n_outputs == 0:
        return NOTHING
    stacked, n_experts = task.keeps(settings)
    n_terms = Stack.n_terms(policy.n_filters, n_experts - 1) if stacked else 0
    n_scales = policy.n_filters if policy.learns_scale else 0
    return policy.n_filters, n_outputs, n_experts, n_terms, n_scales


def _judged(
    before: Model, rows: Array, chunk: Chunk, events: Events, kept: Kept, settings: Settings
) -> tuple[Model, Any]:
    """Advance the filters over the events; weigh them one step ahead, and as they predicted."""
    policy, task = settings.judging, settings.task
    assert policy is not None
    n, tells = len(events), np.flatnonzero(~events.asked)
    model, read = before, chunk
    if len(tells):
        model, read = task.read(before, replace(chunk, rows=rows[tells]))
    phi = model.representation.features(rows)
    model = model.but(n_seen=model.n_seen + len(tells))
    n_outputs = task.n_outputs(model)
    if n_outputs == 0:  # targets that will never come, before there was any
        return model, task.nothing_known(int(events.asked.sum()))
    targets, weight = task.spread_out(read, tells, n, n_outputs)
    state = state_with_room(model, phi.shape[1], n_outputs, settings)
    noise_var, prior_var = settings.noise_var, settings.prior_var
    after, step, far = policy.step_events(
        state, phi, targets, weight, events, noise_var=noise_var, prior_var=prior_var
    )
    late = LateRows(rows, targets, weight, events, kept)
    spoken = task.keep(before, late, state.seen)
    begun = policy.late_judge(state, kept.sizes)
    judge = before.late or begun
    for name in ("beliefs", "beside"):  # stacking or experts were set to other values
        if len(getattr(judge, name)) != len(getattr(begun, name)):
            judge = replace(judge, **{name: getattr(begun, name)})
    case = Case(step, far, targets, weight, events, kept, noise_var, model.n_targets)
    judge, by_late, judged = policy.judge(judge, case)
    n_targets = model.n_targets + np.cumsum(weight > 0.0)
    since = np.full(n, judge.since)
    if len(tells):
        told = step.take(tells)
        belief = policy.belief(told, read.gap, settings.transition, model.watch.now)
        watch, began = model.watch.after(policy.watched, *belief, policy.evidence(told))
        model = model.but(watch=watch, last_step=told.bank.tail(LAST_ROWS))
        since[tells[began]] = n_targets[tells[began]]
    since = np.maximum.accumulate(since)
    judge, judged = replace(judge, since=int(since[-1])), replace(judged, since=since)
    model = model.but(state=after, late=judge, n_targets=int(n_targets[-1]))
    steps = LateSteps(step, by_late, judged, spoken)
    return task.judge(before, model, late, steps, settings)


def _by_runs(
    before: Model, rows: Array, chunk: Chunk, events: Events, kept: Kept, settings: Settings
) -> tuple[Model, Any]:
    """As `_judged`, for a policy that judges one step ahead only: learn and predict in turn."""
    task, model, done = settings.task, before, 0
    phi = model.representation.features(rows)
    parts: list[Any] = []
    for part in runs(events.asked):
        n = part.stop - part.start
        if not events.asked[part.start]:
            here = chunk[done : done + n]
            learned = Chunk(rows[part], here.targets, here.weight, events.gap[part], None)
            model, _ = learn_features(model, model, phi[part], learned, settings, False)
            done += n
        elif model.state is None:
            parts.append(task.nothing_known(n))
        else:
            gap = events.gap[part]
            step = predict_features(model, phi[part], settings, gap)
            parts.append(task.predict(model, Ahead(rows[part], phi[part], step, gap), settings))
    # What was learned counts as rows that came, but they were asked for before.
    model = model.but(came=before.came, last=before.last, time=before.time)
    return model, task.together(parts) if parts else None


def _ask_again(model: Model, book: Book, n_events: int, settings: Settings) -> None:
    """Predict some rows that were asked for when nothing was known; nobody sees the prediction.

    So filters are judged long before the first row comes back that was asked for later.
    """
    if model.state is None or not _judges(settings):
        return
    if model.n_targets < book.again or book.again >= book.blank:
        return
    rows = book.blanks(model.n_targets, n_events)
    book.again = 2 * model.n_targets
    if not rows:
        return
    sizes = _sizes(model, Chunk(np.empty((0, 0)), [], None, None, None), settings)
    columns, times, numbers, kept = book.take(rows, _width(model, book), sizes)
    every = np.arange(len(rows))
    timed = times[0] == times[0]
    gathered = _Rows(columns, numbers, times if timed else None, every, kept)
    events = _timed(model, np.ones(len(rows), bool), gathered, settings)
    nothing = Chunk(np.empty((0, columns.shape[1])), [], None, None, None)
    _judged(model, columns, nothing, events, kept, settings)
    book.predicted(rows, kept)


def read_ids(ids: Any, n: int) -> list[Hashable] | None:
    """Ids of n rows to ask for."""
    if ids is None:
        return None
    keys = listed("ids", ids)
    if len(keys) != n:
        raise InvalidInput(f"ids has {len(keys)} ids for the {n} rows of X; give one for each")
    return keys


def read_told(
    ids: Any, targets: Any, weight: Array | None, before: Any, n_asked: int
) -> NewTargets:
    """Targets that are told, checked."""
    keys = listed("ids", ids)
    if len(keys) != len(targets):
        raise InvalidInput(f"ids has {len(keys)} ids for {len(targets)} targets; give one for each")
    places = np.full(len(keys), n_asked)
    if before is not None and len(keys):
        try:
            places = np.asarray(before)
        except ValueError:  # a ragged list
            places = np.empty(0)
    if places.shape != (len(keys),) or places.dtype.kind not in "iu":
        raise InvalidInput(f"before must be {len(keys)} whole numbers, got {check.shown(before)}")
    if len(places) and not (places.min() >= 0 and places.max() <= n_asked):
        raise InvalidInput(f"before must lie between 0 and the {n_asked} rows of X")
    places = places.astype(np.int64)  # differences of unsigned numbers are never negative
    if (np.diff(places) < 0).any():
        raise InvalidInput("before decreases; give the targets in the order in which they came")
    return NewTargets(keys, targets, weight, places)


def no_rows(n_columns: int) -> Asked:
    """Nothing is asked for."""
    return Asked(np.empty((0, n_columns)), None, None)
