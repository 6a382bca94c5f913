"""Run folders: limits, damage, other processes, other versions."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream import KalmanClassifier, cli
from kalstream.errors import InUse, InvalidInput, KalstreamError
from kalstream.evaluate import Evaluation
from kalstream.report import read as report
from kalstream.runs import Options, Run, described, open_checkpoint, why_done
from kalstream.runs import files as schema
from kalstream.runs.setup import make_learner, open_stream
from runs.test_run import lines_of, model_of, numbers, stop_after, table

DATA = Path(__file__).parents[1] / "data" / "run-format-1"
QUICK = {"features": "scaled", "forgetting": "0.99", "target": "label", "window": 50}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return table(tmp_path / "data.csv", 400)


def options_of(data: Path, **more: Any) -> Options:
    return Options(source=str(data), **{**QUICK, **more})


def assert_same(one: Path, two: Path) -> None:
    assert lines_of(one) == lines_of(two)
    assert model_of(one) == model_of(two)
    if (two / "predictions.jsonl").exists():
        assert (one / "predictions.jsonl").read_bytes() == (two / "predictions.jsonl").read_bytes()


def content_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def edited(path: Path, change: Any) -> None:
    """Change a JSON file, and update its checksum."""
    content = json.loads(path.read_text())
    del content["sha256"]
    content = change(content) or content
    path.write_text(json.dumps({**content, "sha256": schema._digest(content)}))


# ---- limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "every", "protocol"),
    [
        ((137, 140, 333), 0.0, {}),
        ((137, 333), 30.0, {"forgetting": "mixture", "features": "fourier"}),
        ((60, 199), 30.0, {"delay": 40}),
        ((100, 250), 0.0, {"delay": 40}),  # no chunk is cut, and labels are late
        ((25, 26, 148), 0.0, {"chunk": 10}),
        ((5, 83), 30.0, {"chunk": 10, "delay": 40}),
        ((100, 350), 0.0, {"chunk": 100, "delay": 7, "cost": 1.5}),
        ((200, 399, 400), 30.0, {"chunk": 64, "window": 1000}),
    ],
    ids=str,
)
def test_a_limited_and_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, data: Path, limits: tuple[int, ...], every: float, protocol: dict[str, Any]
) -> None:
    options = options_of(data, predictions=True, **protocol)
    Run(tmp_path / "whole", options).go()
    limited = options.model_copy(update={"limit": limits[0]})
    end = Run(tmp_path / "run", limited, checkpoint_every=every).go()
    for limit in (*limits[1:], None):
        before = lines_of(tmp_path / "run")
        assert end["reason"] == "limit"
        assert before[-1]["row"] == before[-2]["row"] == end["row"]
        if options.cost == 1.0:  # all rows are learned, like at the end of a stream
            assert open_checkpoint(tmp_path / "run")[0].n_seen_ == end["row"]
        end = Run.resume(tmp_path / "run", {"limit": limit}, checkpoint_every=every).go()
    assert (end["row"], end["reason"]) == (400, "end")
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_limited_run_writes_the_same_as_in_earlier_versions(tmp_path: Path, data: Path) -> None:
    from kalstream.evaluate import prequential

    options = options_of(data, chunk=10, delay=40, limit=137)
    end = Run(tmp_path / "run", options).go()
    stream = open_stream(options)
    protocol = {"chunk": 10, "delay": 40, "limit": 137, "window": 50}
    learner = make_learner(options, stream)
    result = prequential(learner, stream, together=6, **protocol)
    assert end["total"] == result.total
    learner.save(tmp_path / "model")
    progress = json.loads((tmp_path / "run/checkpoint/progress.json").read_text())
    saved = tmp_path / "run/checkpoint" / progress["result"]["model"]
    assert saved.read_bytes() == (tmp_path / "model").read_bytes()
    assert progress["evaluation"]["n_rows"] == 100  # records have 60 rows, within a window


@pytest.mark.parametrize("protocol", [{}, {"chunk": 10, "delay": 15}], ids=str)
def test_a_bad_row_that_is_skipped_later(
    tmp_path: Path, data: Path, protocol: dict[str, Any]
) -> None:
    lines = data.read_text().splitlines()
    lines[224] += ",surplus"
    data.write_text("\n".join(lines) + "\n")
    Run(tmp_path / "whole", options_of(data, bad_rows="skip", **protocol)).go()
    end = Run(tmp_path / "run", options_of(data, **protocol)).go()
    assert (end["reason"], end["row"]) == ("error", 223)
    end = Run.resume(tmp_path / "run", {"bad_rows": "skip"}).go()
    assert (end["reason"], end["row"]) == ("end", 399)
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("stopped_by", ["limit", "interrupt", "kill"])
def test_a_limit_below_the_row_that_was_reached(
    tmp_path: Path, data: Path, stopped_by: str
) -> None:
    Run(tmp_path / "whole", options_of(data)).go()
    limit = 223 if stopped_by == "limit" else None
    stop = stop_after(5) if stopped_by != "limit" else lambda: False
    Run(tmp_path / "run", options_of(data, limit=limit)).go(stopped=stop)
    if stopped_by == "kill":
        lines = (tmp_path / "run/metrics.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "run/metrics.jsonl").write_bytes(b"".join(lines[:-1]))
    before = content_of(tmp_path / "run")
    for limit in (1, 50, 222):
        assert Run.resume(tmp_path / "run", {"limit": limit}) is None
        assert "has reached row 2" in why_done(tmp_path / "run", {"limit": limit})
        assert "or with --limit 0 for none" in why_done(tmp_path / "run", {"limit": limit})
    assert content_of(tmp_path / "run") == before
    assert Run.resume(tmp_path / "run", {"limit": 300}).go()["reason"] == "limit"
    assert Run.resume(tmp_path / "run", {"limit": None}).go()["reason"] == "end"
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_limit_whose_last_line_was_lost(tmp_path: Path, data: Path) -> None:
    Run(tmp_path / "whole", options_of(data, limit=223)).go()
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    path = tmp_path / "run/metrics.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(
        InvalidInput, match=r"metrics\.jsonl is damaged: it has \d+ bytes, but had \d+ bytes at"
    ):
        Run.resume(tmp_path / "run")
    whole = (tmp_path / "whole/metrics.jsonl").read_bytes()
    path.write_bytes(whole[:-100])
    assert Run.resume(tmp_path / "run").go()["reason"] == "limit"
    assert lines_of(tmp_path / "run") == lines_of(tmp_path / "whole")


# ---- interrupts and failures in the middle of a chunk ---------------------------------------


@pytest.mark.parametrize(
    ("call", "every", "protocol"),
    [(3, 30.0, {}), (27, 0.0, {"chunk": 10}), (3, 0.0, {"delay": 30})],
    ids=str,
)
def test_an_interrupt_in_the_middle_of_a_chunk_saves_nothing(
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: int,
    every: float,
    protocol: dict[str, Any],
) -> None:
    Run(tmp_path / "whole", options_of(data, **protocol)).go()
    run = Run(tmp_path / "run", options_of(data, **protocol), checkpoint_every=every)
    score, calls = type(run.evaluation.tracker).score, iter(range(10**9))

    def interrupted(self: Any, *arguments: Any, **options: Any) -> Any:
        if self is run.evaluation.tracker and next(calls) == call:
            raise KeyboardInterrupt
        return score(self, *arguments, **options)

    monkeypatch.setattr(type(run.evaluation.tracker), "score", interrupted)
    assert run.go()["reason"] == "interrupted"
    assert not run.evaluation.settled
    monkeypatch.undo()
    resumed = Run.resume(tmp_path / "run")
    assert resumed.resumed_at is None or resumed.resumed_at % 50 == 0
    resumed.go()
    assert_same(tmp_path / "run", tmp_path / "whole")


FAILING = """
from kalstream import KalmanClassifier


