"""One file is enough for a forgetting policy: this one is, and knows nothing of the other three.

Two plain posteriors are kept by the textbook recursion: one that forgets, and one that does not.
The weights follow their recent errors. For brevity `predict` ignores time gaps, which a policy for
others must honour.
"""

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
from kalstream.core.chunk import Rows
from kalstream.core.tagged import TAGGED
from kalstream.errors import CheckpointError, InvalidInput
from kalstream.streams import ArrayStream

Array = NDArray[Any]


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
