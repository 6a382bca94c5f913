"""A bank: several filters on the same features, so that one compiled call advances all of them.

A mixture runs on it. The state is that of `state.Posterior` with a leading axis over filters.
Every number is the one that J separate posteriors would hold, up to rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self, final

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core._memory import Spares
from kalstream.core._threads import OneThread
from kalstream.core.chunk import Aside, Rows, block_rows, fixed_scanner, plan
from kalstream.core.guard import ROUNDING_LIMITS, check_innovations, rounding_error
from kalstream.core.state import (
    DEFERRED_ROWS,
    SMALLEST_SCALE,
    BankStep,
    Base,
    Posterior,
    Room,
    Stored,
    pending_capacity,
    times_symmetric,
)
from kalstream.errors import DonatedState

Array = NDArray[Any]

_EPSILON: Final = {np.dtype(t): float(np.finfo(t).eps) for t in (np.float32, np.float64)}
# Up to here compiled loops over a whole covariance are faster than BLAS over half of it.
FEW_FEATURES: Final = 320
# Products of up to this many predicted rows are kept, for when these rows are learned.
_REMEMBERED_ROWS: Final = 16


@dataclass(slots=True)
class BankArrays:
    """Q and B of the lazy form: mean (J, m, K), and cov (J, m, m). The upper triangle is used.

    ``lent`` is set, and stays so, once two banks share the arrays: neither may overwrite them.
    ``full`` is set while the lower triangle equals the upper one. Copies are made in the memory
    of ``spares``.
    """

    mean: Array
    cov: Array
    lent: bool = False
    full: bool = False
    spares: Spares = field(default_factory=Spares)

    def blank(self) -> BankArrays:
        """Arrays of the same shapes, to be overwritten; see `take`."""
        return BankArrays(
            self.spares.like(self.mean), self.spares.like(self.cov), spares=self.spares
        )

    def take(self, other: BankArrays, j: int) -> None:
        """Copy filter j of other arrays, unless it is this one."""
        if other is not self:
            np.copyto(self.mean[j], other.mean[j])
            np.copyto(self.cov[j], other.cov[j])  # of a triangle it would take longer

    def mirrored(self) -> Array:
        """Return cov with both parts; others may be reading the upper one meanwhile."""
        if not self.full:
            from kalstream.core._kernels.bank import mirror

            mirror(self.cov)
            self.full = True
        return self.cov

    def base(self, j: int) -> Base:
        """Filter j; its arrays are views."""
        return Base(self.mean[j], self.cov[j].T)


@dataclass(slots=True)
class Lookahead:
    """How the filters of a mixture forget until rows that are predicted.

    Attributes
    ----------
    gammas, prior_vars : (J, 1), (J,)
    keep_mean : bool
    share : float
    log_weights : (J, C)
        As in `Mixture` and its state.
    """

    gammas: Array
    prior_vars: Array
    keep_mean: bool
    share: float
    log_weights: Array

    def __getitem__(self, own: Array) -> Lookahead:
        """Of some of the filters."""
        parts = self.gammas[own], self.prior_vars[own]
        return Lookahead(*parts, self.keep_mean, self.share, self.log_weights[own])

    def weights(self, gap: Array) -> Array:
        """Weights of the filters (b, J, C), after times (b,) in which they may switch."""
        kept = ((1.0 - self.share) ** gap)[:, None, None]
        return kept * np.exp(self.log_weights) + (1.0 - kept) / self.log_weights.size


class Filters(ABC):
    """J filters on the same features: what a mixture runs on. Immutable to the caller."""

    __slots__ = ()

    @property
    @abstractmethod
    def n_filters(self) -> int:
        """Number of filters, J."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number of features, m."""

    @property
    @abstractmethod
    def n_outputs(self) -> int:
        """Number of outputs, K."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """float64, or float32 by choice."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept from row to row."""

    if TYPE_CHECKING:  # a field or a property

        @property
        def orders(self) -> tuple[int, ...]: ...  # noqa: D102

    @abstractmethod
    def posterior(self, j: int) -> Posterior:
        """Weights of filter j."""

    @abstractmethod
    def add_outputs(self, n_outputs: int) -> Self:
        """Grow by outputs never seen, exactly; see `state.add_outputs`."""

    @abstractmethod
    def keep_outputs(self, columns: Array) -> Self:
        """The bank with these outputs only (K',), in this order: exact, outputs are independent."""

    @abstractmethod
    def add_features(self, n_features: int, prior_vars: Array) -> Self:
        """Add features that were 0 in all rows so far; each filter has a prior variance (J,)."""

    @abstractmethod
    def run(self, rows: Rows, how: How, donate: bool) -> tuple[Self, BankStep]:
        """Advance all filters over all rows; nothing has changed if anything fails."""

    @abstractmethod
    def predict(self, features: Array, gap: Array, ahead: Lookahead) -> tuple[BankStep, Array]:
        """Step and weights (b, J, C) of rows (b, m), each predicted as if it were the next one.

        ``gap`` (b,) is the time since the last row.
        """

    def between(
        self, rows: Rows, how: How, features: Array, place: Array
    ) -> tuple[Self, BankStep, Array, Array] | None:
        """Advance all filters over all rows, and predict other rows (a, m) in between.

        ``place`` (a,) says how many rows come before each of these; it does not decrease. Also
        returns their means (J, a, K) and variances (J, a), under the posterior of that moment. None
        if digits would be lost: then the rows have to be passed one after the other.
        """
        return None

    def fits(self, half_lives: tuple[float, ...]) -> bool:
        """Whether the filters can be those of these half-lives (J,)."""
        return True


