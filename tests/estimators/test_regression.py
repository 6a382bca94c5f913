"""Regression: standard deviations, units, several targets."""

import numpy as np
import pytest
from sklearn.base import clone

from kalstream import KalmanRegressor
from kalstream.core import Mixture
from kalstream.errors import InvalidInput
from small_models import VALUES, X, answer, small


def test_health_of_a_regression_does_not_depend_on_the_unit():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 3))
    y = rows[:, 0] + 0.1 * rng.standard_normal(400)
    for forgetting in ("mixture", 0.999):
        small_unit, large = (
            KalmanRegressor(forgetting, random_state=0).partial_fit(rows, y * unit).health_.nis
            for unit in (1.0, 1000.0)
        )
        assert small_unit == pytest.approx(large, rel=1e-6)
        assert 0.2 < small_unit < 5.0


def test_a_mixture_of_ones_own_learns_the_noise_only_where_there_is_any():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 2))
    y = 1e4 * (rows[:, 0] + 0.1 * rng.standard_normal(300))
    model = KalmanRegressor(Mixture(half_lives=(100.0, np.inf)), random_state=0).partial_fit(
        rows, y
    )
    assert 200.0 < model.predict(rows, return_std=True)[1].mean() < 5000.0
    labels = (rows[:, 0] > 0.0).astype(int)
    plain, scaled = (
        small(forgetting=Mixture(learn_scale=flag)).partial_fit(rows, labels).predict_proba(rows)
        for flag in (False, True)
    )
    assert (plain == scaled).all()


def test_targets_that_never_change_leave_nothing_uncertain():
    rows = np.arange(5.0)[:, None]
    model = KalmanRegressor(n_components=4, random_state=0).partial_fit(rows[:1], [5.0])
    assert np.isinf(model.predict(rows, return_std=True)[1]).all()
    mean, std = model.partial_fit(rows, [5.0] * 5).predict(rows, return_std=True)
    assert (mean == 5.0).all()
    assert (std == 0.0).all()


@pytest.mark.parametrize("forgetting", ["mixture", 1.0])
@pytest.mark.parametrize("noise_var", ["auto", 0.25])
def test_standard_deviations_are_honest(forgetting, noise_var):
    rng = np.random.default_rng(0)
    data = rng.standard_normal((3000, 4))
    y = data @ rng.standard_normal(4) + 0.5 * rng.standard_normal(3000)
    model, inside = KalmanRegressor(forgetting, "raw", noise_var=noise_var), []
    for start in range(0, 3000, 50):
        part = slice(start, start + 50)
        if start >= 500:
            mean, std = model.predict(data[part], return_std=True)
            inside.append(np.abs(y[part] - mean) < std)
        model.partial_fit(data[part], y[part])
    assert np.mean(inside) == pytest.approx(0.683, abs=0.04)
    assert model.noise_var_ == pytest.approx(0.25, rel=0.2)


@pytest.mark.parametrize("noise_var", ["auto", 0.25])
def test_standard_deviations_are_honest_about_drift(noise_var):
    """The weights drift as the model assumes, and cause most of the standard deviation."""
    rng, gamma = np.random.default_rng(0), 0.95
    data = rng.standard_normal((2000, 3))
    model = KalmanRegressor(gamma, "raw", noise_var=noise_var, intercept=False, prior_var=8.0)
    if noise_var == "auto":
        model.set_params(prior_var=0.03 * 8.0 / 0.25)  # the same, in units of the scale
    weights, inside = np.sqrt(8.0) * rng.standard_normal(3), []
    for i in range(2000):
        fresh = np.sqrt(8.0 * (1.0 - gamma**2)) * rng.standard_normal(3)
        weights = gamma * weights + fresh
        y = data[i] @ weights / np.sqrt(3.0) + 0.5 * rng.standard_normal(1)
        if i >= 200:
            mean, std = model.predict(data[[i]], return_std=True)
            inside.append(abs(y - mean) < std)
        model.partial_fit(data[[i]], [0.0] if i == 0 else y)  # the first target is an offset
    assert np.mean(inside) == pytest.approx(0.683, abs=0.04)
    assert model.noise_var_ == pytest.approx(0.25, rel=0.25)


