"""Speed of the chunk recursion, as ratios within one run. Writes its section of README.md.

The chunk recursion is compared with a plain NumPy transcription of eqs. (7) and (8), and with the
two matrix products that every chunk needs: Phi A, and a rank-b update of A in place. Each case runs
in its own process. Otherwise the allocator keeps pages of larger arrays, and the transcription is
faster.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from page import alone, environment, interleaved, machine, table, write_section
from scipy.linalg import blas

from kalstream.core import Fixed, Learned, init, step_chunk

Array = NDArray[np.float64]
GAMMA = 0.999
# With these settings, glibc keeps every page that it gets from the system.
KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000"}
# (m, K, b), target against the transcription, target against the two products
CASES = [
    ((2048, 713, 128), 40.0, 1.5),
    ((512, 100, 128), 25.0, None),
    ((512, 100, 10), 20.0, None),
    ((512, 100, 1), 8.0, None),
]


def transcription(
    mean: Array, cov: Array, features: Array, labels: Array, noise_var: float, prior_var: float
) -> tuple[Array, Array]:
    """Update by eqs. (7) and (8), written as in the paper: the baseline."""
    m, n_classes = mean.shape
    for phi, label in zip(features, labels, strict=True):
        y = np.eye(n_classes)[label]
        mean_ = GAMMA * mean
        cov_ = GAMMA**2 * cov + (1.0 - GAMMA**2) * prior_var * np.eye(m)
        innovation_var = noise_var + phi @ cov_ @ phi
        mean = mean_ + np.outer(cov_ @ phi / innovation_var, y - phi @ mean_)
        cov = cov_ - np.outer(cov_ @ phi, phi @ cov_) / innovation_var
    return mean, cov


def chunks(m: int, n_classes: int, b: int, n: int) -> tuple[Array, Array]:
    """Features (n, b, m) and labels (n, b)."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, b, m)), rng.integers(0, n_classes, size=(n, b))


def two_products(m: int, b: int) -> Callable[[], None]:
    """Return a function that computes Phi A, and a rank-b update of A in place."""
    rng = np.random.default_rng(0)
    cov = np.asfortranarray(np.eye(m))
    features, gains = rng.normal(size=(b, m)), rng.normal(size=(b, m)) * 1e-9

    def run() -> None:
        blas.dgemm(1.0, cov, features.T)
        blas.dgemm(-1.0, gains.T, gains.T, beta=1.0, c=cov, trans_b=1, overwrite_c=1)

    return run


@alone
def measure(m: int, n_classes: int, b: int) -> dict[str, float]:
    """Measure seconds per chunk of the transcription, of step_chunk and of the two products."""
    noise_var, prior_var = 1.0 / n_classes, 1.0 / m
    n_chunks = max(4, 128 // b)  # enough chunks that the measurement includes deferred work
    features, labels = chunks(m, n_classes, b, n_chunks)
    posterior = [init(m, n_classes, prior_var=prior_var)]
    n_plain = 8  # rows for the transcription, whose time is proportional to the rows
    prior = np.zeros((m, n_classes)), np.eye(m) * prior_var
    rows, row_labels = features.reshape(-1, m)[:n_plain], labels.ravel()[:n_plain]

    def plain() -> None:
        transcription(*prior, rows, row_labels, noise_var, prior_var)

    def ours() -> None:
        for phi, y in zip(features, labels, strict=True):
            posterior[0], _ = step_chunk(
                posterior[0],
                phi,
                y,
                gamma=GAMMA,
                noise_var=noise_var,
                prior_var=prior_var,
                donate=True,
            )

    times = interleaved({"plain": plain, "ours": ours, "products": two_products(m, b)}, 25)
    times["plain"] *= b / n_plain
    times["ours"] /= n_chunks
    return times


@alone
def learned_ratio(m: int, n_classes: int, b: int) -> tuple[float, float]:
    """Measure seconds per chunk with fixed gamma, and with learned gamma."""
    features, labels = chunks(m, n_classes, b, 40)
    noise_var, prior_var = 1.0 / n_classes, 1.0 / m

    def runner(policy: Fixed | Learned) -> Callable[[], None]:
        state = [policy.start(m, n_classes, prior_var=prior_var)]

        def run() -> None:
            for phi, y in zip(features, labels, strict=True):
                state[0], _ = policy.step_chunk(
                    state[0], phi, y, noise_var=noise_var, prior_var=prior_var, donate=True
                )

        for _ in range(3):
            run()  # until every class has come
        return run

    tasks = {"fixed": runner(Fixed(GAMMA)), "learned": runner(Learned(GAMMA, 1e-4))}
    times = interleaved(tasks, 9)
    return times["fixed"] / 40, times["learned"] / 40


@alone
def memory_ratio(m: int, n_classes: int, b: int, donate: bool) -> float:
    """Peak memory of a step, with the state, divided by the size of the state."""
    features, labels = chunks(m, n_classes, b, 2)
    warm = init(1, 2, prior_var=1.0)
    step_chunk(warm, np.ones((20, 1)), np.zeros(20, int), gamma=1.0, noise_var=1.0, prior_var=1.0)
    tracemalloc.start()
    posterior = init(m, n_classes, prior_var=1.0 / m)
    for phi, y in zip(features, labels, strict=True):
        tracemalloc.reset_peak()
        posterior, _ = step_chunk(
            posterior, phi, y, gamma=GAMMA, noise_var=0.01, prior_var=1.0 / m, donate=donate
        )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / (8.0 * (m * m + m * n_classes))


def main() -> None:
    """Measure everything and write the section."""
    rows = []
    for (m, n_classes, b), target, product_target in CASES:
        times = measure(m, n_classes, b)
        with environment(**KEEP_PAGES):
            kept = measure(m, n_classes, b)
        over = times["ours"] / times["products"]
        rows.append(
            [
                f"({m}, {n_classes}, {b})",
                f"{1e3 * times['ours']:.3g} ms",
                f"**{times['plain'] / times['ours']:.1f}x** (target {target:g}x)",
                f"{kept['plain'] / kept['ours']:.1f}x",
                f"{over:.2f}" + (f" (target {product_target:g})" if product_target else ""),
            ]
        )
    fixed, learned = learned_ratio(512, 100, 10)
    body = [
        "## The chunk recursion",
        f"`python benchmarks/core.py` on {machine()}.",
        table(
            [
                "(m, K, b)",
                "time of a chunk",
                "faster than transcription",
                "the same, with pages kept",
                "time / two products",
            ],
            rows,
        ),
        "The transcription is eqs. (7) and (8) in plain NumPy. The two products are Phi A and a "
        "rank-b update of A in place, both by dgemm. float64, gamma = 0.999, integer labels. The "
        "transcription spends much of its time on new pages for temporary arrays. In the fourth "
        "column the allocator keeps its pages, which avoids this.",
        f"Gamma learned from exact class probabilities, at (512, 100, 10): {1e3 * learned:.3g} ms "
        f"a chunk, **{learned / fixed:.2f}** times the time with fixed gamma (target 2).",
        f"Peak memory of a step at (2048, 713, 128), with the state: "
        f"**{memory_ratio(2048, 713, 128, False):.2f}** times the state, "
        f"{memory_ratio(2048, 713, 128, True):.2f} times with `donate=True` (target 3).",
    ]
    write_section("core", "\n\n".join(body))


if __name__ == "__main__":
    main()
