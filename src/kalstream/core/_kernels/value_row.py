"""One row under the mixture and the watch of a regression, compiled; see `value_row`.

Import it on first use, as `chunk`.
"""

from __future__ import annotations

import numpy as np

from kalstream.core._kernels.alarm import watch_rows
from kalstream.core._kernels.bank import forget, store_row
from kalstream.core._kernels.chunk import mean_square, rows_are_sound
from kalstream.core._kernels.mixture import (
    LEAST_LOG,
    gaussian_log_density,
    learn_spread,
    learn_weights,
    student_log_density,
    switch_weights,
    weigh_filters,
)
from kalstream.core.alarm import ALARMS, BEGAN
from kalstream.core.jit import Floats, Labels, jit
from kalstream.core.state import SMALLEST_SCALE

# Covariances (J, m, m), pending rows (J, r, m) and coefficients (J, r, K).
Arrays = tuple[Floats, Floats, Floats]
# gammas (J, 1), prior variances (J,), prior scales (J,), half-lives (J,), shortest first, and the
# place of each among the filters.
Filters = tuple[Floats, Floats, Floats, Floats, Labels]
# What a row changes, in place: scales (J, 5), log-weights (J, C), spread (J, 2), and usual, levels,
# gains, odds and numbers of the watch.
Changed = tuple[Floats, Floats, Floats, Floats, Floats, Floats, Floats, Floats]


@jit
def learn_value(
    phi: Floats,
    target: Floats,
    came: int,
    products: tuple[Floats, Floats],
    arrays: Arrays,
    n_rows: int,
    filters: Filters,
    changed: Changed,
    noise_var: float,
    switch: float,
    learn_scale: bool,
    farthest: float,
    epsilon: float,
    limits: tuple[float, float, float],
) -> tuple[Floats, Floats, Floats, Floats, Floats, bool]:
    """Predict a row (1, m), then learn its target (K,); what a chunk of one row would give.

    Parameters
    ----------
    came : int
        Number of the row.
    products : (J, 1, m), (J, 1, K)
        Of `bank_products`.
    n_rows : int
        How many rows are pending; another one is written behind them.
    farthest : float
        A squared deviation beyond this many variances in all filters is left to others.
    epsilon, limits
        As of `scan_bank`.

    Returns
    -------
    means, variances, nis : (J, 1, K), (J, 1), (J, 1)
        As in `BankStep`.
    belief : (J,)
        Weights before the target was seen, shortest half-life first.
    out : (2, K)
        Mean and variance of the target, noise included.
    sound : bool
        If not, the row has to be learned in another way.
    """
    # over 80 lines: the parts of a step in their order
    gammas, prior_vars, prior_scales, half_lives, order = filters
    scales, log_weights, spread, usual, levels, bets, odds, numbers = changed
    times_cov, times_mean = products
    n_filters, m, n_outputs = times_cov.shape[0], times_cov.shape[2], times_mean.shape[2]
    means, variances = np.empty((n_filters, 1, n_outputs)), np.empty((n_filters, 1))
    nis, belief, out = np.empty((n_filters, 1)), np.zeros((1, n_filters)), np.zeros((2, n_outputs))
    noise, units = np.full(1, noise_var), np.ones(n_filters)
    gains, innovations = np.empty((n_filters, m)), np.empty((n_filters, n_outputs))
    bounds, norm, least = np.empty(m), 0.0, np.inf
    for k in range(m):
        norm += phi[0, k] * phi[0, k]
    # The filters: eqs. (7) and (8).
    for j in range(n_filters):
        g, var = gammas[j, 0], 0.0
        for k in range(m):
            bounds[k] = scales[j, 1] * arrays[0][j, k, k] + scales[j, 2]
            var += times_cov[j, 0, k] * phi[0, k]
        kept, lost = g * g, (1.0 - g) * (1.0 + g) * prior_vars[j]
        var = kept * var + lost * norm
        variances[j, 0], sd = var, np.sqrt(var + noise_var)
        for k in range(n_outputs):
            means[j, 0, k] = g * times_mean[j, 0, k]
            innovations[j, k] = (target[k] - means[j, 0, k]) / sd
        nis[j, 0] = mean_square(innovations[j])
        if learn_scale:
            units[j] = spread[j, 1] / spread[j, 0]
        least = min(least, n_outputs * nis[j, 0] / units[j])
        if not rows_are_sound(variances[j], noise, phi, bounds, epsilon, scales[j, 4], limits):
            return means, variances, nis, belief[0], out, False
        for k in range(m):
            gains[j, k] = (kept * times_cov[j, 0, k] + lost * phi[0, k]) / sd
        forget(scales[j], g, (1.0 - g) * (1.0 + g), prior_vars[j])
        if min(scales[j, 0], scales[j, 1]) < SMALLEST_SCALE:  # time to fold what is pending
            return means, variances, nis, belief[0], out, False
    if not least <= farthest:
        return means, variances, nis, belief[0], out, False
    # Bayes' rule over the filters, and the prediction before it.
    n_calibrations = log_weights.shape[1]
    weights, log_liks = np.empty(log_weights.shape), np.empty(log_weights.shape)
    evidence, by_filter = np.empty(n_filters), np.zeros(n_filters)
    switch_weights(log_weights, switch, weights)
    for j in range(n_filters):
        mean, total = means[j, 0], max(variances[j, 0], 0.0) + noise_var
        if learn_scale:
            log_lik = student_log_density(target, mean, total, spread[j])
            learn_spread(target, mean, total, 1.0, spread[j])
        else:
            log_lik = gaussian_log_density(target, mean, total)
        for c in range(n_calibrations):
            log_liks[j, c] = max(log_lik, LEAST_LOG)
            by_filter[j] += weights[j, c]
        for k in range(n_outputs):
            out[0, k] += by_filter[j] * mean[k]
    for j in range(n_filters):
        for k in range(n_outputs):
            between = (means[j, 0, k] - out[0, k]) ** 2
            out[1, k] += by_filter[j] * (units[j] * (variances[j, 0] + noise_var) + between)
    weigh_filters(weights, 1.0, log_liks, evidence)
    learn_weights(log_weights, 1.0, log_liks)
    # The drift alarm.
    variance, gathered = np.empty((1, n_filters)), np.empty((1, n_filters))
    for j in range(n_filters):
        belief[0, j], gathered[0, j] = by_filter[order[j]], evidence[order[j]]
        variance[0, j] = variances[order[j], 0] / prior_scales[order[j]]
    alarms = numbers[ALARMS]
    watch_rows(half_lives, belief, variance, gathered, usual, levels, bets, odds, numbers)
    if numbers[ALARMS] > alarms:
        numbers[BEGAN] = came
    for j in range(n_filters):  # last, since others may not read what is behind n_rows
        store_row(gains[j], innovations[j], scales[j], arrays[1][j, n_rows], arrays[2][j, n_rows])
    return means, variances, nis, belief[0], out, True