class OneOrder(Filters):
    """Filters of one order, in one `BankArrays`: `stored`, or None once given away."""

    __slots__ = ("stored",)

    stored: BankArrays | None

    @property
    def arrays(self) -> BankArrays:
        """The arrays, unless they were given away."""
        if self.stored is None:
            raise DonatedState(
                "this state was given away with donate=True; use the one that was returned"
            )
        return self.stored

    @property
    def n_outputs(self) -> int:
        """Number of outputs, K."""
        return int(self.arrays.mean.shape[2])

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64, or float32 by choice."""
        return self.arrays.mean.dtype

    def lend(self) -> None:
        """Never overwrite the arrays of this bank."""
        self.arrays.lent = True


@final
@dataclass(slots=True)
class Bank(OneOrder):
    """J posteriors on the same features. Immutable to the caller, as `Posterior`.

    Attributes
    ----------
    stored : BankArrays, or None once given away
    scales : (J, 5)
        mean_scale, scale, shift, ceiling and folds of each filter, as in `Stored`.
    rows, coefficients : (J, r, m), (J, r, K), or None
        Pending rows.
    room : Room or None
        The buffer that these are the beginning of.
    memo : list of at most one (features, times_cov, times_mean)
        Products that a prediction left behind; a list, since its pop is atomic between threads.
    """

    stored: BankArrays | None
    scales: Array
    rows: Array | None = None
    coefficients: Array | None = None
    room: Room | None = None
    memo: list[tuple[Array, Array, Array]] = field(default_factory=list)

    @classmethod
    def of(cls, priors: Sequence[Posterior]) -> Bank:
        """J posteriors, copied."""
        mean, cov = np.stack([p.mean for p in priors]), np.stack([p.cov for p in priors])
        return cls(BankArrays(mean, cov), np.tile([1.0, 1.0, 0.0, 0.0, 1.0], (len(priors), 1)))

    @property
    def n_filters(self) -> int:
        """Number of filters, J."""
        return len(self.arrays.mean)

    @property
    def orders(self) -> tuple[int, ...]:
        """Weights without a velocity (J,)."""
        return (1,) * self.n_filters

    @property
    def n_features(self) -> int:
        """Number of features, m."""
        return int(self.arrays.mean.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept from row to row."""
        kept = [self.arrays.mean, self.arrays.cov, self.scales]
        if self.room is not None:
            kept += [self.room.rows, self.room.coefficients]
        return sum(array.nbytes for array in kept)

    def posterior(self, j: int) -> Posterior:
        """Filter j as a posterior of its own; the arrays are shared."""
        self.lend()
        stored = self._filter(j, self.arrays)
        stored.base.lent = True
        return Posterior._of(stored)

    def add_outputs(self, n_outputs: int) -> Bank:
        """Grow by outputs never seen, exactly; see `state.add_outputs`."""
        columns = ((0, 0), (0, 0), (0, check.count("n_outputs", n_outputs)))
        self.lend()
        coefficients = None if self.coefficients is None else np.pad(self.coefficients, columns)
        return Bank(
            self._beside(np.pad(self.arrays.mean, columns)),
            self.scales,
            _dense(self.rows),
            coefficients,
        )

    def keep_outputs(self, columns: Array) -> Bank:
        """The bank with these outputs only (K',), in this order: exact, outputs are independent."""
        self.lend()
        coefficients = None if self.coefficients is None else self.coefficients.take(columns, 2)
        mean = self.arrays.mean.take(columns, 2)  # in C order, unlike an index: copies are alike
        return Bank(self._beside(mean), self.scales, _dense(self.rows), coefficients)

    def _beside(self, mean: Array) -> BankArrays:
        """Another mean (J, m, K) beside the same covariances."""
        arrays = self.arrays
        return BankArrays(mean, arrays.cov, lent=True, full=arrays.full, spares=arrays.spares)

    def add_features(self, n_features: int, prior_vars: Array) -> Bank:
        """Add features that were 0 in all rows so far, as if they had been there from the start.

        Each filter has a prior variance of its own (J,).
        """
        bank = self.folded(own=False)
        n_filters, m, n_outputs = bank.arrays.mean.shape
        mean = np.zeros((n_filters, m + n_features, n_outputs), bank.dtype)
        cov = np.zeros((n_filters, m + n_features, m + n_features), bank.dtype)
        mean[:, :m], cov[:, :m, :m] = bank.arrays.mean, bank.arrays.cov
        new = np.arange(m, m + n_features)
        cov[:, new, new] = prior_vars[:, None]  # the transition leaves the prior as it is
        return Bank(BankArrays(mean, cov), bank.scales)

    def run(self, rows: Rows, how: How, donate: bool) -> tuple[Bank, BankStep]:
        """Advance all filters over all rows; the bank is untouched if anything fails."""
        check.flag("donate", donate)
        n, m = rows.features.shape
        size = block_rows(m)
        current, steps, start = self, [], 0
        while start < n:
            part = slice(start, min(start + size, n))
            few = part.stop - start <= DEFERRED_ROWS and not rows.keep_mean
            # Arrays of our own may be overwritten; those we were given, only by the last write.
            own = current.stored is not self.stored
            if few:
                current, step = _few_rows(current, rows, how, part, own or donate, own)
            else:
                with OneThread(4.0 * min(n, size) * m * m):
                    current, step = _many_rows(current, rows, how, part, own or donate, own)
            start += step.gamma.shape[1]
            steps.append(step)
        if donate:
            self.stored = None
        elif current.stored is self.stored:
            self.lend()
        return current, joined_steps(steps)

    def between(
        self, rows: Rows, how: How, features: Array, place: Array
    ) -> tuple[Bank, BankStep, Array, Array] | None:
        """Advance all filters over all rows, and predict other rows in between."""
        n, m = rows.features.shape
        size = block_rows(m)
        mean = np.empty((self.n_filters, len(features), self.n_outputs))
        var, current = np.empty((self.n_filters, len(features))), self
        steps: list[BankStep] = []
        for start in range(0, n, size):
            part = slice(start, min(start + size, n))
            own = current.stored is not self.stored
            here = (place >= part.start) & ((place < part.stop) | (part.stop == n))
            aside = features[here], place[here] - part.start
            with OneThread(4.0 * min(n, size) * m * m):
                current, step, *moments = _many_rows(current, rows, how, part, own, own, aside)
            if step is None:
                return None
            mean[:, here], var[:, here] = moments
            steps.append(step)
        return current, joined_steps(steps), mean, var

    def predict(self, features: Array, gap: Array, ahead: Lookahead) -> tuple[BankStep, Array]:
        """Step and weights of rows, each predicted as if it were the next one."""
        from kalstream.core._kernels.mixture import predict_rows

        settings = ahead.prior_vars, ahead.keep_mean, ahead.share, ahead.log_weights
        made = predict_rows(*self.foreseen(features), features, ahead.gammas, gap, *settings)
        return BankStep(*made[:5]), made[5]

    def products(self, features: Array) -> tuple[Array, Array, bool]:
        """Products of features (b, m) with each covariance (J, b, m) and mean (J, b, K).

        Also whether digits were lost. See `Stored.products`.
        """
        arrays = self.arrays
        n_filters, m, n_outputs = arrays.mean.shape
        if len(features) <= DEFERRED_ROWS:
            from kalstream.core._kernels.bank import apply_all_pending, bank_products

            wide = features.astype(np.float64, copy=False)
            pending = *self.pending(), self.scales
            if m <= FEW_FEATURES and n_outputs <= FEW_FEATURES:
                return bank_products(wide, arrays.mirrored(), arrays.mean, *pending)
            times_cov = np.empty((n_filters, len(features), m))
            with OneThread(2.0 * features.size * m):
                times_mean = np.matmul(features, arrays.mean).astype(np.float64, copy=False)
                for j in range(n_filters):
                    times_cov[j] = times_symmetric(features, arrays.cov[j].T)
            return times_cov, times_mean, apply_all_pending(times_cov, times_mean, wide, *pending)
        with OneThread(2.0 * features.size * m):
            each = [self._filter(j, arrays).products(features) for j in range(n_filters)]
        return np.stack([cov for cov, _, _ in each]), np.stack([mean for _, mean, _ in each]), False

    def pending(self) -> tuple[Array, Array, int]:
        """Pending rows and coefficients as compiled code takes them, and how many they are."""
        n_rows, rows, coefficients = 0, self.arrays.cov, self.arrays.mean
        if self.rows is not None and self.coefficients is not None:
            n_rows, rows, coefficients = self.rows.shape[1], self.rows, self.coefficients
        if self.room is not None:  # not a view: compiled code would add in another order
            rows, coefficients = self.room.rows, self.room.coefficients
        return rows, coefficients, n_rows

    def remembered(self, features: Array) -> tuple[Array, Array, bool]:
        """`products`, taken from a prediction of the same rows if there was one."""
        try:
            known, times_cov, times_mean = self.memo.pop()
        except IndexError:
            return self.products(features)
        if known.shape == features.shape and (known == features).all():
            return times_cov, times_mean, False
        return self.products(features)

    def foreseen(self, features: Array) -> tuple[Array, Array]:
        """`products` of rows to be predicted, kept for when these rows are learned."""
        times_cov, times_mean, lossy = self.products(features)
        if len(features) <= _REMEMBERED_ROWS and not lossy:
            self.memo[:] = [(features.copy(), times_cov, times_mean)]
        return times_cov, times_mean

    def folded(self, *, own: bool) -> Bank:
        """The same posteriors with nothing pending.

        If ``own`` the arrays are overwritten, and this bank becomes the folded one.
        """
        if self.rows is None:
            return self
        arrays, in_place = self._writable(own)
        folded = self._folded(arrays)
        if not in_place:
            return Bank(arrays, _scales(folded))
        self.scales, self.rows, self.coefficients, self.room = _scales(folded), None, None, None
        return self

    def _folded(
        self, arrays: BankArrays, gains: Array | None = None, innovations: Array | None = None
    ) -> list[Stored]:
        """Fold what is pending, and rows to come, into arrays of `_writable`."""
        n_filters, m, _ = arrays.mean.shape
        rows: Any = [None] * n_filters if gains is None else gains
        coefficients: Any = [None] * n_filters if innovations is None else innovations
        from kalstream.core._kernels.bank import mirror

        folded, full = [], self.arrays.full
        with OneThread(64.0 * m * m):
            for j in range(n_filters):
                arrays.take(self.arrays, j)
                folded.append(self._filter(j, arrays).folded(rows[j], coefficients[j], donate=True))
                if full:  # now, while it is in the cache
                    mirror(arrays.cov[j : j + 1])
        arrays.full = full
        return folded

    def _filter(self, j: int, arrays: BankArrays) -> Stored:
        stored = Stored(arrays.base(j), *self.scales[j].tolist())
        if self.rows is not None and self.coefficients is not None:
            stored.rows, stored.coefficients = self.rows[j], self.coefficients[j]
        return stored

    def _writable(self, own: bool) -> tuple[BankArrays, bool]:
        """Arrays that may be overwritten, and whether they are ours; if not, `take` fills them."""
        arrays = self.arrays
        if own and not arrays.lent:
            arrays.full = False
            return arrays, True
        return arrays.blank(), False

    def appended(
        self, gains: Array, innovations: Array, scales: Array, least: float, *, own: bool
    ) -> Bank:
        """The bank after a few rows: gains (J, n, m), innovations (J, n, K), scales (J, 5).

        ``least`` is the smallest of the scales of means and covariances.
        """
        after = Bank(self.stored, scales, self.rows, self.coefficients, self.room)
        n_new = gains.shape[1]
        if n_new == 0:
            return after
        start = 0 if self.rows is None else self.rows.shape[1]
        stop = start + n_new
        n_filters, m, n_outputs = self.arrays.mean.shape
        if stop > pending_capacity(m) or least < SMALLEST_SCALE:
            arrays, _ = self._writable(own)
            gains, innovations = gains.astype(self.dtype), innovations.astype(self.dtype)
            return Bank(arrays, _scales(after._folded(arrays, gains, innovations)))
        room = self.room
        if room is None or not room.claim(start):
            room = Room((n_filters,), pending_capacity(m), (m, n_outputs), self.dtype)
            if self.rows is not None:
                room.rows[:, :start], room.coefficients[:, :start] = self.rows, self.coefficients
            room.claim(start)
        from kalstream.core._kernels.bank import store_rows

        store_rows(gains, innovations, scales, start, room.rows, room.coefficients)
        after.room = room
        after.rows, after.coefficients = room.rows[:, :stop], room.coefficients[:, :stop]
        return after


