"""Roles of the columns of a table: features, target, times and ids."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa

from kalstream._printable import printable, quoted
from kalstream.core.checks import LARGEST_FLOAT64 as LARGEST
from kalstream.errors import InvalidInput, InvalidOption
from kalstream.features.encoding import (
    BOOLEAN,
    CATEGORY,
    COMMA,
    KEY,
    KINDS,
    NUMBER,
    NUMBERS,
    READINGS,
    TEXTS,
    Column,
    OneNumber,
    has_decimal_commas,
    is_of_dates,
    kind_of,
)
from kalstream.features.values import (
    EMPTY,
    MISSING,
    Bad,
    Reading,
    as_text,
    date_remedy,
    distinct,
    fails,
    is_missing,
    is_string,
    number_of,
    one_by_one,
    text_of,
    without,
)
from kalstream.streams.base import CLASSIFICATION, REGRESSION, Array, check_task

# Kinds of labels; a target for regression is a number.
WHOLE, TRUTH, TEXT = "whole label", "boolean label", "text label"

MOST_CLASSES = 100  # a target with more distinct whole numbers is taken for regression
_FEW_TARGETS = 20  # of a pipe; with fewer large whole numbers the task is asked for
_LONG = 100  # characters; no similar name is suggested for longer ones
_NO_LABELS = f' (regression needs numbers; for labels give task="{CLASSIFICATION}")'


@dataclass(frozen=True, slots=True)
class Role:
    """A column that is no feature: target, time, label time or id.

    Attributes
    ----------
    name, kind : str
    """

    name: str
    kind: str

    @property
    def reading(self) -> Reading:
        """How its values are read."""
        return _READINGS.get(self.kind) or READINGS[self.kind]

    def checked(self, table: pa.RecordBatch, bad: Bad, hint: str = "") -> Array:
        """Values (n,); adds to the bad rows."""
        return self.reading.checked(self.name, table.column(self.name), bad, hint)


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns of a table are, and how they become numbers. Learning returns a new one.

    `TableStream` makes it and has it as `encoder`. A number is one column (NaN if missing). So is
    a boolean (0 or 1). A date is a point of a circle for each of time of day, day of week and day
    of year that its resolution makes meaningful. A category is one column per value, in the order
    of first appearance. The number of these columns is fixed; once all are in use, a hash decides
    which of them a new value shares.

    Attributes
    ----------
    features : tuple of Column
    target, time : Role or None
    label_time, id : Role or None
        When the target came, and the id of a row.
    key : Role or None
        The key of a row, for models by key.
    seen : int
        Number of rows from which the categories are known.
    is_frozen : bool
        Whether `learn` gives no slot to new categories.
    missing : tuple of str
        Texts that count as missing in every column.

    Examples
    --------
    >>> table = pa.record_batch({"color": ["red", "blue", "red"], "y": [1, 0, 1]})
    >>> columns, guess = Columns.of_table(table, target="y")
    >>> columns.names
    ('color[0]', 'color[1]', 'color[2]', 'color[3]')
    >>> columns = columns.learn(table)
    >>> rows, targets, _, bad = columns.encode(table)
    >>> rows.tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    >>> Columns.from_json(columns.to_json()) == columns
    True
    """

    features: tuple[Column, ...]
    target: Role | None
    time: Role | None = None
    seen: int = 0
    is_frozen: bool = False
    label_time: Role | None = None
    id: Role | None = None
    missing: tuple[str, ...] = ()
    key: Role | None = None

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
        key: str | None = None,
        categorical: Sequence[str] = (),
        missing: tuple[str, ...] = (),
        decimal: str | None = None,
        date_format: str | None = None,
        semicolons: bool = False,
        as_written: Iterable[str] = (),
        n_slots: int | None = None,
        targets: pa.Array | None = None,
    ) -> tuple[Columns, str]:
        """Decide the kinds from the first rows of a table.

        Parameters
        ----------
        table : pyarrow.RecordBatch
        target, task, time, label_time, id, key, categorical, missing, decimal, date_format
            As for `TableStream`.
        semicolons : bool
            Whether the file has them between values, so that a comma is a decimal one.
        as_written : names
            Columns of text whose content decides their kind, as in CSV.
        n_slots : int, optional
            Columns for each category; by default a quarter more than there are values.
        targets : (n,), optional
            More values of the target, of rows after the first one of a pipe.

        Returns
        -------
        columns : Columns
        guess : str
            Sentence that says which task was guessed and why; "" if it was given.
        """
        names = table.schema.names
        features = [name for name in names if name not in (target, time, label_time, id, key)]
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
        table = without_missing(table, missing)
        written = set(as_written)
        arrays = dict(zip(names, table.columns, strict=True))
        if targets is not None:
            arrays[target] = without(targets, missing)
        with_commas = {
            name
            for name in names
            if decimal != "."
            and name not in (id, key, *categorical)
            and has_decimal_commas(arrays[name], sure=semicolons or decimal == ",")
        }

        def kind(name: str) -> str:
            is_written = name in written or name in with_commas
            has_commas = bool(with_commas) or decimal == ","
            return kind_of(name, arrays[name], is_written, has_commas, date_format)

        target_role, guess = _target(
            target, arrays[target], kind(target), task, is_live=targets is not None
        )
        clock = came = None
        if time is not None:
            clock = _time_role("time", time, kind(time), arrays[time])
        if label_time is not None:
            came = _time_role("label_time", label_time, kind(label_time), arrays[label_time])
            # The first labels may not have come yet.
            if clock is not None and is_missing(table.column(label_time)).all():
                came = replace(came, kind=clock.kind)
            _check_one_clock(clock, came)
        columns = tuple(
            KINDS[CATEGORY if name in categorical else kind(name)].start(
                name, table.column(name), n_slots
            )
            for name in features
        )
        ids, keys = (None if name is None else Role(name, TEXT) for name in (id, key))
        made = cls(columns, target_role, clock, label_time=came, id=ids, missing=missing, key=keys)
        return made, guess

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of numbers, (d,)."""
        return tuple(name for column in self.features for name in column.names)

    @property
    def task(self) -> str:
        """The task, as the kind of the target decides it."""
        number = self.target is not None and self.target.kind in NUMBERS
        return REGRESSION if number else CLASSIFICATION

    @property
    def complete(self) -> bool:
        """Whether no later row can change the encoding."""
        return self.is_frozen or all(column.full for column in self.features)

    def frozen(self) -> Columns:
        """A copy for prediction: new categories get no slot, target and time may be missing."""
        return replace(self, is_frozen=True)

    def with_keys(self, names: Iterable[str]) -> Columns:
        """A copy with a column of numbers for each of some columns of keys, for `Aggregates`."""
        made = tuple(Column(name, KEY) for name in dict.fromkeys(names))
        return replace(self, features=self.features + made)

    def with_late(self, label_time: str | None, id: str | None) -> Columns:
        """A copy in which other columns, or none, say when targets came and hold ids of rows."""
        came = self.label_time
        if label_time is None:
            came = None
        elif came is None or came.name != label_time:
            came = Role(label_time, NUMBER if self.time is None else self.time.kind)
        return replace(self, label_time=came, id=None if id is None else Role(id, TEXT))

    def wanted(self, names: list[str], file: str) -> list[str]:
        """Those columns of a file that are used; an error if a needed one is missing."""
        needed = [column.name for column in self.features]
        if self.key is not None:
            needed.append(self.key.name)
        special = self.target, self.time, self.label_time, self.id
        others = [column.name for column in special if column is not None]
        check_known(needed if self.is_frozen else needed + others, names, file=file)
        return list(dict.fromkeys(needed + [name for name in others if name in names]))

    def learn(self, table: pa.RecordBatch) -> Columns:
        """The columns after these rows: new categories have their slots."""
        if self.complete:
            return self
        table = without_missing(table, self.missing)
        empty = self._is_empty(table)
        if empty.any():
            table = table.take(pa.array(np.flatnonzero(~empty)))
        learned = (column.learn(table.column(column.name)) for column in self.features)
        return replace(self, features=tuple(learned))

    def encode(self, table: pa.RecordBatch) -> tuple[Array, Array, Array | None, Bad]:
        """Turn rows of a table into numbers; a category without a slot is zeros.

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
        table = without_missing(table, self.missing)
        rows = self._numbers(table, bad)
        present = table.schema.names
        targets = self.encode_targets(table, bad)
        if self.time is None or self.time.name not in present:
            return rows, targets, None, bad
        array = table.column(self.time.name)
        times = self.time.checked(table, bad)
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
        table = without_missing(table, self.missing)
        number = self.id is not None and self.target.kind in NUMBERS
        hint = _NO_LABELS if number else ""
        return self.target.checked(table, bad, hint)

    def values(self, table: pa.RecordBatch, bad: Bad) -> list[dict[str, Any]]:
        """Features as objects {column: value}, n of them; adds to the bad rows.

        Numbers and booleans that are written as text become values; other texts stay as they are.
        """
        table = without_missing(table, self.missing)
        columns = {}
        for column in self.features:
            if column.kind == KEY:
                continue
            array = table.column(column.name)
            if isinstance(KINDS[column.kind], OneNumber):
                numbers = READINGS[column.kind].checked(column.name, array, bad)
                one = bool if column.kind == BOOLEAN else float
                columns[column.name] = [None if v != v else one(v) for v in numbers.tolist()]
            else:
                texts = as_text(array) if column.kind in (CATEGORY, TEXTS) else array
                columns[column.name] = texts.to_pylist()
        parts = zip(*columns.values(), strict=True)
        return [dict(zip(columns, values, strict=True)) for values in parts]

    def encode_more(
        self, table: pa.RecordBatch, times: Array | None, bad: Bad
    ) -> tuple[Array | None, Array | None]:
        """Times at which targets came (NaN: never), and ids (None: none); adds to the bad rows.

        A target that comes before its row, by the ``times`` (n,) of the rows, is bad.
        """
        table = without_missing(table, self.missing)
        present = table.schema.names
        came = ids = None
        if self.label_time is not None and self.label_time.name in present:
            array = table.column(self.label_time.name)
            came = self.label_time.checked(table, bad)
            if self.time is None or times is None or self.is_frozen:
                times = np.full(len(came), -np.inf)
            for row in np.flatnonzero(came < times).tolist():
                name = self.time and self.time.name
                own = quoted(table.column(name)[row].as_py())
                why = f"is earlier than the time of the row ({own} in {quoted(name)})"
                bad.setdefault(row, (self.label_time.name, array[row].as_py(), why))
        if self.id is not None and self.id.name in present:
            ids, _ = self.id.reading.convert(table.column(self.id.name))
        return came, ids

    def keys(self, table: pa.RecordBatch, bad: Bad) -> Array | None:
        """Keys (n,) as texts, None without a column of keys; a row without a key is a bad row."""
        if self.key is None:
            return None
        array = without_missing(table, self.missing).column(self.key.name)
        keys, _ = self.key.reading.convert(array)
        for row in [row for row, key in enumerate(keys.tolist()) if key is None]:
            why = "is no key: give such rows one, such as 'none'"
            bad.setdefault(row, (self.key.name, array[row].as_py(), why))
        return keys

    def _is_empty(self, table: pa.RecordBatch) -> Array:
        """Which rows (n,) have an id and nothing but that and a target."""
        if self.id is None:
            return np.zeros(table.num_rows, bool)
        empty = [_missing(table, column) for column in self.features]
        if self.is_frozen:  # rows to predict: only those that bring a target are not
            for role in filter(None, (self.target, self.id)):
                there = role.name in table.schema.names
                empty.append(~_missing(table, role) if there else np.zeros(table.num_rows, bool))
        return np.logical_and.reduce(empty)

    def _numbers(self, table: pa.RecordBatch, bad: Bad) -> Array:
        """Columns of numbers; NaN in a row with an id that has nothing but that and a target."""
        empty = self._is_empty(table)
        if not empty.any():
            return self._encoded(table, bad)
        rows = np.full((table.num_rows, len(self.names)), np.nan)
        others, wrong = np.flatnonzero(~empty), Bad()
        rows[others] = self._encoded(table.take(pa.array(others)), wrong)
        bad.update((int(others[row]), why) for row, why in wrong.items())
        return rows

    def _encoded(self, table: pa.RecordBatch, bad: Bad) -> Array:
        rows = np.empty((table.num_rows, sum(column.n_slots for column in self.features)))
        at = 0
        for column in self.features:
            rows[:, at : at + column.n_slots] = column.encode(table.column(column.name), bad)
            at += column.n_slots
        return rows

    def to_json(self) -> dict[str, Any]:
        """The state as JSON, for checkpoints."""
        return {
            "features": [column.to_json() for column in self.features],
            "target": self.target and [self.target.name, self.target.kind],
            "time": self.time and [self.time.name, self.time.kind],
            "seen": self.seen,
            "frozen": self.is_frozen,
            "label_time": self.label_time and [self.label_time.name, self.label_time.kind],
            "id": self.id and [self.id.name, self.id.kind],
            **({"key": [self.key.name, self.key.kind]} if self.key else {}),
            **({"missing": list(self.missing)} if self.missing else {}),
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Columns:
        """Restore what `to_json` returned."""
        features = tuple(map(Column.from_json, state["features"]))
        special = ("target", "time", "label_time", "id", "key")  # earlier files lack the last
        missing = tuple(state.get("missing", ()))
        target, time, came, id, key = (
            None if state.get(key) is None else Role(*state[key]) for key in special
        )
        start = features, target, time, state["seen"], state["frozen"]
        return cls(*start, came, id, missing, key)


def without_missing(table: pa.RecordBatch, missing: tuple[str, ...]) -> pa.RecordBatch:
    """The table, null where a text counts as missing."""
    if not missing:
        return table
    arrays = [without(array, missing) for array in table.columns]
    return pa.RecordBatch.from_arrays(arrays, table.schema.names)


def _missing(table: pa.RecordBatch, column: Column | Role) -> Array:
    """Whether each value (n,) of a column is missing."""
    is_text = column.kind in (CATEGORY, TEXTS, TEXT, KEY)
    return is_missing(table.column(column.name), EMPTY if is_text else MISSING)


def _check_one_clock(time: Role | None, label_time: Role) -> None:
    """Refuse times of rows and of their labels of which only one are dates."""
    if time is not None and is_of_dates(time.kind) != is_of_dates(label_time.kind):
        raise InvalidInput(
            f"label_time={quoted(label_time.name)} holds {KINDS[label_time.kind].plural}, but "
            f"time={quoted(time.name)} holds {KINDS[time.kind].plural}; write both as numbers of "
            "one clock, or both as dates"
        )


def _time_role(option: str, name: str, kind: str, array: pa.Array) -> Role:
    """A column of times, or an error if it holds something else."""
    if kind not in NUMBERS and not is_of_dates(kind):
        held = "categories" if kind == CATEGORY else KINDS[kind].plural
        texts = [text for text in map(text_of, distinct(array)[1]) if text]
        if remedy := date_remedy(texts):
            raise InvalidInput(
                f"the column {quoted(name)} given as {option} holds dates such as "
                f"{quoted(texts[0])}; {remedy}"
            )
        raise InvalidInput(
            f"the column {quoted(name)} given as {option} holds {held}; name a column of "
            "numbers or ISO dates (date_format= names another format)"
        )
    return Role(name, kind)


def check_known(
    names: Iterable[str], known: Sequence[str], *, option: str = "", file: str = "", more: str = ""
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
        raise InvalidOption(f"{place}{problem}{hint} The columns are: {listed(known)}{more}")


def listed(names: Sequence[str]) -> str:
    """Names of the first columns for a message, long ones shortened."""
    return ", ".join(printable(n, 40) for n in names[:30]) + (", ..." if len(names) > 30 else "")


def _target(
    name: str, array: pa.Array, kind: str, task: str | None, *, is_live: bool
) -> tuple[Role, str]:
    """The column of the target, and the sentence that says which task was guessed.

    ``is_live``: whether the values are those that a pipe gave at once, which may be few.
    """
    guess = ""
    values = [value for value in distinct(array)[1] if text_of(value) is not None]
    if kind in NUMBERS and any(fails(READINGS[kind].parse, value) for value in values):
        # A label among whole numbers, or a typo among many amounts.
        kind = CATEGORY if len(values) <= MOST_CLASSES or task == CLASSIFICATION else kind
    whole = kind in NUMBERS and not any(fails(_whole, value) for value in values)
    if kind == COMMA and any("." in str(value) for value in values):
        whole = False  # 1.000 is a thousand
    if task is None:
        if not values:
            raise InvalidInput(
                f"target {quoted(name)} is empty in the first {len(array)} rows; "
                f'give task="{CLASSIFICATION}" or task="{REGRESSION}"'
            )
        few = is_live and whole and len(array) < _FEW_TARGETS
        if few and any(abs(_whole(value) or 0) > MOST_CLASSES for value in values):
            raise InvalidInput(
                f"target {quoted(name)} holds whole numbers such as {quoted(values[0])} in the "
                f"only {len(array)} rows that have come, which may be numbers or labels; give "
                f'task="{REGRESSION}" or task="{CLASSIFICATION}"'
            )
        task, other = CLASSIFICATION, REGRESSION
        if kind in NUMBERS and not (whole and len(values) <= MOST_CLASSES):
            task, other = other, task
        n_labels = sum(_whole(value) is not None for value in values) if whole else 0
        what = f"{n_labels} different whole numbers" if whole else KINDS[kind].plural
        what = "one whole number" if whole and n_labels == 1 else what
        rows = "row" if len(array) == 1 else f"{len(array)} rows"
        guess = (
            f"the target {quoted(name)} holds {what} in the first {rows}, so the task "
            f'is {task}; if that is wrong, give task="{other}"'
        )
    if check_task(task) == REGRESSION:
        if kind not in NUMBERS and values:
            raise InvalidInput(
                f"target {quoted(name)} holds {KINDS[kind].plural} such as {quoted(values[0])}, "
                f'but regression needs numbers; for labels give task="{CLASSIFICATION}"'
            )
        return Role(name, kind if kind in NUMBERS else NUMBER), guess
    if kind == BOOLEAN and not is_string(array.type):
        return Role(name, TRUTH), guess
    return Role(name, WHOLE if whole and values else TEXT), guess


def _whole(value: Any) -> int | None:
    number = number_of(value)
    if number is None or math.isnan(number):
        return None
    if not number.is_integer() or (isinstance(value, float) and abs(value) > LARGEST):
        raise ValueError
    try:
        return int(value)  # keeps all digits of a long number
    except ValueError:
        return int(number)  # "1.0"


_READINGS: Mapping[str, Reading] = {
    TRUTH: replace(READINGS[BOOLEAN], dtype=object, at_once=one_by_one),
    WHOLE: Reading(_whole, "a whole number, as the first labels are", object),
    TEXT: Reading(text_of, "text", object),
}
