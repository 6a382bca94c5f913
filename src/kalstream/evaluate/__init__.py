"""Prequential evaluation: predict, then learn; metrics, selection and comparison.

docs/evaluate.md is its guide.
"""

from kalstream.evaluate._retention import Retained, iter_retention, retention
from kalstream.evaluate.adapters import Adapter, Answer, adapt
from kalstream.evaluate.compare import Paired, paired_test
from kalstream.evaluate.metrics import METRICS, Errors, Metric, Scored, Show, register
from kalstream.evaluate.prequential import (
    Evaluation,
    Record,
    Result,
    iter_prequential,
    prequential,
)
from kalstream.evaluate.select import Selection, select

__all__ = [
    "METRICS",
    "Adapter",
    "Answer",
    "Errors",
    "Evaluation",
    "Metric",
    "Paired",
    "Record",
    "Result",
    "Retained",
    "Scored",
    "Selection",
    "Show",
    "adapt",
    "iter_prequential",
    "iter_retention",
    "paired_test",
    "prequential",
    "register",
    "retention",
    "select",
]
