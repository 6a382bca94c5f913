"""How many requests a second a service answers, beside the same model in Python.

``python benchmarks/serve.py`` starts ``kalstream serve`` and sends it requests from this process,
over a few connections of the loopback. It writes its block of benchmarks/README.md.
"""

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from page import machine, table, write_section
from threadpoolctl import threadpool_limits

from kalstream import streams

ROWS = 2_000
CONNECTIONS = 16
PORT = 8765
EMPTY = "an empty endpoint (`POST`, no row)"


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


def processor_seconds(pid: int) -> float:
    """Of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_python(X: np.ndarray, y: np.ndarray, size: int) -> tuple[float, float]:
    """Rows a second of the same model by predict_then_learn, and processor ms of a call."""
    from kalstream import KalmanClassifier

    threadpool_limits(1, user_api="blas")  # as the service does
    model = KalmanClassifier(random_state=0)
    model.predict_then_learn(X[:1000], y[:1000])
    begun, work = time.perf_counter(), time.process_time()
    for i in range(1000, len(X), size):
        model.predict_then_learn(X[i : i + size], y[i : i + size])
    n, work = len(X) - 1000, time.process_time() - work
    return n / (time.perf_counter() - begun), 1e3 * work * size / n


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

    def body(i: int, size: int, labelled: bool) -> tuple[str, bytes]:
        events = [
            {"row": rows[k], "label": labels[k]} if labelled else {"row": rows[k]}
            for k in range(i, i + size)
        ]
        made = {"rows": events} if size > 1 else events[0]
        return (learn if labelled else predict), json.dumps(made).encode()

    def calls(kind: str, size: int, n: int) -> list[tuple[str, bytes]]:
        """Requests over rows that come one after the other."""
        nonlocal at
        made = []
        for k in range(n):
            made.append(body(at, size, kind == "learn" or (kind == "both" and k % 2 == 1)))
            at = (at + size) % (len(rows) - size)
        return made

    n, at = args.rows, 0
    nothing = b'{"rows": []}'.ljust(len(body(0, 1, True)[1]))  # as long as one row
    kinds = {
        "an empty endpoint (`GET /health`)": (1, [("/health", b"")] * n),
        EMPTY: (1, [(learn, nothing)] * n),
        "predict": (1, calls("predict", 1, n)),
        "learn": (1, calls("learn", 1, n)),
        "half predict, half learn": (1, calls("both", 1, 2 * n)),
        "predict, batches of 100": (100, calls("predict", 100, n // 20)),
        "learn, batches of 100": (100, calls("learn", 100, n // 10)),
        "half predict, half learn, batches of 100": (100, calls("both", 100, n // 10)),
    }
    lines, work, overhead = [], {}, []
    gc.collect()
    gc.freeze()  # the client must not stop to look at all rows while it measures
    with tempfile.TemporaryDirectory() as folder:
        process = started(Path(folder))
        try:
            asyncio.run(load([body(0, 100, True)] * 5 + calls("both", 1, 200)))
            for name, (size, sent) in kinds.items():
                before = processor_seconds(process.pid)
                rate, times = asyncio.run(load(sent))
                work[name] = 1e3 * (processor_seconds(process.pid) - before) / len(sent)
                p50, p99 = (f"{t:.1f}" for t in np.percentile(times * 1e3, [50, 99]))
                row = [name, f"{rate:,.0f}", f"{rate * size:,.0f}", p50, p99, f"{work[name]:.2f}"]
                lines.append(row)
                print(row, flush=True)
        finally:
            process.terminate()
            process.wait(30)
    for size, name in ((1, "learn"), (100, "learn, batches of 100")):
        rate, model = in_python(X[:6000], y[:6000], size)
        what = "single rows" if size == 1 else f"calls of {size}"
        title = f"`predict_then_learn` in Python, {what}"
        lines.append([title, "", f"{rate:,.0f}", "", "", f"{model:.2f}"])
        rest = work[name] - model - work[EMPTY]
        overhead.append(f"{rest:.2f} ms for {name!r}")
    head = ["requests", "a second", "rows a second", "ms, median", "ms, 99%", "processor ms"]
    parts = [
        "## A service",
        f"`python benchmarks/serve.py` on {machine()}.",
        table(head, lines),
        f"`kalstream serve` and its client, {CONNECTIONS} connections of the loopback, on the same "
        "two cores; default settings, rows of elec2. What is learned is on disk (SQLite, "
        "synchronous=FULL) before it is answered. The client encodes no JSON while it measures. "
        "Processor ms are those of the service for one request, on all its threads. What is "
        f"neither the empty endpoint nor the model is decoding, queue and log: "
        f"{' and '.join(overhead)}. "
        "Target: 1,500 single-row requests a second, half predict, half learn, 99% below 25 ms; "
        "batches of 100 at 0.7 of the rows a second in Python.",
    ]
    write_section("serve", "\n\n".join(parts))


if __name__ == "__main__":
    main()
