"""How the values of one column are read: what is missing, and texts as numbers, booleans, dates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from kalstream._printable import quoted
from kalstream.core.checks import LARGEST_FLOAT64 as LARGEST

Array = NDArray[Any]
# A row with an id that has only such categories brings a label; of old runs, so it never changes.
EMPTY = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
# Texts that are a missing value among numbers, booleans and dates, in any case.
MISSING = EMPTY | {"-", ".", "#n/a", "#na", "<na>", "missing", "nil", "nat", "\\n"}
_MISSING_TEXTS = pa.array([*MISSING, *(text.upper() for text in MISSING), "Missing", "NaT"])
_SIGN = "([$€£¥₹%‰]|USD|EUR|GBP|CHF|JPY)?"  # before or after an amount
_SPACES = " \u00a0\u202f"
_AMOUNT = f"^[{_SPACES}]*{_SIGN}[{_SPACES}]*[+-]?{_SIGN}[{_SPACES}]*"
_END = f"[{_SPACES}]*{_SIGN}[{_SPACES}]*$"
# Groups of three digits have a space, an apostrophe, or a dot or a comma between them; with
# commas also those of India: 1,23,456.
_COMMA = rf"{_AMOUNT}([1-9]\d{{0,2}}([.'{_SPACES}]\d{{3}})+|\d+)?(,\d+)?{_END}"  # 1.234,56
_GROUPS = rf"[1-9]\d{{0,2}}([,'{_SPACES}]\d{{3}})+|[1-9]\d?(,\d\d)+,\d{{3}}"
_POINT = rf"{_AMOUNT}({_GROUPS}|\d+)?(\.\d+)?{_END}"  # $1,234.56
# Other ways to write a minus: its own sign, at the end, and the brackets of accounts.
_MINUS = ((r"^\s*\(([^()+-]*)\)\s*$", r"-\1"), (r"^\s*([^+-]*\d)\s*-\s*$", r"-\1"))
_MINUS_SIGN = "\u2212"
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*")  # 1,234.56
_PARTS = re.compile(r"\s*(\d{1,2})[./-](\d{1,2})[./-](\d{4})(?=$|[ T,])")  # 31.12.2024
_YEAR_FIRST = re.compile(r"(\d{4})[/.-](\d{1,2})[/.-](\d{1,2})(?=$|[ T])")  # 2013/1/31
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d(?:\.\d+)?))? ?([AaPp][Mm])?")  # 7:05 PM
_TIME = re.compile(r"(.{10})[ T]+(\d{1,2}:[\d:.,]+)\s*(Z|UTC|GMT|[+-][\d:]+|)")
_ZONE_NAME = re.compile(r"(?<=[Z\d])\[[^]]+\]$")  # 2024-01-31T12:00+01:00[Europe/Berlin]
# Dates that need to be named, with the times that may follow.
_DATES = (
    *("%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d, %Y"),
    *("%d %B %Y", "%B %d, %Y", "%Y-%m-%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y%m%d"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", " %H:%M:%S %Z")
_FORMATS = (
    *(date + time for date in _DATES for time in _TIMES),
    *("%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S %z", "%d/%b/%Y:%H:%M:%S %z"),
)
_LONGEST_MISSING = 20  # characters of a text that may stand for a missing value
_TOO_LARGE = "the largest number that can be learned"
NO_VALUE = (ValueError, TypeError, OverflowError, KeyError)

# Bad row -> its column, the value there, and why it is bad.
Bad = dict[int, tuple[str, Any, str]]


def one_by_one(array: pa.Array) -> Array | None:
    """None: pyarrow cannot read such values."""
    return None


@dataclass(frozen=True, slots=True)
class Reading:
    """How values are read.

    Attributes
    ----------
    parse : callable
        A Python value -> the value read, None if missing; an error if it is no such value.
    noun : str
        What a value is, for messages.
    dtype : type
        float64 with NaN where missing, or object with None.
    at_once : callable
        Reads all values of a column by pyarrow; None if it cannot.
    """

    parse: Callable[[Any], Any]
    noun: str
    dtype: Any = np.float64
    at_once: Callable[[pa.Array], Array | None] = one_by_one

    def convert(self, array: pa.Array) -> tuple[Array, dict[int, Any]]:
        """Read the values of a column.

        Returns
        -------
        values : (n,)
            float64, NaN where missing; for labels objects, None where missing.
        bad : dict
            Row -> its value, for values that cannot be read.
        """
        if (fast := self.at_once(array)) is not None:
            return fast, {}
        codes, values = distinct(array)
        parsed, wrong = np.empty(len(values), self.dtype), []
        for k, value in enumerate(values):
            try:
                parsed[k] = self.parse(value)
            except NO_VALUE:
                parsed[k] = None
                wrong.append(k)
        rows = np.flatnonzero(np.isin(codes, wrong)) if wrong else ()
        return parsed[codes], {int(row): values[codes[row]] for row in rows}

    def checked(self, name: str, array: pa.Array, bad: Bad, hint: str = "") -> Array:
        """Read the values (n,) of a column; those that cannot be learned become bad rows."""
        values, wrong = self.convert(array)
        for row, value in wrong.items():
            missing = f" (if it is a missing value, give missing={[value]}{hint})"
            has_text = bool(hint) and isinstance(value, str) and len(value) <= _LONGEST_MISSING
            bad.setdefault(row, (name, value, f"is not {self.noun}{missing if has_text else ''}"))
        if values.dtype == np.float64:
            for row in np.flatnonzero(np.abs(values) > LARGEST).tolist():
                value = array[row].as_py()
                if np.isfinite(values[row]) or not _is_infinity(value):
                    bad.setdefault(row, (name, value, f"is beyond {LARGEST:g}, {_TOO_LARGE}"))
        return values


def numbers_at_once(array: pa.Array) -> Array | None:
    """Numbers, or texts that all are numbers."""
    t = array.type
    if pa.types.is_boolean(t):
        return None
    numbers = _cast(array, pa.float64())
    if numbers is None and pa.types.is_string(t):
        array = pa.compute.if_else(pa.compute.is_in(array, _MISSING_TEXTS), None, array)
        numbers = _cast(array, pa.float64())
    return numbers


def commas_at_once(array: pa.Array) -> Array | None:
    """Numbers, or texts that all are numbers with a decimal comma, or none."""
    return _amounts_at_once(array, _COMMA, "[^0-9,+-]")


def amounts_at_once(array: pa.Array) -> Array | None:
    """Numbers, or texts that all are numbers with signs and commas between thousands."""
    return _amounts_at_once(array, _POINT, "[^0-9.+-]")


def _amounts_at_once(array: pa.Array, pattern: str, others: str) -> Array | None:
    if not pa.types.is_string(array.type):
        return numbers_at_once(array)
    array = pa.compute.if_else(pa.compute.is_in(array, _MISSING_TEXTS), None, array)
    array = pa.compute.replace_substring(array, _MINUS_SIGN, "-")
    for pattern_of_minus, plain_minus in _MINUS:
        array = pa.compute.replace_substring_regex(array, pattern_of_minus, plain_minus)
    if pa.compute.all(pa.compute.match_substring_regex(array, pattern)).as_py() is False:
        return None
    plain = pa.compute.replace_substring_regex(array, others, "")
    return _cast(pa.compute.replace_substring(plain, ",", "."), pa.float64())


def booleans_at_once(array: pa.Array) -> Array | None:
    """Booleans that are no text."""
    return _cast(array, pa.float64()) if pa.types.is_boolean(array.type) else None


def dates_at_once(array: pa.Array) -> Array | None:
    """Seconds since 1970 of dates, or of texts that all are dates."""
    t = array.type
    if is_string(t):
        zones: tuple[str | None, ...] = (None, "UTC")
    else:
        zones = (getattr(t, "tz", None),) if is_date(t) else ()
    for zone in zones:
        seconds = _cast(array, pa.timestamp("us", zone), pa.int64(), pa.float64())
        if seconds is not None:
            return seconds / 1e6
    return None


def is_string(t: Any) -> bool:
    """Whether values of this type of Arrow are text."""
    return pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)


def is_date(t: Any) -> bool:
    """Whether values of this type of Arrow are dates."""
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


def is_missing(array: pa.Array, texts: Container[str] = MISSING) -> Array:
    """Whether each value (n,) of a column is missing, or one of these texts in lower case."""
    codes, values = distinct(array)
    missing = np.array([(text_of(value) or "").lower() in texts for value in values], bool)
    return missing[codes] if len(values) else np.zeros(0, bool)


def without(array: pa.Array, texts: Container[str | None]) -> pa.Array:
    """The values, null where their text is one of these."""
    codes, values = distinct(array)
    hits = np.array([text_of(value) in texts for value in values], bool)
    if not hits.any():
        return array
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.string())  # take does not work on views
    return array.take(pa.array(np.arange(len(array)), mask=hits[codes]))


def _cast(array: pa.Array, *types: Any) -> Array | None:
    try:
        for t in types:
            array = array.cast(t, safe=False)
    except pa.ArrowException:
        return None
    return array.to_numpy(zero_copy_only=False, writable=True)


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


def number_of(value: Any) -> float | None:
    """A number; None if it is missing."""
    if isinstance(value, str):
        value = value.strip()
        if value.lower() in MISSING:
            return None
        if "_" in value:
            raise ValueError
    if isinstance(value, bool):
        raise TypeError
    return None if value is None else float(value)


def comma_number_of(value: Any) -> float | None:
    """A number whose text may have a decimal comma, groups of three digits, and signs."""
    value = _with_minus(value)
    if isinstance(value, str) and re.match(_COMMA, value):
        value = re.sub("[^0-9,+-]", "", value).replace(",", ".")
    elif isinstance(value, str) and re.search("[,.][0-9]", value):
        raise ValueError
    return number_of(value)


def amount_of(value: Any) -> float | None:
    """A number whose text may have commas between thousands, signs, or brackets for a minus."""
    value = _with_minus(value)
    if isinstance(value, str) and re.match(_POINT, value):
        value = re.sub("[^0-9.+-]", "", value)
    return number_of(value)


def _with_minus(value: Any) -> Any:
    """A text whose minus, if it has one, comes first."""
    if not isinstance(value, str):
        return value
    value = value.replace(_MINUS_SIGN, "-")
    for pattern, plain in _MINUS:
        value = re.sub(pattern, plain, value)
    return value


def may_be_thousands(text: str) -> bool:
    """Whether a comma in a number may be one between thousands, as in 1,234."""
    return _THOUSANDS.fullmatch(text) is not None


def boolean_of(value: Any) -> bool | None:
    """A boolean; None if it is missing."""
    text = (text_of(value) or "").lower()
    if text in MISSING:
        return None
    return {"true": True, "1": True, "false": False, "0": False}[text]


def seconds_of(value: Any) -> float | None:
    """Seconds since 1970 of a date, UTC where it has no zone; None if it is missing."""
    if isinstance(value, str):
        value = value.strip()
        if value.lower() in MISSING:
            return None
        value = datetime.fromisoformat(_iso(value))
    if value is None:
        return None
    if not isinstance(value, datetime):
        if not isinstance(value, date):
            raise TypeError
        value = datetime(value.year, value.month, value.day)
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def seconds_of_day(value: Any) -> float | None:
    """Seconds since midnight of a time of day; None if it is missing."""
    if isinstance(value, time):
        value = value.isoformat()
    text = text_of(value) or ""
    if text.lower() in MISSING:
        return None
    match = _CLOCK.fullmatch(text)
    if not match:
        raise ValueError
    hours, minutes, seconds = int(match[1]), int(match[2]), float(match[3] or 0)
    if match[4]:
        if not 1 <= hours <= 12:
            raise ValueError
        hours = hours % 12 + 12 * (match[4].lower() == "pm")
    if hours > 23 or minutes > 59 or seconds >= 61:
        raise ValueError
    return 3600 * hours + 60 * minutes + seconds


def date_reader(order: str) -> Callable[[Any], float | None]:
    """`seconds_of` for texts of which this order, such as "dmy", is that of day, month and year.

    Dates that begin with the year are read as well. Any other order is a format of ``strptime``.
    """

    def parse(value: Any) -> float | None:
        if isinstance(value, str) and value.strip().lower() not in MISSING:
            if "%" in order:
                value = datetime.strptime(value.strip(), order)
            else:
                match = _PARTS.match(value)
                if not match:
                    return seconds_of(value)
                if order == "mdy" and "." in match[0]:
                    raise ValueError
                part = dict(zip(order, match.groups(), strict=False))
                date = f"{part['y']}-{part['m']:0>2}-{part['d']:0>2}"
                rest = value[match.end() :].lstrip(" ,T")
                value = f"{date} {rest}" if rest.strip() else date
        return seconds_of(value)

    return parse


def date_formats_of(texts: Sequence[str]) -> list[str]:
    """The formats of ``strptime``, such as "%d-%b-%Y", that fit all texts with different dates."""
    found = dict[tuple[datetime, ...], str]()
    for written in _FORMATS if texts else ():
        if all(_fits(written, text) for text in texts):
            dates = tuple(datetime.strptime(text.strip(), written) for text in texts)
            found.setdefault(dates, written)
    return list(found.values())


def two_date_formats_of(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Two formats of ``strptime`` of which each text has one, with an example; else ()."""
    for written in _FORMATS if texts else ():
        if _fits(written, texts[0]):
            others = [text for text in texts if not _fits(written, text)]
            for other in date_formats_of(others)[:1]:
                return (written, texts[0]), (other, others[0])
    return ()


