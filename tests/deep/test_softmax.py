"""Heads that observe labels through the softmax, against the core, on every device there is."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kalstream.core import (
    Fixed,
    Learned,
    Mixture,
    half_life,
    init,
    label_log_prob,
    softmax_curvature,
    step_chunk,
)
from kalstream.deep import KalmanHead, MixtureHead, OnlineLearner
from kalstream.deep.filter import Products, linearise, plain_scan_softmax, run_softmax, scan_softmax
from kalstream.errors import CheckpointError, InvalidInput, NumericalError

torch.set_num_threads(1)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]
# Rows of the chunks, features and classes.
SIZES = (
    ((1, 1, 1), 1, 1),
    ((1, 2, 1, 40), 3, 2),
    ((7, 1, 33), 13, 3),
    ((63, 32, 64), 33, 7),
    ((10, 100, 31), 5, 100),
)
NOISE = {"noise_var": 1.0}  # the core wants one, and does not use it
on_devices = pytest.mark.parametrize("device", DEVICES)


def labelled(rng: np.random.Generator, n: int, m: int, k: int) -> tuple[Any, Any]:
    """Rows of a rule that changes half-way; classes come one by one, the last third never."""
    X = rng.standard_normal((n, m)) * rng.choice([0.3, 1.0, 3.0], m)
    scores = X @ rng.standard_normal((m, k)) + 0.3 * rng.standard_normal((n, k))
    scores[n // 2 :] *= -1.0
    coming = max(1, k if k < 4 else 2 * k // 3)
    came = np.arange(k) < np.minimum(1 + 2 * k * np.arange(n) / n, coming)[:, None]
    return X, np.where(came, scores, -np.inf).argmax(1)


def cut(sizes: tuple[int, ...]) -> list[slice]:
    ends = itertools.accumulate(sizes)
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def on(device: str, *arrays: Any) -> tuple[Any, ...]:
    return tuple(torch.from_numpy(each).to(device) for each in arrays)


def close(actual: Any, expected: Any, atol: float) -> None:
    np.testing.assert_allclose(actual.detach().cpu(), expected, atol=atol, rtol=atol)


@on_devices
@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=8, deadline=None)
@given(
    gamma=st.sampled_from([0.0, 0.3, 0.97, 0.9999, 1.0]),
    prior_var=st.sampled_from([0.01, 1.0, 30.0]),
    transition=st.sampled_from(["example", "chunk"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_fixed_gamma_equals_the_core(
    size: Any, gamma: float, prior_var: float, transition: str, seed: int, device: str
) -> None:
    sizes, m, k = size
    X, y = labelled(np.random.default_rng(seed), sum(sizes), m, k)
    options = {"prior_var": prior_var, "transition": transition}
    head = KalmanHead(m, k, gamma=gamma, likelihood="softmax", **options).to(device)
    policy = Fixed(gamma, likelihood="softmax")
    state = policy.start(m, k, prior_var=prior_var)
    for part in cut(sizes):
        ours = head.observe(*on(device, X[part], y[part]))
        state, step = policy.step_chunk(state, X[part], y[part], **options, **NOISE)
        close(ours.logit_mean, step.logit_mean, 1e-9)
        close(ours.logit_var, step.logit_var, 1e-9)
        np.testing.assert_array_equal(head.seen.cpu(), state.seen)
    close(head.mean, state.posterior.mean, 1e-9)
    close(head.cov, state.posterior.cov, 1e-9)
    assert head.n_seen == sum(sizes)
    if device == "cuda" and gamma > 0.0:
        assert head._graphs


@on_devices
@pytest.mark.parametrize("transition", ["example", "chunk"])
@pytest.mark.parametrize(("gamma", "lr"), [(0.99, 0.1), (1.0, 0.02)])
@pytest.mark.parametrize("size", SIZES)
def test_learned_gamma_equals_the_core(
    size: Any, gamma: float, lr: float, transition: str, device: str
) -> None:
    sizes, m, k = size
    X, y = labelled(np.random.default_rng(0), sum(sizes), m, k)
    options = {"prior_var": 2.0, "transition": transition}
    head = KalmanHead(m, k, gamma=gamma, gamma_lr=lr, likelihood="softmax", **options).to(device)
    policy = Learned(gamma, lr=lr, calibrated=False, likelihood="softmax")
    state = policy.start(m, k, prior_var=2.0)
    for part in cut(sizes):
        ours = head.observe(*on(device, X[part], y[part]))
        state, step = policy.step_chunk(state, X[part], y[part], **options, **NOISE)
        # Derivatives of the integral are accurate to 1e-7, and the learning rate amplifies them.
        close(ours.gamma, step.gamma, 1e-6)
        close(ours.logit_mean, step.logit_mean, 1e-5)
        close(ours.logit_var, step.logit_var, 1e-5)
    assert head.gamma == pytest.approx(state.gamma, abs=1e-6)
    close(head.mean, state.posterior.mean, 1e-5)
    assert k == 1 or transition == "chunk" or abs(head.gamma - gamma) > 1e-6


@on_devices
@pytest.mark.parametrize("share", [0.0, 0.01])
@pytest.mark.parametrize("size", SIZES)
def test_a_mixture_equals_that_of_the_core(size: Any, share: float, device: str) -> None:
    sizes, m, k = size
    X, y = labelled(np.random.default_rng(m), sum(sizes), m, k)
    gammas = 1.0, 0.99, 0.8
    options = {"gammas": gammas, "share": share, "calibration": 1.3, "prior_var": 2.0}
    head = MixtureHead(m, k, likelihood="softmax", **options).to(device)
    lives = [half_life(gamma) for gamma in gammas]
    policy = Mixture(lives, share=share, calibrations=(1.3,), likelihood="softmax")
    state = policy.start(m, k, prior_var=2.0)
    for part in cut(sizes):
        rows, labels = on(device, X[part], y[part])
        p = policy.class_probabilities(state, X[part], prior_var=2.0)
        close(head.probabilities(rows), p, 1e-9 if device == "cpu" else 1e-6)
        head.observe(rows, labels)
        state, _ = policy.step_chunk(state, X[part], y[part], prior_var=2.0, **NOISE)
        # The core redistributes its share before a row, the head after it.
        expected = policy.predict(state, X[:1], prior_var=2.0).half_life_weights[0]
        close(head.log_weights.exp(), expected, 1e-8 if device == "cpu" else 1e-5)
    for each, posterior in zip(head.heads, state.posteriors, strict=True):
        close(each.mean, posterior.mean, 1e-9)


@on_devices
@pytest.mark.parametrize("kind", [KalmanHead, MixtureHead])
@pytest.mark.parametrize("n_classes", [1, 3, 7])
def test_a_class_that_comes_late_equals_one_that_was_declared(
    kind: Any, n_classes: int, device: str
) -> None:
    X, y = labelled(np.random.default_rng(1), 60, 4, 9)
    declared = kind(4, 20, likelihood="softmax").to(device)
    grown = kind(4, n_classes, likelihood="softmax").to(device)
    for part in cut((5, 20, 1, 34)):
        missing = int(y[part].max()) + 1 - grown.n_classes
        if missing > 0:
            grown.add_classes(missing)
        rows = on(device, X[part], y[part])
        declared.observe(*rows)
        grown.observe(*rows)
    heads = (each.heads[1] if kind is MixtureHead else each for each in (declared, grown))
    one, other = (head.mean.cpu() for head in heads)
    close(other, one[:, : other.shape[1]], 1e-10)
    assert not one[:, 9:].any()


@on_devices
def test_rows_with_time_gaps_equal_the_core(device: str) -> None:
    """The scan takes one coefficient for each row, 0 included."""
    rng = np.random.default_rng(0)
    X, y = labelled(rng, 50, 4, 5)
    gamma = 0.97 ** rng.choice([0.0, 0.5, 1.0, 30.0, 40_000.0], 50)
    prior = init(4, 5, prior_var=3.0)
    options = {"gamma": gamma, "prior_var": 3.0, "likelihood": "softmax", **NOISE}
    after, expected = step_chunk(prior, X, y, **options)
    rows, labels, gammas, mean, cov = on(device, X, y, gamma, prior.mean, prior.cov)
    seen = torch.ones(50, 5, dtype=torch.bool, device=device)
    step, factor, kept = run_softmax(Products.of(mean, cov, rows), labels, gammas, seen, 3.0)
    close(step.logit_mean, expected.logit_mean, 1e-9)
    close(step.logit_var, expected.logit_var, 1e-9)
    close(factor.diagonal().square() - step.logit_var, expected.noise_var, 1e-7)
    assert float(kept[-1]) < 1e-300
    assert after.n_outputs == 5


@on_devices
@pytest.mark.parametrize("k", [1, 2, 5, 1000])
def test_the_linearised_softmax_equals_the_core(k: int, device: str) -> None:
    rng = np.random.default_rng(k)
    mean, var = 4.0 * rng.standard_normal((40, k)), rng.exponential(5.0, 40)
    labels, seen = rng.integers(k, size=40), rng.random((40, k)) < 0.5
    seen[:5], var[:3] = False, (0.0, -1e-12, 1e9)
    seen[5], mean[5] = True, 1000.0 * (1 + np.arange(k))  # one class is certain
    noise_var, residual = linearise(*on(device, mean, var, labels, seen))
    for i in range(40):
        shown = seen[i] | (np.arange(k) == labels[i])
        p, shrink, curvature = softmax_curvature(mean[i], var[i], shown)
        close(noise_var[i], 1.0 / curvature, 1e-9)
        close(residual[i], shrink * ((np.arange(k) == labels[i]) - p) / curvature, 1e-9)
    assert float(noise_var[5]) == pytest.approx(1e6 * (1.0 + math.pi / 8.0 * var[5]))


@on_devices
@pytest.mark.parametrize(("b", "k"), [(1, 1), (31, 2), (32, 5), (33, 1025), (200, 3)])
def test_the_scan_equals_its_plain_form(b: int, k: int, device: str) -> None:
    rng = np.random.default_rng(b)
    rows, y = labelled(rng, b, 8, k)
    seen = np.arange(k) < np.arange(b)[:, None]
    mean = rng.standard_normal((b, k))
    arrays = on(device, 5.0 * rows @ rows.T, mean, y, seen)
    for actual, expected in zip(scan_softmax(*arrays), plain_scan_softmax(*arrays), strict=True):
        close(actual, expected.cpu(), 1e-10)


@on_devices
@pytest.mark.parametrize("lr", [0.0, 0.05])
def test_float32_is_near_float64(lr: float, device: str) -> None:
    X, y = labelled(np.random.default_rng(0), 300, 9, 5)
    exact, single = (
        KalmanHead(9, 5, gamma=0.999, gamma_lr=lr, likelihood="softmax", dtype=dtype).to(device)
        for dtype in (torch.float64, torch.float32)
    )
    for part in cut((100,) * 3):
        rows, labels = on(device, X[part], y[part])
        exact.observe(rows, labels)
        step = single.observe(rows.float(), labels)
        assert {each.dtype for each in vars(step).values()} == {torch.float32}
    assert single.mean.dtype == torch.float32
    close(single.mean, exact.mean.cpu(), 2e-3)
    assert single.gamma == pytest.approx(exact.gamma, abs=1e-4)


@on_devices
@pytest.mark.parametrize("kind", [KalmanHead, MixtureHead])
def test_gradients_reach_the_features(kind: Any, device: str) -> None:
    X, y = labelled(np.random.default_rng(3), 45, 5, 4)
    head = kind(5, 4, likelihood="softmax", bias=True, normalize=True, calibration=1.2).to(device)
    rows, labels = on(device, X, y)
    head.observe(rows[:40], labels[:40])
    features = rows[40:].clone().requires_grad_()
    head.log_prob(features, labels[40:]).sum().backward()
    h = 1e-4
    for i, j in itertools.product(range(5), range(5)):
        values = []
        for sign in (1.0, -1.0):
            moved = rows[40:].clone()
            moved[i, j] += sign * h
            values.append(float(head.log_prob(moved, labels[40:]).sum().detach()))
        slope = (values[0] - values[1]) / (2 * h)
        assert float(features.grad[i, j]) == pytest.approx(slope, rel=1e-3, abs=1e-5)
    assert features.grad.abs().min() > 0.0


@pytest.mark.parametrize(("bias", "normalize"), [(False, False), (True, False), (True, True)])
def test_prediction_is_one_step_ahead(bias: bool, normalize: bool) -> None:
    X, y = labelled(np.random.default_rng(0), 20, 4, 3)
    options = {"bias": bias, "normalize": normalize, "calibration": 2.0}
    head = KalmanHead(4, 3, gamma=0.9, likelihood="softmax", **options)
    m = 4 + bias
    prior_var = 100.0 if normalize else 100.0 / m
    assert (head.noise_var, head.prior_var) == (0.0, prior_var)
    head.observe(*on("cpu", X, y))
    phi = np.hstack([X, np.ones((20, 1))]) if bias else X
    phi = phi / math.sqrt(m) if normalize else phi
    policy = Fixed(0.9, likelihood="softmax")
    state = policy.start(m, 3, prior_var=prior_var)
    state, _ = policy.step_chunk(state, phi, y, prior_var=prior_var, **NOISE)
    ahead = policy.predict(state, phi, prior_var=prior_var)
    terms = label_log_prob(ahead.logit_mean, ahead.logit_var, y, calibration=2.0)
    close(head.log_prob(*on("cpu", X, y)), terms.log_prob, 1e-9)


@pytest.mark.parametrize("likelihood", ["onehot", "softmax"])
@pytest.mark.parametrize("bias", [False, True])
def test_normalising_changes_nothing_but_the_scale_of_the_weights(
    likelihood: str, bias: bool
) -> None:
    X, y = labelled(np.random.default_rng(0), 30, 4, 3)
    options = {"likelihood": likelihood, "bias": bias, "gamma": 0.99}
    plain, scaled = (KalmanHead(4, 3, normalize=n, **options) for n in (False, True))
    for head in (plain, scaled):
        head.observe(*on("cpu", X, y))
    close(scaled.mean, (4 + bias) ** 0.5 * plain.mean, 1e-10)
    rows = on("cpu", X, y)[0]
    for one, other in zip(plain(rows), scaled(rows), strict=True):
        close(one, other, 1e-10)


@on_devices
def test_errors_change_nothing(device: str) -> None:
    head = KalmanHead(3, 2, likelihood="softmax", dtype=torch.float32).to(device)
    good = torch.randn(8, 3, device=device), torch.tensor([0, 1] * 4, device=device)
    head.observe(*good)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    for factor, labels, error, message in (
        (math.nan, good[1], InvalidInput, "NaN or infinity in row 0"),
        (1.0, good[1] + 1, InvalidInput, "labels run from 1 to 2"),
        (1.0, -good[1], InvalidInput, "labels run from -1 to 0"),
        (1e30, good[1], NumericalError, "use float64, smaller features, or a smaller prior_var"),
    ):
        with pytest.raises(error, match=message):
            head.observe(factor * good[0], labels)
    for name, value in head.state_dict().items():
        assert torch.equal(value, before[name]), name


@on_devices
@pytest.mark.parametrize("mixes", [False, True])
def test_under_a_network_and_resumed(tmp_path: Any, mixes: bool, device: str) -> None:
    def make_learner(seed: int, likelihood: str = "softmax") -> OnlineLearner:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        options = {"bias": True, "likelihood": likelihood}
        head = MixtureHead(8, 3, **options) if mixes else KalmanHead(8, 3, gamma=0.99, **options)
        return OnlineLearner(net, head, lr=0.05, device=device)

    rng, right = np.random.default_rng(0), []
    learner = make_learner(0)
    for _ in range(60):
        X = rng.standard_normal((10, 4))
        rows, labels = on(device, X.astype(np.float32), (X[:, 0] > 0) * 1 + (X[:, 1] > 0))
        right.append(float((learner.step(rows, labels).predicted == labels).float().mean()))
    assert np.mean(right[-20:]) > 0.6
    learner.save(tmp_path / "l.pt")
    again = make_learner(1).restore(tmp_path / "l.pt")
    one, other = learner.step(rows, labels), again.step(rows, labels)
    for name, value in vars(one).items():
        torch.testing.assert_close(vars(other)[name], value, atol=1e-9, rtol=0.0)
    with pytest.raises(CheckpointError, match="likelihood 'softmax', this head has 'onehot'"):
        make_learner(0, "onehot").restore(tmp_path / "l.pt")


def test_a_state_of_an_earlier_version_is_onehot() -> None:
    head = KalmanHead(3, 2, gamma=0.9)
    head.observe(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    state = head.state_dict()
    state["made_with"] = state["made_with"][:6]
    again = KalmanHead(3, 2, gamma=0.9)
    again.load_state_dict(state)
    assert torch.equal(again.mean, head.mean)
    assert len(state["made_with"]) == 6
    with pytest.raises(InvalidInput, match="likelihood 'onehot', this head has 'softmax'"):
        KalmanHead(3, 2, gamma=0.9, likelihood="softmax").load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": "probit"}, "likelihood must be one of 'onehot', 'softmax'"),
        ({"likelihood": "softmax", "noise_var": 0.1}, "noise_var=0.1 has no effect"),
        ({"likelihood": "softmax", "prior_var": -1.0}, "prior_var"),
    ],
)
@pytest.mark.parametrize("kind", [KalmanHead, MixtureHead])
def test_bad_settings_are_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        kind(2, 2, **options)
