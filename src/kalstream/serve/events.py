"""What clients send and get: rows and labels as JSON, decoded once and checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from kalstream.errors import InvalidInput

Value = str | int | float | bool | None


class Event(Struct, forbid_unknown_fields=True, omit_defaults=True, repr_omit_defaults=True):
    """A row, a label, or both.

    Attributes
    ----------
    row : {column: value}, optional
        A row to predict, and to learn if there is a label beside it.
    id : str or int, optional
        Name of the row. A row without a label waits for a later event with its id and the label.
    label : optional
        A string, a whole number or a boolean; of regression, a number.
    """

    row: dict[str, Value] | UnsetType = UNSET
    id: str | int | UnsetType = UNSET
    label: str | int | float | bool | UnsetType = UNSET


class Events(Struct, forbid_unknown_fields=True):
    """Several events, in their order."""

    rows: list[Event]


class Made(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What became of an event.

    Attributes
    ----------
    prediction : label or mean, optional
        Made before the label was learned; absent before anything was learned. Of an id that comes
        again the first one, by which the row is scored; absent if that is forgotten.
    probabilities : {label: probability}, optional
    std : float, optional
        Standard deviation of regression.
    status : str, optional
        Of a label: "learned", "repeated" (its id had one before), "unknown" (no row has its id) or
        "expired" (its row was given up). Of a row with an id and no label: "waits", or if the id
        came before and no longer waits, "repeated" or "expired".
    """

    prediction: Any = None
    probabilities: dict[str, float] | None = None
    std: float | None = None
    status: str | None = None


class Answers(Struct, forbid_unknown_fields=True):
    """What became of several events."""

    rows: list[Made]


# The one field of `Events` comes first in them, and in no event.
_LIST: Final = re.compile(rb'\s*\{\s*"rows"\s*:')
_one = msgspec.json.Decoder(Event)
_many = msgspec.json.Decoder(Events)
_log = msgspec.json.Decoder(list[list[Event]])
encode = msgspec.json.Encoder().encode


def read_line(line: bytes) -> Event:
    """The event of one line, which is no list."""
    try:
        return _one.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(error) from None


def read_body(body: bytes, most_rows: int) -> tuple[list[Event], bool]:
    """The events of a request, and whether they were a list under "rows".

    Examples
    --------
    >>> read_body(b'{"row": {"x": 1}, "label": "yes"}', 10)
    ([Event(row={'x': 1}, label='yes')], False)
    """
    if _LIST.match(body) is None:
        return [read_line(body)], False
    try:
        events = _many.decode(body).rows
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(error) from None
    if len(events) > most_rows:
        raise InvalidInput(
            f"the request has {len(events):,} rows, at most {most_rows:,} are taken; send several "
            "requests"
        )
    return events, True


def _unreadable(error: Exception) -> InvalidInput:
    return InvalidInput(
        f"the request cannot be read ({error}); send "
        '{"row": {"column": value}, "label": "yes"} or {"rows": [...]} with several of these'
    )


def as_labels(events: Sequence[Event]) -> None:
    """Refuse events that teach nothing."""
    for k, event in enumerate(events):
        if event.label is UNSET:
            raise InvalidInput(f"event {k} has no label to learn; add one, or send it to predict")
        if event.row is UNSET and event.id is UNSET:
            raise InvalidInput(f"event {k} has a label, but neither a row nor an id; add one")


def as_rows(events: Sequence[Event]) -> None:
    """Refuse events that ask for nothing, or that bring labels."""
    for k, event in enumerate(events):
        if event.row is UNSET:
            raise InvalidInput(f"event {k} has no row to predict; add one")
        if event.label is not UNSET:
            raise InvalidInput(f"event {k} has a label; send it to learn, which predicts it first")


def to_log(requests: Sequence[Sequence[Event]]) -> bytes:
    """Requests that are learned together, as they are kept."""
    return encode(requests)


def from_log(body: bytes) -> list[list[Event]]:
    """What `to_log` was given."""
    return _log.decode(body)
