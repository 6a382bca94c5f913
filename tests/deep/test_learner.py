"""The chunk protocol, step by step, and the state after an error."""

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from kalstream.deep import (  # noqa: E402
    KalmanHead,
    MixtureHead,
    OnlineLearner,
    RecentMemory,
    ReplayStreams,
)
from kalstream.errors import CheckpointError, InvalidInput, NumericalError  # noqa: E402
from kalstream.evaluate import prequential  # noqa: E402
from kalstream.streams import ArrayStream  # noqa: E402

torch.set_num_threads(1)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6))


def learner(**options: Any) -> OnlineLearner:
    head = KalmanHead(6, 3, gamma=0.99, gamma_lr=0.05, bias=True, normalize=True)
    return OnlineLearner(network(), head, **{"lr": 0.1, "beta": 0.5, **options})


def chunk(seed: int, n: int = 10) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4)).astype(np.float32)
    return X, (X[:, 0] > 0) + (X[:, 1] > 0).astype(int)


@pytest.mark.parametrize("batch_norm", ["eval", "train"])
@pytest.mark.parametrize("replayed", [None, "all", "network"])
def test_a_step_equals_that_of_the_paper(batch_norm: str, replayed: str | None) -> None:
    model = learner(
        batch_norm=batch_norm,
        replay=RecentMemory(20, 5, seed=1) if replayed else None,
        replay_head=replayed != "network",
    )
    net = network()
    head = KalmanHead(6, 3, gamma=0.99, gamma_lr=0.05, bias=True, normalize=True)
    memory = RecentMemory(20, 5, seed=1)
    for turn in range(4):
        X, y = chunk(turn)
        rows, labels = torch.from_numpy(X), torch.from_numpy(y)
        outcome = model.step(rows, labels)

        # The same step in plain code.
        net.train(batch_norm == "train")
        with torch.no_grad():
            expected = head.log_prob(net(rows), labels)
        again = memory.sample() if replayed else None
        if again is not None:
            rows, labels = torch.cat([rows, again[0]]), torch.cat([labels, again[1]])
        net.train()
        loss = -head.log_prob(net(rows), labels).mean()
        parameters = list(net.parameters())
        gradients = torch.autograd.grad(loss, [head.log_calibration, *parameters])
        with torch.no_grad():
            head.log_calibration -= 0.1 * gradients[0]
            for parameter, gradient in zip(parameters, gradients[1:], strict=True):
                parameter -= 0.05 * gradient
            net.train(batch_norm == "train")
            if replayed == "network":
                rows, labels = rows[:10], labels[:10]
            head.observe(net(rows), labels)
        memory.add(rows[:10], labels[:10])
        torch.testing.assert_close(outcome.log_prob, expected)
        torch.testing.assert_close(model.head.mean, head.mean)
        assert model.head.n_seen == head.n_seen
    for ours, plain in zip(model.backbone.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, plain)
    assert outcome.gamma == model.head.gamma


def test_a_memory_mirrors_half_of_the_images() -> None:
    memory = RecentMemory(1, 400, seed=0, flip=True)
    image = torch.arange(24.0).reshape(1, 2, 3, 4)
    memory.add(image, torch.zeros(1, dtype=torch.int64))
    rows, _ = memory.sample()
    mirrored = (rows == image.flip(3)).flatten(1).all(1)
    assert ((rows == image).flatten(1).all(1) | mirrored).all()
    assert 150 < int(mirrored.sum()) < 250
    with pytest.raises(InvalidInput, match="flip=False"):
        memory.add(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("options", [{"beta": 0.0}, {"lr": 0.0}])
def test_a_frozen_backbone_does_not_move(options: dict[str, float]) -> None:
    model = learner(**options)
    before = [parameter.clone() for parameter in model.backbone.parameters()]
    calibration = float(model.head.calibration.detach())
    for turn in range(3):
        model.partial_fit(*chunk(turn))
    for now, then in zip(model.backbone.parameters(), before, strict=True):
        assert torch.equal(now, then)
    assert (float(model.head.calibration.detach()) == calibration) == ("lr" in options)


def test_other_optimizers() -> None:
    model = learner(optimizer=lambda groups: torch.optim.AdamW(groups, weight_decay=1e-4), lr=1e-3)
    assert isinstance(model.optimizer, torch.optim.AdamW)
    assert [group["lr"] for group in model.optimizer.param_groups] == [1e-3, 5e-4]
    model.partial_fit(*chunk(0))


def test_the_evaluator_runs_it() -> None:
    X, y = chunk(0, 1500)
    result = prequential(learner(lr=0.05), ArrayStream(X, y), chunk=10)
    assert result.n_scored == 1490
    assert result.total["accuracy"] > max(0.65, result.baselines["majority"]["accuracy"] + 0.1)


def test_a_restored_learner_continues_with_the_same_numbers(tmp_path: Any) -> None:
    def make() -> OnlineLearner:
        head = KalmanHead(6, 3, gamma=0.99, predictive="monte-carlo", n_samples=5)
        return OnlineLearner(
            network(),
            head,
            lr=0.1,
            replay=RecentMemory(20, 5),
            optimizer=lambda groups: torch.optim.SGD(groups, momentum=0.9),
        )

    one = make()
    for turn in range(3):
        one.partial_fit(*chunk(turn))
    one.save(tmp_path / "l.pt")
    ahead = [one.step(*map(torch.from_numpy, chunk(turn))).log_prob for turn in range(3, 6)]
    two = make().restore(tmp_path / "l.pt")
    for turn, expected in zip(range(3, 6), ahead, strict=True):
        assert torch.equal(two.step(*map(torch.from_numpy, chunk(turn))).log_prob, expected)
    assert torch.equal(one.head.cov, two.head.cov)
    without = OnlineLearner(network(), KalmanHead(6, 3), lr=0.1)
    with pytest.raises(CheckpointError, match="differ in replay"):
        without.restore(tmp_path / "l.pt")
    assert one.n_seen_ == two.n_seen_ == 60  # replayed rows do not count as rows of the stream
    (tmp_path / "l.pt").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="cannot be restored into"):
        make().restore(tmp_path / "l.pt")


