"""The textbook recursion: one function per equation of the paper, the reference for the rest.

Plain NumPy on full matrices, one row at a time. `chunk.step_chunk` gives the same numbers
faster. Equation numbers are those of Titsias et al. (2023).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.guard import check_innovations, rounding_error
from kalstream.core.likelihoods import LIKELIHOODS, SOFTMAX, SOFTMAX_LABEL, Curvature
from kalstream.core.predictive import gaussian_log_density, label_log_prob, probit_width
from kalstream.core.state import Posterior, Step
from kalstream.errors import InvalidInput, NumericalError


def log_likelihood(
    weights: ArrayLike, features: ArrayLike, target: ArrayLike, *, noise_var: float
) -> float:
    """Log density of a target given the weights, eq. (1), summed over outputs.

    Parameters
    ----------
    weights : (m, K)
    features : (m,)
    target : label, number or (K,)
    noise_var : float
        Variance of the observation noise, sigma^2.

    Examples
    --------
    >>> round(log_likelihood([[1.0]], [2.0], 2.0, noise_var=1.0), 3)
    -0.919
    """
    noise_var = check.variance("noise_var", noise_var, np.float64)
    w = check.matrix("weights", weights)
    phi = check.feature_vector(features, len(w), np.float64)
    read = check.single_target(target, w.shape[1])
    if not read.observed[0]:
        raise InvalidInput(f"target is unknown ({target!r}); a missing target has no likelihood")
    residual = read.minus((phi @ w)[None])
    # eq. (1)
    return float(gaussian_log_density(residual, 0.0, noise_var).sum())


def init(
    n_features: int, n_outputs: int, *, prior_var: float, dtype: Any = np.float64
) -> Posterior:
    """Prior over the weights before any data, eq. (2): mean 0, covariance prior_var I.

    Parameters
    ----------
    n_features, n_outputs : int
        m and K.
    prior_var : float
        Variance of each weight, sigma_w^2; 1 / n_features is the paper's default.
    dtype : float64 or float32

    Examples
    --------
    >>> init(2, 1, prior_var=0.5).cov
    array([[0.5, 0. ],
           [0. , 0.5]])
    """
    m = check.count("n_features", n_features)
    k = check.count("n_outputs", n_outputs)
    kind = check.float_dtype(dtype)
    variance = check.variance("prior_var", prior_var, kind)
    return Posterior(np.zeros((m, k), kind), np.eye(m, dtype=kind) * kind.type(variance))


def drift(weights: ArrayLike, *, gamma: float, prior_var: float) -> tuple[Array, float]:
    """Mean (m, K) and variance of the weights one step later, given the weights now, eq. (3).

    Examples
    --------
    >>> drift([[2.0]], gamma=0.5, prior_var=1.0)
    (array([[1.]]), 0.75)
    """
    gamma = check.unit_interval("gamma", gamma)
    prior_var = check.variance("prior_var", prior_var, np.float64)
    # eq. (3)
    return gamma * check.matrix("weights", weights), (1.0 - gamma) * (1.0 + gamma) * prior_var


def transition(
    posterior: Posterior, *, gamma: float, prior_var: float, keep_mean: bool = False
) -> Posterior:
    """Forget: the posterior before the next row is seen, eq. (4), for all outputs eq. (7).

    Parameters
    ----------
    posterior : Posterior
    gamma : float in [0, 1]
        1 forgets nothing, 0 returns to the prior.
    prior_var : float
    keep_mean : bool
        Leave the mean where it is (appendix C) instead of shrinking it to zero.

    Examples
    --------
    >>> transition(Posterior([[1.0]], [[0.0]]), gamma=0.5, prior_var=1.0).cov
    array([[0.75]])
    """
    gamma = check.unit_interval("gamma", gamma)
    check.instance("posterior", posterior, Posterior)
    prior_var = check.variance("prior_var", prior_var, posterior.dtype)
    mean, cov = posterior.mean, posterior.cov
    if not check.flag("keep_mean", keep_mean):
        mean *= gamma  # eq. (7), left
    before = cov.diagonal().copy()
    cov *= gamma**2  # eq. (7), right
    diagonal = np.einsum("ii->i", cov)
    diagonal += (1.0 - gamma) * (1.0 + gamma) * prior_var
    # An average of two variances exceeds neither. Rounding could exceed both, and would add up.
    np.minimum(diagonal, np.maximum(before, prior_var).astype(cov.dtype), out=diagonal)
    return Posterior(mean, cov)


def predict(posterior: Posterior, features: ArrayLike) -> tuple[Array, float]:
    """Mean (K,) and variance of the outputs for features (m,): the moments in eqs. (6), (11).

    ``posterior`` is the predicted one, after `transition`.

    Examples
    --------
    >>> predict(Posterior([[1.0, 0.0]], [[0.5]]), [2.0])
    (array([2., 0.]), 2.0)
    """
    check.instance("posterior", posterior, Posterior)
    phi = check.feature_vector(features, posterior.n_features, posterior.dtype)
    return phi @ posterior.mean, float(phi @ posterior.cov @ phi)


def update(
    posterior: Posterior, features: ArrayLike, target: ArrayLike, *, noise_var: float
) -> tuple[Posterior, Step]:
    """Learn one row, eq. (5), for all outputs eq. (8). With gamma = 1 this is eq. (14).

    Parameters
    ----------
    posterior : Posterior
        The predicted one, after `transition`.
    features : (m,)
    target : int, float or (K,)
        An integer is a class label (its one-hot vector is learned), a float or vector a value.
        For NaN, or the label -1, the posterior stays as it is.
    noise_var : float

    Examples
    --------
    >>> posterior, seen = update(init(1, 1, prior_var=1.0), [1.0], 3.0, noise_var=1.0)
    >>> posterior.mean, posterior.cov
    (array([[1.5]]), array([[0.5]]))
    """
    check.instance("posterior", posterior, Posterior)
    noise_var = check.variance("noise_var", noise_var, posterior.dtype)
    phi = check.feature_vector(features, posterior.n_features, posterior.dtype)
    read = check.single_target(target, posterior.n_outputs, posterior.dtype)
    mean, cov = posterior.mean, posterior.cov
    logit_mean = phi @ mean  # (K,)
    gain = cov @ phi  # (m,)
    logit_var = float(phi @ gain)
    rounding = rounding_error(phi[None], cov.diagonal())
    check_innovations(np.array([logit_var]), np.array([noise_var]), rounding, cov.dtype)
    innovation_var = noise_var + logit_var
    nis = math.nan
    if read.observed[0]:
        residual = read.minus(logit_mean[None])[0]  # (K,)
        # eq. (8)
        posterior = Posterior(
            (mean + np.outer(gain / innovation_var, residual)).astype(mean.dtype),
            (cov - np.outer(gain, gain) / innovation_var).astype(cov.dtype),
        )
        nis = float(np.mean(residual**2) / innovation_var)
    else:
        noise_var = math.inf
    return posterior, _single(logit_mean, logit_var, 1.0, noise_var, nis)


def softmax_curvature(
    logit_mean: ArrayLike, logit_var: float, seen: ArrayLike, label: int | None = None
) -> tuple[Array, float, float]:
    """Linearise the softmax at logits N(logit_mean, logit_var I) (core/README.md).

    Parameters
    ----------
    logit_mean : (K,)
    logit_var : float
    seen : (K,) bool
        Classes that take part; the others have probability 0.
    label : int, optional
        The curvature is taken along this class and any other instead.

    Returns
    -------
    probabilities : (K,)
        p = softmax(shrink * logit_mean) among the classes that take part. One class alone is
        compared with a class that has not come, whose logit is 0.
    shrink : float
        1 / sqrt(1 + pi logit_var / 8), the probit approximation to averaging over the logits.
    curvature : float
        shrink^2 times the mean of the eigenvalues that are not zero of diag(p) - p p', or with a
        label y times 2 p_y (1 - p_y); both are at least 1e-6.

    Examples
    --------
    >>> softmax_curvature([0.0, 0.0, 5.0], 0.0, [True, True, False])
    (array([0.5, 0.5, 0. ]), 1.0, 0.5)
    """
    rule = _softmax_rule((SOFTMAX if label is None else SOFTMAX_LABEL).word)
    return _linearised(logit_mean, logit_var, seen, rule, -1 if label is None else label)


def _softmax_rule(likelihood: str) -> Curvature:
    """The curvature of a likelihood, which must be one through the softmax."""
    rules = {each.word: each.curvature for each in LIKELIHOODS.values() if each.curvature}
    return rules[check.choice("likelihood", likelihood, tuple(rules))]


def _linearised(
    logit_mean: ArrayLike, logit_var: float, seen: ArrayLike, rule: Curvature, label: int
) -> tuple[Array, float, float]:
    """As `softmax_curvature`, with the curvature of any likelihood."""
    from kalstream.core.softmax_integral import LEAST_CURVATURE

    mask = np.asarray(seen, bool)
    shrink = 1.0 / float(probit_width(max(logit_var, 0.0)))
    logits = np.where(mask, shrink * np.asarray(logit_mean, np.float64), -np.inf)
    if mask.sum() == 1:
        logits = np.append(logits, 0.0)
    odds = np.exp(logits - logits.max())
    p = odds / odds.sum()
    curvature = rule(p, label, int(mask.sum()))
    return p[: len(mask)], shrink, shrink**2 * max(curvature, LEAST_CURVATURE)


def update_softmax(
    posterior: Posterior,
    features: ArrayLike,
    label: int,
    *,
    seen: ArrayLike | None = None,
    sample_weight: float = 1.0,
    likelihood: str = "softmax",
) -> tuple[Posterior, Step]:
    """Learn the label of one row through the softmax: the counterpart of `update`.

    The row is an ordinary Kalman update with noise variance 1 / (weight * curvature) and residual
    shrink (onehot - p) / curvature, both from `softmax_curvature`. If the weight is above 1, the
    curvature is that of the point where the row ends: the most probable one along onehot - p.

    Parameters
    ----------
    posterior : Posterior
        The predicted one, after `transition`.
    features : (m,)
    label : int
        For -1 the posterior stays as it is.
    seen : (K,) bool, optional
        Classes that came before this row; all if left out. The row's own label counts as well.
    sample_weight : float
        For 0 the posterior stays as it is.
    likelihood : "softmax" or "softmax-label"
        Whether the curvature is the mean one, or that of the label.

    Examples
    --------
    >>> posterior, _ = update_softmax(init(1, 2, prior_var=1.0), [1.0], 0)
    >>> posterior.mean.round(3), posterior.cov.round(3)
    (array([[ 0.312, -0.312]]), array([[0.736]]))
    """
    check.instance("posterior", posterior, Posterior)
    phi = check.feature_vector(features, posterior.n_features, posterior.dtype)
    read = check.single_target(label, posterior.n_outputs, posterior.dtype)
    weight = float(check.non_negative_rows("sample_weight", sample_weight, 1)[0])
    mean, var = predict(posterior, phi)
    if not (read.observed[0] and weight > 0.0):
        return posterior, _single(mean, var, 1.0, math.inf, math.nan)
    if read.labels is None:
        raise InvalidInput(f"label must be a class, an integer, got {label!r}")
    code = int(read.labels[0])
    known = np.ones(posterior.n_outputs, bool) if seen is None else np.array(seen, bool)
    if known.shape != (posterior.n_outputs,):
        raise InvalidInput(
            f"seen must be one bool for each of {posterior.n_outputs} outputs, got shape "
            f"{known.shape}"
        )
    known[code] = True
    rule = _softmax_rule(likelihood)
    p, shrink, curvature = _linearised(mean, var, known, rule, code)
    onehot = np.arange(len(p)) == code
    error, target = onehot - p, shrink / curvature
    if weight > 1.0 and error @ error > 0.0:

        def gap(end: float) -> float:
            there = _linearised((mean + end * var * error) * shrink, 0.0, known, rule, code)[0]
            return weight * shrink * float((onehot - there) @ error) / float(error @ error) - end

        end = brentq(gap, 0.0, weight * shrink, xtol=1e-300, rtol=1e-15) if var > 0.0 else gap(0.0)
        _, _, curvature = _linearised((mean + end * var * error) * shrink, 0.0, known, rule, code)
        curvature *= shrink**2
        target = end * (var + 1.0 / (weight * curvature))
    noise_var = 1.0 / (weight * curvature)
    rounding = rounding_error(phi[None], posterior.cov.diagonal())
    check_innovations(np.array([var]), np.array([noise_var]), rounding, posterior.dtype)
    gain = posterior.cov @ phi / (noise_var + var)
    after = Posterior(
        (posterior.mean + np.outer(gain, target * error)).astype(posterior.dtype),
        (posterior.cov - np.outer(gain, gain) * (noise_var + var)).astype(posterior.dtype),
    )
    spread, squares = float(p @ (1.0 - p)), float(error @ error)
    nis = squares / max(spread, 1e-6 / (1.0 + (known.sum() == 1)))  # twice both, if one is alone
    return after, _single(mean, var, 1.0, noise_var, nis)


def step(
    posterior: Posterior,
    features: ArrayLike,
    target: ArrayLike,
    *,
    gamma: float,
    noise_var: float,
    prior_var: float,
    keep_mean: bool = False,
) -> tuple[Posterior, Step]:
    """One step of the recursion: `transition`, then `update`.

    Examples
    --------
    >>> posterior, seen = step(
    ...     init(1, 2, prior_var=1.0), [1.0], 0, gamma=0.9, noise_var=1.0, prior_var=1.0
    ... )
    >>> posterior.mean, seen.logit_var
    (array([[0.5, 0. ]]), array(1.))
    """
    predicted = transition(posterior, gamma=gamma, prior_var=prior_var, keep_mean=keep_mean)
    updated, seen = update(predicted, features, target, noise_var=noise_var)
    return updated, _single(
        seen.logit_mean, float(seen.logit_var), gamma, float(seen.noise_var), float(seen.nis)
    )


def ridge_posterior(
    features: ArrayLike, targets: ArrayLike, *, noise_var: float, prior_var: float
) -> Posterior:
    """Posterior of Bayesian linear regression in closed form (appendix A): what gamma = 1 gives.

    Parameters
    ----------
    features : (n, m)
    targets : (n, K)

    Examples
    --------
    >>> ridge_posterior([[1.0]], [[3.0]], noise_var=1.0, prior_var=1.0).mean
    array([[1.5]])
    """
    phi, y = check.matrix("features", features), check.matrix("targets", targets)
    if len(phi) != len(y):
        raise InvalidInput(f"features has {len(phi)} rows and targets {len(y)}; give as many")
    noise_var = check.variance("noise_var", noise_var, np.float64)
    prior_var = check.variance("prior_var", prior_var, np.float64)
    precision = phi.T @ phi / noise_var + np.eye(phi.shape[1]) / prior_var
    try:
        cov = np.linalg.inv(precision)
    except np.linalg.LinAlgError:
        raise NumericalError(
            f"the precision of {phi.shape[1]} weights has no inverse in float64; scale the "
            "features, raise noise_var or lower prior_var"
        ) from None
    return Posterior(cov @ (phi.T @ y) / noise_var, (cov + cov.T) / 2.0)


def delta_gradient(
    posterior: Posterior,
    features: ArrayLike,
    target: ArrayLike,
    *,
    gamma: float,
    noise_var: float,
    prior_var: float,
    keep_mean: bool = False,
    calibration: float = 1.0,
) -> float:
    """Derivative of the log predictive of a target by delta, where gamma = exp(-delta / 2).

    The posterior n-1 is held constant, as in the paper: eq. (9) through the exact eq. (11) for a
    label, appendix B, eq. (15), for values. Calibration multiplies the logits of a label. The
    derivative is 0 if the target is unknown.

    Examples
    --------
    >>> posterior = Posterior([[0.0]], [[0.0]])  # sure of 0, but wrong: it should forget more
    >>> delta_gradient(posterior, [1.0], 3.0, gamma=1.0, noise_var=1.0, prior_var=1.0)
    4.0
    """
    check.instance("posterior", posterior, Posterior)
    gamma = check.unit_interval("gamma", gamma)
    noise_var = check.variance("noise_var", noise_var, np.float64)
    prior_var = check.variance("prior_var", prior_var, posterior.dtype)
    calibration = check.factor("calibration", calibration)
    check.flag("keep_mean", keep_mean)
    phi = check.feature_vector(features, posterior.n_features, np.float64)
    read = check.single_target(target, posterior.n_outputs)
    if not read.observed[0]:
        return 0.0
    predicted = transition(posterior, gamma=gamma, prior_var=prior_var, keep_mean=keep_mean)
    mean, var = predict(predicted, features)
    mean_slope = np.zeros_like(mean) if keep_mean else -0.5 * mean
    var_slope = prior_var * float(phi @ phi) - var
    if read.labels is not None:
        terms = label_log_prob(mean, var, int(read.labels[0]), calibration=calibration)
        return float(terms.d_mean @ mean_slope + terms.d_var * var_slope)
    innovation_var = var + noise_var
    residual = read.minus(mean[None])[0]
    # eq. (15)
    by_mean = residual / innovation_var
    by_var = 0.5 * float(np.sum(residual**2 / innovation_var - 1.0)) / innovation_var
    return float(by_mean @ mean_slope) + by_var * var_slope


def _single(mean: Array, var: float, gamma: float, noise_var: float, nis: float) -> Step:
    return Step(mean, np.asarray(var), np.asarray(gamma), np.asarray(noise_var), np.asarray(nis))
