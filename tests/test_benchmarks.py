"""The benchmarks: their own methods, the rule for noticed changes, and the page."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from kalstream.evaluate import Evaluation
from kalstream.streams import ArrayStream

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "peers"))
import calibrated
import detect
import methods
import write_page

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import delays
import motion


def labelled(n: int, seed: int) -> tuple[Any, Any]:
    """Rows (n, 4) and labels of three classes, one Gaussian each."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    return rng.standard_normal((n, 4)) + 1.5 * rng.standard_normal((3, 4))[y], y


@pytest.mark.parametrize("seed", range(3))
def test_recursive_least_squares_equals_weighted_ridge_regression(seed: int) -> None:
    """RLS is ridge regression on one-hot labels with weights 0.999 ** age."""
    X, y = labelled(300, seed)
    model = methods.RecursiveLeastSquares()
    for i in range(len(X)):
        model.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1, 2])
    rows, weights = np.column_stack([X, np.ones(len(X))]), 0.999 ** np.arange(len(X))[::-1]
    ridge = 0.999 ** len(X) * np.eye(5)
    expected = np.linalg.solve(ridge + (weights * rows.T) @ rows, (weights * rows.T) @ np.eye(3)[y])
    np.testing.assert_allclose(model.coef, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_streaming_lda_is_lda(seed: int) -> None:
    X, y = labelled(300, seed)
    model = methods.StreamingLDA(shrinkage=0.0)
    for i in range(len(X)):
        model.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1, 2])
    whole = LinearDiscriminantAnalysis("lsqr", priors=np.full(3, 1 / 3)).fit(X, y)
    # scikit-learn weights the covariances of the classes by the priors
    np.testing.assert_allclose(model.predict_proba(X), whole.predict_proba(X), atol=0.03)
    np.testing.assert_allclose(model.means, whole.means_, rtol=1e-9)


def test_the_scaler_equals_that_of_whole_arrays() -> None:
    X, _ = labelled(50, 0)
    X[:, 1] = 3.0
    scaler = methods.Scaler()
    for x in X:
        scaler.partial_fit(x[None])
    spread = np.where(X.std(axis=0) > 0.0, X.std(axis=0), 1.0)
    np.testing.assert_allclose(scaler.transform(X), (X - X.mean(axis=0)) / spread, atol=1e-12)


class Sure:
    """Correct three times in four, always with probability p."""

    def __init__(self, p: float) -> None:
        self.p, self.classes_ = p, np.array([0, 1])

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> None:
        """Learn nothing."""

    def predict_proba(self, X: Any) -> Any:
        return np.where(X[:, :1] > 0.0, [1.0 - self.p, self.p], [self.p, 1.0 - self.p])

    def predict(self, X: Any) -> Any:
        return self.predict_proba(X).argmax(axis=1)


@pytest.mark.parametrize("p", [0.75, 0.999])
def test_calibration_is_learned_behind_any_learner(p: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 1))
    y = (X[:, 0] > 0.0) ^ (rng.random(4000) < 0.25)
    run = Evaluation(Sure(p), ArrayStream(X, y.astype(int)), classes=[0, 1])
    after = calibrated.Calibrated()
    for record in run.records():
        after.add(record)
    result = after.result(run.tracker.total)
    assert result is not None
    assert result["after"]["ece"] < 0.04
    if p > 0.9:
        assert result["before"]["ece"] > 0.2
        assert result["after"]["log_loss"] < result["before"]["log_loss"] - 0.5
    else:
        assert result["after"]["log_loss"] == pytest.approx(result["before"]["log_loss"], abs=0.01)


def test_which_changes_count_as_noticed() -> None:
    late = detect.IN_TIME
    scores = detect.score_alarms([90, 120, 130, 100 + late, 5020], [100, 5000, 9000])
    assert scores == {"delays": [20, 20], "missed": 1, "false": 2}
    too_late = detect.score_alarms([100 + late], [100], lasting=10)  # late, but no false alarm
    assert too_late == {"delays": [], "missed": 1, "false": 0}
    assert detect.score_alarms([], []) == {"delays": [], "missed": 0, "false": 0}


@pytest.mark.parametrize("kind", detect.KINDS)
def test_streams_change_at_the_stated_rows(kind: str) -> None:
    """A rule fitted before a change is worse after it, and only then."""
    rows, labels, changes = detect.stream(kind, 5, 0)
    assert changes == {"none": [], "gradual": [2500]}.get(kind, [2500, 5000, 7500])
    model = LinearDiscriminantAnalysis().fit(rows[:2400], labels[:2400])
    before = model.score(rows[2000:2500], labels[2000:2500])
    after = model.score(rows[4500:5000], labels[4500:5000])
    assert (before - after > 0.15) == (kind != "none")
    if kind == "recurring":
        assert model.score(rows[5000:7500], labels[5000:7500]) == pytest.approx(before, abs=0.05)


