"""Files keep the kind of a model and its parameters."""

import datetime
import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.core import Calibration, Learned, Mixture
from kalstream.errors import CheckpointError
from kalstream.features import OnlineScaler
from small_models import X, Y, answer, small


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
