"""The river models: river's own checks, and features that come and go."""

import copy
import pickle
import subprocess
import sys
import threading
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import checks, compose, datasets, evaluate, metrics, preprocessing
from sklearn.preprocessing import StandardScaler

from kalstream import estimators
from kalstream.compat.river import (
    KalmanClassifier,
    KalmanRegressor,
    KeyedClassifier,
    KeyedRegressor,
)
from kalstream.errors import InvalidInput, OutOfMemory
from kalstream.estimators import inputs
from kalstream.features import OnlineScaler, RandomFourierFeatures

MODELS = [KalmanClassifier, KalmanRegressor]
FORGETTING = ["mixture", "learned", 0.97, 1.0]
NAMES = ["c", "a", 3, ("t", 1), "b"]


def each_check() -> list[Any]:
    cases = []
    for kind in MODELS:
        for k, parameters in enumerate(kind._unit_test_params()):
            model = kind(**parameters)
            for check in checks.yield_checks(model):
                cases.append(pytest.param(model, check, id=f"{kind.__name__}-{k}-{check.__name__}"))
    return cases


@pytest.mark.parametrize(("model", "check"), each_check())
def test_river_check(model: Any, check: Any) -> None:
    assert not model._unit_test_skips()
    check(model.clone())


def ragged(seed: int, n: int = 60, regression: bool = False) -> list[tuple[dict[Any, Any], Any]]:
    """Rows with some of the features each; the last features come late."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        x = {}
        for k, name in enumerate(NAMES):
            if i >= 10 * k and (i == 0 or rng.random() < 0.7):
                x[name] = float(rng.normal(k, 1 + k))
        score = sum(v * (-1) ** k for k, v in enumerate(x.values()))
        label = ["low", "mid", "high"][int(score > -1) + int(score > 1 and i > 20)]
        missing = i and rng.random() < 0.1
        rows.append((x, None if missing else float(score) if regression else label))
    return rows


def shuffled(x: dict[Any, Any], rng: np.random.Generator) -> dict[Any, Any]:
    names = list(x)
    rng.shuffle(order := np.arange(len(names)))
    return {names[k]: x[names[k]] for k in order}


def table(rows: list[dict[Any, Any]], names: Any) -> np.ndarray:
    return np.array([[x.get(name, np.nan) for name in names] for x in rows])


def answers(model: Any, rows: list[dict[Any, Any]]) -> np.ndarray:
    if isinstance(model, KalmanClassifier):
        return np.array([list(model.predict_proba_one(x).values()) for x in rows])
    return np.array([model.predict_one(x) for x in rows])


def plain_answers(estimator: Any, X: np.ndarray) -> np.ndarray:
    """Predictions of rows, of which each could be the next; of labels with recent ones."""
    if not hasattr(estimator, "predict_proba") or estimator.transition == "chunk":
        return getattr(estimator, "predict_proba", estimator.predict)(X)
    rows = [estimator.snapshot().predict_then_learn(X[i : i + 1], [None]) for i in range(len(X))]
    return np.concatenate(rows)


@given(
    seed=st.integers(0, 2**31 - 1),
    kind=st.sampled_from(MODELS),
    forgetting=st.sampled_from(FORGETTING),
    order=st.sampled_from([1, 1, 2]),
    features=st.sampled_from(["raw", "scaled", "scaler", "waves"]),
    intercept=st.booleans(),
    prior_var=st.floats(0.1, 10.0),
    noise_var=st.floats(0.05, 2.0),
)
@settings(max_examples=25)
def test_late_features_are_as_if_missing_all_along(
    seed: int,
    kind: Any,
    forgetting: Any,
    order: int,
    features: str,
    intercept: bool,
    prior_var: float,
    noise_var: float,
) -> None:
    # Both get the settings that otherwise depend on the number of columns at the start.
    made: Any = features
    all_prior_var = prior_var
    if features == "scaler":
        made = OnlineScaler(clip=3.0)
    elif features == "waves":
        made = RandomFourierFeatures(7, bandwidth=1.5, linear=False, random_state=seed)
    else:  # rows are divided by the root of the number of columns at the start: 1 and 5 here
        intercept, all_prior_var = False, prior_var * len(NAMES)
    rows = ragged(seed, regression=kind is KalmanRegressor)
    given_in_common = {"forgetting": forgetting, "features": made, "intercept": intercept}
    if forgetting != "learned":
        given_in_common["order"] = order
    given_in_common |= {"noise_var": noise_var}
    model = kind(**given_in_common, prior_var=prior_var, seed=1)
    for x, y in rows:
        model.learn_one(x, y)
    assert set(model.feature_names_) == set(NAMES)

    whole = getattr(estimators, kind.__name__)(**given_in_common, prior_var=all_prior_var)
    X = table([x for x, _ in rows], model.feature_names_)
    for row, (_, y) in zip(X, rows, strict=True):
        whole.partial_fit(row[None], [np.nan if y is None else y])
    if kind is KalmanClassifier:
        assert list(model.predict_proba_one({})) == whole.classes_.tolist()
    asked = [x for x, _ in rows[-20:]]
    np.testing.assert_allclose(
        answers(model, asked), plain_answers(whole, X[-20:]), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("features", ["raw", "scaled", "fourier"])
def test_learn_many_equals_learn_one_in_any_order(kind: Any, features: str) -> None:
    rows = ragged(5, regression=kind is KalmanRegressor)
    one = kind(features=features, n_components=10, seed=3)
    other, many = one.clone(), one.clone()
    rng = np.random.default_rng(0)
    for x, y in rows:
        one.learn_one(x, y)
        other.learn_one(shuffled(x, rng), y)
    for start in range(0, len(rows), 25):
        part = rows[start : start + 25]
        X = pd.DataFrame([x for x, _ in part], index=range(7, 7 + len(part)))
        X = X[X.columns[::-1]]
        many.learn_many(X, pd.Series([y for _, y in part], index=X.index))
    assert one.feature_names_ == other.feature_names_ == many.feature_names_
    asked = [x for x, _ in rows]
    np.testing.assert_array_equal(answers(one, asked), answers(other, asked))
    np.testing.assert_allclose(answers(many, asked), answers(one, asked), rtol=1e-7)

    X = pd.DataFrame(asked, index=range(100, 100 + len(asked)))
    found = many.predict_many(X)
    assert found.index.equals(X.index)
    expected = [many.predict_one(x) for x in asked]
    if kind is KalmanRegressor:
        assert found.tolist() == pytest.approx(expected, rel=1e-9)
    else:
        assert found.tolist() == expected
        probabilities = many.predict_proba_many(X)
        assert probabilities.index.equals(X.index)
        assert list(probabilities) == list(many.predict_proba_one({})) == ["high", "low", "mid"]
        np.testing.assert_allclose(probabilities, answers(many, asked), rtol=1e-9)


def test_a_chunk_of_one_step_is_one_step() -> None:
    rows = ragged(1)[:30]
    model = KalmanClassifier(0.9, "raw", transition="chunk", intercept=False)
    model.learn_many(pd.DataFrame([x for x, _ in rows]), pd.Series([y for _, y in rows]))
    whole = estimators.KalmanClassifier(0.9, "raw", transition="chunk", intercept=False)
    X = table([x for x, _ in rows], model.feature_names_)
    whole.partial_fit(X, [y for _, y in rows])
    np.testing.assert_allclose(answers(model, [x for x, _ in rows]), whole.predict_proba(X))


@pytest.mark.parametrize("kind", MODELS)
def test_before_anything_was_learned(kind: Any) -> None:
    model, X = kind(), pd.DataFrame({"a": [1.0, 2.0]}, index=[5, 6])
    for passed in (0, 1):
        if kind is KalmanClassifier:
            assert model.predict_proba_one({"a": 1.0}) == {}
            assert model.predict_proba_many(X).shape == (2, 0)
        assert model.predict_one({"a": 1.0}) == (None if kind is KalmanClassifier else 0.0)
        many = model.predict_many(X)
        assert many.tolist() == [model.predict_one({})] * 2
        assert many.index.tolist() == [5, 6]
        assert model.estimator.__dict__.get("_published") is None or passed
        model.learn_one({"a": 1.0}, None)  # nothing can be predicted before a target
    assert model.estimator.n_seen_ == 2


@pytest.mark.parametrize("kind", MODELS)
def test_rows_without_any_value_may_come_first(kind: Any) -> None:
    rows = ragged(4, regression=kind is KalmanRegressor)[:20]
    empty = [({}, rows[0][1]), ({"a": None, "z": float("nan")}, rows[1][1])]
    one = kind(features="scaled")
    many = one.clone()
    for x, y in empty + rows:
        one.learn_one(x, y)
    assert "z" not in one.feature_names_
    frame = pd.DataFrame([x for x, _ in empty + rows])
    many.learn_many(frame, pd.Series([y for _, y in empty + rows]))
    asked = [x for x, _ in rows]
    np.testing.assert_allclose(answers(many, asked), answers(one, asked), rtol=1e-9)
    assert one.estimator.n_seen_ == 22


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("forgetting", ["mixture", 0.99])
def test_predictions_change_nothing(kind: Any, forgetting: Any) -> None:
    model = kind(forgetting, n_components=10, seed=0)
    for x, y in ragged(2, regression=kind is KalmanRegressor):
        model.learn_one(x, y)
    model.predict_one({})  # the order of labels is fixed by the first prediction
    before, names = pickle.dumps(model), model.feature_names_
    for x in ({"a": 1.0}, {"a": 1.0, "never seen": 5.0}, {"never seen": "not even a number"}, {}):
        found = answers(model, [x])
        np.testing.assert_array_equal(found, answers(model, [x]))
        model.predict_many(pd.DataFrame([x]))
    assert pickle.dumps(model) == before
    assert model.feature_names_ == names
    np.testing.assert_array_equal(
        answers(model, [{"a": 1.0}]), answers(model, [{"a": 1.0, "never seen": 5.0}])
    )


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_go_on_with_the_same_bits(kind: Any, copied: Any) -> None:
    rows = ragged(3, regression=kind is KalmanRegressor)
    model = kind(n_components=10, seed=0)
    for x, y in rows[:25]:
        model.learn_one(x, y)
    twin = copied(model)
    for x, y in rows[25:]:  # two features are still to come
        model.learn_one(x, y)
        twin.learn_one(x, y)
    asked = [x for x, _ in rows]
    np.testing.assert_array_equal(answers(model, asked), answers(twin, asked))


def test_weights_new_classes_and_labels_of_several_types() -> None:
    model = KalmanClassifier(0.99, "raw")
    model.learn_one({"a": 1.0}, True)
    model.learn_one({"a": -1.0}, np.bool_(False))
    assert model.predict_one({"a": 2.0}) is True
    before = model.predict_proba_one({"a": 1.0})
    heavy = copy.deepcopy(model)
    model.learn_one({"a": 1.0}, "new", w=0.5)
    heavy.learn_one({"a": 1.0}, "new", w=5.0)
    assert list(before) == [False, True]
    assert set(model.predict_proba_one({})) == {True, False, "new"}
    assert heavy.predict_proba_one({"a": 1.0})["new"] > model.predict_proba_one({"a": 1.0})["new"]

    one, many = KalmanRegressor(0.99, "raw"), KalmanRegressor(0.99, "raw")
    X, y, w = pd.DataFrame({"a": [1.0, 2.0, 3.0]}), pd.Series([1.0, None, 2.5]), [2.0, 1.0, 0.5]
    for value, target, weight in zip(X["a"], y, w, strict=True):
        one.learn_one({"a": value}, target, w=weight)
    many.learn_many(X, y, w=pd.Series(w))
    assert many.predict_one({"a": 4.0}) == pytest.approx(one.predict_one({"a": 4.0}))


def test_numbers_of_any_kind() -> None:
    one, other = KalmanRegressor(0.99), KalmanRegressor(0.99)
    plain = {"a": 1.0, "b": 0.0, "c": 2.0, "d": 0.5, "e": None}
    odd = {"a": np.int8(1), "b": np.False_, "c": np.float32(2), "d": Decimal("0.5"), "e": pd.NA}
    for k in range(5):
        one.learn_one({**plain, "a": float(k)}, k)
        other.learn_one({**odd, "a": k}, np.float64(k))
    assert one.feature_names_ == tuple("abcd")
    frame = pd.DataFrame([odd], dtype=object).astype({"a": "Int64", "b": "boolean"})
    assert one.clone().predict_one(odd) == 0.0
    one, other = KalmanRegressor("mixture", "scaled"), KalmanRegressor("mixture", "scaled")
    for k in range(5):
        one.learn_one(plain, k)
        other.learn_many(frame, pd.Series([k], dtype="Int64"))
    assert one.feature_names_ == other.feature_names_
    assert one.predict_one(plain) == other.predict_many(frame)[0]


@pytest.mark.parametrize("learned", [0, 30])
@pytest.mark.parametrize(
    ("x", "says"),
    [
        ({"a": 1.0, "sky": "red"}, r"'sky' is 'red', a str.*OneHotEncoder"),
        ({"a": "1.0"}, r"'a' is '1.0', a str"),
        ({"a": 1.0, "new": [1.0]}, r"'new' is \[1.0\], a list"),
        ({"a": float("-inf")}, r"'a' is -inf, too large"),
        ({"new": 10**400}, r"'new' is 10+\.\.\. \(a int\), too large"),
        ({"a": 1j}, r"'a' is 1j, a complex"),
        ({"a": pd.Timestamp(0)}, r"'a' is Timestamp.*"),
    ],
)
def test_what_is_no_number_is_refused(x: dict[str, Any], says: str, learned: int) -> None:
    model = KalmanClassifier(n_components=4, seed=0)
    for row, y in ragged(0)[:learned]:
        model.learn_one(row, y)
    before = pickle.dumps(model)
    with pytest.raises(InvalidInput, match=says):
        model.learn_one(x, "low")
    with pytest.raises(InvalidInput, match=says):
        model.learn_many(pd.DataFrame([x], dtype=object), pd.Series(["low"]))
    assert pickle.dumps(model) == before


def test_an_error_while_features_come_changes_nothing() -> None:
    model = KalmanClassifier(n_components=4, seed=0)
    for x, y in ragged(0)[:12]:
        model.learn_one(x, y)
    before, estimator = pickle.dumps(model), model.estimator
    with pytest.raises(InvalidInput, match="negative"):
        model.learn_one({"new": 1.0}, "low", w=-1.0)
    late = pd.DataFrame({"a": [1.0, 2.0], "new": [np.nan, 1.0]})
    with pytest.raises(InvalidInput, match="negative"):
        model.learn_many(late, pd.Series(["low", "low"]), w=pd.Series([1.0, -1.0]))
    with pytest.raises(InvalidInput, match="3 targets for the 2 rows"):
        model.learn_many(late, pd.Series(["low"] * 3))
    with pytest.raises(InvalidInput, match="more than one column 'a'"):
        model.learn_many(late.set_axis(["a", "a"], axis=1), pd.Series(["low"] * 2))
    with pytest.raises(InvalidInput, match="X is a list; give a pandas DataFrame"):
        model.predict_many([{"a": 1.0}])
    assert model.estimator is estimator
    assert pickle.dumps(model) == before
    model.learn_many(late[:0], pd.Series([], dtype=object))
    assert pickle.dumps(model) == before


def test_a_transformer_that_cannot_grow_says_so() -> None:
    model = KalmanRegressor(features=StandardScaler())
    model.learn_one({"a": 1.0}, 1.0)
    with pytest.raises(InvalidInput, match=r"StandardScaler.* cannot grow"):
        model.learn_one({"a": 1.0, "b": 2.0}, 1.0)
    model.learn_one({"a": 2.0}, 2.0)
    assert model.feature_names_ == ("a",)


def test_pipelines_and_progressive_validation() -> None:
    model = KalmanClassifier(n_components=40, seed=0)
    score = evaluate.progressive_val_score(datasets.Phishing().take(400), model, metrics.Accuracy())
    assert score.get() > 0.8
    many = KalmanClassifier(features="scaled")
    score = evaluate.progressive_val_score(
        datasets.ImageSegments().take(500), many, metrics.CrossEntropy() + metrics.Accuracy()
    )
    cross_entropy, accuracy = score.get()
    assert accuracy > 0.6  # seven classes
    assert cross_entropy < 1.3  # guessing has 1.95
    regressor = preprocessing.StandardScaler() | KalmanRegressor(n_components=20, seed=0)
    error = evaluate.progressive_val_score(
        datasets.TrumpApproval().take(400), regressor, metrics.MAE()
    )
    assert error.get() < 1.0


def test_strings_through_a_one_hot_encoder() -> None:
    rng = np.random.default_rng(0)
    words = {"red": "evening", "blue": "noon", "black": "night"}

    def stream() -> Any:
        for k in range(150):
            sky = list(words)[int(rng.integers(1 + k // 50))]
            yield {"sky": sky, "noise": float(rng.normal())}, words[sky]

    model = (compose.Select("sky") | preprocessing.OneHotEncoder()) + compose.Select(
        "noise"
    ) | KalmanClassifier(features="scaled")
    score = evaluate.progressive_val_score(stream(), model, metrics.Accuracy())
    assert score.get() > 0.9
    frame = pd.DataFrame({"sky": ["black", "red"]})
    model = preprocessing.OneHotEncoder() | KalmanClassifier(features="raw")
    for x, y in stream():
        model.learn_one({"sky": x["sky"]}, y)
    assert model.predict_many(frame).tolist() == ["night", "evening"]
    model.learn_many(frame, pd.Series(["night", "evening"]))
    assert model.predict_proba_many(frame).shape == (2, 3)


def test_predictions_while_another_thread_learns_new_features() -> None:
    model = KalmanClassifier(features="scaled")
    model.learn_one({0: 1.0}, "a")
    done = threading.Event()

    def learn() -> None:
        for k in range(60):
            model.learn_one({j: float(j - k) for j in range(k + 1)}, "ab"[k % 2])
        done.set()

    learner = threading.Thread(target=learn)
    learner.start()
    while not done.is_set() and learner.is_alive():
        found = model.predict_proba_one({j: 1.0 for j in range(60)})
        assert sum(found.values()) == pytest.approx(1.0)
    learner.join()
    assert done.is_set()
    assert len(model.feature_names_) == model.estimator.n_features_in_ == 60


def test_what_is_known_can_be_looked_at() -> None:
    model = KalmanRegressor(features="scaled")
    rng = np.random.default_rng(0)
    assert model.predict_one({}, with_dist=True).sigma == np.inf
    assert not hasattr(model, "half_life_")
    for k in range(600):
        x = float(rng.normal())
        model.learn_one({"a": x}, (1 if k < 400 else -3) * x + 0.1 * float(rng.normal()))
    forecast = model.predict_one({"a": 1.0}, with_dist=True)
    assert forecast.mu == pytest.approx(model.predict_one({"a": 1.0})) == pytest.approx(-3, abs=0.1)
    assert 0.05 < forecast.sigma < 0.5
    assert isinstance(model.drift(), estimators.Drift)
    assert model.drift() == model.estimator.drift()
    assert model.half_life_ in model.half_life_weights_
    assert sum(model.half_life_weights_.values()) == pytest.approx(1.0)
    assert isinstance(model.estimator, estimators.KalmanRegressor)


def test_without_river_the_extra_is_named() -> None:
    code = (
        "import sys\nsys.modules['river'] = None\nimport kalstream.compat\n"
        "from kalstream.errors import MissingExtra\n"
        "try:\n    import kalstream.compat.river\nexcept MissingExtra as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'kalstream[river]'" in done.stdout


# ---- odd input ---------------------------------------------------------------------------------

ODD_ROWS = {
    "None": None,
    "list": [("a", 1.0)],
    "text": "a",
    "array": np.ones(2),
    "NaN as a name": {float("nan"): 1.0},
    "signalling NaN": {"a": Decimal("sNaN")},
    "duration": {"a": np.timedelta64(1, "s")},
    "masked": {"a": np.ma.masked},
    "masked array": {"a": np.ma.masked_array(1.0, True)},
    "array of one": {"a": np.array([1.0])},
    "without a repr": {"a": 10**5000},
    "long name": {"k" * 100_000: "x"},
    "name twice": pd.Series([1.0, 2.0], index=["new", "new"]),
}
ODD_LABELS = {
    "list": [1],
    "dict": {"a": 1},
    "set": {1},
    "array": np.array([1]),
    "masked": np.ma.masked,
    "number": 0.5,
    "complex": 1j,
    "series": pd.Series([1]),
    "tuple with NaN": (1, float("nan")),
}
ODD_TARGETS = {
    "list": [1.0],
    "pair": (1.0, 2.0),
    "text": "1.0",
    "array": np.array([1.0]),
    "masked": np.ma.masked,
    "infinite": float("inf"),
    "huge": 10**400,
    "complex": 1j,
    "date": pd.Timestamp("2026-01-01"),
    "duration": np.timedelta64(1, "s"),
}
ODD_WEIGHTS = [None, "1", [1.0, 2.0], float("nan"), float("inf"), -1.0, 1j, np.ma.masked, 10**400]


def learned(kind: Any, n: int) -> Any:
    model = kind("mixture", "scaled", seed=0)
    for k, (x, y) in enumerate(ragged(0)[:n]):
        model.learn_one(x, y if kind is KalmanClassifier else float(k % 4))
    return model


@pytest.mark.parametrize("n", [0, 20])
@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
def test_odd_rows_labels_targets_and_weights_are_refused_by_name(kind: Any, n: int) -> None:
    model, good = learned(kind, n), "low" if kind is KalmanClassifier else 1.0
    calls: list[tuple[str, Any]] = []
    for x in ODD_ROWS.values():
        calls.append(("feature|^x ", lambda x=x: model.learn_one(x, good)))
        if not isinstance(x, dict | pd.Series):
            calls.append(("^x must be a dict", lambda x=x: model.predict_one(x)))
    for y in (ODD_LABELS if kind is KalmanClassifier else ODD_TARGETS).values():
        calls.append(
            ("y (is|holds|contains) ", lambda y=y: model.learn_one({"a": 1.0, "new": 2.0}, y))
        )
    for w in ODD_WEIGHTS:
        calls.append(("^w ", lambda w=w: model.learn_one({"a": 1.0, "new": 2.0}, good, w)))
    two = pd.DataFrame({"a": [1.0, 2.0], "new": [np.nan, 1.0]})
    for y in (None, good, np.ma.masked_array([1, 2], [0, 1]), [[1, 2], [3, 4]], {1, 2}, [good] * 3):
        calls.append(("y ", lambda y=y: model.learn_many(two, y)))
    for w in ([1.0], [1.0, 2.0, 3.0], "1", [1.0, -1.0], np.ma.masked_array([1.0, 1.0], [0, 1])):
        calls.append(("^w ", lambda w=w: model.learn_many(two, pd.Series([good] * 2), w)))
    for X in (None, two.to_numpy(), [{"a": 1.0}], two.assign(a="x"), two.assign(a=[[1], [2]])):
        calls.append(
            ("^X is a|feature 'a'", lambda X=X: model.learn_many(X, pd.Series([good] * 2)))
        )
    before = pickle.dumps(model)
    for says, call in calls:
        with pytest.raises(InvalidInput, match=says) as refused:
            call()
        assert len(str(refused.value)) < 700
        assert pickle.dumps(model) == before


def test_labels_of_many_rows_stay_what_they_are() -> None:
    names = [("a", 1), "b", 3, ("a", 1)]
    model = KalmanClassifier(features="raw")
    model.learn_many(pd.DataFrame({"a": [1.0, -1.0, 5.0, 1.0]}), names)
    assert set(model.estimator.classes_.tolist()) == set(names)
    model.learn_one({"a": 1.0}, ("a", 1))
    assert set(model.predict_proba_one({"a": 1.0})) == set(names)
    regressor = KalmanRegressor(features="raw")
    regressor.learn_one({"a": 1.0}, np.array(2.0))
    regressor.learn_many(pd.DataFrame({"a": [1.0, 2.0]}), pd.Series([1, None], dtype="Int64"))
    assert regressor.estimator.n_seen_ == 3


def test_features_that_do_not_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = KalmanClassifier(0.9, "raw")
    model.learn_one({"a": 1.0}, "low")
    before = pickle.dumps(model)
    monkeypatch.setattr(inputs, "available_bytes", lambda: 8 * 3 * (3 + 1) - 1)
    with pytest.raises(OutOfMemory, match="3 features; a filter over them with 1 outputs"):
        model.learn_one({"a": 1.0, "b": 2.0}, "low")
    assert pickle.dumps(model) == before


# ---- predict, then learn -------------------------------------------------------------------------


def rows_and_targets(kind: Any, n: int = 120) -> tuple[np.ndarray, list[Any]]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    score = X @ [1.0, -1.0, 0.5] + np.sin(np.arange(n) / 20.0)
    return X, score.tolist() if kind is KalmanRegressor else [
        "up" if s > 0 else "down" for s in score
    ]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("both", [False, True])
def test_predict_then_learn_is_that_of_the_estimator(kind: Any, both: bool) -> None:
    X, y = rows_and_targets(kind)
    model = kind(features="scaled", seed=0)
    made = []
    for row, target in zip(X.tolist(), y, strict=True):
        x = dict(zip("abc", row, strict=True))
        if both:  # asking twice changes nothing
            model.predict_one(x)
        answer = answers(model, [x])[0]
        made.append(np.atleast_1d(answer))
        model.learn_one(dict(x), target)  # pipelines make a dict of their own
    plain = getattr(estimators, kind.__name__)(features="scaled", random_state=0)
    expected = plain.predict_then_learn(X, y)
    expected = expected if kind is KalmanClassifier else expected[0][:, None]
    np.testing.assert_allclose(np.array(made[6:]), expected[6:], atol=1e-9)
    assert model.estimator.n_seen_ == len(X)


@pytest.mark.parametrize("kind", MODELS)
def test_late_targets_are_told(kind: Any) -> None:
    X, y = rows_and_targets(kind)
    model = kind(features="scaled", seed=0)
    waiting: list[tuple[dict[str, float], Any]] = []
    for row, target in zip(X.tolist(), y, strict=True):
        x = dict(zip("abc", row, strict=True))
        answers(model, [x])
        waiting.append((x, target))
        if len(waiting) > 10:
            model.learn_one(*waiting.pop(0))
    counts = model.estimator.waiting_
    # Labels are seen to be late when the first row is learned that was predicted.
    assert counts.asked == counts.told + counts.waiting > 90
    assert counts.waiting == len(model._kept) == 10
    twin = pickle.loads(pickle.dumps(model))
    for x, target in waiting:
        for each in (model, twin):
            each.learn_one(x, target)
    assert model.estimator.waiting_.waiting == 0
    assert model.estimator.n_seen_ == len(X)
    np.testing.assert_array_equal(answers(model, [x]), answers(twin, [x]))


def test_rows_that_are_kept_take_new_features() -> None:
    model = KalmanClassifier(features="scaled")
    rng = np.random.default_rng(0)
    rows = [{"a": float(value)} for value in rng.standard_normal(30)]
    for x in rows[:3]:
        model.learn_one(x, "up")
    for x in rows[3:6]:
        model.predict_one(x)
    for x in rows[3:6]:
        model.learn_one(x, "down")
    for x in rows[6:9]:  # kept
        model.predict_one(x)
    model.learn_one({"a": 1.0, "b": 2.0}, "up")  # never predicted
    for x in rows[6:9]:
        model.learn_one(x, "up")
    assert model.estimator.waiting_.told == 3
    assert not model._kept


def test_memory_of_rows_that_are_never_learned_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr("kalstream.compat.river._KEPT", 20)
    model = KalmanClassifier(features="raw")
    for k in range(3):
        model.learn_one({"a": float(k)}, "ab"[k % 2])
    for k in range(100):
        model.predict_one({"a": float(k)})
    assert len(model._predicted) == 20
    assert model.estimator.waiting_.asked == 0
    model.learn_one({"a": 90.0}, "a")  # predicted before others: labels are late
    for k in range(100, 200):
        model.predict_one({"a": float(k)})
    assert len(model._kept) == model.estimator.waiting_.waiting == 20
    before = model.estimator.n_seen_
    model.learn_one({"a": 101.0}, "a")  # no longer kept: learned all the same
    assert model.estimator.n_seen_ == before + 1


# ---- keys ---------------------------------------------------------------------------------------


def keyed_rows(n: int = 120, seed: int = 0) -> tuple[list[dict[Any, Any]], list[Any]]:
    """Rows of three shops, one of which is the opposite of the others; values go missing."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for i in range(n):
        shop, size = "abc"[rng.integers(3)], float(rng.standard_normal())
        row = {"size": size, "shop": shop, "price": float(rng.standard_normal())}
        if i and rng.random() < 0.2:
            del row["price"]
        rows.append(row)
        labels.append("buys" if (size > 0) == (shop != "c") else "leaves")
    return rows, labels


