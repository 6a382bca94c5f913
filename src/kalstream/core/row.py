"""The short way of a single row: a mixture, its stacks and its watch advance in one compiled call.

`Mixture.step_chunk`, `Stack.learn` and `Watch.after` are the reference, and for late labels
`Mixture.judge`, `Stack.judge` and `choose`; tests/estimators/test_single_rows.py compares. What a
row changes is one array of numbers, so that a state is copied at once. Everything that is unusual,
such as a new class, a row that is not sound, or pending rows that have to be folded, is left to
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.alarm import ALARMS, Watch
from kalstream.core.bank import FEW_FEATURES, Bank
from kalstream.core.experts.expert import Expert, ExpertRows, States, advance, watch
from kalstream.core.guard import ROUNDING_LIMITS
from kalstream.core.judging import LateJudge, Sizes, layout, n_answers
from kalstream.core.mixture import Mixture, MixtureState
from kalstream.core.mixture.grids import codes_of, gammas_of, grid_of, prior_vars_of
from kalstream.core.stacking import KEEP_RECENT, SHARE, Stack, prior_of
from kalstream.core.state import BankStep, Room, pending_capacity

Array = NDArray[Any]

_EPSILON: Final = float(np.finfo(np.float64).eps)
# With more outputs the arithmetic of a row is larger than the way to it.
_MOST_OUTPUTS: Final = 64
_NOTHING: Final = np.empty(0)
_NO_PRODUCTS: Final = np.empty((0, 0, 0)), np.empty((0, 0, 0))


@dataclass(frozen=True, slots=True)
class _Frame:
    """What rows do not change, until pending rows are folded.

    Attributes
    ----------
    policy, state, stacks
        As they were when the frame was made: they have the parts that are no arrays.
    shapes, at : P shapes, (P + 1,)
        Of the parts of the numbers, and where each begins.
    room : Room
        Where pending rows are appended.
    classes : (S,)
        Those that have been seen.
    arrays, filters, watched, stacked
        As compiled code takes them.
    noise_var : float
    judge : LateJudge or None
        As the state, if labels come late.
    judges : bool
        Whether rows can be asked for, and their labels learned later.
    experts : X experts
        Those beside the filters that speak.
    sleepers : list of experts
        Those that do not.
    silent : list of int
        Places of those that a stack does not hear unless it uses the labels just before a row.
    in_order, alarms : (13 or 7,), int
        ``at`` without the stack that is judged late, and the place of the number of alarms.
    sizes, cuts : Sizes, (11,)
        Of what is kept of a row until its label comes, and where each part of it begins.
    """

    policy: Mixture
    state: Any
    stacks: tuple[Stack, ...]
    shapes: tuple[tuple[int, ...], ...]
    at: Array
    room: Room
    classes: Array
    arrays: tuple[Array, ...]
    filters: tuple[Array, ...]
    watched: tuple[Array, Array]
    stacked: tuple[float, Array, Array]
    noise_var: float
    judge: LateJudge | None
    judges: bool
    experts: tuple[Expert, ...]
    sleepers: tuple[Expert, ...]
    silent: list[int]
    in_order: Array
    alarms: int
    sizes: Sizes
    cuts: Array


@dataclass(frozen=True, slots=True)
class RowState:
    """A mixture, its stacks and its watch, ready for single rows. Never changed.

    Attributes
    ----------
    frame : _Frame
    numbers : (W,)
        All that a row changes.
    n_rows : int
        How many rows are pending.
    memo : list of at most one (features, times_cov, times_mean)
        Products that a prediction left behind, as of `Bank`.
    experts : {name: ExpertState}
        What experts beside the filters have learned.
    """

    frame: _Frame
    numbers: Array
    n_rows: int
    memo: list[tuple[Array, Array, Array]]
    experts: States

    @classmethod
    def of(
        cls,
        policy: Mixture,
        state: Any,
        watch: Watch,
        stacks: Sequence[Stack],
        counts: Array,
        judge: LateJudge | None = None,
        *,
        experts: tuple[Expert, ...] = (),
        sleepers: tuple[Expert, ...] = (),
        states: States | None = None,
        noise_var: float,
        prior_var: float,
    ) -> RowState | None:
        """The same state; None if a row has to go the long way.

        Parameters
        ----------
        stacks : at most two
            The one of any row, and the one of rows whose labels are known in time.
        counts : (K,)
            How often each class came.
        judge : LateJudge, optional
            Where labels come late; the second stack is then of rows as they were asked for.
        experts, sleepers, states
            Experts beside the filters, in the order of the stacks; those that are not in the stacks
            for a while; and what all have learned.
        """
        from kalstream.core._kernels.row import N_PARTS, N_STACK_PARTS, NUMBERS

        if not _is_usual(policy, state):
            return None
        bank: Any = state.bank
        bank.lend()
        arrays, room = bank.arrays, bank.room
        n_rows = 0 if bank.rows is None else bank.rows.shape[1]
        n_filters, m, n_outputs = arrays.mean.shape
        if room is None:
            room = Room((n_filters,), pending_capacity(m), (m, n_outputs), np.float64)
            if n_rows:
                room.rows[:, :n_rows], room.coefficients[:, :n_rows] = bank.rows, bank.coefficients
        watched = (watch.now, watch.usual, watch.levels, watch.gains, watch.odds, watch.numbers)
        each = np.zeros((n_filters, 1))
        made = np.zeros((n_filters, 1, n_outputs)), each, each, each, counts, np.zeros(n_outputs)
        parts = [state.log_weights, bank.scales, *watched, *made, np.ones(1)]
        parts += (
            [_NOTHING] * 3 if judge is None else [judge.log_weights, judge.beside, judge.beliefs]
        )
        for stack in stacks:
            own = np.array([stack.belief, stack.last])
            parts += [stack.counts, stack.recent, stack.stays, stack.coef, stack.precision, own]
        shapes = tuple(part.shape for part in parts)
        n_terms = len(stacks[0].coef) if stacks else 0
        sizes = n_filters, n_outputs, 1 + len(experts), n_terms, 0
        ends = [stop for _, stop, _ in layout(sizes)]
        at = np.array([0, *accumulate(map(prod, shapes))], np.int64)
        judges = (
            judge is not None
            and len(judge.beside) == 1 + len(experts)
            and len(judge.beliefs) == n_answers(sizes)
            and len(stacks) in (0, 2)
        )
        frame = _Frame(
            *(policy, state, tuple(stacks), shapes),
            at,
            room,
            np.flatnonzero(state.seen),
            (arrays.cov.diagonal(axis1=1, axis2=2).copy(), room.rows, room.coefficients),
            (
                gammas_of(policy.half_lives),
                prior_vars_of(state.prior_scales, prior_var, state.dtype),
                np.array(state.prior_scales),
                grid_of(state.calibrations, n_filters),
                codes_of(state.likelihoods, True),
            ),
            (policy.watched, np.argsort(policy.half_lives, kind="stable")),
            (SHARE, prior_of(n_filters, len(experts)), KEEP_RECENT),
            *(noise_var, judge, judges),
            *(experts, sleepers, [x for x, expert in enumerate(experts) if expert.reads_labels]),
            at[: 1 + N_PARTS + N_STACK_PARTS],
            int(at[NUMBERS]) + ALARMS,
            sizes,
            np.array([0, *ends], np.int64),
        )
        numbers = np.concatenate([part.ravel() for part in parts])
        return cls(frame, numbers, n_rows, bank.memo, states or {})

    def learn(
        self, phi: Array, columns: Array, label: int, came: int, answers: int, gap: float = 1.0
    ) -> RowState | None:
        """The state after a row (1, m) with a label that has come before; None: the long way.

        ``columns`` (1, d) are those that experts see, ``came`` is the number of the row, ``gap``
        the time since the one learned before. For ``answers`` see `_kernels.row.learn_row`.
        """
        return self._learned(phi, columns, label, came, answers, gap, self.frame.at)

    def _learned(
        self,
        phi: Array,
        columns: Array,
        label: int,
        came: int,
        answers: int,
        gap: float,
        at: Array,
    ) -> RowState | None:
        from kalstream.core._kernels.row import learn_row

        frame, n_rows = self.frame, self.n_rows
        room = frame.room
        if n_rows == room.rows.shape[1]:
            return None
        products = self._products(phi)
        if products is None:
            return None
        experts, spoken = self._spoken(columns, label, 1.0, gap, came)
        if not room.claim(n_rows):
            return None
        after, sound = learn_row(
            *(self.numbers, at, phi, label, came, answers),
            *(frame.arrays, n_rows, products, frame.filters, frame.watched, frame.stacked),
            *(frame.classes, spoken, frame.noise_var, frame.policy.share, gap),
            *(_EPSILON, ROUNDING_LIMITS),
        )
        if not sound:
            return None
        return check.trusted(RowState, frame, after, n_rows + 1, [], experts)

    def _spoken(
        self, columns: Array, label: int, weight: float, gap: float, number: int
    ) -> tuple[States, Array]:
        """States of the experts after a row, and their log-probabilities (2, X, K) of it.

        For ``spoken`` see `_kernels.row.learn_row`, for the rest `ExpertRows`.
        """
        frame, n_outputs = self.frame, self.frame.sizes[1]
        if not self.experts and not frame.experts:
            return self.experts, np.empty((2, 0, n_outputs))
        labels, weights, gaps = np.array([label]), np.array([weight]), np.array([gap])
        rows = check.trusted(ExpertRows, columns, labels, weights, gaps, np.array([number]))
        states, made = advance(frame.experts, self.experts, rows, n_outputs)
        if label >= 0:
            states |= watch(frame.sleepers, self.experts, rows, n_outputs)
        spoken = np.concatenate([made, made])
        if frame.silent:
            spoken[0, frame.silent] = 0.0
        return states, spoken

    # ---- late labels ----------------------------------------------------------------------

    def ask(
        self, phi: Array, columns: Array, came: int, gap: float, lag: float, n_targets: int
    ) -> tuple[Array, Array, RowState] | None:
        """What is kept of a row (1, m), as in `Kept.packed` (W,), and its probabilities (1, K).

        ``gap`` and ``lag`` are as in `Events`; ``n_targets`` were learned before. Returns also the
        state after it. None: the long way.
        """
        products = self._products(phi)
        if products is None:
            return None
        self.memo[:] = [(phi, *products)]
        kept = np.zeros(self.frame.cuts[-1])
        event = True, -1, gap, lag, n_targets
        experts, spoken = self._spoken(columns, -1, 0.0, gap, came)
        out, sound = self._passed(self.numbers, kept, phi, products, event, spoken)
        if not sound:
            return None
        return kept, out, replace(self, experts=experts) if experts else self

    def tell(
        self,
        phi: Array,
        columns: Array,
        label: int,
        came: int,
        kept: Array,
        gap: float,
        lag: float,
        n_targets: int,
    ) -> RowState | None:
        """The state after the label of a row has come, of which (W,) was kept; else as `ask`."""
        alarms, in_order = self.frame.alarms, self.frame.in_order
        after = self._learned(phi, columns, label, came, -1, gap, in_order)
        # A new alarm changes what is judged.
        if after is None or after.numbers[alarms] != self.numbers[alarms]:
            return None
        event = False, label, gap, lag, n_targets
        spoken = np.zeros((2, len(self.frame.experts), self.frame.sizes[1]))
        _, sound = self._passed(after.numbers, kept, phi, _NO_PRODUCTS, event, spoken)
        return after if sound else None

    def _passed(
        self,
        numbers: Array,
        kept: Array,
        phi: Array,
        products: tuple[Array, Array],
        event: Any,
        spoken: Array,
    ) -> tuple[Array, bool]:
        """`_kernels.late_row.pass_event`."""
        from kalstream.core._kernels.late_row import pass_event

        frame, judge = self.frame, self.frame.judge
        assert judge is not None
        return pass_event(
            *(numbers, frame.at, kept, frame.cuts, event, phi, products),
            *(frame.filters, frame.stacked, spoken),
            *(frame.state.seen, frame.policy.share, judge.since),
        )

    def probabilities(self) -> Array:
        """Those of the last row (1, K), if `learn` was asked for them."""
        from kalstream.core._kernels.row import ANSWER

        at = self.frame.at
        return self.numbers[None, at[ANSWER] : at[ANSWER + 1]]

    def predict(self, phi: Array, columns: Array, came: int, answers: int) -> Array | None:
        """Class probabilities (1, K) of a row (1, m), by a stack as in `learn`."""
        from kalstream.core._kernels.row import predict_row

        frame, products = self.frame, self._products(phi)
        if products is None:
            return None
        self.memo[:] = [(phi, *products)]
        _, spoken = self._spoken(columns, -1, 1.0, 1.0, came)
        known = self.numbers, frame.at, phi, products, frame.filters, frame.stacked
        out, sound = predict_row(*known, spoken, frame.policy.share, answers)
        return out if sound else None

    def _products(self, phi: Array) -> tuple[Array, Array] | None:
        """Those of `Bank.products`, perhaps left by a prediction; None if digits are lost."""
        try:
            known, times_cov, times_mean = self.memo.pop()
            if known.tobytes() == phi.tobytes():
                return times_cov, times_mean
        except IndexError:
            pass
        from kalstream.core._kernels.bank import bank_products

        frame, own = self.frame, self.frame.state.bank.arrays
        pending = *frame.arrays[1:], self.n_rows, self._part(1)
        made = bank_products(phi, own.mirrored(), own.mean, *pending)
        return None if made[2] else made[:2]

    def _part(self, k: int) -> Array:
        at = self.frame.at
        return self.numbers[at[k] : at[k + 1]].reshape(self.frame.shapes[k])

    def parts(self) -> tuple[Any, ...]:
        """State, watch, stacks, counts of classes (K,), step of the last row, and judge."""
        frame, n_rows = self.frame, self.n_rows
        log_weights, scales, *rest = (self._part(k) for k in range(len(frame.shapes)))
        old, room, pending = frame.state, frame.room, slice(n_rows)
        rows, coefficients = None, None
        if n_rows:
            rows, coefficients = room.rows[:, pending], room.coefficients[:, pending]
        bank = Bank(old.bank.stored, scales, rows, coefficients, room, self.memo)
        fixed = (old.half_lives, old.calibrations), (old.seen, old.spread)
        kinds = old.likelihoods, old.prior_scales
        state = check.trusted(MixtureState, bank, *fixed[0], log_weights, *fixed[1], *kinds)
        mean, var, noise, nis = rest[6:10]
        gammas = gammas_of(frame.policy.half_lives) ** rest[12]
        step, judge, stacks = BankStep(mean, var, gammas, noise, nis), frame.judge, []
        if judge is not None:
            weights, beside, beliefs = rest[13:16]
            judge = LateJudge(weights, judge.spread, beside, beliefs, judge.since)
        for i, stack in enumerate(frame.stacks):
            *learned, (belief, last) = rest[16 + 6 * i : 22 + 6 * i]
            made = *learned[:3], int(last), *learned[3:], float(belief), stack.experts
            stacks.append(check.trusted(Stack, *made))
        return state, Watch(*rest[:6]), tuple(stacks), rest[10], step, judge


def _is_usual(policy: Any, state: Any) -> bool:
    """Whether compiled code knows all that is set."""
    return (
        type(policy) is Mixture
        and policy.predictive == "probit"
        and not policy.learn_scale
        and type(state.bank) is Bank
        and state.dtype == np.float64
        and state.n_features <= FEW_FEATURES
        and state.n_outputs <= _MOST_OUTPUTS
    )
