"""Labels observed through the softmax: the fast forms equal the recursion row by row."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream.core import (
    Calibration,
    Fixed,
    Learned,
    Mixture,
    Posterior,
    init,
    softmax_curvature,
    step_chunk,
    transition,
    update_softmax,
)
from kalstream.errors import InvalidInput, NumericalError
from oracles import assert_close, assert_same_posterior, bits

NOISE = 0.7  # not used by a filter that observes through the softmax


@dataclass
class Labelled:
    """Rows with labels, weights and gaps; some labels are missing and some weights are 0."""

    features: np.ndarray
    labels: np.ndarray
    weight: np.ndarray
    gap: np.ndarray
    prior_var: float

    def __len__(self):
        return len(self.labels)

    def part(self, start, stop):
        cut = slice(start, stop)
        return {
            "features": self.features[cut],
            "targets": self.labels[cut],
            "sample_weight": self.weight[cut],
            "time_gap": self.gap[cut],
            "prior_var": self.prior_var,
            "noise_var": NOISE,
        }


@st.composite
def labelled(draw, max_rows=80):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, m, k = draw(st.integers(1, max_rows)), draw(st.integers(1, 8)), draw(st.integers(1, 7))
    features = rng.standard_normal((n, m)) * draw(st.sampled_from([0.1, 1.0, 5.0]))
    labels = rng.integers(0, k, n)
    # Classes come late: those with a high code only in the second half.
    labels[: n // 2] = np.minimum(labels[: n // 2], rng.integers(0, k))
    labels[rng.random(n) < draw(st.sampled_from([0.0, 0.3]))] = -1
    weight, gap = np.ones(n), np.ones(n)
    if draw(st.booleans()):
        weight = rng.choice([0.0, 0.2, 1.0, 7.0], n)
    if draw(st.booleans()):
        gap = rng.choice([0.0, 0.5, 1.0, 30.0, 4000.0], n)
    return Labelled(features, labels, weight, gap, draw(st.sampled_from([0.01, 1.0, 300.0])))


def by_rows(rows, n_outputs, gamma, likelihood, keep_mean=False):
    """The recursion row by row; returns the posterior, and mean, variance and noise of each row."""
    posterior = init(rows.features.shape[1], n_outputs, prior_var=rows.prior_var)
    seen, reports = np.zeros(n_outputs, bool), []
    for phi, label, weight, gap in zip(
        rows.features, rows.labels, rows.weight, rows.gap, strict=True
    ):
        posterior = transition(
            posterior, gamma=gamma**gap, prior_var=rows.prior_var, keep_mean=keep_mean
        )
        posterior, step = update_softmax(
            posterior, phi, int(label), seen=seen, sample_weight=weight, likelihood=likelihood
        )
        if label >= 0 and weight > 0.0:
            seen[label] = True
        reports.append((step.logit_mean, step.logit_var, step.noise_var, step.nis))
    return posterior, [np.stack(each) for each in zip(*reports, strict=True)]


def learned(policy, rows, n_outputs, cuts, **more):
    """A policy over the rows, cut before some of them; returns its state and the joined steps."""
    state = policy.start(rows.features.shape[1], n_outputs, prior_var=rows.prior_var)
    edges = sorted({0, len(rows), *(c for c in cuts if c < len(rows))})
    reports = []
    for start, stop in itertools.pairwise(edges):
        state, step = policy.step_chunk(state, **rows.part(start, stop), **more)
        reports.append(step.bank)
    names = "logit_mean", "logit_var", "noise_var", "nis"
    every = ([getattr(step, name) for step in reports] for name in names)
    return state, [np.concatenate(parts, axis=1) for parts in every]


def assert_same_reports(actual, expected):
    """Means, variances, noise variances (inf if not learned) and squared errors (then NaN)."""
    for one, other in zip(actual[:2], expected[:2], strict=True):
        assert_close(one, other)
    for one, other in zip(actual[2:], expected[2:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7)


CUTS = st.lists(st.integers(0, 80), max_size=6)
SOFTMAX = st.sampled_from(["softmax", "softmax-label"])
GAMMAS = st.sampled_from([0.0, 0.5, 0.97, 0.9999, 1.0])


@given(labelled(), CUTS, GAMMAS, SOFTMAX, st.booleans())
def test_chunks_equal_the_recursion_for_every_cut(rows, cuts, gamma, likelihood, keep_mean):
    expected, reports = by_rows(rows, 7, gamma, likelihood, keep_mean)
    policy = Fixed(gamma, likelihood=likelihood)
    state, steps = learned(policy, rows, 7, cuts, keep_mean=keep_mean)
    assert_same_posterior(state.posterior, expected)
    assert_same_reports([part[0] for part in steps], reports)


@given(labelled(), CUTS, GAMMAS, GAMMAS)
def test_a_bank_equals_the_recursion_of_each_of_its_filters(rows, cuts, first, second):
    lives = [np.inf if g == 1.0 else np.log(0.5) / np.log(max(g, 1e-3)) for g in (first, second)]
    words = ("softmax", "softmax-label")
    policy = Mixture(
        lives, likelihood=words, prior_scale=(1.0, 4.0), calibrations=(1.0,), share=0.01
    )
    state, steps = learned(policy, rows, 7, cuts)
    for j, (gamma, scale) in enumerate(zip(state.gammas, (1.0, 4.0), strict=True)):
        mine = Labelled(rows.features, rows.labels, rows.weight, rows.gap, scale * rows.prior_var)
        expected, reports = by_rows(mine, 7, gamma, words[j])
        assert_same_posterior(state.posteriors[j], expected)
        assert_same_reports([part[j] for part in steps], reports)


@given(labelled(), CUTS)
def test_likelihoods_in_one_bank_do_not_touch_each_other(rows, cuts):
    both = Mixture((20.0, 20.0), likelihood=("onehot", "softmax"), calibrations=((3.0,), (1.0,)))
    state, _ = learned(both, rows, 7, cuts)
    for j, likelihood in enumerate(("onehot", "softmax")):
        alone, _ = learned(Mixture((20.0,), likelihood=likelihood), rows, 7, cuts)
        assert_same_posterior(state.posteriors[j], alone.posteriors[0])


@settings(max_examples=40)
@given(labelled(), CUTS)
def test_a_learned_gamma_does_not_depend_on_the_cut(rows, cuts):
    policy = Learned(0.99, lr=0.05, likelihood="softmax", calibration=Calibration(init=1.0))
    whole, _ = learned(policy, rows, 7, [])
    parts, _ = learned(policy, rows, 7, cuts)
    # Learning gamma amplifies roundings.
    assert_same_posterior(parts.posterior, whole.posterior, rtol=1e-8)
    assert_close(parts.delta, whole.delta, rtol=1e-8)


@pytest.mark.parametrize(
    "policy", [Fixed(0.9, likelihood="softmax"), Mixture(likelihood="softmax")]
)
@given(rows=labelled())
def test_a_class_that_comes_late_equals_one_that_was_declared(policy, rows):
    half = len(rows) // 2
    declared, _ = learned(policy, rows, 8, [half])
    n_first = max(int(rows.labels[:half].max(initial=0)) + 1, 1)
    state = policy.start(rows.features.shape[1], n_first, prior_var=rows.prior_var)
    if half:
        state, _ = policy.step_chunk(state, **rows.part(0, half))
    state = state.add_outputs(8 - n_first)
    state, _ = policy.step_chunk(state, **rows.part(half, len(rows)))
    for late, early in zip(state.posteriors, declared.posteriors, strict=True):
        assert_same_posterior(late, early)
    assert np.array_equal(state.seen, declared.seen)


@given(labelled())
def test_a_missing_label_equals_a_weight_of_zero(rows):
    policy = Fixed(0.9, likelihood="softmax")
    silent = rows.weight == 0.0
    missing = Labelled(
        rows.features,
        np.where(silent, -1, rows.labels),
        np.where(silent, 1.0, rows.weight),
        rows.gap,
        rows.prior_var,
    )
    one, _ = learned(policy, rows, 7, [])
    other, _ = learned(policy, missing, 7, [])
    assert bits(one.posterior) == bits(other.posterior)
    assert np.array_equal(one.seen, other.seen)


@given(labelled(), st.booleans())
def test_donating_changes_no_number(rows, donate):
    policy = Mixture((10.0, np.inf), likelihood="softmax", calibrations=(1.0,))
    start = policy.start(rows.features.shape[1], 7, prior_var=rows.prior_var)
    kept, _ = policy.step_chunk(start, **rows.part(0, len(rows)))
    given_away, _ = policy.step_chunk(start, **rows.part(0, len(rows)), donate=True)
    assert bits(kept.posterior) == bits(given_away.posterior)


def test_two_classes_are_the_extended_kalman_filter_of_logistic_regression():
    """On the difference of the logits, whose prior variance is twice that of each."""
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((30, 3)), rng.integers(0, 2, 30)
    prior_var = 1e-8  # so that the shrinkage is 1
    posterior = init(3, 2, prior_var=prior_var)
    w, cov = np.zeros(3), 2.0 * prior_var * np.eye(3)
    for phi, label in zip(features, labels, strict=True):
        posterior, _ = update_softmax(posterior, phi, int(label))
        p = 1.0 / (1.0 + np.exp(-phi @ w))
        gain = cov @ phi / (1.0 / (p * (1.0 - p)) + phi @ cov @ phi)
        w = w + gain * (label - p) / (p * (1.0 - p))
        cov = cov - np.outer(gain, cov @ phi)
    difference = posterior.mean[:, 1] - posterior.mean[:, 0]
    np.testing.assert_allclose(difference, w, rtol=1e-6)
    np.testing.assert_allclose(2.0 * posterior.cov, cov, rtol=1e-6, atol=1e-14)


@given(st.integers(2, 6), st.floats(0.0, 30.0), st.integers(0, 2**32))
def test_curvature_is_the_mean_eigenvalue(k, var, seed):
    mean = np.random.default_rng(seed).standard_normal(k)
    p, shrink, curvature = softmax_curvature(mean, var, np.ones(k, bool))
    eigenvalues = np.linalg.eigvalsh(shrink**2 * (np.diag(p) - np.outer(p, p)))
    assert abs(eigenvalues[0]) < 1e-12
    assert_close(curvature, max(eigenvalues[1:].mean(), 1e-6 * shrink**2))


@given(
    st.integers(1, 5),
    st.floats(-8.0, 8.0),
    st.sampled_from([1e-6, 0.1, 3.0, 10.0, 300.0, 1e5]),
    st.sampled_from([1.1, 5.0, 50.0, 1e4]),
    SOFTMAX,
    st.integers(0, 2**32),
)
def test_a_heavy_row_ends_where_it_is_most_probable(k, size, var, weight, likelihood, seed):
    """The compiled search for that point, against the reference's."""
    mean = size * np.random.default_rng(seed).standard_normal((1, k))
    posterior = Posterior(mean, [[var]])
    expected, _ = update_softmax(posterior, [1.0], 0, sample_weight=weight, likelihood=likelihood)
    settings = {"gamma": 1.0, "noise_var": 1.0, "prior_var": 1.0, "likelihood": likelihood}
    actual, _ = step_chunk(posterior, [[1.0]], [0], sample_weight=weight, **settings)
    assert_same_posterior(actual, expected, rtol=1e-8)


