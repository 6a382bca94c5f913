"""Presets: a head and a training put together, such as the protocol of the paper's appendix D.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from kalstream.core import checks as check
from kalstream.deep.kalman import KalmanHead
from kalstream.deep.learner import Learner
from kalstream.deep.mixture import MixtureHead
from kalstream.deep.replay import RecentMemory
from kalstream.deep.training import ThroughHead


class OnlineLearner(Learner):
    """A network with a Kalman head, learned chunk by chunk.

    Each chunk takes four steps (appendix D.2). Its rows are predicted, each separately. One
    gradient step trains the calibration and the backbone, with the mean log-probability as the
    objective. The features are computed again. The filter learns the chunk.

    Parameters
    ----------
    backbone : nn.Module
        Maps rows, as `preprocess` returns them, to features (b, n_features).
    head : KalmanHead or MixtureHead
    lr, beta, optimizer, replay, replay_head
        As for `ThroughHead`.
    slow, batch_norm, preprocess, device, autocast, capture
        As for `Learner`.

    Attributes
    ----------
    classes_ : (K,)
        0 to K - 1.
    n_seen_ : int
        Rows learned, without replayed ones: the row of the stream from which to resume.

    Examples
    --------
    >>> learner = OnlineLearner(nn.Identity(), KalmanHead(2, 2, noise_var=0.1, prior_var=1.0))
    >>> rows, labels = [[1.0, 0.0], [0.0, 1.0]] * 20, [0, 1] * 20
    >>> learner.partial_fit(rows, labels).predict([[1.0, 0.1]])
    array([0])
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: KalmanHead | MixtureHead,
        *,
        lr: float = 0.01,
        beta: float = 1.0,
        optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] = torch.optim.SGD,
        replay: RecentMemory | None = None,
        replay_head: bool = True,
        **shared: Any,
    ) -> None:
        check.instance("head", head, KalmanHead | MixtureHead)
        training = ThroughHead(
            lr=lr, beta=beta, optimizer=optimizer, replay=replay, replay_head=replay_head
        )
        super().__init__(backbone, head, training, **shared)
