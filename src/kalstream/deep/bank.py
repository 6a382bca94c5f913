"""Softmax filters side by side, for features that move while a network is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from kalstream.core import checks as check
from kalstream.deep.filter import scan_softmax_bank
from kalstream.deep.kalman import seen_before
from kalstream.errors import InvalidInput

# Running means of the features follow the last hundred chunks.
_LEAST_RATE = 0.01


class BankRows(NamedTuple):
    """Rows as the filters see them, and their products with the states.

    Attributes
    ----------
    phi, times_cov : (J, b, m)
    base_mean : (J, b, K)
    """

    phi: Tensor
    times_cov: Tensor
    base_mean: Tensor


class FilterBank(nn.Module):
    """J filters with the softmax likelihood and fixed gammas, each on the features of a source.

    The features of a source are centred by their running mean and scaled to length 1; a constant is
    added. Each filter does what a `KalmanHead` with ``likelihood="softmax"`` does with the same
    features, which is the reference. All of them are one batch of matrix products.

    Parameters
    ----------
    n_features, n_classes : int
    n_sources : int
    gammas : sequence of float in (0, 1]
        One filter for each source and gamma.
    prior_var : float
        Prior variance of a weight.

    Attributes
    ----------
    mean, cov : (J, m, K), (J, m, m)
        The posteriors; m counts the constant.
    centre : (S, n_features)
        Running means of the features of each source.
    """

    mean: Tensor
    cov: Tensor
    centre: Tensor
    n_chunks: Tensor
    gamma: Tensor
    source: Tensor

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        n_sources: int,
        gammas: Sequence[float],
        prior_var: float = 100.0,
    ) -> None:
        super().__init__()
        n_features = check.count("n_features", n_features)
        n_classes = check.count("n_classes", n_classes)
        if not all(0.0 < gamma <= 1.0 for gamma in gammas):
            raise InvalidInput(f"gammas must be above 0 and at most 1, got {list(gammas)}")
        self.prior_var = check.positive("prior_var", prior_var)
        j, m = n_sources * len(gammas), n_features + 1

        def new(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64)

        self.register_buffer("mean", new(j, m, n_classes))
        self.register_buffer("cov", self.prior_var * torch.eye(m).double().repeat(j, 1, 1))
        self.register_buffer("centre", new(n_sources, n_features))
        self.register_buffer("n_chunks", new())
        gamma = torch.tensor(list(gammas), dtype=torch.float64).repeat(n_sources)
        self.register_buffer("gamma", gamma, persistent=False)
        source = torch.arange(n_sources).repeat_interleave(len(gammas))
        self.register_buffer("source", source, persistent=False)

    def rows(self, features: Tensor) -> BankRows:
        """Features (S, b, n_features) of all sources, and their products with the states."""
        if features.shape[2:] != self.centre.shape[1:]:
            raise InvalidInput(
                f"features must be (b, {self.centre.shape[1]}), got {tuple(features.shape[1:])}; "
                "make the stack with the n_features that the backbone returns"
            )
        unit = normalize(features.double() - self.centre[:, None], dim=2)
        phi = torch.cat([unit, torch.ones_like(unit[..., :1])], 2)[self.source]
        return BankRows(phi, torch.bmm(phi, self.cov), torch.bmm(phi, self.mean))

    def logits(self, rows: BankRows) -> Tensor:
        """Mean logits (J, b, K) one step ahead, shrunk by the probit rule for their variance."""
        gamma = self.gamma[:, None]
        fresh = (1.0 - gamma**2) * self.prior_var * rows.phi.square().sum(2)
        var = gamma**2 * (rows.times_cov * rows.phi).sum(2) + fresh
        shrink = (1.0 + math.pi / 8.0 * var.clamp_min(0.0)).rsqrt()
        return (gamma * shrink)[..., None] * rows.base_mean

    @torch.no_grad()
    def observe(
        self,
        rows: BankRows,
        features: Tensor,
        labels: Tensor,
        seen: Tensor,
        gate: Tensor | None = None,
    ) -> Tensor:
        """Update all filters with a chunk, unless ``gate`` () is false.

        Parameters
        ----------
        rows : BankRows
        features : (S, b, n_features)
            From which `rows` made them.
        labels, seen : (b,), (K,)
            Labels, and the classes seen before the chunk.

        Returns
        -------
        sound : () bool
            Whether the gate is true and all numbers are finite. If not, nothing has changed.
        """
        b = len(labels)
        place = torch.arange(b, device=labels.device)
        kept = self.gamma[:, None] ** (place + 1)  # (J, b)
        steps = (place[None, :] - place[:, None]).clamp_min(0)
        ratios = (self.gamma[:, None, None] ** steps).triu()  # from row i to row l
        kept2 = (kept * kept)[..., None]
        gram = torch.bmm(rows.times_cov, rows.phi.mT)
        own = kept2 * gram + (1.0 - kept2) * self.prior_var * torch.bmm(rows.phi, rows.phi.mT)
        upper = ratios * own
        scan = scan_softmax_bank(
            upper.triu() + upper.triu(1).mT,
            kept[..., None] * rows.base_mean,
            labels,
            seen_before(seen, labels),
        )
        cross = kept2 * rows.times_cov + (1.0 - kept2) * self.prior_var * rows.phi
        gains = torch.linalg.solve_triangular(scan.factor, ratios[..., -1:] * cross, upper=False)
        sound = torch.isfinite(features).all() & torch.isfinite(gains).all()
        sound = sound & torch.isfinite(scan.innovations).all()
        sound = sound if gate is None else sound & gate
        gains = gains.where(sound, 0.0)
        last = kept[:, -1:, None].where(sound, 1.0)
        self.mean.mul_(last).baddbmm_(gains.mT, scan.innovations.where(sound, 0.0))
        self.cov.mul_(last**2).baddbmm_(gains.mT, gains, alpha=-1.0)
        self.cov.diagonal(dim1=1, dim2=2).add_((1.0 - last[..., 0] ** 2) * self.prior_var)
        rate = (1.0 / (self.n_chunks + 1.0)).clamp_min(_LEAST_RATE).where(sound, 0.0)
        self.centre.add_(rate * (features.double().mean(1) - self.centre).where(sound, 0.0))
        self.n_chunks.add_(sound)
        return sound
