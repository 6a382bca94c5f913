"""Odd input to every public method raises an error of kalstream and changes nothing, or works.

Each value of the catalogue below is passed as every argument. Values that are accepted on purpose
have a known result, and the tests at the end compare with it.
"""

import array
import copy
import datetime
import pickle
import signal
import warnings
from collections import deque
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.core import Fixed
from kalstream.core import checks as check
from kalstream.errors import InvalidInput, InvalidType, KalstreamError, OutOfMemory
from kalstream.estimators import inputs
from kalstream.estimators._time import read_unit

try:
    import polars
except ImportError:  # not a dependency; `Polars` below takes its place
    polars = None

N = 4
ROWS = np.arange(8.0).reshape(N, 2)
LABELS = ["a", "b", "a", "b"]
VALUES = [1.0, 2.0, 3.0, 4.0]
DAY = datetime.date(2026, 1, 1)


class Polars:
    """What is special in a DataFrame of polars: lists of dtypes and columns, types without kind."""

    class Text:
        def __str__(self):
            return "String"

    def __init__(self, **columns):
        self.data = columns
        self.columns = list(columns)
        self.dtypes = [self.Text() for _ in columns]
        self.shape = N, len(columns)

    def __array__(self, dtype=None, copy=None):
        return np.array(list(self.data.values()), dtype=dtype).T

    def __len__(self):
        return N

    def __getitem__(self, rows):
        part = Polars(**{name: values[rows] for name, values in self.data.items()})
        part.shape = len(next(iter(part.data.values()))), part.shape[1]
        return part


class NoRepr:
    def __repr__(self):
        raise RuntimeError("no repr")


class NoEqual:
    def __eq__(self, other):
        raise RuntimeError("no equality")

    def __hash__(self):
        return 1


class NoHash:
    def __hash__(self):
        raise RuntimeError("no hash")


class NoArray:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array")


class NoLength:
    def __len__(self):
        raise RuntimeError("no length")

    def __getitem__(self, index):
        raise RuntimeError("no items")


def locked(values):
    values.setflags(write=False)
    return values


def frame(first):
    return pd.DataFrame({"a": first, "b": [1.0, 2.0, 3.0, 4.0]})


def of_objects(values):
    return np.fromiter(values, object, len(values))


