"""The command line: parse, call, print."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import math
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.console import Console
from rich.table import Table

from kalstream import __version__
from kalstream._files import is_replaced, replacing
from kalstream._printable import printable, quoted
from kalstream.errors import InvalidInput, KalstreamError

if TYPE_CHECKING:
    from kalstream.runs import Run

_OPTION: Final = {"time_column": "time"}  # where the option is not called as the parameter
_MOST_SHOWN: Final = 4000  # characters of a message
_PLAIN_SECONDS: Final = 5.0  # between lines where there is no terminal

app = typer.Typer(
    name="kalstream",
    help="Learn from a labelled stream that drifts: predict every row, then learn it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line; what goes wrong is said in a sentence, on standard error."""
    _escape_what_cannot_be_encoded(sys.stdout)
    try:
        app()
    except BrokenPipeError:  # `kalstream data | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (KalstreamError, OSError) as error:
        from kalstream.runs.run import as_typed

        _tell_error(as_typed(str(error)))
        sys.exit(1)
    except ValueError as error:
        if not hasattr(error, "errors"):  # pydantic is loaded only where it is used
            raise
        for each in error.errors():
            _tell_error(
                f"--{'.'.join(map(str, each['loc'])).replace('_', '-')} is "
                f"{quoted(each['input'])}: {each['msg']}"
            )
        sys.exit(1)


def _tell_error(message: str) -> None:
    err.print(f"[red]error[/red]: {_escaped(message, lines=True)}")


def _escape_what_cannot_be_encoded(stream: Any) -> None:
    """Let a stream write an escape for a character that its encoding lacks, and not raise."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


def _version(wanted: bool) -> None:
    if wanted:
        out.print(__version__)
        raise typer.Exit


@app.callback()
def _kalstream(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# ---- run ----------------------------------------------------------------------------------

_RUN = """
Predict and learn a stream, row by row, and write a report.

Every row is predicted before its target is learned. Beside the model stand the simplest
predictors: repeating the last label, and the most frequent one.

[bold]Examples[/bold]

  kalstream run                                      the packaged stream elec2

  kalstream run data.csv --target label              a file in the order of time

  kalstream run data.csv.gz --target price --time date --ignore id

  kalstream run parts/ --target y --limit 1000000    a folder of Parquet files

  tail -f log.jsonl | kalstream run - --target ok    rows as they come

  kalstream run --resume --out runs/data-1           go on after a stop, or kill -9

  kalstream run data.csv --target y --learner sklearn.naive_bayes:GaussianNB
