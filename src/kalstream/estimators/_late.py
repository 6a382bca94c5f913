"""Asking for predictions and telling targets later: pure functions, nothing published.

`exchange` takes a sequence of events. It is cut into pieces, in which no class is new; each piece
advances the filters in one call, and then judges them by what they said (`core.judging`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.judging import Events, Kept, Sizes, runs
from kalstream.core.stacking import Stack
from kalstream.errors import InvalidInput
from kalstream.estimators._chunk import Chunk
from kalstream.estimators._learning import (
    LAST_ROWS,
    learn_features,
    outputs_with_room,
    predict_features,
    state_with_room,
)
from kalstream.estimators._model import Model
from kalstream.estimators._settings import Settings
from kalstream.estimators._waiting import EXPIRED, NOTHING, TOLD, Store, listed

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Told:
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
    """Rows to predict: columns (a, d), times (a,) or None, and their ids.

    A row is scaled by the rows that came before it, once, when it is asked for.
    """

    rows: Array
    times: Array | None
    ids: list[Hashable]

    def __len__(self) -> int:
        return len(self.ids)


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

    def __getitem__(self, part: slice) -> _Sequence:
        return _Sequence(self.asked[part], self.row[part], self.entry[part])


def exchange(
    model: Model, asked: Asked, told: Told, settings: Settings, *, strict: bool
) -> tuple[Model, Any]:
    """The model after rows were asked for and targets told, and the predictions of the rows.

    With ``strict`` an id that nobody knows is an error; otherwise it is counted.
    """
    store = model.store or Store()
    sequence, counts = _resolved(store, asked, told, strict)
    if len(asked):
        representation, scaled = model.representation.scaled(asked.rows)
        model, asked = model.but(representation=representation), replace(asked, rows=scaled)
    tells = sequence.entry[~sequence.asked]
    chunk = _chunk_of(told, tells)
    if len(chunk):
        settings.task.check(chunk)
    model = model.but(store=store.noted(**counts))
    parts: list[Any] = []
    start, done, n = 0, 0, len(sequence.row)
    while start < n:
        stop = _end_of_piece(model, sequence, chunk, start, done, settings)
        piece = sequence[start:stop]
        n_told = int((~piece.asked).sum())
        model, answers = _piece(model, piece, asked, chunk[done : done + n_told], settings)
        model = _ask_again(model, settings)
        if answers is not None:
            parts.append(answers)
        start, done = stop, done + n_told
    return model, settings.task.answers(model, parts)


def _resolved(
    store: Store, asked: Asked, told: Told, strict: bool
) -> tuple[_Sequence, dict[str, int]]:
    """The events in their order, without targets that change nothing; these are counted."""
    counts = dict.fromkeys(("repeated", "corrected", "too_late", "unknown"), 0)
    new = {key: k for k, key in enumerate(asked.ids)}
    fates: dict[int, tuple[int, Any]] = {}
    rows, entries, before = [], [], []
    for entry, (key, place) in enumerate(zip(told.ids, told.before.tolist(), strict=True)):
        k = new.get(key, -1)
        row, status, target = store.find(key) if not 0 <= k < place else (store.stop + k, 0, None)
        if row < 0:
            if strict:
                raise InvalidInput(
                    f"ids holds {check.shown(key)}, which is not the id of a row that waits: it "
                    "was not asked for, or expired long ago (see max_waiting and max_age); leave "
                    'it out, or pass unknown="skip"'
                )
            counts["unknown"] += 1
            continue
        status, target = fates.get(row, (status, target))
        if status == EXPIRED:
            counts["too_late"] += 1
            continue
        now = told.targets[entry]
        if status == TOLD:
            if _same(target, now):
                counts["repeated"] += 1
                continue
            counts["corrected"] += 1
        fates[row] = TOLD, now
        rows.append(row)
        entries.append(entry)
        before.append(place)
    n_asked = len(asked)
    asks, every = np.arange(n_asked), np.array([*range(store.stop, store.stop + n_asked), *rows])
    # A target that comes before row k of the call stands before it.
    order = np.argsort(np.concatenate([asks, np.array(before) - 0.5]), kind="stable")
    entry_of = np.concatenate([asks, np.array(entries, np.int64)])
    return _Sequence(order < n_asked, every.astype(np.int64)[order], entry_of[order]), counts


def _same(one: Any, other: Any) -> bool:
    """Whether two targets are equal; what is unknown equals what is unknown."""
    if one is None or other is None:
        return one is other
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray | float):
        return np.array_equal(one, other, equal_nan=True)
    return bool(one == other)


def _chunk_of(told: Told, entries: Array) -> Chunk:
    """Targets in the order of their events; the rows are found piece by piece."""
    targets = told.targets
    if isinstance(targets, np.ndarray):
        targets = targets[entries]
    else:
        targets = [targets[entry] for entry in entries.tolist()]
    weight = None if told.weight is None else told.weight[entries]
    return Chunk(np.empty((len(entries), 0)), targets, weight, None, None)


def _end_of_piece(
    model: Model, sequence: _Sequence, chunk: Chunk, start: int, done: int, settings: Settings
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
    store = model.store
    assert store is not None
    if _judges(settings) and store.again < store.blank:
        n_told = min(n_told, max(store.again - model.n_targets, 1))
    if model.state is None:
        n_told = min(n_told, int(np.argmax(np.r_[np.diff(places) > 1, True])) + 1)
    return start + int(places[min(n_told, len(places)) - 1]) + 1


def _judges(settings: Settings) -> bool:
    return settings.policy.judges and settings.transition == "example"


def _piece(
    model: Model, piece: _Sequence, asked: Asked, chunk: Chunk, settings: Settings
) -> tuple[Model, Any]:
    """Events among which only the last may bring a class."""
    own, judges = piece.entry[piece.asked], _judges(settings)
    if len(chunk) == 0 and model.state is None:  # nothing is known
        model = _appended(model, asked, own, Kept.blank(len(own), NOTHING))
        return model, settings.task.nothing_known(len(own))
    sizes = _sizes(model, chunk, settings) if judges else NOTHING
    rows = _gathered(model, piece, asked, sizes)
    events = _timed(model, piece.asked, rows, settings)
    advance = _judged if judges else _by_runs
    after, answers = advance(model, rows.scaled, chunk, events, rows.kept, settings)
    tells = ~piece.asked
    last, time = int(np.max(rows.number[tells], initial=model.last)), model.time
    if rows.time is not None and len(chunk):
        time = float(np.max(rows.time[tells], initial=-np.inf if time is None else time))
    after = _appended(after.but(last=last, time=time), asked, own, rows.kept)
    if not len(chunk):
        return after, answers
    assert after.store is not None
    store = after.store.told(piece.row[tells].tolist(), list(chunk.targets))
    return after.but(store=store), answers if len(own) else None


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of n events.

    Attributes
    ----------
    scaled, number, time : (n, d), (n,), (n,) or None
        As in `Block`.
    slot : (n,)
        The place of each in ``kept``: first those that are asked for, then those of the store.
    kept : Kept
    """

    scaled: Array
    number: Array
    time: Array | None
    slot: Array
    kept: Kept