ODD = {
    "None": lambda: None,
    "a number": lambda: 3.0,
    "text": lambda: "abcd",
    "bytes": lambda: b"abcd",
    "True": lambda: True,
    "no rows": lambda: [],
    "no rows of two": lambda: np.empty((0, 2)),
    "no columns": lambda: np.empty((N, 0)),
    "ragged": lambda: [[1, 2], [3], [4, 5], [6, 7]],
    "objects": lambda: np.array([[1, 2], [3, "a"], [4, 5], [6, None]], object),
    "numbers as objects": lambda: np.array([[1, 2], [3, 4.5], [4, 5], [6, None]], object),
    "complex": lambda: np.ones((N, 2), complex),
    "flat complex": lambda: [1j, 2.0, 3.0, 4.0],
    "dates": lambda: np.array(["2026-01-01"] * N, "M8[s]"),
    "table of dates": lambda: np.array([["2026-01-01"] * 2] * N, "M8[s]"),
    "durations": lambda: np.ones((N, 2), "m8[s]"),
    "NaT": lambda: [pd.NaT] * N,
    "generic NaT": lambda: np.datetime64("NaT"),
    "years out of range": lambda: np.array(["300000000000"] * N, "M8[Y]"),
    "dates of Python": lambda: [DAY] * N,
    "dates with and without zone": lambda: (
        [
            datetime.datetime(2026, 1, 1),
            datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        ]
        * 2
    ),
    "times of day": lambda: [datetime.time(1)] * N,
    "generator": lambda: (k for k in range(N)),
    "iterator": lambda: iter([1.0, 2.0, 3.0, 4.0]),
    "range": lambda: range(N),
    "set": lambda: {1, 2, 3, 4},
    "dict": lambda: {"a": 1, "b": 2, "c": 3, "d": 4},
    "list of dicts": lambda: [{"a": 1}] * N,
    "list of sets": lambda: [{1}, {2}] * 2,
    "column in lists": lambda: [[1], [2], [1], [2]],
    "tuples": lambda: [(1, 2), (3, 4)] * 2,
    "tuples with lists": lambda: [(1, [2])] * N,
    "tuples with NaN": lambda: [(1, float("nan"))] * N,
    "odd index": lambda: pd.Series([1, 2, 1, 2], index=[9, 9, "x", None]),
    "nullable": lambda: pd.Series([1, None, 2, 3], dtype="Int64"),
    "categories": lambda: pd.Series(["a", None, "b", "a"], dtype="category"),
    "periods": lambda: pd.Series(pd.period_range("2026", periods=N, freq="D")),
    "intervals": lambda: pd.Series(pd.interval_range(0, N)),
    "lists in a column": lambda: pd.Series([[1], [2]] * 2),
    "frame of categories": lambda: frame(pd.Categorical(["x", "y"] * 2)),
    "frame of text": lambda: frame(["x"] * N),
    "frame of dates": lambda: frame(pd.to_datetime(["2026-01-01"] * N)),
    "frame of dates in a zone": lambda: frame(pd.to_datetime(["2026-01-01"] * N, utc=True)),
    "frame of durations": lambda: frame(pd.to_timedelta([1, 2, 3, 4])),
    "frame of lists": lambda: frame([[1]] * N),
    "frame of complex": lambda: frame([1j] * N),
    "frame of intervals": lambda: frame(pd.interval_range(0, N)),
    "frame with a masked value": lambda: frame([np.ma.masked, 1.0, 2.0, 3.0]),
    "names twice": lambda: pd.DataFrame([[1.0, 2.0]] * N, columns=["a", "a"]),
    "names of several types": lambda: pd.DataFrame([[1.0, 2.0]] * N, columns=["a", 1]),
    "table of arrow": lambda: pa.table({"a": ["x"] * N, "b": VALUES}),
    "dates of arrow": lambda: pa.table({"a": [DAY] * N, "b": VALUES}),
    "array of arrow": lambda: pa.array([1, 2, 1, None]),
    "like polars": lambda: Polars(a=["x"] * N, b=["1"] * N),
    "array of no dimension": lambda: np.array(3.0),
    "cube": lambda: np.ones((N, 2, 1)),
    "one row": lambda: np.ones((1, N)),
    "matrix": lambda: np.asmatrix(np.ones((N, 2))),
    "read-only": lambda: locked(ROWS.copy()),
    "strided": lambda: np.arange(32.0).reshape(8, 4)[::2, ::-2],
    "big-endian": lambda: ROWS.astype(">f8"),
    "records": lambda: np.array([(1, 2.0)] * N, dtype=[("a", int), ("b", float)]),
    "void": lambda: np.zeros(N, "V8"),
    "strings": lambda: np.array([["a", "b"]] * N, dtype=np.dtypes.StringDType()),
    "huge": lambda: [[10**400, 1]] * N,
    "huge and flat": lambda: [10**400, 1, 2, 3],
    "without a repr": lambda: [10**5000, 1, 2, 3],
    "infinite": lambda: [np.inf, 1.0, 2.0, 3.0],
    "too large": lambda: [[1e200, 1.0]] * N,
    "Decimal": lambda: [[Decimal(1), Decimal("2.5")]] * N,
    "signalling NaN": lambda: [Decimal("sNaN")] * N,
    "Fraction": lambda: [Fraction(1, 3), Fraction(2)] * 2,
    "huge Fraction": lambda: [Fraction(10**400)] * N,
    "masked": lambda: np.ma.masked_array([1.0, 2.0, 1.0, 2.0], [0, 1, 0, 0]),
    "nothing masked": lambda: np.ma.masked_array([1, 2, 1, 2]),
    "masked rows": lambda: [np.ma.masked_array([1.0, 2.0], [0, 1])] * N,
    "masked values": lambda: [[np.ma.masked_array(1.0, True), 1.0]] * N,
    "masked constants": lambda: [np.ma.masked, 1, 2, 3],
    "masked among objects": lambda: of_objects([np.ma.masked, 1, 2, 3]),
    "masked strings": lambda: np.ma.masked_array(LABELS, [0, 1, 0, 0]),
    "sparse": lambda: scipy.sparse.csr_array(ROWS),
    "sparse column": lambda: scipy.sparse.coo_array(np.ones(N)),
    "object": lambda: object(),
    "type": lambda: int,
    "ellipsis": lambda: ...,
    "memory": lambda: memoryview(np.arange(4.0)),
    "array of Python": lambda: array.array("d", [1, 2, 3, 4]),
    "mixed": lambda: [1, "a", None, 2.0],
    "mixed with tuples": lambda: [1, (1, 2), "a", None],
    "enumeration": lambda: [signal.SIGINT] * N,
    "NA": lambda: [[pd.NA, 1.0]] * N,
    "five": lambda: [1.0, 2.0, 3.0, 4.0, 5.0],
    "three rows": lambda: np.ones((3, 2)),
    "three columns": lambda: np.ones((N, 3)),
    "no repr": lambda: [NoRepr()] * N,
    "no equality": lambda: [NoEqual()] * N,
    "no hash": lambda: [NoHash()] * N,
    "no array": NoArray,
    "no length": NoLength,
    "long text": lambda: [["x" * 100_000]] * N,
    "half a character": lambda: ["\ud800", "a", "b", "c"],
}
if polars is not None:
    ODD |= {
        "polars text": lambda: polars.DataFrame({"a": ["x"] * N, "b": VALUES}),
        "polars lists": lambda: polars.DataFrame({"a": [[1]] * N, "b": VALUES}),
        "polars dates": lambda: polars.DataFrame({"a": [DAY] * N, "b": VALUES}),
        "polars infinity": lambda: polars.DataFrame({"a": [np.inf] * N, "b": VALUES}),
        "polars records": lambda: polars.DataFrame({"a": [{"q": 1}] * N, "b": VALUES}),
        "polars column": lambda: polars.Series([[1], [2], [1], [2]]),
        "polars lazy": lambda: polars.DataFrame({"a": VALUES, "b": VALUES}).lazy(),
    }


