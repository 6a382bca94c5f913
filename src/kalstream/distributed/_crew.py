"""Keys in several workers: routing, versions, and recovery of a worker that is lost.

`SpreadRecords` stands where an estimator in one process has `kalstream.core.records.Records`, and
like these it never changes: it names one version of each worker's keys. Workers keep the versions
that somebody still holds, so a call that fails or is interrupted has changed nothing.

What a worker learned since its last file is logged here. If it is lost, another one reads the file
and learns the rows of the log again. Each call says which version it begins with and which one it
makes, so it does not matter whether a call whose answer was lost had run.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import Any, Final, Protocol

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.keyed import Keyed, Pool
from kalstream.distributed._shard import START, UnknownVersion
from kalstream.errors import InvalidInput, KalstreamError

_PLAIN: Final = {str, int, float, bool, bytes}
# A worker that is lost so often before it answers will not do better.
_MOST_LOSSES: Final = 10


class Lost(Exception):
    """A worker is gone, or its answer is."""


class Workers(Protocol):
    """Starts workers, each with a `kalstream.distributed._shard.Shard`, and calls them."""

    def start(self) -> Any:
        """Start a worker."""

    def call(self, worker: Any, method: str, *arguments: Any) -> Any:
        """Begin a call; calls of one worker are executed in their order."""

    def answer(self, call: Any) -> Any:
        """Wait for the answer of a call. Raises `Lost`, or what the worker raised."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Log:
    """What a worker did to make a version: a call to a version before, or a file."""

    before: _Log | None = None
    method: str = ""
    arguments: tuple[Any, ...] = ()
    n_rows: int = 0  # since the file
    path: str | None = None


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Version:
    """A version of one worker's keys. The worker drops it when nobody holds this object."""

    number: int
    log: _Log


class _Shard:
    """A worker as this process sees it. It is replaced when it is lost."""

    def __init__(self, workers: Workers, every: int, folder: str) -> None:
        self._workers, self._every, self._folder = workers, every, folder
        self._worker = workers.start()
        self._gone: list[int] = []
        self._lock = RLock()
        self.empty = _Version(START, _Log())

    def begin(self, version: _Version, method: str, *arguments: Any) -> tuple[Any, Any]:
        """Begin a call on a version; returns the worker and the call, None if it is lost."""
        worker = self._worker
        with suppress(Lost):
            return worker, self._workers.call(worker, method, version.number, *arguments)
        return worker, None

    def end(self, begun: tuple[Any, Any], version: _Version, method: str, *arguments: Any) -> Any:
        """The answer of a call; it is made again if the worker is lost."""
        for _ in range(_MOST_LOSSES):
            worker, call = begun
            try:
                if call is None:
                    raise Lost
                return self._workers.answer(call)
            except UnknownVersion:
                self._rebuild(version)
            except Lost:
                with self._lock:
                    if self._worker is worker:  # otherwise another thread has replaced it
                        self._worker = self._workers.start()
            begun = self.begin(version, method, *arguments)
        raise KalstreamError(
            f"a worker gave no answer {_MOST_LOSSES} times; look at the logs of the cluster, give "
            "it more memory, and continue with the model that was saved last"
        )

    def ask(self, version: _Version, method: str, *arguments: Any) -> Any:
        """Call, and wait for the answer."""
        return self.end(self.begin(version, method, *arguments), version, method, *arguments)

    def next(self, number: int, before: _Version, n: int, method: str, *arguments: Any) -> _Version:
        """The version that a call with n rows makes."""
        log = _Log(before.log, method, arguments, before.log.n_rows + n)
        version = _Version(number, log)
        weakref.finalize(version, self._gone.append, number).atexit = False
        return version

    def gone(self) -> list[int]:
        """Numbers of versions that nobody holds any more, each given once."""
        n = len(self._gone)
        gone, self._gone[:n] = self._gone[:n], []
        return gone

    def write(self, version: _Version) -> None:
        """Let the worker write a file, if it has learned many rows since the last one."""
        log, path = version.log, os.path.join(self._folder, f"{id(self):x}-{version.number}")
        if log.n_rows < self._every:
            return
        self.ask(version, "write", path)
        weakref.finalize(log, _remove, path)
        log.path, log.before, log.arguments, log.n_rows = path, None, (), 0

    def _rebuild(self, version: _Version) -> None:
        """Let a new worker read the last file, and learn again what came after it."""
        steps, log = [], version.log
        while log.path is None and log.before is not None:
            steps.append(log)
            log = log.before
        numbers = itertools.count(START - 1, -1)  # of versions that nobody will ask for
        with self._lock:
            number = version.number if not steps else next(numbers)
            if log.path is not None:
                self._workers.call(self._worker, "read", number, log.path)
            else:
                number = START
            for step in reversed(steps):
                made = version.number if step is version.log else next(numbers)
                self._workers.call(self._worker, step.method, number, made, *step.arguments)
                if number < START:
                    self._workers.call(self._worker, "drop", [number])
                number = made


def _remove(path: str) -> None:
    with suppress(OSError):
        os.remove(path)


