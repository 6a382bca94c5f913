"""Each baseline against a plain transcription, and properties of all baselines."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kalstream.baselines import ACE, ExperienceReplay, OnlineSGD, SoftmaxHead
from kalstream.deep import KalmanHead, Learner, OnlineLearner, RecentMemory, ReplayStreams
from kalstream.errors import CheckpointError, InvalidInput, NumericalError
from kalstream.evaluate import prequential
from kalstream.streams import ArrayStream

Tensor = Any
Chunk = tuple[Tensor, Tensor]
D, M, K = 5, 7, 6

KINDS = {
    "sgd": OnlineSGD,
    "streams": lambda *parts, **options: OnlineSGD(*parts, replay=ReplayStreams(8), **options),
    "er": ExperienceReplay,
    "er++": partial(ExperienceReplay, n_steps=3),
    "ace": ACE,
}
all_kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
few = settings(max_examples=15)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(seed: int = 0, dropout: float = 0.0) -> tuple[nn.Module, SoftmaxHead]:
    torch.manual_seed(seed)
    layers = [nn.Linear(D, M), nn.BatchNorm1d(M), nn.Tanh(), nn.Dropout(dropout)]
    return nn.Sequential(*layers).double(), SoftmaxHead(M, K).double()


def chunks(seed: int, n: int, size: int = 4) -> list[Chunk]:
    """Chunks with few classes each, so that ACE masks some classes."""
    rng = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, D, generator=rng, dtype=torch.float64),
            torch.randint(K, (2,), generator=rng)[torch.randint(2, (size,), generator=rng)],
        )
        for _ in range(n)
    ]


class Plain:
    """The same network and SGD in plain code."""

    def __init__(
        self, backbone: nn.Module, head: SoftmaxHead, lr: float, momentum: float, decay: float
    ) -> None:
        self.backbone, self.head = copy.deepcopy(backbone), copy.deepcopy(head)
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.weights = [*self.backbone.parameters(), *self.head.parameters()]
        self.velocity: list[Tensor] = []
        self.n_steps = 0

    def logits(self, rows: Tensor) -> Tensor:
        self.backbone.train()
        return self.backbone(rows) @ self.head.weight.T + self.head.bias

    def loss(self, rows: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = self.logits(rows)
        if mask is not None:
            logits = logits + torch.where(mask, -torch.inf, 0.0)
        return -(logits.gather(1, labels[:, None])[:, 0] - logits.logsumexp(1)).mean()

    def descend(self, loss: Tensor) -> None:
        slopes = torch.autograd.grad(loss, self.weights)
        with torch.no_grad():
            steps = [g + self.decay * w for g, w in zip(slopes, self.weights, strict=True)]
            if self.velocity:
                steps = [self.momentum * v + g for v, g in zip(self.velocity, steps, strict=True)]
            self.velocity = steps
            for w, v in zip(self.weights, steps, strict=True):
                w -= self.lr * v
        self.n_steps += 1


def same_network(learner: Learner, plain: Plain) -> None:
    """Check that weights and running averages agree."""
    for ours, theirs in ((learner.backbone, plain.backbone), (learner.head, plain.head)):
        for (name, a), b in zip(
            ours.state_dict().items(), theirs.state_dict().values(), strict=True
        ):
            if name not in ("seen", "count"):
                torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13, msg=name)


# with larger steps rounding errors grow from 1e-16 to 1e-9 within a few chunks
sgd_options = st.tuples(st.floats(1e-3, 0.05), st.floats(0.0, 0.95), st.floats(0.0, 0.1))
n_chunks = st.sampled_from([1, 2, 7])
seeds = st.integers(0, 1000)


def pair(seed: int, chosen: tuple[float, float, float]) -> tuple[Any, Plain]:
    backbone, head = network(seed)
    lr, momentum, decay = chosen
    plain = Plain(backbone, head, lr, momentum, decay)
    sgd = partial(torch.optim.SGD, lr=lr, momentum=momentum, weight_decay=decay)
    return partial(partial, backbone=backbone, head=head, optimizer=sgd), plain


@few
@given(seed=seeds, chosen=sgd_options, n=n_chunks, n_streams=st.sampled_from([0, 1, 8]))
def test_online_sgd_is_a_step_per_chunk_and_stream(
    seed: int, chosen: tuple[float, float, float], n: int, n_streams: int
) -> None:
    make, plain = pair(seed, chosen)
    learner = make(OnlineSGD)(replay=ReplayStreams(n_streams, seed) if n_streams else None)
    streams = ReplayStreams(max(n_streams, 1), seed)
    for rows, labels in chunks(seed, n):
        learner.step(rows, labels)
        plain.descend(plain.loss(rows, labels))
        for chunk in streams.chunks() if n_streams else []:
            plain.descend(plain.loss(*chunk))
        streams.add(rows, labels)
    same_network(learner, plain)
    assert plain.n_steps == n + (n - 1) * n_streams


@few
@given(
    seed=seeds,
    chosen=sgd_options,
    n=n_chunks,
    n_steps=st.integers(1, 3),
    size=st.sampled_from([1, 5, 100]),
    draw=st.sampled_from([1, 10]),
)
def test_er_is_cross_entropy_of_new_and_drawn_rows(
    seed: int, chosen: tuple[float, float, float], n: int, n_steps: int, size: int, draw: int
) -> None:
    make, plain = pair(seed, chosen)
    learner = make(ExperienceReplay)(n_steps=n_steps, replay=RecentMemory(size, draw, seed))
    past: list[tuple[Tensor, Tensor]] = []  # row by row
    rng = torch.Generator().manual_seed(seed)
    for rows, labels in chunks(seed, n):
        learner.step(rows, labels)
        for _ in range(n_steps):
            batch = [(rows, labels)]
            if past:
                drawn = torch.randint(len(past), (draw,), generator=rng).tolist()
                batch += [(past[i][0][None], past[i][1][None]) for i in drawn]
            both = [torch.cat(parts) for parts in zip(*batch, strict=True)]
            plain.descend(plain.loss(both[0], both[1]))
        past = [*past, *zip(rows, labels, strict=True)][-size:]
    same_network(learner, plain)


@few
@given(seed=seeds, chosen=sgd_options, n=n_chunks, n_steps=st.integers(1, 2))
def test_ace_masks_earlier_classes(
    seed: int, chosen: tuple[float, float, float], n: int, n_steps: int
) -> None:
    make, plain = pair(seed, chosen)
    learner = make(ACE)(n_steps=n_steps, replay=RecentMemory(20, 6, seed))
    memory = RecentMemory(20, 6, seed)
    came: set[int] = set()
    for rows, labels in chunks(seed, n):
        learner.step(rows, labels)
        mask = torch.tensor([k in came and k not in labels.tolist() for k in range(K)])
        for _ in range(n_steps):
            again = memory.sample()
            if again is None:
                plain.descend(plain.loss(rows, labels))
            else:
                plain.descend(plain.loss(rows, labels, mask) + plain.loss(*again))
        memory.add(rows, labels)
        came |= set(labels.tolist())
    same_network(learner, plain)
    assert learner.head.seen.nonzero()[:, 0].tolist() == sorted(came)


def test_ace_protects_earlier_classes_but_not_new_ones() -> None:
    learner = ACE(nn.Identity(), SoftmaxHead(D, 3))
    old, new = torch.ones(2, D), torch.full((2, D), 2.0)
    learner.step(old, torch.tensor([0, 0]))
    past = old, torch.tensor([0, 0])
    training = learner.training
    loss = training._sparing(learner, new, torch.tensor([1, 1]), *past)
    loss = loss - training._loss(learner, *past)
    (slopes,) = torch.autograd.grad(loss, learner.head.weight)
    assert slopes.abs().amax(1).gt(1e-3).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("make", "first", "later"),
    [("sgd", 1, 1), ("streams", 1, 9), ("er", 1, 1), ("er++", 3, 3), ("ace", 1, 1)],
)
def test_number_of_steps_and_of_rows(make: str, first: int, later: int) -> None:
    learner = KINDS[make](*network())
    taken, passed = [], []
    learner.optimizer.register_step_post_hook(lambda *_: taken.append(1))
    learner.backbone.register_forward_pre_hook(
        lambda module, rows: passed.append(len(rows[0])) if module.training else None
    )
    for number, (rows, labels) in enumerate(chunks(0, 3)):
        taken.clear(), passed.clear()
        learner.step(rows, labels)
        assert len(taken) == (later if number else first)
        if not number:
            assert passed == [4] * first  # no replay
    expected = {"sgd": [4], "streams": [4] * 9, "er": [14], "er++": [14] * 3, "ace": [4, 10]}
    assert passed == expected[make]
    assert learner.n_seen_ == 12


def test_default_optimizer_equals_that_of_the_public_code() -> None:
    group = ExperienceReplay(*network()).optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.001, 0.9, 1e-4)
    assert not group["nesterov"]


def test_memory_follows_the_protocol() -> None:
    replay = ACE(*network()).replay
    assert isinstance(replay, RecentMemory)
    assert (replay.size, replay.draw) == (100, 10)


@all_kinds
def test_prediction_comes_before_learning_with_running_averages(make: Any) -> None:
    learner = make(*network(), preprocess=torch.from_numpy)
    for rows, labels in chunks(1, 4):
        twin = copy.deepcopy((learner.backbone, learner.head))
        twin[0].eval()
        logits = twin[1](twin[0](rows)).mean.detach()
        probabilities, best = learner.predict_proba(rows.numpy()), learner.predict(rows.numpy())
        outcome = learner.step(rows, labels)
        np.testing.assert_allclose(probabilities, logits.softmax(1), rtol=1e-12)
        expected = logits.log_softmax(1)[range(4), labels]
        torch.testing.assert_close(outcome.log_prob, expected)
        assert outcome.predicted.tolist() == best.tolist() == logits.argmax(1).tolist()
        assert not outcome.log_prob.requires_grad


@all_kinds
def test_partial_fit_equals_step(make: Any) -> None:
    one, other = (make(*network(), preprocess=torch.from_numpy) for _ in range(2))
    for rows, labels in chunks(2, 4):
        one.step(rows, labels)
        other.partial_fit(rows.numpy(), labels.numpy())
    assert same(one.state_dict(), other.state_dict())


def test_a_backbone_without_gradients_does_not_change() -> None:
    backbone, head = network()
    backbone.requires_grad_(False)
    before, layer = copy.deepcopy(backbone.state_dict()), head.weight.detach().clone()
    learner = ExperienceReplay(backbone, head)
    for rows, labels in chunks(0, 3):
        learner.step(rows, labels)
    assert same(before, backbone.state_dict())
    assert not torch.equal(layer, head.weight)


def test_mixed_precision_keeps_the_layer_in_float32() -> None:
    backbone, head = network()
    learner = ACE(backbone.float(), head.float(), autocast=torch.bfloat16)
    for rows, labels in chunks(0, 3):
        outcome = learner.step(rows.float(), labels.int())
    assert outcome.log_prob.dtype == head.weight.dtype == torch.float32


# ---- images -------------------------------------------------------------------------------


class Shows(nn.Module):
    """Returns features of images, and keeps the images of the last training pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.shown: Tensor = None

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.shown = rows
        return self.conv(rows).mean((2, 3))


