"""Networks trained online by gradients: the baselines of the paper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from kalstream.baselines.head import SoftmaxHead
from kalstream.core import _checks as check
from kalstream.deep import OnlineLearner, RecentMemory, ReplayStreams
from kalstream.deep.learner import BATCH_NORM, _as_floats
from kalstream.errors import CheckpointError, InvalidInput

Tensor = Any

#: as in the public code of Ghunaim et al. (2023) on CIFAR; they use lr=0.005 on CLOC
SGD: Final = partial(torch.optim.SGD, lr=0.001, momentum=0.9, weight_decay=1e-4)


class _Baseline(OnlineLearner, ABC):
    """A backbone and a softmax layer; what `OnlineLearner` does but for how a chunk is learnt.

    A gradient step is taken whole or not at all. Where a chunk takes several, those before the
    one that failed have been taken; the chunk is then neither counted nor remembered.
    """

    replays: Any
    replay: Any

    def __init__(
        self,
        backbone: nn.Module,
        head: SoftmaxHead,
        *,
        optimizer: Callable[[list[Any]], Any] = SGD,
        replay: Any = None,
        flip: bool = False,
        seed: int = 0,
        batch_norm: str = "eval",
        preprocess: Callable[[Any], Tensor] | None = None,
        device: Any = "cpu",
        autocast: Any = None,
    ) -> None:
        check.choice("batch_norm", batch_norm, BATCH_NORM)
        if not isinstance(replay, self.replays | None):
            raise InvalidInput(
                f"{type(self).__name__} replays from {self.replays.__name__}, got {replay!r}"
            )
        self.device = torch.device(device)
        self.backbone, self.head = backbone.to(self.device), head.to(self.device)
        self.tunes = any(p.requires_grad for p in backbone.parameters())
        trained = [p for part in (backbone, head) for p in part.parameters() if p.requires_grad]
        self.optimizer = optimizer(trained)
        self.replay, self.batch_norm, self.autocast = replay, batch_norm, autocast
        self.preprocess = preprocess or _as_floats
        self.flip, self.generator = flip, torch.Generator().manual_seed(seed)

    def _learn(self, rows: Tensor, labels: Tensor) -> None:
        labels = self.head.checked(labels, len(rows))
        self._train(rows, labels)
        if self.replay is not None:
            self.replay.add(rows, labels)
        self.head.note(labels)

    @abstractmethod
    def _train(self, rows: Tensor, labels: Tensor) -> None:
        """Take the gradient steps of a chunk."""

    def _descend(self, loss: Callable[..., Tensor], *data: Tensor) -> None:
        """One gradient step."""
        # a forward pass that fails has spoilt the running averages of batch norm
        before = [(buffer, buffer.clone()) for buffer in self.backbone.buffers()]
        try:
            self.optimizer.zero_grad(set_to_none=True)
            loss(*data).backward()
        except Exception:
            for buffer, kept in before:
                buffer.copy_(kept)
            raise
        self.optimizer.step()

    def _logits(self, rows: Tensor) -> Tensor:
        """Logits (b, K) to be trained; batch norm with the averages of these rows."""
        return self.head(self._features(self._flipped(rows), grad=self.tunes)).mean

    def _cross_entropy(self, rows: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self._logits(rows), labels)

    def _flipped(self, rows: Tensor) -> Tensor:
        if not self.flip:
            return rows
        if rows.ndim != 4:
            raise InvalidInput(
                f"flip=True mirrors images (b, c, h, w), got rows {tuple(rows.shape)}; use "
                "flip=False, or a preprocess that returns images"
            )
        mirrored = torch.rand(len(rows), generator=self.generator) < 0.5
        return torch.where(mirrored.to(rows.device)[:, None, None, None], rows.flip(3), rows)

    def state_dict(self) -> dict[str, Any]:
        """As of `OnlineLearner`, and the random numbers of the flips."""
        return super().state_dict() | {"flip_rng": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        if "flip_rng" not in state:
            raise CheckpointError(f"the checkpoint is not one of a {type(self).__name__}")
        super().load_state_dict(state)
        self.generator.set_state(state["flip_rng"].cpu())


class OnlineSGD(_Baseline):
    """Online SGD: one gradient step per chunk, on the mean cross-entropy.

    With replay streams, one more step per stream follows, each on a past chunk (Bornschein et al.,
    2022, without averaging weights); none for the first chunk, which has no past.

    Parameters
    ----------
    backbone : nn.Module
        From rows, as `preprocess` returns them, to features (b, n_features). Parameters that do
        not require gradients stay as they are.
    head : SoftmaxHead
    optimizer : function from a list of parameters to an optimizer
        SGD with lr 0.001, momentum 0.9 and weight decay 1e-4 by default.
    replay : ReplayStreams, optional
    flip : bool
        Mirror each image that is trained on, new or replayed, with probability 1/2; they are
        predicted and remembered as they came.
    seed : int
        Of the flips.
    batch_norm, preprocess, device, autocast
        As of `OnlineLearner`: with batch_norm="eval" rows are predicted with the running averages,
        and trained on with their own.

    Attributes
    ----------
    classes_ : (K,)
        0 to K - 1.
    n_seen_ : int
        Rows learnt, replayed ones not counted.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> learner = OnlineSGD(
    ...     nn.Identity(),
    ...     SoftmaxHead(2, 2),
    ...     optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    ...     replay=ReplayStreams(8),
    ... )
    >>> for _ in range(5):
    ...     learner = learner.partial_fit([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> learner.predict([[1.0, 0.1]]), learner.n_seen_
    (array([0]), 10)
    """

    replays = ReplayStreams

    def _train(self, rows: Tensor, labels: Tensor) -> None:
        self._descend(self._cross_entropy, rows, labels)
        for chunk in [] if self.replay is None else self.replay.chunks():
            self._descend(self._cross_entropy, *chunk)


class _Replayed(_Baseline):
    """Steps on a chunk and, but for the first chunk, rows drawn from a memory for each step."""

    replays = RecentMemory

    def __init__(
        self,
        backbone: nn.Module,
        head: SoftmaxHead,
        *,
        n_steps: int = 1,
        replay: RecentMemory | None = None,
        **options: Any,
    ) -> None:
        if n_steps < 1:
            raise InvalidInput(f"n_steps must be 1 or more, got {n_steps}")
        self.n_steps = n_steps
        super().__init__(
            backbone, head, replay=RecentMemory() if replay is None else replay, **options
        )

    def _train(self, rows: Tensor, labels: Tensor) -> None:
        for _ in range(self.n_steps):
            again = self.replay.sample()
            if again is None:
                self._descend(self._cross_entropy, rows, labels)
            else:
                self._descend(self._loss, rows, labels, *again)

    @abstractmethod
    def _loss(self, rows: Tensor, labels: Tensor, past_rows: Tensor, past_labels: Tensor) -> Tensor:
        """Of new and replayed rows."""


class ExperienceReplay(_Replayed):
    """ER: one gradient step on the mean cross-entropy of new and replayed rows together.

    They go through the network in one pass, so batch norm averages over both. With n_steps > 1 it
    is ER++: the same new rows in each step, with a fresh draw from the memory.

    Parameters
    ----------
    backbone, head, optimizer, flip, seed, batch_norm, preprocess, device, autocast
        As of `OnlineSGD`.
    n_steps : int
        Gradient steps per chunk.
    replay : RecentMemory, optional
        Of the 100 most recent rows, 10 drawn with replacement, by default. A chunk is added once
        it has been learnt: the first has no replay.

    Examples
    --------
    >>> er_plus_plus = ExperienceReplay(nn.Identity(), SoftmaxHead(2, 2), n_steps=3)
    >>> er_plus_plus = er_plus_plus.partial_fit([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> er_plus_plus.predict_proba([[1.0, 0.1]]).shape
    (1, 2)
    """

    def _loss(self, rows: Tensor, labels: Tensor, past_rows: Tensor, past_labels: Tensor) -> Tensor:
        return self._cross_entropy(torch.cat([rows, past_rows]), torch.cat([labels, past_labels]))


class ACE(_Replayed):
    """ER with an asymmetric cross-entropy (Caccia et al., 2022), which spares classes gone by.

    The loss is L_new + L_past, the network being run twice, and batch norm averaging over each
    part on its own. L_past is the mean cross-entropy of the replayed rows. L_new is that of the
    new rows, with the logits of classes that came in an earlier chunk and are not in this one set
    to minus infinity: the softmax is over the chunk's own classes and those that never came. For
    the first chunk the loss is the plain mean cross-entropy.

    Parameters
    ----------
    backbone, head, n_steps, optimizer, replay, flip, seed, batch_norm, preprocess, device, autocast
        As of `ExperienceReplay`.

    Examples
    --------
    >>> learner = ACE(nn.Identity(), SoftmaxHead(2, 2), replay=RecentMemory(size=50, draw=5))
    >>> learner = learner.partial_fit([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> learner.predict_proba([[1.0, 0.1]]).shape
    (1, 2)
    """

    def _loss(self, rows: Tensor, labels: Tensor, past_rows: Tensor, past_labels: Tensor) -> Tensor:
        gone = self.head.seen.clone()  # (K,)
        gone[labels] = False
        new = cross_entropy(self._logits(rows).masked_fill(gone, -torch.inf), labels)
        return new + self._cross_entropy(past_rows, past_labels)
