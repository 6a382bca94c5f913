"""Learners that are compared: kalstream and other libraries, with their documented defaults."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import softmax

from kalstream import KalmanClassifier
from kalstream.features import RandomFourierFeatures

sys.path.insert(0, str(Path(__file__).parents[1]))
from page import machine


def about() -> dict[str, Any]:
    """Machine and versions, for a result file."""
    names = ("kalstream", "river", "scikit-learn", "numba")
    return {"machine": machine(), "versions": {name: version(name) for name in names}}


@dataclass(frozen=True)
class Method:
    """A learner.

    Attributes
    ----------
    make : function from a seed to a learner
    family : str
    is_random : bool
        Whether the seed matters.
    is_slow : bool
        Takes milliseconds a row, so that it runs first.
    is_ensemble : bool
        Whether it is an ensemble of trees.
    """

    make: Callable[[int], Any]
    family: str
    is_random: bool = False
    is_slow: bool = False
    is_ensemble: bool = False


class Scaler:
    """Learns the same as scikit-learn's StandardScaler, in microseconds instead of 1 ms a row."""

    def __init__(self) -> None:
        self.n, self.mean, self.spread = 0, 0.0, 0.0

    def partial_fit(self, X: Any) -> None:
        """Learn rows."""
        for x in X:
            self.n += 1
            gap = x - self.mean
            self.mean = self.mean + gap / self.n
            self.spread = self.spread + gap * (x - self.mean)

    def transform(self, X: Any) -> Any:
        """Rows (b, d) in standard deviations; columns that never changed stay as they are."""
        std = np.sqrt(self.spread / self.n)
        return (X - self.mean) / np.where(std > 0.0, std, 1.0)


class Unscaled:
    """Columns that are not scaled."""

    def partial_fit(self, X: Any) -> None:
        """Learn nothing."""

    def transform(self, X: Any) -> Any:
        """Rows (b, d) themselves."""
        return X


class Scaled:
    """A learner whose columns are scaled online, or transformed by ``scaler``."""

    def __init__(self, learner: Any, scaler: Any = None) -> None:
        self.learner, self.scaler = learner, scaler or Scaler()

    @property
    def classes_(self) -> Any:
        """Labels of the learner."""
        return self.learner.classes_

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> None:
        """Learn the scale, then the rows."""
        self.scaler.partial_fit(X)
        self.learner.partial_fit(self.scaler.transform(X), y, classes=classes)

    def predict(self, X: Any) -> Any:
        """Labels (b,)."""
        return self.learner.predict(self.scaler.transform(X))


