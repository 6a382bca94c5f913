"""Runs in processes that can be killed: a server imports everything, and forks for each run.

`Runs` starts the server. A line of JSON on standard input describes a run: the arguments of the
command line, the folder, a file for standard input, the audited event (a file that is opened, moved
or removed) at which the run kills itself, the suffix of a file name at whose first opening it stops
itself, and the largest size of a file. The server prints the process number, then the exit status.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EVENTS = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir"}


class Runs:
    """Starts runs in new processes, each within a few hundredths of a second."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200", "OPENBLAS_NUM_THREADS": "1"},
        )

    def start(self, *arguments: Any, cwd: Path, **options: Any) -> int:
        """Start a run; return the number of its process."""
        request = {"arguments": [*map(str, arguments)], "cwd": str(cwd), **options}
        print(json.dumps(request), file=self.server.stdin, flush=True)
        return int(self._answer())

    def wait(self, pid: int) -> tuple[int, str]:
        """Exit status of a run (negative: the signal that ended it) and its output."""
        print(json.dumps({"wait": pid}), file=self.server.stdin, flush=True)
        status, printed = json.loads(self._answer())
        return os.waitstatus_to_exitcode(status), printed

    def run(self, *arguments: Any, after: float | None = None, **options: Any) -> tuple[int, str]:
        """Run, and kill the run after this many seconds."""
        pid = self.start(*arguments, **options)
        if after is not None:
            time.sleep(after)
            os.kill(
                pid, signal.SIGKILL
            )  # it was not waited for, so the number is still in use by it
        return self.wait(pid)

    def _answer(self) -> str:
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        assert line, "the server of runs has ended"
        return line

    def close(self) -> None:
        """End the server."""
        self.server.communicate()


def _warm_up() -> None:
    """Import what the runs need, so that they start fast."""
    import numpy as np

    from kalstream import KalmanClassifier, report  # noqa: F401
    from kalstream.cli import run_output  # noqa: F401
    from kalstream.evaluate import prequential
    from kalstream.streams import ArrayStream

    rows = np.random.default_rng(0).standard_normal((200, 3))
    for chunk in (1, 10):
        for forgetting in ("mixture", 0.99):
            model = KalmanClassifier(forgetting, "scaled", random_state=0)
            prequential(model, ArrayStream(rows, [*"ab"] * 100), chunk=chunk)


def _child(request: dict[str, Any]) -> None:
    from kalstream import cli

    os.chdir(request["cwd"])
    printed = os.open(f"printed-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
    os.dup2(os.open(request.get("stdin", os.devnull), os.O_RDONLY), 0)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    if request.get("largest") is not None:  # writing more fails like on a full disk
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest"], resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if request.get("event") is not None:
        left = [request["event"]]

        def note(event: str, arguments: tuple[Any, ...]) -> None:
            if event in EVENTS:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(note)
    if request.get("stop_at") is not None:
        names = [request["stop_at"]]

        def stop(event: str, arguments: tuple[Any, ...]) -> None:
            if names and event == "open" and str(arguments[0]).endswith(names[0]):
                names.clear()
                os.kill(os.getpid(), signal.SIGSTOP)

        sys.addaudithook(stop)
    sys.argv = ["kalstream", *request["arguments"]]
    try:
        cli.main()
    except SystemExit as stopped:
        code = stopped.code
        status = code if isinstance(code, int) else int(code is not None)
    else:
        status = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _serve() -> None:
    _warm_up()
    threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    # After a fork, only Arrow's allocator handles its thread correctly.
    assert len(threads - {"jemalloc_bg_thd"}) == 1, threads
    folders: dict[int, str] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            pid = request["wait"]
            _, status = os.waitpid(pid, 0)
            printed = Path(folders.pop(pid)) / f"printed-{pid}"
            text = printed.read_text() if printed.exists() else ""
            printed.unlink(missing_ok=True)
            print(json.dumps([status, text]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            try:
                _child(request)
            finally:
                os._exit(99)
        folders[pid] = request["cwd"]
        print(pid, flush=True)


if __name__ == "__main__":
    _serve()
