"""One model, read by many threads while one of them learns."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class _Reading(Generic[T]):
    """What `Shared.reading` returns; a generator would take three times as long."""

    __slots__ = ("shared",)

    def __init__(self, shared: Shared[T]) -> None:
        self.shared = shared

    def __enter__(self) -> T:
        with self.shared._lock:
            self.shared._readers += 1
            return self.shared._value

    def __exit__(self, *error: object) -> None:
        with self.shared._lock:
            self.shared._readers -= 1


class Shared(Generic[T]):
    """Holds an immutable value; whoever reads it sees a whole one, before or after an update.

    An update may overwrite the arrays of the value it replaces, if nobody is reading them: that
    saves a copy of the state with every chunk.

    Examples
    --------
    >>> shared = Shared(1)
    >>> shared.update(lambda value, alone: value + 1, short=True)
    >>> with shared.reading() as value:
    ...     value
    2
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._readers = 0
        self._lock = Lock()  # of the two above
        self._writer = Lock()

    def reading(self) -> _Reading[T]:
        """The value, in a ``with`` block: nobody overwrites it until the block is left."""
        return _Reading(self)

    def update(self, change: Callable[[T, bool], T], *, short: bool) -> None:
        """Replace the value by change(value, alone); if that raises, the value stays.

        ``alone`` says that the old value's arrays may be overwritten. Readers wait for a short
        update; during a long one they go on with the old value.
        """
        with self._writer:
            if short:
                with self._lock:
                    self._value = change(self._value, self._readers == 0)
            else:
                value = change(self._value, False)
                with self._lock:
                    self._value = value
