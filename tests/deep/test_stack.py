"""Stacks, slow copies and the combinations of a training with what reads the network out."""

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from kalstream.baselines import ExperienceReplay  # noqa: E402
from kalstream.deep import (  # noqa: E402
    CrossEntropy,
    Fleet,
    Frozen,
    KalmanHead,
    Learner,
    MixtureHead,
    OnlineLearner,
    RecentMemory,
    ReplayStreams,
    SlowCopies,
    SoftmaxHead,
    Stack,
    ThroughHead,
)
from kalstream.deep.bank import FilterBank  # noqa: E402
from kalstream.deep.replay import draw_moves, moved  # noqa: E402
from kalstream.deep.stack import NetworkOutput  # noqa: E402
from kalstream.errors import CheckpointError, InvalidInput, NumericalError  # noqa: E402

D, M, K = 4, 6, 5
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=NO_GPU)]
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, M))


def stream(n: int, b: int = 10, seed: int = 0, k: int = K) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n * b, D, generator=generator)
    labels = (rows[:, 0] > 0).long() + 2 * (rows[:, 1] * rows[:, 2] > 0).long()
    return list(zip(rows.split(b), (labels % k).split(b), strict=True))


# ---- the bank of filters ----------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    gammas=st.lists(st.sampled_from([1.0, 0.999, 0.9, 0.5]), min_size=1, max_size=3),
    n_sources=st.integers(1, 3),
    prior_var=st.sampled_from([0.1, 100.0]),
    k=st.integers(2, 9),
)
def test_a_bank_equals_softmax_heads(
    device: str,
    seed: int,
    sizes: list[int],
    gammas: list[float],
    n_sources: int,
    prior_var: float,
    k: int,
) -> None:
    bank = FilterBank(M, k, n_sources, gammas, prior_var).to(device)
    options = {"likelihood": "softmax", "bias": True, "prior_var": prior_var}
    heads = [KalmanHead(M, k, gamma=g, **options) for _ in range(n_sources) for g in gammas]
    seen = torch.zeros(k, dtype=torch.bool, device=device)
    torch.manual_seed(seed)
    for b in sizes:
        features, labels = torch.randn(n_sources, b, M), torch.randint(0, k, (b,))
        rows = bank.rows(features.to(device))
        logits = bank.logits(rows).cpu()
        for j, head in enumerate(heads):
            phi = rows.phi[j, :, :-1].cpu()
            mean, var = head(phi)
            shrunk = mean / (1.0 + np.pi / 8.0 * var).sqrt()[:, None]
            torch.testing.assert_close(logits[j], shrunk, atol=1e-9, rtol=1e-9)
            head.observe(phi, labels)
        labels = labels.to(device)
        assert bool(bank.observe(rows, features.to(device), labels, seen))
        seen[labels] = True
    for j, head in enumerate(heads):
        torch.testing.assert_close(bank.mean[j].cpu(), head.mean, atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(bank.cov[j].cpu(), head.cov, atol=1e-9, rtol=1e-9)


# ---- the stack ----------------------------------------------------------------------------------


def outputs(stack: Stack, b: int, seed: int) -> list[NetworkOutput]:
    generator = torch.Generator().manual_seed(seed)

    def draw(n: int) -> Any:
        return torch.randn(b, n, generator=generator)

    logits = stack.layer is not None
    n = 1 + len(stack.decays)
    return [NetworkOutput(draw(M), draw(stack.n_classes) if logits else None) for _ in range(n)]


@pytest.mark.parametrize(("decays", "gammas", "layers"), [
    ((), (1.0,), False), ((), (), True), ((0.9,), (), True), ((0.9, 0.98), (1.0, 0.99), True),
])  # fmt: skip
def test_probabilities_add_up_and_what_was_said_was_said_before(
    decays: Any, gammas: Any, layers: bool
) -> None:
    stack = Stack(M, K, decays=decays, gammas=gammas, layers=layers)
    n_experts = len(decays or [0]) * len(gammas) + (1 + len(decays)) * layers
    assert len(stack.names) == n_experts
    for turn in range(6):
        now, labels = outputs(stack, 7, turn), torch.randint(0, 1 + min(turn, K - 2), (7,))
        p = stack.probabilities(now)
        torch.testing.assert_close(p.sum(1), torch.ones(7, dtype=torch.float64))
        # Classes that did not come are equally probable, and the last one never comes.
        left = p[:, ~stack.seen]
        torch.testing.assert_close(left, left[:, :1].expand_as(left))
        said, experts, sound = stack.predict_then_observe(now, labels)
        assert bool(sound)
        torch.testing.assert_close(said.log_prob, p.log().gather(1, labels[:, None])[:, 0])
        assert torch.equal(said.predicted, p.argmax(1))
        assert experts.log_prob.shape == (n_experts, 7)
    assert stack.n_seen == 42
    assert sum(stack.weights.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("rest", [0, 10])
def test_classes_that_never_come_change_nothing_but_the_probability_of_new_ones(rest: int) -> None:
    small, large = (Stack(M, k, decays=(), layers=False) for k in (4, 4 + rest))
    for turn in range(8):
        now = outputs(small, 9, turn)
        labels = torch.randint(0, 3, (9,))
        p, q = small.probabilities(now), large.probabilities(now)
        if turn:
            p, q = (each[:, small.seen.nonzero()[:, 0]] for each in (p, q))
            torch.testing.assert_close(p / p.sum(1, True), q / q.sum(1, True))
        small.observe(now, labels)
        large.observe(now, labels)


def test_the_better_expert_gains_weight() -> None:
    stack = Stack(M, 3, decays=(), gammas=())
    stack_of_two = Stack(M, 3, decays=(0.9,), gammas=())
    torch.manual_seed(0)
    for _ in range(30):
        labels = torch.randint(0, 3, (10,))
        good = 3.0 * nn.functional.one_hot(labels, 3) + torch.randn(10, 3)
        features = torch.zeros(10, M)
        stack.observe([NetworkOutput(features, good)], labels)
        stack_of_two.observe(
            [NetworkOutput(features, -good), NetworkOutput(features, good)], labels
        )
    weights = stack_of_two.expert_weights
    assert weights["mixture"]["layer 0.9"] > 0.9
    assert weights["pool"]["layer 0.9"] == float(stack_of_two.pooled[0, 1])
    assert float(stack_of_two.pooled[0, 1]) > 0.5 > float(stack_of_two.pooled[0, 0])


def test_nan_changes_nothing() -> None:
    stack = Stack(M, 3, decays=(0.9,))
    stack.observe(outputs(stack, 5, 0), torch.tensor([0, 1, 2, 0, 1]))
    before = copy.deepcopy(stack.state_dict())
    for bad in ("features", "logits"):
        now = outputs(stack, 2, 1)
        getattr(now[1], bad)[0, 0] = torch.nan
        with pytest.raises(InvalidInput, match="unchanged"):
            stack.observe(now, torch.tensor([0, 1]))
        for name, value in stack.state_dict().items():
            assert torch.equal(value, before[name]), name


def test_gradients_reach_the_features() -> None:
    stack = Stack(M, 3, decays=(0.9,))
    for turn in range(3):
        stack.observe(outputs(stack, 9, turn), torch.arange(9) % 3)
    features = torch.randn(4, M, dtype=torch.float64, requires_grad=True)
    stack.double()
    labels = torch.tensor([0, 1, 2, 0])
    assert torch.autograd.gradcheck(lambda x: stack.log_prob(x, labels), (features,))


def test_settings_are_checked() -> None:
    for options, message in (
        ({"share": 1.0}, "share must be above 0 and below 1"),
        ({"gammas": (), "layers": False}, "needs layers or gammas"),
        ({"gammas": (0.0,)}, "gammas must be above 0"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Stack(M, K, **options)
    with pytest.raises(InvalidInput, match="other decays"):
        Stack(M, K).load_state_dict(Stack(M, K, prior_var=1.0).state_dict())


# ---- slow copies --------------------------------------------------------------------------------


@given(seed=st.integers(0, 1000), decay=st.sampled_from([0.0, 0.5, 0.98]), n=st.integers(1, 30))
@settings(max_examples=20)
def test_a_slow_copy_is_the_average_of_networks(seed: int, decay: float, n: int) -> None:
    one = network(seed)
    slow = SlowCopies(one, [decay])
    expected = {name: value.clone() for name, value in one.state_dict().items()}
    for k in range(n):
        with torch.no_grad():
            for each in one.parameters():
                each.add_(torch.randn_like(each))
        one(torch.randn(8, D))  # moves the running averages
        slow.follow(one)
        kept = min(decay, (k + 1) / (k + 10))
        for name, value in one.state_dict().items():
            expected[name] = kept * expected[name] + (1.0 - kept) * value
    for name, value in slow.copies[0].state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-5)
    assert not slow.train().copies[0].training


# ---- every training with every head -------------------------------------------------------------

HEADS: dict[str, Any] = {
    "stack": lambda: Stack(M, K),
    "filters": lambda: Stack(M, K, decays=(), layers=False),
    "layers": lambda: Stack(M, K, gammas=()),
    "kalman": lambda: KalmanHead(M, K, gamma=0.99, gamma_lr=0.01),
    "softmax filter": lambda: KalmanHead(M, K, likelihood="softmax"),
    "mixture": lambda: MixtureHead(M, K, likelihood="softmax"),
    "layer": lambda: SoftmaxHead(M, K),
}
TRAININGS: dict[str, Any] = {
    "frozen": Frozen,
    "head": lambda: ThroughHead(lr=0.05, replay=RecentMemory(30, 5)),
    "cross-entropy": lambda: CrossEntropy(optimizer=SGD, replay=RecentMemory(30, 5)),
    "streams": lambda: CrossEntropy(optimizer=SGD, n_steps=1, replay=ReplayStreams(2)),
    "alone": lambda: CrossEntropy(optimizer=SGD, replay=None),
    "ace": lambda: CrossEntropy(optimizer=SGD, replay=RecentMemory(30, 5), spare_past=True),
}


def made(head: str, training: str, **options: Any) -> Learner:
    net = network()
    return Learner(net, HEADS[head](), TRAININGS[training](), **options)


@pytest.mark.filterwarnings("ignore:the network is frozen")
@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("head", HEADS)
def test_every_combination_learns_and_resumes(head: str, training: str, tmp_path: Path) -> None:
    learner = made(head, training)
    before = copy.deepcopy(learner.backbone.state_dict())
    chunks = stream(12)
    for chunk in chunks[:6]:
        outcome = learner.step(*chunk)
        assert torch.isfinite(outcome.log_prob).all()
        assert (outcome.experts is not None) == ("stack" in head or head in ("filters", "layers"))
    changed = any(not torch.equal(v, before[k]) for k, v in learner.backbone.state_dict().items())
    assert changed == (training != "frozen")
    learner.save(tmp_path / "file")
    other = made(head, training).restore(tmp_path / "file")
    for rows, labels in chunks[6:]:
        p = learner.predict_proba(rows.numpy())
        np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-6)
        one, two = learner.step(rows, labels), other.step(rows, labels)
        assert torch.equal(one.log_prob, two.log_prob)
    assert learner.n_seen_ == 120


@pytest.mark.parametrize("head", ["stack", "kalman"])
def test_step_partial_fit_and_fleet_are_one(head: str) -> None:
    one, two, three = (made(head, "cross-entropy") for _ in range(3))
    torch.manual_seed(3)  # the layers of the three
    for each in (one, two, three):
        layer = each.training.layer or each.head.layer
        nn.init.constant_(layer.weight, 0.1)
        nn.init.zeros_(layer.bias)
        if each.slow is not None:
            each.slow = SlowCopies(each._network(), each.head.decays)
    fleet = Fleet([three])
    for rows, labels in stream(8):
        p = two.predict_proba(rows.numpy())
        outcome = one.step(rows, labels)
        two.partial_fit(rows.numpy(), labels.numpy())
        (third,) = fleet.step([(rows, labels)])
        assert torch.equal(outcome.log_prob, third.log_prob)
        own = np.log(p[np.arange(len(labels)), labels.numpy()])
        np.testing.assert_allclose(outcome.log_prob.numpy(), own, atol=1e-9)
    for name, value in one.head.state_dict().items():
        assert torch.equal(value, two.head.state_dict()[name]), name


def test_a_head_reads_the_last_slow_copy() -> None:
    learner = made("softmax filter", "cross-entropy", slow=[0.5, 0.9])
    for chunk in stream(5):
        learner.step(*chunk)
    rows = stream(1, seed=7)[0][0]
    copied = learner.slow.copies[-1][0]
    features = copied(rows)
    expected = learner.head.probabilities(features)
    np.testing.assert_allclose(learner.predict_proba(rows.numpy()), expected.numpy())
    assert not torch.equal(features, learner.features(rows, grad=False))


def test_a_learning_rate_numbers_of_other_types_and_the_representation() -> None:
    learner = Learner(network(), Stack(M, K, decays=0.9, gammas=1.0), CrossEntropy(lr=0.02))
    assert [group["lr"] for group in learner.optimizer.param_groups] == [0.02]
    assert learner.optimizer.param_groups[0]["weight_decay"] == 0.05
    rows, labels = stream(1)[0]
    learner.step(rows.double(), labels)
    assert repr(learner) == "Learner(Sequential, Stack, CrossEntropy, n_seen_=10)"
    assert learner.head.names == ["layer", "layer 0.9", "filter 0.9, gamma 1"]


def test_rows_of_a_chunk_are_predicted_separately() -> None:
    learner = made("stack", "cross-entropy")
    for chunk in stream(10):
        learner.step(*chunk)
    rows = stream(1, seed=3)[0][0].numpy()
    whole = learner.predict_proba(rows)
    for k in range(len(rows)):
        np.testing.assert_allclose(learner.predict_proba(rows[k : k + 1])[0], whole[k], atol=1e-6)


def test_a_gradient_through_the_stack_is_that_before_the_chunk() -> None:
    """The loss of a chunk must not know its labels."""
    learner = Learner(network(), Stack(M, 3, decays=(0.9,)), ThroughHead(lr=1e-9))
    losses = []
    descend = learner.descend
    learner.descend = lambda loss: (losses.append(float(loss().detach())), descend(loss))[1]
    for rows, labels in stream(6, k=3):
        learner.features(rows, grad=False)
        before = learner.head.log_prob(learner.features(rows, grad=True), labels).mean()
        learner.step(rows, labels)
        assert losses[-1] == pytest.approx(-float(before.detach()), rel=1e-3)


def test_a_stack_is_better_than_its_layer_where_classes_change() -> None:
    learner = made("stack", "cross-entropy")
    said, layer = [], []
    for turn, (rows, labels) in enumerate(stream(120, k=4)):
        outcome = learner.step(rows, (labels + turn // 40) % 4)
        said.append(outcome.log_prob.mean())
        layer.append(outcome.experts.log_prob[0].mean())
    assert float(torch.stack(said).mean()) > float(torch.stack(layer).mean())


def test_bad_values_are_refused() -> None:
    stack, used = Stack(M, K, decays=(0.9,)), CrossEntropy()
    for make, message in (
        (lambda: Learner(network(), stack, slow=0.5), "was made for slow copies with decays"),
        (lambda: Learner(network(), SoftmaxHead(M, K), slow=0.5), "reads no slow copies"),
        (lambda: Learner(network(), stack, training="sgd"), "training must be a"),
        (lambda: Learner(network(), nn.Linear(M, K)), "head must be a Head, got Linear"),
        (lambda: Learner(network(), stack, CrossEntropy), "got the class CrossEntropy; call it"),
        (lambda: CrossEntropy(lr=0.0), "lr must be"),
        (lambda: Learner(network(), stack).predict(["text"]), "pass preprocess="),
        (lambda: [Learner(network(), SoftmaxHead(M, K), used) for _ in range(2)], "belongs to"),
        (lambda: CrossEntropy(n_steps=0), "n_steps must be 1 or more"),
        (lambda: CrossEntropy(replay=None, spare_past=True), "give a RecentMemory"),
        (lambda: CrossEntropy(replay="all"), "replay must be"),
        (lambda: Learner(network(), KalmanHead(M, K), slow=1.0), "decays must be at least 0"),
    ):
        with pytest.raises(InvalidInput, match=message):
            make()
    learner = Learner(network(), stack, CrossEntropy(flip=True))
    with pytest.raises(InvalidInput, match="mirrors images"):
        learner.step(*stream(1)[0])
    with pytest.raises(InvalidInput, match="labels run from"):
        learner.step(torch.randn(2, D), torch.tensor([0, K]))


def test_a_diverged_network_is_an_error_and_the_stack_is_unchanged() -> None:
    with pytest.warns(UserWarning, match="layers=False"):
        learner = Learner(network(), Stack(M, K, decays=(0.9,)), Frozen())
    learner.step(*stream(1)[0])
    before = copy.deepcopy(learner.head.state_dict())
    with torch.no_grad():
        learner.slow.copies[0][1].weight.fill_(torch.inf)
    with pytest.raises((NumericalError, InvalidInput)):
        learner.step(*stream(1, seed=1)[0])
    for name, value in learner.head.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert learner.n_seen_ == 10


def test_a_checkpoint_of_another_combination_is_refused(tmp_path: Path) -> None:
    made("kalman", "cross-entropy", slow=0.9).save(tmp_path / "file")
    with pytest.raises(CheckpointError, match="differ in slow"):
        made("kalman", "cross-entropy").restore(tmp_path / "file")


def test_moved_images_are_mirrored_and_shifted_and_zeros_come_in() -> None:
    images = torch.arange(1.0, 1.0 + 2 * 3 * 5 * 4).view(2, 3, 5, 4)
    moves = torch.tensor([[0, 1, -2], [1, 0, 0]])
    one, two = moved(images, moves, 2)
    assert torch.equal(one[:, 1:, :2], images[0, :, :4, 2:])
    assert not one[:, 0].any()
    assert not one[:, :, 2:].any()
    assert torch.equal(two, images[1].flip(2))
    drawn = draw_moves(1000, True, 2, torch.Generator().manual_seed(0))
    assert sorted(set(drawn[:, 0].tolist())) == [0, 1]
    assert sorted(set(drawn[:, 1].tolist())) == [-2, -1, 0, 1, 2]
    assert torch.equal(moved(images, torch.zeros(2, 3, dtype=torch.int64), 2), images)


# ---- on a GPU ------------------------------------------------------------------------------------


@NO_GPU
@pytest.mark.filterwarnings("ignore:the network is frozen")
@pytest.mark.parametrize("training", ["frozen", "cross-entropy", "head"])
@pytest.mark.parametrize("head", ["stack", "filters", "layers"])
def test_a_captured_stack_equals_the_cpu(head: str, training: str) -> None:
    cpu = made(head, training)
    gpu, plain = (made(head, training, device="cuda", capture=c) for c in (True, False))
    for each in (gpu, plain):
        each.load_state_dict({**cpu.state_dict(), "cuda_rng": None})
    for rows, labels in stream(14):
        one = cpu.step(rows, labels)
        for each in (gpu, plain):
            other = each.step(rows.cuda(), labels.cuda())
            # Gradients through the head amplify the roundings of float32.
            close = 0.1 if training == "head" else 2e-3
            torch.testing.assert_close(other.log_prob.cpu(), one.log_prob, atol=close, rtol=close)
            assert other.experts.log_prob.shape == one.experts.log_prob.shape
    assert gpu.executors.captured
    assert not plain.executors.captured
    bad = torch.full((10, D), torch.nan).cuda()
    before = copy.deepcopy(gpu.head.state_dict())
    with pytest.raises((NumericalError, InvalidInput)):
        gpu.step(bad, labels.cuda())
    for name, value in gpu.head.state_dict().items():
        if not name.startswith("layer"):
            assert torch.equal(value, before[name]), name


# ---- files of format 3 ---------------------------------------------------------------------------

SAVED = Path(__file__).parents[1] / "data"


def small_images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 4)
    )


@pytest.mark.parametrize("name", ["replay", "kalman"])
def test_files_of_format_3_are_restored_and_continue(name: str) -> None:
    memory = RecentMemory(15, 4, 2)
    learner: Learner
    if name == "replay":
        options = {"n_steps": 2, "flip": True, "seed": 3, "replay": memory}
        learner = ExperienceReplay(small_images(), SoftmaxHead(4, 3), **options)
    else:
        head = KalmanHead(4, 3, gamma=0.99)
        learner = OnlineLearner(small_images(), head, lr=0.05, replay=memory)
    learner.restore(SAVED / f"learner-{name}-format-3.pt")
    generator = torch.Generator().manual_seed(1)
    chunks = [
        (
            torch.randn(6, 1, 5, 5, generator=generator),
            torch.randint(0, 3, (6,), generator=generator),
        )
        for _ in range(8)
    ]
    expected = json.loads((SAVED / f"learner-{name}-format-3.json").read_text())
    for chunk, said in zip(chunks[4:], expected, strict=True):
        np.testing.assert_allclose(learner.step(*chunk).log_prob.tolist(), said, rtol=1e-4)
    assert learner.n_seen_ == 48
