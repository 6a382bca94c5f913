"""Asking and telling: schedules of all kinds against the reference that keeps everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.core import Mixture
from kalstream.core._kernels.judging import choose_rows
from kalstream.core.judging_reference import LateReference
from kalstream.errors import InvalidInput

HALF_LIVES = (3.0, 40.0, 1000.0, math.inf)
LIKELIHOODS = ("onehot", "softmax", "softmax-label")


def policies(rng):
    """A mixture of random filters."""
    n = int(rng.integers(1, 5))
    words = tuple(rng.choice(LIKELIHOODS, n).tolist())
    return Mixture(
        half_lives=tuple(rng.choice(HALF_LIVES, n).tolist()),
        share=float(rng.choice([0.0, 0.001, 0.2])),
        calibrations=tuple((float(rng.choice([0.5, 1.0, 6.0])),) for _ in range(n)),
        predictive="probit",
        likelihood=words,
        prior_scale=tuple(rng.choice([0.3, 1.0, 20.0], n).tolist()),
    )


def schedules(rng, n):
    """Events (row asked, or None; row told, or None), in which some labels never come."""
    kind = rng.integers(4)
    delay = int(rng.choice([0, 1, 5, 20]))
    arrival = np.arange(n) + {0: 0, 1: delay, 2: 0, 3: 0}[int(kind)]
    if kind == 2:  # any order
        arrival = arrival + rng.integers(0, 25, n)
    if kind == 3:  # all labels of a day at once
        arrival = np.arange(n) // 15 * 15 + 14
    told = [[] for _ in range(n + 60)]
    for row in rng.permutation(n) if kind == 2 else range(n):
        if rng.random() > 0.1 or kind == 0:
            told[int(arrival[row])].append(int(row))
    events = []
    for now in range(n + 60):
        if now < n:
            events.append((now, None))
        events += [(None, row) for row in told[now]]
    return events


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_schedule_equals_the_reference(seed) -> None:
    rng = np.random.default_rng(seed)
    policy, n, d = policies(rng), 40, int(rng.integers(1, 4))
    n_classes = int(rng.integers(1, 5))
    X = rng.standard_normal((n, d))
    y = rng.integers(n_classes, size=n)
    prior_var = float(rng.choice([0.1, 1.0, 30.0]))
    reference = LateReference(policy, d, n_classes, noise_var=0.3, prior_var=prior_var)
    settings = {"noise_var": 0.3, "prior_var": prior_var, "experts": []}
    model = KalmanClassifier(policy, "raw", intercept=False, predictive="probit", **settings)
    codes: dict[int, int] = {}  # the reference numbers classes as they come, the model sorts them
    for asked, told in schedules(rng, n):
        if asked is not None:
            expected = reference.ask(asked, X[asked] / math.sqrt(d))
            made = model.ask(X[asked : asked + 1], ids=[asked])[0]
            order = [codes[k] for k in sorted(codes)]
            np.testing.assert_allclose(made, expected[order], rtol=1e-8, atol=1e-10)
        else:
            reference.tell(told, codes.setdefault(int(y[told]), len(codes)))
            model.tell([told], [int(y[told])])
    if model._model.late is not None:
        late = np.exp(model._model.late.log_weights).sum(axis=1)
        np.testing.assert_allclose(late, reference.weights, rtol=1e-7, atol=1e-10)
    in_order = model._model.state.half_life_weights
    np.testing.assert_allclose(in_order, reference.in_order, rtol=1e-7, atol=1e-10)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_one_call_equals_many(seed) -> None:
    rng = np.random.default_rng(seed)
    n = 80
    X, y = rng.standard_normal((n, 3)), rng.choice(["a", "b", "c"], n)
    events = schedules(rng, n)
    one, many = (KalmanClassifier(n_components=10, random_state=0) for _ in range(2))
    apart, classes = [], []
    for asked, told in events:
        if asked is not None:
            made = many.ask(X[asked : asked + 1])[0]
            classes = many._model.targets.labels.classes.tolist()
            apart.append(dict(zip(classes, made.tolist(), strict=True)))
        else:
            many.tell([told], y[[told]])
    cut = int(rng.integers(1, len(events)))
    together = []
    for part in (events[:cut], events[cut:]):
        rows = [asked for asked, _ in part if asked is not None]
        told = [row for _, row in part if row is not None]
        before, n_asked = [], 0
        for asked, row in part:
            n_asked += asked is not None
            if row is not None:
                before.append(n_asked)
        if rows:
            made = one.ask_and_tell(X[rows], told, y[told], before)
            names = one._model.targets.labels.classes.tolist()
            together += [dict(zip(names, p.tolist(), strict=True)) for p in made]
        else:
            one.tell(told, y[told])
    for a, b in zip(apart, together, strict=True):
        for name in b:
            assert b[name] == pytest.approx(a.get(name, 0.0), abs=1e-9)
    assert one.waiting_ == many.waiting_


@pytest.mark.parametrize("transition", ["example", "chunk"])
@pytest.mark.parametrize("forgetting", ["mixture", 0.99, "learned"])
def test_labels_in_time_give_the_numbers_of_predict_then_learn(forgetting, transition) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((150, 3)), rng.choice(["a", "b", "c"], 150, p=[0.5, 0.4, 0.1])
    recent = {"recent_labels": forgetting == "mixture" and transition == "example"}
    settings = {"transition": transition, "n_components": 10, "random_state": 0}
    model = KalmanClassifier(forgetting, **settings)
    expected = model.predict_then_learn(X, y) if transition == "example" else None
    other, made = KalmanClassifier(forgetting, **settings, **recent), []
    third = KalmanClassifier(forgetting, **settings)
    for i in range(150):
        made.append(other.ask(X[i : i + 1])[0])
        other.tell([i], y[[i]])
        if expected is None:
            third.partial_fit(X[[i]], y[[i]])
    if expected is None:
        np.testing.assert_allclose(other.predict_proba(X), third.predict_proba(X), atol=1e-10)
        return
    np.testing.assert_allclose(made[100:], expected[100:], atol=1e-10)
    np.testing.assert_allclose(other.predict_proba(X), model.predict_proba(X), atol=1e-10)
    np.testing.assert_allclose(other.half_life_, model.half_life_, rtol=1e-9)
    mine, theirs = (list(each.half_life_weights_.values()) for each in (other, model))
    np.testing.assert_allclose(mine, theirs, atol=1e-10)


def test_targets_in_time_give_the_numbers_of_predict_then_learn() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 3))
    y = X[:, 0] + 0.1 * rng.standard_normal(100)
    for noise_var in ("auto", 0.01):
        model, other = (KalmanRegressor(noise_var=noise_var, random_state=0) for _ in range(2))
        times = np.cumsum(rng.exponential(size=100))
        mean, std = model.predict_then_learn(X, y, time=times)
        for i in range(100):
            made = other.ask(X[i : i + 1], time=times[i : i + 1])
            other.tell([i], y[i : i + 1])
            np.testing.assert_allclose(made, [mean[i : i + 1], std[i : i + 1]], atol=1e-9)


def test_late_labels_do_not_change_what_filters_learn() -> None:
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((200, 4)), rng.choice(["a", "b"], 200)
    late, soon = (KalmanClassifier(random_state=0) for _ in range(2))
    late.ask(X)
    late.tell(range(200), y)
    soon.predict_then_learn(X, y)
    for one, other in zip(late.filters_, soon.filters_, strict=True):
        np.testing.assert_allclose(one.posterior.mean, other.posterior.mean, atol=1e-9)
        np.testing.assert_allclose(one.posterior.cov, other.posterior.cov, atol=1e-9)


def test_labels_that_come_late_change_what_is_believed() -> None:
    """A rule that turns: one step ahead says little about predictions that come 50 rows before."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 2))
    angle = 2.0 * np.pi * np.arange(6000) / 200.0
    y = np.where(np.cos(angle) * X[:, 0] + np.sin(angle) * X[:, 1] > 0.0, "up", "down")
    model = KalmanClassifier(features="scaled", random_state=0)
    plain = KalmanClassifier(features="scaled", random_state=0)
    losses = []
    for i in range(0, 6000, 50):
        rows = slice(i, i + 50)
        both = (
            model.ask(X[rows]),
            plain.predict_proba(X[rows]) if i else np.full((50, 2), 0.5),
        )
        if i > 1000:
            place = (y[rows] == "up").astype(int)
            losses.append([-np.log(p[np.arange(50), place]).mean() for p in both])
        model.tell(range(i, i + 50), y[rows])
        plain.partial_fit(X[rows], y[rows])
    asked, predicted = np.mean(losses, axis=0)
    assert asked < 0.5
    assert predicted > 0.8
    assert model.half_life_weights_[30.0] > 0.9
    assert plain.half_life_weights_[300.0] > 0.5


