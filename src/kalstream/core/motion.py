"""Filters whose weights move with a velocity: Matérn processes of order 1, 2 or 3.

The equations are in core/README.md, "Motion"; `motion_reference` is the plain version. In short, a
`MotionBank` keeps the state of its filters at one time, the base, and the rows that were learned
since then. A row reads the base once, and no covariance is written until the rows are folded into
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import blas

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core._threads import OneThread
from kalstream.core.bank import BankArrays, How, Lookahead, OneOrder, joined_steps
from kalstream.core.chunk import Rows, block_rows
from kalstream.core.guard import ROUNDING_LIMITS, check_innovations
from kalstream.core.motion_reference import (
    check_order,
    correlation,
    process_noise,
    rate_of,
    stationary_cov,
    transition_matrix,
)
from kalstream.core.state import (
    DEFERRED_ROWS,
    BankStep,
    Claims,
    Posterior,
    _add_product,
    _subtract_square,
    pending_capacity,
)
from kalstream.errors import InvalidInput

_EPSILON: Final = {np.dtype(t): float(np.finfo(t).eps) for t in (np.float32, np.float64)}
# Products of up to this many predicted rows are kept, for when these rows are learned.
_REMEMBERED_ROWS: Final = 16
# Rows predicted at a time, so that memory stays bounded.
_PREDICTED_ROWS: Final = 256
# Up to this many rows a compiled loop is faster than BLAS.
_FEW_PRODUCTS: Final = 4
# Up to this size of a state compiled loops fold all filters faster than several BLAS calls each.
_SMALL_STATE: Final = 64


@dataclass(slots=True)
class Pending:
    """Rows that were learned since the base; the J filters have the same rows. All float64.

    Attributes
    ----------
    ages : (r,)
        Time since each row.
    features : (r, m)
    gains : (J, r, p m)
        Covariance of the base's state with each row.
    factor : (J, r, r)
        Cholesky factor of the covariance of the targets; the lower triangle is used.
    innovations : (J, r, K)
        Residuals divided by their standard deviation.
    noise : (J, r, p)
        Covariance of the process noise since the base with its first entry, at each row.
    room : _MotionRoom or None
        The buffers that all but ages are the beginning of.
    """

    ages: Array
    features: Array
    gains: Array
    factor: Array
    innovations: Array
    noise: Array
    room: _MotionRoom | None = None

    def __len__(self) -> int:
        return len(self.ages)

    def arrays(self) -> tuple[Array, ...]:
        """All but ages, for compiled code: whole buffers, so that a view is never passed.

        Compiled code adds the numbers of a view in another order.
        """
        if self.room is not None:
            return self.room.buffers
        return self.features, self.gains, self.factor, self.innovations, self.noise

    def with_innovations(self, innovations: Array) -> Pending:
        """The same rows with the innovations of other outputs (J, r, K)."""
        dense = np.ascontiguousarray
        rest = dense(self.features), dense(self.gains), dense(self.factor)
        return Pending(self.ages, *rest, innovations, dense(self.noise))


class _MotionRoom(Claims):
    """Buffers for pending rows.

    Attributes
    ----------
    buffers : features, gains, factor, innovations and noise of `Pending`
    """

    __slots__ = ("buffers",)

    def __init__(self, capacity: int, shape: tuple[int, int, int], order: int) -> None:
        n_filters, size, n_outputs = shape
        self.buffers = (
            np.zeros((capacity, size // order)),
            np.zeros((n_filters, capacity, size)),
            np.zeros((n_filters, capacity, capacity)),
            np.zeros((n_filters, capacity, n_outputs)),
            np.zeros((n_filters, capacity, order)),
        )
        super().__init__()

    @property
    def capacity(self) -> int:
        """Most rows that it can hold."""
        return len(self.buffers[0])

    def pending(self, ages: Array) -> Pending:
        """The first rows as `Pending`, with ages (r,)."""
        n = len(ages)
        features, gains, factor, innovations, noise = self.buffers
        parts = features[:n], gains[:, :n], factor[:, :n, :n], innovations[:, :n], noise[:, :n]
        return Pending(ages, *parts, self)


@final
@dataclass(slots=True)
class MotionBank(OneOrder):
    """J filters of one order on the same features. Immutable to the caller, as `Bank`.

    Attributes
    ----------
    stored : BankArrays, or None once given away
        The base: mean (J, p m, K) and cov (J, p m, p m).
    order : int
        p: 1, 2 or 3.
    half_lives, prior_vars : J numbers
    scales : (J, 2)
        Largest prior variance that the filter ever had, and number of times its covariance was
        rounded; past roundings count less, by the same factor as the covariance.
    elapsed : float
        Time since the base.
    pending : Pending or None
        Rows that were learned since then.
    memo : list of at most one (features, times_cov, times_mean)
        Products that a prediction left behind; a list, since its pop is atomic between threads.

    Examples
    --------
    >>> bank = MotionBank.start(1, 1, order=2, half_lives=50.0, prior_vars=100.0)
    >>> line = np.arange(20.0)[:, None]
    >>> rows = Rows.read(bank, np.ones((20, 1)), line, noise_var=0.01, prior_var=100.0)
    >>> how = How(np.ones((1, 20)), np.array([100.0]), np.array([0]))
    >>> bank, step = bank.run(rows, how, donate=False)
    >>> ahead = Lookahead(np.ones((1, 1)), how.prior_vars, False, 0.0, np.zeros((1, 1)))
    >>> step, _ = bank.predict(np.ones((1, 1)), np.array([2.0]), ahead)
    >>> round(float(step.logit_mean[0, 0, 0]))  # 19 is the last, and the weight grows by 1 a row
    21
    """

    stored: BankArrays | None
    order: int
    half_lives: tuple[float, ...]
    prior_vars: tuple[float, ...]
    scales: Array
    elapsed: float = 0.0
    pending: Pending | None = None
    memo: list[tuple[Array, Array, Array]] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        n_features: int,
        n_outputs: int,
        *,
        order: int,
        half_lives: ArrayLike,
        prior_vars: ArrayLike,
        dtype: Any = np.float64,
    ) -> MotionBank:
        """Filters before any data; one half-life and one prior variance for each, or one for all.

        Examples
        --------
        >>> MotionBank.start(3, 2, order=2, half_lives=[10.0, 100.0], prior_vars=1.0).n_features
        3
        """
        m, k = check.count("n_features", n_features), check.count("n_outputs", n_outputs)
        kind, order = check.float_dtype(dtype), check_order(order)
        lives, variances = np.broadcast_arrays(
            np.atleast_1d(check.numeric("half_lives", half_lives)),
            np.atleast_1d(check.numeric("prior_vars", prior_vars)),
        )
        _rates(order, tuple(lives.tolist()))  # checks the half-lives
        each = [check.variance("prior_vars", float(value), kind) for value in variances]
        cov = np.stack([np.kron(v * stationary_cov(order), np.eye(m)) for v in each]).astype(kind)
        mean = np.zeros((len(each), order * m, k), kind)
        scales = np.column_stack([each, np.ones(len(each))])
        arrays = BankArrays(mean, cov, full=True)
        return cls(arrays, order, tuple(lives.tolist()), tuple(each), scales)

    @property
    def n_filters(self) -> int:
        """Number of filters, J."""
        return len(self.half_lives)

    @property
    def n_features(self) -> int:
        """Number of features, m."""
        return int(self.arrays.mean.shape[1]) // self.order

    @property
    def rates(self) -> Array:
        """Rate l of each filter (J,), per unit of time."""
        return _rates(self.order, self.half_lives)

    @property
    def priors(self) -> Array:
        """Prior variance of each filter (J,)."""
        return _array(self.prior_vars)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept from row to row."""
        kept = [self.arrays.mean, self.arrays.cov, self.scales]
        if self.pending is not None:
            kept += self.pending.arrays()
        return sum(array.nbytes for array in kept)

    @property
    def orders(self) -> tuple[int, ...]:
        """Order of each filter (J,)."""
        return (self.order,) * self.n_filters

    def fits(self, half_lives: tuple[float, ...]) -> bool:
        """Whether these are the half-lives."""
        return self.half_lives == half_lives

    def run(self, rows: Rows, how: How, donate: bool) -> tuple[MotionBank, BankStep]:
        """Advance all filters over all rows; the bank is untouched if anything fails.

        The prior variances of ``how`` count from now on. Its gammas are only reported: the
        half-lives are those of the bank. The prior_var of ``rows`` is not used.
        """
        check.flag("donate", donate)
        refuse_keep_mean(rows.keep_mean, self.order)
        current = self.with_prior(how.prior_vars)
        n, m = rows.features.shape
        size, steps, start = block_rows(m), [], 0
        while start < n:
            part = slice(start, min(start + size, n))
            own = current.stored is not self.stored
            current, step = _advance(current, rows, how, part, own, donate)
            start += step.gamma.shape[1]
            steps.append(step)
        if donate:
            self.stored = None
        elif current.stored is self.stored:
            self.lend()
        return current, joined_steps(steps)

    def predict(self, features: Array, gap: Array, ahead: Lookahead) -> tuple[BankStep, Array]:
        """Step and weights of rows, each predicted as if it were the next one.

        The prior variances of ``ahead`` count from then on. The bank is not touched.
        """
        from kalstream.core._kernels.motion import predict_motion_rows

        refuse_keep_mean(ahead.keep_mean, self.order)
        bank = self.with_prior(ahead.prior_vars)
        means, variances = [], []
        for start in range(0, len(features), _PREDICTED_ROWS):
            phi = features[start : start + _PREDICTED_ROWS]
            mean, var = predict_motion_rows(
                *bank.foreseen(phi),
                np.ascontiguousarray(phi, np.float64),
                gap[start : start + _PREDICTED_ROWS],
                bank.elapsed,
                bank.rates,
                bank.priors,
                *bank.past(),
            )
            means.append(mean)
            variances.append(var)
        mean = means[0] if len(means) == 1 else np.concatenate(means, axis=1)
        var = variances[0] if len(means) == 1 else np.concatenate(variances, axis=1)
        unknown = np.full(var.shape, np.inf), np.full(var.shape, np.nan)
        return BankStep(mean, var, ahead.gammas**gap, *unknown), ahead.weights(gap)

    def posterior(self, j: int) -> Posterior:
        """Weights of filter j now, without their derivatives."""
        mean, cov = self.moments(j, 1)
        return Posterior(mean, cov)

    def moments(self, j: int, n_components: int | None = None) -> tuple[Array, Array]:
        """Mean (c m, K) and covariance (c m, c m) of the first c components of filter j, now."""
        order, m = self.order, self.n_features
        c = order if n_components is None else n_components
        tau, prior_var = float(self.rates[j]) * self.elapsed, self.prior_vars[j]
        F = transition_matrix(order, tau)
        base_mean = self.arrays.mean[j].astype(np.float64).reshape(order, m, -1)
        base_cov = self.arrays.mirrored()[j].astype(np.float64).reshape(order, m, order, m)
        mean = np.einsum("ab,bmk->amk", F[:c], base_mean).reshape(c * m, -1)
        cov = np.einsum("ab,bmcn,dc->amdn", F[:c], base_cov, F[:c], optimize=True)
        cov = cov.reshape(c * m, c * m) + np.kron(
            prior_var * process_noise(order, tau)[:c, :c], np.eye(m)
        )
        if self.pending is not None:
            gains = self._gains(j, F, self.pending, c)
            mean += gains.T @ self.pending.innovations[j]
            cov -= gains.T @ gains
        return mean.astype(self.dtype), ((cov + cov.T) / 2.0).astype(self.dtype)

    def add_outputs(self, n_outputs: int) -> MotionBank:
        """Grow by outputs never seen, exactly; see `state.add_outputs`."""
        columns = ((0, 0), (0, 0), (0, check.count("n_outputs", n_outputs)))
        return self._with_outputs(lambda array: np.pad(array, columns))

    def keep_outputs(self, columns: Array) -> MotionBank:
        """The bank with these outputs only (K',), in this order: exact, outputs are independent."""
        return self._with_outputs(lambda array: array.take(columns, 2))

    def _with_outputs(self, change: Any) -> MotionBank:
        """Apply a change to all arrays whose last axis is over outputs."""
        self.lend()
        arrays, pending = self.arrays, self.pending
        if pending is not None:
            pending = pending.with_innovations(change(pending.innovations))
        beside = BankArrays(
            change(arrays.mean), arrays.cov, lent=True, full=arrays.full, spares=arrays.spares
        )
        return self._after(beside, pending=pending, elapsed=self.elapsed)

    def add_features(self, n_features: int, prior_vars: Array) -> MotionBank:
        """Add features that were 0 in all rows so far, as if they had been there from the start.

        Each filter has a prior variance of its own (J,).
        """
        bank = self.folded(own=False)
        order, m, new = self.order, self.n_features, check.count("n_features", n_features)
        n_filters, _, n_outputs = bank.arrays.mean.shape
        mean = np.zeros((n_filters, order, m + new, n_outputs), bank.dtype)
        cov = np.zeros((n_filters, order, m + new, order, m + new), bank.dtype)
        mean[:, :, :m] = bank.arrays.mean.reshape(n_filters, order, m, n_outputs)
        cov[:, :, :m, :, :m] = bank.arrays.mirrored().reshape(n_filters, order, m, order, m)
        stationary = stationary_cov(order)
        for k in range(m, m + new):
            cov[:, :, k, :, k] = prior_vars[:, None, None] * stationary
        size = order * (m + new)
        arrays = BankArrays(
            mean.reshape(n_filters, size, n_outputs), cov.reshape(n_filters, size, size), full=True
        )
        scales = bank.scales.copy()
        scales[:, 0] = np.maximum(scales[:, 0], prior_vars)
        return bank._after(arrays, scales=scales)

    def with_prior(self, prior_vars: Array) -> MotionBank:
        """The same filters, which from now on move towards these prior variances (J,)."""
        each = tuple(prior_vars.tolist())
        if each == self.prior_vars:
            return self
        bank = self.folded(own=False)
        scales = bank.scales.copy()
        scales[:, 0] = np.maximum(scales[:, 0], prior_vars)
        bank.lend()
        return bank._after(bank.arrays, scales=scales, prior_vars=each)

    def _after(
        self,
        arrays: BankArrays,
        *,
        scales: Array | None = None,
        prior_vars: tuple[float, ...] | None = None,
        elapsed: float = 0.0,
        pending: Pending | None = None,
    ) -> MotionBank:
        """The same filters with other contents."""
        return MotionBank(
            arrays,
            self.order,
            self.half_lives,
            self.prior_vars if prior_vars is None else prior_vars,
            self.scales if scales is None else scales,
            elapsed,
            pending,
        )

    def products(self, features: Array) -> tuple[Array, Array]:
        """Products of features (b, m) with each component of the base's state.

        Returns A_0 (I (x) phi) as (J, b, p, p m), and M_0 likewise as (J, b, p, K), both float64.
        They do not depend on times.
        """
        arrays, order = self.arrays, self.order
        n_filters, size, n_outputs = arrays.mean.shape
        n, m = features.shape
        if n <= _FEW_PRODUCTS:
            from kalstream.core._kernels.motion import motion_products

            wide = np.ascontiguousarray(features, np.float64)
            return motion_products(wide, arrays.mirrored(), arrays.mean, order)
        times_cov = np.empty((n_filters, n, order, size), self.dtype)
        times_mean = np.empty((n_filters, n, order, n_outputs), self.dtype)
        cov = arrays.mirrored().reshape(n_filters, order, m, size)
        mean = arrays.mean.reshape(n_filters, order, m, n_outputs)
        with OneThread(2.0 * n * n_filters * size * size):
            np.matmul(features, cov, out=times_cov.transpose(0, 2, 1, 3))
            np.matmul(features, mean, out=times_mean.transpose(0, 2, 1, 3))
        if self.dtype == np.float64:
            return times_cov, times_mean
        return times_cov.astype(np.float64), times_mean.astype(np.float64)

    def remembered(self, features: Array) -> tuple[Array, Array]:
        """`products`, taken from a prediction of the same rows if there was one."""
        try:
            known, times_cov, times_mean = self.memo.pop()
        except IndexError:
            return self.products(features)
        if known.shape == features.shape and (known == features).all():
            return times_cov, times_mean
        return self.products(features)

    def foreseen(self, features: Array) -> tuple[Array, Array]:
        """`products` of rows to be predicted, kept for when these rows are learned."""
        products = self.products(features)
        if len(features) <= _REMEMBERED_ROWS:
            self.memo[:] = [(features.copy(), *products)]
        return products

    def past(self) -> tuple[Any, ...]:
        """Number and arrays of the pending rows, for compiled code."""
        if self.pending is None:
            return 0, (np.empty(0), *_nothing(self.arrays.mean.shape, self.order))
        return len(self.pending), (self.pending.ages, *self.pending.arrays())

    def folded(self, *, own: bool) -> MotionBank:
        """The same filters with the base at the time now, and nothing pending.

        If ``own`` the arrays are overwritten, and this bank cannot be used afterwards.
        """
        if self.pending is None and self.elapsed == 0.0:
            return self
        arrays = self.arrays
        cov = arrays.mirrored()
        after = arrays if own and not arrays.lent else arrays.blank()
        ceilings = np.repeat(self.scales[:, :1] * _variances(self.order), self.n_features, axis=1)
        if ceilings.shape[1] <= _SMALL_STATE:
            from kalstream.core._kernels.motion import fold_small

            settings = self.elapsed, self.rates, self.priors, ceilings
            fold_small(arrays.mean, cov, *settings, *self.past(), after.mean, after.cov)
        else:
            with OneThread(64.0 * cov[0].size):
                for j, most in enumerate(ceilings):
                    self._fold(j, arrays.mean[j], cov[j], most, after.mean[j], after.cov[j])
        after.full = True
        scales = self.scales.copy()
        for j, rate in enumerate(self.rates.tolist()):
            scales[j, 1] *= correlation(self.order, min(rate * self.elapsed, 1e3)) ** 2
        scales[:, 1] += 1.0
        return self._after(after, scales=scales)

    def _fold(
        self, j: int, mean: Array, cov: Array, most: Array, out_mean: Array, out_cov: Array
    ) -> None:
        """Write filter j as of now, with variances of at most ``most`` (p m,)."""
        from kalstream.core._kernels.bank import mirror
        from kalstream.core._kernels.motion import move_cov, move_mean

        tau = float(self.rates[j]) * self.elapsed
        F = transition_matrix(self.order, tau)
        if tau > 0.0:
            move_mean(mean, F, out_mean)
            move_cov(cov, F, self.prior_vars[j] * process_noise(self.order, tau), out_cov)
        elif out_cov is not cov:
            np.copyto(out_mean, mean)
            np.copyto(out_cov, cov)
        if self.pending is not None:
            gains = self._gains(j, F, self.pending, self.order).astype(self.dtype, copy=False)
            innovations = self.pending.innovations[j].astype(self.dtype, copy=False)
            _subtract_square(out_cov.T, 1.0, gains, 1.0)
            _add_product(out_mean, gains, innovations, 1.0)
        if tau > 0.0:
            # In exact arithmetic no variance exceeds the largest prior; rounding must not either.
            diagonal = np.einsum("ii->i", out_cov)
            np.minimum(diagonal, most.astype(self.dtype), out=diagonal)
        mirror(out_cov[None])

    def _gains(self, j: int, F: Array, pending: Pending, n_components: int) -> Array:
        """Scaled gains (r, c m) of the pending rows for the first c components of the state."""
        from kalstream.core._kernels.motion import state_covariances

        n = len(pending)
        features, gains, factor, _, noise = pending.arrays()
        out = np.empty((n, n_components * self.n_features))
        settings = F, float(self.rates[j]), self.prior_vars[j], n, pending.ages, features
        state_covariances(*settings, gains[j], noise[j], n_components, out)
        system = np.ascontiguousarray(factor[j, :n, :n])
        return blas.dtrsm(1.0, system.T, out.T, side=1, lower=0, overwrite_b=1).T

    def room_for(self, n_rows: int) -> tuple[_MotionRoom, Array]:
        """Room behind the pending rows for ``n_rows`` more, and a copy of their ages."""
        start = 0 if self.pending is None else len(self.pending)
        room = None if self.pending is None else self.pending.room
        if room is None or room.capacity < start + n_rows or not room.claim(start):
            capacity = max(start + n_rows, _capacity(self))
            room = _MotionRoom(capacity, self.arrays.mean.shape, self.order)
            if self.pending is not None:
                old, here = self.pending, room.pending(self.pending.ages)
                here.features[:], here.gains[:], here.factor[:] = (
                    old.features,
                    old.gains,
                    old.factor,
                )
                here.innovations[:], here.noise[:] = old.innovations, old.noise
            room.claim(start)
        ages = np.zeros(room.capacity)
        if self.pending is not None:
            ages[:start] = self.pending.ages
        return room, ages


