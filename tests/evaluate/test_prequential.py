"""The loop, against what it must be when written down plainly."""

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import linear_model, naive_bayes, preprocessing
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.metrics import accuracy_score, f1_score

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.errors import InvalidInput
from kalstream.evaluate import Evaluation, iter_prequential, prequential, select
from kalstream.evaluate.metrics import LabelScore, score_labels
from kalstream.streams import ArrayStream


def labelled(n: int, seed: int = 0, n_classes: int = 3, missing: float = 0.0) -> ArrayStream:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, 3))
    weights = rng.standard_normal((3, n_classes))
    targets = np.array([f"c{k}" for k in (rows @ weights).argmax(axis=1)], object)
    targets[rng.random(n) < missing] = None
    return ArrayStream(rows, targets, batch_size=17)


def numbers(n: int, seed: int = 0, missing: float = 0.0) -> ArrayStream:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, 3))
    targets = 5.0 + rows @ [1.0, -2.0, 0.5] + 0.1 * rng.standard_normal(n)
    targets[rng.random(n) < missing] = np.nan
    return ArrayStream(rows, targets, task="regression", batch_size=17)


class Recorder:
    """A learner that knows nothing and remembers what it was asked and taught."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[float]]] = []

    def predict(self, X: Any) -> Any:
        self.calls.append(("predict", X[:, 0].tolist()))
        return np.zeros(len(X), int)

    def partial_fit(self, X: Any, y: Any) -> None:
        self.calls.append(("learn", X[:, 0].tolist()))


def counted(n: int) -> ArrayStream:
    return ArrayStream(np.arange(n, dtype=float)[:, None], np.arange(n) % 2, batch_size=7)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 60),
    chunk=st.integers(1, 9),
    delay=st.integers(0, 30),
    cost=st.sampled_from([1, 2, 3, 2.5]),
    together=st.integers(1, 5),
    window=st.integers(1, 40),
    limit=st.none() | st.integers(1, 70),
)
def test_what_a_learner_is_asked_and_taught(n, chunk, delay, cost, together, window, limit) -> None:
    learner = Recorder()
    options = {"chunk": chunk, "delay": delay, "cost": cost, "together": together, "window": window}
    result = prequential(learner, counted(n), limit=limit, **options)
    n = min(n, limit or n)
    # Written down plainly: chunks are predicted in turn; a chunk is learned once delay more rows
    # have been predicted; of every cost chunks, one is learned; before that nothing is asked.
    expected, waiting, taught = [], [], False
    chunks = [list(map(float, range(i, min(i + chunk, n)))) for i in range(0, n, chunk)]
    due = [k for k in range(len(chunks)) if math.floor((k + 1) / cost) > math.floor(k / cost)]

    def learn_up_to(row: int) -> bool:
        learned = False
        while waiting and waiting[0][1][-1] < row:
            k, rows = waiting.pop(0)
            if k in due:
                expected.append(("learn", rows))
                learned = True
        return learned

    for k, rows in enumerate(chunks):
        if taught:
            expected.append(("predict", rows))
        waiting.append((k, rows))
        taught |= learn_up_to(rows[-1] + 1 - delay)
    learn_up_to(n)
    assert learner.calls == expected
    assert result.n_rows == n


def plain_scores(
    predicted_dicts: list[dict[Any, float]], labels: list[Any]
) -> tuple[float, float, float]:
    """Accuracy, log-loss and Brier score, row by row with dicts; not of the first row."""
    right = loss = brier = 0.0
    known = {labels[0]}
    for n, (p, label) in enumerate(zip(predicted_dicts[1:], labels[1:], strict=True), 1):
        p = {k: p.get(k, 0.0) for k in known}
        total = sum(p.values())
        p = {k: (v / total if total else 1.0 / len(p)) * n / (n + 1) for k, v in p.items()}
        if p and total:
            right += max(p, key=p.__getitem__) == label
        own = p.get(label, 1.0 / (n + 1))
        loss -= math.log(max(own, 1e-15))
        errors = [(v - (k == label)) ** 2 for k, v in p.items()]
        brier += sum(errors) + (1.0 / (n + 1) - (label not in p)) ** 2
        known.add(label)
    n = len(labels) - 1
    return right / n, loss / n, brier / n


@pytest.mark.parametrize("together", [1, 3, 64])
@pytest.mark.parametrize("n_classes", [1, 2, 6])
def test_metrics_against_plain_ones(together: int, n_classes: int) -> None:
    stream = labelled(150, n_classes=n_classes)
    options = {"features": "scaled", "recent_labels": False}  # which the loop cannot learn from
    learner, predicted_dicts = KalmanClassifier(**options), []
    for row, label in zip(stream.rows, stream.targets, strict=True):
        known = learner.__sklearn_is_fitted__()
        p = learner.predict_proba([row])[0] if known else []
        predicted_dicts.append(dict(zip(learner.classes_ if known else [], p, strict=True)))
        learner.partial_fit([row], [label])
    found = prequential(KalmanClassifier(**options), stream, together=together).total
    expected = plain_scores(predicted_dicts, stream.targets.tolist())
    keys = ("accuracy", "log_loss", "brier")
    assert [found[k] for k in keys] == pytest.approx(expected, rel=1e-6)
    assert found["code_length"] == pytest.approx(149 * found["log_loss"] / math.log(2))


def test_accuracy_and_f1_against_scikit_learn() -> None:
    stream = labelled(200, n_classes=4)
    learner = KalmanClassifier(features="scaled")
    records = list(iter_prequential(learner, stream, chunk=10))
    codes = np.concatenate([record.scored.codes for record in records])
    predicted = np.concatenate([record.scored.predicted for record in records])
    total = prequential(KalmanClassifier(features="scaled"), stream, chunk=10).total
    assert total["accuracy"] == pytest.approx(accuracy_score(codes, predicted))
    assert len(codes) == 190  # no class was known to the first chunk
    assert total["macro_f1"] == pytest.approx(f1_score(codes, predicted, average="macro"))


def test_calibration_error_against_a_plain_one() -> None:
    learner = KalmanClassifier(features="scaled")
    records = list(iter_prequential(learner, labelled(300), chunk=10))
    confidence = np.concatenate([record.scored.confidence for record in records])
    right = np.concatenate([r.scored.codes == r.scored.predicted for r in records])
    bins = np.minimum((confidence * 15).astype(int), 14)
    gaps = [abs(confidence[bins == b].sum() - right[bins == b].sum()) for b in range(15)]
    found = prequential(KalmanClassifier(features="scaled"), labelled(300), chunk=10).total["ece"]
    assert found == pytest.approx(sum(gaps) / 290)


@pytest.mark.parametrize("make", [lambda: labelled(230, missing=0.2), lambda: numbers(230)])
def test_windows_add_up_to_the_total(make: Any) -> None:
    stream = make()
    kind = KalmanRegressor if stream.task == "regression" else KalmanClassifier
    result = prequential(kind(features="scaled"), stream, window=50)
    assert [line["row"] for line in result.windows] == [50, 100, 150, 200, 230]
    assert sum(line["n"] for line in result.windows) == result.n_scored
    metric = "mae" if stream.task == "regression" else "log_loss"
    parts = [line["n"] * line["window"][metric] for line in result.windows]
    assert sum(parts) / result.n_scored == pytest.approx(result.total[metric])
    for name in result.baselines:
        assert result.windows[-1]["baselines"][name]["total"] == result.baselines[name]
    if stream.task == "classification":
        pairs = sum(count for line in result.windows for *_, count in line["confusion"])
        assert pairs == result.n_scored
        missing = sum(target is None for target in stream.targets)
        assert sum(line["missing"] for line in result.windows) == missing == 229 - result.n_scored
        labels = [new["label"] for line in result.windows for new in line["new_classes"]]
        assert labels == result.classes
    json.dumps(result.windows, allow_nan=False)


def test_simple_predictors_against_plain_ones() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.integers(4, size=60), rng.integers(1, 6, size=60)).tolist()
    stream = ArrayStream(np.zeros((len(labels), 1)), labels)
    found = prequential(KalmanClassifier(features="raw"), stream).baselines
    no_change = majority = 0
    for i, label in enumerate(labels[1:], 1):
        no_change += labels[i - 1] == label
        counts = [labels[:i].count(k) for k in range(4)]
        majority += counts[label] == max(counts) and _first_to(counts, labels[:i]) == label
    n = len(labels) - 1
    assert found["no_change"]["accuracy"] == pytest.approx(no_change / n)
    assert found["majority"]["accuracy"] == pytest.approx(majority / n)
    loss = 0.0
    for i, label in enumerate(labels[1:], 1):
        loss -= math.log(max(labels[:i].count(label), 1) / (i + 1))
    assert found["majority"]["log_loss"] == pytest.approx(loss / n)
    # All probabilities together are 1, whatever came: a proper distribution.
    for seen in range(1, 30):
        total = sum(_no_change_probability(labels[:seen], k) for k in range(4))
        assert total == pytest.approx(1.0 - 1.0 / (seen + 1))


def _first_to(counts: list[int], labels: list[int]) -> int:
    """The label that first had the largest count."""
    so_far = [0] * 4
    for label in labels:
        so_far[label] += 1
        if so_far[label] == max(counts):
            return label
    raise AssertionError


def _no_change_probability(labels: list[int], label: int) -> float:
    from kalstream.evaluate.naive import NaiveLabels

    codes = {k: i for i, k in enumerate(dict.fromkeys(labels))}
    if label not in codes:
        return 0.0
    naive = NaiveLabels()
    for each in labels:
        naive.learn(codes[each])
    naive.score(codes[label])
    return math.exp(naive.sums["no_change"][1])


def test_late_labels_are_late_for_the_simple_ones_too() -> None:
    stream = ArrayStream(np.zeros((40, 1)), [0, 1] * 20)
    at_once = prequential(KalmanClassifier(features="raw"), stream).baselines["no_change"]
    late = prequential(KalmanClassifier(features="raw"), stream, delay=1).baselines["no_change"]
    assert at_once["accuracy"] == 0.0
    assert late["accuracy"] == 1.0


def test_rows_before_anything_was_learned_are_not_scored() -> None:
    stream = labelled(100)
    late = prequential(KalmanClassifier(features="raw"), stream, delay=90)
    assert (late.n_rows, late.n_scored) == (100, 9)
    never = prequential(KalmanClassifier(features="raw"), stream, delay=200)
    assert (never.n_scored, never.total["accuracy"], never.total["log_loss"]) == (0, None, None)
    chunks = prequential(KalmanClassifier(features="raw"), stream, chunk=30)
    assert chunks.n_scored == 70


def test_a_label_that_was_not_learned_is_not_known() -> None:
    # Of every ten rows one is learned, and "b" comes first where none is.
    labels = ["a"] * 10 + ["b"] * 9 + ["c"] + ["b"] * 20
    rows = np.arange(40.0)[:, None] / 40.0
    result = prequential(KalmanClassifier(features="raw"), ArrayStream(rows, labels), cost=10)
    records = iter_prequential(KalmanClassifier(features="raw"), ArrayStream(rows, labels), cost=10)
    log_prob = np.concatenate([record.scored.log_prob for record in records])
    np.testing.assert_allclose(log_prob[:9], math.log(1 / 2))  # rows 10 to 18, after one label
    np.testing.assert_allclose(log_prob[10:20], math.log(1 / 3))  # rows 20 to 29, after two
    assert result.total["log_loss"] < 2.0
    assert result.n_scored == 30


def test_what_comes_before_an_error_is_learned() -> None:
    class Breaks(ArrayStream):
        def batches(self, start: int = 0) -> Any:
            yield from super().batches(start)
            raise InvalidInput("here it ends")

    stream = labelled(100)
    learner = KalmanClassifier(features="raw")
    with pytest.raises(InvalidInput, match="here it ends"):
        prequential(learner, Breaks(stream.rows, stream.targets, batch_size=9), window=1000)
    assert learner.n_seen_ == 100


def test_an_answer_for_other_rows_is_refused() -> None:
    class Short(Recorder):
        def predict(self, X: Any) -> Any:
            return np.zeros(1)

    with pytest.raises(InvalidInput, match="asked to predict 5 rows and predicted 1"):
        prequential(Short(), counted(20), chunk=5)


class Hidden:
    """A kalstream learner of which only scikit-learn's face shows."""

    def __init__(self, learner: Any) -> None:
        self.learner = learner

    def partial_fit(self, X: Any, y: Any) -> None:
        self.learner.partial_fit(X, y)

    def predict(self, X: Any) -> Any:
        return self.learner.predict(X)

    def predict_proba(self, X: Any) -> Any:
        return self.learner.predict_proba(X)

    @property
    def classes_(self) -> Any:
        return self.learner.classes_


