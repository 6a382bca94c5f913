"""Calls of every kind, so that what they compile is on disk before it is needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from kalstream.core.chunk import block_rows
from kalstream.estimators.classifier import KalmanClassifier
from kalstream.estimators.regressor import KalmanRegressor

_COLUMNS = 3


def warm_up() -> None:
    """Learn and predict random rows: alone, a few at once and many, in time and late.

    Examples
    --------
    >>> warm_up()
    """
    many = block_rows(_COLUMNS + 1) + 20
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((many, _COLUMNS))
    rows[5, 0] = np.nan
    kinds: dict[Any, Any] = {
        KalmanClassifier: rng.integers(0, 3, many),
        KalmanRegressor: rows[:, 1].copy(),
    }
    for kind, targets in kinds.items():
        for settings in ({}, {"features": "raw"}, {"forgetting": 0.999}):
            _pass(kind(n_components=8, random_state=0, **settings), rows, targets)


def _pass(model: Any, rows: Any, targets: Any) -> None:
    """Every kind of call."""
    ids = np.arange(len(rows))
    for size in (len(rows), 10, 1, 1, 1):
        model.predict_then_learn(rows[:size], targets[:size])
        model.predict(rows[:size])
        model.partial_fit(rows[:size], targets[:size])
    for size in (1, 10, len(rows)):
        model.ask(rows[:size], ids=ids[:size])
        model.tell(ids[:size], targets[:size])
    model.ask_and_tell(rows, ids[:50], targets[:50], np.arange(1, 51), ids=ids)
    model.drift() if model.forgetting == "mixture" else None
