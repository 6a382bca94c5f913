"""The running averages of `_watch`, compiled. Imported on first use only."""

from __future__ import annotations

import numpy as np

from kalstream.core.jit import Floats, jit
from kalstream.estimators._watch import ALARMS, BEGAN, DISTANCE, ON, PEAK, RECENT, N


@jit
def watch_rows(
    weights: Floats,
    variance: Floats,
    slow: float,
    warm_up: float,
    begin: float,
    begin_average: float,
    end: float,
    recent_rows: float,
    variance_rows: float,
    usual: Floats,
    levels: Floats,
    numbers: Floats,
) -> None:
    """Pass over half-life weights (b, J) and variances (b, J); see `Watch`."""
    for i in range(weights.shape[0]):
        n = numbers[N]
        # How much of the posterior has moved to the shorter side of some half-life.
        distance, moved = 0.0, 0.0
        for j in range(weights.shape[1]):
            moved += weights[i, j] - usual[j]
            distance = max(distance, moved)
        if n < warm_up:
            distance = 0.0
        numbers[DISTANCE] = distance
        numbers[RECENT] += (distance - numbers[RECENT]) / recent_rows
        if numbers[ON] == 0.0 and (distance > begin or numbers[RECENT] > begin_average):
            numbers[ON], numbers[BEGAN], numbers[PEAK] = 1.0, n, distance
            numbers[ALARMS] += 1.0
        elif numbers[ON] == 1.0:
            numbers[PEAK] = max(numbers[PEAK], distance)
            if max(distance, numbers[RECENT]) < end:
                numbers[ON] = 0.0
        rate = 1.0 / min(n + 1.0, slow)
        for j in range(weights.shape[1]):
            usual[j] += rate * (weights[i, j] - usual[j])
        rate = 1.0 / min(n + 1.0, variance_rows)
        for j in range(weights.shape[1]):
            levels[j] += rate * (np.log(max(variance[i, j], 1e-300)) - levels[j])
        numbers[N] = n + 1.0
