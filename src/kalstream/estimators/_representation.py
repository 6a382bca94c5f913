"""From rows to the features of the filter; scaling is learned from the rows so far."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from kalstream.errors import InvalidInput
from kalstream.features import OnlineScaler, RandomFourierFeatures

Array = NDArray[Any]

FEATURES: Final = ("raw", "scaled", "fourier")
_OWN: Final = (OnlineScaler, RandomFourierFeatures)


@dataclass(frozen=True, slots=True)
class Representation:
    """A transformer, a divisor, and a constant for the intercept. Never changed.

    Attributes
    ----------
    transformer : object with transform and partial_fit (or advance), or None for raw columns
    size : float
        Raw and scaled columns are divided by it: the square root of their number, so that a row
        has a norm of about 1.
    intercept : bool
    """

    transformer: Any
    size: float
    intercept: bool

    @classmethod
    def of(
        cls,
        features: Any,
        n_components: int,
        random_state: Any,
        intercept: bool,
        n_columns: int,
        half_life: float,
    ) -> Representation:
        """The representation that the parameters of an estimator ask for.

        ``half_life`` is that of the scaling by "scaled" and "fourier".
        """
        if not isinstance(intercept, bool | np.bool_):
            raise InvalidInput(f"intercept must be True or False, got {intercept!r}")
        root = math.sqrt(n_columns)
        if isinstance(features, str):
            if features not in FEATURES:
                raise InvalidInput(
                    f"features must be {', '.join(map(repr, FEATURES))} or a transformer, "
                    f"got {features!r}"
                )
            if features == "raw":
                return cls(None, root, intercept)
            if features == "scaled":
                return cls(OnlineScaler(half_life=half_life), root, intercept)
            waves = RandomFourierFeatures(
                n_components=n_components, random_state=random_state, half_life=half_life
            )
            return cls(waves, 1.0, intercept)
        if not (hasattr(features, "transform") and hasattr(features, "partial_fit")):
            raise InvalidInput(
                f"features={features!r} lacks partial_fit or transform; give a transformer that "
                'learns as rows pass, or "raw", "scaled" or "fourier"'
            )
        return cls(clone(features), 1.0, intercept)

    @property
    def is_own(self) -> bool:
        """Whether features are always finite: no transformer of another library makes them."""
        return self.transformer is None or type(self.transformer) in _OWN

    def transform(self, rows: Array) -> Array:
        """Features (b, m) of rows (b, d), with what is known now."""
        if self.transformer is None:
            return self._features(rows)
        # Our own, without checking the rows again.
        if type(self.transformer) is RandomFourierFeatures:  # it makes the constant itself
            return self.transformer._transform(rows, int(self.intercept))
        if type(self.transformer) is OnlineScaler:
            return self._features(self.transformer._transform(rows))
        return self._features(self.transformer.transform(rows))

    def advance(self, rows: Array) -> tuple[Representation, Array]:
        """Features (b, m) of rows (b, d) that pass, and the representation after them.

        Each row is seen with what was known before it; a transformer without `advance` learns
        the whole chunk first.
        """
        if self.transformer is None:
            return self, self._features(rows)
        # Others may be reading this one.
        if type(self.transformer) in _OWN and hasattr(self.transformer, "n_features_in_"):
            learner = self.transformer._fork()
            after = Representation(learner, self.size, self.intercept)
            if isinstance(learner, RandomFourierFeatures):
                return after, learner._advance(rows, int(self.intercept))
            return after, self._features(learner._advance(rows))
        learner = copy.deepcopy(self.transformer)
        if hasattr(learner, "advance"):
            made = learner.advance(rows)
        else:
            made = learner.partial_fit(rows).transform(rows)
        return replace(self, transformer=learner), self._features(made)

    def scaled(self, rows: Array) -> tuple[Representation, Array]:
        """Rows (b, d) as they pass, in the form (b, d') that `features` takes, and what is after.

        It is smaller than the features, so it can be kept until the rows are learned.
        """
        if self.transformer is None:
            return self, rows
        if type(self.transformer) in _OWN and hasattr(self.transformer, "n_features_in_"):
            fork = self.transformer._fork()
            scaler = fork if isinstance(fork, OnlineScaler) else fork.scaler_
            return Representation(fork, self.size, self.intercept), scaler._advance(rows)
        learner = copy.deepcopy(self.transformer)
        if isinstance(learner, RandomFourierFeatures):
            made = learner.scaled(rows)
        elif hasattr(learner, "advance"):
            made = learner.advance(rows)
        else:
            made = learner.partial_fit(rows).transform(rows)
        made = made.toarray() if hasattr(made, "toarray") else np.asarray(made, np.float64)
        return replace(self, transformer=learner), made

    def columns(self, rows: Array) -> Array:
        """Rows (b, d) as `scaled` makes them, with what is known now."""
        if self.transformer is None:
            return rows
        if type(self.transformer) in _OWN:
            scaler = getattr(self.transformer, "scaler_", self.transformer)
            return scaler._transform(rows)
        made = self.transformer.transform(rows)
        return made.toarray() if hasattr(made, "toarray") else np.asarray(made, np.float64)

    def width(self, n_columns: int) -> int | None:
        """Columns of `scaled`; None if only a transformer of another library knows."""
        return n_columns if self.is_own else None

    def features(self, scaled: Array) -> Array:
        """Features (b, m) of rows from `scaled`."""
        if type(self.transformer) is RandomFourierFeatures:
            return self.transformer.waves(scaled, int(self.intercept))
        return self._features(scaled)

    def with_columns(self, n_columns: int) -> Representation:
        """The representation with columns that were missing in all rows so far."""
        if self.transformer is None:
            return self
        if not hasattr(self.transformer, "add_columns"):
            raise InvalidInput(
                f"features={self.transformer!r} cannot grow by {n_columns} columns; use "
                'features="raw", "scaled" or "fourier", or give the transformer a method '
                "add_columns"
            )
        grown = copy.deepcopy(self.transformer)
        grown.add_columns(n_columns)
        return replace(self, transformer=grown)

    def _features(self, made: Any) -> Array:
        made = np.asarray(made.toarray() if hasattr(made, "toarray") else made, dtype=np.float64)
        n, m = made.shape
        first = int(self.intercept)  # the constant comes first: columns may be added behind
        out = np.ones((n, first + m))
        np.divide(made, self.size, out=out[:, first:])
        if self.transformer is None:
            out[np.isnan(out)] = 0.0
        return out
