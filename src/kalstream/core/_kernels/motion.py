"""Filters whose weights move with a velocity, compiled. Import it on first use, as `chunk`.

The equations are in `kalstream.core.motion`. Component a of the state of weight k has the index
a m + k. ``order`` is p, the number of components.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kalstream.core._kernels.chunk import (
    AlphaRule,
    Integral,
    label_slopes,
    learn_alpha,
    mean_square,
    solve_lower,
)
from kalstream.core._kernels.observing import ONEHOT, Observed, observe
from kalstream.core.jit import Floats, Labels, jit

# ages (r,), features (r, m), gains (r, p m), factor (r, r), innovations (r, K) and noise (r, p) of
# the rows since the base, of one filter; see `motion.Pending`. Of J filters all but the first two
# begin with (J,).
Past = tuple[Floats, Floats, Floats, Floats, Floats, Floats]

# As in `chunk`: a block ends before a row that has less than this part of its variance left.
_LOSSY = 1e-2
# exp(-tau) is 0 at this point, and no power of tau overflows.
_LARGEST_TAU = 1e4


@jit
def response(order: int, tau: float, out: Floats) -> None:
    """The first row of F(tau), into out (p,): how a weight follows from the state before."""
    tau = min(tau, _LARGEST_TAU)
    kept = np.exp(-tau)
    if order == 1:
        out[0] = kept
    elif order == 2:
        out[0], out[1] = kept * (1.0 + tau), kept * tau
    else:
        half = 0.5 * tau * tau
        out[0], out[1], out[2] = kept * (1.0 + tau + half), kept * tau * (1.0 + tau), kept * half


@jit
def transition(order: int, tau: float, out: Floats) -> None:
    """F(tau), into out (p, p)."""
    tau = min(tau, _LARGEST_TAU)
    kept = np.exp(-tau)
    response(order, tau, out[0])
    if order == 2:
        out[1, 0], out[1, 1] = -kept * tau, kept * (1.0 - tau)
    elif order == 3:
        half = 0.5 * tau * tau
        out[1, 0], out[1, 1] = -kept * half, kept * (1.0 + tau - 2.0 * half)
        out[1, 2] = kept * (tau - half)
        out[2, 0], out[2, 1] = kept * (half - tau), kept * (2.0 * half - 3.0 * tau)
        out[2, 2] = kept * (1.0 - 2.0 * tau + half)


@jit
def integral(power: int, tau: float) -> float:
    """The integral of s^power exp(-2 s) over s from 0 to tau, with all digits."""
    x = 2.0 * tau
    if x < 8.0:  # a sum of positive terms
        term = 1.0
        for _ in range(power + 1):
            term *= tau
        term /= power + 1.0
        total, n = term, power + 2.0
        while term > 1e-18 * total:
            term *= x / n
            total += term
            n += 1.0
        return np.exp(-x) * total
    whole, term, total = 0.5, 1.0, 1.0
    for k in range(1, power + 1):
        whole *= 0.5 * k
        term *= x / k
        total += term
    return whole * (1.0 - np.exp(-x) * total)


@jit
def process_noise(order: int, tau: float, out: Floats) -> None:
    """Q(tau) = P - F P F' for prior_var = 1, into out (p, p), with all digits at every tau.

    Component a + 1 of the response to the driving noise is the derivative of component a. So the
    entries beside the diagonal are half of a square, without an integral.
    """
    tau = min(tau, _LARGEST_TAU)
    kept = np.exp(-tau)
    if order == 1:
        out[0, 0] = 2.0 * integral(0, tau)
    elif order == 2:
        first = kept * tau
        i2 = integral(2, tau)
        out[0, 0] = 4.0 * i2
        out[0, 1] = out[1, 0] = 2.0 * first * first
        out[1, 1] = 4.0 * (integral(0, tau) - 2.0 * integral(1, tau) + i2)
    else:
        q = 16.0 / 3.0
        first, second = 0.5 * kept * tau * tau, kept * tau * (1.0 - 0.5 * tau)
        i0, i1, i2 = integral(0, tau), integral(1, tau), integral(2, tau)
        i3, i4 = integral(3, tau), integral(4, tau)
        out[0, 0] = 0.25 * q * i4
        out[0, 1] = out[1, 0] = 0.5 * q * first * first
        out[0, 2] = out[2, 0] = q * (0.5 * i2 - i3 + 0.25 * i4)
        out[1, 1] = q * (i2 - i3 + 0.25 * i4)
        out[1, 2] = out[2, 1] = 0.5 * q * second * second
        out[2, 2] = q * (i0 - 4.0 * i1 + 5.0 * i2 - 2.0 * i3 + 0.25 * i4)


@jit
def motion_products(features: Floats, cov: Floats, mean: Floats, order: int) -> Any:
    """`motion.MotionBank.products` of few float64 rows; both triangles of cov are read."""
    n_filters, size, n_outputs = mean.shape
    n, m = features.shape
    times_cov = np.empty((n_filters, n, order, size))
    times_mean = np.zeros((n_filters, n, order, n_outputs))
    for j in range(n_filters):
        for k in range(size):
            for b in range(order):
                for i in range(n):
                    total = 0.0
                    for other in range(m):
                        total += cov[j, k, b * m + other] * features[i, other]
                    times_cov[j, i, b, k] = total
        for i in range(n):
            for b in range(order):
                for k in range(m):
                    for column in range(n_outputs):
                        times_mean[j, i, b, column] += features[i, k] * mean[j, b * m + k, column]
    return times_cov, times_mean


@jit
def row_moments(
    row: tuple[Floats, Floats, Floats],
    age: tuple[float, float, float, float],
    past: Past,
    n_past: int,
    gain: Floats,
    cross: Floats,
    mean: Floats,
) -> tuple[float, float]:
    """Moments of one row: mean (K,) in place, variance before the past rows, and variance.

    row has its features (m,) and their products with the base, times_cov (p, p m) and times_mean
    (p, K). age has how old the base is, the gap before the row, the rate of the filter and its
    prior variance. The ages of past rows, the first n_past, are those before the gap. Writes the
    covariance of the base's state with the row, gain (p m,), and the row of the factor, cross (r,).
    """
    features, times_cov, times_mean = row
    now, gap, rate, prior_var = age
    ages, others, gains, factor, innovations, noise = past
    order, m = times_cov.shape[0], features.shape[0]
    f, ahead, own = np.empty(order), np.empty(order), np.empty((order, order))
    response(order, rate * now, f)
    process_noise(order, rate * now, own)
    gain[:] = 0.0
    mean[:] = 0.0
    for b in range(order):
        for k in range(gain.shape[0]):
            gain[k] += f[b] * times_cov[b, k]
        for k in range(mean.shape[0]):
            mean[k] += f[b] * times_mean[b, k]
    norm, base_var = 0.0, 0.0
    for k in range(m):
        norm += features[k] * features[k]
    for a in range(order):
        total = 0.0
        for k in range(m):
            total += features[k] * gain[a * m + k]
        base_var += f[a] * total
    base_var += prior_var * own[0, 0] * norm
    var = base_var
    for i in range(n_past):
        covariance = 0.0
        for a in range(order):
            total = 0.0
            for k in range(m):
                total += features[k] * gains[i, a * m + k]
            covariance += f[a] * total
        if rate > 0.0:
            total = 0.0
            for k in range(m):
                total += features[k] * others[i, k]
            response(order, rate * (ages[i] + gap), ahead)
            shared = 0.0
            for a in range(order):
                shared += ahead[a] * noise[i, a]
            covariance += prior_var * shared * total
        for before in range(i):
            covariance -= factor[i, before] * cross[before]
        cross[i] = covariance / factor[i, i]
        var -= cross[i] * cross[i]
        for k in range(mean.shape[0]):
            mean[k] += cross[i] * innovations[i, k]
    return base_var, var


@jit
def rounding_of(
    features: Floats, spread: Floats, now: float, rate: float, prior_var: float, epsilon: float
) -> float:
    """Rounding error of a variance, as `guard.rounding_error`; spread (p, m) are deviations."""
    order, m = spread.shape
    f, own = np.empty(order), np.empty((order, order))
    response(order, rate * now, f)
    process_noise(order, rate * now, own)
    total = 0.0
    for k in range(m):
        reach = 0.0
        for a in range(order):
            reach += abs(f[a]) * spread[a, k]
        total += features[k] * features[k] * (reach * reach + prior_var * own[0, 0])
    return epsilon * total


@jit
def is_sound(
    var: float, noise_var: float, rounding: float, folds: float, limits: tuple[float, float, float]
) -> bool:
    """Whether `guard.check_innovations` would accept a row; NaN is not accepted."""
    at_once, leaked, harmless = limits
    leak = rounding * np.sqrt(folds)
    if noise_var == np.inf:
        return var >= -leak and var < np.inf
    sound = var > -at_once * noise_var and rounding <= at_once * noise_var
    return sound and (leak <= leaked * var or leak <= harmless * noise_var)


# over 80 lines: one pass, in which every row changes what the next one reads.
@jit
def scan_motion(
    times_cov: Floats,
    times_mean: Floats,
    features: Floats,
    observed: Observed,
    gap: Floats,
    elapsed: float,
    rates: Floats,
    prior_vars: Floats,
    likelihoods: Labels,
    cov: Floats,
    scales: Floats,
    epsilon: float,
    limits: tuple[float, float, float],
    n_past: int,
    pending: Past,
) -> tuple[Any, ...]:
    """Predict and learn n rows under J filters; the rows that are learned are appended.

    times_cov (J, n, p, p m), times_mean (J, n, p, K), cov (J, p m, p m) and scales (J, 2) are of
    the base, which is ``elapsed`` old. ``pending`` has ``n_past`` rows of the past; the rest is
    overwritten.

    Returns
    -------
    done : int
        Rows before the first that would lose digits. The rest of the results is of these.
    unsound : int
        A filter whose innovations need `guard.check_innovations`, or -1.
    n_past : int
    elapsed : float
    logit_mean, logit_var, nis, noise_vars, rounding : (J, n, K), and (J, n) the others
    """
    ages, others, gains, factor, innovations, noise = pending
    noise_var = observed[2]
    n_filters, n, order, size = times_cov.shape
    n_outputs = times_mean.shape[3]
    mean, var = np.empty((n_filters, n, n_outputs)), np.empty((n_filters, n))
    nis, rounding = np.full((n_filters, n), np.nan), np.empty((n_filters, n))
    noise_vars = np.full((n_filters, n), np.inf)
    gain, cross, residual = np.empty(size), np.empty(ages.shape[0]), np.empty(n_outputs)
    aged, own = np.empty(ages.shape[0]), np.empty((order, order))
    spread = np.empty((order, size // order))
    done, unsound, learned = n, -1, n_past
    for j in range(n_filters):
        past = aged, others, gains[j], factor[j], innovations[j], noise[j]
        for a in range(order):
            for k in range(size // order):
                variance = cov[j, a * (size // order) + k, a * (size // order) + k]
                spread[a, k] = np.sqrt(max(variance, 0.0))
        now, learned = elapsed, n_past
        aged[:n_past] = ages[:n_past]
        for i in range(done):
            now += gap[i]
            here = features[i], times_cov[j, i], times_mean[j, i]
            age = now, gap[i], rates[j], prior_vars[j]
            base_var, var[j, i] = row_moments(here, age, past, learned, gain, cross, mean[j, i])
            if learned > 0 and var[j, i] < _LOSSY * base_var:
                done = i
                break
            for row in range(learned):
                aged[row] += gap[i]
            if noise_var[i] < np.inf:
                noise_vars[j, i], nis[j, i] = observe(
                    i, mean[j, i], var[j, i], observed, likelihoods[j], residual
                )
                others[learned] = features[i]
                sd = np.sqrt(var[j, i] + noise_vars[j, i])
                append_row(learned, sd, gain, cross, residual, past)
                process_noise(order, rates[j] * now, own)
                noise[j, learned] = own[:, 0]
                aged[learned] = 0.0
                if likelihoods[j] == ONEHOT:
                    nis[j, i] = mean_square(innovations[j, learned])
                learned += 1
            rounding[j, i] = rounding_of(features[i], spread, now, rates[j], prior_vars[j], epsilon)
            if not is_sound(var[j, i], noise_vars[j, i], rounding[j, i], scales[j, 1], limits):
                unsound = j
    learned = n_past
    for i in range(done):
        for row in range(learned):
            ages[row] += gap[i]
        elapsed += gap[i]
        if noise_var[i] < np.inf:
            ages[learned] = 0.0
            learned += 1
    return done, unsound, learned, elapsed, mean, var, nis, noise_vars, rounding


@jit
def learn_alphas(
    mean: Floats,
    var: Floats,
    observed: Observed,
    log_alpha: float,
    log_alpha_var: float,
    alpha_rule: AlphaRule,
    integral: Integral,
) -> tuple[Floats, float, float]:
    """Alpha before each row (b,), and log_alpha and its variance after the last.

    As in `chunk.scan_learned`: moments (b, K) and (b,) do not depend on alpha, so it can be learned
    after them.
    """
    labels, _, noise_var, weight, classes, n_seen = observed
    n, n_outputs = mean.shape
    alphas, scaled = np.empty(n), np.empty(n_outputs)
    for i in range(n):
        alphas[i] = np.exp(log_alpha)
        if noise_var[i] < np.inf and n_seen[i + 1] == n_seen[i] and n_seen[i] > 1:
            _, by_log_alpha = label_slopes(
                mean[i],
                alphas[i],
                max(var[i], 0.0),
                0.0,
                labels[i],
                False,
                False,
                True,
                classes[: n_seen[i]],
                scaled,
                integral,
            )
            log_alpha, log_alpha_var = learn_alpha(
                log_alpha, log_alpha_var, by_log_alpha, weight[i], alpha_rule
            )
    return alphas, log_alpha, log_alpha_var


@jit
def append_row(
    i: int, innovation_sd: float, gain: Floats, cross: Floats, residual: Floats, past: Past
) -> None:
    """Write row i of the gains, factor and innovations of the past."""
    _, _, gains, factor, innovations, _ = past
    gains[i] = gain
    for before in range(i):
        factor[i, before] = cross[before]
    factor[i, i] = innovation_sd
    for k in range(residual.shape[0]):
        innovations[i, k] = residual[k] / innovation_sd


@jit
def predict_motion_rows(
    times_cov: Floats,
    times_mean: Floats,
    features: Floats,
    gap: Floats,
    elapsed: float,
    rates: Floats,
    prior_vars: Floats,
    n_past: int,
    pending: Past,
) -> tuple[Floats, Floats]:
    """Means (J, n, K) and variances (J, n) of rows, each predicted as if it were the next one.

    The arguments are those of `scan_motion`; gap (n,) is the time since the last row.
    """
    ages, others, gains, factor, innovations, noise = pending
    n_filters, n, _, size = times_cov.shape
    mean, var = np.empty((n_filters, n, times_mean.shape[3])), np.empty((n_filters, n))
    gain, cross = np.empty(size), np.empty(ages.shape[0])
    for j in range(n_filters):
        past = ages, others, gains[j], factor[j], innovations[j], noise[j]
        for i in range(n):
            here = features[i], times_cov[j, i], times_mean[j, i]
            age = elapsed + gap[i], gap[i], rates[j], prior_vars[j]
            _, var[j, i] = row_moments(here, age, past, n_past, gain, cross, mean[j, i])
    return mean, var


@jit
def move_cov(cov: Floats, F: Floats, Q: Floats, out: Floats) -> None:
    """F cov F' + Q for every pair of features, into out (p m, p m), which may be cov itself.

    F and Q are (p, p). Both triangles of cov are read, the upper one of out is written.
    """
    order, size = F.shape[0], cov.shape[0]
    m = size // order
    half, full = np.empty((order, size)), np.empty(m)
    for k in range(m):
        for a in range(order):
            combined(F[a], cov[k::m], half[a])
        for a in range(order):
            for b in range(a, order):
                combined(F[b], half[a].reshape(order, m), full)
                full[k] += Q[a, b]
                row = out[a * m + k, b * m : (b + 1) * m]
                for i in range(k if a == b else 0, m):
                    row[i] = full[i]


@jit
def combined(weights: Floats, rows: Floats, out: Floats) -> None:
    """The sum of rows (p, n) with weights (p,), into out (n,)."""
    if weights.shape[0] == 1:
        for i in range(out.shape[0]):
            out[i] = weights[0] * rows[0, i]
    elif weights.shape[0] == 2:
        for i in range(out.shape[0]):
            out[i] = weights[0] * rows[0, i] + weights[1] * rows[1, i]
    else:
        for i in range(out.shape[0]):
            out[i] = weights[0] * rows[0, i] + weights[1] * rows[1, i] + weights[2] * rows[2, i]


@jit
def move_mean(mean: Floats, F: Floats, out: Floats) -> None:
    """F mean for every feature, into out (p m, K), which may be mean itself."""
    order = F.shape[0]
    m, n_outputs = mean.shape[0] // order, mean.shape[1]
    here = np.empty(order)
    for k in range(m):
        for column in range(n_outputs):
            for a in range(order):
                here[a] = mean[a * m + k, column]
            for a in range(order):
                total = 0.0
                for c in range(order):
                    total += F[a, c] * here[c]
                out[a * m + k, column] = total


@jit
def state_covariances(
    F: Floats,
    rate: float,
    prior_var: float,
    n_past: int,
    ages: Floats,
    others: Floats,
    gains: Floats,
    noise: Floats,
    n_components: int,
    out: Floats,
) -> None:
    """Covariances of the state now with each past row, into out (r, n_components m)."""
    order, m = F.shape[0], others.shape[1]
    ahead = np.empty((order, order))
    for i in range(n_past):
        transition(order, rate * ages[i], ahead)
        for a in range(n_components):
            shared = 0.0
            for c in range(order):
                shared += ahead[a, c] * noise[i, c]
            shared *= prior_var
            for k in range(m):
                total = shared * others[i, k]
                for c in range(order):
                    total += F[a, c] * gains[i, c * m + k]
                out[i, a * m + k] = total


@jit
def fold_small(
    mean: Floats,
    cov: Floats,
    elapsed: float,
    rates: Floats,
    prior_vars: Floats,
    ceilings: Floats,
    n_past: int,
    pending: Past,
    out_mean: Floats,
    out_cov: Floats,
) -> None:
    """`motion.MotionBank.folded` of J small filters: writes out_mean and out_cov, both triangles.

    ceilings (J, p m) are the largest variances. The other arguments are those of `scan_motion`.
    """
    ages, others, gains, factor, innovations, noise = pending
    n_filters, size, n_outputs = mean.shape
    order = noise.shape[2]
    F, Q = np.empty((order, order)), np.empty((order, order))
    rows = np.empty((n_past, size))
    for j in range(n_filters):
        tau = rates[j] * elapsed
        transition(order, tau, F)
        process_noise(order, tau, Q)
        move_mean(mean[j], F, out_mean[j])
        move_cov(cov[j], F, prior_vars[j] * Q, out_cov[j])
        past = ages, others, gains[j], noise[j]
        state_covariances(F, rates[j], prior_vars[j], n_past, *past, order, rows)
        solve_lower(factor[j, :n_past, :n_past], rows)
        for i in range(n_past):
            for k in range(size):
                own = rows[i, k]
                for other in range(k, size):
                    out_cov[j, k, other] -= own * rows[i, other]
                for column in range(n_outputs):
                    out_mean[j, k, column] += own * innovations[j, i, column]
        for k in range(size):
            if tau > 0.0:
                out_cov[j, k, k] = min(out_cov[j, k, k], ceilings[j, k])
            for other in range(k + 1, size):
                out_cov[j, other, k] = out_cov[j, k, other]
