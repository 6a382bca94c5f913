"""Limit BLAS to one thread for small matrices."""

from __future__ import annotations

import math
import os
from functools import cache
from time import monotonic
from typing import Any, Final
from weakref import ref

# Below this many floating-point operations in one call, a second thread costs more than it gains,
# and on a busy machine OpenBLAS spins. 1e9 operations take about 30 ms on one core.
PARALLEL_FLOPS: Final = 1e9
# Reading the size of a pool takes as long as a small product. If all pools had one thread, their
# sizes are not read again for this many seconds. If a pool grows in this time, only speed is lost.
_TRUSTED_SECONDS: Final = 0.5

# Pools that were set to one thread, with their old sizes, and the `with` bodies that need this.
# There is no lock, because an interrupt or a fork could leave it locked. A race costs speed, but
# never changes a result.
_held: list[tuple[Any, int]] = []
_inside: dict[int, ref[OneThread]] = {}
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
            _held.append((pool, size))
            pool.set_num_threads(1)
    if not _held:
        _narrow_until = now + _TRUSTED_SECONDS


def _release() -> None:
    while _held:
        try:
            pool, size = _held.pop()
        except IndexError:  # another thread restored it
            return
        pool.set_num_threads(size)


def _is_anyone_inside() -> bool:
    for key, body in list(_inside.items()):
        if body() is None:  # an interrupt came before __exit__
            _inside.pop(key, None)
    return bool(_inside)


def _after_fork() -> None:
    _inside.clear()  # only the thread that forked still runs
    _release()


os.register_at_fork(after_in_child=_after_fork)


class OneThread:
    """Run the body on one BLAS thread unless ``flops`` is large enough for more.

    Pool sizes belong to the process: the first thread that enters saves them, and the last thread
    that leaves restores them.
    """

    __slots__ = ("__weakref__", "small")

    def __init__(self, flops: float) -> None:
        self.small = flops < PARALLEL_FLOPS

    def __enter__(self) -> None:
        if self.small:
            _inside[id(self)] = ref(self)
            if not _held:
                _hold()

    def __exit__(self, *error: object) -> None:
        if self.small:
            _inside.pop(id(self), None)
            if _held and not _is_anyone_inside():
                _release()
