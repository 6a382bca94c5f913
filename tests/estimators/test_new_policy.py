"""One file is enough for a forgetting policy: this one is, and knows nothing of the other three.

Two plain posteriors are kept by the textbook recursion: one that forgets, and one that does not.
The weights follow their recent errors. For brevity `predict` ignores time gaps, which a policy for
others must honour. `LateDuel` is the same policy for late labels: three methods more, and ``take``.
"""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from river import stream as river_stream

from kalstream import KalmanClassifier, KalmanRegressor, evaluate
from kalstream.compat.river import KalmanClassifier as RiverClassifier
from kalstream.core import (
    BankStep,
    JudgingPolicy,
    Policy,
    PolicyState,
    Posterior,
    add_features,
    add_outputs,
    init,
    keep_outputs,
    transition,
)
from kalstream.core import predict as predict_row
from kalstream.core import step as step_row
from kalstream.core.bank import joined_steps
from kalstream.core.chunk import Rows
from kalstream.core.judging import Judged, LateChunk, LateJudge, LateRows, in_turn
from kalstream.core.tagged import TAGGED
from kalstream.errors import CheckpointError, InvalidInput
from kalstream.streams import ArrayStream

Array = NDArray[Any]
LATE = 30


@dataclass(frozen=True)
class DuelState(PolicyState):
    tag: ClassVar[str] = "test.DuelState"

    fast: Posterior
    slow: Posterior
    gamma_fast: float
    losses: Array  # (2,), recent squared errors
    seen: Array

    @property
    def gammas(self) -> tuple[float, ...]:
        return self.gamma_fast, 1.0

    @property
    def half_lives(self) -> tuple[float, ...]:
        return float(np.log(0.5) / np.log(self.gamma_fast)), np.inf

    @property
    def half_life_weights(self) -> Array:
        return weights_of(self.losses)

    @property
    def half_life(self) -> float:
        return self.half_lives[self.heaviest]

    @property
    def gamma(self) -> float:
        return self.gammas[self.heaviest]

    @property
    def calibration(self) -> float:
        return 10.0

    @property
    def posteriors(self) -> tuple[Posterior, ...]:
        return self.fast, self.slow

    @property
    def n_features(self) -> int:
        return self.fast.n_features

    @property
    def dtype(self) -> Any:
        return self.fast.dtype

    @property
    def nbytes(self) -> int:
        return sum(each.mean.nbytes + each.cov.nbytes for each in self.posteriors)

    def _each(self, change: Any, seen: Array) -> "DuelState":
        return replace(self, fast=change(self.fast), slow=change(self.slow), seen=seen)

    def add_outputs(self, n_outputs: int) -> "DuelState":
        return self._each(lambda p: add_outputs(p, n_outputs), np.pad(self.seen, (0, n_outputs)))

    def keep_outputs(self, columns: Array) -> "DuelState":
        return self._each(lambda p: keep_outputs(p, columns), self.seen[columns])

    def add_features(self, n_features: int, prior_var: float) -> "DuelState":
        return self._each(lambda p: add_features(p, n_features, prior_var), self.seen)


def weights_of(losses: Array) -> Array:
    weights = np.exp(-20.0 * (losses - losses.min(axis=-1, keepdims=True)))
    return weights / weights.sum(axis=-1, keepdims=True)


