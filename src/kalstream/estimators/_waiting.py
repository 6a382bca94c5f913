"""Rows that were asked for and wait for their targets, with what was said about them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.judging import Kept, Sizes
from kalstream.core.state import Claims
from kalstream.errors import InvalidInput

Array = NDArray[Any]

# Rows of a block. A block is copied when one of its targets is told.
_BLOCK: Final = 512
# So many rows whose targets were told are remembered, for corrections.
_REMEMBERED: Final = 10_000
# A state this many calls behind finds its rows claimed.
_CLAIMS: Final = 16
# What has become of a row.
WAITS, TOLD, EXPIRED = range(3)
# Sizes of what is kept of a row if nothing was said.
NOTHING: Final[Sizes] = (0, 0, 0, 0, 0)


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
        Rows that waited too long: see ``max_waiting`` and ``max_age``.
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


class _Growing(Claims):
    """Claims of something that grows for a long time: only the last ones are kept."""

    __slots__ = ("low",)

    def __init__(self) -> None:
        super().__init__()
        self.low = 0

    def claim(self, start: int) -> bool:
        """As `Claims.claim`."""
        if start < self.low or not super().claim(start):
            return False
        while len(self.claims) > _CLAIMS:
            oldest = next(iter(self.claims))
            self.low = max(self.low, oldest + 1)
            self.claims.pop(oldest, None)
        return True


class Index(_Growing):
    """The number of the row behind each id. Later states add to it; see `Claims`.

    An entry counts only for a state that has come as far as its row.
    """

    __slots__ = ("numbers",)

    def __init__(self, numbers: dict[Hashable, int]) -> None:
        super().__init__()
        self.numbers = numbers

    def __reduce__(self) -> tuple[Any, ...]:
        return Index, (dict(self.numbers),)


class Block(_Growing):
    """Rows ``start`` to ``start + capacity``; the arrays are filled from front to back.

    Attributes
    ----------
    rows, times, numbers : (B, d), (B,), (B,)
        Scaled columns, times (NaN without), and the place of each row among all that came.
    ids : list of B ids
    kept : Kept
        What was said.
    """

    __slots__ = ("ids", "kept", "numbers", "rows", "start", "times")

    def __init__(
        self, start: int, rows: Array, times: Array, numbers: Array, ids: list[Any], kept: Kept
    ) -> None:
        super().__init__()
        self.start, self.rows, self.times, self.numbers = start, rows, times, numbers
        self.ids, self.kept = ids, kept

    @classmethod
    def empty(cls, start: int, capacity: int, n_columns: int, sizes: Sizes) -> Block:
        """Room for rows."""
        parts = np.zeros((capacity, n_columns)), np.full(capacity, np.nan)
        numbers = np.zeros(capacity, np.int64)
        return cls(start, *parts, numbers, [None] * capacity, Kept.blank(capacity, sizes))

    def holds(self, n_columns: int, sizes: Sizes, n: int) -> bool:
        """Whether there is room for a row of this kind behind the first n."""
        fits = self.kept.sizes == sizes and self.rows.shape[1] == n_columns
        return fits and n < len(self.rows)

    def copy(self, n: int, sizes: Sizes, n_columns: int) -> Block:
        """The first n rows with room for as many as before, of at least these sizes."""
        other = Block.empty(self.start, len(self.rows), n_columns, sizes)
        other.rows[:n, : self.rows.shape[1]] = self.rows[:n]
        other.times[:n], other.numbers[:n] = self.times[:n], self.numbers[:n]
        other.ids[:n] = self.ids[:n]
        every = np.arange(n)
        other.kept.put(every, self.kept, every)
        other.claim(0)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self.start, self.rows, self.times, self.numbers, self.ids, self.kept
        return Block, parts


@dataclass(frozen=True, slots=True)
class Fate:
    """What has become of the rows of a block. Never changed.

    Attributes
    ----------
    status : (B,) of WAITS, TOLD or EXPIRED
    targets : (B,) objects
        What was told.
    n : int
        Rows of the block that were asked for.
    n_waiting : int
    """

    status: Array
    targets: Array
    n: int
    n_waiting: int

    @classmethod
    def new(cls, capacity: int) -> Fate:
        """No row yet."""
        return cls(np.zeros(capacity, np.int8), np.empty(capacity, object), 0, 0)


@dataclass(frozen=True, slots=True)
class Store:
    """The rows that wait, and some of those whose targets came. Never changed.

    Rows are numbered from 0 in the order in which they were asked for.

    Attributes
    ----------
    blocks, fates : tuples
        None in place of a block of which no row is needed any more.
    starts : tuple of int
        First row of each block.
    index : Index
    stop : int
        Rows that were asked for.
    oldest : int
        No row before this one waits.
    remembered : int
        Rows in the blocks that were told.
    blank, again : int
        Rows before ``blank`` were asked for when nothing was known; those before ``again`` have
        been predicted since.
    counts : Waiting
    """

    blocks: tuple[Block | None, ...] = ()
    fates: tuple[Fate | None, ...] = ()
    starts: tuple[int, ...] = ()
    index: Index = field(default_factory=lambda: Index({}))
    stop: int = 0
    oldest: int = 0
    remembered: int = 0
    blank: int = 0
    again: int = 0
    counts: Waiting = field(default_factory=Waiting)

    # ---- reading --------------------------------------------------------------------------

    @property
    def n_columns(self) -> int:
        """Columns of the last rows; earlier ones may have fewer."""
        return max((b.rows.shape[1] for b in self.blocks[-1:] if b is not None), default=0)

    @property
    def has_times(self) -> bool:
        """Whether rows came with times."""
        return self.newest == self.newest

    @property
    def newest(self) -> float:
        """Time of the last row; NaN without."""
        block, fate = (self.blocks[-1], self.fates[-1]) if self.blocks else (None, None)
        return float("nan") if block is None or fate is None else float(block.times[fate.n - 1])

    def find(self, key: Hashable) -> tuple[int, int, Any]:
        """The row behind an id, what has become of it, and the target that was told.

        The row is -1 if there is none here any more.
        """
        row = self.index.numbers.get(key, -1)
        if not 0 <= row < self.stop:
            return -1, WAITS, None
        place = bisect_right(self.starts, row) - 1
        block, fate = self.blocks[place], self.fates[place]
        if block is None or fate is None or block.ids[row - block.start] != key:
            return -1, WAITS, None
        offset = row - block.start
        return row, int(fate.status[offset]), fate.targets[offset]

    def take(self, rows: Array, n_columns: int, sizes: Sizes) -> tuple[Array, Array, Array, Kept]:
        """Columns (n, d), times and numbers (n,) of rows, and what was said, in these sizes."""
        places = self._places(rows)
        columns, times = np.zeros((len(rows), n_columns)), np.empty(len(rows))
        numbers, kept = np.empty(len(rows), np.int64), Kept.blank(len(rows), sizes)
        for place in np.unique(places).tolist():
            here = np.flatnonzero(places == place)
            block = self.blocks[place]
            assert block is not None
            offsets = rows[here] - block.start
            columns[here, : block.rows.shape[1]] = block.rows[offsets]
            times[here], numbers[here] = block.times[offsets], block.numbers[offsets]
            if _fits(block.kept.sizes, sizes):
                kept.put(here, block.kept, offsets)
        return columns, times, numbers, kept

    def _places(self, rows: Array) -> Array:
        """The block of each row (n,)."""
        return np.searchsorted(np.array(self.starts), rows, side="right") - 1

    def blanks(self, n_targets: int) -> Array:
        """Rows to predict now, of those that were asked for when nothing was known.

        A row is predicted when half as many targets are known as rows came before it, so that
        filters are judged over growing distances.
        """
        if n_targets < self.again or self.again >= self.blank:
            return np.empty(0, np.int64)
        rows = np.arange(self.again, min(self.blank, 2 * n_targets))
        return rows[self.status(rows) == WAITS]

    def status(self, rows: Array) -> Array:
        """What has become of rows (n,); those whose block is gone do not wait."""
        places, status = self._places(rows), np.full(len(rows), EXPIRED)
        for place in np.unique(places[places >= 0]).tolist():
            here, fate = np.flatnonzero(places == place), self.fates[place]
            if fate is not None:
                status[here] = fate.status[rows[here] - self.starts[place]]
        return status

    # ---- changing -------------------------------------------------------------------------

    def appended(
        self, rows: Array, times: Array | None, numbers: Array, ids: Sequence[Any], kept: Kept
    ) -> Store:
        """The store with more rows (n, d) at the end; the first n of ``kept`` are of these."""
        blocks, fates, starts = list(self.blocks), list(self.fates), list(self.starts)
        index = self.index
        if not index.claim(self.stop):
            index = Index({key: row for key, row in index.numbers.items() if row < self.stop})
            index.claim(self.stop)
        done, n = 0, len(rows)
        while done < n:
            block, fate = self._room(blocks, fates, starts, rows.shape[1], kept.sizes, n - done)
            part = min(n - done, len(block.rows) - fate.n)
            here, from_ = slice(fate.n, fate.n + part), slice(done, done + part)
            block.rows[here], block.numbers[here] = rows[from_], numbers[from_]
            block.times[here] = np.nan if times is None else times[from_]
            block.ids[here] = ids[from_]
            block.kept.put(np.arange(here.start, here.stop), kept, np.arange(done, done + part))
            fates[-1] = replace(fate, n=fate.n + part, n_waiting=fate.n_waiting + part)
            done += part
        index.numbers.update(zip(ids, range(self.stop, self.stop + n), strict=True))
        is_blank = kept.sizes == NOTHING
        return replace(
            self,
            blocks=tuple(blocks),
            fates=tuple(fates),
            starts=tuple(starts),
            index=index,
            stop=self.stop + n,
            blank=self.stop + n if is_blank else self.blank,
            counts=replace(
                self.counts, waiting=self.counts.waiting + n, asked=self.counts.asked + n
            ),
        )

    def _room(
        self,
        blocks: list[Block | None],
        fates: list[Fate | None],
        starts: list[int],
        n_columns: int,
        sizes: Sizes,
        n: int,
    ) -> tuple[Block, Fate]:
        """The last block and its fate, with room for a row of this kind that is ours to fill."""
        last, fate = (blocks[-1], fates[-1]) if blocks else (None, None)
        if last is not None and fate is not None and last.holds(n_columns, sizes, fate.n):
            if not last.claim(fate.n):
                last = blocks[-1] = last.copy(fate.n, sizes, n_columns)
                last.claim(fate.n)
            return last, fate
        end = starts[-1] + (0 if fate is None else fate.n) if starts else self.stop
        if blocks and fate is None:  # its rows are gone
            end = self.stop
        block, fate = Block.empty(end, _BLOCK, n_columns, sizes), Fate.new(_BLOCK)
        block.claim(0)
        blocks.append(block)
        fates.append(fate)
        starts.append(end)
        return block, fate

    def told(self, rows: Iterable[int], targets: Iterable[Any]) -> Store:
        """The store after targets of rows have come."""
        return self._changed(rows, TOLD, targets)._forgotten()

    def _changed(self, rows: Iterable[int], status: int, targets: Iterable[Any]) -> Store:
        fates, counts = list(self.fates), self.counts
        numbers = np.fromiter(rows, np.int64)
        by_place: dict[int, list[tuple[int, Any]]] = {}
        each = zip(self._places(numbers).tolist(), numbers.tolist(), targets, strict=True)
        for place, row, target in each:
            by_place.setdefault(place, []).append((row - self.starts[place], target))
        waited = 0
        for place, changes in by_place.items():
            fate = fates[place]
            assert fate is not None
            status_of, told = fate.status.copy(), fate.targets.copy()
            n_waiting = fate.n_waiting
            for offset, target in changes:
                n_waiting -= int(status_of[offset] == WAITS)
                status_of[offset], told[offset] = status, target
            waited += fate.n_waiting - n_waiting
            fates[place] = Fate(status_of, told, fate.n, n_waiting)
        counts = replace(
            counts,
            waiting=counts.waiting - waited,
            told=counts.told + (waited if status == TOLD else 0),
            expired=counts.expired + (waited if status == EXPIRED else 0),
        )
        remembered = self.remembered + waited
        return replace(self, fates=tuple(fates), remembered=remembered, counts=counts)

    def _forgotten(self) -> Store:
        """The store without blocks in which no row waits, if it remembers too many rows."""
        if self.remembered <= _REMEMBERED + _BLOCK:
            return self
        blocks, fates, remembered = list(self.blocks), list(self.fates), self.remembered
        gone: list[Block] = []
        for place in range(len(blocks) - 1):  # the last one may still be filled
            block, fate = blocks[place], fates[place]
            if block is None or fate is None or fate.n_waiting:
                continue
            gone.append(block)
            blocks[place], fates[place] = None, None
            remembered -= fate.n
            if remembered <= _REMEMBERED:
                break
        first = next(place for place, block in enumerate(blocks) if block is not None)
        for block in gone:  # for states before this one these rows were told as well
            for offset, key in enumerate(block.ids):
                if self.index.numbers.get(key) == block.start + offset:
                    self.index.numbers.pop(key, None)
        return replace(
            self,
            blocks=tuple(blocks[first:]),
            fates=tuple(fates[first:]),
            starts=self.starts[first:],
            remembered=remembered,
        )

    def expired(self, max_waiting: int, oldest: int, earliest: float | None) -> Store:
        """The store after rows that wait too long were given up.

        At most ``max_waiting`` rows wait, none of them before the row ``oldest`` or, if times are
        given, before the time ``earliest``.
        """
        excess = self.counts.waiting - max_waiting
        gone: list[int] = []
        row = self.oldest
        for start, block, fate in zip(self.starts, self.blocks, self.fates, strict=True):
            if block is None or fate is None or start + fate.n <= row:
                continue
            for offset in range(max(row - start, 0), fate.n):
                if fate.status[offset] == WAITS:
                    old = start + offset < oldest
                    if earliest is not None:
                        old = block.times[offset] < earliest
                    if not (old or len(gone) < excess):
                        break
                    gone.append(start + offset)
                row = start + offset + 1
            else:
                continue
            break
        after = replace(self, oldest=row) if row != self.oldest else self
        if not gone:
            return after
        return after._changed(gone, EXPIRED, [None] * len(gone))._forgotten()

    def kept(self, rows: Array, kept: Kept, again: int) -> Store:
        """The store after rows that were blank have been predicted."""
        blocks, sizes = list(self.blocks), kept.sizes
        places = self._places(rows)
        for place in np.unique(places).tolist():
            here = np.flatnonzero(places == place)
            block, fate = blocks[place], self.fates[place]
            assert block is not None
            assert fate is not None
            both = tuple(max(pair) for pair in zip(sizes, block.kept.sizes, strict=True))
            other = block.copy(fate.n, both, block.rows.shape[1])
            other.claim(fate.n)
            other.kept.put(rows[here] - block.start, kept, here)
            blocks[place] = other
        return replace(self, blocks=tuple(blocks), again=again)

    def unsaid(self) -> Store:
        """The store in which nothing was said of any row: what was said has lost its meaning."""
        blocks = []
        for block, fate in zip(self.blocks, self.fates, strict=True):
            if block is not None and fate is not None:
                kept = Kept.blank(len(block.rows), NOTHING)
                parts = block.rows.copy(), block.times.copy(), block.numbers.copy()
                block = Block(block.start, *parts, block.ids.copy(), kept)
                block.claim(0)
            blocks.append(block)
        return replace(self, blocks=tuple(blocks))

    # ---- files ----------------------------------------------------------------------------

    def packed(self) -> dict[str, Any]:
        """All of it, as values that a checkpoint holds; the inverse is `unpacked`."""
        pairs = zip(self.blocks, self.fates, strict=True)
        blocks = [
            {
                "start": block.start,
                "rows": block.rows[: fate.n],
                "times": block.times[: fate.n],
                "numbers": block.numbers[: fate.n],
                "ids": block.ids[: fate.n],
                "kept": Kept(*(part[: fate.n] for part in block.kept.parts())),
                "status": fate.status[: fate.n],
                "targets": fate.targets[: fate.n].tolist(),
            }
            for block, fate in pairs
            if block is not None and fate is not None
        ]
        names = ("stop", "oldest", "blank", "again", "counts")
        return {"blocks": blocks, **{name: getattr(self, name) for name in names}}

    @classmethod
    def unpacked(
        cls,
        blocks: list[dict[str, Any]],
        stop: int,
        oldest: int,
        blank: int,
        again: int,
        counts: Waiting,
    ) -> Store:
        """The store that `packed` returned; raises ValueError if its parts do not fit."""
        made: list[Block] = []
        fates: list[Fate] = []
        index: dict[Hashable, int] = {}
        for saved in blocks:
            n = len(saved["ids"])
            kept, start = saved["kept"], saved["start"]
            _check_saved(saved, n)
            block = Block.empty(start, _BLOCK, saved["rows"].shape[1], kept.sizes)
            block.rows[:n], block.times[:n] = saved["rows"], saved["times"]
            block.numbers[:n], block.ids[:n] = saved["numbers"], saved["ids"]
            block.kept.put(np.arange(n), kept, np.arange(n))
            fate = Fate.new(_BLOCK)
            fate.status[:n] = saved["status"]
            for offset, target in enumerate(saved["targets"]):
                fate.targets[offset] = target
            made.append(block)
            waits = int(np.count_nonzero(fate.status[:n] == WAITS))
            fates.append(replace(fate, n=n, n_waiting=waits))
            index.update(zip(saved["ids"], range(start, start + n), strict=True))
        starts = tuple(block.start for block in made)
        ends = [block.start + fate.n for block, fate in zip(made, fates, strict=True)]
        need = "the rows that wait must be numbered from front to back"
        numbers = [x for pair in zip(starts, ends, strict=True) for x in pair]
        if not (sorted(numbers) == numbers and all(type(x) is int for x in (stop, *numbers))):
            raise ValueError(need)
        if not (max(ends, default=stop) == stop and 0 <= oldest <= stop and 0 <= blank <= stop):
            raise ValueError(need)
        waiting = sum(fate.n_waiting for fate in fates)
        if not (isinstance(counts, Waiting) and counts.waiting == waiting and again >= 0):
            raise ValueError(f"the counts must be of {waiting} rows that wait")
        remembered = sum(fate.n for fate in fates) - waiting
        parts = tuple(made), tuple(fates), starts, Index(index)
        return cls(*parts, stop, oldest, remembered, blank, again, counts)

    def noted(self, **more: int) -> Store:
        """The store with some of its counts raised."""
        sums = {name: getattr(self.counts, name) + n for name, n in more.items() if n}
        return replace(self, counts=replace(self.counts, **sums)) if sums else self


def _fits(small: Sizes, large: Sizes) -> bool:
    """Whether what was said by so many filters and experts means the same in other sizes."""
    return small == NOTHING or (
        small[1] <= large[1]
        and all(a == b for k, (a, b) in enumerate(zip(small, large, strict=True)) if k != 1)
    )


def _check_saved(saved: dict[str, Any], n: int) -> None:
    """Raise ValueError unless the parts of a saved block are of the same n rows."""
    kept, rows = saved["kept"], saved["rows"]
    arrays = {"rows": np.float64, "times": np.float64, "numbers": np.int64, "status": np.int8}
    for name, dtype in arrays.items():
        part = saved[name]
        fits = isinstance(part, np.ndarray) and part.dtype == dtype and len(part) == n
        if not (fits and part.ndim == (2 if name == "rows" else 1)):
            raise ValueError(f"{name} of rows that wait must be {n} of {np.dtype(dtype)}")
    if not (0 < n <= _BLOCK and type(saved["start"]) is int and len(saved["targets"]) == n):
        raise ValueError(f"a block of rows that wait must have 1 to {_BLOCK} of them")
    if not (np.isfinite(rows).all() or np.isnan(rows).any()) or np.isinf(rows).any():
        raise ValueError("rows that wait must be finite or missing")
    if not (set(saved["status"].tolist()) <= {WAITS, TOLD, EXPIRED} and isinstance(kept, Kept)):
        raise ValueError("the status of rows that wait must be one of three")
    for mine, blank in zip(kept.parts(), Kept.blank(n, kept.sizes).parts(), strict=True):
        if not (isinstance(mine, np.ndarray) and mine.shape == blank.shape):
            raise ValueError("what was said of rows that wait must be of the same rows")
        if mine.dtype != blank.dtype or not np.isfinite(mine).all():
            raise ValueError("what was said of rows that wait must be finite")
    if (kept.variances < 0.0).any():
        raise ValueError("variances of rows that wait must not be negative")


def read_ids(store: Store, ids: Any, n: int) -> list[Hashable]:
    """Ids of n rows to ask for; without ids, the numbers of the rows, counted from 0."""
    if ids is None:
        return list(range(store.stop, store.stop + n))
    keys = listed("ids", ids)
    if len(keys) != n:
        raise InvalidInput(f"ids has {len(keys)} ids for the {n} rows of X; give one for each")
    if len(set(keys)) != n:
        twice = next(key for k, key in enumerate(keys) if key in keys[:k])
        raise InvalidInput(f"ids holds {check.shown(twice)} twice; give every row an id of its own")
    for key in keys:
        row, status, _ = store.find(key)
        if row >= 0 and status == WAITS:
            raise InvalidInput(
                f"ids holds {check.shown(key)}, and a row of this id waits for its target; tell "
                "that target first, or give the row another id"
            )
    return keys


def listed(name: str, ids: Any) -> list[Hashable]:
    """Ids as a list of plain Python values that can be looked up."""
    keys = ids.tolist() if hasattr(ids, "tolist") else ids
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise InvalidInput(f"{name} must be a sequence of ids, got {check.shown(ids)}")
    keys = list(keys)
    for key in keys:
        try:
            hash(key)
            odd = key is None or key != key
        except Exception:
            odd = True
        if odd:
            raise InvalidInput(
                f"{name} holds {check.shown(key)}, which cannot be an id; use numbers or strings"
            )
    return keys


def read_bounds(max_waiting: Any, max_age: Any) -> tuple[int, float | None]:
    """Bounds on the number and the age of rows that wait."""
    if max_age is not None:
        max_age = check.positive("max_age", max_age)
    return check.count("max_waiting", max_waiting), max_age
