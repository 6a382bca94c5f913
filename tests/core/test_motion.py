"""Weights that move with a velocity: chunks, dense filters and Gaussian processes agree."""

import copy
import math
import pickle
from dataclasses import fields
from decimal import Decimal, getcontext
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream.core import gamma_of, init, step_chunk
from kalstream.core._kernels import motion as kernels
from kalstream.core.bank import Bank, How, Lookahead
from kalstream.core.chunk import Rows
from kalstream.core.likelihoods import LIKELIHOODS
from kalstream.core.motion import MotionBank
from kalstream.core.motion_reference import (
    correlation,
    learn_moving,
    moved,
    predict_moving,
    process_noise,
    rate_of,
    start_moving,
    stationary_cov,
    transition_matrix,
)
from kalstream.errors import DonatedState, InvalidInput, NumericalError
from oracles import assert_close, assert_same_posterior, bits, moving
from strategies import Stream, decades, streams

ORDERS = (1, 2, 3)
HALF_LIVES = (0.3, 5.0, 80.0, 1e4, 1e9, math.inf)
STEP = ("logit_mean", "logit_var", "gamma", "noise_var", "nis")


def read(bank, stream, seen=None):
    state = SimpleNamespace(
        n_features=bank.n_features, n_outputs=bank.n_outputs, dtype=bank.dtype, seen=seen
    )
    return Rows.read(state, stream.features, stream.targets, **stream.settings)


def how(bank, rows, likelihood="onehot", prior_vars=None):
    """How the filters of a bank learn rows; `likelihood` is one word, or one for each."""
    words = (likelihood,) * bank.n_filters if isinstance(likelihood, str) else likelihood
    return How(
        np.array([[gamma_of(value)] for value in bank.half_lives]) ** rows.gap,
        np.array(bank.prior_vars if prior_vars is None else prior_vars),
        np.array([rows.likelihood(word) for word in words]),
    )


def run(bank, rows, *, donate=False, **options):
    return bank.run(rows, how(bank, rows, **options), donate)


def ahead(bank, features, gap):
    n = bank.n_filters, 1
    alike = Lookahead(np.ones(n), np.array(bank.prior_vars), False, 0.0, np.zeros(n))
    step, _ = bank.predict(features, gap, alike)
    return step.logit_mean, step.logit_var


def joined(steps):
    return {name: np.concatenate([getattr(step, name) for step in steps], axis=1) for name in STEP}


def cut(bank, stream, cuts, likelihood="onehot"):
    """Run over the stream, cut before the given rows; the bank, and the joined steps."""
    steps, seen = [], np.zeros(bank.n_outputs, bool)
    for part in stream.chunks(cuts):
        rows = read(bank, part, seen)
        bank, step = run(bank, rows, likelihood=likelihood)
        steps.append(step)
        seen = rows.seen(seen)
    return bank, joined(steps)


@st.composite
def problems(draw, max_rows=40, labels=None):
    """A stream, a bank before any data, and the likelihood of each filter."""
    stream = draw(streams(max_rows=max_rows, labels=labels, keep_mean=False))
    n_filters = draw(st.integers(1, 3))
    half_lives = [draw(st.sampled_from(HALF_LIVES)) for _ in range(n_filters)]
    base = stream.settings["prior_var"]
    prior_vars = [base * draw(st.sampled_from([0.3, 1.0])) for _ in range(n_filters)]
    bank = MotionBank.start(
        stream.features.shape[1],
        stream.n_outputs,
        order=draw(st.sampled_from(ORDERS)),
        half_lives=half_lives,
        prior_vars=prior_vars,
    )
    likelihood = tuple(draw(st.sampled_from(tuple(LIKELIHOODS))) for _ in range(n_filters))
    return stream, bank, likelihood


