"""Tables of result files, in Markdown."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np

from kalstream import _markdown
from kalstream.paper.plan import Method, Plan
from kalstream.paper.results import ResultsFile


def table(plan: Plan, results: ResultsFile) -> str:
    """Accuracy, the paper's number and log-probability, methods by streams, with a note."""
    quick = results.content.get("quick", False)
    has_paper = any(method.paper for method in plan.methods) and not quick
    head = ["method"]
    for stream in plan.streams:
        head += [f"{stream}, accuracy (%)", *(["paper"] if has_paper else []), "log-probability"]
    rows, group = list[list[str]](), None
    for method in plan.methods:
        if method.group and method.group != group:
            group = method.group
            title = plan.groups.get(group, {}).get("title", group)
            rows.append([f"**{title}**", *([""] * (len(head) - 1))])
        row = [method.name]
        for stream in plan.streams:
            row += _cell(method, stream, results.runs_of(method, stream), has_paper)
        rows.append(row)
    page = f"{_markdown.table(head, rows)}\n\n{_note(plan, results)}\n"
    return f"{page}\n{_chosen(plan, results)}\n" if plan.search and results.searches else page


def _chosen(plan: Plan, results: ResultsFile) -> str:
    """Hyper-parameters of each cell."""
    rows = []
    for method in plan.methods:
        chosen = [results.chosen_for(method.key, stream) or {} for stream in plan.streams]
        cells = [", ".join(f"{name} {value:g}" for name, value in each.items()) for each in chosen]
        if any(cells):
            rows.append([method.key, *cells])
    return _markdown.table(["hyper-parameters", *plan.streams], rows)


def _cell(method: Method, stream: str, runs: list[dict[str, Any]], has_paper: bool) -> list[str]:
    reported = method.paper.get(stream)
    paper = [] if not has_paper else ["" if reported is None else f"{reported:g}"]
    if not runs:
        return ["", *paper, ""]
    if any(run["log_prob"] is None for run in runs):
        return ["failed", *paper, "failed"]
    ours, log_prob = _spread(runs, "accuracy", 1), _spread(runs, "log_prob", 3)
    mean = np.mean([run["accuracy"] for run in runs])
    reached = has_paper and reported is not None and float(mean) >= reported - 0.05
    return [f"**{ours}**" if reached else ours, *paper, log_prob]


def _spread(runs: list[dict[str, Any]], name: str, digits: int) -> str:
    values = [run[name] for run in runs]
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def _note(plan: Plan, results: ResultsFile) -> str:
    """The conditions of the numbers: data, seeds, search, time and machine."""
    machine, runs = results.content.get("machine", {}), results.runs
    seeds = sorted({run["seed"] for run in runs})
    rows = max((run["pass"]["rows"] for run in runs), default=0)
    parts = [
        f"{rows:,} rows of {results.content.get('data_name', '')}",
        f"seeds {', '.join(map(str, seeds))} (mean ± standard deviation)"
        if len(seeds) > 1
        else f"seed {seeds[0] if seeds else '-'}",
    ]
    if results.searches:
        stages = [stage for search in results.searches for stage in search["stages"]]
        most_rows = max(each["rows"] for stage in stages for each in stage["candidates"])
        parts.append(
            f"hyper-parameters chosen by log-probability on up to {most_rows:,} rows of seed "
            f"{results.searches[0]['seed']}"
        )
    quick = results.content.get("quick")
    if quick:
        parts.append("quick version, not comparable with the paper")
    elif any(method.paper for method in plan.methods):
        parts.append("bold: the paper's number is reached, after rounding to 0.1 %")
    missing = sum(not results.runs_of(*cell) for cell in plan.cells())
    if missing:
        parts.append(f"not run yet: {missing} cells")
    outdated = results.outdated(Plan.read(plan.of) if plan.of else plan)
    if outdated and not quick:
        parts.append(
            f"run with other options than the experiment file has now: {len(outdated)} cells"
        )
    minutes = f"{results.content.get('seconds', 0.0) / 60:.0f}"
    parts.append(f"{minutes} minute{'s' * (minutes != '1')} on {machine.get('device', '?')}")
    return fill("; ".join(parts) + ".", 100, break_on_hyphens=False)
