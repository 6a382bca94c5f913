"""The short way of a single row through a classifier; None wherever it has to go the long way.

A model that learned a row in this way holds a `PackedRow` in place of the parts that it changes.
They are made of it when somebody asks for them (`Model.__getattr__`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.core.row import RowState
from kalstream.estimators._classification import Classes, Classification, names_of
from kalstream.estimators._learning import LAST_ROWS, state_of
from kalstream.estimators._model import IN_ROW, Model
from kalstream.estimators._settings import Settings
from kalstream.estimators._waiting import WAITS, Store, StoredRow
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
        state, watch, stacks, counts, step, judge = self.state.parts()
        stack, ordered = (*stacks, None, None)[:2]
        targets = Classes(self.labels, counts, stack, ordered, self.state.experts)
        return {
            "state": state,
            "targets": targets,
            "watch": watch,
            "last_step": step.tail(LAST_ROWS),
            "late": judge,
        }


def learn_row(
    model: Model, X: Any, names: Any, settings: Settings, predict: bool
) -> tuple[Model, Array | None] | None:
    """The model after a row, without weight and time, and its probabilities (1, K) if asked for."""
    packed, stretch = _packed(model, X, settings), settings.task.stretch
    if packed is None or len(names) != 1:
        return None
    if stretch and (model.came + 1) % stretch == 0:  # experts fall asleep, or wake
        return None
    row, labels = packed.state, packed.labels
    code = labels.column.get(names[0], -1)
    if code < 0 or not row.frame.state.seen[code]:
        return None
    answers = _stack_of(packed) if predict else -1
    if answers is None:
        return None
    representation, columns = model.representation.scaled(bounded(X))
    phi, seen = representation.features(columns), representation.seen(columns)
    after = row.learn(phi, seen, code, model.came, answers)
    if after is None:
        return None
    learned = _after(
        model, PackedRow(after, settings, labels), last=model.came, came=model.came + 1
    )
    learned.__dict__["representation"] = representation
    return learned, after.probabilities()[:, labels.order] if predict else None


def exchange_row(
    model: Model,
    asked: Any,
    new: Any,
    settings: Settings,
    bounds: tuple[int, float | None],
) -> tuple[Model, Array] | None:
    """As `_late.exchange`, for a single event that can go the short way."""
    n, n_new = len(asked.rows), len(new.ids)
    if n + n_new != 1 or asked.times is not None or new.weight is not None:
        return None
    if n_new:
        return _tell_row(model, new.ids[0], new.targets[0], settings)
    key = None if asked.ids is None else asked.ids[0]
    return _ask_row(model, asked.rows, key, settings, bounds)


def _ask_row(
    model: Model,
    rows: Array,
    key: Hashable,
    settings: Settings,
    bounds: tuple[int, float | None],
) -> tuple[Model, Array] | None:
    """As `_late.exchange`, of one row (1, d) without a time; ``key`` None numbers it."""
    packed, store = _ready(model, settings), model.store or Store()
    if packed is None or not packed.state.frame.judges or not store.is_plain:
        return None
    state, number = packed.state, model.came
    representation, scaled = model.representation.scaled(rows)
    if scaled.shape[1] != representation.width(model.fitted["n_features_in_"]):
        return None
    phi, seen = representation.features(scaled), representation.seen(scaled)
    made = state.ask(phi, seen, number, *_since(model, number), model.n_targets)
    if made is None:
        return None
    kept, probabilities, after = made
    name = store.stop if key is None else key
    predicted = state.frame.sizes, kept.tobytes()
    row = StoredRow(name, number, math.nan, scaled.tobytes(), *predicted)
    values = model.__dict__ | {
        "row": packed if after is state else replace(packed, state=after),
        "representation": representation,
        "came": number + 1,
        "store": store.asked(row, *bounds),
    }
    if "targets" in values:  # what was unpacked before
        values["targets"] = replace(values["targets"], experts=after.experts)
    asked = object.__new__(Model)
    asked.__dict__.update(values)
    return asked, probabilities[:, packed.labels.order]


def _tell_row(
    model: Model, key: Hashable, target: Any, settings: Settings
) -> tuple[Model, Array] | None:
    """As `_late.exchange`, of one target without a weight, of a row that waits."""
    packed, store = _ready(model, settings), model.store
    if packed is None or store is None or not packed.state.frame.judges or not store.is_plain:
        return None
    state, labels, number = packed.state, packed.labels, store.ids.get(key, -1)
    row, code = store.row(number), labels.column.get(target, -1)
    if row is None or row.status != WAITS or row.sizes != state.frame.sizes:
        return None
    if code < 0 or not state.frame.state.seen[code]:
        return None
    representation = model.representation
    if len(row.columns) != 8 * (representation.width(model.fitted["n_features_in_"]) or 0):
        return None
    # Copies, because compiled code is made for memory that may be written to.
    scaled, kept = np.frombuffer(row.columns).copy()[None], np.frombuffer(row.kept).copy()
    phi, seen = representation.features(scaled), representation.seen(scaled)
    event = row.number, kept, *_since(model, row.number), model.n_targets
    after = state.tell(phi, seen, code, *event)
    if after is None:
        return None
    last, store = max(model.last, row.number), store.told(number, row, target)
    learned = _after(model, PackedRow(after, settings, labels), last=last, store=store)
    return learned, np.zeros((0, len(labels.names)))


def _since(model: Model, number: int) -> tuple[float, float]:
    """Rows since the last one learned, and rows between that and this one."""
    n_rows = number - model.last
    return float(max(n_rows, 0)), float(max(n_rows - 1, 0))


def _after(model: Model, packed: PackedRow, **changes: Any) -> Model:
    """The model after a row was learned."""
    learned, values = object.__new__(Model), model.__dict__.copy()
    for name in IN_ROW:
        values.pop(name, None)
    counts = {name: values[name] + 1 for name in ("n_seen", "n_targets")}
    learned.__dict__.update(values, row=packed, **counts, **changes)
    return learned


def predict_row(
    model: Model, X: Any, settings: Settings, recent_labels: bool
) -> tuple[Array, Array] | None:
    """Probabilities (1, K) of a row without a time, and the classes (K,) that they are of.

    With ``recent_labels`` it is the next row, and they are those of `predict_then_learn`.
    """
    packed = _packed(model, X, settings)
    if packed is not None and packed.state.frame.judge is not None and not recent_labels:
        return None
    answers = 0 if packed is None or not recent_labels else _stack_of(packed)
    if packed is None or answers is None:
        return None
    representation = model.representation
    columns = representation.columns(bounded(X))
    phi, seen = representation.features(columns), representation.seen(columns)
    made = packed.state.predict(phi, seen, model.came, answers)
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
    return _ready(model, settings)


def _ready(model: Model, settings: Settings) -> PackedRow | None:
    """What rows change, if nothing unusual is set."""
    packed: PackedRow | None = model.row
    if packed is not None and packed.settings is settings:
        return packed
    if not _is_usual(model, settings):
        return None
    known, state = model.targets, state_of(model, settings)
    stacks = [stack for stack in (known.stack, known.ordered) if stack is not None]
    task: Any = settings.task
    speakers, sleepers = task.roles(model)
    names = names_of(speakers)
    shapes = {(len(stack.counts), stack.n_filters, stack.experts) for stack in stacks}
    if shapes - {(state.n_outputs, settings.policy.n_filters, names)}:
        return None
    policy: Any = settings.policy
    learned = stacks, known.counts, model.late
    noise_var, prior_var = settings.noise_var, settings.prior_var
    states = known.experts if task.experts else {}
    experts = {"experts": speakers, "sleepers": sleepers, "states": states}
    row = RowState.of(
        policy, state, model.watch, *learned, **experts, noise_var=noise_var, prior_var=prior_var
    )
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
        and settings.transition == "example"
        and model.state is not None
        and model.time is None
        and model.representation.is_own
        and not model.representation.hears
        and model.state.n_outputs == len(known.labels.names)
        and (known.stack is not None) == (task.stacking and settings.policy.combines)
        and (known.ordered is None or task.recent_labels)
    )
