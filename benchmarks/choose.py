"""Choose the filters of `KalmanClassifier` and the half-life of its scaling. Writes its section.

    KALSTREAM_DATA=... python benchmarks/choose.py [--rows 10000] [--jobs 2] [--cache FOLDER]

Every filter runs once over every stream, and what it predicted is kept. A set of filters is then
judged by the mean, over sources of data, of the logarithm of its log-loss, with the stack, with
recent labels and without. The search grows a set by its plain mixture, which is cheap, and then
changes one filter at a time. It is made for all streams, and again without each source of the
tables: the number reported for a stream comes from constants chosen without its source.

It takes hours on two cores. Streams whose data are missing are left out. What was computed is kept
in the cache, a temporary folder unless one is named; a second run with it goes on from there.
"""

from __future__ import annotations

import argparse
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from embeddings import EMBEDDINGS, embeddings
from numba import njit
from page import machine, table, write_section
from sklearn import datasets
from threadpoolctl import threadpool_limits

from data import FOLDER, name_of, read, stream_files
from kalstream import KalmanClassifier
from kalstream.core import Mixture, MixtureStep, class_probabilities
from kalstream.core.stacking import Stack
from kalstream.core.state import BankStep
from kalstream.features import RandomFourierFeatures

Array = np.ndarray[Any, Any]

HALF_LIVES = (30.0, 100.0, 300.0, 1e3, 1e4, 1e5, math.inf)
PRIORS = (3.0, 30.0, 300.0, 3e3, 3e4)
SCALINGS = (1e3, 2e3, 5e3, 1e4, math.inf)
NOISE_VAR, SHARE = 0.03, 0.001
MODES = ("without labels", "with labels")
REPORTED = ("elec2", "weather", "outdoor", "covtype")
# A change of a set has to lower the mean logarithm of the log-loss by this much.
LEAST_GAIN = 3e-4
CHUNK = 100
# Filters are chosen with this half-life of the scaling, and then the half-life.
_FIRST_SCALING = 1e4
# Rows of a table for which numbers are reported.
LONG = 40_000


class Filter(NamedTuple):
    """One filter; a one-hot filter has logits of another size, hence another calibration."""

    likelihood: str
    half_life: float
    prior: float

    @property
    def calibration(self) -> float:
        return 15.0 if self.likelihood == "onehot" else 1.0

    def __str__(self) -> str:
        return f"{self.likelihood} {self.half_life:g} ({self.prior:g})"


CANDIDATES = [
    *(
        Filter(likelihood, half_life, prior)
        for likelihood in ("softmax", "softmax-label")
        for half_life in HALF_LIVES
        for prior in PRIORS
    ),
    *(Filter("onehot", half_life, 1.0) for half_life in HALF_LIVES),
]
Bank = tuple[Filter, ...]


