"""A classifier that expects classes which it has never seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.exceptions import NotFittedError

from kalstream._arrays import Array
from kalstream.core.generative import Generative, GenerativeState
from kalstream.core.tagged import Tagged
from kalstream.errors import CheckpointError, InvalidInput
from kalstream.estimators import checkpoint
from kalstream.estimators._published import PublishedEstimator
from kalstream.estimators._saving import _encoding, _plain_columns
from kalstream.estimators._settings import store
from kalstream.estimators._sharing import Shared, interruptible
from kalstream.estimators._soundness import need
from kalstream.estimators.inputs import read_columns, read_path, read_weights
from kalstream.estimators.labels import Labels, read_labels


@dataclass(frozen=True)
class CRPModel(Tagged):
    """All that a `CRPClassifier` has learned. Never changed.

    Attributes
    ----------
    labels : Labels
    state : GenerativeState
    n_seen : int
        Rows that have passed, with a label or not.
    passed : int
        Of these, the ones since the last row that was learned.
    fitted : dict
        What is known of the columns; see `kalstream.estimators.inputs.read_columns`.
    """

    tag: ClassVar[str] = "kalstream.Known"

    labels: Labels
    state: GenerativeState
    n_seen: int
    passed: int
    fitted: dict[str, Any]

    def __post_init__(self) -> None:
        names, state = self.labels.names, self.state
        need(isinstance(names, tuple) and len(set(names)) == len(names), "labels", "different")
        need(isinstance(state, GenerativeState), "state", "a GenerativeState")
        need(state.n_classes == len(names), "state", f"of {len(names)} classes")
        columns = self.fitted["n_features_in_"]
        need(type(columns) is int and state.means.shape[1] == columns, "state", "of the columns")
        counts = self.n_seen, self.passed
        need(all(type(n) is int and n >= 0 for n in counts), "n_seen", "an integer of at least 0")

    @property
    def is_fitted(self) -> bool:
        """Whether a label is known."""
        return self.state.learned > 0


class CRPClassifier(ClassifierMixin, PublishedEstimator[CRPModel]):
    """Gaussian classes under a Chinese restaurant prior, and the probability of a new class.

    Columns of a class are Gaussian under a normal-inverse-Wishart prior, which is learned from the
    classes seen so far. Labels are drawn by a Chinese restaurant process: the next one may be of a
    class that was never seen, and `new_class_proba` says how probable that is. Nothing has to be
    tuned; see `kalstream.core.generative.Generative` for what is averaged.

    Parameters
    ----------
    half_life : float or None
        Rows after which a row counts half; None forgets nothing.
    most_columns : int
        With more columns all classes share one covariance.

    Attributes
    ----------
    classes_ : (K,)
        Labels seen or declared so far, sorted; it grows.
    n_seen_ : int
        Number of rows seen, with a label or without.
    nbytes_ : int
        Bytes of the arrays: 24 d^2 + 8 K d, and 24 K d^2 more if classes have covariances of their
        own. Learning needs them twice.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    expects_new_classes : bool
        True: `new_class_proba` says how probable a class never seen is.

    Notes
    -----
    A NaN in X counts as the mean of the classes. In `partial_fit` a label of None or NaN lets time
    pass without learning. Other threads may predict while one thread learns.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.minimum(rng.integers(9, size=300), 2 + np.arange(300) // 30)  # classes come late
    >>> centres = 20.0 * rng.standard_normal((9, 2))
    >>> X = centres[y] + rng.standard_normal((300, 2))
    >>> model = CRPClassifier().partial_fit(X, y)
    >>> model.predict(X[:3]).tolist() == y[:3].tolist()
    True
    >>> near, far = model.new_class_proba([X[0], [90.0, 90.0]])
    >>> bool(near < 0.01), bool(far > 0.9)
    (True, True)
    """

    expects_new_classes: ClassVar[bool] = True

    def __init__(self, half_life: float | None = None, *, most_columns: int = 64) -> None:
        store(locals())

    @property
    def _settings(self) -> Generative:
        return Generative(half_life=self.half_life, most_columns=self.most_columns)

    # ---- learning -------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Forget everything, then learn the rows in their order, once.

        Parameters
        ----------
        X : (b, d)
        y : (b,)
            Labels, none missing.
        sample_weight : (b,), optional
            As in `partial_fit`.

        Examples
        --------
        >>> CRPClassifier().fit([[1.0], [-1.0]], ["up", "down"]).predict([[2.0]])
        array(['up'], dtype='<U4')
        """
        labels = read_labels(y, warn=True)
        if None in labels:
            raise InvalidInput(
                f"y contains NaN or None at row {labels.index(None)}; fit needs all labels; use "
                "partial_fit if some are missing"
            )
        self._learn(X, labels, sample_weight, restart=True)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn a chunk of rows, in their order.

        Parameters
        ----------
        X : (b, d)
        y : (b,)
            Labels of any type, also new ones; None or NaN where unknown.
        classes : (K,), optional
            Labels that may come. They have probability 0 until they do.
        sample_weight : (b,), optional
            A row counts as so many, at most 10; 0 is the same as no label.

        Examples
        --------
        >>> model = CRPClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.partial_fit([[5.0]], ["new"]).classes_.tolist()
        ['down', 'new', 'up']
        """
        names = () if classes is None else read_labels(classes, name="classes")
        self._learn(X, read_labels(y), sample_weight, names)
        return self

    def predict_then_learn(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Array:
        """Probabilities (b, K) of `classes_`, each row before it is learned; then they are learned.

        Classes not seen before a row have probability 0.

        Examples
        --------
        >>> model = CRPClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.predict_then_learn([[1.0], [2.0]], ["up", None]).shape
        (2, 2)
        """
        return self.predict_open_then_learn(X, y, sample_weight)[0]

    def predict_open_then_learn(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """As `predict_then_learn`, and the probability (b,) that each row is of a new class.

        Examples
        --------
        >>> model = CRPClassifier()
        >>> model.predict_open_then_learn([[1.0], [-1.0]], ["up", "down"])[1].round(1).tolist()
        [1.0, 0.6]
        """
        return self._learn(X, read_labels(y), sample_weight)

    @interruptible
    def _learn(
        self,
        X: Any,
        y: list[Any],
        sample_weight: Any,
        names: Sequence[Any] = (),
        *,
        restart: bool = False,
    ) -> Any:
        settings = self._settings

        def change(known: CRPModel | None) -> tuple[CRPModel, Any]:
            before = None if known is None else known.fitted
            rows, fitted = read_columns(X, before, type(self).__name__, learns=True)
            if len(y) != len(rows):
                raise InvalidInput(
                    f"y has {len(y)} labels for the {len(rows)} rows of X; "
                    "give one target for each row"
                )
            weight = read_weights(sample_weight, len(rows))
            if weight is not None and restart and not weight.any():
                raise InvalidInput(
                    "sample_weight is zero in every row; give at least one row a weight above 0"
                )
            if known is None:
                known = CRPModel(Labels(), settings.start(rows.shape[1], 0), 0, 0, fitted)
            weight = np.ones(len(rows)) if weight is None else weight
            return _learned(replace(known, fitted=fitted), settings, rows, y, weight, names)

        return self._publish(change, restart=restart)

    # ---- predicting -----------------------------------------------------------------------

    @interruptible
    def _predicted(self, X: Any) -> tuple[CRPModel, Array]:
        """What is known, and probabilities (b, K + 1) in the order of its labels."""
        known = self._seen()
        rows, _ = read_columns(X, known.fitted, type(self).__name__)
        n = len(rows)
        none = np.full(n, -1), np.ones(n), np.ones(n)
        return known, self._settings.advance(known.state, rows, *none)[1]

    def _seen(self) -> CRPModel:
        known = self._model
        if not known.is_fitted:
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet: it has seen "
                f"{known.n_seen} rows, all without a target; call partial_fit with a target first."
            )
        return known

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities (b, K) of `classes_`, given that the class of a row is one of these.

        Examples
        --------
        >>> model = CRPClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.predict_proba([[1.0]]).round(2)
        array([[0.44, 0.56]])
        """
        known, out = self._predicted(X)
        return _among_known(known, out)

    def new_class_proba(self, X: ArrayLike) -> Array:
        """Probability (b,) that the class of each row was never seen.

        Examples
        --------
        >>> model = CRPClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.new_class_proba([[1.0]]).round(2)
        array([0.82])
        """
        return self._predicted(X)[1][:, -1].copy()

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Logarithms of `predict_proba` (b, K).

        Examples
        --------
        >>> model = CRPClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.predict_log_proba([[1.0]]).shape
        (1, 2)
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: ArrayLike) -> Array:
        """Most probable known label of each row (b,).

        Examples
        --------
        >>> CRPClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"]).predict([[2.0]])
        array(['up'], dtype='<U4')
        """
        known, out = self._predicted(X)
        return known.labels.classes[_among_known(known, out).argmax(axis=1)]

    # ---- what has been learned ------------------------------------------------------------

    @property
    def classes_(self) -> Array:
        """Labels seen or declared so far (K,), sorted."""
        return self._seen().labels.classes

    @property
    def nbytes_(self) -> int:
        """Bytes of the arrays."""
        return self._model.state.nbytes

    def save(self, path: str | PathLike[str]) -> None:
        """Write the estimator to one file, safetensors with JSON; the file is replaced atomically.

        `load` returns an estimator that continues with the same bits as this one.

        Examples
        --------
        >>> model = CRPClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model.safetensors")
        ...     CRPClassifier.load(f"{folder}/model.safetensors").predict([[2.0]])
        array(['up'], dtype='<U4')
        """
        known = self._model
        model = replace(known, fitted=_plain_columns(known.fitted))
        tree = {"params": self.get_params(deep=False), "model": model}
        checkpoint.write(read_path(path), type(self).__name__, tree, self._of)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a file that `save` wrote, with this or an earlier version of kalstream.

        Examples
        --------
        >>> model = CRPClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model.safetensors")
        ...     CRPClassifier.load(f"{folder}/model.safetensors").n_seen_
        2
        """
        tree = checkpoint.read(read_path(path), cls.__name__)
        try:
            return cls._of(tree)
        except Exception as error:  # a nonsensical file with a right checksum can raise anything
            raise CheckpointError(
                f"{path} is damaged; take another copy of it ({type(error).__name__}: {error})"
            ) from error

    @classmethod
    def _of(cls, tree: dict[str, Any]) -> Self:
        """The estimator of a tree, if its parts are sound and of each other."""
        made, known = cls(**tree["params"]), tree["model"]
        need(isinstance(known, CRPModel), "model", "what load expects")
        start = made._settings.start(1, 0)
        need(start.known_belief.shape[1:] == known.state.known_belief.shape[1:], "state", "sound")
        need(start.new_belief.shape[1:] == known.state.new_belief.shape[1:], "state", "sound")
        if "encoding" in known.fitted:
            fitted = {**known.fitted, "encoding": _encoding(known.fitted)}
            known = replace(known, fitted=fitted)
        made._published = Shared(known)
        return made


def _learned(
    known: CRPModel,
    settings: Generative,
    rows: Array,
    y: list[Any],
    weight: Array,
    names: Sequence[Any],
) -> tuple[CRPModel, tuple[Array, Array]]:
    """What is known after rows, and probabilities of each before it was learned."""
    labels = known.labels.with_new(names).with_new(y)
    codes = np.where(weight > 0.0, labels.codes(y), -1)
    n, learns = len(rows), np.flatnonzero(codes >= 0)
    gap = np.ones(n)
    if len(learns):  # rows without a label let time pass
        gap[learns] = np.diff(learns, prepend=-1 - known.passed)
    passed = n - 1 - int(learns[-1]) if len(learns) else known.passed + n
    state = known.state.add_classes(len(labels.names))
    state, out = settings.advance(state, rows, codes, weight, gap)
    after = CRPModel(labels, state, known.n_seen + n, passed, known.fitted)
    return after, (_among_known(after, out), out[:, -1].copy())


def _among_known(known: CRPModel, out: Array) -> Array:
    """Probabilities (b, K) of `classes_` given that no class is new; 0 before the first label."""
    p = out[:, known.labels.order]
    total = p.sum(axis=1, keepdims=True)
    return np.divide(p, total, out=p, where=total > 0.0)
