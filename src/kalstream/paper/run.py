"""Run the cells of an experiment on images, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kalstream import __version__
from kalstream.errors import InvalidInput
from kalstream.paper.images import Images, Photographs
from kalstream.paper.plan import Method, Plan, Setup
from kalstream.paper.race import Pass, Race
from kalstream.paper.results import ResultsFile, stored_options
from kalstream.paper.search import search


def merge_parts(name: str, folder: Path) -> ResultsFile:
    """The result file, with the parts that a stopped command left merged into it."""
    results, left = ResultsFile(folder / f"{name}.json"), sorted(folder.glob(f"{name}.*.*.json"))
    for path in left:
        results.merge(ResultsFile(path))
    if left:
        results.save()
    for path in left:
        path.unlink()
    return results


def run_parts(
    plan: Plan,
    parts: dict[tuple[str, str], list[tuple[str, str]]],
    results: ResultsFile,
    folder: Path,
    data: Path | None,
    device: str,
    jobs: int,
) -> None:
    """Run each part in a process with a file of its own, then merge the files.

    A part, (group, stream), has cells (key of a method, stream).
    """
    context, waiting = multiprocessing.get_context("spawn"), dict[Future[None], Path]()
    pool = ProcessPoolExecutor(jobs, context, initializer=_end_with_parent)
    try:
        for (group, stream), cells in parts.items():
            path = folder / f"{plan.name}.{group or 'all'}.{stream}.json"
            results.write_part(group, stream, path)
            waiting[pool.submit(run_cells, plan, cells, path, folder, data, device)] = path
        for done in as_completed(waiting):
            done.result()
            results.merge(ResultsFile(waiting[done]))
            results.save()
            waiting[done].unlink()
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """Make a child ignore Ctrl-C, which its parent handles, and exit when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _print(line: str) -> None:
    print(line, flush=True)


def run_cells(
    plan: Plan,
    cells: list[tuple[str, str]],
    path: Path,
    folder: Path,
    data: Path | None,
    device: str,
    say: Callable[[str], None] = _print,
) -> None:
    """Search hyper-parameters of cells where they are missing, then run the missing seeds.

    Parameters
    ----------
    plan : Plan
    cells : list of (key of a method, stream)
    path : Path
        Result file to fill.
    folder : Path
        Result files of other experiments, whose hyper-parameters methods may use.
    data : Path, optional
        Without it the images are synthetic.
    device : str
    say : function
        Called with a line of text after each search and run.
    """
    images = _open_images(plan, data, device)
    others = {other: ResultsFile(folder / f"{other}.json") for other in plan.needs()}
    results = ResultsFile(path)
    if device.startswith("cuda"):
        torch.backends.cudnn.benchmark = True
    about = _about(plan, images, results, others, device)
    wanted = [(method, stream) for method, stream in plan.cells() if (method.key, stream) in cells]
    for group in dict.fromkeys(method.group for method, _ in wanted):  # a command may be stopped
        of_group = [(method, stream) for method, stream in wanted if method.group == group]
        for method, stream in of_group:
            if results.chosen(plan, method, stream) is None:
                begin = results.inherited(method, stream)
                results.replace_search(search(plan, method, stream, begin, images, device))
                results.save(**about)
                stages = results.searches[-1]["stages"]
                seconds = sum(stage["seconds"] for stage in stages)
                say(f"{method.key}, {stream}: {stages[-1]['chosen']} ({seconds:.0f} s)")
        for together in _batches(_missing(plan, of_group, results, others), plan.together):
            race = Race(together, images, device)
            race.advance(about["rows"])
            race.end()
            for setup, made in zip(together, race.passes, strict=True):
                results.replace_run(_run_entry(setup, made))
                say(
                    f"{setup.method}, {setup.stream}, seed {setup.seed}: {made.accuracy:.1f} %, "
                    f"log-probability {made.mean_log_prob:.3f} ({made.seconds:.0f} s)"
                )
            results.save(**about)


def _open_images(plan: Plan, data: Path | None, device: str) -> Images | Photographs:
    if data is None:
        return Images.synthetic(plan.rows, device)
    if plan.source == "cloc":
        return Photographs(data, device)
    return Images.cifar100(data, device, plan.rows if plan.is_quick else None)


def _about(
    plan: Plan,
    images: Images | Photographs,
    results: ResultsFile,
    others: Mapping[str, ResultsFile],
    device: str,
) -> dict[str, Any]:
    """Data, size and machine for the result file, which must not be of other data."""
    n_rows = min(plan.rows or images.n_rows, images.n_rows)
    about: dict[str, Any] = {"data": images.fingerprint, "rows": n_rows}
    for name, value in about.items():
        if results.content.get(name, value) != value:
            raise InvalidInput(
                f"{results.path} was made with other {name} ({results.content[name]}, now "
                f"{value}); give --out another folder"
            )
    about |= {"data_name": images.name, "quick": plan.is_quick, "machine": _machine(device)}
    for other in others.values():
        if any(other.content.get(name) != about[name] for name in ("data", "quick")):
            raise InvalidInput(
                f"{other.path} was made with other images, or with another --quick; "
                "give --out another folder"
            )
    return about


def _missing(
    plan: Plan,
    cells: list[tuple[Method, str]],
    results: ResultsFile,
    others: Mapping[str, ResultsFile],
) -> list[Setup]:
    """Passes of cells that the result file does not have."""
    missing = []
    for method, stream in cells:
        for seed in plan.seeds_of(method):
            setup = plan.setup(method, stream, seed)
            setup = setup.having(**results.chosen(plan, method, stream) or {})
            setup = _with_used(setup, others)
            if not results.has(setup):
                missing.append(setup)
    return missing


def _with_used(setup: Setup, others: Mapping[str, ResultsFile]) -> Setup:
    """Add the hyper-parameters that another experiment chose; a method's own options win."""
    options = dict(setup.options)
    use = options.pop("use", None)
    if use is None:
        return setup
    stream = use.get("stream", setup.stream)
    chosen = others[use["experiment"]].chosen_for(use["method"], stream)
    if chosen is None:
        raise InvalidInput(
            f"{setup.method} uses the hyper-parameters of {use['method']} on {stream} in "
            f"{use['experiment']}, which are missing; run: kalstream paper {use['experiment']}"
        )
    return replace(setup, options={**chosen, **options})


def _batches(setups: Sequence[Setup], size: int) -> Iterable[list[Setup]]:
    """Setups to run together: with chunks of one size, at most ``size`` of them."""
    by_chunk: dict[int, list[Setup]] = {}
    for setup in setups:
        by_chunk.setdefault(setup.chunk, []).append(setup)
    for same in by_chunk.values():
        for first in range(0, len(same), size):
            yield same[first : first + size]


def _run_entry(setup: Setup, made: Pass) -> dict[str, Any]:
    return {
        "method": setup.method,
        "stream": setup.stream,
        "seed": setup.seed,
        "chunk": setup.chunk,
        "options": stored_options(setup.options),
        "accuracy": round(made.accuracy, 3),
        "log_prob": None if made.failed else round(made.mean_log_prob, 5),
        "pass": made.to_json(),
    }


def _machine(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor()
    return {"kalstream": __version__, "torch": torch.__version__, "device": name or "cpu"}
