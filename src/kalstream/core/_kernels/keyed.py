"""Rows of many keys, each predicted and learned, compiled. Import it on first use."""

from __future__ import annotations

import numpy as np

from kalstream.core._kernels.mixture import log_sum_exp
from kalstream.core._kernels.observing import SOFTMAX, linearise_softmax
from kalstream.core.jit import Floats, Labels, jit

_WIDTH = np.pi / 8.0
# Probability that a number is as what is known of all keys says, whatever is known of its key.
_DOUBT = 0.01
# Largest logarithm of a row's variance in units of the usual one, for rounding's sake.
_FARTHEST = 20.0


@jit
def pass_rows(
    phi: Floats,
    offsets: Floats,
    places: Labels,
    labels: Labels,
    weight: Floats,
    prior_vars: Floats,
    gammas: Floats,
    rates: tuple[float, float, float],
    records: Floats,
    pooled: Floats,
    level: Floats,
    votes: Floats,
    out: Floats,
) -> None:
    """Predict each row under the filters of its key, then learn its label if it has one.

    Parameters
    ----------
    phi, offsets : (n, m), (n, K)
        Features, and log-probabilities by what is known of all keys; -inf: not a class yet.
    places, labels, weight : (n,)
        Which record is the row's key; -1 where there is no label.
    prior_vars, gammas : (F, m), (F,)
    rates : own, share, keep
        As of `keyed.Keyed`.
    records : (T, size)
        They change; see `keyed.KeyedState` for what they hold.
    pooled, level : (1 + F,), (2,)
        What all keys say, as of `keyed.Pool`; labels do without a level.
    votes : (n, 2 + F)
        What each label says of the hypotheses, then 0; written where a key learned.
    out : (n, K)
        Probabilities, written.
    """
    n, m = phi.shape
    n_filters, n_classes = prior_vars.shape[0], offsets.shape[1]
    n_packed, began = (m * (m + 1)) // 2, 2 + n_filters
    means_from, own = began + n_filters * n_packed, rates[0]
    logs, logits = np.empty((1 + n_filters, n_classes)), np.empty((n_filters, n_classes))
    times, variances, priors = np.empty((n_filters, m)), np.empty(n_filters), np.empty(n_filters)
    classes, log_weights = np.empty(n_classes, np.int64), np.empty(1 + n_filters)
    residual = np.empty(n_classes)
    for i in range(n):
        count = 0
        for k in range(n_classes):
            out[i, k] = 0.0
            if offsets[i, k] > -np.inf:
                classes[count] = k
                count += 1
        if count == 0:
            continue
        record, known = records[places[i]], classes[:count]
        evidence = record[1:began]
        whole = write_log_weights(pooled, evidence, own, log_weights)
        write_softmax(offsets[i], 1.0, known, logs[0])
        for f in range(n_filters):
            cov = record[began + f * n_packed : began + (f + 1) * n_packed]
            variances[f], priors[f] = moments(cov, phi[i], prior_vars[f], gammas[f], times[f])
            lift = np.sqrt(1.0 + _WIDTH * priors[f])
            for k in known:
                mean = record[means_from + (k * n_filters + f) * m :]
                total = 0.0
                for j in range(m):
                    total += phi[i, j] * mean[j]
                logits[f, k] = lift * offsets[i, k] + gammas[f] * total
            write_softmax(logits[f], 1.0 / np.sqrt(1.0 + _WIDTH * variances[f]), known, logs[1 + f])
        total = 0.0
        for k in known:
            for h in range(1 + n_filters):
                out[i, k] += np.exp(log_weights[h] - whole + logs[h, k])
            total += out[i, k]
        for k in known:
            out[i, k] /= total
        label = labels[i]
        # What brings a class, or comes before the second one, teaches only what is known of all.
        if label < 0 or weight[i] <= 0.0 or count < 2 or offsets[i, label] == -np.inf:
            continue
        learn_evidence(logs[:, label], weight[i], rates[2], evidence, votes[i])
        votes[i, 1 + n_filters] = 0.0
        record[0] += 1.0
        for f in range(n_filters):
            noise, _ = linearise_softmax(
                logits[f], variances[f], label, known, weight[i], SOFTMAX, residual
            )
            whole = variances[f] + noise
            cov = record[began + f * n_packed : began + (f + 1) * n_packed]
            learn_cov(cov, times[f], prior_vars[f], gammas[f], whole)
            # A class that has not come has the residual 0.
            for k in known:
                mean = record[means_from + (k * n_filters + f) * m :]
                for j in range(m):
                    mean[j] = gammas[f] * mean[j] + times[f, j] * (residual[k] / whole)


