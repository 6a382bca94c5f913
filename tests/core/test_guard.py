"""Bad input and numerical problems raise an error that names the cause, and change no state."""

import math

import numpy as np
import pytest

from kalstream.core import (
    Fixed,
    Learned,
    Mixture,
    Posterior,
    add_outputs,
    gamma_of,
    half_life,
    health,
    init,
    step,
    step_chunk,
    transition,
    update,
)
from kalstream.errors import InvalidInput, KalstreamError, NumericalError
from oracles import assert_same_posterior, bits

M, K, N = 3, 2, 4
GOOD = {
    "features": np.arange(12.0).reshape(N, M) / 12.0,
    "targets": np.array([0, 1, -1, 1]),
    "gamma": 0.9,
    "noise_var": 0.5,
    "prior_var": 1.0,
}
ONES = np.ones((N, M))


def broken(value, where=(1, 1)):
    array = ONES.copy()
    array[where] = value
    return array


NOT_POSITIVE = [0.0, -1.0, math.nan, math.inf, "1", 1j, None, [1.0, 2.0]]
BAD = [
    *[
        ("features", value)
        for value in (
            ONES[:, :2],
            ONES[0],
            ONES[None],
            np.empty((0, M)),
            broken(np.inf),
            broken(-np.inf),
            broken(np.nan),
            ONES * 1j,
            ONES.astype(str),
            [[1.0, 2.0], [3.0]],
            None,
        )
    ],
    *[
        ("targets", value)
        for value in (
            [0, 1],
            [0, 1, 2, 1],
            [0, 1, -2, 1],
            [0.5, 1.0, 0.0, 1.0],
            [0.0, 1.0, -1.0, 1.0],
            [0.0, np.inf, 1.0, 1.0],
            np.ones((N, 3)),
            np.ones((3, K)),
            np.array([[1.0, np.inf]] * N),
            np.array([[1.0, np.nan]] * N),
            np.ones((N, K)) * 1j,
            ["a", "b", "a", "b"],
            [],
        )
    ],
    *[
        ("gamma", value)
        for value in (-0.1, 1.1, np.nan, np.inf, [0.9] * 3, [0.9, 2.0, 1, 1], "x", 1j)
    ],
    *[(name, value) for name in ("noise_var", "prior_var") for value in NOT_POSITIVE],
    *[
        (name, value)
        for name in ("sample_weight", "time_gap")
        for value in (-1.0, np.nan, np.inf, [1.0] * 3, [1.0, 1.0, -1.0, 1.0], "x", 1j)
    ],
    *[("transition", value) for value in ("always", "", None, 1)],
]
IDS = [f"{name}-{i}" for i, (name, _) in enumerate(BAD)]


def mid_stream():
    posterior, _ = step_chunk(init(M, K, prior_var=1.0), **GOOD)
    return posterior


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize(("argument", "value"), BAD, ids=IDS)
def test_bad_input_is_named_and_changes_nothing(argument, value, donate):
    posterior = mid_stream()
    before = bits(posterior)
    with pytest.raises(InvalidInput, match=argument) as caught:
        step_chunk(posterior, donate=donate, **GOOD | {argument: value})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, KalstreamError)
    assert bits(posterior) == before
    step_chunk(posterior, donate=donate, **GOOD)  # it can still learn


