"""Time of predicting and learning a row against columns, classes and the size of chunks.

    python benchmarks/peers/speed.py [--quick]

Each point is a process of its own with one thread: rows are predicted and learned for a second or
more, and the mean over blocks but the first is kept. Also the time to begin, and model sizes.
"""

from __future__ import annotations

import argparse
import json
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
from threadpoolctl import threadpool_limits

from kalstream import KalmanClassifier
from kalstream.evaluate import prequential
from kalstream.streams import ArrayStream

RESULTS = Path(__file__).parent / "results"
COLUMNS = (8, 32, 128, 512, 1024, 2048, 4096)
CLASSES = (2, 10, 100, 1000, 3000)
CHUNKS = (1, 10, 100, 1000)
# Raw columns, so that the number of features is that of the columns.
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
SECONDS, LIMIT = 1.2, 20.0
ROWS = "import numpy as np; X = np.random.default_rng(0).standard_normal((10, 8)); y = [0, 1] * 5"
RIVER = "[m.learn_one(dict(enumerate(x)), k) for x, k in zip(X.tolist(), y)]"
# What one has to import, and what then makes the first ten rows learned.
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
    """Rows of norm about 1 and labels by a linear rule."""
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
    shown = classes + 100
    stream, learner = rows_of(columns, classes, shown + 300 * size), LEARNERS[method](0)
    times: list[float] = []
    with threadpool_limits(1):
        # every class is shown, then a block loads what is compiled: neither is measured
        prequential(learner, _part(stream, 0, shown), classes=labels, chunk=100)
        begun = time.perf_counter()
        # four blocks or more: kalstream writes its covariance every some dozen rows
        for start in range(shown, len(stream.rows), size):
            part = _part(stream, start, start + size)
            found = prequential(learner, part, classes=labels, chunk=chunk, together=1)
            times.append(1e6 * found.seconds / found.n_rows)
            if len(times) > 4 and time.perf_counter() - begun > SECONDS:
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
    """What is measured: one thing is changed at a time."""
    columns, classes, chunks = ((8, 64), (10,), ()) if quick else (COLUMNS, CLASSES, CHUNKS)
    found: list[tuple[str, int, int, int]] = []
    for name in LEARNERS:
        found += [(name, d, 2, 1) for d in columns]
        found += [(name, 64, k, 1) for k in classes]
        if "kalstream" in name or METHODS[name].family == "scikit-learn":
            found += [(name, 256, 10, b) for b in chunks]
    return list(dict.fromkeys(found))


def seconds_of(code: str) -> float:
    """Least of three runs in a fresh interpreter."""
    runs = []
    for _ in range(3):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        runs.append(time.perf_counter() - begun)
    return min(runs)


def beginning() -> dict[str, tuple[float, float]]:
    """Seconds of importing, and of that and the first ten rows, less an empty interpreter."""
    nothing = seconds_of("pass")
    return {
        name: (seconds_of(imports) - nothing, seconds_of(f"{imports}; {rows}") - nothing)
        for name, (imports, rows) in BEGIN.items()
    }


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / ("speed-quick.json" if options.quick else "speed.json")
    found: dict[str, Any] = about() | {"seed": 0, "begin": beginning(), "cells": []}
    cells = found["cells"]
    for point in points(options.quick):
        pool = ProcessPoolExecutor(1, get_context("spawn"))
        try:
            cells.append(pool.submit(measure, *point).result(timeout=LIMIT))
            print(*point, f"{cells[-1]['us']:.0f} us", flush=True)
        except TimeoutError:
            print(*point, "takes too long", flush=True)
            for process in list(pool._processes.values()):
                process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        target.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
