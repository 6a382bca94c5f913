"""A classifier with a small model for each of many keys."""

from __future__ import annotations

from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin

from kalstream._arrays import Array
from kalstream.core.keyed import Keyed
from kalstream.errors import InvalidInput
from kalstream.estimators._keyed import KeyedEstimator, Known, one_each, read_keys
from kalstream.estimators._settings import store
from kalstream.estimators._sharing import interruptible
from kalstream.estimators.classifier import KalmanClassifier
from kalstream.estimators.inputs import read_columns, read_weights
from kalstream.estimators.labels import Labels, read_labels

# Probabilities of the base below this count as this: a key could hardly correct their logarithms.
_LEAST: Final = 1e-12


class KeyedClassifier(ClassifierMixin, KeyedEstimator):
    """One model for all keys, and a small one for each: per customer, machine or meter.

    A `KalmanClassifier` learns from every row. A small filter bank for each key learns what to add
    to its prediction, linear in the scaled columns. The first row of a new key is predicted as the
    classifier does, and later rows better. How strongly keys differ is learned, from all keys and
    from the key itself; if they do not, predictions stay those of the classifier. Nothing has to be
    tuned. A key of 10 columns and 3 classes takes 5 KB.

    Parameters
    ----------
    base : KalmanClassifier, optional
        The model of all keys, with any settings; it is cloned. None: ``KalmanClassifier()``.
    max_keys : int, optional
        How many keys may be in memory between calls. The others, which learned least recently, are
        in one temporary file and come back bit for bit. None: all keys are in memory.
    folder : str, optional
        Where the temporary file is. None: the folder for temporary files, which may be in memory.

    Attributes
    ----------
    classes_ : (K,)
        Labels seen or declared so far, sorted; it grows.
    keys_, n_keys_ : list, int
        Keys with a label that taught them something.
    spread_ : float
        How strongly keys differ: standard deviation of what a key adds to a logit, 0 if nothing.
    spread_weights_ : dict
        Posterior over how strongly keys differ, by the labels of all keys. The standard deviations
        of the intercept and of the columns' part, and a half-life in rows of the key: weight.
    base_ : KalmanClassifier
        A copy of the model of all keys.
    half_life_weights_ : dict
        Weights of the half-lives of the model of all keys.
    n_seen_ : int
        Number of rows seen, with a label or without.
    nbytes_ : int
        Bytes of the numbers in memory, of the base and of all keys.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    A key can be anything that can be hashed, such as a string, a number or a tuple. Keys that are
    equal are one key: 1, 1.0 and True. To save a model, its keys must be numbers, strings, bytes or
    tuples of these. Keys are not forgotten: memory grows with their number, or with ``max_keys``
    the temporary file does. It has no name, and vanishes with the process.

    Rows are learned in their order, and a batch of any mix of keys gives what its rows would give
    one by one. A call that fails changes nothing. In `partial_fit` a label of None or NaN teaches
    nothing. Other threads may predict while one thread learns.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((400, 2))
    >>> shop = np.where(rng.random(400) < 0.5, "north", "south")
    >>> y = np.where((X[:, 0] > 0) == (shop == "north"), "buys", "leaves")  # shops are opposites
    >>> model = KeyedClassifier().partial_fit(X, y, shop)
    >>> model.predict([[2.0, 0.0], [2.0, 0.0]], ["north", "south"]).tolist()
    ['buys', 'leaves']
    >>> model.n_keys_, model.spread_ > 1.0
    (2, True)
    """

    _BASE, _KEYED = KalmanClassifier, Keyed

    def __init__(
        self,
        base: KalmanClassifier | None = None,
        max_keys: int | None = None,
        folder: str | None = None,
    ) -> None:
        store(locals())

    # ---- learning -------------------------------------------------------------------------

    def fit(
        self, X: ArrayLike, y: ArrayLike, key: Any, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Forget everything, then learn the rows in their order, once.

        Parameters
        ----------
        X : (b, d)
        y : (b,)
            Labels, none missing.
        key, sample_weight
            As in `partial_fit`.

        Examples
        --------
        >>> model = KeyedClassifier().fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> model.predict([[2.0]], ["a"]).tolist()
        ['up']
        """
        labels = read_labels(y, warn=True)
        if None in labels:
            raise InvalidInput(
                f"y contains NaN or None at row {labels.index(None)}; fit needs all labels; use "
                "partial_fit if some are missing"
            )
        self._learn(X, labels, key, sample_weight, restart=True)
        return self

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, key: Any, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Learn a chunk of rows, in their order.

        Parameters
        ----------
        X : (b, d)
        y : (b,)
            Labels of any type, also new ones; None or NaN where unknown.
        key : (b,)
            Key of each row.
        sample_weight : (b,), optional
            As in `KalmanClassifier.partial_fit`; 0 is the same as no label.

        Examples
        --------
        >>> model = KeyedClassifier()
        >>> model = model.partial_fit([[1.0], [-1.0], [1.0]], ["up", "down", "up"], [7, 7, (8, 1)])
        >>> model.classes_.tolist(), model.keys_
        (['down', 'up'], [(8, 1)])
        """
        self._learn(X, read_labels(y), key, sample_weight)
        return self

    def predict_then_learn(
        self, X: ArrayLike, y: ArrayLike, key: Any, sample_weight: ArrayLike | None = None
    ) -> Array:
        """Probabilities (b, K) of `classes_`, each row before it is learned; then they are learned.

        Classes not seen before a row have probability 0. The model of all keys uses recent labels
        here, as in `KalmanClassifier.predict_then_learn`.

        Examples
        --------
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> model.predict_then_learn([[1.0], [2.0]], ["up", None], ["a", "c"]).shape
        (2, 2)
        """
        return self._learn(X, read_labels(y), key, sample_weight)

    def _passed_base(
        self, known: Known, base: Any, rows: Array, y: Any, weight: Array | None
    ) -> tuple[Labels, Array, Array]:
        p = base.predict_then_learn(rows, y, sample_weight=weight)
        # To ask the base takes as long as to learn a row.
        is_new = p.shape[1] > len(known.labels.names)
        labels = self._labels_of(base._model) if is_new else known.labels
        return labels, _offsets(labels, p), labels.codes(y)

    @staticmethod
    def _labels_of(model: Any) -> Labels:
        return model.targets.labels

    def _shown(self, known: Known, out: Array) -> Array:
        return out[:, known.labels.order]

    # ---- predicting -----------------------------------------------------------------------

    @interruptible
    def probabilities_and_classes(
        self, X: ArrayLike, key: Any, *, is_next: bool = False
    ) -> tuple[Array, Array]:
        """Probabilities (b, K), and the classes (K,) they are of, from one and the same model.

        With ``is_next``, X is the next row alone, and its probabilities are those that
        `predict_then_learn` would give: the model of all keys sees recent labels.

        Examples
        --------
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> probabilities, classes = model.probabilities_and_classes([[2.0]], ["a"], is_next=True)
        >>> str(classes[probabilities.argmax()])
        'up'
        """
        known = self._seen()
        rows, _ = read_columns(X, known.fitted, type(self).__name__)
        keys = read_keys(key, len(rows))
        p, _ = known.base.probabilities_and_classes(rows, is_next=is_next)
        columns = known.scaler.passed(rows)[1] if is_next else known.scaler.columns(rows)
        seen = known.features(columns), _offsets(known.labels, p)
        out = known.keyed.predict(known.state, keys, *seen)
        return self._shown(known, out), known.labels.classes

    def predict_proba(self, X: ArrayLike, key: Any) -> Array:
        """Probabilities (b, K) of `classes_` for rows of these keys (b,), which may be new.

        Examples
        --------
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> bool(model.predict_proba([[1.0]], ["new"])[0, 1] > 0.5)
        True
        """
        return self.probabilities_and_classes(X, key)[0]

    def predict_log_proba(self, X: ArrayLike, key: Any) -> Array:
        """Logarithms of `predict_proba` (b, K).

        Examples
        --------
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> model.predict_log_proba([[1.0]], ["a"]).shape
        (1, 2)
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X, key))

    def predict(self, X: ArrayLike, key: Any) -> Array:
        """Most probable label of each row (b,).

        Examples
        --------
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> model.predict([[2.0]], ["a"]).tolist()
        ['up']
        """
        probabilities, classes = self.probabilities_and_classes(X, key)
        return classes[probabilities.argmax(axis=1)]

    def score(
        self, X: ArrayLike, y: ArrayLike, key: Any, sample_weight: ArrayLike | None = None
    ) -> float:
        """Accuracy: the share of rows whose most probable label is the one in y.

        Examples
        --------
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> model.score([[2.0], [-2.0]], ["up", "up"], ["a", "b"])
        0.5
        """
        names, predicted = read_labels(y), self.predict(X, key).tolist()
        one_each("y", "label", len(names), len(predicted))
        hits = [one == other for one, other in zip(names, predicted, strict=True)]
        return float(np.average(hits, weights=read_weights(sample_weight, len(hits))))

    # ---- what has been learned ------------------------------------------------------------

    @property
    def classes_(self) -> Array:
        """Labels seen or declared so far (K,), sorted."""
        return self._seen().labels.classes


def _offsets(labels: Labels, p: Array) -> Array:
    """Log-probabilities (b, K) by column, from those of the base by class (b, K)."""
    out = np.full(p.shape, -np.inf)
    out[:, labels.order] = np.where(p > 0.0, np.log(np.maximum(p, _LEAST)), -np.inf)
    return out
