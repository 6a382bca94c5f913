"""Asking for predictions and telling targets later: pure functions, nothing published.

`exchange` takes a sequence of events. It is cut into pieces, in which no class is new; each piece
advances the filters in one call, and then judges them by earlier predictions (`core.judging`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.judging import Case, Events, Index, Kept, LateJudge, Sizes, places, runs
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
from kalstream.estimators._row import exchange_row
from kalstream.estimators._settings import Settings
from kalstream.estimators._waiting import NOTHING, Book, Store, StoredRow

Array = NDArray[Any]
# Columns, numbers and times of rows, and what was predicted of them; see `_Rows`.
_Taken = tuple[Array, Array, Array | None, Kept]


# What one call makes and drops is not frozen: that triples the time to make it.
@dataclass(slots=True)
class NewTargets:
    """Targets that have come.

    Attributes
    ----------
    ids : list of t ids
    targets : list of t labels, None where there will be none; or (t,) or (t, K) numbers
    weight : (t,) or None
    before : list of t whole numbers
        How many of the rows that are asked for in the same call come before each.
    """

    ids: list[Hashable]
    targets: Any
    weight: Array | None
    before: list[int]


@dataclass(slots=True)
class Asked:
    """Rows to predict: columns (a, d), times (a,) or None, and their ids; None numbers them.

    A row is scaled by the rows that came before it, once, when it is asked for.
    """

    rows: Array
    times: Array | None
    ids: list[Hashable] | None

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True)
class _Sequence:
    """Events in their order: rows of the store that are asked for or told.

    Attributes
    ----------
    asked : (n,) bool
    row : (n,)
        Row of the store.
    entry : (n,)
        Place among the rows asked, or among the targets told.
    asks, tells : indices of (n,)
        As in `Events`.
    """

    asked: Array
    row: Array
    entry: Array
    asks: Index = field(init=False)
    tells: Index = field(init=False)

    def __post_init__(self) -> None:
        self.asks, self.tells = places(self.asked), places(~self.asked)

    @classmethod
    def of(cls, book: Book) -> _Sequence:
        """The events of a book."""
        asked, row, entry = zip(*book.events, strict=True) if book.events else ((), (), ())
        return cls(np.array(asked, bool), np.array(row, np.int64), np.array(entry, np.int64))

    def __len__(self) -> int:
        return len(self.asked)

    def __getitem__(self, part: slice) -> _Sequence:
        if part.stop - part.start == len(self):
            return self
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
    made = exchange_row(model, asked, told, settings, bounds)
    if made is not None:
        return made
    representation = model.representation
    if len(asked):
        representation, scaled = representation.scaled(asked.rows)
        asked = Asked(scaled, asked.times, asked.ids)
    book = _entered(model, asked, told, settings, bounds, strict)
    if len(asked):
        model = model.but(representation=representation)
    sequence = _Sequence.of(book)
    chunk = _chunk_of(told, sequence.entry[sequence.tells])
    if len(chunk):
        settings.task.check(chunk)
    parts: list[Any] = []
    start, done, n = 0, 0, len(sequence)
    while start < n:
        stop = _end_of_piece(model, book, sequence, chunk, start, done, settings)
        piece = sequence[start:stop]
        n_told = len(piece.row[piece.tells])
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
    targets = iter(zip([*told.before, n + 1], [*told.ids, None], strict=True))
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
    if done == len(chunk):
        return len(sequence)
    tells = np.flatnonzero(~sequence.asked[start:])
    if model.state is None and tells[0] > 0:  # these rows are asked for while nothing is known
        return start + int(tells[0])
    n_told = settings.task.end_of_piece(model, chunk, done, settings) - done
    if _judges(settings) and book.again < book.blank:
        n_told = min(n_told, max(book.again - model.n_targets, 1))
    if model.state is None:
        n_told = min(n_told, int(np.argmax(np.r_[np.diff(tells) > 1, True])) + 1)
    return start + int(tells[min(n_told, len(tells)) - 1]) + 1


def _judges(settings: Settings) -> bool:
    return settings.judging is not None and settings.transition == "example"


def _piece(
    model: Model, book: Book, piece: _Sequence, asked: Asked, chunk: Chunk, settings: Settings
) -> tuple[Model, Any]:
    """Events among which only the last may bring a class."""
    own = piece.entry[piece.asks]
    if len(chunk) == 0 and model.state is None:  # nothing is known
        model = _came(model, book, piece, Kept.blank(len(own), NOTHING))
        return model, settings.task.nothing_known(len(own))
    if _judges(settings):
        read = settings.task.read(model, chunk) if len(chunk) else (model, chunk)
        rows = _gathered(model, book, piece, asked, _sizes(read[0], settings))
        events = _timed(model, piece, rows, settings)
        after, answers = _judged(model, *read, rows, events, settings)
    else:
        rows = _gathered(model, book, piece, asked, NOTHING)
        events = _timed(model, piece, rows, settings)
        after, answers = _by_runs(model, rows.scaled, chunk, events, settings)
    if len(chunk):
        numbers, time = rows.number[piece.tells], model.time
        if rows.time is not None:
            time = float(np.max(rows.time[piece.tells], initial=-np.inf if time is None else time))
        watch = after.watch.in_rows(model.watch, numbers)
        after = after.but(last=max(model.last, int(numbers.max())), time=time, watch=watch)
    after = _came(after, book, piece, rows.kept)
    return after, answers if len(own) or not len(chunk) else None


@dataclass(slots=True)
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
    own, n = piece.entry[piece.asks], len(piece)
    n_own, first = len(own), piece.row[piece.asks][0] if len(own) else book.stop
    old = places(piece.row < first)
    numbers = piece.row[old].tolist()
    parts = []
    if n_own:
        times = None if asked.times is None else asked.times[own]
        came = model.came + np.arange(n_own)
        parts.append((asked.rows[own], came, times, Kept.blank(n_own, sizes)))
    if numbers:
        parts.append(book.take(numbers, _width(model, book), sizes))
    scaled, came, times, kept = parts[0] if len(parts) == 1 else _joined(*parts)
    slot = np.arange(n)
    if n_own < n and len(numbers) < n:
        slot = piece.row - first
        slot[old] = n_own + np.arange(len(numbers))
        scaled, came, times = scaled[slot], came[slot], None if times is None else times[slot]
    return _Rows(scaled, came, times, slot, kept)


def _joined(one: _Taken, other: _Taken) -> _Taken:
    """Rows of a call, and rows of the book behind them."""
    (n, n_more), sizes = (len(part[0]) for part in (one, other)), one[3].sizes
    kept = Kept.blank(n + n_more, sizes)
    kept.put(slice(n, None), other[3], slice(None))
    times = None if one[2] is None or other[2] is None else np.concatenate([one[2], other[2]])
    columns, numbers = np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])
    return columns, numbers, times, kept


def _width(model: Model, book: Book) -> int:
    """Columns of rows that were scaled; columns that came later are 0 in earlier rows."""
    width = model.representation.width(model.fitted["n_features_in_"])
    return book.n_columns if width is None else width


def _came(model: Model, book: Book, piece: _Sequence, kept: Kept) -> Model:
    """The model after the rows of a piece were asked for; what was predicted is in the book."""
    numbers = piece.row[piece.asks].tolist()
    if not numbers:
        return model
    book.predicted(numbers, kept)
    if kept.sizes == NOTHING:
        book.blank = numbers[-1] + 1
    return model.but(came=model.came + len(numbers))


def _timed(model: Model, piece: _Sequence, rows: _Rows, settings: Settings) -> Events:
    """The events with the time between each row and the last one that was learned before it."""

    def latest(values: Array, first: float) -> Any:
        if len(piece) == 1:
            return first
        learned = np.where(piece.asked, -np.inf, values)
        return np.maximum.accumulate(np.concatenate([[first], learned]))[:-1]

    last = latest(rows.number, model.last)
    rows_since = rows.number - last
    gap, lag = np.maximum(rows_since, 0.0), np.maximum(rows_since - 1.0, 0.0)
    if rows.time is not None:
        clock = latest(rows.time, -np.inf if model.time is None else model.time)
        # Before the first target no time has passed.
        ahead = np.maximum(rows.time - clock, 0.0) / settings.unit
        gap = np.where(np.isinf(clock), 1.0, ahead)
    return Events(piece.asked, rows.slot, gap, lag, piece.asks, piece.tells)


def _sizes(model: Model, settings: Settings) -> Sizes:
    """Sizes of what is kept of a row while a model that has read its targets learns them."""
    policy, task = settings.policy, settings.task
    n_outputs = outputs_with_room(model.state, task.n_outputs(model))
    if n_outputs == 0:
        return NOTHING
    stacked, n_experts = task.keeps(settings)
    n_terms = Stack.n_terms(policy.n_filters, n_experts - 1) if stacked else 0
    n_scales = policy.n_filters if policy.learns_scale else 0
    return policy.n_filters, n_outputs, n_experts, n_terms, n_scales


def _judged(
    before: Model,
    model: Model,
    chunk: Chunk,
    rows: _Rows,
    events: Events,
    settings: Settings,
) -> tuple[Model, Any]:
    """Advance the filters over the events; weigh them one step ahead, and by what they said.

    ``model`` and ``chunk`` are what `Task.read` returned.
    """
    policy, task = settings.judging, settings.task
    assert policy is not None
    n, tells, kept = len(events), events.tells, rows.kept
    phi = model.representation.features(rows.scaled)
    n_outputs = task.n_outputs(model)
    if n_outputs == 0:  # targets that will never come, before there was any
        model = model.but(n_seen=model.n_seen + len(chunk))
        return model, task.nothing_known(n - len(chunk))
    targets, weight = task.spread_out(chunk, tells, n, n_outputs)
    state = state_with_room(model, phi.shape[1], n_outputs, settings)
    noise_var, prior_var = settings.noise_var, settings.prior_var
    after, step, far = policy.step_events(
        state, phi, targets, weight, events, noise_var=noise_var, prior_var=prior_var
    )
    late = LateRows(rows.scaled, rows.number, targets, weight, events, kept)
    spoken = task.keep(before, late, state.seen)
    begun = policy.late_judge(state, kept.sizes)
    judge = _fitting(before.late, begun)
    case = Case(step, far, targets, weight, events, kept, noise_var, model.n_targets)
    judge, by_late, judged = policy.judge(judge, case)
    learned = weight > 0.0
    judged.since, watch, last_step = np.full(n, judge.since), model.watch, model.last_step
    if len(chunk):
        told = step if len(chunk) == n else step.take(tells)
        belief = policy.belief(told, chunk.gap, settings.transition, watch.now)
        watch, began = watch.after(policy.watched, *belief, policy.evidence(told))
        last_step = told.bank.tail(LAST_ROWS)
        if began.any():
            alarms = np.arange(n)[tells][began]
            judged.since[alarms] = model.n_targets + np.cumsum(learned)[alarms]
            judged.since = np.maximum.accumulate(judged.since)
            judge = replace(judge, since=int(judged.since[-1]))
    model = model.but(
        state=after,
        late=judge,
        watch=watch,
        last_step=last_step,
        n_seen=model.n_seen + len(chunk),
        n_targets=model.n_targets + int(np.count_nonzero(learned)),
    )
    steps = LateSteps(step, by_late, judged, spoken)
    return task.judge(before, model, late, steps, settings)


def _fitting(judge: LateJudge | None, begun: LateJudge) -> LateJudge:
    """The judge of a model; a part begins again if stacking or experts were set to other values."""
    if judge is None:
        return begun
    if len(judge.beliefs) != len(begun.beliefs):
        judge = replace(judge, beliefs=begun.beliefs)
    if len(judge.beside) != len(begun.beside):
        judge = replace(judge, beside=begun.beside)
    return judge


def _by_runs(
    before: Model, rows: Array, chunk: Chunk, events: Events, settings: Settings
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
    sizes = _sizes(model, settings)
    columns, numbers, times, kept = book.take(rows, _width(model, book), sizes)
    every = np.arange(len(rows))
    gathered = _Rows(columns, numbers, times, every, kept)
    piece = _Sequence(np.ones(len(rows), bool), np.array(rows), every)
    events = _timed(model, piece, gathered, settings)
    nothing = Chunk(np.empty((0, columns.shape[1])), [], None, None, None)
    _judged(model, model, nothing, gathered, events, settings)
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
    if before is None or not len(keys):
        return NewTargets(keys, targets, weight, [n_asked] * len(keys))
    try:
        come = np.asarray(before)
    except ValueError:  # a ragged list
        come = np.empty(0)
    if come.shape != (len(keys),) or come.dtype.kind not in "iu":
        raise InvalidInput(f"before must be {len(keys)} whole numbers, got {check.shown(before)}")
    if not (come.min() >= 0 and come.max() <= n_asked):
        raise InvalidInput(f"before must lie between 0 and the {n_asked} rows of X")
    come = come.astype(np.int64)  # differences of unsigned numbers are never negative
    if (np.diff(come) < 0).any():
        raise InvalidInput("before decreases; give the targets in the order in which they came")
    return NewTargets(keys, targets, weight, come.tolist())


def no_rows(n_columns: int) -> Asked:
    """Nothing is asked for."""
    return Asked(np.empty((0, n_columns)), None, None)
