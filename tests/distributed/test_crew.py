"""Keys in several workers, without Ray: the same numbers, whoever is lost and whatever fails."""

import gc
import os
import pickle
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from estimators.test_keyed import BASE, stream
from kalstream import KalmanRegressor, KeyedClassifier, KeyedRegressor
from kalstream.core.keyed import Keyed
from kalstream.distributed import OnRay
from kalstream.distributed._crew import Crew, Lost
from kalstream.distributed._shard import Shard
from kalstream.errors import InvalidInput, KalstreamError, NumericalError


class Frail:
    """Workers in this process. They see copies, and can be lost before or after a call has run."""

    def __init__(self, arguments: Any) -> None:
        self.arguments, self.n_started, self.calls = arguments, 0, 0
        self.lose: dict[int, bool] = {}  # number of the call -> whether it still runs
        self.fail: set[int] = set()  # numbers of calls
        self.workers: list[Any] = []

    def start(self) -> Any:
        self.n_started += 1
        worker = [Shard(*self.arguments), True]
        self.workers.append(worker)
        return worker

    def call(self, worker: Any, method: str, *arguments: Any) -> Any:
        shard, is_alive = worker
        if not is_alive:
            raise Lost
        self.calls += 1
        ending = self.lose.pop(self.calls, None)
        if ending is not None:
            worker[1] = False
        if ending is False:
            return worker, Lost()
        if self.calls in self.fail:
            return worker, NumericalError("overflow")
        try:
            answer = getattr(shard, method)(*pickle.loads(pickle.dumps(arguments)))
        except Exception as error:
            return worker, error
        return worker, answer

    def answer(self, call: Any) -> Any:
        worker, answer = call
        if not worker[1]:
            raise Lost
        if isinstance(answer, Exception):
            raise answer
        return pickle.loads(pickle.dumps(answer))


class Place:
    def __init__(self, shards: int = 2, every: int = 1000, folder: str | None = None) -> None:
        self.shards, self.every, self.folder = shards, every, folder
        self.workers: Any = None

    def records(self, keyed: Keyed, max_keys: int | None) -> Any:
        self.workers = Frail((keyed, max_keys))
        return Crew(self.workers, self.shards, self.every, self.folder).start()


def passed(model: Any, data: Any, sizes: Any) -> list[Any]:
    made, start, sizes = [], 0, deque(sizes)
    while start < len(data[0]):
        stop = start + sizes[0]
        sizes.rotate(-1)
        made.append(model.predict_then_learn(*(part[start:stop] for part in data)))
        start = stop
    return made


