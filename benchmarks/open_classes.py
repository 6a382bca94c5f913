"""Which rows are of a class never seen: python benchmarks/open_classes.py [--rows 20000].

The first row of each class against all others: on embeddings in ten tasks and outdoor (folder
KALSTREAM_DATA), and made streams. Needs river. Writes its section.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from page import machine, table, write_section
from river.anomaly import HalfSpaceTrees
from river.compose import Pipeline
from river.preprocessing import MinMaxScaler
from safetensors.numpy import load_file
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from data import FOLDER, read
from kalstream import CRPClassifier, KalmanClassifier

Array = NDArray[Any]
Rows = tuple[Array, Array]
CALL, WINDOW = 100, 1000
EMBEDDINGS = "cifar100-train-mobilenetv2-pca256.safetensors"


def outdoor(n: int) -> Rows:
    """The first rows of the table."""
    stream = read(FOLDER / "streams" / "outdoor.parquet", n)
    return stream.rows, np.asarray(stream.targets)


def embeddings(n: int) -> Rows:
    """Frozen embeddings in ten tasks of ten classes; the same number of rows of each class."""
    arrays = load_file(FOLDER / "embeddings" / EMBEDDINGS)
    rows, labels = arrays["features"].astype(np.float64), arrays["labels"].astype(np.int64)
    rng = np.random.default_rng(0)
    index = rng.permutation(len(labels))[:n]
    task = np.empty(100, np.int64)
    task[rng.permutation(100)] = np.arange(100) // 10
    index = index[np.argsort(task[labels[index]], kind="stable")]
    return rows[index], labels[index]


def made(n: int, apart: float, curved: bool) -> Rows:
    """Thirty classes of ten columns, one more of which can come at every hundredth row."""
    rng = np.random.default_rng(0)
    y = np.minimum(rng.integers(30, size=n), 1 + np.arange(n) // 100)
    noise = rng.standard_normal((n, 10))
    if curved:
        turns = rng.standard_normal((30, 10, 10))
        noise = np.einsum("bij,bj->bi", turns[y], noise) / np.sqrt(10.0)
    return apart * rng.standard_normal((30, 10))[y] + noise, y


STREAMS: dict[str, Callable[[int], Rows]] = {
    "outdoor": outdoor,
    "embeddings, ten tasks": embeddings,
    "classes far apart": lambda n: made(min(n, 5000), 4.0, False),
    "classes near": lambda n: made(min(n, 5000), 1.5, False),
    "covariances of their own": lambda n: made(min(n, 5000), 2.0, True),
}


def by_crp(X: Array, y: Array) -> Array:
    """`CRPClassifier`, each row before it is learned."""
    model = CRPClassifier()
    parts = range(0, len(y), CALL)
    each = [model.predict_open_then_learn(X[i : i + CALL], y[i : i + CALL])[1] for i in parts]
    return np.concatenate(each)


def by_frequency(X: Array, y: Array) -> Array:
    """1 / (n + 1)."""
    return 1.0 / (1.0 + np.arange(len(y)))


def by_kalman(X: Array, y: Array, novel: bool) -> Array:
    """`is_novel`, or 1 less the largest probability; calls end before a class is new."""
    model, out = KalmanClassifier(features="raw", random_state=0), np.ones(len(y))
    _, firsts = np.unique(y, return_index=True)
    cuts = sorted({0, len(y), *range(0, len(y), CALL), *firsts.tolist(), *(firsts + 1).tolist()})
    for start, stop in pairwise(cuts):
        part = slice(start, stop)
        if start and novel:
            out[part] = model.is_novel(X[part])
        p = model.predict_then_learn(X[part], y[part])
        if start and not novel:
            out[part] = 1.0 - p.max(axis=1)
    return out


def by_svm(X: Array, y: Array) -> Array:
    """scikit-learn's one-class SVM on the last rows, fitted again at every call."""
    out = np.ones(len(y))
    for i in range(CALL, len(y), CALL):
        before = X[max(0, i - WINDOW) : i]
        scale = StandardScaler().fit(before)
        model = OneClassSVM(nu=0.1).fit(scale.transform(before))
        out[i : i + CALL] = -model.score_samples(scale.transform(X[i : i + CALL]))
    out[:CALL] = out[CALL:].max()
    return out


def by_trees(X: Array, y: Array) -> Array:
    """river's half-space trees, each row before it is learned."""
    model = Pipeline(MinMaxScaler(), HalfSpaceTrees(seed=0))
    out = np.empty(len(y))
    for i, row in enumerate(X):
        x = dict(enumerate(row.tolist()))
        out[i] = model.score_one(x)
        model.learn_one(x)
    return out


SCORES: dict[str, Callable[[Array, Array], Array]] = {
    "`CRPClassifier`": by_crp,
    "`is_novel`": lambda X, y: by_kalman(X, y, True),
    "1 - max p": lambda X, y: by_kalman(X, y, False),
    "one-class SVM": by_svm,
    "half-space trees": by_trees,
    "1/(n+1)": by_frequency,
}


def event_loss(new: Array, first: Array) -> float:
    """Log-loss of the event that a row is of a new class."""
    p = np.clip(np.where(first, new, 1.0 - new), 1e-15, 1.0)
    return float(-np.log(p).mean())


def main() -> None:
    """Measure all streams, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dry", action="store_true", help="print the lines only")
    given = parser.parse_args()
    areas, losses = [], []
    for score in SCORES.values():
        score(*made(300, 4.0, False))  # compiles
    for name, load in STREAMS.items():
        X, y = load(given.rows)
        first = np.zeros(len(y), bool)
        first[np.unique(y, return_index=True)[1]] = True
        first[0], row = False, [name]  # nothing can be known of the first row
        for score in SCORES.values():
            start = process_time()
            new = score(X, y)
            spent = 1e6 * (process_time() - start) / len(y)
            row.append(f"{roc_auc_score(first[1:], new[1:]):.3f} ({spent:.0f})")
            if score in (by_crp, by_frequency):
                losses.append(event_loss(new[1:], first[1:]))
        areas.append([*row[:1], f"{len(y)} / {first.sum()}", *row[1:]])
        print(areas[-1], losses[-2:], flush=True)
    if given.dry:
        return
    both = [
        [row[0], f"{losses[2 * i]:.5f}", f"{losses[2 * i + 1]:.5f}"] for i, row in enumerate(areas)
    ]
    body = [
        "## Classes never seen",
        f"`KALSTREAM_DATA=... python benchmarks/open_classes.py --rows {given.rows}` on "
        f"{machine()}.",
        table(["AUC (µs a row)", "rows / new classes", *SCORES], areas),
        "How well a score tells the first row of each class from all others, each scored before "
        'it is learned. `is_novel` and 1 - max p are of `KalmanClassifier(features="raw")`. The '
        f"one-class SVM knows the last {WINDOW:,} rows, scaled, and is fitted again after {CALL}. "
        "Processor time, with what a learner learns; that of 1 - max p is also that of learning.",
        table(["log-loss of the event", "`CRPClassifier`", "1/(n+1)"], both),
        "The event is that a row is of a class never seen. The first row of a stream does not "
        "count.",
    ]
    write_section("open classes", "\n\n".join(body))


if __name__ == "__main__":
    main()
