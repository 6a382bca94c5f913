"""KalmanClassifier on frozen embeddings and with many classes. Writes its section.

The data are not part of the project: set KALSTREAM_DATA to the folder that holds embeddings/, and
streams/ for features.py. What is missing is left out, and the page says so. Streams one example at
a time, beside other libraries: peers/.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
from page import alone, machine, table, write_section
from safetensors.numpy import load_file

from kalstream import KalmanClassifier

FOLDER = Path(os.environ.get("KALSTREAM_DATA", "data"))
# name: file, target, rows
STREAMS = {
    "elec2": ("elec2.csv", "target", None),
    "weather": ("weather.csv", "target", None),
    "outdoor": ("outdoor.parquet", "label", None),
    "covtype": ("covtype.parquet", "Cover_Type", 60_000),
}
EMBEDDINGS = "cifar100-train-mobilenetv2-pca256.safetensors"
ORDERS = {"shuffled": (0.573, 1.715), "ten tasks": (0.825, 0.845)}


class Score:
    """Accuracy and log-loss; a label never seen before has probability 1 / (n + 1)."""

    def __init__(self) -> None:
        self.n, self.right, self.loss, self.seconds = 0, 0, 0.0, 0.0

    def add(self, probabilities: dict[Any, float], label: Any, n_seen: int) -> None:
        """Score one prediction, made after n_seen labels."""
        self.n += 1
        if probabilities:
            self.right += max(probabilities, key=probabilities.__getitem__) == label
        known = probabilities.get(label, 0.0) * n_seen / (n_seen + 1)
        self.loss -= math.log(max(known, 1e-15) if label in probabilities else 1 / (n_seen + 1))

    def row(self) -> tuple[float, float, float]:
        """Accuracy, log-loss, microseconds an example."""
        return self.right / self.n, self.loss / self.n, 1e6 * self.seconds / self.n


def stream(name: str) -> tuple[np.ndarray, list[Any]]:
    """Rows (n, d) and labels."""
    file, target, limit = STREAMS[name]
    path = FOLDER / "streams" / file
    read = pyarrow.csv.read_csv if path.suffix == ".csv" else pyarrow.parquet.read_table
    found = read(path).slice(0, limit)
    columns = [c for c in found.column_names if c != target]
    rows = np.stack([found[c].to_numpy().astype(np.float64) for c in columns], axis=1)
    return rows, found[target].to_pylist()


def embeddings(order: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Frozen embeddings (50000, 256) and labels, shuffled or in ten tasks of ten classes."""
    found = load_file(FOLDER / "embeddings" / EMBEDDINGS)
    rows, labels = found["features"].astype(np.float64), found["labels"].astype(np.int64)
    rng = np.random.default_rng(seed)
    index = rng.permutation(len(rows))
    if order == "ten tasks":
        task = np.empty(100, np.int64)
        task[rng.permutation(100)] = np.arange(100) // 10
        index = index[np.argsort(task[labels[index]], kind="stable")]
    return rows[index], labels[index]


@alone
def run_embeddings(order: str, seed: int) -> tuple[float, float, float]:
    """Scores on frozen embeddings, in chunks of 10 predicted before they are learnt."""
    rows, labels = embeddings(order, seed)
    KalmanClassifier(features="raw").partial_fit(rows[:10], labels[:10]).predict_proba(rows[:10])
    model, score = KalmanClassifier(features="raw"), Score()
    for start in range(0, len(rows), 10):
        x, y = rows[start : start + 10], labels[start : start + 10]
        begun = time.perf_counter()
        p, classes = (
            (model.predict_proba(x), model.classes_) if start else (np.zeros((10, 0)), y[:0])
        )
        model.partial_fit(x, y)
        score.seconds += time.perf_counter() - begun
        for each, label in zip(p, y.tolist(), strict=True):
            score.add(dict(zip(classes.tolist(), each, strict=True)), label, start)
    return score.row()


@alone
def run_many_classes() -> tuple[float, float, float]:
    """Megabytes of the state with 3,100 classes and 128 features, ms an update, ms a prediction."""
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((600, 128)), rng.integers(3100, size=600)
    model = KalmanClassifier(features="raw")
    model.partial_fit(rows[:100], labels[:100], classes=np.arange(3100))
    update = predict = 0.0
    for i in range(100, 600):
        start = time.perf_counter()
        model.predict_proba(rows[i : i + 1])
        middle = time.perf_counter()
        model.partial_fit(rows[i - 50 : i - 49], labels[i - 50 : i - 49])
        update += time.perf_counter() - middle
        predict += middle - start
    return model.nbytes_ / 1e6, 2.0 * update, 2.0 * predict


def against(value: float, target: float, *, least: bool) -> str:
    """A number, its target, and whether it was met."""
    met = value >= target if least else value <= target
    return f"{'**' if met else ''}{value:.4f}{'**' if met else ''} ({target:g})"


def main() -> None:
    """Measure everything that there are data for, and write the section."""
    body = [
        "## Embeddings",
        f"`KALSTREAM_DATA=... python benchmarks/embeddings.py` on {machine()}.",
    ]
    if (FOLDER / "embeddings" / EMBEDDINGS).exists():
        lines = []
        for order, (accuracy, loss) in ORDERS.items():
            found = run_embeddings(order, 0)
            lines.append(
                [
                    order,
                    against(found[0], accuracy, least=True),
                    against(found[1], loss, least=False),
                    f"{found[2]:.0f} us (350)",
                ]
            )
            print(lines[-1], flush=True)
        body += [
            table(["embeddings", "accuracy (target)", "log-loss (target)", "an example"], lines),
            "50,000 frozen MobileNetV2 embeddings of CIFAR-100, chunks of 10 predicted before they "
            'are learnt, `KalmanClassifier(features="raw")` for both orders, on one core.',
        ]
    else:
        body.append(f"Left out, since the data were not there: {EMBEDDINGS}.")
    size, update, predict = run_many_classes()
    body.append(
        f"3,100 classes and 128 features: the state takes **{size:.0f} MB** (target 50), an update "
        f"**{update:.1f} ms** (target 5), a prediction {predict:.1f} ms."
    )
    write_section("embeddings", "\n\n".join(body))


if __name__ == "__main__":
    main()
