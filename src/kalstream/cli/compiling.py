"""`kalstream compile`: compile now what would be compiled on first use."""

from __future__ import annotations

import time
from typing import Final

from kalstream.cli.console import app, escaped, out

_HELP: Final = """
Compile the functions of the estimators now, and keep them on disk.

Otherwise they are compiled on first use. Run it once when you build the image of a container, so
that the first row of a service does not wait.

[bold]Examples[/bold]

  kalstream compile

  NUMBA_CACHE_DIR=/opt/kalstream kalstream compile    keep them in this folder; set it later, too
"""


@app.command("compile", help=_HELP)
def compile_(  # noqa: D103
) -> None:
    from kalstream.core.jit import cache_folder
    from kalstream.estimators.warming import warm_up

    started = time.perf_counter()
    warm_up()
    folder = cache_folder()
    where = (
        "nowhere: no folder can be written to; set NUMBA_CACHE_DIR" if folder is None else folder
    )
    out.print(f"compiled in {time.perf_counter() - started:.0f} s")
    out.print(f"kept in {escaped(str(where))}")
