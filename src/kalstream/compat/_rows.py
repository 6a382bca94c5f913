"""Rows of river as arrays: dicts and DataFrames whose features come and go."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Hashable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np

from kalstream._arrays import Array
from kalstream._optional import require
from kalstream.core import checks as check
from kalstream.errors import InvalidInput
from kalstream.estimators.inputs import read_values

Columns = dict[Hashable, int]

_TARGET: Final = "pass one finite number, or None where the target is unknown"
_NAN: Final = math.nan
_LEAVE_OUT: Final = "leave the feature out where its value is unknown, or scale it"
_NUMBERS: Final = (float, int, np.floating, np.integer, np.bool_, Decimal, Fraction)


def _grown(columns: Columns, estimator: Any, names: Iterable[Hashable]) -> tuple[Columns, Any]:
    """Columns with new names appended, sorted among themselves, and an estimator for them.

    The estimator is a copy, so that nothing has changed if learning fails.
    """
    ranked = sorted(names, key=lambda name: (type(name).__name__, str(name)))
    columns = columns | {name: k for k, name in enumerate(ranked, start=len(columns))}
    if "_published" in estimator.__dict__:
        estimator = copy.copy(estimator)
        # Before any row had a value, there is one column without a name.
        n_new = len(columns) - estimator.n_features_in_
        if n_new > 0:
            estimator.add_columns(n_new)
    return columns, estimator


def _row(x: Mapping[Hashable, Any], columns: Columns, fresh: list[Hashable] | None = None) -> Array:
    """Row (1, d) of known features, NaN where missing; appends new features to `fresh`."""
    row = [_NAN] * (len(columns) or 1)
    for name, value in _items(x):
        k = columns.get(name)
        if k is not None:
            # for NaN and infinity, value - value is NaN
            plain = type(value) is float and value - value == 0.0
            row[k] = value if plain else _number(name, value)
        elif fresh is not None and not math.isnan(_number(name, value)):
            _check_name(name)
            fresh.append(name)
    return np.array([row])


def _items(x: Any) -> Iterable[tuple[Hashable, Any]]:
    """Names and values of a row."""
    if type(x) is dict:
        return x.items()
    items = getattr(x, "items", None)
    if items is None:
        raise InvalidInput(
            f"x must be a dict of features, such as {{'a': 1.0}}, got {check.shown(x)}"
        )
    pairs = list(items())
    if len({name for name, _ in pairs}) < len(pairs):
        raise InvalidInput(f"x has a feature more than once: {check.shown(x)}; keep one of them")
    return pairs


def _check_name(name: Hashable) -> None:
    """Refuse a feature's name that is not equal to itself, as NaN, or that has no text."""
    try:
        same = bool(name == name) and bool(str(name) or True)
    except Exception:  # a class can raise any error here
        same = False
    if not same:
        raise InvalidInput(
            f"a feature is named {check.shown(name)}, which is not equal to itself or has no text; "
            "use a string"
        )


def _unwrapped(y: Any) -> Any:
    """The number in an array without dimensions; any other value unchanged."""
    return y.item() if type(y) is np.ndarray and y.ndim == 0 else y


def _number(name: Hashable, value: Any, remedy: str = "") -> float:
    """A value as a float, NaN if it is missing."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return _NAN
    what = "y" if remedy else f"feature {check.shown(name)}"
    if isinstance(value, _NUMBERS) and type(value).__name__ != "timedelta64":
        try:
            number = float(value)
        except (ArithmeticError, ValueError):  # too large, or Decimal's signalling NaN
            number = math.inf
        if math.isinf(number):
            raise InvalidInput(
                f"{what} is {check.shown(value)}, too large for a float; {remedy or _LEAVE_OUT}"
            )
        return number
    remedy = remedy or (
        "encode it with river.preprocessing.OneHotEncoder() or leave it out with "
        f"river.compose.Discard({check.shown(name)}), before this model in a pipeline"
    )
    raise InvalidInput(
        f"{what} is {check.shown(value)}, a {type(value).__name__}; values must be numbers or "
        f"bools: {remedy}"
    )


def _frame(X: Any, only: Columns | None = None, without: Hashable = _NAN) -> dict[Hashable, Array]:
    """Columns of a DataFrame as float64, NaN where missing; all, or those in `only`."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, pandas.DataFrame):
        raise InvalidInput(
            f"X is a {type(X).__name__}; give a pandas DataFrame, or rows one by one to learn_one"
        )
    if not X.columns.is_unique:
        name = X.columns[X.columns.duplicated()][0]
        raise InvalidInput(f"X has more than one column {name!r}; rename or drop one")
    frame = {}
    for k, name in enumerate(X.columns):
        if name == without or (only is not None and name not in only):
            continue
        _check_name(name)
        values = X.iloc[:, k]
        if isinstance(values.dtype, np.dtype) and values.dtype.kind in "fiub":
            array = values.to_numpy(dtype=np.float64)
            if np.isinf(array).any():
                _number(name, float(array[np.isinf(array)][0]))
            frame[name] = array
        else:
            frame[name] = np.array([_number(name, value) for value in values.tolist()])
    return frame


def _rows(frame: dict[Hashable, Array], columns: Columns, part: slice) -> Array:
    """Rows (b, d) of one slice of a frame, NaN where missing."""
    rows = np.full((part.stop - part.start, len(columns) or 1), _NAN)
    for name, k in columns.items():
        if name in frame:
            rows[:, k] = frame[name][part]
    return rows


def _targets(y: Any) -> Array:
    """Targets (b,) of the rows of a frame."""
    values = read_values(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InvalidInput(f"y has shape {values.shape}; give one number for each row of X")
    return values


def _gaussian(mean: float, std: float) -> Any:
    """A `river.proba.Gaussian`."""
    gaussian = require("river.proba", "river").Gaussian
    return gaussian._from_state(n=1, m=mean, var=std**2, ddof=0)
