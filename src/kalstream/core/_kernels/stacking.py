"""Compiled loops of `stacking`. Import it on first use, as `chunk`."""

from __future__ import annotations

import numpy as np

from kalstream.core._kernels.mixture import probit_factor
from kalstream.core.jit import Floats, Labels, jit

# Smaller probabilities count as this: a class that was ruled out may still come.
LEAST_PROBABILITY = 1e-9
# Number of labels by which the recent class frequencies are smoothed towards the overall ones.
SMOOTH = 1.0
# Forgetting of the coefficients, per row: a half-life of about 1,400 rows.
KEEP = 0.9995
# Larger sample weights count as this: one row of weight 1,000 would decide all coefficients.
LARGEST_WEIGHT = 10.0
# Larger log-odds would round to probabilities of 0 and 1, which never change again.
LARGEST_LOG_ODDS = 30.0
# Prior precision of the coefficients: of the mixture and its filters, and of the other terms.
FILTER_PRECISION = 40.0
LABEL_PRECISION = 10.0


@jit
def describe_filters(
    means: Floats,
    variances: Floats,
    weights: Floats,
    calibrations: Floats,
    active: Labels,
    out: Floats,
) -> bool:
    """Describe one row: class log-probabilities of the mixture, calibrated logits of each filter.

    From means (J, K), variances (J,), weights and calibrations (J, C), into the first 1 + J columns
    of out (A, D) for the A active classes. Returns whether all of these are finite.
    """
    size = 0.0
    n_filters, n_calibrations, n_active = means.shape[0], calibrations.shape[1], len(active)
    each = np.empty(n_active)
    out[:, 0] = 0.0
    for j in range(n_filters):
        top, var = -np.inf, max(variances[j], 0.0)
        for k in active:
            top = max(top, means[j, k])
        mass, mean_log = 0.0, 0.0
        for c in range(n_calibrations):
            mass += weights[j, c]
            alpha = calibrations[j, c]
            mean_log += weights[j, c] * np.log(alpha)
            alpha = probit_factor(alpha, alpha * alpha * var)
            total = 0.0
            for a in range(n_active):
                each[a] = np.exp(alpha * (means[j, active[a]] - top))
                total += each[a]
            for a in range(n_active):
                out[a, 0] += weights[j, c] * each[a] / total
        alpha = np.exp(mean_log / mass) if mass > 0.0 else 1.0
        alpha = probit_factor(alpha, alpha * alpha * var)
        for a in range(n_active):
            out[a, j + 1] = alpha * (means[j, active[a]] - top)
            size += abs(out[a, j + 1])
        size += abs(mass) + abs(variances[j])
    for a in range(n_active):
        size += abs(out[a, 0])
        out[a, 0] = np.log(max(out[a, 0], LEAST_PROBABILITY))
    return bool(size < np.inf)


@jit
def describe_labels(
    counts: Floats,
    recent: Floats,
    stays: Floats,
    last: int,
    active: Labels,
    first: int,
    out: Floats,
) -> None:
    """Describe the labels before a row, into columns ``first`` and on of out (A, D).

    The logarithms of the recent frequency of each class (for each half-life), and of the frequency
    with which the last class repeats, both over the overall frequency.
    """
    n_lives, n_active = recent.shape[0], len(active)
    total = counts.sum() + 0.5 * n_active
    usual_last = (counts[last] + 0.5) / total
    stay = (stays[last, 0] + SMOOTH * usual_last) / (stays[last, 1] + SMOOTH)
    goes = np.log(max(1.0 - stay, LEAST_PROBABILITY) / max(1.0 - usual_last, LEAST_PROBABILITY))
    for a in range(n_active):
        out[a, first + n_lives] = np.log(stay / usual_last) if active[a] == last else goes
    for h in range(n_lives):
        mass = recent[h].sum() + SMOOTH
        for a in range(n_active):
            usual = (counts[active[a]] + 0.5) / total
            out[a, first + h] = np.log((recent[h, active[a]] + SMOOTH * usual) / (mass * usual))


@jit
def describe_spoken(spoken: Floats, active: Labels, out: Floats) -> None:
    """Write log-probabilities (X, K) of experts into the last X columns of out (A, D)."""
    n_experts = spoken.shape[0]
    first = out.shape[1] - n_experts
    for x in range(n_experts):
        for a in range(len(active)):
            out[a, first + x] = spoken[x, active[a]]


@jit
def softmax(described: Floats, coef: Floats, out: Floats) -> None:
    """Probabilities (A,), into out, of classes described by (A, D): a softmax of linear scores."""
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
def blend(own: Floats, belief: float, active: Labels, out: Floats) -> bool:
    """Average out (K,), in place, with probabilities ``own`` (A,) of the active classes.

    ``belief`` is the weight of ``own``. The active classes keep their sum. Returns whether out was
    finite and not negative.
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
def add_solution(matrix: Floats, right: Floats, out: Floats) -> None:
    """Add the solution (D,) of a small positive definite system to out, by Cholesky.

    LAPACK is not used, because numba would need more time to compile that call than all other code
    in this file.
    """
    n = len(right)
    factor, solution = np.empty((n, n)), np.empty(n)
    for i in range(n):
        for j in range(i + 1):
            rest = matrix[i, j]
            for k in range(j):
                rest -= factor[i, k] * factor[j, k]
            factor[i, j] = np.sqrt(rest) if i == j else rest / factor[j, j]
        solution[i] = right[i]
        for k in range(i):
            solution[i] -= factor[i, k] * solution[k]
        solution[i] /= factor[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            solution[i] -= factor[k, i] * solution[k]
        solution[i] /= factor[i, i]
        out[i] += solution[i]


@jit
def newton_step(
    described: Floats,
    own: Floats,
    label: int,
    weight: float,
    kept: float,
    prior: Floats,
    coef: Floats,
    precision: Floats,
) -> None:
    """One Newton step on the log-probability of a label; coef (D,) and precision (D, D) change.

    The precision forgets towards the prior precision (D,), the coefficients towards the prior mean
    (1, 0, ..., 0); ``kept`` is left of them.
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
            precision[d, e] = kept * precision[d, e] + weight * spread
            precision[e, d] = precision[d, e]
        precision[d, d] += (1.0 - kept) * prior[d]
        pull = (1.0 - kept) * prior[d] * (coef[d] - (1.0 if d == 0 else 0.0))
        gradient[d] = weight * (described[label, d] - mean[d]) - pull
    add_solution(precision, gradient, coef)