BASE = estimators.KalmanClassifier(features="scaled", preset="fast")


@pytest.mark.parametrize("max_keys", [None, 1])
def test_keyed_rows_are_those_of_the_estimator(max_keys: int | None) -> None:
    rows, labels = keyed_rows()
    model = KeyedClassifier("shop", BASE, max_keys)
    own = estimators.KeyedClassifier(BASE)
    for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
        x = [[row.get("price", np.nan), row["size"]]]
        predicted = list(model.predict_proba_one(row).values())
        model.learn_one(row, label, 1.0 + i % 2)
        learned = own.predict_then_learn(x, [label], [row["shop"]], [1.0 + i % 2])[0].tolist()
        assert predicted == pytest.approx([p for p in learned if p > 0.0], rel=1e-9)
    assert model.feature_names_ == ("price", "size")
    assert model.estimator.n_keys_ == 3
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.predict_proba_one(rows[0]) == model.predict_proba_one(rows[0])
    clone = model.clone()
    assert (clone.key, clone.max_keys, clone.predict_one(rows[0])) == ("shop", max_keys, None)


def test_keyed_frames_equal_keyed_rows() -> None:
    rows, labels = keyed_rows()
    one, many, frame = *(KeyedClassifier("shop", BASE) for _ in range(2)), pd.DataFrame(rows)
    assert many.predict_many(frame).tolist() == [None] * len(rows)
    assert many.predict_proba_many(frame).shape == (len(rows), 0)
    for row, label in zip(rows, labels, strict=True):
        one.learn_one(row, label)
    many.learn_many(frame[:50], pd.Series(labels[:50]))
    many.learn_many(frame[50:], pd.Series(labels[50:]))
    expected = one.predict_proba_many(frame)
    assert set(expected.columns) == {"buys", "leaves"}
    np.testing.assert_allclose(many.predict_proba_many(frame), expected, rtol=1e-9)
    assert many.predict_many(frame).tolist() == expected.idxmax(axis=1).tolist()


