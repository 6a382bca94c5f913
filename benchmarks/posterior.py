"""How far the filters are from the true posterior of softmax regression. Writes its section.

The truth comes from a long Monte Carlo run over the weights of a small problem without drift.
"""

from __future__ import annotations

import numpy as np
from page import alone, machine, table, write_section

from kalstream.core import Fixed, class_probabilities

# Number of features and classes, and of rows learned.
CASES = [(2, 2, 20), (2, 2, 200), (3, 3, 30), (3, 3, 300), (4, 6, 60), (4, 6, 600), (3, 12, 300)]
PRIOR_VAR = 4.0
CHAINS, STEPS, BURN_IN = 100, 500, 100
SEEDS = range(5)
# Of one-hot filters; the best of these on the rows to predict is reported.
ALPHAS = (1.0, 3.0, 7.0, 15.0, 35.0, 80.0)


def log_likelihood(weights: np.ndarray, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Log-likelihood (c,) of labels (n,) under weights (c, m, K)."""
    logits = features @ weights  # (c, n, K)
    top = logits.max(axis=2, keepdims=True)
    norm = top[..., 0] + np.log(np.exp(logits - top).sum(axis=2))
    return (logits[:, np.arange(len(labels)), labels] - norm).sum(axis=1)


def laplace(
    features: np.ndarray, labels: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Mode (m K,) of the posterior, and a root (m K, m K) of the inverse of its curvature."""
    m, k = shape
    onehot, weights = np.eye(k)[labels], np.zeros(shape)
    for _ in range(100):
        logits = features @ weights
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        slope = features.T @ (onehot - p) - weights / PRIOR_VAR
        bend = np.einsum("ni,nj,nkl->ikjl", features, features, _curvature(p)).reshape(m * k, m * k)
        bend += np.eye(m * k) / PRIOR_VAR
        weights += np.linalg.solve(bend, slope.ravel()).reshape(shape)
    return weights.ravel(), np.linalg.cholesky(np.linalg.inv(bend))


def _curvature(p: np.ndarray) -> np.ndarray:
    """diag(p) - p p' (n, K, K) of probabilities (n, K)."""
    return np.einsum("nk,kl->nkl", p, np.eye(p.shape[1])) - np.einsum("nk,nl->nkl", p, p)


def sampled(
    features: np.ndarray, labels: np.ndarray, shape: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
    """Samples (s, m, K) of the posterior: elliptical slice sampling, many chains at once.

    Murray, Adams and MacKay (2010), "Elliptical slice sampling": it has nothing to tune. The
    ellipses are those of the Laplace approximation; its density is divided out.
    """
    mode, root = laplace(features, labels, shape)

    def log_ratio(white: np.ndarray) -> np.ndarray:
        """Log of posterior over Laplace approximation (c,), at mode + root white (c, m K)."""
        weights = mode + white @ root.T
        log_prior = -0.5 * np.square(weights).sum(axis=1) / PRIOR_VAR
        data = log_likelihood(weights.reshape(-1, *shape), features, labels)
        return data + log_prior + 0.5 * np.square(white).sum(axis=1)

    white = rng.standard_normal((CHAINS, len(mode)))
    now = log_ratio(white)
    kept = []
    for step in range(STEPS):
        other = rng.standard_normal(white.shape)
        level = now + np.log(rng.random(CHAINS))
        angle = 2.0 * np.pi * rng.random(CHAINS)
        low, high = angle - 2.0 * np.pi, angle.copy()
        todo = np.arange(CHAINS)
        after, found = white.copy(), now.copy()
        while len(todo):
            turn = angle[todo, None]
            trial = white[todo] * np.cos(turn) + other[todo] * np.sin(turn)
            value = log_ratio(trial)
            good = value > level[todo]
            after[todo[good]], found[todo[good]] = trial[good], value[good]
            todo = todo[~good]
            below = angle[todo] < 0.0
            low[todo[below]], high[todo[~below]] = angle[todo[below]], angle[todo[~below]]
            angle[todo] = low[todo] + (high[todo] - low[todo]) * rng.random(len(todo))
        white, now = after, found
        if step >= BURN_IN and step % 10 == 0:
            kept.append(mode + white @ root.T)
    return np.concatenate(kept).reshape(-1, *shape)


def divergence(truth: np.ndarray, guess: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence of probabilities (n, K) from the true ones."""
    return float(np.mean(np.sum(truth * np.log(truth / np.maximum(guess, 1e-12)), axis=1)))


def filtered(
    likelihood: str, features: np.ndarray, labels: np.ndarray, shape: tuple[int, int], noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (m, K) and covariance (m, m) of a filter that forgets nothing."""
    policy = Fixed(1.0, likelihood=likelihood)
    prior_var = PRIOR_VAR if likelihood == "softmax" else 1.0
    state = policy.start(*shape, prior_var=prior_var)
    state, _ = policy.step_chunk(state, features, labels, noise_var=noise, prior_var=prior_var)
    return state.posterior.mean, state.posterior.cov


@alone
def measure(m: int, k: int, n: int) -> list[float]:
    """Divergences of the two filters, and the softmax filter's errors of mean and spread."""
    results = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        true = np.sqrt(PRIOR_VAR) * rng.standard_normal((m, k))
        features, ahead = rng.standard_normal((n, m)), rng.standard_normal((500, m))
        gumbel = rng.gumbel(size=(n, k))
        labels = (features @ true + gumbel).argmax(axis=1)
        labels[:k] = np.arange(k)  # each class has come
        samples = sampled(features, labels, (m, k), rng)
        logits = ahead @ samples  # (s, 500, K)
        odds = np.exp(logits - logits.max(axis=2, keepdims=True))
        truth = (odds / odds.sum(axis=2, keepdims=True)).mean(axis=0)

        mean, cov = filtered("softmax", features, labels, (m, k), 1.0)
        var = np.einsum("nm,mj,nj->n", ahead, cov, ahead)
        ours = divergence(truth, class_probabilities(ahead @ mean, var))
        plain, cov_plain = filtered("onehot", features, labels, (m, k), 0.03)
        var_plain = np.einsum("nm,mj,nj->n", ahead, cov_plain, ahead)
        onehot = min(
            divergence(truth, class_probabilities(ahead @ plain, var_plain, calibration=alpha))
            for alpha in ALPHAS
        )
        # Only differences of logits count: both are centred over the classes.
        centred = logits - logits.mean(axis=2, keepdims=True)
        where = ahead @ mean
        where -= where.mean(axis=1, keepdims=True)
        sd = centred.std(axis=0)
        off = np.sqrt(np.mean(((where - centred.mean(axis=0)) / sd) ** 2))
        spread = np.median(np.sqrt(var * (1.0 - 1.0 / k))[:, None] / sd)
        results.append([ours, onehot, float(off), float(spread)])
    return np.mean(results, axis=0).tolist()


def main() -> None:
    """Measure all cases and write the section."""
    rows = []
    for m, k, n in CASES:
        ours, onehot, off, spread = measure(m, k, n)
        rows.append(
            [f"({m}, {k}, {n})", f"**{ours:.4f}**", f"{onehot:.4f}", f"{off:.2f}", f"{spread:.2f}"]
        )
    head = ["(m, K, rows)", "softmax, nats", "one-hot, nats", "mean off by", "spread / true"]
    body = [
        "## The true posterior",
        f"`python benchmarks/posterior.py` on {machine()}.",
        table(head, rows),
        f"Labels are drawn from a softmax of linear logits whose weights have variance "
        f"{PRIOR_VAR:g}, and nothing drifts. The true posterior is sampled: {CHAINS} chains of "
        f"{STEPS - BURN_IN:,} steps of elliptical slice sampling. Nats: Kullback-Leibler "
        "divergence of the filter's class probabilities from those of the true posterior, on 500 "
        "new rows. The one-hot filter has the calibration, of "
        f"{', '.join(f'{alpha:g}' for alpha in ALPHAS)}, that is best on these rows; the softmax "
        "filter has none. Mean off by: error of the softmax filter's centred logits, in true "
        "standard deviations. Spread / true: its standard deviation of these over the true one, "
        f"the median. Means over {len(SEEDS)} seeds.",
    ]
    write_section("posterior", "\n\n".join(body))


if __name__ == "__main__":
    main()
