"""Cutting a stream into pieces of given lengths, joining the answers for several chunks, JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kalstream._arrays import Array
from kalstream.evaluate.adapters import Answer
from kalstream.evaluate.metrics import Scored
from kalstream.streams import REGRESSION, Batch


class Pieces:
    """Rows of a stream, cut into pieces [row, stop_of(row)), and whether each piece was cut.

    A piece is cut if the limit or an error of the stream ends it early: with a higher limit, or
    without the bad row, it would be longer.

    Parameters
    ----------
    start : int
        The first row.
    stop_of : function
    chunk : int
    limit : int or None
    live : bool
        Whether nobody waits for a full piece: the pieces are the whole chunks that have come.
    """

    def __init__(
        self,
        start: int,
        stop_of: Callable[[int], int],
        chunk: int,
        limit: int | None,
        *,
        live: bool,
    ) -> None:
        self.row, self.stop_of, self.chunk = start, stop_of, chunk
        self.limit, self.live = limit, live
        self._rows: Batch | None = None  # those that wait for more

    @property
    def stop(self) -> int:
        """The number of the row that comes next."""
        return self.row if self._rows is None else self._rows.stop

    @property
    def at_limit(self) -> bool:
        """Whether no row is left below the limit."""
        return self.limit is not None and self.row >= self.limit

    def push(self, batch: Batch) -> Iterator[tuple[Batch, bool]]:
        """The pieces that these rows complete."""
        rows = self._rows = self._rows.joined(batch) if self._rows else batch
        while not self.at_limit:
            row, whole = self.row, self.stop_of(self.row)
            stop = whole if self.limit is None else min(whole, self.limit)
            if rows.stop < stop and self.live:
                stop = row + (rows.stop - row) // self.chunk * self.chunk
            if rows.stop < stop or stop == row:
                return
            piece, rows = rows[: stop - row], rows[stop - row :]
            self.row, self._rows = stop, rows
            yield piece, stop == self.limit and stop < whole

    def rest(self, *, is_cut: bool = False) -> Iterator[tuple[Batch, bool]]:
        """The rows that wait for a full piece, at the end of the stream."""
        rows, self._rows = self._rows, None
        if rows is not None and len(rows) and not self.at_limit:
            self.row = rows.stop
            yield rows, is_cut


def joined(parts: list[tuple[Answer, Scored | None]]) -> tuple[Answer, Scored | None]:
    """Answers for several chunks, and their scores, as one."""
    if len(parts) == 1:
        return parts[0]
    answers = [answer for answer, _ in parts]
    scores = [scored for _, scored in parts if scored is not None]
    scored = None
    if scores:
        fields = Scored.__dataclass_fields__
        scored = Scored(*(np.concatenate([getattr(s, name) for s in scores]) for name in fields))
    if all(answer.probabilities is not None for answer in answers):
        return _joined_probabilities(answers), scored
    predictions = [answer.point_predictions() for answer in answers]
    std = None
    if scored is None and answers[-1].std is not None:
        unknown = (np.full(len(each), np.inf) for each in predictions)
        pairs = zip(answers, unknown, strict=True)
        std = np.concatenate([none if a.std is None else a.std for a, none in pairs])
    return Answer(predictions=np.concatenate(predictions), std=std), scored


def _joined_probabilities(answers: list[Answer]) -> Answer:
    labels = list(dict.fromkeys(label for answer in answers for label in answer.labels or ()))
    column = {label: k for k, label in enumerate(labels)}
    parts = []
    for answer in answers:
        assert answer.probabilities is not None
        part = np.zeros((len(answer.probabilities), len(labels)))
        part[:, [column[label] for label in answer.labels or ()]] = answer.probabilities
        parts.append(part)
    new = None
    if all(answer.new is not None for answer in answers):
        new = np.concatenate([answer.new for answer in answers])
    return Answer(labels=labels, probabilities=np.concatenate(parts), new=new)


def to_json(batch: Batch) -> dict[str, Any]:
    """A batch as JSON, for checkpoints; a number that is missing is null."""
    return {
        "start": batch.start,
        "rows": _without_nan(batch.rows),
        "targets": _without_nan(batch.targets),
        "times": None if batch.times is None else batch.times.tolist(),
        **({} if batch.keys is None else {"keys": batch.keys.tolist()}),
    }


def from_json(content: dict[str, Any], task: str) -> Batch:
    """The batch that `to_json` wrote."""
    rows, targets = np.array(content["rows"], np.float64), content["targets"]
    labels = np.array(targets, np.float64) if task == REGRESSION else _labels(targets)
    times = None if content["times"] is None else np.array(content["times"], np.float64)
    keys = _labels(content["keys"]) if "keys" in content else None
    lengths = {len(rows if part is None else part) for part in (rows, labels, times, keys)}
    if rows.ndim < 2 or len(lengths) > 1:
        raise ValueError("rows, targets, times and keys must be as many")
    return Batch(content["start"], rows, labels, times, keys=keys)


def _without_nan(values: Array) -> list[Any]:
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        values = values.astype(object)
        values[missing] = None
    return values.tolist()


def _labels(targets: list[Any]) -> Array:
    return np.fromiter(targets, object, len(targets))
