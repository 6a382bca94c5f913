"""A linear softmax layer with the interface of a Kalman head."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from kalstream.core import checks as check
from kalstream.deep.head import Head, Moments, Observed, is_capturing
from kalstream.errors import InvalidInput, NumericalError


class SoftmaxHead(nn.Linear, Head):
    """The last layer of a network, trained by gradients together with the rest.

    Parameters
    ----------
    n_features, n_classes : int
    bias : bool

    Attributes
    ----------
    weight, bias : (K, n_features), (K,)
    seen : (K,) bool
        Classes learned so far.
    n_seen : int
        Rows learned, without replayed ones.

    Examples
    --------
    >>> head = SoftmaxHead(3, 2)
    >>> head.probabilities(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    needs_features = False
    seen: Tensor
    count: Tensor
    delta: Tensor
    #: nothing is forgotten: there is no filter
    gamma: Final = 1.0

    def __init__(self, n_features: int, n_classes: int, *, bias: bool = True) -> None:
        n_classes = check.count("n_classes", n_classes)
        super().__init__(check.count("n_features", n_features), n_classes, bias=bias)
        self.register_buffer("seen", torch.zeros(n_classes, dtype=torch.bool))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.delta = torch.zeros((), dtype=torch.float64)  # no buffer: files do not have it

    @property
    def n_features(self) -> int:
        """Features of a row."""
        return int(self.in_features)

    @property
    def softmax_layer(self) -> SoftmaxHead:
        """The head itself."""
        return self

    def check_decays(self, decays: list[float]) -> None:
        """Refuse slow copies: the layer has learned from the features of the network."""
        if decays:
            raise InvalidInput(
                "a SoftmaxHead alone reads no slow copies; Stack(n_features, n_classes, gammas=(), "
                f"decays={decays}) averages the layer too, and calibrates it"
            )

    def forward(self, features: Tensor) -> Moments:  # type: ignore[override]
        """Logits (b, K) of features (b, n_features); their variance is 0."""
        if features.ndim != 2 or features.shape[1] != self.in_features:
            raise InvalidInput(
                f"features must be (b, {self.in_features}), got {tuple(features.shape)}; "
                "make the head with the n_features that the backbone returns"
            )
        logits = super().forward(features.to(self.weight.dtype))
        if not is_capturing(logits) and not bool(torch.isfinite(logits).all()):
            raise NumericalError(
                "the softmax layer returned NaN or infinity: the network has diverged; restore a "
                "checkpoint, and lower the learning rate of the optimizer"
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

    @torch.no_grad()
    def begin(self, features: Any, labels: Tensor) -> Observed:
        """Record labels (b,) as learned; gradients have trained the layer."""
        self.seen.index_fill_(0, labels, True)  # an assignment would wait for the device
        self.count += len(labels)
        return Observed(None)
