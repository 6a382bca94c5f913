"""Records of JSON lines: one object per line, its values as typed columns."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from functools import partial
from typing import Any

import pyarrow as pa

from kalstream.features.frames import batch_of
from kalstream.streams._rows import Problem

# Numbers that may be too large for float64: large exponents, and many digits.
_LARGE = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{100}")

_MOST_NEW = 100  # keys that are kept for a message


class JsonLines:
    """Objects of plain values, one per line; the columns are the keys of the first objects.

    A key that a later object lacks is a missing value. New keys are ignored,
    and `new_names` has them.
    """

    as_written = False
    header = b""

    def __init__(self, start: bytes) -> None:
        rows, _ = _objects(start)
        self.names = list(dict.fromkeys(name for row in rows for name in row))
        self.new_names: dict[str, None] = {}

    def end(self, data: bytes) -> int:
        """Number of bytes up to the end of the last complete line."""
        return data.rfind(b"\n") + 1

    def lines(self, data: bytes) -> list[int]:
        """The line in ``data``, counted from 0, of each record."""
        return [k for k, line in enumerate(data.split(b"\n")) if line.strip()]

    def parse(self, data: bytes, wanted: list[str]) -> tuple[pa.RecordBatch, list[Problem]]:
        """The wanted columns of whole lines, each of the type that its values have."""
        rows, problems = _objects(data)
        if len(self.new_names) < _MOST_NEW:
            known = set(self.names)
            new = (name for row in rows if not known.issuperset(row) for name in row)
            self.new_names.update((name, None) for name in new if name not in known)
        return batch_of({name: [row.get(name) for row in rows] for name in wanted}), problems


def _objects(data: bytes) -> tuple[list[dict[str, Any]], list[Problem]]:
    lines = [line for line in data.split(b"\n") if line.strip()]
    read = json.loads
    if _LARGE.search(data):
        read = partial(json.loads, parse_float=_float)
    # No line can hold this by chance, so what stands between two of them is from one line.
    mark = os.urandom(8).hex()
    try:  # all at once, which is faster
        read_all = read(b"[" + f',"{mark}",'.encode().join(lines) + b"]")
        rows, marks = read_all[::2], read_all[1::2]
        one_each = len(rows) == len(lines) and marks == [mark] * (len(lines) - 1)
        if one_each and all(type(row) is dict for row in rows):
            return rows, []
    except (ValueError, RecursionError):
        pass
    rows, problems = [], []
    for number, line in enumerate(lines):
        try:
            row = read(line)
            why = "" if isinstance(row, dict) else "is not a JSON object"
        except (ValueError, RecursionError) as error:
            why = f"is not a JSON object in UTF-8, whole and alone on its line ({error})"
        if why:
            problems.append(Problem(number, why))
        else:
            rows.append(row)
    return rows, problems


def _float(text: str) -> float:
    """A number; one that is too large for float64 becomes the largest, not infinity."""
    number = float(text)
    return math.copysign(sys.float_info.max, number) if math.isinf(number) else number