def test_keyed_rows_that_do_not_fit_are_refused() -> None:
    rows, labels = keyed_rows(40)
    model = KeyedClassifier("shop", BASE)
    with pytest.raises(InvalidInput, match="x has no 'shop', which is the key"):
        model.learn_one({"size": 1.0}, "buys")
    for row, label in zip(rows, labels, strict=True):
        model.learn_one(row, label)
    before = model.predict_proba_one(rows[0])
    with pytest.raises(InvalidInput, match="feature 'age' came after the first row; give all"):
        model.learn_one({**rows[0], "age": 3.0}, "buys")
    with pytest.raises(InvalidInput, match="feature 'age' came after the first row"):
        model.learn_many(pd.DataFrame([{**rows[0], "age": 3.0}]), pd.Series(["buys"]))
    with pytest.raises(InvalidInput, match="X has no column 'shop'"):
        model.predict_many(pd.DataFrame([{"size": 1.0}]))
    with pytest.raises(InvalidInput, match="key is None"):
        model.learn_one({**rows[0], "shop": None}, "buys")
    with pytest.raises(InvalidInput, match="cannot be a label"):
        model.learn_one(rows[0], ["buys"])
    assert model.predict_proba_one({**rows[0], "age": 3.0}) == before


def test_keyed_models_stand_in_pipelines_of_river() -> None:
    rows, labels = keyed_rows(300)
    model = compose.Discard("price") | KeyedClassifier("shop", BASE)
    stream = zip(rows, labels, strict=True)
    assert evaluate.progressive_val_score(stream, model, metrics.Accuracy()).get() > 0.75


