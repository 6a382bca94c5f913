"""Tables in memory as streams."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import Any

import pyarrow as pa

from kalstream.errors import InvalidType
from kalstream.features.frames import as_table
from kalstream.features.rows import is_table
from kalstream.streams._rows import Block


class MemoryPart:
    """A table in memory; see `Part`."""

    file = "the table"
    as_written = False

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.names: list[str] = batch.schema.names
        self.n_rows: int | None = batch.num_rows

    def blocks(self, wanted: list[str], skip: int = 0) -> Iterator[Block]:
        """All rows."""
        yield Block(self._batch.select(wanted), 0)


def in_memory(source: Any) -> MemoryPart | None:
    """The part that a table is, None for a path or an open file; others are refused."""
    if isinstance(source, str | PathLike):
        return None
    if is_table(source):
        return MemoryPart(as_table(source))
    if hasattr(source, "read"):
        return None
    raise InvalidType(
        "source must be a path, an open file or a table (a frame, or a list of dicts), got "
        f"{type(source).__name__}; collect a generator of rows in a list, and give arrays to "
        "ArrayStream(X, y)"
    )
