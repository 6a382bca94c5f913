"""Asking for predictions and telling targets later: pure functions, nothing published.

`exchange` takes a sequence of events. It is cut into pieces, in which no class is new; each piece
advances the filters in one call, and then judges them by earlier predictions (`core.judging`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.chunk import block_rows
from kalstream.core.judging import Events, Kept, LateJudge, LateRows, Sizes, places, runs
from kalstream.core.stacking import Stack
from kalstream.errors import InvalidInput
from kalstream.estimators._chunk import Ahead, Chunk, LateSteps
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

    def __getitem__(self, piece: slice) -> NewTargets:
        """Some of them, none of which waits for rows."""
        weight, ids = self.weight, self.ids[piece]
        weight = None if weight is None else weight[piece]
        return NewTargets(ids, self.targets[piece], weight, [0] * len(ids))


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

    def __getitem__(self, piece: slice) -> Asked:
        times = None if self.times is None else self.times[piece]
        return Asked(self.rows[piece], times, None if self.ids is None else self.ids[piece])


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
    calls = _in_turns(asked, told) if model.representation.hears else [(asked, told)]
    parts: list[Any] = []
    for rows, targets in calls:
        model, answers = _exchanged(model, rows, targets, settings, bounds, strict)
        parts += answers
    return model, settings.task.answers(model, parts)


def _in_turns(asked: Asked, told: NewTargets) -> list[tuple[Asked, NewTargets]]:
    """The same as calls that ask or tell: features of a row depend on the targets before it."""
    cuts = [*sorted({0, *told.before, len(asked)}), len(asked) + 1]
    nobody, nothing, calls = asked[:0], told[:0], list[tuple[Asked, NewTargets]]()
    entries = np.searchsorted(told.before, cuts).tolist()
    for (at, stop), (first, last) in zip(pairwise(cuts), pairwise(entries), strict=True):
        calls += [(nobody, told[first:last])] * (last > first)
        calls += [(asked[at:stop], nothing)] * (at < len(asked))
    return calls or [(asked, told)]


def _exchanged(
    model: Model,
    asked: Asked,
    told: NewTargets,
    settings: Settings,
    bounds: tuple[int, float | None],
    strict: bool,
) -> tuple[Model, list[Any]]:
    """As `exchange`, with the predictions in parts; if targets are heard, one asks or tells."""
    representation = model.representation
    hears = representation.hears
    if len(asked):
        representation, scaled = representation.scaled(asked.rows)
        if hears:  # they wait with the row
            scaled = np.hstack([asked.rows[:, hears], scaled])
        asked = Asked(scaled, asked.times, asked.ids)
    book = _entered(model, asked, told, settings, bounds, strict)
    if len(asked):
        model = model.but(representation=representation)
    events = np.array(book.events, np.int64).reshape(-1, 3)
    asks, row = events[:, 0] > 0, events[:, 1]
    chunk = _chunk_of(told, events[~asks, 2])
    if len(chunk):
        settings.task.check(chunk)
    parts: list[Any] = []
    start = done = 0
    while start < len(events):
        stop = _end_of_piece(model, book, asks, chunk, start, done, settings)
        piece, n_told = slice(start, stop), int(np.count_nonzero(~asks[start:stop]))
        here = chunk[done : done + n_told]
        model, answers = _piece(model, book, asks[piece], row[piece], here, settings)
        _ask_again(model, book, stop, settings)
        if answers is not None:
            parts.append(answers)
        start, done = stop, done + n_told
    if hears and len(chunk):
        rows = [book.row(number) for number in row[~asks].tolist()]
        keys = [np.frombuffer(each.columns)[: len(hears)] for each in rows if each is not None]
        heard = model.representation.told(np.array(keys), chunk.targets, chunk.weight)
        model = model.but(representation=heard)
    return model.but(store=book.store()), parts


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
    asks: Array,
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
        return len(asks)
    tells = np.flatnonzero(~asks[start:])
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
    model: Model, book: Book, asks: Array, row: Array, chunk: Chunk, settings: Settings
) -> tuple[Model, Any]:
    """Events (n,) among which only the last may bring a class."""
    try:
        return _passed(model, book, asks, row, chunk, settings)
    except _OutlierFound as outlier:
        found = outlier
    return _around(model, book, asks, row, chunk, found, settings)


class _OutlierFound(Exception):
    """A target of a chunk needs its weight times a factor; nothing was changed."""

    def __init__(self, place: int, factor: float) -> None:
        super().__init__(place, factor)
        self.place, self.factor = place, factor


def _around(
    model: Model,
    book: Book,
    asks: Array,
    row: Array,
    chunk: Chunk,
    outlier: _OutlierFound,
    settings: Settings,
) -> tuple[Model, Any]:
    """As `_piece`, with a smaller weight for one target; see `_learning._learn_around`."""
    weight = np.ones(len(chunk)) if chunk.weight is None else chunk.weight.copy()
    weight[outlier.place] *= outlier.factor
    reduced: Chunk = replace(chunk, weight=weight)
    at, n = int(np.flatnonzero(~asks)[outlier.place]), len(asks)
    assert model.state is not None
    size = block_rows(model.state.n_features)  # another outlier repeats one block at most
    told = np.concatenate([[0], np.cumsum(~asks)]).tolist()
    answers: list[Any] = []
    cuts = [0] * (at > 0) + [at, *range(at + 1, n, size), n]
    for start, stop in pairwise(cuts):
        part, each = slice(start, stop), reduced if start == at else chunk
        here = each[told[start] : told[stop]]
        model, made = _piece(model, book, asks[part], row[part], here, settings)
        answers += [] if made is None else [made]
    return model, settings.task.together(answers) if answers else None


def _passed(
    model: Model, book: Book, asks: Array, row: Array, chunk: Chunk, settings: Settings
) -> tuple[Model, Any]:
    """As `_piece`; raises `_OutlierFound`."""
    own = row[asks].tolist()
    if len(chunk) == 0 and model.state is None:  # nothing is known
        model = _came(model, book, own, Kept.blank(len(own), NOTHING))
        return model, settings.task.nothing_known(len(own))
    if _judges(settings):
        read = settings.task.read(model, chunk) if len(chunk) else (model, chunk)
        rows = _gathered(model, book, asks, row, _sizes(read[0], settings), settings)
        after, answers = _judged(model, *read, rows, settings)
    else:
        rows = _gathered(model, book, asks, row, NOTHING, settings)
        after, answers = _by_runs(model, rows.scaled, chunk, rows.events, settings)
    if len(chunk):
        tells, time = rows.events.tells, model.time
        numbers = rows.number[tells]
        if rows.time is not None:
            time = float(np.max(rows.time[tells], initial=-np.inf if time is None else time))
        watch = after.watch.in_rows(model.watch, numbers)
        after = after.but(last=max(model.last, int(numbers.max())), time=time, watch=watch)
    after = _came(after, book, own, rows.kept)
    return after, answers if own or not len(chunk) else None


@dataclass(slots=True)
class _Rows:
    """The rows of n events.

    Attributes
    ----------
    scaled, number, time : (n, d), (n,), (n,) or None
        Scaled columns, place among all rows that came, and time.
    kept : Kept
        First of the rows that are asked for, then of earlier ones.
    events : Events
    """

    scaled: Array
    number: Array
    time: Array | None
    kept: Kept
    events: Events


def _gathered(
    model: Model, book: Book, asks: Array, row: Array, sizes: Sizes, settings: Settings
) -> _Rows:
    """The rows of events, which ask for rows of the book, or tell their targets."""
    own, n = row[asks], len(row)
    old = row < (own[0] if len(own) else book.stop)
    numbers = [*own.tolist(), *row[old].tolist()]
    slot = np.searchsorted(own, row)
    slot[old] = np.arange(len(own), len(numbers))
    scaled, number, time, kept = book.take(numbers, _width(model, book), sizes)
    scaled = scaled[:, len(model.representation.hears) :]
    if len(own) < n:
        scaled, number, time = scaled[slot], number[slot], None if time is None else time[slot]
    gap, lag = _time_since(model, asks, number, time, settings)
    events = Events(asks, slot, gap, lag, places(asks), places(~asks))
    return _Rows(scaled, number, time, kept, events)


def _width(model: Model, book: Book) -> int:
    """Columns of rows that were scaled; columns that came later are 0 in earlier rows."""
    width = model.representation.width(model.fitted["n_features_in_"])
    return book.n_columns if width is None else width + len(model.representation.hears)


def _came(model: Model, book: Book, numbers: list[int], kept: Kept) -> Model:
    """The model after rows were asked for; what was predicted is in the book."""
    if not numbers:
        return model
    book.predicted(numbers, kept)
    if kept.sizes == NOTHING:
        book.blank = numbers[-1] + 1
    return model.but(came=model.came + len(numbers))


def _time_since(
    model: Model, asks: Array, number: Array, time: Array | None, settings: Settings
) -> tuple[Array, Array]:
    """Gap and lag (n,) of `Events`, since the last row that was learned before each."""

    def latest(values: Array, first: float) -> Any:
        if len(asks) == 1:
            return first
        learned = np.where(asks, -np.inf, values)
        return np.maximum.accumulate(np.concatenate([[first], learned]))[:-1]

    rows_since = number - latest(number, model.last)
    gap, lag = np.maximum(rows_since, 0.0), np.maximum(rows_since - 1.0, 0.0)
    if time is not None:
        clock = latest(time, -np.inf if model.time is None else model.time)
        # Before the first target no time has passed.
        gap = np.where(np.isinf(clock), 1.0, np.maximum(time - clock, 0.0) / settings.unit)
    return gap, lag


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
    before: Model, model: Model, chunk: Chunk, rows: _Rows, settings: Settings
) -> tuple[Model, Any]:
    """Advance the filters over the events; weigh them one step ahead, and by what they said.

    ``model`` and ``chunk`` are what `Task.read` returned. Raises `_OutlierFound`.
    """
    policy, task = settings.judging, settings.task
    assert policy is not None
    events, kept = rows.events, rows.kept
    n, tells = len(events), events.tells
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
    told = step if len(chunk) in (0, n) else step.take(tells)
    outlier = task.first_outlier(before, chunk, told, settings) if len(chunk) else None
    if outlier is not None:
        raise _OutlierFound(*outlier)
    late = LateRows(rows.scaled, rows.number, targets, weight, events, kept)
    spoken = task.keep(before, late, state.seen)
    begun = policy.late_judge(state, kept.sizes)
    judge = _fitting(before.late, begun)
    judge, by_late, judged = policy.judge(
        judge, late, step, far, noise_var=noise_var, n_targets=model.n_targets
    )
    learned = weight > 0.0
    judged.since, watch, last_step = np.full(n, judge.since), model.watch, model.last_step
    if len(chunk):
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
    phi, seen = model.representation.features(rows), model.representation.seen(rows)
    parts: list[Any] = []
    for part in runs(events.asked):
        n = part.stop - part.start
        if not events.asked[part.start]:
            here = chunk[done : done + n]
            given = here.targets, here.weight, events.gap[part], None, seen[part]
            learned = Chunk(rows[part], *given)
            model, _ = learn_features(model, model, phi[part], learned, settings, False)
            done += n
        elif model.state is None:
            parts.append(task.nothing_known(n))
        else:
            gap = events.gap[part]
            step = predict_features(model, phi[part], settings, gap)
            ahead = Ahead(phi[part], step, gap, seen[part])
            parts.append(task.predict(model, ahead, settings))
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
    every = np.ones(len(rows), bool)
    gathered = _gathered(model, book, every, np.array(rows), sizes, settings)
    nothing = Chunk(np.empty((0, gathered.scaled.shape[1])), [], None, None, None)
    _judged(model, model, nothing, gathered, settings)
    book.predicted(rows, gathered.kept)


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
