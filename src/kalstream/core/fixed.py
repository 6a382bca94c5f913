"""One forgetting coefficient that never changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kalstream.core import checks as check
from kalstream.core.calibration import Calibration
from kalstream.core.single import SingleFilter, as_calibration


@final
@dataclass(frozen=True, slots=True)
class Fixed(SingleFilter):
    """One gamma that never changes.

    Parameters
    ----------
    gamma : float in [0, 1]
    calibration : Calibration or float
        Alpha, learned or fixed.

    Examples
    --------
    >>> import numpy as np
    >>> policy = Fixed(0.5)
    >>> state = policy.start(1, 2, prior_var=1.0)
    >>> state, seen = policy.step_chunk(state, [[1.0]], [0], noise_var=1.0, prior_var=1.0)
    >>> state.gamma, state.half_life
    (0.5, 1.0)
    """

    tag: ClassVar[str] = "Fixed"
    adapts: ClassVar[bool] = False

    gamma: float = 1.0
    calibration: Calibration | float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", check.unit_interval("gamma", self.gamma))
        as_calibration(self.calibration)

    @property
    def _rule(self) -> tuple[float, float, bool]:
        return self.gamma, 0.0, True