def call(method, argument):
    """A call of a method with one odd argument and three valid ones."""

    def of(model, value):
        good = LABELS if isinstance(model, KalmanClassifier) else VALUES
        more = {"X": ROWS, "y": good} if method in LEARNING or method == "score" else {"X": ROWS}
        if "time" in argument or (model.n_seen_ and model._model.time is not None):
            more["time"] = np.arange(100.0, 104.0)
        return getattr(model, method)(**{**more, argument: value})

    return of


LEARNING = ("fit", "partial_fit", "predict_then_learn")
SHARED = [(method, name) for method in LEARNING for name in ("X", "y", "sample_weight", "time")]
SHARED += [(method, name) for method in ("predict", "is_novel") for name in ("X", "time")]
SHARED += [("uncertainty", "X"), ("is_novel", "factor"), ("score", "y"), ("score", "sample_weight")]
CLASSIFIER = [
    *SHARED,
    ("partial_fit", "classes"),
    ("predict_proba", "X"),
    ("predict_log_proba", "X"),
    ("decision_function", "X"),
    ("predict", "abstain_below"),
]
REGRESSOR = [*SHARED, ("predict", "return_std")]


def calls():
    for kind, arguments in ((KalmanClassifier, CLASSIFIER), (KalmanRegressor, REGRESSOR)):
        for method, argument in arguments:
            for learned in (False, True) if method in LEARNING else (True,):
                name = f"{kind.__name__}-{method}-{argument}-{'learned' if learned else 'new'}"
                yield pytest.param(kind, method, argument, learned, id=name)


def start(kind, learned, timed=False):
    model = kind("mixture", "scaled", random_state=0)
    if learned:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((30, 2))
        y = np.where(X[:, 0] > 0.0, "a", "b") if kind is KalmanClassifier else X[:, 0]
        model.partial_fit(X, y, time=np.arange(30.0) if timed else None)
    return model


def content(model):
    """Content of a model as a pickle; `vars` of a new one."""
    own = {name: value for name, value in vars(model).items() if name != "_settings_cache"}
    return pickle.dumps(model) if "_published" in own else repr(sorted(own.items()))


