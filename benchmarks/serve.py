"""How many requests a second a service answers, beside the same model in Python.

``python benchmarks/serve.py`` starts ``kalstream serve`` and sends it requests from this process,
over a few connections of the loopback. It writes its block of benchmarks/README.md.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from page import machine, table, write_section

from kalstream import streams

ROWS = 2_000
CONNECTIONS = 16
PORT = 8765


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes
) -> bytes:
    method = b"POST" if body else b"GET"
    head = b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % (
        method,
        path.encode(),
    )
    writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    header = await reader.readuntil(b"\r\n\r\n")
    status = header.split(b" ", 2)[1]
    assert status == b"200", header
    length = int(header.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return await reader.readexactly(length)


async def load(calls: list[tuple[str, bytes]]) -> tuple[float, np.ndarray]:
    """Requests a second, and the time of each, over some connections."""
    todo, times = iter(calls), []

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        for path, body in todo:
            begun = time.perf_counter()
            await exchange(reader, writer, path, body)
            times.append(time.perf_counter() - begun)
        writer.close()

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    return len(calls) / (time.perf_counter() - begun), np.array(times)


def in_python(X: np.ndarray, y: np.ndarray, size: int) -> float:
    """Rows a second of the same model by predict_then_learn."""
    from kalstream import KalmanClassifier

    model = KalmanClassifier(random_state=0)
    model.predict_then_learn(X[:1000], y[:1000])
    begun = time.perf_counter()
    for i in range(1000, len(X), size):
        model.predict_then_learn(X[i : i + size], y[i : i + size])
    return (len(X) - 1000) / (time.perf_counter() - begun)


def started(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kalstream", "serve", "--port", str(PORT)]
    process = subprocess.Popen([*command, "--data", str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "serving" in line:
            return process
    raise SystemExit("the service did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    args = parser.parse_args()
    batches = list(streams.open("elec2").batches())
    X = np.concatenate([each.rows for each in batches])
    y = np.concatenate([each.targets for each in batches])
    names = [f"x{k}" for k in range(X.shape[1])]
    rows = [dict(zip(names, x, strict=True)) for x in X.tolist()]
    labels = [str(label) for label in y.tolist()]
    learn = "/models/default/learn"
    predict = "/models/default/predict"

    def event(i: int, label: bool) -> dict[str, object]:
        return {"row": rows[i], "label": labels[i]} if label else {"row": rows[i]}

    def single(i: int, label: bool) -> tuple[str, bytes]:
        return (learn if label else predict), json.dumps(event(i, label)).encode()

    def batch(i: int) -> tuple[str, bytes]:
        body = {"rows": [event(k, True) for k in range(i, i + 100)]}
        return learn, json.dumps(body).encode()

    n = args.rows
    kinds: dict[str, tuple[Callable[[], list[tuple[str, bytes]]], int]] = {
        "an empty endpoint (/health)": (lambda: [("/health", b"")] * n, 1),
        "predict, single rows": (lambda: [single(i, False) for i in range(n)], 1),
        "learn, single rows": (lambda: [single(i, True) for i in range(2000, 2000 + n)], 1),
        "half predict, half learn": (
            lambda: [single(i, bool(i % 2)) for i in range(5000, 5000 + 2 * n)],
            1,
        ),
        "learn, batches of 100": (
            lambda: [batch(i) for i in range(10_000, 10_000 + 10 * n, 100)],
            100,
        ),
    }
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        process = started(Path(folder))
        try:
            asyncio.run(load([batch(0), batch(100)]))
            for name, (calls, size) in kinds.items():
                rate, times = asyncio.run(load(calls()))
                p50, p99 = np.percentile(times * 1e3, [50, 99])
                lines.append(
                    [name, f"{rate:,.0f}", f"{rate * size:,.0f}", f"{p50:.1f}", f"{p99:.1f}"]
                )
                print(lines[-1], flush=True)
        finally:
            process.terminate()
            process.wait(30)
    python = {size: in_python(X[:6000], y[:6000], size) for size in (1, 100)}
    for size, rate in python.items():
        what = "single rows" if size == 1 else f"calls of {size}"
        lines.append([f"`predict_then_learn` in Python, {what}", "", f"{rate:,.0f}", "", ""])
    head = ["requests", "a second", "rows a second", "ms, median", "ms, 99%"]
    body = [
        "## A service",
        f"`python benchmarks/serve.py` on {machine()}.",
        table(head, lines),
        f"`kalstream serve` and its client, {CONNECTIONS} connections of the loopback, on the same "
        "two cores; default settings, rows of elec2. What is learned is on disk (SQLite, "
        "synchronous=FULL) before it is answered. The client encodes no JSON while it measures. "
        "Target: 1,500 single-row requests a second, half predict, half learn, 99% below 25 ms; "
        "batches of 100 at 0.7 of the rows a second in Python.",
    ]
    write_section("serve", "\n\n".join(body))


if __name__ == "__main__":
    main()
