"""`kalstream run --aggregate`: features by key, resumption, prediction and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream.errors import InvalidInput, InvalidOption
from kalstream.runs import Options, Run, open_run
from kalstream.runs.inspect import described, predicted_rows
from kalstream.runs.setup import make_learner, open_stream
from runs.test_run import lines_of, model_of, stop_after

ROWS = 240
SPECS = ["customer:amount:lag:1", "customer:amount:mean:5"]
NAMES = ["ada", "ben", "cy", ""]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose label is the sign of the customer's last amount."""
    rng = np.random.default_rng(0)
    last: dict[str, float] = {}
    lines = ["customer,amount,y"]
    for _ in range(ROWS):
        name, amount = NAMES[rng.integers(4)], round(float(rng.standard_normal()), 3)
        lines.append(f"{name},{amount},{'up' if last.get(name, 0.0) > 0 and name else 'down'}")
        last[name] = amount
    path = tmp_path_factory.mktemp("aggregates") / "data.csv"
    path.write_text("\n".join([*lines, ""]))
    return path


def options(data: Path, **more: Any) -> Options:
    given = {"source": str(data), "target": "y", "features": "scaled", "window": 40}
    return Options.of(**given | {"aggregate": SPECS, "predictions": True} | more)


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    Run(data.parent / "run", options(data)).go()
    return data.parent / "run"


def log_loss(folder: Path) -> float:
    return float(lines_of(folder)[-1]["total"]["log_loss"])


def test_they_are_of_the_earlier_rows_of_the_key(data: Path, run: Path) -> None:
    Run(data.parent / "plain", options(data, aggregate=[])).go()
    assert log_loss(run) < log_loss(data.parent / "plain") - 0.15
    assert '"aggregate":' not in (data.parent / "plain/config.json").read_text()
    config = json.loads((run / "config.json").read_text())
    assert config["options"]["aggregate"] == SPECS
    assert config["learner"]["params"]["features"].startswith("Aggregates(['customer:amount:lag:1'")
    stream = open_stream(options(data))
    assert stream.columns[-1] == "customer[key]"
    before = make_learner(options(data), stream).features
    batch = next(stream.batches())
    _, made = before.passed(batch.rows)
    names = [line.split(",")[0] for line in data.read_text().splitlines()[1:]]
    amounts = batch.rows[:, stream.columns.index("amount")]
    seen: dict[str, list[float]] = {"": []}
    for name, amount, (lag, mean) in zip(names, amounts, made[:, :2], strict=True):
        past = seen.setdefault(name, [])
        expected = [past[-1], np.mean(past[-5:])] if past else [np.nan, np.nan]
        np.testing.assert_allclose([lag, mean], expected)
        if name:
            past.append(amount)


TARGET = {"aggregate": [*SPECS, "customer:up:target:4"]}


@pytest.mark.parametrize(
    "more",
    [
        *({}, {"chunk": 7, "delay": "5"}, {"ignore": ["customer"]}),
        *(TARGET, {**TARGET, "delay": "5"}, {**TARGET, "chunk": 7, "delay": "5"}),
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(
    data: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    Run(tmp_path / "whole", options(data, **more)).go()
    Run(tmp_path / "run", options(data, limit=93, **more), checkpoint_every=0.0).go()
    resumed = Run.resume(tmp_path / "run", {"limit": None}, checkpoint_every=0.0)
    assert resumed is not None
    resumed.go(stopped=stop_after(2))
    last = Run.resume(tmp_path / "run")
    assert last is not None
    last.go()
    one, two = tmp_path / "run", tmp_path / "whole"
    assert lines_of(one) == lines_of(two)
    assert (one / "predictions.jsonl").read_bytes() == (two / "predictions.jsonl").read_bytes()
    assert model_of(one) == model_of(two)


def test_more_data_continue_a_run(data: Path, run: Path, tmp_path: Path) -> None:
    header, *lines = data.read_text().splitlines()
    for name, part in (("one.csv", lines[:100]), ("two.csv", lines[100:])):
        (tmp_path / name).write_text("\n".join([header, *part, ""]))
    Run(tmp_path / "run", options(tmp_path / "one.csv")).go()
    Run.extend(tmp_path / "run", tmp_path / "two.csv").go()
    assert log_loss(tmp_path / "run") == pytest.approx(log_loss(run), abs=1e-9)
    Run(tmp_path / "b", Options.of(source=str(tmp_path / "two.csv"), origin=str(run))).go()
    with pytest.raises(InvalidOption, match="--aggregate"):
        Run(tmp_path / "c", Options.of(source=str(data), origin=str(run), aggregate=SPECS[:1]))


def test_rows_are_predicted_with_what_their_key_had(run: Path, tmp_path: Path) -> None:
    rows = [{"customer": name, "amount": 0.0} for name in (*NAMES, "new")]
    model = open_run(run)
    direct = model.predict_proba(rows)
    lines = ["customer,amount", *(f"{row['customer']},0.0" for row in rows)]
    (tmp_path / "new.csv").write_text("\n".join([*lines, ""]))
    _, *made = predicted_rows(run, str(tmp_path / "new.csv"))
    np.testing.assert_allclose([row[2:4] for row in made], direct, atol=1e-12)
    for amount, label in ((2.0, "up"), (-2.0, "down")):
        model.partial_fit([{"customer": "dee", "amount": amount, "y": "down"}])
        assert model.predict([{"customer": "dee", "amount": 0.0}])[0] == label
    assert described(run)["table"]["customer"] == "key"
    (tmp_path / "none.csv").write_text("amount\n1\n")
    with pytest.raises(InvalidInput, match="there is no column 'customer'"):
        list(predicted_rows(run, str(tmp_path / "none.csv")))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"aggregate": ["customer:amount"]}, "'customer:amount' is not KEY:COLUMN:KIND:WINDOW"),
        ({"aggregate": ["customer:amount:mean:1d"]}, "window '1d'; give a number of rows"),
        ({"aggregate": ["custmer:amount:mean:3"]}, "Did you mean 'customer'"),
        ({"aggregate": ["customer:customer:mean:3"]}, "there is no column of numbers 'customer'"),
        ({"aggregate": ["customer:y:mean:3"]}, "is of the target, which only the kind target"),
        ({"aggregate": ["y:amount:mean:3"]}, "'y' is target, which is not known when a row comes"),
        ({"key": "customer"}, "--aggregate is .*, but models by key see no aggregates"),
        ({"source": "series", "target": None}, "--aggregate does not apply to 'series'"),
        ({"learner": "sklearn.naive_bayes:GaussianNB", "features": "fourier"}, "--aggregate does"),
    ],
)
def test_what_does_not_fit_is_refused(
    data: Path, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises((InvalidInput, InvalidOption), match=message):
        Run(tmp_path / "run", options(data, **more))
    assert not (tmp_path / "run").exists()
