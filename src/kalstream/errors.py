"""The errors of kalstream: one root, and each kind is also a standard-library error."""

from __future__ import annotations


class KalstreamError(Exception):
    """Root of every error that kalstream raises on purpose.

    Examples
    --------
    >>> from kalstream import streams
    >>> try:
    ...     streams.open("no-such-file.csv", target="y")
    ... except KalstreamError as error:
    ...     print(type(error).__name__)
    MissingFile
    """


class InvalidInput(KalstreamError, ValueError):
    """An argument has a wrong shape, type or value; nothing was changed.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> KalmanClassifier().partial_fit([[1.0], [2.0]], ["a"])
    Traceback (most recent call last):
    kalstream.errors.InvalidInput: y has 1 labels for the 2 rows of X; give one target for each row
    """


class InvalidOption(InvalidInput):
    """An option of a run has a bad value, or does not apply; nothing was changed.

    Examples
    --------
    >>> from kalstream.runs import Options, Run
    >>> Run("runs/new", Options(source="elec2", time_unit="1h"))
    Traceback (most recent call last):
    kalstream.errors.InvalidOption: --time-unit is '1h', but rows have no times; ...
    """


class InvalidType(InvalidInput, TypeError):
    """An argument has a type that cannot be read; nothing was changed.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> from kalstream.evaluate import prequential
    >>> prequential(KalmanClassifier(), "data.csv")
    Traceback (most recent call last):
    kalstream.errors.InvalidType: stream must be a Stream or a pair (X, y), got str; ...
    """


class OutOfMemory(InvalidInput, MemoryError):
    """The arrays that a call needs do not fit in memory; nothing was changed.

    Examples
    --------
    >>> import numpy as np
    >>> from kalstream import KalmanClassifier
    >>> KalmanClassifier(features="raw").partial_fit(np.zeros((1, 1_000_000)), ["a"])
    Traceback (most recent call last):
    kalstream.errors.OutOfMemory: the columns of X make 1000001 features; ...
    """


class NumericalError(KalstreamError, ArithmeticError):
    """The filter cannot continue in this precision; the state is that before the call.

    Examples
    --------
    The row is too large for the precision of the covariance.

    >>> from kalstream.core import init, step
    >>> given = {"gamma": 1.0, "noise_var": 1e-8, "prior_var": 1.0}
    >>> step(init(1, 1, prior_var=1.0), [1e8], 0.5, **given)
    Traceback (most recent call last):
    kalstream.errors.NumericalError: float64 cannot hold the covariance at row 0: ...
    """


class DonatedState(KalstreamError, RuntimeError):
    """A state was used after it had been passed with donate=True.

    Examples
    --------
    >>> from kalstream.core import init, step_chunk
    >>> state, given = init(1, 1, prior_var=1.0), {"noise_var": 1.0, "prior_var": 1.0}
    >>> after, _ = step_chunk(state, [[1.0]], [0.5], gamma=1.0, donate=True, **given)
    >>> state.mean
    Traceback (most recent call last):
    kalstream.errors.DonatedState: ...
    """


class MissingExtra(KalstreamError, ImportError):
    """A feature needs an optional dependency that is not installed.

    Examples
    --------
    As for ``import kalstream.client`` without the extra "serve":

    >>> from kalstream._optional import require
    >>> require("not_installed", "serve")
    Traceback (most recent call last):
    kalstream.errors.MissingExtra: ...; install it with: pip install 'kalstream[serve]'
    """


class MissingFile(InvalidInput, FileNotFoundError):
    """There is no such file or folder, or a file is missing from it.

    Examples
    --------
    >>> from kalstream import streams
    >>> streams.open("no-such-file.csv", target="y")
    Traceback (most recent call last):
    kalstream.errors.MissingFile: no-such-file.csv: no such file or folder...
    """


class Unreadable(InvalidInput, PermissionError):
    """A file or folder exists, but this user may not read it.

    Examples
    --------
    Here the file is of another user:

    >>> from kalstream import streams
    >>> streams.open("salaries.csv", target="y")  # doctest: +SKIP
    Traceback (most recent call last):
    kalstream.errors.Unreadable: salaries.csv: this user may not read it; change its permissions
    """


class CheckpointError(KalstreamError, ValueError):
    """A file is not a checkpoint, is damaged, or has a version that cannot be read.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream import KalmanClassifier
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "model"
    ...     _ = path.write_text("no model")
    ...     KalmanClassifier.load(path)
    Traceback (most recent call last):
    kalstream.errors.CheckpointError: ...model is not a checkpoint (not a safetensors file); ...
    """


class TableWarning(UserWarning):
    """A column of a frame was probably not meant to be learned as it is.

    Examples
    --------
    >>> import warnings
    >>> import pyarrow
    >>> from kalstream import KalmanClassifier
    >>> table = pyarrow.table({"size": [1.0, 2.0] * 50, "id": [f"row {k}" for k in range(100)]})
    >>> with warnings.catch_warnings(action="error"):
    ...     KalmanClassifier(features="raw").partial_fit(table, ["a", "b"] * 50)
    Traceback (most recent call last):
    kalstream.errors.TableWarning: X: column 'id' looks like ids: ...
    """


class InUse(KalstreamError, RuntimeError):
    """Another process is writing to the same place.

    Examples
    --------
    Two runs cannot write to one folder at the same time.

    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     with Run(folder, Options(limit=100)).lock:  # held as long as the run goes on
    ...         Run(folder, Options(limit=100)).go()
    Traceback (most recent call last):
    kalstream.errors.InUse: ...
    """
