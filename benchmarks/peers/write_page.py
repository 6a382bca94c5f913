"""Writes docs/benchmarks.md and its figures from the result files of this folder.

python benchmarks/peers/write_page.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import figures
import numpy as np
from methods import METHODS
from scipy.stats import rankdata

sys.path.insert(0, str(Path(__file__).parents[1]))
from page import table, wrapped

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[2] / "docs"
OURS = "kalstream"
NAIVE = {"no-change": "no_change", "majority": "majority"}
# What varies in each measurement of speed, and the sizes that are fixed.
AXES = {
    "columns": {"classes": 2, "chunk": 1},
    "classes": {"columns": 64, "chunk": 1},
    "chunk": {"columns": 256, "classes": 10},
}
KEYS = {"accuracy": -1.0, "log_loss": 1.0}  # +1 if a larger value is worse


class Quality:
    """The results of quality.py; every number is a mean over seeds.

    Attributes
    ----------
    streams, methods : list of str
        The methods are kalstream's default, its peers, and the two naive predictors.
    variants : list of str
        Other settings of kalstream, which have no rank.
    """

    def __init__(self, cells: list[dict[str, Any]]) -> None:
        self.whole = [cell for cell in cells if cell["whole"]]
        self.cells = [cell for cell in cells if not cell["whole"]]
        for cell in [c for c in self.cells if c["method"] == OURS and c["seed"] == 0]:
            for name, key in NAIVE.items():
                self.cells.append(
                    cell["baselines"][key] | {"stream": cell["stream"], "method": name}
                )
        self.streams = sorted({cell["stream"] for cell in self.cells})
        measured = {cell["method"] for cell in self.cells}
        ours = [name for name, each in METHODS.items() if each.family == OURS and name in measured]
        self.variants = [name for name in ours if name != OURS]
        peers = [name for name in (*METHODS, *NAIVE) if name in measured and name not in ours]
        self.methods = [OURS, *peers]

    def of(self, method: str, stream: str, key: str) -> list[float]:
        """Values of a metric for all seeds."""
        mine = (c for c in self.cells if (c["method"], c["stream"]) == (method, stream))
        return [c[key] for c in mine if c.get(key) is not None]

    def mean(self, method: str, stream: str, key: str) -> float:
        """Mean over seeds; NaN if there is no value."""
        values = self.of(method, stream, key)
        return float(np.mean(values)) if values else np.nan

    def ranks(self, key: str) -> dict[str, float]:
        """Mean rank over streams, 1 is best, of the methods that have the metric on all streams."""
        names = [m for m in self.methods if all(self.of(m, s, key) for s in self.streams)]
        each = [rankdata([KEYS[key] * self.mean(m, s, key) for m in names]) for s in self.streams]
        return dict(zip(names, np.mean(each, axis=0).tolist(), strict=True))

    def average(self, method: str, key: str) -> float:
        """Mean over streams."""
        return float(np.mean([self.mean(method, stream, key) for stream in self.streams]))

    def calibrations(self, method: str) -> list[dict[str, Any]]:
        """The results of `calibrated` for every run."""
        mine = (cell for cell in self.cells if cell["method"] == method)
        return [cell["calibration"] for cell in mine if cell.get("calibration")]

    def bins(self) -> dict[str, dict[str, Any]]:
        """Rows, sum of probabilities and rows that were right, in 15 bins (3, 15), all runs."""
        calibrations = {name: self.calibrations(name) for name in (*self.methods, *self.variants)}
        return {
            name: {
                when: np.sum([list(each[when]["bins"].values()) for each in mine], axis=0)
                for when in ("before", "after")
            }
            for name, mine in calibrations.items()
            if mine
        }

    def line(self, method: str) -> list[str]:
        """Accuracy and log-loss on each stream."""
        cells = []
        for stream in self.streams:
            accuracy, loss = (self.mean(method, stream, key) for key in KEYS)
            shown = f"{accuracy:.4f}" + ("" if np.isnan(loss) else f" / {loss:.4f}")
            cells.append(shown)
        return cells


def wins_section(quality: Quality, *more: list[str]) -> list[str]:
    """List where a peer is better than kalstream's default; ``more`` has lines to append."""
    lines = []
    for key, word in {"accuracy": "Accuracy", "log_loss": "Log-loss", "ece": "ECE"}.items():
        won = 0
        for stream in quality.streams:
            own = quality.mean(OURS, stream, key)
            others = {m: quality.mean(m, stream, key) for m in quality.methods[1:]}
            better = {m: v for m, v in others.items() if KEYS.get(key, 1.0) * (own - v) > 0.0}
            won += not better
            if better:
                named = "; ".join(f"{name}: {value:.4f}" for name, value in better.items())
                lines.append(f"**{word} on {stream}.** {named}. kalstream: {own:.4f}")
        if won == len(quality.streams):
            lines.append(f"**{word}.** No peer wins on any of the {won} streams")
    for key, word in {"us": "Microseconds per row", "kb": "KB of memory"}.items():
        own = quality.average(OURS, key)
        better = {m: quality.average(m, key) for m in quality.methods[1:]}
        named = [f"{name}: {value:,.0f}" for name, value in better.items() if value < own]
        lines.append(
            f"**{word}, mean over streams.** {'; '.join(named) or '-'}. kalstream: {own:,.0f}"
        )
    lines += [line for each in more for line in each]
    return ["## Where a peer wins", "\n".join(f"- {each}" for each in lines)]


