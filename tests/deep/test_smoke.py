"""A whole pass on the CPU: a network learns images from scratch, and again after a change."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from kalstream.deep import KalmanHead, OnlineLearner, RecentMemory  # noqa: E402
from kalstream.deep.backbones import slim_resnet18  # noqa: E402

torch.set_num_threads(1)

N, K, CHUNK = 2000, 4, 10
SEED = 0


def waves(seed: int) -> tuple[Any, Any]:
    """Images (N, 3, 32, 32) of waves in noise, and labels (N,), the direction of the waves.

    The phases are random, so that no single pixel is informative. In the second half, all labels
    are shifted by one.
    """
    generator = torch.Generator().manual_seed(seed)
    ways = torch.randint(K, (N,), generator=generator)
    angles = (math.pi / K * ways)[:, None, None]
    phases = 2 * math.pi * torch.rand(N, 1, 1, generator=generator)
    place = torch.arange(32.0)
    wave = torch.sin(torch.cos(angles) * place + torch.sin(angles) * place[:, None] + phases)
    noise = torch.randn(N, 3, 32, 32, generator=generator)
    labels = torch.where(torch.arange(N) < N // 2, ways, (ways + 1) % K)
    return (wave[:, None] + 0.3 * noise).contiguous(memory_format=torch.channels_last), labels


def one_pass(
    backbone: nn.Module, rows: Any, labels: Any, prior_var: float | None, **options: Any
) -> tuple[Any, Any]:
    """The learner, and which rows (N,) it predicted correctly."""
    own = {"bias": True, "normalize": True, "prior_var": prior_var}
    head = KalmanHead(160, K, gamma=0.999, gamma_lr=0.01, **own)
    learner = OnlineLearner(backbone, head, lr=0.05, replay=RecentMemory(draw=5), **options)
    right = []
    for x, y in zip(rows.split(CHUNK), labels.split(CHUNK), strict=True):
        outcome = learner.step(x, y)
        assert torch.isfinite(outcome.log_prob).all()
        assert 0.0 < outcome.gamma <= 1.0
        right.append(outcome.predicted == y)
    assert learner.n_seen_ == N
    assert learner.head.n_seen == N + 5 * (N // CHUNK - 1)  # including replayed rows
    return learner, torch.cat(right).double()


def test_a_network_learns_more_than_frozen_features() -> None:
    rows, labels = waves(SEED)
    backbone = slim_resnet18(seed=SEED).to(memory_format=torch.channels_last).eval()
    with torch.no_grad():  # a frozen network gives the same features every time
        features = torch.cat([backbone(some) for some in rows.split(100)])
    narrow = 1.0 / 161.0  # the paper's: the filter alone learns slowly, so the network has to
    _, usual = one_pass(nn.Identity(), features, labels, None)
    _, frozen = one_pass(nn.Identity(), features, labels, narrow)
    learner, tuned = one_pass(backbone, rows, labels, narrow, beta=2.5)

    before, turn, after = slice(750, 1000), slice(1000, 1050), slice(1500, N)
    assert tuned[before].mean() > 0.85
    assert min(usual[before].mean(), usual[after].mean()) > 0.9  # with the default
    assert tuned[turn].mean() < 0.5  # the labels did change
    assert tuned[after].mean() > max(0.85, frozen[after].mean() + 0.3)  # chance is 0.25
    for value in learner.backbone.state_dict().values():
        assert torch.isfinite(value).all()
    head = learner.head
    assert float(head.calibration.detach()) > 2.0  # more certain than at the start
    assert head.gamma != 0.999  # gamma was learned
    assert torch.isfinite(head.mean).all()
    torch.testing.assert_close(head.cov, head.cov.T, rtol=1e-10, atol=1e-14)
    assert torch.linalg.eigvalsh(head.cov).min() > 0.0
