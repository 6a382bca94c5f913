"""Log-probabilities of labels under Gaussian logits, eq. (13), differentiable, on any device.

On the CPU they are those of `kalstream.core.label_log_prob`, gradients included. On other devices
the same integral is computed on the same lattice (core/README.md, "The softmax integral"), for all
rows at once.
"""

from __future__ import annotations

import importlib.util
import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from kalstream.core import softmax_integral as lattice
from kalstream.core.predictive import class_probabilities as core_probabilities
from kalstream.core.predictive import label_log_prob as core_log_prob

# Every second point of the lattice is a node: a distance of 0.4, accurate to 4e-10.
_STRIDE: Final = 2
# Classes further below the top one than this (in points) are placed here and scaled.
_LIMIT: Final = 256
_LEAST_LOG: Final = -1e100  # with -inf a weight would become inf - inf
_LEAST_VAR: Final = 1e-24  # the slope of a square root at 0 is infinite


def log_prob(logit_mean: Tensor, logit_var: Tensor, labels: Tensor, calibration: Tensor) -> Tensor:
    """Exact log-probability (b,) of labels (b,), given logits N(mean (b, K), var (b,)).

    Differentiable with respect to mean, var and calibration (a scalar). On the CPU a class with
    mean -inf is left out.
    """
    mean, var = calibration * logit_mean, calibration * calibration * logit_var
    if mean.device.type == "cpu":
        return _OnCpu.apply(mean, var, labels)  # type: ignore[no-untyped-call]
    if mean.is_cuda and fused() and mean.shape[1] > 1:
        return _OnGpu.apply(mean, var, labels)  # type: ignore[no-untyped-call]
    return log_probabilities(mean, var).gather(1, labels[:, None])[:, 0]


def probabilities(logit_mean: Tensor, logit_var: Tensor, calibration: float) -> Tensor:
    """Exact class probabilities (b, K); not differentiable."""
    with torch.no_grad():
        if logit_mean.device.type == "cpu":
            exact = core_probabilities(
                logit_mean.double().numpy(),
                logit_var.double().clamp_min(0.0).numpy(),
                calibration=float(calibration),
            )
            return torch.from_numpy(exact).to(logit_mean.dtype)
        mean, var = calibration * logit_mean, calibration * calibration * logit_var
        p = log_probabilities(mean, var).exp()
        return p / p.sum(1, keepdim=True)


def probit_probabilities(logit_mean: Tensor, logit_var: Tensor, calibration: Tensor) -> Tensor:
    """Approximate class probabilities (b, K), in float64, as ``method="probit"`` of the core."""
    width = torch.sqrt(1.0 + math.pi / 8.0 * (calibration**2 * logit_var.double()))
    return torch.softmax(calibration * logit_mean.double() / width[:, None], 1)