def assert_equals_dense(bank, step, stream, likelihood, rtol=1e-10):
    for j, half_life in enumerate(bank.half_lives):
        state, means, variances = moving(
            stream,
            order=bank.order,
            half_life=half_life,
            prior_var=bank.prior_vars[j],
            likelihood=likelihood[j],
            n_outputs=bank.n_outputs,
        )
        assert_close(step["logit_mean"][j], means, rtol)
        assert_close(step["logit_var"][j], variances, rtol)
        mean, cov = bank.moments(j)
        assert_close(mean, state.mean, rtol)
        assert_close(cov, state.cov, rtol)
        posterior = bank.posterior(j)
        assert_close(posterior.mean, state.weight_mean, rtol)
        assert_close(posterior.cov, state.weight_cov, rtol)


# ---- the process --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_the_half_life_is_where_the_autocorrelation_is_one_half(order):
    assert abs(correlation(order, rate_of(order, 7.0) * 7.0) - 0.5) < 1e-15
    assert rate_of(order, math.inf) == 0.0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tau", [0.0, 1e-12, 1e-5, 0.3, 2.0, 40.0, 1e9, math.inf])
def test_transitions_of_kernel_and_reference(order, tau):
    F, row = np.empty((order, order)), np.empty(order)
    kernels.transition(order, tau, F)
    kernels.response(order, tau, row)
    expected = transition_matrix(order, tau)
    np.testing.assert_allclose(F, expected, rtol=1e-14, atol=0.0)
    assert np.array_equal(row, F[0])
    if tau < 1e3:
        half = transition_matrix(order, tau / 2.0)
        np.testing.assert_allclose(half @ half, expected, rtol=1e-12, atol=1e-15)
        # The stationary covariance of a weight with itself is the kernel of the process.
        lagged = expected @ stationary_cov(order)
        assert abs(lagged[0, 0] - correlation(order, tau)) < 1e-14


