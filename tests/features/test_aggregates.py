"""Aggregates by key, beside a plain version on lists."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.errors import InvalidInput
from kalstream.evaluate import prequential
from kalstream.features import Aggregates
from kalstream.features.aggregates import KINDS_OF_AGGREGATES, MOST_ROWS
from kalstream.streams import ArrayStream

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
        ({"specs": ["0:1:median:3"]}, "kind 'median'; give one of lag, mean, ewm, count, target"),
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


# ---- means of targets ----------------------------------------------------------------------


def replayed(
    rows: np.ndarray, told: list[tuple[int, float, int]], window: int, labels: bool
) -> np.ndarray:
    """The mean of the last targets of each row's key that were told before it.

    Events are replayed by their time; ``told`` are the row, its target and how many rows came
    before that. Several targets between two rows are in their order.
    """
    known: dict[float, list[float]] = defaultdict(list)
    out = np.full(len(rows), np.nan)
    for i, key in enumerate(rows[:, 0].tolist()):
        for row, target, _ in (each for each in told if each[2] == i):
            if target == target:
                known[rows[row, 0]].append(float(target > 0) if labels else target)
        if key == key:
            last = known[key][-window:]
            out[i] = np.mean(last) if last else np.nan
    return out


class Seen(Aggregates):
    """Aggregates that note the first column that each row became."""

    def passed(self, rows: np.ndarray) -> Any:
        after, made = super().passed(rows)
        SEEN.extend(made[:, 0].tolist())
        return after, made


SEEN: list[float] = []


def target_stream(seed: int, n: int = 60) -> tuple[Any, Any, Any]:
    """Rows with a key, targets of which some never come, and when each is told."""
    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.integers(0, 4, n).astype(float), rng.standard_normal(n)])
    rows[rng.random(n) < 0.1, 0] = np.nan
    y = rng.standard_normal(n)
    y[rng.random(n) < 0.1] = np.nan
    delay = rng.integers(1, 12, n)
    told = [(i, y[i], i + int(delay[i])) for i in range(n)]
    return rows, y, sorted(told, key=lambda each: each[2])


def as_targets(values: Any, labels: bool) -> Any:
    if not labels:
        return np.array(values, float)
    return [None if v != v else "up" if v > 0 else "down" for v in values]


def target_model(labels: bool) -> Any:
    kind = KalmanClassifier if labels else KalmanRegressor
    SEEN.clear()
    return kind(features=Seen(["0:up:target:5"], then="scaled"))


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("size", [1, 7, 60])
def test_targets_count_from_the_next_row_if_they_are_not_late(labels: bool, size: int) -> None:
    rows, y, _ = target_stream(size)
    model = target_model(labels)
    for i in range(0, 60, size):
        part = slice(i, i + size)
        learn = model.predict_then_learn if i % 2 else model.partial_fit
        learn(rows[part], as_targets(y[part], labels))
    expected = replayed(rows, [(i, v, i + 1) for i, v in enumerate(y)], 5, labels)
    np.testing.assert_allclose(SEEN, expected, atol=1e-12)


@pytest.mark.parametrize("labels", [True, False])
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(1, 59), max_size=5))
@settings(max_examples=8)
def test_late_targets_count_from_the_moment_they_were_told(
    labels: bool, seed: int, cuts: list[int]
) -> None:
    """`ask` and `tell` one by one, and `ask_and_tell` in any cuts, equal a replay of events."""
    rows, _, told = target_stream(seed)
    expected = replayed(rows, told, 5, labels)
    one = target_model(labels)
    made = []
    for i in range(60):
        for row, target, at in told:
            if at == i:
                one.tell([row], as_targets([target], labels))
        made.append(np.ravel(one.ask(rows[i : i + 1])))
    np.testing.assert_allclose(SEEN, expected, atol=1e-12)
    many = target_model(labels)
    for start, stop in itertools.pairwise([0, *sorted(set(cuts)), 60]):
        now = [each for each in told if start <= each[2] < stop]
        given = [row for row, *_ in now], as_targets([v for _, v, _ in now], labels)
        many.ask_and_tell(rows[start:stop], *given, before=[at - start for *_, at in now])
    np.testing.assert_allclose(SEEN, expected, atol=1e-12)
    last = np.ravel(many.ask(rows[:1], keep=False))
    np.testing.assert_allclose(last, np.ravel(one.ask(rows[:1], keep=False)), atol=1e-9)


@pytest.mark.parametrize("delay", [0, 3])
def test_a_run_with_late_labels_equals_a_replay(delay: int) -> None:
    rows, y, _ = target_stream(1)
    model = target_model(labels=True)
    stream = ArrayStream(rows, as_targets(y, labels=True))
    prequential(model, stream, delay=delay, together=4)
    told = [(i, v, i + 1 + delay) for i, v in enumerate(y)]
    np.testing.assert_allclose(SEEN, replayed(rows, told, 5, labels=True), atol=1e-12)


def test_targets_of_rows_that_wait_in_a_file_find_their_key(tmp_path: Any) -> None:
    rows, y, _ = target_stream(4)
    whole = KalmanRegressor(features=Aggregates(["0:y:target:3"], then="scaled"))
    whole.ask(rows[:40])
    whole.tell(range(20), y[:20])
    whole.save(tmp_path / "model.safetensors")
    again = KalmanRegressor.load(tmp_path / "model.safetensors")
    for model in (whole, again, pickle.loads(pickle.dumps(again))):
        model.tell(range(20, 40), y[20:40])
        made = model.ask(rows[40:])[0].tolist()
        if model is whole:
            expected = made
        assert made == expected


def test_a_target_of_weight_0_and_one_of_a_dropped_key_do_not_count() -> None:
    rows = np.array([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    model = target_model(labels=False)
    model.partial_fit(rows[:2], [3.0, 5.0], sample_weight=[0.0, 1.0])
    model.partial_fit(rows[2:], [0.0, 0.0])
    np.testing.assert_array_equal(SEEN, [np.nan, np.nan, np.nan, 5.0])
    bounded = Aggregates(["0:y:target:3"], max_keys=1)
    after = bounded.passed(rows[:2])[0].told(np.array([[1.0], [2.0]]), np.array([3.0, 5.0]))
    assert after.n_keys_ == [1]
    np.testing.assert_array_equal(after.columns(rows[:2])[:, 0], [np.nan, 5.0])


def test_aggregates_of_targets_need_one_target() -> None:
    model = KalmanRegressor(features=Aggregates(["0:y:target:3"]))
    with pytest.raises(InvalidInput, match="y has 2 columns, and aggregates of targets need one"):
        model.partial_fit([[1.0, 2.0]], [[1.0, 2.0]])


def test_every_kind_is_compared_with_lists() -> None:
    kinds = {spec.split(":")[2] for spec in SPECS} | {"target"}
    assert kinds == set(KINDS_OF_AGGREGATES)
