"""`KeyedClassifier`: one model for all keys, and what each key adds to it."""

import copy
import errno
import math
import os
import pickle
from datetime import date
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler

from kalstream import KalmanClassifier, KeyedClassifier
from kalstream.core.keyed import Keyed
from kalstream.errors import CheckpointError, InvalidInput
from kalstream.testing import ONLINE_CHECKS, check_online_learner

Array = NDArray[Any]
BASE = KalmanClassifier(features="scaled", preset="fast")


def stream(
    n: int = 400, n_keys: int = 8, spread: float = 1.5, seed: int = 0, d: int = 3
) -> tuple[Array, Array, Array]:
    """Rows (n, d), labels and keys; logits of keys differ by ``spread``."""
    rng = np.random.default_rng(seed)
    keys = rng.choice(n_keys, p=(p := 1.0 / np.arange(1, n_keys + 1) ** 0.7) / p.sum(), size=n)
    X = rng.standard_normal((n, d))
    logits = X @ rng.standard_normal((d, 3)) / math.sqrt(d)
    slopes = rng.standard_normal((n_keys, d, 3)) / math.sqrt(d)
    logits += spread * (
        np.einsum("nd,ndk->nk", X, slopes[keys]) + rng.standard_normal((n_keys, 3))[keys]
    )
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return X, np.array(["a", "b", "c"])[y], keys


def losses(p: Array, y: Array, classes: Array) -> Array:
    at = np.searchsorted(classes, y)
    return -np.log(np.maximum(p[np.arange(len(y)), at], 1e-12))


def nth_rows(keys: Array) -> Array:
    """How many rows of its key came before each row."""
    out, seen = np.zeros(len(keys), int), dict.fromkeys(keys.tolist(), 0)
    for i, key in enumerate(keys.tolist()):
        out[i] = seen[key]
        seen[key] += 1
    return out


def fitted(n: int = 200, **options: Any) -> KeyedClassifier:
    return KeyedClassifier(**options).partial_fit(*stream(n))


