"""The commands of docs/serve.md print what the guide says, in its order."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
# A block that is run, and the block below it, if that has what is printed.
BLOCK = re.compile(r"```(bash|python)\n(.*?)```\n(?:\n```\n(.*?)```\n)?", re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.(\d+))?")


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell whose commands are those of this installation."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shell = {"kalstream": "-m kalstream", "python": ""}
    for name, arguments in shell.items():
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        script.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PORT": port, "PYTHONUNBUFFERED": "1"}


class Terminal:
    """Where the service runs."""

    process: subprocess.Popen[str] | None = None

    def start(self, command: str, cwd: Path, environment: dict[str, str]) -> str:
        """Stop what runs, start a service, and return what it prints until it serves."""
        self.stop()
        words = [*command.split(), "--port", environment["PORT"]]
        self.process = subprocess.Popen(
            words, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        printed = ""
        for line in self.process.stdout:
            printed += line if "compiling" not in line else ""
            if "serving" in line:
                return printed
        raise AssertionError(f"the service did not start: {printed}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.stdout is not None
            self.process.stdout.close()
            assert self.process.wait(30) in (0, -signal.SIGTERM)
            self.process = None


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.stop()


def agree(printed: str, shown: str) -> bool:
    """Whether texts are equal, with numbers rounded as the second one shows them."""
    printed, shown = "".join(printed.split()), "".join(shown.split())
    if NUMBER.sub("#", printed) != NUMBER.sub("#", shown):
        return False
    pairs = zip(NUMBER.finditer(printed), NUMBER.finditer(shown), strict=True)
    return all(
        abs(float(a.group()) - float(b.group())) <= (0.51 * 10.0 ** -len(b[1]) if b[1] else 0.0)
        for a, b in pairs
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the guide is for shells of Unix")
def test_the_commands_of_the_guide(
    terminal: Terminal, commands: dict[str, str], tmp_path: Path
) -> None:
    n_compared = 0
    for language, code, shown in BLOCK.findall(GUIDE):
        code = code.replace("localhost:8000", f"localhost:{commands['PORT']}")
        if code.startswith("kalstream serve"):
            printed = terminal.start(code, tmp_path, commands)
        else:
            code = re.sub(r"^curl ", "curl -sS -w '\\\\n' ", code, flags=re.MULTILINE)
            shell = ["bash", "-e", "-c"] if language == "bash" else [sys.executable, "-c"]
            ended = subprocess.run(
                [*shell, code], cwd=tmp_path, env=commands, capture_output=True, text=True
            )
            assert ended.returncode == 0, (code, ended.stderr)
            printed = ended.stdout
        printed = printed.replace(commands["PORT"], "8000")
        if shown:
            n_compared += 1
            assert agree(printed, shown), f"{code}prints\n{printed}"
    assert n_compared >= 10
