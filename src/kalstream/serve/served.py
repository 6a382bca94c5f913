"""One model of a service: the predict-then-learn loop, fed with what clients send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import UNSET

from kalstream._arrays import Array
from kalstream._printable import quoted
from kalstream.errors import InvalidInput, InvalidOption, KalstreamError
from kalstream.evaluate import Evaluation, Record
from kalstream.evaluate.adapters import known
from kalstream.runs.checkpoint import (
    CheckpointWriter,
    columns_of,
    load_learner,
    open_checkpoint,
)
from kalstream.runs.files import METRICS, PREDICTIONS, read_progress
from kalstream.runs.options import NOT_SERVED, Options, typed
from kalstream.runs.origin import refuse_keys
from kalstream.runs.setup import make_learner, window_of
from kalstream.serve.events import Event, Made
from kalstream.streams import (
    CLASSIFICATION,
    REGRESSION,
    Batch,
    Columns,
    PushedRows,
    Stream,
    as_table,
)

_TOGETHER: Final = 128  # rows of one call of the learner; `Evaluation` makes it 1,024 with ids
_MOST_SHOWN: Final = 20  # classes of an answer
_MOST_ENDED: Final = 10_000  # ids with a label, which the learner remembers too
_PLACEHOLDER: Final = "\0label"

Result = list[Made] | KalstreamError


@dataclass(frozen=True, slots=True)
class Prepared:
    """The events of a request as the loop takes them.

    Attributes
    ----------
    events : list of Event
    before, encoder : Columns or None
        The encoder before them and after them.
    rows : (n, d)
        NaN for an event that only brings a label.
    targets, ids : (n,)
    times : (n,) or None
    """

    events: Sequence[Event]
    before: Columns | None
    encoder: Columns | None
    rows: Array
    targets: Array
    ids: Array
    times: Array | None

    def batch(self, start: int) -> Batch:
        """The events, numbered from ``start`` on."""
        return Batch(start, self.rows, self.targets, self.times, ids=self.ids)

    def __getitem__(self, part: slice) -> Prepared:
        return replace(
            self,
            events=self.events[part],
            rows=self.rows[part],
            targets=self.targets[part],
            ids=self.ids[part],
            times=None if self.times is None else self.times[part],
        )

    def __len__(self) -> int:
        return len(self.rows)


def joined(parts: Sequence[Prepared]) -> Prepared:
    """Several requests as one; at least one is given."""
    if len(parts) == 1:
        return parts[0]
    times = [part.times for part in parts if part.times is not None]
    return Prepared(
        [event for part in parts for event in part.events],
        parts[0].before,
        parts[-1].encoder,
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.targets for part in parts]),
        np.concatenate([part.ids for part in parts]),
        np.concatenate(times) if times else None,
    )


@dataclass(slots=True)
class _Frozen:
    """A model at one moment, to be written to a checkpoint while the model goes on."""

    learner: Any
    stream: Stream
    n_rows: int
    n_learned: int
    is_fitted: bool
    evaluation: dict[str, Any]

    def state(self) -> dict[str, Any]:
        """The evaluation as JSON."""
        return self.evaluation


def check_options(options: Options) -> None:
    """Refuse options that have no meaning in a service."""
    for name in options.given(*NOT_SERVED):
        raise InvalidOption(
            f"{typed(name)} has no meaning in a service, where clients send rows and labels; "
            "leave it out"
        )
    if options.time and options.time_unit == "auto":
        raise InvalidOption(
            f"--time is {quoted(options.time)}, and a service cannot look at later rows to find "
            "the unit of half-lives; give --time-unit, such as 1h"
        )


class Served:
    """A model, its encoder and its evaluation. One thread changes it; any thread may predict.

    Parameters
    ----------
    name : str
    options : Options
    folder : Path
        Of its checkpoints.
    """

    def __init__(self, name: str, options: Options, folder: Path) -> None:
        check_options(options)
        self.name, self.options, self.folder = name, options, folder
        folder.mkdir(parents=True, exist_ok=True)
        progress = read_progress(folder)
        self._encoder: Columns | None = None
        before = None
        if progress is not None:
            self._encoder = columns_of(folder, progress)
            task = progress["stream"]["task"]
        elif options.origin is not None:
            learner, self._encoder, before = open_checkpoint(options.origin)
            refuse_keys(learner, options.origin)
            task = CLASSIFICATION if hasattr(learner, "predict_proba") else REGRESSION
        else:
            task = options.task or CLASSIFICATION
        timed = bool(options.time)
        if self._encoder is not None:
            timed = self._encoder.time is not None
            self._encoder = self._encoder.with_late(None, None)
        self.stream = PushedRows(task, timed=timed, named=True)
        if progress is not None:
            learner = load_learner(make_learner(options, self.stream), folder, progress)
        elif options.origin is None:
            learner = make_learner(options, self.stream)
        self.evaluation = self._evaluation(learner)
        if progress is not None:
            self.evaluation.restore(progress["evaluation"])
        elif options.origin is not None:
            self.evaluation.begin_with(None if before is None else before["evaluation"])
        stream = {"name": name, "task": task, "fingerprint": None}
        config = {"run": name, "stream": stream}
        self._writer = CheckpointWriter(folder, config, self.evaluation, 0.0, progress)
        self.stream.encoder = self._encoder
        self.failure: str | None = None
        self.lines: list[dict[str, Any]] = []  # of windows that ended; the service takes them
        self._ended: dict[str, Made] = {}  # first predictions of rows that no longer wait

    def _evaluation(self, learner: Any) -> Evaluation:
        window = window_of(self.options, self.stream)
        return Evaluation(learner, self.stream, window=window, together=_TOGETHER)

    @property
    def learner(self) -> Any:
        """The learner; other threads may predict with it."""
        return self.evaluation.learner

    @property
    def n_rows(self) -> int:
        """Events so far."""
        return self.evaluation.n_rows

    # ---- reading what clients send --------------------------------------------------------

    @property
    def encoder(self) -> Columns | None:
        """How columns become numbers; None before the first row."""
        return self._encoder

    def prepare(self, events: Sequence[Event], before: Columns | None) -> Prepared:
        """Events as numbers, by the encoder before them; nothing changes before `learn`."""
        encoder = before
        rows = [event.row for event in events if event.row is not UNSET]
        if encoder is None and rows:
            encoder = self._first_encoder(rows)
        numbers, times = np.empty((0, 0)), None
        if encoder is not None:
            numbers, times, encoder = _numbers(encoder, rows, learns=True)
        there = np.array([event.row is not UNSET for event in events], bool)
        whole = np.full((len(events), numbers.shape[1]), np.nan)
        whole[there] = numbers
        for k in np.flatnonzero(there & np.isnan(whole).all(axis=1)).tolist():
            if events[k].label is not UNSET:  # the loop takes it for a label of a row that waits
                raise InvalidInput(f"event {k} has no value to learn from; send at least one")
        if times is not None:
            some = np.full(len(events), np.nan)
            some[there] = times
            times = some
        ids = np.array([None if e.id is UNSET else str(e.id) for e in events], object)
        targets = self._targets(events, encoder)
        return Prepared(events, before, encoder, whole, targets, ids, times)

    def _first_encoder(self, rows: Sequence[dict[str, Any]]) -> Columns:
        """Decide from the first rows what their columns hold."""
        options, n = self.options, len(rows)
        names = [name for name in dict.fromkeys(k for row in rows for k in row)]
        names = [name for name in names if name not in options.ignore]
        if options.time and options.time not in names:
            raise InvalidInput(f"a row has no column {quoted(options.time)}, its time; add it")
        label: Any = 0.5 if self.stream.task == REGRESSION else "label"
        table = as_table(
            [{name: row.get(name) for name in names} for row in rows], {_PLACEHOLDER: [label] * n}
        )
        columns, _ = Columns.of_table(
            table,
            target=_PLACEHOLDER,
            task=self.stream.task,
            time=options.time,
            categorical=[name for name in options.categorical if name in names],
            missing=tuple(options.missing),
            decimal=options.decimal,
        )
        return replace(columns, target=None)

    def _targets(self, events: Sequence[Event], encoder: Columns | None) -> Array:
        """Targets (n,), missing where an event has no label."""
        given = [None if event.label is UNSET else event.label for event in events]
        if encoder is not None and encoder.target is not None:  # of a run, which says what they are
            bad: dict[int, tuple[str, Any, str]] = {}
            table = as_table([{encoder.target.name: label} for label in given])
            targets = encoder.encode_targets(table, bad)
            for row, (_, value, why) in bad.items():
                raise InvalidInput(f"the label of event {row} is {quoted(value)}, which {why}")
            return targets
        if self.stream.task == REGRESSION:
            for k, label in enumerate(given):
                if isinstance(label, str | bool):
                    raise InvalidInput(
                        f"the label of event {k} is {quoted(label)}, and {self.name} learns numbers"
                    )
            return np.array([np.nan if label is None else label for label in given], np.float64)
        codes = self.evaluation.tracker.codes
        kind = next((type(label) for label in codes), None)
        targets = np.full(len(given), None, object)
        for k, label in enumerate(given):
            if isinstance(label, float) and label.is_integer():
                label = int(label)
            if label is None:
                continue
            if isinstance(label, float) or type(label) is not (kind or type(label)):
                wanted = {int: "whole numbers", bool: "booleans"}.get(kind or str, "strings")
                raise InvalidInput(
                    f"the label of event {k} is {quoted(label)}, and those of {self.name} are "
                    f"{wanted}; send one kind of labels"
                )
            kind, targets[k] = type(label), label
        return targets

    # ---- learning -------------------------------------------------------------------------

    def learn(self, requests: Sequence[Prepared]) -> list[Result]:
        """Predict and learn requests in their order: for each what was made of it, or an error.

        Rows of several requests are one call of the learner. If it refuses them, each request is
        one; a request that is refused changes nothing.
        """
        done: list[Result] = []
        n_alone = 0  # requests before this one are not put together
        while len(done) < len(requests):
            some = requests[len(done) : len(done) + 1]
            if len(done) >= n_alone:
                some = list(self._fitting(requests[len(done) :]))
            before = self._encoder
            try:
                made = self._together(some)
            except KalstreamError as error:
                self._use(before)
                n_alone = len(done) + len(some)
                if len(some) == 1:
                    done.append(error)
                continue
            for each in some:
                done.append(made[: len(each)])
                made = made[len(each) :]
        return done

    def _together(self, requests: Sequence[Prepared]) -> list[Made]:
        """Learn requests in one call of the learner, or one request in as many as it needs."""
        rows = joined(requests)
        if rows.before is not self._encoder:  # a request before them was refused
            rows = self.prepare(rows.events, self._encoder)
        self._use(rows.encoder)
        return self._step(rows) if len(requests) > 1 else self._whole(rows)

    def _use(self, encoder: Columns | None) -> None:
        self._encoder = self.stream.encoder = encoder

    def _fitting(self, requests: Sequence[Prepared]) -> Iterator[Prepared]:
        """The first request, and those after it that end in the same record."""
        yield requests[0]
        room = self._room() - len(requests[0])
        for each in requests[1:]:
            room -= len(each)
            if room < 0 or each.rows.shape[1] != requests[0].rows.shape[1]:
                return
            yield each

    def _room(self) -> int:
        """Rows until the current record has to end."""
        evaluation = self.evaluation
        window = evaluation.window
        return min(evaluation.together, window - evaluation.next_row % window)

    def _whole(self, rows: Prepared) -> list[Made]:
        """Learn the rows of one request, record by record: all of them, or none."""
        if len(rows) <= self._room():
            return self._step(rows)
        learner, state = self.learner.snapshot(), self.evaluation.state()
        ended, n_lines = dict(self._ended), len(self.lines)
        made: list[Made] = []
        try:
            while len(made) < len(rows):
                made += self._step(rows[len(made) : len(made) + self._room()])
        except KalstreamError:
            self.evaluation = self._evaluation(learner)
            self.evaluation.restore(state)
            self._ended = ended
            del self.lines[n_lines:]
            raise
        return made

    def _step(self, rows: Prepared) -> list[Made]:
        if rows.rows.shape[1] == 0:  # labels, before any row came
            return [Made(status="unknown") for _ in range(len(rows))]
        ids = [key for key in rows.ids if key is not None]
        before = dict(zip(ids, self.learner.status_of(ids), strict=True))
        labelled = known(rows.targets)
        asks: Array = np.logical_not(labelled & np.isnan(rows.rows).all(axis=1))
        status = _status(rows.ids, labelled.tolist(), asks.tolist(), before)
        first = {key: self._first(key) for key, known_as in before.items() if known_as}
        (record,) = self.evaluation.step(rows.batch(self.evaluation.next_row))
        if record.line is not None:
            self.lines.append(record.line)
        made = _answers(record, status)
        if ids:
            self._keep_first(rows.ids, asks.tolist(), made, first)
        return made

    def _first(self, key: str) -> Made:
        """What was predicted when the id of a row came first; nothing if that is forgotten."""
        prediction = self.evaluation.prediction_of(key)
        if prediction is None:
            return self._ended.get(key, Made())
        if self.stream.task == REGRESSION:
            return _number(*prediction.values.tolist())
        return _labels(prediction.labels, prediction.values[None])[0]

    def _keep_first(
        self, ids: Array, asks: Sequence[bool], made: Sequence[Made], first: dict[str, Made]
    ) -> None:
        """Give each row the first prediction of its id, by which it is scored, and remember that.

        ``first`` has those of ids that were known before.
        """
        for key, is_row, each in zip(ids, asks, made, strict=True):
            if key is None:
                continue
            if is_row:
                of_id = first.setdefault(key, each)
                each.prediction, each.std = of_id.prediction, of_id.std
                each.probabilities = of_id.probabilities
            if each.status == "learned":
                self._ended.pop(key, None)  # of an earlier row; this one is the newest
                self._ended[key] = first[key]
        while len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    # ---- predicting -----------------------------------------------------------------------

    def predict(self, rows: Sequence[dict[str, Any]]) -> list[Made]:
        """Predictions of rows, by what is learned now; nothing changes."""
        encoder, learner = self._encoder, self.learner
        if encoder is None or not self.evaluation.is_fitted or not rows:
            return [Made() for _ in rows]
        numbers, times, _ = _numbers(encoder, rows, learns=False)
        more = {} if times is None else {"time": times}
        if self.stream.task == REGRESSION:
            if not learner.n_seen_:
                return [Made() for _ in rows]
            mean, std = learner.predict(numbers, return_std=True, **more)
            return [_number(m, s) for m, s in zip(mean.tolist(), std.tolist(), strict=True)]
        probabilities = learner.predict_proba(numbers, **more)
        return _labels(learner.classes_.tolist(), probabilities)

    # ---- what it looks like ---------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Totals, the window so far, half-lives and what waits, as JSON."""
        evaluation = self.evaluation
        end, line = evaluation.end_line(), evaluation.line()
        return {
            "model": self.name,
            "task": self.stream.task,
            "rows": end["row"],
            "scored": end["n"],
            "total": end["total"],
            "baselines": end["baselines"],
            "classes": len(end["classes"]),
            "waiting": end.get("waiting"),
            "window": {k: v for k, v in line.items() if k != "kind"},
            "drift": self._drift(),
            "failure": self.failure,
        }

    def _drift(self) -> dict[str, Any] | None:
        """The drift alarm as JSON; None where there is none yet, or never (fixed forgetting)."""
        if not self.evaluation.is_fitted:
            return None
        try:
            drift = self.learner.drift()
        except InvalidInput:
            return None
        return {"alarms": drift.alarms, "since": drift.since, "confidence": drift.confidence}

    # ---- checkpoints ----------------------------------------------------------------------

    def frozen(self) -> _Frozen | None:
        """The model as it is now, for `write`; None if it has learned nothing."""
        evaluation = self.evaluation
        if not evaluation.is_fitted:
            return None
        stream = PushedRows(self.stream.task, timed=self.stream.timed, named=True)
        stream.encoder = self._encoder
        place = evaluation.n_rows, evaluation.n_learned
        return _Frozen(self.learner.snapshot(), stream, *place, True, evaluation.state())

    def write(self, frozen: _Frozen) -> None:
        """Replace the checkpoint; any thread may do so, one at a time."""
        self._writer.source = frozen
        self._writer.save({METRICS: 0, PREDICTIONS: 0})


