"""Estimators with a small model for each key as river models; `river` has them as its own."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from kalstream import estimators
from kalstream._arrays import Array
from kalstream._optional import require
from kalstream.compat._rows import (
    _TARGET,
    Columns,
    _frame,
    _gaussian,
    _grown,
    _items,
    _number,
    _row,
    _rows,
    _targets,
    _unwrapped,
)
from kalstream.core import checks as check
from kalstream.errors import InvalidInput
from kalstream.estimators.inputs import read_weights
from kalstream.estimators.labels import read_labels

require("river", "river")
base: Any = require("river.base", "river")


class _KeyedAdapter:
    """Turns dicts with a key and DataFrames into rows and keys of an estimator by key."""

    _ESTIMATOR: ClassVar[Any]
    _read_many: ClassVar[Any]  # reads the targets of the rows of a frame

    def __init__(
        self,
        key: Hashable,
        base: Any = None,
        max_keys: int | None = None,
        folder: str | None = None,
    ) -> None:
        self.key, self.base, self.max_keys, self.folder = key, base, max_keys, folder
        # Replaced in one assignment, so that other threads can predict meanwhile.
        self._known: tuple[Columns, Any] = {}, self._ESTIMATOR(base, max_keys, folder)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"key": "key"}

    @property
    def estimator(self) -> Any:
        """The scikit-learn estimator that learns."""
        return self._known[1]

    @property
    def feature_names_(self) -> tuple[Hashable, ...]:
        """The features, in the order of the estimator's columns."""
        return tuple(self._known[0])

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        """Learn the rows of a DataFrame in their order; see `KalmanClassifier.learn_many`."""
        targets, frame, keys = self._read_many(y), _frame(X, without=self.key), self._keys(X)
        new = [name for name in frame if name not in self._known[0]]
        columns = self._with([name for name in new if not np.isnan(frame[name]).all()])
        rows = _rows(frame, columns, slice(0, len(X)))
        estimator = self._known[1]
        estimator.partial_fit(rows, targets, keys, read_weights(w, len(X), "w"))
        self._known = columns, estimator

    def _learn_row(self, x: Mapping[Hashable, Any], y: Any, w: float) -> None:
        columns, estimator = self._known
        key, features = self._parted(x)
        fresh: list[Hashable] = []
        _row(features, columns, fresh)
        columns = self._with(fresh)
        weight = read_weights(check.scalar("w", w), 1, "w")
        estimator.partial_fit(_row(features, columns), [y], [key], weight)
        self._known = columns, estimator

    def _ready(self, x: Mapping[Hashable, Any]) -> tuple[Any, Array, list[Any]] | None:
        """The estimator, the row and its key; None before the first row."""
        columns, estimator = self._known
        key, features = self._parted(x)
        row = _row(features, columns)
        return (estimator, row, [key]) if estimator.__sklearn_is_fitted__() else None

    def _ready_many(self, X: Any) -> tuple[Any, Array, list[Any]] | None:
        """The estimator, rows and keys of a frame; None without rows or before the first row."""
        columns, estimator = self._known
        frame, keys = _frame(X, only=columns), self._keys(X)
        if not estimator.__sklearn_is_fitted__() or not len(X):
            return None
        return estimator, _rows(frame, columns, slice(0, len(X))), keys

    def _parted(self, x: Any) -> tuple[Any, dict[Hashable, Any]]:
        """The key of a row, and its features."""
        features = dict(_items(x))
        if self.key not in features:
            raise InvalidInput(
                f"x has no {check.shown(self.key)}, which is the key; give it in each row"
            )
        return features.pop(self.key), features

    def _keys(self, X: Any) -> list[Any]:
        if self.key not in X.columns:
            raise InvalidInput(f"X has no column {check.shown(self.key)}, which is the key")
        return list(X[self.key].tolist())

    def _with(self, fresh: list[Hashable]) -> Columns:
        """The columns with features that have come, which is too late after the first row."""
        columns, estimator = self._known
        if fresh and "_published" in vars(estimator):
            raise InvalidInput(
                f"feature {check.shown(fresh[0])} came after the first row; give all features in "
                "the first row, 0 where they have no value yet, or leave it out"
            )
        return _grown(columns, estimator, fresh)[0]


