"""After many steps a filter is symmetric, positive definite, and equal to a fresh one."""

import math

import numpy as np
import pytest

from kalstream.core import health, init, step_chunk

NOISE_VAR, PRIOR_VAR = 0.5, 1.0
CHUNK = 4096


def chunk(index, m):
    """Chunk `index` of an endless stream; it depends only on its number."""
    rng = np.random.default_rng([7, index])
    features = rng.standard_normal((CHUNK, m)) * np.logspace(-0.5, 0.5, m)
    noise = math.sqrt(NOISE_VAR) * rng.standard_normal((CHUNK, 2))
    return features, features[:, :2] + noise


def accumulated(n_chunks, m):
    """Ridge posterior in closed form, from sums over the stream: the reference for gamma = 1."""
    gram, cross = np.zeros((m, m)), np.zeros((m, 2))
    for index in range(n_chunks):
        features, targets = chunk(index, m)
        gram += features.T @ features
        cross += features.T @ targets
    cov = np.linalg.inv(gram / NOISE_VAR + np.eye(m) / PRIOR_VAR)
    return cov @ cross / NOISE_VAR, cov


def restarted(n_chunks, m, gamma, n_rows):
    """The equations in plain NumPy, started from the prior at least n_rows before the end."""
    mean, cov = np.zeros((m, 2)), PRIOR_VAR * np.eye(m)
    for index in range(max(0, n_chunks - math.ceil(n_rows / CHUNK)), n_chunks):
        for phi, y in zip(*chunk(index, m), strict=True):
            mean *= gamma
            cov *= gamma**2
            cov.flat[:: m + 1] += (1.0 - gamma**2) * PRIOR_VAR
            gain = cov @ phi
            innovation_var = phi @ gain + NOISE_VAR
            mean += np.outer(gain / innovation_var, y - phi @ mean)
            cov -= np.outer(gain, gain) / innovation_var
    return mean, (cov + cov.T) / 2.0


def relative(value, expected):
    return np.abs(value - expected).max() / np.abs(expected).max()


def check_long(n_steps, m, gamma, n_rows, tolerance):
    posterior, smallest = init(m, 2, prior_var=PRIOR_VAR), math.inf
    n_chunks = math.ceil(n_steps / CHUNK)
    for index in range(n_chunks):
        posterior, seen = step_chunk(
            posterior,
            *chunk(index, m),
            gamma=gamma,
            noise_var=NOISE_VAR,
            prior_var=PRIOR_VAR,
            donate=True,
        )
        smallest = min(smallest, float(seen.logit_var.min()))
    cov = posterior.cov
    assert smallest > 0.0
    assert np.array_equal(cov, cov.T)
    assert np.linalg.eigvalsh(cov)[0] > 0.0
    assert cov.diagonal().max() <= PRIOR_VAR
    assert health(posterior, seen).asymmetry == 0.0
    if gamma == 1.0:
        mean, expected = accumulated(n_chunks, m)
    else:
        mean, expected = restarted(n_chunks, m, gamma, n_rows)
    errors = {"mean": relative(posterior.mean, mean), "cov": relative(cov, expected)}
    print(f"{n_steps} steps, m = {m}, gamma = {gamma}: relative errors {errors}")
    assert max(errors.values()) < tolerance, errors


@pytest.mark.parametrize("gamma", [1.0, 0.9999, 0.99])
def test_200_000_steps(gamma):
    # At gamma = 0.9999 learning forgets the start faster than the transition does. In its steady
    # state the gain removes 1% of the start at each step, and e^(-0.01 * 20,000) is negligible.
    check_long(200_000, 8, gamma, n_rows=20_000, tolerance=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [1.0, 0.9999, 0.99])
def test_10_000_000_steps(gamma):
    forgotten = 0 if gamma == 1.0 else math.log(1e20) / (-2.0 * math.log(gamma))
    check_long(10_000_000, 64, gamma, n_rows=forgotten, tolerance=1e-10)
