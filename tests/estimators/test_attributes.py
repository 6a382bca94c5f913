"""Attributes of a fitted model: filters, weights, memory, probabilities; reset and snapshot."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.core import Calibration, Learned, Mixture
from kalstream.core.state import pending_capacity
from small_models import BOTH, VALUES, X, Y, answer, rows, small, target


@BOTH
def test_reset_and_snapshot(kind):
    model, y = small(kind), target(kind)
    fresh = answer(small(kind).partial_fit(X, y))
    kept = model.partial_fit(X, y).snapshot()
    before = answer(kept)
    model.partial_fit(X, y)
    assert answer(kept) == before == fresh
    assert answer(model) != before
    assert answer(kept.partial_fit(X, y)) == answer(model)
    assert model.reset() is model
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert answer(model.partial_fit(X, y)) == fresh
    assert answer(model.partial_fit(X, y).fit(X, y)) == fresh
    wider = model.reset().partial_fit(rows(d=5), y)
    assert wider.n_features_in_ == 5
    small(kind).snapshot()  # of an empty model


@BOTH
@pytest.mark.parametrize("forgetting", ["mixture", 0.9, Learned(0.95, 0.05), Mixture((5.0, 50.0))])
def test_filters(kind, forgetting):
    more = {"noise_var": 0.1} if isinstance(forgetting, Learned) else {}
    model = small(kind, forgetting=forgetting, **more).partial_fit(X, target(kind))
    weights = model.half_life_weights_
    assert sum(weights.values()) == pytest.approx(1.0, rel=1e-12)
    assert list(weights) == sorted({f.half_life for f in model.filters_})
    n_filters = 1
    if forgetting == "mixture":
        n_filters = 7 if kind is KalmanClassifier else 6
    elif isinstance(forgetting, Mixture):
        n_filters = 2
    assert len(model.filters_) == n_filters
    for each in model.filters_:
        assert each.gamma == pytest.approx(0.5 ** (1.0 / each.half_life))
        assert each.posterior.n_features == 14  # 10 Fourier features, 3 columns, an intercept
    heaviest = max(model.filters_, key=lambda f: f.weight).posterior
    assert np.array_equal(heaviest.cov, model.cov_)
    assert np.array_equal(
        np.sort(heaviest.mean[1:].T, axis=0), np.sort(np.atleast_2d(model.coef_), axis=0)
    )
    assert 0.5 ** (1.0 / model.half_life_) == pytest.approx(model.gamma_)
    if forgetting == 0.9:
        assert model.gamma_ == pytest.approx(0.9)
    assert model.half_life_ in [pytest.approx(h) for h in weights]
    sound = model.health_
    assert sound.smallest_innovation_var > 0.0
    assert sound.asymmetry == 0.0
    assert 0.0 < sound.smallest_variance <= sound.largest_variance
    softmax = "softmax" in model._settings.policy.likelihoods
    prior = {1: 100.0, 6: 10.0, 7: 3e4}.get(n_filters, 1.0) if softmax or n_filters == 6 else 1.0
    assert sound.largest_variance <= prior * (1.0 + 1e-12)
    assert sound.effective_memory > 0.0
    assert sound.nis > 0.0


def test_calibration():
    assert small(forgetting=1.0, calibration=2.5).partial_fit(X, Y).calibration_ == 2.5
    assert small(calibration=2.5).partial_fit(X, Y).calibration_ == 2.5
    assert small(calibration=[1.0, 7.0]).partial_fit(X, Y).calibration_ in (1.0, 7.0)
    assert small(calibration=Calibration(4.0), forgetting=0.9).partial_fit(X, Y).calibration_ > 1.0
    learned = small(forgetting=1.0, likelihood="onehot")
    learned.partial_fit(np.tile(X, (5, 1)), np.tile(Y, 5))
    assert learned.calibration_ > 2.0  # logits of one-hot targets are far too small


@pytest.mark.parametrize("intercept", [True, False])
def test_raw_weights_give_the_logits(intercept):
    model = KalmanClassifier(
        1.0, "raw", predictive="plug-in", calibration=3.0, intercept=intercept
    ).partial_fit(X, Y)
    assert model.coef_.shape == (3, 3)
    assert model.intercept_.shape == (3,)
    assert model.cov_.shape == (3 + intercept, 3 + intercept)
    assert intercept == bool(model.intercept_.any())
    logits = X @ model.coef_.T + model.intercept_
    found = model.predict_log_proba(X)
    assert found - found[:, :1] == pytest.approx(3.0 * (logits - logits[:, :1]), abs=1e-12)
    assert np.array_equal(model.decision_function(X), found)
    two = KalmanClassifier(1.0, "raw", predictive="plug-in", calibration=1.0)
    two.partial_fit(X, Y > 0)
    logits = X @ two.coef_.T + two.intercept_
    assert two.decision_function(X) == pytest.approx(logits[:, 1] - logits[:, 0], abs=1e-12)


@pytest.mark.parametrize("intercept", [True, False])
def test_raw_weights_give_the_mean(intercept):
    model = KalmanRegressor(1.0, "raw", intercept=intercept).partial_fit(X, VALUES + 50.0)
    assert model.coef_.shape == (3,)
    assert isinstance(model.intercept_, float)
    assert model.predict(X) == pytest.approx(X @ model.coef_ + model.intercept_, rel=1e-12)
    both = np.stack([VALUES, -VALUES], axis=1)
    model = KalmanRegressor(1.0, "raw", intercept=intercept).partial_fit(X, both)
    assert model.coef_.shape == (2, 3)
    assert model.intercept_.shape == (2,)
    assert model.predict(X) == pytest.approx(X @ model.coef_.T + model.intercept_, rel=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("d", "n_classes"), [(1, 2), (7, 3), (99, 5), (300, 4)])
@pytest.mark.parametrize("forgetting", [0.99, "mixture", Mixture((10.0, 100.0, 1000.0))])
def test_memory(forgetting, d, n_classes, dtype):
    data, labels = rows(40, d), np.arange(40) % n_classes
    model = KalmanClassifier(forgetting, "raw", dtype=dtype, experts=[])
    model.partial_fit(data, labels)
    many = len(model.filters_)
    size, m, k = np.dtype(dtype).itemsize, d + 1, n_classes
    scales = 0 if forgetting == 0.99 else 8 * 5 * many
    folded = size * many * (m * m + m * k) + scales
    assert model.nbytes_ == folded
    waiting = size * many * pending_capacity(m) * (m + k)
    assert pending_capacity(m) == min(64, max(48, m // 4))
    for i in range(50):
        model.partial_fit(data[[i % 40]], labels[[i % 40]])
        assert model.nbytes_ <= folded + waiting
    assert model.partial_fit(data[:1], labels[:1]).nbytes_ in (folded, folded + waiting)


@pytest.mark.parametrize("predictive", ["exact", "probit", "monte-carlo", "plug-in"])
@pytest.mark.parametrize("forgetting", ["mixture", 0.99, "learned"])
def test_every_way_to_predict(predictive, forgetting):
    model = small(forgetting=forgetting, predictive=predictive).partial_fit(X, Y)
    found = model.predict_proba(X)
    assert found.sum(axis=1) == pytest.approx(1.0)
    assert (model.classes_[found.argmax(axis=1)] == Y).mean() > 0.5
    assert np.array_equal(model.predict(X), model.classes_[found.argmax(axis=1)])
