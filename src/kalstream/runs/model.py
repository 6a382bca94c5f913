"""The model of a run together with the encoder of its columns, for use in Python."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeVar

import numpy as np

from kalstream._arrays import Array
from kalstream._files import sha256_of
from kalstream._printable import quoted
from kalstream.errors import InvalidInput
from kalstream.runs.checkpoint import open_checkpoint
from kalstream.runs.files import FORMAT, METRICS, PREDICTIONS, write_progress
from kalstream.streams import CLASSIFICATION, REGRESSION, Batch, Columns, as_table

Pair = tuple[Any, Columns | None]  # a model, and the encoder of its columns
R = TypeVar("R")


def open_run(path: str | Path) -> RunModel:
    r"""Open the model of a run, with the encoder of its columns.

    Parameters
    ----------
    path : path
        A run, its checkpoint folder, a folder that `RunModel.save` wrote, or a file that ``save``
        of an estimator wrote. The run may be under way.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     data = Path(folder) / "data.csv"
    ...     _ = data.write_text("color,size,y\n" + "red,1,yes\nblue,2,no\n" * 50)
    ...     _ = Run(f"{folder}/run", Options(source=str(data), target="y", features="raw")).go()
    ...     run = open_run(f"{folder}/run")
    >>> run.predict([{"color": "red", "size": 1}, {"color": "blue", "size": 2}]).tolist()
    ['yes', 'no']
    >>> run.partial_fit([{"color": "green", "size": 3, "y": "perhaps"}]).classes_.tolist()
    ['no', 'perhaps', 'yes']
    """
    model, columns, progress = open_checkpoint(path)
    return RunModel(model, columns, None if progress is None else progress["stream"])


class RunModel:
    """A model and the encoder of its columns, which take rows as the data of the run have them.

    Rows are a list of dicts, a DataFrame or an Arrow table. Columns that the run did not use are
    ignored. Without an encoder (embeddings, a model file) rows are numbers (n, d).

    Parameters
    ----------
    model : KalmanClassifier, KalmanRegressor or KeyedClassifier
    encoder : Columns or None
    stream : dict, optional
        Description of the data that the model has learned.

    Other threads may predict while one thread learns: a prediction uses model and encoder before or
    after a call that learns, never one of each.

    Attributes
    ----------
    model : KalmanClassifier, KalmanRegressor or KeyedClassifier
        The current model. A call that learns replaces it.
    encoder : Columns or None
        Kinds of the columns and the categories learned so far.

    Examples
    --------
    `open_run` makes one of a run. A model of your own needs no encoder:

    >>> from kalstream import KalmanClassifier
    >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
    >>> RunModel(model, None).predict([[2.0]]).tolist()
    ['up']
    """

    def __init__(
        self, model: Any, encoder: Columns | None, stream: dict[str, Any] | None = None
    ) -> None:
        self._current: Pair = model, encoder  # replaced together, so that readers need no lock
        self._turn = Lock()  # of the thread that learns
        self._stream = stream

    def __repr__(self) -> str:
        model, encoder = self._current
        names = None if encoder is None else [each.name for each in encoder.features]
        return f"RunModel({type(model).__name__}, columns={names})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _turn=Lock())

    @property
    def model(self) -> Any:
        """The current model."""
        return self._current[0]

    @property
    def encoder(self) -> Columns | None:
        """The current encoder."""
        return self._current[1]

    def _publish(self, change: Callable[[Any, Columns | None], tuple[R, Columns | None]]) -> R:
        """Change a copy of the model and publish it with its encoder; an error leaves both."""
        with self._turn:
            model, encoder = self._current
            model = model.snapshot()
            result, encoder = change(model, encoder)
            self._current = model, encoder
        return result

    @property
    def classes_(self) -> Array:
        """The labels learned, (K,), in the order of the columns of `predict_proba`."""
        return self.model.classes_

    def encode(self, rows: Any) -> Array:
        """Rows as the model takes them, (n, d). A category that was not learned is zeros."""
        return self._to_predict(rows)[1].rows

    def predict(self, rows: Any, **options: Any) -> Any:
        """Labels (n,) or means (n,); ``options`` are those of the model, as ``return_std=True``."""
        model, batch = self._to_predict(rows)
        return model.predict(batch.rows, **_beside(batch), **options)

    def predict_proba(self, rows: Any) -> Array:
        """Probabilities of the labels, (n, K)."""
        model, batch = self._to_predict(rows)
        return model.predict_proba(batch.rows, **_beside(batch))

    def uncertainty(self, rows: Any) -> Array:
        """Uncertainty of each row, (n,): 1 before anything is learned, 0 if all is known."""
        model, batch = self._to_predict(rows)
        return _offered(model, "uncertainty")(batch.rows, **_beside(batch))

    def partial_fit(self, rows: Any, y: Any = None) -> Self:
        """Learn rows; new categories and labels are learned as in a run.

        The files of the run do not change; `save` writes new ones.

        Parameters
        ----------
        rows : n rows
        y : n targets, optional
            By default the column of the target in ``rows``.
        """

        def learn(model: Any, encoder: Columns | None) -> tuple[None, Columns | None]:
            batch, encoder = _encoded(rows, encoder, y, learns=True)
            model.partial_fit(batch.rows, batch.targets, **_beside(batch))
            return None, encoder

        self._publish(learn)
        return self

    def ask(self, rows: Any, ids: Any = None, *, keep: bool = True) -> Any:
        """Predict rows whose targets come later, and keep them until `tell` brings the targets.

        Parameters
        ----------
        rows : n rows
            New categories are learned, as in `partial_fit`; a target is not used.
        ids : n numbers, strings, bytes, dates, Decimals, UUIDs or tuples of these, optional
            Names of the rows, for `tell`. By default those in the column of ids of the run; without
            it, rows are numbered from 0, in the order in which they were asked for.
        keep : bool
            With False, the prediction is the same, but nothing is kept or learned.

        Returns
        -------
        predictions : (n, K), or two (n,)
            Probabilities, or means and standard deviations: see `KalmanClassifier.ask`.
        """

        def ask(model: Any, encoder: Columns | None) -> tuple[Any, Columns | None]:
            batch, encoder = _encoded(rows, encoder, asks=True)
            names = batch.ids if ids is None else ids
            return _offered(model, "ask")(batch.rows, names, **_beside(batch), keep=keep), encoder

        if keep:
            return self._publish(ask)
        return ask(*self._current)[0]

    def tell(self, ids: Any, y: Any, *, unknown: str = "raise") -> Self:
        """Learn the targets of rows that were asked for; see `KalmanClassifier.tell`.

        Rows that waited at the end of a run have the ids of the run, or the numbers of their rows.
        """

        def tell(model: Any, encoder: Columns | None) -> tuple[None, Columns | None]:
            targets = y
            if encoder is not None and encoder.target is not None:
                bad: dict[int, tuple[str, Any, str]] = {}
                table = as_table([{encoder.target.name: each} for each in y])
                targets = encoder.encode_targets(table, bad)
                _refuse(bad)
            _offered(model, "tell")(ids, targets, unknown=unknown)
            return None, encoder

        self._publish(tell)
        return self

    @property
    def waiting_(self) -> Any:
        """How many rows wait for their targets, and what became of the others: a `Waiting`."""
        return _offered(self.model, "waiting_")

    def save(self, folder: str | Path) -> None:
        """Write model and encoder to a new folder, for `open_run` and ``kalstream run --from``."""
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidInput(f"{folder} is not empty; give a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        model, encoder = self._current
        name = f"model-{model.n_seen_}.safetensors"
        model.save(folder / name)
        task = CLASSIFICATION if hasattr(model, "classes_") else REGRESSION
        stream = {"name": folder.name, "task": task, "fingerprint": None}
        progress = {
            "format": FORMAT,
            "run": uuid.uuid4().hex,
            "learner": type(model).__name__,
            "stream": self._stream or stream,
            "columns": None if encoder is None else encoder.to_json(),
            "skipped": {"n": 0, "why": []},
            "sizes": {METRICS: 0, PREDICTIONS: 0},
            # Without an evaluation there is no run to resume, only a model to predict with.
            **dict.fromkeys(("model", "model_sha256", "evaluation")),
            "result": {
                "model": name,
                "sha256": sha256_of(folder / name),
                "row": model.n_seen_,
            },
        }
        write_progress(folder, progress)

    def _to_predict(self, rows: Any) -> tuple[Any, Batch]:
        """The current model, and rows as it takes them."""
        model, encoder = self._current
        return model, _encoded(rows, None if encoder is None else encoder.frozen())[0]


def _encoded(
    rows: Any,
    encoder: Columns | None,
    y: Any = None,
    *,
    learns: bool = False,
    asks: bool = False,
) -> tuple[Batch, Columns | None]:
    """Rows as numbers, and the encoder that has learned their categories.

    A value that cannot be read is an error that names it.
    """
    if encoder is None:
        if learns and y is None:
            raise InvalidInput("rows are numbers without names; give their targets as y")
        return Batch(0, rows, y), None
    target = encoder.target
    # Rows to learn have their targets; rows to ask for may have ids.
    reader = encoder.with_late(None, encoder.id.name if asks and encoder.id else None)
    columns = {} if y is None or target is None else {target.name: y}
    table = as_table(rows, columns)
    names = table.schema.names
    needs = reader.frozen() if asks else reader  # rows without targets, or without ids
    table = table.select(needs.wanted(names, "rows"))
    reader = reader.learn(table)
    numbers, targets, times, bad = reader.encode(table)
    ids = reader.encode_more(table, None, bad)[1] if asks else None
    keys = reader.keys(table, bad)
    _refuse(bad)
    batch = Batch(0, numbers, np.asarray(targets), times, ids=ids, keys=keys)
    return batch.without_infinities()[0], replace(encoder, features=reader.features)


def _offered(model: Any, name: str) -> Any:
    """A method or attribute of the model; an error where there is none, as in models by key."""
    if not hasattr(model, name):
        raise InvalidInput(
            f"{type(model).__name__} has no {name}; use predict_proba and partial_fit"
        )
    return getattr(model, name)


def _refuse(bad: dict[int, tuple[str, Any, str]]) -> None:
    """Raise an error that names the first value that cannot be read, if there is one."""
    if bad:
        row = min(bad)
        column, value, why = bad[row]
        raise InvalidInput(f"row {row}, column {quoted(column)}: {quoted(value)} {why}; correct it")


def _beside(batch: Batch) -> dict[str, Any]:
    """Times and keys of rows, as arguments of a model."""
    parts = {"time": batch.times, "key": batch.keys}
    return {name: part for name, part in parts.items() if part is not None}
