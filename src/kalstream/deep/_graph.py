"""`KalmanHead.observe` for chunks of one size as two CUDA graphs, launched as a whole."""

from __future__ import annotations

from typing import Any, Final

import torch

from kalstream.deep.filter import Chunk, Told, update_

Tensor = Any

# Rounds after which learnt coefficients are as good as found: what is left is looked at.
_ROUNDS: Final = 4
_LEFT: Final = 1e-10


class Captured:
    """A head and a chunk size, captured; valid while the head's buffers stay where they are.

    Parameters
    ----------
    head : KalmanHead
        On a CUDA device.
    n_rows : int
    """

    def __init__(self, head: Any, n_rows: int) -> None:
        self.head, self.where = head, places(head)
        mean = head.mean
        self.phi = torch.zeros(n_rows, len(mean), dtype=mean.dtype, device=mean.device)
        self.labels = torch.zeros(n_rows, dtype=torch.int64, device=mean.device)
        kept = [each.clone() for each in (head.mean, head.cov, head.delta)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._scan()
                self._update()
        torch.cuda.current_stream().wait_stream(side)
        self.scan, self.update = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.scan):
            self._scan()
        with torch.cuda.graph(self.update):
            self._update()
        for each, value in zip((head.mean, head.cov, head.delta), kept, strict=True):
            each.copy_(value)

    def __call__(self, phi: Tensor, labels: Tensor) -> Told | None:
        """Observe a chunk of features as the filter takes them; None if the plain way must do it.

        That is where rounds have not sufficed, delta has reached its upper bound, or precision
        its end: nothing has been changed then.
        """
        self.phi.copy_(phi)
        self.labels.copy_(labels)
        self.scan.replay()
        if not bool(self.fine):
            return None
        told = Told(*(each.clone() for each in vars(self.told).values()))
        self.update.replay()
        return told

    def _scan(self) -> None:
        head = self.head
        chunk = Chunk.of(head.mean, head.cov, self.phi)
        targets = torch.nn.functional.one_hot(self.labels, head.n_classes).to(self.phi.dtype)
        noise_var = torch.full_like(self.phi[:, 0], head.noise_var)
        seen = head._seen_before(self.labels)
        rounds = _ROUNDS if head.gamma_lr > 0.0 else 1
        found = head._rounds(chunk, targets, self.labels, noise_var, seen, rounds)
        self.chunk, (self.delta, self.told, self.factor, self.kept, left) = chunk, found
        sound = torch.isfinite(self.factor.diagonal()).all()
        sound &= torch.isfinite(self.told.innovations).all() & torch.isfinite(self.phi).all()
        self.fine = sound & (left <= _LEFT)

    def _update(self) -> None:
        head = self.head
        how = self.chunk, self.told, self.factor, self.kept, head.prior_var
        update_(head.mean, head.cov, *how)
        head.delta.copy_(self.delta)


def places(head: Any) -> tuple[int, ...]:
    """Where the head's buffers are."""
    return tuple(each.data_ptr() for each in (head.mean, head.cov, head.delta, head.seen))
