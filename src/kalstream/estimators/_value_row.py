"""The short way of a single row through a regressor; None wherever it has to go the long way."""

from __future__ import annotations

from typing import Any

import numpy as np

from kalstream._arrays import Array
from kalstream.core.mixture import Mixture
from kalstream.core.value_row import learn_value as learn
from kalstream.estimators._learning import state_of
from kalstream.estimators._model import Model
from kalstream.estimators._regression import OUTLIER, TARGETS_OF_SCALE, Regression, shaped
from kalstream.estimators._settings import Settings
from kalstream.features.rows import bounded


def learn_value(
    model: Model, X: Any, y: Array, settings: Settings, predict: bool
) -> tuple[Model, tuple[Array, Array] | None] | None:
    """The model after a row, without weight and time, and mean and std (1,) or (1, K) if asked."""
    task: Any = settings.task
    policy: Any = settings.policy
    if not (
        type(X) is np.ndarray
        and X.dtype == np.float64
        and X.shape == (1, model.fitted["n_features_in_"])
        and X.flags.carray
        and "feature_names_in_" not in model.fitted
        and model.time is None
        and model.representation.is_own
        and not model.representation.hears
        and settings.transition == "example"
        and type(policy) is Mixture
        and type(task) is Regression
        and task.learns_scale is policy.learn_scale
        and model.state is not None
        and model.n_targets >= TARGETS_OF_SCALE
    ):
        return None
    offset, state = model.targets.offset, state_of(model, settings)
    if (
        y.size != state.n_outputs
        or y.shape != (1, *y.shape[1:])
        or model.targets.flat != (y.ndim == 1)
    ):
        return None
    target = y.reshape(-1).astype(np.float64)
    if not np.abs(target).max() <= task.limit:  # or NaN
        return None
    representation, phi = model.representation.advance(bounded(X))
    made = learn(
        *(policy, state, model.watch, phi, target - offset),
        came=model.came,
        noise_var=settings.noise_var,
        prior_var=settings.prior_var,
        farthest=OUTLIER if task.learns_scale else np.inf,
    )
    if made is None:
        return None
    state, watch, step, (mean, variance) = made
    learned = model.but(
        representation=representation,
        state=state,
        watch=watch,
        last_step=step,
        n_seen=model.n_seen + 1,
        n_targets=model.n_targets + 1,
        came=model.came + 1,
        last=model.came,
    )
    if not predict:
        return learned, None
    std = np.sqrt(np.maximum(variance, 0.0))
    return learned, (shaped(model, (mean + offset)[None]), shaped(model, std[None]))
