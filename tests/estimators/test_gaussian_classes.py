"""The expert `GaussianClasses` in a stack: curved boundaries, late labels, files, growth."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from kalstream import CRPClassifier, KalmanClassifier
from kalstream.core import ExpertRows, GaussianClasses
from kalstream.errors import InvalidInput
from kalstream.evaluate import prequential
from kalstream.streams import ArrayStream

Array = NDArray[Any]


def stream(n: int = 600) -> tuple[Array, Array]:
    """A narrow class inside a wide one."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=n)
    X = rng.standard_normal((n, 4)) * (1.0 + 3.0 * y)[:, None]
    return X, np.where(y > 0, "wide", "narrow")


def model(**settings: Any) -> KalmanClassifier:
    return KalmanClassifier(features="scaled", experts=[GaussianClasses()], **settings)


def test_it_sees_what_a_linear_readout_does_not() -> None:
    X, y = stream()
    right = {}
    plain = KalmanClassifier(features="scaled", experts=[])
    for name, each in {"with": model(), "without": plain}.items():
        p = each.predict_then_learn(X, y)
        right[name] = (each.classes_[p.argmax(axis=1)] == y)[200:].mean()
    assert right["with"] > 0.85
    assert right["without"] < right["with"] - 0.05


def test_it_says_what_the_classifier_says() -> None:
    X, y = stream(200)
    codes = (y == "wide").astype(np.int64)
    rows = ExpertRows(X, codes, np.ones(200), np.ones(200), np.arange(200))
    _, out = GaussianClasses().advance(GaussianClasses().start(4, 2), rows)
    p = CRPClassifier().predict_then_learn(X, y)
    np.testing.assert_allclose(np.exp(out)[2:], p[2:], rtol=1e-9)


def test_late_labels_files_and_copies(tmp_path: Path) -> None:
    X, y = stream(300)
    each = model().partial_fit(X[:150], y[:150])
    each.ask(X[150:200], ids=range(150, 200))
    each.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    assert list(again.experts) == [GaussianClasses()]
    for one in (each, again):
        one.tell(range(150, 200), y[150:200])
        one.partial_fit(X[200:], y[200:])
    np.testing.assert_array_equal(each.predict_proba(X), again.predict_proba(X))


def test_classes_and_columns_come_and_go() -> None:
    X, y = stream(200)
    each = model().partial_fit(X, y).partial_fit(X[:5], ["new"] * 5)
    assert each.retire_class("wide").classes_.tolist() == ["narrow", "new"]
    each.add_columns(1)
    more = np.pad(X[:50], ((0, 0), (0, 1)), constant_values=np.nan)
    np.testing.assert_allclose(each.predict_proba(more).sum(axis=1), 1.0)
    more[:, 4] = 1.0
    each.partial_fit(more, y[:50])
    assert np.isfinite(each.predict_proba(more)).all()


@pytest.mark.parametrize("most_columns", [64, 1])
def test_a_state_that_grew_is_that_of_missing_columns_but_for_the_voices(most_columns: int) -> None:
    X, y = stream(200)
    codes = (y == "wide").astype(np.int64)
    expert = GaussianClasses(most_columns=most_columns)

    def passed(columns: Array, state: Any, labels: Array) -> Any:
        n = len(columns)
        return expert.advance(
            state, ExpertRows(columns, labels, np.ones(n), np.ones(n), np.arange(n))
        )

    whole = np.pad(X, ((0, 0), (0, 2)), constant_values=np.nan)
    grown = passed(X, expert.start(4, 2), codes)[0].add_columns(2)
    grown.__post_init__()
    missing = passed(whole, expert.start(6, 2), codes)[0].with_prior()
    beliefs = {name: getattr(grown, name) for name in ("known_belief", "new_belief")}
    missing = replace(missing, **beliefs)
    whole[:, 4:] = 0.5
    none = np.full(200, -1)
    new = passed(whole, grown, none)[1], passed(whole, missing, none)[1]
    np.testing.assert_allclose(np.exp(new[0]), np.exp(new[1]), rtol=1e-8)
    begun = expert.start(4, 2).add_columns(2)
    np.testing.assert_allclose(begun.shared, expert.start(6, 2).shared)
    fewer = grown.keep_classes(np.array([1]))
    fewer.__post_init__()
    assert fewer.n_classes == 1


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="half_life"):
        GaussianClasses(half_life=-1.0)


