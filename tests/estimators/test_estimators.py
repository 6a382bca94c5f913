"""What the estimators do with every kind of input, good and bad, and what they show of it."""

import copy
import datetime
import math
import pickle
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import IncrementalPCA
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from kalstream import KalmanClassifier, KalmanRegressor, KalstreamError
from kalstream.core import Calibration, Fixed, Learned, Mixture
from kalstream.core.state import pending_capacity
from kalstream.errors import CheckpointError, InvalidInput
from kalstream.features import OnlineScaler

BOTH = pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
FEATURES = pytest.mark.parametrize("features", ["raw", "scaled", "fourier"])


def rows(n=60, d=3, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


X = rows()
Y = X.argmax(axis=1)
VALUES = X @ [1.0, -2.0, 0.5] + 0.1 * rows(60, 1, seed=1)[:, 0]


def small(kind=KalmanClassifier, **settings):
    return kind(**{"n_components": 10, "random_state": 0, **settings})


def target(kind):
    return Y if kind is KalmanClassifier else VALUES


def answer(model, data=X):
    """All that a model says about rows, as bytes."""
    if isinstance(model, KalmanClassifier):
        parts = [model.predict_proba(data)]
    else:
        parts = list(model.predict(data, return_std=True))
    return b"".join(part.tobytes() for part in [*parts, model.coef_, model.cov_])


# ---- labels ------------------------------------------------------------------------------------


def of_objects(values):
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


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
    if kind not in "OS":  # scikit-learn's score takes no others
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
    with pytest.raises(InvalidInput, match=r"Unknown label type: y holds (0\.5|2\.5|inf)"):
        getattr(small(), method)(X[:3], labels)


def test_declared_classes():
    model = small().partial_fit(X[:6], [1, 2] * 3, classes=[5, 1, 5, 2])
    assert model.classes_.tolist() == [1, 2, 5]
    assert model.predict_proba(X).shape == (60, 3)
    early = small().partial_fit(X[:2], [None, None], classes=["a", "b"])
    assert early.predict_proba(X[:1]) == pytest.approx(np.array([[0.5, 0.5]]))


# ---- rows --------------------------------------------------------------------------------------


@BOTH
@FEATURES
def test_a_missing_value_stands_for_the_mean(kind, features):
    model = small(kind, features=features).partial_fit(X, target(kind))
    holed = X.copy()
    holed[::2, 1] = np.nan
    model.partial_fit(holed, target(kind))
    transformer = model._model.representation.transformer
    scaler = getattr(transformer, "scaler_", transformer)
    mean = np.zeros(3) if scaler is None else scaler.mean_
    filled = np.where(np.isnan(holed), mean, holed)
    assert answer(model, holed) == answer(model, filled)
    if scaler is not None:
        assert scaler.count_.tolist() == [120.0, 90.0, 120.0]


@BOTH
def test_rows_that_teach_nothing_about_themselves(kind):
    """Features that are all zero: no intercept, and nothing but the mean."""
    model = small(kind, features="scaled", intercept=False)
    model.partial_fit(X[:1], target(kind)[:1]).partial_fit(X, target(kind))
    nothing = np.full((1, 3), np.nan)
    assert model.uncertainty(nothing) == [0.0]
    assert np.isfinite(model.partial_fit(nothing, target(kind)[:1]).uncertainty(X)).all()


@BOTH
def test_data_frames(kind):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = small(kind).partial_fit(frame, target(kind))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert model.n_features_in_ == 3
    assert answer(model, frame) == answer(small(kind).partial_fit(X, target(kind)))
    before = answer(model, frame)
    with pytest.raises(ValueError, match="feature names should match"):
        model.partial_fit(frame[["b", "a", "c"]], target(kind))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"a": "z"}))
    assert answer(model, frame) == before
    assert not hasattr(model.reset(), "feature_names_in_")


def test_rows_of_other_types():
    expected = answer(small().partial_fit(X, Y))
    assert answer(small().partial_fit(X.tolist(), Y.tolist())) == expected
    assert answer(small().partial_fit(np.asfortranarray(X), Y)) == expected
    assert answer(small().partial_fit(X, Y), np.asfortranarray(X)) == expected
    nullable = pd.DataFrame(X).astype("Float64")
    assert answer(small().partial_fit(nullable.to_numpy(dtype=object), Y)) == expected


# ---- bad input ---------------------------------------------------------------------------------

