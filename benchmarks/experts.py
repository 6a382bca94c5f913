"""What experts beside the filters bring, and cost: python benchmarks/experts.py [--rows 15000].

The first rows of every table in the folder KALSTREAM_DATA (pypi_tables.py adds some), embeddings,
tables of scikit-learn in random order, and made streams. Writes its section.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from embeddings import EMBEDDINGS, ORDERS, embeddings
from numpy.typing import NDArray
from page import environment, machine, table, write_section
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from data import FOLDER, name_of, read, stream_files
from kalstream import KalmanClassifier
from kalstream.core import GaussianClasses, LabelChain, Linear, Neighbours

Array = NDArray[Any]
Rows = tuple[Array, Array]
CALL, SINGLE = 100, 2000
SETTINGS: dict[str, dict[str, Any]] = {
    "fast": {"preset": "fast"},
    "filters": {"experts": []},
    "neighbours": {"experts": [Neighbours()]},
    "chain": {"experts": [LabelChain()]},
    "linear": {"experts": [Linear()]},
    "default": {},
    "gaussian classes": {"experts": [GaussianClasses()]},
    "accurate": {"preset": "accurate"},
}


def shuffled(load: Callable[..., Rows]) -> Rows:
    """A table of scikit-learn in random order."""
    X, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order]


def moving_cells(n: int) -> Rows:
    """Forty centres with labels of four classes, which move a little with every row."""
    rng = np.random.default_rng(0)
    centres, classes = rng.random((40, 4)), rng.integers(4, size=40)
    X, y = np.empty((n, 4)), np.empty(n, np.int64)
    for i in range(n):
        centres += 0.002 * rng.standard_normal(centres.shape)
        X[i] = rng.random(4)
        y[i] = classes[((centres - X[i]) ** 2).sum(axis=1).argmin()]
    return X, y


def thresholds(n: int) -> Rows:
    """Three thresholds of one column of thirty; one label in twenty is wrong."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 30))
    y = np.searchsorted([-0.7, 0.0, 0.7], X[:, 0]) % 2
    return X, np.where(rng.random(n) < 0.05, 1 - y, y)


def cycle(n: int) -> Rows:
    """Labels go round in a cycle of ten; columns have no meaning."""
    return np.random.default_rng(0).standard_normal((n, 5)), np.arange(n) % 10


def chance(n: int) -> Rows:
    """Labels of three classes that nothing predicts."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 10)), rng.integers(3, size=n)


def linear(n: int) -> Rows:
    """Labels by a logistic regression on ten columns."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 10))
    odds = 2.0 * X @ rng.standard_normal(10)
    return X, (rng.random(n) < 1.0 / (1.0 + np.exp(-odds))).astype(int)


MADE = moving_cells, thresholds, cycle, chance, linear
TABLES = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer}


def table_of(path: Path, n: int) -> Rows:
    """The first rows of a file."""
    stream = read(path, n)
    return stream.rows, np.asarray(stream.targets)


def frozen(order: str, n: int) -> Rows:
    """The first rows of embeddings."""
    stream = embeddings(order)
    return stream.rows[:n], np.asarray(stream.targets[:n])


def cases(n: int) -> dict[str, Callable[[], Rows]]:
    """What reads or makes each stream."""
    found: dict[str, Callable[[], Rows]] = {
        name_of(path): partial(table_of, path, n) for path in stream_files()
    }
    if (FOLDER / "embeddings" / EMBEDDINGS).exists():
        found |= {f"embeddings, {order}": partial(frozen, order, n) for order in ORDERS}
    found |= {name: partial(shuffled, load) for name, load in TABLES.items()}
    return found | {make.__name__.replace("_", " "): partial(make, min(n, 10_000)) for make in MADE}


Scores = tuple[float, ...]
# What the default costs, over what filters alone cost, and one absolute time.
COSTS = "calls of 100", "single rows", "99.9th percentile of single rows", "memory"


