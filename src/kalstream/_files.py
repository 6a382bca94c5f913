"""Atomic writes of files, and locks of folders. All files of kalstream are written here.

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
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from kalstream.errors import InUse

if sys.platform != "win32":
    import fcntl

FilePath = str | os.PathLike[str]

_TEMPORARY: Final = re.compile(r"\.kalstream-(\d+)-[0-9a-f]+\.tmp")
_DESCRIPTOR: Final = re.compile(r"(?:/dev|/proc/self)/fd/(\d+)")
_LONGEST_COMMAND: Final = 200
_PIECE: Final = 1 << 20  # bytes
_SECONDS_TO_WRITE: Final = 0.2
_STANDARD: Final = {"/dev/stdout": 1, "/dev/stderr": 2}
_ours: set[str] = set()  # names of the temporary files of this process


def write_whole(path: FilePath, content: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Replace a file by this content; text is written as UTF-8. See `replacing`.

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

    After an error the old file is unchanged. A symbolic link is kept: the file that it points to is
    replaced. A device or a pipe, such as /dev/stdout, is written to and not replaced.

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
        with open(temporary, "xb") as file:  # tempfile would let only this user read it
            _lock(file.fileno())
            with suppress(OSError):  # there is no old file, or its mode cannot be set
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
    _sync_folder(folder)


def sha256_of(path: FilePath) -> str:
    """SHA-256 of the bytes of a file, in hexadecimal digits."""
    digest = sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _sync_folder(folder: FilePath) -> None:
    """Flush the entries of a folder to the disk, on platforms that can."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def is_alive(pid: int) -> bool:
    """Whether a process with this number runs; True where that cannot be determined."""
    if os.name != "posix":  # os.kill would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # of another user, or not the number of a process
        return True
    return True


def is_replaced(path: FilePath) -> bool:
    """Whether `replacing` replaces this path. False for devices and pipes: it writes into them."""
    if _descriptor_of(path) is not None:
        return False
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return True
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def is_temporary(path: FilePath) -> bool:
    """Whether a path is a temporary file of `replacing`, by its name."""
    return _TEMPORARY.fullmatch(os.path.basename(path)) is not None


def _descriptor_of(path: FilePath) -> int | None:
    """The open file that a name such as /dev/stdout stands for."""
    absolute = os.path.abspath(path)
    match = _DESCRIPTOR.fullmatch(absolute)
    return int(match[1]) if match else _STANDARD.get(absolute)


def _opened_directly(path: FilePath) -> BinaryIO | None:
    """A device or pipe, opened for writing; None for a regular file or a new one."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "this is a folder, give the path of a file", path)
    if is_replaced(path):
        return None
    descriptor = _descriptor_of(path)
    if descriptor is None:
        return open(path, "wb")
    # Opening a file behind standard output by its name would overwrite its start.
    sys.stdout.flush()
    return os.fdopen(os.dup(descriptor), "wb")


def _lock(descriptor: int) -> bool | None:
    """Lock an open file: False if it is locked already, None where there are no locks."""
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
    """A lock file: one process holds it until it releases it, ends or is killed.

    Parameters
    ----------
    path : Path
        The file. Its folder must exist. The file of a killed process does no harm.
    what : str
        Name of what is held, for the error.
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
            except FileNotFoundError:  # its holder released it in the meantime
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
        """Release the lock, if it is held."""
        if self.file is not None:
            with suppress(OSError):
                os.unlink(self.path)
            self.file.close()
            self.file = None


def _holder(file: BinaryIO) -> dict[str, Any]:
    """Number, machine and command of the process that holds a lock, as written in it."""
    try:
        holder = json.loads(os.pread(file.fileno(), 10_000, 0))
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _awaited_holder(file: BinaryIO) -> dict[str, Any]:
    """The same, but wait if the process has just taken the lock and not yet written."""
    until = time.monotonic() + _SECONDS_TO_WRITE
    while not (holder := _holder(file)) and time.monotonic() < until:
        time.sleep(0.005)
    return holder


def _is_other(holder: dict[str, Any]) -> bool:
    """Whether another live process holds a lock, on a file system without locks."""
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
    """Remove temporary files of processes that have ended; a lock shows those of other machines."""
    try:
        names = os.listdir(folder)
    except OSError:  # a folder that may be written to but not listed
        return
    for name in names:
        match = _TEMPORARY.fullmatch(name)
        if match is None or name in _ours:
            continue
        pid = int(match[1])
        if pid != os.getpid() and is_alive(pid):  # equal in containers: each starts at 1
            continue
        with suppress(OSError), open(os.path.join(folder, name), "rb") as file:
            if _lock(file.fileno()):
                os.unlink(file.name)