INF = X.copy()
INF[3, 1] = np.inf
BAD_ROWS = {
    "inf": (INF, "inf"),
    "columns": (X[:, :2], "2 features, but .* expecting 3 features"),
    "flat": (X[0], "2D array"),
    "empty": (X[:0], "0 sample"),
    "strings": (X.astype(str).tolist()[:1] * 59 + [["a", "b", "c"]], "could not convert|numeric"),
    "sparse": (scipy.sparse.csr_matrix(X), "Sparse data"),
    "masked": (np.ma.masked_array(X, X > 9.0), "masked array; fill it"),
    "complex": (X + 1j, "Complex data not supported"),
    "huge": (np.where(X > 2.0, 1e200, X), "scale it"),
}
BAD_MORE = {
    "negative weight": ({"sample_weight": -np.ones(60)}, "sample_weight must not be negative"),
    "NaN weight": ({"sample_weight": np.full(60, np.nan)}, "sample_weight holds nan"),
    "weights": ({"sample_weight": np.ones(59)}, r"sample_weight .* shape \(60,\)"),
    "time back": ({"time": 160.0 - np.arange(60.0)}, "time goes back by 1 to 159 at row 1 of X"),
    "time NaN": ({"time": np.full(60, np.nan)}, "time holds nan"),
    "times": ({"time": np.arange(61)}, r"time must be a scalar or have shape \(60,\)"),
    "time text": ({"time": ["now"] * 60}, "time must be real numbers"),
    "NaT": ({"time": np.full(60, "NaT", "datetime64[s]")}, r"time is missing \(NaT\) at row 0"),
}
BAD_LABELS = {
    "values": ([0.5] * 60, "Unknown label type: y holds 0.5"),
    "too few": (Y[:-1], "y has 59 labels for the 60 rows"),
    "two columns": (np.stack([Y, Y], axis=1), "y must be one label per row|should be a 1d array"),
    "unhashable": (of_objects([[1]] * 60), "which cannot be a label; use numbers or strings"),
}
BAD_VALUES = {
    "inf": (np.where(np.arange(60) == 3, np.inf, VALUES), "y contains .*infinity"),
    "text": (["a"] * 60, "y must be real numbers"),
    "too few": (VALUES[:-1], r"y has shape \(59,\) for the 60 rows"),
    "complex": (VALUES + 1j, "Complex data not supported"),
    "ragged": ([[1.0], [1.0, 2.0]] * 30, "y must be an array of numbers"),
    "cube": (np.zeros((60, 1, 1)), r"y has shape \(60, 1, 1\)"),
    "nothing": (np.zeros((60, 0)), r"y has shape \(60, 0\)"),
    "None": (None, "requires y to be passed"),
    "partly": (np.where(np.eye(60, 2) > 0.0, np.nan, 1.0), "partly NaN|contains NaN"),
    "huge": (np.where(X[:, 0] > 1.0, 1e200, VALUES), "scale it"),
    "huge first": (np.where(np.arange(60) == 0, 1e200, VALUES), r"y holds 1e\+200 at row 0, more"),
    "huge all": (np.full((60, 2), -1e200), r"y holds -1e\+200 at row 0, more than 1e\+100"),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("dtype", value) for value in ("x", ["x"], 2**62)),
        *(("calibration", value) for value in ([1.0, [2.0]], {1.0})),
        ("class_weight", np.zeros(2)),
    ],
    ids=str,
)
def test_parameters_are_checked_once_the_first_label_comes(name, value):
    model = KalmanClassifier(features="raw").partial_fit(X, [None] * 60)
    with pytest.raises(InvalidInput, match=f"{name}s? must be"):
        model.set_params(**{name: value}).partial_fit(X, Y)
    assert model.n_seen_ == 60


def bad_calls():
    for kind in (KalmanClassifier, KalmanRegressor):
        y = target(kind)
        own = BAD_LABELS if kind is KalmanClassifier else BAD_VALUES
        calls = [(name, (bad, y), {}, message) for name, (bad, message) in BAD_ROWS.items()]
        calls += [(f"y {name}", (X, bad), {}, message) for name, (bad, message) in own.items()]
        calls += [(name, (X, y), more, message) for name, (more, message) in BAD_MORE.items()]
        for name, args, more, message in calls:
            yield pytest.param(kind, args, more, message, id=f"{kind.__name__}-{name}")


@pytest.mark.parametrize(("kind", "args", "more", "message"), list(bad_calls()))
def test_a_failed_call_changes_nothing(kind, args, more, message):
    y = target(kind)
    features = "raw" if message == "scale it" else "scaled"  # which clips what is huge
    model, twin = small(kind, features=features), small(kind, features=features)
    if "partly" in message:
        y = np.stack([y, y], axis=1)
    blank = set(vars(model))
    columns_are_unknown = "expecting" in message
    if not columns_are_unknown:
        with pytest.raises((ValueError, TypeError), match=message):
            model.partial_fit(*args, **more)
        assert set(vars(model)) - {"_settings_cache"} == blank
        with pytest.raises(NotFittedError):
            model.predict(X)
    more_good = {"time": np.arange(60.0)} if "time" in more else {}
    for it in (model, twin):
        it.partial_fit(X, y, **more_good)
    before, seen, settled = answer(model), model.n_seen_, set(vars(model))
    with pytest.raises((ValueError, TypeError), match=message):
        model.partial_fit(*args, **more)
    assert answer(model) == before
    assert model.n_seen_ == seen
    assert set(vars(model)) == settled
    if not columns_are_unknown:
        with pytest.raises((ValueError, TypeError), match=message):
            model.fit(*args, **more)
        assert answer(model) == before
    again = {"time": 60.0 + np.arange(60.0)} if "time" in more else {}
    assert answer(model.partial_fit(X, y, **again)) == answer(twin.partial_fit(X, y, **again))


BAD_SETTINGS = [
    ({"forgetting": 1.5}, r"gamma must lie in \[0, 1\].*1\.5"),
    ({"forgetting": "never"}, r'forgetting must be "mixture", "learned".*\'never\''),
    ({"forgetting": True}, r"forgetting must be .* got True"),
    ({"features": "polynomial"}, r"features must be 'raw', 'scaled', 'fourier' or a transformer"),
    ({"features": MinMaxScaler}, r"instance"),
    ({"n_components": 0}, r"n_components must be an integer of at least 1, got 0"),
    ({"transition": "never"}, r"transition must be one of 'example', 'chunk', got 'never'"),
    ({"noise_var": 0.0}, r"noise_var must be a finite number above 0, got 0.0"),
    ({"prior_var": "big"}, r"prior_var must be 'auto' or a number above 0, got 'big'"),
    ({"calibration": "none"}, r"calibration must be 'auto', a number.*got 'none'"),
    ({"calibration": -1.0}, r"calibrations? must be a finite number above 0, got -1.0"),
    ({"calibration": Calibration()}, r"a mixture weighs a grid: give a sequence"),
    ({"forgetting": Fixed(0.9), "calibration": 2.0}, r"give the calibration to Fixed\(\.\.\.\)"),
    ({"intercept": "yes"}, r"intercept must be True or False, got 'yes'"),
    ({"dtype": int}, r"dtype must be float64 or float32, got <class 'int'>"),
    ({"time_unit": 0.0}, r"time_unit must be a finite number above 0, or a duration .* got 0.0"),
]


@BOTH
@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS, ids=str)
def test_bad_settings_are_named(kind, settings, message):
    model = small(kind, **settings)
    with pytest.raises((KalstreamError, TypeError), match=message):
        model.partial_fit(X, target(kind), time=np.arange(60.0))
    assert not hasattr(model, "n_features_in_")


