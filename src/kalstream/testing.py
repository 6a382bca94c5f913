"""Conformance checks for any online learner, and the checks that our estimators do not pass."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np
from sklearn.base import BaseEstimator, clone

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.errors import InvalidInput

Make = Callable[[], Any]

_WEIGHTS: Final = (
    "a learner that forgets depends on the order of rows: time also passes with a row of weight "
    "zero, and it passes twice with a row that is repeated"
)

EXPECTED_FAILED_CHECKS: Final[dict[str, dict[str, str]]] = {
    name: {"check_sample_weight_equivalence_on_dense_data": _WEIGHTS}
    for name in ("CRPClassifier", "KalmanClassifier", "KalmanRegressor")
}
"""Checks of scikit-learn that an estimator does not pass: name -> {check: reason}.

>>> from sklearn.utils.estimator_checks import check_estimator
>>> from kalstream import KalmanRegressor
>>> expected = EXPECTED_FAILED_CHECKS["KalmanRegressor"]
>>> results = check_estimator(  # doctest: +SKIP
...     KalmanRegressor(), expected_failed_checks=expected
... )
"""


def check_online_learner(make: Make, *, skip: Collection[str] = ()) -> None:
    """Check that an online classifier behaves as streams need it.

    Parameters
    ----------
    make : callable
        Returns a new learner at each call, always the same one: with ``partial_fit(X, y)``,
        ``predict_proba(X)`` and ``classes_``. Fix its random state.
    skip : names of checks
        Checks of `ONLINE_CHECKS` that do not apply. For example, ``"chunks"`` does not apply to a
        learner that takes one step for every call.

    Raises
    ------
    AssertionError
        Names the check that failed. An error of the learner is its cause.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> check_online_learner(lambda: KalmanClassifier(n_components=8, random_state=0))

    A learner that must know all classes at the start:

    >>> from sklearn.naive_bayes import GaussianNB
    >>> class Declared(GaussianNB):
    ...     def partial_fit(self, X, y):
    ...         return super().partial_fit(X, y, classes=["a", "b", "c"])
    >>> check_online_learner(Declared, skip=["unknown_labels", "failure"])
    Traceback (most recent call last):
        ...
    AssertionError: Declared: new_classes: ValueError: The target label(s) ['d'] in y do not exist
    in the initial classes ['a' 'b' 'c']
    """
    if not callable(make):
        raise InvalidInput(
            f"make is {check.shown(make)}; pass a function, such as lambda: KalmanClassifier()"
        )
    unknown = set([skip] if isinstance(skip, str) else skip) - set(ONLINE_CHECKS)
    if unknown:
        raise InvalidInput(
            f"skip holds {', '.join(map(repr, sorted(unknown)))}; "
            f"the checks are {', '.join(ONLINE_CHECKS)}"
        )
    for name, run in ONLINE_CHECKS.items():
        if name in skip:
            continue
        try:
            run(make)
        except Exception as error:
            kind = "" if type(error) is AssertionError else f"{type(error).__name__}: "
            raise AssertionError(f"{type(make()).__name__}: {name}: {kind}{error}") from error


def _stream(n: int = 60) -> tuple[Array, Array]:
    """Rows (n, 3) and three classes that depend on them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    return X, np.array(["a", "b", "c"])[X.argmax(axis=1)]


def _probabilities(learner: Any) -> Array:
    return np.asarray(learner.predict_proba(_stream()[0]))


def _same(one: Any, other: Any, what: str, tolerance: float = 0.0) -> None:
    p, q = _probabilities(one), _probabilities(other)
    off = np.abs(p - q).max() if p.shape == q.shape else np.inf
    assert off <= tolerance, f"{what}: probabilities differ by {off:.2g}"


def _pickled(learner: Any) -> Any:
    return pickle.loads(pickle.dumps(learner))


