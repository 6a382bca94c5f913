"""How good predictions were: sums that grow with the rows, and the numbers they stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

N_BINS: Final = 15  # of the reliability diagram
N_PIT: Final = 20
LEAST_PROBABILITY: Final = 1e-15  # a learner that says 0 is not damned for ever
_Z90: Final = 1.6448536269514722  # half the width of a central 90% interval, in standard deviations


@dataclass(frozen=True, slots=True)
class Scored:
    """Predictions of labels beside what came, in the evaluator's codes.

    Attributes
    ----------
    codes, predicted : (b,)
        Codes of the label that came and of the most probable one (-1: none was known).
    log_prob, confidence, brier : (b,)
        Log probability of the label, largest probability, and squared error over all classes;
        NaN if the learner gives no probabilities.
    """

    codes: Array
    predicted: Array
    log_prob: Array
    confidence: Array
    brier: Array


def score_labels(
    codes: Array, probabilities: Array, ranks: Array, n_seen: Array, n_known: Array
) -> Scored:
    """Score probabilities (b, K) of labels with codes (b,), made after n_seen (b,) were learned.

    Labels become known in the order of their ranks (K,): to row i those below n_known[i]. What a
    learner gives to others is taken away. A label not known has probability 1 / (n + 1) and known
    ones share n / (n + 1): the same for every learner.

    Examples
    --------
    >>> said = np.array([[0.2, 0.8, 0.0], [0.2, 0.8, 0.0]])
    >>> n_seen, n_known = np.array([3, 3]), np.array([2, 2])
    >>> scored = score_labels(np.array([1, 2]), said, np.arange(3), n_seen, n_known)
    >>> np.exp(scored.log_prob).round(3), scored.predicted
    (array([0.6 , 0.25]), array([1, 1]))
    """
    b, n_columns = probabilities.shape
    known = ranks < n_known[:, None]
    p = np.where(known & (probabilities > 0.0), probabilities, 0.0)
    total = p.sum(axis=1)
    # Where nothing was said about any class known, all are alike.
    silent = ~((total > 0.0) & (total < np.inf))
    if silent.any():
        p[silent] = known[silent]
        total[silent] = np.maximum(n_known[silent], 1)
    p /= total[:, None]  # by itself: the inverse of a total that is hardly a number overflows
    p *= (n_seen / (n_seen + 1.0))[:, None]
    new = 1.0 / (n_seen + 1.0)
    own = np.where(ranks[codes] >= n_known, new, p[np.arange(b), codes])
    predicted = np.where(silent, -1, p.argmax(axis=1)) if n_columns else np.full(b, -1)
    return Scored(
        codes,
        predicted,
        np.log(np.maximum(own, LEAST_PROBABILITY)),
        p.max(axis=1, initial=0.0),
        np.square(p).sum(axis=1) + np.square(new) + 1.0 - 2.0 * own,
    )


def scored_without_probabilities(codes: Array, predicted: Array) -> Scored:
    """Score labels alone, by their codes (b,)."""
    nothing = np.full(len(codes), np.nan)
    return Scored(codes, predicted, nothing, nothing, nothing)


class LabelScore:
    """Sums over predictions of labels.

    Examples
    --------
    >>> score = LabelScore()
    >>> score.add(scored_without_probabilities(np.array([0, 1, 1]), np.array([0, 1, 0])))
    >>> round(score.values()["accuracy"], 3), score.values()["log_loss"] is None
    (0.667, True)
    """

    def __init__(self) -> None:
        self.n = self.right = 0
        self.sums = np.zeros(2)  # of log_prob and brier
        self.bins = np.zeros((3, N_BINS))  # number, sum of confidences, number right
        self.classes = np.zeros((3, 0), np.int64)  # right, came, predicted

    def add(self, scored: Scored) -> None:
        """Add predictions."""
        right = scored.codes == scored.predicted
        self.n += len(right)
        self.right += int(right.sum())
        self.sums += scored.log_prob.sum(), scored.brier.sum()
        if not math.isnan(self.sums[0]):
            said = scored.predicted >= 0  # a row that came before any label has no confidence
            confidence = scored.confidence[said]
            where = np.minimum((confidence * N_BINS).astype(np.int64), N_BINS - 1)
            for row, weights in zip(self.bins, (None, confidence, right[said]), strict=True):
                row += np.bincount(where, weights, N_BINS)
        self._count(scored.codes, scored.predicted, right)

    def _count(self, codes: Array, predicted: Array, right: Array) -> None:
        n_classes = 1 + max(int(codes.max(initial=-1)), int(predicted.max(initial=-1)))
        if n_classes > self.classes.shape[1]:
            self.classes = np.pad(self.classes, ((0, 0), (0, n_classes - self.classes.shape[1])))
        for row, each in zip(
            self.classes, (codes[right], codes, predicted[predicted >= 0]), strict=True
        ):
            row += np.bincount(each, minlength=len(row))

    def values(self) -> dict[str, float | None]:
        """Accuracy, log-loss (nats), Brier score, ECE and macro-F1; None where not defined."""
        n = self.n or math.nan
        log_prob, brier = self.sums.tolist()
        count, confidence, right = self.bins
        gap = np.abs(confidence - right).sum() / (count.sum() or math.nan)
        hits, came, predicted = self.classes
        there = came + predicted > 0
        f1 = 2.0 * hits[there] / (came + predicted)[there]
        return {
            "accuracy": number(self.right / n),
            "log_loss": number(-log_prob / n),
            "brier": number(brier / n),
            "ece": number(gap),
            "macro_f1": number(f1.mean() if len(f1) else math.nan),
        }

    @property
    def code_length(self) -> float | None:
        """Bits to send all labels, each coded with the probability it was given."""
        return number(-self.sums[0] / math.log(2.0))

    def reliability(self) -> dict[str, list[float]] | None:
        """Bins of the reliability diagram."""
        if math.isnan(self.sums[0]):
            return None
        count, confidence, right = self.bins.tolist()
        return {"count": count, "confidence": confidence, "right": right}

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "n": self.n,
            "right": self.right,
            "sums": _listed(self.sums),
            "bins": self.bins.tolist(),
            "classes": self.classes.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.n, self.right = state["n"], state["right"]
        self.sums, self.bins = _floats(state["sums"]), np.array(state["bins"])
        self.classes = np.array(state["classes"], np.int64).reshape(3, -1)


class ValueScore:
    """Sums over predictions of numbers.

    Examples
    --------
    >>> score = ValueScore()
    >>> score.add(np.array([1.0, 2.0]), np.array([1.5, 2.0]), np.array([0.5, 0.5]))
    >>> round(score.values()["rmse"], 3), score.values()["coverage"]
    (0.354, 1.0)
    """

    def __init__(self) -> None:
        self.n = self.n_density = 0
        self.sums = np.zeros(4)  # squares, absolute values, log density, covered
        self.pit = np.zeros(N_PIT, np.int64)

    def add(self, targets: Array, mean: Array, std: Array | None) -> None:
        """Add targets (b,), predicted means and standard deviations (b,)."""
        known = np.isfinite(mean)
        error = (targets - mean)[known]
        self.n += len(error)
        self.sums[0] += np.square(error).sum()
        self.sums[1] += np.abs(error).sum()
        if std is None:
            return
        said = np.isfinite(std[known]) & (std[known] > 0.0)
        spread = std[known][said]
        z = error[said] / spread
        self.n_density += len(z)
        self.sums[2] += (-0.5 * np.square(z) - np.log(spread * math.sqrt(2.0 * math.pi))).sum()
        self.sums[3] += (np.abs(z) <= _Z90).sum()
        below = 0.5 * (1.0 + np.array([math.erf(each / math.sqrt(2.0)) for each in z]))
        self.pit += np.bincount(
            np.minimum((below * N_PIT).astype(np.int64), N_PIT - 1), minlength=N_PIT
        )

    def values(self) -> dict[str, float | None]:
        """RMSE, mean absolute error, NLPD and coverage of 90% intervals; None where not defined."""
        n, m = self.n or math.nan, self.n_density or math.nan
        squares, absolute, log_density, covered = self.sums.tolist()
        return {
            "rmse": number(math.sqrt(squares / n) if self.n else math.nan),
            "mae": number(absolute / n),
            "nlpd": number(-log_density / m),
            "coverage": number(covered / m),
        }

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "n": self.n,
            "n_density": self.n_density,
            "sums": _listed(self.sums),
            "pit": self.pit.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.n, self.n_density = state["n"], state["n_density"]
        self.sums, self.pit = _floats(state["sums"]), np.array(state["pit"], np.int64)


def number(value: float) -> float | None:
    """A number as JSON takes it: None if it is not one."""
    return float(value) if math.isfinite(value) else None


def _listed(values: Array) -> list[float | None]:
    return [number(value) for value in values]


def _floats(values: list[float | None]) -> Array:
    return np.array([math.nan if value is None else value for value in values])
