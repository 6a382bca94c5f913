"""Experts beside the filters: each compiled one against a plain version, and what all must do."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from kalstream import KalmanClassifier
from kalstream.core import Expert, ExpertRows, GaussianClasses, LabelChain, Linear, Neighbours
from kalstream.core.experts import chains, linear, neighbours
from kalstream.errors import InvalidInput
from kalstream.estimators import Trees, _classification

Array = NDArray[Any]
EXPERTS: list[Expert] = [
    Neighbours(limit=40),
    LabelChain(limit=30),
    Linear(),
    Trees(limit=60, every=40),
]
ALL: list[Expert] = [*EXPERTS, GaussianClasses()]
every = pytest.mark.parametrize("expert", ALL, ids=[each.name for each in ALL])


def made(n: int, seed: int = 0, n_classes: int = 3) -> ExpertRows:
    """Rows with labels, of which some are missing, weights, and missing values."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6))
    y = (rng.integers(2, size=n) + (X[:, 0] > 0.0)) % n_classes
    X[rng.random(X.shape) < 0.1] = np.nan
    labels = np.where(rng.random(n) < 0.15, -1, y)
    weight = rng.choice([0.5, 1.0, 20.0], n)
    return ExpertRows(X, labels, weight, np.ones(n), np.arange(n))


def cut(rows: ExpertRows, part: slice) -> ExpertRows:
    names = "columns", "labels", "weight", "gap", "number"
    return ExpertRows(*(np.ascontiguousarray(getattr(rows, name)[part]) for name in names))


def judged(belief: Array, share: float, given: Array, weight: float) -> Array:
    """The weights of voices after a label to which they gave these probabilities."""
    after = belief * given ** min(weight, 10.0)
    return (1.0 - share) * after / after.sum() + share / len(after)


def usual_of(counts: Array, more: float) -> Array:
    """Class frequencies (..., K), each class that has come counting so much more."""
    total = np.where(counts > 0.0, counts + more, 0.0).sum(axis=-1, keepdims=True)
    return (counts + more) / np.where(counts > 0.0, total, total + more)


def plain_scales(kept: list[tuple[Array, int, float]]) -> tuple[Array, Array]:
    """Means of columns, and their factors in the three metrics."""
    X, y = np.array([each[0] for each in kept]), np.array([each[1] for each in kept])
    mean, within = X.mean(axis=0), np.zeros(X.shape[1])
    for k in np.unique(y):
        within += (y == k).mean() * X[y == k].var(axis=0)
    total = X.var(axis=0)
    scaled = np.divide(1.0, total, out=np.zeros_like(total), where=total > 1e-9)
    share = np.maximum((total - within) * scaled, 1e-4)
    return mean.astype(np.float32), np.array([np.ones_like(total), scaled, scaled * share])


