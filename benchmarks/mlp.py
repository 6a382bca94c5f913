"""A network learned online against Fourier features, on tables. Writes its section.

The data are those of data.py. `--save FILE` measures, writes the numbers to a file after every run,
and skips runs that are in the file. `--load FILE` writes the section from such a file.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from page import alone, machine, table, write_section
from torch import nn

from data import name_of, read, stream_files
from kalstream import KalmanClassifier
from kalstream.deep import CrossEntropy, Frozen, Learner, Stack
from kalstream.evaluate import prequential
from kalstream.features import OnlineScaler, RandomFourierFeatures
from kalstream.streams import ArrayStream

STREAMS = ("elec2", "weather", "covtype")
LIMIT, CHUNK, SEEDS = 40_000, 10, (0, 1, 2)
WIDTH = 128  # of both hidden layers
HALF_LIFE = 2000.0  # of the scaling of columns, as in KalmanClassifier
RATE, OTHERS = 0.001, (0.0003, 0.003)  # of AdamW: the default of CrossEntropy, and two more
OWN = "layer"  # the part of a stack that is the network's own layer


class Watched:
    """A learner with a stack, and the scores of the stack's experts by the rule of `prequential`.

    Attributes
    ----------
    losses, hits : lists of (E, b)
        Of each chunk but the first: -log p of the labels, and whether they were predicted.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner, self.classes_ = learner, learner.classes_
        self.losses: list[np.ndarray] = []
        self.hits: list[np.ndarray] = []

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Class probabilities (b, K) of the stack."""
        self.p = self.learner.predict_proba(X)
        return self.p

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Most probable classes (b,)."""
        return self.learner.predict(X)

    def partial_fit(self, X: np.ndarray, y: np.ndarray) -> None:
        """Learn rows (b, d) with labels (b,), and score the experts."""
        n, seen = self.learner.n_seen_, self.learner.head.seen.numpy().copy()
        labels = np.asarray(y, np.int64)
        outcome = self.learner.step(self.learner.preprocess(X), torch.from_numpy(labels))
        assert outcome.experts is not None
        if n == 0:
            return
        # A stack has its own probability of new classes; known labels shall share n / (n + 1).
        known = np.log(self.p[:, seen].sum(1)) - np.log(n / (n + 1.0))
        log_prob = np.where(seen[labels], outcome.experts.log_prob - known, -np.log(n + 1.0))
        self.losses.append(-log_prob)
        self.hits.append((outcome.experts.predicted == torch.from_numpy(labels)).numpy())

    def scores(self) -> dict[str, dict[str, float]]:
        """Accuracy and log-loss of each part."""
        loss, hit = (np.concatenate(each, 1).mean(1) for each in (self.losses, self.hits))
        names = self.learner.head.names
        return {
            name: {"accuracy": float(a), "log_loss": float(b)}
            for name, a, b in zip(names, hit, loss, strict=True)
        }


# ---- methods --------------------------------------------------------------------------------


def estimator(n_columns: int, n_classes: int, seed: int) -> KalmanClassifier:
    """The default, which makes Fourier features itself."""
    return KalmanClassifier(random_state=seed)


