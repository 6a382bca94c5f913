"""Digests of data, by which runs on the same data are recognised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream._files import sha256_of


def of_arrays(*arrays: NDArray[Any] | None) -> str:
    """Digest of arrays: their types, shapes and contents."""
    digest = sha256()
    for array in arrays:
        if array is None:
            continue
        digest.update(f"{array.dtype}{array.shape}".encode())
        if array.dtype == object:
            digest.update(json.dumps(array.tolist(), default=repr).encode())
        else:
            digest.update(np.ascontiguousarray(array).data)
    return f"sha256:{digest.hexdigest()}"


def _of_file(path: Path) -> str:
    """Digest of a file's bytes."""
    return f"sha256:{sha256_of(path)}"


def of_files(paths: Sequence[Path]) -> str:
    """Digest of the names and contents of several files; for one file, of its content."""
    if len(paths) == 1:
        return _of_file(paths[0])
    digest = sha256()
    for path in paths:
        digest.update(f"{path.name} {_of_file(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"
