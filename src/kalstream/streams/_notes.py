"""What the first rows of a table show that the user should know, with what to do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from kalstream._printable import quoted
from kalstream.features.values import MISSING, distinct, text_of
from kalstream.streams._columns import TEXT, Columns


def notes_on(columns: Columns, table: pa.RecordBatch) -> Iterator[str]:
    """Sentences on the columns of a table, given its first rows."""
    yield from _unlabelled(columns, table)


def _unlabelled(columns: Columns, table: pa.RecordBatch) -> Iterator[str]:
    """Rows whose target is a text that stands for no value."""
    role = columns.target
    if role is None or role.kind == TEXT:
        return
    codes, values = distinct(table.column(role.name))
    texts = [text_of(value) or "" for value in values]
    tokens = [k for k, text in enumerate(texts) if text and text.lower() in MISSING]
    count = np.count_nonzero(np.isin(codes, tokens))
    if count:
        listed = ", ".join(quoted(texts[k]) for k in tokens)
        yield (
            f"the target {quoted(role.name)} is missing ({listed}) in {count:,} of the first "
            f"{table.num_rows:,} rows; such rows are predicted, but not scored or learned"
        )
