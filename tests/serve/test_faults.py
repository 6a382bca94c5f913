"""The service as a process: killed under load, traced, flooded, asked by slow clients."""

import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from kalstream.runs.options import Options
from kalstream.serve.app import make_app
from kalstream.serve.service import Service
from serve_rows import rows

pytestmark = pytest.mark.slow


class Server:
    """``kalstream serve`` on a free port."""

    def __init__(self, folder: Path, *options: str, before: tuple[str, ...] = ()) -> None:
        self.folder, self.options, self.before = folder, options, before
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self) -> None:
        command = [*self.before, sys.executable, "-m", "kalstream", "serve", "--features", "raw"]
        with (self.folder.parent / "errors").open("a") as errors:
            self.process = subprocess.Popen(
                [*command, "--data", str(self.folder), "--port", str(self.port), *self.options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "serving" in line:
                return
        raise AssertionError("the service did not start")

    def stop(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def post(self, path: str, body: Any, timeout: float = 20.0) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "data", "--keep-log", "--checkpoint-every", "1")
    made.start()
    yield made
    if made.process.poll() is None:
        made.stop()


def test_fifty_kills_under_load_lose_nothing_and_count_nothing_twice(
    server: Server, tmp_path: Path
) -> None:
    todo = [{"id": f"r{k}", **each} for k, each in enumerate(rows(200_000))]
    acknowledged: set[str] = set()
    place, turn, ended = iter(todo), threading.Lock(), threading.Event()

    def client(seed: int) -> None:
        choose = random.Random(seed)
        while not ended.is_set():
            with turn:
                body = [next(place) for _ in range(choose.choice((1, 1, 1, 7)))]
            late = choose.random() < 0.5
            steps: list[tuple[str, list[dict[str, Any]]]] = [("learn", body)]
            if late:  # the row first, its label later
                steps = [
                    ("predict", [{"id": e["id"], "row": e["row"]} for e in body]),
                    ("learn", [{"id": e["id"], "label": e["label"]} for e in body]),
                ]
            for path, events in steps:
                while True:  # the same ids again until it is acknowledged
                    try:
                        status, _ = server.post(f"/models/default/{path}", {"rows": events})
                    except (OSError, http.client.HTTPException, ValueError):
                        time.sleep(0.05)
                        continue
                    if status == 200:
                        break
                    time.sleep(0.05)
            acknowledged.update(e["id"] for e in body)

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for each in clients:
        each.start()
    choose = random.Random(0)
    for _ in range(50):
        time.sleep(choose.uniform(0.1, 1.5))
        server.stop(signal.SIGKILL)
        server.start()
    ended.set()
    for each in clients:
        each.join()
    assert len(acknowledged) > 500
    counts = server.get("/models/default/metrics")["waiting"]
    assert counts["told"] == len(acknowledged)
    assert counts["waiting"] == counts["expired"] == counts["unknown"] == 0
    server.stop()
    again = Service(tmp_path / "data", keep_log=True)
    again.start()
    probe = [each["row"] for each in todo[:50]]
    known = again.models["default"].predict(probe)
    total = again.models["default"].summary()
    again.stop()
    shutil.rmtree(tmp_path / "data" / "models")  # everything from the log, in its order
    whole = Service(tmp_path / "data", keep_log=True)
    whole.start()
    assert whole.models["default"].predict(probe) == known
    now = whole.models["default"].summary()
    for name in ("rows", "scored", "total", "baselines", "waiting"):
        assert now[name] == total[name], name
    whole.stop()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_row_is_on_disk_before_it_is_answered(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    calls = "trace=fdatasync,fsync,sendto,sendmsg,write,writev"
    # With -D the server is the process that is started, and gets the signal that ends it.
    strace = "strace", "-D", "-f", "-y", "-e", calls, "-o", str(trace)
    server = Server(tmp_path / "data", before=strace)
    server.start()
    for each in rows(5):
        assert server.post("/models/default/learn", each)[0] == 200
    server.stop()
    ended = re.compile(rf"^{server.process.pid} +\+\+\+ exited", re.MULTILINE)
    for _ in range(300):
        if ended.search(text := trace.read_text(errors="replace")):
            break
        time.sleep(0.1)
    synced, answered = 0, 0
    for line in text.splitlines():
        if re.search(r"f(data)?sync\(\d+<[^>]*service\.sqlite-wal", line):
            synced += 1
        elif "HTTP/1.1 200" in line:
            answered += 1
            assert synced > answered  # one for the model itself, and one for each answer so far
    assert answered == 5


def test_slow_and_vanishing_clients_and_many_connections(server: Server) -> None:
    assert server.post("/models/default/learn", {"rows": rows(50)})[0] == 200
    before = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    errors = server.folder.parent / "errors"
    half = b"POST /models/default/learn HTTP/1.1\r\nHost: localhost\r\n"
    half += b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    open_ones = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for each in open_ones:
        each.sendall(half)
    assert server.post("/models/default/predict", {"row": rows(1)[0]["row"]})[0] == 200
    for each in open_ones:
        each.close()
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", server.port)) as gone:
            body = json.dumps(rows(1)[0]).encode()
            gone.sendall(half.replace(b"100", str(len(body)).encode())[:-1] + body)
    time.sleep(1.0)
    assert len(os.listdir(f"/proc/{server.process.pid}/fd")) <= before + 3
    assert server.get("/ready")["ready"]
    with socket.create_connection(("127.0.0.1", server.port)) as slow:  # never ends its request
        slow.sendall(half)
        time.sleep(0.5)
        server.stop()
    assert server.process.returncode == 0
    assert "Traceback" not in errors.read_text()


def test_ten_thousand_labels_that_never_come_and_flat_memory(server: Server) -> None:
    def memory() -> float:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    server.post("/models/default/learn", {"rows": rows(200)})
    for start in range(0, 10_000, 500):
        events = [{"id": f"n{start + k}", "row": e["row"]} for k, e in enumerate(rows(500, start))]
        assert server.post("/models/default/predict", {"rows": events})[0] == 200
    assert server.get("/models/default/metrics")["waiting"]["waiting"] == 10_000
    body = {"rows": rows(500, 9)}
    server.post("/models/default/learn", body)
    early = memory()
    for _ in range(100):
        assert server.post("/models/default/learn", body)[0] == 200
    assert memory() < early * 1.2 + 20


def test_malformed_http_and_random_paths(server: Server) -> None:
    rng = np.random.default_rng(0)
    server.post("/models/default/learn", {"rows": rows(20)})
    good = (
        b"POST /models/default/learn HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    )
    good += b"\r\nContent-Length: 44\r\n\r\n" + b'{"row": {"x": 1.0, "color": "red"}, "label": '
    statuses = set()
    for _ in range(2_000):
        raw = bytearray(good)
        for _ in range(int(rng.integers(1, 8))):
            at = int(rng.integers(len(raw)))
            raw[at : at + int(rng.integers(4))] = rng.bytes(int(rng.integers(4)))
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
        if answer:
            statuses.add(answer.split(b" ")[1])
            assert b"Traceback" not in answer
    assert b"500" not in statuses, statuses
    assert server.get("/models/default/metrics")["failure"] is None


def test_memory_is_flat_over_many_small_requests(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    headers = {"Content-Type": "application/json"}
    events = rows(500)

    def send(n: int) -> float:
        """Resident MiB after n requests: predictions, labels at once, and labels that come late."""
        for k in range(n):
            event = {**events[k % 500], "id": f"{n}-{k // 3}"}
            del event[("label", "row", "id")[k % 3]]
            if k % 3 == 1:  # of the row of the request before
                event["label"] = events[(k - 1) % 500]["label"]
            body = json.dumps(event)
            connection.request(
                "POST", f"/models/default/{'learn' if k % 3 else 'predict'}", body, headers
            )
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    send(36_000)  # 12,000 ids: as many as are remembered, and more
    early = send(1_000)
    late = send(63_000)
    connection.close()
    assert late < early * 1.05 + 10, f"{early:.0f} MiB became {late:.0f}"


_PATHS = (
    *["learn", "predict"] * 4,
    "stream",
    "metrics",
    "windows",
    "drift",
    "snapshot",
    "",
    "nothing",
)
_VALUES = (
    *(None, True, 0, -1, 2**63, 10**25, 1e308, -1e-320, 0.5, "", "a", "\0", "x" * 300, "é\u2028"),
    *([], [1], {}, {"x": 1}, {"x": "red"}, [{}], [{"row": {"x": 1.0}, "label": "yes"}]),
)
_KEYS = ("row", "rows", "id", "label", "x", "color", "task", "window", "features", "cls", "")


def test_random_requests_teach_nothing_if_they_are_refused(tmp_path: Path) -> None:
    service = Service(tmp_path / "data")
    service.start()
    service.begin("default", Options(features="raw"))
    client = TestClient(make_app(service), base_url="http://localhost")
    choose = random.Random(0)

    def body(depth: int = 0) -> Any:
        if depth > 2 or choose.random() < 0.3:
            return choose.choice(_VALUES)
        if choose.random() < 0.2:
            return [body(depth + 1) for _ in range(choose.randrange(3))]
        return {choose.choice(_KEYS): body(depth + 1) for _ in range(choose.randrange(4))}

    def request() -> tuple[str, str, bytes]:
        event: Any = rows(1, seed=choose.randrange(1000))[0]
        for _ in range(choose.randrange(3)):
            choose.choice([event, event["row"]] if isinstance(event.get("row"), dict) else [event])[
                choose.choice(_KEYS)
            ] = body(1)
        event = choose.choice((event, {"rows": [event]}, event, body()))
        raw = bytearray(json.dumps(event).encode())
        if choose.random() < 0.3 and raw:
            raw[choose.randrange(len(raw))] = choose.randrange(256)
        method = choose.choice((*["POST"] * 12, "GET", "PUT", "DELETE", "HEAD", "PATCH"))
        name = choose.choice((*["default"] * 8, "other", "..", "%00", "learn"))
        if method == "DELETE" and name == "default":
            name = "other"
        return method, f"/models/{name}/{choose.choice(_PATHS)}".rstrip("/"), bytes(raw)

    statuses: dict[int, int] = {}
    for _ in range(20_000):
        method, path, content = request()
        before = service.models["default"].n_rows
        headers = {"content-type": "application/json"}
        answer = client.request(method, path, content=content, headers=headers)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, (method, path, content, answer.text)
        assert "Traceback" not in answer.text
        if answer.status_code >= 400:
            assert service.models["default"].n_rows == before, (method, path, content)
    assert not any(model.failure for model in service.models.values())
    assert min(statuses[200], statuses[422]) > 1_500, statuses
    service.stop()
