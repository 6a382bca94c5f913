"""Hold BLAS thread pools to what a matrix size deserves."""

from __future__ import annotations

import math
from functools import cache
from threading import Lock
from time import monotonic
from typing import Any, Final

# Below this many floating-point operations in one call, waking a second thread costs more than
# it brings, and on a busy machine OpenBLAS spins: 1e9 is some 30 ms on one core.
PARALLEL_FLOPS: Final = 1e9
# Asking pools for their size takes as long as a small product. If all had one thread, we do not
# ask again for this many seconds: missing that a pool grew costs speed only.
_TRUSTED_SECONDS: Final = 0.5

_lock = Lock()
_held: list[tuple[Any, int]] = []
_depth = 0
_narrow_until = -math.inf


@cache
def _pools() -> list[Any]:
    import scipy.linalg.blas  # noqa: F401  (its BLAS must be loaded to be found)
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


def _hold() -> None:
    global _narrow_until
    now = monotonic()
    if now < _narrow_until:
        return
    for pool in _pools():
        size = pool.get_num_threads()
        if size > 1:
            pool.set_num_threads(1)
            _held.append((pool, size))
    if not _held:
        _narrow_until = now + _TRUSTED_SECONDS


def _release() -> None:
    for pool, size in _held:
        pool.set_num_threads(size)
    _held.clear()


class OneThread:
    """Run the body on one BLAS thread unless ``flops`` is large enough for more.

    Pool sizes belong to the process, so the first thread in saves them and the last one out
    restores them.
    """

    __slots__ = ("small",)

    def __init__(self, flops: float) -> None:
        self.small = flops < PARALLEL_FLOPS

    def __enter__(self) -> None:
        global _depth
        if self.small:
            with _lock:
                if _depth == 0:
                    _hold()
                _depth += 1

    def __exit__(self, *error: object) -> None:
        global _depth
        if self.small:
            with _lock:
                _depth -= 1
                if _depth == 0:
                    _release()
