"""One filter whose weights move with a velocity: the state of `Fixed` with an order above 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kalstream.core import checks as check
from kalstream.core.bank import How
from kalstream.core.calibration import Alpha, Calibration
from kalstream.core.chunk import Rows
from kalstream.core.half_lives import gamma_of
from kalstream.core.motion import MotionBank, predict_motion, refuse_keep_mean, run_motion
from kalstream.core.policy import PolicyState, check_seen
from kalstream.core.state import BankStep, Posterior, Step
from kalstream.errors import InvalidInput

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class MovingState(PolicyState):
    """One filter of order 2 or 3, and its calibration.

    Attributes
    ----------
    bank : MotionBank
        It has one filter.
    alpha : Alpha
    seen : (K,) bool
        Classes that have been learned at least once.
    posterior : Posterior
        Weights now, without their derivatives.
    gamma, half_life, calibration : float
    """

    tag: ClassVar[str] = "MovingState"

    bank: MotionBank
    alpha: Alpha
    seen: Array

    def __post_init__(self) -> None:
        check.instance("the bank of the state", self.bank, MotionBank)
        check.instance("the alpha of the state", self.alpha, Alpha)
        if self.bank.n_filters != 1:
            raise InvalidInput(
                f"the bank of the state must have one filter, got {self.bank.n_filters}"
            )
        check_seen(self.seen, self.bank.n_outputs)

    @property
    def posterior(self) -> Posterior:
        """Weights now, without their derivatives."""
        return self.bank.posterior(0)

    @property
    def posteriors(self) -> tuple[Posterior, ...]:
        """The posterior, of one filter."""
        return (self.posterior,)

    @property
    def half_lives(self) -> tuple[float, ...]:
        """The half-life, of one filter."""
        return self.bank.half_lives

    @property
    def half_life(self) -> float:
        """Half-life in rows."""
        return self.bank.half_lives[0]

    @property
    def gamma(self) -> float:
        """Forgetting coefficient of the half-life."""
        return gamma_of(self.half_life)

    @property
    def gammas(self) -> tuple[float, ...]:
        """The forgetting coefficient, of one filter."""
        return (self.gamma,)

    @property
    def half_life_weights(self) -> Array:
        """All weight is on the one filter (1,)."""
        return np.ones(1)

    @property
    def calibration(self) -> float:
        """Current alpha."""
        return self.alpha.value

    @property
    def n_features(self) -> int:
        """Number of features, m."""
        return self.bank.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the features."""
        return self.bank.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept from row to row."""
        return self.bank.nbytes

    def add_outputs(self, n_outputs: int) -> Self:
        """Add classes that were never seen, as if they had been declared at the start."""
        bank = self.bank.add_outputs(n_outputs)
        return replace(self, bank=bank, seen=np.pad(self.seen, (0, n_outputs)))

    def keep_outputs(self, columns: Array) -> Self:
        """Keep only these outputs. They do not change, because outputs are independent."""
        columns = check.columns("columns", columns, len(self.seen))
        return replace(self, bank=self.bank.keep_outputs(columns), seen=self.seen[columns])

    def add_features(self, n_features: int, prior_var: float) -> Self:
        """Add features that were 0 in all rows so far, as if they had been there from the start."""
        prior_vars = np.array([check.variance("prior_var", prior_var, self.dtype)])
        return replace(self, bank=self.bank.add_features(n_features, prior_vars))


def step_moving(
    state: MovingState, rows: Rows, calibration: Calibration, likelihood: str, donate: bool
) -> tuple[MovingState, Step]:
    """Advance over rows; `Step.calibration` is the alpha before each row."""
    labels = rows.targets.labels is not None
    gammas = (state.gamma**rows.gap)[None]
    how = How(gammas, np.array([rows.prior_var]), np.array([rows.likelihood(likelihood)]))
    bank, moments = run_motion(state.bank, rows, how, donate)
    alpha = state.alpha if calibration.learns else calibration.start()
    alphas = np.full(len(rows.gap), alpha.value)
    if labels and calibration.learns:
        from kalstream.core._kernels.motion import learn_alphas
        from kalstream.core.softmax_integral import table, workspace

        known = alpha.log_mean, alpha.log_var, calibration.rule
        observed = rows.observed()
        alphas, *learned = learn_alphas(
            moments.logit_mean[0],
            moments.logit_var[0],
            observed[0],
            *observed[2:],
            *known,
            *table(),
            workspace(),
        )
        alpha = Alpha(*learned)
    after = check.trusted(MovingState, bank, alpha, rows.seen(state.seen))
    return after, _step(moments, alphas)


def predict_moving(
    state: MovingState,
    features: ArrayLike,
    calibration: Calibration,
    *,
    prior_var: float,
    time_gap: ArrayLike,
    keep_mean: bool,
) -> Step:
    """Moments of each row (b, m), as if it were the next one; the state does not change."""
    bank = state.bank
    phi = check.feature_rows(features, bank.n_features, bank.dtype)
    prior_var = check.variance("prior_var", prior_var, bank.dtype)
    gap = check.non_negative_rows("time_gap", time_gap, len(phi))
    refuse_keep_mean(check.flag("keep_mean", keep_mean), bank.order)
    mean, var = predict_motion(bank, phi, gap, np.array([prior_var]))
    unknown = np.full(var.shape, np.inf), np.full(var.shape, np.nan)
    alpha = state.alpha if calibration.learns else calibration.start()
    moments = BankStep(mean, var, (state.gamma**gap)[None], *unknown)
    return _step(moments, np.full(len(phi), alpha.value))


def _step(moments: BankStep, alphas: Array) -> Step:
    """The step of the one filter of a bank, with alpha (b,)."""
    return replace(moments.filters()[0], calibration=alphas)
