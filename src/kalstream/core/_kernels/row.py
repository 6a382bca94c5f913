"""One row under a bank, its mixture, its stacks and its watch, compiled; see `row.RowState`.

A chunk passes some thirty Python functions, which costs little for each of a hundred rows, but
several times the arithmetic of a single one. Import it on first use, as `chunk`.
"""

from __future__ import annotations

import numpy as np

from kalstream.core._kernels.alarm import watch_rows
from kalstream.core._kernels.bank import forget, store_row
from kalstream.core._kernels.chunk import mean_square, rows_are_sound
from kalstream.core._kernels.mixture import (
    LEAST_LOG,
    add_probit,
    learn_weights,
    normalise_row,
    predict_rows,
    probit_log_prob,
    probit_probabilities,
    row_is_sound,
    switch_weights,
    weigh_filters,
)
from kalstream.core._kernels.observing import ONEHOT, linearise_softmax
from kalstream.core._kernels.stacking import learn_rows
from kalstream.core._kernels.stacking import predict_rows as predict_stacked
from kalstream.core.alarm import ALARMS, BEGAN
from kalstream.core.jit import Floats, Labels, jit
from kalstream.core.state import SMALLEST_SCALE

# Places of parts in the numbers of a row, and how many there are; those of a stack come behind.
WEIGHTS, SCALES, NOW, USUAL, LEVELS, GAINS, ODDS, NUMBERS = range(8)
MEANS, VARIANCES, NOISE, NIS, COUNTS, ANSWER, GAP = range(8, 15)
# Of the judge by late labels.
JUDGED, BESIDE, BELIEFS = range(15, 18)
N_PARTS = 18
# Of each stack.
SEEN, RECENT, STAYS, COEF, PRECISION, BELIEF = range(6)
N_STACK_PARTS = 6

# Diagonals (J, m) of the covariances, pending rows (J, r, m) and coefficients (J, r, K).
Arrays = tuple[Floats, Floats, Floats]
# gammas (J, 1), prior variances (J,), prior scales (J,), calibrations (J, C), likelihoods (J,).
Filters = tuple[Floats, Floats, Floats, Floats, Labels]
# Half-lives (J,), shortest first, and the place of each among the filters.
Watched = tuple[Floats, Labels]
# Share of switching, prior precision (D,) and forgetting (H,) of the stacks.
Stacked = tuple[float, Floats, Floats]


