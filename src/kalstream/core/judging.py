"""Judging filters and experts by their predictions, when the target of a row comes late.

Where every target is known before the next row, the prediction of a row one step ahead is the one
that was made. Where targets are late it is not: it knows targets that nobody had. So the prediction
of a row is kept (`Kept`) until its target comes, and weights and a stack are judged by it
(`LateJudge`). Other weights and another stack are learned in the order of targets, one step ahead.
The predictions of both are averaged (`choose`). core/README.md, "Late targets", has the rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from kalstream.core.bank import joined_steps
from kalstream.core.checks import Targets
from kalstream.core.state import BankStep

if TYPE_CHECKING:
    from kalstream.core.policy import Policy

Array = NDArray[Any]
Index = slice | Array


# What one call makes and drops is not frozen: that triples the time to make it.
@dataclass(slots=True)
class Events:
    """A sequence of n events: rows that are asked for, and rows whose targets come.

    Attributes
    ----------
    asked : (n,) bool
        Whether an event asks; else it tells.
    slot : (n,) int
        The place of its row in `Kept`: 0, 1, ... of those that are asked for, in their order.
    gap : (n,)
        Time from the last row that was learned to this one, at least 0.
    lag : (n,)
        How many rows have come since the last row that was learned, without this one.
    asks, tells : indices of (n,)
        Those that ask, and those that tell; see `places`.
    """

    asked: Array
    slot: Array
    gap: Array
    lag: Array
    asks: Index
    tells: Index

    def __len__(self) -> int:
        return len(self.asked)

    @property
    def step(self) -> Array:
        """Time from the row before (n,), on average since the last row that was learned."""
        return self.gap / (1.0 + self.lag)


@dataclass(slots=True)
class Kept:
    """Predictions of S rows: written when they are asked for, read when their targets come.

    Attributes
    ----------
    means, variances : (S, J, K), (S, J)
        Of each filter, at the time of the row.
    active : (S, K)
        1 for classes that had been seen, else 0.
    experts : (S, X, K)
        Log-probabilities of experts beside the filters.
    spread : (S, J, 2)
        As in `MixtureState`; (S, 0, 2) if scales are not learned.
    n_targets : (S,)
        How many targets had been learned.
    said : (S,)
        1 if anything was predicted, 0 if nothing was known.
    described, counted : (S, K, D), (S, K)
        What a stack saw of the row, and 1 for the classes that it knew.
    answers : (S, A, K) or (S, A, 2 K)
        The predictions that are averaged, see `choose`: probabilities; of values means, variances.
    """

    means: Array
    variances: Array
    active: Array
    experts: Array
    spread: Array
    n_targets: Array
    said: Array
    described: Array
    counted: Array
    answers: Array

    @classmethod
    def blank(cls, n: int, sizes: Sizes) -> Self:
        """Nothing was predicted about n rows."""
        return cls._of(np.zeros(n * layout(sizes)[-1][1]), n, sizes)

    @classmethod
    def _of(cls, numbers: Array, n: int, sizes: Sizes) -> Self:
        """Parts of n rows, one after the other, as views."""
        parts = layout(sizes)
        return cls(*[numbers[n * a : n * b].reshape(n, *shape) for a, b, shape in parts])

    @property
    def sizes(self) -> Sizes:
        """J, K, X, D, and the number of scales that are kept."""
        j, k = self.means.shape[1:]
        return j, k, self.experts.shape[1], self.described.shape[2], self.spread.shape[1]

    def parts(self) -> Iterator[Array]:
        """The arrays."""
        return (getattr(self, name) for name in Kept.__slots__)

    def packed(self) -> Array:
        """All parts of each row side by side (S, W), as numbers."""
        n, cuts = len(self.said), layout(self.sizes)
        flat = [part.reshape(n, b - a) for part, (a, b, _) in zip(self.parts(), cuts, strict=True)]
        return np.concatenate(flat, axis=1, dtype=np.float64)

    @classmethod
    def unpacked(cls, matrix: Array, sizes: Sizes) -> Self:
        """The inverse of `packed`; raises ValueError if the matrix has another width."""
        cuts = layout(sizes)
        if matrix.ndim != 2 or cuts[-1][1] != matrix.shape[1]:
            raise ValueError(f"what is kept of a row must be {cuts[-1][1]} numbers")
        numbers = np.concatenate([matrix[:, a:b] for a, b, _ in cuts], axis=None)
        return cls._of(numbers, len(matrix), sizes)

    def write(self, events: Events, far: BankStep) -> None:
        """Keep the moments of the rows that are asked for."""
        n = len(events.slot[events.asks])
        self.means[:n] = far.logit_mean[:, events.asks].swapaxes(0, 1)
        self.variances[:n] = far.logit_var[:, events.asks].T
        self.said[:n] = 1.0

    def write_frequencies(
        self, events: Events, targets: Targets, weight: Array, seen: Array, counts: Array
    ) -> None:
        """Keep what class frequencies say about the rows that are asked for, as first expert.

        seen (K,) and counts (K',) are of the classes before the events.
        """
        from kalstream.core._kernels.judging import keep_frequencies

        labelled = events.asked, events.slot, targets.arrays()[0], weight
        keep_frequencies(*labelled, seen, counts, self.active, self.experts)

    def mix_experts(self, events: Events, shares: Array, plain: Array) -> None:
        """Mix experts, with shares (n, X), into probabilities (n, K) of the rows asked for."""
        from kalstream.core._kernels.judging import mix_experts

        mix_experts(events.asked, events.slot, shares, self.active, self.experts, plain)

    def put(self, there: Index, other: Kept, rows: Index) -> None:
        """Copy rows of another one into rows here; it may have fewer classes."""
        for mine, theirs in zip(self.parts(), other.parts(), strict=True):
            here: Any = (there, *(slice(0, size) for size in theirs.shape[1:]))
            mine[here] = theirs[rows]


@dataclass(frozen=True, slots=True)
class LateJudge:
    """Weights by the predictions that were made. Never changed.

    Attributes
    ----------
    log_weights, spread : (J, C), (J, 2)
        As in `MixtureState`, where they are learned in the order of targets.
    beside : (X,)
        Logarithm of the evidence for each expert beside the filters, over their average.
    beliefs : (A,)
        Probability that each of the predictions that are averaged is the best one.
    since : int
        How many targets were known when the last drift alarm had begun; 0 without.
    """

    log_weights: Array
    spread: Array
    beside: Array
    beliefs: Array
    since: int = 0

    @classmethod
    def start(cls, log_weights: Array, spread: Array, sizes: Sizes) -> Self:
        """Nothing was judged yet: all experts, and all predictions that are averaged, alike."""
        n = n_answers(sizes)
        return cls(log_weights, spread, np.zeros(sizes[2]), np.full(n, 1.0 / max(n, 1)))


@dataclass(slots=True)
class LateRows:
    """Rows that are asked for and targets that have come: n events in their order.

    Attributes
    ----------
    columns : (n, d')
        The rows as they are kept: smaller than features.
    number : (n,) int
        The place of each row among all rows that came.
    targets, weight : n targets, (n,)
        Weight 0 where no target has come.
    events : Events
    kept : Kept
        What was predicted about the rows; predictions of rows that are asked for are written here.
    """

    columns: Array
    number: Array
    targets: Targets
    weight: Array
    events: Events
    kept: Kept


@dataclass(slots=True)
class LateChunk:
    """Rows (n, m) with their targets, weights and events.

    These are the arguments of `JudgingPolicy.step_events`, in their order.
    """

    features: Array
    targets: Any
    weight: Array
    events: Events
    noise_var: float
    prior_var: float

    def __getitem__(self, part: Any) -> dict[str, Any]:
        """Some of the rows as the arguments of `Policy.step_chunk`."""
        return {
            "features": self.features[part],
            "targets": self.targets[part],
            "sample_weight": self.weight[part],
            "time_gap": self.events.gap[part],
            "noise_var": self.noise_var,
            "prior_var": self.prior_var,
        }


def in_turn(policy: Policy, state: Any, chunk: LateChunk) -> tuple[Any, list[Any], BankStep]:
    """Predict the rows that are asked for, and learn those whose targets come, run by run.

    Returns the state, the `PolicyStep` of each run, one step ahead, and the moments of all rows,
    predicted as far ahead as they are.
    """
    steps, far = [], []
    events, prior_var = chunk.events, chunk.prior_var
    for part in runs(events.asked):
        phi, gap = chunk.features[part], events.gap[part]
        if events.asked[part.start]:
            lag = events.step[part]
            steps.append(policy.predict(state, phi, prior_var=prior_var, time_gap=lag))
            far.append(policy.predict(state, phi, prior_var=prior_var, time_gap=gap).bank)
        else:
            state, step = policy.step_chunk(state, **chunk[part])
            steps.append(step)
            far.append(step.bank)
    return state, steps, joined_steps(far)


@dataclass(slots=True)
class Judged:
    """What `JudgingPolicy.judge` found out about n events, beside the weights of the filters.

    Attributes
    ----------
    shares : (n, X)
        Weight of each expert beside the filters, in the whole.
    rates : (n,)
        How much each target counted: less than 1 if it came late.
    share : float
        Probability, at each row, that what is better changes.
    since : (n,) int
        How many targets were known when the last drift alarm had begun, 0 if there was none. The
        caller sets it.
    """

    shares: Array
    rates: Array
    share: float
    since: Array = field(default_factory=lambda: np.zeros(0, np.int64))


def choose(
    judge: LateJudge, rows: LateRows, judged: Judged, made: Array
) -> tuple[LateJudge, Array]:
    """Average predictions of rows, weighed by how well each predicted.

    After a sudden change, late targets say that filters were wrong which have learned the new rule
    meanwhile, and a stack that is judged by them turns these filters round. Where labels depend on
    the labels before, the order of targets favours filters that forget too fast. Each is wrong
    where another one is right, so a mixture and a stack of both judges are kept. Once a drift alarm
    has begun, rows that were predicted before it tell nothing about which of them is right now.
    A lead of the order of labels is doubted the more, the longer no label has come.

    Parameters
    ----------
    made : (n, A, K') or (n, A, 2 K')
        Predictions of the rows that are asked for: probabilities, or means beside variances. They
        are written into ``rows.kept``. The first ones, which alone count where no target is late,
        are those of the late judge. With a stack: late stack, late mixture, stack and mixture in
        the order of targets; else both mixtures.

    Returns
    -------
    judge : LateJudge
        With other beliefs.
    averages : (n, K') or (n, 2 K')
        Variances are those of the mixture of all.
    """
    from kalstream.core._kernels.judging import choose_rows

    beliefs, events, kept = judge.beliefs.copy(), rows.events, rows.kept
    timing = events.asked, events.slot, events.gap, events.lag
    parts = *timing, *rows.targets.arrays(), rows.weight, judged.rates
    known = kept.answers, kept.n_targets
    out = choose_rows(*parts, judged.since, made, *known, judged.share, beliefs)
    return replace(judge, beliefs=beliefs), out


# J filters, K classes, X experts, D terms of the stack, and how many scales are kept.
Sizes = tuple[int, int, int, int, int]


def n_answers(sizes: Sizes) -> int:
    """How many predictions are averaged: of two judges, with and without a stack."""
    return 4 if sizes[3] else 2 if sizes[1] else 0


@lru_cache
def layout(sizes: Sizes) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Where each part of `Kept` begins and ends in a packed row, and its shape."""
    j, k, x, d, scales = sizes
    answers = n_answers(sizes), k if x else 2 * k
    shapes = (j, k), (j,), (k,), (x, k), (scales, 2), (), (), (k, d), (k,), answers
    stops = list(accumulate(map(math.prod, shapes)))
    return tuple(zip([0, *stops], stops, shapes, strict=False))


def places(flags: Array) -> Index:
    """Where flags (n,) are set, as an index: of all or none a slice, which costs far less."""
    n = np.count_nonzero(flags)
    return slice(n) if n in (0, len(flags)) else np.flatnonzero(flags)


def runs(flags: Array) -> Iterator[slice]:
    """Maximal runs of equal flags (n,), in their order."""
    cuts = np.flatnonzero(np.diff(flags)) + 1
    bounds = [0, *cuts.tolist(), len(flags)]
    return (slice(a, b) for a, b in pairwise(bounds) if a < b)