def slopes(mean: Tensor, var: Tensor, labels: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of the labels' log-probabilities, among the classes known to each row (b, K).

    Returns
    -------
    along_mean, by_var : (b,)
        Along the logits' mean, sum_k mean_k d/dmean_k, and by their variance. 0 for a row whose
        class is not known, or is the only known one.
    """
    there = _informative(labels, known)
    if mean.device.type == "cpu":
        _, along_mean, by_var = _terms_on_cpu(mean, var, labels, known, there)
        return along_mean, by_var
    if fused() and mean.is_cuda:
        from kalstream.deep import _kernels

        return _kernels.slopes(mean, var, labels, known, there, _tables(mean.device))
    return _plain_slopes(mean, var, labels, known, there)


@torch.no_grad()
def log_prob_among(
    logit_mean: Tensor, logit_var: Tensor, labels: Tensor, calibration: Tensor, known: Tensor
) -> Tensor:
    """Exact log-probability (b,) of labels among the classes known to each row (b, K).

    Not differentiable, in float64, always finite. 0 for a row whose class is not known, or is the
    only known one.
    """
    mean, var = calibration * logit_mean, calibration * calibration * logit_var
    there = _informative(labels, known)
    if mean.device.type == "cpu":
        return _terms_on_cpu(mean, var, labels, known, there)[0]
    if fused() and mean.is_cuda:
        from kalstream.deep import _kernels

        own = torch.empty_like(var, dtype=torch.float64)
        _kernels.slopes(mean, var, labels, known, there, _tables(mean.device), own)
    else:
        own = plain_log_prob_among(mean, var, labels, known)
    return own.clamp_min(_LEAST_LOG).where(there, 0.0)


def plain_log_prob_among(mean: Tensor, var: Tensor, labels: Tensor, known: Tensor) -> Tensor:
    """The same on the lattice: reference of the fused kernels; NaN where no class is known."""
    shown = mean.double().masked_fill(~known, -math.inf)
    return log_probabilities(shown, var.double()).gather(1, labels[:, None])[:, 0]


def _informative(labels: Tensor, known: Tensor) -> Tensor:
    """Which rows (b,) have a known class that is not the only known one."""
    return known.gather(1, labels[:, None])[:, 0] & (known.sum(1) > 1)


@lru_cache(maxsize=1)
def fused() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def _plain_slopes(
    mean: Tensor, var: Tensor, labels: Tensor, known: Tensor, there: Tensor
) -> tuple[Tensor, Tensor]:
    """`slopes` by differentiating the lattice: reference of the fused kernels."""
    with torch.enable_grad():
        leaf_mean, leaf_var = mean.detach().requires_grad_(), var.detach().requires_grad_()
        shown = leaf_mean.masked_fill(~known, -math.inf)
        own = log_probabilities(shown, leaf_var).gather(1, labels[:, None])[:, 0]
        total = torch.where(there, own, torch.zeros_like(own)).sum()
        by_mean, by_var = torch.autograd.grad(total, (leaf_mean, leaf_var))
    along = torch.where(known, by_mean * mean, torch.zeros_like(mean)).sum(1)
    return torch.where(there, along, 0.0).double(), torch.where(there, by_var, 0.0).double()


def _terms_on_cpu(
    mean: Tensor, var: Tensor, labels: Tensor, known: Tensor, there: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities (b,) and the slopes, 0 for rows that are not ``there``."""
    means, stds = mean.double().numpy(), var.double().clamp_min(0.0).sqrt().numpy()
    own, masks = labels.numpy(), known.numpy()
    out, table, work = np.zeros((3, len(means))), lattice.table(), lattice.workspace()
    for i in np.flatnonzero(there.numpy()):
        among = np.flatnonzero(masks[i])
        out[:, i] = lattice.label_terms(means[i], stds[i], int(own[i]), among, *table, work)
    log_prob, along_mean, by_var = torch.from_numpy(out)
    return log_prob, along_mean, by_var


def monte_carlo_log_prob(
    logit_mean: Tensor, logit_var: Tensor, labels: Tensor, calibration: Tensor, noise: Tensor
) -> Tensor:
    """Eq. (13) estimated from samples, as in the paper; noise (S, b, K) is standard normal."""
    spread = logit_var.clamp_min(_LEAST_VAR).sqrt()[:, None]
    logits = calibration * (logit_mean + spread * noise)
    own = logits.log_softmax(2).gather(2, labels.expand(len(noise), -1)[..., None])[..., 0]
    return own.logsumexp(0) - math.log(len(noise))


class _OnCpu(torch.autograd.Function):
    """`kalstream.core.label_log_prob` and its gradients."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, labels: Tensor) -> Tensor:
        dtype = mean.dtype
        means = mean.detach().double().numpy()
        variances = np.maximum(var.detach().double().numpy(), 0.0)
        # A class that is left out is put so far below the others that its probability is 0.
        away = np.isneginf(means)
        if away.any():
            lowest = np.where(away, np.inf, means).min(axis=1, keepdims=True)
            means = np.where(away, np.where(np.isinf(lowest), 0.0, lowest - 1e8), means)
        terms = core_log_prob(means, variances, labels.numpy())
        ctx.save_for_backward(
            torch.from_numpy(np.where(away, 0.0, terms.d_mean)).to(dtype),
            torch.from_numpy(terms.d_var).to(dtype),
        )
        return torch.from_numpy(terms.log_prob).to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        d_mean, d_var = ctx.saved_tensors
        return gradient[:, None] * d_mean, gradient * d_var, None


class _OnGpu(torch.autograd.Function):
    """The same, by fused kernels."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, labels: Tensor) -> Tensor:
        from kalstream.deep import _kernels

        log_p, by_mean, by_var = _kernels.label_terms(mean, var, labels, _tables(mean.device))
        ctx.save_for_backward(by_mean.to(mean.dtype), by_var.to(mean.dtype))
        return log_p.to(mean.dtype)

    backward = _OnCpu.backward


def log_probabilities(mean: Tensor, var: Tensor) -> Tensor:
    """Logarithms of all class probabilities (b, K), on the lattice; differentiable."""
    out_dtype, mean, var = mean.dtype, mean.double(), var.double()
    ell, slope = _tables(mean.device)
    std = var.clamp_min(_LEAST_VAR).sqrt()
    # log F and rho of each row, interpolated across std.
    place = torch.asinh(std.clamp_max(lattice.STD_MAX) / lattice.STD_UNIT) / lattice.STD_STEP
    first = place.detach().floor()
    weights = _lagrange(place - first)  # (b, 8)
    points = torch.arange(lattice.POINTS, device=mean.device)
    nodes = (first.long()[:, None] - lattice.LEFT + points).abs()
    log_cdf = -torch.einsum("bm,bmi->bi", weights, ell[nodes]).exp()
    rho = torch.einsum("bm,bmi->bi", weights, slope[nodes]) * log_cdf
    # Put classes onto the lattice, at their distance below the top one.
    per_step = 1.0 / (lattice.STEP * (1.0 + var / lattice.KAPPA).clamp_min(1.0).sqrt())
    top = mean.detach().max(1, keepdim=True).values
    gap = (top - mean).clamp_max(1e8)
    steps = gap * per_step[:, None]
    near = steps < _LIMIT
    offset = torch.where(near, steps.detach().floor(), torch.full_like(steps, _LIMIT))
    rule = _lagrange(torch.where(near, steps - offset, torch.zeros_like(steps)))  # (b, K, 8)
    edge = _far(_LIMIT / per_step, var)[:, None]
    log_factor = torch.where(near, torch.zeros_like(steps), edge - _far(gap, var[:, None]))
    at = (offset.long()[..., None] + points).flatten(1)  # (b, 8 K)
    span = _LIMIT + lattice.POINTS
    share = torch.zeros(len(mean), span, dtype=mean.dtype, device=mean.device)
    share = share.scatter_add(1, at, (rule * log_factor.exp()[..., None]).flatten(1))
    # sum_j log F(x - mean_j) at all nodes, and all p_k, are correlations on the lattice.
    log_cdf, rho = (torch.nn.functional.pad(each, (0, span)) for each in (log_cdf, rho))
    count = (lattice.LATTICE - 1) // _STRIDE
    windows = (each.unfold(1, span, _STRIDE)[:, :count] for each in (log_cdf, rho))
    log_cdf_at, rho_at = windows
    product = torch.einsum("bqi,bi->bq", log_cdf_at, share).clamp_max(0.0).exp()
    by_offset = torch.einsum("bqi,bq->bi", rho_at, product)
    read = by_offset.gather(1, at).view_as(rule)
    p = (rule * read).sum(2) * (lattice.STEP * _STRIDE)
    return (p.clamp_min(1e-300).log() + log_factor).clamp_max(0.0).to(out_dtype)


@lru_cache(maxsize=4)
def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    ell, slope = lattice.table()
    return torch.tensor(ell, device=device), torch.tensor(slope, device=device)


_OTHERS: Final = [[j for j in range(8) if j != k] for k in range(8)]
_SCALE: Final = [math.prod(k - j for j in others) for k, others in enumerate(_OTHERS)]


def _lagrange(t: Tensor) -> Tensor:
    """Weights (..., 8) of the interpolation rule at fraction t (...) of its middle interval."""
    away = t[..., None] - torch.arange(-3.0, 5.0, dtype=t.dtype, device=t.device)
    return torch.stack(
        [away[..., others].prod(-1) / _SCALE[k] for k, others in enumerate(_OTHERS)], -1
    )


def _far(gap: Tensor, var: Tensor) -> Tensor:
    """Leading term of -log p of a class far below the top one."""
    var = var.clamp_min(_LEAST_VAR)
    return torch.where(gap < 2.0 * var, gap * gap / (4.0 * var), gap - var)
