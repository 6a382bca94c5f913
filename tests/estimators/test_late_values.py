"""Late values: two judges are averaged, as for labels, and an outlier gets a smaller weight."""

from typing import Any

import numpy as np
import pytest

from kalstream import KalmanRegressor
from kalstream.core._kernels.judging import choose_rows

NO_LABELS = np.empty(0, np.int64)


def later(X: Any, y: Any, delay: int, size: int) -> tuple[Any, Any]:
    """Means by `ask` and `tell`, and by `predict` and, when targets have come, `partial_fit`."""
    late, plain, n = KalmanRegressor(features="raw"), KalmanRegressor(features="raw"), len(y)
    means = np.full((2, n), np.nan)
    for start in range(0, n, size):
        part, due = slice(start, start + size), slice(max(0, start - delay), start + size - delay)
        means[0, part], _ = late.ask(X[part], ids=range(start, start + size))
        if start >= delay + size:
            means[1, part] = plain.predict(X[part])
        if due.stop > due.start:
            late.tell(range(due.start, due.stop), y[due])
            plain.partial_fit(X[due], y[due])
    return means


def test_soon_after_the_first_late_targets_the_error_is_that_of_learning_later() -> None:
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((2500, 6)), rng.standard_normal(6)
    y = X @ w + 0.3 * rng.standard_normal(2500)
    late, plain = later(X, y, 1000, 50)
    soon = slice(1200, 1600)
    errors = [np.sqrt(np.mean((each - y)[soon] ** 2)) for each in (late, plain)]
    assert errors[0] < 1.05 * errors[1]


def test_where_targets_resemble_those_before_the_late_judge_is_kept() -> None:
    rng = np.random.default_rng(1)
    X, level = rng.standard_normal((5000, 3)), np.zeros(5000)
    for i in range(1, 5000):
        level[i] = 0.995 * level[i - 1] + 0.15 * rng.standard_normal()
    y = X[:, 0] + level + rng.standard_normal(5000)
    late, plain = later(X, y, 500, 50)
    rows = slice(2000, 5000)
    assert np.mean((late - y)[rows] ** 2) < 0.95 * np.mean((plain - y)[rows] ** 2)


