"""Tables in random order: kalstream beside CapyMOA's SAM-kNN and random forests, in one run.

    python benchmarks/peers/beside_capymoa.py [--rows 15000] [--jobs 2]

CapyMOA needs Java and an environment of its own. The tables are those of KALSTREAM_DATA/streams, of
which pypi_tables.py makes some. Each row is predicted before it is learned. A peer's probability is
at least 0.001; a row whose class is new counts for nobody's log-loss. Rows that equal none before
them count apart, since neighbours are flattered by rows that come again. Writes its section of
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream import KalmanClassifier

sys.path.insert(0, str(Path(__file__).parents[1]))
from page import machine, table, write_section

from data import name_of, read, stream_files

Array = NDArray[Any]
LEAST = 1e-3
PRESETS = {"kalstream": "default", "kalstream, accurate": "accurate"}
PEERS = ("SAM-kNN", "ARF, 100 trees")


def ours(name: str, X: Array, y: Array) -> tuple[Array, float]:
    """Probabilities (n, K) of rows, each before it is learned, and seconds."""
    model = KalmanClassifier(preset=PRESETS[name], random_state=0)
    out, start = np.zeros((len(y), int(y.max()) + 1)), process_time()
    for i in range(0, len(y), 100):
        p = model.predict_then_learn(X[i : i + 100], y[i : i + 100])
        out[i : i + 100, model.classes_] = p
    return out, process_time() - start


def theirs(name: str, X: Array, y: Array) -> tuple[Array, float]:
    """The same by a learner of CapyMOA."""
    from capymoa.classifier import AdaptiveRandomForestClassifier, SAMkNN
    from capymoa.stream import NumpyStream

    stream = NumpyStream(X, y, dataset_name="table", target_type="categorical")
    schema = stream.get_schema()
    forest = name == PEERS[1]
    learner = (
        AdaptiveRandomForestClassifier(schema, ensemble_size=100) if forest else SAMkNN(schema)
    )
    out, start = np.zeros((len(y), int(y.max()) + 1)), process_time()
    for row in out:
        instance = stream.next_instance()
        votes = learner.predict_proba(instance)
        if votes is not None and len(votes):
            row[: len(votes)] = np.isinf(votes) if np.isinf(votes).any() else votes
        learner.train(instance)
    whole = out.sum(axis=1, keepdims=True)
    out = np.where(whole > 0.0, out / np.maximum(whole, 1e-300), 1.0 / out.shape[1])
    out = np.maximum(out, LEAST)
    return out / out.sum(axis=1, keepdims=True), process_time() - start


def cell(case: tuple[Path, str, int]) -> tuple[str, str, list[float]]:
    """Names, and accuracy and log-loss of all rows and of those that equal none before."""
    path, name, limit = case
    stream = read(path, limit)
    X, y = stream.rows, np.unique(np.asarray(stream.targets), return_inverse=True)[1]
    out, seconds = (ours if name in PRESETS else theirs)(name, X, y)
    first = np.zeros(len(y), bool)
    first[np.unique(X, axis=0, return_index=True)[1]] = True
    known = np.zeros(len(y), bool)
    known[np.setdiff1d(np.arange(len(y)), np.unique(y, return_index=True)[1])] = True
    right, own = out.argmax(axis=1) == y, out[np.arange(len(y)), y]
    scores = []
    for part in (np.ones(len(y), bool), first):
        scores += [float(right[part].mean()), float(-np.log(own[part & known]).mean())]
    return name_of(path), name, [*scores, float(first.mean()), 1e6 * seconds / len(y)]


def main() -> None:
    """Measure all tables, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=15_000)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    names, found = [*PRESETS, *PEERS], dict[str, dict[str, list[float]]]()
    work = [(path, name, given.rows) for path in stream_files() for name in names]
    pool = ProcessPoolExecutor(given.jobs, get_context("spawn"), max_tasks_per_child=1)
    for stream, name, scores in pool.map(cell, work):
        found.setdefault(stream, {})[name] = scores
        print(stream, name, *(f"{x:.4f}" for x in scores), flush=True)
    lines, new = [], []
    for stream, each in found.items():
        lines.append([stream, *(f"{s[0]:.4f} / {s[1]:.4f}" for s in each.values())])
        if each["kalstream"][4] < 1.0:
            share = f"{stream} ({each['kalstream'][4]:.0%})"
            new.append([share, *(f"{s[2]:.4f} / {s[3]:.4f}" for s in each.values())])
    times = [[stream, *(f"{s[5]:.0f}" for s in each.values())] for stream, each in found.items()]
    body = [
        "## Beside CapyMOA",
        f"`python benchmarks/peers/beside_capymoa.py --rows {given.rows}` on {machine()}. The "
        "first rows of tables, accuracy / log-loss; peers' probabilities are at least 0.001.",
        table(["stream", *names], lines),
        "Rows that equal none before them, and their share:",
        table(["stream", *names], new),
        "Microseconds of processor time a row, in calls of 100 and, for CapyMOA, row by row:",
        table(["stream", *names], times),
    ]
    write_section("moa", "\n\n".join(body))


if __name__ == "__main__":
    main()
