"""Presets: who predicts, and that each of them learns as the default does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from river import stream as river_stream

from kalstream import KalmanClassifier
from kalstream.compat.river import KalmanClassifier as RiverClassifier
from kalstream.core import GaussianClasses, LabelChain, Linear, Neighbours
from kalstream.errors import InvalidInput
from kalstream.estimators import Trees
from kalstream.estimators.classifier import PRESETS

Array = NDArray[Any]
every = pytest.mark.parametrize("preset", PRESETS)
# What a preset is, in other parameters.
SAME: dict[str, dict[str, Any]] = {
    "fast": {"stacking": False},
    "default": {"experts": [Neighbours(), LabelChain(), Linear()]},
    "accurate": {"experts": [Neighbours(), LabelChain(), Linear(), GaussianClasses(), Trees()]},
}


def stream(n: int = 300) -> tuple[Array, Array]:
    X = np.random.default_rng(0).random((n, 3))
    return X, np.array(["a", "b", "c"])[((4.0 * X[:, 0]).astype(int) + np.arange(n)) % 3]


def model(preset: str = "default", **more: Any) -> KalmanClassifier:
    return KalmanClassifier(features="scaled", preset=preset, **more)


@every
def test_it_is_the_same_as_its_parts(preset: str) -> None:
    X, y = stream()
    whole = model(preset).predict_then_learn(X, y)
    np.testing.assert_array_equal(whole, model(**SAME[preset]).predict_then_learn(X, y))
    others = [model(other).predict_then_learn(X, y) for other in PRESETS if other != preset]
    assert all(np.abs(whole - other).max() > 1e-3 for other in others)


@every
def test_calls_of_any_size_are_the_same(preset: str) -> None:
    X, y = stream(70)
    one, other = model(preset).partial_fit(X[:6], y[:6]), model(preset).partial_fit(X[:6], y[:6])
    rows = [one.predict_then_learn(X[i : i + 1], y[i : i + 1]) for i in range(6, 70)]
    whole = other.predict_then_learn(X[6:], y[6:])
    np.testing.assert_allclose(np.concatenate(rows), whole, rtol=1e-9)


@every
def test_it_is_saved_and_resumed_bit_for_bit(preset: str, tmp_path: Path) -> None:
    X, y = stream()
    each = model(preset).partial_fit(X[:200], y[:200])
    each.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    assert again.preset == preset
    p, q = (one.predict_then_learn(X[200:], y[200:]) for one in (each, again))
    np.testing.assert_array_equal(p, q)


@every
def test_it_runs_behind_river(preset: str) -> None:
    X, y = stream(100)
    adapter, p = RiverClassifier(features="scaled", preset=preset), []
    for x, label in river_stream.iter_array(X, y):
        p.append(adapter.predict_proba_one(x).get(label, 0.0))
        adapter.learn_one(x, label)
    each = model(preset)
    made = [each.predict_then_learn(X[i : i + 1], y[i : i + 1]) for i in range(100)]
    own = [float(q[0, each.classes_.tolist().index(y[i])]) for i, q in enumerate(made[10:], 10)]
    np.testing.assert_allclose(p[10:], own, rtol=1e-9)


def test_given_experts_take_the_place_of_those_of_a_preset() -> None:
    X, y = stream(100)
    given = model("accurate", experts=[LabelChain()]).predict_then_learn(X, y)
    same = model(experts=[LabelChain()]).predict_then_learn(X, y)
    np.testing.assert_array_equal(given, same)


def test_a_preset_has_experts_only_where_there_is_a_stack() -> None:
    X, y = stream(60)
    for settings in ({"forgetting": 0.99}, {"stacking": False}, {"preset": "fast"}):
        learned = model(**settings).partial_fit(X, y)
        alone = model(**settings, experts=[]).partial_fit(X, y)
        np.testing.assert_array_equal(learned.predict_proba(X), alone.predict_proba(X))


def test_what_does_not_fit_is_refused() -> None:
    X, y = stream(20)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"preset": "best"}, "preset must be one of 'fast', 'default', 'accurate', got 'best'"),
        ({"preset": "fast", "experts": [LabelChain()]}, "leave experts out"),
        ({"experts": [LabelChain()], "stacking": False}, "stacking=False has no stack"),
        ({"experts": [LabelChain()], "forgetting": 0.9}, "forgetting=0.9 has no stack"),
    ]
    for settings, message in cases:
        with pytest.raises(InvalidInput, match=message):
            model(**settings).partial_fit(X, y)
