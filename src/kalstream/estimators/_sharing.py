"""One value, read by many threads while one of them replaces it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, Final, Generic, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")

F = TypeVar("F", bound=Callable[..., Any])

# Seconds after which a turn is taken for lost, with a thread that was interrupted in its turn.
_PATIENCE: Final = 60.0


def interruptible(method: F) -> F:
    """A method that raises what interrupted it, such as KeyboardInterrupt.

    An exception that arrives while numba hands over a result becomes a SystemError on top of it,
    which no ``except KeyboardInterrupt`` would catch.
    """

    @wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except SystemError as error:
            cause: BaseException | None = error
            while isinstance(cause, SystemError):  # there may be one on top of another
                cause = cause.__cause__ or cause.__context__
            if cause is None:
                raise
            raise cause from None

    return cast(F, wrapped)


class Shared(Generic[T]):
    """Holds an immutable value. A reader sees the value before an update, or the one after it.

    An update makes a new value from the one before and publishes it in one step, so that an
    exception at any time leaves either the one or the other. No lock protects the value. Threads
    that update take turns only to save work: a thread that was overtaken starts again from the
    new value.

    Examples
    --------
    >>> shared = Shared(1)
    >>> shared.update(lambda value: (value + 1, "result"))
    'result'
    >>> shared.value
    2
    """

    def __init__(self, value: T) -> None:
        self._versions = {0: value}  # the last one counts
        self._turn: tuple[int, Any] = (os.getpid(), RLock())

    @property
    def value(self) -> T:
        """The current value. It never changes, so it can be kept and read at any time."""
        return list(self._versions.values())[-1]

    def update(self, change: Callable[[T], tuple[T, R]]) -> R:
        """Publish the value that ``change`` makes of the current one; returns its other result."""
        versions, turn = self._versions, self._my_turn()
        try:
            while True:
                number, value = list(versions.items())[-1]
                value, result = change(value)
                # Of two threads that set the same number, one gets its own value back.
                if versions.setdefault(number + 1, value) is value:
                    break
        finally:
            turn.release()
        for old in list(versions):
            if old <= number:
                versions.pop(old, None)
        return result

    def _my_turn(self) -> Any:
        """The lock of this process, taken; a child does not inherit a turn of its parent."""
        process, turn = self._turn
        if process == os.getpid() and turn.acquire(timeout=_PATIENCE):
            return turn
        turn = RLock()
        turn.acquire()
        self._turn = (os.getpid(), turn)
        return turn
