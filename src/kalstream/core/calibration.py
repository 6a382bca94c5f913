"""Calibration: the factor alpha that multiplies logits in eq. (13), fixed or learned online.

Plain SGD on log alpha runs away (to 1e27 on real data), since nothing sets the size of its steps.
Here log alpha is filtered as the weights are. It is a scalar with a Gaussian prior and forgets
towards it. Its observations are the gradients of the log predictive, and their squares are the
information. So a row of weight 1 moves it by at most half a standard deviation, whatever the
gradient (core/README.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kalstream.core import checks as check
from kalstream.errors import InvalidInput

# log alpha stays within this many prior standard deviations of where it started.
BOUND: Final = 3.0
# exp(400) is 1e173, and its square is still finite.
_LARGEST_LOG: Final = 400.0
# With BOUND and the largest init that the checks allow, log alpha stays below _LARGEST_LOG.
_LARGEST_SPREAD: Final = 50.0


@dataclass(frozen=True, slots=True)
class Alpha:
    """Belief about alpha: mean and variance of log alpha.

    Examples
    --------
    >>> Alpha(log_mean=0.0, log_var=0.04).value  # it leaves the logits as they are
    1.0
    """

    log_mean: float
    log_var: float

    def __post_init__(self) -> None:
        for name in ("log_mean", "log_var"):
            if type(getattr(self, name)) is not float:
                object.__setattr__(self, name, check.scalar(name, getattr(self, name)))
        if not (abs(self.log_mean) <= _LARGEST_LOG and 0.0 <= self.log_var < math.inf):
            raise InvalidInput(
                f"alpha has log_mean {self.log_mean!r} and log_var {self.log_var!r}; they must lie "
                f"between -{_LARGEST_LOG:g} and {_LARGEST_LOG:g}, and be finite and at least 0"
            )

    @property
    def value(self) -> float:
        """The factor itself."""
        return math.exp(self.log_mean)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How alpha is learned.

    Parameters
    ----------
    init : float
        Alpha to start from, and to forget towards.
    spread : float
        Prior standard deviation of log alpha; 0 keeps alpha fixed at ``init``.
    gamma : float
        Forgetting coefficient of alpha, per learned row.

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
        # As floats: for integers numba would compile the loops again.
        object.__setattr__(self, "init", check.factor("calibration init", self.init))
        object.__setattr__(self, "gamma", check.unit_interval("calibration gamma", self.gamma))
        spread = check.scalar("calibration spread", self.spread)
        object.__setattr__(self, "spread", spread)
        if not 0.0 <= spread <= _LARGEST_SPREAD:
            raise InvalidInput(
                f"calibration spread must lie between 0, which keeps alpha, and "
                f"{_LARGEST_SPREAD:g}, got {self.spread!r}"
            )

    @classmethod
    def fixed(cls, value: float) -> Calibration:
        """Alpha that does not move."""
        return cls(value, 0.0, 1.0)

    @property
    def learns(self) -> bool:
        """Whether alpha moves at all."""
        return self.spread > 0.0

    @property
    def rule(self) -> tuple[float, float, float, float]:
        """What compiled loops learn alpha by: log init, prior variance, gamma and bound."""
        return math.log(self.init), self.spread**2, self.gamma, BOUND * self.spread

    def start(self) -> Alpha:
        """Alpha before any data."""
        return Alpha(math.log(self.init), self.spread**2)

    def learn(self, alpha: Alpha, gradient: float, weight: float = 1.0) -> Alpha:
        """Alpha after one row, from the derivative of its log probability by log alpha.

        The reference for `_kernels.chunk.learn_alpha`, which does this inside a chunk.
        """
        check.instance("alpha", alpha, Alpha)
        gradient = check.finite("gradient", gradient)
        weight = check.scalar("weight", weight)
        if not 0.0 <= weight <= check.LARGEST_FLOAT64:
            raise InvalidInput(f"weight must lie between 0 and 1e100, got {weight}")
        centre, prior_var = math.log(self.init), self.spread**2
        mean = centre + self.gamma * (alpha.log_mean - centre)  # as eq. (7)
        var = prior_var + self.gamma**2 * (alpha.log_var - prior_var)
        var = var / (1.0 + var * weight * gradient * gradient)  # as eq. (8)
        mean += var * weight * gradient
        reach = BOUND * self.spread
        return Alpha(min(max(mean, centre - reach), centre + reach), var)
