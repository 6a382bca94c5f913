"""Runs that begin with a saved model, are extended by more data, or continue on a new pipe."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kalstream import KalmanClassifier, KalmanRegressor, cli
from kalstream.cli.run_output import print_end
from kalstream.errors import InUse, InvalidInput, InvalidOption, KalstreamError, MissingFile
from kalstream.evaluate import Evaluation
from kalstream.report import compare_runs, write_report
from kalstream.runs import Options, Run, described, open_checkpoint, open_run, predicted_rows
from kalstream.runs import files as schema
from kalstream.runs.run import _lock_of
from kalstream.streams import ArrayStream, LaterRows
from runs.test_folders import DATA, assert_same, content_of, edited, options_of
from runs.test_run import lines_of, numbers, stop_after, table

ROWS, MORE = 330, 270
PROTOCOLS = [
    {},
    {"forgetting": "mixture", "features": "fourier"},
    {"delay": 40},
    {"chunk": 7, "delay": 20, "window": 70},  # the end of the first data cuts a chunk
    {"bad_rows": "skip", "time": "when"},
]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A stream in two files; the second one has a new category and a bad row."""
    monkeypatch.chdir(tmp_path)
    header, *rows = table(Path("whole.csv"), ROWS + MORE).read_text().splitlines()
    rows[ROWS + 30] = rows[ROWS + 30].replace(",red,", ",violet,").replace(",blue,", ",violet,")
    one, two = rows[:ROWS], rows[ROWS:]
    for name, part in (("whole", rows), ("one", one), ("two", two)):
        Path(f"{name}.csv").write_text("\n".join([header, *part]) + "\n")
    return Path("one.csv"), Path("two.csv")


def failing(go: Any, *folders: str) -> str:
    """The message of an error that changes nothing."""
    before = [content_of(Path(folder)) for folder in folders]
    with pytest.raises(KalstreamError) as caught:
        go()
    assert [content_of(Path(folder)) for folder in folders] == before
    return str(caught.value)


# ---- extending ------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_an_extended_run(parts: tuple[Path, Path], protocol: dict[str, Any]) -> None:
    """It ends like an extended run that was stopped and resumed."""
    one, two = parts
    for name in ("extended", "stopped"):
        Run(name, options_of(one, predictions=True, **protocol)).go()
    run = Run.extend("extended", two, command="kalstream run two.csv --extend extended")
    assert run.resumed_at == ROWS
    end = run.go()
    assert (end["row"], end["reason"], end["parts"]) == (ROWS + MORE, "end", 2)
    assert Run.resume("extended") is None
    lines = lines_of(Path("extended"), "predictions.jsonl")
    assert [line["row"] for line in lines] == list(range(ROWS + MORE))
    rows = [line["row"] for line in lines_of(Path("extended"))[:-1]]
    assert rows == [*range(run.evaluation.window, ROWS + MORE, run.evaluation.window), ROWS + MORE]
    (extension,) = schema.read_config(Path("extended"))["extensions"]
    assert (extension["row"], extension["source"]) == (ROWS, "two.csv")
    assert extension["command"] == "kalstream run two.csv --extend extended"
    for stop in (1, 2, 1):
        again = Run.extend("stopped", two) if stop == 1 and rows else Run.resume("stopped")
        rows = []
        assert again.go(stopped=stop_after(stop))["reason"] == "interrupted"
    assert Run.resume("stopped").go()["reason"] == "end"
    assert_same(Path("stopped"), Path("extended"))


def test_an_extended_run_ends_like_a_run_on_all_data(parts: tuple[Path, Path]) -> None:
    for path in (*parts, Path("whole.csv")):  # the first data decide how many categories fit
        path.write_text(path.read_text().replace("violet", "red"))
    for k, protocol in enumerate(({}, {"forgetting": "mixture", "time": "when"})):
        Run(f"run-{k}", options_of(parts[0], **protocol)).go()
        end = Run.extend(f"run-{k}", parts[1]).go()
        whole = Run(f"whole-{k}", options_of(Path("whole.csv"), **protocol)).go()
        assert numbers(end["total"]) == pytest.approx(numbers(whole["total"]), rel=1e-6)
        assert end["baselines"] == whole["baselines"]


