"""Many runs: the loop of jobs, grids, the rule that stops hopeless combinations, and commands."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream.errors import InvalidOption, KalstreamError
from kalstream.report import write_report
from kalstream.runs import Run
from kalstream.runs.files import METRICS, last_line, read_config
from kalstream.runs.jobs import STOPPED, Job, run_jobs
from kalstream.runs.options import Options, arguments
from kalstream.runs.sweep import (
    Pauses,
    as_folder,
    combinations,
    grid_of,
    is_hopeless,
    plan_pauses,
    run_sweep,
)

QUICK = {"features": "raw", "preset": "fast"}


@dataclass
class Here:
    """A place: jobs run at once, in this process."""

    slots: int = 2
    started: list[Job] = field(default_factory=list)

    def start(self, job: Job) -> "Ended":
        self.started.append(job)
        try:
            changes = {name: getattr(job.options, name) for name in job.options.model_fields_set}
            changes["limit"] = job.limit
            if (job.folder / "config.json").exists():
                run = Run.resume(job.folder, changes)
            else:
                run = Run(job.folder, Options.of(**changes), command=job.command)
            if run is not None:
                end = run.go()
                write_report(job.folder)
                return Ended(end["message"] or "")
        except KalstreamError as error:
            return Ended(str(error))
        return Ended("")


@dataclass
class Ended:
    text: str

    def problem(self) -> str:
        return self.text

    def stop(self) -> None:
        pass


def write_csv(path: Path, n: int = 400, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, 3))
    labels = np.where(rows[:, 0] + 0.3 * rng.standard_normal(n) > 0, "yes", "no")
    text = "".join(
        f"{a:.4f},{b:.4f},{c:.4f},{y}\n" for (a, b, c), y in zip(rows, labels, strict=True)
    )
    path.write_text("a,b,c,y\n" + text)
    return path


def without_clock(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    for line in lines:
        line.pop("clock", None)
    return lines


def command(*arguments: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kalstream", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_arguments_are_those_of_the_command() -> None:
    options = Options(source="a.csv", target="-y", class_weight=["a=2", "b=1"], predictions=True)
    assert arguments(options) == [
        *("a.csv", "--target=-y", "--class-weight", "a=2", "--class-weight", "b=1"),
        "--predictions",
    ]


@pytest.mark.parametrize(
    "text", ["features", "features=", "nothing=1", "seed=1,2", "window=10,20", "delay=1,2"]
)
def test_bad_grids_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="--grid is"):
        grid_of([text])


def test_an_option_is_in_the_grid_once() -> None:
    with pytest.raises(InvalidOption, match="once"):
        grid_of(["features=raw", "features=scaled"])
    with pytest.raises(InvalidOption, match="--features is in --grid, too"):
        combinations(Options(features="raw"), grid_of(["features=raw"]), 1, Path("x"))
    with pytest.raises(InvalidOption, match="--forgetting is '2'"):
        combinations(Options(), grid_of(["forgetting=2"]), 1, Path("x"))


def test_folders_differ_where_names_do() -> None:
    names = ["a/b", "a_b", "a b", "x" * 200, "x" * 201, "learner=a:b", "learner=a_b"]
    assert len({as_folder(name) for name in names}) == len(names)
    assert not any(set(as_folder(name)) & set('/\\:*?"<>| ') for name in names)


def test_a_winner_is_not_dropped() -> None:
    """Equally good combinations, whose windows are similar to those beside them."""
    rng, n_dropped = np.random.default_rng(0), 0
    for _ in range(500):
        noise = rng.standard_normal(200)
        for i in range(1, 200):
            noise[i] += 0.8 * noise[i - 1]
        dropped = is_hopeless(noise[:49]) or is_hopeless(noise[:99])
        n_dropped += dropped and noise.sum() < 0.0
    assert n_dropped <= 2
    assert is_hopeless(0.1 * noise + 2.0)


def test_who_was_ahead_in_a_stretch_is_kept() -> None:
    behind = np.full(40, 0.02)
    assert is_hopeless(behind)
    behind[-4:] = -0.01  # the stream has begun to change
    assert not is_hopeless(behind)
    assert not is_hopeless(np.zeros(40))
    assert not is_hopeless(np.full(19, 0.02))


def test_a_sweep_pauses_only_where_runs_continue(tmp_path: Path) -> None:
    long, short = (write_csv(tmp_path / f"{n}.csv", n) for n in (20_000, 400))
    given = {"target": "y", "window": 100}
    options, pauses = plan_pauses(Options(source=str(long), **given))
    assert options.window == 100
    assert pauses.rows == (5000, 10_000)
    assert pauses.metric == "log_loss"
    for more in ({"source": str(short)}, {"delay": "5"}, {"learner": "a:b"}):
        assert not plan_pauses(Options(**{"source": str(long), **given, **more}))[1].rows


def test_hopeless_combinations_stop_and_the_others_are_as_alone(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", 3000)
    base = Options(source=str(data), target="y", window=50, **QUICK)
    made = combinations(base, grid_of(["forgetting=mixture,0.5,1"]), 2, tmp_path / "runs")
    pauses = Pauses((1500,), "log_loss")
    result = run_sweep(made, Here(), pauses)
    assert result.hopeless == {"forgetting=0.5": 1500}
    for each in made:
        for job in each.jobs:
            assert result.outcomes[job.name].problem == ""
            stopped = each.name in result.hopeless
            assert last_line(job.folder)["row"] == (1500 if stopped else 3000)
    job = made[0].jobs[1]
    alone = Run(tmp_path / "alone", job.options)
    alone.go()
    assert without_clock(alone.folder) == without_clock(job.folder)
    config = read_config(job.folder)
    assert config is not None
    assert config["command"] == job.command
    again = Here()
    assert run_sweep(made, again, pauses).hopeless == result.hopeless
    assert again.started == []


def test_one_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv")
    base = Options(source=str(data), target="y", **QUICK)
    made = combinations(base, grid_of(["ignore=b,nothing"]), 1, tmp_path / "runs")
    result = run_sweep(made, Here(), Pauses((200,), "log_loss"))
    good, bad = (result.outcomes[each.jobs[0].name] for each in made)
    assert good.problem == ""
    assert last_line(good.job.folder)["row"] == 400
    assert "nothing" in bad.problem


def test_a_stop_leaves_jobs_for_later(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv")
    jobs = [
        Job(f"{k}", tmp_path / f"{k}", Options(source=str(data), target="y", seed=k, **QUICK))
        for k in range(3)
    ]
    place = Here(slots=1)
    outcomes = run_jobs(jobs, place, stopped=lambda: len(place.started) == 2)
    assert [each.problem for each in outcomes] == ["", "", STOPPED]
    assert [each.problem for each in run_jobs(jobs, place)] == ["", "", ""]
    assert [job.name for job in place.started] == ["0", "1", "2"]


def test_a_job_whose_options_or_data_changed_is_a_problem(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv")
    job = Job("a", tmp_path / "a", Options(source=str(data), target="y", **QUICK))
    run_jobs([job], Here())
    other = Job("a", tmp_path / "a", Options(source=str(data), target="b", **QUICK))
    assert "was started with --target" in run_jobs([other], Here())[0].problem
    write_csv(data, 500)
    assert "run it again" in run_jobs([job], Here())[0].problem


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_each_of_twenty_files_of_which_one_is_broken_and_killed(tmp_path: Path) -> None:
    (tmp_path / "stores").mkdir()
    names = [f"good-{k:02}.csv" for k in range(19)]
    for k, name in enumerate(names):
        write_csv(tmp_path / "stores" / name, seed=k)
    (tmp_path / "stores" / "broken.csv").write_text("a,b\n1,2\n")
    given = ("--target", "y", "--features", "raw", "--preset", "fast", "--workers", "2")
    each = ("run", "stores/*.csv", "--each", *given, "--out", "out")
    process = subprocess.Popen(
        [sys.executable, "-m", "kalstream", *each], cwd=tmp_path, stdout=subprocess.DEVNULL
    )
    while len(list((tmp_path / "out").glob("*/metrics.jsonl"))) < 5:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert len(list((tmp_path / "out").glob("*/metrics.jsonl"))) < 19
    assert not (tmp_path / "out" / "summary.html").exists()
    made = command(*each, cwd=tmp_path)
    assert made.returncode == 1, made.stderr
    assert "broken.csv: " in made.stderr
    listed = [line.split()[0] for line in made.stdout.splitlines() if ".csv " in line]
    assert listed[-20:-18] == ["broken.csv", listed[-19]]
    assert sorted(listed[-19:]) == names
    page = (tmp_path / "out" / "summary.html").read_text()
    places = [page.index(f'href="{name}/report.html"') for name in names]
    assert page.index("broken.csv") < min(places)
    for name in names:
        source = str(tmp_path / "stores" / name)
        alone = Run(tmp_path / "alone" / name, Options(source=source, target="y", **QUICK))
        alone.go()
        assert without_clock(alone.folder) == without_clock(tmp_path / "out" / name)


def test_each_refuses_what_is_of_one_run(tmp_path: Path) -> None:
    made = command("run", "*.csv", "--each", "--live", cwd=tmp_path)
    assert made.returncode == 2
    assert "--live does not apply to --each" in made.stderr
    made = command("run", "*.csv", "--each", cwd=tmp_path)
    assert made.returncode == 1
    assert "no file matches *.csv" in made.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("place", [(), ("--ray", "local")])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_sweep_ends_with_the_same_results(
    tmp_path: Path, number: int, place: tuple[str, ...]
) -> None:
    if place:
        pytest.importorskip("ray", reason="Ray is not installed")
    write_csv(tmp_path / "data.csv", 6000)
    given = (
        *("sweep", "data.csv", "--target", "y", "--preset", "fast", "--checkpoint-every", "0.1"),
        *("--grid", "features=raw,scaled", "--grid", "forgetting=mixture,0.999", "--workers", "2"),
    )
    whole = command(*given, "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    process = subprocess.Popen(
        [sys.executable, "-m", "kalstream", *given, *place, "--out", "killed"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    while not list((tmp_path / "killed").glob("*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait() == (-number if number == signal.SIGKILL else 128 + number)
    again = command(*given, *place, "--out", "killed", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    folders = sorted(path.parent.name for path in (tmp_path / "whole").glob("*/config.json"))
    assert len(folders) == 4
    for name in folders:
        one, two = (without_clock(tmp_path / run / name) for run in ("whole", "killed"))
        assert one == two
    assert (tmp_path / "killed" / "comparison.html").exists()