def test_bad_settings_of_one_kind():
    with pytest.raises(InvalidInput, match=r"predictive must be one of .*'exact'.*got 'guess'"):
        small(predictive="guess").partial_fit(X, Y)
    with pytest.raises(InvalidInput, match=r'class_weight must be a dict, "balanced" or None'):
        small(class_weight="fair").partial_fit(X, Y)
    with pytest.raises(InvalidInput, match=r"class_weight must not be negative, got -1"):
        small(class_weight={1: -1.0}).partial_fit(X, Y)
    with pytest.raises(InvalidInput, match=r"class_weight must be (real|an array of) numbers"):
        small(class_weight={1: "much"}).partial_fit(X, Y)
    with pytest.raises(InvalidInput, match=r"'learned' needs noise_var as a number"):
        small(KalmanRegressor, forgetting="learned").partial_fit(X, VALUES)


@BOTH
def test_before_anything_is_learned(kind):
    model = small(kind)
    for ask in ("predict", "uncertainty", "is_novel"):
        with pytest.raises(NotFittedError, match="not fitted yet; call fit or partial_fit first"):
            getattr(model, ask)(X)
    assert model.n_seen_ == 0
    for name in ("coef_", "cov_", "filters_", "health_", "nbytes_", "gamma_"):
        with pytest.raises(NotFittedError):
            getattr(model, name)
    nothing = [None] * 60 if kind is KalmanClassifier else [np.nan] * 60
    model.partial_fit(X, nothing)
    assert model.n_seen_ == 60
    with pytest.raises(NotFittedError, match="has not seen a target yet: 60 rows passed"):
        model.predict(X)
    assert model.partial_fit(X, target(kind)).predict(X).shape == (60,)


def test_predictions_of_bad_rows():
    model = small().partial_fit(X, Y, time=np.arange(60.0))
    for bad, message in [BAD_ROWS[name] for name in ("inf", "columns", "flat", "empty", "sparse")]:
        for ask in (model.predict, model.predict_proba, model.uncertainty, model.is_novel):
            with pytest.raises((ValueError, TypeError), match=message):
                ask(bad)
    with pytest.raises(InvalidInput, match="time 58 is before the last row learned, at 59"):
        model.predict_proba(X, time=58.0)
    with pytest.raises(InvalidInput, match=r"abstain_below .* \[0, 1\], got 2"):
        model.predict(X, abstain_below=2)
    with pytest.raises(InvalidInput, match="factor must be a finite number above 0, got 0"):
        model.is_novel(X, factor=0)


def test_settings_of_a_model_cannot_change_its_kind():
    model = small().partial_fit(X, Y).set_params(forgetting=0.9)
    for call in (lambda: model.predict(X), lambda: model.partial_fit(X, Y)):
        with pytest.raises(InvalidInput, match=r"forgetting is 0.9 now, .* reset"):
            call()
    model.set_params(forgetting="mixture")
    assert answer(model) == answer(small().partial_fit(X, Y))


def test_columns_without_numbers_are_named():
    table = pd.DataFrame(X[:, :1]).assign(word="a")
    with pytest.raises(InvalidInput, match=r"column 'word' of X is of dtype .* encode"):
        small().partial_fit(table.rename(columns=str), Y)
    table = table.assign(word=pd.Timestamp("2026-01-01")).rename(columns=str)
    with pytest.raises(InvalidInput, match=r"column 'word' of X is of dtype .* time="):
        small().partial_fit(table, Y)


@pytest.mark.parametrize("features", ["raw", "scaled", "fourier"])
def test_rows_far_off_are_novel(features):
    rng = np.random.default_rng(0)
    seen, labels = rng.standard_normal((2000, 5)), rng.integers(2, size=2000)
    model = KalmanClassifier(features=features, random_state=0).partial_fit(seen, labels)
    fresh = rng.standard_normal((500, 5))
    assert model.is_novel(fresh).mean() < 0.1
    assert model.is_novel(fresh + 6.0).all()
    assert model.is_novel(np.full((1, 5), 1000.0)).all()


def test_health_of_a_regression_does_not_depend_on_the_unit():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 3))
    y = rows[:, 0] + 0.1 * rng.standard_normal(400)
    for forgetting in ("mixture", 0.999):
        small_unit, large = (
            KalmanRegressor(forgetting, random_state=0).partial_fit(rows, y * unit).health_.nis
            for unit in (1.0, 1000.0)
        )
        assert small_unit == pytest.approx(large, rel=1e-6)
        assert 0.2 < small_unit < 5.0


def test_a_mixture_of_ones_own_learns_the_noise_only_where_there_is_any():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 2))
    y = 1e4 * (rows[:, 0] + 0.1 * rng.standard_normal(300))
    model = KalmanRegressor(Mixture(half_lives=(100.0, np.inf)), random_state=0).partial_fit(
        rows, y
    )
    assert 200.0 < model.predict(rows, return_std=True)[1].mean() < 5000.0
    labels = (rows[:, 0] > 0.0).astype(int)
    plain, scaled = (
        small(forgetting=Mixture(learn_scale=flag)).partial_fit(rows, labels).predict_proba(rows)
        for flag in (False, True)
    )
    assert (plain == scaled).all()


def test_targets_that_never_change_leave_nothing_uncertain():
    rows = np.arange(5.0)[:, None]
    model = KalmanRegressor(n_components=4, random_state=0).partial_fit(rows[:1], [5.0])
    assert np.isinf(model.predict(rows, return_std=True)[1]).all()
    mean, std = model.partial_fit(rows, [5.0] * 5).predict(rows, return_std=True)
    assert (mean == 5.0).all()
    assert (std == 0.0).all()


# ---- time --------------------------------------------------------------------------------------


def test_dates_without_a_unit_are_warned_about():
    days = np.datetime64("2026-01-01") + np.arange(60)
    with pytest.warns(UserWarning, match=r"86400 seconds apart .* time_unit"):
        small().partial_fit(X, Y, time=days)
    small(time_unit=datetime.timedelta(days=1)).partial_fit(X, Y, time=days)  # warnings are errors


