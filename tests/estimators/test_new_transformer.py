"""A transformer of a user that learns as a value: see `kalstream.features.online`."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin

from kalstream import KalmanClassifier
from kalstream.features import OnlineScaler
from kalstream.features.online import Adapted, Raw, follows, online, with_constant


class Centred(TransformerMixin, BaseEstimator):
    """Rows minus the mean of the rows before them."""

    always_finite = True
    n = 0
    total: Any = 0.0

    def width(self, n_columns: int) -> int:
        return n_columns

    def columns(self, rows: np.ndarray) -> np.ndarray:
        return rows - self.total / max(self.n, 1)

    def passed(self, rows: np.ndarray) -> tuple[Centred, np.ndarray]:
        after, made = copy(self), np.empty_like(rows)
        for k, row in enumerate(rows):
            made[k] = after.columns(row)
            after.n, after.total = after.n + 1, after.total + row
        return after, made

    def features(self, columns: np.ndarray, lead: int, size: float) -> np.ndarray:
        return with_constant(columns, lead, size)

    def with_columns(self, n_columns: int) -> Centred:
        after = copy(self)
        after.total = np.append(self.total, np.zeros(n_columns))
        return after


class Adapting(BaseEstimator):
    """The same, as a transformer that changes."""

    def advance(self, rows: np.ndarray) -> np.ndarray:
        own = getattr(self, "own_", Centred())
        self.own_, made = own.passed(rows)
        return made

    def partial_fit(self, rows: np.ndarray) -> Adapting:
        self.advance(rows)
        return self

    def transform(self, rows: np.ndarray) -> np.ndarray:
        return self.own_.columns(rows)


X = np.random.default_rng(0).standard_normal((60, 3)) + 2.0
LABELS = np.where(X[:, 0] > 2, "a", "b")


def test_chunks_give_what_rows_give_and_nothing_shared_changes():
    mine = Centred()
    whole = KalmanClassifier(features=mine).partial_fit(X, LABELS)
    rows = KalmanClassifier(features=mine)
    for k in range(60):
        rows.partial_fit(X[k : k + 1], LABELS[k : k + 1])
    assert mine.n == 0
    np.testing.assert_allclose(whole.predict_proba(X), rows.predict_proba(X), atol=1e-12)
    adapted = KalmanClassifier(features=Adapting()).partial_fit(X, LABELS)
    np.testing.assert_allclose(whole.predict_proba(X), adapted.predict_proba(X), atol=1e-12)


def test_it_grows_and_is_saved(tmp_path):
    model = KalmanClassifier(features=Centred()).partial_fit(X, LABELS).add_columns(1)
    more = np.hstack([X, X[:, :1]])
    expected = model.predict_proba(more)
    model.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors", features=Centred())
    assert again.predict_proba(more).tolist() == expected.tolist()


def test_who_follows():
    class Mine(OnlineScaler):
        """It may change `transform`, so it is taken as a transformer of another library."""

    assert follows(OnlineScaler())
    assert follows(Centred())
    assert isinstance(online(Mine()), Adapted)
    assert isinstance(online(None), Raw)


@pytest.mark.parametrize("features", [Centred(), "raw", "scaled", "fourier", Adapting()])
def test_passing_rows_changes_nothing_that_was(features):
    model = KalmanClassifier(features=features).partial_fit(X, LABELS)
    representation = model._model.representation
    before = representation.transform(X)
    after, made = representation.advance(X)
    other, columns = representation.scaled(X)
    np.testing.assert_array_equal(other.features(columns), made)
    np.testing.assert_array_equal(after.transform(X), other.transform(X))
    np.testing.assert_array_equal(representation.transform(X), before)
