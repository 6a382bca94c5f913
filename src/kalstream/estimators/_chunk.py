"""Rows that have been checked, with their targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(slots=True)  # not frozen: that triples the time to make one
class Chunk:
    """Rows to be learned.

    Attributes
    ----------
    rows : (b, d)
    targets : list of b labels, None where unknown; or (b,) or (b, K) numbers
    weight : (b,) or None
    gap, times : (b,) or None
        Time before each row in units, and when it came.
    """

    rows: Array
    targets: Any
    weight: Array | None
    gap: Array | None
    times: Array | None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, piece: slice) -> Chunk:
        if piece.stop - piece.start == len(self.rows):
            return self
        parts = self.weight, self.gap, self.times
        cut = (None if part is None else part[piece] for part in parts)
        return Chunk(self.rows[piece], self.targets[piece], *cut)