class Failing(KalmanClassifier):
    predict_then_learn = property()  # so that rows go through partial_fit

    def partial_fit(self, X, y, **options):
        if getattr(self, "n_seen_", 0) >= 150:
            raise ArithmeticError("enough")
        return super().partial_fit(X, y, **options)


def make(seed):
    return Failing(0.99, "scaled", random_state=seed)
"""


def test_a_learner_fails_in_the_middle_of_a_record(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    options = options_of(data, learner="failing:make", chunk=10, window=1000, predictions=True)
    for _ in range(2):
        end = Run("run", options, overwrite=True).go()
        assert (end["reason"], end["row"]) == ("error", 160)
        assert "Failing failed: ArithmeticError: enough (failing.py, line 10)" in end["message"]
        # predictions, metrics and checkpoint agree on the number of rows
        progress = json.loads(Path("run/checkpoint/progress.json").read_text())
        assert progress["evaluation"]["n_rows"] == progress["evaluation"]["n_learned"] == 160
        assert len(lines_of(Path("run"), "predictions.jsonl")) == 160
        again = Run.resume("run").go()
        assert (again["reason"], again["row"]) == ("error", 160)
        assert again["total"] == end["total"]


# ---- replacing a run ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (("--forgetting", "sometimes"), "give mixture, learned"),
        (("--forgetting", "1.5"), "1.5"),
        (("--motion", "4"), "give 1, 2 or 3"),
        (("--target", "nothing"), "nothing"),
        (("--learner", "no.such:learner"), "cannot be imported"),
        (("--chunk", "9" * 20), "--chunk"),
        (("--delay", "9" * 20), "--delay"),
        (("--limit", "9" * 20), "--limit"),
        (("--cost", "inf"), "--cost: input should be a finite number, got inf"),
        (("--cost", "nan"), "cost"),
        (("--time", "when", "--time-unit", "5..3"), "--time-unit is '5..3'"),
        (("--time", "when", "--time-unit", "9e999d"), "--time-unit is '9e999d'"),
        (("--checkpoint-every", "nan"), "--checkpoint-every"),
    ],
    ids=str,
)
def test_a_bad_option_leaves_the_old_run(
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bad: tuple[str, ...],
    message: str,
) -> None:
    run = tmp_path / "run"
    shutil.copytree(DATA / "ended", run)
    before = content_of(run)
    monkeypatch.setenv("COLUMNS", "200")
    command = ("kalstream", "run", str(data), "-t", "label", "-o", str(run), "--overwrite", *bad)
    monkeypatch.setattr(sys, "argv", [*command])
    with pytest.raises(SystemExit):
        cli.main()
    assert message in " ".join(capsys.readouterr().err.split())
    assert content_of(run) == before


def test_a_run_is_not_replaced_by_accident(tmp_path: Path, data: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(DATA / "ended", run)
    before = content_of(run)
    with pytest.raises(
        InvalidInput, match="already holds a run; resume it with --resume, replace it"
    ):
        Run(run, options_of(data)).go()
    assert content_of(run) == before
    Run(run, options_of(data), overwrite=True).go()
    Run(tmp_path / "whole", options_of(data)).go()
    assert_same(run, tmp_path / "whole")
    assert sorted(os.listdir(run)) == ["checkpoint", "config.json", "metrics.jsonl"]


# ---- other processes ------------------------------------------------------------------------


HOLDER = """
import sys, time
from pathlib import Path
from kalstream.runs.run import _lock_of
lock = _lock_of(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_one_process_at_a_time(tmp_path: Path, data: Path) -> None:
    run = tmp_path / "run"
    Run(tmp_path / "whole", options_of(data)).go()
    Run(run, options_of(data)).go(stopped=stop_after(3))
    command = [sys.executable, "-c", HOLDER, str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        before = content_of(run)
        for go in (
            lambda: Run.resume(run),
            lambda: Run(run, options_of(data), overwrite=True).go(),
            lambda: Run(run, options_of(data)).go(),
        ):
            with pytest.raises(InUse, match=rf"run is in use by process {holder.pid} \(-c .*wait"):
                go()
        assert content_of(run) == before
        assert Run.resume(run, {"limit": 1}) is None  # nothing to do, so that it does not wait
        holder.kill()
    assert (run / ".lock").exists()
    resumed = Run.resume(run)
    with pytest.raises(InUse, match=f"in use by process {os.getpid()} "):
        Run.resume(run)
    resumed.go()
    assert not (run / ".lock").exists()
    assert_same(run, tmp_path / "whole")


def test_an_error_unlocks_the_folder(tmp_path: Path, data: Path) -> None:
    Run(tmp_path / "run", options_of(data)).go(stopped=stop_after(3))
    text = data.read_text()
    data.write_text(text + "1,2,red,99999999,up\n")
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"data\.csv has changed since"):
            Run.resume(tmp_path / "run")
    data.write_text(text)
    assert Run.resume(tmp_path / "run").go()["reason"] == "end"


def test_a_file_that_grows(tmp_path: Path, data: Path) -> None:
    run = Run(tmp_path / "run", options_of(data))
    grown = []

    def grow(evaluation: Any, record: Any) -> None:
        if not grown:
            grown.append(True)
            with data.open("a") as file:
                file.write("1,2,red,99999999,up\n")

    end = run.go(watch=grow)
    assert f"{data} changed while it was read (from" in end["data_changed"]
    assert "cannot be resumed" in end["data_changed"]
    assert "run it again, and give --out another folder" in why_done(tmp_path / "run")
    assert Run(tmp_path / "two", options_of(data)).go()["data_changed"] is None
    os.utime(data, (0, 0))  # touched, not changed
    assert Run(tmp_path / "three", options_of(data)).go()["data_changed"] is None


# ---- damage ---------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was stopped, and the same run without a stop."""
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "data.csv", 200)
    options = options_of(Path("data.csv"), predictions=True)
    Run("whole", options).go()
    Run("run", options).go(stopped=stop_after(3))
    return tmp_path / "run"