def quality_section(quality: Quality) -> list[str]:
    """Tables of accuracy and log-loss, of the other metrics, and of time."""
    ranks = {key: quality.ranks(key) for key in KEYS}
    rows = []
    for name in sorted(quality.methods, key=lambda m: ranks["accuracy"].get(m, np.inf)):
        shown = [f"{ranks[k][name]:.1f}" if name in ranks[k] else "" for k in KEYS]
        rows.append([f"**{name}**" if name == OURS else name, *quality.line(name), *shown])
    names = ["method", *quality.streams, "rank, accuracy", "rank, log-loss"]
    most = {
        s: max(c.get("rows", 0) for c in quality.cells if c["stream"] == s) for s in quality.streams
    }
    return [
        "## Accuracy and log-loss",
        table(names, rows),
        "The table shows accuracy / log-loss in nats. For random methods the numbers are means "
        "over seeds; ARF of 50 trees and SRP have one seed. Rows: "
        + ", ".join(f"{s} {n:,}" for s, n in most.items())
        + " (of elec2 and covtype only the first rows). A label never seen before has probability "
        "1/(n+1) after n targets, for all methods. kalstream also uses recent labels, because here "
        "each label is known before the next row comes. The table of variants shows the results "
        "without them.",
        "![mean ranks](benchmarks/ranks.png)",
        "![accuracy against time](benchmarks/time.png)",
        "### Time compared with the best ensemble of trees",
        table(["stream", "best ensemble", "kalstream", "that ensemble", "ratio"], _faster(quality)),
        *_seeds(quality),
        "### Variants of kalstream",
        table(
            ["method", *quality.streams],
            [[name, *quality.line(name)] for name in (OURS, *quality.variants)],
        ),
        "### Other metrics, averaged over streams",
        table(
            ["method", "Brier", "ECE", "kappa against no-change", "us a row", "KB"],
            _others(quality),
        ),
        "Time is processor time to predict and learn a row, one row per call, after compilation. "
        "Memory is the size of the pickled learner.",
        *_whole(quality),
    ]


def _faster(quality: Quality) -> list[list[str]]:
    """The most accurate ensemble of trees on each stream, and how much longer it takes."""
    lines = []
    trees = [m for m in quality.methods if m in METHODS and METHODS[m].is_ensemble]
    for stream in quality.streams:
        best = max(trees, key=lambda m: quality.mean(m, stream, "accuracy"))
        own, theirs = (quality.mean(m, stream, "us") for m in (OURS, best))
        lines.append([stream, best, f"{own:.0f} us", f"{theirs:.0f} us", f"{theirs / own:.1f}x"])
    return lines


