"""Parquet files: batches of columns, from any row on, in limited memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from kalstream.streams._rows import Block, damaged, no_duplicates

MAGIC = b"PAR1"
_BATCH_ROWS = 8192
# Columns are read in pieces of this size, not in whole row groups.
_BUFFER = 1 << 18


class ParquetPart:
    """A table in a Parquet file; see `Part`."""

    as_written = False

    def __init__(self, file: str, path: Path) -> None:
        self.file, self._path = file, path
        try:
            with pa.parquet.ParquetFile(path) as parquet:
                self.names = no_duplicates(file, parquet.schema_arrow.names)
                self.n_rows: int | None = parquet.metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            raise damaged(file, "at its start", error) from None

    def blocks(self, wanted: list[str], skip: int = 0) -> Iterator[Block]:
        """Batches, starting at the row group with row ``skip``."""
        row = 0
        try:
            with pa.parquet.ParquetFile(
                self._path, buffer_size=_BUFFER, pre_buffer=False
            ) as parquet:
                group, sizes = 0, parquet.metadata
                while group < sizes.num_row_groups:
                    size = sizes.row_group(group).num_rows
                    if row + size > skip:
                        break
                    row, group = row + size, group + 1
                groups = range(group, sizes.num_row_groups)
                for batch in parquet.iter_batches(
                    _BATCH_ROWS, list(groups), wanted, use_threads=False
                ):
                    yield Block(batch, row)
                    row += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            place = f"after row {row}" if row else "at its start"
            raise damaged(self.file, place, error) from None