def test_dropping_a_class_keeps_the_columns_of_the_others():
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((50, 2)), rng.integers(0, 3, 50)
    policy = Mixture((20.0,), likelihood="softmax", calibrations=(1.0,))
    state = policy.start(2, 3, prior_var=1.0)
    state, _ = policy.step_chunk(state, features, labels, noise_var=1.0, prior_var=1.0)
    fewer = state.keep_outputs(np.array([0, 2]))
    assert_close(fewer.posterior.mean, state.posterior.mean[:, [0, 2]])
    p = policy.class_probabilities(fewer, features, prior_var=1.0)
    assert_close(p.sum(axis=1), np.ones(50))


def test_a_long_run_stays_symmetric_and_positive():
    rng = np.random.default_rng(0)
    policy = Mixture((50.0, np.inf), likelihood="softmax", prior_scale=100.0, calibrations=(1.0,))
    state = policy.start(6, 3, prior_var=1.0)
    for _ in range(200):
        features = rng.standard_normal((100, 6)) * [1.0, 1e3, 1e-3, 1.0, 1.0, 1.0]
        labels = (features[:, 0] > 0).astype(int) + (rng.random(100) < 0.1)
        state, step = policy.step_chunk(state, features, labels, noise_var=1.0, prior_var=1.0)
        assert np.isfinite(step.logit_mean).all()
    for posterior in state.posteriors:
        assert (posterior.cov == posterior.cov.T).all()
        assert np.linalg.eigvalsh(posterior.cov).min() > 0.0


