"""The artificial time series of the paper (figures 1 and 4, appendix C)."""

from __future__ import annotations

import numpy as np

from kalstream.streams.base import REGRESSION, ArrayStream

MEANS = (1.3, 1.0, 1.3, 0.95, 0.6, 0.25, 0.8, 0.5)
CHANGES = (451, 709, 958, 1547, 2147, 2769, 2957)  # the first row of each mean but the first
LENGTH = 3058
NOISE_VAR = 0.01


def time_series(seed: int = 0) -> ArrayStream:
    """Noisy numbers whose mean jumps seven times: 3058 rows for regression.

    A row is the constant 1. A target is the current mean plus Gaussian noise of variance 0.01.

    Parameters
    ----------
    seed : int
        Seed of the noise. Means and change points are those of the paper.

    Notes
    -----
    The paper does not give its noise, nor whether its steps count from 0 or 1. Here `CHANGES`
    count from 0: row 451 is the first of the second mean.

    Examples
    --------
    >>> stream = time_series()
    >>> stream.rows.shape, round(float(stream.targets[:451].mean()), 2)
    ((3058, 1), 1.3)
    """
    means = np.repeat(MEANS, np.diff((0, *CHANGES, LENGTH)))
    noise = np.random.default_rng(seed).normal(size=LENGTH)
    targets = means + NOISE_VAR**0.5 * noise
    return ArrayStream(
        np.ones((LENGTH, 1)), targets, task=REGRESSION, name="series", columns=("one",)
    )
