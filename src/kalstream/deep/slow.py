"""Slow copies of a network: a head reads these averages of its weights; they are not trained."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kalstream.errors import InvalidInput


class SlowCopies(nn.Module):
    """Exponential averages of a network's weights and running averages, one copy for each decay.

    After chunk n (from 0) the copy with decay d is min(d, (n + 1) / (n + 10)) of itself and the
    rest of the network. So at first it is close to the mean of all networks so far.

    Parameters
    ----------
    network : nn.Module
    decays : sequence of float in [0, 1)
        For example 0.98: a network counts half as much after 34 chunks.

    Attributes
    ----------
    copies : list of modules
        In evaluation mode, without gradients.

    Examples
    --------
    >>> network = nn.Linear(2, 1)
    >>> slow = SlowCopies(network, [0.5])
    >>> _ = nn.init.constant_(network.weight, 1.0)
    >>> slow.follow(network)
    >>> slow.follow(network)
    >>> bool(slow.copies[0].weight[0, 0] > 0.95)
    True
    """

    count: Tensor
    decays: Tensor

    def __init__(self, network: nn.Module, decays: Sequence[float]) -> None:
        super().__init__()
        if not all(0.0 <= decay < 1.0 for decay in decays):
            raise InvalidInput(f"decays must be at least 0 and below 1, got {list(decays)}")
        self.copies = nn.ModuleList(
            copy.deepcopy(network).eval().requires_grad_(False) for _ in decays
        )
        device = next((each.device for each in network.parameters()), None)
        self.register_buffer("decays", torch.tensor(list(decays), device=device))
        self.register_buffer("count", torch.zeros((), device=device))

    def train(self, mode: bool = True) -> SlowCopies:
        """Stay in evaluation mode."""
        return super().train(False)

    @property
    def networks(self) -> list[Any]:
        """The copies, typed as Any: each has the methods of the network itself."""
        return list(self.copies)

    @torch.no_grad()
    def follow(self, network: nn.Module) -> None:
        """Move every copy towards the network."""
        theirs = _numbers(network)
        for copied, decay in zip(self.copies, self.decays.unbind(), strict=True):
            kept = torch.minimum(decay, (self.count + 1.0) / (self.count + 10.0))
            ours = _numbers(copied)
            torch._foreach_mul_(ours, kept)
            torch._foreach_add_(ours, torch._foreach_mul(theirs, 1.0 - kept))
        self.count += 1.0


def _numbers(network: nn.Module) -> list[Tensor]:
    """Parameters and running averages; without counters, which are integers."""
    every = (*network.parameters(), *network.buffers())
    return [each.detach() for each in every if each.is_floating_point()]
