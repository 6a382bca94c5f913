"""The recursion inside a chunk, compiled. Import it on first use: `import numba` takes 0.5 s.

The loops run row by row in the b-by-b space of a chunk (core/README.md, "The chunk"). Let C[j, l]
be the covariance phi_j' A_j^- phi_l at the time of row j, and r_j the innovation variance of row
j. A scan keeps cross[l, j] = C[j, l] / sqrt(r_j) and reach[j] = gamma_{j+1} ... gamma_i. So it
never divides by a product of coefficients, which may be 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kalstream.core._kernels.observing import (
    ONEHOT,
    SOFTMAX,
    Observed,
    linearise_softmax,
    observe,
    write_residual,
)
from kalstream.core.jit import Flags, Floats, Labels, jit
from kalstream.core.softmax_integral import LARGEST_LOGIT, label_terms

# gram_cov (b, b), gram_eye (b, b) and base_mean (b, K) of a chunk; see `chunk.Grams`.
Grams = tuple[Floats, Floats, Floats]
# cross (b, b), reach (b,), innovations (b, K) and system (b, b): the rows learned so far.
Past = tuple[Floats, Floats, Floats, Floats]
# ell, slope and workspace of `softmax_integral`.
Integral = tuple[Floats, Floats, Floats]
# log init, prior variance, gamma and bound of `calibration.Calibration`.
AlphaRule = tuple[float, float, float, float]

# A block ends before a row that has less than this part of its variance left. The rest is a
# difference and would have lost as many digits (core/README.md, "Rounding").
_LOSSY = 1e-2


@jit
def apply_pending(
    times_cov: Floats,
    times_mean: Floats,
    features: Floats,
    rows: Floats,
    coefficients: Floats,
    scale: float,
    shift: float,
    mean_scale: float,
) -> bool:
    """Correct products of features with B and N, in place, for pending rows and scales.

    features (n, m), rows (r, m) and coefficients (r, K) are read; times_cov (n, m) and times_mean
    (n, K) change. See `state.Posterior` for the two equations. Returns whether digits were lost.
    """
    lossy = False
    for i in range(features.shape[0]):
        before, taken, norm = 0.0, 0.0, 0.0
        for k in range(features.shape[1]):
            before += features[i, k] * times_cov[i, k]
            norm += features[i, k] * features[i, k]
        for j in range(rows.shape[0]):
            overlap = 0.0
            for k in range(features.shape[1]):
                overlap += features[i, k] * rows[j, k]
            taken += overlap * overlap
            for k in range(features.shape[1]):
                times_cov[i, k] -= overlap * rows[j, k]
            for k in range(times_mean.shape[1]):
                times_mean[i, k] += overlap * coefficients[j, k]
        left = scale * (before - taken) + shift * norm
        lossy = lossy or left < _LOSSY * scale * before
        for k in range(features.shape[1]):
            times_cov[i, k] = scale * times_cov[i, k] + shift * features[i, k]
        for k in range(times_mean.shape[1]):
            times_mean[i, k] *= mean_scale
    return lossy


@jit
def rows_are_sound(
    logit_var: Floats,
    noise_var: Floats,
    features: Floats,
    variances: Floats,
    epsilon: float,
    folds: float,
    limits: tuple[float, float, float],
) -> bool:
    """Whether `guard.check_innovations` would accept every row; NaN is not accepted.

    logit_var and noise_var are (b,), features (b, m), variances (m,); limits is
    `guard.ROUNDING_LIMITS`.
    """
    at_once, leaked, harmless = limits
    for i in range(logit_var.shape[0]):
        rounding = 0.0
        for k in range(variances.shape[0]):
            rounding += features[i, k] * features[i, k] * variances[k]
        rounding *= epsilon
        leak = rounding * np.sqrt(folds)
        if noise_var[i] == np.inf:
            sound = logit_var[i] >= -leak and logit_var[i] < np.inf
        else:
            sound = logit_var[i] > -at_once * noise_var[i] and rounding <= at_once * noise_var[i]
            sound = sound and (leak <= leaked * logit_var[i] or leak <= harmless * noise_var[i])
        if not sound:
            return False
    return True


@jit
def target_covariance(times_cov: Floats, features: Floats, kept: Floats, spread: Floats) -> None:
    """Turn features times covariance (n, m), in place, into cov(weights, target) of each row.

    kept and spread are (n,).
    """
    for i in range(times_cov.shape[0]):
        scale, shift = kept[i] * kept[i], spread[i]
        for k in range(times_cov.shape[1]):
            times_cov[i, k] = scale * times_cov[i, k] + shift * features[i, k]


@jit
def solve_lower(system: Floats, right: Floats) -> None:
    """Solve the lower triangular system (n, n) for right (n, m), in place."""
    for i in range(right.shape[0]):
        for j in range(i):
            for k in range(right.shape[1]):
                right[i, k] -= system[i, j] * right[j, k]
        for k in range(right.shape[1]):
            right[i, k] /= system[i, i]


@jit
def filtered_row(
    i: int,
    grams: Grams,
    past: Past,
    kept: float,
    lost: float,
    prior_var: float,
    keep_mean: bool,
    mean: Floats,
) -> tuple[float, bool]:
    """Moments of row i under the posterior after row i - 1: mean (K,) in place, and variance.

    kept and lost are those of row i - 1. Also returns whether too little of the variance is left
    to trust its digits.
    """
    gram_cov, gram_eye, base_mean = grams
    cross, reach, innovations, _ = past
    n_outputs = mean.shape[0]
    kept2, spread = kept * kept, prior_var * lost
    base_var = kept2 * gram_cov[i, i] + spread * gram_eye[i, i]
    mean_kept = 1.0 if keep_mean else kept
    for k in range(n_outputs):
        mean[k] = mean_kept * base_mean[i, k]
    var = base_var
    for j in range(i):
        forgotten = reach[j] * cross[i, j]
        var -= forgotten * forgotten
        share = cross[i, j] if keep_mean else forgotten
        if share != 0.0:
            for k in range(n_outputs):
                mean[k] += share * innovations[j, k]
    return var, var < _LOSSY * base_var and i > 0


@jit
def forget_rows(i: int, g: float, kept: float, lost: float, reach: Floats) -> tuple[float, float]:
    """Apply the coefficient g of row i to the rows before it; returns the new kept and lost."""
    for j in range(i):
        reach[j] *= g
    return kept * g, g * g * lost + (1.0 - g) * (1.0 + g)


@jit
def learn_row(
    i: int,
    grams: Grams,
    past: Past,
    kept2: float,
    spread: float,
    innovation_sd: float,
    residual: Floats,
) -> None:
    """Learn row i: its innovation, its row of the system, and its covariance with later rows.

    kept2 and spread are the scale of cov and the shift, both up to row i.
    """
    # eq. (8): the row's innovation, and its part of the gains
    gram_cov, gram_eye, _ = grams
    cross, reach, innovations, system = past
    for j in range(i):
        system[i, j] = reach[j] * reach[j] * cross[i, j]
    system[i, i] = innovation_sd
    for k in range(residual.shape[0]):
        innovations[i, k] = residual[k] / innovation_sd
    for later in range(i + 1, cross.shape[0]):
        covariance = kept2 * gram_cov[i, later] + spread * gram_eye[i, later]
        for j in range(i):
            covariance -= system[i, j] * cross[later, j]
        cross[later, i] = covariance / innovation_sd
    reach[i] = 1.0


@jit
def predict_aside(
    place: Labels,
    gamma: Floats,
    kept: Floats,
    lost: Floats,
    learned: Labels,
    times_mean: Floats,
    base: Floats,
    eye: Floats,
    cross: Floats,
    innovations: Floats,
    prior_var: float,
    mean: Floats,
    var: Floats,
) -> None:
    """Moments of rows between those of a block, into mean (a, K) and var (a,).

    Parameters
    ----------
    place : (a,)
        How many rows of the block come before each; not decreasing.
    gamma, kept, lost : (b,)
        Of the scan.
    learned : (n,)
        Rows of the block that are learned.
    times_mean, base, eye : (a, K), (a,), (a,)
        Features times mean, and their squares under the covariance and under the identity.
    cross, innovations : (n, a), (n, K)
        Gains times features, and innovations, of the rows that are learned.
    """
    reach, n_past, row = np.zeros(learned.shape[0]), 0, 0
    for a in range(place.shape[0]):
        while row < place[a]:
            for j in range(n_past):
                reach[j] *= gamma[row]
            if n_past < learned.shape[0] and learned[n_past] == row:
                reach[n_past] = 1.0
                n_past += 1
            row += 1
        kept_now = kept[row - 1] if row > 0 else 1.0
        lost_now = lost[row - 1] if row > 0 else 0.0
        var[a] = kept_now * kept_now * base[a] + prior_var * lost_now * eye[a]
        for k in range(mean.shape[1]):
            mean[a, k] = kept_now * times_mean[a, k]
        for j in range(n_past):
            share = reach[j] * cross[j, a]
            var[a] -= share * share
            for k in range(mean.shape[1]):
                mean[a, k] += share * innovations[j, k]


@jit
def mean_square(innovation: Floats) -> float:
    """Normalised innovation squared of a row, averaged over outputs."""
    total = 0.0
    for k in range(innovation.shape[0]):
        total += innovation[k] * innovation[k]
    return total / innovation.shape[0]


@jit
def scan_fixed(
    gram_cov: Floats,
    gram_eye: Floats,
    base_mean: Floats,
    labels: Labels,
    dense: Floats,
    noise_var: Floats,
    weight: Floats,
    classes: Labels,
    n_seen: Labels,
    gamma: Floats,
    prior_var: float,
    keep_mean: bool,
    likelihood: int,
) -> tuple[Any, ...]:
    """Scan with known coefficients gamma (b,); returns the fields of `chunk.Scan`.

    Through a softmax the noise variance of a label follows from the row's own moments.
    """
    n, n_outputs = base_mean.shape
    noises, nis = noise_var.copy(), np.full(n, np.nan)
    logit_mean, logit_var = np.empty((n, n_outputs)), np.empty(n)
    cross, system = np.zeros((n, n)), np.zeros((n, n))
    innovations, reach = np.zeros((n, n_outputs)), np.zeros(n)
    kept, lost = np.empty(n), np.empty(n)
    residual = np.empty(n_outputs)
    grams, past = (gram_cov, gram_eye, base_mean), (cross, reach, innovations, system)
    observed = labels, dense, noise_var, weight, classes, n_seen
    kept_now, lost_now, done = 1.0, 0.0, n
    for i in range(n):
        mean, g = logit_mean[i], gamma[i]
        # The posterior after row i - 1, then one transition.
        var, lossy = filtered_row(i, grams, past, kept_now, lost_now, prior_var, keep_mean, mean)
        if lossy:
            done = i
            break
        var = g * g * var + (1.0 - g) * (1.0 + g) * prior_var * gram_eye[i, i]
        logit_var[i] = var
        if not keep_mean:
            for k in range(n_outputs):
                mean[k] *= g
        kept_now, lost_now = forget_rows(i, g, kept_now, lost_now, reach)
        kept[i], lost[i] = kept_now, lost_now
        if noise_var[i] < np.inf:
            noises[i], nis[i] = observe(i, mean, var, observed, likelihood, residual)
            sd = np.sqrt(var + noises[i])
            kept2, spread = kept_now * kept_now, prior_var * lost_now
            learn_row(i, grams, past, kept2, spread, sd, residual)
            if likelihood == ONEHOT:
                nis[i] = mean_square(innovations[i])
    return done, gamma, logit_mean, logit_var, noises, system, innovations, kept, lost, reach, nis


@jit
def learn_alpha(
    log_mean: float, log_var: float, gradient: float, weight: float, rule: AlphaRule
) -> tuple[float, float]:
    """`calibration.Calibration.learn`; rule is (log init, prior variance, gamma, bound)."""
    centre, prior_var, gamma, bound = rule
    log_mean = centre + gamma * (log_mean - centre)
    log_var = prior_var + gamma * gamma * (log_var - prior_var)
    log_var = log_var / (1.0 + log_var * weight * gradient * gradient)
    log_mean += log_var * weight * gradient
    return min(max(log_mean, centre - bound), centre + bound), log_var


@jit
def coefficient(gamma: float, delta: float, rate: float, gap: float) -> float:
    """Forgetting coefficient over a time gap: by delta if it is learned, else by gamma."""
    return np.exp(-0.5 * delta * gap) if rate > 0.0 else gamma**gap


@jit
def gaussian_slope(
    residual: Floats, mean: Floats, var: float, noise_var: float, keep_mean: bool, var_slope: float
) -> float:
    """Derivative of the Gaussian log predictive by delta, eq. (15), summed over outputs."""
    innovation_var = var + noise_var
    squares, by_mean = 0.0, 0.0
    for k in range(residual.shape[0]):
        squares += residual[k] * residual[k]
        by_mean -= 0.5 * residual[k] * mean[k] / innovation_var
    by_var = 0.5 * (squares / innovation_var - residual.shape[0]) / innovation_var
    return by_var * var_slope + (0.0 if keep_mean else by_mean)


@jit
def moved_delta(delta: float, move: float) -> float:
    """Delta plus a step. A NaN step (an infinite rate times a gradient of 0) is ignored."""
    return delta if np.isnan(move) else delta + move


@jit
def calibrated_terms(
    mean: Floats,
    var: float,
    alpha: float,
    label: int,
    active: Labels,
    scaled: Floats,
    integral: Integral,
) -> tuple[float, float, float]:
    """Log predictive of a label, eq. (13), its slope along the logits, and by their variance.

    mean (K,) and var are those of the raw logits; scaled (K,) is overwritten.
    """
    for k in active:
        scaled[k] = min(max(alpha * mean[k], -LARGEST_LOGIT), LARGEST_LOGIT)
    std = min(alpha * np.sqrt(var), LARGEST_LOGIT)
    return label_terms(scaled, std, label, active, *integral)


@jit
def label_slopes(
    mean: Floats,
    alpha: float,
    var: float,
    var_slope: float,
    label: int,
    keep_mean: bool,
    with_delta: bool,
    calibrated: bool,
    active: Labels,
    scaled: Floats,
    integral: Integral,
) -> tuple[float, float]:
    """Derivatives of a label's log predictive, eq. (13), by delta, eq. (9), and by log alpha.

    mean (K,) and var are those of the raw logits, var_slope is the derivative of var by delta. The
    first result is 0 unless ``with_delta``.
    """
    _, along_mean, by_var = calibrated_terms(mean, var, alpha, label, active, scaled, integral)
    by_log_alpha = along_mean + 2.0 * alpha * alpha * var * by_var
    if not with_delta:
        return 0.0, by_log_alpha
    scale2 = alpha * alpha
    if not calibrated and alpha != 1.0:
        _, along_mean, by_var = calibrated_terms(mean, var, 1.0, label, active, scaled, integral)
        scale2 = 1.0
    by_delta = scale2 * by_var * var_slope
    if not keep_mean:
        by_delta -= 0.5 * along_mean
    return by_delta, by_log_alpha


# over 80 lines: one pass, in which every row changes what the next one reads.
@jit
def scan_learned(
    grams: Grams,
    observed: Observed,
    gap: Floats,
    prior_var: float,
    keep_mean: bool,
    likelihood: int,
    gamma: float,
    delta: float,
    rate: float,
    largest_delta: float,
    log_alpha: float,
    log_alpha_var: float,
    alpha_rule: AlphaRule,
    calibrated: bool,
    integral: Integral,
) -> tuple[Any, ...]:
    """Scan that learns gamma, and alpha, from each row's own prediction and target.

    The order within a row is that of Algorithm 1 of the paper: predict with the old delta, move
    delta, then forget and learn with the new delta. With rate 0 delta is not used, and need not
    be finite: gamma is the coefficient. ``classes`` and ``n_seen`` are those of `arrivals`: only
    classes that have come enter the softmax.

    Returns the fields of `chunk.Scan`, alphas (b,), delta, log_alpha, log_alpha_var.
    """
    _, gram_eye, base_mean = grams
    labels, dense, noise_var, weight, classes, n_seen = observed
    n, n_outputs = base_mean.shape
    noises, nis = noise_var.copy(), np.full(n, np.nan)
    logit_mean, logit_var = np.empty((n, n_outputs)), np.empty(n)
    gammas, alphas = np.empty(n), np.empty(n)
    cross, system = np.zeros((n, n)), np.zeros((n, n))
    innovations, reach = np.zeros((n, n_outputs)), np.zeros(n)
    kept, lost = np.empty(n), np.empty(n)
    residual, mean, scaled = np.empty(n_outputs), np.empty(n_outputs), np.empty(n_outputs)
    past = cross, reach, innovations, system
    kept_now, lost_now, done = 1.0, 0.0, n
    for i in range(n):
        # The posterior after row i - 1, then one transition with the old delta.
        var, lossy = filtered_row(i, grams, past, kept_now, lost_now, prior_var, keep_mean, mean)
        if lossy:
            done = i
            break
        g = coefficient(gamma, delta, rate, gap[i])
        prior_here = prior_var * gram_eye[i, i]
        mean_g = 1.0 if keep_mean else g
        for k in range(n_outputs):
            logit_mean[i, k] = mean_g * mean[k]
        logit_var[i] = g * g * var + (1.0 - g) * (1.0 + g) * prior_here
        alphas[i] = np.exp(log_alpha)
        if noise_var[i] < np.inf:
            predicted, predicted_var = logit_mean[i], max(logit_var[i], 0.0)
            var_slope, by_delta = prior_here - predicted_var, 0.0
            step_size = rate * weight[i] * gap[i]
            if labels.shape[0] == 0:
                write_residual(i, labels, dense, predicted, residual)
                noise = noise_var[i] * weight[i]
                by_delta = gaussian_slope(
                    residual, predicted, predicted_var, noise, keep_mean, var_slope
                )
            elif n_seen[i + 1] == n_seen[i] and n_seen[i] > 1:
                by_delta, by_log_alpha = label_slopes(
                    predicted,
                    alphas[i],
                    predicted_var,
                    var_slope,
                    labels[i],
                    keep_mean,
                    rate > 0.0 and gap[i] > 0.0,
                    calibrated,
                    classes[: n_seen[i]],
                    scaled,
                    integral,
                )
                if alpha_rule[1] > 0.0:
                    log_alpha, log_alpha_var = learn_alpha(
                        log_alpha, log_alpha_var, by_log_alpha, weight[i], alpha_rule
                    )
            if rate > 0.0:
                delta = moved_delta(delta, step_size * by_delta)
                delta = min(max(delta, 0.0), largest_delta)
        # Forget and learn with the new delta.
        g = coefficient(gamma, delta, rate, gap[i])
        gammas[i] = g
        mean_g = 1.0 if keep_mean else g
        kept_now, lost_now = forget_rows(i, g, kept_now, lost_now, reach)
        kept[i], lost[i] = kept_now, lost_now
        if noise_var[i] < np.inf:
            for k in range(n_outputs):
                mean[k] *= mean_g
            var = g * g * var + (1.0 - g) * (1.0 + g) * prior_here
            noises[i], nis[i] = observe(i, mean, var, observed, likelihood, residual)
            sd = np.sqrt(var + noises[i])
            kept2, spread = kept_now * kept_now, prior_var * lost_now
            learn_row(i, grams, past, kept2, spread, sd, residual)
            if likelihood == ONEHOT:
                nis[i] = mean_square(innovations[i])
    moments = done, gammas, logit_mean, logit_var, noises
    rest = system, innovations, kept, lost, reach, nis
    return moments + rest, alphas, delta, log_alpha, log_alpha_var


@jit
def scan_joint(
    factor: Floats, mean: Floats, labels: Labels, seen: Flags, least_var: float
) -> tuple[Floats, Floats]:
    """Observe labels through the softmax, given the joint moments of the rows of a chunk.

    factor (b, b) is the joint covariance of the outputs and becomes its Cholesky factor, noise
    included. mean (b, K) becomes that of each row given the labels before it. seen (b, K) are the
    classes that came before each row. Returns innovations (b, K) and the variances (b,). A variance
    below ``least_var`` times the noise variance gives NaN from there on.
    """
    n, n_outputs = mean.shape
    innovations, variances, residual = np.zeros((n, n_outputs)), np.empty(n), np.empty(n_outputs)
    for i in range(n):
        classes = np.flatnonzero(seen[i] | (np.arange(n_outputs) == labels[i]))
        var = variances[i] = factor[i, i]
        noise_var, _ = linearise_softmax(mean[i], var, labels[i], classes, 1.0, SOFTMAX, residual)
        sd = np.sqrt(var + noise_var) if var >= least_var * noise_var else np.nan
        innovations[i] = residual / sd
        factor[i, i], factor[i, i + 1 :] = sd, 0.0
        for later in range(i + 1, n):
            share = factor[later, i] / sd
            factor[later, i] = share
            for j in range(i + 1, later + 1):
                factor[later, j] -= share * factor[j, i]
            for k in classes:
                mean[later, k] += share * innovations[i, k]
    return innovations, variances
