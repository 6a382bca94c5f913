"""What `kalstream run` prints: the start, the progress and the end of a run."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from kalstream._printable import printable
from kalstream.cli.console import err, escaped, out, print_error
from kalstream.features.encoding import CATEGORY, NUMBERS, TIME_OF_DAY, is_of_dates
from kalstream.report.format import duration
from kalstream.runs import Run
from kalstream.runs.options import as_typed
from kalstream.runs.results import prediction_lines
from kalstream.streams import Columns

_SECONDS: Final = 5.0  # between lines where there is no terminal
_SECONDS_ON_TERMINAL: Final = 0.2
_FEW: Final = 3  # columns of a kind that are listed by name


def print_start(job: Run) -> None:
    """Print the stream, the learner and what the user should know about them."""
    stream, config = job.stream, job.config
    n = stream.approximate_rows
    about = "" if stream.n_rows == n else "about "
    rows = f", {about}{n:,} rows" if n else ""
    encoder = stream.encoder
    names = encoder.features if encoder is not None else stream.columns
    columns = f", {_counted(len(names), 'column')}" if names else ""
    out.print(f"[bold]{escaped(stream.name)}[/bold]: {stream.task}{columns}{rows}")
    if encoder is not None:
        out.print(f"  {escaped(_kinds(encoder))}")
    for note in (stream.guess, *stream.notes, *job.notes):
        if note:
            out.print(f"  {escaped(as_typed(note))}")
    params = config["learner"]["params"]
    shown = ("forgetting", "features") if "forgetting" in params else ()
    settings = ", ".join(f"{name}={params[name]!r}" for name in shown)
    out.print(f"  {config['learner']['name']}({escaped(settings)}), window {job.evaluation.window}")
    if stream.timed and "time_unit" in params:
        is_date = (
            encoder is not None and encoder.time is not None and is_of_dates(encoder.time.kind)
        )
        unit = duration(params["time_unit"]) if is_date else f"{params['time_unit']:g}"
        out.print(f"  half-lives are in units of {unit}")
    if job.resumed_at is not None:
        out.print(f"  resuming after row {job.resumed_at:,}")


def print_compiling() -> None:
    """Say why nothing happens for a while."""
    out.print("  compiling (about 30 s on first use; cached afterwards)")


def _kinds(encoder: Columns) -> str:
    """What the columns were taken for, with the names of those kinds that few columns have."""
    groups: dict[str, list[str]] = {}
    for column in encoder.features:
        noun = "number" if column.kind in NUMBERS else column.kind
        groups.setdefault(noun, []).append(printable(column.name, 40))
    parts = []
    for noun, names in groups.items():
        many = {CATEGORY: "categories", TIME_OF_DAY: "times of day"}.get(noun)
        few = len(groups) > 1 and len(names) <= _FEW
        parts.append(_counted(len(names), noun, many) + (f" ({', '.join(names)})" if few else ""))
    return ", ".join(parts)


@contextmanager
def progress(job: Run) -> Iterator[Any]:
    """A function that shows progress: a bar on a terminal, a line now and then elsewhere."""
    if not out.is_terminal:
        last = [time.monotonic()]

        def print_line(evaluation: Any, record: Any) -> None:
            if time.monotonic() - last[0] >= _SECONDS:
                last[0] = time.monotonic()
                if not out.quiet:
                    line = f"row {evaluation.n_rows:>10,}  {_status(evaluation)}"
                    print(line, file=out.file, flush=True)

        yield print_line
        return
    columns = (
        TextColumn("{task.completed:,} rows"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    )
    n, limit = job.stream.approximate_rows, job.options.limit
    if limit is not None:
        n = min(n or limit, limit)
    with Progress(*columns, console=out, refresh_per_second=5) as bar:
        task = bar.add_task("", total=n, status="", completed=job.resumed_at or 0)
        drawn = [0.0]

        def draw(evaluation: Any, record: Any) -> None:
            if time.monotonic() - drawn[0] >= _SECONDS_ON_TERMINAL:
                drawn[0] = time.monotonic()
                bar.update(task, completed=evaluation.n_rows, status=_status(evaluation))

        yield draw
        bar.update(task, completed=job.evaluation.n_rows, status=_status(job.evaluation))


class LiveLines:
    """Writes predictions to standard output as JSON lines, and passes records on to a watch."""

    def __init__(self, watch: Any, task: str) -> None:
        self.watch, self.task, self._is_closed = watch, task, False

    def __call__(self, evaluation: Any, record: Any) -> None:
        """Write the predictions of a record."""
        self.watch(evaluation, record)
        lines = prediction_lines(record, self.task)
        for line in lines:
            del line["target"]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            self._is_closed = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def closed(self) -> bool:
        """Whether nobody reads standard output any more."""
        return self._is_closed


def _status(evaluation: Any) -> str:
    """The metrics of a run so far, in a line."""
    from kalstream.evaluate.metrics import Show, shown

    line, parts = evaluation.line(), []
    for metric in shown(evaluation.stream.task, Show.CURVES):
        total, recent = line["total"][metric.name], line["window"][metric.name]
        if total is not None:
            in_window = f" (recent {recent:.4g})" if recent is not None else ""
            parts.append(f"{metric.title} {total:.4g}{in_window}")
    if line["half_life"] is not None:
        parts.append(f"half-life {_half_life(line['half_life']['median'])}")
    if evaluation.tracker.codes:
        parts.append(f"{len(evaluation.tracker.codes)} classes")
    speed = line["clock"]["rows_per_second"]
    if speed:
        parts.append(f"{speed:,.0f} rows/s")
    return "  ".join(parts)


def _half_life(value: float | str) -> str:
    return "infinite" if math.isinf(float(value)) else f"{float(value):,.0f}"


def print_end(job: Run, end: dict[str, Any], report: Path | None) -> None:
    """Print the metrics, the path of the report, and how to resume a run that was stopped."""
    if report is not None:
        _print_metrics(job, end)
        _print_waiting(end)
        _print_data_problems(end)
        for note in job.stream.later_notes:
            out.print(escaped(note))
        _print_forgetting(job)
        out.print(f"report: {escaped(report)}")
    if end["reason"] == "interrupted":
        piped = "... | " if job.options.source == "-" else ""
        folder = shlex.quote(str(job.folder))
        again = f"; resume with: {piped}kalstream run --resume --out {folder}"
        err.print(f"stopped{escaped(again) if job.can_be_resumed else ''}")
    if end["reason"] == "error":
        print_error(end["message"])
        if job.has_checkpoint:
            rows = _counted(end["row"], "row")
            err.print(escaped(f"the model learned from the {rows} before it is in {job.folder}"))


def _print_metrics(job: Run, end: dict[str, Any]) -> None:
    if end["n"]:
        out.print(_metrics(job, end))
    else:
        out.print("no row was scored: no label came before the end")
    clock = end["clock"]
    speed = f", {clock['rows_per_second']:,.0f} rows/s" if clock["rows_per_second"] else ""
    out.print(
        f"{_counted(end['row'], 'row')}, {clock['seconds']:.1f} s of predicting and learning"
        f"{speed}, at most {clock['memory_mb']:,.0f} MB"
    )


def _metrics(job: Run, end: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("")
    baselines = end["baselines"]
    for name in (job.config["learner"]["name"], *(name.replace("_", "-") for name in baselines)):
        table.add_column(name, justify="right")
    for name, value in end["total"].items():
        if value is not None:
            cells = [value, *(each.get(name) for each in baselines.values())]
            table.add_row(name, *("" if cell is None else f"{cell:,.4f}" for cell in cells))
    return table


def _print_waiting(end: dict[str, Any]) -> None:
    """Print what became of rows whose labels come late."""
    counts = end.get("waiting")
    if counts is None:
        return
    learned = counts["told"] - counts.get("missing", 0)
    parts = [f"{_counted(learned, 'label')} of {_counted(counts['asked'], 'row')} learned"]
    if counts.get("at_end"):
        parts[0] += f" ({counts['at_end']:,} of them after the last row)"
    for name, what in {
        "waiting": "rows still wait",
        "expired": "rows given up (--max-waiting, --max-age)",
        "repeated": "came again",
        "corrected": "labels corrected",
        "too_late": "labels of rows given up",
        "unknown": "labels of unknown rows",
    }.items():
        if counts[name]:
            parts.append(f"{counts[name]:,} {what}")
    out.print(", ".join(parts))


def _print_data_problems(end: dict[str, Any]) -> None:
    if end["skipped"]:
        out.print(f"{_counted(end['skipped'], 'bad row')} left out")
    if end["infinite"]:
        out.print(f"{_counted(end['infinite'], 'infinity', 'infinities')} taken as missing")
    for why in end["skipped_why"]:
        out.print(f"  {escaped(why)}")
    if end["data_changed"]:
        out.print(escaped(end["data_changed"]))


def _print_forgetting(job: Run) -> None:
    watched, half_life = job.evaluation.forgetting, getattr(job.learner, "half_life_", None)
    if half_life is not None:
        n_alarms = watched.n_alarms - watched.n_alarms_before
        alarms = f"{_counted(n_alarms, 'drift alarm')}, " if watched.drifts else ""
        out.print(f"{alarms}half-life at the end: {_half_life(half_life)}")


def _counted(n: int, one: str, many: str | None = None) -> str:
    """A number with its noun in the singular or plural."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"