@pytest.mark.parametrize(
    "policy", [Fixed(0.9), Learned(0.9), Mixture()], ids=lambda p: type(p).__name__
)
@pytest.mark.parametrize(
    ("argument", "value"),
    [(name, value) for name, value in BAD if name != "gamma"],
    ids=[i for i in IDS if not i.startswith("gamma")],
)
def test_bad_input_to_a_policy_is_named_and_changes_nothing(argument, value, policy):
    good = {name: v for name, v in GOOD.items() if name != "gamma"}
    state, _ = policy.step_chunk(policy.start(M, K, prior_var=1.0), **good)
    expected, _ = policy.step_chunk(state, **good)
    with pytest.raises(InvalidInput, match=argument):
        policy.step_chunk(state, donate=True, **good | {argument: value})
    after, _ = policy.step_chunk(state, **good)
    one, other = (
        s.posteriors if isinstance(policy, Mixture) else (s.posterior,) for s in (expected, after)
    )
    assert list(map(bits, one)) == list(map(bits, other))
    assert np.array_equal(expected.seen, after.seen)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda p: update(p, [1.0, 1.0], 0, noise_var=1.0), "features"),
        (lambda p: update(p, [[1.0, 1.0, 1.0]], 0, noise_var=1.0), "features"),
        (lambda p: update(p, [1.0, 1.0, np.nan], 0, noise_var=1.0), "features"),
        (lambda p: update(p, [1.0, 1.0, 1.0], 7, noise_var=1.0), "target"),
        (lambda p: update(p, [1.0, 1.0, 1.0], [0.0, np.inf], noise_var=1.0), "target"),
        (lambda p: update(p, [1.0, 1.0, 1.0], [0.0, np.nan], noise_var=1.0), "target"),
        (lambda p: update(p, [1.0, 1.0, 1.0], [0.0, 1.0, 2.0], noise_var=1.0), "target"),
        (lambda p: update(p, [1.0, 1.0, 1.0], 0, noise_var=0.0), "noise_var"),
        (lambda p: transition(p, gamma=1.5, prior_var=1.0), "gamma"),
        (lambda p: transition(p, gamma=np.nan, prior_var=1.0), "gamma"),
        (lambda p: transition(p, gamma=0.5, prior_var=-1.0), "prior_var"),
        (lambda p: step(p, [1.0] * 3, 0, gamma=2, noise_var=1.0, prior_var=1.0), "gamma"),
        (lambda p: add_outputs(p, 0), "n_outputs"),
        (lambda p: add_outputs(p, 1.5), "n_outputs"),
    ],
)
def test_textbook_names_bad_input(call, named):
    posterior = mid_stream()
    before = bits(posterior)
    with pytest.raises(InvalidInput, match=named):
        call(posterior)
    assert bits(posterior) == before


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: init(0, 1, prior_var=1.0), "n_features"),
        (lambda: init(True, 1, prior_var=1.0), "n_features"),
        (lambda: init(2.0, 1, prior_var=1.0), "n_features"),
        (lambda: init(1, -1, prior_var=1.0), "n_outputs"),
        (lambda: init(1, 1, prior_var=0.0), "prior_var"),
        (lambda: init(1, 1, prior_var=1.0, dtype=np.float16), "dtype"),
        (lambda: init(1, 1, prior_var=1.0, dtype="nonsense"), "dtype"),
        (lambda: Posterior(np.ones(2), np.eye(2)), "mean"),
        (lambda: Posterior(np.ones((2, 1)), np.eye(3)), "cov"),
        (lambda: Posterior(np.ones((2, 1)), [[1.0, 0.5], [0.0, 1.0]]), "cov"),
        (lambda: Posterior(np.ones((2, 1)), -np.eye(2)), "cov"),
        (lambda: Posterior([[np.nan]], [[1.0]]), "mean"),
        (lambda: Posterior([[1.0]], [[np.inf]]), "cov"),
        (lambda: Fixed(1.5), "gamma"),
        (lambda: Fixed("x"), "gamma"),
        (lambda: Fixed(0.9, calibration=0.0), "calibration"),
        (lambda: Learned(0.0), "init"),
        (lambda: Learned(2.0), "init"),
        (lambda: Learned(lr=-1.0), "lr"),
        (lambda: Learned(lr=math.inf), "lr"),
        (lambda: Mixture(half_lives=()), "half_lives"),
        (lambda: Mixture(half_lives=(0.0,)), "half_li"),
        (lambda: Mixture(half_lives=(math.nan,)), "half_li"),
        (lambda: Mixture(half_lives=("long",)), "half_li"),
        (lambda: Mixture(calibrations=(-1.0,)), "calibrations"),
        (lambda: Mixture(share=2.0), "share"),
        (lambda: Mixture(predictive="other"), "predictive"),
        (lambda: gamma_of(-1.0), "half_life"),
        (lambda: half_life(1.5), "gamma"),
    ],
)
def test_bad_settings_are_named(call, named):
    with pytest.raises(InvalidInput, match=named):
        call()


