"""Test, then train: every row is predicted before its target is learned, and scored."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any, Final

import numpy as np

from kalstream.errors import InvalidInput
from kalstream.evaluate._forgetting import Watched
from kalstream.evaluate._rebatch import joined, pieces
from kalstream.evaluate.adapters import Answer, adapt
from kalstream.evaluate.metrics import Scored, number
from kalstream.evaluate.trackers import Judge, LabelJudge, ValueJudge
from kalstream.streams import REGRESSION, Batch, Stream

# Rows that are handed to a learner that can take many at once and treat them one by one.
TOGETHER: Final = 64


@dataclass(frozen=True, slots=True)
class Record:
    """What happened to consecutive rows.

    Attributes
    ----------
    batch : Batch
        The rows, their targets and times.
    answer : Answer
        What the learner said before it saw the targets.
    scored : Scored or None
        How good that was, of classification: for the rows that have a target.
    n_learned : int
        Rows learned so far, less than ``batch.stop`` if targets come late.
    seconds : float
        Spent predicting and learning.
    line : dict or None
        The window that ended with these rows, if one did; see `Evaluation.line`.
    """

    batch: Batch
    answer: Answer
    scored: Scored | None
    n_learned: int
    seconds: float
    line: dict[str, Any] | None


class Evaluation:
    """The prequential loop, with everything it has to remember.

    An infinite number in a row, or as a target of regression, counts as a missing one. Rows that
    come before anything was learned are not scored.

    Parameters
    ----------
    learner : object
        With partial_fit and predict (kalstream, scikit-learn), or learn_one and predict_one
        (river).
    stream : Stream
    chunk : int
        Rows that are predicted before any of their targets is seen, and then learned at once.
    delay : int
        A chunk is learned once so many more rows have been predicted.
    cost : float
        Relative cost of the learner: it learns only every cost-th chunk, as if the stream did
        not wait (Ghunaim et al., 2023); every chunk is predicted.
    window : int
        Rows of a window, rounded up to whole chunks.
    limit : int, optional
        Rows after which to stop.
    classes : list, optional
        All labels that may come, for learners that must know them first.
    together : int
        Chunks of a record. Kalstream's learners take chunks of one row together in one call that
        treats them one by one: the same numbers, several times faster.

    Attributes
    ----------
    clock : function
        What seconds are counted by; a subclass may have another one.
    settled : bool
        Whether learner and evaluation are between two chunks, as `state` needs it. They are not
        after an interrupt in the middle of one.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(
        self,
        learner: Any,
        stream: Stream,
        *,
        chunk: int = 1,
        delay: int = 0,
        cost: float = 1.0,
        window: int = 1000,
        limit: int | None = None,
        classes: list[Any] | None = None,
        together: int = 1,
    ) -> None:
        whole = {"chunk": chunk, "window": window, "together": together, "delay": delay}
        for name, value in {**whole, "limit": 1 if limit is None else limit}.items():
            least = 0 if name == "delay" else 1
            if not isinstance(value, int | np.integer) or value < least:
                raise InvalidInput(f"{name} must be a whole number from {least} on, got {value!r}")
        if not cost >= 1.0:
            raise InvalidInput(f"cost must be a number from 1 on, got {cost!r}")
        self.adapter, self.stream = adapt(learner, stream, classes), stream
        self.chunk, self.delay, self.cost = chunk, delay, cost
        self.window = -(-window // chunk) * chunk
        self.limit, self.together = limit, together
        self.judge: Judge = ValueJudge() if stream.task == REGRESSION else LabelJudge()
        self.watched = Watched()
        self.n_rows = self.n_learned = 0  # predicted, and learned or passed over
        self.pending: deque[Batch] = deque()
        self.seconds = self.seconds_before = 0.0
        self.rows_before = self.n_infinite = 0
        self.waiting, self.settled = False, True
        self._failure: Exception | None = None

    # ---- the loop -------------------------------------------------------------------------

    def records(self, before_cut: Callable[[], None] = lambda: None) -> Iterator[Record]:
        """Go on from the row that has been reached to the end of the stream.

        Parameters
        ----------
        before_cut : function
            Called before the limit, or a row that cannot be read, cuts a record short. A run that
            is to go on past it later goes on from the state of that moment.
        """
        self.pending.clear()
        self._failure = None
        start = self.n_rows
        # Rows that have been predicted and wait for their targets are had again.
        cut = pieces(self.stream, self.n_learned, self._stop_of, self.chunk, self.limit)
        while (piece := self._await(cut)) is not None:
            batch, is_cut = piece
            if batch.start < start:
                self.pending.append(batch.without_infinities()[0])
                continue
            if is_cut:
                before_cut()
            yield self._record(batch)
            if self._failure is not None:
                raise self._failure

    def _await(self, batches: Iterator[tuple[Batch, bool]]) -> tuple[Batch, bool] | None:
        """The next piece; meanwhile nothing is half done, and whoever wants may interrupt."""
        self.waiting = True
        try:
            return next(batches, None)
        finally:
            self.waiting = False

    def finish(self) -> None:
        """Learn what still waits: no more rows will come, but their targets will."""
        for chunk in self._due(self.n_rows):
            self.settled = False
            self._teach(chunk)
            self._reveal(chunk)
            self.settled = True

    def _stop_of(self, row: int) -> int:
        """Where the piece that begins with a row ends, at the latest with its window."""
        together = 1 if row < self.n_rows else self.together
        return min(row + self.chunk * together, (row // self.window + 1) * self.window)

    def _record(self, batch: Batch) -> Record:
        before = self.seconds
        self.settled = False
        answer: Answer
        scored: Scored | None
        found = batch
        batch, n_infinite = found.without_infinities()
        if self._in_one_call():
            answer = self._timed(self.adapter.ask_and_teach, batch)
            scored = self.judge.score(batch, answer, row_by_row=True)
            self.n_rows = self.n_learned = batch.stop
        else:
            answer, scored = joined(self._chunk_by_chunk(batch))
        if self.n_rows < batch.stop:
            batch, n_infinite = found[: self.n_rows - found.start].without_infinities()
        self.n_infinite += n_infinite
        self.watched.look(self.adapter.learner)
        line = None
        if batch.stop % self.window == 0:
            line = self.line()
            self._clear()
        self.settled = True
        return Record(batch, answer, scored, self.n_learned, self.seconds - before, line)

    def _chunk_by_chunk(self, batch: Batch) -> list[tuple[Answer, Scored | None]]:
        """What came of each chunk; of those before one at which the learner fails, if any."""
        parts: list[tuple[Answer, Scored | None]] = []
        for i in range(0, len(batch), self.chunk):
            self.settled = False
            chunk = batch[i : i + self.chunk]
            try:
                parts.append(self._ask_then_teach(chunk))
            except Exception as error:
                if not parts or not self.settled:
                    raise
                self._failure = error  # raised when the chunks before it have been handed on
                break
            self.n_rows = chunk.stop
        return parts

    def _in_one_call(self) -> bool:
        alone = self.chunk == 1 and self.delay == 0 and self.cost == 1.0
        return alone and self.adapter.in_one_call

    def _ask_then_teach(self, chunk: Batch) -> tuple[Answer, Scored | None]:
        """Predict a chunk, score it, and learn what is due.

        The learner is called before anything is noted: if it raises, nothing has changed.
        """
        answer = self._timed(self.adapter.ask, chunk)
        due = self._due(chunk.stop - self.delay, chunk)
        for each in due:
            self._teach(each)
        scored: Scored | None = self.judge.score(chunk, answer, row_by_row=False)
        self.pending.append(chunk)
        for each in due:
            self._reveal(each)
        return answer, scored

    def _due(self, row: int, *more: Batch) -> list[Batch]:
        """The chunks before this row: their targets have been waited for."""
        return list(takewhile(lambda chunk: chunk.stop <= row, chain(self.pending, more)))

    def _is_turn(self, chunk: Batch) -> bool:
        """Whether the learner is quick enough to learn a chunk."""
        turn = chunk.start // self.chunk
        return math.floor((turn + 1) / self.cost) > math.floor(turn / self.cost)

    def _teach(self, chunk: Batch) -> None:
        if self._is_turn(chunk):
            self._timed(self.adapter.teach, chunk)

    def _reveal(self, chunk: Batch) -> None:
        """Note that the first chunk that waited has been learned, or passed over."""
        self.pending.popleft()
        self.judge.reveal(chunk, learned=self._is_turn(chunk))
        self.n_learned = chunk.stop

    def _timed(self, do: Callable[[Batch], Any], batch: Batch) -> Any:
        """Call the learner; a learner that raises is taken to be the one before the call."""
        begun = self.clock()
        try:
            return do(batch)
        except Exception:
            self.settled = True
            raise
        finally:
            self.seconds += self.clock() - begun

    def _clear(self) -> None:
        """Begin a window."""
        self.judge.clear()
        self.watched.clear()
        self.seconds_before, self.rows_before = self.seconds, self.n_rows

    # ---- what is told ---------------------------------------------------------------------

    def line(self) -> dict[str, Any]:
        """The window so far as a line of metrics.jsonl; docs/files.md says what is in it."""
        rows, seconds = self.n_rows - self.rows_before, self.seconds - self.seconds_before
        return {
            "kind": "window",
            "row": self.n_rows,
            **self.judge.line(),
            **self.watched.line(),
            "clock": self._clock(rows, seconds),
        }

    def end_line(self) -> dict[str, Any]:
        """Where things stand after the last row, as a line of metrics.jsonl."""
        return {
            "kind": "end",
            "row": self.n_rows,
            "n": self.judge.n,
            "total": self.judge.values(),
            "baselines": self.judge.simple.values(),
            "classes": list(self.judge.codes),
            "infinite": self.n_infinite,
            "clock": self._clock(self.n_rows, self.seconds),
        }

    def _clock(self, rows: int, seconds: float) -> dict[str, Any]:
        speed = number(rows / seconds) if seconds else None
        return {"seconds": self.seconds, "rows_per_second": speed}

    # ---- to be continued ------------------------------------------------------------------

    _KEPT = ("n_rows", "n_learned", "rows_before", "n_infinite")

    def state(self) -> dict[str, Any]:
        """Everything but the learner and the rows, as JSON."""
        return {
            **{name: getattr(self, name) for name in self._KEPT},
            "judge": self.judge.state(),
            "watched": self.watched.state(),
            "clock": {"seconds": self.seconds, "before": self.seconds_before},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave, with the learner as it was then."""
        for name in self._KEPT:
            setattr(self, name, state[name])
        self.judge.restore(state["judge"])
        self.watched.restore(state["watched"])
        self.seconds, self.seconds_before = state["clock"]["seconds"], state["clock"]["before"]


def iter_prequential(learner: Any, stream: Stream, **protocol: Any) -> Iterator[Record]:
    """Predict and learn a stream, and yield a `Record` for every chunk.

    Parameters
    ----------
    learner : object
        With partial_fit and predict (kalstream, scikit-learn), or learn_one and predict_one
        (river).
    stream : Stream
    **protocol
        chunk, delay, cost, window, limit, classes, together: as of `Evaluation`.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> from kalstream.streams import ArrayStream
    >>> stream = ArrayStream([[1.0], [-1.0]] * 50, ["up", "down"] * 50)
    >>> learner = KalmanClassifier(features="raw")
    >>> right = [
    ...     (record.scored.codes == record.scored.predicted).sum()
    ...     for record in iter_prequential(learner, stream, chunk=10)
    ... ]
    >>> len(right), int(sum(right[1:]))
    (10, 90)
    """
    evaluation = Evaluation(learner, stream, **protocol)
    yield from evaluation.records()
    evaluation.finish()


@dataclass(frozen=True)
class Result:
    """What came of a stream.

    Attributes
    ----------
    n_rows, n_scored : int
        Rows that passed, and those of them that had a target.
    total : dict
        Metrics over all rows; `docs/evaluate.md` says what each is.
    baselines : dict of dicts
        The same of the simple predictors, as far as they have them.
    windows : list of dicts
        A line for each window; `docs/files.md` says what is in it.
    classes : list
        Labels in the order of their first appearance.
    seconds : float
        Spent predicting and learning.
    """

    n_rows: int
    n_scored: int
    total: dict[str, float | None]
    baselines: dict[str, dict[str, float | None]]
    windows: list[dict[str, Any]]
    classes: list[Any]
    seconds: float

    def __str__(self) -> str:
        names = [name for name in self.total if self.total[name] is not None]
        lines = [f"{'':16}{'learner':>12}" + "".join(f"{b:>12}" for b in self.baselines)]
        for name in names:
            cells = [self.total[name], *(each.get(name) for each in self.baselines.values())]
            shown = ("" if cell is None else f"{cell:.4f}" for cell in cells)
            lines.append(f"{name:16}" + "".join(f"{cell:>12}" for cell in shown))
        return "\n".join([*lines, f"{self.n_scored} rows scored in {self.seconds:.2f} s"])


def prequential(
    learner: Any, stream: Stream, *, together: int = TOGETHER, **protocol: Any
) -> Result:
    """Predict and learn a stream to its end.

    Parameters
    ----------
    learner, stream, **protocol
        As of `iter_prequential`.

    Returns
    -------
    result : Result

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> from kalstream.streams import ArrayStream
    >>> stream = ArrayStream([[1.0], [-1.0]] * 50, ["up", "down"] * 50)
    >>> result = prequential(KalmanClassifier(features="raw"), stream)
    >>> round(result.total["accuracy"], 2), result.baselines["no_change"]["accuracy"]
    (0.99, 0.0)
    """
    evaluation = Evaluation(learner, stream, together=together, **protocol)
    windows = [record.line for record in evaluation.records() if record.line is not None]
    evaluation.finish()
    if evaluation.n_rows % evaluation.window:
        windows.append(evaluation.line())
    end = evaluation.end_line()
    return Result(
        n_rows=end["row"],
        n_scored=end["n"],
        total=end["total"],
        baselines=end["baselines"],
        windows=windows,
        classes=end["classes"],
        seconds=evaluation.seconds,
    )
