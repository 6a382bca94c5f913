"""Aggregates by key, beside a plain version on lists."""

from __future__ import annotations

import math
import pickle
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.errors import InvalidInput
from kalstream.features import Aggregates
from kalstream.features.aggregates import KINDS_OF_AGGREGATES, MOST_ROWS

SPECS = ["0:2:lag:1", "0:2:lag:3", "1:3:mean:4", "0:3:count:2", "1:2:ewm:2", "0:2:ewm:5"]


def plain(kind: str, values: list[float], window: int) -> float:
    """An aggregate of the earlier values of a key, oldest first."""
    last = [v for v in values[-window:] if not math.isnan(v)]
    if kind == "lag":
        return values[-window] if len(values) >= window else math.nan
    if kind == "mean":
        return sum(last) / len(last) if last else math.nan
    if kind == "count":
        return len(last)
    ages = range(len(values) - 1, -1, -1)
    parts = [(0.5 ** (a / window), v) for a, v in zip(ages, values, strict=True) if v == v]
    return sum(w * v for w, v in parts) / sum(w for w, _ in parts) if parts else math.nan


def reference(specs: list[str], rows: np.ndarray, max_keys: int | None = None) -> np.ndarray:
    """Aggregates (b, len(specs)) of rows; beyond max_keys, a quarter of the keys is dropped."""
    split = [spec.split(":") for spec in specs]
    out = np.full((len(rows), len(specs)), np.nan)
    for key_column in {int(key) for key, *_ in split}:
        known: dict[float, list[np.ndarray]] = defaultdict(list)
        last: dict[float, int] = {}
        for i, row in enumerate(rows):
            key = row[key_column]
            if math.isnan(key):
                continue
            for k, (place, column, kind, window) in enumerate(split):
                if int(place) == key_column:
                    values = [float(r[int(column)]) for r in known.get(key, [])]
                    out[i, k] = plain(kind, values, int(window))
            known[key].append(row)
            last[key] = i
            if max_keys is not None and len(known) > max_keys:
                for old in sorted(last, key=last.__getitem__)[: max(1, len(last) // 4)]:
                    del known[old], last[old]
    return out


def stream(seed: int, n: int = 80, n_keys: int = 5) -> np.ndarray:
    """Rows of two columns of keys and two of values, some missing."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, n_keys, (n, 2)).astype(float)
    rows = np.hstack([keys, rng.standard_normal((n, 2))])
    rows[rng.random((n, 4)) < 0.1] = np.nan
    return rows


def in_chunks(aggregates: Aggregates, rows: np.ndarray, cuts: list[int]) -> tuple[Any, np.ndarray]:
    made = []
    for part in np.split(rows, sorted(cuts)):
        aggregates, columns = aggregates.passed(part)
        made.append(columns)
    return aggregates, np.vstack(made)


@given(
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(0, 80), max_size=8),
    max_keys=st.sampled_from([1, 2, 4, 100]),
)
def test_any_chunks_give_what_lists_give(seed: int, cuts: list[int], max_keys: int) -> None:
    rows = stream(seed)
    aggregates = Aggregates(SPECS, max_keys=max_keys)
    after, made = in_chunks(aggregates, rows, cuts)
    np.testing.assert_allclose(made[:, : len(SPECS)], reference(SPECS, rows, max_keys), atol=1e-12)
    np.testing.assert_array_equal(made[:, len(SPECS) :], rows[:, 2:])
    one_by_one, same = in_chunks(aggregates, rows, list(range(1, 80)))
    np.testing.assert_array_equal(made, same)
    assert str(after.packed()) == str(one_by_one.packed())
    assert aggregates.n_keys_ == [0, 0]


def test_keys_beyond_the_bound_are_dropped_and_counted() -> None:
    rows = np.column_stack([np.arange(20.0), np.ones(20)])
    after, _ = Aggregates(["0:1:lag:1"], max_keys=8).passed(rows)
    assert after.n_keys_[0] + after.dropped_[0] == 20
    assert after.n_keys_[0] <= 8
    newest = after.columns(np.array([[19.0, 0.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(newest[:, 0], [1.0, np.nan])


def test_what_is_packed_continues_with_the_same_bits() -> None:
    rows = stream(3)
    whole, _ = Aggregates(SPECS, max_keys=3).passed(rows)
    half, _ = Aggregates(SPECS, max_keys=3).passed(rows[:37])
    for again in (Aggregates.unpacked(**half.packed()), pickle.loads(pickle.dumps(half))):
        ended, _ = again.passed(rows[37:])
        assert str(ended.packed()) == str(whole.packed())
    parts = half.packed()
    parts["known"][0] = (parts["known"][0][0][:-1], parts["known"][0][1])
    with pytest.raises(ValueError, match="records of aggregates"):
        Aggregates.unpacked(**parts)


def table(n: int = 250) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose label is what the value of the key's last row says."""
    rng = np.random.default_rng(0)
    key, x = rng.integers(0, 6, n).astype(float), rng.standard_normal(n)
    before: dict[float, float] = {}
    labels = []
    for k, value in zip(key, x, strict=True):
        labels.append("up" if before.get(k, 0.0) > 0 else "down")
        before[k] = value
    return np.column_stack([key, x]), np.array(labels)


@pytest.mark.parametrize("then", ["raw", "scaled", "fourier"])
def test_a_classifier_learns_from_them_is_saved_and_grows(then: str, tmp_path: Any) -> None:
    X, y = table()
    model = KalmanClassifier(features=Aggregates(["0:1:lag:1"], then=then), random_state=0)
    rows = KalmanClassifier(features=Aggregates(["0:1:lag:1"], then=then), random_state=0)
    model.partial_fit(X[:200], y[:200])
    for i in range(200):
        rows.partial_fit(X[i : i + 1], y[i : i + 1])
    np.testing.assert_allclose(model.predict_proba(X), rows.predict_proba(X), atol=1e-9)
    right = []
    for i in range(200, 250):
        right.append(rows.predict(X[i : i + 1])[0] == y[i])
        rows.partial_fit(X[i : i + 1], y[i : i + 1])
    assert np.mean(right) > 0.8
    model.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    for each in (model, again):
        each.partial_fit(X[200:], y[200:])
    assert again.predict_proba(X).tolist() == model.predict_proba(X).tolist()
    wider = np.column_stack([X, X[:, 1]])
    before = model.predict_proba(X)
    wider[:, 2] = np.nan
    np.testing.assert_allclose(model.add_columns(1).predict_proba(wider), before, atol=0.05)


def test_late_labels_find_the_features_of_their_row() -> None:
    X, y = table()
    late = KalmanClassifier(features=Aggregates(["0:1:lag:1"], then="scaled"))
    for i in range(len(X)):
        asked = late.ask(X[i : i + 1], ids=[i])
        if i >= 3:
            late.tell([i - 3], [y[i - 3]])
    assert late.waiting_.waiting == 3
    assert late.predict_proba(X[:1]).shape == (1, 2)
    assert asked[0].max() > 0.5
    kept = late.ask(X[:1], keep=False)
    np.testing.assert_array_equal(kept, late.ask(X[:1], keep=False))


def test_a_regression_has_them_too() -> None:
    X, _ = table()
    y = np.array([0.0, *X[:-1, 1]])
    X[:, 0] = 1.0
    model = KalmanRegressor(features=Aggregates(["0:1:lag:1"], then="scaled"))
    for i in range(len(X)):
        error = model.predict(X[i : i + 1])[0] - y[i] if i else 0.0
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    assert abs(error) < 0.1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"specs": ["0:1:mean"]}, "is not KEY:COLUMN:KIND:WINDOW; write it as customer:amount"),
        ({"specs": ["0::mean:3"]}, "is not KEY:COLUMN:KIND:WINDOW"),
        ({"specs": [7]}, "is not KEY:COLUMN:KIND:WINDOW"),
        ({"specs": ["0:1:median:3"]}, "kind 'median'; give one of lag, mean, ewm, count"),
        ({"specs": ["0:1:mean:0"]}, f"window '0'; give .* from 1 to {MOST_ROWS}"),
        ({"specs": ["0:1:mean:1d"]}, "window '1d'; give a number of rows"),
        ({"specs": ["a:1:mean:3"]}, "column 'a'; give names="),
        ({"specs": ["0:9:mean:3"]}, "use column 9, .* rows have 2 columns"),
        ({"specs": ["k:z:mean:3"], "names": ["k", "x"]}, "no column of numbers 'z'; .*'k', 'x'"),
        ({"specs": []}, "give a list such as"),
        ({"specs": "0:1:mean:3"}, "give a list such as"),
        ({"specs": ["0:1:mean:3"], "then": "waves"}, 'then must be "fourier"'),
        ({"specs": ["0:1:mean:3"], "max_keys": 0}, "max_keys"),
    ],
)
def test_errors_say_what_to_give(parameters: dict[str, Any], message: str) -> None:
    model = KalmanClassifier(features=Aggregates(**parameters))
    with pytest.raises(InvalidInput, match=message):
        model.partial_fit([[1.0, 2.0]], ["a"])
    assert not hasattr(model, "classes_")


def test_every_kind_is_compared_with_lists() -> None:
    assert {spec.split(":")[2] for spec in SPECS} == set(KINDS_OF_AGGREGATES)
