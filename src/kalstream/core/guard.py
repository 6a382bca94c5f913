"""Numerical soundness of a filter: checks of its innovations, and a health report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.state import Posterior, Step
from kalstream.errors import InvalidInput, NumericalError

# Limits of (1) one rounding of the covariance over the noise variance, (2) the sum of all roundings
# over a predicted variance, unless (3) that sum over the noise variance is below the third.
# tests/numerics shows what these limits refuse and accept.
ROUNDING_LIMITS: Final = (1e-3, 0.03, 1e-6)


@dataclass(frozen=True, slots=True)
class Health:
    """How sound a filter is.

    Attributes
    ----------
    smallest_innovation_var : float
        Least logit_var + noise_var over the rows; must stay positive.
    asymmetry : float
        Largest difference between cov and its transpose, over the largest variance. Always 0,
        since one triangle is stored; another value would reveal a defect.
    smallest_variance, largest_variance : float
        Range of the weights' variances; the largest never exceeds the prior variance.
    nis : float
        Mean normalised innovation squared: about 1 if noise_var and forgetting fit the data,
        larger if the filter is overconfident. NaN if no row was learned.
    effective_memory : float
        Number of rows after which a filter without forgetting would be as certain as this
        one, about n_features * noise_var / logit_var; the median over the learned rows.

    Examples
    --------
    `health` makes it; an estimator has one in ``health_``.

    >>> from kalstream.core import init, step
    >>> given = {"gamma": 1.0, "noise_var": 1.0, "prior_var": 1.0}
    >>> report = health(*step(init(2, 1, prior_var=1.0), [1.0, 0.0], 0.5, **given))
    >>> report.smallest_variance, report.largest_variance, report.nis
    (0.5, 1.0, 0.125)
    """

    smallest_innovation_var: float
    asymmetry: float
    smallest_variance: float
    largest_variance: float
    nis: float
    effective_memory: float


def health(state: Any, step: Any) -> Health:
    """Report on a posterior, or a policy's state, and the step that led to it.

    For a mixture, the report is about the filter with the largest weight.

    Examples
    --------
    >>> from kalstream.core import init, step
    >>> report = health(
    ...     *step(
    ...         init(2, 1, prior_var=1.0), [1.0, 0.0], 0.5, gamma=1.0, noise_var=1.0, prior_var=1.0
    ...     )
    ... )
    >>> report.smallest_innovation_var, report.effective_memory
    (2.0, 2.0)
    """
    posterior: Posterior = state
    if hasattr(state, "heaviest"):
        posterior = state.posteriors[state.heaviest]
    check.instance("state", posterior, Posterior)
    if hasattr(state, "heaviest") and not isinstance(step, Step):
        try:
            filters = step.bank.filters()
        except (AttributeError, TypeError, ValueError):  # a step made by hand
            filters = ()
        if state.heaviest >= len(filters):
            raise InvalidInput(
                f"step is of {len(filters)} filters and the state has more; pass the step that led "
                "to the state"
            )
        step = filters[state.heaviest]
    check.instance("step", step, Step)
    cov = posterior.cov
    variances = cov.diagonal()
    noise_var, logit_var, nis = (
        np.atleast_1d(check.numeric(f"the {name} of the step", getattr(step, name)))
        for name in ("noise_var", "logit_var", "nis")
    )
    if not noise_var.shape == logit_var.shape == nis.shape == (noise_var.size,):
        raise InvalidInput(
            f"the noise_var, logit_var and nis of the step must be of the same rows, got shapes "
            f"{noise_var.shape}, {logit_var.shape} and {nis.shape}; pass the step that led to the "
            "state"
        )
    learned = np.isfinite(noise_var)
    noise_var, logit_var, nis = noise_var[learned], logit_var[learned], nis[learned]
    innovation_var = logit_var + noise_var
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        memory = posterior.n_features * noise_var / logit_var
    return Health(
        smallest_innovation_var=float(innovation_var.min(initial=np.inf)),
        asymmetry=float(np.abs(cov - cov.T).max() / max(variances.max(), np.finfo(float).tiny)),
        smallest_variance=float(variances.min()),
        largest_variance=float(variances.max()),
        nis=float(nis.mean()) if len(nis) else math.nan,
        effective_memory=_median(memory),
    )


def _median(values: Array) -> float:
    return float(np.median(values)) if len(values) else math.nan


def rounding_error(features: Array, variances: Array) -> Array:
    """Rounding error of phi' A phi for each row (b,), from the features and diag A.

    Entries of A are off by u |A_kl| <= u sqrt(A_kk A_ll), u the unit round-off of their type;
    were these errors independent, their sum would have standard deviation u sum_k phi_k^2 A_kk.
    """
    return np.finfo(variances.dtype).eps * (np.square(features) @ variances)


def check_innovations(
    logit_var: Array,
    noise_var: Array,
    rounding: Array,
    dtype: Any,
    *,
    folds: float = 1.0,
    first_row: int = 0,
) -> None:
    """Raise `NumericalError` unless every predicted variance (b,) can be trusted.

    The rounding error is compared with noise_var, not with the innovation variance: learning may
    shrink phi' A phi to below noise_var in one step, and the rounding error remains. Where
    features are collinear it also adds up: directions that are never seen keep their large
    variances, and each of ``folds`` roundings of these leaks into the others.
    """
    at_once, leaked, harmless = ROUNDING_LIMITS
    leak = rounding * np.sqrt(folds)
    # Written so that NaN fails too. noise_var is inf where a row is only predicted.
    floor = np.where(np.isfinite(noise_var), -at_once * noise_var, -leak)
    positive = (logit_var >= floor) & (logit_var < np.inf)
    for sound, what in (
        (positive, "the covariance lost positive definiteness"),
        (rounding <= at_once * noise_var, f"{np.dtype(dtype)} cannot hold the covariance"),
        (
            (leak <= leaked * logit_var) | (leak <= harmless * noise_var),
            f"{np.dtype(dtype)} has lost the covariance to {folds:.0f} roundings",
        ),
    ):
        if not sound.all():
            row = int(np.argmin(sound))
            raise NumericalError(
                f"{what} at row {first_row + row}: the predicted variance is {logit_var[row]:.3g}, "
                f"its rounding error {rounding[row]:.2g} at once, noise_var over the sample weight "
                f"{noise_var[row]:.3g}. {_remedy(dtype)}"
            )


def _remedy(dtype: Any) -> str:
    wider = "use dtype=float64, " if np.dtype(dtype) == np.float32 else ""
    return f"The state is unchanged; {wider}scale the features, forget faster, or raise noise_var."
