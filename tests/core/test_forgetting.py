"""Policies against loops over rows, and on the time series of the paper's figure 1."""

import copy
import math
import pickle
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from kalstream.core import (
    Calibration,
    Fixed,
    Learned,
    Mixture,
    class_probabilities,
    gamma_of,
    gaussian_log_density,
    half_life,
    mixture_log_density,
    mixture_probabilities,
)
from kalstream.errors import KalstreamError, NumericalError
from oracles import assert_close, assert_same_posterior
from strategies import decades, streams

# A gradient is accurate to about 1e-7. A learning rate and a long gap multiply this error.
LOOSE = 1e-7


@st.composite
def one_filter_policies(draw):
    """Fixed or Learned, with alpha fixed or learned."""
    calibration = draw(
        st.sampled_from([1.0, 3.0, Calibration(), Calibration(2.0, spread=0.5, gamma=0.9)])
    )
    if draw(st.booleans()):
        return Fixed(draw(st.sampled_from([0.0, 0.5, 0.99, 1.0])), calibration)
    return Learned(
        draw(st.sampled_from([0.5, 0.99, 1.0])),
        draw(decades(1e-3, 0.5)),
        calibration,
        calibrated=draw(st.booleans()),
    )


def started(policy, stream):
    return policy.start(
        stream.features.shape[1], stream.n_outputs, prior_var=stream.settings["prior_var"]
    )


def cut(policy, stream, cuts):
    """Step over the stream, cut before the given rows; return the joined steps by name."""
    state, steps = started(policy, stream), []
    for part in stream.chunks(cuts):
        state, seen = policy.step_chunk(state, part.features, part.targets, **part.settings)
        steps.append(seen)
    mixed = isinstance(policy, Mixture)
    axes = {"logit_mean": int(mixed), "logit_var": int(mixed), "gamma": 0, "half_life": 0}
    axes |= {"weights": 0, "log_prob": 0} if mixed else {"calibration": 0}
    joined = {k: np.concatenate([getattr(s, k) for s in steps], axis) for k, axis in axes.items()}
    return state, joined


def loop(policy, stream):
    calibration = policy.calibration
    if not isinstance(calibration, Calibration):
        calibration = Calibration.fixed(calibration)
    return oracles.learned(
        stream.prior,
        stream.features,
        stream.targets,
        delta=started(policy, stream).delta,
        lr=getattr(policy, "lr", 0.0),
        calibration=calibration,
        calibrated=getattr(policy, "calibrated", True),
        labels=stream.labels,
        **stream.settings,
    )


cuts = st.lists(st.integers(0, 150), max_size=6)


@settings(max_examples=80)
@given(one_filter_policies(), streams(max_rows=40), cuts)
def test_one_filter_equals_its_loop(policy, stream, cuts):
    expected = loop(policy, stream)
    state, seen = cut(policy, stream, cuts)
    assert state.delta == pytest.approx(expected.delta, rel=LOOSE, abs=LOOSE)
    assert state.alpha.log_mean == pytest.approx(expected.alpha.log_mean, rel=LOOSE, abs=LOOSE)
    assert state.alpha.log_var == pytest.approx(expected.alpha.log_var, rel=LOOSE)
    if stream.labels:
        assert np.array_equal(state.seen, expected.seen)
    assert_close(seen["gamma"], expected.gamma, LOOSE)
    assert_close(seen["calibration"], expected.calibration, LOOSE)
    assert_close(seen["logit_mean"], expected.logit_mean, LOOSE, atol=1e-9)
    assert_close(seen["logit_var"], expected.logit_var, LOOSE)
    assert_close(state.posterior.mean, expected.posterior.mean, LOOSE, atol=1e-9)
    assert_close(state.posterior.cov, expected.posterior.cov, LOOSE)


