"""Several learners side by side on one GPU, which a single learner would not fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from kalstream.deep.learner import Learner
from kalstream.deep.step import ChunkStep, Outcome
from kalstream.errors import InvalidInput, KalstreamError


class Fleet:
    """Learners with different seeds or hyper-parameters, stepped side by side.

    On a GPU each learner has its own CUDA stream, and all begin their step before the host waits
    for any. The numbers equal those of learners stepped one after the other. The exception are
    random draws of a Monte Carlo predictive or of dropout, which come from one shared generator.

    Parameters
    ----------
    learners : sequence of Learner
        Each has its own backbone, head and replay.

    Attributes
    ----------
    failed : {number: error}
        Learners that failed, for example with a learning rate too high; they are skipped.

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
            raise InvalidInput(
                "two learners share a backbone, head or replay; give each a copy (copy.deepcopy)"
            )
        self.learners, self.failed = list(learners), dict[int, KalstreamError]()
        self.streams = [
            torch.cuda.Stream(each.device) if each.device.type == "cuda" else None
            for each in learners
        ]

    def step(self, chunks: Sequence[tuple[Tensor, Tensor]]) -> list[Outcome | None]:
        """Step each learner on its own chunk of rows and labels, as `OnlineLearner.step`.

        Returns
        -------
        outcomes : list
            None for a learner that has failed.
        """
        if len(chunks) != len(self.learners) or any(len(chunk) != 2 for chunk in chunks):
            raise InvalidInput(
                f"{len(self.learners)} learners need as many chunks (rows, labels), got "
                f"{len(chunks)}; [(rows, labels)] * {len(self.learners)} gives all the same chunk"
            )
        steps = [ChunkStep(self.learners[n], *chunk) for n, chunk in enumerate(chunks)]
        outcomes: list[Outcome | None] = [None] * len(steps)
        # No part that waits for the device may run before every learner has started.
        for part in (ChunkStep.prepare, ChunkStep.launch, ChunkStep.collect):
            for number, step in enumerate(steps):
                if number not in self.failed:
                    outcomes[number] = self._advance(number, part, step)
        for stream in self.streams:
            if stream is not None:
                torch.cuda.default_stream(stream.device).wait_stream(stream)
        return outcomes

    def _advance(
        self, number: int, part: Callable[[ChunkStep], Outcome | None], step: ChunkStep
    ) -> Outcome | None:
        """Run a part of a learner's step; returns the outcome after the last part."""
        stream = self.streams[number]
        if stream is not None:  # rows may still be being computed
            stream.wait_stream(torch.cuda.default_stream(stream.device))
        try:
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                return part(step)
        except KalstreamError as error:
            if isinstance(error.__cause__, torch.OutOfMemoryError):  # no fault of this learner
                raise
            self.failed[number] = error
        return None
