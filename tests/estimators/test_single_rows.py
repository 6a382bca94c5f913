"""A single row goes a short way of its own, with the numbers of the long one."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream import KalmanClassifier
from kalstream.core import LabelChain, Mixture, Neighbours
from kalstream.errors import InvalidInput
from kalstream.estimators import _base, _late, _row, classifier

RNG = np.random.default_rng(5)
X = RNG.standard_normal((400, 4))
LABELS = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 1)]
LABELS[200:] = np.roll(LABELS, 1)[200:]


def long_way(*_: Any) -> None:
    """In place of `_row.learn_row` and `predict_row`."""


class Counted:
    """Counts the rows that go the short way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.short = 0
        ways = (_base, "learn_row"), (classifier, "predict_row"), (_late, "exchange_row")
        for module, name in ways:
            monkeypatch.setattr(module, name, self.counted(getattr(_row, name)))

    def counted(self, way: Any) -> Any:
        def wrapped(*args: Any) -> Any:
            made = way(*args)
            self.short += made is not None
            return made

        return wrapped


def passed(model: Any, calls: list[int], missing: int) -> list[Any]:
    """What a model answers to rows of its own, in calls of three kinds."""
    rows, answers = X.copy(), []
    rows[missing::7, 1] = np.nan
    for i, call in enumerate(calls):
        row, label = rows[i : i + 1], LABELS[i : i + 1]
        if call == 0 or i == 0:
            answers.append(model.predict_then_learn(row, label))
            continue
        if call == 1:
            answers.append(model.predict_proba(row))
        model.partial_fit(row, label)
    return answers


def seen(model: Any) -> list[Any]:
    """What can be read of a model, as numbers."""
    drift, health = model.drift(), model.health_
    weights = [
        [f.weight, *f.posterior.mean.ravel(), *f.posterior.cov.ravel()] for f in model.filters_
    ]
    return [
        *(weights, model.coef_, model.intercept_, model.cov_, model.predict_proba(X[:20])),
        [model.n_seen_, model.n_rows_, drift.alarms, drift.confidence, drift.usual_half_life],
        *([health.nis, health.smallest_innovation_var], model.is_novel(3.0 * X[:20])),
    ]


POLICIES = st.one_of(
    st.just("mixture"),
    st.builds(
        Mixture,
        half_lives=st.just((5.0, 50.0, float("inf"))),
        share=st.floats(0.0, 0.2),
        calibrations=st.sampled_from([(1.0,), (0.5, 2.0, 8.0)]),
        predictive=st.sampled_from(["probit", "exact"]),
        likelihood=st.sampled_from(["onehot", "softmax", ("softmax", "onehot", "softmax-label")]),
        prior_scale=st.sampled_from([1.0, (1.0, 10.0, 0.1)]),
    ),
)


EXPERTS = st.sampled_from([(), (Neighbours(limit=60), LabelChain(limit=40))])


