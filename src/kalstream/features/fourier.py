"""Random Fourier features of online-scaled columns."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from kalstream.core import checks as check
from kalstream.errors import InvalidInput, OutOfMemory
from kalstream.features.rows import read_rows
from kalstream.features.scaling import OnlineScaler, forked

Array = NDArray[np.float64]


class RandomFourierFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Cosines and sines of random projections, which give a linear filter a Gaussian kernel.

    Columns are first scaled online (`OnlineScaler`). The waves of a row have norm 1. Their inner
    products approximate `exp(-|z - z'|^2 / (2 bandwidth^2))` of the scaled rows z.

    Parameters
    ----------
    n_components : int
        Number of waves, rounded up to an even number.
    bandwidth : float or "auto"
        Length scale in standard deviations. "auto" is the square root of the number of columns d:
        the squared distance of two independent rows is 2 d on average, which gives a kernel of 1/e.
    linear : bool
        Append the scaled columns themselves, divided by sqrt(d).
    random_state : int, RandomState, Generator or None
        Seed of the projections, which are drawn once, when the number of columns is known.
    half_life : float
        Of the scaling, in rows; see `OnlineScaler`.

    Attributes
    ----------
    scaler_ : OnlineScaler
    projection_ : (d, n_components / 2)
    bandwidth_ : float
    n_features_in_ : int

    References
    ----------
    Rahimi and Recht (2007), "Random Features for Large-Scale Kernel Machines".

    Examples
    --------
    >>> features = RandomFourierFeatures(n_components=4, random_state=0)
    >>> features.advance([[1.0, 2.0], [3.0, 4.0]]).shape
    (2, 6)
    """

    scaler_: OnlineScaler
    projection_: Array

    def __init__(
        self,
        n_components: int = 200,
        bandwidth: float | str = "auto",
        linear: bool = True,
        random_state: Any = None,
        half_life: float = math.inf,
    ) -> None:
        self.n_components = n_components
        self.bandwidth = bandwidth
        self.linear = linear
        self.random_state = random_state
        self.half_life = half_life

    def fit(self, X: ArrayLike, y: Any = None) -> RandomFourierFeatures:
        """Start again, then learn the scale of the rows of X (b, d)."""
        rows = self._begin(X)
        self.scaler_._advance(rows)
        return self

    def partial_fit(self, X: ArrayLike, y: Any = None) -> RandomFourierFeatures:
        """Learn the scale of the rows of X (b, d)."""
        if not hasattr(self, "scaler_"):
            return self.fit(X)
        self.scaler_.partial_fit(X)
        return self

    def transform(self, X: ArrayLike) -> Array:
        """Features of the rows of X (b, d), with the current scale."""
        check_is_fitted(self)
        return self._waves(self.scaler_.transform(X))

    def add_columns(self, n_columns: int) -> RandomFourierFeatures:
        """Add columns that were missing (NaN) in all rows so far; the bandwidth stays."""
        check_is_fitted(self)
        check.count("n_columns", n_columns)
        drawn = self._drawn(self._source, n_columns, self.bandwidth_)
        self.scaler_.add_columns(n_columns)
        self.projection_ = np.vstack([self.projection_, drawn])
        return self

    def advance(self, X: ArrayLike) -> Array:
        """Transform each row of X (b, d) with the scale before it, then learn its scale."""
        if hasattr(self, "scaler_"):
            return self._waves(self.scaler_.advance(X))
        rows = self._begin(X)
        return self._waves(self.scaler_._advance(rows))

    def scaled(self, X: ArrayLike) -> Array:
        """Rows of X (b, d) as `advance` scales them, before the waves; learn their scale."""
        if hasattr(self, "scaler_"):
            return self.scaler_.advance(X)
        rows = self._begin(X)
        return self.scaler_._advance(rows)

    def waves(self, scaled: ArrayLike, lead: int = 0) -> Array:
        """Features (b, lead + m) of rows from `scaled`, after ``lead`` columns of ones."""
        return self._waves(np.asarray(scaled, np.float64), lead)

    # ---- as a value: see `OnlineTransformer` ------------------------------------------------

    always_finite = True

    def width(self, n_columns: int) -> int:
        """As many columns as rows have: those before the waves."""
        return n_columns

    def columns(self, rows: Array) -> Array:
        """Checked rows (b, d) as they are scaled, before the waves."""
        return self.scaler_.columns(rows)

    def passed(self, rows: Array) -> tuple[RandomFourierFeatures, Array]:
        """The transformer after rows (b, d), and these as `scaled` makes them; pure."""
        if hasattr(self, "scaler_"):
            fork = self._fork()
            return fork, fork.scaler_._advance(rows)
        fork = copy.deepcopy(self)
        return fork, fork.scaled(rows)

    def features(self, columns: Array, lead: int, size: float) -> Array:
        """Waves (b, lead + m) of scaled columns; they have norm 1 whatever the ``size``."""
        return self._waves(columns, lead)

    def with_columns(self, n_columns: int) -> RandomFourierFeatures:
        """As `add_columns`; pure."""
        return copy.deepcopy(self).add_columns(n_columns)

    # -------------------------------------------------------------------------------------------

    def _fork(self) -> RandomFourierFeatures:
        """As `OnlineScaler._fork`."""
        fork = forked(self)
        fork.scaler_ = self.scaler_._fork()
        return fork

    @property
    def n_features_in_(self) -> int:
        """Number of columns, d."""
        return int(self.scaler_.n_features_in_)

    @property
    def _n_features_out(self) -> int:
        return 2 * self.projection_.shape[1] + (self.n_features_in_ if self.linear else 0)

    def _begin(self, X: ArrayLike) -> Array:
        """Start again with the columns of X; returns its rows (b, d), not learned yet.

        Everything is checked before anything changes.
        """
        check.count("n_components", self.n_components)
        check.flag("linear", self.linear)
        scaler = OnlineScaler(half_life=self.half_life)
        scaler._check_settings()
        rows: Array = read_rows(scaler, X, reset=True)
        n_columns = rows.shape[1]
        bandwidth, source = self._bandwidth(n_columns), _source(self.random_state)
        projection = self._drawn(source, n_columns, bandwidth)
        scaler._start(n_columns)
        self.bandwidth_, self._source, self.projection_ = bandwidth, source, projection
        self._size = n_columns**0.5
        self.__dict__.pop("feature_names_in_", None)
        if hasattr(scaler, "feature_names_in_"):
            self.feature_names_in_ = scaler.feature_names_in_
        self.scaler_ = scaler
        return rows

    def _drawn(self, source: Any, n_columns: int, bandwidth: float) -> Array:
        """Draw the projections of ``n_columns`` columns."""
        shape = n_columns, (self.n_components + 1) // 2
        try:
            return source.standard_normal(shape) / bandwidth
        except (MemoryError, ValueError) as error:
            raise OutOfMemory(
                f"projections of {n_columns} columns to n_components={self.n_components} waves "
                f"need {8 * shape[0] * shape[1] / 2**30:.1f} GiB of memory; lower n_components, or "
                "pass fewer columns"
            ) from error

    def _bandwidth(self, n_columns: int) -> float:
        if isinstance(self.bandwidth, str):
            if self.bandwidth != "auto":
                raise InvalidInput(f'bandwidth must be "auto" or a number, got {self.bandwidth!r}')
            return float(n_columns) ** 0.5
        return check.positive("bandwidth", self.bandwidth)

    def _waves(self, scaled: Array, lead: int = 0) -> Array:
        from kalstream.features._moments import waves

        try:
            return waves(scaled, self.projection_, self._size, lead, bool(self.linear))
        except MemoryError as error:
            n = len(scaled) * (self._n_features_out + lead)
            raise OutOfMemory(
                f"{len(scaled)} rows of n_components={self.n_components} waves need "
                f"{8 * n / 2**30:.1f} GiB of memory; lower n_components, or pass fewer rows at once"
            ) from error

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _source(random_state: Any) -> Any:
    """A random generator from anything that scikit-learn accepts, or from a Generator."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    try:
        return check_random_state(random_state)
    except Exception as error:
        raise InvalidInput(
            "random_state must be None, an integer in [0, 2**32 - 1], a RandomState or a "
            f"Generator, got {check.shown(random_state)}"
        ) from error
