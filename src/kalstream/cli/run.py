"""`kalstream run`: its parameters are made from the declarations of `Options`."""

from __future__ import annotations

import inspect
import itertools
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_origin

import typer

from kalstream.cli.console import app, err, escaped, out, printing, until_signal
from kalstream.errors import InvalidOption
from kalstream.runs.files import (
    CHECKPOINT,
    METRICS,
    REPORT,
    holds_run,
    last_line,
    read_progress,
    refuse_other_files,
    refuse_run,
    report_is_outdated,
)
from kalstream.runs.options import CHECKPOINT_EVERY, Options, declared, typed

if TYPE_CHECKING:
    from kalstream.runs import Run

_HELP: Final = """
Predict and learn the rows of a stream, and write a report.

Every row is predicted before its target is learned. The report compares the learner with two
simple predictors: one repeats the last label, the other predicts the most frequent one. For numbers
they predict the last value and the mean.

[bold]Examples[/bold]

  kalstream run                                      the packaged stream elec2

  kalstream run data.csv --target label              a file whose rows are in time order

  kalstream run data.csv.gz --target price --time date --ignore id

  kalstream run parts/ --target y --limit 1000000    a folder of Parquet files

  tail -f log.jsonl | kalstream run - --target ok    rows as they arrive

  kalstream run data.csv --target y --delay 500      labels come 500 rows late

  orders | kalstream run - --target paid --task classification --id order --live

  kalstream run --resume --out runs/data-1           resume a stopped or killed run

  kalstream run more.csv --extend runs/data-1        add rows to a run that has ended

  kalstream run new.csv --from runs/data-1           a new run that begins with its model

  kalstream run data.csv --target y --learner sklearn.naive_bayes:GaussianNB
"""


_SIGPIPE: Final = 13  # its name is not known on Windows


def _parameter(name: str) -> inspect.Parameter:
    field = Options.model_fields[name]
    kind: Any = field.annotation
    default = field.default
    settings: dict[str, Any] = {"help": field.description}
    for limit in field.metadata:
        for bound, setting in (("ge", "min"), ("le", "max")):
            if hasattr(limit, bound):
                settings[setting] = getattr(limit, bound)
    if declared(name)["argument"]:
        info = typer.Argument(**settings)
    else:
        # What is on by default is typed to turn it off.
        first = f" /{typed(name)}" if default is True else typed(name)
        info = typer.Option(*filter(None, (first, declared(name)["short"])), **settings)
    if get_origin(kind) is list:
        kind, default = kind | None, None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def with_options(names: Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command, which takes these options of a run as keywords, their parameters."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        others = [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
        positional = [each for each in others if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        made = [*positional, *map(_parameter, names), *others[len(positional) :]]
        command.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
        return command

    return decorate


@app.command(help=_HELP)
@with_options(Options.model_fields)
def run(  # noqa: D103
    context: typer.Context,
    *,
    folder: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the run.", show_default="runs/NAME-NUMBER"),
    ] = None,
    checkpoint_every: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Seconds between checkpoints.", show_default=str(CHECKPOINT_EVERY)
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in --out.")
    ] = False,
    extend: Annotated[
        Path | None,
        typer.Option(
            "--extend", metavar="RUN", help="Add the rows of SOURCE to a run that has ended."
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Write each prediction to standard output as a JSON line as its row comes; all "
            "else goes to standard error.",
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print errors and warnings only.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the result to standard output as JSON; all else goes to standard error.",
        ),
    ] = False,
    each: Annotated[
        bool,
        typer.Option(
            "--each",
            help="One run for each file of SOURCE, a folder or a pattern in quotes, side by side, "
            "in folders of --out, and a page that summarises them.",
        ),
    ] = False,
    workers: Annotated[
        int, typer.Option(min=0, help="With --each: runs at once; 0 means one for each core.")
    ] = 0,
    **values: Any,
) -> None:
    if each:
        for name, is_typed in (
            *(("--resume", resume), ("--overwrite", overwrite), ("--extend", extend)),
            *(("--live", live), ("--json", as_json)),
        ):
            if is_typed:
                raise InvalidOption(f"{name} does not apply to --each; leave it out")
        from kalstream.cli.sweep import run_each

        with printing(quiet=quiet):
            run_each(parsed(context, values)[0], folder, workers, checkpoint_every)
        return
    if live and as_json:
        raise InvalidOption("--live and --json both write to standard output; give one of them")
    with printing(quiet=quiet, to_standard_error=live or as_json):
        ended = _run(context, folder, checkpoint_every, resume, overwrite, extend, live, values)
    if as_json:
        print(json.dumps(ended.result(), indent=1))
    if ended.status:
        sys.exit(ended.status)


@dataclass(frozen=True)
class _Ended:
    """How a run ended: its folder, its last line, its report and the exit status."""

    folder: Path
    line: dict[str, Any]
    report: Path | None
    status: int = 0

    def result(self) -> dict[str, Any]:
        """The result as JSON."""
        report = None if self.report is None else str(self.report)
        return {"folder": str(self.folder), "report": report, **self.line}