def plain_neighbours(
    rows: ExpertRows, n_classes: int, limit: int = 40, asleep: Collection[int] = ()
) -> Array:
    """`Neighbours`, by a list of rows (columns, label, weight); some only go into the window."""
    kept: list[tuple[Array, int, float]] = []
    belief, out = np.full((3, neighbours.N_VOICES), 1.0 / neighbours.N_VOICES / 3.0), []
    origin, mean = np.full(rows.columns.shape[1], np.nan), np.zeros(rows.columns.shape[1])
    scales, learned, due, heard = np.ones((3, len(mean))), 0, 1, np.ones(3)
    each_row = zip(rows.columns, rows.labels, rows.weight, strict=True)
    for number, (came, label, weight) in enumerate(each_row):
        x = np.where(np.isnan(came - origin), mean, came - origin).astype(np.float32).astype(float)
        counts = np.bincount([each[1] for each in kept], minlength=n_classes).astype(float)
        if number not in asleep:
            usual = usual_of(counts, 0.5)
            often, fading = neighbours.SLEEP
            awake = np.flatnonzero((heard >= 0.05) | (learned % often == 0))
            spoken = []
            for m, part, size in product(awake, neighbours.PARTS, neighbours.SIZES):
                newest = kept[::-1][: limit // part]
                squares = [float((scales[m] * (each[0] - x) ** 2).sum()) for each in newest]
                votes = np.zeros(n_classes)
                for i in np.argsort(squares, kind="stable")[:size]:
                    votes[newest[i][1]] += newest[i][2]
                spoken += [(votes + p * usual) / (votes.sum() + p) for p in neighbours.PULLS]
            voices, total = np.array(spoken), belief[awake].sum()
            trust = belief[awake].ravel() / total
            out.append(np.log(trust @ voices))
        if label < 0:
            continue
        if number not in asleep:
            trust = judged(trust, neighbours.SHARE, voices[:, label], weight)
            belief[awake] = total * trust.reshape(len(awake), -1)
            belief *= np.maximum(0.02 / belief.sum(axis=1), 1.0)[:, None]
            belief /= belief.sum()
            heard = np.maximum(fading * heard, belief.sum(axis=1))
        if len(kept) == limit:
            rare = limit / (2.0 * (counts > 0.0).sum())
            del kept[next(i for i, each in enumerate(kept) if counts[each[1]] > rare)]
        kept.append((x, int(label), min(weight, 10.0)))
        origin = np.where(np.isnan(origin), came, origin)
        learned += 1
        if learned == due:
            mean, scales = plain_scales(kept)
            due += max(len(kept) // neighbours.GROWTH, 1)
    return np.array(out)


def plain_chain(rows: ExpertRows, n_classes: int, limit: int = 30) -> Array:
    """`LabelChain`, by tables that are counted anew for each row."""
    lives = 0.5 ** (1.0 / np.array(chains.HALF_LIVES))
    past: list[int] = []
    recent = np.zeros((len(lives), n_classes))
    n_voices = len(lives) * (1 + 2 * len(chains.PULLS))
    belief, last, out = np.full(n_voices, 1.0 / n_voices), -1, []
    for number, label, weight in zip(rows.number, rows.labels, rows.weight, strict=True):
        follows = bool(past) and number == last + 1
        zero = usual_of(recent, 0.5)
        orders: list[list[Array]] = [list(zero), [], []]
        for h, keep in enumerate(lives):
            for pull in chains.PULLS:
                shorter = zero[h]
                for order in (1, 2):
                    table = np.zeros(n_classes)
                    for i in range(order, len(past)) if follows and len(past) >= order else ():
                        if (
                            past[i - order : i] == past[-order:]
                            and min(past[i - order : i + 1]) >= 0
                        ):
                            table[past[i]] += keep ** (len(past) - 1 - i)
                    shorter = (table + pull * shorter) / (table.sum() + pull)
                    orders[order].append(shorter)
        voices = np.array([*orders[0], *orders[1], *orders[2]])
        out.append(np.log(belief @ voices))
        if label < 0:
            continue
        if follows:
            belief = judged(belief, chains.SHARE, voices[:, label], weight)
        elif past:
            past.append(-1)
        past, last = [*past, int(label)][-limit:], number
        recent = recent * lives[:, None]
        recent[:, label] += 1.0
    return np.array(out)


def plain_linear(rows: ExpertRows, n_classes: int) -> Array:
    """`Linear`, by the policy row by row; the mean is that of the rows that were learned."""
    kept: list[Array] = []
    square = 0.0
    state = linear.FILTERS.start(1 + rows.columns.shape[1], n_classes, prior_var=1.0)
    out = []
    for i, x in enumerate(rows.columns):
        past = np.array(kept).reshape(-1, len(x))
        known = ~np.isnan(past).all(axis=0) & ~np.isnan(x)
        centred = np.zeros(len(x))
        centred[known] = x[known] - np.nanmean(past[:, known], axis=0)
        norm = np.linalg.norm(centred)
        usual = float(np.sqrt(square)) if square else norm
        short = min(1.0, linear.REACH * usual / norm) if norm > 0.0 else 1.0
        phi = np.array([[1.0, *(centred * short / usual if usual > 0.0 else centred)]])
        weight, label = rows.weight[i : i + 1], rows.labels[i : i + 1]
        after, step = linear.FILTERS.step_chunk(
            state, phi, label, noise_var=1.0, prior_var=1.0, sample_weight=weight
        )
        logits = np.where(state.seen, step.logit_mean, -1e30)  # what has not come has none
        step = replace(step, bank=replace(step.bank, logit_mean=logits))
        out.append(np.log(np.maximum(step.class_probabilities(method="probit")[0], linear.LEAST)))
        if rows.labels[i] < 0:
            continue
        state = after
        # A row is shortened before the mean learns it.
        kept.append(np.where(known, x - centred * (1.0 - short), x))
        n = max((~np.isnan(past)).sum(axis=0).max(initial=0), 1)
        square = float(usual**2 + ((short * norm) ** 2 - usual**2) / n)
    return np.array(out)


def plain_trees(rows: ExpertRows, n_classes: int, limit: int = 60) -> Array:
    """`Trees`, by a list of rows (columns, label, weight); fitted every 40 of them."""
    kept: list[tuple[Array, int, float]] = []
    counts, trees, out = np.zeros(n_classes), None, []
    for x, label, weight in zip(
        rows.columns.astype(np.float32), rows.labels, rows.weight, strict=True
    ):
        out.append(usual_of(counts, 1.0))
        if trees is not None:
            out[-1] = 0.02 * out[-1]
            out[-1][trees.classes_] += 0.98 * trees.predict_proba([x])[0]
        if label < 0:
            continue
        kept.append((x, int(label), min(weight, 10.0)))
        counts[label] += kept[-1][2]
        if len(kept) % 40 == 0:
            counts /= 2.0
            X, y, heavy = (np.array(each) for each in zip(*kept[-limit:], strict=True))
            trees = HistGradientBoostingClassifier(max_iter=60, early_stopping=False)
            trees.fit(X, y, sample_weight=heavy)
    return np.log(out)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("expert", "plain"),
    [*zip(EXPERTS, [plain_neighbours, plain_chain, plain_linear, plain_trees], strict=True)],
)
def test_it_is_the_plain_version(
    expert: Any, plain: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "SLEEP", (7, 0.9))
    rows = made(200, seed)
    if plain is plain_neighbours:  # other units
        rows.columns[:] = rows.columns * 10.0 ** np.arange(-2, 4) + 1000.0
    _, out = expert.advance(expert.start(6, 3), rows)
    np.testing.assert_allclose(out, plain(rows, 3), rtol=1e-9, atol=1e-12)


def test_neighbours_that_sleep_only_keep_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "SLEEP", (7, 0.9))
    rows, expert, out = made(200), Neighbours(limit=40), []
    state = expert.start(6, 3)
    for start in range(0, 200, 20):
        part = cut(rows, slice(start, start + 20))
        if start % 60 == 20:
            state = expert.watch(state, part)
            state.__post_init__()
        else:
            state, each = expert.advance(state, part)
            out.append(each)
    asleep = [i for i in range(200) if i // 20 % 3 == 1]
    plain = plain_neighbours(rows, 3, asleep=asleep)
    np.testing.assert_allclose(np.concatenate(out), plain, rtol=1e-9, atol=1e-12)


def sleeping(each: KalmanClassifier) -> bool:
    """Whether Neighbours sleep in a model that has come so far."""
    return "neighbours" not in each._model.targets.stack.experts


def chance_then_chessboard() -> tuple[Array, Array]:
    """Labels that nothing predicts, then those of a chessboard."""
    rng = np.random.default_rng(0)
    X = rng.random((700, 2))
    y = (4.0 * X).astype(int).sum(axis=1) % 2
    return X, np.where(np.arange(700) < 300, rng.integers(2, size=700), y)


def test_neighbours_sleep_where_they_do_not_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_classification, "STRETCH", 40)
    X, y = chance_then_chessboard()
    weights = np.random.default_rng(1).choice([0.0, 0.5, 2.0], 700)
    weights[:200] = 1.0  # rows that come alone take the short way
    labels = [None if i % 7 == 3 else label for i, label in enumerate(y.tolist())]
    models = [model(Neighbours()).partial_fit(X[:5], y[:5]) for _ in range(3)]
    made: list[list[Array]] = [[], [], []]
    slept = []
    for size, each, out in zip((1, 37, 695), models, made, strict=True):
        for i in range(5, 700, size):
            part = slice(i, i + size)
            given = None if i < 200 and size == 1 else weights[part]
            if i == 227:  # a row of its own, and a longer call
                assert sleeping(each)
                each.save(tmp_path / "model.safetensors")
            out.append(each.predict_then_learn(X[part], labels[part], sample_weight=given))
            if i == 227:
                again = KalmanClassifier.load(tmp_path / "model.safetensors")
                p = again.predict_then_learn(X[part], labels[part], sample_weight=given)
                np.testing.assert_array_equal(p, out[-1])
            if size == 1:
                slept.append(sleeping(each))
    for out in made[1:]:
        np.testing.assert_allclose(np.concatenate(out), np.concatenate(made[0]), rtol=1e-9)
    # Tried in the first stretch and in those behind 1, 2, 4, 8 and 16; awake where they pay.
    assert slept[120 - 5 : 160 - 5].count(True) > 35
    assert not any(slept[160 - 5 : 199 - 5])
    assert slept[220]
    assert not any(slept[660:])