def test_one_call_is_the_loop() -> None:
    stream = labelled(300, n_classes=5)
    options = {"random_state": 0, "recent_labels": False}  # which the loop cannot learn from
    fast = prequential(KalmanClassifier(**options), stream)
    slow = prequential(Hidden(KalmanClassifier(**options)), stream)
    for found, expected in zip(fast.total.values(), slow.total.values(), strict=True):
        assert (found is None) == (expected is None)
        assert expected is None or found == pytest.approx(expected, rel=1e-6)


def without_clock(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "clock"} for line in lines]


@settings(max_examples=25, deadline=None)
@given(
    stop=st.integers(1, 40),
    chunk=st.integers(1, 5),
    delay=st.integers(0, 12),
    window=st.integers(1, 60),
    forgetting=st.sampled_from(["mixture", "learned", 0.99]),
    regression=st.booleans(),
)
def test_an_evaluation_can_be_put_down_and_taken_up(
    stop, chunk, delay, window, forgetting, regression
) -> None:
    if regression and forgetting == "learned":
        forgetting = 0.9
    stream = numbers(150, missing=0.1) if regression else labelled(150, missing=0.1)
    kind = KalmanRegressor if regression else KalmanClassifier
    options = {"chunk": chunk, "delay": delay, "window": window, "together": 3}
    whole = Evaluation(kind(forgetting, "scaled"), stream, **options)
    lines = [record.line for record in whole.records() if record.line]
    whole.finish()

    first, again = Evaluation(kind(forgetting, "scaled"), stream, **options), []
    for i, record in enumerate(first.records()):
        again += [record.line] if record.line else []
        if i == stop:
            break
    state = json.loads(json.dumps(first.state(), allow_nan=False))
    second = Evaluation(copy.deepcopy(first.adapter.learner), stream, **options)
    second.restore(state)
    again += [record.line for record in second.records() if record.line]
    second.finish()
    assert without_clock(again) == without_clock(lines)
    assert without_clock([second.end_line()]) == without_clock([whole.end_line()])
    np.testing.assert_array_equal(second.adapter.learner.cov_, whole.adapter.learner.cov_)


