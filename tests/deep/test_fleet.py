"""A fleet of learners gives the same numbers as single learners."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from kalstream.baselines import ACE, ExperienceReplay, OnlineSGD, SoftmaxHead
from kalstream.deep import Fleet, KalmanHead, OnlineLearner, RecentMemory, ReplayStreams
from kalstream.errors import InvalidInput

torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6)).double()


def make_learners() -> list[Any]:
    """Learners of every kind, with different seeds and rates."""
    options: dict[str, Any] = {"device": DEVICE, "batch_norm": "eval"}
    sgd = partial(torch.optim.SGD, lr=0.02, momentum=0.9)
    kalman = [
        OnlineLearner(
            network(seed),
            KalmanHead(6, 3, gamma=0.99, gamma_lr=rate, bias=True),
            lr=lr,
            replay=RecentMemory(20, 5, seed) if seed else None,
            **options,
        )
        for seed, rate, lr in ((0, 0.0, 0.1), (1, 0.05, 0.01), (2, 0.5, 0.1))
    ]
    adam = OnlineLearner(
        network(7), KalmanHead(6, 3), lr=1e-3, optimizer=torch.optim.AdamW, **options
    )
    others = [
        OnlineSGD(network(3), SoftmaxHead(6, 3).double(), optimizer=sgd, **options),
        OnlineSGD(
            network(4),
            SoftmaxHead(6, 3).double(),
            optimizer=sgd,
            replay=ReplayStreams(3),
            **options,
        ),
        ExperienceReplay(
            network(5), SoftmaxHead(6, 3).double(), optimizer=sgd, n_steps=2, **options
        ),
        ACE(network(6), SoftmaxHead(6, 3).double(), optimizer=sgd, **options),
    ]
    return [*kalman, adam, *others]


def chunk(seed: int, n: int = 10) -> tuple[Any, Any]:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 4, generator=rng, dtype=torch.float64)
    return rows.to(DEVICE), ((rows[:, 0] > 0).long() + (rows[:, 1] > 0)).to(DEVICE)


def test_a_fleet_equals_single_learners() -> None:
    alone, together = make_learners(), make_learners()
    fleet = Fleet(together)
    for turn in range(12):
        chunks = [chunk(100 * number + turn) for number in range(len(alone))]
        outcomes = fleet.step(chunks)
        for learner, outcome, each in zip(alone, outcomes, chunks, strict=True):
            assert outcome is not None
            expected = learner.step(*each)
            close = {"rtol": 1e-7, "atol": 1e-8} if DEVICE == "cuda" else {"rtol": 0.0, "atol": 0.0}
            torch.testing.assert_close(outcome.log_prob, expected.log_prob, **close)
            torch.testing.assert_close(outcome.gamma, expected.gamma, **close)
    assert not fleet.failed
    assert [learner.n_seen_ for learner in together] == [120] * len(together)


def test_an_error_of_one_learner_leaves_the_others() -> None:
    fleet = Fleet(make_learners()[:2])
    with torch.no_grad():
        fleet.learners[0].backbone[0].weight.fill_(float("nan"))
    first, second = fleet.step([chunk(0), chunk(1)])
    assert first is None
    assert second is not None
    assert "NaN" in str(fleet.failed[0])
    assert fleet.step([chunk(2), chunk(3)])[0] is None
    assert [learner.n_seen_ for learner in fleet.learners] == [0, 20]


def test_parts_must_not_be_shared() -> None:
    one = make_learners()[0]
    with pytest.raises(InvalidInput, match="share"):
        Fleet([one, one])
    with pytest.raises(InvalidInput, match="2 learners need as many chunks"):
        Fleet(make_learners()[:2]).step([chunk(0)])
