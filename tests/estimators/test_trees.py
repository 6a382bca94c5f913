"""Trees as an expert: what a state holds, what it shares, and what it refuses."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kalstream import KalmanClassifier
from kalstream.core import ExpertRows
from kalstream.errors import InvalidInput
from kalstream.estimators import Trees, trees
from kalstream.estimators.trees import TreesState

Array = NDArray[Any]
EXPERT = Trees(limit=60, every=40)


def thresholds(n: int) -> tuple[Array, Array]:
    """Three thresholds of one column of thirty; one label in twenty is wrong."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 30))
    y = np.searchsorted([-0.7, 0.0, 0.7], X[:, 0]) % 2
    return X, np.where(rng.random(n) < 0.05, 1 - y, y)


def passing(X: Array, labels: Array, **parts: Array) -> ExpertRows:
    n = len(X)
    usual = {"weight": np.ones(n), "gap": np.ones(n), "number": np.arange(n)}
    return ExpertRows(X, labels, **usual | parts)


def learned(n: int, expert: Trees = EXPERT, n_classes: int = 2) -> TreesState:
    X, y = thresholds(n)
    return expert.advance(expert.start(30, n_classes), passing(X, y))[0]


def predicted(state: TreesState, X: Array, expert: Trees = EXPERT) -> Array:
    return expert.advance(state, passing(X, np.full(len(X), -1)))[1]


def test_thresholds_of_one_column_are_found() -> None:
    X, y = thresholds(3000)
    right = {}
    for name, experts in {"with": [Trees()], "without": []}.items():
        model = KalmanClassifier(experts=experts, random_state=0)
        p = [model.predict_then_learn(X[i : i + 500], y[i : i + 500]) for i in range(0, 3000, 500)]
        right[name] = (np.concatenate(p).argmax(axis=1) == y)[1000:].mean()
    assert right["with"] > 0.9
    assert right["without"] < 0.65


def test_late_labels_reach_it() -> None:
    X, y = thresholds(2400)
    model = KalmanClassifier(features="scaled", experts=[Trees()]).partial_fit(X[:6], y[:6])
    right = []
    for i in range(0, 2400, 200):
        p = model.ask(X[i : i + 200], ids=range(i, i + 200))
        right.append((p.argmax(axis=1) == y[i : i + 200]).mean())
        if i >= 400:
            model.tell(range(i - 400, i - 200), y[i - 400 : i - 200])
    assert min(right[-3:]) > 0.85


def test_trees_are_fitted_when_due_and_only_if_they_are_asked_for() -> None:
    X, y = thresholds(450)
    expert, fits = Trees(every=300), []
    state = expert.start(30, 2)
    for i in range(450):
        state, _ = expert.advance(state, passing(X[i : i + 1], y[i : i + 1]))
        if not fits or state.fit is not fits[-1]:
            fits.append(state.fit)
    assert [fit.learned for fit in fits] == [0, 100, 200, 300]
    whole, _ = expert.advance(expert.start(30, 2), passing(X[:100], y[:100]))
    assert "known" not in vars(whole.fit)
    predicted(whole, X, expert)
    assert "known" in vars(whole.fit)


def test_a_file_has_no_trees_and_they_are_the_same_again(tmp_path: Path) -> None:
    X, y = thresholds(700)
    model = KalmanClassifier(features="scaled", experts=[Trees(every=250)])
    model.partial_fit(X[:620], y[:620]).save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    states: list[Any] = [each._model.targets.experts["trees"] for each in (model, again)]
    assert states[0].fit is not states[1].fit
    assert "known" not in vars(states[1].fit)
    for each in (model, again):
        each.partial_fit(X[620:660], y[620:660])
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))


def test_copies_share_trees_or_fit_the_same() -> None:
    X, _ = thresholds(300)
    state = learned(250)
    out = predicted(state, X)
    copied, unpickled = copy.deepcopy(state), pickle.loads(pickle.dumps(state))
    assert copied.fit is state.fit
    assert "known" not in vars(unpickled.fit)
    for each in (copied, unpickled):
        np.testing.assert_array_equal(predicted(each, X), out)


def test_threads_and_their_number_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, _ = thresholds(300)
    out = predicted(learned(250), X)
    fresh = learned(250)
    with ThreadPoolExecutor(4) as pool:
        for each in pool.map(lambda _: predicted(fresh, X), range(8)):
            np.testing.assert_array_equal(each, out)
    several = trees._openmp().limit

    class FourThreads:
        def limit(self, limits: int) -> Any:
            return several(limits=4 * limits)

    monkeypatch.setattr(trees, "_openmp", FourThreads)
    np.testing.assert_array_equal(predicted(learned(250), X), out)


