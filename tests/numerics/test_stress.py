"""Badly scaled features give a correct result or an error, never a wrong result.

The grid combines columns of very different size, offsets that make them nearly collinear, and
variances over decades. Each cell either agrees with the next wider precision or raises. The data of
a cell come from its own model, so that residuals are as large as the filter expects. Or they are
labels, whose residuals are too large for a small noise_var.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest

from kalstream.core import init, step_chunk
from kalstream.errors import NumericalError

DECADES = (0, 0.5, 1, 2, 4, 6)  # columns scaled by 1 to 10**decades
OFFSETS = (0.0, 1.0, 10.0)
NOISE_VARS = (1e-4, 1e-2, 1.0, 10.0)
PRIOR_VARS = (1e-3, 0.1, 10.0)
GAMMAS = (1.0, 0.9999, 0.99)
TOLERANCE = 1e-2


def data(kind, decades, offset, n, m, *, noise_var, prior_var, gamma):
    rng = np.random.default_rng(11)
    columns = rng.standard_normal((n, m)) + offset
    # rounded to float32, so that both precisions get the same numbers
    features = (columns * np.logspace(0.0, decades, m)).astype(np.float32)
    if kind == "labels":
        return features, np.eye(2)[rng.integers(0, 2, n)]
    weights = np.sqrt(prior_var) * rng.standard_normal((m, 2))
    return features, features @ weights + np.sqrt(noise_var) * rng.standard_normal((n, 2))


def run(dtype, features, targets, size, **options):
    """Logit moments, or None if the filter raised an error."""
    posterior = init(features.shape[1], 2, prior_var=options["prior_var"], dtype=dtype)
    steps = []
    try:
        for start in range(0, len(features), size):
            rows = slice(start, start + size)
            posterior, seen = step_chunk(posterior, features[rows], targets[rows], **options)
            steps.append(seen)
    except NumericalError:
        return None
    return (
        np.concatenate([seen.logit_mean for seen in steps]),
        np.concatenate([seen.logit_var for seen in steps]),
    )


def in_longdouble(features, targets, *, gamma, noise_var, prior_var):
    """The equations in extended precision (64 bits of mantissa), Joseph form."""
    wide = np.longdouble
    n, m = features.shape
    phi_all, targets = features.astype(wide), targets.astype(wide)
    mean, cov, eye = np.zeros((m, 2), wide), wide(prior_var) * np.eye(m, dtype=wide), np.eye(m)
    g = wide(gamma)
    means, variances = np.empty((n, 2), wide), np.empty(n, wide)
    for i in range(n):
        phi = phi_all[i]
        mean, cov = g * mean, g * g * cov + (1 - g * g) * wide(prior_var) * eye
        means[i], variances[i] = phi @ mean, phi @ cov @ phi
        gain = cov @ phi / (variances[i] + wide(noise_var))
        left = eye - np.outer(gain, phi)
        mean = mean + np.outer(gain, targets[i] - means[i])
        cov = left @ cov @ left.T + wide(noise_var) * np.outer(gain, gain)
    return means, variances


def errors(actual, expected, targets, noise_var):
    """Largest error of variance and mean, relative to the innovation's variance and deviation.

    The mean is linear in the targets. Where a target differs from the mean by more than the
    deviation, the error of the mean is relative to that difference.
    """
    mean, var = (np.asarray(x, np.float64) for x in expected)
    innovation_var = var + noise_var
    deviation = np.sqrt(np.maximum(innovation_var, np.square(targets - mean).mean()))
    var_error = np.abs(actual[1] - var) / innovation_var
    mean_error = np.abs(actual[0] - mean) / deviation[:, None]
    return max(float(var_error.max()), float(mean_error.max()))


@cache
def float32_grid(kind, size):
    """Largest error of each cell of the grid; None where the filter raised."""
    errors_of = {}
    for cell in product(DECADES, OFFSETS, NOISE_VARS, PRIOR_VARS, GAMMAS):
        decades, offset, noise_var, prior_var, gamma = cell
        options = {"gamma": gamma, "noise_var": noise_var, "prior_var": prior_var}
        features, targets = data(kind, decades, offset, 256, 8, **options)
        single = run(np.float32, features, targets, size, **options)
        if single is None:
            errors_of[cell] = None
            continue
        double = run(np.float64, features, targets, size, **options)
        assert double is not None, f"float64 refuses what float32 accepts: {cell}"
        errors_of[cell] = errors(single, double, targets, noise_var)
    return errors_of


both = pytest.mark.parametrize("kind", ["model", "labels"])
sizes = pytest.mark.parametrize("size", [1024, 10])


@both
@sizes
def test_float32_is_correct_or_raises(kind, size):
    grid = float32_grid(kind, size)
    accepted = {cell: error for cell, error in grid.items() if error is not None}
    wrong = {cell: error for cell, error in accepted.items() if not error < TOLERANCE}
    print(
        f"float32, {kind}, {size} rows a call: {len(accepted)} of {len(grid)} accepted, "
        f"worst error {max(accepted.values()):.2g}"
    )
    assert not wrong, f"{len(wrong)} silently wrong, as {max(wrong.items(), key=lambda x: x[1])}"


@both
@sizes
def test_float32_raises_for_some_cells_only(kind, size):
    grid = float32_grid(kind, size)
    accepted = sum(error is not None for error in grid.values())
    assert 0.25 <= accepted / len(grid) <= 0.75, f"accepts {accepted} of {len(grid)}"


@both
@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no wider type on this machine")
def test_float64_is_correct_or_raises(kind):
    errors_of = {}
    for cell in product((0, 3, 6, 9), (0.0, 1000.0), (1e-4, 1.0), (1e-3, 10.0), (1.0, 0.99)):
        decades, offset, noise_var, prior_var, gamma = cell
        options = {"gamma": gamma, "noise_var": noise_var, "prior_var": prior_var}
        features, targets = data(kind, decades, offset, 120, 4, **options)
        double = run(np.float64, features, targets, 64, **options)
        if double is not None:
            expected = in_longdouble(features, targets, **options)
            errors_of[cell] = errors(double, expected, targets, noise_var)
    worst = max(errors_of.values())
    print(f"float64, {kind}: {len(errors_of)} of 64 accepted, largest error {worst:.2g}")
    wrong = {cell: error for cell, error in errors_of.items() if not error < TOLERANCE}
    assert not wrong, wrong
    assert 16 <= len(errors_of) <= 48, f"accepts {len(errors_of)} of 64"


@pytest.mark.parametrize("layout", ["rank 5", "duplicated", "constant", "full rank"])
def test_float32_raises_after_many_collinear_rows(layout):
    """With gamma = 1 on collinear rows, rounding errors accumulate like forgetting."""
    rng = np.random.default_rng(0)
    basis = rng.standard_normal((5, 50)) / 5**0.5
    draw = {
        "rank 5": lambda n: rng.standard_normal((n, 5)) @ basis,
        "duplicated": lambda n: np.repeat(rng.standard_normal((n, 25)), 2, axis=1),
        "constant": lambda n: np.c_[np.ones((n, 47)), rng.standard_normal((n, 3))],
        "full rank": lambda n: rng.standard_normal((n, 50)),
    }[layout]
    truth = rng.standard_normal((50, 3)) / 50**0.5
    options = {"gamma": 1.0, "noise_var": 1 / 3, "prior_var": 1 / 50}
    narrow, wide = (init(50, 3, prior_var=1 / 50, dtype=d) for d in (np.float32, np.float64))
    for n_seen in range(0, 120_000, 2000):
        features = draw(2000).astype(np.float32)
        labels = (features @ truth).argmax(axis=1)
        try:
            narrow, ours = step_chunk(narrow, features, labels, **options)
        except NumericalError as error:
            assert "roundings" in str(error)
            assert "float64" in str(error)
            assert n_seen >= 2000
            assert layout != "full rank"
            return
        wide, theirs = step_chunk(wide, features, labels, **options)
        sd = np.sqrt(theirs.logit_var + 1 / 3)[:, None]
        assert np.abs((ours.logit_mean - theirs.logit_mean) / sd).max() < 1e-3
        assert np.abs(ours.logit_var / theirs.logit_var - 1.0).max() < 0.1
    assert layout == "full rank"