class KeyedClassifier(_KeyedAdapter, base.MiniBatchClassifier):
    """One model for all keys, and a small one for each, for river: per customer or machine.

    `kalstream.KeyedClassifier` on rows that are dicts, of which one entry is the key.

    Parameters
    ----------
    key : str or any other name
        The entry of a row that is its key. It is no feature.
    base : kalstream.KalmanClassifier, optional
        The model of all keys, with any settings.
    max_keys, folder
        As in `kalstream.KeyedClassifier`.

    Attributes
    ----------
    estimator : kalstream.KeyedClassifier
        Has all other attributes, such as `n_keys_` and `spread_`.
    feature_names_ : tuple
        The features, in the order of the estimator's columns.

    Notes
    -----
    Features are those of the first row learned, or of the first frame. Later a feature may be
    missing, but none may be new. `predict_proba_one` is what
    `kalstream.KeyedClassifier.predict_then_learn` would give, and sees recent labels. A frame is
    predicted without them.

    Examples
    --------
    >>> model = KeyedClassifier("shop")
    >>> for step in range(100):
    ...     size, shop = step % 5 - 2, ["north", "south"][step % 7 % 2]
    ...     buys = (size > 0) == (shop == "north")
    ...     model.learn_one({"shop": shop, "size": size}, "buys" if buys else "leaves")
    >>> [model.predict_one({"shop": shop, "size": 2}) for shop in ("north", "south")]
    ['buys', 'leaves']
    """

    _ESTIMATOR = estimators.KeyedClassifier
    _read_many = staticmethod(read_labels)

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Mapping[Hashable, Any], y: Any, w: float = 1.0) -> None:
        """Learn a row.

        Parameters
        ----------
        x : dict
            Features and the key.
        y, w
            As in `KalmanClassifier.learn_one`.
        """
        if not isinstance(y, Hashable):
            raise InvalidInput(
                f"y is {check.shown(y)}, which cannot be a label; use a number or a string"
            )
        self._learn_row(x, y, w)

    def predict_proba_one(self, x: Mapping[Hashable, Any]) -> dict[Any, float]:
        """Probability of each label seen so far; empty before the first label.

        Parameters
        ----------
        x : dict
            Features and the key, which may be new.
        """
        if (ready := self._ready(x)) is None:
            return {}
        estimator, row, key = ready
        made, classes = estimator.probabilities_and_classes(row, key, is_next=True)
        return dict(zip(classes.tolist(), made[0].tolist(), strict=True))

    def predict_one(self, x: Mapping[Hashable, Any]) -> Any:
        """Most probable label; None before the first label."""
        probabilities = self.predict_proba_one(x)
        return max(probabilities, key=probabilities.__getitem__) if probabilities else None

    def predict_proba_many(self, X: Any) -> Any:
        """Probabilities of the labels seen so far (columns) for each row of a DataFrame."""
        ready = self._ready_many(X)
        pandas = sys.modules["pandas"]
        if ready is None:
            return pandas.DataFrame(index=X.index)
        estimator, rows, keys = ready
        made, classes = estimator.probabilities_and_classes(rows, keys)
        return pandas.DataFrame(made, index=X.index, columns=classes.tolist())

    def predict_many(self, X: Any) -> Any:
        """Most probable label of each row of a DataFrame; None before the first label."""
        made = self.predict_proba_many(X)
        if made.shape[1]:
            return made.idxmax(axis=1)
        return sys.modules["pandas"].Series([None] * len(X), index=X.index, dtype=object)


class KeyedRegressor(_KeyedAdapter, base.MiniBatchRegressor):
    """One regressor for all keys, and a small one for each, for river: per customer or machine.

    `kalstream.KeyedRegressor` on rows that are dicts, of which one entry is the key.

    Parameters
    ----------
    key : str or any other name
        The entry of a row that is its key. It is no feature.
    base : kalstream.KalmanRegressor, optional
        The model of all keys, with any settings.
    max_keys, folder
        As in `kalstream.KeyedRegressor`.

    Attributes
    ----------
    estimator : kalstream.KeyedRegressor
        Has all other attributes, such as `n_keys_` and `spread_`.
    feature_names_ : tuple
        The features, in the order of the estimator's columns.

    Notes
    -----
    As in `KeyedClassifier`.

    Examples
    --------
    >>> model = KeyedRegressor("shop")
    >>> for step in range(100):
    ...     size, shop = step % 5 - 2, ["north", "south"][step % 7 % 2]
    ...     model.learn_one({"shop": shop, "size": size}, size if shop == "north" else -size)
    >>> [round(model.predict_one({"shop": shop, "size": 2})) for shop in ("north", "south")]
    [2, -2]
    """

    _ESTIMATOR = estimators.KeyedRegressor
    _read_many = staticmethod(_targets)

    def learn_one(self, x: Mapping[Hashable, Any], y: float | None, w: float = 1.0) -> None:
        """Learn a row.

        Parameters
        ----------
        x : dict
            Features and the key.
        y, w
            As in `KalmanRegressor.learn_one`.
        """
        self._learn_row(x, _number("y", _unwrapped(y), _TARGET), w)

    def predict_one(self, x: Mapping[Hashable, Any], with_dist: bool = False) -> Any:
        """Predicted mean; 0.0 before the first target.

        Parameters
        ----------
        x : dict
            Features and the key, which may be new.
        with_dist : bool
            As in `KalmanRegressor.predict_one`.
        """
        check.flag("with_dist", with_dist)
        mean, std = 0.0, math.inf
        if (ready := self._ready(x)) is not None:
            estimator, row, key = ready
            mean, std = (float(part[0]) for part in estimator.predict(row, key, return_std=True))
            mean = 0.0 if math.isnan(mean) else mean
        return _gaussian(mean, std) if with_dist else mean

    def predict_many(self, X: Any) -> Any:
        """Predicted mean of each row of a DataFrame; 0.0 before the first target."""
        ready = self._ready_many(X)
        made = np.zeros(len(X)) if ready is None else np.nan_to_num(ready[0].predict(*ready[1:]))
        return sys.modules["pandas"].Series(made, index=X.index)
