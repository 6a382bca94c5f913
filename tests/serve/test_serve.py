"""The service over HTTP: what it learns, what it refuses, and what is there after a restart."""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from kalstream.errors import InUse, InvalidInput, InvalidOption
from kalstream.runs import open_run
from kalstream.runs.options import Options
from kalstream.serve.app import Limits, make_app
from kalstream.serve.events import read_body
from kalstream.serve.gate import needed
from kalstream.serve.served import Served
from kalstream.serve.service import Service
from kalstream.serve.store import Entry, Store, StoreError
from kalstream.serve.tokens import RIGHTS, Tokens, make_token
from serve_rows import rows

RAW = Options(features="raw")
Start = Callable[..., tuple[Service, TestClient]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a service in the same folder, again and again."""
    services: list[Service] = []

    def begin(options: Options = RAW, **settings: Any) -> tuple[Service, TestClient]:
        if services:
            services[-1].stop()
        of_app = {
            key: settings.pop(key) for key in ("tokens", "hosts", "limits") if key in settings
        }
        service = Service(tmp_path / "data", **settings)
        services.append(service)
        service.start()
        service.begin("default", options)
        client = TestClient(make_app(service, **of_app), base_url="http://localhost")
        return service, client

    yield begin
    services[-1].stop()


def learn(client: TestClient, body: Any, status: int = 200, model: str = "default") -> Any:
    answer = client.post(f"/models/{model}/learn", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def predict(client: TestClient, body: Any, status: int = 200, model: str = "default") -> Any:
    answer = client.post(f"/models/{model}/predict", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_from_nothing_to_a_prediction(start: Start) -> None:
    _, client = start()
    assert predict(client, {"row": {"x": 1.0}}) == {}
    assert learn(client, {"row": {"x": 1.0}, "label": "up"}) == {"status": "learned"}
    empty = learn(client, {"row": {"x": None}, "label": "up"}, 422)
    assert "no value to learn from" in empty["error"]
    learn(
        client,
        {
            "rows": [
                {"row": {"x": (-1.0) ** k}, "label": "up" if k % 2 == 0 else "down"}
                for k in range(40)
            ]
        },
    )
    answer = predict(client, {"row": {"x": 1.0}})
    assert answer["prediction"] == "up"
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0)
    # what was predicted before the label came is in the answer
    assert learn(client, {"row": {"x": -1.0}, "label": "up"})["prediction"] == "down"


def test_a_label_comes_later_and_counts_once(start: Start) -> None:
    service, client = start()
    learn(client, {"rows": rows(50)})
    asked = predict(client, {"row": {"x": 0.3, "color": "red"}, "id": "a"})
    assert asked["status"] == "waits"
    seen = service.models["default"].learner.n_seen_
    assert learn(client, {"id": "a", "label": "yes"})["status"] == "learned"
    assert learn(client, {"id": "a", "label": "yes"})["status"] == "repeated"
    assert learn(client, {"id": "b", "label": "yes"})["status"] == "unknown"
    assert service.models["default"].learner.n_seen_ <= seen + 1
    waiting = client.get("/models/default/metrics").json()["waiting"]
    assert (waiting["told"], waiting["repeated"], waiting["unknown"]) == (1, 1, 1)


def without_status(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "status"}


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_an_id_that_comes_again_gets_its_first_prediction(start: Start, task: str) -> None:
    _, client = start(Options(features="raw", task=task))
    events = rows(60)
    if task == "regression":
        events = [{**each, "label": float(each["label"] == "yes")} for each in events]
    label = events[0]["label"]
    learn(client, {"rows": events[:50]})
    asked = {"row": {"x": 0.3, "color": "red"}, "id": "a"}
    first = predict(client, asked)
    learn(client, {"rows": events[50:]})
    other = {"row": {"x": -2.0, "color": "blue"}, "id": "a"}
    assert without_status(predict(client, {"row": asked["row"]})) != without_status(first)
    assert predict(client, asked) == predict(client, other) == first
    batch = predict(client, {"rows": [other, {**other, "id": "b"}, {**asked, "id": "b"}]})["rows"]
    assert batch[0] == first
    assert batch[1] == batch[2]
    assert batch[1]["status"] == "waits"
    _, client = start(Options())  # a checkpoint has what waits
    assert predict(client, other) == first
    assert learn(client, {"id": "a", "label": label}) == {"status": "learned"}
    assert predict(client, other) == {**first, "status": "repeated"}
    assert learn(client, {**other, "label": label}) == {**first, "status": "repeated"}
    one = {**events[3], "id": "c"}
    made = learn(client, one)
    assert predict(client, {"row": one["row"], "id": "c"}) == {**made, "status": "repeated"}
    _, client = start(Options())  # what was learned before is forgotten, its status is not
    assert predict(client, other) == {"status": "repeated"}


def test_an_id_that_was_given_up_says_so(start: Start) -> None:
    _, client = start(Options(features="raw", max_waiting=1))
    learn(client, {"rows": rows(20)})
    one, two = ({"row": rows(1)[0]["row"], "id": each} for each in "ab")
    assert [predict(client, each)["status"] for each in (one, two, one)] == [
        "waits",
        "waits",
        "expired",
    ]


def test_a_row_sent_twice_with_its_id_and_label_counts_once(start: Start) -> None:
    _, client = start()
    one = {"id": "k", **rows(1)[0]}
    assert [learn(client, one)["status"] for _ in range(2)] == ["learned", "repeated"]
    assert client.get("/models/default/metrics").json()["waiting"]["told"] == 1


def test_regression(start: Start) -> None:
    _, client = start(Options(features="raw", task="regression"))
    body = [{"row": {"x": float(k % 7)}, "label": 2.0 * (k % 7)} for k in range(100)]
    learn(client, {"rows": body})
    made = predict(client, {"rows": [{"row": {"x": 3.0}}, {"row": {"x": 5.0}}]})["rows"]
    assert [each["prediction"] for each in made] == pytest.approx([6.0, 10.0], abs=0.2)
    assert all(each["std"] > 0.0 for each in made)
    learn(client, {"row": {"x": 1.0}, "label": "much"}, 422)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"label": "yes"}, "neither a row nor an id"),
        ({"row": {"x": 1.0}}, "no label to learn"),
        ({"row": {"x": "abc", "color": "red"}, "label": "yes"}, "'abc' is not a number"),
        ({"row": {"y": 1.0}, "label": "yes"}, "none of the columns"),
        ({"row": {"x": [1]}, "label": "yes"}, "cannot be read"),
        ({"row": {"x": 1.0}, "label": 3}, "strings; send one kind"),
        ({"row": {"x": 1.0}, "label": "yes", "more": 1}, "unknown field"),
        ({"rows": [{"row": {"x": 1.0}, "label": "yes"}] * 11}, "at most 10"),
        ([1, 2], "cannot be read"),
        ({"row": {"x": 1e300, "color": "red"}, "label": "yes"}, "beyond 1e+100"),
    ],
)
def test_what_is_refused_teaches_nothing(start: Start, body: Any, words: str) -> None:
    service, client = start(limits=Limits(rows=10))
    for each in rows(30):
        learn(client, each)
    before = service.models["default"].n_rows, predict(client, rows(1)[0] | {"label": None}, 422)
    probe = {"row": {"x": 0.5, "color": "blue"}}
    known = predict(client, probe)
    assert words in learn(client, body, 422)["error"]
    assert (service.models["default"].n_rows, predict(client, probe)) == (before[0], known)


def test_a_first_request_that_is_refused_decides_no_columns(start: Start) -> None:
    _, client = start()
    learn(client, {"row": {"z": 1e300}, "label": "yes"}, 422)
    assert learn(client, {"row": {"x": 1.0}, "label": "yes"}) == {"status": "learned"}
    assert client.get("/models/default").json()["columns"] == {"x": "number"}


@pytest.mark.parametrize("n_good", [1, 6])
def test_what_is_refused_across_windows_teaches_nothing(start: Start, n_good: int) -> None:
    service, client = start(Options(features="raw", window=5))
    learn(client, {"rows": rows(8)})
    predict(client, {"row": rows(1)[0]["row"], "id": "a"})
    bad = {"row": {"x": 1e60, "color": "green"}, "label": "maybe"}
    good = [{**each, "id": f"b{k}"} for k, each in enumerate(rows(n_good))]
    before, waits = client.get("/models/default/metrics").json(), {"id": "a", "label": "no"}
    columns = service.models["default"].encoder
    assert "float64" in learn(client, {"rows": [waits, *good, bad]}, 422)["error"]
    after = client.get("/models/default/metrics").json()
    for name in ("rows", "scored", "total", "waiting", "classes"):
        assert after[name] == before[name], name
    assert service.models["default"].encoder == columns
    assert [each["row"] for each in client.get("/models/default/windows").json()["windows"]] == [5]
    answers = [each["status"] for each in learn(client, {"rows": [waits, *good]})["rows"]]
    assert answers == ["learned"] * (1 + n_good)


def test_categories_of_a_refused_request_are_not_learned(tmp_path: Path) -> None:
    colors = [f"c{k}" for k in range(6)]
    plain, tried = (Served(name, RAW, tmp_path / name) for name in ("plain", "tried"))
    groups = [[{"rows": rows(40)}]]
    for k, color in enumerate(colors):
        groups.append([{"row": {"x": 1e60, "color": color}, "label": "no"}, rows(1, k)[0]])
    for group in groups:
        for served, bodies in ((plain, group[-1:]), (tried, group)):
            requests, encoder = [], served.encoder
            for body in bodies:
                events, _ = read_body(json.dumps(body).encode(), 100)
                requests.append(served.prepare(events, encoder))
                encoder = requests[-1].encoder
            served.learn(requests)
    probes = [{"x": 0.3, "color": color} for color in ("red", *colors)]
    assert tried.n_rows == plain.n_rows == 46
    assert tried.encoder == plain.encoder
    assert tried.predict(probes) == plain.predict(probes)


def test_lists_and_columns_called_rows(start: Start) -> None:
    _, client = start()
    for path in ("learn", "predict", "learn"):
        answer = client.post(f"/models/default/{path}", json={"rows": []})
        assert (answer.status_code, answer.json()) == (200, {"rows": []})
        learn(client, {"row": {"rows": 1.0}, "label": "yes"})


def test_one_bad_request_of_a_group_does_not_harm_the_others(start: Start) -> None:
    service, client = start()
    learn(client, {"rows": rows(40)})
    hold, done = threading.Event(), []
    service.call(hold.wait, lambda _: None)
    bodies = [rows(1, seed=k)[0] for k in range(6)]
    bodies[2]["row"]["x"] = "bad"
    for body in bodies:
        events, _ = read_body(json.dumps(body).encode(), 10)
        service.learn("default", events, done.append)
    hold.set()
    assert client.get("/models/default/metrics").json()["rows"] == 45
    assert [isinstance(each, InvalidInput) for each in done] == [k == 2 for k in range(6)]


def test_after_a_restart_the_model_is_the_same_bit_for_bit(start: Start, tmp_path: Path) -> None:
    events = rows(1300)
    service, client = start(keep_log=True)
    for k in range(0, 1200, 60):
        learn(client, {"rows": events[k : k + 60]})
    predict(client, {**{"row": events[-1]["row"]}, "id": "late"})
    client.post("/models/default/snapshot", json={})
    learn(client, {"rows": events[1200:1250]})
    probe = {"rows": [{"row": each["row"]} for each in events[:20]]}
    known = predict(client, probe)
    metrics = client.get("/models/default/metrics").json()
    # As after a kill: nothing is written when it ends, the log has what came after the snapshot.
    service.stop, stop = lambda: None, service.stop  # type: ignore[method-assign]
    copy = tmp_path / "copy"
    with sqlite3.connect(tmp_path / "data" / "service.sqlite") as db:
        copy.mkdir()
        db.execute("VACUUM INTO ?", (str(copy / "service.sqlite"),))
    import shutil

    shutil.copytree(tmp_path / "data" / "models", copy / "models")
    for folder in (copy, None):  # with the checkpoint, and from the log alone
        if folder is None:
            shutil.rmtree(copy / "models")
        again = Service(copy, keep_log=True)
        again.start()
        other = TestClient(make_app(again), base_url="http://localhost")
        assert predict(other, probe) == known
        now = other.get("/models/default/metrics").json()
        for name in ("rows", "scored", "total", "baselines", "waiting"):
            assert now[name] == metrics[name], name
        assert learn(other, {"id": "late", "label": "yes"})["status"] == "learned"
        again._checkpoint = lambda served: None  # type: ignore[method-assign,assignment]
        again.stop()
        shutil.rmtree(copy / "models", ignore_errors=True)
        with sqlite3.connect(copy / "service.sqlite") as db:
            db.execute("DELETE FROM entries WHERE number = (SELECT max(number) FROM entries)")
        if folder is not None:
            shutil.copytree(tmp_path / "data" / "models", copy / "models")
    service.stop = stop  # type: ignore[method-assign]


def test_the_log_is_cut_behind_a_checkpoint_which_predict_can_read(
    start: Start, tmp_path: Path
) -> None:
    service, client = start()
    events = rows(80)
    learn(client, {"rows": events})
    assert len(list(service.store.entries("default"))) == 1
    client.post("/models/default/snapshot", json={})
    assert list(service.store.entries("default")) == []
    run = open_run(tmp_path / "data" / "models" / "default")
    here = predict(client, {"row": events[0]["row"]})["prediction"]
    assert run.predict([events[0]["row"]]).tolist() == [here]


def test_it_goes_on_with_the_model_of_a_run(start: Start, tmp_path: Path) -> None:
    from kalstream.runs import Run

    lines = [f"{e['row']['x']},{e['row']['color']},{e['label']}" for e in rows(400)]
    (tmp_path / "s.csv").write_text("\n".join(["x,color,y", *lines]) + "\n")
    Run(tmp_path / "run", Options(source=str(tmp_path / "s.csv"), target="y")).go()
    service, client = start(Options(origin=str(tmp_path / "run")))
    probe = {"x": 1.5, "color": "red"}
    want = open_run(tmp_path / "run").predict_proba([probe])[0].max()
    answer = predict(client, {"row": probe})
    assert max(answer["probabilities"].values()) == pytest.approx(want)
    learn(client, {"rows": rows(20, seed=5)})
    service, client = start(Options(origin=str(tmp_path / "run")))
    assert service.models["default"].n_rows == 20


def test_the_document_says_what_is_answered(start: Start) -> None:
    _, client = start()
    document = client.get("/openapi.json").json()
    assert "oneOf" not in json.dumps(document)  # {"rows": []} is one answer and several
    for method, path, media in (
        ("get", "/metrics", "text/plain"),
        ("post", "/models/{name}/stream", "application/x-ndjson"),
        ("get", "/models/{name}", "application/json"),
    ):
        responses = document["paths"][path][method]["responses"]
        assert list(responses["200"]["content"]) == [media]
        assert {"401", "403", "421"} < responses.keys()
        answer = client.request(
            method, path.format(name="default"), headers={"content-type": media}
        )
        assert answer.headers["content-type"].startswith(media)


def test_models_come_and_go(start: Start) -> None:
    _, client = start()
    assert client.put("/models/other", json={"task": "regression"}).status_code == 201
    assert client.put("/models/other", json={}).status_code == 422
    assert client.put("/models/bad name", json={}).status_code == 422
    assert client.put("/models/c", json={"delay": "3"}).status_code == 422
    assert client.put("/models/c", json={"origin": "/etc"}).status_code == 422
    assert client.put("/models/c", json={"cls": 1}).status_code == 422
    names = [each["name"] for each in client.get("/models").json()["models"]]
    assert names == ["default", "other"]
    assert client.delete("/models/other").status_code == 200
    predict(client, {"row": {"x": 1.0}}, 404, "other")


def test_a_stream_of_lines_is_answered_line_by_line(start: Start) -> None:
    _, client = start()
    lines = [json.dumps(each) for each in rows(30)] + ['{"row": {"x": 1.0}, "id": "z"}']
    answer = client.post(
        "/models/default/stream",
        content="\n".join(lines),
        headers={"content-type": "application/x-ndjson"},
    )
    made = [json.loads(line) for line in answer.text.splitlines()]
    assert [each["status"] for each in made] == ["learned"] * 30 + ["waits"]
    before = client.get("/models/default").json()["rows"]
    refused = {
        "{": "read",
        '{"rows": []}': "read",
        '{"label": "yes"}': "neither",
        '{"id": 1}': "no row",
    }
    for line, words in refused.items():
        bad = client.post(
            "/models/default/stream", content=line, headers={"content-type": "application/x-ndjson"}
        )
        assert words in json.loads(bad.text)["error"]
    assert client.get("/models/default").json()["rows"] == before


@pytest.mark.parametrize("right", [None, *RIGHTS])
def test_every_endpoint_with_every_token(start: Start, tmp_path: Path, right: str | None) -> None:
    token = make_token(tmp_path, "me", ["read"] if right is None else [right])
    _, client = start(tokens=Tokens.read(tmp_path))
    if right is not None:
        client.headers["authorization"] = f"Bearer {token}"
    body = {"row": {"x": 1.0}, "label": "up"}
    calls = {
        ("GET", "/models"): None,
        ("GET", "/models/default"): None,
        ("GET", "/models/default/metrics"): None,
        ("GET", "/models/default/windows"): None,
        ("GET", "/models/default/drift"): None,
        ("GET", "/metrics"): None,
        ("GET", "/openapi.json"): None,
        ("POST", "/models/default/predict"): {"row": {"x": 1.0}},
        ("POST", "/models/default/learn"): body,
        ("POST", "/models/default/stream"): {"row": {"x": 1.0}},
        ("POST", "/models/default/snapshot"): None,
        ("PUT", "/models/new"): {},
        ("DELETE", "/models/new"): None,
        ("PUT", "/models/learn"): {},  # a name gives no rights
        ("DELETE", "/models/learn"): None,
        ("GET", "/health"): None,
        ("GET", "/ready"): None,
        ("GET", "/"): None,
    }
    for (method, path), content in calls.items():
        status = client.request(method, path, json=content).status_code
        needs = needed(method, path)
        if not needs or needs == (right,):
            assert status < 500, (method, path, status)
            assert status not in (401, 403), (method, path, status)
        else:
            assert status == (401 if right is None else 403), (method, path, status)


def test_pages_and_names_of_others_are_refused(start: Start) -> None:
    service, client = start(hosts=("models.example",), limits=Limits(bytes=1000))
    body = {"row": {"x": 1.0}, "label": "up"}

    def status(**headers: str) -> int:
        headers = {key.replace("_", "-"): value for key, value in headers.items()}
        return client.post("/models/default/learn", json=body, headers=headers).status_code

    assert status(host="evil.example") == 421
    assert status(origin="http://evil.example") == 403
    assert status(origin="null") == 403
    assert status(content_type="text/plain") == 415
    assert service.models["default"].n_rows == 0
    assert status(origin="http://localhost") == 200
    assert status(host="models.example:80", origin="https://models.example:80") == 200
    long = {"row": {"x": 1.0, "text": "a" * 2000}, "label": "up"}
    assert client.post("/models/default/learn", json=long).status_code == 413
    assert client.put("/models/stream", json=long).status_code == 413


def test_more_rows_than_the_queue_takes_are_refused(start: Start) -> None:
    service, client = start(most_queued=50)
    hold = threading.Event()
    service.call(hold.wait, lambda _: None)
    answer = client.post("/models/default/learn", json={"rows": rows(51)})
    hold.set()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    learn(client, {"rows": rows(50)})


def test_a_log_that_cannot_be_written_refuses_rows(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, client = start()
    learn(client, {"rows": rows(20)})

    def full(entries: Any) -> None:
        raise StoreError("database or disk is full")

    monkeypatch.setattr(service.store, "append", full)
    answer = client.post("/models/default/learn", json=rows(1)[0])
    assert (answer.status_code, service.models["default"].n_rows) == (503, 20)
    assert predict(client, {"row": rows(1)[0]["row"]})["prediction"]
    monkeypatch.undo()
    learn(client, rows(1)[0])


def test_a_full_disk_refuses_rows_until_there_is_space(start: Start) -> None:
    service, client = start()
    learn(client, {"rows": rows(20)})
    (pages,) = service.store._db.execute("PRAGMA page_count").fetchone()
    service.store._db.execute(f"PRAGMA max_page_count = {pages + 1}")  # SQLite's error is the same
    long = {"row": {"x": 1.0, "color": "a" * 50_000}, "label": "yes"}
    answer = client.post("/models/default/learn", json=long)
    assert (answer.status_code, service.models["default"].n_rows) == (503, 20)
    assert "full" in answer.json()["error"]
    service.store._db.execute("PRAGMA max_page_count = 1000000")
    learn(client, long)


def test_a_clock_that_goes_back_changes_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    _, client = start(checkpoint_every=0.0)
    learn(client, {"rows": rows(20)})
    now -= 86_400.0
    learn(client, {"rows": rows(20)})
    assert client.post("/models/default/snapshot").json()["rows"] == 40
    assert client.get("/metrics").status_code == 200
    _, client = start()
    assert client.get("/models/default/metrics").json()["rows"] == 40


def test_a_damaged_or_locked_log_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "service.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match="restore"):
        Store(path)
    path.unlink()
    whole = Store(path)
    whole.add_model("a", "{}")
    entries = [Entry("a", k, rng.bytes(500)) for k in range(50)]
    whole.append(entries)
    whole.close()
    content, n_found = path.read_bytes(), 0
    for _ in range(100):  # a bit of the file changes: the log is the same, or refused
        at = int(rng.integers(len(content)))
        path.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
        try:
            damaged = Store(path)
            assert list(damaged.entries("a")) == entries
            damaged.close()
        except StoreError:
            n_found += 1
    assert n_found > 30
    other = Store(tmp_path / "other.sqlite")
    lock = sqlite3.connect(tmp_path / "other.sqlite", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    other._db.execute("PRAGMA busy_timeout = 1")
    with pytest.raises(StoreError, match="locked"):
        other.add_model("a", "{}")
    lock.close()
    other.add_model("a", "{}")
    assert other.models() == {"a": "{}"}
    other.close()


def test_one_folder_has_one_service(start: Start, tmp_path: Path) -> None:
    start()
    with pytest.raises(InUse, match="stop the other service"):
        Service(tmp_path / "data")


def test_times_that_go_back_are_refused(start: Start) -> None:
    with pytest.raises(InvalidOption, match="--time-unit"):
        start(Options(time="at"))


def test_with_times(start: Start) -> None:
    _, client = start(Options(features="raw", time="at", time_unit="1"))
    for k, each in enumerate(rows(30)):
        learn(client, {"row": {**each["row"], "at": 10 + k}, "label": each["label"]})
    early = {"row": {**rows(1)[0]["row"], "at": 3}, "label": "yes"}
    assert "decreases" in learn(client, early, 422)["error"]
    assert predict(client, {"row": {**rows(1)[0]["row"], "at": 50}})["prediction"]


def test_tokens_are_hashed_and_replaced(tmp_path: Path) -> None:
    first, second = (make_token(tmp_path, "a", ["read"]) for _ in range(2))
    tokens = Tokens.read(tmp_path)
    assert (tokens.of(first), tokens.of(second)) == (frozenset(), {"read"})
    assert second not in (tmp_path / "tokens.json").read_text()
    make_token(tmp_path, "a", [])
    assert Tokens.read(tmp_path).rights == {}
    with pytest.raises(InvalidInput, match="'write' is no right"):
        make_token(tmp_path, "a", ["write"])


def test_random_bodies_never_break_it(start: Start) -> None:
    service, client = start()
    learn(client, {"rows": rows(20)})
    rng = np.random.default_rng(3)
    good = json.dumps({"rows": [*rows(2), {"id": "a", "label": "no"}]}).encode()
    for _ in range(300):
        body = bytearray(good)
        for _ in range(int(rng.integers(1, 6))):
            at = int(rng.integers(len(body)))
            body[at : at + int(rng.integers(3))] = rng.bytes(int(rng.integers(3)))
        path = ("learn", "predict")[int(rng.integers(2))]
        answer = client.post(
            f"/models/default/{path}",
            content=bytes(body),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code in (200, 422), (body, answer.text)
        assert "Traceback" not in answer.text
    assert service.models["default"].failure is None