@settings(max_examples=30)
@given(one_filter_policies(), streams(max_rows=150), cuts)
def test_one_filter_does_not_depend_on_cuts(policy, stream, cuts):
    one, other = cut(policy, stream, cuts), cut(policy, stream, [])
    assert one[0].delta == pytest.approx(other[0].delta, rel=1e-8, abs=1e-9)
    assert one[0].calibration == pytest.approx(other[0].calibration, rel=1e-8)
    assert_same_posterior(one[0].posterior, other[0].posterior, rtol=1e-8)
    for name, value in other[1].items():
        if name != "half_life":
            assert_close(one[1][name], value, rtol=1e-8, atol=1e-12)


mixtures = st.builds(
    Mixture,
    half_lives=st.sampled_from([(2.0, 50.0, math.inf), (math.inf,), (0.1, 10.0)]),
    share=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    calibrations=st.sampled_from([(1.0,), (0.5, 2.0, 8.0)]),
)


@settings(max_examples=50)
@given(mixtures, streams(max_rows=30), cuts)
def test_mixture_equals_its_loop(policy, stream, cuts):
    options = stream.settings
    filters = oracles.mixture_filters(
        policy.half_lives, stream.prior, stream.features, stream.targets, **options
    )
    per_row = {k: options[k] for k in ("sample_weight", "time_gap") if k in options}
    before, log_prob, after = oracles.mixture(
        filters,
        stream.targets,
        calibrations=policy.calibrations,
        share=policy.share,
        noise_var=options["noise_var"],
        labels=stream.labels,
        **per_row,
    )
    state, seen = cut(policy, stream, cuts)
    assert_close(seen["weights"], before, rtol=1e-8)
    assert_close(state.weights, after, rtol=1e-8)
    np.testing.assert_allclose(seen["log_prob"], log_prob, rtol=1e-8, atol=1e-9)
    for posterior, expected in zip(state.posteriors, filters, strict=True):
        assert_same_posterior(posterior, expected.posterior)
    assert_close(seen["logit_mean"], np.stack([f.logit_mean for f in filters]))
    assert_close(seen["logit_var"], np.stack([f.logit_var for f in filters]))


@settings(max_examples=25)
@given(mixtures, streams(max_rows=150), cuts)
def test_a_mixture_does_not_depend_on_cuts(policy, stream, cuts):
    one, other = cut(policy, stream, cuts), cut(policy, stream, [])
    assert_close(one[0].weights, other[0].weights, rtol=1e-8)
    assert np.array_equal(one[0].seen, other[0].seen)
    for mine, theirs in zip(one[0].posteriors, other[0].posteriors, strict=True):
        assert_same_posterior(mine, theirs)
    for name in ("weights", "logit_mean", "logit_var"):
        assert_close(one[1][name], other[1][name], rtol=1e-8)


@pytest.mark.parametrize("n_features", [3, 17, 130, 320, 321])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_bank_equals_its_single_filters(n_features, dtype):
    """Compiled or with BLAS, row by row or in chunks, with or without a prediction before."""
    rng = np.random.default_rng(n_features)
    features = rng.standard_normal((60, n_features)) / n_features**0.5
    labels = rng.integers(0, 3, 60)
    options, mixed = {"noise_var": 0.3, "prior_var": 1.0}, Mixture(half_lives=(5.0, float("inf")))
    state = mixed.start(n_features, 3, prior_var=1.0, dtype=dtype)
    alone = [Fixed(gamma_of(h)) for h in mixed.half_lives]
    states = [p.start(n_features, 3, prior_var=1.0, dtype=dtype) for p in alone]
    start, rtol = 0, 1e-9 if dtype == np.float64 else 2e-3
    for size in (1, 1, 2, 1, 7, 1, 1, 20, 3, 1, 4, *[1] * 18):
        part = slice(start, start + size)
        start += size
        if start % 3:
            ahead = mixed.predict(state, features[part], prior_var=1.0)
        state, step = mixed.step_chunk(state, features[part], labels[part], **options)
        if start % 3:
            assert_close(ahead.logit_mean[:, 0], step.logit_mean[:, 0], rtol=rtol)
        for j, policy in enumerate(alone):
            states[j], one = policy.step_chunk(states[j], features[part], labels[part], **options)
            assert_close(step.logit_mean[j], one.logit_mean, rtol=rtol)
            assert_close(step.logit_var[j], one.logit_var, rtol=rtol)
    assert start == 60
    for mine, theirs in zip(state.posteriors, states, strict=True):
        assert_close(mine.cov, theirs.posterior.cov, rtol=rtol)