def test_time_is_given_from_the_start():
    model = small().partial_fit(X, Y)
    before = answer(model)
    with pytest.raises(InvalidInput, match="was not for the 60 rows before"):
        model.partial_fit(X, Y, time=np.arange(60.0))
    with pytest.raises(InvalidInput, match="the rows learned had none"):
        model.predict(X, time=3.0)
    assert answer(model) == before


@pytest.mark.parametrize("time_unit", [86400.0, datetime.timedelta(days=1), pd.Timedelta("1D")])
@pytest.mark.parametrize(
    "dates",
    [
        pd.date_range("2024-02-01", periods=60),
        pd.Series(pd.date_range("2024-02-01", periods=60)),
        pd.date_range("2024-02-01", periods=60, tz="Asia/Tokyo"),
        list(pd.date_range("2024-02-01", periods=60, tz="UTC")),
        np.arange("2024-02-01", "2024-04-01", dtype="datetime64[D]"),
        np.arange("3024-02-01", "3024-04-01", dtype="datetime64[D]"),
        [datetime.datetime(2024, 2, 1) + datetime.timedelta(days=i) for i in range(60)],
        [datetime.date(2024, 2, 1) + datetime.timedelta(days=i) for i in range(60)],
        86400.0 * np.arange(60),
        (86400 * np.arange(60)).astype(object),
    ],
    ids=lambda dates: f"{type(dates).__name__} {getattr(dates, 'dtype', '')}",
)
def test_dates(dates, time_unit):
    kept = np.array([0, *range(5, 60)])
    dates = dates.iloc if isinstance(dates, pd.Series) else dates
    some = [dates[i] for i in kept]
    model = small(time_unit=time_unit, features="raw").partial_fit(X[kept], Y[kept], time=some)
    plain = small(features="raw").partial_fit(X[kept], Y[kept], time=kept)
    assert model.predict_proba(X) == pytest.approx(plain.predict_proba(X), rel=1e-9)
    every = small(features="raw").partial_fit(X[kept], Y[kept])
    assert np.abs(model.predict_proba(X) - every.predict_proba(X)).max() > 1e-6
    ahead = model.predict_proba(X, time=dates[59])
    assert ahead == pytest.approx(plain.predict_proba(X, time=59), rel=1e-9)


def test_time_unit_of_numpy():
    one = small(time_unit=np.timedelta64(2, "h")).partial_fit(X, Y, time=3600 * np.arange(60))
    other = small().partial_fit(X, Y, time=0.5 * np.arange(60))
    assert one.predict_proba(X) == pytest.approx(other.predict_proba(X), rel=1e-12)


def test_time_is_given_always_or_never():
    model = small().partial_fit(X, Y, time=np.arange(60.0))
    before = answer(model)
    with pytest.raises(InvalidInput, match=r"the last row was at 59\) and is missing now; give"):
        model.partial_fit(X, Y)
    with pytest.raises(InvalidInput, match="time goes back by 1 to 58 at row 0 of X"):
        model.partial_fit(X[:1], Y[:1], time=58.0)
    assert answer(model) == before
    assert model.partial_fit(X[:2], Y[:2], time=59.0).n_seen_ == 62  # no time at all may pass


def test_the_further_ahead_the_less_is_known():
    model = small(forgetting=0.9, features="raw").partial_fit(X, Y, time=np.arange(60.0))
    times = np.array([59.0, 60.0, 65.0, 90.0, 1e4])
    row = np.repeat(X[:1], 5, axis=0)
    uncertain = model.uncertainty(row, time=times)
    assert (np.diff(uncertain) > 0.0).all()
    assert uncertain[-1] == pytest.approx(1.0)
    found = model.predict_proba(row, time=times)
    assert found[-1] == pytest.approx(np.full(3, 1 / 3), abs=1e-6)
    assert found[1] == pytest.approx(model.predict_proba(X[:1])[0], rel=1e-12)
    assert model.predict(row, time=1e6).shape == (5,)


# ---- what comes out -----------------------------------------------------------------------------


def test_abstaining():
    model = small().partial_fit(X, Y)
    best = model.predict_proba(X).max(axis=1)
    threshold = float(np.median(best))
    found = model.predict(X, abstain_below=threshold)
    silent = np.array([label is None for label in found])
    assert np.array_equal(silent, best < threshold)
    assert 20 < silent.sum() < 40
    assert (found[~silent] == model.predict(X)[~silent]).all()
    assert model.predict(X, abstain_below=0.0).dtype == object


@BOTH
@pytest.mark.parametrize("forgetting", ["mixture", 1.0, 0.9999])
def test_uncertainty_falls_with_data(kind, forgetting):
    model, last = small(kind, forgetting=forgetting), 1.0
    data, y = np.tile(X, (4, 1)), np.tile(target(kind), 4)
    for part in (slice(0, 5), slice(5, 40), slice(40, 240)):
        model.partial_fit(data[part], y[part])
        found = model.uncertainty(X)
        assert (found >= 0.0).all()
        assert (found <= 1.0 + 1e-12).all()
        assert found.mean() < 0.9 * last
        last = found.mean()


@BOTH
@FEATURES
def test_novelty(kind, features):
    data = np.tile(X, (20, 1)) + 0.1 * rows(1200, seed=2)
    data[:, 2] = 7.0 if features == "scaled" else 0.0  # a direction in which nothing happens
    y = np.tile(target(kind), 20)
    model = small(kind, features=features, n_components=60).partial_fit(data, y)
    assert model.is_novel(data).mean() < 0.1
    far = np.array([[0.0, 0.0, 40.0], [0.0, 0.0, -40.0]])
    assert model.is_novel(far).all()
    assert not model.is_novel(far, factor=1e8).any()


