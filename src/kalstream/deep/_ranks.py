"""Split a chunk over the ranks of a process group; each computes the features of its part."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, distributed, nn


class Ranks:
    """The process group, and this rank's part of a chunk.

    Attributes
    ----------
    rank, size : int
    """

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    @classmethod
    def now(cls, *modules: nn.Module) -> Self | None:
        """The ranks of the current process group, or None. Copies rank 0's modules to all ranks."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        ranks = cls()
        if ranks.size == 1:
            return None
        for module in modules:
            for each in (*module.parameters(), *module.buffers()):
                distributed.broadcast(each.data, 0)
        return ranks

    def own(self, rows: Tensor) -> Tensor:
        """Rows of this rank. Batch norm needs two rows per rank; a smaller chunk is not split."""
        return rows.tensor_split(self.size)[self.rank] if self._splits(len(rows)) else rows

    def gather(self, features: Tensor, n_rows: int) -> Tensor:
        """Features (n_rows, m) of all ranks; sum their gradients over the ranks (`reduce_`)."""
        if not self._splits(n_rows):  # every rank has all rows, and takes its share of the gradient
            return features.detach() + (features - features.detach()) / self.size
        most = -(-n_rows // self.size)
        padded = features.new_zeros(most, *features.shape[1:])
        padded[: len(features)] = features.detach()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(parts, padded)
        sizes = [len(part) for part in torch.arange(n_rows).tensor_split(self.size)]
        parts = [part[:size] for part, size in zip(parts, sizes, strict=True)]
        parts[self.rank] = features
        return torch.cat(parts)

    def wait(self) -> None:
        """Wait until all ranks call this."""
        distributed.barrier()

    def _splits(self, n_rows: int) -> bool:
        return n_rows >= 2 * self.size

    @torch.no_grad()
    def reduce_(self, backbone: nn.Module) -> None:
        """Sum the backbone's gradients over the ranks, and average its running averages."""
        gradients = [each.grad for each in backbone.parameters() if each.grad is not None]
        averages = [each for each in backbone.buffers() if each.is_floating_point()]
        _sum_(gradients)
        _sum_(averages)
        for each in averages:
            each /= self.size


def _sum_(tensors: list[Tensor]) -> None:
    """Sum tensors over the ranks, in place, in one message."""
    if tensors:
        flat = torch.cat([each.reshape(-1) for each in tensors])
        distributed.all_reduce(flat)
        parts = flat.split([each.numel() for each in tensors])
        for each, part in zip(tensors, parts, strict=True):
            each.copy_(part.view_as(each))
