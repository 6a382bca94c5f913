"""A mixture of heads against single heads, and against the core's mixture."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kalstream.core import Mixture, half_life, label_log_prob
from kalstream.deep import KalmanHead, MixtureHead, OnlineLearner
from kalstream.errors import InvalidInput, NumericalError

torch.set_num_threads(1)
GAMMAS = (1.0, 0.99, 0.8)
SAVED = Path(__file__).parents[1] / "data" / "mixture-head-format-2.pt"


def data(n: int, seed: int = 0, flip: bool = False) -> tuple[Any, Any]:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 4, generator=rng, dtype=torch.float64)
    labels = (rows[:, 0] > 0).long() + (rows[:, 1] > 0)
    return rows, 2 - labels if flip else labels


@pytest.mark.parametrize("transition", ["example", "chunk"])
def test_weights_follow_the_rows(transition: str) -> None:
    options = {"noise_var": 0.2, "prior_var": 0.5, "bias": True, "transition": transition}
    mixture = MixtureHead(4, 3, gammas=GAMMAS, share=0.05, calibration=2.0, **options)
    alone = [KalmanHead(4, 3, gamma=gamma, calibration=2.0, **options) for gamma in GAMMAS]
    weights, seen = np.full(3, 1 / 3), list[int]()
    for turn, n in enumerate((5, 1, 8)):
        rows, labels = data(n, turn)
        expected = np.log(
            weights @ np.exp(np.stack([h.log_prob(rows, labels).detach().numpy() for h in alone]))
        )
        np.testing.assert_allclose(mixture.log_prob(rows, labels).detach(), expected, atol=1e-12)
        p = sum(w * h.probabilities(rows).numpy() for w, h in zip(weights, alone, strict=True))
        np.testing.assert_allclose(mixture.probabilities(rows), p, atol=1e-12)
        np.testing.assert_allclose(mixture.scores(rows).detach(), p, atol=0.06)
        steps = [head.observe(rows, labels) for head in alone]
        for i, label in enumerate(labels.tolist()):
            if label in seen:
                moments = ((each.logit_mean[i, seen], each.logit_var[i]) for each in steps)
                own = seen.index(label)
                terms = (label_log_prob(*each, own, calibration=2.0) for each in moments)
                weights *= np.exp([float(each.log_prob) for each in terms])
            else:
                seen.append(label)
            weights = 0.95 * weights / weights.sum() + 0.05 / 3
        mixture.observe(rows, labels)
        np.testing.assert_allclose(mixture.log_weights.exp(), weights, atol=1e-12)
        torch.testing.assert_close(mixture.heads[1].cov, alone[1].cov)
    assert mixture.gamma == pytest.approx(float(np.prod(np.array(GAMMAS) ** weights)))


def late_classes(rng: np.random.Generator, n: int, m: int, k: int) -> tuple[Any, Any]:
    """Rows of a changing rule; class j comes after j / 2k of the rows, the last third never."""
    rows = rng.standard_normal((n, m))
    scores = rows @ rng.standard_normal((m, k)) + 0.3 * rng.standard_normal((n, k))
    came = np.arange(k) < np.maximum(1, 2 * k * np.arange(n) / n)[:, None]
    labels = np.where(came[:, : max(2, 2 * k // 3)], scores[:, : max(2, 2 * k // 3)], -np.inf)
    return rows, labels.argmax(1)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.2])
@pytest.mark.parametrize(
    ("m", "k", "sizes"),
    [
        (1, 2, (1, 1, 1, 1)),
        (3, 2, (7, 1, 2)),
        (5, 7, (1, 10, 33)),
        (12, 100, (63, 10, 1, 64)),
        (33, 31, (100, 1, 63)),
    ],
)
def test_a_mixture_equals_that_of_the_core(m: int, k: int, sizes: Any, share: float) -> None:
    options = {"noise_var": 0.2, "prior_var": 0.7}
    head = MixtureHead(m, k, gammas=GAMMAS, share=share, calibration=4.0, **options)
    lives = [half_life(gamma) for gamma in GAMMAS]
    policy = Mixture(half_lives=lives, share=share, calibrations=(4.0,))
    state = policy.start(m, k, prior_var=0.7)
    rng = np.random.default_rng(m)
    X, y = late_classes(rng, sum(sizes), m, k)
    ends = np.cumsum(sizes)
    for part in map(slice, ends - sizes, ends):
        rows, labels = torch.from_numpy(X[part]), torch.from_numpy(y[part])
        p = policy.class_probabilities(state, X[part], prior_var=0.7)
        np.testing.assert_allclose(head.probabilities(rows), p, atol=1e-10)
        steps = head.observe(rows, labels)
        state, step = policy.step_chunk(state, X[part], y[part], **options)
        np.testing.assert_allclose(
            np.stack([each.logit_mean for each in steps]), step.logit_mean, atol=1e-9
        )
        # The core redistributes its share before a row, the head after it.
        expected = policy.predict(state, X[:1], prior_var=0.7).half_life_weights[0]
        np.testing.assert_allclose(head.log_weights.exp(), expected, rtol=1e-9, atol=1e-11)
        np.testing.assert_array_equal(head.heads[0].seen, state.seen)
    assert state.seen.sum() > 1
    assert np.ptp(expected) > 1e-4 or share > 0.1
    assert k == 2 or not state.seen.all()


@pytest.mark.parametrize("size", [1, 7, 40])
def test_forgetting_once_a_chunk_equals_the_core(size: int) -> None:
    options = {"noise_var": 0.2, "prior_var": 0.7, "transition": "chunk"}
    head = MixtureHead(4, 9, gammas=GAMMAS, share=0.0, calibration=4.0, **options)
    policy = Mixture([half_life(gamma) for gamma in GAMMAS], share=0.0, calibrations=(4.0,))
    state = policy.start(4, 9, prior_var=0.7)
    X, y = late_classes(np.random.default_rng(0), 120, 4, 9)
    for first in range(0, 120, size):
        part = slice(first, first + size)
        head.observe(torch.from_numpy(X[part]), torch.from_numpy(y[part]))
        state, _ = policy.step_chunk(state, X[part], y[part], **options)
        np.testing.assert_allclose(head.log_weights.exp(), state.half_life_weights, rtol=1e-9)


def test_classes_that_never_come_have_no_effect() -> None:
    options = {"gammas": GAMMAS, "noise_var": 0.2, "prior_var": 1.0, "calibration": 5.0}
    X, y = late_classes(np.random.default_rng(1), 90, 4, 9)
    rows, labels = torch.from_numpy(X), torch.from_numpy(y)
    few, many, grown = (MixtureHead(4, n, **options) for n in (9, 200, 3))
    for first in range(0, 90, 10):
        part = rows[first : first + 10], labels[first : first + 10]
        grown.add_classes(max(1, int(part[1].max()) + 1 - grown.n_classes))
        for head in (few, many, grown):
            head.observe(*part)
        for other in (many, grown):
            np.testing.assert_allclose(other.log_weights, few.log_weights, atol=1e-10)
    assert float(few.log_weights.exp().max()) > 0.5


def test_a_new_label_changes_no_weight() -> None:
    mixture = MixtureHead(4, 6, gammas=GAMMAS, share=0.0, calibration=5.0)
    mixture.observe(*data(30))
    before = mixture.log_weights.clone()
    rows, _ = data(1, 7)
    mixture.observe(rows, torch.tensor([5]))
    torch.testing.assert_close(mixture.log_weights, before, atol=1e-14, rtol=0.0)
    mixture.observe(rows, torch.tensor([5]))
    assert float((mixture.log_weights - before).abs().max()) > 1e-6


def test_labels_of_other_whole_numbers() -> None:
    one, other = (MixtureHead(4, 3, gammas=GAMMAS) for _ in range(2))
    rows, labels = data(12)
    one.observe(rows, labels)
    other.observe(rows, labels.to(torch.int32))
    assert torch.equal(one.log_weights, other.log_weights)


def test_a_mixture_of_one_head_equals_the_head() -> None:
    mixture, head = MixtureHead(4, 3, gammas=(0.9,), share=0.0), KalmanHead(4, 3, gamma=0.9)
    rows, labels = data(30)
    for part in (slice(0, 10), slice(10, 30)):
        torch.testing.assert_close(
            mixture.log_prob(rows[part], labels[part]), head.log_prob(rows[part], labels[part])
        )
        mixture.observe(rows[part], labels[part])
        head.observe(rows[part], labels[part])
    assert float(mixture.log_weights.exp()) == pytest.approx(1.0)


def test_weights_find_the_best_gamma() -> None:
    mixture = MixtureHead(4, 3, gammas=GAMMAS, noise_var=0.1, prior_var=1.0, calibration=8.0)
    for turn in range(20):
        mixture.observe(*data(20, turn))
    assert int(mixture.log_weights.argmax()) == 0
    for turn in range(4):
        mixture.observe(*data(20, 100 + turn, flip=True))
    assert int(mixture.log_weights.argmax()) > 0


def test_gradients_reach_features_and_calibration() -> None:
    mixture = MixtureHead(4, 3, gammas=GAMMAS, noise_var=0.3)
    mixture.observe(*data(20))
    rows, labels = data(3, 5)

    def total(features: Any, log_alpha: Any) -> Any:
        with torch.no_grad():
            mixture.log_calibration.copy_(log_alpha)
        return mixture.log_prob(features, labels).sum()

    assert torch.autograd.gradcheck(
        lambda features: total(features, torch.tensor(0.3)), rows.requires_grad_(), atol=1e-5
    )
    total(rows, torch.tensor(0.3)).backward()
    step = 1e-4
    up, down = (float(total(rows, torch.tensor(0.3 + s)).detach()) for s in (step, -step))
    assert float(mixture.log_calibration.grad) == pytest.approx((up - down) / (2 * step), abs=1e-4)


def test_under_a_network(tmp_path: Any) -> None:
    def make_learner(seed: int) -> OnlineLearner:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh()).double()
        return OnlineLearner(net, MixtureHead(8, 3, gammas=GAMMAS, bias=True), lr=0.05)

    one = make_learner(0)
    right = []
    for turn in range(60):
        rows, labels = data(10, turn)
        right.append((one.step(rows, labels).predicted == labels).double().mean())
    assert float(torch.stack(right[-20:]).mean()) > 0.6
    one.save(tmp_path / "l.pt")
    two = make_learner(1).restore(tmp_path / "l.pt")
    rows, labels = data(10, 100)
    assert torch.equal(one.step(rows, labels).log_prob, two.step(rows, labels).log_prob)
    assert len({id(head.log_calibration) for head in two.head.heads}) == 1
    one.head.add_classes(1)
    assert one.predict_proba(rows.numpy()).shape == (10, 4)


def test_a_file_of_an_earlier_version() -> None:
    """The file is of a version whose weights used all declared classes; 1, 2, 3 of 5 had come."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double()
    head = MixtureHead(3, 5, gammas=GAMMAS, bias=True, noise_var=0.2)
    learner = OnlineLearner(net, head, lr=0.05).restore(SAVED)
    assert (learner.n_seen_, head.n_seen) == (30, 30)
    for each in head.heads:
        assert each.seen.tolist() == [False, True, True, True, False]
    np.testing.assert_allclose(head.log_weights.exp(), [0.4733, 0.4061, 0.1206], atol=1e-4)
    before = head.log_weights.exp()
    rows, _ = data(1)
    learner.step(rows, torch.tensor([4]))  # a new class: only the share is redistributed
    expected = 0.999 * before + 0.001 / 3
    torch.testing.assert_close(head.log_weights.exp(), expected, atol=1e-12, rtol=0.0)
    learner.step(rows, torch.tensor([4]))
    assert float((head.log_weights.exp() - before).abs().max()) > 1e-3


