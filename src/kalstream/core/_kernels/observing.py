"""What a target says about a row's outputs, compiled. Import it on first use, as `chunk`.

A scan predicts a row, observes its target here, and learns it (core/README.md, "The softmax
filter").
"""

from __future__ import annotations

import numpy as np

from kalstream.core.jit import Flags, Floats, Labels, jit
from kalstream.core.likelihoods import LIKELIHOODS
from kalstream.core.softmax_integral import LEAST_CURVATURE

# Codes of likelihoods.
ONEHOT, SOFTMAX, SOFTMAX_LABEL = (
    LIKELIHOODS[word].code for word in ("onehot", "softmax", "softmax-label")
)
# labels (b,), dense (b, K), noise_var (b,), weight (b,), classes (K,) and n_seen (b + 1,) of
# `chunk.Rows.observed`.
Observed = tuple[Labels, Floats, Floats, Floats, Labels, Labels]


@jit
def write_residual(i: int, labels: Labels, dense: Floats, mean: Floats, residual: Floats) -> None:
    """Target minus mean (K,), into residual (K,); if labels (b,) is empty, dense (b, K) counts."""
    for k in range(mean.shape[0]):
        residual[k] = -mean[k] if labels.shape[0] else dense[i, k] - mean[k]
    if labels.shape[0]:
        residual[labels[i]] += 1.0


@jit
def arrivals(labels: Labels, noise_var: Floats, seen: Flags) -> tuple[Labels, Labels]:
    """Classes in the order of their arrival (K,), and how many had come before each row (b + 1,).

    ``seen`` (K,) says which had come before the chunk. The last number counts those after it. A row
    that is not learned, whose noise variance is inf, brings no class.
    """
    n = labels.shape[0]
    known, classes = seen.copy(), np.zeros(seen.shape[0], np.int64)
    count, n_seen = 0, np.empty(n + 1, np.int64)
    for k in range(seen.shape[0]):
        if seen[k]:
            classes[count] = k
            count += 1
    n_seen[0] = count
    for i in range(n):
        if noise_var[i] < np.inf and not known[labels[i]]:
            known[labels[i]] = True
            classes[count] = labels[i]
            count += 1
        n_seen[i + 1] = count
    return classes, n_seen


@jit
def write_error(
    mean: Floats,
    shift: float,
    along: Floats,
    shrink: float,
    label: int,
    classes: Labels,
    error: Floats,
) -> tuple[float, float]:
    """One-hot label minus softmax(shrink (mean + shift along)), into error (K,).

    One class alone is compared with one of logit 0, which has no place in error. Returns the sum of
    p (1 - p), and the variance of ``along`` under p.
    """
    alone = classes.shape[0] == 1
    top, total = 0.0 if alone else -np.inf, 0.0
    for k in classes:
        top = max(top, mean[k] + shift * along[k])
    if alone:
        total = np.exp(-shrink * top)
    for k in classes:
        error[k] = np.exp(shrink * (mean[k] + shift * along[k] - top))
        total += error[k]
    spread, first, second = 0.0, 0.0, 0.0
    for k in classes:
        p = error[k] / total
        spread += p * (1.0 - p)
        first += p * along[k]
        second += p * along[k] * along[k]
        error[k] = (1.0 if k == label else 0.0) - p
    return 2.0 * spread if alone else spread, second - first * first


@jit
def curvature_of(
    spread: float, error: float, n_classes: int, shrink: float, likelihood: int
) -> float:
    """Curvature of a label's log-probability, from the sum of p (1 - p) and the label's error."""
    if likelihood == SOFTMAX_LABEL:
        curvature = 2.0 * error * (1.0 - error)
    else:  # the mean of the eigenvalues that are not zero of diag(p) - p p'
        curvature = spread / max(n_classes - 1, 1)
    # A floor below the shrinkage: above it, wide logits of large columns would count too much.
    return shrink * shrink * max(curvature, LEAST_CURVATURE)


