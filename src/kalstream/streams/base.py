"""The interface of a stream.

A stream yields batches of consecutive rows, starting at any row, and describes itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kalstream.core import checks as check
from kalstream.core import reading
from kalstream.errors import InvalidInput
from kalstream.streams.fingerprint import of_arrays

if TYPE_CHECKING:
    from kalstream.streams._columns import Columns

Array = NDArray[Any]

CLASSIFICATION = "classification"
REGRESSION = "regression"
_REASONS = 5  # of rows that were left out


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive rows of a stream.

    Attributes
    ----------
    start : int
        Number of the first row in the stream, counted from 0.
    rows : (b, d)
        float64. NaN is a missing value; infinities are possible. Images are
        (b, height, width, channels) of uint8.
    targets : (b,)
        Labels (objects, None where unknown) or numbers (float64, NaN where unknown).
    times : (b,) or None
        Time of each row, float64. Dates are in seconds.
    label_times : (b,) or None
        When each target came, on the clock of the times; NaN if it never comes.
    ids : (b,) or None
        Names of the rows (strings, None where a row has none), if a later row with the same id
        may bring the target. The rows of `times` may then be NaN.
    keys : (b,) or None
        Key of each row, such as its customer, for models by key.

    Examples
    --------
    >>> batch = Batch(100, np.array([[1.0], [2.0], [3.0]]), np.array(["a", "b", "a"], object))
    >>> batch.stop, batch[1:].start, batch[1:].targets.tolist()
    (103, 101, ['b', 'a'])
    """

    start: int
    rows: Array
    targets: Array
    times: Array | None = None
    label_times: Array | None = None
    ids: Array | None = None
    keys: Array | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def stop(self) -> int:
        """Number of the row after the last."""
        return self.start + len(self.rows)

    def __getitem__(self, rows: slice) -> Batch:
        """A slice of the rows, counted from the first of the batch."""
        first, _, step = rows.indices(len(self.rows))
        if step != 1:
            raise InvalidInput(f"a batch can be sliced with step 1 only, got a step of {step}")
        more = (None if part is None else part[rows] for part in self._optional())
        return Batch(self.start + first, self.rows[rows], self.targets[rows], *more)

    def take(self, rows: Sequence[int]) -> Batch:
        """Some of the rows, counted from the first of the batch; their numbers are lost."""
        chosen = np.asarray(rows, np.int64)
        more = (None if part is None else part[chosen] for part in self._optional())
        return Batch(self.start, self.rows[chosen], self.targets[chosen], *more)

    def _optional(self) -> tuple[Array | None, ...]:
        return self.times, self.label_times, self.ids, self.keys

    def joined(self, after: Batch) -> Batch:
        """One batch of these rows and those of the batch after it."""
        pairs = zip(self._optional(), after._optional(), strict=True)
        more = (None if a is None or b is None else np.concatenate([a, b]) for a, b in pairs)
        rows = np.concatenate([self.rows, after.rows])
        return Batch(self.start, rows, np.concatenate([self.targets, after.targets]), *more)

    def without_infinities(self) -> tuple[Batch, int]:
        """The batch with infinities replaced by NaN, and how many there were."""
        (rows, n), (targets, m) = map(_without_infinities, (self.rows, self.targets))
        return (replace(self, rows=rows, targets=targets), n + m) if n + m else (self, 0)


def _without_infinities(numbers: Array) -> tuple[Array, int]:
    if numbers.dtype.kind != "f":
        return numbers, 0
    infinite = np.isinf(numbers)
    n = int(np.count_nonzero(infinite))
    return (np.where(infinite, np.nan, numbers), n) if n else (numbers, 0)