@pytest.mark.parametrize("make", [OnlineSGD, ExperienceReplay, ACE])
def test_flip_mirrors_half_of_the_rows_in_training_only(make: Any) -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, 6, 5, 3), np.uint8)
    plain = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255.0
    shown = []
    for seed in (0, 0, 1):
        learner = make(Shows(), SoftmaxHead(4, 2), flip=True, seed=seed)
        learner.predict(images)
        assert learner.backbone.shown is None
        learner.partial_fit(images, np.zeros(200, int))
        shown.append(learner.backbone.shown)
        if learner.replay is not None:
            assert torch.equal(learner.replay.rows, plain[-100:])
    assert torch.equal(shown[0], shown[1])
    assert not torch.equal(shown[0], shown[2])
    kept = (shown[0] == plain).flatten(1).all(1)
    assert torch.equal(shown[0][~kept], plain[~kept].flip(3))
    assert 60 < int(kept.sum()) < 140


def test_flip_is_refused_for_rows_without_pixels() -> None:
    learner = ExperienceReplay(*network(), flip=True)
    before = copy.deepcopy(learner.state_dict())
    with pytest.raises(InvalidInput, match="flip=False"):
        learner.step(*chunks(0, 1)[0])
    assert same(before, learner.state_dict())


# ---- save and restore ---------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


