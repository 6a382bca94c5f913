"""Compiled loop of the generative classifier. Import it on first use."""

from __future__ import annotations

from math import exp, lgamma, log, log1p, pi

import numpy as np

from kalstream.core.jit import Floats, Labels, jit

# Larger sample weights count as this, as in the stack.
LARGEST_WEIGHT = 10.0
# Half-lives, times ln 2, after which the prior is put back in full, since what was added to the
# scatters before is forgotten with it.
LONGEST = 0.05
# The prior is learned again after the first row of each of so many classes, then of every second
# one, and of every fourth one when there are twice as many: it costs as much as thousands of rows.
MANY = 32
_LEAST = 1e-12
_SMALLEST = 1e-200


@jit
def log_t(quadratic: float, k: float, nu: float, d: int, log_det: float) -> float:
    """Log-density of a row under a class with k, nu and S; ``quadratic`` is u' inv(S) u."""
    share = k / (k + 1.0)
    gammas = lgamma(0.5 * (nu + 1.0)) - lgamma(0.5 * (nu + 1.0 - d))
    scale = 0.5 * d * (log(share) - log(pi)) - 0.5 * log_det
    return gammas + scale - 0.5 * (nu + 1.0) * log1p(share * max(quadratic, 0.0))


@jit
def multiply(matrix: Floats, row: Floats, out: Floats) -> float:
    """Write matrix @ row into out (d,); returns row' matrix row."""
    total = 0.0
    for i in range(row.shape[0]):
        value = 0.0
        for j in range(row.shape[0]):
            value += matrix[i, j] * row[j]
        out[i] = value
        total += value * row[i]
    return total


@jit
def subtract(matrix: Floats, row: Floats, factor: float) -> None:
    """Subtract factor * row row' from a matrix in place."""
    for i in range(row.shape[0]):
        each = factor * row[i]
        for j in range(row.shape[0]):
            matrix[i, j] -= each * row[j]


@jit
def write_densities(
    row: Floats,
    clock: Floats,
    counts: Floats,
    means: Floats,
    centre: Floats,
    prior: Floats,
    strengths: Floats,
    within: Floats,
    shared: Floats,
    squares: Floats,
    own: Floats,
    own_log_dets: Floats,
    work: Floats,
    out: Floats,
) -> None:
    """Log-densities (V, K + 1) of a row by each voice; the last is that of a new class."""
    n_classes, d = means.shape
    s, k0 = exp(-clock[2]), prior[0]
    z, h, u = work[0], work[1], work[2]
    for j in range(d):
        z[j] = row[j] - centre[j]
    whole = multiply(shared, z, h)
    nu, log_det = d + 1.0 + prior[1] + s * clock[0], prior[2] - d * clock[2]
    out[0, n_classes] = log_t(whole / s, k0, nu, d, log_det)
    for k in range(n_classes):
        if counts[k] <= 0.0:
            continue
        n = s * counts[k]
        f, cross = n / (k0 + n), 0.0
        for j in range(d):
            cross += (means[k, j] - centre[j]) * h[j]
        quadratic = whole - 2.0 * f * cross + f * f * squares[k]
        out[0, k] = log_t(quadratic / s, k0 + n, nu, d, log_det)
    if strengths.shape[0] == 0:
        return
    fresh = multiply(within, z, h)
    for o in range(strengths.shape[0]):
        nu = d + 1.0 + strengths[o]
        log_det = prior[3] + d * log(strengths[o])
        out[1 + o, n_classes] = log_t(fresh / strengths[o], k0, nu, d, log_det)
    for k in range(n_classes):
        if counts[k] <= 0.0:
            continue
        n = s * counts[k]
        f = n / (k0 + n)
        for j in range(d):
            u[j] = z[j] - f * (means[k, j] - centre[j])
        for o in range(strengths.shape[0]):
            quadratic, nu = multiply(own[o, k], u, h) / s, d + 1.0 + strengths[o] + n
            log_det = own_log_dets[o, k] - d * clock[2]
            out[1 + o, k] = log_t(quadratic, k0 + n, nu, d, log_det)


