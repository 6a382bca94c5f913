"""Late labels, event by event as the equations say: the reference of `judging`. It is slow.

It keeps everything: all posteriors, every label, and what was said about each row.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream.core.mixture import Mixture
from kalstream.core.policy import gamma_of
from kalstream.core.recursion import init, predict, transition, update, update_softmax
from kalstream.core.stacking import HALF_LIVES

Array = NDArray[Any]

# As in `_kernels.judging` and `_kernels.stacking`.
_LATE: Final = 2.0 / 3.0
_SHARE: Final = 0.001
_KEEP: Final = 0.9995
_LEAST: Final = 1e-9


@dataclass
class Row:
    """A row that was asked for: its features (m,), its number, and what was said."""

    features: Array
    number: int
    means: list[Array] = field(default_factory=list)
    variances: list[float] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    frequencies: Array | None = None
    described: Array | None = None
    n_targets: int = 0
    waits: bool = True


class LateReference:
    """A mixture of filters with a stack, whose labels come late.

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
        self.policy, self.noise_var = policy, noise_var
        self.prior_vars = [scale * prior_var for scale in policy.prior_scales]
        self.posteriors = [init(n_features, n_classes, prior_var=v) for v in self.prior_vars]
        grid = np.broadcast_to(np.array(policy.calibrations, float), (policy.n_filters, 1))
        self.alphas = grid[:, 0]
        self.weights = np.full(policy.n_filters, 1.0 / policy.n_filters)
        self.beside = 1.0  # evidence for the class frequencies over the filters' average
        self.rows: dict[Hashable, Row] = {}
        self.labels: list[int] = []
        self.came, self.last, self.blank, self.again = 0, -1, 0, 0
        n_terms = 1 + policy.n_filters + len(HALF_LIVES) + 1
        self.prior = np.diag([40.0] * (1 + policy.n_filters) + [10.0] * (len(HALF_LIVES) + 1))
        self.first = np.eye(n_terms)[0]
        self.coef, self.precision, self.belief = self.first, self.prior, 0.5

    def ask(self, key: Hashable, features: Array) -> Array:
        """Probabilities (K,) of a row, 0 for classes that have not come."""
        row = self.rows[key] = Row(np.asarray(features, float), self.came)
        self.came += 1
        if not self.labels:
            self.blank = len(self.rows)
        return self._say(row)

    def tell(self, key: Hashable, label: int) -> None:
        """Learn the label of a row, and judge by what was said about it."""
        row = self.rows[key]
        gap = max(row.number - self.last, 0)
        rate = 1.0
        if row.means:
            rate = (1.0 + len(self.labels) - row.n_targets) ** -_LATE
        switch = 1.0 - (1.0 - self.policy.share) ** (gap * rate)
        self.weights = (1.0 - switch) * self.weights + switch / len(self.weights)
        self.beside = (1.0 - switch) * self.beside + switch
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

    # ---- what is said ---------------------------------------------------------------------

    def _say(self, row: Row) -> Array:
        """Predict a row and keep all that was said."""
        out = np.zeros(self.posteriors[0].n_outputs)
        if not self.labels:
            return out
        gap = max(row.number - self.last, 0)
        lag = max(row.number - self.last - 1, 0)
        row.n_targets, row.seen = len(self.labels), sorted(set(self.labels))
        row.means, row.variances = [], []
        for posterior, half_life, prior_var in zip(
            self.posteriors, self.policy.half_lives, self.prior_vars, strict=True
        ):
            ahead = transition(posterior, gamma=gamma_of(half_life) ** gap, prior_var=prior_var)
            mean, var = predict(ahead, row.features)
            row.means.append(mean)
            row.variances.append(var)
        counts = np.array([self.labels.count(k) + 0.5 for k in row.seen])
        row.frequencies = counts / counts.sum()
        weights, share, rate = self._ahead(gap, lag)
        each = [self._probabilities(row, j) for j in range(len(weights))]
        plain = (1.0 - share) * sum(w * p for w, p in zip(weights, each, strict=True))
        plain = plain + share * row.frequencies
        row.described = self._described(row, plain)
        own = _softmax(row.described @ self.coef)
        switch = 1.0 - (1.0 - _SHARE) ** rate
        belief = self.belief + switch * (0.5 - self.belief)
        out[row.seen] = (1.0 - belief) * plain + belief * own
        return out

    def _ahead(self, gap: int, lag: int) -> tuple[Array, float, float]:
        """Weights (J,) of the filters, the share of the frequencies, and the rate of switching."""
        rate = (1.0 + lag) ** -_LATE
        switch = 1.0 - (1.0 - self.policy.share) ** (gap * rate)
        evidence = len(self.weights) * ((1.0 - switch) * self.weights + switch / len(self.weights))
        late = gap * lag / (1.0 + lag)
        prior = np.array([gamma_of(h) ** late for h in self.policy.half_lives])
        held, before = evidence * prior / prior.sum(), 0.5 * lag / (1.0 + lag)
        frequencies = before * ((1.0 - switch) * self.beside + switch)
        whole = (1.0 - before) * held.sum() + frequencies
        return held / held.sum(), float(frequencies / whole), rate

    def _logits(self, row: Row, j: int) -> Array:
        """Calibrated logits (A,) of a filter, shrunk as in the probit approximation."""
        alpha = self.alphas[j]
        width = math.sqrt(1.0 + math.pi / 8.0 * alpha**2 * row.variances[j])
        return alpha * row.means[j][row.seen] / width

    def _probabilities(self, row: Row, j: int) -> Array:
        return _softmax(self._logits(row, j))

    def _described(self, row: Row, plain: Array) -> Array:
        """What the stack sees of the classes that have come (A, D)."""
        columns = [np.log(np.maximum(plain, _LEAST))]
        columns += [self._logits(row, j) for j in range(len(self.posteriors))]
        seen, past = np.array(row.seen), np.array(self.labels)
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

    def _judge(self, row: Row, label: int, rate: float) -> None:
        place = row.seen.index(label)
        assert row.frequencies is not None
        assert row.described is not None
        logs = [math.log(self._probabilities(row, j)[place]) for j in range(len(self.weights))]
        evidence = self.weights * np.exp(rate * np.array(logs))
        self.weights = evidence / evidence.sum()
        self.beside *= float(row.frequencies[place] ** rate / evidence.sum())
        x, kept = row.described, _KEEP**rate
        own = _softmax(x @ self.coef)
        switch = 1.0 - (1.0 - _SHARE) ** rate
        belief = self.belief + switch * (0.5 - self.belief)
        ours, theirs = belief * own[place] ** rate, (1.0 - belief) * math.exp(rate * x[place, 0])
        self.belief = ours / (ours + theirs)
        centred = x - own @ x
        spread = (centred.T * own) @ centred
        self.precision = kept * self.precision + (1.0 - kept) * self.prior + rate * spread
        pull = (1.0 - kept) * self.prior @ (self.coef - self.first)
        self.coef = self.coef + np.linalg.solve(self.precision, rate * centred[place] - pull)

    def _learn(self, row: Row, label: int, gap: int) -> None:
        seen = np.isin(np.arange(self.posteriors[0].n_outputs), self.labels)
        for j, posterior in enumerate(self.posteriors):
            gamma = gamma_of(self.policy.half_lives[j]) ** gap
            ahead = transition(posterior, gamma=gamma, prior_var=self.prior_vars[j])
            likelihood = self.policy.likelihoods[j]
            if likelihood == "onehot":
                after, _ = update(ahead, row.features, label, noise_var=self.noise_var)
            else:
                options: Any = {"seen": seen, "likelihood": likelihood}
                after, _ = update_softmax(ahead, row.features, label, **options)
            self.posteriors[j] = after


def _softmax(logits: Array) -> Array:
    above = np.exp(logits - logits.max())
    return above / above.sum()
