"""Estimators whose weights move with a velocity: ``order=``."""

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.core import Fixed, Mixture, class_probabilities
from kalstream.core.motion_reference import moved, predict_moving, rate_of
from kalstream.errors import InvalidInput
from oracles import assert_close, moving
from strategies import Stream

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((60, 3))
TURN = np.arange(60) / 20.0
VALUES = ROWS[:, 0] * np.cos(TURN) + ROWS[:, 1] * np.sin(TURN)
LABELS = (VALUES > 0.0).astype(int)
TIMES = np.cumsum(RNG.choice([0.5, 1.0, 3.0], 60))
ORDERS: list[Any] = [1, 2, 3, (1, 2), (2, 1, 3), [2]]


def made(kind: Any, **options: Any) -> Any:
    return kind(**{"features": "raw", "intercept": False, **options})


def plain(estimator: Any, targets: Any, later: float, likelihood: str = "onehot") -> list[Any]:
    """Moments of ROWS under each filter, ``later`` after the last row, by the dense filter."""
    n_outputs = 1 if targets.ndim == 2 else 2
    gap = np.diff(TIMES, prepend=TIMES[0] - 1.0)
    settings = {"noise_var": 0.1, "time_gap": gap}
    phi = ROWS / math.sqrt(3.0)
    stream = Stream(phi, targets, n_outputs, np.ones(60), settings)
    moments = []
    for each in estimator.filters_:
        state, *_ = moving(
            stream,
            order=each.order,
            half_life=each.half_life,
            prior_var=2.0,
            likelihood=likelihood,
        )
        state = moved(state, tau=rate_of(each.order, each.half_life) * later, prior_var=2.0)
        rows = [predict_moving(state, row) for row in phi]
        moments.append((np.array([mean for mean, _ in rows]), np.array([var for _, var in rows])))
    return moments


@pytest.mark.parametrize("later", [0.0, 1.0, 7.5, 400.0])
@pytest.mark.parametrize("order", [2, 3])
def test_a_regressor_extrapolates(order: int, later: float) -> None:
    model = made(KalmanRegressor, forgetting=0.98, order=order, noise_var=0.1, prior_var=2.0)
    model.partial_fit(ROWS, VALUES, time=TIMES)
    offset = model._model.targets.offset
    ((mean, var),) = plain(model, (VALUES - offset)[:, None], later)
    actual, std = model.predict(ROWS, return_std=True, time=TIMES[-1] + later)
    assert_close(actual, mean[:, 0] + offset, 1e-8, 1e-8)
    assert_close(std, np.sqrt(var + 0.1), 1e-8, 1e-8)


def test_a_mixture_of_orders_extrapolates() -> None:
    model = made(KalmanRegressor, order=(1, 2, 3), noise_var=0.1, prior_var=2.0)
    model.partial_fit(ROWS, VALUES, time=TIMES)
    assert [each.order for each in model.filters_] == [1] * 4 + [2] * 4 + [3] * 4 + [1]
    offset = model._model.targets.offset
    moments = plain(model, (VALUES - offset)[:, None], 5.0)
    weights = model._ahead(model._model, ROWS, TIMES[-1] + 5.0).step.half_life_weights
    expected = sum(weights[:, j, None] * mean for j, (mean, _) in enumerate(moments))
    actual = model.predict(ROWS, time=TIMES[-1] + 5.0)
    assert_close(actual, expected[:, 0] + offset, 1e-8, 1e-8)


@pytest.mark.parametrize("likelihood", ["onehot", "softmax"])
@pytest.mark.parametrize("later", [1.0, 20.0])
def test_a_classifier_extrapolates(likelihood: str, later: float) -> None:
    options = {"likelihood": likelihood, "noise_var": 0.1, "prior_var": 2.0, "calibration": 2.0}
    options["predictive"] = "exact"
    model = made(KalmanClassifier, forgetting=0.98, order=2, **options)
    model.partial_fit(ROWS, LABELS, time=TIMES, classes=[0, 1])
    ((mean, var),) = plain(model, LABELS, later, likelihood)
    expected = class_probabilities(mean, var, calibration=2.0)
    actual = model.predict_proba(ROWS, time=TIMES[-1] + later)
    assert_close(actual, expected, 1e-7)
    assert not np.allclose(actual, model.predict_proba(ROWS, time=TIMES[-1]))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
def test_chunks_and_single_rows_give_the_same(kind: Any, order: Any) -> None:
    targets = LABELS if kind is KalmanClassifier else VALUES
    one, other = made(kind, order=order), made(kind, order=order)
    chunked = one.predict_then_learn(ROWS, targets)
    for i in range(60):
        other.partial_fit(ROWS[i : i + 1], targets[i : i + 1])
    predict = "predict_proba" if kind is KalmanClassifier else "predict"
    assert_close(getattr(one, predict)(ROWS), getattr(other, predict)(ROWS), 1e-7)
    assert len(chunked) == 60 if kind is KalmanClassifier else len(chunked) == 2
    assert sum(one.half_life_weights_.values()) == pytest.approx(1.0)
    assert one.nbytes_ > 0
    assert one.cov_.shape == (3, 3)
    assert not one.drift().detected
    assert np.isfinite(one.uncertainty(ROWS)).all()
    assert np.isfinite(one.health_.largest_variance)


