"""Read rows of numbers from arrays, lists and frames of pandas, polars and pyarrow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from kalstream.core import checks as check
from kalstream.errors import InvalidInput, InvalidType, OutOfMemory

Array = NDArray[Any]

_ENCODE: Final = "encode it, for example with scikit-learn's OneHotEncoder"
_AS_TIME: Final = "pass it as time=..., or convert it to numbers"
_NUMBERS: Final = re.compile(r"(u?int|float)\d|double|half|bool|decimal|null|object")
_SET_BY_SKLEARN: Final = "n_features_in_", "feature_names_in_"


def read_rows(estimator: Any, X: Any, *, reset: bool) -> Array:
    """Rows (b, d) as float64, NaN where a value is missing, checked by scikit-learn.

    With ``reset``, the estimator stores the number and names of the columns of X. If X is invalid,
    the estimator is unchanged and the error is a `KalstreamError`.
    """
    before = {
        name: estimator.__dict__[name] for name in _SET_BY_SKLEARN if name in estimator.__dict__
    }
    try:
        _refuse(X)
        rows = validate_data(
            estimator, X, reset=reset, dtype=np.float64, order="C", ensure_all_finite="allow-nan"
        )
        # Pandas gives read-only memory, for which numba would compile the kernels again.
        return rows if rows.flags.carray else rows.copy()
    except Exception as error:
        if reset:
            estimator.__dict__.update(before)
            for name in set(_SET_BY_SKLEARN) & set(estimator.__dict__) - set(before):
                del estimator.__dict__[name]
        if isinstance(error, InvalidInput):
            raise
        if isinstance(error, MemoryError):
            raise OutOfMemory(
                f"X does not fit in memory as float64: {check.error_text(error)}; pass fewer rows "
                "at once"
            ) from error
        _blame_column(X, error)
        kind = InvalidType if isinstance(error, TypeError) else InvalidInput
        raise kind(f"X cannot be read as rows of numbers: {check.error_text(error)}") from error


def is_table(X: Any) -> bool:
    """Whether X has named columns: a frame of any library, a relation, or a list of dicts."""
    if isinstance(X, list | tuple):
        return len(X) > 0 and isinstance(X[0], Mapping)
    if isinstance(X, np.ndarray):
        return False
    import narwhals.stable.v2 as nw

    try:
        frame: Any = nw.from_native(X, pass_through=True, allow_series=True)
    except nw.exceptions.NarwhalsError:
        return True  # two columns of one name, which `as_table` refuses
    if isinstance(frame, nw.Series):
        return False
    return isinstance(frame, nw.DataFrame | nw.LazyFrame) or hasattr(X, "__arrow_c_stream__")


def is_numeric(X: Any) -> bool:
    """Whether the types of a table's columns are numbers; objects may be."""
    import narwhals.stable.v2 as nw

    try:
        frame: Any = nw.from_native(X, pass_through=True)
    except nw.exceptions.NarwhalsError:
        return True  # scikit-learn takes two columns of one name
    if not isinstance(frame, nw.DataFrame):
        return False
    return not any(_not_numbers(dtype) for _, dtype in _columns(X))


def bounded(rows: Array) -> Array:
    """The rows, checked to have finite squares; NaN is allowed."""
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


def _refuse(X: Any) -> None:
    """Refuse masked values and dates, which numpy would silently convert to numbers."""
    check.unmasked("X", X)
    if hasattr(X, "toarray") and hasattr(X, "nnz"):
        raise InvalidType(
            "X cannot be read as rows of numbers: Sparse data was passed, but dense data is "
            "required; use X.toarray(). With more than some hundred columns, make fewer first: "
            "HashingVectorizer(n_features=256) for texts, FeatureHasher or TruncatedSVD for others"
        )
    kind = getattr(getattr(X, "dtype", None), "kind", "")
    if kind in ("M", "m"):
        raise InvalidInput(f"X is of dtype {X.dtype}; {_AS_TIME}")
    for k, (name, dtype) in enumerate(_columns(X)):
        if remedy := _not_numbers(dtype):
            if remedy == _AS_TIME:
                raise InvalidInput(f"column {name!r} of X is of dtype {dtype}; {remedy}")
        elif str(dtype) == "object" and hasattr(X, "iloc"):
            check.unmasked(f"column {name!r} of X", X.iloc[:, k].to_numpy())


def _blame_column(X: Any, error: Exception) -> None:
    """Raise an error that names the column of a frame which is not numeric."""
    for name, dtype in _columns(X):
        remedy = _ENCODE if str(dtype) == "object" else _not_numbers(dtype)
        if remedy:
            raise InvalidInput(f"column {name!r} of X is of dtype {dtype}; {remedy}") from error


def _columns(X: Any) -> Iterator[tuple[Any, Any]]:
    """Names and types of the columns of a frame of pandas, polars or pyarrow."""
    schema = getattr(X, "schema", None)
    if schema is not None and hasattr(schema, "types"):  # pyarrow
        yield from zip(schema.names, schema.types, strict=True)
    elif hasattr(X, "columns") and hasattr(X, "dtypes"):
        yield from zip(X.columns, X.dtypes, strict=False)


def _not_numbers(dtype: Any) -> str:
    """Remedy for a column of this type; empty if it can be converted to numbers."""
    kind, name = getattr(dtype, "kind", None), str(dtype).lower()
    if kind in ("M", "m") or name.startswith(("date", "time", "duration", "period")):
        return _AS_TIME
    numbers = (isinstance(kind, str) and kind in "biuf") or _NUMBERS.match(name)
    return "" if numbers else _ENCODE