def refuse_keep_mean(keep_mean: bool, order: int) -> None:
    """Raise an error if the mean is to stay where it is."""
    if keep_mean:
        raise InvalidInput(
            f"keep_mean=True with order={order}: a weight with a velocity has a mean that moves "
            "too; pass keep_mean=False, or order=1"
        )


def _advance(
    bank: MotionBank, rows: Rows, how: How, part: slice, own: bool, donate: bool
) -> tuple[MotionBank, BankStep]:
    """Advance over as many rows of a part as one block can hold, at least one."""
    from kalstream.core._kernels.motion import scan_motion

    phi, here = rows.features[part], rows[part]
    few = len(phi) <= DEFERRED_ROWS
    if not few:
        before = bank
        bank = bank.folded(own=own)
        own = own or bank.stored is not before.stored
    wide = np.ascontiguousarray(phi, np.float64)
    while True:
        room, ages = bank.room_for(len(phi))
        n_past = 0 if bank.pending is None else len(bank.pending)
        done, unsound, learned, elapsed, mean, var, nis, noise_vars, rounding = scan_motion(
            *bank.remembered(phi),
            wide,
            here.observed(),
            here.gap,
            bank.elapsed,
            bank.rates,
            bank.priors,
            how.likelihoods,
            bank.arrays.cov,
            bank.scales,
            _EPSILON[bank.dtype],
            ROUNDING_LIMITS,
            n_past,
            (ages, *room.buffers),
        )
        if unsound >= 0 and done > 0:
            check_innovations(
                var[unsound, :done],
                noise_vars[unsound, :done],
                rounding[unsound, :done],
                bank.dtype,
                folds=bank.scales[unsound, 1],
                first_row=part.start,
            )
        if done > 0:
            break
        before = bank
        bank = bank.folded(own=own)  # the first row would lose digits
        own = own or bank.stored is not before.stored
    moments = mean[:, :done], var[:, :done]
    gammas = how.gammas[:, part.start : part.start + done]
    step = BankStep(*moments, gammas, noise_vars[:, :done], nis[:, :done])
    pending = room.pending(ages[:learned].copy()) if learned else None
    after = bank._after(bank.arrays, elapsed=elapsed, pending=pending)
    full = learned > _capacity(bank)
    if not few or full or done < len(phi):
        last = part.start + done == len(rows.gap)
        after = after.folded(own=own or (donate and last))
    return after, step


def _capacity(bank: MotionBank) -> int:
    """How many rows may be pending; more than in a bank of order 1, since a fold costs more."""
    return max(32, pending_capacity(bank.arrays.mean.shape[1]))


def _nothing(shape: tuple[int, ...], order: int) -> tuple[Array, ...]:
    """Buffers without rows."""
    return _MotionRoom(0, (shape[0], shape[1], shape[2]), order).buffers


@lru_cache
def _rates(order: int, half_lives: tuple[float, ...]) -> Array:
    """Rates (J,) of half-lives; not to be changed."""
    return np.array([rate_of(order, value) for value in half_lives])


@lru_cache
def _array(values: tuple[float, ...]) -> Array:
    """Numbers as an array; not to be changed."""
    return np.array(values)


@lru_cache
def _variances(order: int) -> Array:
    """Stationary variance of each component (p,), if prior_var = 1; not to be changed."""
    return stationary_cov(order).diagonal()
