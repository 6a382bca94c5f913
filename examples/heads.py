"""Which head: the same small network with each head, and with a baseline, on digits that turn.

The stream shows scikit-learn's digits in chunks of ten. From the middle on, they are turned by 90
degrees. Every chunk is predicted before it is learned. All learners begin with the same weights.

The example prints accuracy and log-loss of the whole pass and of the first 200 rows after the turn.
It needs the extra `torch`.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from kalstream.baselines import ExperienceReplay
from kalstream.deep import (
    CrossEntropy,
    Head,
    KalmanHead,
    Learner,
    MixtureHead,
    OnlineLearner,
    RecentMemory,
    SoftmaxHead,
    Stack,
)

FEATURES, CHUNK, SOON = 64, 10, 200
ADAMW = partial(torch.optim.AdamW, lr=0.01)
# Of the size that a filter expects. One-hot targets need a calibration: CrossEntropy trains none.
FILTER = {"bias": True, "normalize": True, "calibration": 10.0}
SOFTMAX = {"bias": True, "normalize": True, "likelihood": "softmax"}


def network(n_columns: int) -> nn.Module:
    """One layer of 64 features; the norm makes them as large on every stream."""
    norm = nn.LayerNorm(FEATURES, elementwise_affine=False)
    return nn.Sequential(nn.Linear(n_columns, FEATURES), nn.ReLU(), norm)


def trained(kind: type[Head], options: dict[str, Any], features: nn.Module, k: int) -> Learner:
    """A head of k classes on a network that is trained by cross-entropy."""
    return Learner(features, kind(FEATURES, k, **options), CrossEntropy(lr=0.01))


def stack(features: nn.Module, k: int) -> Learner:
    """The defaults."""
    return Learner(features, Stack(FEATURES, k))


def through(features: nn.Module, k: int) -> Learner:
    """The paper's protocol, with the softmax and AdamW."""
    head = KalmanHead(FEATURES, k, gamma=0.999, gamma_lr=1e-5, **SOFTMAX)
    return OnlineLearner(
        features, head, lr=0.003, optimizer=torch.optim.AdamW, replay=RecentMemory()
    )


def published(features: nn.Sequential, k: int) -> Learner:
    """The paper's protocol as published: one-hot targets, SGD, and no norm."""
    head = KalmanHead(FEATURES, k, gamma=0.999, gamma_lr=0.01, bias=True, normalize=True)
    return OnlineLearner(features[:-1], head, lr=0.05, replay=RecentMemory())


def er(features: nn.Module, k: int, **options: Any) -> Learner:
    """ER++."""
    return ExperienceReplay(features, SoftmaxHead(FEATURES, k), n_steps=3, **options)


def er_off_cifar(features: nn.Module, k: int) -> Learner:
    """ER++ with settings that are fairer here."""
    return er(features, k, optimizer=ADAMW, replay=RecentMemory(1000))


LEARNERS = {
    "Stack": stack,
    "SoftmaxHead": partial(trained, SoftmaxHead, {}),
    "KalmanHead": partial(trained, KalmanHead, {"gamma": 0.999, **FILTER}),
    "KalmanHead, softmax": partial(trained, KalmanHead, {"gamma": 0.999, **SOFTMAX}),
    "MixtureHead": partial(trained, MixtureHead, FILTER),
    "MixtureHead, softmax": partial(trained, MixtureHead, SOFTMAX),
    "OnlineLearner, softmax": through,
    "OnlineLearner, published": published,
    "ER++, as published": er,
    "ER++, AdamW, 1,000 rows": er_off_cifar,
}


def steps(name: str, X: torch.Tensor, y: torch.Tensor, k: int, seed: int):
    """Log-probabilities of the labels (n,), and whether they were predicted (n,)."""
    torch.manual_seed(seed)
    learner = LEARNERS[name](network(X.shape[1]), k)
    outcomes = [learner.step(*chunk) for chunk in zip(X.split(CHUNK), y.split(CHUNK), strict=True)]
    log_prob = torch.cat([each.log_prob for each in outcomes])
    return log_prob, (torch.cat([each.predicted for each in outcomes]) == y).double()


def stream(rows: int, seed: int):
    """Images (n, 64) from 0 to 1, and their digits (n,)."""
    rng = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    drawn = rng.integers(len(digits), size=rows)
    images = images[drawn].reshape(-1, 8, 8) / 16.0
    images[rows // 2 :] = np.rot90(images[rows // 2 :], axes=(1, 2))
    return torch.from_numpy(images.reshape(rows, -1)).float(), torch.from_numpy(digits[drawn])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    X, y = stream(options.rows, options.seed)
    print(f"{'':24}{'all rows':^18}{f'first {SOON} turned':^18}")
    print(f"{'':24}" + " accuracy log-loss" * 2)
    for name in LEARNERS:
        log_prob, right = steps(name, X, y, 10, options.seed)
        turned = slice(len(y) // 2, len(y) // 2 + SOON)
        scores = (right.mean(), -log_prob.mean(), right[turned].mean(), -log_prob[turned].mean())
        print(f"{name:24}" + "".join(f"{float(score):9.3f}" for score in scores), flush=True)


if __name__ == "__main__":
    main()
