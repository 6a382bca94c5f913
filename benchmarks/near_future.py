"""Near-future accuracy and retention beside online accuracy. Writes its section.

KALSTREAM_DATA=... python benchmarks/near_future.py [--rows 3000]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from page import machine, table, write_section
from river.forest import ARFClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler

from data import name_of, read, stream_files
from kalstream import KalmanClassifier
from kalstream.evaluate import prequential, retention

AHEAD, HOLD_OUT = 100, 0.1
Array = np.ndarray[Any, Any]


class Scaled:
    """Logistic regression by SGD on columns scaled by the rows so far."""

    def __init__(self) -> None:
        self.scaler, self.model = StandardScaler(), SGDClassifier(loss="log_loss", random_state=0)

    def partial_fit(self, X: Array, y: Array, classes: Array | None = None) -> None:
        """Learn rows (b, d) and labels (b,)."""
        X = self.scaler.partial_fit(X).transform(X)
        self.classes_ = self.model.partial_fit(X, y, classes).classes_

    def predict(self, X: Array) -> Array:
        """Labels (b,)."""
        return self.model.predict(self.scaler.transform(X))


LEARNERS: dict[str, Callable[[], Any]] = {
    "`KalmanClassifier()`": partial(KalmanClassifier, random_state=0),
    "`recent_labels=False`": partial(KalmanClassifier, recent_labels=False, random_state=0),
    "SGD": Scaled,
    "ARF": partial(ARFClassifier, n_models=10, seed=0),
}
Scores = tuple[Any, ...]


def measure(name: str, learner: str, rows: int) -> dict[str, Scores]:
    """Online and near-future accuracy and retention, of a learner and of the baselines."""
    (path,) = (path for path in stream_files() if name_of(path) == name)
    stream, make = read(path, rows), LEARNERS[learner]
    classes = sorted(set(stream.targets.tolist()))
    online, later = (
        prequential(make(), stream, classes=classes, ahead=ahead) for ahead in (0, AHEAD)
    )
    end = retention(make(), stream, classes=classes, hold_out=HOLD_OUT)
    scores: dict[str, Scores] = {learner: (online.total, later.total, end.values)}
    for each in online.baselines:
        parts = (online.baselines, later.baselines, end.baselines)
        scores[each] = tuple(part[each] for part in parts)
    return {each: tuple(part["accuracy"] for part in parts) for each, parts in scores.items()}


def cell(scores: Scores) -> str:
    """Three accuracies in percent."""
    return " / ".join(f"{100.0 * score:.1f}" for score in scores)


def main() -> None:
    """Measure every learner on every stream and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000, help="first rows of each stream")
    rows = parser.parse_args().rows
    names, scores = [name_of(path) for path in stream_files()], {}
    for name in names:
        for learner in LEARNERS:
            for each, three in measure(name, learner, rows).items():
                scores[each, name] = cell(three)
            print(name, learner, scores[learner, name], flush=True)
    shown = {**dict(zip(LEARNERS, LEARNERS, strict=True)), "no_change": "no-change"}
    shown["majority"] = "majority"
    body = [
        "## Near-future accuracy and retention",
        f"`python benchmarks/near_future.py` on {machine()}.",
        table(
            ["learner", *names],
            [[title, *(scores[each, name] for name in names)] for each, title in shown.items()],
        ),
        f"Accuracy in percent, of the first {rows:,} rows of each stream, learned one by one: "
        f"online / in the near future, {AHEAD} rows ahead / retention at the end, on "
        f"{HOLD_OUT:.0%} of the rows, which were never learned. SGD is scikit-learn's "
        "logistic regression on columns scaled by the rows so far, ARF is river's "
        "`ARFClassifier` with 10 trees. Majority and no-change look at no columns. Near-future "
        "predictions and those of retention are by `predict_proba`, which does not use recent "
        "labels.",
    ]
    write_section("near_future", "\n\n".join(body))


if __name__ == "__main__":
    main()
