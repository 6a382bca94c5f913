"""Late labels of runs and on the command line: by rows, by time, and by ids."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream import cli
from kalstream.errors import InvalidInput, InvalidOption
from kalstream.report import write_report
from kalstream.runs import Options, Run, described, open_run, predicted_rows
from kalstream.runs.setup import make_learner, open_stream
from kalstream.streams import ArrayStream, TableStream

N = 160
QUICK = {"target": "y", "features": "raw", "window": 50}


def rows(n: int = N) -> list[dict[str, Any]]:
    """Rows with a time, the time of the label (a tenth has none) and an id."""
    rng = np.random.default_rng(0)
    made, hour = [], 0
    for k in range(n):
        hour += int(rng.integers(1, 9))
        x, color = float(rng.normal()), str(rng.choice(["red", "blue"]))
        came = hour + int(rng.integers(0, 200)) if rng.random() < 0.9 else None
        label = "up" if x + (color == "red") > 0.4 else "down"
        made.append(
            {"order": f"o{k}", "color": color, "x": x, "hour": hour, "came": came, "y": label}
        )
    return made


def day(hour: int | None) -> str:
    if hour is None:
        return ""
    return str(np.datetime64("2024-01-01T00:00:00") + np.timedelta64(hour, "h"))


def csv(path: Path, names: list[str], lines: list[dict[str, Any]]) -> Path:
    text = [",".join(names), *(",".join(str(row.get(n, "")) for n in names) for row in lines)]
    path.write_text("\n".join(text) + "\n")
    return path


def with_dates(path: Path) -> Path:
    lines = [{**row, "when": day(row["hour"]), "came": day(row["came"])} for row in rows()]
    return csv(path, ["when", "color", "x", "came", "y"], lines)


def events(lag: int = 12) -> list[dict[str, Any]]:
    """Rows without labels, and rows that bring labels ``lag`` rows later; some never come."""
    made, waiting = [], []
    for k, row in enumerate(rows()):
        made.append({name: row[name] for name in ("order", "color", "x")})
        waiting.append(row)
        if k >= lag:
            old = waiting.pop(k % 3)
            made.append({"order": old["order"], "y": old["y"]})
    return made


def json_lines(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def lines_of(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    for line in lines:
        line.pop("clock", None)
    return lines


def late_options(kind: str, folder: Path) -> Options:
    if kind == "rows":
        return Options(source="weather", limit=N, delay=30, features="raw", window=50)
    if kind == "ids":
        source = csv(folder / "ids.csv", ["order", "color", "x", "y"], events())
        return Options(source=str(source), id="order", **QUICK)
    source = with_dates(folder / "dates.csv")
    more: dict[str, Any] = {"label_time": "came"}
    if kind == "time":
        more = {"delay": "3d", "ignore": ["came"]}
    return Options(source=str(source), time="when", **QUICK, **more)


def stop_after(n: int) -> Any:
    calls = [0]

    def stopped() -> bool:
        calls[0] += 1
        return calls[0] >= n

    return stopped


@pytest.mark.parametrize("kind", ["rows", "time", "column", "ids"])
def test_a_stopped_run_continues_with_what_waits(kind: str, tmp_path: Path) -> None:
    options = late_options(kind, tmp_path).model_copy(update={"predictions": True})
    end = Run(tmp_path / "whole", options).go()
    Run(tmp_path / "part", options).go(stopped=stop_after(2))
    job = Run.resume(tmp_path / "part")
    assert job is not None
    assert job.evaluation.late is not None
    assert len(job.evaluation.late) > 0
    job.go(stopped=stop_after(1))
    job = Run.resume(tmp_path / "part")
    assert job is not None
    job.go()
    for name in ("metrics.jsonl", "predictions.jsonl"):
        whole, part = (lines_of(tmp_path / folder, name) for folder in ("whole", "part"))
        assert [line for line in part if line.get("reason") != "interrupted"][-1] == whole[-1]
        assert part[0] == whole[0]
    whole_model, part_model = (
        next((tmp_path / f / "checkpoint").glob("model-*")).read_bytes() for f in ("whole", "part")
    )
    assert whole_model == part_model
    counts = end["waiting"]
    assert counts["asked"] == N
    assert counts["told"] + counts["waiting"] == N
    assert counts["waiting"] == {"rows": 0, "time": 0, "ids": 12}.get(kind, counts["waiting"])


def test_days_are_hours_and_dates_are_numbers(tmp_path: Path) -> None:
    dates = with_dates(tmp_path / "dates.csv")
    numbers = csv(
        tmp_path / "numbers.csv",
        ["hour", "color", "x", "came", "y"],
        [{**row, "came": "" if row["came"] is None else row["came"]} for row in rows()],
    )
    ends = []
    for source, more in (
        (dates, {"time": "when", "delay": "2d", "ignore": ["came"], "time_unit": "1h"}),
        (dates, {"time": "when", "delay": "48h", "ignore": ["came"], "time_unit": "1h"}),
        (numbers, {"time": "hour", "delay": "48s", "ignore": ["came"], "time_unit": "1"}),
        (dates, {"time": "when", "label_time": "came", "time_unit": "1h"}),
        (numbers, {"time": "hour", "label_time": "came", "time_unit": "1"}),
    ):
        ends.append(
            Run(tmp_path / str(len(ends)), Options(source=str(source), **QUICK, **more)).go()
        )
    totals = [end["total"]["log_loss"] for end in ends]
    assert totals[0] == totals[1] == pytest.approx(totals[2], abs=1e-9)
    assert totals[3] == pytest.approx(totals[4], abs=1e-9)
    assert totals[0] != totals[3]


def test_a_pipe_and_a_file_of_ids_are_the_same(tmp_path: Path, monkeypatch: Any) -> None:
    given = {**QUICK, "task": "classification", "id": "order", "predictions": True}
    text = json_lines(events())
    (tmp_path / "ids.jsonl").write_text(text)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    Run(tmp_path / "pipe", Options(source="-", **given)).go()
    Run(tmp_path / "file", Options(source=str(tmp_path / "ids.jsonl"), **given)).go()
    # columns of categories differ in number, so the scores do a little
    ends = [lines_of(tmp_path / name)[-1] for name in ("pipe", "file")]
    assert ends[0]["waiting"] == ends[1]["waiting"]
    assert ends[0]["n"] == ends[1]["n"] > 100
    assert ends[0]["total"]["accuracy"] > 0.8
    for name in ("pipe", "file"):
        lines = lines_of(tmp_path / name, "predictions.jsonl")
        assert [line["id"] for line in lines] == [row["order"] for row in rows()]
        assert all(line["target"] is None for line in lines)


def test_a_pipe_of_ids_is_resumed_with_a_label(tmp_path: Path, monkeypatch: Any) -> None:
    given = {**QUICK, "task": "classification", "id": "order", "source": "-"}
    lines = events()
    cut = next(k for k in range(100, 200) if "y" in lines[k])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json_lines(lines)))
    whole = Run(tmp_path / "whole", Options(**given)).go()
    monkeypatch.setattr(sys, "stdin", io.StringIO(json_lines(lines[:cut])))
    Run(tmp_path / "part", Options(**given)).go()
    for k in (cut, cut + 1):  # a label, then a row
        monkeypatch.setattr(sys, "stdin", io.StringIO(json_lines(lines[k : k + 1])))
        job = Run.resume(tmp_path / "part")
        assert job is not None
        job.go()
    monkeypatch.setattr(sys, "stdin", io.StringIO(json_lines(lines[cut + 2 :])))
    job = Run.resume(tmp_path / "part")
    assert job is not None
    end = job.go()
    assert {name: end[name] for name in ("row", "n", "total", "waiting")} == {
        name: whole[name] for name in ("row", "n", "total", "waiting")
    }


def test_a_file_of_labels_extends_a_run(tmp_path: Path) -> None:
    lines = events()
    (tmp_path / "ids.jsonl").write_text(json_lines(lines[:100]))
    options = Options(source=str(tmp_path / "ids.jsonl"), id="order", **QUICK)
    before = Run(tmp_path / "run", options).go()["waiting"]
    labels = [line for line in lines[100:130] if "y" in line]
    (tmp_path / "more.jsonl").write_text(json_lines(labels))
    after = Run.extend(tmp_path / "run", tmp_path / "more.jsonl").go()["waiting"]
    assert after["asked"] == before["asked"]
    assert after["told"] > before["told"]


def piped(text: str, **given: Any) -> TableStream:
    return TableStream(io.StringIO(text), "y", id="order", **given)


def test_a_pipe_of_ids_begins_with_a_label(tmp_path: Path, monkeypatch: Any) -> None:
    labels = [{"order": 5, "y": "up"}, {"order": 6, "y": "up"}]
    with pytest.raises(InvalidInput, match="no row has a column to predict 'y' from"):
        piped(json_lines(labels), task="classification")
    given = {**QUICK, "task": "classification", "id": "order", "source": "-"}
    ends = []
    for name, lines in (("with", [*labels, *events()]), ("without", events())):
        monkeypatch.setattr(sys, "stdin", io.StringIO(json_lines(lines)))
        ends.append(Run(tmp_path / name, Options(**given)).go())
    assert ends[0]["waiting"] == {**ends[1]["waiting"], "unknown": 2}
    assert ends[0]["total"] == ends[1]["total"]


def test_text_is_no_target_of_regression_in_a_pipe_of_ids() -> None:
    for empty in ('"y": ""', '"y": null', '"z": 1'):
        stream = piped(
            f'{{"order": 5, "x": 1, {empty}}}\n{{"order": 5, "y": "up"}}\n', task="regression"
        )
        with pytest.raises(InvalidInput, match=r'regression needs numbers; .*"classification"'):
            list(stream.batches())


def test_ids_that_no_json_line_has(tmp_path: Path) -> None:
    text = json_lines(events())
    (tmp_path / "ids.jsonl").write_text(text)
    for source in (tmp_path / "ids.jsonl", io.StringIO(text)):
        with pytest.raises(InvalidInput, match=r"id='ordr': there is no such column. Did you mean"):
            TableStream(source, "y", id="ordr", task="classification")


@pytest.mark.parametrize("kind", ["column", "ids"])
def test_the_model_of_late_labels_learns_in_python(kind: str, tmp_path: Path) -> None:
    Run(tmp_path / "run", late_options(kind, tmp_path)).go()
    model = open_run(tmp_path / "run")
    row = {"color": "green", "x": 1.0, "y": "sideways", "when": "2030-01-01"}
    assert "sideways" in model.partial_fit([row]).classes_
    assert model.encoder is not None
    assert (model.encoder.id or model.encoder.label_time) is not None
    assert model.encode([row]).sum() != model.encode([{**row, "color": "never"}]).sum()


def test_rows_of_ids_that_are_odd_are_counted(tmp_path: Path) -> None:
    lines = events()[:60]
    lines += [
        {"order": "o0", "y": "up"},  # again, or another one
        {"order": "never", "y": "up"},  # nobody knows it
        {"order": "o59", "color": "red", "x": 1.0, "y": "up"},  # at once
        {"color": "red", "x": 1.0, "y": "up"},  # no id
        {"color": "red", "x": 1.0},
        {"order": "o59", "color": "red", "x": 2.0},  # a row that comes again
    ]
    source = csv(tmp_path / "ids.csv", ["order", "color", "x", "y"], lines)
    options = Options(source=str(source), id="order", max_waiting=5, **QUICK)
    end = Run(tmp_path / "run", options).go()
    assert end["reason"] == "end"
    counts = end["waiting"]
    assert counts["unknown"] >= 1
    assert counts["expired"] > 0
    assert counts["repeated"] >= 1
    assert counts["waiting"] <= 5


def test_rows_that_wait_too_long_are_given_up(tmp_path: Path) -> None:
    def ends(options: Options, *ages: float | None) -> list[Any]:
        every = [options.model_copy(update={"max_age": age}) for age in ages]
        return [Run(tmp_path / f"{options.id}-{each.max_age}", each).go() for each in every]

    usual, young = ends(late_options("ids", tmp_path), None, 11.0)
    assert usual["waiting"]["expired"] == 0 < young["waiting"]["expired"]
    assert young["total"] != usual["total"]
    hours = late_options("column", tmp_path).model_copy(update={"time_unit": "2h"})
    told = [end["waiting"]["told"] for end in ends(hours, 5.0, 50.0, None)]
    assert told[0] < told[1] < told[2]  # labels come within 200 hours
    for more, age in (({}, 11.0), ({"max_age": 7}, 7.0)):
        given = {"source": late_options("ids", tmp_path).source, "id": "order", **more}
        origin = str(tmp_path / "order-11.0")
        assert Run(tmp_path / f"from-{age}", Options(origin=origin, **given)).learner.max_age == age


def test_description_and_report_count_the_same_rows(tmp_path: Path) -> None:
    lines = events()
    lines.insert(3, lines[2])  # it comes again, and is predicted again
    source = csv(tmp_path / "ids.csv", ["order", "color", "x", "y"], lines)
    Run(tmp_path / "run", Options(source=str(source), id="order", **QUICK)).go()
    about = described(tmp_path / "run")
    counts = [about[f"rows_{name}"] for name in ("seen", "asked", "waiting")]
    assert counts == [N - 12, N, 12]
    page = write_report(tmp_path / "run").read_text()
    assert f"{len(lines)} rows, {N} of them to predict" in page
    settings = page[page.index("rows read") :]
    for name, count in (("rows kept for their labels", N), ("labels learned", N - 12)):
        assert re.match(rf"{name}\W[^0-9]*{count}\b", settings[settings.index(name) :])


def test_ids_in_predictions_of_a_model(tmp_path: Path) -> None:
    source = csv(tmp_path / "ids.csv", ["order", "color", "x", "y"], events())
    Run(tmp_path / "run", Options(source=str(source), id="order", **QUICK)).go()
    new = csv(tmp_path / "new.csv", ["x", "order", "color"], rows(3))
    header, *found = predicted_rows(tmp_path / "run", str(new))
    assert header[:3] == ["row", "id", "prediction"]
    assert [row[1] for row in found] == ["o0", "o1", "o2"]
    without = csv(tmp_path / "without.csv", ["x", "color"], rows(3))
    assert next(iter(predicted_rows(tmp_path / "run", str(without))))[1] == "prediction"
    header, *found = predicted_rows(tmp_path / "run", str(new), "color")
    assert [row[1] for row in found] == [row["color"] for row in rows(3)]
    with pytest.raises(InvalidInput, match="id='nope': there is no such column"):
        next(iter(predicted_rows(tmp_path / "run", str(new), "nope")))


def test_a_row_that_comes_again_is_predicted_again(tmp_path: Path) -> None:
    lines = events()
    told = next(line["order"] for line in lines if "y" in line)
    more = [{"order": "o5", "color": "red", "x": 2.0}, {"order": told, "color": "red", "x": 2.0}]
    twice = [*lines[:40], *more, *more, {"order": "o5"}, *lines[40:]]
    (tmp_path / "once.jsonl").write_text(json_lines(lines))
    (tmp_path / "twice.jsonl").write_text(json_lines(twice))
    ends, found = [], []
    for name in ("once", "twice"):
        source = str(tmp_path / f"{name}.jsonl")
        options = Options(source=source, id="order", predictions=True, **QUICK)
        ends.append(Run(tmp_path / name, options).go())
        found.append(lines_of(tmp_path / name, "predictions.jsonl"))
    extra = [line["id"] for line in found[1] if 40 <= line["row"] < 44]
    assert extra == ["o5", told, "o5", told]
    assert len(found[1]) == len(found[0]) + 4
    assert ends[1]["waiting"] == {**ends[0]["waiting"], "repeated": 5}
    assert ends[1]["n"] == ends[0]["n"]


def test_a_run_that_begins_with_a_model_knows_none_of_its_ids(tmp_path: Path) -> None:
    source = csv(tmp_path / "ids.csv", ["order", "color", "x", "y"], events())
    options = Options(source=str(source), id="order", **QUICK)
    before = Run(tmp_path / "one", options).go()["waiting"]
    again = Options(source=str(source), id="order", origin=str(tmp_path / "one"), predictions=True)
    job = Run(tmp_path / "two", again)
    assert any("12 of its rows still wait" in note for note in job.notes)
    assert job.go()["waiting"] == before
    assert len(lines_of(tmp_path / "two", "predictions.jsonl")) == N
    with pytest.raises(InvalidOption, match="pass --id 'order', or --delay 0 if every row has"):
        Run(tmp_path / "no", Options(source=str(source), origin=str(tmp_path / "one")))
    beside = Options(source=str(source), origin=str(tmp_path / "one"), delay="0")
    assert not Run(tmp_path / "beside", beside).stream.named
    # Labels of the old run came after a number of rows.
    Run(tmp_path / "late", late_options("time", tmp_path)).go()
    new = csv(
        tmp_path / "n.csv",
        ["when", "order", "color", "x", "y"],
        [{**row, "when": f"2030-01-01T{k:02}"} for k, row in enumerate(rows(20))],
    )
    ids = Options(source=str(new), id="order", origin=str(tmp_path / "late"))
    assert Run(tmp_path / "three", ids).go()["waiting"]["asked"] == 20


def test_rows_that_only_bring_labels_are_not_predicted(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = events()
    source = csv(tmp_path / "ids.csv", ["order", "color", "x", "y"], lines)
    Run(tmp_path / "run", Options(source=str(source), id="order", **QUICK)).go()
    found = list(predicted_rows(tmp_path / "run", str(source)))[1:]
    asked = [(k, line["order"]) for k, line in enumerate(lines) if "x" in line]
    assert [(row[0], row[1]) for row in found] == asked
    unlabelled = csv(tmp_path / "new.csv", ["order", "color", "x"], [{"order": "a"}])
    assert len(list(predicted_rows(tmp_path / "run", str(unlabelled)))) == 2
    command = ["kalstream", "predict", str(tmp_path / "run"), str(source), "--id", "order"]
    monkeypatch.setattr(sys, "argv", command)
    call_cli()
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 + len(asked)
    assert "148 rows that only bring labels of other rows were left out" in err


def test_an_opened_run_is_asked_and_told(tmp_path: Path) -> None:
    source = csv(tmp_path / "ids.csv", ["order", "color", "x", "y"], events())
    Run(tmp_path / "run", Options(source=str(source), id="order", **QUICK)).go()
    run = open_run(tmp_path / "run")
    assert run.waiting_.waiting == 12
    row = {"color": "green", "x": 1.0}
    expected = run.predict_proba([{"color": "red", "x": 1.0}])
    assert run.ask([{"color": "red", "x": 1.0}], ids=["new"]).shape == expected.shape
    seen = run.ask([{**row, "color": "orange"}], ids=["seen"], keep=False)
    assert seen.shape == expected.shape
    assert run.waiting_.waiting == 13
    orange = [{**row, "color": "orange"}]
    assert run.encode(orange).tolist() == run.encode([{**row, "color": "pink"}]).tolist()
    assert run.ask([{**row, "order": "from the column"}]).shape == (1, 2)
    assert run.waiting_.waiting == 14
    assert run.tell(["new", "from the column", "o159"], ["up", "other", "down"]) is run
    assert run.waiting_.waiting == 11
    assert run.classes_.tolist() == ["down", "other", "up"]
    assert run.encode([row])[0].tolist() != run.encode([{**row, "color": "pink"}])[0].tolist()
    with pytest.raises(InvalidInput, match="column 'x'"):
        run.ask([{"color": "red", "x": "no number"}], ids=["bad"])
    assert run.waiting_.waiting == 11
    run.save(tmp_path / "saved")
    assert open_run(tmp_path / "saved").waiting_ == run.waiting_


def test_labels_of_a_run_before_come_in_its_extension(tmp_path: Path) -> None:
    lines = events()
    names = ["order", "color", "x", "y"]
    first, second = (
        csv(tmp_path / "1.csv", names, lines[:150]),
        csv(tmp_path / "2.csv", names, lines[150:]),
    )
    given = {**QUICK, "id": "order"}
    before = Run(tmp_path / "one", Options(source=str(first), **given)).go()["waiting"]
    assert before["waiting"] == 12
    whole = Run(
        tmp_path / "all", Options(source=str(csv(tmp_path / "3.csv", names, lines)), **given)
    )
    end = Run.extend(tmp_path / "one", second).go()["waiting"]
    assert end == whole.go()["waiting"]


@pytest.mark.parametrize(
    ("delay", "message"),
    [
        ("3x", "--delay is '3x'; give a number of rows"),
        ("-1", "--delay is '-1'"),
        ("3.5", "--delay is '3.5'"),
        ("", "--delay is ''"),
        ("1e13d", "--delay is '1e13d'"),
        ("99999999999", "--delay is '99999999999'"),
        (True, "--delay is True"),
        (2.5, "--delay is 2.5"),
    ],
)
def test_delays_that_are_none(delay: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Options.of(delay=delay)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"delay": "3d"}, "--delay is '3d', but rows have no times"),
        ({"label_time": "came"}, "--label-time is 'came', but rows have no times; .* --time"),
        ({"id": "order", "delay": 4}, "--delay and --id each say when labels come"),
        ({"id": "order", "chunk": 4}, "--chunk is 4, but must be 1 with --id"),
        ({"id": "order", "cost": 2.0}, "--cost is 2.0, but must be 1 with --id"),
        ({"time": "hour", "delay": "3d", "cost": 2.0}, "--cost is 2.0, but must be 1 with --delay"),
    ],
)
def test_options_that_do_not_fit_together(given: Any, message: str, tmp_path: Path) -> None:
    source = csv(tmp_path / "all.csv", ["order", "hour", "came", "x", "y"], rows())
    with pytest.raises(InvalidOption, match=message):
        open_stream(Options(source=str(source), target="y", **given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": "ordr"}, "id='ordr': there is no such column. Did you mean 'order'"),
        ({"id": "y"}, "'y' is both target and id"),
        ({"id": "hour", "time": "hour"}, "'hour' is both time and id"),
        ({"label_time": "came"}, "label_time='came' needs the times of the rows"),
        ({"time": "hour", "label_time": "order"}, "given as label_time holds categories"),
        ({"time": "day", "label_time": "came"}, "'came' holds numbers, but time='day' holds dates"),
        ({"time": "hour", "label_time": "day"}, "'day' holds dates, but time='hour' holds numbers"),
        ({"time": "hour", "label_time": "nope"}, "label_time='nope': there is no such column"),
    ],
)
def test_columns_that_do_not_fit(given: Any, message: str, tmp_path: Path) -> None:
    lines = [{**row, "day": day(row["hour"]), "came": row["came"] or ""} for row in rows()]
    source = csv(tmp_path / "all.csv", ["order", "hour", "day", "came", "x", "y"], lines)
    with pytest.raises(InvalidInput, match=message):
        TableStream(source, "y", **given)


def test_times_of_labels_and_of_rows_that_cannot_be_read(tmp_path: Path) -> None:
    text = "t,l,x,y\n1,2,1,a\n2,soon,1,b\n3,4,1,a\n"
    (tmp_path / "bad.csv").write_text(text * 1)
    with pytest.raises(InvalidInput, match=r"label_time holds|which is not a number"):
        list(TableStream(tmp_path / "bad.csv", "y", time="t", label_time="l").batches())
    (tmp_path / "ids.csv").write_text("t,id,x,y\n1,a,1,\n2,b,1,\n,a,,up\n,c,1,\n")
    stream = TableStream(tmp_path / "ids.csv", "y", time="t", id="id", bad_rows="skip")
    (batch,) = stream.batches()
    assert batch.ids.tolist() == ["a", "b", "a"]  # c has neither time nor label
    assert stream.skipped == 1
    assert np.isnan(batch.rows[2]).all()
    assert np.isnan(batch.times[2])


def test_a_label_does_not_come_before_its_row(tmp_path: Path) -> None:
    text = "t,l,x,y\n2024-01-01,2024-01-01,1,a\n2024-01-03,2024-01-02,1,b\n2024-01-04,,1,a\n"
    source, given = tmp_path / "early.csv", {"time": "t", "label_time": "l"}
    source.write_text(text)
    message = r"line 3: column 'l' holds '2024-01-02', which is earlier than the time of the row "
    with pytest.raises(InvalidInput, match=message + r"\('2024-01-03' in 't'\); correct it"):
        list(TableStream(source, "y", **given).batches())
    stream = TableStream(source, "y", **given, bad_rows="skip")
    assert [batch.targets.tolist() for batch in stream.batches()] == [["a", "a"]]
    assert stream.skipped == 1
    arrays = [[1.0], [1.0]], ["a", "b"], [1.0, 3.0]
    with pytest.raises(InvalidInput, match=r"label_times\[1\] is 2, which is earlier than times"):
        ArrayStream(*arrays, label_times=[1.0, 2.0])
    assert ArrayStream(*arrays, label_times=[1.0, 3.0]).label_timed


def test_a_learner_waits_for_as_many_rows_as_labels_are_late(tmp_path: Path) -> None:
    stream = open_stream(Options(source="weather"))
    assert make_learner(Options(source="weather", delay=200_000), stream).max_waiting == 200_001
    assert make_learner(Options(source="weather", max_waiting=7), stream).max_waiting == 7


def call_cli() -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert not stopped.value.code


def test_live_predictions_on_standard_output(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json_lines(events())))
    command = "run - --target y --task classification --id order --live --features raw --out"
    monkeypatch.setattr(sys, "argv", ["kalstream", *command.split(), str(tmp_path / "run")])
    call_cli()
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["id"] for line in lines] == [row["order"] for row in rows()]
    assert lines[0] == {"row": 0, "id": "o0", "prediction": None, "probabilities": {}}
    assert set(lines[-1]["probabilities"]) == {"up", "down"}
    assert "labels of 160 rows learned, 12 rows still wait" in err
    assert "148 labels" in err
    assert "after the last row" not in err
    assert "report" in err
    monkeypatch.setattr(sys, "argv", ["kalstream", "describe", str(tmp_path / "run")])
    call_cli()
    assert "KalmanClassifier" in capsys.readouterr().out  # the console prints to it again


def live(*arguments: str, cwd: Path, **how: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kalstream", "run", *arguments]
    command += ["--target", "y", "--features", "raw", "--live"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=environment, **pipes, **how)


def test_a_prediction_comes_before_the_next_row(tmp_path: Path) -> None:
    process = live("-", "--task", "classification", cwd=tmp_path, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for k in range(5):
        print(json.dumps({"x": k % 2, "y": "ab"[k % 2]}), file=process.stdin, flush=True)
        assert json.loads(process.stdout.readline())["row"] == k  # waits until it is there
    _, err = process.communicate()  # closes the pipe
    assert process.returncode == 0
    assert "5 rows" in err


def test_nobody_reads_the_predictions(tmp_path: Path) -> None:
    source = csv(tmp_path / "ids.csv", ["order", "color", "x", "y"], events() * 1)
    process = live(str(source), "--id", "order", cwd=tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        err = process.stderr.read()
    assert process.wait() == 128 + 13
    assert "Traceback" not in err
    assert "stopped; resume with" in err
