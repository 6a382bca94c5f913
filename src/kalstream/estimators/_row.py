"""The short way of a single row through a classifier; None wherever it has to go the long way.

A model that learned a row in this way holds a `PackedRow` in place of the parts that it changes.
They are made of it when somebody asks for them (`Model.__getattr__`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.core.row import RowState
from kalstream.estimators._classification import Classes, Classification
from kalstream.estimators._learning import LAST_ROWS, state_of
from kalstream.estimators._model import IN_ROW, Model
from kalstream.estimators._settings import Settings
from kalstream.estimators.labels import Labels
from kalstream.features.rows import bounded

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PackedRow:
    """The parts of a model that rows change, and the settings that they were learned with."""

    state: RowState
    settings: Settings
    labels: Labels

    def parts(self) -> dict[str, Any]:
        """Values of the fields `IN_ROW` of a model."""
        state, watch, stacks, counts, step = self.state.parts()
        stack, ordered = (*stacks, None, None)[:2]
        targets = Classes(self.labels, counts, stack, ordered)
        return {
            "state": state,
            "targets": targets,
            "watch": watch,
            "last_step": step.tail(LAST_ROWS),
        }


def learn_row(
    model: Model, X: Any, names: Any, settings: Settings, predict: bool
) -> tuple[Model, Array | None] | None:
    """The model after a row, without weight and time, and its probabilities (1, K) if asked for."""
    packed = _packed(model, X, settings)
    if packed is None or len(names) != 1:
        return None
    row, labels = packed.state, packed.labels
    code = labels.column.get(names[0], -1)
    if code < 0 or not row.frame.state.seen[code]:
        return None
    answers = _stack_of(packed) if predict else -1
    if answers is None:
        return None
    representation, phi = model.representation.advance(bounded(X))
    after = row.learn(phi, code, model.came, answers)
    if after is None:
        return None
    learned, values = object.__new__(Model), model.__dict__.copy()
    for name in IN_ROW:
        values.pop(name, None)
    values["row"] = PackedRow(after, settings, labels)
    values["representation"] = representation
    values["last"] = values["came"]
    for name in ("n_seen", "n_targets", "came"):
        values[name] += 1
    learned.__dict__.update(values)
    return learned, after.probabilities()[:, labels.order] if predict else None


def predict_row(
    model: Model, X: Any, settings: Settings, recent_labels: bool
) -> tuple[Array, Array] | None:
    """Probabilities (1, K) of a row without a time, and the classes (K,) that they are of.

    With ``recent_labels`` it is the next row, and they are those of `predict_then_learn`.
    """
    late = model.late is not None and not recent_labels
    packed = None if late else _packed(model, X, settings)
    answers = 0 if packed is None or not recent_labels else _stack_of(packed)
    if packed is None or answers is None:
        return None
    made = packed.state.predict(model.representation.transform(bounded(X)), answers)
    return None if made is None else (made[:, packed.labels.order], packed.labels.classes)


def _stack_of(packed: PackedRow) -> int | None:
    """The stack that answers where recent labels are known; None if it has yet to begin."""
    task: Any = packed.settings.task
    if not (task.stacking and task.recent_labels):
        return 0
    return 1 if len(packed.state.frame.stacks) == 2 else None


def _packed(model: Model, X: Any, settings: Settings) -> PackedRow | None:
    """What rows change, if X is one row (1, d) of numbers and nothing unusual is set."""
    if not (
        type(X) is np.ndarray
        and X.dtype == np.float64
        and X.shape == (1, model.fitted["n_features_in_"])
        and X.flags.carray
        and "feature_names_in_" not in model.fitted
    ):
        return None
    packed: PackedRow | None = model.row
    if packed is not None and packed.settings is settings:
        return packed
    if not _is_usual(model, settings):
        return None
    known, state = model.targets, state_of(model, settings)
    stacks = [stack for stack in (known.stack, known.ordered) if stack is not None]
    shapes = {(len(stack.counts), stack.n_filters, stack.experts) for stack in stacks}
    if shapes - {(state.n_outputs, settings.policy.n_filters, ())}:
        return None
    variances = {"noise_var": settings.noise_var, "prior_var": settings.prior_var}
    policy: Any = settings.policy
    row = RowState.of(policy, state, model.watch, stacks, known.counts, **variances)
    if row is None:
        return None
    packed = PackedRow(row, settings, known.labels)
    model.__dict__["row"] = packed  # the same for every reader
    return packed


def _is_usual(model: Model, settings: Settings) -> bool:
    """Whether rows of a model can go the short way."""
    task, known = settings.task, model.targets
    return (
        type(task) is Classification
        and task.predictive == "probit"
        and task.class_weight is None
        and not task.experts
        and settings.transition == "example"
        and model.state is not None
        and model.time is None
        and model.representation.is_own
        and model.state.n_outputs == len(known.labels.names)
        and (known.stack is not None) == (task.stacking and settings.policy.combines)
        and (known.ordered is None or task.recent_labels)
    )