def date_remedy(texts: Sequence[str]) -> str:
    """The `date_format` to give for these texts; "" if there is none."""
    formats = [f"date_format={quoted(each)}" for each in date_formats_of(texts)]
    which = f" if the day comes first, or {formats[1]} if the month does" if formats[1:] else ""
    return f"give {formats[0]}{which}" if formats else ""


def _fits(written: str, text: str) -> bool:
    return not fails(lambda value: datetime.strptime(value.strip(), written), text)


def _iso(text: str) -> str:
    """A date as ISO 8601 has it, if only its separators or the zone differ."""
    text = _ZONE_NAME.sub("", text)
    match = _YEAR_FIRST.match(text)
    if match:
        year, month, day = match.groups()
        text = f"{year}-{month:0>2}-{day:0>2}{text[match.end() :]}"
    match = _TIME.fullmatch(text)
    if match:
        date, time, zone = match.groups()
        text = f"{date}T{time:0>5}" if len(time) == 4 else f"{date}T{time}"
        text += {"": "", "Z": "+00:00", "UTC": "+00:00", "GMT": "+00:00"}.get(zone, zone)
    return text


def fails(parse: Callable[[Any], Any], value: Any) -> bool:
    """Whether a value cannot be read."""
    try:
        parse(value)
    except NO_VALUE:
        return True
    return False