def _seeds(quality: Quality) -> list[str]:
    """Spread of the accuracy over seeds."""
    spread = []
    for name in quality.methods:
        each = [np.std(quality.of(name, s, "accuracy")) for s in quality.streams]
        if len(quality.of(name, quality.streams[0], "accuracy")) > 1:
            spread.append(f"{name} {max(each):.4f}")
    return [
        f"Largest standard deviation of accuracy over three seeds: {', '.join(spread)}."
    ] * bool(spread)


def _others(quality: Quality) -> list[list[str]]:
    lines = []
    for name in (*quality.methods, *quality.variants):
        means = {
            k: quality.average(name, k) for k in ("brier", "ece", "kappa_no_change", "us", "kb")
        }
        shown = [f"{means[k]:.3f}" for k in ("brier", "ece", "kappa_no_change")]
        shown += [f"{means['us']:.0f}", f"{means['kb']:,.0f}"]
        lines.append([name, *("" if each == "nan" else each for each in shown)])
    return [line for line in lines if line[0] not in NAIVE]


def _whole(quality: Quality) -> list[str]:
    """All rows of the longest stream."""
    if not quality.whole:
        return []
    lines = [
        [c["method"], f"{c['accuracy']:.4f}", f"{c['log_loss']:.4f}", f"{c['us']:.0f}"]
        for c in quality.whole
    ]
    first = quality.whole[0]
    no_change = first["baselines"]["no_change"]
    lines.append(["no-change", f"{no_change['accuracy']:.4f}", f"{no_change['log_loss']:.4f}", ""])
    title = f"{first['stream']}, all {first['rows']:,} rows"
    return [
        f"### {title}",
        table(["method", "accuracy", "log-loss", "us a row"], lines),
        "Here each call of `predict_then_learn` gets a hundred rows. They are still predicted and "
        "learned one by one, with recent labels.",
    ]


def calibration_section(quality: Quality) -> list[str]:
    """Log-loss and ECE as they are and after online calibration."""
    lines = []
    for name in (*quality.methods, *quality.variants):
        mine = quality.calibrations(name)
        if not mine:
            continue
        shown = [
            f"{np.mean([each[when][key] for each in mine]):.4f}"
            for key in ("log_loss", "ece")
            for when in ("before", "after")
        ]
        lines.append([name, *shown])
    names = ["method", "log-loss", "log-loss, calibrated", "ECE", "ECE, calibrated"]
    return [
        "## Calibration",
        table(names, lines),
        "The numbers are means over streams, seed 0. For the calibrated columns, the probabilities "
        "of a method are raised to a power that is learned online. The default of kalstream has no "
        "such power: logits of its six softmax filters have the right size by themselves, and "
        "those of its one-hot filter are multiplied by 15. "
        '"kalstream, not calibrated" is its plain mixture without this factor. The log-loss of '
        "probabilities that were already calibrated gets worse. Before the power is taken, "
        "probabilities below 1e-6 become 1e-6. This alone helps methods that give a class "
        "the probability 0 before it comes.",
        "![reliability](benchmarks/reliability.png)",
    ]


def detected(cells: list[dict[str, Any]], kind: str, name: str) -> tuple[int, float]:
    """Number of changes of a kind that a detector detected, and the median delay in rows."""
    mine = [cell["detectors"][name]["delays"] for cell in cells if cell["kind"] == kind]
    delays = [delay for each in mine for delay in each]
    return len(delays), float(np.median(delays)) if delays else np.inf


def detect_wins(results: dict[str, Any]) -> list[str]:
    """List where a detector detects more changes than kalstream's alarm, or detects them sooner."""
    cells, lines = results["cells"], []
    for kind in dict.fromkeys(cell["kind"] for cell in cells if cell["changes"]):
        own = detected(cells, kind, OURS)
        for name in cells[0]["detectors"]:
            count, delay = detected(cells, kind, name)
            if count > own[0] or delay < own[1]:
                lines.append(
                    f"**{kind.capitalize()} changes.** {name} detects {count}, with a median delay "
                    f"of {delay:.0f} rows. kalstream detects {own[0]}, with {own[1]:.0f} rows"
                )
    return lines