@dataclass(slots=True)
class How:
    """How the filters of a bank forget and observe.

    Attributes
    ----------
    gammas : (J, b)
        Forgetting coefficient of each row.
    prior_vars : (J,)
    likelihoods : (J,) integers
        Of `Rows.likelihood`.
    """

    gammas: Array
    prior_vars: Array
    likelihoods: Array


def _few_rows(
    bank: Bank, rows: Rows, how: How, part: slice, may_own: bool, own: bool
) -> tuple[Bank, BankStep]:
    """Advance over few rows, which stay pending: no covariance is written."""
    from kalstream.core._kernels.bank import scan_bank

    phi = rows.features[part]
    times_cov, times_mean, lossy = bank.remembered(phi)
    if lossy:
        bank = bank.folded(own=own)
        times_cov, times_mean, _ = bank.products(phi)
    here, wide = rows[part], phi.astype(np.float64, copy=False)
    done, unsound, mean, var, noise, nis, *learned = scan_bank(
        times_cov,
        times_mean,
        wide,
        *here.observed(),
        how.gammas[:, part],
        how.prior_vars,
        how.likelihoods,
        bank.arrays.cov,
        bank.scales,
        _EPSILON[bank.dtype],
        ROUNDING_LIMITS,
    )
    if done < len(phi):
        shorter = slice(part.start, part.start + done)
        return _few_rows(bank, rows, how, shorter, may_own, own)
    if unsound >= 0:
        variances = bank._filter(unsound, bank.arrays).variances()
        check_innovations(
            var[unsound],
            noise[unsound],
            rounding_error(wide, variances),
            bank.dtype,
            folds=bank.scales[unsound, 4],
            first_row=part.start,
        )
    last = part.stop == len(rows.gap)
    after = bank.appended(*learned, own=own or (may_own and last))
    return after, BankStep(mean, var, how.gammas[:, part], noise, nis)


