"""Softmax filters on the rows themselves: a linear rule among the columns as they came."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Final, Self

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.bank import FEW_FEATURES, Bank
from kalstream.core.checks import Targets
from kalstream.core.chunk import Rows
from kalstream.core.experts.expert import Expert, ExpertRows, ExpertState
from kalstream.core.guard import ROUNDING_LIMITS
from kalstream.core.judging import runs
from kalstream.core.mixture import Mixture, MixtureState
from kalstream.core.mixture.grids import codes_of, gammas_of, grid_of, prior_vars_of
from kalstream.core.state import Room, pending_capacity
from kalstream.errors import InvalidInput

FILTERS: Final = Mixture(
    half_lives=(math.inf, 1e4),
    likelihood="softmax",
    prior_scale=(30.0, 300.0),
    calibrations=(1.0,),
    predictive="probit",
)
# Larger values count as this: squares of differences, and sums of many, are finite.
LARGEST: Final = 1e150
# Columns behind these are not seen: the memory and the time of filters grow with their square.
_MOST_COLUMNS: Final = 512
# Rows are shortened to so many times their usual norm.
REACH: Final = 2.0
# Smaller probabilities, and weights, count as these.
LEAST: Final = 1e-9
_LEAST_WEIGHT: Final = 1e-50
_EPSILON: Final = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class LinearState(ExpertState):
    """The filters of `Linear`, and the mean of the rows.

    Attributes
    ----------
    mean, counts : (d,)
        Of the values of each column, in rows with a label.
    square : float
        Mean square of the norms of these rows, less the mean.
    filters : MixtureState
        Their features are a constant, then the columns.
    """

    tag: ClassVar[str] = "kalstream.LinearState"

    mean: Array
    counts: Array
    square: float
    filters: MixtureState

    def __post_init__(self) -> None:
        FILTERS.check_state(self.filters)
        shape = (self.filters.n_features - 1,)
        check.block("the mean of a linear expert", self.mean, shape)
        check.block("the counts of a linear expert", self.counts, shape)
        sound = self.filters.dtype == np.float64 and bool((np.abs(self.mean) <= LARGEST).all())
        sound = sound and type(self.square) is float and 0.0 <= self.square < math.inf
        if not (sound and ((self.counts >= 0.0) & (self.counts < math.inf)).all()):
            raise InvalidInput("the linear expert holds bad numbers; start again")

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return self.filters.n_outputs

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.mean.nbytes + self.counts.nbytes + self.filters.nbytes

    def add_classes(self, n_classes: int) -> Self:
        """The state with ``n_classes`` classes."""
        if n_classes == self.n_classes:
            return self
        return replace(self, filters=self.filters.add_outputs(n_classes - self.n_classes))

    def keep_classes(self, columns: Array) -> Self:
        """The state with these classes only; they do not change."""
        return replace(self, filters=self.filters.keep_outputs(columns))

    def add_columns(self, n_columns: int) -> Self:
        """The state with columns that were missing in all rows so far."""
        n_columns = min(n_columns, _MOST_COLUMNS - len(self.mean))
        if n_columns <= 0:
            return self
        room = (0, n_columns)
        filters = self.filters.add_features(n_columns, 1.0)
        return type(self)(np.pad(self.mean, room), np.pad(self.counts, room), self.square, filters)


@dataclass(frozen=True)
class Linear(Expert):
    """A linear rule among the columns as they came: less their mean, over the usual norm of rows.

    Scaled columns count alike. Where their own sizes have a meaning, as in embeddings and pixels,
    this expert sees it. It has two softmax filters, weighted by how well each has predicted: one
    forgets nothing, the other has a half-life of 10,000 rows.

    The mean and the norm are those of the rows before. A missing value counts as the mean. A row of
    more than twice the usual norm is shortened to that, so a row of huge values does little harm.
    Of more than 512 columns the first 512 are seen.

    Examples
    --------
    The first columns say all, and are larger than the others:

    >>> from kalstream import KalmanClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((600, 40)) * np.where(np.arange(40) < 3, 5.0, 0.5)
    >>> y = X[:, :3].argmax(axis=1)
    >>> model = KalmanClassifier(experts=[Linear()])
    >>> p = model.predict_then_learn(X, y)
    >>> bool((p.argmax(axis=1) == y)[300:].mean() > 0.9)
    True
    """

    tag: ClassVar[str] = "kalstream.Linear"
    name: ClassVar[str] = "linear"
    state_type: ClassVar[type] = LinearState

    def start(self, n_columns: int, n_classes: int) -> LinearState:
        """Nothing is known."""
        n_columns = min(n_columns, _MOST_COLUMNS)
        filters = FILTERS.start(1 + n_columns, n_classes, prior_var=1.0)
        return LinearState(np.zeros(n_columns), np.zeros(n_columns), 0.0, filters)

    def advance(self, state: LinearState, rows: ExpertRows) -> tuple[LinearState, Array]:
        """Predict each row, then learn its label if it has one."""
        from kalstream.core._kernels.experts import centre_rows
        from kalstream.core._kernels.linear import HIDDEN

        if not len(rows):
            return state, np.empty((0, state.n_classes))
        if rows.columns.shape[1] > _MOST_COLUMNS:
            rows = replace(rows, columns=rows.columns[:, :_MOST_COLUMNS].copy())
        alone = _pass_alone(state, rows) if len(rows) == 1 else None
        if alone is not None:
            return alone
        mean, counts = state.mean.copy(), state.counts.copy()
        moments = mean, counts, state.square
        phi, square = centre_rows(rows.columns, rows.labels, LARGEST, REACH, *moments)
        learned, filters, out = rows.labels >= 0, state.filters, []
        for part in runs(learned) if len(rows) > 1 else [slice(0, 1)]:
            if learned[part.start]:
                known = _rows_of(filters.seen, phi[part], rows, part)
                seen = _seen_before(filters.seen, rows.labels[part])
                filters, step = FILTERS.step_rows(filters, known, False)
            else:
                gap, seen = rows.gap[part], filters.seen
                step = FILTERS.predict(filters, phi[part], prior_var=1.0, time_gap=gap)
            if not seen.all():
                hidden = np.where(seen, step.logit_mean, HIDDEN)
                step = replace(step, bank=replace(step.bank, logit_mean=hidden))
            out.append(np.log(np.maximum(step.class_probabilities(method="probit"), LEAST)))
        made = out[0] if len(out) == 1 else np.concatenate(out)
        if filters is state.filters:
            return state, made
        return check.trusted(LinearState, mean, counts, square, filters), made


def _pass_alone(state: LinearState, rows: ExpertRows) -> tuple[LinearState, Array] | None:
    """`Linear.advance` of one row in one compiled call; None if it has to go the long way."""
    filters, learns = state.filters, rows.labels[0] >= 0
    bank: Any = filters.bank
    label, n_rows = rows.labels[0], 0 if bank.rows is None else bank.rows.shape[1]
    usual = max(filters.n_features, len(filters.seen)) <= FEW_FEATURES
    if learns:
        usual = usual and filters.seen[label] and rows.weight[0] == 1.0
    if not usual or n_rows == pending_capacity(filters.n_features):
        return None
    # The way is the same whoever shares the room: another would round in another way.
    room = bank.room
    if room is None or room.rows.shape[1] == n_rows or (learns and not room.claim(n_rows)):
        room = _own_room(bank, n_rows)
    pending = room.rows, room.coefficients
    mean, counts, scales, log_weights = state.mean, state.counts, bank.scales, filters.log_weights
    if learns:
        mean, counts, scales, log_weights = (
            each.copy() for each in (mean, counts, scales, log_weights)
        )
    from kalstream.core._kernels.linear import pass_linear

    bank.lend()
    own = bank.arrays
    made, square, sound = pass_linear(
        *(rows.columns, rows.labels, rows.gap, (LARGEST, REACH), mean, counts, state.square),
        *(filters.seen, (own.mirrored(), own.mean, *pending), n_rows),
        *(scales, log_weights, _settings(), FILTERS.share, (_EPSILON, ROUNDING_LIMITS), LEAST),
    )
    if not sound:
        return None
    if not learns:
        return state, made
    behind, coefficients = (part[:, : n_rows + 1] for part in pending)
    after = Bank(bank.stored, scales, behind, coefficients, room)
    grids = filters.half_lives, filters.calibrations
    rest = filters.seen, filters.spread, filters.likelihoods, filters.prior_scales
    learned = check.trusted(MixtureState, after, *grids, log_weights, *rest)
    return check.trusted(LinearState, mean, counts, square, learned), made


def _own_room(bank: Any, n_rows: int) -> Room:
    """Room for pending rows that nobody shares, with those that there are."""
    n_filters, m, n_outputs = bank.arrays.mean.shape
    room = Room((n_filters,), pending_capacity(m), (m, n_outputs), np.float64)
    if n_rows:
        room.rows[:, :n_rows], room.coefficients[:, :n_rows] = bank.rows, bank.coefficients
    room.claim(n_rows)
    return room


@cache
def _settings() -> tuple[Array, ...]:
    """Those of the filters, as `row.learn_row` takes them."""
    return (
        gammas_of(FILTERS.half_lives),
        prior_vars_of(FILTERS.prior_scales, 1.0, np.dtype(np.float64)),
        np.array(FILTERS.prior_scales),
        grid_of(FILTERS.calibrations, FILTERS.n_filters),
        codes_of(FILTERS.likelihoods, True),
    )


def _seen_before(seen: Array, labels: Array) -> Array:
    """Whether each class had been seen before each row: (K,), or (b, K) if that changes."""
    if seen[labels].all():
        return seen
    came = np.vstack([seen, np.eye(len(seen), dtype=bool)[labels[:-1]]])
    return np.logical_or.accumulate(came)


def _rows_of(seen: Array, phi: Array, rows: ExpertRows, part: slice) -> Rows:
    """A part of the rows, all with labels, as the filters take them; made without checks."""
    from kalstream.core._kernels.observing import arrivals

    labels, weight = rows.labels[part], np.maximum(rows.weight[part], _LEAST_WEIGHT)
    targets = Targets(labels, None, np.ones(len(labels), bool))
    noise = 1.0 / weight
    came = arrivals(labels, noise, seen)
    return Rows(phi, targets, noise, weight, rows.gap[part], 1.0, False, True, *came)