@jit
def count_label(
    label: int, last: int, keep: Floats, counts: Floats, recent: Floats, stays: Floats
) -> None:
    """Add a label to counts (K,), recent (H, K) and stays (K, 2), in place."""
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
def learn_rows(
    means: Floats,
    variances: Floats,
    weights: Floats,
    calibrations: Floats,
    spoken: Floats,
    plain: Floats,
    labels: Labels,
    weight: Floats,
    ordered: bool,
    share: float,
    prior: Floats,
    keep: Floats,
    belief: float,
    last: int,
    counts: Floats,
    recent: Floats,
    stays: Floats,
    coef: Floats,
    precision: Floats,
) -> tuple[Floats, float, int, int]:
    """Predict each row, and then learn it if it has a label.

    counts, recent, stays, coef and precision change in place; see `stacking.Stack` for them.

    Parameters
    ----------
    means, variances, weights, calibrations : (J, b, K), (J, b), (b, J, C), (J, C)
    spoken : (b, X, K)
        Log-probabilities by the experts beside the filters.
    plain : (b, K') or (0, 0)
        Probabilities of the mixture to correct; (0, 0) to learn only.
    labels : (b,)
        -1 where there is none.
    ordered : bool
        Whether each row was predicted after the label before it was known.
    share : float
        Probability, at each row, that the correction starts or stops being better.
    prior, keep : (D,), (H,)
        Prior precision of the coefficients; forgetting of ``recent`` for each half-life.

    Returns
    -------
    out : as plain
    belief, last : float, int
        After the last row.
    bad : int
        The first row with a bad label, weight or prediction; -1 if there is none.
    """
    n_filters, n, n_outputs = means.shape
    out, n_columns = plain.copy(), plain.shape[1]
    n_described = min(n_columns, n_outputs) if n_columns else n_outputs
    active = np.flatnonzero(counts > 0.0)
    described, own = np.zeros((len(active), coef.shape[0])), np.empty(len(active))
    now = belief
    for i in range(n):
        label = labels[i]
        if label < -1 or label >= counts.shape[0] or not 0.0 <= weight[i] < np.inf:
            return out, belief, last, i
        # Nothing is learned from the first row of a class: it need not be described.
        if len(active) and (n_columns or (label >= 0 and counts[label] > 0.0)):
            if active[-1] >= n_described:
                return out, belief, last, i
            sound = describe_filters(
                means[:, i], variances[:, i], weights[i], calibrations, active, described
            )
            described[:, n_filters + 1 :] = 0.0
            if ordered and last >= 0:
                describe_labels(counts, recent, stays, last, active, n_filters + 1, described)
            describe_spoken(spoken[i], active, described)
            softmax(described, coef, own)
            if not (sound and own.sum() < 2.0):
                return out, belief, last, i
            now = belief + share * (0.5 - belief)
            if n_columns and not blend(own, now, active, out[i]):
                return out, belief, last, i
        if label < 0:
            continue
        is_new = not counts[label] > 0.0
        if not is_new:
            place = np.searchsorted(active, label)
            w = min(weight[i], LARGEST_WEIGHT)
            odds = np.log(now / (1.0 - now))
            odds += w * (np.log(max(own[place], LEAST_PROBABILITY)) - described[place, 0])
            belief = 1.0 / (1.0 + np.exp(-min(max(odds, -LARGEST_LOG_ODDS), LARGEST_LOG_ODDS)))
            newton_step(described, own, place, w, KEEP, prior, coef, precision)
            if not abs(coef.sum() + belief) < np.inf:
                return out, belief, last, i
        count_label(label, last, keep, counts, recent, stays)
        if is_new:
            active = np.flatnonzero(counts > 0.0)
            described = np.zeros((len(active), coef.shape[0]))
            own = np.empty(len(active))
        last = label
    return out, belief, last, -1


@jit
def predict_rows(
    means: Floats,
    variances: Floats,
    weights: Floats,
    calibrations: Floats,
    spoken: Floats,
    plain: Floats,
    belief: float,
    last: int,
    counts: Floats,
    recent: Floats,
    stays: Floats,
    coef: Floats,
    ordered: bool,
) -> tuple[Floats, int]:
    """Corrected probabilities (b, K) of rows, each as the next one; bad as in `learn_rows`."""
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
        describe_spoken(spoken[i], active, described)
        softmax(described, coef, own)
        if not (sound and own.sum() < 2.0 and blend(own, belief, active, out[i])):
            return out, i
    return out, -1
