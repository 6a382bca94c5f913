"""Kinds of the columns of a table, and how each becomes a fixed number of columns of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import pyarrow as pa

from kalstream._printable import printable, quoted
from kalstream.errors import InvalidInput
from kalstream.features import calendar, words
from kalstream.features.aggregates import KEY_COLUMN
from kalstream.features.values import (
    Array,
    Bad,
    Reading,
    amount_of,
    amounts_at_once,
    boolean_of,
    booleans_at_once,
    comma_number_of,
    commas_at_once,
    date_reader,
    dates_at_once,
    distinct,
    is_date,
    is_string,
    may_be_thousands,
    number_of,
    numbers_at_once,
    seconds_of,
    seconds_of_day,
    text_of,
)

NUMBER, BOOLEAN, CATEGORY, DATE, TEXTS = "number", "boolean", "category", "date", "text"
TIME_OF_DAY = "time of day"
COMMA, AMOUNT = "decimal comma", "amount"
KEY = "key"  # of aggregates
NUMBERS = (NUMBER, COMMA, AMOUNT)
# 31/12/2024 and 12/31/2024; with any other format of ``strptime``, its kind is "FORMAT date".
DAY_FIRST, MONTH_FIRST = "day-first date", "month-first date"
_EXAMPLE = datetime(2024, 12, 31, tzinfo=UTC)
MOST_SLOTS = 64
# A column of text is a number, boolean or date if at most one value in 20 is not.
TYPOS = 20
_NUMERIC = ("integer", "floating", "decimal", "null")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. Learning returns a new one.

    Attributes
    ----------
    name, kind : str
    n_slots : int
        Number of columns of numbers that it becomes.
    slots : mapping
        For a category, the slot of each value seen; None is a missing value. For a date, the slot
        of each part of the calendar; none in old files, where a date is a number of seconds.
    """

    name: str
    kind: str
    n_slots: int = 1
    slots: Mapping[str | None, int] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether no later row can change the encoding."""
        return KINDS[self.kind].is_full(self)

    @property
    def names(self) -> list[str]:
        """Names of the columns of numbers."""
        return KINDS[self.kind].names(self)

    def learn(self, array: pa.Array) -> Column:
        """The column after these values: new categories have their slots."""
        return self if self.full else KINDS[self.kind].learn(self, array)

    def encode(self, array: pa.Array, bad: Bad) -> Array:
        """Values as numbers, (n, n_slots); adds to the bad rows."""
        return KINDS[self.kind].encode(self, array, bad)

    def to_json(self) -> dict[str, Any]:
        """The state as JSON; "rooms" is the name of the slots in all formats of files."""
        return {
            "name": self.name,
            "kind": self.kind,
            "rooms": self.n_slots,
            "categories": list(self.slots),
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Column:
        """Restore what `to_json` returned."""
        slots = {category: slot for slot, category in enumerate(state["categories"])}
        return cls(state["name"], state["kind"], state["rooms"], slots)


class Kind(Protocol):
    """What a kind of columns must offer; `KINDS` has one entry for each.

    No method changes its arguments. The state of a column is its `Column`, whose slots are saved.
    """

    @property
    def plural(self) -> str:
        """What such a column holds, for messages."""

    def has_type(self, t: Any) -> bool:
        """Whether values of this type of Arrow, which is no text, are of this kind."""

    def holds(self, array: pa.Array, as_written: bool) -> bool:
        """Whether text is of this kind by its content.

        Parameters
        ----------
        array : (n,) of text
        as_written : bool
            Whether the file has no types, as CSV.
        """

    def start(self, name: str, array: pa.Array, n_slots: int | None) -> Column:
        """A column that has learned nothing, for values like these."""

    def is_full(self, column: Column) -> bool:
        """Whether no later row can change the encoding."""

    def names(self, column: Column) -> list[str]:
        """Names of the columns of numbers, n_slots of them."""

    def learn(self, column: Column, array: pa.Array) -> Column:
        """The column after these values."""

    def encode(self, column: Column, array: pa.Array, bad: Bad) -> Array:
        """Values as numbers, (n, n_slots); adds to the bad rows."""


@dataclass(frozen=True, slots=True)
class OneNumber:
    """Values that become one column of numbers each, NaN where missing."""

    kind: str
    plural: str
    has_type: Callable[[Any], bool]

    def holds(self, array: pa.Array, as_written: bool) -> bool:
        """At most one value in 20 cannot be read."""
        return as_written and _holds(READINGS[self.kind], array, as_written)

    def start(self, name: str, array: pa.Array, n_slots: int | None) -> Column:
        """A column without a state."""
        return Column(name, self.kind)

    def is_full(self, column: Column) -> bool:
        """Nothing is learned."""
        return True

    def names(self, column: Column) -> list[str]:
        """The name of the column itself."""
        return [column.name]

    def learn(self, column: Column, array: pa.Array) -> Column:
        """Nothing is learned."""
        return column

    def encode(self, column: Column, array: pa.Array, bad: Bad) -> Array:
        """Values (n, 1)."""
        return READINGS[self.kind].checked(column.name, array, bad, _codes(column.name))[:, None]


@dataclass(frozen=True, slots=True)
class Dates:
    """Times of day, week and year as points of circles; see `calendar.slots_of`.

    Times without a date are seconds of 1970-01-01; only the first circle is meaningful.
    """

    kind: str = DATE
    plural: str = "dates"

    def has_type(self, t: Any) -> bool:
        """Dates of Arrow, with or without a time, and its times of day."""
        is_type = {DATE: is_date, TIME_OF_DAY: pa.types.is_time}.get(self.kind)
        return is_type is not None and is_type(t)

    def holds(self, array: pa.Array, as_written: bool) -> bool:
        """At most one value in 20 is no date."""
        return _holds(READINGS[self.kind], array, as_written)

    def start(self, name: str, array: pa.Array, n_slots: int | None) -> Column:
        """Those parts of the calendar that the resolution of these dates makes meaningful."""
        if self.kind == TIME_OF_DAY:
            return Column(name, self.kind, 2, {slot: k for k, slot in enumerate(calendar.CLOCK)})
        seconds, _ = READINGS[self.kind].convert(array)
        with_time = pa.types.is_timestamp(array.type)
        if is_string(array.type):
            with_time = any(":" in (text or "") for text in distinct(array)[1])
        slots = calendar.slots_of(seconds, with_time)
        return Column(name, self.kind, len(slots), {slot: k for k, slot in enumerate(slots)})

    def is_full(self, column: Column) -> bool:
        """Nothing is learned."""
        return True

    def names(self, column: Column) -> list[str]:
        """The name of the column with that of each part."""
        return [f"{column.name}[{slot}]" for slot in column.slots] or [column.name]

    def learn(self, column: Column, array: pa.Array) -> Column:
        """Nothing is learned."""
        return column

    def encode(self, column: Column, array: pa.Array, bad: Bad) -> Array:
        """Values (n, n_slots), NaN where missing."""
        seconds = READINGS[self.kind].checked(column.name, array, bad, _codes(column.name))
        return calendar.encoded(seconds, map(str, column.slots or (calendar.SECONDS,)))


class Categories:
    """One column of 0 and 1 for each category, in the order of first appearance.

    Once all slots are in use, a hash decides which of them a new category shares.
    """

    plural = "text"

    def has_type(self, t: Any) -> bool:
        """Only text is taken for categories."""
        return False

    def holds(self, array: pa.Array, as_written: bool) -> bool:
        """Any text."""
        return True

    def start(self, name: str, array: pa.Array, n_slots: int | None) -> Column:
        """A quarter more slots than there are categories, unless their number is given."""
        n = len({text_of(value) for value in distinct(array)[1]})
        return Column(name, CATEGORY, n_slots or min(n + max(2, n // 4), MOST_SLOTS))

    def is_full(self, column: Column) -> bool:
        """Whether all slots are used."""
        return len(column.slots) >= column.n_slots

    def names(self, column: Column) -> list[str]:
        """The name of the column with the number of each slot."""
        return [f"{column.name}[{k}]" for k in range(column.n_slots)]

    def learn(self, column: Column, array: pa.Array) -> Column:
        """The column with slots for new categories, as long as some are free."""
        slots = dict(column.slots)
        for category in map(text_of, distinct(array)[1]):
            if len(slots) < column.n_slots:
                slots.setdefault(category, len(slots))
        return column if len(slots) == len(column.slots) else replace(column, slots=slots)

    def encode(self, column: Column, array: pa.Array, bad: Bad) -> Array:
        """Rows (n, n_slots); zeros for a category without a slot."""
        codes, values = distinct(array)
        slots = np.array([self._slot(column, text_of(v)) for v in values], np.intp)[codes]  # (n,)
        rows = np.zeros((len(slots), column.n_slots))
        known = np.flatnonzero(slots >= 0)
        rows[known, slots[known]] = 1.0
        return rows

    def _slot(self, column: Column, category: str | None) -> int:
        if category in column.slots:
            return column.slots[category]
        if self.is_full(column):
            return crc32((category or "").encode()) % column.n_slots
        return -1


class Texts:
    """Columns of hashed words; see `words.hashed`. Nothing is learned."""

    plural = "texts"

    def has_type(self, t: Any) -> bool:
        """Only text holds words."""
        return False

    def holds(self, array: pa.Array, as_written: bool) -> bool:
        """At least half of the values are distinct, and their mean has several words."""
        codes, values = distinct(array)
        counts = np.bincount(codes, minlength=len(values))
        present = np.array([text_of(value) is not None for value in values], bool)
        known = [value for value in values if text_of(value) is not None]
        return words.are_texts(known, counts[present])

    def start(self, name: str, array: pa.Array, n_slots: int | None) -> Column:
        """A column without a state; the number of its slots does not depend on the values."""
        return Column(name, TEXTS, words.N_SLOTS)

    def is_full(self, column: Column) -> bool:
        """Nothing is learned."""
        return True

    def names(self, column: Column) -> list[str]:
        """The name of the column with the number of each slot."""
        return [f"{column.name}[{k}]" for k in range(column.n_slots)]

    def learn(self, column: Column, array: pa.Array) -> Column:
        """Nothing is learned."""
        return column

    def encode(self, column: Column, array: pa.Array, bad: Bad) -> Array:
        """Rows (n, n_slots); zeros where missing."""
        codes, values = distinct(array)
        return words.hashed(map(text_of, values), column.n_slots)[codes]


class Keys:
    """One number for each key, made of its text by a hash: for `Aggregates`. Nothing is learned."""

    plural = "keys"

    def has_type(self, t: Any) -> bool:
        """Nothing is taken for keys that is not named."""
        return False

    def holds(self, array: pa.Array, as_written: bool) -> bool:
        """Nothing is taken for keys that is not named."""
        return False

    def start(self, name: str, array: pa.Array, n_slots: int | None) -> Column:
        """A column without a state."""
        return Column(name, KEY)

    def is_full(self, column: Column) -> bool:
        """Nothing is learned."""
        return True

    def names(self, column: Column) -> list[str]:
        """The name of the column, marked as that of keys."""
        return [KEY_COLUMN.format(column.name)]

    def learn(self, column: Column, array: pa.Array) -> Column:
        """Nothing is learned."""
        return column

    def encode(self, column: Column, array: pa.Array, bad: Bad) -> Array:
        """Whole numbers below 2**53 (n, 1), NaN where missing."""
        codes, values = distinct(array)
        texts = map(text_of, values)
        numbers = [np.nan if text is None else _hash(text) for text in texts]
        return np.array(numbers)[codes][:, None]


def _hash(text: str) -> float:
    """A number that a float64 holds exactly; two texts of a million share one by 1 in 18,000."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return float(int.from_bytes(digest) >> 11)


