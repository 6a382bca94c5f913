"""Rows that were asked for and wait for their targets, with what was predicted about them.

A `Store` is never changed: copies of a model share it, and an interrupt leaves the one before a
call or the one after it. A `Book` enters the events of one call.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from immutables import Map
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.judging import Kept, Sizes
from kalstream.errors import InvalidInput
from kalstream.estimators import _ids

Array = NDArray[Any]

# So many rows whose targets came, or that expired, are remembered, for corrections.
_REMEMBERED: Final = 10_000
# What has become of a row.
WAITS, TOLD, EXPIRED = range(3)
# Sizes of what is kept of a row if nothing was predicted.
NOTHING: Final[Sizes] = (0, 0, 0, 0, 0)
# Rows in one block: a call copies the blocks that it changes.
_BLOCK: Final = 64
# Rows whose predictions are checked at once when a file is read.
_PIECE: Final = 4096


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many rows wait for their targets, and what became of the others.

    Attributes
    ----------
    waiting : int
        Rows that wait.
    asked, told : int
        Rows that were asked for, and those whose targets came.
    expired : int
        Rows that waited too long (see ``max_waiting`` and ``max_age``), or were given up by
        ``drop_waiting(ids)``.
    repeated, corrected : int
        Targets that were told again: the same ones, which changed nothing, and others, which were
        learned as well.
    too_late, unknown : int
        Targets that came after their rows had expired, and targets of ids that nobody knows.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> model = KalmanClassifier(features="raw")
    >>> _ = model.ask([[1.0], [-1.0], [2.0]], ids=["a", "b", "c"])
    >>> model.tell(["b", "a"], ["down", "up"]).waiting_.waiting
    1
    """

    waiting: int = 0
    asked: int = 0
    told: int = 0
    expired: int = 0
    repeated: int = 0
    corrected: int = 0
    too_late: int = 0
    unknown: int = 0


_COUNTS: Final = attrgetter(*Waiting.__slots__)


class StoredRow(NamedTuple):
    """A row that was asked for. Bytes, because a view would keep all rows of its call alive.

    Attributes
    ----------
    id : Hashable
    number : int
        Its place among all rows that came.
    time : float
        NaN without times.
    columns : bytes
        d scaled columns, float64; none of a row that has expired.
    sizes, kept : Sizes, bytes
        What was predicted, as a row of `Kept.packed`; no bytes if nothing was.
    status : WAITS, TOLD or EXPIRED
    target : object
        None while it waits.
    """

    id: Hashable
    number: int
    time: float
    columns: bytes
    sizes: Sizes = NOTHING
    kept: bytes = b""
    status: int = WAITS
    target: Any = None


