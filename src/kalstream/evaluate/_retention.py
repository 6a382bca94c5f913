"""Information retention: how well a learner predicts rows of the whole past.

Some rows are held out: their labels are never learned. At checkpoints the learner predicts those
that have come so far. A learner that follows the newest rows and forgets the others can be accurate
online and poor here (Cai, Sener and Koltun, 2021; Ghunaim et al., 2023).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kalstream._arrays import Array
from kalstream.errors import InvalidInput
from kalstream.evaluate.adapters import as_stream, known
from kalstream.evaluate.metrics import Scored, Values
from kalstream.evaluate.prequential import TOGETHER, Evaluation
from kalstream.streams import Batch, PushedRows, Stream


@dataclass(frozen=True, slots=True)
class Retained:
    """Scores of the held-out rows at one checkpoint.

    Attributes
    ----------
    row : int
        Rows of the stream so far.
    rows : (n,)
        Numbers of the held-out rows that were predicted.
    scored : Scored or None
        Scores of each of them; None for regression.
    values : dict
        Metrics over them, by the names in `METRICS`.
    baselines : dict of dicts
        Metrics of the baselines over them.
    online : dict
        Metrics of prequential evaluation over all rows so far that were not held out.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> from kalstream.evaluate import retention
    >>> stream = [[1.0], [-1.0]] * 500, ["up", "down"] * 500
    >>> end = retention(KalmanClassifier(features="raw"), stream)
    >>> end.row, end.rows[:3], end.values["accuracy"], round(end.online["accuracy"], 2)
    (1000, array([...]), 1.0, 1.0)
    """

    row: int
    rows: Array
    scored: Scored | None
    values: Values
    baselines: dict[str, Values]
    online: Values


class _HeldOut:
    """A random sample of the rows so far, at most ``most`` of them, whose targets are hidden.

    A row is held out with probability ``share``. Once there are ``most``, row t is held out with
    probability most / t and replaces a random one, so rows of every age are about equally likely.
    """

    def __init__(self, share: float, most: int, random_state: int) -> None:
        self.share, self.most = share, most
        self.rng = np.random.default_rng(random_state)
        self.kept: list[Batch] = []  # of one row each

    def hide(self, batch: Batch) -> Batch:
        """Hold out some of the rows; returns the batch without their targets."""
        batch, _ = batch.without_infinities()
        targets = batch.targets.copy()
        for i in np.flatnonzero(known(batch.targets)).tolist():
            if self._is_chosen(batch.start + i + 1):
                self._keep(batch[i : i + 1].take([0]))  # a copy: a view would keep the batch
                targets[i] = None  # NaN in an array of numbers
        return replace(batch, targets=targets)

    def _is_chosen(self, n_rows: int) -> bool:
        full = len(self.kept) == self.most
        return self.rng.random() < (min(self.share, self.most / n_rows) if full else self.share)

    def _keep(self, row: Batch) -> None:
        if len(self.kept) < self.most:
            self.kept.append(row)
        else:
            self.kept[self.rng.integers(self.most)] = row

    def checkpoint(self, evaluation: Evaluation, now: float | None) -> Retained:
        """Predict the rows that are held out as if they came now, and score them."""
        rows = sorted(self.kept, key=lambda row: row.start)
        batch = Batch(
            0,
            np.concatenate([row.rows for row in rows]),
            np.concatenate([row.targets for row in rows]),
            None if now is None else np.full(len(rows), now),
            keys=None if rows[0].keys is None else np.concatenate([row.keys for row in rows]),
        )
        # A tracker of its own, with the labels that are known by now: the same rule of scoring.
        tracker = type(evaluation.tracker)()
        tracker.begin_with(evaluation.tracker.state(), [])
        scored = tracker.score(batch, evaluation.adapter.predict(batch))
        return Retained(
            evaluation.n_rows,
            np.array([row.start for row in rows]),
            scored,
            tracker.values(),
            tracker.naive.values(),
            evaluation.tracker.values(),
        )


def iter_retention(
    learner: Any,
    stream: Stream,
    *,
    hold_out: float = 0.05,
    most: int = 1000,
    random_state: int = 0,
    **protocol: Any,
) -> Iterator[Retained]:
    """Learn a stream, and predict held-out rows of the past after every window and at the end.

    Parameters
    ----------
    learner, stream
        As for `iter_prequential`.
    hold_out : float
        Share of the rows whose targets are never learned.
    most : int
        Held-out rows that a checkpoint predicts, at most: a sample of the whole past.
    random_state : int
        Seed of that sample.
    **protocol
        chunk, delay, ahead, cost, window, limit, classes, together: as for `Evaluation`.

    Examples
    --------
    The rule turns over after half of the rows, and the learner follows it.

    >>> import numpy as np
    >>> from kalstream import KalmanClassifier
    >>> rows = np.random.default_rng(0).standard_normal((2000, 1))
    >>> labels = (rows[:, 0] > 0) ^ (np.arange(2000) >= 1000)
    >>> for at in iter_retention(KalmanClassifier(features="raw"), (rows, labels), hold_out=0.1):
    ...     print(at.row, len(at.rows), round(at.values["accuracy"], 1))
    1000 89 1.0
    2000 210 0.6
    """
    if not 0.0 < hold_out < 1.0:
        raise InvalidInput(f"hold_out must be a number between 0 and 1, got {hold_out!r}")
    if not isinstance(most, int | np.integer) or most < 1:
        raise InvalidInput(f"most must be a whole number >= 1, got {most!r}")
    stream = as_stream(stream, learner)
    if stream.label_timed or stream.named:
        raise InvalidInput(
            f"the rows of {stream.name} have label times or ids, and retention cannot hide such "
            "labels; give a stream without them, and delay= for late labels"
        )
    held = _HeldOut(hold_out, most, random_state)
    protocol = {"together": TOGETHER, **protocol}
    protocol["classes"] = protocol.get("classes") or stream.classes
    about = {"timed": stream.timed, "keyed": stream.keyed}
    pushed = PushedRows(stream.task, columns=stream.columns, **about)
    pushed.first_row = stream.first_row
    evaluation = Evaluation(learner, pushed, **protocol)
    now = None
    for batch in _within_windows(stream, evaluation.window, evaluation.limit):
        evaluation.step(held.hide(batch))
        now = None if batch.times is None else float(batch.times[-1])
        if held.kept and batch.stop % evaluation.window == 0:
            yield held.checkpoint(evaluation, now)
    evaluation.finish()
    if held.kept and evaluation.n_rows % evaluation.window:
        yield held.checkpoint(evaluation, now)


def _within_windows(stream: Stream, window: int, limit: int | None) -> Iterator[Batch]:
    """The rows before the limit, cut where windows end."""
    for batch in stream.batches(stream.first_row):
        while len(batch) and (limit is None or batch.start < limit):
            stop = (batch.start // window + 1) * window
            stop = stop if limit is None else min(stop, limit)
            yield batch[: stop - batch.start]
            batch = batch[stop - batch.start :]


def retention(learner: Any, stream: Stream, **options: Any) -> Retained:
    """Learn a stream, and predict held-out rows of all of it at its end.

    Parameters
    ----------
    learner, stream, **options
        As for `iter_retention`.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> stream = [[1.0], [-1.0]] * 500, ["up", "down"] * 500
    >>> end = retention(KalmanClassifier(features="raw"), stream)
    >>> len(end.rows), end.values["accuracy"], round(end.baselines["no_change"]["accuracy"], 1)
    (45, 1.0, 0.6)
    """
    end = deque(iter_retention(learner, stream, **options), maxlen=1)
    if not end:
        raise InvalidInput("no row with a target was held out; give more rows or a larger hold_out")
    return end[0]