@pytest.mark.parametrize("policy", [Fixed(0.9), Mixture()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize(
    ("argument", "value"),
    [("features", broken(np.nan)), ("prior_var", 0.0), ("time_gap", -1.0)],
)
def test_predict_names_bad_input(argument, value, policy):
    state = policy.start(M, K, prior_var=1.0)
    with pytest.raises(InvalidInput, match=argument):
        policy.predict(state, **{"features": ONES, "prior_var": 1.0} | {argument: value})


# Features so large that noise_var is lost in the rounding of the predicted variance.
SCALES = {np.float64: 1e9, np.float32: 1e4}


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("n_good", [0, 10, 200])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_badly_scaled_features_raise_and_change_nothing(dtype, n_good, donate):
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((n_good + 5, M)), rng.integers(0, K, n_good + 5)
    good = features.copy()
    features[n_good:] *= SCALES[dtype]
    options = {"gamma": 0.99, "noise_var": 0.5, "prior_var": 1.0}
    posterior = init(M, K, prior_var=1.0, dtype=dtype)
    for row, label in zip(good[:3], labels[:3], strict=True):  # some updates are deferred
        posterior, _ = step_chunk(posterior, row[None], [label], **options)
    if donate:  # no other state shares its arrays, so that they may be overwritten
        posterior = Posterior(posterior.mean, posterior.cov)
    before = bits(posterior)
    with pytest.raises(NumericalError, match="scale the features") as caught:
        step_chunk(posterior, features, labels, donate=donate, **options)
    message = str(caught.value)
    assert f"row {n_good}" in message
    assert "noise_var" in message
    assert ("float64" in message) or dtype == np.float64
    assert isinstance(caught.value, ArithmeticError)
    assert bits(posterior) == before
    fresh = Posterior(posterior.mean, posterior.cov)
    expected, _ = step_chunk(fresh, good, labels, **options)
    after, _ = step_chunk(posterior, good, labels, donate=donate, **options)
    assert_same_posterior(after, expected, rtol=1e-12 if dtype == np.float64 else 1e-4)


HUGE = [
    ("features", np.float64, 1e200),
    ("features", np.float64, 1e308),
    ("features", np.float32, 1e30),
    ("features", np.float32, 1e39),  # inf in float32
    ("targets", np.float64, 1e200),
    ("targets", np.float64, 1.7e308),
    ("targets", np.float32, 1e39),
]


@pytest.mark.parametrize("entry", ["step_chunk", "step", "Learned", "Mixture"])
@pytest.mark.parametrize(("argument", "dtype", "size"), HUGE)
def test_huge_numbers_give_a_finite_state_or_a_typed_error(argument, dtype, size, entry):
    features, targets = np.ones((2, 2)), np.zeros((2, 1))
    (features if argument == "features" else targets)[0] = size
    targets[1] = -targets[0]
    shared = {"noise_var": 1e-4, "prior_var": 1.0}
    before = init(2, 1, prior_var=1.0, dtype=dtype)
    try:
        if entry == "step_chunk":
            posterior, _ = step_chunk(before, features, targets, gamma=0.9, **shared)
        elif entry == "step":
            posterior, _ = step(before, features[0], targets[0], gamma=0.9, **shared)
        else:
            policy = Learned(1.0, lr=1.0) if entry == "Learned" else Mixture()
            state = policy.start(2, 1, prior_var=1.0, dtype=dtype)
            # one row at a time, so that no later row detects it
            for phi, y in zip(features, targets, strict=True):
                state, _ = policy.step_chunk(state, phi[None], y[None], **shared)
            if entry == "Learned":
                assert math.isfinite(state.delta)
                posterior = state.posterior
            else:
                assert np.isfinite(state.weights).all()
                posterior = state.posteriors[0]
    except KalstreamError:
        return
    assert np.isfinite(posterior.mean).all()
    assert np.isfinite(posterior.cov).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int8, np.uint8, bool])
