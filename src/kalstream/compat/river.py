"""kalstream's learners as river models: rows are dicts whose features come and go.

Needs the extra ``river``. Without it, importing this module raises an error that names the extra.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Hashable, Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from kalstream import estimators
from kalstream._arrays import Array
from kalstream._optional import require
from kalstream.compat._keyed import KeyedClassifier, KeyedRegressor
from kalstream.compat._rows import (
    _NAN,
    _TARGET,
    Columns,
    _frame,
    _gaussian,
    _grown,
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

base: Any = require("river.base", "river")

__all__ = ["KalmanClassifier", "KalmanRegressor", "KeyedClassifier", "KeyedRegressor"]

# Parameters of the estimators that an adapter sets itself, or does without.
_OWN: Final = ("recent_labels", "time_unit", "max_waiting", "max_age")
_KEPT: Final = 10_000  # rows that wait for their targets, at most


class _Last(NamedTuple):
    """The last row that was predicted: its bytes, the estimator and its model, the answer."""

    key: bytes
    estimator: Any
    model: Any
    answer: Any

    def is_same(self, key: bytes, estimator: Any) -> bool:
        """Whether a row is the last one, and nothing was learned since."""
        same = key == self.key and estimator is self.estimator
        return same and _learned(estimator) is self.model


class _Adapter:
    """Turns dicts and DataFrames into rows of an estimator that grows with the features.

    A feature gets a column when it first has a value. `_known` holds the columns and their
    estimator. Both are replaced in one assignment, so that other threads can predict meanwhile.

    A row is predicted by a copy of the estimator, with recent labels. If it is learned next, both
    are one step of `predict_then_learn`. If a row is learned that was predicted before others,
    targets are late: from then on the estimator is asked for rows, keeps them, and gets
    their targets later.
    """

    _known: tuple[Columns, Any]
    _UNKNOWN: ClassVar[Any]  # what is predicted before the first target
    _is_late = False
    _kept: dict[int, bytes] | None = None  # rows that the estimator keeps: their ids, first to last
    _places: dict[bytes, list[int]] | None = None  # the same by the bytes of the row
    # What predictions leave behind is no part of what was learned, and is not copied.
    _last: _Last | None = None
    _predicted: dict[bytes, None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_last", "_predicted")}

    # ---- what has been learned -------------------------------------------------------------

    @property
    def estimator(self) -> Any:
        """The scikit-learn estimator that learns; a new one replaces it when features are added."""
        return self._known[1]

    @property
    def feature_names_(self) -> tuple[Hashable, ...]:
        """Features seen so far, in the order of the estimator's columns."""
        return tuple(self._known[0])

    @property
    def half_life_(self) -> float:
        """Rows after which a weight has halved; for a mixture, the median of the posterior."""
        return self.estimator.half_life_

    @property
    def half_life_weights_(self) -> dict[float, float]:
        """Posterior over half-lives: {half-life: probability}."""
        return self.estimator.half_life_weights_

    def drift(self) -> estimators.Drift:
        """State of the drift alarm: whether the stream has changed, since when, how sure.

        Call it after learning a row; see `kalstream.estimators.Drift`.
        """
        return self.estimator.drift()

    # ---- rows -----------------------------------------------------------------------------

    def _ready(self, x: Mapping[Hashable, Any]) -> tuple[Any, Array] | None:
        """The estimator and a row (1, d) to predict; None before the first label."""
        columns, estimator = self._known
        row = _row(x, columns)
        return (estimator, row) if estimator.__sklearn_is_fitted__() else None

    def _ask(self, x: Mapping[Hashable, Any]) -> tuple[Any, Any] | None:
        """The prediction of a row, and the labels it is of; as that of the next row.

        None before the first target, and if the estimator learns in chunks.
        """
        columns, estimator = self._known
        row = _row(x, columns)
        key = row.tobytes()
        last = self._last  # another thread may replace it
        if last is not None and last.is_same(key, estimator):
            return last.answer
        answer = self._answer(estimator, row)
        if answer is not None and self._is_late:
            self._keep(key, estimator.waiting_.asked - 1)
        elif answer is not None:
            predicted = self._predicted
            if predicted is None:
                self._predicted = predicted = {}
            predicted[key] = None
            if len(predicted) > _KEPT:
                predicted.pop(next(iter(predicted)), None)
        self._last = _Last(key, estimator, _learned(estimator), answer)
        return answer

    def _answer(self, estimator: Any, row: Array) -> tuple[Any, Any] | None:
        if not estimator.__sklearn_is_fitted__() or estimator.transition != "example":
            return None
        if self._is_late:
            return estimator.ask(row), getattr(estimator, "classes_", None)
        return self._next(estimator, row)

    def _next(self, estimator: Any, row: Array) -> tuple[Any, Any]:
        """The prediction of the next row, and the labels it is of; the estimator does not change.

        A regressor has no recent labels.
        """
        return estimator.predict(row, return_std=True), None

    def _keep(self, key: bytes, row: int) -> None:
        """Note a row that the estimator keeps; it keeps as many."""
        self._kept, self._places = self._kept or {}, self._places or {}
        self._kept[row] = key
        self._places.setdefault(key, []).append(row)
        while len(self._kept) > _KEPT:
            self._let_go(next(iter(self._kept)))

    def _let_go(self, row: int) -> None:
        assert self._kept is not None
        assert self._places is not None
        key = self._kept.pop(row)
        rows = self._places[key]
        rows.remove(row)
        if not rows:
            del self._places[key]

    def _learn_kept(self, key: bytes, y: Any, weight: Any, estimator: Any) -> bool:
        """Learn the target of a row that the estimator keeps; whether it does."""
        rows = (self._places or {}).get(key)
        if not rows:
            return False
        before = estimator.waiting_.told
        estimator.tell(rows[:1], [y], sample_weight=weight, unknown="skip")
        self._let_go(rows[0])
        return estimator.waiting_.told > before

    def _widen(self, n_columns: int) -> None:
        """Rows that are kept lack the features that come now."""
        if self._kept and n_columns:
            more = np.full(n_columns, _NAN).tobytes()
            self._kept = {row: key + more for row, key in self._kept.items()}
            self._places = {key + more: rows for key, rows in (self._places or {}).items()}

    def _ready_many(self, X: Any) -> tuple[Any, Array] | None:
        """The estimator and rows (b, d) to predict; None before the first label."""
        columns, estimator = self._known
        frame = _frame(X, only=columns)
        if not estimator.__sklearn_is_fitted__() or not len(X):
            return None
        return estimator, _rows(frame, columns, slice(0, len(X)))

    def _learn_row(self, x: Mapping[Hashable, Any], y: Any, w: float) -> None:
        columns, estimator = self._known
        weight = (
            None if type(w) is float and w == 1.0 else read_weights(check.scalar("w", w), 1, "w")
        )
        fresh: list[Hashable] = []
        row = _row(x, columns, fresh)
        key = row.tobytes()
        if not fresh and self._learn_kept(key, y, weight, estimator):
            return
        learn = "partial_fit"
        last = self._last
        is_last = last is not None and last.is_same(key, estimator)
        is_late = not is_last and key in (self._predicted or ())
        if is_last and estimator.transition == "example":
            learn = "predict_then_learn"
        n_columns = len(columns)
        if fresh:
            columns, estimator = _grown(columns, estimator, fresh)
            row = _row(x, columns)
        getattr(estimator, learn)(row, [y], sample_weight=weight)
        self._last = None  # it holds the model before
        if is_late:
            self._is_late, self._predicted = True, None
        self._widen(len(columns) - n_columns)
        self._known = columns, estimator

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        """Learn rows in their order; after an error nothing has changed.

        Parameters
        ----------
        X : DataFrame
        y : Series
            Targets, None or NaN where unknown.
        w : float or Series
            As in `learn_one`.
        """
        y = self._read_many(y)
        columns, estimator = self._known
        n_columns = len(columns)
        frame, n = _frame(X), len(X)
        if len(y) != n:
            raise InvalidInput(f"y has {len(y)} targets for the {n} rows of X")
        weights = None if type(w) is float and w == 1.0 else read_weights(w, n, "w")
        # A feature is added at the row of its first value, or, if the chunk is one step of the
        # filter, before the chunk.
        comes: dict[Hashable, int] = {}
        for name, values in frame.items():
            there = ~np.isnan(values)
            if name not in columns and there.any():
                comes[name] = 0 if estimator.transition == "chunk" else int(there.argmax())
        starts = sorted({0, *comes.values()})
        if len(starts) > 1:
            estimator = copy.copy(estimator)
        for start, end in pairwise([*starts, n]) if n else ():
            if fresh := [name for name, at in comes.items() if at == start]:
                columns, estimator = _grown(columns, estimator, fresh)
            part = slice(start, end)
            estimator.partial_fit(
                _rows(frame, columns, part),
                y[part],
                sample_weight=None if weights is None else weights[part],
            )
        self._widen(len(columns) - n_columns)
        self._known = columns, estimator

    def _read_many(self, y: Any) -> Any:
        """Targets of rows."""
        raise NotImplementedError

    def predict_many(self, X: Any) -> Any:
        """Most probable label, or predicted mean, of each row of X.

        Before the first target it is None, or 0.0 in regression.

        Parameters
        ----------
        X : DataFrame

        Returns
        -------
        Series
            With the index of X.
        """
        ready = self._ready_many(X)
        values = np.full(len(X), self._UNKNOWN) if ready is None else self._points(*ready)
        return sys.modules["pandas"].Series(values, index=X.index)

    def _points(self, estimator: Any, rows: Array) -> Any:
        """Predictions (b,) of rows, each as if it were the next one."""
        raise NotImplementedError


