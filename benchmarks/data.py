"""Real streams, not part of the project: KALSTREAM_DATA holds streams/ and embeddings/."""

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
    """Tables that are there."""
    folder = FOLDER / "streams"
    there = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in there if path.suffix in (".csv", ".parquet"))


def name_of(path: Path) -> str:
    """Of a stream."""
    return path.name.split(".")[0]


def read(path: Path, limit: int | None) -> ArrayStream:
    """A table as a stream of numbers; the label of one that is not known is its last column."""
    read_file = pyarrow.parquet.read_table if path.suffix == ".parquet" else pyarrow.csv.read_csv
    found = read_file(path).slice(0, limit)
    target = TARGETS.get(name_of(path), found.column_names[-1])
    columns = [name for name in found.column_names if name != target]
    rows = np.stack([found[c].to_numpy().astype(np.float64) for c in columns], axis=1)
    return ArrayStream(rows, np.array(found[target].to_pylist()))
