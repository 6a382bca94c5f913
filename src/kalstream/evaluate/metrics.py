"""Metrics: one entry of `METRICS` for each, and the scores that they are computed from.

Files, tests, reports and the command line take names, titles, directions and formats from
`METRICS`. A new metric is one new entry; docs/evaluate.md shows how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from kalstream._arrays import Array
from kalstream._json import finite, to_number
from kalstream.errors import InvalidInput
from kalstream.streams import CLASSIFICATION, REGRESSION

Values = dict[str, float | None]
_Number = TypeVar("_Number", float, NDArray[np.float64])

_N_BINS: Final = 15  # of the reliability diagram
_N_PIT: Final = 20  # bins of the probability integral transform
LEAST_PROBABILITY: Final = 1e-15  # one label with probability 0 must not make the sum infinite
_Z90: Final = 1.6448536269514722  # half the width of a central 90% interval, in standard deviations
_LOG_2: Final = math.log(2.0)


class Show(Flag):
    """Places in the reports that show a metric.

    Examples
    --------
    >>> [metric.name for metric in shown("classification", Show.VERDICT)]
    ['accuracy', 'log_loss']
    """

    VERDICT = auto()  #: the sentences at the top of a report
    BOARD = auto()  #: the table of learner and baselines at the top of a report
    CURVES = auto()  #: figures over time, and the line of progress of the command line
    MORE = auto()  #: the line under the figures
    TOTALS = auto()  #: the table of a comparison
    TESTS = auto()  #: paired tests, if it is a mean over rows


@dataclass(frozen=True)
class Metric:
    """A metric: its names, how it is computed, and where it is shown.

    Attributes
    ----------
    name : str
        Key in the files of a run.
    title, meaning : str
        What reports call it within a sentence, and what it is.
    task : str
        "classification" or "regression".
    better : "more", "less" or "near"
        "near": the nearer to ``nominal``, the better.
    nominal : float, optional
    unit : "share", "nats", "bits" or "number"
        A share is from 0 to 1, and is shown as a percentage.
    average : "mean", "root" or "none"
        Whether it is a mean over rows, the root of one, or neither.
    row : function, optional
        One number for each row, from `Scored` (classification) or `Errors` (regression). Their
        sum is kept, and goes into checkpoints.
    value : function of a `Score` and of the baselines' values {name: values}, optional
        Computes the metric; by default it is the mean of ``row``.
    needs_std : bool
        Whether only rows with a predicted standard deviation count.
    for_baselines : bool
        Whether the baselines have it too: they keep ``right`` and the sums of "log_loss", "rmse"
        and "mae".
    in_windows : bool
        Whether windows have it too, or only totals.
    show : Show

    Examples
    --------
    A mean over rows, such as the share of rows whose label had a probability above one half:

    >>> metric = Metric(
    ...     "sure",
    ...     "rows above one half",
    ...     "Share of rows whose label had more than half of the probability.",
    ...     "classification",
    ...     "more",
    ...     "share",
    ...     row=lambda s: s.log_prob > np.log(0.5),
    ... )
    >>> metric.heading, metric.direction, metric.merit(0.7) > metric.merit(0.6)
    ('Rows above one half', 'more is better', True)

    `register` makes it known to runs and reports.
    """

    name: str
    title: str
    meaning: str
    task: str
    better: Literal["more", "less", "near"]
    unit: Literal["share", "nats", "bits", "number"] = "number"
    average: Literal["mean", "root", "none"] = "mean"
    row: Callable[[Any], Array] | None = None
    value: Callable[[Any, Mapping[str, Values]], float] | None = None
    needs_std: bool = False
    for_baselines: bool = False
    in_windows: bool = True
    nominal: float | None = None
    show: Show = Show.MORE | Show.TOTALS | Show.TESTS

    def __post_init__(self) -> None:
        allowed = {
            "task": (CLASSIFICATION, REGRESSION),
            "better": ("more", "less", "near"),
            "unit": ("share", "nats", "bits", "number"),
            "average": ("mean", "root", "none"),
        }
        for field, values in allowed.items():
            if getattr(self, field) not in values:
                raise InvalidInput(
                    f"{field} of the metric {self.name!r} is {getattr(self, field)!r}; give "
                    f"{', '.join(map(repr, values))}"
                )
        if not (isinstance(self.name, str) and self.name.isidentifier()):
            raise InvalidInput(f"the name of a metric is {self.name!r}; give a Python identifier")
        if not isinstance(self.show, Show):
            raise InvalidInput(f"show of the metric {self.name!r} must be a Show")
        if self.row is None and self.value is None:
            raise InvalidInput(f"the metric {self.name!r} has neither row nor value; give one")

    @property
    def heading(self) -> str:
        """Its title at the start of a line, with the unit."""
        unit = f" in {self.unit}" if self.unit in ("nats", "bits") else ""
        return f"{self.title[0].upper()}{self.title[1:]}{unit}"

    @property
    def direction(self) -> str:
        """Which values are better, in words."""
        if self.better == "near":
            return f"near {self.nominal:g} is better"
        return f"{self.better} is better"

    def merit(self, value: _Number) -> _Number:
        """A number that is larger where the metric is better."""
        if self.better == "near":
            assert self.nominal is not None
            return -abs(value - self.nominal)
        return value if self.better == "more" else -value

    def of(self, score: Score, baselines: Mapping[str, Values]) -> float | None:
        """Its value over the rows of a score; None where it is not defined."""
        if self.value is not None:
            return finite(self.value(score, baselines))
        return finite(score.mean(self))


def shown(task: str, place: Show) -> list[Metric]:
    """Metrics of a task that a place shows, in the order of `METRICS`.

    Examples
    --------
    >>> [metric.title for metric in shown("regression", Show.BOARD)]
    ['RMSE', 'MAE']
    """
    tested = place & Show.TESTS
    return [
        metric
        for metric in METRICS.values()
        if metric.task == task and metric.show & place and (metric.average == "mean" or not tested)
    ]


def log_probability_metric(task: str) -> Metric:
    """The metric that is a mean of minus log probabilities: the base of code lengths."""
    return METRICS["nlpd" if task == REGRESSION else "log_loss"]


# ---- rows -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scored:
    """Predictions of labels beside the true labels, both as codes of the evaluation.

    Attributes
    ----------
    codes, predicted : (b,)
        Codes of the true label and of the most probable one (-1: no label was known).
    log_prob, confidence, brier : (b,)
        Log probability of the true label, largest probability, and squared error over all
        classes; NaN if the learner gives no probabilities.
    open_log_prob : (b,)
        Log probability of the true label, where the learner itself says how probable a class never
        seen is; NaN if it does not say.

    Examples
    --------
    The ``row`` of a metric gets it; that of the log-loss is the log probability:

    >>> undefined = np.full(2, np.nan)
    >>> log_prob = np.log([0.5, 0.8])
    >>> scored = Scored(np.array([0, 1]), np.array([0, 1]), log_prob, *[undefined] * 3)
    >>> METRICS["log_loss"].row(scored).round(3).tolist()
    [-0.693, -0.223]
    """

    codes: Array
    predicted: Array
    log_prob: Array
    confidence: Array
    brier: Array
    open_log_prob: Array


@dataclass(frozen=True, slots=True)
class Errors:
    """Predictions of numbers beside the true values.

    Attributes
    ----------
    error : (b,)
        Target less predicted mean, of rows that have both.
    z, std : (m,)
        Error in standard deviations, and these, of rows with a predicted standard deviation.

    Examples
    --------
    The ``row`` of a metric of regression gets it:

    >>> errors = Errors(np.array([0.5, -1.5]), z=np.array([1.0, -1.0]), std=np.array([0.5, 1.5]))
    >>> METRICS["mae"].row(errors).tolist()
    [0.5, 1.5]
    """

    error: Array
    z: Array
    std: Array


def score_labels(
    codes: Array,
    probabilities: Array,
    ranks: Array,
    n_seen: Array,
    n_known: Array,
    new: Array | None = None,
) -> Scored:
    """Score probabilities (b, K) of labels with codes (b,), made after n_seen (b,) were learned.

    Labels become known in the order of their ranks (K,): row i knows those with a rank below
    n_known[i]. Probability of other labels is taken away. A label that is not known has probability
    1 / (n + 1), and the known ones share n / (n + 1): the same for every learner. Only
    ``open_log_prob`` is by the learner's own probability of a label that is not known, new (b,).

    Examples
    --------
    >>> probabilities = np.array([[0.2, 0.8, 0.0], [0.2, 0.8, 0.0]])
    >>> n_seen, n_known = np.array([3, 3]), np.array([2, 2])
    >>> scored = score_labels(np.array([1, 2]), probabilities, np.arange(3), n_seen, n_known)
    >>> np.exp(scored.log_prob).round(3), scored.predicted
    (array([0.6 , 0.25]), array([1, 1]))
    """
    b, n_columns = probabilities.shape
    known = ranks < n_known[:, None]
    p = np.where(known & (probabilities > 0.0), probabilities, 0.0)
    total = p.sum(axis=1)
    # No known class has any probability: all known classes are equally probable.
    silent = ~((total > 0.0) & (total < np.inf))
    if silent.any():
        p[silent] = known[silent]
        total[silent] = np.maximum(n_known[silent], 1)
    p /= total[:, None]  # by itself: the inverse of a very small total overflows
    share, is_new = p[np.arange(b), codes], ranks[codes] >= n_known
    p *= (n_seen / (n_seen + 1.0))[:, None]
    unseen = 1.0 / (n_seen + 1.0)
    own = np.where(is_new, unseen, p[np.arange(b), codes])
    new = np.full(b, np.nan) if new is None else new
    by_learner = np.where(is_new, new, share * (1.0 - new))
    predicted = np.where(silent, -1, p.argmax(axis=1)) if n_columns else np.full(b, -1)
    return Scored(
        codes,
        predicted,
        np.log(np.maximum(own, LEAST_PROBABILITY)),
        p.max(axis=1, initial=0.0),
        np.square(p).sum(axis=1) + np.square(unseen) + 1.0 - 2.0 * own,
        np.log(np.maximum(by_learner, LEAST_PROBABILITY)),
    )


def scored_without_probabilities(codes: Array, predicted: Array) -> Scored:
    """Score predicted labels without probabilities, by their codes (b,)."""
    undefined = np.full(len(codes), np.nan)
    return Scored(codes, predicted, *[undefined] * 4)


# ---- scores over rows -------------------------------------------------------------------------


class Score:
    """Sums over rows, from which metrics are computed.

    Attributes
    ----------
    n, right : int
        Rows, and rows whose label was predicted.
    sums : {name: float}
        Sum of ``row`` of each metric that has one.
    """

    task: str

    def __init__(self, sums: dict[str, float] | None = None) -> None:
        self.n = self.right = 0
        self.sums = sums if sums is not None else dict.fromkeys(_row_metrics(self.task), 0.0)

    @property
    def rows(self) -> float:
        """Rows; NaN if there are none, so that quotients are not defined."""
        return self.n or math.nan

    def mean(self, metric: Metric) -> float:
        """Sum of a metric, divided by the rows."""
        return self.sums.get(metric.name, math.nan) / self.rows

    def values(
        self, baselines: Mapping[str, Values] | None = None, *, window: bool = False
    ) -> Values:
        """Metrics by name; None where one is not defined.

        Parameters
        ----------
        baselines : {name: values}, optional
            Values of the baselines over the same rows.
        window : bool
            Whether the rows are those of a window.
        """
        return {
            metric.name: metric.of(self, baselines or {})
            for metric in METRICS.values()
            if self._has(metric) and (metric.in_windows or not window)
        }

    def _has(self, metric: Metric) -> bool:
        return metric.task == self.task

    def _add_rows(self, rows: Scored | Errors) -> None:
        for name in self.sums:
            row = METRICS[name].row
            assert row is not None
            self.sums[name] += float(row(rows).sum())

    def _restore_sums(self, sums: dict[str, float | None] | list[float | None]) -> None:
        """Take sums from a checkpoint; a metric that is newer than it stays undefined.

        Run formats 1 and 2 have a list, in the order of the metrics of then.
        """
        if isinstance(sums, list):
            sums = dict(zip(self.sums, sums, strict=False))
        if unknown := set(sums) - set(self.sums):
            raise ValueError(f"sums of {', '.join(sorted(unknown))}, which are not registered")
        for name in self.sums:
            self.sums[name] = to_number(sums.get(name))

    def _saved_sums(self) -> dict[str, float | None]:
        return {name: finite(value) for name, value in self.sums.items()}


class LabelScore(Score):
    """Sums over predictions of labels.

    Examples
    --------
    >>> score = LabelScore()
    >>> score.add(scored_without_probabilities(np.array([0, 1, 1]), np.array([0, 1, 0])))
    >>> round(score.values()["accuracy"], 3), score.values()["log_loss"] is None
    (0.667, True)
    """

    task = CLASSIFICATION

    def __init__(self) -> None:
        super().__init__()
        self.bins = np.zeros((3, _N_BINS))  # number, sum of confidences, number right
        self.classes = np.zeros((3, 0), np.int64)  # right, true, predicted

    def add(self, scored: Scored) -> None:
        """Add predictions."""
        right = scored.codes == scored.predicted
        self.n += len(right)
        self.right += int(right.sum())
        self._add_rows(scored)
        if not math.isnan(self.sums["log_loss"]):
            predicted = scored.predicted >= 0  # a row before any label has no confidence
            confidence = scored.confidence[predicted]
            where = np.minimum((confidence * _N_BINS).astype(np.int64), _N_BINS - 1)
            for row, weights in zip(self.bins, (None, confidence, right[predicted]), strict=True):
                row += np.bincount(where, weights, _N_BINS)
        self._count(scored.codes, scored.predicted, right)

    def _count(self, codes: Array, predicted: Array, right: Array) -> None:
        n_classes = 1 + max(int(codes.max(initial=-1)), int(predicted.max(initial=-1)))
        if n_classes > self.classes.shape[1]:
            self.classes = np.pad(self.classes, ((0, 0), (0, n_classes - self.classes.shape[1])))
        for row, each in zip(
            self.classes, (codes[right], codes, predicted[predicted >= 0]), strict=True
        ):
            row += np.bincount(each, minlength=len(row))

    def calibration_error(self) -> float:
        """Expected calibration error over the bins."""
        count, confidence, right = self.bins
        return float(np.abs(confidence - right).sum() / (count.sum() or math.nan))

    def macro_f1(self) -> float:
        """F1, averaged over the classes that occurred or were predicted."""
        right, true, predicted = self.classes
        there = true + predicted > 0
        f1 = 2.0 * right[there] / (true + predicted)[there]
        return float(f1.mean()) if len(f1) else math.nan

    def reliability(self) -> dict[str, list[float]] | None:
        """Bins of the reliability diagram."""
        if math.isnan(self.sums["log_loss"]):
            return None
        count, confidence, right = self.bins.tolist()
        return {"count": count, "confidence": confidence, "right": right}

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "n": self.n,
            "right": self.right,
            "sums": self._saved_sums(),
            "bins": self.bins.tolist(),
            "classes": self.classes.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.n, self.right = state["n"], state["right"]
        self._restore_sums(state["sums"])
        self.bins = np.array(state["bins"])
        self.classes = np.array(state["classes"], np.int64).reshape(3, -1)


class ValueScore(Score):
    """Sums over predictions of numbers.

    Examples
    --------
    >>> score = ValueScore()
    >>> score.add(np.array([1.0, 2.0]), np.array([1.5, 2.0]), np.array([0.5, 0.5]))
    >>> round(score.values()["rmse"], 3), score.values()["coverage"]
    (0.354, 1.0)
    """

    task = REGRESSION

    def __init__(self) -> None:
        super().__init__()
        self.n_density = 0  # rows with a predicted standard deviation
        self.pit = np.zeros(_N_PIT, np.int64)

    def mean(self, metric: Metric) -> float:
        """Mean over the rows that count for a metric."""
        if not metric.needs_std:
            return super().mean(metric)
        return self.sums.get(metric.name, math.nan) / (self.n_density or math.nan)

    def add(self, targets: Array, mean: Array, std: Array | None) -> None:
        """Add targets (b,), predicted means and standard deviations (b,)."""
        known = np.isfinite(mean)
        error = (targets - mean)[known]
        self.n += len(error)
        std = np.full(len(mean), math.nan) if std is None else std
        has_std = np.isfinite(std[known]) & (std[known] > 0.0)
        spread = std[known][has_std]
        z = error[has_std] / spread
        self.n_density += len(z)
        self._add_rows(Errors(error, z, spread))
        below = 0.5 * (1.0 + np.array([math.erf(each / math.sqrt(2.0)) for each in z]))
        self.pit += np.bincount(
            np.minimum((below * _N_PIT).astype(np.int64), _N_PIT - 1), minlength=_N_PIT
        )

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "n": self.n,
            "n_density": self.n_density,
            "sums": self._saved_sums(),
            "pit": self.pit.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.n, self.n_density = state["n"], state["n_density"]
        self._restore_sums(state["sums"])
        self.pit = np.array(state["pit"], np.int64)


class BaselineScore(Score):
    """Sums of a baseline: only the metrics that are for baselines."""

    def __init__(self, task: str, n: int, right: int = 0, **sums: float) -> None:
        super().__init__(sums)
        self.task, self.n, self.right = task, n, right

    def _has(self, metric: Metric) -> bool:
        return super()._has(metric) and metric.for_baselines


# ---- the metrics ------------------------------------------------------------------------------


def _kappa(score: Score, baselines: Mapping[str, Values]) -> float:
    """Share of the errors of no-change that the learner avoids."""
    least = baselines.get("no_change", {}).get("accuracy")
    if least is None or least >= 1.0:
        return math.nan
    return (score.right / score.rows - least) / (1.0 - least)


def _log_density(rows: Errors) -> Array:
    return -0.5 * np.square(rows.z) - np.log(rows.std * math.sqrt(2.0 * math.pi))


def _row_metrics(task: str) -> list[str]:
    return [name for name, m in METRICS.items() if m.task == task and m.row is not None]


# Checkpoints of run formats 1 and 2 hold the sums of `row` in this order: append new metrics.
_BUILT_IN: Final = (
    Metric(
        "accuracy",
        "accuracy",
        "share of the rows whose most probable label is the true one",
        CLASSIFICATION,
        "more",
        "share",
        value=lambda score, _: score.right / score.rows,
        for_baselines=True,
        show=Show.VERDICT | Show.BOARD | Show.CURVES | Show.TOTALS | Show.TESTS,
    ),
    Metric(
        "log_loss",
        "log-loss",
        "mean of -ln p, where p is the probability of the true label",
        CLASSIFICATION,
        "less",
        "nats",
        row=lambda rows: rows.log_prob,
        value=lambda score, _: -score.sums["log_loss"] / score.rows,
        for_baselines=True,
        show=Show.VERDICT | Show.BOARD | Show.CURVES | Show.TOTALS | Show.TESTS,
    ),
    Metric(
        "brier",
        "Brier score",
        "mean squared error of the probabilities, summed over the classes, from 0 to 2",
        CLASSIFICATION,
        "less",
        row=lambda rows: rows.brier,
        show=Show.TOTALS,
    ),
    Metric(
        "ece",
        "ECE",
        f"expected calibration error: mean gap between confidence and accuracy in {_N_BINS} bins",
        CLASSIFICATION,
        "less",
        "share",
        "none",
        value=lambda score, _: score.calibration_error(),
        show=Show.TOTALS,
    ),
    Metric(
        "macro_f1",
        "macro F1",
        "F1, averaged over the classes",
        CLASSIFICATION,
        "more",
        "share",
        "none",
        value=lambda score, _: score.macro_f1(),
        show=Show.TOTALS | Show.MORE,
    ),
    Metric(
        "kappa_no_change",
        "kappa against no-change",
        "(accuracy - a) / (1 - a), where a is the accuracy of repeating the last label",
        CLASSIFICATION,
        "more",
        average="none",
        value=_kappa,
        show=Show.MORE,
    ),
    Metric(
        "code_length",
        "code length",
        "sum of -log2 p: bits needed to send all labels, if each label is coded with its "
        "predicted probability",
        CLASSIFICATION,
        "less",
        "bits",
        "none",
        value=lambda score, _: -score.sums["log_loss"] / _LOG_2,
        for_baselines=True,
        in_windows=False,
        show=Show.TOTALS,
    ),
    Metric(
        "open_log_loss",
        "open log-loss",
        "log-loss, with the learner's own probability of a class never seen in place of 1/(n + 1)",
        CLASSIFICATION,
        "less",
        "nats",
        row=lambda rows: rows.open_log_prob,
        value=lambda score, _: -score.sums["open_log_loss"] / score.rows,
        show=Show.TOTALS | Show.TESTS,
    ),
    Metric(
        "rmse",
        "RMSE",
        "root of the mean squared error of the predicted mean",
        REGRESSION,
        "less",
        average="root",
        row=lambda rows: np.square(rows.error),
        value=lambda score, _: math.sqrt(score.sums["rmse"] / score.rows),
        for_baselines=True,
        show=Show.VERDICT | Show.BOARD | Show.CURVES | Show.TOTALS,
    ),
    Metric(
        "mae",
        "MAE",
        "mean absolute error of the predicted mean",
        REGRESSION,
        "less",
        row=lambda rows: np.abs(rows.error),
        for_baselines=True,
        show=Show.BOARD | Show.MORE | Show.TOTALS | Show.TESTS,
    ),
    Metric(
        "nlpd",
        "NLPD",
        "negative log predictive density: mean of -ln of the Gaussian density of the target",
        REGRESSION,
        "less",
        "nats",
        row=_log_density,
        value=lambda score, _: -score.mean(METRICS["nlpd"]),
        needs_std=True,
        show=Show.CURVES | Show.TOTALS | Show.TESTS,
    ),
    Metric(
        "coverage",
        "coverage",
        "share of the targets in the central 90% interval",
        REGRESSION,
        "near",
        "share",
        row=lambda rows: np.abs(rows.z) <= _Z90,
        needs_std=True,
        nominal=0.9,
        show=Show.TOTALS,
    ),
)
METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _BUILT_IN}


def register(metric: Metric) -> None:
    """Add a metric to `METRICS`, before the runs that are to have it.

    Examples
    --------
    >>> register(METRICS["accuracy"])
    Traceback (most recent call last):
    ...
    kalstream.errors.InvalidInput: there is a metric 'accuracy' already; choose another name
    """
    if metric.name in METRICS:
        raise InvalidInput(f"there is a metric {metric.name!r} already; choose another name")
    METRICS[metric.name] = metric