def same(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def numbers() -> Any:
    X, _, keys = stream(700)
    return X, X[:, 0] * (1 + keys) + np.random.default_rng(0).standard_normal(700), keys


CLASSES, NUMBERS = stream(700), numbers()
KINDS = [
    (KeyedClassifier(BASE), CLASSES),
    (KeyedRegressor(KalmanRegressor(random_state=0)), NUMBERS),
]


@pytest.mark.parametrize(("model", "data"), KINDS)
@pytest.mark.parametrize("shards", [1, 3])
def test_any_number_of_workers_gives_the_same_bits(model: Any, data: Any, shards: int) -> None:
    sizes = [1, 50, 333]
    alone = model.spread(None)
    expected = passed(alone, data, sizes)
    spread = model.spread(Place(shards))
    same(passed(spread, data, sizes), expected)
    assert {*spread.keys_} == {*alone.keys_}
    assert spread.n_keys_ == alone.n_keys_
    assert spread.nbytes_ == alone.nbytes_
    assert spread.spread_weights_ == alone.spread_weights_
    queries = data[0][:50], data[2][:50]
    same([spread.predict(*queries)], [alone.predict(*queries)])


@pytest.mark.parametrize(("model", "data"), KINDS)
@pytest.mark.parametrize("every", [60, 1000])
@pytest.mark.parametrize("runs", [False, True])
def test_lost_workers_change_nothing(
    model: Any, data: Any, every: int, runs: bool, tmp_path: Path
) -> None:
    """Twenty times, by the call that was lost with the worker; it may have run before."""
    sizes = [7, 31]
    expected = passed(model.spread(None), data, sizes)
    place = Place(3, every, str(tmp_path))
    spread = model.spread(place)
    made: list[Any] = []
    rng, start, k = np.random.default_rng(every), 0, 0
    while start < 700:
        if place.workers is not None and k % 2:
            place.workers.lose[place.workers.calls + int(rng.integers(1, 4))] = runs
        stop = start + sizes[k % 2]
        made.append(spread.predict_then_learn(*(part[start:stop] for part in data)))
        start, k = stop, k + 1
    same(made, expected)
    assert place.workers.n_started > 20
    files = os.listdir(next(tmp_path.iterdir()))
    assert bool(files) == (every == 60)


def test_all_workers_at_once(tmp_path: Path) -> None:
    place = Place(3, 100, str(tmp_path))
    spread, alone = KeyedClassifier(BASE).spread(place), KeyedClassifier(BASE)
    first, last = ([part[at] for part in CLASSES] for at in (slice(400), slice(400, 700)))
    for each in (spread, alone):
        each.partial_fit(*first)
    for worker in place.workers.workers:
        worker[1] = False
    same([spread.predict_then_learn(*last)], [alone.predict_then_learn(*last)])
    for worker in place.workers.workers:
        worker[1] = False
    queries = CLASSES[0][:50], CLASSES[2][:50]
    same([spread.predict_proba(*queries)], [alone.predict_proba(*queries)])


def test_a_snapshot_survives_lost_workers() -> None:
    place = Place(2)
    spread = KeyedClassifier(BASE).spread(place).partial_fit(*(part[:300] for part in CLASSES))
    snapshot, queries = spread.snapshot(), (CLASSES[0][:50], CLASSES[2][:50])
    expected = snapshot.predict_proba(*queries)
    spread.partial_fit(*(part[300:] for part in CLASSES))
    after = spread.predict_proba(*queries)
    for worker in place.workers.workers:
        worker[1] = False
    same([snapshot.predict_proba(*queries), spread.predict_proba(*queries)], [expected, after])


def test_workers_keep_only_versions_that_somebody_holds() -> None:
    place = Place(2)
    spread = KeyedClassifier(BASE).spread(place)
    passed(spread, CLASSES, [5])
    gc.collect()
    for shard, _ in place.workers.workers:
        assert len(shard._versions) <= 4


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_call_that_fails_changes_nothing(call: int) -> None:
    place = Place(2)
    first, more = ([part[at] for part in CLASSES] for at in (slice(500), slice(500, 530)))
    spread, alone = (KeyedClassifier(BASE).spread(each) for each in (place, None))
    for each in (spread, alone):
        each.partial_fit(*first)
    place.workers.fail = {place.workers.calls + call}
    with pytest.raises(NumericalError, match="overflow"):
        spread.partial_fit(*(np.tile(part, (20, 1)[: part.ndim]) for part in more))
    assert spread.n_seen_ == 500
    same([spread.predict_then_learn(*more)], [alone.predict_then_learn(*more)])


def test_keys_move_between_places_and_files(tmp_path: Path) -> None:
    alone = KeyedClassifier(BASE, max_keys=4).partial_fit(*(part[:300] for part in CLASSES))
    two = alone.spread(Place(2))
    two.save(tmp_path / "model")
    five = KeyedClassifier.load(tmp_path / "model").spread(Place(5))
    back = five.spread(None)
    more = [part[300:] for part in CLASSES]
    expected = alone.predict_then_learn(*more)
    for each in (two, five, back):
        same([each.predict_then_learn(*more)], [expected])


def test_keys_that_are_equal_are_one_key() -> None:
    X, y = np.random.default_rng(0).standard_normal((60, 2)), np.array(["a", "b"] * 30)
    model = KeyedClassifier(BASE).spread(Place(7)).partial_fit(X, y, [1, 1.0, True] * 20)
    assert model.n_keys_ == 1


def test_keys_elsewhere_are_not_pickled() -> None:
    spread = KeyedClassifier(BASE).spread(Place(2)).partial_fit(*CLASSES)
    with pytest.raises(KalstreamError, match=r"spread\(None\)"):
        pickle.dumps(spread)


def test_a_worker_that_is_lost_again_and_again() -> None:
    place = Place(1)
    spread = KeyedClassifier(BASE).spread(place).partial_fit(*(part[:300] for part in CLASSES))
    place.workers.lose = dict.fromkeys(range(100000), False)
    with pytest.raises(KalstreamError, match="the model that was saved last"):
        spread.partial_fit(*(part[300:] for part in CLASSES))
    place.workers.lose = {}
    assert spread.n_seen_ == 300
    spread.partial_fit(*(part[300:] for part in CLASSES))


@pytest.mark.parametrize("key", [frozenset([1]), (1, frozenset()), object()])
def test_keys_that_no_file_can_hold_are_refused_at_once(key: Any) -> None:
    spread = KeyedClassifier(BASE).spread(Place(2)).partial_fit(*CLASSES)
    with pytest.raises(InvalidInput, match="numbers, strings, bytes or tuples"):
        spread.partial_fit(CLASSES[0][:1], ["a"], [key])
    assert spread.n_seen_ == 700


@pytest.mark.parametrize("bad", [{"shards": 0}, {"shards": 1.5}, {"every": 0}])
def test_places_that_make_no_sense_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        OnRay(**bad)
