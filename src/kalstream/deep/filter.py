r"""The chunk recursion in torch: matrix products, one Cholesky factor, no loop over rows.

For rows phi_i with coefficients gamma_i and their products g_i = gamma_1 ... gamma_i, the weights
before the chunk being N(mean, cov), the outputs of the rows have the prior mean g_i phi_i' mean and
for i <= l the covariance

    S[i, l] = (g_l / g_i) phi_i' (g_i^2 cov + (1 - g_i^2) prior_var I) phi_l,

since a transition multiplies by gamma and adds independent noise. With S + noise_var = L L', row i
of L^-1 (targets - prior means) is the innovation of row i, eq. (8), given the rows before it and
scaled to variance 1. The covariance of the rows with the weights after the chunk is P (b, m). Then

    mean' = g_b mean + W' L^-1 (targets - prior means),
    cov' = g_b^2 cov + (1 - g_b^2) prior_var I - W' W,             W = L^-1 P.

The numbers are those of `kalstream.core.step_chunk`, which is the reference.

With the softmax likelihood the noise variance and the residual of a row follow from its own moments
(core/README.md, "The softmax filter"). These depend on the rows before it, so L and the innovations
are computed row by row, in the b-by-b space of the chunk. All else is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kalstream.core.chunk import scan_joint
from kalstream.core.guard import ROUNDING_LIMITS
from kalstream.core.softmax_integral import LEAST_CURVATURE
from kalstream.deep import predictive
from kalstream.errors import NumericalError

# A predicted variance may be negative by rounding, by this part of the noise variance at most.
_LEAST_VAR: Final = -ROUNDING_LIMITS[0]


@dataclass(frozen=True)
class Products:
    """Products of a chunk's rows with one another and with the state, which do not depend on gamma.

    Attributes
    ----------
    features : (b, m)
    times_cov : (b, m)
        Features times cov.
    gram_cov, gram_eye : (b, b)
        Inner products of rows, weighted by cov and plain.
    base_mean : (b, K)
        Features times mean.
    """

    features: Tensor
    times_cov: Tensor
    gram_cov: Tensor
    gram_eye: Tensor
    base_mean: Tensor

    @classmethod
    def of(cls, mean: Tensor, cov: Tensor, features: Tensor) -> Products:
        """The products of a chunk with a state."""
        chunk = cls.empty(mean, len(features))
        chunk.features.copy_(features)
        chunk.fill_(mean, cov)
        return chunk

    @classmethod
    def empty(cls, mean: Tensor, n_rows: int) -> Products:
        """Empty buffers for a chunk of ``n_rows``, for a state with such a mean."""
        m, n_classes = mean.shape
        shapes = ((n_rows, m), (n_rows, m), (n_rows, n_rows), (n_rows, n_rows), (n_rows, n_classes))
        return cls(*(mean.new_empty(shape) for shape in shapes))

    def fill_(self, mean: Tensor, cov: Tensor) -> None:
        """Compute the products from the features and a state."""
        torch.mm(self.features, cov, out=self.times_cov)
        torch.mm(self.times_cov, self.features.T, out=self.gram_cov)
        torch.mm(self.features, self.features.T, out=self.gram_eye)
        torch.mm(self.features, mean, out=self.base_mean)


@dataclass(frozen=True)
class FilterStep:
    """Record of a chunk: the prediction of every row, given the targets of the rows before it.

    Attributes
    ----------
    logit_mean, logit_var : (b, K), (b,)
    gamma : (b,)
        Forgetting coefficient of the transition to the row.
    innovations : (b, K)
        Residuals divided by their standard deviations.
    """

    logit_mean: Tensor
    logit_var: Tensor
    gamma: Tensor
    innovations: Tensor


def decay(gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Products of gamma (b,): from the start to each row (b,), and from row i to row l (b, b).

    Only multiplications are used, so a gamma of 0 is allowed. The second is 1 on the diagonal and 0
    below it.
    """
    b = len(gamma)
    upper = torch.ones(b, b, dtype=gamma.dtype, device=gamma.device).triu(1)
    # Column l times gamma_l where l > i: cumulative products along row i start after i.
    ratios = torch.where(upper.bool(), gamma.expand(b, b), torch.ones_like(upper)).cumprod(1)
    return gamma.cumprod(0), ratios.triu()


