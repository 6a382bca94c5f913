"""Tables from result files, and whether the files hold together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kalstream.errors import InvalidInput
from kalstream.paper.plan import Method, Plan
from kalstream.paper.run import Results


def table(plan: Plan, results: Results) -> str:
    """Methods by streams, in Markdown: accuracy over seeds beside the paper's, log-probability."""
    quick = results.content.get("quick", False)
    has_paper = any(method.paper for method in plan.methods) and not quick
    head = ["method"]
    for stream in plan.streams:
        head += [f"{stream}, accuracy (%)", *(["paper"] if has_paper else []), "log-probability"]
    lines, group = [head, ["---"] * len(head)], None
    for method in plan.methods:
        if method.group and method.group != group:
            group = method.group
            title = plan.groups.get(group, {}).get("title", group)
            lines.append([f"**{title}**", *([""] * (len(head) - 1))])
        line = [method.name]
        for stream in plan.streams:
            line += _cell(method, stream, results.of(method, stream), has_paper)
        lines.append(line)
    made = f"{_lines(lines)}\n\n{_note(plan, results)}\n"
    return f"{made}\n{_chosen(plan, results)}\n" if plan.search and results.searches else made


def _lines(cells: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _chosen(plan: Plan, results: Results) -> str:
    """Hyper-parameters of each cell, in Markdown."""
    lines = [["hyper-parameters", *plan.streams], ["---"] * (1 + len(plan.streams))]
    for method in plan.methods:
        found = [results.chosen_for(method.key, stream) or {} for stream in plan.streams]
        said = [", ".join(f"{name} {value:g}" for name, value in each.items()) for each in found]
        if any(said):
            lines.append([method.key, *said])
    return _lines(lines)


def _cell(
    method: Method, stream: str, runs: list[dict[str, Any]], has_paper: bool
) -> Iterable[str]:
    said = method.paper.get(stream)
    paper = [] if not has_paper else ["" if said is None else f"{said:g}"]
    if not runs:
        return ["", *paper, ""]
    if any(run["log_prob"] is None for run in runs):
        return ["failed", *paper, "failed"]
    ours, log_prob = _spread(runs, "accuracy", 1), _spread(runs, "log_prob", 3)
    mean = np.mean([run["accuracy"] for run in runs])
    better = has_paper and said is not None and float(mean) >= said - 0.05
    return [f"**{ours}**" if better else ours, *paper, log_prob]


def _spread(runs: list[dict[str, Any]], name: str, digits: int) -> str:
    values = [run[name] for run in runs]
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def _note(plan: Plan, results: Results) -> str:
    """Where and how the numbers were had."""
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
        stages = [stage for found in results.searches for stage in found["stages"]]
        trial = max(each["rows"] for stage in stages for each in stage["candidates"])
        parts.append(
            f"hyper-parameters by log-probability on up to {trial:,} rows of seed "
            f"{results.searches[0]['seed']}"
        )
    if results.content.get("quick"):
        parts.append("a quick version, whose numbers say nothing about the method")
    elif any(method.paper for method in plan.methods):
        parts.append("bold where the paper's number is reached, to a tenth of a percent")
    missing = sum(not results.of(*cell) for cell in plan.cells())
    if missing:
        parts.append(f"not run yet: {missing} cells")
    minutes = f"{results.content.get('seconds', 0.0) / 60:.0f}"
    differ = results.differ(Plan.read(plan.of) if plan.of else plan)
    if differ and not results.content.get("quick"):
        parts.append(f"run with other options than the plan has now: {len(differ)} cells")
    parts.append(f"{minutes} minute{'s' * (minutes != '1')} on {machine.get('device', '?')}")
    return "; ".join(parts) + "."


def check(plan: Plan, results: Results) -> None:
    """Whether the numbers follow from what was counted; an error says which do not."""
    keys = [(run["method"], run["stream"], run["seed"]) for run in results.runs]
    if len(set(keys)) < len(keys):
        raise InvalidInput(f"{results.path} holds a run twice")
    for run in results.runs:
        made, what = run["pass"], f"{run['method']}, {run['stream']}, seed {run['seed']}"
        accuracy = 100.0 * sum(made["right"]) / max(made["rows"], 1)
        # of CLOC some photographs may be missing
        whole = made["rows"] == results.content["rows"] or plan.source == "cloc"
        if made["failed"] is None and not whole:
            raise InvalidInput(f"{what}: {made['rows']} rows of {results.content['rows']}")
        if abs(accuracy - run["accuracy"]) > 1e-3:
            raise InvalidInput(f"{what}: {run['accuracy']} is said, {accuracy:.3f} was counted")
        if run["log_prob"] is not None:
            mean = sum(made["log_prob"]) / made["rows"]
            if abs(mean - run["log_prob"]) > 1e-4:
                raise InvalidInput(f"{what}: {run['log_prob']} is said, {mean:.5f} was summed")
        if run["seed"] == plan.search.get("seed"):
            raise InvalidInput(f"{what}: that is the seed of the search")
    for found in results.searches:
        _check_search(plan, found)
    seeds = plan.seeds[:1] if results.content.get("quick") else plan.seeds
    for method, stream in plan.cells():
        runs = results.of(method, stream)
        if runs and sorted(run["seed"] for run in runs) != sorted(seeds):
            raise InvalidInput(f"{method.key}, {stream}: not the seeds {seeds}; run it again")
        chosen = results.chosen_for(method.key, stream) or {}
        for run in runs:
            if not chosen.items() <= run["options"].items():
                raise InvalidInput(f"{method.key}, {stream}: was not run with {chosen}")


def _check_search(plan: Plan, found: dict[str, Any]) -> None:
    what = f"{found['method']}, {found['stream']}"
    if sum(len(stage["candidates"]) for stage in found["stages"]) > 40:
        raise InvalidInput(f"{what}: more than 40 candidates")
    if found["chosen"] != found["stages"][-1]["chosen"]:
        raise InvalidInput(f"{what}: not the best was chosen")
    for stage in found["stages"]:
        chosen, tried = stage["chosen"], stage["candidates"]
        if not all(each[name] in plan.grid[name] for each in tried for name in chosen):
            raise InvalidInput(f"{what}: not points of the grid")
        sound = [each for each in tried if each["log_prob"] is not None]
        best = max(sound, key=lambda each: (each["rows"], each["log_prob"]))
        mine = [each for each in sound if chosen.items() <= each.items()]
        ends = [each["log_prob"] for each in mine if each["rows"] == best["rows"]]
        if not ends or max(ends) < best["log_prob"] - 1e-4:
            raise InvalidInput(f"{what}: not the best was chosen")
