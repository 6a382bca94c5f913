"""Predictive distributions against a dense reference without code of the fast kernels."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, log_ndtr, logsumexp, ndtr, softmax

from kalstream.core import predictive
from kalstream.core.predictive import (
    class_probabilities,
    gaussian_log_density,
    label_log_prob,
    mixture_log_density,
)
from kalstream.errors import InvalidInput, KalstreamError

METHODS = ["exact", "monte-carlo", "probit", "plug-in"]


def grid_step(std):
    return 0.03 * max(1.0, std / 3.0)


def snap(mean, std):
    """Round to the grid of the reference, where it needs no interpolation."""
    return np.round(np.asarray(mean) / grid_step(std)) * grid_step(std)


def cdf_and_hazard(z, std):
    """log F and rho of std * normal + Gumbel, by plain dense quadratures."""
    if std == 0.0:
        return -np.exp(-z), np.exp(-z)
    if std < 1.2:
        e = np.linspace(-13.0, 13.0, 281)
        weights = np.exp(-0.5 * e * e)
        weights /= weights.sum()
        w = np.exp(np.minimum(std * e - z[:, None], 700.0))
        cdf, survival = np.exp(-w) @ weights, -np.expm1(-w) @ weights
        density = (w * np.exp(-w)) @ weights
    else:
        y = np.linspace(-5.5, 110.0, 600)
        weights = np.exp(-y - np.exp(-y)) * (y[1] - y[0])
        t = (z[:, None] - y) / std
        cdf, survival = ndtr(t) @ weights, ndtr(-t) @ weights
        density = np.exp(-0.5 * t * t) @ weights / (math.sqrt(2.0 * math.pi) * std)
    with np.errstate(divide="ignore"):
        log_cdf = np.where(cdf < 0.5, np.log(cdf), np.log1p(-np.minimum(survival, 0.6)))
    log_cdf = np.maximum(log_cdf, -600.0)
    return log_cdf, density / np.exp(log_cdf)


tables = {}


def table_of(std, left, size):
    """`cdf_and_hazard` on the first points of the grid, computed once for all means."""
    if std not in tables or len(tables[std][0]) < size:
        tables[std] = cdf_and_hazard(grid_step(std) * (np.arange(size) - left), std)
    log_cdf, rho = tables[std]
    return log_cdf[:size], rho[:size]


def dense(mean, std):
    """E[softmax] by a trapezoid of over a thousand nodes; `mean` must be snapped."""
    step = grid_step(std)
    offset = np.round((np.max(mean) - mean) / step).astype(int)
    levels, where, counts = np.unique(offset, return_inverse=True, return_counts=True)
    left = int((5.0 + 9.2 * std) / step)
    nodes = left + int((28.0 + math.log(len(mean)) + 8.0 * std) / step)
    log_cdf, rho = table_of(std, left, nodes + levels[-1])
    log_product = sum(c * log_cdf[k : k + nodes] for k, c in zip(levels, counts, strict=True))
    p = np.array([rho[k : k + nodes] @ np.exp(log_product) for k in levels]) * step
    return p[where]


def two_class(gap, std):
    """P(class 1) for K = 2: E sigmoid(N(-gap, 2 std^2)), one ordinary integral."""
    e = np.linspace(-12.0, 12.0, 20001)
    weights = np.exp(-0.5 * e * e)
    return weights @ expit(-gap - math.sqrt(2.0) * std * e) / weights.sum()


def worst(mean, std, floor=1e-8):
    """Largest relative error over the classes whose probability is at least `floor`."""
    mean = snap(mean, std)
    reference = dense(mean, std)
    kept = reference >= floor
    got = class_probabilities(mean, std**2)
    return np.abs(got[kept] / reference[kept] - 1.0).max()


def layouts(n_classes, std):
    """Means up to 50 apart (in units that keep large std interesting)."""
    rng = np.random.default_rng(n_classes)
    unit = max(1.0, std / 6.0)
    one, two = np.zeros(n_classes), np.zeros(n_classes)
    one[0], two[: n_classes // 2] = 50.0, 8.0
    few = rng.normal(size=n_classes)
    few[:3] += 12.0
    spreads = [rng.normal(size=n_classes) * scale for scale in (1.0, 5.0, 15.0)]
    # Many classes 7 deviations below the top class cut their own integrand off sharply.
    crowd = one * (0.14 * max(std, 1.0) / unit)
    return [unit * m for m in (np.zeros(n_classes), one, 0.2 * one, two, few, crowd, *spreads)]


@pytest.mark.parametrize("std", [0.0, 0.1, 0.5, 1.0, 1.3, 3.0, 6.0, 30.0, 100.0])
def test_reference_agrees_with_one_dimensional_integral(std):
    for gap in snap([0.0, 1.0, 5.0, 12.0], std):
        assert dense(np.array([gap, 0.0]), std)[1] == pytest.approx(two_class(gap, std), rel=1e-11)


@pytest.mark.parametrize("std", [0.0, 0.17, 0.9, 1.5, 2.9, 4.4, 6.0])
@pytest.mark.parametrize("n_classes", [2, 63, 1000])
def test_exact_is_within_1e6_of_reference(n_classes, std):
    assert max(worst(mean, std) for mean in layouts(n_classes, std)) < 5e-7


@pytest.mark.parametrize("std", [10.0, 37.0, 100.0])
@pytest.mark.parametrize("n_classes", [2, 100])
def test_exact_at_large_std(n_classes, std):
    assert max(worst(mean, std) for mean in layouts(n_classes, std)) < 5e-7


def test_beyond_largest_tabulated_std_is_gaussian_limit():
    for std in (150.0, 1e4, 1e8):
        got = class_probabilities([std, 0.0], std**2)[1]
        assert got == pytest.approx(ndtr(-1.0 / math.sqrt(2.0)), rel=2e-3)


def test_zero_variance_is_softmax():
    mean = np.random.default_rng(0).normal(size=(20, 17)) * 5.0
    np.testing.assert_allclose(class_probabilities(mean, 0.0), softmax(mean, axis=1), rtol=1e-8)
    for method in ("probit", "plug-in"):
        np.testing.assert_allclose(
            class_probabilities(mean, 0.0, calibration=0.7, method=method),
            softmax(0.7 * mean, axis=1),
        )


def test_integral_sums_to_one_before_normalisation():
    from kalstream.core import softmax_integral as kernels

    for std in (0.0, 0.3, 2.0, 6.0, 40.0):
        mean = np.stack(layouts(50, std))
        out = np.empty_like(mean)
        stds = np.full(len(mean), std)
        kernels.probabilities(mean, stds, *kernels.table(), kernels.workspace(), out)
        np.testing.assert_allclose(out.sum(axis=1), 1.0, atol=2e-8)


def test_table_is_accurate_in_both_tails():
    from kalstream.core import softmax_integral as kernels

    ell, _ = kernels.table()
    u = kernels.U_MIN + kernels.STEP * np.arange(kernels.LATTICE)
    for node in (40, 70, 100):
        std = kernels.STD_UNIT * math.sinh(kernels.STD_STEP * node)
        z = u * math.sqrt(1.0 + std**2 / kernels.KAPPA)
        y = np.linspace(-7.0, 400.0, 6000)
        log_gumbel = -y - np.exp(-y) + math.log(y[1] - y[0])
        t = (z[:, None] - y) / std
        log_survival = logsumexp(log_ndtr(-t) + log_gumbel, axis=1)
        log_cdf = logsumexp(log_ndtr(t) + log_gumbel, axis=1)
        left, right = log_cdf < -0.7, log_survival < -5.0
        np.testing.assert_allclose(ell[node][left], np.log(-log_cdf[left]), atol=1e-8)
        expected = np.log(-np.log1p(-np.exp(log_survival[right])))
        np.testing.assert_allclose(ell[node][right], expected, atol=1e-8)


moderate = st.floats(0.0, 6.0)
sizes = st.integers(2, 40)
spreads = st.floats(0.0, 20.0)
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=40, deadline=None)
@given(std=moderate, n_classes=sizes, spread=spreads, seed=seeds)
def test_exact_matches_reference_for_random_means(std, n_classes, spread, seed):
    mean = np.random.default_rng(seed).normal(size=n_classes) * spread
    assert worst(mean, std) < 1e-6


@settings(max_examples=60, deadline=None)
@given(
    std=st.floats(0.0, 300.0), n_classes=sizes, spread=spreads, seed=seeds, alpha=st.floats(0.1, 3)
)
def test_symmetries(std, n_classes, spread, seed, alpha):
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=n_classes) * spread
    p = class_probabilities(mean, std**2, calibration=alpha)
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert (p > 0.0).all()
    order = rng.permutation(n_classes)
    np.testing.assert_allclose(
        class_probabilities(mean[order], std**2, calibration=alpha), p[order], rtol=1e-9
    )
    np.testing.assert_allclose(
        class_probabilities(mean + 7.3, std**2, calibration=alpha), p, rtol=2e-6
    )
    # Calibration only rescales the moments, eq. (13).
    np.testing.assert_allclose(class_probabilities(alpha * mean, (alpha * std) ** 2), p, rtol=2e-6)
    raised = mean.copy()
    raised[0] += 0.1
    more = class_probabilities(raised, std**2, calibration=alpha)
    assert more[0] > p[0] or p[0] > 1.0 - 1e-9
    assert (more[1:] < p[1:] * (1.0 + 1e-7)).all()
    # A higher mean is never less probable.
    assert (np.diff(p[np.argsort(mean)]) >= -1e-7 * p.max()).all()


@settings(max_examples=40, deadline=None)
@given(
    std=moderate, n_classes=sizes, spread=st.floats(0.0, 5.0), seed=seeds, alpha=st.floats(0.3, 2)
)
def test_gradients_match_finite_differences(std, n_classes, spread, seed, alpha):
    rng = np.random.default_rng(seed)
    mean, var = rng.normal(size=n_classes) * spread, std**2
    label, k = (int(i) for i in rng.integers(n_classes, size=2))
    got = label_log_prob(mean, var, label, calibration=alpha)

    def log_prob(d_mean=0.0, d_var=0.0, d_alpha=0.0):
        shifted = mean.copy()
        shifted[k] += d_mean
        return label_log_prob(shifted, var + d_var, label, calibration=alpha + d_alpha).log_prob

    def slope(name, h):  # fourth order
        near = log_prob(**{name: h}) - log_prob(**{name: -h})
        far = log_prob(**{name: 2 * h}) - log_prob(**{name: -2 * h})
        return (8.0 * near - far) / (12.0 * h)

    scale = 1.0 + abs(got.log_prob)
    assert got.d_mean[k] == pytest.approx(slope("d_mean", 0.01), rel=1e-5, abs=1e-6 * scale)
    assert got.d_calibration == pytest.approx(slope("d_alpha", 0.004), rel=1e-5, abs=1e-5 * scale)
    assert got.d_mean.sum() == pytest.approx(0.0, abs=1e-12)
    if var > 0.04:
        expected = slope("d_var", 0.01 * var)
        assert got.d_var == pytest.approx(expected, rel=1e-5, abs=1e-6 * scale)


@pytest.mark.parametrize("std", [0.4, 2.0, 6.0])
def test_gradients_match_those_of_reference(std):
    mean = snap([1.0, 0.0, -2.0, 2.4, 1.1], std)
    h = 2 * grid_step(std)
    got = label_log_prob(mean, std**2, 1)
    for k in range(5):
        ahead, back = mean.copy(), mean.copy()
        ahead[k], back[k] = mean[k] + h, mean[k] - h
        expected = math.log(dense(ahead, std)[1] / dense(back, std)[1]) / (2.0 * h)
        # second-order difference with a grid-sized step: error h^2 / 6 times a third derivative
        assert got.d_mean[k] == pytest.approx(expected, rel=2e-3, abs=1e-4)
    probability = class_probabilities(mean, std**2)
    assert got.log_prob == pytest.approx(math.log(probability[1]), abs=1e-7)
    h = 0.01 * std**2

    def log_dense(var):
        e = np.linspace(-10.0, 10.0, 4001)
        weights = np.exp(-0.5 * e * e) / np.exp(-0.5 * e * e).sum()
        return math.log(weights @ expit(-1.0 - math.sqrt(2.0 * var) * e))

    v = std**2
    near, far = log_dense(v + h) - log_dense(v - h), log_dense(v + 2 * h) - log_dense(v - 2 * h)
    two = label_log_prob([1.0, 0.0], v, 1)
    assert two.d_var == pytest.approx((8 * near - far) / (12 * h), rel=1e-5)


def test_variance_gradient_at_zero_variance_is_half_the_laplacian_of_log_softmax():
    mean = np.array([0.3, -1.0, 2.0, 0.0])
    p = softmax(mean)
    # sum_j d2 p_y / dmean_j^2 = p_y ((1 - p_y)(1 - 2 p_y) - sum_{j != y} p_j (1 - 2 p_j))
    for y in range(4):
        rest = np.delete(p, y)
        expected = 0.5 * ((1 - p[y]) * (1 - 2 * p[y]) - (rest * (1 - 2 * rest)).sum())
        assert label_log_prob(mean, 0.0, y).d_var == pytest.approx(expected, abs=2e-7)


def test_log_prob_of_an_improbable_label_is_finite_and_smooth():
    for std in (0.0, 0.5, 6.0, 50.0, 1000.0):
        gaps = np.linspace(0.0, 5000.0, 20001)
        mean = np.stack([gaps, np.zeros_like(gaps), np.full_like(gaps, -1.0)], axis=1)
        got = label_log_prob(mean, std**2, np.ones(len(gaps), dtype=int))
        assert all(np.isfinite(part).all() for part in got)
        slope = np.diff(got.log_prob) / np.diff(gaps)
        assert (slope < 0.0).all()
        assert (slope > -1.001).all()
        middle = 0.5 * (got.d_mean[1:, 0] + got.d_mean[:-1, 0])
        np.testing.assert_allclose(slope, middle, atol=0.08)
    assert label_log_prob([5000.0, 0.0], 4.0, 1).log_prob == pytest.approx(-4996.0, rel=1e-6)
    extreme = label_log_prob([1e120, -1e120], 1e200, 1)
    assert all(np.isfinite(part).all() for part in extreme)


def test_label_terms_over_active_classes():
    from kalstream.core import softmax_integral as kernels

    rng = np.random.default_rng(3)
    mean, std = rng.normal(size=12) * 3.0, 1.7
    active = np.array([1, 4, 5, 9, 11])
    scratch = np.full_like(kernels.workspace(), np.nan)
    got = kernels.label_terms(mean, std, 5, active, *kernels.table(), scratch)
    expected = label_log_prob(mean[active], std**2, 2)
    assert got[0] == pytest.approx(expected.log_prob, abs=1e-12)
    assert got[1] == pytest.approx(expected.d_mean @ mean[active], rel=1e-9)
    assert got[2] == pytest.approx(expected.d_var, rel=1e-12)
    alone = kernels.label_terms(mean, std, 5, np.array([5]), *kernels.table(), scratch)
    assert alone == (0.0, 0.0, 0.0)


def test_monte_carlo_agrees_with_exact():
    mean = np.array([[1.0, 0.0, -1.0, 0.5], [3.0, 3.0, 0.0, -2.0]])
    var, alpha = np.array([4.0, 0.5]), np.array([1.0, 0.6])
    exact = class_probabilities(mean, var, calibration=alpha)
    sampled = class_probabilities(
        mean, var, calibration=alpha, method="monte-carlo", n_samples=200_000, random_state=0
    )
    # a probability's standard error is at most sqrt(p (1 - p) / 200000) <= 0.0012
    np.testing.assert_allclose(sampled, exact, atol=0.004)
    plain = class_probabilities(mean, var, calibration=alpha, method="plug-in")
    assert np.abs(plain - exact).max() > 0.02


def test_monte_carlo_is_seeded_and_chunked(monkeypatch):
    mean = np.random.default_rng(0).normal(size=(6, 5))
    draw = dict(method="monte-carlo", n_samples=40)
    first = class_probabilities(mean, 1.0, random_state=3, **draw)
    np.testing.assert_array_equal(class_probabilities(mean, 1.0, random_state=3, **draw), first)
    generator = np.random.default_rng(3)
    np.testing.assert_array_equal(
        class_probabilities(mean, 1.0, random_state=generator, **draw), first
    )
    assert (class_probabilities(mean, 1.0, random_state=generator, **draw) != first).any()
    for chunk in (30, 400):
        monkeypatch.setattr(predictive, "_CHUNK", chunk)
        np.testing.assert_allclose(
            class_probabilities(mean, 1.0, random_state=3, **draw), first, rtol=1e-12
        )


@pytest.mark.parametrize("method", METHODS)
def test_batches_equal_rows(method):
    mean = np.random.default_rng(1).normal(size=(5, 3))
    var, alpha = np.arange(5.0), np.arange(1.0, 6.0) / 3.0
    batch = class_probabilities(mean, var, calibration=alpha, method=method, random_state=0)
    assert batch.shape == (5, 3)
    np.testing.assert_allclose(batch.sum(axis=1), 1.0, rtol=1e-12)
    rng = np.random.default_rng(0)
    for i in range(5):
        row = class_probabilities(
            mean[i], var[i], calibration=alpha[i], method=method, random_state=rng
        )
        assert row.shape == (3,)
        np.testing.assert_allclose(batch[i], row, rtol=1e-12)
    assert (class_probabilities(np.ones((4, 1)), 2.0, method=method) == np.ones((4, 1))).all()
    probe = class_probabilities(np.float32([1, 2]), np.float32(0.5), method=method)
    assert probe.dtype == np.float64


def test_label_log_prob_batches_equal_rows():
    mean = np.random.default_rng(1).normal(size=(5, 3)) * 4
    var, alpha, labels = np.arange(5.0), np.arange(1.0, 6.0) / 3.0, np.array([0, 1, 2, 1, 0])
    batch = label_log_prob(mean, var, labels, calibration=alpha)
    for i in range(5):
        row = label_log_prob(mean[i], var[i], labels[i], calibration=alpha[i])
        assert [part.shape for part in row] == [(), (3,), (), ()]
        for part, whole in zip(row, batch, strict=True):
            np.testing.assert_array_equal(part, whole[i])
    single = label_log_prob(np.zeros((2, 1)), 1.0, np.zeros(2, dtype=int))
    assert all((part == 0.0).all() for part in single)


def test_inputs_are_not_changed_and_may_be_strided():
    mean = np.random.default_rng(0).normal(size=(4, 6))
    copy = mean.copy()
    np.testing.assert_array_equal(
        class_probabilities(mean[:, ::2], 1.0), class_probabilities(mean[:, ::2].copy(), 1.0)
    )
    label_log_prob(mean, 1.0, np.zeros(4, dtype=int))
    np.testing.assert_array_equal(mean, copy)


def test_gaussian_densities():
    from scipy.stats import norm

    y, mu, var = np.array([0.5, -1.0]), np.array([[0.0, 0.1], [1.0, -3.0]]), np.array([2.0, 0.3])
    expected = norm.logpdf(y, mu, np.sqrt(var))
    np.testing.assert_allclose(gaussian_log_density(y, mu, var), expected, rtol=1e-12)
    weights = np.log([0.3, 0.7])
    mixed = mixture_log_density(y, mu, np.broadcast_to(var, (2, 2)), weights)
    np.testing.assert_allclose(mixed, logsumexp(expected + weights[:, None], axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        mixture_log_density(y, mu, np.broadcast_to(var, (2, 2)), [0.0, -np.inf]), expected[0]
    )
    far = mixture_log_density(1e6, [0.0, 1.0], [1.0, 1.0], weights)
    assert np.isfinite(far)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (dict(logit_mean=np.zeros((2, 2, 2))), "logit_mean"),
        (dict(logit_mean=1.0), "logit_mean"),
        (dict(logit_mean=[]), "logit_mean"),
        (dict(logit_mean=np.zeros((0, 3))), "logit_mean"),
        (dict(logit_mean=[0.0, np.nan]), "logit_mean"),
        (dict(logit_mean=[0.0, np.inf]), "logit_mean"),
        (dict(logit_mean=["a", "b"]), "logit_mean"),
        (dict(logit_var=-1.0), "logit_var"),
        (dict(logit_var=np.nan), "logit_var"),
        (dict(logit_var=[1.0, 1.0, 1.0]), "logit_var"),
        (dict(calibration=0.0), "calibration"),
        (dict(calibration=-1.0), "calibration"),
        (dict(calibration=np.inf), "calibration"),
        (dict(calibration=np.ones((1, 2))), "calibration"),
        (dict(method="laplace"), "method"),
        (dict(method="monte-carlo", n_samples=0), "n_samples"),
    ],
)
def test_errors_name_the_argument(arguments, name):
    good = dict(logit_mean=[0.0, 1.0], logit_var=1.0)
    with pytest.raises(InvalidInput, match=name):
        class_probabilities(**{**good, **arguments})


@pytest.mark.parametrize("labels", [2, -1, 0.0, [0], [0, 1]])
def test_label_errors(labels):
    with pytest.raises(KalstreamError, match="labels"):
        label_log_prob([0.0, 1.0], 1.0, labels)


def test_density_errors():
    with pytest.raises(InvalidInput, match="var"):
        gaussian_log_density(0.0, 0.0, 0.0)
    with pytest.raises(InvalidInput, match="log_weights"):
        mixture_log_density(0.0, [0.0, 1.0], [1.0, 1.0], [0.0])


def test_import_is_light():
    import subprocess
    import sys

    code = "import sys, kalstream.core.predictive; print('numba' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
