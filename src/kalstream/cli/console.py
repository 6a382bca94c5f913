"""The application, its two consoles, and how errors and texts of users are printed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from kalstream import __version__
from kalstream._files import is_replaced
from kalstream._printable import printable
from kalstream.errors import InvalidOption, KalstreamError
from kalstream.runs.options import as_typed

_LONGEST: Final = 4000  # characters of a message

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
    """Run the command line; an error is one sentence on standard error."""
    if hasattr(sys.stdout, "reconfigure"):  # escape characters that the encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except BrokenPipeError:  # `kalstream data | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (KalstreamError, OSError) as error:
        print_error(as_typed(str(error)))
        sys.exit(2 if isinstance(error, InvalidOption) else 1)


@contextmanager
def printing(*, quiet: bool = False, to_standard_error: bool = False) -> Iterator[None]:
    """Print nothing but errors and warnings; or all to standard error, where output is data."""
    out.quiet, out.stderr = quiet, to_standard_error
    try:
        yield
    finally:
        out.quiet = out.stderr = False


@contextmanager
def until_signal(receive: Callable[[], None]) -> Iterator[Callable[[], int]]:
    """The number of the signal that asked for a stop, or 0; a second one ends the program.

    ``receive`` is called at the first signal.
    """
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: Any) -> None:
        received.append(number)
        restore()
        receive()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, handle)
    try:
        yield lambda: received[0] if received else 0
    finally:
        restore()


def print_error(message: str) -> None:
    """Print an error to standard error."""
    err.print(f"[red]error[/red]: {escaped(message, lines=True)}")


def print_file(what: str, path: Path) -> None:
    """Print the path of a file that was written; to standard error if it is standard output."""
    (out if is_replaced(path) else err).print(f"{what}: {escaped(path)}")


def escaped(value: object, *, lines: bool = False) -> str:
    """Text of a user for the terminal: no escape sequences, no markup, of limited length."""
    return escape(printable(value, _LONGEST, lines=lines))


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(__version__)
        raise typer.Exit


@app.callback()
def _kalstream(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
