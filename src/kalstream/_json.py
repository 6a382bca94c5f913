"""JSON of kalstream's files: an infinite number is ``"inf"``, one that is not defined is null."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def from_number(value: float) -> float | str | None:
    """A number as JSON holds it.

    Examples
    --------
    >>> from_number(2.5), from_number(float("inf")), from_number(float("nan"))
    (2.5, 'inf', None)
    """
    if math.isfinite(value):
        return float(value)
    return "inf" if value > 0.0 else None


def to_number(value: float | str | None) -> float:
    """The number that `from_number` wrote; NaN for null.

    Examples
    --------
    >>> to_number("inf"), to_number(3)
    (inf, 3.0)
    """
    return math.nan if value is None else float(value)


def finite(value: float) -> float | None:
    """A number, or None if it is infinite or not defined.

    Examples
    --------
    >>> finite(0.5), finite(float("inf"))
    (0.5, None)
    """
    return float(value) if math.isfinite(value) else None


def loads(text: bytes) -> Any:
    """Content of UTF-8 JSON; NaN and Infinity, which are no JSON, raise ValueError.

    Examples
    --------
    >>> loads(b'{"row": 3}')
    {'row': 3}
    """
    return json.loads(text.decode(), parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")