def test_all_experts_speak_where_labels_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_classification, "STRETCH", 40)
    X, y = chance_then_chessboard()
    each = model(Neighbours()).partial_fit(X[:130], y[:130])
    assert sleeping(each)
    for i in range(130, 170):
        each.ask(X[i : i + 1], ids=[i])
        each.tell([i], y[i : i + 1])
    assert not sleeping(each)
    each.predict_then_learn(X[170:260], y[170:260])
    assert not sleeping(each)


@every
def test_nothing_depends_on_when_classes_are_declared(expert: Expert) -> None:
    rows = made(200)
    few, plain = expert.advance(expert.start(6, 3), rows)
    more, out = expert.advance(expert.start(6, 6), rows)
    seen = np.cumsum(np.eye(3)[rows.labels] * (rows.labels >= 0)[:, None], axis=0)[:-1] > 0.0
    # A stack compares the classes that have come.
    for each in (plain, out):
        each[1:, :3][~seen] = np.nan
        each -= np.nanmax(each[:, :3], axis=1, keepdims=True)
    np.testing.assert_allclose(out[1:, :3], plain[1:], rtol=1e-9, atol=1e-12)
    assert (few.n_classes, more.n_classes) == (3, 6)


@every
def test_a_chunk_is_its_rows_and_a_state_stays_as_it_was(expert: Expert) -> None:
    rows = made(200)
    begun, _ = expert.advance(expert.start(6, 3), cut(rows, slice(0, 70)))
    _, whole = expert.advance(begun, cut(rows, slice(70, 200)))
    for size in (1, 63):
        state, parts = begun, []
        for i in range(70, 200, size):
            state, part = expert.advance(state, cut(rows, slice(i, min(i + size, 200))))
            parts.append(part)
        np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-9, atol=1e-12)
    assert state.nbytes > 0


