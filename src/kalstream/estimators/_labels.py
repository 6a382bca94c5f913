"""Class labels of any type, and the columns of the filter that stand for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.errors import InvalidInput

Array = NDArray[Any]


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
    def column(self) -> dict[Any, int]:
        """Column of each label."""
        return {name: k for k, name in enumerate(self.names)}

    @cached_property
    def order(self) -> Array:
        """Columns (K,) in the order of `classes`."""
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
        return as_array([self.names[k] for k in self.order])

    def with_new(self, labels: Sequence[Any]) -> Labels:
        """These labels, and after them those that are not yet among them; None is no label."""
        column = self.column
        if all(name in column for name in labels):
            return self
        new = dict.fromkeys(name for name in labels if name is not None and name not in column)
        return Labels((*self.names, *new)) if new else self

    def without(self, label: Any) -> Labels:
        """These labels less one."""
        return Labels(tuple(name for name in self.names if name != label))

    def codes(self, labels: Sequence[Any]) -> Array:
        """Column of each label (b,), -1 for None."""
        column = self.column
        return np.array([-1 if name is None else column[name] for name in labels], np.int64)


def as_array(names: Sequence[Any]) -> Array:
    """Labels as an array: of their own type if they share one, of objects otherwise."""
    kinds = {type(name) for name in names}
    if kinds <= {int, float, bool} or kinds in ({str}, {bytes}):
        array = np.array(names)
        if array.dtype != object and array.tolist() == list(names):
            return array
    out = np.empty(len(names), object)
    out[:] = names
    return out


def read_labels(y: Any, n_rows: int | None = None, *, name: str = "y") -> list[Any]:
    """Labels as a list of plain Python values, None where unknown.

    NaN, None, NaT and pandas' NA are unknown. Numbers that are not whole cannot be labels.
    """
    array = np.asarray(y, dtype=object) if _is_mixed(y) else np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InvalidInput(
            f"{name} must be one label per row, a flat array; got shape {array.shape}"
        )
    if n_rows is not None and len(array) != n_rows:
        raise InvalidInput(f"{name} has {len(array)} labels for {n_rows} rows of X")
    if array.dtype.kind in "iubSU":
        return array.tolist()
    return [_plain(value, name) for value in array.tolist()]


def _is_mixed(y: Any) -> bool:
    """Whether numpy would turn labels of several types into strings."""
    return isinstance(y, list | tuple) and len({type(value) for value in y}) > 1


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    try:
        if value is None or value != value:
            return None
        hash(value)
    except TypeError:
        if type(value).__name__ == "NAType":
            return None
        raise InvalidInput(
            f"{name} holds {value!r}, which cannot be a label; use numbers or strings"
        ) from None
    if isinstance(value, float) and not value.is_integer():
        raise InvalidInput(
            f"Unknown label type: {name} holds {value}, and continuous targets are for "
            "KalmanRegressor; labels may be strings or whole numbers"
        )
    return value
