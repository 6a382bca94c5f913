"""Runs that are killed, compete for a folder or fill the disk end like undisturbed runs."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runs.killable import Runs
from runs.test_run import lines_of, model_of, table

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="forks of Linux")

ROWS = 600
BASE = ("data.csv", "-t", "label", "--features", "scaled", "--window", "50", "--predictions")
OFTEN = ("--checkpoint-every", "0")
# chunk, delay, policy: single rows, chunks that a limit cuts, late labels
PROTOCOLS = [
    ("--forgetting", "0.99"),
    ("--forgetting", "mixture"),
    ("--motion", "1,2"),
    ("--forgetting", "0.99", "--chunk", "10", "--delay", "40"),
    ("--forgetting", "0.99", "--delay", "40"),
    ("--forgetting", "mixture", "--chunk", "10", "--cost", "2.5"),
    ("--forgetting", "mixture", "--delay", "40"),
    ("--forgetting", "0.99", "--time", "when", "--delay", "30m"),
    ("--forgetting", "0.99", "--id", "when"),
    ("--forgetting", "0.99", "--key", "color"),
    ("--forgetting", "mixture", "--aggregate", "color:y:mean:9", "--delay", "40"),
]
EVENTS, SECONDS = 150, 0.8  # of a whole run, roughly


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    server = Runs()
    yield server
    server.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table(tmp_path / "data.csv", ROWS)
    return tmp_path


def finished(runs: Runs, folder: Path, *arguments: Any, **options: Any) -> None:
    status, printed = runs.run("run", *arguments, cwd=folder, **options)
    assert status == 0, printed


def assert_same(folder: Path, name: str = "run") -> None:
    """Check that the run's files equal those of the whole run, and that there are no others."""
    one, two = folder / name, folder / "whole"
    assert lines_of(one) == lines_of(two)
    assert (one / "predictions.jsonl").read_bytes() == (two / "predictions.jsonl").read_bytes()
    assert model_of(one) == model_of(two)
    assert sorted(os.listdir(one)) == sorted(os.listdir(two))
    assert len(os.listdir(one / "checkpoint")) == 2