@all_kinds
def test_a_restored_learner_continues_with_the_same_numbers(make: Any, tmp_path: Path) -> None:
    images = torch.rand(8, 4, 3, 6, 5, generator=torch.Generator().manual_seed(3))
    labels = torch.randint(K, (8, 4), generator=torch.Generator().manual_seed(4))

    def built(seed: int) -> Any:
        torch.manual_seed(seed)
        parts = nn.Sequential(Shows(), nn.BatchNorm1d(4), nn.Dropout(0.5)), SoftmaxHead(4, K)
        return make(*parts, flip=True, seed=seed)

    learner = built(0)
    for chunk in range(4):
        learner.step(images[chunk], labels[chunk])
    learner.save(tmp_path / "half.pt")
    first = [learner.step(images[chunk], labels[chunk]).log_prob for chunk in range(4, 8)]
    end = copy.deepcopy(learner.state_dict())
    again = built(1).restore(tmp_path / "half.pt")
    assert again.n_seen_ == 16
    second = [again.step(images[chunk], labels[chunk]).log_prob for chunk in range(4, 8)]
    assert same(first, second)
    assert same(end, again.state_dict())


def test_checkpoints_of_other_learners_are_refused(tmp_path: Path) -> None:
    OnlineLearner(nn.Identity(), KalmanHead(2, 2)).save(tmp_path / "kalman.pt")
    with pytest.raises(CheckpointError, match="OnlineSGD"):
        OnlineSGD(nn.Identity(), SoftmaxHead(2, 2)).restore(tmp_path / "kalman.pt")
    OnlineSGD(*network()).save(tmp_path / "sgd.pt")
    with pytest.raises(CheckpointError, match="OnlineSGD, this learner is ExperienceReplay"):
        ExperienceReplay(*network()).restore(tmp_path / "sgd.pt")
    with pytest.raises(CheckpointError, match="replay"):
        OnlineSGD(*network(), replay=ReplayStreams()).restore(tmp_path / "sgd.pt")


