"""One face for learners of several libraries: predict a chunk, learn a chunk."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream.errors import InvalidInput
from kalstream.streams import REGRESSION, Batch, Stream

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a learner said about some rows.

    Attributes
    ----------
    labels : list, or None
        What the columns of the probabilities stand for.
    probabilities : (b, K), or None
    predictions : (b,), or None
        Labels if there are no probabilities; of regression, means (NaN: none).
    std : (b,), or None
        Standard deviations of regression.
    """

    labels: list[Any] | None = None
    probabilities: Array | None = None
    predictions: Array | None = None
    std: Array | None = None

    def said(self) -> Array:
        """Means, or most probable labels (b,), None where there is none."""
        if self.predictions is not None:
            return self.predictions
        assert self.probabilities is not None
        out = np.full(len(self.probabilities), None, object)
        if self.labels:
            out[:] = [self.labels[k] for k in self.probabilities.argmax(axis=1)]
            out[~self.probabilities.any(axis=1)] = None
        return out


def adapt(learner: Any, stream: Stream, classes: list[Any] | None = None) -> Adapter:
    """The adapter for a learner: kalstream's, scikit-learn's (partial_fit) or river's (learn_one).

    Parameters
    ----------
    learner : object
    stream : Stream
        Tells the task, and for river the names of the columns.
    classes : list, optional
        All labels that may come: scikit-learn's classifiers ask for them.
    """
    if inspect.isclass(learner):
        raise InvalidInput(f"{learner.__name__} is a class; pass an instance, {learner.__name__}()")
    tags = getattr(learner, "__sklearn_tags__", None)  # scikit-learn's word of what it predicts
    kind = None if tags is None else tags().estimator_type
    wanted = "regressor" if stream.task == REGRESSION else "classifier"
    if kind in {"classifier", "regressor"} - {wanted}:
        raise InvalidInput(
            f"{type(learner).__name__} is a {kind}, and {stream.name} is {stream.task}; give a "
            f"{wanted}, or another task"
        )
    if hasattr(learner, "learn_one") and hasattr(learner, "predict_one"):
        return _River(learner, stream)
    if hasattr(learner, "partial_fit") and hasattr(learner, "predict"):
        return _PartialFit(learner, stream, classes or stream.classes)
    raise InvalidInput(
        f"{type(learner).__name__} has neither partial_fit and predict nor learn_one and "
        "predict_one; give it one of the two pairs to run under this protocol"
    )


class Adapter(ABC):
    """A learner that can be asked and taught."""

    def __init__(self, learner: Any, stream: Stream) -> None:
        self.learner, self.task, self.columns = learner, stream.task, stream.columns
        self.taught = self._is_fitted()

    #: whether rows can be predicted and learned one by one in a single call
    in_one_call = False

    def ask(self, batch: Batch) -> Answer:
        """Predict rows; an empty answer before anything was taught."""
        if not self.taught:
            return self._nothing(len(batch))
        answer = self._ask(batch)
        said = answer.probabilities if answer.predictions is None else answer.predictions
        if said is None or len(said) != len(batch):
            raise InvalidInput(
                f"{type(self.learner).__name__} was asked about {len(batch)} rows and answered "
                f"for {0 if said is None else len(said)}"
            )
        return answer

    def teach(self, batch: Batch) -> None:
        """Learn rows; those without a target teach only learners that know what to do with them."""
        self._teach(batch)
        self.taught = self.taught or self._is_fitted() or bool(known(batch.targets).any())

    def ask_and_teach(self, batch: Batch) -> Answer:
        """As `ask` and `teach`, row by row; only where `in_one_call`."""
        raise NotImplementedError

    def _is_fitted(self) -> bool:
        """Whether the learner has learned something already."""
        ask = getattr(self.learner, "__sklearn_is_fitted__", None)
        if ask is not None:
            return bool(ask())
        return any(name.endswith("_") and name[0] != "_" for name in vars(self.learner))

    def _nothing(self, n: int) -> Answer:
        if self.task == REGRESSION:
            return Answer(predictions=np.full(n, np.nan))
        return Answer(labels=[], probabilities=np.zeros((n, 0)))

    @abstractmethod
    def _ask(self, batch: Batch) -> Answer:
        """Predict rows, once something was taught."""

    @abstractmethod
    def _teach(self, batch: Batch) -> None:
        """Learn rows."""