@pytest.mark.parametrize("forgetting", ["mixture", 1.0, 0.9])
@pytest.mark.parametrize("features", ["raw", "scaled", "fourier"])
@pytest.mark.parametrize(("a", "b"), [(1e4, 0.0), (-0.001, 7.0), (1.0, -300.0)])
def test_regression_is_equivariant(forgetting, features, a, b):
    plain = small(KalmanRegressor, forgetting=forgetting, features=features)
    other = clone(plain).partial_fit(X, a * VALUES + b)
    plain.partial_fit(X, VALUES)
    mean, std = plain.predict(X, return_std=True)
    moved_mean, moved_std = other.predict(X, return_std=True)
    # adding b rounds the targets themselves
    digits = 1e-8 * max(1.0, abs(b / a) * 1e-4)
    assert (moved_mean - b) / a == pytest.approx(mean, rel=digits, abs=digits)
    assert moved_std / abs(a) == pytest.approx(std, rel=digits)
    assert other.noise_var_ / a**2 == pytest.approx(plain.noise_var_, rel=digits)
    assert other.half_life_ == plain.half_life_


def test_one_target_is_not_enough_for_a_deviation():
    for forgetting in ("mixture", 0.9):
        model = KalmanRegressor(forgetting, "raw").partial_fit(X[:1], [5.0])
        mean, std = model.predict(X[:3], return_std=True)
        assert mean == pytest.approx(5.0)
        assert np.isinf(std).all()
        _, std = model.partial_fit(X[1:3], [6.0, 4.5]).predict(X[:3], return_std=True)
        assert np.isfinite(std).all()


@pytest.mark.parametrize("weight", [0.1, 1.0, 2.0, 5.0, 1e6])
@pytest.mark.parametrize("forgetting", ["mixture", 0.9])
def test_a_heavy_target_is_one_target(forgetting, weight):
    model = KalmanRegressor(forgetting, "raw")
    for i, y in enumerate([5.0, 6.0, 4.5]):
        _, std = model.partial_fit(X[[i]], [y], sample_weight=[weight]).predict(
            X[:3], return_std=True
        )
        assert np.isfinite(std).all() == (i == 2)
    assert (std > 0.0).all()


def test_several_targets():
    both = np.stack([VALUES, 100.0 - 3.0 * VALUES], axis=1)
    model = small(KalmanRegressor).partial_fit(X, both)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (60, 2)
    assert model.score(X, both) > 0.9
    some = both.copy()
    some[::2] = np.nan
    assert model.partial_fit(X, some).n_seen_ == 120
    before = answer(model)
    with pytest.raises(
        InvalidInput, match="y has 1 columns, but had 2 before; give the same number"
    ):
        model.partial_fit(X, VALUES)
    assert answer(model) == before
    assert model.predict(X).shape == (60, 2)
    column = small(KalmanRegressor).partial_fit(X, VALUES[:, None])
    assert column.predict(X).shape == (60, 1)
    assert np.array_equal(
        column.predict(X)[:, 0], small(KalmanRegressor).partial_fit(X, VALUES).predict(X)
    )


@pytest.mark.parametrize("forgetting", ["mixture", 0.999])
def test_one_outlier_spoils_neither_errors_nor_deviations(forgetting):
    rng = np.random.default_rng(5)
    X = rng.uniform(-2.0, 2.0, (900, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.standard_normal(900)
    wrong = np.where(np.arange(900) == 600, 1e7, y)
    rest = slice(601, 650)
    clean, spoilt = (
        KalmanRegressor(forgetting, n_components=50, random_state=0).predict_then_learn(X, targets)
        for targets in (y, wrong)
    )
    errors, errors_after = (np.abs(y - mean)[rest].mean() for mean, _ in (clean, spoilt))
    assert errors_after < 1.05 * errors
    assert (spoilt[1][rest] < 1.6 * clean[1][rest]).all()  # the sum of squares doubles


def test_an_outlier_in_a_chunk_is_one_of_a_row():
    rng = np.random.default_rng(6)
    X, y = rng.standard_normal((300, 2)), rng.standard_normal(300)
    y[[120, 121, 250]] = 1e5, -1e6, 1e7
    whole, by_row = (KalmanRegressor(n_components=20, random_state=0) for _ in range(2))
    together = whole.predict_then_learn(X, y)
    apart = [by_row.predict_then_learn(X[i : i + 1], y[i : i + 1]) for i in range(300)]
    np.testing.assert_allclose(together, np.array(apart)[:, :, 0].T, rtol=1e-6)


def test_a_new_scale_is_learned_from_the_second_row_on():
    rng = np.random.default_rng(7)
    X, y = rng.standard_normal((800, 2)), rng.standard_normal(800)
    y[600:] *= 1e4
    model = KalmanRegressor(features="raw", random_state=0).partial_fit(X[:600], y[:600])
    before = model.noise_var_
    model.partial_fit(X[600:602], y[600:602])
    assert model.noise_var_ > 1e4 * before
