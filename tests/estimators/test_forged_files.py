"""A file with a correct checksum and parts that do not fit is refused; the error names the part."""

import copy
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.core import Stack
from kalstream.core.alarm import Watch
from kalstream.errors import CheckpointError
from kalstream.estimators import checkpoint
from kalstream.estimators._classification import Classes
from kalstream.estimators._regression import Values
from kalstream.estimators.labels import Labels
from kalstream.estimators.migrations import MIGRATIONS
from kalstream.features import OnlineScaler

ROWS = np.random.default_rng(0).standard_normal((30, 3))
LABELS = ["ab"[i] for i in (ROWS[:, 0] > 0).astype(int)]
NAN = float("nan")
KINDS: dict[str, Any] = {
    "mixture": lambda: KalmanClassifier(n_components=4, random_state=0, experts=[]),
    "learned": lambda: KalmanClassifier("learned", "scaled"),
    "raw": lambda: KalmanClassifier(features="raw", intercept=False),
    "regression": lambda: KalmanRegressor(features="raw"),
    "fixed regression": lambda: KalmanRegressor(0.9, "raw", dtype=np.float32),
    "late": lambda: KalmanClassifier("learned", "raw"),
    "orders": lambda: KalmanClassifier(n_components=4, order=(1, 2), random_state=0),
    "moving": lambda: KalmanRegressor(0.9, "raw", order=3),
}


def fitted(name: str) -> Any:
    model = KINDS[name]()
    if isinstance(model, KalmanRegressor):
        model.fit(ROWS, ROWS[:, 0])
        return model.partial_fit(ROWS[:3], ROWS[:3, 0])
    model.predict_then_learn(ROWS, LABELS)
    if name == "late":
        model.ask(ROWS[:4])
    return model.partial_fit(ROWS[:1], LABELS[:1])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("saved")
    for name in KINDS:
        fitted(name).save(folder / name)
    return {name: folder / name for name in KINDS}


def put(tree: Any, path: str, value: Any) -> None:
    """Set a part, even if its class is frozen."""
    *owners, name = path.split(".")
    for owner in owners:
        tree = tree[owner] if isinstance(tree, dict) else getattr(tree, owner)
    if isinstance(tree, dict):
        tree[name] = value
    else:
        object.__setattr__(tree, name, value)


def with_nan(array: Any) -> Any:
    array = array.copy(order="K")
    array.flat[0] = NAN
    return array


