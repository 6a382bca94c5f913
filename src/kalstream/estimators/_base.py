"""What the classifier and the regressor share: parameters, one published model, and views of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from operator import is_
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import NotFittedError

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.alarm import Drift
from kalstream.core.guard import Health, health
from kalstream.core.policy import Policy, PolicyState
from kalstream.core.state import Posterior
from kalstream.errors import InvalidInput
from kalstream.estimators._chunk import Ahead, Chunk
from kalstream.estimators._learning import (
    learn,
    new_model,
    state_of,
    step_ahead,
    with_columns,
)
from kalstream.estimators._model import Filter, Model
from kalstream.estimators._published import PublishedEstimator
from kalstream.estimators._representation import Representation
from kalstream.estimators._row import learn_row
from kalstream.estimators._settings import Settings, Task, variance_of
from kalstream.estimators._sharing import interruptible
from kalstream.estimators._time import gaps_ahead, gaps_before, read_unit
from kalstream.estimators._waiting import Store
from kalstream.estimators.inputs import read_columns, read_path, read_seed, read_weights


class KalmanEstimator(PublishedEstimator[Model], ABC):
    """A thin class over settings (`_settings`), inputs (`inputs`) and the engine (`_learning`)."""

    # Parameters that settings are made from; those of a task are added by the subclass.
    _SETTINGS: ClassVar[tuple[str, ...]] = (
        *("forgetting", "calibration", "noise_var", "prior_var"),
        *("transition", "dtype", "time_unit", "order"),
    )
    # What noise_var="auto" stands for.
    _NOISE_VAR: ClassVar[float]
    # Half-life, in rows, of the scaling of columns.
    _SCALE_HALF_LIFE: ClassVar[float] = math.inf

    # ---- settings -------------------------------------------------------------------------

    @property
    def _settings(self) -> Settings:
        """The settings, made from the parameters once and kept while these stay."""
        values = self.__dict__
        key = [values[name] for name in self._SETTINGS]
        kept = values.get("_settings_cache")
        if kept is None or not all(map(is_, kept[0], key)):
            kept = self._settings_cache = (key, self._made_settings())
        return kept[1]

    def _made_settings(self) -> Settings:
        policy = self._policy()
        return Settings(
            self.forgetting,
            policy,
            variance_of("noise_var", self.noise_var, self._NOISE_VAR),
            variance_of("prior_var", self.prior_var, policy.usual_prior_var),
            self.transition,
            check.float_dtype(self.dtype),
            read_unit(self.time_unit),
            self._task(),
        )

    @abstractmethod
    def _task(self) -> Task:
        """Classification or regression, with its settings."""

    @abstractmethod
    def _policy(self) -> Policy:
        """The policy that the parameters ask for, as the task needs it."""

    # ---- learning -------------------------------------------------------------------------

    @interruptible
    def _learn(
        self,
        X: Any,
        targets: Any,
        sample_weight: Any,
        time: Any,
        *,
        restart: bool = False,
        predict: bool = False,
        prepared: Callable[[Model], Model] | None = None,
        beside: Callable[[Model, Chunk], Any] | None = None,
    ) -> Any:
        """Learn a chunk: all of it is published in one step, or nothing.

        ``restart`` discards what was learned before: the call is `fit`. ``prepared`` changes the
        model before it learns. With ``predict``, returns predictions of the rows, each made before
        the row was learned; and with them what ``beside`` makes of the model before and the rows.
        """
        settings = self._settings
        plain = all(each is None for each in (sample_weight, time, prepared, beside))

        def change(model: Model | None) -> tuple[Model, Any]:
            if model is not None and plain:
                made = self._learn_row(model, X, targets, settings, predict)
                if made is not None:
                    return made
            model, rows = self._learned_columns(X, model)
            weight = read_weights(sample_weight, len(rows))
            if weight is not None and restart and not weight.any():
                raise InvalidInput(
                    "sample_weight is zero in every row; give at least one row a weight above 0"
                )
            gaps = gaps_before(model, time, len(rows), settings.unit)
            if prepared is not None:
                model = prepared(model)
            chunk: Chunk = Chunk(rows, targets, weight, *gaps)
            after, made = learn(model, chunk, settings, predict)
            return after, made if beside is None else (made, beside(model, chunk))

        return self._publish(change, restart=restart)

    def _learn_row(self, *row: Any) -> tuple[Model, Any] | None:
        """The short way of a single row; None: it has to go the long way."""
        return learn_row(*row)

    def _columns(self, X: Any, model: Model | None) -> tuple[Array, dict[str, Any]]:
        return read_columns(X, None if model is None else model.fitted, type(self).__name__)

    def _new_model(self, fitted: dict[str, Any]) -> Model:
        shape = self.features, self.n_components, self.random_state, self.intercept
        columns = fitted["n_features_in_"]
        wide = self._settings.task.sees_columns
        representation = Representation.of(*shape, columns, self._SCALE_HALF_LIFE, wide)
        return new_model(representation, fitted, read_seed(self.random_state), self._settings)

    def _learned_columns(self, X: Any, model: Model | None) -> tuple[Model, Array]:
        """The model, or a new one, that knows the columns of rows; and the rows (b, d)."""
        before = None if model is None else model.fitted
        rows, fitted = read_columns(X, before, type(self).__name__, learns=True)
        return (self._new_model(fitted) if model is None else model.fitted_to(fitted)), rows

    def add_columns(self, n_columns: int) -> Self:
        """Grow by columns that were missing (NaN) in all rows so far, behind the others.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.add_columns(1).predict([[2.0, 5.0]])
        array(['up'], dtype='<U4')
        """
        check.count("n_columns", n_columns)
        settings = self._settings
        self._model  # noqa: B018  (raises if nothing was learned)
        self._published.update(lambda model: (with_columns(model, n_columns, settings), None))
        return self

    def drop_column_names(self) -> Self:
        """Forget the names of the columns: from now on rows are arrays, in the same order.

        After a table with text, dates or categories, these are the columns of numbers that
        `TableEncoder` makes of it.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> hasattr(model.drop_column_names(), "feature_names_in_")
        False
        """
        columns = {"n_features_in_": self._model.fitted["n_features_in_"]}
        self._published.update(lambda model: (model.but(fitted=columns), None))
        return self

    @interruptible
    def _ahead(self, model: Model, X: Any, time: Any) -> Ahead:
        """Rows with their step; any of them could be the next."""
        self._state(model)
        rows, _ = self._columns(X, model)
        settings = self._settings
        gap = gaps_ahead(model, time, len(rows), settings.unit)
        return step_ahead(model, rows, settings, gap)

    # ---- what has been learned ------------------------------------------------------------

    def _state(self, model: Model) -> PolicyState:
        """The state, unless no target is known or another policy is set.

        Once rows were asked for, its weights are those by the predictions that were made.
        """
        if model.state is None:
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet: it has seen "
                f"{model.n_seen} rows, all without a target; call partial_fit with a target first."
            )
        state = state_of(model, self._settings)
        judging = self._settings.judging
        if judging is None or model.late is None:
            return state
        return judging.judged_late(state, model.late)

    @property
    def n_rows_(self) -> int:
        """Number of rows that came, learned or asked for; `Drift.since` counts them."""
        shared = self.__dict__.get("_published")
        return 0 if shared is None else shared.value.came

    @property
    def gamma_(self) -> float:
        """Forgetting coefficient; of a mixture, that of the median half-life."""
        return float(self._state(self._model).gamma)

    @property
    def half_life_(self) -> float:
        """Half-life in rows; of a mixture, the median of the posterior."""
        return float(self._state(self._model).half_life)

    @property
    def half_life_weights_(self) -> dict[float, float]:
        """Posterior over half-lives: {half-life: probability}, shortest first."""
        state = self._state(self._model)
        weights = dict.fromkeys(sorted(state.half_lives), 0.0)
        for half_life, weight in zip(state.half_lives, state.half_life_weights, strict=True):
            weights[half_life] += float(weight)
        return weights

    @property
    def calibration_(self) -> float:
        """Factor that multiplies logits; of a mixture, the median of the posterior."""
        return float(self._state(self._model).calibration)

    @property
    def filters_(self) -> tuple[Filter, ...]:
        """All filters, with their half-lives and weights."""
        return self._filters(self._model)

    def _filters(self, model: Model) -> tuple[Filter, ...]:
        state = self._state(model)
        weights = state.half_life_weights.tolist()
        policy = self._settings.policy
        policy.check_state(state)  # parameters may have changed since it was learned
        kinds = policy.likelihoods, policy.orders
        each = state.half_lives, state.gammas, weights, state.posteriors, *kinds
        return tuple(Filter(*parts) for parts in zip(*each, strict=True))

    @property
    def cov_(self) -> Array:
        """Covariance (m, m) of the filter with the largest weight; the intercept comes first."""
        return self._heaviest(self._model).cov

    def _heaviest(self, model: Model) -> Posterior:
        state = self._state(model)
        return state.posteriors[state.heaviest]

    def _weights(self, model: Model) -> tuple[Array, Array]:
        """Coefficients (m, K) and intercepts (K,), in the order of the filter's outputs."""
        mean, representation = self._heaviest(model).mean, model.representation
        if not representation.intercept:
            return mean / representation.size, np.zeros(mean.shape[1])
        return mean[1:] / representation.size, mean[0]

    @property
    def health_(self) -> Health:
        """Health of the filter with the largest weight, measured on the last rows learned."""
        return self._health(self._model)

    def _health(self, model: Model) -> Health:
        state, step = self._state(model), model.last_step
        self._settings.policy.check_state(state)
        last = None if step is None else step.filters()[state.heaviest]
        return health(state.posteriors[state.heaviest], last)

    @property
    def nbytes_(self) -> int:
        """Bytes of the filters' arrays, and of those of rows that wait.

        J filters of m features and K outputs take 8 J (m^2 + m K) bytes. A buffer of
        r = min(64, max(48, m // 4)) pending rows takes 8 J r (m + K), and the scales of the filters
        40 J. In float32 the first two are half as large. A filter of order p has p m weights and
        derivatives in place of m, and at least 32 pending rows, which take 8 bytes per number.
        Learning needs the first amount twice,
        since the model before stays readable until the model after is ready.

        A row that waits adds its columns and what was predicted of it, as do the last 10,000 rows
        whose targets came. Their ids and Python objects, about 400 bytes each, are not counted.
        Experts beside the filters add what they keep.
        """
        model = self._model
        experts = getattr(model.targets, "experts", {}).values()
        own = self._state(model).nbytes + (model.store or Store()).nbytes
        return own + sum(each.nbytes for each in experts)

    def drift(self) -> Drift:
        """Drift alarm: whether shorter half-lives have begun to predict better than usual.

        You may call it after every row; see `Drift`.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.drift().detected
        False
        """
        model = self._model
        policy = self._settings.policy
        if not policy.adapts:
            raise InvalidInput(
                f"forgetting={self.forgetting!r} is fixed, so there is no drift alarm; "
                'use forgetting="mixture"'
            )
        self._state(model)
        return model.watch.drift(policy.watched)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the estimator to one file, safetensors with JSON; the file is replaced atomically.

        `load` returns an estimator that continues with the same bits as this one. A transformer
        of another library is saved by its attributes, which must be numbers, strings or arrays.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model.safetensors")
        ...     KalmanClassifier.load(f"{folder}/model.safetensors").predict([[2.0]])
        array(['up'], dtype='<U4')
        """
        from kalstream.estimators._saving import save

        save(self, read_path(path))

    @classmethod
    def load(cls, path: str | PathLike[str], features: Any = None) -> Self:
        """Read a file that `save` wrote, with this or an earlier version of kalstream.

        Parameters
        ----------
        path : str or path
        features : transformer, optional
            Needed if the estimator had a transformer of another library: a new one of the same
            class, which receives the saved attributes. No class is looked up by a name in the
            file, so loading cannot run code.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model.safetensors")
        ...     again = KalmanClassifier.load(f"{folder}/model.safetensors")
        >>> again.n_seen_
        2
        """
        from kalstream.estimators._saving import load

        return load(cls, read_path(path), features)

    def uncertainty(self, X: ArrayLike, time: Any = None) -> Array:
        """Epistemic uncertainty of each row (b,), between 0 and about 1.

        It is the variance of the outputs that comes from not knowing the weights, divided by the
        same variance before any data: 1 if nothing has been learned about such a row, near 0 if
        there is nothing left to learn.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> bool(model.uncertainty([[1.0]])[0] < 0.9)
        True
        """
        model = self._model
        ahead = self._ahead(model, X, time)
        prior = self._settings.prior_var * np.einsum("bm,bm->b", ahead.features, ahead.features)
        return ahead.step.weight_variance / np.maximum(prior, np.finfo(np.float64).tiny)

    def is_novel(self, X: ArrayLike, factor: float = 3.0, time: Any = None) -> Array:
        """Whether each row (b,) is unlike the rows that were learned.

        A row is novel if the variance of its outputs that comes from not knowing the weights is
        more than ``factor`` times the usual one: that of the less known of about the last 2,000
        rows, before they were learned. This must hold for the filters that are believed and for
        those with the longest half-life, which remember other phases of a cycle. This finds rows
        with unusual features. A new class with usual features is not novel in this sense; every
        known class gets a low probability there.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.is_novel([[1.0], [100.0]])
        array([False,  True])
        """
        model = self._model
        step = self._ahead(model, X, time).step
        policy, usual = self._settings.policy, np.exp(model.watch.levels)
        belief, variance = policy.belief(step, None, "example", model.watch.now)
        slow = policy.watched == np.max(policy.watched)
        ratio = np.min(variance[:, slow] / usual[slow], axis=1)
        ratio = np.minimum(ratio, step.weight_variance / (belief @ usual))
        return ratio > check.positive("factor", factor)
