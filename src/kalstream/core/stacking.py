"""A logistic regression that combines the filters of a mixture with the labels before a row.

A mixture averages the probabilities of its filters. A weighted sum of their logarithms can be
sharper than each of them: two filters that agree for different reasons are right more often. And
where labels are known before the next row comes, they help to predict it: they come in runs, or a
class does not come twice in a row. A filter cannot know this.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.judging import Events, Judged, Kept
from kalstream.core.mixture import MixtureStep, moments_of
from kalstream.errors import InvalidInput, NumericalError

Array = NDArray[Any]

# Half-lives, in labels, of the recent class frequencies.
HALF_LIVES: Final = (1.0, 8.0, 64.0, 512.0)
# Probability, at each row, that the corrected probabilities start or stop being the better ones.
SHARE: Final = 0.001
# Nats: 0.0005 a row, of the 2,000 rows that a stack remembers.
LEAST_GAIN: Final = 1.0
KEEP_RECENT: Final = 0.5 ** (1.0 / np.array(HALF_LIVES))
_NOTHING: Final = np.empty((0, 0))


@dataclass(frozen=True, slots=True)
class Stack:
    """A logistic regression on top of a mixture, learned online. Immutable.

    Up to a constant, the corrected log-probability of class k, among those seen so far, is

        c_0 log p_k + sum_j c_j z_jk + sum_h c_h log(f_hk / f_k) + c_s log(s_k),

    p are the mixture's probabilities. z_j are the logits of filter j, calibrated and shrunk as in
    the probit approximation. f_k is the overall frequency of the class and f_hk the recent one,
    with a half-life h of `HALF_LIVES`. s_k compares how often the class of the last label repeats
    with its overall frequency (for k that class), or how often it does not (for the others). The
    coefficients c start at (1, 0, ..., 0), learn by Newton steps on the log-probability, and
    forget with a half-life of about 1,400 rows. The answer averages p and the corrected
    probabilities, weighted by how well each has predicted.

    Experts beside the filters (`core.experts`) add a term c_e log p_e each, with coefficients that
    start at 0.

    The terms of labels are used only with ``ordered``, which says that the label before each row
    was known when the row was predicted. Otherwise they are 0. A weight above 10 counts as 10.

    Attributes
    ----------
    counts : (K,)
        Number of labels of each class.
    recent : (H, K)
        Recent number of labels of each class, for each half-life.
    stays : (K, 2)
        How often a class followed itself, and how often any class followed it.
    last : int
        The last label, -1 if there is none.
    coef, precision : (D,), (D, D)
        With D = 1 + J + H + 1 + X.
    belief : float
        Weight of the corrected probabilities in the answer.
    experts : X words
        Names of the experts beside the filters.

    Examples
    --------
    Labels come in runs of ten, and the features carry no information:

    >>> from kalstream.core import Mixture, mixture_probabilities
    >>> policy, labels, rows = Mixture(), np.arange(400) // 10 % 2, np.ones((400, 1))
    >>> state = policy.start(1, 2, prior_var=1.0)
    >>> _, step = policy.step_chunk(state, rows, labels, noise_var=0.03, prior_var=1.0)
    >>> plain = mixture_probabilities(step)
    >>> stack, corrected = Stack.start(5, 2).learn(step, labels, plain=plain, ordered=True)
    >>> bool((corrected.argmax(axis=1) == labels)[200:].mean() > 0.85)
    True
    """

    counts: Array
    recent: Array
    stays: Array
    last: int
    coef: Array
    precision: Array
    belief: float
    experts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        k, d = np.size(self.counts), np.size(self.coef)
        shapes = {
            **{"counts": (k,), "recent": (len(HALF_LIVES), k), "stays": (k, 2)},
            **{"coef": (d,), "precision": (d, d)},
        }
        for name, shape in shapes.items():
            part = check.block(f"the {name} of the stack", getattr(self, name), shape)
            check.limited(f"the {name} of the stack", part, check.LARGEST_FLOAT64)
            object.__setattr__(self, name, part)
        check.unit_interval("the belief of the stack", self.belief)
        if not (type(self.last) is int and -1 <= self.last < k and self.n_filters > 0):
            raise InvalidInput(
                f"the stack has {k} classes, {d} coefficients and the last label {self.last!r}; "
                "start from Stack.start"
            )

    @classmethod
    def start(cls, n_filters: int, n_classes: int, experts: tuple[str, ...] = ()) -> Self:
        """The stack before any data."""
        prior = prior_of(check.count("n_filters", n_filters), len(experts))
        n_classes = check.count("n_classes", n_classes)
        counts, recent = np.zeros(n_classes), np.zeros((len(HALF_LIVES), n_classes))
        coef = np.zeros(len(prior))
        coef[0] = 1.0
        stays, precision = np.zeros((n_classes, 2)), np.diag(prior)
        return cls(counts, recent, stays, -1, coef, precision, 0.5, experts)

    @staticmethod
    def n_terms(n_filters: int, n_experts: int = 0) -> int:
        """Number of terms, D, of a stack of so many filters and experts beside them."""
        return n_filters + len(HALF_LIVES) + 2 + n_experts

    @property
    def n_filters(self) -> int:
        """Number of filters, J."""
        return len(self.coef) - self.n_terms(0, len(self.experts))

    def with_experts(self, names: tuple[str, ...]) -> Self:
        """The stack with these experts beside the filters; those it does not know start at 0.

        Where some leave, the other coefficients become the best ones without them.
        """
        if names == self.experts:
            return self
        own = self.n_terms(self.n_filters)
        places = [*range(own), *(own + self.experts.index(x) for x in names if x in self.experts)]
        new = [*range(own), *(own + i for i, x in enumerate(names) if x in self.experts)]
        prior = prior_of(self.n_filters, len(names))
        coef, precision = np.zeros(len(prior)), np.diag(prior)
        gone = np.setdiff1d(np.arange(len(self.coef)), places)
        pull = self.precision[np.ix_(places, gone)] @ self.coef[gone]
        rest = self.precision[np.ix_(places, places)]
        coef[new] = self.coef[places] + np.linalg.solve(rest, pull)
        precision[np.ix_(new, new)] = rest
        return replace(self, coef=coef, precision=precision, experts=names)

    @property
    def gains(self) -> Array:
        """What each expert (X,) brings, in nats, over the rows that the stack remembers.

        The log-likelihood by the quadratic that Newton's steps follow, with all coefficients and
        with the best ones without that expert.
        """
        first = len(self.coef) - len(self.experts)
        variances = np.linalg.inv(self.precision).diagonal()[first:]
        return 0.5 * np.square(self.coef[first:]) / variances

    def add_classes(self, n_classes: int) -> Self:
        """The stack with n_classes classes; the new ones have not been seen."""
        n_new = check.count("n_classes", n_classes) - len(self.counts)
        if n_new == 0:
            return self
        if n_new < 0:
            raise InvalidInput(
                f"n_classes is {n_classes}, but the stack has {len(self.counts)} classes already; "
                "use keep_classes to drop classes"
            )
        return replace(
            self,
            counts=np.pad(self.counts, (0, n_new)),
            recent=np.pad(self.recent, ((0, 0), (0, n_new))),
            stays=np.pad(self.stays, ((0, n_new), (0, 0))),
        )

    def keep_classes(self, columns: Array) -> Self:
        """The stack with these classes only (K',), in this order."""
        columns = check.columns("columns", columns, len(self.counts))
        places = {column: place for place, column in enumerate(columns.tolist())}
        return replace(
            self,
            counts=self.counts[columns],
            recent=self.recent.take(columns, 1),
            stays=self.stays[columns],
            last=places.get(self.last, -1),
        )

    def predict(
        self,
        step: MixtureStep,
        plain: Array,
        *,
        ordered: bool = True,
        spoken: Array | None = None,
    ) -> Array:
        """Corrected probabilities (b, K) of rows, each as if it were the next one.

        Parameters
        ----------
        step : MixtureStep
            Predictions of the filters.
        plain : (b, K)
            Probabilities by the mixture.
        ordered : bool
            Whether the last label that was learned is that of the row before.
        spoken : (b, X, K), optional
            Log-probabilities by the experts beside the filters; needed if there are any.
        """
        from kalstream.core._kernels.stacking import predict_rows

        moments = self._moments(step)
        plain = self._plain(plain, moments[0])
        belief = self.belief + SHARE * (0.5 - self.belief)
        known = plain, belief, self.last, self.counts, self.recent, self.stays, self.coef
        beside = self._spoken(spoken, moments[0])
        out, bad = predict_rows(*moments, beside, *known, check.flag("ordered", ordered))
        if bad >= 0:
            self._blame(bad, moments, plain, None, None)
        return out

    def learn(
        self,
        step: MixtureStep,
        labels: Array,
        weight: Array | None = None,
        *,
        plain: Array | None = None,
        ordered: bool = False,
        spoken: Array | None = None,
    ) -> tuple[Self, Array]:
        """Predict each row, then learn its label.

        Parameters
        ----------
        step : MixtureStep
            Predictions of the filters, made before the labels were seen.
        labels : (b,)
            -1 where unknown.
        weight : (b,), optional
        plain : (b, K), optional
            Probabilities by the mixture; they are corrected.
        ordered : bool
            Whether the label before each row was known when the row was predicted. If not,
            nothing is learned about the order of labels.
        spoken : (b, X, K), optional
            As in `predict`.

        Returns
        -------
        stack : Stack
        corrected : (b, K)
        """
        from kalstream.core._kernels.stacking import learn_rows

        moments = self._moments(step)
        n = moments[0].shape[1]
        labels = check.integers("labels", labels, n)
        weight = np.ones(n) if weight is None else check.block("weight", weight, (n,))
        plain = _NOTHING if plain is None else self._plain(plain, moments[0])
        kept = self.counts, self.recent, self.stays, self.coef, self.precision
        counts, recent, stays, coef, precision = (part.copy() for part in kept)
        changing = counts, recent, stays, coef, precision
        prior = prior_of(self.n_filters, len(self.experts))
        settings = check.flag("ordered", ordered), SHARE, prior, KEEP_RECENT
        now, beside = (self.belief, self.last), self._spoken(spoken, moments[0])
        out, belief, last, bad = learn_rows(
            *moments, beside, plain, labels, weight, *settings, *now, *changing
        )
        if bad >= 0:
            self._blame(bad, moments, plain, labels, weight)
        more = int(last), *changing[3:], float(belief), self.experts
        after = check.trusted(type(self), *changing[:3], *more)
        return after, out

    def judge(
        self,
        step: MixtureStep,
        labels: Array,
        weight: Array,
        events: Events,
        judged: Judged,
        kept: Kept,
        *,
        plain: Array,
        ordered: bool = False,
        spoken: Array | None = None,
    ) -> tuple[Self, Array]:
        """As `learn`, where labels come late: each is judged by the prediction made for its row.

        Parameters
        ----------
        step, events, judged
            As `Mixture.judge` takes and returns them.
        labels, weight : (n,)
            Weight 0 where no target comes.
        kept : Kept
            Rows that are asked for are described here.
        plain : (n, K)
            Probabilities of the rows that are asked for.
        ordered : bool
            Whether to use the labels that had come before each row.
        spoken : (n, X, K), optional
            As in `predict`, at each event.
        """
        from kalstream.core._kernels.judging import stack_rows

        moments = self._moments(step)
        kept_now = self.counts, self.recent, self.stays, self.coef, self.precision
        counts, recent, stays, coef, precision = (part.copy() for part in kept_now)
        changing = counts, recent, stays, coef, precision
        out, belief, last, bad = stack_rows(
            *(events.asked, events.slot, labels, weight, judged.rates),
            moments,
            (judged.shares, kept.experts),
            self._spoken(spoken, moments[0]),
            plain,
            *(check.flag("ordered", ordered), SHARE),
            *(prior_of(self.n_filters, len(self.experts)), KEEP_RECENT),
            *(kept.described, kept.counted, self.belief, self.last),
            *changing,
        )
        if bad >= 0:
            self._blame(bad, moments, plain, labels, weight)
        more = int(last), *changing[3:], float(belief), self.experts
        after = check.trusted(type(self), *changing[:3], *more)
        return after, out

    def _moments(self, step: MixtureStep) -> tuple[Array, ...]:
        """The moments of a step that has the filters of this stack."""
        moments = moments_of(step)
        if len(moments[0]) != self.n_filters:
            raise InvalidInput(
                f"step is of {len(moments[0])} filters, but the stack was started for "
                f"{self.n_filters}; pass a step of the same mixture"
            )
        return moments

    def _plain(self, plain: Any, means: Array) -> Array:
        """Probabilities (b, K'), of at most the classes of the means (J, b, K) and of the stack."""
        _, n, n_outputs = means.shape
        if type(plain) is not np.ndarray or plain.ndim != 2:
            plain = check.matrix("plain", plain)
        width = min(plain.shape[1], max(n_outputs, len(self.counts)))
        return check.block("plain", plain, (n, width))

    def _spoken(self, spoken: Any, means: Array) -> Array:
        """Log-probabilities (b, X, K) by the experts, of the rows of means (J, b, K)."""
        shape = means.shape[1], len(self.experts), means.shape[2]
        if spoken is None and self.experts:
            raise InvalidInput(
                f"the stack has the experts {', '.join(self.experts)}; pass spoken, their "
                f"log-probabilities {shape}"
            )
        return np.zeros(shape) if spoken is None else check.block("spoken", spoken, shape)

    def _blame(
        self, row: int, moments: tuple[Array, ...], plain: Array, labels: Any, weight: Any
    ) -> NoReturn:
        """Raise the error for a row that compiled code refused."""
        n_classes = len(self.counts)
        if labels is not None and not -1 <= labels[row] < n_classes:
            raise InvalidInput(
                f"labels holds {labels[row]} at row {row}, outside 0..{n_classes - 1}; use -1 for "
                "an unknown label, and call add_classes(n_classes) before a new class comes"
            )
        if weight is not None and not 0.0 <= weight[row] < math.inf:
            raise InvalidInput(
                f"weight holds {weight[row]} at row {row}; give finite weights of at least 0"
            )
        if not all(np.isfinite(part).all() for part in moments):
            raise InvalidInput(f"step holds NaN or inf at row {row}; pass the step of a mixture")
        if plain.size and not (np.isfinite(plain[row]).all() and plain[row].min() >= 0.0):
            raise InvalidInput(
                f"plain holds {plain[row].tolist()} at row {row}; give probabilities"
            )
        n_outputs = moments[0].shape[2]
        if min(plain.shape[1] or n_outputs, n_outputs) < n_classes:
            raise InvalidInput(
                f"step has {n_outputs} classes and plain {plain.shape[1]}, but the stack has seen "
                f"others at row {row}; give a column for each of its {n_classes} classes"
            )
        raise NumericalError(
            f"the stack cannot be continued at row {row}: its coefficients {self.coef} with belief "
            f"{self.belief} give no finite probabilities. Start again from Stack.start"
        )


def names_that_pay(stacks: Sequence[Stack], judged: Collection[str]) -> tuple[str, ...]:
    """Names of the experts of the stacks, without those judged that hardly matter.

    Those left out, the least first, bring less than `LEAST_GAIN` together, to each stack.
    """
    lost = np.zeros((len(stacks), 1))
    while stacks[0].experts:
        names = stacks[0].experts
        gains = lost + [stack.gains for stack in stacks]
        gains[:, [name not in judged for name in names]] = np.inf
        worst = int(gains.max(axis=0).argmin())
        lost = gains[:, worst, None]
        if not lost.max() < LEAST_GAIN:
            break
        stacks = [stack.with_experts(names[:worst] + names[worst + 1 :]) for stack in stacks]
    return stacks[0].experts


@lru_cache
def prior_of(n_filters: int, n_experts: int) -> Array:
    """Prior precision (D,) of the coefficients; do not change the array."""
    from kalstream.core._kernels.stacking import FILTER_PRECISION, LABEL_PRECISION

    others = len(HALF_LIVES) + 1 + n_experts
    return np.array([FILTER_PRECISION] * (1 + n_filters) + [LABEL_PRECISION] * others)
