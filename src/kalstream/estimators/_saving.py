"""Estimators to files and back; what a file is, `_checkpoint` knows."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from sklearn.base import clone

from kalstream.core.bank import BankStep
from kalstream.core.stack import HALF_LIVES, Stack
from kalstream.core.state import Step
from kalstream.errors import CheckpointError
from kalstream.estimators import _checkpoint as checkpoint
from kalstream.estimators._base import KalmanEstimator
from kalstream.estimators._labels import Labels
from kalstream.estimators._model import Model
from kalstream.estimators._representation import Representation
from kalstream.estimators._sharing import Shared
from kalstream.estimators._watch import Watch

T = TypeVar("T", bound=KalmanEstimator)

checkpoint.REGISTERED.update(
    {cls.__name__: cls for cls in (Model, Representation, Labels, Watch, BankStep, Step, Stack)}
)
checkpoint._CHECKS[Stack] = lambda s: (
    s.counts.ndim == s.coef.ndim == 1
    and s.recent.shape == (len(HALF_LIVES), len(s.counts))
    and s.stays.shape == (len(s.counts), 2)
    and s.precision.shape == 2 * s.coef.shape
    and -1 <= s.last < len(s.counts)
    and {each.dtype for each in (s.counts, s.recent, s.stays, s.coef, s.precision)}
    == {np.dtype(np.float64)}
)
checkpoint._CHECKS[Watch] = lambda w: (
    w.now.shape == w.usual.shape == w.levels.shape
    and w.numbers.shape == (7,)
    and w.usual.dtype == w.levels.dtype == w.numbers.dtype == np.float64
)
# a tree of its own in the file
checkpoint._LEFT_OUT.add((Model, "fitted"))


def save(estimator: KalmanEstimator, path: str | PathLike[str]) -> None:
    """See `KalmanEstimator.save`."""
    params = {name: _plain(value) for name, value in estimator.get_params(deep=False).items()}
    model = estimator._model
    tree = {
        "params": params,
        "model": replace(model, representation=_portable(model.representation)),
        "fitted": model.fitted,
    }
    checkpoint.write(path, type(estimator).__name__, tree)


def load(cls: type[T], path: str | PathLike[str], features: Any) -> T:
    """See `KalmanEstimator.load`."""
    tree = checkpoint.read(path, cls.__name__)
    params, model = tree["params"], tree["model"]
    saved = model.representation.transformer
    if isinstance(saved, checkpoint.Foreign):
        if features is None:
            raise CheckpointError(
                f"{path} was saved with a transformer of class {saved.class_name}; "
                f"pass a new one: {cls.__name__}.load(path, features=...)"
            )
        transformer = checkpoint.fill(clone(features), saved)
        model = replace(
            model, representation=replace(model.representation, transformer=transformer)
        )
        params["features"] = features
    elif features is not None:
        raise CheckpointError(f"{path} needs no transformer; leave features out")
    estimator = cls(**params)
    estimator._published = Shared(replace(model, fitted=tree["fitted"]))
    return estimator


def _portable(representation: Representation) -> Representation:
    transformer = representation.transformer
    if transformer is None or type(transformer) in checkpoint.REGISTERED.values():
        return representation
    return replace(representation, transformer=checkpoint.foreign(transformer))


def _plain(value: Any) -> Any:
    """A parameter as a checkpoint takes it."""
    if isinstance(value, type | np.dtype):
        return np.dtype(value).name
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "transform") and type(value) not in checkpoint.REGISTERED.values():
        return None  # a transformer of another library: load asks for one
    return value
