"""Save and load estimators; `checkpoint` defines the file."""

from __future__ import annotations

import datetime
import gc
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from types import NoneType
from typing import Any, Final, TypeVar

import numpy as np
from sklearn.base import clone

from kalstream.core.alarm import AGE, N_BETS, N, Watch
from kalstream.core.checks import LARGEST_FLOAT64
from kalstream.core.experts import ExpertState
from kalstream.core.judging import LateJudge
from kalstream.core.mixture import MixtureState
from kalstream.core.policy import PolicyState
from kalstream.core.stacking import Stack
from kalstream.core.state import BankStep
from kalstream.core.tagged import TAGGED
from kalstream.errors import CheckpointError
from kalstream.estimators import checkpoint
from kalstream.estimators._base import KalmanEstimator
from kalstream.estimators._classification import Classes
from kalstream.estimators._learning import state_of
from kalstream.estimators._model import Model
from kalstream.estimators._regression import Values
from kalstream.estimators._representation import Representation
from kalstream.estimators._sharing import Shared
from kalstream.estimators._soundness import Foreign, need, need_array
from kalstream.estimators._waiting import Store
from kalstream.estimators.classifier import KalmanClassifier
from kalstream.estimators.labels import Labels
from kalstream.features import Aggregates, OnlineScaler, RandomFourierFeatures
from kalstream.features.online import follows

T = TypeVar("T", bound=KalmanEstimator)

# Targets are at most 1e100 and weights 1e50: no sound file comes near these.
_LARGEST_SQUARE: Final = 1e210
_MOST_FREEDOM: Final = 1e150
_FITTED = ("n_features_in_", "feature_names_in_", "encoding")


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the collector of cycles.

    It would search the new objects of a million waiting rows, which have no cycles, again and
    again: that takes five times as long as all else.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_uncollected()
def save(estimator: KalmanEstimator, path: str | PathLike[str]) -> None:
    """See `KalmanEstimator.save`."""
    cls = type(estimator)
    checkpoint.write(path, cls.__name__, tree_of(estimator), lambda saved: _check(cls, saved))


def tree_of(estimator: KalmanEstimator) -> dict[str, Any]:
    """An estimator as a checkpoint takes it."""
    params = {name: _plain(value) for name, value in estimator.get_params(deep=False).items()}
    model = estimator._model
    if model.state is not None:
        state_of(model, estimator._settings)  # a file of other parameters could not be read
    return {
        "params": params,
        "model": replace(model, representation=_portable(model.representation)),
        "fitted": _plain_columns(model.fitted),
    }


@_uncollected()
def load(cls: type[T], path: str | PathLike[str], features: Any) -> T:
    """See `KalmanEstimator.load`."""
    return estimator_of(cls, checkpoint.read(path, cls.__name__), path, features)


def estimator_of(cls: type[T], tree: Any, path: str | PathLike[str], features: Any) -> T:
    """The estimator of a tree that was read from ``path``, if its parts are sound."""
    try:
        params, model, fitted = _check(cls, tree)
    except Exception as error:  # a nonsensical file with a right checksum can raise anything
        raise CheckpointError(
            f"{path} is damaged; take another copy of it ({type(error).__name__}: {error})"
        ) from error
    saved = model.representation.transformer
    if isinstance(saved, Foreign):
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


def _check(cls: type[KalmanEstimator], tree: Any) -> tuple[dict[str, Any], Model, dict[str, Any]]:
    """Parameters, model and columns of a tree, if they are sound and of each other."""
    params, model, fitted = (tree[name] for name in ("params", "model", "fitted"))
    if "encoding" in fitted:
        fitted = {**fitted, "encoding": _encoding(fitted)}
    _check_model(model, fitted, issubclass(cls, KalmanClassifier))
    _check_policy(cls(**params), model)
    return params, model, fitted


def _plain_columns(fitted: dict[str, Any]) -> dict[str, Any]:
    """What is known of the columns, as a checkpoint takes it."""
    encoding = fitted.get("encoding")
    return fitted if encoding is None else {**fitted, "encoding": encoding.to_json()}


def _encoding(fitted: dict[str, Any]) -> Any:
    """The encoding of a table in a file, if it makes as many columns as the model has."""
    from kalstream.features.tables import Encoding  # it imports pyarrow, which takes long

    encoding = Encoding.from_json(fitted["encoding"])
    need(len(encoding.names) == fitted["n_features_in_"], "encoding", "of the columns of the model")
    return encoding


