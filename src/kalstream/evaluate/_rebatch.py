"""Cutting a stream into pieces of given lengths, and joining the answers for several chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.errors import KalstreamError
from kalstream.evaluate.adapters import Answer
from kalstream.evaluate.metrics import Scored
from kalstream.streams import Batch, Stream

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
        waiting = batch if waiting is None or not len(waiting) else _joined_batches(waiting, batch)
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


def _joined_batches(one: Batch, two: Batch) -> Batch:
    """Two consecutive batches as one."""
    times = None
    if one.times is not None and two.times is not None:
        times = np.concatenate([one.times, two.times])
    rows = np.concatenate([one.rows, two.rows])
    return Batch(one.start, rows, np.concatenate([one.targets, two.targets]), times)


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
