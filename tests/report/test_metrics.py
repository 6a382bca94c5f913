"""A metric is one entry of METRICS: everything else follows from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kalstream import CRPClassifier, KalmanClassifier, KalmanRegressor
from kalstream.errors import InvalidInput
from kalstream.evaluate import METRICS, Metric, Show, paired_test, prequential, register
from kalstream.evaluate.metrics import LabelScore
from kalstream.report import compare, compare_runs, make_report
from kalstream.runs import Options, Run
from kalstream.streams import CLASSIFICATION, REGRESSION, ArrayStream

DOCS = Path(__file__).parents[2] / "docs" / "evaluate.md"


@pytest.fixture
def doubt() -> Iterator[Metric]:
    """The probability that is not on the true label; for this test only."""
    metric = Metric(
        name="doubt",
        title="doubt",
        meaning="mean probability of the wrong labels",
        task=CLASSIFICATION,
        better="less",
        unit="share",
        row=lambda rows: 1.0 - np.exp(rows.log_prob),
        show=Show.BOARD | Show.CURVES | Show.MORE | Show.TOTALS | Show.TESTS,
    )
    register(metric)
    yield metric
    del METRICS["doubt"]


def stream(n: int = 400) -> ArrayStream:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, 3))
    return ArrayStream(rows, (rows[:, 0] > 0).astype(int))


def test_values_and_windows(doubt: Metric) -> None:
    result = prequential(KalmanClassifier(features="raw"), stream(), window=50)
    assert 0.0 < result.total["doubt"] < 1.0
    parts = [line["n"] * line["window"]["doubt"] for line in result.windows]
    assert sum(parts) / result.n_scored == pytest.approx(result.total["doubt"])
    assert "doubt" in str(result)
    other = prequential(KalmanClassifier(0.5, "raw"), stream(), window=50)
    test = paired_test(result.windows, other.windows, "doubt")
    assert test.difference < 0.0
    assert "doubt" not in result.baselines["no_change"]


def test_report_and_comparison(doubt: Metric, tmp_path: Path) -> None:
    folders = []
    for forgetting in ("1.0", "0.9"):
        folder = tmp_path / f"run-{forgetting}"
        Run(folder, Options(limit=300, features="raw", forgetting=forgetting, window=50)).go()
        folders.append(folder)
    last = json.loads((folders[0] / "metrics.jsonl").read_text().splitlines()[-1])
    shown = f"{100 * last['total']['doubt']:.1f}%"
    page = make_report(folders[0])
    assert "Doubt, less is better" in page
    assert "Doubt, window by window" in page
    assert "Doubt is the mean probability of the wrong labels." in page
    assert "Doubt over all rows so far" in page
    assert f"doubt {last['total']['doubt']:.3f}" in page
    assert shown in page
    tests = compare_runs(folders)
    assert [test["metric"] for test in tests] == ["log_loss", "accuracy", "doubt"]
    page = compare(folders, tests)
    assert ">Doubt</th>" in page
    assert ">doubt</td>" in page
    assert shown in page
    assert "Doubt, moving average" in page


def test_a_run_of_before_is_resumed_without_the_metric(doubt: Metric) -> None:
    del METRICS["doubt"]
    state = LabelScore().state()
    METRICS["doubt"] = doubt
    score = LabelScore()
    score.restore(state)
    assert score.values()["doubt"] is None
    more = score.state()
    del METRICS["doubt"]
    with pytest.raises(ValueError, match="sums of doubt, which are not registered"):
        LabelScore().restore(more)
    METRICS["doubt"] = doubt


@pytest.mark.parametrize(
    "wrong",
    [{"task": "ranking"}, {"average": "sum"}, {"name": "a b"}, {"show": ("page",)}, {"row": None}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_entry_is_named(doubt: Metric, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="metric"):
        replace(doubt, **wrong)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(InvalidInput, match="there is a metric 'rmse' already"):
        register(METRICS["rmse"])


@pytest.mark.parametrize("task", [CLASSIFICATION, REGRESSION])
def test_every_metric_has_a_value(task: str) -> None:
    rows = stream().rows
    if task == REGRESSION:
        data = ArrayStream(rows, rows[:, 0], task=REGRESSION)
        total = prequential(KalmanRegressor(features="raw"), data).total
    else:
        total = prequential(CRPClassifier(), stream()).total
    names = [name for name, metric in METRICS.items() if metric.task == task]
    assert [name for name, value in total.items() if value is not None] == names


def test_the_guide_lists_every_metric() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", DOCS.read_text(), re.M)
    assert rows == [(m.name, m.title, m.direction, m.meaning) for m in METRICS.values()]
