"""`CRPClassifier`: known classes, and the probability of one that was never seen."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score

from kalstream import CRPClassifier, KalmanClassifier
from kalstream.errors import CheckpointError, InvalidInput
from kalstream.evaluate import prequential
from kalstream.streams import ArrayStream

Array = NDArray[Any]


def stream(n: int = 600) -> tuple[Array, Array]:
    """Rows (n, 3) of twelve classes, of which one more can come every 40 rows."""
    rng = np.random.default_rng(0)
    y = np.minimum(rng.integers(12, size=n), 1 + np.arange(n) // 40)
    X = 15.0 * rng.standard_normal((12, 3))[y] + rng.standard_normal((n, 3))
    return X, np.array([f"c{k}" for k in range(12)])[y]


def firsts(y: Array) -> Array:
    is_first = np.zeros(len(y), bool)
    is_first[np.unique(y, return_index=True)[1]] = True
    return is_first


def test_new_classes_are_expected_where_they_come() -> None:
    X, y = stream()
    model = CRPClassifier()
    p, new = model.predict_open_then_learn(X, y)
    assert roc_auc_score(firsts(y)[100:], new[100:]) > 0.9
    assert (model.classes_[p.argmax(axis=1)] == y)[~firsts(y)].mean() > 0.95
    assert new[0] == 1.0
    assert p[0].sum() == 0.0
    np.testing.assert_allclose(p[1:].sum(axis=1), 1.0, rtol=1e-9)
    assert model.new_class_proba(X[-5:]).max() < 0.1
    assert model.nbytes_ > 0


@pytest.mark.parametrize("half_life", [None, 60.0])
def test_calls_of_any_size_are_the_same(half_life: float | None) -> None:
    X, y = stream(200)
    rng = np.random.default_rng(1)
    X[rng.random(X.shape) < 0.1] = np.nan
    weight = rng.choice([0.0, 0.5, 2.0], 200)
    labels = [None if i % 7 == 3 else str(label) for i, label in enumerate(y)]
    whole = CRPClassifier(half_life)
    expected = whole.predict_open_then_learn(X, labels, weight)[1]
    for size in (1, 63):
        cut, parts = CRPClassifier(half_life), []
        for i in range(0, 200, size):
            part = slice(i, i + size)
            parts.append(cut.predict_open_then_learn(X[part], labels[part], weight[part])[1])
        np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-9)
        np.testing.assert_allclose(cut.predict_proba(X), whole.predict_proba(X), rtol=1e-9)


def test_declared_classes_change_nothing_and_rows_without_labels_let_time_pass() -> None:
    X, y = stream(200)
    plain = CRPClassifier().partial_fit(X, y)
    other = CRPClassifier().partial_fit(X, y, classes=["later", *np.unique(y)[::-1]])
    at = np.searchsorted(other.classes_, plain.classes_)
    np.testing.assert_allclose(plain.predict_proba(X), other.predict_proba(X)[:, at])
    assert other.predict_proba(X)[:, -1].max() == 0.0
    slow, quick = (CRPClassifier(20.0).partial_fit(X, y) for _ in range(2))
    quick.partial_fit(X[:100], [None] * 100)
    assert quick.n_seen_ == 300
    np.testing.assert_array_equal(slow.predict_proba(X), quick.predict_proba(X))
    for each in (slow, quick):
        each.partial_fit(X[:1], y[:1])
    assert not np.array_equal(slow.predict_proba(X), quick.predict_proba(X))
    with pytest.raises(NotFittedError, match="3 rows, all without"):
        CRPClassifier().partial_fit(X[:3], [None] * 3).predict(X)


def test_it_is_saved_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    X, y = stream(300)
    path = tmp_path / "model.safetensors"
    model = CRPClassifier(500.0, most_columns=3).partial_fit(X[:200], y[:200])
    model.save(path)
    again = CRPClassifier.load(path)
    assert again.get_params() == model.get_params()
    for each in (model, again):
        each.partial_fit(X[200:], y[200:])
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), again.predict(X))
    before = model.snapshot()
    model.partial_fit(X[:1], ["new"])
    assert "new" not in before.classes_
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="checksum"):
        CRPClassifier.load(path)


def test_tables_are_saved_too(tmp_path: Path) -> None:
    rows = [{"size": float(i % 3), "colour": "red" if i % 2 else "blue"} for i in range(60)]
    y = ["a" if i % 2 else "b" for i in range(60)]
    model = CRPClassifier().partial_fit(rows, y)
    assert model.score(rows, y) > 0.9
    model.save(tmp_path / "model.safetensors")
    again = CRPClassifier.load(tmp_path / "model.safetensors")
    assert again.feature_names_in_.tolist() == ["size", "colour"]
    np.testing.assert_array_equal(model.predict_proba(rows), again.predict_proba(rows))


def test_it_runs_in_the_loop() -> None:
    X, y = stream(300)
    result = prequential(CRPClassifier(), ArrayStream(X, y))
    assert result.total["accuracy"] > 0.9


def test_extreme_columns_and_bad_input() -> None:
    X, y = stream(100)
    X[:, 1], X[5, 2], X[7, 0] = 3.0, 1e90, -1e90
    model = CRPClassifier().partial_fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    before = model.predict_proba(X)
    for bad in ({"X": X[:, :2]}, {"y": y[:-1]}, {"sample_weight": -np.ones(100)}):
        with pytest.raises(InvalidInput):
            model.partial_fit(**{"X": X, "y": y, **bad})
    np.testing.assert_array_equal(before, model.predict_proba(X))
    with pytest.raises(InvalidInput, match="half_life"):
        CRPClassifier(-1.0).fit(X, y)
    with pytest.raises(InvalidInput, match="fit needs all labels"):
        CRPClassifier().fit(X[:2], ["a", None])


def test_windows_have_how_many_new_classes_were_expected() -> None:
    X, y = stream(300)
    _, new = CRPClassifier().predict_open_then_learn(X, y)
    windows = prequential(CRPClassifier(), ArrayStream(X, y), window=100).windows
    new[0] = 0.0  # not scored: no label was known
    made = [line["expected_new"] for line in windows]
    np.testing.assert_allclose(made, new.reshape(3, 100).sum(axis=1), rtol=1e-9)
    silent = prequential(KalmanClassifier(features="raw"), ArrayStream(X, y), window=100)
    assert not any("expected_new" in line for line in silent.windows)


@pytest.mark.parametrize("chunk", [1, 7])
def test_open_log_loss_is_by_its_own_probability_of_a_new_class(chunk: int) -> None:
    X, y = stream(300)
    model, logs = CRPClassifier(), []
    for start in range(0, 300, chunk):
        part = slice(start, start + chunk)
        if start:
            p, new = model.predict_proba(X[part]), model.new_class_proba(X[part])
            for label, each, q in zip(y[part], p, new, strict=True):
                known = dict(zip(model.classes_, each, strict=True))
                logs.append(np.log(known[label] * (1.0 - q) if label in known else q))
        model.partial_fit(X[part], y[part])
    for together in (1, 20):
        found = prequential(CRPClassifier(), ArrayStream(X, y), chunk=chunk, together=together)
        assert found.total["open_log_loss"] == pytest.approx(-np.mean(logs), rel=1e-9)
        assert found.total["open_log_loss"] < found.total["log_loss"]
    silent = prequential(KalmanClassifier(features="raw"), ArrayStream(X, y), chunk=chunk)
    assert silent.total["open_log_loss"] is None  # it does not say