# ---- learners of other libraries ------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 10])
def test_scikit_learn_classifiers(chunk: int) -> None:
    stream = labelled(400)
    classes = ["c0", "c1", "c2"]
    learner = SGDClassifier(loss="log_loss", random_state=0)
    result = prequential(learner, stream, chunk=chunk, classes=classes)
    assert result.total["accuracy"] > 0.6
    assert result.total["log_loss"] > 0.0
    with pytest.raises(InvalidInput, match=r"SGDClassifier.partial_fit needs all classes"):
        prequential(SGDClassifier(), stream)


def test_a_learner_without_probabilities() -> None:
    result = prequential(Hinge(), labelled(300), chunk=7, classes=["c0", "c1", "c2"])
    assert result.total["accuracy"] > 0.6
    for name in ("log_loss", "brier", "ece", "code_length"):
        assert result.total[name] is None
    assert result.windows[-1]["reliability"] is None
    assert "accuracy" in str(result)
    assert "log_loss" not in str(result)


class Hinge(SGDClassifier):
    """Support vector machine by SGD: labels only."""

    def __init__(self) -> None:
        super().__init__(loss="hinge", random_state=0)


def test_scikit_learn_regressor_has_no_density() -> None:
    result = prequential(SGDRegressor(random_state=0), numbers(400, missing=0.1))
    assert result.total["rmse"] < 4.0
    assert result.total["nlpd"] is None
    assert result.windows[0]["pit"] is None


