"""One chunk on its way through a learner: prepare, launch, collect."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from kalstream.deep._undo import Undo
from kalstream.deep.head import Prediction

if TYPE_CHECKING:
    from kalstream.deep._graph import CapturedStep
    from kalstream.deep.learner import Learner

_PLAIN_STEPS: Final = 3  # chunks of a shape that are learned before it is captured


@dataclass(frozen=True)
class Outcome:
    """Result of predicting and learning one chunk.

    Attributes
    ----------
    log_prob : (b,)
        Log-probabilities of the labels, predicted before they were learned.
    predicted : (b,)
        Most probable classes.
    gamma : ()
        Forgetting coefficient after the chunk; 1 for a learner without one.
    experts : Prediction, optional
        Predictions of each expert of a `Stack`, in the order of ``stack.names``.

    Examples
    --------
    >>> from torch import nn
    >>> from kalstream.deep import KalmanHead, Learner
    >>> learner = Learner(nn.Linear(2, 4), KalmanHead(4, 3))
    >>> outcome = learner.step(torch.ones(5, 2), torch.tensor([0, 1, 0, 1, 0]))
    >>> outcome.log_prob.shape, outcome.predicted.shape, outcome.experts
    (torch.Size([5]), torch.Size([5]), None)
    """

    log_prob: Tensor
    predicted: Tensor
    gamma: Tensor
    experts: Prediction | None = None


class Work(NamedTuple):
    """Result of a learner's work on a chunk; it is valid until the next chunk.

    Attributes
    ----------
    prediction : Prediction, optional
        None if it was not asked for.
    experts : Prediction, optional
        Predictions of the experts of a stack.
    features, labels : (n, m), (n,), optional
        What the head has still to observe, where it does so after the work, replayed rows included.
    sound : (), optional
        Whether the head could observe the chunk, where it did so within the work.
    """

    prediction: Prediction | None
    experts: Prediction | None = None
    features: Tensor | None = None
    labels: Tensor | None = None
    sound: Tensor | None = None


class ChunkStep:
    """Predict a chunk of rows on the device, then learn it, in three parts.

    No part before `collect` waits for the device, except to check labels, so several learners can
    be stepped side by side (`Fleet`). Call no other method of the learner in between.

    Parameters
    ----------
    learner : Learner
    rows, labels : (b, ...), (b,)
    predicts : bool
        Whether the prediction is wanted.
    """

    def __init__(
        self, learner: Learner, rows: Tensor, labels: Tensor, *, predicts: bool = True
    ) -> None:
        self.learner, self.rows, self.labels, self.predicts = learner, rows, labels, predicts

    def run(self) -> Outcome | None:
        """All three parts, one after the other."""
        self.prepare()
        self.launch()
        return self.collect()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Leave the learner as it was before the chunk, if the part fails."""
        try:
            yield
        except BaseException:
            self.undo.run()
            raise

    def prepare(self) -> None:
        """Check the labels and make all random draws."""
        self.undo = self.learner.executors.undo
        self.undo.keep()
        with self._whole():
            self.inputs = self.learner._inputs(self.rows, self.labels)

    def launch(self) -> None:
        """Start all work on the device."""
        with self._whole():
            work = self.learner.executors.of(self.inputs)
            self.made = work(self.inputs, self.predicts)
            self.observation = self.learner._observe(self.made)

    def collect(self) -> Outcome | None:
        """Wait for the device; returns the outcome, or None if no prediction was wanted."""
        learner, made = self.learner, self.made
        with self._whole():
            self.observation.end()
        learner._count(*self.inputs[:2])
        if made.prediction is None or not self.predicts:
            return None
        return Outcome(*made.prediction, torch.exp(-0.5 * learner.head.delta), made.experts)


class Executors:
    """Choose how to run a learner's work: if possible as a CUDA graph for each shape of inputs.

    The first chunks of a shape run without a graph, which initialises the buffers that a graph
    needs.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner, self.undo = learner, Undo(learner)
        self.captured: dict[Any, CapturedStep] = {}
        self.n_plain: dict[Any, int] = {}

    def of(self, inputs: tuple[Tensor, ...]) -> Callable[[tuple[Tensor, ...], bool], Work]:
        """What runs the work on inputs of these shapes: `Learner._work`, or its graph."""
        learner = self.learner
        if not (learner.capture and learner.has_work and inputs[0].is_cuda):
            return learner._work
        key = tuple(each.shape for each in inputs)
        self.n_plain[key] = self.n_plain.get(key, 0) + 1
        if self.n_plain[key] <= _PLAIN_STEPS:
            return learner._work
        if key not in self.captured:
            from kalstream.deep._graph import CapturedStep

            try:
                self.captured[key] = CapturedStep(learner, inputs)
            except RuntimeError as error:
                warnings.warn(
                    f"the training step cannot be captured as a CUDA graph ({error}); it runs "
                    "without one, which is slower. Pass capture=False to avoid this warning",
                    stacklevel=5,
                )
                learner.capture = False
                return learner._work
        return self.captured[key]