def test_a_mixture_of_one_filter_equals_the_filter():
    rng = np.random.default_rng(0)
    features, targets = rng.standard_normal((50, 2)), rng.standard_normal((50, 1))
    options = {"noise_var": 0.5, "prior_var": 1.0}
    mixed, fixed = Mixture(half_lives=(7.0,)), Fixed(gamma_of(7.0))
    one, _ = mixed.step_chunk(mixed.start(2, 1, prior_var=1.0), features, targets, **options)
    other, _ = fixed.step_chunk(fixed.start(2, 1, prior_var=1.0), features, targets, **options)
    assert_same_posterior(one.posteriors[0], other.posterior, rtol=1e-13)
    assert one.gamma == pytest.approx(other.gamma)


@settings(max_examples=30)
@given(one_filter_policies() | mixtures, streams(max_rows=30), st.sampled_from([0.0, 1.0, 40.0]))
def test_predict_equals_the_next_step(policy, stream, gap):
    state, _ = cut(policy, stream, [])
    options = {k: stream.settings[k] for k in ("prior_var", "keep_mean")}
    phi, target = stream.features[:1], stream.targets[:1]
    ahead = policy.predict(state, phi, time_gap=gap, **options)
    _, seen = policy.step_chunk(
        state, phi, target, noise_var=stream.settings["noise_var"], time_gap=gap, **options
    )
    assert_close(ahead.logit_mean, seen.logit_mean, atol=1e-12)
    # a variance may be a small difference of large numbers
    prior = stream.settings["prior_var"] * np.square(phi).sum()
    assert_close(ahead.logit_var, seen.logit_var, atol=1e-14 + 1e-13 * prior)
    if isinstance(policy, Mixture):
        assert_close(ahead.weights, seen.weights)
        assert ahead.half_life[0] == pytest.approx(seen.half_life[0])
    else:
        assert ahead.calibration[0] == seen.calibration[0]


def test_class_probabilities_agree_with_the_moments():
    rng = np.random.default_rng(1)
    features, labels = rng.standard_normal((80, 3)), rng.integers(0, 4, 80)
    options = {"noise_var": 0.25, "prior_var": 1.0}
    one = Learned(0.9, calibration=Calibration())
    state, _ = one.step_chunk(one.start(3, 4, prior_var=1.0), features, labels, **options)
    ahead = one.predict(state, features[:5], prior_var=1.0)
    expected = class_probabilities(ahead.logit_mean, ahead.logit_var, calibration=state.calibration)
    assert_close(one.class_probabilities(state, features[:5], prior_var=1.0), expected)

    mixed = Mixture(half_lives=(5.0, 50.0), calibrations=(1.0, 5.0))
    state, seen = mixed.step_chunk(mixed.start(3, 4, prior_var=1.0), features, labels, **options)
    actual = mixed.class_probabilities(state, features[:5], prior_var=1.0)
    ahead = mixed.predict(state, features[:5], prior_var=1.0)
    expected = sum(
        ahead.weights[:, j, c, None]
        * class_probabilities(ahead.logit_mean[j], ahead.logit_var[j], calibration=alpha)
        for j in range(2)
        for c, alpha in enumerate(mixed.calibrations)
    )
    assert_close(actual, expected, rtol=1e-9)
    # when all classes are known, log_prob is the log of the label's probability
    of_label = mixture_probabilities(seen)[np.arange(80), labels]
    np.testing.assert_allclose(seen.log_prob[40:], np.log(of_label[40:]), rtol=1e-6)


