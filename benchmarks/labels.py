"""Time to learn new classes one by one: python benchmarks/labels.py [--classes 20000]."""

import argparse
from time import perf_counter

import numpy as np

from kalstream import KalmanClassifier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=20_000)
    n = parser.parse_args().classes
    rows = np.random.default_rng(0).standard_normal((n, 3))
    for name in ("warm-up", "measured"):
        model, start, half = KalmanClassifier(features="raw"), perf_counter(), 0.0
        for i in range(100 if name == "warm-up" else n):
            model.partial_fit(rows[i : i + 1], [f"label {i}"])
            if i == n // 2 - 1:
                half = perf_counter() - start
    whole = perf_counter() - start
    print(f"{n // 2:,} classes {half:.1f} s, {n:,} classes {whole:.1f} s: {whole / half:.2f} times")


if __name__ == "__main__":
    main()
