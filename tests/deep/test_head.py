"""The head against the core: values, gradients, learned forgetting, errors."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from kalstream.core import (  # noqa: E402
    Fixed,
    Learned,
    class_probabilities,
    label_log_prob,
    step_chunk,
)
from kalstream.core import init as start  # noqa: E402
from kalstream.deep import KalmanHead, predictive  # noqa: E402
from kalstream.deep.filter import decay  # noqa: E402
from kalstream.errors import InvalidInput, NumericalError  # noqa: E402

torch.set_num_threads(1)
SIZES = ((1, 2, 1), (3, 2, 7), (12, 5, 33), (64, 10, 63), (5, 3, 100))


def rows(rng: np.random.Generator, n: int, m: int, k: int) -> tuple[Any, Any]:
    return rng.standard_normal((n, m)), rng.integers(k, size=n)


@settings(max_examples=40, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    gamma=st.sampled_from([0.0, 0.3, 0.9, 0.999, 1.0]),
    noise_var=st.floats(0.05, 2.0),
    prior_var=st.floats(0.05, 3.0),
    transition=st.sampled_from(["example", "chunk"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_fixed_gamma_equals_the_core(size, gamma, noise_var, prior_var, transition, seed) -> None:
    m, k, b = size
    rng = np.random.default_rng(seed)
    options = {"noise_var": noise_var, "prior_var": prior_var}
    head = KalmanHead(m, k, gamma=gamma, transition=transition, **options)
    state = start(m, k, prior_var=prior_var)
    for _ in range(3):
        X, y = rows(rng, b, m, k)
        state, step = step_chunk(state, X, y, gamma=gamma, transition=transition, **options)
        ours = head.observe(torch.from_numpy(X), torch.from_numpy(y))
        np.testing.assert_allclose(ours.logit_mean, step.logit_mean, atol=1e-10)
        np.testing.assert_allclose(ours.logit_var, step.logit_var, atol=1e-10)
    np.testing.assert_allclose(head.mean, state.mean, atol=1e-10)
    np.testing.assert_allclose(head.cov, state.cov, atol=1e-10)
    assert head.n_seen == 3 * b


@pytest.mark.parametrize("transition", ["example", "chunk"])
@pytest.mark.parametrize(("gamma", "lr"), [(0.99, 0.1), (0.9, 0.02), (1.0, 0.05), (0.999, 0.5)])
@pytest.mark.parametrize("size", SIZES)
def test_learned_gamma_equals_the_core(size: Any, gamma: float, lr: float, transition: str) -> None:
    m, k, b = size
    rng = np.random.default_rng(0)
    options = {"noise_var": 0.2, "prior_var": 0.7}
    head = KalmanHead(m, k, gamma=gamma, gamma_lr=lr, transition=transition, **options)
    policy = Learned(init=gamma, lr=lr, calibration=1.0, calibrated=False)
    state = policy.start(m, k, prior_var=0.7)
    weights = rng.standard_normal((m, k))
    for turn in range(4):
        X = rng.standard_normal((b, m))
        y = (X @ weights * (1 if turn < 2 else -1) + 0.3 * rng.standard_normal((b, k))).argmax(1)
        state, step = policy.step_chunk(state, X, y, transition=transition, **options)
        ours = head.observe(torch.from_numpy(X), torch.from_numpy(y))
        # The error from the integral's derivatives grows with the learning rate.
        np.testing.assert_allclose(ours.gamma, step.gamma, atol=1e-8)
        np.testing.assert_allclose(ours.logit_mean, step.logit_mean, atol=1e-7)
        np.testing.assert_allclose(ours.logit_var, step.logit_var, atol=1e-7)
    assert head.gamma == pytest.approx(state.gamma, abs=1e-8)
    np.testing.assert_allclose(head.mean, state.posterior.mean, atol=1e-7)


@pytest.mark.parametrize("transition", ["example", "chunk"])
@pytest.mark.parametrize("sizes", [(1, 1, 20, 3), (33, 63), (100, 7, 1)])
def test_late_and_missing_classes_equal_the_core(sizes: Any, transition: str) -> None:
    """Seven of ten declared classes come, one by one; learned gammas do not depend on the rest."""
    rng = np.random.default_rng(2)
    options = {"noise_var": 0.2, "prior_var": 0.7}
    ten, hundred = (
        KalmanHead(5, k, gamma=0.98, gamma_lr=0.1, transition=transition, **options)
        for k in (10, 100)
    )
    policy = Learned(init=0.98, lr=0.1, calibration=1.0, calibrated=False)
    state = policy.start(5, 10, prior_var=0.7)
    X, first = rng.standard_normal((sum(sizes), 5)), 0
    y = rng.integers(np.arange(1, len(X) + 1).clip(max=7))
    for b in sizes:
        part = slice(first, first + b)
        first += b
        state, step = policy.step_chunk(state, X[part], y[part], transition=transition, **options)
        rows = torch.from_numpy(X[part]), torch.from_numpy(y[part])
        ours, same = ten.observe(*rows), hundred.observe(*rows)
        np.testing.assert_allclose(ours.gamma, step.gamma, atol=1e-8)
        np.testing.assert_allclose(same.gamma, step.gamma, atol=1e-8)
        np.testing.assert_array_equal(ten.seen, state.seen)
    assert 1 < state.seen.sum() <= 7
    assert abs(ten.gamma - 0.98) > 1e-4


def test_decay_multiplies_and_never_divides() -> None:
    kept, ratios = decay(torch.tensor([0.5, 0.0, 0.25], dtype=torch.float64))
    assert kept.tolist() == [0.5, 0.0, 0.0]
    assert ratios.tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.25], [0.0, 0.0, 1.0]]


@pytest.mark.parametrize(("bias", "normalize"), [(False, False), (True, False), (True, True)])
def test_prediction_is_one_step_ahead(bias: bool, normalize: bool) -> None:
    rng = np.random.default_rng(0)
    head = KalmanHead(4, 3, gamma=0.9, bias=bias, normalize=normalize, calibration=2.0)
    m = 4 + bias
    prior_var = 1.0 if normalize else 1 / m
    assert (head.noise_var, head.prior_var) == (1 / 3, prior_var)
    X, y = rows(rng, 20, 4, 3)
    head.observe(torch.from_numpy(X), torch.from_numpy(y))
    phi = np.hstack([X, np.ones((20, 1))]) if bias else X
    phi = phi / math.sqrt(m) if normalize else phi
    policy = Fixed(0.9, calibration=2.0)
    state = policy.start(m, 3, prior_var=prior_var)
    state, _ = policy.step_chunk(state, phi, y, noise_var=1 / 3, prior_var=prior_var)
    ahead = policy.predict(state, phi, prior_var=prior_var)
    mean, var = head(torch.from_numpy(X))
    np.testing.assert_allclose(mean, ahead.logit_mean, atol=1e-12)
    np.testing.assert_allclose(var, ahead.logit_var, atol=1e-12)
    p = class_probabilities(ahead.logit_mean, ahead.logit_var, calibration=2.0)
    np.testing.assert_allclose(head.probabilities(torch.from_numpy(X)), p, atol=1e-12)
    expected = label_log_prob(ahead.logit_mean, ahead.logit_var, y, calibration=2.0).log_prob
    with torch.no_grad():
        actual = head.log_prob(torch.from_numpy(X), torch.from_numpy(y))
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_gradients_to_features_and_calibration() -> None:
    rng = np.random.default_rng(1)
    head = KalmanHead(4, 3, gamma=0.9, bias=True, normalize=True, calibration=1.5)
    X, y = rows(rng, 12, 4, 3)
    labels = torch.from_numpy(y)
    head.observe(torch.from_numpy(X), labels)
    features = torch.from_numpy(X[:5]).requires_grad_()
    head.log_prob(features, labels[:5]).sum().backward()
    h = 1e-5
    for i, j in ((0, 0), (2, 3), (4, 1)):
        moved = torch.from_numpy(X[:5].copy())
        values = []
        for sign in (1.0, -1.0):
            moved[i, j] = X[i, j] + sign * h
            values.append(float(head.log_prob(moved, labels[:5]).sum().detach()))
        assert features.grad[i, j] == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-4)
    values = []
    for sign in (1.0, -1.0):
        other = KalmanHead(4, 3, gamma=0.9, bias=True, normalize=True)
        other.load_state_dict(head.state_dict())
        other.log_calibration.data += sign * h
        values.append(float(other.log_prob(features, labels[:5]).sum().detach()))
    slope = (values[0] - values[1]) / (2 * h)
    assert head.log_calibration.grad == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("k", [2, 3, 10, 100])
@pytest.mark.parametrize("std", [0.1, 1.0, 5.0])
def test_the_lattice_of_other_devices_equals_the_core(k: int, std: float) -> None:
    rng = np.random.default_rng(0)
    mean, var = 3.0 * max(std, 1.0) * rng.standard_normal((8, k)), np.full(8, std**2)
    labels = rng.integers(k, size=8)
    leaf, leaf_var = (torch.from_numpy(each).requires_grad_() for each in (mean, var))
    actual = predictive.log_probabilities(leaf, leaf_var)
    own = actual[torch.arange(8), torch.from_numpy(labels)]
    own.sum().backward()
    expected = label_log_prob(mean, var, labels)
    np.testing.assert_allclose(own.detach(), expected.log_prob, atol=1e-6)
    np.testing.assert_allclose(leaf.grad, expected.d_mean, atol=1e-5)
    np.testing.assert_allclose(leaf_var.grad, expected.d_var, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(actual.detach().exp().sum(1), 1.0, atol=1e-8)


def test_classes_that_never_came_have_no_effect() -> None:
    mean = torch.tensor([[1.0, -math.inf, 0.0]], dtype=torch.float64)
    var, labels = torch.tensor([0.5], dtype=torch.float64), torch.tensor([0])
    expected = label_log_prob([1.0, 0.0], 0.5, 0).log_prob
    one = torch.ones((), dtype=torch.float64)
    assert float(predictive.log_prob(mean, var, labels, one)) == pytest.approx(expected, abs=1e-8)
    on_lattice = predictive.log_probabilities(mean, var)[0, 0]
    assert float(on_lattice) == pytest.approx(expected, abs=1e-7)
    known = torch.tensor([[True, False, True]])
    zero = torch.zeros_like(mean)
    along, by_var = predictive.slopes(torch.where(known, mean, zero), var, labels, known)
    terms = label_log_prob([1.0, 0.0], 0.5, 0)
    assert float(along) == pytest.approx(terms.d_mean @ [1.0, 0.0], abs=1e-8)
    assert float(by_var) == pytest.approx(terms.d_var, abs=1e-8)
    only = predictive.slopes(mean, var, labels, torch.tensor([[True, False, False]]))
    assert [float(each) for each in only] == [0.0, 0.0]


@pytest.mark.parametrize(("k", "std"), [(1, 1.0), (2, 0.3), (3, 1.0), (40, 0.1), (40, 3.0)])
def test_labels_among_known_classes(k: int, std: float) -> None:
    rng = np.random.default_rng(k)
    mean, var = 2.0 * rng.standard_normal((12, k)), np.full(12, std**2)
    labels, known = rng.integers(k, size=12), rng.random((12, k)) < 0.6
    known[:3], known[3] = True, False
    mean[4] -= 20.0 * known[4]  # unknown classes have much larger logits
    tensors = [torch.from_numpy(each) for each in (mean, var, labels)]
    alpha, mask = torch.tensor(1.3, dtype=torch.float64), torch.from_numpy(known)
    actual = predictive.log_prob_among(*tensors, alpha, mask)
    scaled = 1.3 * tensors[0], 1.3**2 * tensors[1]
    on_lattice = predictive.plain_log_prob_among(*scaled, tensors[2], mask)
    for i in range(12):
        among = np.flatnonzero(known[i])
        if labels[i] not in among or len(among) < 2:
            assert float(actual[i]) == 0.0
            continue
        label = int(np.searchsorted(among, labels[i]))
        expected = label_log_prob(mean[i, among], var[i], label, calibration=1.3).log_prob
        assert float(actual[i]) == pytest.approx(expected, abs=1e-12)
        assert float(on_lattice[i]) == pytest.approx(expected, abs=1e-6)


def test_monte_carlo_approaches_the_integral() -> None:
    torch.manual_seed(0)
    exact = KalmanHead(3, 4, noise_var=0.3, prior_var=1.0, calibration=3.0)
    sampled = KalmanHead(
        3, 4, noise_var=0.3, prior_var=1.0, predictive="monte-carlo", n_samples=20_000
    )
    features, labels = torch.randn(10, 3, dtype=torch.float64), torch.randint(4, (10,))
    exact.observe(features, labels)
    sampled.load_state_dict(exact.state_dict())
    difference = (exact.log_prob(features, labels) - sampled.log_prob(features, labels)).abs()
    assert float(difference.max().detach()) < 0.1


def test_state_is_saved_and_restored_and_classes_grow() -> None:
    rng = np.random.default_rng(0)
    one = KalmanHead(3, 2, gamma=0.95, gamma_lr=0.1, noise_var=0.3, prior_var=1.0)
    all_classes = KalmanHead(3, 4, gamma=0.95, gamma_lr=0.1, noise_var=0.3, prior_var=1.0)
    X, y = rows(rng, 30, 3, 2)
    for head in (one, all_classes):
        head.observe(torch.from_numpy(X), torch.from_numpy(y))
    one.add_classes(2)
    again = KalmanHead(3, 4, gamma_lr=0.1, noise_var=0.3, prior_var=1.0)
    again.load_state_dict(one.state_dict())
    X, y = rows(rng, 30, 3, 4)
    for head in (one, all_classes, again):
        head.observe(torch.from_numpy(X), torch.from_numpy(y))
    np.testing.assert_array_equal(again.mean, one.mean)
    np.testing.assert_allclose(one.mean, all_classes.mean, atol=1e-10)
    assert again.gamma == one.gamma == pytest.approx(all_classes.gamma, abs=1e-10)
    assert one.half_life == pytest.approx(math.log(0.5) / math.log(one.gamma))


def test_float32_keeps_its_type() -> None:
    head = KalmanHead(3, 2, dtype=torch.float32)
    head.observe(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    assert head.mean.dtype == head(torch.randn(1, 3)).mean.dtype == torch.float32


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (torch.zeros(2, 4), torch.tensor([0, 1]), r"features must be \(b, 3\), got \(2, 4\)"),
        (torch.zeros(2, 3), torch.tensor([0, 2]), "labels run from 0 to 2; the head has classes"),
        (torch.zeros(2, 3), torch.tensor([0, -1]), "labels run from -1 to 0"),
        (torch.zeros(2, 3), torch.tensor([0]), r"labels must be integers \(2,\)"),
        (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), "labels must be integers"),
        (torch.tensor([[0.0] * 3, [math.nan] * 3]), torch.tensor([0, 1]), "infinity in row 1"),
        (torch.zeros(2, 3, device="meta"), torch.tensor([0, 1]), "features are on meta"),
    ],
)
def test_bad_chunks_change_nothing(features: Any, labels: Any, message: str) -> None:
    head = KalmanHead(3, 2)
    head.observe(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    before = {name: value.clone() for name, value in head.state_dict().items()}
    with pytest.raises(InvalidInput, match=message):
        head.observe(features, labels)
    for name, value in head.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_lost_precision_raises_and_changes_nothing() -> None:
    head = KalmanHead(2, 2, noise_var=1e-30, prior_var=1.0, dtype=torch.float32)
    features = torch.tensor([[1.0, 1.0]] * 8)
    before = head.cov.clone()
    with pytest.raises(NumericalError, match="noise_var"):
        head.observe(features, torch.zeros(8, dtype=torch.int64))
    assert torch.equal(head.cov, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_features": 0}, "n_features must be"),
        ({"gamma": 1.5}, "gamma"),
        ({"gamma": 0.0, "gamma_lr": 0.1}, "0 if gamma is 0"),
        ({"transition": "row"}, "transition"),
        ({"predictive": "plug-in"}, "predictive"),
        ({"dtype": torch.float16}, "dtype must be"),
        ({"noise_var": -1.0}, "noise_var"),
    ],
)
def test_bad_parameters(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        KalmanHead(**{"n_features": 2, "n_classes": 2, **options})
