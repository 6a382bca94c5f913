"""Labels of any type, and classes that come, grow and retire."""

import pickle
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.errors import InvalidInput
from small_models import X, Y, answer, of_objects, small


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ([3, 1, 2], "i"),
        (["c", "a", "bb"], "U"),
        ([True, False, True], "b"),
        ([b"c", b"a", b"b"], "S"),
        ([2.0, 0.0, -1.0], "f"),
        ([2, "b", 10], "O"),
        (of_objects([("x", 2), ("x", 1), ("a",)]), "O"),
        (np.array([3, 1, 2], np.int8), "i"),
        (np.array(["c", "a", "bb"]), "U"),
        (np.array(["c", "a", "bb"], object), "U"),
    ],
    ids=repr,
)
def test_labels_of_any_type(names, kind):
    labels = [names[k] for k in Y]
    labels = of_objects(labels) if isinstance(names, np.ndarray) else labels
    model = small().partial_fit(X, labels)
    assert model.classes_.dtype.kind == kind
    plain = [n.item() if isinstance(n, np.generic) else n for n in names]
    assert set(model.classes_.tolist()) == set(plain)
    found = model.predict(X)
    assert found.dtype == model.classes_.dtype
    right = [a == b for a, b in zip(found.tolist(), labels, strict=True)]
    assert np.mean(right) > 0.8
    if kind not in "OS":  # scikit-learn's score takes no other labels
        assert model.score(X, list(labels)) == pytest.approx(np.mean(right))


def test_labels_of_several_types_are_sorted_type_by_type():
    model = small().partial_fit(X[:6], [10, 9, "b", "a", 2, "10"])
    assert model.classes_.tolist() == [2, 9, 10, "10", "a", "b"]


def test_numbers_that_are_equal_are_one_label():
    model = small().partial_fit(X[:4], [0, 1, 0, 1]).partial_fit(X[4:6], [1.0, np.nan])
    model.partial_fit(X[6:8], np.array([True, False]))
    assert model.classes_.tolist() == [0, 1]
    assert model.classes_.dtype.kind == "i"


def test_classes_grow_sorted_and_stay_aligned_with_columns():
    names, model = ["m", "z", "a", "k"], small(features="raw", forgetting=1.0)
    corners = 3.0 * np.eye(4)
    for k, name in enumerate(names):
        for _ in range(5):
            model.partial_fit(corners[[k]], [name])
        known = sorted(names[: k + 1])
        assert model.classes_.tolist() == known
        assert model.coef_.shape == (k + 1, 4)
        assert model.intercept_.shape == (k + 1,)
        found = model.predict_proba(corners[: k + 1])
        assert found.shape == (k + 1, k + 1)
        assert found.sum(axis=1) == pytest.approx(1.0)
        assert [known[j] for j in found.argmax(axis=1)] == names[: k + 1]
        assert [known[j] for j in model.coef_.argmax(axis=0)[: k + 1]] == names[: k + 1]


@pytest.mark.parametrize(
    "labels",
    [
        ["a", None, "b", np.nan, "a", "b"],
        pd.Series(["a", pd.NA, "b", None, "a", "b"]),
        pd.Series(["a", pd.NA, "b", None, "a", "b"], dtype="string"),
        pd.Series(["a", None, "b", None, "a", "b"], dtype="category"),
        np.array(["a", None, "b", float("nan"), "a", "b"], object),
    ],
    ids=lambda labels: f"{type(labels).__name__} {getattr(labels, 'dtype', '')}",
)
def test_unknown_labels(labels):
    model = small().partial_fit(X[:6], labels)
    assert model.classes_.tolist() == ["a", "b"]
    assert model.n_seen_ == 6
    same = small().partial_fit(X[:6], ["a", None, "b", None, "a", "b"])
    assert answer(model) == answer(same)


@pytest.mark.parametrize("dtype", [float, "Int64", "Float64"])
def test_unknown_numbers(dtype):
    labels = pd.Series([1, None, 2, None, 1, 2], dtype=dtype)
    model = small().partial_fit(X[:6], labels)
    assert model.classes_.tolist() == [1, 2]
    assert answer(model) == answer(small().partial_fit(X[:6], [1, None, 2, None, 1, 2]))


def test_fit_wants_every_target():
    with pytest.raises(InvalidInput, match=r"NaN or None at row 1; .* partial_fit"):
        small().fit(X[:3], ["a", None, "b"])
    with pytest.raises(InvalidInput, match=r"contains NaN"):
        small().fit(X[:3], [1.0, np.nan, 2.0])
    with pytest.raises(InvalidInput, match=r"y contains NaN or infinity; .* partial_fit"):
        small(KalmanRegressor).fit(X[:3], [1.0, np.nan, 2.0])


@pytest.mark.parametrize(
    "labels",
    [
        [0.5, 1.0, 2.0],
        [1, 2.5, 3],
        [0.5, None, 1.0],
        np.array([0.5, 1, "a"], object),
        [1, 2, np.inf],
    ],
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_values_are_no_labels(labels, method):
    if method == "fit" and None in labels:
        pytest.skip("fit refuses None first")
    with pytest.raises(InvalidInput, match=r"Unknown label type: y contains (0\.5|2\.5|inf)"):
        getattr(small(), method)(X[:3], labels)


def test_declared_classes():
    model = small().partial_fit(X[:6], [1, 2] * 3, classes=[5, 1, 5, 2])
    assert model.classes_.tolist() == [1, 2, 5]
    assert model.predict_proba(X).shape == (60, 3)
    early = small().partial_fit(X[:2], [None, None], classes=["a", "b"])
    assert early.predict_proba(X[:1]) == pytest.approx(np.array([[0.5, 0.5]]))


def test_thousands_of_classes():
    n_classes, d = 3100, 128
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((n_classes, d))
    order = rng.permutation(np.repeat(np.arange(n_classes), 1))
    model = KalmanClassifier(features="raw")
    tracemalloc.start()
    try:
        for start in range(0, n_classes, 775):
            part = order[start : start + 775]
            model.partial_fit(centres[part], part)
        model.partial_fit(centres[:1], [0])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(model.classes_) == n_classes
    assert model.nbytes_ < 60e6
    assert held < 2 * 60e6  # the model before the last call is still there
    assert len(pickle.dumps(model)) < 60e6
    assert model.predict_proba(centres[:2]).shape == (2, n_classes)


def test_retired_classes():
    model = small(forgetting=0.95, features="raw", likelihood="onehot")
    model.partial_fit(X, np.array(["a", "b", "c"])[Y])
    others = model.coef_[[0, 2]]
    assert model.retire_class("b") is model
    assert model.classes_.tolist() == ["a", "c"]
    assert np.array_equal(model.coef_, others)
    with pytest.raises(
        InvalidInput, match="'b' is not a class of this model; the classes are 'a', 'c'"
    ):
        model.retire_class("b")
    with pytest.raises(InvalidInput, match=r"\['a'\] is not a class"):
        model.retire_class(["a"])
    model.partial_fit(X[:1], ["b"])
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert (np.abs(model.coef_[1]) < 1.0).all()
    model.retire_class("a").retire_class("b")
    with pytest.raises(InvalidInput, match=r"'c' is the only class; call reset\(\)"):
        model.retire_class("c")
