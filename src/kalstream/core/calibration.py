"""Calibration: the factor alpha that multiplies logits in eq. (13), fixed or learned online.

Plain SGD on log alpha has no scale of its own and runs away (to 1e27 on real data). Here log
alpha is filtered as the weights are: a scalar with a Gaussian prior that forgets towards it, and
whose observations are the gradients of the log predictive, with their squares as information. A
step of an example of weight 1 is then at most half a standard deviation, whatever the gradient
(core/README.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kalstream.core import _checks as check

# log alpha stays within this many prior standard deviations of where it started.
BOUND: Final = 3.0


@dataclass(frozen=True, slots=True)
class Alpha:
    """What is known about alpha: mean and variance of log alpha."""

    log_mean: float
    log_var: float

    @property
    def value(self) -> float:
        """The factor itself."""
        return math.exp(self.log_mean)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How alpha moves.

    Parameters
    ----------
    init : float
        Alpha to start from, and to forget towards.
    spread : float
        Prior standard deviation of log alpha; 0 keeps alpha fixed at ``init``.
    gamma : float
        Forgetting coefficient of alpha, per learnt example.

    Examples
    --------
    >>> Calibration.fixed(2.0).start().value
    2.0
    >>> learned = Calibration()
    >>> alpha = learned.learn(learned.start(), 0.5)
    >>> 1.0 < alpha.value < 3.0
    True
    """

    init: float = 1.0
    spread: float = 2.0
    gamma: float = 0.9999

    def __post_init__(self) -> None:
        check.positive("calibration init", self.init)
        check.unit_interval("calibration gamma", self.gamma)
        if self.spread != 0.0:
            check.positive("calibration spread", self.spread)

    @classmethod
    def fixed(cls, value: float) -> Calibration:
        """Alpha that does not move."""
        return cls(value, 0.0, 1.0)

    @property
    def learns(self) -> bool:
        """Whether alpha moves at all."""
        return self.spread > 0.0

    def start(self) -> Alpha:
        """Alpha before any data."""
        return Alpha(math.log(self.init), self.spread**2)

    def learn(self, alpha: Alpha, gradient: float, weight: float = 1.0) -> Alpha:
        """Alpha after one example, from the derivative of its log probability by log alpha.

        The reference for what `_scan.learn_alpha` does inside a chunk.
        """
        centre, prior_var = math.log(self.init), self.spread**2
        mean = centre + self.gamma * (alpha.log_mean - centre)  # as eq. (7)
        var = prior_var + self.gamma**2 * (alpha.log_var - prior_var)
        var = var / (1.0 + var * weight * gradient * gradient)  # as eq. (8)
        mean += var * weight * gradient
        reach = BOUND * self.spread
        return Alpha(min(max(mean, centre - reach), centre + reach), var)
