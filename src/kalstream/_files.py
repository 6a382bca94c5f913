"""The one place that writes a file whole, and the lock of whoever writes into a folder.

A crash leaves the old file or the new one.

The new content goes to a temporary file beside the target, ``.kalstream-PID-RANDOM.tmp``. When it
is complete it replaces the target. A writer holds a lock on its temporary file. A temporary file
whose process was killed is removed by the next writer in that folder.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from kalstream.errors import InUse

if sys.platform != "win32":
    import fcntl

FilePath = str | os.PathLike[str]

_TEMPORARY: Final = re.compile(r"\.kalstream-(\d+)-[0-9a-f]+\.tmp")
_DESCRIPTOR: Final = re.compile(r"(?:/dev|/proc/self)/fd/(\d+)")
_LONGEST_COMMAND: Final = 200
_SECONDS_TO_WRITE: Final = 0.2
_STANDARD: Final = {"/dev/stdout": 1, "/dev/stderr": 2}
_ours: set[str] = set()  # names of the temporary files that this process is writing


def write_whole(path: FilePath, content: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Replace a file by this content, text as UTF-8; see `replacing`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/a.txt", "some text")
    ...     os.listdir(folder)
    ['a.txt']
    """
    with replacing(path) as file:
        if isinstance(content, str):
            file.write(content.encode())
        elif isinstance(content, bytes):
            file.write(content)
        else:
            file.writelines(content)


@contextmanager
def replacing(path: FilePath) -> Iterator[BinaryIO]:
    """Open a file whose content replaces that of ``path`` when the block ends without an error.

    After an error the old file is as it was. A symbolic link stays, and the file that it points to
    is replaced. A device or a pipe, such as /dev/stdout, is not replaced but written to.

    Parameters
    ----------
    path : path
        Its folder must exist.

    Raises
    ------
    IsADirectoryError
        If the path is a folder.
    FileNotFoundError
        If there is no such folder.
    """
    direct = _opened_directly(path)
    if direct is not None:
        with direct:
            yield direct
        return
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder, create it first", folder)
    _remove_abandoned(folder)
    name = f".kalstream-{os.getpid()}-{os.urandom(8).hex()}.tmp"
    temporary = os.path.join(folder, name)
    _ours.add(name)
    try:
        with open(temporary, "xb") as file:  # tempfile would deny it to everybody else
            _lock(file.fileno())
            with suppress(OSError):  # there is no old file, or nobody can set its mode
                shutil.copymode(target, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        _ours.discard(name)
    sync_folder(folder)


def sync_folder(folder: FilePath) -> None:
    """Flush a folder's entries to the disk, on platforms that can."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def is_alive(pid: int) -> bool:
    """Whether a process of this number runs; True where that cannot be told."""
    if os.name != "posix":  # there os.kill would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's, or no number of a process
        return True
    return True


def is_replaced(path: FilePath) -> bool:
    """Whether `replacing` replaces what is at a path, rather than writes to it."""
    if _descriptor_of(path) is not None:
        return False
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return True
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _descriptor_of(path: FilePath) -> int | None:
    """The open file that a name such as /dev/stdout stands for."""
    absolute = os.path.abspath(path)
    found = _DESCRIPTOR.fullmatch(absolute)
    return int(found[1]) if found else _STANDARD.get(absolute)


def _opened_directly(path: FilePath) -> BinaryIO | None:
    """What is there, opened for writing, if it is neither a regular file nor missing."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "this is a folder, give the path of a file", path)
    if is_replaced(path):
        return None
    descriptor = _descriptor_of(path)
    if descriptor is None:
        return open(path, "wb")
    # Opened by its name, a file behind standard output would be written from its start.
    sys.stdout.flush()
    return os.fdopen(os.dup(descriptor), "wb")


def _lock(descriptor: int) -> bool | None:
    """Lock an open file: False if somebody else holds it, None where there are no locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


class Lock:
    """A file that one process holds, until it releases it or ends, however it ends.

    Parameters
    ----------
    path : Path
        The file. Its folder must exist. A file that a killed process left does no harm.
    what : str
        What is held, for the error.
    remedy : str
        What to do instead, for the error.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     lock = Lock(Path(folder) / "lock", "the folder", "wait for it")
    ...     lock.acquire()
    ...     os.listdir(folder), lock.release(), os.listdir(folder)
    (['lock'], None, [])
    """

    def __init__(self, path: Path, what: str, remedy: str) -> None:
        self.path, self.what, self.remedy = path, what, remedy
        self.file: BinaryIO | None = None

    def acquire(self) -> None:
        """Take the lock, or raise `InUse` with the process that holds it."""
        if self.file is not None:
            return
        while self.file is None:
            file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            locked = _lock(file.fileno())
            if locked is False or (locked is None and _is_other(_holder(file))):
                with file:
                    name = _named(_awaited_holder(file))
                raise InUse(f"{self.what} is in use by {name}; {self.remedy}")
            try:
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                    self.file = file
            except FileNotFoundError:  # its holder released it in between
                pass
            if self.file is None:
                file.close()
        command = shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])[:_LONGEST_COMMAND]
        about = {"pid": os.getpid(), "host": socket.gethostname(), "command": command}
        self.file.truncate(0)
        self.file.write(json.dumps(about).encode() + b"\n")
        self.file.flush()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the lock back; nothing happens if it is not held."""
        if self.file is not None:
            with suppress(OSError):
                os.unlink(self.path)
            self.file.close()
            self.file = None


def _holder(file: BinaryIO) -> dict[str, Any]:
    """What the process that holds a lock wrote into it."""
    try:
        found = json.loads(os.pread(file.fileno(), 10_000, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _awaited_holder(file: BinaryIO) -> dict[str, Any]:
    """The same, of a process that may have taken the lock just now and not yet written."""
    until = time.monotonic() + _SECONDS_TO_WRITE
    while not (holder := _holder(file)) and time.monotonic() < until:
        time.sleep(0.005)
    return holder


def _is_other(holder: dict[str, Any]) -> bool:
    """Whether a lock, where the file system has none of its own, is another live process's."""
    pid = holder.get("pid")
    here = holder.get("host") == socket.gethostname()
    return isinstance(pid, int) and here and pid != os.getpid() and is_alive(pid)


def _named(holder: dict[str, Any]) -> str:
    if not holder:
        return "another process"
    where = "" if holder.get("host") == socket.gethostname() else f" on {holder.get('host')}"
    name = f"process {holder.get('pid')}{where} ({holder.get('command')})"
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _remove_abandoned(folder: str) -> None:
    """Remove temporary files whose process has died: of those of another machine, by their lock."""
    try:
        names = os.listdir(folder)
    except OSError:  # may be written to and not be listed
        return
    for name in names:
        found = _TEMPORARY.fullmatch(name)
        if found is None or name in _ours:
            continue
        pid = int(found[1])
        if pid != os.getpid() and is_alive(pid):  # a container's first process is always 1
            continue
        with suppress(OSError), open(os.path.join(folder, name), "rb") as file:
            if _lock(file.fileno()):
                os.unlink(file.name)
