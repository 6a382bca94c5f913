"""Regression: what is known about target values, the scale of the noise, means and variances."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.checks import Targets
from kalstream.core.half_lives import KEEP_SCALE
from kalstream.core.judging import Index, LateRows, choose
from kalstream.errors import InvalidInput
from kalstream.estimators._chunk import Ahead, Chunk, LateSteps
from kalstream.estimators._learning import predict_chunk, state_of
from kalstream.estimators._model import Model
from kalstream.estimators._settings import Settings
from kalstream.estimators.inputs import read_values, read_weights

# The first target is subtracted from all, so it shows nothing; two others are few enough.
TARGETS_OF_SCALE: Final = 3
# Squared: no row within a hundred standard deviations is an outlier.
OUTLIER: Final = 1e4


@dataclass(frozen=True, slots=True)
class Values:
    """What is known about target values. Never changed.

    Attributes
    ----------
    offset : (K,) or None
        The first target, which is subtracted from all; None before there was one.
    spread : (2,)
        Degrees of freedom and sum of squares of the noise's scale, if the policy does not learn
        it: core/README.md, "The unknown scale".
    flat : bool
        Whether targets are (b,), and so predictions.
    """

    offset: Array | None
    spread: Array
    flat: bool


@dataclass(frozen=True, slots=True)
class Regression:
    """Settings of a regression; see `Task`.

    Attributes
    ----------
    learns_scale : bool
        Whether noise_var and prior_var are in units of a scale that is learned.
    limit : float
        Largest target.
    """

    learns_scale: bool
    limit: float

    def start(self) -> Values:
        """No target is known."""
        return Values(None, np.zeros(2), True)

    def check(self, chunk: Chunk) -> None:
        """Refuse infinite and too large targets, and too few or too many of them."""
        values = chunk.targets
        if values.ndim not in (1, 2) or len(values) != len(chunk) or values.size == 0:
            raise InvalidInput(
                f"y has shape {values.shape} for the {len(chunk)} rows of X; "
                "give one target for each row"
            )
        if np.isinf(values).any():
            raise InvalidInput("y contains infinity; use NaN where a target is unknown")
        # The first target is subtracted from all others: too large, it would spoil them as well.
        large = np.abs(values) > self.limit
        if large.any():
            place = tuple(np.argwhere(large)[0].tolist())
            raise InvalidInput(
                f"y is {values[place]:g} at row {place[0]}; the largest absolute value allowed is "
                f"{self.limit:g}; scale y"
            )

    @property
    def sees_columns(self) -> bool:
        """There are no experts beside the filters."""
        return False

    @property
    def stretch(self) -> int:
        """Pieces of any length."""
        return 0

    def end_of_piece(self, model: Model, chunk: Chunk, start: int, settings: Settings) -> int:
        """The end of the piece that begins at ``start``.

        It is one row while the scale of the noise is unknown, or if this task learns the scale
        instead of the policy; otherwise all rows.
        """
        by_row = self.learns_scale and not settings.policy.learns_scale
        together = not by_row and model.state is not None and self.knows_scale(model, settings)
        return len(chunk) if together else start + 1

    def read(self, model: Model, chunk: Chunk) -> tuple[Model, Chunk]:
        """The model with an offset, and the chunk with targets (b, K) less the offset."""
        values, weight, known = chunk.targets, chunk.weight, model.targets
        dense = values.reshape(len(values), -1).astype(np.float64)
        offset = known.offset
        if offset is None:
            missing = np.isnan(dense).any(axis=1)
            if weight is not None:
                missing |= weight == 0.0
            rows = np.flatnonzero(~missing)
            offset = dense[rows[0]].copy() if len(rows) else None
        elif dense.shape[1] != len(offset):
            raise InvalidInput(
                f"y has {dense.shape[1]} columns, but had {len(offset)} before; give the same "
                "number, or call reset()"
            )
        flat = values.ndim == 1
        if offset is not known.offset or flat is not known.flat:
            model = model.but(targets=Values(offset, known.spread, flat))
        dense = dense if offset is None else dense - offset
        return model, replace(chunk, targets=dense)

    def first_outlier(
        self, model: Model, chunk: Chunk, step: Any, settings: Settings
    ) -> tuple[int, float] | None:
        """The first outlier, and a factor for its weight.

        It is a row that would teach the scale more than all rows before it. With the factor it
        teaches as much, and the filters hardly move. Two in a row are no accident: the second one
        is learned in full.
        """
        if not self.learns_scale or settings.transition == "chunk":
            return None
        squares = step.bank.logit_mean.shape[2] * step.bank.nis  # (J, b)
        freedom, total = float(model.targets.spread[0]), float(model.targets.spread[1])
        if settings.policy.learns_scale:
            with np.errstate(divide="ignore", invalid="ignore"):
                squares = squares / step.scale.T
            if not (squares.max(axis=0, initial=0.0, where=squares == squares) > OUTLIER).any():
                return None
            # With a scale of 1, the sum of squares is the degrees of freedom.
            total = freedom = 0.0 if model.state is None else self._freedom(model, settings)
        weights = np.ones(len(chunk)) if chunk.weight is None else chunk.weight
        doubled, n_targets = self._doubled(model, settings), model.n_targets
        for i, w in enumerate(weights.tolist()):
            least, most = w * float(squares[:, i].min()), w * float(squares[:, i].max())
            if w == 0.0 or least != least:  # no target, or no scale
                doubled = False
            unit = total / freedom if freedom > 0.0 else 0.0
            limit = max(freedom, OUTLIER) * unit
            known = n_targets >= TARGETS_OF_SCALE and 0.0 < limit < least and most < math.inf
            if known and not doubled:
                return i, freedom * unit / most
            if w > 0.0 and not math.isnan(step.bank.nis[0, i]):
                doubled = most > KEEP_SCALE * total
                n_targets += 1
                freedom = KEEP_SCALE * freedom + w * step.bank.logit_mean.shape[2]
                own = not settings.policy.learns_scale
                total = KEEP_SCALE * total + most if own else freedom
        return None

    def _doubled(self, model: Model, settings: Settings) -> bool:
        """Whether the last row of a model gave half of the sum of squares of a filter."""
        last, noise_var = model.last_step, settings.noise_var
        if last is None or model.state is None:
            return False
        var, noise = np.maximum(last.logit_var[:, -1], 0.0), last.noise_var[:, -1]
        squares = last.nis[:, -1] * (var + noise) / (var + noise_var) * (noise_var / noise)
        total: Any = model.targets.spread[1]
        if settings.policy.learns_scale:
            total = settings.policy.scale(state_of(model, settings))
            total = total * self._freedom(model, settings)
        return bool((self.n_outputs(model) * squares > 0.5 * total).any())

    def n_outputs(self, model: Model) -> int:
        """One output for each column of targets."""
        return 0 if model.targets.offset is None else len(model.targets.offset)

    def learn(self, model: Model, chunk: Chunk, step: Any, settings: Settings) -> Model:
        """The model after the scale of the noise has been learned, where the policy does not."""
        weights = np.ones(len(chunk)) if chunk.weight is None else chunk.weight
        return self._with_scale(model, step, weights, settings)

    def _with_scale(self, model: Model, step: Any, weights: Array, settings: Settings) -> Model:
        """The model after rows with these weights (b,); those not learned have a nis of NaN."""
        if settings.policy.learns_scale or not self.learns_scale:
            return model
        freedom, squares = model.targets.spread.tolist()
        n_outputs = self.n_outputs(model)
        for nis, w in zip(step.nis.tolist(), weights.tolist(), strict=True):
            if nis == nis and w > 0.0:
                freedom = KEEP_SCALE * freedom + w * n_outputs
                squares = KEEP_SCALE * squares + w * n_outputs * nis
        return model.but(targets=replace(model.targets, spread=np.array([freedom, squares])))

    def learn_and_predict(
        self, before: Model, model: Model, chunk: Chunk, step: Any, settings: Settings
    ) -> tuple[Model, tuple[Array, Array]]:
        """As `learn`, and means and standard deviations (b, K) of each row."""
        if settings.transition == "chunk":
            prediction = predict_chunk(before, chunk, settings)
        elif before.state is None:
            prediction = self.nothing_known(len(chunk))
        else:
            prediction = self._predicted(before, step, settings)
        return self.learn(model, chunk, step, settings), prediction

    def predict(self, model: Model, ahead: Ahead, settings: Settings) -> tuple[Array, Array]:
        """Means and standard deviations (b, K) of targets; inf while their scale is unknown."""
        return self._predicted(model, ahead.step, settings)

    def _predicted(self, model: Model, step: Any, settings: Settings) -> tuple[Array, Array]:
        return step.mean + model.targets.offset, np.sqrt(self._variance(model, step, settings))

    def _variance(self, model: Model, step: Any, settings: Settings) -> Array:
        """Variances (b, K) of targets; inf while their scale is unknown."""
        variance = step.target_variance(settings.noise_var, self.scale(model))
        if not self.knows_scale(model, settings):
            return np.full(variance.shape, np.inf)
        return np.maximum(variance, 0.0)

    def with_columns(self, targets: Values, n_columns: int) -> Values:
        """Nothing that is known depends on columns."""
        return targets

    def nothing_known(self, n: int) -> tuple[Array, Array]:
        """No mean, and any standard deviation (b, 1)."""
        return np.full((n, 1), np.nan), np.full((n, 1), np.inf)

    def joined(
        self, model: Model, chunk: Chunk, parts: list[tuple[Array, Array]]
    ) -> tuple[Array, Array]:
        """Means and standard deviations, (b,) or (b, K) as the targets are."""
        values = chunk.targets
        joined = np.empty((2, len(values), 1 if values.ndim == 1 else values.shape[1]))
        start = 0
        for part in parts:
            piece = slice(start, start + len(part[0]))
            joined[0, piece], joined[1, piece] = part
            start = piece.stop
        mean, std = (shaped(model, each) for each in joined)
        return mean, std

    # ---- late targets ---------------------------------------------------------------------

    def n_known(self, chunk: Chunk) -> int:
        """Rows of a chunk that `read` returned which have a target and a weight."""
        known = ~np.isnan(chunk.targets).any(axis=1)
        return int(np.count_nonzero(known if chunk.weight is None else known & (chunk.weight > 0)))

    def keeps(self, settings: Settings) -> tuple[bool, int]:
        """There is no stack, and no expert beside the filters."""
        return False, 0

    def spread_out(
        self, chunk: Chunk, tells: Index, n: int, n_outputs: int
    ) -> tuple[Targets, Array]:
        """Targets of n events, and their weights (n,); of the events ``tells`` in a chunk."""
        dense, weight = np.zeros((n, n_outputs)), np.zeros(n)
        if len(chunk):
            read = check.targets(chunk.targets, len(chunk), n_outputs, np.float64)
            assert read.dense is not None
            given = 1.0 if chunk.weight is None else chunk.weight
            dense[tells], weight[tells] = read.dense, np.where(read.observed, given, 0.0)
        return Targets(None, dense, weight > 0.0), weight

    def keep(self, before: Model, rows: LateRows, seen: Array) -> None:
        """Nothing is kept beside the moments."""

    def judge(
        self, before: Model, model: Model, rows: LateRows, steps: LateSteps, settings: Settings
    ) -> tuple[Model, tuple[Array, Array]]:
        """The model, and means and standard deviations (a, K) of the rows asked for."""
        asked, n_outputs = np.flatnonzero(rows.events.asked), self.n_outputs(model)
        made = np.zeros((len(rows.weight), 2, 2 * n_outputs))
        both = steps.by_late, steps.in_order
        for a, each in enumerate(both if before.state is not None and len(asked) else ()):
            step = each.take(asked)
            variance = self._variance(before, step, settings)
            variance[np.isinf(variance)] = 0.0  # unknown; nothing is learned from it
            made[asked, a] = np.hstack([step.mean, variance])
        assert model.late is not None
        late, out = choose(model.late, rows, steps.judged, made)
        model = self._with_scale(model, steps.in_order, rows.weight, settings)
        if before.state is None:
            return model.but(late=late), self.nothing_known(len(asked))
        mean, variance = out[asked, :n_outputs], out[asked, n_outputs:]
        if not self.knows_scale(before, settings):
            variance = np.full(variance.shape, np.inf)
        return model.but(late=late), (mean + before.targets.offset, np.sqrt(variance))

    def together(self, parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
        """Means and standard deviations (a, K) of rows in their order."""
        width = max((part[0].shape[1] for part in parts), default=1)
        made = np.full((2, sum(len(part[0]) for part in parts), width), np.nan)
        made[1] = np.inf
        start = 0
        for mean, std in parts:
            here = slice(start, start + len(mean))
            made[0, here, : mean.shape[1]], made[1, here, : mean.shape[1]] = mean, std
            start = here.stop
        return made[0], made[1]

    def answers(self, model: Model, parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
        """Means and standard deviations, (a,) or (a, K) as the targets are."""
        mean, std = self.together(parts)
        return shaped(model, mean), shaped(model, std)

    def knows_scale(self, model: Model, settings: Settings) -> bool:
        """Whether enough targets have shown how large the noise is.

        Targets are counted, not weighed: one target of a large weight shows no more than one.
        """
        if not self.learns_scale:
            return model.targets.offset is not None
        return model.n_targets >= TARGETS_OF_SCALE and self._freedom(model, settings) > 0.0

    def scale(self, model: Model) -> float:
        """What variances are multiples of, where the policy does not know it."""
        if not self.learns_scale:
            return 1.0
        freedom, squares = model.targets.spread.tolist()
        return squares / freedom if freedom > 0.0 else math.nan

    def _freedom(self, model: Model, settings: Settings) -> float:
        """Weight of the targets that the scale of the noise was learned from."""
        if settings.policy.learns_scale:
            return settings.policy.freedom(state_of(model, settings))
        return float(model.targets.spread[0])


def shaped(model: Model, values: Array) -> Array:
    """Values (b,) if targets were flat, else (b, K)."""
    return values[:, 0] if model.targets.flat else values


def r_squared(y: Any, mean: Array, sample_weight: Any) -> float:
    """The share of the variance of targets that predicted means, (b,) or (b, K), explain."""
    from sklearn.metrics import r2_score

    values = read_values(y)
    if np.atleast_2d(values.T).shape != np.atleast_2d(mean.T).shape:
        raise InvalidInput(
            f"y has shape {values.shape} for predictions of shape {mean.shape}; "
            "give one target for each row"
        )
    if not np.isfinite(values).all():
        raise InvalidInput(
            "y contains NaN or infinity; a score needs every target; remove these rows"
        )
    weight = read_weights(sample_weight, len(values))
    return float(r2_score(values, mean, sample_weight=weight))
