"""Real streams, which are not part of the project.

The folder KALSTREAM_DATA contains streams/ and embeddings/.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet

from kalstream.streams import ArrayStream

FOLDER = Path(os.environ.get("KALSTREAM_DATA", "data"))
TARGETS = {"elec2": "target", "weather": "target", "outdoor": "label", "covtype": "Cover_Type"}


def stream_files() -> list[Path]:
    """Paths of the tables that exist."""
    folder = FOLDER / "streams"
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in paths if path.suffix in (".csv", ".parquet"))


def name_of(path: Path) -> str:
    """Name of the stream in a file."""
    return path.name.split(".")[0]


def read(path: Path, limit: int | None) -> ArrayStream:
    """Read a table as a stream; the label of a table not in `TARGETS` is its last column."""
    read_file = pyarrow.parquet.read_table if path.suffix == ".parquet" else pyarrow.csv.read_csv
    table = read_file(path).slice(0, limit)
    target = TARGETS.get(name_of(path), table.column_names[-1])
    columns = [name for name in table.column_names if name != target]
    rows = np.stack([table[c].to_numpy().astype(np.float64) for c in columns], axis=1)
    return ArrayStream(rows, np.array(table[target].to_pylist()))
