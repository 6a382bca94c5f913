"""Messy files on the command line: what it prints at the start, and the options it names."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kalstream.cli import main
from kalstream.runs import open_run


@pytest.fixture
def run_cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Any:
    """Run a file of these rows: (standard output, folder of the run)."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)

    def call(header: str, rows: list[str], *options: str, name: str = "t.csv") -> Any:
        Path(name).write_text("\n".join([header, *rows]) + "\n")
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        quick = ("--features", "raw", "--forgetting", "1", "--out", str(folder))
        monkeypatch.setattr(sys, "argv", ["kalstream", "run", name, *quick, *options])
        try:
            main()
        except SystemExit as stopped:
            assert not stopped.code, capsys.readouterr()
        return capsys.readouterr().out, folder

    return call


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def test_missing_texts(run_cli: Any) -> None:
    rows = [f"{'not known' if k % 8 == 5 else k},{k % 2}" for k in range(80)]
    printed, folder = run_cli("n,y", rows, "-t", "y")
    assert "70 of 80 values are numbers, but not 'not known' (row 6) and 9 others" in printed
    assert "give --missing 'not known'; if they are codes, give --categorical n\n" in printed
    assert "missing" not in {**config_of(folder)["options"], **config_of(folder)["stream"]}

    printed, folder = run_cli("n,y", rows, "-t", "y", "--missing", "not known", "--missing", "a,b")
    assert "values are numbers" not in printed
    assert config_of(folder)["options"]["missing"] == ["not known", "a,b"]
    model = open_run(folder)
    assert model.encoder.missing == ("not known", "a,b")
    assert model.predict([{"n": "not known"}]).shape == (1,)
    printed, _ = run_cli("n,y", rows, "--from", str(folder))
    assert "begins with the model" in printed


def test_decimal_commas(run_cli: Any) -> None:
    rows = [f"{k * k},5;{k % 9},{k % 7}" for k in range(120)]
    printed, folder = run_cli("x;y", rows, "-t", "y")
    assert "numbers have decimal commas: '0,5' in 'x' is 0.5, '0,0' in 'y' is 0; if that" in printed
    assert "is wrong, give --decimal .\n" in printed
    assert "decimal" not in config_of(folder)["options"]
    model = open_run(folder)
    assert model.predict([{"x": "1,5"}]) == model.predict([{"x": 1.5}])
    printed, folder = run_cli("x;y", rows, "-t", "y", "--decimal", ".", "--task", "classification")
    assert "decimal commas" not in printed
    assert config_of(folder)["options"]["decimal"] == "."
    assert config_of(folder)["stream"]["columns"] == [{"name": "x", "kind": "category"}]


def test_what_the_columns_were_taken_for(run_cli: Any) -> None:
    days = ["2024-01-01", "2024-01-02"]
    rows = [f"{k % 5},{k % 7},{k % 9},1.5,{days[k % 2]},c{k % 6},true,{k % 2}" for k in range(60)]
    printed, _ = run_cli("a,b,c,d,day,shop,open,y", rows, "-t", "y")
    first, second, *_ = printed.splitlines()
    assert first.startswith("t: classification, 7 columns, ")
    assert second == "  4 numbers, 1 date (day), 1 category (shop), 1 boolean (open)"
    printed, _ = run_cli("a,b,y", ["1,2,3", "2,3,4"] * 20, "-t", "y")
    assert printed.splitlines()[1] == "  2 numbers"


def test_an_index_without_a_name_can_be_left_out(run_cli: Any) -> None:
    rows = [f"{k},{k * 7 % 11},{k % 2}" for k in range(80)]
    printed, _ = run_cli(",x,y", rows, "-t", "y")
    assert "'' looks like ids" in printed
    assert "leave it out with --ignore ''\n" in printed
    printed, folder = run_cli(",x,y", rows, "-t", "y", "--ignore", "")
    assert "looks like ids" not in printed
    assert config_of(folder)["stream"]["columns"] == [{"name": "x", "kind": "number"}]


def test_the_unit_of_other_dates_is_a_time(run_cli: Any) -> None:
    rows = [f"202401{k % 28 + 1:02},{k % 7},{k % 2}" for k in range(28)]
    options = ("-t", "y", "--time", "d")
    printed, _ = run_cli("d,x,y", rows, *options)
    assert "but may hold dates such as '20240101'; if so, give --date-format %Y%m%d\n" in printed
    printed, _ = run_cli("d,x,y", rows, *options, "--date-format", "%Y%m%d")
    assert "half-lives are in units of 1 day" in printed


def test_dates_of_rows_are_on_the_axes_of_the_report(run_cli: Any) -> None:
    rows = [f"{k % 28 + 1}.{k // 28 + 1}.2024 12:00,{k % 7},{k % 2}" for k in range(140)]
    _, folder = run_cli("d,x,y", rows, "-t", "y", "--time", "d")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    dates = [line["date"] for line in lines if line["kind"] == "window"]
    assert dates == ["2024-02-22T12:00:00", "2024-04-16T12:00:00", "2024-05-28T12:00:00"]
    report = (folder / "report.html").read_text()
    assert ">16 Apr<" in report
    assert 'class="unit"' not in report
    _, folder = run_cli("d,x,y", rows, "-t", "y", "--ignore", "d")
    assert "date" not in json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert 'class="unit"' in (folder / "report.html").read_text()
