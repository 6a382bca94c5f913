"""Sample weights and class weights."""

import numpy as np
import pytest

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.errors import InvalidInput
from small_models import BOTH, X, Y, answer, small, target


def test_class_weights_multiply_sample_weights():
    weights = {0: 2.0, 2: 0.5}
    each = np.array([2.0, 1.0, 0.5])[Y]
    plain = small().partial_fit(X, Y, sample_weight=each)
    assert answer(small(class_weight=weights).partial_fit(X, Y)) == answer(plain)
    mine = np.random.default_rng(0).uniform(0.1, 3.0, 60)
    assert answer(small(class_weight=weights).partial_fit(X, Y, sample_weight=mine)) == answer(
        small().partial_fit(X, Y, sample_weight=mine * each)
    )
    assert answer(plain) != answer(small().partial_fit(X, Y))


def test_balanced_goes_by_the_frequencies_so_far():
    labels = ["a"] * 9 + ["b"] + ["a"] * 9 + ["b"]
    each, counts = [], {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
        each.append(sum(counts.values()) / (len(counts) * counts[label]))
    balanced = small(class_weight="balanced").partial_fit(X[:20], labels)
    weighted = small().partial_fit(X[:20], labels, sample_weight=each)
    assert answer(balanced) == answer(weighted)
    rare = small().partial_fit(X[:20], labels).predict_proba(X)[:, 1].mean()
    assert balanced.predict_proba(X)[:, 1].mean() > 1.2 * rare


@BOTH
@pytest.mark.parametrize("settings", [{}, {"forgetting": 0.9}, {"class_weight": "balanced"}])
def test_weight_zero_is_no_target(kind, settings):
    if kind is KalmanRegressor and "class_weight" in settings:
        pytest.skip("of classes")
    weight = np.random.default_rng(3).choice([0.0, 1.0, 2.0], 60)
    weight[0] = 0.0  # the first target is the origin of a regression
    weight[-1] = 1.0
    y = target(kind).astype(object)
    y[weight == 0.0] = None
    # the same order of columns, so that sums are rounded the same way
    more = {"classes": [0, 1, 2]} if kind is KalmanClassifier else {}
    one = small(kind, **settings).partial_fit(X, target(kind), sample_weight=weight, **more)
    other = small(kind, **settings).partial_fit(X, y, sample_weight=weight, **more)
    assert answer(one) == answer(other)
    before = one.n_seen_
    one.partial_fit(X[:1], target(kind)[:1], sample_weight=[0.0])
    assert one.n_seen_ == before + 1
    assert answer(one) == answer(other.partial_fit(X[:1], [None]))
    with pytest.raises(InvalidInput, match="sample_weight is zero in every row"):
        one.fit(X, target(kind), sample_weight=np.zeros(60))
