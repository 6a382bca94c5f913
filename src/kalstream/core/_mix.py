"""Bayes' rule over filters and calibrations, compiled. Imported on first use only, as `_scan`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kalstream.core._jit import jit
from kalstream.core._scan import calibrated_terms, is_among

Array = Any

# A target that no filter could have foreseen must not leave -inf minus -inf behind.
_LEAST_LOG = -1e100


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
    log_weights: Array,
    active: Array,
    n_active: int,
    ell: Array,
    slope: Array,
    work: Array,
) -> tuple[Array, Array, int]:
    """Bayes' rule with a fixed share of switching over J filters and C calibrations.

    Parameters
    ----------
    means, variances : (J, b, K), (J, b)
        One-step-ahead moments of each filter.
    switch : (b,)
        Probability of switching before the row.
    log_weights : (J, C), changed in place

    Returns
    -------
    weights : (b, J, C)
        Before each row's target was seen, after switching.
    log_prob : (b,)
        Log predictive of the mixture; NaN where there is none.
    n_active : int
    """
    n_filters, n, n_outputs = means.shape
    n_calibrations = calibrations.shape[0]
    n_all = n_filters * n_calibrations
    weights, log_prob = np.empty((n, n_filters, n_calibrations)), np.full(n, np.nan)
    log_liks = np.empty((n_filters, n_calibrations))
    scaled = np.empty(n_outputs)
    for i in range(n):
        for j in range(n_filters):
            for c in range(n_calibrations):
                weights[i, j, c] = np.exp(log_weights[j, c])
                if switch[i] > 0.0:
                    weights[i, j, c] += switch[i] * (1.0 / n_all - weights[i, j, c])
                    log_weights[j, c] = np.log(weights[i, j, c])
        if noise_var[i] == np.inf:
            continue
        if labels.shape[0] and not is_among(labels[i], active[:n_active]):
            active[n_active] = labels[i]
            n_active += 1
            continue
        for j in range(n_filters):
            var = max(variances[j, i], 0.0)
            for c in range(n_calibrations):
                if labels.shape[0] == 0:
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
        log_prob[i] = log_sum_exp(log_weights + log_liks)
        for j in range(n_filters):
            for c in range(n_calibrations):
                log_weights[j, c] += weight[i] * log_liks[j, c]
        total = log_sum_exp(log_weights)
        for j in range(n_filters):
            for c in range(n_calibrations):
                log_weights[j, c] -= total
    return weights, log_prob, n_active


@jit
def log_sum_exp(x: Array) -> float:
    top = x.max()
    return top + np.log(np.exp(x - top).sum())


@jit
def probit_log_prob(mean: Array, var: float, alpha: float, label: int, active: Array) -> float:
    """Log of the probit approximation to eq. (13): the softmax of logits shrunk by their spread."""
    shrunk = alpha / np.sqrt(1.0 + np.pi / 8.0 * alpha * alpha * var)
    top = mean[label]
    for k in active:
        top = max(top, mean[k])
    total = 0.0
    for k in active:
        total += np.exp(shrunk * (mean[k] - top))
    return shrunk * (mean[label] - top) - np.log(total)
