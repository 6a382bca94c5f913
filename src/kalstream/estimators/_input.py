"""Reading what users pass: rows of numbers, and times."""

from __future__ import annotations

import contextlib
import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.core import _checks as check
from kalstream.errors import InvalidInput

Array = NDArray[Any]


def bounded(rows: Array) -> Array:
    """Rows of which no number is so large that its square is not a number; NaN is fine."""
    if check.sum_of_squares(rows) < np.inf:
        return rows
    large = np.abs(rows) > check.LARGEST_FLOAT64
    if large.any():
        row, column = np.argwhere(large)[0]
        what = "contains infinity" if np.isinf(rows).any() else f"holds {rows[row, column]:g}"
        raise InvalidInput(
            f"X {what} in row {row}, column {column}; scale it, or put NaN for a missing value"
        )
    return rows


def blame_column(X: Any, error: Exception) -> None:
    """Name the column of a DataFrame that holds no numbers."""
    for name, kind in getattr(X, "dtypes", {}).items() if hasattr(X, "columns") else ():
        if getattr(kind, "kind", "O") in "mM":
            remedy = "pass it as time=..., or turn it into numbers"
        elif not hasattr(kind, "kind") or kind.kind not in "biuf":
            remedy = "encode it, with scikit-learn's OneHotEncoder or OrdinalEncoder say"
        else:
            continue
        raise InvalidInput(f"column {name!r} of X is of dtype {kind}; {remedy}") from error


def as_times(time: Any, n: int) -> Array:
    """Times (b,) as numbers; dates in seconds, those with a zone in UTC."""
    array = np.asarray(time)
    if array.dtype == object and any(hasattr(value, "year") for value in array.flat):
        utc = [_without_zone(value) for value in array.flat]  # date, datetime, pandas' Timestamp
        with contextlib.suppress(TypeError, ValueError):
            array = np.array(utc, "datetime64[us]").reshape(array.shape)
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            row = int(np.argmax(np.isnat(array)))
            raise InvalidInput(f"time is missing (NaT) at row {row} of X; every row needs one")
        array = array.astype("datetime64[us]").astype(np.int64) / 1e6
    return check.per_row("time", array, n)


def are_dates(time: Any) -> bool:
    """Whether times are dates, not numbers."""
    array = np.asarray(time)
    return array.dtype.kind == "M" or any(hasattr(value, "year") for value in array.flat)


def _without_zone(value: Any) -> Any:
    if getattr(value, "tzinfo", None) is None:
        return value
    return value.astimezone(datetime.UTC).replace(tzinfo=None)
