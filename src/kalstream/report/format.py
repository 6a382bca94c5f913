"""Numbers as text. A value that is not defined is a dash, never the word NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence

NOT_DEFINED = "–"
_NEVER = "never"


def _tidy(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def fixed(value: float, digits: int = 3) -> str:
    """Value with a fixed number of decimals.

    Examples
    --------
    >>> fixed(-0.25), fixed(float("nan"))
    ('−0.250', '–')
    """
    if math.isnan(value):
        return NOT_DEFINED
    if math.isinf(value):
        return "∞"
    return _tidy(f"{value:,.{digits}f}")


def significant(value: float, digits: int = 3) -> str:
    """Value with some significant digits, with an exponent only if it is very small or large.

    Examples
    --------
    >>> significant(0.012345), significant(1234.5), significant(3.2e-7), significant(0.0)
    ('0.0123', '1,234', '3.2e−07', '0')
    """
    if math.isnan(value):
        return NOT_DEFINED
    if value == 0 or math.isinf(value):
        return "0" if value == 0 else "∞"
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 9:
        return _tidy(f"{value:.{digits - 1}g}")
    return fixed(value, max(0, digits - 1 - size))


def plus_minus(value: float, error: float) -> str:
    """Value with its uncertainty, both rounded to two digits of the uncertainty.

    Examples
    --------
    >>> plus_minus(0.01502, 0.0284), plus_minus(0.25, 0.0)
    ('0.015 ± 0.028', '0.250')
    """
    if not error > 0:
        return significant(value)
    digits = min(max(1 - math.floor(math.log10(error)), 0), 8)
    return f"{fixed(value, digits)} ± {fixed(error, digits)}"


def percent(value: float, digits: int = 1) -> str:
    """Share as a percentage.

    Examples
    --------
    >>> percent(0.8734), percent(float("nan"))
    ('87.3%', '–')
    """
    return NOT_DEFINED if math.isnan(value) else fixed(100 * value, digits) + "%"


def count(value: float) -> str:
    """Whole number with separators.

    Examples
    --------
    >>> count(45312)
    '45,312'
    """
    return fixed(value, 0)


def plural(value: int, one: str, many: str | None = None) -> str:
    """Number with its noun.

    Examples
    --------
    >>> plural(1, "class", "classes"), plural(2, "class", "classes"), plural(0, "alarm")
    ('1 class', '2 classes', '0 alarms')
    """
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def duration(value: float) -> str:
    """Seconds in the largest unit of which there is a whole number.

    Examples
    --------
    >>> duration(259200.0), duration(3600.0), duration(90.0), duration(0.5)
    ('3 days', '1 hour', '90 seconds', '0.5 seconds')
    """
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if value >= size and value % size == 0:
            return plural(int(value // size), unit)
    return f"{value:g} seconds"


def compact(value: float) -> str:
    """Value in at most about five characters, for axes.

    Examples
    --------
    >>> compact(0), compact(2500), compact(40_000), compact(1.5e6), compact(0.05)
    ('0', '2.5k', '40k', '1.5M', '0.05')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return _tidy(f"{value / size:.4g}{letter}")
    return _tidy(f"{value:.4g}")


def half_life(value: float) -> str:
    """Half-life; an infinite one is "never".

    Examples
    --------
    >>> half_life(1000.0), half_life(float("inf"))
    ('1k', 'never')
    """
    if math.isnan(value):
        return NOT_DEFINED
    return _NEVER if math.isinf(value) else compact(float(f"{value:.3g}"))


def seconds(value: float) -> str:
    """Duration.

    Examples
    --------
    >>> seconds(0.25), seconds(75.2), seconds(8000)
    ('0.25 s', '1 min 15 s', '2 h 13 min')
    """
    if math.isnan(value):
        return NOT_DEFINED
    if value < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def listed(parts: Sequence[str], last: str = "and") -> str:
    """Parts as a list in a sentence.

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}"


def shortened(value: object, length: int = 24) -> str:
    """Text cut to a length, with an ellipsis if it was longer.

    Examples
    --------
    >>> shortened("a rather long label", 10)
    'a rather …'
    """
    text = str(value)
    return text if len(text) <= length else text[: length - 1] + "…"
