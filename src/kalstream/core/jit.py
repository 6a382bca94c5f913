"""Compile with numba, cached on disk; and the array types of the kernels. Import on first use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Flags = NDArray[np.bool_]

_PACKAGE: Final = Path(__file__).parents[1]
_IMPORT: Final = re.compile(r"^from (kalstream[.\w]*) import (\([^)]*\)|.*)$", re.MULTILINE)

# reassoc and contract let reductions be vectorised; NaN and inf keep their meaning.
# A kernel's library has a copy of each kernel that it calls, optimised for the place of the call.
# Of copies that were not inlined a process uses the one that was loaded first, and so the last
# bits depended on which kernels were compiled or loaded before. With forceinline there are none.
_OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz", "reassoc"},
    "forceinline": True,
}


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function, and cache the result on disk if there is a folder to write to."""
    try:
        compiled = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # neither the package's folder nor the home folder can be written to
        return njit(**_OPTIONS)(function)
    # numba checks only the function's own file. Compiled code also contains functions and constants
    # of other files, so without this stamp old code could run after an edit or an upgrade.
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if file is not None and hasattr(file, "_source_stamp"):
        file._source_stamp = f"{file._source_stamp} {stamp_of(Path(function.__code__.co_filename))}"
    return compiled


@contextmanager
def when_compiling(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` once, if a function is compiled in this context and not loaded from disk."""
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        called = False

        def on_start(self, event: Any) -> None:
            if not self.called:
                self.called = True
                act()

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield


def cache_folder() -> Path | None:
    """The folder of the compiled functions of the core; None if there is none to write to."""
    from kalstream.core._kernels import mixture

    path = getattr(getattr(mixture.mix, "_cache", None), "cache_path", None)
    return None if path is None else Path(path)


@cache
def stamp_of(source: Path) -> str:
    """Digest of a source file and of all kalstream files that it imports, directly or not."""
    sources, to_read = {}, [source]
    while to_read:
        path = to_read.pop()
        if path not in sources:
            sources[path] = _source(path)
            to_read += _imported(sources[path])
    return sha256(b"".join(sources[path] for path in sorted(sources))).hexdigest()


@cache
def _source(path: Path) -> bytes:
    return path.read_bytes()


def _imported(source: bytes) -> Iterator[Path]:
    """The kalstream files that a source imports at its top."""
    for module, names in _IMPORT.findall(source.decode()):
        folder = _PACKAGE.joinpath(*module.split(".")[1:])
        inner = [folder / f"{name}.py" for name in re.findall(r"\w+", names)]
        for path in (folder.with_suffix(".py"), folder / "__init__.py", *inner):
            if path.is_file():
                yield path
