"""Adapters: one interface to learners of kalstream, scikit-learn and river.

A learner needs one of the first two lines. The others are used where a learner offers them:

====================================  ===========================================================
``partial_fit`` and ``predict``       learn and predict chunks (scikit-learn, kalstream)
``learn_one`` and ``predict_one``     learn and predict rows as dicts (river)
``predict_proba`` and ``classes_``    probabilities of labels; of river ``predict_proba_one``
``predict(X, return_std=True)``       standard deviations of regression
``time=`` of ``partial_fit``          times of the rows, if the stream has them
``key=`` of ``partial_fit``           keys of the rows, which the stream must have
``classes=`` of ``partial_fit``       all labels, at the first call
``predict_then_learn``                predict and learn rows one by one in one call; ``partial_fit``
                                      then takes rows without a target, and new labels
``ask_and_tell`` and ``tell``         keep rows that were predicted until their targets come
``status_of``                         what has become of such rows, if they have ids
``expects_new_classes``               whether ``new_class_proba`` and ``predict_open_then_learn``
                                      say how probable a class never seen is
``half_life_weights_``                {half-life: weight}, for the report on forgetting
``drift``                             () -> an object with ``alarms``, ``since`` and ``peak``
====================================  ===========================================================
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream._arrays import Array
from kalstream.errors import InvalidInput, InvalidType
from kalstream.features.rows import is_table
from kalstream.streams import (
    CLASSIFICATION,
    REGRESSION,
    ArrayStream,
    Batch,
    Stream,
    TableStream,
    as_table,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Predictions of a learner for some rows.

    Attributes
    ----------
    labels : list, or None
        Labels of the columns of the probabilities.
    probabilities : (b, K), or None
    predictions : (b,), or None
        Labels if there are no probabilities; of regression, means (NaN: none).
    std : (b,), or None
        Standard deviations of regression.
    new : (b,), or None
        Probabilities of a label that the learner has never seen, by itself.

    Examples
    --------
    >>> answer = Answer(labels=["cat", "dog"], probabilities=np.array([[0.8, 0.2], [0.1, 0.9]]))
    >>> answer.point_predictions().tolist()
    ['cat', 'dog']
    """

    labels: list[Any] | None = None
    probabilities: Array | None = None
    predictions: Array | None = None
    std: Array | None = None
    new: Array | None = None

    def point_predictions(self) -> Array:
        """Means, or most probable labels (b,), None where there is none."""
        if self.predictions is not None:
            return self.predictions
        assert self.probabilities is not None
        out = np.full(len(self.probabilities), None, object)
        if self.labels:
            out[:] = [self.labels[k] for k in self.probabilities.argmax(axis=1)]
            out[~self.probabilities.any(axis=1)] = None
        return out


def is_learner(value: Any) -> bool:
    """Whether an object is a learner, or a class of learners: it can learn or predict."""
    names = ("partial_fit", "predict", "learn_one", "predict_one")
    return any(hasattr(value, name) for name in names)


def as_stream(data: Any, learner: Any) -> Stream:
    """A stream, or rows and targets (X, y) in memory as one, for a learner."""
    if isinstance(data, Stream) or hasattr(data, "batches"):
        return data
    if not (isinstance(data, tuple) and len(data) == 2):
        raise InvalidType(
            f"stream must be a Stream or a pair (X, y), got {type(data).__name__}; make one of it: "
            "ArrayStream(X, y), or kalstream.streams.open(file or frame, target=...)"
        )
    X, y = data
    tags = getattr(learner, "__sklearn_tags__", None)
    regresses = tags is not None and tags().estimator_type == "regressor"
    task = REGRESSION if regresses else CLASSIFICATION
    if not is_table(X):
        return ArrayStream(X, y, task=task)
    table, target = as_table(X), "target"
    while target in table.schema.names:
        target += "_"
    return TableStream(as_table(X, {target: y}), target, task=task, name="table")