def passed(rows: Callable[[], Rows], settings: dict[str, Any]) -> Scores:
    """Accuracy, log-loss, microseconds of a row in calls of 100 and alone, milliseconds, bytes.

    The rows alone come at the end. Their median and 99.9th percentile are given.
    """
    X, y = rows()
    model = KalmanClassifier(**settings, random_state=0)
    right, loss, spent, n = 0, 0.0, 0.0, 0
    for i in range(0, len(y), CALL):
        start = process_time()
        p = model.predict_then_learn(X[i : i + CALL], y[i : i + CALL])
        if i:
            spent += process_time() - start
        own = p[np.arange(len(p)), np.searchsorted(model.classes_, y[i : i + CALL])]
        right += int((model.classes_[p.argmax(axis=1)] == y[i : i + CALL]).sum())
        loss -= float(np.log(own[own > 0.0]).sum())  # a new label has no probability
        n += len(p)
    alone = []
    for i in range(SINGLE):
        k, start = i % len(y), process_time()
        model.predict_then_learn(X[k : k + 1], y[k : k + 1])
        alone.append(process_time() - start)
    single, slow = np.percentile(alone, [50.0, 99.9]).tolist()
    quick = 1e6 * spent / max(n - CALL, 1), 1e6 * single
    return right / n, loss / n, *quick, 1e3 * slow, model.nbytes_


def costs(name: str, default: Scores, filters: Scores) -> list[str]:
    """A line of the table of what experts cost."""
    ratio = [a / b for a, b in zip(default, filters, strict=True)]
    return [name, f"{ratio[2]:.2f}", f"{ratio[3]:.2f}", f"{default[4]:.1f} ms", f"{ratio[5]:.2f}"]


def measured(case: tuple[str, Callable[[], Rows], str]) -> tuple[str, str, Scores]:
    """Names of the stream and of the settings, and what was measured."""
    name, rows, setting = case
    return name, setting, passed(rows, SETTINGS[setting])


def main() -> None:
    """Measure all streams with all settings, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=15_000)
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--lines", type=Path, help="write lines of JSON here, and no section")
    given = parser.parse_args()
    streams = cases(given.rows)
    unknown = (math.nan,) * 6
    found = {name: dict.fromkeys(given.only, unknown) for name in streams}
    work = [(name, rows, setting) for name, rows in streams.items() for setting in given.only]
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with (
        environment(**threads),
        ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool,
    ):
        for done in as_completed([pool.submit(measured, each) for each in work]):
            name, setting, scores = done.result()
            found[name][setting] = scores
            print(json.dumps([name, setting, *(round(x, 5) for x in scores)]), flush=True)
    if given.lines:
        given.lines.write_text(json.dumps(found))
        return
    scores = [
        [name, *(f"{each[setting][0]:.4f} / {each[setting][1]:.4f}" for setting in given.only)]
        for name, each in found.items()
    ]
    times = [
        [name, *(f"{each[setting][2]:.0f} / {each[setting][3]:.0f}" for setting in given.only)]
        for name, each in found.items()
    ]
    body = [
        "## Experts beside the filters",
        f"`python benchmarks/experts.py --rows {given.rows}` on {machine()}.",
        table(["accuracy / log-loss", *given.only], scores),
        "The presets of `KalmanClassifier`; filters and a stack alone (`experts=[]`); and these "
        "and one expert. Rows are predicted, then learned, in "
        f"calls of {CALL}. The first rows of the tables and of embeddings, tables of scikit-learn "
        "in random order, and made streams of 10,000 rows.",
        table(["microseconds a row", *given.only], times),
        f"Processor time in calls of {CALL}; and of {SINGLE} single rows behind the last, the "
        "median.",
    ]
    if {"default", "filters"} <= set(given.only):
        cost = [costs(name, each["default"], each["filters"]) for name, each in found.items()]
        body.append(table(["default / filters", *COSTS], cost))
    write_section("experts", "\n\n".join(body))


if __name__ == "__main__":
    main()
