"""Argument checks of the core: each error names the argument, the value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from kalstream._arrays import Array
from kalstream.errors import InvalidInput

T = TypeVar("T")

_new: Final = object.__new__

# Squares of features and targets, and sums of many of them, must not overflow.
LARGEST_FLOAT64: Final = 1e100
LARGEST_FLOAT32: Final = 1e15
LARGEST_VARIANCE: Final = 1e50
# Larger counts of features, outputs or samples do not fit into memory.
_LARGEST_COUNT: Final = 10**9

_FLOAT64: Final = np.dtype(np.float64)
_INT64: Final = np.dtype(np.int64)
_NO_LABELS: Final = np.empty(0, np.int64)
_NO_VALUES: Final = np.empty((0, 0))


def scalar(name: str, value: Any) -> float:
    """One number."""
    try:
        array = np.asarray(value)
    except Exception:  # a value of another library may raise anything
        array = np.empty(0)
    if array.ndim != 0 or array.dtype.kind not in "fiub" or isinstance(value, np.ma.MaskedArray):
        raise InvalidInput(f"{name} must be one number, got {shown(value)}")
    return float(array)


def finite(name: str, value: Any) -> float:
    """One finite number."""
    number = scalar(name, value)
    if not math.isfinite(number):
        raise InvalidInput(f"{name} must be a finite number, got {value!r}")
    return number


def positive(name: str, value: float) -> float:
    """A finite scalar above zero."""
    number = value if isinstance(value, float) else scalar(name, value)
    if not (math.isfinite(number) and number > 0.0):
        raise InvalidInput(f"{name} must be a finite number above 0, got {shown(value)}")
    return number


def variance(name: str, value: float, dtype: Any) -> float:
    """A scalar above zero whose products with other variances do not overflow in the dtype."""
    number = positive(name, value)
    limit = LARGEST_FLOAT32 if dtype == np.float32 else LARGEST_VARIANCE
    if not 1.0 / limit <= number <= limit:
        raise InvalidInput(
            f"{name} must lie between {1.0 / limit:g} and {limit:g} in {np.dtype(dtype)}, "
            f"got {shown(value)}; rescale features or targets"
        )
    return number


def factor(name: str, value: float) -> float:
    """A scalar above zero whose products with logits stay finite."""
    number = positive(name, value)
    if not 1.0 / LARGEST_VARIANCE <= number <= LARGEST_VARIANCE:
        raise InvalidInput(
            f"{name} must lie between {1.0 / LARGEST_VARIANCE:g} and {LARGEST_VARIANCE:g}, "
            f"got {value!r}"
        )
    return number


def unit_interval(name: str, value: float) -> float:
    """A scalar in [0, 1]."""
    number = value if isinstance(value, float) else scalar(name, value)
    if not 0.0 <= number <= 1.0:
        note = " (1 forgets nothing, 0 everything)" if "gamma" in name else ""
        raise InvalidInput(f"{name} must lie in [0, 1]{note}, got {shown(value)}")
    return number


def instance(name: str, value: Any, kind: Any) -> None:
    """An object of this class, or one of several (``A | B``); the error says what went wrong."""
    if not isinstance(value, kind):
        remedy = "unpack what a step returns: state, step = ..." if type(value) is tuple else ""
        if hasattr(value, "posterior"):
            remedy = "a policy's state goes to that policy's methods, and has add_outputs itself"
        kinds = [each.__name__ for each in getattr(kind, "__args__", (kind,))]
        listed = " or ".join(each for each in kinds if each != "NoneType")
        got = type(value).__name__
        if isinstance(value, type):
            got, remedy = f"the class {value.__name__}", "call it"
        given = f"{name} must be a {listed}, got {got}"
        raise InvalidInput(f"{given}; {remedy}" if remedy else given)


def sequence(name: str, value: Any) -> tuple[float, ...]:
    """A sequence of at least one number."""
    if hasattr(value, "__array__"):
        array = numeric(name, value)
        value = array.tolist() if array.ndim == 1 else ()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) == 0:
        raise InvalidInput(f"{name} must be a sequence of at least one number, got {shown(value)}")
    return tuple(scalar(name, item) for item in value)


def count(name: str, value: int) -> int:
    """An integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidInput(f"{name} must be an integer of at least 1, got {shown(value)}")
    if value > _LARGEST_COUNT:
        raise InvalidInput(f"{name} must be at most {_LARGEST_COUNT:,}, got {shown(value)}")
    return int(value)


def choice(name: str, value: str, options: tuple[str, ...]) -> str:
    """One of the given words."""
    if not isinstance(value, str) or value not in options:
        raise InvalidInput(
            f"{name} must be one of {', '.join(map(repr, options))}, got {shown(value)}"
        )
    return value