# The result of a label, by the status that its id had before.
_BECOMES: Final = {
    "waits": "learned",
    "told": "repeated",
    "expired": "expired",
    None: "unknown",
}
# The same of a row without a label.
_STAYS: Final = {**_BECOMES, "waits": "waits", None: "waits"}


def _status(
    ids: Array, labelled: Sequence[bool], asks: Sequence[bool], before: dict[str, str | None]
) -> list[str | None]:
    """Result of each event (n,), by the status of ids before; None for rows without an id."""
    status, out = dict(before), list[str | None]()
    for key, has_label, is_row in zip(ids, labelled, asks, strict=True):
        earlier = status.get(key)
        if not has_label:
            out.append(None if key is None else _STAYS[earlier])
            status[key] = earlier or "waits"
        else:
            out.append(_BECOMES[earlier] if earlier or not is_row else "learned")
            if key is not None and out[-1] == "learned":
                status[key] = "told"
    return out


def _numbers(
    encoder: Columns, rows: Sequence[dict[str, Any]], *, learns: bool
) -> tuple[Array, Array | None, Columns]:
    """Rows as numbers (n, d), their times (n,), and the encoder after them."""
    wanted = [column.name for column in encoder.features]
    for k, row in enumerate(rows):
        if row.keys().isdisjoint(wanted):
            raise InvalidInput(
                f"event {k} has none of the columns that are learned ({', '.join(wanted[:10])}); "
                "send at least one of them"
            )
    if encoder.time is not None:
        wanted.append(encoder.time.name)
    elif all(column.kind == "number" for column in encoder.features):
        quick = _plain(rows, wanted)
        if quick is not None:
            return quick, None, encoder
    if not rows:
        return np.empty((0, len(encoder.names))), np.empty(0) if encoder.time else None, encoder
    table = as_table([{name: row.get(name) for name in wanted} for row in rows])
    if learns:
        encoder = encoder.learn(table)
    numbers, _, times, bad = encoder.encode(table)
    for k, (column, value, why) in bad.items():
        raise InvalidInput(f"event {k}, column {quoted(column)}: {quoted(value)} {why}")
    numbers = np.where(np.isinf(numbers), np.nan, numbers)
    return numbers, times, encoder


