"""Uncertainty, novelty and abstaining."""

import numpy as np
import pytest

from kalstream import KalmanClassifier, KalmanRegressor
from small_models import BOTH, FEATURES, X, Y, rows, small, target


@pytest.mark.parametrize("features", ["raw", "scaled", "fourier"])
def test_rows_far_off_are_novel(features):
    rng = np.random.default_rng(0)
    seen, labels = rng.standard_normal((2000, 5)), rng.integers(2, size=2000)
    model = KalmanClassifier(features=features, random_state=0).partial_fit(seen, labels)
    fresh = rng.standard_normal((500, 5))
    assert model.is_novel(fresh).mean() < 0.15
    assert model.is_novel(fresh + 6.0).all()
    assert model.is_novel(np.full((1, 5), 1000.0)).all()


def test_abstaining():
    model = small().partial_fit(X, Y)
    best = model.predict_proba(X).max(axis=1)
    threshold = float(np.median(best))
    found = model.predict(X, abstain_below=threshold)
    silent = np.array([label is None for label in found])
    assert np.array_equal(silent, best < threshold)
    assert 20 < silent.sum() < 40
    assert (found[~silent] == model.predict(X)[~silent]).all()
    assert model.predict(X, abstain_below=0.0).dtype == object


@BOTH
@pytest.mark.parametrize("forgetting", ["mixture", 1.0, 0.9999])
def test_uncertainty_falls_with_data(kind, forgetting):
    model, last = small(kind, forgetting=forgetting), 1.0
    data, y = np.tile(X, (4, 1)), np.tile(target(kind), 4)
    for part in (slice(0, 5), slice(5, 40), slice(40, 240)):
        model.partial_fit(data[part], y[part])
        found = model.uncertainty(X)
        assert (found >= 0.0).all()
        assert (found <= 1.0 + 1e-12).all()
        assert found.mean() < 0.9 * last
        last = found.mean()


@BOTH
@FEATURES
def test_novelty(kind, features):
    data = np.tile(X, (20, 1)) + 0.1 * rows(1200, seed=2)
    data[:, 2] = 7.0 if features == "scaled" else 0.0  # a column that does not vary
    y = np.tile(target(kind), 20)
    model = small(kind, features=features, n_components=60).partial_fit(data, y)
    assert model.is_novel(data).mean() < 0.15
    far = np.array([[0.0, 0.0, 40.0], [0.0, 0.0, -40.0]])
    assert model.is_novel(far).all()
    assert not model.is_novel(far, factor=1e8).any()


@pytest.mark.parametrize("period", [100, 2000])
@BOTH
def test_the_other_phases_of_a_cycle_are_not_novel(kind, period):
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * np.arange(4000) / period
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    data = circle + 0.1 * rng.standard_normal((4000, 2))
    y = data[:, 0] + 0.1 * rng.standard_normal(4000)
    model = kind().partial_fit(data, y if kind is KalmanRegressor else y > 0)
    assert model.is_novel(data).mean() < 0.05
    assert model.is_novel(3.0 * circle[::40]).mean() > 0.95
    assert model.is_novel(np.zeros((1, 2)) + 6.0).all()
