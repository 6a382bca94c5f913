"""A GPU gives the numbers of the CPU: graphs, fused kernels, errors."""

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from kalstream.core import label_log_prob  # noqa: E402
from kalstream.deep import KalmanHead, MixtureHead, OnlineLearner, predictive  # noqa: E402
from kalstream.errors import InvalidInput  # noqa: E402


def chunks(n: int, b: int, m: int, k: int) -> list[tuple[Any, Any]]:
    torch.manual_seed(0)
    chunks = []
    for _ in range(n):
        weights = torch.randn(m, k, dtype=torch.float64)
        features = torch.randn(b, m, dtype=torch.float64)
        chunks.append((features, (features @ weights).argmax(1)))
    return chunks


@pytest.mark.parametrize("transition", ["example", "chunk"])
@pytest.mark.parametrize("lr", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("size", [(1, 3, 2), (10, 5, 3), (63, 33, 7), (128, 64, 100)])
def test_a_graph_equals_the_cpu(size: tuple[int, int, int], lr: float, transition: str) -> None:
    b, m, k = size
    options = {"gamma": 0.99, "gamma_lr": lr, "noise_var": 0.2, "prior_var": 0.7}
    cpu = KalmanHead(m, k, transition=transition, **options)
    gpu = copy.deepcopy(cpu).cuda()
    # Derivatives of the integral are accurate to 1e-7; a learning rate of 0.5 amplifies the error.
    close = {"atol": 1e-12, "rtol": 0.0} if lr == 0.0 else {"atol": 1e-6, "rtol": 1e-5}
    for features, labels in chunks(6, b, m, k):
        ours, same = cpu.observe(features, labels), gpu.observe(features.cuda(), labels.cuda())
        torch.testing.assert_close(same.logit_mean.cpu(), ours.logit_mean, **close)
        torch.testing.assert_close(same.logit_var.cpu(), ours.logit_var, **close)
    for name, value in gpu.state_dict().items():
        torch.testing.assert_close(value.cpu(), cpu.state_dict()[name], **close)
    assert gpu._graphs


def test_a_gamma_of_zero_and_changing_sizes() -> None:
    for gamma in (0.0, 0.9):
        cpu = KalmanHead(4, 3, gamma=gamma)
        gpu = copy.deepcopy(cpu).cuda()
        for b in (5, 1, 7, 2, 3, 9, 5, 4):
            features, labels = chunks(1, b, 4, 3)[0]
            cpu.observe(features, labels)
            gpu.observe(features.cuda(), labels.cuda())
        torch.testing.assert_close(gpu.cov.cpu(), cpu.cov)
    gpu.add_classes(2)
    gpu.observe(torch.randn(5, 4).cuda(), torch.tensor([0, 4, 3, 1, 2]).cuda())
    assert gpu.mean.shape == (4, 5)


@pytest.mark.parametrize("k", [2, 10, 713])
def test_fused_slopes(k: int) -> None:
    rng = np.random.default_rng(0)
    for std in (0.1, 1.0, 5.0):
        mean, labels = 2.0 * max(std, 1.0) * rng.standard_normal((16, k)), rng.integers(k, size=16)
        var = np.full(16, std**2)
        known = np.ones((16, k), bool)
        known[3, labels[3]] = False
        tensors = [torch.from_numpy(each).cuda() for each in (mean, var, labels, known)]
        along, by_var = (each.cpu().numpy() for each in predictive.slopes(*tensors))
        terms = label_log_prob(mean, var, labels)
        rows = np.arange(16) != 3
        np.testing.assert_allclose(
            along[rows], (terms.d_mean * mean).sum(1)[rows], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(by_var[rows], terms.d_var[rows], rtol=1e-3, atol=1e-7)
        assert along[3] == by_var[3] == 0.0


@pytest.mark.parametrize("k", [2, 10, 713])
@pytest.mark.parametrize("std", [0.1, 1.0, 5.0])
def test_fused_log_probabilities_and_gradients(k: int, std: float) -> None:
    rng = np.random.default_rng(0)
    mean, labels = 2.0 * max(std, 1.0) * rng.standard_normal((16, k)), rng.integers(k, size=16)
    var = np.full(16, std**2)
    leaf, leaf_var = (torch.from_numpy(each).cuda().requires_grad_() for each in (mean, var))
    alpha = torch.tensor(1.3, dtype=torch.float64, device="cuda", requires_grad=True)
    actual = predictive.log_prob(leaf, leaf_var, torch.from_numpy(labels).cuda(), alpha)
    actual.sum().backward()
    terms = label_log_prob(mean, var, labels, calibration=1.3)
    np.testing.assert_allclose(actual.detach().cpu(), terms.log_prob, atol=1e-6)
    np.testing.assert_allclose(leaf.grad.cpu(), terms.d_mean, atol=1e-5)
    np.testing.assert_allclose(leaf_var.grad.cpu(), terms.d_var, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(float(alpha.grad), terms.d_calibration.sum(), rtol=1e-4)


@pytest.mark.parametrize("k", [2, 10, 713])
@pytest.mark.parametrize("std", [0.1, 1.0, 5.0])
def test_fused_log_probabilities_among_known_classes(k: int, std: float) -> None:
    rng = np.random.default_rng(1)
    mean, labels = 2.0 * max(std, 1.0) * rng.standard_normal((16, k)), rng.integers(k, size=16)
    known = rng.random((16, k)) < 0.6
    known[:3], known[3] = True, False
    mean[4] -= 20.0 * known[4]  # unknown classes have much larger logits
    tensors = [torch.from_numpy(each) for each in (mean, np.full(16, std**2), labels)]
    tensors += [torch.tensor(1.3, dtype=torch.float64), torch.from_numpy(known)]
    actual = predictive.log_prob_among(*(each.cuda() for each in tensors))
    expected = predictive.log_prob_among(*tensors)
    assert k == 2 or float(expected[:3].max()) < 0.0 == float(expected[3])
    torch.testing.assert_close(actual.cpu(), expected, atol=1e-6, rtol=1e-6)


def test_bad_chunks_change_nothing() -> None:
    head = KalmanHead(3, 2, gamma_lr=0.1).cuda()
    good = torch.randn(4, 3).cuda(), torch.tensor([0, 1, 0, 1]).cuda()
    head.observe(*good)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    for features, labels, message in (
        (good[0] * float("nan"), good[1], "NaN or infinity in row 0"),
        (good[0], good[1] + 1, "labels run from 1 to 2"),
        (good[0].cpu(), good[1], "features are on cpu"),
        (good[0], good[1].cpu(), "labels are on cpu"),
        (good[0][:, :2], good[1], "features must be"),
    ):
        with pytest.raises(InvalidInput, match=message):
            head.observe(features, labels)
    for name, value in head.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_learner_on_the_gpu() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
    learners = [
        OnlineLearner(copy.deepcopy(net), KalmanHead(8, 3, gamma=0.99), lr=0.05, device=device)
        for device in ("cpu", "cuda")
    ]
    for features, labels in chunks(5, 10, 4, 3):
        for learner in learners:
            learner.partial_fit(features.float().numpy(), labels.numpy())
    rows = np.random.default_rng(0).standard_normal((5, 4))
    first, second = (learner.predict_proba(rows) for learner in learners)
    np.testing.assert_allclose(first, second, atol=1e-3)


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("batch_norm", ["eval", "train", "running", "fixed"])
@pytest.mark.parametrize("mixes", [False, True])
def test_a_captured_step_equals_the_plain_step(
    replayed: bool, batch_norm: str, mixes: bool
) -> None:
    from kalstream.deep import RecentMemory

    def make(capture: bool) -> OnlineLearner:
        head = KalmanHead(8, 3, gamma=0.99, gamma_lr=0.05, bias=True)
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(4, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.Tanh(),
            torch.nn.Linear(16, 8),
        )
        return OnlineLearner(
            net,
            MixtureHead(8, 3, bias=True) if mixes else head,
            lr=0.05,
            optimizer=lambda groups: torch.optim.SGD(groups, momentum=0.9),
            replay=RecentMemory(30, 5) if replayed else None,
            batch_norm=batch_norm,
            device="cuda",
            capture=capture,
        )

    plain, captured = make(False), make(True)
    for features, labels in chunks(12, 10, 4, 3):
        rows, labels = features.float().cuda(), labels.cuda()
        one, two = plain.step(rows, labels), captured.step(rows, labels)
        torch.testing.assert_close(two.log_prob, one.log_prob, atol=1e-5, rtol=1e-5)
        assert float(two.gamma) == pytest.approx(float(one.gamma), abs=1e-6)
    assert captured.executors.captured
    assert not plain.executors.captured
    for name, value in captured.head.state_dict().items():
        torch.testing.assert_close(value, plain.head.state_dict()[name], atol=1e-5, rtol=1e-5)
    with pytest.raises(InvalidInput, match="NaN or infinity"):
        captured.head.observe(rows[:, :1].expand(-1, 8) * float("nan"), labels)


@pytest.mark.parametrize(("m", "k"), [(5, 3), (33, 100)])
def test_a_mixture_equals_that_of_the_cpu(m: int, k: int) -> None:
    cpu = MixtureHead(m, k, gammas=(1.0, 0.99, 0.9), noise_var=0.2, calibration=4.0)
    gpu = copy.deepcopy(cpu).cuda()
    for turn, n in enumerate((10, 10, 4, 10, 1, 10)):
        features, labels = chunks(turn + 1, n, m, k)[-1]
        labels %= min(k, turn + 2)  # classes come one by one, and some never
        cpu.observe(features, labels)
        gpu.observe(features.cuda(), labels.cuda())
        torch.testing.assert_close(gpu.log_weights.cpu(), cpu.log_weights, atol=1e-6, rtol=0.0)
        assert torch.equal(gpu.heads[0].seen.cpu(), cpu.heads[0].seen)
    assert len(gpu._graphs) == 3
    assert float(cpu.log_weights.exp().max()) > 0.34
    with pytest.raises(InvalidInput, match="labels run from"):
        gpu.observe(features.cuda(), labels.cuda() + k)
    torch.testing.assert_close(gpu.log_weights.cpu(), cpu.log_weights, atol=1e-6, rtol=0.0)
    gpu.observe(features.cuda(), labels.cuda().int())  # without graphs
    cpu.observe(features, labels)
    torch.testing.assert_close(gpu.log_weights.cpu(), cpu.log_weights, atol=1e-6, rtol=0.0)
