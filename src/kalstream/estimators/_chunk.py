"""Rows that have been checked, with their targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kalstream._arrays import Array
from kalstream.core.judging import Judged


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
    columns : (b, d') or None
        The rows as experts see them.
    """

    rows: Array
    targets: Any
    weight: Array | None
    gap: Array | None
    times: Array | None
    columns: Array | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, piece: slice) -> Chunk:
        if piece.stop - piece.start == len(self.rows):
            return self
        parts = self.weight, self.gap, self.times, self.columns
        cut = (None if part is None else part[piece] for part in parts)
        return Chunk(self.rows[piece], self.targets[piece], *cut)


@dataclass(frozen=True, slots=True)
class Ahead:
    """Rows that are predicted, of which any could be the next.

    Attributes
    ----------
    features : (b, m)
    step : PolicyStep
    gap : (b,) or float
        Time since the last row that was learned, in units.
    columns : (b, d') or None
        The rows as experts see them.
    """

    features: Array
    step: Any
    gap: Any
    columns: Array | None = None


@dataclass(slots=True)
class LateSteps:
    """What a policy made of `LateRows`.

    Attributes
    ----------
    in_order, by_late : PolicyStep
        Of all events: in the order of targets, and far ahead with the weights of the late judge.
    judged : Judged
    spoken : object
        What `Task.keep` returned.
    """

    in_order: Any
    by_late: Any
    judged: Judged
    spoken: Any
