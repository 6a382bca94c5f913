"""Blocks of raw columns that the readers of tables yield, and the error for a bad row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from kalstream._printable import printable, quoted
from kalstream.errors import InvalidInput
from kalstream.streams.files import forbidden

EARLIER: Final = "is earlier than a row before it"


class BadRow(InvalidInput):
    """A row of a table cannot be read; all rows before it have been passed on.

    Attributes
    ----------
    file : str
    line : int or None
        Line of the file where the row begins, counted from 1 with the header; None for Parquet.
    row : int
        Row of the file, counted from 1 without the header.
    column : str or None
    value : object
        The value in that column.
    what : str
        The message without its remedy.

    Examples
    --------
    >>> str(BadRow("is not a number", file="a.csv", line=3, row=2, column="x", value="abc"))
    "a.csv, line 3: column 'x' holds 'abc', which is not a number; correct it, or leave such rows
    out with bad_rows='skip'"
    """

    def __init__(
        self,
        why: str,
        *,
        file: str,
        line: int | None,
        row: int,
        column: str | None = None,
        value: Any = None,
    ) -> None:
        self.file, self.line, self.row, self.column, self.value = file, line, row, column, value
        place = f"row {row}" if line is None else f"line {line}"
        if column is not None:
            why = f"column {quoted(column)} holds {quoted(value)}, which {why}"
        self.what = f"{file}, {place}: {why}"
        remedy = "sort the rows by time" if EARLIER in why else "correct it"
        super().__init__(f"{self.what}; {remedy}, or leave such rows out with bad_rows='skip'")


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that is no row: of the wrong length, not text, not JSON."""

    record: int  # in the block, counted from 0
    why: str


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive records of a file.

    Attributes
    ----------
    batch : pyarrow.RecordBatch
        The wanted columns of the records that are rows.
    first : int
        Number of records of the file before this block.
    problems : sequence of Problem
        In the order of the records.
    line_of : function, or None
        From a record of the block to its line in the file; None for Parquet.
    """

    batch: pa.RecordBatch
    first: int
    problems: Sequence[Problem] = ()
    line_of: Callable[[int], int] | None = None

    def record(self, row: int) -> int:
        """The record that became this row of the batch."""
        for problem in self.problems:
            if problem.record > row:
                break
            row += 1
        return row

    def error(
        self, file: str, record: int, why: str, column: str | None = None, value: Any = None
    ) -> BadRow:
        """The error for a record of this block."""
        line = None if self.line_of is None else self.line_of(record)
        row = self.first + record + 1
        return BadRow(why, file=file, line=line, row=row, column=column, value=value)


class Part(Protocol):
    """One file of a table.

    Attributes
    ----------
    file : str
        Its name, for messages.
    names : list of str
        Its columns.
    n_rows : int or None
        Number of rows, if the file says so.
    as_written : bool
        Whether all its values are text, so that their content decides the kind of a column.
    """

    file: str
    names: list[str]
    n_rows: int | None
    as_written: bool

    def blocks(self, wanted: list[str], skip: int = 0) -> Iterator[Block]:
        """The blocks, starting at the one with row ``skip`` or an earlier one."""


def no_duplicates(file: str, names: list[str]) -> list[str]:
    """The names, or an error if two are equal."""
    if len(set(names)) < len(names):
        name = next(name for name, n in Counter(names).items() if n > 1)
        raise InvalidInput(f"{file}: two columns are called {quoted(name)}; rename one of them")
    return names


def damaged(file: str, place: str, error: Exception) -> InvalidInput:
    """The error for a file that cannot be read; ``place`` is such as "after row 7"."""
    if isinstance(error, PermissionError):
        return forbidden(file)
    return InvalidInput(
        f"{file} cannot be read {place} ({printable(error, 300)}); it is damaged or "
        "incomplete: write or download it again"
    )
