"""The running averages and the evidence of `alarm`, compiled. Import it on first use."""

from __future__ import annotations

import math

import numpy as np

from kalstream.core.alarm import (
    AGE,
    ALARMS,
    BEGAN,
    BELIEF,
    BETS,
    BOUNDS,
    CONFIDENCE,
    EVIDENCE,
    ON,
    PEAK,
    RECENT,
    SLOW,
    VARIANCE,
    WARM_UP,
    N,
)
from kalstream.core.jit import Flags, Floats, jit


@jit
def watch_rows(
    half_lives: Floats,
    belief: Floats,
    variance: Floats,
    evidence: Floats,
    usual: Floats,
    levels: Floats,
    gains: Floats,
    odds: Floats,
    numbers: Floats,
) -> Flags:
    """Pass over beliefs and variances (b, W), and evidence (b, W) or (0, W); see `Watch`.

    Returns whether an alarm began with each row (b,).
    """
    began = np.zeros(belief.shape[0], np.bool_)
    by_evidence = evidence.shape[0] > 0
    for i in range(belief.shape[0]):
        n = numbers[N]
        if not by_evidence or evidence[i, 0] == evidence[i, 0]:
            ready = numbers[AGE] >= WARM_UP
            # The beginning, where filters learn fastest, is forgotten first.
            rate = 1.0 / min(numbers[AGE] / 3.0 + 1.0, SLOW)
            if by_evidence:
                row = belief[i], evidence[i], usual
                confidence = gathered(half_lives, *row, rate, ready, gains, odds)
            else:
                confidence = moved(belief[i], usual)
            numbers[CONFIDENCE] = confidence if ready else 0.0
            for j in range(usual.shape[0]):
                usual[j] += rate * (belief[i, j] - usual[j])
            numbers[AGE] += 1.0
        before = numbers[ALARMS]
        alarm(EVIDENCE if by_evidence else BELIEF, numbers)
        began[i] = numbers[ALARMS] > before
        rise, fall = VARIANCE
        rows = n / 3.0 + 1.0  # the beginning, where filters learn fastest, is forgotten first
        for j in range(levels.shape[0]):
            above = np.log(max(variance[i, j], 1e-300)) - levels[j]
            levels[j] += above / min(rows, rise if above > 0.0 else fall)
        numbers[N] = n + 1.0
    return began


@jit
def gathered(
    half_lives: Floats,
    belief: Floats,
    evidence: Floats,
    usual: Floats,
    rate: float,
    ready: bool,
    gains: Floats,
    odds: Floats,
) -> float:
    """Confidence that half-lives shorter than the usual ones have begun to predict better.

    For each half-life: how much better the shorter ones predicted the row, as a ratio of
    likelihoods. The shorter ones count by the belief of now, the filters of the half-life itself
    by their usual belief. ``gains`` (W,) has the usual ratio and ``odds`` (W, B) what each bet on
    more than that has won, both at the first filter of each half-life.
    """
    largest, most, rows = BOUNDS
    total, whole, first = 0.0, 0.0, 0
    shorter, top, mass = 0.0, -np.inf, 0.0  # shorter / mass * exp(top) is their likelihood
    while first < half_lives.shape[0]:
        last = first + 1
        while last < half_lives.shape[0] and half_lives[last] == half_lives[first]:
            last += 1
        highest, own, weight = evidence[first:last].max(), 0.0, 0.0
        for j in range(first, last):
            share = usual[j] + 1e-12  # before the first row all are alike
            own += share * np.exp(evidence[j] - highest)
            weight += share
        if mass > 0.0:
            log_ratio = top - highest + math.log(shorter / mass) - math.log(own / weight)
            ratio = math.exp(min(max(log_ratio, -math.log(largest)), math.log(largest)))
            if ready:
                won = ratio / max(gains[first], 1.0) - 1.0
                for k in range(len(BETS)):
                    after = max(odds[first, k], 1.0) * (1.0 + BETS[k] * won)
                    odds[first, k] = min(after, most)
            gains[first] += rate * (ratio - gains[first])
        total += weight * odds[first].mean()
        whole += weight
        for j in range(first, last):
            if evidence[j] > top:
                shorter *= np.exp(top - evidence[j])
                top = evidence[j]
            share = belief[j] + 1e-300  # without switching, weights can be 0
            shorter += share * np.exp(evidence[j] - top)
            mass += share
        first = last
    total /= whole
    return total / (total + rows)


@jit
def moved(belief: Floats, usual: Floats) -> float:
    """How much of the belief (W,) has moved to the shorter side of some half-life."""
    most, sum_ = 0.0, 0.0
    for j in range(usual.shape[0]):
        sum_ += belief[j] - usual[j]
        most = max(most, sum_)
    return most


@jit
def alarm(thresholds: tuple[float, float, float, float, float], numbers: Floats) -> None:
    """Begin or end an alarm, in place, from the confidence in ``numbers``."""
    begin, begin_average, end, rows, age = thresholds
    confidence = numbers[CONFIDENCE]
    numbers[RECENT] += (confidence - numbers[RECENT]) / rows
    if numbers[ON] == 0.0 and (confidence > begin or numbers[RECENT] > begin_average):
        numbers[ON], numbers[BEGAN], numbers[PEAK] = 1.0, numbers[N], confidence
        numbers[RECENT] = max(numbers[RECENT], confidence)
        numbers[ALARMS] += 1.0
    elif numbers[ON] == 1.0:
        numbers[PEAK] = max(numbers[PEAK], confidence)
        if max(confidence, numbers[RECENT]) < end:
            numbers[ON] = 0.0
    if numbers[ON] == 1.0:
        numbers[AGE] = min(numbers[AGE], age)