def _constructor(kind: type) -> Any:
    """The ``__init__`` of an adapter; it has the parameters of its estimator, which it makes."""
    declared = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    named = [p.replace(name="seed") if p.name == "random_state" else p for p in declared]
    signature = inspect.Signature([p for p in named if p.name not in _OWN])

    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807
        given = signature.bind(self, *args, **options)
        given.apply_defaults()
        parameters = {name: given.arguments[name] for name in [*signature.parameters][1:]}
        vars(self).update(parameters)
        seed = parameters.pop("seed")
        self._known = {}, kind(**parameters, random_state=seed, max_waiting=_KEPT)

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__


class KalmanClassifier(_Adapter, base.MiniBatchClassifier):
    """Online classifier for river: a Kalman filter over the weights of a linear readout.

    `kalstream.KalmanClassifier` on rows that are dicts. It forgets as fast as the stream drifts,
    gives calibrated probabilities, and takes new features and new classes at any time. No
    parameter has to be tuned.

    Parameters
    ----------
    forgetting, n_components, likelihood, order, noise_var, prior_var, predictive, calibration, \
class_weight, stacking, experts, preset, intercept, dtype
        As in `kalstream.KalmanClassifier`.
    features : "raw", "scaled", "fourier" or transformer
        As there. A transformer needs ``add_columns`` if features can come later.
    transition : "example" or "chunk"
        Forget before every row, or once in every call of `learn_one` or `learn_many`.
    seed : int or None
        Seed of the Fourier features and of sampled predictions.

    Attributes
    ----------
    estimator : kalstream.KalmanClassifier
        Has all other attributes, such as `classes_` and `health_`.
    feature_names_ : tuple
        Features seen so far, in the order of the estimator's columns.
    half_life_, half_life_weights_
        Median half-life, and the weight of each half-life.

    Notes
    -----
    Values are numbers or bools. A feature that is absent, None or NaN is missing: its mean so far
    takes its place ("raw": 0). A new feature gives the same model as one that was missing in all
    rows before. One thing differs: the scale of the representation (the bandwidth of "fourier",
    the size of a row) is set by the number of features in the first row learned, so that row
    should be a typical one. A prediction ignores features that were never learned.

    Memory and time for a row grow with the square of the number of features. If there is no limit
    to the number of features, hash them, for instance with `river.preprocessing.FeatureHasher`.

    A row that is learned next after it was predicted has been predicted with recent labels, as by
    `kalstream.KalmanClassifier.predict_then_learn`. Once a row is learned that was predicted before
    others, labels are late: from then on up to 10,000 rows that were predicted are kept until they
    are learned, and filters are judged by their earlier predictions. Equal rows are the same row.

    With ``transition="example"``, `learn_many` gives the same model as `learn_one` row by row.
    Other threads may predict while one learns.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> model = KalmanClassifier(seed=1)
    >>> evaluate.progressive_val_score(datasets.Phishing().take(600), model, metrics.Accuracy())
    Accuracy: 8...%
    >>> model.learn_one({"https": 1.0, "brand_new": 2}, "unsure")
    >>> sorted(map(str, model.predict_proba_one({"https": 1.0})))
    ['False', 'True', 'unsure']

    Strings go through one of river's encoders:

    >>> from river import preprocessing
    >>> model = preprocessing.OneHotEncoder() | KalmanClassifier(features="raw")
    >>> for _ in range(20):
    ...     model.learn_one({"sky": "red"}, "evening")
    ...     model.learn_one({"sky": "blue"}, "noon")
    >>> model.predict_one({"sky": "blue"})
    'noon'
    """

    __init__ = _constructor(estimators.KalmanClassifier)
    _UNKNOWN = None

    def _next(self, estimator: Any, row: Array) -> tuple[Any, Any]:
        """The prediction of the next row, with recent labels."""
        return estimator.probabilities_and_classes(row, is_next=True)

    @property
    def _multiclass(self) -> bool:
        return True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"n_components": 20}
        yield {"features": "raw"}
        yield {"features": "raw", "order": (1, 2)}
        yield {"forgetting": 0.999, "features": "scaled", "class_weight": "balanced"}

    def learn_one(self, x: Mapping[Hashable, Any], y: Any, w: float = 1.0) -> None:
        """Learn a row.

        Parameters
        ----------
        x : dict
        y : bool, int, str or None
            Label, known or new. None: the model forgets as usual and learns nothing.
        w : float
            Weight: divides the noise variance of the row; 0 is the same as no label.
        """
        if not isinstance(y, Hashable):
            raise InvalidInput(
                f"y is {check.shown(y)}, which cannot be a label; use a number or a string"
            )
        self._learn_row(x, y, w)

    def predict_proba_one(self, x: Mapping[Hashable, Any]) -> dict[Any, float]:
        """Probability of each label seen so far, one step ahead.

        Parameters
        ----------
        x : dict

        Returns
        -------
        dict
            Label to probability; empty before the first label.
        """
        asked = self._ask(x)
        if asked is not None and len(asked[1]) == asked[0].shape[1]:
            probabilities, classes = asked
        else:  # or another thread has learned a new label
            ready = self._ready(x)
            if ready is None:
                return {}
            estimator, row = ready
            probabilities, classes = estimator.probabilities_and_classes(row)
        return dict(zip(classes.tolist(), probabilities[0].tolist(), strict=True))

    def predict_one(self, x: Mapping[Hashable, Any]) -> Any:
        """Most probable label; None before the first label.

        Parameters
        ----------
        x : dict
        """
        probabilities = self.predict_proba_one(x)
        return max(probabilities, key=probabilities.__getitem__) if probabilities else None

    def _read_many(self, y: Any) -> Any:
        return read_labels(y)

    def predict_proba_many(self, X: Any) -> Any:
        """Probabilities of the labels seen so far (columns) for each row of X.

        Parameters
        ----------
        X : DataFrame

        Returns
        -------
        DataFrame
            Has the index of X. Before the first label it has no columns.
        """
        ready = self._ready_many(X)
        pandas = sys.modules["pandas"]
        if ready is None:
            return pandas.DataFrame(index=X.index)
        probabilities, classes = self._many(*ready)
        return pandas.DataFrame(probabilities, index=X.index, columns=classes.tolist())

    def _points(self, estimator: Any, rows: Array) -> list[Any]:
        probabilities, classes = self._many(estimator, rows)
        return classes[probabilities.argmax(axis=1)].tolist()

    def _many(self, estimator: Any, rows: Array) -> tuple[Array, Array]:
        """Probabilities (b, K) of rows, of which each could be the next, and the labels (K,)."""
        if estimator.transition != "example":
            return estimator.probabilities_and_classes(rows)
        copied = estimator.snapshot()  # another thread may learn
        made = [self._next(copied, rows[i : i + 1])[0] for i in range(len(rows))]
        return np.concatenate(made), copied.classes_


