"""After an exception at any bytecode, the model is as before the call or as after it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from kalstream import KalmanClassifier, KalmanRegressor
from robustness.interrupts import count_bytecodes, interrupt_at

Model = KalmanClassifier | KalmanRegressor
RNG = np.random.default_rng(17)
X = RNG.standard_normal((400, 3))
LABELS = np.where(X[:, 0] + 0.3 * RNG.standard_normal(400) > 0.0, "up", "down")
VALUES = X @ [1.0, -1.0, 0.5] + 0.1 * RNG.standard_normal(400)

SETTINGS: dict[str, dict[str, Any]] = {
    "mixture": {"features": "raw"},
    "fourier": {"n_components": 70},
    "learned": {"forgetting": "learned", "features": "scaled", "noise_var": 0.1},
    "fixed": {"forgetting": 0.99, "features": "raw"},
    "chunk": {"features": "raw", "transition": "chunk"},
}


def predictions(model: Model) -> Any:
    if isinstance(model, KalmanClassifier):
        seen = model.predict_proba(X[:3]), model.classes_.tolist(), model.n_seen_
        return *seen, [*model.waiting_ids_, model.waiting_.told]
    return *model.predict(X[:3], return_std=True), model.n_seen_


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def calls(kind: type, n: int) -> dict[str, Callable[[Any], Any]]:
    """Every call that learns n rows, by name."""
    targets: Any = LABELS if kind is KalmanClassifier else VALUES
    rows, y = X[200 : 200 + n], targets[200 : 200 + n]
    by_name: dict[str, Callable[[Any], Any]] = {
        "partial_fit": lambda model: model.partial_fit(rows, y),
        "predict_then_learn": lambda model: model.predict_then_learn(rows, y),
        "weighted": lambda model: model.partial_fit(rows, y, sample_weight=np.full(n, 0.5)),
        "fit": lambda model: model.fit(rows, y),
    }
    if kind is KalmanClassifier:
        new = y.astype(object).copy()
        new[n // 2] = "new"
        by_name["new class"] = lambda model: model.partial_fit(rows, new)
        by_name["new class, predicted"] = lambda model: model.predict_then_learn(rows, new)
        by_name["declared"] = lambda model: model.partial_fit(rows, y, classes=["up", "far"])
        by_name["retire_class"] = lambda model: model.retire_class("up")
    return by_name


def late_calls(n: int) -> dict[str, Callable[[Any], Any]]:
    """Calls of n rows of a model that was asked for rows with the ids from 0 to n - 1."""
    rows, y = X[200 : 200 + n], LABELS[200 : 200 + n]
    return {
        "ask": lambda model: model.ask(rows, ids=range(n, 2 * n)),
        "tell": lambda model: model.tell(range(n), y),
        "partial_fit": lambda model: model.partial_fit(rows, y),
        "predict_then_learn": lambda model: model.predict_then_learn(rows, y),
    }


def interrupted(make: Callable[[], Any], call: Callable[[Any], Any], moments: Any) -> int:
    """Interrupt a call at each of these moments in [0, 1); return the number of interrupts."""
    before, whole = predictions(make()), make()
    call(whole)  # the first call imports and compiles
    after, n, n_bytecodes = predictions(whole), 0, count_bytecodes(partial(call, make()))
    model = make()
    for moment in moments:
        place = int(moment * n_bytecodes)
        n += interrupt_at(partial(call, model), place)
        now = predictions(model)
        if not same(now, before):
            assert same(now, after), f"changed by an interrupt at bytecode {place}"
            model = make()
        elif n % 5 == 0:  # it can still learn
            call(model)
            assert same(predictions(model), after), f"lost after an interrupt at bytecode {place}"
            model = make()
    return n


@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
@pytest.mark.parametrize(("setting", "n"), [("mixture", 1), ("fourier", 20), ("learned", 5)])
def test_an_interrupted_model_is_as_before_or_as_after(kind: type, setting: str, n: int) -> None:
    check(kind, setting, n, 10)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 5, 64, 100])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
def test_twenty_thousand_interrupts(kind: type, setting: str, n: int) -> None:
    check(kind, setting, n, 100)


@pytest.mark.parametrize("setting", ["mixture", "fourier"])
def test_an_interrupted_row_waits_or_does_not(setting: str) -> None:
    check_single_rows(setting, 10)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["mixture", "fourier"])
def test_five_thousand_interrupts_of_single_rows(setting: str) -> None:
    check_single_rows(setting, 650)


def check_single_rows(setting: str, times: int) -> None:
    model = KalmanClassifier(**SETTINGS[setting], random_state=0).partial_fit(X[:60], LABELS[:60])
    for i in range(60, 80):
        model.ask(X[i : i + 1], ids=["row"])
        model.tell(["row"], LABELS[i : i + 1])
        model.predict_then_learn(X[i : i + 1], LABELS[i : i + 1])
    model.ask(X[200:201], ids=[0])
    frozen, rng = pickle.dumps(model), np.random.default_rng(1)

    def ready() -> Any:
        made = pickle.loads(frozen)
        made.predict_proba(X[:1])  # what is packed for single rows is no part of a pickle
        return made

    for name, call in late_calls(1).items():
        assert interrupted(ready, call, rng.random(times)) >= times * 0.9, name


def check(kind: type, setting: str, n: int, times: int) -> None:
    targets: Any = LABELS if kind is KalmanClassifier else VALUES
    model = kind(**SETTINGS[setting], random_state=0)
    for i in range(0, 60, 3):  # some updates are deferred
        model.partial_fit(X[i : i + 3], targets[i : i + 3])
    frozen = pickle.dumps(model)
    rng = np.random.default_rng(n)
    for name, call in calls(kind, n).items():
        moments = rng.random(times)
        assert interrupted(lambda: pickle.loads(frozen), call, moments) >= times // 2, name


@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
def test_an_interrupted_first_call_leaves_nothing_behind(kind: type) -> None:
    targets: Any = LABELS if kind is KalmanClassifier else VALUES
    for method in ("partial_fit", "predict_then_learn", "fit"):
        model, call = kind(features="raw"), partial(getattr(kind, method), X=X[:9], y=targets[:9])
        call(kind(features="raw"))
        n = count_bytecodes(partial(call, kind(features="raw")))
        for place in range(0, n, max(1, n // 40)):
            early = interrupt_at(partial(call, model), place)
            assert early or place > n // 2  # the second call does not read parameters again
            assert hasattr(model, "n_features_in_") == (model.n_seen_ > 0)
            assert model.n_seen_ in (0, 9)
            model.reset()


def test_the_harness_interrupts() -> None:
    model = KalmanClassifier(features="raw").partial_fit(X[:9], LABELS[:9])
    assert interrupt_at(lambda: model.predict(X[:1]), 10)
    assert not interrupt_at(lambda: model.predict(X[:1]), 10**9)


def test_an_interrupt_that_numba_wraps_arrives_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = KalmanClassifier(features="raw").partial_fit(X[:9], LABELS[:9])

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            raise SystemError(
                "a function returned a result with an exception"
            ) from KeyboardInterrupt()
        except SystemError as error:
            raise SystemError("returned a result with an exception set") from error

    monkeypatch.setattr("kalstream.core.bank.Bank.run", wrapped)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X[:2], LABELS[:2])
    monkeypatch.setattr("kalstream.core.bank.Bank.foreseen", wrapped)
    with pytest.raises(KeyboardInterrupt):
        model.predict(X[:2])
    monkeypatch.setattr("kalstream.core.row.RowState._products", wrapped)
    for call in (lambda: model.partial_fit(X[:1], LABELS[:1]), lambda: model.predict(X[:1])):
        with pytest.raises(KeyboardInterrupt):
            call()