# ---- ids -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("since", "doubted"), [(0, True), (20, True), (25, False)])
def test_a_lead_of_the_order_of_labels_is_doubted(since, doubted) -> None:
    """Unless few labels have come since an alarm: 30 are known, and 8 rows wait."""
    lead, one = np.array([0.05, 0.05, 0.6, 0.3]), np.ones(1)
    made, share, gap, lag = np.eye(4)[None], 0.1, 9.0, 8.0
    out = choose_rows(
        *(np.array([True]), np.zeros(1, int), gap * one, lag * one, np.zeros(1, int)),
        *(np.empty((1, 0)), 0.0 * one, 0.0 * one, np.array([since])),
        *(made, np.zeros((1, 4, 4)), 30.0 * one, share, lead.copy()),
    )
    others = 0.5 * lag / (1.0 + lag)
    odds = 9.0 ** ((1.0 - share) ** gap) if doubted else 9.0
    prior = np.array([1.0 - others, others / 3.0, others / 3.0, others / 3.0])
    expected = prior * lead * np.repeat([1.0, odds / 9.0], 2)
    np.testing.assert_allclose(out[0], expected / expected.sum(), rtol=1e-12)


@pytest.fixture
def model():
    made = KalmanClassifier(features="raw", max_waiting=50)
    made.partial_fit([[1.0], [-1.0]], ["up", "down"])
    return made


