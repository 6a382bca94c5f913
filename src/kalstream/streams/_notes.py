"""What the first rows of a table show that the user should know, with what to do."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence

import numpy as np
import pyarrow as pa

from kalstream._printable import quoted
from kalstream.features.encoding import (
    AMOUNT,
    CATEGORY,
    COMMA,
    DAY_FIRST,
    KINDS,
    MONTH_FIRST,
    NUMBER,
    NUMBERS,
    READINGS,
    TEXTS,
    Column,
    has_decimal_commas,
)
from kalstream.features.noticing import finite, looks_like_ids, mostly, nearly
from kalstream.features.values import (
    MISSING,
    date_remedy,
    distinct,
    fails,
    seconds_of,
    text_of,
    two_date_formats_of,
)
from kalstream.streams._columns import MOST_CLASSES, TEXT, Columns, Role, without_missing
from kalstream.streams.base import CLASSIFICATION

_FEW = 5  # texts that a remedy lists
_LEAST_TEXTS = 3  # distinct texts that can look like dates of a format
_LEAST_NUMBERS = 20  # distinct texts that can look like numbers with a unit
_MOST_TEXTS = 200  # that are tried
_WITH_UNIT = re.compile(r"[+-]?\d+(?:[.,]\d+)* ?([^\d\s.,:/-]{1,4})")
_CODE = re.compile(r"0\d{2,}")  # two digits are hours and months
_DOTS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")


def notes_on(
    columns: Columns,
    table: pa.RecordBatch,
    as_written: Container[str],
    categorical: Sequence[str],
    decimal: str | None,
    numbered: bool,
    date_format: str | None = None,
    semicolons: bool = False,
) -> Iterator[str]:
    """Sentences on the columns of a table, given its first rows.

    Parameters
    ----------
    columns : Columns
    table : pyarrow.RecordBatch
    as_written : names
        Columns of text whose content decided their kind.
    categorical, decimal, date_format
        As for `TableStream`.
    numbered : bool
        Whether the rows are those of one file, from its first one on.
    semicolons : bool
        Whether the file has them between values.
    """
    table = without_missing(table, columns.missing)
    yield from _unlabelled(columns, table)
    if decimal is None:
        yield from _read_as(columns, table, COMMA)
        yield from _unclear_dots(columns, table, as_written) if semicolons else ()
    yield from _read_as(columns, table, AMOUNT)
    if date_format is None:
        yield from _unclear_dates(columns, table)
        yield from _two_kinds_of_dates(columns, table)
    yield from _leading_zeros(columns, table, as_written)
    features = [column.name for column in columns.features if column.kind == CATEGORY]
    texts = list(features)
    if columns.target is not None and columns.target.kind == TEXT:
        name = columns.target.name
        texts += [name] if len(distinct(table.column(name))[1]) > MOST_CLASSES else []
    explained: list[str] = []
    for name in texts:
        array, unclear = table.column(name), decimal is None and name not in categorical
        if unclear and has_decimal_commas(array, sure=True):
            note = _unclear_comma(name, array)
        elif name in as_written and name not in categorical:
            note = _mostly(name, array, numbered, is_target=name not in features)
        else:
            continue
        if note:
            explained.append(name)
            yield note
    for column in columns.features:
        is_open = column.name not in (*categorical, *explained) and column.name in as_written
        if is_open and (note := _almost(column, table.column(column.name))):
            explained.append(column.name)
            yield note
    if columns.time is not None and columns.time.name in as_written:
        yield from filter(None, (_almost(columns.time, table.column(columns.time.name)),))
    others = [c for c in columns.features if c.name not in (*categorical, *explained)]
    ids = [c.name for c in others if looks_like_ids(c, table.column(c.name))]
    growing = [c.name for c in others if c.name not in ids and _grows(c, table.column(c.name))]
    if ids:
        them, verb = ("it", "looks") if len(ids) == 1 else ("them", "look")
        yield (
            f"{', '.join(map(quoted, ids))} {verb} like ids: a new value or a number that grows "
            f"by 1 in nearly every row; such columns predict nothing, so leave {them} out with "
            f"ignore={ids}"
        )
    if growing:
        times = "" if columns.time else f"if these are times, give time={quoted(growing[0])}; else "
        yield (
            f"{', '.join(map(quoted, growing))}: a number that grows in nearly every row, so each "
            f"row is beyond all that was learned; {times}leave it out with ignore={growing}"
        )


def _unclear_comma(name: str, array: pa.Array) -> str:
    """Numbers with a comma that is a decimal one perhaps."""
    value = quoted(next(value for value in distinct(array)[1] if value and "," in value))
    return (
        f"column {quoted(name)} is taken for text: the comma in {value} may be decimal, or "
        'between thousands; if it is decimal, give decimal=","; else write the numbers without it'
    )


def _of_kind(columns: Columns, kind: str) -> list[str]:
    roles: list[Column | Role] = [*columns.features]
    roles += filter(None, (columns.target, columns.time, columns.label_time))
    return [column.name for column in roles if column.kind == kind]


def _read_as(columns: Columns, table: pa.RecordBatch, kind: str) -> Iterator[str]:
    """How numbers with commas, signs, or dots between thousands are read."""
    parse, examples, unclear = READINGS[kind].parse, [], False
    for name in _of_kind(columns, kind):
        texts = [text_of(value) or "" for value in distinct(table.column(name))[1]]
        if kind == COMMA:
            marked = [text for text in texts if re.search("[0-9][,.][0-9]", text)]
        else:
            marked = [t for t in texts if fails(float, t) and t and t.lower() not in MISSING]
        text = max(marked, key=lambda text: "," in text, default=None)
        if text is not None and not fails(parse, text):
            examples.append(f"{quoted(text)} in {quoted(name)} is {parse(text):.15g}")
            unclear |= "," in text and not any(re.search(",[0-9]+[,.]", text) for text in texts)
    more = f" and {len(examples) - _FEW} more columns" if len(examples) > _FEW else ""
    how = ", ".join(examples[:_FEW]) + more
    if examples and kind == COMMA:
        yield f'numbers have decimal commas: {how}; if that is wrong, give decimal="."'
    elif unclear:
        yield (
            f"commas may be decimal, or between thousands, and are taken for the latter: {how}; if "
            'that is wrong, give decimal=","'
        )
    elif examples:
        yield f"amounts are read as numbers: {how}"


def _unclear_dates(columns: Columns, table: pa.RecordBatch) -> Iterator[str]:
    """Dates of which the day may be the month."""
    for name in _of_kind(columns, DAY_FIRST):
        array = table.column(name)
        values, wrong = READINGS[MONTH_FIRST].convert(array)
        if not wrong and np.isfinite(values).any():
            text = next(text for text in map(text_of, array.to_pylist()) if text)
            yield (
                f"the dates in {quoted(name)} may begin with the day or with the month: "
                f"{quoted(text)} is taken for day-first; if that is wrong, give "
                'date_format="month-first"'
            )


def _two_kinds_of_dates(columns: Columns, table: pa.RecordBatch) -> Iterator[str]:
    """Dates of which some begin with the year."""
    for kind in (DAY_FIRST, MONTH_FIRST):
        for name in _of_kind(columns, kind):
            texts = [text for text in map(text_of, distinct(table.column(name))[1]) if text]
            texts = [text for text in texts if not fails(READINGS[kind].parse, text)]
            others = [text for text in texts if fails(seconds_of, text)]
            iso = [t for t in texts if t not in set(others) and t.lower() not in MISSING]
            if iso and others:
                yield (
                    f"the dates in {quoted(name)} have two formats: {quoted(iso[0])} is year-first "
                    f"and {quoted(others[0])} is taken for {kind.removesuffix(' date')}; if that "
                    "is wrong, write all of them in one format"
                )


def _leading_zeros(
    columns: Columns, table: pa.RecordBatch, as_written: Container[str]
) -> Iterator[str]:
    """Whole numbers of one length, such as postal codes, some of which begin with zeros."""
    for name in [name for kind in NUMBERS for name in _of_kind(columns, kind)]:
        texts = [text_of(value) or "" for value in distinct(table.column(name))[1]]
        texts = [text for text in texts if text.lower() not in MISSING]
        codes = [text for text in texts if _CODE.fullmatch(text)]
        is_feature = any(name == column.name for column in columns.features)
        if name in as_written and is_feature and codes and _of_one_length(texts):
            yield (
                f"the numbers in {quoted(name)}, such as {quoted(codes[0])}, may be codes, since "
                f"they have leading zeros; if so, give categorical=[{quoted(name)}]"
            )


def _of_one_length(texts: Sequence[str]) -> bool:
    """Whether all texts are digits, as many in each."""
    return len(set(map(len, texts))) == 1 and all(text.isdecimal() for text in texts)


def _unclear_dots(
    columns: Columns, table: pa.RecordBatch, as_written: Container[str]
) -> Iterator[str]:
    """Dots that may be between thousands, where the delimiter is that of decimal commas."""
    groups, clear = dict[str, str](), False
    for name in _of_kind(columns, NUMBER):
        texts = [text for text in map(text_of, distinct(table.column(name))[1]) if text]
        dotted = [text for text in texts if "." in text.strip(".") and name in as_written]
        if dotted and all(map(_DOTS.fullmatch, dotted)):
            groups[name] = dotted[0]
        clear |= bool(dotted) and name not in groups
    for name, text in groups.items():
        remedy = "write them without dots" if clear else 'give decimal=","'
        yield (
            f"the dots in {quoted(name)} may be decimal, or between thousands: {quoted(text)} is "
            f"taken for {float(text):.15g}; if they are between thousands, {remedy}"
        )


def _unlabelled(columns: Columns, table: pa.RecordBatch) -> Iterator[str]:
    """Rows whose target is a text that stands for no value."""
    role = columns.target
    if role is None or role.kind == TEXT:
        return
    codes, values = distinct(table.column(role.name))
    texts = [text_of(value) or "" for value in values]
    tokens = [k for k, text in enumerate(texts) if text and text.lower() in MISSING]
    count = np.count_nonzero(np.isin(codes, tokens))
    if count:
        listed = ", ".join(quoted(texts[k]) for k in tokens)
        yield (
            f"the target {quoted(role.name)} is missing ({listed}) in {count:,} of the first "
            f"{table.num_rows:,} rows; such rows are predicted, but not scored or learned"
        )


def _mostly(name: str, array: pa.Array, numbered: bool, is_target: bool) -> str:
    """A column of text most of whose values, but not enough, are of another kind; or ""."""
    found = mostly(name, array, numbered)
    if found is None:
        return ""
    codes = f"codes, give categorical=[{quoted(name)}]"
    if is_target:
        codes = f'labels, give task="{CLASSIFICATION}"'
    texts = [text for text in dict.fromkeys(map(text_of, found.bad.values())) if text]
    missing = texts if len(texts) <= _FEW else texts[:1]
    return (
        f"{found.what}; if such texts stand for missing values, give missing={missing}; if they "
        f"are {codes}"
    )


def _almost(column: Column | Role, array: pa.Array) -> str:
    """Dates of a format that must be given, or numbers with a text after them; or ""."""
    if column.kind not in (CATEGORY, TEXTS, NUMBER):
        return ""
    values = [text for text in map(text_of, distinct(array)[1]) if text]
    texts = [text for text in values if text.lower() not in MISSING]
    if len(texts) < _LEAST_TEXTS:
        return ""
    name = quoted(column.name)
    if remedy := date_remedy(texts):
        return (
            f"column {name} is taken for {KINDS[column.kind].plural}, but may hold dates such as "
            f"{quoted(texts[0])}; if so, {remedy}"
        )
    if pairs := two_date_formats_of(texts):
        (first, text), (second, other) = pairs
        return (
            f"column {name} is taken for {KINDS[column.kind].plural}, but its dates have two "
            f"formats: {first} as {quoted(text)}, and {second} as {quoted(other)}; write all of "
            "them in one format"
        )
    texts = texts[:_MOST_TEXTS]
    units = {match and match[1] for match in map(_WITH_UNIT.fullmatch, texts)}
    if column.kind == NUMBER or None in units or len(units) > _FEW or len(texts) < _LEAST_NUMBERS:
        return ""
    return (
        f"column {name} is taken for text: values such as {quoted(texts[0])} are numbers with a "
        "text after them; write the numbers alone"
    )


def _grows(column: Column, array: pa.Array) -> bool:
    """Whether nearly all values are above all earlier ones."""
    numbers = finite(column, array)
    above = numbers[1:] > np.maximum.accumulate(numbers)[:-1]
    return nearly(int(np.count_nonzero(above)), len(above))