"""


@app.command(help=_RUN)
def run(  # noqa: D103
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(
            help="CSV, JSON lines (.gz, .zst), Parquet, a folder of them, embeddings (.npy, "
            ".npz, .safetensors), - for standard input, or a name that `kalstream data` lists.",
            show_default="elec2",
        ),
    ] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="Column to predict.")] = None,
    task: Annotated[
        Literal["classification", "regression"] | None,
        typer.Option(help="Guessed from the target if not given."),
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option("--time", help="Column of times: forgetting goes by them, not by rows."),
    ] = None,
    time_unit: Annotated[
        str, typer.Option(help="What half-lives are counted in with --time: 30s, 12h, 1d, 7.")
    ] = "auto",
    ignore: Annotated[
        list[str] | None, typer.Option(help="Columns to leave out: a,b or given again.")
    ] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(help="Columns of codes that look like numbers.")
    ] = None,
    bad_rows: Annotated[
        Literal["stop", "skip"], typer.Option(help="What to do with a row that cannot be read.")
    ] = "stop",
    order: Annotated[
        Literal["as-is", "shuffled", "tasks"], typer.Option(help="Of an embedding file.")
    ] = "as-is",
    forgetting: Annotated[
        str, typer.Option(help="mixture, learned, or a gamma from 0 to 1 (1 forgets nothing).")
    ] = "mixture",
    features: Annotated[
        Literal["fourier", "scaled", "raw"], typer.Option(help="What the filter sees of a row.")
    ] = "fourier",
    learner: Annotated[
        str, typer.Option(help="package.module:factory of a learner of your own.")
    ] = "",
    chunk: Annotated[
        int, typer.Option(min=1, help="Rows predicted before any of them is learned.")
    ] = 1,
    delay: Annotated[
        int, typer.Option(min=0, help="Rows by which targets come later than their rows.")
    ] = 0,
    cost: Annotated[
        float, typer.Option(min=1.0, help="Learn only every cost-th chunk: the stream waits not.")
    ] = 1.0,
    window: Annotated[
        int, typer.Option(min=0, help="Rows of a window; 0 for some 200 windows.")
    ] = 0,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Rows after which to stop; 0 for none.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 0,
    predictions: Annotated[
        bool, typer.Option("--predictions", help="Also write every prediction made.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the run.", show_default="runs/NAME-NUMBER"),
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(min=0.0, help="Seconds between checkpoints.")
    ] = 30.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run that is in --out.")
    ] = False,
) -> None:
    from kalstream.report import check_results, write_report
    from kalstream.runs import Options, Run, why_done
    from kalstream.runs.files import read_progress

    options = Options.of(
        source=source or "elec2",
        target=target,
        task=task,
        time=time_column,
        time_unit=time_unit,
        ignore=_listed(ignore),
        categorical=_listed(categorical),
        bad_rows=bad_rows,
        order=order,
        forgetting=forgetting,
        features=features,
        learner=learner,
        chunk=chunk,
        delay=delay,
        cost=cost,
        window=window,
        limit=limit or None,
        seed=seed,
        predictions=predictions,
    )
    if resume and folder is None:
        raise InvalidInput("--resume needs --out, the folder of the run to go on with")
    if resume and overwrite:
        raise InvalidInput("--resume goes on with a run and --overwrite replaces it; give one")
    # Killed before it wrote anything, a run starts over, if it is said what to run.
    if resume and folder is not None and (source is None or (folder / "config.json").exists()):
        given = {_OPTION.get(name, name) for name in context.params if _is_given(context, name)}
        changes = {name: getattr(options, name) for name in Options.model_fields if name in given}
        progress = read_progress(folder / "checkpoint")
        if progress is not None:  # before anything is learned, not by the report at the end
            check_results(folder, progress["sizes"]["metrics.jsonl"])
        resumed = Run.resume(folder, changes, checkpoint_every=checkpoint_every)
        if resumed is None:
            out.print(_escaped(why_done(folder, changes)))
            if _report_is_late(folder):
                out.print(f"report: {_escaped(write_report(folder))}")
            return
        job = resumed
    else:
        folder = _fresh(folder, options.source, overwrite)
        command = shlex.join(["kalstream", *sys.argv[1:]])
        job = Run(
            folder,
            options,
            command=command,
            checkpoint_every=checkpoint_every,
            overwrite=overwrite,
        )
    _introduce(job)
    with _until_interrupted(job) as stopped, _watching(job) as watch:
        end = job.go(watch, lambda: stopped() > 0)
    _conclude(job, end, write_report(job.folder) if end["row"] else None)
    if end["reason"] == "interrupted":
        sys.exit(128 + stopped())
    if end["reason"] == "error":
        sys.exit(1)


def _fresh(folder: Path | None, source: str, overwrite: bool) -> Path:
    """A folder for a new run."""
    if folder is None:
        stem = "stdin" if source == "-" else Path(source).name.split(".")[0]
        numbers = (Path("runs") / f"{stem}-{k}" for k in itertools.count(1))
        return next(path for path in numbers if not path.exists())
    if (folder / "config.json").exists():
        if not overwrite:
            raise InvalidInput(
                f"{folder} holds a run already; --resume goes on with it, --overwrite replaces it, "
                "or give --out another folder"
            )
    elif folder.exists() and (not folder.is_dir() or not all(map(_is_ours, os.listdir(folder)))):
        raise InvalidInput(f"{folder} is there and holds no run; give --out another folder")
    return folder


def _report_is_late(folder: Path) -> bool:
    """Whether a run was killed between its last line and its report."""
    report, metrics = folder / "report.html", folder / "metrics.jsonl"
    return not report.exists() or report.stat().st_mtime_ns < metrics.stat().st_mtime_ns


def _is_ours(name: str) -> bool:
    """Whether a file may be of a run that was killed before it had written its config.json."""
    return name in ("checkpoint", ".lock") or (
        name.startswith(".kalstream-") and name[-4:] == ".tmp"
    )


def _listed(values: list[str] | None) -> list[str]:
    return [name for value in values or () for name in value.split(",") if name]


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def _until_interrupted(job: Run) -> Iterator[Callable[[], int]]:
    """The signal by which a stop was asked for, or 0; a second one ends the program at once."""
    asked: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: Any) -> None:
        asked.append(number)
        restore()
        if job.evaluation.waiting:  # for rows, perhaps for long: nothing is half done
            raise KeyboardInterrupt
        err.print("stopping after this chunk (once more: at once)")

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: asked[0] if asked else 0
    finally:
        restore()


def _introduce(job: Run) -> None:
    """Say aloud what will be done."""
    stream, config = job.stream, job.config
    n = stream.n_rows or getattr(stream, "approximate_rows", None)
    about = "" if stream.n_rows == n else "about "
    rows = f", {about}{n:,} rows" if n else ""
    columns = f", {len(stream.columns)} columns" if stream.columns else ""
    out.print(f"[bold]{_escaped(stream.name)}[/bold]: {stream.task}{columns}{rows}")
    for note in (getattr(stream, "guess", ""), *job.notes):
        if note:
            said = re.sub(r'task="(\w+)"', r"--task \1", note)
            out.print(f"  {_escaped(said)}")
    params = config["learner"]["params"]
    shown = ("forgetting", "features") if "forgetting" in params else ()
    settings = ", ".join(f"{name}={params[name]!r}" for name in shown)
    out.print(
        f"  {config['learner']['name']}({_escaped(settings)}), window {job.evaluation.window}"
    )
    if job.options.is_timed(stream) and "time_unit" in params:
        out.print(f"  half-lives are in units of {params['time_unit']:g} (seconds, if dates)")
    if job.resumed_at is not None:
        out.print(f"  going on after row {job.resumed_at:,}")
    out.print("  getting ready (the first run on a machine compiles for some 30 s)")


@contextmanager
def _watching(job: Run) -> Iterator[Any]:
    """A progress bar on a terminal, a line now and then elsewhere."""
    if not out.is_terminal:
        last = [time.monotonic()]

        def tell(evaluation: Any, record: Any) -> None:
            if time.monotonic() - last[0] >= _PLAIN_SECONDS:
                last[0] = time.monotonic()
                print(f"row {evaluation.n_rows:>10,}  {_state(evaluation)}", flush=True)

        yield tell
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.completed:,} rows"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
    )
    n = job.stream.n_rows or getattr(job.stream, "approximate_rows", None)
    if job.options.limit is not None:
        n = min(n or job.options.limit, job.options.limit)
    with Progress(*columns, console=out, refresh_per_second=5) as bar:
        task = bar.add_task("", total=n, state="", completed=job.resumed_at or 0)
        drawn = [0.0]

        def draw(evaluation: Any, record: Any) -> None:
            if time.monotonic() - drawn[0] >= 0.2:
                drawn[0] = time.monotonic()
                bar.update(task, completed=evaluation.n_rows, state=_state(evaluation))

        yield draw
        bar.update(task, completed=job.evaluation.n_rows, state=_state(job.evaluation))


def _state(evaluation: Any) -> str:
    """Where a run stands, in a line."""
    from kalstream.evaluate.metrics import Show, shown

    line = evaluation.line()
    parts = []
    for metric in shown(evaluation.stream.task, Show.CURVES):
        total, recent = line["total"][metric.name], line["window"][metric.name]
        if total is not None:
            late = f" ({recent:.4g} of late)" if recent is not None else ""
            parts.append(f"{metric.title} {total:.4g}{late}")
    if line["half_life"] is not None:
        parts.append(f"half-life {_half_life(line['half_life']['median'])}")
    if evaluation.tracker.codes:
        parts.append(f"{len(evaluation.tracker.codes)} classes")
    speed = line["clock"]["rows_per_second"]
    if speed:
        parts.append(f"{speed:,.0f} rows/s")
    return "  ".join(parts)


def _half_life(value: float | str) -> str:
    return "never" if math.isinf(float(value)) else f"{float(value):,.0f}"


def _conclude(job: Run, end: dict[str, Any], report: Path | None) -> None:
    """Say how it went."""
    if report is not None:
        _tell_numbers(job, end)
        out.print(f"report: {_escaped(report)}")
    if end["reason"] == "interrupted":
        again = f"; go on with: kalstream run --resume --out {shlex.quote(str(job.folder))}"
        err.print(f"stopped{_escaped(again) if job.can_be_resumed else ''}")
    if end["reason"] == "error":
        _tell_error(end["message"])
        if job.has_checkpoint:
            kept = f"what was learned of {end['row']:,} rows before it is kept in {job.folder}"
            err.print(_escaped(kept))


def _tell_numbers(job: Run, end: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("")
    baselines = end["baselines"]
    for name in (job.config["learner"]["name"], *(name.replace("_", "-") for name in baselines)):
        table.add_column(name, justify="right")
    for name, value in end["total"].items():
        if value is not None:
            cells = [value, *(each.get(name) for each in baselines.values())]
            table.add_row(name, *("" if cell is None else f"{cell:,.4f}" for cell in cells))
    out.print(table)
    clock = end["clock"]
    speed = f", {clock['rows_per_second']:,.0f} a second" if clock["rows_per_second"] else ""
    out.print(
        f"{end['row']:,} rows, {clock['seconds']:.1f} s of predicting and learning{speed}, "
        f"{clock['memory_mb']:,.0f} MB at most"
    )
    for name, said in (("skipped", "bad rows left out"), ("infinite", "infinities as missing")):
        if end[name]:
            out.print(f"{end[name]:,} {said}")
    for why in end["skipped_why"]:
        out.print(f"  {_escaped(why)}")
    if end["data_changed"]:
        out.print(_escaped(end["data_changed"]))
    watched, half_life = job.evaluation.forgetting, getattr(job.learner, "half_life_", None)
    if half_life is not None:
        alarms = f"{watched.n_alarms} drift alarm{'' if watched.n_alarms == 1 else 's'}"
        out.print(
            f"{alarms if watched.drifts else 'no drift alarm'}, half-life at the end: "
            f"{_half_life(half_life)}"
        )


def _escaped(value: object, *, lines: bool = False) -> str:
    """Text of a user for the terminal: no escape sequences, no markup, of bounded length."""
    from rich.markup import escape

    return escape(printable(value, _MOST_SHOWN, lines=lines))


# ---- what a run left ----------------------------------------------------------------------


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    page: Annotated[
        Path | None, typer.Option("--out", "-o", help="File.", show_default="RUN/report.html")
    ] = None,
) -> None:
    """Make the report of a run again from its files.

    Example: kalstream report runs/elec2-1
    """
    from kalstream.report import write_report

    _refuse_to_replace(page, folder)
    _tell_file("report", write_report(folder, page))


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN RUN ...", help="Folders of runs.")],
    page: Annotated[Path, typer.Option("--out", "-o", help="File.")] = Path("comparison.html"),
) -> None:
    """Make one page of several runs on the same stream, with paired tests of their differences.

    Example: kalstream compare runs/elec2-1 runs/elec2-2
    """
    from kalstream.report import compare_runs, write_comparison

    _refuse_to_replace(page, *folders)
    tests = compare_runs(folders)
    for test in tests:
        out.print(
            f"{_escaped(test['a'])} less {_escaped(test['b'])}: {test['metric']} "
            f"{test['difference']:+.5f} ± {test['standard_error']:.5f}, p = {test['p_value']:.3g} "
            f"({test['n']} windows)"
        )
    _tell_file("comparison", write_comparison(folders, page, tests))


def _refuse_to_replace(file: Path | None, *sources: str | Path) -> None:
    """Refuse to write over what is read: a file, or one of the files of a run."""
    for source in map(Path, sources):
        files = [source, *source.glob("*.json*"), *source.glob("checkpoint/*")]
        if (
            file is not None
            and file.exists()
            and any(map(file.samefile, filter(Path.is_file, files)))
        ):
            raise InvalidInput(f"--out {file} is read by this command; name another file")


def _tell_file(what: str, path: Path) -> None:
    """Name a file that was written, but not in the middle of what went to standard output."""
    (out if is_replaced(path) else err).print(f"{what}: {_escaped(path)}")


@app.command()
def predict(
    checkpoint: Annotated[
        Path, typer.Argument(help="A run, its checkpoint folder, or a file that save wrote.")
    ],
    data: Annotated[str, typer.Argument(help="Rows to predict: as for `kalstream run`.")],
    file: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file.", show_default="standard output")
    ] = None,
) -> None:
    """Write class probabilities (or mean and std) and uncertainty of every row, as CSV.

    The uncertainty of a row is 0 where nothing is left to learn, and 1 before anything is learned.

    Example: kalstream predict runs/data-1 new.csv --out predictions.csv
    """
    from kalstream.runs import predicted_rows

    _refuse_to_replace(file, checkpoint, data)
    rows = predicted_rows(checkpoint, data)
    if file is None:
        if sys.stdout.isatty():  # elsewhere labels stay as they are
            rows = ([printable(cell) for cell in row] for row in rows)
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
        return
    with replacing(file) as handle:
        csv.writer(codecs.getwriter("utf-8")(handle), lineterminator="\n").writerows(rows)


@app.command()
def describe(
    checkpoint: Annotated[
        Path, typer.Argument(help="A run, its checkpoint folder, or a file that save wrote.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say what a model is and how healthy.

    A healthy filter has variances above 0 and no asymmetry. Calibration is the factor of the
    logits; nis the squared error over what was expected (above 1 for labels, where calibration
    makes up for it); effective memory the number of rows that it knows as much as.

    Example: kalstream describe runs/elec2-1
    """
    from kalstream.runs import described

    found = described(checkpoint)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        if isinstance(value, dict):
            out.print(f"[bold]{_escaped(name.replace('_', ' '))}[/bold]")
            for key, each in value.items():
                out.print(f"  {_escaped(key.replace('_', ' ')):24} {_escaped(_shown(each))}")
        else:
            out.print(f"{_escaped(name.replace('_', ' ')):26} {_escaped(_shown(value))}")