MANY = Stack.start(5, 50)
# (kind of model, part, its new value or a function of the old one, name in the error)
FORGERIES: list[tuple[str, str, Any, str]] = [
    ("mixture", "model.targets.stack", MANY, "stack"),
    ("mixture", "model.targets.ordered", MANY, "ordered"),
    ("mixture", "model.targets.stack", Stack.start(2, 2), "stack"),
    ("mixture", "model.targets.stack", replace(Stack.start(7, 2), last=1), ""),
    ("learned", "model.targets.stack", Stack.start(5, 2), "stack"),
    ("mixture", "model.targets.stack", "none", "stack"),
    ("mixture", "model.targets.stack.counts", np.zeros(9), "recent of the stack"),
    ("mixture", "model.targets.stack.coef", lambda a: a * NAN, "coef of the stack"),
    ("mixture", "model.targets.stack.last", 2, "stack"),
    ("mixture", "model.targets.stack.belief", -1.0, "belief"),
    ("mixture", "model.watch", Watch.start(0), "watch"),
    ("mixture", "model.watch", Watch.start(9), "watch"),
    ("learned", "model.watch", Watch.start(5), "watch"),
    ("mixture", "model.watch.numbers", np.zeros(6), "watch.numbers"),
    ("mixture", "model.watch.usual", np.full(5, NAN), "watch.usual"),
    ("mixture", "model.watch.levels", np.zeros(2), "watch.levels"),
    ("mixture", "model.watch.now", np.zeros((5, 1)), "watch"),
    ("mixture", "model.watch.numbers", np.full(8, -1.0), "watch.numbers"),
    ("mixture", "model.watch.odds", lambda a: a[:, 0].copy(), "watch.odds"),
    ("mixture", "model.watch.odds", lambda a: a - 1.0, "watch.gains"),
    ("mixture", "model.watch.gains", with_nan, "watch.gains"),
    ("mixture", "model.targets.labels.names", ("a", "b", "c", "d"), "counts"),
    ("mixture", "model.targets.labels.names", ("a", "a"), "labels"),
    ("mixture", "model.targets.labels.names", ["a", "b"], "labels"),
    ("mixture", "model.targets.labels.names", (), "counts"),
    ("mixture", "model.targets.counts", np.array([-1.0, 5.0]), "counts"),
    ("mixture", "model.targets.counts", np.array([1, 5]), "counts"),
    ("mixture", "model.targets.counts", np.full(2, NAN), "counts"),
    ("mixture", "model.n_seen", -5, "n_seen"),
    ("mixture", "model.n_seen", "many", "n_seen"),
    ("mixture", "model.time", NAN, "time"),
    ("mixture", "model.seed", -1, "seed"),
    ("mixture", "model.targets", Values(None, np.zeros(2), True), "targets"),
    ("mixture", "model.last_step.nis", np.zeros((5, 99)), "last_step.nis"),
    ("mixture", "model.last_step", 5, "last_step"),
    ("mixture", "model.representation.size", 0.0, "size"),
    ("mixture", "model.representation.intercept", 7, "intercept"),
    ("mixture", "model.representation.intercept", False, "features"),
    ("mixture", "model.representation.transformer", None, "features"),
    ("mixture", "model.representation.transformer.projection_", np.zeros((9, 2)), "projection_"),
    ("mixture", "model.representation.transformer.projection_", np.zeros((3, 8)), "features"),
    ("mixture", "model.representation.transformer.projection_", np.zeros((3, 0)), "projection_"),
    ("mixture", "model.representation.transformer.linear", False, "features"),
    ("mixture", "model.representation.transformer._size", -1.0, "_size"),
    ("mixture", "model.representation.transformer.scaler_.count_", with_nan, "count_"),
    ("mixture", "model.representation.transformer.scaler_._spread", lambda a: -a, "_spread"),
    ("learned", "model.representation.transformer.clip", NAN, "clip"),
    ("learned", "model.representation.transformer.n_features_in_", 4, "count_"),
    ("mixture", "model.state", None, "stack"),
    ("learned", "model.state.delta", -1.0, "delta"),
    ("learned", "model.state.alpha.log_mean", 1e9, "alpha"),
    ("learned", "model.state.seen", np.zeros(9, bool), "seen"),
    ("learned", "model.state.posterior.stored.base.cov", with_nan, "cov"),
    ("learned", "model.state.posterior.stored.base.cov", lambda a: -a, "negative variances"),
    ("learned", "model.state.posterior.stored.base.mean", with_nan, "mean"),
    ("learned", "model.state.posterior.stored.scale", NAN, "scales"),
    ("learned", "model.state.posterior.stored.shift", -1.0, "scales"),
    ("learned", "model.state.posterior.stored.base.cov", lambda a: a[:-1, :-1], "cov"),
    ("mixture", "model.state.bank.stored.cov", with_nan, "cov"),
    ("mixture", "model.state.bank.stored.cov", lambda a: a[:, :-1, :-1].copy(), "cov"),
    ("mixture", "model.state.bank.stored.mean", lambda a: a[:2].copy(), "cov"),
    ("mixture", "model.state.bank.stored.mean", lambda a: a.astype("f4"), "cov"),
    ("mixture", "model.state.bank.scales", lambda a: -a, "scales"),
    ("mixture", "model.state.bank.scales", with_nan, "scales"),
    ("mixture", "model.state.bank.scales", np.zeros((5, 4)), "scales"),
    ("mixture", "model.state.log_weights", np.full((5, 5), NAN), "log_weights"),
    ("mixture", "model.state.log_weights", np.full((5, 5), -np.inf), "log_weights"),
    ("mixture", "model.state.spread", np.full((5, 2), -1.0), "spread"),
    ("mixture", "model.state.half_lives", (1.0,), "half-lives"),
    ("orders", "model.state.bank.orders", (1, 2), "half-lives"),
    ("orders", "model.state.bank.orders", (), "orders"),
    ("orders", "model.state.bank.orders", lambda a: (4, *a[1:]), "orders"),
    ("orders", "model.state.bank.banks", lambda a: a[:1], "banks of the state"),
    ("orders", "model.state.bank.banks", lambda a: a[::-1], "banks of the state"),
    ("orders", "model.state.bank.banks", (5,), "banks"),
    ("orders", "model.state.half_lives", lambda a: tuple(7.0 for _ in a), "banks of the state"),
    ("moving", "model.state.bank.order", 2, "Pending.features"),
    ("moving", "model.state.bank.order", 4, "order"),
    ("moving", "model.state.bank.half_lives", (0.0,), "half_lives"),
    ("moving", "model.state.bank.half_lives", (1.0, 2.0), "half_lives"),
    ("moving", "model.state.bank.prior_vars", (NAN,), "prior_vars"),
    ("moving", "model.state.bank.prior_vars", (1e200,), "prior_vars"),
    ("moving", "model.state.bank.elapsed", -1.0, "elapsed"),
    ("moving", "model.state.bank.elapsed", 3, "elapsed"),
    ("moving", "model.state.bank.scales", with_nan, "scales"),
    ("moving", "model.state.bank.stored.cov", lambda a: -a, "negative variances"),
    ("moving", "model.state.bank.stored.mean", lambda a: a[:, :-1].copy(), "cov"),
    ("moving", "model.state.bank.pending", 5, "pending"),
    ("moving", "model.state.bank.pending.ages", lambda a: -a - 1.0, "ages"),
    ("moving", "model.state.bank.pending.ages", lambda a: a[:-1].copy(), "features"),
    ("moving", "model.state.bank.pending.features", lambda a: a[:, :-1].copy(), "features"),
    ("moving", "model.state.bank.pending.gains", with_nan, "gains"),
    ("moving", "model.state.bank.pending.factor", lambda a: 0.0 * a, "factor"),
    ("moving", "model.state.bank.pending.innovations", lambda a: a.astype("f4"), "innovations"),
    ("moving", "model.state.bank.pending.noise", lambda a: a[..., :-1].copy(), "noise"),
    ("moving", "model.state.alpha", 1.0, "alpha"),
    ("moving", "model.state.seen", np.zeros(9, bool), "seen"),
    ("mixture", "fitted.n_features_in_", 4, "transformer"),
    ("mixture", "fitted.n_features_in_", -3, "n_features_in_"),
    ("mixture", "fitted.n_features_in_", None, "n_features_in_"),
    ("mixture", "fitted.feature_names_in_", ["a"], "feature_names_in_"),
    ("mixture", "fitted.predict", 5, "fitted"),
    ("raw", "fitted.n_features_in_", 4, "features"),
    ("regression", "model.targets.offset", None, "offset"),
    ("regression", "model.targets.offset", np.zeros(4), "offset"),
    ("regression", "model.targets.offset", np.array([NAN]), "offset"),
    ("regression", "model.targets", Classes(Labels(("a",)), np.zeros(1)), "targets"),
    ("regression", "model.targets.flat", 3, "flat"),
    ("fixed regression", "model.targets.spread", np.array([-1.0, 1.0]), "spread"),
    ("fixed regression", "model.targets.spread", np.array([2.0, 1e308]), "spread"),
    ("fixed regression", "model.targets.spread", np.array([1e308, 0.0]), "spread"),
    ("fixed regression", "model.targets.spread", np.array([0.0, 1.0]), "spread"),
    ("fixed regression", "model.targets.spread", np.array([1e-300, 1.0]), "spread"),
    ("regression", "model.state.spread", lambda a: a * [1.0, 1e300], "spread"),
    ("regression", "model.state.spread", lambda a: a * [0.0, 1.0], "spread"),
    ("regression", "model.targets.offset", np.array([1e308]), "offset"),
    ("late", "model.store.counts.asked", "x", "store.counts"),
    ("late", "model.store.counts.told", None, "store.counts"),
    ("late", "model.store.counts.expired", -1, "store.counts"),
    ("late", "model.store.counts.unknown", 1.5, "store.counts"),
    ("fixed regression", "model.state.posterior.stored.base.mean", with_nan, "mean"),
    ("mixture", "params.colour", "red", "colour"),
    ("mixture", "params", 5, "TypeError"),
    ("mixture", "model", {"a": 1}, "model"),
    ("mixture", "model.last_step.logit_mean", lambda a: a[:2], "last_step.logit_mean"),
    ("mixture", "model.state.half_lives", lambda h: (0.0, *h[1:]), "half_lives"),
    ("mixture", "model.state.calibrations", lambda c: (*c[1:], -1.0), "calibrations"),
    ("raw", "model.state.bank.stored.mean", lambda a: a + 1e308, "Bank.mean must be at most"),
    ("learned", "model.representation.transformer", OnlineScaler(), "transformer must be fitted"),
    ("learned", "model.last_step.logit_mean", lambda a: a[:0], "last_step.logit_mean"),
]