def _check_probabilities(make: Make) -> None:
    """There is a row of probabilities for every row, and a column for every class."""
    X, y = _stream()
    learner = make().partial_fit(X, y)
    p, classes = _probabilities(learner), np.asarray(learner.classes_)
    assert p.shape == (len(X), len(classes)), f"predict_proba has shape {p.shape}"
    assert (p >= 0.0).all(), f"a probability is {p.min()}"
    assert np.allclose(p.sum(axis=1), 1.0), "probabilities do not sum to 1"
    accuracy = (classes[p.argmax(axis=1)] == y).mean()
    assert accuracy > 0.5, f"accuracy is {accuracy:.0%} on rows that were learned: wrong columns?"


def _check_pure(make: Make) -> None:
    """Predicting does not change the next prediction, nor what is learned later."""
    X, y = _stream()
    predicting, silent = make(), make()
    for part in (slice(0, 20), slice(20, 24), slice(24, 60)):
        predicting.partial_fit(X[part], y[part])
        first, second = _probabilities(predicting), _probabilities(predicting)
        assert np.array_equal(first, second), "a second prediction differs from the first"
        predicting.predict_proba(X[part.stop : part.stop + 4] if part.stop < 60 else X[:4])
        silent.partial_fit(X[part], y[part])
    _same(predicting, silent, "predicting changed what was learned")


def _check_chunks(make: Make) -> None:
    """The model does not depend on the chunks in which rows are learned."""
    X, y = _stream()
    at_once = make().partial_fit(X, y)
    for size in (1, 7, 32):
        cut = make()
        for start in range(0, len(X), size):
            cut.partial_fit(X[start : start + size], y[start : start + size])
        _same(cut, at_once, f"chunks of {size}", 1e-6)


def _check_new_classes(make: Make) -> None:
    """A label not seen before is a new class; the columns follow `classes_`."""
    X, y = _stream()
    learner = make().partial_fit(X, y).partial_fit(X[:1], ["d"]).partial_fit(X[1:2], ["A"])
    classes = list(learner.classes_)
    assert classes == sorted({*y.tolist(), "d", "A"}), f"classes_ is {classes}"
    shape = _probabilities(learner).shape
    assert shape == (len(X), 5), f"predict_proba has shape {shape} for five classes"


def _check_unknown_labels(make: Make) -> None:
    """A row without a label (None) is accepted, and None does not become a class."""
    X, y = _stream()
    some = y.astype(object)
    some[::3] = None
    learner = make().partial_fit(X, y).partial_fit(X, some).partial_fit(X[:1], [None])
    assert list(learner.classes_) == ["a", "b", "c"], f"classes_ is {list(learner.classes_)}"
    assert np.isfinite(_probabilities(learner)).all(), "a probability is not finite"


def _check_copies(make: Make) -> None:
    """Pickles and copies continue in the same way, independently; a clone is new."""
    X, y = _stream()
    for copied in (_pickled, copy.deepcopy):
        learner = make().partial_fit(X[:30], y[:30])
        before, other = _probabilities(learner), copied(learner)
        learner.partial_fit(X[30:], y[30:])
        assert np.array_equal(before, _probabilities(other)), "a copy changed with the original"
        _same(other.partial_fit(X[30:], y[30:]), learner, "a copy continued differently")
    if isinstance(learner, BaseEstimator):
        _same(clone(learner).partial_fit(X, y), make().partial_fit(X, y), "a clone is not new")


def _check_failure(make: Make) -> None:
    """Rows with too few columns or too few labels are refused, and change nothing."""
    X, y = _stream()
    learner, other = make().partial_fit(X, y), make().partial_fit(X, y)
    for bad, labels in ((X[:, :2], y), (X, y[:-1]), (X[:0], y[:0])):
        try:
            learner.partial_fit(bad, labels)
        except Exception:
            continue
        raise AssertionError(f"rows {bad.shape} with {len(labels)} labels were accepted")
    _same(learner.partial_fit(X, y), other.partial_fit(X, y), "a refused chunk changed the learner")


ONLINE_CHECKS: Final[dict[str, Callable[[Make], None]]] = {
    "probabilities": _check_probabilities,
    "pure": _check_pure,
    "chunks": _check_chunks,
    "new_classes": _check_new_classes,
    "unknown_labels": _check_unknown_labels,
    "copies": _check_copies,
    "failure": _check_failure,
}
"""The checks of `check_online_learner`, each with its own one-line description."""
