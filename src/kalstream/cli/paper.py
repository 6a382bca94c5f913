"""`kalstream paper`: the experiments of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from kalstream.cli.console import app, escaped, out

_HELP: Final = """Run an experiment of the paper, or the part of it that is missing.

It writes NAME.json, a table NAME.md and a figure NAME.png. Results that exist are kept. After a
stop, repeat the command to resume. `kalstream paper list` lists the experiments.

Examples

  kalstream paper figure1                                           the time series, in a second

  kalstream paper table1 --quick                                    small, on artificial images

  kalstream paper table1 --data cifar-100-python/ --device cuda     CIFAR-100, as in the paper

  kalstream paper table1 --check --out docs/paper                   the table, from its result file
"""


@app.command(help=_HELP)
def paper(  # noqa: D103
    name: Annotated[str, typer.Argument(help="An experiment, or list.", metavar="NAME")],
    data: Annotated[
        Path | None,
        typer.Option(help="CIFAR-100 (cifar-100-python, or its archive), CLOC, or embeddings."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="torchvision's MobileNetV2 for figure3, ResNet-50 for cloc.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder of results.")] = Path("paper"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rows, a small network, one seed.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Make the table from the result file.")
    ] = False,
    only: Annotated[
        str, typer.Option(help="Run only cells whose name, 'group: method, stream', contains this.")
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")] = "cpu",
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes on the device.")] = 1,
) -> None:
    from kalstream import paper as experiments

    if name == "list":
        table = Table("experiment", "title", box=None)
        for each in experiments.names():
            table.add_row(each, experiments.Plan.read(each).title)
        out.print(table)
        return
    if check:
        _print_page(experiments.shown(name, folder))
        return

    def say(line: str) -> None:
        out.print(escaped(line))

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
    out.print(escaped(f"written: {', '.join(map(str, made))}"))


def _print_page(text: str) -> None:
    """Print a long text line by line."""
    for line in text.splitlines():
        out.print(escaped(line))
