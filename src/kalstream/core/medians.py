"""Weighted medians."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
