"""`kalstream run --key`: the model by key, its results, its resumption and what it refuses."""

from __future__ import annotations

import io
import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream import KalmanClassifier, KeyedClassifier
from kalstream.errors import InvalidInput, InvalidOption
from kalstream.evaluate import Evaluation, prequential, retention
from kalstream.evaluate import keys as keys_of_rows
from kalstream.evaluate._rebatch import from_json, to_json
from kalstream.report import make_report
from kalstream.runs import Options, Run, open_run
from kalstream.runs.inspect import described, predicted_rows
from kalstream.serve.served import Served
from kalstream.streams import ArrayStream, Batch, PushedRows, TableStream
from runs.test_run import lines_of, model_of

ROWS = 400
NAMES = ["ada", "ben", "cy", "7"]


def text(rows: int, seed: int = 0, missing: int = 90) -> str:
    """A table in which each customer has a rule of its own; one label is missing."""
    rng = np.random.default_rng(seed)
    customer, x = rng.integers(0, 4, rows), rng.standard_normal((rows, 2)).round(3)
    own = np.array([[3.0, 0.0], [-3.0, 1.0], [0.0, 3.0], [0.0, -3.0]])[customer]
    y = np.where((own * x).sum(1) + rng.standard_normal(rows) > 0, "buys", "leaves")
    y[missing] = ""
    lines = [f"{NAMES[c]},{a},{b},{d}" for c, (a, b), d in zip(customer, x, y, strict=True)]
    return "\n".join(["customer,a,b,y", *lines, ""])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "data.csv"
    path.write_text(text(ROWS))
    return path


def options(data: Path, **more: Any) -> Options:
    given = {"source": str(data), "target": "y", "key": "customer", "features": "scaled"}
    return Options.of(**given | {"window": 50, "predictions": True} | more)


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    """A run that has ended."""
    folder = data.parent / "run"
    Run(folder, options(data)).go()
    return folder


def end_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def section_of(folder: Path) -> str:
    page = make_report(folder)
    start = page.index('<section id="keys">')
    return page[start : page.index("</section>", start)]


def test_a_run_is_the_model_by_key(data: Path, run: Path) -> None:
    learner = KeyedClassifier(KalmanClassifier(features="scaled", time_unit=1.0, random_state=0))
    stream = TableStream(data, "y", key="customer")
    assert stream.columns == ("a", "b")
    result = prequential(learner, stream, window=50)
    end = end_of(run)
    assert end["total"]["log_loss"] == result.total["log_loss"]
    Run(data.parent / "alike", options(data, key=None, ignore=["customer"])).go()
    assert end["total"]["log_loss"] < end_of(data.parent / "alike")["total"]["log_loss"] - 0.1
    assert json.loads((run / "config.json").read_text())["stream"]["key"] == "customer"
    windows = (run / "metrics.jsonl").read_text().splitlines()[:-1]
    assert all(json.loads(line)["half_life"] for line in windows)


def test_the_last_line_has_what_the_predictions_give(run: Path) -> None:
    seen: dict[str, int] = defaultdict(int)
    losses: dict[str, list[float]] = defaultdict(list)
    curve: dict[int, list[float]] = {1: [], 2: [], 6: [], 21: [], 101: []}
    n_learned, known = 0, set[str]()
    for line in map(json.loads, (run / "predictions.jsonl").read_text().splitlines()):
        key, target = line["key"], line["target"]
        if target is None:
            continue
        seen[key] += 1
        if n_learned:
            share = n_learned / (n_learned + 1.0)
            p = share * line["probabilities"].get(target, 0.0) if target in known else 1.0 - share
            losses[key].append(-math.log(p))
            curve[max(first for first in curve if first <= seen[key])].append(losses[key][-1])
        n_learned += 1
        known.add(target)
    about = end_of(run)["keys"]
    assert about["n"] == 4
    assert about["spread"] > 0.5
    assert sum(each["weight"] for each in about["spread_weights"]) == pytest.approx(1.0)
    for step, (first, each) in zip(about["curve"], curve.items(), strict=True):
        assert (step["first"], step["rows"]) == (first, len(each))
        assert step["log_loss"] == (pytest.approx(np.mean(each)) if each else None)
    ranked = sorted(losses, key=lambda key: float(np.mean(losses[key])))
    assert [each["key"] for each in about["best"]] == ranked[:2]
    assert [each["key"] for each in about["worst"]] == ranked[:1:-1]
    for each in about["best"] + about["worst"]:
        assert each["rows"] == len(losses[each["key"]])
        assert each["log_loss"] == pytest.approx(np.mean(losses[each["key"]]))