@dataclass(frozen=True)
class DuelStep:
    bank: BankStep
    weights: Array  # (b, 2)

    @property
    def nis(self) -> Array:
        return np.einsum("bj,jb->b", self.weights, self.bank.nis)

    @property
    def mean(self) -> Array:
        return np.einsum("bj,jbk->bk", self.weights, self.bank.logit_mean)

    @property
    def weight_variance(self) -> Array:
        return np.einsum("bj,jb->b", self.weights, self.bank.logit_var)

    def target_variance(self, noise_var: float, scale: float) -> Array:
        one = scale * (self.weight_variance + noise_var)
        return np.repeat(one[:, None], self.mean.shape[1], axis=1)

    def keep_outputs(self, n_outputs: int) -> "DuelStep":
        means = self.bank.logit_mean[..., :n_outputs]
        return replace(self, bank=replace(self.bank, logit_mean=means))

    def class_probabilities(self, **settings: Any) -> Array:
        logits = 10.0 * self.mean
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Duel(Policy):
    tag: ClassVar[str] = "test.Duel"
    state_type: ClassVar[type] = DuelState

    gamma: float = 0.9

    @property
    def n_filters(self) -> int:
        return 2

    def start(
        self, n_features: int, n_outputs: int, *, prior_var: float, dtype: Any = np.float64
    ) -> DuelState:
        prior = init(n_features, n_outputs, prior_var=prior_var, dtype=dtype)
        return DuelState(prior, prior, self.gamma, np.zeros(2), np.zeros(n_outputs, bool))

    def step_rows(self, state: DuelState, rows: Rows, donate: bool) -> tuple[DuelState, DuelStep]:
        labels = rows.targets.labels
        dense = rows.targets.dense if labels is None else np.eye(state.n_outputs)[labels]
        seen, steps, beliefs = state.seen.copy(), [], []
        for i, phi in enumerate(rows.features):
            beliefs.append(state.half_life_weights)
            noise = rows.noise_var[i]
            after, moments = [], []
            for posterior, gamma in zip(state.posteriors, state.gammas, strict=True):
                forgetting = {"gamma": gamma ** rows.gap[i], "prior_var": rows.prior_var}
                if noise < np.inf:
                    posterior, step = step_row(
                        posterior, phi, dense[i], noise_var=noise, **forgetting
                    )
                    moments.append((step.logit_mean, step.logit_var, step.nis))
                else:
                    posterior = transition(posterior, **forgetting)
                    moments.append((*predict_row(posterior, phi), np.nan))
                after.append(posterior)
            losses = state.losses
            if noise < np.inf:
                errors = [np.square(dense[i] - mean).sum() for mean, _, _ in moments]
                losses = 0.9 * losses + 0.1 * np.minimum(errors, 10.0)
                seen[labels[i] if labels is not None else slice(None)] = True
            state = replace(state, fast=after[0], slow=after[1], losses=losses)
            steps.append((moments, noise))
        return replace(state, seen=seen), DuelStep(joined(steps, state), np.array(beliefs))

    def predict(
        self, state: DuelState, features: Any, *, prior_var: float, **ignored: Any
    ) -> DuelStep:
        self.check_state(state)
        steps = []
        for phi in features:
            moments = []
            for posterior, gamma in zip(state.posteriors, state.gammas, strict=True):
                ahead = transition(posterior, gamma=gamma, prior_var=prior_var)
                moments.append((*predict_row(ahead, phi), np.nan))
            steps.append((moments, np.inf))
        weights = np.repeat(state.half_life_weights[None], len(steps), axis=0)
        return DuelStep(joined(steps, state), weights)

    @property
    def watched(self) -> Array:
        return np.array([np.log(0.5) / np.log(self.gamma), np.inf])

    def first_belief(self) -> Array:
        return np.array([0.5, 0.5])

    def belief(
        self, step: DuelStep, time_gap: Any, transition: str, before: Array
    ) -> tuple[Array, Array]:
        return step.weights, step.bank.logit_var.T.copy()


def joined(steps: list[Any], state: DuelState) -> BankStep:
    each = [[[moments[j][part] for moments, _ in steps] for j in range(2)] for part in range(3)]
    means, variances, nis = (np.array(part, dtype=np.float64) for part in each)
    gammas = np.repeat(np.array(state.gammas)[:, None], len(steps), axis=1)
    noises = np.repeat(np.array([noise for _, noise in steps])[None], 2, axis=0)
    return BankStep(means, variances, gammas, noises, nis)


def rows_that_turn(n: int = 900) -> tuple[Array, Array]:
    """Rows whose rule turns round at two thirds."""
    X = np.random.default_rng(0).standard_normal((n, 2))
    return X, (X[:, 0] > 0.0) ^ (np.arange(n) >= 2 * n // 3)


def duel(**settings: Any) -> KalmanClassifier:
    return KalmanClassifier(Duel(), "scaled", **settings)


def test_it_learns_and_notices_a_drift() -> None:
    X, y = rows_that_turn()
    model = duel()
    alarms = []
    for start in range(0, len(X), 10):
        part = slice(start, start + 10)
        model.predict_then_learn(X[part], y[part])
        alarms.append(model.drift().alarms)
    assert alarms[59] == 0
    assert alarms[-1] > 0
    assert model.score(X[-100:], y[-100:]) > 0.9
    assert list(model.half_life_weights_) == list(Duel().watched)
    assert model.cov_.shape == (3, 3)
    assert model.health_.nis > 0.0
    assert model.is_novel([[100.0, 100.0]]).tolist() == [True]


def test_calls_of_any_size_are_the_same() -> None:
    X, y = rows_that_turn(60)
    one, other = duel(), duel()
    rows = [one.predict_then_learn(X[i : i + 1], y[i : i + 1]) for i in range(60)]
    whole = other.predict_then_learn(X, y)
    np.testing.assert_allclose(np.concatenate(rows[2:]), whole[2:], rtol=1e-9)
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-9)


