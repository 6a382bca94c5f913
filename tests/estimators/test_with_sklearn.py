"""Model selection, pipelines and transformers of scikit-learn."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import IncrementalPCA
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from kalstream import KalmanRegressor
from kalstream.errors import CheckpointError
from kalstream.features import OnlineScaler
from small_models import BOTH, VALUES, X, Y, answer, small, target


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
    assert not hasattr(transformer, "n_features_in_")  # a clone of it has learned
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
