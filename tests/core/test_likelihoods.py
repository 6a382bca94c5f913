"""The table of likelihoods: compiled code agrees with each entry, and a new one is one entry."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from river import stream as river_stream
from typer.testing import CliRunner

from kalstream import KalmanClassifier, cli
from kalstream.compat.river import KalmanClassifier as RiverClassifier
from kalstream.core import (
    Fixed,
    Learned,
    Mixture,
    init,
    softmax_curvature,
    step_chunk,
    transition,
    update_softmax,
)
from kalstream.core.likelihoods import LIKELIHOODS, SOFTMAX_LABEL
from kalstream.errors import InvalidInput, InvalidOption

SOFTMAXES = [word for word, each in LIKELIHOODS.items() if each.is_softmax]


def test_words_and_codes_are_distinct() -> None:
    assert [each.code for each in LIKELIHOODS.values()] == list(range(len(LIKELIHOODS)))
    assert all(word == each.word for word, each in LIKELIHOODS.items())


def assert_compiled_as_plain(word: str) -> None:
    rng = np.random.default_rng(3)
    phi, labels = rng.normal(size=(20, 4)), rng.integers(0, 3, 20)
    settings = {"gamma": 0.95, "noise_var": 1.0, "prior_var": 5.0, "likelihood": word}
    fast, _ = step_chunk(init(4, 3, prior_var=5.0), phi, labels, **settings)
    plain = init(4, 3, prior_var=5.0)
    for row, label in zip(phi, labels, strict=True):
        plain = transition(plain, gamma=0.95, prior_var=5.0)
        plain, _ = update_softmax(plain, row, int(label), likelihood=word)
    np.testing.assert_allclose(fast.mean, plain.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(fast.cov, plain.cov, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("word", SOFTMAXES)
def test_the_compiled_curvature_is_that_of_the_entry(word: str) -> None:
    assert_compiled_as_plain(word)


def test_a_new_likelihood_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its curvature has a compiled version here; a new one needs a branch of `curvature_of`."""
    entry = replace(SOFTMAX_LABEL, word="logits", usual_prior_var=7.0)
    with pytest.raises(InvalidInput, match="likelihood must be one of"):
        Mixture(likelihood="logits")
    monkeypatch.setitem(LIKELIHOODS, "logits", entry)
    assert_compiled_as_plain("logits")
    assert Fixed(likelihood="logits").usual_prior_var == 7.0
    rows = np.random.default_rng(1).normal(size=(40, 2))
    labels = (rows[:, 0] > 0.0).astype(int)
    for policy in (
        Mixture((10.0, math.inf), likelihood=("onehot", "logits")),
        Fixed(0.99, likelihood="logits", order=2),
        Learned(likelihood="logits"),
    ):
        state = policy.start(2, 2, prior_var=5.0)
        after, _ = policy.step_chunk(state, rows, labels, noise_var=0.5, prior_var=5.0)
        p = policy.class_probabilities(after, [[2.0, 0.0]], prior_var=5.0)
        assert p[0, 1] > 0.7


def test_a_curvature_is_taken_along_a_label_or_on_average() -> None:
    mean, seen = [1.0, 0.0, -1.0], [True] * 3
    p, _, average = softmax_curvature(mean, 0.0, seen)
    assert average == pytest.approx(p @ (1.0 - p) / 2.0)
    assert softmax_curvature(mean, 0.0, seen, 1)[2] == pytest.approx(2.0 * p[1] * (1.0 - p[1]))


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> str:
    entry = replace(SOFTMAX_LABEL, word="logits", usual_prior_var=7.0)
    monkeypatch.setitem(LIKELIHOODS, entry.word, entry)
    return entry.word


def labelled_rows() -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(1).normal(size=(120, 2))
    return rows, np.where(rows[:, 0] > 0.0, "up", "down")


def test_estimators_know_a_new_likelihood(logits: str, tmp_path: Path) -> None:
    X, y = labelled_rows()
    one = KalmanClassifier(0.99, "raw", likelihood=logits, experts=[]).partial_fit(X, y)
    assert one._settings.prior_var == 7.0
    model = KalmanClassifier(features="raw", likelihood=logits, experts=[]).partial_fit(X, y)
    usual = KalmanClassifier(features="raw", likelihood="softmax", experts=[])._settings.policy
    policy = model._settings.policy
    assert set(policy.likelihoods) == {logits}
    assert (policy.half_lives, policy.prior_scales) == (usual.half_lives, usual.prior_scales)
    model.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    for each in (model, again):
        assert each.partial_fit(X, y).score(X, y) > 0.9
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))


def test_the_adapter_of_river_knows_it(logits: str) -> None:
    adapter = RiverClassifier(features="raw", likelihood=logits, experts=[])
    for x, label in river_stream.iter_array(*labelled_rows()):
        adapter.learn_one(x, label)
    assert adapter.predict_one({0: 2.0, 1: 0.0}) == "up"


def test_the_command_line_knows_it(logits: str, tmp_path: Path) -> None:
    def call(arguments: list[str]) -> None:
        CliRunner().invoke(cli.app, arguments, catch_exceptions=False)

    X, y = labelled_rows()
    lines = [f"{a},{b},{label}" for (a, b), label in zip(X.tolist(), y, strict=True)]
    (tmp_path / "s.csv").write_text("\n".join(["a,b,y", *lines, ""]))
    run = ["run", str(tmp_path / "s.csv"), "-t", "y", "--limit", "60", "--likelihood"]
    with pytest.raises(InvalidOption, match="--likelihood is 'logit'; give auto, or one of onehot"):
        call([*run, "logit"])
    run += [logits, "-o", str(tmp_path / "run"), "--features", "raw"]
    call(run)
    call([*run, "--resume", "--limit", "0"])
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["options"]["likelihood"] == logits
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["kind"] == "end"
