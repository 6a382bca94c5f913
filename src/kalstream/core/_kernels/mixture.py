"""Bayes' rule over filters and calibrations, compiled. Import it on first use, as `chunk`."""

from __future__ import annotations

import math

import numpy as np

from kalstream.core._kernels.chunk import Integral, calibrated_terms
from kalstream.core.half_lives import KEEP_SCALE
from kalstream.core.jit import Floats, Labels, jit
from kalstream.core.softmax_integral import LARGEST_LOGIT, probabilities

# Least log-likelihood: a target that every filter rules out must not give -inf minus -inf.
LEAST_LOG = -1e100
# From here on Stirling's series replaces the difference of two lgamma.
_MUCH_FREEDOM = 1e6


@jit
def mix(
    means: Floats,
    variances: Floats,
    labels: Labels,
    dense: Floats,
    noise_var: Floats,
    weight: Floats,
    classes: Labels,
    n_seen: Labels,
    switch: Floats,
    calibrations: Floats,
    exact: Floats,
    learn_scale: bool,
    log_weights: Floats,
    spread: Floats,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Bayes' rule with a fixed share of switching over J filters and C calibrations.

    Parameters
    ----------
    means, variances : (J, b, K), (J, b)
        One-step-ahead moments of each filter.
    labels, dense : (b,), (b, K)
        Of `checks.Targets.arrays`: one of the two is empty.
    noise_var, weight, switch : (b,)
        Noise variance over the weight, inf where nothing is learned; sample weight; probability
        of switching before the row.
    classes, n_seen : (K,), (b + 1,)
        Of `observing.arrivals`.
    calibrations : (J, C)
    exact : (b, J, C) or (0, 0, 0)
        Of `exact_log_probs`; without it, labels are judged by the probit approximation.
    learn_scale : bool
        As in `mixture.Mixture`.
    log_weights, spread : (J, C), (J, 2), changed in place
        Spread holds degrees of freedom and sum of squares.

    Returns
    -------
    weights : (b, J, C)
        Before each row's target was seen, after switching.
    scale : (b, J)
        The unit of each filter's variances, before each row's target was seen.
    log_prob : (b,)
        Log predictive of the mixture; NaN for rows that do not change the weights.
    evidence : (b, J)
        Log of each filter's likelihood, to the power of the sample weight and averaged over the
        calibrations; NaN for the same rows.
    """
    n_filters, n, _ = means.shape
    n_calibrations = calibrations.shape[1]
    weights, log_prob = np.empty((n, n_filters, n_calibrations)), np.full(n, np.nan)
    scale, evidence = np.ones((n, n_filters)), np.full((n, n_filters), np.nan)
    log_liks = np.empty((n_filters, n_calibrations))
    for i in range(n):
        switch_weights(log_weights, switch[i], weights[i])
        if learn_scale:
            for j in range(n_filters):
                scale[i, j] = spread[j, 1] / spread[j, 0]
        if noise_var[i] == np.inf:
            continue
        if learn_scale and not spread[:, 1].min() > 0.0:  # no residual yet: there is no density
            for j in range(n_filters):
                unit = max(variances[j, i], 0.0) + noise_var[i] * weight[i]
                learn_spread(dense[i], means[j, i], unit, weight[i], spread[j])
            continue
        if labels.shape[0] and n_seen[i + 1] > n_seen[i]:  # nobody gave it a probability
            continue
        active = classes[: n_seen[i]] if labels.shape[0] else classes
        for j in range(n_filters):
            mean, var = means[j, i], max(variances[j, i], 0.0)
            total = var + noise_var[i] * weight[i]
            for c in range(n_calibrations):
                if learn_scale:
                    log_lik = student_log_density(dense[i], mean, total, spread[j])
                elif labels.shape[0] == 0:
                    log_lik = gaussian_log_density(dense[i], mean, total)
                elif exact.shape[0]:
                    log_lik = exact[i, j, c]
                else:
                    log_lik = probit_log_prob(mean, var, calibrations[j, c], labels[i], active)
                log_liks[j, c] = max(log_lik, LEAST_LOG)
            if learn_scale:
                learn_spread(dense[i], mean, total, weight[i], spread[j])
        log_prob[i] = log_sum_exp(log_weights + log_liks)
        weigh_filters(weights[i], weight[i], log_liks, evidence[i])
        learn_weights(log_weights, weight[i], log_liks)
    return weights, scale, log_prob, evidence


@jit
def exact_log_probs(
    means: Floats,
    variances: Floats,
    labels: Labels,
    noise_var: Floats,
    classes: Labels,
    n_seen: Labels,
    calibrations: Floats,
    integral: Integral,
) -> Floats:
    """Log predictive of each row's label, eq. (13), by each filter and calibration (b, J, C).

    The arguments are those of `mix`. It is not part of it, since most mixtures use the probit
    approximation, and this takes longer to compile than all of the rest.
    """
    n_filters, n, n_outputs = means.shape
    out, scaled = np.zeros((n, *calibrations.shape)), np.empty(n_outputs)
    for i in range(n):
        if noise_var[i] == np.inf or n_seen[i + 1] > n_seen[i]:
            continue
        active = classes[: n_seen[i]]
        for j in range(n_filters):
            var = max(variances[j, i], 0.0)
            for c in range(calibrations.shape[1]):
                known = means[j, i], var, calibrations[j, c], labels[i], active, scaled
                out[i, j, c] = calibrated_terms(*known, integral)[0]
    return out


@jit
def switch_weights(log_weights: Floats, switch: float, out: Floats) -> None:
    """Weights (J, C) after a switch with this probability, into out; log_weights follow."""
    n_filters, n_calibrations = log_weights.shape
    whole = 0.0
    for j in range(n_filters):
        for c in range(n_calibrations):
            share = np.exp(log_weights[j, c])
            share += switch * (1.0 / log_weights.size - share)
            out[j, c] = share
            whole += share
    for j in range(n_filters):
        for c in range(n_calibrations):
            out[j, c] /= whole
            if switch > 0.0:
                log_weights[j, c] = np.log(out[j, c])


@jit
def learn_weights(log_weights: Floats, power: float, log_liks: Floats) -> None:
    """Bayes' rule: log_weights (J, C), in place, after likelihoods (J, C) to a power."""
    for j in range(log_weights.shape[0]):
        for c in range(log_weights.shape[1]):
            log_weights[j, c] += power * log_liks[j, c]
    normalise(log_weights)


@jit
def weigh_filters(weights: Floats, power: float, log_liks: Floats, out: Floats) -> None:
    """Log of each filter's average likelihood (J,), into out, from weights (J, C) before it."""
    for j in range(weights.shape[0]):
        top, whole, total = log_liks[j].max(), 0.0, 0.0
        for c in range(weights.shape[1]):
            whole += weights[j, c]
            total += weights[j, c] * np.exp(power * (log_liks[j, c] - top))
        # The weights of a filter can all be 0 if there is no switching.
        out[j] = power * top + (np.log(total / whole) if total > 0.0 else 0.0)


@jit
def gaussian_log_density(target: Floats, mean: Floats, var: float) -> float:
    """Log density of a target (K,), eq. (6)."""
    log_density = -0.5 * target.shape[0] * np.log(2.0 * np.pi * var)
    for k in range(target.shape[0]):
        log_density -= 0.5 * (target[k] - mean[k]) ** 2 / var
    return log_density


@jit
def predict_rows(
    times_cov: Floats,
    times_mean: Floats,
    features: Floats,
    gamma: Floats,
    gap: Floats,
    prior_vars: Floats,
    keep_mean: bool,
    share: float,
    log_weights: Floats,
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats, Floats]:
    """Moments of rows after one transition each, eq. (7), and the weights after switching.

    Parameters
    ----------
    times_cov, times_mean : (J, b, m), (J, b, K)
        Features (b, m) times the filters' covariances and means.
    gamma : (J, 1)
    gap, prior_vars : (b,), (J,)

    Returns
    -------
    logit_mean, logit_var, gammas, noise_var, nis : (J, b, K), and four of (J, b)
        As in `state.BankStep`.
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
            prior = prior_vars[j] * norm
            var[j, i] = g * g * max(spread, 0.0) + (1.0 - g) * (1.0 + g) * prior
            for k in range(times_mean.shape[2]):
                mean[j, i, k] = times_mean[j, i, k] * (1.0 if keep_mean else g)
            gammas[j, i] = g
            for c in range(log_weights.shape[1]):
                weights[i, j, c] = (1.0 - switch) * np.exp(log_weights[j, c]) + switch / n_all
    noise_var, nis = np.full((n_filters, n), np.inf), np.full((n_filters, n), np.nan)
    return mean, var, gammas, noise_var, nis, weights, np.full(n, np.nan)


@jit
def squared_distance(target: Floats, mean: Floats) -> float:
    total = 0.0
    for k in range(target.shape[0]):
        total += (target[k] - mean[k]) ** 2
    return total


@jit
def student_log_density(target: Floats, mean: Floats, unit: float, spread: Floats) -> float:
    """Log density of a target (K,) of variance unit times a scale that spread (2,) estimates."""
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
    """Log of Gamma(x + more) / Gamma(x). For large x the difference of two lgamma has no digits."""
    if x < _MUCH_FREEDOM:
        return math.lgamma(x + more) - math.lgamma(x)
    return (x + more - 0.5) * math.log1p(more / x) - more + more * math.log(x)


@jit
def learn_spread(target: Floats, mean: Floats, unit: float, weight: float, spread: Floats) -> None:
    """Update the degrees of freedom and the sum of squares with a target, in place."""
    spread[0] = KEEP_SCALE * spread[0] + weight * target.shape[0]
    spread[1] = KEEP_SCALE * spread[1] + weight * squared_distance(target, mean) / unit


@jit
def probit_probabilities(
    means: Floats, variances: Floats, weights: Floats, calibrations: Floats
) -> tuple[Floats, int]:
    """Class probabilities (b, K) of a mixture with weights (b, J, C), and the first bad row.

    Each component uses the probit approximation. A row is bad if its moments are NaN or too large
    for the integral, or its weights are negative or sum to 0. -1 if no row is bad.
    """
    n_filters, n, n_outputs = means.shape
    out, one = np.zeros((n, n_outputs)), np.empty(n_outputs)
    for i in range(n):
        if not row_is_sound(means[:, i], variances[:, i], weights[i], calibrations):
            return out, i
        for j in range(n_filters):
            var = max(variances[j, i], 0.0)
            for c in range(calibrations.shape[1]):
                add_probit(means[j, i], var, calibrations[j, c], weights[i, j, c], one, out[i])
        normalise_row(out[i])
    return out, -1


@jit
def mixed_probabilities(
    means: Floats,
    variances: Floats,
    weights: Floats,
    calibrations: Floats,
    light: float,
    integral: Integral,
) -> tuple[Floats, int]:
    """As `probit_probabilities`, but with the integral where the weight is large.

    The lightest components, up to a total weight of ``light``, use the probit approximation.
    """
    n_filters, n, n_outputs = means.shape
    ell, slope, work = integral
    out, one = np.zeros((n, n_outputs)), np.empty((1, n_outputs))
    mean, std = np.empty((1, n_outputs)), np.empty(1)
    for i in range(n):
        if not row_is_sound(means[:, i], variances[:, i], weights[i], calibrations):
            return out, i
        least = least_exact(weights[i], light)
        for j in range(n_filters):
            var = max(variances[j, i], 0.0)
            for c in range(calibrations.shape[1]):
                weight, alpha = weights[i, j, c], calibrations[j, c]
                if weight < (1.0 - 1e-9) * least or n_outputs == 1:  # ties are not split
                    add_probit(means[j, i], var, alpha, weight, one[0], out[i])
                    continue
                top = means[j, i].max()
                for k in range(n_outputs):
                    mean[0, k] = alpha * (means[j, i, k] - top)
                    one[0, k] = 0.0
                std[0] = alpha * np.sqrt(var)
                probabilities(mean, std, ell, slope, work, one)
                share = weight / one.sum()
                for k in range(n_outputs):
                    out[i, k] += share * one[0, k]
        normalise_row(out[i])
    return out, -1


@jit
def normalise_row(out: Floats) -> None:
    """Divide probabilities (K,), in place, by their sum."""
    total = 0.0
    for k in range(out.shape[0]):
        total += out[k]
    for k in range(out.shape[0]):
        out[k] /= total


@jit
def least_exact(weights: Floats, light: float) -> float:
    """The smallest weight (J, C) behind the lightest ones, which hold a share of ``light``."""
    flat = np.sort(weights.ravel())
    held, most = 0.0, light * flat.sum()
    for a in range(flat.shape[0]):
        held += flat[a]
        if held > most:
            return flat[a]
    return np.inf


@jit
def row_is_sound(means: Floats, variances: Floats, weights: Floats, calibrations: Floats) -> bool:
    """Whether a row has probabilities: means (J, K), variances (J,), weights (J, C)."""
    whole, least = 0.0, np.inf
    for j in range(means.shape[0]):
        top, low = means[j, 0], means[j, 0]
        if not variances[j] < np.inf:
            return False
        for k in range(means.shape[1]):
            if not abs(means[j, k]) < LARGEST_LOGIT:
                return False
            top, low = max(top, means[j, k]), min(low, means[j, k])
        for c in range(calibrations.shape[1]):
            alpha = calibrations[j, c]
            spread = alpha * np.sqrt(max(variances[j], 0.0))
            if not (spread < LARGEST_LOGIT and alpha * (top - low) < LARGEST_LOGIT):
                return False
            whole += weights[j, c]
            least = min(least, weights[j, c])
    return bool(least >= 0.0 and whole > 0.0 and whole < np.inf)


@jit
def add_probit(
    mean: Floats, var: float, alpha: float, weight: float, one: Floats, out: Floats
) -> None:
    """Add the probabilities of one component, times its weight, to out (K,); one (K,) is used."""
    factor, top, total = probit_factor(alpha, alpha * alpha * var), mean[0], 0.0
    for k in range(mean.shape[0]):
        top = max(top, mean[k])
    for k in range(mean.shape[0]):
        one[k] = np.exp(factor * (mean[k] - top))
        total += one[k]
    for k in range(mean.shape[0]):
        out[k] += weight / total * one[k]


@jit
def log_sum_exp(x: Floats) -> float:
    top = x.max()
    return top + np.log(np.exp(x - top).sum())


@jit
def normalise(log_weights: Floats) -> None:
    """Shift the logarithms of weights (J, C), in place, so that the weights sum to 1.

    The largest is subtracted first. One shift by `log_sum_exp` would lose the logarithm of the
    sum: next to 1e14, from a residual of 1e7 standard deviations, float64 keeps two decimals.
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
def probit_factor(alpha: float, var: float) -> float:
    """Factor of the logit means in the probit approximation to eq. (13).

    var is that of the calibrated logits. The divisor is `predictive.probit_width`.
    """
    return alpha / np.sqrt(1.0 + np.pi / 8.0 * var)


@jit
def probit_log_prob(mean: Floats, var: float, alpha: float, label: int, active: Labels) -> float:
    """Log of the probit approximation to eq. (13): a softmax of the means times `probit_factor`."""
    factor = probit_factor(alpha, alpha * alpha * var)
    top = mean[label]
    for k in active:
        top = max(top, mean[k])
    total = 0.0
    for k in active:
        total += np.exp(factor * (mean[k] - top))
    return factor * (mean[label] - top) - np.log(total)


@jit
def watched_rows(weights: Floats, variances: Floats, order: Labels) -> tuple[Floats, Floats]:
    """Weights and variances of the filters (b, J) in another order (J,).

    From the weights (b, J, C) of a mixture and its variances (J, b).
    """
    n, n_filters, n_calibrations = weights.shape
    shares, variance = np.zeros((n, n_filters)), np.empty((n, n_filters))
    for i in range(n):
        for j in range(n_filters):
            for c in range(n_calibrations):
                shares[i, j] += weights[i, order[j], c]
            variance[i, j] = variances[order[j], i]
    return shares, variance
