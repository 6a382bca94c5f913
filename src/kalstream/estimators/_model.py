"""All that an estimator has learned, as one value that is never changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream.core.bank import BankStep
from kalstream.core.stacking import Stack
from kalstream.core.state import Posterior, Step
from kalstream.estimators._labels import Labels
from kalstream.estimators._representation import Representation
from kalstream.estimators._watch import Watch

Array = NDArray[Any]

# So many of the last rows are kept for `health_`.
_LAST_ROWS: Final = 64


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a model, as `filters_` shows it.

    Attributes
    ----------
    half_life, gamma : float
    weight : float
        How much it is believed.
    posterior : Posterior

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> model = KalmanClassifier(1.0, "raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
    >>> model.filters_[0].half_life, model.filters_[0].weight
    (inf, 1.0)
    """

    half_life: float
    gamma: float
    weight: float
    posterior: Posterior


@dataclass(frozen=True)
class Model:
    """All that has been learned. Never changed, so that readers see it whole.

    Attributes
    ----------
    representation : Representation
    state : FilterState, MixtureState, or None before the first class is known
    labels : Labels
    counts : (K,)
        Examples of each class, in the order of the columns.
    n_seen : int
        Rows that have passed, with a target or not.
    time : float or None
        Of the last row.
    watch : Watch
    told : BankStep, Step or None
        What the last rows told about themselves.
    offset, spread : (K,), (2,)
        Of a regression: what is subtracted from targets, and the scale (see `KalmanRegressor`).
    seed : int
        Of sampled predictions.
    stack, ordered : Stack or None
        Of a classification by a mixture: for any row, and for the next one of rows whose labels
        are known in time.
    fitted : dict
        What scikit-learn's contract wants to be known of the first rows: n_features_in_ and such.
    """

    representation: Representation
    state: Any
    labels: Labels
    counts: Array
    n_seen: int
    time: float | None
    watch: Watch
    told: Any
    offset: Array | None
    spread: Array
    seed: int
    stack: Stack | None = None
    ordered: Stack | None = None
    fitted: dict[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> Model:
        """As `dataclasses.replace`, in a fraction of the time."""
        other = object.__new__(Model)
        other.__dict__.update(self.__dict__, **changes)
        return other


def tail(told: Any) -> Any:
    """The last rows of a step, without their means if these are many: enough for `health_`."""
    n = len(told.noise_var)
    if n <= _LAST_ROWS and told.logit_mean.size <= 1000:
        return told
    cut = slice(max(0, n - _LAST_ROWS), n)
    parts = [
        told.logit_var[..., cut],
        told.gamma[..., cut],
        told.noise_var[cut],
        told.nis[..., cut],
    ]
    if n > _LAST_ROWS:
        parts = [part.copy() for part in parts]
    kind = BankStep if isinstance(told, BankStep) else Step
    return kind(np.empty((*parts[0].shape, 0)), *parts)