def test_ids_of_all_kinds(model) -> None:
    model.ask([[1.0]] * 4, ids=["a", 7, (1, "b"), 2.5])
    model.tell([2.5, "a"], ["up", "up"])
    assert model.waiting_.waiting == 2
    model.tell([(1, "b"), 7], ["up", None])
    assert model.waiting_.told == 4


def test_a_label_told_twice_counts_once(model) -> None:
    model.ask([[1.0]], ids=["a"])
    model.tell(["a"], ["up"])
    before = model.coef_.copy()
    model.tell(["a", "a"], ["up", "up"])
    np.testing.assert_array_equal(model.coef_, before)
    assert (model.waiting_.repeated, model.waiting_.corrected) == (2, 0)
    model.tell(["a"], ["down"])
    assert (model.waiting_.repeated, model.waiting_.corrected) == (2, 1)
    assert not np.array_equal(model.coef_, before)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.tell(["z"], ["up"]), "'z', which is not the id of a row that waits"),
        (lambda m: m.ask([[1.0]], ids=["a"]), "'a', and a row of this id waits"),
        (lambda m: m.ask([[1.0], [2.0]], ids=["b", "b"]), "'b' twice"),
        (lambda m: m.ask([[1.0]], ids=["b", "c"]), "2 ids for the 1 rows"),
        (lambda m: m.ask([[1.0]], ids=[["b"]]), "cannot be an id"),
        (lambda m: m.ask([[1.0]], ids="b"), "sequence of ids"),
        (lambda m: m.ask([[1.0]], ids=[float("nan")]), "cannot be an id"),
        (lambda m: m.tell(["a"], ["up", "down"]), "1 ids for 2 targets"),
        (lambda m: m.ask([[1.0]], time=[3.0]), "time is given in this call"),
        (lambda m: m.ask([[1.0, 2.0]]), "2 features"),
        (lambda m: m.tell(["a"], ["up"], unknown="pass"), "unknown"),
        (lambda m: m.ask_and_tell([[1.0]], ["a"], ["up"], before=[2]), "before"),
        (lambda m: m.ask_and_tell([[1.0]], ["a", "q"], ["up", "up"], before=[1, 0]), "before"),
        (
            lambda m: m.ask_and_tell([[1.0]], ["a", "q"], ["up"] * 2, np.array([1, 0], np.uint8)),
            "before decreases",
        ),
        (lambda m: m.ask_and_tell([[1.0]], ["a"], ["up"], [[1], [1, 2]]), "before must be"),
        (lambda m: m.tell(["a"], [0.5]), "0.5"),
        (lambda m: m.drop_waiting(["a", "z"]), "'z', which is not the id of a row that waits"),
        (lambda m: m.drop_waiting(["a", "a"]), "each once"),
        (lambda m: m.drop_waiting("a"), "sequence of ids"),
    ],
)
def test_bad_calls_change_nothing(model, call, words) -> None:
    model.ask([[1.0]], ids=["a"])
    before, counts = model._model, model.waiting_
    with pytest.raises(InvalidInput, match=words):
        call(model)
    assert model._model is before
    assert model.waiting_ == counts
    model.tell(["a"], ["up"])  # and it continues