@pytest.mark.parametrize("forgetting", ["mixture", 0.97])
@pytest.mark.parametrize("order", [2, 3, (1, 2)])
@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
def test_saved_copied_and_pickled_models_go_on_bit_for_bit(
    kind: Any, order: Any, forgetting: Any, tmp_path: Path
) -> None:
    if forgetting == 0.97 and isinstance(order, tuple):
        return
    targets = LABELS if kind is KalmanClassifier else VALUES
    model = kind(forgetting, n_components=5, order=order, random_state=0)
    model.partial_fit(ROWS, targets)
    for n_more in (0, 3, 40):  # after a chunk nothing is pending, after single rows they are
        for i in range(n_more):
            model.partial_fit(ROWS[i : i + 1], targets[i : i + 1])
        model.save(tmp_path / "model")
        again = kind.load(tmp_path / "model")
        again.save(tmp_path / "again")
        assert (tmp_path / "model").read_bytes() == (tmp_path / "again").read_bytes()
        copies = [again, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.snapshot()]
        continued = model.snapshot()
        for each in [continued, *copies]:
            for i in range(20):
                each.partial_fit(ROWS[i : i + 1], targets[i : i + 1])
            each.partial_fit(ROWS, targets)
        continued.save(tmp_path / "continued")
        for each in copies:
            each.save(tmp_path / "other")
            assert (tmp_path / "continued").read_bytes() == (tmp_path / "other").read_bytes()


def test_every_half_life_has_each_order() -> None:
    settings = KalmanRegressor(order=(1, 2))._settings
    policy = settings.policy
    assert isinstance(policy, Mixture)
    # A weight that never moves has no order: an infinite half-life comes once.
    assert policy.half_lives == (15.0, 1e2, 1e3, 1e4, 1e5) * 2 + (math.inf,)
    assert policy.orders == (1,) * 5 + (2,) * 5 + (1,)
    one = KalmanClassifier()._settings.policy
    both = KalmanClassifier(order=(1, 3))._settings.policy
    assert isinstance(one, Mixture)
    assert isinstance(both, Mixture)
    for name in ("half_lives", "likelihoods", "prior_scales", "orders"):
        before = [v for v, h in zip(getattr(one, name), one.half_lives, strict=True) if h < 1e9]
        after = list(getattr(both, name))
        assert after[: len(before)] == before
        if name != "orders":
            assert after[len(before) : 2 * len(before)] == before
    fixed = KalmanClassifier(0.9, order=2)._settings.policy
    assert fixed == Fixed(0.9, 1.0, "softmax", 2)


def test_a_parameter_like_others() -> None:
    model = clone(KalmanClassifier(order=(1, 2)))
    assert model.order == (1, 2)
    model.set_params(features="raw").partial_fit(ROWS, LABELS)
    for change in (1, 2, (2, 1)):
        with pytest.raises(InvalidInput, match="start again"):
            clone(model).set_params(order=(1, 2)).partial_fit(ROWS, LABELS).set_params(
                order=change
            ).predict(ROWS)
    with pytest.raises(InvalidInput, match=r"or order was changed after .*reset"):
        KalmanClassifier(0.9, "raw").partial_fit(ROWS, LABELS).set_params(order=2).predict(ROWS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 0}, "order must be 1, 2 or 3"),
        ({"order": "2"}, "order must be 1, 2 or 3"),
        ({"order": 1.5}, "order must be 1, 2 or 3"),
        ({"order": True}, "order must be 1, 2 or 3"),
        ({"order": ()}, "each once"),
        ({"order": (1, 1)}, "each once"),
        ({"order": (1, 4)}, "order must be 1, 2 or 3"),
        ({"order": 2, "forgetting": "learned"}, "or order=1"),
        ({"order": (1, 2), "forgetting": 0.9}, 'forgetting="mixture"'),
        ({"order": 2, "forgetting": 0.0}, "gamma above 0"),
        ({"order": 2, "forgetting": Fixed(0.9)}, r"give the order to Fixed\(...\)"),
        ({"order": (1, 2), "forgetting": Mixture()}, r"give the order to Mixture\(...\)"),
    ],
)
@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
def test_errors_name_the_remedy(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        kind(features="raw", noise_var=0.1, **options).partial_fit(ROWS, LABELS)


def test_a_policy_brings_its_own_order() -> None:
    for policy in (Mixture((30.0, 30.0), order=(1, 2)), Fixed(0.99, order=3)):
        model = KalmanRegressor(policy, "raw", noise_var=0.1).partial_fit(ROWS, VALUES)
        assert np.isfinite(model.predict(ROWS)).all()
        assert tuple(each.order for each in model.filters_) == policy.orders


def test_weights_that_turn_are_followed_better() -> None:
    rng = np.random.default_rng(1)
    n = 4000
    X = rng.standard_normal((n, 2))
    angle = 2.0 * np.pi * np.arange(n) / 1000
    y = X[:, 0] * np.cos(angle) + X[:, 1] * np.sin(angle) + 0.3 * rng.standard_normal(n)
    losses = {}
    for order in (1, 2, 3, (1, 2, 3)):
        model = KalmanRegressor(features="raw", order=order)
        mean, std = model.predict_then_learn(X, y)
        z = (y - mean)[1000:] / std[1000:]
        losses[order] = np.mean(0.5 * z**2 + np.log(std[1000:]))
    assert losses[2] < losses[1] - 0.02
    assert losses[3] < losses[1] - 0.02
    assert losses[1, 2, 3] < losses[1] - 0.02
