"""A refused chunk leaves a learner as it was, whatever fails and wherever it fails."""

import copy
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from kalstream.deep import (  # noqa: E402
    CrossEntropy,
    Frozen,
    KalmanHead,
    Learner,
    MixtureHead,
    RecentMemory,
    ReplayStreams,
    SoftmaxHead,
    Stack,
    ThroughHead,
)
from kalstream.errors import (  # noqa: E402
    CheckpointError,
    InvalidInput,
    KalstreamError,
    NumericalError,
)

torch.set_num_threads(1)

HEADS: dict[str, Any] = {
    "kalman": lambda: KalmanHead(6, 3, gamma=0.99, gamma_lr=0.05),
    "monte-carlo": lambda: KalmanHead(6, 3, predictive="monte-carlo", n_samples=5),
    "softmax filter": lambda: KalmanHead(6, 3, likelihood="softmax"),
    "mixture": lambda: MixtureHead(6, 3),
    "layer": lambda: SoftmaxHead(6, 3),
    "stack": lambda: Stack(6, 3, decays=(0.9,), gammas=(1.0, 0.9)),
    "filters": lambda: Stack(6, 3, decays=(), gammas=(1.0, 0.9), layers=False),
}
TRAININGS: dict[str, Any] = {
    "frozen": Frozen,
    "through head": lambda: ThroughHead(replay=RecentMemory(40, 5)),
    "momentum": lambda: ThroughHead(optimizer=lambda p: torch.optim.SGD(p, momentum=0.9)),
    "recent": lambda: CrossEntropy(replay=RecentMemory(40, 5), n_steps=2),
    "streams": lambda: CrossEntropy(replay=ReplayStreams(3), n_steps=1),
    "spare past": lambda: CrossEntropy(replay=RecentMemory(40, 5), n_steps=2, spare_past=True),
}
BATCH_NORM = ("eval", "train", "running")


class Network(nn.Module):
    """A network with dropout that fails at a given pass; its slow copies count as well."""

    passes_left = 10**9

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 6)
        )
        self.plain = nn.Linear(4, 6)

    def forward(self, rows: Any) -> Any:
        Network.passes_left -= 1
        if self.passes_left < 0:
            raise InvalidInput("no more passes")
        return self.layers(rows) + self.plain(rows)


def chunk(seed: int, n: int = 10) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4)).astype(np.float32)
    return torch.from_numpy(X), torch.from_numpy((X[:, 0] > 0) + (X[:, 1] > 0).astype(int))


def learner(head: str, training: str, batch_norm: str = "eval", **options: Any) -> Learner:
    torch.manual_seed(0)
    model = Learner(
        Network(), HEADS[head](), TRAININGS[training](), batch_norm=batch_norm, **options
    )
    for turn in range(2):
        model.step(*chunk(turn))
    return model


def assert_equal(one: Any, other: Any, where: str = "state") -> None:
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_equal(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        for k, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, f"{where}[{k}]")
    else:
        assert one == other, where


def refused(model: Learner, rows: Any, labels: Any, error: Any = KalstreamError) -> None:
    """Refuse a chunk, and leave everything as it was."""
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error):
        model.step(rows, labels)
    assert_equal(model.state_dict(), before)


@pytest.mark.filterwarnings("ignore:the network is frozen")
@pytest.mark.parametrize("batch_norm", BATCH_NORM)
@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("head", HEADS)
def test_a_failure_at_any_pass_changes_nothing(
    monkeypatch: Any, head: str, training: str, batch_norm: str
) -> None:
    slow = 0.9 if head in ("kalman", "mixture") else None
    model = learner(head, training, batch_norm, slow=slow)
    for n_passes in range(100):
        monkeypatch.setattr(Network, "passes_left", n_passes)
        before = copy.deepcopy(model.state_dict())
        try:
            model.step(*chunk(2))
            break
        except InvalidInput:
            assert_equal(model.state_dict(), before, f"after {n_passes} passes: ")
    assert 1 <= n_passes < 20
    monkeypatch.undo()
    undisturbed = learner(head, training, batch_norm, slow=slow)
    undisturbed.step(*chunk(2))
    assert_equal(model.state_dict(), undisturbed.state_dict())


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("head", ["kalman", "monte-carlo", "mixture"])
def test_rows_that_break_the_filter_change_nothing(head: str, training: str) -> None:
    model = learner(head, training)
    rows, labels = chunk(2)
    refused(model, 1e12 * rows, labels, NumericalError)


def test_the_first_chunk_can_be_refused() -> None:
    """The optimizer has no state yet, and the memory no rows."""
    for training in TRAININGS:
        model = Learner(Network(), MixtureHead(6, 3), TRAININGS[training]())
        rows, labels = chunk(2)
        refused(model, 1e12 * rows, labels, NumericalError)


@pytest.mark.filterwarnings("ignore:the network is frozen")
@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("head", ["stack", "filters"])
def test_a_stack_that_cannot_observe_changes_nothing(head: str, training: str) -> None:
    model = learner(head, training)
    model.head.bank.cov.neg_()
    refused(model, *chunk(2), NumericalError)