def _many_rows(
    bank: Bank,
    rows: Rows,
    how: How,
    part: slice,
    may_own: bool,
    own: bool,
    between: tuple[Array, Array] | None = None,
) -> tuple[Any, ...]:
    """Advance over a block, filter by filter: the work is in matrix products.

    ``between`` has features (a, m) and places (a,) as in `Filters.between`; then the means and
    variances of these rows are returned as well, or None in place of the step.
    """
    given = bank
    bank = bank.folded(own=own)
    own = own or bank.stored is not given.stored
    own_rows = [replace(rows, prior_var=float(prior_var)) for prior_var in how.prior_vars]
    times_cov, times_mean, asides = *bank.remembered(rows.features[part])[:2], None
    if between is not None:
        asides = _asides(bank, *between)
    wide = rows.features[part].astype(np.float64, copy=False)
    gram_eye = wide @ wide.T  # the same for all filters
    while True:
        n = part.stop - part.start
        plans = [
            plan(
                bank._filter(j, bank.arrays),
                mine,
                fixed_scanner(mine, how.gammas[j], int(how.likelihoods[j])),
                part,
                False,
                (
                    times_cov[j, :n].copy(),
                    times_mean[j, :n],
                    np.ascontiguousarray(gram_eye[:n, :n]),
                ),
                None if asides is None else asides[j],
            )
            for j, mine in enumerate(own_rows)
        ]
        done = min(len(planned.step.gamma) for planned in plans)
        if done == n:
            break
        if asides is not None:
            return (bank, None)
        part = slice(part.start, part.start + done)  # all filters stop where one has to
    last = part.stop == len(rows.gap)
    arrays, _ = bank._writable(own or (may_own and last))
    after = []
    for j, planned in enumerate(plans):
        stored = planned.stored
        arrays.take(bank.arrays, j)
        if rows.keep_mean:  # the plan has a mean of its own
            arrays.mean[j] = stored.base.mean
        stored = replace(stored, base=arrays.base(j))
        if len(planned.rows):
            stored = stored.folded(planned.rows, planned.coefficients, donate=True)
        after.append(stored)
    parts = [(p.step.logit_mean, p.step.logit_var, p.step.noise_var, p.step.nis) for p in plans]
    mean, var, noise, nis = (np.stack(each) for each in zip(*parts, strict=True))
    step = BankStep(mean, var, how.gammas[:, part], noise, nis)
    after_all = Bank(arrays, _scales(after))
    if asides is None:
        return after_all, step
    others = np.stack([each.mean for each in asides]), np.stack([each.var for each in asides])
    return after_all, step, *others


