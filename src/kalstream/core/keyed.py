"""A small model for each of many keys: filters of how the key differs from all keys.

What is known of all keys predicts a row first, and its prediction is an offset; the filters of a
key learn what to add (core/README.md, "Keys"). How a target is observed is the part of a class:
`Keyed` for labels, `KeyedValues` for numbers. `keyed_reference` is the plain version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.half_lives import gamma_of
from kalstream.core.records import Records
from kalstream.core.tagged import Tagged
from kalstream.errors import InvalidInput, NumericalError

# Records, predictions and votes; see `Keyed.pass_rows`.
Passed = tuple[Any, Array, Array]
_DOUBLE: Final = 8
_ZERO: Final = b"\0"
_PIECE: Final = 1000  # records
# Prior variance of the intercept, of a column, and half-life in rows of the key, of each filter.
FILTERS: Final = (
    (0.1, 0.1, math.inf),
    (1.0, 0.1, math.inf),
    (1.0, 1.0, math.inf),
    (0.3, 4.0, math.inf),
    (10.0, 10.0, math.inf),
    (1.0, 1.0, 100.0),
)
# For numbers, in units of their noise: keys may differ by much more than it.
VALUE_FILTERS: Final = (
    (0.1, 0.1, math.inf),
    (1.0, 0.1, math.inf),
    (1.0, 1.0, math.inf),
    (10.0, 1.0, math.inf),
    (10.0, 10.0, math.inf),
    (100.0, 100.0, math.inf),
    (1.0, 1.0, 100.0),
)


@dataclass(frozen=True, slots=True)
class Pool:
    """What the targets of all keys say. Never changed.

    Attributes
    ----------
    weights : (1 + F,)
        Log-weights of the hypotheses; the first is that keys are alike.
    level : (2,)
        How many rows were learned, and for numbers the sum of the logarithms of their variances by
        what is known of all keys, both forgotten with ``keep`` a row.
    """

    weights: Array
    level: Array = field(default_factory=lambda: np.zeros(2))


@dataclass(frozen=True, slots=True)
class KeyedState:
    """What is known of keys. Never changed.

    Attributes
    ----------
    used : Pool
        What rows are predicted and learned with: that of all rows up to the last meeting, see
        `Keyed.meets`. So keys can be in several places, which need not tell each other of each row.
    heard : Pool
        That of all rows so far.
    n_rows : int
        Rows that have passed.
    records : Records
        The bytes of each key's record, float64: the number of labels learned, its evidence for the
        hypotheses (1 + F,), lower triangles of the covariances (F, m (m + 1) / 2), and means
        (K, F, m). They come last, so a class that a key has not met may be left out: it is zeros.
    """

    used: Pool
    heard: Pool
    n_rows: int = 0
    records: Any = field(default_factory=Records)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers in memory."""
        pools = self.used, self.heard
        return sum(p.weights.nbytes + p.level.nbytes for p in pools) + self.records.nbytes