def test_rows_that_the_memory_cannot_hold_are_refused_first() -> None:
    for make in (ThroughHead, CrossEntropy):
        model = Learner(Network(), KalmanHead(6, 3), make(replay=RecentMemory(9, 5, flip=True)))
        with pytest.raises(InvalidInput, match="flip=False"):
            model.step(*chunk(0))
        assert (model.n_seen_, model.head.n_seen) == (0, 0)
    memory = RecentMemory()
    memory.add(*chunk(0))
    with pytest.raises(InvalidInput, match=r"holds rows of shape \(4,\), got \(3,\)"):
        memory.add(chunk(0)[0][:, :3], chunk(0)[1])


@pytest.mark.parametrize("head", HEADS)
def test_rows_of_another_number_of_columns_are_refused(head: str) -> None:
    model = learner(head, "momentum")
    rows, labels = chunk(2)
    before = copy.deepcopy(model.state_dict())
    for call in (model.step, model.partial_fit, lambda rows, _: model.predict(rows)):
        with pytest.raises(InvalidInput, match=r"10 rows of shape \(3,\) .*10x3 and 4x8"):
            call(rows[:, :3], labels)
    assert_equal(model.state_dict(), before)


def test_features_that_a_stack_was_not_made_for_are_refused() -> None:
    for n in (1, 5):
        stack = Stack(n, 3, decays=(), gammas=(1.0,), layers=False)
        model = Learner(nn.Linear(4, 6), stack, Frozen())
        with pytest.raises(InvalidInput, match=rf"must be \(b, {n}\), got \(10, 6\)"):
            model.step(*chunk(0))


# ---- files ----------------------------------------------------------------------------------

OF_CLASSES: dict[str, Any] = {
    "kalman": lambda k: KalmanHead(6, k, noise_var=0.3),
    "softmax filter": lambda k: KalmanHead(6, k, likelihood="softmax"),
    "mixture": lambda k: MixtureHead(6, k, noise_var=0.3),
    "softmax mixture": lambda k: MixtureHead(6, k, likelihood="softmax"),
    "layer": lambda k: SoftmaxHead(6, k),
    "stack": lambda k: Stack(6, k, decays=(), gammas=(1.0,)),
    "filters": lambda k: Stack(6, k, decays=(), gammas=(1.0,), layers=False),
}


@pytest.mark.filterwarnings("ignore:the network is frozen")
@pytest.mark.parametrize("training", [Frozen, CrossEntropy])
@pytest.mark.parametrize("head", OF_CLASSES)
def test_a_file_of_fewer_classes_is_refused(tmp_path: Path, head: str, training: Any) -> None:
    three = Learner(Network(), OF_CLASSES[head](3), training())
    three.step(*chunk(0))
    three.save(tmp_path / "three.pt")
    four = Learner(Network(), OF_CLASSES[head](4), training())
    before = copy.deepcopy(four.state_dict())
    with pytest.raises(CheckpointError, match=r"n_classes=3|size mismatch"):
        four.restore(tmp_path / "three.pt")
    assert_equal(four.state_dict(), before)


def test_a_head_that_has_grown_shrinks_again_if_the_rest_does_not_fit() -> None:
    grown = Learner(Network(), OF_CLASSES["softmax mixture"](3), ThroughHead())
    grown.step(*chunk(0))
    grown.head.add_classes(2)
    model = Learner(Network(), OF_CLASSES["softmax mixture"](3), ThroughHead())
    model.step(*chunk(1))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyError):
        model.load_state_dict({**grown.state_dict(), "optimizer": {}})
    assert_equal(model.state_dict(), before)
    model.load_state_dict(grown.state_dict())
    assert model.head.n_classes == 5


def test_the_likelihood_of_core_alone_is_refused() -> None:
    for kind in (KalmanHead, MixtureHead):
        with pytest.raises(InvalidInput, match="'onehot', 'softmax', got 'softmax-label'"):
            kind(6, 3, likelihood="softmax-label")


@pytest.mark.parametrize(
    ("training", "forged", "message"),
    [
        ("recent", {"n_seen": "x"}, "n_seen must be an integer of at least 0, got 'x'"),
        ("recent", {"n_seen": -1}, "n_seen must be an integer of at least 0, got -1"),
        ("recent", {"replay.labels": torch.zeros(3, dtype=torch.int64)}, "one label each"),
        ("streams", {"replay.pointers": ["x"] * 3}, "pointers must be chunks from 0 to 1"),
        ("streams", {"replay.pointers": [2, 0, 0]}, "pointers must be chunks from 0 to 1"),
        ("streams", {"replay.n_chunks": 5}, "holds 2 of 5 chunks"),
    ],
)
def test_a_forged_file_is_refused(
    tmp_path: Path, training: str, forged: dict[str, Any], message: str
) -> None:
    model = learner("kalman", training)
    state = copy.deepcopy(model.state_dict())
    for name, value in forged.items():
        *owner, key = name.split(".")
        (state[owner[0]] if owner else state)[key] = value
    torch.save(state, tmp_path / "forged.pt")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CheckpointError, match=message):
        model.restore(tmp_path / "forged.pt")
    assert_equal(model.state_dict(), before)


def test_a_file_that_unpacks_to_more_than_it_holds_is_refused_first(tmp_path: Path) -> None:
    model, size = learner("kalman", "recent"), 200 << 20
    model.save(tmp_path / "good.pt")
    with (
        zipfile.ZipFile(tmp_path / "good.pt") as good,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for info in good.infolist():
            large = info.filename.endswith("/data/0")
            bomb.writestr(info.filename, bytes(size) if large else good.read(info))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="unpacks to"):
        model.restore(tmp_path / "bomb.pt")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (size >> 10) // 4
