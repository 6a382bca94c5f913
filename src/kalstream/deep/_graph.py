"""`KalmanHead.observe` for chunks of one size as two CUDA graphs, launched as a whole."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from kalstream.deep.filter import Chunk, Told, update_

Tensor = Any

# Rounds of learnt coefficients before it is looked at how much the last one still changed.
_ROUNDS: Final = 2
_LEFT: Final = 1e-10


class Captured:
    """A head and a chunk size, captured; valid while the head's buffers stay where they are.

    Parameters
    ----------
    head : KalmanHead
        On a CUDA device.
    n_rows : int
    dtype : torch.dtype
        Of the features.
    """

    def __init__(self, head: Any, n_rows: int, dtype: Any) -> None:
        self.head, self.where = head, places(head)
        device = head.mean.device
        self.features = torch.zeros(n_rows, head.n_features, dtype=dtype, device=device)
        self.labels = torch.zeros(n_rows, dtype=torch.int64, device=device)
        # What one graph leaves for another must stay in one place.
        n, k, own = n_rows, head.n_classes, head.mean.dtype

        def new(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=own, device=device)

        self.told = Told(new(n, k), new(n), new(n), new(n, k))
        self.factor, self.kept = new(n, n), new(n)
        self.look = torch.zeros(2, dtype=torch.float64, device=device)
        from kalstream.deep._kernels import Rounds

        self.rounds, self.learns = Rounds(head, n_rows), head.gamma_lr > 0.0
        state = head.mean, head.cov, head.delta, head.seen, head.count
        kept = [each.clone() for each in state]
        parts = (self._begin, self._again, self._finish)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for part in parts * 2:
                part()
        torch.cuda.current_stream().wait_stream(side)
        self.graphs = [torch.cuda.CUDAGraph() for _ in parts]
        with _no_collection():
            for graph, part in zip(self.graphs, parts, strict=True):
                with torch.cuda.graph(graph):
                    part()
        for each, value in zip(state, kept, strict=True):
            each.copy_(value)

    def __call__(self, features: Tensor, labels: Tensor) -> Told | None:
        """Observe a chunk; None if the plain way must do it, and nothing has been changed.

        That is where rounds have not sufficed, delta has reached its upper bound, precision its
        end, or there is something wrong with the chunk. What is told lasts until the next chunk.
        """
        begin, again, finish = self.graphs
        self.features.copy_(features)
        self.labels.copy_(labels)
        begin.replay()
        for _ in range(len(labels)):
            sound, left = self.look.tolist()
            if not sound or left <= _LEFT:
                break
            again.replay()
        if not sound or not left <= _LEFT:
            return None
        finish.replay()
        return self.told

    def _begin(self) -> None:
        """Everything up to the first rounds."""
        head = self.head
        self.phi = head.prepare(self.features)
        self.known = self.labels.clamp(0, head.n_classes - 1)
        self.chunk = Chunk.of(head.mean, head.cov, self.phi)
        before = head._seen_before(self.known)
        self.seen = before.to(torch.uint8)
        self.good = torch.isfinite(self.phi).all() & (self.known == self.labels).all()
        self.rounds.deltas.copy_(head.delta.expand(len(self.labels)))
        for _ in range(_ROUNDS - 1 if self.learns else 0):
            self.rounds.round(self.chunk, self.known, self.seen)
        self._again()

    def _again(self) -> None:
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
        told = Told(mean, var, rounds.gamma, scaled)
        for mine, made in zip(vars(self.told).values(), vars(told).values(), strict=True):
            mine.copy_(made)
        self.factor.copy_(factor)
        self.kept.copy_(rounds.log_kept.exp())
        sound = self.good & torch.isfinite(factor.diagonal()).all()
        sound = sound & torch.isfinite(self.told.innovations).all()
        self.look.copy_(torch.stack([sound.double(), rounds.left]))

    def _finish(self) -> None:
        head = self.head
        how = self.chunk, self.told, self.factor, self.kept, head.prior_var
        update_(head.mean, head.cov, *how)
        if self.learns:
            head.delta.copy_(self.rounds.deltas[-1])
        head.seen.index_fill_(0, self.known, True)
        head.count.add_(len(self.labels))


class CapturedStep:
    """A learner's prediction, gradient step and features again, for chunks of one shape.

    Parameters
    ----------
    learner : OnlineLearner
    rows, labels : (b, ...), (b,)
        A chunk of the shape, with replayed rows behind the new ones.
    n_new : int
        Of them new, and predicted.
    """

    def __init__(self, learner: Any, rows: Tensor, labels: Tensor, n_new: int) -> None:
        self.learner, self.n_new = learner, n_new
        self.rows, self.labels = rows.clone(), labels.clone()
        learner.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        learner._capturing = True
        try:
            with _no_collection(), torch.cuda.graph(self.graph):
                self._step()
        finally:
            learner._capturing = False

    def _step(self) -> None:
        learner, rows, labels = self.learner, self.rows, self.labels
        said = learner._predict(rows[: self.n_new], labels[: self.n_new])
        learner._descend(rows, labels)
        self.made = (*said, learner._features(rows, grad=False))

    def __call__(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, predicted classes, and the features (b, m) after the gradient step."""
        self.rows.copy_(rows)
        self.labels.copy_(labels)
        self.graph.replay()
        log_prob, predicted, features = self.made
        return log_prob.clone(), predicted.clone(), features


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the collector from freeing some other graph while one is being captured."""
    gc.collect()
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