def _joint_cov(chunk: Products, gamma: Tensor, prior_var: float) -> tuple[Tensor, Tensor]:
    """Prior covariance of the rows' outputs (b, b), and the products of gamma (b,)."""
    kept, ratios = decay(gamma)
    kept2 = (kept * kept)[:, None]
    own = kept2 * chunk.gram_cov + (1.0 - kept2) * prior_var * chunk.gram_eye
    upper = ratios * own
    return upper.triu() + upper.triu(1).T, kept


def run_chunk(
    chunk: Products,
    targets: Tensor,
    gamma: Tensor,
    noise_var: Tensor,
    prior_var: float,
) -> tuple[FilterStep, Tensor, Tensor]:
    """Moments of the rows one step ahead, with known coefficients gamma (b,).

    Returns
    -------
    step : FilterStep
    factor : (b, b)
        L, lower triangular.
    kept : (b,)
        Products of gamma.
    """
    joint, kept = _joint_cov(chunk, gamma, prior_var)
    total = joint + torch.diag(noise_var)
    factor, failed = torch.linalg.cholesky_ex(total)
    if not total.is_cuda and bool(failed):
        raise _broken(int(failed), noise_var)
    prior_mean = kept[:, None] * chunk.base_mean
    scaled = torch.linalg.solve_triangular(factor, targets - prior_mean, upper=False)
    deviation = factor.diagonal()
    residual = deviation[:, None] * scaled
    step = FilterStep(targets - residual, deviation.square() - noise_var, gamma, scaled)
    return step, factor, kept


def run_softmax(
    chunk: Products, labels: Tensor, gamma: Tensor, seen: Tensor, prior_var: float
) -> tuple[FilterStep, Tensor, Tensor]:
    """As `run_chunk`, with labels (b,) observed through the softmax.

    ``seen`` (b, K) are the classes seen before each row. All results are float64.
    """
    joint, kept = _joint_cov(chunk, gamma.double(), prior_var)
    scan = scan_softmax(joint, kept[:, None] * chunk.base_mean, labels, seen)
    return FilterStep(scan.mean, scan.var, gamma, scan.innovations), scan.factor, kept


class _SoftmaxScan(NamedTuple):
    """Result of a scan over the rows of a chunk, in float64.

    Attributes
    ----------
    factor, innovations : (b, b), (b, K)
        L, and the residuals divided by their standard deviations. NaN from a row on whose
        predicted variance is negative.
    mean, var : (b, K), (b,)
        Moments of each row, given the labels of the rows before it.
    """

    factor: Tensor
    innovations: Tensor
    mean: Tensor
    var: Tensor


def scan_softmax(joint: Tensor, prior_mean: Tensor, labels: Tensor, seen: Tensor) -> _SoftmaxScan:
    """Observe labels (b,) through the softmax, row by row.

    ``joint`` (b, b) and ``prior_mean`` (b, K) are the moments of the rows before the chunk,
    ``seen`` (b, K) are the classes seen before each row.
    """
    if joint.device.type == "cpu":
        scan = scan_joint(joint.numpy(), prior_mean.numpy(), labels.numpy(), seen.numpy())
        return _SoftmaxScan(*(torch.from_numpy(each) for each in scan))
    if joint.is_cuda and predictive.fused():
        from kalstream.deep import _kernels

        bank = _kernels.scan_softmax(joint[None], prior_mean[None], labels, seen)
        return _SoftmaxScan(*(each[0] for each in bank))
    return plain_scan_softmax(joint, prior_mean, labels, seen)


def scan_softmax_bank(
    joint: Tensor, prior_mean: Tensor, labels: Tensor, seen: Tensor
) -> _SoftmaxScan:
    """`scan_softmax` for J filters: ``joint`` (J, b, b) and ``prior_mean`` (J, b, K)."""
    if joint.is_cuda and predictive.fused():
        from kalstream.deep import _kernels

        return _SoftmaxScan(*_kernels.scan_softmax(joint, prior_mean, labels, seen))
    scans = [
        scan_softmax(each, mean, labels, seen) for each, mean in zip(joint, prior_mean, strict=True)
    ]
    if not scans:
        return _SoftmaxScan(joint, prior_mean, prior_mean, joint.diagonal(dim1=1, dim2=2))
    return _SoftmaxScan(*(torch.stack(each) for each in zip(*scans, strict=True)))


