"""Plain version of `generative`: the equations for all rows of a class at once, prior given.

Kept beside the compiled recursion, which must give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp, multigammaln

from kalstream._arrays import Array


@dataclass(frozen=True)
class NormalWishart:
    """A normal-inverse-Wishart distribution of a class's mean and covariance.

    Attributes
    ----------
    mean, count, scale, freedom : (d,), float, (d, d), float
        m, k, S and nu.
    """

    mean: Array
    count: float
    scale: Array
    freedom: float

    def posterior(self, rows: Array, weight: Array) -> NormalWishart:
        """After rows (n, d) with weights (n,)."""
        count = self.count + weight.sum()
        mean = (self.count * self.mean + weight @ rows) / count
        scale = self.scale + (rows.T * weight) @ rows
        scale = scale + self.count * np.outer(self.mean, self.mean) - count * np.outer(mean, mean)
        return NormalWishart(mean, count, scale, self.freedom + weight.sum())

    def log_marginal(self, rows: Array) -> float:
        """Log-density of rows (n, d) of one class together."""
        n, d = rows.shape
        after = self.posterior(rows, np.ones(n))
        value = -0.5 * n * d * np.log(np.pi) + 0.5 * d * np.log(self.count / after.count)
        for each, sign in ((self, 1.0), (after, -1.0)):
            value += sign * 0.5 * each.freedom * np.linalg.slogdet(each.scale)[1]
            value -= sign * multigammaln(0.5 * each.freedom, d)
        return float(value)

    def log_density(self, row: Array) -> float:
        """Log-density of the next row (d,): a multivariate t."""
        d = len(row)
        share = self.count / (self.count + 1.0)
        apart = row - self.mean
        quadratic = apart @ np.linalg.solve(self.scale, apart)
        value = gammaln(0.5 * (self.freedom + 1.0)) - gammaln(0.5 * (self.freedom + 1.0 - d))
        value += 0.5 * d * np.log(share / np.pi) - 0.5 * np.linalg.slogdet(self.scale)[1]
        return float(value - 0.5 * (self.freedom + 1.0) * np.log1p(share * quadratic))


def probabilities(
    prior: NormalWishart, classes: Sequence[Array], concentration: float, row: Array
) -> Array:
    """Probabilities (K + 1,) of the classes with these rows (n_k, d), and of a new one."""
    made = [prior.posterior(rows, np.ones(len(rows))).log_density(row) for rows in classes]
    usual = [np.log(len(rows)) for rows in classes]
    each = np.add([*made, prior.log_density(row)], [*usual, np.log(concentration)])
    return np.exp(each - logsumexp(each))
