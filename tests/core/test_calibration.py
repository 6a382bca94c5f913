"""Alpha stays bounded, converges to the true factor, and stays fixed if it is not learned."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream.core import Calibration, Fixed, Learned, label_log_prob
from kalstream.core.calibration import BOUND
from kalstream.errors import InvalidInput
from strategies import decades

calibrations = st.builds(
    Calibration,
    init=decades(1e-3, 1e3),
    spread=decades(1e-2, 10.0),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 0.9999, 1.0]),
)
# any size, and often near 1 / spread, where the step is largest
gradients = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-10.0, 10.0)


@given(
    calibrations,
    st.lists(st.tuples(gradients, st.sampled_from([0.0, 0.3, 1.0, 1e6])), min_size=1, max_size=50),
)
def test_alpha_stays_bounded_for_any_gradient(calibration, examples):
    alpha = calibration.start()
    centre = math.log(calibration.init)
    for gradient, weight in examples:
        forgotten = centre + calibration.gamma * (alpha.log_mean - centre)
        alpha = calibration.learn(alpha, gradient, weight)
        assert math.isfinite(alpha.log_mean)
        assert 0.0 <= alpha.log_var <= calibration.spread**2 * (1.0 + 1e-12)
        assert abs(alpha.log_mean - centre) <= BOUND * calibration.spread * (1.0 + 1e-12)
        # v g / (1 + v g^2) is at most sqrt(v) / 2; a weight only scales the gradient
        step = abs(alpha.log_mean - forgotten)
        assert step <= 0.5 * calibration.spread * max(1.0, math.sqrt(weight)) * (1.0 + 1e-9)


@given(calibrations, st.sampled_from([-1.0, 1.0]), decades(1e-3, 1e9))
def test_alpha_stays_bounded_for_a_constant_gradient(calibration, sign, size):
    alpha = calibration.start()
    for _ in range(300):
        alpha = calibration.learn(alpha, sign * size)
    reach = abs(alpha.log_mean - math.log(calibration.init))
    assert reach <= BOUND * calibration.spread * (1.0 + 1e-12)


@given(calibrations)
def test_alpha_follows_the_gradient(calibration):
    up = calibration.learn(calibration.start(), 0.5)
    down = calibration.learn(calibration.start(), -0.5)
    assert down.value < calibration.init < up.value
    assert calibration.learn(calibration.start(), 0.5, weight=0.0).value == pytest.approx(
        calibration.init
    )


@pytest.mark.parametrize("true", [0.3, 1.0, 3.0, 10.0])
def test_alpha_finds_the_true_factor(true):
    rng = np.random.default_rng(4)
    calibration = Calibration(gamma=1.0)
    alpha = calibration.start()
    for _ in range(4000):
        mean, var = rng.standard_normal(4), 0.01
        logits = true * (mean + math.sqrt(var) * rng.standard_normal(4))
        label = int(np.argmax(logits + rng.gumbel(size=4)))
        terms = label_log_prob(mean, var, label, calibration=alpha.value)
        alpha = calibration.learn(alpha, alpha.value * float(terms.d_calibration))
    assert alpha.value == pytest.approx(true, rel=0.15)


@settings(max_examples=20)
@given(st.sampled_from([0.5, 1.0, 7.0]), st.integers(0, 1000))
def test_fixed_alpha_stays(value, seed):
    rng = np.random.default_rng(seed)
    features, labels = rng.standard_normal((100, 2)), rng.integers(0, 3, 100)
    for policy in (Fixed(0.9, value), Learned(0.9, 0.1, Calibration.fixed(value))):
        state = policy.start(2, 3, prior_var=1.0)
        state, seen = policy.step_chunk(state, features, labels, noise_var=0.3, prior_var=1.0)
        assert state.calibration == pytest.approx(value, rel=1e-15)
        assert (seen.calibration == state.calibration).all()


@pytest.mark.parametrize("policy", [Fixed(1.0, Calibration()), Learned(0.99, 0.1, Calibration())])
def test_separable_stream_keeps_alpha_bounded(policy):
    # Without noise, the likelihood of alpha has no maximum, and alpha always grows.
    rng = np.random.default_rng(6)
    n = 5000
    features = np.c_[rng.standard_normal((n, 1)), np.ones(n)]
    labels = (features[:, 0] > 0.0).astype(int)
    state = policy.start(2, 2, prior_var=0.5)
    state, seen = policy.step_chunk(state, features, labels, noise_var=0.5, prior_var=0.5)
    bound = math.exp(BOUND * Calibration().spread)
    assert np.isfinite(seen.calibration).all()
    assert 1.0 / bound <= seen.calibration.min()
    assert 2.0 < seen.calibration.max() <= bound
    log_prob = label_log_prob(
        seen.logit_mean, seen.logit_var, labels, calibration=seen.calibration
    ).log_prob
    plain = label_log_prob(seen.logit_mean, seen.logit_var, labels).log_prob
    assert np.isfinite(log_prob).all()
    assert log_prob[1000:].mean() > plain[1000:].mean() + 0.05


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("init", 0.0),
        ("init", -1.0),
        ("init", math.nan),
        ("init", math.inf),
        ("spread", -1.0),
        ("spread", math.inf),
        ("gamma", 1.1),
        ("gamma", -0.1),
        ("gamma", math.nan),
    ],
)
def test_bad_settings_are_named(argument, value):
    with pytest.raises(InvalidInput, match=argument):
        Calibration(**{argument: value})
