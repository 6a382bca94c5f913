"""A call with bad input names the argument and changes nothing."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.errors import InvalidInput
from small_models import BOTH, VALUES, X, Y, answer, of_objects, small, target

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
    "time back": (
        {"time": 160.0 - np.arange(60.0)},
        "time decreases from 160 to 159 at row 1 of X",
    ),
    "time NaN": ({"time": np.full(60, np.nan)}, "time holds nan"),
    "times": ({"time": np.arange(61)}, r"time must be a scalar or have shape \(60,\)"),
    "time text": ({"time": ["now"] * 60}, "time must be real numbers"),
    "NaT": ({"time": np.full(60, "NaT", "datetime64[s]")}, r"time is missing \(NaT\) at row 0"),
}
BAD_LABELS = {
    "values": ([0.5] * 60, "Unknown label type: y contains 0.5"),
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
    "huge": (np.where(X[:, 0] > 1.0, 1e200, VALUES), "scale y"),
    "huge first": (np.where(np.arange(60) == 0, 1e200, VALUES), r"y is 1e\+200 at row 0; the"),
    "huge all": (np.full((60, 2), -1e200), r"y is -1e\+200 at row 0; .* is 1e\+100"),
}


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
    features = "raw" if message == "scale it" else "scaled"  # "scaled" clips huge values
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
    with pytest.raises(NotFittedError, match="not fitted yet: it has seen 60 rows, all without"):
        model.predict(X)
    assert model.partial_fit(X, target(kind)).predict(X).shape == (60,)


def test_predictions_of_bad_rows():
    model = small().partial_fit(X, Y, time=np.arange(60.0))
    for bad, message in [BAD_ROWS[name] for name in ("inf", "columns", "flat", "empty", "sparse")]:
        for ask in (model.predict, model.predict_proba, model.uncertainty, model.is_novel):
            with pytest.raises((ValueError, TypeError), match=message):
                ask(bad)
    with pytest.raises(InvalidInput, match="time 58 is before that of the last row learned, 59"):
        model.predict_proba(X, time=58.0)
    with pytest.raises(InvalidInput, match=r"abstain_below .* \[0, 1\], got 2"):
        model.predict(X, abstain_below=2)
    with pytest.raises(InvalidInput, match="factor must be a finite number above 0, got 0"):
        model.is_novel(X, factor=0)
