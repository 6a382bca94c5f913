"""What one worker holds: a part of the keys, in the versions that somebody may still ask for."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from kalstream._arrays import Array
from kalstream.core.keyed import Keyed, Pool
from kalstream.core.records import Records
from kalstream.core.spilled import Spilled
from kalstream.estimators import checkpoint

START: Final = 0  # the version without keys
_KIND: Final = "KeysOfShard"


class UnknownVersion(Exception):
    """The worker has taken the place of another, and does not have the version."""


class Shard:
    """Keys of one worker. A call with a number makes the version of this number from another one.

    Versions never change. So a call that is repeated gives the same answer, and one that failed
    has done no harm.

    Parameters
    ----------
    keyed : Keyed
    max_keys : int, optional
        How many keys may be in memory.
    """

    def __init__(self, keyed: Keyed, max_keys: int | None = None):
        self._keyed = keyed
        self._first = Records() if max_keys is None else Spilled(most=max_keys)
        self._versions: dict[int, Any] = {START: self._first}

    def process(self) -> int:
        """The number of the worker's process."""
        return os.getpid()

    def passing(
        self,
        number: int,
        made: int | None,
        used: Pool,
        rows: Sequence[Any],
        gone: Sequence[int] = (),
    ) -> tuple[Array, Array]:
        """Predictions and votes of rows; with ``made``, also learn them.

        See `kalstream.core.keyed.Keyed.pass_rows`. Versions ``gone`` are dropped.
        """
        self.drop(gone)
        records = self._known(number)
        changes, out, votes = self._keyed.pass_rows(records, used, *rows)
        if made is not None:
            self._versions[made] = records.updated(changes)
        return out, votes

    def update(self, number: int, made: int, changes: Mapping[Hashable, bytes]) -> None:
        """Add records, or replace them."""
        self._versions[made] = self._known(number).updated(changes)

    def write(self, number: int, path: str) -> None:
        """Write a version to a file."""
        records = self._known(number)
        keys = np.empty(len(records), object)
        keys[:] = records.keys()
        size = max(map(len, records.several(keys.tolist(), b"")), default=0)
        joined = np.frombuffer(records.joined(size), np.uint8)
        checkpoint.write(path, _KIND, {"keys": keys, "records": joined, "size": size})

    def read(self, made: int, path: str) -> None:
        """Read the version of this number from a file that `write` wrote."""
        tree = checkpoint.read(path, _KIND)
        size, block = tree["size"], tree["records"].data
        parts = (bytes(block[i : i + size]) for i in range(0, len(block), max(size, 1)))
        changes = dict(zip(tree["keys"].tolist(), parts, strict=True))
        self._versions[made] = self._first.updated(changes) if changes else self._first

    def drop(self, gone: Sequence[int]) -> None:
        """Forget versions."""
        for number in gone:
            self._versions.pop(number, None)

    def keys(self, number: int) -> list[Hashable]:
        """All keys of a version, in the order of `joined`."""
        return self._known(number).keys()

    def joined(self, number: int, size: int) -> Array:
        """The bytes of all records of a version, each padded with zeros to this size."""
        return np.frombuffer(self._known(number).joined(size), np.uint8)

    def about(self, number: int) -> tuple[int, int]:
        """Number of keys, and bytes of their numbers in memory."""
        records = self._known(number)
        return len(records), records.nbytes

    def _known(self, number: int) -> Any:
        try:
            return self._versions[number]
        except KeyError:
            raise UnknownVersion from None