@jit
def write_voices(
    densities: Floats,
    counts: Floats,
    seen: float,
    powers: Floats,
    concentrations: Floats,
    known: Floats,
    new: Floats,
) -> None:
    """Probabilities of known classes (V, T, K), and of a new one (V, T, A), from densities."""
    n_voices, n_classes = known.shape[0], counts.shape[0]
    log_prior, total = np.empty(n_classes), counts.sum()
    for k in range(n_classes):
        log_prior[k] = log(counts[k] / total * seen) if counts[k] > 0.0 else -np.inf
    for v in range(n_voices):
        for t in range(powers.shape[0]):
            top, mass = -np.inf, 0.0
            for k in range(n_classes):
                value = -np.inf
                if counts[k] > 0.0:
                    value = log_prior[k] + powers[t] * densities[v, k]
                known[v, t, k] = value
                top = max(top, value)
            for k in range(n_classes):
                if counts[k] > 0.0:  # 0 would rule out a class
                    known[v, t, k] = max(exp(known[v, t, k] - top), _SMALLEST)
                    mass += known[v, t, k]
                else:
                    known[v, t, k] = 0.0
            for k in range(n_classes):
                known[v, t, k] /= mass
            usual = top + log(mass) - powers[t] * densities[v, n_classes]
            for a in range(concentrations.shape[0]):
                odds = min(max(usual - log(concentrations[a]), -700.0), 700.0)
                new[v, t, a] = 1.0 / (1.0 + exp(odds))


@jit
def judge(belief: Floats, given: Floats, weight: float, share: float) -> None:
    """Weigh voices, both arrays flat, by the probability they gave to what came."""
    n, top, total = belief.shape[0], -np.inf, 0.0
    for i in range(n):
        belief[i] = log(max(belief[i], 1e-300)) + weight * log(max(given[i], _LEAST))
        top = max(top, belief[i])
    for i in range(n):
        belief[i] = exp(belief[i] - top)
        total += belief[i]
    for i in range(n):
        belief[i] = (1.0 - share) * belief[i] / total + share / n


@jit
def learn_row(
    row: Floats,
    label: int,
    weight: float,
    clock: Floats,
    counts: Floats,
    means: Floats,
    pooled: Floats,
    scatters: Floats,
    centre: Floats,
    prior: Floats,
    strengths: Floats,
    within: Floats,
    shared: Floats,
    squares: Floats,
    own: Floats,
    own_log_dets: Floats,
    work: Floats,
) -> None:
    """Add a row to its class; all arrays from ``clock`` on change in place."""
    n_classes, d = means.shape
    s, k0, u, h = exp(-clock[2]), prior[0], work[0], work[1]
    n = s * counts[label]
    k, f = k0 + n, n / (k0 + n)
    added = weight * k / (k + weight) / s
    for j in range(d):
        u[j] = row[j] - centre[j] - f * (means[label, j] - centre[j])
    grown = added * multiply(shared, u, h)
    prior[2] += log1p(grown)
    factor = added / (1.0 + grown)
    subtract(shared, h, factor)
    for c in range(n_classes):
        cross = 0.0
        for j in range(d):
            cross += (means[c, j] - centre[j]) * h[j]
        squares[c] -= factor * cross * cross
    for o in range(strengths.shape[0]):
        inverse = own[o, label]
        if counts[label] <= 0.0:
            inverse[:] = within * (s / strengths[o])
            own_log_dets[o, label] = prior[3] + d * log(strengths[o] / s)
        grown = added * multiply(inverse, u, h)
        own_log_dets[o, label] += log1p(grown)
        subtract(inverse, h, added / (1.0 + grown))
    more = weight / s
    for j in range(d):
        u[j] = row[j] - means[label, j]
    inner = more * counts[label] / (counts[label] + more)
    subtract(pooled, u, -inner)
    if strengths.shape[0]:
        subtract(scatters[label], u, -inner)
    for j in range(d):
        means[label, j] += more / (counts[label] + more) * u[j]
        u[j] = means[label, j] - centre[j]
    squares[label] = multiply(shared, u, h)
    counts[label] += more
    clock[0] += more
    clock[1] += weight


@jit
def forget(gone: float, clock: Floats, counts: Floats, pooled: Floats, scatters: Floats) -> bool:
    """Let time pass, in half-lives times ln 2; True if the prior must be put back in full."""
    clock[2] += gone
    if clock[2] <= LONGEST:
        return False
    s = exp(-clock[2])
    for k in range(counts.shape[0]):
        if counts[k] > 0.0:  # a class that was seen stays known
            counts[k] = max(s * counts[k], 1e-100)
    pooled *= s
    scatters *= s
    clock[0] *= s
    clock[2] = 0.0
    return True


