"""Compiled loops of `stack`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kalstream.core._kernels._jit import jit
from kalstream.core._kernels.mixture import shrunk

Array = Any

# Less than this is not told apart: a class that was ruled out may still come.
LEAST = 1e-9
# How many labels the frequencies of classes count for, where little is known of the past.
SMOOTH = 1.0
# What is learned about coefficients is forgotten with a half-life of some 1,400 rows.
KEEP = 0.9995
# A row counts for no more than so many: one of weight 1,000 would decide all coefficients.
HEAVIEST = 10.0
# Log-odds beyond this would be probabilities of 0 and 1, from which there is no way back.
MOST_SURE = 30.0
# Precision of coefficients before any data: of filters, and of labels.
FILTERS = 40.0
LABELS = 10.0


@jit
def describe_filters(
    means: Array, variances: Array, weights: Array, calibrations: Array, active: Array, out: Array
) -> bool:
    """Log-probabilities of classes by the mixture, and calibrated logits by each filter.

    Of one row: means (J, K), variances (J,), weights (J, C); out (A, D) for the active classes.
    Returns whether all of it is finite.
    """
    size = 0.0
    n_filters, n_calibrations, n_active = means.shape[0], calibrations.shape[0], len(active)
    each = np.empty(n_active)
    out[:, 0] = 0.0
    for j in range(n_filters):
        top, var = -np.inf, max(variances[j], 0.0)
        for k in active:
            top = max(top, means[j, k])
        mass, mean_log = 0.0, 0.0
        for c in range(n_calibrations):
            mass += weights[j, c]
            mean_log += weights[j, c] * np.log(calibrations[c])
            alpha = shrunk(calibrations[c], var)
            total = 0.0
            for a in range(n_active):
                each[a] = np.exp(alpha * (means[j, active[a]] - top))
                total += each[a]
            for a in range(n_active):
                out[a, 0] += weights[j, c] * each[a] / total
        alpha = shrunk(np.exp(mean_log / mass) if mass > 0.0 else 1.0, var)
        for a in range(n_active):
            out[a, j + 1] = alpha * (means[j, active[a]] - top)
            size += abs(out[a, j + 1])
        size += abs(mass) + abs(variances[j])
    for a in range(n_active):
        size += abs(out[a, 0])
        out[a, 0] = np.log(max(out[a, 0], LEAST))
    return bool(size < np.inf)


@jit
def describe_labels(
    counts: Array, recent: Array, stays: Array, last: int, active: Array, first: int, out: Array
) -> None:
    """How often classes came of late, and if the last one stays, against what is usual."""
    n_lives, n_active = recent.shape[0], len(active)
    total = counts.sum() + 0.5 * n_active
    usual_last = (counts[last] + 0.5) / total
    stay = (stays[last, 0] + SMOOTH * usual_last) / (stays[last, 1] + SMOOTH)
    goes = np.log(max(1.0 - stay, LEAST) / max(1.0 - usual_last, LEAST))
    for a in range(n_active):
        out[a, first + n_lives] = np.log(stay / usual_last) if active[a] == last else goes
    for h in range(n_lives):
        mass = recent[h].sum() + SMOOTH
        for a in range(n_active):
            usual = (counts[active[a]] + 0.5) / total
            out[a, first + h] = np.log((recent[h, active[a]] + SMOOTH * usual) / (mass * usual))


@jit
def softmax_of(described: Array, coef: Array, out: Array) -> None:
    """Probabilities (A,) of classes described by (A, D)."""
    n_active = described.shape[0]
    top = -np.inf
    for a in range(n_active):
        out[a] = 0.0
        for d in range(coef.shape[0]):
            out[a] += coef[d] * described[a, d]
        top = max(top, out[a])
    total = 0.0
    for a in range(n_active):
        out[a] = np.exp(out[a] - top)
        total += out[a]
    for a in range(n_active):
        out[a] /= total


@jit
def blend(own: Array, belief: float, active: Array, out: Array) -> bool:
    """Move probabilities (K,) of the active classes, which keep their sum, towards own (A,).

    Returns whether they were finite and not negative.
    """
    whole = 0.0
    for k in range(out.shape[0]):
        if not 0.0 <= out[k] < np.inf:
            return False
    for k in active:
        whole += out[k]
    for a in range(len(active)):
        out[active[a]] += belief * (whole * own[a] - out[active[a]])
    return True


@jit
def add_solution(matrix: Array, right: Array, out: Array) -> None:
    """Add the solution (D,) of a small positive definite system, by Cholesky, to out.

    LAPACK would take longer to compile than all the rest.
    """
    n = len(right)
    factor, found = np.empty((n, n)), np.empty(n)
    for i in range(n):
        for j in range(i + 1):
            rest = matrix[i, j]
            for k in range(j):
                rest -= factor[i, k] * factor[j, k]
            factor[i, j] = np.sqrt(rest) if i == j else rest / factor[j, j]
        found[i] = right[i]
        for k in range(i):
            found[i] -= factor[i, k] * found[k]
        found[i] /= factor[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            found[i] -= factor[k, i] * found[k]
        found[i] /= factor[i, i]
        out[i] += found[i]


@jit
def improve(
    described: Array,
    own: Array,
    label: int,
    weight: float,
    prior: Array,
    coef: Array,
    precision: Array,
) -> None:
    """One step of Newton's on the log-probability of a label, in place.

    The precision forgets towards that of the prior (D,), whose mean is (1, 0, ..., 0).
    """
    n = coef.shape[0]
    mean, gradient = np.zeros(n), np.empty(n)
    for a in range(described.shape[0]):
        for d in range(n):
            mean[d] += own[a] * described[a, d]
    for d in range(n):
        for e in range(d + 1):
            spread = 0.0
            for a in range(described.shape[0]):
                spread += own[a] * (described[a, d] - mean[d]) * (described[a, e] - mean[e])
            precision[d, e] = KEEP * precision[d, e] + weight * spread
            precision[e, d] = precision[d, e]
        precision[d, d] += (1.0 - KEEP) * prior[d]
        pull = (1.0 - KEEP) * prior[d] * (coef[d] - (1.0 if d == 0 else 0.0))
        gradient[d] = weight * (described[label, d] - mean[d]) - pull
    add_solution(precision, gradient, coef)


@jit
def note(label: int, last: int, keep: Array, counts: Array, recent: Array, stays: Array) -> None:
    """Take in a label, in place."""
    if last >= 0:
        stays[last, 1] += 1.0
        if last == label:
            stays[last, 0] += 1.0
    counts[label] += 1.0
    for h in range(keep.shape[0]):
        for k in range(counts.shape[0]):
            recent[h, k] *= keep[h]
        recent[h, label] += 1.0


@jit
def scan(
    means: Array,
    variances: Array,
    weights: Array,
    calibrations: Array,
    plain: Array,
    labels: Array,
    weight: Array,
    ordered: bool,
    share: float,
    prior: Array,
    keep: Array,
    belief: float,
    last: int,
    counts: Array,
    recent: Array,
    stays: Array,
    coef: Array,
    precision: Array,
) -> tuple[Array, float, int, int]:
    """Rows that are predicted, and then learned if they have a label.

    The last five arrays change in place.

    Parameters
    ----------
    means, variances, weights, calibrations : (J, b, K), (J, b), (b, J, C), (C,)
    plain : (b, K') or (0, 0)
        Probabilities to be corrected, if any are.
    labels : (b,)
        -1 where there is none.
    ordered : bool
        Whether the label before each row was known when it was predicted.

    Returns
    -------
    out : as plain
    belief, last : float, int
        After the last row.
    bad : int
        A row that cannot be used, or -1: its label, its weight, or what it tells.
    """
    n_filters, n, n_outputs = means.shape
    out, n_said = plain.copy(), plain.shape[1]
    n_described = min(n_said, n_outputs) if n_said else n_outputs
    active = np.flatnonzero(counts > 0.0)
    described, own = np.zeros((len(active), coef.shape[0])), np.empty(len(active))
    now = belief
    for i in range(n):
        label = labels[i]
        if label < -1 or label >= counts.shape[0] or not 0.0 <= weight[i] < np.inf:
            return out, belief, last, i
        # Nothing is learned from the first row of a class: it need not be described.
        if len(active) and (n_said or (label >= 0 and counts[label] > 0.0)):
            if active[-1] >= n_described:
                return out, belief, last, i
            sound = describe_filters(
                means[:, i], variances[:, i], weights[i], calibrations, active, described
            )
            described[:, n_filters + 1 :] = 0.0
            if ordered and last >= 0:
                describe_labels(counts, recent, stays, last, active, n_filters + 1, described)
            softmax_of(described, coef, own)
            if not (sound and own.sum() < 2.0):
                return out, belief, last, i
            now = belief + share * (0.5 - belief)
            if n_said and not blend(own, now, active, out[i]):
                return out, belief, last, i
        if label < 0:
            continue
        is_new = not counts[label] > 0.0
        if not is_new:
            place = np.searchsorted(active, label)
            w = min(weight[i], HEAVIEST)
            odds = np.log(now / (1.0 - now))
            odds += w * (np.log(max(own[place], LEAST)) - described[place, 0])
            belief = 1.0 / (1.0 + np.exp(-min(max(odds, -MOST_SURE), MOST_SURE)))
            improve(described, own, place, w, prior, coef, precision)
            if not abs(coef.sum() + belief) < np.inf:
                return out, belief, last, i
        note(label, last, keep, counts, recent, stays)
        if is_new:
            active = np.flatnonzero(counts > 0.0)
            described = np.zeros((len(active), coef.shape[0]))
            own = np.empty(len(active))
        last = label
    return out, belief, last, -1


@jit
def correct(
    means: Array,
    variances: Array,
    weights: Array,
    calibrations: Array,
    plain: Array,
    belief: float,
    last: int,
    counts: Array,
    recent: Array,
    stays: Array,
    coef: Array,
    ordered: bool,
) -> tuple[Array, int]:
    """Corrected probabilities (b, K) of rows, each as the next one, and a bad row as in `scan`."""
    n_filters, n, n_outputs = means.shape
    out, active = plain.copy(), np.flatnonzero(counts > 0.0)
    if len(active) and active[-1] >= min(plain.shape[1], n_outputs):
        return out, 0
    described, own = np.zeros((len(active), coef.shape[0])), np.empty(len(active))
    if ordered and last >= 0:
        describe_labels(counts, recent, stays, last, active, n_filters + 1, described)
    for i in range(n):
        sound = describe_filters(
            means[:, i], variances[:, i], weights[i], calibrations, active, described
        )
        softmax_of(described, coef, own)
        if not (sound and own.sum() < 2.0 and blend(own, belief, active, out[i])):
            return out, i
    return out, -1
