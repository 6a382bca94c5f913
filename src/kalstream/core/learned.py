"""A forgetting coefficient that is learned by online SGD, as in the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from kalstream.core import checks as check
from kalstream.core.calibration import Calibration
from kalstream.core.likelihoods import check_likelihood
from kalstream.core.policy import Policy
from kalstream.core.single import LARGEST_DELTA, SingleFilter, as_calibration
from kalstream.errors import InvalidInput


@final
@dataclass(frozen=True, slots=True)
class Learned(SingleFilter):
    """Gamma learned online by clipped SGD on delta, eqs. (9) and (15), as in the paper.

    Each row is predicted with the old delta. Then delta makes a step along the gradient of the log
    predictive of the target (the exact softmax integral for labels, the Gaussian for values). Then
    the row is learned with the new delta.

    If the learning rate is too large, or there are outliers, delta grows and predictions get worse.
    Delta is limited to 5 (gamma = 0.08). `Mixture` has no learning rate.

    Parameters
    ----------
    init : float
        Gamma to start from, at least 0.083 and at most 1.
    lr : float
        Learning rate of delta; the paper considers 0.5 to 0.001.
    calibration : Calibration or float
        Alpha, learned or fixed.
    calibrated : bool
        Whether the gradient uses calibrated logits, eq. (13), or raw ones, eq. (12).
    likelihood : "onehot", "softmax" or "softmax-label"
        How a label is observed; see `step_chunk`.

    Examples
    --------
    >>> import numpy as np
    >>> policy = Learned(init=1.0, lr=1.0)
    >>> state = policy.start(1, 1, prior_var=0.01)
    >>> state, seen = policy.step_chunk(
    ...     state,
    ...     np.ones((200, 1)),
    ...     np.repeat([0.0, 5.0], 100),
    ...     noise_var=0.05,
    ...     prior_var=0.01,
    ...     keep_mean=True,
    ... )
    >>> bool(seen.gamma[99] > 0.99), bool(seen.gamma[100:].min() < 0.9)
    (True, True)
    """

    tag: ClassVar[str] = "Learned"

    init: float = 1.0
    lr: float = 0.01
    calibration: Calibration | float = 1.0
    calibrated: bool = True
    likelihood: str = "onehot"

    def __post_init__(self) -> None:
        object.__setattr__(self, "init", check.unit_interval("init", self.init))
        if self.init < math.exp(-0.5 * LARGEST_DELTA):
            raise InvalidInput(
                f"init must be at least {math.exp(-0.5 * LARGEST_DELTA):.3f}, got {self.init!r}: "
                "below it the gradient vanishes and gamma cannot recover"
            )
        object.__setattr__(self, "lr", check.positive("lr", self.lr))
        check.flag("calibrated", self.calibrated)
        check_likelihood("likelihood", self.likelihood)
        as_calibration(self.calibration)

    @property
    def _rule(self) -> tuple[float, float, bool]:
        return self.init, self.lr, self.calibrated

    def with_noise(self, known: bool) -> Policy:
        """The policy, unless the noise variance is not known."""
        if not known:
            raise InvalidInput(
                "forgetting='learned' needs noise_var as a number, since the gradient of gamma "
                "depends on it; or use forgetting='mixture'"
            )
        return self