def drifting(n, seed, turn=None, d=4):
    """Rows, labels and values of a rule that may change at a row."""
    rng = np.random.default_rng(seed)
    data, rule = rng.standard_normal((n, d)), rng.standard_normal((2, d))
    value = data @ rule[0]
    if turn is not None:
        value[turn:] = data[turn:] @ rule[1] - value[turn:]
    noisy = value + 0.3 * rng.standard_normal(n)
    return data, np.where(noisy > 0.0, "yes", "no"), noisy


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_drift_alarm(kind, seed):
    data, labels, values = drifting(2400, seed, turn=1500)
    y = labels if kind is KalmanClassifier else values
    model = kind(features="raw", random_state=0).partial_fit(data[:1500], y[:1500])
    assert not model.drift()
    assert 0.0 <= model.drift().confidence <= 0.9
    quiet, on = model.drift().alarms, []
    for start in range(1500, 2400, 50):
        model.partial_fit(data[start : start + 50], y[start : start + 50])
        on.append(bool(model.drift()))
    after = model.drift()
    assert on[0]
    assert after.alarms > quiet
    assert 1500 <= after.since < 1550
    assert after.peak > 0.9


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_a_slow_change_is_noticed(kind, seed):
    """One rule gives way to another over 2000 rows: no row is out of the ordinary."""
    old, new = (drifting(6000, seed, turn=turn) for turn in (None, 0))
    later = np.random.default_rng(seed).random(6000) < (np.arange(6000) - 2000) / 2000
    y = np.where(later, new[1], old[1])
    if kind is KalmanRegressor:
        y = np.where(later, new[2], old[2])
    model = kind(features="raw").partial_fit(old[0][:2000], y[:2000])
    quiet = model.drift().alarms
    assert model.partial_fit(old[0][2000:3500], y[2000:3500]).drift().alarms > quiet
    assert 2000 <= model.drift().since < 3500
    assert not model.partial_fit(old[0][3500:], y[3500:]).drift()


@BOTH
def test_an_alarm_ends(kind):
    data, labels, values = drifting(6000, 0, turn=1000)
    y = labels if kind is KalmanClassifier else values
    model = kind(features="raw").partial_fit(data[:1100], y[:1100])
    assert model.drift()
    assert not model.partial_fit(data[1100:], y[1100:]).drift()
    assert model.drift().alarms >= 1


@BOTH
def test_hardly_an_alarm_without_drift(kind):
    alarms = []
    for seed in range(6):
        data, labels, values = drifting(3000, 10 + seed)
        y = labels if kind is KalmanClassifier else values
        model = kind(features="raw", random_state=0).partial_fit(data, y)
        report = model.drift()
        alarms.append(report.alarms)
        assert (report.since is None) == (report.alarms == 0)
        assert report.usual_half_life >= 1000.0
        assert model.half_life_ >= 1000.0
    # a posterior over half-lives is a random thing: one alarm in ten thousand rows or so
    assert sum(alarms) <= 4
    assert np.median(alarms) == 0


def test_a_fixed_gamma_cannot_tell_a_drift():
    for forgetting in (0.9, Fixed(1.0)):
        model = small(forgetting=forgetting).partial_fit(X, Y)
        with pytest.raises(InvalidInput, match=r'never changes.*use forgetting="mixture"'):
            model.drift()
    learned = small(forgetting="learned").partial_fit(X, Y).drift()
    assert learned.half_life > 100.0
    assert not learned


@pytest.mark.parametrize("transition", ["example", "chunk"])
def test_gaps_and_chunks_are_no_drift_to_a_learned_gamma(transition):
    data, labels, _ = drifting(900, 0)
    policy = Learned(0.99, 1e-9)  # in effect fixed, with a half-life of 69
    times = np.cumsum(np.random.default_rng(0).choice([0.0, 1.0, 50.0], 900))
    model = KalmanClassifier(policy, "raw", transition=transition)
    for start in range(0, 900, 30):
        part = slice(start, start + 30)
        model.partial_fit(data[part], labels[part], time=times[part])
    report = model.drift()
    assert report.alarms == 0
    assert report.half_life == report.usual_half_life == 100.0
    assert report.confidence == pytest.approx(0.0, abs=1e-12)


def test_rows_without_labels_count_for_the_alarm():
    """However they are cut: the row at which an alarm began is counted from the first."""
    data, labels, _ = drifting(2400, 0, turn=1500)
    labels = labels.astype(object)
    labels[:300] = None
    at_once = KalmanClassifier(features="raw").partial_fit(data, labels)
    cut = KalmanClassifier(features="raw").partial_fit(data[:200], labels[:200])
    cut.partial_fit(data[200:], labels[200:])
    assert at_once.drift().since >= 1500
    assert cut.drift().since == at_once.drift().since


# ---- weights ------------------------------------------------------------------------------------


def test_class_weights_multiply_sample_weights():
    weights = {0: 2.0, 2: 0.5}
    each = np.array([2.0, 1.0, 0.5])[Y]
    plain = small().partial_fit(X, Y, sample_weight=each)
    assert answer(small(class_weight=weights).partial_fit(X, Y)) == answer(plain)
    mine = np.random.default_rng(0).uniform(0.1, 3.0, 60)
    assert answer(small(class_weight=weights).partial_fit(X, Y, sample_weight=mine)) == answer(
        small().partial_fit(X, Y, sample_weight=mine * each)
    )
    assert answer(plain) != answer(small().partial_fit(X, Y))


