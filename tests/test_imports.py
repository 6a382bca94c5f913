"""Importing the package: its time, the modules that it loads, its public names."""

import contextlib
import importlib
import json
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kalstream
from kalstream._optional import _EXTRAS, remedy_for, require
from kalstream.errors import KalstreamError, MissingExtra

ROOT = Path(__file__).resolve().parent.parent


def fresh(code: str) -> str:
    """Run code in a new interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in sys.modules after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    return {name.partition(".")[0] for name in json.loads(fresh(code))}


def import_ratio(module: str, baseline: str, below: float, rounds: int = 8) -> float:
    """Ratio of the smallest import times of a module and of a baseline, measured in turns.

    The smallest of several times is the one least disturbed by other work on the machine. The first
    round writes byte code and fills the page cache; stop after three if the ratio is low enough.
    """

    def seconds(name: str) -> float:
        return float(
            fresh(
                "from time import perf_counter\nstart = perf_counter()\n"
                f"import {name}\nprint(perf_counter() - start)"
            )
        )

    times: list[tuple[float, float]] = []
    for done in range(1, rounds + 1):
        times.append((seconds(module), seconds(baseline)))
        ratio = min(t for t, _ in times) / min(t for _, t in times)
        if done >= 3 and ratio < below:
            break
    return ratio


def test_import_kalstream_loads_nothing_heavy() -> None:
    heavy = {"numpy", "scipy", "numba", "sklearn", "pandas", "torch", "river", "matplotlib"}
    assert not loaded_by("import kalstream") & heavy


def test_import_core_loads_no_compiler_and_no_learning_library() -> None:
    heavy = {"numba", "sklearn", "pandas", "torch", "river", "matplotlib"}
    assert not loaded_by("import kalstream.core") & heavy


def test_import_cli_loads_no_numerical_library() -> None:
    """The options are declared apart from what a run needs: `kalstream --help` stays quick."""
    heavy = {"numpy", "scipy", "numba", "sklearn", "pyarrow", "pandas", "torch", "matplotlib"}
    assert not loaded_by("import kalstream.cli") & heavy


@pytest.mark.parametrize(
    ("module", "below"),
    [("kalstream", 0.5), ("kalstream.core", 1.0), ("kalstream.estimators", 1.4)],
)
def test_import_time_beside_sklearn_base(module: str, below: float) -> None:
    assert import_ratio(module, "sklearn.base", below) < below


def test_every_module_imports_or_names_its_extra() -> None:
    for info in pkgutil.walk_packages(kalstream.__path__, "kalstream.", onerror=lambda _: None):
        with contextlib.suppress(MissingExtra):
            importlib.import_module(info.name)


@pytest.mark.parametrize("name", kalstream.__all__)
def test_public_name_resolves_and_is_listed(name: str) -> None:
    assert getattr(kalstream, name) is not None
    assert name in dir(kalstream)


def test_public_names_are_listed_before_use() -> None:
    missing = fresh("import kalstream\nprint(set(kalstream.__all__) - set(dir(kalstream)))")
    assert missing.strip() == "set()"


def test_lazy_table_and_all_agree() -> None:
    assert {*kalstream._HOME, "__version__"} == set(kalstream.__all__)


def test_lazy_name_is_the_object_itself() -> None:
    assert kalstream.KalstreamError is KalstreamError
    assert kalstream.core is importlib.import_module("kalstream.core")


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="'kalstream' has no attribute 'nonsense'"):
        kalstream.nonsense  # noqa: B018


def test_version_is_that_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert kalstream.__version__ == project["version"]


def test_require_returns_the_module_itself() -> None:
    assert require("os.path", "torch") is importlib.import_module("os.path")


def test_remedies_of_missing_packages() -> None:
    """Only a package that an extra installs has one."""
    assert "kalstream[images]" in remedy_for(ModuleNotFoundError(name="PIL"))
    assert remedy_for(ModuleNotFoundError(name="torch.no_such_part")) == ""
    assert remedy_for(ModuleNotFoundError(name="no_such_package")) == ""
    assert remedy_for(ImportError("cannot import name 'x'", name="torch")) == ""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(_EXTRAS.values()) <= set(extras["optional-dependencies"])


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_require_names_the_extra(module: str) -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'kalstream\[torch\]'") as caught:
        require(module, "torch")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, KalstreamError)
    assert "'no_such_package'" in str(caught.value)


def test_require_does_not_blame_the_extra_for_a_broken_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_dependency\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        require("half_installed", "torch")
    assert not isinstance(caught.value, MissingExtra)
