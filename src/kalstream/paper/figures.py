"""Figures of result files. They need matplotlib, which the extra ``figures`` installs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream._files import replacing
from kalstream._optional import require
from kalstream.paper.plan import Method, Plan
from kalstream.paper.results import ResultsFile

Array = NDArray[np.float64]

_N_COLOURS: Final = 7  # of curves in one style


def draw(plan: Plan, results: ResultsFile, path: Path) -> None:
    """Draw the figure that the plan describes into a file."""
    kind = plan.figure["kind"]
    streams = [
        stream for stream in plan.streams if any(results.runs_of(m, stream) for m in plan.methods)
    ]
    if kind == "gamma":
        figure, axes = new_figure(2, 1)
        _gamma(plan, results, axes)
    else:
        groups: list[str | None] = (
            [*plan.groups] if plan.figure.get("panels") == "groups" else [None]
        )
        panels = [(stream, group) for stream in streams for group in groups]
        figure, axes = new_figure(1, max(len(panels), 1), _legend_height(plan))
        for (stream, group), axis in zip(panels, axes, strict=True):
            of = plan if group is None else _only(plan, group)
            axis.set_title(stream if group is None else plan.groups[group]["title"], fontsize=9)
            {"curves": _curves, "options": _against_option}[kind](of, results, stream, axis)
    save(figure, path)


def figure_class() -> Any:
    """Matplotlib's Figure, or an error that names the extra to install."""
    return require("matplotlib.figure", "figures").Figure


def new_figure(n_rows: int, n_columns: int, more: float = 0.0) -> tuple[Any, list[Any]]:
    """An empty figure, ``more`` inches higher for what stands below, and its panels row by row."""
    size = 1.5 + 4.5 * n_columns, 1.0 + 3.0 * n_rows + more
    figure = figure_class()(size, layout="constrained")
    return figure, figure.subplots(n_rows, n_columns, squeeze=False).ravel().tolist()


def save(figure: Any, path: Path) -> None:
    """Write a figure to a file of the format that its suffix names."""
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format=path.suffix[1:], bbox_inches="tight")


def _only(plan: Plan, group: str) -> Plan:
    """The plan with the methods of one group, whose legend then omits its name."""
    methods = tuple(method for method in plan.methods if method.group == group)
    return replace(plan, methods=methods, groups={})


def _running_mean(runs: list[dict[str, Any]], name: str) -> tuple[Array, Array]:
    """Rows at the ends of windows, and the running mean of a quantity, averaged over seeds."""
    runs = [run for run in runs if run["pass"]["failed"] is None]
    sums = np.mean([np.cumsum(run["pass"][name]) for run in runs], axis=0)
    rows = _window_ends(runs[0]["pass"])
    return rows, sums / rows


def _window_ends(counts: dict[str, Any]) -> Array:
    """Rows at the ends of windows; the last window may be shorter."""
    return np.minimum(np.arange(1.0, len(counts["right"]) + 1.0) * counts["window"], counts["rows"])


def _label(plan: Plan, method: Method) -> str:
    title = plan.groups.get(method.group, {}).get("title", "")
    return f"{title}: {method.name}" if title else method.name


def _legend_below(plan: Plan) -> bool:
    """Whether a figure has so many curves that a legend among them would hide some."""
    return plan.figure["kind"] == "curves" and len(plan.methods) > _N_COLOURS


def _legend_height(plan: Plan) -> float:
    """Inches for the longest legend below the panels of a figure, 0 if it is inside them."""
    sizes = [sum(method.group == group for method in plan.methods) for group in plan.groups]
    n_lines = max(sizes) if plan.figure.get("panels") == "groups" else len(plan.methods)
    return 0.2 + 0.165 * n_lines if _legend_below(plan) else 0.0


def _curves(plan: Plan, results: ResultsFile, stream: str, axis: Any) -> None:
    """Average online accuracy, or mean log-probability, against rows."""
    name = plan.figure.get("of", "right")
    for number, method in enumerate(plan.methods):
        runs = results.runs_of(method, stream)
        if any(run["pass"]["failed"] is None for run in runs):
            rows, values = _running_mean(runs, name)
            values = 100.0 * values if name == "right" else values
            style = ("-", "--", ":")[number // _N_COLOURS % 3]
            label = _label(plan, method)
            axis.plot(rows, values, style, color=f"C{number % _N_COLOURS}", label=label)
    axis.set_xlabel("rows")
    axis.set_ylabel("average online accuracy (%)" if name == "right" else "mean log-probability")
    if _legend_below(plan):
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    else:
        axis.legend(fontsize=7)


def _gamma(plan: Plan, results: ResultsFile, axes: list[Any]) -> None:
    """Gamma above, accuracy below, with the boundaries of tasks."""
    above, below = axes
    n_rows = 0
    for number, (method, stream) in enumerate(plan.cells()):
        runs, colour = results.runs_of(method, stream), f"C{number}"
        for run in runs:
            rows = _window_ends(run["pass"])
            label = f"{method.name}, lowest" if run is runs[0] else None
            style = {"color": colour, "linewidth": 1, "alpha": 0.6}
            above.plot(rows, run["pass"]["lowest"], label=label, **style)
            window = 100.0 * np.array(run["pass"]["right"]) / np.diff(rows, prepend=0.0)
            below.plot(rows, window, **{**style, "alpha": 0.3})
        if runs:
            rows, values = _running_mean(runs, "right")
            below.plot(rows, 100.0 * values, color=colour, label=f"{method.name}, average")
            n_rows = runs[0]["pass"]["rows"]
    for axis in axes:
        for task in range(1, 10):
            axis.axvline(task * n_rows / 10, color="red", linestyle="--", linewidth=0.6)
    above.set_ylabel("gamma")
    below.set_ylabel("accuracy (%)")
    below.set_xlabel("rows")
    above.legend(fontsize=7)
    below.legend(fontsize=7)


def _against_option(plan: Plan, results: ResultsFile, stream: str, axis: Any) -> None:
    """Final accuracy against an option, one curve for each group."""
    option, curves = plan.figure["option"], dict[str, list[tuple[float, float]]]()
    for method in plan.methods:
        for run in results.runs_of(method, stream):
            x = run["chunk"] if option == "chunk" else run["options"].get(option, np.nan)
            curves.setdefault(method.group, []).append((x, run["accuracy"]))
    for group, points in curves.items():
        xs = sorted({x for x, _ in points})
        means = [np.mean([y for x2, y in points if x2 == x]) for x in xs]
        axis.plot(xs, means, marker="o", label=plan.groups.get(group, {}).get("title", group))
    axis.set_xscale("log")
    ticks = sorted({x for points in curves.values() for x, _ in points})
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel(option)
    axis.set_ylabel("average online accuracy (%)")
    axis.legend(fontsize=7)
