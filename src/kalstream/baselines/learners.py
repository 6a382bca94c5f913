"""The paper's baselines: networks trained online by gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kalstream.baselines.head import SoftmaxHead
from kalstream.deep import Learner, RecentMemory, ReplayStreams
from kalstream.deep.replay import check_images, mirrored
from kalstream.errors import InvalidInput

#: as in the public code of Ghunaim et al. (2023) for CIFAR; for CLOC they use lr=0.005
SGD: Final = partial(torch.optim.SGD, lr=0.001, momentum=0.9, weight_decay=1e-4)


class _Baseline(Learner):
    """A backbone and a softmax layer, trained by gradients alone.

    To add a baseline learner, subclass it, set ``replays``, and write `_chunks`, which makes all
    random draws; or, to train on new and drawn rows, subclass `_Replayed` and write `_beside`.
    Override `_train` for another loss. Then export the class in baselines/__init__.py, and add it
    to `BASELINES` in paper/learners.py.

    A gradient step that fails changes nothing. If a chunk takes several steps, those before the
    failed one remain; the chunk is then neither counted nor added to the replay memory.
    """

    replays: type[RecentMemory] | type[ReplayStreams]
    head: SoftmaxHead

    def __init__(
        self,
        backbone: nn.Module,
        head: SoftmaxHead,
        *,
        optimizer: Callable[[list[Any]], torch.optim.Optimizer] = SGD,
        replay: RecentMemory | ReplayStreams | None = None,
        flip: bool = False,
        seed: int = 0,
        **shared: Any,
    ) -> None:
        if not isinstance(head, SoftmaxHead):
            raise InvalidInput(f"head must be a SoftmaxHead, got {type(head).__name__}")
        if not isinstance(replay, self.replays | None):
            raise InvalidInput(
                f"replay of {type(self).__name__} must be {self.replays.__name__}, got "
                f"{type(replay).__name__}"
            )
        super().__init__(backbone, head, replay=replay, **shared)
        trained = [p for part in (backbone, head) for p in part.parameters() if p.requires_grad]
        self._optimize(optimizer, trained)
        self.flip, self.generator = flip, torch.Generator().manual_seed(seed)

    def _inputs(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        if self.flip:
            check_images(rows)
        labels = self.head.checked(labels, len(rows))
        trained = [each for chunk in self._chunks(rows, labels) for each in self._flipped(*chunk)]
        return rows, labels, *trained

    @abstractmethod
    def _chunks(self, rows: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The chunks to train on, one gradient step each."""

    def _flipped(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return (mirrored(rows, self.generator) if self.flip else rows), labels

    def _train(self, rows: Tensor, labels: Tensor, *trained: Tensor) -> None:
        for chunk in zip(trained[::2], trained[1::2], strict=True):
            self._descend(self._cross_entropy, *chunk)

    def _logits(self, rows: Tensor) -> Tensor:
        """Logits (b, K) for a gradient step; batch norm uses the averages of these rows."""
        return self.head(self._features(rows, grad=self.tunes)).mean

    def _cross_entropy(self, rows: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self._logits(rows), labels)

    def _finish(self, features: Tensor | None, inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
        self.head.note(inputs[1])
        return lambda: None

    def state_dict(self) -> dict[str, Any]:
        """As `Learner.state_dict`, with the random generator of the flips."""
        return super().state_dict() | {"flip_rng": self.generator.get_state()}

    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        self.generator.set_state(state["flip_rng"].cpu())


class OnlineSGD(_Baseline):
    """Online SGD: one gradient step per chunk, on the mean cross-entropy.

    With replay streams, one more step per stream follows, each on a past chunk (Bornschein et al.,
    2022, without averaging of weights). The first chunk has no past, so it takes one step.

    Parameters
    ----------
    backbone : nn.Module
        Maps rows, as `preprocess` returns them, to features (b, n_features). Parameters that do not
        require gradients are not trained.
    head : SoftmaxHead
    optimizer : function from a list of parameters to an optimizer
        SGD with lr 0.001, momentum 0.9 and weight decay 1e-4 by default.
    replay : ReplayStreams, optional
    flip : bool
        Mirror each training image, new or replayed, with probability 1/2. Images are predicted and
        added to the replay memory without mirroring.
    seed : int
        Seed of the flips.
    batch_norm, preprocess, device, autocast, capture
        As for `OnlineLearner`. With batch_norm="eval" rows are predicted with the running averages
        and trained with those of the chunk.

    Attributes
    ----------
    classes_ : (K,)
        0 to K - 1.
    n_seen_ : int
        Rows learned, without replayed ones.

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

    def _chunks(self, rows: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [(rows, labels), *([] if self.replay is None else self.replay.chunks())]


class _Replayed(_Baseline):
    """Gradient steps on the chunk together with rows drawn from a memory.

    The first chunk has no drawn rows.
    """

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

    def _chunks(self, rows: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
        chunks = []
        for _ in range(self.n_steps):
            again = self.replay.sample()
            chunks += [(rows, labels)] if again is None else self._beside(rows, labels, *again)
        return chunks

    @abstractmethod
    def _beside(
        self, rows: Tensor, labels: Tensor, past_rows: Tensor, past_labels: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """The passes through the network of one step on new and replayed rows."""


class ExperienceReplay(_Replayed):
    """ER: one gradient step on the mean cross-entropy of new and replayed rows together.

    Both go through the network in one pass, so batch norm averages over both. With n_steps > 1 this
    is ER++: each step uses the same new rows and a new draw from the memory.

    Parameters
    ----------
    backbone, head, optimizer, flip, seed, batch_norm, preprocess, device, autocast
        As for `OnlineSGD`.
    n_steps : int
        Gradient steps per chunk.
    replay : RecentMemory, optional
        By default 10 rows are drawn, with replacement, from the 100 most recent ones. A chunk is
        added after it was learned, so the first chunk has no replay.

    Examples
    --------
    >>> er_plus_plus = ExperienceReplay(nn.Identity(), SoftmaxHead(2, 2), n_steps=3)
    >>> er_plus_plus = er_plus_plus.partial_fit([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> er_plus_plus.predict_proba([[1.0, 0.1]]).shape
    (1, 2)
    """

    def _beside(
        self, rows: Tensor, labels: Tensor, past_rows: Tensor, past_labels: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        return [(torch.cat([rows, past_rows]), torch.cat([labels, past_labels]))]


class ACE(_Replayed):
    """ER with an asymmetric cross-entropy (Caccia et al., 2022), which protects past classes.

    The loss is L_new + L_past. The network runs once for each part, so batch norm averages over
    each separately. L_past is the mean cross-entropy of the replayed rows. L_new is the mean
    cross-entropy of the new rows. Logits of past classes (seen in an earlier chunk, absent from
    this one) are set to minus infinity. So the softmax covers the classes of this chunk and those
    never seen. For the first chunk the loss is the plain mean cross-entropy.

    Parameters
    ----------
    backbone, head, n_steps, optimizer, replay, flip, seed, batch_norm, preprocess, device, autocast
        As for `ExperienceReplay`.

    Examples
    --------
    >>> learner = ACE(nn.Identity(), SoftmaxHead(2, 2), replay=RecentMemory(size=50, draw=5))
    >>> learner = learner.partial_fit([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> learner.predict_proba([[1.0, 0.1]]).shape
    (1, 2)
    """

    def _beside(
        self, rows: Tensor, labels: Tensor, past_rows: Tensor, past_labels: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        return [(rows, labels), (past_rows, past_labels)]

    def _train(self, rows: Tensor, labels: Tensor, *trained: Tensor) -> None:
        if len(trained) < 4 * self.n_steps:  # the first chunk
            return super()._train(rows, labels, *trained)
        for first in range(0, len(trained), 4):
            self._descend(self._loss, *trained[first : first + 4])

    def _loss(self, rows: Tensor, labels: Tensor, past_rows: Tensor, past_labels: Tensor) -> Tensor:
        present = torch.zeros_like(self.head.seen).index_fill(0, labels, True)
        past = self.head.seen & ~present  # (K,)
        new = cross_entropy(self._logits(rows).masked_fill(past, -torch.inf), labels)
        return new + self._cross_entropy(past_rows, past_labels)