def test_it_is_saved_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    X, y = rows_that_turn()
    model = duel().partial_fit(X[:300], y[:300])
    model.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    assert again.forgetting == Duel()
    for each in (model, again):
        each.partial_fit(X[300:], y[300:])
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    assert model.drift() == again.drift()


def test_a_file_whose_policy_is_not_imported_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows_that_turn(20)
    duel().partial_fit(X, y).save(tmp_path / "model.safetensors")
    monkeypatch.delitem(TAGGED, Duel.tag)
    with pytest.raises(CheckpointError, match=r"model.safetensors holds a .*import its module"):
        KalmanClassifier.load(tmp_path / "model.safetensors")


def test_a_tag_stands_for_one_class() -> None:
    with pytest.raises(InvalidInput, match="choose another tag"):

        class Other(PolicyState):
            tag = Duel.tag


def test_classes_and_columns_come_and_go() -> None:
    X, _ = rows_that_turn(90)
    y = np.repeat(["a", "b", "c"], 30)
    model = duel().partial_fit(X, y)
    assert model.retire_class("b").classes_.tolist() == ["a", "c"]
    model.add_columns(1)
    assert model.predict_proba(np.ones((2, 3))).shape == (2, 2)


def test_it_regresses_with_a_scale_that_is_learned() -> None:
    X, _ = rows_that_turn(300)
    model = KalmanRegressor(Duel(), "raw")
    mean, std = model.predict_then_learn(X, 3.0 * X[:, 0] + 50.0)
    assert np.abs(mean[200:] - 3.0 * X[200:, 0] - 50.0).max() < 0.5
    assert np.isfinite(std[200:]).all()


def test_it_runs_in_the_prequential_loop_and_behind_river() -> None:
    X, y = rows_that_turn()
    result = evaluate.prequential(duel(), ArrayStream(X, y.astype(int)))
    assert result.total["accuracy"] > 0.85
    adapter, right = RiverClassifier(Duel(), "scaled"), 0
    for x, label in river_stream.iter_array(X[:200], y[:200]):
        right += adapter.predict_one(x) == label
        adapter.learn_one(x, label)
    assert right > 150


def test_a_state_of_another_policy_is_refused() -> None:
    X, y = rows_that_turn(20)
    model = duel().partial_fit(X, y).set_params(forgetting="mixture")
    with pytest.raises(InvalidInput, match=r"restore the old value, or call reset\(\)"):
        model.predict(X)


# ---- late labels --------------------------------------------------------------------------


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


def late_duel() -> KalmanClassifier:
    return KalmanClassifier(LateDuel(), "scaled", experts=[])


def late(each: Any, X: Array, y: Array, start: int, stop: int) -> Array:
    """Ask for rows, and tell their labels LATE rows later."""
    made = []
    for i in range(start, stop):
        made.append(each.ask(X[i : i + 1], ids=[i])[0])
        if i >= LATE:
            each.tell([i - LATE], y[i - LATE : i - LATE + 1])
    return np.array(list(itertools.zip_longest(*made, fillvalue=0.0))).T


def test_a_late_policy_is_judged_by_the_predictions_that_were_made() -> None:
    X, y = rows_that_turn()
    each = late_duel()
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


def test_labels_in_time_of_a_late_policy_are_learned_as_by_predict_then_learn() -> None:
    X, y = rows_that_turn(60)
    one, other = late_duel().partial_fit(X[:6], y[:6]), late_duel().partial_fit(X[:6], y[:6])
    for i in range(6, 60):
        one.ask(X[i : i + 1], ids=[i])
        one.tell([i], y[i : i + 1])
        other.partial_fit(X[i : i + 1], y[i : i + 1])
    np.testing.assert_allclose(one._model.state.fast.mean, other._model.state.fast.mean)
    assert one.n_rows_ == other.n_rows_


def test_a_late_policy_is_saved_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    X, y = rows_that_turn()
    each = late_duel()
    late(each, X, y, 0, 400)
    each.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    assert again.forgetting == LateDuel()
    assert again.waiting_.waiting == LATE
    made = [late(one, X, y, 400, 700) for one in (each, again)]
    np.testing.assert_array_equal(*made)
    np.testing.assert_array_equal(each._model.late.log_weights, again._model.late.log_weights)


def test_a_late_policy_regresses() -> None:
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
