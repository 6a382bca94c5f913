"""Records of which some are in a file, against records that are all in memory."""

import errno
import gc
import os
import pickle
import random
import signal
import sys
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalstream.core import spilled
from kalstream.core.records import Records
from kalstream.core.spilled import Spilled

KEYS = ["a", "b", 1, (2, 3), 1.5, b"x"]
changes = st.dictionaries(st.sampled_from(KEYS), st.binary(min_size=1, max_size=700))


def record(number: int, size: int = 600) -> bytes:
    return number.to_bytes(4, "little") * (size // 4)


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 30), changes), max_size=20))
def test_any_version_reads_as_if_all_were_in_memory(most: int, steps: Any) -> None:
    """Versions are kept, dropped and branched from in any order."""
    mine: list[Any] = [Spilled(most=most)]
    plain: list[Any] = [{}]
    for number, change in steps:
        at = number % len(mine)
        mine.append(mine[at].updated(change))
        plain.append({**plain[at], **change})
        assert sum(type(each) is bytes for each in mine[-1]._newest.values()) <= most
        if number % 3 == 0 and len(mine) > 2:
            del mine[at], plain[at]
        for one, expected in zip(mine, plain, strict=True):
            assert one.to_dict() == expected
            assert one.several(KEYS, b"?") == [expected.get(key, b"?") for key in KEYS]
            assert len(one) == len(expected)
    other = pickle.loads(pickle.dumps(mine[-1]))
    assert (other.to_dict(), other._most) == (plain[-1], most)


def test_the_buffer_of_all_is_that_of_records_in_memory() -> None:
    everything = {key: record(key, 4 + 4 * (key % 3)) for key in range(2500)}
    mine = Spilled(everything, most=5)
    assert mine.keys() == Records(everything).keys()
    assert bytes(mine.joined(16)) == Records(everything).joined(16)
    assert bytes(Spilled().joined(16)) == b""
    assert mine.nbytes == sum(map(len, list(everything.values())[-5:]))


def test_the_least_recently_updated_keys_are_in_the_file() -> None:
    records = Spilled(most=2).updated({"a": b"1", "b": b"2"}).updated({"a": b"3"})
    records = records.updated({"c": b"4"})
    assert {key for key, each in records._newest.items() if type(each) is bytes} == {"a", "c"}


def test_places_are_used_again() -> None:
    records = Spilled(most=10)
    for i in range(200):
        records = records.updated({key: record(i) for key in range(i % 7, 60, 7)})
    gc.collect()
    assert os.fstat(records._disk._file.number).st_size <= 1024 * 70


def test_a_file_goes_with_its_last_record() -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    records: Any = Spilled({1: b"1", 2: b"2"})
    assert opened() == before + 1
    branch = Spilled.updated(records, {3: b"3"})
    records = records.updated({4: b"4"})
    assert opened() == before + 1
    assert branch.to_dict() == {1: b"1", 2: b"2", 3: b"3"}
    del records, branch
    gc.collect()
    assert opened() == before


def test_an_update_that_fails_changes_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full after some records, or the process is interrupted."""
    first = Spilled({key: record(key) for key in range(6)}, most=3)
    second = first.updated({7: record(7)})
    expected = first.to_dict(), second.to_dict()
    write, calls = os.pwrite, iter(range(100))
    for error in (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()):

        def pwrite(*args: Any, error: Any = error) -> int:
            if next(calls) % 3 == 2:
                raise error
            return write(*args)

        monkeypatch.setattr(spilled.os, "pwrite", pwrite)
        with pytest.raises(type(error), match="max_keys" if type(error) is OSError else None):
            second.updated({key: record(100 + key) for key in range(4)})
        monkeypatch.undo()
        assert (first.to_dict(), second.to_dict()) == expected
    third = second.updated({8: record(8)})
    assert third.to_dict() == {**expected[1], 8: record(8)}


def test_interrupts_at_any_time_are_raised_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    before = signal.signal(signal.SIGALRM, interrupt)
    rng, records, expected, raised = random.Random(0), Spilled(most=5), dict[int, bytes](), 0
    gc.disable()  # hypothesis has a callback of its own in it
    try:
        for i in range(600):
            changes = {key: record(i) for key in rng.sample(range(300), 60)}
            after: Any = None
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 4e-4))
                after = records.updated(changes)
                signal.setitimer(signal.ITIMER_REAL, 0)
                records = after
            except KeyboardInterrupt:
                raised += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if records is after:
                expected |= changes
            assert records.to_dict() == expected
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert records.to_dict() == expected
    assert raised > 100
    assert not lost


def test_what_a_full_disk_took_in_part_is_written_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = os.pwrite
    monkeypatch.setattr(spilled.os, "pwrite", lambda f, part, at: write(f, part[:100], at))
    everything = {key: record(key) for key in range(6)}
    assert Spilled(everything).to_dict() == everything


def test_a_file_that_is_cut_short_is_noticed() -> None:
    records = Spilled({key: record(key) for key in range(6)})
    os.ftruncate(records._disk._file.number, 700)
    with pytest.raises(OSError, match="cut short"):
        records.to_dict()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_parent_and_child_go_on_apart() -> None:
    """Neither writes where the other reads, however often keys come and go."""
    start = {key: record(key) for key in range(40)}
    expected = [churned([Records(start)], first).to_dict() for first in (500, 1000)]
    held = [Spilled(start, most=5)]
    ask, tell = os.pipe()
    answered, answer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(ask, 1)
            good = held[0].to_dict() == start and churned(held, 500).to_dict() == expected[0]
            os.write(answer, b"y" if good else b"n")
        finally:
            os._exit(0)
    mine = churned(held, 1000)
    os.write(tell, b"!")
    good = os.read(answered, 1)
    os.waitpid(child, 0)
    for each in (ask, tell, answered, answer):
        os.close(each)
    assert good == b"y"
    assert mine.to_dict() == expected[1]


def churned(held: list[Any], first: int) -> Any:
    """Records after many updates; nobody holds those before."""
    records = held.pop()
    for i in range(100):
        records = records.updated({(3 * i) % 40: record(first + i), i % 40: record(first - i)})
    return records


def test_readers_see_their_version_while_one_writes() -> None:
    records, bad = [Spilled({key: record(0) for key in range(50)}, most=5)], []

    def read() -> None:
        while len(records) and not bad:
            version = next(iter(records), None)
            if version is None:
                return
            got = version.several(list(range(50)), b"")
            if len(set(got)) != 1:
                bad.append(got)

    readers = [Thread(target=read) for _ in range(2)]
    for each in readers:
        each.start()
    for i in range(1, 200):
        records[0] = records[0].updated({key: record(i) for key in range(50)})
    records.clear()
    for each in readers:
        each.join()
    assert not bad