def _print_page(text: str) -> None:
    """Print what may be long, line by line."""
    for line in text.splitlines():
        out.print(_escaped(line))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(printable(each, 40) for each in value[:20]) + (
            ", ..." if len(value) > 20 else ""
        )
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


_PAPER: Final = """Run an experiment of the paper, or what is missing of it.

It writes NAME.json, a table NAME.md and a figure NAME.png. What is there is kept: given again after
a stop, the same command goes on. `kalstream paper list` names the experiments.

Examples

  kalstream paper figure1                                           the time series, in a second

  kalstream paper table1 --quick                                    small, on made-up pictures

  kalstream paper table1 --data cifar-100-python/ --device cuda     CIFAR-100, as in the paper

  kalstream paper table1 --check --out docs/paper                   the table again, from its file
"""


@app.command(help=_PAPER)
def paper(  # noqa: D103
    name: Annotated[str, typer.Argument(help="list, or an experiment.", metavar="NAME")],
    data: Annotated[
        Path | None, typer.Option(help="CIFAR-100 (cifar-100-python, or its archive), or CLOC.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="torchvision's MobileNetV2 for figure3, ResNet-50 for cloc.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder of results.")] = Path("paper"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rows, a thin network, one seed.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Make the table again from the result file.")
    ] = False,
    only: Annotated[
        str, typer.Option(help="Run only cells whose name, 'group: method, stream', has this.")
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")] = "cpu",
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once, on the same device.")] = 1,
) -> None:
    from kalstream import paper as experiments

    if name == "list":
        table = Table("experiment", "what", box=None)
        for each in experiments.names():
            table.add_row(each, experiments.Plan.read(each).title)
        out.print(table)
        return
    if check:
        _print_page(experiments.shown(name, folder))
        return

    def say(line: str) -> None:
        out.print(_escaped(line))

    made = experiments.reproduce(
        name,
        folder,
        data=data,
        weights=weights,
        quick=quick,
        device=device,
        only=only,
        jobs=jobs,
        say=say,
    )
    _print_page((folder / f"{name}.md").read_text(encoding="utf-8"))
    out.print(_escaped(f"written: {', '.join(map(str, made))}"))


@app.command()
def data() -> None:
    """List the streams that kalstream knows by name.

    Example: kalstream run weather
    """
    from kalstream.streams.packaged import KNOWN

    table = Table(box=None, pad_edge=False)
    for name in ("name", "rows", "classes", "a row is", "what", "where"):
        table.add_column(name, justify="right" if name in ("rows", "classes") else "left")
    for known in KNOWN.values():
        size, classes = (f"{n:,}" if n else "" for n in (known.rows, known.classes))
        about = known.description, known.layout
        table.add_row(known.name, size, classes, known.features, *map(_escaped, about))
    out.print(table)


# ---- embed --------------------------------------------------------------------------------

_EMBED = """
Turn images into an embedding file, which `kalstream run` reads.

Every image goes through the network once. A run that was stopped, or killed, goes on where it
was when the same command is given again.

[bold]Examples[/bold]

  kalstream embed photos/ --weights mobilenet_v2-b0353104.pth       a subfolder of each class

  kalstream embed cifar-100-python/ --layout cifar100 --size 160 --weights mobilenet_v2.pth

  kalstream embed photos/ --backbone timm:vit_small_patch14_dinov2  fetched by timm

  kalstream run photos.safetensors                                  learn from what was written
"""


@app.command(help=_EMBED)
def embed(  # noqa: D103
    source: Annotated[Path, typer.Argument(help="Folder of the images.")],
    out_path: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write.", show_default="SOURCE.safetensors"),
    ] = None,
    layout: Annotated[
        Literal["folder", "cifar100", "clear", "cloc"],
        typer.Option(help="What the folder is: a subfolder of each class, or a data set's own."),
    ] = "folder",
    split: Annotated[str, typer.Option(help="Of a data set.")] = "train",
    backbone: Annotated[
        str, typer.Option(help="mobilenet_v2, resnet18, resnet50, or timm:NAME.")
    ] = "mobilenet_v2",
    weights: Annotated[
        Path | None,
        typer.Option(help="State dict of the network (.pth, .safetensors); timm has its own."),
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Images become SIZE by SIZE.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once.")] = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "cpu",
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="In the file.")] = "float16",
    overwrite: Annotated[bool, typer.Option(help="Start over, and replace what is there.")] = False,
) -> None:
    from rich.progress import Progress

    from kalstream.deep.embed import embed as write
    from kalstream.deep.embed import named_backbone, open_images

    path = out_path or Path(f"{source.resolve().name}.safetensors")
    images, resize = open_images(source, layout, split, size)
    network = named_backbone(backbone, weights)
    with Progress(console=out) as bar:
        row = bar.add_task(_escaped(path.name), total=images.n_rows)
        write(
            images,
            network,
            path,
            batch_size=batch_size,
            size=resize,
            device=device,
            dtype=dtype,
            progress=lambda done, n: bar.update(row, completed=done, total=n),
            resume=not overwrite,
        )
    order = "" if layout in ("clear", "cloc") else " --order shuffled"  # a folder is class by class
    out.print(f"{_escaped(path)}; learn from it with: kalstream run {_escaped(path)}{order}")


if __name__ == "__main__":
    main()