VALUES = estimators.KalmanRegressor(features="scaled")


def keyed_values(n: int = 120) -> tuple[list[dict[str, Any]], list[Any]]:
    """Rows and targets, a few of which are missing; one shop is the opposite of the others."""
    rows, _ = keyed_rows(n)
    values = [2.0 * row["size"] * (-1.0 if row["shop"] == "c" else 1.0) for row in rows]
    return rows, [None if i % 11 == 5 else value for i, value in enumerate(values)]


@pytest.mark.parametrize("max_keys", [None, 1])
def test_keyed_values_are_those_of_the_estimator(max_keys: int | None) -> None:
    rows, values = keyed_values()
    model = KeyedRegressor("shop", VALUES, max_keys)
    own = estimators.KeyedRegressor(VALUES)
    for i, (row, value) in enumerate(zip(rows, values, strict=True)):
        x, y = [[row.get("price", np.nan), row["size"]]], [np.nan if value is None else value]
        mean, predicted = model.predict_one(row), model.predict_one(row, with_dist=True)
        model.learn_one(row, value, 1.0 + i % 2)
        (own_mean,), (std,) = own.predict_then_learn(x, y, [row["shop"]], [1.0 + i % 2])
        assert mean == predicted.mu == pytest.approx(np.nan_to_num(own_mean), rel=1e-9)
        assert predicted.sigma == pytest.approx(std, rel=1e-9)
    assert model.feature_names_ == ("price", "size")
    assert model.estimator.n_keys_ == 3
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.predict_one(rows[0]) == model.predict_one(rows[0])
    clone = model.clone()
    assert (clone.key, clone.max_keys, clone.predict_one(rows[0])) == ("shop", max_keys, 0.0)


