"""What a stream is: batches of consecutive rows, from any row on, and a word about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kalstream.core import _checks as check
from kalstream.core import _reading as reading
from kalstream.errors import InvalidInput

Array = NDArray[Any]

CLASSIFICATION = "classification"
REGRESSION = "regression"


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive rows of a stream.

    Attributes
    ----------
    start : int
        Number of the first row in the stream, counted from 0.
    rows : (b, d)
        float64, NaN where a value is missing, perhaps infinite; of images
        (b, height, width, channels), uint8.
    targets : (b,)
        Labels (objects, None where unknown) or numbers (float64, NaN where unknown).
    times : (b,) or None
        When each row came: float64, of dates in seconds.
    """

    start: int
    rows: Array
    targets: Array
    times: Array | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def stop(self) -> int:
        """Number of the row after the last."""
        return self.start + len(self.rows)

    def __getitem__(self, rows: slice) -> Batch:
        """Some of the rows, counted from the batch's first."""
        first, _, step = rows.indices(len(self.rows))
        if step != 1:
            raise InvalidInput(f"a batch is cut by plain slices, got a step of {step}")
        times = None if self.times is None else self.times[rows]
        return Batch(self.start + first, self.rows[rows], self.targets[rows], times)

    def without_infinities(self) -> tuple[Batch, int]:
        """The batch with infinite numbers as missing ones, and how many there were."""
        (rows, n), (targets, m) = map(_without_infinities, (self.rows, self.targets))
        return (Batch(self.start, rows, targets, self.times), n + m) if n + m else (self, 0)


def _without_infinities(numbers: Array) -> tuple[Array, int]:
    if numbers.dtype.kind != "f":
        return numbers, 0
    infinite = np.isinf(numbers)
    n = int(np.count_nonzero(infinite))
    return (np.where(infinite, np.nan, numbers), n) if n else (numbers, 0)


class Stream(ABC):
    """Where labelled rows come from, in their order.

    Attributes
    ----------
    name : str
    task : "classification" or "regression"
    columns : tuple of str, or None
        Names of the columns of `Batch.rows`; None if they have none, as images.
    n_rows : int or None
        How many rows there are, if that is known.
    classes : list or None
        All labels that can come, if they are known. Learners of ours do not need them.
    attribution : str or None
        Whose data they are, if they come with kalstream.
    repeatable : bool
        Whether `batches` may be called again.
    """

    name: str
    task: str = CLASSIFICATION
    columns: tuple[str, ...] | None = None
    n_rows: int | None = None
    classes: list[Any] | None = None
    attribution: str | None = None
    repeatable: bool = True

    @abstractmethod
    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The rows from number ``start`` on, in batches of any size."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What is needed to have the same stream again, its fingerprint included, as JSON."""


class ArrayStream(Stream):
    """Rows and targets that are in memory.

    Parameters
    ----------
    rows : (n, d) or (n, height, width, channels)
    targets : (n,)
        Labels, or with task "regression" numbers.
    times : (n,), optional
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
            raise InvalidInput(f"rows must be (n, d), got shape {self.rows.shape}")
        self.task, self.name, self.batch_size = check_task(task), name, batch_size
        self.targets = as_targets(targets, self.task)
        self.times = None if times is None else reading.times(times, len(self.rows))
        for what, found in (("targets", self.targets), ("times", self.times)):
            if found is not None and found.shape != (len(self.rows),):
                raise InvalidInput(
                    f"{what} must be ({len(self.rows)},) for as many rows, got {found.shape}"
                )
        if columns is None and self.rows.ndim == 2:
            columns = tuple(f"x{k}" for k in range(self.rows.shape[1]))
        self.columns = columns
        self.n_rows = len(self.rows)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The rows from number ``start`` on."""
        for first in range(start, len(self.rows), self.batch_size):
            cut = slice(first, first + self.batch_size)
            times = None if self.times is None else self.times[cut]
            yield Batch(first, self.rows[cut], self.targets[cut], times)

    def describe(self) -> dict[str, Any]:
        """Name, task, size and a digest of the arrays."""
        from kalstream.streams._fingerprint import of_arrays

        fingerprint = of_arrays(self.rows, self.targets, self.times)
        return {
            "name": self.name,
            "task": self.task,
            "n_rows": self.n_rows,
            "fingerprint": fingerprint,
        }


def check_task(task: str) -> str:
    """The task, if it is one."""
    if task not in (CLASSIFICATION, REGRESSION):
        raise InvalidInput(f'task must be "{CLASSIFICATION}" or "{REGRESSION}", got {task!r}')
    return task


def as_targets(targets: ArrayLike, task: str) -> Array:
    """Targets (n,) as batches hold them: plain labels in an array of objects, or float64."""
    if task == REGRESSION:
        check.unmasked("targets", targets, "with NaN where a target is unknown")
        return check.numeric("targets", targets).astype(np.float64)
    listed, _ = reading.labels("targets", targets)
    known = (None if type(each) is float and each != each else each for each in listed)
    return np.fromiter(known, object, len(listed))
