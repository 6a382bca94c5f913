"""A regressor with a small model for each of many keys."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.keyed import KeyedValues
from kalstream.errors import InvalidInput
from kalstream.estimators._keyed import KeyedEstimator, Known, read_keys
from kalstream.estimators._regression import r_squared
from kalstream.estimators._settings import store
from kalstream.estimators._sharing import interruptible
from kalstream.estimators.inputs import read_columns, read_values
from kalstream.estimators.labels import Labels
from kalstream.estimators.regressor import KalmanRegressor


class KeyedRegressor(RegressorMixin, KeyedEstimator):
    """One regressor for all keys, and a small one for each: per customer, machine or meter.

    A `KalmanRegressor` learns from every row. A small filter bank for each key learns what to add
    to its prediction, linear in the scaled columns. The first row of a new key is predicted as the
    regressor does, and later rows better. How strongly keys differ is learned, from all keys and
    from the key itself; if they do not, predictions stay close to those of the regressor. Nothing
    has to be tuned. A key of 10 columns takes 4 KB.

    Parameters
    ----------
    base : KalmanRegressor, optional
        The model of all keys, with any settings; it is cloned. None: ``KalmanRegressor()``.
    max_keys, folder
        As in `KeyedClassifier`.

    Attributes
    ----------
    spread_ : float
        How strongly keys differ: standard deviation of what a key adds, in units of that of the
        noise within a key; 0 if nothing.
    spread_weights_ : dict
        Posterior over how strongly keys differ, by the targets of all keys. The standard deviations
        of the intercept and of the columns' part, and a half-life in rows of the key: weight.
    base_ : KalmanRegressor
        A copy of the model of all keys.
    keys_, n_keys_, half_life_weights_, n_seen_, nbytes_, n_features_in_, feature_names_in_
        As in `KeyedClassifier`.

    Notes
    -----
    Keys are as in `KeyedClassifier`, and so are batches, failed calls, files and threads. A row has
    one target.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((400, 2))
    >>> shop = np.where(rng.random(400) < 0.5, "north", "south")
    >>> slope = np.where(shop == "north", 2.0, -2.0)  # shops are opposites
    >>> y = slope * X[:, 0] + 0.1 * rng.standard_normal(400)
    >>> model = KeyedRegressor().partial_fit(X, y, shop)
    >>> model.predict([[1.0, 0.0], [1.0, 0.0]], ["north", "south"]).round().tolist()
    [2.0, -2.0]
    >>> mean, std = model.predict([[1.0, 0.0]], ["west"], return_std=True)
    >>> bool(std[0] > 1.0)  # nothing is known of it
    True
    """

    _BASE, _KEYED = KalmanRegressor, KeyedValues

    def __init__(
        self,
        base: KalmanRegressor | None = None,
        max_keys: int | None = None,
        folder: str | None = None,
    ) -> None:
        store(locals())

    # ---- learning -------------------------------------------------------------------------

    def fit(
        self, X: ArrayLike, y: ArrayLike, key: Any, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Forget everything, then learn the rows in their order, once.

        Parameters
        ----------
        X : (b, d)
        y : (b,)
            Targets, none missing.
        key, sample_weight
            As in `partial_fit`.

        Examples
        --------
        >>> KeyedRegressor().fit([[0.0], [1.0]], [0.0, 1.0], ["a", "b"]).n_seen_
        2
        """
        values = _read(y)
        if not np.isfinite(values).all():
            raise InvalidInput(
                "y contains NaN or infinity; fit needs all targets; use partial_fit if some are "
                "missing (NaN)"
            )
        self._learn(X, values, key, sample_weight, restart=True)
        return self

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, key: Any, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Learn a chunk of rows, in their order.

        Parameters
        ----------
        X : (b, d)
        y : (b,)
            Targets, NaN where unknown.
        key : (b,)
            Key of each row.
        sample_weight : (b,), optional
            As in `KalmanRegressor.partial_fit`; 0 is the same as no target.

        Examples
        --------
        >>> model = KeyedRegressor().partial_fit([[0.0], [1.0]], [0.0, 1.0], ["a", "b"])
        >>> model.partial_fit([[2.0]], [float("nan")], ["a"]).n_seen_
        3
        """
        self._learn(X, _read(y), key, sample_weight)
        return self

    def predict_then_learn(
        self, X: ArrayLike, y: ArrayLike, key: Any, sample_weight: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Means and standard deviations (b,), each row before it is learned; then it is learned.

        Before the first target they are NaN and inf.

        Examples
        --------
        >>> model = KeyedRegressor().partial_fit([[0.0], [1.0]], [0.0, 1.0], ["a", "b"])
        >>> mean, std = model.predict_then_learn([[1.0], [2.0]], [1.0, 2.0], ["a", "c"])
        >>> mean.shape, std.shape
        ((2,), (2,))
        """
        return self._learn(X, _read(y), key, sample_weight)

    def _passed_base(
        self, known: Known, base: Any, rows: Array, y: Any, weight: Array | None
    ) -> tuple[Labels, Array, Array]:
        made = base.predict_then_learn(rows, y, sample_weight=weight)
        return known.labels, np.column_stack(made), y.astype(np.float64)

    def _shown(self, known: Known, out: Array) -> tuple[Array, Array]:
        return out[:, 0], out[:, 1]

    # ---- predicting -----------------------------------------------------------------------

    @interruptible
    def predict(self, X: ArrayLike, key: Any, return_std: bool = False) -> Any:
        """Predicted mean of each row (b,), of these keys (b,), which may be new.

        Parameters
        ----------
        X : (b, d)
        key : (b,)
        return_std : bool
            Also return the standard deviation of each target, noise included; see
            `KalmanRegressor.predict`.

        Examples
        --------
        >>> model = KeyedRegressor().partial_fit([[0.0], [1.0]], [0.0, 1.0], ["a", "b"])
        >>> model.predict([[1.0]], ["new"]).shape
        (1,)
        """
        check.flag("return_std", return_std)
        known = self._seen()
        rows, _ = read_columns(X, known.fitted, type(self).__name__)
        keys = read_keys(key, len(rows))
        offsets = np.column_stack(known.base.predict(rows, return_std=True))
        features = known.features(known.scaler.columns(rows))
        mean, std = self._shown(known, known.keyed.predict(known.state, keys, features, offsets))
        return (mean, std) if return_std else mean

    def score(
        self, X: ArrayLike, y: ArrayLike, key: Any, sample_weight: ArrayLike | None = None
    ) -> float:
        """R squared: the share of the variance of y that the predicted means explain.

        Examples
        --------
        >>> X, y, keys = [[0.0], [1.0], [2.0]] * 9, [0.0, 1.0, 2.0] * 9, ["a", "b", "a"] * 9
        >>> KeyedRegressor().fit(X, y, keys).score(X, y, keys) > 0.9
        True
        """
        return r_squared(y, self.predict(X, key), sample_weight)


def _read(y: Any) -> Array:
    """Targets (b,) as numbers, NaN where unknown."""
    values = read_values(y)
    if values.ndim != 1:
        raise InvalidInput(
            f"y has shape {values.shape}; a model by key has one target: give one number for each "
            "row, and use a KeyedRegressor for each column"
        )
    return values