def test_a_run_extended_twice_counts_bad_rows(parts: tuple[Path, Path]) -> None:
    one, two = parts
    for path in parts:
        lines = path.read_text().splitlines()
        lines[100] += ",surplus"
        path.write_text("\n".join(lines) + "\n")
    three = table(Path("three.csv"), 60, seed=3)
    assert Run("run", options_of(one, bad_rows="skip")).go()["skipped"] == 1
    Run.extend("run", two).go(stopped=stop_after(3))
    end = Run.resume("run").go()
    assert (end["row"], end["skipped"]) == (ROWS + MORE - 2, 2)
    assert [why[:9] for why in end["skipped_why"]] == ["one.csv, ", "two.csv, "]
    end = Run.extend("run", three, {"limit": 620, "bad_rows": "stop"}).go()
    assert (end["row"], end["reason"], end["skipped"], end["parts"]) == (620, "limit", 2, 3)
    end = Run.resume("run", {"limit": None}).go()
    assert (end["row"], end["reason"]) == (658, "end")
    assert described("run")["rows_seen"] == 658


def test_runs_that_cannot_be_extended(parts: tuple[Path, Path]) -> None:
    one, two = parts
    Run("stopped", options_of(one)).go(stopped=stop_after(2))
    Run("limited", options_of(one, limit=200)).go()
    Run("ended", options_of(one)).go()
    Run("sgd", options_of(one, learner="sklearn.linear_model:SGDClassifier", ignore=["x"])).go()
    shutil.copytree("ended", "killed")
    metrics = Path("killed/metrics.jsonl")
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]))
    for name, message in (
        ("stopped", "it was interrupted. Resume it first, with: kalstream run --resume --out"),
        ("limited", "stopped at its limit, row 200. .*--resume --out limited --limit 0"),
        ("killed", "it was killed. Resume it first"),
        ("sgd", "no checkpoint to continue from"),
    ):
        assert re.search(message, failing(lambda name=name: Run.extend(name, two), name))
        assert not Path(name, ".lock").exists()
    with pytest.raises(InvalidInput, match="nothing holds no run to extend"):
        Run.extend("nothing", two)

    def message(source: Any, **changes: Any) -> str:
        return failing(lambda: Run.extend("ended", source, changes), "ended")

    assert "--target 'color'" in message(two, target="color")
    assert "--forgetting '0.5' is given now" in message(two, forgetting="0.5")
    assert "has the same content as data that the run has already learned" in message(one)
    assert "limit of all its rows is 300" in message(two, limit=300)
    assert "no such file" in message("three.csv")
    text = two.read_text()
    two.write_text(text.replace("color", "hue", 1))
    assert "there is no column 'color'" in message(two)
    two.write_text(text.replace("label", "class", 1))
    assert "there is no column 'label'" in message(two)
    np.save("e.npy", np.zeros((5, 3)))
    np.save("e-labels.npy", np.zeros(5))
    assert "e.npy holds embeddings, and ended has learned a table" in message("e.npy")
    two.write_text(text)
    lock = _lock_of(Path("ended"))
    with lock, pytest.raises(InUse, match="ended is in use by process"):
        Run.extend("ended", two)
    assert Run.extend("ended", two).go()["reason"] == "end"