@pytest.mark.parametrize("size", [1, 37])
def test_batches_of_any_mix_equal_rows_one_by_one(size: int) -> None:
    X, y, keys = stream(150)
    y = y.astype(object)
    y[3::7] = None
    weight = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 2.0], 150)
    whole, parts = KeyedClassifier(BASE), KeyedClassifier(BASE)
    expected = whole.predict_then_learn(X, y, keys, weight)
    for i in range(0, 150, size):
        at = slice(i, i + size)
        p = parts.predict_then_learn(X[at], y[at], keys[at], weight[at])
        same = np.searchsorted(whole.classes_, parts.classes_)
        np.testing.assert_allclose(p, expected[at][:, same], rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(
        parts.predict_proba(X, keys), whole.predict_proba(X, keys), rtol=1e-10
    )
    assert parts.n_seen_ == whole.n_seen_ == 150


def test_the_next_row_is_predicted_as_it_will_be_when_it_is_learned() -> None:
    X, _, keys = stream(120)
    y = np.array(["a", "b"])[np.arange(120) // 10 % 2]  # labels that stay for a while
    model = KeyedClassifier(KalmanClassifier(features="scaled"))
    model.partial_fit(X[:20], y[:20], keys[:20])
    differ = 0
    for i in range(20, 120):
        row = X[i : i + 1], [keys[i]]
        next_one, classes = model.probabilities_and_classes(*row, is_next=True)
        differ += np.abs(next_one - model.predict_proba(*row)).max() > 1e-6
        assert classes.tolist() == model.classes_.tolist()
        learned = model.predict_then_learn(row[0], y[i : i + 1], row[1])
        np.testing.assert_allclose(next_one, learned, rtol=1e-9)
    assert differ > 50


def test_the_first_row_of_a_key_is_predicted_as_by_the_base() -> None:
    X, y, keys = stream(300)
    model, base = KeyedClassifier(BASE).partial_fit(X, y, keys), clone(BASE).partial_fit(X, y)
    again = clone(BASE)
    again.predict_then_learn(X, y)
    new = model.predict_proba(X, [f"new {i}" for i in range(300)])
    np.testing.assert_allclose(new, base.predict_proba(X), rtol=1e-9)
    np.testing.assert_allclose(model.base_.predict_proba(X), again.predict_proba(X), rtol=1e-12)
    assert np.abs(model.predict_proba(X, keys) - new).max() > 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_keys_that_differ_are_predicted_better_from_their_second_row_on(seed: int) -> None:
    X, y, keys = stream(8000, 150, seed=seed)
    nth = nth_rows(keys)
    model, base = KeyedClassifier(BASE), clone(BASE)
    mine = losses(model.predict_then_learn(X, y, keys), y, np.array(["a", "b", "c"]))
    usual = losses(base.predict_then_learn(X, y), y, base.classes_)
    alone = np.empty(8000)
    for key in np.unique(keys):
        rows = np.flatnonzero(keys == key)
        lone, p = clone(BASE), np.full((len(rows), 3), 1.0 / 3.0)
        known = lone.predict_then_learn(X[rows], y[rows])
        p[:, np.searchsorted(["a", "b", "c"], lone.classes_)] = known
        p = np.where((p > 0.0).all(axis=1, keepdims=True), p, 0.9 * p + 0.1 / 3.0)
        alone[rows] = losses(p, y[rows], np.array(["a", "b", "c"]))
    later = np.arange(8000) >= 500
    for low, high in ((1, 19), (20, 199)):
        at = later & (nth >= low) & (nth <= high)
        assert mine[at].mean() < usual[at].mean() - 0.02
        assert mine[at].mean() < alone[at].mean() - 0.005
    np.testing.assert_allclose(mine[nth == 0], usual[nth == 0], rtol=1e-9)
    assert 1.0 < model.spread_ < 4.0


@pytest.mark.parametrize("seed", [0, 1])
def test_keys_that_do_not_differ_cost_less_than_a_hundredth(seed: int) -> None:
    X, y, keys = stream(8000, 150, spread=0.0, seed=seed)
    model, base = KeyedClassifier(BASE), clone(BASE)
    mine = losses(model.predict_then_learn(X, y, keys), y, np.array(["a", "b", "c"]))
    usual = losses(base.predict_then_learn(X, y), y, base.classes_)
    assert mine[500:].mean() < 1.01 * usual[500:].mean()
    assert model.spread_ < 1.0
    assert sum(model.spread_weights_.values()) == pytest.approx(1.0)


def test_it_is_saved_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    X, y, keys = stream(300)
    names: list[Any] = [("k", k) if k % 2 else (b"bytes" if k == 2 else f"k{k}") for k in keys]
    path = tmp_path / "model.safetensors"
    model = KeyedClassifier(BASE).partial_fit(X[:200], y[:200], names[:200])
    model.save(path)
    again = KeyedClassifier.load(path)
    assert set(again.keys_) == set(model.keys_)
    assert again.base.get_params() == {**BASE.get_params(), "dtype": "float64"}
    for each in (model, again):
        each.partial_fit(X[200:], y[200:], names[200:])
    expected = model.predict_proba(X, names)
    np.testing.assert_array_equal(again.predict_proba(X, names), expected)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(other.predict_proba(X, names), expected)
    assert (again.nbytes_, again.n_seen_, again.spread_) == (*(model.nbytes_, 300, model.spread_),)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="checksum"):
        KeyedClassifier.load(path)
    model.base_.save(path)
    with pytest.raises(CheckpointError, match=r"use KalmanClassifier\.load"):
        KeyedClassifier.load(path)


@pytest.mark.parametrize("names", [["x", "yy\0"], [1, 2], [1, 2.5], [True, "a"]])
def test_keys_come_back_as_they_were(tmp_path: Path, names: list[Any]) -> None:
    X, y, keys = stream(60, 2)
    model = KeyedClassifier(BASE).partial_fit(X, y, [names[k] for k in keys])
    model.save(tmp_path / "model.safetensors")
    assert set(KeyedClassifier.load(tmp_path / "model.safetensors").keys_) == set(names)


def test_what_cannot_be_saved_says_so(tmp_path: Path) -> None:
    X, y, _ = stream(30)
    model = KeyedClassifier(BASE).partial_fit(X, y, [date(2026, 1, 1)] * 30)
    with pytest.raises(CheckpointError, match=r"keys.* is a datetime\.date.*convert it"):
        model.save(tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_transformer_of_another_library_is_asked_for(tmp_path: Path) -> None:
    base = KalmanClassifier(features=StandardScaler())
    model, path = fitted(60, base=base), tmp_path / "model.safetensors"
    model.save(path)
    with pytest.raises(CheckpointError, match="pass a new one"):
        KeyedClassifier.load(path)
    X, _, keys = stream(60)
    again = KeyedClassifier.load(path, features=StandardScaler())
    np.testing.assert_array_equal(again.predict_proba(X, keys), model.predict_proba(X, keys))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("records", np.zeros((8, 3))),
        ("pooled", np.zeros(7)),
        ("keys", np.array([1] * 8)),
        ("n_seen", -1),
        ("default", 3),
        ("scaler", None),
        ("keyed", Keyed(5)),
        ("max_keys", 0),
    ],
)
def test_forged_files_are_refused(tmp_path: Path, part: str, value: Any) -> None:
    from kalstream.estimators import checkpoint

    path = tmp_path / "model.safetensors"
    fitted().save(path)
    tree = checkpoint.read(path, "KeyedClassifier")
    checkpoint.write(path, "KeyedClassifier", {**tree, part: value})
    with pytest.raises(CheckpointError, match="damaged"):
        KeyedClassifier.load(path)