@dataclass(frozen=True)
class Keyed(Tagged):
    """Hypotheses about how strongly a key differs: not at all, or as one of F filters.

    Targets are labels here. An offset is the log-probabilities (K,) of a row by what is known of
    all keys, -inf for a class that had not come before; -1 is no label. What is predicted is the
    probabilities (K,), all zeros if no class had come.

    Attributes
    ----------
    n_features : int
        m; the first feature is the constant 1.
    filters : F times (variance, variance, half-life)
        Prior variances of the weight of the constant and of those of the other features, and after
        how many rows of its key a filter has half forgotten.
    own : float
        Weight, beside what all keys say, of each hypothesis being as good as any other for a key.
    share : float
        Probability, at each row, that another hypothesis becomes the best one for all keys.
    keep : float
        What is left of a key's evidence after each of its rows.
    every : int
        Rows from one meeting to the next; see `meets`.
    """

    tag: ClassVar[str] = "kalstream.Keyed"
    missing: ClassVar[float] = -1

    n_features: int
    filters: Sequence[tuple[float, float, float]] = FILTERS
    own: float = 0.02
    share: float = 0.0003
    keep: float = 0.99
    every: int = 1000

    def __post_init__(self) -> None:
        check.count("n_features", self.n_features)
        check.count("every", self.every)
        for name in ("own", "share", "keep"):
            check.unit_interval(name, getattr(self, name))
        variances = np.array([each[:2] for each in self.filters])
        if not (len(variances) and (variances >= 0.0).all() and (variances <= 1e6).all()):
            raise InvalidInput(
                f"filters are {check.shown(self.filters)}; give variances from 0 to 1e6"
            )
        for _, _, half_life in self.filters:
            gamma_of(half_life)

    @cached_property
    def prior_vars(self) -> Array:
        """Variance of each weight before any row (F, m)."""
        return np.array([[a] + [b] * (self.n_features - 1) for a, b, _ in self.filters], float)

    @cached_property
    def gammas(self) -> Array:
        """Forgetting coefficients (F,)."""
        return np.array([gamma_of(half_life) for _, _, half_life in self.filters])

    @cached_property
    def first(self) -> bytes:
        """The record of a key that was never seen, without classes."""
        m = self.n_features
        rows, columns = np.tril_indices(m)
        packed = np.where(rows == columns, self.prior_vars[:, columns], 0.0)
        return np.concatenate([np.zeros(2 + len(packed)), packed.ravel()]).tobytes()

    def n_outputs(self, width: int) -> int:
        """How many means a filter has (K), for offsets (b, width)."""
        return width

    def size(self, n_outputs: int) -> int:
        """Bytes of a record."""
        return len(self.first) + _DOUBLE * n_outputs * len(self.filters) * self.n_features

    def start(self, records: Any = None) -> KeyedState:
        """The state before any row, with these records, which are empty."""
        n = 1 + len(self.filters)
        pool = Pool(np.full(n, -math.log(n)))
        return KeyedState(pool, pool, 0, Records() if records is None else records)

    def meets(self, n_rows: int) -> int:
        """The row after which keys next hear of each other, when so many have passed.

        That is each power of two at first, and then each multiple of ``every``.
        """
        if n_rows >= self.every:
            return (n_rows // self.every + 1) * self.every
        return min(1 << n_rows.bit_length(), self.every)

    def pieces(self, n_rows: int, n: int) -> Iterator[slice]:
        """The next n rows, cut at meetings, when so many have passed; at least one piece."""
        start = 0
        while start < n or start == 0:
            stop = min(self.meets(n_rows + start) - n_rows, n)
            yield slice(start, stop)
            start = max(stop, 1)

    def predict(
        self, state: KeyedState, keys: Sequence[Hashable], features: Array, offsets: Array
    ) -> Array:
        """Predictions of rows; see `advance`."""
        none = np.full(len(features), self.missing), np.ones(len(features))
        rows = keys, features, offsets, *none
        return state.records.passing(self, state.used, rows, learns=False)()[1]

    def advance(
        self,
        state: KeyedState,
        keys: Sequence[Hashable],
        features: Array,
        offsets: Array,
        targets: Array,
        weight: Array,
    ) -> tuple[KeyedState, Array]:
        """Predict each row, then learn its target if it has one; the state given stays as it was.

        Parameters
        ----------
        keys : b keys
        features, offsets, targets : (b, m), (b, width), (b,)
            ``offsets`` are predictions by what is known of all keys, ``targets`` are ``missing``
            for a row that is only predicted.
        weight : (b,)

        Returns
        -------
        state : KeyedState
        predictions : (b, width)
            Before the target was learned.
        """
        rows, cuts = (features, offsets, targets, weight), self.pieces(state.n_rows, len(features))
        pieces = ((keys[at], *(each[at] for each in rows)) for at in cuts)
        state, parts = self.advance_pieces(state, pieces)
        return state, np.concatenate(parts)

    def advance_pieces(
        self, state: KeyedState, pieces: Iterable[tuple[Any, ...]]
    ) -> tuple[KeyedState, list[Array]]:
        """As `advance`, for rows in `pieces`; returns the predictions of each piece.

        A piece is made while the one before it may still pass, where the records are.
        """
        outs: list[Array] = []
        under_way: Callable[[], Passed] | None = None
        for rows in pieces:
            if under_way is not None:
                state, out = self._after(state, under_way())
                outs.append(out)
            under_way = state.records.passing(self, state.used, rows, learns=True)
        assert under_way is not None  # there is at least one piece
        state, out = self._after(state, under_way())
        return state, [*outs, out]

    def _after(self, state: KeyedState, passed: Passed) -> tuple[KeyedState, Array]:
        """The state after rows up to the next meeting, and their predictions (b, width)."""
        from kalstream.core._kernels.keyed import count_votes

        records, out, votes = passed
        weights, level = state.heard.weights.copy(), state.heard.level.copy()
        count_votes(votes, self._rates, weights, level)
        heard, n_rows = Pool(weights, level), state.n_rows + len(out)
        used = heard if n_rows == self.meets(state.n_rows) else state.used
        return KeyedState(used, heard, n_rows, records), out

    def pass_rows(
        self,
        records: Records,
        used: Pool,
        keys: Sequence[Hashable],
        features: Array,
        offsets: Array,
        targets: Array,
        weight: Array,
    ) -> tuple[dict[Hashable, bytes], Array, Array]:
        """Predict and learn rows of keys that are here, up to the next meeting; see `advance`.

        Returns
        -------
        changes : dict
            Records that are new or changed.
        predictions : (b, width)
        votes : (b, 2 + F)
            What each row's target says to all keys, NaN if nothing; they are counted after it.
        """
        index: dict[Hashable, int] = {}
        places = np.array([index.setdefault(key, len(index)) for key in keys], np.int64)
        size = self.size(self.n_outputs(offsets.shape[1]))
        known = records.several([*index], self.first)
        made = bytearray().join([record.ljust(size, _ZERO) for record in known])
        block = np.frombuffer(made, np.float64).reshape(len(index), size // _DOUBLE)
        out, votes = np.empty(offsets.shape), np.full((len(offsets), 2 + len(self.filters)), np.nan)
        rows = features, offsets, places, targets, weight
        pool = used.weights, used.level
        self._pass(*rows, self.prior_vars, self.gammas, self._rates, block, *pool, votes, out)
        if not math.isfinite(block.sum()):
            raise NumericalError(
                "the filters of a key overflowed; weights above 1e50 do this, give smaller ones"
            )
        return _rows_of(index, block), out, votes

    @property
    def _rates(self) -> tuple[float, float, float]:
        return self.own, self.share, self.keep

    def _pass(self, *arguments: Any) -> None:
        """Predict and learn rows; changes the block, and writes votes and predictions."""
        from kalstream.core._kernels.keyed import pass_rows

        pass_rows(*arguments)

    def block(self, state: KeyedState, n_outputs: int) -> tuple[list[Hashable], Array]:
        """All keys, and their records as one block (n_keys, size)."""
        size = self.size(n_outputs)
        made = state.records.joined(size)
        return state.records.keys(), np.frombuffer(made).reshape(-1, size // _DOUBLE)

    def of_block(self, start: Any, keys: Sequence[Hashable], block: Array) -> Any:
        """The inverse of `block`: these records, from records that are empty."""
        records = start
        for i in range(0, len(keys), _PIECE):
            at = slice(i, i + _PIECE)
            records = records.updated(_rows_of(keys[at], block[at]))
        return records


@dataclass(frozen=True)
class KeyedValues(Keyed):
    """As `Keyed`, for targets that are numbers.

    An offset is the mean and the standard deviation of a target by what is known of all keys, and
    so is what is predicted; NaN is no target. Prior variances are in units of the noise.
    """

    tag: ClassVar[str] = "kalstream.KeyedValues"
    missing: ClassVar[float] = math.nan

    filters: Sequence[tuple[float, float, float]] = VALUE_FILTERS

    def n_outputs(self, width: int) -> int:
        """One mean, whatever the width of offsets."""
        return 1

    def _pass(self, *arguments: Any) -> None:
        from kalstream.core._kernels.keyed import pass_values

        pass_values(*arguments)


def _rows_of(keys: Any, records: Array) -> dict[Hashable, bytes]:
    """The bytes of each key's row of records (T, size), where a label was learned."""
    made, size = records.reshape(-1).view(np.uint8).data, _DOUBLE * records.shape[1]
    learned = records[:, 0] > 0.0
    return {
        key: bytes(made[start : start + size])
        for key, start, has in zip(keys, range(0, len(made), size), learned, strict=True)
        if has
    }
