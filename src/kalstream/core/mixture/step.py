"""The report of the rows of a chunk under a mixture, and their class probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.half_lives import weighted_median
from kalstream.core.mixture.grids import Calibrations, check_calibrations, grid_of
from kalstream.core.predictive import METHODS, class_probabilities
from kalstream.core.state import BankStep
from kalstream.errors import InvalidInput

if TYPE_CHECKING:
    from kalstream.core.predictive import Method

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class MixtureStep:
    """Report of every row of a chunk under a mixture, made before its target was seen.

    Attributes
    ----------
    logit_mean, logit_var : (J, b, K), (J, b)
        Moments of each filter.
    weights : (b, J, C)
        Posterior over half-lives and calibrations.
    half_life, gamma : (b,)
        Median of the posterior over half-lives, and its coefficient.
    log_prob : (b,)
        Log predictive of the row's target, among the classes seen so far; NaN if it had none or
        was a class never seen.
    scale : (b, J)
        Scale of the variances: 1 unless the mixture learns it, NaN while unknown.
    calibrations : C numbers, or J times C numbers
    prior_scales : J numbers
        As in `Mixture`.
    evidence : (b, J) or None
        Log predictive of the row's target under each filter, times the sample weight; NaN where
        log_prob is. None if no target was given, as in a prediction.
    bank : BankStep
        The step of each filter.
    half_life_weights : (b, J)
        Posterior over half-lives.
    mean, var : (b, K)
        Predicted mean and variance (without noise) of the outputs, averaged over the mixture.

    Examples
    --------
    The first two rows bring their classes:

    >>> from kalstream.core import Mixture
    >>> policy = Mixture(half_lives=(10.0, 1000.0), predictive="probit")
    >>> rows, labels = np.eye(2)[[0, 1, 0, 1]], np.array([0, 1, 0, 1])
    >>> state = policy.start(2, 2, prior_var=1.0)
    >>> state, step = policy.step_chunk(state, rows, labels, noise_var=0.5, prior_var=1.0)
    >>> step.log_prob.round(2).tolist(), step.mean.shape
    ([nan, nan, -0.21, -0.21], (4, 2))
    """

    bank: BankStep
    weights: Array
    log_prob: Array
    scale: Array
    half_lives: tuple[float, ...]
    calibrations: Calibrations
    prior_scales: tuple[float, ...] = ()
    evidence: Array | None = None

    def __post_init__(self) -> None:
        check.instance("the bank of the step", self.bank, BankStep)
        means = check.numeric("the logit_mean of the step", self.bank.logit_mean)
        if means.ndim != 3:
            raise InvalidInput(f"the logit_mean of the step must be (J, b, K), got {means.shape}")
        n_filters, n, _ = means.shape
        calibrations = check_calibrations(
            "the calibrations of the step", self.calibrations, n_filters
        )
        scales = self.prior_scales or (1.0,) * n_filters
        scales = check.sequence("the prior_scales of the step", scales)
        shapes = {"logit_mean": means.shape, "logit_var": (n_filters, n)}
        parts = {
            name: check.block(f"the {name} of the step", getattr(self.bank, name), shape)
            for name, shape in shapes.items()
        }
        shape = n, *grid_of(calibrations, n_filters).shape
        weights = check.block("the weights of the step", self.weights, shape)
        object.__setattr__(self, "bank", replace(self.bank, **parts))
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "calibrations", calibrations)
        object.__setattr__(self, "prior_scales", scales)

    @property
    def logit_mean(self) -> Array:
        """Predicted mean of each filter (J, b, K)."""
        return self.bank.logit_mean

    @property
    def logit_var(self) -> Array:
        """Predicted variance of each filter (J, b), shared by the outputs."""
        return self.bank.logit_var

    @property
    def nis(self) -> Array:
        """Normalised innovation squared (b,), averaged over filters."""
        return np.einsum("bj,jb->b", self.half_life_weights, self.bank.nis)

    @property
    def half_life(self) -> Array:
        """Median of the posterior over half-lives (b,)."""
        return weighted_median(self.half_lives, self.half_life_weights)

    @property
    def gamma(self) -> Array:
        """Forgetting coefficient of the median half-life (b,)."""
        return 0.5 ** (1.0 / self.half_life)

    @property
    def half_life_weights(self) -> Array:
        """Posterior over half-lives (b, J)."""
        return self.weights.sum(axis=2)

    @property
    def mean(self) -> Array:
        """Predicted mean of the outputs (b, K), averaged over the mixture."""
        return np.einsum("bj,jbk->bk", self.half_life_weights, self.logit_mean)

    @property
    def var(self) -> Array:
        """Predicted variance of the outputs without noise (b, K): within and between filters."""
        between = np.square(self.logit_mean - self.mean)
        within = self.scale.T * self.logit_var
        return np.einsum("bj,jbk->bk", self.half_life_weights, within[:, :, None] + between)

    @property
    def weight_variance(self) -> Array:
        """Variance of the outputs (b,) that comes from not knowing the weights.

        That of each filter is divided by its prior scale.
        """
        return np.einsum("bj,jb->b", self.half_life_weights, self.relative_variance)

    @property
    def relative_variance(self) -> Array:
        """Predicted variance of each filter (J, b), over its prior scale."""
        return self.logit_var / np.array(self.prior_scales)[:, None]

    def target_variance(self, noise_var: float, scale: float = 1.0) -> Array:
        """Variance of the targets (b, K), noise included; each filter has a scale of its own."""
        noise = np.einsum("bj,bj->b", self.half_life_weights, self.scale) * noise_var
        return self.var + noise[:, None]

    def keep_outputs(self, n_outputs: int) -> MixtureStep:
        """The same step, restricted to the first n_outputs outputs."""
        if self.logit_mean.shape[-1] == n_outputs:
            return self
        means = np.ascontiguousarray(self.logit_mean[..., :n_outputs])
        grids = self.half_lives, self.calibrations, self.prior_scales
        rest = self.weights, self.log_prob, self.scale, *grids, self.evidence
        return check.trusted(MixtureStep, replace(self.bank, logit_mean=means), *rest)

    def take(self, rows: Array) -> MixtureStep:
        """Some of the rows (n,), in this order."""
        grids = self.half_lives, self.calibrations, self.prior_scales
        parts = self.weights, self.log_prob, self.scale
        evidence = None if self.evidence is None else self.evidence[rows]
        each = (np.ascontiguousarray(part[rows]) for part in parts)
        return check.trusted(MixtureStep, self.bank.take(rows), *each, *grids, evidence)

    def class_probabilities(
        self,
        *,
        method: Method = "exact",
        light: float = 0.0,
        n_samples: int = 100,
        random_state: int | np.random.Generator | None = None,
    ) -> Array:
        """Class probabilities (b, K); see `mixture_probabilities`."""
        return mixture_probabilities(
            self, method=method, light=light, n_samples=n_samples, random_state=random_state
        )


def mixture_probabilities(
    step: MixtureStep,
    *,
    method: Method = "exact",
    light: float = 0.0,
    n_samples: int = 100,
    random_state: int | np.random.Generator | None = None,
) -> Array:
    """Class probabilities (b, K) of a mixture's rows, made before their labels were seen.

    With method "exact" the lightest components, ``light`` of the mixture together, may be taken by
    probit: there are many of them, and their error hardly shows.

    Examples
    --------
    >>> from kalstream.core import Mixture
    >>> policy = Mixture()
    >>> state = policy.start(1, 2, prior_var=1.0)
    >>> state, seen = policy.step_chunk(state, [[1.0]], [0], noise_var=0.5, prior_var=1.0)
    >>> mixture_probabilities(seen)
    array([[0.5, 0.5]])
    """
    moments = moments_of(step)
    means, variances, weights, calibrations = moments
    check.choice("method", method, METHODS)
    if method in ("exact", "probit"):
        from kalstream.core._kernels import mixture as kernels
        from kalstream.core.softmax_integral import table, workspace

        if method == "probit":
            out, bad = kernels.probit_probabilities(*moments)
        else:
            light, integral = check.unit_interval("light", light), (*table(), workspace())
            out, bad = kernels.mixed_probabilities(*moments, light, integral)
        if bad >= 0:
            _refuse_row(bad, moments)
        return out
    whole = weights.sum(axis=(1, 2))
    sound = (weights.min(axis=(1, 2)) >= 0.0) & (whole > 0.0) & (whole < math.inf)
    if not sound.all():
        _refuse_row(int(np.argmin(sound)), moments)
    weights = weights / whole[:, None, None]
    rng = check.generator("random_state", random_state)
    total = np.zeros(means.shape[1:])
    for j, (mean, var) in enumerate(zip(means, variances, strict=True)):
        for c, calibration in enumerate(calibrations[j].tolist()):
            total += weights[:, j, c, None] * class_probabilities(
                mean,
                np.maximum(var, 0.0),
                calibration=calibration,
                method=method,
                n_samples=n_samples,
                random_state=rng,
            )
    return total / total.sum(axis=1, keepdims=True)


def moments_of(step: MixtureStep) -> tuple[Array, Array, Array, Array]:
    """Means (J, b, K), variances (J, b), weights (b, J, C) and calibrations (J, C) of a step.

    Compiled code may rely on the shapes; J, b and K are at least 1.
    """
    check.instance("step", step, MixtureStep)
    means = step.logit_mean
    if not means.size:
        raise InvalidInput(
            f"step has logit_mean of shape {means.shape}; it must have a row and a class"
        )
    return means, step.logit_var, step.weights, grid_of(step.calibrations, len(means))


def _refuse_row(row: int, moments: tuple[Array, ...]) -> NoReturn:
    means, variances, weights, calibrations = moments
    raise InvalidInput(
        f"row {row} of the step has no probabilities: its means reach "
        f"{np.abs(means[:, row]).max():g} and its variances {variances[:, row].max():g} before "
        f"calibrations of up to {calibrations.max():g}, its weights lie between "
        f"{weights[row].min():g} and {weights[row].max():g}; logits must stay below 1e150 and "
        "weights be finite, at least 0 and not all 0"
    )
