"""The log of a service: everything that changes a model, on disk before it is acknowledged.

One file of SQLite, which one connection reads and writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple
from zlib import crc32

from kalstream.errors import KalstreamError

_FORMAT: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS models (name TEXT PRIMARY KEY, options TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    model TEXT NOT NULL,
    first INTEGER NOT NULL,
    body BLOB NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_of_models ON entries (model, number);
CREATE TABLE IF NOT EXISTS windows (
    model TEXT NOT NULL, row INTEGER NOT NULL, line TEXT NOT NULL, PRIMARY KEY (model, row)
);
"""


class StoreError(KalstreamError, RuntimeError):
    """The log cannot be read or written; nothing was acknowledged."""


class Entry(NamedTuple):
    """Events that a model learned together.

    Attributes
    ----------
    model : str
    first : int
        Rows that the model had seen before.
    body : bytes
    """

    model: str
    first: int
    body: bytes

    @property
    def checksum(self) -> int:
        """Of all fields: SQLite does not see that a bit of a value has changed on the disk."""
        return crc32(self.body, crc32(f"{self.model} {self.first}".encode()))


class Store:
    """Names and options of models, their log, and the lines of their windows.

    Parameters
    ----------
    path : Path
        The file; it is created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._turn = path, Lock()
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            # Nothing is acknowledged before it is on disk, so FULL: NORMAL may lose the last
            # transactions when the power goes.
            self._db.execute("PRAGMA busy_timeout = 2000")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            (problem,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
            if problem != "ok":
                raise sqlite3.DatabaseError(problem)
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            self._db.executescript(_TABLES)
            self._db.execute(f"PRAGMA user_version = {_FORMAT}")
        except sqlite3.Error as error:
            raise self._error(error) from error
        if found > _FORMAT:
            raise StoreError(
                f"{path} has format {found}, this version reads up to {_FORMAT}; update kalstream"
            )

    def _error(self, error: object) -> StoreError:
        return StoreError(
            f"{self.path}: {error}; free space, end other programs that use the file, or restore "
            "the folder from a copy"
        )

    def close(self) -> None:
        """Close the file; the log is then in one file."""
        self._db.close()

    # ---- models ---------------------------------------------------------------------------

    def models(self) -> dict[str, str]:
        """Options of each model, as JSON."""
        return dict(self._read("SELECT name, options FROM models ORDER BY name"))

    def add_model(self, name: str, options: str) -> None:
        """Add a model that has learned nothing."""
        self._write([("INSERT INTO models VALUES (?, ?)", (name, options))])

    def remove_model(self, name: str) -> None:
        """Remove a model with its log and windows."""
        deletions = [
            f"DELETE FROM {table} WHERE {column} = ?"
            for table, column in (("models", "name"), ("entries", "model"), ("windows", "model"))
        ]
        self._write([(deletion, (name,)) for deletion in deletions])

    # ---- the log --------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries; they are on disk when this returns."""
        insert = "INSERT INTO entries (model, first, body, checksum) VALUES (?, ?, ?, ?)"
        self._write([(insert, (*entry, entry.checksum)) for entry in entries])

    def entries(self, model: str, first: int = 0) -> Iterator[Entry]:
        """The log of a model, from the entries on that were learned after ``first`` rows."""
        number, more = -1, True
        select = (
            "SELECT number, checksum, model, first, body FROM entries "
            "WHERE model = ? AND first >= ? AND number > ? ORDER BY number LIMIT 1000"
        )
        while more:
            found = self._read(select, (model, first, number))
            for number, checksum, *fields in found:
                entry = Entry(*fields)
                if entry.checksum != checksum:
                    raise self._error(f"entry {number} is damaged")
                yield entry
            more = bool(found)

    def forget(self, model: str, before: int) -> None:
        """Remove entries that were learned before a model had seen so many rows."""
        self._write([("DELETE FROM entries WHERE model = ? AND first < ?", (model, before))])

    # ---- windows --------------------------------------------------------------------------

    def add_windows(self, model: str, lines: Sequence[tuple[int, str]]) -> None:
        """Keep lines of windows (row, JSON); one that is there already is replaced."""
        insert = "INSERT OR REPLACE INTO windows VALUES (?, ?, ?)"
        self._write([(insert, (model, row, line)) for row, line in lines])

    def windows(self, model: str, most: int) -> list[str]:
        """The last lines of a model, oldest first."""
        select = "SELECT line FROM windows WHERE model = ? ORDER BY row DESC LIMIT ?"
        return [line for (line,) in self._read(select, (model, most))][::-1]

    # ---- one connection -------------------------------------------------------------------

    def _read(self, select: str, values: tuple[object, ...] = ()) -> list[Any]:
        with self._turn:
            try:
                return self._db.execute(select, values).fetchall()
            except sqlite3.Error as error:
                raise self._error(error) from error

    def _write(self, statements: Sequence[tuple[str, tuple[object, ...]]]) -> None:
        """Run statements in one transaction; if one fails, none has an effect."""
        with self._turn:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                for statement, values in statements:
                    self._db.execute(statement, values)
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise self._error(error) from error
