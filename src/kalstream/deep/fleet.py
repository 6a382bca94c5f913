"""Several learners at once on one GPU, which one alone leaves idle."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch

from kalstream.deep.base import Learner, Outcome
from kalstream.errors import InvalidInput, KalstreamError

Tensor = Any

_PARTS: Final = 3  # of a step


class Fleet:
    """Learners of other seeds or hyper-parameters, stepped side by side.

    On a GPU each has a stream of its own, and no one is waited for before all have begun. The
    numbers are those of the learners stepped one after the other (but that they draw from one
    generator, where heads have a Monte Carlo predictive or networks dropout).

    Parameters
    ----------
    learners : sequence of Learner
        Each with its own backbone, head and replay.

    Attributes
    ----------
    failed : {number: error}
        Learners that broke (a learning rate too high, say), and are not stepped any more.

    Examples
    --------
    >>> from kalstream.deep import KalmanHead, OnlineLearner
    >>> heads = [KalmanHead(2, 2, gamma=gamma) for gamma in (1.0, 0.9)]
    >>> fleet = Fleet([OnlineLearner(torch.nn.Identity(), head) for head in heads])
    >>> chunk = torch.eye(2), torch.tensor([0, 1])
    >>> [float(outcome.gamma) for outcome in fleet.step([chunk, chunk])]
    [1.0, 0.9]
    """

    def __init__(self, learners: Sequence[Learner]) -> None:
        learners = list(learners)
        parts = [id(part) for each in learners for part in (each.backbone, each.head, each.replay)]
        parts = [part for part in parts if part != id(None)]
        if len(set(parts)) < len(parts):
            raise InvalidInput("two of the learners share a backbone, head or replay; copy it")
        self.learners, self.failed = list(learners), dict[int, KalstreamError]()
        self.streams = [
            torch.cuda.Stream(each.device) if each.device.type == "cuda" else None
            for each in learners
        ]

    def step(self, chunks: Sequence[tuple[Tensor, Tensor]]) -> list[Outcome | None]:
        """`OnlineLearner.step` for each learner, on a chunk of its own: rows, labels.

        Returns
        -------
        outcomes : list
            None for a learner that has failed.
        """
        if len(chunks) != len(self.learners) or any(len(chunk) != 2 for chunk in chunks):
            raise InvalidInput(
                f"{len(self.learners)} learners need as many chunks, each of rows and labels; got "
                f"{len(chunks)}: [(rows, labels)] * {len(self.learners)} gives all of them the same"
            )
        steps = [self.learners[n].parts(*chunk) for n, chunk in enumerate(chunks)]
        outcomes: list[Outcome | None] = [None] * len(steps)
        # Whatever waits for the device must not come between learners that are to run together.
        for _ in range(_PARTS):
            for number, parts in enumerate(steps):
                if number not in self.failed:
                    outcomes[number] = self._go_on(number, parts)
        for stream in self.streams:
            if stream is not None:
                torch.cuda.default_stream(stream.device).wait_stream(stream)
        return outcomes

    def _go_on(self, number: int, parts: Generator[None, None, Outcome]) -> Outcome | None:
        """The next part of a step, and the outcome after the last."""
        stream = self.streams[number]
        if stream is not None:  # rows may still be in the making
            stream.wait_stream(torch.cuda.default_stream(stream.device))
        try:
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                next(parts)
        except StopIteration as end:
            return end.value
        except KalstreamError as error:
            if isinstance(error.__cause__, torch.OutOfMemoryError):  # no fault of this learner
                raise
            self.failed[number] = error
        return None