def test_single_rows_are_given_up(model, tmp_path) -> None:
    assert model.waiting_ids_ == KalmanClassifier().waiting_ids_ == []
    model.ask([[1.0]] * 4, ids=["d", 7, (1, "b"), "a"])
    before = model.coef_.copy()
    model.drop_waiting([7, "a"])
    assert model.waiting_ids_ == ["d", (1, "b")]
    assert model.status_of([7, "a"]) == ["expired", "expired"]
    model.tell([7], ["up"])
    assert (model.waiting_.expired, model.waiting_.too_late, model.waiting_.told) == (2, 1, 0)
    np.testing.assert_array_equal(model.coef_, before)
    model.save(tmp_path / "m")
    assert KalmanClassifier.load(tmp_path / "m").waiting_ids_ == model.waiting_ids_
    model.ask([[1.0]], ids=["a"])
    assert model.tell(["d", (1, "b")], ["up", "down"]).waiting_ids_ == ["a"]


def test_rows_that_wait_count_as_memory(model, tmp_path) -> None:
    before = model.nbytes_
    model.ask([[1.0]] * 20)
    each = (model.nbytes_ - before) / 20
    assert each > 8 * len(model.filters_)  # one column, and what each filter predicted
    model.save(tmp_path / "m")
    other = KalmanClassifier.load(tmp_path / "m")
    assert other.nbytes_ - other.drop_waiting().nbytes_ == 20 * each
    assert model.drop_waiting([0, 7]).nbytes_ == before + 18 * each
    assert model.drop_waiting().nbytes_ == before


def test_nothing_was_asked_for() -> None:
    with pytest.raises(InvalidInput, match="call ask first"):
        KalmanClassifier().tell([1], ["a"])


def test_rows_still_have_times_after_all_that_waited_are_dropped() -> None:
    model = KalmanClassifier(features="raw")
    model.ask([[1.0]], ids=["a"], time=[3.0])
    assert model.drop_waiting().status_of(["a"]) == [None]
    with pytest.raises(InvalidInput, match="time was given in earlier calls"):
        model.ask([[1.0]])
    model.ask([[1.0]], time=[3.0])
    assert model.tell([0], ["up"]).n_seen_ == 1


