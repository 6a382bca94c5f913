"""Filters of several orders of motion on the same features, side by side.

Those of order 1 are in a `Bank`, those of each higher order in a `MotionBank`. To a mixture they
look like one bank.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, final

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.bank import Bank, Filters, How, Lookahead, OneOrder
from kalstream.core.chunk import Rows
from kalstream.core.motion import MotionBank, refuse_keep_mean
from kalstream.core.recursion import init
from kalstream.core.state import BankStep, Posterior


@final
@dataclass(slots=True)
class MixedBank(Filters):
    """J filters, of which some have an order above 1. Immutable to the caller, as `Bank`.

    Attributes
    ----------
    banks : one Bank or MotionBank for each order
        The lowest order comes first.
    orders : J numbers
        Order of each filter.
    """

    banks: tuple[OneOrder, ...]
    orders: tuple[int, ...]

    @property
    def n_filters(self) -> int:
        """Number of filters, J."""
        return len(self.orders)

    @property
    def n_features(self) -> int:
        """Number of features, m."""
        return self.banks[0].n_features

    @property
    def n_outputs(self) -> int:
        """Number of outputs, K."""
        return self.banks[0].n_outputs

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64, or float32 by choice."""
        return self.banks[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept from row to row."""
        return sum(bank.nbytes for bank in self.banks)

    def posterior(self, j: int) -> Posterior:
        """Weights of filter j."""
        for bank, members in zip(self.banks, _members(self.orders), strict=True):
            if j in members:
                return bank.posterior(int(np.searchsorted(members, j)))
        raise IndexError(f"there are {self.n_filters} filters, and none is number {j}")

    def add_outputs(self, n_outputs: int) -> MixedBank:
        """Grow by outputs never seen, exactly; see `state.add_outputs`."""
        return MixedBank(tuple(bank.add_outputs(n_outputs) for bank in self.banks), self.orders)

    def keep_outputs(self, columns: Array) -> MixedBank:
        """The bank with these outputs only (K',), in this order: exact, outputs are independent."""
        return MixedBank(tuple(bank.keep_outputs(columns) for bank in self.banks), self.orders)

    def add_features(self, n_features: int, prior_vars: Array) -> MixedBank:
        """Add features that were 0 in all rows so far; each filter has a prior variance (J,)."""
        each = zip(self.banks, _members(self.orders), strict=True)
        grown = tuple(bank.add_features(n_features, prior_vars[own]) for bank, own in each)
        return MixedBank(grown, self.orders)

    def fits(self, half_lives: tuple[float, ...]) -> bool:
        """Whether the banks are of these orders and half-lives (J,)."""
        members = _members(self.orders)
        sizes = {(bank.n_features, bank.n_outputs, bank.dtype) for bank in self.banks}
        return (
            len(self.banks) == len(members)
            and len(sizes) == 1
            and all(
                bank.orders == tuple(self.orders[j] for j in own)
                and bank.fits(tuple(half_lives[j] for j in own if j < len(half_lives)))
                for bank, own in zip(self.banks, members, strict=True)
            )
        )

    def run(self, rows: Rows, how: How, donate: bool) -> tuple[MixedBank, BankStep]:
        """Advance all filters over all rows; nothing has changed if anything fails."""
        check.flag("donate", donate)
        refuse_keep_mean(rows.keep_mean, max(self.orders))
        after: list[OneOrder] = []
        steps: list[BankStep] = []
        for part, own in zip(self.banks, _members(self.orders), strict=True):
            mine = How(how.gammas[own], how.prior_vars[own], how.likelihoods[own])
            # Not donated: if a later bank fails, this one must be as it was.
            one, step = part.run(rows, mine, False)
            after.append(one)
            steps.append(step)
        if donate:
            for part in self.banks:
                part.stored = None
        return MixedBank(tuple(after), self.orders), _side_by_side(steps, self.orders)

    def predict(self, features: Array, gap: Array, ahead: Lookahead) -> tuple[BankStep, Array]:
        """Step and weights of rows, each predicted as if it were the next one."""
        refuse_keep_mean(ahead.keep_mean, max(self.orders))
        parts = zip(self.banks, _members(self.orders), strict=True)
        steps = [bank.predict(features, gap, ahead[own])[0] for bank, own in parts]
        return _side_by_side(steps, self.orders), ahead.weights(gap)


def start_bank(
    n_features: int,
    n_outputs: int,
    *,
    orders: tuple[int, ...],
    half_lives: tuple[float, ...],
    prior_vars: Array,
    dtype: Any,
) -> Filters:
    """Filters before any data: orders, half-lives and prior variances are of each (J,)."""
    banks: list[OneOrder] = []
    for own in _members(orders):
        order, variances = orders[own[0]], prior_vars[own].tolist()
        if order == 1:
            size = n_features, n_outputs
            each = [init(*size, prior_var=value, dtype=dtype) for value in variances]
            banks.append(Bank.of(each))
            continue
        lives = [half_lives[j] for j in own]
        settings = {"order": order, "half_lives": lives, "prior_vars": variances, "dtype": dtype}
        banks.append(MotionBank.start(n_features, n_outputs, **settings))
    return banks[0] if max(orders) == 1 else MixedBank(tuple(banks), orders)


def _side_by_side(steps: list[BankStep], orders: tuple[int, ...]) -> BankStep:
    """The step of all filters, from those of the banks."""
    if len(steps) == 1:
        return steps[0]
    places = _places(orders)
    parts = [
        np.concatenate([getattr(step, field.name) for step in steps]) for field in fields(BankStep)
    ]
    return BankStep(*(parts if places is None else [part[places] for part in parts]))


@lru_cache
def _members(orders: tuple[int, ...]) -> tuple[Array, ...]:
    """Indices of the filters of each order, the lowest first; not to be changed."""
    return tuple(np.flatnonzero(np.equal(orders, order)) for order in sorted(set(orders)))


@lru_cache
def _places(orders: tuple[int, ...]) -> Array | None:
    """Where each filter (J,) is when the banks are side by side; None if the order is the same."""
    places = np.argsort(np.concatenate(_members(orders)))
    return None if (np.diff(places) == 1).all() else places