def test_new_classes_and_missing_labels() -> None:
    X, y, keys = stream(200)
    model = KeyedClassifier(BASE).partial_fit(X[:3], [None] * 3, keys[:3])
    with pytest.raises(NotFittedError, match="3 rows, all without"):
        model.predict(X, keys)
    assert model.predict_then_learn(X[:2], ["a", "b"], keys[:2]).shape == (2, 2)
    model.partial_fit(X, y, keys)
    p = model.predict_then_learn(X[:2], ["new", "a"], keys[:2])
    assert p.shape == (2, 4)
    assert p[0, 3] == 0.0 < p[1, 3]
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
    assert model.classes_.tolist() == ["a", "b", "c", "new"]
    np.testing.assert_allclose(model.predict_proba(X, keys).sum(axis=1), 1.0, rtol=1e-12)


def test_rows_of_weight_zero_or_without_a_label_teach_nothing_to_a_key() -> None:
    X, y, keys = stream(200)
    one, other = (KeyedClassifier(BASE).partial_fit(X, y, keys) for _ in range(2))
    one.partial_fit(X[:20], y[:20], keys[:20], np.zeros(20))
    other.partial_fit(X[:20], [None] * 20, keys[:20])
    np.testing.assert_array_equal(one.predict_proba(X, keys), other.predict_proba(X, keys))
    assert one.n_keys_ == len(set(keys.tolist()))


