"""The settings of a mixture, and how it learns and predicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kalstream.core import checks as check
from kalstream.core.bank import Filters, How, Lookahead, joined_steps
from kalstream.core.chunk import Rows
from kalstream.core.half_lives import gamma_of
from kalstream.core.judging import Events, Judged, LateChunk, LateJudge, LateRows, Sizes
from kalstream.core.likelihoods import check_likelihood
from kalstream.core.mixture.grids import (
    check_calibrations,
    codes_of,
    gammas_of,
    grid_of,
    prior_vars_of,
)
from kalstream.core.mixture.late import judged, step_events
from kalstream.core.mixture.state import MixtureState
from kalstream.core.mixture.step import MixtureStep
from kalstream.core.motion_reference import check_order
from kalstream.core.orders import start_bank
from kalstream.core.policy import JudgingPolicy
from kalstream.core.state import BankStep
from kalstream.errors import InvalidInput

Array = NDArray[Any]

# Rows predicted at a time, so that memory stays bounded.
_PREDICTED_ROWS: Final = 256
_NOT_EXACT: Final = np.empty((0, 0, 0))


@final
@dataclass(frozen=True, slots=True)
class Mixture(JudgingPolicy):
    """Filters with fixed half-lives, each with a grid of calibrations, weighted by evidence.

    The weights follow Bayes' rule on each filter's own predictive probability, with a fixed
    share of switching between any two: nothing has to be tuned.

    Parameters
    ----------
    half_lives : floats above 0, in rows
        inf forgets nothing.
    share : float in [0, 1]
        Probability of switching before a step (per unit of time, if there are time gaps).
    calibrations : C floats above 0, or J times C
        Grid of alpha, for all filters or for each; regression does not use it.
    predictive : "exact" or "probit"
        What weights the filters; the probit approximation is cheaper.
    learn_scale : bool
        Regression with a noise of unknown size: noise_var and prior_var are in units of a scale
        that each filter learns from its innovations (core/README.md, "The unknown scale").
    likelihood : "onehot", "softmax", "softmax-label", or J of these words
        How labels are observed; see `step_chunk`.
    prior_scale : float above 0, or J floats
        The prior variance of a filter, in units of prior_var.
    order : 1, 2 or 3, or J of these
        Order of the motion of a filter's weights; see `Fixed`.

    Examples
    --------
    >>> import numpy as np
    >>> policy = Mixture(half_lives=(10.0, float("inf")))
    >>> state = policy.start(1, 1, prior_var=1.0)
    >>> state, seen = policy.step_chunk(
    ...     state, np.ones((60, 1)), np.repeat([0.0, 3.0], 30), noise_var=0.1, prior_var=1.0
    ... )
    >>> bool(seen.half_life_weights[29, 1] > 0.5), bool(seen.half_life_weights[40, 0] > 0.9)
    (True, True)
    """

    tag: ClassVar[str] = "Mixture"
    state_type: ClassVar[type] = MixtureState
    combines: ClassVar[bool] = True
    compares: ClassVar[bool] = True

    half_lives: Sequence[float] = (1e2, 1e3, 1e4, 1e5, math.inf)
    share: float = 0.001
    calibrations: Sequence[float] | Sequence[Sequence[float]] = (3.0, 7.0, 15.0, 35.0, 80.0)
    predictive: str = "exact"
    learn_scale: bool = False
    likelihood: str | Sequence[str] = "onehot"
    prior_scale: float | Sequence[float] = 1.0
    order: int | Sequence[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "half_lives", check.sequence("half_lives", self.half_lives))
        for value in self.half_lives:
            gamma_of(value)
        grid = check_calibrations("calibrations", self.calibrations, len(self.half_lives))
        object.__setattr__(self, "calibrations", grid)
        grid_of(grid, len(self.half_lives))
        for name in ("likelihood", "prior_scale"):
            value = getattr(self, name)
            if not isinstance(value, str | float | int):
                object.__setattr__(self, name, _tuple(name, value))
        object.__setattr__(self, "order", _order(self.order))
        for name in ("likelihood", "prior_scale", "order"):
            if len(getattr(self, f"{name}s")) != self.n_filters:
                raise InvalidInput(
                    f"the mixture has {self.n_filters} half-lives, and its {name} is "
                    f"{getattr(self, name)}; give one, or one for each half-life"
                )
        for word in self.likelihoods:
            check_likelihood("likelihood", word)
        for value in self.prior_scales:
            check.factor("prior_scale", value)
        object.__setattr__(self, "share", check.unit_interval("share", self.share))
        check.choice("predictive", self.predictive, ("exact", "probit"))
        check.flag("learn_scale", self.learn_scale)

    @property
    def n_filters(self) -> int:
        """Number of filters, J."""
        return len(self.half_lives)

    @property
    def likelihoods(self) -> tuple[str, ...]:
        """How each filter (J,) observes labels."""
        if isinstance(self.likelihood, str):
            return (self.likelihood,) * self.n_filters
        return tuple(self.likelihood)

    @property
    def prior_scales(self) -> tuple[float, ...]:
        """Prior variance of each filter (J,), in units of prior_var."""
        if isinstance(self.prior_scale, float | int):
            return (float(self.prior_scale),) * self.n_filters
        return tuple(self.prior_scale)

    @property
    def orders(self) -> tuple[int, ...]:
        """Order of the motion of each filter (J,)."""
        return (self.order,) * self.n_filters if isinstance(self.order, int) else tuple(self.order)

    @property
    def learns_scale(self) -> bool:
        """Whether each filter of a regression learns the scale of the noise."""
        return self.learn_scale

    def with_noise(self, known: bool) -> Mixture:
        """The mixture for a regression whose noise variance is known, or has to be learned."""
        return replace(self, learn_scale=not known)

    def start(
        self, n_features: int, n_outputs: int, *, prior_var: float, dtype: Any = np.float64
    ) -> MixtureState:
        """State before any data: all filters have the same weight."""
        bank = start_bank(
            n_features,
            n_outputs,
            orders=self.orders,
            half_lives=tuple(self.half_lives),
            prior_vars=prior_vars_of(self.prior_scales, prior_var, dtype),
            dtype=dtype,
        )
        shape = grid_of(self.calibrations, self.n_filters).shape
        return MixtureState(
            bank,
            tuple(self.half_lives),
            check_calibrations("calibrations", self.calibrations, self.n_filters),
            np.full(shape, -math.log(shape[0] * shape[1])),
            np.zeros(n_outputs, bool),
            np.zeros((shape[0], 2)),
            self.likelihoods,
            self.prior_scales,
        )

    def check_state(self, state: MixtureState) -> None:
        """Raise an error unless the state is of a mixture with the same grids."""
        check.instance("state", state, MixtureState)
        for name in ("half_lives", "calibrations", "likelihoods", "prior_scales", "orders"):
            if getattr(state, name) != getattr(self, name):
                raise InvalidInput(
                    f"state is of a mixture with {name} {getattr(state, name)}, this one has "
                    f"{getattr(self, name)}; use the policy that started it, or start again"
                )

    def step_rows(
        self, state: MixtureState, rows: Rows, donate: bool
    ) -> tuple[MixtureState, MixtureStep]:
        """Advance the filters over rows, and weigh them by how well they predicted."""
        bank, moments = state.bank.run(rows, self._how(state, rows), donate)
        return self._weighed(state, bank, moments, rows)

    def _weighed(
        self, state: MixtureState, bank: Filters, moments: BankStep, rows: Rows
    ) -> tuple[MixtureState, MixtureStep]:
        """The state after rows, from the filters after them and the moments before each."""
        from kalstream.core._kernels.mixture import exact_log_probs, mix
        from kalstream.core.softmax_integral import table, workspace

        log_weights, spread = state.log_weights.copy(), state.spread.copy()
        labels, dense, noise_var, weight, classes, n_seen = rows.observed()
        grid, exact = grid_of(state.calibrations, len(state.half_lives)), _NOT_EXACT
        seen = moments.logit_mean, moments.logit_var
        if self.predictive == "exact" and rows.targets.labels is not None:
            known, integral = (labels, noise_var, classes, n_seen), (*table(), workspace())
            exact = exact_log_probs(*seen, *known, grid, integral)
        weights, scale, log_prob, evidence = mix(
            *(*seen, labels, dense, noise_var, weight, classes, n_seen),
            1.0 - (1.0 - self.share) ** rows.gap,
            *(grid, exact, self.learn_scale and rows.targets.labels is None),
            *(log_weights, spread),
        )
        grids, scales = (state.half_lives, state.calibrations), state.prior_scales
        report = moments, weights, log_prob, scale, *grids, scales
        learned = log_weights, rows.seen(state.seen), spread
        after = check.trusted(MixtureState, bank, *grids, *learned, state.likelihoods, scales)
        return after, check.trusted(MixtureStep, *report, evidence)

    def predict(
        self,
        state: MixtureState,
        features: ArrayLike,
        *,
        prior_var: float,
        time_gap: ArrayLike = 1.0,
        keep_mean: bool = False,
    ) -> MixtureStep:
        """Moments of each row (b, m) one step ahead, each on its own; the state is not touched.

        ``time_gap`` is the time since the last row that was learned, one number or (b,).
        """
        self.check_state(state)
        bank = state.bank
        phi = check.feature_rows(features, bank.n_features, bank.dtype)
        gap = check.non_negative_rows("time_gap", time_gap, len(phi))
        prior_vars = prior_vars_of(state.prior_scales, prior_var, bank.dtype)
        keep_mean = check.flag("keep_mean", keep_mean)
        settings = prior_vars, keep_mean, self.share, state.log_weights
        ahead = Lookahead(gammas_of(self.half_lives), *settings)
        cuts = [slice(i, i + _PREDICTED_ROWS) for i in range(0, len(phi), _PREDICTED_ROWS)]
        parts = [bank.predict(phi[part], gap[part], ahead) for part in cuts]
        moments = joined_steps([step for step, _ in parts])
        weights = parts[0][1] if len(parts) == 1 else np.concatenate([each for _, each in parts])
        scale = np.ones((len(phi), len(self.half_lives)))
        if self.learn_scale:
            scale *= self.scale(state)
        grids = state.half_lives, state.calibrations, state.prior_scales
        report = moments, weights, np.full(len(phi), np.nan), scale
        return check.trusted(MixtureStep, *report, *grids, None)

    def _how(self, state: MixtureState, rows: Rows) -> How:
        """How the filters forget and observe."""
        prior_vars = prior_vars_of(state.prior_scales, rows.prior_var, state.dtype)
        likelihoods = codes_of(state.likelihoods, rows.targets.labels is not None)
        return How(gammas_of(self.half_lives) ** rows.gap, prior_vars, likelihoods)

    # ---- late targets ---------------------------------------------------------------------

    def step_events(
        self,
        state: MixtureState,
        features: Array,
        targets: Any,
        weight: Array,
        events: Events,
        *,
        noise_var: float,
        prior_var: float,
    ) -> tuple[MixtureState, MixtureStep, BankStep]:
        """Predict rows, and learn those whose targets come; see `JudgingPolicy.step_events`."""
        chunk = LateChunk(features, targets, weight, events, noise_var, prior_var)
        return step_events(self, state, chunk)

    def late_judge(self, state: MixtureState, sizes: Sizes) -> LateJudge:
        """A judge by the predictions that are made from now on; it begins with the weights now."""
        return LateJudge.start(state.log_weights, state.spread, sizes)

    def judge(
        self,
        judge: LateJudge,
        rows: LateRows,
        step: MixtureStep,
        far: BankStep,
        *,
        noise_var: float,
        n_targets: int,
    ) -> tuple[LateJudge, MixtureStep, Judged]:
        """Weigh the filters by their earlier predictions; see `JudgingPolicy.judge`."""
        return judged(self, judge, rows, step, far, noise_var, n_targets)

    def judged_late(self, state: MixtureState, judge: LateJudge) -> MixtureState:
        """The state with the weights of a late judge."""
        return replace(state, log_weights=judge.log_weights, spread=judge.spread)

    def scale(self, state: MixtureState) -> Array:
        """What the variances of each filter are multiples of (J,)."""
        self.check_state(state)
        if not self.learn_scale:
            return np.ones(len(state.half_lives))
        with np.errstate(invalid="ignore"):
            return state.spread[:, 1] / state.spread[:, 0]

    def freedom(self, state: MixtureState) -> float:
        """How many targets the scale is known from."""
        return float(state.spread[0, 0])

    # ---- the drift alarm ------------------------------------------------------------------

    @property
    def watched(self) -> Array:
        """Half-life of each filter (J,), shortest first."""
        return _sorted(tuple(self.half_lives))

    def first_belief(self) -> Array:
        """All filters alike (J,)."""
        return np.full(self.n_filters, 1.0 / self.n_filters)

    def belief(
        self, step: MixtureStep, time_gap: Array | None, transition: str, before: Array
    ) -> tuple[Array, Array]:
        """Weight and relative variance of each filter (b, J), shortest half-life first."""
        from kalstream.core._kernels.mixture import watched_rows

        return watched_rows(step.weights, step.relative_variance, _order_of(step.half_lives))

    def evidence(self, step: MixtureStep) -> Array:
        """Log predictive of each row's target under each filter (b, J), in the same order."""
        if step.evidence is None:
            raise InvalidInput(
                "the step is of a prediction, without evidence; pass one that learned"
            )
        return np.take(step.evidence, _order_of(step.half_lives), axis=1)


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    """A sequence of words or numbers; one number is a sequence of one."""
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return check.sequence(name, value if np.ndim(value) else [value])


def _order(value: Any) -> int | tuple[int, ...]:
    """One order of motion, or one for each filter."""
    if isinstance(value, Sequence | np.ndarray) and np.ndim(value) == 1:
        return tuple(check_order(each) for each in value)
    return check_order(value)


@lru_cache
def _order_of(half_lives: tuple[float, ...]) -> Array:
    """Indices of the filters (J,), shortest half-life first."""
    return np.argsort(half_lives, kind="stable")


@lru_cache
def _sorted(half_lives: tuple[float, ...]) -> Array:
    """Half-lives (J,), shortest first; not to be changed."""
    return np.sort(half_lives)
