"""What a mixture has learned."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.bank import Filters
from kalstream.core.half_lives import gamma_of, weighted_median
from kalstream.core.likelihoods import check_likelihood
from kalstream.core.mixture.grids import Calibrations, check_calibrations, grid_of, prior_vars_of
from kalstream.core.policy import BankState, check_seen
from kalstream.core.state import Posterior
from kalstream.errors import InvalidInput

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class MixtureState(BankState):
    """Filters with fixed half-lives, and the weight of each.

    Attributes
    ----------
    bank : Bank, or MixedBank if a filter has an order above 1
        The J filters.
    half_lives, calibrations : J and C numbers
    log_weights : (J, C)
    seen : (K,) bool
    spread : (J, 2)
        Degrees of freedom and sum of squares of each filter's scale, if that is learned.
    likelihoods, prior_scales, orders : J words, and twice J numbers
        As in `Mixture`.
    posteriors : J posteriors
    weights, half_life_weights : (J, C), (J,)
        Posterior over half-lives and calibrations, and over half-lives.
    half_life, gamma, calibration : float
        Medians of that posterior.
    posterior : Posterior
        Posterior of the filter with the largest weight.

    Examples
    --------
    >>> from kalstream.core import Mixture
    >>> policy = Mixture(half_lives=(10.0, 1000.0), predictive="probit")
    >>> rows, labels = np.eye(2)[[0, 1, 0, 1]], np.array([0, 1, 0, 1])
    >>> state = policy.start(2, 2, prior_var=1.0)
    >>> state, step = policy.step_chunk(state, rows, labels, noise_var=0.5, prior_var=1.0)
    >>> state.half_lives, state.half_life_weights.round(2).tolist()
    ((10.0, 1000.0), [0.46, 0.54])
    """

    tag: ClassVar[str] = "MixtureState"

    bank: Filters
    half_lives: tuple[float, ...]
    calibrations: Calibrations
    log_weights: Array
    seen: Array
    spread: Array
    likelihoods: tuple[str, ...] = ()
    prior_scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check.instance("the bank of the state", self.bank, Filters)
        shape = self.bank.n_filters, self.bank.n_features, self.bank.n_outputs
        object.__setattr__(self, "likelihoods", tuple(self.likelihoods) or ("onehot",) * shape[0])
        object.__setattr__(self, "prior_scales", tuple(self.prior_scales) or (1.0,) * shape[0])
        for name in ("half_lives", "prior_scales"):
            values = check.sequence(f"the {name} of the state", getattr(self, name))
            object.__setattr__(self, name, values)
            if not all(value > 0.0 for value in values):
                raise InvalidInput(f"the {name} of the state must be above 0, got {values}")
        for word in self.likelihoods:
            check_likelihood("a likelihood of the state", word)
        for name in ("half_lives", "prior_scales", "likelihoods"):
            if len(getattr(self, name)) != shape[0]:
                raise InvalidInput(
                    f"the state has {shape[0]} filters and {len(getattr(self, name))} "
                    f"{name.replace('half_', 'half-')}; give one for each filter"
                )
        if not self.bank.fits(self.half_lives):
            raise InvalidInput(
                f"the banks of the state are not those of filters with orders {self.orders} and "
                f"half-lives {self.half_lives}; take a state from start or step_chunk"
            )
        name, calibrations = "the calibrations of the state", self.calibrations
        object.__setattr__(self, "calibrations", check_calibrations(name, calibrations, shape[0]))
        n_calibrations = grid_of(self.calibrations, shape[0]).shape[1]
        shapes = {"log_weights": (shape[0], n_calibrations), "spread": (shape[0], 2)}
        for name, expected in shapes.items():
            part = check.block(f"the {name} of the state", getattr(self, name), expected)
            object.__setattr__(self, name, part)
        check_seen(self.seen, shape[2])
        if not (self.spread.min() >= 0.0 and self.spread.max() < math.inf):
            raise InvalidInput(
                f"the spread of the state must be finite and not negative, got {self.spread}"
            )
        whole = self.weights.sum() if self.log_weights.max() < 1.0 else math.inf
        if not abs(whole - 1.0) < 1e-6:
            raise InvalidInput(
                f"the log_weights of the state give weights that sum to {whole}, not to 1"
            )

    @property
    def orders(self) -> tuple[int, ...]:
        """Order of the motion of each filter (J,)."""
        return self.bank.orders

    @property
    def posteriors(self) -> tuple[Posterior, ...]:
        """Posterior of each filter."""
        return tuple(self.bank.posterior(j) for j in range(len(self.half_lives)))

    @property
    def posterior(self) -> Posterior:
        """Posterior of the filter with the largest weight."""
        return self.bank.posterior(self.heaviest)

    @property
    def weights(self) -> Array:
        """Posterior over half-lives and calibrations (J, C)."""
        return np.exp(self.log_weights)

    @property
    def gammas(self) -> tuple[float, ...]:
        """Forgetting coefficient of each filter (J,)."""
        return tuple(gamma_of(value) for value in self.half_lives)

    @property
    def half_life_weights(self) -> Array:
        """Posterior over half-lives (J,)."""
        return self.weights.sum(axis=1)

    @property
    def half_life(self) -> float:
        """Median of the posterior over half-lives."""
        return float(weighted_median(self.half_lives, self.half_life_weights))

    @property
    def gamma(self) -> float:
        """Forgetting coefficient of the median half-life."""
        return gamma_of(self.half_life)

    @property
    def calibration(self) -> float:
        """Median of the posterior over calibrations."""
        grid, weights = np.asarray(self.calibrations), self.weights
        if grid.ndim == 1:
            weights = weights.sum(axis=0)
        return float(weighted_median(grid.ravel(), weights.ravel()))

    def add_features(self, n_features: int, prior_var: float) -> Self:
        """Add features that were 0 in all rows so far, as if they had been there from the start."""
        n_features = check.count("n_features", n_features)
        prior_vars = prior_vars_of(self.prior_scales, prior_var, self.bank.dtype)
        return replace(self, bank=self.bank.add_features(n_features, prior_vars))