def adapt(learner: Any, stream: Stream, classes: list[Any] | None = None) -> Adapter:
    """The adapter for a learner.

    Parameters
    ----------
    learner : object
        See the table at the top of this file.
    stream : Stream
        Its task, and for river the names of its columns, are used.
    classes : list, optional
        All labels of the stream: scikit-learn's classifiers need them.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> stream = ArrayStream([[1.0], [-1.0]] * 10, ["up", "down"] * 10)
    >>> batch = next(stream.batches())
    >>> adapter = adapt(GaussianNB(), stream, classes=["down", "up"])
    >>> adapter.learn(batch)
    >>> adapter.predict(batch[:2]).point_predictions().tolist()
    ['up', 'down']
    """
    if inspect.isclass(learner):
        raise InvalidInput(f"{learner.__name__} is a class; pass an instance, {learner.__name__}()")
    tags = getattr(learner, "__sklearn_tags__", None)
    kind = None if tags is None else tags().estimator_type
    wanted = "regressor" if stream.task == REGRESSION else "classifier"
    if kind in {"classifier", "regressor"} - {wanted}:
        raise InvalidInput(
            f"{type(learner).__name__} is a {kind}, and {stream.name} is {stream.task}; give a "
            f"{wanted}, or another task"
        )
    if takes_keys(learner) != stream.keyed:
        raise InvalidInput(
            f"{type(learner).__name__} learns a model by key, and {stream.name} has no keys; name "
            "their column with key="
            if takes_keys(learner)
            else f"{stream.name} has keys, and {type(learner).__name__} takes none; use "
            "KeyedClassifier, or leave key= out"
        )
    if hasattr(learner, "learn_one") and hasattr(learner, "predict_one"):
        return _River(learner, stream)
    if hasattr(learner, "partial_fit") and hasattr(learner, "predict"):
        return _PartialFit(learner, stream, classes or stream.classes)
    raise InvalidInput(
        f"{type(learner).__name__} has neither partial_fit and predict nor learn_one and "
        "predict_one; give it one of the two pairs"
    )


def takes_keys(learner: Any) -> bool:
    """Whether a learner has a model for each key: its ``partial_fit`` takes the keys of rows."""
    learn = getattr(learner, "partial_fit", None)
    return learn is not None and "key" in inspect.signature(learn).parameters


class Adapter(ABC):
    """One interface to a learner: predict and learn a chunk.

    Attributes
    ----------
    learner : object
    is_fitted : bool
        Whether the learner has learned something.
    in_one_call : bool
        Whether the learner can predict and learn row by row in one call.
    keeps_rows : bool
        Whether the learner keeps rows that it has predicted until their targets come.

    Examples
    --------
    `adapt` makes one. Before anything was learned, an answer is empty.

    >>> from kalstream import KalmanClassifier
    >>> stream = ArrayStream([[1.0], [-1.0]], ["up", "down"])
    >>> adapter = adapt(KalmanClassifier(), stream)
    >>> adapter.is_fitted, adapter.in_one_call, adapter.predict(next(stream.batches())).labels
    (False, True, [])
    """

    in_one_call = False
    keeps_rows = False

    def __init__(self, learner: Any, stream: Stream) -> None:
        self.learner, self.task, self.columns = learner, stream.task, stream.columns
        self.is_fitted = self._has_learned()

    def predict(self, batch: Batch) -> Answer:
        """Predict rows; an empty answer before anything was learned."""
        if not self.is_fitted:
            return self._nothing(len(batch))
        answer = self._predict(batch)
        rows = answer.probabilities if answer.predictions is None else answer.predictions
        if rows is None or len(rows) != len(batch):
            raise InvalidInput(
                f"{type(self.learner).__name__} was asked to predict {len(batch)} rows and "
                f"predicted {0 if rows is None else len(rows)}"
            )
        return answer

    def learn(self, batch: Batch) -> None:
        """Learn rows; only kalstream's learners get those without a target."""
        self._learn(batch)
        self.is_fitted = self.is_fitted or self._has_learned() or bool(known(batch.targets).any())

    def predict_then_learn(self, batch: Batch) -> Answer:
        """`predict` and `learn` each row before the next one; only where `in_one_call`."""
        raise NotImplementedError

    def ask_and_tell(self, batch: Batch, due: Any, ids: list[Any] | None = None) -> Answer:
        """Predict rows, and learn targets in between; only where `keeps_rows`.

        ``due`` has ids, targets, and how many of the rows come before each. Without ids rows have
        the numbers of the stream.
        """
        raise NotImplementedError

    def tell(self, due: Any, n_rows: int) -> None:
        """Learn targets of rows that were asked for, of which there were n_rows."""
        raise NotImplementedError

    def half_life_weights(self) -> Mapping[float, float] | None:
        """Weight of each half-life; None if the learner has none, or has learned nothing."""
        try:
            return getattr(self.learner, "half_life_weights_", None)
        except ValueError:  # not fitted yet
            return None

    def drift(self) -> Any | None:
        """Drift, with ``alarms``, ``since`` and ``peak``; None if the learner does not offer it."""
        drift = getattr(self.learner, "drift", None)
        return None if drift is None else drift()

    def _has_learned(self) -> bool:
        is_fitted = getattr(self.learner, "__sklearn_is_fitted__", None)
        if is_fitted is not None:
            return bool(is_fitted())
        return any(name.endswith("_") and name[0] != "_" for name in vars(self.learner))

    def _nothing(self, n: int) -> Answer:
        if self.task == REGRESSION:
            return Answer(predictions=np.full(n, np.nan))
        return Answer(labels=[], probabilities=np.zeros((n, 0)), new=np.ones(n))

    @abstractmethod
    def _predict(self, batch: Batch) -> Answer:
        """Predict rows, once something was learned."""

    @abstractmethod
    def _learn(self, batch: Batch) -> None:
        """Learn rows."""


