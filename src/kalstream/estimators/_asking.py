"""Rows that are predicted before they are learned: in turn, or when their targets come late."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from numpy.typing import ArrayLike

from kalstream.core import checks as check
from kalstream.errors import InvalidInput
from kalstream.estimators._base import KalmanEstimator
from kalstream.estimators._ids import listed
from kalstream.estimators._late import Asked, NewTargets, exchange, no_rows, read_ids, read_told
from kalstream.estimators._model import Model
from kalstream.estimators._sharing import Shared, interruptible
from kalstream.estimators._time import times_of
from kalstream.estimators._waiting import EXPIRED, TOLD, WAITS, Store, Waiting, read_bounds
from kalstream.estimators.inputs import read_weights

_STATUS: Final = {WAITS: "waits", TOLD: "told", EXPIRED: "expired"}

Predicted = TypeVar("Predicted")


class AskingEstimator(KalmanEstimator, Generic[Predicted]):
    """An estimator that predicts rows before it learns them, at once or when targets come late.

    ``Predicted`` is what it predicts of rows.
    """

    # Reads the targets that a caller gives.
    _read_targets: ClassVar[Any]
    # Targets of no row.
    _NO_TARGETS: ClassVar[Any]

    def predict_then_learn(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        time: Any = None,
    ) -> Predicted:
        """Predict then learn, row by row: each row is predicted before its target is learned.

        The result is that of `predict_proba`, in regression of `predict`, and `partial_fit` for one
        row at a time (for the whole chunk, if transition is "chunk"), several times faster. The
        label of each row is known before the next row is predicted, so the stack of a classifier
        also uses recent labels here. With ``recent_labels=False``, or transition "chunk", it does
        not.

        Parameters
        ----------
        X, y, sample_weight, time
            As in `partial_fit`.

        Returns
        -------
        probabilities : (b, K)
            Of a classifier: one column for each of `classes_` after the call. A class that was not
            known before a row has probability 0 there; the row is all zeros if none was known.
        mean, std : (b,) or (b, K)
            Of a regressor: as from `predict`; NaN and inf before any target is known.

        Examples
        --------
        >>> from kalstream import KalmanClassifier, KalmanRegressor
        >>> model = KalmanClassifier(features="raw")
        >>> model.predict_then_learn([[1.0], [-1.0], [1.0]], ["up", "down", "up"]).round(2)
        array([[0.  , 0.  ],
               [0.  , 1.  ],
               [0.27, 0.73]])
        >>> regressor = KalmanRegressor(features="raw", noise_var=0.01)
        >>> regressor.predict_then_learn([[1.0], [1.0]], [2.0, 2.0])[0].round(2)
        array([nan,  2.])
        """
        return self._learn(X, self._read_targets(y), sample_weight, time, predict=True)

    def ask(
        self, X: ArrayLike, ids: Any = None, time: Any = None, *, keep: bool = True
    ) -> Predicted:
        """Predict rows whose targets come later, and keep them until `tell` brings the targets.

        Where targets come late, use `ask` and `tell` in place of predictions and `partial_fit`:
        half-lives, calibrations, the stack and the drift alarm are then judged by the predictions
        that were made, and the targets that are known help to predict. Where each target comes
        before the next row, the result is that of `predict_then_learn`.

        Parameters
        ----------
        X : (b, d)
        ids : b numbers, strings, bytes, dates, Decimals, UUIDs or tuples of these, optional
            Names of the rows, for `tell`. Without them rows are numbered from 0, in the order in
            which they were asked for.
        time : (b,) numbers or dates, optional
            As in `partial_fit`; times must not decrease.
        keep : bool
            With False, the prediction is the same, but the model does not change: the rows do not
            wait, and their ids stay unknown.

        Returns
        -------
        probabilities : (b, K)
            Of a classifier: one column for each of `classes_`; (b, 0) while no label is known.
        mean, std : (b,) or (b, K)
            Of a regressor: as from `predict`; NaN and inf before any target is known.

        Examples
        --------
        >>> from kalstream import KalmanClassifier, KalmanRegressor
        >>> model = KalmanClassifier(features="raw")
        >>> model.ask([[1.0], [-1.0]], ids=["a", "b"]).shape
        (2, 0)
        >>> model.tell(["a", "b"], ["up", "down"]).ask([[1.0]], ids=["c"]).round(2)
        array([[0.27, 0.73]])
        >>> regressor = KalmanRegressor(features="raw", noise_var=0.01)
        >>> _ = regressor.ask([[1.0], [1.0]])
        >>> regressor.tell([0, 1], [2.0, 2.0]).ask([[1.0]])[0].round(2)
        array([2.])
        """
        if X is None:
            raise InvalidInput("X is None; give rows (b, d) to ask for")
        return self._exchange(X, ids, time, None, keep=keep)

    def tell(
        self,
        ids: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        unknown: str = "raise",
    ) -> Self:
        """Learn the targets of rows that were asked for, in any order.

        A target that comes again counts once. Another target for the same row is a correction,
        which is learned as well: a filter cannot unlearn. `waiting_` counts both.

        Parameters
        ----------
        ids : b ids
            As in `ask`.
        y : (b,), or (b, K) in regression
            Targets; None, or NaN in regression, for a row whose target will never come.
        sample_weight : (b,), optional
        unknown : "raise" or "skip"
            What to do if an id is of no row that waits. Rows that expired are passed over.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw")
        >>> _ = model.ask([[1.0], [-1.0]])
        >>> model.tell([1, 0], ["down", "up"]).classes_.tolist()
        ['down', 'up']
        """
        come = ids, self._read_targets(y), sample_weight, None
        self._exchange(None, None, None, come, unknown)
        return self

    def ask_and_tell(
        self,
        X: ArrayLike,
        told: Any,
        y: ArrayLike,
        before: ArrayLike,
        *,
        ids: Any = None,
        sample_weight: ArrayLike | None = None,
        time: Any = None,
        unknown: str = "raise",
    ) -> Predicted:
        """`ask` and `tell` in turn, in one call that is several times faster.

        Parameters
        ----------
        X, ids, time
            As in `ask`.
        told, y, sample_weight, unknown
            As in `tell`.
        before : one whole number for each target
            How many rows of X are asked for before it comes.

        Examples
        --------
        Every label comes after the next row:

        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw")
        >>> rows, labels = [[1.0], [-1.0], [1.0]], ["up", "down"]
        >>> model.ask_and_tell(rows, [0, 1], labels, before=[2, 3]).round(2)
        array([[0., 0.],
               [0., 0.],
               [0., 1.]])
        """
        new = told, self._read_targets(y), sample_weight, before
        return self._exchange(X, ids, time, new, unknown)

    @property
    def waiting_(self) -> Waiting:
        """How many rows wait for their targets, and what became of the others."""
        return self._store.counts

    @property
    def waiting_ids_(self) -> list[Any]:
        """Ids of the rows that wait, in the order in which they were asked for; a new list.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw")
        >>> _ = model.ask([[1.0], [-1.0], [2.0]], ids=["b", "a", "c"])
        >>> model.tell(["a"], ["up"]).waiting_ids_
        ['b', 'c']
        """
        return [row.id for row in self._store.rows.values() if row.status == WAITS]

    @property
    def _store(self) -> Store:
        shared = self.__dict__.get("_published")
        return (None if shared is None else shared.value.store) or Store()

    def status_of(self, ids: Any) -> list[str | None]:
        """Whether rows that were asked for wait for their targets.

        Parameters
        ----------
        ids : b ids
            As in `ask`.

        Returns
        -------
        status : list of b strings
            "waits", "told" or "expired"; None for an id that nobody knows (any more).

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw")
        >>> _ = model.ask([[1.0], [-1.0]], ids=["a", "b"])
        >>> model.tell(["b"], ["up"]).status_of(["a", "b", "c"])
        ['waits', 'told', None]
        """
        keys, store = listed("ids", ids), self._store
        rows = (store.row(store.ids.get(key, -1)) for key in keys)
        return [None if row is None else _STATUS[row.status] for row in rows]

    def drop_waiting(self, ids: Any = None) -> Self:
        """Forget all rows that were asked for, and the counts of `waiting_`; or give up some rows.

        Parameters
        ----------
        ids : n ids, optional
            Rows that wait, and for which no label is expected any more. They expire: a label that
            comes nevertheless is left out, and counted as too late. The other rows still wait, and
            what was learned does not change.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> _ = model.ask([[1.0], [2.0], [3.0]], ids=["a", "b", "c"])
        >>> model.drop_waiting(["b"]).waiting_ids_
        ['a', 'c']
        >>> model.drop_waiting().waiting_.waiting
        0
        """
        self._model  # noqa: B018  (raises if nothing was learned)
        keys = None if ids is None else listed("ids", ids)

        def without(model: Model) -> tuple[Model, None]:
            if keys is not None:
                return model.but(store=(model.store or Store()).without(keys)), None
            store, kept = model.store, None
            if store is not None and model.time is None and store.has_times:
                kept = Store(newest=store.newest)  # nothing else holds that rows have times
            return model.but(store=kept), None

        self._published.update(without)
        return self

    @interruptible
    def _exchange(
        self,
        X: Any,
        ids: Any,
        time: Any,
        told: tuple[Any, Any, Any, Any] | None,
        unknown: str = "raise",
        keep: bool = True,
    ) -> Any:
        """Predict rows and keep them, and learn targets that are told: published in one step.

        ``told`` has the ids, the targets, the weights, and how many of the rows come before each.
        Without ``keep`` nothing is published.
        """
        settings = self._settings
        strict = check.choice("unknown", unknown, ("raise", "skip")) == "raise"
        bounds = read_bounds(self.max_waiting, self.max_age)

        def change(model: Model | None) -> tuple[Model, Any]:
            if X is None:
                if model is None or (strict and model.store is None):
                    raise InvalidInput(
                        f"this {type(self).__name__} was not asked for any row; call ask first"
                    )
                asked = no_rows(model.fitted["n_features_in_"])
            else:
                model, rows = self._learned_columns(X, model)
                times = times_of(model, time, len(rows))
                names = read_ids(ids, len(rows))
                # What is not kept needs no id, so that a row that waits can be predicted again.
                asked = Asked(rows, times, names if keep else [object() for _ in rows])
            come = NewTargets([], self._NO_TARGETS, None, [])
            if told is not None:
                keys, targets, weight, before = told
                weight = read_weights(weight, len(targets))
                come = read_told(keys, targets, weight, before, len(asked))
            return exchange(model, asked, come, settings, bounds, strict=strict)

        shared = self.__dict__.get("_published")
        if X is None and shared is None and not strict:
            return None  # no id is known, and there is no model to count in
        if not check.flag("keep", keep):
            return change(None if shared is None else shared.value)[1]
        if shared is None:
            model, answers = change(None)
            shared = self.__dict__.setdefault("_published", made := Shared(model))
            if shared is made:
                return answers
        return shared.update(change)
