"""The Kalman head, streaming LDA, softmax SGD and class means on frozen embeddings of CIFAR-100.

Writes its section. If the embeddings do not exist, they are computed first from `--images` (the
official cifar-100-python) and `--weights` (torchvision's MobileNetV2). `--save FILE` measures,
writes the numbers to a file after every run, and skips runs that are in the file. `--load FILE`
writes the section from such a file.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page import alone, machine, table, write_section
from scipy.linalg import cho_factor, cho_solve
from scipy.special import softmax
from torch import nn

from kalstream import KalmanClassifier
from kalstream.baselines import OnlineSGD, SoftmaxHead
from kalstream.deep import KalmanHead, MixtureHead, OnlineLearner, backbones
from kalstream.deep.embed import embed
from kalstream.errors import NumericalError
from kalstream.evaluate import prequential
from kalstream.features import OnlineScaler
from kalstream.streams import Batch, Cifar100Stream, EmbeddingStream

FILE = Path(__file__).with_name("out") / "cifar100-160.safetensors"
M, K, CHUNK, SIZE = 1280, 100, 10, 160
TRIAL = 5000  # rows that are used to choose a setting
FRESH = 100  # streaming LDA factors its covariance after this many rows
ORDERS = {"stationary": "shuffled", "10 tasks": "tasks"}


# ---- methods --------------------------------------------------------------------------------


class ClassMeans:
    """Nearest class mean: running means (K, m), Euclidean distance."""

    classes_ = np.arange(K)

    def __init__(self, m: int = M) -> None:
        self.means, self.counts = np.zeros((K, m)), np.zeros(K)

    def learn(self, x: np.ndarray, label: int) -> np.ndarray:
        """Learn a row; return its difference (m,) from the previous mean of its class."""
        gap = x - self.means[label]
        self.counts[label] += 1
        self.means[label] += gap / self.counts[label]
        return gap

    def partial_fit(self, X: np.ndarray, y: np.ndarray) -> None:
        for x, label in zip(X, y, strict=True):
            self.learn(x, label)

    def predict(self, X: np.ndarray) -> np.ndarray:
        scores = X @ self.means.T - 0.5 * np.square(self.means).sum(1)
        return np.where(self.counts > 0, scores, -np.inf).argmax(1)


class StreamingLDA(ClassMeans):
    """Hayes & Kanan (2020): class means, one covariance (m, m), equal priors, linear discriminant.

    The covariance is the mean outer product of the rows' differences from their class means.
    """

    def __init__(self, shrinkage: float = 1e-4, m: int = M, fresh: int = FRESH) -> None:
        super().__init__(m)
        self.shrinkage, self.fresh, self.factored = shrinkage, fresh, -fresh
        self.scatter, self.gaps = np.zeros((m, m)), list[np.ndarray]()
        self.weights = np.zeros((m, K))

    def partial_fit(self, X: np.ndarray, y: np.ndarray) -> None:
        gaps = np.zeros_like(X)
        for i, (x, label) in enumerate(zip(X, y, strict=True)):
            gap = self.learn(x, label)
            gaps[i] = math.sqrt(1.0 - 1.0 / self.counts[label]) * gap
        self.gaps.append(gaps)
        moved, n = np.unique(y), int(self.counts.sum())
        if n - self.factored >= self.fresh:
            gaps, self.gaps = np.concatenate(self.gaps), []
            self.scatter += gaps.T @ gaps
            cov = (1.0 - self.shrinkage) / n * self.scatter
            cov.flat[:: len(cov) + 1] += self.shrinkage
            self.factor, self.factored = cho_factor(cov, overwrite_a=True), n
            moved = self.classes_
        self.weights[:, moved] = cho_solve(self.factor, self.means[moved].T)

    def scores(self, X: np.ndarray) -> np.ndarray:
        """Logits (b, K), also of classes that have not come yet."""
        return X @ self.weights - 0.5 * np.einsum("km,mk->k", self.means, self.weights)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return softmax(np.where(self.counts > 0, self.scores(X), -np.inf), axis=1)


def softmax_sgd(lr: float) -> OnlineSGD:
    """Linear softmax with one step of plain SGD per chunk."""
    optimizer = partial(torch.optim.SGD, lr=lr)
    return OnlineSGD(nn.Identity(), SoftmaxHead(M, K), optimizer=optimizer)


def head(lr: float = 0.01, **options: Any) -> OnlineLearner:
    """The Kalman head on the features; lr is the learning rate of its calibration."""
    return OnlineLearner(nn.Identity(), KalmanHead(M, K, **options), lr=lr, beta=0.0)


def mixture() -> OnlineLearner:
    """A mixture of heads with five gammas."""
    return OnlineLearner(nn.Identity(), MixtureHead(M, K), beta=0.0)


LEARNED = {"gamma": 0.999, "gamma_lr": 0.01}
# A function that makes the learner. If a setting is chosen: the values to try, as its first
# argument.
METHODS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "`KalmanHead`, gamma 1 (default)": (head, ()),
    "`KalmanHead`, gamma 0.999": (partial(head, gamma=0.999), ()),
    "`KalmanHead`, gamma learned": (partial(head, **LEARNED), ()),
    "`KalmanHead`, gamma learned, lr chosen": (partial(head, **LEARNED), (0.01, 0.03, 0.1, 0.3)),
    "`MixtureHead`, defaults": (mixture, ()),
    '`KalmanClassifier(features="raw")`': (partial(KalmanClassifier, features="raw"), ()),
    "streaming LDA, shrinkage 1e-4": (StreamingLDA, ()),
    "streaming LDA, shrinkage chosen": (StreamingLDA, (1e-4, 1e-2, 0.1, 0.5, 0.9, 1)),
    "softmax SGD, lr chosen": (softmax_sgd, (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)),
    "nearest class mean": (ClassMeans, ()),
}
CHEAP = ("softmax SGD, lr chosen", "nearest class mean")  # these run on three orders


# ---- rows -----------------------------------------------------------------------------------


class ScaledRows(EmbeddingStream):
    """Embeddings whose columns are standardised by the rows before, with `OnlineScaler`."""

    def batches(self, start: int = 0) -> Iterator[Batch]:
        scaler = OnlineScaler()
        for batch in super().batches(start):
            yield replace(batch, rows=scaler.advance(batch.rows))


ROWS = {
    "as they are": EmbeddingStream,
    "columns standardised online (`OnlineScaler`)": ScaledRows,
}


def prepared(images: np.ndarray) -> torch.Tensor:
    """Images in the form that MobileNetV2 needs."""
    prepared_images = backbones.preprocess(images, size=SIZE, interpolation="bicubic")
    return prepared_images.contiguous(memory_format=torch.channels_last)


def make_embeddings(path: Path, images: Path, weights: Path) -> None:
    """Compute the embeddings, in about ten minutes on one core.

    Channels last and a small batch make good use of the processor's caches.
    """
    network = backbones.load_weights(backbones.mobilenet_v2(), weights)
    network = network.to(memory_format=torch.channels_last)
    embed(Cifar100Stream(images), network, path, batch_size=8, preprocess=prepared)


# ---- measuring ------------------------------------------------------------------------------


@alone
def run(path: Path, rows: str, order: str, name: str, seed: int) -> dict[str, Any]:
    """Run one pass: accuracy, log-loss, seconds, and the settings that were chosen or learned."""
    torch.set_num_threads(1)
    stream = ROWS[rows](path, order=ORDERS[order], seed=seed)
    make, values = METHODS[name]
    scores: dict[str, Any] = {}
    if values:
        losses = {value: first_loss(make, value, stream) for value in values}
        scores["chosen"] = min(losses, key=losses.__getitem__)
        make = partial(make, scores["chosen"])
    torch.manual_seed(0)
    learner = make()
    result = prequential(learner, stream, chunk=CHUNK)
    if isinstance(getattr(learner, "head", None), KalmanHead):
        scores["calibration"] = float(learner.head.calibration.detach())
    scores |= {key: result.total[key] for key in ("accuracy", "log_loss")}
    return scores | {"scored": result.n_scored, "seconds": result.seconds}


def first_loss(make: Callable[..., Any], value: float, stream: EmbeddingStream) -> float:
    """Log-loss of the first rows; infinite if the learner raises an error."""
    torch.manual_seed(0)
    try:
        loss = prequential(make(value), stream, chunk=CHUNK, limit=TRIAL).total["log_loss"]
    except NumericalError:
        return math.inf
    return math.inf if loss is None else loss


def measure(path: Path, save: Path | None) -> dict[str, Any]:
    """Run everything that is not in the file ``save`` yet."""
    numbers: dict[str, Any] = {"machine": machine(), "torch": torch.__version__, "runs": []}
    if save is not None and save.exists():
        numbers["runs"] = json.loads(save.read_text())["runs"]
    done = {(run["rows"], run["order"], run["name"], run["seed"]) for run in numbers["runs"]}
    keys = ((r, o, n, s) for r in ROWS for o in ORDERS for n in METHODS for s in seeds(n))
    for key in keys:
        if key in done:
            continue
        named = dict(zip(("rows", "order", "name", "seed"), key, strict=True))
        numbers["runs"].append(named | run(path, *key))
        print(numbers["runs"][-1], flush=True)
        if save is not None:
            save.write_text(json.dumps(numbers, indent=1))
    return numbers


def seeds(name: str) -> range:
    """Seeds of the orders of a method."""
    return range(3) if name in CHEAP else range(1)


def write(numbers: dict[str, Any]) -> None:
    """Write the section from the numbers."""
    scored = {run["scored"] for run in numbers["runs"]}
    body = [
        "## Frozen embeddings",
        "`python benchmarks/frozen.py --images cifar-100-python --weights "
        f"mobilenet_v2-b0353104.pth` on {numbers['machine']}, torch {numbers['torch']}.",
        "The rows are the 50,000 training images of CIFAR-100, embedded by a frozen MobileNetV2 at "
        f"{SIZE} px (bicubic) into {M} features. Each chunk of {CHUNK} is predicted, then learned, "
        f"in one pass; `prequential` scores {', '.join(f'{n:,}' for n in scored)} rows. "
        "Stationary: shuffled rows. 10 tasks: 10 classes, then the next 10, shuffled within a "
        "task. Accuracy / log-loss, averages over the pass.",
    ]
    for rows in ROWS:
        lines = []
        for name in METHODS:
            cells, times, chosen = [], [], []
            for order in ORDERS:
                runs = [
                    run
                    for run in numbers["runs"]
                    if (run["rows"], run["order"], run["name"]) == (rows, order, name)
                ]
                if not runs:
                    continue
                accuracy, loss = (mean(runs, key) for key in ("accuracy", "log_loss"))
                cells.append(f"{accuracy} / {loss}")
                times += [run["seconds"] for run in runs]
                values = sorted({run["chosen"] for run in runs if "chosen" in run})
                chosen.append(" or ".join(f"{value:g}" for value in values))
            if not cells:
                continue
            picked = ", ".join(chosen) if any(chosen) else ""
            lines.append([name, *cells, picked, f"{np.mean(times):.0f}", f"{len(seeds(name))}"])
        header = [f"rows {rows}", *ORDERS, "chosen", "seconds a pass", "orders"]
        body.append(table(header, lines))
    body += [
        "- **Heads**: `OnlineLearner(nn.Identity(), KalmanHead(1280, 100), beta=0)`, with defaults "
        "except for the named settings. A learned gamma starts at 0.999 and has rate 0.01; lr is "
        "the learning rate of the calibration.\n"
        f"- **Chosen**: the value with the least log-loss on the first {TRIAL:,} rows of the same "
        "order (stationary, 10 tasks). The time of this search is not counted.\n"
        "- **Streaming LDA** (Hayes & Kanan, 2020): the covariance is factored every "
        f"{FRESH} rows, the means are always current, and no rows are learned beforehand.\n"
        "- **Softmax SGD**: `OnlineSGD`, one step a chunk, no momentum.\n"
        "- **Nearest class mean** gives no probabilities.",
        "A label that comes for the first time has probability 1/(n+1), and a known one at least "
        "1e-15, for all methods. Three orders have seeds 0, 1 and 2; one order has seed 0. One "
        "thread, on a machine with other work.",
    ]
    write_section("frozen", "\n\n".join(body))


def mean(runs: list[dict[str, Any]], key: str) -> str:
    """Mean over orders; a dash if a value is missing."""
    values = [run[key] for run in runs]
    return "–" if None in values else f"{np.mean(values):.4f}"


def main() -> None:
    """Measure, write the section, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embeddings", type=Path, metavar="FILE", default=FILE)
    for name in ("--images", "--weights", "--save", "--load"):
        parser.add_argument(name, type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.load:
        write(json.loads(options.load.read_text()))
        return
    if not options.embeddings.exists():
        options.embeddings.parent.mkdir(parents=True, exist_ok=True)
        make_embeddings(options.embeddings, options.images, options.weights)
    numbers = measure(options.embeddings, options.save)
    if not options.save:
        write(numbers)


if __name__ == "__main__":
    main()
