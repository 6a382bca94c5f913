"""Many runs at once: `kalstream sweep`, and `kalstream run --each`."""

from __future__ import annotations

import glob
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kalstream.cli.console import (
    app,
    err,
    escaped,
    out,
    print_error,
    print_file,
    printing,
    until_signal,
)
from kalstream.cli.run import parsed, with_options
from kalstream.errors import InvalidInput
from kalstream.runs.files import last_line
from kalstream.runs.options import Options

if TYPE_CHECKING:
    from kalstream.report import SummaryEntry
    from kalstream.runs.jobs import Job, JobOutcome, JobPlace
    from kalstream.runs.sweep import Combination, Sweep

_HELP: Final = """
Run every combination of options on a stream, and compare the runs.

The runs use all cores. Each is a folder that `kalstream run` would write, and comparison.html
compares them. Give the same command again to resume a sweep that was stopped or killed: runs that
have ended are kept. Combinations that cannot catch up with the best one any more are stopped.

[bold]Examples[/bold]

  kalstream sweep data.csv --target y --grid features=fourier,scaled --grid forgetting=mixture,0.999

  kalstream sweep data.csv --target y --grid n_components=100,400 --seeds 3 --out runs/waves

  kalstream sweep data.csv --target y --grid 'motion=0|0,1'        values that hold commas
"""
_SECONDS: Final = 5.0  # between lines where there is no terminal


@app.command(help=_HELP)
@with_options(Options.model_fields)
def sweep(  # noqa: D103
    context: typer.Context,
    *,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="OPTION=A,B", help="An option, and its values."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=10_000, help="Runs of each combination, from --seed on.")
    ] = 1,
    workers: Annotated[
        int, typer.Option(min=0, help="Runs at once; 0 means one for each core.")
    ] = 0,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on this cluster of Ray, or 'local'."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the runs.", show_default="runs/NAME-sweep"),
    ] = None,
    checkpoint_every: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds between checkpoints.")
    ] = None,
    to_the_end: Annotated[
        bool, typer.Option("--to-the-end", help="Also run hopeless combinations to the end.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print errors and warnings only.")
    ] = False,
    **values: Any,
) -> None:
    from dataclasses import replace

    from kalstream.runs.sweep import combinations, grid_of, plan_pauses, run_sweep

    options, _ = parsed(context, values)
    folder = folder or Path("runs") / f"{Path(options.source).name.split('.')[0]}-sweep"
    options, pauses = plan_pauses(options)
    if to_the_end:
        pauses = replace(pauses, rows=())
    made = combinations(
        options, grid_of(grid or []), seeds, folder, checkpoint_every=checkpoint_every
    )
    n_jobs, place = sum(len(each.jobs) for each in made), _place(workers, ray)
    with printing(quiet=quiet):
        out.print(f"{len(made):,} combinations, {n_jobs:,} runs in {escaped(folder)}")
        with _until_stopped() as stopped, _progress(n_jobs) as watch:
            result = run_sweep(made, place, pauses, watch, stopped)
        _exit_if_stopped(stopped)
        _print_sweep(made, result, pauses.metric)
        failed = [each for each in result.outcomes.values() if each.problem]
        _compare(made, result, pauses.metric, folder / "comparison.html")
    _exit_if_failed(failed)


def _place(workers: int, ray: str | None = None) -> JobPlace:
    """Where jobs run: on this machine, or on Ray."""
    from kalstream.runs.jobs import Processes

    if ray is None:
        return Processes(workers or os.cpu_count() or 1)
    from kalstream.distributed import JobsOnRay

    place = JobsOnRay(None if ray == "local" else ray, workers)
    return place.connected()


def _compare(made: Sequence[Combination], result: Sweep, metric: str, page: Path) -> None:
    """Write the comparison of the runs that have ended, the best first."""
    from kalstream.report import compare_runs, read_run, write_comparison

    notes = [
        f"Stopped at row {row:,}, because it could not catch up: {name}."
        for name, row in result.hopeless.items()
    ]
    notes += [
        f"Failed: {name}: {each.problem}" for name, each in result.outcomes.items() if each.problem
    ]
    jobs = [job for each in made if each.name not in result.hopeless for job in each.jobs]
    folders = [job.folder for job in jobs if not result.outcomes[job.name].problem]
    if len(folders) < 2:
        out.print(f"{len(folders)} of the runs ended, so there is no comparison")
        return
    losses = {each: read_run(each).total(metric) for each in folders}
    folders.sort(key=lambda each: losses[each])
    print_file("comparison", write_comparison(folders, page, compare_runs(folders), notes))


def _print_sweep(made: Sequence[Combination], result: Sweep, metric: str) -> None:
    """Print a line for each combination, the best first."""
    from kalstream.evaluate.metrics import Show, shown
    from kalstream.report import read_run

    rows: list[tuple[int, float, str, str, dict[str, float]]] = []
    for each in made:
        problems = [result.outcomes[job.name].problem for job in each.jobs]
        if any(problems):
            rows.append((2, 0.0, each.name, "failed", {}))
            continue
        runs = [read_run(job.folder) for job in each.jobs]
        totals = {
            m.title: sum(run.total(m.name) for run in runs) / len(runs)
            for m in shown(runs[0].task, Show.VERDICT)
        }
        loss = sum(run.total(metric) for run in runs)
        stopped = each.name in result.hopeless
        word = f"stopped at row {result.hopeless[each.name]:,}" if stopped else ""
        rows.append((int(stopped), loss, each.name, word, totals))
    rows.sort(key=lambda row: row[:3])
    titles = list(dict.fromkeys(title for row in rows for title in row[4]))
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("")
    for title in titles:
        table.add_column(title, justify="right")
    table.add_column("")
    for _, _, name, word, totals in rows:
        cells = [f"{totals[title]:,.4f}" if title in totals else "" for title in titles]
        table.add_row(escaped(name), *cells, word)
    out.print(table)


