"""`kalstream send`: a file becomes what a program would have sent."""

import sys
from pathlib import Path
from typing import Any

import pytest

from kalstream import cli
from kalstream.client import Client
from kalstream.runs.options import Options
from serve.running import running
from serve_rows import rows

N = 130
EVENTS = rows(N)
HEADER = "x,color,ok,empty,y"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    lines = [
        f"{e['row']['x']},{e['row']['color']},{'true' if k % 3 else 'false'},,{e['label']}"
        for k, e in enumerate(EVENTS)
    ]
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kalstream", "send", *map(str, arguments)])
        status: Any = 0
        try:
            cli.main()
        except SystemExit as stopped:
            status = stopped.code or 0
        return status, *capsys.readouterr()

    return call


def test_a_file_is_learned_as_if_a_program_sent_it(send: Any, source: Path, tmp_path: Path) -> None:
    with running(tmp_path / "data") as url, Client(url) as client:
        status, out, err = send(source, "--target", "y", "--to", url, "--batch", 50)
        assert (status, err) == (0, "")
        assert f"data: {N} rows in " in out
        assert f"labels: {N} learned" in out
        sent = client.metrics()
        again = send(source, "--target", "y", "--to", url)[1]  # the same ids
        assert f"labels: {N} repeated" in again
        assert client.metrics()["scored"] == sent["scored"]
        probe = client.predict(EVENTS[0]["row"] | {"ok": True})
    with running(tmp_path / "other") as url, Client(url) as client:
        whole = [e["row"] | {"ok": bool(k % 3), "empty": None} for k, e in enumerate(EVENTS)]
        for k in range(0, N, 50):
            labels = [e["label"] for e in EVENTS[k : k + 50]]
            client.learn(whole[k : k + 50], labels)
        assert client.metrics()["total"] == sent["total"]
        assert client.predict(EVENTS[0]["row"] | {"ok": True}) == probe


def test_labels_come_late(send: Any, source: Path, tmp_path: Path) -> None:
    with running(tmp_path / "data") as url, Client(url) as client:
        out = send(source, "--target", "y", "--to", url, "--delay", 30, "--limit", 100)[1]
        assert "100 rows in " in out
        assert "labels: 100 learned" in out
        made = client.metrics()
        counts = made["waiting"]
        assert (counts["told"], counts["asked"], made["rows"]) == (100, 100, 200)
        assert counts["waiting"] == 0


def test_rows_without_labels_are_only_predicted(send: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"x": 1, "y": 2.5}\n{"x": 2, "y": null}\n{"x": 3, "y": 3.5}\n', encoding="utf-8"
    )
    options = Options(features="raw", task="regression")
    with running(tmp_path / "data", options) as url, Client(url) as client:
        given = ("--target", "y", "--task", "regression", "--to", url)
        out = send(tmp_path / "a.jsonl", *given)[1]
        assert "a: 3 rows" in out
        assert "labels: 2 learned" in out
        assert client.metrics()["rows"] == 2


def test_what_cannot_be_sent(send: Any, source: Path, tmp_path: Path) -> None:
    assert "give a number of rows" in send(source, "--target", "y", "--delay", "3d")[2]
    given = ("--target", "y", "--to", "http://127.0.0.1:9", "--patience", "0.1")
    status, _, err = send(source, *given)
    assert status == 1
    assert "http://127.0.0.1:9 does not answer" in err
    bad = tmp_path / "bad.csv"
    bad.write_text("x,y\n" + "1,a\n" * 60 + "many,a\n", encoding="utf-8")
    with running(tmp_path / "data") as url, Client(url) as client:
        status, _, err = send(bad, "--target", "y", "--to", url, "--batch", 10)
        assert (status, "line 62" in err, "many" in err) == (1, True, True)
        assert client.metrics()["rows"] == 60


def test_of_a_file_that_grew_only_new_rows_are_learned(send: Any, tmp_path: Path) -> None:
    lines = [f'{{"x": {k}, "y": "{"ab"[k % 2]}"}}\n' for k in range(30)]
    path = tmp_path / "grows.jsonl"
    with running(tmp_path / "data") as url:
        for n, learned in ((20, "20 learned"), (30, "20 repeated, 10 learned")):
            path.write_text("".join(lines[:n]), encoding="utf-8")
            assert f"labels: {learned}" in send(path, "--target", "y", "--to", url)[1]
