"""The prequential loop, metrics (windowed and cumulative), selection by code length, comparison."""

from kalstream.evaluate.compare import Paired, paired_test
from kalstream.evaluate.prequential import (
    Evaluation,
    Record,
    Result,
    iter_prequential,
    prequential,
)
from kalstream.evaluate.select import Selection, select

__all__ = [
    "Evaluation",
    "Paired",
    "Record",
    "Result",
    "Selection",
    "iter_prequential",
    "paired_test",
    "prequential",
    "select",
]
