"""The plain recursion against closed forms, and properties that chunks share with it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from kalstream.core import (
    Calibration,
    Fixed,
    Learned,
    Mixture,
    Posterior,
    add_outputs,
    delta_gradient,
    drift,
    gaussian_log_density,
    init,
    label_log_prob,
    log_likelihood,
    predict,
    ridge_posterior,
    step,
    step_chunk,
    transition,
)
from oracles import assert_close, assert_same_posterior, joint_gaussian, textbook
from strategies import decades, streams

POLICIES = [
    Fixed(0.95),
    Fixed(0.95, calibration=Calibration()),
    Learned(0.99, lr=0.1, calibration=Calibration()),
    Learned(0.99, lr=0.1, calibrated=False, calibration=2.0),
    Mixture(half_lives=(3.0, float("inf")), calibrations=(1.0, 4.0)),
]


def dense_rows(stream):
    """Targets (n, K) and noise_var (n,); 0 and inf for rows without target."""
    weight = stream.settings.get("sample_weight", np.ones(len(stream)))
    if stream.labels:
        observed = stream.targets >= 0
        targets = np.eye(stream.n_outputs)[stream.targets] * observed[:, None]
    else:
        observed = ~np.isnan(stream.targets[:, 0])
        targets = np.nan_to_num(stream.targets)
    with np.errstate(divide="ignore"):
        noise = stream.settings["noise_var"] / weight
    return targets, np.where(observed, noise, np.inf)


@settings(max_examples=80)
@given(streams(max_rows=10, keep_mean=False))
def test_textbook_equals_joint_gaussian(stream):
    actual = textbook(
        stream.prior, stream.features, stream.targets, gamma=stream.gamma, **stream.settings
    )
    targets, noise = dense_rows(stream)
    gamma = stream.gamma ** stream.settings.get("time_gap", 1.0)
    mean, cov, logit_mean, logit_var = joint_gaussian(
        stream.features,
        targets,
        gamma=gamma,
        noise_var=noise,
        prior_var=stream.settings["prior_var"],
    )
    # the reference is less accurate than the recursion
    assert_close(actual.posterior.mean, mean, rtol=1e-8, atol=1e-10)
    assert_close(actual.posterior.cov, cov, rtol=1e-8)
    assert_close(actual.logit_mean, logit_mean, rtol=1e-8, atol=1e-10)
    assert_close(actual.logit_var, logit_var, rtol=1e-8)


@given(streams(labels=False, gammas=(1.0,)))
def test_gamma_1_equals_ridge_regression(stream):
    actual = textbook(
        stream.prior, stream.features, stream.targets, gamma=stream.gamma, **stream.settings
    )
    targets, noise = dense_rows(stream)
    seen = np.isfinite(noise)
    # a weight counts repetitions, so that the row is scaled by its root
    root = np.sqrt(stream.settings["noise_var"] / noise[seen])[:, None]
    ridge = ridge_posterior(
        root * stream.features[seen],
        root * targets[seen],
        noise_var=stream.settings["noise_var"],
        prior_var=stream.settings["prior_var"],
    )
    assert_close(actual.posterior.mean, ridge.mean, rtol=1e-8, atol=1e-10)
    assert_close(actual.posterior.cov, ridge.cov, rtol=1e-8)


@given(streams(gammas=(0.0,), keep_mean=False))
def test_gamma_0_predicts_from_the_prior(stream):
    per_row = {k: v for k, v in stream.settings.items() if k != "time_gap"}
    for filtered in (textbook, lambda *a, **k: step_chunk(*a, **k)[1]):
        actual = filtered(stream.prior, stream.features, stream.targets, gamma=0.0, **per_row)
        prior_var = stream.settings["prior_var"] * np.square(stream.features).sum(axis=1)
        assert_close(actual.logit_var, prior_var, rtol=1e-12)
        assert np.abs(actual.logit_mean).max() == 0.0


def test_gamma_0_resets_a_state():
    foreign = Posterior([[3.0], [4.0]], [[2.0, 0.5], [0.5, 1.0]])
    predicted = transition(foreign, gamma=0.0, prior_var=0.3)
    assert np.array_equal(predicted.mean, np.zeros((2, 1)))
    assert np.array_equal(predicted.cov, 0.3 * np.eye(2))


@given(streams())
def test_keeping_the_mean_changes_only_the_mean(stream):
    rows = stream.features, stream.targets
    kept = stream.settings | {"keep_mean": True}
    shrunk = stream.settings | {"keep_mean": False}
    one = textbook(stream.prior, *rows, gamma=stream.gamma, **kept)
    other = textbook(stream.prior, *rows, gamma=stream.gamma, **shrunk)
    assert np.array_equal(one.posterior.cov, other.posterior.cov)
    posterior = Posterior(np.ones((2, 1)), np.eye(2))
    predicted = transition(posterior, gamma=0.3, prior_var=1.0, keep_mean=True)
    assert np.array_equal(predicted.mean, posterior.mean)


def test_drift_moments_equal_those_of_transition():
    mean, var = drift([[2.0]], gamma=0.6, prior_var=5.0)
    predicted = transition(Posterior([[2.0]], [[0.0]]), gamma=0.6, prior_var=5.0)
    assert mean == predicted.mean
    assert predicted.cov[0, 0] == pytest.approx(var)
    assert var == pytest.approx((1 - 0.36) * 5.0)


def test_log_likelihood_is_gaussian():
    weights, phi = np.array([[1.0, -1.0], [0.5, 2.0]]), np.array([2.0, 3.0])
    actual = log_likelihood(weights, phi, [1.0, 2.0], noise_var=0.7)
    assert actual == pytest.approx(
        multivariate_normal(phi @ weights, 0.7 * np.eye(2)).logpdf([1.0, 2.0])
    )
    one_hot = log_likelihood(weights, phi, [0.0, 1.0], noise_var=0.7)
    assert log_likelihood(weights, phi, 1, noise_var=0.7) == pytest.approx(one_hot)


@given(
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.integers(2, 5),
    decades(1e-2, 5.0),
    decades(1e-2, 1e2),
    decades(1e-2, 1e1),
    decades(1e-1, 1e1),
    st.booleans(),
    st.booleans(),
)
def test_delta_gradient(seed, m, k, delta, noise_var, prior_var, calibration, keep_mean, label):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((m, m))
    posterior = Posterior(rng.standard_normal((m, k)), root @ root.T / m)
    phi = rng.standard_normal(m)
    target = int(rng.integers(k)) if label else rng.standard_normal(k)
    shared = {"prior_var": prior_var, "keep_mean": keep_mean}

    def log_predictive(delta):
        ahead = transition(posterior, gamma=np.exp(-0.5 * delta), **shared)
        mean, var = predict(ahead, phi)
        if label:
            return float(label_log_prob(mean, var, target, calibration=calibration).log_prob)
        return float(gaussian_log_density(target, mean, var + noise_var).sum())

    h = 1e-4 * delta
    difference = (log_predictive(delta + h) - log_predictive(delta - h)) / (2.0 * h)
    actual = delta_gradient(
        posterior,
        phi,
        target,
        gamma=np.exp(-0.5 * delta),
        noise_var=noise_var,
        calibration=calibration,
        **shared,
    )
    # the probability comes from a table with errors of about 1e-7
    noise = 1e-10 / h if label else 1e-12 * (1.0 + abs(log_predictive(delta))) / h
    assert actual == pytest.approx(difference, rel=2e-4 if label else 1e-5, abs=noise + 1e-6)


def late_stream(seed, n_outputs, late):
    rng = np.random.default_rng(seed)
    n = 40
    features = rng.standard_normal((n, 3))
    labels = rng.integers(0, n_outputs, n)
    labels[:late] %= n_outputs - 2  # the last two classes come late
    return features, labels, slice(0, late), slice(late, n)


@pytest.mark.parametrize("filtered", [textbook, step_chunk], ids=["textbook", "step_chunk"])
@given(st.integers(0, 10**6), st.sampled_from([3, 5]), st.integers(1, 39), decades(0.1, 10.0))
@settings(max_examples=20)
def test_late_class_equals_declared_class(filtered, seed, n_outputs, late, prior_var):
    features, labels, first, rest = late_stream(seed, n_outputs, late)
    options = {"gamma": 0.97, "noise_var": 0.2, "prior_var": prior_var}

    def run(posterior, rows):
        actual = filtered(posterior, features[rows], labels[rows], **options)
        return actual[0] if filtered is step_chunk else actual.posterior

    grown = run(init(3, n_outputs - 2, prior_var=prior_var), first)
    grown = run(add_outputs(grown, 2), rest)
    declared = run(run(init(3, n_outputs, prior_var=prior_var), first), rest)
    assert_same_posterior(grown, declared, rtol=1e-12)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@given(st.integers(0, 10**6), st.sampled_from([3, 5]), st.integers(1, 39))
@settings(max_examples=10)
def test_late_class_equals_declared_class_for_policies(policy, seed, n_outputs, late):
    features, labels, first, rest = late_stream(seed, n_outputs, late)
    options = {"noise_var": 0.2, "prior_var": 1.0}

    def run(state, rows):
        return policy.step_chunk(state, features[rows], labels[rows], **options)[0]

    grown = run(policy.start(3, n_outputs - 2, prior_var=1.0), first)
    grown = run(grown.add_outputs(2), rest)
    declared = run(run(policy.start(3, n_outputs, prior_var=1.0), first), rest)
    assert np.array_equal(grown.seen, declared.seen)
    if isinstance(policy, Mixture):
        assert_close(grown.weights, declared.weights, rtol=1e-9)
        pairs = zip(grown.posteriors, declared.posteriors, strict=True)
    else:
        assert grown.delta == pytest.approx(declared.delta, rel=1e-9)
        assert grown.calibration == pytest.approx(declared.calibration, rel=1e-9)
        pairs = [(grown.posterior, declared.posterior)]
    for one, other in pairs:
        assert_same_posterior(one, other, rtol=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 1.0 - 1e-12, 0.999, 0.5, 0.0])
@pytest.mark.parametrize("prior_var", [0.1, 1.0 / 3.0])
@pytest.mark.parametrize("chunking", ["textbook", "b=7", "b=1000"])
def test_unused_feature_keeps_its_prior_variance(chunking, prior_var, gamma):
    check_unused_feature(chunking, prior_var, gamma)


@pytest.mark.parametrize("gamma", [1.0 - 1e-12, 0.999])
def test_unused_feature_keeps_its_prior_variance_row_by_row(gamma):
    check_unused_feature("b=1", 0.1, gamma)


def check_unused_feature(chunking, prior_var, gamma):
    rng = np.random.default_rng(3)
    n = {"textbook": 500, "b=1000": 20_000}.get(chunking, 7_000)
    features, targets = rng.standard_normal((n, 3)), rng.standard_normal((n, 1))
    features[:, 1] = 0.0
    shared = {"gamma": gamma, "noise_var": 0.1, "prior_var": prior_var}
    posterior = init(3, 1, prior_var=prior_var)
    if chunking == "textbook":
        posterior = textbook(posterior, features, targets, **shared).posterior
    else:
        size = int(chunking[2:])
        for start in range(0, n, size):
            rows = slice(start, start + size)
            posterior, _ = step_chunk(posterior, features[rows], targets[rows], **shared)
    variances = posterior.cov.diagonal()
    assert variances[1] <= prior_var  # no tolerance, because an excess would accumulate
    assert variances[1] == pytest.approx(prior_var, rel=1e-9)
    assert variances.max() <= prior_var


@given(st.floats(0.0, 1.0), decades(1e-3, 1e3), st.sampled_from([np.float64, np.float32]))
def test_forgetting_alone_never_exceeds_the_prior_variance(gamma, prior_var, dtype):
    posterior = init(1, 1, prior_var=prior_var, dtype=dtype)
    largest = posterior.cov[0, 0]
    lazy = posterior
    for _ in range(50):
        posterior = transition(posterior, gamma=gamma, prior_var=prior_var)
        lazy, _ = step_chunk(
            lazy, [[1.0]], [np.nan], gamma=gamma, noise_var=1.0, prior_var=prior_var
        )
    assert posterior.cov[0, 0] <= largest
    assert lazy.cov[0, 0] <= largest


def test_step_is_transition_then_update():
    _, seen = step(
        init(2, 1, prior_var=2.0), [1.0, 1.0], 0.5, gamma=0.5, noise_var=1.0, prior_var=2.0
    )
    assert seen.logit_var == 4.0
    assert seen.nis == pytest.approx(0.25 / 5.0)
    assert seen.half_life == pytest.approx(1.0)
