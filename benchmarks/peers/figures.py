"""Figures of docs/benchmarks.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from methods import METHODS
from scipy.stats import studentized_range

mpl.use("Agg")
import matplotlib.pyplot as plt

OURS = "kalstream"
MARKS = dict(zip(METHODS, "os<>dDvP^hXp*8+x1234", strict=False))


def ranks(ranks_of: dict[str, dict[str, float]], n_streams: int, path: Path) -> None:
    """Draw the mean ranks, with the critical difference of Nemenyi's test."""
    figure, axes = plt.subplots(1, len(ranks_of), figsize=(11, 4.5), layout="constrained")
    for axis, (key, mine) in zip(axes, ranks_of.items(), strict=True):
        names = sorted(mine, key=mine.__getitem__, reverse=True)
        k = len(names)
        spread = studentized_range.ppf(0.95, k, np.inf) / np.sqrt(2.0)
        critical = spread * np.sqrt(k * (k + 1) / (6.0 * n_streams))
        at = [mine[name] for name in names]
        axis.hlines(names, 1.0, at, color="0.85", zorder=0)
        axis.scatter(at, names, color=["tab:blue" if name == OURS else "0.4" for name in names])
        axis.plot([at[-1], at[-1] + critical], [names[-1]] * 2, color="tab:red", lw=3, alpha=0.5)
        axis.set_xlabel(f"mean rank, {key.replace('_', '-')} (red: critical difference, 5 %)")
    _save(figure, path)


def times(quality: Any, path: Path) -> None:
    """Draw accuracy against time, for each stream."""
    n = len(quality.streams)
    figure, axes = plt.subplots(1, n, figsize=(4 * n, 4), layout="constrained", squeeze=False)
    for axis, stream in zip(axes[0], quality.streams, strict=True):
        for name in (*quality.methods, *quality.variants):
            if name in METHODS:
                colour = "tab:blue" if METHODS[name].family == OURS else "0.45"
                at = quality.mean(name, stream, "us"), quality.mean(name, stream, "accuracy")
                axis.plot(*at, MARKS[name], color=colour, label=name)
        no_change = quality.mean("no-change", stream, "accuracy")
        axis.axhline(no_change, color="tab:red", ls=":", lw=1, label="no-change")
        axis.set(xscale="log", xlabel="microseconds a row", title=stream)
    axes[0][0].set_ylabel("accuracy")
    shown = axes[0][0].get_legend_handles_labels()
    figure.legend(*shown, loc="outside lower center", ncols=5, fontsize=7)
    _save(figure, path)


def reliability(bins: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw the frequency of the most probable class against its probability; bins (3, 15)."""
    n_lines = -(-len(bins) // 5)
    layout = {"figsize": (12, 2.4 * n_lines), "layout": "constrained"}
    figure, axes = plt.subplots(n_lines, 5, sharex=True, sharey=True, squeeze=False, **layout)
    for axis in axes.flat[len(bins) :]:
        axis.set_axis_off()
    for axis, (name, when) in zip(axes.flat, bins.items(), strict=False):
        axis.plot([0, 1], [0, 1], color="0.8", lw=1)
        for label, (count, confidence, right) in when.items():
            used = count > 0.001 * count.sum()
            axis.plot(
                confidence[used] / count[used],
                right[used] / count[used],
                ".-",
                label={"before": "as they are", "after": "calibrated"}[label],
            )
        axis.set_title(name, fontsize=8)
    axes.flat[0].legend(fontsize=7)
    figure.supxlabel("probability of the most probable class")
    figure.supylabel("how often it came")
    _save(figure, path)


def speed(curves: dict[str, dict[str, tuple[Any, Any, float]]], path: Path) -> None:
    """Draw microseconds a row against columns, classes and chunks, with fitted exponents."""
    figure, axes = plt.subplots(1, len(curves), figsize=(15, 5.5), layout="constrained")
    colours = {name: f"C{k}" for k, name in enumerate(next(iter(curves.values())))}
    for axis, (along, mine) in zip(axes, curves.items(), strict=True):
        for name, (x, us, exponent) in mine.items():
            style = {"color": colours[name], "lw": 2.5 if name == OURS else 1.2}
            axis.plot(x, us, ".-", label=f"{name} ({exponent:.1f})", **style)
        axis.set(xscale="log", yscale="log", xlabel=along, ylabel="microseconds a row")
        axis.legend(fontsize=6, title="(exponent)", framealpha=0.4)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=100)
    plt.close(figure)