def _run(
    context: typer.Context,
    folder: Path | None,
    checkpoint_every: float | None,
    resume: bool,
    overwrite: bool,
    extend: Path | None,
    live: bool,
    values: dict[str, Any],
) -> _Ended:
    options, given = parsed(context, values)
    _check_source_is_typed(options, given, extend)
    if extend is not None:
        for name, is_typed in (("--resume", resume), ("--overwrite", overwrite), ("--out", folder)):
            if is_typed:
                raise InvalidOption(
                    f"--extend {extend} adds rows to that run, so {name} does not apply; leave "
                    f"{name} out"
                )
        changes = {name: getattr(options, name) for name in given}
        return _go(_extended(extend, changes, checkpoint_every), live)
    if resume and folder is None:
        raise InvalidOption("--resume needs --out, the folder of the run to resume")
    if resume and overwrite:
        raise InvalidOption(
            "--resume continues a run and --overwrite replaces it; give one of them"
        )
    # A run that was killed before it wrote anything starts over, if the source is given.
    if resume and folder is not None and ("source" not in given or holds_run(folder)):
        changes = {name: getattr(options, name) for name in given}
        job = _resumed(folder, changes, checkpoint_every)
        return _Ended(folder, last_line(folder), folder / REPORT) if job is None else _go(job, live)
    return _go(_new(folder, options, checkpoint_every, overwrite), live)


def parsed(context: typer.Context, values: dict[str, Any]) -> tuple[Options, list[str]]:
    """The options, checked, and the names of those that were typed."""
    given = [name for name in values if _is_typed(context, name)]
    values |= {name: _listed(name, value) for name, value in values.items()}
    # The fields that are set are those that were typed; `Origin.options` needs to know them.
    return Options.of(**{name: values[name] for name in given}), given


def options_of(values: Mapping[str, Any]) -> Options:
    """The options of a command that takes some of those of a run; None was not given."""
    given = {name: value for name, value in values.items() if value is not None}
    return Options.of(**{name: _listed(name, value) for name, value in given.items()})


def _listed(name: str, value: Any) -> Any:
    """The value of an option; one that is a list is cut at its commas, if it may be."""
    if get_origin(Options.model_fields[name].annotation) is not list:
        return value
    parts = value or []
    return parts if declared(name)["repeated"] else [x for part in parts for x in part.split(",")]


def _check_source_is_typed(options: Options, given: list[str], extend: Path | None) -> None:
    """Refuse to learn the default stream by accident."""
    for name, value in (("--from", options.origin), ("--extend", extend)):
        if value is not None and "source" not in given:
            raise InvalidOption(
                f"{name} {value} needs new data; name a file, a folder, or - for standard input: "
                f"kalstream run new.csv {name} {value}"
            )


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _new(
    folder: Path | None, options: Options, checkpoint_every: float | None, overwrite: bool
) -> Run:
    from kalstream.runs import Run

    return Run(
        _folder_for(folder, options.source, overwrite),
        options,
        command=_command(),
        checkpoint_every=checkpoint_every,
        overwrite=overwrite,
    )


def _command() -> str:
    """The command line that starts the same run."""
    from kalstream.runs.jobs import command_of_job

    return command_of_job() or shlex.join(["kalstream", *sys.argv[1:]])


def _folder_for(folder: Path | None, source: str, overwrite: bool) -> Path:
    """The folder of a new run."""
    if folder is None:
        stem = "stdin" if source == "-" else Path(source).name.split(".")[0]
        numbered = (Path("runs") / f"{stem}-{k}" for k in itertools.count(1))
        return next(path for path in numbered if not path.exists())
    if not overwrite:
        refuse_run(folder)
    if not holds_run(folder):
        refuse_other_files(folder)
    return folder


def _extended(folder: Path, changes: dict[str, Any], checkpoint_every: float | None) -> Run:
    """A run that continues with new data."""
    from kalstream.runs import Run

    _check_results(folder)
    source = changes.pop("source")
    return Run.extend(
        folder, source, changes, command=_command(), checkpoint_every=checkpoint_every
    )


def _check_results(folder: Path) -> None:
    """Find damage before anything is learned, not in the report."""
    from kalstream.report import check_results

    progress = read_progress(folder / CHECKPOINT)
    if progress is not None:
        check_results(folder, progress["sizes"][METRICS])


def _resumed(folder: Path, changes: dict[str, Any], checkpoint_every: float | None) -> Run | None:
    """A run that continues; None if nothing is left to do but perhaps its report."""
    from kalstream.report import write_report
    from kalstream.runs import Run, why_done

    _check_results(folder)
    job = Run.resume(folder, changes, command=_command(), checkpoint_every=checkpoint_every)
    if job is None:
        out.print(escaped(why_done(folder, changes)))
        if report_is_outdated(folder):
            out.print(f"report: {escaped(write_report(folder))}")
    return job


def _go(job: Run, live: bool) -> _Ended:
    """Run to the end and write the report."""
    from kalstream.cli.run_output import (
        LiveLines,
        print_compiling,
        print_end,
        print_start,
        progress,
    )
    from kalstream.core.jit import when_compiling
    from kalstream.report import write_report

    print_start(job)
    with _until_interrupted(job) as signal_number, progress(job) as watch:
        lines = LiveLines(watch, job.stream.task) if live else None
        nobody_reads = lines.closed if lines is not None else lambda: False
        with when_compiling(print_compiling):
            end = job.go(lines or watch, lambda: signal_number() > 0 or nobody_reads())
    report = write_report(job.folder) if end["row"] else None
    print_end(job, end, report)
    stopped = 128 + (signal_number() or _SIGPIPE)
    status = {"interrupted": stopped, "error": 1}.get(end["reason"], 0)
    return _Ended(job.folder, end, report, status)


def _until_interrupted(job: Run) -> AbstractContextManager[Callable[[], int]]:
    """The number of the signal that asked for a stop, or 0; a second one ends the program."""

    def receive() -> None:
        if job.evaluation.waiting:  # for rows, perhaps for long: no chunk is half done
            raise KeyboardInterrupt
        err.print("stopping after this chunk (again: at once)")

    return until_signal(receive)