@pytest.mark.parametrize(("kind", "method", "argument", "learned"), list(calls()))
def test_odd_input_is_refused_by_name_and_changes_nothing(kind, method, argument, learned):
    first = start(kind, learned, timed=argument == "time")

    def another():
        model = copy.deepcopy(first)
        if learned:
            model.predict(ROWS)
        return model

    model = another()
    before = content(model)
    for name, make in ODD.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(method, argument)(model, make())
        except NotFittedError:
            assert not learned
        except KalstreamError as error:
            assert isinstance(error, ValueError | TypeError | ArithmeticError), name
            assert 10 < len(str(error)) < 1000, name
            if isinstance(error, InvalidInput):
                assert argument in str(error) or "X" in str(error) or "y" in str(error), name
                assert content(model) == before, name
                continue
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        model = another()


def test_a_refused_call_leaves_the_saved_file_as_it_was(tmp_path):
    for kind, good in ((KalmanClassifier, LABELS), (KalmanRegressor, VALUES)):
        model = start(kind, learned=True)
        model.save(tmp_path / "before")
        for name in ("masked", "sparse", "None", "three rows", "generator", "dict"):
            for method in LEARNING:
                for args in ((ODD[name](), good), (ROWS, ODD[name]())):
                    with pytest.raises(InvalidInput):
                        getattr(model, method)(*args)
        model.save(tmp_path / "after")
        assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes()


# ---- masks -------------------------------------------------------------------------------------


MASKED = {
    "labels": {"y": np.ma.masked_array(LABELS, [0, 1, 0, 0])},
    "labels in a list": {"y": ["a", np.ma.masked, "a", "b"]},
    "classes": {"classes": np.ma.masked_array(["a", "b", "z"], [0, 0, 1])},
    "weights": {"sample_weight": np.ma.masked_array(np.ones(N), [0, 1, 0, 0])},
    "weights in a list": {"sample_weight": [np.ma.masked_array(1.0, True), 1.0, 1.0, 1.0]},
    "times": {"time": np.ma.masked_array(np.arange(4.0), [0, 1, 0, 0])},
    "rows in a list": {"X": [np.ma.masked_array([1.0, 2.0], [0, 1])] * N},
    "a frame": {"X": frame([np.ma.masked, 1.0, 2.0, 3.0])},
}


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("method", LEARNING)
def test_masks_are_refused_everywhere(method, name):
    if "classes" in MASKED[name] and method != "partial_fit":
        pytest.skip("only partial_fit has classes")
    model = KalmanClassifier(features="raw")
    with pytest.raises(InvalidInput, match=r"masked array.*; fill it with"):
        getattr(model, method)(**{"X": ROWS, "y": LABELS} | MASKED[name])
    assert set(vars(model)) - {"_settings_cache"} == set(model.get_params())


@pytest.mark.parametrize("method", LEARNING)
@pytest.mark.parametrize(
    "y", [np.ma.masked_array(VALUES, [0, 1, 0, 0]), [np.ma.masked_array(1.0, True), 2.0, 3.0, 4.0]]
)
def test_masked_targets_are_refused(method, y):
    with pytest.raises(InvalidInput, match=r"^y .*masked array.*; fill it with NaN"):
        getattr(KalmanRegressor(features="raw"), method)(ROWS, y)


# ---- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "says"),
    [
        (Polars(word=["x"] * N), r"column 'word' of X is of dtype String; encode it"),
        (
            np.array([["2026-01-01"]] * N, "M8[D]"),
            r"X is of dtype datetime64\[D\]; pass it as time",
        ),
        (frame(pd.to_timedelta([1, 2, 3, 4])), r"X: column 'a' has the type duration"),
        (pa.table({"a": [[1]] * N}), r"X: column 'a' has the type list<"),
        ([[10**400]] * N, r"X cannot be read as rows of numbers: int too large"),
        (scipy.sparse.csr_array(ROWS), r"X.*Sparse data was passed"),
        (None, r"X cannot be read as rows|X must be rows"),
    ],
    ids=lambda value: str(type(value).__name__),
)
@pytest.mark.parametrize("method", LEARNING)
@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
def test_rows_that_are_no_numbers_are_named(kind, method, X, says):
    y = LABELS if kind is KalmanClassifier else VALUES
    with pytest.raises(InvalidInput, match=says.replace("X.*Sparse", "(X.*)?Sparse")):
        getattr(kind(features="raw"), method)(X, y)


