"""Which label follows which: streams whose labels go round, alternate, or come in runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Final, Self

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.experts.expert import Expert, ExpertRows, ExpertState
from kalstream.errors import InvalidInput

# Half-lives of the tables in labels, and labels that count towards the shorter chain.
HALF_LIVES: Final = (32.0, 256.0, 2048.0)
PULLS: Final = np.array([0.1, 1.0])
# Probability, at each row, that another table becomes the best one.
SHARE: Final = 0.001
_N_VOICES: Final = len(HALF_LIVES) * (1 + 2 * len(PULLS))


@dataclass(frozen=True, slots=True)
class LabelChainState(ExpertState):
    """The last labels; tables are counted from them, so many classes need no more memory.

    Attributes
    ----------
    labels : (N,) int
        The last n labels, oldest first. -1 where the label of the next row is unknown.
    n : int
    number : int
        The place, among all rows that came, of the row of the last label.
    recent : (H, K)
        Recent number of labels of each class, for each half-life.
    belief : (V,)
        Weights of the tables.
    """

    tag: ClassVar[str] = "kalstream.LabelChainState"

    labels: Array
    n: int
    number: int
    recent: Array
    belief: Array

    def __post_init__(self) -> None:
        sound = np.ndim(self.labels) == 1 and all(
            type(each) is int for each in (self.n, self.number)
        )
        check.block("the counts of a label chain", self.recent, (len(HALF_LIVES), self.n_classes))
        sound = sound and check.is_block(self.labels, np.shape(self.labels), np.int64)
        sound = sound and 0 <= self.n <= len(self.labels) and self.number >= -1
        known = self.labels[: self.n] if sound else np.zeros(0, np.int64)
        sound = sound and known.min(initial=0) >= -1 and known.max(initial=-1) < self.n_classes
        check.block("the beliefs of a label chain", self.belief, (_N_VOICES,))
        if not (sound and (self.belief > 0.0).all() and np.isfinite(self.belief).all()):
            raise InvalidInput("the label chain holds bad numbers; start again")

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return np.shape(self.recent)[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.labels.nbytes + self.recent.nbytes + self.belief.nbytes

    def add_classes(self, n_classes: int) -> Self:
        """The state with ``n_classes`` classes."""
        room = (0, 0), (0, n_classes - self.n_classes)
        return replace(self, recent=np.pad(self.recent, room))

    def keep_classes(self, columns: Array) -> Self:
        """The state with these classes only; labels of others become unknown."""
        place = np.full(self.n_classes + 1, -1)
        place[columns] = np.arange(len(columns))
        labels = self.labels.copy()
        labels[: self.n] = place[self.labels[: self.n]]
        return replace(self, labels=labels, recent=self.recent.take(columns, 1))

    def add_columns(self, n_columns: int) -> Self:
        """The same state: labels have no columns."""
        return self


@dataclass(frozen=True)
class LabelChain(Expert):
    """The class that usually follows the last label, or the last two labels.

    Transitions of first and second order are counted with half-lives of 32, 256 and 2,048 labels,
    and pulled weakly or strongly to those of the order below. Each of these tables is one voice,
    and so are the class frequencies. The probabilities of the voices are averaged, weighted by how
    well each has predicted.

    Where the label of the row before is unknown, or late, only class frequencies are left. The
    stack hears this expert only in `predict_then_learn`, `ask` and `tell`, and not with
    ``recent_labels=False``.

    Attributes
    ----------
    limit : int
        How many of the last labels are counted.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> X, y = np.random.default_rng(0).random((600, 2)), np.arange(600) % 5
    >>> p = KalmanClassifier(experts=[LabelChain()]).predict_then_learn(X, y)
    >>> bool((p.argmax(axis=1) == y)[300:].mean() > 0.99)
    True
    """

    tag: ClassVar[str] = "kalstream.LabelChain"
    name: ClassVar[str] = "label_chain"
    state_type: ClassVar[type] = LabelChainState
    reads_labels: ClassVar[bool] = True

    limit: int = 4000

    def __post_init__(self) -> None:
        if check.count("limit", self.limit) < 2:
            raise InvalidInput("limit is 1; a chain needs at least 2 labels")

    def start(self, n_columns: int, n_classes: int) -> LabelChainState:
        """No label is known."""
        belief = np.full(_N_VOICES, 1.0 / _N_VOICES)
        recent = np.zeros((len(HALF_LIVES), n_classes))
        return LabelChainState(np.full(self.limit, -1), 0, -1, recent, belief)

    def advance(self, state: LabelChainState, rows: ExpertRows) -> tuple[LabelChainState, Array]:
        """Predict each row from the labels before it, then learn its own."""
        from kalstream.core._kernels.experts import pass_chain

        out = np.empty((len(rows), state.n_classes))
        kept = state.labels, state.recent, state.belief
        labels, recent, belief = (part.copy() for part in kept)
        n, number = pass_chain(
            *(rows.labels, rows.weight, rows.number, _decays_of(len(labels)), PULLS, SHARE),
            *(labels, state.n, state.number, recent, belief, out),
        )
        parts = labels, n, number, recent, belief
        return check.trusted(LabelChainState, *parts), out


@lru_cache
def _decays_of(limit: int) -> Array:
    """Weights of labels by age (N, H); do not change the array."""
    return 0.5 ** (np.arange(limit)[:, None] / np.array(HALF_LIVES))
