"""CUDA graphs of `KalmanHead.observe`, mixture weights and a learner's training step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kalstream.deep.filter import FilterStep, Products, update_
from kalstream.deep.head import Prediction
from kalstream.deep.kalman import seen_before
from kalstream.deep.step import Work

if TYPE_CHECKING:
    from kalstream.deep.kalman import KalmanHead
    from kalstream.deep.learner import Learner
    from kalstream.deep.mixture import MixtureHead

# Rounds of learned coefficients in a graph: fewest and most. One round is dropped after it was not
# needed for _PATIENCE chunks in a row. The last round may change a delta by _TOLERANCE at most.
_FEWEST, _MOST, _PATIENCE, _TOLERANCE = 2, 6, 8, 1e-10


class Captured:
    """`KalmanHead.observe` for one chunk size; valid while the head's buffers are not replaced.

    One graph computes products, rounds and the update. The update happens only if the rounds have
    converged and all numbers are finite, which the device itself decides. The host reads the result
    once, afterwards.

    Parameters
    ----------
    head : KalmanHead
        On a CUDA device.
    n_rows : int
    dtype : torch.dtype
        Data type of the features.
    """

    def __init__(self, head: KalmanHead, n_rows: int, dtype: torch.dtype) -> None:
        from kalstream.deep._kernels import Rounds

        self.head, self.where = head, places(head)
        device = head.mean.device
        self.features = torch.zeros(n_rows, head.n_features, dtype=dtype, device=device)
        self.labels = torch.zeros(n_rows, dtype=torch.int64, device=device)
        # Buffers that several graphs share.
        n, k, own = n_rows, head.n_classes, head.mean.dtype

        def new(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=own, device=device)

        self.chunk = Products.empty(head.mean, n)
        self.seen, self.good = new(n, k).to(torch.uint8), new().bool()
        self.known = torch.zeros_like(self.labels)
        self.step = FilterStep(new(n, k), new(n), new(n), new(n, k))
        self.factor, self.kept = new(n, n), new(n)
        # Whether all numbers are finite, then the change of each round; and a copy for the host.
        self.status = torch.zeros(1 + _MOST, dtype=torch.float64, device=device)
        self.host_status = torch.zeros(1 + _MOST, dtype=torch.float64, pin_memory=True)
        self.rounds, self.learns = Rounds(head, n_rows), head.gamma_lr > 0.0
        self.n_rounds, self.n_unneeded = (_FEWEST, 0) if self.learns else (1, 0)
        self.graphs: dict[Any, Any] = {}
        self.event = torch.cuda.Event()

    def begin(self, features: Tensor, labels: Tensor) -> None:
        """Start observing a chunk."""
        self.features.copy_(features)
        self.labels.copy_(labels)
        self._replay(self.n_rounds, partial(self._observe, self.n_rounds))

    def end(self) -> FilterStep | None:
        """Wait for the chunk; returns the step, or None if nothing was changed.

        None means that the chunk must be observed without a graph: the rounds did not converge,
        delta reached its upper bound, a number is not finite, or a label is invalid. The step is
        valid until the next chunk.
        """
        sound, left = self._read_status()
        enough = [each <= _TOLERANCE for each in left[-self.n_rounds :]]
        needed = enough.index(True) + 1 if True in enough else self.n_rounds
        late = sound and not enough[-1]
        while sound and _TOLERANCE < left[-1] < 1e300 and needed <= len(self.labels):
            self._replay("round", self._last_round)
            sound, left = self._read_status()
            needed += 1
        if not sound or not left[-1] <= _TOLERANCE:
            return None
        if late:
            self._replay("update", self._update)
        self._adapt(needed)
        return self.step

    def _read_status(self) -> tuple[bool, list[float]]:
        self.event.synchronize()
        sound, *left = self.host_status.tolist()
        return bool(sound), left

    def _adapt(self, needed: int) -> None:
        """Adjust the rounds in the graph: unneeded rounds cost time, missing ones cost more."""
        self.n_unneeded = self.n_unneeded + 1 if needed < self.n_rounds else 0
        if needed > self.n_rounds:
            self.n_rounds = min(needed, _MOST)
        elif self.n_unneeded == _PATIENCE and self.n_rounds > _FEWEST:
            self.n_rounds, self.n_unneeded = self.n_rounds - 1, 0

    def _replay(self, key: Any, part: Callable[[], Any]) -> None:
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.graphs[key] = captured(part, self._state())
        graph.replay()
        self.event.record()

    def _state(self) -> list[Tensor]:
        """Tensors that running a part changes; they are restored after capturing."""
        head, rounds = self.head, self.rounds
        outputs = [*vars(self.step).values(), self.factor, self.kept, self.status]
        own = [head.mean, head.cov, head.delta, head.seen, head.count]
        return own + outputs + [rounds.deltas, rounds.gamma, rounds.log_kept, rounds.left]

    def _observe(self, n_rounds: int) -> None:
        """Products, rounds and update of the chunk."""
        head = self.head
        self.chunk.features.copy_(head.prepare(self.features))
        self.chunk.fill_(head.mean, head.cov)
        self.known.copy_(self.labels.clamp(0, head.n_classes - 1))
        if self.learns or self.rounds.softmax:
            self.seen.copy_(seen_before(head.seen, self.known))
        finite = torch.isfinite(self.chunk.gram_eye.diagonal()).all()  # sums of squares of features
        self.good.copy_(finite & (self.known == self.labels).all())
        self.rounds.deltas.copy_(head.delta.expand(len(self.labels)))
        for left in range(n_rounds, 1, -1):
            self.rounds.round(self.chunk, self.known, self.seen)
            self.status[-left].copy_(self.rounds.left)
        sound = self._last_round()
        self._update(sound & (self.status[-1] <= _TOLERANCE))

    def _last_round(self) -> Tensor:
        """One more round, and the status for the host; returns whether all is finite ()."""
        rounds, chunk, labels = self.rounds, self.chunk, self.known
        if self.learns:
            factor, scaled = rounds.round(chunk, labels, self.seen)
            mean, var = rounds.mean, rounds.var
        else:
            factor, scaled = rounds.factorize(chunk, labels, self.seen)
            mean, var = rounds.moments(factor, scaled, labels)
        made = FilterStep(mean, var, rounds.gamma, scaled)
        for mine, each in zip(vars(self.step).values(), vars(made).values(), strict=True):
            mine.copy_(each)
        self.factor.copy_(factor)
        self.kept.copy_(rounds.log_kept.exp())
        sound = self.good & torch.isfinite(factor.diagonal()).all()
        sound = sound & torch.isfinite(scaled[-1]).all()  # it depends on all rows before
        self.status[0].copy_(sound)
        self.status[-1].copy_(rounds.left)
        self.host_status.copy_(self.status, non_blocking=True)
        return sound

    def _update(self, gate: Tensor | None = None) -> None:
        """Update the head if ``gate``, a boolean tensor of shape (), is true."""
        head = self.head
        gate = torch.ones_like(self.good) if gate is None else gate
        arrays = self.chunk, self.step, self.factor, self.kept
        update_(head.mean, head.cov, *arrays, head.prior_var, gate)
        if self.learns:
            head.delta.copy_(self.rounds.deltas[-1].where(gate, head.delta))
        head.seen.logical_or_(torch.zeros_like(head.seen).index_fill_(0, self.known, True) & gate)
        head.count.add_(gate.long() * len(self.labels))


class CapturedWeights:
    """`MixtureHead._weigh_rows`, captured for inputs of given shapes."""

    def __init__(self, mixture: MixtureHead, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(each.clone() for each in inputs)
        part = partial(mixture._weigh_rows, *self.inputs)
        self.graph = captured(part, [mixture.log_weights])

    def __call__(self, *inputs: Tensor) -> None:
        """Update the weights of the heads."""
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()


class CapturedStep:
    """A learner's work on a chunk, for inputs of given shapes.

    Parameters
    ----------
    learner : Learner
    inputs : tuple of tensors
        Arguments of `Learner._work`.
    """

    def __init__(self, learner: Learner, inputs: tuple[Tensor, ...]) -> None:
        self.learner, self.inputs = learner, tuple(each.clone() for each in inputs)
        self.side = torch.cuda.Stream(learner.device)
        if learner.optimizer is not None:
            learner.optimizer.zero_grad(set_to_none=True)
        self.graph = captured(self._work)

    def _work(self) -> None:
        self.made = self.learner._work(self.inputs, True, self.side)

    def __call__(self, inputs: tuple[Tensor, ...], predicts: bool) -> Work:
        """The work on a chunk; the prediction is its own, the rest is valid until the next one."""
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()
        prediction, experts = (
            each and Prediction(*(t.clone() for t in each)) for each in self.made[:2]
        )
        return self.made._replace(prediction=prediction, experts=experts)


def captured(part: Callable[[], Any], state: list[Tensor] | None = None) -> torch.cuda.CUDAGraph:
    """Capture what ``part`` does as a graph, without running it.

    With ``state``, the tensors that it changes, it is run twice first, which initialises its
    buffers; then the tensors are restored.
    """
    now = torch.cuda.current_stream()
    side = torch.cuda.Stream() if now == torch.cuda.default_stream() else now
    side.wait_stream(now)
    with torch.cuda.stream(side):
        if state is not None:
            kept = [each.clone() for each in state]
            for _ in range(2):
                part()
        graph = torch.cuda.CUDAGraph()
        # Its own stream, so that graphs which run side by side do not share a BLAS workspace.
        # (`torch.cuda.graph` would collect garbage and empty caches, which takes 0.5 s each time.)
        side.synchronize()
        with _no_collection():
            graph.capture_begin()
            try:
                part()
            except BaseException:
                with suppress(RuntimeError):  # which would hide why the part failed
                    graph.capture_end()
                raise
            graph.capture_end()
        if state is not None:
            for each, value in zip(state, kept, strict=True):
                each.copy_(value)
    now.wait_stream(side)
    return graph


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection, which must not free another graph during a capture."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def places(head: KalmanHead) -> tuple[int, ...]:
    """Addresses of the head's buffers."""
    return tuple(each.data_ptr() for each in (head.mean, head.cov, head.delta, head.seen))
