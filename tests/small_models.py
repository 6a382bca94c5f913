"""Small data sets and estimators that the tests of the estimators share."""

import numpy as np
import pytest

from kalstream import KalmanClassifier, KalmanRegressor

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
    """Predictions for rows, weights and covariance of a model, as bytes to compare."""
    if isinstance(model, KalmanClassifier):
        parts = [model.predict_proba(data)]
    else:
        parts = list(model.predict(data, return_std=True))
    return b"".join(part.tobytes() for part in [*parts, model.coef_, model.cov_])


def of_objects(values):
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array