@dataclass(frozen=True, slots=True)
class Store:
    """The rows that wait, and the last ones that no longer do. Never changed.

    Rows are numbered from 0 in the order in which they were asked for.

    Attributes
    ----------
    blocks : Map of int to {number: StoredRow}
        Rows by their number divided by `_BLOCK`.
    ids : Map of id to number
        The last row of each id.
    done : (n,)
        Numbers of remembered rows that no longer wait, in the order in which they ended to.
    stop : int
        Rows that were asked for.
    oldest : int
        No row before this one waits.
    n_columns : int
        Columns of the last rows; earlier ones may have fewer.
    newest : float
        Time of the last row; NaN without.
    blank, again : int
        Rows before ``blank`` were asked for when nothing was known; those before ``again`` have
        been predicted since.
    counts : Waiting
    """

    blocks: Map[int, dict[int, StoredRow]] = field(default_factory=Map)
    ids: Map[Hashable, int] = field(default_factory=Map)
    done: Array = field(default_factory=lambda: np.empty(0, np.int64))
    stop: int = 0
    oldest: int = 0
    n_columns: int = 0
    newest: float = float("nan")
    blank: int = 0
    again: int = 0
    counts: Waiting = field(default_factory=Waiting)

    @property
    def has_times(self) -> bool:
        """Whether rows came with times."""
        return self.newest == self.newest

    @property
    def rows(self) -> dict[int, StoredRow]:
        """All rows by their numbers, in this order."""
        return {n: self.blocks[k][n] for k in sorted(self.blocks) for n in sorted(self.blocks[k])}

    @property
    def nbytes(self) -> int:
        """Bytes of the columns of all rows, and of what was predicted of them."""
        return sum(len(row.columns) + len(row.kept) for row in self.rows.values())

    def row(self, number: int) -> StoredRow | None:
        """The row of a number."""
        block = self.blocks.get(number // _BLOCK)
        return None if block is None else block.get(number)

    @property
    def is_plain(self) -> bool:
        """Whether rows came without times, and none has to be predicted again."""
        return self.newest != self.newest and self.again >= self.blank

    def asked(self, row: StoredRow, max_waiting: int, max_age: float | None) -> Store:
        """The store after one row was asked for; it is plain."""
        waits = self.row(self.ids.get(row.id, -1))
        waiting, asked, *others = _COUNTS(self.counts)
        n_columns = len(row.columns) // 8
        if (
            max_age is not None
            or waiting >= max_waiting
            or (waits is not None and waits.status == WAITS)
        ):
            book = Book(self, max_waiting, max_age)
            book.ask(row, 0)
            book.n_columns = n_columns
            return book.store()
        number, k = self.stop, self.stop // _BLOCK
        return check.trusted(
            Store,
            self.blocks.set(k, {**self.blocks.get(k, {}), number: row}),
            self.ids.set(row.id, number),
            *(self.done, number + 1, self.oldest, n_columns, self.newest, self.blank, self.again),
            check.trusted(Waiting, waiting + 1, asked + 1, *others),
        )

    def told(self, number: int, row: StoredRow, target: Any) -> Store:
        """The store after the target of a row that waits was told."""
        if len(self.done) >= _REMEMBERED:
            book = Book(self, self.stop, None)
            book.tell(row.id, target, 0, strict=True)
            return book.store()
        k, (waiting, asked, told, *others) = number // _BLOCK, _COUNTS(self.counts)
        ended = StoredRow._make((*row[:6], TOLD, target))
        places = self.stop, self.oldest, self.n_columns, self.newest, self.blank, self.again
        return check.trusted(
            Store,
            self.blocks.set(k, self.blocks[k] | {number: ended}),
            self.ids,
            np.concatenate([self.done, [number]]),
            *places,
            check.trusted(Waiting, waiting - 1, asked, told + 1, *others),
        )

    def without(self, ids: list[Hashable]) -> Store:
        """The store after some rows that wait were given up."""
        book = Book(self, self.stop, None)
        for key in ids:
            book.drop(key)
        return book.store()

    def without_predictions(self) -> Store:
        """The store after what was predicted of its rows has lost its meaning."""
        rows = {n: row._replace(sizes=NOTHING, kept=b"") for n, row in self.rows.items()}
        return replace(self, blocks=_changed(Map(), rows))

    # ---- files ----------------------------------------------------------------------------

    def packed(self) -> dict[str, Any]:
        """All of it, as values that a checkpoint holds; the inverse is `unpacked`."""
        numbered = self.rows
        rows = list(numbered.values())
        groups = [
            {
                "places": np.array(places),
                "sizes": sizes,
                "columns": _matrix([rows[k].columns for k in places]),
                "kept": _matrix([rows[k].kept for k in places]),
            }
            for (_, sizes), places in _grouped(rows).items()
        ]
        targets: Any = [row.target for row in rows if row.status == TOLD]
        if targets and all(isinstance(target, np.ndarray | np.floating) for target in targets):
            targets = np.array(targets)
        return {
            "rows": np.array(list(numbered), np.int64),
            "numbers": np.array([row.number for row in rows], np.int64),
            "times": np.array([row.time for row in rows], np.float64),
            "status": np.array([row.status for row in rows], np.int8),
            "ids": _ids.packed([row.id for row in rows]),
            "targets": targets,
            "groups": groups,
            "done": self.done,
            **{name: getattr(self, name) for name in _BESIDE},
        }

    @classmethod
    def unpacked(
        cls,
        rows: Array,
        numbers: Array,
        times: Array,
        status: Array,
        ids: Any,
        targets: Any,
        groups: list[dict[str, Any]],
        done: Array,
        *,
        build: bool = True,
        **more: Any,
    ) -> Store:
        """The store that `packed` returned; raises ValueError if its parts do not fit.

        Without ``build`` all but the ids is checked, and an empty store is returned.
        """
        n = len(rows)
        each = ("rows", rows, "int64"), ("numbers", numbers, "int64"), ("times", times, "float64")
        for name, part, dtype in (*each, ("status", status, "int8")):
            _need(_is_array(part, dtype, (n,)), f"{name} must be {n} of {dtype}")
        _need(np.isin(status, (WAITS, TOLD, EXPIRED)).all(), "status must be one of three")
        n_told = int(np.count_nonzero(status == TOLD))
        _need(len(targets) == n_told, "targets must be of the rows that were told")
        _need(not np.isinf(times).any(), "times must be finite or missing")
        _check_groups(groups, n)
        _need(set(more) == set(_BESIDE), "all that is beside the rows must be there")
        store = cls(done=done, **more)
        _check_counts(store, rows, status)
        if not build:
            return cls()
        keys, place = _ids.unpacked(ids), rows.tolist()
        _need(len(keys) == n, f"ids must be {n}")
        told = iter(targets)
        values = [next(told) if each == TOLD else None for each in status.tolist()]
        parts = keys, numbers.tolist(), times.tolist(), *_ungrouped(groups, n), status.tolist()
        each_row = zip(*parts, values, strict=True)
        made = dict(zip(place, map(partial(tuple.__new__, StoredRow), each_row), strict=True))
        ids = Map(zip(keys, place, strict=True))
        return replace(store, blocks=_changed(Map(), made), ids=ids)


# What a store holds beside its rows.
_BESIDE: Final = Store.__slots__[3:]


class Book:
    """What the events of one call do to a store, which itself stays as it is.

    First all events are entered, one by one. Then what is predicted of the rows is entered, while
    `blank` and `again` advance. `store` makes the store after the call.

    Attributes
    ----------
    events : list of (asked, row, entry)
        The events that count, in their order: whether a row is asked for, else its target is
        learned; the number of the row; its place among the rows asked or the targets.
    """

    def __init__(self, store: Store, max_waiting: int, max_age: float | None) -> None:
        self.before, self.max_waiting, self.max_age = store, max_waiting, max_age
        self.events: list[tuple[bool, int, int]] = []
        self.ids = store.ids.mutate()
        self.stop, self.oldest, self.newest = store.stop, store.oldest, store.newest
        self.n_columns, self.blank, self.again = store.n_columns, store.blank, store.again
        self.counts = dict(zip(Waiting.__slots__, _COUNTS(store.counts), strict=True))
        self._changed: dict[int, StoredRow] = {}
        self._ended: dict[int, int] = {}  # the event with which a row ended to wait
        self._done: list[int] = []  # those of this call
        self._n_forgotten = 0  # the first ones that are done; some may be needed to learn them

    def row(self, number: int) -> StoredRow | None:
        """A row as it is after all events, with its columns also if it is forgotten or expired."""
        row = self._changed.get(number)
        return self.before.row(number) if row is None else row

    # ---- events ---------------------------------------------------------------------------

    def ask(self, row: StoredRow, entry: int) -> None:
        """A row is asked for; then the rows that wait too long expire."""
        number = self.ids.get(row.id, -1)
        waits = self.row(number) if number >= 0 else None
        if waits is not None and waits.status == WAITS:
            if number >= self.before.stop:
                raise InvalidInput(
                    f"ids holds {check.shown(row.id)} twice; give every row an id of its own"
                )
            raise InvalidInput(
                f"ids holds {check.shown(row.id)}, and a row of this id waits for its target; tell "
                "that target first, or give the row another id"
            )
        self.events.append((True, self.stop, entry))
        self._changed[self.stop] = row
        self.ids[row.id] = self.stop
        self.stop += 1
        self.newest = row.time
        self.counts["asked"] += 1
        self.counts["waiting"] += 1
        bounded = self.max_age is not None or self.counts["waiting"] > self.max_waiting
        while bounded and self.oldest < self.stop:
            first = self.row(self.oldest)
            if first is not None and first.status == WAITS:
                if not (self.counts["waiting"] > self.max_waiting or self._is_old(first)):
                    break
                self._end(self.oldest, first, EXPIRED)
            self.oldest += 1

    def _is_old(self, row: StoredRow) -> bool:
        if self.max_age is None:
            return False
        if self.newest == self.newest:
            return row.time < self.newest - self.max_age
        return self.stop - 1 - self.oldest > self.max_age

    def tell(self, key: Hashable, target: Any, entry: int, *, strict: bool) -> None:
        """A target has come; with ``strict`` an id that nobody knows is an error."""
        number = self.ids.get(key, -1)
        row = self.row(number)
        if row is None:
            if strict:
                raise InvalidInput(
                    f"ids holds {check.shown(key)}, which is not the id of a row that waits: it "
                    "was not asked for, or expired long ago (see max_waiting and max_age); leave "
                    'it out, or pass unknown="skip"'
                )
            self.counts["unknown"] += 1
        elif row.status == EXPIRED:
            self.counts["too_late"] += 1
        elif row.status == TOLD and _same(row.target, target):
            self.counts["repeated"] += 1
        else:
            self.events.append((False, number, entry))
            if row.status == TOLD:
                self.counts["corrected"] += 1
                self._changed[number] = row._replace(target=target)
            else:
                self._end(number, row, TOLD, target)

    def drop(self, key: Hashable) -> None:
        """A row that waits is given up."""
        number = self.ids.get(key, -1)
        row = self.row(number)
        if row is None or row.status != WAITS:
            raise InvalidInput(
                f"ids holds {check.shown(key)}, which is not the id of a row that waits; give ids "
                "of waiting_ids_, each once"
            )
        self._end(number, row, EXPIRED)

    def _end(self, number: int, row: StoredRow, status: int, target: Any = None) -> None:
        """A row ends to wait; the one that did so longest ago is forgotten."""
        self._changed[number] = StoredRow._make((*row[:6], status, target))
        self._ended[number] = len(self.events) - 1
        self._done.append(number)
        self.counts["waiting"] -= 1
        self.counts["told" if status == TOLD else "expired"] += 1
        n_before = len(self.before.done)
        while n_before + len(self._done) - self._n_forgotten > _REMEMBERED:
            k = self._n_forgotten
            last = int(self.before.done[k]) if k < n_before else self._done[k - n_before]
            self._n_forgotten += 1
            forgotten = self.row(last)
            assert forgotten is not None
            if self.ids.get(forgotten.id) == last:
                del self.ids[forgotten.id]

    # ---- predictions ----------------------------------------------------------------------

    def take(
        self, numbers: Sequence[int], n_columns: int, sizes: Sizes
    ) -> tuple[Array, Array, Array | None, Kept]:
        """Columns (n, d), numbers and times (n,) of rows, and what was predicted in these sizes."""
        rows = [row for number in numbers if (row := self.row(number)) is not None]
        came, times = np.array([row.number for row in rows], np.int64), None
        if all(row.time == row.time for row in rows):
            times = np.array([row.time for row in rows], np.float64)
        groups = _grouped(rows)
        if list(groups) == [(8 * n_columns, sizes)] and sizes != NOTHING:  # as it mostly is
            kept = Kept.unpacked(_matrix([row.kept for row in rows]), sizes)
            return _matrix([row.columns for row in rows]), came, times, kept
        columns, kept = np.zeros((len(rows), n_columns)), Kept.blank(len(rows), sizes)
        for (width, own), places in groups.items():
            here = np.array(places)
            columns[here, : width // 8] = _matrix([rows[k].columns for k in places])
            if own != NOTHING and _fits(own, sizes):
                matrix = _matrix([rows[k].kept for k in places])
                kept.put(here, Kept.unpacked(matrix, own), np.arange(len(here)))
        return columns, came, times, kept

    def predicted(self, numbers: Sequence[int], kept: Kept) -> None:
        """Enter what was predicted of rows, the first ones of ``kept``."""
        sizes = kept.sizes
        if sizes == NOTHING:
            return
        data = kept.packed().tobytes()
        width = len(data) // len(kept.said)
        for k, number in enumerate(numbers):
            self.keep(number, sizes, data[k * width : (k + 1) * width])

    def keep(self, number: int, sizes: Sizes, kept: bytes) -> None:
        """Enter what was predicted of a row, in these sizes."""
        row = self.row(number)
        if row is not None and row.status != EXPIRED:
            self._changed[number] = StoredRow._make((*row[:4], sizes, kept, *row[6:]))

    def blanks(self, n_targets: int, n_events: int) -> list[int]:
        """Rows to predict after so many events, of those asked for when nothing was known.

        A row is predicted when half as many targets are known as rows came before it, so that
        filters are judged over growing distances.
        """
        numbers = range(self.again, min(self.blank, 2 * n_targets))
        return [number for number in numbers if self._waits(number, n_events)]

    def _waits(self, number: int, n_events: int) -> bool:
        """Whether a row waits after so many events of the call."""
        row = self.row(number)
        if row is None or row.status == EXPIRED:
            return False
        return row.status == WAITS or self._ended.get(number, -1) >= n_events

    def store(self) -> Store:
        """The store after the call."""
        n, done = self._n_forgotten, self.before.done
        changed: dict[int, StoredRow | None] = {**self._changed}
        if self._done:
            done = np.concatenate([done, np.array(self._done, np.int64)])
            for number in self._done:
                if (row := self._changed[number]).status == EXPIRED:
                    changed[number] = row._replace(columns=b"", sizes=NOTHING, kept=b"")
        if n:
            changed |= dict.fromkeys(done[:n].tolist())
        return check.trusted(
            Store,
            _changed(self.before.blocks, changed),
            self.ids.finish(),
            done[n:],
            self.stop,
            self.oldest,
            self.n_columns,
            self.newest,
            self.blank,
            self.again,
            check.trusted(Waiting, *self.counts.values()),
        )


def _changed(
    blocks: Map[int, dict[int, StoredRow]], rows: Mapping[int, StoredRow | None]
) -> Map[int, dict[int, StoredRow]]:
    """Blocks with these rows, and without those that are None."""
    made: dict[int, dict[int, StoredRow]] = {}
    for number, row in rows.items():
        k = number // _BLOCK
        block = made.get(k)
        if block is None:
            block = made[k] = dict(blocks.get(k, ()))
        if row is None:
            block.pop(number, None)  # not there if it was asked for in this call
        else:
            block[number] = row
    after = blocks.mutate()
    for k, block in made.items():
        if block:
            after[k] = block
        else:
            after.pop(k, None)
    return after.finish()


def _same(one: Any, other: Any) -> bool:
    """Whether two targets are equal; what is unknown equals what is unknown."""
    if one is None or other is None:
        return one is other
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray | float):
        return np.array_equal(one, other, equal_nan=True)
    return bool(one == other)


def _fits(small: Sizes, large: Sizes) -> bool:
    """Whether what so many filters and experts predicted means the same in other sizes."""
    return small[1] <= large[1] and (small[0], *small[2:]) == (large[0], *large[2:])


def _grouped(rows: list[StoredRow]) -> dict[tuple[int, Sizes], list[int]]:
    """Places of rows with as many columns and the same sizes."""
    groups: dict[tuple[int, Sizes], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault((len(row.columns), row.sizes), []).append(place)
    return groups


def _matrix(rows: list[bytes]) -> Array:
    """Rows of float64 as a matrix (n, w)."""
    return np.frombuffer(b"".join(rows)).reshape(len(rows), len(rows[0]) // 8)


def _check_groups(groups: list[dict[str, Any]], n: int) -> None:
    """Raise ValueError unless these are what `packed` makes of n rows."""
    every = [group["places"] for group in groups]
    places = np.sort(np.concatenate(every)) if every else np.empty(0, np.int64)
    _need(np.array_equal(places, np.arange(n)), "every row must be in one group")
    for group in groups:
        n_here, own = len(group["places"]), group["sizes"]
        _need(_is_array(group["columns"], "float64", (n_here, -1)), "columns must be float64")
        _need(not np.isinf(group["columns"]).any(), "columns must be finite or missing")
        _need(_is_array(group["kept"], "float64", (n_here, -1)), "kept must be float64")
        _need(
            isinstance(own, tuple) and len(own) == 5 and all(type(k) is int for k in own),
            "sizes must be five whole numbers",
        )
        if own == NOTHING:
            _need(group["kept"].size == 0, "kept must be empty if nothing was predicted")
            continue
        for start in range(0, n_here, _PIECE):  # few at a time: there may be a million
            piece = group["kept"][start : start + _PIECE]
            _need(np.isfinite(piece).all(), "kept must be finite")
            predicted = Kept.unpacked(piece, own)
            _need((predicted.variances >= 0.0).all(), "variances must be at least 0")
            _need((predicted.n_targets >= 0).all(), "n_targets must be at least 0")


def _ungrouped(
    groups: list[dict[str, Any]], n: int
) -> tuple[list[bytes], list[Sizes], list[bytes]]:
    """Columns, sizes and what was predicted of n rows; the inverse of what `packed` does."""
    columns, sizes, kept = [b""] * n, [NOTHING] * n, [b""] * n
    for group in groups:
        places, own = group["places"].tolist(), group["sizes"]
        parts = _bytes_of(group["columns"]), _bytes_of(group["kept"])
        for place, row, predicted in zip(places, *parts, strict=True):
            columns[place], sizes[place], kept[place] = row, own, predicted
    return columns, sizes, kept


def _bytes_of(matrix: Array) -> list[bytes]:
    """Each row of a matrix (n, w); the inverse is `_matrix`."""
    n, width = matrix.shape
    if width == 0:
        return [b""] * n
    rows: list[bytes] = np.ascontiguousarray(matrix).view(f"V{8 * width}")[:, 0].tolist()
    return rows


def _check_counts(store: Store, rows: Array, status: Array) -> None:
    """Raise ValueError unless what a store holds beside its rows is of rows of these numbers."""
    stop, oldest, blank, done = store.stop, store.oldest, store.blank, store.done
    whole = all(type(k) is int for k in (stop, oldest, store.n_columns, blank, store.again))
    is_number = type(store.newest) is float and abs(store.newest) != np.inf
    _need(whole and is_number, "places must be numbers")
    _need(min(store.n_columns, store.again) >= 0, "places must be at least 0")
    ends = [0, *rows[:1].tolist(), *rows[-1:].tolist(), stop - 1]
    in_order = (np.diff(rows) > 0).all() and (not len(rows) or ends == sorted(ends))
    in_order &= 0 <= oldest <= stop and 0 <= blank <= stop
    _need(in_order, "they must be numbered from front to back")
    waiting = int(np.count_nonzero(status == WAITS))
    _need(not (rows[status == WAITS] < oldest).any(), "none may wait before the oldest")
    ended = _is_array(done, "int64", (len(rows) - waiting,))
    ended = ended and np.array_equal(np.sort(done), rows[status != WAITS])
    _need(ended, "done must be the rows that ended")
    counts = store.counts
    each = [getattr(counts, name, None) for name in Waiting.__slots__]
    _need(all(type(n) is int and n >= 0 for n in each), "store.counts must be integers from 0 on")
    fits = counts.waiting == waiting and counts.told + counts.expired >= len(done)
    _need(fits, f"store.counts must be of {waiting} that wait and {len(done)} that do not")


def _is_array(value: Any, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether this is an array of a dtype and a shape, in which -1 is any number."""
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != len(shape):
        return False
    return all(want in (-1, size) for want, size in zip(shape, value.shape, strict=True))


def _need(fits: Any, what: str) -> None:
    if not fits:
        raise ValueError(f"of the rows that wait, {what}")


def read_bounds(max_waiting: Any, max_age: Any) -> tuple[int, float | None]:
    """Bounds on the number and the age of rows that wait."""
    if max_age is not None:
        max_age = check.positive("max_age", max_age)
    return check.count("max_waiting", max_waiting), max_age