@pytest.mark.skipif(polars is None, reason="polars is not installed")
def test_frames_of_polars():
    good = polars.DataFrame({"a": ROWS[:, 0], "b": ROWS[:, 1]})
    model, other = (KalmanClassifier(features="scaled").partial_fit(ROWS, LABELS) for _ in "ab")
    model = KalmanClassifier(features="scaled").partial_fit(good, LABELS)
    assert model.predict_proba(good).tolist() == other.predict_proba(ROWS).tolist()
    for bad, says in (
        ({"a": ["x"] * N}, "column 'a' of X is of dtype String; encode"),
        ({"a": [DAY] * N}, "column 'a' of X is of dtype Date; pass it as time"),
        ({"a": [datetime.timedelta(1)] * N}, "column 'a' of X is of dtype Duration.*time="),
        ({"a": [[1.0]] * N}, r"column 'a' of X is of dtype List\(Float64\); encode"),
        ({"a": [np.inf] * N}, "infinity"),
    ):
        with pytest.raises(InvalidInput, match=says):
            model.partial_fit(
                good.with_columns(**{k: polars.Series(v) for k, v in bad.items()}), LABELS
            )


@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
def test_the_same_rows_in_other_arrays_give_the_same_model(kind):
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((40, 3)), rng.integers(0, 2, 40)
    wide = np.zeros((80, 6))
    wide[::2, ::2] = X
    others = [
        locked(X.copy()),
        np.asfortranarray(X),
        wide[::2, ::2],
        X[::-1].copy()[::-1],
        X.astype(">f8"),
        X.astype(np.longdouble),
        X.astype(object),
        X.tolist(),
    ]
    expected = kind("mixture", "scaled").partial_fit(X, y).partial_fit(X, y).predict(X)
    for other in others:
        model = kind("mixture", "scaled").partial_fit(other, y).partial_fit(other, y)
        assert model.predict(other).tolist() == expected.tolist()


# ---- labels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", LEARNING)
def test_tuples_are_labels(method, tmp_path):
    names = [("a", 1), ("b", 2), ("a", 1), ("b", 2)]
    model = KalmanClassifier(features="raw")
    getattr(model, method)([[1.0], [-1.0], [1.0], [-1.0]], names)
    assert model.classes_.tolist() == [("a", 1), ("b", 2)]
    assert model.predict([[2.0], [-2.0]]).tolist() == names[:2]
    assert model.predict([[2.0]], abstain_below=0.0).tolist() == names[:1]
    assert model.score([[2.0], [-2.0]], names[:2]) == 1.0
    model.partial_fit([[0.0]], [("b", 2)]).partial_fit([[0.0]], [(np.int64(3),)])
    assert model.classes_.tolist() == [("a", 1), ("b", 2), (3,)]
    model.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    assert again.predict([[2.0]]).tolist() == names[:1]
    assert model.retire_class((3,)).classes_.tolist() == [("a", 1), ("b", 2)]


def test_a_table_of_labels_is_refused():
    for bad in (np.array([[1, 2]] * N), [[1, 2]] * N, pd.DataFrame([[1, 2]] * N)):
        with pytest.raises(InvalidInput, match=r"y must be one label per row.* shape \(4, 2\)"):
            KalmanClassifier(features="raw").partial_fit(ROWS, bad)


@pytest.mark.parametrize(
    "names",
    [
        [2**63 + 1, -1, 2**63 + 2, -1],  # numpy turns these into floats, two of them equal
        ["a\0", "a", "b", "b"],  # numpy drops the zero
        [1, "1", "a", "a"],  # numpy turns these into strings
        [10**400, 1, 2, 2],
        [b"a", b"b", b"c", b"c"],
        [frozenset([1]), frozenset([2]), "a", "a"],
        [DAY, DAY + datetime.timedelta(1), "a", "a"],
    ],
    ids=lambda names: str(type(names[0]).__name__),
)
@pytest.mark.parametrize(
    "holder", [list, tuple, deque, of_objects, lambda v: pd.Series(v, dtype=object)]
)
def test_labels_stay_what_they_are(names, holder):
    model = KalmanClassifier(features="raw").partial_fit(ROWS, holder(names))
    assert set(model.classes_.tolist()) == set(names)
    assert sorted(map(type, model.classes_.tolist()), key=str) == sorted(
        map(type, set(names)), key=str
    )


