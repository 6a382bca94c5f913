"""The clients of the service: what they send, and what they send again."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from kalstream import client as module
from kalstream.client import AsyncClient, Client, ServiceError
from kalstream.errors import InvalidInput
from kalstream.runs.options import Options
from kalstream.serve.app import make_app
from kalstream.serve.service import Service
from kalstream.serve.tokens import Tokens, make_token
from serve.running import running
from serve_rows import rows

EVENTS = rows(60)
ROWS, LABELS = [each["row"] for each in EVENTS], [each["label"] for each in EVENTS]


class Losing(httpx2.HTTPTransport):
    """Every second answer is lost after the service has acted."""

    n = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = super().handle_request(request)
        self.n += 1
        if self.n % 2:
            answer.close()
            raise httpx2.ReadError("the connection was reset")
        return answer


class LosingAsync(httpx2.AsyncHTTPTransport):
    n = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await super().handle_async_request(request)
        self.n += 1
        if self.n % 2:
            await answer.aclose()
            raise httpx2.ReadError("the connection was reset")
        return answer


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "data")
    made.start()
    made.begin("default", Options(features="raw"))
    yield made
    made.stop()


def scripted(*answers: Any, **settings: Any) -> tuple[Client, list[httpx2.Request]]:
    """A client that gets these answers one after the other, and the requests it sends."""
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        made = answers[len(sent) - 1]
        if isinstance(made, Exception):
            raise made
        return made

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    return Client(http=http, **settings), sent


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(module.time, "sleep", made.append)
    return made


def test_every_call_against_the_app(service: Service, tmp_path: Path) -> None:
    token = make_token(tmp_path, "me", ["read", "predict", "learn", "admin"])
    app = make_app(service, tokens=Tokens.read(tmp_path))
    with Client("http://localhost", token=token, http=TestClient(app)) as client:
        assert client.learn(ROWS[0], LABELS[0])["status"] == "learned"
        made = client.learn(ROWS[1:], LABELS[1:])
        assert [each["status"] for each in made] == ["learned"] * 59
        assert client.predict(ROWS[0])["prediction"] in ("yes", "no")
        assert len(client.predict(ROWS[:3])) == 3
        assert client.predict(ROWS[0], "a")["status"] == "waits"
        assert client.predict(ROWS[:2], ["b", 7])[1]["status"] == "waits"
        assert client.label("a", "yes")["status"] == "learned"
        made = client.label(["b", 7, "c"], ["yes", "no", "no"])
        assert [each["status"] for each in made] == ["learned", "learned", "unknown"]
        assert client.metrics()["waiting"]["told"] == 63
        assert client.drift()["events"] == []
        assert client.snapshot()["model"] == "default"
    other = Client("http://localhost/", model="other", token=token, http=TestClient(app))
    assert other.make(task="regression") == {"model": "other"}
    other.learn({"x": np.float64(1.5), "n": np.int64(2), "gap": float("nan")}, np.float32(2.0))
    assert [each["name"] for each in other.models()] == ["default", "other"]
    assert other.remove() == {"removed": "other"}
    with pytest.raises(ServiceError, match="no model is called 'other'") as caught:
        other.predict({"x": 1.0})
    assert caught.value.status == 404
    with pytest.raises(ServiceError, match="send a token"):
        Client("http://localhost", http=TestClient(app)).models()


def test_lost_answers_count_once(tmp_path: Path) -> None:
    with running(tmp_path / "data") as url:
        with Client(url, http=httpx2.Client(transport=Losing())) as client:
            for k in range(10):
                client.learn(ROWS[k], LABELS[k])
            client.predict(ROWS[10:20], list(range(10)))
            client.label(list(range(10)), LABELS[10:20])
            made = client.metrics()
        assert (made["waiting"]["asked"], made["waiting"]["told"]) == (20, 20)

        async def at_once() -> Any:
            async with AsyncClient(url, http=httpx2.AsyncClient(transport=LosingAsync())) as many:
                calls = [many.learn(ROWS[k], LABELS[k]) for k in range(20, 40)]
                await asyncio.gather(*calls)
                return await many.metrics()

        assert asyncio.run(at_once())["waiting"]["told"] == 40


def test_a_busy_service_is_asked_again_when_it_says(slept: list[float]) -> None:
    busy = httpx2.Response(429, json={"error": "later"}, headers={"retry-after": "2"})
    gone = httpx2.Response(503, json={"error": "stopping"})
    ok = httpx2.Response(200, json={"status": "learned"})
    client, sent = scripted(busy, gone, httpx2.ConnectError("refused"), ok)
    assert client.learn({"x": 1.0}, "yes")["status"] == "learned"
    assert slept[0] == 0.0
    assert slept[1] == 2.0
    assert 0.1 <= slept[2] <= 0.2 <= slept[3] <= 0.4
    assert len({request.content for request in sent}) == 1  # the same id
    assert b'"id"' in sent[0].content


def test_what_is_not_sent_again(slept: list[float]) -> None:
    bad = httpx2.Response(422, json={"error": "no label"})
    with pytest.raises(ServiceError, match="no label") as caught:
        scripted(bad)[0].learn({"x": 1.0}, "yes")
    assert caught.value.status == 422
    with pytest.raises(ServiceError, match=r"sent no JSON .502.; check"):
        scripted(httpx2.Response(502, text="<html>"))[0].models()
    with pytest.raises(ServiceError, match=r"sent no JSON .200.; check"):
        scripted(httpx2.Response(200, text="<html>"))[0].models()
    with pytest.raises(ServiceError, match="does not answer"):  # it may have made the model
        scripted(httpx2.ReadError("reset"))[0].make()
    client, sent = scripted(httpx2.ConnectError("no"), httpx2.Response(201, json={"model": "m"}))
    assert client.make() == {"model": "m"}
    assert len(sent) == 2


def test_patience_ends() -> None:
    late = httpx2.Response(429, json={"error": "9 rows wait"}, headers={"retry-after": "60"})
    with pytest.raises(ServiceError, match="9 rows wait"):
        scripted(late)[0].models()
    with pytest.raises(ServiceError, match=r"http://127.0.0.1:9 does not answer .*start"):
        Client("http://127.0.0.1:9", patience=0.2).models()


def test_what_cannot_be_sent() -> None:
    with pytest.raises(InvalidInput, match="http://localhost:8000"):
        Client("localhost:8000")
    with pytest.raises(InvalidInput, match="differ in length"):
        Client().learn([{"x": 1}, {"x": 2}], ["yes"])