class Crew:
    """Workers that hold the keys of one estimator."""

    def __init__(self, workers: Workers, n: int, every: int, folder: str | None) -> None:
        made = tempfile.mkdtemp(dir=folder)
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        self._shards = [_Shard(workers, every, made) for _ in range(n)]
        self._numbers = itertools.count(START + 1)

    def __len__(self) -> int:
        return len(self._shards)

    def start(self) -> SpreadRecords:
        """No keys yet."""
        return SpreadRecords(self, [shard.empty for shard in self._shards])

    def passing(
        self, versions: Sequence[_Version], used: Pool, rows: Sequence[Any], learns: bool
    ) -> Callable[[], tuple[list[_Version], Array, Array]]:
        """Send rows to the workers of their keys; the function returned waits for the answers."""
        keys, *others = rows
        _check_keys(keys)
        sent = []
        for i, at in self._parts(keys):
            shard, before = self._shards[i], versions[i]
            part = [keys[j] for j in at.tolist()], *(each[at] for each in others)
            number = next(self._numbers) if learns else None
            call = "passing", number, used, part
            begun, after = shard.begin(before, *call, shard.gone()), before
            if number is not None:
                after = shard.next(number, before, len(at), "passing", used, part)
            sent.append((i, at, call, begun, after))

        def wait() -> tuple[list[_Version], Array, Array]:
            made, out = list(versions), np.empty(others[1].shape)
            votes: Any = None
            for i, at, call, begun, after in sent:
                out[at], some = self._shards[i].end(begun, versions[i], *call)
                votes = np.empty((len(out), some.shape[1])) if votes is None else votes
                votes[at], made[i] = some, after
                self._shards[i].write(after)
            return made, out, votes

        return wait

    def update(
        self, versions: Sequence[_Version], changes: Mapping[Hashable, bytes]
    ) -> list[_Version]:
        """Versions with these records added or replaced."""
        keys, made = list(changes), list(versions)
        for i, at in self._parts(keys):
            part = {keys[j]: changes[keys[j]] for j in at.tolist()}
            shard, number = self._shards[i], next(self._numbers)
            shard.ask(versions[i], "update", number, part)
            made[i] = shard.next(number, versions[i], len(at), "update", part)
            shard.write(made[i])
        return made

    def each(self, versions: Sequence[_Version], method: str, *arguments: Any) -> list[Any]:
        """Answers of all workers."""
        pairs = list(zip(self._shards, versions, strict=True))
        calls = [shard.begin(version, method, *arguments) for shard, version in pairs]
        return [
            shard.end(call, version, method, *arguments)
            for call, (shard, version) in zip(calls, pairs, strict=True)
        ]

    def _parts(self, keys: Sequence[Hashable]) -> list[tuple[int, Array]]:
        """Which rows go to which worker. Equal keys, such as 1 and 1.0, have one hash."""
        if len(self) == 1 or not len(keys):
            return [(0, np.arange(len(keys)))]
        where = np.array([hash((key,)) for key in keys]) % len(self)
        return [(int(i), np.flatnonzero(where == i)) for i in np.unique(where)]


def _check_keys(keys: Sequence[Hashable]) -> None:
    """Refuse keys that no file can hold, before a worker has them."""
    kinds = {type(key) for key in keys} - _PLAIN
    for key in keys if kinds else ():
        parts = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(part, (*_PLAIN, np.generic, tuple)) for part in parts):
            raise InvalidInput(
                f"key holds {check.shown(key)}, which no file of a worker can hold; use numbers, "
                "strings, bytes or tuples of these"
            )


class SpreadRecords:
    """Records of keys in several workers. Never changed; see `kalstream.core.records.Records`."""

    def __init__(self, crew: Crew, versions: Sequence[_Version]) -> None:
        self._crew, self._versions = crew, tuple(versions)

    def passing(
        self, keyed: Keyed, used: Pool, rows: Sequence[Any], learns: bool
    ) -> Callable[[], Any]:
        """Pass rows at the workers of their keys; see `kalstream.core.records.Records`."""
        wait = self._crew.passing(self._versions, used, rows, learns)

        def passed() -> Any:
            versions, out, votes = wait()
            return (SpreadRecords(self._crew, versions) if learns else self), out, votes

        return passed

    def updated(self, changes: Mapping[Hashable, bytes]) -> SpreadRecords:
        """The version after this one, with these records added or replaced."""
        return SpreadRecords(self._crew, self._crew.update(self._versions, changes))

    def keys(self) -> list[Hashable]:
        """All keys, in the order of `joined`."""
        return [*itertools.chain(*self._crew.each(self._versions, "keys"))]

    def joined(self, size: int) -> Any:
        """The bytes of all records, each padded with zeros to this size, as one buffer."""
        return np.concatenate(self._crew.each(self._versions, "joined", size)).data

    def __len__(self) -> int:
        return sum(n for n, _ in self._crew.each(self._versions, "about"))

    @property
    def nbytes(self) -> int:
        """Bytes of the records in the memory of all workers."""
        return sum(n for _, n in self._crew.each(self._versions, "about"))

    def __deepcopy__(self, memo: Any) -> SpreadRecords:
        return self

    def __reduce__(self) -> Any:
        raise KalstreamError(
            "keys that are in other processes cannot be pickled; call save(path), or spread(None) "
            "to bring them into this process"
        )
