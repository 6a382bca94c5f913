"""Plain version of `keyed`, from `recursion`: one row, one filter and full matrices at a time.

Kept beside the compiled loop, which must give the same.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from scipy.special import log_softmax, logsumexp
from scipy.stats import norm

from kalstream._arrays import Array
from kalstream.core.keyed import Keyed, KeyedValues
from kalstream.core.recursion import predict, update, update_softmax
from kalstream.core.state import Posterior


class Plain:
    """All keys under the hypotheses of ``settings``; it changes as it learns.

    A filter's offset is the weight of one more feature, which is 1 and has no variance.
    """

    def __init__(self, settings: Keyed, n_classes: int) -> None:
        self.settings, self.n_classes = settings, n_classes
        self.pooled = self.used = settings.start().heard.weights
        self.n_rows = 0
        self.log_vars: list[float] = []  # of numbers learned, by what is known of all keys
        self.used_vars: list[float] = []
        self.evidence: dict[Hashable, Array] = {}
        self.filters: dict[Hashable, list[tuple[Array, Array]]] = {}

    def step(
        self, key: Hashable, phi: Array, offset: Array, label: int, weight: float
    ) -> tuple[Array, Array]:
        """Probabilities (K,) before the label is learned, and weights of hypotheses (1 + F,)."""
        self._meet()
        seen = offset > -np.inf
        n, at = len(self.pooled), np.flatnonzero(seen)
        weights = self._weights(key)
        filters = [self._ahead(key, f, phi, offset) for f in range(n - 1)]
        logs = np.full((n, self.n_classes), -np.inf)
        if not len(at):
            return np.zeros(self.n_classes), weights
        logs[0, at] = log_softmax(offset[at])
        for f, (posterior, row) in enumerate(filters):
            shrink = 1.0 / np.sqrt(1.0 + np.pi / 8.0 * (row @ posterior.cov @ row))
            logs[1 + f, at] = log_softmax(shrink * (row @ posterior.mean)[at])
        out = weights @ np.exp(logs)
        if label < 0 or weight <= 0.0 or len(at) < 2 or not seen[label]:
            return out, weights
        self._judge(key, weight * logs[:, label])
        after = [
            update_softmax(posterior, row, label, seen=seen, sample_weight=weight)[0]
            for posterior, row in filters
        ]
        self.filters[key] = [(each.mean[:-1], each.cov[:-1, :-1]) for each in after]
        return out, weights

    def _meet(self) -> None:
        """Before a row: use what all keys have said, if it is time."""
        n, every = self.n_rows, self.settings.every
        if n % every == 0 or (n < every and n & (n - 1) == 0):
            self.used, self.used_vars = self.pooled, list(self.log_vars)
        self.n_rows += 1

    def _weights(self, key: Hashable) -> Array:
        n, own = len(self.pooled), self.settings.own
        weights = np.log((1.0 - own) * np.exp(self.used) + own / n)
        weights = weights + self.evidence.get(key, 0.0)
        return np.exp(weights - logsumexp(weights))

    def _judge(self, key: Hashable, made: Array) -> None:
        """Learn from the log-densities (1 + F,) of a target."""
        share, keep = self.settings.share, self.settings.keep
        self.evidence[key] = keep * self.evidence.get(key, 0.0) + made
        pooled = np.log((1.0 - share) * np.exp(self.pooled) + share / len(made)) + made
        self.pooled = pooled - logsumexp(pooled)

    def _ahead(self, key: Hashable, f: int, phi: Array, offset: Array) -> tuple[Posterior, Array]:
        """A filter one row ahead, with the offset as a weight; and the row that goes with it."""
        prior, posterior = self._before(key, f)
        mean, cov = posterior.mean, posterior.cov
        # Before any row, averaging over what a key may be gives back the offset.
        lift = np.sqrt(1.0 + np.pi / 8.0 * (phi @ prior @ phi))
        lifted = np.where(offset > -np.inf, lift * offset, 0.0)
        return Posterior(np.vstack([mean, lifted]), np.pad(cov, (0, 1))), np.append(phi, 1.0)

    def _before(self, key: Hashable, f: int) -> tuple[Array, Posterior]:
        """The prior covariance of a filter, and what it says one row ahead."""
        prior, gamma = np.diag(self.settings.prior_vars[f]), self.settings.gammas[f]
        mean, cov = np.zeros((len(prior), self.n_classes)), prior
        if key in self.filters:
            mean, cov = self.filters[key][f]
        return prior, Posterior(gamma * mean, gamma**2 * cov + (1.0 - gamma**2) * prior)


class PlainValues(Plain):
    """As `Plain`, for `KeyedValues`."""

    def __init__(self, settings: KeyedValues) -> None:
        super().__init__(settings, 1)

    def step(
        self, key: Hashable, phi: Array, offset: Array, value: float, weight: float
    ) -> tuple[Array, Array]:
        """Mean and standard deviation before the target is learned, and weights (1 + F,)."""
        self._meet()
        (center, std), weights = offset, self._weights(key)
        if not np.isfinite(offset).all():
            return offset, weights
        noise = self._noise(std**2)
        means, variances, filters = [center], [std**2], []
        for f in range(len(weights) - 1):
            prior, posterior = self._before(key, f)
            mean, var = predict(posterior, phi)
            means.append(center + mean[0])
            before = phi @ prior @ phi
            unknown = var / before if before > 0.0 else 1.0
            usual = prior[0, 0] + np.mean(prior.diagonal()[1:] if len(phi) > 1 else 0.0)
            variances.append(std**2 * (unknown * usual + noise) / (usual + noise))
            filters.append(posterior)
        mean = weights @ means
        out = np.array([mean, np.sqrt(weights @ (variances + (means - mean) ** 2))])
        if np.isnan(value) or weight <= 0.0:
            return out, weights
        logs = norm.logpdf(value, means, np.sqrt(variances))
        self._judge(key, weight * np.logaddexp(np.log(0.99) + logs, np.log(0.01) + logs[0]))
        after = [update(each, phi, value - center, noise_var=noise / weight)[0] for each in filters]
        self.filters[key] = [(each.mean, each.cov) for each in after]
        self.log_vars.append(np.log(std**2))
        return out, weights

    def _noise(self, var: float) -> float:
        """A variance in units of the usual one: a geometric mean of those of rows before."""
        age = np.arange(len(self.used_vars))[::-1]
        usual = np.average(self.used_vars, weights=self.settings.keep**age) if len(age) else None
        return 1.0 if usual is None else float(var / np.exp(usual))