@pytest.mark.parametrize("expert", EXPERTS, ids=[each.name for each in EXPERTS])
def test_new_classes_and_columns_are_as_if_they_had_been_there(expert: Expert) -> None:
    rows, before = made(200), slice(0, 70)
    narrow = ExpertRows(
        *(np.ascontiguousarray(rows.columns[before, :4]), rows.labels[before]),
        *(rows.weight[before], rows.gap[before], rows.number[before]),
    )
    few, _ = expert.advance(expert.start(4, 3), narrow)
    wide = cut(rows, before)
    wide.columns[:, 4:] = np.nan
    many, _ = expert.advance(expert.start(6, 3), wide)
    parts = [
        expert.advance(state.add_classes(4), cut(rows, slice(70, 200)))[1]
        for state in (few.add_columns(2), many)
    ]
    np.testing.assert_allclose(*parts, rtol=1e-9)


@every
def test_a_dropped_class_has_no_rows(expert: Expert) -> None:
    rows = made(100)
    state, _ = expert.advance(expert.start(6, 3), rows)
    state = state.keep_classes(np.array([2, 0]))
    state.__post_init__()
    state, out = expert.advance(state, cut(made(20, 1, 2), slice(0, 20)))
    assert out.shape == (20, 2)
    np.testing.assert_allclose(np.exp(out).sum(axis=1), 1.0)


def stream(n: int) -> tuple[Array, Array]:
    X = np.random.default_rng(0).random((n, 3))
    return X, np.array(["a", "b", "c"])[((4.0 * X[:, 0]).astype(int) + np.arange(n)) % 3]


def model(expert: Expert, **settings: Any) -> KalmanClassifier:
    return KalmanClassifier(features="scaled", experts=[expert], **settings)


