"""Late labels, event by event as the equations say: the reference of `judging`. It is slow.

It keeps everything: all posteriors, every label, and the prediction of each row.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream.core.half_lives import gamma_of
from kalstream.core.likelihoods import LIKELIHOODS
from kalstream.core.mixture import Mixture
from kalstream.core.recursion import init, predict, transition, update, update_softmax
from kalstream.core.stacking import HALF_LIVES

Array = NDArray[Any]

# As in `_kernels.judging` and `_kernels.stacking`.
_LATE: Final = 2.0 / 3.0
_SHARE: Final = 0.001
_KEEP: Final = 0.9995
_LEAST: Final = 1e-9


@dataclass
class AskedRow:
    """A row that was asked for: its features (m,), its number, and what was predicted."""

    features: Array
    number: int
    means: list[Array] = field(default_factory=list)
    variances: list[float] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    frequencies: Array | None = None
    described: Array | None = None
    answers: Array | None = None
    n_targets: int = 0
    waits: bool = True


class StackReference:
    """A logistic regression over described classes (A, D), learned by Newton steps."""

    def __init__(self, n_filters: int) -> None:
        n_labels = len(HALF_LIVES) + 1
        self.prior = np.diag([40.0] * (1 + n_filters) + [10.0] * n_labels)
        self.first = np.eye(len(self.prior))[0]
        self.coef, self.precision, self.belief = self.first, self.prior, 0.5

    def answer(self, x: Array, plain: Array, rate: float) -> Array:
        """Average of the probabilities ``plain`` (A,) and those of the regression."""
        belief = self._now(rate)
        return (1.0 - belief) * plain + belief * _softmax(x @ self.coef)

    def _now(self, rate: float) -> float:
        return self.belief + (1.0 - (1.0 - _SHARE) ** rate) * (0.5 - self.belief)

    def learn(self, x: Array, place: int, rate: float) -> None:
        """Learn that the class in this place has come, at this rate."""
        kept, own = _KEEP**rate, _softmax(x @ self.coef)
        self.belief = _believed(self._now(rate), rate, own[place], math.exp(x[place, 0]))
        centred = x - own @ x
        spread = (centred.T * own) @ centred
        self.precision = kept * self.precision + (1.0 - kept) * self.prior + rate * spread
        pull = (1.0 - kept) * self.prior @ (self.coef - self.first)
        self.coef = self.coef + np.linalg.solve(self.precision, rate * centred[place] - pull)


class LateReference:
    """A mixture of filters with stacks, whose labels come late.

    Parameters
    ----------
    policy : Mixture
        With ``predictive="probit"``.
    n_features, n_classes : int
    noise_var, prior_var : float
    """

    def __init__(
        self,
        policy: Mixture,
        n_features: int,
        n_classes: int,
        *,
        noise_var: float,
        prior_var: float,
    ) -> None:
        n = policy.n_filters
        self.policy, self.noise_var = policy, noise_var
        self.prior_vars = [scale * prior_var for scale in policy.prior_scales]
        self.posteriors = [init(n_features, n_classes, prior_var=v) for v in self.prior_vars]
        self.alphas = np.broadcast_to(np.array(policy.calibrations, float), (n, 1))[:, 0]
        # In the order of labels, and by the predictions that were made.
        self.in_order, self.weights = np.full(n, 1.0 / n), np.full(n, 1.0 / n)
        self.stack, self.late_stack = StackReference(n), StackReference(n)
        self.beside = 1.0  # evidence for the class frequencies over the filters' average
        self.beliefs = np.full(4, 0.25)  # in the predictions that are averaged
        self.rows: dict[Hashable, AskedRow] = {}
        self.labels: list[int] = []
        self.came, self.last, self.blank, self.again = 0, -1, 0, 0

    def ask(self, key: Hashable, features: Array) -> Array:
        """Probabilities (K,) of a row, 0 for classes that have not come."""
        row = self.rows[key] = AskedRow(np.asarray(features, float), self.came)
        self.came += 1
        if not self.labels:
            self.blank = len(self.rows)
        return self._say(row)

    def tell(self, key: Hashable, label: int) -> None:
        """Learn the label of a row, one step ahead and by what was predicted for it."""
        row = self.rows[key]
        gap = max(row.number - self.last, 0)
        self._learn_in_order(row, label, gap)
        rate = 1.0
        if row.means:
            rate = (1.0 + len(self.labels) - row.n_targets) ** -_LATE
        switch = self._switch(gap * rate)
        self.weights = (1.0 - switch) * self.weights + switch / len(self.weights)
        self.beside = (1.0 - switch) * self.beside + switch
        self.beliefs = self.beliefs + switch * (0.25 - self.beliefs)
        if label in row.seen:
            self._judge(row, label, rate)
        self._learn(row, label, gap)
        self.last = max(self.last, row.number)
        self.labels.append(label)
        row.waits = False
        if len(self.labels) >= self.again and self.again < self.blank:
            for other in list(self.rows.values())[self.again : self.blank]:
                if other.number < 2 * len(self.labels) and other.waits:
                    self._say(other)
            self.again = 2 * len(self.labels)

    def _switch(self, time: float) -> float:
        return 1.0 - (1.0 - self.policy.share) ** time

    # ---- what is predicted ----------------------------------------------------------------

    def _moments(self, row: AskedRow, gap: float) -> tuple[list[Array], list[float]]:
        """Means (K,) and variances of each filter, so much time after the last row learned."""
        means, variances = [], []
        for posterior, half_life, prior_var in zip(
            self.posteriors, self.policy.half_lives, self.prior_vars, strict=True
        ):
            ahead = transition(posterior, gamma=gamma_of(half_life) ** gap, prior_var=prior_var)
            mean, var = predict(ahead, row.features)
            means.append(mean)
            variances.append(var)
        return means, variances

    def _say(self, row: AskedRow) -> Array:
        """Predict a row and keep all that was predicted."""
        out = np.zeros(self.posteriors[0].n_outputs)
        if not self.labels:
            return out
        gap = max(row.number - self.last, 0)
        lag = max(row.number - self.last - 1, 0)
        row.n_targets, row.seen = len(self.labels), sorted(set(self.labels))
        row.means, row.variances = self._moments(row, gap)
        counts = np.array([self.labels.count(k) + 0.5 for k in row.seen])
        row.frequencies = counts / counts.sum()
        weights, share, rate = self._ahead(gap, lag)
        logits = self._logits(row.means, row.variances, row.seen)
        plain = (1.0 - share) * _average(weights, logits) + share * row.frequencies
        row.described = self._described(row.seen, plain, logits, True)
        late = [self.late_stack.answer(row.described, plain, rate), plain]
        logits = self._logits(*self._moments(row, gap / (1.0 + lag)), row.seen)
        plain = _average(self.in_order, logits)
        described = self._described(row.seen, plain, logits, False)
        row.answers = np.array([*late, self.stack.answer(described, plain, 1.0), plain])
        others = 0.5 * lag / (1.0 + lag)
        prior = np.array([1.0 - others, others / 3.0, others / 3.0, others / 3.0])
        beliefs = self.beliefs + self._switch(gap * rate) * (0.25 - self.beliefs)
        odds = beliefs[2:].sum() / beliefs[:2].sum()  # of what is judged in the order of labels
        beliefs = prior * beliefs * np.repeat([1.0, min(odds ** -self._switch(gap), 1.0)], 2)
        out[row.seen] = beliefs @ row.answers / beliefs.sum()
        return out

    def _ahead(self, gap: int, lag: int) -> tuple[Array, float, float]:
        """Weights (J,) of the filters, the share of the frequencies, and the rate of switching."""
        rate = (1.0 + lag) ** -_LATE
        switch = self._switch(gap * rate)
        evidence = len(self.weights) * ((1.0 - switch) * self.weights + switch / len(self.weights))
        late = gap * lag / (1.0 + lag)
        prior = np.array([gamma_of(h) ** late for h in self.policy.half_lives])
        held, before = evidence * prior / prior.sum(), 0.5 * lag / (1.0 + lag)
        frequencies = before * ((1.0 - switch) * self.beside + switch)
        whole = (1.0 - before) * held.sum() + frequencies
        return held / held.sum(), float(frequencies / whole), rate

    def _logits(self, means: list[Array], variances: list[float], seen: list[int]) -> list[Array]:
        """Calibrated logits (A,) of each filter, shrunk as in the probit approximation."""
        return [
            alpha * mean[seen] / math.sqrt(1.0 + math.pi / 8.0 * alpha**2 * var)
            for alpha, mean, var in zip(self.alphas, means, variances, strict=True)
        ]

    def _described(
        self, classes: list[int], plain: Array, logits: list[Array], ordered: bool
    ) -> Array:
        """What a stack sees of the classes that have come (A, D)."""
        columns = [np.log(np.maximum(plain, _LEAST)), *logits]
        if not ordered:
            columns += [np.zeros(len(classes))] * (len(HALF_LIVES) + 1)
            return np.stack(columns, axis=1)
        seen, past = np.array(classes), np.array(self.labels)
        usual = np.array([(np.sum(past == k) + 0.5) for k in seen])
        usual = usual / (len(past) + 0.5 * len(seen))
        age, last = np.arange(len(past))[::-1], past[-1]
        for half_life in HALF_LIVES:
            recent = np.array([np.sum(0.5 ** (age[past == k] / half_life)) for k in seen])
            columns.append(np.log((recent + usual) / (recent.sum() + 1.0) / usual))
        after = [b for a, b in pairwise(self.labels) if a == last]
        own = float(usual[seen == last][0])
        stay = (after.count(last) + own) / (len(after) + 1.0)
        goes = math.log(max(1.0 - stay, _LEAST) / max(1.0 - own, _LEAST))
        columns.append(np.where(seen == last, math.log(stay / own), goes))
        return np.stack(columns, axis=1)

    # ---- judging and learning -------------------------------------------------------------

    def _judge(self, row: AskedRow, label: int, rate: float) -> None:
        """Weigh filters by what they predicted when the row came."""
        place = row.seen.index(label)
        assert row.frequencies is not None
        assert row.described is not None
        assert row.answers is not None
        beliefs = self.beliefs * np.maximum(row.answers[:, place], _LEAST) ** rate
        self.beliefs = np.maximum(beliefs / beliefs.sum(), _LEAST)
        logits = self._logits(row.means, row.variances, row.seen)
        evidence = self.weights * np.array([_softmax(z)[place] ** rate for z in logits])
        self.weights = evidence / evidence.sum()
        self.beside *= float(row.frequencies[place] ** rate / evidence.sum())
        self.late_stack.learn(row.described, place, rate)

    def _learn_in_order(self, row: AskedRow, label: int, gap: int) -> None:
        """Weigh filters by what they predict now."""
        switch, seen = self._switch(gap), sorted(set(self.labels))
        self.in_order = (1.0 - switch) * self.in_order + switch / len(self.in_order)
        if label not in seen:
            return
        place, logits = seen.index(label), self._logits(*self._moments(row, gap), seen)
        x = self._described(seen, _average(self.in_order, logits), logits, False)
        self.stack.learn(x, place, 1.0)
        evidence = self.in_order * np.array([_softmax(z)[place] for z in logits])
        self.in_order = evidence / evidence.sum()

    def _learn(self, row: AskedRow, label: int, gap: int) -> None:
        seen = np.isin(np.arange(self.posteriors[0].n_outputs), self.labels)
        for j, posterior in enumerate(self.posteriors):
            gamma = gamma_of(self.policy.half_lives[j]) ** gap
            ahead = transition(posterior, gamma=gamma, prior_var=self.prior_vars[j])
            likelihood = self.policy.likelihoods[j]
            if LIKELIHOODS[likelihood].is_softmax:
                options: Any = {"seen": seen, "likelihood": likelihood}
                after, _ = update_softmax(ahead, row.features, label, **options)
            else:
                after, _ = update(ahead, row.features, label, noise_var=self.noise_var)
            self.posteriors[j] = after


def _softmax(logits: Array) -> Array:
    above = np.exp(logits - logits.max())
    return above / above.sum()


def _average(weights: Array, logits: list[Array]) -> Array:
    """Average of the probabilities (A,) of filters."""
    return np.sum([w * _softmax(z) for w, z in zip(weights, logits, strict=True)], axis=0)


def _believed(belief: float, rate: float, own: float, other: float) -> float:
    """The belief after a label to which one side gave the probability ``own``."""
    own, other = max(own, _LEAST) ** rate, max(other, _LEAST) ** rate
    return belief * own / (belief * own + (1.0 - belief) * other)
