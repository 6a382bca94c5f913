"""Every method on every stream, one example at a time, each predicted before it is learned.

    python benchmarks/peers/quality.py [FILE ...] [--quick] [--jobs 2] [--resume]

Streams are the tables of the folder KALSTREAM_DATA/streams (elec2.csv, weather.csv,
outdoor.parquet, covtype.parquet), or the two packaged ones without that folder. Each FILE is one
more stream, with the label in the last column. A cell (stream, method, seed) is one process;
--resume skips cells that are in the result file.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from calibrated import Calibrated
from methods import METHODS, about
from threadpoolctl import threadpool_limits

from kalstream.evaluate import Evaluation, prequential
from kalstream.streams import ArrayStream
from kalstream.streams.packaged import path_of

sys.path.insert(0, str(Path(__file__).parents[1]))
from data import name_of, read, stream_files

RESULTS = Path(__file__).parent / "results"
SEEDS = (0, 1, 2)
LONG = 40_000  # rows of a long stream that each method gets
ONCE = ("ARF, 50 trees", "SRP, 10 trees")  # one seed, because a run takes minutes
WHOLE = ("kalstream", "kalstream, without the labels before")


class OnCpu(Evaluation):
    """Evaluation that measures processor time, so that other programs do not count."""

    clock = staticmethod(time.process_time)


def run(path: Path, method: str, seed: int, limit: int | None) -> dict[str, Any]:
    """Run one cell, in its own process."""
    stream = read(path, limit)
    classes = sorted(set(stream.targets.tolist()))
    with threadpool_limits(1):
        # A first short run, so that the time of compiling is not counted.
        warm = ArrayStream(stream.rows[:300], stream.targets[:300])
        prequential(METHODS[method].make(seed), warm, together=1, classes=classes)
        learner, calibrated = METHODS[method].make(seed), Calibrated()
        # A whole long stream has a hundred rows in a call, which still predicts row by row.
        evaluation = OnCpu(learner, stream, classes=classes, together=1 if limit else 100)
        for record in evaluation.records():
            if limit and seed == SEEDS[0]:
                calibrated.add(record)
    total = evaluation.tracker.values()
    keys = ("accuracy", "log_loss", "brier", "ece", "macro_f1", "kappa_no_change")
    return {
        "stream": name_of(path),
        "method": method,
        "seed": seed,
        "rows": evaluation.n_rows,
        "whole": limit is None,
        **{key: total.get(key) for key in keys},
        "us": 1e6 * evaluation.seconds / evaluation.n_rows,
        "kb": len(pickle.dumps(learner)) / 1024,
        "calibration": calibrated.result(evaluation.tracker.total),
        "baselines": evaluation.tracker.naive.values(),
    }


def known_files() -> list[Path]:
    """Files of the streams that exist."""
    return stream_files() or [path_of(name) for name in ("elec2", "weather")]


def cells(files: list[Path], quick: bool) -> Iterator[tuple[Path, str, int, int | None]]:
    """All cells, the slowest methods first."""
    for name, method in sorted(METHODS.items(), key=lambda each: not each[1].is_slow):
        seeds = SEEDS if method.is_random and name not in ONCE and not quick else SEEDS[:1]
        for path in files:
            for seed in seeds:
                yield path, name, seed, 2000 if quick else LONG
            if name_of(path) == "covtype" and name in WHOLE and not quick:
                yield path, name, 0, None


def main() -> None:
    """Run the cells that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--only", default="", help="run the methods whose names contain this text")
    options = parser.parse_args()
    only = {name for name in METHODS if options.only in name}
    files = [*known_files()[: 2 if options.quick else None], *options.files]
    for path in options.files:
        try:
            read(path, LONG)
        except (OSError, ValueError) as error:
            parser.error(f"{path} cannot be read as a table of numbers and labels: {error}")
    target = RESULTS / ("quality-quick.json" if options.quick else "quality.json")
    results = {"cells": []}
    if options.resume and target.exists():
        results = json.loads(target.read_text())
    done_cells = {(c["stream"], c["method"], c["seed"], c["whole"]) for c in results["cells"]}
    todo = [
        cell
        for cell in cells(files, options.quick)
        if cell[1] in only and (name_of(cell[0]), *cell[1:3], cell[3] is None) not in done_cells
    ]
    results |= about() | {"processes": options.jobs}
    # The slowest cells start first, so that no core waits at the end.
    pool = ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1)
    waiting = [pool.submit(run, *cell) for cell in todo]
    RESULTS.mkdir(exist_ok=True)
    for n, done in enumerate(as_completed(waiting), 1):
        cell = done.result()
        results["cells"].append(cell)
        target.write_text(json.dumps(results, indent=1) + "\n")
        scores = f"{cell['accuracy']:.4f}", f"{cell['log_loss'] or float('nan'):.4f}"
        print(
            n,
            len(todo),
            cell["stream"],
            cell["method"],
            *scores,
            f"{cell['us']:.0f} us",
            flush=True,
        )


if __name__ == "__main__":
    main()