@every
def test_calls_of_any_size_are_the_same(expert: Expert) -> None:
    X, y = stream(70)
    weights = np.random.default_rng(1).choice([0.0, 0.5, 2.0], 70)
    labels: Sequence[Any] = [None if i % 7 == 3 else label for i, label in enumerate(y)]
    one, other = model(expert).partial_fit(X[:6], y[:6]), model(expert).partial_fit(X[:6], y[:6])
    rows = [
        one.predict_then_learn(X[i : i + 1], labels[i : i + 1], sample_weight=weights[i : i + 1])
        for i in range(70)
    ]
    whole = other.predict_then_learn(X, labels, sample_weight=weights)
    np.testing.assert_allclose(np.concatenate(rows), whole, rtol=1e-9)


@every
def test_labels_in_time_by_ask_and_tell_are_those_of_predict_then_learn(expert: Expert) -> None:
    X, y = stream(100)
    one, other = model(expert).partial_fit(X[:6], y[:6]), model(expert).partial_fit(X[:6], y[:6])
    for i in range(6, 100):
        p = one.ask(X[i : i + 1], ids=[i])
        one.tell([i], y[i : i + 1])
        np.testing.assert_allclose(p, other.predict_then_learn(X[i : i + 1], y[i : i + 1]))


@every
def test_it_is_saved_and_resumed_bit_for_bit(expert: Expert, tmp_path: Path) -> None:
    X, y = stream(300)
    each = model(expert).partial_fit(X[:150], y[:150])
    each.ask(X[150:200], ids=range(150, 200))
    each.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    assert list(again.experts) == [expert]
    for one in (each, again):
        one.tell(range(150, 200), y[150:200])
        one.partial_fit(X[200:250], y[200:250])
        one.predict_proba(X)
    p, q = (one.predict_then_learn(X[250:], y[250:]) for one in (each, again))
    np.testing.assert_array_equal(p, q)


@every
def test_classes_and_columns_come_and_go(expert: Expert) -> None:
    X, y = stream(100)
    each = model(expert).partial_fit(X, y).partial_fit(X[:5], ["new"] * 5)
    assert each.predict_proba(X[:2]).shape == (2, 4)
    assert each.retire_class("b").classes_.tolist() == ["a", "c", "new"]
    each.add_columns(1)
    each.partial_fit(np.ones((1, 4)), ["a"])
    assert np.isfinite(each.predict_proba(np.ones((2, 4)))).all()


def late_log_loss(experts: list[Expert], lag: int) -> float:
    """Log-loss of labels that go round in a cycle, the last 200 of 600, each ``lag`` rows late."""
    X, y = np.random.default_rng(0).random((600, 2)), np.arange(600) % 5
    each, losses = KalmanClassifier(features="scaled", experts=experts), []
    for i in range(600):
        p = each.ask(X[i : i + 1], ids=[i])
        if i >= 400:
            losses.append(-np.log(p[0, y[i]]))
        if i >= lag:
            each.tell([i - lag], y[i - lag : i - lag + 1])
    return float(np.mean(losses))


def test_a_chain_speaks_only_where_labels_are_known_in_time() -> None:
    chain: list[Expert] = [LabelChain()]
    assert late_log_loss(chain, 0) < 0.05 < late_log_loss([], 0)
    assert late_log_loss(chain, 3) == pytest.approx(late_log_loss([], 3), abs=0.02)
    X, y = stream(200)
    plain = KalmanClassifier(features="scaled", recent_labels=False, experts=[])
    without = model(LabelChain(), recent_labels=False)
    np.testing.assert_array_equal(without.predict_then_learn(X, y), plain.predict_then_learn(X, y))


def test_columns_of_any_size_are_learned_by_a_linear_rule() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 6))
    y = (X[:, 0] > 0.0).astype(int)
    n, rows = np.ones(400), np.arange(400)
    for scale in (1e-300, 1e-150, 1.0, 1e6, 1e150, 1e300):
        for extra in (0.0, 0.1, 1.7e9, np.nan):
            Z = np.column_stack([X * scale, np.full(400, extra)])
            Z[7] = 0.0
            state, out = Linear().advance(Linear().start(7, 2), ExpertRows(Z, y, n, n, rows))
            state.__post_init__()
            assert np.isfinite(out).all()
            right = (out.argmax(axis=1) == y)[200:].mean()
            assert right > (0.9 if 1e-150 <= scale <= 1e6 else 0.4), (scale, extra)