def test_bad_input_changes_nothing() -> None:
    X, y, keys = stream(100)
    model = KeyedClassifier(BASE).partial_fit(X, y, keys)
    before = model.predict_proba(X, keys)
    nan = [float("nan"), *keys[1:].tolist()]
    for bad, message in (
        ({"X": X[:, :2]}, "features"),
        ({"y": y[:-1]}, "y has|rows"),
        ({"key": keys[:-1]}, "key has 99 keys for the 100 rows"),
        ({"key": "shop"}, "key is 'shop'; give a list"),
        ({"key": None}, "key is None; give a list"),
        ({"key": [[1]] * 100}, r"key holds \[1\], which cannot be hashed; use strings"),
        ({"key": [*keys[:-1].tolist(), None]}, "key is None at row 99; give such rows a key"),
        ({"key": nan}, "key is nan at row 0"),
        ({"sample_weight": -np.ones(100)}, "sample_weight"),
    ):
        with pytest.raises(InvalidInput, match=message):
            model.partial_fit(**{"X": X, "y": y, "key": keys, **bad})  # type: ignore[arg-type]
    np.testing.assert_array_equal(model.predict_proba(X, keys), before)
    assert model.n_seen_ == 100
    with pytest.raises(InvalidInput, match="fit needs all labels"):
        KeyedClassifier().fit(X[:2], ["a", None], keys[:2])
    with pytest.raises(InvalidInput, match="base must be a KalmanClassifier"):
        KeyedClassifier(3).partial_fit(X, y, keys)  # type: ignore[arg-type]


