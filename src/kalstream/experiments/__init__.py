"""Runs: a stream, a learner and a protocol, made into a folder of result files."""

from kalstream.experiments.checkpoint import open_checkpoint
from kalstream.experiments.look import described, predicted_rows
from kalstream.experiments.options import Options
from kalstream.experiments.run import Run, RunError, why_done

__all__ = [
    "Options",
    "Run",
    "RunError",
    "described",
    "open_checkpoint",
    "predicted_rows",
    "why_done",
]
