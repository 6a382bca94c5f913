"""Cutting a stream into pieces, and joining what was said about them."""

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
    """The rows of a stream from ``start`` on, in pieces [row, stop_of(row)), and if each was cut.

    A piece is cut if the limit or an error of the stream ends it early: with a higher limit, or
    the bad row left out, it would have been longer. The error is raised after the rows before it.
    Of a live stream, pieces of whole chunks as they come: nobody waits for what is not needed.
    """
    row, waiting, broken = start, None, None
    batches = stream.batches(start)
    while True:
        try:
            batch = next(batches, None)
        except KalstreamError as error:
            broken, batch = error, None
        if batch is None:
            break
        waiting = batch if waiting is None or not len(waiting) else _together(waiting, batch)
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
        yield waiting, broken is not None
    if broken is not None:
        raise broken


def _together(one: Batch, two: Batch) -> Batch:
    """Two batches that follow one another."""
    times = None
    if one.times is not None and two.times is not None:
        times = np.concatenate([one.times, two.times])
    rows, targets = (np.concatenate(each) for each in zip(*map(_parts, (one, two)), strict=True))
    return Batch(one.start, rows, targets, times)


def _parts(batch: Batch) -> tuple[Array, Array]:
    return batch.rows, batch.targets


def joined(parts: list[tuple[Answer, Scored | None]]) -> tuple[Answer, Scored | None]:
    """What was said about several chunks, and how good it was, as one."""
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
    if scored is not None:
        return Answer(predictions=np.concatenate([a.said() for a in answers])), scored
    std = None
    if answers[-1].std is not None:
        nothing = ((a, np.full(len(a.said()), np.inf)) for a in answers)
        std = np.concatenate([none if a.std is None else a.std for a, none in nothing])
    return Answer(predictions=np.concatenate([a.said() for a in answers]), std=std), scored


def _joined_probabilities(answers: list[Answer]) -> Answer:
    labels = list(dict.fromkeys(label for answer in answers for label in answer.labels or ()))
    column = {label: k for k, label in enumerate(labels)}
    parts = []
    for answer in answers:
        said = answer.probabilities
        assert said is not None and answer.labels is not None  # noqa: PT018
        part = np.zeros((len(said), len(labels)))
        part[:, [column[label] for label in answer.labels]] = said
        parts.append(part)
    return Answer(labels=labels, probabilities=np.concatenate(parts))