@pytest.mark.parametrize("n_columns", [6, 40])
def test_rows_that_come_alone_take_a_short_way_to_the_same_linear_rule(
    n_columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(n_columns)
    X, y = rng.standard_normal((300, n_columns)), rng.integers(3, size=300)
    X[:, 0] += 3.0 * y
    X[rng.random(X.shape) < 0.1] = np.nan
    y[:100] %= 2  # another class comes late
    labels, gap = np.where(rng.random(300) < 0.3, -1, y), rng.choice([0.0, 1.0, 2.5], 300)
    rows = ExpertRows(X, labels, np.ones(300), gap, np.arange(300))
    short, way = [], linear._pass_alone

    def counted(*args: Any) -> Any:
        short.append(way(*args))
        return short[-1]

    begun = Linear().start(n_columns, 3)
    states, made = [begun, begun], []
    for i in range(300):
        row = cut(rows, slice(i, i + 1))
        monkeypatch.setattr(linear, "_pass_alone", counted)
        states[0], quick = Linear().advance(states[0], row)
        monkeypatch.setattr(linear, "_pass_alone", lambda *_: None)
        states[1], plain = Linear().advance(states[1], row)
        np.testing.assert_allclose(quick, plain, rtol=1e-12, atol=1e-12)
        made.append(quick)
    assert sum(each is not None for each in short) > 250
    for name in ("mean", "counts", "square"):
        np.testing.assert_array_equal(*(getattr(state, name) for state in states))
    for name in ("log_weights", "seen"):
        parts = (getattr(state.filters, name) for state in states)
        np.testing.assert_allclose(*parts, rtol=1e-11, atol=1e-12)
    for quick, slow in zip(*(state.filters.posteriors for state in states), strict=True):
        np.testing.assert_allclose(quick.mean, slow.mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(quick.cov, slow.cov, rtol=1e-10, atol=1e-12)
    monkeypatch.setattr(linear, "_pass_alone", way)
    again = [Linear().advance(states[0], cut(rows, slice(0, 1)))[1] for _ in range(2)]
    np.testing.assert_array_equal(*again)  # a state that has been continued is as it was


def test_one_row_of_huge_values_is_soon_forgotten() -> None:
    X = np.random.default_rng(0).standard_normal((600, 4)) + 1.7e9
    X[50, 1] = 1e200
    y = (X[:, 0] > 1.7e9).astype(int)
    one = np.ones(600)
    _, out = Linear().advance(Linear().start(4, 2), ExpertRows(X, y, one, one, np.arange(600)))
    assert (out.argmax(axis=1) == y)[300:].mean() > 0.9


def test_a_burst_of_one_class_does_not_flush_the_rest() -> None:
    X = np.random.default_rng(0).standard_normal((300, 2))
    y = np.where(np.arange(300) < 100, np.arange(300) % 2, 1)
    rows = ExpertRows(X, y, np.ones(300), np.ones(300), np.arange(300))
    state, _ = Neighbours(limit=40).advance(Neighbours().start(2, 2), rows)
    assert state.counts.tolist() == [10.0, 30.0]


def test_bad_settings_and_states_are_refused() -> None:
    for bad in (lambda: Neighbours(limit=0), lambda: LabelChain(limit=1)):
        with pytest.raises(InvalidInput, match="limit"):
            bad()
    for expert in EXPERTS:
        state, _ = expert.advance(expert.start(6, 3), made(50))
        state.__post_init__()
        if isinstance(state, linear.LinearState):
            state.counts[3] = -1.0
        else:
            state.labels[3] = 7
        with pytest.raises(InvalidInput, match="start again"):
            state.__post_init__()


@pytest.mark.parametrize("part", ["origin", "means", "scales", "clock", "belief", "heard"])
def test_forged_columns_and_weights_are_refused(part: str) -> None:
    state, _ = Neighbours().advance(Neighbours().start(6, 3), made(50))
    getattr(state, part)[-1] = -1 if part == "clock" else -np.inf
    with pytest.raises(InvalidInput, match="start again"):
        state.__post_init__()
