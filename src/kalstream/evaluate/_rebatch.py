"""Cutting a stream into pieces of given lengths, joining the answers for several chunks, JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.errors import KalstreamError
from kalstream.evaluate.adapters import Answer
from kalstream.evaluate.metrics import Scored
from kalstream.streams import REGRESSION, Batch, Stream

Array = NDArray[Any]


def pieces(
    stream: Stream,
    start: int,
    stop_of: Callable[[int], int],
    chunk: int,
    limit: int | None = None,
) -> Iterator[tuple[Batch, bool]]:
    """Rows of a stream from ``start`` on, in pieces [row, stop_of(row)), and whether each was cut.

    A piece is cut if the limit or an error of the stream ends it early: with a higher limit, or
    without the bad row, it would be longer. The error is raised after the rows before it. A stream
    that cannot be repeated is read live, so its pieces are the whole chunks that have come: nobody
    waits for a full piece.
    """
    row, waiting, failure = start, None, None
    batches = stream.batches(start)
    while True:
        try:
            batch = next(batches, None)
        except KalstreamError as error:
            failure, batch = error, None
        if batch is None:
            break
        waiting = batch if waiting is None or not len(waiting) else waiting.joined(batch)
        while limit is None or row < limit:
            whole = stop_of(row)
            stop = whole if limit is None else min(whole, limit)
            if waiting.stop < stop and not stream.repeatable:
                stop = row + (waiting.stop - row) // chunk * chunk
            if waiting.stop < stop or stop == row:
                break
            yield waiting[: stop - row], stop == limit and stop < whole
            waiting, row = waiting[stop - row :], stop
        else:
            return  # the limit
    if waiting is not None and len(waiting):
        yield waiting, failure is not None
    if failure is not None:
        raise failure


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
    return Answer(labels=labels, probabilities=np.concatenate(parts))


def to_json(batch: Batch) -> dict[str, Any]:
    """A batch as JSON, for checkpoints; a number that is missing is null."""
    return {
        "start": batch.start,
        "rows": _without_nan(batch.rows),
        "targets": _without_nan(batch.targets),
        "times": None if batch.times is None else batch.times.tolist(),
    }


def from_json(content: dict[str, Any], task: str) -> Batch:
    """The batch that `to_json` wrote."""
    rows, targets = np.array(content["rows"], np.float64), content["targets"]
    labels = np.array(targets, np.float64) if task == REGRESSION else _labels(targets)
    times = None if content["times"] is None else np.array(content["times"], np.float64)
    lengths = {len(rows), len(labels), len(rows if times is None else times)}
    if rows.ndim < 2 or len(lengths) > 1:
        raise ValueError("rows, targets and times must be as many")
    return Batch(content["start"], rows, labels, times)


def _without_nan(values: Array) -> list[Any]:
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        values = values.astype(object)
        values[missing] = None
    return values.tolist()


def _labels(targets: list[Any]) -> Array:
    return np.fromiter(targets, object, len(targets))
