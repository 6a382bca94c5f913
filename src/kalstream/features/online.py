"""What a transformer that learns as rows pass must offer."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kalstream.errors import InvalidInput

Array = NDArray[Any]


class OnlineTransformer(Protocol):
    """A transformer that learns as rows pass, as a value: learning returns a new one.

    No method changes the transformer or its arguments, so that others may read it meanwhile. Rows
    are numbers (b, d), NaN where a value is missing. They become columns (b, d'), which are small
    enough to be kept, and these become features (b, m). A file of a model holds the attributes.

    `OnlineScaler` and `RandomFourierFeatures` follow it. A transformer of another kind needs
    ``transform``, and ``advance`` or ``partial_fit``: `Adapted` makes the rest of these.

    Attributes
    ----------
    always_finite : bool
        Whether features are finite for all rows; if not, single rows are checked one by one.
    """

    always_finite: bool

    def width(self, n_columns: int) -> int | None:
        """How many columns (d') rows become; None if only the transformer knows."""

    def columns(self, rows: Array) -> Array:
        """Rows as columns (b, d'), with what is known now."""

    def passed(self, rows: Array) -> tuple[Self, Array]:
        """The transformer after rows that pass, and the columns (b, d') of these.

        Each row is seen with what was known before it.
        """

    def features(self, columns: Array, lead: int, size: float) -> Array:
        """Features (b, lead + m) of columns, after ``lead`` columns of ones.

        ``size`` divides columns that are features themselves; see `with_constant`.
        """

    def with_columns(self, n_columns: int) -> Self:
        """The transformer with columns that were missing (NaN) in all rows so far."""


class Before(Protocol):
    """What rows pass before a transformer sees them, as a value: it adds columns.

    `kalstream.features.Aggregates` follows it.

    Attributes
    ----------
    then : str
        The transformer that comes after it, as ``features=`` of an estimator names it.
    """

    then: str

    def width(self, n_columns: int) -> int:
        """How many columns (d') rows become; an error if rows of d columns do not fit."""

    def columns(self, rows: Array) -> Array:
        """Rows as columns (b, d'), with what is known now."""

    def passed(self, rows: Array) -> tuple[Self, Array]:
        """What is after rows that pass, and the columns (b, d') of these; pure."""

    @property
    def hears(self) -> list[int]:
        """Columns of rows that `told` needs with their targets; [] if targets do not count."""

    def told(self, keys: Array, targets: Any) -> Self:
        """What is after the targets of earlier rows, whose columns `hears` are keys (t, n); pure.

        Targets are a list of t labels, None where unknown, or (t,) numbers, NaN where unknown.
        """

    def with_columns(self, n_columns: int) -> Self:
        """The same with columns that were missing (NaN) in all rows so far; they come last."""


def with_constant(columns: Array, lead: int, size: float) -> Array:
    """Columns (b, m) divided by their size, after ``lead`` columns of ones."""
    n, m = columns.shape
    out = np.empty((n, lead + m))
    out[:, :lead] = 1.0  # the constant comes first: columns may be added behind
    np.divide(columns, size, out=out[:, lead:])
    return out


@dataclass(frozen=True, slots=True)
class Raw:
    """Rows as they are; a missing value becomes 0."""

    always_finite = True

    def width(self, n_columns: int) -> int:
        """As many as there are."""
        return n_columns

    def columns(self, rows: Array) -> Array:
        """The rows themselves."""
        return rows

    def passed(self, rows: Array) -> tuple[Raw, Array]:
        """The rows themselves; nothing is learned."""
        return self, rows

    def features(self, columns: Array, lead: int, size: float) -> Array:
        """Columns divided by their size, 0 where missing."""
        out = with_constant(columns, lead, size)
        out[np.isnan(out)] = 0.0
        return out

    def with_columns(self, n_columns: int) -> Raw:
        """Nothing is known of columns."""
        return self


@dataclass(frozen=True, slots=True)
class Adapted:
    """A transformer of another library, or a user's own, which changes as it learns.

    Attributes
    ----------
    transformer : object with transform, and with advance or partial_fit
        With ``advance``, each row is seen with what was known before it; without, all rows of a
        call are learned first.
    """

    transformer: Any
    always_finite = False

    def width(self, n_columns: int) -> None:
        """Only the transformer knows."""

    def columns(self, rows: Array) -> Array:
        """Rows as the transformer makes them now."""
        return _dense(self.transformer.transform(rows))

    def passed(self, rows: Array) -> tuple[Adapted, Array]:
        """A copy of the transformer after the rows, and what it made of them."""
        learner = copy.deepcopy(self.transformer)  # others may be reading this one
        if hasattr(learner, "advance"):
            made = learner.advance(rows)
        else:
            made = learner.partial_fit(rows).transform(rows)
        return replace(self, transformer=learner), _dense(made)

    def features(self, columns: Array, lead: int, size: float) -> Array:
        """The columns themselves."""
        return with_constant(columns, lead, size)

    def with_columns(self, n_columns: int) -> Adapted:
        """A copy that has grown, if the transformer has a method ``add_columns``."""
        if not hasattr(self.transformer, "add_columns"):
            raise InvalidInput(
                f"features={self.transformer!r} cannot grow by {n_columns} columns; use "
                'features="raw", "scaled" or "fourier", or give the transformer a method '
                "add_columns"
            )
        grown = copy.deepcopy(self.transformer)
        grown.add_columns(n_columns)
        return replace(self, transformer=grown)


def _dense(made: Any) -> Array:
    return np.asarray(made.toarray() if hasattr(made, "toarray") else made, np.float64)


def follows(transformer: Any) -> bool:
    """Whether the class of a transformer itself says how it learns as a value.

    A subclass may change ``transform``, so that it has to say so again.
    """
    return "passed" in vars(type(transformer))


def online(transformer: Any) -> OnlineTransformer:
    """What learns as rows pass; None stands for rows as they are."""
    if follows(transformer):
        return transformer
    return Raw() if transformer is None else Adapted(transformer)


def kept(learner: OnlineTransformer) -> Any:
    """The transformer that `online` makes this of, for files."""
    if isinstance(learner, Adapted):
        return learner.transformer
    return None if isinstance(learner, Raw) else learner