@jit
def settled(
    mean: Floats,
    var: float,
    label: int,
    classes: Labels,
    weight: float,
    shrink: float,
    error: Floats,
    work: Floats,
) -> float:
    """Where a heavy row ends: a with a = weight shrink (e(mean + a var error) . error) / |error|^2.

    That is the most probable point along ``error`` (K,), the error e at the mean. Newton's method
    in a bracket; the right side falls with a.
    """
    norm = 0.0
    for k in classes:
        norm += error[k] * error[k]
    most = weight * shrink
    low, high, here, last = 0.0, most, most, np.inf
    for _ in range(200):
        _, variance = write_error(mean, here * var, error, shrink, label, classes, work)
        inner = 0.0
        for k in classes:
            inner += work[k] * error[k]
        gap = most * inner / norm - here
        if gap > 0.0:
            low = here
        else:
            high = here
        before = here
        here += gap / (1.0 + most * var * shrink * variance / norm)
        # Where the softmax is flat on both sides, Newton's steps would jump to and fro.
        if not low < here < high or abs(here - before) > 0.5 * last:
            here = 0.5 * (low + high)
        last = abs(here - before)
        if abs(here - before) <= 1e-15 * most or abs(here - before) <= 1e-14 * here:
            break
    write_error(mean, here * var, error, shrink, label, classes, work)
    return here


@jit
def linearise_softmax(
    mean: Floats,
    var: float,
    label: int,
    classes: Labels,
    weight: float,
    likelihood: int,
    residual: Floats,
) -> tuple[float, float]:
    """Observe a label through the softmax, linearised where the row stands.

    The Gaussian that stands for the likelihood has the noise variance that is returned, and a
    target that differs from mean (K,) by residual (K,), which is written. ``classes`` are those
    that have come, the label among them (core/README.md, "The softmax filter"). While there is one
    class, it is compared with one that has not come, whose logit is 0. A row of weight above 1 is
    linearised where it ends. Also returns the squared error of the probabilities over its
    expectation.
    """
    n_classes, var = classes.shape[0], max(var, 0.0)
    shrink = 1.0 / np.sqrt(1.0 + np.pi / 8.0 * var)
    residual[:] = 0.0
    spread, _ = write_error(mean, 0.0, residual, shrink, label, classes, residual)
    squares = 0.0
    for k in classes:
        squares += residual[k] * residual[k]
    nis = (2.0 if n_classes == 1 else 1.0) * squares / max(spread, LEAST_CURVATURE)
    curvature = curvature_of(spread, residual[label], n_classes, shrink, likelihood)
    move = shrink / curvature
    if weight > 1.0 and squares > 0.0:
        work = np.empty(mean.shape[0])
        end = settled(mean, var, label, classes, weight, shrink, residual, work)
        spread = 0.0
        for k in classes:
            p = (1.0 if k == label else 0.0) - work[k]
            spread += p * (1.0 - p)
        spread = 2.0 * spread if n_classes == 1 else spread
        curvature = curvature_of(spread, work[label], n_classes, shrink, likelihood)
        move = end * (var + 1.0 / (curvature * weight))
    for k in classes:
        residual[k] *= move
    return 1.0 / (curvature * weight), nis


@jit
def observe(
    i: int, mean: Floats, var: float, observed: Observed, likelihood: int, residual: Floats
) -> tuple[float, float]:
    """Observe the target of row i, predicted N(mean (K,), var I), under a likelihood.

    Writes the residual (K,). Returns the noise variance of the target and, for a softmax, the
    squared error of the probabilities over its expectation, else NaN.
    """
    labels, dense, noise_var, weight, classes, n_seen = observed
    if likelihood == ONEHOT:
        write_residual(i, labels, dense, mean, residual)
        return noise_var[i], np.nan
    known = classes[: n_seen[i + 1]]
    return linearise_softmax(mean, var, labels[i], known, weight[i], likelihood, residual)
