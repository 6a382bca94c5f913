"""How the core compiles: cached on disk where that is possible. Imported on first use only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

# reassoc and contract let reductions be vectorised; NaN and inf keep their meaning.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz", "reassoc"}}


def jit(function: Callable[..., Any]) -> Any:
    """Compile, and cache what was compiled unless no folder can be written to."""
    try:
        return njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # numba found neither the package's folder nor a home to write to
        return njit(**_OPTIONS)(function)