@jit
def learn_row(
    before: Floats,
    at: Labels,
    phi: Floats,
    label: int,
    came: int,
    answers: int,
    arrays: Arrays,
    n_rows: int,
    products: tuple[Floats, Floats],
    filters: Filters,
    watched: Watched,
    stacked: Stacked,
    classes: Labels,
    spoken: Floats,
    noise_var: float,
    share: float,
    gap: float,
    epsilon: float,
    limits: tuple[float, float, float],
) -> tuple[Floats, bool]:
    """Predict a row, then learn its label; what a chunk of one row would give.

    Parameters
    ----------
    before, at : (W,), (P + 1,)
        The numbers of the state before the row, and where each part of them begins.
    phi : (1, m)
    label, came : int
        A class that has been seen; number of the row.
    answers : int
        -1: no probabilities are needed. 0: those of the mixture, corrected by the first stack if
        there is one. 1: corrected by the second one, which sees recent labels.
    arrays, n_rows
        Of the bank. A pending row is appended to the ``n_rows`` that there are.
    products : (J, 1, m), (J, 1, K)
        Of `bank_products`.
    classes : (S,)
        Those that have been seen.
    spoken : (2, X, K)
        Log-probabilities by experts beside the filters: as a stack hears them that does not use
        the labels just before a row, and all.
    noise_var, share, gap : float
        As of `Mixture.step_chunk`, of `Mixture`, and the time since the row before.
    epsilon, limits
        As of `scan_bank`.

    Returns
    -------
    after : (W,)
    sound : bool
        If not, the row has to be learned in another way, and nothing has changed.
    """
    # over 80 lines: the parts of a step in their order, each of them a call
    _, _, prior_scales, calibrations, _ = filters
    diagonals, rows, coefficients = arrays
    times_cov, times_mean = products
    n_filters, m, n_outputs = times_cov.shape[0], times_cov.shape[2], times_mean.shape[2]
    n_calibrations = calibrations.shape[1]
    after = before.copy()
    scales = after[at[SCALES] : at[SCALES + 1]].reshape((n_filters, 5))
    means = after[at[MEANS] : at[MEANS + 1]].reshape((n_filters, 1, n_outputs))
    variances = after[at[VARIANCES] : at[VARIANCES + 1]].reshape((n_filters, 1))
    noise = after[at[NOISE] : at[NOISE + 1]].reshape((n_filters, 1))
    nis = after[at[NIS] : at[NIS + 1]].reshape((n_filters, 1))
    gains, innovations = np.empty((n_filters, 1, m)), np.empty((n_filters, 1, n_outputs))
    step = means, variances, noise, nis, gains, innovations
    known = phi, label, diagonals, products, filters, classes, noise_var, gap
    if not scan_row(*known, epsilon, limits, scales, step):
        return before, False
    # Bayes' rule over the filters.
    log_weights = after[at[WEIGHTS] : at[WEIGHTS + 1]].reshape((n_filters, n_calibrations))
    weights = np.empty((1, n_filters, n_calibrations))
    log_liks, evidence = np.empty((n_filters, n_calibrations)), np.empty(n_filters)
    switch_weights(log_weights, 1.0 - (1.0 - share) ** gap, weights[0])
    for j in range(n_filters):
        var = max(variances[j, 0], 0.0)
        for c in range(n_calibrations):
            log_lik = probit_log_prob(means[j, 0], var, calibrations[j, c], label, classes)
            log_liks[j, c] = max(log_lik, LEAST_LOG)
    weigh_filters(weights[0], 1.0, log_liks, evidence)
    learn_weights(log_weights, 1.0, log_liks)
    # The drift alarm.
    half_lives, order = watched
    belief, variance = np.zeros((1, n_filters)), np.empty((1, n_filters))
    gathered = np.empty((1, n_filters))
    for j in range(n_filters):
        for c in range(n_calibrations):
            belief[0, j] += weights[0, order[j], c]
        variance[0, j] = variances[order[j], 0] / prior_scales[order[j]]
        gathered[0, j] = evidence[order[j]]
        after[at[NOW] + j] = belief[0, j]
    numbers = after[at[NUMBERS] : at[NUMBERS + 1]]
    alarms, n_bets = numbers[ALARMS], (at[ODDS + 1] - at[ODDS]) // n_filters
    watch_rows(
        *(half_lives, belief, variance, gathered),
        *(after[at[USUAL] : at[USUAL + 1]], after[at[LEVELS] : at[LEVELS + 1]]),
        after[at[GAINS] : at[GAINS + 1]],
        after[at[ODDS] : at[ODDS + 1]].reshape((n_filters, n_bets)),
        numbers,
    )
    if numbers[ALARMS] > alarms:
        numbers[BEGAN] = came
    # Probabilities, which the stacks correct.
    residual = np.empty(n_outputs)
    plain = np.zeros((1 if answers >= 0 else 0, n_outputs if answers >= 0 else 0))
    if answers >= 0:
        if not row_is_sound(means[:, 0], variances[:, 0], weights[0], calibrations):
            return before, False
        for j in range(n_filters):
            var = max(variances[j, 0], 0.0)
            for c in range(n_calibrations):
                add_probit(
                    *(means[j, 0], var, calibrations[j, c], weights[0, j, c]),
                    *(residual, plain[0]),
                )
        normalise_row(plain[0])
    n_stacks = (at.shape[0] - 1 - N_PARTS) // N_STACK_PARTS
    out, nothing = plain, np.zeros((0, 0))
    for s in range(n_stacks):
        given = plain if answers == s else nothing
        here, ordered = at[N_PARTS + s * N_STACK_PARTS :], answers == 1 and s == 1
        moments = means, variances, weights, calibrations
        heard = spoken[1:] if ordered else spoken[:1]
        made, sound = learn_stack(after, here, moments, heard, label, ordered, given, stacked)
        if not sound:
            return before, False
        if answers == s:
            out = made
    for k in range(out.shape[1]):
        after[at[ANSWER] + k] = out[0, k]
    after[at[COUNTS] + label] += 1.0
    after[at[GAP]] = gap
    for j in range(n_filters):  # last, since others may not read what is behind n_rows
        store_row(
            gains[j, 0], innovations[j, 0], scales[j], rows[j, n_rows], coefficients[j, n_rows]
        )
    return after, True


