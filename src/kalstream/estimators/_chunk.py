"""Rows that have been checked, and what their targets have to say while a model learns them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from kalstream.estimators._model import Model

Array = NDArray[Any]


@dataclass(slots=True)  # not frozen: that triples the time to make one
class Chunk:
    """Rows to be learned.

    Attributes
    ----------
    rows : (b, d)
    weight : (b,) or None
    gap, times : (b,) or None
        Time before each row in units, and when it came.
    """

    rows: Array
    weight: Array | None
    gap: Array | None
    times: Array | None

    def __getitem__(self, piece: slice) -> Chunk:
        if piece.stop - piece.start == len(self.rows):
            return self
        parts = self.weight, self.gap, self.times
        return Chunk(self.rows[piece], *(None if part is None else part[piece] for part in parts))


class Targets(Protocol):
    """Targets of a chunk, labels or values."""

    def check(self, n: int) -> None:
        """Raise an error unless there is a target for each of n rows."""
        ...

    def end_of_piece(self, model: Model, start: int) -> int:
        """Where the rows end that can be predicted and learned in one go, from ``start`` on."""
        ...

    def read(
        self, model: Model, piece: slice, weight: Array | None
    ) -> tuple[Model, Any, Array | None]:
        """The model with room for targets of these rows, the targets, and the rows' weights (b,).

        Targets are as the policy takes them.
        """
        ...