def test_an_extension_that_goes_wrong(parts: tuple[Path, Path]) -> None:
    one, two = parts
    options = options_of(one, time="when", time_unit="60")
    Run("run", options).go()
    early = table(Path("early.csv"), 50, seed=1)
    assert "early.csv does not continue run: time decreases from" in failing(
        lambda: Run.extend("run", early), "run"
    )
    text = two.read_text()
    lines = text.splitlines()
    lines[151] = "abc" + lines[151][lines[151].index(",") :]
    two.write_text("\n".join(lines) + "\n")
    end = Run.extend("run", two).go()
    assert (end["row"], end["reason"]) == (ROWS + 150, "error")
    assert "two.csv, line 152" in end["message"]
    end = Run.resume("run", {"bad_rows": "skip"}).go()
    assert (end["row"], end["reason"], end["skipped"]) == (ROWS + MORE - 1, "end", 1)
    Run("other", options).go()
    two.write_text(text)
    Run.extend("other", two).go(stopped=stop_after(2))
    two.write_text(text + text.splitlines()[-1] + "\n")
    assert "two.csv has changed since" in failing(lambda: Run.resume("other"), "other")
    two.write_text(text)
    shutil.rmtree("other/checkpoint")
    assert "was extended, at row 330, and its checkpoint is missing" in failing(
        lambda: Run.resume("other"), "other"
    )


def test_a_kill_before_the_first_checkpoint_of_an_extension(parts: tuple[Path, Path]) -> None:
    one, two = parts
    for name in ("whole", "run"):
        Run(name, options_of(one, predictions=True)).go()
    Run.extend("whole", two).go()
    killed = Run.extend("run", two)  # config.json is written, and nothing else
    killed.lock.release()
    assert "it was killed. Resume" in failing(lambda: Run.extend("run", two), "run")
    assert Run.resume("run").go()["reason"] == "end"
    assert_same(Path("run"), Path("whole"))


def test_embeddings_are_extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n, d in (("a", 200, 4), ("b", 100, 4), ("c", 100, 3)):
        np.save(f"{name}.npy", rng.standard_normal((n, d)))
        np.save(f"{name}-labels.npy", rng.integers(3, size=n))
    Run("run", Options(source="a.npy", features="raw")).go()
    assert "c.npy has 3 columns, and the model of run has learned 4" in failing(
        lambda: Run.extend("run", "c.npy"), "run"
    )
    assert Run.extend("run", "b.npy").go()["row"] == 300
    assert Run("new", Options(source="b.npy", origin="run")).go()["row"] == 100


def test_folders_of_earlier_formats_are_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(1, schema.FORMAT):
        saved = DATA.with_name(f"run-format-{number}")
        shutil.copytree(saved / "ended", f"run-{number}")
        more = (saved / "data.csv").read_text().splitlines()[:100]
        Path("more.csv").write_text("\n".join(more) + "\n")
        end = Run.extend(f"run-{number}", "more.csv").go()
        assert (end["row"], end["reason"], end["parts"]) == (299, "end", 2)
        new = Run(f"new-{number}", Options(source="more.csv", origin=str(saved / "ended"))).go()
        assert new["row"] == 99


# ---- beginning with a saved model -----------------------------------------------------------


@pytest.mark.parametrize("protocol", [{}, {"delay": 30, "chunk": 10}], ids=str)
def test_a_run_that_begins_with_the_model_of_another(
    parts: tuple[Path, Path], protocol: dict[str, Any]
) -> None:
    one, two = parts
    Run("old", options_of(one)).go()
    old = content_of(Path("old"))
    options = Options(source=str(two), origin="old", window=50, predictions=True, **protocol)
    run = Run("new", options)
    assert run.options.forgetting == "0.99"
    assert run.config["learner"]["params"]["features"] == "scaled"
    assert any("begins with the model of old, which has learned 330 rows" in n for n in run.notes)
    end = run.go()
    assert content_of(Path("old")) == old
    assert described("new")["rows_seen"] == ROWS + MORE
    entry = schema.read_config(Path("new"))["origin"]
    assert (entry["path"], entry["rows"]) == ("old", ROWS)
    assert entry["run"] == schema.read_config(Path("old"))["run"]
    # labels are known from the first row on, and so are the baselines
    assert lines_of(Path("new"))[0]["n"] + lines_of(Path("new"))[0]["missing"] == 50
    assert lines_of(Path("new"))[0]["new_classes"] == []
    assert set(end["classes"]) == {"up", "down", "new"}
    # the new run does not need the old one once it has begun
    stopped = Run("stopped", options, checkpoint_every=0.0)
    assert stopped.go(stopped=stop_after(2))["reason"] == "interrupted"
    shutil.move("old", "elsewhere")
    Run.resume("stopped").go()
    assert_same(Path("stopped"), Path("new"))
    assert Run.extend("new", one, {"bad_rows": "skip"}).go()["row"] == ROWS + MORE


