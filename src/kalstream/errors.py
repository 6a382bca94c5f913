"""The errors of kalstream: one root, and each kind is also a standard-library error."""

from __future__ import annotations


class KalstreamError(Exception):
    """Root of every error that kalstream raises on purpose."""


class InvalidInput(KalstreamError, ValueError):
    """An argument has a wrong shape, type or value; nothing was changed."""


class InvalidOption(InvalidInput):
    """An option of a run has a bad value, or does not apply; nothing was changed."""


class InvalidType(InvalidInput, TypeError):
    """An argument has a type that cannot be read; nothing was changed."""


class OutOfMemory(InvalidInput, MemoryError):
    """The arrays that a call needs do not fit in memory; nothing was changed."""


class NumericalError(KalstreamError, ArithmeticError):
    """The filter cannot continue in this precision; the state is that before the call."""


class DonatedState(KalstreamError, RuntimeError):
    """A state was used after it had been passed with donate=True."""


class MissingExtra(KalstreamError, ImportError):
    """A feature needs an optional dependency that is not installed."""


class MissingFile(InvalidInput, FileNotFoundError):
    """There is no such file or folder, or a file is missing from it."""


class Unreadable(InvalidInput, PermissionError):
    """A file or folder exists, but this user may not read it."""


class CheckpointError(KalstreamError, ValueError):
    """A file is not a checkpoint, is damaged, or has a version that cannot be read."""


class TableWarning(UserWarning):
    """A column of a frame was probably not meant to be learned as it is."""


class InUse(KalstreamError, RuntimeError):
    """Another process is writing to the same place."""
