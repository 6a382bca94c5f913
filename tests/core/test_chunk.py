"""Chunks equal the loop over rows for every cut, and steps do not change their arguments."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream.core import Calibration, Learned, add_outputs, init, step_chunk
from kalstream.errors import KalstreamError
from oracles import assert_close, assert_same_posterior, bits, textbook
from strategies import streams

OPTIONS = {"gamma": 0.97, "noise_var": 0.3, "prior_var": 0.5}
# fewer rows than are deferred, exactly as many, more, more than a block, several blocks
SIZES = (1, 3, 8, 9, 60, 130, 300)


def cut(posterior, stream, cuts, **more):
    """Step over the stream, cut before the given rows; return the joined steps of all rows."""
    steps = []
    for part in stream.chunks(cuts):
        posterior, seen = step_chunk(
            posterior, part.features, part.targets, gamma=part.gamma, **part.settings, **more
        )
        steps.append(seen)
    return posterior, {
        name: np.concatenate([getattr(seen, name) for seen in steps])
        for name in ("logit_mean", "logit_var", "gamma", "noise_var", "nis")
    }


def rows(n, m=16, k=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, m)), rng.integers(0, k, n)


def started(n, m=16, k=3, dtype=np.float64):
    """A posterior after n single rows, so that the updates of some rows are deferred."""
    posterior = init(m, k, prior_var=OPTIONS["prior_var"], dtype=dtype)
    for phi, label in zip(*rows(n, m, k, seed=99), strict=True):
        posterior, _ = step_chunk(posterior, phi[None], [label], **OPTIONS)
    return posterior


@pytest.mark.parametrize("max_rows", [30, 400])
@given(data=st.data())
def test_chunk_equals_textbook_for_every_cut(max_rows, data):
    stream = data.draw(streams(max_rows=max_rows))
    cuts = data.draw(st.lists(st.integers(0, max_rows), max_size=8))
    expected = textbook(
        stream.prior, stream.features, stream.targets, gamma=stream.gamma, **stream.settings
    )
    actual, seen = cut(stream.prior, stream, cuts)
    assert_same_posterior(actual, expected.posterior)
    assert_close(seen["logit_mean"], expected.logit_mean)
    assert_close(seen["logit_var"], expected.logit_var)
    assert_close(seen["gamma"], expected.gamma)


@settings(max_examples=25)
@given(streams(max_rows=60))
def test_single_examples_equal_one_chunk(stream):
    singly, one = cut(stream.prior, stream, range(len(stream)))
    whole, other = cut(stream.prior, stream, [])
    assert_same_posterior(singly, whole)
    for name in ("logit_mean", "logit_var", "gamma"):
        assert_close(one[name], other[name])
    assert np.array_equal(one["noise_var"], other["noise_var"])
    np.testing.assert_allclose(one["nis"], other["nis"], rtol=1e-8)


@settings(max_examples=25)
@given(streams(max_rows=300))
def test_chunk_transition_forgets_only_before_the_last_row(stream):
    options = stream.settings | {"gamma": stream.gamma}
    actual, seen = step_chunk(
        stream.prior, stream.features, stream.targets, transition="chunk", **options
    )
    gaps = np.zeros(len(stream))
    gaps[-1] = options.get("time_gap", np.ones(1))[-1]
    expected = textbook(
        stream.prior, stream.features, stream.targets, **options | {"time_gap": gaps}
    )
    assert_same_posterior(actual, expected.posterior)
    assert_close(seen.logit_mean, expected.logit_mean)
    assert_close(seen.logit_var, expected.logit_var)
    assert (seen.gamma[:-1] == 1.0).all()


def test_a_wide_problem_equals_textbook():
    # 200 features use the branches for few and for many rows
    features, labels = rows(300, m=200, k=5)
    expected = textbook(init(200, 5, prior_var=0.5), features, labels, **OPTIONS)
    for size in (1, 3, 20, 300):
        posterior = init(200, 5, prior_var=0.5)
        for start in range(0, 300, size):
            part = slice(start, start + size)
            posterior, _ = step_chunk(posterior, features[part], labels[part], **OPTIONS)
        assert_same_posterior(posterior, expected.posterior)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("deferred", [0, 3, 7, 8, 9])
def test_a_posterior_can_be_continued_twice(deferred, size):
    origin = started(deferred)
    before = bits(origin)
    one, other = rows(size, seed=1), rows(size, seed=2)
    alone, _ = step_chunk(copy.deepcopy(origin), *one, **OPTIONS)
    first, _ = step_chunk(origin, *one, **OPTIONS)
    kept = bits(first)
    second, _ = step_chunk(origin, *other, **OPTIONS)
    third, _ = step_chunk(first, *other, **OPTIONS)  # after the rows of a sibling
    assert bits(origin) == before
    assert bits(first) == kept == bits(alone)
    expected = textbook(origin, *other, **OPTIONS).posterior
    assert_same_posterior(second, expected)
    assert_same_posterior(third, textbook(first, *other, **OPTIONS).posterior)


@pytest.mark.parametrize("size", SIZES)
def test_donate_gives_the_same_numbers_and_invalidates_the_posterior(size):
    origin = started(3)
    expected, expected_step = step_chunk(copy.deepcopy(origin), *rows(size), **OPTIONS)
    actual, seen = step_chunk(origin, *rows(size), donate=True, **OPTIONS)
    assert bits(actual) == bits(expected)
    assert seen.logit_mean.tobytes() == expected_step.logit_mean.tobytes()
    assert "given away" in repr(origin)
    for use in (
        lambda: origin.mean,
        lambda: origin.cov,
        lambda: origin.n_features,
        lambda: step_chunk(origin, *rows(1), **OPTIONS),
    ):
        with pytest.raises(KalstreamError, match="donate=True"):
            use()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("related", ["ancestor", "sibling", "descendant", "grown", "copied"])
def test_donate_does_not_change_related_posteriors(related, size, fresh):
    origin = init(16, 3, prior_var=0.5) if fresh else started(2)
    child = origin
    if related in ("ancestor", "sibling", "descendant"):
        child, _ = step_chunk(origin, *rows(2, seed=1), **OPTIONS)
    if related == "ancestor":
        kept, given_away = origin, child
    elif related == "sibling":
        kept, _ = step_chunk(origin, *rows(2, seed=2), **OPTIONS)
        given_away = child
    elif related == "descendant":
        kept, given_away = child, origin
    elif related == "copied":
        kept, given_away = copy.copy(origin), origin
    else:
        kept, given_away = origin, add_outputs(origin, 1)
    before = bits(kept)
    step_chunk(given_away, *rows(size), donate=True, **OPTIONS)
    assert bits(kept) == before


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
@pytest.mark.parametrize("deferred", [0, 3, 8])
def test_a_copy_continues_bit_for_bit(deferred, duplicate):
    origin = started(deferred)
    copied = duplicate(origin)
    assert bits(copied) == bits(origin)
    for size in SIZES:
        features, labels = rows(size, seed=size)
        origin, one = step_chunk(origin, features, labels, **OPTIONS)
        copied, other = step_chunk(copied, features, labels, **OPTIONS)
        assert bits(copied) == bits(origin)
        assert one.logit_mean.tobytes() == other.logit_mean.tobytes()
        assert one.logit_var.tobytes() == other.logit_var.tobytes()


def test_threads_can_share_a_posterior():
    origin = started(5)
    before = bits(origin)
    parts = [rows(2, seed=i % 4) for i in range(64)]
    expected = [bits(step_chunk(copy.deepcopy(origin), *part, **OPTIONS)[0]) for part in parts]
    with ThreadPoolExecutor(8) as pool:
        actual = list(pool.map(lambda part: bits(step_chunk(origin, *part, **OPTIONS)[0]), parts))
    assert actual == expected
    assert bits(origin) == before


def test_threads_can_share_a_policy():
    policy = Learned(0.99, lr=0.1, calibration=Calibration())
    state = policy.start(16, 3, prior_var=0.5)
    options = {"noise_var": 0.3, "prior_var": 0.5}
    state, _ = policy.step_chunk(state, *rows(20, seed=5), **options)

    def result(part):
        after, _ = policy.step_chunk(state, *part, **options)
        return bits(after.posterior), after.delta, after.alpha

    parts = [rows(30, seed=i % 4) for i in range(64)]
    expected = [result(part) for part in parts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(result, parts)) == expected


@given(streams(labels=True, max_rows=40))
def test_labels_equal_one_hot_rows(stream):
    options = stream.settings | {"gamma": stream.gamma}
    one_hot = np.eye(stream.n_outputs)[stream.targets]
    one_hot[stream.targets < 0] = np.nan
    as_floats = np.where(stream.targets < 0, np.nan, stream.targets.astype(float))
    by_label, one = step_chunk(stream.prior, stream.features, stream.targets, **options)
    forms = [one_hot] if stream.n_outputs == 1 else [one_hot, as_floats]
    for targets in forms:
        by_value, other = step_chunk(stream.prior, stream.features, targets, **options)
        assert_same_posterior(by_value, by_label, rtol=1e-13)
        assert_close(other.logit_mean, one.logit_mean, rtol=1e-13)


@given(streams(max_rows=40), st.data())
def test_weight_zero_equals_no_target(stream, data):
    options = stream.settings | {"gamma": stream.gamma}
    weight = options.pop("sample_weight", np.ones(len(stream)))
    dropped = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(weight), max_size=len(weight)))
    )
    targets = stream.targets.copy()
    targets[dropped] = -1 if stream.labels else np.nan
    by_weight, one = step_chunk(
        stream.prior,
        stream.features,
        stream.targets,
        sample_weight=np.where(dropped, 0.0, weight),
        **options,
    )
    by_target, other = step_chunk(
        stream.prior, stream.features, targets, sample_weight=weight, **options
    )
    assert bits(by_weight) == bits(by_target)
    assert one.logit_mean.tobytes() == other.logit_mean.tobytes()
    assert np.isinf(one.noise_var[dropped]).all()
    assert np.isnan(one.nis[dropped]).all()


@pytest.mark.parametrize("keep_mean", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 0.99, 0.5, 0.0])
def test_float32_is_close_to_float64_on_scaled_data(gamma, keep_mean):
    features, labels = rows(400)
    options = OPTIONS | {"gamma": gamma, "keep_mean": keep_mean}
    double, one = step_chunk(init(16, 3, prior_var=0.5), features, labels, **options)
    single, other = step_chunk(
        init(16, 3, prior_var=0.5, dtype=np.float32), features.astype(np.float32), labels, **options
    )
    assert single.dtype == single.mean.dtype == single.cov.dtype == np.float32
    assert_same_posterior(single, double, rtol=1e-4)
    assert_close(other.logit_var, one.logit_var, rtol=1e-4)
    assert_close(other.logit_mean, one.logit_mean, rtol=1e-4)


def test_small_blocks_of_many_outputs_change_nothing() -> None:
    n, n_outputs = 70, 5000
    rng = np.random.default_rng(3)
    features, labels = rng.standard_normal((n, 2)), rng.integers(0, n_outputs, n)
    options = {"gamma": 0.9, "noise_var": 0.5, "prior_var": 2.0}
    start = init(2, n_outputs, prior_var=2.0)
    for likelihood in ("onehot", "softmax"):
        options["likelihood"] = likelihood
        together, whole = step_chunk(start, features, labels, **options)
        apart, means = start, []
        for i in range(0, n, 7):
            part = slice(i, i + 7)
            apart, step = step_chunk(apart, features[part], labels[part], **options)
            means.append(step.logit_mean)
        np.testing.assert_allclose(whole.logit_mean, np.concatenate(means), atol=1e-12)
        np.testing.assert_allclose(together.mean, apart.mean, atol=1e-12)
