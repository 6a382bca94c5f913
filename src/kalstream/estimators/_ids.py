"""Ids of rows that wait: which values can be ids, and how a file holds them exactly."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import numpy as np

from kalstream.core import checks as check
from kalstream.errors import InvalidInput

# Tuples deeper than this are refused: reading them back could exhaust the stack.
_DEEPEST: Final = 16
_SIMPLE: Final = frozenset({int, str, bytes, bool})

# How each kind of id is written behind a tag of one byte, and read.
_CODECS: Final[dict[type, tuple[bytes, Callable[[Any], bytes], Callable[[bytes], Hashable]]]] = {
    int: (b"i", lambda key: b"%x" % key, lambda text: int(text, 16)),
    float: (b"f", lambda key: key.hex().encode(), lambda text: float.fromhex(text.decode())),
    str: (
        b"s",
        lambda key: key.encode("utf-8", "surrogatepass"),
        lambda text: text.decode("utf-8", "surrogatepass"),
    ),
    bytes: (b"b", bytes, bytes),
    bool: (b"?", lambda key: b"1" if key else b"", bool),
    UUID: (b"u", lambda key: key.bytes, lambda text: UUID(bytes=text)),
    datetime: (
        b"t",
        lambda key: key.isoformat().encode(),
        lambda text: datetime.fromisoformat(text.decode()),
    ),
    date: (
        b"d",
        lambda key: key.isoformat().encode(),
        lambda text: date.fromisoformat(text.decode()),
    ),
    Decimal: (b"n", lambda key: str(key).encode(), lambda text: Decimal(text.decode())),
}
_READERS: Final = {tag: read for tag, _, read in _CODECS.values()}


def listed(name: str, ids: Any) -> list[Hashable]:
    """Ids as a list of plain Python values, each of a kind that a file holds exactly."""
    keys = ids.tolist() if hasattr(ids, "tolist") else ids
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise InvalidInput(f"{name} must be a sequence of ids, got {check.shown(ids)}")
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "mM":
        keys = ids  # its plain values may be numbers of nanoseconds
    keys = list(keys)
    if _SIMPLE.issuperset(map(type, keys)):
        return keys
    made = []
    for key in keys:
        try:
            made.append(_plain(key, 0))
        except Exception as error:  # an object of any class
            raise InvalidInput(
                f"{name} holds {check.shown(key)}, which cannot be an id; use numbers, strings, "
                "bytes, datetime.datetime, datetime.date, Decimal, uuid.UUID or tuples of these, "
                "such as str(id)"
            ) from error
    return made


def _plain(key: Any, depth: int) -> Hashable:
    """An id as a value of one of the kinds; raises if it is none."""
    if type(key) is tuple and depth < _DEEPEST:
        return tuple(_plain(each, depth + 1) for each in key)
    if isinstance(key, np.generic) and key.dtype.kind not in "mM":
        key = key.item()
    elif isinstance(key, datetime):
        if getattr(key, "nanosecond", 0):
            raise ValueError("a datetime has no nanoseconds")
        if hasattr(key, "to_pydatetime"):
            key = key.to_pydatetime()
        if key.utcoffset() is not None:  # equal times of two zones are one id, also in a file
            key = key.astimezone(UTC)
    if type(key) not in _CODECS or key != key:
        raise ValueError("not one of the kinds")
    return key


def _written(key: Any) -> bytes:
    if type(key) is tuple:
        parts = [_written(each) for each in key]
        return b"(" + b"".join(b"%d:" % len(part) + part for part in parts)
    tag, write, _ = _CODECS[type(key)]
    return tag + write(key)


def _read(text: bytes) -> Hashable:
    if text[:1] != b"(":
        return _READERS[text[:1]](text[1:])
    parts, start = [], 1
    while start < len(text):
        colon = text.index(b":", start)
        stop = colon + 1 + int(text[start:colon])
        parts.append(_read(text[colon + 1 : stop]))
        start = stop
    return tuple(parts)


def packed(ids: list[Any]) -> Any:
    """Ids as arrays: whole numbers (n,), or the bytes of all and where each ends (n,)."""
    if all(type(key) is int and -(2**63) <= key < 2**63 for key in ids):
        return np.array(ids, np.int64)
    if set(map(type, ids)) == {str} and (joined := "s".join(["", *ids])).isascii():
        ends = np.cumsum(np.fromiter(map(len, ids), np.int64, len(ids)) + 1)
        return {"text": np.frombuffer(joined.encode(), np.uint8), "ends": ends}
    texts = [_written(key) for key in ids]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return {"text": np.frombuffer(b"".join(texts), np.uint8), "ends": ends}


def unpacked(saved: Any) -> list[Hashable]:
    """The ids that `packed` took; a list is of a file of an earlier format."""
    if isinstance(saved, list):
        return listed("ids", saved)
    if isinstance(saved, np.ndarray):
        if saved.dtype != np.int64 or saved.ndim != 1:
            raise ValueError("ids of rows that wait must be whole numbers")
        return saved.tolist()
    text, ends = saved["text"].tobytes(), saved["ends"]
    starts = np.r_[np.int64(0), ends[:-1]]
    if not (
        (ends.ndim, ends.dtype) == (1, np.int64) and ends[-1] == len(text) and (starts < ends).all()
    ):
        raise ValueError("ids of rows that wait must end where the next ones begin")
    cuts = zip(starts.tolist(), ends.tolist(), strict=True)
    if text.isascii() and (saved["text"][starts] == ord("s")).all():  # far faster than one by one
        joined = text.decode()
        return [joined[a + 1 : b] for a, b in cuts]
    return [_read(text[a:b]) for a, b in cuts]