def kill_and_resume(runs: Runs, folder: Path, protocol: Any, seed: int, kills: int) -> int:
    """Kill a run at random moments, with changing limits; then let it end.

    Half of the kills come at the n-th file that is opened, moved or removed, which is repeatable,
    the others after a random time. Returns the number of runs that were killed before their end.
    """
    rng, killed = np.random.default_rng(seed), 0
    for k in range(kills):
        # The first one is killed at an early file, so that at least one is.
        limit = int(rng.integers(1, ROWS)) if k and rng.random() < 0.5 else 0
        options: dict[str, Any] = {"event": int(rng.integers(EVENTS if k else EVENTS // 3))}
        if k % 2:
            options = {"after": rng.uniform(0.0, SECONDS)}
        arguments = (*BASE, *protocol, "--limit", limit, "--resume", "-o", "run", *OFTEN)
        status, printed = runs.run("run", *arguments, cwd=folder, **options)
        assert status in (0, -signal.SIGKILL), printed
        killed += status != 0
        if k % 3 == 2:  # a limit that it reaches from any row
            limit = int(rng.integers(1, ROWS))
            arguments = (*BASE, *protocol, "--limit", limit, "--resume", "-o", "run")
            finished(runs, folder, *arguments)
    finished(runs, folder, *BASE, *protocol, "--limit", 0, "--resume", "-o", "run")
    return killed


@pytest.mark.parametrize("seed", [0, 2, 6, 7, 8, 9, 10])
def test_kills(runs: Runs, folder: Path, seed: int) -> None:
    protocol = PROTOCOLS[seed % len(PROTOCOLS)]
    finished(runs, folder, *BASE, *protocol, "-o", "whole")
    assert kill_and_resume(runs, folder, protocol, seed, kills=4) >= 1
    assert_same(folder)


@pytest.mark.slow
def test_a_hundred_kills(runs: Runs, folder: Path) -> None:
    killed = 0
    for seed in range(1000):
        protocol = PROTOCOLS[seed % len(PROTOCOLS)]
        finished(runs, folder, *BASE, *protocol, "-o", "whole")
        killed += kill_and_resume(runs, folder, protocol, seed, kills=7)
        assert_same(folder)
        for name in ("run", "whole"):
            shutil.rmtree(folder / name)
        if killed >= 100:
            return
    raise AssertionError(f"only {killed} runs were killed")


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_of_runs_on_a_pipe(runs: Runs, folder: Path, kills: int) -> None:
    arguments = ("-", *BASE[1:], "--forgetting", "0.99", "--chunk", "10", "--delay", "20")
    pipe = {"stdin": str(folder / "data.csv")}
    finished(runs, folder, *arguments, "-o", "whole", **pipe)
    rng, killed = np.random.default_rng(1), 0
    command = ("run", *arguments, "--overwrite", "-o", "run", *OFTEN)
    for _ in range(kills):
        status, printed = runs.run(*command, cwd=folder, event=int(rng.integers(100)), **pipe)
        killed += status == -signal.SIGKILL
        if (folder / "run/config.json").exists():
            status, printed = runs.run("run", "--resume", "-o", "run", cwd=folder)
            assert (status, "standard input is empty" in printed) == (1, True)
    assert killed
    finished(runs, folder, *command[1:], **pipe)
    assert_same(folder)


@pytest.mark.parametrize("seed", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in range(3))])
def test_kills_of_extensions_and_of_runs_that_begin_with_a_model(
    runs: Runs, folder: Path, seed: int
) -> None:
    protocol, rng, killed = PROTOCOLS[seed], np.random.default_rng(seed), 0
    more = table(folder / "more.csv", 400, seed=1)
    finished(runs, folder, *BASE, *protocol, "-o", "first")
    for how in ("--extend", "--from"):
        if how == "--extend":
            shutil.copytree(folder / "first", folder / "whole")
            shutil.copytree(folder / "first", folder / "run")
            begin = [(more.name, "--extend", name) for name in ("whole", "run")]
        else:
            settings = (*BASE[-3:], *protocol[2:])
            begin = [
                (more.name, "--from", "first", *settings, "-o", name) for name in ("whole", "run")
            ]
        finished(runs, folder, *begin[0])
        # It is killed until it has begun, which config.json says, and then it is resumed.
        config = (folder / "run/config.json", lambda: (folder / "run/config.json").read_bytes())
        before = config[1]() if config[0].exists() else b""
        for _ in range(12):
            begun = config[0].exists() and config[1]() != before
            command = ("--resume", "-o", "run") if begun else begin[1]
            status, printed = runs.run(
                "run", *command, *OFTEN, cwd=folder, event=int(rng.integers(EVENTS))
            )
            assert status in (0, -signal.SIGKILL), printed
            killed += status != 0
        begun = config[0].exists() and config[1]() != before
        finished(runs, folder, *(("--resume", "-o", "run") if begun else begin[1]))
        assert_same(folder)
        for name in ("run", "whole"):
            shutil.rmtree(folder / name)
    assert killed >= 2


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_full_disks(runs: Runs, folder: Path, times: int) -> None:
    protocol, rng, failed = PROTOCOLS[2], np.random.default_rng(3), 0
    finished(runs, folder, *BASE, *protocol, "-o", "whole")
    for _ in range(times):
        arguments = (*BASE, *protocol, "--resume", "-o", "run", *OFTEN)
        largest = int(rng.integers(500, 60_000))
        status, printed = runs.run("run", *arguments, cwd=folder, largest=largest)
        failed += status
        assert status == 0 or "File too large" in printed, printed
        assert not list(folder.glob("run/**/.kalstream-*.tmp"))
    assert failed
    finished(runs, folder, *BASE, *protocol, "--resume", "-o", "run")
    assert_same(folder)


def test_a_second_writer_is_refused(runs: Runs, folder: Path) -> None:
    arguments = ("run", *BASE, *PROTOCOLS[0], "--resume", "-o", "run", *OFTEN)
    finished(runs, folder, *BASE, *PROTOCOLS[0], "-o", "whole")
    # It stops itself after it has locked the folder.
    one = runs.start(*arguments, cwd=folder, stop_at="metrics.jsonl")
    until = time.monotonic() + 60.0
    while Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < until
        time.sleep(0.01)
    for option in ("--resume", "--overwrite"):
        command = [option if each == "--resume" else each for each in arguments]
        status, printed = runs.run(*command, cwd=folder)
        assert status == 1
        assert f"run is in use by process {one} (kalstream run data.csv" in printed
    os.kill(one, signal.SIGCONT)
    status, printed = runs.wait(one)
    assert status == 0, printed
    assert_same(folder)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_two_writers_at_once(runs: Runs, folder: Path, times: int) -> None:
    protocol, rng = PROTOCOLS[1], np.random.default_rng(4)
    finished(runs, folder, *BASE, *protocol, "-o", "whole")
    for k in range(times):
        name = f"run-{k}"
        arguments = ("run", *BASE, *protocol, "--resume", "-o", name, *OFTEN)
        one = runs.start(*arguments, cwd=folder)
        time.sleep(rng.uniform(0.0, 0.4))
        two = runs.start(*arguments, cwd=folder)
        ends = [runs.wait(pid) for pid in (one, two)]
        for (status, printed), other in zip(ends, (two, one), strict=True):
            refused = f"in use by process {other} (kalstream run" in printed
            assert status == 0 or refused or "already holds a run" in printed, printed
        assert any(status == 0 for status, _ in ends), ends
        finished(runs, folder, *arguments[1:])
        assert_same(folder, name)
