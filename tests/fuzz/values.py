"""Good and bad arguments.

A table of bad arguments maps a reason to a function that spoils a good argument.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

from fuzz.cases import Case

Table = dict[str, Callable[[Any], Any]]


class Frame:
    """Imitates polars' DataFrame, whose dtypes are a list."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values, dtype=object)
        self.columns = [f"c{k}" for k in range(self.values.shape[1])]
        self.dtypes = ["String"] * len(self.columns)
        self.shape = self.values.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values if dtype is None else self.values.astype(dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Any:
        return Frame(self.values[key]) if isinstance(key, slice) else self.values[key]


def _with(value: Any) -> Callable[[Any], Any]:
    """A function that replaces one number of its argument by this value."""

    def change(good: Any) -> Any:
        array = np.array(good, dtype=np.float64)
        array.flat[array.size // 2] = value
        return array

    return change


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda good: value


def _masked(good: Any) -> Any:
    array = np.asarray(good)
    return np.ma.masked_array(array, np.arange(array.size).reshape(array.shape) % 2 == 0)


def _objects(value: Any) -> Callable[[Any], Any]:
    return lambda good: [value] * len(good)


def _sparse(good: Any) -> Any:
    array = np.nan_to_num(np.asarray(good, dtype=np.float64))
    return scipy.sparse.csr_matrix(array.reshape(len(array), -1))


ROWS: Table = {
    "flat": lambda X: np.asarray(X)[0],
    "cube": lambda X: np.asarray(X)[None],
    "no rows": lambda X: X[:0],
    "no columns": lambda X: np.asarray(X)[:, :0],
    "infinity": _with(np.inf),
    "minus infinity": _with(-np.inf),
    "1e300": _with(1e300),
    "1e101": _with(1e101),
    "None": _constant(None),
    "scalar": _constant(1.5),
    "text": _constant("rows"),
    "bytes": _constant(b"rows"),
    "texts": lambda X: np.full(np.shape(X), "a"),
    "dict": _constant({"a": [1.0]}),
    "set": _constant({1.0, 2.0}),
    "generator": lambda X: iter([[1.0]]),
    "ragged": lambda X: [[1.0], [1.0, 2.0, 3.0]],
    "sparse": _sparse,
    "masked": _masked,
    "complex": lambda X: np.asarray(X) + 1j,
    "dates": lambda X: np.full(np.shape(X), np.datetime64("2020-01-01")),
    "huge integers": lambda X: [[10**400] * np.shape(X)[1]] * len(X),
    "100,000 columns": lambda X: np.zeros((len(X), 100_000)),
    "frame as of polars": lambda X: Frame(np.full(np.shape(X), "a")),
}
KNOWN_COLUMNS: Table = {  # bad only if a model knows its columns; before, tables have any kind
    "dicts": lambda X: [{"a": 1.0}] * len(X),
    "frame of texts": lambda X: pd.DataFrame(np.full(np.shape(X), "a")),
    "frame of dates": lambda X: pd.DataFrame(np.full(np.shape(X), np.datetime64("2020-01-01"))),
    "a column too many": lambda X: np.hstack([X, np.asarray(X)[:, :1]]),
    "twice the columns": lambda X: np.hstack([X, X]).tolist(),
}
LABELS: Table = {
    "one too few": lambda y: y[:-1],
    "one too many": lambda y: [*y, y[0]],
    "table": lambda y: np.zeros((len(y), 2)),
    "cube": lambda y: np.zeros((len(y), 1, 1)),
    "None": _constant(None),
    "scalar": _constant(1),
    "text": _constant("a"),
    "continuous": lambda y: np.full(len(y), 0.5),
    "infinity": lambda y: np.full(len(y), np.inf),
    "dicts": _objects({}),
    "ragged": lambda y: [[1], [1, 2]] * len(y),
    "sets": lambda y: [{1}] * len(y),
    "masked": lambda y: _masked(np.zeros(len(y), int)),
    "masked texts": lambda y: _masked(np.full(len(y), "masked")),
    "sparse": lambda y: _sparse(np.ones(len(y))),
    "set": _constant({1, 2}),
    "generator": lambda y: iter(y),
    "dict": _constant({"a": 1}),
}
TARGETS: Table = {
    "one too few": lambda y: y[:-1],
    "one too many": lambda y: np.concatenate([y, y[:1]]),
    "cube": lambda y: np.asarray(y).reshape(len(y), -1, 1),
    "no columns": lambda y: np.zeros((len(y), 0)),
    "None": _constant(None),
    "scalar": _constant(1.5),
    "text": _constant("a"),
    "texts": _objects("a"),
    "dicts": _objects({}),
    "ragged": lambda y: [[1.0], [1.0, 2.0]] * len(y),
    "infinity": _with(np.inf),
    "1e300": _with(1e300),
    "masked": _masked,
    "complex": lambda y: np.asarray(y) + 1j,
    "sparse": _sparse,
    "dates": lambda y: np.full(len(y), np.datetime64("2020-01-01")),
    "generator": lambda y: iter(y),
    "huge integers": _objects(10**400),
}
WEIGHTS: Table = {
    "negative": _with(-1.0),
    "NaN": _with(np.nan),
    "infinity": _with(np.inf),
    "one too many": lambda w: np.ones(len(w) + 1),
    "table": lambda w: np.ones((len(w), 2)),
    "text": _constant("a"),
    "texts": _objects("a"),
    "Nones": _objects(None),
    "complex": lambda w: np.ones(len(w)) + 1j,
    "masked": lambda w: _masked(np.ones(len(w))),
    "dates": lambda w: np.full(len(w), np.datetime64("2020-01-01")),
    "dict": _constant({"a": 1.0}),
    "sparse": lambda w: _sparse(np.ones(len(w))),
}
TIMES: Table = {
    "NaN": _with(np.nan),
    "infinity": _with(np.inf),
    "one too many": lambda t: np.append(t, t[-1:]),
    "text": _constant("soon"),
    "texts": _objects("soon"),
    "NaT": lambda t: np.full(len(t), np.datetime64("NaT", "s")),
    "Nones": _objects(None),
    "complex": lambda t: np.ones(len(t)) + 1j,
    "table": lambda t: np.ones((len(t), 2)),
    "masked": lambda t: _masked(np.asarray(t)),
    "dict": _constant({"a": 1.0}),
    "dates and numbers": lambda t: [datetime.date(2020, 1, 1)] * (len(t) - 1) + [1.0],
    "sparse": lambda t: _sparse(np.ones(len(t))),
}
IDS: Table = {  # they spoil n ids of rows that nobody asked for
    "text": _constant("ids"),
    "bytes": _constant(b"ids"),
    "number": _constant(5),
    "object": _constant(object()),
    "flat array": _constant(np.array(5)),
    "one too many": lambda ids: [*ids, "more"],
    "table": lambda ids: np.zeros((len(ids), 2)),
    "dates of numpy": lambda ids: np.full(len(ids), np.datetime64("2020-01-01")),
    "missing of pandas": lambda ids: pd.Series([1] * (len(ids) - 1) + [None], dtype="Int64"),
}
NO_IDS = (  # none of them can be an id
    *(None, float("nan"), pd.NA, pd.NaT, 1j, [1], {}, {1}, object(), np.zeros(2), range(3), int),
    *((1, float("nan")), (1, (None,)), ([],), Decimal("NaN"), Decimal("sNaN"), np.float64("nan")),
    *(np.datetime64("NaT"), np.timedelta64(1), pd.Timestamp(1), datetime.timedelta(1)),
    datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    functools.reduce(lambda deep, _: (deep,), range(100_000), ()),
)
IDS |= {f"id {k}": lambda ids, k=k: [*ids[1:], NO_IDS[k]] for k in range(len(NO_IDS))}
BEFORE: Table = {  # they spoil n places behind at most 100 rows
    "one too many": lambda b: [*b, 1],
    "too far": lambda b: [*b[1:], 101],
    "negative": lambda b: [-1, *b[1:]],
    "decreasing": lambda b: [1, *b[1:], 0][: max(len(b), 2)],
    "decreasing of numpy": lambda b: np.array([1, *b[1:], 0], np.uint8)[: max(len(b), 2)],
    "fractions": lambda b: [0.5] * len(b),
    "texts": lambda b: ["a"] * len(b),
    "Nones": _objects(None),
    "ragged": lambda b: [[1], [1, 2]],
    "huge integers": _objects(10**400),
    "scalar": _constant(1),
    "text": _constant("a"),
}
# Reasons of arguments that some models accept, depending on their parameters.
MAY = ("1e101",)
# Bad values of parameters, for fresh and for fitted models.
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "forgetting": (-0.1, 1.5, float("nan"), "never", None, True, [0.9], object),
    "noise_var": (0.0, -1.0, float("nan"), float("inf"), "much", None, [1.0, 2.0], 1e300),
    "prior_var": (0.0, -1.0, float("nan"), float("inf"), "much", None, {}, 1e300),
    "transition": ("never", None, 1),
    "time_unit": (
        *(0.0, -1.0, float("nan"), float("inf"), "day", None, [1.0]),
        *(datetime.timedelta(0), datetime.timedelta(-1), np.timedelta64("NaT")),
        *(np.timedelta64(0, "s"), np.timedelta64(-1, "s"), np.timedelta64(1, "Y")),
    ),
}
CLASSIFIER_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "predictive": ("best", None, 1, ["exact"]),
    "calibration": (
        *(0.0, -1.0, float("nan"), 1e300, "much", None),
        *([], [-1.0], {}, [1.0, [2.0]], ["x"], {1.0}),
    ),
    "class_weight": ("even", "negative", 1.0, ["balanced"], np.zeros(2)),
    "stacking": ("yes", None, 2),
    "recent_labels": ("yes", None, 2),
    "preset": ("best", None, 1, ["fast"]),
}
# Bad values of parameters that are read only where targets come late.
LATE_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "max_waiting": (0, -1, 1.5, "many", None, [1]),
    "max_age": (0.0, -1.0, float("nan"), float("inf"), "old", [1.0], datetime.timedelta(1)),
}
# Bad values of parameters that are read only by fresh models.
FRESH_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "features": ("cooked", None, 1, object(), dict),
    "n_components": (0, -1, 1.5, "ten", None, 10**12),
    "dtype": (int, "x", np.float16, complex, ["x"], 2**62),
    "random_state": (-1, "x", 1.5, [], 2**40),
    "intercept": ("yes", None, 2),
}


def rows(case: Case, n: int, d: int, scale: np.ndarray) -> np.ndarray:
    """Good rows (n, d); some have missing values or a constant column."""
    X = scale * case.rng.standard_normal((n, d))
    if case.chance(0.3):
        X[case.rng.random((n, d)) < 0.2] = np.nan
    if case.chance(0.1):
        X[:, 0] = 0.0
    if case.chance(0.1):
        X = np.round(X)
    return X
