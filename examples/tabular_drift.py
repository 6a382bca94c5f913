"""Tabular data with drift: the rule stays, jumps, turns slowly, and returns.

Every chunk is predicted before it is learned. The example prints the accuracy in each phase, and
overall accuracy and log-loss. It compares the classifier with linear and with default features, the
same without forgetting, and scikit-learn's SGDClassifier with its default and a constant rate.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler

from kalstream import KalmanClassifier

PHASES = ("stays", "jumped", "turns", "returned")
CLASSES = ("buys", "leaves")
COLUMNS = 12
CHUNK = 10


def stream(rows: int, seed: int):
    """Columns of very different scales (n, 12), labels (n,), and the phase of each row (n,)."""
    rng = np.random.default_rng(seed)
    first, second, third = np.linalg.qr(rng.normal(size=(COLUMNS, 3)))[0].T
    phase = np.arange(rows) * len(PHASES) // rows
    angle = np.pi * np.linspace(0.0, 1.0, np.sum(phase == 2))[:, None]
    rule = np.where(phase[:, None] == 1, second, first)
    rule[phase == 2] = np.cos(angle) * second + np.sin(angle) * third
    standard = rng.normal(size=(rows, COLUMNS))
    score = np.einsum("nd,nd->n", standard, rule) + 0.3 * rng.normal(size=rows)
    X = rng.normal(size=COLUMNS) + standard * 10.0 ** rng.uniform(-2.0, 3.0, COLUMNS)
    return X, np.where(score > 0.0, *CLASSES), phase


class StandardisedSGD:
    """SGDClassifier on columns that are standardised online."""

    def __init__(self, **settings):
        self.scaler = StandardScaler()
        self.model = SGDClassifier(loss="log_loss", random_state=0, **settings)

    def partial_fit(self, X, y, classes):
        self.model.partial_fit(self.scaler.partial_fit(X).transform(X), y, classes=classes)

    def predict_proba(self, X):
        return self.model.predict_proba(self.scaler.transform(X))


def test_then_train(model, X, y):
    """Probability of each row's label (n,) before it is learned; NaN in the first chunk."""
    probability = np.full(len(y), np.nan)
    for start in range(0, len(y), CHUNK):
        chunk = slice(start, start + CHUNK)
        if start:
            column = np.searchsorted(CLASSES, y[chunk])
            probability[chunk] = model.predict_proba(X[chunk])[np.arange(len(column)), column]
        model.partial_fit(X[chunk], y[chunk], classes=CLASSES)
    return probability


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    X, y, phase = stream(options.rows, options.seed)
    models = {
        "kalstream, linear features": KalmanClassifier(features="scaled"),
        "kalstream, default features": KalmanClassifier(random_state=0),
        "kalstream, nothing forgotten": KalmanClassifier(forgetting=1.0, features="scaled"),
        "SGD, default rate": StandardisedSGD(),
        "SGD, constant rate 0.01": StandardisedSGD(learning_rate="constant", eta0=0.01),
    }
    print(f"{options.rows} rows, predicted before they are learned: accuracy while the rule ...")
    print(" " * 30 + "".join(f"{name:>9}" for name in (*PHASES, "overall", "log-loss")))
    for name, model in models.items():
        probability = test_then_train(model, X, y)[CHUNK:]
        right = probability > 0.5
        columns = [right[phase[CHUNK:] == p].mean() for p in range(len(PHASES))]
        columns += [right.mean(), -np.log(np.maximum(probability, 1e-15)).mean()]
        print(f"{name:30}" + "".join(f"{value:9.3f}" for value in columns))


if __name__ == "__main__":
    main()
