"""Copies of all state that a chunk changes, except the posterior; an error restores them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kalstream.deep.learner import Learner


class Undo:
    """The trained weights, their optimizer, running averages and generators, before a chunk.

    A gradient step can spoil the features that the next step or the head needs, which shows only
    afterwards. Weights that are not trained are not copied. Posterior and memory change last and
    as a whole, so they are not copied either.

    Parameters
    ----------
    learner : Learner
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.places: list[tuple[int, int]] = []
        self.pairs: list[tuple[list[Tensor], list[Tensor]]] = []

    def keep(self) -> None:
        """Copy everything."""
        learner, optimizer = self.learner, self.learner.optimizer
        tensors = list(learner.backbone.buffers())
        if learner.slow is not None and not learner.follows_last:
            tensors += learner.slow.state_dict(keep_vars=True).values()
        self.groups: list[dict[str, Any]] = []
        self.states: dict[Tensor, dict[str, Any]] = {}
        if optimizer is not None:
            self.groups = [dict(group) for group in optimizer.param_groups]
            self.states = {weight: dict(state) for weight, state in optimizer.state.items()}
        tensors += [weight for group in self.groups for weight in group["params"]]
        for state in self.states.values():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors.append(value)
                else:
                    state[name] = copy.deepcopy(value)
        places = [(id(each), each.data_ptr()) for each in tensors]
        if places != self.places:  # otherwise reuse the old memory, since new memory is slow
            self.places, self.tensors, self.pairs = places, tensors, _paired(tensors)
        for own, copies in self.pairs:
            torch._foreach_copy_(copies, own)
        drawing = (learner.training, learner.replay)
        generators = (getattr(each, "generator", None) for each in drawing)
        self.generators = [(each, each.get_state()) for each in generators if each is not None]
        self.pointers = getattr(learner.replay, "pointers", None)
        self.rng = torch.get_rng_state()

    def run(self) -> None:
        """Put everything back."""
        for own, copies in self.pairs:
            torch._foreach_copy_(own, copies)
        optimizer = self.learner.optimizer
        if optimizer is not None:
            for group, before in zip(optimizer.param_groups, self.groups, strict=True):
                group.update(before)
            optimizer.state.clear()
            optimizer.state.update(self.states)
        for generator, state in self.generators:
            generator.set_state(state)
        if self.pointers is not None:  # a new list at each draw
            self.learner.replay.pointers = self.pointers
        torch.set_rng_state(self.rng)


def _paired(tensors: list[Tensor]) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Tensors and memory for their copies, a pair of lists for each device and data type.

    On a GPU each pair is then copied by one kernel.
    """
    groups: dict[Any, list[Tensor]] = {}
    for each in tensors:
        groups.setdefault((each.device, each.dtype), []).append(each.detach())
    return [(group, [torch.empty_like(each) for each in group]) for group in groups.values()]
