"""Half-lives, the forgetting coefficients that belong to them, and medians over them."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kalstream.core import checks as check
from kalstream.errors import InvalidInput

# Factor by which the unknown scale of a regression's noise forgets at each row, a half-life of
# about 700 rows: core/README.md, "The unknown scale".
KEEP_SCALE: Final = 0.999


def half_life(gamma: float) -> float:
    """Half-life of gamma: rows after which a weight that learns nothing has halved.

    It is ln(1/2) / ln(gamma).

    Examples
    --------
    >>> half_life(0.5), half_life(1.0), half_life(0.0)
    (1.0, inf, 0.0)
    """
    gamma = check.unit_interval("gamma", gamma)
    if gamma == 0.0:
        return 0.0
    return math.inf if gamma == 1.0 else math.log(0.5) / math.log(gamma)


def gamma_of(half_life: float) -> float:
    """Forgetting coefficient of a half-life in rows; an infinite half-life gives 1.

    Examples
    --------
    >>> gamma_of(1.0), gamma_of(float("inf"))
    (0.5, 1.0)
    """
    number = check.scalar("half_life", half_life)
    if not number > 0.0:
        raise InvalidInput(f"half_life must be above 0 (inf forgets nothing), got {half_life!r}")
    return 0.5 ** (1.0 / number)


def weighted_median(values: ArrayLike, weights: ArrayLike) -> NDArray[np.float64]:
    """Weighted median of values (J,), for each row of weights (..., J).

    It is the smallest value v such that the weights of all values up to v sum to at least half of
    the total weight.

    Examples
    --------
    >>> float(weighted_median([10.0, float("inf"), 1.0], [0.2, 0.3, 0.5]))
    1.0
    """
    order = np.argsort(values)
    below = np.cumsum(np.asarray(weights)[..., order], axis=-1)
    index = np.argmax(below >= 0.5 * below[..., -1:], axis=-1)
    return np.asarray(values, dtype=np.float64)[order][index]
