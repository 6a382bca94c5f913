"""From rows to the features of the filter; scaling is learned from the rows so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from kalstream.errors import InvalidInput
from kalstream.features import OnlineScaler, RandomFourierFeatures
from kalstream.features.online import Before, follows, kept, online

Array = NDArray[Any]

FEATURES: Final = ("raw", "scaled", "fourier")


@dataclass(frozen=True, slots=True)
class Representation:
    """A transformer, a divisor, and a constant for the intercept. Never changed.

    Attributes
    ----------
    transformer : `OnlineTransformer`, or object with transform and partial_fit; None: raw columns
    size : float
        Raw and scaled columns are divided by it: the square root of their number, so that a row
        has a norm of about 1.
    intercept : bool
    wide : bool
        Whether columns are kept with the rows that they were made of, in turns: experts see the
        rows, the filters the columns. Rows that are not scaled are both.
    before : `Before` or None
        What rows pass first. Rows and their columns are described as it makes them.
    """

    transformer: Any
    size: float
    intercept: bool
    wide: bool = False
    before: Before | None = None

    @classmethod
    def of(
        cls,
        features: Any,
        n_components: int,
        random_state: Any,
        intercept: bool,
        n_columns: int,
        half_life: float,
        wide: bool,
    ) -> Representation:
        """The representation that the parameters of an estimator ask for.

        ``half_life`` is that of the scaling by "scaled" and "fourier"; their rows are ``wide``.
        """
        if not isinstance(intercept, bool | np.bool_):
            raise InvalidInput(f"intercept must be True or False, got {intercept!r}")
        if hasattr(features, "then"):
            before: Before = clone(features)
            shape = n_components, random_state, intercept, before.width(n_columns), half_life, wide
            return replace(cls.of(before.then, *shape), before=before)
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
                return cls(OnlineScaler(half_life=half_life), root, intercept, wide)
            waves = RandomFourierFeatures(
                n_components=n_components, random_state=random_state, half_life=half_life
            )
            return cls(waves, 1.0, intercept, wide)
        if follows(features):
            return cls(clone(features), 1.0, intercept)
        if not (hasattr(features, "transform") and hasattr(features, "partial_fit")):
            raise InvalidInput(
                f"features={features!r} lacks partial_fit or transform; give a transformer that "
                'learns as rows pass, or "raw", "scaled" or "fourier"'
            )
        return cls(clone(features), 1.0, intercept)

    @property
    def is_own(self) -> bool:
        """Whether features are always finite: no transformer of another library makes them."""
        return online(self.transformer).always_finite

    def transform(self, rows: Array) -> Array:
        """Features (b, m) of rows (b, d), with what is known now."""
        learner, rows = online(self.transformer), self._seen_now(rows)
        return learner.features(learner.columns(rows), int(self.intercept), self.size)

    def advance(self, rows: Array) -> tuple[Representation, Array]:
        """Features (b, m) of rows (b, d) that pass, and the representation after them.

        Each row is seen with what was known before it; a transformer without `advance` learns
        the whole chunk first.
        """
        before, rows = self._passed(rows)
        learner, columns = online(self.transformer).passed(rows)
        after = self._after(kept(learner), before)
        return after, learner.features(columns, int(self.intercept), self.size)

    def scaled(self, rows: Array) -> tuple[Representation, Array]:
        """Rows (b, d) as they pass, in the form (b, d') that `features` takes, and what is after.

        It is smaller than the features, so it can be kept until the rows are learned.
        """
        before, rows = self._passed(rows)
        learner, columns = online(self.transformer).passed(rows)
        after = self._after(kept(learner), before)
        return after, self._in_turns(columns, rows)

    def columns(self, rows: Array) -> Array:
        """Rows (b, d) as `scaled` makes them, with what is known now."""
        rows = self._seen_now(rows)
        return self._in_turns(online(self.transformer).columns(rows), rows)

    @property
    def hears(self) -> list[int]:
        """Columns of rows that `told` needs; [] if targets do not count."""
        return [] if self.before is None else self.before.hears

    def told(self, keys: Array, targets: Any, weight: Array | None) -> Representation:
        """The representation after targets of earlier rows, whose columns `hears` are keys (t, n).

        A target of weight 0 is as none.
        """
        assert self.before is not None
        if weight is not None:
            counts = np.flatnonzero(weight > 0.0)
            is_array = isinstance(targets, np.ndarray)
            targets = targets[counts] if is_array else [targets[k] for k in counts.tolist()]
            keys = keys[counts]
        return replace(self, before=self.before.told(keys, targets))

    def _seen_now(self, rows: Array) -> Array:
        """Rows as what comes before the transformer makes them now."""
        return rows if self.before is None else self.before.columns(rows)

    def _passed(self, rows: Array) -> tuple[Before | None, Array]:
        """What comes before the transformer, after these rows; and the rows as it makes them."""
        return (None, rows) if self.before is None else self.before.passed(rows)

    def _after(self, transformer: Any, before: Before | None) -> Representation:
        return Representation(transformer, self.size, self.intercept, self.wide, before)

    def _in_turns(self, columns: Array, rows: Array) -> Array:
        """Columns and rows in turns, so that columns that come later are behind the others."""
        if not self.wide:
            return columns
        both = np.empty((len(rows), 2 * rows.shape[1]))
        both[:, ::2], both[:, 1::2] = columns, rows
        return both

    def width(self, n_columns: int) -> int | None:
        """Columns of `scaled`; None if only a transformer of another library knows."""
        if self.before is not None:
            n_columns = self.before.width(n_columns)
        width = online(self.transformer).width(n_columns)
        return 2 * n_columns if self.wide else width

    def features(self, scaled: Array) -> Array:
        """Features (b, m) of rows from `scaled`."""
        if self.wide:
            scaled = scaled[:, ::2].copy()
        return online(self.transformer).features(scaled, int(self.intercept), self.size)

    def seen(self, scaled: Array) -> Array:
        """Rows from `scaled` as experts see them."""
        return scaled[:, 1::2].copy() if self.wide else scaled

    def with_columns(self, n_columns: int) -> Representation:
        """The representation with columns that were missing in all rows so far."""
        grown = online(self.transformer).with_columns(n_columns)
        before = None if self.before is None else self.before.with_columns(n_columns)
        return self._after(kept(grown), before)