def _holds(reading: Reading, array: pa.Array, as_written: bool) -> bool:
    """Whether at most one value in 20 cannot be read."""
    numbers, bad = reading.convert(array)
    present = len(bad) + int(np.count_nonzero(~np.isnan(numbers)))
    return len(bad) <= present // TYPOS and (present > 0 or as_written)


def _codes(name: str) -> str:
    return f"; if these are codes, categorical=[{quoted(name)}]"


def _is_number(t: Any) -> bool:
    return any(getattr(pa.types, f"is_{type_}")(t) for type_ in _NUMERIC)


class _ByKind(dict[str, Any]):
    """A table with an entry for each kind, and one that is made for dates of another format."""

    def __init__(self, entries: Mapping[str, Any], of_dates: Callable[[str], Any]) -> None:
        super().__init__(entries)
        self._of_dates = of_dates

    def __missing__(self, kind: str) -> Any:
        if not kind.endswith(f" {DATE}"):
            raise KeyError(kind)
        return self._of_dates(kind)


def _dates_like(kind: str) -> Reading:
    order = kind.removesuffix(f" {DATE}")
    return Reading(date_reader(order), f"a date such as {_EXAMPLE:{order}}")


# How the values of the kinds of one number are read.
READINGS: Mapping[str, Reading] = _ByKind(
    {
        NUMBER: Reading(number_of, "a number", at_once=numbers_at_once),
        AMOUNT: Reading(amount_of, "a number ($1,234.56)", at_once=amounts_at_once),
        BOOLEAN: Reading(boolean_of, "a boolean (true or false)", at_once=booleans_at_once),
        DATE: Reading(
            seconds_of, "an ISO date (2024-01-31, 2024-01-31T12:00:00Z)", at_once=dates_at_once
        ),
        COMMA: Reading(
            comma_number_of, "a number with a decimal comma (1.234,56)", at_once=commas_at_once
        ),
        DAY_FIRST: Reading(date_reader("dmy"), "a date such as 31/12/2024"),
        MONTH_FIRST: Reading(date_reader("mdy"), "a date such as 12/31/2024"),
        TIME_OF_DAY: Reading(seconds_of_day, "a time of day such as 23:59"),
    },
    _dates_like,
)
# The first kind that recognises a column has it; a column of text that is empty holds numbers.
KINDS: Mapping[str, Kind] = _ByKind(
    {
        COMMA: OneNumber(COMMA, "numbers with decimal commas", lambda t: False),
        NUMBER: OneNumber(NUMBER, "numbers", _is_number),
        AMOUNT: OneNumber(AMOUNT, "amounts", lambda t: False),
        BOOLEAN: OneNumber(BOOLEAN, "booleans", pa.types.is_boolean),
        DATE: Dates(),
        DAY_FIRST: Dates(DAY_FIRST),
        MONTH_FIRST: Dates(MONTH_FIRST),
        TIME_OF_DAY: Dates(TIME_OF_DAY, "times of day"),
        TEXTS: Texts(),
        CATEGORY: Categories(),
        KEY: Keys(),
    },
    Dates,
)


