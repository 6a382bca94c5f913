"""Which head: the same small network with each head, and with a baseline, on digits that turn.

The stream shows scikit-learn's digits in chunks of ten. From the middle on, they are turned by 90
degrees. Every chunk is predicted before it is learned. All learners begin with the same weights.

The example prints accuracy and log-loss of the whole pass and of the first 200 rows after the turn.
It needs the extra `torch`.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from kalstream.baselines import ExperienceReplay
from kalstream.deep import (
    CrossEntropy,
    KalmanHead,
    Learner,
    MixtureHead,
    OnlineLearner,
    RecentMemory,
    SoftmaxHead,
    Stack,
)

FEATURES, CLASSES, CHUNK, SOON = 64, 10, 10, 200
ADAMW = partial(torch.optim.AdamW, lr=0.01)


def through(head: KalmanHead | MixtureHead, network: nn.Module) -> Learner:
    """The paper's protocol."""
    return OnlineLearner(network, head, lr=0.05, beta=1.0, replay=RecentMemory())


def filters(likelihood: str, network: nn.Module) -> Learner:
    """The paper's protocol, with a learned gamma."""
    options = {"gamma": 0.999, "gamma_lr": 0.01, "likelihood": likelihood}
    return through(KalmanHead(FEATURES, CLASSES, **options, bias=True, normalize=True), network)


def mixture(network: nn.Module) -> Learner:
    """The paper's protocol, with several gammas."""
    return through(MixtureHead(FEATURES, CLASSES, bias=True, normalize=True), network)


def stack(network: nn.Module) -> Learner:
    """The defaults."""
    return Learner(network, Stack(FEATURES, CLASSES))


def layer(network: nn.Module) -> Learner:
    """The layer alone, which needs a larger learning rate here."""
    return Learner(network, SoftmaxHead(FEATURES, CLASSES), CrossEntropy(lr=0.01))


def er(network: nn.Module, **options) -> Learner:
    """ER++."""
    return ExperienceReplay(network, SoftmaxHead(FEATURES, CLASSES), n_steps=3, **options)


LEARNERS = {
    "Stack": stack,
    "SoftmaxHead, lr 0.01": layer,
    "KalmanHead": partial(filters, "onehot"),
    "KalmanHead, softmax": partial(filters, "softmax"),
    "MixtureHead": mixture,
    "ER++, as published": er,
    "ER++, AdamW, 1,000 rows": partial(er, optimizer=ADAMW, replay=RecentMemory(1000)),
}


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
    for name, make in LEARNERS.items():
        torch.manual_seed(options.seed)
        learner = make(nn.Sequential(nn.Linear(64, FEATURES), nn.ReLU()))
        chunks = zip(X.split(CHUNK), y.split(CHUNK), strict=True)
        outcomes = [learner.step(*chunk) for chunk in chunks]
        log_prob = torch.cat([each.log_prob for each in outcomes])
        right = (torch.cat([each.predicted for each in outcomes]) == y).double()
        turned = slice(len(y) // 2, len(y) // 2 + SOON)
        scores = (right.mean(), -log_prob.mean(), right[turned].mean(), -log_prob[turned].mean())
        print(f"{name:24}" + "".join(f"{float(score):9.3f}" for score in scores), flush=True)


if __name__ == "__main__":
    main()