def _plain(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Array | None:
    """Rows of numbers (n, d), without a table; None if a value is none."""
    values = [[row.get(name) for name in names] for row in rows]
    kinds = {type(value) for each in values for value in each}
    if not kinds <= {float, int, type(None)}:
        return None
    try:
        numbers = np.array(values, np.float64).reshape(len(rows), len(names))
    except OverflowError:
        return None
    numbers[np.isinf(numbers)] = np.nan
    return numbers


def _answers(record: Record, status: Sequence[str | None]) -> list[Made]:
    """What was made of each event of a record."""
    answer = record.answer
    asked = range(len(status)) if record.asked is None else record.asked
    out = [Made(status=each) for each in status]
    if answer.std is not None and answer.predictions is not None:
        pairs = zip(answer.predictions.tolist(), answer.std.tolist(), strict=True)
        made = [_number(mean, std) for mean, std in pairs]
    elif answer.probabilities is not None:
        made = _labels(answer.labels or [], answer.probabilities)
    else:
        return out
    for i, each in zip(asked, made, strict=True):
        out[i].prediction, out[i].std = each.prediction, each.std
        out[i].probabilities = each.probabilities
    return out


def _number(mean: float, std: float) -> Made:
    if mean != mean:
        return Made()
    return Made(prediction=mean, std=std if np.isfinite(std) else None)


def _labels(labels: Sequence[Any], probabilities: Array) -> list[Made]:
    """Answers from probabilities (n, K)."""
    if not labels:
        return [Made() for _ in range(len(probabilities))]
    names = [str(label) for label in labels]
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :_MOST_SHOWN]
    out = []
    for p, best in zip(probabilities.tolist(), order.tolist(), strict=True):
        if not p[best[0]]:  # no label was known yet
            out.append(Made())
            continue
        shown = {names[k]: p[k] for k in best}
        out.append(Made(prediction=labels[best[0]], probabilities=shown))
    return out
