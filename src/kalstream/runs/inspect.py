"""Predictions with the model of a run, and its description."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from kalstream._arrays import Array
from kalstream._json import from_number
from kalstream._printable import printable
from kalstream.errors import InvalidInput, InvalidOption
from kalstream.evaluate.adapters import known, takes_keys
from kalstream.features.encoding import is_of_dates
from kalstream.runs.checkpoint import open_checkpoint
from kalstream.streams import Batch, Columns, Stream, TableStream, format_of

_ROWS = 1000  # predicted at a time


def predicted_rows(
    checkpoint: str | Path,
    source: str,
    id: str | None = None,
    left_out: Callable[[int], None] = lambda n: None,
    bad_rows: str = "stop",
) -> Iterator[list[Any]]:
    r"""A header, then number, prediction, probabilities and uncertainty of every row.

    For regression, mean and std replace prediction and probabilities. Where rows have ids, in the
    column ``id`` or in that of the run, they come second, and rows that only bring the target of an
    earlier one are left out; ``left_out`` is called with their number. Models by key give no
    uncertainty. Rows that cannot be read end with an error or, with ``bad_rows="skip"``, are left
    out: they have no number. The model does not change.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     data = Path(folder) / "data.csv"
    ...     _ = data.write_text("size,y\n" + "1,small\n9,large\n" * 50)
    ...     _ = Run(f"{folder}/run", Options(source=str(data), target="y", features="raw")).go()
    ...     header, first, *others = predicted_rows(f"{folder}/run", str(data))
    >>> header, first[0], str(first[1]), len(others)
    (['row', 'prediction', 'p_large', 'p_small', 'uncertainty'], 0, 'small', 99)
    """
    model, columns, _ = open_checkpoint(checkpoint)
    stream = _rows_of(source, model, columns, id, bad_rows)
    has_dates = columns is not None and columns.time is not None and is_of_dates(columns.time.kind)
    classes = getattr(model, "classes_", None)
    batches = stream.batches()
    first = next(batches, None)
    named = ["id"] if first is not None and first.ids is not None else []
    about = ["mean", "std"]
    if classes is not None:
        about = ["prediction", *(f"p_{label}" for label in classes)]
    yield ["row", *named, *about, *([] if takes_keys(model) else ["uncertainty"])]
    for batch in chain([] if first is None else [first], batches):
        for start in range(0, len(batch), _ROWS):
            rows, _ = batch[start : start + _ROWS].without_infinities()
            kept = _to_predict(rows)
            if len(kept) < len(rows):
                left_out(len(rows) - len(kept))
            if kept:
                numbers = [rows.start + i for i in kept]
                yield from _predicted(model, rows.take(kept), numbers, classes, has_dates)


def _to_predict(batch: Batch) -> list[int]:
    """Rows of a batch that do not only bring the target of an earlier row."""
    if batch.ids is None or batch.targets is None:
        return list(range(len(batch)))
    brings = np.isnan(batch.rows).all(axis=1) & known(batch.targets)
    brings &= np.array([each is not None for each in batch.ids.tolist()], bool)
    return np.flatnonzero(~brings).tolist()


def _predicted(
    model: Any, batch: Batch, numbers: list[int], classes: Any, has_dates: bool
) -> Iterator[list[Any]]:
    beside: dict[str, Any] = {}
    if batch.times is not None:  # dates, so that errors show dates
        beside["time"] = _as_dates(batch.times) if has_dates else batch.times
    if batch.keys is not None:
        beside["key"] = batch.keys
    uncertainty = [] if batch.keys is not None else [model.uncertainty(batch.rows, **beside)]
    if classes is None:
        moments = zip(*model.predict(batch.rows, return_std=True, **beside), strict=True)
        predictions = [[float(mean), float(std)] for mean, std in moments]
    else:
        p = model.predict_proba(batch.rows, **beside)
        predictions = [[classes[row.argmax()], *row.tolist()] for row in p]
    for i, prediction in enumerate(predictions):
        named = [] if batch.ids is None else [batch.ids[i]]
        yield [numbers[i], *named, *prediction, *(float(each[i]) for each in uncertainty)]


def _as_dates(seconds: Array) -> Array:
    return np.round(seconds * 1e6).astype("datetime64[us]")


def _rows_of(
    source: str, model: Any, columns: Columns | None, id: str | None, bad_rows: str
) -> Stream:
    """The rows of a source as the model needs them."""
    if columns is not None:
        frozen = columns.frozen()
        encoder = frozen if id is None else frozen.with_late(None, id)
        return TableStream(source, columns=encoder, id=id, bad_rows=bad_rows)
    if takes_keys(model):
        raise InvalidInput(
            f"rows of {printable(source, 300)} have no keys, which the model needs; give the "
            "folder of a run with --key, or load the model in Python"
        )
    if id is not None:
        raise InvalidInput(
            f"id={id!r} names a column, and the model has no names of columns; leave it out"
        )
    if bad_rows != "stop":
        raise InvalidOption(
            f"bad_rows={bad_rows!r} applies to tables, and the model has learned plain numbers; "
            "leave it out"
        )
    open_rows = format_of(source).open_rows
    if open_rows is not None:
        return open_rows(source)
    raise InvalidInput(
        f"rows of {printable(source, 300)} cannot be predicted: the model has no names of columns, "
        f"and the format {format_of(source).name!r} needs them; give the folder of a run on "
        f"a table, or load the model in Python and predict rows of {model.n_features_in_} numbers"
    )


def described(checkpoint: str | Path) -> dict[str, Any]:
    """Properties of a model as JSON; `Health` and `Drift` explain two of its entries.

    ``rows_seen`` are the rows that were learned. Where labels come late, ``rows_asked`` are those
    that were predicted, and ``rows_waiting`` those of them that wait; a row that only brings the
    label of another one is not counted. Of a model by key, what follows the keys is of the model of
    all keys.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     end = Run(folder, Options(source="weather", limit=300, features="raw")).go()
    ...     about = described(folder)
    >>> about["model"], about["rows_seen"], about["columns"]
    ('KalmanClassifier', 300, 8)
    """
    learner, columns, progress = open_checkpoint(checkpoint)
    model = learner.base_ if takes_keys(learner) else learner
    late = ((progress or {}).get("evaluation") or {}).get("late") or {}
    again = late.get("again", 0)  # rows that came again without a label: predicted, not learned
    about: dict[str, Any] = {
        "model": type(learner).__name__,
        "rows_seen": model.n_seen_ - again,
        **_late_rows(model.waiting_, again),
        "columns": model.n_features_in_,
        "state_bytes": learner.nbytes_,
    }
    if takes_keys(learner):
        about |= {"keys": learner.n_keys_, "spread_of_keys": learner.spread_}
    if hasattr(model, "classes_"):
        about["classes"] = model.classes_.tolist()
    about["half_life"] = _plain(model.half_life_)
    weights = sorted(model.half_life_weights_.items())
    about["half_life_weights"] = {str(_plain(h)): w for h, w in weights}
    about["calibration"] = model.calibration_
    with suppress(InvalidInput):  # a fixed gamma has no drift alarm
        about["drift"] = {k: _plain(v) for k, v in asdict(model.drift()).items()}
    about["health"] = {k: _plain(v) for k, v in asdict(model.health_).items()}
    if columns is not None:
        about["table"] = {column.name: column.kind for column in columns.features}
    if progress is not None:
        stream = progress["stream"]
        about["learned_from"] = {k: stream.get(k) for k in ("name", "source", "fingerprint")}
    params = model.get_params(deep=False).items()
    return {**about, "parameters": {name: str(value) for name, value in params}}


def _late_rows(counts: Any, again: int) -> dict[str, int]:
    """How many rows were asked for, and how many of them wait; empty if none were."""
    if not counts.asked:
        return {}
    return {"rows_asked": counts.asked - again, "rows_waiting": counts.waiting}


def _plain(value: Any) -> Any:
    return from_number(value) if isinstance(value, float) else value
