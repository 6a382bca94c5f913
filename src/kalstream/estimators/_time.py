"""Times of rows, and the gaps between them in units."""

from __future__ import annotations

import datetime
import warnings
from typing import Any, Final

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core import reading
from kalstream.errors import InvalidInput
from kalstream.estimators._model import Model

# Dates further apart than this many seconds, among the first rows, suggest a forgotten time_unit.
_LONG_GAP: Final = 1000.0
_EARLY: Final = 100
_MISSING: Final = (
    "time was given in earlier calls but not in this one; give it in every call or in none"
)
_NEW: Final = (
    "time is given in this call but was not in earlier ones; give it in every call or in none, or "
    "call reset() to start again"
)


def read_unit(unit: Any) -> float:
    """A unit of time, a number or a duration, as a number; a duration in seconds."""
    given = unit
    if isinstance(unit, np.timedelta64):
        kind = np.datetime_data(unit.dtype)[0]
        if kind in ("Y", "M", "generic"):
            raise InvalidInput(
                f"time_unit is {unit!r}, which has no fixed length; give days, for example "
                'np.timedelta64(365, "D")'
            )
        unit = float(unit / np.timedelta64(1, "s"))
    elif isinstance(unit, datetime.timedelta):
        unit = unit.total_seconds()
    try:
        return check.positive("time_unit", np.nan if isinstance(unit, bool | np.bool_) else unit)
    except InvalidInput:
        raise InvalidInput(
            "time_unit must be a finite number above 0, or a duration such as "
            f"datetime.timedelta(hours=1), got {check.shown(given)}"
        ) from None


def gaps_before(model: Model, time: Any, n: int, unit: float) -> tuple[Array | None, Array | None]:
    """Time gap before each of n rows, in units (n,), and the time of each row (n,).

    None, None without times.
    """
    if time is None:
        if model.time is not None:
            raise InvalidInput(_MISSING)
        return None, None
    times = reading.times(time, n)
    asked_without = model.came > 0 and not (model.store is not None and model.store.has_times)
    if model.time is None and (model.n_seen or asked_without):
        raise InvalidInput(_NEW)
    gaps = _steps(times, times[0] - unit if model.time is None else model.time) / unit
    if model.n_seen < _EARLY and unit == 1.0 and reading.are_dates(time):
        _warn_of_long_gaps(float(np.median(gaps)))
    return gaps, times


def _steps(times: Array, start: float) -> Array:
    """Time from one row to the next (n,), the first from ``start``; they must not decrease."""
    steps = np.diff(times, prepend=start)
    if (steps < 0.0).any():
        row = int(np.argmax(steps < 0.0))
        before = times[row - 1] if row else start
        raise InvalidInput(
            f"time decreases from {before:.17g} to {times[row]:.17g} at row {row} of X; "
            "sort the rows by time"
        )
    return steps


def _warn_of_long_gaps(gap: float) -> None:
    if gap > _LONG_GAP:
        warnings.warn(
            f"rows are {gap:g} seconds apart and half-lives are counted in seconds: almost "
            "everything is forgotten between rows. Give time_unit, such as "
            "datetime.timedelta(days=1)",
            stacklevel=8,
        )


def gaps_ahead(model: Model, time: Any, n: int, unit: float) -> Any:
    """Time gap from the last learned row to each of n rows to predict, in units: 1, or (n,)."""
    if time is None:
        return 1.0
    times = reading.times(time, n)
    if model.time is None:
        raise InvalidInput(
            "time is given in this call but was not given to partial_fit; give it in every call or "
            "in none"
        )
    if (times < model.time).any():
        first, last = times.min(), model.time
        shown = [
            _date(each) if reading.are_dates(time) else f"{each:.17g}" for each in (first, last)
        ]
        raise InvalidInput(
            f"time {shown[0]} is before that of the last row learned, {shown[1]}; sort the rows by "
            "time, and leave out those before it: only later rows can be predicted"
        )
    return (times - model.time) / unit


def _date(seconds: float) -> str:
    """A time in seconds since 1970, as a date."""
    return str(np.datetime64(round(seconds), "s")).replace("T", " ")


def times_of(model: Model, time: Any, n: int) -> Array | None:
    """Times of n rows to ask for (n,), None without; either all rows have times or none."""
    earlier = model.n_seen > 0 or model.came > 0
    had = model.time is not None or (model.store is not None and model.store.has_times)
    if time is None:
        if had:
            raise InvalidInput(_MISSING)
        return None
    if earlier and not had:
        raise InvalidInput(_NEW)
    times = reading.times(time, n)
    newest = -np.inf if model.store is None else np.nan_to_num(model.store.newest, nan=-np.inf)
    last = max(newest, -np.inf if model.time is None else model.time)
    _steps(times, float(times[0] if np.isinf(last) else last))
    return times
