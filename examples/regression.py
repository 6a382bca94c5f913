"""Regression with uncertainty: do the intervals hold after a change?

A function of two columns is learned online; every row is predicted before it is learned. After a
third of the rows the function changes, after two thirds the noise triples. The example prints the
error and the share of targets inside the 68% and 95% intervals, just after each change and later,
for the regressor with default settings and for one that forgets nothing. `--plot FILE` draws a
figure (pip install 'kalstream[figures]').
"""

from __future__ import annotations

import argparse

import numpy as np

from kalstream import KalmanRegressor
from kalstream._optional import require

NOISE = (0.2, 0.6)  # standard deviation, before and after it changes
SOON = 200  # rows that count as "just after"
CHUNK = 5


def stream(rows: int, seed: int):
    """Columns (n, 2), targets (n,)."""
    rng = np.random.default_rng(seed)
    third = np.arange(rows) * 3 // rows
    X = rng.uniform(-2.0, 2.0, size=(rows, 2))
    curve = np.where(
        third == 0, np.sin(2.0 * X[:, 0]) + X[:, 1], np.cos(2.0 * X[:, 0]) * X[:, 1] - 1.0
    )
    return X, curve + np.where(third < 2, *NOISE) * rng.normal(size=rows)


def test_then_train(model, X, y):
    """Mean and standard deviation (n,) of each row before it is learned; NaN in the first chunk."""
    mean, std = np.full((2, len(y)), np.nan)
    for start in range(0, len(y), CHUNK):
        chunk = slice(start, start + CHUNK)
        if start:
            mean[chunk], std[chunk] = model.predict(X[chunk], return_std=True)
        model.partial_fit(X[chunk], y[chunk])
    return mean, std


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="also draw the figure")
    options = parser.parse_args()
    if options.plot:
        require("matplotlib", "figures")  # fail now if it is missing, not after the work

    X, y = stream(options.rows, options.seed)
    third = options.rows // 3
    parts = {"at first": slice(SOON, third)}
    for name, at in (("new curve", third), ("new noise", 2 * third)):
        parts[f"{name}, first {SOON} rows"] = slice(at, at + SOON)
        parts[f"{name}, later"] = slice(at + SOON, at + third)
    predictions = {}
    for title, forgetting in (("nothing tuned", "mixture"), ("nothing forgotten", 1.0)):
        model = KalmanRegressor(forgetting, random_state=0)
        mean, std = predictions[title] = test_then_train(model, X, y)
        print(f"{title:28}   error   predicted std   in 68%   in 95%")
        for name, part in parts.items():
            error = np.abs(y[part] - mean[part])
            inside = [np.mean(error < width * std[part]) for width in (0.994, 1.96)]
            print(
                f"  {name:26}{np.sqrt(np.mean(error**2)):8.3f}{std[part].mean():16.3f}"
                f"{inside[0]:9.2f}{inside[1]:9.2f}"
            )
        print(f"  noise: std {np.sqrt(model.noise_var_):.3f}, true value {NOISE[1]}")
    if options.plot:
        plot(options.plot, y, predictions, (third, 2 * third))


def plot(path, y, predictions, changes) -> None:
    """Draw errors with the predicted interval, and the share of targets inside it."""
    figure = require("matplotlib.figure", "figures").Figure((8.5, 6), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    steps, window = np.arange(len(y)), 200
    for axis, (title, (mean, std)), color in zip(
        axes, predictions.items(), ("tab:orange", "tab:blue"), strict=False
    ):
        axis.fill_between(steps, -1.96 * std, 1.96 * std, color=color, alpha=0.5, lw=0)
        axis.plot(steps, y - mean, ",", color="0.2")
        axis.set(ylabel="error", ylim=(-3.0, 3.0))
        axis.set_title(f"{title}: errors and the predicted 95% interval", fontsize=9)
        inside = np.abs(y - mean)[CHUNK:] < 1.96 * std[CHUNK:]
        share = np.convolve(inside, np.ones(window) / window, "valid")
        axes[2].plot(steps[CHUNK + window - 1 :], share, color=color, label=title)
    axes[2].axhline(0.95, color="0.5", lw=0.8, ls="--")
    axes[2].legend(loc="lower right", fontsize=8, frameon=False)
    axes[2].set(ylabel=f"share inside,\nlast {window} rows", xlabel="rows", ylim=(0.0, 1.05))
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        for change in changes:
            axis.axvline(change, color="0.6", lw=0.8, zorder=0)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