@pytest.mark.parametrize("more", [{}, {"chunk": 7}, {"cost": 2.0}])
def test_a_resumed_run_ends_with_the_same_bits(
    data: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    Run(tmp_path / "whole", options(data, **more)).go()
    for limit in (1, 2, 93, 250):  # before the second label, in a chunk, behind a window
        how: dict[str, Any] = {"checkpoint_every": 0.0}
        if limit == 1:
            Run(tmp_path / "run", options(data, limit=limit, **more), **how).go()
        else:
            resumed = Run.resume(tmp_path / "run", {"limit": limit}, **how)
            assert resumed is not None
            resumed.go()
    last = Run.resume(tmp_path / "run", {"limit": None})
    assert last is not None
    last.go(stopped=lambda: True)
    last = Run.resume(tmp_path / "run")
    assert last is not None
    last.go()
    one, two = tmp_path / "run", tmp_path / "whole"
    assert lines_of(one) == lines_of(two)
    assert (one / "predictions.jsonl").read_bytes() == (two / "predictions.jsonl").read_bytes()
    assert model_of(one) == model_of(two)


def test_more_data_continue_a_run(data: Path, run: Path, tmp_path: Path) -> None:
    for name, part in (("one.csv", slice(0, 200)), ("two.csv", slice(200, None))):
        lines = data.read_text().splitlines()
        (tmp_path / name).write_text("\n".join([lines[0], *lines[1:][part], ""]))
    Run(tmp_path / "run", options(tmp_path / "one.csv")).go()
    Run.extend(tmp_path / "run", tmp_path / "two.csv").go()
    assert end_of(tmp_path / "run")["keys"] == end_of(run)["keys"]


def test_rows_of_a_pipe_have_keys(
    data: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data.read_bytes())))
    Run(tmp_path / "run", options(Path("-"))).go()
    assert end_of(tmp_path / "run")["keys"] == end_of(run)["keys"]


def test_rows_are_predicted_by_key(data: Path, run: Path, tmp_path: Path) -> None:
    rows = [("customer", "a", "b"), *(("ada", 2, 0), ("ben", 2, 0), ("new", 2, 0))]
    (tmp_path / "new.csv").write_text("".join(f"{a},{b},{c}\n" for a, b, c in rows))
    header, *made = predicted_rows(run, str(tmp_path / "new.csv"))
    assert header == ["row", "prediction", "p_buys", "p_leaves"]
    model = open_run(run)
    direct = model.model.predict_proba([[2.0, 0.0]] * 3, ["ada", "ben", "new"])
    assert [row[2:] for row in made] == direct.tolist()
    assert [row[1] for row in made[:2]] == ["buys", "leaves"]
    (tmp_path / "none.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInput, match="there is no column 'customer'"):
        list(predicted_rows(run, str(tmp_path / "none.csv")))
    about = described(run)
    assert (about["model"], about["keys"], about["rows_seen"]) == ("KeyedClassifier", 4, ROWS)


def test_the_model_of_a_run_takes_rows_with_keys(run: Path) -> None:
    model = open_run(run)
    row = {"customer": "dee", "a": 0.5, "b": 0.5}
    before = model.predict_proba([row])
    model.partial_fit([{**row, "y": "leaves"}] * 30)
    assert "dee" in model.model.keys_
    assert model.predict_proba([row])[0, 1] > before[0, 1]
    calls: list[Callable[[], Any]] = [
        lambda: model.uncertainty([row]),
        lambda: model.ask([row]),
        lambda: model.tell([0], ["buys"]),
        lambda: model.waiting_,
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match=r"KeyedClassifier has no .*; use predict_proba"):
            call()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"delay": "5"}, "--delay is '5', .* no late labels; leave --delay or --key out"),
        ({"id": "a"}, "--id is 'a', .* no late labels; leave --id or --key out"),
        ({"time": "a", "label_time": "b"}, "--label-time is 'b', .* no late labels"),
        ({"max_age": 2.0}, r"--max-age is 2.0, .* no late labels"),
        ({"time": "a"}, "--time is 'a', but models by key forget by rows; leave --time or --key"),
        ({"transition": "chunk", "chunk": 5}, "--transition is 'chunk', .* before every row"),
        ({"target": "a"}, "--key is 'customer', but the target is a number.* leave --key out"),
        ({"task": "regression", "target": "a"}, "--key is 'customer', but the target is a number"),
        ({"key": "costumer"}, "there is no such column. Did you mean 'customer'"),
        ({"key": "y"}, "'y' is both target and key; name two different columns"),
        ({"source": "series"}, "key='customer' does not apply to series"),
        ({"learner": "sklearn.naive_bayes:GaussianNB"}, "GaussianNB takes none; use KeyedClass"),
    ],
)
def test_what_a_model_by_key_does_not_do(
    data: Path, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    given = options(data).model_dump() | more
    if given["source"] == "series":
        del given["target"]
    with pytest.raises((InvalidInput, InvalidOption), match=message):
        Run(tmp_path / "run", Options.of(**given))
    assert not (tmp_path / "run").exists()


def test_no_run_begins_with_a_model_by_key(data: Path, run: Path, tmp_path: Path) -> None:
    model = next((run / "checkpoint").glob("*.safetensors"))
    for origin in (run, model):
        with pytest.raises(InvalidInput, match=r"its model is one by key.* with --extend"):
            Run(tmp_path / "run", options(data, key=None, origin=str(origin)))
        with pytest.raises(InvalidInput, match=r"its model is one by key"):
            Served("it", Options(origin=str(origin)), tmp_path / "served")
    plain = options(data, key=None)
    Run(tmp_path / "plain", plain).go()
    with pytest.raises(InvalidOption, match=r"--key is 'customer', but --from continues"):
        Run(tmp_path / "run", options(data, origin=str(tmp_path / "plain")))
    with pytest.raises(InvalidInput, match=r"have no keys, which the model needs; give the folder"):
        list(predicted_rows(model, str(data)))


def test_a_row_without_a_key_is_a_bad_row(data: Path, tmp_path: Path) -> None:
    lines = data.read_text().splitlines()
    lines[7] = lines[7][lines[7].index(",") :]
    source = tmp_path / "bad.csv"
    source.write_text("\n".join([*lines, ""]))
    assert Run(tmp_path / "a", options(source)).go()["reason"] == "error"
    assert "line 8" in end_of(tmp_path / "a")["message"]
    assert "is no key: give such rows one" in end_of(tmp_path / "a")["message"]
    end = Run(tmp_path / "b", options(source, bad_rows="skip")).go()
    assert (end["row"], end["skipped"], end["keys"]["n"]) == (ROWS - 1, 1, 4)


def test_the_report_has_a_section_on_keys(data: Path, run: Path) -> None:
    about, section = end_of(run)["keys"], section_of(run)
    assert "4 keys. What a key adds to a logit has a standard deviation of" in section
    for each in about["best"] + about["worst"]:
        assert f'<th scope="row">{each["key"]}</th>' in section
        assert f"{each['log_loss']:.3g}"[:4] in section
    for name in ("1: ", "2–5: ", "6–20: ", "21–100: ", "101 and more: "):
        assert name in section
    assert "a model for each “customer”" in make_report(run)
    Run(data.parent / "plain", options(data, key=None, limit=100)).go()
    assert 'id="keys"' not in make_report(data.parent / "plain")


def test_the_section_says_what_is_left_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_of_rows, "MOST_KEYS", 2)
    Run(tmp_path / "run", options(data, limit=30)).go()
    about, section = end_of(tmp_path / "run")["keys"], section_of(tmp_path / "run")
    assert about["n"] == 4
    assert 0 < about["later_rows"] == 30 - 1 - sum(each["rows"] for each in about["curve"])
    assert "of keys that came after the first" in section
    assert "No key has 20 rows that were scored" in section
    killed = (tmp_path / "run/metrics.jsonl").read_text().splitlines()[:-1]
    (tmp_path / "run/metrics.jsonl").write_text("\n".join([*killed, ""]))
    assert "it is not written yet" in section_of(tmp_path / "run")


