"""Images whose classes change: a small convolutional network with a stack on top.

The stream shows two or three of scikit-learn's digits at a time, moved by up to one pixel. The
digits come back later. In the last phase all of them are shown, turned by 90 degrees. Every chunk
is predicted before it is learned. The network starts with random weights; a pretrained network is
used in the same way.

The example prints accuracy and log-loss of the stack and of the network's own softmax layer, which
is an expert of the stack. It prints them for each phase, and for the first 100 rows of all phases
but the first. Then it prints the best expert and the weights of all. It needs the extra `torch`.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from kalstream.deep import CrossEntropy, Learner, Stack

PHASES = ((0, 1, 2), (3, 4, 5), (6, 7), (8, 9), (0, 1, 2), (3, 4, 5), (6, 7), (8, 9), range(10))
FEATURES, CLASSES = 64, 10
CHUNK = 10
LR = 0.01  # of 0.001, 0.003, 0.01 and 0.03 the best for the layer
SOON = 100  # rows after a change that are also scored separately


def stream(rows: int, seed: int):
    """Images (n, 1, 8, 8) from 0 to 1, and their digits (n,), phase by phase."""
    rng = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16.0
    for phase, shown in enumerate(PHASES):
        drawn = rng.choice(np.flatnonzero(np.isin(digits, shown)), rows)
        moves = rng.integers(-1, 2, (rows, 2))
        X = np.stack([np.roll(images[i], by, (0, 1)) for i, by in zip(drawn, moves, strict=True)])
        if phase == len(PHASES) - 1:
            X = np.rot90(X, axes=(1, 2)).copy()
        yield torch.from_numpy(X[:, None]).float(), torch.from_numpy(digits[drawn])


def network() -> nn.Module:
    """Two convolutions and a layer of 64 features."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, FEATURES),
        nn.ReLU(),
    )


def scores(log_prob, right) -> str:
    """Accuracy and log-loss as two columns."""
    return f"{right.mean():9.3f}{-log_prob.mean():9.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=800, help="of each phase")
    parser.add_argument("--lr", type=float, default=LR, help="learning rate of the network")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    stack = Stack(FEATURES, CLASSES)
    training = CrossEntropy(lr=options.lr)
    learner = Learner(network(), stack, training)
    own = stack.names.index("layer")

    # of the stack and of each expert, (1 + experts, rows), one array for each phase
    log_prob, right = [], []
    for X, y in stream(options.rows, options.seed):
        said = [learner.step(*chunk) for chunk in zip(X.split(CHUNK), y.split(CHUNK), strict=True)]
        both = [torch.vstack([each.log_prob, each.experts.log_prob]) for each in said]
        named = [torch.vstack([each.predicted, each.experts.predicted]) for each in said]
        log_prob.append(torch.hstack(both).numpy())
        right.append((torch.hstack(named) == y).numpy())

    print(" " * 34 + f"{'stack':^18}{'its layer':^18}")
    print(f"{'digits':34}" + " accuracy log-loss" * 2)
    for shown, p, r in zip(PHASES, log_prob, right, strict=True):
        name = " ".join(map(str, shown)) + (", turned" if shown is PHASES[-1] else "")
        print(f"{name:34}" + "".join(scores(p[k], r[k]) for k in (0, 1 + own)))
    soon = [np.hstack([each[:, :SOON] for each in kind[1:]]) for kind in (log_prob, right)]
    whole = [np.hstack(kind) for kind in (log_prob, right)]
    for name, (p, r) in ((f"first {SOON} rows after a change", soon), ("all rows", whole)):
        print(f"{name:34}" + "".join(scores(p[k], r[k]) for k in (0, 1 + own)))

    best = 1 + whole[0][1:].mean(axis=1).argmax()
    print(f"best: {stack.names[best - 1]:28}" + scores(whole[0][best], whole[1][best]))
    print("at the end, weights of the experts in their mixture:")
    mixed = stack.expert_weights["mixture"]
    for name, weight in sorted(mixed.items(), key=lambda each: -each[1]):
        if weight >= 0.01:
            print(f"  {name:28}{weight:6.2f}")
    # The pools add up log-probabilities, with weights of any sign.
    shares = ", ".join(f"{name} {weight:.2f}" for name, weight in stack.weights.items())
    print(f"weights of mixture and pools: {shares}")


if __name__ == "__main__":
    main()
