"""What the values of a column show that the user should know: ids, and nearly numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kalstream._printable import quoted
from kalstream.features.encoding import CATEGORY, KINDS, NUMBERS, READINGS, TYPOS, Column
from kalstream.features.values import Array, distinct

_LEAST_IDS = 50  # first rows in which a column can look like ids


@dataclass(frozen=True, slots=True)
class Mostly:
    """A column of text most of whose values, but not enough, are of another kind.

    Attributes
    ----------
    bad : dict
        Row -> its value, for those others.
    what : str
        Sentence without a remedy.
    """

    bad: dict[int, Any]
    what: str


def mostly(name: str, array: pa.Array, numbered: bool = False) -> Mostly | None:
    """What most values of a column of text are; None if they are text.

    ``numbered``: whether the sentence names the row of the first other value.
    """
    for kind, reading in READINGS.items():
        values, bad = reading.convert(array)
        n_good = int(np.count_nonzero(~np.isnan(values)))
        if bad and n_good > len(bad):
            row, value = next(iter(bad.items()))
            others = f" and {len(bad) - 1:,} others" if len(bad) > 1 else ""
            place = f" (row {row + 1:,})" if numbered else ""
            what = (
                f"column {quoted(name)} is taken for text: {n_good:,} of {n_good + len(bad):,} "
                f"values are {KINDS[kind].plural}, but not {quoted(value)}{place}{others}"
            )
            return Mostly(bad, what)
    return None


def looks_like_ids(column: Column, array: pa.Array) -> bool:
    """Whether nearly all values are distinct text, or whole numbers that grow by 1."""
    if column.kind == CATEGORY:
        _, values = distinct(array)
        return nearly(len(values), len(array) - array.null_count)
    numbers = finite(column, array)
    if not nearly(len(np.unique(numbers)), len(numbers)):
        return False  # hours and days of the year grow by 1 as well, but begin again
    steps, whole = np.diff(numbers), numbers[1:] % 1 == 0
    return any(nearly(int(np.count_nonzero((steps == s) & whole)), len(steps)) for s in (1, -1))


def finite(column: Column, array: pa.Array) -> Array:
    """The finite values (n,) of a column of numbers; none of another kind."""
    if column.kind not in NUMBERS:
        return np.zeros(0)
    numbers, _ = READINGS[column.kind].convert(array)
    return numbers[np.isfinite(numbers)]


def nearly(count: int, total: int) -> bool:
    """Whether it is so in all but one row in 20, and in enough rows to know."""
    return total >= _LEAST_IDS and total - count <= total // TYPOS


def warnings_of(columns: tuple[Column, ...], table: pa.RecordBatch) -> Iterator[str]:
    """Sentences on the columns of a frame, with what to do, given its first rows."""
    for column in columns:
        name, array = quoted(column.name), table.column(column.name)
        most = mostly(column.name, array) if column.kind == CATEGORY else None
        if most is not None:
            yield f"X: {most.what}; make such values missing (None), or convert the column"
        elif looks_like_ids(column, array):
            yield (
                f"X: column {name} looks like ids: a new value or a number that grows by 1 in "
                "nearly every row; it predicts nothing, so leave it out of X"
            )