def _gathered(model: Model, piece: _Sequence, asked: Asked, sizes: Sizes) -> _Rows:
    """The rows of a piece: of the call those that are asked for in it, of the store the others."""
    store, own = model.store, piece.entry[piece.asked]
    assert store is not None
    old, n_own, n_columns = np.flatnonzero(piece.row < store.stop), len(own), _width(model)
    scaled, times, numbers, kept = store.take(piece.row[old], n_columns, sizes)
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
    slot = piece.row - store.stop
    slot[old] = n_own + np.arange(len(old))
    timed = len(times) > 0 and times[0] == times[0]
    return _Rows(scaled[slot], numbers[slot], times[slot] if timed else None, slot, kept)


def _width(model: Model) -> int:
    """Columns of rows that were scaled; columns that came later are 0 in earlier rows."""
    assert model.store is not None
    width = model.representation.width(model.fitted["n_features_in_"])
    return model.store.n_columns if width is None else width


def _appended(model: Model, asked: Asked, own: Array, kept: Kept) -> Model:
    """The model after rows were asked for, with what was said of them."""
    if not len(own):
        return model
    assert model.store is not None
    times = None if asked.times is None else asked.times[own]
    numbers = model.came + np.arange(len(own))
    ids = [asked.ids[k] for k in own.tolist()]
    store = model.store.appended(asked.rows[own], times, numbers, ids, kept)
    return model.but(store=store, came=model.came + len(own))


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
    n_terms = Stack.n_terms(policy.n_filters) if stacked else 0
    n_scales = policy.n_filters if policy.learns_scale else 0
    return policy.n_filters, n_outputs, n_experts, n_terms, n_scales


