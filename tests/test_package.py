"""What a user installs: the wheel, also when it is built from the source archive."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from kalstream import __version__

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NAME = f"kalstream-{__version__}"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

pytestmark = pytest.mark.slow  # new environments, with packages from an index


def run(*command: object, cwd: Path) -> str:
    """What a command prints; the package of this checkout is not on its path."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path, *packages: object) -> Path:
    """Folder of the commands of a new environment."""
    run(sys.executable, "-m", "venv", folder, cwd=ROOT)
    commands = folder / ("Scripts" if os.name == "nt" else "bin")
    constraints = ("--constraint", ROOT / "constraints.txt")
    run(commands / "python", "-m", "pip", "install", *constraints, *packages, cwd=folder)
    return commands


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel of the checkout, and wheel of its source archive."""
    folder = tmp_path_factory.mktemp("built")
    python = environment(folder / "builder", *PROJECT["build-system"]["requires"]) / "python"
    run(python, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    with tarfile.open(folder / f"{NAME}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    run(python, "-m", "hatchling", "build", "-t", "wheel", "-d", "again", cwd=folder / NAME)
    wheel = f"{NAME}-py3-none-any.whl"
    return folder / wheel, folder / NAME / "again" / wheel


def test_the_wheel_has_every_file_of_the_package(built: tuple[Path, Path]) -> None:
    listed = run("git", "ls-files", "src/kalstream", cwd=ROOT).splitlines()
    wanted = {name.removeprefix("src/") for name in listed}
    for path in built:
        with zipfile.ZipFile(path) as wheel:
            assert wanted == {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_wheel_describes_itself(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        metadata = message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))
        assert f"{NAME}.dist-info/licenses/LICENSE" in wheel.namelist()
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == PROJECT["project"]["requires-python"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True).decode() == README
    assert set(metadata.get_all("Provides-Extra")) == set(
        PROJECT["project"]["optional-dependencies"]
    )


def test_the_wheel_runs_in_a_new_environment(built: tuple[Path, Path], tmp_path: Path) -> None:
    commands = environment(tmp_path / "new", built[1])
    assert run(commands / "kalstream", "--version", cwd=tmp_path) == f"{__version__}\n"
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL).groups()
    assert run(commands / "python", "-W", "error", "-c", code, cwd=tmp_path) == printed


@contextmanager
def serving(command: list[str], cwd: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a service that a command starts, on a free port."""
    words = [*command, "--port", "0"]
    process = subprocess.Popen(words, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        printed = ""
        for line in process.stdout:
            printed += line
            if match := re.search(r"serving at http://\S+:(\d+)", line):
                yield f"http://localhost:{match[1]}"
                break
        else:
            raise AssertionError(printed)
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        assert process.wait(60) in (0, -signal.SIGTERM)


def sent(address: str, body: dict[str, Any], token: str = "") -> Any:
    """The answer to what curl --json sends to learn."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = Request(f"{address}/models/default/learn", json.dumps(body).encode(), headers)
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


EVENT = {"row": {"amount": 12.5, "country": "DE"}, "label": "paid"}


@pytest.fixture(scope="module")
def commands_of_service(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the commands of an environment with the wheel and the extra serve."""
    return environment(tmp_path_factory.mktemp("service") / "new", f"{built[0]}[serve]")


def test_from_nothing_to_a_service(commands_of_service: Path, tmp_path: Path) -> None:
    commands = commands_of_service
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with serving([str(commands / "kalstream"), "serve"], tmp_path, clean) as address:
        assert sent(address, EVENT) == {"status": "learned"}


@pytest.mark.skipif(os.name == "nt", reason="the image is of Linux")
def test_the_commands_of_the_image(commands_of_service: Path, tmp_path: Path) -> None:
    """Every RUN and CMD, with folders of the image below tmp_path, and no engine.

    Their environment has the packages already, but this checkout is installed anew.
    """
    run(commands_of_service / "python", "-m", "pip", "uninstall", "-y", "kalstream", cwd=tmp_path)
    lines = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    folders = {f"/{name}": str(tmp_path / name) for name in ("source", "data", "opt/kalstream")}
    clean = {
        "PATH": f"{commands_of_service}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/"),
    }
    # Versions that are tested, as elsewhere here; users are for who builds the image.
    clean["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
    n_run, addresses = 0, 0
    for line in lines:
        name, _, rest = line.partition(" ")
        for folder, here in folders.items():
            rest = re.sub(rf"(?<![\w/]){folder}\b", here, rest)
        if name == "ENV":
            variable, _, value = rest.partition("=")
            clean[variable] = value
        elif name == "COPY":
            *copied, to = rest.split()
            for each in copied:
                if (ROOT / each).is_dir():
                    shutil.copytree(ROOT / each, to)
                else:
                    Path(to).mkdir(exist_ok=True)
                    shutil.copy(ROOT / each, to)
        elif name == "RUN":
            n_run += 1
            rest = rest.replace("useradd --system kalstream && install -d -o kalstream", "mkdir -p")
            done = subprocess.run(
                ["sh", "-ec", rest], cwd=tmp_path, env=clean, capture_output=True, text=True
            )
            assert done.returncode == 0, (rest, done.stdout + done.stderr)
        elif name == "CMD":
            n_run += 1
            data = folders["/data"]
            making = shlex.split(f"kalstream token shop --rights learn --data {data}")
            token = subprocess.check_output(making, env=clean, cwd=tmp_path, text=True).strip()
            with serving(json.loads(rest), tmp_path, clean) as address:
                addresses += 1
                assert sent(address, EVENT, token) == {"status": "learned"}
    assert (n_run, addresses) == (4, 1)
    assert any(Path(clean["NUMBA_CACHE_DIR"]).rglob("*.nbc"))  # compiled when it was built
