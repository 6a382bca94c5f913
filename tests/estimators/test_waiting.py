"""Rows that wait: any program against a plain reference, ids of all kinds, memory, and files."""

from __future__ import annotations

import copy
import pickle
import sys
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from threading import Thread
from uuid import UUID

import numpy as np
import pytest
from sklearn.base import clone

from kalstream import KalmanClassifier
from kalstream.core import GaussianClasses, LabelChain, Linear, Neighbours
from kalstream.errors import CheckpointError, InvalidInput
from kalstream.estimators import _waiting, checkpoint
from robustness.interrupts import interrupt_at

EXPERTS = (None, [], [LabelChain()], [Linear(), Neighbours(limit=7)], [GaussianClasses()])


class Reference:
    """The rows that wait, as a plain list of records, and the counts."""

    def __init__(self, max_waiting, max_age, remembered) -> None:
        self.bounds, self.remembered = (max_waiting, max_age), remembered
        self.rows, self.ended = [], []
        names = ("waiting", "asked", "told", "expired")
        more = ("repeated", "corrected", "too_late", "unknown")
        self.counts = dict.fromkeys((*names, *more), 0)

    def ask(self, key, time) -> None:
        self.rows.append({"key": key, "time": time, "fate": "waits", "place": len(self.rows)})
        self.counts["asked"] += 1
        waiting = [row for row in self.rows if row["fate"] == "waits"]
        for row in list(waiting):
            age = len(self.rows) - 1 - row["place"] if time is None else time - row["time"]
            too_old = self.bounds[1] is not None and age > self.bounds[1]
            if too_old or len(waiting) > self.bounds[0]:
                waiting.remove(row)
                self.end(row, "expired")
        self.counts["waiting"] = len(waiting)

    def end(self, row, fate) -> None:
        row["fate"] = fate
        self.counts[fate] += 1
        self.ended.append(row)
        for old in self.ended[: -self.remembered]:
            old["fate"] = "forgotten"

    def tell(self, key, label) -> None:
        row = next((r for r in reversed(self.rows) if r["key"] == key), {"fate": "forgotten"})
        if row["fate"] == "waits":
            self.end(row, "told")
            self.counts["waiting"] -= 1
        elif row["fate"] == "told":
            self.counts["repeated" if row["label"] == label else "corrected"] += 1
        else:
            self.counts["too_late" if row["fate"] == "expired" else "unknown"] += 1
        if row["fate"] == "told":
            row["label"] = label


def events_of(rng, reference, n, timed):
    """Random events (id, row, time) or (id, label); ids come again once they are free."""
    events, time = [], 0.0
    for _ in range(n):
        if rng.random() < 0.5:
            taken = {row["key"] for row in reference.rows if row["fate"] == "waits"}
            key = next(k for k in rng.permutation(60).tolist() if k not in taken)
            time += float(rng.integers(3))
            event = (key, rng.standard_normal(2), time if timed else None)
            reference.ask(key, event[2])
        else:
            event = (int(rng.integers(60)), str(rng.choice(["a", "b", "c"])))
            reference.tell(*event)
        events.append(event)
    return events


def play(model, events):
    """All events in one call; returns one dict of probabilities for each row."""
    asked = [event for event in events if len(event) == 3]
    told = [event for event in events if len(event) == 2]
    if not asked:
        model.tell([e[0] for e in told], [e[1] for e in told], unknown="skip")
        return []
    before = np.cumsum([len(event) == 3 for event in events])
    before = [int(k) for k, event in zip(before, events, strict=True) if len(event) == 2]
    keys, rows, times = zip(*asked, strict=True)
    time = None if times[0] is None else times
    made = model.ask_and_tell(
        np.stack(rows),
        [e[0] for e in told],
        [e[1] for e in told],
        before,
        ids=list(keys),
        time=time,
        unknown="skip",
    )
    names = model._model.targets.labels.classes.tolist()
    return [dict(zip(names, row.tolist(), strict=True)) for row in made]


def play_interrupted(model, events, moment):
    """As `play`, after a call that was interrupted at some bytecode, and sent again if need be."""
    whole = model.snapshot() if "_published" in vars(model) else clone(model)
    made, before = play(whole, events), model.__dict__.get("_published")
    before = before and before.value
    interrupt_at(lambda: play(model, events), moment)
    after = model.__dict__.get("_published")
    if (after and after.value) is before:
        return play(model, events)
    assert asdict_of(model) == asdict_of(whole)
    return made