def test_learners_and_streams_agree_on_keys() -> None:
    X, y = np.ones((4, 1)), ["a", "b"] * 2
    with pytest.raises(InvalidInput, match=r"KeyedClassifier learns a model by key.* with key="):
        prequential(KeyedClassifier(), ArrayStream(X, y))
    with pytest.raises(InvalidInput, match=r"KalmanClassifier takes none; use KeyedClassifier"):
        prequential(KalmanClassifier(), ArrayStream(X, y, keys=[1, 2, 3, 4]))
    with pytest.raises(InvalidInput, match=r"keys must be \(4,\)"):
        ArrayStream(X, y, keys=[1])
    one, two = (ArrayStream(X, y, keys=keys).describe() for keys in ([1, 2, 3, 4], [1, 2, 3, 3]))
    assert one["fingerprint"] != two["fingerprint"]


def test_rows_with_keys_can_be_pushed_and_saved() -> None:
    evaluation = Evaluation(KeyedClassifier(), PushedRows(keyed=True))
    batch = Batch(0, np.ones((1, 2)), np.array(["a"], object), keys=np.array(["k"], object))
    evaluation.step(batch)
    with pytest.raises(InvalidInput, match="batch at row 1 lacks keys"):
        evaluation.step(Batch(1, np.ones((1, 2)), np.array(["b"], object)))
    assert evaluation.n_rows == 1
    again = from_json(json.loads(json.dumps(to_json(batch))), "classification")
    assert again.keys is not None
    assert again.keys.tolist() == ["k"]


def test_ahead_and_retention_take_streams_with_keys(data: Path) -> None:
    stream = TableStream(data, "y", key="customer")
    learner = KeyedClassifier(KalmanClassifier(features="scaled"))
    assert prequential(learner, stream, ahead=5).n_scored > ROWS - 10
    kept = retention(KeyedClassifier(KalmanClassifier(features="scaled")), stream, window=100)
    assert kept.row == ROWS