@jit
def pass_values(
    phi: Floats,
    offsets: Floats,
    places: Labels,
    values: Floats,
    weight: Floats,
    prior_vars: Floats,
    gammas: Floats,
    rates: tuple[float, float, float],
    records: Floats,
    pooled: Floats,
    level: Floats,
    votes: Floats,
    out: Floats,
) -> None:
    """As `pass_rows`, for targets that are numbers.

    Parameters
    ----------
    offsets, out : (n, 2)
        Means and standard deviations: by what is known of all keys, and written.
    values : (n,)
        NaN where there is no target.
    votes : (n, 2 + F)
        As of `pass_rows`, then the logarithm of the row's variance.
    """
    n, m = phi.shape
    n_filters = prior_vars.shape[0]
    n_packed, began = (m * (m + 1)) // 2, 2 + n_filters
    means_from = began + n_filters * n_packed
    logs, log_weights = np.empty(1 + n_filters), np.empty(1 + n_filters)
    added, whole_vars = np.zeros(1 + n_filters), np.empty(1 + n_filters)
    times, variances = np.empty((n_filters, m)), np.empty(n_filters)
    for i in range(n):
        middle, var = offsets[i, 0], offsets[i, 1] * offsets[i, 1]
        out[i] = offsets[i]
        if not (np.abs(middle) < np.inf and 0.0 < var < np.inf):
            continue
        record = records[places[i]]
        evidence = record[1:began]
        noise = 1.0
        if level[0] > 0.0:
            noise = np.exp(min(max(np.log(var) - level[1] / level[0], -_FARTHEST), _FARTHEST))
        whole = write_log_weights(pooled, evidence, rates[0], log_weights)
        whole_vars[0] = var
        for f in range(n_filters):
            cov = record[began + f * n_packed : began + (f + 1) * n_packed]
            mean = record[means_from + f * m : means_from + (f + 1) * m]
            variances[f], prior = moments(cov, phi[i], prior_vars[f], gammas[f], times[f])
            unknown = variances[f] / prior if prior > 0.0 else 1.0
            usual = prior_vars[f, 0] + (prior_vars[f, m - 1] if m > 1 else 0.0)
            whole_vars[1 + f] = var * ((unknown * usual + noise) / (usual + noise))
            total = 0.0
            for j in range(m):
                total += phi[i, j] * mean[j]
            added[1 + f] = gammas[f] * total
        add, square = 0.0, 0.0
        for h in range(1 + n_filters):
            add += np.exp(log_weights[h] - whole) * added[h]
        for h in range(1 + n_filters):
            square += np.exp(log_weights[h] - whole) * (whole_vars[h] + (added[h] - add) ** 2)
        out[i, 0], out[i, 1] = middle + add, np.sqrt(square)
        residual = values[i] - middle
        if np.isnan(residual) or weight[i] <= 0.0:
            continue
        for h in range(1 + n_filters):
            far = (residual - added[h]) ** 2 / whole_vars[h]
            logs[h] = -0.5 * (np.log(whole_vars[h]) + far)
            # Otherwise one outlier would be what a key remembers for hundreds of rows.
            logs[h] = np.logaddexp(np.log1p(-_DOUBT) + logs[h], np.log(_DOUBT) + logs[0])
        learn_evidence(logs, weight[i], rates[2], evidence, votes[i])
        votes[i, 1 + n_filters] = np.log(var)
        record[0] += 1.0
        for f in range(n_filters):
            cov = record[began + f * n_packed : began + (f + 1) * n_packed]
            mean = record[means_from + f * m : means_from + (f + 1) * m]
            whole = variances[f] + noise / weight[i]
            learn_cov(cov, times[f], prior_vars[f], gammas[f], whole)
            for j in range(m):
                mean[j] = gammas[f] * mean[j] + times[f, j] * ((residual - added[1 + f]) / whole)


