"""All input is checked before it reaches compiled code: a call works, or raises InvalidInput."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kalstream.core import (
    Alpha,
    Calibration,
    FilterState,
    Fixed,
    Learned,
    Mixture,
    MixtureState,
    MixtureStep,
    Posterior,
    Stack,
    Step,
    class_probabilities,
    delta_gradient,
    drift,
    gaussian_log_density,
    health,
    init,
    label_log_prob,
    mixture_log_density,
    mixture_probabilities,
    predict,
    ridge_posterior,
)
from kalstream.core._kernels.mixture import log_gamma_ratio
from kalstream.core.bank import BankStep
from kalstream.errors import InvalidInput, KalstreamError

N, M, K, J, C = 6, 2, 3, 2, 2
POLICY = Mixture(half_lives=(10.0, np.inf), calibrations=(1.0, 5.0), predictive="probit")
SETTINGS = {"noise_var": 0.1, "prior_var": 1.0}
LABELS = np.array([0, 1, 2, 0, 1, 2])
NAN = float("nan")


@pytest.fixture(scope="module")
def learned() -> tuple[MixtureState, MixtureStep, Stack, Any]:
    """A state, its last step, a stack that learned the step, and plain probabilities."""
    rows = np.random.default_rng(0).standard_normal((N, M))
    state, step = POLICY.step_chunk(POLICY.start(M, K, prior_var=1.0), rows, LABELS, **SETTINGS)
    stack, _ = Stack.start(J, K).learn(step, LABELS)
    return state, step, stack, mixture_probabilities(step, method="probit")


# ---- weights of a mixture -----------------------------------------------------------------


@pytest.mark.parametrize("learn_scale", [False, True])
@pytest.mark.parametrize("share", [0.0, 1e-12, 0.001, 1.0])
@pytest.mark.parametrize("size", [1.0, 1e7, 1e8, 1e9, 1e20, 1e60, 1e99])
def test_weights_sum_to_1_for_any_target(size: float, share: float, learn_scale: bool) -> None:
    rng = np.random.default_rng(0)
    policy = Mixture(share=share, learn_scale=learn_scale)
    rows, targets = rng.standard_normal((60, 2)), rng.standard_normal((60, 1))
    weight = np.ones(60)
    targets[[20, 21, 40]] = [[size], [-size], [size]]
    weight[40] = 1e6
    targets[50:] = np.nan  # weights must not change either where no target is known
    state = policy.start(2, 1, prior_var=1.0)
    state, step = policy.step_chunk(
        state, rows, targets, noise_var=1.0, prior_var=1.0, sample_weight=weight
    )
    prediction = policy.predict(state, rows, prior_var=1.0)
    for weights in (step.half_life_weights, prediction.half_life_weights, state.weights[None]):
        each = weights.reshape(len(weights), -1)
        assert np.abs(each.sum(axis=1) - 1.0).max() < 1e-12
        assert (each >= 0.0).all()
    assert np.isfinite(prediction.mean).all()
    assert not np.isnan(state.log_weights).any()


def test_weights_sum_to_1_without_targets() -> None:
    policy = Mixture(share=1e-7)
    state = policy.start(1, 1, prior_var=1.0)
    rows, targets = np.ones((20_000, 1)), np.full((20_000, 1), np.nan)
    _, step = policy.step_chunk(state, rows, targets, **SETTINGS)
    assert abs(step.half_life_weights[-1].sum() - 1.0) < 1e-14


@pytest.mark.parametrize("x", [0.5, 7.0, 1e5, 2e6, 1e9, 1e15, 1e40])
def test_ratio_of_gamma_functions(x: float) -> None:
    # Gamma(x + 1) = x Gamma(x)
    assert log_gamma_ratio(x, 1.0) == pytest.approx(np.log(x), rel=1e-10, abs=1e-10)
    three = np.log(x) + np.log(x + 1.0) + np.log(x + 2.0)
    assert log_gamma_ratio(x, 3.0) == pytest.approx(three, rel=1e-10, abs=1e-10)


# ---- the softmax integral -----------------------------------------------------------------


@pytest.mark.parametrize("gap", [1e3, 1e9, 1e140])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_distant_logits_with_large_variance_are_fast(gap: float, n_classes: int) -> None:
    # Once, two classes this far apart took a loop of gap / 0.65 steps.
    mean = np.zeros((1, n_classes))
    mean[0, 1:] = -gap
    probabilities = class_probabilities(mean, 100.0**2)
    assert probabilities[0, 0] == pytest.approx(1.0, abs=1e-4)


# ---- the stack ----------------------------------------------------------------------------


def bad_calls() -> dict[str, Any]:
    """Bad calls of a stack; once, they crashed the interpreter or wrote outside of an array."""
    short = np.full((2, K), 1 / K)
    return {
        "label too large": lambda s, t, p: s.learn(t, np.full(N, K)),
        "label far too large": lambda s, t, p: s.learn(t, np.full(N, 10**9)),
        "label below -1": lambda s, t, p: s.learn(t, np.full(N, -2)),
        "label far below": lambda s, t, p: s.learn(t, np.full(N, -(2**62))),
        "labels of uint64": lambda s, t, p: s.learn(t, np.full(N, 2**64 - 1, np.uint64)),
        "labels of floats": lambda s, t, p: s.learn(t, LABELS.astype(float)),
        "labels of strings": lambda s, t, p: s.learn(t, ["a"] * N),
        "few labels": lambda s, t, p: s.learn(t, LABELS[:2]),
        "many labels": lambda s, t, p: s.learn(t, np.tile(LABELS, 2)),
        "labels of two dimensions": lambda s, t, p: s.learn(t, LABELS[:, None]),
        "no labels": lambda s, t, p: s.learn(t, None),
        "short plain": lambda s, t, p: s.learn(t, LABELS, plain=short),
        "narrow plain": lambda s, t, p: s.learn(t, LABELS, plain=p[:, :1]),
        "wide plain": lambda s, t, p: s.learn(t, LABELS, plain=np.zeros((N, 50))),
        "flat plain": lambda s, t, p: s.learn(t, LABELS, plain=p.ravel()),
        "short weight": lambda s, t, p: s.learn(t, LABELS, np.ones(2)),
        "negative weight": lambda s, t, p: s.learn(t, LABELS, np.full(N, -1.0)),
        "NaN weight": lambda s, t, p: s.learn(t, LABELS, np.full(N, NAN)),
        "a string for a flag": lambda s, t, p: s.learn(t, LABELS, ordered="yes"),
        "predict: short plain": lambda s, t, p: s.predict(t, short),
        "predict: narrow plain": lambda s, t, p: s.predict(t, p[:, :1]),
        "predict: no step": lambda s, t, p: s.predict((t,), p),
        "other filters": lambda s, t, p: Stack.start(J + 1, K).learn(t, LABELS),
        "fewer filters": lambda s, t, p: Stack.start(1, K).predict(t, p),
        "more classes than outputs": lambda s, t, p: s.add_classes(9).learn(
            t, np.full(N, 8), plain=p
        ),
        "add_classes: fewer": lambda s, t, p: s.add_classes(K - 1),
        "add_classes: a float": lambda s, t, p: s.add_classes(5.5),
        "keep_classes: too large": lambda s, t, p: s.keep_classes([K]),
        "keep_classes: negative": lambda s, t, p: s.keep_classes([-1]),
        "keep_classes: twice": lambda s, t, p: s.keep_classes([0, 0]),
        "keep_classes: none": lambda s, t, p: s.keep_classes([]),
        "keep_classes: bools": lambda s, t, p: s.keep_classes(np.array([True, False, True])),
        "start: no filters": lambda s, t, p: Stack.start(0, 2),
        "start: negative classes": lambda s, t, p: Stack.start(2, -1),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_stack_refuses(learned: Any, name: str) -> None:
    _, step, stack, plain = learned
    before = repr(stack), plain.copy()
    with pytest.raises(InvalidInput):
        bad_calls()[name](stack, step, plain)
    assert repr(stack) == before[0]
    np.testing.assert_array_equal(plain, before[1])


def test_the_last_row_may_have_a_class_without_a_column(learned: Any) -> None:
    # The estimators call it in this way: a part of the rows ends with a new class.
    _, step, _, plain = learned
    labels = np.array([0, 1, 1, 0, 1, 2])
    stack, probabilities = Stack.start(J, K).learn(step, labels, plain=plain[:, :2], ordered=True)
    assert probabilities.shape == (N, 2)
    assert stack.counts.tolist() == [2.0, 3.0, 1.0]
    wide, _ = Stack.start(J, K).learn(step, labels, plain=plain, ordered=True)
    np.testing.assert_array_equal(stack.coef, wide.coef)


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": np.zeros(K + 1)},
        {"counts": np.zeros((K, 1))},
        {"counts": np.full(K, NAN)},
        {"counts": None},
        {"recent": np.zeros((1, K))},
        {"stays": np.zeros((1, 2))},
        {"coef": np.zeros(3)},
        {"coef": np.full(J + 6, np.inf)},
        {"precision": np.eye(2)},
        {"last": K},
        {"last": -5},
        {"last": 10**9},
        {"last": 1.5},
        {"belief": NAN},
        {"belief": 2.0},
        {"belief": "much"},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_stack_refuses_inconsistent_parts(learned: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="stack"):
        replace(learned[2], **changes)


def test_a_stack_without_a_solution_is_refused(learned: Any) -> None:
    _, step, stack, _ = learned
    with pytest.raises(KalstreamError):
        replace(stack, precision=-1e6 * np.eye(J + 6)).learn(step, LABELS)


# ---- steps and states of a mixture --------------------------------------------------------


def bank_step(**changes: Any) -> BankStep:
    each = np.ones((J, N))
    parts: dict[str, Any] = {
        "logit_mean": np.zeros((J, N, K)),
        "logit_var": each,
        "gamma": each,
        "noise_var": np.ones(N),
        "nis": each,
    }
    return BankStep(**parts | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": np.ones((N, J, C + 1))},
        {"weights": np.ones((1, J, C))},
        {"weights": np.ones((J, C))},
        {"calibrations": (1.0,)},
        {"calibrations": ()},
        {"calibrations": "ab"},
        {"bank": None},
        {"bank": bank_step(logit_var=np.ones((J, 1)))},
        {"bank": bank_step(logit_mean=np.zeros((J, 2, K)))},
        {"bank": bank_step(logit_mean=np.zeros((1, N, K)))},
        {"bank": bank_step(logit_mean=np.zeros((N, K)))},
        {"bank": bank_step(logit_mean=None)},
        {"bank": bank_step(logit_var=np.full((J, N), 1j))},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_step_refuses_inconsistent_parts(learned: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        replace(learned[1], **changes)


@pytest.mark.parametrize("method", ["exact", "probit", "monte-carlo", "plug-in"])
@pytest.mark.parametrize(
    "changes",
    [
        {"calibrations": (-1.0, 1.0)},
        {"calibrations": (1e300, 1.0)},
        {"bank": bank_step(logit_mean=np.full((J, N, K), NAN))},
        {"bank": bank_step(logit_mean=np.zeros((J, N, 0)))},
        {"bank": bank_step(logit_mean=np.full((J, N, K), 1e200))},
        {"bank": bank_step(logit_var=np.full((J, N), NAN))},
        {"bank": bank_step(logit_var=np.full((J, N), np.inf))},
        {"weights": np.full((N, J, C), NAN)},
        {"weights": np.full((N, J, C), -1.0)},
        {"weights": np.zeros((N, J, C))},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_probabilities_refuse_invalid_steps(learned: Any, changes: Any, method: Any) -> None:
    # Once, NaN became an index into the table of the integral.
    with pytest.raises(InvalidInput):
        mixture_probabilities(replace(learned[1], **changes), method=method)


def test_the_order_of_axes_in_memory_does_not_matter(learned: Any) -> None:
    _, step, stack, plain = learned
    reordered = replace(
        step,
        bank=replace(step.bank, logit_mean=np.asfortranarray(step.logit_mean)),
        weights=np.asfortranarray(step.weights),
    )
    np.testing.assert_array_equal(
        mixture_probabilities(reordered, method="probit"),
        mixture_probabilities(step, method="probit"),
    )
    from_reordered = stack.learn(reordered, np.tile(LABELS, 2)[::2], plain=np.asfortranarray(plain))
    from_original = stack.learn(step, np.tile(LABELS, 2)[::2].copy(), plain=plain)
    np.testing.assert_array_equal(from_reordered[1], from_original[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"seen": np.zeros(K + 5, bool)},
        {"seen": np.zeros(K)},
        {"seen": None},
        {"log_weights": np.zeros((J, C))},
        {"log_weights": np.full((J, C), 1e4)},
        {"log_weights": np.full((J, C), NAN)},
        {"log_weights": np.full((J, C), -np.inf)},
        {"log_weights": np.full((J, C + 1), -np.log(J * (C + 1)))},
        {"spread": np.zeros((J, 3))},
        {"spread": np.full((J, 2), -1.0)},
        {"spread": np.full((J, 2), np.inf)},
        {"half_lives": (10.0,)},
        {"calibrations": (1.0,)},
        {"bank": None},
        {"bank": Mixture(half_lives=(1.0,)).start(M, K, prior_var=1.0).bank},
        {"bank": POLICY.start(M, K + 1, prior_var=1.0).bank},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_state_refuses_inconsistent_parts(learned: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        replace(learned[0], **changes)


@pytest.mark.parametrize(
    "policy", [POLICY, Fixed(0.9), Learned(0.9)], ids=lambda p: type(p).__name__
)
def test_growing_and_keeping_refuse(policy: Any) -> None:
    state = policy.start(M, K, prior_var=1.0)
    for columns in ([K], [-1], [0, 0], [], [[0]], [0.5], None, np.array([True, False, True])):
        with pytest.raises(InvalidInput):
            state.keep_outputs(columns)
    for number in (0, -1, 1.5, "two", None):
        with pytest.raises(InvalidInput):
            state.add_outputs(number)
        with pytest.raises(InvalidInput):
            state.add_features(number, 1.0)
    for prior_var in (0.0, -1.0, NAN, 1e300, "x"):
        with pytest.raises(InvalidInput):
            state.add_features(1, prior_var)
    assert state.keep_outputs([2, 0]).posterior.n_outputs == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"seen": np.zeros(K + 9, bool)},
        {"seen": np.zeros(K, np.int64)},
        {"delta": NAN},
        {"delta": -3.0},
        {"delta": "x"},
        {"posterior": None},
        {"alpha": None},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_filter_refuses_inconsistent_parts(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        replace(Learned(0.9).start(M, K, prior_var=1.0), **changes)
    assert isinstance(Fixed(0.9).start(M, K, prior_var=1.0), FilterState)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Alpha(NAN, 1.0),
        lambda: Alpha(1e4, 1.0),
        lambda: Alpha(0.0, -1.0),
        lambda: Calibration(1e300),
        lambda: Calibration(1.0, spread=1e5),
        lambda: Calibration(1.0, spread=NAN),
        lambda: Calibration().learn(None, 1.0),
        lambda: Calibration().learn(Alpha(0.0, 1.0), NAN),
        lambda: Calibration().learn(Alpha(0.0, 1.0), 1.0, weight=-1.0),
        lambda: Mixture(calibrations=(1e300,)),
        lambda: Mixture(half_lives=[[1.0], [1.0, 2.0]]),
        lambda: Mixture(predictive=np.array(["exact", "probit"])),
        lambda: Fixed(np.ma.masked),
        lambda: Posterior([[1e200]], [[1.0]]),
        lambda: Posterior([[1.0]], [[1e200]]),
        lambda: Posterior([[NAN]], [[1.0]]),
        lambda: class_probabilities(np.ma.masked_array([1.0, 2.0], [True, False]), 1.0),
        lambda: class_probabilities([1.0, 2.0 + 1j], 1.0),
        lambda: class_probabilities([1.0, 2.0], NAN),
        lambda: label_log_prob([1.0, 2.0], 1.0, 2),
        lambda: label_log_prob([1.0, 2.0], 1.0, -1),
        lambda: label_log_prob([1.0, 2.0], 1.0, "a"),
        lambda: label_log_prob([[1.0, 2.0]], 1.0, np.array([2**63], np.uint64)),
        lambda: gaussian_log_density([1.0, 2.0], [1.0, 2.0, 3.0], 1.0),
        lambda: mixture_log_density(0.0, [0.0, 9.0], [1.0, 1.0], [NAN, 0.0]),
        lambda: mixture_log_density([0.0] * 3, np.zeros((2, 3)), np.ones((2, 3)), np.ones((2, 4))),
        lambda: drift("a", gamma=0.5, prior_var=1.0),
        lambda: predict(None, [1.0]),
        lambda: delta_gradient(None, [1.0], 1.0, gamma=1.0, **SETTINGS),
        lambda: delta_gradient(init(1, 1, prior_var=1.0), [NAN], 1.0, gamma=1.0, **SETTINGS),
        lambda: ridge_posterior([[1e99]], [[1.0]], noise_var=1e-300, prior_var=1.0),
        lambda: health(None, None),
        lambda: health(init(1, 1, prior_var=1.0), Step(*[np.ones(n) for n in (2, 3, 1, 2, 5)])),
    ],
)
def test_other_calls_refuse(call: Any) -> None:
    with pytest.raises(InvalidInput):
        call()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_posterior_refuses_nan_and_inf_in_any_precision(dtype: Any, value: float) -> None:
    mean = np.zeros((2, 1), dtype)
    mean[1] = value
    with pytest.raises(InvalidInput, match=rf"mean holds {value} at index \(1, 0\)"):
        Posterior(mean, np.eye(2))