class KalmanRegressor(_Adapter, base.MiniBatchRegressor):
    """Online regressor with uncertainty for river: a Kalman filter over the weights.

    `kalstream.KalmanRegressor` on rows that are dicts, whose features come and go.

    Parameters
    ----------
    features, transition, seed
        As in `KalmanClassifier`.
    forgetting, n_components, order, noise_var, prior_var, predictive, calibration, intercept, dtype
        As in `kalstream.KalmanRegressor`.

    Attributes
    ----------
    estimator : kalstream.KalmanRegressor
        Has all other attributes, such as `noise_var_` and `health_`.
    feature_names_, half_life_, half_life_weights_
        As in `KalmanClassifier`.

    Notes
    -----
    As in `KalmanClassifier`.

    Examples
    --------
    >>> model = KalmanRegressor(seed=1)
    >>> for step in range(300):
    ...     x = {"a": step % 7, "b": step % 5}
    ...     if step >= 100:
    ...         x["c"] = step % 3  # a feature that comes late
    ...     model.learn_one(x, x["a"] - 2 * x["b"] + 3 * x.get("c", 1))
    >>> round(model.predict_one({"a": 1, "b": 1, "c": 2}), 1)
    5.0
    >>> model.predict_one({"a": 1, "b": 1, "c": 2}, with_dist=True).sigma < 0.5
    True
    """

    __init__ = _constructor(estimators.KalmanRegressor)
    _UNKNOWN = 0.0

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"n_components": 20}
        yield {"forgetting": 0.999, "features": "scaled"}

    def learn_one(self, x: Mapping[Hashable, Any], y: float | None, w: float = 1.0) -> None:
        """Learn a row.

        Parameters
        ----------
        x : dict
        y : float or None
            Target. None or NaN lets time pass and teaches nothing.
        w : float
            Weight: divides the noise variance of the row; 0 is the same as no target.
        """
        self._learn_row(x, _number("y", _unwrapped(y), _TARGET), w)

    def predict_one(self, x: Mapping[Hashable, Any], with_dist: bool = False) -> Any:
        """Predicted mean, one step ahead; 0.0 before the first target.

        Parameters
        ----------
        x : dict
        with_dist : bool
            Return a `river.proba.Gaussian` for the target instead, noise included. Its sigma is
            inf before the second target.
        """
        check.flag("with_dist", with_dist)
        ready = self._ready(x)
        mean, std = 0.0, math.inf
        if (asked := self._ask(x)) is not None:
            mean, std = (float(part[0]) for part in asked[0])
        elif ready is not None:
            estimator, row = ready
            if not with_dist:
                return float(estimator.predict(row)[0])
            mean, std = (float(part[0]) for part in estimator.predict(row, return_std=True))
        return _gaussian(mean, std) if with_dist else mean

    def _read_many(self, y: Any) -> Array:
        return _targets(y)

    def _points(self, estimator: Any, rows: Array) -> Array:
        return estimator.predict(rows)


def _learned(estimator: Any) -> Any:
    """All that an estimator has learned: a value that is replaced and never changes."""
    shared = vars(estimator).get("_published")
    return None if shared is None else shared.value
