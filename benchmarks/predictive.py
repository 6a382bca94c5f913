"""Exact class probabilities against Monte Carlo with 100 samples: time per call, and their ratio.

Run on one BLAS thread: OPENBLAS_NUM_THREADS=1 python benchmarks/predictive.py
"""

import time

import numpy as np

from kalstream.core.predictive import class_probabilities


def seconds(call, budget=0.2, repeats=5):
    """Best of a few mean times of a call."""
    call()
    start = time.perf_counter()
    call()
    n = max(1, int(budget / repeats / max(time.perf_counter() - start, 1e-6)))
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(n):
            call()
        best = min(best, (time.perf_counter() - start) / n)
    return best


def main():
    rng = np.random.default_rng(0)
    print(
        f"{'K':>5} {'b':>4} {'exact us':>10} {'sampled us':>11} {'ratio':>6} {'sampled error':>14}"
    )
    for n_classes in (10, 100, 1000):
        for rows in (1, 10, 128):
            mean = 3.0 * rng.standard_normal((rows, n_classes))
            var = rng.uniform(0.1, 4.0, rows)
            if rows == 1:
                mean, var = mean[0], var[0]
            draw = np.random.default_rng(1)
            exact = class_probabilities(mean, var)
            sampled = class_probabilities(mean, var, method="monte-carlo", random_state=draw)
            fast = seconds(lambda: class_probabilities(mean, var))  # noqa: B023
            slow = seconds(
                lambda: class_probabilities(mean, var, method="monte-carlo", random_state=draw)  # noqa: B023
            )
            error = np.abs(sampled / exact - 1.0)[exact > 1e-3].max()
            print(
                f"{n_classes:5d} {rows:4d} {fast * 1e6:10.1f} {slow * 1e6:11.1f} "
                f"{slow / fast:6.1f} {error:14.0%}"
            )


if __name__ == "__main__":
    main()