@pytest.mark.parametrize(
    ("name", "part", "value", "named"), FORGERIES, ids=[f"{n}-{p}" for n, p, *_ in FORGERIES]
)
def test_a_forged_part_is_named(
    saved: dict[str, Path], tmp_path: Path, name: str, part: str, value: Any, named: str
) -> None:
    kind = KalmanRegressor if name == "moving" or "regression" in name else KalmanClassifier
    tree = checkpoint.read(saved[name], kind.__name__)
    if callable(value):
        old: Any = tree
        for step in part.split("."):
            old = old[step] if isinstance(old, dict) else getattr(old, step)
        value = value(old)
    put(tree, part, value)
    checkpoint.write(tmp_path / "forged", kind.__name__, tree)
    if not named:  # a valid file
        kind.load(tmp_path / "forged").partial_fit(ROWS[:1], LABELS[:1])
        return
    with pytest.raises(CheckpointError, match="is damaged") as caught:
        kind.load(tmp_path / "forged")
    assert named in str(caught.value)


def test_room_for_classes_to_come_is_no_forgery(saved: dict[str, Path], tmp_path: Path) -> None:
    tree = checkpoint.read(saved["mixture"], "KalmanClassifier")
    put(tree, "model.state", tree["model"].state.add_outputs(6))
    checkpoint.write(tmp_path / "spare", "KalmanClassifier", tree)
    KalmanClassifier.load(tmp_path / "spare")


