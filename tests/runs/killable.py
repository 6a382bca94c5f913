"""Runs in processes that can be killed: one process imports everything, and forks for each run.

`Runs` starts it. A line of JSON on standard input is a run: the arguments of the command line, the
folder, a file for standard input, the audited event (a file that is opened, moved or removed) at
which it kills itself, the end of the name of a file at which it stops itself before it opens it
first, the largest size of a file. It answers with the process number, then with the
exit status.
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
    """Starts runs in processes of their own, a few hundredths of a second after it is asked."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200", "OPENBLAS_NUM_THREADS": "1"},
        )

    def start(self, *arguments: Any, cwd: Path, **how: Any) -> int:
        """Begin a run; returns the number of its process."""
        asked = {"arguments": [*map(str, arguments)], "cwd": str(cwd), **how}
        print(json.dumps(asked), file=self.server.stdin, flush=True)
        return int(self._answer())

    def wait(self, pid: int) -> tuple[int, str]:
        """Exit status of a run (negative: the signal that ended it) and what it printed."""
        print(json.dumps({"wait": pid}), file=self.server.stdin, flush=True)
        status, printed = json.loads(self._answer())
        return os.waitstatus_to_exitcode(status), printed

    def run(self, *arguments: Any, after: float | None = None, **how: Any) -> tuple[int, str]:
        """Do a run, and kill it after some seconds."""
        pid = self.start(*arguments, **how)
        if after is not None:
            time.sleep(after)
            os.kill(pid, signal.SIGKILL)  # not yet waited for, so it is still its number
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
    """Load what the runs need, so that they begin at once."""
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


def _child(asked: dict[str, Any]) -> None:
    from kalstream import cli

    os.chdir(asked["cwd"])
    printed = os.open(f"printed-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
    os.dup2(os.open(asked.get("stdin", os.devnull), os.O_RDONLY), 0)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    if asked.get("largest") is not None:  # writing more fails as on a full disk
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (asked["largest"], resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if asked.get("event") is not None:
        left = [asked["event"]]

        def note(event: str, arguments: tuple[Any, ...]) -> None:
            if event in EVENTS:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(note)
    if asked.get("stop_at") is not None:
        names = [asked["stop_at"]]

        def stop(event: str, arguments: tuple[Any, ...]) -> None:
            if names and event == "open" and str(arguments[0]).endswith(names[0]):
                names.clear()
                os.kill(os.getpid(), signal.SIGSTOP)

        sys.addaudithook(stop)
    sys.argv = ["kalstream", *asked["arguments"]]
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
    # Arrow's allocator takes care of its thread when a process forks; nothing else does.
    assert len(threads - {"jemalloc_bg_thd"}) == 1, threads
    folders: dict[int, str] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            pid = asked["wait"]
            _, status = os.waitpid(pid, 0)
            printed = Path(folders.pop(pid)) / f"printed-{pid}"
            text = printed.read_text() if printed.exists() else ""
            printed.unlink(missing_ok=True)
            print(json.dumps([status, text]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            try:
                _child(asked)
            finally:
                os._exit(99)
        folders[pid] = asked["cwd"]
        print(pid, flush=True)


if __name__ == "__main__":
    _serve()
