"""Settings of the filters of a mixture as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.half_lives import gamma_of
from kalstream.core.likelihoods import LIKELIHOODS, ONEHOT
from kalstream.errors import InvalidInput

Array = NDArray[Any]
# One grid for all filters, or one for each.
Calibrations = tuple[float, ...] | tuple[tuple[float, ...], ...]


def check_calibrations(name: str, values: Any, n_filters: int) -> Calibrations:
    """A sequence of numbers, or of J such sequences that are of the same length."""
    nested = isinstance(values, Sequence) and any(np.ndim(each) == 1 for each in values)
    if not nested:
        return check.sequence(name, values)
    rows = tuple(check.sequence(name, row) for row in values)
    if len(rows) != n_filters or len({len(row) for row in rows}) != 1:
        raise InvalidInput(
            f"{name} holds sequences of lengths {[len(row) for row in rows]}; give one sequence "
            f"for each of {n_filters} filters, all of the same length"
        )
    return rows


@lru_cache
def grid_of(values: Calibrations, n_filters: int) -> Array:
    """Calibrations as an array (J, C); not to be changed."""
    grid = np.broadcast_to(np.array(values, np.float64), (n_filters, np.shape(values)[-1]))
    for value in grid.ravel():
        check.factor("calibrations", float(value))
    return np.array(grid)  # writable, as all arrays of kernels: for others these compile again


def prior_vars_of(scales: tuple[float, ...], prior_var: float, dtype: Any) -> Array:
    """Prior variance of each filter (J,); not to be changed."""
    return _scaled(scales, check.variance("prior_var", prior_var, dtype), dtype)


@lru_cache
def _scaled(scales: tuple[float, ...], prior_var: float, dtype: Any) -> Array:
    name = "prior_var times a prior_scale"
    return np.array([check.variance(name, scale * prior_var, dtype) for scale in scales])


@lru_cache
def codes_of(likelihoods: tuple[str, ...], labels: bool) -> Array:
    """`Rows.likelihood` of each filter (J,), for labels or for values; not to be changed."""
    return np.array([(LIKELIHOODS[word] if labels else ONEHOT).code for word in likelihoods])


@lru_cache
def gammas_of(half_lives: Sequence[float]) -> Array:
    """Coefficients (J, 1) of half-lives; not to be changed."""
    return np.array([[gamma_of(value)] for value in half_lives])
