"""One file is enough for a head: this one predicts by the nearest mean of a class."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from kalstream.deep import (  # noqa: E402
    CrossEntropy,
    Fleet,
    Frozen,
    Head,
    Learner,
    RecentMemory,
    ThroughHead,
)
from kalstream.deep.head import Observed  # noqa: E402
from kalstream.errors import InvalidInput, NumericalError  # noqa: E402

Tensor = Any
TRAININGS: dict[str, Callable[[], Any]] = {
    "frozen": Frozen,
    "through head": lambda: ThroughHead(replay=RecentMemory(30, 5)),
    "cross-entropy": lambda: CrossEntropy(replay=RecentMemory(30, 5), n_steps=1),
    "spare past": lambda: CrossEntropy(replay=RecentMemory(30, 5), n_steps=1, spare_past=True),
}
every_training = pytest.mark.parametrize("training", TRAININGS)


class NearestMean(Head):
    """Sums of the features of each class; classes may be added."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.n_features, self.delta = n_features, torch.zeros((), dtype=torch.float64)
        self.register_buffer("sums", torch.zeros(n_classes, n_features))
        self.register_buffer("counts", torch.zeros(n_classes))
        self.register_buffer("seen", torch.zeros(n_classes, dtype=torch.bool))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def scores(self, features: Tensor) -> Tensor:
        means = self.sums / self.counts.clamp_min(1.0)[:, None]
        return -torch.cdist(features, means).square().masked_fill(~self.seen, 100.0)

    def log_prob(self, features: Tensor, labels: Tensor) -> Tensor:
        labels = self.checked(labels, len(features))
        return self.scores(features).log_softmax(1).gather(1, labels[:, None])[:, 0]

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        return self.scores(features).softmax(1)

    @torch.no_grad()
    def begin(self, features: Tensor, labels: Tensor) -> Observed:
        if bool(features.abs().max() > 1e6):
            raise NumericalError("the features are too large; lower the learning rate")
        self.sums.index_add_(0, labels, features)
        self.counts.index_add_(0, labels, torch.ones(len(labels)))
        self.seen[labels] = True
        self.count += len(labels)
        return Observed(None)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        theirs = state.get(prefix + "sums", self.sums)
        for name in ("sums", "counts", "seen"):
            own = getattr(self, name)
            setattr(self, name, own.new_zeros(len(theirs), *own.shape[1:]))
        super()._load_from_state_dict(state, prefix, *rest)


def chunk(seed: int, n: int = 10) -> tuple[Tensor, Tensor]:
    rows = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return rows, (rows[:, 0] > 0).long() + 2 * (rows[:, 1] > 0).long()


def learner(training: str, n_classes: int = 5, n_chunks: int = 30, **options: Any) -> Learner:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
    made = Learner(network, NearestMean(8, n_classes), TRAININGS[training](), **options)
    for seed in range(n_chunks):
        made.step(*chunk(seed))
    return made


def assert_same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0.0, atol=0.0, equal_nan=True)


def numbers(made: Learner) -> dict[str, Any]:
    state = copy.deepcopy(made.state_dict())
    return {name: state[name] for name in ("backbone", "head", "n_seen", "rng")}


@every_training
@pytest.mark.parametrize("slow", [None, 0.9])
def test_it_predicts_and_learns(training: str, slow: float | None) -> None:
    made = learner(training, slow=slow)
    rows, labels = chunk(100, 200)
    outcome = made.step(rows, labels)
    assert float((outcome.predicted == labels).double().mean()) > 0.5
    assert float(outcome.gamma) == 1.0
    assert made.predict_proba(rows.numpy()).shape == (200, 5)
    assert (made.n_seen_, int(made.head.counts[4])) == (500, 0)


@every_training
def test_it_is_saved_and_resumed_bit_for_bit(training: str, tmp_path: Path) -> None:
    made = learner(training)
    made.save(tmp_path / "learner.pt")
    again = learner(training, n_chunks=0).restore(tmp_path / "learner.pt")
    for seed in range(50, 53):
        for each in (made, again):
            each.step(*chunk(seed))
    assert_same(numbers(made), numbers(again))


@every_training
def test_a_refused_chunk_leaves_it_unchanged(training: str) -> None:
    made, undisturbed = learner(training), learner(training)
    before, (rows, labels) = numbers(made), chunk(60)
    for bad in ((rows / 0.0, labels), (rows, labels + 5), (rows, labels[:3])):
        with pytest.raises((InvalidInput, NumericalError)):
            made.step(*bad)
        assert_same(numbers(made), before)
    for each in (made, undisturbed):
        each.step(rows, labels)
    assert_same(numbers(made), numbers(undisturbed))


def test_an_error_of_the_head_takes_the_training_back() -> None:
    made = Learner(nn.Linear(4, 8), NearestMean(8, 4), TRAININGS["cross-entropy"]())
    made.step(*chunk(0))
    before, (rows, labels) = numbers(made), chunk(1)
    with pytest.raises(NumericalError, match="too large"):
        made.step(1e8 * rows, labels)
    assert_same(numbers(made), before)


def test_it_grows_with_a_state_of_more_classes_unless_that_is_refused() -> None:
    large, small = learner("frozen", 6), learner("frozen", 4)
    before, state = numbers(small), large.state_dict()
    with pytest.raises(TypeError):  # the head has grown by then
        small.load_state_dict({**state, "rng": torch.zeros(1)})
    assert_same(numbers(small), before)
    small.load_state_dict(state)
    assert small.head.n_classes == 6
    assert_same(numbers(small), numbers(large))


def test_it_runs_in_a_fleet() -> None:
    alone = [learner("through head", n_chunks=3), learner("frozen", n_chunks=3)]
    fleet = Fleet(copy.deepcopy(alone))
    outcomes = fleet.step([chunk(70), chunk(71)])
    for seed, made, outcome in zip((70, 71), alone, outcomes, strict=True):
        assert_same(made.step(*chunk(seed)).log_prob, outcome.log_prob)


def test_other_objects_are_no_heads() -> None:
    with pytest.raises(InvalidInput, match="head must be a Head, got Linear"):
        Learner(nn.Linear(4, 8), nn.Linear(8, 3))