# ---- the evaluator ------------------------------------------------------------------------


@all_kinds
def test_runs_under_the_evaluator(make: Any) -> None:
    rng = np.random.default_rng(5)
    labels = rng.integers(K, size=403)
    rows = 3.0 * rng.normal(size=(K, D))[labels] + rng.normal(size=(403, D))
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(D, 20), nn.BatchNorm1d(20), nn.ReLU())
    learner = make(
        backbone, SoftmaxHead(20, K), optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.5)
    )
    result = prequential(learner, ArrayStream(rows, labels), chunk=10)
    assert learner.n_seen_ == 403
    assert result.n_scored == 393  # the first chunk is not scored
    assert result.total["accuracy"] > 0.7
    assert learner.classes_.tolist() == list(range(K))


# ---- errors -------------------------------------------------------------------------------


def learned(make: Any) -> Any:
    learner = make(*network(), preprocess=torch.from_numpy)
    for rows, labels in chunks(0, 2):
        learner.step(rows, labels)
    return learner


@all_kinds
@pytest.mark.parametrize("wrong", [-1, K])
def test_labels_out_of_range_change_nothing(make: Any, wrong: int) -> None:
    learner = learned(make)
    before = copy.deepcopy(learner.state_dict())
    rows, labels = chunks(1, 1)[0]
    labels = labels.clone()
    labels[2] = wrong
    remedy = "number the classes from 0" if wrong < 0 else "n_classes"
    for learn in (learner.step, lambda x, y: learner.partial_fit(x.numpy(), y.numpy())):
        with pytest.raises(InvalidInput, match=rf"{wrong}.*classes 0 to {K - 1}.*{remedy}"):
            learn(rows, labels)
    assert same(before, learner.state_dict())
    learner.step(*chunks(1, 1)[0])


