"""Regression with uncertainty: do the intervals hold when the function changes, then the noise?

A curve of two columns is learned row by row, each predicted before it is learned. A third of the
way the curve changes; at two thirds the noise trebles. Prints, just after each change and later,
the error and the share of targets within the intervals of 68% and 95%, for the regressor with
nothing tuned and for one that forgets nothing. `--plot FILE` draws it.
"""

from __future__ import annotations

import argparse

import numpy as np

from kalstream import KalmanRegressor

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
    """Mean and standard deviation (n,) of every row before it was learned; NaN in chunk one."""
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

    X, y = stream(options.rows, options.seed)
    third = options.rows // 3
    parts = {"at first": slice(SOON, third)}
    for name, at in (("new curve", third), ("new noise", 2 * third)):
        parts[f"{name}, first {SOON} rows"] = slice(at, at + SOON)
        parts[f"{name}, later"] = slice(at + SOON, at + third)
    found = {}
    for title, forgetting in (("nothing tuned", "mixture"), ("nothing forgotten", 1.0)):
        model = KalmanRegressor(forgetting, random_state=0)
        mean, std = found[title] = test_then_train(model, X, y)
        print(f"{title:28}   error   std told   in 68%   in 95%")
        for name, part in parts.items():
            error = np.abs(y[part] - mean[part])
            inside = [np.mean(error < width * std[part]) for width in (0.994, 1.96)]
            print(
                f"  {name:26}{np.sqrt(np.mean(error**2)):8.3f}{std[part].mean():11.3f}"
                f"{inside[0]:9.2f}{inside[1]:9.2f}"
            )
        print(f"  noise: std {np.sqrt(model.noise_var_):.3f}, in truth {NOISE[1]} by now")
    if options.plot:
        plot(options.plot, y, found, (third, 2 * third))


def plot(path, y, found, changes) -> None:
    """Draw errors with the interval that was told, and the share of targets within it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 1, figsize=(8.5, 6), sharex=True, layout="constrained")
    steps, window = np.arange(len(y)), 200
    for axis, (title, (mean, std)), color in zip(
        axes, found.items(), ("tab:orange", "tab:blue"), strict=False
    ):
        axis.fill_between(steps, -1.96 * std, 1.96 * std, color=color, alpha=0.5, lw=0)
        axis.plot(steps, y - mean, ",", color="0.2")
        axis.set(ylabel="error", ylim=(-3.0, 3.0))
        axis.set_title(f"{title}: errors, and the interval of 95% told beforehand", fontsize=9)
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
