"""Online fine-tuning: the chunk protocol of the paper's appendix D.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kalstream.deep.base import Learner
from kalstream.deep.head import KalmanHead
from kalstream.deep.mixture import MixtureHead
from kalstream.deep.replay import RecentMemory
from kalstream.errors import InvalidInput, NumericalError


class OnlineLearner(Learner):
    """A network with a Kalman head, learned chunk by chunk.

    Each chunk takes four steps (appendix D.2). Its rows are predicted, each separately. One
    gradient step trains the calibration and the backbone, with the mean log-probability as the
    objective. The features are computed again. The filter learns the chunk.

    In a process group (`torch.distributed`, torchrun) every rank gets all rows and computes the
    features of its part. Gradients are summed and features gathered, so the posterior is the same
    on all ranks. Batch norm uses the rows of one rank; running averages are averaged over ranks.

    Parameters
    ----------
    backbone : nn.Module
        Maps rows, as `preprocess` returns them, to features (b, n_features).
    head : KalmanHead or MixtureHead
    lr : float
        Learning rate of the calibration; 0 disables all gradient steps.
    beta : float
        Learning rate of the backbone divided by ``lr``; 0 freezes the backbone.
    optimizer : function from parameter groups to an optimizer
        `torch.optim.SGD` by default.
    replay : RecentMemory, optional
        Drawn rows are appended to the chunk. They enter the gradient and the filter, never a
        metric.
    replay_head : bool
        Whether the filter also learns drawn rows, as in the paper. Otherwise it learns each row
        once, and drawn rows only train the network and the calibration.
    batch_norm : "eval", "train", "running" or "fixed"
        Which averages batch norm uses.

        - "eval": running averages to predict and to filter, those of the chunk in the gradient
          step.
        - "train": those of the chunk everywhere; the features of a row then depend on the chunk.
        - "running": as "eval", but the running averages follow the stream also if the backbone is
          frozen. Good for random weights, bad for pretrained ones.
        - "fixed": running averages everywhere, and they do not change.
    preprocess : function, optional
        Maps an array of rows to a tensor for the backbone. By default numbers become float32, and
        images (b, h, w, c) of uint8 become (b, c, h, w) from 0 to 1. `step` takes such tensors.
    device : str or device
    autocast : torch.dtype, optional
        Data type of the backbone on a GPU, such as torch.bfloat16; the filter keeps its own.
    capture : bool
        On a GPU, run prediction and gradient step as one CUDA graph, after the first three chunks
        of a shape. This is several times faster. The backbone must do the same operations every
        time.

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
                f"the loss is {float(loss)} at row {self.n_seen_}; nothing was learned from this "
                "chunk. Lower lr or beta, or check the backbone"
            )
        return loss

    def _finish(self, features: Tensor | None, inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
        labels = torch.cat(inputs[1::2]) if self.replay_head else inputs[1]
        return self.head.observing(features, labels)
