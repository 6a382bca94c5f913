"""Drift alarms: call `drift()` after every chunk.

The rule jumps three times, and later turns slowly for a thousand rows. After a jump short
half-lives predict better than the usual ones, which raises the alarm. The example prints the alarm
after each jump and the accuracy around it, then the alarms on as many rows of a rule that does not
change. The model adapts without an alarm; the alarm informs the people who run it. `--plot FILE`
draws a figure (pip install 'kalstream[figures]').
"""

from __future__ import annotations

import argparse

import numpy as np

from kalstream import KalmanClassifier
from kalstream._optional import require

JUMPS = (0.2, 0.35, 0.6)  # as shares of the rows
SLOW = (0.8, 0.9)
CHUNK = 10
COLUMNS, CLASSES = 8, 3


def stream(rows: int, seed: int, *, drifts: bool = True):
    """Columns (n, 8) and labels (n,)."""
    rng = np.random.default_rng(seed)
    at = np.arange(rows) / rows if drifts else np.zeros(rows)
    rules = rng.normal(size=(len(JUMPS) + 2, COLUMNS, CLASSES))
    rule = rules[np.searchsorted(JUMPS, at, side="right")]
    angle = 0.5 * np.pi * np.interp(at, SLOW, (0.0, 1.0))[:, None, None]
    rule = np.cos(angle) * rule + np.sin(angle) * rules[-1]
    X = rng.normal(size=(rows, COLUMNS))
    noise = 0.5 * rng.normal(size=(rows, CLASSES))
    return X, (np.einsum("nd,ndk->nk", X, rule) + noise).argmax(axis=1)


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
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="also draw the figure")
    options = parser.parse_args()
    if options.plot:
        require("matplotlib", "figures")  # fail now if it is missing, not after the work

    rows = options.rows
    jumps = [round(share * rows) for share in JUMPS]
    right, alarms, confidence, posterior = watch(*stream(rows, options.seed))
    for jump in jumps:
        after = [row - jump for row in alarms if 0 <= row - jump < 200]
        alarm = f"alarm {after[0]} rows later" if after else "no alarm"
        shares = [right[jump + a : jump + b].mean() for a, b in ((-300, 0), (0, 100), (200, 500))]
        print(f"jump at row {jump}: {alarm}")
        print("  accuracy of 300 rows before {:.2f}, 100 after {:.2f}, then {:.2f}".format(*shares))
    slow = [row for row in alarms if SLOW[0] <= row / rows < SLOW[1]]
    other = [a for a in alarms if a not in slow and not any(0 <= a - j < 200 for j in jumps)]
    print(f"alarms during the slow turn: {len(slow)}; other alarms: {len(other)}")
    _, false, highest, _ = watch(*stream(rows, options.seed, drifts=False))
    print(f"alarms in {rows} rows without drift: {len(false)}", end="")
    print(f" (highest confidence {highest.max():.2f})")
    if options.plot:
        plot(options.plot, right, jumps, alarms, confidence, posterior)


def plot(path, right, jumps, alarms, confidence, posterior) -> None:
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
        lines = [axis.axvline(jump, color="tab:blue", lw=1, ls="--") for jump in jumps]
        turn = axis.axvspan(SLOW[0] * rows, SLOW[1] * rows, color="tab:blue", alpha=0.12, lw=0)
    lines[0].set_label("the rule jumps")
    turn.set_label("it turns slowly")
    figure.legend(loc="outside upper right", ncols=3, fontsize=8, frameon=False)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
