"""Keys on Ray: python benchmarks/distributed.py [--rows 10000000] [--keys 1000000]. Needs ray.

The keyed part alone, with one worker and with two, by the size of a piece; then
`kalstream.distributed.Keyed` end to end, with memory. Writes its section.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import ray
from keyed import CALL, COLUMNS, batch, made
from page import machine, table, write_section

from kalstream import KalmanClassifier, KeyedClassifier
from kalstream.core.keyed import Keyed as Settings
from kalstream.distributed import Keyed, OnRay

BASE = KalmanClassifier(features="raw", preset="fast", random_state=0)


class Memory(threading.Thread):
    """The largest memory of this process and of all it started, shared pages counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.ended = 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(2.0):
            self.most = max(self.most, sum(map(proportional, family(os.getpid()))))


def family(pid: int) -> set[int]:
    """Process numbers of a process and its descendants; those of Ray have ended parents."""
    found = {pid}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray" in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def message() -> float:
    """Seconds of an empty call and its answer."""
    records: Any = OnRay(shards=1).records(Settings(2))
    len(records)
    start = perf_counter()
    for _ in range(200):
        len(records)
    return (perf_counter() - start) / 200


def keyed_part(shards: int, piece: int, n: int = 200_000) -> float:
    """Rows a second of the keyed part, with offsets given; 0 shards: in this process."""
    settings, rng = Settings(1 + COLUMNS, every=piece), np.random.default_rng(0)
    records = OnRay(shards=shards).records(settings) if shards else None
    state = settings.start(records)
    batches = [batch(rng, rng.integers(20_000, size=piece)) for _ in range(max(1, n // piece))]
    best = float("inf")
    for _ in range(3):  # the first one compiles and makes the keys
        start = perf_counter()
        for each in batches:
            state = settings.advance(state, *each)[0]
        best = min(best, perf_counter() - start)
    return piece * len(batches) / best


def whole(shards: int, n: int = 100_000) -> float:
    """Rows a second of the whole model in calls of 10,000; 0 shards: in this process."""
    X, y, keys = made(n, 1.0, 20_000)
    model: Any = KeyedClassifier(BASE)
    model = Keyed(model, shards=shards) if shards else model
    start = 0.0
    for i in range(0, n, 10_000):
        if i == 20_000:
            start = perf_counter()
        model.predict_then_learn(*(part[i : i + 10_000] for part in (X, y, keys)))
    return (n - 20_000) / (perf_counter() - start)


def end_to_end(n_rows: int, n_keys: int) -> list[str]:
    """Many rows of many keys, generated as they are learned, with two workers."""
    rng, memory, correct, counted = np.random.default_rng(0), Memory(), 0, 0
    slopes = rng.standard_normal((COLUMNS, 3))
    shifts = rng.standard_normal((n_keys, 3))
    memory.start()
    start = perf_counter()
    with Keyed(KeyedClassifier(BASE), shards=2, every=2_000_000) as model:
        for i in range(0, n_rows, 10_000):
            X = rng.standard_normal((10_000, COLUMNS))
            keys = rng.integers(n_keys, size=10_000)
            y = (0.5 * X @ slopes + shifts[keys] + rng.gumbel(size=(10_000, 3))).argmax(axis=1)
            p = model.predict_then_learn(X, y, keys)
            if i >= n_rows // 2:
                correct, counted = correct + int((p.argmax(axis=1) == y).sum()), counted + len(y)
            if (i // 10_000) % 100 == 0:
                print(f"{i:,} rows, {i / (perf_counter() - start):,.0f} a second", flush=True)
        seconds, n = perf_counter() - start, model.n_keys_
    memory.ended.set()
    rate, accuracy = n_rows / seconds, correct / counted
    return [
        f"{n_rows:,}",
        f"{n:,}",
        f"{rate:,.0f}",
        f"{memory.most / 2**30:.1f}",
        f"{accuracy:.3f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    asked = parser.parse_args()
    ray.init(
        num_cpus=2, object_store_memory=400_000_000, include_dashboard=False, log_to_driver=False
    )
    seconds = message()
    places = {"this process": 0, "one worker": 1, "two workers": 2}
    pieces = [CALL, 10 * CALL]
    rates = {name: [keyed_part(n, piece) for piece in pieces] for name, n in places.items()}
    wholes = {name: whole(n) for name, n in places.items()}
    lines = [
        [name, *(f"{rate:,.0f}" for rate in rates[name]), f"{wholes[name]:,.0f}"] for name in places
    ]
    ratio = rates["two workers"][1] / rates["one worker"][1]
    time.sleep(2.0)
    heads = ["rows a second", "keyed part, pieces of 1,000", "of 10,000", "whole"]
    whole_lines = [end_to_end(asked.rows, asked.keys)]
    body = (
        "## Keys on Ray\n\n"
        f"`python benchmarks/distributed.py` on {machine()}, Ray {ray.__version__}.\n\n"
        f"{table(heads, lines)}\n\n"
        "The keyed part of `KeyedClassifier`, 10 columns and 3 classes, 20,000 keys, with offsets "
        'given; and the whole model with a base of `features="raw", preset="fast"`, in calls of '
        f"10,000 with pieces of 1,000. Two workers pass pieces of 10,000 **{ratio:.2f}** times as "
        "fast as one (target 1.6), on two cores that they share with the process that sends and "
        f"with Ray. An empty call and its answer take {1e6 * seconds:.0f} us.\n\n"
        f"{table(['rows', 'keys', 'rows a second', 'GiB', 'accuracy'], whole_lines)}\n\n"
        "Rows are generated, predicted and learned in calls of 10,000, with two workers that write "
        "their files every 2,000,000 rows. Memory is the largest sum of the proportional set sizes "
        "of this process, of the workers and of Ray's own processes. Accuracy is that of the "
        "second half of the rows."
    )
    write_section("distributed", body)


if __name__ == "__main__":
    main()
