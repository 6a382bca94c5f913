"""The way from a model and a chunk of rows to the next model: pure functions, nothing published."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream.core.alarm import Watch
from kalstream.core.chunk import block_rows
from kalstream.core.policy import PolicyState
from kalstream.errors import InvalidInput
from kalstream.estimators._chunk import Ahead, Chunk
from kalstream.estimators._model import Model
from kalstream.estimators._representation import Representation
from kalstream.estimators._settings import Settings
from kalstream.estimators.inputs import allocated

Array = NDArray[Any]

# Up to here the filters have no more outputs than there are classes.
_MANY_CLASSES: Final = 64
# So many of the last rows are kept for `health_`.
LAST_ROWS: Final = 64


def new_model(
    representation: Representation, fitted: dict[str, Any], seed: int, settings: Settings
) -> Model:
    """A model that has seen nothing."""
    return Model(
        representation=representation,
        state=None,
        targets=settings.task.start(),
        n_seen=0,
        time=None,
        watch=Watch.start(len(settings.policy.watched)),
        last_step=None,
        late=None,
        seed=seed,
        fitted=fitted,
    )


def learn(
    model: Model, chunk: Chunk, settings: Settings, predict: bool = True
) -> tuple[Model, Any]:
    """The model after a chunk, and the predictions of its rows made before each was learned.

    Predictions cost time; without ``predict`` they are None.
    """
    task = settings.task
    task.check(chunk)
    parts, start, n = [], 0, len(chunk)
    by_rows = settings.transition == "example"
    hears = bool(model.representation.hears)
    while start < n:
        stop = n
        if by_rows and hears:  # features of a row depend on the target before
            stop = start + 1
        elif by_rows and predict:
            stop = min(n, task.end_of_piece(model, chunk, start, settings))
        if by_rows and task.stretch:
            stop = min(stop, start + task.stretch - model.came % task.stretch)
        model, part = _learn_piece(model, chunk[start:stop], settings, predict)
        parts.append(part)
        start = stop
    return model, task.joined(model, chunk, parts) if predict else None


def _learn_piece(
    before: Model, chunk: Chunk, settings: Settings, predict: bool
) -> tuple[Model, Any]:
    """As `learn`, for rows whose targets fit into the model or make room there."""
    if settings.task.sees_columns:
        representation, columns = before.representation.scaled(chunk.rows)
        phi = representation.features(columns)
        chunk = replace(chunk, columns=representation.seen(columns))
    else:
        representation, phi = before.representation.advance(chunk.rows)
    model = before.but(representation=representation)
    model, answers = learn_features(before, model, phi, chunk, settings, predict)
    numbers = before.came + np.arange(len(chunk))
    if hears := representation.hears:
        heard = representation.told(chunk.rows[:, hears], chunk.targets, chunk.weight)
        model = model.but(representation=heard)
    return model.but(watch=model.watch.in_rows(before.watch, numbers)), answers


def learn_features(
    before: Model, model: Model, phi: Array, chunk: Chunk, settings: Settings, predict: bool
) -> tuple[Model, Any]:
    """Learn the features (b, m) of rows whose targets fit into the model or make room there.

    ``model`` is the one before, after its representation has advanced over the rows.
    """
    policy, task = settings.policy, settings.task
    old, names = model, chunk
    model, chunk = task.read(old, names)
    n_outputs = task.n_outputs(model)
    long = len(chunk) >= 2 * block_rows(phi.shape[1]) and n_outputs > _MANY_CLASSES
    if long and not predict and settings.transition == "example":
        return _learn_in_parts(old, phi, names, settings), None
    time = None if chunk.times is None else float(chunk.times[-1])
    came = model.came + len(chunk)
    model = model.but(
        n_seen=model.n_seen + len(chunk),
        n_targets=model.n_targets + task.n_known(chunk),
        came=came,
        last=came - 1,
        time=time,
    )
    if n_outputs == 0:
        return _passed(model, phi, settings), task.nothing_known(len(chunk))
    state, step = policy.step_chunk(
        state_with_room(model, phi.shape[1], n_outputs, settings),
        phi,
        chunk.targets,
        transition=settings.transition,
        sample_weight=chunk.weight,
        time_gap=chunk.gap,
        noise_var=settings.noise_var,
        prior_var=settings.prior_var,
    )
    outlier = task.first_outlier(old, chunk, step, settings)
    if outlier is not None:
        return _learn_around(old, phi, names, outlier, settings, predict)
    belief = policy.belief(step, chunk.gap, settings.transition, model.watch.now)
    watch, _ = model.watch.after(policy.watched, *belief, policy.evidence(step))
    model = model.but(state=state, watch=watch, last_step=step.bank.tail(LAST_ROWS))
    if not predict:
        return task.learn(model, chunk, step, settings), None
    return task.learn_and_predict(before, model, chunk, step, settings)


def _learn_in_parts(model: Model, phi: Array, chunk: Chunk, settings: Settings) -> Model:
    """As `learn_features` without predictions, block by block.

    A row then costs the classes known after its block, not those of the whole call, and the
    moments (b, K) of all rows are never in memory at once.
    """
    n, size = len(chunk), block_rows(phi.shape[1])
    for start in range(0, n - size + 1, size):
        # The last part takes the rest: `health_` needs the LAST_ROWS from one step.
        part = slice(start, start + size if n - start >= 2 * size else n)
        model, _ = learn_features(model, model, phi[part], chunk[part], settings, False)
    return model


def _learn_around(
    model: Model,
    phi: Array,
    chunk: Chunk,
    outlier: tuple[int, float],
    settings: Settings,
    predict: bool,
) -> tuple[Model, Any]:
    """As `learn_features`, with a smaller weight for one row.

    The rows behind it are learned in blocks, so that another outlier repeats one block at most.
    """
    row, factor = outlier
    n, size = len(chunk), block_rows(phi.shape[1])
    weight = np.ones(len(chunk)) if chunk.weight is None else chunk.weight.copy()
    weight[row] *= factor
    reduced: Chunk = replace(chunk, weight=weight)
    answers = []
    cuts = [0] * (row > 0) + [row, *range(row + 1, n, size), n]
    for start, stop in pairwise(cuts):
        part, each = slice(start, stop), reduced if start == row else chunk
        model, made = learn_features(model, model, phi[part], each[part], settings, predict)
        answers.append(made)
    return model, settings.task.together(answers) if predict else None


def _passed(model: Model, phi: Array, settings: Settings) -> Model:
    """The model after rows from which nothing can be learned: no target is known yet.

    The prior does not change with time.
    """
    policy = settings.policy
    belief = np.repeat(policy.first_belief()[None], len(phi), axis=0)
    prior = settings.prior_var * np.einsum("bm,bm->b", phi, phi)
    variance = np.repeat(prior.astype(np.float64)[:, None], belief.shape[1], axis=1)
    nothing = np.full(belief.shape, np.nan) if policy.compares else None
    return model.but(watch=model.watch.after(policy.watched, belief, variance, nothing)[0])


def state_with_room(
    model: Model, n_features: int, n_outputs: int, settings: Settings
) -> PolicyState:
    """The state, new if there is none, with as many outputs as there are targets."""
    policy, prior_var, dtype = settings.policy, settings.prior_var, settings.dtype
    if model.state is None:
        size = n_features, n_outputs
        start = partial(policy.start, *size, prior_var=prior_var, dtype=dtype)
        return allocated(start, policy, *size, dtype)
    state = state_of(model, settings)
    n_more = outputs_with_room(state, n_outputs) - state.n_outputs
    return state.add_outputs(n_more) if n_more else state


def state_of(model: Model, settings: Settings) -> PolicyState:
    """The state of a model that has one, if it is of the policy that is set now."""
    state = model.state
    if state is None or not isinstance(state, settings.policy.state_type):
        raise InvalidInput(
            f"forgetting (now {settings.forgetting!r}) or order was changed after learning began; "
            "restore the old value, or call reset() to start again"
        )
    try:
        settings.policy.check_state(state)
    except InvalidInput as error:
        raise InvalidInput(
            "forgetting, likelihood, order or calibration was changed after learning began; "
            f"restore the old value, or call reset() to start again ({error})"
        ) from None
    return state


def step_ahead(model: Model, rows: Array, settings: Settings, time_gap: Any = 1.0) -> Ahead:
    """Rows (b, d) with their step; any of them could be the next."""
    representation, seen = model.representation, None
    if settings.task.sees_columns:
        columns = representation.columns(rows)
        phi, seen = representation.features(columns), representation.seen(columns)
    else:
        phi = representation.transform(rows)
    return Ahead(phi, predict_features(model, phi, settings, time_gap), time_gap, seen)


def predict_features(model: Model, phi: Array, settings: Settings, time_gap: Any = 1.0) -> Any:
    """`PolicyStep` of features (b, m), of which any could be those of the next row."""
    state = state_of(model, settings)
    return settings.policy.predict(state, phi, prior_var=settings.prior_var, time_gap=time_gap)


def predict_chunk(model: Model, chunk: Chunk, settings: Settings) -> Any:
    """Prediction of the rows of a chunk, before any of it is learned."""
    if model.state is None:
        return settings.task.nothing_known(len(chunk))
    gap = 1.0 if chunk.times is None else (chunk.times - model.time) / settings.unit
    return settings.task.predict(model, step_ahead(model, chunk.rows, settings, gap), settings)


def with_columns(model: Model, n_columns: int, settings: Settings) -> Model:
    """The model with columns that were missing (NaN) in all rows so far, behind the others."""
    if "encoding" in model.fitted:
        raise InvalidInput(
            "the columns of this model are those of a table, found by their names, and cannot be "
            "added; call drop_column_names() first, and pass arrays from then on"
        )
    n_before = model.fitted["n_features_in_"]
    wider, state = model.representation.with_columns(n_columns), model.state
    if state is not None:
        m = model.representation.transform(np.zeros((1, n_before))).shape[1]
        n_new = wider.transform(np.zeros((1, n_before + n_columns))).shape[1] - m
        if n_new > 0:  # a transformer may mix its columns into as many features as before
            size = settings.policy, m + n_new, state.n_outputs, settings.dtype
            state = allocated(partial(state.add_features, n_new, settings.prior_var), *size)
    fitted = {**model.fitted, "n_features_in_": n_before + n_columns}
    targets = settings.task.with_columns(model.targets, n_columns)
    return model.but(representation=wider, state=state, targets=targets, fitted=fitted)


def outputs_with_room(state: PolicyState | None, n_outputs: int) -> int:
    """How many outputs a state of so many classes has.

    With many classes there is room for more, so that growing stays cheap. A class that has not come
    takes no part, so room changes no prediction.
    """
    if state is None or state.n_outputs >= n_outputs:
        return n_outputs if state is None else state.n_outputs
    return n_outputs if n_outputs <= _MANY_CLASSES else n_outputs + n_outputs // 4