def test_dates_as_labels():
    days = np.array(["2026-01-01", "2026-01-02", "NaT", "2026-01-02"], "M8[ns]")
    expected = [datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 2)]
    for y in (days, days.astype("M8[s]"), list(days)):
        model = KalmanClassifier(features="raw").partial_fit(ROWS, y)
        assert model.classes_.tolist() == expected
    with pytest.raises(InvalidInput, match=r"dtype datetime64\[ns\], whose values have no exact"):
        KalmanClassifier(features="raw").partial_fit(ROWS, days + np.timedelta64(1, "ns"))


def test_labels_that_cannot_be_one_are_quoted():
    for bad, says in (
        ([[1], {2}, 3, 4], r"y holds \[1\], which cannot be a label"),
        ([Decimal("1.5")] * N, r"Unknown label type: y contains Decimal\('1.5'\)"),
        ([NoEqual()] * N, r"y holds <.*NoEqual.*>, which cannot be a label"),
        ([(1, float("nan"))] * N, r"y holds \(1, nan\), which contains NaN"),
        ({1, 2, 3, 4}, r"y must be one label per row, in a list or a flat array; got \{1, 2"),
        ("abcd", r"y must be one label per row, in a list or a flat array; got 'abcd'"),
        (None, r"requires y to be passed, but the target y is None; give one label per row"),
        (scipy.sparse.csr_array(np.ones((N, 1))), r"Sparse data was passed for y; use .toarray"),
    ):
        for method in LEARNING:
            with pytest.raises(InvalidInput, match=says):
                getattr(KalmanClassifier(features="raw"), method)(ROWS, bad)


# ---- targets, weights and times ----------------------------------------------------------------


@pytest.mark.parametrize("method", LEARNING)
def test_a_number_is_no_list_of_targets(method):
    with pytest.raises(InvalidInput, match=r"y is 3.0; give one number, or one list"):
        getattr(KalmanRegressor(features="raw"), method)([[1.0]], 3.0)


def test_nullable_targets():
    y = pd.Series([1, None, 3, 4], dtype="Int64")
    one = KalmanRegressor(features="scaled").partial_fit(ROWS, y)
    other = KalmanRegressor(features="scaled").partial_fit(ROWS, [1.0, np.nan, 3.0, 4.0])
    assert one.predict(ROWS).tolist() == other.predict(ROWS).tolist()


@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
@pytest.mark.parametrize("more", ["sample_weight", "time"])
def test_pieces_do_not_hide_a_wrong_length(kind, more):
    y = LABELS if kind is KalmanClassifier else VALUES
    with pytest.raises(InvalidInput, match=rf"{more} must be a scalar or have shape \(4,\)"):
        kind(features="raw").predict_then_learn(ROWS, y, **{more: [1.0, 2.0, 3.0, 4.0, 5.0]})


@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
def test_a_weight_of_minus_zero_is_zero(kind):
    y = LABELS if kind is KalmanClassifier else VALUES
    weights = np.array([1.0, -0.0, 1.0, -0.0])
    for method in LEARNING:
        models = [kind(features="scaled") for _ in range(2)]
        for model, weight in zip(models, (weights, np.abs(weights)), strict=True):
            getattr(model, method)(ROWS, y, sample_weight=weight)
        assert models[0].predict(ROWS).tolist() == models[1].predict(ROWS).tolist()


def test_dates_cut_in_pieces_are_the_same_dates():
    when = [datetime.datetime(2026, 1, 1, k, tzinfo=datetime.UTC) for k in range(N)]
    unit = datetime.timedelta(hours=1)
    models = [KalmanClassifier(features="raw", time_unit=unit) for _ in range(2)]
    models[0].predict_then_learn(ROWS, LABELS, time=when)
    models[1].predict_then_learn(ROWS, LABELS, time=np.arange(N) * 3600.0 + when[0].timestamp())
    assert models[0].predict_proba(ROWS).tolist() == models[1].predict_proba(ROWS).tolist()
    with pytest.raises(InvalidInput, match="too far from 1970"):
        models[0].partial_fit(ROWS, LABELS, time=np.array(["300000000000"] * N, "M8[Y]"))
    with pytest.warns(UserWarning, match="Give time_unit"):
        KalmanClassifier(features="raw").predict_then_learn(ROWS, LABELS, time=when)


