"""Plain version of `keyed`, from `recursion`: one row, one filter and full matrices at a time.

Kept beside the compiled loop, which must give the same.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from scipy.special import log_softmax, logsumexp

from kalstream._arrays import Array
from kalstream.core.keyed import Keyed
from kalstream.core.recursion import update_softmax
from kalstream.core.state import Posterior


class Plain:
    """All keys under the hypotheses of ``settings``; it changes as it learns.

    A filter's offset is the weight of one more feature, which is 1 and has no variance.
    """

    def __init__(self, settings: Keyed, n_classes: int) -> None:
        self.settings, self.n_classes = settings, n_classes
        self.pooled = settings.start().pooled
        self.evidence: dict[Hashable, Array] = {}
        self.filters: dict[Hashable, list[tuple[Array, Array]]] = {}

    def step(
        self, key: Hashable, phi: Array, offset: Array, label: int, weight: float
    ) -> tuple[Array, Array]:
        """Probabilities (K,) before the label is learned, and weights of hypotheses (1 + F,)."""
        settings, seen = self.settings, offset > -np.inf
        n, at = len(self.pooled), np.flatnonzero(seen)
        prior = (1.0 - settings.own) * np.exp(self.pooled) + settings.own / n
        evidence = self.evidence.get(key, np.zeros(n))
        weights = np.log(prior) + evidence
        weights = np.exp(weights - logsumexp(weights))
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
        made = weight * logs[:, label]
        self.evidence[key] = settings.keep * evidence + made
        pooled = np.log((1.0 - settings.share) * np.exp(self.pooled) + settings.share / n) + made
        self.pooled = pooled - logsumexp(pooled)
        after = [
            update_softmax(posterior, row, label, seen=seen, sample_weight=weight)[0]
            for posterior, row in filters
        ]
        self.filters[key] = [(each.mean[:-1], each.cov[:-1, :-1]) for each in after]
        return out, weights

    def _ahead(self, key: Hashable, f: int, phi: Array, offset: Array) -> tuple[Posterior, Array]:
        """A filter one row ahead, with the offset as a weight; and the row that goes with it."""
        prior, gamma = np.diag(self.settings.prior_vars[f]), self.settings.gammas[f]
        mean, cov = np.zeros((len(phi), self.n_classes)), prior
        if key in self.filters:
            mean, cov = self.filters[key][f]
        cov = gamma**2 * cov + (1.0 - gamma**2) * prior
        # Before any row, averaging over what a key may be gives back the offset.
        lift = np.sqrt(1.0 + np.pi / 8.0 * (phi @ prior @ phi))
        lifted = np.where(offset > -np.inf, lift * offset, 0.0)
        mean = np.vstack([gamma * mean, lifted])
        return Posterior(mean, np.pad(cov, (0, 1))), np.append(phi, 1.0)
