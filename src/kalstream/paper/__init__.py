"""The paper's tables and figures: an experiment is a file, and all of them have one runner."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from kalstream._files import write_whole
from kalstream.errors import InvalidInput, MissingFile
from kalstream.paper.plan import Method, Plan, names

__all__ = ["Plan", "names", "reproduce", "shown"]


def reproduce(
    name: str,
    folder: Path,
    *,
    data: Path | None = None,
    weights: Path | None = None,
    quick: bool = False,
    device: str = "cpu",
    only: str = "",
    jobs: int = 1,
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Run an experiment, or what is missing of it, and write its files.

    Parameters
    ----------
    name : str
    folder : Path
        Where ``NAME.json``, ``NAME.md`` and ``NAME.png`` go, and those of experiments that it
        takes something from are.
    data : Path, optional
        CIFAR-100; a quick run makes pictures up without it.
    weights : Path, optional
        torchvision's MobileNetV2, for those that begin with it.
    quick : bool
        A small version, for a laptop.
    device : str
    only : str
        Run only cells with this in "group: name, stream".
    jobs : int
        Processes: groups of methods and streams are shared out among them.
    say : function
        Told what has been done.

    Returns
    -------
    files : list of Path
    """
    plan = Plan.read(name)
    plan = plan.quick() if quick else plan
    if plan.kind == "images":
        _check_device(device)
    folder.mkdir(parents=True, exist_ok=True)
    for needed in sorted(plan.needs()):
        if not (folder / f"{needed}.json").exists():
            if not quick and plan.kind != "series":
                raise MissingFile(
                    f"{name} needs {needed}.json in {folder}: kalstream paper {needed}"
                )
            reproduce(needed, folder, data=data, quick=quick, device=device, jobs=jobs, say=say)
    if plan.kind == "series" and not plan.of:
        from kalstream.paper import series

        found = series.run(plan)
        write_whole(folder / f"{name}.json", json.dumps(found) + "\n")
    elif plan.kind == "images":
        _run(plan, folder, data, weights, device, only, jobs, say)
    return _write(plan, folder, say)


def shown(name: str, folder: Path) -> str:
    """The table of an experiment, made again from its result file, which is checked first."""
    plan = Plan.read(name)
    path = folder / f"{plan.of or name}.json"
    if not path.exists():
        raise MissingFile(f"no result file {path}; kalstream paper {name} makes it")
    if plan.kind != "series":
        from kalstream.paper import pages
        from kalstream.paper.run import Results

        pages.check(Plan.read(plan.of or name), Results(path))
    made, _ = _opened(plan, folder)
    written = folder / f"{name}.md"
    if not written.exists() or written.read_text(encoding="utf-8") != _page(plan, made):
        raise InvalidInput(f"{written} is not what {path} says; run: kalstream paper {name}")
    return made


def _run(
    plan: Plan,
    folder: Path,
    data: Path | None,
    weights: Path | None,
    device: str,
    only: str,
    jobs: int,
    say: Callable[[str], None],
) -> None:
    """Run what is missing, by groups and streams in processes of their own if there are several."""
    from kalstream.deep.backbones import read_weights
    from kalstream.paper.jobs import merged, run_cells, run_parts
    from kalstream.paper.run import Results

    if data is None and not plan.is_quick:
        name = {"cifar100": "CIFAR-100", "cloc": "CLOC"}[plan.source]
        raise InvalidInput(f"{plan.name} needs {name}: --data FOLDER, or try --quick")
    if weights is not None and not plan.is_quick:
        read_weights(weights)  # now, not after an hour
    cells = [(m, stream) for m, stream in plan.cells() if only in f"{m.key}, {stream}"]
    if not cells:
        raise InvalidInput("no cell has that in its name; they are 'group: method, stream'")
    keys = {method.key for method, _ in cells}
    methods = (_with_weights(m, weights) if m.key in keys else m for m in plan.methods)
    plan = replace(plan, methods=tuple(methods))
    results = merged(plan.name, folder)
    before = [*results.searches], [*results.runs]
    parts: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for method, stream in cells:
        parts.setdefault((method.group, stream), []).append((method.key, stream))
    if jobs == 1:
        every = [cell for part in parts.values() for cell in part]
        run_cells(plan, every, results.path, folder, data, device, say)
        results = Results(results.path)
    else:
        run_parts(plan, parts, results, folder, data, device, jobs)
    order = {(method.key, stream): n for n, (method, stream) in enumerate(plan.cells())}
    for found in (results.searches, results.runs):
        found.sort(key=lambda each: order.get((each["method"], each["stream"]), -1))
    if (results.searches, results.runs) != before:
        results.save()


def _check_device(device: str) -> None:
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"--device {device} cannot be used here: {reason}") from error


def _with_weights(method: Method, weights: Path | None) -> Method:
    if method.options.get("weights") is None:
        return method
    if weights is None:
        raise InvalidInput(f"{method.key} begins with pretrained weights: --weights FILE.pth")
    return replace(method, options={**method.options, "weights": str(weights)})


def _opened(plan: Plan, folder: Path) -> tuple[str, Callable[[Path], None]]:
    """From the result file: the table, and what draws the figure into a file."""
    path = folder / f"{plan.of or plan.name}.json"
    if plan.kind == "series":
        from kalstream.paper import series

        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return series.table(found), partial(series.draw, plan, found)
        except (ValueError, KeyError) as error:
            raise InvalidInput(f"{path} is damaged ({error}); move it away") from error
    from kalstream.paper import figures, pages
    from kalstream.paper.run import Results

    results = Results(path)
    return pages.table(plan, results), partial(figures.draw, plan, results)


def _page(plan: Plan, made: str) -> str:
    return f"# {plan.title}\n\n{made}"


def _write(plan: Plan, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """The table and the figure; returns all files."""
    made, draw = _opened(plan, folder)
    files = [folder / f"{plan.of or plan.name}.json", folder / f"{plan.name}.md"]
    write_whole(files[1], _page(plan, made))
    if plan.figure:
        try:
            draw(folder / f"{plan.name}.png")
            files.append(folder / f"{plan.name}.png")
        except ImportError as error:
            say(f"no figure was drawn: {error}")
    return files
