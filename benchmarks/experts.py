"""What experts beside the filters bring, and cost: python benchmarks/experts.py [--rows 15000].

The first rows of every table in the folder KALSTREAM_DATA, tables of scikit-learn in random order,
and made streams. Writes its section.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from page import machine, table, write_section
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from data import name_of, read, stream_files
from kalstream import KalmanClassifier
from kalstream.core import Expert, LabelChain, Neighbours
from kalstream.estimators import Trees

Array = NDArray[Any]
Rows = tuple[Array, Array]
CALL, SINGLE = 100, 500
SETTINGS: dict[str, list[Expert]] = {
    "default": [],
    "neighbours": [Neighbours()],
    "label chain": [LabelChain()],
    "both": [Neighbours(), LabelChain()],
    "trees": [Trees()],
    "all": [Trees(), Neighbours(), LabelChain()],
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


def cases(n: int) -> dict[str, Rows]:
    """Names, rows and labels of all streams."""
    found: dict[str, Rows] = {}
    for path in stream_files():
        stream = read(path, n)
        found[name_of(path)] = stream.rows, np.asarray(stream.targets)
    for name, load in {
        "digits": load_digits,
        "wine": load_wine,
        "breast cancer": load_breast_cancer,
    }.items():
        found[name] = shuffled(load)
    for make in (moving_cells, thresholds, cycle, chance, linear):
        found[make.__name__.replace("_", " ")] = make(min(n, 10_000))
    return found


def passed(rows: Rows, experts: list[Expert]) -> tuple[float, float, float, float]:
    """Accuracy, log-loss, and microseconds of a row: in calls of 100, and one by one at the end."""
    X, y = rows
    model = KalmanClassifier(experts=experts, random_state=0)
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
    start = process_time()
    for i in range(SINGLE):
        k = i % len(y)
        model.predict_then_learn(X[k : k + 1], y[k : k + 1])
    single = (process_time() - start) / SINGLE
    return right / n, loss / n, 1e6 * spent / max(n - CALL, 1), 1e6 * single


def main() -> None:
    """Measure all streams with all settings, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=15_000)
    parser.add_argument("--dry", action="store_true", help="print the lines only")
    given = parser.parse_args()
    for experts in SETTINGS.values():
        passed(linear(300), experts)
    scores, times = [], []
    for name, rows in cases(given.rows).items():
        each = {setting: passed(rows, experts) for setting, experts in SETTINGS.items()}
        scores.append([name, *(f"{a:.4f} / {loss:.4f}" for a, loss, *_ in each.values())])
        first = each["default"]
        times.append([name, *(f"{b:.0f} / {s:.0f}" for *_, b, s in each.values())])
        more = max(b for *_, b, _ in each.values()) / first[2]
        print(scores[-1], times[-1][1:], f"{more:.2f}", flush=True)
    if given.dry:
        return
    body = [
        "## Experts beside the filters",
        f"`python benchmarks/experts.py --rows {given.rows}` on {machine()}.",
        table(["accuracy / log-loss", *SETTINGS], scores),
        "`KalmanClassifier()` and the same with `experts=[Neighbours()]`, `experts=[LabelChain()]` "
        "both, `experts=[Trees()]` and all; rows are predicted, then learned, in calls of "
        f"{CALL}. The first rows of the tables, tables of scikit-learn in random order, and made "
        "streams of 10,000 rows.",
        table(["microseconds a row", *SETTINGS], times),
        f"Processor time in calls of {CALL}, and one by one behind the last row. Rows one by one "
        "take the short way of single rows only without experts.",
    ]
    write_section("experts", "\n\n".join(body))


if __name__ == "__main__":
    main()
