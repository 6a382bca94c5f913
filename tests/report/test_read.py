"""The reader: what is damaged is named, what a killed run leaves is read."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kalstream.errors import InvalidInput
from kalstream.report import make_report, read_run
from report import synthetic


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return synthetic.classification(tmp_path / "run", rows=1000, window=100, drifts=(400,))


def damage(folder: Path, line: int, text: str) -> None:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")


def test_scores_are_found_by_their_path(folder: Path) -> None:
    run = read_run(folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert run.rows == 1000
    assert run.n == 1000
    assert run.baselines == ("no_change", "majority")
    assert run.total("accuracy") == lines[-1]["total"]["accuracy"]
    want = [line["baselines"]["no_change"]["window"]["accuracy"] for line in lines[:-1]]
    np.testing.assert_array_equal(run.column("no_change.window.accuracy"), want)
    assert np.isnan(run.column("window.no such score")).all()
    assert math.isnan(run.total("no such score"))


def test_infinite_half_life_and_absent_scores(tmp_path: Path) -> None:
    run = read_run(
        synthetic.classification(
            tmp_path, rows=300, window=100, half_life="fixed", probabilities=False
        )
    )
    assert run.windows[0].half_life is not None
    assert run.windows[0].half_life.half_lives == [math.inf]
    assert math.isnan(run.total("log_loss"))
    assert run.windows[0].reliability is None


def test_totals_of_a_killed_run_are_those_of_its_last_window(folder: Path) -> None:
    synthetic.change_lines(folder, lambda lines: lines[:-1])
    run = read_run(folder)
    assert run.end is None
    assert not run.cut
    assert run.total("accuracy") == run.windows[-1].scores["total.accuracy"]


@pytest.mark.parametrize("kept", [1, 40, -3])
def test_an_incomplete_last_line_is_left_out(folder: Path, kept: int) -> None:
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5].rstrip()[:kept])
    run = read_run(folder)
    assert run.cut
    assert len(run.windows) == 5
    assert "cut off" in make_report(folder)


def test_a_last_line_cut_inside_a_character(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]) + b'{"kind": "\xc3')
    assert read_run(folder).cut


def test_a_complete_last_line_without_newline_counts(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().rstrip())
    run = read_run(folder)
    assert run.end is not None
    assert not run.cut


def test_a_run_that_was_resumed_goes_on_after_its_end_line(folder: Path) -> None:
    def resumed(lines: list[Any]) -> list[Any]:
        stop = lines[-1] | {"reason": "interrupted", "row": 500}
        return [*lines[:5], stop, *lines[5:]]

    synthetic.change_lines(folder, resumed)
    run = read_run(folder)
    assert len(run.windows) == 10
    assert run.end is not None
    assert run.end.reason == "end"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "JSON object"),
        ('{"kind": "windw"}', "windw"),
        ('{"kind": "window"}', "row"),
        ('{"kind": "window", "row": "x", "n": 1, "window": {}, "total": {}}', "row"),
        ('{"kind": "window", "row": 1, "n": 1, "window": {"accuracy": NaN}, "total": {}}', "NaN"),
        (
            '{"kind": "window", "row": 1, "n": 1, "window": {"accuracy": "a"}, "total": {}}',
            "accuracy",
        ),
        ('{"kind": "window", "row": 1, "n": 1, "window": {}, "total": {}, "confusion": [[0]]}', ""),
        ('{"kind": "window", "row": 1, "n": 1, "window": [], "total": {}}', ""),
        (
            '{"kind": "window", "row": 1, "n": 1, "window": {}, "total": {}, '
            '"half_life": {"half_lives": [1], "weights": [1, 2]}}',
            "half_life: value error, has 1 half-lives and 2 weights",
        ),
        (
            '{"kind": "window", "row": 1, "n": 1, "window": {}, "total": {}, '
            '"reliability": {"count": [1], "confidence": [1, 2], "right": [1]}}',
            "lengths",
        ),
        ('{"kind": "end", "total": 3}', "total"),
        ('{"kind": "window", "row": 1, "n": 1, "window": {}, "total": {"rmse": "inf"}}', "rmse"),
        ('{"kind": "window", "row": 1, "n": 1, "window": {}, "total": {"rmse": 1e999}}', "rmse"),
        (
            '{"kind": "end", "total": {"rmse": -1e301}}',
            "total.rmse: input should be greater than",
        ),
    ],
)
def test_a_damaged_line_is_named(folder: Path, text: str, reason: str) -> None:
    damage(folder, 4, text)
    with pytest.raises(InvalidInput, match="line 4") as caught:
        read_run(folder)
    assert "metrics.jsonl" in str(caught.value)
    assert reason in str(caught.value)


def test_rows_that_go_back_are_an_error(folder: Path) -> None:
    synthetic.change_lines(folder, lambda lines: [lines[1], lines[0], *lines[2:]])
    with pytest.raises(InvalidInput, match="line 2"):
        read_run(folder)


def test_missing_and_empty_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such folder"):
        read_run(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="not a folder"):
        read_run(folder / "config.json")
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl.*nothing to report"):
        read_run(folder)
    (folder / "metrics.jsonl").write_text(
        '{"kind": "end", "reason": "error", "message": "no rows"}\n'
    )
    with pytest.raises(InvalidInput, match="no rows"):
        read_run(folder)
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl.*no such file"):
        read_run(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InvalidInput, match=r"config\.json"):
        read_run(folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is damaged"),
        ("[]", "has no format"),
        ("{}", "has no format"),
        ('{"format": 9}', "has format 9; this version of kalstream reads formats up to"),
    ],
)
def test_a_configuration_that_is_none(folder: Path, text: str, reason: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"config\.json") as caught:
        read_run(folder)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("stream", 3, "stream: input should be"),
        ("stream", {"task": "clustering"}, "got clustering"),
        ("protocol", {"cost": "2"}, "protocol.cost: input should be a valid number, got 2"),
        ("protocol", {"delay": -1}, "protocol.delay: input should be greater"),
    ],
)
def test_a_damaged_configuration(folder: Path, part: str, change: Any, reason: str) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config[part] = config[part] | change if isinstance(change, dict) else change
    path.write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match=r"config\.json is damaged") as caught:
        read_run(folder)
    assert reason in str(caught.value)
    assert "restore it from a copy" in str(caught.value)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(folder: Path) -> None:
    (folder / "metrics.jsonl").chmod(0)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_run(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    key=st.sampled_from(
        [
            "row",
            "n",
            "window",
            "total",
            "baselines",
            "half_life",
            "drift",
            "new_classes",
            "confusion",
            "reliability",
            "missing",
            "clock",
            "kind",
        ]
    ),
    value=JSON,
    end=st.booleans(),
)
def test_any_value_is_read_or_refused(folder: Path, key: str, value: Any, end: bool) -> None:
    """Whatever stands in a field, there is a report or an InvalidInput, and no other error."""
    path = folder / "metrics.jsonl"
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    lines[-1 if end else 4][key] = value
    try:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        page = make_report(folder)
        assert ">nan<" not in page.lower()
    except InvalidInput:
        pass
    finally:
        path.write_text(text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    path=st.sampled_from(
        [
            "stream",
            "stream.name",
            "stream.target",
            "stream.columns",
            "stream.fingerprint",
            "stream.attribution",
            "learner",
            "learner.name",
            "learner.params",
            "protocol",
            "machine",
            "command",
            "version",
        ]
    ),
    value=JSON,
)
def test_any_configuration_is_read_or_refused(folder: Path, path: str, value: Any) -> None:
    file = folder / "config.json"
    text = file.read_text()
    content = json.loads(text)
    *outer, last = path.split(".")
    (content[outer[0]] if outer else content)[last] = value
    try:
        file.write_text(json.dumps(content))
        make_report(folder)
    except InvalidInput:
        pass
    finally:
        file.write_text(text)


@pytest.mark.parametrize(
    "change",
    [
        {"total": {"accuracy": "much"}},
        {"clock": {"seconds": []}},
        {"baselines": {"no_change": 3}},
        {"baselines": {"no_change": {"accuracy": "x"}}},
        {"classes": "abc"},
    ],
)
def test_a_damaged_end_line_is_named(folder: Path, change: dict[str, Any]) -> None:
    synthetic.change_lines(folder, lambda lines: [*lines[:-1], lines[-1] | change])
    with pytest.raises(InvalidInput, match="line 11"):
        read_run(folder)
