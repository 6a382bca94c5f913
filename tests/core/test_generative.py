"""The generative classifier against its plain version, scipy's t, and what it must do."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import multivariate_t

from kalstream.core import generative
from kalstream.core.generative import NEVER, Generative, GenerativeState
from kalstream.core.generative_reference import NormalWishart, probabilities
from kalstream.errors import InvalidInput

Array = NDArray[Any]
D, K, STRENGTH, ALPHA = 4, 3, 6.0, 2.0
SETTINGS = Generative(powers=(1.0,), concentrations=(ALPHA,), strengths=(STRENGTH,))


def rows(n: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    y = rng.integers(K, size=n)
    return rng.standard_normal((n, D)) @ rng.standard_normal((D, D)) + 2.0 * y[:, None], y


def prior() -> NormalWishart:
    root = np.random.default_rng(9).standard_normal((D, 2 * D))
    return NormalWishart(np.arange(D, dtype=float), 0.7, STRENGTH * root @ root.T, D + 1 + STRENGTH)


def fixed(own: bool) -> GenerativeState:
    """A state that keeps this prior, and speaks with one voice."""
    start, given = SETTINGS.start(D, K), prior()
    within = given.scale / STRENGTH
    log_det = np.linalg.slogdet(given.scale)[1]
    belief = np.array([0.0, 1.0] if own else [1.0, 0.0])
    return replace(
        start,
        due=NEVER,
        centre=given.mean,
        prior=np.array([0.7, STRENGTH, log_det, np.linalg.slogdet(within)[1]]),
        within=np.linalg.inv(within),
        shared=np.linalg.inv(given.scale),
        known_belief=belief[:, None].copy(),
        new_belief=belief[:, None, None].copy(),
    )


def passed(state: GenerativeState, X: Array, y: Array, settings: Generative = SETTINGS) -> Any:
    return settings.advance(state, X, y, np.ones(len(y)), np.ones(len(y)))


@pytest.fixture
def one_voice(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other voice ever speaks."""
    monkeypatch.setattr(generative, "SHARE", 0.0)


@pytest.mark.usefixtures("one_voice")
def test_rows_one_by_one_are_the_batch_posterior_in_any_order() -> None:
    X, y = rows(200)
    order = np.random.default_rng(1).permutation(200)
    for own in (True, False):
        state, _ = passed(fixed(own), X, y)
        again, _ = passed(fixed(own), X[order], y[order])
        new, other = rows(5, 7)[0], np.full(5, -1)
        np.testing.assert_allclose(
            passed(state, new, other)[1], passed(again, new, other)[1], rtol=1e-8
        )
        for k in range(K):
            after = prior().posterior(X[y == k], np.ones((y == k).sum()))
            np.testing.assert_allclose(state.own[0, k], np.linalg.inv(after.scale), rtol=1e-8)
            np.testing.assert_allclose(
                state.own_log_dets[0, k], np.linalg.slogdet(after.scale)[1], rtol=1e-8
            )


@pytest.mark.usefixtures("one_voice")
def test_probabilities_are_those_of_the_plain_version() -> None:
    X, y = rows(40)
    _, out = passed(fixed(own=True), X, y)
    np.testing.assert_allclose(out.sum(axis=1), 1.0, rtol=1e-12)
    assert out[0].tolist() == [0.0, 0.0, 0.0, 1.0]
    for i in (1, 2, 5, 39):
        known = [X[:i][y[:i] == k] for k in range(K)]
        seen = [k for k in range(K) if len(known[k])]
        expected = probabilities(prior(), [known[k] for k in seen], ALPHA, X[i])
        np.testing.assert_allclose(out[i, [*seen, K]], expected, rtol=1e-8)


def test_the_predictive_is_a_t_and_the_marginal_its_product() -> None:
    X, y = rows(60)
    after = prior().posterior(X, np.ones(60))
    freedom = after.freedom - D + 1
    shape = after.scale * (after.count + 1) / (after.count * freedom)
    oracle = multivariate_t(after.mean, shape, df=freedom).logpdf(X[3])
    np.testing.assert_allclose(after.log_density(X[3]), oracle, rtol=1e-10)

    state, _ = passed(fixed(own=True), X, y)
    whole = sum(prior().log_marginal(X[y == k]) for k in range(K))
    np.testing.assert_allclose(state.evidence[1], whole, rtol=1e-8)
    one, _ = passed(fixed(own=False), X, np.zeros(60, np.int64))
    np.testing.assert_allclose(one.evidence, prior().log_marginal(X), rtol=1e-8)


