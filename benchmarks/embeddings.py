"""KalmanClassifier on frozen embeddings and with many classes. Writes its section.

Without the data (data.py) the section says what is missing. The folder peers/ has the comparison
with other libraries.
"""

from __future__ import annotations

import time

import numpy as np
from page import alone, machine, table, write_section
from safetensors.numpy import load_file

from data import FOLDER
from kalstream import KalmanClassifier
from kalstream.evaluate import prequential
from kalstream.streams import ArrayStream

EMBEDDINGS = "cifar100-train-mobilenetv2-pca256.safetensors"
ORDERS = {"shuffled": (0.573, 1.715), "ten tasks": (0.825, 0.845)}


def embeddings(order: str, seed: int = 0) -> ArrayStream:
    """Frozen embeddings (50000, 256) and labels, shuffled or in ten tasks of ten classes."""
    arrays = load_file(FOLDER / "embeddings" / EMBEDDINGS)
    rows, labels = arrays["features"].astype(np.float64), arrays["labels"].astype(np.int64)
    rng = np.random.default_rng(seed)
    index = rng.permutation(len(rows))
    if order == "ten tasks":
        task = np.empty(100, np.int64)
        task[rng.permutation(100)] = np.arange(100) // 10
        index = index[np.argsort(task[labels[index]], kind="stable")]
    return ArrayStream(rows[index], labels[index])


@alone
def run_chunks(stream: ArrayStream, features: str) -> tuple[float, float, float]:
    """Measure accuracy, log-loss and microseconds a row, in chunks of 10."""
    warm = ArrayStream(stream.rows[:20], stream.targets[:20])
    for rows in (warm, stream):  # the first pass compiles
        model = KalmanClassifier(features=features, random_state=0)
        result = prequential(model, rows, chunk=10)
    scores = result.total["accuracy"], result.total["log_loss"]
    return *scores, 1e6 * result.seconds / result.n_rows


@alone
def run_many_classes() -> tuple[float, float, float]:
    """MB of the state, ms an update and ms a prediction for 3,100 classes and 128 features."""
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
    """Format a number and its target; bold if the target is met."""
    met = value >= target if least else value <= target
    return f"{'**' if met else ''}{value:.4f}{'**' if met else ''} ({target:g})"


def main() -> None:
    """Measure everything whose data exist, and write the section."""
    body = [
        "## Embeddings",
        f"`KALSTREAM_DATA=... python benchmarks/embeddings.py` on {machine()}.",
    ]
    if (FOLDER / "embeddings" / EMBEDDINGS).exists():
        lines = []
        for order, (least_accuracy, most_loss) in ORDERS.items():
            accuracy, loss, microseconds = run_chunks(embeddings(order), "raw")
            lines.append(
                [
                    order,
                    against(accuracy, least_accuracy, least=True),
                    against(loss, most_loss, least=False),
                    f"{microseconds:.0f} us (350)",
                ]
            )
            print(lines[-1], flush=True)
        body += [
            table(
                ["embeddings", "accuracy (target)", "log-loss (target)", "a row (target)"], lines
            ),
            "50,000 frozen MobileNetV2 embeddings of CIFAR-100, in chunks of 10. Each chunk is "
            'predicted, then learned, by `KalmanClassifier(features="raw")` on one core.',
        ]
    else:
        body.append(f"Not measured, because the file {EMBEDDINGS} is missing.")
    size, update, predict = run_many_classes()
    body.append(
        f"3,100 classes and 128 features: the state takes **{size:.0f} MB** (target 50), an update "
        f"**{update:.1f} ms** (target 5), a prediction {predict:.1f} ms."
    )
    write_section("embeddings", "\n\n".join(body))


if __name__ == "__main__":
    main()
