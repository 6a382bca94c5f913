"""Exact class probabilities against 100 Monte Carlo samples. Writes its section of README.md."""

from __future__ import annotations

from functools import partial

import numpy as np
from page import alone, interleaved, machine, table, write_section

from kalstream.core import class_probabilities

TARGET = 3.0  # times faster at K = 100


@alone
def measure(n_classes: int, rows: int) -> tuple[float, float, float]:
    """Measure seconds of exact and sampled probabilities, and the largest relative error."""
    rng = np.random.default_rng(0)
    mean, var = 3.0 * rng.standard_normal((rows, n_classes)), rng.uniform(0.1, 4.0, rows)
    if rows == 1:
        mean, var = mean[0], var[0]
    draw = np.random.default_rng(1)
    exact = partial(class_probabilities, mean, var)
    sampled = partial(exact, method="monte-carlo", n_samples=100, random_state=draw)
    times = interleaved({"exact": exact, "sampled": sampled}, max(15, 3000 // rows))
    likely = exact() > 1e-3
    error = np.abs(sampled() / exact() - 1.0)[likely].max()
    return times["exact"], times["sampled"], float(error)


@alone
def measure_samples(n_classes: int = 100, rows: int = 10) -> list[list[str]]:
    """Measure time and error by number of samples, and of the exact integral, for ten rows."""
    rng = np.random.default_rng(0)
    mean, var = 3.0 * rng.standard_normal((rows, n_classes)), rng.uniform(0.1, 4.0, rows)
    draw = np.random.default_rng(1)
    numbers = (1, 10, 100, 1000)
    methods = {"exact": partial(class_probabilities, mean, var)}
    for n in numbers:
        drawn = partial(methods["exact"], method="monte-carlo", n_samples=n, random_state=draw)
        methods[f"S = {n}"] = drawn
    times = interleaved(methods, 200)
    truth = methods["exact"]()
    # Kullback-Leibler divergence from the exact probabilities; sampled ones are at least 1e-12.
    loss = {
        name: float(np.mean(np.sum(truth * np.log(truth / np.maximum(method(), 1e-12)), axis=1)))
        for name, method in methods.items()
    }
    return [
        [
            name,
            f"{1e6 * times[name] / rows:.3g} us",
            f"{times[name] / times['exact']:.2f}",
            f"{loss[name]:.4f}",
        ]
        for name in methods
    ]


def main() -> None:
    """Measure everything and write the section."""
    rows = []
    for n_classes in (10, 100, 1000):
        for n in (1, 10, 128):
            exact, sampled, error = measure(n_classes, n)
            target = f" (target {TARGET:g}x)" if n_classes == 100 else ""
            rows.append(
                [
                    str(n_classes),
                    str(n),
                    f"{1e6 * exact / n:.3g} us",
                    f"**{sampled / exact:.1f}x**{target}",
                    f"{error:.0%}",
                ]
            )
    body = [
        "## Class probabilities",
        f"`python benchmarks/predictive.py` on {machine()}.",
        table(["K", "rows", "exact, a row", "faster than 100 samples", "error of samples"], rows),
        "The samples are vectorised Monte Carlo, eq. (13). Their error is the largest relative "
        "error of probabilities above 1e-3. The exact integral is correct to 1e-6 "
        "(tests/core/test_predictive.py).",
        table(["K = 100, ten rows", "a row", "time / exact", "nats lost"], measure_samples()),
        "Nats lost: the mean log-loss that samples add to that of the exact probabilities.",
    ]
    write_section("predictive", "\n\n".join(body))


if __name__ == "__main__":
    main()
