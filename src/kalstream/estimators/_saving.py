"""Estimators to files and back; what a file is, `_checkpoint` knows."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from types import NoneType
from typing import Any, TypeVar

import numpy as np
from sklearn.base import clone

from kalstream.core.bank import BankStep
from kalstream.core.forgetting import FilterState
from kalstream.core.mixture import MixtureState
from kalstream.core.stacking import Stack
from kalstream.core.state import Step
from kalstream.errors import CheckpointError
from kalstream.estimators import _checkpoint as checkpoint
from kalstream.estimators._base import KalmanEstimator
from kalstream.estimators._checkpoint import need, need_array
from kalstream.estimators._labels import Labels
from kalstream.estimators._model import Model
from kalstream.estimators._representation import Representation
from kalstream.estimators._sharing import Shared
from kalstream.estimators._watch import GRID, Watch
from kalstream.estimators.classifier import KalmanClassifier
from kalstream.features import OnlineScaler, RandomFourierFeatures

T = TypeVar("T", bound=KalmanEstimator)

checkpoint.REGISTERED.update(
    {cls.__name__: cls for cls in (Model, Representation, Labels, Watch, BankStep, Step, Stack)}
)
_FITTED = ("n_features_in_", "feature_names_in_", "_flat")
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
    try:
        params, model, fitted = (tree[name] for name in ("params", "model", "fitted"))
        _check_model(model, fitted, issubclass(cls, KalmanClassifier))
        cls(**params)
    except Exception as error:  # a nonsensical file with a right checksum can raise anything
        raise CheckpointError(
            f"{path} is damaged; take another copy of it ({type(error).__name__}: {error})"
        ) from error
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
    estimator._published = Shared(replace(model, fitted=fitted))
    return estimator


def _check_model(model: Model, fitted: dict[str, Any], classifies: bool) -> None:
    """Refuse a model whose parts are not of each other."""
    need(isinstance(model, Model), "model", "a Model")
    need(isinstance(fitted, dict) and set(fitted) <= set(_FITTED), "fitted", "what load expects")
    n_columns = fitted.get("n_features_in_")
    if not (type(n_columns) is int and n_columns > 0):
        raise ValueError("n_features_in_ must be an integer of at least 1")
    names = fitted.get("feature_names_in_")
    need(names is None or len(names) == n_columns, "feature_names_in_", f"{n_columns} names")
    need(type(fitted.get("_flat", True)) is bool, "_flat", "True or False")
    need(classifies or "_flat" in fitted, "_flat", "there")
    n_names = _check_labels(model, classifies)
    need(type(model.n_seen) is int and model.n_seen >= 0, "n_seen", "an integer of at least 0")
    time = model.time
    need(time is None or (type(time) is float and math.isfinite(time)), "time", "finite or None")
    need(type(model.seed) is int and model.seed >= 0, "seed", "an integer of at least 0")
    need_array("spread", model.spread, (2,))
    need((model.spread >= 0.0).all(), "spread", "at least 0")
    _check_watch(model)
    state = model.state
    need(state is None or isinstance(state, FilterState | MixtureState), "state", "a state")
    m = _check_representation(model.representation, n_columns)
    own = isinstance(model.representation.transformer, OnlineScaler | RandomFourierFeatures)
    need(m is not None or not own or model.n_seen == 0, "transformer", "fitted, as the model is")
    if state is None:
        need(model.stack is None and model.ordered is None, "stack", "None without a state")
        return
    posterior = state.bank if isinstance(state, MixtureState) else state.posterior
    if isinstance(state, MixtureState):
        grid = (*state.half_lives, *state.calibrations)
        need(all(value > 0.0 for value in grid), "half_lives and calibrations", "above 0")
    need(m in (None, posterior.n_features), "state", f"of the {m} features that columns become")
    if classifies:  # there may be room for classes to come
        need(0 < n_names <= posterior.n_outputs, "state", f"of at least {n_names} outputs")
    else:
        n_outputs = 0 if model.offset is None else len(model.offset)
        need(n_outputs == posterior.n_outputs, "offset", f"{posterior.n_outputs} numbers")
    for name in ("stack", "ordered"):
        stack = getattr(model, name)
        need(stack is None or isinstance(stack, Stack), name, "a Stack or None")
        if stack is not None:
            need(isinstance(state, MixtureState), name, "None without a mixture")
            need(stack.n_filters == len(state.half_lives), name, "of the filters of the state")
            n_classes = len(stack.counts)
            need(n_classes <= posterior.n_outputs, name, f"of at most {n_names} classes")
            need(not stack.counts[n_names:].any(), name, f"of the {n_names} labels")


def _check_labels(model: Model, classifies: bool) -> int:
    """Labels, their counts and the offset of targets; returns how many labels there are."""
    need(isinstance(model.labels, Labels), "labels", "Labels")
    names = model.labels.names
    need(isinstance(names, tuple) and len(set(names)) == len(names), "labels", "different values")
    need(classifies or not names, "labels", "empty for a regression")
    need_array("counts", model.counts, (len(names),))
    need((model.counts >= 0.0).all(), "counts", "at least 0")
    if model.offset is not None:
        need(not classifies and np.ndim(model.offset) == 1, "offset", "that of a regression")
        need_array("offset", model.offset, (len(model.offset),))
    return len(names)


def _check_watch(model: Model) -> None:
    """Watch, and what the last rows told."""
    watch, told = model.watch, model.told
    need(isinstance(watch, Watch), "watch", "a Watch")
    shape = np.shape(watch.now)
    for name in ("now", "usual", "levels"):
        need_array(f"watch.{name}", getattr(watch, name), shape)
    need_array("watch.numbers", watch.numbers, (7,))
    need(watch.numbers[0] >= 0.0, "watch.numbers", "counted from 0")
    if model.state is not None:
        many = isinstance(model.state, MixtureState)
        expected = (len(model.state.half_lives if many else GRID),)
        need(shape == expected, "watch", f"of shape {expected}, one number for each half-life")
        need(isinstance(told, BankStep if many else Step) or told is None, "told", "a step")
    else:
        need(len(shape) == 1 and shape[0] > 0, "watch", "of one dimension and not empty")
    for name in () if told is None else ("logit_mean", "logit_var", "gamma", "noise_var", "nis"):
        need(isinstance(getattr(told, name), np.ndarray), f"told.{name}", "an array")
    if told is not None:
        rows = told.noise_var.shape
        batch = np.shape(watch.now) if isinstance(told, BankStep) else ()
        need(len(rows) == 1, "told.noise_var", "of one dimension")
        for name in ("logit_var", "gamma", "nis"):
            need(getattr(told, name).shape == (*batch, *rows), f"told.{name}", f"of {rows[0]} rows")
        means = told.logit_mean.shape
        need(means[:-1] == (*batch, *rows), "told.logit_mean", f"of {rows[0]} rows")


def _check_representation(representation: Representation, n_columns: int) -> int | None:
    """How many features the columns become; None if only another library knows."""
    need(isinstance(representation, Representation), "representation", "a Representation")
    size, transformer = representation.size, representation.transformer
    need(type(size) is float and 0.0 < size < math.inf, "representation.size", "above 0")
    need(type(representation.intercept) is bool, "representation.intercept", "True or False")
    kinds = OnlineScaler, RandomFourierFeatures, checkpoint.Foreign
    need(isinstance(transformer, (*kinds, NoneType)), "transformer", "one that kalstream knows")
    if isinstance(transformer, checkpoint.Foreign):
        return None
    n_made = n_columns
    if transformer is not None and hasattr(transformer, "n_features_in_"):
        need(transformer.n_features_in_ == n_columns, "transformer", f"of {n_columns} columns")
        if isinstance(transformer, RandomFourierFeatures):
            n_made = transformer._n_features_out
    elif transformer is not None:
        return None
    return n_made + int(representation.intercept)


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