def plain_scan_softmax(
    joint: Tensor, prior_mean: Tensor, labels: Tensor, seen: Tensor
) -> _SoftmaxScan:
    """`scan_softmax` in torch: reference of the compiled scans, and for other devices."""
    rest, mean = joint.clone(), prior_mean.clone()
    factor, innovations = torch.zeros_like(joint), torch.zeros_like(mean)
    for i in range(len(labels)):
        own, var = slice(i, i + 1), rest[i, i]
        noise_var, residual = linearise(mean[own], var[None], labels[own], seen[own])
        sound = var >= _LEAST_VAR * noise_var
        deviation = (var + noise_var).where(sound, math.nan).sqrt()
        # eq. (8): the row's innovation, then its part of the rows after it
        innovations[i] = residual[0] / deviation
        column = rest[i + 1 :, i] / deviation
        factor[i, i], factor[i + 1 :, i] = deviation[0], column
        mean[i + 1 :].addr_(column, innovations[i])
        rest[i + 1 :, i + 1 :].addr_(column, column, alpha=-1.0)
    return _SoftmaxScan(factor, innovations, mean, rest.diagonal())


def linearise(mean: Tensor, var: Tensor, labels: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Noise variance (n,) and residual (n, K) of the Gaussian that stands for the softmax.

    As `core.softmax_curvature`, for rows with logits N(mean (n, K), var (n,)). The classes are
    those ``seen`` (n, K) and the row's own label. One class alone is compared with a class that was
    not seen, whose logit is 0.
    """
    own = torch.arange(mean.shape[1], device=mean.device) == labels[:, None]
    shown = seen | own
    n_shown = shown.sum(1, keepdim=True)
    shrink = (1.0 + math.pi / 8.0 * var.clamp_min(0.0)).rsqrt()[:, None]
    other = torch.zeros_like(shrink).masked_fill(n_shown > 1, -math.inf)
    logits = torch.cat([(shrink * mean).masked_fill(~shown, -math.inf), other], 1)
    p = logits.softmax(1)
    spread = (p * (1.0 - p)).sum(1, keepdim=True)
    curvature = (spread / (n_shown - 1).clamp_min(1)).clamp_min(LEAST_CURVATURE)
    curvature = shrink.square() * curvature
    residual = shrink / curvature * (own.to(p.dtype) - p[:, :-1])
    return 1.0 / curvature[:, 0], residual


def update_(
    mean: Tensor,
    cov: Tensor,
    chunk: Products,
    step: FilterStep,
    factor: Tensor,
    kept: Tensor,
    prior: float,
    gate: Tensor | None = None,
) -> None:
    """Advance mean (m, K) and cov (m, m) over a chunk, in place.

    Where ``gate`` () is false nothing changes, even if other arguments hold NaN. On a GPU the host
    need not read it.
    """
    last, innovations = kept[-1], step.innovations
    _, ratios = decay(step.gamma)
    kept2 = (kept * kept)[:, None]
    cross = ratios[:, -1:] * (kept2 * chunk.times_cov + (1.0 - kept2) * prior * chunk.features)
    gains = torch.linalg.solve_triangular(factor, cross, upper=False)  # (b, m)
    if gate is not None:
        last = last.where(gate, 1.0)
        gains, innovations = gains.where(gate, 0.0), innovations.where(gate, 0.0)
    mean.mul_(last).addmm_(gains.T, innovations)
    cov.mul_(last * last).addmm_(gains.T, gains, alpha=-1.0)
    cov.diagonal().add_((1.0 - last * last) * prior)


def _broken(row: int, noise_var: Tensor) -> NumericalError:
    return NumericalError(
        f"the joint variance of the first {row} rows of the chunk is not positive: rounding "
        f"errors exceed the noise_var of {float(noise_var.min()):.3g}; use float64, or a larger "
        "noise_var"
    )
