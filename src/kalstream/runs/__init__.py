"""Runs: a stream, a learner and a protocol, made into a folder of result files."""

from kalstream.runs.checkpoint import open_checkpoint
from kalstream.runs.inspect import described, predicted_rows
from kalstream.runs.options import Options
from kalstream.runs.run import Run, RunError, why_done

__all__ = [
    "Options",
    "Run",
    "RunError",
    "described",
    "open_checkpoint",
    "predicted_rows",
    "why_done",
]