def opening(n: int = 400) -> tuple[Array, Array]:
    """Rows (n, 3) of ten classes, of which one more can come every 40 rows."""
    rng = np.random.default_rng(1)
    y = np.minimum(rng.integers(10, size=n), 1 + np.arange(n) // 40)
    return 15.0 * rng.standard_normal((10, 3))[y] + rng.standard_normal((n, 3)), y


@pytest.mark.parametrize("features", ["raw", "fourier"])
def test_a_class_never_seen_has_the_probability_that_the_classifier_gives(features: str) -> None:
    X, y = opening()
    X[5, 1] = np.nan
    weight = np.tile([1.0, 0.5, 0.0, 2.0], 100)
    labels = [None if i % 7 == 3 else int(label) for i, label in enumerate(y)]
    experts = {"experts": [GaussianClasses()], "n_components": 20, "random_state": 0}
    options: dict[str, Any] = {"features": features, **experts}
    whole, plain = KalmanClassifier(**options), KalmanClassifier(**options)
    p, new = whole.predict_open_then_learn(X, labels, weight)
    np.testing.assert_array_equal(p, plain.predict_then_learn(X, labels, weight))
    of_classifier = CRPClassifier()
    expected = of_classifier.predict_open_then_learn(X, labels, weight)[1]
    np.testing.assert_allclose(new, expected, rtol=1e-9)
    np.testing.assert_allclose(whole.new_class_proba(X), of_classifier.new_class_proba(X))
    for size in (1, 63):
        cut, parts = KalmanClassifier(**options), []
        for i in range(0, 400, size):
            part = slice(i, i + size)
            made = cut.predict_open_then_learn(X[part], labels[part], weight[part])
            parts.append(made[1])
        np.testing.assert_allclose(np.concatenate(parts), new, rtol=1e-9)


def test_a_class_never_seen_is_expected_where_it_comes(tmp_path: Path) -> None:
    X, y = opening()
    each = model()
    p, new = each.predict_open_then_learn(X, y)
    first = np.zeros(len(y), bool)
    first[np.unique(y, return_index=True)[1]] = True
    assert roc_auc_score(first[1:], new[1:]) > 0.95
    np.testing.assert_allclose((p * (1.0 - new)[:, None]).sum(axis=1)[1:] + new[1:], 1.0)
    by_frequency = 1.0 / (1.0 + np.arange(len(y)))
    loss, usual = (-np.log(np.where(first, q, 1.0 - q)[1:]).mean() for q in (new, by_frequency))
    assert loss < 0.5 * usual
    each.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.new_class_proba(X), each.new_class_proba(X))
    far = [X[-1], [500.0, 0.0, -500.0]]
    assert again.predict(far, abstain_below=0.5).tolist() == [y[-1], None]
    assert again.predict_proba(far)[1].max() > 0.5  # the known classes alone would not abstain
    found = prequential(model(), ArrayStream(X, y)).total
    assert found["open_log_loss"] < found["log_loss"]


def test_late_labels_weigh_in_the_probability_of_a_class_never_seen() -> None:
    X, y = opening()
    each = model().partial_fit(X[:200], y[:200])
    each.ask(X[200:], ids=range(200, 400))
    each.tell(range(200, 400), y[200:])
    in_time = model().partial_fit(X, y)
    np.testing.assert_allclose(each.new_class_proba(X), in_time.new_class_proba(X), rtol=1e-9)


def test_without_the_expert_nothing_says_how_probable_a_new_class_is() -> None:
    X, y = opening()
    each = KalmanClassifier(features="raw").partial_fit(X, y)
    assert not each.expects_new_classes
    with pytest.raises(InvalidInput, match=r"experts=\[..., kalstream.core.GaussianClasses"):
        each.new_class_proba(X)
    before = each.predict_proba(X)
    with pytest.raises(InvalidInput, match="GaussianClasses"):
        each.predict_open_then_learn(X, y)
    np.testing.assert_array_equal(each.predict_proba(X), before)  # it has learned nothing


def test_with_the_transition_by_chunk_rows_of_a_chunk_know_nothing_of_each_other() -> None:
    X, y = opening()
    each = model(transition="chunk").partial_fit(X[:100], y[:100])
    expected = each.new_class_proba(X[100:200])
    new = each.predict_open_then_learn(X[100:200], y[100:200])[1]
    np.testing.assert_array_equal(new, expected)
