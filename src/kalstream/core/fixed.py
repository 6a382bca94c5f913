"""One forgetting coefficient that never changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.bank import How, Lookahead
from kalstream.core.calibration import Alpha, Calibration
from kalstream.core.chunk import Rows
from kalstream.core.half_lives import gamma_of, half_life
from kalstream.core.likelihoods import check_likelihood
from kalstream.core.motion import MotionBank
from kalstream.core.motion_reference import check_order
from kalstream.core.policy import BankState, check_seen
from kalstream.core.single import FilterState, OneFilterState, SingleFilter, as_calibration
from kalstream.core.state import Posterior, Step
from kalstream.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class MovingState(BankState, OneFilterState):
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

    Examples
    --------
    >>> state = Fixed(0.99, order=2).start(3, 2, prior_var=1.0)
    >>> type(state).__name__, state.n_features, round(state.gamma, 2)
    ('MovingState', 3, 0.99)
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
    def half_life(self) -> float:
        """Half-life in rows."""
        return self.bank.half_lives[0]

    @property
    def gamma(self) -> float:
        """Forgetting coefficient of the half-life."""
        return gamma_of(self.half_life)

    def add_features(self, n_features: int, prior_var: float) -> Self:
        """Add features that were 0 in all rows so far, as if they had been there from the start."""
        prior_vars = np.array([check.variance("prior_var", prior_var, self.dtype)])
        return replace(self, bank=self.bank.add_features(n_features, prior_vars))


@final
@dataclass(frozen=True, slots=True)
class Fixed(SingleFilter):
    """One gamma that never changes.

    Parameters
    ----------
    gamma : float in [0, 1]
    calibration : Calibration or float
        Alpha, learned or fixed.
    likelihood : "onehot", "softmax" or "softmax-label"
        How a label is observed; see `step_chunk`.
    order : 1, 2 or 3
        Order of the motion of a weight. From 2 on weights have a velocity, at 3 an acceleration,
        so that predictions follow a weight that turns smoothly (core/README.md, "Motion"). Gamma
        stands for the half-life ``half_life(gamma)``. The state is then a `MovingState`.

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
    likelihood: str = "onehot"
    order: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", check.unit_interval("gamma", self.gamma))
        object.__setattr__(self, "order", check_order(self.order))
        check_likelihood("likelihood", self.likelihood)
        as_calibration(self.calibration)
        if self.order > 1 and self.gamma == 0.0:
            raise InvalidInput(
                f"gamma=0 with order={self.order}: a weight that keeps nothing has no velocity; "
                "pass a gamma above 0, or order=1"
            )

    @property
    def _rule(self) -> tuple[float, float, bool]:
        return self.gamma, 0.0, True

    @property
    def orders(self) -> tuple[int, ...]:
        """Order of the one filter."""
        return (self.order,)

    @property
    def state_type(self) -> type:
        """`FilterState` or, from order 2 on, `MovingState`."""
        return FilterState if self.order == 1 else MovingState

    def start(
        self, n_features: int, n_outputs: int, *, prior_var: float, dtype: Any = np.float64
    ) -> Any:
        """State before any data."""
        if self.order == 1:
            return SingleFilter.start(self, n_features, n_outputs, prior_var=prior_var, dtype=dtype)
        prior_var = check.variance("prior_var", prior_var, check.float_dtype(dtype))
        motion: dict[str, Any] = {"order": self.order, "half_lives": half_life(self.gamma)}
        return MovingState(
            MotionBank.start(n_features, n_outputs, prior_vars=prior_var, dtype=dtype, **motion),
            as_calibration(self.calibration).start(),
            np.zeros(n_outputs, bool),
        )

    def check_state(self, state: Any) -> None:
        """Raise an error unless the state is of this order and, from order 2 on, of this gamma."""
        if self.order == 1:
            SingleFilter.check_state(self, state)
            return
        check.instance("state", state, self.state_type)
        own, other = (self.order, half_life(self.gamma)), (state.bank.order, state.half_life)
        if own != other:
            raise InvalidInput(
                f"state is of order {other[0]} and half-life {other[1]:g}, this policy of order "
                f"{own[0]} and half-life {own[1]:g}; use the policy that started it, or start again"
            )

    def step_rows(self, state: Any, rows: Rows, donate: bool) -> tuple[Any, Step]:
        """Advance over rows; `Step.calibration` is the alpha before each row."""
        if self.order == 1:
            return SingleFilter.step_rows(self, state, rows, donate)
        likelihood = np.array([rows.likelihood(self.likelihood)])
        how = How((state.gamma**rows.gap)[None], np.array([rows.prior_var]), likelihood)
        bank, moments = state.bank.run(rows, how, donate)
        alpha, alphas = self._alphas(state, rows, moments.logit_mean[0], moments.logit_var[0])
        after = check.trusted(MovingState, bank, alpha, rows.seen(state.seen))
        return after, replace(moments.filters()[0], calibration=alphas)

    def _alpha(self, state: MovingState) -> Alpha:
        """Alpha before the next row."""
        calibration = as_calibration(self.calibration)
        return state.alpha if calibration.learns else calibration.start()

    def _alphas(
        self, state: MovingState, rows: Rows, mean: Array, var: Array
    ) -> tuple[Alpha, Array]:
        """Alpha after rows with these logits (b, K) and variances (b,), and before each (b,)."""
        alpha, calibration = self._alpha(state), as_calibration(self.calibration)
        if rows.targets.labels is None or not calibration.learns:
            return alpha, np.full(len(rows.gap), alpha.value)
        from kalstream.core._kernels.motion import learn_alphas
        from kalstream.core.softmax_integral import table, workspace

        known = rows.observed(), alpha.log_mean, alpha.log_var, calibration.rule
        alphas, *learned = learn_alphas(mean, var, *known, (*table(), workspace()))
        return Alpha(*learned), alphas

    def predict(
        self,
        state: Any,
        features: ArrayLike,
        *,
        prior_var: float,
        time_gap: ArrayLike = 1.0,
        keep_mean: bool = False,
    ) -> Step:
        """Moments of each row (b, m), as if it were the next one; the state does not change.

        ``time_gap`` is the time since the last row that was learned, one number or (b,).
        """
        if self.order == 1:
            return SingleFilter.predict(
                self,
                state,
                features,
                prior_var=prior_var,
                time_gap=time_gap,
                keep_mean=keep_mean,
            )
        self.check_state(state)
        bank = state.bank
        phi = check.feature_rows(features, bank.n_features, bank.dtype)
        prior = np.array([check.variance("prior_var", prior_var, bank.dtype)])
        gap = check.non_negative_rows("time_gap", time_gap, len(phi))
        keep = check.flag("keep_mean", keep_mean)
        ahead = Lookahead(np.array([[state.gamma]]), prior, keep, 0.0, np.zeros((1, 1)))
        step, _ = bank.predict(phi, gap, ahead)
        alphas = np.full(len(phi), self._alpha(state).value)
        return replace(step.filters()[0], calibration=alphas)