@pytest.mark.parametrize("tail", [b"\0" * 63, b'{"kind": "end", "row"', b"\xff\xfe\n", b"[" * 5000])
@pytest.mark.parametrize("instead", [False, True])
def test_files_of_lines_after_a_power_cut(stopped: Path, tail: bytes, instead: bool) -> None:
    for name in ("metrics.jsonl", "predictions.jsonl"):
        path = stopped / name
        text = path.read_bytes()
        if instead and name == "metrics.jsonl":  # the last line had not reached the disk
            text = text[: text.rstrip(b"\n").rindex(b"\n") + 1]
        path.write_bytes(text + tail)
    Run.resume(stopped).go()
    assert_same(stopped, stopped.parent / "whole")


@pytest.mark.parametrize("change", [(b'"kind"', b'"kinb"'), (b'"n": ', b'"n"; '), (b"{", b"\0")])
def test_a_damaged_line_is_noticed_before_anything_is_learned(
    stopped: Path,
    change: tuple[bytes, bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = stopped / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(*change, 1))
    before = content_of(stopped)
    monkeypatch.setattr(sys, "argv", ["kalstream", "run", "--resume", "--out", str(stopped)])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    error = capsys.readouterr().err
    assert "metrics.jsonl, line 1: " in error
    assert "restore it from a copy, or delete" in error
    assert content_of(stopped) == before
    path.write_bytes(whole)
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert_same(stopped, stopped.parent / "whole")


@pytest.mark.parametrize("name", ["config.json", "checkpoint/progress.json"])
def test_random_damage_is_noticed(stopped: Path, name: str) -> None:
    """Every damaged file raises one of our errors with a remedy, and the folder stays unchanged."""
    path, rng = stopped / name, np.random.default_rng(5)
    whole = path.read_bytes()
    for k in range(150):
        data, place = bytearray(whole), int(rng.integers(len(whole)))
        if k % 3 == 0:
            data[place] ^= 1 << int(rng.integers(8))
        elif k % 3 == 1:
            del data[place:]
        else:
            data[place : place + 63] = b"\0" * 63
        path.write_bytes(data)
        if json_of(bytes(data)) == json_of(whole):
            continue
        with pytest.raises(KalstreamError, match=r"damaged|upgrade") as caught:
            Run.resume(stopped)
        assert "restore it from a copy" in str(caught.value) or "upgrade" in str(caught.value)
        if name != "config.json":
            with pytest.raises(KalstreamError):
                open_checkpoint(stopped)
    path.write_bytes(whole)
    assert not (stopped / ".lock").exists()
    Run.resume(stopped).go()
    assert_same(stopped, stopped.parent / "whole")


def json_of(data: bytes) -> Any:
    try:
        return json.loads(data.decode())
    except ValueError:
        return None


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all values inside a JSON value."""
    inner = content.items() if isinstance(content, dict) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


@pytest.mark.parametrize("name", ["config.json", "checkpoint/progress.json"])
@pytest.mark.parametrize("wrong", [None, -1, "x", [], {}, 1e300, True, "missing"], ids=str)
def test_wrong_types_with_a_correct_checksum(stopped: Path, name: str, wrong: Any) -> None:
    """The run raises one of our errors or works; it never raises another exception."""
    path, rng = stopped / name, np.random.default_rng(6)
    whole = path.read_bytes()
    all_places = [place for place in places(json_of(whole)) if place and place[0] != "sha256"]
    for k in rng.permutation(len(all_places))[:25].tolist():

        def change(content: Any, place: tuple[Any, ...] = all_places[k]) -> None:
            for key in place[:-1]:
                content = content[key]
            content[place[-1]] = wrong
            if wrong == "missing":
                del content[place[-1]]

        edited(path, change)
        try:
            run = Run.resume(stopped)
            if run is not None:
                run.lock.release()
            described(stopped)
        except (KalstreamError, FileNotFoundError):
            pass
        path.write_bytes(whole)


def test_models_of_other_runs_are_noticed(stopped: Path) -> None:
    whole = stopped.parent / "whole"
    progress = json.loads((stopped / "checkpoint/progress.json").read_text())
    model = stopped / "checkpoint" / progress["model"]
    own = model.read_bytes()
    (other,) = (whole / "checkpoint").glob("model-*")
    shutil.copy(other, model)
    for reading in (Run.resume, described):
        with pytest.raises(
            InvalidInput, match=r"is not the model that progress.json names: .*copy"
        ):
            reading(stopped)
    model.unlink()
    for reading in (Run.resume, described):
        with pytest.raises(InvalidInput, match=r"model-\d+\.safetensors, which .* is missing; "):
            reading(stopped)
    model.write_bytes(own)
    mine = (stopped / "checkpoint/progress.json").read_bytes()
    shutil.copy(whole / "checkpoint/progress.json", stopped / "checkpoint")
    with pytest.raises(
        InvalidInput, match=r"progress\.json belongs to another run than .*config\.json"
    ):
        Run.resume(stopped)
    (stopped / "checkpoint/progress.json").write_bytes(mine)
    Run.resume(stopped).go()
    assert_same(stopped, whole)


def test_a_run_starts_over_without_its_checkpoint(stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoint")  # the remedy that the errors name
    run = Run.resume(stopped)
    assert any("starting over" in note for note in run.notes)
    run.go()
    assert_same(stopped, stopped.parent / "whole")


def test_the_files_agree_with_the_schema(stopped: Path) -> None:
    for folder in (stopped, stopped.parent / "whole"):
        config, progress = schema.read_config(folder), schema.read_progress(folder / "checkpoint")
        schema.Config.model_validate(config)
        schema.Progress.model_validate(progress)
        assert config["run"] == progress["run"]
        assert config["format"] == progress["format"] == schema.FORMAT
    with pytest.raises(InvalidInput, match=r"evaluation\.n_rows"):
        schema.write_progress(stopped, {**progress, "evaluation": {"n_rows": -1}})
    assert set(schema._MIGRATIONS) == set(range(1, schema.FORMAT))


@pytest.mark.parametrize("number", [schema.FORMAT + 1, 10**30, "2", None, True, 0])
def test_formats_that_cannot_be_read(stopped: Path, number: Any) -> None:
    edited(stopped / "config.json", lambda content: {**content, "format": number})
    with pytest.raises(InvalidInput, match=r"upgrade kalstream|damaged"):
        Run.resume(stopped)


# ---- learners of users ----------------------------------------------------------------------

BROKEN = """
from kalstream import KalmanClassifier


class Unsaved(KalmanClassifier):
    def save(self, path):
        raise ValueError("not today")


class Unloaded(KalmanClassifier):
    @classmethod
    def load(cls, path):
        raise ValueError("nor tomorrow")
"""


def test_a_learner_whose_save_or_load_fails(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saving.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    for every in (0.0, 30.0):
        run = Run(
            f"run-{every}", options_of(data, learner="saving:Unsaved"), checkpoint_every=every
        )
        end = run.go()
        assert end["reason"] == "error"
        assert "Unsaved.save failed at row" in end["message"]
        assert "ValueError: not today (saving.py, line 7)" in end["message"]
        assert lines_of(Path(f"run-{every}"))[-1]["kind"] == "end"
        assert not os.listdir(f"run-{every}/checkpoint")
        assert not run.has_checkpoint
    Run("run", options_of(data, learner="saving:Unloaded")).go(stopped=stop_after(3))
    with pytest.raises(InvalidInput, match=r"Unloaded\.load failed on .*nor tomorrow.*delete"):
        Run.resume("run")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('no import today')", "ValueError: no import today"),
        ("x = (", "SyntaxError"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("from kalstream import no_such_name", "no_such_name"),
    ],
)
def test_a_module_that_fails_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    name = f"failing_import_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInput, match=f"cannot be imported: .*{message}"):
        make_learner(Options(learner=f"{name}:make"), open_stream(Options()))


# ---- outputs of a run -----------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")
@pytest.mark.parametrize("command", ["predict", "report", "compare"])
def test_devices_pipes_and_links_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    run = str(DATA / "ended")
    more = {"predict": [run, str(DATA / "data.csv")], "report": [run], "compare": [run, run]}

    def write(path: Any) -> None:
        monkeypatch.setattr(sys, "argv", ["kalstream", command, *more[command], "-o", str(path)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert not stopped.value.code

    pipe, link, contents = tmp_path / "pipe", tmp_path / "link", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: contents.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write(pipe)
    reader.join(10.0)
    (tmp_path / "file").write_text("old")
    link.symlink_to(tmp_path / "file")
    write(link)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert contents == [(tmp_path / "file").read_bytes()]
    write(os.devnull)
    assert not Path(os.devnull).is_file()
    assert sorted(os.listdir(tmp_path)) == ["file", "link", "pipe"]


# ---- other versions -------------------------------------------------------------------------


@pytest.fixture(params=[1, 2, 3, 4])
def old_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> int:
    """Saved runs of an earlier format, in the current folder."""
    shutil.copytree(DATA.with_name(f"run-format-{request.param}"), tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    # Scaling did not forget then. A model that is loaded goes on as it was.
    if request.param < 4:
        monkeypatch.setattr(KalmanClassifier, "_SCALE_HALF_LIFE", math.inf)
    return request.param


@pytest.mark.parametrize("name", ["stopped", "limited", "ended"])
def test_folders_of_earlier_formats(old_format: int, name: str) -> None:
    rows = {"stopped": 53, "limited": 90, "ended": 200}
    assert described(name)["rows_seen"] == rows[name]
    assert report.read_run(Path(name)).config["format"] in (old_format, schema.FORMAT)
    if name == "ended":
        assert Run.resume(name) is None
        return
    config = json.loads(Path(name, "config.json").read_text())
    assert config["format"] == old_format
    options = {"likelihood": "onehot", **config["options"], "limit": None}
    with pytest.MonkeyPatch.context() as patched:
        # Late labels were learned by partial_fit; a run of that time continues to do so.
        patched.setattr(Evaluation, "_late", lambda self: None)
        whole = Run("whole", Options(**options)).go()
    run = Run.resume(name, {"limit": None})
    # a limit of format 2 keeps the state before it
    at_limit = {1: 90, 2: 80, 3: 80, 4: 80}[old_format]
    assert run.resumed_at == {"stopped": 60, "limited": at_limit}[name]
    end = run.go()
    assert (end["row"], end["reason"]) == (200, "end")
    # other processors round differently
    assert numbers(end["total"]) == pytest.approx(numbers(whole["total"]), rel=1e-9)
    assert len(lines_of(Path(name), "predictions.jsonl")) == 200
    progress = schema.read_progress(Path(name, "checkpoint"))
    assert progress["run"] == ("format 1" if old_format == 1 else config["run"])
    assert progress["format"] == schema.FORMAT
    assert progress["evaluation"]["n_learned"] == 200
    assert progress["model_sha256"] is not None
    KalmanClassifier.load(Path(name, "checkpoint", progress["model"]))
    assert Run.resume(name) is None


def test_dates_of_format_5_stay_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DATA.with_name("run-format-5"), tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    run = Run.resume("stopped")
    assert (run.resumed_at, run.stream.columns[-1]) == (100, "when")
    end, whole = run.go(), lines_of(Path("ended"))[-1]
    assert numbers(end["total"]) == pytest.approx(numbers(whole["total"]), rel=1e-9)
    assert Run("new", run.options).stream.columns[-1] == "when[20 years cos]"