@all_kinds
def test_nan_from_the_backbone_changes_nothing(make: Any) -> None:
    learner = learned(make)
    before = copy.deepcopy(learner.state_dict())
    rows, labels = chunks(1, 1)[0]
    bad = rows.clone()
    bad[1, 3] = torch.nan
    for learn in (learner.step, lambda x, y: learner.partial_fit(x.numpy(), y.numpy())):
        with pytest.raises(InvalidInput, match="NaN or infinity"):
            learn(bad, labels)
    after = learner.state_dict()
    assert all(same(before[name], after[name]) for name in ("backbone", "head", "optimizer"))
    if learner.replay is not None:  # random draws may differ, but the rows are not stored
        kept = "past" if isinstance(learner.replay, ReplayStreams) else "rows"
        assert same(before["replay"][kept], after["replay"][kept])
    assert torch.isfinite(learner.step(rows, labels).log_prob).all()


def test_a_diverged_network_raises() -> None:
    learner = learned(OnlineSGD)
    with torch.no_grad():
        learner.head.weight.fill_(torch.inf)
    with pytest.raises(NumericalError, match="lower the learning rate"):
        learner.predict_proba(np.ones((1, D)))


@all_kinds
def test_empty_chunks_are_refused(make: Any) -> None:
    learner = learned(make)
    before = copy.deepcopy(learner.state_dict())
    with pytest.raises(InvalidInput, match="the chunk has no rows"):
        learner.partial_fit(np.zeros((0, D)), np.zeros(0, int))
    assert same(before, learner.state_dict())


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (partial(OnlineSGD, replay=RecentMemory()), "replay of OnlineSGD must be ReplayStreams"),
        (partial(ACE, replay=ReplayStreams()), "replay of ACE must be RecentMemory"),
        (partial(ExperienceReplay, n_steps=0), "n_steps must be 1 or more"),
        (partial(OnlineSGD, batch_norm="off"), "batch_norm"),
    ],
)
def test_bad_arguments(make: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        make(*network())


def test_sizes_in_place_of_a_head_are_refused_with_what_to_pass() -> None:
    remedy = r"pass ExperienceReplay\(network, SoftmaxHead\(n_features, n_classes\)\)"
    for wrong, shown in (((64, 10), "64, 10"), ((KalmanHead(2, 2),), "KalmanHead")):
        with pytest.raises(InvalidInput, match=f"got {shown} after the network; {remedy}"):
            ExperienceReplay(network()[0], *wrong)


def test_a_head_of_another_width_is_refused() -> None:
    learner = OnlineSGD(network()[0], SoftmaxHead(M + 1, K).double())
    with pytest.raises(InvalidInput, match=rf"\(b, {M + 1}\), got \(4, {M}\).*n_features"):
        learner.step(*chunks(0, 1)[0])
    with pytest.raises(InvalidInput, match="n_classes"):
        SoftmaxHead(3, 0)
