"""Late labels in the loop, against rows asked for and labels told one at a time."""

import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.errors import InvalidInput
from kalstream.evaluate import Evaluation, iter_prequential, prequential
from kalstream.streams import ArrayStream

N = 150


def model(task: str = "classification", **settings: Any) -> Any:
    kind = KalmanClassifier if task == "classification" else KalmanRegressor
    return kind(features="raw", random_state=0, **settings)


def data(seed: int = 0, task: str = "classification") -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((N, 3))
    score = rows @ [1.0, -2.0, 0.5] + 0.1 * rng.standard_normal(N)
    targets: Any = score
    if task == "classification":
        targets = np.array([f"c{k}" for k in np.digitize(score, [-1.0, 1.5])], object)
        targets[rng.random(N) < 0.1] = None
    else:
        targets[rng.random(N) < 0.1] = np.nan
    return rows, targets, np.cumsum(rng.integers(0, 3, N)).astype(float)


def plain(task: str, rows: Any, targets: Any, times: Any, told_before: Any) -> list[Any]:
    """Predictions, row by row; told_before(i): rows whose labels are told before row i is."""
    learner, made = model(task), []
    for i in range(len(rows)):
        for j in told_before(i):
            learner.tell([j], targets[j : j + 1])
        time = {} if times is None else {"time": times[i : i + 1]}
        answer = learner.ask(rows[i : i + 1], **time)
        if task == "regression":
            made.append((float(answer[0][0]), float(answer[1][0])))
        else:
            known = learner.__sklearn_is_fitted__()
            labels = learner.classes_.tolist() if known else []
            made.append(dict(zip(labels, answer[0].tolist(), strict=True)))
    return made


def answers(records: list[Any]) -> list[Any]:
    made: list[Any] = []
    for record in records:
        answer = record.answer
        if answer.probabilities is None:
            made += zip(answer.predictions.tolist(), answer.std.tolist(), strict=True)
        else:
            for row in answer.probabilities.tolist():
                made.append(dict(zip(answer.labels, row, strict=True)))
    return made


def assert_same(made: list[Any], expected: list[Any]) -> None:
    assert len(made) == len(expected)
    for one, other in zip(made, expected, strict=True):
        if isinstance(one, tuple):
            assert one == pytest.approx(other, abs=1e-9, nan_ok=True)
        else:
            labels = set(one) | set(other)
            pairs = [(one.get(k, 0.0), other.get(k, 0.0)) for k in labels]
            assert all(a == pytest.approx(b, abs=1e-9) for a, b in pairs)


def log_loss_of_no_change(targets: Any, delay: int) -> float:
    """Its probability is how often its own predictions were right, of those that can be judged."""
    made: dict[int, Any] = {}
    came: list[Any] = []
    right = judged = n = 0
    total = 0.0
    for i, target in enumerate(targets):
        j = i - delay - 1
        if j >= 0 and targets[j] is not None:
            if j in made:
                right, judged = right + (made[j] == targets[j]), judged + 1
            came.append(targets[j])
        if not came or target is None:
            continue
        made[i], n = came[-1], n + 1
        others = len(came) - came.count(came[-1])
        again = (right + 1) / (judged + 2) if others else 1.0
        p = 1.0 / (len(came) + 1)  # of labels that never came; the others share the rest
        if target in came:
            share = again if target == came[-1] else (1.0 - again) * came.count(target) / others
            p = share * (1.0 - p)
        total -= math.log(p)
    return total / n


def test_labels_after_the_last_row_are_counted() -> None:
    rows, targets, _ = data()
    evaluation = Evaluation(model(), ArrayStream(rows, targets), delay=20)
    list(evaluation.records())
    assert evaluation.waiting_counts()["at_end"] == 0
    told = evaluation.waiting_counts()["told"]
    evaluation.finish()
    counts = evaluation.waiting_counts()
    assert counts["told"] - told == 20
    assert counts["at_end"] == sum(target is not None for target in targets[-20:])
    assert counts["told"] - counts["missing"] == sum(target is not None for target in targets)


