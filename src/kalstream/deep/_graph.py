"""CUDA graphs: `KalmanHead.observe` and a learner's training step, launched as a whole."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from kalstream.deep.filter import Chunk, Told, update_
from kalstream.deep.head import seen_before

Tensor = Any

# Rounds of learned coefficients in a graph: at least, at most, the number of chunks for which one
# round fewer must have sufficed before it is dropped, and what a last round may still change.
_FEWEST, _MOST, _PATIENCE, _LEFT = 2, 6, 8, 1e-10


class Captured:
    """A head and a chunk size, captured; valid while the head's buffers stay where they are.

    One graph does it all: products, rounds, and the update, which a gate on the device lets through
    if the rounds have sufficed and all is sound. The host looks once, afterwards.

    Parameters
    ----------
    head : KalmanHead
        On a CUDA device.
    n_rows : int
    dtype : torch.dtype
        Of the features.
    """

    def __init__(self, head: Any, n_rows: int, dtype: Any) -> None:
        from kalstream.deep._kernels import Rounds

        self.head, self.where = head, places(head)
        device = head.mean.device
        self.features = torch.zeros(n_rows, head.n_features, dtype=dtype, device=device)
        self.labels = torch.zeros(n_rows, dtype=torch.int64, device=device)
        # What one graph leaves for another must stay in one place.
        n, k, own = n_rows, head.n_classes, head.mean.dtype

        def new(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=own, device=device)

        self.chunk = Chunk.empty(head.mean, n)
        self.seen, self.good = new(n, k).to(torch.uint8), new().bool()
        self.known = torch.zeros_like(self.labels)
        self.told = Told(new(n, k), new(n), new(n), new(n, k))
        self.factor, self.kept = new(n, n), new(n)
        # Whether all is sound, and what each round has changed; the same where the host sees it.
        self.look = torch.zeros(1 + _MOST, dtype=torch.float64, device=device)
        self.shown = torch.zeros(1 + _MOST, dtype=torch.float64, pin_memory=True)
        self.rounds, self.learns = Rounds(head, n_rows), head.gamma_lr > 0.0
        self.n_rounds, self.too_many = (_FEWEST, 0) if self.learns else (1, 0)
        self.graphs: dict[Any, Any] = {}
        self.event = torch.cuda.Event()

    def begin(self, features: Tensor, labels: Tensor) -> None:
        """Start to observe a chunk."""
        self.features.copy_(features)
        self.labels.copy_(labels)
        self._replay(self.n_rounds, partial(self._whole, self.n_rounds))

    def end(self) -> Told | None:
        """Wait for it; None if the plain way must do it, and nothing has been changed.

        That is where rounds have not sufficed, delta has reached its upper bound, precision its
        end, or there is something wrong with the chunk. What is told lasts until the next chunk.
        """
        sound, left = self._looked()
        enough = [each <= _LEFT for each in left[-self.n_rounds :]]
        needed = enough.index(True) + 1 if True in enough else self.n_rounds
        late = sound and not enough[-1]
        while sound and _LEFT < left[-1] < 1e300 and needed <= len(self.labels):
            self._replay("again", self._again)
            sound, left = self._looked()
            needed += 1
        if not sound or not left[-1] <= _LEFT:
            return None
        if late:
            self._replay("finish", self._finish)
        self._adapt(needed)
        return self.told

    def _looked(self) -> tuple[bool, list[float]]:
        self.event.synchronize()
        sound, *left = self.shown.tolist()
        return bool(sound), left

    def _adapt(self, needed: int) -> None:
        """Have as many rounds in the graph as chunks need: a surplus costs, and more so a lack."""
        self.too_many = self.too_many + 1 if needed < self.n_rounds else 0
        if needed > self.n_rounds:
            self.n_rounds = min(needed, _MOST)
        elif self.too_many == _PATIENCE and self.n_rounds > _FEWEST:
            self.n_rounds, self.too_many = self.n_rounds - 1, 0

    def _replay(self, key: Any, part: Callable[[], Any]) -> None:
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.graphs[key] = captured(part, self._state())
        graph.replay()
        self.event.record()

    def _state(self) -> list[Tensor]:
        """What a run of a part may change and capturing must not."""
        head, rounds = self.head, self.rounds
        told = [*vars(self.told).values(), self.factor, self.kept, self.look]
        own = [head.mean, head.cov, head.delta, head.seen, head.count]
        return own + told + [rounds.deltas, rounds.gamma, rounds.log_kept, rounds.left]

    def _whole(self, n_rounds: int) -> None:
        head = self.head
        self.chunk.features.copy_(head.prepare(self.features))
        self.chunk.fill_(head.mean, head.cov)
        self.known.copy_(self.labels.clamp(0, head.n_classes - 1))
        if self.learns:
            self.seen.copy_(seen_before(head.seen, self.known))
        finite = torch.isfinite(self.chunk.gram_eye.diagonal()).all()  # sums of squares of features
        self.good.copy_(finite & (self.known == self.labels).all())
        self.rounds.deltas.copy_(head.delta.expand(len(self.labels)))
        for left in range(n_rounds, 1, -1):
            self.rounds.round(self.chunk, self.known, self.seen)
            self.look[-left].copy_(self.rounds.left)
        sound = self._again()
        self._finish(sound & (self.look[-1] <= _LEFT))

    def _again(self) -> Tensor:
        """Another round, and what the host looks at: whether all is sound, and what is left."""
        rounds, chunk, labels = self.rounds, self.chunk, self.known
        if self.learns:
            factor, scaled = rounds.round(chunk, labels, self.seen)
            mean, var = rounds.mean, rounds.var
        else:
            factor, scaled = rounds.factorize(chunk, labels)
            deviation = factor.diagonal()
            targets = torch.nn.functional.one_hot(labels, self.head.n_classes)
            mean = targets - deviation[:, None] * scaled
            var = deviation.square() - self.head.noise_var
        made = Told(mean, var, rounds.gamma, scaled)
        for mine, each in zip(vars(self.told).values(), vars(made).values(), strict=True):
            mine.copy_(each)
        self.factor.copy_(factor)
        self.kept.copy_(rounds.log_kept.exp())
        sound = self.good & torch.isfinite(factor.diagonal()).all()
        sound = sound & torch.isfinite(scaled[-1]).all()  # which depends on all rows before
        self.look[0].copy_(sound)
        self.look[-1].copy_(rounds.left)
        self.shown.copy_(self.look, non_blocking=True)
        return sound

    def _finish(self, gate: Tensor | None = None) -> None:
        """The update, if the gate () is open."""
        head = self.head
        gate = torch.ones_like(self.good) if gate is None else gate
        how = self.chunk, self.told, self.factor, self.kept, head.prior_var
        update_(head.mean, head.cov, *how, gate)
        if self.learns:
            head.delta.copy_(self.rounds.deltas[-1].where(gate, head.delta))
        head.seen.logical_or_(torch.zeros_like(head.seen).index_fill_(0, self.known, True) & gate)
        head.count.add_(gate.long() * len(self.labels))


class CapturedWeights:
    """`MixtureHead._weigh_rows`, captured for inputs of given shapes."""

    def __init__(self, mixture: Any, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(each.clone() for each in inputs)
        part = partial(mixture._weigh_rows, *self.inputs)
        self.graph = captured(part, [mixture.log_weights])

    def __call__(self, *inputs: Tensor) -> None:
        """Weigh the heads by what they said of the rows."""
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()


class CapturedStep:
    """A learner's prediction and training step, for inputs of given shapes.

    Parameters
    ----------
    learner : Learner
    inputs : tuple of tensors
        What `Learner._train` takes; first the rows and labels that are predicted.
    """

    def __init__(self, learner: Any, inputs: tuple[Tensor, ...]) -> None:
        self.learner, self.inputs = learner, tuple(each.clone() for each in inputs)
        learner.optimizer.zero_grad(set_to_none=True)
        learner._capturing = True
        try:
            self.graph = captured(self._step)
        finally:
            learner._capturing = False

    def _step(self) -> None:
        self.said = self.learner._predict(*self.inputs[:2])
        self.features = self.learner._train(*self.inputs)

    def __call__(self, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """What was predicted, and what `Learner._train` returned, which the next chunk replaces."""
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()
        log_prob, predicted = self.said
        return (log_prob.clone(), predicted.clone()), self.features


def captured(part: Callable[[], Any], state: list[Tensor] | None = None) -> Any:
    """A graph of what ``part`` does, not run yet.

    With ``state``, tensors that it changes, it is run before to set up what it needs, and they are
    put back.
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
        # A stream of its own, so that graphs which run side by side share no BLAS workspace.
        # (`torch.cuda.graph` would collect garbage and empty caches, half a second each time.)
        side.synchronize()
        with _no_collection():
            graph.capture_begin()
            try:
                part()
            finally:
                graph.capture_end()
        if state is not None:
            for each, value in zip(state, kept, strict=True):
                each.copy_(value)
    now.wait_stream(side)
    return graph


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the collector from freeing some other graph while one is being captured."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def places(head: Any) -> tuple[int, ...]:
    """Where the head's buffers are."""
    return tuple(each.data_ptr() for each in (head.mean, head.cov, head.delta, head.seen))