class Stream(ABC):
    """Labelled rows in their order.

    A subclass writes `batches` and `describe`, and sets those of the attributes below whose
    default does not fit. A `Format` makes it known to `kalstream.streams.open`.

    Attributes
    ----------
    name : str
    task : "classification" or "regression"
    columns : tuple of str, or None
        Names of the columns of `Batch.rows`. None if they have no names, as for images.
    n_rows : int or None
        Number of rows, if it is known.
    approximate_rows : int or None
        Estimate of the number of rows; `n_rows` if that is known.
    classes : list or None
        All labels that can occur, if they are known. Learners of kalstream do not need them.
    attribution : str or None
        Origin of the data, if they come with kalstream.
    repeatable : bool
        Whether `batches` can be called more than once. A run that is resumed reads such a stream
        again; of another one it takes the rows that come then.
    first_row : int
        Number of the first row; more than 0 if other data came before (`LaterRows`).
    timed : bool
        Whether batches have times.
    dated : bool
        Whether those times are seconds since 1970 of dates.
    label_timed : bool
        Whether batches have the times at which targets came.
    named : bool
        Whether batches have ids, and later rows bring targets.
    keyed : bool
        Whether batches have keys.
    guess : str
        Sentence that says which task was guessed and why; "" if nothing was guessed.
    notes : sequence of str
        Sentences on the first rows that the user should know, with what to do.
    skipped, skipped_why : int, sequence of str
        Rows that were left out so far, and the reasons for the first of them.
    files : sequence of Path
        Files that the rows are read from. A run checks whether they change while it reads them.
    encoder : Columns or None
        State of the encoding of columns that changes as rows are read. Checkpoints save it.

    Examples
    --------
    >>> class Squares(Stream):
    ...     name, task, columns = "squares", REGRESSION, ("x",)
    ...
    ...     def batches(self, start=0):
    ...         for first in range(start, 9, 3):
    ...             rows = np.arange(first, first + 3.0)[:, None]
    ...             yield Batch(first, rows, rows[:, 0] ** 2)
    ...
    ...     def describe(self):
    ...         return {"name": self.name, "task": self.task, "fingerprint": "squares below 9"}
    >>> [batch.targets.tolist() for batch in Squares().batches(3)]
    [[9.0, 16.0, 25.0], [36.0, 49.0, 64.0]]
    """

    name: str
    task: str = CLASSIFICATION
    columns: tuple[str, ...] | None = None
    n_rows: int | None = None
    classes: list[Any] | None = None
    attribution: str | None = None
    repeatable: bool = True
    first_row: int = 0
    timed: bool = False
    dated: bool = False
    label_timed: bool = False
    named: bool = False
    keyed: bool = False
    guess: str = ""
    notes: Sequence[str] = ()
    skipped: int = 0
    skipped_why: Sequence[str] = ()
    files: Sequence[Path] = ()
    encoder: Columns | None = None

    @property
    def approximate_rows(self) -> int | None:
        """Estimate of the number of rows; `n_rows` unless a subclass knows better."""
        return self.n_rows

    @property
    def later_notes(self) -> tuple[str, ...]:
        """Sentences on what the rows read so far have shown, for the end of a run."""
        return ()

    def first_times(self) -> Array | None:
        """Times of some of the first rows, for guessing a unit of time; None without times.

        Here those of the first batch. A stream that is not repeatable needs its own version.
        """
        first = next(self.batches(), None) if self.timed else None
        return None if first is None else first.times

    @abstractmethod
    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The rows from number ``start`` on, in batches of any size."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Everything that identifies the stream, as JSON: name, task, fingerprint and more."""


