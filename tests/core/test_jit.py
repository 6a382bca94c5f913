"""Cached compiled code is used only while every source compiled into it is unchanged."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kalstream.core import jit

COMPILED = sorted(
    path for path in jit._PACKAGE.rglob("*.py") if "\n@jit\n" in path.read_text(encoding="utf-8")
)


def stamp_with(monkeypatch: pytest.MonkeyPatch, source: Path, edited: Path) -> str:
    """Stamp of a source after one line is added to another file."""

    def read(path: Path) -> bytes:
        return path.read_bytes() + (b"\nX = 1\n" if path == edited else b"")

    monkeypatch.setattr(jit, "_source", read)
    jit.stamp_of.cache_clear()
    stamp = jit.stamp_of(source)
    monkeypatch.undo()
    jit.stamp_of.cache_clear()
    return stamp


def test_several_layers_have_compiled_code() -> None:
    assert {path.parent.name for path in COMPILED} >= {"_kernels", "features"}


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("core/_kernels/alarm.py", "core/alarm.py"),
        ("core/_kernels/mixture.py", "core/_kernels/chunk.py"),
        ("core/_kernels/mixture.py", "core/softmax_integral.py"),
        ("core/_kernels/bank.py", "core/softmax_integral.py"),  # through chunk
        ("features/_moments.py", "core/jit.py"),
    ],
)
def test_an_edit_of_a_compiled_source_changes_the_stamp(
    monkeypatch: pytest.MonkeyPatch, module: str, imported: str
) -> None:
    source, edited = jit._PACKAGE / module, jit._PACKAGE / imported
    assert source in COMPILED
    assert stamp_with(monkeypatch, source, edited) != jit.stamp_of(source)


def test_an_edit_of_another_file_keeps_the_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    source = jit._PACKAGE / "core/_kernels/chunk.py"
    assert stamp_with(monkeypatch, source, jit._PACKAGE / "cli/run.py") == jit.stamp_of(source)


@pytest.mark.parametrize("source", COMPILED, ids=lambda path: path.stem)
def test_every_compiled_function_has_the_stamp(source: Path) -> None:
    import importlib

    name = ".".join(("kalstream", *source.relative_to(jit._PACKAGE).with_suffix("").parts))
    functions: list[Any] = [
        f for f in vars(importlib.import_module(name)).values() if is_own(f, name)
    ]
    assert functions
    for function in functions:
        assert function.targetoptions["forceinline"]  # see the slow test below
        file = getattr(function._cache, "_cache_file", None)
        if file is not None:  # numba can write its cache
            assert jit.stamp_of(source) in file._source_stamp


@pytest.mark.slow
def test_a_process_that_compiles_gives_the_bits_of_one_that_loads(tmp_path: Path) -> None:
    golden, folder = Path(__file__).parents[1] / "golden", str(tmp_path / "numbers")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = str(jit._PACKAGE.parent)
    for what in ("--write", "--bits"):
        command = [sys.executable, str(golden), what, folder, "elec2-default"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def is_own(value: Any, module: str) -> bool:
    return hasattr(value, "py_func") and value.py_func.__module__ == module