def test_the_model_goes_on_as_if_there_was_one_run(parts: tuple[Path, Path]) -> None:
    one, two = parts
    Run("old", options_of(one)).go()
    shutil.copytree("old", "extended")
    Run.extend("extended", two).go()
    Run("new", Options(source=str(two), origin="old")).go()
    rows = [[r[2:] for r in predicted_rows(name, "one.csv")][1:] for name in ("extended", "new")]
    np.testing.assert_allclose(*rows, rtol=1e-9)  # rows are learned in other groups
    _, encoder, _ = open_checkpoint("new")
    color = next(column for column in encoder.features if column.name == "color")
    assert "violet" in color.slots


def test_drift_alarms_before_do_not_count(
    parts: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    Run("old", Options(source="whole.csv", target="label")).go()
    alarms = described("old")["drift"]["alarms"]
    assert alarms >= 1
    quiet = table(Path("quiet.csv"), 80, seed=5)
    run = Run("new", Options(source=str(quiet), origin="old"))
    end = run.go()
    print_end(run, end, Path("new/report.html"))
    lines = lines_of(Path("new"))[:-1]
    began = [alarm["row"] for line in lines for alarm in line["drift"]]
    assert len(began) == described("new")["drift"]["alarms"] - alarms
    assert f"{len(began)} drift alarm" in capsys.readouterr().out
    assert all(0 <= row < end["row"] for row in began)


def test_options_that_do_not_go_with_a_saved_model(parts: tuple[Path, Path]) -> None:
    one, two = parts
    Run("old", options_of(one, ignore=["when"])).go()

    def message(**more: Any) -> str:
        values = {"source": str(two), "origin": "old", **more}
        with pytest.raises(KalstreamError) as caught:
            Run("new", Options(**values))
        assert not Path("new").exists()
        return str(caught.value)

    for name, value in (
        ("forgetting", "mixture"),
        ("likelihood", "onehot"),
        ("features", "raw"),
        ("motion", "2"),
        ("learner", "sklearn.naive_bayes:GaussianNB"),
        ("seed", 4),
        ("task", "regression"),
        ("time", "when"),
        ("ignore", ["x"]),
        ("target", "color"),
        ("categorical", ["y"]),
    ):
        said = message(**{name: value})
        assert f"--{name} is" in said
        assert f"leave --{name} out, or run without --from" in said
    for name, value in (("forgetting", "0.99"), ("target", "label"), ("ignore", ["when"])):
        Run("new", Options(source=str(two), origin="old", **{name: value}))
    two.write_text(two.read_text().replace("x,", "z,", 1))
    assert "there is no column 'x'" in message()
    assert "no such file or folder" in message(origin="nowhere")
    assert "holds no checkpoint" in message(origin=".")
    assert "whole.csv" in message(origin="whole.csv")
    with pytest.raises(InvalidOption, match="is in the folder that --overwrite replaces"):
        Run("old", Options(source=str(one), origin="old/checkpoint"), overwrite=True)


def test_an_origin_that_changes_before_the_first_checkpoint(parts: tuple[Path, Path]) -> None:
    one, two = parts
    Run("old", options_of(one)).go()
    options = Options(source=str(two), origin="old", window=50)
    Run("whole", options).go()
    Run("run", options).go(stopped=stop_after(1))
    shutil.rmtree("run/checkpoint")
    assert Run.resume("run").go()["reason"] == "end"
    assert_same(Path("run"), Path("whole"))
    Run("other", options).go(stopped=stop_after(1))
    shutil.rmtree("other/checkpoint")
    Run.extend("old", two).go()
    assert "old has changed since the run began with its model" in failing(
        lambda: Run.resume("other"), "other"
    )


def test_a_model_file(parts: tuple[Path, Path]) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 2))
    targets = np.where(rows[:, 0] > 0, "1", "0")
    KalmanClassifier(0.99, "scaled", random_state=0).partial_fit(rows, targets).save("model")
    text = "".join(f"{a:.5f},{b:.5f},{a > 0:d}\n" for a, b in rng.standard_normal((100, 2)))
    Path("d.csv").write_text("a,b,y\n" + text)
    run = Run("run", Options(source="d.csv", target="y", origin="model", window=50))
    end = run.go()
    assert end["classes"] == ["0", "1"]  # text, as the model has learned them
    assert end["n"] == 100
    assert end["total"]["accuracy"] > 0.9
    assert described("run")["rows_seen"] == 300
    assert schema.read_config(Path("run"))["origin"]["run"] is None

    def message(source: str = "d.csv", **more: Any) -> str:
        options = Options(**{"source": source, "target": "y", "origin": "model", **more})
        with pytest.raises(KalstreamError) as caught:
            Run("new", options)
        return str(caught.value)

    Path("c.csv").write_text("a,b,y\n" + text.replace(",", ",c", 1).replace("\n", "\n", 1))
    Path("text.csv").write_text("a,b,y\n" + "".join(f"{k},red,1\n" for k in range(9)))
    Path("wide.csv").write_text("a,b,c,y\n" + "1,2,3,1\n" * 9)
    assert "column 'b' of text.csv holds categories, and a model file does not" in message(
        "text.csv"
    )
    assert "wide.csv has 3 columns, and the model of model has learned 2" in message("wide.csv")
    assert "time is given in this call but was not" in message("wide.csv", time="c")
    assert "--task is 'regression'" in message(task="regression")
    assert "--forgetting is '0.99'" in message(forgetting="0.99")
    KalmanRegressor().partial_fit(rows, np.full(200, np.nan)).save("empty")
    assert "has learned nothing yet" in message(origin="empty")


