"""A classifier with a small model for each of many keys."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, clone
from sklearn.exceptions import NotFittedError

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.alarm import Drift
from kalstream.core.keyed import Keyed, KeyedState
from kalstream.core.spilled import Spilled
from kalstream.errors import CheckpointError, InvalidInput
from kalstream.estimators import _saving, checkpoint
from kalstream.estimators._published import PublishedEstimator
from kalstream.estimators._settings import store
from kalstream.estimators._sharing import Shared, interruptible
from kalstream.estimators._soundness import need, need_array
from kalstream.estimators.classifier import KalmanClassifier
from kalstream.estimators.inputs import read_columns, read_path, read_weights
from kalstream.estimators.labels import Labels, _as_array, read_labels
from kalstream.features import OnlineScaler

# Probabilities of the base below this count as this: a key could hardly correct their logarithms.
_LEAST: Final = 1e-12


@dataclass(frozen=True)
class Known:
    """All that a `KeyedClassifier` has learned. Never changed.

    Attributes
    ----------
    base : KalmanClassifier
        What is known of all keys. Nobody else has it.
    labels : Labels
        Those of the base, in the order of the columns of a key's means.
    scaler : OnlineScaler
        Of the columns that keys see.
    keyed, state : Keyed, KeyedState
    n_seen : int
        Rows that have passed, with a label or not.
    fitted : dict
        What is known of the columns; see `kalstream.estimators.inputs.read_columns`.
    """

    base: KalmanClassifier
    labels: Labels
    scaler: OnlineScaler
    keyed: Keyed
    state: KeyedState
    n_seen: int
    fitted: dict[str, Any]

    @property
    def is_fitted(self) -> bool:
        """Whether a label is known."""
        return len(self.labels.names) > 0

    def offsets(self, p: Array) -> Array:
        """Log-probabilities (b, K) by column, from those of the base by class (b, K)."""
        out = np.full(p.shape, -np.inf)
        out[:, self.labels.order] = np.where(p > 0.0, np.log(np.maximum(p, _LEAST)), -np.inf)
        return out

    def features(self, columns: Array) -> Array:
        """Features (b, 1 + d) of a key, from scaled columns (b, d)."""
        return self.scaler.features(columns, 1, math.sqrt(columns.shape[1]))


class KeyedClassifier(ClassifierMixin, PublishedEstimator[Known]):
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

    @interruptible
    def _learn(
        self, X: Any, y: list[Any], key: Any, sample_weight: Any, *, restart: bool = False
    ) -> Any:
        def change(known: Known | None) -> tuple[Known, Array]:
            before = None if known is None else known.fitted
            rows, fitted = read_columns(X, before, type(self).__name__, learns=True)
            keys = read_keys(key, len(rows))
            weight = read_weights(sample_weight, len(rows))
            if known is None:
                known = self._start(rows.shape[1])
            return _learned(replace(known, fitted=fitted), rows, y, keys, weight)

        return self._publish(change, restart=restart)

    def _start(self, n_columns: int) -> Known:
        """What is known before any row."""
        base = KalmanClassifier() if self.base is None else self.base
        check.instance("base", base, KalmanClassifier)
        keyed = Keyed(1 + n_columns)
        scaler = OnlineScaler(half_life=KalmanClassifier._SCALE_HALF_LIFE)
        return Known(clone(base), Labels(), scaler, keyed, self._no_keys(keyed), 0, {})

    def _no_keys(self, keyed: Keyed) -> KeyedState:
        """The state of keys before any row."""
        if self.max_keys is None:
            return keyed.start()
        check.count("max_keys", self.max_keys)
        if not hasattr(os, "pread"):
            raise InvalidInput("max_keys needs a system with pread, such as Linux; leave it None")
        if not os.path.isdir(self.folder or "."):
            raise InvalidInput(f"folder is {check.shown(self.folder)}; give a folder that is there")
        return keyed.start(Spilled(most=self.max_keys, folder=self.folder))

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
        seen = known.features(columns), known.offsets(p)
        out = known.keyed.predict(known.state, keys, *seen)
        return out[:, known.labels.order], known.labels.classes

    def _seen(self) -> Known:
        known = self._model
        if not known.is_fitted:
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet: it has seen "
                f"{known.n_seen} rows, all without a target; call partial_fit with a target first."
            )
        return known

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
        _one_each("y", "label", len(names), len(predicted))
        hits = [one == other for one, other in zip(names, predicted, strict=True)]
        return float(np.average(hits, weights=read_weights(sample_weight, len(hits))))

    # ---- what has been learned ------------------------------------------------------------

    @property
    def classes_(self) -> Array:
        """Labels seen or declared so far (K,), sorted."""
        return self._seen().labels.classes

    @property
    def keys_(self) -> list[Any]:
        """Keys with a label that taught them something."""
        return self._model.state.records.keys()

    @property
    def n_keys_(self) -> int:
        """Number of `keys_`."""
        return len(self._model.state.records)

    @property
    def base_(self) -> KalmanClassifier:
        """A copy of the model of all keys."""
        return self._model.base.snapshot()

    @property
    def half_life_weights_(self) -> dict[float, float]:
        """Weights of the half-lives of the model of all keys."""
        return self._seen().base.half_life_weights_

    def drift(self) -> Drift:
        """Drift of the model of all keys; see `KalmanClassifier.drift`.

        Examples
        --------
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> model.drift().alarms
        0
        """
        return self._model.base.drift()

    @property
    def spread_(self) -> float:
        """How strongly keys differ: standard deviation of what a key adds to a logit."""
        variances = ((a**2 + b**2) * w for (a, b, _), w in self.spread_weights_.items())
        return math.sqrt(sum(variances))

    @property
    def spread_weights_(self) -> dict[tuple[float, float, float], float]:
        """Posterior over how strongly keys differ, by the labels of all keys."""
        known = self._model
        each = [(math.sqrt(a), math.sqrt(b), h) for a, b, h in known.keyed.filters]
        weights = np.exp(known.state.pooled).tolist()
        return dict(zip([(0.0, 0.0, math.inf), *each], weights, strict=True))

    @property
    def nbytes_(self) -> int:
        """Bytes of the numbers in memory, of the base and of all keys."""
        known = self._model
        return known.base.nbytes_ + known.state.nbytes

    # ---- saving ---------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the estimator to one file, safetensors with JSON; the file is replaced atomically.

        `load` returns an estimator that continues with the same bits as this one. All keys are in
        the file. Meanwhile their numbers are in memory twice, or with ``max_keys`` in a second
        temporary file.

        Examples
        --------
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model.safetensors")
        ...     KeyedClassifier.load(f"{folder}/model.safetensors").predict([[2.0]], ["a"]).tolist()
        ['up']
        """
        known = self._model
        keys, block = known.keyed.block(known.state, len(known.labels.names))
        tree = {
            "default": self.base is None,
            "max_keys": None if self.max_keys is None else int(self.max_keys),
            "base": _saving.tree_of(known.base),
            "scaler": known.scaler,
            "keyed": known.keyed,
            "pooled": known.state.pooled,
            "keys": _as_array(keys),
            "records": block,
            "n_seen": known.n_seen,
            "fitted": _saving._plain_columns(known.fitted),
        }
        checkpoint.write(read_path(path), type(self).__name__, tree, _check_tree)

    @classmethod
    def load(
        cls, path: str | PathLike[str], features: Any = None, folder: str | None = None
    ) -> Self:
        """Read a file that `save` wrote, with this or an earlier version of kalstream.

        ``features`` is as in `KalmanClassifier.load`: a transformer of another library in the base.
        ``folder`` is the parameter, which the file does not hold.

        Examples
        --------
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model.safetensors")
        ...     KeyedClassifier.load(f"{folder}/model.safetensors").n_seen_
        2
        """
        tree = checkpoint.read(read_path(path), cls.__name__)
        try:
            fitted = _check_tree(tree)
        except Exception as error:  # a nonsensical file with a right checksum can raise anything
            raise CheckpointError(
                f"{path} is damaged; take another copy of it ({type(error).__name__}: {error})"
            ) from error
        base = _saving.estimator_of(KalmanClassifier, tree["base"], path, features)
        keyed, keys = tree["keyed"], tree["keys"].tolist()
        made = cls(None if tree["default"] else clone(base), tree.get("max_keys"), folder)
        state = keyed.of_block(made._no_keys(keyed), tree["pooled"], keys, tree["records"])
        known = Known(
            base, base._model.targets.labels, tree["scaler"], keyed, state, tree["n_seen"], fitted
        )
        made._published = Shared(known)
        return made