@jit
def teaches_prior(counts: Floats) -> bool:
    """Whether the prior is learned again now that one more class has come."""
    n_live, every = (counts > 0.0).sum(), 1
    while MANY * every <= n_live:
        every *= 2
    return n_live % every == 0


@jit
def pass_rows(
    rows: Floats,
    labels: Labels,
    weights: Floats,
    gaps: Floats,
    rate: float,
    powers: Floats,
    concentrations: Floats,
    share: float,
    learned: int,
    due: int,
    often: bool,
    clock: Floats,
    counts: Floats,
    means: Floats,
    pooled: Floats,
    scatters: Floats,
    centre: Floats,
    prior: Floats,
    strengths: Floats,
    within: Floats,
    shared: Floats,
    squares: Floats,
    own: Floats,
    own_log_dets: Floats,
    known_belief: Floats,
    new_belief: Floats,
    evidence: Floats,
    out: Floats,
) -> tuple[int, int, bool]:
    """Predict each row, then learn it if it has a label.

    Parameters
    ----------
    rows, labels, weights, gaps : (b, d), (b,), (b,), (b,)
    rate : float
        ln 2 over the half-life.
    powers, concentrations, share
        (T,), (A,): what voices differ in; probability that another voice becomes the best one.
    learned, due : int
        Rows learned, and that number at which the prior is learned again.
    often : bool
        Whether the prior is learned again as classes come, and as time passes.
    clock, counts, ...
        See `GenerativeState`; they change in place.
    out : (b, K + 1)
        Probabilities are written here, that of a new class last.

    Returns
    -------
    n, learned, stopped : int, int, bool
        How many rows have passed; rows learned; whether the prior must now be learned again.
    """
    # over 80 lines: the parts of a row in their order, on arrays that they share
    n_classes, d = means.shape
    n_voices = 1 + strengths.shape[0]
    n_powers, n_each = powers.shape[0], concentrations.shape[0]
    densities, work = np.zeros((n_voices, n_classes + 1)), np.empty((3, d))
    known = np.empty((n_voices, n_powers, n_classes))
    new = np.empty((n_voices, n_powers, n_each))
    row = np.empty(d)
    for i in range(rows.shape[0]):
        for j in range(d):
            row[j] = centre[j] if np.isnan(rows[i, j]) else min(max(rows[i, j], -1e100), 1e100)
        label, weight = labels[i], min(weights[i], LARGEST_WEIGHT)
        any_seen = clock[1] > 0.0
        out[i, :n_classes], out[i, n_classes] = 0.0, 1.0
        write_densities(
            *(row, clock, counts, means, centre, prior, strengths, within, shared, squares),
            *(own, own_log_dets, work, densities),
        )
        if any_seen:
            write_voices(densities, counts, clock[1], powers, concentrations, known, new)
            fresh = 0.0
            for v in range(n_voices):
                for t in range(n_powers):
                    for a in range(n_each):
                        fresh += new_belief[v, t, a] * new[v, t, a]
                    for k in range(n_classes):
                        out[i, k] += known_belief[v, t] * known[v, t, k]
            fresh = min(fresh, 1.0 - _LEAST)  # known classes keep their odds
            for k in range(n_classes):
                out[i, k] *= 1.0 - fresh
            out[i, n_classes] = fresh
        if label < 0:
            continue
        is_new = counts[label] <= 0.0
        if any_seen or not often:
            for v in range(n_voices):
                evidence[v] += densities[v, n_classes if is_new else label]
        if any_seen:
            came = new if is_new else 1.0 - new
            judge(new_belief.reshape(-1), came.reshape(-1), weight, share)
            if not is_new:
                own_voice = known[:, :, label].copy()
                judge(known_belief.reshape(-1), own_voice.reshape(-1), weight, share)
        restore = forget(rate * gaps[i], clock, counts, pooled, scatters)
        learn_row(
            *(row, label, weight, clock, counts, means, pooled, scatters, centre, prior),
            *(strengths, within, shared, squares, own, own_log_dets, work),
        )
        learned += 1
        restore = restore or (is_new and teaches_prior(counts))
        if learned >= due or (often and restore):
            return i + 1, learned, True
    return rows.shape[0], learned, False
