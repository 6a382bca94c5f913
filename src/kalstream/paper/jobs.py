"""Cells of an experiment run in this process, or shared out among several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from kalstream.paper import plan as plan_file
from kalstream.paper.images import Images, Photographs
from kalstream.paper.plan import Plan
from kalstream.paper.run import Results, run


def merged(name: str, folder: Path) -> Results:
    """The results, with those of parts that were left when a command was stopped."""
    results, left = Results(folder / f"{name}.json"), sorted(folder.glob(f"{name}.*.*.json"))
    for path in left:
        results.take(Results(path))
    if left:
        results.save()
    for path in left:
        path.unlink()
    return results


def run_parts(
    plan: Plan,
    parts: dict[tuple[str, str], list[tuple[str, str]]],
    results: Results,
    folder: Path,
    data: Path | None,
    device: str,
    jobs: int,
) -> None:
    """Each part in a process and a file of its own, which is then put into the common one."""
    context, waiting = multiprocessing.get_context("spawn"), {}
    pool = ProcessPoolExecutor(jobs, context, initializer=_end_with_parent)
    try:
        for (group, stream), cells in parts.items():
            path = folder / f"{plan.name}.{group or 'all'}.{stream}.json"
            results.part(group, stream, path)
            how = plan, cells, path, folder, data, device
            waiting[pool.submit(run_cells, *how)] = path
        for done in as_completed(waiting):
            done.result()
            results.take(Results(waiting[done]))
            results.save()
            waiting[done].unlink()
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """Have a child leave Ctrl-C to its parent, and end when that is gone, however it went."""
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
    """Run cells, given by the keys of methods and streams, and keep them in a file."""
    images: Images | Photographs
    if data is None:
        images = Images.made(plan_file.QUICK_ROWS, device)
    elif plan.source == "cloc":
        images = Photographs(data, device)
    else:
        images = Images.cifar100(data, device, plan_file.QUICK_ROWS if plan.is_quick else None)
    others = {other: Results(folder / f"{other}.json") for other in plan.needs()}
    run(plan, images, Results(path), device, say, set(cells), others)
