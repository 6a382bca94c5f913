"""A policy whose filters are judged by their predictions, if labels are late: one file is enough.

It is the policy of test_new_policy.py with three methods more, and knows nothing of the mixture.
"""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from estimators.test_new_policy import Duel, DuelState, DuelStep, rows_that_turn, weights_of
from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.core import JudgingPolicy
from kalstream.core.bank import joined_steps
from kalstream.core.judging import Judged, LateChunk, LateJudge, LateRows, in_turn
from kalstream.core.state import BankStep

Array = NDArray[Any]
LATE = 30


class LateDuelStep(DuelStep):
    def take(self, rows: Array) -> "LateDuelStep":
        return LateDuelStep(self.bank.take(rows), self.weights[rows])


@dataclass(frozen=True)
class LateDuel(Duel, JudgingPolicy):
    """The weights follow the errors of the predictions that were made when the rows came."""

    tag: ClassVar[str] = "test.LateDuel"

    def step_events(
        self, state: DuelState, *rows: Any, **settings: float
    ) -> tuple[DuelState, LateDuelStep, BankStep]:
        state, steps, far = in_turn(self, state, LateChunk(*rows, **settings))
        weights = np.concatenate([step.weights for step in steps])
        return state, LateDuelStep(joined_steps([step.bank for step in steps]), weights), far

    def judge(
        self,
        judge: LateJudge,
        rows: LateRows,
        step: LateDuelStep,
        far: BankStep,
        *,
        noise_var: float,
        n_targets: int,
    ) -> tuple[LateJudge, LateDuelStep, Judged]:
        events, kept = rows.events, rows.kept
        kept.write(events, far)
        labels, dense = rows.targets.arrays()
        scores, weights = judge.log_weights, np.empty((len(events), 2))
        for i, slot in enumerate(events.slot):
            weights[i] = np.exp(scores[:, 0] - np.logaddexp.reduce(scores[:, 0]))
            if rows.weight[i] > 0.0 and kept.said[slot]:
                means = kept.means[slot]  # (2, K)
                target = (
                    dense[i] if rows.targets.labels is None else np.eye(means.shape[1])[labels[i]]
                )
                errors = np.minimum(np.square(target - means).sum(axis=1), 10.0)
                scores = 0.9 * scores - 2.0 * errors[:, None]
        n_experts = kept.experts.shape[1]
        judged = Judged(np.zeros((len(events), n_experts)), np.ones(len(events)), 0.001)
        return replace(judge, log_weights=scores), LateDuelStep(far, weights), judged

    def judged_late(self, state: DuelState, judge: LateJudge) -> DuelState:
        return replace(state, losses=-0.05 * judge.log_weights[:, 0])


def model() -> KalmanClassifier:
    return KalmanClassifier(LateDuel(), "scaled", experts=[])


def late(each: Any, X: Array, y: Array, start: int, stop: int) -> Array:
    """Ask for rows, and tell their labels LATE rows later."""
    made = []
    for i in range(start, stop):
        made.append(each.ask(X[i : i + 1], ids=[i])[0])
        if i >= LATE:
            each.tell([i - LATE], y[i - LATE : i - LATE + 1])
    return np.array(list(itertools.zip_longest(*made, fillvalue=0.0))).T


def test_it_is_judged_by_the_predictions_that_were_made() -> None:
    X, y = rows_that_turn()
    each = model()
    p = late(each, X, y, 0, 900)
    right = p.argmax(axis=1) == y
    assert right[300:600].mean() > 0.9
    assert right[-100:].mean() > 0.7  # a filter that forgets nothing is wrong in most of them
    judge = each._model.late
    assert judge is not None
    assert np.ptp(judge.log_weights) > 0.1  # it began at 0
    np.testing.assert_allclose(
        list(each.half_life_weights_.values()), weights_of(-0.05 * judge.log_weights[:, 0])
    )


def test_labels_in_time_are_learned_as_by_predict_then_learn() -> None:
    X, y = rows_that_turn(60)
    one, other = model().partial_fit(X[:6], y[:6]), model().partial_fit(X[:6], y[:6])
    for i in range(6, 60):
        one.ask(X[i : i + 1], ids=[i])
        one.tell([i], y[i : i + 1])
        other.partial_fit(X[i : i + 1], y[i : i + 1])
    np.testing.assert_allclose(one._model.state.fast.mean, other._model.state.fast.mean)
    assert one.n_rows_ == other.n_rows_


def test_it_is_saved_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    X, y = rows_that_turn()
    each = model()
    late(each, X, y, 0, 400)
    each.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    assert again.forgetting == LateDuel()
    assert again.waiting_.waiting == LATE
    made = [late(one, X, y, 400, 700) for one in (each, again)]
    np.testing.assert_array_equal(*made)
    np.testing.assert_array_equal(each._model.late.log_weights, again._model.late.log_weights)


def test_it_regresses() -> None:
    X, _ = rows_that_turn(200)
    each = KalmanRegressor(LateDuel(), "raw")
    for i in range(0, 200, 10):
        mean, std = each.ask(X[i : i + 10], ids=range(i, i + 10))
        if i >= 100:
            assert np.abs(mean - 3.0 * X[i : i + 10, 0]).max() < 1.0
            assert np.isfinite(std).all()
        each.tell(range(i, i + 10), 3.0 * X[i : i + 10, 0])


def test_a_policy_that_compares_needs_evidence() -> None:
    class Comparing(LateDuel):
        tag: ClassVar[str] = "test.Comparing"
        compares = True

    assert LateDuel().evidence(None) is None
    with pytest.raises(NotImplementedError, match="Comparing compares, and needs the method"):
        Comparing().evidence(None)
