"""Runs: a stream, a learner and a protocol, and the folder of files that they result in.

Names are loaded when they are first used, so that the command line can read the options without
the libraries that a run needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kalstream.runs.checkpoint import RunError, open_checkpoint
    from kalstream.runs.inspect import described, predicted_rows
    from kalstream.runs.model import RunModel, open_run
    from kalstream.runs.options import Options
    from kalstream.runs.resume import why_done
    from kalstream.runs.run import Run

__all__ = [
    "Options",
    "Run",
    "RunError",
    "RunModel",
    "described",
    "open_checkpoint",
    "open_run",
    "predicted_rows",
    "why_done",
]

# public name -> the module that defines it
_HOME = {
    "Options": "options",
    "Run": "run",
    "RunError": "checkpoint",
    "RunModel": "model",
    "described": "inspect",
    "open_checkpoint": "checkpoint",
    "open_run": "model",
    "predicted_rows": "inspect",
    "why_done": "resume",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
