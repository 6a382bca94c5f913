"""The command line: parse, call, print. One module for each group of commands."""

from kalstream.cli import (  # noqa: F401  (they register their commands)
    compiling,
    embed,
    paper,
    results,
    run,
    send,
    serve,
    sweep,
)
from kalstream.cli.console import app, main

__all__ = ["app", "main"]
