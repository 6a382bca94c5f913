"""Commands that use the files of runs: report, compare, predict, describe; and `data`."""

from __future__ import annotations

import codecs
import csv
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from kalstream._files import replacing
from kalstream._printable import printable
from kalstream.cli.console import app, err, escaped, out, print_file, printing
from kalstream.errors import InvalidInput
from kalstream.runs.files import CHECKPOINT

_BadRows = Literal["stop", "skip"]


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    page: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write.", show_default="RUN/report.html"),
    ] = None,
) -> None:
    """Make the report of a run from its files.

    Example: kalstream report runs/elec2-1
    """
    from kalstream.report import write_report

    _refuse_to_replace(page, folder)
    print_file("report", write_report(folder, page))


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN RUN ...", help="Folders of runs.")],
    page: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path(
        "comparison.html"
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the paired tests as JSON.")
    ] = False,
) -> None:
    """Compare runs on the same stream on one page, with paired tests of their differences.

    Example: kalstream compare runs/elec2-1 runs/elec2-2
    """
    from kalstream.report import compare_runs, write_comparison

    _refuse_to_replace(page, *folders)
    tests = compare_runs(folders)
    with printing(to_standard_error=as_json):
        for test in tests:
            out.print(
                f"{escaped(test['a'])} minus {escaped(test['b'])}: {test['metric']} "
                f"{test['difference']:+.5f} ± {test['margin']:.5f} (95% interval), "
                f"p = {test['p_value']:.3g} ({test['n']} windows)"
            )
        print_file("comparison", write_comparison(folders, page, tests))
    if as_json:
        print(json.dumps(tests, indent=1))


def _refuse_to_replace(file: Path | None, *sources: str | Path) -> None:
    """Refuse to replace what the command reads: a file, or one of the files of a run."""
    for source in map(Path, sources):
        files = [source, *source.glob("*.json*"), *source.glob(f"{CHECKPOINT}/*")]
        if (
            file is not None
            and file.exists()
            and any(map(file.samefile, filter(Path.is_file, files)))
        ):
            raise InvalidInput(f"--out {file} is read by this command; give another file")


@app.command()
def predict(
    checkpoint: Annotated[
        Path, typer.Argument(help="A run, its checkpoint folder, or a file that save wrote.")
    ],
    data: Annotated[str, typer.Argument(help="Rows to predict: as for `kalstream run`.")],
    file: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="CSV file to write.", show_default="standard output"),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option("--id", help="Column of ids to copy; that of the run if it had --id."),
    ] = None,
    bad_rows: Annotated[
        _BadRows, typer.Option(help="Stop at a row that cannot be read, or leave it out.")
    ] = "stop",
) -> None:
    """Write class probabilities (or mean and std) and uncertainty of every row as CSV.

    The uncertainty of a row is 1 before anything is learned, and 0 if nothing is left to learn.

    Example: kalstream predict runs/data-1 new.csv --out predictions.csv
    """
    from kalstream.runs import predicted_rows

    _refuse_to_replace(file, checkpoint, data)
    left_out: list[int] = []
    rows = predicted_rows(checkpoint, data, id_column, left_out.append, bad_rows)
    if file is None:
        if sys.stdout.isatty():  # files and pipes get the labels unchanged
            rows = ([printable(cell) for cell in row] for row in rows)
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    else:
        with replacing(file) as handle:
            csv.writer(codecs.getwriter("utf-8")(handle), lineterminator="\n").writerows(rows)
    if left_out:
        err.print(f"{sum(left_out):,} rows that only bring labels of other rows were left out")


@app.command()
def describe(
    checkpoint: Annotated[
        Path, typer.Argument(help="A run, its checkpoint folder, or a file that save wrote.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe a model: its size, what it has learned, and the health of its filter.

    A healthy filter has variances above 0 and no asymmetry. "calibration" multiplies the logits.
    "rows seen" are rows that were learned, "rows asked" those that were predicted before their late
    labels came; rows that only bring a label are not counted.
    "nis" is the squared error divided by its expectation; for labels it is above 1, which the
    calibration corrects. "effective memory" is the number of rows that the filter remembers.

    Example: kalstream describe runs/elec2-1
    """
    from kalstream.runs import described

    about = described(checkpoint)
    if as_json:
        print(json.dumps(about, indent=1))
        return
    for name, value in about.items():
        if isinstance(value, dict):
            out.print(f"[bold]{escaped(name.replace('_', ' '))}[/bold]")
            for key, each in value.items():
                typed = name in ("table", "parameters")  # names of columns and of arguments
                shown = key if typed else key.replace("_", " ")
                out.print(f"  {escaped(shown):24} {escaped(_shown(each))}")
        else:
            out.print(f"{escaped(name.replace('_', ' ')):26} {escaped(_shown(value))}")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(printable(each, 40) for each in value[:20]) + (
            ", ..." if len(value) > 20 else ""
        )
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@app.command()
def data() -> None:
    """List the data sets that kalstream knows by name.

    Example: kalstream run weather
    """
    from kalstream.streams.packaged import KNOWN

    table = Table(box=None, pad_edge=False)
    for name in ("name", "rows", "classes", "a row is", "content", "files"):
        table.add_column(name, justify="right" if name in ("rows", "classes") else "left")
    for known in KNOWN.values():
        size, classes = (f"{n:,}" if n else "" for n in (known.rows, known.classes))
        about = known.description, known.layout
        table.add_row(known.name, size, classes, known.features, *map(escaped, about))
    out.print(table)
