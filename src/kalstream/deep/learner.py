"""Fine-tuning online: the chunk protocol of the paper's appendix D.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from kalstream.deep.base import Learner
from kalstream.deep.head import KalmanHead
from kalstream.deep.mixture import MixtureHead
from kalstream.deep.replay import RecentMemory
from kalstream.errors import InvalidInput, NumericalError

Tensor = Any


class OnlineLearner(Learner):
    """A network with a Kalman head, learned chunk by chunk.

    A chunk is predicted, each row on its own; one gradient step on the calibration and the
    backbone follows, with the mean log-probability as the objective; the features are
    computed again, and the filter runs over the chunk (appendix D.2).

    In a process group (`torch.distributed`, torchrun) every rank is given all rows and computes the
    features of its part; gradients are summed, features gathered, and the posterior is the same
    everywhere. Batch norm averages over the rows of a rank, and running averages are averaged.

    Parameters
    ----------
    backbone : nn.Module
        From rows, as `preprocess` returns them, to features (b, n_features).
    head : KalmanHead or MixtureHead
    lr : float
        Learning rate of the calibration; 0 trains nothing by gradients.
    beta : float
        That of the backbone over that of the calibration; 0 freezes it.
    optimizer : function from parameter groups to an optimizer
        `torch.optim.SGD` by default.
    replay : RecentMemory, optional
        Drawn rows are appended to the chunk: they enter the gradient and the filter, never a
        metric.
    replay_head : bool
        Whether the filter sees drawn rows, as in the paper; if not it learns each row once, and
        they train the network and the calibration alone.
    batch_norm : "eval", "train", "running" or "fixed"
        With "eval" the running averages are used to predict and to filter, the chunk's own
        only in the gradient step; with "train" the chunk's own everywhere (and a row's features
        depend on the rows beside it). "running" is "eval" where a frozen backbone's averages
        follow the stream too: right for random weights, wrong for pretrained ones. With "fixed"
        they are used in the gradient step as well, and stay.
    preprocess : function, optional
        From an array of rows to a tensor for the backbone; by default numbers as floats, and
        images (b, h, w, c) of bytes as (b, c, h, w) from 0 to 1. `step` takes what comes of it.
    device : str or device
    autocast : torch.dtype, optional
        torch.bfloat16, for the backbone on a GPU; the filter keeps its own type.
    capture : bool
        On a GPU, run prediction and gradient step as a CUDA graph once chunks of a shape have come
        a few times: several times faster. The backbone must do the same every time.

    Attributes
    ----------
    classes_ : (K,)
        0 to K - 1.
    n_seen_ : int
        Rows learned, replayed ones not counted: where to go on in the stream.

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
        optimizer: Callable[[list[dict[str, Any]]], Any] = torch.optim.SGD,
        replay: RecentMemory | None = None,
        replay_head: bool = True,
        **shared: Any,
    ) -> None:
        if not (0.0 <= lr < np.inf and 0.0 <= beta < np.inf):
            raise InvalidInput(f"lr and beta must be 0 or more, got {lr!r} and {beta!r}")
        for name, value, kind in (
            ("backbone", backbone, nn.Module),
            ("head", head, KalmanHead | MixtureHead),
            ("replay", replay, RecentMemory | None),
        ):
            if not isinstance(value, kind):
                raise InvalidInput(f"{name} must be a {kind}, got {type(value).__name__}")
        super().__init__(backbone, head, replay=replay, **shared)
        self.replay_head = replay_head
        self.tunes = self.tunes and lr * beta > 0.0
        groups: list[dict[str, Any]] = [{"params": [self.head.log_calibration], "lr": lr}]
        if self.tunes:
            trained = [p for p in backbone.parameters() if p.requires_grad]
            groups.append({"params": trained, "lr": lr * beta})
        if lr > 0.0:
            self._optimize(optimizer, groups)

    def _inputs(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        if not self.capture:
            labels = self.head.checked(labels, len(rows))
        again = None if self.replay is None else self.replay.sample()
        return rows, labels, *(again or ())

    def _train(self, rows: Tensor, labels: Tensor, *again: Tensor) -> Tensor:
        n_shown = len(rows) + (len(again[0]) if again and self.replay_head else 0)
        if again:
            rows, labels = torch.cat([rows, again[0]]), torch.cat([labels, again[1]])
        if self.batch_norm == "running" and not self.tunes:
            self._features(rows, grad=False, train=True)
        if self.optimizer is not None:
            self._descend(self._loss, rows, labels)
        return self._features(rows[:n_shown], grad=False)

    def _loss(self, rows: Tensor, labels: Tensor) -> Tensor:
        features = self._features(rows, grad=self.tunes)
        loss = -self.head.log_prob(features, labels).mean()
        if not self._capturing and not bool(torch.isfinite(loss)):
            raise NumericalError(
                f"the loss is {float(loss)} at row {self.n_seen_}; lower lr or beta, or check the "
                "backbone: nothing was learned from this chunk"
            )
        return loss

    def _finish(self, features: Tensor | None, inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
        labels = torch.cat(inputs[1::2]) if self.replay_head else inputs[1]
        return self.head.observing(features, labels)
