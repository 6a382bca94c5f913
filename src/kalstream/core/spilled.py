"""Records of which only some are in memory; the others are in one temporary file."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from threading import Lock
from typing import Any, Final, Self

from kalstream.core.records import Record, Records

# Places in a file are powers of two, so that those of records that were shorter find a use.
_LEAST: Final = 512
_PIECE: Final = 1000  # records
# What was written before a fork the child may read at any time; None: a fork is under way.
_era: list[object | None] = [object()]


def _no_era() -> None:
    _era[0] = None


def _new_era() -> None:
    _era[0] = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_no_era, after_in_parent=_new_era, after_in_child=_new_era)


class Spilled(Records):
    """Records of keys, the most recently updated ones in memory. Never changed to its readers.

    Of a key whose record is in a file, the shared dict holds the place, and its content stays as it
    is while any version refers to it. So records that move change no version. Readers move nothing.

    Parameters
    ----------
    records : mapping, optional
    most : int
        How many keys may be in memory after an update.
    folder : str, optional
        Where the file is; None: the folder for temporary files.

    Examples
    --------
    >>> records = Spilled({"a": b"1", "b": b"2"}, most=1).updated({"c": b"3"})
    >>> len(records), records.nbytes, records.several(["a", "b", "c"], b"")
    (3, 1, [b'1', b'2', b'3'])
    """

    def __init__(
        self,
        records: Mapping[Hashable, Record] | None = None,
        most: int = 1,
        folder: str | None = None,
    ) -> None:
        self._start(records, most, Disk(folder))
        self._put({})

    def _start(self, records: Mapping[Hashable, Record] | None, most: int, disk: Disk) -> None:
        super().__init__(records)
        self._most, self._disk = most, disk
        kept = (key for key, record in self._newest.items() if type(record) is bytes)
        self._recent = OrderedDict.fromkeys(kept)  # the last is the most recent

    def _branch(self) -> Self:
        made = object.__new__(type(self))
        made._start(self._all(), self._most, self._disk)
        return made

    def _next(self) -> Self:
        made = object.__new__(type(self))
        made._most, made._disk, made._recent = self._most, self._disk, self._recent
        return made

    def _read(self, records: Iterable[Any]) -> list[bytes]:
        return [each if type(each) is bytes else each.read() for each in records]

    def _put(self, changes: Mapping[Hashable, bytes]) -> None:
        """Move the least recent records to the file. An interruption leaves some moved."""
        recent, newest = self._recent, self._newest
        newest.update(changes)
        for key in changes:
            recent[key] = None
            recent.move_to_end(key)
        keys = [recent.popitem(last=False)[0] for _ in range(len(recent) - self._most)]
        if keys:
            newest.update(zip(keys, self._disk.write([newest[key] for key in keys]), strict=True))

    def joined(self, size: int) -> Any:
        """As of `Records.joined`, in a temporary file that is mapped into memory."""
        everything = list(self._all().values())
        if not everything:
            return b""
        folder = self._disk.folder
        with _explained(folder), tempfile.TemporaryFile(dir=folder) as file:
            for i in range(0, len(everything), _PIECE):
                file.writelines(self._padded(everything[i : i + _PIECE], size))
            file.flush()
            return mmap(file.fileno(), 0, access=ACCESS_READ)

    def __reduce__(self) -> Any:
        return type(self), (self.to_dict(), self._most, self._disk.folder)


class Disk:
    """Writes records to a temporary file, which vanishes with its last record or the process."""

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self._file: _File | None = None

    def write(self, records: Sequence[Any]) -> list[RecordPlace]:
        """Where the records are."""
        file = self._file
        with _explained(self.folder):
            if file is None or file.process != os.getpid():  # that of a parent is only read
                self._file = file = _File(self.folder)
            return [file.write(record) for record in records]


@contextmanager
def _explained(folder: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"keys could not be written to a file in {folder or tempfile.gettempdir()} "
            f"({error.strerror}); make room, or give another folder or a larger max_keys",
        ) from error


class _File:
    """A file without a name. Its places are written once, and again when nobody can read them."""

    def __init__(self, folder: str | None) -> None:
        self._opened = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        # It is closed with this object. At exit other threads may still read.
        weakref.finalize(self, self._opened.close).atexit = False
        self.number, self.process = self._opened.fileno(), os.getpid()
        self._free: dict[int, list[_Freed]] = defaultdict(list)
        self._end, self._lock = 0, Lock()

    def write(self, record: bytes) -> RecordPlace:
        """Where a record is."""
        room = max(_LEAST, 1 << (len(record) - 1).bit_length())
        place = RecordPlace(self, self._place(room), len(record), self._free[room])
        done = os.pwrite(self.number, record, place.start)
        while done < len(record):  # the second time, a full disk raises an error
            done += os.pwrite(self.number, record[done:], place.start + done)
        return place

    def _place(self, room: int) -> int:
        free = self._free[room]
        with suppress(IndexError):
            while True:
                freed = free.pop()
                if freed.era is _era[0] is not None:  # otherwise a child may read it
                    return freed.start
        with self._lock:
            start, self._end = self._end, self._end + room
        return start


class _Freed(weakref.ref["RecordPlace"]):
    """A place that nobody refers to any more."""

    __slots__ = ("era", "start")

    era: object | None
    start: int


class RecordPlace:
    """Where a record is. Its bytes stay as they are while this object exists.

    Its end is noted by a weak reference that calls ``append``, and not by ``__del__``: there, a
    KeyboardInterrupt would be lost.
    """

    __slots__ = ("__weakref__", "_file", "_freed", "_size", "start")

    def __init__(self, file: _File, start: int, size: int, free: list[_Freed]) -> None:
        self._file, self.start, self._size = file, start, size
        self._freed = freed = _Freed(self, free.append)
        freed.start, freed.era = start, _era[0]

    def read(self) -> bytes:
        """The record."""
        record = os.pread(self._file.number, self._size, self.start)
        if len(record) != self._size:
            raise OSError("the temporary file of keys was cut short; load the model again")
        return record
