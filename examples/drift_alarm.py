"""Drift alarms: call `drift()` after every chunk.

The stream has 22 years of one weather station: eight measurements of each day, and whether it
rained. The data are real; two changes are put in by hand. For 2,000 days the labels are reversed,
as if a program read a flag the wrong way round. Later two temperatures come in Celsius instead of
Fahrenheit. Short half-lives then predict better than the usual ones, which raises the alarm. The
example prints the alarm after each change and the accuracy around it, then the alarms on the data
as they are. The model adapts without an alarm; the alarm informs the people who run it.
`--plot FILE` draws a figure (pip install 'kalstream[figures]').
"""

from __future__ import annotations

import argparse

import numpy as np

from kalstream import KalmanClassifier
from kalstream._optional import require
from kalstream.streams.packaged import path_of

REVERSED, CELSIUS = (2500, 4500), 6000
CHANGES = {2500: "labels reversed", 4500: "labels right again", 6000: "Celsius"}
CHUNK = 10


def stream(rows: int, *, changes: bool = True):
    """Columns (n, 8) and labels (n,)."""
    data = np.loadtxt(path_of("weather"), delimiter=",", skiprows=1, max_rows=rows)
    X, y = data[:, :-1], data[:, -1].astype(int)
    if changes:
        y[slice(*REVERSED)] = 1 - y[slice(*REVERSED)]
        X[CELSIUS:, :2] = (X[CELSIUS:, :2] - 32.0) / 1.8
    return X, y


def watch(X, y):
    """Correct predictions (n,), alarms, and confidence and half-life weights of each chunk."""
    model = KalmanClassifier(random_state=0).partial_fit(X[:CHUNK], y[:CHUNK])
    right, alarms, confidence, posterior = np.zeros(len(y), bool), [], [], []
    for start in range(CHUNK, len(y), CHUNK):
        chunk = slice(start, start + CHUNK)
        right[chunk] = model.predict(X[chunk]) == y[chunk]
        model.partial_fit(X[chunk], y[chunk])
        drift = model.drift()
        if drift and drift.since not in alarms:  # a new alarm
            alarms.append(drift.since)
        confidence.append(drift.confidence)
        posterior.append(model.half_life_weights_)
    return right, alarms, np.array(confidence), posterior


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--plot", metavar="FILE", help="also draw the figure")
    options = parser.parse_args()
    if options.plot:
        require("matplotlib", "figures")  # fail now if it is missing, not after the work

    right, alarms, confidence, posterior = watch(*stream(options.rows))
    for change, name in CHANGES.items():
        after = [row - change for row in alarms if 0 <= row - change < 200]
        alarm = f"alarm {after[0]} rows later" if after else "no alarm"
        shares = [
            right[change + a : change + b].mean() for a, b in ((-300, 0), (0, 100), (200, 500))
        ]
        print(f"{name}, row {change}: {alarm}")
        print("  accuracy of 300 rows before {:.2f}, 100 after {:.2f}, then {:.2f}".format(*shares))
    other = [row for row in alarms if not any(0 <= row - change < 200 for change in CHANGES)]
    print(f"other alarms: {len(other)}")
    _, false, highest, _ = watch(*stream(options.rows, changes=False))
    print(f"alarms in the {options.rows} days as they are: {len(false)}", end="")
    print(f" (highest confidence {highest.max():.2f})")
    if options.plot:
        plot(options.plot, right, alarms, confidence, posterior)


def plot(path, right, alarms, confidence, posterior) -> None:
    """Draw accuracy of recent rows, the weights of half-lives, and the alarm's confidence."""
    figure = require("matplotlib.figure", "figures").Figure((8.5, 6), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 1.5))
    rows, window = len(right), 200
    share = np.convolve(right, np.ones(window) / window, "valid")
    top.plot(np.arange(window, rows + 1), share, color="tab:orange")
    top.set_ylabel(f"accuracy,\nlast {window} rows")
    weights = np.array([list(each.values()) for each in posterior]).T
    names = ["never" if np.isinf(h) else f"{h:,.0f}" for h in posterior[0]]
    edges = np.arange(1, weights.shape[1] + 2) * CHUNK
    heat = middle.pcolormesh(
        edges, np.arange(len(names) + 1) - 0.5, weights, cmap="Oranges", vmin=0.0, vmax=1.0
    )
    middle.set_yticks(range(len(names)), names)
    middle.set_ylabel("half-life, rows")
    figure.colorbar(heat, ax=middle, label="probability", pad=0.01)
    bottom.plot(edges[1:], confidence, color="0.4", lw=1)
    bottom.plot(alarms, np.ones(len(alarms)), "v", color="tab:red", label="alarm")
    bottom.set(ylabel="drift().confidence", xlabel="rows", xlim=(0, rows), ylim=(0.0, 1.1))
    for axis in (top, middle, bottom):
        axis.spines[["top", "right"]].set_visible(False)
        lines = [axis.axvline(change, color="tab:blue", lw=1, ls="--") for change in CHANGES]
    lines[0].set_label(", ".join(CHANGES.values()))
    figure.legend(loc="outside upper right", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
