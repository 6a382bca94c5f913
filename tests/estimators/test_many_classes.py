"""Classes that come one after another: spare room grows in proportion and changes no number."""

from typing import Any

import numpy as np
import pytest

from kalstream import KalmanClassifier
from kalstream.core.fixed import Fixed
from kalstream.core.mixture import MixtureState

RNG = np.random.default_rng(5)
X = RNG.standard_normal((400, 3))
NAMES = [f"class {i}" for i in range(300)]


def one_by_one(model: KalmanClassifier, n: int) -> KalmanClassifier:
    for i in range(n):
        model.partial_fit(X[i : i + 1], NAMES[i : i + 1])
    return model


@pytest.mark.parametrize("forgetting", ["mixture", 0.99, "learned"])
@pytest.mark.parametrize("stacking", [True, False])
def test_late_classes_are_as_declared_ones(forgetting: Any, stacking: bool, tmp_path: Any) -> None:
    late = KalmanClassifier(forgetting, "raw", stacking=stacking)
    declared = KalmanClassifier(forgetting, "raw", stacking=stacking)
    one_by_one(late, 150)
    declared.partial_fit(X[:1], NAMES[:1], classes=NAMES[:150])
    for i in range(1, 150):
        declared.partial_fit(X[i : i + 1], NAMES[i : i + 1])
    assert late.predict_proba(X[200:210]).shape == (10, 150)
    np.testing.assert_allclose(
        late.predict_proba(X[200:210]), declared.predict_proba(X[200:210]), rtol=1e-7, atol=1e-12
    )
    np.testing.assert_allclose(late.coef_, declared.coef_, rtol=1e-7, atol=1e-10)
    assert late.health_.nis == pytest.approx(declared.health_.nis)
    late.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    for model in (late, again):
        model.partial_fit(X[300:303], NAMES[149:152])
    assert (late.predict_proba(X[:9]) == again.predict_proba(X[:9])).all()


def test_growing_is_amortised(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    original = MixtureState.add_outputs

    def counted(self: MixtureState, n_outputs: int) -> MixtureState:
        copies.append(n_outputs)
        return original(self, n_outputs)

    monkeypatch.setattr(MixtureState, "add_outputs", counted)
    model = one_by_one(KalmanClassifier(features="raw"), 300)
    assert len(model.classes_) == 300
    # One by one up to 64 classes, then by a quarter: the filters, and those of an expert.
    assert len(copies) < 2 * (64 + 9)


def test_a_row_costs_the_classes_known_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    original = Fixed.step_chunk

    def counted(self: Fixed, state: Any, *rows: Any, **settings: Any) -> Any:
        state, step = original(self, state, *rows, **settings)
        sizes.append(step.logit_mean.size)
        return state, step

    monkeypatch.setattr(Fixed, "step_chunk", counted)
    rows = RNG.standard_normal((1000, 2))
    model = KalmanClassifier(1.0, "raw").partial_fit(rows, np.arange(1000))
    assert len(model.classes_) == 1000
    assert sum(sizes) < 0.75 * 1000 * 1000  # half of it, and room to grow
    assert max(sizes) < 150 * 1000


@pytest.mark.parametrize("forgetting", ["mixture", 0.99, "learned"])
@pytest.mark.parametrize("likelihood", ["softmax", "onehot"])
def test_many_new_labels_of_one_call_are_as_of_many_calls(forgetting: Any, likelihood: str) -> None:
    together, apart = (KalmanClassifier(forgetting, "raw", likelihood=likelihood) for _ in "12")
    labels = [NAMES[i] if i % 3 else None for i in range(300)]
    weight = RNG.uniform(0.0, 2.0, 300)
    together.partial_fit(X[:300], labels, sample_weight=weight)
    for part in (slice(0, 7), slice(7, 190), slice(190, 300)):
        apart.partial_fit(X[part], labels[part], sample_weight=weight[part])
    expected = apart.predict_proba(X[300:])
    np.testing.assert_allclose(together.predict_proba(X[300:]), expected, rtol=1e-9, atol=1e-12)
    assert together.n_seen_ == apart.n_seen_ == 300
    assert together.health_.nis == pytest.approx(apart.health_.nis)
    if forgetting != 0.99:  # which has no drift alarm
        assert together.drift().confidence == pytest.approx(apart.drift().confidence, abs=1e-9)


def test_a_class_is_retired_from_among_many() -> None:
    model = one_by_one(KalmanClassifier(features="raw"), 100)
    model.predict_then_learn(X[300:304], NAMES[:4])
    model.retire_class("class 7")
    assert len(model.classes_) == 99
    assert model.predict_proba(X[:2]).sum(axis=1) == pytest.approx(1.0)
    one_by_one(model, 120)
    assert len(model.classes_) == 120
