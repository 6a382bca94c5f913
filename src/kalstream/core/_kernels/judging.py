"""Judging by past predictions: weights and stacks over a sequence of events. Import on first use.

An event asks for a prediction, which is kept, or tells the target of one that was kept.
"""

from __future__ import annotations

import numpy as np

from kalstream.core._kernels.chunk import Integral, calibrated_terms
from kalstream.core._kernels.mixture import (
    gaussian_log_density,
    learn_spread,
    learn_weights,
    log_sum_exp,
    probit_log_prob,
    student_log_density,
    switch_weights,
    weigh_filters,
)
from kalstream.core._kernels.stacking import (
    KEEP,
    LARGEST_LOG_ODDS,
    LARGEST_WEIGHT,
    LEAST_PROBABILITY,
    blend,
    count_label,
    describe_filters,
    describe_labels,
    describe_spoken,
    newton_step,
    softmax,
)
from kalstream.core.jit import Flags, Floats, Labels, jit

# A target that comes after n others counts as (1 + n) to this power: their predictions were made
# from the same knowledge, and so their errors come together.
LATE = -2.0 / 3.0
_LEAST_LOG = -1e100


@jit
def judge_rows(
    asked: Flags,
    slot: Labels,
    gap: Floats,
    lag: Floats,
    labels: Labels,
    dense: Floats,
    noise_var: float,
    weight: Floats,
    moments: tuple[Floats, Floats],
    kept: tuple[Floats, Floats, Floats, Floats, Floats, Floats, Floats],
    calibrations: Floats,
    gammas: Floats,
    share: float,
    exact: Floats,
    learn_scale: bool,
    n_targets: int,
    log_weights: Floats,
    beside: Floats,
    spread: Floats,
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
    """Bayes' rule over J filters, C calibrations and X experts beside them, event by event.

    Parameters
    ----------
    asked, slot : (n,)
        Whether an event asks or tells, and the place of its row in ``kept``.
    gap, lag : (n,)
        Time since the last row that was learned; rows that came since then, but this one.
    labels, dense, weight : (n,), (n, K), (n,)
        Targets that come, as in `mixture.mix`; weight 0 where there is none.
    moments : (J, n, K), (J, n)
        Of the rows whose targets come, one step ahead; they learn the scale without a prediction.
    kept : (S, J, K), (S, J), (S, K), (S, X, K), (S, J, 2), (S,), (S,)
        Means, variances, classes known, log-probabilities of the experts, spread, number of
        targets known, and whether there is a prediction.
    calibrations, gammas : (J, C), (J,)
    exact : (n, J, C) or (0, 0, 0)
        Of `exact_kept`; without it, labels are judged by the probit approximation.
    n_targets : int
        Targets learned so far.
    log_weights, beside, spread : (J, C), (X,), (J, 2), changed in place
        ``beside`` has the logarithm of the experts' evidence over the filters' average.

    Returns
    -------
    weights, shares : (n, J, C), (n, X)
        Of the filters among themselves, and of the experts in the whole, before each event.
    scale, log_prob, evidence, rates : (n, J), (n,), (n, J), (n,)
        As in `mixture.mix`, and how much each target counted.
    """
    # over 80 lines: one pass, in which every event changes what the next one reads
    n_filters, n_calibrations = log_weights.shape
    n, n_beside = asked.shape[0], beside.shape[0]
    means, variances, active, experts, spreads, known_then, predicted = kept
    weights, shares = np.empty((n, n_filters, n_calibrations)), np.zeros((n, n_beside))
    scale, log_prob = np.ones((n, n_filters)), np.full(n, np.nan)
    evidence, rates = np.full((n, n_filters), np.nan), np.ones(n)
    log_liks, ahead = np.empty((n_filters, n_calibrations)), np.empty(log_weights.shape)
    every = np.empty(active.shape[1], np.int64)
    for i in range(n):
        s = slot[i]
        if asked[i]:
            rates[i] = (1.0 + lag[i]) ** LATE
            switch = 1.0 - (1.0 - share) ** (gap[i] * rates[i])
            for j in range(n_filters):
                for c in range(n_calibrations):
                    ahead[j, c] = log_weights[j, c]
            switch_weights(ahead, switch, weights[i])
            late = gap[i] * lag[i] / (1.0 + lag[i])
            look_ahead(weights[i], gammas, late, lag[i], switch, beside, shares[i])
        else:
            if predicted[s] > 0.0:
                rates[i] = (1.0 + (n_targets - known_then[s])) ** LATE
            switch = 1.0 - (1.0 - share) ** (gap[i] * rates[i])
            switch_weights(log_weights, switch, weights[i])
            for x in range(n_beside):
                beside[x] = switched_log(beside[x], switch)
        if learn_scale:
            for j in range(n_filters):
                scale[i, j] = spread[j, 1] / spread[j, 0]
                if asked[i]:
                    spreads[s, j, 0], spreads[s, j, 1] = spread[j]
        if asked[i]:
            known_then[s] = n_targets
            continue
        if not weight[i] > 0.0:
            continue
        n_targets += 1
        if learn_scale and not predicted[s] > 0.0:
            for j in range(n_filters):
                unit = max(moments[1][j, i], 0.0) + noise_var
                learn_spread(dense[i], moments[0][j, i], unit, weight[i], spread[j])
        if not predicted[s] > 0.0 or (labels.shape[0] and not active[s, labels[i]] > 0.0):
            continue
        unknown = False
        for j in range(n_filters):
            unknown = unknown or (learn_scale and not spreads[s, j, 1] > 0.0)
        classes = list_classes(active[s], every)
        for j in range(n_filters):
            mean, var = means[s, j], max(variances[s, j], 0.0)
            total = var + noise_var
            for c in range(n_calibrations):
                if unknown:
                    log_lik = 0.0
                elif learn_scale:
                    log_lik = student_log_density(dense[i], mean, total, spreads[s, j])
                elif labels.shape[0] == 0:
                    log_lik = gaussian_log_density(dense[i], mean, total)
                elif exact.shape[0]:
                    log_lik = exact[i, j, c]
                else:
                    log_lik = probit_log_prob(mean, var, calibrations[j, c], labels[i], classes)
                log_liks[j, c] = max(log_lik, _LEAST_LOG)
            if learn_scale:
                learn_spread(dense[i], mean, total, weight[i], spread[j])
        if unknown:
            continue
        power = weight[i] * rates[i]
        log_prob[i] = log_sum_exp(log_weights + log_liks)
        weigh_filters(weights[i], power, log_liks, evidence[i])
        average = log_sum_exp(log_weights + power * log_liks)
        for x in range(n_beside):
            beside[x] += power * max(experts[s, x, labels[i]], _LEAST_LOG) - average
        learn_weights(log_weights, power, log_liks)
    return weights, shares, scale, log_prob, evidence, rates


@jit
def look_far(
    asked: Flags,
    gap: Floats,
    features: Floats,
    prior_vars: Floats,
    gammas: Floats,
    means: Floats,
    variances: Floats,
    coefficients: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Moments (J, n, K), (J, n) and coefficients (J, n), a gap (n,) after those given, eq. (7).

    Those of rows that are told stay. features (n, m), prior_vars (J,) and gammas (J, 1) are of the
    rows and the filters.
    """
    mean, var, gamma = means.copy(), variances.copy(), coefficients.copy()
    for i in range(asked.shape[0]):
        norm = 0.0
        if not asked[i]:
            continue
        for m in range(features.shape[1]):
            norm += features[i, m] * features[i, m]
        for j in range(prior_vars.shape[0]):
            g = gammas[j, 0] ** gap[i]
            for k in range(mean.shape[2]):
                mean[j, i, k] *= g
            left = g * g * max(var[j, i], 0.0)
            var[j, i] = left + (1.0 - g) * (1.0 + g) * prior_vars[j] * norm
            gamma[j, i] = g
    return mean, var, gamma


@jit
def keep_frequencies(
    asked: Flags,
    slot: Labels,
    labels: Labels,
    weight: Floats,
    seen: Flags,
    counts: Floats,
    active: Floats,
    experts: Floats,
) -> None:
    """Write what the class frequencies say about each row that is asked for.

    Parameters
    ----------
    labels, weight : (n,)
        As in `judge_rows`.
    seen, counts : (K,), (K',)
        The classes that were seen before, and how often.
    active, experts : (S, K), (S, X, K), changed in place
        1 for the classes seen before each row; the first of the experts is the class frequencies.
    """
    n_outputs = seen.shape[0]
    now, known = np.empty(n_outputs), seen.copy()
    for k in range(n_outputs):
        now[k] = 0.5 + (counts[k] if k < counts.shape[0] else 0.0)
    for i in range(asked.shape[0]):
        if weight[i] > 0.0:
            now[labels[i]] += 1.0
            known[labels[i]] = True
        if not asked[i]:
            continue
        s, whole = slot[i], 0.0
        for k in range(n_outputs):
            whole += now[k] if known[k] else 0.0
        for k in range(n_outputs):
            active[s, k] = 1.0 if known[k] else 0.0
            experts[s, 0, k] = np.log(now[k] / max(whole, 0.5))


@jit
def mix_experts(
    asked: Flags,
    slot: Labels,
    shares: Floats,
    active: Floats,
    experts: Floats,
    plain: Floats,
) -> None:
    """Mix experts with shares (n, X) into probabilities (n, K), in place, of rows asked for.

    active (S, K) and experts (S, X, K) are as in `judge_rows`.
    """
    for i in range(asked.shape[0]):
        s, n_active, whole = slot[i], 0.0, 0.0
        for k in range(plain.shape[1]):
            n_active += active[s, k]
        # Frequencies predict nothing where classes are declared and none was seen.
        if not asked[i] or not n_active > 0.0:
            continue
        for x in range(shares.shape[1]):
            whole += shares[i, x]
        for k in range(plain.shape[1]):
            plain[i, k] *= 1.0 - whole
            for x in range(shares.shape[1]):
                if active[s, k] > 0.0:
                    plain[i, k] += shares[i, x] * np.exp(experts[s, x, k])


@jit
def exact_kept(
    asked: Flags,
    slot: Labels,
    labels: Labels,
    weight: Floats,
    means: Floats,
    variances: Floats,
    active: Floats,
    predicted: Floats,
    calibrations: Floats,
    integral: Integral,
) -> Floats:
    """Log predictive of each label that comes, eq. (13), by the earlier moments (n, J, C).

    The arguments are those of `judge_rows`. Few mixtures use it: see `mixture.exact_log_probs`.
    """
    n_filters, n = means.shape[1], asked.shape[0]
    out, scaled = np.zeros((n, *calibrations.shape)), np.empty(means.shape[2])
    every = np.empty(means.shape[2], np.int64)
    for i in range(n):
        s = slot[i]
        if (
            asked[i]
            or not weight[i] > 0.0
            or not predicted[s] > 0.0
            or not active[s, labels[i]] > 0.0
        ):
            continue
        classes = list_classes(active[s], every)
        for j in range(n_filters):
            var = max(variances[s, j], 0.0)
            for c in range(calibrations.shape[1]):
                known = means[s, j], var, calibrations[j, c], labels[i], classes, scaled
                out[i, j, c] = calibrated_terms(*known, integral)[0]
    return out


@jit
def list_classes(flags: Floats, out: Labels) -> Labels:
    """The classes whose flag (K,) is above 0, written into the front of out (K,)."""
    n = 0
    for k in range(flags.shape[0]):
        if flags[k] > 0.0:
            out[n] = k
            n += 1
    return out[:n]


@jit
def switched_log(evidence: float, switch: float) -> float:
    """Logarithm of (1 - switch) exp(evidence) + switch, without overflow and finite."""
    top = max(evidence, 0.0)
    inside = (1.0 - switch) * np.exp(evidence - top) + switch * np.exp(-top)
    return max(top + np.log(inside), _LEAST_LOG) if inside > 0.0 else max(evidence, _LEAST_LOG)


@jit
def look_ahead(
    weights: Floats,
    gammas: Floats,
    late: float,
    lag: float,
    switch: float,
    beside: Floats,
    shares: Floats,
) -> None:
    """Weights (J, C), in place, and shares (X,) of experts beside, if the last targets are missing.

    Before any evidence a filter counts by the part of its weights that is left over the time that
    is ``late``, gamma to that power. The experts beside count as much as all filters together if
    many targets are missing, and nothing if none is.
    """
    n_filters, n_calibrations = weights.shape
    if not lag > 0.0:
        return
    left, held = 0.0, 0.0
    for j in range(n_filters):
        g = gammas[j] ** late
        left += g
        for c in range(n_calibrations):
            weights[j, c] *= g
            held += weights[j, c]
    if not held > 0.0:  # all filters forget everything
        held = left = 1.0
    for j in range(n_filters):
        for c in range(n_calibrations):
            weights[j, c] /= held
    prior = 0.5 * lag / (1.0 + lag) if shares.shape[0] else 0.0
    top = 0.0
    for x in range(shares.shape[0]):
        top = max(top, beside[x])
    # The average evidence of the filters is 1, each filter having 1 / J of the prior.
    total = (1.0 - prior) * held * n_filters / left * np.exp(-top)
    for x in range(shares.shape[0]):
        evidence = (1.0 - switch) * np.exp(beside[x] - top) + switch * np.exp(-top)
        shares[x] = prior / shares.shape[0] * evidence
        total += shares[x]
    for x in range(shares.shape[0]):
        shares[x] /= total


@jit
def stack_rows(
    asked: Flags,
    slot: Labels,
    labels: Labels,
    weight: Floats,
    rates: Floats,
    moments: tuple[Floats, Floats, Floats, Floats],
    experts: tuple[Floats, Floats],
    spoken: Floats,
    plain: Floats,
    ordered: bool,
    share: float,
    prior: Floats,
    keep: Floats,
    described: Floats,
    counted: Floats,
    belief: float,
    last: int,
    counts: Floats,
    recent: Floats,
    stays: Floats,
    coef: Floats,
    precision: Floats,
) -> tuple[Floats, float, int, int]:
    """As `stacking.learn_rows`, over events: a target is judged by what was described for its row.

    Parameters
    ----------
    asked, slot, labels, weight, rates
        As in `judge_rows`, which returns the rates.
    moments : (J, n, K), (J, n), (n, J, C), (J, C)
        Means, variances, weights and calibrations.
    experts : (n, X), (S, X, K)
        Shares of the experts beside the filters, and their log-probabilities.
    spoken : (n, X', K)
        Log-probabilities by the experts that are terms of the stack, at each event.
    plain : (n, K')
        Probabilities to correct, in the rows that are asked for.
    described, counted : (S, K, D), (S, K), changed in place
        What the stack saw of each row that is kept, and the classes that it knew then.

    The rest, and what is returned, is as in `stacking.learn_rows`.
    """
    means, variances, weights, calibrations = moments
    shares, log_probabilities = experts
    n_filters, n_outputs = means.shape[0], means.shape[2]
    out, n_terms = plain.copy(), coef.shape[0]
    every = np.empty(max(counts.shape[0], counted.shape[1]), np.int64)
    for i in range(asked.shape[0]):
        s = slot[i]
        if asked[i]:
            active = list_classes(counts, every)
            if len(active) == 0:
                continue
            if active[-1] >= min(out.shape[1], n_outputs):
                return out, belief, last, i
            rows, own = np.zeros((len(active), n_terms)), np.empty(len(active))
            sound = describe_filters(
                means[:, i], variances[:, i], weights[i], calibrations, active, rows
            )
            add_experts(shares[i], log_probabilities[s], active, rows)
            if ordered and last >= 0:
                describe_labels(counts, recent, stays, last, active, n_filters + 1, rows)
            describe_spoken(spoken[i], active, rows)
            softmax(rows, coef, own)
            switch = 1.0 - (1.0 - share) ** rates[i]
            now = belief + switch * (0.5 - belief)
            if not (sound and own.sum() < 2.0 and blend(own, now, active, out[i])):
                return out, belief, last, i
            for a in range(len(active)):
                described[s, active[a]] = rows[a]
                counted[s, active[a]] = 1.0
            continue
        label = labels[i]
        if not weight[i] > 0.0:
            continue
        if counted[s, label] > 0.0:
            active = list_classes(counted[s], every)
            rows, own = np.empty((len(active), n_terms)), np.empty(len(active))
            place, rate = 0, rates[i]
            for a in range(len(active)):
                place = a if active[a] == label else place
                for d in range(n_terms):
                    rows[a, d] = described[s, active[a], d]
            softmax(rows, coef, own)
            switch = 1.0 - (1.0 - share) ** rate
            now = belief + switch * (0.5 - belief)
            w = min(weight[i], LARGEST_WEIGHT) * rate
            odds = np.log(now / (1.0 - now))
            odds += w * (np.log(max(own[place], LEAST_PROBABILITY)) - rows[place, 0])
            belief = 1.0 / (1.0 + np.exp(-min(max(odds, -LARGEST_LOG_ODDS), LARGEST_LOG_ODDS)))
            newton_step(rows, own, place, w, KEEP**rate, prior, coef, precision)
            if not abs(coef.sum() + belief) < np.inf:
                return out, belief, last, i
        count_label(label, last, keep, counts, recent, stays)
        last = label
    return out, belief, last, -1


@jit
def choose_rows(
    asked: Flags,
    slot: Labels,
    gap: Floats,
    lag: Floats,
    labels: Labels,
    dense: Floats,
    weight: Floats,
    rates: Floats,
    since: Labels,
    made: Floats,
    answers: Floats,
    known_then: Floats,
    share: float,
    beliefs: Floats,
) -> Floats:
    """Averages (n, W) of A predictions (n, A, W) of each row that is asked for.

    W is K' probabilities, or 2 K' means and variances. answers (S, A, W) and beliefs (A,) change in
    place; see `judging.choose`. The first prediction alone counts if no target is late; the others
    have half of the prior weight if many are. The second half of them are in the order of targets.
    """
    n, n_answers, width = made.shape
    out, now, scores = np.zeros((n, width)), np.empty(n_answers), np.empty(n_answers)
    for i in range(n):
        s = slot[i]
        switch = 1.0 - (1.0 - share) ** (gap[i] * rates[i])
        for a in range(n_answers):
            now[a] = beliefs[a] + switch * (1.0 / n_answers - beliefs[a])
        if asked[i]:
            # Since an alarm that few labels followed, only the order of labels knows the change.
            calm = since[i] == 0 or known_then[s] - since[i] >= lag[i]
            if labels.shape[0] and calm:
                doubt_order(now, 1.0 - (1.0 - share) ** gap[i])
            others = 0.5 * lag[i] / (1.0 + lag[i])
            now[0] *= 1.0 - others
            whole = now[0]
            for a in range(1, n_answers):
                now[a] *= others / (n_answers - 1)
                whole += now[a]
            for a in range(n_answers):
                now[a] /= whole
            for a in range(n_answers):
                for k in range(width):
                    out[i, k] += now[a] * made[i, a, k]
                    answers[s, a, k] = made[i, a, k]
            if labels.shape[0] == 0:
                add_spread(now, made[i], out[i])
            continue
        for a in range(n_answers):
            beliefs[a] = now[a]
        if not weight[i] > 0.0 or known_then[s] < since[i]:
            continue
        if labels.shape[0]:
            for a in range(n_answers):
                scores[a] = answers[s, a, labels[i]]
        else:
            compare_densities(answers[s], dense[i], scores)
        top, whole = 0.0, 0.0
        for a in range(n_answers):
            top = max(top, scores[a])
        if not top > 0.0:
            continue
        power = min(weight[i], LARGEST_WEIGHT) * rates[i]
        for a in range(n_answers):
            beliefs[a] *= max(scores[a], LEAST_PROBABILITY) ** power
            whole += beliefs[a]
        for a in range(n_answers):
            beliefs[a] = max(beliefs[a] / whole, LEAST_PROBABILITY)  # it may come back
    return out


@jit
def doubt_order(beliefs: Floats, switch: float) -> None:
    """Divide the odds of the second half of beliefs (A,) by themselves to this power, if above 1.

    No label has told for a while whether the order of labels is still better.
    """
    half = beliefs.shape[0] // 2
    late, in_order = beliefs[:half].sum(), beliefs[half:].sum()
    if in_order > late:
        beliefs[half:] *= (late / in_order) ** switch


@jit
def add_spread(weights: Floats, made: Floats, out: Floats) -> None:
    """Add to the average variances, behind the means (2 K,), the variances between A means."""
    n_outputs = out.shape[0] // 2
    for a in range(weights.shape[0]):
        for k in range(n_outputs):
            out[n_outputs + k] += weights[a] * (made[a, k] - out[k]) ** 2


@jit
def compare_densities(answers: Floats, target: Floats, scores: Floats) -> None:
    """Densities (A,) of a target (K,), over the largest; 0 if a variance is unknown.

    From means and variances (A, 2 K).
    """
    n_outputs = target.shape[0]
    for a in range(scores.shape[0]):
        scores[a] = 0.0
        for k in range(n_outputs):
            var = answers[a, n_outputs + k]
            if not 0.0 < var < np.inf:
                scores[:] = 0.0
                return
            scores[a] -= 0.5 * (np.log(var) + (target[k] - answers[a, k]) ** 2 / var)
    scores[:] = np.exp(scores - scores.max())


@jit
def add_experts(
    shares: Floats, log_probabilities: Floats, active: Labels, described: Floats
) -> None:
    """Mix experts beside the filters, (X,) and (X, K), into the first column of (A, D)."""
    whole = shares.sum()
    if not whole > 0.0:
        return
    for a in range(len(active)):
        p = (1.0 - whole) * np.exp(described[a, 0])
        for x in range(shares.shape[0]):
            p += shares[x] * np.exp(log_probabilities[x, active[a]])
        described[a, 0] = np.log(max(p, LEAST_PROBABILITY))
