"""Predictions while other threads learn, and after a fork, are those of a published model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.errors import KalstreamError

RNG = np.random.default_rng(1)
X = RNG.standard_normal((3000, 3))
LABELS = np.where(X[:, 0] > 0.0, "up", "down").astype(object)
ROWS = X[:2]


def key(prediction: Any) -> tuple[Any, ...]:
    return tuple(np.asarray(prediction).ravel().tolist())


def chunks(size: int) -> Iterator[tuple[Any, Any]]:
    while True:
        for start in range(0, len(X), size):
            yield X[start : start + size], LABELS[start : start + size]


def learn_chunks(model: Any) -> Iterator[None]:
    for rows, labels in chunks(7):
        model.partial_fit(rows, labels)
        yield


def predict_and_learn(model: Any) -> Iterator[None]:
    for rows, labels in chunks(20):
        model.predict_then_learn(rows, labels)
        yield


def grow_classes(model: Any) -> Iterator[None]:
    for k, (rows, labels) in enumerate(chunks(5)):
        if k % 4 == 0 and len(model.classes_) < 40:
            labels = np.append(labels[:-1], [k])
        model.predict_then_learn(rows, labels)
        yield


def fail(model: Any) -> Iterator[None]:
    for k, (rows, labels) in enumerate(chunks(9)):
        if k % 2:
            model.predict_then_learn(rows, labels)
        else:
            bad = rows.copy()
            bad[-1, 0] = np.inf
            with pytest.raises(KalstreamError):
                model.predict_then_learn(bad, np.append(labels[:-1], ["never"]))
        yield


LEARNERS = [learn_chunks, predict_and_learn, grow_classes, fail]


def check_predictions(learner: Callable[[Any], Iterator[None]], n_predictions: int) -> None:
    model = KalmanClassifier(n_components=40, random_state=0).partial_fit(X[:100], LABELS[:100])
    model.predict_proba(ROWS)
    published, predictions, done = {key(model.predict_proba(ROWS))}, [], Event()
    errors: list[BaseException] = []

    def predict() -> None:
        try:
            while not done.is_set():
                predictions.append(key(model.predict_proba(ROWS)))
        except BaseException as error:
            errors.append(error)

    before, threads = sys.getswitchinterval(), [Thread(target=predict) for _ in range(3)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        learning = learner(model)
        # On a busy machine readers may run long before the learner has its turn.
        while (len(predictions) < n_predictions or len(set(predictions)) <= 3) and not errors:
            next(learning)
            published.add(key(model.snapshot().predict_proba(ROWS)))
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert not errors
    n_unpublished = sum(prediction not in published for prediction in predictions)
    assert n_unpublished == 0, f"{n_unpublished} of {len(predictions)} match no published model"
    assert len(set(predictions)) > 3  # predictions did come while it learned


@pytest.mark.parametrize("learner", LEARNERS)
def test_every_prediction_is_of_a_published_model(learner: Any) -> None:
    check_predictions(learner, 1_000)


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_a_hundred_thousand_predictions(learner: Any) -> None:
    check_predictions(learner, 100_000)


def test_threads_that_learn_lose_no_rows() -> None:
    model = KalmanClassifier(features="raw")

    def learn() -> None:
        for i in range(50):
            model.partial_fit(X[i : i + 2], LABELS[i : i + 2])

    threads = [Thread(target=learn) for _ in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert model.n_seen_ == 4 * 50 * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("kind", [KalmanClassifier, KalmanRegressor])
def test_a_child_predicts_and_learns_while_its_parent_learns(kind: type) -> None:
    targets: Any = LABELS if kind is KalmanClassifier else X[:, 0]
    model = kind(n_components=40, random_state=0).partial_fit(X[:100], targets[:100])
    model.predict(ROWS)
    model.partial_fit(X[:3], targets[:3])
    done = Event()

    def learn() -> None:
        k = 0
        while not done.is_set():
            size = (1, 30, 100)[k % 3]
            model.partial_fit(X[k : k + size], targets[k : k + size])
            k = (k + size) % 2000

    thread = Thread(target=learn)
    thread.start()
    try:
        hung = 0
        for _ in range(30):
            sleep(0.003)
            child = os.fork()
            if child == 0:
                try:
                    model.predict(ROWS)
                    model.partial_fit(X[:3], targets[:3])
                    os._exit(0)
                finally:
                    os._exit(1)
            hung += ended(child) != 0
    finally:
        done.set()
        thread.join()
    assert hung == 0


def ended(child: int, seconds: float = 20.0) -> int:
    """Exit status of a child, after killing it if it takes too long."""
    end = monotonic() + seconds
    while monotonic() < end:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return status
        sleep(0.002)
    os.kill(child, 9)
    return os.waitpid(child, 0)[1]