def detect_section(results: dict[str, Any]) -> list[str]:
    """Changes detected by each detector, and the regret."""
    cells, lines, regrets = results["cells"], [], []
    for kind in dict.fromkeys(cell["kind"] for cell in cells):
        mine = [cell for cell in cells if cell["kind"] == kind]
        for name in mine[0]["detectors"]:
            judged = [cell["detectors"][name] for cell in mine]
            count, delay = detected(cells, kind, name)
            n_changes = sum(cell["changes"] for cell in mine)
            shown = f"{count} of {n_changes}" if n_changes else ""
            median = f"{delay:.0f}" if count else ""
            rate = 1e4 * sum(each["false"] for each in judged) / sum(cell["rows"] for cell in mine)
            lines.append([kind, name, shown, median, f"{rate:.1f}"])
        each = [cell["regret"] for cell in mine]
        regrets.append([kind, *(f"{np.mean([one[k] for one in each]):+.4f}" for k in each[0])])
    return [
        "## Detecting known changes",
        table(
            ["change", "detector", "detected", "median delay", "false alarms in 10,000 rows"], lines
        ),
        "A noisy linear rule makes three classes. There are streams with 5, 20 and 50 columns, and "
        "three seeds of each. A gradual change takes 2,000 rows. A change counts as detected if an "
        "alarm begins within 1,500 rows after the change starts. The delay is the median over the "
        "detected changes. An alarm is false if it begins neither during a change nor within 1,500 "
        "rows after it. ADWIN also raises an alarm when errors decrease. "
        "river's detectors see the errors of the same predictions, which are those of "
        "`KalmanClassifier` on scaled columns.",
        "### Regret against the best fixed gamma",
        table(["change", *cells[0]["regret"]], regrets),
        "Log-loss minus that of the best of five fixed gammas, chosen in hindsight for each "
        'stream. Below 0 is better than all five. "mixture" is kalstream without the stack.',
    ]


