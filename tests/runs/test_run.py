"""Runs: the files they write, and stopped runs that end like undisturbed ones."""

import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import SGDClassifier

from kalstream import KalmanClassifier
from kalstream.errors import InvalidInput, InvalidOption
from kalstream.runs import Options, Run, RunError, described, open_checkpoint, predicted_rows
from kalstream.runs.options import as_typed
from kalstream.runs.setup import make_learner, open_stream, time_unit_of, window_of

ROWS = 900


def table(path: Path, n: int = ROWS, seed: int = 0) -> Path:
    """A stream with a category, missing values, an infinity, a late class and a change of rule."""
    rng = np.random.default_rng(seed)
    x, color = rng.standard_normal((n, 2)), rng.choice(["red", "green", "blue"], n)
    lines = ["x,y,color,when,label"]
    for i in range(n):
        flip = i > n // 2
        label = "up" if (x[i, 0] > 0) != flip else "down"
        label = "new" if i > n // 3 and color[i] == "blue" and x[i, 1] > 0 else label
        first = "" if i % 37 == 5 else "inf" if i % 101 == 7 else f"{x[i, 0]:.6f}"
        lines.append(f"{first},{x[i, 1]:.6f},{color[i]},{i * 60},{'' if i % 53 == 3 else label}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return table(tmp_path / "data.csv")


def lines_of(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Lines of a run without times."""
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    for line in lines:
        line.pop("clock", None)
    return lines


def numbers(scores: dict[str, Any]) -> dict[str, float]:
    """Scores that a learner has; open_log_loss is null without a probability of new classes."""
    return {name: value for name, value in scores.items() if value is not None}


def model_of(folder: Path) -> bytes:
    progress = json.loads((folder / "checkpoint" / "progress.json").read_text())
    assert [p.name for p in (folder / "checkpoint").glob("model-*")] == [progress["model"]]
    return (folder / "checkpoint" / progress["model"]).read_bytes()


def stop_after(n: int) -> Any:
    """A function that returns True after n calls."""
    asked = iter(range(10**9))
    return lambda: next(asked) >= n - 1


def test_the_files_of_a_run(tmp_path: Path, data: Path) -> None:
    options = Options(source=str(data), target="label", window=100, seed=3)
    end = Run(tmp_path / "run", options, command="kalstream run data.csv").go()
    assert end == json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert (end["row"], end["reason"], end["message"]) == (ROWS, "end", None)
    assert end["infinite"] == sum(i % 101 == 7 and i % 37 != 5 for i in range(ROWS))
    assert end["classes"][-1] == "new"
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["command"] == "kalstream run data.csv"
    assert config["learner"]["params"]["random_state"] == 3
    assert config["stream"]["fingerprint"].startswith("sha256:")
    assert Options(**config["options"]) == options
    windows = lines_of(tmp_path / "run")[:-1]
    assert [line["row"] for line in windows] == list(range(100, ROWS + 1, 100))
    assert sum(line["missing"] for line in windows) == sum(i % 53 == 3 for i in range(ROWS))
    assert end["total"]["accuracy"] > end["baselines"]["no_change"]["accuracy"]


@settings(max_examples=12)
@given(
    stops=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    forgetting=st.sampled_from(["mixture", "learned", "0.99"]),
    features=st.sampled_from(["fourier", "scaled"]),
    chunk=st.sampled_from([1, 7]),
    delay=st.sampled_from([0, 20]),
    window=st.sampled_from([0, 90, 1000]),
    time=st.sampled_from([None, "when"]),
)
def test_a_stopped_run_ends_like_an_undisturbed_one(
    tmp_path_factory, stops, forgetting, features, chunk, delay, window, time
) -> None:
    folder = tmp_path_factory.mktemp("run")
    options = Options(
        source=str(table(folder / "data.csv", 400)),
        target="label",
        time=time,
        forgetting=forgetting,
        features=features,
        chunk=chunk,
        delay=delay,
        window=window,
        predictions=True,
    )
    Run(folder / "whole", options).go()
    run = Run(folder / "parts", options, checkpoint_every=0.0)
    for n in stops:
        end = run.go(stopped=stop_after(n))
        if end["reason"] == "end":
            break
        assert end["reason"] == "interrupted"
        run = Run.resume(folder / "parts", options.model_dump(), checkpoint_every=0.0)
    else:
        assert run.resumed_at
        run.go()
    assert lines_of(folder / "parts") == lines_of(folder / "whole")
    for name in ("predictions.jsonl",):
        assert (folder / "parts" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    assert model_of(folder / "parts") == model_of(folder / "whole")
    shutil.rmtree(folder)


def test_lines_after_the_checkpoint_are_removed(tmp_path: Path, data: Path) -> None:
    options = Options(source=str(data), target="label", window=50, predictions=True)
    Run(tmp_path / "whole", options).go()
    Run(tmp_path / "run", options).go(stopped=stop_after(5))
    for name in ("metrics.jsonl", "predictions.jsonl"):
        with (tmp_path / "run" / name).open("a") as file:
            file.write('{"kind": "window", "row": 10000, "broken": ')
    Run.resume(tmp_path / "run").go()
    assert lines_of(tmp_path / "run") == lines_of(tmp_path / "whole")
    assert lines_of(tmp_path / "run", "predictions.jsonl") == lines_of(
        tmp_path / "whole", "predictions.jsonl"
    )


def test_a_finished_run_stays_unchanged(tmp_path: Path, data: Path) -> None:
    for limit in (None, 200):
        folder = tmp_path / f"run-{limit}"
        Run(folder, Options(source=str(data), target="label", limit=limit)).go()
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        assert Run.resume(folder) is None
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_without_a_checkpoint_a_run_starts_over(tmp_path: Path, data: Path) -> None:
    options = Options(source=str(data), target="label")
    whole = Run(tmp_path / "whole", options).go()
    Run(tmp_path / "run", options).go(stopped=stop_after(3))
    (tmp_path / "run/checkpoint/progress.json").unlink()
    run = Run.resume(tmp_path / "run")
    assert run.resumed_at is None
    assert any("starting over" in note for note in run.notes)
    assert run.go()["total"] == whole["total"]
    assert model_of(tmp_path / "run") == model_of(tmp_path / "whole")


def test_runs_that_cannot_be_resumed(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match=r"holds no run to resume: there is no config\.json"):
        Run.resume(tmp_path / "nothing")
    options = Options(source=str(data), target="label")
    Run(tmp_path / "run", options).go(stopped=stop_after(2))
    with pytest.raises(InvalidInput, match="was started with --seed 0, but --seed 4 is given now"):
        Run.resume(tmp_path / "run", {"seed": 4})
    with data.open("a") as file:
        file.write("1,2,red,99999999,up\n")
    with pytest.raises(InvalidInput, match=r"data\.csv has changed since"):
        Run.resume(tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    config["options"]["source"] = "-"
    del config["sha256"]  # edited on purpose
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(InvalidInput, match="standard input is empty"):
        Run.resume(tmp_path / "run")
    (tmp_path / "run/config.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"config\.json is damaged"):
        Run.resume(tmp_path / "run")


def test_bad_data_end_a_run_and_the_checkpoint_stays(tmp_path: Path, data: Path) -> None:
    lines = data.read_text().splitlines()
    lines[501] = "abc" + lines[501][lines[501].index(",") :]
    data.write_text("\n".join(lines) + "\n")
    end = Run(tmp_path / "run", Options(source=str(data), target="label")).go()
    assert end["reason"] == "error"
    assert "data.csv" in end["message"]
    assert "line 502" in end["message"]
    assert "'abc'" in end["message"]
    assert end["row"] == 500
    model, _, progress = open_checkpoint(tmp_path / "run")
    assert model.n_seen_ == progress["evaluation"]["n_rows"] == 500
    skipped = Run(tmp_path / "two", Options(source=str(data), target="label", bad_rows="skip")).go()
    assert (skipped["row"], skipped["skipped"], skipped["reason"]) == (ROWS - 1, 1, "end")


def test_options_that_may_change_on_resume(tmp_path: Path, data: Path) -> None:
    lines = data.read_text().splitlines()
    lines[301] += ",surplus"
    data.write_text("\n".join(lines) + "\n")
    options = Options(source=str(data), target="label", limit=100)
    assert Run(tmp_path / "run", options).go()["reason"] == "limit"
    assert Run.resume(tmp_path / "run", {"limit": 50}) is None
    end = Run.resume(tmp_path / "run", {"limit": 700}).go()
    assert (end["row"], end["reason"]) == (300, "error")
    end = Run.resume(tmp_path / "run", {"bad_rows": "skip"}).go()
    assert (end["row"], end["reason"], end["skipped"]) == (700, "limit", 1)
    whole = Options(source=str(data), target="label", limit=700, bad_rows="skip", window=50)
    assert Run(tmp_path / "whole", whole).go()["total"] == end["total"]
    assert model_of(tmp_path / "run") == model_of(tmp_path / "whole")
    assert json.loads((tmp_path / "run/config.json").read_text())["options"]["limit"] == 700


def test_counts_of_bad_rows_survive_a_stop(tmp_path: Path, data: Path) -> None:
    lines = data.read_text().splitlines()
    for row in (20, 300, 301, 700):
        lines[row] += ",too,many"
    data.write_text("\n".join(lines) + "\n")
    options = Options(source=str(data), target="label", bad_rows="skip")
    whole = Run(tmp_path / "whole", options).go()
    assert whole["skipped"] == 4
    assert "line 21: has 7 fields where the header has 5" in whole["skipped_why"][0]
    for stop in (1, 4, 5, 6, 10):
        folder = tmp_path / f"run-{stop}"
        Run(folder, options).go(stopped=stop_after(stop))
        end = Run.resume(folder).go()
        assert (end["skipped"], end["infinite"]) == (4, whole["infinite"])
        assert lines_of(folder) == lines_of(tmp_path / "whole")


def test_a_full_disk(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(source=str(data), target="label", window=50)
    whole = Run(tmp_path / "whole", options).go()
    run, saved = Run(tmp_path / "run", options, checkpoint_every=0.0), []
    original = KalmanClassifier.save

    def save(self: Any, path: Path) -> None:
        saved.append(path)
        if len(saved) > 4:
            raise OSError(28, "No space left on device", str(path))
        original(self, path)

    monkeypatch.setattr(KalmanClassifier, "save", save)
    with pytest.raises(
        RunError, match=r"No space left on device .*checkpoint at row \d+ is complete"
    ):
        run.go()
    monkeypatch.undo()
    again = Run.resume(tmp_path / "run")
    assert again.resumed_at > 0
    assert again.go()["total"] == whole["total"]
    assert lines_of(tmp_path / "run") == lines_of(tmp_path / "whole")


# ---- other learners -------------------------------------------------------------------------


def make_sgd(seed: int) -> SGDClassifier:
    return SGDClassifier(loss="log_loss", random_state=seed)


def test_a_learner_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from sklearn.linear_model import SGDClassifier\n"
        "def make(seed):\n    return SGDClassifier(loss='log_loss', random_state=seed)\n"
    )
    monkeypatch.chdir(tmp_path)
    options = Options(source="weather", learner="mine:make", limit=400, seed=5)
    run = Run(tmp_path / "run", options)
    assert run.learner.random_state == 5
    assert any("first pass" in note for note in run.notes)
    end = run.go()
    assert end["total"]["accuracy"] > 0.4
    assert not list((tmp_path / "run/checkpoint").iterdir())  # it cannot be saved
    (tmp_path / "run/metrics.jsonl").write_bytes(b"")
    again = Run.resume(tmp_path / "run")
    assert again.resumed_at is None
    assert again.go()["total"] == end["total"]
    forest = Options(source="weather", learner="river.forest:ARFClassifier", limit=150)
    assert Run(tmp_path / "forest", forest).go()["total"]["accuracy"] > 0.5


BROKEN = """
class Late:
    seen = 0
    def partial_fit(self, X, y): self.seen += len(X)
    def predict(self, X):
        if self.seen >= 200: raise RuntimeError("had enough")
        return ["0"] * len(X)
def needs(a): return a
def fails(): raise ValueError("not today")
"""


def test_a_learner_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    end = Run(tmp_path / "run", Options(source="weather", learner="broken:Late")).go()
    assert end["reason"] == "error"
    assert "Late failed: RuntimeError: had enough (broken.py, line 6)" in end["message"]
    assert 150 <= end["row"] <= 200
    assert lines_of(tmp_path / "run")[-1]["kind"] == "end"
    for name, why in (("needs", "missing 1 required"), ("fails", "ValueError: not today")):
        with pytest.raises(InvalidInput, match=f"could not be made: .*{why}"):
            make_learner(Options(learner=f"broken:{name}"), open_stream(Options()))


def test_messages_name_options() -> None:
    message = """give task="regression", bad_rows='skip', ignore=['a', 'b'] or categorical=["c"]"""
    expected = "give --task regression, --bad-rows skip, --ignore a,b or --categorical c"
    assert as_typed(message) == expected
    assert as_typed("gamma='x' stays") == "gamma='x' stays"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("name their column with time=", "name their column with --time"),
        ("label_time='b' needs chunk=10.", "--label-time b needs --chunk 10."),
        (
            "was not asked for (see max_waiting and max_age)",
            "was not asked for (see --max-waiting and --max-age)",
        ),
        ("time_unit must be above 0, got 0", "--time-unit must be above 0, got 0"),
        ("cost must be 1 with a delay in time", "--cost must be 1 with a delay in time"),
        ("gamma=0 with order=2: order=(1, 2)", "--forgetting 0 with --motion 2: --motion 1, 2"),
        ('give target="COLUMN", limit=0.', "give --target COLUMN, --limit 0."),
        ("column 'time_unit' of runs/max_waiting/a, b.time_unit", None),
        ("--target=x and the_target=3 and cost=f(x) stay", None),
    ],
)
def test_messages_name_options_of_other_forms(message: str, expected: str | None) -> None:
    assert as_typed(message) == (expected or message)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nonsense", "name it as package.module:factory"),
        (":x", "name it as package.module:factory"),
        ("no_such_module:make", "cannot be imported: No module named"),
        ("kalstream:nothing", "cannot be imported: "),
        ("kalstream:__version__", "is str; name a class or a function"),
    ],
)
def test_a_missing_learner(path: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_learner(Options.of(learner=path), open_stream(Options()))


# ---- streams and windows --------------------------------------------------------------------


def test_known_streams_and_embeddings(tmp_path: Path) -> None:
    assert Run(tmp_path / "w", Options(source="weather", limit=100)).go()["row"] == 100
    series = Run(tmp_path / "s", Options(source="series", limit=200, features="raw")).go()
    assert series["total"]["coverage"] > 0.7
    with pytest.raises(InvalidInput, match="cifar100 does not come with kalstream"):
        open_stream(Options(source="cifar100"))
    with pytest.raises(InvalidInput, match='name the column to predict with target="COLUMN"'):
        open_stream(Options(source="data.csv"))
    rng = np.random.default_rng(0)
    np.save(tmp_path / "e.npy", rng.standard_normal((300, 4)).astype(np.float16))
    np.save(tmp_path / "e-labels.npy", rng.integers(3, size=300))
    end = Run(tmp_path / "e", Options(source=str(tmp_path / "e.npy"), features="raw")).go()
    assert (end["row"], sorted(end["classes"])) == (300, [0, 1, 2])


@pytest.mark.parametrize(
    ("n", "limit", "window"),
    [(45_312, None, 500), (10, None, 50), (10**7, None, 50_000), (10**7, 1000, 50)],
)
def test_windows_are_round_and_about_two_hundred(n: int, limit: int | None, window: int) -> None:
    stream = open_stream(Options(source="series"))
    stream.n_rows = n
    assert window_of(Options(limit=limit), stream) == window
    assert window_of(Options(window=77), stream) == 77


@pytest.mark.parametrize(
    ("text", "unit"), [("30s", 30.0), ("12h", 43200.0), ("1d", 86400.0), (2.5, 2.5), ("auto", 60)]
)
def test_time_units(text: Any, unit: float, data: Path) -> None:
    options = Options(source=str(data), target="label", time="when", time_unit=text)
    assert time_unit_of(options, open_stream(options)) == unit


@pytest.mark.parametrize("unit", ["soon", "0", "0d", True, np.timedelta64(1), None, [1]])
def test_bad_time_units(unit: Any) -> None:
    message = re.escape(f"--time-unit is {unit!r}; give a number from 1e-09 to 1e+30, '30s'")
    with pytest.raises(InvalidOption, match=message):
        Options.of(time="when", time_unit=unit)


# ---- what a run leaves ----------------------------------------------------------------------


def test_predictions_of_a_checkpoint(tmp_path: Path, data: Path) -> None:
    Run(tmp_path / "run", Options(source=str(data), target="label", ignore=["when"])).go()
    text = data.read_text().splitlines()
    unseen = tmp_path / "new.csv"
    unseen.write_text(
        "color,y,x\nred,0.5,0.1\nviolet,,inf\n"
    )  # another order, no target, a new color
    header, *rows = predicted_rows(tmp_path / "run", str(unseen))
    assert header == ["row", "prediction", "p_down", "p_new", "p_up", "uncertainty"]
    assert len(rows) == 2
    for row in rows:
        assert sum(row[2:5]) == pytest.approx(1.0)
        assert 0.0 < row[5] < 2.0
    before = model_of(tmp_path / "run")
    assert len(list(predicted_rows(tmp_path / "run" / "checkpoint", str(data)))) == len(text)
    assert model_of(tmp_path / "run") == before
    unseen.write_text("color,y\nred,0.5\n")
    with pytest.raises(InvalidInput, match="'x'"):
        list(predicted_rows(tmp_path / "run", str(unseen)))


def test_predictions_of_a_regression(tmp_path: Path) -> None:
    Run(tmp_path / "run", Options(source="series", features="raw", limit=500)).go()
    with pytest.raises(InvalidInput, match="the model has no names of columns"):
        list(predicted_rows(tmp_path / "run", "some.csv"))
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 2))
    text = "\n".join(f"{a:.4f},{b:.4f},{a - b + 0.01:.4f}" for a, b in rows)
    (tmp_path / "r.csv").write_text("a,b,y\n" + text + "\n")
    Run(tmp_path / "r", Options(source=str(tmp_path / "r.csv"), target="y")).go()
    header, *predictions = predicted_rows(tmp_path / "r", str(tmp_path / "r.csv"))
    assert header == ["row", "mean", "std", "uncertainty"]
    error = np.array([row[1] for row in predictions]) - (rows[:, 0] - rows[:, 1])
    assert np.abs(error).max() < 0.5


def test_a_description(tmp_path: Path, data: Path) -> None:
    Run(tmp_path / "run", Options(source=str(data), target="label")).go()
    description = described(tmp_path / "run")
    assert description["rows_seen"] == ROWS
    assert description["classes"] == ["down", "new", "up"]
    assert description["table"]["color"] == "category"
    assert description["drift"]["alarms"] >= 1
    json.dumps(description, allow_nan=False)
    progress = json.loads((tmp_path / "run/checkpoint/progress.json").read_text())
    alone = described(tmp_path / "run" / "checkpoint" / progress["model"])
    assert alone["health"] == description["health"]
    assert "table" not in alone
    with pytest.raises(InvalidInput, match="holds no checkpoint"):
        described(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_memory_is_reported() -> None:
    from kalstream.runs.results import memory_mb

    assert 10.0 < memory_mb() <= memory_mb(peak=True) + 1.0


NETWORK = """
import torch
from kalstream.deep import KalmanHead, OnlineLearner, RecentMemory


def make(seed):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh())
    head = KalmanHead(8, 3, gamma=0.99, gamma_lr=0.1, predictive="monte-carlo", n_samples=10)
    return OnlineLearner(
        net,
        head,
        lr=0.05,
        replay=RecentMemory(20, 5),
        optimizer=lambda groups: torch.optim.SGD(groups, momentum=0.9),
    )
"""


def test_a_network_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("networks_of_this_test.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((600, 5)).astype(np.float32)
    np.save("rows.npy", rows)
    np.save("rows.labels.npy", (rows[:, 0] > 0) + (rows[:, 1] > 0).astype(int))
    options = Options(source="rows.npy", learner="networks_of_this_test:make", chunk=10)
    whole = Run("whole", options).go()
    assert whole["total"]["accuracy"] > 0.6
    for stop in (1, 3, 7):
        folder = f"run-{stop}"
        assert Run(folder, options).go(stopped=stop_after(stop))["reason"] == "interrupted"
        end = Run.resume(folder).go()
        assert (end["row"], end["total"]) == (600, whole["total"])
        assert [path.name for path in Path(folder, "checkpoint").glob("model-*")] == [
            "model-600.pt"
        ]


def test_a_run_says_that_it_raises_max_waiting(tmp_path: Path) -> None:
    how: dict[str, Any] = {"source": "weather", "max_waiting": 10, "limit": 100}
    raised = Run(tmp_path / "raised", Options(**how, delay="50"))
    assert raised.learner.max_waiting == 51
    assert [note for note in raised.notes if "--max-waiting is 10" in note and "51 rows" in note]
    assert not Run(tmp_path / "kept", Options(**how, delay="9")).notes
