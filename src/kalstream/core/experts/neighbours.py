"""Nearest rows of a window: what has a fine local structure, which no linear readout can see."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
N_VOICES: Final = len(PARTS) * len(SIZES) * len(PULLS)
# Probability, at each row, that another number of neighbours or pull becomes the best one.
SHARE: Final = 0.001
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
        A column of the array for each row: these are compared with a new row at once.
    weights : (C,)
    end : (1,) int
    stop : int
        Places of this state.
    labels : (C,) int
        -1 for a row that was dropped. Rows behind ``stop`` have no meaning.
    counts : (K,)
        Rows of each class in the window.
    belief : (V,)
        Weights of the numbers of neighbours, of each part of the window and with every pull.
    """

    tag: ClassVar[str] = "kalstream.NeighboursState"

    window: Array
    weights: Array
    end: Array
    stop: int
    labels: Array
    counts: Array
    belief: Array

    def __post_init__(self) -> None:
        d, capacity = np.shape(self.window) if np.ndim(self.window) == 2 else (-1, -1)
        places = check.is_block(self.labels, (capacity,), np.int64)
        places = places and check.is_block(self.end, (1,), np.int64)
        places = places and check.is_block(self.window, (d, capacity), np.float32)
        if not (places and type(self.stop) is int and 0 <= self.stop <= self.end[0] <= capacity):
            raise InvalidInput("the window of neighbours has parts of other sizes; start again")
        check.block("the weights of neighbours", self.weights, (capacity,))
        check.block("the beliefs of neighbours", self.belief, (N_VOICES,))
        check.block("the counts of neighbours", self.counts, (len(self.counts),))
        known = self.labels[: self.stop]
        counted = np.bincount(known[known >= 0], minlength=len(self.counts))
        sound = not (counted.shape != self.counts.shape or (counted != self.counts).any())
        sound = sound and bool((self.belief > 0.0).all() and np.isfinite(self.belief).all())
        sound = sound and bool(np.isfinite(self.weights[: self.stop]).all())
        if not (sound and known.min(initial=0) >= -1):
            raise InvalidInput("the window of neighbours holds bad numbers; start again")

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        parts = self.window, self.weights, self.end, self.labels, self.counts, self.belief
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
        """The state with columns that had the mean in all rows so far."""
        return replace(
            self,
            window=np.pad(self.window, ((0, n_columns), (0, 0))),
            weights=self.weights.copy(),
            end=np.array([self.stop]),
        )

    def own(self) -> Self:
        """The state with a window behind which it may write: nobody else has."""
        if self.end[0] == self.stop:
            return self
        return check.trusted(
            type(self),
            *(self.window.copy(), self.weights.copy(), np.array([self.stop]), self.stop),
            *(self.labels, self.counts, self.belief),
        )

    def grown(self) -> Self:
        """The state with room for more rows, without those that were dropped."""
        live = np.flatnonzero(self.labels[: self.stop] >= 0)
        n, capacity = len(live), len(live) + max(_ROOM, len(live) // 4)
        window = np.zeros((len(self.window), capacity), np.float32)
        weights, labels = np.zeros(capacity), np.full(capacity, -1)
        window[:, :n] = self.window[:, live]
        weights[:n], labels[:n] = self.weights[live], self.labels[live]
        more = labels, self.counts, self.belief
        return check.trusted(type(self), window, weights, np.array([n]), n, *more)


@dataclass(frozen=True)
class Neighbours(Expert):
    """The classes of the nearest rows, exactly, among the last ``limit`` rows.

    The nearest 1, 3, 10 and 30 rows vote, of the whole window and of its newest tenth. Each of
    these, with a weak and a strong pull to the class frequencies, is one voice. The probabilities
    of the voices are averaged, weighted by how well each has predicted. So there is no number of
    neighbours to choose.

    Distances are Euclidean, in float32, on the columns as the features see them: with the default
    in standard deviations of the rows before. A missing value counts as the mean. Rows keep the
    scale that they had when they came, since rows that wait for late labels keep it too.

    A new row takes the place of the oldest one. But half of the window is kept for the classes in
    equal parts, so a burst of one class does not flush the rest.

    Attributes
    ----------
    limit : int
        Most rows in the window.

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

    limit: int = 5000

    def __post_init__(self) -> None:
        check.count("limit", self.limit)

    def start(self, n_columns: int, n_classes: int) -> NeighboursState:
        """An empty window."""
        places = np.zeros((n_columns, 0), np.float32), np.zeros(0), np.zeros(1, np.int64), 0
        belief = np.full(N_VOICES, 1.0 / N_VOICES)
        return NeighboursState(*places, np.zeros(0, np.int64), np.zeros(n_classes), belief)

    def advance(self, state: NeighboursState, rows: ExpertRows) -> tuple[NeighboursState, Array]:
        """Predict each row, then put it into the window if it has a label."""
        from kalstream.core._kernels.experts import pass_neighbours

        n, done = len(rows), 0
        out, learns = np.empty((n, state.n_classes)), bool((rows.labels >= 0).any())
        now, newest = state.own() if learns else state, np.maximum(self.limit // PARTS, 1)
        labels, counts, belief = now.labels.copy(), now.counts.copy(), now.belief.copy()
        while True:
            passed, stop = pass_neighbours(
                *(rows.columns[done:], rows.labels[done:], rows.weight[done:]),
                *(newest, SIZES, PULLS, SHARE),
                *(now.window, now.stop, now.weights, labels, counts, belief, out[done:]),
            )
            if not learns:
                return state, out
            done += passed
            now.end[0] = stop
            places = now.window, now.weights, now.end, stop
            now = check.trusted(NeighboursState, *places, labels, counts, belief)
            if done == n:
                return now, out
            now = now.grown()
            labels = now.labels
