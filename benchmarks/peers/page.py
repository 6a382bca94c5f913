"""docs/benchmarks.md and its figures, made from the result files of this folder.

python benchmarks/peers/page.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from methods import METHODS
from scipy.stats import rankdata, studentized_range

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[2] / "docs"
OURS = "kalstream"
WORST = {"accuracy": -np.inf, "log_loss": np.inf}

sys.path.insert(0, str(Path(__file__).parents[1]))
from page import table  # noqa: E402


class Quality:
    """What quality.py has found; every number is a mean over seeds."""

    def __init__(self, cells: list[dict[str, Any]]) -> None:
        self.cells = [cell for cell in cells if not cell["whole"]]
        self.whole = [cell for cell in cells if cell["whole"]]
        self.streams = sorted({cell["stream"] for cell in self.cells})
        there = {cell["method"] for cell in self.cells}
        self.methods = [name for name in METHODS if name in there]

    def of(self, method: str, stream: str, key: str) -> list[float]:
        """Values of all seeds."""
        mine = (c for c in self.cells if (c["method"], c["stream"]) == (method, stream))
        return [c[key] for c in mine if c[key] is not None]

    def mean(self, method: str, stream: str, key: str) -> float:
        """NaN where there is none."""
        values = self.of(method, stream, key)
        return float(np.mean(values)) if values else np.nan

    def ranks(self, key: str) -> dict[str, float]:
        """Mean rank over streams of those that have the number, 1 the best."""
        sign = -1.0 if key == "accuracy" else 1.0
        names = [m for m in self.methods if not np.isnan(self.mean(m, self.streams[0], key))]
        each = [rankdata([sign * self.mean(m, s, key) for m in names]) for s in self.streams]
        return dict(zip(names, np.mean(each, axis=0).tolist(), strict=True))

    def losses(self) -> list[str]:
        """Where the default is not the best one."""
        found = []
        for key, word, sign in (("accuracy", "accuracy", 1.0), ("log_loss", "log-loss", -1.0)):
            for stream in self.streams:
                own = self.mean(OURS, stream, key)
                for name in self.methods:
                    other = self.mean(name, stream, key)
                    if sign * (other - own) > 0.0:
                        found.append(
                            f"{stream}: {name} has {word} {other:.4f}, kalstream {own:.4f}"
                        )
        return found

    def faster(self) -> list[list[str]]:
        """The best ensemble of trees on each stream, and how much longer it takes."""
        lines = []
        for stream in self.streams:
            trees = [m for m in self.methods if METHODS[m].is_ensemble]
            best = max(trees, key=lambda m: self.mean(m, stream, "accuracy"))
            own, theirs = (self.mean(m, stream, "us") for m in (OURS, best))
            shown = f"{theirs / own:.1f}x"
            lines.append([stream, best, f"{own:.0f} us", f"{theirs:.0f} us", shown])
        return lines


def quality_section(quality: Quality) -> list[str]:
    """Tables of accuracy and log-loss, of the other metrics, and of time."""
    ranks = {key: quality.ranks(key) for key in WORST}
    rows = []
    for name in sorted(quality.methods, key=lambda m: ranks["accuracy"].get(m, np.inf)):
        cells = []
        for stream in quality.streams:
            spread = np.std(quality.of(name, stream, "accuracy"))
            accuracy = f"{quality.mean(name, stream, 'accuracy'):.4f}"
            accuracy += f" ± {spread:.4f}" if len(quality.of(name, stream, "accuracy")) > 1 else ""
            loss = quality.mean(name, stream, "log_loss")
            cells.append(accuracy + ("" if np.isnan(loss) else f" / {loss:.4f}"))
        shown = [f"{ranks[k][name]:.1f}" if name in ranks[k] else "" for k in WORST]
        rows.append([f"**{name}**" if name == OURS else name, *cells, *shown])
    other = []
    for name in quality.methods:
        means = {
            key: np.mean([quality.mean(name, s, key) for s in quality.streams])
            for key in ("brier", "ece", "kappa_no_change", "us", "kb")
        }
        shown = [f"{means[k]:.3f}" for k in ("brier", "ece", "kappa_no_change")]
        shown = ["" if each == "nan" else each for each in shown]
        other.append([name, *shown, f"{means['us']:.0f}", f"{means['kb']:,.0f}"])
    names = ["method", *quality.streams, "rank, accuracy", "rank, log-loss"]
    most = {s: max(c["rows"] for c in quality.cells if c["stream"] == s) for s in quality.streams}
    parts = [
        "## Accuracy and log-loss",
        table(names, rows),
        "Accuracy / log-loss; mean ± standard deviation over seeds where a method is random. Rows: "
        + ", ".join(f"{s} {n:,}" for s, n in most.items())
        + ". One default setting each. A label never seen before has probability 1/(n+1) for all.",
        "![mean ranks](benchmarks/ranks.png)",
        "![accuracy against time](benchmarks/time.png)",
        "### Against the best ensemble of trees",
        table(["stream", "best", "kalstream", "it", "kalstream is faster"], quality.faster()),
        "### Other metrics, averaged over streams",
        table(["method", "Brier", "ECE", "kappa against no-change", "us a row", "KB"], other),
    ]
    if quality.whole:
        lines = [
            [c["method"], f"{c['rows']:,}", f"{c['accuracy']:.4f}", f"{c['log_loss']:.4f}",
             f"{c['baselines']['no_change']['accuracy']:.4f}", f"{c['us']:.0f}"]
            for c in quality.whole
        ]  # fmt: skip
        names = ["all of covtype", "rows", "accuracy", "log-loss", "no-change", "us a row"]
        parts += ["### All of covtype", table(names, lines)]
    return parts


def draw_ranks(quality: Quality, path: Path) -> None:
    """Mean ranks with the critical difference of Nemenyi's test."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    for axis, key in zip(axes, WORST, strict=True):
        ranks = quality.ranks(key)
        names = sorted(ranks, key=ranks.__getitem__, reverse=True)
        k, n = len(names), len(quality.streams)
        critical = (
            studentized_range.ppf(0.95, k, np.inf) / np.sqrt(2) * np.sqrt(k * (k + 1) / 6 / n)
        )
        colours = ["tab:blue" if METHODS[m].family == "kalstream" else "0.6" for m in names]
        axis.barh(names, [ranks[m] for m in names], color=colours)
        axis.axvline(min(ranks.values()) + critical, color="tab:red", ls=":", lw=1)
        axis.set_xlabel(f"mean rank, {key.replace('_', '-')} (dotted: critical difference, 5 %)")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def draw_time(quality: Quality, path: Path) -> None:
    """Accuracy against time, for each stream."""
    n = len(quality.streams)
    figure, axes = plt.subplots(1, n, figsize=(4 * n, 4), layout="constrained", squeeze=False)
    marks = dict(zip(METHODS, "osDvP^<>Xhdp*8+x", strict=False))
    for axis, stream in zip(axes[0], quality.streams, strict=True):
        for name in quality.methods:
            colour = "tab:blue" if METHODS[name].family == "kalstream" else "0.45"
            at = quality.mean(name, stream, "us"), quality.mean(name, stream, "accuracy")
            axis.plot(*at, marks[name], color=colour, label=name)
        axis.set(xscale="log", xlabel="microseconds a row", title=stream)
    axes[0][0].set_ylabel("accuracy")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=7)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def detect_section(cells: list[dict[str, Any]]) -> list[str]:
    """Who notices changes, and the regret."""
    lines = []
    for kind in dict.fromkeys(cell["kind"] for cell in cells):
        mine = [cell for cell in cells if cell["kind"] == kind]
        for name in mine[0]["detectors"]:
            found = [cell["detectors"][name] for cell in mine]
            delays = [delay for each in found for delay in each["delays"]]
            n_changes = sum(cell["changes"] for cell in mine)
            noticed = f"{len(delays)} of {n_changes}" if n_changes else ""
            median = f"{np.median(delays):.0f}" if delays else ""
            rate = 1e4 * sum(each["false"] for each in found) / sum(cell["rows"] for cell in mine)
            lines.append([kind, name, noticed, median, f"{rate:.1f}"])
    regrets = []
    for kind in dict.fromkeys(cell["kind"] for cell in cells):
        mine = [cell["regret"] for cell in cells if cell["kind"] == kind]
        regrets.append([kind, *(f"{np.mean([m[k] for m in mine]):+.4f}" for k in mine[0])])
    return [
        "## Changes that are known",
        table(["change", "detector", "noticed", "median delay", "false in 10,000"], lines),
        "Three classes by a noisy linear rule, 5, 20 and 50 columns, three seeds each; alarms "
        "within 1,500 rows of a change. river's detectors see the errors of the same predictions.",
        "### Regret against the best fixed gamma",
        table(["change", *cells[0]["regret"]], regrets),
        "Log-loss less that of the best of five fixed gammas, chosen in hindsight for each stream; "
        "below 0 is better. mixture: without the stack.",
    ]


def main() -> None:
    """Write the page from whatever result files there are."""
    folder = DOCS / "benchmarks"
    folder.mkdir(exist_ok=True)
    found = json.loads((RESULTS / "quality.json").read_text())
    quality = Quality(found["cells"])
    draw_ranks(quality, folder / "ranks.png")
    draw_time(quality, folder / "time.png")
    losses = [f"- {each}" for each in quality.losses()] or ["- nowhere on these streams"]
    versions = ", ".join(f"{name} {value}" for name, value in found["versions"].items())
    body = [
        "# kalstream against its peers",
        "Made by `make bench` from the result files in `benchmarks/peers/results`; one example at "
        "a time, each predicted before it is learnt, every method with its documented defaults. "
        f"{versions}, Python {found['python']}, {found['machine']}.",
        "## Where a peer wins",
        "\n".join(losses),
        *quality_section(quality),
    ]
    sections: dict[str, Callable[[Any], list[str]]] = {"detect": detect_section}
    for name, section in sections.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            body += section(json.loads(path.read_text())["cells"])
    (DOCS / "benchmarks.md").write_text("\n\n".join(body) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