@given(decades(1e-2, 1e9))
def test_half_life_and_gamma_round_trip(value):
    assert half_life(gamma_of(value)) == pytest.approx(value, rel=1e-6)
    assert Fixed(gamma_of(value)).start(1, 1, prior_var=1.0).half_life == pytest.approx(
        value, rel=1e-6
    )


def test_half_life_at_the_ends():
    assert gamma_of(math.inf) == 1.0
    assert half_life(1.0) == math.inf
    assert half_life(0.0) == 0.0
    assert Fixed(1.0).start(1, 1, prior_var=1.0).half_life == math.inf
    assert Fixed(0.0).start(1, 1, prior_var=1.0).gamma == 0.0


@pytest.mark.parametrize(
    "policy", [Fixed(0.5), Learned(0.5, lr=1e-9), Mixture(half_lives=(1.0,))], ids=repr
)
def test_every_policy_reports_gamma_and_half_life(policy):
    state = policy.start(1, 1, prior_var=1.0)
    state, seen = policy.step_chunk(
        state, np.ones((3, 1)), np.ones(3), noise_var=1.0, prior_var=1.0
    )
    assert state.gamma == pytest.approx(0.5)
    assert state.half_life == pytest.approx(1.0)
    np.testing.assert_allclose(seen.gamma, 0.5)
    np.testing.assert_allclose(seen.half_life, 1.0)


# The paper's figure 1, appendix C.
LEVELS = (1.3, 1.0, 1.3, 0.95, 0.6, 0.25, 0.8, 0.5)
CHANGES = (451, 709, 958, 1547, 2147, 2769, 2957)
FIGURE_1 = {"noise_var": 0.05, "prior_var": 0.01, "keep_mean": True}


def figure_1(seed):
    lengths = np.diff((0, *CHANGES, 3058))
    noise = 0.1 * np.random.default_rng(seed).standard_normal((3058, 1))
    return np.ones((3058, 1)), np.repeat(LEVELS, lengths)[:, None] + noise


@cache
def on_figure_1(policy, seed):
    features, targets = figure_1(seed)
    state = policy.start(1, 1, prior_var=0.01)
    state, seen = policy.step_chunk(state, features, targets, **FIGURE_1)
    return targets[:, 0], seen


def mean_log_density(policy, seed):
    y, seen = on_figure_1(policy, seed)
    return gaussian_log_density(y, seen.logit_mean[:, 0], seen.logit_var + 0.05).mean()


