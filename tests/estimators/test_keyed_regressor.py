"""`KeyedRegressor`: one regressor for all keys, and what each key adds to it."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from kalstream import KalmanRegressor, KeyedClassifier, KeyedRegressor
from kalstream.core.keyed import Keyed, KeyedValues
from kalstream.errors import CheckpointError, InvalidInput
from kalstream.estimators import checkpoint

Array = NDArray[Any]
BASE = KalmanRegressor(features="scaled")


def stream(
    n: int = 400, n_keys: int = 8, spread: float = 1.5, seed: int = 0, d: int = 3
) -> tuple[Array, Array, Array]:
    """Rows (n, d), targets and keys; functions of keys differ by ``spread`` times the noise."""
    rng = np.random.default_rng(seed)
    keys = rng.choice(n_keys, p=(p := 1.0 / np.arange(1, n_keys + 1) ** 0.7) / p.sum(), size=n)
    X = rng.standard_normal((n, d))
    slopes = rng.standard_normal((n_keys, d)) / math.sqrt(d)
    own = np.einsum("nd,nd->n", X, slopes[keys]) + rng.standard_normal(n_keys)[keys]
    mean = X @ rng.standard_normal(d) / math.sqrt(d) + spread * own
    return X, 10.0 + 2.0 * (mean + rng.standard_normal(n)), keys


def losses(prediction: Any, y: Array) -> Array:
    mean, std = prediction
    return np.log(std) + 0.5 * ((y - mean) / std) ** 2 + 0.5 * math.log(2.0 * math.pi)


def nth_rows(keys: Array) -> Array:
    """How many rows of its key came before each row."""
    out = np.zeros(len(keys), int)
    for key in np.unique(keys):
        out[keys == key] = np.arange((keys == key).sum())
    return out


def both(model: Any, X: Array, keys: Any) -> Array:
    return np.column_stack(model.predict(X, keys, return_std=True))


@pytest.mark.parametrize("size", [1, 37])
def test_batches_of_any_mix_equal_rows_one_by_one(size: int) -> None:
    X, y, keys = stream(150)
    y[3::7] = math.nan
    weight = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 2.0], 150)
    whole, parts, made = KeyedRegressor(BASE), KeyedRegressor(BASE), []
    expected = whole.predict_then_learn(X, y, keys, weight)
    for i in range(0, 150, size):
        at = slice(i, i + size)
        made.append(parts.predict_then_learn(X[at], y[at], keys[at], weight[at]))
    np.testing.assert_allclose(np.concatenate(made, axis=1), expected, rtol=1e-9)
    np.testing.assert_allclose(both(parts, X, keys), both(whole, X, keys), rtol=1e-9)
    assert parts.n_seen_ == whole.n_seen_ == 150


def test_the_first_row_of_a_key_is_predicted_as_by_the_base() -> None:
    X, y, keys = stream(300)
    model, base = KeyedRegressor(BASE).partial_fit(X, y, keys), clone(BASE).partial_fit(X, y)
    new = both(model, X, [f"new {i}" for i in range(300)])
    np.testing.assert_allclose(new, np.column_stack(base.predict(X, return_std=True)), rtol=1e-10)
    mean, std = both(model, X, keys).T
    assert np.abs(mean - new[:, 0]).max() > 1.0
    assert std.mean() < 0.8 * new[:, 1].mean()
    np.testing.assert_array_equal(model.predict(X, keys), mean)


@pytest.mark.parametrize("seed", [0, 1])
def test_keys_that_differ_are_predicted_better_from_their_second_row_on(seed: int) -> None:
    X, y, keys = stream(8000, 150, seed=seed)
    nth, model, base = nth_rows(keys), KeyedRegressor(BASE), clone(BASE)
    prediction = model.predict_then_learn(X, y, keys)
    mine, usual = losses(prediction, y), losses(base.predict_then_learn(X, y), y)
    alone, squares = np.full(8000, math.inf), np.full(8000, math.nan)
    for key in np.unique(keys):
        rows = np.flatnonzero(keys == key)
        lone = clone(BASE).predict_then_learn(X[rows], y[rows])
        squares[rows] = (lone[0] - y[rows]) ** 2
        alone[rows[3:]] = losses((lone[0][3:], lone[1][3:]), y[rows[3:]])
    later = np.arange(8000) >= 500
    for low, high in ((1, 19), (20, 199)):
        at = later & (nth >= low) & (nth <= high)
        assert mine[at].mean() < usual[at].mean() - 0.3
        assert mine[at].mean() < alone[at].mean() - 0.005
        assert ((prediction[0] - y)[at] ** 2).mean() < 0.95 * squares[at].mean()
    np.testing.assert_allclose(mine[nth == 0][3:], usual[nth == 0][3:], rtol=1e-9)
    assert 1.0 < model.spread_ < 4.0


@pytest.mark.parametrize("seed", [0, 1])
def test_keys_that_do_not_differ_cost_less_than_a_hundredth(seed: int) -> None:
    X, y, keys = stream(8000, 150, spread=0.0, seed=seed)
    model, base = KeyedRegressor(BASE), clone(BASE)
    mine, usual = model.predict_then_learn(X, y, keys), base.predict_then_learn(X, y)
    assert losses(mine, y)[500:].mean() < 1.01 * losses(usual, y)[500:].mean()
    squares = [((mean - y)[500:] ** 2).mean() for mean, _ in (mine, usual)]
    assert squares[0] < 1.01 * squares[1]
    assert model.spread_ < 0.3
    assert sum(model.spread_weights_.values()) == pytest.approx(1.0)


def test_the_unit_of_targets_does_not_matter() -> None:
    """Neither does a target that is constant at first, which makes the base very sure."""
    X, y, keys = stream(600)
    y[:50] = 0.0
    one, other = KeyedRegressor(BASE), KeyedRegressor(BASE)
    small = np.column_stack(one.predict_then_learn(X, y, keys))
    large = np.column_stack(other.predict_then_learn(X, 1024.0 * y, keys))
    np.testing.assert_allclose(large[51:], 1024.0 * small[51:], rtol=1e-6)
    usual = np.array(clone(BASE).predict_then_learn(X, y))[:, 300:]
    assert losses(small[300:].T, y[300:]).mean() < losses(usual, y[300:]).mean() - 0.1


def test_before_any_target_nothing_is_known() -> None:
    X, y, keys = stream(100)
    model = KeyedRegressor(BASE).partial_fit(X[:3], [math.nan] * 3, keys[:3])
    with pytest.raises(NotFittedError, match="3 rows, all without"):
        model.predict(X, keys)
    mean, std = model.predict_then_learn(X[:2], y[:2], keys[:2])
    assert np.isnan(mean[0])
    assert np.isinf(std).all()
    assert model.n_keys_ == 0  # without a scale of the noise nothing says how far keys differ
    assert model.partial_fit(X, y, keys).n_keys_ == len(np.unique(keys))


def test_it_is_saved_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    X, y, keys = stream(300)
    path = tmp_path / "model.safetensors"
    model = KeyedRegressor(BASE).partial_fit(X[:200], y[:200], keys[:200])
    model.save(path)
    again = KeyedRegressor.load(path)
    for each in (model, again):
        each.partial_fit(X[200:], y[200:], keys[200:])
    np.testing.assert_array_equal(both(again, X, keys), both(model, X, keys))
    assert (again.nbytes_, again.n_seen_, again.spread_) == (model.nbytes_, 300, model.spread_)
    with pytest.raises(CheckpointError, match=r"use KeyedRegressor\.load"):
        KeyedClassifier.load(path)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("records", np.zeros((8, 3))),
        ("level", np.zeros(3)),
        ("level", np.array([-1.0, 0.0])),
        ("keyed", Keyed(4)),
        ("keyed", KeyedValues(5)),
    ],
)
def test_forged_files_are_refused(tmp_path: Path, part: str, value: Any) -> None:
    path = tmp_path / "model.safetensors"
    KeyedRegressor(BASE).partial_fit(*stream(200)).save(path)
    tree = checkpoint.read(path, "KeyedRegressor")
    checkpoint.write(path, "KeyedRegressor", {**tree, part: value})
    with pytest.raises(CheckpointError, match="damaged"):
        KeyedRegressor.load(path)


def test_bad_input_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from kalstream.core._kernels import keyed as kernels

    X, y, keys = stream(100)
    model, twin = (KeyedRegressor(BASE).partial_fit(X, y, keys) for _ in range(2))
    for bad, message in (
        ({"X": X[:, :2]}, "features"),
        ({"y": y[:-1]}, "y has shape"),
        ({"y": np.column_stack([y, y])}, "y has shape .* has one target.*for each column"),
        ({"y": [math.inf, *y[1:]]}, "infinity"),
        ({"y": ["a"] * 100}, "y"),
        ({"key": keys[:-1]}, "key has 99 keys for the 100 rows"),
        ({"sample_weight": -np.ones(100)}, "sample_weight"),
    ):
        with pytest.raises(InvalidInput, match=message):
            model.partial_fit(**{"X": X, "y": y, "key": keys, **bad})  # type: ignore[arg-type]
    learn = kernels.pass_values

    def interrupted(*args: Any) -> None:
        learn(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "pass_values", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X, y, keys)
    monkeypatch.undo()
    for each in (model, twin):
        each.partial_fit(X, y, keys)
    np.testing.assert_array_equal(both(model, X, keys), both(twin, X, keys))
    with pytest.raises(InvalidInput, match="fit needs all targets"):
        KeyedRegressor(BASE).fit(X[:2], [1.0, math.nan], keys[:2])
    with pytest.raises(InvalidInput, match="base must be a KalmanRegressor"):
        KeyedRegressor(3).partial_fit(X, y, keys)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="return_std"):
        model.predict(X, keys, return_std=3)  # type: ignore[arg-type]


def test_a_snapshot_stays_and_tables_work() -> None:
    X, y, keys = stream(100)
    rows = [{"size": x[0], "colour": "red" if x[1] > 0 else "blue"} for x in X]
    model = KeyedRegressor(BASE).fit(rows, y, keys)
    before, kept = model.predict(rows, keys), model.snapshot()
    model.partial_fit(rows, y, keys)
    np.testing.assert_array_equal(kept.predict(rows, keys), before)
    assert model.feature_names_in_.tolist() == ["size", "colour"]
    assert 0.5 < model.score(rows, y, keys) <= 1.0
    with pytest.raises(InvalidInput, match="a score needs every target"):
        model.score(rows, [math.nan, *y[1:]], keys)


@pytest.mark.parametrize("seed", range(3))
def test_bounded_keys_predict_as_unbounded_ones(seed: int, tmp_path: Path) -> None:
    """The same bits, whatever is in memory, and after a file."""
    rng = np.random.default_rng(seed)
    X, y, keys = stream(500, 40, seed=seed)
    y[rng.random(500) < 0.1] = math.nan
    mine = KeyedRegressor(BASE, max_keys=int(rng.integers(1, 12)), folder=str(tmp_path))
    plain, at = KeyedRegressor(BASE), 0
    while at < 500:
        rows = slice(at, at := at + int(rng.choice([1, 3, 40])))
        made = [m.predict_then_learn(X[rows], y[rows], keys[rows]) for m in (mine, plain)]
        np.testing.assert_array_equal(*made)
        if rng.integers(6) == 0:
            mine.save(tmp_path / "mine")
            mine = KeyedRegressor.load(tmp_path / "mine", folder=str(tmp_path))
    np.testing.assert_array_equal(both(mine, X, keys), both(plain, X, keys))
    assert mine.nbytes_ < plain.nbytes_
    assert set(os.listdir(tmp_path)) <= {"mine"}