class _PartialFit(Adapter):
    """scikit-learn's contract, and kalstream's, which adds times, missing and new labels."""

    def __init__(self, learner: Any, stream: Stream, classes: list[Any] | None) -> None:
        super().__init__(learner, stream)
        self.is_kalstream = hasattr(learner, "predict_then_learn")
        by_row = getattr(learner, "transition", "example") == "example"
        self.in_one_call = self.is_kalstream and by_row
        self.keeps_rows = self.in_one_call and hasattr(learner, "ask_and_tell")
        self.classes = classes
        of_learning = inspect.signature(learner.partial_fit).parameters
        self.takes_time = "time" in of_learning
        self.needs_classes = "classes" in of_learning and not self.is_kalstream
        of_predicting = inspect.signature(learner.predict).parameters
        self.gives_std = self.task == REGRESSION and "return_std" in of_predicting

    def _beside(self, batch: Batch) -> dict[str, Any]:
        """Times and keys of rows, if the stream has them and the learner takes them."""
        times = {"time": batch.times} if self.takes_time and batch.times is not None else {}
        return times if batch.keys is None else {**times, "key": batch.keys}

    def _predict(self, batch: Batch) -> Answer:
        rows, beside = batch.rows, self._beside(batch)
        if self.task == REGRESSION:
            if self.gives_std:
                mean, std = self.learner.predict(rows, return_std=True, **beside)
                return Answer(predictions=np.asarray(mean), std=np.asarray(std))
            return Answer(predictions=np.asarray(self.learner.predict(rows, **beside), np.float64))
        if hasattr(self.learner, "predict_proba"):
            p = np.asarray(self.learner.predict_proba(rows, **beside))
            new = self.learner.new_class_proba(rows, **beside) if self._expects_new() else None
            return Answer(labels=self._labels(), probabilities=p, new=new)
        return Answer(predictions=_objects(self.learner.predict(rows, **beside)))

    def _expects_new(self) -> bool:
        return bool(getattr(self.learner, "expects_new_classes", False))

    def _labels(self) -> list[Any]:
        return np.asarray(self.learner.classes_).tolist()

    def _learn(self, batch: Batch) -> None:
        options: dict[str, Any] = self._beside(batch)
        if self.is_kalstream:
            self.learner.partial_fit(batch.rows, batch.targets, **options)
            return
        there = known(batch.targets)
        if not there.any():
            return
        if self.needs_classes and not self.is_fitted:
            if self.classes is None:
                raise InvalidInput(
                    f"{type(self.learner).__name__}.partial_fit needs all classes at its first "
                    "call, and the stream does not know them; pass classes=[...]"
                )
            options["classes"] = np.asarray(self.classes)
        if "time" in options:
            options["time"] = options["time"][there]
        targets = np.array(batch.targets[there].tolist())
        self.learner.partial_fit(batch.rows[there], targets, **options)

    def predict_then_learn(self, batch: Batch) -> Answer:
        """`predict` and `learn` each row before the next one."""
        given, beside = (batch.rows, batch.targets), self._beside(batch)
        if self._expects_new():
            made, new = self.learner.predict_open_then_learn(*given, **beside)
            return replace(self._answer(made), new=new)
        return self._answer(self.learner.predict_then_learn(*given, **beside))

    def ask_and_tell(self, batch: Batch, due: Any, ids: list[Any] | None = None) -> Answer:
        """Predict rows, and learn targets in between."""
        keys, more = due.ids, {"ids": ids, "unknown": "skip", **self._beside(batch)}
        if ids is None:
            keys = self._numbers(keys, batch.start)
        elif not len(batch):
            if keys:
                self.learner.tell(keys, due.targets, unknown="skip")
            self.is_fitted = self._has_learned()
            return replace(self._nothing(0), std=np.empty(0))
        made = self.learner.ask_and_tell(batch.rows, keys, due.targets, due.before, **more)
        return self._answer(made)

    def tell(self, due: Any, n_rows: int) -> None:
        """Learn targets of rows that were asked for, of which there were n_rows."""
        keys = self._numbers(due.ids, n_rows)
        self.learner.tell(keys, due.targets, unknown="skip")
        self.is_fitted = self._has_learned()

    def _numbers(self, rows: list[int], n_rows: int) -> list[int]:
        """Ids of rows by their numbers, if n_rows were asked for: a learner may know others."""
        others = self.learner.waiting_.asked - n_rows
        return [row + others for row in rows] if others else rows

    def _answer(self, made: Any) -> Answer:
        self.is_fitted = self._has_learned()
        if self.task == REGRESSION:
            return Answer(predictions=made[0], std=made[1])
        return Answer(labels=self._labels() if self.is_fitted else [], probabilities=made)


