"""Compare the speed with another version: python benchmarks/versions.py ../other-checkout.

Each version runs in its own process. The two take turns with the same calls, so that other programs
slow both. The ratio is that of the shortest times; below 1 this version is faster.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

HERE = Path(__file__).resolve()


def cases() -> dict[str, Callable[[], float]]:
    """Functions by name; each runs several hundred rows and returns the seconds a row."""
    import numpy as np

    from kalstream import KalmanClassifier, KalmanRegressor

    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 6))
    labels = (X[:, 0] + 0.5 * rng.standard_normal(6000) > 0.0).astype(int)
    many = rng.integers(0, 40, 6000)
    values = X[:, 0] + 0.1 * rng.standard_normal(6000)

    def seconds(model: Any, y: Any, size: int, rows: int, *methods: str) -> float:
        model.partial_fit(X[:200], y[:200])
        starts = range(200, 200 + rows, size)
        started = process_time()
        for i in starts:
            for method in methods:
                call = getattr(model, method)
                part = X[i : i + size]
                call(part) if method == "predict_proba" else call(part, y[i : i + size])
        return (process_time() - started) / rows

    functions = {}
    kinds = {
        "default": (lambda: KalmanClassifier(random_state=0), labels),
        "40 classes": (lambda: KalmanClassifier(random_state=0), many),
        "one filter": (lambda: KalmanClassifier(0.999, random_state=0), labels),
        "regression": (lambda: KalmanRegressor(random_state=0), values),
        "scaled columns": (lambda: KalmanClassifier(features="scaled"), labels),
        "raw columns": (lambda: KalmanClassifier(features="raw"), labels),
    }
    for name, (make, y) in kinds.items():
        for size, rows in ((1, 300), (10, 1500), (64, 2560), (100, 3000), (1000, 5000)):

            def learn(make: Any = make, y: Any = y, size: int = size, rows: int = rows) -> float:
                return seconds(make(), y, size, rows, "partial_fit")

            def both(make: Any = make, y: Any = y, size: int = size, rows: int = rows) -> float:
                return seconds(make(), y, size, rows, "predict_then_learn")

            functions[f"{name}: partial_fit, calls of {size}"] = learn
            functions[f"{name}: predict_then_learn, calls of {size}"] = both

    def late(make: Any, size: int, rows: int) -> float:
        """Rows of which the labels come 500 rows late."""
        model, before = make(), list(range(1, size + 1))
        model.ask(X[:500], ids=range(500))
        model.ask_and_tell(
            X[500:1000], range(500), labels[:500], range(1, 501), ids=range(500, 1000)
        )
        started = process_time()
        for i in range(1000, 1000 + rows, size):
            ids = range(i, i + size)
            told = range(i - 500, i - 500 + size)
            if size == 1:
                model.ask(X[i : i + 1], ids=ids)
                model.tell(told, labels[told.start : told.stop])
            else:
                y = labels[told.start : told.stop]
                model.ask_and_tell(X[i : i + size], told, y, before, ids=ids)
        return (process_time() - started) / rows

    for name in ("default", "one filter", "raw columns"):
        for size, rows in ((1, 300), (100, 3000), (1000, 5000)):
            functions[f"{name}: ask and tell, calls of {size}"] = partial(
                late, kinds[name][0], size, rows
            )

    def row(make: Any = kinds["default"][0]) -> float:
        return seconds(make(), labels, 1, 300, "predict_proba", "partial_fit")

    functions["default: predict_proba, then partial_fit, one row"] = row
    return functions


def serve() -> None:
    """Read names of cases from stdin, run each, and print its time."""
    functions = cases()
    print(*functions, sep="\t", flush=True)
    for line in sys.stdin:
        print(functions[line.strip()](), flush=True)


def start(tree: Path) -> subprocess.Popen[str]:
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, str(HERE), "--serve"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)


def time_of(worker: subprocess.Popen[str], name: str) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{name}\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", type=Path, help="a checkout of another version")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="run the cases whose names contain this text")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    if options.other is None or not (options.other / "src" / "kalstream").is_dir():
        parser.error("give a checkout of another version: a folder that contains src/kalstream")
    workers = [start(options.other.resolve()), start(HERE.parents[1])]
    names, _ = (worker.stdout.readline().strip().split("\t") for worker in workers)
    print("microseconds a row: other version, this version, ratio")
    for name in names:
        if options.only in name:
            for worker in workers:
                time_of(worker, name)  # the first call compiles
            times = [[time_of(w, name) for w in workers] for _ in range(options.repeats)]
            other, this = (min(each) for each in zip(*times, strict=True))
            line = f"{1e6 * other:9.1f} {1e6 * this:9.1f} {this / other:7.3f}"
            print(f"{name:52}{line}", flush=True)
    for worker in workers:
        worker.kill()


if __name__ == "__main__":
    main()
