"""Runs that begin with a saved model: where it comes from, and whether the new data fit it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn.base import is_classifier

from kalstream._files import sha256_of
from kalstream._printable import quoted
from kalstream.errors import InvalidInput, InvalidOption, KalstreamError, MissingFile
from kalstream.evaluate.adapters import takes_keys
from kalstream.runs.checkpoint import model_to_predict_with, open_checkpoint
from kalstream.runs.files import holds_run, read_config
from kalstream.runs.options import OF_CLASSIFIERS, OF_ESTIMATORS, Options, typed
from kalstream.streams import CLASSIFICATION, REGRESSION, Columns, Stream, format_of

# Options that a saved model has decided.
_OF_MODEL: Final = (
    *("forgetting", "motion", "features", "learner", "time_unit", "key", "aggregate"),
    *(*OF_ESTIMATORS, *OF_CLASSIFIERS),
)
# Options that the encoder of a run has decided.
_OF_COLUMNS: Final = (
    *("target", "task", "time", "ignore", "categorical", "missing", "decimal", "date_format"),
)


@dataclass(frozen=True)
class Origin:
    """A saved model, and what is known about it.

    Attributes
    ----------
    path : str
        A run, its checkpoint folder, or a file that `save` wrote.
    model : KalmanClassifier or KalmanRegressor
    columns : Columns or None
        Encoder of the columns; None for a file, or if the rows were numbers without names.
    progress, config : dict or None
        Content of progress.json and config.json, if the model is that of a run.
    """

    path: str
    model: Any
    columns: Columns | None
    progress: dict[str, Any] | None
    config: dict[str, Any] | None

    @classmethod
    def read(cls, path: str) -> Origin:
        """Load the model of a run, or of a file."""
        if not Path(path).exists():
            raise MissingFile(
                f"--from {path}: no such file or folder; give a run, its checkpoint folder, or a "
                "file that save wrote"
            )
        model, columns, progress = open_checkpoint(path)
        refuse_keys(model, path)
        if not model.__sklearn_is_fitted__():
            raise InvalidInput(
                f"--from {path}: its model has learned nothing yet; run without --from"
            )
        if columns is not None:
            columns = replace(columns, seen=0)  # rows of the new data
        return cls(path, model, columns, progress, _config_of(Path(path), progress))

    @property
    def task(self) -> str:
        """The task of the model."""
        return CLASSIFICATION if is_classifier(self.model) else REGRESSION

    def entry(self) -> dict[str, Any]:
        """The entry ``origin`` of config.json, without the classes."""
        entry = {"path": self.path, "run": None, "rows": self.model.n_seen_}
        if self.progress is None:
            return {**entry, "sha256": sha256_of(Path(self.path))}
        digest = model_to_predict_with(self.progress)[1]
        return {**entry, "run": self.progress["run"], "sha256": digest}

    def check_unchanged(self, entry: dict[str, Any] | None) -> None:
        """Refuse a model that is not the one that a run began with, given its config.json."""
        if self.entry() != {
            name: value for name, value in (entry or {}).items() if name != "classes"
        }:
            raise InvalidInput(
                f"{self.path} has changed since the run began with its model; restore it from a "
                "copy, or run again and give --out another folder"
            )

    def options(self, given: Options) -> Options:
        """The options of a new run: those given, and those that the model has decided.

        Raises
        ------
        InvalidOption
            If an option was set that would change the model or its columns.
        """
        if self.columns is not None:
            check_is_table(given.source, self.path)
            self._check_ids(given)
        values = given.model_dump()
        if "task" in format_of(given.source).options:
            values["task"] = self.task
        old = Options(**self.config["options"]) if self.config is not None else None
        decided = (*_OF_MODEL, *(("task",) if self.columns is None else _OF_COLUMNS))
        if given.order == "as-is":  # otherwise the seed is that of the order of rows
            decided = (*decided, "seed")
        for name in decided:
            known = None if old is None else getattr(old, name)
            known = {"task": self.task, **self._names()}.get(name, known)
            value = getattr(given, name)
            if name in given.model_fields_set and value != known:
                raise self._refused(name, value, None if name in _OF_MODEL else known)
            if old is not None and name not in ("learner", "task"):
                values[name] = getattr(old, name)
        return Options.of(**values)

    def _check_ids(self, given: Options) -> None:
        """Refuse to learn rows that only bring a label, as those of the old run may have."""
        id = self.columns and self.columns.id
        if id and not given.model_fields_set & {"id", "label_time", "delay"}:
            raise InvalidOption(
                f"--id is missing, and the labels of {self.path} came with later rows of the same "
                f"{quoted(id.name)}; pass --id {quoted(id.name)}, or --delay 0 if every row has "
                "its label beside it"
            )

    def _names(self) -> dict[str, Any]:
        """The columns of target and time; those of packaged streams are not among the options."""
        if self.columns is None:
            return {}
        columns = {"target": self.columns.target, "time": self.columns.time}
        return {name: column and column.name for name, column in columns.items()}

    def _refused(self, name: str, value: Any, known: Any) -> InvalidOption:
        option = typed(name)
        has = f", which has {option} {quoted(known)}" if known not in (None, []) else ""
        return InvalidOption(
            f"{option} is {quoted(value)}, but --from continues the model of {self.path}{has}; "
            f"leave {option} out, or run without --from to begin with a new model"
        )

    def check_stream(self, stream: Stream, source: str) -> None:
        """Refuse data that the model cannot learn, before anything is written."""
        if self.columns is None and stream.encoder is not None:
            _use_columns(self.model, stream, stream.encoder, source)
        check_fits(self.model, stream, source, self.path)


def refuse_keys(model: Any, path: str) -> None:
    """Refuse to begin with a model by key."""
    if takes_keys(model):
        raise InvalidInput(
            f"--from {path}: its model is one by key, and only its own run continues it; add "
            "the data to that run with --extend"
        )


def _config_of(path: Path, progress: dict[str, Any] | None) -> dict[str, Any] | None:
    """config.json of the run that a checkpoint belongs to."""
    if progress is None:
        return None
    folder = next((each for each in (path, path.parent) if holds_run(each)), None)
    config = None if folder is None else read_config(folder)
    return config if config is not None and config["run"] == progress["run"] else None


def _use_columns(model: Any, stream: Stream, encoder: Columns, source: str) -> None:
    """Give a table the columns and labels of a model that has learned plain numbers."""
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        by_name = {column.name: column for column in encoder.features}
        missing = [name for name in names if name not in by_name]
        if missing:
            raise InvalidInput(
                f"{source} has no column {quoted(missing[0])}, which the model has learned; add "
                "the column, or rename one"
            )
        encoder = replace(encoder, features=tuple(by_name[name] for name in names))
        model.drop_column_names()  # from here on the encoder knows them
    for column in encoder.features:
        if column.kind == "category":
            raise InvalidInput(
                f"column {quoted(column.name)} of {source} holds categories, and a model file "
                "does not say how they were encoded; give --from the folder of a run, leave the "
                f"column out with ignore=[{quoted(column.name)}], or write it as numbers"
            )
    stream.columns = encoder.names
    classes = getattr(model, "classes_", np.empty(0)).tolist()
    kinds = {"str": "text label", "int": "whole label", "bool": "boolean label"}
    types = {type(label).__name__ for label in classes}
    if encoder.target is not None and len(types) == 1 and types <= set(kinds):
        encoder = replace(encoder, target=replace(encoder.target, kind=kinds[types.pop()]))
    stream.encoder = encoder


def check_is_table(source: str, learned: str) -> None:
    """Refuse data whose columns have no names, where a table was learned."""
    kind = format_of(source)
    if "columns" not in kind.options:
        raise InvalidInput(
            f"{source} {kind.about}, and {learned} has learned a table, whose columns have names; "
            "give a table"
        )


def check_fits(model: Any, stream: Stream, source: str, learned: str) -> None:
    """Refuse data with another number of columns, or with times before those already learned.

    Parameters
    ----------
    model : object
        A fitted learner; learners of users are not checked.
    stream : Stream
    source, learned : str
        Names of the new data, and of what the model has learned from.
    """
    wanted = getattr(model, "n_features_in_", None)
    if wanted is None or stream.columns is None:
        return
    if len(stream.columns) != wanted:
        raise InvalidInput(
            f"{source} has {len(stream.columns)} columns, and the model of {learned} has learned "
            f"{wanted}; give data with the same columns"
        )
    # A pipe is not waited for: its first row raises the same error.
    if not hasattr(model, "predict_then_learn") or not stream.repeatable:
        return
    times = stream.first_times()
    first: dict[str, Any] = {} if times is None or not len(times) else {"time": times[:1]}
    if stream.keyed:
        first["key"] = ["key"]
    target = np.full(1, np.nan) if stream.task == REGRESSION else np.full(1, None, object)
    try:
        copy.deepcopy(model).partial_fit(np.zeros((1, wanted)), target, **first)
    except KalstreamError as error:
        raise InvalidInput(f"{source} does not continue {learned}: {error}") from error