def test_ranks_and_exponents() -> None:
    base = {"accuracy": 0.5, "log_loss": 1.0}
    cells = [
        {"stream": s, "method": m, "seed": 0, "whole": False, "accuracy": a, "log_loss": loss}
        | {"baselines": {"no_change": base, "majority": base}}
        for s in ("one", "two")
        for m, a, loss in (("kalstream", 0.9, 0.2), ("kNN", 0.8, 0.1))
    ]
    quality = write_page.Quality(cells)
    assert quality.ranks("accuracy") == {
        "kalstream": 1.0,
        "kNN": 2.0,
        "no-change": 3.5,
        "majority": 3.5,
    }
    assert quality.ranks("log_loss")["kNN"] == 1.0
    times = [
        {"method": "x", "columns": d, "classes": 2, "chunk": 1, "us": 100.0 + d**2}
        for d in (1, 100, 1000, 10_000)
    ]
    ((_, mine),) = write_page.growth(times).items()
    assert mine["x"][2] == pytest.approx(2.0, abs=1e-3)


def test_the_page_agrees_with_the_result_files() -> None:
    """Every number on the page comes from a result file."""
    results = write_page.read_results()
    text = write_page.text_of(results, write_page.Quality(results["quality"]["cells"]))
    assert text == (write_page.DOCS / "benchmarks.md").read_text(encoding="utf-8")
    for part in results.values():
        assert {"machine", "versions", "cells"} <= set(part)


def test_where_a_peer_is_faster() -> None:
    cells = [
        {"method": m, "columns": d, "classes": 2, "chunk": 1, "us": us, "kb": kb}
        for m, d, us, kb in (
            ("kalstream", 8, 10.0, 2048.0),
            ("kalstream", 64, 20.0, 2048.0),
            ("other", 8, 5.0, 1024.0),
            ("other", 64, 50.0, 1024.0),
        )
    ]
    begin = {"kalstream": (1.0, 2.0), "other": (1.0, 1.5)}
    assert write_page.speed_wins({"cells": cells, "begin": begin}) == [
        "**Microseconds per row, columns (classes 2, chunk 1) at 8.** other: 5. kalstream: 10",
        "**MB per model with 64 columns.** other: 1.0. kalstream: 2.0",
        "**Seconds to import and learn ten rows.** kalstream: 2.0; other: 1.5",
    ]


# ---- delays -------------------------------------------------------------------------------------


class Counts:
    """Frequencies of the labels, each count half a label larger, as `delays.majority`."""

    def __init__(self) -> None:
        self.rows, self.labels = [], []

    def partial_fit(self, X: Any, y: Any) -> None:
        self.rows += list(X)
        self.labels += list(y)
        self.classes_, counts = np.unique(self.labels, return_counts=True)
        self.share = (counts + 0.5) / (counts + 0.5).sum()

    def predict_proba(self, X: Any) -> Any:
        return np.tile(self.share, (len(X), 1))

    def predict(self, X: Any) -> Any:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


class Refitted(Counts):
    """Logistic regression, fitted again at some numbers of labels, as `delays.refitted`."""

    def __init__(self, at: list[int]) -> None:
        super().__init__()
        self.at, self.model = at, None

    def partial_fit(self, X: Any, y: Any) -> None:
        super().partial_fit(X, y)
        if len(self.labels) in self.at:
            self.model = delays._logistic(np.array(self.rows), np.array(self.labels))

    def predict_proba(self, X: Any) -> Any:
        p = super().predict_proba(X)
        if self.model is not None:
            fitted = np.isin(self.classes_, self.model.classes_)
            p[:, fitted] = p[:, fitted].sum() * self.model.predict_proba(X)
        return p


class NoChange(Counts):
    """The label that came last, as `delays.no_change`."""

    def __init__(self, delay: int) -> None:
        super().__init__()
        self.delay = delay

    def predict_proba(self, X: Any) -> Any:
        step, labels = self.delay + 1, self.labels
        said = list(zip(labels, labels[step:], strict=False))
        again = (sum(a == b for a, b in said) + 0.5) / (len(said) + 1)
        last = self.classes_ == labels[-1]
        if last.all():
            return np.ones((1, 1))
        others = np.where(last, 0.0, self.share)
        return np.where(last, again, (1.0 - again) * others / others.sum())[None]


def late_stream() -> delays.Table:
    """Three classes, the third of which comes late; a missing value."""
    X, y = labelled(260, 1)
    y[:150][y[:150] == 2] = 1
    X[5, 0] = np.nan
    return delays.Table("late", X, np.array(["c", "a", "b"])[y])


