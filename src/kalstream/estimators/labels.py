"""Class labels of any type, and the columns of the filter that stand for them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

import numpy as np
from immutables import Map
from sklearn.exceptions import DataConversionWarning

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core import reading
from kalstream.errors import InvalidInput

_PLAIN: Final = frozenset({int, str, bool, bytes, type(None)})


@dataclass(frozen=True)
class Labels:
    """Labels in the order of their columns. Never changed.

    Examples
    --------
    >>> labels = Labels(("b", "a"))
    >>> labels.classes.tolist(), labels.order.tolist()
    (['a', 'b'], [1, 0])
    >>> labels.with_new(["c", "a", None]).names
    ('b', 'a', 'c')
    """

    names: tuple[Any, ...] = ()

    @cached_property
    def column(self) -> Map[Any, int]:
        """Column of each label. A `Map` is not copied when a label is new."""
        return Map(zip(self.names, range(len(self.names)), strict=True))

    @cached_property
    def order(self) -> Array:
        """The column of each class, in the order of `classes` (K,)."""
        try:
            ranked = sorted(range(len(self.names)), key=self.names.__getitem__)
        except TypeError:  # labels of several types have no order of their own
            ranked = self._by_type()
        return np.array(ranked, np.int64)

    def _by_type(self) -> list[int]:
        kinds = [type(name).__name__ for name in self.names]
        try:
            keys: list[Any] = list(zip(kinds, self.names, strict=True))
            return sorted(range(len(keys)), key=keys.__getitem__)
        except TypeError:  # not even labels of one type have an order
            keys = list(zip(kinds, map(repr, self.names), strict=True))
            return sorted(range(len(keys)), key=keys.__getitem__)

    @cached_property
    def classes(self) -> Array:
        """Labels (K,), sorted."""
        return _as_array([self.names[k] for k in self.order])

    def with_new(self, labels: Sequence[Any]) -> Labels:
        """These labels, followed by the new ones in ``labels``. None is skipped."""
        column = self.column
        if all(name in column for name in labels):
            return self
        new = dict.fromkeys(name for name in labels if name is not None and name not in column)
        if not new:
            return self
        more = Labels(self.names + tuple(new))  # one copy; (*names, *new) makes two
        more.__dict__["column"] = column.update(
            zip(new, range(len(column), len(more.names)), strict=True)
        )
        return more

    def without(self, label: Any) -> Labels:
        """These labels less one."""
        return Labels(tuple(name for name in self.names if name != label))

    def codes(self, labels: Sequence[Any]) -> Array:
        """Column of each label (b,), -1 for None."""
        column = self.column
        return np.array([-1 if name is None else column[name] for name in labels], np.int64)


def _as_array(names: Sequence[Any]) -> Array:
    """Labels as an array: of their own type if they share one, of objects otherwise."""
    kinds = {type(name) for name in names}
    if kinds <= {int, float, bool} or kinds in ({str}, {bytes}):
        array = np.array(names)
        if array.dtype != object and array.tolist() == list(names):
            return array
    return np.fromiter(names, object, len(names))  # an assignment would spread tuples out


def read_labels(y: Any, *, name: str = "y", warn: bool = False) -> list[Any]:
    """Labels as a list of plain Python values, None where unknown.

    NaN, None, NaT and pandas' NA are unknown. Numbers that are not whole cannot be labels. A tuple
    in a list is one label. With ``warn``, a column is taken with scikit-learn's warning.
    """
    if type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "iubSU":
        return y.tolist()
    if type(y) is list and y and set(map(type, y)) <= _PLAIN:
        return y.copy()
    values, column = reading.labels(name, y)
    if column and warn:
        warnings.warn(
            f"A column-vector {name} was passed when a 1d array was expected. Please change the "
            "shape to (n_samples,), for example using ravel().",
            DataConversionWarning,
            stacklevel=3,
        )
    if set(map(type, values)) <= _PLAIN:
        return values
    return [_plain(value, name) for value in values]


def _plain(value: Any, name: str) -> Any:
    """One label of Python's own type, None if it is unknown."""
    kind = type(value)
    if kind in _PLAIN or (kind is float and value.is_integer()):
        return value
    if isinstance(value, np.generic) or hasattr(value, "__array__"):
        value = _of_numpy(value, name)
    if kind.__name__ == "NAType":
        return None
    try:
        unequal = bool(value != value)
        hash(value)
    except Exception:  # whatever a class does about being compared
        raise InvalidInput(
            f"{name} holds {check.shown(value)}, which cannot be a label; use numbers or strings"
        ) from None
    if value is None or unequal:
        return None
    if isinstance(value, tuple):
        return _plain_tuple(value, name)
    if isinstance(value, float | complex | Decimal | Fraction) and not _is_whole(value):
        raise InvalidInput(
            f"Unknown label type: {name} contains {check.shown(value)}, which is not a whole "
            "number; use KalmanRegressor for numbers, or strings or whole numbers as labels"
        )
    return value


def _of_numpy(value: Any, name: str) -> Any:
    """A scalar of numpy, or of a library like it, as one of Python's."""
    if isinstance(value, np.generic) and value.dtype.kind not in "mM":
        return value.item()
    array = reading.array_of(name, value)
    return reading.labels(name, array[None])[0][0] if array.ndim == 0 else value


def _plain_tuple(value: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """A tuple as a label: no part of it may be NaN, which would be a new label every time."""
    parts = tuple(part.item() if isinstance(part, np.generic) else part for part in value)
    if any(part != part for part in parts):
        raise InvalidInput(
            f"{name} holds {check.shown(value)}, which contains NaN; use None for an unknown label"
        )
    return parts if any(isinstance(part, np.generic) for part in value) else value


def _is_whole(value: Any) -> bool:
    try:
        return int(value) == value
    except (ArithmeticError, TypeError, ValueError):  # infinite or complex
        return False