@jit
def write_log_weights(pooled: Floats, evidence: Floats, own: float, out: Floats) -> float:
    """Write the log-weights (H,) of hypotheses for a key; returns the logarithm of their sum."""
    n = len(pooled)
    for h in range(n):
        out[h] = np.log((1.0 - own) * np.exp(pooled[h]) + own / n) + evidence[h]
    return log_sum_exp(out)


@jit
def moments(
    cov: Floats, phi: Floats, prior_vars: Floats, gamma: float, gain: Floats
) -> tuple[float, float]:
    """Variance of the next row's logits under a packed covariance, and before any row.

    Also writes the covariance times phi into gain (m,): eqs. (6) and (7).
    """
    kept, lost = gamma * gamma, (1.0 - gamma) * (1.0 + gamma)
    m, at = phi.shape[0], 0
    for j in range(m):
        gain[j] = 0.0
    for j in range(m):
        total = 0.0
        for k in range(j):
            total += cov[at + k] * phi[k]
            gain[k] += cov[at + k] * phi[j]
        gain[j] += total + cov[at + j] * phi[j]
        at += j + 1
    var, prior = 0.0, 0.0
    for j in range(m):
        gain[j] = kept * gain[j] + lost * prior_vars[j] * phi[j]
        var += gain[j] * phi[j]
        prior += prior_vars[j] * phi[j] * phi[j]
    return max(var, 0.0), prior


@jit
def learn_cov(cov: Floats, gain: Floats, prior_vars: Floats, gamma: float, whole: float) -> None:
    """Forget, then learn a row: eqs. (7) and (8) for a packed covariance, in place."""
    kept, lost, at = gamma * gamma, (1.0 - gamma) * (1.0 + gamma), 0
    for j in range(gain.shape[0]):
        factor = gain[j] / whole
        for k in range(j + 1):
            cov[at + k] = kept * cov[at + k] - factor * gain[k]
        at += j + 1
        cov[at - 1] += lost * prior_vars[j]


@jit
def learn_evidence(logs: Floats, weight: float, keep: float, own: Floats, vote: Floats) -> None:
    """What a label's log-probabilities (H,) say of the hypotheses: for its key, and as a vote."""
    n, best = logs.shape[0], -np.inf
    for h in range(n):
        vote[h] = weight * logs[h]
        own[h] = keep * own[h] + vote[h]
        best = max(best, own[h])
    for h in range(n):
        own[h] -= best


@jit
def count_votes(
    votes: Floats, rates: tuple[float, float, float], pooled: Floats, level: Floats
) -> None:
    """Let all keys hear the votes (n, 1 + H) of rows, in their order; NaN: the row has none."""
    _, share, keep = rates
    n = pooled.shape[0]
    for i in range(votes.shape[0]):
        if np.isnan(votes[i, n]):
            continue
        for h in range(n):
            pooled[h] = np.log((1.0 - share) * np.exp(pooled[h]) + share / n) + votes[i, h]
        whole = log_sum_exp(pooled)
        for h in range(n):
            pooled[h] -= whole
        level[0] = keep * level[0] + 1.0
        level[1] = keep * level[1] + votes[i, n]


@jit
def write_softmax(logits: Floats, shrink: float, classes: Labels, out: Floats) -> None:
    """Write the log-probabilities of ``classes``, softmax(shrink logits), into out (K,)."""
    top, total = -np.inf, 0.0
    for k in classes:
        top = max(top, logits[k])
    for k in classes:
        out[k] = shrink * (logits[k] - top)
        total += np.exp(out[k])
    total = np.log(total)
    for k in classes:
        out[k] -= total
