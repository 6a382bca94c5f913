"""Classes that come one after another: spare room grows in proportion and changes no number."""

from typing import Any

import numpy as np
import pytest

from kalstream import KalmanClassifier
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
    assert len(copies) < 64 + 9  # one by one up to 64 classes, then by a quarter


def test_a_class_is_retired_from_among_many() -> None:
    model = one_by_one(KalmanClassifier(features="raw"), 100)
    model.predict_then_learn(X[300:304], NAMES[:4])
    model.retire_class("class 7")
    assert len(model.classes_) == 99
    assert model.predict_proba(X[:2]).sum(axis=1) == pytest.approx(1.0)
    one_by_one(model, 120)
    assert len(model.classes_) == 120