class _River(Adapter):
    """Adapter of river's learners, which take one dict at a time."""

    def _dicts(self, rows: Array) -> list[dict[str, float]]:
        names = self.columns or tuple(f"x{k}" for k in range(rows.shape[1]))
        # A missing value is a feature that is not there.
        return [
            {name: value for name, value in zip(names, row, strict=True) if value == value}
            for row in rows.tolist()
        ]

    def _predict(self, batch: Batch) -> Answer:
        rows = self._dicts(batch.rows)
        if self.task == REGRESSION:
            return Answer(predictions=np.array([self.learner.predict_one(x) for x in rows]))
        try:
            made = [self.learner.predict_proba_one(x) for x in rows]
        except (AttributeError, NotImplementedError):
            return Answer(predictions=_objects([self.learner.predict_one(x) for x in rows]))
        labels = list(dict.fromkeys(label for each in made for label in each))
        p = np.array([[each.get(label, 0.0) for label in labels] for each in made])
        return Answer(labels=labels, probabilities=p.reshape(len(rows), len(labels)))

    def _learn(self, batch: Batch) -> None:
        for x, y in zip(self._dicts(batch.rows), batch.targets.tolist(), strict=True):
            if y is not None and not (isinstance(y, float) and math.isnan(y)):
                self.learner.learn_one(x, y)


def known(targets: Array) -> NDArray[np.bool_]:
    """Which targets (b,) are there."""
    if targets.dtype == object:
        return np.array([target is not None for target in targets], bool)
    return ~np.isnan(targets)


def _objects(values: Any) -> Array:
    """Labels in an array of plain Python values."""
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    out = np.empty(len(listed), object)
    out[:] = listed
    return out
