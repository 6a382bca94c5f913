"""How the package compiles: cached on disk where that is possible. Imported on first use only."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import njit

# reassoc and contract let reductions be vectorised; NaN and inf keep their meaning.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz", "reassoc"}}


def jit(function: Callable[..., Any]) -> Any:
    """Compile, and cache what was compiled unless no folder can be written to."""
    try:
        compiled = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # numba found neither the package's folder nor a home to write to
        return njit(**_OPTIONS)(function)
    # numba looks at the function's own file only, and compiled functions contain those of other
    # files that they call: without this, an upgrade could go on running old code.
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if file is not None and hasattr(file, "_source_stamp"):
        file._source_stamp = f"{file._source_stamp} {_digest()}"
    return compiled


@cache
def _digest() -> str:
    """Digest of all compiled sources of the core."""
    sources = sorted(Path(__file__).parent.glob("_*.py"))
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
