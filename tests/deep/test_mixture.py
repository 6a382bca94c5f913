"""A mixture of heads against heads on their own."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kalstream.deep import KalmanHead, MixtureHead, OnlineLearner, predictive
from kalstream.errors import InvalidInput

torch.set_num_threads(1)
GAMMAS = (1.0, 0.99, 0.8)


def data(n: int, seed: int = 0, flip: bool = False) -> tuple[Any, Any]:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 4, generator=rng, dtype=torch.float64)
    labels = (rows[:, 0] > 0).long() + (rows[:, 1] > 0)
    return rows, 2 - labels if flip else labels


@pytest.mark.parametrize("transition", ["example", "chunk"])
def test_weights_follow_the_rows(transition: str) -> None:
    how = {"noise_var": 0.2, "prior_var": 0.5, "bias": True, "transition": transition}
    mixture = MixtureHead(4, 3, gammas=GAMMAS, share=0.05, calibration=2.0, **how)
    alone = [KalmanHead(4, 3, gamma=gamma, calibration=2.0, **how) for gamma in GAMMAS]
    weights = np.full(3, 1 / 3)
    for turn, n in enumerate((5, 1, 8)):
        rows, labels = data(n, turn)
        expected = np.log(
            weights @ np.exp(np.stack([h.log_prob(rows, labels).detach().numpy() for h in alone]))
        )
        np.testing.assert_allclose(mixture.log_prob(rows, labels).detach(), expected, atol=1e-12)
        p = sum(w * h.probabilities(rows).numpy() for w, h in zip(weights, alone, strict=True))
        np.testing.assert_allclose(mixture.probabilities(rows), p, atol=1e-12)
        np.testing.assert_allclose(mixture.scores(rows).detach(), p, atol=0.06)
        told = [head.observe(rows, labels) for head in alone]
        for i in range(n):
            for j, each in enumerate(told):
                said = predictive.log_prob(
                    each.logit_mean[i : i + 1],
                    each.logit_var[i : i + 1],
                    labels[i : i + 1],
                    torch.tensor(2.0, dtype=torch.float64),
                )
                weights[j] *= float(said.exp())
            weights = 0.95 * weights / weights.sum() + 0.05 / 3
        mixture.observe(rows, labels)
        np.testing.assert_allclose(mixture.log_weights.exp(), weights, atol=1e-12)
        torch.testing.assert_close(mixture.heads[1].cov, alone[1].cov)
    assert mixture.gamma == pytest.approx(float(np.prod(np.array(GAMMAS) ** weights)))


def test_one_head_is_that_head() -> None:
    mixture, head = MixtureHead(4, 3, gammas=(0.9,), share=0.0), KalmanHead(4, 3, gamma=0.9)
    rows, labels = data(30)
    for part in (slice(0, 10), slice(10, 30)):
        torch.testing.assert_close(
            mixture.log_prob(rows[part], labels[part]), head.log_prob(rows[part], labels[part])
        )
        mixture.observe(rows[part], labels[part])
        head.observe(rows[part], labels[part])
    assert float(mixture.log_weights.exp()) == pytest.approx(1.0)


def test_it_finds_out_how_fast_to_forget() -> None:
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
    def made(seed: int) -> OnlineLearner:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh()).double()
        return OnlineLearner(net, MixtureHead(8, 3, gammas=GAMMAS, bias=True), lr=0.05)

    one = made(0)
    right = []
    for turn in range(60):
        rows, labels = data(10, turn)
        right.append((one.step(rows, labels).predicted == labels).double().mean())
    assert float(torch.stack(right[-20:]).mean()) > 0.6
    one.save(tmp_path / "l.pt")
    two = made(1).restore(tmp_path / "l.pt")
    rows, labels = data(10, 100)
    assert torch.equal(one.step(rows, labels).log_prob, two.step(rows, labels).log_prob)
    assert len({id(head.log_calibration) for head in two.head.heads}) == 1
    one.head.add_classes(1)
    assert one.predict_proba(rows.numpy()).shape == (10, 4)


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
    for how in ({"gammas": ()}, {"gamma": 0.9}, {"share": 1.0}):
        with pytest.raises(InvalidInput):
            MixtureHead(4, 3, **how)