def test_features_of_any_numeric_type(kind, dtype):
    posterior = init(2, 1, prior_var=1.0, dtype=dtype)
    options = {"gamma": 0.9, "noise_var": 1.0, "prior_var": 1.0}
    features = np.array([[0, 1], [1, 1]])
    expected, _ = step_chunk(posterior, features.astype(float), [0.5, 1.0], **options)
    actual, _ = step_chunk(posterior, features.astype(kind), [0.5, 1.0], **options)
    assert bits(actual) == bits(expected)
    if np.issubdtype(kind, np.floating):
        for value in (np.inf, -np.inf, np.nan):
            bad = features.astype(kind)
            bad[1, 0] = value
            with pytest.raises(InvalidInput, match="features"):
                step_chunk(posterior, bad, [0.5, 1.0], **options)


def test_a_row_without_target_may_have_large_features():
    posterior = mid_stream()
    after, seen = step_chunk(
        posterior,
        np.full((1, M), 1e12),
        [-1],
        **{k: GOOD[k] for k in ("gamma", "noise_var", "prior_var")},
    )
    assert np.isfinite(seen.logit_var).all()
    assert np.isinf(seen.noise_var).all()
    assert np.isfinite(after.cov).all()


def test_health_of_a_known_step():
    posterior, seen = step_chunk(
        init(2, 1, prior_var=1.0),
        [[1.0, 0.0], [1.0, 0.0]],
        [2.0, np.nan],
        gamma=[1.0, 0.5],
        noise_var=3.0,
        prior_var=1.0,
    )
    report = health(posterior, seen)
    assert report.smallest_innovation_var == pytest.approx(4.0)
    assert report.asymmetry == 0.0
    assert report.nis == pytest.approx(1.0)
    assert report.largest_variance == pytest.approx(1.0)
    assert report.smallest_variance == pytest.approx(0.25 * 0.75 + 0.75)
    assert report.effective_memory == pytest.approx(2 * 3.0 / 1.0)


def test_effective_memory_counts_the_rows_with_weight():
    rng = np.random.default_rng(2)
    features = rng.standard_normal((3000, 4))
    options = {"noise_var": 1.0, "prior_var": 100.0}

    def memory(gamma, n):
        posterior = init(4, 1, prior_var=100.0)
        posterior, _ = step_chunk(posterior, features[:n], np.zeros(n), gamma=gamma, **options)
        return health(
            *step_chunk(posterior, features[n : n + 50], np.zeros(50), gamma=gamma, **options)
        ).effective_memory

    # the median over rows of noise_var / logit_var is above their harmonic mean, which is n
    assert 1.0 < memory(1.0, 1000) / 1000 < 2.0
    assert memory(1.0, 2900) / memory(1.0, 1000) == pytest.approx(2.9, rel=0.25)
    assert memory(0.99, 2900) == pytest.approx(memory(0.99, 1000), rel=0.25)
    assert memory(0.9, 1000) < memory(0.99, 1000) < memory(1.0, 1000)


def test_health_of_zero_features():
    posterior, seen = step_chunk(
        init(3, 1, prior_var=1.0),
        np.zeros((2, 3)),
        [0.0, 0.0],
        gamma=1.0,
        noise_var=1e3,
        prior_var=1.0,
    )
    assert health(posterior, seen).smallest_innovation_var == 1e3


def test_health_without_targets():
    posterior, seen = step_chunk(
        init(2, 1, prior_var=1.0), [[1.0, 1.0]], [np.nan], gamma=1.0, noise_var=1.0, prior_var=1.0
    )
    report = health(posterior, seen)
    assert math.isnan(report.nis)
    assert report.smallest_innovation_var == math.inf
    assert math.isnan(report.effective_memory)


def test_nis_shows_whether_noise_var_fits():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((4000, 2))
    targets = features[:, :1] + rng.standard_normal((4000, 1))
    actual = [
        health(
            *step_chunk(
                init(2, 1, prior_var=1.0), features, targets, gamma=1.0, noise_var=v, prior_var=1.0
            )
        ).nis
        for v in (1.0, 0.25, 4.0)
    ]
    assert actual == pytest.approx([1.0, 4.0, 0.25], rel=0.1)
