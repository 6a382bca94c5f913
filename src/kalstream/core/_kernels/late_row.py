"""One row that is asked for, or whose label comes late, compiled; see `row.RowState`.

Import it on first use, as `chunk`.
"""

from __future__ import annotations

import numpy as np

from kalstream.core._kernels.judging import (
    choose_rows,
    judge_rows,
    keep_frequencies,
    mix_experts,
    stack_rows,
)
from kalstream.core._kernels.mixture import predict_rows, probit_probabilities
from kalstream.core._kernels.row import (
    BELIEF,
    BELIEFS,
    BESIDE,
    COEF,
    COUNTS,
    JUDGED,
    N_PARTS,
    N_STACK_PARTS,
    PRECISION,
    RECENT,
    SEEN,
    STAYS,
    WEIGHTS,
    Filters,
    Stacked,
)
from kalstream.core._kernels.stacking import predict_rows as predict_stacked
from kalstream.core.jit import Flags, Floats, Labels, jit


@jit
def pass_event(
    numbers: Floats,
    at: Labels,
    kept: Floats,
    cuts: Labels,
    event: tuple[bool, int, float, float, int],
    phi: Floats,
    products: tuple[Floats, Floats],
    filters: Filters,
    stacked: Stacked,
    spoken: Floats,
    seen: Flags,
    share: float,
    since: int,
) -> tuple[Floats, bool]:
    """Predict a row and keep what is predicted, or judge by what was kept; as chunks of one event.

    Parameters
    ----------
    numbers, at : (W,), (P + 1,)
        As of `row.learn_row`; where a label comes, after it. A judgement changes them in place.
    kept, cuts : (W',), (11,)
        A row of `Kept.packed`, written in place if the row is asked for; where its parts begin.
    event : (asked, label, gap, lag, n_targets)
        As in `judging.judge_rows`.
    phi, products
        As of `row.learn_row`; where a label comes, their values are not read.
    spoken : (2, X, K)
        As of `row.learn_row`; where a label comes, only its shape has a meaning. It may change.
    seen : (K,)
        Classes that have been seen.
    since : int
        As in `LateJudge`.

    Returns
    -------
    averages : (1, K)
        Class probabilities of a row that is asked for.
    sound : bool
    """
    # over 80 lines: the parts of an event in their order, each of them a call
    asked, label, gap, lag, n_targets = event
    gammas, prior_vars, _, calibrations, _ = filters
    n_filters, n_outputs = calibrations.shape[0], seen.shape[0]
    log_weights = numbers[at[JUDGED] : at[JUDGED + 1]].reshape(calibrations.shape)
    beside = numbers[at[BESIDE] : at[BESIDE + 1]]
    beliefs = numbers[at[BELIEFS] : at[BELIEFS + 1]]
    flags, slot, labels = np.array([asked]), np.zeros(1, np.int64), np.array([label])
    weight, gaps, lags = np.array([0.0 if asked else 1.0]), np.array([gap]), np.array([lag])
    means = kept[cuts[0] : cuts[1]].reshape((1, n_filters, n_outputs))
    variances = kept[cuts[1] : cuts[2]].reshape((1, n_filters))
    active = kept[cuts[2] : cuts[3]].reshape((1, n_outputs))
    experts = kept[cuts[3] : cuts[4]].reshape((1, beside.shape[0], n_outputs))
    known_then, is_known = kept[cuts[5] : cuts[6]], kept[cuts[6] : cuts[7]]
    answers = kept[cuts[9] : cuts[10]].reshape((1, beliefs.shape[0], n_outputs))
    near, near_var = np.zeros((n_filters, 1, n_outputs)), np.zeros((n_filters, 1))
    far, far_var, now = near, near_var, np.zeros((1, n_filters, calibrations.shape[1]))
    if asked:
        weighed = numbers[at[WEIGHTS] : at[WEIGHTS + 1]].reshape(calibrations.shape)
        rest = prior_vars, False, 0.0, weighed
        step = np.array([gap / (1.0 + lag)])
        near, near_var, _, _, _, now, _ = predict_rows(*products, phi, gammas, step, *rest)
        far, far_var, _, _, _, _, _ = predict_rows(*products, phi, gammas, gaps, *rest)
        for j in range(n_filters):
            variances[0, j] = far_var[j, 0]
            for k in range(n_outputs):
                means[0, j, k] = far[j, 0, k]
        is_known[0] = 1.0
        counts = numbers[at[COUNTS] : at[COUNTS + 1]]
        keep_frequencies(flags, slot, labels, weight, seen, counts, active, experts)
        experts[0, 1:] = spoken[1]
        if lag > 0.0:  # as in `Classification.keep` and `judge`
            experts[0, 1:] = experts[0, :1]
            spoken[1] = 0.0
    spread, none = np.zeros((1, n_filters, 2)), np.empty((0, 0, 0))
    predicted = means, variances, active, experts, spread, known_then, is_known
    weights, shares, _, _, _, rates = judge_rows(
        *(flags, slot, gaps, lags, labels, np.empty((1, 0)), 0.0, weight, (far, far_var)),
        *(predicted, calibrations, gammas[:, 0], share, none, False, n_targets),
        *(log_weights, beside, spread[0]),
    )
    in_order, late = np.zeros((1, n_outputs)), np.zeros((1, n_outputs))
    if asked:
        in_order, bad = probit_probabilities(near, near_var, now, calibrations)
        late, other = probit_probabilities(far, far_var, weights, calibrations)
        if max(bad, other) >= 0:
            return late, False
        mix_experts(flags, slot, shares, active, experts, late)
    made = np.empty((1, beliefs.shape[0], n_outputs))
    n_made = 0
    if at.shape[0] - 1 > N_PARTS:
        first, here = at[N_PARTS:], at[N_PARTS + N_STACK_PARTS :]
        n_terms, n_lives = here[COEF + 1] - here[COEF], stacked[2].shape[0]
        own = numbers[here[BELIEF] : here[BELIEF + 1]]
        by_stack = in_order
        if asked:
            belief, last = numbers[first[BELIEF]], int(numbers[first[BELIEF] + 1])
            by_stack, bad = predict_stacked(
                *(near, near_var, now, calibrations, spoken[:1], in_order),
                *(belief + stacked[0] * (0.5 - belief), last),
                numbers[first[SEEN] : first[SEEN + 1]],
                numbers[first[RECENT] : first[RECENT + 1]].reshape((n_lives, n_outputs)),
                numbers[first[STAYS] : first[STAYS + 1]].reshape((n_outputs, 2)),
                *(numbers[first[COEF] : first[COEF + 1]], False),
            )
            if bad >= 0:
                return late, False
        by_late, belief, last, bad = stack_rows(
            *(flags, slot, labels, weight, rates, (far, far_var, weights, calibrations)),
            *((shares, experts), spoken[1:], late, True, *stacked),
            kept[cuts[7] : cuts[8]].reshape((1, n_outputs, n_terms)),
            kept[cuts[8] : cuts[9]].reshape((1, n_outputs)),
            *(own[0], int(own[1])),
            numbers[here[SEEN] : here[SEEN + 1]],
            numbers[here[RECENT] : here[RECENT + 1]].reshape((n_lives, n_outputs)),
            numbers[here[STAYS] : here[STAYS + 1]].reshape((n_outputs, 2)),
            numbers[here[COEF] : here[COEF + 1]],
            numbers[here[PRECISION] : here[PRECISION + 1]].reshape((n_terms, n_terms)),
        )
        if bad >= 0:
            return late, False
        if not asked:
            own[0], own[1] = belief, float(last)
        made[0, 0], made[0, 2] = by_late[0], by_stack[0]
        n_made = 1
    made[0, n_made], made[0, -1] = late[0], in_order[0]
    out = choose_rows(
        *(flags, slot, gaps, lags, labels, np.empty((1, 0)), weight, rates),
        *(np.array([since]), made, answers, known_then, share, beliefs),
    )
    return out, True