@pytest.mark.parametrize("stacking", [True, False])
def test_classes_that_were_only_declared_share_all_probability(stacking) -> None:
    model = KalmanClassifier(features="raw", stacking=stacking)
    model.partial_fit([[0.0]], [None], classes=["up", "down"])
    for _ in range(5):
        np.testing.assert_allclose(model.ask([[1.0]]).sum(), 1.0)


@pytest.mark.parametrize("stacking", [True, False])
def test_stacking_may_change_while_rows_wait(stacking) -> None:
    model = KalmanClassifier(features="raw", stacking=stacking)
    model.partial_fit([[1.0], [-1.0]], ["up", "down"]).ask([[1.0], [-1.0]])
    model.set_params(stacking=not stacking)
    model.ask([[1.0]])
    assert len(model._model.late.beliefs) == (2 if stacking else 4)  # compiled code reads so many
    np.testing.assert_allclose(model.tell([0, 2], ["up", "up"]).ask([[1.0]]).sum(), 1.0)


def test_unknown_ids_are_counted_where_asked(model) -> None:
    model.ask([[1.0]], ids=["a"])
    model.tell(["z", "a"], ["up", "up"], unknown="skip")
    assert (model.waiting_.unknown, model.waiting_.told) == (1, 1)


def test_an_id_may_be_used_again(model) -> None:
    model.ask([[1.0]], ids=["a"])
    model.tell(["a"], ["up"])
    model.ask([[2.0]], ids=["a"])
    assert model.waiting_.waiting == 1
    assert model.tell(["a"], ["up"]).waiting_.told == 2


# ---- bounds --------------------------------------------------------------------------------


def test_at_most_so_many_rows_wait(model) -> None:
    for i in range(30):
        model.ask([[float(i)]] * 10)
    assert model.waiting_.waiting == 50
    assert model.waiting_.expired == 250
    model.tell([0, 299], ["up", "up"])
    assert (model.waiting_.too_late, model.waiting_.told) == (1, 1)


def test_no_row_waits_too_long() -> None:
    rows = KalmanClassifier(features="raw", max_age=5)
    rows.ask([[1.0]] * 20)
    assert rows.waiting_.waiting == 6  # the last one, and the five rows before it
    timed = KalmanClassifier(features="raw", max_age=5, time_unit=2.0)
    timed.ask([[1.0]] * 20, time=np.arange(20.0))
    assert timed.waiting_.waiting == 11  # at most 5 units of 2 old


def test_old_rows_are_forgotten(monkeypatch) -> None:
    from kalstream.estimators import _waiting

    monkeypatch.setattr(_waiting, "_REMEMBERED", 100)
    model = KalmanClassifier(features="raw")
    model.ask([[1.0]], ids=["never"])
    for i in range(3000):
        model.ask([[1.0]], ids=[f"r{i}"])
        model.tell([f"r{i}"], ["up"])
    store = model._model.store
    assert len(store.rows) == len(store.ids) == 101
    with pytest.raises(InvalidInput, match="'r1500', which is not the id"):
        model.tell(["r1500"], ["up"])
    assert model.tell(["never"], ["up"]).waiting_.told == 3001


# ---- the rest of a model -------------------------------------------------------------------


def test_a_model_with_rows_waiting_is_saved(tmp_path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((900, 3)), rng.choice(["a", "b"], 900)
    model = KalmanClassifier(n_components=10, random_state=0)
    model.ask(X[:700], ids=[f"x{i}" for i in range(700)])
    model.tell([f"x{i}" for i in range(0, 600, 2)], y[:600:2])
    model.save(tmp_path / "model")
    other = KalmanClassifier.load(tmp_path / "model")
    other.save(tmp_path / "again")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "again").read_bytes()
    for each in (model, other):
        each.tell([f"x{i}" for i in range(599, 0, -2)], y[599:0:-2])
    np.testing.assert_array_equal(model.ask(X[700:]), other.ask(X[700:]))
    assert model.waiting_ == other.waiting_
    other.tell(["x2"], [y[2]])
    assert other.waiting_.repeated == 1