def is_of_dates(kind: str) -> bool:
    """Whether a kind is one of dates."""
    return kind.endswith(DATE)


def check_date_format(order: str | None) -> None:
    """Refuse what is neither an order of day and month nor a format of dates."""
    if order in (None, "day-first", "month-first"):
        return
    try:
        text = f"{_EXAMPLE:{order}}"
        if "%" in order and datetime.strptime(text, order).year == 2024:
            return
    except ValueError:
        pass
    raise InvalidInput(
        f'date_format is {quoted(order)}; give "day-first", "month-first" or a format with day, '
        'month and year, such as "%Y%m%d"'
    )


def has_decimal_commas(array: pa.Array, *, sure: bool = False) -> bool:
    """Whether a column is text and nearly all of it numbers with decimal commas, some with one.

    ``sure``: also if each comma may be one between thousands.
    """
    if not is_string(array.type) or KINDS[NUMBER].holds(array, True):
        return False
    codes, values = distinct(array)
    commas = np.array([value is not None and "," in value for value in values], bool)
    clear = [has and not may_be_thousands(v) for v, has in zip(values, commas, strict=True)]
    n_commas, n_clear = (int(np.count_nonzero(each[codes])) for each in (commas, np.array(clear)))
    is_clear = n_clear > n_commas // TYPOS or (sure and n_commas > 0)
    return is_clear and KINDS[COMMA].holds(array, True)


