"""What must become of rows that wait, as the documentation says it: a list and a dict."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Hashable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from fuzz.cases import Case, expect, shown

EAST = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
START = datetime.datetime(2020, 2, 28, 23, 59, 58, 500)
# Makes an id of a number; two numbers give two ids, also of two kinds.
IDS: dict[str, Any] = {
    "int": lambda i: i,
    "numpy": lambda i: np.int64(i),
    "str": lambda i: f"row {i}\ud800\0",
    "bytes": lambda i: b"\xff:%d" % i,
    "float": lambda i: -i - 0.3,
    "tuple": lambda i: (i, ("x", b"1:", i / 7, START.date()), True),
    "UUID": lambda i: uuid.UUID(int=i),
    "datetime": lambda i: START + datetime.timedelta(seconds=i),
    "zoned": lambda i: (START + datetime.timedelta(microseconds=i)).replace(tzinfo=EAST),
    "pandas": lambda i: pd.Timestamp(START) + pd.Timedelta(days=i + 1),
    "date": lambda i: START.date() + datetime.timedelta(days=i),
    "Decimal": lambda i: Decimal(f"{i}.250"),
    "huge": lambda i: -(10**5000) - i,
}


class Rows:
    """The rows of a model that were asked for.

    Attributes
    ----------
    status : dict of id to "waits", "told" or "expired"
    n_asked : int
    """

    def __init__(self, most: int, age: float | None, unit: float) -> None:
        self.most, self.age, self.unit = most, age, unit
        self.clear()

    def clear(self) -> None:
        self.status: dict[Hashable, str] = {}
        self.moments: dict[Hashable, float] = {}  # of rows that wait, oldest first
        self.n_asked = 0

    def ask(self, key: Hashable, time: float | None) -> None:
        """A row is asked for; then the rows that wait too long expire."""
        place, self.n_asked = self.n_asked, self.n_asked + 1
        self.status[key], self.moments[key] = "waits", place if time is None else time
        first = -np.inf  # rows before this place or time are too old
        if self.age is not None:
            of_rows = time is None
            first = self.n_asked - 1 - int(self.age) if of_rows else time - self.age * self.unit
        for old, moment in list(self.moments.items()):
            if len(self.moments) <= self.most and moment >= first:
                break
            del self.moments[old]
            self.status[old] = "expired"

    def learn(self, key: Hashable) -> None:
        """A target has come."""
        if self.moments.pop(key, None) is not None:
            self.status[key] = "told"

    def drop(self, keys: list[Hashable]) -> None:
        """Rows that wait are given up."""
        for key in keys:
            del self.moments[key]
            self.status[key] = "expired"

    def new_ids(self, case: Case, n: int) -> Any:
        """Ids of n rows, or None; sometimes a row that has ended gives its id to another."""
        if case.chance(0.3):
            return None
        kinds = case.pick([list(IDS), [case.pick(IDS)]])
        ids = [IDS[case.pick(kinds)](self.n_asked + i) for i in range(n)]
        ended = [key for key, status in self.status.items() if status != "waits"]
        if ended and case.chance(0.2):
            ids[0] = case.pick(ended)
        return case.pick([list, list, tuple, dict.fromkeys, as_series])(ids)

    def some(self, case: Case) -> list[Any]:
        """Ids of rows whose targets come: of many that wait, and of some that have ended."""
        share = case.pick([0.2, 0.6, 1.0])
        ids = [k for k, v in self.status.items() if case.chance(share if v == "waits" else 0.05)]
        return [ids[i] for i in case.rng.permutation(len(ids))]

    def check(self, model: Any) -> None:
        """Check that the model says the same of each row."""
        keys, counts = list(self.status), model.waiting_
        for key, status in zip(keys, model.status_of(keys), strict=True):
            expect(status == self.status[key], f"{shown(key)} {self.status[key]}, not {status}")
        expect(model.waiting_ids_ == list(self.moments), f"these wait: {shown(list(self.moments))}")
        expect(model.status_of(["nobody"]) == [None], "an id that nobody gave is known")
        found = counts.waiting, counts.asked, counts.asked - counts.told - counts.expired
        waiting = len(self.moments)
        expect(found == (waiting, self.n_asked, waiting), f"{waiting} rows wait, not {counts}")


def as_series(ids: list[Any]) -> pd.Series:
    """A series of objects, because pandas would convert them."""
    return pd.Series(ids, dtype=object)
