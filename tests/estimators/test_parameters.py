"""Parameters: bad values, changes after learning, random seeds."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.preprocessing import MinMaxScaler

from kalstream import KalmanClassifier, KalmanRegressor, KalstreamError
from kalstream.core import Calibration, Fixed
from kalstream.errors import InvalidInput
from small_models import BOTH, VALUES, X, Y, answer, small, target


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
    ({"calibration": Calibration()}, r"for a mixture give a list of numbers"),
    (
        {"forgetting": Fixed(0.9), "calibration": 2.0},
        r"give the calibration to Fixed\(\.\.\.\), and",
    ),
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


def test_settings_of_a_model_cannot_change_its_kind():
    model = small().partial_fit(X, Y).set_params(forgetting=0.9)
    for call in (lambda: model.predict(X), lambda: model.partial_fit(X, Y)):
        with pytest.raises(InvalidInput, match=r"forgetting \(now 0.9\) .* reset"):
            call()
    model.set_params(forgetting="mixture")
    assert answer(model) == answer(small().partial_fit(X, Y))


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