def growth(cells: list[dict[str, Any]]) -> dict[str, dict[str, tuple[Any, Any, float]]]:
    """Sizes, microseconds and fitted exponent, for each axis and method."""
    curves: dict[str, dict[str, tuple[Any, Any, float]]] = {}
    for along, others in AXES.items():
        there = [cell for cell in cells if others.items() <= cell.items()]
        for name in dict.fromkeys(cell["method"] for cell in there):
            points = [(c[along], c["us"]) for c in there if c["method"] == name]
            if len(points) > 1:
                x, us = np.array(sorted(points)).T
                # The upper half, where fixed costs are small.
                last = max(2, (len(x) + 1) // 2)
                slope = np.polyfit(np.log(x[-last:]), np.log(us[-last:]), 1)[0]
                title = f"{along} ({', '.join(f'{k} {v}' for k, v in others.items())})"
                curves.setdefault(title, {})[name] = x, us, float(slope)
    return curves


def speed_wins(results: dict[str, Any]) -> list[str]:
    """List peers that are faster at the ends of an axis, smaller, or faster to start."""
    lines = []
    for title, mine in growth(results["cells"]).items():
        x, us, _ = mine[OURS]
        for end in (0, -1):
            there = {n: their[1][end] for n, their in mine.items() if their[0][end] == x[end]}
            faster = [f"{n}: {t:,.0f}" for n, t in there.items() if t < us[end] and OURS not in n]
            if faster:
                named = "; ".join(faster)
                where = f"{title} at {x[end]:,.0f}"
                lines.append(
                    f"**Microseconds per row, {where}.** {named}. kalstream: {us[end]:,.0f}"
                )
    wide = [
        c for c in results["cells"] if c["columns"] == max(c["columns"] for c in results["cells"])
    ]
    sizes = {c["method"]: c["kb"] / 1024 for c in wide}
    smaller = {n: mb for n, mb in sizes.items() if mb < sizes[OURS] and OURS not in n}
    named = "; ".join(f"{name}: {mb:,.1f}" for name, mb in smaller.items())
    where = f"{wide[0]['columns']:,} columns"
    lines.append(f"**MB per model with {where}.** {named}. kalstream: {sizes[OURS]:,.1f}")
    (_, own), *others = results["begin"].values()
    if any(ready < own for _, ready in others):
        named = "; ".join(f"{n}: {ready:.1f}" for n, (_, ready) in results["begin"].items())
        lines.append(f"**Seconds to import and learn ten rows.** {named}")
    return lines


def speed_section(results: dict[str, Any]) -> list[str]:
    """Growth of time with size, and the time to start."""
    curves = growth(results["cells"])
    names = list(dict.fromkeys(name for mine in curves.values() for name in mine))
    grown = [
        [name, *(f"{mine[name][2]:.2f}" if name in mine else "" for mine in curves.values())]
        for name in names
    ]
    at = [c for c in results["cells"] if (c["columns"], c["classes"], c["chunk"]) == (64, 100, 1)]
    sizes = [[c["method"], f"{c['us']:.0f} us", f"{c['kb']:,.0f} KB"] for c in at]
    begun = [
        [name, f"{imported:.2f} s", f"{ready:.2f} s"]
        for name, (imported, ready) in results["begin"].items()
    ]
    return [
        "## Speed",
        "![time of a row](benchmarks/speed.png)",
        "Each row is predicted and learned. kalstream uses raw columns here, so the number of "
        "features equals the number of columns. Times are processor times. Points are missing "
        "where a method took more than 40 s on a machine that had other work too. kalstream with "
        "4,096 columns was given more.",
        table(["exponent of the growth of time with", *curves], grown),
        "Fitted to the upper half of each method's own points: 1 is linear, 2 quadratic.",
        table(["64 columns, 100 classes", "a row", "model"], sizes),
        table(["start-up", "import", "import and the first ten rows"], begun),
        "On first use kalstream compiles for about 30 s; the result is cached on disk.",
    ]


def text_of(results: dict[str, Any], quality: Quality) -> str:
    """Make the page."""
    about = results["quality"]
    versions = ", ".join(f"{name} {value}" for name, value in about["versions"].items())
    body = [
        "# kalstream against its peers",
        "`make bench-peers` makes this page from the result files in "
        "[`benchmarks/peers/results`](../benchmarks/peers/results). Each row is predicted before "
        "it is learned, one row at a time. "
        f"{versions}; {about['machine']}.",
        Path(__file__).with_name("words.md").read_text(encoding="utf-8").strip(),
        *wins_section(
            quality,
            detect_wins(results["detect"]) if "detect" in results else [],
            speed_wins(results["speed"]) if "speed" in results else [],
        ),
        *quality_section(quality),
        *calibration_section(quality),
    ]
    for name, section in {"detect": detect_section, "speed": speed_section}.items():
        body += section(results[name]) if name in results else []
    tried = Path(__file__).with_name("tried.md").read_text(encoding="utf-8").strip()
    return wrapped("\n\n".join([*body, tried])) + "\n"


def read_results() -> dict[str, Any]:
    """Contents of the result files that exist."""
    paths = {name: RESULTS / f"{name}.json" for name in ("quality", "detect", "speed")}
    return {n: json.loads(path.read_text()) for n, path in paths.items() if path.exists()}


def main() -> None:
    """Write the page and draw its figures."""
    folder = DOCS / "benchmarks"
    folder.mkdir(exist_ok=True)
    results = read_results()
    quality = Quality(results["quality"]["cells"])
    ranks = {key: quality.ranks(key) for key in KEYS}
    figures.ranks(ranks, len(quality.streams), folder / "ranks.png")
    figures.times(quality, folder / "time.png")
    figures.reliability(quality.bins(), folder / "reliability.png")
    if "speed" in results:
        figures.speed(growth(results["speed"]["cells"]), folder / "speed.png")
    (DOCS / "benchmarks.md").write_text(text_of(results, quality), encoding="utf-8")


if __name__ == "__main__":
    main()