@pytest.mark.usefixtures("one_voice")
def test_the_shared_covariance_is_that_of_all_classes_together() -> None:
    X, y = rows(80)
    state, _ = passed(fixed(own=False), X, y)
    scale, given = prior().scale, prior()
    for k in range(K):
        scale = scale + given.posterior(X[y == k], np.ones((y == k).sum())).scale - given.scale
    np.testing.assert_allclose(state.shared, np.linalg.inv(scale), rtol=1e-8)
    means = [given.posterior(X[y == k], np.ones((y == k).sum())).mean for k in range(K)]
    count = np.bincount(y)
    each = [
        NormalWishart(means[k], 0.7 + count[k], scale, given.freedom + 80).log_density(X[0])
        for k in range(K)
    ]
    new = replace(given, scale=scale, freedom=given.freedom + 80).log_density(X[0])
    expected = np.exp(np.array([*each, new])) * [*count, ALPHA]
    _, out = passed(state, X[:1], np.array([-1]))
    np.testing.assert_allclose(out[0], expected / expected.sum(), rtol=1e-8)


@pytest.mark.parametrize("settings", [Generative(), Generative(30.0), Generative(most_columns=1)])
def test_a_chunk_is_its_rows_and_a_state_stays_as_it_was(settings: Generative) -> None:
    rng = np.random.default_rng(2)
    X, y = rows(300)
    X[rng.random(X.shape) < 0.1] = np.nan
    y[rng.random(300) < 0.2] = -1
    weight, gap = rng.choice([0.5, 1.0, 20.0], 300), rng.choice([0.0, 1.0, 500.0], 300)
    start = settings.start(D, K)
    _, whole = settings.advance(start, X, y, weight, gap)
    np.testing.assert_allclose(whole.sum(axis=1), 1.0, rtol=1e-9)
    assert np.isfinite(whole).all()
    for size in (1, 63):
        state, parts = start, []
        for i in range(0, 300, size):
            part = slice(i, i + size)
            state, out = settings.advance(state, X[part], y[part], weight[part], gap[part])
            parts.append(out)
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    state.__post_init__()
    assert state.nbytes > 0


def test_a_new_class_is_expected_far_off_and_curved_classes_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(600) % 2
    X = rng.standard_normal((600, 3)) * np.where(y, 3.0, 1.0)[:, None]
    _, out = passed(Generative().start(3, 2), X, y, Generative())
    assert (out[300:].argmax(axis=1) == y[300:]).mean() > 0.8
    assert out[300:, 2].max() < 0.2
    # many classes far apart: what new classes are like is known
    centres = 30.0 * rng.standard_normal((20, 3))
    y = np.minimum(rng.integers(1, 21, size=1000), 1 + np.arange(1000) // 40) - 1
    X = centres[y] + rng.standard_normal((1000, 3))
    _, out = passed(Generative().start(3, 20), X, y, Generative())
    first = np.unique(y, return_index=True)[1][8:]
    assert np.median(out[first, 20]) > 0.5
    assert np.median(np.delete(out[:, 20], first)) < 0.02


def test_the_prior_is_learned_less_often_the_more_classes_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times, once = [], GenerativeState.with_prior

    def counted(state: GenerativeState) -> GenerativeState:
        times.append(int((state.counts > 0.0).sum()))
        return once(state)

    monkeypatch.setattr(GenerativeState, "with_prior", counted)
    rng = np.random.default_rng(0)
    y = np.arange(140)
    X = 9.0 * rng.standard_normal((140, 3))
    settings = Generative(most_columns=1)
    state, _ = passed(settings.start(3, 140), X, y, settings)
    by_growth = {n for n in times if n >= 32 and n % (2 if n < 64 else 4 if n < 128 else 8)}
    assert set(range(1, 32)) <= set(times)
    assert {32, 34, 62, 64, 68, 124, 128, 136} <= set(times)
    assert len(by_growth) <= 4  # learned again as there are half as many rows more
    assert np.isfinite(state.shared).all()


def test_bad_settings_and_states_are_refused() -> None:
    for bad in ({"half_life": 0.0}, {"powers": (-1.0,)}, {"most_columns": 0}):
        with pytest.raises(InvalidInput, match=next(iter(bad))):
            Generative(**bad)
    state = SETTINGS.start(D, K)
    state.counts[0] = -1.0
    with pytest.raises(InvalidInput, match="start again"):
        state.__post_init__()