def _check_model(model: Model, fitted: dict[str, Any], classifies: bool) -> None:
    """Refuse a model whose parts are not of each other."""
    need(isinstance(model, Model), "model", "a Model")
    need(isinstance(fitted, dict) and set(fitted) <= set(_FITTED), "fitted", "what load expects")
    n_columns = fitted.get("n_features_in_")
    if not (type(n_columns) is int and n_columns > 0):
        raise ValueError("n_features_in_ must be an integer of at least 1")
    names = fitted.get("feature_names_in_")
    need(names is None or len(names) == n_columns, "feature_names_in_", f"{n_columns} names")
    need(type(model.n_seen) is int and model.n_seen >= 0, "n_seen", "an integer of at least 0")
    time = model.time
    need(time is None or (type(time) is float and math.isfinite(time)), "time", "finite or None")
    need(type(model.seed) is int and model.seed >= 0, "seed", "an integer of at least 0")
    _check_late(model, classifies)
    n_targets = _check_classes(model) if classifies else _check_values(model)
    _check_watch(model)
    state = model.state
    need(state is None or isinstance(state, PolicyState), "state", "a state")
    m = _check_representation(model.representation, n_columns)
    own = isinstance(model.representation.transformer, OnlineScaler | RandomFourierFeatures)
    need(m is not None or not own or model.n_seen == 0, "transformer", "fitted, as the model is")
    if state is None:
        return
    need(m in (None, state.n_features), "state", f"of the {m} features that columns become")
    if classifies:  # there may be room for classes to come
        need(0 < n_targets <= state.n_outputs, "state", f"of at least {n_targets} outputs")
    else:
        need(n_targets == state.n_outputs, "offset", f"{state.n_outputs} numbers")


def _check_late(model: Model, classifies: bool) -> None:
    """What is known of rows that came and of targets that did not."""
    for name in ("came", "last", "n_targets"):
        value = getattr(model, name)
        need(type(value) is int and value >= -1, name, "an integer of at least -1")
    late, state = model.late, model.state
    need(late is None or isinstance(late, LateJudge), "late", "a LateJudge or None")
    if late is not None:
        if state is None:
            raise ValueError("late must be None without a state")
        n_filters = len(state.half_lives)
        like = state if isinstance(state, MixtureState) else late
        need_array("late.log_weights", late.log_weights, (n_filters, *like.log_weights.shape[1:]))
        need_array("late.spread", late.spread, (n_filters, 2))
        # Experts may have been set to others since: it then begins again, see `_late`.
        need_array("late.beside", late.beside, np.shape(late.beside)[:1] if classifies else (0,))
        need(len(late.beliefs) in ((2, 4) if classifies else (2,)), "late.beliefs", "two or four")
        need_array("late.beliefs", late.beliefs, (len(late.beliefs),))
        need((late.beliefs >= 0.0).all(), "late.beliefs", "at least 0")
        need(type(late.since) is int and late.since >= 0, "late.since", "an integer of at least 0")
    need(model.store is None or isinstance(model.store, Store), "store", "a Store or None")


def _check_policy(estimator: KalmanEstimator, model: Model) -> None:
    """Refuse a watch that is not of the half-lives which the policy watches."""
    policy = estimator._settings.policy
    if isinstance(model.state, policy.state_type):
        n_watched = len(policy.watched)
        need(len(model.watch.now) == n_watched, "watch", f"of {n_watched} half-lives")


def _check_classes(model: Model) -> int:
    """Labels, their counts and the stacks; returns how many labels there are."""
    targets, state = model.targets, model.state
    need(isinstance(targets, Classes), "targets", "Classes")
    need(isinstance(targets.labels, Labels), "labels", "Labels")
    names = targets.labels.names
    need(isinstance(names, tuple) and len(set(names)) == len(names), "labels", "different values")
    need_array("counts", targets.counts, (len(names),))
    need((targets.counts >= 0.0).all(), "counts", "at least 0")
    experts = targets.experts
    need(isinstance(experts, dict), "experts", "a dict")
    for expert in experts.values():
        need(isinstance(expert, ExpertState), "experts", "states of experts")
        need(state is not None and expert.n_classes <= state.n_outputs, "experts", "of the classes")
    for name in ("stack", "ordered"):
        stack = getattr(targets, name)
        need(stack is None or isinstance(stack, Stack), name, "a Stack or None")
        if stack is None:
            continue
        if state is None:
            raise ValueError(f"{name} must be None without a state")
        need(stack.n_filters == len(state.half_lives), name, "of the filters of the state")
        need(set(stack.experts) <= set(experts), name, "of the experts")
        need(len(stack.counts) <= state.n_outputs, name, f"of at most {len(names)} classes")
        need(not stack.counts[len(names) :].any(), name, f"of the {len(names)} labels")
    return len(names)