def generator(name: str, seed: Any) -> np.random.Generator:
    """A random generator from a seed, a generator or None."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{name} must be an integer, a Generator or None, got {shown(seed)}"
        ) from None


def flag(name: str, value: bool) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInput(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def float_dtype(dtype: Any) -> np.dtype[Any]:
    """float64 or float32."""
    try:
        resolved = np.dtype(dtype)
    except Exception:  # numpy raises several kinds
        resolved = np.dtype(object)
    if resolved not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise InvalidInput(f"dtype must be float64 or float32, got {shown(dtype)}")
    return resolved


def feature_rows(features: ArrayLike, n_features: int, dtype: Any) -> Array:
    """Chunk features as a C-ordered (b, m) array of finite numbers."""
    rows = numeric("features", features)
    if rows.shape[0:1] == (0,):
        raise InvalidInput("features holds no rows; skip empty chunks before the filter")
    if rows.ndim != 2 or rows.shape[1] != n_features:
        raise InvalidInput(
            f"features must have shape (b, {n_features}), got {rows.shape}; give one column "
            "for each feature of the posterior, and a single row x as x[None]"
        )
    _bounded("features", rows, dtype)
    return np.ascontiguousarray(rows, dtype=dtype)


def matrix(name: str, value: ArrayLike) -> Array:
    """A float64 array of two dimensions."""
    array = numeric(name, value)
    if array.ndim != 2 or array.shape[1] == 0:
        raise InvalidInput(f"{name} must have two dimensions, got shape {array.shape}")
    _finite(name, array)
    return array.astype(np.float64)


def feature_vector(features: ArrayLike, n_features: int, dtype: Any) -> Array:
    """Features of one row as an (m,) array of finite numbers."""
    vector = numeric("features", features)
    if vector.shape != (n_features,):
        raise InvalidInput(
            f"features must have shape ({n_features},), got {vector.shape}; "
            "give one row as a vector, and a chunk of rows to step_chunk"
        )
    return feature_rows(vector[None], n_features, dtype)[0]


def per_row(name: str, value: Any, n_rows: int) -> Array:
    """A float64 array (b,), from a scalar or one number per row; NaN and inf are refused."""
    numbers = numeric(name, value).astype(np.float64)
    if numbers.ndim == 0:
        numbers = np.full(n_rows, numbers)
    if numbers.shape != (n_rows,):
        raise InvalidInput(
            f"{name} must be a scalar or have shape ({n_rows},), got {numbers.shape}"
        )
    _finite(name, numbers)
    return numbers


def gammas(value: Any, n_rows: int) -> Array:
    """Per-row forgetting coefficients in [0, 1], shape (b,)."""
    if isinstance(value, float) or numeric("gamma", value).ndim == 0:
        return np.full(n_rows, unit_interval("gamma", value))
    gamma = per_row("gamma", value, n_rows)
    if (gamma < 0.0).any() or (gamma > 1.0).any():
        unit_interval("gamma", float(gamma[(gamma < 0.0) | (gamma > 1.0)][0]))
    return gamma


def non_negative_rows(name: str, value: Any, n_rows: int) -> Array:
    """Per-row numbers of at least zero, shape (b,)."""
    if isinstance(value, float) and 0.0 <= value < math.inf:
        return np.full(n_rows, value)
    numbers = per_row(name, value, n_rows)
    if (numbers < 0.0).any():
        raise InvalidInput(f"{name} must not be negative, got {numbers[numbers < 0.0][0]}")
    return numbers


class Targets:
    """Targets of a chunk: class labels or dense values, and which rows have one.

    Attributes
    ----------
    labels : (b,) int64 or None
        Class of each row, -1 where unknown; None for dense targets.
    dense : (b, K) float64 or None
        Values of each row, 0 where unknown; None for labels.
    observed : (b,) bool
        False where the row is only predicted.
    """

    __slots__ = ("dense", "labels", "observed")

    def __init__(self, labels: Array | None, dense: Array | None, observed: Array) -> None:
        self.labels, self.dense, self.observed = labels, dense, observed

    def __getitem__(self, rows: slice | Array) -> Targets:
        return Targets(
            None if self.labels is None else self.labels[rows],
            None if self.dense is None else self.dense[rows],
            self.observed[rows],
        )

    def arrays(self) -> tuple[Array, Array]:
        """Labels (b,) and dense (b, K) for compiled code; the absent one is empty."""
        labels = _NO_LABELS if self.labels is None else self.labels
        return labels, _NO_VALUES if self.dense is None else self.dense

    def minus(self, prediction: Array) -> Array:
        """Targets minus a (b, K) prediction; one-hot rows are never formed."""
        if self.dense is not None:
            return self.dense - prediction
        assert self.labels is not None
        difference = -prediction
        rows = np.flatnonzero(self.labels >= 0)
        difference[rows, self.labels[rows]] += 1.0
        return difference


def targets(value: Any, n_rows: int, n_outputs: int, dtype: Any = np.float64) -> Targets:
    """Read targets of a chunk for a posterior of this dtype.

    Integers of shape (b,) are class labels, -1 meaning unknown. Floats of shape (b, K),
    or (b,) when there is one output, are values, NaN meaning unknown. Floats of shape (b,) with
    several outputs are labels with NaN for unknown.
    """
    if isinstance(value, Targets):
        return value
    array = numeric("targets", value)
    if array.shape == (n_rows,):
        if array.dtype.kind in "iub":
            return _labels(array, n_outputs)
        if n_outputs > 1:
            return _float_labels(array, n_outputs)
        array = array[:, None]
    if array.shape != (n_rows, n_outputs):
        raise InvalidInput(
            f"targets must be ({n_rows},) integer labels or ({n_rows}, {n_outputs}) values, "
            f"got shape {array.shape}; give one target per row of features, "
            "and labels as a flat array (y.ravel())"
        )
    dense = array.astype(np.float64)
    missing = np.isnan(dense)
    observed = np.logical_not(missing.any(axis=1))
    if np.any(~observed & ~missing.all(axis=1)):
        raise InvalidInput(
            "targets has a row that is only partly NaN; outputs share one covariance, so a row "
            "is observed whole or not at all: make it all NaN or fill it in"
        )
    dense[missing] = 0.0
    _bounded("targets", dense, dtype)
    return Targets(None, dense, observed)


def single_target(value: Any, n_outputs: int, dtype: Any = np.float64) -> Targets:
    """Read the target of one row: a label, a number, or (K,) values."""
    array = numeric("target", value)
    if array.shape not in ((), (n_outputs,)):
        raise InvalidInput(
            f"target must be a label, a number or have shape ({n_outputs},), got {array.shape}"
        )
    return targets(array[None], 1, n_outputs, dtype)


def _labels(labels: Array, n_outputs: int) -> Targets:
    """Read labels that are whole numbers of any numeric type."""
    if len(labels) and (labels.max() >= n_outputs or labels.min() < -1):
        bad = labels[(labels >= n_outputs) | (labels < -1)][0]
        remedy = "grow the posterior with add_outputs first"
        if bad < 0:
            remedy = "use -1 for an unknown label"
        elif n_outputs == 1:
            remedy = "integers are class labels: for regression pass floats"
        raise InvalidInput(f"targets holds label {bad:g}, outside 0..{n_outputs - 1}; {remedy}")
    whole = labels.astype(np.int64, copy=False)
    return Targets(whole, None, whole >= 0)


def _float_labels(array: Array, n_outputs: int) -> Targets:
    known = ~np.isnan(array)
    values = array[known]
    if not (np.isfinite(values).all() and (values == np.floor(values)).all()):
        raise InvalidInput(
            f"targets of shape {array.shape} must be labels when there are {n_outputs} outputs; "
            f"for values give shape ({array.shape[0]}, {n_outputs})"
        )
    if (values < 0.0).any():
        raise InvalidInput("targets holds a negative float label; use NaN for an unknown label")
    return _labels(np.where(known, array, -1.0), n_outputs)


def trusted(cls: type[T], *values: Any) -> T:
    """Make a frozen dataclass with slots without the checks of its `__post_init__`.

    Use it for values that were just computed. The checks would take as long as learning a row.
    """
    result = _new(cls)
    for set_slot, value in zip(_slots(cls), values, strict=True):  # type: ignore[arg-type]
        set_slot(result, value)
    return result


@cache
def _slots(cls: Any) -> tuple[Any, ...]:
    """Setters of the slots of a class; they are twice as fast as object.__setattr__."""
    return tuple(getattr(cls, name).__set__ for name in cls.__slots__)


def is_block(value: Any, shape: tuple[int, ...], dtype: Any = _FLOAT64) -> bool:
    """Whether a value is a C-ordered array of this shape and dtype, as compiled code needs it."""
    return (
        type(value) is np.ndarray
        and value.shape == shape
        and value.dtype == dtype
        and value.flags.c_contiguous
    )


def block(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    """A C-ordered float64 array of exactly this shape."""
    if is_block(value, shape):
        return value
    array = numeric(name, value)
    if array.shape != shape:
        raise InvalidInput(f"{name} must have shape {shape}, got {array.shape}")
    return np.ascontiguousarray(array, _FLOAT64)


def integers(name: str, value: Any, n_rows: int) -> Array:
    """Integers (b,), of any range, as C-ordered int64."""
    if is_block(value, (n_rows,), _INT64):
        return value
    array = numeric(name, value)
    if array.shape != (n_rows,) or array.dtype.kind not in "iu":
        raise InvalidInput(
            f"{name} must be {n_rows} integers, one per row of the step, got {kind_of(array)}"
        )
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise InvalidInput(f"{name} holds {array.max()}, which is larger than any int64")
    return np.ascontiguousarray(array, _INT64)


def columns(name: str, value: Any, n_columns: int) -> Array:
    """Indices (K',) of different columns, at least one, each in 0..n_columns - 1."""
    array = numeric(name, value)
    known = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
    if not (known and array.min() >= 0 and array.max() < n_columns):
        raise InvalidInput(
            f"{name} must be a sequence of integers in 0..{n_columns - 1}, got {value!r}"
        )
    if len(np.unique(array)) < len(array):
        raise InvalidInput(f"{name} names a column twice, got {value!r}; name each once")
    return array.astype(np.int64)


def kind_of(value: Any) -> str:
    """Describe the type of a value for a message."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return type(value).__name__


def numeric(name: str, value: Any) -> Array:
    """An array of real numbers."""
    if type(value) is np.ndarray and value.dtype.kind in "fiub":
        return value
    fill = "with NaN (or -1) for an unknown target" if name.startswith("target") else "first"
    unmasked(name, value, fill)
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and not any(isinstance(x, str) for x in array.flat):
            array = array.astype(np.float64)  # None and pandas' missing values become NaN
    except MemoryError:
        raise
    except Exception as error:  # a value of another library may raise anything
        raise InvalidInput(f"{name} must be an array of numbers: {error_text(error)}") from None
    if array.dtype.kind not in "fiub":
        remedy = ""
        if name.startswith("target"):
            remedy = "; encode labels as 0..K-1, as np.unique(y, return_inverse=True) does"
        raise InvalidInput(f"{name} must be real numbers, got dtype {array.dtype}{remedy}")
    return array


def limited(name: str, array: Array, limit: float) -> None:
    """Refuse NaN, inf, and numbers beyond a limit."""
    if array.size and not (float(array.max()) <= limit and float(array.min()) >= -limit):
        # With np.float64, the limit does not overflow in a comparison with float32.
        where = tuple(int(i) for i in np.argwhere(~(np.abs(array) <= np.float64(limit)))[0])
        raise InvalidInput(
            f"{name} holds {array[where]} at index {where}; give numbers between {-limit:g} and "
            f"{limit:g}"
        )


def unmasked(name: str, value: Any, fill: str = "with NaN where a value is unknown") -> None:
    """Refuse masked arrays, also in lists and object arrays, because numpy ignores their masks."""
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidInput(f"{name} is a masked array; fill it {fill}")
    if _holds_masked(value):
        raise InvalidInput(f"{name} holds a masked array or value; fill it {fill}")


def _holds_masked(value: Any, depth: int = 4) -> bool:
    if isinstance(value, np.ndarray) and value.dtype == object:
        items: Any = value.ravel().tolist()
    elif isinstance(value, list | tuple):
        items = value
    else:
        return isinstance(value, np.ma.MaskedArray)
    kinds = set(map(type, items))
    if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
        return True
    nested = any(issubclass(kind, list | tuple | np.ndarray) for kind in kinds)
    return nested and depth > 0 and any(_holds_masked(item, depth - 1) for item in items)


def shown(value: Any, limit: int = 80) -> str:
    """Format a value for an error message: short, on one line, even if its repr fails."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # 10**5000 has no repr, and a class may raise anything
        return f"a {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}... (a {type(value).__name__})"


def error_text(error: BaseException, limit: int = 400) -> str:
    """Shorten the text of another library's error for an error message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[:limit]}..."


def sum_of_squares(array: Array) -> float:
    """Sum of the squares of all elements; inf or NaN if one is, or on overflow."""
    return float(np.vdot(array, array))  # vdot does not warn on overflow, dot does


def _finite(name: str, array: Array) -> None:
    _bounded(name, array, np.float64)


def _bounded(name: str, array: Array, dtype: Any) -> None:
    """Refuse NaN, inf, and numbers whose squares, summed, would overflow in dtype."""
    limit = LARGEST_FLOAT32 if dtype == np.float32 else LARGEST_FLOAT64
    if array.size == 0:
        return
    # This takes one pass instead of two. NaN fails the comparison.
    if array.dtype == np.float64 and sum_of_squares(array) <= limit * limit:
        return
    # This makes no copy, and NaN fails both comparisons.
    if not (float(array.max()) <= limit and float(array.min()) >= -limit):
        where = tuple(int(i) for i in np.argwhere(~(np.abs(array.astype(float)) <= limit))[0])
        bad = array[where]
        remedy = "scale it" if np.isfinite(bad) else "impute or drop it before the filter"
        raise InvalidInput(f"{name} holds {bad} at index {where}; {remedy}")
