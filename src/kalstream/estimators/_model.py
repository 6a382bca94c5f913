"""All that an estimator has learned, as one value that is never changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from numpy.typing import NDArray

from kalstream.core.alarm import Watch
from kalstream.core.judging import LateJudge
from kalstream.core.policy import PolicyState
from kalstream.core.state import BankStep, Posterior
from kalstream.estimators._representation import Representation
from kalstream.estimators._waiting import Store

Array = NDArray[Any]

# Fields that a `PackedRow` makes when they are needed.
IN_ROW: Final = "state", "targets", "watch", "last_step", "late"


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a model, as `filters_` shows it.

    Attributes
    ----------
    half_life, gamma : float
    weight : float
        Probability that it is the right one.
    posterior : Posterior
    likelihood : "onehot", "softmax" or "softmax-label"
        How it observes labels; see `kalstream.core.step_chunk`.
    order : int
        Order of the motion of its weights.

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
    likelihood: str = "onehot"
    order: int = 1


@dataclass(frozen=True)
class Model:
    """All that has been learned. Never changed, so that readers see it whole.

    Attributes
    ----------
    representation : Representation
    state : PolicyState, or None before the first target is known
    targets : Classes or Values
        What is known about the targets: see `_classification` and `_regression`.
    n_seen : int
        Rows that have passed, with a target or not.
    time : float or None
        Time of the last row.
    watch : Watch
    last_step : BankStep or None
        Step of the last rows, for `health_`.
    late : LateJudge or None
        Weights by the predictions that were made, once a row was asked for.
    seed : int
        Seed of sampled predictions.
    came, last : int
        Rows that have come, asked for or learned, and the number of the last one learned.
    n_targets : int
        Targets that were learned.
    store : Store or None
        Rows that wait for their targets.
    fitted : dict
        What is known of the columns of numbers: n_features_in_, perhaps feature_names_in_ as
        scikit-learn's contract wants it, and perhaps the encoding of a table that becomes them.
    row : PackedRow or None
        The fields `IN_ROW`, ready for a single row.
    """

    representation: Representation
    state: PolicyState | None
    targets: Any
    n_seen: int
    time: float | None
    watch: Watch
    last_step: BankStep | None
    late: LateJudge | None
    seed: int
    came: int = 0
    last: int = -1
    n_targets: int = 0
    store: Store | None = None
    fitted: dict[str, Any] = field(default_factory=dict)
    row: Any = None

    @property
    def is_fitted(self) -> bool:
        """Whether a target is known."""
        return self.row is not None or self.state is not None

    def __getattr__(self, name: str) -> Any:
        """A field that is still packed."""
        row = self.__dict__.get("row")
        if row is None or name not in IN_ROW:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.__dict__.update(row.parts())  # equal parts, whoever makes them
        return self.__dict__[name]

    def __getstate__(self) -> dict[str, Any]:
        return self.but().__dict__

    def but(self, **changes: Any) -> Model:
        """As `dataclasses.replace`, in a fraction of the time."""
        self.state  # noqa: B018  (it is in the dictionary from here on)
        other = object.__new__(Model)
        other.__dict__.update(self.__dict__, row=None)
        other.__dict__.update(changes)
        return other

    def fitted_to(self, fitted: dict[str, Any]) -> Model:
        """The model for columns of which this is known; mostly the same one."""
        return self if fitted is self.fitted else self.but(fitted=fitted)
