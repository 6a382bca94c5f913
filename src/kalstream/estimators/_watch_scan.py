"""The running averages of `_watch`, compiled. Imported on first use only."""

from __future__ import annotations

from typing import Any

from kalstream.core._jit import jit

Array = Any


@jit
def watch_rows(
    weights: Array,
    variance: Array,
    slow: float,
    warm_up: float,
    begin: float,
    end: float,
    usual: Array,
    numbers: Array,
) -> None:
    """Pass over half-life weights (b, J) and relative variances (b,); see `Watch.numbers`."""
    for i in range(weights.shape[0]):
        n = numbers[0]
        # How much of the posterior has moved to the shorter side of some half-life.
        distance, moved = 0.0, 0.0
        for j in range(weights.shape[1]):
            moved += weights[i, j] - usual[j]
            distance = max(distance, moved)
        if n < warm_up:
            distance = 0.0
        numbers[1] = distance
        if numbers[2] == 0.0 and distance > begin:
            numbers[2], numbers[3], numbers[4] = 1.0, n, distance
            numbers[5] += 1.0
        elif numbers[2] == 1.0:
            numbers[4] = max(numbers[4], distance)
            if distance < end:
                numbers[2] = 0.0
        rate = 1.0 / min(n + 1.0, slow)
        for j in range(weights.shape[1]):
            usual[j] += rate * (weights[i, j] - usual[j])
        numbers[6] += rate * (variance[i] - numbers[6])
        numbers[0] = n + 1.0