def read_keys(key: Any, n: int) -> list[Hashable]:
    """Keys of n rows as a list; each can be hashed, and none is missing."""
    if isinstance(key, str | bytes) or not hasattr(key, "__len__"):
        raise InvalidInput(f"key is {check.shown(key)}; give a list with the key of each row")
    keys = key.tolist() if hasattr(key, "tolist") else list(key)
    _one_each("key", "key", len(keys), n)
    try:
        distinct = set(keys)
    except TypeError:
        bad = next(each for each in keys if not _can_be_hashed(each))
        raise InvalidInput(
            f"key holds {check.shown(bad)}, which cannot be hashed; use strings, numbers or tuples"
        ) from None
    missing = next((each for each in distinct if each is None or each != each), 0)
    if missing != 0:
        raise InvalidInput(
            f"key is {missing} at row {keys.index(missing)}; give such rows a key, such as 'none'"
        )
    return keys


def _can_be_hashed(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _one_each(name: str, what: str, n: int, n_rows: int) -> None:
    if n != n_rows:
        raise InvalidInput(f"{name} has {n} {what}s for the {n_rows} rows of X; give one for each")


def _learned(
    known: Known, rows: Array, y: list[Any], keys: list[Hashable], weight: Array | None
) -> tuple[Known, Array]:
    """What is known after rows, and probabilities (b, K) of each before it was learned."""
    base = known.base.snapshot() if known.n_seen else known.base
    p = base.predict_then_learn(rows, y, sample_weight=weight)
    # To ask the base takes as long as to learn a row.
    is_new = p.shape[1] > len(known.labels.names)
    labels = base._model.targets.labels if is_new else known.labels
    scaler, columns = known.scaler.passed(rows)
    n_seen = known.n_seen + len(rows)
    known = replace(known, base=base, labels=labels, scaler=scaler, n_seen=n_seen)
    weight = np.ones(len(rows)) if weight is None else weight
    seen = known.features(columns), known.offsets(p)
    state, out = known.keyed.advance(known.state, keys, *seen, known.labels.codes(y), weight)
    return replace(known, state=state), out[:, known.labels.order]


def _check_tree(tree: dict[str, Any]) -> dict[str, Any]:
    """The columns of a file, if its parts are sound and of each other."""
    fitted, scaler, keys, n_seen = (tree[n] for n in ("fitted", "scaler", "keys", "n_seen"))
    if "encoding" in fitted:
        fitted = {**fitted, "encoding": _saving._encoding(fitted)}
    _, model, columns = _saving._check(KalmanClassifier, tree["base"])
    need(type(tree["default"]) is bool, "default", "True or False")
    most = tree.get("max_keys")  # files of before it have none
    need(most is None or (type(most) is int and most > 0), "max_keys", "None or at least 1")
    need(isinstance(scaler, OnlineScaler), "scaler", "an OnlineScaler")
    need(type(n_seen) is int and n_seen > 0, "n_seen", "an integer of at least 1")
    n_columns = fitted["n_features_in_"]
    same = columns["n_features_in_"] == scaler.n_features_in_ == n_columns
    need(same, "base", f"of {n_columns} columns")
    keyed, n_keys = tree["keyed"], len(set(keys.tolist()))
    fits = isinstance(keyed, Keyed) and keyed.n_features == 1 + n_columns
    need(fits, "keyed", f"of {n_columns} columns")
    need(keys.shape == (n_keys,), "keys", "different")
    size = keyed.size(len(model.targets.labels.names)) // 8
    need_array("records", tree["records"], (n_keys, size))
    need(n_keys == 0 or (tree["records"][:, 0] > 0.0).all(), "records", "of keys with labels")
    need_array("pooled", tree["pooled"], keyed.start().pooled.shape)
    need(abs(np.exp(tree["pooled"]).sum() - 1.0) < 1e-6, "pooled", "logarithms of weights")
    return fitted
