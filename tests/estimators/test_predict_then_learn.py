"""`predict_then_learn` gives the numbers of the loop over single rows."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.core import Calibration, Fixed, Learned, Mixture
from kalstream.errors import InvalidInput, NumericalError
from kalstream.estimators import _learning

POLICIES = (
    "mixture",
    "learned",
    0.99,
    Mixture(half_lives=(5.0, 50.0), share=0.1),
    Learned(calibration=Calibration()),
    Fixed(0.9),
)


def one_by_one(model: Any, X: Any, y: Any, weight: Any, times: Any) -> list[dict[Any, float]]:
    """Predictions of the loop: {label: probability} for each row."""
    out = []
    for i in range(len(X)):
        row, when = X[i : i + 1], {} if times is None else {"time": times[i : i + 1]}
        w = None if weight is None else weight[i : i + 1]
        if model.recent_labels:
            p = model.predict_then_learn(row, y[i : i + 1], sample_weight=w, **when)[0]
            out.append(dict(zip(model.classes_.tolist() if len(p) else [], p, strict=True)))
            continue
        if model.__sklearn_is_fitted__():
            p = model.predict_proba(row, **when)[0]
            out.append(dict(zip(model.classes_.tolist(), p, strict=True)))
        else:
            out.append({})
        model.partial_fit(row, y[i : i + 1], sample_weight=w, **when)
    return out


@settings(max_examples=40)
@given(
    policy=st.sampled_from(POLICIES),
    features=st.sampled_from(["raw", "scaled", "fourier"]),
    predictive=st.sampled_from(["exact", "probit", "plug-in"]),
    recent=st.booleans(),
    n=st.integers(1, 90),
    n_classes=st.integers(1, 5),
    missing=st.sampled_from([0.0, 0.3]),
    weighted=st.booleans(),
    timed=st.booleans(),
    cut=st.integers(1, 90),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_chunk_says_what_the_loop_says(
    policy, features, predictive, recent, n, n_classes, missing, weighted, timed, cut, seed
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    y = np.array([f"c{k}" for k in rng.integers(n_classes, size=n)], dtype=object)
    y[rng.random(n) < missing] = None
    weight = rng.uniform(0.0, 2.0, n) if weighted else None
    times = np.cumsum(rng.exponential(size=n)) if timed else None
    how = {"predictive": predictive, "n_components": 10, "random_state": 0, "recent_labels": recent}
    loop, chunk = (KalmanClassifier(policy, features, **how) for _ in range(2))
    expected = one_by_one(loop, X, y, weight, times)
    for start in range(0, n, cut):
        part = slice(start, start + cut)
        cuts = [None if each is None else each[part] for each in (weight, times)]
        found = chunk.predict_then_learn(X[part], y[part], *cuts)
        if not chunk.__sklearn_is_fitted__():
            assert found.shape == (len(X[part]), 0)
            continue
        for i, row in enumerate(found, start):
            said = dict(zip(chunk.classes_.tolist(), row, strict=True))
            assert said == pytest.approx({**dict.fromkeys(said, 0.0), **expected[i]}, abs=1e-8)
    if loop.__sklearn_is_fitted__():
        np.testing.assert_allclose(chunk.coef_, loop.coef_, atol=1e-9)


@settings(max_examples=40)
@given(
    policy=st.sampled_from(["mixture", 0.99, Mixture(half_lives=(5.0, 50.0), share=0.1)]),
    noise_var=st.sampled_from(["auto", 0.3]),
    n=st.integers(1, 60),
    n_outputs=st.integers(1, 2),
    missing=st.sampled_from([0.0, 0.3]),
    cut=st.integers(1, 60),
    seed=st.integers(0, 2**32 - 1),
)
def test_regression_in_a_chunk_is_the_loop(
    policy, noise_var, n, n_outputs, missing, cut, seed
) -> None:
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, 2)), 5.0 + 3.0 * rng.standard_normal((n, n_outputs))
    y[rng.random(n) < missing] = np.nan
    y = y[:, 0] if n_outputs == 1 else y
    how = {"noise_var": noise_var, "n_components": 10, "random_state": 0}
    loop, chunk = (KalmanRegressor(policy, **how) for _ in range(2))
    for start in range(0, n, cut):
        part = slice(start, start + cut)
        mean, std = chunk.predict_then_learn(X[part], y[part])
        for i in range(len(mean)):
            row = X[part][i : i + 1]
            if loop.__sklearn_is_fitted__():
                expected = loop.predict(row, return_std=True)
            else:
                expected = np.full((1, *y.shape[1:]), np.nan), np.full((1, *y.shape[1:]), np.inf)
            np.testing.assert_allclose(mean[i], expected[0][0], rtol=1e-7, atol=1e-8)
            np.testing.assert_allclose(std[i], expected[1][0], rtol=1e-7)
            loop.partial_fit(row, y[part][i : i + 1])


def test_transition_by_chunk_predicts_the_chunk_first() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), rng.integers(3, size=40)
    one, two = (KalmanClassifier(0.9, "raw", transition="chunk") for _ in range(2))
    assert not one.predict_then_learn(X[:20], y[:20]).any()
    two.partial_fit(X[:20], y[:20])
    expected = two.predict_proba(X[20:])
    np.testing.assert_array_equal(one.predict_then_learn(X[20:], y[20:]), expected)
    np.testing.assert_array_equal(one.coef_, two.partial_fit(X[20:], y[20:]).coef_)
    regressor = KalmanRegressor(0.9, "raw", transition="chunk", noise_var=0.1)
    assert np.isnan(regressor.predict_then_learn(X[:20], X[:20, 0])[0]).all()
    expected = regressor.predict(X[20:], return_std=True)
    np.testing.assert_array_equal(regressor.predict_then_learn(X[20:], X[20:, 0]), expected)


def test_frames_and_dates() -> None:
    frame = pd.DataFrame({"a": np.arange(6.0), "b": np.arange(6.0) % 2})
    dates = [datetime(2020, 1, 1) + timedelta(seconds=i) for i in range(6)]
    model = KalmanClassifier(random_state=0)
    found = model.predict_then_learn(frame, list("xyxyzx"), time=dates)
    assert found.shape == (6, 3)
    np.testing.assert_allclose(found[1:].sum(axis=1), 1.0)
    assert list(model.feature_names_in_) == ["a", "b"]


@pytest.mark.parametrize("fitted", [False, True])
def test_all_of_a_chunk_or_nothing(fitted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = np.eye(4), ["a", "b", "c", "d"]
    model = KalmanClassifier(features="raw")
    if fitted:
        model.partial_fit(X[:2], ["a", "b"])
    before = model.snapshot() if fitted else None
    original, calls = _learning._learn_piece, []

    def breaks(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise NumericalError("in the second piece")
        return original(*args, **kwargs)

    monkeypatch.setattr(_learning, "_learn_piece", breaks)
    with pytest.raises(NumericalError):
        model.predict_then_learn(X, y)
    monkeypatch.undo()
    assert model.n_seen_ == (2 if fitted else 0)
    if fitted:
        np.testing.assert_array_equal(model.coef_, before.coef_)
    assert model.predict_then_learn(X, y).shape == (4, 4)


def test_bad_chunks_change_nothing() -> None:
    model = KalmanClassifier(features="raw").partial_fit(np.eye(2), ["a", "b"])
    wide, short, long = (np.eye(3), list("abc")), (np.eye(2), ["a"]), (np.eye(2), list("axya"))
    for X, y in (([[np.inf, 0.0]], ["a"]), wide, short, long, (np.eye(2), ["x"])):
        with pytest.raises(ValueError, match=r"infinity|features|targets for|labels for"):
            model.predict_then_learn(X, y)
    assert model.n_seen_ == 2


def runs(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Rows with little information, and labels in runs of ten."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.integers(3, size=n // 10), 10)
    return rng.standard_normal((n, 2)) + 0.5 * np.eye(3)[labels, :2], labels


def test_recent_labels_are_made_use_of() -> None:
    X, y = runs(2000)
    right = {}
    for recent in (True, False):
        model = KalmanClassifier(features="raw", recent_labels=recent)
        said = model.predict_then_learn(X, y)
        right[recent] = (model.classes_[said.argmax(axis=1)] == y)[500:].mean()
    assert right[True] > right[False] + 0.05
    assert right[True] > 0.9


def test_rows_that_need_not_be_the_next_are_predicted_without_recent_labels() -> None:
    X, y = runs(500)
    models = [KalmanClassifier(features="raw", recent_labels=each) for each in (True, False)]
    for model in models:
        model.predict_then_learn(X[:200], y[:200])
        for i in range(200, 500, 5):
            model.partial_fit(X[i : i + 5], y[i : i + 5])
    one, other = (model.predict_proba(X) for model in models)
    np.testing.assert_allclose(one, other, rtol=1e-12)  # a silent expert is one more sum


@pytest.mark.parametrize(
    "how", [{"sample_weight": 100.0}, {"sample_weight": 1e6}, {"class_weight": {0: 1e4}}]
)
def test_heavy_rows_leave_probabilities_that_are_some(how: dict[str, Any]) -> None:
    X, y = runs(600)
    model = KalmanClassifier(features="scaled", class_weight=how.get("class_weight"))
    weight = np.full(600, how.get("sample_weight", 1.0))
    weight[::7] = 1.0
    for said in (
        model.predict_then_learn(X, y, sample_weight=weight)[10:],
        model.partial_fit(X, 2 - y, sample_weight=weight).predict_proba(X),
    ):
        np.testing.assert_allclose(said.sum(axis=1), 1.0)
    assert np.abs(model._model.targets.stack.coef).max() < 20.0


def test_a_stack_that_was_off_starts_again_and_classes_still_retire() -> None:
    X, y = runs(300)
    model = KalmanClassifier(features="scaled").partial_fit(X[:100], np.minimum(y[:100], 1))
    model.set_params(stacking=False).partial_fit(X[100:], y[100:])
    assert model._model.targets.stack is None
    model.set_params(stacking=True).retire_class(0).partial_fit(X[:50], y[:50])
    assert np.isfinite(model.predict_proba(X)).all()
    for name in ("stacking", "recent_labels"):
        with pytest.raises(InvalidInput, match=f"{name} must be True or False"):
            KalmanClassifier(**{name: "False"}).partial_fit(X, y)


def test_recent_labels_are_saved_and_classes_retire(tmp_path: Any) -> None:
    X, y = runs(300)
    model = KalmanClassifier(features="raw")
    model.predict_then_learn(X[:200], y[:200])
    model.save(tmp_path / "m.safetensors")
    again = KalmanClassifier.load(tmp_path / "m.safetensors")
    expected = model.predict_then_learn(X[200:], y[200:])
    np.testing.assert_array_equal(again.predict_then_learn(X[200:], y[200:]), expected)
    model.retire_class(y[-1])
    assert model.predict_proba(X[:3]).shape == (3, 2)
    np.testing.assert_allclose(model.predict_then_learn(X[:30], y[:30]).sum(axis=1), 1.0)
