"""What all estimators share: one published value of all that was learned, and views of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from kalstream._arrays import Array
from kalstream.estimators._sharing import Shared

T = TypeVar("T", bound=Any)


class PublishedEstimator(BaseEstimator, Generic[T]):
    """Holds a value T that never changes, with ``fitted``, ``is_fitted`` and ``n_seen``."""

    def _publish(self, change: Callable[[T | None], tuple[T, Any]], *, restart: bool) -> Any:
        """Publish the value that ``change`` makes of the current one; returns its other result.

        There is no value before the first call, and with ``restart``.
        """
        shared = None if restart else self.__dict__.get("_published")
        if shared is None:
            model, prediction = change(None)
            made = Shared(model)
            if restart:
                self._published = made
                return prediction
            shared = self.__dict__.setdefault("_published", made)
            if shared is made:
                return prediction
        return shared.update(change)

    @property
    def _model(self) -> T:
        """The current model. It can be read while another thread learns."""
        shared = self.__dict__.get("_published")
        if shared is None:
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet; "
                "call fit or partial_fit first."
            )
        return shared.value

    @property
    def n_features_in_(self) -> int:
        """Number of columns of X."""
        return self._fitted("n_features_in_")

    @property
    def feature_names_in_(self) -> Array:
        """Names of the columns of X, if it had names."""
        return self._fitted("feature_names_in_")

    def _fitted(self, name: str) -> Any:
        shared = self.__dict__.get("_published")
        fitted = {} if shared is None else shared.value.fitted
        if "encoding" in fitted:
            names = np.array(fitted["encoding"].inputs, object)
            fitted = {"n_features_in_": len(names), "feature_names_in_": names}
        if name not in fitted:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return fitted[name]

    def __sklearn_is_fitted__(self) -> bool:
        shared = self.__dict__.get("_published")
        return shared is not None and shared.value.is_fitted

    @property
    def n_seen_(self) -> int:
        """Number of rows seen, with a target or without."""
        shared = self.__dict__.get("_published")
        return 0 if shared is None else shared.value.n_seen

    def snapshot(self) -> Self:
        """A copy that keeps what has been learned so far, while this one continues to learn.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> before = model.snapshot()
        >>> model.partial_fit([[1.0]], ["up"]).n_seen_, before.n_seen_
        (3, 2)
        """
        copied = copy.copy(self)
        if "_settings_cache" in self.__dict__:  # never changed; single rows are quick with the same
            copied.__dict__["_settings_cache"] = self.__dict__["_settings_cache"]
        return copied

    def reset(self) -> Self:
        """Forget everything that has been learned.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.reset().n_seen_
        0
        """
        self.__dict__.pop("_published", None)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_settings_cache", None)
        if "_published" in state:
            state["_published"] = state["_published"].value
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_published" in self.__dict__:
            self._published = Shared(self.__dict__["_published"])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = False
        return tags
