"""Files of earlier versions are still read, and still give the same predictions.

A default that has changed since (the share of a mixture) is that of the version that reads.

Run as a script, this writes those of the current format; files of past formats are
never written again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.estimators.checkpoint import FORMAT
from kalstream.estimators.migrations import MIGRATIONS

FOLDER = Path(__file__).parents[1] / "data"
ROWS = np.linspace(-2.0, 2.0, 12).reshape(4, 3)


def models() -> dict[str, KalmanClassifier | KalmanRegressor]:
    """The models to save: all policies and features, pending rows, labels of two types."""
    rng = np.random.default_rng(0)
    X, labels = rng.standard_normal((40, 3)), np.array(["no", "yes"])[rng.integers(2, size=40)]
    settings: dict[str, Any] = {"n_components": 4, "random_state": 0, "class_weight": "balanced"}
    mixture = KalmanClassifier(experts=[], **settings)
    committee = KalmanClassifier(preset="accurate", **settings)
    learned = KalmanClassifier("learned", "scaled", time_unit=2.0)
    fixed = KalmanRegressor(0.9, "raw", dtype=np.float32)
    for i in range(40):
        for model in (mixture, committee):
            model.partial_fit(X[i : i + 1], [None if i % 7 == 3 else str(labels[i])])
        learned.partial_fit(X[i : i + 1], [int(i % 3)], time=[float(i * i)])
    learned.partial_fit(X[:1], ["late"], time=[1e4])
    for model in (mixture, committee):
        model.predict_then_learn(X, labels.tolist())
        model.ask(X[:5], ids=["a", "b", "c", "d", 5])
        model.tell(["c", 5], ["yes", "no"])
    late = KalmanRegressor(features="raw")
    for i in range(40):
        late.ask(X[i : i + 1], ids=[i])
        if i >= 10:
            late.tell([i - 10], X[i - 10, :1])
    fixed.fit(X, X[:, 0])
    classifiers = {"mixture": mixture, "committee": committee, "learned": learned}
    return {**classifiers, "fixed": fixed, "late": late}


def answers(model: KalmanClassifier | KalmanRegressor) -> list[list[float]]:
    if isinstance(model, KalmanClassifier):
        return model.predict_proba(ROWS).tolist()
    return np.stack(model.predict(ROWS, return_std=True)).tolist()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.safetensors")), ids=lambda path: path.stem)
def test_file_of_an_earlier_version(path: Path) -> None:
    kind = KalmanRegressor if path.stem.startswith(("fixed", "late")) else KalmanClassifier
    model = kind.load(path)
    expected = json.loads(path.with_suffix(".json").read_text())
    np.testing.assert_allclose(answers(model), expected, rtol=1e-6)
    y = ["no"] if kind is KalmanClassifier else [0.5]
    gap = {} if "learned" not in path.stem else {"time": [1e5]}
    model.partial_fit(ROWS[:1], y, **gap)  # it continues to learn


def test_there_is_a_file_of_every_format() -> None:
    for number in range(1, FORMAT + 1):
        n_files = len(list(FOLDER.glob(f"*-format-{number}.safetensors")))
        # Late values came with format 7, experts with format 8.
        assert n_files == len(models()) - (number < 7) - (number < 8)


def test_rows_that_wait_in_an_earlier_format_are_learned() -> None:
    made = []
    for number in (6, FORMAT):
        model = KalmanClassifier.load(FOLDER / f"mixture-format-{number}.safetensors")
        before = model.predict_proba(ROWS)
        model.tell(["a", "b", "c", 5], ["no", "yes", "yes", "yes"])
        counts = model.waiting_
        assert (counts.waiting, counts.told, counts.repeated, counts.corrected) == (1, 4, 1, 1)
        made.append(model.predict_proba(ROWS))
        assert not np.allclose(made[-1], before)
    # In format 6 the weights of the filters were judged late, and are so in the order of labels.
    np.testing.assert_allclose(made[0], made[1], atol=0.003)


def test_values_that_wait_in_an_earlier_format_are_learned() -> None:
    made = []
    for number in (7, 9):  # with the same filters
        model = KalmanRegressor.load(FOLDER / f"late-format-{number}.safetensors")
        model.tell(range(30, 40), np.linspace(-1.0, 1.0, 10))
        mean, std = model.ask(ROWS, keep=False)
        assert np.isfinite([mean, std]).all()
        made.append(mean)
    np.testing.assert_allclose(made[0], made[1], atol=0.1)  # other beliefs in the two judges


def test_a_regression_keeps_the_filters_it_had() -> None:
    old, new = (KalmanRegressor.load(FOLDER / f"late-format-{n}.safetensors") for n in (9, FORMAT))
    assert new.forgetting == "mixture"
    assert len(new.half_life_weights_) == 6
    assert list(old.half_life_weights_) == [1e2, 1e3, 1e4, 1e5, np.inf]
    assert {scale for scale in old.forgetting.prior_scales} == {1.0}
    again = clone(old).fit(ROWS, ROWS[:, 0])
    assert list(again.half_life_weights_) == list(old.half_life_weights_)


@pytest.mark.parametrize("orders", [2, {"@tuple": [1, 2]}])
def test_filters_of_earlier_regressions_have_their_orders(orders: Any) -> None:
    params = [["forgetting", "mixture"], ["order", orders], ["calibration", 3.0]]
    values = {"Model": {"targets": {"Values": {}}}}
    base = {"@dict": [["params", {"@dict": params}], ["model", values]]}
    MIGRATIONS[9]({"@dict": [["base", base]]})  # also where it is the base of a keyed model
    found = dict(params)
    each = [2] if orders == 2 else [1, 2]
    mixture = found["forgetting"]["Mixture"]
    assert mixture["order"]["@tuple"] == [*np.repeat(each, 4).tolist(), 1]
    assert len(mixture["half_lives"]["@tuple"]) == 4 * len(each) + 1
    assert (found["order"], found["calibration"]) == (1, "auto")


if __name__ == "__main__":
    for name, model in models().items():
        target = FOLDER / f"{name}-format-{FORMAT}.safetensors"
        model.save(target)
        target.with_suffix(".json").write_text(json.dumps(answers(model)) + "\n")
