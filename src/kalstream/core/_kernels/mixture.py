"""Bayes' rule over filters and calibrations, compiled. Imported on first use only, as `_scan`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kalstream.core._kernels._jit import jit
from kalstream.core._kernels.chunk import calibrated_terms, is_among
from kalstream.core._kernels.softmax_integral import LARGEST_LOGIT, probabilities
from kalstream.core.policy import KEEP_SCALE

Array = Any

# A target that no filter could have foreseen must not leave -inf minus -inf behind.
_LEAST_LOG = -1e100
# From here on the difference of two lgamma is taken by Stirling's series.
_MUCH_FREEDOM = 1e6


@jit
def mix(
    means: Array,
    variances: Array,
    labels: Array,
    dense: Array,
    noise_var: Array,
    weight: Array,
    switch: Array,
    calibrations: Array,
    exact: bool,
    learn_scale: bool,
    log_weights: Array,
    spread: Array,
    active: Array,
    n_active: int,
    ell: Array,
    slope: Array,
    work: Array,
) -> tuple[Array, Array, Array, int]:
    """Bayes' rule with a fixed share of switching over J filters and C calibrations.

    Parameters
    ----------
    means, variances : (J, b, K), (J, b)
        One-step-ahead moments of each filter.
    switch : (b,)
        Probability of switching before the row.
    log_weights, spread : (J, C), (J, 2), changed in place

    Returns
    -------
    weights : (b, J, C)
        Before each row's target was seen, after switching.
    scale : (b, J)
        What variances were multiples of, before each row's target was seen.
    log_prob : (b,)
        Log predictive of the mixture; NaN where there is none.
    n_active : int
    """
    n_filters, n, n_outputs = means.shape
    n_calibrations = calibrations.shape[0]
    n_all = n_filters * n_calibrations
    weights, log_prob = np.empty((n, n_filters, n_calibrations)), np.full(n, np.nan)
    scale = np.ones((n, n_filters))
    log_liks = np.empty((n_filters, n_calibrations))
    scaled = np.empty(n_outputs)
    for i in range(n):
        whole = 0.0
        for j in range(n_filters):
            for c in range(n_calibrations):
                share = np.exp(log_weights[j, c])
                share += switch[i] * (1.0 / n_all - share)
                weights[i, j, c] = share
                whole += share
        for j in range(n_filters):
            for c in range(n_calibrations):
                weights[i, j, c] /= whole
                if switch[i] > 0.0:
                    log_weights[j, c] = np.log(weights[i, j, c])
        if learn_scale:
            for j in range(n_filters):
                scale[i, j] = spread[j, 1] / spread[j, 0]
        if noise_var[i] == np.inf:
            continue
        if learn_scale and not spread[:, 1].min() > 0.0:  # too early to say anything
            for j in range(n_filters):
                unit = max(variances[j, i], 0.0) + noise_var[i] * weight[i]
                learn_spread(dense[i], means[j, i], unit, weight[i], spread[j])
            continue
        if labels.shape[0] and not is_among(labels[i], active[:n_active]):
            active[n_active] = labels[i]
            n_active += 1
            continue
        for j in range(n_filters):
            var = max(variances[j, i], 0.0)
            for c in range(n_calibrations):
                if learn_scale:
                    total = var + noise_var[i] * weight[i]
                    log_lik = student_log_density(dense[i], means[j, i], total, spread[j])
                elif labels.shape[0] == 0:
                    total = var + noise_var[i] * weight[i]
                    log_lik = -0.5 * n_outputs * np.log(2.0 * np.pi * total)
                    for k in range(n_outputs):
                        log_lik -= 0.5 * (dense[i, k] - means[j, i, k]) ** 2 / total
                elif exact:
                    log_lik = calibrated_terms(
                        means[j, i],
                        var,
                        calibrations[c],
                        labels[i],
                        active[:n_active],
                        scaled,
                        ell,
                        slope,
                        work,
                    )[0]
                else:
                    log_lik = probit_log_prob(
                        means[j, i], var, calibrations[c], labels[i], active[:n_active]
                    )
                log_liks[j, c] = max(log_lik, _LEAST_LOG)
            if learn_scale:
                total = var + noise_var[i] * weight[i]
                learn_spread(dense[i], means[j, i], total, weight[i], spread[j])
        log_prob[i] = log_sum_exp(log_weights + log_liks)
        for j in range(n_filters):
            for c in range(n_calibrations):
                log_weights[j, c] += weight[i] * log_liks[j, c]
        normalise(log_weights)
    return weights, scale, log_prob, n_active


@jit
def foretell(
    times_cov: Array,
    times_mean: Array,
    features: Array,
    gamma: Array,
    gap: Array,
    prior_var: float,
    keep_mean: bool,
    share: float,
    log_weights: Array,
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """Moments of rows after one transition each, eq. (7), and the weights after switching.

    Parameters
    ----------
    times_cov, times_mean : (J, b, m), (J, b, K)
        Features (b, m) times the filters' covariances and means.
    gamma : (J, 1)
    gap : (b,)

    Returns
    -------
    logit_mean, logit_var, gammas, noise_var, nis : (J, b, K), (J, b), (J, b), (b,), (J, b)
        As in `bank.BankStep`.
    weights, log_prob : (b, J, C), (b,)
    """
    n_filters, n, m = times_cov.shape
    n_all = log_weights.size
    mean, var = np.empty(times_mean.shape), np.empty((n_filters, n))
    gammas, weights = np.empty((n_filters, n)), np.empty((n, *log_weights.shape))
    for i in range(n):
        norm = 0.0
        for k in range(m):
            norm += features[i, k] * features[i, k]
        switch = 1.0 - (1.0 - share) ** gap[i]
        for j in range(n_filters):
            g, spread = gamma[j, 0] ** gap[i], 0.0
            for k in range(m):
                spread += features[i, k] * times_cov[j, i, k]
            var[j, i] = g * g * max(spread, 0.0) + (1.0 - g) * (1.0 + g) * prior_var * norm
            for k in range(times_mean.shape[2]):
                mean[j, i, k] = times_mean[j, i, k] * (1.0 if keep_mean else g)
            gammas[j, i] = g
            for c in range(log_weights.shape[1]):
                weights[i, j, c] = (1.0 - switch) * np.exp(log_weights[j, c]) + switch / n_all
    unlearnt, none = np.full(n, np.inf), np.full((n_filters, n), np.nan)
    return mean, var, gammas, unlearnt, none, weights, np.full(n, np.nan)


@jit
def squared_distance(target: Array, mean: Array) -> float:
    total = 0.0
    for k in range(target.shape[0]):
        total += (target[k] - mean[k]) ** 2
    return total


@jit
def student_log_density(target: Array, mean: Array, unit: float, spread: Array) -> float:
    """Log density of a target (K,) whose variance is unit times a scale known by spread (2,)."""
    freedom, squares = spread
    n_outputs = target.shape[0]
    after = freedom + n_outputs
    return (
        log_gamma_ratio(0.5 * freedom, 0.5 * n_outputs)
        - 0.5 * n_outputs * np.log(np.pi * squares * unit)
        - 0.5 * after * np.log1p(squared_distance(target, mean) / (unit * squares))
    )


@jit
def log_gamma_ratio(x: float, more: float) -> float:
    """Log of Gamma(x + more) / Gamma(x); the difference of two large lgamma has no digits left."""
    if x < _MUCH_FREEDOM:
        return math.lgamma(x + more) - math.lgamma(x)
    return (x + more - 0.5) * math.log1p(more / x) - more + more * math.log(x)


@jit
def learn_spread(target: Array, mean: Array, unit: float, weight: float, spread: Array) -> None:
    """Degrees of freedom and sum of squares after a target, in place."""
    spread[0] = KEEP_SCALE * spread[0] + weight * target.shape[0]
    spread[1] = KEEP_SCALE * spread[1] + weight * squared_distance(target, mean) / unit


@jit
def mixed_probabilities(
    means: Array,
    variances: Array,
    weights: Array,
    calibrations: Array,
    light: float,
    ell: Array,
    slope: Array,
    work: Array,
) -> tuple[Array, int]:
    """Class probabilities (b, K) of a mixture with weights (b, J, C), and a row that has none.

    The lightest components that hold ``light`` together are taken by probit, the others exactly.
    The row is -1 if all have; NaN and numbers without bounds would lead the integral astray.
    """
    n_filters, n, n_outputs = means.shape
    n_all = n_filters * calibrations.shape[0]
    out, one = np.zeros((n, n_outputs)), np.empty((1, n_outputs))
    mean, std = np.empty((1, n_outputs)), np.empty(1)
    for i in range(n):
        flat = np.sort(weights[i].ravel())
        whole = flat.sum()
        held, least, most = 0.0, np.inf, light * whole
        if not (flat[0] >= 0.0 and whole > 0.0 and whole < np.inf):
            return out, i
        for a in range(n_all):
            held += flat[a]
            if held > most:
                least = flat[a]
                break
        for j in range(n_filters):
            top, low = means[j, i, 0], means[j, i, 0]
            if not variances[j, i] < np.inf:
                return out, i
            for k in range(n_outputs):
                if not abs(means[j, i, k]) < LARGEST_LOGIT:
                    return out, i
                top, low = max(top, means[j, i, k]), min(low, means[j, i, k])
            for c in range(calibrations.shape[0]):
                weight, alpha = weights[i, j, c], calibrations[c]
                spread = alpha * np.sqrt(max(variances[j, i], 0.0))
                if not (spread < LARGEST_LOGIT and alpha * (top - low) < LARGEST_LOGIT):
                    return out, i
                exact = weight >= (1.0 - 1e-9) * least and n_outputs > 1  # ties are not split
                if not exact:
                    alpha /= np.sqrt(1.0 + np.pi / 8.0 * spread * spread)
                for k in range(n_outputs):
                    mean[0, k] = alpha * (means[j, i, k] - top)
                    one[0, k] = np.exp(mean[0, k]) if not exact else 0.0
                if exact:
                    std[0] = spread
                    probabilities(mean, std, ell, slope, work, one)
                share = weight / one.sum()
                for k in range(n_outputs):
                    out[i, k] += share * one[0, k]
        out[i] /= out[i].sum()
    return out, -1


@jit
def log_sum_exp(x: Array) -> float:
    top = x.max()
    return top + np.log(np.exp(x - top).sum())


@jit
def normalise(log_weights: Array) -> None:
    """Shift the logarithms of weights (J, C), in place, so that the weights sum to 1.

    The largest is subtracted first. One shift by `log_sum_exp` would lose the logarithm of the sum:
    beside 1e14, a surprise of 1e7 standard deviations, float64 keeps two digits after the point.
    """
    top, total = log_weights.max(), 0.0
    for j in range(log_weights.shape[0]):
        for c in range(log_weights.shape[1]):
            log_weights[j, c] -= top
            total += np.exp(log_weights[j, c])
    total = np.log(total)
    for j in range(log_weights.shape[0]):
        for c in range(log_weights.shape[1]):
            log_weights[j, c] -= total


@jit
def shrunk(alpha: float, var: float) -> float:
    """The factor of a logit's mean in the probit approximation to eq. (13)."""
    return alpha / np.sqrt(1.0 + np.pi / 8.0 * alpha * alpha * var)


@jit
def probit_log_prob(mean: Array, var: float, alpha: float, label: int, active: Array) -> float:
    """Log of the probit approximation to eq. (13): the softmax of logits shrunk by their spread."""
    factor = shrunk(alpha, var)
    top = mean[label]
    for k in active:
        top = max(top, mean[k])
    total = 0.0
    for k in active:
        total += np.exp(factor * (mean[k] - top))
    return factor * (mean[label] - top) - np.log(total)


@jit
def watched_rows(weights: Array, logit_var: Array, order: Array) -> tuple[Array, Array]:
    """Half-life weights and variances (b, J) in this order.

    From the weights (b, J, C) of a mixture and its variances (J, b).
    """
    n, n_filters, n_calibrations = weights.shape
    shares, variance = np.zeros((n, n_filters)), np.empty((n, n_filters))
    for i in range(n):
        for j in range(n_filters):
            for c in range(n_calibrations):
                shares[i, j] += weights[i, order[j], c]
            variance[i, j] = logit_var[order[j], i]
    return shares, variance
