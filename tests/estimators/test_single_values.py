"""A single row of a regression goes a short way of its own, with the numbers of the long one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kalstream import KalmanRegressor
from kalstream.core import Mixture
from kalstream.errors import InvalidInput
from kalstream.estimators import _value_row, regressor

RNG = np.random.default_rng(8)
X = RNG.standard_normal((300, 4))
Y = np.sin(2.0 * X[:, 0]) + 0.1 * RNG.standard_normal(300) + 3.0 * (np.arange(300) > 200)
SHORT = Mixture(half_lives=(float("inf"), 5.0, 50.0), share=0.1, prior_scale=(1.0, 10.0, 0.1))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which rows went the short way."""
    ways: list[bool] = []

    def counted(*row: Any) -> Any:
        made = _value_row.learn_value(*row)
        ways.append(made is not None)
        return made

    monkeypatch.setattr(regressor, "learn_value", counted)
    return ways


def passed(model: Any, y: Any) -> list[Any]:
    """All that rows one by one give."""
    answers: list[Any] = []
    for i in range(len(y)):
        row, target = X[i : i + 1], y[i : i + 1]
        if i % 3 == 0 and i > 5:
            answers.append(model.predict(row, return_std=True))
        if i % 3 == 2:
            model.partial_fit(row, target)
        else:
            answers.append(model.predict_then_learn(row, target))
    drift, health = model.drift(), model.health_
    rest = [[f.weight, *f.posterior.mean.ravel(), *f.posterior.cov.ravel()] for f in model.filters_]
    numbers = [drift.alarms, drift.confidence, drift.usual_half_life, health.nis, model.noise_var_]
    return [*answers, *rest, numbers, [model.n_seen_, model.n_rows_], model.predict(X[:20])]


@pytest.mark.parametrize("features", ["raw", "fourier"])
@pytest.mark.parametrize("forgetting", ["mixture", SHORT], ids=["mixture", "own"])
@pytest.mark.parametrize("noise_var", ["auto", 0.1])
@pytest.mark.parametrize("kind", ["one", "two", "outliers"])
def test_both_ways_give_the_same(
    features: Any, forgetting: Any, noise_var: Any, kind: str, short: Any, monkeypatch: Any
) -> None:
    y = np.stack([Y, -2.0 * Y], axis=1) if kind == "two" else Y.copy()
    if kind == "outliers":
        y[[100, 101, 250]] = 1e4, -1e5, 1e6
        y[::17] = np.nan
    parameters = {"n_components": 20, "random_state": 0, "noise_var": noise_var}
    quick = passed(KalmanRegressor(forgetting, features, **parameters), y)
    assert sum(short) > 250
    monkeypatch.setattr(regressor, "learn_value", lambda *_: None)
    slow = passed(KalmanRegressor(forgetting, features, **parameters), y)
    for one, other in zip(quick, slow, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


def test_what_is_unusual_goes_the_long_way(short: Any) -> None:
    model = KalmanRegressor(features="scaled").partial_fit(X[:50], Y[:50])
    row, before = X[50:51], sum(short)
    model.partial_fit(row, [1.0], sample_weight=[2.0])
    model.partial_fit(row.tolist(), [1.0])
    model.partial_fit(X[51:53], Y[51:53])
    model.partial_fit(row, [np.nan])
    mean = model.predict(X[:5])
    for bad, target in ((np.full((1, 4), np.inf), 1.0), (row, np.inf), (row, 1e300)):
        with pytest.raises(InvalidInput):
            model.partial_fit(bad, [target])
    with pytest.raises(InvalidInput):
        model.partial_fit(row, [[1.0, 2.0]])
    assert sum(short) == before
    np.testing.assert_array_equal(mean, model.predict(X[:5]))
    model.partial_fit(row, [1.0])
    assert sum(short) == before + 1


def test_a_model_before_a_row_stays_as_it_was() -> None:
    model = KalmanRegressor(n_components=20, random_state=0).partial_fit(X[:100], Y[:100])
    for i in range(100, 110):
        model.partial_fit(X[i : i + 1], Y[i : i + 1])
    kept = model.snapshot()
    before = kept.predict(X, return_std=True)
    for i in range(110, 240):
        model.partial_fit(X[i : i + 1], Y[i : i + 1])
    np.testing.assert_array_equal(kept.predict(X, return_std=True), before)
    kept.partial_fit(X[110:111], Y[110:111])