def _asides(bank: Bank, features: Array, place: Array) -> list[Aside]:
    """Rows (a, m) to predict between those of a block, for each filter."""
    arrays, n = bank.arrays, len(features)
    n_filters, m, n_outputs = arrays.mean.shape
    wide = features.astype(np.float64, copy=False)
    squares, asides = np.einsum("am,am->a", wide, wide), []
    for j in range(n_filters):
        times_cov, times_mean = np.empty((0, m)), np.empty((0, n_outputs))
        if n:
            made = bank._filter(j, arrays).products(features)[:2]
            times_cov, times_mean = (part.astype(np.float64, copy=False) for part in made)
        moments = np.empty((n, n_outputs)), np.empty(n)
        asides.append(Aside(wide, squares, place, times_cov, times_mean, *moments))
    return asides


def _dense(array: Array | None) -> Array | None:
    return None if array is None else np.ascontiguousarray(array)


def _scales(each: Sequence[Stored]) -> Array:
    return np.array([(s.mean_scale, s.scale, s.shift, s.ceiling, s.folds) for s in each])


def joined_steps(steps: list[BankStep]) -> BankStep:
    """The step over all rows, from those of consecutive parts."""
    if len(steps) == 1:
        return steps[0]
    names = "logit_mean", "logit_var", "gamma", "noise_var", "nis"
    every = ([getattr(step, name) for step in steps] for name in names)
    return BankStep(*(np.concatenate(parts, axis=1) for parts in every))
