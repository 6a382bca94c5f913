"""What a head must offer: it predicts from a network's features, and learns them chunk by chunk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from kalstream.errors import InvalidInput

if TYPE_CHECKING:
    from kalstream.deep.softmax import SoftmaxHead


class Moments(NamedTuple):
    """Predicted logits: mean (b, K), and one variance (b,) for all classes of a row.

    Examples
    --------
    >>> moments = Moments(mean=torch.zeros(2, 3), var=torch.ones(2))
    >>> moments.mean.shape, moments.var.tolist()
    (torch.Size([2, 3]), [1.0, 1.0])
    """

    mean: Tensor
    var: Tensor


class NetworkOutput(NamedTuple):
    """Features (b, m) of a network or slow copy, and the logits (b, K) of its layer, if any."""

    features: Tensor
    logits: Tensor | None


class Prediction(NamedTuple):
    """Log-probabilities of the labels, and most probable classes: (b,), or (E, b) of E experts."""

    log_prob: Tensor
    predicted: Tensor


class Observation(Protocol):
    """A chunk that a head has begun to observe."""

    def end(self) -> Any:
        """Wait for it; returns what `observe` of the head returns."""


class Observed(NamedTuple):
    """A chunk that a head has observed."""

    step: Any

    def end(self) -> Any:
        """What `observe` of the head returns."""
        return self.step


class Head(nn.Module, ABC):
    """The part of a learner that predicts from the network's features.

    To add a head, subclass it: tests/deep/test_new_head.py has one. A head implements `log_prob`,
    `scores`, `probabilities`, and either `begin` or, with ``at_once``, `predict_then_observe`.

    - **Order.** A learner predicts a chunk, trains the network, computes its features again, calls
      `begin`, and later ``end`` of the result. With ``at_once`` the head observes the features that
      the chunk was predicted from.
    - **Undo.** The learner restores trained parameters after an error. All else is the head's own:
      `begin` or ``end`` may raise an error only if they leave the buffers as they were.
    - **State.** Buffers and parameters are saved and restored through `state_dict`. Buffers for the
      classes may grow: `_load_from_state_dict` replaces them by longer ones if the state has more
      classes. If loading fails, the learner puts the old buffers back.

    Attributes
    ----------
    n_features : int
    seen : (K,) bool
        Classes learned so far; a buffer.
    count : () int64
        Rows learned; a buffer.
    delta : ()
        -2 log gamma; 0 for a head that forgets nothing.

    Examples
    --------
    >>> from kalstream.deep import Head, KalmanHead
    >>> head = KalmanHead(4, 3)
    >>> isinstance(head, Head), head.n_features, head.n_classes, head.n_seen
    (True, 4, 3, 0)
    """

    #: whether the network is trained by the head's own `log_prob`, unless another training is given
    trains_network: ClassVar[bool] = False
    #: whether `begin` needs the features; otherwise they are not computed for it
    needs_features: ClassVar[bool] = True
    #: whether the head checks the labels itself while a chunk is captured as a CUDA graph
    checks_captured: ClassVar[bool] = False
    #: whether it reads the network and every slow copy, and predicts and observes in one call
    at_once: ClassVar[bool] = False
    #: decays of the slow copies that the head needs
    decays: tuple[float, ...] = ()

    if TYPE_CHECKING:  # at run time a property would hide the buffer of that name

        @property
        def n_features(self) -> int: ...  # noqa: D102
        @property
        def seen(self) -> Tensor: ...  # noqa: D102
        @property
        def count(self) -> Tensor: ...  # noqa: D102
        @property
        def delta(self) -> Tensor: ...  # noqa: D102

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.seen)

    @property
    def n_seen(self) -> int:
        """Rows learned, without replayed ones."""
        return int(self.count)

    @property
    def softmax_layer(self) -> SoftmaxHead | None:
        """The layer that cross-entropy trains; without one, the training makes its own."""
        return None

    def check_decays(self, decays: list[float]) -> None:
        """Refuse slow copies that the head cannot read."""

    def checked(self, labels: Tensor, n: int) -> Tensor:
        """Check the labels of n rows; returns them as int64."""
        remedy = f"make {type(self).__name__} with n_classes for all of them"
        check_labels(labels, n, self.n_classes, remedy)
        return labels.long()

    @abstractmethod
    def log_prob(self, features: Any, labels: Tensor) -> Tensor:
        """Log-probability (b,) of labels (b,), differentiable with respect to the features.

        ``features`` are (b, n_features), or a list of `NetworkOutput` with ``at_once``.
        """

    @abstractmethod
    def scores(self, features: Any) -> Tensor:
        """Scores (b, K), highest for the most probable class."""

    @abstractmethod
    def probabilities(self, features: Any) -> Tensor:
        """Class probabilities (b, K)."""

    def begin(self, features: Any, labels: Tensor) -> Observation:
        """Start to observe a chunk; ``end`` of the result is called before any other method.

        ``features`` are None unless ``needs_features``.
        """
        raise NotImplementedError

    def predict_then_observe(
        self, outputs: list[NetworkOutput], labels: Tensor
    ) -> tuple[Prediction, Prediction, Tensor]:
        """Predict a chunk, then learn it; it may be captured as a CUDA graph.

        Returns
        -------
        prediction, experts : Prediction
            Of the head (b,), and of each of its experts (E, b).
        sound : () bool
            Whether all numbers are finite. If not, nothing has changed.
        """
        raise NotImplementedError


def check_labels(labels: Tensor, n: int, n_classes: int, remedy: str) -> None:
    """Refuse labels that are not n integers below ``n_classes``.

    ``remedy`` is the advice in the error for labels that are too large.
    """
    if not isinstance(labels, torch.Tensor):
        raise InvalidInput(
            f"labels must be a torch tensor, got {type(labels).__name__}; "
            "convert it with torch.as_tensor"
        )
    if labels.shape != (n,) or labels.is_floating_point():
        raise InvalidInput(
            f"labels must be integers ({n},), got {tuple(labels.shape)} of {labels.dtype}"
        )
    if n == 0:
        raise InvalidInput("the chunk has no rows; give 1 or more")
    if is_capturing(labels):
        return  # the host cannot read them
    lowest, highest = torch.stack(labels.aminmax()).tolist()
    if lowest < 0 or highest >= n_classes:
        raise InvalidInput(
            f"labels run from {lowest} to {highest}; the head has classes 0 to {n_classes - 1}: "
            + ("number the classes from 0" if lowest < 0 else remedy)
        )


def is_capturing(tensor: Tensor) -> bool:
    """Whether work on a tensor is being captured as a CUDA graph."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
