"""Boosted trees of a window: thresholds and interactions of columns, at a price.

This expert stands above the core, which knows no other learning library.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Final, Self

import numpy as np

from kalstream._arrays import Array
from kalstream.core import Expert, ExpertRows, ExpertState
from kalstream.core import checks as check
from kalstream.core.tagged import Tagged
from kalstream.errors import InvalidInput

# The first trees, by the number of learned rows; later ones come every `Trees.every` rows.
FIRST: Final = (100, 200, 400)
# Share of the class frequencies in each prediction.
SHARE: Final = 0.02
# Rounds of boosting, and those with many classes: each class has a tree in every round.
ROUNDS, FEW_ROUNDS, MANY_CLASSES = 60, 20, 10
# With more classes times columns a fit would take minutes, and other experts see these better.
_MOST_WORK: Final = 5_000
# Larger values and weights count as these, and smaller weights as the least one.
_LARGEST: Final = 1e15
_WEIGHTS: Final = (1e-9, 10.0)
# Free places of a window that has just grown, at least.
_ROOM: Final = 64


@dataclass(frozen=True)
class TreesFit(Tagged):
    """When trees were fitted, and these trees once they are needed. States share it.

    The trees are a function of the rows before that moment. So no file holds them, and a state that
    was loaded fits them again. Only a state with the same rows may share this object.

    Attributes
    ----------
    learned : int
        Rows that had been learned; 0 if there are no trees yet.
    """

    tag: ClassVar[str] = "kalstream.TreesFit"

    learned: int

    def __reduce__(self) -> tuple[Any, ...]:
        return TreesFit, (self.learned,)  # without the trees

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def trees(self, expert: Trees, state: TreesState) -> Any:
        """The trees, or None; fitted at the first call with these settings."""
        known = self.__dict__.get("known")
        if known is None or known[0] != expert:
            known = expert, _fitted(*state.training(expert.limit))
            self.__dict__["known"] = known
        return known[1]


@dataclass(frozen=True, slots=True)
class TreesState(ExpertState):
    """The window of `Trees`.

    A later state may put rows behind the first ``stop`` of the window, so that a row costs no copy
    of them. ``end`` says how many places are taken by any state that shares the arrays.

    Attributes
    ----------
    window : (C, d) float32
    weights : (C,)
    labels : (C,) int
        -1 for a row whose class was dropped. Rows behind ``stop`` have no meaning.
    end : (1,) int
    stop : int
        Places of this state.
    learned : int
        Rows that were learned; the last of them is at the place ``stop - 1``.
    counts : (K,)
        Rows of each class; they are halved whenever trees are fitted.
    fit : TreesFit
    """

    tag: ClassVar[str] = "kalstream.TreesState"

    window: Array
    weights: Array
    labels: Array
    end: Array
    stop: int
    learned: int
    counts: Array
    fit: TreesFit = field(repr=False)

    def __post_init__(self) -> None:
        capacity, d = np.shape(self.window) if np.ndim(self.window) == 2 else (-1, -1)
        places = check.is_block(self.labels, (capacity,), np.int64)
        places = places and check.is_block(self.end, (1,), np.int64)
        places = places and check.is_block(self.window, (capacity, d), np.float32)
        places = places and check.is_block(self.weights, (capacity,))
        places = places and type(self.stop) is int and type(self.learned) is int
        if not (places and 0 <= self.stop <= self.end[0] <= capacity):
            raise InvalidInput("the window of trees has parts of other sizes; start again")
        sound = type(self.fit) is TreesFit and type(self.fit.learned) is int
        sound = sound and 0 <= self.fit.learned <= self.learned and self.stop <= self.learned
        check.block("the counts of trees", self.counts, (len(self.counts),))
        labels, weights = self.labels[: self.stop], self.weights[: self.stop]
        sound = sound and labels.min(initial=0) >= -1 and labels.max(initial=-1) < self.n_classes
        sound = sound and bool((self.counts >= 0.0).all() and np.isfinite(self.counts).all())
        sound = sound and bool(((weights >= _WEIGHTS[0]) & (weights <= _WEIGHTS[1])).all())
        if not (sound and not (np.abs(self.window[: self.stop]) > np.float32(_LARGEST)).any()):
            raise InvalidInput("the window of trees holds bad numbers; start again")

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays; the trees take a few megabytes more."""
        parts = self.window, self.weights, self.labels, self.end, self.counts
        return sum(part.nbytes for part in parts)

    def add_classes(self, n_classes: int) -> Self:
        """The state with ``n_classes`` classes, of which the trees do not know the new ones."""
        return replace(self, counts=np.pad(self.counts, (0, n_classes - self.n_classes)))

    def keep_classes(self, columns: Array) -> Self:
        """The state with these classes only; rows of others are dropped, and trees fitted again."""
        place = np.full(self.n_classes + 1, -1)
        place[columns] = np.arange(len(columns))
        labels = np.full_like(self.labels, -1)
        labels[: self.stop] = place[self.labels[: self.stop]]
        return self._with(self.window.copy(), labels, self.counts[columns])

    def add_columns(self, n_columns: int) -> Self:
        """The state with columns that were missing in all rows so far."""
        window = np.pad(self.window, ((0, 0), (0, n_columns)), constant_values=np.nan)
        return self._with(window, self.labels.copy(), self.counts)

    def _with(self, window: Array, labels: Array, counts: Array) -> Self:
        """The state with other rows, so that nobody shares its arrays or its trees."""
        own = self.weights.copy(), labels, np.array([self.stop]), self.stop, self.learned
        return check.trusted(type(self), window, *own, counts, TreesFit(self.fit.learned))

    def training(self, limit: int) -> tuple[Array, Array, Array]:
        """Rows (n, d), labels and weights that the trees in use were fitted to."""
        stop = self.fit.learned - (self.learned - self.stop)
        part = slice(max(stop - limit, 0), max(stop, 0))
        known = self.labels[part] >= 0
        return self.window[part][known], self.labels[part][known], self.weights[part][known]

    def turned(self, counts: Array, fit: TreesFit) -> Self:
        """The state with other counts and trees."""
        kept = self.window, self.weights, self.labels, self.end, self.stop, self.learned
        return check.trusted(type(self), *kept, counts, fit)

    def saved(self) -> Self:
        """The state without room behind its window."""
        kept = (each[: self.stop].copy() for each in (self.window, self.weights, self.labels))
        own = *kept, np.array([self.stop]), self.stop, self.learned
        return check.trusted(type(self), *own, self.counts, self.fit)

    def with_rows(self, rows: Array, labels: Array, weights: Array, limit: int) -> Self:
        """The state with rows (n, d) behind the others; they are written into free places."""
        stop = self.stop + len(rows)
        room = self
        if self.end[0] != self.stop or stop > len(self.labels):
            room = self._moved(limit, len(rows))
            stop = room.stop + len(rows)
        part = slice(room.stop, stop)
        room.window[part], room.labels[part], room.weights[part] = rows, labels, weights
        room.end[0] = stop
        kept, learned = (room.window, room.weights, room.labels, room.end), self.learned + len(rows)
        return check.trusted(type(self), *kept, stop, learned, self.counts, self.fit)

    def _moved(self, limit: int, n: int) -> Self:
        """The same state in arrays of its own, with room for n rows, without rows of no use."""
        # Trees are fitted to these rows, and the next ones to later rows.
        first = max(self.fit.learned - limit - (self.learned - self.stop), 0)
        size = self.stop - first
        capacity = size + max(_ROOM, size // 4, n)
        window = np.zeros((capacity, self.window.shape[1]), np.float32)
        weights, labels = np.zeros(capacity), np.full(capacity, -1)
        old = slice(first, self.stop)
        window[:size], weights[:size] = self.window[old], self.weights[old]
        labels[:size] = self.labels[old]
        place = np.array([size]), size, self.learned
        return check.trusted(type(self), window, weights, labels, *place, self.counts, self.fit)


@dataclass(frozen=True)
class Trees(Expert):
    """Boosted trees, fitted again and again to the last ``limit`` rows.

    These are those of `sklearn.ensemble.HistGradientBoostingClassifier`, 60 rounds, or 20 with more
    than 10 classes. They see what depends on thresholds of columns, or on several at once, in any
    unit, and know missing values. They are fitted first after 100, 200 and 400 rows, then every
    ``every`` rows. Class frequencies speak until then, and later with a share of 0.02. A new class
    has only these until trees are fitted to it. With more than 5,000 classes times columns, such as
    embeddings with a hundred classes, no trees are fitted.

    A fit takes from tens of milliseconds to seconds, on one thread, in the next call that predicts.
    A call of few rows takes 4 microseconds for each tree: 0.3 ms with two classes, 1.7 ms
    with seven. So pass many rows at once.

    A file holds the rows, not the trees. These are fitted again when a loaded model is first used,
    and are the same bit for bit with the same version of scikit-learn.

    Attributes
    ----------
    limit : int
        Most rows that trees are fitted to.
    every : int
        Learned rows between two fits.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> X = np.random.default_rng(0).standard_normal((1500, 10))
    >>> y = np.searchsorted([-0.7, 0.0, 0.7], X[:, 0]) % 2
    >>> p = KalmanClassifier(experts=[Trees()]).predict_then_learn(X, y)
    >>> bool((p.argmax(axis=1) == y)[1000:].mean() > 0.9)
    True
    """

    tag: ClassVar[str] = "kalstream.Trees"
    name: ClassVar[str] = "trees"
    state_type: ClassVar[type] = TreesState

    limit: int = 5000
    every: int = 1000

    def __post_init__(self) -> None:
        check.count("limit", self.limit)
        check.count("every", self.every)

    def start(self, n_columns: int, n_classes: int) -> TreesState:
        """No row, and no trees."""
        arrays = np.zeros((0, n_columns), np.float32), np.zeros(0), np.zeros(0, np.int64)
        return TreesState(*arrays, np.zeros(1, np.int64), 0, 0, np.zeros(n_classes), TreesFit(0))

    def advance(self, state: TreesState, rows: ExpertRows) -> tuple[TreesState, Array]:
        """Predict each row, then learn its label if it has one; trees are fitted when due."""
        columns = np.clip(rows.columns, -_LARGEST, _LARGEST).astype(np.float32)
        out = np.empty((len(rows), state.n_classes))
        places, n_learned, start = np.flatnonzero(rows.labels >= 0), 0, 0
        while start < len(rows):
            due = n_learned + self._until_next(state.learned)
            stop = int(places[due - 1]) + 1 if due <= len(places) else len(rows)
            learns = places[n_learned:due]
            labels, weights = rows.labels[learns], np.clip(rows.weight[learns], *_WEIGHTS)
            added = np.zeros((stop - start, state.n_classes))
            added[learns - start, labels] = weights
            counts = np.cumsum(np.vstack([state.counts[None], added]), axis=0)
            out[start:stop] = self._predicted(state, columns[start:stop], counts[:-1])
            if len(learns):
                state = state.with_rows(columns[learns], labels, weights, self.limit)
                state = self._turned(state, counts[-1], due <= len(places))
            n_learned, start = due, stop
        return state, out

    def _until_next(self, learned: int) -> int:
        """Rows to learn until trees are fitted."""
        first = [n for n in FIRST if learned < n < self.every]
        return min([*first, self.every * (learned // self.every + 1)]) - learned

    def _turned(self, state: TreesState, counts: Array, due: bool) -> TreesState:
        """The state with other counts; its trees are those of now if they are due."""
        if not due:
            return state.turned(counts, state.fit)
        return state.turned(0.5 * counts, TreesFit(state.learned))

    def _predicted(self, state: TreesState, rows: Array, counts: Array) -> Array:
        """Log-probabilities (b, K) of rows, before which classes had these counts (b, K)."""
        # Nothing depends on when classes are declared.
        total = np.where(counts > 0.0, counts + 1.0, 0.0).sum(axis=1, keepdims=True)
        usual = (counts + 1.0) / np.where(counts > 0.0, total, total + 1.0)
        trees = state.fit.trees(self, state) if state.fit.learned else None
        if trees is None:
            return np.log(usual)
        model, columns = trees
        with _openmp().limit(limits=1):
            made = model.predict_proba(rows[:, columns])
        mixed = SHARE * usual
        mixed[:, model.classes_] += (1.0 - SHARE) * made
        return np.log(mixed)


def _fitted(rows: Array, labels: Array, weights: Array) -> tuple[Any, Array] | None:
    """Trees fitted to rows (n, d), and the columns they read; None if nothing can be learned."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    # scikit-learn refuses columns without any value.
    columns = np.flatnonzero(~np.isnan(rows).all(axis=0))
    n_classes = len(np.unique(labels))
    if n_classes < 2 or not 0 < n_classes * len(columns) <= _MOST_WORK:
        return None
    rounds = ROUNDS if n_classes <= MANY_CLASSES else FEW_ROUNDS
    model = HistGradientBoostingClassifier(max_iter=rounds, early_stopping=False, random_state=0)
    # With weights scikit-learn takes up to ten times as long to find the bins.
    different = weights if (weights != weights[0]).any() else None
    with _openmp().limit(limits=1):
        model.fit(rows[:, columns], labels, sample_weight=different)
    return model, columns


@cache
def _openmp() -> Any:
    """The thread pools of scikit-learn. Its limit holds for the calling thread alone."""
    import sklearn.ensemble  # noqa: F401  (its pools must be loaded to be found)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="openmp")
