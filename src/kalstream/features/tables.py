"""Columns of tables as numbers, learned online: what the command line does, for Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from kalstream._arrays import Array
from kalstream._printable import quoted
from kalstream.core.checks import error_text
from kalstream.errors import InvalidInput, InvalidType, TableWarning
from kalstream.features.encoding import (
    CATEGORY,
    KINDS,
    MOST_SLOTS,
    Column,
    has_decimal_commas,
    kind_of,
)
from kalstream.features.frames import as_table, check_known, mixed_columns
from kalstream.features.noticing import warnings_of
from kalstream.features.rows import is_table
from kalstream.features.values import Bad, without

# With fewer rows to begin with, categories get as many slots as on standard input.
_FEW_ROWS: Final = 100
_LIVE_SLOTS: Final = 16


@dataclass(frozen=True, slots=True)
class Encoding:
    """The columns of a table, and how they become numbers. Learning returns a new one.

    Attributes
    ----------
    columns : tuple of Column
    missing : tuple of str
        Texts that count as missing in every column.

    Examples
    --------
    >>> table = as_table([{"color": "red", "size": 1}, {"color": "blue", "size": 2}])
    >>> encoding = Encoding.of(table, n_slots=2).learn(table)
    >>> encoding.names
    ('color[0]', 'color[1]', 'size')
    >>> encoding.encode(table).tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 2.0]]
    """

    columns: tuple[Column, ...]
    missing: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        table: pa.RecordBatch,
        *,
        categorical: Iterable[str] = (),
        missing: Iterable[str] = (),
        decimal: str | None = None,
        n_slots: int | None = None,
    ) -> Encoding:
        """Decide the kinds by the first rows, which are not learned; see `TableEncoder`."""
        names, codes = table.schema.names, set(categorical)
        check_known(codes, names)
        made = cls((), tuple(missing))
        arrays = dict(zip(names, made._cleaned(table), strict=True))
        written = mixed_columns(table)
        commas = {
            name
            for name in names
            if decimal != "."
            and name not in codes
            and has_decimal_commas(arrays[name], sure=decimal == ",")
        }
        columns = []
        for name, array in arrays.items():
            as_written = name in written or name in commas
            has_commas = bool(commas) or decimal == ","
            is_code = name in codes
            kind = CATEGORY if is_code else kind_of(name, array, as_written, has_commas)
            column = KINDS[kind].start(name, array, n_slots)
            if n_slots is None and kind == CATEGORY and table.num_rows < _FEW_ROWS:
                column = replace(column, n_slots=max(column.n_slots, _LIVE_SLOTS))
            columns.append(column)
        return replace(made, columns=tuple(columns))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of numbers, (d,)."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns of the table."""
        return tuple(column.name for column in self.columns)

    def learn(self, table: pa.RecordBatch) -> Encoding:
        """The encoding after these rows: new categories have their slots."""
        if all(column.full for column in self.columns):
            return self
        arrays = self._arrays(table)
        pairs = zip(self.columns, arrays, strict=True)
        learned = tuple(column.learn(array) for column, array in pairs)
        # Unchanged columns are the same objects, so an equal encoding is this one.
        same = all(a is b for a, b in zip(learned, self.columns, strict=True))
        return self if same else replace(self, columns=learned)

    def encode(self, table: pa.RecordBatch) -> Array:
        """Rows (n, d); a category without a slot is zeros, a missing number is NaN."""
        bad = Bad()
        pairs = zip(self.columns, self._arrays(table), strict=True)
        rows = np.hstack([column.encode(array, bad) for column, array in pairs])
        if bad:
            row = min(bad)
            column, value, why = bad[row]
            raise InvalidInput(
                f"row {row}, column {quoted(column)} of X: {quoted(value)} {why}; correct it"
            )
        if np.isinf(rows).any():
            row, at = np.argwhere(np.isinf(rows))[0].tolist()
            raise InvalidInput(
                f"row {row}, column {quoted(self.names[at])} of X: infinity cannot be learned; "
                "make it a missing value"
            )
        return rows

    def to_json(self) -> dict[str, Any]:
        """The state as JSON, for files of models."""
        columns = [column.to_json() for column in self.columns]
        return {"columns": columns, "missing": list(self.missing)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Encoding:
        """Restore what `to_json` returned."""
        return cls(tuple(map(Column.from_json, state["columns"])), tuple(state["missing"]))

    def _arrays(self, table: pa.RecordBatch) -> list[pa.Array]:
        """The columns of a table that are used, found by their names."""
        check_known(self.inputs, table.schema.names)
        return self._cleaned(table.select(list(self.inputs)))

    def _cleaned(self, table: pa.RecordBatch) -> list[pa.Array]:
        if not self.missing:
            return list(table.columns)
        return [without(array, self.missing) for array in table.columns]


class TableEncoder(TransformerMixin, BaseEstimator):
    """Columns of a table as numbers, learned online, as ``kalstream run`` does it.

    A number becomes one column, NaN where missing; so does a boolean (0 or 1). A date becomes
    points of circles: time of day, day of week and day of year. A text becomes hashed words: a
    column of text is one of texts if most values differ and have several words. A category becomes
    one column of 0 and 1 for each value, in the order of first appearance. The number of these
    columns is fixed by the first rows; once all are in use, a hash decides which of them a new
    value shares. Columns are found by their names: later tables may have them in another order, and
    more of them.

    Tables are frames of pandas, polars or pyarrow, relations of DuckDB, anything else that narwhals
    reads or that has ``__arrow_c_stream__``, and lists of dicts. Text is a category unless it holds
    dates or texts of words; a column whose values have several types is what most of them are.
    Arrays (n, d) have the columns x0, x1 and so on.

    Parameters
    ----------
    categorical : names
        Columns of codes that look like numbers.
    ignore : names
        Columns to leave out.
    missing : texts
        Texts that count as missing in every column.
    decimal : "," or ".", optional
        The decimal separator in texts; guessed from the first rows if not given.
    n_slots : int, optional
        Columns for each category. By default a quarter more than there are values in the first
        rows, and at most 64; at least 16 if there are fewer than 100 of these rows.

    Attributes
    ----------
    encoding_ : Encoding
        Kinds of the columns and the categories learned so far.
    n_features_in_ : int
    feature_names_in_ : (k,)

    Examples
    --------
    >>> encoder = TableEncoder(n_slots=2)
    >>> encoder.fit_transform([{"color": "red", "size": 1}, {"color": "blue", "size": 2}])
    array([[1., 0., 1.],
           [0., 1., 2.]])
    >>> encoder.get_feature_names_out().tolist()
    ['color[0]', 'color[1]', 'size']
    """

    encoding_: Encoding

    def __init__(
        self,
        categorical: Sequence[str] = (),
        ignore: Sequence[str] = (),
        missing: Sequence[str] = (),
        decimal: str | None = None,
        n_slots: int | None = None,
    ) -> None:
        self.categorical = categorical
        self.ignore = ignore
        self.missing = missing
        self.decimal = decimal
        self.n_slots = n_slots

    def fit(self, X: Any, y: Any = None) -> Self:
        """Start again, then learn the columns and categories of a table."""
        fresh = clone(self)
        table = fresh._table(X)
        self.encoding_ = fresh._start(table).learn(table)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn the categories of a table; the kinds of the columns stay."""
        if not hasattr(self, "encoding_"):
            return self.fit(X)
        self.encoding_ = self.encoding_.learn(self._table(X))
        return self

    def transform(self, X: Any) -> Array:
        """Numbers (n, d) of a table; a category that was not learned is zeros."""
        check_is_fitted(self)
        return self.encoding_.encode(self._table(X))

    def advance(self, X: Any) -> Array:
        """Learn the categories of a table, then transform it; nothing changes on an error."""
        table = self._table(X)
        before = self.encoding_ if hasattr(self, "encoding_") else self._start(table)
        after = before.learn(table)
        rows = after.encode(table)
        self.encoding_ = after
        return rows

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names of the columns of numbers, (d,)."""
        check_is_fitted(self)
        return np.array(self.encoding_.names, object)

    @property
    def n_features_in_(self) -> int:
        """Number of columns of a table."""
        return len(self.feature_names_in_)

    @property
    def feature_names_in_(self) -> Array:
        """Names of the columns of a table, (k,)."""
        if not hasattr(self, "encoding_"):
            raise AttributeError("feature_names_in_: call fit or partial_fit first")
        return np.array(self.encoding_.inputs, object)

    def _start(self, table: pa.RecordBatch) -> Encoding:
        if self.decimal not in (None, ",", "."):
            raise InvalidInput(f'decimal must be "," or ".", got {self.decimal!r}')
        if self.n_slots is not None and not 1 <= self.n_slots <= MOST_SLOTS:
            raise InvalidInput(f"n_slots must be from 1 to {MOST_SLOTS}, got {self.n_slots!r}")
        return start(
            table,
            categorical=self.categorical,
            missing=self.missing,
            decimal=self.decimal,
            n_slots=self.n_slots,
        )

    def _table(self, X: Any) -> pa.RecordBatch:
        """The columns that are learned, or those that were."""
        encoding: Encoding | None = self.__dict__.get("encoding_")
        columns: dict[str, Array] = {}
        if not is_table(X):
            try:
                rows = check_array(X, dtype=None, ensure_all_finite=False, input_name="X")
            except (TypeError, ValueError) as error:
                kind = InvalidType if isinstance(error, TypeError) else InvalidInput
                raise kind(f"X is no table, and no array of rows: {error_text(error)}") from error
            n = rows.shape[1]
            if encoding is not None and n != self.n_features_in_:
                raise InvalidInput(
                    f"X has {n} features, but TableEncoder is expecting {self.n_features_in_} "
                    "features as input; give the columns that were learned"
                )
            X, columns = [], {f"x{k}": column for k, column in enumerate(rows.T)}
        wanted = None if encoding is None else encoding.inputs
        return as_table(X, columns, wanted=wanted, ignore=set(self.ignore))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


def read_table(X: Any, encoding: Encoding | None, *, learns: bool) -> tuple[Array, Encoding]:
    """Numbers (n, d) of a table, and its encoding, which has learned it if it ``learns``."""
    try:
        table = as_table(X, wanted=None if encoding is None else encoding.inputs)
        is_new = encoding is None
        encoding = start(table) if encoding is None else encoding
    except InvalidInput as error:
        raise type(error)(f"X: {error}") from error
    if not table.num_rows:
        raise InvalidInput("X has no rows; give at least one")
    encoding = encoding.learn(table) if learns else encoding
    rows = encoding.encode(table)
    for message in warnings_of(encoding.columns, table) if is_new else ():
        warnings.warn(message, TableWarning, stacklevel=2)
    return rows, encoding


def start(table: pa.RecordBatch, **options: Any) -> Encoding:
    """The encoding that the first rows of X ask for; it has learned nothing."""
    if not table.num_columns:
        raise InvalidInput("there are no columns; give at least one")
    if not table.num_rows:
        raise InvalidInput("there are no rows; give at least one, which says what the columns hold")
    return Encoding.of(table, **options)
