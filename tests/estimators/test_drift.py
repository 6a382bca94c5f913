"""The drift alarm: sudden and slow changes, and streams without any."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.core import Fixed, Learned, Mixture
from kalstream.core.alarm import AGE, BEGAN, CONFIDENCE, Watch
from kalstream.errors import InvalidInput
from kalstream.estimators.migrations import MIGRATIONS
from small_models import BOTH, X, Y, small


def drifting(n, seed, turn=None, d=4):
    """Rows, labels and values of a rule; the rule changes at row `turn`, if given."""
    rng = np.random.default_rng(seed)
    data, rule = rng.standard_normal((n, d)), rng.standard_normal((2, d))
    value = data @ rule[0]
    if turn is not None:
        value[turn:] = data[turn:] @ rule[1] - value[turn:]
    noisy = value + 0.3 * rng.standard_normal(n)
    return data, np.where(noisy > 0.0, "yes", "no"), noisy


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_drift_alarm(kind, seed):
    data, labels, values = drifting(2400, seed, turn=1500)
    y = labels if kind is KalmanClassifier else values
    model = kind(features="raw", random_state=0).partial_fit(data[:1500], y[:1500])
    assert not model.drift()
    assert 0.0 <= model.drift().confidence <= 0.75
    quiet, on = model.drift().alarms, []
    for start in range(1500, 2400, 50):
        model.partial_fit(data[start : start + 50], y[start : start + 50])
        on.append(bool(model.drift()))
    after = model.drift()
    assert on[0]
    assert after.alarms > quiet
    assert 1500 <= after.since < 1550
    assert after.peak > 0.9


@BOTH
@pytest.mark.parametrize("forgetting", ["mixture", "learned"])
@pytest.mark.parametrize("delay", [0, 150])
def test_the_row_of_an_alarm_counts_rows_that_came(kind, forgetting, delay):
    """Every other row is never labelled: at row 900 half as many labels have come, or fewer."""
    data, labels, values = drifting(1300, 0, turn=900)
    y = labels if kind is KalmanClassifier else values
    noise = {"noise_var": 0.1} if forgetting == "learned" else {}
    model = kind(forgetting, features="raw", random_state=0, **noise)
    told = np.arange(0, 1300 - delay, 2)
    cut = int(np.searchsorted(told, 600))
    began = []
    for start, stop, due in ((0, 600 + delay, told[:cut]), (600 + delay, 1300, told[cut:])):
        before = np.clip(due + 1 + delay - start, 0, stop - start)
        model.ask_and_tell(data[start:stop], due, y[due], before)
        began.append((model.drift().alarms, model.drift().since))
    assert began[1][0] > began[0][0]
    assert 900 <= began[1][1] < 1150
    assert began[1][1] % 2 == 0
    assert model.n_rows_ == 1300
    assert model.n_seen_ == len(told)


@pytest.mark.parametrize("number", range(1, 6))
def test_rows_of_files_from_before_late_labels_have_come(number):
    folder = Path(__file__).parent.parent / "data"
    model = KalmanClassifier.load(folder / f"mixture-format-{number}.safetensors")
    assert model.n_rows_ == model.n_seen_ > 0


def test_the_row_of_an_alarm_counts_rows_that_wait():
    data, y, _ = drifting(1300, 0, turn=1000)
    model = KalmanClassifier(features="raw", random_state=0)
    model.ask(data[:300])  # never labelled
    model.partial_fit(data[300:1000], y[300:1000])
    quiet = model.drift().alarms
    model.partial_fit(data[1000:], y[1000:])
    assert model.drift().alarms > quiet
    assert 1000 <= model.drift().since < 1050


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_a_slow_change_is_noticed(kind, seed):
    """One rule replaces another over 2000 rows, so no single row is unusual.

    Half of the labels of one rule are those of the other: until the new rule prevails, a classifier
    that forgets faster need not predict better.
    """
    late = 4500 if kind is KalmanClassifier else 3500
    old, new = (drifting(6000, seed, turn=turn) for turn in (None, 0))
    later = np.random.default_rng(seed).random(6000) < (np.arange(6000) - 2000) / 2000
    y = np.where(later, new[1], old[1])
    if kind is KalmanRegressor:
        y = np.where(later, new[2], old[2])
    model = kind(features="raw").partial_fit(old[0][:2000], y[:2000])
    quiet = model.drift().alarms
    assert model.partial_fit(old[0][2000:late], y[2000:late]).drift().alarms > quiet
    assert 2000 <= model.drift().since < late
    assert not model.partial_fit(old[0][late:], y[late:]).drift()


@BOTH
def test_an_alarm_ends(kind):
    data, labels, values = drifting(6000, 0, turn=1000)
    y = labels if kind is KalmanClassifier else values
    model = kind(features="raw").partial_fit(data[:1100], y[:1100])
    assert model.drift()
    assert not model.partial_fit(data[1100:], y[1100:]).drift()
    assert model.drift().alarms >= 1


@BOTH
def test_hardly_an_alarm_without_drift(kind):
    alarms = []
    for seed in range(6):
        data, labels, values = drifting(3000, 10 + seed)
        y = labels if kind is KalmanClassifier else values
        model = kind(features="raw", random_state=0).partial_fit(data, y)
        report = model.drift()
        alarms.append(report.alarms)
        assert (report.since is None) == (report.alarms == 0)
        assert report.usual_half_life >= 1000.0
        assert model.half_life_ >= 1000.0
    assert sum(alarms) <= 1


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("noise", ["t2", "t3", "log-normal"])
def test_a_heavy_tail_is_no_drift(noise, seed):
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((10_000, 5))
    values = data @ rng.standard_normal(5)
    if noise == "log-normal":
        values = np.exp(0.3 * values + rng.standard_normal(10_000))
    else:
        values = values + rng.standard_t(int(noise[1]), 10_000)
    model = KalmanRegressor(features="scaled").partial_fit(data, values)
    assert model.drift().alarms <= 1


@pytest.mark.parametrize("seed", range(3))
def test_wrong_labels_are_no_drift(seed):
    """A fifth of the labels is wrong, and no linear rule fits the others."""
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((10_000, 4))
    labels = (np.sin(3.0 * data[:, 0]) + data[:, 1] * data[:, 2] > 0.0) ^ (rng.random(10_000) < 0.2)
    assert KalmanClassifier(features="scaled").partial_fit(data, labels).drift().alarms <= 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "policy",
    [
        Mixture(half_lives=(math.inf, 100.0, math.inf, 100.0), calibrations=(3.0, 15.0)),
        Mixture(half_lives=(30.0, math.inf), share=0.0),
        Mixture(half_lives=(300.0, 1e4, 30.0, 1e4), prior_scale=(1.0, 3.0, 1.0, 0.1)),
    ],
)
def test_mixtures_of_any_half_lives(policy, seed):
    """In any order, with repetitions, without switching, with time gaps."""
    data, labels, _ = drifting(3000, seed, turn=2000)
    times = np.cumsum(np.random.default_rng(seed).choice([0.5, 1.0, 2.0], 3000))
    model = KalmanClassifier(policy, "raw").partial_fit(
        data[:2000], labels[:2000], time=times[:2000]
    )
    quiet = model.drift().alarms
    assert quiet <= 1
    report = model.partial_fit(data[2000:2200], labels[2000:2200], time=times[2000:2200]).drift()
    assert report.alarms == quiet + 1
    assert 2000 <= report.since < 2200


def test_a_fixed_gamma_cannot_tell_a_drift():
    for forgetting in (0.9, Fixed(1.0)):
        model = small(forgetting=forgetting).partial_fit(X, Y)
        with pytest.raises(
            InvalidInput, match=r'is fixed, so there is no drift alarm; use forgetting="mixture"'
        ):
            model.drift()
    learned = small(forgetting="learned").partial_fit(X, Y).drift()
    assert learned.half_life > 100.0
    assert not learned


@pytest.mark.parametrize("transition", ["example", "chunk"])
def test_gaps_and_chunks_are_no_drift_to_a_learned_gamma(transition):
    data, labels, _ = drifting(900, 0)
    policy = Learned(0.99, 1e-9)  # practically fixed, with a half-life of 69
    times = np.cumsum(np.random.default_rng(0).choice([0.0, 1.0, 50.0], 900))
    model = KalmanClassifier(policy, "raw", transition=transition)
    for start in range(0, 900, 30):
        part = slice(start, start + 30)
        model.partial_fit(data[part], labels[part], time=times[part])
    report = model.drift()
    assert report.alarms == 0
    assert report.half_life == report.usual_half_life == 100.0
    assert report.confidence == pytest.approx(0.0, abs=1e-12)


def test_rows_without_labels_count_for_the_alarm():
    """`since` counts from the first row, for all ways to cut the rows into chunks."""
    data, labels, _ = drifting(2400, 0, turn=1500)
    labels = labels.astype(object)
    labels[:300] = None
    at_once = KalmanClassifier(features="raw").partial_fit(data, labels)
    cut = KalmanClassifier(features="raw").partial_fit(data[:200], labels[:200])
    cut.partial_fit(data[200:], labels[200:])
    assert at_once.drift().since >= 1500
    assert cut.drift().since == at_once.drift().since


# ---- the evidence for a change -----------------------------------------------------------------


def by_hand(half_lives, belief, evidence, bound=20.0, most=1e5, slow=1000.0, bets=(1.0, 0.5, 0.2)):
    """Confidence after each row (n,), without alarms and from the definitions in `core.alarm`."""
    levels = np.unique(half_lives)
    usual, age = np.zeros(len(half_lives)), 0
    gains, odds = np.ones(len(levels)), np.zeros((len(levels), len(bets)))
    confidence = np.zeros(len(belief))
    for i, (now, log_liks) in enumerate(zip(belief, evidence, strict=True)):
        if i:
            confidence[i] = confidence[i - 1]
        if np.isnan(log_liks).any():
            continue
        rate = 1.0 / min(age / 3.0 + 1.0, slow)
        for k in range(1, len(levels)):
            shorter, own = half_lives < levels[k], half_lives == levels[k]
            top = log_liks.max()
            liks = np.exp(log_liks - top)
            weights = usual[own] + 1e-12
            ratio = (now[shorter] @ liks[shorter] / now[shorter].sum()) / (
                weights @ liks[own] / weights.sum()
            )
            ratio = np.clip(ratio, 1.0 / bound, bound)
            if age >= 200:
                won = ratio / max(gains[k], 1.0) - 1.0
                odds[k] = np.minimum(np.maximum(odds[k], 1.0) * (1.0 + np.array(bets) * won), most)
            gains[k] += rate * (ratio - gains[k])
        shares = np.array([(usual + 1e-12)[half_lives == level].sum() for level in levels])
        total = shares @ odds.mean(axis=1) / shares.sum()
        confidence[i] = total / (total + 1000.0) if age >= 200 else 0.0
        usual += rate * (now - usual)
        age += 1
    return confidence


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.floats(0.01, 1.0), st.floats(0.0, 0.3))
def test_confidence_equals_the_definition(seed, n_filters, size, missing):
    rng = np.random.default_rng(seed)
    half_lives = np.sort(rng.choice([30.0, 100.0, 1e4, math.inf], n_filters))
    belief = rng.dirichlet(np.ones(n_filters), 400)
    evidence = size * rng.standard_normal((400, n_filters))
    evidence[rng.random(400) < missing] = np.nan
    expected = by_hand(half_lives, belief, evidence)
    variance, watch, found = np.ones((1, n_filters)), Watch.start(n_filters), []
    for row, log_liks in zip(belief, evidence, strict=True):
        watch, _ = watch.after(half_lives, row[None], variance, log_liks[None])
        found.append(watch.numbers[CONFIDENCE])
    if watch.numbers[BEGAN] < 0.0:  # an alarm changes what is usual
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    at_once, _ = Watch.start(n_filters).after(half_lives, belief, np.ones(belief.shape), evidence)
    for name in ("now", "usual", "gains", "odds", "numbers", "levels"):
        assert np.array_equal(getattr(at_once, name), getattr(watch, name)), name


@pytest.mark.parametrize("size", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("tail", ["normal", "t2"])
def test_rows_that_are_alike_raise_no_alarm(size, tail):
    """A bet on ratios that do not change is fair, however they are distributed."""
    rng = np.random.default_rng(0)
    n, half_lives = 100_000, np.array([100.0, 1e3, 1e4, math.inf])
    draws = rng.standard_normal((n, 4)) if tail == "normal" else rng.standard_t(2, (n, 4))
    belief = np.full((n, 4), 0.25)
    watch, _ = Watch.start(4).after(half_lives, belief, np.ones((n, 4)), size * draws)
    assert watch.drift(half_lives).alarms <= 10


@pytest.mark.parametrize("value", [-1e100, 0.0, 700.0])
def test_evidence_of_any_size_gives_a_number(value):
    rng = np.random.default_rng(0)
    half_lives = np.array([30.0, 30.0, math.inf])
    evidence = rng.standard_normal((500, 3))
    evidence[300:, 2] = value
    evidence[350:400] = value
    belief = np.zeros((500, 3))
    belief[:, 2] = 1.0
    watch, _ = Watch.start(3).after(half_lives, belief, np.ones((500, 3)), evidence)
    for name in ("usual", "gains", "odds", "numbers"):
        assert np.isfinite(getattr(watch, name)).all(), name
    assert 0.0 <= watch.drift(half_lives).confidence <= 1.0


def test_one_row_raises_no_alarm():
    """A single row can be an outlier, whatever the filters make of it."""
    half_lives, belief = np.array([100.0, math.inf]), np.full((600, 2), 0.5)
    evidence = np.zeros((600, 2))
    evidence[500, 1] = -1e6
    watch, _ = Watch.start(2).after(half_lives, belief, np.ones((600, 2)), evidence)
    assert watch.drift(half_lives).alarms == 0


def test_an_older_watch_goes_on():
    numbers = np.array([5000.0, 0.1, 0.0, 1234.0, 0.95, 1.0, 0.0])
    old = {"now": np.full(5, 0.2), "usual": np.full(5, 0.2), "levels": np.zeros(5)}
    tree = MIGRATIONS[4]({"Watch": old | {"numbers": numbers}})
    watch = Watch(**tree["Watch"])
    assert watch.numbers[AGE] == 5000.0
    report = watch.drift(np.array([1e2, 1e3, 1e4, 1e5, math.inf]))
    assert (report.since, report.alarms, report.peak) == (1234, 1, 0.95)
    after, _ = watch.after(np.arange(5.0), np.full((1, 5), 0.2), np.ones((1, 5)), np.zeros((1, 5)))
    assert after.numbers[0] == 5001.0
    assert not after.drift(np.arange(5.0))