def _check_values(model: Model) -> int:
    """Offset and scale of a regression; returns how many outputs there are."""
    targets = model.targets
    need(isinstance(targets, Values), "targets", "Values")
    need(type(targets.flat) is bool, "flat", "True or False")
    need_array("spread", targets.spread, (2,))
    for spread in (targets.spread, getattr(model.state, "spread", targets.spread)):
        freedom, squares = spread[..., 0], spread[..., 1]
        need((spread >= 0.0).all(), "spread", "at least 0")
        need((freedom <= _MOST_FREEDOM).all(), "spread", f"of at most {_MOST_FREEDOM:g} targets")
        fits = (squares <= _LARGEST_SQUARE * freedom).all()
        need(fits, "spread", f"squares of at most {_LARGEST_SQUARE:g} for each target")
    if targets.offset is None:
        return 0
    need(np.ndim(targets.offset) == 1, "offset", "of one dimension")
    need_array("offset", targets.offset, (len(targets.offset),))
    fits = (np.abs(targets.offset) <= LARGEST_FLOAT64).all()
    need(fits, "offset", f"at most {LARGEST_FLOAT64:g}")
    return len(targets.offset)


def _check_watch(model: Model) -> None:
    """Watch, and the step of the last rows."""
    watch, step, state = model.watch, model.last_step, model.state
    need(isinstance(watch, Watch), "watch", "a Watch")
    shape = np.shape(watch.now)
    need(len(shape) == 1 and shape[0] > 0, "watch", "of one dimension and not empty")
    for name in ("now", "usual", "levels", "gains"):
        need_array(f"watch.{name}", getattr(watch, name), shape)
    need_array("watch.odds", watch.odds, (*shape, N_BETS))
    need_array("watch.numbers", watch.numbers, (8,))
    need(watch.numbers[[N, AGE]].min() >= 0.0, "watch.numbers", "counted from 0")
    need(min(watch.gains.min(), watch.odds.min()) >= 0.0, "watch.gains", "at least 0")
    need(isinstance(step, BankStep) or step is None, "last_step", "a step")
    if step is None:
        return
    for name in ("logit_mean", "logit_var", "gamma", "noise_var", "nis"):
        need(isinstance(getattr(step, name), np.ndarray), f"last_step.{name}", "an array")
    need(step.gamma.ndim == 2, "last_step.gamma", "of two dimensions")
    if state is None:
        raise ValueError("last_step must be None without a state")
    batch = (len(state.half_lives), step.gamma.shape[1])
    for name in ("logit_var", "gamma", "noise_var", "nis"):
        shape = getattr(step, name).shape
        need(shape == batch, f"last_step.{name}", f"of {batch[0]} filters and {batch[1]} rows")
    shape = step.logit_mean.shape
    need(shape[:-1] == batch, "last_step.logit_mean", f"of {batch[0]} filters and {batch[1]} rows")


def _check_representation(representation: Representation, n_columns: int) -> int | None:
    """How many features the columns become; None if only another library knows."""
    need(isinstance(representation, Representation), "representation", "a Representation")
    size, transformer = representation.size, representation.transformer
    need(type(size) is float and 0.0 < size < math.inf, "representation.size", "above 0")
    for name in ("intercept", "wide"):
        need(type(getattr(representation, name)) is bool, f"representation.{name}", "True or False")
    before = representation.before
    need(isinstance(before, Aggregates | None), "before", "Aggregates or None")
    if before is not None:
        n_columns = before.width(n_columns)
    kinds = OnlineScaler, RandomFourierFeatures, Foreign
    need(isinstance(transformer, (*kinds, NoneType)), "transformer", "one that kalstream knows")
    if isinstance(transformer, Foreign):
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
    if transformer is None or type(transformer) in TAGGED.values():
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
    if (hasattr(value, "transform") or follows(value)) and type(value) not in TAGGED.values():
        return None  # a transformer of another library: load asks for one
    return value
