"""Streams that are hard for a softmax: is it ever worse than one-hot targets? Writes its section.

Wrong labels, rare classes, many classes, columns of any size, a column that explodes, pure chance.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from page import alone, machine, table, write_section

from kalstream import KalmanClassifier, streams
from kalstream.errors import NumericalError

SEEDS = (0, 1, 2)
LIKELIHOODS = ("onehot", "auto")
Stream = tuple[np.ndarray, np.ndarray]


def packaged(name: str, n: int) -> Stream:
    """The first rows of a packaged stream."""
    rows, labels = [], []
    for batch in streams.open(name).batches():
        rows.append(np.asarray(batch.rows, np.float64))
        labels += list(batch.targets)
        if len(labels) >= n:
            break
    return np.concatenate(rows)[:n], np.array(labels)[:n]


def linear(n: int, d: int, k: int, seed: int, size: float = 3.0) -> Stream:
    """Labels of k classes by a noisy linear rule that turns slowly."""
    rng = np.random.default_rng([seed, k])
    rows, first, second = rng.standard_normal((n, d)), *rng.standard_normal((2, d, k))
    angle = np.linspace(0.0, np.pi / 2.0, n)[:, None]
    logits = np.cos(angle) * (rows @ first) + np.sin(angle) * (rows @ second)
    return rows, (size / np.sqrt(d) * logits + rng.gumbel(size=(n, k))).argmax(axis=1)


def wrong(share: float, stream: Stream, seed: int) -> Stream:
    """A part of the labels is drawn from all classes."""
    rng, (rows, labels) = np.random.default_rng(seed), stream
    hit = rng.random(len(labels)) < share
    return rows, np.where(hit, rng.choice(np.unique(labels), len(labels)), labels)


def rare(seed: int) -> Stream:
    """Three classes, one of which has a hundredth of the rows."""
    rows, labels = linear(40_000, 6, 3, seed)
    rng = np.random.default_rng(seed)
    keep = (labels != 2) | (rng.random(len(labels)) < 0.02)
    return rows[keep][:10_000], labels[keep][:10_000]


def many(seed: int) -> Stream:
    """Three thousand classes: noisy prototypes, each seen about twice."""
    rng = np.random.default_rng(seed)
    centres, labels = rng.standard_normal((3000, 64)), rng.integers(0, 3000, 6000)
    return centres[labels] + 0.7 * rng.standard_normal((6000, 64)), labels


def sized(seed: int) -> Stream:
    """Columns of sizes 1e6 and 1e-6."""
    rows, labels = linear(10_000, 6, 3, seed)
    return rows * np.array([1e6, 1e-6, 1.0, 1e3, 1e-3, 1.0]), labels


def exploding(seed: int) -> Stream:
    """A column that grows from 1 to 1e12."""
    rows, labels = linear(10_000, 6, 3, seed)
    return rows * np.where(np.arange(6) == 0, np.logspace(0, 12, 10_000)[:, None], 1.0), labels


def chance(seed: int) -> Stream:
    """Labels of two classes that do not depend on the rows."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((20_000, 6)), rng.integers(0, 2, 20_000)


CASES: dict[str, tuple[Callable[[int], Stream], str]] = {
    "linear rule": (lambda seed: linear(10_000, 6, 3, seed), "fourier"),
    "5% wrong": (lambda seed: wrong(0.05, linear(10_000, 6, 3, seed), seed), "fourier"),
    "20% wrong": (lambda seed: wrong(0.2, linear(10_000, 6, 3, seed), seed), "fourier"),
    "elec2, 5% wrong": (lambda seed: wrong(0.05, packaged("elec2", 15_000), seed), "fourier"),
    "elec2, 20% wrong": (lambda seed: wrong(0.2, packaged("elec2", 15_000), seed), "fourier"),
    "weather, 20% wrong": (lambda seed: wrong(0.2, packaged("weather", 15_000), seed), "fourier"),
    "a class of 1%": (rare, "fourier"),
    "3,000 classes": (many, "raw"),
    "columns of 1e6 and 1e-6": (sized, "fourier"),
    "the same, raw columns": (sized, "raw"),
    "a column that explodes": (exploding, "fourier"),
    "the same, raw columns ": (exploding, "raw"),
    "pure chance, second half": (chance, "fourier"),
}


@alone
def measure(name: str, likelihood: str, seed: int) -> tuple[float, float]:
    """Accuracy and log-loss of rows predicted one by one; NaN if the filters refuse a row."""
    make, features = CASES[name]
    rows, labels = make(seed)
    model = KalmanClassifier(features=features, likelihood=likelihood, random_state=seed)
    size = 50  # rows of a call; each row is predicted before it is learned
    hits, losses = [], []
    for i in range(0, len(rows), size):
        try:
            p = model.predict_then_learn(rows[i : i + size], labels[i : i + size].tolist())
        except NumericalError:
            return np.nan, np.nan
        codes = np.searchsorted(model.classes_, labels[i : i + size])
        mine = p[np.arange(len(p)), codes]
        known = (mine > 0.0) | ~np.isfinite(mine)  # the first row of a class has no probability
        hits.append((p.argmax(axis=1) == codes)[known])
        losses.append(-np.log(np.maximum(mine[known], 1e-15)))
    start = sum(map(len, losses)) // 2 if "chance" in name else 0
    return float(np.concatenate(hits)[start:].mean()), float(np.concatenate(losses)[start:].mean())


def main() -> None:
    """Measure all cases and write the section."""
    lines = []
    for name in CASES:
        cells = []
        for likelihood in LIKELIHOODS:
            scores = np.array([measure(name, likelihood, seed) for seed in SEEDS])
            spread = scores[:, 1].std(ddof=1)
            accuracy, loss = scores.mean(axis=0)
            cells.append(f"{accuracy:.4f} / {loss:.4f} ± {spread:.4f}")
            if np.isnan(loss):
                cells[-1] = "`NumericalError`"
            print(name, likelihood, cells[-1], flush=True)
        lines.append([name.strip(), *cells])
    body = [
        "## Hard streams",
        f"`python benchmarks/hard.py` on {machine()}.",
        table(["stream", *(f'`likelihood="{word}"`' for word in LIKELIHOODS)], lines),
        "Accuracy / log-loss, each row predicted before it is learned; means over seeds 0, 1, 2 "
        "and the standard deviation of the log-loss over them. A wrong label is drawn from all "
        "classes. `NumericalError`: float64 cannot hold the covariance of such columns, and the "
        "filter says so. The log-loss of pure chance is that of the second half; the entropy is "
        f"{np.log(2.0):.4f}.",
    ]
    write_section("hard", "\n\n".join(body))


if __name__ == "__main__":
    main()
