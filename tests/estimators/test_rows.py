"""Rows of every type: missing values, DataFrames, lists, columns without numbers."""

import numpy as np
import pandas as pd
import pytest

from kalstream import KalmanClassifier
from kalstream.errors import InvalidInput
from small_models import BOTH, FEATURES, X, Y, answer, small, target


@BOTH
@FEATURES
def test_a_missing_value_stands_for_the_mean(kind, features):
    """Filters see its mean so far, and experts the mean of their own rows."""
    alone = {"experts": []} if kind is KalmanClassifier else {}
    model = small(kind, features=features, **alone).partial_fit(X, target(kind))
    holed = X.copy()
    holed[::2, 1] = np.nan
    model.partial_fit(holed, target(kind))
    transformer = model._model.representation.transformer
    scaler = getattr(transformer, "scaler_", transformer)
    mean = np.zeros(3) if scaler is None else scaler.mean_
    filled = np.where(np.isnan(holed), mean, holed)
    assert answer(model, holed) == answer(model, filled)
    if scaler is not None:
        expected = [120.0, 90.0, 120.0]  # fewer, if scaling forgets
        assert scaler.count_ == pytest.approx(expected, rel=0.03 if kind is KalmanClassifier else 0)


@BOTH
def test_rows_that_teach_nothing_about_themselves(kind):
    """All features are zero: every value is the mean, and there is no intercept."""
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
    assert answer(model, frame[["b", "a", "c"]]) == before  # found by name
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


def test_columns_without_numbers_are_named():
    table = pd.DataFrame(X[:, :1]).rename(columns=str)
    model = small().partial_fit(table.assign(word=1.0), Y)
    with pytest.raises(InvalidInput, match=r"column 'word' of X is of dtype .* encode"):
        model.partial_fit(table.assign(word="a"), Y)
    with pytest.raises(InvalidInput, match=r"column 'word' of X is of dtype .* time="):
        model.partial_fit(table.assign(word=pd.Timestamp("2026-01-01")), Y)