def test_balanced_goes_by_the_frequencies_so_far():
    labels = ["a"] * 9 + ["b"] + ["a"] * 9 + ["b"]
    each, counts = [], {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
        each.append(sum(counts.values()) / (len(counts) * counts[label]))
    balanced = small(class_weight="balanced").partial_fit(X[:20], labels)
    weighted = small().partial_fit(X[:20], labels, sample_weight=each)
    assert answer(balanced) == answer(weighted)
    rare = small().partial_fit(X[:20], labels).predict_proba(X)[:, 1].mean()
    assert balanced.predict_proba(X)[:, 1].mean() > 1.2 * rare


@BOTH
@pytest.mark.parametrize("settings", [{}, {"forgetting": 0.9}, {"class_weight": "balanced"}])
def test_weight_zero_is_no_target(kind, settings):
    if kind is KalmanRegressor and "class_weight" in settings:
        pytest.skip("of classes")
    weight = np.random.default_rng(3).choice([0.0, 1.0, 2.0], 60)
    weight[0] = 0.0  # the first target is special to a regression
    weight[-1] = 1.0
    y = target(kind).astype(object)
    y[weight == 0.0] = None
    # columns in the same order, so that the same numbers are added in the same order
    more = {"classes": [0, 1, 2]} if kind is KalmanClassifier else {}
    one = small(kind, **settings).partial_fit(X, target(kind), sample_weight=weight, **more)
    other = small(kind, **settings).partial_fit(X, y, sample_weight=weight, **more)
    assert answer(one) == answer(other)
    before = one.n_seen_
    one.partial_fit(X[:1], target(kind)[:1], sample_weight=[0.0])
    assert one.n_seen_ == before + 1
    assert answer(one) == answer(other.partial_fit(X[:1], [None]))
    with pytest.raises(InvalidInput, match="sample_weight is zero in every row"):
        one.fit(X, target(kind), sample_weight=np.zeros(60))


# ---- what a model shows -------------------------------------------------------------------------


@BOTH
def test_reset_and_snapshot(kind):
    model, y = small(kind), target(kind)
    fresh = answer(small(kind).partial_fit(X, y))
    kept = model.partial_fit(X, y).snapshot()
    before = answer(kept)
    model.partial_fit(X, y)
    assert answer(kept) == before == fresh
    assert answer(model) != before
    assert answer(kept.partial_fit(X, y)) == answer(model)
    assert model.reset() is model
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert answer(model.partial_fit(X, y)) == fresh
    assert answer(model.partial_fit(X, y).fit(X, y)) == fresh
    wider = model.reset().partial_fit(rows(d=5), y)
    assert wider.n_features_in_ == 5
    small(kind).snapshot()  # of nothing yet


@BOTH
@pytest.mark.parametrize("forgetting", ["mixture", 0.9, Learned(0.95, 0.05), Mixture((5.0, 50.0))])
def test_filters(kind, forgetting):
    more = {"noise_var": 0.1} if isinstance(forgetting, Learned) else {}
    model = small(kind, forgetting=forgetting, **more).partial_fit(X, target(kind))
    weights = model.half_life_weights_
    assert sum(weights.values()) == pytest.approx(1.0, rel=1e-12)
    assert list(weights) == [f.half_life for f in model.filters_]
    n_filters = 1
    if forgetting == "mixture":
        n_filters = len(Mixture().half_lives)
    elif isinstance(forgetting, Mixture):
        n_filters = 2
    assert len(model.filters_) == n_filters
    for each in model.filters_:
        assert each.gamma == pytest.approx(0.5 ** (1.0 / each.half_life))
        assert each.posterior.n_features == 14  # 10 waves, 3 columns, an intercept
    heaviest = max(model.filters_, key=lambda f: f.weight).posterior
    assert np.array_equal(heaviest.cov, model.cov_)
    assert np.array_equal(
        np.sort(heaviest.mean[1:].T, axis=0), np.sort(np.atleast_2d(model.coef_), axis=0)
    )
    assert 0.5 ** (1.0 / model.half_life_) == pytest.approx(model.gamma_)
    if forgetting == 0.9:
        assert model.gamma_ == pytest.approx(0.9)
    assert model.half_life_ in [pytest.approx(h) for h in weights]
    sound = model.health_
    assert sound.smallest_innovation_var > 0.0
    assert sound.asymmetry == 0.0
    assert 0.0 < sound.smallest_variance <= sound.largest_variance <= 1.0 + 1e-12
    assert sound.effective_memory > 0.0
    assert sound.nis > 0.0


def test_calibration():
    assert small(forgetting=1.0, calibration=2.5).partial_fit(X, Y).calibration_ == 2.5
    assert small(calibration=2.5).partial_fit(X, Y).calibration_ == 2.5
    assert small(calibration=[1.0, 7.0]).partial_fit(X, Y).calibration_ in (1.0, 7.0)
    assert small(calibration=Calibration(4.0), forgetting=0.9).partial_fit(X, Y).calibration_ > 1.0
    learned = small(forgetting=1.0).partial_fit(np.tile(X, (5, 1)), np.tile(Y, 5))
    assert learned.calibration_ > 2.0  # logits of one-hot targets are far too small


@pytest.mark.parametrize("intercept", [True, False])
def test_raw_weights_give_the_logits(intercept):
    model = KalmanClassifier(
        1.0, "raw", predictive="plug-in", calibration=3.0, intercept=intercept
    ).partial_fit(X, Y)
    assert model.coef_.shape == (3, 3)
    assert model.intercept_.shape == (3,)
    assert model.cov_.shape == (3 + intercept, 3 + intercept)
    assert intercept == bool(model.intercept_.any())
    logits = X @ model.coef_.T + model.intercept_
    found = model.predict_log_proba(X)
    assert found - found[:, :1] == pytest.approx(3.0 * (logits - logits[:, :1]), abs=1e-12)
    assert np.array_equal(model.decision_function(X), found)
    two = KalmanClassifier(1.0, "raw", predictive="plug-in", calibration=1.0)
    two.partial_fit(X, Y > 0)
    logits = X @ two.coef_.T + two.intercept_
    assert two.decision_function(X) == pytest.approx(logits[:, 1] - logits[:, 0], abs=1e-12)


@pytest.mark.parametrize("intercept", [True, False])
def test_raw_weights_give_the_mean(intercept):
    model = KalmanRegressor(1.0, "raw", intercept=intercept).partial_fit(X, VALUES + 50.0)
    assert model.coef_.shape == (3,)
    assert isinstance(model.intercept_, float)
    assert model.predict(X) == pytest.approx(X @ model.coef_ + model.intercept_, rel=1e-12)
    both = np.stack([VALUES, -VALUES], axis=1)
    model = KalmanRegressor(1.0, "raw", intercept=intercept).partial_fit(X, both)
    assert model.coef_.shape == (2, 3)
    assert model.intercept_.shape == (2,)
    assert model.predict(X) == pytest.approx(X @ model.coef_.T + model.intercept_, rel=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("d", "n_classes"), [(1, 2), (7, 3), (99, 5), (300, 4)])
@pytest.mark.parametrize("forgetting", [0.99, "mixture", Mixture((10.0, 100.0, 1000.0))])
def test_memory(forgetting, d, n_classes, dtype):
    data, labels = rows(40, d), np.arange(40) % n_classes
    model = KalmanClassifier(forgetting, "raw", dtype=dtype).partial_fit(data, labels)
    many = len(model.filters_)
    size, m, k = np.dtype(dtype).itemsize, d + 1, n_classes
    scales = 0 if forgetting == 0.99 else 8 * 5 * many
    folded = size * many * (m * m + m * k) + scales
    assert model.nbytes_ == folded
    waiting = size * many * pending_capacity(m) * (m + k)
    assert pending_capacity(m) == min(64, max(8, m // 4))
    for i in range(50):
        model.partial_fit(data[[i % 40]], labels[[i % 40]])
        assert model.nbytes_ <= folded + waiting
    assert model.partial_fit(data[:1], labels[:1]).nbytes_ in (folded, folded + waiting)


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
    assert model.nbytes_ < 50e6
    assert held < 50e6
    assert len(pickle.dumps(model)) < 50e6
    assert model.predict_proba(centres[:2]).shape == (2, n_classes)


def test_retired_classes():
    model = small(forgetting=0.95, features="raw").partial_fit(X, np.array(["a", "b", "c"])[Y])
    others = model.coef_[[0, 2]]
    assert model.retire_class("b") is model
    assert model.classes_.tolist() == ["a", "c"]
    assert np.array_equal(model.coef_, others)
    with pytest.raises(InvalidInput, match=r"'b' is no class of this model; it knows 'a', 'c'"):
        model.retire_class("b")
    with pytest.raises(InvalidInput, match=r"\['a'\] is no class"):
        model.retire_class(["a"])
    model.partial_fit(X[:1], ["b"])
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert (np.abs(model.coef_[1]) < 1.0).all()
    model.retire_class("a").retire_class("b")
    with pytest.raises(InvalidInput, match=r"'c' is the only class; call reset\(\)"):
        model.retire_class("c")


def test_random_state():
    seeds = (0, np.random.RandomState(0), np.random.default_rng(0))
    for seed in seeds:
        one = small(random_state=copy.deepcopy(seed)).partial_fit(X, Y)
        other = small(random_state=copy.deepcopy(seed)).partial_fit(X, Y)
        assert answer(one) == answer(other)
        state = pickle.dumps(seed)
        small(random_state=seed, features="scaled").partial_fit(X, Y)
        assert pickle.dumps(seed) == state
    assert answer(small(random_state=1).partial_fit(X, Y)) != answer(small().partial_fit(X, Y))
    sampled = small(predictive="monte-carlo").partial_fit(X, Y)
    assert np.array_equal(sampled.predict_proba(X), sampled.predict_proba(X))
    exact = small().partial_fit(X, Y).predict_proba(X)
    assert np.abs(sampled.predict_proba(X) - exact).max() < 0.2


@pytest.mark.parametrize("predictive", ["exact", "probit", "monte-carlo", "plug-in"])
@pytest.mark.parametrize("forgetting", ["mixture", 0.99, "learned"])
def test_every_way_to_predict(predictive, forgetting):
    model = small(forgetting=forgetting, predictive=predictive).partial_fit(X, Y)
    found = model.predict_proba(X)
    assert found.sum(axis=1) == pytest.approx(1.0)
    assert (model.classes_[found.argmax(axis=1)] == Y).mean() > 0.5
    assert np.array_equal(model.predict(X), model.classes_[found.argmax(axis=1)])


# ---- regression ---------------------------------------------------------------------------------


@pytest.mark.parametrize("forgetting", ["mixture", 1.0])
@pytest.mark.parametrize("noise_var", ["auto", 0.25])
def test_standard_deviations_are_honest(forgetting, noise_var):
    rng = np.random.default_rng(0)
    data = rng.standard_normal((3000, 4))
    y = data @ rng.standard_normal(4) + 0.5 * rng.standard_normal(3000)
    model, inside = KalmanRegressor(forgetting, "raw", noise_var=noise_var), []
    for start in range(0, 3000, 50):
        part = slice(start, start + 50)
        if start >= 500:
            mean, std = model.predict(data[part], return_std=True)
            inside.append(np.abs(y[part] - mean) < std)
        model.partial_fit(data[part], y[part])
    assert np.mean(inside) == pytest.approx(0.683, abs=0.04)
    assert model.noise_var_ == pytest.approx(0.25, rel=0.2)


@pytest.mark.parametrize("noise_var", ["auto", 0.25])
def test_standard_deviations_are_honest_about_drift(noise_var):
    """Weights that move as the model has it: most of the deviation is of not knowing them."""
    rng, gamma = np.random.default_rng(0), 0.95
    data = rng.standard_normal((2000, 3))
    model = KalmanRegressor(gamma, "raw", noise_var=noise_var, intercept=False, prior_var=8.0)
    if noise_var == "auto":
        model.set_params(prior_var=0.03 * 8.0 / 0.25)  # the same, in units of the scale
    weights, inside = np.sqrt(8.0) * rng.standard_normal(3), []
    for i in range(2000):
        fresh = np.sqrt(8.0 * (1.0 - gamma**2)) * rng.standard_normal(3)
        weights = gamma * weights + fresh
        y = data[i] @ weights / np.sqrt(3.0) + 0.5 * rng.standard_normal(1)
        if i >= 200:
            mean, std = model.predict(data[[i]], return_std=True)
            inside.append(abs(y - mean) < std)
        model.partial_fit(data[[i]], [0.0] if i == 0 else y)  # the first target is an offset
    assert np.mean(inside) == pytest.approx(0.683, abs=0.04)
    assert model.noise_var_ == pytest.approx(0.25, rel=0.25)


@pytest.mark.parametrize("forgetting", ["mixture", 1.0, 0.9])
@pytest.mark.parametrize("features", ["raw", "scaled", "fourier"])
@pytest.mark.parametrize(("a", "b"), [(1e4, 0.0), (-0.001, 7.0), (1.0, -300.0)])
def test_regression_is_equivariant(forgetting, features, a, b):
    plain = small(KalmanRegressor, forgetting=forgetting, features=features)
    other = clone(plain).partial_fit(X, a * VALUES + b)
    plain.partial_fit(X, VALUES)
    mean, std = plain.predict(X, return_std=True)
    moved_mean, moved_std = other.predict(X, return_std=True)
    # b costs digits of the targets themselves
    digits = 1e-8 * max(1.0, abs(b / a) * 1e-4)
    assert (moved_mean - b) / a == pytest.approx(mean, rel=digits, abs=digits)
    assert moved_std / abs(a) == pytest.approx(std, rel=digits)
    assert other.noise_var_ / a**2 == pytest.approx(plain.noise_var_, rel=digits)
    assert other.half_life_ == plain.half_life_


def test_one_target_is_not_enough_for_a_deviation():
    for forgetting in ("mixture", 0.9):
        model = KalmanRegressor(forgetting, "raw").partial_fit(X[:1], [5.0])
        mean, std = model.predict(X[:3], return_std=True)
        assert mean == pytest.approx(5.0)
        assert np.isinf(std).all()
        _, std = model.partial_fit(X[1:3], [6.0, 4.5]).predict(X[:3], return_std=True)
        assert np.isfinite(std).all()


def test_several_targets():
    both = np.stack([VALUES, 100.0 - 3.0 * VALUES], axis=1)
    model = small(KalmanRegressor).partial_fit(X, both)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (60, 2)
    assert model.score(X, both) > 0.9
    some = both.copy()
    some[::2] = np.nan
    assert model.partial_fit(X, some).n_seen_ == 120
    before = answer(model)
    with pytest.raises(InvalidInput, match="y has 1 columns, before it had 2"):
        model.partial_fit(X, VALUES)
    assert answer(model) == before
    assert model.predict(X).shape == (60, 2)
    column = small(KalmanRegressor).partial_fit(X, VALUES[:, None])
    assert column.predict(X).shape == (60, 1)
    assert np.array_equal(
        column.predict(X)[:, 0], small(KalmanRegressor).partial_fit(X, VALUES).predict(X)
    )


# ---- beside scikit-learn's own ------------------------------------------------------------------


def test_model_selection():
    folds = KFold(3)
    assert cross_val_score(small(), X, Y, cv=folds).mean() > 0.5
    assert cross_val_score(small(KalmanRegressor), X, VALUES, cv=folds).mean() > 0.8
    search = GridSearchCV(
        small(), {"features": ["raw", "fourier"], "forgetting": [0.5, "mixture"]}, cv=folds
    ).fit(X, Y)
    assert search.best_params_["forgetting"] == "mixture"
    assert search.predict(X).shape == (60,)


def test_calibrated_and_in_a_pipeline():
    calibrated = CalibratedClassifierCV(small(), cv=3).fit(X, Y)
    assert (calibrated.predict(X) == Y).mean() > 0.7
    pipeline = make_pipeline(StandardScaler(), small(features="raw")).fit(1000.0 * X + 5.0, Y)
    assert pipeline.score(1000.0 * X + 5.0, Y) > 0.7
    plain = small(features="raw").fit(StandardScaler().fit_transform(1000.0 * X + 5.0), Y)
    assert np.array_equal(
        pipeline.predict(1000.0 * X + 5.0),
        plain.predict(StandardScaler().fit_transform(1000.0 * X + 5.0)),
    )


@BOTH
@pytest.mark.parametrize(
    "transformer", [StandardScaler(), IncrementalPCA(2, batch_size=5), OnlineScaler(clip=2.0)]
)
def test_a_transformer_as_features(kind, transformer, tmp_path):
    y, path = target(kind), tmp_path / "model"
    model = kind(0.99, transformer, random_state=0)
    for start in range(0, 60, 20):
        model.partial_fit(X[start : start + 20], y[start : start + 20])
    assert not hasattr(transformer, "n_features_in_")  # a clone of it was taught
    assert np.atleast_2d(model.coef_).shape[1] == (
        2 if isinstance(transformer, IncrementalPCA) else 3
    )
    model.save(path)
    if isinstance(transformer, OnlineScaler):
        other = kind.load(path)
    else:
        with pytest.raises(CheckpointError, match=f"{type(transformer).__name__}; pass a new one"):
            kind.load(path)
        other = kind.load(path, features=clone(transformer))
    assert answer(other) == answer(model)
    assert answer(other.partial_fit(X, y)) == answer(model.partial_fit(X, y))
    with pytest.raises(CheckpointError):
        kind.load(path, features=MinMaxScaler())


def test_a_file_of_the_other_kind(tmp_path):
    small().partial_fit(X, Y).save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="KalmanClassifier"):
        KalmanRegressor.load(tmp_path / "model")
    with pytest.raises(NotFittedError):
        small().save(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"time_unit": datetime.timedelta(hours=1), "class_weight": {0: 2.0, "x": 3.0}},
        {"time_unit": np.timedelta64(1, "h"), "calibration": [1.0, 2.0], "dtype": np.float32},
        {
            "forgetting": Learned(0.9, 0.1, Calibration(2.0)),
            "random_state": np.random.default_rng(1),
        },
        {"forgetting": Mixture((3.0, math.inf), 0.1), "random_state": np.random.RandomState(1)},
        {"features": OnlineScaler(half_life=10.0), "transition": "chunk", "random_state": None},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_settings_are_saved(settings, tmp_path):
    model = small(**settings).partial_fit(X, Y, time=3600.0 * np.arange(60))
    model.save(tmp_path / "model")
    other = KalmanClassifier.load(tmp_path / "model")
    later = 3600.0 * np.arange(60, 120)
    assert answer(other) == answer(model)
    assert answer(other.partial_fit(X, Y, time=later)) == answer(
        model.partial_fit(X, Y, time=later)
    )
    assert set(other.get_params()) == set(model.get_params())
    assert repr(clone(other).fit(X, Y).classes_) == "array([0, 1, 2])"
