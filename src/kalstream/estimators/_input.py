"""Reading what users pass to an estimator: targets, weights, times, settings, and their sizes."""

from __future__ import annotations

import contextlib
import copy
import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from kalstream.core import _checks as check
from kalstream.core.mixture import Mixture
from kalstream.errors import InvalidInput, InvalidType, OutOfMemory

Array = NDArray[Any]
T = TypeVar("T")


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


def read_unit(unit: Any) -> float:
    """A unit of time, a number or a duration, as a number; of a duration in seconds."""
    given = unit
    if isinstance(unit, np.timedelta64):
        if np.datetime_data(unit.dtype)[0] in ("Y", "M"):
            raise InvalidInput(
                f"time_unit is {unit!r}; years and months differ in length, so give days: "
                'np.timedelta64(365, "D")'
            )
        unit = float(unit / np.timedelta64(1, "s"))
    elif isinstance(unit, datetime.timedelta):
        unit = unit.total_seconds()
    try:
        return check.positive("time_unit", unit)
    except InvalidInput:
        raise InvalidInput(
            "time_unit must be a finite number above 0, or a duration such as "
            f"datetime.timedelta(hours=1), got {check.shown(given)}"
        ) from None


def read_seed(random_state: Any) -> int:
    """A seed from what scikit-learn takes, or from a Generator, neither of which is moved."""
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
    """A path of a file; a number would be taken for an open file."""
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


def allocated(make: Callable[[], T], policy: Any, n_features: int, n_outputs: int, dtype: Any) -> T:
    """What make() returns, filters of this size, unless there is less memory than they need."""
    needed, available = _bytes_of(policy, n_features, n_outputs, dtype), available_bytes()
    if available is not None and needed > available:
        raise _too_large(policy, n_features, n_outputs, dtype, available)
    try:
        return make()
    except MemoryError as error:
        raise _too_large(policy, n_features, n_outputs, dtype, available) from error


def _too_large(
    policy: Any, n_features: int, n_outputs: int, dtype: Any, available: int | None
) -> OutOfMemory:
    """The error that says how much memory filters need, and how to need less."""
    n_filters = len(policy.half_lives) if isinstance(policy, Mixture) else 1
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


def _bytes_of(policy: Any, n_features: int, n_outputs: int, dtype: Any) -> int:
    """As `KalmanEstimator.nbytes_`, less what may wait."""
    n_filters = len(policy.half_lives) if isinstance(policy, Mixture) else 1
    return check.float_dtype(dtype).itemsize * n_filters * n_features * (n_features + n_outputs)


def available_bytes() -> int | None:
    """Memory that this process can still have, as far as the system tells; None if it does not."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    if not found:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):  # what the container allows
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found, default=None)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"
