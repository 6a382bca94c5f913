"""What a user installs: the wheel, also when it is built from the source archive."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

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
