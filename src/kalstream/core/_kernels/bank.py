"""A few rows under all filters of a bank, compiled. Import it on first use, as `chunk`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kalstream.core._kernels.chunk import (
    apply_pending,
    rows_are_sound,
    scan_fixed,
    solve_lower,
    target_covariance,
)
from kalstream.core.jit import Floats, Labels, jit


@jit
def mirror(cov: Floats) -> None:
    """Copy the upper triangles of cov (J, m, m) to the lower ones, block by block."""
    n_filters, m, _ = cov.shape
    size = 16
    for j in range(n_filters):
        for top in range(0, m, size):
            for left in range(top, m, size):
                for k in range(top, min(top + size, m)):
                    for i in range(max(left, k + 1), min(left + size, m)):
                        cov[j, i, k] = cov[j, k, i]


@jit
def bank_products(
    features: Floats,
    cov: Floats,
    mean: Floats,
    rows: Floats,
    coefficients: Floats,
    n_rows: int,
    scales: Floats,
) -> tuple[Floats, Floats, bool]:
    """`bank.Bank.products` of float64 features (n, m); both triangles of cov are read.

    The first n_rows of rows (J, r, m) and of coefficients (J, r, K) are pending. Returns features
    times cov (J, n, m), times mean (J, n, K), and whether digits were lost.
    """
    n_filters, m, n_outputs = mean.shape
    n = features.shape[0]
    times_cov, times_mean = np.empty((n_filters, n, m)), np.zeros((n_filters, n, n_outputs))
    for j in range(n_filters):
        for i in range(n):
            for k in range(m):
                total = 0.0
                for other in range(m):
                    total += cov[j, k, other] * features[i, other]
                times_cov[j, i, k] = total
            for k in range(m):
                for c in range(n_outputs):
                    times_mean[j, i, c] += features[i, k] * mean[j, k, c]
    lossy = apply_all_pending(times_cov, times_mean, features, rows, coefficients, n_rows, scales)
    return times_cov, times_mean, lossy


@jit
def apply_all_pending(
    times_cov: Floats,
    times_mean: Floats,
    features: Floats,
    rows: Floats,
    coefficients: Floats,
    n_rows: int,
    scales: Floats,
) -> bool:
    """`apply_pending` for J filters; times_cov (J, n, m) and times_mean (J, n, K) are changed."""
    lossy = False
    for j in range(times_cov.shape[0]):
        shrink, scale, shift = scales[j, 0], scales[j, 1], scales[j, 2]
        lost = apply_pending(
            times_cov[j],
            times_mean[j],
            features,
            rows[j, :n_rows],
            coefficients[j, :n_rows],
            scale,
            shift,
            shrink,
        )
        lossy = lossy or lost
    return lossy


@jit
def store_rows(
    gains: Floats,
    innovations: Floats,
    scales: Floats,
    start: int,
    rows: Floats,
    coefficients: Floats,
) -> None:
    """Append gains (J, n, m) and innovations (J, n, K) to the ``start`` rows that are pending.

    rows (J, r, m) and coefficients (J, r, K) change; see `state.Posterior` for the equations.
    """
    for j in range(gains.shape[0]):
        for i in range(gains.shape[1]):
            row, coefficient = rows[j, start + i], coefficients[j, start + i]
            store_row(gains[j, i], innovations[j, i], scales[j], row, coefficient)


@jit
def store_row(
    gain: Floats, innovation: Floats, scales: Floats, row: Floats, coefficients: Floats
) -> None:
    """Write the gain (m,) and the innovation (K,) of a filter with these scales (5,)."""
    root = np.sqrt(scales[1])
    for k in range(gain.shape[0]):
        row[k] = gain[k] / root
    for k in range(innovation.shape[0]):
        coefficients[k] = innovation[k] * (root / scales[0])


@jit
def scan_bank(
    times_cov: Floats,
    times_mean: Floats,
    features: Floats,
    labels: Labels,
    dense: Floats,
    noise_var: Floats,
    weight: Floats,
    classes: Labels,
    n_seen: Labels,
    gammas: Floats,
    prior_vars: Floats,
    likelihoods: Labels,
    cov: Floats,
    scales: Floats,
    epsilon: float,
    limits: tuple[float, float, float],
) -> tuple[Any, ...]:
    """Compute what `chunk.plan` computes, for J filters at once.

    Parameters
    ----------
    times_cov, times_mean : (J, n, m), (J, n, K)
        Of `bank.Bank.products`.
    gammas : (J, n)
    prior_vars, likelihoods : (J,)
    cov, scales : (J, m, m), (J, 5)
        Of the bank.

    Returns
    -------
    done : int
        Rows that every filter could scan. If fewer than n, no other result is valid.
    unsound : int
        A filter whose innovations need `guard.check_innovations`, or -1.
    logit_mean, logit_var, noise_var, nis : (J, n, K), (J, n), (J, n), (J, n)
    gains, innovations : (J, n learned, m), (J, n learned, K)
    scales : (J, 5)
    least : float
        Smallest scale of a mean or covariance.
    """
    n_filters, n, m = times_cov.shape
    n_outputs = times_mean.shape[2]
    learned = np.flatnonzero(noise_var < np.inf)
    mean, var = np.empty((n_filters, n, n_outputs)), np.empty((n_filters, n))
    noise, nis = np.empty((n_filters, n)), np.empty((n_filters, n))
    gains = np.empty((n_filters, learned.shape[0], m))
    innovations = np.empty((n_filters, learned.shape[0], n_outputs))
    after = scales.copy()
    system = np.zeros((learned.shape[0], learned.shape[0]))
    phi = features[learned]
    gram_eye, gram_cov = np.empty((n, n)), np.empty((n, n))
    products_with(features, features, gram_eye)
    variances, keep_mean = np.empty(m), n < 0  # a literal would compile the scan once more
    done, unsound = n, -1
    for j in range(n_filters):
        prior_var = prior_vars[j]
        products_with(times_cov[j], features, gram_cov)
        scan = scan_fixed(
            gram_cov,
            gram_eye,
            times_mean[j],
            labels,
            dense,
            noise_var,
            weight,
            classes,
            n_seen,
            gammas[j],
            prior_var,
            keep_mean,
            likelihoods[j],
        )
        done = min(done, scan[0])
        kept, lost, reach = scan[7], scan[8], scan[9]
        # Loops: an assignment of slices brings code that formats messages of shapes.
        for i in range(n):
            var[j, i], noise[j, i], nis[j, i] = scan[3][i], scan[4][i], scan[10][i]
            for k in range(n_outputs):
                mean[j, i, k] = scan[2][i, k]
        for k in range(m):
            variances[k] = scales[j, 1] * cov[j, k, k] + scales[j, 2]
        if not rows_are_sound(var[j], noise[j], features, variances, epsilon, scales[j, 4], limits):
            unsound = j
        for a in range(learned.shape[0]):
            for k in range(m):
                gains[j, a, k] = times_cov[j, learned[a], k]
            for k in range(n_outputs):
                innovations[j, a, k] = scan[6][learned[a], k]
            for b in range(learned.shape[0]):
                system[a, b] = scan[5][learned[a], learned[b]]
        target_covariance(gains[j], phi, kept[learned], prior_var * lost[learned])
        solve_lower(system, gains[j])
        for a in range(learned.shape[0]):
            for k in range(m):
                gains[j, a, k] *= reach[learned[a]]
        forget(after[j], kept[n - 1], lost[n - 1], prior_var)
        if done < n:  # the caller repeats the call with fewer rows
            break
    least = min(after[:, 0].min(), after[:, 1].min())
    return done, unsound, mean, var, noise, nis, gains, innovations, after, least


@jit
def forget(scales: Floats, kept: float, lost: float, prior_var: float) -> None:
    """`Stored.decayed` of one filter's scales (5,), in place."""
    scales[0] *= kept
    scales[1] *= kept * kept
    scales[2] = scales[2] * kept * kept + lost * prior_var
    if lost > 0.0:
        scales[3] = max(scales[3], prior_var)
    scales[4] *= kept * kept


@jit
def products_with(left: Floats, right: Floats, out: Floats) -> None:
    """Inner products of the rows of left (n, m) and right (p, m), into out (n, p)."""
    for i in range(left.shape[0]):
        for j in range(right.shape[0]):
            total = 0.0
            for k in range(left.shape[1]):
                total += left[i, k] * right[j, k]
            out[i, j] = total
