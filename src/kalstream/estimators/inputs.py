"""Reading what users pass to an estimator: rows, targets, weights, seeds; and memory for them."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.policy import Policy
from kalstream.errors import InvalidInput, InvalidType, OutOfMemory
from kalstream.features.rows import bounded, is_numeric, is_table, read_rows

T = TypeVar("T")
_FEW = 5  # columns that a message lists


def read_columns(
    X: Any, fitted: dict[str, Any] | None, name: str, *, learns: bool = False
) -> tuple[Array, dict[str, Any]]:
    """Rows (b, d) as float64, NaN where a value is missing, and what is known of the columns.

    ``fitted`` holds what scikit-learn's contract knows of the columns, None before any row, and the
    `Encoding` of a table whose columns were not all numbers; ``name`` is that of the estimator, for
    messages. With ``learns``, new categories are learned.
    """
    if (
        fitted is not None
        and type(X) is np.ndarray
        and X.dtype == np.float64
        and X.ndim == 2
        and X.flags.carray
        and X.shape[1] == fitted["n_features_in_"]
        and "feature_names_in_" not in fitted
        and len(X)
    ):
        return bounded(X), fitted
    encodes = "encoding" in fitted if fitted is not None else is_table(X) and not is_numeric(X)
    if encodes and is_table(X):
        return _encoded(X, fitted, learns)
    columns = _columns_class(name)()
    columns.__dict__.update(fitted or {})
    try:
        rows = read_rows(columns, X, reset=fitted is None)
    except OutOfMemory:
        raise
    except InvalidInput as error:
        if not is_table(X):
            if (better := _explained(error, X, fitted)) is None:
                raise
            raise better from error
        if fitted is None:  # objects that are no numbers
            return _encoded(X, fitted, learns)
        try:
            rows = read_rows(columns, _by_name(X, fitted), reset=False)
        except InvalidInput:
            raise error from None
    return bounded(rows), dict(columns.__dict__) if fitted is None else fitted


def _encoded(X: Any, fitted: dict[str, Any] | None, learns: bool) -> tuple[Array, dict[str, Any]]:
    """As `read_columns`, for a table whose columns are not all numbers."""
    from kalstream.features.tables import read_table  # it imports pyarrow, which takes long

    before = None if fitted is None else fitted["encoding"]
    rows, encoding = read_table(X, before, learns=learns or before is None)
    if encoding is not before:
        fitted = {"n_features_in_": rows.shape[1], "encoding": encoding}
    assert fitted is not None
    return bounded(rows), fitted


def _explained(error: InvalidInput, X: Any, fitted: dict[str, Any] | None) -> InvalidInput | None:
    """The error for what is no table, with how to make one of it; None if there is no better."""
    if isinstance(X, Mapping) and not hasattr(X, "toarray"):  # scipy has a sparse dict
        return InvalidType("X is a dict; give a list of dicts, one for each row: [X] for one row")
    if fitted is not None and "encoding" in fitted:
        names = [*fitted["encoding"].inputs]
        shown = f"{names[:_FEW]}" + (f" and {len(names) - _FEW} more" if names[_FEW:] else "")
        return type(error)(
            f"X is of type {type(X).__name__}, but the model has learned a table with the columns "
            f"{shown}; give a table with these columns (frame.iloc[[0]] for one row of a frame)"
        )
    if getattr(getattr(X, "dtype", None), "kind", "") == "O":
        return type(error)(f"{error}; for columns of text give a table, such as pd.DataFrame(X)")
    return None


def _by_name(X: Any, fitted: dict[str, Any]) -> Any:
    """The columns of a table that are known, in the order that they had."""
    import pyarrow as pa

    from kalstream.features.frames import as_table

    table = as_table(X, wanted=list(fitted.get("feature_names_in_", ())))
    return pa.Table.from_batches([table])


@lru_cache
def _columns_class(name: str) -> type:
    """What scikit-learn notes columns in; its messages hold the name."""
    return type(name, (BaseEstimator,), {})


def read_values(y: Any) -> Array:
    """Targets of a regression (b,) or (b, K) as numbers, NaN where unknown."""
    if type(y) is np.ndarray and y.ndim in (1, 2) and y.dtype.kind in "fiub":
        return y
    if y is None:
        raise InvalidInput(
            "KalmanRegressor requires y to be passed, but the target y is None; "
            "give one number per row, NaN where it is unknown"
        )
    _refuse_sparse("y", y)
    if getattr(getattr(y, "dtype", None), "kind", None) == "c":
        raise InvalidInput("Complex data not supported: y must be real numbers")
    check.unmasked("y", y, "with NaN where a target is unknown")
    values = check.numeric("y", _plain_numbers(y))
    if values.ndim not in (1, 2):
        got = f"is {check.shown(y)}" if values.ndim == 0 else f"has shape {values.shape}"
        raise InvalidInput(f"y {got}; give one number, or one list of numbers, for each row of X")
    return values


def _plain_numbers(y: Any) -> Any:
    """A nullable column of pandas as an array with NaN; others as they are."""
    dtype = getattr(y, "dtype", None)
    if isinstance(dtype, np.dtype) or getattr(dtype, "kind", "?") not in ("b", "i", "u", "f"):
        return y
    return y.to_numpy(dtype=np.float64, na_value=np.nan) if hasattr(y, "to_numpy") else y


def read_weights(sample_weight: Any, n: int, name: str = "sample_weight") -> Array | None:
    """Weights (b,) of rows, at least 0; None for none."""
    if sample_weight is None:
        return None
    _refuse_sparse(name, sample_weight)
    check.unmasked(name, sample_weight, "with 0 where a row is not to count")
    # -0.0 is 0, and a division by it must not give -inf
    return check.non_negative_rows(name, sample_weight, n) + 0.0


def read_seed(random_state: Any) -> int:
    """A seed from a random_state of scikit-learn or a Generator, neither of which is advanced."""
    try:
        if isinstance(random_state, np.random.Generator):
            random_state = int(copy.deepcopy(random_state).integers(2**31))
        source = check_random_state(copy.deepcopy(random_state))
        return int(source.randint(np.iinfo(np.int32).max))
    except Exception as error:
        raise InvalidInput(
            f"random_state must be None, an integer in [0, 2**32 - 1], a RandomState or a "
            f"Generator, got {check.shown(random_state)}"
        ) from error


def read_path(path: Any) -> Any:
    """The path of a file. A number is refused: Python would take it for an open file."""
    try:
        return os.fspath(path)
    except TypeError:
        raise InvalidType(
            f"path must be a string or a path, such as 'model.safetensors', got {check.shown(path)}"
        ) from None


def _refuse_sparse(name: str, value: Any) -> None:
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        raise InvalidType(
            f"Sparse data was passed for {name}, but dense data is required; use {name}.toarray()"
        )


# ---- sizes ---------------------------------------------------------------------------------------


def allocated(
    make: Callable[[], T], policy: Policy, n_features: int, n_outputs: int, dtype: Any
) -> T:
    """The filters that make() returns, unless they need more memory than there is."""
    needed, available = _bytes_of(policy, n_features, n_outputs, dtype), available_bytes()
    if available is not None and needed > available:
        raise _too_large(policy, n_features, n_outputs, dtype, available)
    try:
        return make()
    except MemoryError as error:
        raise _too_large(policy, n_features, n_outputs, dtype, available) from error


def _too_large(
    policy: Policy, n_features: int, n_outputs: int, dtype: Any, available: int | None
) -> OutOfMemory:
    """The error that says how much memory filters need, and how to need less."""
    n_filters = policy.n_filters
    needed = _bytes_of(policy, n_features, n_outputs, dtype)
    limit = "" if available is None else f", and {_size(available)} are available"
    filters = f"{n_filters} filters" if n_filters > 1 else "a filter"
    return OutOfMemory(
        f"the columns of X make {n_features} features; {filters} over them with {n_outputs} "
        f"outputs would need {_size(needed)} of memory in {np.dtype(dtype)}{limit}. Memory grows "
        "with the square of the features: pass fewer columns (scikit-learn's IncrementalPCA and "
        "FeatureHasher make fewer), lower n_components, or use dtype='float32' or a single "
        "filter (forgetting=0.999)"
    )


def _bytes_of(policy: Policy, n_features: int, n_outputs: int, dtype: Any) -> int:
    """As `KalmanEstimator.nbytes_`, without the buffer of pending rows."""
    lengths = [order * n_features for order in policy.orders]
    size = sum(length * (length + n_outputs) for length in lengths)
    return check.float_dtype(dtype).itemsize * size


def available_bytes() -> int | None:
    """Memory that this process can still get, in bytes; None if the system does not tell."""
    limits = []
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [
            1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")
        ]
    if not limits:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):  # what the container allows
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits, default=None)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"
