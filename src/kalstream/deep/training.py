"""How the network of a learner is trained: the loss of a gradient step, and its rows."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from kalstream.core import checks as check
from kalstream.deep.head import is_capturing
from kalstream.deep.replay import (
    Pair,
    RecentMemory,
    ReplayStreams,
    check_images,
    draw_moves,
    moved,
)
from kalstream.deep.softmax import SoftmaxHead
from kalstream.errors import InvalidInput, NumericalError

if TYPE_CHECKING:
    from kalstream.deep.learner import Learner

Optimizer = Callable[[list[Any]], torch.optim.Optimizer]

#: AdamW, whose size of a step does not depend on that of the gradients
_ADAMW: Final = partial(torch.optim.AdamW, lr=0.001, weight_decay=0.05)


class Training(ABC):
    """It trains the network on each chunk. Two learners cannot share one.

    Attributes
    ----------
    optimizer : torch.optim.Optimizer or None
    replay : RecentMemory, ReplayStreams or None
    layer : SoftmaxHead or None
        The layer through which the network is trained, if it is not the head itself.

    Examples
    --------
    >>> from torch import nn
    >>> from kalstream.deep import CrossEntropy, KalmanHead, Learner, Training
    >>> learner = Learner(nn.Linear(2, 4), KalmanHead(4, 3), CrossEntropy(n_steps=1))
    >>> isinstance(learner.training, Training)
    True
    """

    optimizer: Any = None
    replay: Any = None
    layer: SoftmaxHead | None = None
    #: whether `run` reads the head, which must then not have observed the chunk
    reads_head = False
    is_attached = False

    @abstractmethod
    def attach(self, learner: Learner) -> None:
        """Make the optimizer for a learner."""

    def inputs(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Further inputs of `run`, with all random draws."""
        return ()

    @abstractmethod
    def run(self, learner: Learner, rows: Tensor, labels: Tensor, *more: Tensor) -> None:
        """Take the gradient steps of a chunk.

        It may be captured as a CUDA graph, so it draws no random numbers and never waits for the
        device.
        """

    def shown(
        self, rows: Tensor, labels: Tensor, *more: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Rows and labels that the head learns after the gradient steps, in parts."""
        return (rows,), (labels,)

    def state_dict(self) -> dict[str, Any]:
        """State that a checkpoint stores beside optimizer and replay."""
        return {"layer": None if self.layer is None else self.layer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        if self.layer is not None:
            self.layer.load_state_dict(state["layer"])


class Frozen(Training):
    """No gradient steps. With batch_norm="running", running averages still follow the stream.

    Examples
    --------
    >>> from torch import nn
    >>> from kalstream.deep import Frozen, KalmanHead, Learner
    >>> network = nn.Linear(2, 4)
    >>> before = network.weight.detach().clone()
    >>> learner = Learner(network, KalmanHead(4, 3), Frozen())
    >>> _ = learner.step(torch.ones(5, 2), torch.tensor([0, 1, 0, 1, 0]))
    >>> torch.equal(network.weight, before)
    True
    """

    def attach(self, learner: Learner) -> None:
        """Train nothing."""
        learner.tunes = False
        if learner.head.softmax_layer not in (None, learner.head):
            warnings.warn(
                "the network is frozen, so the layers of the stack are never trained; "
                "Stack(n_features, n_classes, decays=(), layers=False) leaves them out",
                stacklevel=4,
            )

    def run(self, learner: Learner, rows: Tensor, labels: Tensor, *more: Tensor) -> None:
        """Only update the running averages."""
        learner.follow_averages(rows)


class ThroughHead(Training):
    """One gradient step on the head's mean log-probability, as in the paper (appendix D.2).

    It trains the backbone, and the calibration of a Kalman head or the layer of another head.

    Parameters
    ----------
    lr : float
        Learning rate of the head's own parameters; 0 disables all gradient steps.
    beta : float
        Learning rate of the backbone divided by ``lr``; 0 freezes the backbone.
    optimizer : function from parameter groups to an optimizer
    replay : RecentMemory, optional
        Drawn rows are appended to the chunk. They enter the gradient and the filter, never a
        metric.
    replay_head : bool
        Whether the head also learns drawn rows, as in the paper.

    Examples
    --------
    >>> from torch import nn
    >>> from kalstream.deep import KalmanHead, Learner, ThroughHead
    >>> network = nn.Linear(2, 4)
    >>> before = network.weight.detach().clone()
    >>> learner = Learner(network, KalmanHead(4, 3), ThroughHead(lr=0.1))
    >>> for _ in range(2):
    ...     outcome = learner.step(torch.ones(2, 2), torch.tensor([0, 1]))
    >>> torch.equal(network.weight, before)
    False
    """

    reads_head = True

    def __init__(
        self,
        *,
        lr: float = 0.01,
        beta: float = 1.0,
        optimizer: Optimizer = torch.optim.SGD,
        replay: RecentMemory | None = None,
        replay_head: bool = True,
    ) -> None:
        if not (0.0 <= lr < np.inf and 0.0 <= beta < np.inf):
            raise InvalidInput(f"lr and beta must be 0 or more, got {lr!r} and {beta!r}")
        check.instance("replay", replay, RecentMemory | None)
        self.lr, self.beta, self.make_optimizer = lr, beta, optimizer
        self.replay, self.replay_head = replay, replay_head

    def attach(self, learner: Learner) -> None:
        """Make the optimizer, with a group for the head and one for the backbone."""
        learner.tunes = learner.tunes and self.lr * self.beta > 0.0
        groups: list[Any] = [{"params": list(learner.head.parameters()), "lr": self.lr}]
        if learner.tunes:
            trained = [p for p in learner.backbone.parameters() if p.requires_grad]
            groups.append({"params": trained, "lr": self.lr * self.beta})
        if self.lr > 0.0:
            self.optimizer = learner.make_optimizer(self.make_optimizer, groups)

    def inputs(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Rows and labels drawn from the memory."""
        if self.replay is None:
            return ()
        self.replay.check(rows)
        return self.replay.sample() or ()

    def run(self, learner: Learner, rows: Tensor, labels: Tensor, *again: Tensor) -> None:
        """Take the gradient step."""
        if again:
            rows, labels = torch.cat([rows, again[0]]), torch.cat([labels, again[1]])
        learner.follow_averages(rows)
        if self.optimizer is not None:
            learner.descend(partial(self._loss, learner, rows, labels))

    def _loss(self, learner: Learner, rows: Tensor, labels: Tensor) -> Tensor:
        features = learner.features(rows, grad=learner.tunes)
        loss = -learner.head.log_prob(features, labels).mean()
        if not is_capturing(loss) and not bool(torch.isfinite(loss)):
            raise NumericalError(
                f"the loss is {float(loss)} at row {learner.n_seen_}; nothing was learned from "
                "this chunk. Lower lr or beta, or check the backbone"
            )
        return loss

    def shown(
        self, rows: Tensor, labels: Tensor, *again: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The chunk, and the drawn rows if the head learns them."""
        if not (again and self.replay_head):
            return (rows,), (labels,)
        return (rows, again[0]), (labels, again[1])


class CrossEntropy(Training):
    """Gradient steps on the mean cross-entropy of a softmax layer on the network.

    With a `RecentMemory` each step takes the new rows and a new draw of old ones, in one pass
    through the network. With `ReplayStreams` one step on the new rows is followed by a step on a
    past chunk of each stream.

    Parameters
    ----------
    lr : float, optional
        Learning rate, in place of the optimizer's own.
    optimizer : function from a list of parameters to an optimizer
        AdamW with lr 0.001 and weight decay 0.05 by default.
    n_steps : int
        Gradient steps per chunk.
    replay : RecentMemory, ReplayStreams, optional
        By default 54 rows are drawn, with replacement, from the 4,000 most recent ones. None trains
        on new rows only.
    flip : bool
        Mirror each training image, new or replayed, with probability 1/2. Images are predicted and
        added to the memory as they are.
    shift : int
        Move each training image by up to so many pixels, in both directions; zeros come in.
    spare_past : bool
        Protect past classes (ACE; Caccia et al., 2022). The loss is L_new + L_past, with a pass
        through the network for each. L_past is the cross-entropy of drawn rows. L_new is that of
        new rows among the classes of this chunk and those never seen: logits of past classes (seen
        in an earlier chunk, absent from this one) are set to minus infinity.
    seed : int
        Seed of flips and shifts, and of the default memory.

    Examples
    --------
    >>> from torch import nn
    >>> from kalstream.deep import CrossEntropy, KalmanHead, Learner
    >>> training = CrossEntropy(lr=0.01, n_steps=1, replay=None)
    >>> learner = Learner(nn.Linear(2, 4), KalmanHead(4, 3), training)
    >>> outcome = learner.step(torch.ones(2, 2), torch.tensor([0, 1]))
    >>> training.optimizer.param_groups[0]["lr"]
    0.01
    """

    def __init__(
        self,
        *,
        lr: float | None = None,
        optimizer: Optimizer = _ADAMW,
        n_steps: int = 3,
        replay: RecentMemory | ReplayStreams | str | None = "recent",
        flip: bool = False,
        shift: int = 0,
        spare_past: bool = False,
        seed: int = 0,
    ) -> None:
        if n_steps < 1:
            raise InvalidInput(f"n_steps must be 1 or more, got {n_steps}")
        if isinstance(replay, str):
            check.choice("replay", replay, ("recent",))
            replay = RecentMemory(size=4000, draw=54, seed=seed)
        check.instance("replay", replay, RecentMemory | ReplayStreams | None)
        if spare_past and not isinstance(replay, RecentMemory):
            raise InvalidInput("spare_past compares new rows with drawn ones; give a RecentMemory")
        self.lr = None if lr is None else check.positive("lr", lr)
        self.make_optimizer, self.n_steps, self.replay = optimizer, n_steps, replay
        self.flip, self.shift = flip, check.count("shift", shift) if shift else 0
        self.spare_past = self.reads_head = spare_past
        self.generator = torch.Generator().manual_seed(seed)

    def attach(self, learner: Learner) -> None:
        """Make the layer, unless the head has one, and the optimizer of backbone and layer."""
        head, layer = learner.head, learner.head.softmax_layer
        if layer is None:
            layer = self.layer = SoftmaxHead(head.n_features, head.n_classes).to(learner.device)
        self._trained: SoftmaxHead = layer
        trained = [
            p for part in (learner.backbone, layer) for p in part.parameters() if p.requires_grad
        ]
        self.optimizer = learner.make_optimizer(self.make_optimizer, trained)
        for group in self.optimizer.param_groups if self.lr is not None else ():
            group["lr"] = self.lr

    def inputs(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Drawn rows and labels, and how the images of every pass are moved."""
        if self.flip or self.shift:
            check_images(rows)
        if isinstance(self.replay, RecentMemory):
            self.replay.check(rows)
        past = self._drawn()
        flat = [each for pair in past for each in pair]
        if self.flip or self.shift:
            passes = self._passes((rows, labels), past)
            sizes = [sum(len(part[1]) for part in parts) for parts in passes]
            moves = [draw_moves(n, self.flip, self.shift, self.generator) for n in sizes]
            flat.append(torch.cat(moves).to(rows.device))
        return tuple(flat)

    def _drawn(self) -> list[Pair]:
        if isinstance(self.replay, RecentMemory):
            return self.replay.samples(self.n_steps)
        return [] if self.replay is None else self.replay.chunks()

    def _passes(self, new: Pair, past: list[Pair]) -> list[list[Pair]]:
        """Each pass through the network, in parts: new rows, drawn ones, or both."""
        if not isinstance(self.replay, RecentMemory):
            return [[new]] * self.n_steps + [[each] for each in past]
        if not past:  # the first chunk
            return [[new]] * self.n_steps
        if self.spare_past:
            return [[each] for old in past for each in (new, old)]
        return [[new, old] for old in past]

    def run(self, learner: Learner, rows: Tensor, labels: Tensor, *more: Tensor) -> None:
        """Take a gradient step for each pass, or for two passes if past classes are spared."""
        moves = more[-1] if self.flip or self.shift else None
        drawn = more if moves is None else more[:-1]
        past = list(zip(drawn[::2], drawn[1::2], strict=True))
        pairs, first = [], 0
        for parts in self._passes((rows, labels), past):
            x, y = (torch.cat(each) for each in zip(*parts, strict=True))
            if moves is not None:
                x = moved(x, moves[first : first + len(y)], self.shift)
            pairs.append((x, y))
            first += len(y)
        if self.spare_past and past:
            for new, old in zip(pairs[::2], pairs[1::2], strict=True):
                learner.descend(partial(self._sparing, learner, *new, *old))
            return
        for pair in pairs:
            learner.descend(partial(self._loss, learner, *pair))

    def _loss(self, learner: Learner, rows: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self._logits(learner, rows), labels)

    def _sparing(
        self, learner: Learner, rows: Tensor, labels: Tensor, past_rows: Tensor, past_labels: Tensor
    ) -> Tensor:
        seen = learner.head.seen
        present = torch.zeros_like(seen).index_fill(0, labels, True)
        past = seen & ~present  # (K,)
        new = cross_entropy(self._logits(learner, rows).masked_fill(past, -torch.inf), labels)
        return new + self._loss(learner, past_rows, past_labels)

    def _logits(self, learner: Learner, rows: Tensor) -> Tensor:
        """Logits (b, K) for a gradient step; batch norm uses the averages of these rows."""
        return self._trained(learner.features(rows, grad=learner.tunes)).mean

    # ---- state --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The layer, if it is not part of the head, and the generator of flips and shifts."""
        return {**super().state_dict(), "rng": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        super().load_state_dict(state)
        self.generator.set_state(state["rng"].cpu())