@pytest.mark.parametrize("delay", [0, 1, 30])
@pytest.mark.parametrize("method", ["majority", "no_change", "logistic", "forest"])
def test_one_pass_for_all_delays_equals_late_labels(method: str, delay: int) -> None:
    stream = late_stream()
    both = [0, delay] if delay else [0]
    if method == "forest":
        forest = pytest.importorskip("river.forest")
        learner, make = forest.ARFClassifier(n_models=10, seed=1), delays.forest
    elif method == "logistic":
        learner = Refitted(delays.fits(stream)[:-1])
        make = functools.partial(delays.refitted, delays._logistic)
    else:
        learner = Counts() if method == "majority" else NoChange(delay)
        make = getattr(delays, method)
    source = ArrayStream(stream.rows, stream.codes)
    run = Evaluation(learner, source, delay=delay)
    parts = [record.scored for record in run.records()]
    log_prob = np.concatenate([part.log_prob for part in parts])
    right = np.concatenate([part.codes == part.predicted for part in parts])
    made = delays.scored(stream, delay, make(stream, both)[delay], 0.0)
    expected = delays.cell(log_prob, right, 0.0)
    assert made["n"] == expected["n"] == 259 - delay
    assert made["accuracy"] == expected["accuracy"]
    assert made["log_loss"] == pytest.approx(expected["log_loss"], abs=1e-9)
    np.testing.assert_allclose(made["blocks"], expected["blocks"], atol=2e-4)


def test_where_kalstream_is_behind() -> None:
    def made(method: str, delay: int, accuracy: float, loss: float) -> dict[str, Any]:
        wave = 0.1 * np.sin(np.arange(40.0))
        blocks = (loss + (wave if method == "kalstream" else -wave)).tolist()
        scores = {"accuracy": accuracy, "log_loss": loss, "log_loss_floored": loss}
        return (
            {"stream": "rain", "delay": delay, "method": method, "n": 4000}
            | scores
            | {"blocks": blocks}
        )

    cells = [
        made("kalstream", 0, 0.90, 0.20),
        made("majority", 0, 0.91, 0.19),  # within noise, but not in accuracy
        made("ARF, 10 trees", 0, 0.90, 0.30),
        made("kalstream", 500, 0.90, 0.60),
        made("majority", 500, 0.90, 0.40),
        made("ARF, 10 trees", 500, 0.90, 0.50),
    ]
    first, second = delays.verdict(delays.indexed({"cells": cells}))
    assert "1 of 2 cells (rain at 500)" in first
    assert first.endswith("in 1 (rain at 0).")
    assert "ahead in log-loss in 1 of 2 cells, and at every delay on 0 of 1 streams" in second


def test_the_pages_of_delays_agree_with_the_result_file() -> None:
    results = json.loads(delays.RESULTS.read_text(encoding="utf-8"))
    for page, text in (
        (delays.DOCS, delays.docs_of(results)),
        (delays.PAGE, delays.section_of(results)),
    ):
        kept = page.read_text(encoding="utf-8").split("<!-- delays: begin -->")[1]
        assert kept.split("<!-- delays: end -->")[0].strip() == delays.wrapped(text).strip()


def test_the_page_of_motion_agrees_with_its_results() -> None:
    motion.main(["--check"])


def test_motion_in_its_quick_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(motion, "GRID", {**motion.GRID, "ahead": [1, 5], "period": [50]})
    monkeypatch.setattr(motion, "STREAMS", {"elec2": (2,)})
    motion.main(["--quick", "--out", str(tmp_path)])
    before = (tmp_path / "motion.json").read_bytes()
    motion.main(["--quick", "--out", str(tmp_path)])
    assert (tmp_path / "motion.json").read_bytes() == before
    assert (tmp_path / "motion.png").stat().st_size > 1000
    motion.main(["--check", "--out", str(tmp_path)])
    (tmp_path / "motion.md").write_text("another page")
    with pytest.raises(SystemExit, match="does not match"):
        motion.main(["--check", "--out", str(tmp_path)])


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["texts", "elec2"])
def test_heads_by_the_recipe_are_close_to_the_best(stream: str) -> None:
    """A filter whose prior does not suit the size of the features is near chance on texts."""
    pytest.importorskip("torch")
    import which_head
    from which_head import heads

    X, y = which_head.stream(stream, 0)
    others = ("ER++", "OnlineLearner, published", "SoftmaxHead")  # no filter, or not the recipe
    names = [name for name in heads.LEARNERS if not name.startswith(others)]
    right = [heads.steps(name, X, y, which_head.CLASSES[stream], 0)[1].mean() for name in names]
    assert min(right) > max(right) - 0.05
