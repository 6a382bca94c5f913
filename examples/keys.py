"""One model per key: the weights of 50 chicks.

The stream is river's ChickWeights: 50 chicks on four diets, weighed every two days from the day of
their birth. A row has the age and the diet; the key is the chick. The weights of a day are
predicted before they are learned. On the same diet some chicks grow faster than others.
`KeyedRegressor` learns how strongly chicks differ, and how each one does. The example compares it
with one `KalmanRegressor` for all chicks, and with one for each chick.

It prints the mean error in grams by age. Keys win while a chick has few rows, and a regressor for
each chick is best at the end. It also prints the share of all weights inside the 95% intervals.
That share is too small, because every day is outside of the ages that were seen, and older chicks
differ more. It needs the extra `river`.
"""

from __future__ import annotations

import argparse

import numpy as np
from river.datasets import ChickWeights

from kalstream import KalmanRegressor, KeyedRegressor

AGES = ((2, 8), (8, 16), (16, 22))  # days


def stream():
    """Columns age and three diets (n, 4), weights (n,), and the chick of each row (n,)."""
    rows = [(row["time"], row["diet"], row["chick"], weight) for row, weight in ChickWeights()]
    age, diet, chick, weight = np.array(rows, dtype=float).T
    return np.column_stack([age, *(diet == each for each in (2, 3, 4))]), weight, chick


class Separate(dict):
    """A regressor for each key, which knows nothing of the others."""

    def partial_fit(self, X, y, keys):
        for row, value, key in zip(X, y, keys, strict=True):
            model = self.setdefault(key, KalmanRegressor(features="scaled"))
            model.partial_fit(row[None], [value])

    def predict(self, X, keys, return_std):
        each = [
            self[key].predict(row[None], return_std=return_std)
            for row, key in zip(X, keys, strict=True)
        ]
        return np.concatenate(each, axis=1)


def test_then_train(model, X, y, keys):
    """Mean and standard deviation (n,) of each row before its day is learned; NaN on day 0."""
    mean, std = np.full((2, len(y)), np.nan)
    for day in np.unique(X[:, 0]):
        rows = X[:, 0] == day
        if day > 0:
            mean[rows], std[rows] = model.predict(X[rows], keys[rows], return_std=True)
        model.partial_fit(X[rows], y[rows], keys[rows])
    return mean, std


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()

    X, y, chick = stream()
    keyed = KeyedRegressor(KalmanRegressor(features="scaled"))
    print("mean error in grams at age" + "".join(f"{a:>5} to {b:<3}" for a, b in AGES) + " in 95%")
    for name, model, keys in (
        ("one for all chicks", Separate(), np.zeros(len(y))),
        ("one for each chick", Separate(), chick),
        ("KeyedRegressor", keyed, chick),
    ):
        mean, std = test_then_train(model, X, y, keys)
        error, later = np.abs(y - mean), X[:, 0] > 0
        by_age = [error[(X[:, 0] >= a) & (X[:, 0] < b)].mean() for a, b in AGES]
        inside = (error < 1.96 * std)[later].mean()
        print(f"{name:24}" + "".join(f"{each:11.1f}" for each in by_age) + f"{inside:9.2f}")
    print(f"chicks differ by {keyed.spread_:.1f} times the noise of one chick")


if __name__ == "__main__":
    main()