class ArrayStream(Stream):
    """Rows and targets in memory.

    Parameters
    ----------
    rows : (n, d) or (n, height, width, channels)
    targets : (n,)
        Labels, or numbers if the task is "regression".
    times : (n,), optional
    label_times : (n,), optional
        When each target came, on the clock of ``times`` and not before; NaN, NaT or None: never.
    ids : (n,) strings, optional
        Names of the rows: a later row with the same id brings the target.
    keys : (n,), optional
        Key of each row, such as its customer.
    task : "classification" or "regression"
    name : str
    columns : d strings, optional
    batch_size : int

    Examples
    --------
    >>> stream = ArrayStream([[1.0], [2.0], [3.0]], ["a", "b", "a"], batch_size=2)
    >>> [(batch.start, batch.targets.tolist()) for batch in stream.batches()]
    [(0, ['a', 'b']), (2, ['a'])]
    """

    def __init__(
        self,
        rows: ArrayLike,
        targets: ArrayLike,
        times: ArrayLike | None = None,
        *,
        label_times: ArrayLike | None = None,
        ids: Sequence[str | None] | None = None,
        keys: Sequence[Any] | None = None,
        task: str = CLASSIFICATION,
        name: str = "arrays",
        columns: tuple[str, ...] | None = None,
        batch_size: int = 4096,
    ) -> None:
        check.unmasked("rows", rows)
        self.rows = check.numeric("rows", rows)
        if self.rows.dtype != np.uint8:
            self.rows = self.rows.astype(np.float64, copy=False)
        if self.rows.ndim < 2:
            raise InvalidInput(
                f"rows must be (n, d), got shape {self.rows.shape}; give one list of d numbers for "
                "each row"
            )
        self.task, self.name, self.batch_size = check_task(task), name, batch_size
        self.targets = as_targets(targets, self.task)
        self.times = None if times is None else reading.times(times, len(self.rows))
        self.label_times = None if label_times is None else _label_times(label_times)
        self.ids = None if ids is None else np.fromiter(ids, object, len(ids))
        self.keys = None if keys is None else np.fromiter(keys, object, len(keys))
        if label_times is not None and times is None:
            raise InvalidInput("label_times need times, on the same clock; give times too")
        lengths = {"targets": self.targets, "times": self.times}
        lengths |= {"label_times": self.label_times, "ids": self.ids, "keys": self.keys}
        for what, values in lengths.items():
            if values is not None and values.shape != (len(self.rows),):
                raise InvalidInput(
                    f"{what} must be ({len(self.rows)},), got {values.shape}; give one for each row"
                )
        if self.times is not None and self.label_times is not None:
            for row in np.flatnonzero(self.label_times < self.times).tolist()[:1]:
                raise InvalidInput(
                    f"label_times[{row}] is {self.label_times[row]:.15g}, which is earlier than "
                    f"times[{row}], {self.times[row]:.15g}; a label cannot come before its row"
                )
        if columns is None and self.rows.ndim == 2:
            columns = tuple(f"x{k}" for k in range(self.rows.shape[1]))
        self.columns = columns
        self.n_rows, self.timed = len(self.rows), self.times is not None
        self.label_timed, self.named = self.label_times is not None, self.ids is not None
        self.keyed = self.keys is not None

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The rows from number ``start`` on."""
        for first in range(start, len(self.rows), self.batch_size):
            cut = slice(first, first + self.batch_size)
            parts = self.times, self.label_times, self.ids, self.keys
            more = (None if part is None else part[cut] for part in parts)
            yield Batch(first, self.rows[cut], self.targets[cut], *more)

    def describe(self) -> dict[str, Any]:
        """Name, task, size and a digest of the arrays."""
        return {
            "name": self.name,
            "task": self.task,
            "n_rows": self.n_rows,
            "fingerprint": of_arrays(
                self.rows, self.targets, self.times, self.label_times, self.ids, self.keys
            ),
        }


class PushedRows(Stream):
    """Rows that are pushed to `Evaluation.step`: what they are, without the rows themselves.

    Parameters
    ----------
    task : "classification" or "regression"
    columns : d strings, optional
    timed, label_timed, named, keyed : bool
        Whether batches have times, times of labels, ids, keys; as in `Stream`.

    Examples
    --------
    The stream says what will come; `Evaluation.step` gets the rows.

    >>> stream = PushedRows(REGRESSION, columns=("x",), timed=True)
    >>> stream.task, stream.timed, list(stream.batches())
    ('regression', True, [])
    """

    repeatable = False

    def __init__(
        self,
        task: str = CLASSIFICATION,
        *,
        columns: tuple[str, ...] | None = None,
        timed: bool = False,
        label_timed: bool = False,
        named: bool = False,
        keyed: bool = False,
    ) -> None:
        self.task, self.name, self.columns = check_task(task), "pushed", columns
        self.timed, self.label_timed, self.named, self.keyed = timed, label_timed, named, keyed

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """No rows: they are pushed."""
        return iter(())

    def describe(self) -> dict[str, Any]:
        """Name and task."""
        return {"name": self.name, "task": self.task}


class LaterRows(Stream):
    """A stream whose rows come after those of other data, and are numbered accordingly.

    Parameters
    ----------
    stream : Stream
    first_row : int
        Number of its first row.
    skipped, skipped_why : int, sequence of str
        Rows of the data before it that were left out, and why.

    Examples
    --------
    >>> stream = LaterRows(ArrayStream([[1.0], [2.0], [3.0]], ["a", "b", "a"]), 100)
    >>> [(batch.start, batch.targets.tolist()) for batch in stream.batches(101)]
    [(101, ['b', 'a'])]
    """

    def __init__(
        self, stream: Stream, first_row: int, skipped: int = 0, skipped_why: Sequence[str] = ()
    ) -> None:
        self.stream, self.first_row = stream, first_row
        self.name, self.task, self.columns = stream.name, stream.task, stream.columns
        self.n_rows = None if stream.n_rows is None else first_row + stream.n_rows
        self.classes, self.attribution = stream.classes, stream.attribution
        self.repeatable, self.timed, self.guess = stream.repeatable, stream.timed, stream.guess
        self.label_timed, self.named = stream.label_timed, stream.named
        self.dated, self.keyed = stream.dated, stream.keyed
        self.files, self.notes = stream.files, stream.notes
        self._before = skipped, list(skipped_why)
        self._count()

    @property
    def encoder(self) -> Columns | None:  # type: ignore[override]
        """The encoder of the stream, as it is now."""
        return self.stream.encoder

    @property
    def approximate_rows(self) -> int | None:
        """Rows of all data, if those of the stream can be estimated."""
        n = self.stream.approximate_rows
        return None if n is None else self.first_row + n

    @property
    def later_notes(self) -> tuple[str, ...]:
        """Those of the stream."""
        return self.stream.later_notes

    def first_times(self) -> Array | None:
        """Times of the first rows of the stream."""
        return self.stream.first_times()

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The rows from number ``start`` on, at least ``first_row``."""
        try:
            for batch in self.stream.batches(max(0, start - self.first_row)):
                self._count()
                yield replace(batch, start=self.first_row + batch.start)
        finally:
            self._count()

    def _count(self) -> None:
        """Add the rows that the stream left out so far to those before it."""
        skipped, why = self._before
        self.skipped = skipped + self.stream.skipped
        self.skipped_why = [*why, *self.stream.skipped_why][:_REASONS]

    def describe(self) -> dict[str, Any]:
        """What identifies the stream, without the data before it."""
        return self.stream.describe()


def _label_times(times: ArrayLike) -> Array:
    """Times (n,) at which targets came, as float64; NaN where one never comes."""
    values = np.asarray(times)
    if values.dtype.kind == "M":
        absent = np.isnat(values)
    else:
        absent = np.array([each is None or each != each for each in values.tolist()], bool)
    out = np.full(len(absent), np.nan)
    if not absent.all():
        there = values[~absent]
        there = there.tolist() if there.dtype == object else there
        out[~absent] = reading.times(there, len(there))
    return out


def check_task(task: str) -> str:
    """The task, or an error if there is no such task."""
    if task not in (CLASSIFICATION, REGRESSION):
        raise InvalidInput(f'task must be "{CLASSIFICATION}" or "{REGRESSION}", got {task!r}')
    return task


def as_targets(targets: ArrayLike, task: str) -> Array:
    """Targets (n,) as a batch holds them: plain labels in an array of objects, or float64."""
    if task == REGRESSION:
        check.unmasked("targets", targets, "with NaN where a target is unknown")
        return check.numeric("targets", targets).astype(np.float64)
    listed, _ = reading.labels("targets", targets)
    known = (None if type(each) is float and each != each else each for each in listed)
    return np.fromiter(known, object, len(listed))
