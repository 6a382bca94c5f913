"""Many records by key, in versions that never change and cost only what differs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Self
from weakref import ref

Record = Any  # bytes, or what `Records._read` makes bytes of


class Records:
    """Records of keys. Never changed to its readers.

    All versions share one dict, which holds the newest. An older version that somebody still holds
    knows what was there instead, so a batch costs what it touches. (A persistent map copies nodes:
    with a million keys it took 16 microseconds a record.) A version that is not the newest copies
    the dict when it is updated.

    No step of an update needs the next one: if it is interrupted, each version reads as it did. A
    reader looks at the dict before it looks for what was replaced, which is noted before it is. So
    no lock is needed.

    Examples
    --------
    >>> first = Records({"a": b"1"})
    >>> second = first.updated({"a": b"2", "b": b"3"})
    >>> first.several(["a", "b"], b""), second.several(["a", "b"], b"")
    ([b'1', b''], [b'2', b'3'])
    >>> len(first), len(second)
    (1, 2)
    """

    def __init__(self, records: Mapping[Hashable, Record] | None = None) -> None:
        self._newest: dict[Hashable, Record] = dict(records or {})
        self._n = len(self._newest)
        self._older: tuple[ref[Records], ...] = ()

    def __len__(self) -> int:
        return self._n

    def several(self, keys: Sequence[Hashable], default: bytes) -> list[bytes]:
        """Records of different keys, ``default`` for those that have none."""
        get = self._newest.get
        found = [get(key, default) for key in keys]
        replaced = self.__dict__.get("_replaced")
        if replaced is not None:
            pairs = zip(keys, found, strict=True)
            found = [replaced.get(key, record) or default for key, record in pairs]
        return self._read(found)

    def keys(self) -> list[Hashable]:
        """All keys, in the order of `to_dict`."""
        return list(self._all())

    def to_dict(self) -> dict[Hashable, bytes]:
        """All records."""
        found = self._all()
        return dict(zip(found, self._read(found.values()), strict=True))

    def joined(self, size: int) -> Any:
        """The bytes of all records, each padded with zeros to this size, as one buffer."""
        return b"".join(self._padded(self._all().values(), size))

    def _padded(self, records: Iterable[Record], size: int) -> list[bytes]:
        return [record.ljust(size, b"\0") for record in self._read(records)]

    @property
    def nbytes(self) -> int:
        """Bytes of the records in memory."""
        return sum(len(record) for record in self._all().values() if type(record) is bytes)

    def _all(self) -> dict[Hashable, Record]:
        found = self._newest.copy()
        for key, record in list(self.__dict__.get("_replaced", {}).items()):
            if record is None:
                found.pop(key, None)
            else:
                found[key] = record
        return found

    def updated(self, changes: Mapping[Hashable, bytes]) -> Self:
        """The version after this one, with these records added or replaced; none is empty."""
        newest = self._newest
        before = {key: newest.get(key) for key in changes}
        after = self._next()
        after._newest = newest
        after._n = self._n + sum(record is None for record in before.values())
        if self.__dict__.setdefault("_replaced", before) is not before:  # it is not the newest
            return self._branch().updated(changes)
        held = [(each, version) for each in self._older if (version := each()) is not None]
        for _, version in held:
            replaced = version.__dict__["_replaced"]
            for key, record in before.items():
                replaced.setdefault(key, record)
        after._older = (*(each for each, _ in held), ref(self))
        after._put(changes)
        return after

    def passing(
        self, keyed: Any, used: Any, rows: tuple[Any, ...], learns: bool
    ) -> Callable[[], Any]:
        """Pass rows here and now; the function returned gives what `Keyed.advance` waits for."""
        changes, out, votes = keyed.pass_rows(self, used, *rows)
        records = self.updated(changes) if learns else self
        return lambda: (records, out, votes)

    def _put(self, changes: Mapping[Hashable, bytes]) -> None:
        self._newest.update(changes)

    def _read(self, records: Iterable[Record]) -> list[bytes]:
        return list(records)

    def _next(self) -> Self:
        """The version after this one, yet without records."""
        return object.__new__(type(self))

    def _branch(self) -> Self:
        """The same records, with a dict of their own."""
        return type(self)(self._all())

    def __reduce__(self) -> Any:
        return type(self), (self.to_dict(),)