@settings(max_examples=25)
@given(
    policy=POLICIES,
    experts=EXPERTS,
    features=st.sampled_from(["raw", "scaled", "fourier"]),
    stacking=st.booleans(),
    recent_labels=st.booleans(),
    seed=st.integers(0, 2**16),
    missing=st.integers(0, 6),
)
def test_both_ways_give_the_same(
    policy: Any,
    experts: Any,
    features: Any,
    stacking: bool,
    recent_labels: bool,
    seed: int,
    missing: int,
) -> None:
    calls = np.random.default_rng(seed).integers(0, 3, 250).tolist()
    parameters = {"n_components": 30, "random_state": 0, "predictive": "probit"}
    flags: dict[str, Any] = {"stacking": stacking, "recent_labels": recent_labels}
    flags["experts"] = experts if stacking else ()
    made = []
    with pytest.MonkeyPatch.context() as patch:
        counted = Counted(patch)
        model = KalmanClassifier(policy, features, **parameters, **flags)
        made.append((passed(model, calls, missing), seen(model)))
        usual = policy == "mixture" or policy.predictive == "probit"
        assert (counted.short > 100) == usual
        patch.setattr(_base, "learn_row", long_way)
        patch.setattr(classifier, "predict_row", long_way)
        model = KalmanClassifier(policy, features, **parameters, **flags)
        made.append((passed(model, calls, missing), seen(model)))
    (answers, values), (others, theirs) = made
    for one, other in zip([*answers, *values], [*others, *theirs], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def learned(n: int = 60) -> KalmanClassifier:
    """A model of which the last rows went the short way."""
    model = KalmanClassifier(features="scaled", experts=[Neighbours(limit=50), LabelChain()])
    for i in range(n):
        model.partial_fit(X[i : i + 1], LABELS[i : i + 1])
    return model


def same(one: Any, other: Any) -> None:
    for a, b in zip(seen(one), seen(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_go_on_alike_and_alone(copied: Any) -> None:
    model = learned()
    other, before = copied(model), seen(copied(model))
    kept = copied(model)
    for i in range(60, 120):  # beyond the room for pending rows
        for each in (model, other):
            each.partial_fit(X[i : i + 1], LABELS[i : i + 1])
    for a, b in zip(seen(kept), before, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(seen(model), seen(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_model_is_saved_between_rows(tmp_path: Any) -> None:
    model = learned()
    model.save(tmp_path / "model")
    other = KalmanClassifier.load(tmp_path / "model")
    same(model, other)
    for i in range(60, 90):
        np.testing.assert_array_equal(
            *(m.predict_then_learn(X[i : i + 1], LABELS[i : i + 1]) for m in (model, other))
        )


def test_what_is_unusual_goes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, model = Counted(monkeypatch), learned()
    assert counted.short > 50
    row, before = X[60:61], counted.short
    model.partial_fit(row, ["new"])
    model.partial_fit(row, [None])
    model.partial_fit(row, ["a"], sample_weight=[2.0])
    model.partial_fit(row.tolist(), ["a"])
    model.partial_fit(X[61:63], ["a", "b"])
    assert counted.short == before
    kept = seen(model)
    for bad in (np.array([[np.inf, 0.0, 0.0, 0.0]]), np.zeros((1, 3)), np.full((1, 4), 1e200)):
        with pytest.raises(InvalidInput):
            model.partial_fit(bad, ["a"])
    for a, b in zip(seen(model), kept, strict=True):
        np.testing.assert_array_equal(a, b)
    model.partial_fit(row, ["a"])
    assert counted.short > before


def test_parameters_that_change_are_followed() -> None:
    one, other = learned(), learned()
    for model in (one, other):
        model.set_params(noise_var=0.5, stacking=False, experts=())
    one.partial_fit(X[60:61], LABELS[60:61])
    other.partial_fit(X[60:61].tolist(), LABELS[60:61].tolist())
    for a, b in zip(seen(one), seen(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def asked(model: Any, delay: int, seed: int, rows: slice = slice(0, 150)) -> list[Any]:
    """What a model answers to rows that are asked for, whose labels come later, some never."""
    rng, waiting, answers = np.random.default_rng(seed), list(model.waiting_ids_), []
    for i in range(rows.start, rows.stop):
        answers.append(model.ask(X[i : i + 1], ids=[i]))
        waiting.append(i)
        if len(waiting) > delay:
            j = waiting.pop(int(rng.integers(0, 3)) if delay > 3 else 0)
            model.tell([j], LABELS[j : j + 1] if rng.random() > 0.05 else [None])
        if rng.random() < 0.1:  # a correction, or a label known in time
            if rng.random() < 0.5 and i > 20:
                told = [k for k in range(i - 20, i) if model.status_of([k]) == ["told"]]
                model.tell(told[:1], LABELS[told[:1]])
            else:
                one = slice(max(i, 1) - 1, max(i, 1))
                answers.append(model.predict_then_learn(X[one], LABELS[one]))
    return answers


def judged(model: Any) -> list[Any]:
    """What can be read of a model that was asked for rows, as numbers."""
    late, counts = model._model.late, model.waiting_
    return [
        *(late.log_weights, late.beside, late.beliefs, [late.since, model._model.last]),
        [getattr(counts, name) for name in type(counts).__slots__],
        *seen(model),
    ]


@settings(max_examples=8)
@given(
    policy=POLICIES,
    experts=EXPERTS,
    features=st.sampled_from(["raw", "scaled", "fourier"]),
    stacking=st.booleans(),
    delay=st.sampled_from([0, 1, 20]),
    seed=st.integers(0, 2**16),
)
def test_late_rows_go_both_ways(
    policy: Any, experts: Any, features: Any, stacking: bool, delay: int, seed: int
) -> None:
    parameters: dict[str, Any] = {"n_components": 30, "random_state": 0, "predictive": "probit"}
    parameters |= {"stacking": stacking, "experts": experts if stacking else ()}
    made = []
    for short in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            counted = Counted(patch)
            if not short:
                patch.setattr(_late, "exchange_row", long_way)
            model = KalmanClassifier(policy, features, **parameters)
            answers = asked(model, delay, seed)
            usual = policy == "mixture" or policy.predictive == "probit"
            assert not short or (counted.short > 150) == usual
            made.append([*answers, *judged(model)])
    for one, other in zip(*made, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


def test_a_snapshot_keeps_the_rows_that_wait(tmp_path: Any) -> None:
    experts = [Neighbours(limit=50), LabelChain()]
    model = KalmanClassifier(features="scaled", experts=experts)
    asked(model, 5, 1)
    before, values = model.snapshot(), judged(model)
    model.save(tmp_path / "model")
    loaded = KalmanClassifier.load(tmp_path / "model")
    answers = [asked(each, 5, 2, slice(150, 300)) for each in (model, loaded)]
    for one, other in zip(*answers, strict=True):  # a file forgets no bit
        np.testing.assert_array_equal(one, other)
    for one, other in zip(judged(before), values, strict=True):
        np.testing.assert_array_equal(one, other)
