"""Nearest rows of a window: what has a fine local structure, which no linear readout can see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Final, Self

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.experts.expert import Expert, ExpertRows, ExpertState
from kalstream.errors import InvalidInput

# Numbers of neighbours that vote, and votes for the class frequencies that are added to theirs.
SIZES: Final = np.array([1, 3, 10, 30])
PULLS: Final = np.array([0.1, 1.0])
# Newest parts of the window that vote apart, as divisors of its size.
PARTS: Final = np.array([10, 1])
_N_METRICS: Final = 3
N_VOICES: Final = len(PARTS) * len(SIZES) * len(PULLS)
# Values in the window at most: each row is compared with all of them.
_MOST_VALUES: Final = 1_000_000
# Probability, at each row, that another number of neighbours or pull becomes the best one.
SHARE: Final = 0.001
# A metric that has had little weight for about 1,000 rows speaks at one row in 16 only: the largest
# weight of each fades by this factor from row to row.
SLEEP: Final = (16, 0.997)
# Columns are weighed again when this part of the window is new.
GROWTH: Final = 16
# Free places of a window that has just grown, at least.
_ROOM: Final = 64


@dataclass(frozen=True, slots=True)
class NeighboursState(ExpertState):
    """The window of `Neighbours`.

    A later state may put rows behind the first ``stop`` of the window and its weights, so that a
    row costs no copy of them. ``end`` says how many places are taken by any state that shares them.

    Attributes
    ----------
    window : (d, C) float32
        A column of the array for each row, minus the origin: these are compared with a new row
        at once.
    weights : (C,)
    end : (1,) int
    stop : int
        Places of this state.
    origin : (d,)
        The first values that were learned, NaN in columns without any.
    means, scales : (d,) float32, (3, d) float32
        Of each column: its mean in the window, and its factor in each metric.
    clock : (2,) int
        How many rows were learned, and at how many columns are weighed next.
    labels : (C,) int
        -1 for a row that was dropped. Rows behind ``stop`` have no meaning.
    counts : (K,)
        Rows of each class in the window.
    belief : (3, V)
        Weights of the numbers of neighbours, in each metric, of each part of the window and with
        every pull.
    heard : (3,)
        The largest weight of each metric, which fades from row to row.
    """

    tag: ClassVar[str] = "kalstream.NeighboursState"

    window: Array
    weights: Array
    end: Array
    stop: int
    origin: Array
    means: Array
    scales: Array
    clock: Array
    labels: Array
    counts: Array
    belief: Array
    heard: Array

    def __post_init__(self) -> None:
        d, capacity = np.shape(self.window) if np.ndim(self.window) == 2 else (-1, -1)
        places = check.is_block(self.labels, (capacity,), np.int64)
        places = places and check.is_block(self.end, (1,), np.int64)
        places = places and check.is_block(self.window, (d, capacity), np.float32)
        if not (places and type(self.stop) is int and 0 <= self.stop <= self.end[0] <= capacity):
            raise InvalidInput("the window of neighbours has parts of other sizes; start again")
        columns = check.is_block(self.means, (d,), np.float32)
        columns = columns and check.is_block(self.scales, (_N_METRICS, d), np.float32)
        if not (columns and check.is_block(self.clock, (2,), np.int64)):
            raise InvalidInput("the columns of neighbours have other sizes; start again")
        check.block("the weights of neighbours", self.weights, (capacity,))
        check.block("the origin of neighbours", self.origin, (d,))
        check.block("the beliefs of neighbours", self.belief, (_N_METRICS, N_VOICES))
        check.block("the fading weights of neighbours", self.heard, (_N_METRICS,))
        check.block("the counts of neighbours", self.counts, (len(self.counts),))
        known = self.labels[: self.stop]
        counted = np.bincount(known[known >= 0], minlength=len(self.counts))
        sound = not (counted.shape != self.counts.shape or (counted != self.counts).any())
        sound = sound and bool((self.belief > 0.0).all() and (self.heard > 0.0).all())
        sound = sound and bool(abs(self.belief.sum() - 1.0) < 1e-6 and self.heard.max() >= 0.05)
        sound = sound and bool(np.isfinite(self.weights[: self.stop]).all())
        sound = sound and bool(np.isfinite(self.means).all() and (self.scales >= 0.0).all())
        sound = sound and bool(np.isfinite(self.scales).all())
        sound = sound and not np.isinf(self.origin).any() and 0 <= self.clock[0] < self.clock[1]
        if not (sound and known.min(initial=0) >= -1):
            raise InvalidInput("the window of neighbours holds bad numbers; start again")

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        parts = (getattr(self, name) for name in self.__slots__ if name != "stop")
        return sum(part.nbytes for part in parts)

    def add_classes(self, n_classes: int) -> Self:
        """The state with ``n_classes`` classes."""
        return replace(self, counts=np.pad(self.counts, (0, n_classes - self.n_classes)))

    def keep_classes(self, columns: Array) -> Self:
        """The state with these classes only; rows of others are dropped."""
        place = np.full(self.n_classes + 1, -1)
        place[columns] = np.arange(len(columns))
        labels = np.full_like(self.labels, -1)
        labels[: self.stop] = place[self.labels[: self.stop]]
        return replace(self, labels=labels, counts=self.counts[columns])

    def add_columns(self, n_columns: int) -> Self:
        """The state with columns that were missing in all rows so far."""
        scales = np.pad(self.scales, ((0, 0), (0, n_columns)))
        scales[0] = 1.0
        return replace(
            self,
            window=np.pad(self.window, ((0, n_columns), (0, 0))),
            weights=self.weights.copy(),
            end=np.array([self.stop]),
            origin=np.pad(self.origin, (0, n_columns), constant_values=np.nan),
            means=np.pad(self.means, (0, n_columns)),
            scales=scales,
        )

    def places(self) -> tuple[Array, Array, Array]:
        """Window, weights and end, of which a kernel may write behind the window."""
        if self.end[0] > self.stop:  # another state has written there
            return self.window.copy(), self.weights.copy(), np.array([self.stop])
        return self.window, self.weights, self.end

    def saved(self) -> Self:
        """The state with nothing behind its window, and as much room."""
        window, weights, labels = self.window.copy(), self.weights.copy(), self.labels.copy()
        window[:, self.stop :], weights[self.stop :], labels[self.stop :] = 0.0, 0.0, -1
        return replace(
            self, window=window, weights=weights, labels=labels, end=np.array([self.stop])
        )

    def changing(self) -> tuple[Array, ...]:
        """The arrays that a kernel changes where they are."""
        columns = self.origin, self.means, self.scales, self.clock
        return *columns, self.labels, self.counts, self.belief, self.heard

    def grown(self) -> Self:
        """The state with room for more rows, without those that were dropped."""
        live = np.flatnonzero(self.labels[: self.stop] >= 0)
        n, capacity = len(live), len(live) + max(_ROOM, len(live) // 4)
        window = np.zeros((len(self.window), capacity), np.float32)
        weights, labels = np.zeros(capacity), np.full(capacity, -1)
        window[:, :n] = self.window[:, live]
        weights[:n], labels[:n] = self.weights[live], self.labels[live]
        columns, more = self.changing()[:4], self.changing()[5:]
        places = window, weights, np.array([n]), n
        return check.trusted(type(self), *places, *columns, labels, *more)


@dataclass(frozen=True)
class Neighbours(Expert):
    """The classes of the nearest rows, exactly, among the last ``limit`` rows.

    Distances are Euclidean in three metrics: on the columns as they came, on columns divided by
    their standard deviation in the window, and on these times the root of the share of their
    variance that lies between classes. In each metric the nearest 1, 3, 10 and 30 rows vote, of
    the whole window and of its newest tenth. Each of these, with a weak and a strong pull to the
    class frequencies, is one voice. The probabilities of the voices are averaged, weighted by how
    well each has predicted. So there is no metric and no number of neighbours to choose. A metric
    that has had little weight for about 1,000 rows is tried at one row in 16, and costs little.

    Where the stack would lose less than 0.0005 in log-loss without this expert, it sleeps: it only
    keeps rows, and is tried again in one thousand rows of sixteen thousand, at first more often.

    A missing value counts as the mean. Values are kept in float32, as differences from the first
    row.

    A new row takes the place of the oldest one. But half of the window is kept for the classes in
    equal parts, so a burst of one class does not flush the rest.

    Attributes
    ----------
    limit : int
        Most rows in the window; with more than 200 columns fewer, so that it has at most a million
        values.

    Examples
    --------
    A chessboard of labels, of which a linear readout of the columns sees nothing:

    >>> from kalstream import KalmanClassifier
    >>> X = np.random.default_rng(0).random((1500, 2))
    >>> y = (5.0 * X).astype(int).sum(axis=1) % 2
    >>> model = KalmanClassifier(features="scaled", experts=[Neighbours()])
    >>> p = model.predict_then_learn(X, y)
    >>> bool((p.argmax(axis=1) == y)[1000:].mean() > 0.8)
    True
    """

    tag: ClassVar[str] = "kalstream.Neighbours"
    name: ClassVar[str] = "neighbours"
    state_type: ClassVar[type] = NeighboursState
    sleeps: ClassVar[bool] = True

    limit: int = 5000

    def __post_init__(self) -> None:
        check.count("limit", self.limit)

    def start(self, n_columns: int, n_classes: int) -> NeighboursState:
        """An empty window."""
        places = np.zeros((0, 0), np.float32), np.zeros(0), np.zeros(1, np.int64), 0
        columns = np.zeros(0), np.zeros(0, np.float32), np.zeros((_N_METRICS, 0), np.float32)
        clock, belief = np.array([0, 1]), np.ones((_N_METRICS, N_VOICES))
        more = clock, np.zeros(0, np.int64), np.zeros(n_classes), belief / belief.size
        empty = NeighboursState(*places, *columns, *more, np.ones(_N_METRICS))
        return empty.add_columns(n_columns)

    def advance(self, state: NeighboursState, rows: ExpertRows) -> tuple[NeighboursState, Array]:
        """Predict each row, then put it into the window if it has a label."""
        return self._passed(state, rows, np.empty((len(rows), state.n_classes)))

    def watch(self, state: NeighboursState, rows: ExpertRows) -> NeighboursState:
        """The state with rows in the window that are not predicted."""
        return self._passed(state, rows, np.empty((0, state.n_classes)))[0]

    def _passed(
        self, state: NeighboursState, rows: ExpertRows, out: Array
    ) -> tuple[NeighboursState, Array]:
        from kalstream.core._kernels.experts import pass_neighbours

        left: tuple[Array, ...] = rows.columns, rows.labels, rows.weight, out
        now = state
        learns = rows.labels[0] >= 0 if len(rows) == 1 else (rows.labels >= 0).any()
        changing = [each.copy() for each in now.changing()] if learns else now.changing()
        fixed = _newest_of(self.limit, rows.columns.shape[1]), SIZES, PULLS, SHARE, SLEEP, GROWTH
        while True:
            window, weights, end = now.places() if learns else (now.window, now.weights, now.end)
            places = window, now.stop, weights, *changing
            passed, stop = pass_neighbours(*left[:3], *fixed, *places, left[3])
            if not learns:
                return state, out
            end[0] = stop
            now = check.trusted(NeighboursState, window, weights, end, stop, *changing)
            if passed == len(left[0]):
                return now, out
            now, left = now.grown(), tuple(part[passed:] for part in left)
            changing = now.changing()


@lru_cache
def _newest_of(limit: int, n_columns: int) -> Array:
    """Sizes of the parts of a window that vote apart; do not change the array."""
    limit = min(limit, max(_MOST_VALUES // n_columns, int(SIZES[-1])))
    return np.maximum(limit // PARTS, 1)