def test_a_state_is_loaded_whole_or_not_at_all() -> None:
    model = learner(replay=RecentMemory(20, 5))
    other = learner(replay=RecentMemory(20, 5))
    for turn in range(3):
        other.partial_fit(*chunk(turn))
    state = other.state_dict()
    before = copy.deepcopy(model.state_dict())
    for broken in ({"optimizer": {}}, {"head": {"mean": torch.zeros(1)}}, {"replay": {}}):
        with pytest.raises((RuntimeError, KeyError, ValueError)):
            model.load_state_dict(state | broken)
        after = model.state_dict()
        for part in ("backbone", "head"):
            for name, value in after[part].items():
                assert torch.equal(value, before[part][name]), (broken, name)
        assert after["replay"]["rows"] is None
    model.load_state_dict(state)
    assert model.n_seen_ == 30


class Failing(nn.Module):
    """A backbone that fails on request."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.fault = ""

    def forward(self, rows: Any) -> Any:
        if self.fault == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory")
        features = self.linear(rows)
        return features * float("nan") if self.fault == "nan" else features


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("nan", InvalidInput, "backbone returned NaN"),
        ("memory", NumericalError, "not enough memory for a chunk of 10 rows"),
    ],
)
def test_a_failing_backbone_leaves_the_posterior(fault: str, error: Any, message: str) -> None:
    model = OnlineLearner(Failing(), KalmanHead(6, 3), lr=0.1)
    model.partial_fit(*chunk(0))
    before = {name: value.clone() for name, value in model.head.state_dict().items()}
    model.backbone.fault = fault
    with pytest.raises(error, match=message):
        model.partial_fit(*chunk(1))
    for name, value in model.head.state_dict().items():
        assert torch.equal(value, before[name]), name
    model.backbone.fault = ""
    model.partial_fit(*chunk(1))


def test_bad_arguments() -> None:
    with pytest.raises(InvalidInput, match="lr and beta"):
        learner(lr=-1.0)
    with pytest.raises(InvalidInput, match="batch_norm"):
        learner(batch_norm="sometimes")
    model = learner()
    with pytest.raises(InvalidInput, match="labels must be integers"):
        model.partial_fit(chunk(0)[0], ["a"] * 10)
    with pytest.raises(InvalidInput, match="9 labels for the 10 rows"):
        model.partial_fit(chunk(0)[0], [0] * 9)
    with pytest.raises(InvalidInput, match="labels run from 0 to 7"):
        model.partial_fit(chunk(0)[0], [7] + [0] * 9)


def test_images_of_bytes_become_floats() -> None:
    class Mean(nn.Module):
        def forward(self, images: Any) -> Any:
            assert images.shape == (2, 3, 5, 4)
            return images.mean((2, 3))

    model = OnlineLearner(Mean(), KalmanHead(3, 2))
    images = np.full((2, 5, 4, 3), 51, np.uint8)
    model.partial_fit(images, [0, 1])
    assert model.predict_proba(images).shape == (2, 2)
    assert model.predict(images).shape == (2,)


# ---- problems of new users -------------------------------------------------------------------


def test_a_grown_head_is_restored_and_another_is_refused(tmp_path: Any) -> None:
    one = OnlineLearner(network(), KalmanHead(6, 3, gamma=0.99))
    one.partial_fit(*chunk(0))
    one.head.add_classes(2)
    one.partial_fit(chunk(1)[0], chunk(1)[1] + 2)
    one.save(tmp_path / "l.pt")
    two = OnlineLearner(network(1), KalmanHead(6, 3, gamma=0.99)).restore(tmp_path / "l.pt")
    one.partial_fit(*chunk(2))
    two.partial_fit(*chunk(2))
    assert torch.equal(one.head.cov, two.head.cov)
    for head in (
        KalmanHead(6, 5),
        KalmanHead(6, 3, transition="chunk"),
        KalmanHead(6, 3, bias=True),
    ):
        with pytest.raises(CheckpointError, match=r"noise_var|transition|prior_var"):
            OnlineLearner(network(), head).restore(tmp_path / "l.pt")
    fresh, state = OnlineLearner(network(), KalmanHead(6, 3, gamma=0.99)), one.state_dict()
    with pytest.raises(KeyError):
        fresh.load_state_dict({**state, "optimizer": {}})
    assert fresh.head.n_classes == 3


MISSING = [
    lambda y: [None if i % 3 else int(label) for i, label in enumerate(y)],
    lambda y: np.array([None if i % 3 else label for i, label in enumerate(y)], object),
    lambda y: np.where(np.arange(len(y)) % 3, np.nan, y),
]


@pytest.mark.parametrize("hide", MISSING)
def test_rows_without_a_label_change_nothing(hide: Any) -> None:
    one, other = (learner(replay=RecentMemory(20, 5, seed=1)) for _ in range(2))
    for turn in range(3):
        X, y = chunk(turn)
        one.partial_fit(X, hide(y))
        one.partial_fit(X, [None] * 10).partial_fit(X, [np.nan] * 10)
        other.partial_fit(X[::3], y[::3])
    ours, theirs = one.state_dict(), other.state_dict()
    for name in ("backbone", "head", "replay", "n_seen"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=0.0, atol=0.0)
    assert one.n_seen_ == 12


@pytest.mark.parametrize("y", [[None, "a"], [np.nan, 0.5], [None, -1], [0.0, 1.0], [None, [1]]])
def test_what_is_no_label_is_refused_beside_a_missing_one(y: Any) -> None:
    with pytest.raises(InvalidInput, match="number the classes"):
        learner().partial_fit(chunk(0, 2)[0], np.array([*y, None], object)[:2])


@pytest.mark.parametrize("mixes", [False, True])
def test_a_file_with_the_older_default_prior_keeps_it(mixes: bool, tmp_path: Any) -> None:
    def make(**options: Any) -> OnlineLearner:
        kind = MixtureHead if mixes else KalmanHead
        return OnlineLearner(network(), kind(6, 3, bias=True, normalize=True, **options), lr=0.1)

    def prior_var(model: OnlineLearner) -> float:
        return next(each.prior_var for each in model.head.modules() if hasattr(each, "prior_var"))

    old = make(prior_var=1.0 / 7.0).partial_fit(*chunk(0))
    old.save(tmp_path / "old.pt")
    again = make().restore(tmp_path / "old.pt")
    for each in (old, again):
        each.partial_fit(*chunk(1))
    theirs, ours = (each.state_dict()["head"] for each in (old, again))
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=0.0)
    assert prior_var(again) == 1.0 / 7.0
    again.save(tmp_path / "again.pt")
    make().restore(tmp_path / "again.pt")

    fresh = make()
    with pytest.raises(TypeError):  # the head has taken the older prior by then
        fresh.load_state_dict({**old.state_dict(), "rng": torch.zeros(1)})
    assert prior_var(fresh) == 1.0
    for other in (make(prior_var=1.0), make(prior_var=2.0)):
        with pytest.raises(CheckpointError, match=r"prior_var 0\.142857"):
            other.restore(tmp_path / "old.pt")


def test_a_damaged_file_and_another_optimizer_are_refused(tmp_path: Any) -> None:
    one = learner().partial_fit(*chunk(0))
    one.save(tmp_path / "l.pt")
    other = learner(optimizer=lambda groups: torch.optim.AdamW(groups))
    with pytest.raises(CheckpointError, match="differ in optimizer"):
        other.restore(tmp_path / "l.pt")
    content = bytearray((tmp_path / "l.pt").read_bytes())
    at = content.find(one.head.cov.numpy().tobytes()[:64])
    content[at + 3] ^= 1
    (tmp_path / "l.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        one.restore(tmp_path / "l.pt")


def test_freezing_does_not_affect_other_users_of_a_module() -> None:
    net = network()
    OnlineLearner(net, KalmanHead(6, 3), beta=0.0).partial_fit(*chunk(0))
    assert all(parameter.requires_grad for parameter in net.parameters())
    with torch.no_grad():
        model = OnlineLearner(net, KalmanHead(6, 3), lr=0.1).partial_fit(*chunk(0))
    assert model.n_seen_ == 10


@pytest.mark.parametrize("batch_norm", ["eval", "train", "running", "fixed"])
def test_modes_of_batch_norm(batch_norm: str) -> None:
    for frozen in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        options = {"beta": 0.0} if frozen else {}
        model = OnlineLearner(net, KalmanHead(6, 3), batch_norm=batch_norm, **options)
        X, y = chunk(0)
        before = net[1].running_mean.clone()
        first = model.predict_proba(X)
        np.testing.assert_array_equal(first, model.predict_proba(X))  # no dropout
        alone = model.predict_proba(X[:4])
        assert np.allclose(alone, first[:4], atol=1e-6)  # nothing was learned
        model.partial_fit(X, y)
        moved = not torch.equal(before, net[1].running_mean)
        expected = {"eval": not frozen, "train": True, "running": True, "fixed": False}
        assert moved == expected[batch_norm]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KalmanHead(2, 2)(np.zeros((3, 2))), "torch tensor, got ndarray"),
        (lambda: KalmanHead(2, 2).observe(torch.zeros(1, 2), [0]), "torch tensor, got list"),
        (lambda: KalmanHead(2, 2, n_samples=0), "n_samples"),
        (lambda: KalmanHead(2, 2).add_classes(0), "n_classes"),
        (lambda: learner(optimizer="sgd"), "optimizer must be a function"),
        (lambda: learner(replay=100), "replay must be"),
        (lambda: learner(autocast=True), "autocast must be a dtype"),
        (lambda: learner(beta=np.inf), "lr and beta"),
        (lambda: learner().partial_fit([[0.0] * 4], 1), "labels must be"),
        (lambda: learner().partial_fit([[0.0] * 4], [1]), "chunk of one row"),
        (lambda: learner().partial_fit([[0.0] * 4] * 2, [0, -1]), "number the classes from 0"),
        (
            lambda: OnlineLearner(nn.LSTM(4, 6), KalmanHead(6, 3)).partial_fit(*chunk(0)),
            "must return a tensor",
        ),
        (lambda: learner(preprocess=lambda rows: rows).partial_fit(*chunk(0)), "preprocess must"),
    ],
)
def test_errors_name_the_remedy(make: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_other_types_are_accepted() -> None:
    head = KalmanHead(np.int64(6), np.int64(3))
    model = OnlineLearner(network().double(), head).partial_fit(*chunk(0))
    assert model.predict_proba(np.zeros((0, 4))).shape == (0, 3)
    assert "noise_var" in repr(head)


# ---- replay ---------------------------------------------------------------------------------


def test_memory_has_the_latest_rows_and_draws_with_replacement() -> None:
    memory = RecentMemory(size=100, draw=10, seed=0)
    for start in range(0, 250, 10):
        memory.add(torch.arange(start, start + 10.0)[:, None], torch.arange(start, start + 10))
    assert memory.labels.tolist() == list(range(150, 250))
    drawn = torch.cat([memory.sample()[1] for _ in range(300)])
    assert 150 <= int(drawn.min()) <= int(drawn.max()) < 250
    counts = torch.bincount(drawn - 150, minlength=100)
    assert int(counts.min()) > 5  # 30 on average
    assert any(len(set(memory.sample()[1].tolist())) < 10 for _ in range(20))


def test_replay_streams_read_past_rows_in_order() -> None:
    streams = ReplayStreams(n_streams=8, seed=0)
    assert streams.chunks() == []
    read = []
    for t in range(200):
        streams.add(torch.tensor([[float(t)]]), torch.tensor([t]))
        chunks = streams.chunks()
        assert len(chunks) == 8
        read += [int(labels) for _, labels in chunks]
        assert max(read[-8:]) <= t
    # Roughly uniform over the past; early chunks were read more often in total.
    counts = np.bincount(read, minlength=200)
    assert counts[:20].sum() > counts[-20:].sum()
    assert counts[:150].min() >= 0
    again = ReplayStreams(n_streams=8, seed=5)
    again.load_state_dict(streams.state_dict())
    assert [int(y) for _, y in again.chunks()] == [int(y) for _, y in streams.chunks()]


def test_replay_streams_can_read_rows_again_from_the_stream() -> None:
    past = [(torch.tensor([[float(t)]]), torch.tensor([t])) for t in range(50)]
    kept, read = ReplayStreams(3, seed=1), ReplayStreams(3, seed=1, again=past.__getitem__)
    for chunk in past:
        for streams in (kept, read):
            streams.add(*chunk)
        assert kept.chunks() == read.chunks()
    assert read.past == []
    resumed = ReplayStreams(3, again=past.__getitem__)
    resumed.load_state_dict(read.state_dict())
    assert resumed.chunks() == kept.chunks()


@pytest.mark.parametrize("make", [lambda: RecentMemory(0), lambda: ReplayStreams(0)])
def test_replay_of_nothing(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()
