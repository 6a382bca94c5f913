"""Headless Chromium over the DevTools pipe: JSON between NULs, standard library only."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EXECUTABLE = next((found for found in map(shutil.which, NAMES) if found), None)


class Browser:
    """One page in a browser; events are kept in `events` as they come."""

    def __init__(self, wait: float = 60.0) -> None:
        assert EXECUTABLE is not None
        self.wait, self.events, self._number, self._buffer = wait, [], 0, b""
        self._profile = tempfile.mkdtemp(prefix="kalstream-browser-")
        here, there = os.pipe(), os.pipe()
        # the browser wants numbers 3 and 4, which may be taken here: keep ours well above them
        ours = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (here[0], there[1])]
        self._in, self._out = there[0], here[1]

        def numbers() -> None:
            os.dup2(ours[0], 3)
            os.dup2(ours[1], 4)

        self._process = subprocess.Popen(
            [
                EXECUTABLE,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--hide-scrollbars",
                f"--user-data-dir={self._profile}",
                "--remote-debugging-pipe",
                "about:blank",
            ],
            preexec_fn=numbers,
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (*ours, here[0], there[1]):
            os.close(fd)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + self.wait
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(
        self,
        page: Path,
        width: int,
        height: int = 900,
        *,
        dark: bool = False,
        script: bool = True,
    ) -> None:
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        if not script:
            return
        # two frames later whatever the page does on its own has been drawn
        self.run("new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))")

    def run(self, expression: str) -> Any:
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings of any kind since the page was opened."""
        bad = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in bad]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened, less those within it."""
        asked = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        urls = [e["params"]["request"]["url"] for e in asked]
        return [url for url in urls if not url.startswith("data:")]

    def screenshot(self, out: Path, *, whole: bool = True) -> None:
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        out.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        for fd in (self._out, self._in):
            os.close(fd)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)