def test_an_error_of_one_head_changes_nothing() -> None:
    # Gamma = 0.5 keeps the variance large; with gamma = 1 it falls until its last digit is lost.
    options = {"noise_var": 1e-9, "prior_var": 1.0, "dtype": torch.float32}
    mixture = MixtureHead(2, 2, gammas=(0.5, 1.0), **options)
    torch.manual_seed(0)
    rows, labels = torch.randn(6, 2), torch.tensor([0, 1] * 3)
    broke = 0
    for _ in range(50):
        before = {name: value.clone() for name, value in mixture.state_dict().items()}
        try:
            mixture.observe(rows, labels)
        except NumericalError:
            broke += 1
            for name, value in mixture.state_dict().items():
                assert torch.equal(value, before[name]), name
            mixture.heads[0].observe(rows, labels)  # which is not the head that failed
            break
    assert broke


def test_bad_input_changes_nothing() -> None:
    mixture = MixtureHead(4, 3)
    mixture.observe(*data(10))
    before = {name: value.clone() for name, value in mixture.state_dict().items()}
    rows, labels = data(3)
    for bad in ((rows, labels + 2), (rows * float("nan"), labels), (rows[:, :2], labels)):
        with pytest.raises(InvalidInput):
            mixture.observe(*bad)
    for name, value in mixture.state_dict().items():
        assert torch.equal(value, before[name]), name
    for options in ({"gammas": ()}, {"gamma": 0.9}, {"share": 1.0}):
        with pytest.raises(InvalidInput):
            MixtureHead(4, 3, **options)