@pytest.mark.parametrize("delay", [0, 1, 7, 40])
def test_no_change_learns_how_often_it_was_right_with_late_labels(delay: int) -> None:
    rows, targets, _ = data(1)
    stream = ArrayStream(rows, targets)
    expected = log_loss_of_no_change(targets.tolist(), delay)
    kept = prequential(model(), stream, delay=delay)
    read = prequential(
        SGDClassifier(loss="log_loss"), stream, delay=delay, classes=["c0", "c1", "c2"]
    )
    assert kept.baselines["no_change"]["log_loss"] == pytest.approx(expected, rel=1e-12)
    assert read.baselines["no_change"]["log_loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize(("chunk", "delay"), [(1, 1), (1, 40), (7, 10)])
def test_labels_that_are_rows_late(task: str, chunk: int, delay: int) -> None:
    rows, targets, _ = data(task=task)

    def told(i: int) -> list[int]:
        if i % chunk:
            return []
        ends = {j: min(N, (j // chunk + 1) * chunk) for j in range(N)}
        return [j for j in range(N) if i - chunk < ends[j] + delay <= i]

    stream = ArrayStream(rows, targets, task=task, batch_size=17)
    expected = plain(task, rows, targets, None, told)
    protocol: dict[str, Any] = {"chunk": chunk, "delay": delay, "window": 70}
    for together in (1, 5):
        learner = model(task)
        records = list(iter_prequential(learner, stream, together=together, **protocol))
        assert_same(answers(records), expected)
        assert learner.waiting_.told == N
        assert learner.waiting_.waiting == 0


def test_scores_do_not_depend_on_records_and_baselines_not_on_the_learner() -> None:
    rows, targets, _ = data()
    stream = ArrayStream(rows, targets)
    one = prequential(model(), stream, delay=20, window=50, together=1)
    many = prequential(model(), stream, delay=20, window=50)
    assert one.total == pytest.approx(many.total, abs=1e-9)
    assert one.baselines == many.baselines
    other = prequential(SGDClassifier(), stream, delay=20, window=50, classes=["c0", "c1", "c2"])
    assert other.baselines == many.baselines
    assert other.n_scored == many.n_scored
    assert [line["waiting"] for line in many.windows] == [20, 20, 20]


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("kind", ["delay", "column", "at once"])
def test_labels_that_come_at_a_time(kind: str, chunk: int) -> None:
    rows, targets, times = data(3)
    rng = np.random.default_rng(1)
    arrivals = times + 12.0
    options: dict[str, Any] = {"delay": timedelta(seconds=12)}
    more: dict[str, Any] = {}
    if kind == "column":
        arrivals = times + rng.integers(0, 60, N)
        arrivals[rng.random(N) < 0.1] = np.nan
        options, more = {}, {"label_times": arrivals}
    if kind == "at once":
        arrivals, options = times, {"delay": timedelta(0)}
    shown = np.where(np.isnan(arrivals), None, targets)
    done: set[int] = set()

    def told(i: int) -> list[int]:
        if i % chunk:
            return []
        due = [j for j in range(i) if j not in done and arrivals[j] <= times[i]]
        # the chunk before which a label was due
        place = {j: max(j + 1, int(np.searchsorted(times, arrivals[j]))) for j in due}
        place = {j: -(-p // chunk) * chunk for j, p in place.items()}
        due = sorted((j for j in due), key=lambda j: (place[j], arrivals[j], j))
        done.update(due)
        return due

    stream = ArrayStream(rows, targets, times, batch_size=31, **more)
    expected = plain("classification", rows, shown, times, told)
    for together in (1, 6):
        learner = model()
        records = list(iter_prequential(learner, stream, chunk=chunk, together=together, **options))
        assert_same(answers(records), expected)
    assert learner.waiting_.waiting == int(np.isnan(arrivals).sum())
    if kind == "at once" and chunk == 1:
        made = model().predict_then_learn(rows, targets, time=times)
        got = np.concatenate([each.answer.probabilities[:, :3] for each in records[-1:]])
        np.testing.assert_allclose(got, made[-len(got) :], atol=1e-9)


def named(delay: int, task: str = "classification") -> tuple[ArrayStream, ArrayStream]:
    """The same rows and labels: beside each other, and with ids, labels in rows of their own."""
    rows, targets, _ = data(5, task)
    there = (
        targets == targets if task == "regression" else np.array([t is not None for t in targets])
    )
    rows, targets = rows[there], targets[there]
    n = len(rows)
    nothing: Any = np.nan if task == "regression" else None
    columns, labels, ids = [], [], []
    for i in range(n + delay):
        if i < n:
            columns.append(rows[i])
            labels.append(nothing)
            ids.append(f"r{i}")
        if i >= delay:
            columns.append(np.full(3, np.nan))
            labels.append(targets[i - delay])
            ids.append(f"r{i - delay}")
    beside = ArrayStream(rows, targets, task=task)
    return beside, ArrayStream(np.array(columns), labels, ids=ids, task=task, batch_size=23)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("delay", [0, 9])
def test_labels_that_later_rows_bring(task: str, delay: int) -> None:
    beside, with_ids = named(delay, task)
    first, second = model(task), model(task)
    records = list(iter_prequential(first, beside, delay=delay, together=64))
    others = list(iter_prequential(second, with_ids, together=64))
    assert_same(answers(others), answers(records))
    assert sum(len(record.asked) for record in others) == beside.n_rows
    one = prequential(model(task), beside, delay=delay)
    two = prequential(model(task), with_ids)
    assert two.n_scored == one.n_scored
    assert two.total == pytest.approx(one.total, abs=1e-9)
    for name, values in one.baselines.items():
        assert two.baselines[name] == pytest.approx(values, abs=1e-9)


def test_ids_of_every_kind_are_counted() -> None:
    nan, none = [np.nan, np.nan], None
    rows: list[tuple[str | None, list[float], str | None]] = [
        ("a", [1.0, 0.0], none),  # waits
        ("b", [0.0, 1.0], "up"),  # predicted and learned at once
        ("a", nan, "down"),  # its label
        ("a", nan, "down"),  # again
        ("a", nan, "up"),  # corrected
        ("a", [5.0, 5.0], none),  # a row that comes again
        ("z", nan, "up"),  # nobody knows it
        (None, [1.0, 1.0], "up"),  # rows without an id
        (None, [1.0, 1.0], none),
        ("c", [1.0, 1.0], none),
        ("d", [1.0, 1.0], none),
        ("e", [1.0, 1.0], none),  # c is given up
        ("c", nan, "up"),  # too late
    ]
    ids, columns, targets = zip(*rows, strict=True)
    # Rows are given up between records: c, whose label is in a record after that of e.
    for together, window in ((1, 5), (3, 12), (64, 4)):
        stream = ArrayStream(list(columns), list(targets), ids=list(ids))
        learner = model(max_waiting=2)
        evaluation = Evaluation(learner, stream, together=together, window=window)
        records = list(evaluation.records())
        evaluation.finish()
        end = evaluation.end_line()
        assert end["waiting"] == {
            "waiting": 2,
            "asked": 7,
            "told": 4,
            "expired": 1,
            "repeated": 2,
            "corrected": 1,
            "too_late": 1,
            "unknown": 1,
            "missing": 1,
        }
        asked = [r.batch.start + i for r in records for i in r.asked]
        assert asked == [0, 1, 5, 7, 8, 9, 10, 11]
        assert end["n"] == 1  # b, a and the first without an id; two of them came before any label


def expiring(**bounds: Any) -> tuple[Any, ArrayStream]:
    """A model in which the first of five rows expires before its label comes."""
    names = ["s", "a", "b", "c", "d", "a", "d"]
    labels = ["up", None, None, None, None, "up", "down"]
    columns = [[1.0 - 2.0 * (k % 2), 1.0] if k < 5 else [np.nan] * 2 for k in range(7)]
    return model(**bounds), ArrayStream(columns, labels, ids=names)


@pytest.mark.parametrize("together", [1, 64])
@pytest.mark.parametrize("bounds", [{"max_waiting": 2}, {"max_age": 1}])
def test_a_row_that_the_learner_gave_up_is_not_scored(
    bounds: dict[str, Any], together: int
) -> None:
    learner, stream = expiring(**bounds)
    evaluation = Evaluation(learner, stream, together=together, window=7)
    lines = [record.line for record in evaluation.records()]
    assert evaluation.tracker.n == 1  # d; s came before any label
    assert learner.waiting_.expired == 2
    assert learner.waiting_.too_late == 1
    assert lines[-1]["waiting"] == learner.waiting_.waiting == 1


def test_ids_need_a_learner_that_knows_what_became_of_them() -> None:
    class Without(KalmanClassifier):
        status_of = property()

    with pytest.raises(InvalidInput, match="use a learner with ask_and_tell, status_of"):
        Evaluation(Without(), ArrayStream([[1.0]], ["a"], ids=["a"]))


def turning(n: int = 900, turn: int = 600) -> tuple[Any, Any]:
    rows = np.random.default_rng(0).standard_normal((n, 3))
    labels = np.where(rows[:, 0] > 0, "yes", "no").astype(object)
    labels[turn:] = np.where(rows[turn:, 0] > 0, "no", "yes")
    labels[::5] = None
    return rows, labels


@pytest.mark.parametrize("together", [9, 64])
@pytest.mark.parametrize("kind", ["in time", "chunks", "rows", "late chunks", "time", "column"])
@pytest.mark.parametrize("before", [0, 150])
def test_the_rows_of_an_alarm(kind: str, together: int, before: int) -> None:
    """``row`` is that of the change, also if rows came before the stream that have no label."""
    rows, labels = turning()
    times = 2.0 * np.arange(len(rows))
    options: dict[str, Any] = {
        "in time": {},
        "chunks": {"chunk": 9},
        "rows": {"delay": 100},
        "late chunks": {"chunk": 9, "delay": 100},
        "time": {"delay": timedelta(seconds=200)},
        "column": {},
    }[kind]
    column = {"label_times": times + 200.0} if kind == "column" else {}
    stream = ArrayStream(rows, labels, times if kind in ("time", "column") else None, **column)
    learner = model()
    if before:
        early = {"time": times[:before] - 1e4} if stream.times is not None else {}
        learner.ask(rows[:before], **early)
        learner.tell(range(20), labels[:20])
    evaluation = Evaluation(learner, stream, together=together, window=90, **options)
    if before:
        evaluation.begin_with(None)
    lines = [record.line for record in evaluation.records() if record.line is not None]
    (alarm,) = [each for line in lines for each in line["drift"] if each["row"] > 300]
    row, chunk = alarm["row"], options.get("chunk", 1)
    assert 600 <= row < 700
    # A label that comes at the time of a row is learned before this row is predicted.
    delay = {"in time": 0, "chunks": 0, "time": 99, "column": 99}.get(kind, 100)
    came = -(-(row + 1) // chunk) * chunk + delay
    assert alarm.get("raised", row) == -(-came // chunk) * chunk - 1


@pytest.mark.parametrize("together", [9, 64])
def test_the_rows_of_an_alarm_of_rows_with_ids(together: int) -> None:
    rows, labels = turning()
    columns, targets, ids = [], [], []
    for i in range(1000):
        if i < 900:
            columns.append(rows[i])
            targets.append(None)
            ids.append(f"r{i}")
        if i >= 100 and labels[i - 100] is not None:
            columns.append(np.full(3, np.nan))
            targets.append(labels[i - 100])
            ids.append(f"r{i - 100}")
    stream = ArrayStream(np.array(columns), targets, ids=ids)
    result = prequential(model(), stream, together=together, window=100)
    (alarm,) = [each for line in result.windows for each in line["drift"]]
    assert 600 <= int(ids[alarm["row"]][1:]) < 700
    assert alarm["row"] < alarm["raised"]
    assert ids[alarm["row"]] == ids[alarm["raised"]]


@pytest.mark.parametrize("kind", ["rows", "time", "column", "ids"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_an_evaluation_continues_with_what_waits(kind: str, task: str, tmp_path: Path) -> None:
    rows, targets, times = data(7, task)
    protocol: dict[str, Any] = {"window": 40, "together": 2}
    more: dict[str, Any] = {}
    if kind == "rows":
        stream = ArrayStream(rows, targets, task=task)
        protocol["delay"] = 30
    elif kind == "ids":
        stream = named(30, task)[1]
    else:
        arrivals = times + np.random.default_rng(0).integers(0, 90, N)
        more = {"label_times": arrivals} if kind == "column" else {}
        protocol |= {} if kind == "column" else {"delay": timedelta(seconds=30)}
        stream = ArrayStream(rows, targets, times, task=task, **more)
    whole = Evaluation(model(task), stream, **protocol)
    expected = answers(list(whole.records()))
    whole.finish()
    for stop in (1, 3, 6):
        first = Evaluation(model(task), stream, **protocol)
        made = []
        for number, record in enumerate(first.records(), 1):
            made.append(record)
            if number == stop:
                break
        state = json.loads(json.dumps(first.state(), allow_nan=False))
        first.adapter.learner.save(tmp_path / "model.safetensors")
        learner = type(first.adapter.learner).load(tmp_path / "model.safetensors")
        second = Evaluation(learner, stream, **protocol)
        second.restore(state)
        made += list(second.records())
        second.finish()
        assert repr(answers(made)) == repr(expected)  # bit for bit
        ours, theirs = second.end_line(), whole.end_line()
        assert ours.pop("clock") is not None
        theirs.pop("clock")
        assert ours == theirs


def test_a_state_of_before_has_no_places_of_rows_and_more_ids() -> None:
    stream = named(30)[1]
    first = Evaluation(model(), stream, together=2)
    next(iter(first.records()))
    state = json.loads(json.dumps(first.state()))
    state["late"]["waiting"] = [row[:6] for row in state["late"]["waiting"]]
    state["late"]["done"] = []
    second = Evaluation(first.adapter.learner, stream, together=2)
    second.restore(state)
    list(second.records())
    assert second.late is not None
    assert len(second.late) == 0
    assert second.tracker.n == prequential(model(), stream).n_scored


def test_a_state_of_before_continues_as_before() -> None:
    rows, targets, _ = data()
    stream = ArrayStream(rows, targets)
    evaluation = Evaluation(model(), stream, delay=5)
    state = evaluation.state()
    del state["late"]
    evaluation.restore(state)
    assert evaluation.late is None
    assert len(list(evaluation.records())) == N


@pytest.mark.parametrize(
    ("stream", "options", "message"),
    [
        ({}, {"delay": timedelta(days=1)}, "rows need times"),
        ({}, {"delay": "72h"}, "a whole number >= 0 or a timedelta, got '72h'"),
        ({"times": [1, 2]}, {"delay": -timedelta(days=1)}, "must not be negative"),
        ({"times": [1, 2], "label_times": [1, 2]}, {"delay": 3}, "one of these three"),
        ({"ids": ["a", "b"]}, {"delay": 3}, "one of these three"),
        ({"ids": ["a", "b"]}, {"chunk": 2}, "chunk must be 1"),
        ({"ids": ["a", "b"]}, {"cost": 2}, "cost must be 1 with ids of rows"),
        ({"ids": ["a", "b"]}, {"learner": SGDClassifier()}, "SGDClassifier does not"),
        ({"times": [1, 2]}, {"delay": timedelta(1), "cost": 2}, "cost must be 1 with a delay"),
        (
            {"ids": ["a", "b"]},
            {"learner": KalmanClassifier(transition="chunk")},
            'transition="example"',
        ),
    ],
)
def test_late_labels_that_make_no_sense(stream: Any, options: Any, message: str) -> None:
    learner = options.pop("learner", None) or model()
    with pytest.raises(InvalidInput, match=message):
        Evaluation(learner, ArrayStream([[1.0], [2.0]], ["a", "b"], **stream), **options)


def test_times_of_labels_need_times_and_one_for_each_row() -> None:
    with pytest.raises(InvalidInput, match="label_times need times"):
        ArrayStream([[1.0]], ["a"], label_times=[1.0])
    with pytest.raises(InvalidInput, match="label_times must be"):
        ArrayStream([[1.0]], ["a"], [1.0], label_times=[1.0, 2.0])
    dates = np.array(["2024-01-01", "NaT"], "datetime64[D]")
    stream = ArrayStream(
        [[1.0], [2.0]], ["a", "b"], ["2024-01-01"] * 0 or [0, 1], label_times=dates
    )
    assert np.isnan(stream.label_times).tolist() == [False, True]
    assert stream.label_times[0] == 1704067200.0
