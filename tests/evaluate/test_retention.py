"""Near-future accuracy and retention, against loops written down plainly."""

import copy
from typing import Any

import numpy as np
import pytest
from river import naive_bayes
from sklearn.linear_model import SGDClassifier

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.errors import InvalidInput
from kalstream.evaluate import Evaluation, adapt, iter_retention, prequential, retention
from kalstream.streams import ArrayStream, LaterRows


def runs_of_labels(n: int = 3000, length: int = 50) -> ArrayStream:
    """Columns say nothing; each label of two stays for a run of rows."""
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.integers(0, 2, n // length), length)
    return ArrayStream(rng.standard_normal((n, 2)), labels)


def turning(n: int = 2000) -> ArrayStream:
    """Another column counts in the second half, and the one that counted before is small."""
    rng = np.random.default_rng(1)
    rows, second = rng.standard_normal((n, 2)), np.arange(n) >= n // 2
    labels = np.where(second, rows[:, 1] > 0, rows[:, 0] > 0)
    rows[second, 0] *= 0.01
    rows[~second, 1] *= 0.01
    return ArrayStream(rows, labels.astype(int), batch_size=170)


class LastLabel:
    """Repeats the last label."""

    def partial_fit(self, X: Any, y: Any) -> None:
        self.last_ = y[-1]

    def predict(self, X: Any) -> Any:
        return [self.last_] * len(X)


class Nearest:
    """Label of the nearest of the last rows; it remembers what it was taught and asked."""

    def __init__(self, last: int = 10_000) -> None:
        self.last = last
        self.taught: list[tuple[float, ...]] = []
        self.asked: list[tuple[float, ...]] = []
        self.labels: list[Any] = []

    def partial_fit(self, X: Any, y: Any) -> None:
        self.taught += map(tuple, X.tolist())
        self.labels += y.tolist()
        self.fitted_ = True

    def predict(self, X: Any) -> Any:
        self.asked += map(tuple, X.tolist())
        near = (
            np.square(X[:, None] - np.array(self.taught[-self.last :])).sum(axis=2).argmin(axis=1)
        )
        return [self.labels[-self.last :][i] for i in near]


# ---- near-future accuracy ---------------------------------------------------------------------


def test_repeating_labels_is_accurate_online_and_at_chance_in_the_near_future() -> None:
    online = prequential(LastLabel(), runs_of_labels())
    later = prequential(LastLabel(), runs_of_labels(), ahead=100)
    assert online.total["accuracy"] > 0.95
    assert abs(later.total["accuracy"] - 0.5) < 0.1
    # The baseline has the same handicap.
    assert later.baselines["no_change"]["accuracy"] == later.total["accuracy"]


@pytest.mark.parametrize(
    "learner",
    [
        KalmanClassifier(random_state=0),
        KalmanClassifier(recent_labels=False, transition="chunk", random_state=0),
        SGDClassifier(loss="log_loss", random_state=0),
        LastLabel(),
        naive_bayes.GaussianNB(),
    ],
)
@pytest.mark.parametrize(("ahead", "chunk"), [(1, 1), (7, 1), (20, 5), (3, 5)])
def test_a_row_is_predicted_from_the_rows_before_those_ahead_of_it(learner, ahead, chunk) -> None:
    stream, n, classes = turning(120), 120, [0, 1]
    got = Evaluation(copy.deepcopy(learner), stream, ahead=ahead, chunk=chunk, classes=classes)
    records = list(got.records())
    got.finish()
    other = adapt(copy.deepcopy(learner), stream, classes)
    (rows,) = stream.batches()
    learned, hits = 0, 0
    for first in range(0, n, chunk):
        # Learn every chunk that ends ahead rows before this one, at once and unaware of the rest.
        while learned + chunk <= first - ahead:
            other.learn(rows[learned : learned + chunk])
            learned += chunk
        if learned:
            answer = other.predict(rows[first : first + chunk])
            hits += (answer.point_predictions() == rows[first : first + chunk].targets).sum()
    assert sum((each.scored.codes == each.scored.predicted).sum() for each in records) == hits
    while learned < n:
        other.learn(rows[learned : learned + chunk])
        learned += chunk
    a, b = got.adapter.predict(rows), other.predict(rows)
    assert (a.point_predictions() == b.point_predictions()).all()


def test_a_learner_that_keeps_rows_learns_as_it_does_online() -> None:
    online, later = (KalmanClassifier(random_state=0) for _ in range(2))
    prequential(online, turning(400))
    ahead = prequential(later, turning(400), ahead=30)
    late = prequential(KalmanClassifier(random_state=0), turning(400), delay=30)
    rows = turning().rows[::10]
    np.testing.assert_allclose(later.predict_proba(rows), online.predict_proba(rows), rtol=1e-9)
    assert ahead.n_scored == late.n_scored
    assert abs(ahead.total["log_loss"] - late.total["log_loss"]) > 1e-3


def test_resumed_near_future() -> None:
    whole = prequential(KalmanClassifier(random_state=0), turning(300), ahead=40, window=100)
    first = Evaluation(
        KalmanClassifier(random_state=0), turning(300), ahead=40, window=100, limit=150
    )
    list(first.records())
    second = Evaluation(first.learner, turning(300), ahead=40, window=100)
    second.restore(first.state())
    list(second.records())
    assert second.tracker.values() == whole.total


@pytest.mark.parametrize("options", [{"ahead": -1}, {"ahead": 2.5}, {"ahead": 3, "delay": 2}])
def test_wrong_distances(options) -> None:
    with pytest.raises(InvalidInput, match="ahead"):
        prequential(LastLabel(), turning(), **options)


# ---- retention --------------------------------------------------------------------------------


def test_a_learner_that_forgets_loses_retention() -> None:
    forgets, keeps = (
        list(iter_retention(learner, turning(), hold_out=0.2))
        for learner in (Nearest(100), Nearest())
    )
    assert [at.row for at in forgets] == [1000, 2000]
    assert forgets[0].values["accuracy"] > 0.9
    assert forgets[1].values["accuracy"] < 0.8  # of the old rows a half is right by chance
    assert forgets[1].online["accuracy"] > 0.9
    assert keeps[1].values["accuracy"] > 0.95
    old = forgets[1].rows < 1000
    right = forgets[1].scored.codes == forgets[1].scored.predicted
    assert right[~old].mean() > 0.9 > 0.65 > right[old].mean()


@pytest.mark.parametrize(
    "protocol",
    [{}, {"chunk": 7}, {"delay": 30}, {"limit": 777}, {"window": 90, "chunk": 8}, {"most": 20}],
)
def test_held_out_rows_are_never_learned_and_are_of_the_past(protocol) -> None:
    stream, learner, held = turning(), Nearest(), set()
    for at in iter_retention(learner, stream, **{"window": 100, **protocol}):
        numbers = at.rows.tolist()
        assert numbers == sorted(set(numbers))
        assert len(numbers) == len(at.scored.codes) <= protocol.get("most", 1000)
        assert numbers[-1] < at.row
        held |= set(numbers)
        assert learner.asked[-len(numbers) :] == [tuple(stream.rows[i]) for i in numbers]
    n = protocol.get("limit", 2000)
    assert at.row == n
    hidden = {tuple(stream.rows[i]) for i in held}
    assert not hidden & set(learner.taught)
    if "most" not in protocol:  # then others, which were replaced, are not learned either
        assert sorted(learner.taught) == sorted({*map(tuple, stream.rows[:n])} - hidden)
        assert 0.03 < len(held) / n < 0.07


def test_the_sample_is_of_rows_of_all_ages() -> None:
    ages = np.zeros(10)
    for seed in range(60):
        end = retention(LastLabel(), turning(), most=40, window=500, random_state=seed)
        assert len(end.rows) == 40
        ages += np.bincount(end.rows // 200, minlength=10)
    assert np.abs(ages / ages.sum() - 0.1).max() < 0.025  # 5 standard deviations


@pytest.mark.parametrize(
    "learner", [KalmanClassifier(random_state=0), SGDClassifier(random_state=0)]
)
def test_checkpoints_change_nothing(learner) -> None:
    often = retention(copy.deepcopy(learner), turning(), window=50, classes=[0, 1])
    once = retention(copy.deepcopy(learner), turning(), window=2000, classes=[0, 1])
    assert often.baselines == once.baselines
    for one, other in [(often.values, once.values), (often.online, once.online)]:
        defined = {name for name in one if one[name] is not None}
        assert defined == {name for name in other if other[name] is not None}
        for name in defined:  # pieces of other sizes round otherwise
            assert one[name] == pytest.approx(other[name], rel=1e-9)


def test_numbers_times_and_later_rows() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((600, 2))
    stream = ArrayStream(rows, rows @ [1.0, 2.0], np.arange(600.0), task="regression")
    learner = KalmanRegressor(features="raw")
    end = retention(learner, LaterRows(stream, 1000), window=100)
    assert end.scored is None
    assert end.row == 1600
    assert end.rows.min() >= 1000
    assert end.values["rmse"] < 0.1 < end.baselines["mean"]["rmse"]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"hold_out": 0.0}, "hold_out"), ({"hold_out": 1.0}, "hold_out"), ({"most": 0}, "most")],
)
def test_wrong_samples(options, named) -> None:
    with pytest.raises(InvalidInput, match=named):
        retention(LastLabel(), turning(), **options)


def test_streams_without_a_held_out_row_or_with_late_labels() -> None:
    with pytest.raises(InvalidInput, match="larger hold_out"):
        retention(LastLabel(), ([[0.0]], [1]), hold_out=0.01)
    with pytest.raises(InvalidInput, match="delay="):
        retention(LastLabel(), ArrayStream([[0.0]], [1], ids=["a"]))