@pytest.mark.parametrize("seed", range(5))
def test_values_are_chosen_as_the_equations_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, n_outputs, share = 60, int(rng.integers(1, 4)), float(rng.uniform(0.0, 0.2))
    asked = np.repeat([True, False], n // 2)
    slot = np.concatenate([rng.permutation(n // 2), rng.permutation(n // 2)])
    gap, lag = rng.uniform(0.0, 3.0, n), rng.integers(0, 5, n).astype(float)
    rates, weight = rng.uniform(0.1, 1.0, n), rng.choice([0.0, 1.0, 3.0], n)
    dense = rng.standard_normal((n, n_outputs))
    means = rng.standard_normal((n, 2, n_outputs))
    variances = rng.uniform(0.3, 2.0, (n, 2, n_outputs))
    variances[rng.random(n) < 0.2, 0] = 0.0  # unknown
    answers, beliefs = np.zeros((n // 2, 2, 2 * n_outputs)), np.array([0.3, 0.7])
    expected, kept, now = beliefs.copy(), {}, []
    for i in range(n):
        switch = 1.0 - (1.0 - share) ** (gap[i] * rates[i])
        ahead = (1.0 - switch) * expected + switch / 2.0
        if asked[i]:
            others = 0.5 * lag[i] / (1.0 + lag[i])
            w = ahead * [1.0 - others, others]
            w = w / w.sum()
            mean = w @ means[i]
            now.append(np.r_[mean, w @ (variances[i] + (means[i] - mean) ** 2)])
            kept[slot[i]] = means[i], variances[i]
            continue
        expected = ahead
        mean, var = kept[slot[i]]
        if weight[i] == 0.0 or not (var > 0.0).all():
            continue
        logs = -0.5 * (np.log(var) + (dense[i] - mean) ** 2 / var).sum(axis=1)
        floored = np.maximum(np.exp(logs - logs.max()), 1e-9)
        expected = expected * floored ** (weight[i] * rates[i])
        expected = np.maximum(expected / expected.sum(), 1e-9)
    out = choose_rows(
        *(asked, slot, gap, lag, NO_LABELS, dense, weight, rates, np.zeros(n, np.int64)),
        *(np.concatenate([means, variances], axis=2), answers, np.zeros(n // 2)),
        *(share, beliefs),
    )
    np.testing.assert_allclose(out[asked], now, rtol=1e-10)
    np.testing.assert_allclose(beliefs, expected, rtol=1e-10)


def with_outliers(seed: int, n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, 2)), rng.standard_normal(n)
    y[[60, 110, 111]] = 1e7, 1e5, -1e6
    y[[30, 61]] = np.nan
    return X, y


@pytest.mark.parametrize("delay", [0, 30])
def test_an_outlier_spoils_no_late_judge(delay: int) -> None:
    rng = np.random.default_rng(5)
    X = rng.uniform(-2.0, 2.0, (900, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.standard_normal(900)
    made = []
    for targets in (y, np.where(np.arange(900) == 600, 1e7, y)):
        model = KalmanRegressor(n_components=50, random_state=0)
        before = np.minimum(np.arange(900) + 1 + delay, 900)
        made.append(model.ask_and_tell(X, range(900), targets, before))
    rest = slice(601 + delay, 700)
    errors = [np.abs(y - mean)[rest].mean() for mean, _ in made]
    assert errors[1] < 1.05 * errors[0]
    assert (made[1][1][rest] < 1.6 * made[0][1][rest]).all()  # the sum of squares doubles


@pytest.mark.parametrize("weight", [None, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_outliers_teach_the_same_however_late_targets_come(seed: int, weight: Any) -> None:
    """The plain version: rows learned one by one in the order of their targets."""
    rng = np.random.default_rng(seed)
    n, parameters = 150, {"n_components": 20, "random_state": 0}
    X, y = with_outliers(seed, n)
    weights = None if weight is None else np.full(n, weight)
    arrival = np.sort(np.arange(n) + rng.integers(0, 20, n))
    before = np.minimum(arrival + 1, n)
    cut = int(rng.integers(50, n))
    whole, pieces, by_event, plain = (KalmanRegressor(**parameters) for _ in range(4))
    one = whole.ask_and_tell(X, range(n), y, before, sample_weight=weights)
    parts = []
    for a, b in ((0, cut), (cut, n)):
        first, last = np.searchsorted(before, [a, b], side="right")
        last = n if b == n else last
        told = slice(first if a else 0, last)
        here = None if weights is None else weights[told]
        names = range(told.start, told.stop)
        parts.append(
            pieces.ask_and_tell(X[a:b], names, y[told], before[told] - a, sample_weight=here)
        )
    apart = []
    for i in range(n + 1):
        for k in np.flatnonzero(before == i).tolist():
            by_event.tell([k], y[[k]], None if weights is None else weights[[k]])
        if i < n:
            apart.append(by_event.ask(X[i : i + 1]))
    for i in range(n):
        plain.partial_fit(X[i : i + 1], y[[i]], None if weights is None else weights[[i]])
    apart = np.array(apart)[:, :, 0].T
    np.testing.assert_allclose(one, apart, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), apart, rtol=1e-6, atol=1e-9)
    expected = plain._model.state.half_life_weights
    for model in (whole, pieces, by_event):
        np.testing.assert_allclose(model._model.state.half_life_weights, expected, rtol=1e-6)
        for mine, theirs in zip(model.filters_, plain.filters_, strict=True):
            mean = theirs.posterior.mean
            np.testing.assert_allclose(mine.posterior.mean, mean, rtol=1e-5, atol=1e-7)