def test_a_model_file_with_names(parts: tuple[Path, Path]) -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.standard_normal((100, 2)), columns=["b", "a"])
    KalmanRegressor(features="raw").partial_fit(frame, frame["b"] - frame["a"]).save("model")
    lines = [f"{a:.5f},x,{b:.5f},{b - a:.5f}\n" for a, b in rng.standard_normal((50, 2))]
    Path("d.csv").write_text("a,other,b,y\n" + "".join(lines))
    run = Run("run", Options(source="d.csv", target="y", origin="model"))
    assert run.stream.columns == ("b", "a")
    assert run.go()["total"]["rmse"] < 0.1
    Path("d.csv").write_text("a,c,y\n1,2,3\n")
    with pytest.raises(InvalidInput, match=r"d\.csv has no column 'b', which the model has"):
        Run("new", Options(source="d.csv", target="y", origin="model"))


# ---- pipes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [{}, {"delay": 40}, {"chunk": 7, "delay": 20}], ids=str)
def test_a_run_on_a_pipe_continues_on_a_new_one(
    parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, protocol: dict[str, Any]
) -> None:
    header, *rows = Path("whole.csv").read_text().splitlines()

    def pipe(rows: list[str]) -> None:
        text = "\n".join([header, *rows]) + "\n"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    options = options_of(Path("-"), predictions=True, **protocol)
    pipe(rows)
    Run("whole", options).go()
    pipe(rows)
    end = Run("run", options).go(stopped=stop_after(3))
    for stop in (2, 4):
        assert end["reason"] == "interrupted"
        pipe(rows[end["row"] :])
        run = Run.resume("run")
        assert run.resumed_at == end["row"]
        end = run.go(stopped=stop_after(stop))
    pipe(rows[end["row"] :])
    assert Run.resume("run").go()["parts"] == 4
    for name in ("whole", "run"):  # apart from the number of pipes, all is the same
        lines = Path(name, "metrics.jsonl").read_text()
        Path(name, "metrics.jsonl").write_text(re.sub(r', "parts": \d', "", lines))
    assert_same(Path("run"), Path("whole"))
    pipe(rows[:50])  # after the end of a pipe too
    assert Run.resume("run").go()["row"] == len(rows) + 50