# ---- --each ---------------------------------------------------------------------------------


def run_each(
    options: Options, folder: Path | None, workers: int, checkpoint_every: float | None
) -> None:
    """A run for each file of a pattern or folder, and a page that summarises them."""
    from kalstream.report import entries_of, write_summary
    from kalstream.runs.jobs import run_jobs

    files = _files_of(options.source)
    parent = Path(os.path.commonpath([file.parent for file in files]))
    folder = folder or Path("runs") / f"{parent.resolve().name}-each"
    jobs = _jobs_of(files, parent, options, folder, checkpoint_every)
    out.print(f"{len(jobs):,} files, runs in {escaped(folder)}")
    with _until_stopped() as stopped, _progress(len(jobs)) as watch:
        outcomes = run_jobs(jobs, _place(workers), watch, stopped)
    entries = entries_of({each.job.name: (each.job.folder, each.problem) for each in outcomes})
    _print_each(entries)
    folder.mkdir(parents=True, exist_ok=True)
    print_file("summary", write_summary(options.source, entries, folder / "summary.html"))
    _exit_if_stopped(stopped)
    _exit_if_failed([each for each in outcomes if each.problem])


def _files_of(source: str) -> list[Path]:
    pattern = os.path.join(glob.escape(source), "*") if os.path.isdir(source) else source
    files = [path for path in map(Path, sorted(glob.glob(pattern, recursive=True)))]
    files = [path for path in files if path.is_file() and not path.name.startswith(".")]
    if not files:
        raise InvalidInput(
            f"no file matches {source}; give --each a folder, or a pattern in quotes: "
            "kalstream run 'stores/*.csv' --each"
        )
    return files


def _jobs_of(
    files: Sequence[Path],
    parent: Path,
    options: Options,
    folder: Path,
    checkpoint_every: float | None,
) -> list[Job]:
    from kalstream.runs.jobs import Job
    from kalstream.runs.sweep import as_folder

    names = [path.relative_to(parent).as_posix() for path in files]
    return [
        Job(
            name,
            folder / as_folder(name),
            options.model_copy(update={"source": str(path)}),
            checkpoint_every=checkpoint_every,
        )
        for name, path in zip(names, files, strict=True)
    ]


def _print_each(entries: Sequence[SummaryEntry]) -> None:
    table = Table(box=None, pad_edge=False, show_edge=False)
    metrics = list(dict.fromkeys(itertools.chain.from_iterable(e.metrics for e in entries)))
    table.add_column("")
    for title in ("rows", *(metric.title for metric in metrics)):
        table.add_column(title, justify="right")
    table.add_column("")
    for entry in entries:
        rows = "" if entry.run is None else f"{entry.run.rows:,}"
        cells = [entry.metrics.get(metric, "") for metric in metrics]
        word = entry.attention.name.lower().replace("_", " ")
        table.add_row(escaped(entry.name), rows, *cells, word)
    out.print(table)


# ---- both -----------------------------------------------------------------------------------


def _exit_if_failed(outcomes: Sequence[JobOutcome]) -> None:
    for each in outcomes:
        print_error(f"{each.job.name}: {each.problem}")
    if outcomes:
        sys.exit(1)


def _exit_if_stopped(stopped: Callable[[], int]) -> None:
    if stopped():
        err.print("stopped; give the same command again to resume")
        sys.exit(128 + stopped())


def _until_stopped() -> AbstractContextManager[Callable[[], int]]:
    return until_signal(lambda: err.print("stopping the runs (again: at once)"))


@contextmanager
def _progress(n_jobs: int) -> Iterator[Callable[[Sequence[JobOutcome], Sequence[Job]], None]]:
    """A function that shows progress: a bar on a terminal, a line now and then elsewhere."""
    drawn, shown = [time.monotonic()], [""]
    columns = BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Progress(*columns, TextColumn("{task.description}"), console=out)
    bar.disable = not out.is_terminal
    task = bar.add_task("", total=n_jobs)

    def show(ended: Sequence[JobOutcome], running: Sequence[Job]) -> None:
        if time.monotonic() - drawn[0] < (1.0 if out.is_terminal else _SECONDS):
            return
        drawn[0] = time.monotonic()
        status = ", ".join(_status(job) for job in running[:3])
        status += f" and {len(running) - 3} more" if len(running) > 3 else ""
        bar.update(task, completed=len(ended), description=escaped(status))
        if not out.is_terminal and status != shown[0]:
            out.print(f"{len(ended)} of {n_jobs} runs ended; {escaped(status)}")
        shown[0] = status

    with bar:
        yield show


def _status(job: Job) -> str:
    return f"{job.name}: row {last_line(job.folder).get('row', 0):,}"
