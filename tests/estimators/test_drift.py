"""The drift alarm: sudden and slow changes, and streams without any."""

import numpy as np
import pytest

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.core import Fixed, Learned
from kalstream.errors import InvalidInput
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
    assert 0.0 <= model.drift().confidence <= 0.9
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
@pytest.mark.parametrize("seed", range(4))
def test_a_slow_change_is_noticed(kind, seed):
    """One rule replaces another over 2000 rows, so no single row is unusual."""
    old, new = (drifting(6000, seed, turn=turn) for turn in (None, 0))
    later = np.random.default_rng(seed).random(6000) < (np.arange(6000) - 2000) / 2000
    y = np.where(later, new[1], old[1])
    if kind is KalmanRegressor:
        y = np.where(later, new[2], old[2])
    model = kind(features="raw").partial_fit(old[0][:2000], y[:2000])
    quiet = model.drift().alarms
    assert model.partial_fit(old[0][2000:3500], y[2000:3500]).drift().alarms > quiet
    assert 2000 <= model.drift().since < 3500
    assert not model.partial_fit(old[0][3500:], y[3500:]).drift()


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
    # the weights of half-lives fluctuate: about one alarm in ten thousand rows
    assert sum(alarms) <= 4
    assert np.median(alarms) == 0


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
