"""Read one value per row from lists, arrays and tables: labels and times."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.errors import InvalidInput

_FILL = "with None where a label is unknown"


def labels(name: str, values: Any) -> tuple[list[Any], bool]:
    """Labels as a list of Python values, and whether they were a column (b, 1).

    A list is not converted to an array. numpy would turn labels of mixed types into strings, change
    some numbers, and turn tuples into a table.
    """
    check.unmasked(name, values, _FILL)
    if values is None:
        raise InvalidInput(
            f"this estimator requires y to be passed, but the target {name} is None; "
            "give one label per row, None where it is unknown"
        )
    if isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray):
        listed = list(values)
        kinds = set(map(type, listed))
        if kinds == {list} and set(map(len, listed)) == {1}:
            return [each[0] for each in listed], True
        if not (kinds and kinds <= {list, np.ndarray}):
            if any(issubclass(kind, np.generic) for kind in kinds):
                listed = [_plain(each) for each in listed]
            return listed, False
    array = array_of(name, values)
    column = array.ndim == 2 and array.shape[1] == 1
    if column:
        array = array[:, 0]
    if array.ndim == 0:
        raise InvalidInput(
            f"{name} must be one label per row, in a list or a flat array; "
            f"got {check.shown(values)}"
        )
    if array.ndim != 1:
        raise InvalidInput(
            f"{name} must be one label per row, a flat array; got shape {array.shape}"
        )
    if array.dtype.kind == "c":
        raise InvalidInput(f"Complex data not supported: {name} must be labels")
    return _dates(name, array) if array.dtype.kind in "mM" else array.tolist(), column


def _plain(value: Any) -> Any:
    """Convert a numpy number or string to a Python value; dates stay as they are."""
    is_plain = isinstance(value, np.generic) and value.dtype.kind not in "mM"
    return value.item() if is_plain else value


def array_of(name: str, values: Any) -> Array:
    """Any value that numpy can read, as an array."""
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise InvalidInput(f"Sparse data was passed for {name}; use .toarray() to make it dense")
    try:
        array = np.asarray(values)
    except MemoryError:
        raise
    except Exception as error:  # a value of another library may raise anything
        raise InvalidInput(
            f"{name} cannot be read as an array: {check.error_text(error)}"
        ) from error
    check.unmasked(name, array, _FILL)
    return array


def _dates(name: str, array: Array) -> list[Any]:
    """Dates and durations as Python objects, None where missing.

    numpy itself turns some of them into integers.
    """
    missing = np.isnat(array)
    micro = _micro(name, array) if np.datetime_data(array.dtype)[0] in _FINE else array
    pairs = zip(micro.astype(object).tolist(), missing.tolist(), strict=True)
    out = [None if is_missing else value for value, is_missing in pairs]
    if any(isinstance(value, int) for value in out) or not _same(array, micro, missing):
        raise InvalidInput(
            f"{name} is of dtype {array.dtype}, whose values have no exact Python equivalent; "
            "pass strings, for instance by astype(str)"
        )
    return out


_FINE = ("ns", "ps", "fs", "as")


def _micro(name: str, array: Array) -> Array:
    """Convert dates or durations to microseconds."""
    try:
        return array.astype(f"{array.dtype.kind}8[us]")
    except (OverflowError, TypeError, ValueError) as error:  # years and months have no fixed length
        raise InvalidInput(f"{name} of dtype {array.dtype} cannot be read: {error}") from None


def _same(one: Array, other: Array, missing: Array) -> bool:
    """Whether dates are equal after a change of unit, which wraps around on overflow."""
    return bool(((other.astype(one.dtype) == one) | missing).all())


def times(time: Any, n: int) -> Array:
    """Times (b,) as numbers; dates become seconds, in UTC if they have a time zone."""
    array = moments(time)
    if array.dtype.kind == "M":
        array = array.astype(np.int64) / 1e6
    return check.per_row("time", array, n)


def moments(time: Any) -> Array:
    """Times as an array of numbers, or of dates in microseconds; refuse missing dates."""
    fill = "with a time for every row"
    check.unmasked("time", time, fill)
    if hasattr(time, "toarray") and hasattr(time, "nnz"):
        raise InvalidInput("time is sparse; use .toarray() to make it dense")
    try:
        array = np.asarray(time)
    except Exception as error:  # a value of another library may raise anything
        raise InvalidInput(f"time cannot be read as an array: {check.error_text(error)}") from error
    check.unmasked("time", array, fill)
    if array.dtype == object and any(hasattr(value, "year") for value in array.flat):
        utc = [_without_zone(value) for value in array.flat]  # date, datetime, pandas' Timestamp
        with contextlib.suppress(TypeError, ValueError):
            array = np.array(utc, "datetime64[us]").reshape(array.shape)
    if array.dtype.kind != "M":
        return check.numeric("time", array)
    if np.isnat(array).any():
        row = int(np.argmax(np.isnat(array)))
        raise InvalidInput(f"time is missing (NaT) at row {row} of X; every row needs one")
    micro = _micro("time", array)
    coarse = np.datetime_data(array.dtype)[0] not in _FINE
    if coarse and not _same(array, micro, np.zeros(array.shape, bool)):
        raise InvalidInput(
            "time has a date that is too far from 1970 to be counted in microseconds (the first "
            f"time is {check.shown(array.flat[0])}); pass numbers instead of dates"
        )
    return micro


def are_dates(time: Any) -> bool:
    """Whether times are dates, not numbers."""
    array = np.asarray(time)
    return array.dtype.kind == "M" or any(hasattr(value, "year") for value in array.flat)


def _without_zone(value: Any) -> Any:
    if getattr(value, "tzinfo", None) is None:
        return value
    return value.astimezone(datetime.UTC).replace(tzinfo=None)
