"""What filters say together, and what the labels before a row say beside it.

A mixture believes one filter or another, and averages probabilities. Logarithms averaged with
weights of their own can be sharper than each: two filters that agree for reasons of their own are
right more often. And where labels are known before the next row comes, they tell about it: they
come in runs, or a class that was just there is due no more. A filter knows nothing of this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from kalstream.core.mixture import MixtureStep, _array

Array = NDArray[Any]

# Over some this many labels it is known how often each class came of late.
HALF_LIVES: Final = (1.0, 8.0, 64.0, 512.0)
# Probability, at each row, that correcting the probabilities begins or ceases to be right.
_SHARE: Final = 0.001
_KEEP: Final = 0.5 ** (1.0 / np.array(HALF_LIVES))
_NOTHING: Final = np.empty((0, 0))


@dataclass(frozen=True, slots=True)
class Stack:
    """A logistic regression on top of a mixture, learnt as the rows pass. Never changed.

    The corrected log-probability of class k, among those seen so far, is up to a constant

        c_0 log p_k + sum_j c_j z_jk + sum_h c_h log(f_hk / f_k) + c_s log(s_k),

    with p the mixture's probabilities; z_j the logits of filter j, calibrated and shrunk as in the
    probit approximation; f_k the frequency of the class so far, and f_hk that of late (over a
    half-life h of `HALF_LIVES`). s_k is about the class of the last label: how much more often it
    came again than its frequency says (for k that class), or did not (for all others). The
    coefficients c, at first (1, 0, ..., 0), learn by Newton's steps on the log-probability and
    forget with a half-life of some 1,400 rows. The answer mixes p and what is corrected, weighed by
    how well each has predicted.

    Those of labels only learn where ``ordered`` says that the label before each row was known when
    it was predicted; elsewhere the terms are 0. A weight above 10 counts as 10.

    Attributes
    ----------
    counts : (K,)
        Labels of each class.
    recent : (H, K)
        The same, forgotten with each half-life.
    stays : (K, 2)
        How often a class followed itself, and how often any class followed it.
    last : int
        The last label, -1 if there is none.
    coef, precision : (D,), (D, D)
        With D = 1 + J + H + 1.
    belief : float
        In what is corrected.

    Examples
    --------
    Labels that come in runs of ten, and rows that say nothing:

    >>> from kalstream.core import Mixture, mixture_probabilities
    >>> policy, labels, rows = Mixture(), np.arange(400) // 10 % 2, np.ones((400, 1))
    >>> state = policy.start(1, 2, prior_var=1.0)
    >>> _, told = policy.step_chunk(state, rows, labels, noise_var=0.03, prior_var=1.0)
    >>> how = {"plain": mixture_probabilities(told), "ordered": True}
    >>> stack, said = Stack.start(5, 2).learnt(told, labels, **how)
    >>> bool((said.argmax(axis=1) == labels)[200:].mean() > 0.85)
    True
    """

    counts: Array
    recent: Array
    stays: Array
    last: int
    coef: Array
    precision: Array
    belief: float

    @classmethod
    def start(cls, n_filters: int, n_classes: int) -> Self:
        """Nothing seen yet."""
        prior = _prior(n_filters)
        counts, recent = np.zeros(n_classes), np.zeros((len(HALF_LIVES), n_classes))
        coef = np.zeros(len(prior))
        coef[0] = 1.0
        return cls(counts, recent, np.zeros((n_classes, 2)), -1, coef, np.diag(prior), 0.5)

    @property
    def n_filters(self) -> int:
        """How many filters it is for, J."""
        return len(self.coef) - len(HALF_LIVES) - 2

    def grown(self, n_classes: int) -> Self:
        """With room for classes never seen."""
        n_new = n_classes - len(self.counts)
        if n_new <= 0:
            return self
        return replace(
            self,
            counts=np.pad(self.counts, (0, n_new)),
            recent=np.pad(self.recent, ((0, 0), (0, n_new))),
            stays=np.pad(self.stays, ((0, n_new), (0, 0))),
        )

    def keep_classes(self, columns: Array) -> Self:
        """With these classes only (K',), in this order."""
        places = {int(column): place for place, column in enumerate(columns)}
        return replace(
            self,
            counts=self.counts[columns],
            recent=self.recent[:, columns],
            stays=self.stays[columns],
            last=places.get(self.last, -1),
        )

    def corrected(self, step: MixtureStep, plain: Array, *, ordered: bool = True) -> Array:
        """Probabilities (b, K) of rows, of which any could be the next.

        Parameters
        ----------
        step : MixtureStep
            What the rows tell.
        plain : (b, K)
            Probabilities by the mixture.
        ordered : bool
            Whether the last label is that of the row before.
        """
        from kalstream.core._stack import correct

        belief = self.belief + _SHARE * (0.5 - self.belief)
        known = belief, self.last, self.counts, self.recent, self.stays, self.coef
        return correct(*_moments(step), plain, *known, ordered)

    def learnt(
        self,
        step: MixtureStep,
        labels: Array,
        weight: Array | None = None,
        *,
        plain: Array | None = None,
        ordered: bool = False,
    ) -> tuple[Self, Array]:
        """After rows that were predicted, and then learnt.

        Parameters
        ----------
        step : MixtureStep
            What the rows told before their labels were seen.
        labels : (b,)
            -1 where there is none.
        weight : (b,), optional
        plain : (b, K), optional
            Probabilities by the mixture, to be corrected.
        ordered : bool
            Whether each row was predicted when the label of the one before it was known; if not,
            nothing is learnt about the order of labels.

        Returns
        -------
        stack : Stack
        corrected : (b, K)
        """
        from kalstream.core._stack import scan

        kept = self.counts, self.recent, self.stays, self.coef, self.precision
        counts, recent, stays, coef, precision = (array.copy() for array in kept)
        weight = np.ones(len(labels)) if weight is None else weight
        changing = counts, recent, stays, coef, precision
        plain = _NOTHING if plain is None else plain
        how = ordered, _SHARE, _prior(self.n_filters), _KEEP, self.belief, self.last
        out, belief, last = scan(*_moments(step), plain, labels, weight, *how, *changing)
        return type(self)(*changing[:3], int(last), *changing[3:], float(belief)), out


def _prior(n_filters: int) -> Array:
    """Precision (D,) of the coefficients before any data."""
    from kalstream.core._stack import FILTERS, LABELS

    return np.array([FILTERS] * (1 + n_filters) + [LABELS] * (len(HALF_LIVES) + 1))


def _moments(step: MixtureStep) -> tuple[Array, ...]:
    return step.logit_mean, step.logit_var, step.weights, _array(step.calibrations)
