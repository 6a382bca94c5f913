"""Rows that are pushed give the same as rows that the loop pulls from a stream."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream import KalmanClassifier
from kalstream.errors import InvalidInput
from kalstream.evaluate import Evaluation, Record
from kalstream.streams import ArrayStream, Batch, PushedRows, Stream

N = 150
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((N, 3))
LABELS = np.array([f"c{k}" for k in np.digitize(ROWS.sum(1), [-1.0, 1.0])], object)
TIMES = np.cumsum(RNG.integers(0, 3, N)).astype(float)


def named() -> ArrayStream:
    """Every row comes without its label; 20 rows later another row brings it."""
    n, d = N - 20, ROWS.shape[1]
    order = [(i + 20 * late, i, late) for i in range(n) for late in (0, 1)]
    order.sort()
    rows = [[np.nan] * d if late else ROWS[i] for _, i, late in order]
    labels = [LABELS[i] if late else None for _, i, late in order]
    return ArrayStream(rows, labels, ids=[f"id{i}" for _, i, _ in order])


CASES: dict[str, tuple[Stream, dict[str, Any]]] = {
    "plain": (ArrayStream(ROWS, LABELS), {"together": 8}),
    "chunks": (ArrayStream(ROWS, LABELS), {"chunk": 7, "cost": 2.0}),
    "delay": (ArrayStream(ROWS, LABELS), {"chunk": 3, "delay": 20}),
    "time": (ArrayStream(ROWS, LABELS, TIMES), {"delay": timedelta(seconds=9), "together": 2}),
    "arrivals": (ArrayStream(ROWS, LABELS, TIMES, label_times=TIMES + 12.0), {}),
    "ids": (named(), {"together": 2}),
    "limit": (ArrayStream(ROWS, LABELS), {"chunk": 4, "limit": 99}),
}


def model() -> KalmanClassifier:
    return KalmanClassifier(features="raw", random_state=0)


def cut(stream: Stream, start: int, seed: int) -> Iterator[Batch]:
    """The rows from a number on, in batches of random lengths."""
    whole = next(stream.batches())
    rng = np.random.default_rng(seed)
    while start < len(whole):
        stop = start + int(rng.integers(0, 30))
        yield whole[start:stop]
        start = min(stop, len(whole))


def plain(records: list[Record]) -> list[str]:
    """Records without the time that they took."""
    made = []
    for record in records:
        line = None if record.line is None else {**record.line, "clock": None}
        parts = record.batch, record.answer, record.scored, record.n_learned, line, record.asked
        made.append(repr(parts))
    return made


def end(evaluation: Evaluation) -> dict[str, Any]:
    return {**evaluation.end_line(), "clock": None}


@pytest.mark.parametrize("case", CASES)
def test_pushing_is_pulling(case: str) -> None:
    stream, protocol = CASES[case]
    protocol = {"window": 40, **protocol}
    pulled, pushed = (Evaluation(model(), stream, **protocol) for _ in range(2))
    expected = list(pulled.records())
    expected += pulled.finish()
    made: list[Record] = []
    for batch in cut(stream, 0, seed=1):
        made += pushed.step(batch)
    made += pushed.finish()
    assert plain(made) == plain(expected)
    assert end(pushed) == end(pulled)


@pytest.mark.parametrize("case", CASES)
def test_pushing_continues_after_a_restart(case: str, tmp_path: Path) -> None:
    """With rows that are pushed once only, nothing is read again."""
    source, protocol = CASES[case]
    what = {name: getattr(source, name) for name in ("columns", "timed", "label_timed", "named")}
    stream = PushedRows(**what)
    protocol = {"window": 40, **protocol}
    whole = Evaluation(model(), source, **protocol)
    list(whole.records())
    whole.finish()
    first = Evaluation(model(), stream, **protocol)
    for batch in cut(source, 0, seed=2):
        first.step(batch)
        if first.n_rows > 60:
            break
    state = json.loads(json.dumps(first.state(), allow_nan=False))
    first.adapter.learner.save(tmp_path / "model.safetensors")
    learner = KalmanClassifier.load(tmp_path / "model.safetensors")
    second = Evaluation(learner, stream, **protocol)
    second.restore(state)
    assert second.next_row == first.n_rows
    for batch in cut(source, second.next_row, seed=3):
        second.step(batch)
    second.finish()
    ours, theirs = end(second), end(whole)
    # Sums over other pieces of rows differ in the last digit.
    assert ours["total"].pop("open_log_loss") is theirs["total"].pop("open_log_loss") is None
    assert ours.pop("total") == pytest.approx(theirs.pop("total"), rel=1e-12)
    for name, values in ours.pop("baselines").items():
        assert values == pytest.approx(theirs["baselines"][name], rel=1e-12)
    assert ours == {name: theirs[name] for name in ours}


class Fails(KalmanClassifier):
    """Fails once, at a row that it does not like."""

    def partial_fit(self, X: Any, y: Any = None, **more: Any) -> Any:
        if (X == 666.0).any():
            raise RuntimeError("evil")
        return super().partial_fit(X, y, **more)

    def predict_then_learn(self, X: Any, y: Any = None, **more: Any) -> Any:
        if (X == 666.0).any():
            raise RuntimeError("evil")
        return super().predict_then_learn(X, y, **more)


def test_rows_after_an_error_are_pushed_again() -> None:
    batch = next(ArrayStream(ROWS, LABELS).batches())
    bad = replace(batch, rows=np.where(np.arange(N)[:, None] == 17, 666.0, batch.rows))
    evaluation = Evaluation(Fails(features="raw", random_state=0), PushedRows(), chunk=5)
    with pytest.raises(RuntimeError, match="evil"):
        evaluation.step(bad)
    assert evaluation.next_row == evaluation.n_rows == 15
    evaluation.step(batch[15:])
    whole = Evaluation(model(), PushedRows(), chunk=5)
    whole.step(batch)
    assert end(evaluation) == end(whole)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (Batch(3, ROWS, LABELS), "batch.start must be 0, the next row of this evaluation, got 3"),
        (Batch(0, ROWS, LABELS, TIMES), "batch at row 0 has times"),
        (Batch(0, ROWS, LABELS, ids=LABELS), "batch at row 0 has ids"),
    ],
)
def test_rows_that_do_not_follow_are_refused(batch: Batch, message: str) -> None:
    evaluation = Evaluation(model(), PushedRows())
    with pytest.raises(InvalidInput, match=message):
        evaluation.step(batch)
    assert evaluation.next_row == 0
    with pytest.raises(InvalidInput, match="batch at row 0 lacks times"):
        Evaluation(model(), PushedRows(timed=True)).step(Batch(0, ROWS, LABELS))


def test_rows_without_ids_whose_targets_are_there_cost_no_bookkeeping() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((60, 2)), rng.integers(0, 2, 60).astype(object)
    named = Evaluation(KalmanClassifier(features="raw"), PushedRows(named=True), together=64)
    plain = Evaluation(KalmanClassifier(features="raw"), PushedRows(), together=64)
    nobody = np.full(60, None, object)
    for part in (slice(0, 1), slice(1, 30), slice(30, 40)):
        (one,) = named.step(Batch(part.start, rows[part], labels[part], ids=nobody[part]))
        (other,) = plain.step(Batch(part.start, rows[part], labels[part]))
        assert one.asked == list(range(len(one.batch)))
        assert one.answer.probabilities.tolist() == other.answer.probabilities.tolist()
    assert named.learner.waiting_.asked == 0
    # As soon as one row waits, all rows count as asked for.
    named.step(Batch(40, rows[40:41], nobody[40:41], ids=np.array(["a"], object)))
    named.step(Batch(41, rows[41:43], labels[41:43], ids=nobody[41:43]))
    assert (named.learner.waiting_.asked, named.learner.waiting_.waiting) == (3, 1)
    assert named.tracker.n == plain.tracker.n + 2
