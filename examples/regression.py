"""Regression with intervals: is the next value inside them as often as they say?

The target is the demand for electricity in New South Wales, half an hour ahead. The columns are the
half-hour of the day and the demand half an hour, an hour, a day and a week before. The intervals
come before the value is learned, one row at a time. The example prints the error and the share of
targets inside the 68% and 95% intervals by month, for the regressor with default settings and for
one that forgets nothing, and the error of repeating the last value. `--plot FILE` draws a figure
(pip install 'kalstream[figures]').
"""

from __future__ import annotations

import argparse

import numpy as np

from kalstream import KalmanRegressor
from kalstream._optional import require
from kalstream.streams.packaged import path_of

DAY, WEEK, MONTH = 48, 336, 1440  # half-hours
LAGS = (1, 2, DAY - 1, DAY, WEEK)


def stream(rows: int):
    """Columns (n, 6), targets (n,); demand is scaled to [0, 1]."""
    data = np.loadtxt(path_of("elec2"), delimiter=",", skiprows=14_001, max_rows=rows + WEEK)
    hour, demand = data[:, 0], data[:, 2]
    at = np.arange(WEEK, len(data))
    return np.column_stack([hour[at], *(demand[at - lag] for lag in LAGS)]), demand[at]


def test_then_train(model, X, y):
    """Mean and standard deviation (n,) of each row before it is learned; NaN for the first."""
    mean, std = np.full((2, len(y)), np.nan)
    for now in range(len(y)):
        row = slice(now, now + 1)
        if now:
            mean[row], std[row] = model.predict(X[row], return_std=True)
        model.partial_fit(X[row], y[row])
    return mean, std


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4 * MONTH)
    parser.add_argument("--plot", metavar="FILE", help="also draw the figure")
    options = parser.parse_args()
    if options.plot:
        require("matplotlib", "figures")  # fail now if it is missing, not after the work

    X, y = stream(options.rows)
    print(f"repeating the last value: error {np.sqrt(np.mean((y - X[:, 1])[DAY:] ** 2)):.4f}")
    predictions = {}
    for title, forgetting in (("nothing tuned", "mixture"), ("nothing forgotten", 1.0)):
        model = KalmanRegressor(forgetting, random_state=0)
        mean, std = predictions[title] = test_then_train(model, X, y)
        print(f"{title:20}   error   predicted std   in 68%   in 95%")
        for start in range(0, len(y), MONTH):
            part = slice(max(start, DAY), start + MONTH)  # without the first day
            error = np.abs(y[part] - mean[part])
            inside = [np.mean(error < width * std[part]) for width in (0.994, 1.96)]
            print(
                f"  month {start // MONTH + 1:<11}{np.sqrt(np.mean(error**2)):9.4f}"
                f"{std[part].mean():16.4f}{inside[0]:9.2f}{inside[1]:9.2f}"
            )
    if options.plot:
        plot(options.plot, y, predictions)


def plot(path, y, predictions) -> None:
    """Draw a week with its intervals, the errors, and the share of targets inside."""
    figure = require("matplotlib.figure", "figures").Figure((8.5, 6), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1)
    days = np.arange(len(y)) / DAY
    mean, std = predictions["nothing tuned"]
    week = slice(len(y) - WEEK, len(y))
    top.fill_between(
        days[week],
        *(mean[week] + side * std[week] for side in (-1.96, 1.96)),
        color="tab:orange",
        alpha=0.5,
        lw=0,
    )
    top.plot(days[week], y[week], ".", color="0.2", markersize=2)
    top.set_ylabel("demand")
    top.set_title("the last week: targets and the predicted 95% interval", fontsize=9)
    for (title, (mean, std)), color in zip(
        predictions.items(), ("tab:orange", "tab:blue"), strict=True
    ):
        errors = np.abs(y - mean)[1:]
        smooth = np.ones(WEEK) / WEEK
        middle.plot(days[WEEK:], np.sqrt(np.convolve(errors**2, smooth, "valid")), color=color)
        share = np.convolve(errors < 1.96 * std[1:], smooth, "valid")
        bottom.plot(days[WEEK:], share, color=color, label=title)
    middle.set(ylabel="error,\nlast week", xlim=(0.0, days[-1]))
    middle.set_ylim(bottom=0.0)
    bottom.axhline(0.95, color="0.5", lw=0.8, ls="--")
    bottom.legend(loc="lower right", fontsize=8, frameon=False)
    bottom.set(ylabel="share inside,\nlast week", xlabel="days", ylim=(0.5, 1.02))
    bottom.set_xlim(0.0, days[-1])
    for axis in (top, middle, bottom):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
