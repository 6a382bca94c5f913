"""Which features should be the default: raw, scaled or Fourier, on tables and on embeddings.

Writes its section. Chunks of ten, predicted before they are learnt; data as in embeddings.py.
"""

from __future__ import annotations

import time

import numpy as np
from embeddings import EMBEDDINGS, FOLDER, ORDERS, STREAMS, Score, embeddings, stream
from page import alone, machine, table, write_section

from kalstream import KalmanClassifier

LIMIT = 20_000  # rows of a table: enough to tell them apart


@alone
def run(name: str, features: str) -> tuple[float, float, float]:
    """Accuracy, log-loss and microseconds an example."""
    if name in STREAMS:
        rows, labels = stream(name)
        rows, labels = rows[:LIMIT], labels[:LIMIT]
    else:
        rows, found = embeddings(name, 0)
        labels = found.tolist()
    warm = KalmanClassifier(features=features).partial_fit(rows[:10], labels[:10])  # compiles
    warm.predict_proba(rows[:10])
    model, score = KalmanClassifier(features=features, random_state=0), Score()
    for start in range(0, len(rows), 10):
        x, y = rows[start : start + 10], labels[start : start + 10]
        begun = time.perf_counter()
        known = model.predict_proba(x) if start else np.zeros((len(x), 0))
        classes = model.classes_.tolist() if start else []
        model.partial_fit(x, y)
        score.seconds += time.perf_counter() - begun
        for each, label in zip(known, y, strict=True):
            score.add(dict(zip(classes, each, strict=True)), label, start)
    return score.row()


def main() -> None:
    """Measure everything that there are data for, and write the section."""
    names = [n for n, (file, *_) in STREAMS.items() if (FOLDER / "streams" / file).exists()]
    if (FOLDER / "embeddings" / EMBEDDINGS).exists():
        names += list(ORDERS)
    lines = []
    for name in names:
        cells = []
        for features in ("raw", "scaled", "fourier"):
            if features == "raw" and name in STREAMS:
                cells.append("")  # columns of any size: not what raw is for
                continue
            accuracy, loss, microseconds = run(name, features)
            cells.append(f"{accuracy:.4f} / {loss:.4f}, {microseconds:.0f} us")
        lines.append([name, *cells])
        print(lines[-1], flush=True)
    body = [
        "## Which features",
        f"`KALSTREAM_DATA=... python benchmarks/features.py` on {machine()}.",
        table(["", "raw", "scaled", "fourier"], lines),
        f"Accuracy / log-loss and time an example, in chunks of 10; the first {LIMIT:,} rows of "
        "tables, all 50,000 embeddings.",
    ]
    write_section("features", "\n\n".join(body))


if __name__ == "__main__":
    main()