def _judged(
    before: Model, rows: Array, chunk: Chunk, events: Events, kept: Kept, settings: Settings
) -> tuple[Model, Any]:
    """Advance the filters over the events; weigh them one step ahead, and by what they said."""
    policy, task = settings.policy, settings.task
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
    given = {"noise_var": settings.noise_var}
    after, step, far = policy.step_events(
        state, phi, targets, weight, events, **given, prior_var=settings.prior_var
    )
    task.keep(before, kept, targets, weight, state.seen, events)
    judge = before.late or policy.late_judge(state, kept.sizes[2])
    judge, by_late, judged = policy.judge(
        *(judge, step, far, targets, weight, events, kept), **given, n_targets=model.n_targets
    )
    n_targets = model.n_targets + int((weight[tells] > 0.0).sum())
    model = model.but(state=after, late=judge, n_targets=n_targets)
    if len(tells):
        told = step.take(tells)
        belief = policy.belief(told, read.gap, settings.transition, model.watch.now)
        watch = model.watch.after(policy.watched, *belief, policy.evidence(told))
        model = model.but(watch=watch, last_step=told.bank.tail(LAST_ROWS))
    return task.judge(before, model, targets, weight, step, by_late, events, judged, kept, settings)


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
            step = predict_features(model, phi[part], settings, events.gap[part])
            parts.append(task.predict(model, step, settings))
    # What was learned counts as rows that came, but they were asked for before.
    model = model.but(came=before.came, last=before.last, time=before.time)
    return model, task.together(parts) if parts else None


def _ask_again(model: Model, settings: Settings) -> Model:
    """Predict some rows that were asked for when nothing was known; nobody sees the prediction.

    So filters are judged long before the first row comes back that was asked for later.
    """
    store = model.store
    if store is None or model.state is None or not _judges(settings):
        return model
    if model.n_targets < store.again or store.again >= store.blank:
        return model
    again = 2 * model.n_targets
    rows = store.blanks(model.n_targets)
    if not len(rows):
        return model.but(store=replace(store, again=again))
    sizes = _sizes(model, Chunk(np.empty((0, 0)), [], None, None, None), settings)
    columns, times, numbers, kept = store.take(rows, _width(model), sizes)
    every = np.arange(len(rows))
    timed = times[0] == times[0]
    gathered = _Rows(columns, numbers, times if timed else None, every, kept)
    events = _timed(model, np.ones(len(rows), bool), gathered, settings)
    nothing = Chunk(np.empty((0, columns.shape[1])), [], None, None, None)
    _judged(model, columns, nothing, events, kept, settings)
    return model.but(store=store.kept(rows, kept, again))


def expired(model: Model, max_waiting: int, max_age: float | None, settings: Settings) -> Model:
    """The model after rows that wait too long were given up."""
    store = model.store
    if store is None:
        return model
    oldest, earliest = 0, None
    if max_age is not None:
        if store.has_times:
            earliest = store.newest - max_age * settings.unit
        else:
            oldest = store.stop - int(max_age)
    return model.but(store=store.expired(max_waiting, oldest, earliest))


def read_told(ids: Any, targets: Any, weight: Array | None, before: Any, n_asked: int) -> Told:
    """Targets that are told, checked."""
    keys = listed("ids", ids)
    if len(keys) != len(targets):
        raise InvalidInput(f"ids has {len(keys)} ids for {len(targets)} targets; give one for each")
    places = np.full(len(keys), n_asked)
    if before is not None and len(keys):
        places = np.asarray(before)
    if places.shape != (len(keys),) or places.dtype.kind not in "iu":
        raise InvalidInput(f"before must be {len(keys)} whole numbers, got {check.shown(before)}")
    if len(places) and not (places.min() >= 0 and places.max() <= n_asked):
        raise InvalidInput(f"before must lie between 0 and the {n_asked} rows of X")
    if (np.diff(places) < 0).any():
        raise InvalidInput("before decreases; give the targets in the order in which they came")
    return Told(keys, targets, weight, places.astype(np.int64))


def no_rows(n_columns: int) -> Asked:
    """Nothing is asked for."""
    return Asked(np.empty((0, n_columns)), None, [])