# ---- streams ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows and labels; ``source`` says which streams come from the same data."""

    name: str
    source: str
    rows: Array
    labels: Array
    raw: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _known_stream, (self.name, len(self.labels))  # processes of the pool have it

    @cached_property
    def codes(self) -> Array:
        """Labels as numbers in the order in which they first come."""
        _, first, codes = np.unique(self.labels, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[codes]

    @cached_property
    def known(self) -> Array:
        """How many classes are known before each row."""
        return np.maximum.accumulate(np.append(-1, self.codes[:-1])) + 1

    def features(self, scaling: float, seed: int) -> Array:
        """Features (n, m) as `KalmanClassifier` makes them."""
        if self.raw:
            made = self.rows / math.sqrt(self.rows.shape[1])
        else:
            waves = RandomFourierFeatures(half_life=scaling, random_state=seed)
            made = waves.advance(self.rows)
        return np.column_stack([np.ones(len(made)), made])


# All streams, by name and number of rows; set before the pool begins.
_STREAMS: dict[tuple[str, int], Stream] = {}


def _known_stream(name: str, n_rows: int) -> Stream:
    return _STREAMS[name, n_rows]


def real_streams(limit: int) -> Iterable[Stream]:
    """The tables and embeddings of data.py, in their order and shuffled."""
    rng = np.random.default_rng(7)
    for path in stream_files():
        name, whole = name_of(path), read(path, None)
        if name not in REPORTED:
            continue
        yield Stream(name, name, whole.rows[:limit], whole.targets[:limit])
        if name in ("elec2", "covtype"):
            index = rng.permutation(len(whole.rows))[: min(limit, 15_000)]
            yield Stream(f"{name}, shuffled", name, whole.rows[index], whole.targets[index])
    if (FOLDER / "embeddings" / EMBEDDINGS).exists():
        for order in ("shuffled", "ten tasks"):
            stream, n = embeddings(order), min(limit, 20_000)
            name = f"embeddings, {order}"
            yield Stream(name, "embeddings", stream.rows[:n], stream.targets[:n], raw=True)


def bundled_streams(limit: int) -> Iterable[Stream]:
    """Tables that come with scikit-learn and with river."""
    rng = np.random.default_rng(7)
    loaders = {
        "digits": datasets.load_digits,
        "breast cancer": datasets.load_breast_cancer,
        "wine": datasets.load_wine,
        "iris": datasets.load_iris,
    }
    for name, load in loaders.items():
        rows, labels = load(return_X_y=True)
        index = rng.permutation(len(rows))
        rows, labels = rows[index], labels[index]
        yield Stream(name, name, rows, labels)
        if name == "digits":
            yield Stream("digits, raw", name, rows, labels, raw=True)
            along = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][0]
            for order, key in (("drifting", rows @ along), ("tasks", labels // 2)):
                index = np.argsort(key, kind="stable")
                yield Stream(f"digits, {order}", name, rows[index], labels[index])
    try:
        from river import datasets as river
    except ImportError:
        return
    for name, made in (
        ("bananas", river.Bananas()),
        ("phishing", river.Phishing()),
        ("segments", river.ImageSegments()),
        ("shuttle", river.Shuttle()),
    ):
        pairs = [(list(x.values()), y) for x, y in made.take(min(limit, 15_000))]
        rows = np.array([row for row, _ in pairs], np.float64)
        labels = np.array([str(label) for _, label in pairs])
        if name == "segments":  # sorted by class
            index = rng.permutation(len(rows))
            rows, labels = rows[index], labels[index]
        yield Stream(name, name, rows, labels)


def generated_streams(limit: int) -> Iterable[Stream]:
    """Chance, moving and sudden changes, noise, a rare class, and many classes."""
    rng = np.random.default_rng(7)
    n = min(limit, 20_000)
    time = np.arange(n)

    x = rng.standard_normal((n, 6))
    yield Stream("chance", "chance", x, rng.integers(2, size=n))

    x, w = rng.standard_normal((n, 10)), np.linalg.qr(rng.standard_normal((10, 2)))[0]
    turn = 2.0 * np.pi * time / 10_000
    label = (x @ w * np.column_stack([np.cos(turn), np.sin(turn)])).sum(axis=1) > 0.0
    yield Stream("rotating plane", "rotating plane", x, label ^ (rng.random(n) < 0.05))

    x, bound = 10.0 * rng.random((n, 3)), np.array([8.0, 9.0, 7.0, 9.5])[4 * time // n]
    label = x[:, 0] + x[:, 1] <= bound
    yield Stream("sudden changes", "sudden changes", x, label ^ (rng.random(n) < 0.1))

    x, w = rng.standard_normal((n, 5)), rng.standard_normal((5, 3))
    label = (x @ w + 0.5 * rng.gumbel(size=(n, 3))).argmax(axis=1)
    yield Stream("labels swap", "labels swap", x, (label + time // 700) % 3)

    centres, blob = 1.5 * rng.standard_normal((15, 8)), rng.integers(15, size=n)
    x = centres[blob] + rng.standard_normal((n, 8))
    for share in (0.05, 0.2):
        wrong = rng.random(n) < share
        label = np.where(wrong, rng.integers(5, size=n), blob % 5)
        yield Stream(f"{share:.0%} wrong labels", "wrong labels", x[:10_000], label[:10_000])

    label = rng.random(n) < 0.01
    x = rng.standard_normal((n, 8)) + np.outer(label, [1.5, -1.0, 1.0, 0, 0, 0, 0, 0])
    yield Stream("a class of 1%", "a class of 1%", x, label)

    label, turn = rng.integers(50, size=n), 1.5 * time[:, None] / n
    start, end = rng.standard_normal((2, 50, 16))
    x = start[label] * np.cos(turn) + end[label] * np.sin(turn)
    yield Stream("50 classes", "50 classes", x + 0.8 * rng.standard_normal((n, 16)), label)


# ---- what filters and sets of filters predict ----------------------------------------------


@njit(cache=False)
def share_weights(log_prob: Array, share: float) -> Array:
    """Weights (n, J) of filters before each row, from their log-probabilities (n, J) of labels."""
    n, n_filters = log_prob.shape
    out, weights = np.empty((n, n_filters)), np.full(n_filters, 1.0 / n_filters)
    for i in range(n):
        weights = (1.0 - share) * weights + share / n_filters
        out[i] = weights
        if not np.isnan(log_prob[i, 0]):
            weights *= np.exp(log_prob[i] - log_prob[i].max())
            weights /= weights.sum()
    return out


@dataclass(frozen=True)
class Setting:
    """A stream, the half-life of its scaling and the seed of its waves."""

    stream: Stream
    scaling: float
    seed: int

    @property
    def key(self) -> str:
        scaling = "" if self.stream.raw else f", scaling {self.scaling:g}, seed {self.seed}"
        return f"{self.stream.name}, {len(self.stream.codes)} rows{scaling}"


class Laboratory:
    """Runs filters, and keeps what they predicted and how good sets of filters were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results.jsonl"
        self.scores: dict[str, dict[str, list[float]]] = {}
        if self.results.exists():
            for line in self.results.read_text().splitlines():
                key, value = json.loads(line)
                self.scores[key] = value
        self.features = lru_cache(1)(lambda at: at.stream.features(at.scaling, at.seed))

    def moments(self, setting: Setting, one: Filter) -> tuple[Array, Array, Array]:
        """One-step-ahead means (n, K), variances (n,) and log-probabilities (n,) of the labels."""
        name = zlib.crc32(f"{setting.key}, {one}".encode())
        path = self.folder / f"{name:08x}.npz"
        if not path.exists():
            np.savez(path, *self._run(setting, one))
        kept = np.load(path)
        return kept["arr_0"], kept["arr_1"], kept["arr_2"]

    def _run(self, setting: Setting, one: Filter) -> tuple[Array, Array, Array]:
        codes, features = setting.stream.codes, self.features(setting)
        policy = Mixture(
            half_lives=(one.half_life,),
            likelihood=one.likelihood,
            prior_scale=one.prior,
            calibrations=(one.calibration,),
            predictive="probit",
        )
        state = policy.start(features.shape[1], int(codes.max()) + 1, prior_var=1.0)
        means, variances, log_probs = [], [], []
        for start in range(0, len(codes), CHUNK):
            part = slice(start, start + CHUNK)
            state, step = policy.step_chunk(
                state, features[part], codes[part], noise_var=NOISE_VAR, prior_var=1.0
            )
            means.append(step.logit_mean[0].astype(np.float32))
            variances.append(step.logit_var[0])
            log_probs.append(step.log_prob)
        return np.concatenate(means), np.concatenate(variances), np.concatenate(log_probs)

    def plain_loss(self, setting: Setting, bank: Bank) -> float:
        """Log-loss of the mixture without a stack."""
        log_prob = np.stack([self.moments(setting, one)[2] for one in bank], axis=1)
        weights = share_weights(log_prob, SHARE)
        of_label = np.log((weights * np.exp(log_prob)).sum(axis=1))
        return -float(np.where(np.isnan(of_label), 0.0, of_label).mean())

    def plain_losses(self, setting: Setting, banks: Sequence[Bank]) -> list[float]:
        """`plain_loss` of several sets."""
        return [self.plain_loss(setting, bank) for bank in banks]

    def all_scores(
        self, settings: Sequence[Setting], banks: Sequence[Bank], pool: Executor
    ) -> list[list[dict[str, list[float]]]]:
        """Accuracy and log-loss in each of `MODES`: for each set of filters, for each setting."""
        keys = [[f"{at.key}: {', '.join(map(str, bank))}" for at in settings] for bank in banks]
        jobs = {
            key: pool.submit(_score, setting, bank)
            for row, bank in zip(keys, banks, strict=True)
            for key, setting in zip(row, settings, strict=True)
            if key not in self.scores
        }
        for key, job in jobs.items():
            self.scores[key] = job.result()
            with self.results.open("a") as file:
                file.write(json.dumps([key, self.scores[key]]) + "\n")
        return [[self.scores[key] for key in row] for row in keys]

    def score(self, setting: Setting, bank: Bank) -> dict[str, list[float]]:
        stream, n = setting.stream, len(setting.stream.codes)
        moments = [self.moments(setting, one) for one in bank]
        weights = share_weights(np.stack([part[2] for part in moments], axis=1), SHARE)
        n_classes = int(stream.codes.max()) + 1
        plain = np.zeros((n, n_classes))
        for known in np.unique(stream.known[stream.known > 0]):  # others have no probability yet
            index = np.flatnonzero(stream.known == known)
            for j, (mean, var, _) in enumerate(moments):
                p = class_probabilities(
                    mean[index, :known],
                    var[index],
                    calibration=bank[j].calibration,
                    method="probit",
                )
                plain[index, :known] += weights[index, j, None] * p
        means = np.stack([mean for mean, _, _ in moments]).astype(np.float64)
        variances = np.stack([var for _, var, _ in moments])
        rest = np.ones_like(variances), np.full(variances.shape, NOISE_VAR), variances
        step = MixtureStep(
            BankStep(means, variances, *rest),
            weights[:, :, None],
            np.zeros(n),
            np.ones((n, len(bank))),
            tuple(one.half_life for one in bank),
            tuple((one.calibration,) for one in bank),
        )
        out = {}
        for mode in MODES:
            start = Stack.start(len(bank), n_classes)
            ordered = mode == "with labels"
            _, corrected = start.learn(step, stream.codes, plain=plain, ordered=ordered)
            out[mode] = [float(value) for value in accuracy_and_loss(corrected, stream)]
        return out


def accuracy_and_loss(probabilities: Array, stream: Stream) -> tuple[float, float]:
    """As `kalstream.evaluate` has them: a class never seen has probability 1 / (n + 1)."""
    row = np.arange(len(stream.codes))
    new = stream.codes >= stream.known
    right = (probabilities.argmax(axis=1) == stream.codes) & ~new
    of_label = np.where(new, 1.0, probabilities[row, stream.codes] * row) / (row + 1.0)
    return right.mean(), -np.log(np.maximum(of_label, 1e-12)).mean()


# The laboratory of a process of the pool.
_LABORATORY: list[Laboratory] = []


def _begin(folder: Path) -> None:
    threadpool_limits(1)
    _LABORATORY[:] = [Laboratory(folder)]


def _score(setting: Setting, bank: Bank) -> dict[str, list[float]]:
    return _LABORATORY[0].score(setting, bank)


def _plain_losses(setting: Setting, banks: Sequence[Bank]) -> list[float]:
    return _LABORATORY[0].plain_losses(setting, banks)


# ---- the search ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """A search over sets of filters for some streams."""

    laboratory: Laboratory
    streams: Sequence[Stream]
    pool: Executor

    def without(self, source: str) -> Search:
        """The same without the streams of a source."""
        others = [stream for stream in self.streams if stream.source != source]
        return Search(self.laboratory, others, self.pool)

    def mean(self, losses: Iterable[float]) -> float:
        """Mean of the logarithms of log-losses: over streams of a source, then over sources."""
        by_source: dict[str, list[float]] = {}
        for stream, loss in zip(self.streams, losses, strict=True):
            by_source.setdefault(stream.source, []).append(math.log(max(loss, 1e-4)))
        return float(np.mean([np.mean(values) for values in by_source.values()]))

    def losses(self, banks: Sequence[Bank], scaling: float) -> list[float]:
        """What is minimised, of each set: both modes count alike."""
        settings = [Setting(stream, scaling, 0) for stream in self.streams]
        rows = self.laboratory.all_scores(settings, banks, self.pool)
        return [
            float(np.mean([self.mean(score[mode][1] for score in row) for mode in MODES]))
            for row in rows
        ]

    def grown(self, n_filters: int, scaling: float) -> Bank:
        """Filters added one by one, each the one that helps the plain mixture most."""
        settings = [Setting(stream, scaling, 0) for stream in self.streams]
        bank: Bank = ()
        for _ in range(n_filters):
            banks = [(*bank, one) for one in CANDIDATES if one not in bank]
            jobs = [self.pool.submit(_plain_losses, setting, banks) for setting in settings]
            losses = np.array([job.result() for job in jobs])  # (streams, sets)
            bank = banks[int(np.argmin([self.mean(column) for column in losses.T]))]
        return tuple(sorted(bank))

    def climbed(self, bank: Bank, scaling: float) -> Bank:
        """The set after changes of one filter at a time, the best one first, while they pay."""
        best = self.losses([bank], scaling)[0]
        while True:
            near = sorted(set(changed(bank)))
            losses = self.losses(near, scaling)
            least = int(np.argmin(losses))
            if losses[least] > best - LEAST_GAIN:
                return bank
            bank, best = near[least], losses[least]
            print(f"  {best:.4f}  {', '.join(map(str, bank))}", flush=True)

    def scaling(self, bank: Bank) -> float:
        """The best half-life of the scaling."""
        return min(SCALINGS, key=lambda scaling: self.losses([bank], scaling)[0])


def changed(bank: Bank) -> Iterable[Bank]:
    """Sets that differ in one filter: in its half-life, its prior or its likelihood."""
    for place, one in enumerate(bank):
        near: list[Filter] = []
        for name, grid in (("half_life", HALF_LIVES), ("prior", PRIORS)):
            if one.likelihood == "onehot" and name == "prior":
                continue
            at = grid.index(getattr(one, name))
            values = grid[max(at - 1, 0) : at] + grid[at + 1 : at + 2]
            near += [one._replace(**{name: value}) for value in values]
        for likelihood in ("softmax", "softmax-label", "onehot"):
            prior = 1.0 if likelihood == "onehot" else PRIORS[3]
            prior = one.prior if "onehot" not in (likelihood, one.likelihood) else prior
            near.append(Filter(likelihood, one.half_life, prior))
        for new in near:
            if new not in bank:
                yield tuple(sorted((*bank[:place], new, *bank[place + 1 :])))


def choose(search: Search, n_filters: int) -> tuple[Bank, float]:
    """Filters and half-life of the scaling that a search ends at."""
    scaling = _FIRST_SCALING
    # Two starts, because a climb ends at a local optimum. The second knows nothing of the data.
    spread = np.linspace(0, len(HALF_LIVES) - 1, n_filters).round().astype(int)
    even = tuple(sorted(Filter("softmax", HALF_LIVES[at], PRIORS[2]) for at in spread))
    ends = [search.climbed(start, scaling) for start in (search.grown(n_filters, scaling), even)]
    bank = ends[int(np.argmin(search.losses(ends, scaling)))]
    return bank, search.scaling(bank)


# ---- the page -----------------------------------------------------------------------------


def main() -> None:
    """Choose with all streams and without each source, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--filters", type=int, default=7)
    parser.add_argument("--rows", type=int, default=10_000, help="rows a stream, to choose with")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--cache", type=Path, help="folder for what was computed")
    options = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = options.cache or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        makers = real_streams, bundled_streams, generated_streams
        streams = [stream for make in makers for stream in make(options.rows)]
        whole = [stream for stream in real_streams(LONG) if stream.name in REPORTED]
        _STREAMS.update({(s.name, len(s.labels)): s for s in (*streams, *whole)})
        # Processes that are forked have the streams already.
        pool = ProcessPoolExecutor(options.jobs, get_context("fork"), _begin, (folder,))
        with pool:
            search = Search(Laboratory(folder), streams, pool)
            write_section("choose", report(search, whole, options.filters, options.rows))


def report(search: Search, whole: Sequence[Stream], n_filters: int, n_rows: int) -> str:
    """The section."""
    streams = search.streams
    print("all streams", flush=True)
    bank, scaling = choose(search, n_filters)
    print(described(bank, scaling), flush=True)
    lines = []
    for stream in whole:
        print(f"without {stream.source}", flush=True)
        # What all streams chose is no start here: it was chosen with this one.
        other = choose(search.without(stream.source), n_filters)
        choices = other, (bank, scaling), shipped()
        cells = [shown(search, stream, *chosen) for chosen in choices]
        lines.append([stream.name, *cells, described(*other)])
        print(lines[-1], flush=True)
    head = ["stream", "chosen without it", "chosen with all", "what ships", "chosen without it:"]
    sources = len({stream.source for stream in streams})
    return "\n\n".join(
        [
            "## Choice of the filters",
            f"`KALSTREAM_DATA=... python benchmarks/choose.py --filters {n_filters} "
            f"--rows {n_rows}` on {machine()}.",
            f"All {len(streams)} streams of {sources} sources together choose: "
            f"{described(bank, scaling)}.",
            table(head, lines),
            f"Accuracy / log-loss of the first {LONG:,} rows without recent labels, then with "
            "them; means of seeds 0, 1 and 2 of the waves. The search used seed 0. Each filter is "
            "named by its likelihood, its half-life and, in brackets, its prior variance.",
            f"What ships is {described(*shipped())}. A longer search with a prototype of this "
            "script found it: 21 streams, the tables with up to 40,000 rows, and tables that "
            "come with river among them. The optimum is flat: many sets of filters lie "
            "within 0.002 of the best in mean log-loss (of its logarithm).",
        ]
    )


def shipped() -> tuple[Bank, float]:
    """The filters of `KalmanClassifier`, and the half-life of its scaling."""
    model = KalmanClassifier()
    policy = model._settings.policy
    each = zip(policy.likelihoods, policy.half_lives, policy.prior_scales, strict=True)
    return tuple(sorted(Filter(*parts) for parts in each)), model._SCALE_HALF_LIFE


def shown(search: Search, stream: Stream, bank: Bank, scaling: float) -> str:
    """Scores of a stream, means over seeds."""
    settings = [Setting(stream, scaling, seed) for seed in range(3)]
    scores = search.laboratory.all_scores(settings, [bank], search.pool)[0]
    pairs = [np.mean([score[mode] for score in scores], axis=0) for mode in MODES]
    return ", ".join(f"{accuracy:.4f} / {loss:.4f}" for accuracy, loss in pairs)


def described(bank: Bank, scaling: float) -> str:
    """A choice in words."""
    return f"{', '.join(map(str, bank))}; scaling {scaling:g}"


if __name__ == "__main__":
    main()
