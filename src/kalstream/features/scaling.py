"""Online scaling of columns."""

from __future__ import annotations

import copy
import math
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from kalstream.core import checks as check
from kalstream.core.half_lives import gamma_of
from kalstream.features.online import with_constant
from kalstream.features.rows import read_rows

Array = NDArray[np.float64]

# A deviation is learned as at most this many standard deviations. After a thousand rows, an outlier
# of any size then widens the scale by less than a tenth, while a real change is still followed.
_OUTLIER: Final = 10.0


class OnlineScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Standardise columns with the mean and variance of the rows seen so far.

    Memory is constant: three numbers per column. Heavy tails are clipped, both in the output and in
    what is learned. A column that was constant so far gives 0. NaN gives 0, which is the mean, and
    is not learned. Bad input raises `kalstream.errors.InvalidInput` and changes nothing.

    Parameters
    ----------
    clip : float
        Largest absolute value of the output, in standard deviations.
    half_life : float
        Rows after which the influence of a row has halved; inf gives all rows equal weight.

    Attributes
    ----------
    mean_, var_ : (d,)
        Running mean and variance of each column.
    count_ : (d,)
        Effective number of rows behind them.
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
        """Start again, then learn the rows of X (b, d)."""
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
        """Rows of X (b, d) in standard deviations from the current mean."""
        check_is_fitted(self)
        self._check_settings()
        return self._transform(read_rows(self, X, reset=False))

    def advance(self, X: ArrayLike) -> Array:
        """Transform each row of X (b, d) with the moments before it, then learn it."""
        first = not hasattr(self, "count_")
        self._check_settings()
        rows = read_rows(self, X, reset=first)
        if first:
            self._start(rows.shape[1])
        return self._advance(rows)

    def add_columns(self, n_columns: int) -> OnlineScaler:
        """Add columns that were missing (NaN) in all rows so far."""
        check_is_fitted(self)
        check.count("n_columns", n_columns)
        for name in ("count_", "mean_", "_spread"):
            setattr(self, name, np.pad(getattr(self, name), (0, n_columns)))
        self.n_features_in_ += n_columns
        return self

    # ---- as a value: see `OnlineTransformer` ------------------------------------------------

    always_finite = True

    def width(self, n_columns: int) -> int:
        """As many columns as rows have."""
        return n_columns

    def columns(self, rows: Array) -> Array:
        """Checked rows (b, d) as `transform` scales them."""
        return self._transform(rows)

    def passed(self, rows: Array) -> tuple[OnlineScaler, Array]:
        """The scaler after rows (b, d), and these as `advance` scales them; pure."""
        if hasattr(self, "count_"):
            fork = self._fork()
            return fork, fork._advance(rows)
        fork = copy.deepcopy(self)
        return fork, fork.advance(rows)

    def features(self, columns: Array, lead: int, size: float) -> Array:
        """Columns divided by their size, after ``lead`` columns of ones."""
        return with_constant(columns, lead, size)

    def with_columns(self, n_columns: int) -> OnlineScaler:
        """As `add_columns`; pure."""
        return copy.deepcopy(self).add_columns(n_columns)

    # -------------------------------------------------------------------------------------------

    def _transform(self, rows: Array) -> Array:
        """`transform` for checked rows."""
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
        """An independent copy; it shares arrays that are never changed in place."""
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
    """A shallow copy; `copy.copy` is slower, because it asks scikit-learn for a state."""
    fork = object.__new__(type(obj))
    fork.__dict__.update(obj.__dict__)
    return fork
