"""The short way of a single row of a regression: mixture and watch in one compiled call.

`Mixture.step_chunk` and `Watch.after` are the reference; tests/estimators/test_single_values.py
compares. What is unusual is left to them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.alarm import Watch
from kalstream.core.bank import FEW_FEATURES, Bank
from kalstream.core.guard import ROUNDING_LIMITS
from kalstream.core.mixture import Mixture, MixtureState
from kalstream.core.mixture.grids import gammas_of, prior_vars_of
from kalstream.core.state import BankStep, Room, pending_capacity

Array = NDArray[Any]

_EPSILON: Final = float(np.finfo(np.float64).eps)


def learn_value(
    policy: Mixture,
    state: Any,
    watch: Watch,
    phi: Array,
    target: Array,
    *,
    came: int,
    noise_var: float,
    prior_var: float,
    farthest: float,
) -> tuple[MixtureState, Watch, BankStep, Array] | None:
    """State, watch and step after a row (1, m) with a target (K,), and what was predicted (2, K).

    The prediction is mean and variance, noise included. ``came`` is the number of the row; one
    whose squared deviation is more than ``farthest`` variances in all filters goes the long way, as
    does all that is unusual: then the result is None.
    """
    from kalstream.core._kernels.value_row import learn_value as learned

    bank, m = state.bank, state.n_features
    if type(bank) is not Bank or state.dtype != np.float64 or m > FEW_FEATURES:
        return None
    n_rows = 0 if bank.rows is None else bank.rows.shape[1]
    if n_rows == pending_capacity(m):
        return None
    times_cov, times_mean, lossy = bank.remembered(phi)
    if lossy:
        return None
    bank.lend()
    room = bank.room
    if room is None or not room.claim(n_rows):
        size = (len(bank.scales),), pending_capacity(m), (m, state.n_outputs)
        room = Room(*size, np.float64)
        if n_rows:
            room.rows[:, :n_rows], room.coefficients[:, :n_rows] = bank.rows, bank.coefficients
        room.claim(n_rows)
    gammas = gammas_of(policy.half_lives)
    changed = (
        *(bank.scales.copy(), state.log_weights.copy(), state.spread.copy(), watch.usual.copy()),
        *(watch.levels.copy(), watch.gains.copy(), watch.odds.copy(), watch.numbers.copy()),
    )
    filters = (
        *(gammas, prior_vars_of(state.prior_scales, prior_var, state.dtype)),
        *(np.array(state.prior_scales), policy.watched, _order_of(tuple(policy.half_lives))),
    )
    mean, var, nis, belief, out, sound = learned(
        *(phi, target, came, (times_cov, times_mean)),
        *((bank.arrays.cov, room.rows, room.coefficients), n_rows, filters, changed),
        *(noise_var, policy.share, policy.learn_scale, farthest, _EPSILON, ROUNDING_LIMITS),
    )
    if not sound:
        return None
    scales, log_weights, spread, *watched = changed
    pending = room.rows[:, : n_rows + 1], room.coefficients[:, : n_rows + 1]
    after = check.trusted(
        MixtureState,
        *(Bank(bank.stored, scales, *pending, room), state.half_lives, state.calibrations),
        *(log_weights, state.seen, spread, state.likelihoods, state.prior_scales),
    )
    step = BankStep(mean, var, gammas.copy(), np.full(var.shape, noise_var), nis)
    return after, Watch(belief, *watched), step, out


@lru_cache
def _order_of(half_lives: tuple[float, ...]) -> Array:
    """Indices of the filters (J,), shortest half-life first."""
    return np.argsort(half_lives, kind="stable")