class ScaledProbabilities(Scaled):
    """The same for a learner with probabilities."""

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (b, K)."""
        return self.learner.predict_proba(self.scaler.transform(X))


class SeenOnly(ScaledProbabilities):
    """The same for naive Bayes, without its NaN for classes that have not come yet.

    Its `var_smoothing`, 1e-9 of the largest variance, is 0 if rows come one by one. Columns that
    are constant within a class would then be NaN too, so that the smoothing is added here.
    """

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (b, K)."""
        variance = self.learner.var_
        self.learner.var_ = variance + max(1e-9 * variance.max(), 1e-300)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = self.learner.predict_joint_log_proba(self.scaler.transform(X))
        self.learner.var_ = variance
        return softmax(np.where(np.isfinite(logs), logs, -1e300), axis=1)

    def predict(self, X: Any) -> Any:
        """Labels (b,)."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


class StreamingLDA:
    """Hayes & Kanan (2020): class means and one covariance, factored again every 100 rows."""

    def __init__(self, shrinkage: float = 1e-4, every: int = 100) -> None:
        self.shrinkage, self.every, self.n = shrinkage, every, 0

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> None:
        """Learn rows."""
        if self.n == 0:
            self.classes_, d = np.asarray(classes), X.shape[1]
            self.counts, self.means = np.zeros(len(classes)), np.zeros((len(classes), d))
            self.scatter, self.factor = np.zeros((d, d)), cho_factor(np.eye(d))
        for x, k in zip(X, np.searchsorted(self.classes_, y), strict=True):
            gap = x - self.means[k]
            self.counts[k] += 1
            self.means[k] += gap / self.counts[k]
            self.scatter += (1.0 - 1.0 / self.counts[k]) * np.outer(gap, gap)
            self.n += 1
            if self.n % self.every == 0:
                cov = (1.0 - self.shrinkage) / self.n * self.scatter
                cov.flat[:: len(cov) + 1] += self.shrinkage
                self.factor = cho_factor(cov)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (b, K), of classes seen so far."""
        weights = cho_solve(self.factor, self.means.T)
        logits = X @ weights - 0.5 * np.einsum("km,mk->k", self.means, weights)
        return softmax(np.where(self.counts > 0, logits, -np.inf), axis=1)

    def predict(self, X: Any) -> Any:
        """Labels (b,)."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


class RecursiveLeastSquares:
    """Least squares on one-hot labels with forgetting; outputs are clipped and normalised."""

    def __init__(self, forgetting: float = 0.999, ridge: float = 1.0) -> None:
        self.forgetting, self.ridge, self.classes_ = forgetting, ridge, None

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> None:
        """Learn rows."""
        X = np.column_stack([X, np.ones(len(X))])
        if self.classes_ is None:
            self.classes_ = np.asarray(classes)
            self.cov = np.eye(X.shape[1]) / self.ridge
            self.coef = np.zeros((X.shape[1], len(classes)))
        for x, k in zip(X, np.searchsorted(self.classes_, y), strict=True):
            spread = self.cov @ x
            gain = spread / (self.forgetting + x @ spread)
            error = -(x @ self.coef)
            error[k] += 1.0
            self.coef += np.outer(gain, error)
            self.cov = (self.cov - np.outer(gain, spread)) / self.forgetting

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (b, K)."""
        outputs = np.clip(np.column_stack([X, np.ones(len(X))]) @ self.coef, 1e-3, 1.0)
        return outputs / outputs.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> Any:
        """Labels (b,)."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def _forest(n: int) -> Callable[[int], Any]:
    def make(seed: int) -> Any:
        from river.forest import ARFClassifier

        return ARFClassifier(n_models=n, seed=seed)

    return make


def _patches(seed: int) -> Any:
    from river.ensemble import SRPClassifier

    return SRPClassifier(n_models=10, seed=seed)


def _hoeffding(seed: int) -> Any:
    from river.tree import HoeffdingAdaptiveTreeClassifier

    return HoeffdingAdaptiveTreeClassifier(seed=seed)


def _softmax(seed: int) -> Any:
    from river.linear_model import SoftmaxRegression
    from river.preprocessing import StandardScaler

    return StandardScaler() | SoftmaxRegression()


def _neighbours(seed: int) -> Any:
    from river.neighbors import KNNClassifier
    from river.preprocessing import StandardScaler

    return StandardScaler() | KNNClassifier()


def _sgd(seed: int) -> Any:
    from sklearn.linear_model import SGDClassifier

    return ScaledProbabilities(SGDClassifier(loss="log_loss", random_state=seed))


def _passive_aggressive(seed: int) -> Any:
    from sklearn.linear_model import SGDClassifier

    # scikit-learn recommends this in place of PassiveAggressiveClassifier, which is deprecated.
    options = {"loss": "hinge", "penalty": None, "learning_rate": "pa1", "eta0": 1.0}
    return Scaled(SGDClassifier(random_state=seed, **options))


def _naive_bayes(seed: int) -> Any:
    from sklearn.naive_bayes import GaussianNB

    # naive Bayes needs no scaling, and a scale that still changes harms it
    return SeenOnly(GaussianNB(), Unscaled())


# Other settings of kalstream have one seed: they only show the effect of each part. The seed of
# scikit-learn's SGD shuffles rows, which has no effect on a single row.
METHODS: dict[str, Method] = {
    "kalstream": Method(lambda s: KalmanClassifier(random_state=s), "kalstream", True),
    "kalstream, without the labels before": Method(
        lambda s: KalmanClassifier(recent_labels=False, random_state=s), "kalstream"
    ),
    "kalstream, scaled columns": Method(lambda s: KalmanClassifier(features="scaled"), "kalstream"),
    "kalstream, plain mixture": Method(
        lambda s: KalmanClassifier(stacking=False, random_state=s), "kalstream"
    ),
    "kalstream, learned gamma": Method(
        lambda s: KalmanClassifier("learned", random_state=s), "kalstream"
    ),
    "kalstream, gamma = 1": Method(lambda s: KalmanClassifier(1.0, random_state=s), "kalstream"),
    "kalstream, not calibrated": Method(
        lambda s: KalmanClassifier(stacking=False, calibration=1.0, random_state=s), "kalstream"
    ),
    "ARF, 10 trees": Method(_forest(10), "river", True, True, True),
    "ARF, 50 trees": Method(_forest(50), "river", True, True, True),
    "SRP, 10 trees": Method(_patches, "river", True, True, True),
    "Hoeffding adaptive tree": Method(_hoeffding, "river", True),
    "softmax regression": Method(_softmax, "river"),
    "kNN": Method(_neighbours, "river", is_slow=True),
    "SGD, log loss": Method(_sgd, "scikit-learn"),
    "passive-aggressive": Method(_passive_aggressive, "scikit-learn"),
    "Gaussian naive Bayes": Method(_naive_bayes, "scikit-learn"),
    "streaming LDA": Method(lambda s: ScaledProbabilities(StreamingLDA()), "plain"),
    "RLS, forgetting 0.999": Method(
        lambda s: ScaledProbabilities(RecursiveLeastSquares()), "plain"
    ),
    "RLS, kalstream's features": Method(
        lambda s: ScaledProbabilities(
            RecursiveLeastSquares(), RandomFourierFeatures(random_state=s)
        ),
        "plain",
    ),
}
