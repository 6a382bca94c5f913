"""What `kalstream paper` does: run an experiment, write its table and figure, or check them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from kalstream._files import write_whole
from kalstream._optional import require
from kalstream.errors import InvalidInput, MissingExtra, MissingFile
from kalstream.paper import figures, openclass, series, tables
from kalstream.paper.plan import Method, Plan
from kalstream.paper.results import ResultsFile, check

# Kinds whose runs, table and figure are a module of their own.
_OWN: Final[dict[str, Any]] = {"series": series, "open": openclass}
_DATA_NAMES = {"cifar100": "CIFAR-100", "cloc": "CLOC"}


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
    """Run the missing cells of an experiment and write its files.

    Without matplotlib the figure is skipped; a message at the start names the extra to install.

    Parameters
    ----------
    name : str
    folder : Path
        Where ``NAME.json``, ``NAME.md`` and ``NAME.png`` are written. Result files of other
        experiments that this one uses are read from there.
    data : Path, optional
        CIFAR-100; without it a quick run uses synthetic images. Of openclass a file of embeddings.
    weights : Path, optional
        torchvision's MobileNetV2, for methods that start from pretrained weights.
    quick : bool
        Run a small version, for a laptop.
    device : str
    only : str
        Run only cells whose name, "group: method, stream", contains this.
    jobs : int
        Number of processes. Each runs one group of methods on one stream at a time.
    say : function
        Called with a line of text after each step.

    Examples
    --------
    A quick run takes minutes on a laptop:

    >>> reproduce("table1", Path("results"), quick=True)  # doctest: +SKIP
    """
    plan = Plan.read(name)
    plan = plan.quick() if quick else plan
    if plan.kind == "images":
        _check_device(device)
    draws = bool(plan.figure) and _can_draw(name, say)
    folder.mkdir(parents=True, exist_ok=True)
    for needed in sorted(plan.needs()):
        if not (folder / f"{needed}.json").exists():
            if not quick and plan.kind not in _OWN:
                raise MissingFile(
                    f"{name} needs {needed}.json in {folder}; run: kalstream paper {needed}"
                )
            reproduce(needed, folder, data=data, quick=quick, device=device, jobs=jobs, say=say)
    if plan.kind in _OWN and not plan.of:
        made = _OWN[plan.kind].run(plan, data)
        write_whole(folder / f"{name}.json", json.dumps(made) + "\n")
    elif plan.kind == "images":
        _run_images(plan, folder, data, weights, device, only, jobs, say)
    return _write(plan, folder, draws)


def shown(name: str, folder: Path) -> str:
    """Check the result file and the page of an experiment, and return its table.

    Examples
    --------
    >>> shown("table1", Path("no/such/folder"))
    Traceback (most recent call last):
    kalstream.errors.MissingFile: no result file ...table1.json; run: kalstream paper table1
    """
    plan = Plan.read(name)
    path = folder / f"{plan.of or name}.json"
    if not path.exists():
        raise MissingFile(f"no result file {path}; run: kalstream paper {name}")
    if plan.kind not in _OWN:
        check(Plan.read(plan.of or name), ResultsFile(path))
    table, _ = _read_results(plan, folder)
    page = folder / f"{name}.md"
    if not page.exists() or page.read_text(encoding="utf-8") != _page(plan, table):
        raise InvalidInput(f"{page} does not match {path}; run: kalstream paper {name}")
    return table


def _can_draw(name: str, say: Callable[[str], None]) -> bool:
    """Whether matplotlib is installed; if not, warn before hours of work."""
    try:
        figures.figure_class()
    except MissingExtra as error:
        say(f"{name}.png will not be drawn: {error}")
        return False
    return True


def _run_images(
    plan: Plan,
    folder: Path,
    data: Path | None,
    weights: Path | None,
    device: str,
    only: str,
    jobs: int,
    say: Callable[[str], None],
) -> None:
    """Run the missing cells, in this process or in several."""
    from kalstream.deep.backbones import read_weights
    from kalstream.paper.run import merge_parts, run_cells, run_parts

    if data is None and not plan.is_quick:
        raise InvalidInput(
            f"{plan.name} needs {_DATA_NAMES[plan.source]}: pass --data FOLDER, or try --quick"
        )
    if weights is not None and not plan.is_quick:
        read_weights(weights)  # a bad file fails now, not after an hour
    cells = [(m, stream) for m, stream in plan.cells() if only in f"{m.key}, {stream}"]
    if not cells:
        raise InvalidInput(
            f"no cell has {only!r} in its name, which is 'group: method, stream'; "
            f"kalstream paper {plan.name} without --only runs all cells"
        )
    keys = {method.key for method, _ in cells}
    methods = (_with_weights(m, weights) if m.key in keys else m for m in plan.methods)
    plan = replace(plan, methods=tuple(methods))
    results = merge_parts(plan.name, folder)
    before = [*results.searches], [*results.runs]
    parts: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for method, stream in cells:
        parts.setdefault((method.group, stream), []).append((method.key, stream))
    if jobs == 1:
        every = [cell for part in parts.values() for cell in part]
        run_cells(plan, every, results.path, folder, data, device, say)
        results = ResultsFile(results.path)
    else:
        run_parts(plan, parts, results, folder, data, device, jobs)
    order = {(method.key, stream): n for n, (method, stream) in enumerate(plan.cells())}
    for entries in (results.searches, results.runs):
        entries.sort(key=lambda each: order.get((each["method"], each["stream"]), -1))
    if (results.searches, results.runs) != before:
        results.save()


def _check_device(device: str) -> None:
    torch = require("torch", "torch")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"--device {device} cannot be used here: {reason}") from error


def _with_weights(method: Method, weights: Path | None) -> Method:
    if method.options.get("weights") is None:
        return method
    if weights is None:
        raise InvalidInput(f"{method.key} starts from pretrained weights: pass --weights FILE.pth")
    return replace(method, options={**method.options, "weights": str(weights)})


def _read_results(plan: Plan, folder: Path) -> tuple[str, Callable[[Path], None]]:
    """The table of a result file, and a function that draws its figure into a file."""
    path = folder / f"{plan.of or plan.name}.json"
    if own := _OWN.get(plan.kind):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return own.table(content), partial(own.draw, plan, content)
        except (ValueError, KeyError) as error:
            raise InvalidInput(f"{path} is damaged ({error}); move it away") from error
    results = ResultsFile(path)
    return tables.table(plan, results), partial(figures.draw, plan, results)


def _page(plan: Plan, table: str) -> str:
    return f"# {plan.title}\n\n{table}"


def _write(plan: Plan, folder: Path, draws: bool) -> list[Path]:
    """Write the page and, if it can be drawn, the figure; returns all files."""
    table, draw = _read_results(plan, folder)
    files = [folder / f"{plan.of or plan.name}.json", folder / f"{plan.name}.md"]
    write_whole(files[1], _page(plan, table))
    if draws:
        files.append(folder / f"{plan.name}.png")
        draw(files[-1])
    return files
