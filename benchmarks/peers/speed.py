"""Time to predict and learn a row, against columns, classes and the size of chunks.

    python benchmarks/peers/speed.py [--quick] [--resume] [--only TEXT] [--limit SECONDS]

Each point runs in its own process with one thread. Rows are predicted and learned for at least a
second; the result is the mean over blocks, without the first. Also measures the start-up time and
the sizes of models. All times are processor times, so that other programs do not count. A point
that takes longer than the limit, on the clock, is left out; --resume measures what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from methods import METHODS, about
from quality import OnCpu
from threadpoolctl import threadpool_limits

from kalstream import KalmanClassifier
from kalstream.evaluate import prequential
from kalstream.streams import ArrayStream

RESULTS = Path(__file__).parent / "results"
COLUMNS = (8, 32, 128, 512, 1024, 2048, 4096)
CLASSES = (2, 10, 100, 1000, 3000)
CHUNKS = (1, 10, 100, 1000)
# Raw columns, so that each column is one feature.
LEARNERS = {
    "kalstream": lambda seed: KalmanClassifier(features="raw"),
    "kalstream, gamma = 1": lambda seed: KalmanClassifier(1.0, "raw"),
    **{
        name: METHODS[name].make
        for name in (
            "ARF, 10 trees",
            "Hoeffding adaptive tree",
            "softmax regression",
            "SGD, log loss",
            "Gaussian naive Bayes",
            "streaming LDA",
            "RLS, forgetting 0.999",
        )
    },
}
SECONDS, LIMIT = 1.2, 40.0
ROWS = "import numpy as np; X = np.random.default_rng(0).standard_normal((10, 8)); y = [0, 1] * 5"
RIVER = "[m.learn_one(dict(enumerate(x)), k) for x, k in zip(X.tolist(), y)]"
# Code to import a learner, and code to learn the first ten rows.
BEGIN = {
    "kalstream": (
        "from kalstream import KalmanClassifier",
        f"{ROWS}; KalmanClassifier().predict_then_learn(X, y)",
    ),
    "river, ARF": (
        "from river.forest import ARFClassifier",
        f"{ROWS}; m = ARFClassifier(); {RIVER}",
    ),
    "scikit-learn, SGD": (
        "from sklearn.linear_model import SGDClassifier",
        f"{ROWS}; SGDClassifier().partial_fit(X, y, classes=[0, 1])",
    ),
}


def rows_of(columns: int, classes: int, n: int) -> ArrayStream:
    """Normal rows, and labels by a linear rule."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, columns))
    labels = (rows @ rng.standard_normal((columns, classes))).argmax(axis=1)
    labels[:classes] = np.arange(classes)[:n]
    return ArrayStream(rows, labels)


def _part(stream: ArrayStream, start: int, stop: int) -> ArrayStream:
    return ArrayStream(stream.rows[start:stop], stream.targets[start:stop])


def measure(method: str, columns: int, classes: int, chunk: int) -> dict[str, Any]:
    """Microseconds a row, and the size of the model."""
    size, labels = max(20, chunk), list(range(classes))
    n_first = classes + 100
    stream, learner = rows_of(columns, classes, n_first + 300 * size), LEARNERS[method](0)
    times: list[float] = []
    with threadpool_limits(1):
        # The first rows have every class, and load the compiled code. They are not measured.
        prequential(learner, _part(stream, 0, n_first), classes=labels, chunk=100)
        started = time.process_time()
        # At least four blocks, because kalstream updates its covariance only every few dozen rows.
        for start in range(n_first, len(stream.rows), size):
            part = _part(stream, start, start + size)
            evaluation = OnCpu(learner, part, classes=labels, chunk=chunk, together=1)
            for _ in evaluation.records():
                pass
            times.append(1e6 * evaluation.seconds / evaluation.n_rows)
            if len(times) > 4 and time.process_time() - started > SECONDS:
                break
    return {
        "method": method,
        "columns": columns,
        "classes": classes,
        "chunk": chunk,
        "us": float(np.mean(times[1:])),
        "blocks": len(times),
        "kb": len(pickle.dumps(learner)) / 1024,
    }


def points(quick: bool) -> list[tuple[str, int, int, int]]:
    """Points to measure: (method, columns, classes, chunk), varied one at a time."""
    columns, classes, chunks = ((8, 64), (10,), ()) if quick else (COLUMNS, CLASSES, CHUNKS)
    all_points: list[tuple[str, int, int, int]] = []
    for name in LEARNERS:
        all_points += [(name, d, 2, 1) for d in columns]
        all_points += [(name, 64, k, 1) for k in classes]
        if "kalstream" in name or METHODS[name].family == "scikit-learn":
            all_points += [(name, 256, 10, b) for b in chunks]
    return list(dict.fromkeys(all_points))


def seconds_of(code: str) -> float:
    """Shortest of three runs in a fresh interpreter."""
    runs = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True)
        after = os.times()
        runs.append(sum(after[2:4]) - sum(before[2:4]))  # of child processes, user and system
    return min(runs)


def start_up() -> dict[str, tuple[float, float]]:
    """Seconds to import, and to import and learn ten rows, without the interpreter's start."""
    nothing = seconds_of("pass")
    return {
        name: (seconds_of(imports) - nothing, seconds_of(f"{imports}; {rows}") - nothing)
        for name, (imports, rows) in BEGIN.items()
    }


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--only", default="", help="run the methods whose names contain this text")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds a point may take")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / ("speed-quick.json" if options.quick else "speed.json")
    if options.resume and target.exists():
        results: dict[str, Any] = json.loads(target.read_text())
    else:
        results = about() | {"seed": 0, "begin": start_up(), "cells": []}
    cells = results["cells"]
    done = [(c["method"], c["columns"], c["classes"], c["chunk"]) for c in cells]
    for point in points(options.quick):
        if point in done or options.only not in point[0]:
            continue
        pool = ProcessPoolExecutor(1, get_context("spawn"))
        try:
            cells.append(pool.submit(measure, *point).result(timeout=options.limit))
            print(*point, f"{cells[-1]['us']:.0f} us", flush=True)
        except TimeoutError:
            print(*point, "takes too long", flush=True)
            for process in list(pool._processes.values()):
                process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        target.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