def test_two_futures_of_a_state_do_not_meet() -> None:
    X, y = thresholds(600)
    before = learned(250)
    out = predicted(before, X)
    parts = [passing(X[250:400], labels[250:400]) for labels in (y, 1 - y)]
    (one, _), (other, _) = (EXPERT.advance(before, part) for part in parts)
    assert not np.array_equal(predicted(one, X), predicted(other, X))
    again, _ = EXPERT.advance(learned(250), parts[0])
    np.testing.assert_array_equal(predicted(one, X), predicted(again, X))
    np.testing.assert_array_equal(predicted(before, X), out)


def test_a_window_keeps_what_trees_need_and_no_more() -> None:
    state = learned(700)
    assert len(state.labels) <= 2 * (EXPERT.limit + EXPERT.every)
    assert len(state.training(EXPERT.limit)[0]) == EXPERT.limit
    assert state.fit.learned == 680
    X, y = thresholds(700)
    np.testing.assert_array_equal(state.training(60)[0], X[620:680].astype(np.float32))
    np.testing.assert_array_equal(state.training(60)[1], y[620:680])


def test_weights_are_those_of_trees() -> None:
    X, y = thresholds(200)
    kept = np.arange(200) % 3 > 0
    none, _ = EXPERT.advance(EXPERT.start(30, 2), passing(X, np.where(kept, y, -1)))
    few, _ = EXPERT.advance(EXPERT.start(30, 2), passing(X[kept], y[kept]))
    np.testing.assert_array_equal(predicted(none, X), predicted(few, X))
    for weight in (1e-300, 1e300):
        rows = passing(X, y, weight=np.full(200, weight))
        state, out = EXPERT.advance(EXPERT.start(30, 2), rows)
        state.__post_init__()
        assert np.isfinite(out).all()


def test_rows_of_any_kind() -> None:
    X, y = thresholds(200)
    X[:, 3], X[:, 4], X[::2, 5], X[:, 6] = np.nan, 1e100, -1e100, 7.0
    for labels in (y, np.ones(200, int)):  # one class alone
        state, out = EXPERT.advance(EXPERT.start(30, 2), passing(X, labels))
        state.__post_init__()
        assert np.isfinite(out).all()
    state, out = EXPERT.advance(EXPERT.start(30, 2), passing(np.full_like(X, np.nan), y))
    assert np.isfinite(out).all()
    same, out = EXPERT.advance(state, passing(X[:0], y[:0]))
    assert same is state
    assert out.shape == (0, 2)


def test_a_new_class_has_its_frequency_and_a_dropped_class_no_trees() -> None:
    X, y = thresholds(300)
    three = np.where(np.arange(300) % 3 == 0, 2, y)
    state, _ = EXPERT.advance(EXPERT.start(30, 2), passing(X[:240], y[:240]))
    grown = np.exp(predicted(state.add_classes(3), X[240:]))
    assert 0.0 < grown[:, 2].max() < 0.02
    state, _ = EXPERT.advance(EXPERT.start(30, 3), passing(X[:240], three[:240]))
    fewer = state.keep_classes(np.array([1, 0]))
    fewer.__post_init__()
    last = slice(240 - EXPERT.limit, 240)
    assert set(fewer.training(60)[1]) == {0, 1}
    assert len(fewer.training(60)[1]) == (three[last] < 2).sum()
    np.testing.assert_allclose(np.exp(predicted(fewer, X)).sum(axis=1), 1.0)


def test_forged_states_are_refused() -> None:
    state = learned(250)
    n = state.stop
    far, negative = state.window.copy(), state.counts.copy()
    far[3, 2], negative[0] = np.inf, -1.0
    weights, labels = state.weights.copy(), state.labels.copy()
    weights[2], labels[1] = np.nan, 2
    for parts in (
        {"window": state.window[:, :5].astype(np.float64)},
        {"window": state.window[:-1]},
        {"window": far},
        {"weights": weights},
        {"weights": state.weights.astype(np.float32)},
        {"labels": labels},
        {"labels": state.labels.astype(np.int32)},
        {"end": np.array([n - 1])},
        {"stop": -1},
        {"stop": 250.0},
        {"learned": n - 1},
        {"counts": negative},
        {"fit": replace(state.fit, learned=251)},
        {"fit": replace(state.fit, learned=-1)},
        {"fit": None},
    ):
        with pytest.raises(InvalidInput, match="start again"):
            replace(state, **parts)
    with pytest.raises(InvalidInput, match="counts of trees"):
        replace(state, counts=np.zeros((2, 2)))


def test_bad_settings_are_refused() -> None:
    for settings in ({"limit": 0}, {"every": 0}, {"every": 1.5}):
        with pytest.raises(InvalidInput, match=next(iter(settings))):
            Trees(**settings)
