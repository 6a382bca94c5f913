"""Files are written whole, links are followed, devices and pipes stay what they are."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kalstream import _files
from kalstream._files import Lock, is_alive, replacing, write_whole
from kalstream.errors import InUse

posix = pytest.mark.skipif(os.name != "posix", reason="links, pipes and signals of POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.txt"


@pytest.mark.parametrize("content", ["naïve", "naïve".encode(), [b"na", memoryview(b"\xc3\xafve")]])
def test_content_of_every_type(path: Path, content: Any) -> None:
    write_whole(path, "old")
    write_whole(path, content)
    assert path.read_text("utf-8") == "naïve"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("moment", ["block", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()], ids=repr)
def test_an_error_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, error: BaseException
) -> None:
    def fail(*_: Any) -> None:
        raise error

    write_whole(path, "old")
    if moment != "block":
        monkeypatch.setattr(os, moment, fail)
    pieces = (b"new" if k == 0 or moment != "block" else fail() for k in range(2))
    with pytest.raises(type(error)):
        write_whole(path, pieces)
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == [path.name]


def test_file_and_folder_are_flushed_before_and_after_it_is_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, move = os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def replaced(*names: Any) -> None:
        calls.append("replace")
        move(*names)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", replaced)
    write_whole(path, "new")
    assert calls[:2] == ["file", "replace"]
    assert calls[2:] == (["folder"] if os.name == "posix" else [])


@posix
@pytest.mark.parametrize("there", [True, False], ids=["full", "dangling"])
def test_a_link_stays_a_link(tmp_path: Path, there: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "b.txt", tmp_path / "a.txt"
    if there:
        target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert os.listdir(target.parent) == [target.name]


def test_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="this is a folder, give the path of a file"):
        write_whole(tmp_path, "new")
    with pytest.raises(FileNotFoundError, match="no such folder, create it first"):
        write_whole(tmp_path / "none" / "a", "new")
    assert not os.listdir(tmp_path)


@posix
def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_whole(pipe, "new")
    reader.join(10.0)
    assert found == [b"new"]
    assert pipe.is_fifo()
    write_whole(os.devnull, "new")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@posix
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_that_is_a_file_is_added_to(path: Path, name: str) -> None:
    path.write_text("before\n")
    code = f"import kalstream._files as f; print(1); f.write_whole({name!r}, '2\\n'); print(3)"
    with path.open("ab") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert path.read_text() == "before\n1\n2\n3\n"


WRITER = """
import sys, time
from kalstream._files import replacing
with replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    time.sleep(60)
"""


@posix
def test_a_killed_writers_temporary_file_is_removed_by_the_next(path: Path) -> None:
    path.write_text("old")
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        (temporary,) = path.parent.glob(f".kalstream-{writer.pid}-*.tmp")
        write_whole(path.parent / "other.txt", "new")
        assert temporary.exists()  # its process is alive
        writer.send_signal(signal.SIGKILL)
    assert temporary.exists()
    assert path.read_text() == "old"
    (path.parent / ".kalstream-notes.tmp").write_text("of somebody else")
    write_whole(path.parent / "other.txt", "new")
    assert sorted(os.listdir(path.parent)) == [".kalstream-notes.tmp", path.name, "other.txt"]


@posix
def test_whose_temporary_files_are_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = path.with_name(f".kalstream-{os.getpid()}-00ff.tmp")  # a container's pid, used again
    name.write_text("")
    write_whole(path, "new")
    assert not name.exists()
    with replacing(path), replacing(path.with_name("other.txt")):  # two threads, one folder
        assert len(list(path.parent.glob(".kalstream-*.tmp"))) == 2
        monkeypatch.setattr(_files, "is_alive", lambda pid: False)  # as seen by another machine
        monkeypatch.setattr(_files, "_ours", set())
        write_whole(path.with_name("third.txt"), "new")
        assert len(list(path.parent.glob(".kalstream-*.tmp"))) == 2
    assert sorted(os.listdir(path.parent)) == [path.name, "other.txt", "third.txt"]


@posix
def test_which_processes_are_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        pass
    assert not is_alive(process.pid)
    assert is_alive(os.getpid())
    assert is_alive(1)
    assert is_alive(10**30)  # no process; nobody knows what it was


# ---- locks ----------------------------------------------------------------------------------


def lock_at(path: Path) -> Lock:
    return Lock(path, "the folder", "wait for it")


@posix
def test_a_lock_is_held_by_one(path: Path) -> None:
    one, two = lock_at(path), lock_at(path)
    for _ in range(2):
        with one:
            one.acquire()  # held already
            with pytest.raises(InUse, match=rf"the folder is in use by process {os.getpid()} \("):
                two.acquire()
            path.write_text("\x1b[2Jno JSON")
            with pytest.raises(InUse, match="in use by another process; wait for it"):
                two.acquire()
        assert not path.exists()
    with two:
        assert path.exists()


@posix
def test_a_lock_that_is_released_while_it_is_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = lock_at(path)
    held.acquire()
    lock, calls = _files._lock, []

    def late(descriptor: int) -> bool | None:
        calls.append(descriptor)
        if len(calls) == 1:  # the file was opened, and is removed before it is locked
            held.release()
        return lock(descriptor)

    monkeypatch.setattr(_files, "_lock", late)
    with lock_at(path):
        assert len(calls) == 2
        monkeypatch.undo()
        with pytest.raises(InUse):
            lock_at(path).acquire()


@posix
@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_where_the_file_system_has_no_locks(
    path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(_files, "_lock", lambda descriptor: None)
    host = socket.gethostname() if place == "here" else "elsewhere"
    path.write_text(json.dumps({"pid": 1, "host": host, "command": "x\x1b[2J\n"}))
    if place == "here":
        with pytest.raises(InUse, match=r"process 1 \(x\?\[2J\?\); wait"):
            lock_at(path).acquire()
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        pass
    path.write_text(json.dumps({"pid": process.pid, "host": host, "command": "x"}))
    with lock_at(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