def test_weights_that_version_0_1_left_behind_are_put_right() -> None:
    # After one target of 1e9 noise standard deviations, the half-life weights summed to 5.
    right = np.log(np.full((5, 5), 0.04))
    tree = {"@dict": [["state", {"MixtureState": {"log_weights": right + np.log(5.0)}}]]}
    ((_, state),) = MIGRATIONS[3](tree)["@dict"]
    np.testing.assert_allclose(state["MixtureState"]["log_weights"], right, rtol=1e-12)


def test_a_policy_changed_before_the_first_label_does_not_write_beyond_the_watch() -> None:
    model = KalmanClassifier(features="raw").partial_fit(ROWS, [None] * 30)
    model.set_params(forgetting="learned").partial_fit(ROWS, [None] * 30)
    model.partial_fit(ROWS, LABELS)
    assert len(model._model.watch.usual) == 9


# ---- bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_predicting_does_not_change_the_bytes(name: str, tmp_path: Path) -> None:
    model = fitted(name)
    model.save(tmp_path / "one")
    for n in (1, 3, 30):
        model.predict(ROWS[:n])
    model.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(("name", "part"), [("learned", "count_"), ("mixture", "scaler_")])
def test_a_transformer_without_what_it_has_learned_is_refused(
    saved: dict[str, Path], tmp_path: Path, name: str, part: str
) -> None:
    tree = checkpoint.read(saved[name], "KalmanClassifier")
    delattr(tree["model"].representation.transformer, part)
    checkpoint.write(tmp_path / "forged", "KalmanClassifier", tree)
    with pytest.raises(CheckpointError, match=rf"{part} must be there"):
        KalmanClassifier.load(tmp_path / "forged")


def test_a_copy_saves_the_same_bytes_where_one_class_is_left(tmp_path: Path) -> None:
    """The stride of an axis of length 1 is arbitrary, and a copy can have another one."""
    model = fitted("mixture").retire_class("b")
    model.save(tmp_path / "one")
    copy.deepcopy(model).save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("predicts", [False, True])
def test_saving_does_not_change_what_comes(predicts: bool, tmp_path: Path) -> None:
    saves, plain = fitted("mixture"), fitted("mixture")
    for i in range(20):
        if predicts:
            saves.predict(ROWS[i : i + 1])
        saves.save(tmp_path / "now")
        if i % 3 == 0:
            saves = KalmanClassifier.load(tmp_path / "now")
        for model in (saves, plain):
            model.partial_fit(ROWS[i : i + 1 + i % 4], LABELS[i : i + 1 + i % 4])
    np.testing.assert_array_equal(saves.predict_proba(ROWS), plain.predict_proba(ROWS))
    saves.save(tmp_path / "saves")
    plain.save(tmp_path / "plain")
    assert (tmp_path / "saves").read_bytes() == (tmp_path / "plain").read_bytes()


# ---- the header is read first -------------------------------------------------------------


def sparse(path: Path, data: bytes, size: int) -> None:
    """A sparse file: of any size, without using the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.truncate(size)


def test_a_huge_file_is_refused_by_its_header(saved: dict[str, Path], tmp_path: Path) -> None:
    path, huge = tmp_path / "huge", 1 << 42
    whole = saved["mixture"].read_bytes()
    for data, message in (
        (whole, "not the one in its header"),
        (struct.pack("<Q", 1 << 41) + whole[8:], "header cannot be"),
        (struct.pack("<Q", 99_000_000) + b"{" + bytes(100), "damaged"),
        (b"gamma,half_life\n" * 9, "not a safetensors file"),
    ):
        try:
            sparse(path, data, huge)
        except OSError:
            pytest.skip("this file system has no sparse files")
        for call in (KalmanClassifier.load, checkpoint.kind_of):
            if call is checkpoint.kind_of and data is whole:
                assert call(path) == "KalmanClassifier"
                continue
            with pytest.raises(CheckpointError, match=message):
                call(path)
        os.unlink(path)


def test_only_the_header_of_another_kind_is_needed(saved: dict[str, Path]) -> None:
    assert checkpoint.kind_of(saved["regression"]) == "KalmanRegressor"
    with pytest.raises(CheckpointError, match=r"use KalmanRegressor\.load"):
        KalmanClassifier.load(saved["regression"])
