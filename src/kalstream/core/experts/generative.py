"""Gaussian classes: curved boundaries, which no linear readout can see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kalstream._arrays import Array
from kalstream.core.experts.expert import Expert, ExpertRows
from kalstream.core.generative import Generative, GenerativeState


@dataclass(frozen=True)
class GaussianClasses(Expert):
    """The known classes as `CRPClassifier` sees them: Gaussians under a prior that they share.

    Covariances, how much they count, and how far columns are trusted to be Gaussian are weighted
    online. Time passes with rows that are learned.

    Attributes
    ----------
    half_life : float or None
        Rows, or units of time, after which a row counts half; None forgets nothing.
    most_columns : int
        With more columns all classes share one covariance.

    Examples
    --------
    A narrow class inside a wide one, of which a linear readout of the columns sees nothing:

    >>> from kalstream import KalmanClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(2, size=800)
    >>> X = rng.standard_normal((800, 4)) * (1.0 + 3.0 * y)[:, None]
    >>> model = KalmanClassifier(features="scaled", experts=[GaussianClasses()])
    >>> p = model.predict_then_learn(X, y)
    >>> bool((p.argmax(axis=1) == y)[400:].mean() > 0.9)
    True
    """

    tag: ClassVar[str] = "kalstream.GaussianClasses"
    name: ClassVar[str] = "gaussian_classes"
    state_type: ClassVar[type] = GenerativeState
    expects_new_classes: ClassVar[bool] = True

    half_life: float | None = None
    most_columns: int = 64

    def __post_init__(self) -> None:
        self._settings()

    def _settings(self) -> Generative:
        return Generative(half_life=self.half_life, most_columns=self.most_columns)

    def start(self, n_columns: int, n_classes: int) -> GenerativeState:
        """No class is known."""
        return self._settings().start(n_columns, n_classes)

    def advance(self, state: GenerativeState, rows: ExpertRows) -> tuple[GenerativeState, Array]:
        """Predict each row, then learn its label if it has one."""
        after, out = self._passed(state, rows)
        p = out[:, :-1]
        total = p.sum(axis=1, keepdims=True)
        p = np.divide(p, total, out=np.ones_like(p), where=total > 0.0)
        with np.errstate(divide="ignore"):  # classes that have not been seen
            return (after if (rows.labels >= 0).any() else state), np.log(p)

    def new_class_proba(self, state: GenerativeState, rows: ExpertRows) -> Array:
        """Probability (b,) of a class never seen, of each row before its label is learned."""
        return self._passed(state, rows)[1][:, -1].copy()

    def _passed(self, state: GenerativeState, rows: ExpertRows) -> tuple[GenerativeState, Array]:
        given = rows.columns, rows.labels, rows.weight, rows.gap
        return self._settings().advance(state, *given)
