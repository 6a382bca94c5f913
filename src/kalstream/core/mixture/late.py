"""A mixture whose targets are late: predict and learn in turn, and judge by earlier predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.bank import Filters, joined_steps
from kalstream.core.chunk import Rows
from kalstream.core.judging import Events, Judged, LateChunk, LateJudge, LateRows, in_turn
from kalstream.core.mixture.grids import gammas_of, grid_of, prior_vars_of
from kalstream.core.mixture.state import MixtureState
from kalstream.core.mixture.step import MixtureStep
from kalstream.core.state import DEFERRED_ROWS, BankStep

if TYPE_CHECKING:
    from kalstream.core.mixture.policy import Mixture

Array = NDArray[Any]

_NOT_EXACT: Final = np.empty((0, 0, 0))


def step_events(
    policy: Mixture, state: MixtureState, chunk: LateChunk
) -> tuple[MixtureState, MixtureStep, BankStep]:
    """`JudgingPolicy.step_events` of a mixture."""
    events, prior_var = chunk.events, chunk.prior_var
    decays = max(state.orders) == 1  # if it does, time moves moments in a closed form
    if decays and events.asked.all():
        step = policy.predict(state, chunk.features, prior_var=prior_var, time_gap=0.0)
        near, far = _ahead_of(policy, step.bank, chunk.features, events, state, prior_var)
        grids = step.half_lives, step.calibrations, step.prior_scales
        report = near, step.weights, step.log_prob, step.scale, *grids, None
        return state, check.trusted(MixtureStep, *report), far
    # A row that is only asked for changes nothing if no time passes before it.
    gap = np.where(events.asked, 0.0, events.gap)
    rows = Rows.read(state, **(chunk[:] | {"time_gap": gap}))
    chunk.features = rows.features
    if decays:
        bank, moments = _moments(policy, state, rows, chunk)
        near, far = _ahead_of(policy, moments, rows.features, events, state, prior_var)
    else:
        bank, near, far = _in_runs(policy, state, chunk)
    return *policy._weighed(state, bank, near, rows), far


def _moments(
    policy: Mixture, state: MixtureState, rows: Rows, chunk: LateChunk
) -> tuple[Any, BankStep]:
    """The filters after all events, and moments of rows before any time has passed."""
    n_targets, made = int((~chunk.events.asked).sum()), None
    if DEFERRED_ROWS < n_targets < len(chunk.events):
        made = _between(policy, state, chunk)
    return made or state.bank.run(rows, policy._how(state, rows), False)


def _in_runs(
    policy: Mixture, state: MixtureState, chunk: LateChunk
) -> tuple[Any, BankStep, BankStep]:
    """As `_moments`, run by run: the filters after all events, and moments near and far."""
    after, steps, far = in_turn(policy, state, chunk)
    return after.bank, joined_steps([step.bank for step in steps]), far


def _between(
    policy: Mixture, state: MixtureState, chunk: LateChunk
) -> tuple[Filters, BankStep] | None:
    """Learn the rows whose targets come in blocks, and predict the others in between."""
    tells, asked = np.flatnonzero(~chunk.events.asked), np.flatnonzero(chunk.events.asked)
    rows = Rows.read(state, **chunk[tells])
    how, places = policy._how(state, rows), np.searchsorted(tells, asked)
    made = state.bank.between(rows, how, chunk.features[asked], places)
    if made is None:
        return None
    bank, step, mean, var = made
    n_filters, n = len(mean), len(chunk.events)
    moments = np.empty((n_filters, n, mean.shape[2])), np.empty((n_filters, n))
    moments[0][:, asked], moments[1][:, asked] = mean, var
    moments[0][:, tells], moments[1][:, tells] = step.logit_mean, step.logit_var
    rest = np.ones((n_filters, n)), np.full((n_filters, n), np.inf)
    nis = np.full((n_filters, n), np.nan)
    rest[0][:, tells], rest[1][:, tells], nis[:, tells] = step.gamma, step.noise_var, step.nis
    return bank, BankStep(*moments, *rest, nis)


def _ahead_of(
    policy: Mixture,
    step: BankStep,
    features: Array,
    events: Events,
    state: MixtureState,
    prior_var: float,
) -> tuple[BankStep, BankStep]:
    """Moments of rows that are asked for, one step ahead and as far as they are, eq. (7)."""
    from kalstream.core._kernels.judging import look_far

    if len(events.slot[events.asks]) == 0:
        return step, step
    phi = features.astype(np.float64, copy=False)
    prior_vars = prior_vars_of(state.prior_scales, prior_var, state.dtype)
    moments = step.logit_mean, step.logit_var, step.gamma

    def after(gap: Array) -> BankStep:
        how = events.asked, gap, phi, prior_vars, gammas_of(policy.half_lives)
        mean, var, gamma = look_far(*how, *moments)
        return BankStep(mean, var, gamma, step.noise_var, step.nis)

    return after(events.step), after(events.gap)


def judged(
    policy: Mixture,
    judge: LateJudge,
    rows: LateRows,
    step: MixtureStep,
    far: BankStep,
    noise_var: float,
    n_targets: int,
) -> tuple[LateJudge, MixtureStep, Judged]:
    """`JudgingPolicy.judge` of a mixture."""
    from kalstream.core._kernels.judging import exact_kept, judge_rows
    from kalstream.core.softmax_integral import table, workspace

    events, kept, targets, weight = rows.events, rows.kept, rows.targets, rows.weight
    kept.write(events, far)
    log_weights, spread = judge.log_weights.copy(), judge.spread.copy()
    beside = judge.beside.copy()
    labels, dense = targets.arrays()
    grid, exact = grid_of(step.calibrations, policy.n_filters), _NOT_EXACT
    if policy.predictive == "exact" and targets.labels is not None:
        predictions = kept.means, kept.variances, kept.active, kept.said
        labelled = events.asked, events.slot, labels, weight
        exact = exact_kept(*labelled, *predictions, grid, (*table(), workspace()))
    weights, shares, scale, log_prob, evidence, rates = judge_rows(
        *(events.asked, events.slot, events.gap, events.lag),
        *(labels, dense, noise_var, weight),
        (far.logit_mean, far.logit_var),
        (
            *(kept.means, kept.variances, kept.active, kept.experts),
            *(kept.spread, kept.n_targets, kept.said),
        ),
        grid,
        gammas_of(policy.half_lives)[:, 0],
        policy.share,
        exact,
        policy.learn_scale and targets.labels is None,
        n_targets,
        *(log_weights, beside, spread),
    )
    after = LateJudge(log_weights, spread, beside, judge.beliefs, judge.since)
    grids = step.half_lives, step.calibrations, step.prior_scales
    late = check.trusted(MixtureStep, far, weights, log_prob, scale, *grids, evidence)
    return after, late, Judged(shares, rates, policy.share)
