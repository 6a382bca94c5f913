"""Reuse of large memory blocks, so that copying a state is cheap."""

from __future__ import annotations

from collections import deque
from typing import Any, Final
from weakref import ref

import numpy as np

from kalstream._arrays import Array

# The allocator itself keeps smaller blocks (mmap threshold of glibc).
_LARGE: Final = 1 << 17
# Mean and covariance of the state that is read, and of the state that is written.
_BLOCKS: Final = 4


class Spares:
    """Makes large arrays in the memory of earlier arrays that were deleted.

    New memory takes several times as long as writing to it, because the system clears every page. A
    block is free when the array made from it is deleted. Views keep that array alive, so that
    nobody can still read a free block. If an interrupt loses a block, a new one is allocated.

    Examples
    --------
    >>> Spares().like(np.zeros((200, 100))).shape
    (200, 100)
    """

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: deque[tuple[bytearray, ref[Array]]] = deque(maxlen=_BLOCKS)

    def like(self, array: Array) -> Array:
        """An array of the same shape, dtype and order, with finite but arbitrary values."""
        if array.nbytes < _LARGE:
            return np.zeros_like(array)
        block = self._free(array.nbytes) or bytearray(array.nbytes)
        order: Any = "C" if array.flags.c_contiguous else "F"
        # If numpy owned the memory, views would keep the memory alive but not this array.
        result: Array = np.ndarray(array.shape, array.dtype, buffer=block, order=order)
        self._blocks.append((block, ref(result)))
        return result

    def _free(self, size: int) -> bytearray | None:
        """A block of this size that nobody uses; two threads never get the same one."""
        for _ in range(len(self._blocks)):
            try:
                block, user = self._blocks.popleft()
            except IndexError:  # another thread was faster
                break
            if user() is None and len(block) == size:
                return block
            self._blocks.append((block, user))
        return None

    def __reduce__(self) -> tuple[type[Spares], tuple[()]]:
        return Spares, ()  # a copy of a state gets its own memory