@pytest.mark.parametrize("seed", range(5))
def test_figure_1_log_density(seed):
    assert mean_log_density(Learned(1.0, lr=1.0), seed) == pytest.approx(0.43, abs=0.03)
    assert mean_log_density(Fixed(1.0), seed) == pytest.approx(-0.91, abs=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_figure_1_gamma_drops_at_every_change(seed):
    _, seen = on_figure_1(Learned(1.0, lr=1.0), seed)
    for change in CHANGES:
        before, after = seen.gamma[change - 30 : change], seen.gamma[change : change + 30]
        assert after.min() < before.min() - 0.01, f"no drop at {change}"


@pytest.mark.parametrize("seed", range(3))
def test_figure_1_mixture_moves_after_every_change(seed):
    policy = Mixture(half_lives=(3.0, 30.0, 300.0, math.inf), share=0.01, calibrations=(1.0,))
    y, seen = on_figure_1(policy, seed)
    weights = seen.half_life_weights
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    for change in CHANGES:
        moved = np.abs(weights[change + 20] - weights[change - 1]).sum() / 2.0
        # The weights move to the shortest half-life. But at 2769 the series jumps to its overall
        # mean, which the filter without forgetting predicts best.
        to = 3 if change == 2769 else 0
        assert moved > 0.25, f"at {change}"
        assert weights[change + 20, to] > weights[change - 1, to] + 0.2, f"at {change}"
    before, after = seen.half_life[450], seen.half_life[471]
    assert after < before
    assert seen.gamma[471] < seen.gamma[450]
    densities = mixture_log_density(
        y, seen.logit_mean[..., 0], seen.logit_var + 0.05, np.log(seen.half_life_weights.T)
    )
    np.testing.assert_allclose(densities, seen.log_prob, rtol=1e-9)
    assert densities.mean() > mean_log_density(Fixed(1.0), seed) + 1.0


@pytest.mark.parametrize("n_rows", [1, 3, 40, 200])
def test_mixture_reuses_buffers_and_an_error_changes_nothing(n_rows):
    rng = np.random.default_rng(4)
    policy, options = (
        Mixture(half_lives=(5.0, 50.0, math.inf)),
        {"noise_var": 0.2, "prior_var": 1.0},
    )
    features, labels = rng.standard_normal((n_rows, 6)), rng.integers(0, 3, n_rows)
    kept = given_away = policy.start(6, 3, prior_var=1.0)
    for _ in range(3):
        before, kept = kept, policy.step_chunk(kept, features, labels, **options)[0]
        given_away, _ = policy.step_chunk(
            copy.deepcopy(before), features, labels, donate=True, **options
        )
        for ours, theirs in zip(given_away.posteriors, kept.posteriors, strict=True):
            assert ours.mean.tobytes() == theirs.mean.tobytes()
            assert ours.cov.tobytes() == theirs.cov.tobytes()
    snapshot = [p.cov.tobytes() for p in given_away.posteriors]
    overflowing = np.r_[features, np.full((1, 6), 1e9)]
    with pytest.raises(NumericalError):
        policy.step_chunk(given_away, overflowing, np.r_[labels, 0], donate=True, **options)
    assert [p.cov.tobytes() for p in given_away.posteriors] == snapshot
    policy.step_chunk(given_away, features, labels, donate=True, **options)
    with pytest.raises(KalstreamError, match="donate=True"):
        policy.step_chunk(given_away, features, labels, **options)


def test_a_policy_uses_its_own_settings_for_the_state_of_another():
    rng = np.random.default_rng(5)
    features, labels = rng.standard_normal((30, 3)), rng.integers(0, 2, 30)
    options = {"noise_var": 0.5, "prior_var": 1.0}
    learned = Learned(0.9, lr=0.5, calibration=Calibration())
    state, _ = learned.step_chunk(learned.start(3, 2, prior_var=1.0), features, labels, **options)
    assert state.gamma != 0.5
    after, seen = Fixed(0.5, 2.0).step_chunk(state, features, labels, **options)
    assert after.gamma == 0.5
    assert np.all(seen.gamma == 0.5)
    assert seen.calibration == pytest.approx(2.0)
    assert Fixed(0.5).predict(state, features, prior_var=1.0).gamma[0] == 0.5

    with pytest.raises(KalstreamError, match="half_lives"):
        Mixture([5.0, 6.0]).step_chunk(
            Mixture().start(3, 2, prior_var=1.0), features, labels, **options
        )
    with pytest.raises(KalstreamError, match="MixtureState"):
        Mixture().step_chunk(state, features, labels, **options)
    assert Mixture(np.array([5.0, 6.0])) == Mixture([5, 6])


def test_a_donated_state_cannot_be_saved():
    policy = Fixed(0.9)
    state = policy.start(2, 2, prior_var=1.0)
    policy.step_chunk(state, [[1.0, 0.0]], [0], noise_var=1.0, prior_var=1.0, donate=True)
    for save in (copy.deepcopy, pickle.dumps):
        with pytest.raises(KalstreamError, match="donate=True"):
            save(state)