class _PartialFit(Adapter):
    """scikit-learn's contract, and kalstream's beyond it: time, missing labels, no classes."""

    def __init__(self, learner: Any, stream: Stream, classes: list[Any] | None) -> None:
        super().__init__(learner, stream)
        self.own = hasattr(learner, "predict_then_learn")
        self.in_one_call = self.own and getattr(learner, "transition", "example") == "example"
        self.classes = classes
        taught_with = inspect.signature(learner.partial_fit).parameters
        self.timed = "time" in taught_with
        self.needs_classes = "classes" in taught_with and not self.own
        asked_with = inspect.signature(learner.predict).parameters
        self.with_std = self.task == REGRESSION and "return_std" in asked_with

    def _when(self, batch: Batch) -> dict[str, Any]:
        return {"time": batch.times} if self.timed and batch.times is not None else {}

    def _ask(self, batch: Batch) -> Answer:
        rows, when = batch.rows, self._when(batch)
        if self.task == REGRESSION:
            if self.with_std:
                mean, std = self.learner.predict(rows, return_std=True, **when)
                return Answer(predictions=np.asarray(mean), std=np.asarray(std))
            return Answer(predictions=np.asarray(self.learner.predict(rows, **when), np.float64))
        if hasattr(self.learner, "predict_proba"):
            p = np.asarray(self.learner.predict_proba(rows, **when))
            return Answer(labels=self._labels(), probabilities=p)
        return Answer(predictions=_objects(self.learner.predict(rows, **when)))

    def _labels(self) -> list[Any]:
        return np.asarray(self.learner.classes_).tolist()

    def _teach(self, batch: Batch) -> None:
        how: dict[str, Any] = self._when(batch)
        if self.own:
            self.learner.partial_fit(batch.rows, batch.targets, **how)
            return
        there = known(batch.targets)
        if not there.any():
            return
        if self.needs_classes and not self.taught:
            if self.classes is None:
                raise InvalidInput(
                    f"{type(self.learner).__name__}.partial_fit wants all classes at its first "
                    "call and the stream does not know them; pass classes=[...]"
                )
            how["classes"] = np.asarray(self.classes)
        if "time" in how:
            how["time"] = how["time"][there]
        targets = np.array(batch.targets[there].tolist())
        self.learner.partial_fit(batch.rows[there], targets, **how)

    def ask_and_teach(self, batch: Batch) -> Answer:
        """As `ask` and `teach`, row by row."""
        said = self.learner.predict_then_learn(batch.rows, batch.targets, **self._when(batch))
        self.taught = self._is_fitted()
        if self.task == REGRESSION:
            return Answer(predictions=said[0], std=said[1])
        return Answer(labels=self._labels() if self.taught else [], probabilities=said)


class _River(Adapter):
    """river's contract: one dict at a time."""

    def _dicts(self, rows: Array) -> list[dict[str, float]]:
        names = self.columns or tuple(f"x{k}" for k in range(rows.shape[1]))
        # A value that is missing is a feature that is not there.
        return [
            {name: value for name, value in zip(names, row, strict=True) if value == value}
            for row in rows.tolist()
        ]

    def _ask(self, batch: Batch) -> Answer:
        rows = self._dicts(batch.rows)
        if self.task == REGRESSION:
            return Answer(predictions=np.array([self.learner.predict_one(x) for x in rows]))
        try:
            said = [self.learner.predict_proba_one(x) for x in rows]
        except (AttributeError, NotImplementedError):
            return Answer(predictions=_objects([self.learner.predict_one(x) for x in rows]))
        labels = list(dict.fromkeys(label for each in said for label in each))
        p = np.array([[each.get(label, 0.0) for label in labels] for each in said])
        return Answer(labels=labels, probabilities=p.reshape(len(rows), len(labels)))

    def _teach(self, batch: Batch) -> None:
        for x, y in zip(self._dicts(batch.rows), batch.targets.tolist(), strict=True):
            if y is not None and not (isinstance(y, float) and math.isnan(y)):
                self.learner.learn_one(x, y)


def known(targets: Array) -> Array:
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