def test_an_interrupted_batch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from kalstream.core._kernels import keyed as kernels

    X, y, keys = stream(100)
    model = KeyedClassifier(BASE).partial_fit(X, y, keys)
    before, learn = model.predict_proba(X, keys), kernels.pass_rows

    def interrupted(*args: Any) -> None:
        learn(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "pass_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X, y, keys)
    monkeypatch.undo()
    np.testing.assert_array_equal(model.predict_proba(X, keys), before)
    again = KeyedClassifier(BASE).partial_fit(X, y, keys)
    for each in (model, again):
        each.partial_fit(X, y, keys)
    np.testing.assert_array_equal(model.predict_proba(X, keys), again.predict_proba(X, keys))


def test_a_snapshot_stays_and_tables_work() -> None:
    X, y, keys = stream(100)
    rows = [{"size": x[0], "colour": "red" if x[1] > 0 else "blue"} for x in X]
    model = KeyedClassifier(BASE).fit(rows, y, keys)
    before, kept = model.predict_proba(rows, keys), model.snapshot()
    model.partial_fit(rows, y, keys)
    np.testing.assert_array_equal(kept.predict_proba(rows, keys), before)
    assert model.feature_names_in_.tolist() == ["size", "colour"]
    assert 0.0 < model.score(rows, y, keys) <= 1.0
    assert model.reset().n_seen_ == 0


class ByFirstColumn(KeyedClassifier):
    """Its keys are the signs of the first column, so that checks need not know of keys."""

    def partial_fit(self, X: Any, y: Any, *more: Any) -> Any:  # type: ignore[override]
        return super().partial_fit(X, y, signs(X))

    def predict_proba(self, X: Any) -> Array:  # type: ignore[override]
        return super().predict_proba(X, signs(X))


def signs(X: Any) -> list[bool]:
    return [bool(row[0] > 0) for row in np.asarray(X)]


@pytest.mark.parametrize("check", ONLINE_CHECKS)
def test_online(check: str) -> None:
    check_online_learner(lambda: ByFirstColumn(BASE), skip=set(ONLINE_CHECKS) - {check})


def test_others_may_predict_while_one_learns() -> None:
    """A reader sees the records and the weights of one and the same state."""
    X, y, keys = stream(600, 3)
    model = KeyedClassifier(BASE).partial_fit(X[:200], y[:200], keys[:200])
    steps, held = iter(range(200, 600, 4)), []

    def learn() -> None:
        for i in steps:
            model.partial_fit(X[i : i + 4], y[i : i + 4], keys[i : i + 4])

    writer = Thread(target=learn)
    writer.start()
    while writer.is_alive():
        held.append((copied := model.snapshot(), copied.predict_proba(X[:9], keys[:9])))
    writer.join()
    for copied, before in held[::20]:
        np.testing.assert_array_equal(copied.predict_proba(X[:9], keys[:9]), before)
    alone = KeyedClassifier(BASE).partial_fit(X[:200], y[:200], keys[:200])
    for i in range(200, 600, 4):
        alone.partial_fit(X[i : i + 4], y[i : i + 4], keys[i : i + 4])
    np.testing.assert_array_equal(model.predict_proba(X, keys), alone.predict_proba(X, keys))


@pytest.mark.parametrize("seed", range(6))
def test_bounded_keys_predict_as_unbounded_ones(seed: int, tmp_path: Path) -> None:
    """A random program gives the same bits, whatever is in memory."""
    rng = np.random.default_rng(seed)
    X, y, keys = stream(500, 40, seed=seed)
    y = y.astype(object)
    y[rng.random(500) < 0.1] = None
    mine = KeyedClassifier(BASE, max_keys=int(rng.integers(1, 12)), folder=str(tmp_path))
    plain, held, at = KeyedClassifier(BASE), [], 0
    while at < 500:
        rows = slice(at, at := at + int(rng.choice([1, 3, 40])))
        one, other = (m.predict_then_learn(X[rows], y[rows], keys[rows]) for m in (mine, plain))
        np.testing.assert_array_equal(one, other)
        what = rng.integers(8)
        if what == 0:
            held.append((mine.snapshot(), plain.snapshot()))
        elif what == 1:
            mine.save(tmp_path / "mine")
            mine = KeyedClassifier.load(tmp_path / "mine", folder=str(tmp_path))
        elif what == 2:
            mine = copy.deepcopy(mine) if at % 2 else pickle.loads(pickle.dumps(mine))
        elif what == 3 and held:
            mine, plain = (each.snapshot() for each in held[int(rng.integers(len(held)))])
        elif what == 4 and held:
            del held[int(rng.integers(len(held)))]
    for one, other in [(mine, plain), *held]:
        np.testing.assert_array_equal(one.predict_proba(X, keys), other.predict_proba(X, keys))
        assert set(one.keys_) == set(other.keys_)
    assert mine.nbytes_ < plain.nbytes_
    assert set(os.listdir(tmp_path)) <= {"mine"}


def test_a_bounded_model_is_saved_with_all_its_keys(tmp_path: Path) -> None:
    X, y, keys = stream(300, 20)
    models = [KeyedClassifier(BASE, max_keys=most).fit(X, y, keys) for most in (None, 3)]
    for model, name in zip(models, ("plain", "bounded"), strict=True):
        model.save(tmp_path / name)
    again = KeyedClassifier.load(tmp_path / "bounded")
    assert (again.max_keys, again.folder, again.n_keys_) == (3, None, 20)
    assert again.nbytes_ == models[1].nbytes_ < models[0].nbytes_
    sizes = [len((tmp_path / name).read_bytes()) for name in ("plain", "bounded")]
    assert abs(sizes[0] - sizes[1]) < 100


def test_bounds_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, keys = stream(30)
    for bad in (0, -1, 2.5, "3"):
        with pytest.raises(InvalidInput, match="max_keys must be an integer of at least 1"):
            KeyedClassifier(BASE, max_keys=bad).fit(X, y, keys)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"folder is .*; give a folder that is there"):
        KeyedClassifier(BASE, max_keys=3, folder=str(tmp_path / "missing")).fit(X, y, keys)
    monkeypatch.delattr(os, "pread")
    with pytest.raises(InvalidInput, match="max_keys needs a system with pread"):
        KeyedClassifier(BASE, max_keys=3).fit(X, y, keys)


def test_a_full_disk_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, keys = stream(300, 20)
    model = KeyedClassifier(BASE, max_keys=3).fit(X, y, keys)
    before = model.predict_proba(X, keys)

    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"No space left.*give another folder or a larger max_keys"):
        model.partial_fit(X, y, keys)
    monkeypatch.undo()
    np.testing.assert_array_equal(model.predict_proba(X, keys), before)
    plain = KeyedClassifier(BASE).fit(X, y, keys)
    for each in (model, plain):
        each.partial_fit(X, y, keys)
    np.testing.assert_array_equal(model.predict_proba(X, keys), plain.predict_proba(X, keys))
