"""A stream format defined in this test runs, resumes and is described."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream import cli, streams
from kalstream.errors import InvalidOption
from kalstream.runs import Options, Run, described, predicted_rows
from kalstream.streams import Batch, Format, Stream
from runs.test_run import lines_of, model_of, stop_after


class Waves(Stream):
    """Lines of "phase time" in a file; the label is whether the sine of the phase is positive."""

    columns = ("sine", "cosine")
    timed = True
    guess = "a wave has labels"

    def __init__(self, source: str, seed: int = 0) -> None:
        self.name, self.files = Path(source).stem, [Path(source)]
        self._values = np.loadtxt(source) + np.array([seed, 0.0])

    @property
    def approximate_rows(self) -> int:
        return 1000

    def batches(self, start: int = 0) -> Iterator[Batch]:
        for first in range(start, len(self._values), 100):
            phase, times = self._values[first : first + 100].T
            rows = np.stack([np.sin(phase), np.cos(phase)], axis=1)
            yield Batch(first, rows, np.where(rows[:, 0] > 0, "up", "down").astype(object), times)

    def describe(self) -> dict[str, Any]:
        digest = self.files[0].read_bytes().hex()[:40]
        return {"name": self.name, "task": self.task, "fingerprint": digest}


ENTRY = Format(
    "waves",
    "holds waves",
    recognises=lambda source: source.endswith(".waves"),
    open=Waves,
    options=("seed",),
    remedies={"target": "the sign of the sine is the label"},
    open_rows=Waves,
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(streams.formats, "FORMATS", [ENTRY, *streams.FORMATS])
    monkeypatch.chdir(tmp_path)
    phases = np.random.default_rng(0).uniform(0.0, 6.0, 400)
    np.savetxt("some.waves", np.stack([phases, 60.0 * np.arange(400)], axis=1))
    return "some.waves"


def test_the_format_is_opened(source: str) -> None:
    stream = streams.open(source)
    assert (type(stream), stream.name, stream.n_rows) == (Waves, "some", None)
    with pytest.raises(
        InvalidOption, match=r"target=.y. does not apply to some.waves, which holds waves: the"
    ):
        streams.open(source, target="y")
    with pytest.raises(InvalidOption, match=r"order='tasks' .*: leave it out"):
        streams.open(source, order="tasks")


def test_the_format_runs_resumes_and_is_described(source: str) -> None:
    options = Options(source=source, features="raw", predictions=True)
    whole = Run("whole", options).go()
    assert whole["total"]["accuracy"] > 0.9
    run = Run("run", options, checkpoint_every=0.0)
    assert run.config["learner"]["params"]["time_unit"] == 60.0  # from its times
    assert run.evaluation.window == 50  # from its approximate number of rows
    assert run.go(stopped=stop_after(3))["reason"] == "interrupted"
    assert Run.resume("run").go()["total"] == whole["total"]
    assert lines_of(Path("run")) == lines_of(Path("whole"))
    assert model_of(Path("run")) == model_of(Path("whole"))
    assert described("run")["learned_from"]["name"] == "some"
    np.savetxt("later.waves", np.stack([np.arange(9.0), 1e5 + np.arange(9)], axis=1))
    assert len(list(predicted_rows("run", "later.waves"))) == 10


def test_the_command_line_runs_the_format(
    source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["kalstream", *arguments])
        try:
            cli.main()
        except SystemExit as stopped:
            return stopped.code or 0
        return 0

    assert call("run", source, "--features", "raw", "-o", "run") == 0
    printed = capsys.readouterr().out
    assert "some: classification, 2 columns, about 1,000 rows" in printed
    assert "a wave has labels" in printed
    assert "in units of 60" in printed
    assert call("run", source, "--target", "y") == 2
    assert "--target y does not apply to some.waves" in capsys.readouterr().err
