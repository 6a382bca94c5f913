"""The paper's baselines: networks trained online by gradients."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch import nn

from kalstream.deep import CrossEntropy, Learner, RecentMemory, ReplayStreams, SoftmaxHead
from kalstream.deep.training import Optimizer
from kalstream.errors import InvalidInput

#: as in the public code of Ghunaim et al. (2023) for CIFAR; for CLOC they use lr=0.005
SGD: Final = partial(torch.optim.SGD, lr=0.001, momentum=0.9, weight_decay=1e-4)


class _BaselineLearner(Learner):
    """A backbone and a softmax layer, trained by `CrossEntropy` alone.

    To add a baseline learner, subclass it and export the class in baselines/__init__.py, and add it
    to `BASELINES` in paper/learners.py. Subclasses only set options. They are classes because a
    saved file holds the name of the class, and `restore` refuses the file of another one.

    A gradient step that fails changes nothing. If a chunk takes several steps, those before the
    failed one remain; the chunk is then neither counted nor added to the replay memory.
    """

    #: the kind of replay; a `RecentMemory` is made if none is given
    replays: ClassVar[type[RecentMemory] | type[ReplayStreams]] = RecentMemory
    spares_past: ClassVar[bool] = False

    def __init__(
        self,
        backbone: nn.Module,
        head: SoftmaxHead,
        *others: object,
        optimizer: Optimizer = SGD,
        n_steps: int = 1,
        replay: RecentMemory | ReplayStreams | None = None,
        flip: bool = False,
        spare_past: bool | None = None,
        seed: int = 0,
        **shared: Any,
    ) -> None:
        if others or not isinstance(head, SoftmaxHead):
            name, given = type(self).__name__, ", ".join(map(_named, (head, *others)))
            raise InvalidInput(
                f"{name} takes a network and its head, got {given} after the network; pass "
                f"{name}(network, SoftmaxHead(n_features, n_classes)), and options by name"
            )
        if not isinstance(replay, self.replays | None):
            raise InvalidInput(
                f"replay of {type(self).__name__} must be {self.replays.__name__}, got "
                f"{type(replay).__name__}"
            )
        if replay is None and self.replays is RecentMemory:
            replay = RecentMemory()
        training = CrossEntropy(
            optimizer=optimizer,
            n_steps=n_steps,
            replay=replay,
            flip=flip,
            spare_past=self.spares_past if spare_past is None else spare_past,
            seed=seed,
        )
        super().__init__(backbone, head, training, **shared)


def _named(argument: object) -> str:
    """The argument as an error shows it: modules by their class alone."""
    return type(argument).__name__ if isinstance(argument, nn.Module) else repr(argument)


class OnlineSGD(_BaselineLearner):
    """Online SGD: one gradient step per chunk, on the mean cross-entropy.

    With replay streams, one more step per stream follows, each on a past chunk (Bornschein et al.,
    2022, without averaging of weights). The first chunk has no past, so it takes one step.

    Parameters
    ----------
    backbone : nn.Module
        As for `Learner`.
    head : SoftmaxHead
    optimizer : function from a list of parameters to an optimizer
        SGD with lr 0.001, momentum 0.9 and weight decay 1e-4 by default.
    replay : ReplayStreams, optional
    flip, seed
        As for `CrossEntropy`.
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


class ExperienceReplay(_BaselineLearner):
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


class ACE(_BaselineLearner):
    """ER with an asymmetric cross-entropy (Caccia et al., 2022), which protects past classes.

    The loss is that of ``CrossEntropy(spare_past=True)``. The network runs once for each of its two
    parts, so batch norm averages over each separately. For the first chunk the loss is the plain
    mean cross-entropy.

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

    spares_past = True