def check_program(seed, folder, monkeypatch) -> None:
    rng = np.random.default_rng(seed)
    timed, remembered = bool(rng.integers(2)), int(rng.choice([3, 12, 1000]))
    monkeypatch.setattr(_waiting, "_REMEMBERED", remembered)
    bounds = int(rng.choice([2, 7, 40])), [None, 5, 11][rng.integers(3)]
    reference = Reference(*bounds, remembered)
    events = events_of(rng, reference, 90, timed)
    first = next(k for k, event in enumerate(events) if len(event) == 3)
    for event in events[:first]:  # a model that was not asked refuses labels
        reference.counts["unknown"] -= len(event) == 2
    events = events[first:]
    settings = {"max_waiting": bounds[0], "max_age": bounds[1]}
    settings["experts"] = EXPERTS[rng.integers(len(EXPERTS))]
    one, many = (KalmanClassifier("mixture", "raw", **settings) for _ in range(2))
    together, apart, start = [], [], 0
    while start < len(events):
        stop = start + int(rng.integers(1, 30))
        if rng.random() < 0.1:
            together += play_interrupted(one, events[start:stop], int(10 ** rng.uniform(0.0, 4.0)))
        else:
            together += play(one, events[start:stop])
        for event in events[start:stop]:
            apart += play(many, [event])
        start, kind, left = stop, rng.integers(4), one
        if kind == 0:
            one.save(folder / "model")
            one = KalmanClassifier.load(folder / "model")
        elif kind in (1, 2):
            one = copy.deepcopy(left) if kind == 1 else pickle.loads(pickle.dumps(left))
        else:
            one = left.snapshot()
        # What was left behind goes its own way, and the copy does not notice.
        left.ask(
            np.ones((5, 2)),
            ids=[f"{start} {k}" for k in range(5)],
            time=[1e6] * 5 if timed else None,
        )
    for a, b in zip(together, apart, strict=True):
        for name in a | b:
            assert a.get(name, 0.0) == pytest.approx(b.get(name, 0.0), abs=1e-12)
    assert asdict_of(one) == asdict_of(many) == reference.counts


def asdict_of(model):
    return asdict(model.waiting_)


@pytest.mark.parametrize("seed", range(40))
def test_any_program_equals_the_reference(seed, tmp_path, monkeypatch) -> None:
    check_program(seed, tmp_path, monkeypatch)


@pytest.mark.slow
def test_five_hundred_programs(tmp_path, monkeypatch) -> None:
    for seed in range(40, 540):
        check_program(seed, tmp_path, monkeypatch)


# ---- ids -----------------------------------------------------------------------------------

IDS = [
    *(7, -(2**70), 2.5, -0.1, float("inf"), "a", "\ud800", "", b"\x00a", True),
    (1, ("b", b"c", 0.5), date(2024, 2, 29)),
    UUID(int=5),
    datetime(2024, 2, 29, 1, 2, 3, 4),
    datetime(2024, 3, 1, tzinfo=timezone(timedelta(hours=2))),
    date(2024, 2, 29),
    Decimal("0.10"),
]


def test_ids_of_every_kind_are_saved(tmp_path) -> None:
    model = KalmanClassifier(features="raw")
    model.ask([[1.0]] * len(IDS), ids=IDS)
    model.save(tmp_path / "model")
    other = KalmanClassifier.load(tmp_path / "model")
    kept = {type(key): key for key in other._model.store.ids}
    assert kept.keys() == {type(key) for key in IDS}
    other.tell(IDS, ["up"] * len(IDS))
    assert other.waiting_.told == len(IDS)


def test_equal_times_are_one_id() -> None:
    model = KalmanClassifier(features="raw")
    model.ask([[1.0]], ids=[datetime(2024, 3, 1, 2, tzinfo=timezone(timedelta(hours=2)))])
    model.tell([datetime(2024, 3, 1, tzinfo=UTC)], ["up"])
    assert model.waiting_.told == 1


def test_ids_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    model = KalmanClassifier(features="raw")
    model.ask([[1.0]], ids=[pandas.Timestamp("2024-03-01 02:00")])
    model.tell([datetime(2024, 3, 1, 2)], ["up"])
    for key in (pandas.NA, pandas.NaT, pandas.Timestamp("2024-03-01 02:00:00.000000001")):
        with pytest.raises(InvalidInput, match="cannot be an id; use numbers, strings"):
            model.ask([[1.0]], ids=[key])


@pytest.mark.parametrize(
    "ids",
    [
        [(1, float("nan"))],
        [Decimal("nan")],
        [Decimal("snan")],
        [None],
        [1j],
        [frozenset([1])],
        [np.datetime64("2024-03-01")],
        np.array(["2024-03-01"], "datetime64[ns]"),
        [object()],
        [timedelta(1)],
    ],
)
def test_other_ids_are_refused(ids) -> None:
    model = KalmanClassifier(features="raw")
    model.ask([[1.0]], ids=["a"])
    before = model._model
    for call in (lambda: model.ask([[1.0]], ids), lambda: model.tell(ids, ["up"])):
        with pytest.raises(InvalidInput, match="cannot be an id; use numbers, strings"):
            call()
    assert model._model is before


# ---- memory, copies, threads, bounds --------------------------------------------------------


