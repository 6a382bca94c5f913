"""Tables in memory as columns of Arrow: frames of any library, relations, and lists of dicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from kalstream._printable import printable, quoted
from kalstream.core import checks as check
from kalstream.errors import InvalidInput, InvalidType
from kalstream.features.values import as_text, is_string, text_of

_MIXED = {b"kalstream": b"of several types"}


def as_table(
    rows: Any,
    more: Mapping[str, Any] | None = None,
    *,
    wanted: Sequence[str] | None = None,
    ignore: Container[str] = (),
) -> pa.RecordBatch:
    """Rows in memory as a table, for `Columns.encode` and `TableEncoder`.

    Parameters
    ----------
    rows : list of dicts, or a frame of pandas, polars, pyarrow, DuckDB or another library
        Anything that narwhals reads or that has ``__arrow_c_stream__``. A key that some of the
        dicts lack is a missing value.
    more : {name: values}, optional
        Columns to add, or to use in place of those of the rows.
    wanted : names, optional
        The columns of the table, in this order; an error if one is missing. All by default.
    ignore : names
        Columns to leave out.

    Examples
    --------
    >>> as_table([{"color": "red", "size": 1}, {"size": 2.5}], {"y": [True, False]}).to_pydict()
    {'color': ['red', None], 'size': [1.0, 2.5], 'y': [True, False]}
    """
    columns = {**_columns_of(rows), **(more or {})}
    if wanted is not None:
        check_known(wanted, list(columns))
    mixed: set[str] = set()
    arrays = {}
    for name in columns if wanted is None else wanted:
        if name in ignore:
            continue
        array, several = _as_array(name, columns[name])
        arrays[name] = array
        if several:
            mixed.add(name)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInput(f"columns have different lengths: {lengths}; give one value a row")
    return marked(list(arrays.values()), list(arrays), mixed)


def check_known(names: Iterable[str], known: Sequence[str]) -> None:
    """Refuse a name that no column has, and suggest a similar one."""
    columns = set(known)
    for name in names:
        if name not in columns:
            near = get_close_matches(name, known, 1)
            hint = f". Did you mean {quoted(near[0])}?" if near else "."
            shown = ", ".join(printable(each, 40) for each in known[:30])
            raise InvalidInput(
                f"the table has no column {quoted(name)}{hint} Its columns are: {shown}; add it, "
                "with missing values if it is unknown"
            )


def _columns_of(rows: Any) -> dict[str, Any]:
    """The columns of a table, as its library has them."""
    if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        keys = list(dict.fromkeys(name for row in rows for name in row))
        return _named(keys, [[row.get(key) for row in rows] for key in keys])
    import narwhals.stable.v2 as nw

    try:
        frame: Any = nw.from_native(rows, pass_through=True)
        if isinstance(frame, nw.LazyFrame):
            frame = frame.collect("pyarrow")
        native = frame.to_native() if isinstance(frame, nw.DataFrame) else rows
        if not isinstance(frame, nw.DataFrame) and hasattr(rows, "__arrow_c_stream__"):
            native = pa.table(rows)
    except Exception as error:  # of any library
        raise InvalidInput(
            f"the {type(rows).__name__} cannot be read as a table: {check.error_text(error)}; give "
            "columns of different names, and rows that were computed"
        ) from error
    if isinstance(native, pa.Table | pa.RecordBatch):
        return _named(native.schema.names, native.columns)
    if isinstance(frame, nw.DataFrame):
        return _named(native.columns, [native[name] for name in native.columns])
    raise InvalidType(
        f"rows must be a list of dicts, a DataFrame or an Arrow table, got "
        f"{type(rows).__name__}; for one row give [row]"
    )


def _named(names: Sequence[Any], columns: Sequence[Any]) -> dict[str, Any]:
    """Columns by their names as text, which must differ."""
    name, n = next(iter(Counter(map(str, names)).most_common(1)), ("", 0))
    if n > 1:
        raise InvalidInput(f"{n} columns are called {quoted(name)}; rename all but one of them")
    return dict(zip(map(str, names), columns, strict=True))


def _as_array(name: str, values: Any) -> tuple[pa.Array, bool]:
    """Values of a column as an array of Arrow, and whether they are text as of several types."""
    check.unmasked(f"column {quoted(name)}", values)
    if hasattr(values, "to_arrow"):
        values = values.to_arrow()
    if hasattr(values, "sparse"):  # of pandas
        values = values.sparse.to_dense()
    try:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.Array):
            return values, False
        if str(getattr(values, "dtype", "")).startswith("interval"):
            raise TypeError
        # Codes that were declared to be categories.
        is_coded = hasattr(values, "dtype") and hasattr(values, "cat")
        if hasattr(values, "dtype") and (is_coded or values.dtype.kind != "O"):
            array = pa.array(values, from_pandas=True)
            text = is_coded and not is_string(array.type.value_type)
            return as_text(array) if text else array, False
    except (ValueError, TypeError, pa.ArrowException) as error:
        shown = printable(getattr(values, "dtype", type(values).__name__))
        raise InvalidInput(
            f"column {quoted(name)} has the type {shown}, which cannot be learned; leave it out, "
            "or convert it to numbers, text or dates"
        ) from error
    if hasattr(values, "dropna") and len(values):  # objects of pandas, NaN or NA where missing
        check.unmasked(f"column {quoted(name)}", values.to_numpy())
        values = values.astype(object).where(values.notna(), None)
    batch = batch_of({name: values.tolist() if hasattr(values, "tolist") else list(values)})
    return batch.column(0), bool(mixed_columns(batch))


# ---- columns whose values have several types -----------------------------------------------------


def batch_of(columns: Mapping[str, list[Any]]) -> pa.RecordBatch:
    """Columns of values; as text, and marked, where they have several types."""
    arrays, mixed = [], set()
    for name, values in columns.items():
        try:
            array = pa.array(values)
        except (ValueError, TypeError, OverflowError, pa.ArrowException):  # of several types
            array = pa.array([_encodable(text_of(value)) for value in values], pa.string())
            mixed.add(name)
        arrays.append(array)
    return marked(arrays, list(columns), mixed)


def marked(
    arrays: Sequence[pa.Array], names: Sequence[str], mixed: Container[str]
) -> pa.RecordBatch:
    """A batch of columns, some of which are text because their values have several types."""
    pairs = zip(names, arrays, strict=True)
    fields = [pa.field(n, a.type, metadata=_MIXED if n in mixed else None) for n, a in pairs]
    return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


def mixed_columns(batch: pa.RecordBatch) -> set[str]:
    """Names of the columns that are text because their values have several types."""
    return {field.name for field in batch.schema if field.metadata == _MIXED}


def _encodable(text: str | None) -> str | None:
    return (
        text and text.encode(errors="backslashreplace").decode()
    )  # half a surrogate pair is no UTF-8
