"""A sensor with gaps in time: `time=` makes uncertainty grow while nothing arrives.

The stream is river's WaterFlow: the flow in a pipe, measured every hour for two months. Now and
then measurements are missing, for up to 32 hours, and three times the flow breaks down. The columns
are the hour of the day, as sines and cosines. The model follows the level by forgetting. Each row
is predicted before it is learned.

The example prints the predicted standard deviation before and after each gap of 4 hours or more,
with `time=` and without. Without it the model takes the next row for the next hour. In this pipe
the flow after a gap was as before, so nothing was lost without `time=`; in a pipe that changes, the
wider interval is the right one. Then it prints how the interval grows if nothing more arrives, and
the share of all rows inside the 95% intervals. `--plot FILE` draws a figure
(pip install 'kalstream[figures]'). It needs the extra `river`.
"""

from __future__ import annotations

import argparse

import numpy as np
from river.datasets import WaterFlow

from kalstream import KalmanRegressor
from kalstream._optional import require

GAP = 4.0  # hours
SETTLED = 48  # rows that are not counted


def stream():
    """Columns (n, 4), flows (n,), and hours since the first midnight (n,)."""
    rows = [(row["Time"], flow) for row, flow in WaterFlow()]
    midnight = rows[0][0].replace(hour=0)
    hours = np.array([(time - midnight).total_seconds() / 3600 for time, _ in rows])
    return columns(hours), np.array([flow for _, flow in rows]), hours


def columns(hours):
    """Waves of a day and of half a day (n, 4)."""
    angle = 2.0 * np.pi * hours[:, None] / (24.0, 12.0)
    return np.hstack([np.sin(angle), np.cos(angle)])


def test_then_train(X, y, hours):
    """The model, and mean and standard deviation (n,) of each row; NaN for the first."""
    model = KalmanRegressor(features="scaled")
    mean, std = np.full((2, len(y)), np.nan)
    for now in range(len(y)):
        row = slice(now, now + 1)
        time = {} if hours is None else {"time": hours[row]}
        if now:
            mean[row], std[row] = model.predict(X[row], return_std=True, **time)
        model.partial_fit(X[row], y[row], **time)
    return model, mean, std


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", metavar="FILE", help="also draw the figure")
    options = parser.parse_args()
    if options.plot:
        require("matplotlib", "figures")  # fail now if it is missing, not after the work

    X, y, hours = stream()
    model, mean, std = test_then_train(X, y, hours)
    _, _, std_of_rows = test_then_train(X, y, None)
    print("predicted standard deviation at a gap: before, after, and after it without time=")
    for row in np.flatnonzero(np.diff(hours) >= GAP) + 1:
        print(
            f"  {hours[row] - hours[row - 1]:3.0f} hours: {std[row - 1]:6.1f}{std[row]:8.1f}"
            f"{std_of_rows[row]:8.1f}   error {y[row] - mean[row]:5.1f}"
        )
    later = np.array([1.0, 6.0, 24.0, 72.0, 240.0])
    ahead = hours[-1] + later
    _, wider = model.predict(columns(ahead), return_std=True, time=ahead)
    print("hours after the last row:  " + "".join(f"{each:7.0f}" for each in later))
    print("  standard deviation:      " + "".join(f"{each:7.1f}" for each in wider))
    inside = np.abs(y - mean)[SETTLED:] < 1.96 * std[SETTLED:]
    print(f"in 95%: {inside.mean():.3f} of {len(inside)} rows")
    if options.plot:
        plot(options.plot, y, hours, mean, std)


def plot(path, y, hours, mean, std) -> None:
    """Draw flows and intervals of all rows, and closer of those around the longest gap."""
    figure = require("matplotlib.figure", "figures").Figure((8.5, 5), layout="constrained")
    longest = np.diff(hours).argmax()
    parts = slice(SETTLED, None), slice(longest - 36, longest + 48)
    for axis, rows in zip(figure.subplots(2, 1), parts, strict=True):
        days, low, high = hours[rows] / 24, mean - 1.96 * std, mean + 1.96 * std
        axis.fill_between(days, low[rows], high[rows], color="tab:orange", alpha=0.4, lw=0)
        axis.plot(days, y[rows], ".", color="0.2", markersize=2)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set(ylabel="flow", xlabel="days")
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
