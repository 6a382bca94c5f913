"""Draws the figures of docs/method.md: ``python docs/site/figures.py [FOLDER]``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from kalstream import KalmanClassifier
from kalstream._optional import require
from kalstream.core import Posterior, init, predict, step, transition, update

NOISE_VAR, PRIOR_VAR = 0.1, 1.0
OURS, OTHER = "tab:orange", "tab:blue"


def regression():
    """A line with two weights, after 0, 2, 5 and 50 rows."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-2.0, 2.0, 50)
    y = 0.5 + 0.8 * x + np.sqrt(NOISE_VAR) * rng.normal(size=50)
    figure, axes = panels(1, 4, (8.5, 2.4))
    belief = init(2, 1, prior_var=PRIOR_VAR)
    learned = 0
    for axis, rows in zip(axes, (0, 2, 5, 50), strict=True):
        for row in range(learned, rows):
            belief, _ = update(belief, [1.0, x[row]], y[row], noise_var=NOISE_VAR)
        learned = rows
        at = np.linspace(-2.2, 2.2, 50)
        moments = [predict(belief, [1.0, each]) for each in at]
        mean = np.array([each[0][0] for each in moments])
        std = np.sqrt([each[1] for each in moments])
        axis.fill_between(at, mean - 2 * std, mean + 2 * std, color=OURS, alpha=0.3, lw=0)
        axis.plot(at, mean, color=OURS)
        axis.plot(x[:rows], y[:rows], ".", color="0.3", markersize=4)
        axis.set(title=f"{rows} rows", ylim=(-4.5, 4.5), xlabel="x")
    axes[0].set_ylabel("y")
    return figure


def kalman():
    """Belief about one weight: before a row, after forgetting, after learning."""
    old = Posterior(np.array([[0.5]]), np.array([[0.02]]))
    wider = transition(old, gamma=0.97, prior_var=PRIOR_VAR)
    new, _ = update(wider, [1.0], 1.3, noise_var=NOISE_VAR)
    figure, axes = panels(1, 2, (8.5, 2.6))
    at = np.linspace(-0.5, 1.8, 300)
    for axis, before, after, title in (
        (axes[0], old, wider, "forget: the belief becomes wider"),
        (axes[1], wider, new, "learn a row: it moves and becomes narrower"),
    ):
        for belief, color, name in ((before, "0.6", "before"), (after, OURS, "after")):
            mean, var = belief.mean[0, 0], belief.cov[0, 0]
            density = np.exp(-0.5 * (at - mean) ** 2 / var) / np.sqrt(2.0 * np.pi * var)
            axis.plot(at, density, color=color, label=name)
        axis.set(title=title, xlabel="weight", ylim=(0.0, 3.1))
    axes[1].axvline(1.3, color=OTHER, ls="--", label="what the row says")
    axes[0].set_ylabel("density")
    axes[1].legend(fontsize=8, frameon=False)
    return figure


def forgetting():
    """A weight that jumps, followed with and without forgetting."""
    rng = np.random.default_rng(0)
    rows = 300
    truth = np.where(np.arange(rows) < 150, 1.0, -0.5)
    x = rng.normal(size=rows)
    y = truth * x + np.sqrt(NOISE_VAR) * rng.normal(size=rows)
    figure, (axis,) = panels(1, 1, (8.5, 2.8))
    for half_life, color, name in (
        (np.inf, OTHER, "nothing forgotten, gamma = 1"),
        (100.0, OURS, "half-life of 100 rows, gamma = 0.993"),
    ):
        belief, path = init(1, 1, prior_var=PRIOR_VAR), []
        for row in range(rows):
            belief, _ = step(
                belief,
                [x[row]],
                y[row],
                gamma=0.5 ** (1.0 / half_life),
                noise_var=NOISE_VAR,
                prior_var=PRIOR_VAR,
            )
            path.append((belief.mean[0, 0], np.sqrt(belief.cov[0, 0])))
        mean, std = np.array(path).T
        axis.fill_between(np.arange(rows), mean - 2 * std, mean + 2 * std, color=color, alpha=0.2)
        axis.plot(mean, color=color, label=name)
    axis.plot(truth, color="0.2", ls="--", lw=1, label="the true weight")
    axis.legend(fontsize=8, frameon=False)
    axis.set(xlabel="rows", ylabel="weight", xlim=(0, rows))
    return figure


def softmax():
    """Scores and probabilities of three classes along one column."""
    rng = np.random.default_rng(0)
    labels = np.repeat(["a", "b", "c"], 60)
    x = np.concatenate([rng.normal(centre, 0.9, 60) for centre in (-2.0, 0.0, 2.0)])
    order = rng.permutation(len(x))
    model = KalmanClassifier(1.0, features="scaled").partial_fit(x[order, None], labels[order])
    at = np.linspace(-4.5, 4.5, 200)
    probabilities = model.predict_proba(at[:, None])
    logits = np.log(probabilities)
    logits -= logits.mean(axis=1, keepdims=True)
    figure, (left, right) = panels(1, 2, (8.5, 2.8))
    for k, color in enumerate((OTHER, "0.4", OURS)):
        left.plot(at, logits[:, k], color=color)
        right.plot(at, probabilities[:, k], color=color, label=f"class {model.classes_[k]}")
        own = x[labels == model.classes_[k]]
        right.plot(own, np.full(len(own), -0.05 - 0.04 * k), "|", color=color, markersize=4)
    left.set(title="scores", xlabel="x")
    right.set(title="probabilities, and the rows below", xlabel="x")
    right.legend(fontsize=8, frameon=False)
    return figure


def panels(rows, columns, size):
    """A figure and its axes (rows * columns,)."""
    figure = require("matplotlib.figure", "figures").Figure(size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(9)
    return figure, axes


FIGURES = (regression, kalman, forgetting, softmax)


def main(folder: Path) -> None:
    for draw in FIGURES:
        draw().savefig(folder / f"method-{draw.__name__}.png", dpi=80)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]))