def test_float32_is_right_or_an_error():
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((400, 5)), rng.integers(0, 3, 400)
    policy = Fixed(0.999, likelihood="softmax")
    exact = policy.start(5, 3, prior_var=10.0)
    exact, _ = policy.step_chunk(exact, features, labels, noise_var=1.0, prior_var=10.0)
    state = policy.start(5, 3, prior_var=10.0, dtype=np.float32)
    state, _ = policy.step_chunk(state, features, labels, noise_var=1.0, prior_var=10.0)
    np.testing.assert_allclose(state.posterior.mean, exact.posterior.mean, atol=1e-3)
    wild = features * np.array([1e7, 1.0, 1.0, 1.0, 1.0])
    start = [policy.start(5, 3, prior_var=1e4, dtype=each) for each in (np.float32, np.float64)]
    settings = {"noise_var": 1.0, "prior_var": 1e4}
    (state, _), (exact, _) = (policy.step_chunk(s, wild, labels, **settings) for s in start)
    np.testing.assert_allclose(state.posterior.mean, exact.posterior.mean, atol=1e-3)
    with pytest.raises(NumericalError, match="float32"):
        policy.step_chunk(start[0], wild, labels, sample_weight=1e9, **settings)


def test_values_are_not_observed_through_the_softmax():
    rng = np.random.default_rng(0)
    features, targets = rng.standard_normal((20, 2)), rng.standard_normal((20, 2))
    prior, more = init(2, 2, prior_var=1.0), {"gamma": 0.9, "noise_var": 0.5, "prior_var": 1.0}
    one, _ = step_chunk(prior, features, targets, **more)
    other, _ = step_chunk(prior, features, targets, likelihood="softmax", **more)
    assert bits(one) == bits(other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Fixed(likelihood="probit"),
            "one of 'onehot', 'softmax', 'softmax-label'",
        ),
        (lambda: Learned(likelihood=3), "likelihood must be one of"),
        (lambda: Mixture((1.0, 2.0), likelihood=("softmax",)), "one for each half-life"),
        (lambda: Mixture((1.0, 2.0), prior_scale=(1.0, 2.0, 3.0)), "one for each half-life"),
        (lambda: Mixture(prior_scale=-1.0), "prior_scale must be a finite number above 0"),
        (lambda: Mixture((1.0, 2.0), calibrations=((1.0,), (1.0, 2.0))), "the same length"),
        (lambda: update_softmax(Posterior([[0.0]], [[1.0]]), [1.0], 0.5), "label"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
