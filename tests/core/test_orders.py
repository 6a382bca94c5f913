"""Policies whose filters have orders above 1: `Fixed` and `Mixture`."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream.core import Calibration, Fixed, Learned, Mixture, gamma_of, half_life
from kalstream.core.bank import Bank
from kalstream.core.likelihoods import LIKELIHOODS
from kalstream.core.motion import MotionBank
from kalstream.core.motion_reference import moved, predict_moving, rate_of
from kalstream.errors import DonatedState, InvalidInput, NumericalError
from oracles import assert_close, assert_same_posterior, mixture, moving
from strategies import Stream, streams

HALF_LIVES = (5.0, 80.0, 1e4, math.inf)
ORDERS = (1, 2, 3)


def advanced(policy, state, stream, cuts=()):
    """The state after a stream that is cut before some rows, and the step of each part."""
    steps = []
    for part in stream.chunks(cuts):
        state, step = policy.step_chunk(state, part.features, part.targets, **part.settings)
        steps.append(step)
    return state, steps


def started(policy, stream, n_outputs=None):
    m, prior_var = stream.features.shape[1], stream.settings["prior_var"]
    return policy.start(
        m, stream.n_outputs if n_outputs is None else n_outputs, prior_var=prior_var
    )


@st.composite
def mixtures(draw, max_rows=40):
    """A stream, and a mixture of which at least one filter has an order above 1."""
    stream = draw(streams(max_rows=max_rows, keep_mean=False))
    n = draw(st.integers(1, 5))
    several = lambda values: [draw(st.sampled_from(values)) for _ in range(n)]  # noqa: E731
    policy = Mixture(
        half_lives=several(HALF_LIVES),
        order=[draw(st.sampled_from((2, 3))), *several(ORDERS)][:n],
        likelihood=several(tuple(LIKELIHOODS)),
        prior_scale=several((0.5, 1.0)),
        calibrations=(1.0, 2.0),
        share=draw(st.sampled_from((0.0, 0.01))),
    )
    return stream, policy


def filters_of(policy, stream):
    """Each filter by itself, by the plain filter of its order."""
    every = zip(
        policy.half_lives, policy.orders, policy.likelihoods, policy.prior_scales, strict=True
    )
    for life, order, likelihood, scale in every:
        state, means, variances = moving(
            stream,
            order=order,
            half_life=life,
            prior_var=scale * stream.settings["prior_var"],
            likelihood=likelihood,
        )
        yield SimpleNamespace(state=state, logit_mean=means, logit_var=variances)


@settings(max_examples=40)
@given(mixtures(), st.data())
def test_a_mixture_of_orders_is_bayes_rule_over_plain_filters(problem, data):
    stream, policy = problem
    cuts = data.draw(st.lists(st.integers(0, 40), max_size=6))
    state, steps = advanced(policy, started(policy, stream), stream, cuts)
    filters = list(filters_of(policy, stream))
    means = np.concatenate([step.logit_mean for step in steps], axis=1)
    variances = np.concatenate([step.logit_var for step in steps], axis=1)
    for j, plain in enumerate(filters):
        assert_close(means[j], plain.logit_mean, 1e-8)
        assert_close(variances[j], plain.logit_var, 1e-8)
        assert_close(state.posteriors[j].mean, plain.state.weight_mean, 1e-8)
        assert_close(state.posteriors[j].cov, plain.state.weight_cov, 1e-8)
    options = {k: v for k, v in stream.settings.items() if k in ("sample_weight", "time_gap")}
    weights, log_probs, last = mixture(
        filters,
        stream.targets,
        calibrations=(1.0, 2.0),
        share=policy.share,
        noise_var=stream.settings["noise_var"],
        labels=stream.labels,
        **options,
    )
    np.testing.assert_allclose(np.concatenate([s.weights for s in steps]), weights, atol=1e-5)
    log_prob = np.concatenate([s.log_prob for s in steps])
    np.testing.assert_allclose(log_prob, log_probs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state.weights, last, atol=1e-5)


@settings(max_examples=25)
@given(mixtures(30), st.floats(0.0, 50.0))
def test_predictions_several_steps_ahead(problem, gap):
    stream, policy = problem
    state, _ = advanced(policy, started(policy, stream), stream)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((5, stream.features.shape[1]))
    prior_var = stream.settings["prior_var"]
    ahead = policy.predict(state, features, prior_var=prior_var, time_gap=gap)
    for j, plain in enumerate(filters_of(policy, stream)):
        rate = rate_of(policy.orders[j], policy.half_lives[j])
        later = moved(plain.state, tau=rate * gap, prior_var=policy.prior_scales[j] * prior_var)
        for i, phi in enumerate(features):
            mean, var = predict_moving(later, phi)
            assert_close(ahead.logit_mean[j, i], mean, 1e-8, 1e-10)
            assert_close(ahead.logit_var[j, [i]], [var], 1e-8)
    kept = (1.0 - policy.share) ** gap
    expected = kept * state.weights + (1.0 - kept) / state.weights.size
    np.testing.assert_allclose(ahead.weights, np.repeat(expected[None], 5, axis=0))


def example(n=60, m=4, k=3, labels=True, **options):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, k, n) if labels else rng.standard_normal((n, k))
    settings = {"noise_var": 0.3, "prior_var": 0.5, **options}
    return Stream(rng.standard_normal((n, m)), targets, k, np.ones(n), settings)


MIXED = Mixture((10.0, 1e3, math.inf, 300.0), order=(2, 1, 1, 3), likelihood="softmax")


def test_the_report_of_a_row_is_its_prediction():
    stream, state = example(), started(MIXED, example())
    for i in range(60):
        ahead = MIXED.predict(state, stream.features[i : i + 1], prior_var=0.5)
        state, (step,) = advanced(MIXED, state, stream[i : i + 1])
        assert_close(ahead.logit_mean, step.logit_mean)
        assert_close(ahead.logit_var, step.logit_var)
        np.testing.assert_allclose(ahead.weights, step.weights)
        assert np.array_equal(ahead.bank.gamma, step.bank.gamma)


def test_many_rows_are_predicted_as_each_by_itself():
    stream = example()
    state, _ = advanced(MIXED, started(MIXED, stream), stream)
    features = np.random.default_rng(1).standard_normal((600, 4))
    gap = np.linspace(0.0, 20.0, 600)
    ahead = MIXED.predict(state, features, prior_var=0.5, time_gap=gap)
    for i in (0, 255, 256, 599):
        one = MIXED.predict(state, features[i : i + 1], prior_var=0.5, time_gap=gap[i])
        assert_close(ahead.logit_mean[:, [i]], one.logit_mean)
        np.testing.assert_allclose(ahead.weights[[i]], one.weights)


@pytest.mark.parametrize("policy", [MIXED, Fixed(0.97, order=2), Fixed(0.97, order=3)])
@pytest.mark.parametrize("labels", [True, False])
def test_a_chunk_that_forgets_once_has_gaps_of_zero(policy, labels):
    stream = example(20, labels=labels)
    once = Stream(stream.features, stream.targets, 3, stream.gamma, {**stream.settings})
    once.settings["transition"] = "chunk"
    gaps = {**stream.settings, "time_gap": np.append(np.zeros(19), 1.0)}
    by_hand = Stream(stream.features, stream.targets, 3, stream.gamma, gaps)
    one, _ = advanced(policy, started(policy, stream), once)
    other, _ = advanced(policy, started(policy, stream), by_hand)
    for left, right in zip(one.posteriors, other.posteriors, strict=True):
        assert_same_posterior(left, right)


@settings(max_examples=25)
@given(
    streams(max_rows=40, keep_mean=False),
    st.sampled_from((2, 3)),
    st.sampled_from((1.0, 0.999, 0.9)),
    st.sampled_from(tuple(LIKELIHOODS)),
)
def test_a_fixed_gamma_is_the_plain_filter(stream, order, gamma, likelihood):
    policy = Fixed(gamma, 2.0, likelihood, order)
    state, steps = advanced(policy, started(policy, stream), stream, [7])
    plain, means, variances = moving(
        stream,
        order=order,
        half_life=half_life(gamma),
        prior_var=stream.settings["prior_var"],
        likelihood=likelihood,
    )
    assert_close(np.concatenate([step.logit_mean for step in steps]), means, 1e-8)
    assert_close(np.concatenate([step.logit_var for step in steps]), variances, 1e-8)
    assert_close(state.posterior.mean, plain.weight_mean, 1e-8)
    assert state.calibration == 2.0
    np.testing.assert_allclose(state.gamma, gamma)
    features = np.ones((1, stream.features.shape[1]))
    ahead = policy.predict(state, features, prior_var=stream.settings["prior_var"], time_gap=3.0)
    later = moved(
        plain, tau=3.0 * rate_of(order, half_life(gamma)), prior_var=stream.settings["prior_var"]
    )
    mean, var = predict_moving(later, features[0])
    assert_close(ahead.logit_mean[0], mean, 1e-8, 1e-10)
    assert_close(ahead.logit_var, [var], 1e-8)


def test_calibration_is_learned_as_with_order_one():
    # With gamma = 1 weights do not move, and all orders are the same filter.
    stream, results = example(200), {}
    for order in ORDERS:
        policy = Fixed(1.0, Calibration(), order=order)
        state, steps = advanced(policy, started(policy, stream), stream, [90])
        alphas = np.concatenate([step.calibration for step in steps])
        results[order] = np.append(alphas, [state.alpha.log_mean, state.alpha.log_var])
    assert len(set(results[1].tolist())) > 100
    for order in (2, 3):
        np.testing.assert_allclose(results[order], results[1], rtol=1e-8)


@pytest.mark.parametrize("policy", [MIXED, Fixed(0.99, order=2)])
def test_outputs_and_features_that_come_late(policy):
    stream = example(40)
    late = stream.targets.copy()
    late[:20] %= 2
    wide = np.pad(stream.features, ((0, 0), (0, 1)))
    wide[20:, -1] = 1.0
    whole = Stream(wide, late, 3, stream.gamma, stream.settings)
    expected, _ = advanced(policy, policy.start(5, 3, prior_var=0.5), whole)
    first = Stream(stream.features[:20], late[:20], 2, stream.gamma[:20], stream.settings)
    state, _ = advanced(policy, started(policy, first), first)
    state = state.add_outputs(1).add_features(1, 0.5)
    state, _ = advanced(policy, state, whole[20:])
    assert state.nbytes > 0
    assert state.n_features == 5
    kept = state.keep_outputs(np.array([2, 0]))
    for j, posterior in enumerate(expected.posteriors):
        assert_same_posterior(state.posteriors[j], posterior)
        assert_close(kept.posteriors[j].mean, posterior.mean[:, [2, 0]])
    np.testing.assert_array_equal(kept.seen, [True, True])


def test_filters_are_in_the_order_of_the_half_lives():
    state = started(MIXED, example())
    assert state.orders == MIXED.orders == (2, 1, 1, 3)
    kinds = [type(bank) for bank in state.bank.banks]
    assert kinds == [Bank, MotionBank, MotionBank]
    assert [bank.half_lives for bank in state.bank.banks[1:]] == [(10.0,), (300.0,)]
    plain = Mixture((10.0, 1e3), order=(1, 1))
    assert isinstance(started(plain, example()).bank, Bank)


@pytest.mark.parametrize("policy", [MIXED, Fixed(0.99, order=3)])
@pytest.mark.parametrize("size", [1, 5, 70])
def test_donate_gives_the_same_numbers(policy, size):
    stream = example(10 + size)
    state, _ = advanced(policy, started(policy, stream), stream[:10], range(10))
    expected, (step,) = advanced(policy, copy.deepcopy(state), stream[10:])
    part = stream[10:]
    after, seen = policy.step_chunk(
        state, part.features, part.targets, donate=True, **part.settings
    )
    assert seen.logit_mean.tobytes() == step.logit_mean.tobytes()
    for left, right in zip(after.posteriors, expected.posteriors, strict=True):
        assert_same_posterior(left, right)
    with pytest.raises(DonatedState):
        advanced(policy, state, part)


def test_a_failure_leaves_all_banks_as_they_were():
    policy = Mixture((10.0, 1e3), order=(1, 2))
    state = policy.start(2, 1, prior_var=1e8, dtype=np.float32)
    before = copy.deepcopy(state)
    rows = np.ones((3, 2)), np.ones((3, 1))
    with pytest.raises(NumericalError):
        policy.step_chunk(state, *rows, noise_var=1e-3, prior_var=1e8, donate=True)
    for left, right in zip(state.posteriors, before.posteriors, strict=True):
        assert_same_posterior(left, right)


def test_the_unknown_scale_is_learned_by_every_order():
    stream = example(400, k=1, labels=False)
    targets = 10.0 * stream.targets
    policy = Mixture((1e3, 1e3, 1e3), order=(1, 2, 3), learn_scale=True)
    state = started(policy, stream)
    state, step = policy.step_chunk(state, stream.features, targets, noise_var=1.0, prior_var=1.0)
    assert np.all(np.abs(policy.scale(state) / 100.0 - 1.0) < 0.3)
    assert np.isfinite(step.target_variance(1.0)[1:]).all()


def test_the_alarm_watches_filters_of_every_order():
    policy = Mixture((10.0, 1e3, 10.0), order=(1, 1, 2))
    _, (step,) = advanced(policy, started(policy, example()), example())
    belief, variance = policy.belief(step, None, "example", policy.first_belief())
    assert policy.watched.tolist() == [10.0, 10.0, 1e3]
    assert belief.shape == variance.shape == (60, 3)
    np.testing.assert_allclose(belief, step.half_life_weights[:, [0, 2, 1]])
    fixed = Fixed(0.9, order=2)
    _, (step,) = advanced(fixed, started(fixed, example()), example())
    assert fixed.belief(step, None, "example", fixed.first_belief())[0].sum() == 60.0


def test_errors_name_the_remedy():
    stream = example()
    kept = {**stream.settings, "keep_mean": True}
    for policy in (MIXED, Fixed(0.9, order=2)):
        state = started(policy, stream)
        with pytest.raises(InvalidInput, match="order=1"):
            policy.step_chunk(state, stream.features, stream.targets, **kept)
        with pytest.raises(InvalidInput, match="order=1"):
            policy.predict(state, stream.features, prior_var=0.5, keep_mean=True)
    with pytest.raises(InvalidInput, match="one for each half-life"):
        Mixture((10.0, 20.0), order=(1, 2, 3))
    with pytest.raises(InvalidInput, match="1, 2 or 3"):
        Mixture(order=4)
    with pytest.raises(InvalidInput, match="1, 2 or 3"):
        Fixed(0.9, order=0)
    with pytest.raises(InvalidInput, match="order=1"):
        Fixed(0.0, order=2)
    with pytest.raises(InvalidInput, match="start again"):
        Mixture((10.0, 1e3), order=2).check_state(started(Mixture((10.0, 1e3)), stream))
    with pytest.raises(InvalidInput, match="start again"):
        Fixed(0.9, order=2).check_state(started(Fixed(0.8, order=2), stream))
    with pytest.raises(InvalidInput, match="start again"):
        Fixed(0.9, order=2).check_state(started(Fixed(0.9, order=3), stream))
    for policy in (Fixed(0.9), Learned()):
        with pytest.raises(InvalidInput, match="FilterState"):
            policy.check_state(started(Fixed(0.9, order=2), stream))


def test_a_gamma_is_that_of_its_half_life():
    state = started(Fixed(0.5, order=2), example())
    assert (state.half_life, state.gamma, state.gammas) == (1.0, 0.5, (0.5,))
    assert gamma_of(state.half_life) == 0.5