def test_frames_of_keyed_values_equal_rows() -> None:
    rows, values = keyed_values()
    one, many, frame = *(KeyedRegressor("shop", VALUES) for _ in range(2)), pd.DataFrame(rows)
    assert many.predict_many(frame).tolist() == [0.0] * len(rows)
    for row, value in zip(rows, values, strict=True):
        one.learn_one(row, value)
    targets = pd.Series(values, dtype=float)
    many.learn_many(frame[:50], targets[:50])
    many.learn_many(frame[50:], targets[50:].to_frame())
    frame.index = frame.index + 7
    predicted = many.predict_many(frame)
    np.testing.assert_allclose(predicted, [one.predict_one(row) for row in rows], rtol=1e-9)
    assert predicted.index.equals(frame.index)


def test_keyed_values_that_do_not_fit_are_refused() -> None:
    rows, values = keyed_values(40)
    model = KeyedRegressor("shop", VALUES)
    model.learn_one(rows[0], None)
    assert model.predict_one(rows[0]) == 0.0  # nothing is known before the first target
    assert model.predict_one(rows[0], with_dist=True).sigma == np.inf
    assert model.predict_many(pd.DataFrame(rows[:1])).tolist() == [0.0]
    for row, value in zip(rows, values, strict=True):
        model.learn_one(row, value)
    before = model.predict_one(rows[0])
    for y in ("much", np.inf):
        with pytest.raises(InvalidInput, match=r"y is .* pass one finite number"):
            model.learn_one(rows[0], y)
    with pytest.raises(InvalidInput, match="y has shape"):
        model.learn_many(pd.DataFrame(rows[:2]), pd.DataFrame({"a": [1.0, 2], "b": [1.0, 2]}))
    with pytest.raises(InvalidInput, match="x has no 'shop', which is the key"):
        model.predict_one({"size": 1.0})
    assert model.predict_one(rows[0]) == before


def test_keyed_regressors_stand_in_pipelines_of_river() -> None:
    rows, values = keyed_values(300)
    known = [(row, value) for row, value in zip(rows, values, strict=True) if value is not None]
    model = compose.Discard("price") | KeyedRegressor("shop", VALUES)
    assert evaluate.progressive_val_score(known, model, metrics.R2()).get() > 0.75
