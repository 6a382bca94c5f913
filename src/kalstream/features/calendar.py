"""Dates as columns of numbers: times of day, week and year as points of circles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kalstream.features.values import Array

DAY = 86400.0
# Seconds of each circle; a year has its mean length, so its start moves by less than a day.
YEAR = 365.2425 * DAY
_CIRCLES = {
    "time of day": DAY,
    "day of week": 7 * DAY,
    "day of year": YEAR,
    "20 years": 20 * YEAR,
}
_WAVES = {"sin": np.sin, "cos": np.cos}
CLOCK = ("time of day sin", "time of day cos")
SECONDS = "seconds"  # since 1970, UTC: a number that has no bounds
_FEW = 3  # distinct values from which it is seen what dates have in common
_LEAST_ROWS = 50  # from which it is seen whether dates grow


def slots_of(seconds: Array, with_time: bool) -> list[str]:
    """Names of the numbers that dates (n,), in seconds since 1970, become.

    Only circles on which the dates differ are meaningful: a date without a time has no time of day,
    and the first days of months have no day of the week. For dates that grow from row to row, a
    circle of 20 years stands for what changes slowly: it has bounds, and a number of seconds has
    none. The number is used for other dates, as days of birth, and if there is no circle.
    """
    known = np.unique(seconds[np.isfinite(seconds)])
    circles = list(_circles(known, with_time))
    grow = bool(circles) and _grow(seconds)
    circles += ["20 years"] if grow else []
    slots = [f"{circle} {wave}" for circle in circles for wave in _WAVES]
    return slots if grow else [*slots, SECONDS]


def encoded(seconds: Array, slots: Iterable[str]) -> Array:
    """The numbers (n, n_slots) of dates (n,); NaN where missing."""
    columns = []
    for slot in slots:
        if slot == SECONDS:
            columns.append(seconds)
        else:
            circle, _, wave = slot.rpartition(" ")
            period = _CIRCLES[circle]
            columns.append(_WAVES[wave](2 * np.pi / period * np.mod(seconds, period)))
    return np.stack(columns, axis=1)


def _circles(known: Array, with_time: bool) -> Iterator[str]:
    """The circles on which distinct dates (n,) differ, or may differ later if they are few."""
    days = np.unique(np.floor(known / DAY)).astype(np.int64)
    months = days.astype("M8[D]").astype("M8[M]")
    days_of_month = days - months.astype("M8[D]").astype(np.int64)
    few = len(days) < _FEW
    if with_time and (len(known) < _FEW or len(np.unique(known % DAY)) > 1):
        yield "time of day"
    if few or (len(np.unique(days_of_month)) > 1 and len(np.unique(days % 7)) > 1):
        yield "day of week"
    if few or len(np.unique(months.astype(np.int64) % 12 * 31 + days_of_month)) > 1:
        yield "day of year"


def _grow(seconds: Array) -> bool:
    """Whether dates follow the order of the rows, forward or backward, or too few are known."""
    known = seconds[np.isfinite(seconds)]
    if len(known) < _LEAST_ROWS or np.ptp(known) == 0:
        return True
    ranks = np.unique(known, return_inverse=True)[1]
    return bool(abs(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) > 0.5)
