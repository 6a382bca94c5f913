"""Versions of records against dicts that are copied at each step."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalstream.core.records import Records

KEYS = ["a", "b", 1, (2, 3)]
changes = st.dictionaries(st.sampled_from(KEYS), st.binary(min_size=1, max_size=2))


@given(st.lists(st.tuples(st.integers(0, 20), changes), max_size=12))
def test_any_version_can_be_read_and_updated(steps: list[tuple[int, Any]]) -> None:
    versions, plain = [Records()], [{}]
    for number, change in steps:
        at = number % len(versions)
        versions.append(versions[at].updated(change))
        plain.append({**plain[at], **change})
    for mine, expected in zip(versions, plain, strict=True):
        assert mine.to_dict() == expected
        assert len(mine) == len(expected)
        assert mine.several(KEYS, b"?") == [expected.get(key, b"?") for key in KEYS]
        assert pickle.loads(pickle.dumps(mine)).to_dict() == expected


class Interrupting(dict[Any, Any]):
    """Changes that interrupt whoever reads their last value."""

    def __getitem__(self, key: Any) -> Any:
        if key == KEYS[-1]:
            raise KeyboardInterrupt
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        return iter(list(super().keys()))

    def keys(self) -> Any:
        return list(super().keys())


def test_an_interrupted_update_changes_no_version() -> None:
    first = Records({"a": b"1"})
    second = first.updated({"b": b"2"})
    expected = first.to_dict(), second.to_dict()
    with pytest.raises(KeyboardInterrupt):
        second.updated(Interrupting(dict.fromkeys(KEYS, b"x")))
    assert (first.to_dict(), second.to_dict()) == expected
    third = second.updated({"c": b"3"})
    assert third.to_dict() == {"a": b"1", "b": b"2", "c": b"3"}
    assert second.several(KEYS, b"") == [b"1", b"2", b"", b""]


def test_versions_share_one_dict() -> None:
    first = Records({key: b"0" for key in range(1000)})
    second = first.updated({1: b"1"})
    assert second._newest is first._newest
    branch = first.updated({1: b"2"})
    assert branch._newest is not first._newest
    assert [each.several([1], b"")[0] for each in (first, second, branch)] == [b"0", b"1", b"2"]


def test_versions_that_nobody_holds_keep_nothing() -> None:
    """Of a thousand updates of one key, a version that is held keeps one record."""
    held = newest = Records({"a": b"first"})
    for i in range(1000):
        newest = newest.updated({"a": b"%d" % i, i % 3: b"x"})
    assert len(held.__dict__["_replaced"]) == 4
    assert held.to_dict() == {"a": b"first"}
    assert len(newest._older) <= 2
