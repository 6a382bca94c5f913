"""Scaling that is learned as the rows pass."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from kalstream.core import _checks as check
from kalstream.core.policy import gamma_of
from kalstream.features.rows import read_rows

Array = NDArray[np.float64]

# A deviation teaches as if it were at most this many standard deviations: an outlier of any size
# widens the scale by less than a tenth after a thousand rows, and a real change still gets through.
_OUTLIER: Final = 10.0


class OnlineScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Standardise columns with the mean and variance of the rows seen so far.

    Constant memory, three numbers a column. Heavy tails are clipped, in what comes out and in what
    is learned; a column that has been constant gives 0. NaN gives 0, which is the mean, and
    teaches nothing. Bad input raises `kalstream.errors.InvalidInput` and changes nothing.

    Parameters
    ----------
    clip : float
        Largest absolute value that comes out, in standard deviations.
    half_life : float
        Rows after which a row's influence has halved; inf weighs all rows alike.

    Attributes
    ----------
    mean_, var_ : (d,)
        Running mean and variance of each column.
    count_ : (d,)
        Number of rows behind them, less what was forgotten.
    n_features_in_ : int

    Examples
    --------
    >>> scaler = OnlineScaler()
    >>> scaler.advance([[1.0], [3.0], [2.0], [4.0]]).ravel().round(2)
    array([0.  , 5.  , 0.  , 2.45])
    >>> scaler.transform([[2.5]])
    array([[0.]])
    """

    def __init__(self, clip: float = 5.0, half_life: float = math.inf) -> None:
        self.clip = clip
        self.half_life = half_life

    def fit(self, X: ArrayLike, y: Any = None) -> OnlineScaler:
        """Forget everything, then learn the rows of X (b, d)."""
        self._check_settings()
        rows = read_rows(self, X, reset=True)
        self._start(rows.shape[1])
        self._advance(rows)
        return self

    def partial_fit(self, X: ArrayLike, y: Any = None) -> OnlineScaler:
        """Learn the rows of X (b, d)."""
        self.advance(X)
        return self

    def transform(self, X: ArrayLike) -> Array:
        """Rows of X (b, d) in standard deviations from the mean, with what is known now."""
        check_is_fitted(self)
        self._check_settings()
        return self._transform(read_rows(self, X, reset=False))

    def advance(self, X: ArrayLike) -> Array:
        """Transform each row of X (b, d) with what was known before it, then learn it."""
        first = not hasattr(self, "count_")
        self._check_settings()
        rows = read_rows(self, X, reset=first)
        if first:
            self._start(rows.shape[1])
        return self._advance(rows)

    def add_columns(self, n_columns: int) -> OnlineScaler:
        """Grow by columns that were missing (NaN) in all rows so far."""
        check_is_fitted(self)
        check.count("n_columns", n_columns)
        for name in ("count_", "mean_", "_spread"):
            setattr(self, name, np.pad(getattr(self, name), (0, n_columns)))
        self.n_features_in_ += n_columns
        return self

    def _transform(self, rows: Array) -> Array:
        """As `transform` of checked rows."""
        from kalstream.features._moments import standardise_rows

        out = np.empty(rows.shape)
        standardise_rows(rows, *self._moments(), float(self.clip), out)
        return out

    def _advance(self, rows: Array) -> Array:
        from kalstream.features._moments import pass_over

        out = np.empty(rows.shape)
        keep = gamma_of(self.half_life)
        pass_over(rows, *self._moments(), keep, float(self.clip), _OUTLIER, out)
        return out

    def _fork(self) -> OnlineScaler:
        """A copy that goes its own way; what is never changed in place is shared."""
        fork = forked(self)
        fork.count_, fork.mean_, fork._spread = (part.copy() for part in self._moments())
        return fork

    @property
    def var_(self) -> Array:
        """Running variance of each column (d,)."""
        return self._spread / np.maximum(self.count_, 1.0)

    def _check_settings(self) -> None:
        check.positive("clip", self.clip)
        gamma_of(self.half_life)

    def _start(self, n_columns: int) -> None:
        self.count_, self.mean_, self._spread = (np.zeros(n_columns) for _ in range(3))

    def _moments(self) -> tuple[Array, Array, Array]:
        return self.count_, self.mean_, self._spread

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def forked(obj: Any) -> Any:
    """A shallow copy, faster than `copy.copy`, which asks scikit-learn for a state to pickle."""
    fork = object.__new__(type(obj))
    fork.__dict__.update(obj.__dict__)
    return fork