def kind_of(
    name: str,
    array: pa.Array,
    as_written: bool,
    commas: bool = False,
    date_format: str | None = None,
) -> str:
    """The kind of a column: by its type, or by its content if that is text.

    ``commas``: whether texts of numbers have decimal commas. ``date_format``: as for `TableStream`.
    """
    t = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if is_string(t):
        given = f"{date_format} {DATE}"
        others = {AMOUNT if commas else COMMA}
        if date_format is not None:
            others |= {DAY_FIRST, MONTH_FIRST} - {given}
            is_iso = given in (DAY_FIRST, MONTH_FIRST) and KINDS[DATE].holds(array, False)
            if not is_iso and KINDS[given].holds(array, False):
                return given
        kinds = ((name, kind) for name, kind in KINDS.items() if name not in others)
        found = next(name for name, kind in kinds if kind.holds(array, as_written))
        return _order_of(array) if found == DAY_FIRST and date_format is None else found
    for kind_name, kind in KINDS.items():
        if kind.has_type(t):
            return kind_name
    raise InvalidInput(
        f"column {quoted(name)} has the type {printable(t)}, which cannot be learned; leave it "
        f"out with ignore=[{quoted(name)}], or write it as plain columns"
    )


def _order_of(array: pa.Array) -> str:
    """Which of day and month comes first in dates; the day if both fit."""
    n_bad = {kind: len(READINGS[kind].convert(array)[1]) for kind in (DAY_FIRST, MONTH_FIRST)}
    return min(n_bad, key=lambda kind: n_bad[kind])
