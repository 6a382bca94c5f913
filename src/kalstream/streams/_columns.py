"""Kinds of the columns of a table, and their encoding as a fixed number of columns of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from difflib import get_close_matches
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute

from kalstream._printable import printable, quoted
from kalstream.core.checks import LARGEST_FLOAT64 as LARGEST
from kalstream.errors import InvalidInput
from kalstream.streams.base import CLASSIFICATION, REGRESSION, Array, check_task

# Kinds of columns, and of targets: a number for regression, or one of three kinds of labels.
NUMBER, BOOLEAN, CATEGORY, DATE = "number", "boolean", "category", "date"
WHOLE, TRUTH, TEXT = "whole label", "boolean label", "text label"

_MOST_SLOTS = 64
_MOST_CLASSES = 100  # a target with more distinct whole numbers is taken for regression
# A column of text is a number, boolean or date if at most one value in 20 is not.
_TYPOS = 20
_LONG = 100  # characters; no similar name is suggested for longer ones
_NUMERIC = ("integer", "floating", "decimal", "null")
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
_MISSING_TEXTS = pa.array([*_MISSING, *(text.upper() for text in _MISSING)])
_NO_LABELS = f' (regression needs numbers; for labels give task="{CLASSIFICATION}")'
_TOO_LARGE = "the largest number that can be learned"
_NO_VALUE = (ValueError, TypeError, OverflowError, KeyError)

# Bad row -> its column, the value there, and why it is bad.
Bad = dict[int, tuple[str, Any, str]]


@dataclass(slots=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    name, kind : str
    n_slots : int
        Number of columns of numbers that it becomes.
    slots : dict
        For a category, the slot of each value seen; None is a missing value.
    """

    name: str
    kind: str
    n_slots: int = 1
    slots: dict[str | None, int] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether all slots are used (always true for a column that is no category)."""
        return self.kind != CATEGORY or len(self.slots) >= self.n_slots

    def slot(self, category: str | None, frozen: bool) -> int:
        """The slot of a category; a new one gets a free slot. -1 if frozen and not seen before."""
        if category in self.slots:
            return self.slots[category]
        if self.full:
            return crc32((category or "").encode()) % self.n_slots
        if frozen:
            return -1
        return self.slots.setdefault(category, len(self.slots))


@dataclass(slots=True)
class Columns:
    """Kinds of the columns of a table, and how they become numbers.

    `TableStream` makes it and has it as `encoder`. A number is one column (NaN if missing). So are
    a boolean (0 or 1) and a date (seconds since 1970, UTC). A category is one column per value, in
    the order of first appearance. The number of these columns is fixed; once all are in use, a
    hash decides which of them a new value shares.

    Attributes
    ----------
    features : list of Column
    target, time : Column or None
    label_time, id : Column or None
        When the target came, and the id of a row.
    seen : int
        Number of rows from which the categories are known.
    is_frozen : bool
        Whether a category not seen before is encoded as zeros instead of getting a slot.

    Examples
    --------
    >>> table = pa.record_batch({"color": ["red", "blue", "red"], "y": [1, 0, 1]})
    >>> columns, guess = Columns.of_table(table, target="y")
    >>> columns.names
    ('color[0]', 'color[1]', 'color[2]', 'color[3]')
    >>> rows, targets, _, bad = columns.encode(table)
    >>> rows.tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    >>> Columns.from_json(columns.to_json()) == columns
    True
    """

    features: list[Column]
    target: Column | None
    time: Column | None = None
    seen: int = 0
    is_frozen: bool = False
    label_time: Column | None = None
    id: Column | None = None

    @classmethod
    def of_table(
        cls,
        table: pa.RecordBatch,
        target: str,
        *,
        task: str | None = None,
        time: str | None = None,
        label_time: str | None = None,
        id: str | None = None,
        categorical: Sequence[str] = (),
        as_written: bool = False,
        n_slots: int | None = None,
    ) -> tuple[Columns, str]:
        """Decide the kinds from the first rows of a table.

        Parameters
        ----------
        table : pyarrow.RecordBatch
        target, task, time, label_time, id, categorical
            As for `TableStream`.
        as_written : bool
            Whether the content of strings decides their kind, as in CSV.
        n_slots : int, optional
            Columns for each category; by default a quarter more than there are values.

        Returns
        -------
        columns : Columns
        guess : str
            Sentence that says which task was guessed and why; "" if it was given.
        """
        names = table.schema.names
        features = [name for name in names if name not in (target, time, label_time, id)]
        if not features and id is not None:
            raise InvalidInput(
                f"no row has a column to predict {quoted(target)} from, only {listed(names)}; "
                "give rows that have more columns"
            )
        if not features:
            raise InvalidInput(
                f"there is no column to predict {quoted(target)} from; give more columns"
            )
        check_known(categorical, features, option="categorical")
        target_column, guess = _target(target, table.column(target), as_written, task)
        columns = cls([], target_column)
        if time is not None:
            columns.time = _time_column("time", time, table, as_written)
        if label_time is not None:
            columns.label_time = _time_column("label_time", label_time, table, as_written)
            # The first labels may not have come yet.
            if columns.time is not None and _is_empty(table.column(label_time)):
                columns.label_time.kind = columns.time.kind
            _check_one_clock(columns.time, columns.label_time)
        if id is not None:
            columns.id = Column(id, TEXT)
        for name in features:
            array = table.column(name)
            kind = CATEGORY if name in categorical else kind_of(name, array, as_written)
            column = Column(name, kind)
            if kind == CATEGORY:
                column.n_slots = n_slots or _n_slots(len({text_of(v) for v in distinct(array)[1]}))
            columns.features.append(column)
        return columns, guess

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of numbers, (d,)."""
        return tuple(
            f"{column.name}[{k}]" if column.kind == CATEGORY else column.name
            for column in self.features
            for k in range(column.n_slots)
        )

    @property
    def task(self) -> str:
        """The task, as the kind of the target decides it."""
        number = self.target is not None and self.target.kind == NUMBER
        return REGRESSION if number else CLASSIFICATION

    @property
    def complete(self) -> bool:
        """Whether no later row can change the encoding."""
        return self.is_frozen or all(column.full for column in self.features)

    def frozen(self) -> Columns:
        """A copy for prediction: new categories get no slot, target and time may be missing."""
        copy = deepcopy(self)
        copy.is_frozen = True
        return copy

    def with_late(self, label_time: str | None, id: str | None) -> Columns:
        """A copy in which other columns, or none, say when targets came and hold ids of rows."""
        copy = deepcopy(self)
        copy.id = None if id is None else Column(id, TEXT)
        if label_time is None:
            copy.label_time = None
        elif copy.label_time is None or copy.label_time.name != label_time:
            copy.label_time = Column(label_time, NUMBER if self.time is None else self.time.kind)
        return copy

    def wanted(self, names: list[str], file: str) -> list[str]:
        """Those columns of a file that are used; an error if a needed one is missing."""
        needed = [column.name for column in self.features]
        special = self.target, self.time, self.label_time, self.id
        others = [column.name for column in special if column is not None]
        check_known(needed if self.is_frozen else needed + others, names, file=file)
        return list(dict.fromkeys(needed + [name for name in others if name in names]))

    def encode(self, table: pa.RecordBatch) -> tuple[Array, Array, Array | None, Bad]:
        """Turn rows of a table into numbers, and give new categories their slots.

        Returns
        -------
        rows : (n, d)
        targets : (n,)
        times : (n,) or None
        bad : dict
            For each row with a value of the wrong kind: its column, the value and what is wrong.
            The numbers of such a row are meaningless.
        """
        bad = Bad()
        rows = self._numbers(table, bad)
        present = table.schema.names
        targets = self.encode_targets(table, bad)
        if self.time is None or self.time.name not in present:
            return rows, targets, None, bad
        array = table.column(self.time.name)
        times = _checked(array, self.time, bad)
        for row in np.flatnonzero(~np.isfinite(times)).tolist():
            if self.id is not None and targets[row] is not None and targets[row] == targets[row]:
                continue  # a row that brings the target of an earlier one needs no time
            bad.setdefault(row, (self.time.name, array[row].as_py(), "is not a time"))
        return rows, targets, times, bad

    def encode_targets(self, table: pa.RecordBatch, bad: Bad) -> Array:
        """Targets (n,), missing ones where there is no such column; adds to the bad rows."""
        if self.target is None or self.target.name not in table.schema.names:
            regression, n = self.task == REGRESSION, table.num_rows
            return np.full(n, np.nan) if regression else np.full(n, None, object)
        number = self.id is not None and self.target.kind == NUMBER
        hint = _NO_LABELS if number else ""
        return _checked(table.column(self.target.name), self.target, bad, hint)

    def encode_more(
        self, table: pa.RecordBatch, times: Array | None, bad: Bad
    ) -> tuple[Array | None, Array | None]:
        """Times at which targets came (NaN: never), and ids (None: none); adds to the bad rows.

        A target that comes before its row, by the ``times`` (n,) of the rows, is bad.
        """
        present = table.schema.names
        came = ids = None
        if self.label_time is not None and self.label_time.name in present:
            array = table.column(self.label_time.name)
            came = _checked(array, self.label_time, bad)
            if self.time is None or times is None or self.is_frozen:
                times = np.full(len(came), -np.inf)
            for row in np.flatnonzero(came < times).tolist():
                name = self.time and self.time.name
                own = quoted(table.column(name)[row].as_py())
                why = f"is earlier than the time of the row ({own} in {quoted(name)})"
                bad.setdefault(row, (self.label_time.name, array[row].as_py(), why))
        if self.id is not None and self.id.name in present:
            ids, _ = convert(table.column(self.id.name), TEXT)
        return came, ids

    def _numbers(self, table: pa.RecordBatch, bad: Bad) -> Array:
        """Columns of numbers; NaN in a row with an id that has nothing but that and a target."""
        if self.id is None:
            return self._encoded(table, bad)
        names = [column.name for column in self.features]
        empty = np.logical_and.reduce([_is_missing(table.column(name)) for name in names])
        if self.is_frozen:  # rows to predict: only those that bring a target are not
            special = [column.name for column in (self.target, self.id) if column is not None]
            for name in special:
                there = name in table.schema.names
                empty = empty & (~_is_missing(table.column(name)) if there else False)
        if not empty.any():
            return self._encoded(table, bad)
        rows = np.full((table.num_rows, sum(column.n_slots for column in self.features)), np.nan)
        others, wrong = np.flatnonzero(~empty), Bad()
        rows[others] = self._encoded(table.take(pa.array(others)), wrong)
        bad.update((int(others[row]), why) for row, why in wrong.items())
        return rows

    def _encoded(self, table: pa.RecordBatch, bad: Bad) -> Array:
        rows = np.zeros((table.num_rows, sum(column.n_slots for column in self.features)))
        at = 0
        for column in self.features:
            array = table.column(column.name)
            if column.kind == CATEGORY:
                codes, values = distinct(array)
                slots = np.array([column.slot(text_of(v), self.is_frozen) for v in values], np.intp)
                slots = slots[codes]  # (n,)
                known = np.flatnonzero(slots >= 0)
                rows[known, at + slots[known]] = 1.0
            else:
                hint = f" (if these are codes, give categorical=[{quoted(column.name)}])"
                rows[:, at] = _checked(array, column, bad, hint)
            at += column.n_slots
        return rows

    def to_json(self) -> dict[str, Any]:
        """The state as JSON, for checkpoints."""
        return {
            "features": [
                {
                    "name": column.name,
                    "kind": column.kind,
                    "rooms": column.n_slots,  # its name in all formats of files
                    "categories": list(column.slots),
                }
                for column in self.features
            ],
            "target": self.target and [self.target.name, self.target.kind],
            "time": self.time and [self.time.name, self.time.kind],
            "seen": self.seen,
            "frozen": self.is_frozen,
            "label_time": self.label_time and [self.label_time.name, self.label_time.kind],
            "id": self.id and [self.id.name, self.id.kind],
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Columns:
        """Restore what `to_json` returned."""
        features = [
            Column(
                column["name"],
                column["kind"],
                column["rooms"],
                {category: slot for slot, category in enumerate(column["categories"])},
            )
            for column in state["features"]
        ]
        special = ("target", "time", "label_time", "id")  # files of before lack the last two
        target, time, came, id = (
            None if state.get(key) is None else Column(*state[key]) for key in special
        )
        return cls(features, target, time, state["seen"], state["frozen"], came, id)


def _check_one_clock(time: Column | None, label_time: Column) -> None:
    """Refuse times of rows and of their labels of which only one are dates."""
    if time is not None and time.kind != label_time.kind:
        raise InvalidInput(
            f"label_time={quoted(label_time.name)} holds {_PLURAL[label_time.kind]}, but "
            f"time={quoted(time.name)} holds {_PLURAL[time.kind]}; write both as numbers of one "
            "clock, or both as dates"
        )


def _time_column(option: str, name: str, table: pa.RecordBatch, as_written: bool) -> Column:
    """A column of times, or an error if it holds something else."""
    kind = kind_of(name, table.column(name), as_written)
    if kind not in (NUMBER, DATE):
        held = "categories" if kind == CATEGORY else _PLURAL[kind]
        raise InvalidInput(
            f"the column {quoted(name)} given as {option} holds {held}; name a column of "
            "numbers or ISO dates"
        )
    return Column(name, kind)


def _is_missing(array: pa.Array) -> Array:
    """Whether each value (n,) of a column is missing."""
    codes, values = distinct(array)
    missing = np.array([(text_of(value) or "").lower() in _MISSING for value in values], bool)
    return missing[codes] if len(values) else np.zeros(0, bool)


def _is_empty(array: pa.Array) -> bool:
    return bool(_is_missing(array).all())


def check_known(
    names: Iterable[str], known: Sequence[str], *, option: str = "", file: str = ""
) -> None:
    """Refuse a name that no column has; suggest a similar one, and list the columns."""
    columns = set(known)
    name = next((name for name in names if name not in columns), None)
    if name is not None:
        near = get_close_matches(name[:_LONG], [each for each in known if len(each) <= _LONG], 1)
        hint = f". Did you mean {quoted(near[0])}?" if near else "."
        place = f"{file}: " if file else ""
        problem = f"there is no column {quoted(name)}"
        if option:
            problem = f"{option}={quoted(name)}: there is no such column"
        raise InvalidInput(f"{place}{problem}{hint} The columns are: {listed(known)}")


def listed(names: Sequence[str]) -> str:
    """Names of the first columns for a message, long ones shortened."""
    return ", ".join(printable(n, 40) for n in names[:30]) + (", ..." if len(names) > 30 else "")


def kind_of(name: str, array: pa.Array, as_written: bool) -> str:
    """The kind of a column: by its type, or by its content if that is text."""
    t = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if pa.types.is_boolean(t):
        return BOOLEAN
    if any(getattr(pa.types, f"is_{type_}")(t) for type_ in _NUMERIC):
        return NUMBER
    if _is_date(t):
        return DATE
    if not _is_string(t):
        raise InvalidInput(
            f"column {quoted(name)} has the type {printable(t)}, which cannot be learned; leave it "
            f"out with ignore=[{quoted(name)}], or write it as plain columns"
        )
    for kind in (NUMBER, BOOLEAN, DATE) if as_written else (DATE,):
        numbers, bad = convert(array, kind)
        present = len(bad) + np.count_nonzero(~np.isnan(numbers))
        if present == 0:
            return NUMBER if as_written else CATEGORY
        if len(bad) <= present // _TYPOS:
            return kind
    return CATEGORY


def _target(name: str, array: pa.Array, as_written: bool, task: str | None) -> tuple[Column, str]:
    """The column of the target, and the sentence that says which task was guessed."""
    kind, guess = kind_of(name, array, as_written), ""
    values = [value for value in distinct(array)[1] if text_of(value) is not None]
    if kind == NUMBER and any(_fails(_number, value) for value in values):
        # A label among whole numbers, or a typo among many amounts.
        kind = CATEGORY if len(values) <= _MOST_CLASSES or task == CLASSIFICATION else NUMBER
    whole = kind == NUMBER and not any(_fails(_whole, value) for value in values)
    if task is None:
        if not values:
            raise InvalidInput(
                f"target {quoted(name)} is empty in the first {len(array)} rows; "
                f'give task="{CLASSIFICATION}" or task="{REGRESSION}"'
            )
        task, other = CLASSIFICATION, REGRESSION
        if kind == NUMBER and not (whole and len(values) <= _MOST_CLASSES):
            task, other = other, task
        what = f"{len(values)} different whole numbers" if whole else _PLURAL[kind]
        guess = (
            f"the target {quoted(name)} holds {what} in the first {len(array)} rows, so the task "
            f'is {task}; if that is wrong, give task="{other}"'
        )
    if check_task(task) == REGRESSION:
        if kind != NUMBER and values:
            raise InvalidInput(
                f"target {quoted(name)} holds {_PLURAL[kind]} such as {quoted(values[0])}, but "
                f'regression needs numbers; for labels give task="{CLASSIFICATION}"'
            )
        return Column(name, NUMBER), guess
    if kind == BOOLEAN and not as_written:
        return Column(name, TRUTH), guess
    return Column(name, WHOLE if whole and values else TEXT), guess


_PLURAL = {NUMBER: "numbers", BOOLEAN: "booleans", CATEGORY: "text", DATE: "dates"}


def _n_slots(categories: int) -> int:
    return min(categories + max(2, categories // 4), _MOST_SLOTS)


def _is_string(t: Any) -> bool:
    return pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)


def _is_date(t: Any) -> bool:
    return pa.types.is_timestamp(t) or pa.types.is_date(t)


def as_text(array: pa.Array) -> pa.Array:
    """Values of any type as text."""
    return pa.array([text_of(value) for value in array.to_pylist()], pa.string())


def distinct(array: pa.Array) -> tuple[Array, list[Any]]:
    """The distinct values in order of first appearance, and which of them each row has.

    Returns
    -------
    codes : (n,) int64
    values : list
        Python objects, None if missing.
    """
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.string())  # take does not work on views
    if not pa.types.is_dictionary(array.type):
        try:
            array = array.dictionary_encode()
        except pa.ArrowNotImplementedError:  # a nested type
            array = as_text(array).dictionary_encode()
    n, missing = len(array), len(array.dictionary)
    codes = array.indices.cast(pa.int64()).fill_null(missing).to_numpy(zero_copy_only=False)
    # A dictionary of Parquet has any order, and may hold values that no row has.
    first = np.full(missing + 1, n)
    first[codes[::-1]] = np.arange(n)[::-1]  # the last assignment is the first row
    used = np.flatnonzero(first < n)
    used = used[np.argsort(first[used])]
    place = np.zeros(missing + 1, np.int64)
    place[used] = np.arange(len(used))
    values = array.dictionary.take(pa.array(used, mask=used == missing))
    return place[codes], values.to_pylist()


def convert(array: pa.Array, kind: str) -> tuple[Array, dict[int, Any]]:
    """Convert the values of a column to its kind.

    Returns
    -------
    values : (n,)
        float64, NaN where missing; for labels objects, None where missing.
    bad : dict
        Row -> its value, for values that are not of this kind.
    """
    if (fast := _at_once(array, kind)) is not None:
        return fast, {}
    parse, dtype, _ = _PARSERS[kind]
    codes, values = distinct(array)
    parsed, wrong = np.empty(len(values), dtype), []
    for k, value in enumerate(values):
        try:
            parsed[k] = parse(value)
        except _NO_VALUE:
            parsed[k] = None
            wrong.append(k)
    rows = np.flatnonzero(np.isin(codes, wrong)) if wrong else ()
    return parsed[codes], {int(row): values[codes[row]] for row in rows}


def _at_once(array: pa.Array, kind: str) -> Array | None:
    """Values converted by pyarrow; None if it cannot convert all of them."""
    t = array.type
    if kind in (NUMBER, BOOLEAN) and (kind == BOOLEAN) == pa.types.is_boolean(t):
        numbers = _cast(array, pa.float64())
        if numbers is None and pa.types.is_string(t):
            array = pa.compute.if_else(pa.compute.is_in(array, _MISSING_TEXTS), None, array)
            numbers = _cast(array, pa.float64())
        return numbers
    if kind == DATE:
        if _is_string(t):
            zones: tuple[str | None, ...] = (None, "UTC")
        else:
            zones = (getattr(t, "tz", None),) if _is_date(t) else ()
        for zone in zones:
            seconds = _cast(array, pa.timestamp("us", zone), pa.int64(), pa.float64())
            if seconds is not None:
                return seconds / 1e6
    return None


def _cast(array: pa.Array, *types: Any) -> Array | None:
    try:
        for t in types:
            array = array.cast(t, safe=False)
    except pa.ArrowException:
        return None
    return array.to_numpy(zero_copy_only=False, writable=True)


def _checked(array: pa.Array, column: Column, bad: Bad, hint: str = "") -> Array:
    values, wrong = convert(array, column.kind)
    for row, value in wrong.items():
        bad.setdefault(row, (column.name, value, f"is not {_PARSERS[column.kind][2]}{hint}"))
    if values.dtype == np.float64:
        for row in np.flatnonzero(np.abs(values) > LARGEST).tolist():
            value = array[row].as_py()
            if np.isfinite(values[row]) or not _is_infinity(value):
                bad.setdefault(row, (column.name, value, f"is beyond {LARGEST:g}, {_TOO_LARGE}"))
    return values


def _is_infinity(value: Any) -> bool:
    """Whether a value is written as infinity; 1e400 is not, it is a number that is too large."""
    return not any(letter.isdigit() for letter in str(value))


def text_of(value: Any) -> str | None:
    """A category or label as text; None if it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # whole numbers among fractions are 5.0, otherwise 5
    return str(value).strip() or None


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        value = value.strip()
        if value.lower() in _MISSING:
            return None
        if "_" in value:
            raise ValueError
    if isinstance(value, bool):
        raise TypeError
    return None if value is None else float(value)


def _whole(value: Any) -> int | None:
    number = _number(value)
    if number is None or math.isnan(number):
        return None
    if not number.is_integer() or (isinstance(value, float) and abs(value) > LARGEST):
        raise ValueError
    try:
        return int(value)  # keeps all digits of a long number
    except ValueError:
        return int(number)  # "1.0"


def _boolean(value: Any) -> bool | None:
    text = (text_of(value) or "").lower()
    if text in _MISSING:
        return None
    return {"true": True, "1": True, "false": False, "0": False}[text]


def _date(value: Any) -> float | None:
    if isinstance(value, str):
        value = value.strip()
        if value.lower() in _MISSING:
            return None
        value = datetime.fromisoformat(value)
    if value is None:
        return None
    if not isinstance(value, datetime):
        if not isinstance(value, date):
            raise TypeError
        value = datetime(value.year, value.month, value.day)
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def _fails(parse: Callable[[Any], Any], value: Any) -> bool:
    try:
        parse(value)
    except _NO_VALUE:
        return True
    return False


# Kind -> how a value is read, the dtype of the values, and its name in messages.
_PARSERS: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    NUMBER: (_number, np.float64, "a number"),
    BOOLEAN: (_boolean, np.float64, "a boolean (true or false)"),
    DATE: (_date, np.float64, "an ISO date (2024-01-31, 2024-01-31T12:00:00Z)"),
    TRUTH: (_boolean, object, "a boolean (true or false)"),
    WHOLE: (_whole, object, "a whole number, as the first labels are"),
    TEXT: (text_of, object, "text"),
}