@pytest.mark.parametrize(
    "unit",
    [
        np.timedelta64(1, "Y"),
        np.timedelta64(2, "M"),
        np.timedelta64("NaT"),
        np.timedelta64("NaT", "s"),
        np.timedelta64(0, "s"),
        np.timedelta64(-1, "h"),
        pd.NaT,
        datetime.timedelta(0),
        datetime.timedelta(-1),
        0,
        -1.0,
        np.nan,
        np.inf,
        "1h",
        None,
        [1.0],
        [[1], [1, 2]],
        10**400,
        np.ma.masked,
        DAY,
        NoArray(),
        True,
        np.True_,
        np.timedelta64(7),
    ],
    ids=lambda unit: str(type(unit).__name__),
)
@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
def test_units_of_time_that_are_none(kind, unit):
    y = LABELS if kind is KalmanClassifier else VALUES
    model = kind(features="raw", time_unit=unit)
    for method in LEARNING:
        with pytest.raises(InvalidInput, match=r"^time_unit (must be|is) .*(timedelta|days)"):
            getattr(model, method)(ROWS, y, time=np.arange(4.0))
    assert model.n_seen_ == 0


def test_units_of_time():
    for unit, seconds in (
        (np.timedelta64(2, "m"), 120.0),
        (datetime.timedelta(days=1), 86400.0),
        (pd.Timedelta("1h"), 3600.0),
        (np.float32(0.5), 0.5),
        (7, 7.0),
    ):
        assert read_unit(unit) == seconds


# ---- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
@pytest.mark.parametrize("bad", [-1, "seed", 1.5, {1}, NoRepr()], ids=lambda b: type(b).__name__)
def test_bad_seeds_are_named(kind, bad):
    y = LABELS if kind is KalmanClassifier else VALUES
    with pytest.raises(InvalidInput, match=r"random_state must be None, an integer"):
        kind(random_state=bad).partial_fit(ROWS, y)


@pytest.mark.parametrize("bad", [3, None, [1.0], ...], ids=str)
def test_paths_that_are_none(bad):
    model = KalmanClassifier(features="raw").partial_fit(ROWS, LABELS)
    for use in (model.save, KalmanClassifier.load):
        with pytest.raises(InvalidType, match="path must be a string or a path"):
            use(bad)


# ---- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
@pytest.mark.parametrize("method", LEARNING)
def test_filters_that_do_not_fit_are_refused_before_memory_is_asked_for(kind, method):
    model = kind(features="raw")
    y = ["a"] if kind is KalmanClassifier else [1.0]
    with pytest.raises(OutOfMemory, match=r"100001 features; \d+ filters .* GiB .*fewer columns"):
        getattr(model, method)(np.ones((1, 100_000)), y)
    assert issubclass(OutOfMemory, MemoryError)
    assert set(vars(model)) - {"_settings_cache"} == set(model.get_params())


def test_sizes_are_compared_with_what_is_available(monkeypatch):
    monkeypatch.setattr(inputs, "available_bytes", lambda: 8 * 3 * (3 + 2) - 1)
    with pytest.raises(OutOfMemory, match=r"3 features; a filter .* 2 outputs .* in float64"):
        KalmanClassifier(0.9, "raw").partial_fit(ROWS, LABELS)
    KalmanClassifier(0.9, "raw", dtype="float32").partial_fit(ROWS, LABELS)
    monkeypatch.setattr(inputs, "available_bytes", lambda: None)
    KalmanClassifier(0.9, "raw").partial_fit(ROWS, LABELS)


def test_an_allocation_that_fails_is_named():
    def fails():
        raise MemoryError("no more")

    with pytest.raises(OutOfMemory, match=r"7 features; a filter over them with 2 outputs"):
        inputs.allocated(fails, Fixed(0.9), 7, 2, np.float64)


def test_available_memory_is_known_here():
    available = inputs.available_bytes()
    assert available is None or 2**20 < available < 2**60


def test_values_are_quoted_on_one_short_line():
    assert check.shown("a\nb") == r"'a\nb'"
    assert check.shown(10**5000) == "a int"
    assert check.shown(NoRepr()) == "a NoRepr"
    assert len(check.shown("x" * 100_000)) < 120