def test_a_pipe_whose_rows_wait_is_followed_by_a_file(
    parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the pipe cannot be read again: the model keeps them, and checkpoints the labels."""
    one, two = parts
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(one.read_bytes())))
    options = options_of(Path("-"), delay=120, chunk=7, window=70, predictions=True)
    end = Run("whole", options).go(stopped=stop_after(3))
    waiting = schema.read_progress(Path("whole/checkpoint"))["evaluation"]["late"]
    assert len(waiting["rows"]) >= 120
    shutil.copytree("whole", "run")
    Run.extend("whole", two).go()
    Run.extend("run", two, checkpoint_every=0.0).go(stopped=stop_after(1))
    assert schema.read_progress(Path("run/checkpoint"))["evaluation"]["late"]["rows"]
    Run.resume("run").go(stopped=stop_after(1))
    assert Run.resume("run").go()["row"] == end["row"] + MORE
    assert_same(Path("run"), Path("whole"))
    assert described("run")["rows_seen"] == end["row"] + MORE


def test_a_pipe_begins_with_a_model(
    parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = parts
    Run("old", options_of(one, time="when")).go()
    for name in ("first", "then"):
        header, *rows = two.read_text().splitlines()
        text = "\n".join([header, *(rows[:90] if name == "first" else rows[90:])]) + "\n"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        new = name == "first"
        run = Run("new", Options(source="-", origin="old")) if new else Run.resume("new")
        assert run.stream.columns == open_checkpoint("old")[1].names
        end = run.go()
    assert (end["row"], end["reason"]) == (MORE, "end")
    file = Run("file", Options(source=str(two), origin="old")).go()
    assert numbers(end["total"]) == pytest.approx(numbers(file["total"]), rel=1e-6)


def test_a_pipe_of_another_kind(parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = parts

    def pipe(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    def resumed(text: str) -> Run | None:
        pipe(text)
        return Run.resume("run")

    pipe(one.read_text())
    Run("run", options_of(Path("-"), time="when", delay=10)).go(stopped=stop_after(4))
    for text, message in (
        ("", "standard input is empty"),
        ("x,y,color,label\n1,2,red,up\n", "there is no column 'when'"),
        ("0.5,0.7,red,99,up\n", "there is no column 'x'"),
    ):
        assert message in failing(lambda text=text: resumed(text), "run")
    early = resumed("x,y,color,when,label\n1,2,red,0,up\n").go()
    assert early["reason"] == "error"
    assert "time" in early["message"]
    objects = [{"x": 1, "y": 2, "color": "red", "when": 1e6 + k, "label": "up"} for k in range(60)]
    n = early["row"]
    end = resumed("\n".join(map(json.dumps, objects)) + "\n").go()
    assert (end["row"], end["reason"]) == (n + 60, "end")
    early = table(Path("early.csv"), 9)
    assert "time decreases from" in failing(lambda: Run.extend("run", early), "run")


def test_waiting_rows_are_checked(parts: tuple[Path, Path]) -> None:
    def evaluation() -> Evaluation:
        stream = ArrayStream(np.zeros((20, 2)), ["a", "b"] * 10)
        stream.repeatable = False
        learner = KalmanClassifier(0.9, "raw", transition="chunk")  # it keeps no rows
        return Evaluation(learner, stream, delay=5)

    one = evaluation()
    list(one.records())
    state = json.loads(json.dumps(one.state()))
    assert [chunk["start"] for chunk in state["pending"]] == [15, 16, 17, 18, 19]
    two = evaluation()
    two.restore(state)
    assert [chunk.targets.tolist() for chunk in two.pending] == [["b"], ["a"], ["b"], ["a"], ["b"]]
    state["pending"][2]["start"] = 3
    with pytest.raises(ValueError, match="must follow"):
        evaluation().restore(state)


# ---- in Python ------------------------------------------------------------------------------


def test_a_run_opens_as_one_object(parts: tuple[Path, Path]) -> None:
    pandas = pytest.importorskip("pandas")
    one, two = parts
    Run("run", options_of(one)).go()
    run = open_run("run")
    frame = pandas.read_csv(two)
    header, *expected = predicted_rows("run", str(two))
    labels = [name.removeprefix("p_") for name in header[2:-1]]
    assert run.classes_.tolist() == labels
    dicts = frame.astype(object).where(frame.notna(), None).to_dict("records")
    for rows in (frame, dicts, pa.Table.from_pandas(frame), frame.drop(columns="label")):
        np.testing.assert_array_equal(run.predict_proba(rows), [row[2:-1] for row in expected])
        np.testing.assert_array_equal(run.uncertainty(rows), [row[-1] for row in expected])
        assert run.predict(rows).tolist() == [row[1] for row in expected]
    assert run.encode(dicts[:3]).shape == (3, run.model.n_features_in_)
    before = run.predict_proba(frame)
    for rows, y, message in (
        ([{"x": 1.0}], None, "there is no column 'y'"),
        (frame.drop(columns="label"), None, "there is no column 'label'"),
        (frame, ["up"], "columns have different lengths"),
        ([{**dicts[0], "color": "pink", "x": "abc"}], None, "row 0, column 'x': 'abc' is not a"),
        (dicts[0], None, "got dict; for one row give"),
        (3, None, "rows must be a list of dicts"),
    ):
        with pytest.raises(InvalidInput, match=message):
            run.partial_fit(rows, y)
        assert "pink" not in run.encoder.features[2].slots
    np.testing.assert_array_equal(run.predict_proba(frame), before)
    files = content_of(Path("run"))
    run.partial_fit(dicts[:100]).partial_fit(frame[100:].drop(columns="label"), frame.label[100:])
    assert content_of(Path("run")) == files
    assert run.model.n_seen_ == ROWS + MORE
    extended = Run.extend("run", two)
    extended.go()
    np.testing.assert_allclose(run.predict_proba(frame), open_run("run").predict_proba(frame))
    run.save("saved")
    np.testing.assert_array_equal(open_run("saved").predict_proba(dicts), run.predict_proba(frame))
    assert Run("new", Options(source=str(one), origin="saved")).go()["row"] == ROWS
    with pytest.raises(InvalidInput, match="saved is not empty; give a new folder"):
        run.save("saved")


def test_objects_with_times_numbers_and_without_names(parts: tuple[Path, Path]) -> None:
    one, two = parts
    options = options_of(one, target="x", time="when", time_unit="60", bad_rows="skip")
    Run("run", options).go()
    run = open_run("run")
    rows = [{"y": 0.5, "color": "red", "when": 60 * ROWS, "label": "up"}]
    mean, std = run.predict(rows, return_std=True)
    assert mean.shape == std.shape == (1,)
    run.partial_fit(rows, [0.25])
    with pytest.raises(InvalidInput, match="time"):
        run.partial_fit([{**rows[0], "when": 0}], [0.25])
    with pytest.raises(MissingFile):
        Run("new", Options(source=str(two), origin="gone"))
    Run("series", Options(source="series", features="raw", limit=100)).go()
    plain = open_run("series")
    wide = np.zeros((3, plain.model.n_features_in_))
    assert plain.predict(wide).shape == (3,)
    with pytest.raises(InvalidInput, match="give their targets as y"):
        plain.partial_fit(wide)
    assert plain.partial_fit(wide, np.zeros(3)).model.n_seen_ == 103


# ---- reports and the command line -----------------------------------------------------------


def test_reports_say_where_new_data_begin(parts: tuple[Path, Path]) -> None:
    one, two = parts
    Run("run", options_of(one)).go()
    shutil.copytree("run", "same")
    Run("new", Options(source=str(two), origin="run")).go()
    page = write_report(Path("new")).read_text()
    assert page.count("begins with the model of run, which had learned 330 rows") == 1
    assert "extended" not in page.partition("<body")[2]
    assert "3 were known from the start, 0 appeared in these data." in page
    metrics = Path("new/metrics.jsonl")  # a killed run has no last line
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]))
    assert write_report(Path("new")).read_text().count("down") >= page.count("down") >= 1
    Run.extend("run", two).go()
    page = write_report(Path("run")).read_text()
    assert "extended by two.csv after row 330" in page
    assert "A dashed vertical line marks where new data begin." in page
    assert page.count('class="extension"') >= 3
    assert "<dt>after row 330</dt><dd>two.csv</dd>" in page
    three = table(Path("three.csv"), 50, seed=9)
    Run.extend("same", three).go()
    with pytest.raises(InvalidInput, match="were extended by different data, after rows 330"):
        compare_runs([Path("run"), Path("same")])


def test_the_commands(
    parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["kalstream", *arguments])
        try:
            cli.main()
            status = 0
        except SystemExit as stopped:
            status = stopped.code or 0
        return status, " ".join("".join(capsys.readouterr()).split())

    quick = ("--features", "scaled", "--forgetting", "0.99", "--window", "50")
    assert call("run", "one.csv", "-t", "label", *quick, "-o", "run")[0] == 0
    status, said = call("run", "two.csv", "--from", "run", "--forgetting", "0.99", "-o", "new")
    assert (status, "begins with the model of run, which has learned 330 rows" in said) == (0, True)
    status, said = call("run", "two.csv", "--from", "run", "--forgetting", "mixture", "-o", "no")
    assert (status, "--forgetting is 'mixture', but --from" in said) == (2, True)
    status, said = call("run", "two.csv", "--extend", "run")
    assert (status, "the rows of two.csv follow row 330" in said) == (0, True)
    assert "600 rows" in said
    assert "extended by two.csv after row 330" in Path("run/report.html").read_text()
    command = schema.read_config(Path("run"))["extensions"][0]["command"]
    assert command == "kalstream run two.csv --extend run"
    status, said = call("run", "two.csv", "--extend", "run")
    assert (status, "begin a new run with --from" in said) == (1, True)
    status, said = call("run", "--resume", "-o", "run")
    assert (status, "has already ended, at row 600" in said) == (0, True)
    edited(Path("run/config.json"), lambda c: {**c, "extensions": [{"row": -1}]})
    status, said = call("run", "--resume", "-o", "run")
    assert (status, "config.json is damaged: extensions.0.row" in said) == (1, True)


def test_rows_after_other_data() -> None:
    stream = LaterRows(
        ArrayStream(np.arange(6.0)[:, None], [*"ababab"], batch_size=4), 10, 2, ["w"]
    )
    assert (stream.first_row, stream.n_rows, stream.approximate_rows) == (10, 16, 16)
    assert (stream.skipped, stream.skipped_why, stream.first_times()) == (2, ["w"], None)
    batches = [(batch.start, batch.rows[:, 0].tolist()) for batch in stream.batches(12)]
    assert batches == [(12, [2.0, 3.0, 4.0, 5.0])]
    assert [batch.start for batch in stream.batches()] == [10, 14]