def exact_noise(order, tau):
    """P - F P F' in 120 digits, by the series of the exponential."""
    getcontext().prec = 120
    companion = {
        1: [[-1]],
        2: [[0, 1], [-1, -2]],
        3: [[0, 1, 0], [0, 0, 1], [-1, -3, -3]],
    }[order]
    third = Decimal(1) / 3
    P = {
        1: [[Decimal(1)]],
        2: [[Decimal(1), Decimal(0)], [Decimal(0), Decimal(1)]],
        3: [[1, 0, -third], [0, third, 0], [-third, 0, 1]],
    }[order]
    product = lambda A, B: [  # noqa: E731
        [sum(A[i][k] * B[k][j] for k in range(order)) for j in range(order)] for i in range(order)
    ]
    halvings = 10
    step = Decimal(tau) / 2**halvings
    term = F = [[Decimal(int(i == j)) for j in range(order)] for i in range(order)]
    for n in range(1, 200):
        term = [[value * step / n for value in row] for row in product(term, companion)]
        F = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(F, term, strict=True)]
    for _ in range(halvings):
        F = product(F, F)
    moved_cov = product(product(F, P), [list(column) for column in zip(*F, strict=True)])
    return np.array(
        [[float(P[i][j] - moved_cov[i][j]) for j in range(order)] for i in range(order)]
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tau", [1e-12, 3e-9, 1e-6, 1e-3, 0.1, 1.0, 3.99, 4.01, 10.0, 50.0])
def test_the_process_noise_has_all_its_digits(order, tau):
    expected = exact_noise(order, tau)
    actual = np.empty((order, order))
    kernels.process_noise(order, tau, actual)
    # Each entry by itself: the first is tau^5 for order 3, where the last is tau.
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-15 if tau > 1.0 else 0.0)
    np.testing.assert_allclose(
        process_noise(order, tau), expected, rtol=1e-12, atol=1e-15 if tau > 1.0 else 0.0
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tau", [0.0, 1e-7, 0.5, 1e9, math.inf])
def test_the_prior_is_stationary(order, tau):
    P, F, Q = stationary_cov(order), transition_matrix(order, tau), process_noise(order, tau)
    np.testing.assert_allclose(F @ P @ F.T + Q, P, atol=1e-15)


# ---- chunks equal the plain filter --------------------------------------------------------------


@pytest.mark.parametrize("max_rows", [30, 200])
@settings(max_examples=60)
@given(data=st.data())
def test_chunk_equals_the_dense_filter_for_every_cut(max_rows, data):
    stream, bank, likelihood = data.draw(problems(max_rows))
    cuts = data.draw(st.lists(st.integers(0, max_rows), max_size=8))
    after, step = cut(bank, stream, cuts, likelihood)
    assert_equals_dense(after, step, stream, likelihood)


@settings(max_examples=25)
@given(problems(60))
def test_single_rows_equal_one_chunk(problem):
    stream, bank, likelihood = problem
    singly, one = cut(bank, stream, range(len(stream)), likelihood)
    whole, other = cut(bank, stream, [], likelihood)
    for j in range(bank.n_filters):
        for left, right in zip(singly.moments(j), whole.moments(j), strict=True):
            assert_close(left, right)
    for name in ("logit_mean", "logit_var", "gamma"):
        assert_close(one[name], other[name])
    np.testing.assert_allclose(one["nis"], other["nis"], rtol=1e-7)


@settings(max_examples=25)
@given(problems(40))
def test_order_one_is_the_bank(problem):
    stream, bank, _ = problem
    first = MotionBank.start(
        bank.n_features,
        bank.n_outputs,
        order=1,
        half_lives=bank.half_lives,
        prior_vars=stream.settings["prior_var"],
    )
    rows = read(first, stream)
    same = how(first, rows)
    actual, step = first.run(rows, same, False)
    expected, other = Bank.of([stream.prior] * bank.n_filters).run(rows, same, False)
    assert np.array_equal(step.noise_var, other.noise_var)
    for name in ("logit_mean", "logit_var", "gamma"):
        # A gamma near 1 has fewer digits than the half-life that it comes from.
        assert_close(getattr(step, name), getattr(other, name), 1e-8)
    for j in range(bank.n_filters):
        assert_same_posterior(actual.posterior(j), expected.posterior(j), 1e-8)


def test_an_infinite_half_life_is_a_filter_that_never_forgets():
    rng = np.random.default_rng(3)
    features, labels = rng.standard_normal((150, 4)), rng.integers(0, 3, 150)
    expected, other = step_chunk(
        init(4, 3, prior_var=2.0), features, labels, gamma=1.0, noise_var=0.5, prior_var=2.0
    )
    for order in (2, 3):
        bank = MotionBank.start(4, 3, order=order, half_lives=math.inf, prior_vars=2.0)
        rows = Rows.read(bank, features, labels, noise_var=0.5, prior_var=2.0)
        bank, step = run(bank, rows)
        assert_close(step.logit_mean[0], other.logit_mean)
        assert_close(step.logit_var[0], other.logit_var)
        assert_same_posterior(bank.posterior(0), expected)


@settings(max_examples=20)
@given(
    st.sampled_from(ORDERS),
    decades(1.0, 300.0),
    decades(1e-2, 1e2),
    decades(1e-2, 1e1),
    st.integers(0, 2**32 - 1),
)
def test_equals_gaussian_process_regression(order, half_life, prior_var, noise_ratio, seed):
    rng = np.random.default_rng(seed)
    n, m, noise_var = 60, 3, prior_var * noise_ratio
    features, targets = rng.standard_normal((n, m)), rng.standard_normal((n, 2))
    gaps = rng.choice([0.1, 1.0, 3.7], n)
    bank = MotionBank.start(m, 2, order=order, half_lives=half_life, prior_vars=prior_var)
    options = {"noise_var": noise_var, "prior_var": prior_var, "time_gap": gaps}
    after, step = run(bank, Rows.read(bank, features, targets, **options))
    later, later_var = ahead(after, features[:1], np.array([2.5]))

    times = np.append(np.cumsum(gaps), gaps.sum() + 2.5)
    lags = rate_of(order, half_life) * np.abs(times[:, None] - times)
    values = np.array([[correlation(order, lag) for lag in row] for row in lags])
    phi = np.vstack([features, features[:1]])
    kernel = prior_var * (phi @ phi.T) * values
    for i in (1, n // 2, n - 1, n):
        gram = kernel[:i, :i] + noise_var * np.eye(i)
        weights = np.linalg.solve(gram, kernel[:i, i])
        mean, var = weights @ targets[:i], kernel[i, i] - weights @ kernel[:i, i]
        if i < n:
            assert_close(step.logit_mean[0, i], mean, 1e-8, 1e-8)
            assert_close(step.logit_var[0, [i]], [var], 1e-8)
        else:
            assert_close(later[0, 0], mean, 1e-8, 1e-8)
            assert_close(later_var[0], [var], 1e-8)


# ---- predictions --------------------------------------------------------------------------------


@settings(max_examples=25)
@given(problems(40), st.data())
def test_predictions_several_steps_ahead_equal_the_dense_filter(problem, data):
    stream, bank, likelihood = problem
    bank, _ = cut(bank, stream, [len(stream) // 2], likelihood)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    features = rng.standard_normal((7, bank.n_features))
    gap = np.array([0.0, 1.0, 2.0, 5.5, 30.0, 4000.0, 1e12])
    before = copy.deepcopy(bank)
    means, variances = ahead(bank, features, gap)
    for j, half_life in enumerate(bank.half_lives):
        state, *_ = moving(
            stream,
            order=bank.order,
            half_life=half_life,
            prior_var=bank.prior_vars[j],
            likelihood=likelihood[j],
        )
        for i, phi in enumerate(features):
            tau = rate_of(bank.order, half_life) * gap[i]
            later = moved(state, tau=tau, prior_var=bank.prior_vars[j])
            mean, var = predict_moving(later, phi)
            assert_close(means[j, i], mean, 1e-9, 1e-12)
            assert_close(variances[j, [i]], [var], 1e-9)
    assert_same_state(bank, before)


def test_a_prediction_of_a_row_is_what_learning_it_reports():
    bank, stream = example(30)
    for i in range(30):
        rows = read(bank, stream[i : i + 1])
        mean, var = ahead(bank, rows.features, rows.gap)
        bank, step = run(bank, rows, likelihood="softmax")
        assert np.array_equal(mean, step.logit_mean)
        assert np.array_equal(var, step.logit_var)


def test_many_rows_are_predicted_as_each_by_itself():
    bank, stream = example(40)
    bank, _ = cut(bank, stream, range(40))
    features = np.random.default_rng(5).standard_normal((600, bank.n_features))
    gap = np.linspace(0.0, 9.0, 600)
    means, variances = ahead(bank, features, gap)
    for i in (0, 255, 256, 599):
        mean, var = ahead(bank, features[i : i + 1], gap[i : i + 1])
        assert_close(means[:, [i]], mean)
        assert_close(variances[:, [i]], var)


# ---- outputs and features that come late --------------------------------------------------------


@settings(max_examples=25)
@given(problems(40, labels=True), st.data())
def test_a_class_that_comes_late_equals_a_declared_one(problem, data):
    stream, bank, likelihood = problem
    start = data.draw(st.integers(0, len(stream)))
    late = stream.n_outputs
    targets = stream.targets.copy()
    targets[start:][targets[start:] == 0] = late  # this class never comes before `start`
    stream = Stream(stream.features, targets, late + 1, stream.gamma, stream.settings)
    declared, expected = cut(bank.add_outputs(1), stream, [start], likelihood)
    steps, grown, seen = [], bank, np.zeros(late, bool)
    for part, grow in ((slice(0, start), False), (slice(start, len(stream)), True)):
        if grow:
            grown, seen = grown.add_outputs(1), np.pad(seen, (0, 1))
        if part.start == part.stop:
            continue
        rows = read(grown, stream[part], seen)
        grown, step = run(grown, rows, likelihood=likelihood)
        steps.append(step)
        seen = rows.seen(seen)
    variances = np.concatenate([step.logit_var for step in steps], axis=1)
    assert_close(variances, expected["logit_var"])
    for j in range(bank.n_filters):
        assert_same_posterior(grown.posterior(j), declared.posterior(j))


def test_outputs_are_dropped_and_reordered():
    bank, stream = example(20)
    bank, _ = cut(bank, stream, range(20))
    kept = bank.keep_outputs(np.array([2, 0]))
    assert kept.n_outputs == 2
    for j in range(bank.n_filters):
        assert_close(kept.posterior(j).mean, bank.posterior(j).mean[:, [2, 0]])
        assert np.array_equal(kept.posterior(j).cov, bank.posterior(j).cov)


@pytest.mark.parametrize("order", ORDERS)
def test_features_that_were_zero_can_come_late(order):
    bank, stream = example(50, order=order)
    wide = np.pad(stream.features, ((0, 0), (0, 2)))
    wide[25:, -2:] = np.random.default_rng(1).standard_normal((25, 2))
    padded = Stream(wide, stream.targets, 3, stream.gamma, stream.settings)
    whole = MotionBank.start(
        wide.shape[1], 3, order=order, half_lives=bank.half_lives, prior_vars=bank.prior_vars
    )
    expected, _ = cut(whole, padded, [25])
    grown, _ = cut(bank, stream[:25], [])
    grown = grown.add_features(2, np.array(bank.prior_vars))
    grown, _ = run(grown, read(grown, padded[25:]))
    for j in range(bank.n_filters):
        assert_same_posterior(grown.posterior(j), expected.posterior(j))


# ---- states -------------------------------------------------------------------------------------


def example(n, order=2, m=6, k=3, seed=0, dtype=np.float64, half_lives=(20.0, 1e3, math.inf)):
    rng = np.random.default_rng(seed)
    bank = MotionBank.start(m, k, order=order, half_lives=half_lives, prior_vars=0.5, dtype=dtype)
    options = {"noise_var": 0.3, "prior_var": 0.5}
    return bank, Stream(rng.standard_normal((n, m)), rng.integers(0, k, n), k, np.ones(n), options)


def contents(bank):
    """All numbers of a bank as bytes."""
    parts = [bank.arrays.mean, bank.arrays.mirrored(), bank.scales]
    parts += [np.array([bank.elapsed]), np.array(bank.prior_vars), np.array(bank.half_lives)]
    if bank.pending is not None:
        n = len(bank.pending)
        factor = [np.tril(each) for each in bank.pending.factor[:, :n, :n]]
        rest = bank.pending.ages, bank.pending.features, bank.pending.gains
        parts += [*rest, *factor, bank.pending.innovations, bank.pending.noise]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


def assert_same_state(one, other):
    assert contents(one) == contents(other)


@pytest.mark.parametrize("size", [1, 3, 12, 13, 70, 200])
@pytest.mark.parametrize("pending", [0, 3, 8])
def test_a_bank_can_be_continued_twice(pending, size):
    bank, stream = example(8 + 2 * size)
    origin, _ = cut(bank, stream[:pending], range(pending)) if pending else (bank, None)
    before = contents(origin)
    one, other = stream[8 : 8 + size], stream[8 + size :]
    alone, _ = cut(copy.deepcopy(origin), one, [])
    first, _ = cut(origin, one, [])
    kept = contents(first)
    second, _ = cut(origin, other, [])
    third, _ = cut(first, other, [])
    assert contents(origin) == before
    assert contents(first) == kept == contents(alone)
    assert_same_state(second, cut(copy.deepcopy(origin), other, [])[0])
    assert_same_state(third, cut(copy.deepcopy(first), other, [])[0])


@pytest.mark.parametrize("size", [1, 3, 12, 13, 70, 200])
def test_donate_gives_the_same_numbers_and_invalidates_the_bank(size):
    bank, stream = example(size + 5)
    origin, _ = cut(bank, stream[:5], range(5))
    rows = read(origin, stream[5:])
    expected, step = run(copy.deepcopy(origin), rows)
    actual, seen = run(origin, rows, donate=True)
    assert_same_state(actual, expected)
    assert seen.logit_mean.tobytes() == step.logit_mean.tobytes()
    for use in (
        lambda: origin.dtype,
        lambda: run(origin, rows),
        lambda: origin.posterior(0),
    ):
        with pytest.raises(DonatedState, match="donate=True"):
            use()


@pytest.mark.parametrize("order", ORDERS)
def test_a_saved_bank_continues_bit_for_bit(order):
    bank, stream = example(130, order=order)
    for cuts in ([], range(130), [7, 30]):
        middle, _ = cut(bank, stream[:60], cuts)
        saved = MotionBank(
            **{
                each.name: copy.deepcopy(getattr(middle, each.name))
                for each in fields(middle)
                if each.name != "memo"
            }
        )
        for restored in (saved, pickle.loads(pickle.dumps(middle)), copy.copy(middle)):
            for size in (1, 5, 70):
                ends = range(0, 70, size)
                one, left = cut(middle, stream[60:], ends)
                other, right = cut(restored, stream[60:], ends)
                assert_same_state(one, other)
                assert left["logit_mean"].tobytes() == right["logit_mean"].tobytes()


def test_other_prior_variances_count_from_then_on():
    bank, stream = example(30)
    bank, _ = cut(bank, stream[:10], range(10))
    changed, _ = run(bank, read(bank, stream[10:]), prior_vars=(2.0, 0.1, 0.5))
    assert changed.prior_vars == (2.0, 0.1, 0.5)
    for j, prior_var in enumerate(changed.prior_vars):
        state = start_moving(6, 3, order=2, prior_var=0.5)
        for i in range(30):
            tau = rate_of(2, bank.half_lives[j])
            state = moved(state, tau=tau, prior_var=0.5 if i < 10 else prior_var)
            mean, _ = predict_moving(state, stream.features[i])
            innovation = np.eye(3)[stream.targets[i]] - mean
            state = learn_moving(state, stream.features[i], innovation, 0.3)
        assert_close(changed.posterior(j).mean, state.weight_mean)
        assert_close(changed.posterior(j).cov, state.weight_cov)


def test_rows_without_targets_only_let_time_pass():
    bank, stream = example(20)
    bank, _ = cut(bank, stream, range(20))
    options = {"noise_var": 0.3, "prior_var": 0.5, "time_gap": np.array([2.0, 3.5])}
    empty = Rows.read(bank, stream.features[:2], np.array([-1, -1]), **options)
    later, step = run(bank, empty)
    assert np.isnan(step.nis).all()
    mean, var = ahead(bank, stream.features[5:6], np.array([6.5]))
    again, again_var = ahead(later, stream.features[5:6], np.array([1.0]))
    assert_close(again, mean)
    assert_close(again_var, var)


# ---- health -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("prior_var", [1.0, 1e6])
def test_long_runs_keep_symmetry_and_positive_variances(order, prior_var):
    rng = np.random.default_rng(order)
    n, m = 20_000, 5
    features = rng.standard_normal((n, m))
    features[:, 3] = features[:, 2]  # collinear
    features[:, 4] = 0.0  # never used
    labels = rng.integers(0, 3, n)
    half_lives = (3.0, 300.0, 1e7, math.inf)
    bank = MotionBank.start(m, 3, order=order, half_lives=half_lives, prior_vars=prior_var)
    sizes = [1, 7, 64, 100]
    start = 0
    while start < n:
        stop = min(n, start + sizes[start % 4])
        part = slice(start, stop)
        rows = Rows.read(bank, features[part], labels[part], noise_var=0.3, prior_var=1.0)
        bank, step = run(bank, rows, likelihood="softmax")
        assert (step.logit_var > 0.0).all()
        start = stop
    for j in range(4):
        mean, cov = bank.moments(j)
        assert np.isfinite(mean).all()
        assert np.array_equal(cov, cov.T)
        eigenvalues = np.linalg.eigvalsh(cov)
        assert eigenvalues.min() > -1e-12 * eigenvalues.max()
        never = cov[4::m, 4::m]
        np.testing.assert_allclose(never, prior_var * stationary_cov(order), rtol=1e-9, atol=1e-9)


def test_float32_is_close_or_refused():
    single, stream = example(120, dtype=np.float32)
    double, _ = example(120)
    one, left = cut(single, stream, [3, 50])
    _, right = cut(double, stream, [3, 50])
    assert one.posterior(0).cov.dtype == np.float32
    np.testing.assert_allclose(left["logit_mean"], right["logit_mean"], atol=1e-4)
    huge = MotionBank.start(2, 1, order=2, half_lives=50.0, prior_vars=1e8, dtype=np.float32)
    rows = Rows.read(huge, np.ones((3, 2)), np.ones((3, 1)), noise_var=1e-3, prior_var=1.0)
    before = contents(huge)
    with pytest.raises(NumericalError, match="float64"):
        run(huge, rows)
    assert contents(huge) == before


def test_a_long_gap_takes_no_digits_from_short_ones():
    rng = np.random.default_rng(0)
    features, targets = rng.standard_normal((40, 3)), rng.standard_normal((40, 1))
    gaps = np.full(40, 1e-3)
    gaps[20] = 1e15
    for order in ORDERS:
        bank = MotionBank.start(3, 1, order=order, half_lives=0.05, prior_vars=1.0)
        options = {"noise_var": 0.1, "prior_var": 1.0}
        rows = Rows.read(bank, features, targets, time_gap=gaps, **options)
        _, step = run(bank, rows)
        short = Rows.read(bank, features[20:], targets[20:], time_gap=gaps[20:], **options)
        _, expected = run(bank, short)
        assert_close(step.logit_mean[:, 20:], expected.logit_mean)
        assert_close(step.logit_var[:, 20:], expected.logit_var)


def test_errors_name_the_remedy():
    bank, stream = example(3)
    options = stream.settings | {"keep_mean": True}
    rows = Rows.read(bank, stream.features, stream.targets, **options)
    with pytest.raises(InvalidInput, match="order=1"):
        run(bank, rows)
    with pytest.raises(InvalidInput, match="order must be 1, 2 or 3"):
        MotionBank.start(2, 1, order=4, half_lives=1.0, prior_vars=1.0)
    with pytest.raises(InvalidInput, match="half_life must be above 0"):
        MotionBank.start(2, 1, order=2, half_lives=[1.0, 0.0], prior_vars=1.0)


def test_weights_that_move_in_a_line_are_followed():
    line = np.linspace(0.0, 10.0, 200)[:, None]
    errors = {}
    for order in ORDERS:
        bank = MotionBank.start(1, 1, order=order, half_lives=300.0, prior_vars=100.0)
        rows = Rows.read(bank, np.ones((200, 1)), line, noise_var=0.1, prior_var=1.0)
        _, step = run(bank, rows)
        errors[order] = np.abs(step.logit_mean[0, 100:] - line[100:]).mean()
    assert errors[2] < 0.5 * errors[1]
    assert errors[3] < 0.5 * errors[1]


def test_posteriors_are_copies():
    bank, stream = example(20)
    bank, _ = cut(bank, stream, [])
    before, posterior = contents(bank), bank.posterior(1)
    posterior.mean[:] = 7.0
    assert contents(bank) == before
    assert bits(posterior) == bits(bank.posterior(1))
