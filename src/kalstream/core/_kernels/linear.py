"""One row under the filters of `Linear`, compiled. Import it on first use."""

from __future__ import annotations

import numpy as np

from kalstream.core._kernels.bank import bank_products, store_row
from kalstream.core._kernels.experts import centre_rows
from kalstream.core._kernels.mixture import (
    LEAST_LOG,
    learn_weights,
    predict_rows,
    probit_log_prob,
    probit_probabilities,
    switch_weights,
)
from kalstream.core._kernels.row import Filters, scan_row
from kalstream.core.jit import Flags, Floats, Labels, jit

# The logit of a class that has not been seen: its probability is 0.
HIDDEN = -1e30


@jit
def hide_unseen(seen: Flags, means: Floats) -> None:
    """Give classes that have not been seen (K,) no probability: means (J, 1, K) in place."""
    for k in range(seen.shape[0]):
        if not seen[k]:
            means[:, :, k] = HIDDEN


@jit
def pass_linear(
    columns: Floats,
    labels: Labels,
    gap: Floats,
    shortened: tuple[float, float],
    mean: Floats,
    counts: Floats,
    square: float,
    seen: Flags,
    arrays: tuple[Floats, Floats, Floats, Floats],
    n_rows: int,
    scales: Floats,
    log_weights: Floats,
    filters: Filters,
    share: float,
    guard: tuple[float, tuple[float, float, float]],
    least: float,
) -> tuple[Floats, float, bool]:
    """Predict a row (1, d), then learn its label if it has one; what `Linear.advance` computes.

    Parameters
    ----------
    shortened, mean, counts, square
        Of `experts.centre_rows`: mean and counts change in place.
    seen : (K,)
        Classes that have come; the label among them.
    arrays, n_rows
        Covariances (J, m, m), both triangles, and means (J, m, K); pending rows (J, r, m) and
        coefficients (J, r, K). A pending row is appended to the ``n_rows`` that there are.
    scales, log_weights : (J, 5), (J, C)
        They change in place.
    filters
        As in `row.learn_row`.
    share, guard, least
        Of switching; epsilon and limits of `bank.scan_bank`; the smallest probability.

    Returns
    -------
    out : (1, K)
        Log-probabilities.
    square : float
    sound : bool
        If not, the row has to be passed in another way.
    """
    cov, bank_mean, rows, coefficients = arrays
    gammas, prior_vars, _, calibrations, _ = filters
    phi, square = centre_rows(columns, labels, *shortened, mean, counts, square)
    products = bank_products(phi, cov, bank_mean, rows, coefficients, n_rows, scales)
    times_cov, times_mean, lossy = products
    n_filters, m, n_outputs = bank_mean.shape
    out, label = np.empty((1, n_outputs)), labels[0]
    if lossy:
        return out, square, False
    if label < 0:
        moments = predict_rows(
            *(times_cov, times_mean, phi, gammas, gap, prior_vars, False, share, log_weights)
        )
        hide_unseen(seen, moments[0])
        out, bad = probit_probabilities(moments[0], moments[1], moments[5], calibrations)
        return np.log(np.maximum(out, least)), square, bad < 0
    diagonals, classes = np.empty((n_filters, m)), np.flatnonzero(seen)
    for j in range(n_filters):
        for k in range(m):
            diagonals[j, k] = cov[j, k, k]
    means, innovations = np.empty((n_filters, 1, n_outputs)), np.empty((n_filters, 1, n_outputs))
    gains, spare = np.empty((n_filters, 1, m)), np.empty((3, n_filters, 1))
    variances = spare[0]
    step = means, variances, spare[1], spare[2], gains, innovations
    known = phi, label, diagonals, (times_cov, times_mean), filters, classes, 1.0, gap[0]
    if not scan_row(*known, *guard, scales, step):
        return out, square, False
    weights, log_liks = np.empty((1, *log_weights.shape)), np.empty(log_weights.shape)
    switch_weights(log_weights, 1.0 - (1.0 - share) ** gap[0], weights[0])
    for j in range(n_filters):
        var = max(variances[j, 0], 0.0)
        for c in range(calibrations.shape[1]):
            log_lik = probit_log_prob(means[j, 0], var, calibrations[j, c], label, classes)
            log_liks[j, c] = max(log_lik, LEAST_LOG)
    learn_weights(log_weights, 1.0, log_liks)
    hide_unseen(seen, means)
    out, bad = probit_probabilities(means, variances, weights, calibrations)
    if bad >= 0:
        return out, square, False
    for j in range(n_filters):  # last, since others may not read what is behind n_rows
        store_row(
            gains[j, 0], innovations[j, 0], scales[j], rows[j, n_rows], coefficients[j, n_rows]
        )
    return np.log(np.maximum(out, least)), square, True
