"""A chunk that is split over two processes gives the numbers of one process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from kalstream.baselines import ACE, SoftmaxHead
from kalstream.deep import KalmanHead, OnlineLearner, RecentMemory
from kalstream.errors import InvalidInput

RANKS = 2
# The last two are too small to be split.
SIZES = (10, 10, 7, 10, 3, 1)


def make_learners(seed: int, batch_norm: bool = False) -> list[Any]:
    torch.manual_seed(seed)
    middle = nn.BatchNorm1d(8) if batch_norm else nn.LayerNorm(8)
    layers = [nn.Linear(4, 8), middle, nn.Tanh(), nn.Linear(8, 6)]
    kalman = OnlineLearner(
        nn.Sequential(*layers).double(),
        KalmanHead(6, 3, gamma=0.99, gamma_lr=0.05, bias=True),
        lr=0.1,
        replay=RecentMemory(20, 5),
        optimizer=lambda groups: torch.optim.SGD(groups, momentum=0.9),
    )
    torch.manual_seed(seed)
    layers = [nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6)]
    ace = ACE(nn.Sequential(*layers).double(), SoftmaxHead(6, 3).double())
    return [kalman, ace]


def run(learners: list[Any], sizes: tuple[int, ...] = SIZES) -> list[Any]:
    """Run the learners; return log-probabilities chunk by chunk, and the states."""
    rng = torch.Generator().manual_seed(1)
    log_probs = []
    for n in sizes:
        rows = torch.randn(n, 4, generator=rng, dtype=torch.float64)
        labels = (rows[:, 0] > 0).long() + (rows[:, 1] > 0)
        log_probs += [learner.step(rows, labels).log_prob for learner in learners]
    states = [[*each.backbone.state_dict().values()] for each in learners]
    heads = [[*each.head.state_dict().values()] for each in learners]
    return [log_probs, states, heads]


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS
    )
    split = run(
        make_learners(seed=rank)
    )  # ranks start with different weights; those of the first are used
    learners = make_learners(seed=0, batch_norm=True)
    averaged = run(learners, SIZES[:-1])
    learners[0].save(f"{folder}/learner-{rank}.pt")
    rows = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    before = learners[0].head.cov.clone()
    rows[3] = torch.nan  # a row of the last rank: all ranks must raise
    with pytest.raises(InvalidInput, match="NaN"):
        learners[0].step(rows, torch.zeros(4, dtype=torch.int64))
    assert torch.equal(learners[0].head.cov, before)
    torch.save([split, averaged], f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def assert_same(one: Any, other: Any, **options: Any) -> None:
    torch.testing.assert_close(one, other, **options)


def test_two_processes_equal_one(tmp_path: Path) -> None:
    expected = run(make_learners(seed=0))
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(tmp_path)])
        for rank in range(RANKS)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0] * RANKS
    (first, first_bn), (second, second_bn) = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(RANKS)
    )
    assert_same(first, expected, rtol=1e-9, atol=1e-11)
    # Ranks are equal bit for bit, with and without batch norm.
    assert_same(first, second, rtol=0.0, atol=0.0)
    assert_same(first_bn, second_bn, rtol=0.0, atol=0.0)
    assert [path.name for path in tmp_path.glob("learner-*")] == ["learner-0.pt"]


if __name__ == "__main__":
    process(int(sys.argv[1]), sys.argv[2])