def test_kalstream_regressor_covers() -> None:
    result = prequential(KalmanRegressor(features="scaled"), numbers(2000))
    assert result.total["rmse"] < 0.5
    assert 0.8 < result.total["coverage"] < 0.99
    assert result.total["nlpd"] < 0.5
    assert sum(result.windows[-1]["pit"]["count"]) == result.windows[-1]["n"]
    assert result.total["mae"] < result.baselines["mean"]["mae"]


def test_river_models() -> None:
    result = prequential(naive_bayes.GaussianNB(), labelled(300, missing=0.1))
    assert result.total["accuracy"] > 0.6
    assert result.total["log_loss"] < 1.2
    scaled = preprocessing.StandardScaler() | linear_model.PAClassifier()
    stream = labelled(300, n_classes=2)
    stream.targets[:] = [target == "c1" for target in stream.targets]
    assert prequential(scaled, stream, chunk=3).total["accuracy"] > 0.8
    regressor = preprocessing.StandardScaler() | linear_model.LinearRegression()
    assert prequential(regressor, numbers(300)).total["rmse"] < 5.0


def test_a_river_model_that_gives_labels_only() -> None:
    class Last:
        last = None

        def learn_one(self, x: Any, y: Any) -> None:
            self.last = y

        def predict_one(self, x: Any) -> Any:
            return self.last

    result = prequential(Last(), labelled(100), chunk=2)
    assert result.total["log_loss"] is None
    assert result.total["accuracy"] > 0.1


