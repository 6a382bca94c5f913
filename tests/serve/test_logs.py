"""What a service logs, as JSON lines on standard error."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from kalstream.runs.options import Options
from kalstream.serve.app import make_app
from kalstream.serve.logs import Level, begin_logging
from kalstream.serve.service import Service
from kalstream.serve.store import StoreError
from serve_rows import rows

LOGGERS = [
    logging.getLogger(name) for name in ("kalstream.serve", "kalstream.serve.access", "uvicorn")
]


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    before = [(each.handlers, each.level, each.propagate) for each in LOGGERS]
    yield
    for each, (handlers, level, propagate) in zip(LOGGERS, before, strict=True):
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


@pytest.mark.parametrize("level", ["events", "requests"])
def test_events_and_requests(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    level: Level,
) -> None:
    begin_logging(level)
    service = Service(tmp_path / "data")
    service.start()
    service.begin("default", Options(features="raw"))
    client = TestClient(make_app(service), base_url="http://localhost")
    learn = "/models/default/learn"
    client.post(learn, json={"rows": rows(20)})
    client.post(learn, json={"row": {"x": "secret"}, "label": "yes"})
    client.get("/health", headers={"host": "evil\n.example"})

    def full(entries: Any) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(service.store, "append", full)
    client.post(learn, json=rows(1)[0])
    service.stop()
    logging.getLogger("uvicorn.error").error("a message of %s", "uvicorn")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all(line["time"].endswith("Z") for line in lines)
    shown = [(line["level"], line["event"], line.get("status")) for line in lines]
    assert shown == [
        ("info", "start", None),
        *([("info", "request", 200)] if level == "requests" else []),
        ("warning", "request", 422),
        ("warning", "request", 421),
        ("error", "store_failed", None),
        ("error", "request", 503),
        ("info", "checkpoint", None),
        ("info", "stop", None),
        ("error", "message", None),
    ]
    refused = next(line for line in lines if line.get("status") == 422)
    assert refused.pop("ms") > 0.0
    assert (refused["method"], refused["path"], refused["model"]) == ("POST", learn, "default")
    assert "secret" not in json.dumps(lines)  # what clients send stays out
    assert lines[-3]["rows"] == 20
    assert lines[-1]["message"] == "a message of uvicorn"


def test_a_model_that_fails_has_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_logging("events")
    service = Service(tmp_path / "data")
    service.start()
    service.begin("default", Options(features="raw"))

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(service.models["default"], "learn", broken)
    client = TestClient(make_app(service), base_url="http://localhost")
    assert client.post("/models/default/learn", json=rows(1)[0]).status_code == 503
    service.stop()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (failed,) = (line for line in lines if line["event"] == "model_failed")
    assert failed["model"] == "default"
    assert "ZeroDivisionError: a bug" in failed["traceback"]