def test_memory_follows_what_waits(monkeypatch, tmp_path) -> None:
    """One row in 300 never gets a label."""
    monkeypatch.setattr(_waiting, "_REMEMBERED", 100)
    model = KalmanClassifier(0.99, "raw")
    for start in range(0, 12_000, 300):
        model.ask(np.ones((300, 1)))
        model.tell(range(start + 1, start + 300), ["up"] * 299)
    store = model._model.store
    assert (len(store.rows), len(store.ids), len(store.done)) == (140, 140, 100)
    model.save(tmp_path / "model")
    assert (tmp_path / "model").stat().st_size < 40_000


def test_a_snapshot_keeps_its_ids(monkeypatch) -> None:
    monkeypatch.setattr(_waiting, "_REMEMBERED", 10)
    model = KalmanClassifier(0.99, "raw")
    model.ask(np.ones((2000, 1)))
    other = model.snapshot()
    model.tell(range(2000), ["up"] * 2000)
    assert other.tell(range(2000), ["up"] * 2000).waiting_.told == 2000


def test_a_model_and_its_snapshot_in_two_threads() -> None:
    model = KalmanClassifier(0.99, "raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
    model.ask(np.ones((5000, 1)), ids=[f"old {k}" for k in range(5000)])
    failed, interval = [], sys.getswitchinterval()

    def work(one, name) -> None:
        try:
            for i in range(150):
                one.ask([[1.0]], ids=[(name, i)])
                model.snapshot().ask([[1.0]], ids=["mine"])
        except Exception as error:
            failed.append(error)

    threads = [Thread(target=work, args=(m, k)) for k, m in enumerate((model, model.snapshot()))]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed
    assert model.waiting_.waiting == 5150


@pytest.mark.parametrize("bounds", [{"max_waiting": 2}, {"max_age": 1}])
def test_bounds_act_row_by_row(bounds) -> None:
    model = KalmanClassifier(features="raw", **bounds)
    model.ask_and_tell([[1.0]] * 5, [0, 4], ["up", "up"], before=[5, 5])
    assert (model.waiting_.too_late, model.waiting_.told, model.waiting_.expired) == (1, 1, 3)


def test_an_id_may_be_used_again_in_one_call() -> None:
    model = KalmanClassifier(features="raw")
    model.ask_and_tell([[1.0]] * 2, ["a", "a"], ["up", "up"], before=[1, 2], ids=["a", "a"])
    assert model.waiting_.told == 2


def test_an_interrupt_leaves_the_model_before_the_call(monkeypatch) -> None:
    model = KalmanClassifier(0.99, "raw")
    model.ask(np.ones((20, 1)))
    before, end = model._model, _waiting.Book._end

    def interrupted(book, number, *parts):
        end(book, number, *parts)
        if number == 10:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_waiting.Book, "_end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.tell(range(20), ["up"] * 20)
    assert model._model is before
    assert model.tell(range(20), ["up"] * 20).waiting_.told == 20


@pytest.mark.parametrize("times", [[100.0, 50.0], [-1e9, 3.0]])
def test_times_that_decrease_are_refused(times) -> None:
    model = KalmanClassifier(features="raw")
    model.ask([[1.0]], time=[1.0])
    before = model._model
    with pytest.raises(InvalidInput, match="sort the rows by time"):
        model.ask([[1.0]] * 2, time=times)
    assert model._model is before


def test_a_prediction_that_keeps_nothing() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 2)), rng.choice(["a", "b"], 60)
    model = KalmanClassifier(random_state=0)
    assert model.ask(X[:3], keep=False).shape == (3, 0)
    with pytest.raises(InvalidInput, match="call ask first"):
        model.tell([0], ["a"])
    model.ask(X[:50], time=np.arange(50.0))
    model.tell(range(30), y[:30])
    before = model._model
    made = model.ask(X[50:], time=np.arange(50.0, 60.0), keep=False)
    assert model._model is before
    np.testing.assert_array_equal(made, model.ask(X[50:], time=np.arange(50.0, 60.0)))


# ---- files ---------------------------------------------------------------------------------


def test_a_model_that_could_not_be_read_is_not_saved(tmp_path) -> None:
    model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
    model.save(tmp_path / "model")
    good = (tmp_path / "model").read_bytes()
    model._published.update(lambda m: (m.but(last=-5), None))
    with pytest.raises(CheckpointError, match=r"nothing was written .*last must be"):
        model.save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == good


def test_a_header_that_is_too_long(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoint, "_LONGEST_HEADER", 1000)
    monkeypatch.setattr(checkpoint, "_laid_out", None)  # safetensors could not read such a file
    with pytest.raises(CheckpointError, match="turn its long lists into numpy arrays"):
        checkpoint.write(tmp_path / "file", "Run", list(range(1000)))
    assert not (tmp_path / "file").exists()
