"""Streams with known changes: detections, delays, false alarms and regret.

    python benchmarks/peers/detect.py [--quick] [--jobs 2]

Compares the drift alarm of kalstream with river's detectors, which get the errors of the same
predictions. Also compares the log-loss with that of the best fixed gamma in hindsight.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from methods import about
from threadpoolctl import threadpool_limits

from kalstream import KalmanClassifier

RESULTS = Path(__file__).parent / "results"
KINDS = ("none", "abrupt", "gradual", "recurring")
SIZES = (5, 20, 50)
SEEDS = (0, 1, 2)
ROWS, EVERY, SLOW = 10_000, 2500, 2000
BLOCK = 10  # rows of a call; two alarms within one call count as one
IN_TIME = 1500  # an alarm belongs to a change if it comes within this many rows
GAMMAS = (1.0, 0.9999, 0.999, 0.99, 0.9)


def stream(kind: str, size: int, seed: int, n: int = ROWS) -> tuple[Any, Any, list[int]]:
    """Rows (n, d), labels of three classes by a noisy linear rule, and the rows of its changes."""
    rng = np.random.default_rng([seed, size, KINDS.index(kind)])
    rows, rules = rng.standard_normal((n, size)), rng.standard_normal((n // EVERY + 1, size, 3))
    when = np.arange(n)
    if kind == "none":
        rule, changes = np.zeros(n, int), []
    elif kind == "gradual":
        part = np.clip((when - EVERY) / SLOW, 0.0, 1.0)
        rule, changes = (rng.random(n) < part).astype(int), [EVERY]
    else:
        rule = when // EVERY if kind == "abrupt" else when // EVERY % 2
        changes = list(range(EVERY, n, EVERY))
    logits = np.einsum("nd,ndk->nk", rows, rules[rule]) * 3.0 / np.sqrt(size)
    return rows, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1), changes


def detectors() -> dict[str, Any]:
    """river's detectors with their defaults."""
    from river.drift import ADWIN, KSWIN
    from river.drift.binary import DDM

    return {"ADWIN": ADWIN(), "DDM": DDM(), "KSWIN": KSWIN(seed=0)}


def score_alarms(alarms: list[int], changes: list[int], lasting: int = 0) -> dict[str, Any]:
    """Delays of the changes noticed in time, and the numbers of missed changes and false alarms.

    An alarm during a change, or within `IN_TIME` rows after it, is not false.
    """
    delays, false = [], len(alarms)
    for change in changes:
        mine = [alarm for alarm in alarms if change <= alarm < change + IN_TIME + lasting]
        false -= len(mine)
        delays += [mine[0] - change] if mine and mine[0] < change + IN_TIME else []
    return {"delays": delays, "missed": len(changes) - len(delays), "false": false}


def losses(model: Any, rows: Any, labels: Any) -> Any:
    """Log-loss of each row (n - 100,), without the first 100."""
    probabilities = model.predict_then_learn(rows, labels)
    codes = np.searchsorted(model.classes_, labels)
    return -np.log(np.maximum(probabilities[np.arange(len(rows)), codes], 1e-9))[100:]


def run(kind: str, size: int, seed: int, n: int) -> dict[str, Any]:
    """Run all detectors on one stream."""
    rows, labels, changes = stream(kind, size, seed, n)
    alarms_of: dict[str, list[int]] = {"kalstream": []}
    with threadpool_limits(1):
        model, others, right = KalmanClassifier(features="scaled"), detectors(), []
        alarms_of |= {name: [] for name in others}
        for start in range(0, n, BLOCK):
            part = slice(start, start + BLOCK)
            before = model.drift().alarms if start else 0
            probabilities = model.predict_then_learn(rows[part], labels[part])
            if model.drift().alarms > before:
                alarms_of["kalstream"].append(model.drift().since)
            right += (model.classes_[probabilities.argmax(axis=1)] == labels[part]).tolist()
        for i, hit in enumerate(right):
            for name, detector in others.items():
                detector.update(int(not hit))
                if detector.drift_detected:
                    alarms_of[name].append(i)
        regret = {}
        best = min(
            losses(KalmanClassifier(gamma, "scaled"), rows, labels).mean() for gamma in GAMMAS
        )
        for name, options in (("mixture", {"stacking": False}), ("default", {})):
            own = losses(KalmanClassifier(features="scaled", **options), rows, labels).mean()
            regret[name] = float(own - best)
    return {
        "kind": kind,
        "size": size,
        "seed": seed,
        "rows": n,
        "changes": len(changes),
        "detectors": {
            name: score_alarms(alarms, changes, SLOW if kind == "gradual" else 0)
            for name, alarms in alarms_of.items()
        },
        "regret": regret,
    }


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    sizes, seeds = (SIZES[:1], SEEDS[:1]) if options.quick else (SIZES, SEEDS)
    todo = [(kind, size, seed, ROWS) for kind in KINDS for size in sizes for seed in seeds]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        cells = list(pool.map(run, *zip(*todo, strict=True)))
    RESULTS.mkdir(exist_ok=True)
    name = "detect-quick.json" if options.quick else "detect.json"
    (RESULTS / name).write_text(json.dumps(about() | {"cells": cells}, indent=1) + "\n")
    for cell in cells:
        each = {n: (d["delays"], d["missed"], d["false"]) for n, d in cell["detectors"].items()}
        print(cell["kind"], cell["size"], cell["seed"], each, cell["regret"], flush=True)


if __name__ == "__main__":
    main()