@jit
def scan_row(
    phi: Floats,
    label: int,
    diagonals: Floats,
    products: tuple[Floats, Floats],
    filters: Filters,
    classes: Labels,
    noise_var: float,
    gap: float,
    epsilon: float,
    limits: tuple[float, float, float],
    scales: Floats,
    step: tuple[Floats, Floats, Floats, Floats, Floats, Floats],
) -> bool:
    """Filters over one row, eqs. (7) and (8): `bank.scan_bank`. Returns whether it is sound.

    The arguments are those of `learn_row`. Scales (J, 5) change in place; ``step`` is written:
    means (J, 1, K), variances, noise and nis (J, 1), gains (J, 1, m), innovations (J, 1, K).
    """
    gammas, prior_vars, _, _, likelihoods = filters
    times_cov, times_mean = products
    means, variances, noise, nis, gains, innovations = step
    n_filters, m, n_outputs = times_cov.shape[0], times_cov.shape[2], times_mean.shape[2]
    residual, bounds, norm = np.empty(n_outputs), np.empty(m), 0.0
    for k in range(m):
        norm += phi[0, k] * phi[0, k]
    for j in range(n_filters):
        g, var = gammas[j, 0] ** gap, 0.0
        for k in range(m):
            bounds[k] = scales[j, 1] * diagonals[j, k] + scales[j, 2]
            var += times_cov[j, 0, k] * phi[0, k]
        kept, lost = g * g, (1.0 - g) * (1.0 + g) * prior_vars[j]
        var = kept * var + lost * norm
        for k in range(n_outputs):
            means[j, 0, k] = g * times_mean[j, 0, k]
        variances[j, 0] = var
        if likelihoods[j] == ONEHOT:
            noise[j, 0] = noise_var
            for k in range(n_outputs):
                residual[k] = (1.0 if k == label else 0.0) - means[j, 0, k]
        else:
            noise[j, 0], nis[j, 0] = linearise_softmax(
                means[j, 0], var, label, classes, 1.0, likelihoods[j], residual
            )
        sd = np.sqrt(var + noise[j, 0])
        for k in range(n_outputs):
            innovations[j, 0, k] = residual[k] / sd
        if likelihoods[j] == ONEHOT:
            nis[j, 0] = mean_square(innovations[j, 0])
        if not rows_are_sound(variances[j], noise[j], phi, bounds, epsilon, scales[j, 4], limits):
            return False
        for k in range(m):
            gains[j, 0, k] = (kept * times_cov[j, 0, k] + lost * phi[0, k]) / sd
        forget(scales[j], g, (1.0 - g) * (1.0 + g), prior_vars[j])
        if min(scales[j, 0], scales[j, 1]) < SMALLEST_SCALE:  # time to fold what is pending
            return False
    return True


@jit
def learn_stack(
    after: Floats,
    at: Labels,
    moments: tuple[Floats, Floats, Floats, Floats],
    spoken: Floats,
    label: int,
    ordered: bool,
    plain: Floats,
    stacked: Stacked,
) -> tuple[Floats, bool]:
    """`stacking.learn_rows` for one row; the parts of the stack begin at ``at``."""
    share, prior, keep = stacked
    n_classes, n_terms = at[SEEN + 1] - at[SEEN], at[COEF + 1] - at[COEF]
    labels, weight = np.array([label]), np.ones(1)
    own = after[at[BELIEF] : at[BELIEF + 1]]
    out, belief, last, bad = learn_rows(
        *(*moments, spoken, plain, labels, weight),
        *(ordered, share, prior, keep, own[0], int(own[1])),
        after[at[SEEN] : at[SEEN + 1]],
        after[at[RECENT] : at[RECENT + 1]].reshape((keep.shape[0], n_classes)),
        after[at[STAYS] : at[STAYS + 1]].reshape((n_classes, 2)),
        after[at[COEF] : at[COEF + 1]],
        after[at[PRECISION] : at[PRECISION + 1]].reshape((n_terms, n_terms)),
    )
    own[0], own[1] = belief, float(last)
    return out, bad < 0


@jit
def predict_row(
    numbers: Floats,
    at: Labels,
    phi: Floats,
    products: tuple[Floats, Floats],
    filters: Filters,
    stacked: Stacked,
    spoken: Floats,
    share: float,
    answers: int,
) -> tuple[Floats, bool]:
    """Class probabilities (1, K) of a row, and whether they are sound; see `learn_row`."""
    gammas, prior_vars, _, calibrations, _ = filters
    times_cov, times_mean = products
    log_weights = numbers[at[WEIGHTS] : at[WEIGHTS + 1]].reshape(calibrations.shape)
    mean, var, _, _, _, weights, _ = predict_rows(
        *(times_cov, times_mean, phi, gammas, np.ones(1), prior_vars, False, share, log_weights)
    )
    plain, bad = probit_probabilities(mean, var, weights, calibrations)
    if bad >= 0 or at.shape[0] - 1 == N_PARTS:
        return plain, bad < 0
    here = at[N_PARTS + answers * N_STACK_PARTS :]
    n_classes, n_lives = here[SEEN + 1] - here[SEEN], stacked[2].shape[0]
    belief, last = numbers[here[BELIEF]], int(numbers[here[BELIEF] + 1])
    out, bad = predict_stacked(
        *(mean, var, weights, calibrations, spoken[answers : answers + 1], plain),
        *(belief + stacked[0] * (0.5 - belief), last),
        numbers[here[SEEN] : here[SEEN + 1]],
        numbers[here[RECENT] : here[RECENT + 1]].reshape((n_lives, n_classes)),
        numbers[here[STAYS] : here[STAYS + 1]].reshape((n_classes, 2)),
        *(numbers[here[COEF] : here[COEF + 1]], answers == 1),
    )
    return out, bad < 0