def test_a_snapshot_has_rows_of_its_own(model) -> None:
    model.ask([[1.0]], ids=["a"])
    other = model.snapshot()
    model.ask([[2.0]], ids=["b"])
    other.ask([[3.0]], ids=["b"])
    model.tell(["b", "a"], ["up", "up"])
    assert (model.waiting_.waiting, other.waiting_.waiting) == (0, 2)
    assert other.tell(["a", "b"], ["down", "down"]).waiting_.told == 2


def test_classes_and_columns_change_while_rows_wait() -> None:
    rng = np.random.default_rng(0)
    model = KalmanClassifier(n_components=6, random_state=0)
    model.partial_fit(rng.standard_normal((30, 2)), rng.choice(["a", "b", "c"], 30))
    model.ask(rng.standard_normal((10, 2)))
    model.retire_class("b")
    model.add_columns(1)
    model.ask(rng.standard_normal((10, 3)))
    model.tell(range(20), ["a", "new", "c", "b"] * 5)
    assert model.classes_.tolist() == ["a", "b", "c", "new"]
    assert model.ask(rng.standard_normal((1, 3))).shape == (1, 4)


def test_many_classes() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((300, 3)), rng.integers(0, 90, 300)
    late, soon = (KalmanClassifier(features="raw") for _ in range(2))
    late.ask_and_tell(X, np.arange(300), y, np.arange(300) + 1)
    soon.predict_then_learn(X, y)
    np.testing.assert_allclose(late.predict_proba(X), soon.predict_proba(X), atol=1e-10)


def test_a_transformer_of_another_library() -> None:
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 2)), rng.choice(["a", "b"], 60)
    late, soon = (KalmanClassifier(features=StandardScaler()) for _ in range(2))
    for i in range(60):
        late.ask(X[[i]])
        late.tell([i], y[[i]])
        soon.partial_fit(X[[i]], y[[i]])
    np.testing.assert_allclose(late.predict_proba(X), soon.predict_proba(X), atol=1e-10)


def test_weights_and_orders_of_motion() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 2)), rng.choice(["a", "b"], 60)
    weight = rng.choice([0.0, 0.5, 1.0, 20.0], 60)
    for options in ({"class_weight": "balanced"}, {"order": (1, 2)}, {"stacking": False}):
        late, soon = (KalmanClassifier(features="scaled", **options) for _ in range(2))
        for i in range(60):
            late.ask(X[[i]])
            late.tell([i], y[[i]], weight[[i]])
        soon.predict_then_learn(X, y, weight)
        np.testing.assert_allclose(late.predict_proba(X), soon.predict_proba(X), atol=1e-8)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), noise_var=st.sampled_from(["auto", 0.1]))
def test_regression_in_one_call_equals_many(seed, noise_var) -> None:
    rng = np.random.default_rng(seed)
    n = 60
    X = rng.standard_normal((n, 2))
    y = X[:, 0] + 0.3 * rng.standard_normal(n)
    events = schedules(rng, n)
    one, many = (
        KalmanRegressor(n_components=6, random_state=0, noise_var=noise_var) for _ in range(2)
    )
    apart, before, n_asked = [], [], 0
    for asked, told in events:
        if asked is not None:
            apart.append(np.ravel(many.ask(X[[asked]])))
            n_asked += 1
        else:
            many.tell([told], y[[told]])
            before.append(n_asked)
    told = [row for _, row in events if row is not None]
    together = np.stack(one.ask_and_tell(X, told, y[told], before), axis=1)
    np.testing.assert_allclose(together, apart, rtol=1e-7, atol=1e-9)
    assert one.waiting_ == many.waiting_


