"""Kalman heads with other forgetting coefficients, mixed by how well they predict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from kalstream.core import _checks as check
from kalstream.deep import predictive
from kalstream.deep.filter import Told
from kalstream.deep.head import MOST_GRAPHS, KalmanHead, Moments, seen_before
from kalstream.errors import InvalidInput

Tensor = Any

GAMMAS = (1.0, 0.9999, 0.999, 0.99, 0.9)


class MixtureHead(nn.Module):
    """Heads with fixed gammas on the same features, weighted by their own predictions.

    Nothing has to be learned about forgetting by gradients: after each row a head's weight is
    multiplied by its probability of the label, and a share of all weight is dealt out evenly, so
    that a head can come back when the stream changes. Only classes that have come take part in
    these probabilities, and the first row of a class moves no weight, so that a late class is as
    one that was there from the start. `kalstream.core.Mixture` is the same for features that do not
    change, and has a grid of calibrations where this has one that is learned.

    Parameters
    ----------
    n_features, n_classes : int
    gammas : sequence of float
    share : float in [0, 1)
        Of the weight that is dealt out after each row, whatever the transition. (`core.Mixture`
        deals out where it forgets: with transition="chunk", once a chunk.)
    **options
        As of `KalmanHead`, but gamma and gamma_lr.

    Attributes
    ----------
    heads : list of KalmanHead
    log_weights : (J,)

    Examples
    --------
    >>> head = MixtureHead(2, 2, gammas=(1.0, 0.9))
    >>> features, labels = torch.eye(2).repeat(20, 1), torch.tensor([0, 1] * 20)
    >>> _ = head.observe(features, labels)
    >>> bool(head.log_weights[0] > head.log_weights[1])  # nothing has changed so far
    True
    """

    log_weights: Tensor

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        *,
        gammas: Sequence[float] = GAMMAS,
        share: float = 0.001,
        calibration: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__()
        if not gammas or {"gamma", "gamma_lr"} & options.keys():
            raise InvalidInput("a mixture has gammas, one or more, and no gamma or gamma_lr")
        if not 0.0 <= share < 1.0:
            raise InvalidInput(f"share must be from 0 to below 1, got {share!r}")
        check.positive("calibration", calibration)
        self.share = share
        self.heads = nn.ModuleList(
            KalmanHead(n_features, n_classes, gamma=gamma, **options) for gamma in gammas
        )
        self.log_calibration = nn.Parameter(
            torch.tensor(math.log(calibration), dtype=torch.float64)
        )
        for head in self.heads:  # one calibration for all
            del head.log_calibration
            head.log_calibration = self.log_calibration
        even = torch.full((len(gammas),), -math.log(len(gammas)), dtype=torch.float64)
        self.register_buffer("log_weights", even)

    @property
    def n_features(self) -> int:
        """Features of a row."""
        return self.heads[0].n_features

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return self.heads[0].n_classes

    @property
    def n_seen(self) -> int:
        """Rows observed."""
        return self.heads[0].n_seen

    @property
    def calibration(self) -> Tensor:
        """Alpha, which multiplies logits; differentiable."""
        return self.log_calibration.exp()

    @property
    def delta(self) -> Tensor:
        """Of the gamma that is the geometric mean of all, by weight."""
        return (self.log_weights.exp() * torch.stack([head.delta for head in self.heads])).sum()

    @property
    def gamma(self) -> float:
        """Geometric mean of the gammas, by weight."""
        return float(torch.exp(-0.5 * self.delta))

    def forward(self, features: Tensor) -> Moments:
        """Moments of the logits one step ahead, averaged by weight."""
        moments = [head(features) for head in self.heads]
        weights = self.log_weights.exp().to(moments[0].mean.dtype)
        mean = sum(w * each.mean for w, each in zip(weights, moments, strict=True))
        var = sum(w * each.var for w, each in zip(weights, moments, strict=True))
        return Moments(mean, var)

    def scores(self, features: Tensor) -> Tensor:
        """Class probabilities (b, K), but for the approximation that a Gaussian is a probit."""
        alpha, weights = self.calibration.detach(), self.log_weights.exp()
        total = 0.0
        for weight, head in zip(weights, self.heads, strict=True):
            mean, var = head(features)
            width = torch.sqrt(1.0 + math.pi / 8.0 * (alpha**2 * var.double()))
            total = total + weight * torch.softmax(alpha * mean.double() / width[:, None], 1)
        return total

    def log_prob(self, features: Tensor, labels: Tensor) -> Tensor:
        """Calibrated log-probability (b,) of labels (b,) under the mixture."""
        each = torch.stack([head.log_prob(features, labels).double() for head in self.heads])
        return torch.logsumexp(self.log_weights[:, None] + each, 0)

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """Class probabilities (b, K) one step ahead, exact."""
        weights = self.log_weights.exp()
        return sum(
            weight * head.probabilities(features).double()
            for weight, head in zip(weights, self.heads, strict=True)
        )

    def checked(self, labels: Tensor, n: int) -> Tensor:
        """Labels of n rows, 1 or more, or an error."""
        return self.heads[0].checked(labels, n)

    def observe(self, features: Tensor, labels: Tensor) -> list[Told]:
        """Run all filters over a chunk and weigh them row by row."""
        return self.observing(features, labels)()

    def observing(self, features: Tensor, labels: Tensor) -> Callable[[], list[Told]]:
        """Begin to `observe`; what is returned waits for it."""
        if not self.log_weights.is_cuda:
            told = self._observe_plainly(features, labels)
            return lambda: told
        seen = self.heads[0].seen.clone()
        waits = [head.observing(features, labels) for head in self.heads]

        def end() -> list[Told]:
            told = [wait() for wait in waits]
            self._weigh(*_stacked(told), labels.long(), seen)
            return told

        return end

    @torch.no_grad()
    def _observe_plainly(self, features: Tensor, labels: Tensor) -> list[Told]:
        """`observe` without graphs: nothing changes before all is known to be well."""
        prepared = [head.prepared(features, labels) for head in self.heads]
        told = [each for each, _ in prepared]
        log_weights = self._weighed(*_stacked(told), labels.long(), self.heads[0].seen)
        for _, advance in prepared:
            advance()
        self.log_weights.copy_(log_weights)
        return told

    @torch.no_grad()
    def _weigh(self, *inputs: Tensor) -> None:
        """`_weigh_rows`, as a graph where there may be one."""
        if not predictive.fused():
            return self._weigh_rows(*inputs)
        from kalstream.deep._graph import CapturedWeights

        graphs = self.__dict__.setdefault("_graphs", {})
        key = inputs[0].shape, self.log_weights.data_ptr(), self.log_calibration.data_ptr()
        if key not in graphs and len(graphs) < MOST_GRAPHS:
            graphs[key] = CapturedWeights(self, inputs)
        graphs.get(key, self._weigh_rows)(*inputs)

    def _weigh_rows(self, *inputs: Tensor) -> None:
        self.log_weights.copy_(self._weighed(*inputs))

    def _weighed(self, mean: Tensor, var: Tensor, labels: Tensor, seen: Tensor) -> Tensor:
        """Logarithms of the weights (J,) after rows with logits N(mean (J, b, K), var (J, b)).

        ``seen`` (K,) are the classes that came before the chunk.
        """
        n_heads, n_rows, _ = mean.shape
        known, alpha = seen_before(seen, labels), self.calibration.to(mean.dtype)
        every, among = labels.repeat(n_heads), known.repeat(n_heads, 1)
        # The first row of a class, or rows of the only class so far, leave the weights alone.
        log_prob = predictive.log_prob_among(
            mean.flatten(0, 1), var.flatten(), every, alpha, among
        ).view(n_heads, n_rows)
        weights = self.log_weights
        even = torch.full_like(weights, math.log(self.share / n_heads or 1e-300))
        for row in log_prob.unbind(1):
            weights = torch.log_softmax(weights + row, 0) + math.log1p(-self.share)
            weights = torch.logaddexp(weights, even)
        return torch.log_softmax(weights, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_graphs"}

    def add_classes(self, n_classes: int) -> None:
        """Grow by classes never seen, exactly (noise_var stays)."""
        for head in self.heads:
            head.add_classes(n_classes)


def _stacked(told: list[Told]) -> tuple[Tensor, Tensor]:
    """Moments of all heads, (J, b, K) and (J, b)."""
    means, variances = zip(*((each.logit_mean, each.logit_var) for each in told), strict=True)
    return torch.stack(means), torch.stack(variances)
