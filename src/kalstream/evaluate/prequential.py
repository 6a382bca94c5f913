"""The prequential loop: every row is predicted and scored before its target is learned."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import chain, takewhile
from typing import Any, Final

import numpy as np

from kalstream._json import finite
from kalstream.errors import InvalidInput, KalstreamError
from kalstream.evaluate._forgetting import ForgettingTracker, Place
from kalstream.evaluate._late import LateTargets, NamedRows
from kalstream.evaluate._rebatch import Pieces, from_json, joined, to_json
from kalstream.evaluate.adapters import Answer, adapt, as_stream, known
from kalstream.evaluate.keys import KeyTracker
from kalstream.evaluate.metrics import Scored, Values
from kalstream.evaluate.trackers import LabelTracker, LatePrediction, Tracker, ValueTracker
from kalstream.streams import REGRESSION, Batch, Stream

# Chunks of a record, by default: rows of one call of `predict_then_learn`.
TOGETHER: Final = 64
# With late labels a record has so many times more chunks: a call of `ask_and_tell` costs more.
_LATE_TOGETHER: Final = 8


@dataclass(frozen=True, slots=True)
class Record:
    """Consecutive rows, with their predictions and scores.

    Attributes
    ----------
    batch : Batch
        The rows, their targets and times.
    answer : Answer
        What the learner predicted before it saw the targets.
    scored : Scored or None
        Scores of the rows that have a label; None for regression.
    n_learned : int
        Rows learned so far; less than ``batch.stop`` if labels are late.
    seconds : float
        Time of predicting and learning.
    line : dict or None
        The line of the window that ended with these rows, if one did; see `Evaluation.line`.
    asked : list of int or None
        If rows have ids: the rows of the batch that were predicted. The others brought labels.
        ``scored`` then has the rows whose labels came.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> stream = [[1.0], [-1.0]] * 20, ["up", "down"] * 20
    >>> *_, record = iter_prequential(KalmanClassifier(features="raw"), stream, chunk=10)
    >>> record.batch.start, len(record.batch), record.n_learned
    (30, 10, 40)
    >>> record.answer.point_predictions()[:2].tolist()
    ['up', 'down']
    """

    batch: Batch
    answer: Answer
    scored: Scored | None
    n_learned: int
    seconds: float
    line: dict[str, Any] | None
    asked: list[int] | None = None


class Evaluation:
    """The prequential loop and its state.

    An infinite number in a row, or as a target of regression, counts as a missing one. Rows before
    the first learned target are not scored.

    Parameters
    ----------
    learner : object
        With partial_fit and predict (kalstream, scikit-learn), or learn_one and predict_one
        (river).
    stream : Stream, or (X, y)
    chunk : int
        Rows that are predicted before any of their targets is seen, and then learned together.
    delay : int or timedelta
        Late labels: a chunk is learned after this many more rows have been predicted, or after this
        time has passed (with times that are numbers, a timedelta of 1 s is 1). A learner with
        `ask_and_tell` keeps the rows until then; others learn rows that wait here. A stream may
        also say when each label comes (``label_timed``), or have rows that bring the labels of
        earlier ones (``named``).
    ahead : int
        Near-future accuracy: so many rows lie between the row that was learned last and the row
        that is predicted (S of Ghunaim et al., 2023). The learner is not told, and learns as it
        would with ``ahead=0``: the same as a delay, except for a learner that keeps rows, which
        under a delay is judged by late predictions and adapts to them.
    cost : float
        Relative cost of the learner. Every chunk is predicted, and only every cost-th chunk is
        learned, as if the stream did not wait for the learner (Ghunaim et al., 2023).
    window : int
        Rows of a window, rounded up to whole chunks.
    limit : int, optional
        Rows after which to stop.
    classes : list, optional
        All labels of the stream, for learners that need them at their first call.
    together : int
        Number of chunks per record. With chunks of one row, kalstream's learners predict and learn
        a whole record in one call. The numbers are the same, and it is several times faster.

    Attributes
    ----------
    tracker : LabelTracker or ValueTracker
        Scores so far.
    forgetting : ForgettingTracker
        Half-lives and drift alarms.
    keys : KeyTracker or None
        Scores by key, if rows have keys.
    n_rows, n_learned : int
        Rows predicted, and rows learned or skipped because of ``cost``.
    clock : function
        Measures seconds; a subclass may have another one.
    settled : bool
        Whether learner and evaluation are between two chunks, which `state` requires. They are not
        after an interrupt in the middle of a chunk.

    Examples
    --------
    `prequential` reads the stream itself. Here the rows are pushed as they come:

    >>> from kalstream import KalmanClassifier
    >>> from kalstream.streams import PushedRows
    >>> evaluation = Evaluation(KalmanClassifier(features="raw"), PushedRows(), chunk=10)
    >>> rows, labels = np.array([[1.0], [-1.0]] * 20), np.array(["up", "down"] * 20, object)
    >>> for start in range(0, 40, 10):
    ...     cut = slice(start, start + 10)
    ...     _ = evaluation.step(Batch(start, rows[cut], labels[cut]))
    >>> evaluation.n_rows, evaluation.tracker.values()["accuracy"]
    (40, 1.0)
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(
        self,
        learner: Any,
        stream: Stream,
        *,
        chunk: int = 1,
        delay: int | timedelta = 0,
        ahead: int = 0,
        cost: float = 1.0,
        window: int = 1000,
        limit: int | None = None,
        classes: list[Any] | None = None,
        together: int = 1,
    ) -> None:
        whole: dict[str, Any] = {"chunk": chunk, "window": window, "together": together}
        whole["ahead"] = ahead
        if not isinstance(delay, timedelta):
            whole["delay"] = delay
        for name, value in {**whole, "limit": 1 if limit is None else limit}.items():
            least = 0 if name in ("delay", "ahead") else 1
            if not isinstance(value, int | np.integer) or value < least:
                also = " or a timedelta" if name == "delay" else ""
                raise InvalidInput(f"{name} must be a whole number >= {least}{also}, got {value!r}")
        if not cost >= 1.0:
            raise InvalidInput(f"cost must be a number >= 1, got {cost!r}")
        stream = as_stream(stream, learner)
        self.adapter, self.stream = adapt(learner, stream, classes), stream
        self.chunk, self.delay, self.ahead, self.cost = chunk, delay, ahead, cost
        self.window = -(-window // chunk) * chunk
        self.late = self._late()
        self.limit, self.together = limit, together
        if self.late is not None and together > 1:
            self.together = _LATE_TOGETHER * together
        self.tracker: Tracker = ValueTracker() if stream.task == REGRESSION else LabelTracker()
        self.tracker.late = bool(self.delay or ahead) and not isinstance(self.late, NamedRows)
        self.tracker.late |= isinstance(self.late, LateTargets)
        self.forgetting = ForgettingTracker()
        self.keys = KeyTracker() if stream.keyed else None
        self.n_rows = self.n_learned = 0
        self.date: str | None = None  # of the last row, if times are dates
        self.pending: deque[Batch] = deque()
        self.seconds = self.seconds_before = 0.0
        self.rows_before = self.n_infinite = 0
        self.waiting, self.settled = False, True
        self._failure: Exception | None = None
        self._pieces: Pieces | None = None  # of rows that were pushed

    @property
    def learner(self) -> Any:
        """The learner that is evaluated."""
        return self.adapter.learner

    @property
    def is_fitted(self) -> bool:
        """Whether the learner has learned anything."""
        return self.adapter.is_fitted

    # ---- the loop -------------------------------------------------------------------------

    def records(self, before_cut: Callable[[], None] = lambda: None) -> Iterator[Record]:
        """Predict and learn from the current row to the end of the stream.

        Parameters
        ----------
        before_cut : function
            Called before the limit, or a row that cannot be read, cuts a record short. A run that
            is resumed later, past the cut, starts from the state of that moment.
        """
        pieces, self._pieces = self._begin(), None
        batches = self.stream.batches(pieces.stop)
        failure = None
        while True:
            try:
                batch = self._await(batches)
            except KalstreamError as error:
                failure, batch = error, None
            if batch is None:
                break
            yield from self._steps(pieces.push(batch), before_cut)
            if pieces.at_limit:
                return
        yield from self._steps(pieces.rest(is_cut=failure is not None), before_cut)
        if failure is not None:
            raise failure

    @property
    def next_row(self) -> int:
        """The number of the row that `step` expects next."""
        if self._pieces is None:
            self._pieces = self._begin()
        return self._pieces.stop

    def step(self, batch: Batch) -> list[Record]:
        """Predict and learn rows that were received, instead of reading them from the stream.

        The stream says what the rows are (`PushedRows`). Rows that do not fill a chunk wait for the
        next ones, or for `finish`. If the learner fails, push the rows from `next_row` on again.

        Parameters
        ----------
        batch : Batch
            Any number of rows, which begin with `next_row`. Rows after the limit are ignored.

        Returns
        -------
        records : list of Record
            What `records` would yield: one for each piece of whole chunks inside a window.

        Examples
        --------
        >>> import numpy as np
        >>> from kalstream import KalmanRegressor
        >>> from kalstream.streams import PushedRows
        >>> evaluation = Evaluation(KalmanRegressor(features="raw"), PushedRows("regression"))
        >>> for x in (1.0, 2.0, 3.0):
        ...     batch = Batch(evaluation.next_row, np.array([[x]]), np.array([2.0 * x]))
        ...     for record in evaluation.step(batch):
        ...         predicted = record.answer.predictions
        >>> evaluation.finish()
        []
        >>> evaluation.n_learned, bool(abs(predicted[0] - 6.0) < 1.0)
        (3, True)
        """
        if batch.start != self.next_row:
            raise InvalidInput(
                f"batch.start must be {self.next_row}, the next row of this evaluation, got "
                f"{batch.start}; number rows with Evaluation.next_row"
            )
        stream = self.stream
        parts = {"times": stream.timed, "label_times": stream.label_timed, "ids": stream.named}
        parts["keys"] = stream.keyed
        for name, is_needed in parts.items():
            if is_needed != (getattr(batch, name) is not None):
                state = "lacks" if is_needed else "has"
                raise InvalidInput(
                    f"batch at row {batch.start} {state} {name}, and the stream of this evaluation "
                    f"does {'' if is_needed else 'not '}have them; create both with or without"
                )
        assert self._pieces is not None
        return self._pushed(self._pieces.push(batch))

    def _pushed(self, cut: Iterator[tuple[Batch, bool]]) -> list[Record]:
        pieces, self._pieces = self._pieces, None  # an error drops rows that were not learned
        made = list(self._steps(cut))
        self._pieces = pieces
        return made

    def _begin(self) -> Pieces:
        """Begin with the current row: pieces without any rows yet."""
        kept = [chunk for chunk in self.pending if not self._can_be_read_again(chunk)]
        self.pending = deque(kept)
        self._failure = None
        # Other rows that were predicted and wait for their targets are read again, unless the
        # learner has kept them.
        begin = max(kept[-1].stop if kept else self.n_learned, self.stream.first_row)
        begin = begin if self.late is None else self.n_rows
        live = not self.stream.repeatable
        return Pieces(begin, self._stop_of, self.chunk, self.limit, live=live)

    def _steps(
        self, cut: Iterator[tuple[Batch, bool]], before_cut: Callable[[], None] = lambda: None
    ) -> Iterator[Record]:
        """Predict and learn pieces of rows."""
        for batch, is_cut in cut:
            if batch.start < self.n_rows:  # predicted before the evaluation was restored
                self.pending.append(batch.without_infinities()[0])
                continue
            if is_cut:
                before_cut()
            yield self._record(batch)
            if self._failure is not None:
                raise self._failure

    def _await(self, batches: Iterator[Batch]) -> Batch | None:
        """The next rows; while it waits, `waiting` says that an interrupt loses nothing."""
        self.waiting = True
        try:
            return next(batches, None)
        finally:
            self.waiting = False

    def finish(self) -> list[Record]:
        """Learn the chunks that still wait for their targets, at the end of the stream.

        Returns
        -------
        records : list of Record
            Those of rows that were pushed and did not fill a chunk (`step`).
        """
        made = [] if self._pieces is None else self._pushed(self._pieces.rest())
        if isinstance(self.late, LateTargets) and len(self.late):
            self._tell_the_rest(self.late)
        for chunk in self._due(self.n_rows):
            self.settled = False
            self._learn(chunk)
            self._reveal(chunk)
            self.settled = True
        return made

    def _can_be_read_again(self, chunk: Batch) -> bool:
        return self.stream.repeatable and chunk.start >= self.stream.first_row

    def _stop_of(self, row: int) -> int:
        """Where the piece that begins with a row ends: no later than its window."""
        together = 1 if row < self.n_rows else self.together
        return min(row + self.chunk * together, (row // self.window + 1) * self.window)

    def _record(self, batch: Batch) -> Record:
        before = self.seconds
        self.settled = False
        answer: Answer
        scored: Scored | None
        as_read = batch
        batch, n_infinite = as_read.without_infinities()
        asked = None
        place: Callable[[int], Place] = self._place
        if isinstance(self.late, NamedRows):
            answer, scored, asked, place = self._named(batch, self.late)
        elif self.late is not None:
            batch = self.late.read(batch)
            answer, scored, place = self._ask_and_tell(batch, self.late)
        elif self._in_one_call():
            answer, scored = self._predicted_then_learned(batch)
        else:
            answer, scored = joined(self._chunk_by_chunk(batch))
        if self.n_rows < batch.stop:  # the learner failed at a later chunk
            batch, n_infinite = as_read[: self.n_rows - as_read.start].without_infinities()
        self.n_infinite += n_infinite
        if self.keys is not None:
            self.keys.update(batch, scored)
        if self.stream.dated and batch.times is not None and len(batch):
            self.date = str(np.datetime64(round(batch.times[-1]), "s"))
        self.forgetting.update(self.adapter, place)
        line = None
        if batch.stop % self.window == 0:
            line = self.line()
            self._clear()
        self.settled = True
        seconds = self.seconds - before
        return Record(batch, answer, scored, self.n_learned, seconds, line, asked)

    def _predicted_then_learned(self, batch: Batch) -> tuple[Answer, Scored | None]:
        """Predict and learn the rows of a record one by one, in one call of the learner."""
        answer = self._timed(self.adapter.predict_then_learn, batch)
        rows = range(batch.start, batch.stop)
        revealed = batch.targets, np.arange(1, len(batch) + 1), rows
        scored: Scored | None = self.tracker.score(batch, answer, revealed)
        self.n_rows = self.n_learned = batch.stop
        return answer, scored

    def _all_in_time(self, batch: Batch) -> bool:
        """Whether rows of a stream with ids have none, but their targets, as all rows before."""
        assert batch.ids is not None
        learner = self.adapter.learner
        return bool(
            self.adapter.in_one_call
            and known(batch.targets).all()
            and not any(key is not None for key in batch.ids.tolist())
            and not (self.adapter.is_fitted and learner.waiting_.asked)
        )

    def _place(self, row: int) -> Place:
        """Where an alarm of the target of a row was raised: ``delay`` rows after its chunk."""
        assert isinstance(self.delay, int | np.integer)
        last = (row // self.chunk + 1 - (-int(self.delay) // self.chunk)) * self.chunk
        return Place(row, min(last, self.n_rows) - 1)

    def _ask_and_tell(
        self, batch: Batch, late: LateTargets
    ) -> tuple[Answer, Scored | None, Callable[[int], Place]]:
        """Predict a record, and tell the learner, which keeps the rows, the targets that are due.

        The learner is called before anything else changes, here and below.
        """
        self._check_times(batch, late)
        due, done = late.due(batch)
        answer = self._timed(lambda batch: self.adapter.ask_and_tell(batch, due), batch)
        reveals = due.targets, due.before, due.ids
        scored: Scored | None = self.tracker.score(batch, answer, reveals)
        done()
        late.note_times(batch)
        self.n_rows, self.n_learned = batch.stop, late.first(batch.stop)

        def place(row: int) -> Place:
            return due.place(row, batch.start) or Place(row, batch.stop - 1)

        return answer, scored, place

    def _check_times(self, batch: Batch, late: LateTargets | NamedRows) -> None:
        try:
            late.check_times(batch)
        except InvalidInput:
            self.settled = True  # nothing has changed
            raise

    def _tell_the_rest(self, late: LateTargets) -> None:
        due, done = late.rest()
        self.settled = False
        begun = self.clock()
        self.adapter.tell(due, self.n_rows)
        self.seconds += self.clock() - begun
        self.tracker.learn(due.targets, due.ids)
        done()
        self.n_learned, self.settled = self.n_rows, True

    def _named(
        self, batch: Batch, late: NamedRows
    ) -> tuple[Answer, Scored | None, list[int], Callable[[int], Place]]:
        """Predict those rows of a record that are new, and tell the targets that others bring."""
        self._check_times(batch, late)
        if self._all_in_time(batch):
            answer, scored = self._predicted_then_learned(batch)
            late.note_times(batch)
            return answer, scored, list(range(len(batch))), lambda row: Place(row, row)
        events = late.sorted_out(batch)
        rows, due = batch.take(events.asked), events.due(batch)

        def ask(rows: Batch) -> Answer:
            return self.adapter.ask_and_tell(rows, due, events.ids)

        answer = self._timed(ask, rows)
        n_asked = self.adapter.learner.waiting_.asked
        scored, places = late.scored(batch, answer, events, self.tracker, n_asked)
        late.note_times(batch)
        self.n_rows = self.n_learned = batch.stop

        def place(number: int) -> Place:  # a correction is of a row that no longer waits
            return places.get(number, Place(number, batch.stop - 1))

        return answer, scored, events.asked, place

    def _chunk_by_chunk(self, batch: Batch) -> list[tuple[Answer, Scored | None]]:
        """Answer and scores of each chunk, up to the first one at which the learner fails."""
        parts: list[tuple[Answer, Scored | None]] = []
        for i in range(0, len(batch), self.chunk):
            self.settled = False
            chunk = batch[i : i + self.chunk]
            try:
                parts.append(self._predict_then_learn(chunk))
            except Exception as error:
                if not parts or not self.settled:
                    raise
                self._failure = error  # raised after the record of the chunks before it
                break
            self.n_rows = chunk.stop
        return parts

    def _in_one_call(self) -> bool:
        alone = self.chunk == 1 and self.delay == self.ahead == 0 and self.cost == 1.0
        return alone and self.adapter.in_one_call

    def _late(self) -> LateTargets | NamedRows | None:
        """What keeps track of targets that come late, if the learner keeps the rows."""
        stream, delay = self.stream, self.delay
        if self.ahead and (delay != 0 or stream.label_timed or stream.named):
            raise InvalidInput(
                f"ahead is {self.ahead}, and labels come late; give either ahead or late labels"
            )
        in_time = isinstance(delay, timedelta)
        if in_time or stream.label_timed or stream.named:
            self._check_late(in_time)
        if stream.named:
            return NamedRows(self.adapter.learner.status_of)
        if isinstance(delay, timedelta):
            return LateTargets(self.chunk, delay.total_seconds(), timed=True, labelled=False)
        if stream.label_timed:
            return LateTargets(self.chunk, 0, timed=True, labelled=True)
        if delay > 0 and self.cost == 1.0 and self.adapter.keeps_rows:
            return LateTargets(self.chunk, delay, timed=False, labelled=False)
        return None

    def _check_late(self, in_time: bool) -> None:
        """Refuse labels that come at a time, or by ids, where they cannot."""
        stream = self.stream
        what = "a delay in time" if in_time else "times of labels"
        what = "ids of rows" if stream.named else what
        if isinstance(self.delay, timedelta) and self.delay < timedelta(0):
            raise InvalidInput(f"delay must not be negative, got {self.delay!r}")
        if not stream.named and not stream.timed:
            raise InvalidInput(f"with {what} rows need times; name their column with time=")
        if stream.named + stream.label_timed + (self.delay != 0) > 1:
            raise InvalidInput(
                "labels come by a delay, by label_time or by id; give one of these three"
            )
        if stream.named and self.chunk != 1:
            raise InvalidInput(f"chunk must be 1 where rows have ids, got {self.chunk}")
        if self.cost != 1.0:
            raise InvalidInput(f"cost must be 1 with {what}, got {self.cost!r}")
        if not self.adapter.keeps_rows or (
            stream.named and not hasattr(self.adapter.learner, "status_of")
        ):
            raise InvalidInput(
                f"with {what} the learner must keep rows, and "
                f"{type(self.adapter.learner).__name__} does not; use a learner with ask_and_tell, "
                'status_of and transition="example", or a delay in rows'
            )

    def _predict_then_learn(self, chunk: Batch) -> tuple[Answer, Scored | None]:
        """Predict a chunk, score it, and learn the chunks that are due.

        The learner is called before the scores change: if it raises, they are as before.
        """
        answer = self._timed(self.adapter.predict, chunk)
        assert isinstance(self.delay, int | np.integer)
        due = self._due(chunk.stop - int(self.delay) - self.ahead, chunk)
        for each in due:
            self._learn(each)
        scored: Scored | None = self.tracker.score(chunk, answer)
        self.pending.append(chunk)
        for each in due:
            self._reveal(each)
        return answer, scored

    def _due(self, row: int, *more: Batch) -> list[Batch]:
        """The chunks before this row, whose targets have arrived."""
        return list(takewhile(lambda chunk: chunk.stop <= row, chain(self.pending, more)))

    def _is_turn(self, chunk: Batch) -> bool:
        """Whether the learner is fast enough to learn a chunk, given its cost."""
        turn = chunk.start // self.chunk
        return math.floor((turn + 1) / self.cost) > math.floor(turn / self.cost)

    def _learn(self, chunk: Batch) -> None:
        if self._is_turn(chunk):
            self._timed(self.adapter.learn, chunk)

    def _reveal(self, chunk: Batch) -> None:
        """Record that the first waiting chunk was learned, or skipped because of the cost."""
        self.pending.popleft()
        self.tracker.reveal(chunk, learned=self._is_turn(chunk))
        self.n_learned = chunk.stop

    def _timed(self, do: Callable[[Batch], Any], batch: Batch) -> Any:
        """Call the learner; if it raises, it is taken to be as before the call."""
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
        self.tracker.clear()
        self.forgetting.clear()
        self.seconds_before, self.rows_before = self.seconds, self.n_rows

    # ---- lines of metrics.jsonl -----------------------------------------------------------

    def line(self) -> dict[str, Any]:
        """The current window as a line of metrics.jsonl; docs/files.md lists its fields."""
        rows, seconds = self.n_rows - self.rows_before, self.seconds - self.seconds_before
        return {
            "kind": "window",
            "row": self.n_rows,
            **({} if self.date is None else {"date": self.date}),
            **self.tracker.line(),
            **self.forgetting.line(),
            **({} if self.late is None else {"waiting": len(self.late)}),
            "clock": self._clock(rows, seconds),
        }

    def end_line(self) -> dict[str, Any]:
        """Totals after the last row, as a line of metrics.jsonl."""
        return {
            "kind": "end",
            "row": self.n_rows,
            "n": self.tracker.n,
            "total": self.tracker.values(),
            "baselines": self.tracker.naive.values(),
            "classes": list(self.tracker.codes),
            "infinite": self.n_infinite,
            **({} if self.late is None else {"waiting": self.waiting_counts()}),
            **({} if self.keys is None else {"keys": self.keys.line(self.learner)}),
            "clock": self._clock(self.n_rows, self.seconds),
        }

    def prediction_of(self, key: str) -> LatePrediction | None:
        """The prediction of a row that waits for its label, by which it will be scored."""
        return self.late.waiting.get(key) if isinstance(self.late, NamedRows) else None

    def waiting_counts(self) -> dict[str, int]:
        """How many rows wait for their labels, and what became of the others (`Waiting`).

        ``at_end``: labels that came after the last row, because the stream ended;
        ``missing``: rows of ``told`` that have no label.
        """
        counts = asdict(self.adapter.learner.waiting_)
        if isinstance(self.late, NamedRows):
            counts["repeated"] += self.late.repeated
            for name in ("asked", "told"):
                counts[name] -= self.late.again
            counts["unknown"] += self.late.unknown
        elif self.late is not None:
            counts["at_end"] = self.late.at_end
        counts["missing"] = 0 if self.late is None else self.late.missing
        return counts

    def _clock(self, rows: int, seconds: float) -> dict[str, Any]:
        speed = finite(rows / seconds) if seconds else None
        return {"seconds": self.seconds, "rows_per_second": speed}

    # ---- checkpoints ----------------------------------------------------------------------

    def begin_with(self, state: dict[str, Any] | None) -> None:
        """Begin a stream with a learner that has learned before, elsewhere.

        The labels that it has learned are known from the first row on, to the baselines too, and
        its drift alarms so far do not count. With late labels, rows that wait in it are dropped.

        Parameters
        ----------
        state : dict or None
            What `state` returned where the learner comes from. Without it, every label counts as
            seen once.
        """
        classes = getattr(self.adapter.learner, "classes_", None)
        before = None if state is None else state["tracker"]
        self.tracker.begin_with(before, [] if classes is None else classes.tolist())
        if self.late is not None:
            self.adapter.learner.drop_waiting()  # ids and counts are those of this stream
        if isinstance(self.late, NamedRows) and state is not None and "late" in state:
            self.late.time = state["late"]["time"]
        self.forgetting.begin_with(self.adapter)

    def state(self) -> dict[str, Any]:
        """Everything but the learner, as JSON: `evaluation` in progress.json.

        Of the rows, only those that wait for their targets and cannot be read again.
        """
        kept = [chunk for chunk in self.pending if not self._can_be_read_again(chunk)]
        return {
            "pending": [to_json(chunk) for chunk in kept],
            "n_rows": self.n_rows,
            "n_learned": self.n_learned,
            "rows_before": self.rows_before,
            "n_infinite": self.n_infinite,
            **({} if self.date is None else {"date": self.date}),
            **({} if self.late is None else {"late": self.late.state()}),
            "tracker": self.tracker.state(),
            "forgetting": self.forgetting.state(),
            **({} if self.keys is None else {"keys": self.keys.state()}),
            "clock": {"seconds": self.seconds, "before": self.seconds_before},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; the learner must be in the state that it had then."""
        kept = [from_json(chunk, self.stream.task) for chunk in state.get("pending", ())]
        rows = [state["n_learned"], *(chunk.stop for chunk in kept)]
        if rows[-1] > state["n_rows"] or rows[:-1] != [chunk.start for chunk in kept]:
            raise ValueError("pending rows must follow those learned")
        self.pending, self._pieces = deque(kept), None
        self.n_rows, self.n_learned = state["n_rows"], state["n_learned"]
        self.rows_before, self.n_infinite = state["rows_before"], state["n_infinite"]
        self.date = state.get("date")
        self.tracker.restore(state["tracker"])
        if "late" not in state:
            self.late = None  # as in the version of kalstream that wrote the state
        elif isinstance(self.late, NamedRows):
            self.late.restore(state["late"], self.tracker)
        elif self.late is not None:
            self.late.restore(state["late"], float if self.stream.task == REGRESSION else object)
        self.forgetting.restore(state["forgetting"])
        if self.keys is not None:
            self.keys.restore(state["keys"])
        self.seconds, self.seconds_before = state["clock"]["seconds"], state["clock"]["before"]


def iter_prequential(learner: Any, stream: Stream, **protocol: Any) -> Iterator[Record]:
    """Predict and learn a stream, and yield a `Record` for every chunk.

    Parameters
    ----------
    learner : object
        With partial_fit and predict (kalstream, scikit-learn), or learn_one and predict_one
        (river).
    stream : Stream, or (X, y)
    **protocol
        chunk, delay, ahead, cost, window, limit, classes, together: as for `Evaluation`.

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
    """Result of predicting and learning a stream.

    Attributes
    ----------
    n_rows, n_scored : int
        Rows predicted, and rows scored: those with a target, after something was learned.
    total : dict
        Metrics over all rows, by the names in `METRICS`; `docs/evaluate.md` explains each.
    baselines : dict of dicts
        Metrics of the baselines that need no features.
    windows : list of dicts
        A line for each window; `docs/files.md` lists its fields.
    classes : list
        Labels in the order of their first appearance.
    seconds : float
        Time of predicting and learning.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> stream = [[1.0], [-1.0]] * 50, ["up", "down"] * 50
    >>> result = prequential(KalmanClassifier(features="raw"), stream, window=40)
    >>> result.n_rows, result.n_scored, [line["row"] for line in result.windows]
    (100, 99, [40, 80, 100])
    >>> print(result)
                         learner   no_change ...
    accuracy              0.9899      0.0000 ...
    ...
    99 rows scored in ... s
    """

    n_rows: int
    n_scored: int
    total: Values
    baselines: dict[str, Values]
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
        As for `iter_prequential`.

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