def test_a_learner_whose_probabilities_are_not_numbers_is_not_believed() -> None:
    class Broken(Recorder):
        classes_ = [0, 1]  # noqa: RUF012  (a list will do)

        def predict_proba(self, X: Any) -> Any:
            return np.full((len(X), 2), np.nan)

    total = prequential(Broken(), counted(50)).total
    assert total["accuracy"] == 0.0
    assert total["log_loss"] == pytest.approx(math.log(2.0), rel=0.1)


def test_times_reach_the_learner() -> None:
    stream = labelled(100)
    timed = ArrayStream(stream.rows, stream.targets, np.arange(100.0) * 1000.0)
    plain = prequential(KalmanClassifier(0.99, "scaled"), stream).total
    slow = prequential(KalmanClassifier(0.99, "scaled"), timed).total
    assert slow["log_loss"] > plain["log_loss"] + 0.1  # everything is forgotten between rows
    unit = KalmanClassifier(0.99, "scaled", time_unit=1000.0)
    assert prequential(unit, timed, chunk=2).n_rows == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, "chunk must be a whole number >= 1, got 0"),
        ({"delay": -1}, "delay must be"),
        ({"cost": 0.5}, "cost must be a number >= 1"),
        ({"limit": 0}, "limit must be"),
        ({"window": 1.5}, "window must be"),
    ],
)
def test_a_protocol_that_makes_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        prequential(KalmanClassifier(), labelled(10), **options)


def test_what_is_no_learner() -> None:
    with pytest.raises(InvalidInput, match="pass an instance"):
        prequential(KalmanClassifier, labelled(10))
    with pytest.raises(InvalidInput, match="neither partial_fit and predict nor learn_one"):
        prequential(object(), labelled(10))


def test_drift_and_half_lives_are_told() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((3000, 4))
    labels = (rows[:, 0] > 0).astype(int)
    labels[1500:] = 1 - labels[1500:]
    result = prequential(KalmanClassifier(features="scaled"), ArrayStream(rows, labels), window=100)
    alarms = [alarm["row"] for line in result.windows for alarm in line["drift"]]
    assert any(1500 <= row <= 1600 for row in alarms)
    assert not any(200 < row < 1500 for row in alarms)
    half_life = result.windows[-1]["half_life"]
    assert half_life["half_lives"] == [30.0, 300.0, 1000.0, 10000.0, 100000.0, "inf"]
    assert sum(half_life["weights"]) == pytest.approx(1.0)
    fixed = prequential(KalmanClassifier(0.99, "raw"), labelled(60), window=30).windows[0]
    assert fixed["half_life"]["half_lives"] == [pytest.approx(68.97, abs=0.01)]
    assert fixed["drift"] == []


# ---- choosing -------------------------------------------------------------------------------


def test_select_takes_the_shortest_code() -> None:
    stream = labelled(300)
    made = {"none": KalmanClassifier(0.5, "raw"), "all": lambda: KalmanClassifier(1.0, "raw")}
    found = select(made, stream)
    assert found.name == found.table[0]["name"] == "all"
    best = found.results["all"]
    assert found.table[0]["log_probability"] == pytest.approx(
        -best.total["code_length"] * math.log(2.0)
    )
    assert made["none"].n_seen_ == 0
    assert found.learner.n_seen_ == 300
    assert "all" in str(found)
    regress = select({"a": KalmanRegressor(1.0), "b": KalmanRegressor(0.5)}, numbers(200))
    assert regress.name == "a"


def test_select_needs_probabilities_and_candidates() -> None:
    with pytest.raises(InvalidInput, match="one candidate"):
        select({}, labelled(10))
    with pytest.raises(InvalidInput, match="'hinge' gives no probabilities"):
        select({"hinge": Hinge()}, labelled(50), classes=["c0", "c1", "c2"])


def test_probabilities_that_are_hardly_numbers() -> None:
    """A learner that is sure of a class not seen yet: the rest adds up to less than 1 / inf."""
    probabilities = np.array([[5e-324, 1e-323, 1.0]])
    scored = score_labels(np.array([1]), probabilities, np.arange(3), np.array([3]), np.array([2]))
    np.testing.assert_allclose(np.exp(scored.log_prob), 0.75 * 2.0 / 3.0)
    np.testing.assert_allclose(scored.confidence, 0.5)
    LabelScore().add(scored)