def test_intervals_of_late_targets_hold() -> None:
    """The noise is learned from the predictions that were made, which miss by more than the next.

    The target wanders, so its value 40 rows ahead is far less certain than the next one.
    """
    rng = np.random.default_rng(0)
    n, delay = 4000, 40
    y = np.cumsum(rng.standard_normal(n)) * 0.2
    X = np.ones((n, 1))
    before = np.arange(n - delay) + delay + 1
    model = KalmanRegressor(features="raw", intercept=False)
    mean, std = model.ask_and_tell(X, np.arange(n - delay), y[: n - delay], before)
    inside = np.abs(y - mean)[1000:] < 1.645 * std[1000:]
    assert 0.8 < inside.mean() < 0.98


def test_threads_ask_and_tell() -> None:
    from threading import Thread

    rng = np.random.default_rng(0)
    model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])

    def work(name: int) -> None:
        for i in range(50):
            model.ask(rng.standard_normal((1, 1)), ids=[(name, i)])
            if i >= 5:
                model.tell([(name, i - 5)], ["up" if i % 2 else "down"])

    threads = [Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (model.waiting_.asked, model.waiting_.told, model.waiting_.waiting) == (200, 180, 20)


def test_labels_as_late_as_the_bound_are_learned() -> None:
    X, y = np.zeros((30, 1)), ["up"] * 20
    for times in ({}, {"time": np.arange(30.0)}):
        model = KalmanClassifier(features="raw", max_age=10)
        model.ask_and_tell(X, range(20), y, np.arange(20) + 11, **times)
        assert (model.waiting_.told, model.waiting_.too_late) == (20, 0)


def test_a_row_that_waits_is_predicted_again() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    model = KalmanClassifier(features="raw", random_state=0)
    model.ask(X, ids=range(60))
    model.tell(range(50), np.where(X[:50, 0] > 0.0, "up", "down"))
    for ids in (None, [55]):
        made = model.ask(X[55:56], ids=ids, keep=False)
        assert made.shape == (1, 2)
    assert model.waiting_.waiting == 10


def test_labels_of_others_are_skipped_before_any_row_was_asked_for() -> None:
    model = KalmanClassifier(features="raw")
    model.tell(["other"], ["up"], unknown="skip")
    with pytest.raises(InvalidInput, match="call ask first"):
        model.tell(["other"], ["up"])
    model.partial_fit([[1.0], [-1.0]], ["up", "down"])
    model.tell(["other"], ["up"], unknown="skip")
    assert model.waiting_.unknown == 1


def test_rows_of_one_time_are_saved_and_loaded(tmp_path) -> None:
    """No time passes, so evidence is never forgotten: exp of it underflows."""
    rng = np.random.default_rng(0)
    X, times = rng.standard_normal((1500, 2)), np.full(1500, 5.0)
    y = np.where(X[:, 0] > 0.0, "up", "down")
    model = KalmanClassifier(features="scaled", random_state=0)
    model.partial_fit(X[:100], y[:100], time=times[:100])
    model.ask(X[100:], ids=range(100, 1500), time=times[100:])
    newest_first = np.arange(100, 1500)[::-1]
    model.tell(newest_first, y[newest_first], sample_weight=np.full(1400, 100.0))
    assert model._model.late is not None
    assert model._model.late.beside[0] < -745.0
    model.save(tmp_path / "model")
    loaded = KalmanClassifier.load(tmp_path / "model")
    expected = model.ask(X[:5], time=times[:5], keep=False)
    assert np.array_equal(loaded.ask(X[:5], time=times[:5], keep=False), expected)


def test_times_do_not_begin_after_rows_that_were_asked_for_without() -> None:
    model = KalmanClassifier(features="raw")
    model.ask([[1.0]], ids=["a"])
    with pytest.raises(InvalidInput, match="was not in earlier ones"):
        model.partial_fit([[1.0]], ["up"], time=[1.0])
    timed = KalmanClassifier(features="raw")
    timed.ask([[1.0]], ids=["a"], time=[1.0])
    timed.partial_fit([[1.0]], ["up"], time=[2.0])
