"""What can be done with the model that a run left: predict with it, and look at it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kalstream.errors import InvalidInput
from kalstream.runs.checkpoint import open_checkpoint
from kalstream.streams import ArrayStream, Batch, Stream, TableStream
from kalstream.streams.embeddings import EMBEDDINGS, read_features

_ROWS = 1000  # predicted at a time


def predicted_rows(checkpoint: str | Path, source: str) -> Iterator[list[Any]]:
    """A header, then for every row of a table its number, prediction, probabilities, uncertainty.

    Of regression: mean and std in place of prediction and probabilities. The model is not changed.
    """
    model, columns, _ = open_checkpoint(checkpoint)
    stream = _rows_of(source, model, columns)
    classes = getattr(model, "classes_", None)
    if classes is None:
        yield ["row", "mean", "std", "uncertainty"]
    else:
        yield ["row", "prediction", *(f"p_{label}" for label in classes), "uncertainty"]
    for batch in stream.batches():
        for start in range(0, len(batch), _ROWS):
            rows, _ = batch[start : start + _ROWS].without_infinities()
            yield from _predicted(model, rows, classes)


def _predicted(model: Any, batch: Batch, classes: Any) -> Iterator[list[Any]]:
    when = {} if batch.times is None else {"time": batch.times}
    uncertainty = model.uncertainty(batch.rows, **when).tolist()
    if classes is None:
        answers = zip(*model.predict(batch.rows, return_std=True, **when), strict=True)
        said = [[float(mean), float(std)] for mean, std in answers]
    else:
        p = model.predict_proba(batch.rows, **when)
        said = [[classes[row.argmax()], *row.tolist()] for row in p]
    for i, each in enumerate(said):
        yield [batch.start + i, *each, uncertainty[i]]


def _rows_of(source: str, model: Any, columns: Any) -> Stream:
    """The rows of a table as the model takes them."""
    if columns is not None:
        return TableStream(source, columns=columns.frozen())
    if source.lower().endswith(EMBEDDINGS):
        features = read_features(source)
        return ArrayStream(features, np.full(len(features), None))
    raise InvalidInput(
        "this file holds a model alone, and not what its columns were; give the run's folder, "
        f"or load it in Python and call predict_proba on rows of {model.n_features_in_} numbers"
    )


def described(checkpoint: str | Path) -> dict[str, Any]:
    """What a model is and how healthy, as JSON; see `Health` and `Drift` for what is in them."""
    model, columns, progress = open_checkpoint(checkpoint)
    found: dict[str, Any] = {
        "model": type(model).__name__,
        "rows_seen": model.n_seen_,
        "columns": model.n_features_in_,
        "state_bytes": model.nbytes_,
    }
    if hasattr(model, "classes_"):
        found["classes"] = model.classes_.tolist()
    found["half_life"] = _plain(model.half_life_)
    weights = sorted(model.half_life_weights_.items())
    found["half_life_weights"] = {str(_plain(h)): w for h, w in weights}
    found["calibration"] = model.calibration_
    if not isinstance(model.forgetting, float):
        found["drift"] = {k: _plain(v) for k, v in asdict(model.drift()).items()}
    found["health"] = {k: _plain(v) for k, v in asdict(model.health_).items()}
    if columns is not None:
        found["table"] = {column.name: column.kind for column in columns.features}
    if progress is not None:
        about = progress["stream"]
        found["learned_from"] = {k: about.get(k) for k in ("name", "source", "fingerprint")}
    params = model.get_params(deep=False).items()
    return {**found, "parameters": {name: str(value) for name, value in params}}


def _plain(value: Any) -> Any:
    """A value as JSON takes it: "inf" for an infinite half-life, None for NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0.0 else None
    return value
