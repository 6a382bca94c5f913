"""The command line as a user has it."""

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream import KalmanClassifier, __version__, cli
from kalstream.core.jit import cache_folder, when_compiling
from kalstream.estimators.warming import warm_up
from kalstream.runs import Run
from kalstream.runs.options import Options, declared, typed

ROOT = Path(__file__).parents[1]
# Small, and quick to learn: what is tested here is not the learning.
QUICK = ("--features", "raw", "--limit", "600")
COMMANDS = [each.name or each.callback.__name__ for each in cli.app.registered_commands]


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Call the command line in this process: (exit status, standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kalstream", *map(str, arguments)])
        try:
            cli.main()
            status = 0
        except SystemExit as stopped:
            status = stopped.code or 0
        return status, *capsys.readouterr()

    return call


def start(*arguments: Any, cwd: Path, **how: Any) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    environment = {**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "kalstream", *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


def lines_of(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("clock", None)
    return lines


def model_of(folder: Path) -> bytes:
    (model,) = (folder / "checkpoint").glob("model-*")
    return model.read_bytes()


def test_version_and_help(run_cli: Any) -> None:
    assert run_cli("--version")[1].strip() == __version__
    status, out, _ = run_cli("--help")
    assert status == 0
    for name in (*COMMANDS, "completion"):
        assert name in out


def test_what_was_compiled_is_loaded_later(run_cli: Any) -> None:
    status, out, _ = run_cli("compile")
    assert status == 0
    assert str(cache_folder()) in out
    compiled: list[str] = []
    with when_compiling(lambda: compiled.append("again")):
        warm_up()
    assert not compiled


def test_a_run_says_that_it_compiles(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    code = (
        "from kalstream.core.jit import when_compiling\n"
        "from kalstream.core._kernels.alarm import moved\n"
        "import numpy as np\n"
        "with when_compiling(lambda: print('compiles')):\n"
        "    moved(np.zeros(2), np.zeros(2)), moved(np.zeros(2), np.zeros(2))\n"
    )
    run = partial(subprocess.run, [sys.executable, "-c", code], env=environment, text=True)
    printed = [run(stdout=subprocess.PIPE, check=True).stdout for _ in range(2)]
    assert printed == ["compiles\n", ""]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name: str, run_cli: Any) -> None:
    status, out, _ = run_cli(name, "--help")
    assert status == 0
    assert re.search(r"Examples?", out)
    assert f"kalstream {name if name != 'data' else 'run'}" in out


def test_the_packaged_stream_from_start_to_end(
    run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = run_cli("run", *QUICK)
    assert status == 0
    assert "elec2: classification, 6 columns, 45,312 rows" in out
    assert "no-change" in out
    assert "report: runs/elec2-1/report.html" in out
    end = lines_of(tmp_path / "runs/elec2-1")[-1]
    assert f"{end['total']['accuracy']:.4f}" in out
    config = json.loads((tmp_path / "runs/elec2-1/config.json").read_text())
    assert config["command"] == "kalstream run --features raw --limit 600"
    assert config["stream"]["source"] == "elec2"
    assert "BSD" in config["stream"]["attribution"]
    assert str(tmp_path) not in json.dumps(config)
    assert str(ROOT) not in json.dumps(config)

    page = (tmp_path / "runs/elec2-1/report.html").read_text()
    assert "elec2" in page
    (tmp_path / "runs/elec2-1/report.html").unlink()
    assert run_cli("report", "runs/elec2-1")[0] == 0
    assert (tmp_path / "runs/elec2-1/report.html").read_text() == page

    assert run_cli("run", *QUICK, "--forgetting", "1")[0] == 0
    status, out, _ = run_cli("compare", "runs/elec2-1", "runs/elec2-2", "-o", "both.html")
    assert status == 0
    assert "log_loss" in out
    assert "p = " in out
    from kalstream.report import compare_runs

    test, *_ = compare_runs([tmp_path / "runs/elec2-1", tmp_path / "runs/elec2-2"])
    assert f"± {test['margin']:.5f} (95% interval)" in out
    assert "elec2-2" in (tmp_path / "both.html").read_text()

    status, out, _ = run_cli("describe", "runs/elec2-1")
    assert status == 0
    assert "KalmanClassifier" in out
    assert "600" in out
    assert json.loads(run_cli("describe", "runs/elec2-1", "--json")[1])["rows_seen"] == 600


def test_a_file_is_predicted(run_cli: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = "\n".join(f"{x:.4f},{'yes' if x > 0 else 'no'}" for x in rng.standard_normal(200))
    (tmp_path / "d.csv").write_text("x,y\n" + rows + "\n")
    run, new = tmp_path / "r", tmp_path / "new.csv"
    status, out, _ = run_cli("run", tmp_path / "d.csv", "-t", "y", "-o", run, "--predictions")
    assert status == 0
    assert "classification" in out
    assert len((run / "predictions.jsonl").read_text().splitlines()) == 200
    new.write_text("x\n-2\n2\n")
    status, out, _ = run_cli("predict", run, new)
    assert status == 0
    header, *found = out.splitlines()
    assert header == "row,prediction,p_no,p_yes,uncertainty"
    assert [line.split(",")[1] for line in found] == ["no", "yes"]
    assert run_cli("predict", run, new, "--out", tmp_path / "p.csv")[0] == 0
    assert (tmp_path / "p.csv").read_text() == out


def test_data_lists_what_is_known(run_cli: Any) -> None:
    status, out, _ = run_cli("data")
    assert status == 0
    for name in ("elec2", "weather", "series", "cifar100", "cloc", "clear", "embeddings"):
        assert name in out


def test_standard_input(run_cli: Any, tmp_path: Path) -> None:
    rows = "".join(json.dumps({"x": i % 7, "y": "ab"[i % 2]}) + "\n" for i in range(300))
    process = start("run", "-", "-t", "y", "-o", "r", *QUICK, cwd=tmp_path, stdin=subprocess.PIPE)
    out, err = process.communicate(rows, timeout=300)
    assert process.returncode == 0, err
    assert "300 rows" in out
    process = start("run", "--resume", "-o", "r", cwd=tmp_path, stdin=subprocess.PIPE)
    out, err = process.communicate(rows, timeout=300)
    assert process.returncode == 0, err
    assert "the rows of standard input follow row 300" in out
    assert "600 rows" in out


def test_images_are_embedded_and_learned(run_cli: Any, tmp_path: Path) -> None:
    torch, pil = pytest.importorskip("torch"), pytest.importorskip("PIL.Image")
    from kalstream.deep.backbones import resnet18

    rng = np.random.default_rng(0)
    for label, level in (("dark", 40), ("light", 200)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for k in range(6):
            pixels = rng.integers(level - 30, level + 30, (16, 16, 3)).astype(np.uint8)
            pil.fromarray(pixels).save(tmp_path / "photos" / label / f"{k}.png")
    torch.save(resnet18().state_dict(), tmp_path / "weights.pth")
    how = ("--backbone", "resnet18", "--size", "32", "--batch-size", "4")
    status, _, err = run_cli("embed", tmp_path / "photos", *how, "-o", tmp_path / "e.safetensors")
    assert (status, "needs --weights" in err) == (1, True)
    how = (*how, "--weights", tmp_path / "weights.pth", "-o", tmp_path / "e.safetensors")
    assert run_cli("embed", tmp_path / "photos", *how)[0] == 0
    embedded = tmp_path / "e.safetensors"
    run = ("--order", "shuffled", "--features", "raw", "-o", tmp_path / "run")
    assert run_cli("run", embedded, *run)[0] == 0
    assert lines_of(tmp_path / "run")[-1]["row"] == 12


# ---- stopping and going on ------------------------------------------------------------------


def test_resume_and_overwrite(run_cli: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    status, _, err = run_cli("run", "--resume")
    assert (status, "--resume needs --out" in err) == (2, True)
    assert run_cli("run", "weather", *QUICK, "-o", run)[0] == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    status, out, _ = run_cli("run", "--resume", "-o", run)
    assert (status, "has reached row 600, and the limit is 600; nothing to do" in out) == (0, True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    status, _, err = run_cli("run", "weather", *QUICK, "-o", run)
    assert status == 1
    assert "already holds a run" in err
    status, _, err = run_cli("run", "elec2", *QUICK, "-o", run, "--resume")
    assert "was started with SOURCE 'weather', but SOURCE 'elec2' is given now" in " ".join(
        err.split()
    )
    bad = ("--learner", "no.such:learner")
    assert run_cli("run", "elec2", *QUICK, *bad, "-o", run, "--overwrite")[0] == 2
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert run_cli("run", "elec2", *QUICK, "-o", run, "--overwrite")[0] == 0
    assert json.loads((run / "config.json").read_text())["options"]["source"] == "elec2"
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("dear")
    status, _, err = run_cli("run", *QUICK, "-o", tmp_path / "full", "--overwrite")
    assert (status, "is not a run;" in " ".join(err.split())) == (1, True)


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)


def test_control_c_keeps_what_was_learned(tmp_path: Path) -> None:
    process = start("run", "--checkpoint-every", "0", "-o", "run", cwd=tmp_path)
    wait_for(tmp_path / "run/checkpoint/progress.json", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "kalstream run --resume --out run" in err
    end = lines_of(tmp_path / "run")[-1]
    assert end["reason"] == "interrupted"
    assert 0 < end["row"] < 45_312
    assert "interrupted" in (tmp_path / "run/report.html").read_text().lower()
    progress = json.loads((tmp_path / "run/checkpoint/progress.json").read_text())
    assert progress["evaluation"]["n_rows"] == end["row"]


@pytest.mark.parametrize("command", ["script", "module"])
@pytest.mark.parametrize("module", ["typer", "rich", "numpy"])
def test_control_c_during_the_start_ends_quietly(command: str, module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n"
    )
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    home, _, name = scripts["kalstream"].partition(":")  # as an installed script calls it
    script = ["-c", f"import sys; from {home} import {name}; sys.exit({name}())"]
    arguments = script if command == "script" else ["-m", "kalstream"]
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    ended = subprocess.run(
        [sys.executable, *arguments, "data"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_waiting_for_standard_input(number: int, tmp_path: Path) -> None:
    rows = "".join(f"{i % 7},{'ab'[i % 2]}\n" for i in range(50))
    process = start(
        *("run", "-", "-t", "y", "-o", "run", "--features", "raw", "--predictions"),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
    )
    process.stdin.write("x,y\n" + rows)
    process.stdin.flush()
    until = time.monotonic() + 120.0
    predictions = tmp_path / "run/predictions.jsonl"
    while not (predictions.exists() and len(predictions.read_text().splitlines()) == 50):
        assert time.monotonic() < until  # every row as it came, nothing is held back
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    assert "resume with: ... | kalstream run --resume --out run" in err
    end = lines_of(tmp_path / "run")[-1]
    assert (end["row"], end["reason"]) == (50, "interrupted")
    assert (tmp_path / "run/report.html").exists()


def kill_and_resume(folder: Path, arguments: list[str], moments: list[float]) -> int:
    """Kill a run after each of some seconds, counted from its first checkpoint, then let it end."""
    killed = 0
    for moment in moments:
        often = ["-o", "run", "--checkpoint-every", "0"]
        process = start("run", *arguments, "--resume", *often, cwd=folder)
        if moment >= 0.0:
            wait_for(folder / "run/checkpoint/progress.json", process)
        time.sleep(abs(moment))
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    process = start("run", *arguments, "--resume", "-o", "run", cwd=folder)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return killed


def check_killed(tmp_path: Path, arguments: list[str], moments: list[float]) -> None:
    process = start("run", *arguments, "-o", "whole", cwd=tmp_path)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    killed = kill_and_resume(tmp_path, arguments, moments)
    assert killed >= 1
    assert lines_of(tmp_path / "run") == lines_of(tmp_path / "whole")
    assert model_of(tmp_path / "run") == model_of(tmp_path / "whole")
    for name in ("predictions.jsonl",):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_killed_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    arguments = ["elec2", "--limit", "8000", "--predictions"]
    check_killed(tmp_path, arguments, np.random.default_rng(0).uniform(0.0, 0.6, 2).tolist())


@pytest.mark.slow
def test_a_run_killed_at_twenty_moments(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k in range(20):
        folder = tmp_path / str(k)
        folder.mkdir()
        # Some before the first checkpoint, most after it.
        moment = -rng.uniform(0.1, 3.0) if k % 4 == 0 else rng.uniform(0.0, 2.0)
        check_killed(folder, ["elec2", "--limit", "20000", "--predictions"], [moment])


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    import resource

    arguments = ["elec2", "--limit", "8000", "--window", "50", "--predictions"]
    arguments += ["--features", "raw"]

    def limit() -> None:  # no file may be larger: writing fails as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (450_000, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    start("run", *arguments, "-o", "small", cwd=tmp_path).communicate(timeout=300)
    how = {"cwd": tmp_path, "preexec_fn": limit}
    process = start("run", *arguments, "-o", "run", "--checkpoint-every", "0", **how)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "File too large" in err
    assert re.search(r"checkpoint at row \d+ is complete", " ".join(err.split()))
    process = start("run", "--resume", "-o", "run", cwd=tmp_path)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert lines_of(tmp_path / "run") == lines_of(tmp_path / "small")
    assert model_of(tmp_path / "run") == model_of(tmp_path / "small")


# ---- what goes wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        (["d.csv", "-t", "lable"], "x,label\n1,a\n", "Did you mean 'label'?"),
        (["nothing.csv", "-t", "y"], None, "nothing.csv"),
        (["d.csv", "-t", "y"], "", "empty"),
        (["d.csv", "-t", "y"], "x,y\n", "no rows"),
        (["d.csv"], "x,y\n1,2\n", "--target"),
        (["d.csv", "-t", "y"], "\x00\x01\x02PNG\x00", "d.csv"),
        (
            ["d.csv", "-t", "y", "--forgetting", "sometimes"],
            "x,y\n1,a\n2,b\n",
            "give mixture, learned",
        ),
        (["d.csv", "-t", "y", "--forgetting", "1.5"], "x,y\n1,a\n2,b\n", "1.5"),
        (["d.csv", "-t", "y", "--learner", "nonsense:x"], "x,y\n1,a\n2,b\n", "cannot be imported"),
        (["cloc"], None, "cloc does not come with kalstream"),
        (["http://a.b/c.csv", "-t", "y"], None, "download the file first"),
        (["d.csv", "-t", "y", "-o", "d.csv/run"], "x,y\n1,a\n2,b\n", "d.csv"),
        (
            ["d.csv", "-t", "y", "--time-unit", "0", "--time", "t"],
            "t,x,y\n1,1,a\n2,2,b\n",
            "--time-unit is '0'",
        ),
    ],
)
def test_what_goes_wrong_is_said_in_a_sentence(
    arguments: list[str],
    content: str | None,
    message: str,
    run_cli: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "d.csv").write_text(content)
    status, out, err = run_cli("run", *arguments)
    assert status in (1, 2)
    assert message in " ".join(err.split())
    assert "Traceback" not in out + err
    assert not (tmp_path / "runs").exists()  # nothing was begun


def test_a_bad_row_is_placed_and_the_rest_is_kept(run_cli: Any, tmp_path: Path) -> None:
    rows = [f"{i % 5},{'ab'[i % 2]}" for i in range(300)]
    rows[200] = "1,a,surplus"
    (tmp_path / "d.csv").write_text("x,y\n" + "\n".join(rows) + "\n")
    status, _, err = run_cli("run", tmp_path / "d.csv", "-t", "y", "-o", tmp_path / "r")
    err = " ".join(err.split())
    assert status == 1
    assert "line 202" in err
    assert "--bad-rows skip" in err
    assert "learned from the 200 rows before it" in err
    assert (tmp_path / "r/report.html").exists()
    status, out, _ = run_cli(
        "run", tmp_path / "d.csv", "-t", "y", "-o", tmp_path / "s", "--bad-rows", "skip"
    )
    assert status == 0
    assert "1 bad row left out" in out
    assert "line 202: has 3 fields" in out
    assert "could not be read" in (tmp_path / "s/report.html").read_text()


@pytest.mark.parametrize("content", ["x,y\n1,a\n", "x,y\n1,a\n2,a\n3,a\n"])
def test_a_single_row_and_a_single_class(content: str, run_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(content)
    status, _, err = run_cli("run", tmp_path / "d.csv", "-t", "y", "-o", tmp_path / "r")
    assert (status, err) == (0, "")
    page = (tmp_path / "r/report.html").read_text()
    assert "beats neither" not in page
    assert "e−" not in page  # no rounding error is made much of


def test_files_that_are_no_runs(run_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "junk.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    for arguments in (
        ("report", tmp_path),
        ("describe", tmp_path),
        ("describe", tmp_path / "nothing"),
        ("describe", tmp_path / "junk.safetensors"),
        ("predict", tmp_path, "d.csv"),
        ("compare", tmp_path, tmp_path),
    ):
        status, out, err = run_cli(*arguments)
        assert status == 1, arguments
        assert "error" in err
        assert "Traceback" not in out + err


def test_runs_of_different_streams_are_not_compared(run_cli: Any, tmp_path: Path) -> None:
    for name in ("elec2", "weather"):
        assert run_cli("run", name, *QUICK, "-o", tmp_path / name)[0] == 0
    status, _, err = run_cli("compare", tmp_path / "elec2", tmp_path / "weather")
    assert status == 1
    assert "elec2" in err
    assert "weather" in err


def test_a_model_alone_can_be_described(run_cli: Any, tmp_path: Path) -> None:
    model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
    model.save(tmp_path / "m.safetensors")
    status, out, _ = run_cli("describe", tmp_path / "m.safetensors")
    assert status == 0
    assert "down, up" in out
    status, _, err = run_cli("predict", tmp_path / "m.safetensors", tmp_path / "d.csv")
    assert (status, "the model has no names of columns" in err) == (1, True)


# ---- text of users ---------------------------------------------------------------------------

EVIL = "\x1b]0;title\x07\x1b[31m[bold]\u202e"


def is_safe(text: str) -> bool:
    return not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_no_escape_sequence_reaches_the_terminal(
    run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In labels, column names, values, file names, messages; files keep them as they are."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / f"{EVIL}.jsonl"
    rows = [{f"x{EVIL}": i % 5, f"y{EVIL}": ("a" + EVIL, "b")[i % 2]} for i in range(120)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder, target = f"r{EVIL}", f"y{EVIL}"
    for arguments in (
        ("run", data, "-t", target, "-o", folder, "--features", "raw"),
        ("run", "--resume", "-o", folder),
        ("run", data, "-t", target, "-o", folder),
        ("run", data, "-t", "nope", "-o", "s"),
        ("run", data, "-t", target, "-o", "s", "--task", "regression"),
        ("run", data, "-t", target, "-o", "s", "--forgetting", EVIL),
        ("run", data, "-t", target, "-o", "s", "--learner", EVIL),
        ("run", data, "-t", target, "-o", "s", "--time", f"x{EVIL}", "--time-unit", EVIL),
        ("run", EVIL, "-t", target, "-o", "s"),
        ("describe", folder),
        ("describe", data),
        ("report", folder),
        ("report", data),
        ("compare", folder, folder, "-o", f"{EVIL}.html"),
        ("predict", data, data),
    ):
        _, out, err = run_cli(*arguments)
        assert is_safe(out + err), arguments
    out = run_cli("describe", folder)[1]
    assert r"\x1b]0;title\x07\x1b[31m[bold]\u202e" in out
    rows[60][f"x{EVIL}"] = EVIL  # a value in a message
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, out, err = run_cli("run", data, "-t", target, "-o", "t", "--features", "raw")
    assert is_safe(out + err)
    assert "line 61: column" in err or "category" in out + err or "t/report.html" in out
    _, out, _ = run_cli("predict", folder, data)  # into a file or a pipe: data as they are
    assert EVIL in out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert is_safe(run_cli("predict", folder, data)[1])


def test_messages_are_of_bounded_length(run_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("x" * 3_000_000 + ",y\n1,a\n")
    for arguments in (
        ("run", tmp_path / "d.csv", "-t", "z"),
        ("run", tmp_path / "d.csv", "-t", "z" * 100_000),
        ("run", "z" * 100_000, "-t", "y"),
        ("run", "--time-unit", "z" * 100_000),
        ("describe", "z" * 100_000),
    ):
        status, out, err = run_cli(*arguments)
        assert status in (1, 2)
        assert len(out + err) < 6000


def test_an_encoding_without_the_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.csv").write_text("é,y\n" + "1,ä\n2,ö\n" * 30, encoding="utf-8")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    process = start("run", "d.csv", "-t", "y", "-o", "é", "--features", "raw", cwd=tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert r"\xe9/report.html" in out


# ---- sources and options -----------------------------------------------------------------------


def test_a_pipe_with_times_needs_no_unit(run_cli: Any, tmp_path: Path) -> None:
    """The first rows are looked at before, and all of them are predicted."""
    rng = np.random.default_rng(0)
    rows = [f"{60 * i},{x:.3f},{'ab'[int(x > 0)]}" for i, x in enumerate(rng.standard_normal(200))]
    text = "t,x,y\n" + "\n".join(rows) + "\n"
    (tmp_path / "d.csv").write_text(text)
    how = ("-t", "y", "--time", "t", "--features", "raw", "--window", "50", "--predictions")
    process = start("run", "-", *how, "-o", "pipe", cwd=tmp_path, stdin=subprocess.PIPE)
    # Pieces that end within the header, within a row, and before there is a gap.
    for piece in (text[:3], text[3:20], text[20:150], text[150:]):
        process.stdin.write(piece)
        process.stdin.flush()
        time.sleep(0.02)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "in units of 60\n" in out
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    assert run_cli("run", tmp_path / "d.csv", *how, "-o", file)[0] == 0
    # Rows come in other pieces, so sums are rounded in another order.
    for name in ("metrics.jsonl", "predictions.jsonl"):
        one, other = (
            [json.loads(line) for line in (folder / name).read_text().splitlines()]
            for folder in (pipe, file)
        )
        assert [line["row"] for line in one] == [line["row"] for line in other]
        for key in ("total", "probabilities"):
            for a, b in zip(one, other, strict=True):
                assert a.get(key) == pytest.approx(b.get(key), abs=1e-9)


def test_an_npz_is_learned_and_predicted(run_cli: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((200, 3))
    labels = np.where(features[:, 0] > 0, "yes", "no")
    np.savez(tmp_path / "e.npz", features=features, labels=labels, times=60.0 * np.arange(200))
    run = tmp_path / "run"
    status, out, err = run_cli("run", tmp_path / "e.npz", "--features", "raw", "-o", run)
    assert status == 0, err
    assert "in units of 60\n" in out
    assert lines_of(run)[-1]["total"]["accuracy"] > 0.8
    status, out, err = run_cli("predict", run, tmp_path / "e.npz")
    assert status == 0, err
    assert len(out.splitlines()) == 201
    np.savez(tmp_path / "n.npz", features=features, labels=features[:, 0])
    number = ("run", tmp_path / "n.npz", "--task", "regression", "--features", "raw")
    assert run_cli(*number, "-o", tmp_path / "n")[0] == 0
    assert lines_of(tmp_path / "n")[-1]["total"]["rmse"] < 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("t.csv", "-t", "y", "--order", "shuffled"),
            "--order shuffled does not apply to t.csv, which is a table",
        ),
        (("elec2", "--order", "tasks"), "To shuffle them first: (head -n 1"),
        (("e.npz", "-t", "y"), "--target y does not apply to e.npz, which holds embeddings"),
        (("e.npz", "--time", "t"), "NAME-times.npy"),
        (("e.npz", "--ignore", "x"), "--ignore x does not apply"),
        (("e.npz", "--categorical", "x"), "--categorical x does not apply"),
        (("e.npz", "--bad-rows", "skip"), "--bad-rows skip does not apply"),
        (("e.npz", "--time-unit", "1d"), "rows have no times"),
        (("e.npz", "--task", "regression", "--order", "tasks"), "--order tasks needs classes"),
        (("e.npz", "--order", "tasks"), "--order tasks makes 10 tasks, and there are 2 classes"),
        (("t.csv", "-t", "y", "--time-unit", "1d"), "with --time, or leave --time-unit out"),
        (("series", "-t", "y"), "--target y does not apply to series, which is generated"),
        (("series", "--order", "shuffled"), "--order shuffled does not apply to series"),
        (("t.csv", "-t", "y", "--seed", "4294967296"), "4294967295"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    arguments: tuple[str, ...],
    message: str,
    run_cli: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("x,y\n1,a\n2,b\n")
    np.savez(tmp_path / "e.npz", features=np.eye(4), labels=np.arange(4) % 2)
    status, _, err = run_cli("run", *arguments)
    assert status in (1, 2)
    assert message in " ".join(err.replace("│", " ").split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "unit", ["5..3", ".", "", "1e400", "1e999s", "nan", "inf", "-1", "0.0", "1e-300", "٣", "1_0"]
)
def test_time_units_that_are_none(unit: str, run_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("t,x,y\n1,1,a\n2,2,b\n")
    run = ("run", tmp_path / "t.csv", "-t", "y", "--time", "t", "--time-unit", unit)
    status, _, err = run_cli(*run, "-o", tmp_path / "r")
    assert status == 2
    assert f"--time-unit is {unit!r}; give a number from" in " ".join(err.split())


def test_a_number_beyond_the_largest_is_placed(run_cli: Any, tmp_path: Path) -> None:
    rows = [f"{i % 5},{'ab'[i % 2]}" for i in range(120)]
    for number in ("1e101", "1e400"):
        rows[100] = f"{number},a"
        (tmp_path / "d.csv").write_text("x,y\n" + "\n".join(rows) + "\n")
        run = ("run", tmp_path / "d.csv", "-t", "y", "--features", "raw", "-o", tmp_path / number)
        status, _, err = run_cli(*run)
        assert status == 1
        err = " ".join(err.split())
        assert f"line 102: column 'x' holds '{number}', which is beyond 1e+100" in err
        assert "--bad-rows skip" in err
        assert "learned from the 100 rows before it" in err
        status, out, _ = run_cli("run", *run[1:-1], f"{run[-1]}-skip", "--bad-rows", "skip")
        assert status == 0
        assert "1 bad row left out" in out


# ---- random options and files ------------------------------------------------------------------

ODD = ["", "1", "-1", "nan", "inf", "1e400", "9" * 25, "x", "y", "t", "a,b", ".", "\x1b[31m", "é"]
VALUES = ["", "1", "0.5", "a", "1e99", "1e101", "1e400", "inf", "nan", "NA", "true", "2024-01-01"]
VALUES += ["9999-12-31", "\x1b[31m", "é", "9" * 30, "9" * 400, '"q"', "[1]", "x" * 999, "1,2", "-0"]


def random_file(folder: Path, rng: np.random.Generator) -> str:
    """A table or embeddings, most of them sound, some with odd values, some with odd bytes."""
    n, kind = int(rng.choice([1, 2, 40])), str(rng.choice(["csv", "csv.gz", "jsonl", "npz", "npy"]))
    odd = rng.random((n, 3)) < 0.02
    cells = [[str(k), f"{rng.standard_normal():.3f}", "ab"[k % 2]] for k in range(n)]
    cells = [[str(rng.choice(VALUES)) if odd[k, j] else c for j, c in enumerate(row)]
             for k, row in enumerate(cells)]  # fmt: skip
    buffer = io.BytesIO()
    if kind == "jsonl":
        data = "".join(json.dumps(dict(zip("txy", row, strict=True))) + "\n" for row in cells)
    else:
        data = "t,x,y\n" + "".join(",".join(row) + "\n" for row in cells)
    data = data.encode()
    if kind == "npy":
        np.save(buffer, rng.standard_normal((n, 2)))
        np.save(folder / "d-labels.npy", np.arange(n) % 2)
        data = buffer.getvalue()
    if kind == "npz":
        labels = [np.arange(n) % 2, np.full(n, np.nan), np.full(n, b"a"), np.array(["é"] * n)]
        np.savez(buffer, features=rng.standard_normal((n, 2)), labels=labels[rng.integers(4)])
        data = buffer.getvalue()
    data = bytearray(gzip.compress(data) if kind == "csv.gz" else data)
    for place in rng.integers(0, len(data), int(rng.choice([0, 0, 0, 1, 5]))):
        data[place : place + int(rng.integers(3))] = rng.bytes(int(rng.integers(3)))
    (folder / f"d.{kind}").write_bytes(data)
    return f"d.{kind}"


def test_random_options_and_files_make_no_traceback(
    run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(17)
    options = ["--time", "--time-unit", "--ignore", "--categorical", "--order", "--forgetting"]
    options += ["--motion"]
    options += ["--task", "--bad-rows", "--seed", "--learner", "--window", "--target"]
    sound = {"--task": "regression", "--bad-rows": "skip", "--order": "shuffled", "--time": "t"}
    sound |= {"--ignore": "t", "--time-unit": "auto", "--categorical": "x", "--window": "10"}
    sound["--motion"] = "1,2"
    for k in range(80):
        folder = tmp_path / str(k)
        folder.mkdir()
        monkeypatch.chdir(folder)
        arguments = [random_file(folder, rng), "-o", "r", "--features", "raw"]
        arguments += ["-t", "y"] if rng.random() < 0.7 else []
        for option in rng.choice(options, int(rng.integers(3)), replace=False).tolist():
            odd = rng.random() < 0.5 or option not in sound
            arguments += [option, str(rng.choice(ODD)) if odd else sound[option]]
        then = [("report", "r"), ("describe", "r"), ("predict", "r", arguments[0])]
        for call in (("run", *arguments), then[rng.integers(3)]):
            status, out, err = run_cli(*call)  # anything but an exit fails the test here
            assert status in (0, 1, 2), (call, err)
            assert "Traceback" not in out + err
            assert (status == 0) == (err == ""), (call, err)
            assert call[0] != "run" or "\x1b" not in out + err, call


@pytest.mark.parametrize(
    ("task", "learner", "wanted"),
    [
        ("classification", "kalstream:KalmanRegressor", "give a classifier"),
        ("classification", "sklearn.linear_model:SGDRegressor", "give a classifier"),
        ("regression", "kalstream:KalmanClassifier", "give a regressor"),
    ],
)
def test_a_learner_for_the_other_task(
    task: str, learner: str, wanted: str, run_cli: Any, tmp_path: Path
) -> None:
    (tmp_path / "d.csv").write_text("x,y\n1,1\n2,0\n3,1\n")
    run = ("run", tmp_path / "d.csv", "-t", "y", "--task", task, "--learner", learner)
    status, _, err = run_cli(*run, "-o", tmp_path / "r")
    assert status == 1
    assert wanted in " ".join(err.split())
    assert not (tmp_path / "r").exists()


def test_what_is_read_is_not_written_over(run_cli: Any, tmp_path: Path) -> None:
    data = tmp_path / "d.csv"
    data.write_text("x,y\n" + "".join(f"{i % 7},{'ab'[i % 2]}\n" for i in range(60)))
    run = tmp_path / "run"
    how = ("run", data, "-t", "y", "--features", "raw", "-o", run)
    assert run_cli(*how)[0] == 0
    before = {path: path.read_bytes() for path in (data, run / "config.json")}
    link = tmp_path / "link.csv"
    link.symlink_to(data)
    for command in (
        ("predict", run, data, "--out", data),
        ("predict", run, data, "--out", link),
        ("predict", run, data, "--out", run / "config.json"),
        ("report", run, "--out", run / "config.json"),
        ("compare", run, run, "--out", run / "metrics.jsonl"),
        (*how, "--resume", "--overwrite"),
    ):
        status, _, err = run_cli(*command)
        assert status != 0
        assert "give another file" in err or "give one of them" in err
    assert {path: path.read_bytes() for path in before} == before


# ---- options are declared once -----------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        ("--chunk", "9" * 20),
        ("--cost", "inf"),
        ("--cost", "0.5"),
        ("--forgetting", "abc"),
        ("--forgetting", "1.5"),
        ("--motion", "1,1"),
        ("--motion", "2", "--forgetting", "learned"),
        ("--features", "none"),
        ("--time-unit", "soon"),
        ("--learner", "nonsense"),
        ("--seed", "-1"),
        ("--checkpoint-every", "nan"),
        ("--resume",),
        ("--from", "runs/a"),
        ("--extend", "runs/a"),
        ("--extend", "runs/a", "elec2", "--out", "b"),
        ("--extend", "runs/a", "elec2", "--resume"),
        ("--extend", "runs/a", "elec2", "--overwrite"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_exit_with_2(
    bad: tuple[str, ...], run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run_cli("run", *bad)
    assert status == 2
    assert bad[0] in err
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("typed_options", "named", "not_named"),
    [
        (("--forgetting", "learned"), "forgetting mixture", "noise_var"),
        (("--label-time", "b"), "column with --time", "time="),
        (("--forgetting", "0", "--motion", "2"), "--motion 1", "order="),
    ],
    ids=str,
)
def test_errors_of_the_library_name_options(
    typed_options: tuple[str, ...], named: str, not_named: str, run_cli: Any, tmp_path: Path
) -> None:
    data = tmp_path / "data.csv"
    data.write_text("a,b,y\n" + "".join(f"{i},{i % 7},{i * 0.37:.2f}\n" for i in range(100)))
    status, _, error = run_cli("run", data, "-t", "y", *typed_options, "-o", tmp_path / "run")
    assert status in (1, 2)
    assert named in error
    assert not_named not in error


def test_a_resumed_run_keeps_the_option_of_checkpoints(run_cli: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--features", "raw", "--forgetting", "1", "-o", folder)
    run_cli("run", "weather", *options, "--limit", "60", "--checkpoint-every", "7")
    run_cli("run", "--resume", "-o", folder, "--limit", "70")
    config = json.loads((folder / "config.json").read_text())
    assert config["protocol"]["checkpoint_every"] == 7.0
    run_cli("run", "--resume", "-o", folder, "--limit", "80", "--checkpoint-every", "inf")
    job = Run.resume(folder, {"limit": 90})
    job.lock.release()
    assert job.checkpoint_every == 1e12  # never


def test_quiet_and_json(run_cli: Any, tmp_path: Path) -> None:
    how = ("weather", "--features", "raw", "--limit", "120", "--no-stacking", "--calibration", "2")
    status, out, err = run_cli("run", *how, "--quiet", "-o", tmp_path / "a")
    assert (status, out, err) == (0, "", "")
    status, out, err = run_cli("run", *how, "--class-weight", "1=2", "--json", "-o", tmp_path / "b")
    assert status == 0
    result = json.loads(out)
    assert (result["row"], result["reason"]) == (120, "limit")
    assert result["report"] == str(tmp_path / "b" / "report.html")
    assert "weather" in err
    status, out, _ = run_cli("run", "--resume", "--json", "-o", tmp_path / "b")
    assert json.loads(out) == result
    runs = tmp_path / "a", tmp_path / "b"
    status, out, err = run_cli("compare", *runs, "--json", "-o", tmp_path / "c.html")
    assert json.loads(out)[0]["metric"] == "log_loss"
    assert "comparison" in err
    status, out, err = run_cli("run", *how, "--json", "--live", "-o", tmp_path / "d")
    assert (status, out) == (2, "")
    assert "give one of them" in err
    assert run_cli("run", "--no-such-option")[0] == 2
    assert "rows/s" in run_cli("run", *how, "-o", tmp_path / "e")[1]  # it prints again


def test_the_table_of_options_in_the_docs() -> None:
    """Names, short names and defaults are those of the declarations."""
    page = (ROOT / "docs" / "run.md").read_text()
    rows = re.findall(r"^\| `(SOURCE|--[a-z-]+)`(?:, `(-\w)`)? \|([^|]*)\|", page, re.MULTILINE)
    shown = {name: (short or None, default.strip().strip("`")) for name, short, default in rows}
    for name, field in Options.model_fields.items():
        default = "" if field.default in (None, [], "") else str(field.default)
        default = "" if isinstance(field.default, bool) else default
        assert shown.pop(typed(name)) == (declared(name)["short"], default), name
    own = {"--out", "--checkpoint-every", "--resume", "--overwrite", "--extend", "--live"}
    own |= {"--quiet", "--json", "--each", "--workers"}
    assert set(shown) == own


@pytest.mark.parametrize(
    "bad",
    [("--target", "nope"), ("--time", "nope"), ("--ignore", "nope"), ("--learner", "no.such:x")],
)
def test_a_column_or_module_that_does_not_exist_exits_with_2(
    bad: tuple[str, str], run_cli: Any, tmp_path: Path
) -> None:
    data = tmp_path / "data.csv"
    data.write_text("x,y\n1,a\n2,b\n")
    status, _, err = run_cli("run", data, "--target", "y", *bad, "-o", tmp_path / "run")
    assert status == 2
    assert bad[1].partition(":")[0] in err


def days(*numbers: int) -> str:
    """A table with dates, in January 2024."""
    rows = [f"2024-01-{day:02d},{day % 3},{'ab'[day % 2]}\n" for day in numbers]
    return "day,x,y\n" + "".join(rows)


def test_times_that_go_back(run_cli: Any, tmp_path: Path) -> None:
    """The remedy is sorting, times are dates, and the unit is a day."""
    data, new = tmp_path / "data.csv", tmp_path / "new.csv"
    how = ("run", data, "-t", "y", "--time", "day", "--features", "raw", "-o", tmp_path / "run")
    data.write_text(days(3, 4, 2, 5))
    status, _, err = run_cli(*how)
    assert status == 1
    assert "is earlier than a row before it (2024-01-04T00:00:00); sort the rows by time, or" in err
    assert "--bad-rows skip" in err
    status, out, err = run_cli(*how, "--overwrite", "--bad-rows", "skip")
    assert status == 0
    assert "half-lives are in units of 1 day\n" in out
    assert "is earlier than a row before it (2024-01-04T00:00:00)\n" in out

    new.write_text(days(1, 2))
    status, _, err = run_cli("predict", tmp_path / "run", new)
    assert status == 1
    assert "time 2024-01-01 00:00:00 is before that of the last row learned, 2024-01-05" in err
    assert "sort the rows by time" in err
    new.write_text(days(6, 8, 7, 9))
    status, _, err = run_cli("predict", tmp_path / "run", new)
    assert status == 1
    assert "--bad-rows skip" in err  # which the command has
    status, out, err = run_cli("predict", tmp_path / "run", new, "--bad-rows", "skip")
    assert (status, len(out.splitlines())) == (0, 4)
    new.write_text(days(6, 7))
    status, out, _ = run_cli("predict", tmp_path / "run", new)
    assert (status, len(out.splitlines())) == (0, 3)


def test_a_comparison_names_the_options_that_differ(run_cli: Any, tmp_path: Path) -> None:
    how = ("run", "weather", *QUICK[:2], "--limit", "300", "-o")
    run_cli(*how, tmp_path / "a")
    run_cli(*how, tmp_path / "b", "--delay", "20", "--window", "100")
    status, _, err = run_cli("compare", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "c.html")
    assert status == 1
    assert "they differ in --window (0, 100) and --delay (0, 20)" in err


def test_alarms_are_counted_alike(run_cli: Any, tmp_path: Path) -> None:
    """Also where several alarms begin in rows that are learned at once."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(9000)
    y = np.where((x > 0) ^ (np.arange(9000) // 750 % 2 > 0), "up", "down")
    data, run = tmp_path / "data.csv", tmp_path / "run"
    data.write_text("x,y\n" + "".join(f"{a:.3f},{b}\n" for a, b in zip(x, y, strict=True)))
    _, out, _ = run_cli(
        *("run", data, "-t", "y", "--features", "raw", "--chunk", "3000", "--window", "3000"),
        *("-o", run),
    )
    lines = lines_of(run)
    alarms = [alarm for line in lines for alarm in line.get("drift", [])]
    n = sum(alarm.get("alarms", 1) for alarm in alarms)
    assert n > len(alarms) > 0
    assert f"{n} drift alarms" in out
    assert f"{n} alarms" in (run / "report.html").read_text()
    assert json.loads(run_cli("describe", run, "--json")[1])["drift"]["alarms"] == n


def test_a_missing_package_is_named_with_its_extra(
    run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # an import of it fails
    status, _, err = run_cli("run", "--learner", "timm:make", "-o", tmp_path / "r")
    assert status == 2
    assert "pip install 'kalstream[timm]'" in " ".join(err.split())
