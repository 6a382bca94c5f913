"""A linear softmax layer with the face of a Kalman head."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from kalstream.deep import Moments
from kalstream.deep.head import at_least_1
from kalstream.errors import InvalidInput, NumericalError

Tensor = Any


class SoftmaxHead(nn.Linear):
    """The last layer of a network, trained by gradients with the rest of it.

    Parameters
    ----------
    n_features, n_classes : int
    bias : bool

    Attributes
    ----------
    weight, bias : (K, n_features), (K,)
    seen : (K,) bool
        Classes that have been learned.
    n_seen : int
        Rows that have been learned, replayed ones not counted.

    Examples
    --------
    >>> head = SoftmaxHead(3, 2)
    >>> head.probabilities(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    seen: Tensor
    count: Tensor
    #: no filter, no forgetting coefficient
    gamma: Final = 1.0

    def __init__(self, n_features: int, n_classes: int, *, bias: bool = True) -> None:
        n_features, n_classes = at_least_1(n_features=n_features, n_classes=n_classes)
        super().__init__(n_features, n_classes, bias=bias)
        self.register_buffer("seen", torch.zeros(n_classes, dtype=torch.bool))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return int(self.out_features)

    @property
    def n_seen(self) -> int:
        """Rows that have been learned."""
        return int(self.count)

    def forward(self, features: Tensor) -> Moments:
        """Logits (b, K) of features (b, n_features); their variance is 0."""
        if features.ndim != 2 or features.shape[1] != self.in_features:
            raise InvalidInput(
                f"features must be (b, {self.in_features}), got {tuple(features.shape)}; "
                "make SoftmaxHead(n_features=...) for what the backbone returns"
            )
        logits = super().forward(features.to(self.weight.dtype))
        capturing = logits.is_cuda and torch.cuda.is_current_stream_capturing()
        if not capturing and not bool(torch.isfinite(logits).all()):
            raise NumericalError(
                "the softmax layer returned NaN or infinity: the network has diverged; go back to "
                "a checkpoint, and lower the learning rate of the optimizer"
            )
        return Moments(logits, logits.new_zeros(len(logits)))

    def scores(self, features: Tensor) -> Tensor:
        """Logits (b, K)."""
        return self(features).mean

    def log_prob(self, features: Tensor, labels: Tensor) -> Tensor:
        """Log-probability (b,) of labels (b,)."""
        labels = self.checked(labels, len(features))
        return -nn.functional.cross_entropy(self(features).mean, labels, reduction="none")

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """Class probabilities (b, K)."""
        return self(features).mean.double().softmax(1)

    def checked(self, labels: Tensor, n: int) -> Tensor:
        """Labels of n rows, 1 or more, or an error."""
        if n < 1 or labels.shape != (n,) or labels.is_floating_point():
            raise InvalidInput(
                f"labels must be ({max(n, 1)},) whole numbers, got {tuple(labels.shape)} of "
                f"{labels.dtype} for {n} rows"
            )
        if labels.is_cuda and torch.cuda.is_current_stream_capturing():
            return labels  # they have been looked at
        lowest, highest = torch.stack(labels.aminmax()).tolist()
        if lowest < 0 or highest >= self.n_classes:
            raise InvalidInput(
                f"labels run from {lowest} to {highest}; the head has classes "
                f"0 to {self.n_classes - 1}: make SoftmaxHead(n_classes=...) for all that may come"
            )
        return labels.long()

    @torch.no_grad()
    def note(self, labels: Tensor) -> None:
        """Count labels (b,) as learned."""
        self.seen.index_fill_(0, labels, True)  # an assignment would wait for the device
        self.count += len(labels)