def network(n_columns: int) -> nn.Sequential:
    """A network with two hidden layers, from (b, d) to (b, WIDTH)."""
    first, second = nn.Linear(n_columns, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


def trained(lr: float, n_columns: int, n_classes: int, seed: int) -> Learner:
    """The network, learned online with this learning rate, and a stack."""
    training = CrossEntropy(lr=lr, seed=seed)
    return Learner(network(n_columns), Stack(WIDTH, n_classes), training)


def frozen(n_columns: int, n_classes: int, seed: int) -> Learner:
    """The filters of a stack on the network with random weights."""
    stack = Stack(WIDTH, n_classes, decays=(), layers=False)
    return Learner(network(n_columns), stack, Frozen())


def on_features(n_columns: int, n_classes: int, seed: int) -> Learner:
    """The filters of a stack on features (b, d) that are given."""
    stack = Stack(n_columns, n_classes, decays=(), layers=False)
    return Learner(nn.Identity(), stack, Frozen())


def fourier(seed: int) -> RandomFourierFeatures:
    """The features of KalmanClassifier."""
    return RandomFourierFeatures(random_state=seed, half_life=HALF_LIFE)


def scaler(seed: int) -> OnlineScaler:
    """The scaling of KalmanClassifier."""
    return OnlineScaler(half_life=HALF_LIFE)


# How rows are transformed before the learner sees them, the learner, and the rows of a chunk.
METHODS: dict[str, tuple[Any, Any, int]] = {
    "`KalmanClassifier()`": (None, estimator, CHUNK),
    "the same, row by row": (None, estimator, 1),
    "`Stack` on the same Fourier features": (fourier, on_features, CHUNK),
    "`Stack` on a random network": (scaler, frozen, CHUNK),
    **{
        f"`Stack` on a learned network, lr {lr:g}": (scaler, partial(trained, lr), CHUNK)
        for lr in (RATE, *OTHERS)
    },
}


# ---- measuring ------------------------------------------------------------------------------


@alone
def run(path: Path, limit: int, name: str, seed: int) -> dict[str, Any]:
    """Run one pass: accuracy, log-loss, microseconds a row, and the experts of a stack."""
    torch.set_num_threads(1)
    transformer, make, chunk = METHODS[name]
    stream = read(path, limit)
    labels = np.unique(stream.targets, return_inverse=True)[1]
    rows, begun = stream.rows, perf_counter()
    if transformer is not None:
        transformer(seed).advance(rows[:20])  # compiles
        begun = perf_counter()
        rows = transformer(seed).advance(rows)
    seconds = perf_counter() - begun
    for n in (20, len(rows)):  # the first pass compiles
        torch.manual_seed(seed)
        learner = make(rows.shape[1], labels.max() + 1, seed)
        if isinstance(learner, Learner):
            learner = Watched(learner)
        result = prequential(learner, ArrayStream(rows[:n], labels[:n]), chunk=chunk)
    seconds += result.seconds
    scores = {key: result.total[key] for key in ("accuracy", "log_loss")}
    scores |= {"us": 1e6 * seconds / len(rows), "rows": len(rows), "scored": result.n_scored}
    return scores | ({"experts": learner.scores()} if isinstance(learner, Watched) else {})


def seeds(name: str) -> tuple[int, ...]:
    """Seeds of a method; what is there for comparison has one."""
    _, make, _ = METHODS[name]
    main = make is estimator or name.endswith(f"lr {RATE:g}")
    return SEEDS if main else SEEDS[:1]


def measure(limit: int, save: Path | None) -> dict[str, Any]:
    """Run everything that is not in the file ``save`` yet."""
    numbers: dict[str, Any] = {"machine": machine(), "torch": torch.__version__, "runs": []}
    if save is not None and save.exists():
        numbers["runs"] = json.loads(save.read_text())["runs"]
    done = {(each["stream"], each["name"], each["seed"]) for each in numbers["runs"]}
    paths = {name_of(path): path for path in stream_files()}
    for name, seed, stream in ((m, s, t) for m in METHODS for s in seeds(m) for t in STREAMS):
        if (stream, name, seed) in done:
            continue
        key = {"stream": stream, "name": name, "seed": seed}
        numbers["runs"].append(key | run(paths[stream], limit, name, seed))
        print({k: v for k, v in numbers["runs"][-1].items() if k != "experts"}, flush=True)
        if save is not None:
            save.write_text(json.dumps(numbers, indent=1))
    return numbers


# ---- the section ----------------------------------------------------------------------------


def cell(scores: list[dict[str, float]]) -> str:
    """Means over seeds, and the standard deviation of the log-loss."""
    accuracy, loss = (np.array([each[key] for each in scores]) for key in ("accuracy", "log_loss"))
    spread = f" ± {loss.std(ddof=1):.4f}" if len(loss) > 1 else ""
    return f"{accuracy.mean():.4f} / {loss.mean():.4f}{spread}"


def lines_of(numbers: dict[str, Any]) -> list[list[str]]:
    """Lines of the table: each method, and a learned network's own layer before its stack."""
    lines = []
    for name in METHODS:
        runs = [
            [
                each
                for each in numbers["runs"]
                if (each["stream"], each["name"]) == (stream, name) and each["seed"] in seeds(name)
            ]
            for stream in STREAMS
        ]
        if OWN in runs[0][0].get("experts", {}):
            own = [cell([each["experts"][OWN] for each in some]) for some in runs]
            lines.append([name.replace("`Stack` on", "the layer of"), *own, ""])
        times = ", ".join(f"{min(each['us'] for each in some):.0f}" for some in runs)
        lines.append([name, *map(cell, runs), times])
    return lines


def write(numbers: dict[str, Any]) -> None:
    """Write the section from the numbers."""
    rows = {each["stream"]: f"{each['rows']:,}" for each in numbers["runs"]}
    header = ["", *(f"{stream}, {rows[stream]} rows" for stream in STREAMS), "us a row"]
    body = [
        "## A network on a table",
        f"`KALSTREAM_DATA=... python benchmarks/mlp.py` on {numbers['machine']}, torch "
        f"{numbers['torch']}.",
        table(header, lines_of(numbers)),
        f"Accuracy / log-loss; means over seeds {', '.join(map(str, SEEDS))} and the standard "
        f"deviation of the log-loss over them; without ±, seed {SEEDS[0]} alone. Each chunk of "
        f"{CHUNK} rows is predicted, then learned, and `prequential` scores all methods by the "
        "same rule. In chunks no method knows the labels just before a row; row by row the "
        "estimator also uses recent labels. Time of a row, for the three streams: on one core, the "
        "shortest over seeds. The machine had other work, so times are rough: the three learning "
        "rates do the same work.",
        "- **Estimator**: its filters were chosen on streams that include these (see the choice of "
        "the filters).\n"
        f"- **Network**: two hidden layers of {WIDTH} with ReLU. It sees the columns as "
        f"`OnlineScaler(half_life={HALF_LIFE:g})` scales them; the estimator scales them in the "
        "same way. `CrossEntropy` trains it as its defaults are: three steps of AdamW a chunk, "
        "each on the new rows and 54 of the 4,000 most recent ones. Its default learning rate is "
        f"{RATE:g}; none was chosen on these streams.\n"
        "- **Layer**: the network's own softmax layer, with the stack's calibration, but without "
        "slow copies and filters.\n"
        "- **Random network**: the same network, never trained, under the three filters of "
        "`Stack(decays=(), layers=False)`. The Fourier features have the same three filters. The "
        "learned network has nine, and four layers, so not all of its lead is due to features.",
    ]
    write_section("mlp", "\n\n".join(body))


def main() -> None:
    """Measure, write the section, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=LIMIT, help="rows of a stream at most")
    for name in ("--save", "--load"):
        parser.add_argument(name, type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.load:
        write(json.loads(options.load.read_text()))
        return
    numbers = measure(options.rows, options.save)
    if not options.save:
        write(numbers)


if __name__ == "__main__":
    main()
