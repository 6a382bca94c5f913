"""What the classifier and the regressor share: a policy, a representation, a published model."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import lru_cache, partial
from operator import is_
from os import PathLike
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from kalstream.core import _checks as check
from kalstream.core import _reading as reading
from kalstream.core.bank import BankStep
from kalstream.core.calibration import Calibration
from kalstream.core.forgetting import Fixed, Learned
from kalstream.core.guard import Health, health
from kalstream.core.mixture import Mixture, MixtureState, MixtureStep
from kalstream.core.state import Posterior, Step
from kalstream.errors import InvalidInput
from kalstream.estimators._chunk import Chunk, Targets
from kalstream.estimators._input import allocated, read_path, read_seed, read_unit, read_weights
from kalstream.estimators._labels import Labels
from kalstream.estimators._model import Filter, Model, tail
from kalstream.estimators._representation import Representation
from kalstream.estimators._sharing import Shared, interruptible
from kalstream.estimators._watch import (
    GRID,
    Drift,
    Watch,
    at_start,
    half_life_weights,
    like,
    order_of,
)
from kalstream.features._rows import bounded, read_rows

Array = NDArray[Any]
Policy = Fixed | Learned | Mixture

# Dates further apart than this many seconds, early on, are taken for a forgotten time_unit.
_LONG_GAP: Final = 1000.0
_EARLY: Final = 100
# Up to here the filters have no more outputs than there are classes.
_MANY_CLASSES: Final = 64


class KalmanEstimator(BaseEstimator, ABC):
    """Parameters to policy, rows to features, chunks to a new model; see the subclasses."""

    # ---- what has been learned ------------------------------------------------------------

    @property
    def _model(self) -> Model:
        """The model now: whoever holds it may read it while others learn."""
        shared = self.__dict__.get("_published")
        if shared is None:
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet; "
                "call fit or partial_fit first."
            )
        return shared.value

    @property
    def n_features_in_(self) -> int:
        """Number of columns of the rows."""
        return self._fitted("n_features_in_")

    @property
    def feature_names_in_(self) -> Array:
        """Names of the columns, where the rows came with names."""
        return self._fitted("feature_names_in_")

    def _fitted(self, name: str) -> Any:
        shared = self.__dict__.get("_published")
        if shared is None or name not in shared.value.fitted:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return shared.value.fitted[name]

    def _state(self, model: Model) -> Any:
        if model.state is None:
            raise NotFittedError(
                f"This {type(self).__name__} instance has not seen a target yet: "
                f"{model.n_seen} rows passed, none with one."
            )
        policy = self._policy_of_model()
        if isinstance(policy, Mixture) != isinstance(model.state, MixtureState):
            raise InvalidInput(
                f"forgetting is {self.forgetting!r} now, and was something else when learning "
                "began; set it back, or call reset() to start anew"
            )
        return model.state

    def __sklearn_is_fitted__(self) -> bool:
        shared = self.__dict__.get("_published")
        return shared is not None and shared.value.state is not None

    @property
    def n_seen_(self) -> int:
        """Rows that have passed, with a target or not; 0 before anything was learned."""
        shared = self.__dict__.get("_published")
        return 0 if shared is None else shared.value.n_seen

    @property
    def gamma_(self) -> float:
        """Forgetting coefficient; of a mixture, that of the median half-life."""
        return float(self._state(self._model).gamma)

    @property
    def half_life_(self) -> float:
        """Examples after which a weight has halved; of a mixture, the posterior's median."""
        return float(self._state(self._model).half_life)

    @property
    def half_life_weights_(self) -> dict[float, float]:
        """Posterior over half-lives: {half-life: probability}."""
        state = self._state(self._model)
        if isinstance(state, MixtureState):
            weights = state.half_life_weights.tolist()
            return dict(zip(state.half_lives, weights, strict=True))
        return {float(state.half_life): 1.0}

    @property
    def calibration_(self) -> float:
        """Factor that multiplies logits; of a mixture, the posterior's median."""
        return float(self._state(self._model).calibration)

    @property
    def filters_(self) -> tuple[Filter, ...]:
        """All filters, with their half-lives and how much each is believed."""
        return self._filters(self._model)

    def _filters(self, model: Model) -> tuple[Filter, ...]:
        state = self._state(model)
        if isinstance(state, MixtureState):
            each = zip(state.half_lives, state.half_life_weights, state.posteriors, strict=True)
            return tuple(Filter(h, 0.5 ** (1.0 / h), float(w), p) for h, w, p in each)
        own = copy.copy(state.posterior)
        return (Filter(state.half_life, state.gamma, 1.0, own),)

    @property
    def cov_(self) -> Array:
        """Covariance (m, m) of the weights, of the most believed filter; intercept first."""
        return self._heaviest(self._model).cov

    def _heaviest(self, model: Model) -> Posterior:
        return max(self._filters(model), key=lambda f: f.weight).posterior

    def _weights(self, model: Model) -> tuple[Array, Array]:
        """Coefficients (m, K) and intercepts (K,), in the order of the filter's outputs."""
        mean, representation = self._heaviest(model).mean, model.representation
        if not representation.intercept:
            return mean / representation.size, np.zeros(mean.shape[1])
        return mean[1:] / representation.size, mean[0]

    @property
    def health_(self) -> Health:
        """How sound the most believed filter is, judged by the last rows learned."""
        return self._health(self._model)

    def _health(self, model: Model) -> Health:
        state, told = self._state(model), model.told
        if isinstance(told, BankStep):
            told = told.filters()[state.heaviest]
        return health(copy.copy(state.posterior), told)

    @property
    def nbytes_(self) -> int:
        """Bytes of the filters' arrays.

        For J filters of m features and K outputs: 8 J (m^2 + m K) bytes, 8 J r (m + K) for the
        r = min(64, max(8, m // 4)) rows that may wait, and 40 J if it is a mixture. In float32 the
        first two are half of it. Learning needs the first once more, since the model before
        stays as it is until the model after is ready.
        """
        state = self._state(self._model)
        if isinstance(state, MixtureState):
            return state.bank.nbytes
        return state.posterior.stored.nbytes

    def drift(self) -> Drift:
        """Has the posterior over half-lives moved towards shorter ones, since when, how sure.

        An alarm to be polled; see `Drift`.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.drift().detected
        False
        """
        model = self._model
        if isinstance(self._policy_of_model(), Fixed):
            raise InvalidInput(
                f"forgetting={self.forgetting!r} never changes, so it cannot tell a drift; "
                'use forgetting="mixture"'
            )
        state = self._state(model)
        grid = np.sort(state.half_lives) if isinstance(state, MixtureState) else GRID
        return model.watch.drift(grid)

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything to one file, whole or not at all: safetensors and JSON, no pickle.

        The estimator that `load` makes of it goes on with the same bits as this one. A transformer
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
        """Read what `save` wrote. Files of earlier versions are read, those of later ones refused.

        Parameters
        ----------
        path : str or path
        features : transformer, optional
            If the estimator had a transformer of another library, a new one of the same class:
            it is filled with what was saved. No class is ever looked up by a name in the file.

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

    def snapshot(self) -> Self:
        """A copy that keeps what has been learned so far, while this one goes on learning.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> before = model.snapshot()
        >>> model.partial_fit([[1.0]], ["up"]).n_seen_, before.n_seen_
        (3, 2)
        """
        return copy.copy(self)

    def reset(self) -> Self:
        """Forget everything that has been learned.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.reset().n_seen_
        0
        """
        self.__dict__.pop("_published", None)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_policy_cache", None)
        if "_published" in state:
            state["_published"] = state["_published"].value
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_published" in self.__dict__:
            self._published = Shared(self.__dict__["_published"])

    # ---- parameters -----------------------------------------------------------------------

    def _policy_of_model(self) -> Policy:
        """The policy, made once from the parameters and kept while they stay."""
        return self._policy_and_settings()[0]

    def _policy_and_settings(self) -> tuple[Policy, dict[str, Any]]:
        """The policy, and the keyword arguments of its step."""
        key = self.forgetting, self.calibration, self.noise_var, self.prior_var
        kept = self.__dict__.get("_policy_cache")
        if kept is None or not all(map(is_, kept[0], key)):
            settings = {
                "noise_var": self._number("noise_var", self._auto_noise_var()),
                "prior_var": self._number("prior_var", 1.0),
            }
            kept = self._policy_cache = (key, (self._policy(), settings))
        return kept[1]

    def _learns_scale(self) -> bool:
        return False

    def _policy(self) -> Policy:
        forgetting, calibration = self.forgetting, self.calibration
        if isinstance(forgetting, Mixture | Fixed | Learned):
            if not (isinstance(calibration, str) and calibration == "auto"):
                raise InvalidInput(
                    f"calibration={calibration!r} beside a policy object; give the calibration to "
                    f"{type(forgetting).__name__}(...) and leave this one at 'auto'"
                )
            return forgetting
        if isinstance(calibration, str) and calibration != "auto":
            raise InvalidInput(
                f"calibration must be 'auto', a number, a Calibration, or for a mixture a sequence "
                f"of numbers; got {calibration!r}"
            )
        if isinstance(forgetting, str) and forgetting == "mixture":
            return self._mixture(calibration)
        alpha = Calibration() if isinstance(calibration, str) else calibration
        if isinstance(forgetting, str) and forgetting == "learned":
            # Through calibrated logits the gradient overshoots at any useful rate.
            return Learned(calibration=alpha, calibrated=False)
        if isinstance(forgetting, float | int | np.number) and not isinstance(forgetting, bool):
            return Fixed(float(forgetting), calibration=alpha)
        raise InvalidInput(
            f'forgetting must be "mixture", "learned", a gamma in [0, 1] or a policy object, '
            f"got {forgetting!r}"
        )

    def _mixture(self, calibration: Any) -> Mixture:
        settings: dict[str, Any] = {"predictive": "probit", "learn_scale": self._learns_scale()}
        if isinstance(calibration, Calibration):
            raise InvalidInput(
                "calibration=Calibration(...) is for one filter; a mixture weighs a grid: "
                "give a sequence of numbers, or one to fix it"
            )
        if not isinstance(calibration, str):
            one = isinstance(calibration, float | int | np.number)
            one = one or (isinstance(calibration, np.ndarray) and calibration.ndim == 0)
            settings["calibrations"] = [calibration] if one else calibration
        return Mixture(**settings)

    @abstractmethod
    def _auto_noise_var(self) -> float:
        """What noise_var="auto" stands for."""

    def _number(self, name: str, auto: float) -> float:
        value = getattr(self, name)
        if isinstance(value, str):
            if value != "auto":
                raise InvalidInput(f"{name} must be 'auto' or a number above 0, got {value!r}")
            return auto
        return check.positive(name, value)

    # ---- rows -----------------------------------------------------------------------------

    def _rows(self, X: Any, fitted: dict[str, Any], *, reset: bool = False) -> Array:
        """Rows (b, d) as float64, NaN where a value is missing.

        ``fitted`` holds what scikit-learn knows of the columns; it is filled if ``reset``.
        """
        if (
            not reset
            and type(X) is np.ndarray
            and X.dtype == np.float64
            and X.ndim == 2
            and X.flags.carray
            and X.shape[1] == fitted["n_features_in_"]
            and "feature_names_in_" not in fitted
            and len(X)
        ):
            return bounded(X)
        columns = _columns_class(type(self).__name__)()
        columns.__dict__.update(fitted)
        rows = read_rows(columns, X, reset=reset)
        if reset:
            fitted.update(columns.__dict__)
        return bounded(rows)

    def _gaps(self, model: Model, time: Any, n: int) -> tuple[Array | None, Array | None]:
        """Time before each row in units (b,), and the time of each row (b,); or None."""
        if time is None:
            if model.time is not None:
                raise InvalidInput(
                    f"time was given before (the last row was at {model.time:g}) and is missing "
                    "now; give it in every call, or never"
                )
            return None, None
        times = reading.times(time, n)
        if model.n_seen and model.time is None:
            raise InvalidInput(
                f"time is given now and was not for the {model.n_seen} rows before; "
                "give it in every call, or never (reset() starts anew)"
            )
        start = times[0] - self._unit() if model.time is None else model.time
        steps = np.diff(times, prepend=start)
        if (steps < 0.0).any():
            row = int(np.argmax(steps < 0.0))
            raise InvalidInput(
                f"time goes back by {-steps[row]:g} to {times[row]:.17g} at row {row} of X; "
                "rows must come in the order of time"
            )
        gaps = steps / self._unit()
        early = model.n_seen < _EARLY
        dates = early and reading.are_dates(time)
        if dates and self._unit() == 1.0 and np.median(gaps) > _LONG_GAP:
            warnings.warn(
                f"rows are {np.median(gaps):g} seconds apart and half-lives are counted in "
                "seconds: almost everything is forgotten between rows. Give time_unit, such as "
                "datetime.timedelta(days=1)",
                stacklevel=6,
            )
        return gaps, times

    def _gap_ahead(self, model: Model, time: Any, n: int) -> Any:
        """Time from the last row learned to rows that are predicted: 1, or (b,)."""
        if time is None:
            return 1.0
        times = reading.times(time, n)
        if model.time is None:
            raise InvalidInput(
                "time is given, but the rows learned had none; give it to partial_fit too, or never"
            )
        if (times < model.time).any():
            raise InvalidInput(
                f"time {times.min():.17g} is before the last row learned, at {model.time:.17g}; "
                "only what comes after it can be predicted"
            )
        return (times - model.time) / self._unit()

    def _unit(self) -> float:
        return read_unit(self.time_unit)

    def _fresh(self, fitted: dict[str, Any]) -> Model:
        """A model that has seen nothing."""
        policy, n_columns = self._policy_of_model(), fitted["n_features_in_"]
        check.float_dtype(self.dtype)
        self._unit()
        n_watched = len(policy.half_lives) if isinstance(policy, Mixture) else len(GRID)
        seed = read_seed(self.random_state)
        return Model(
            representation=Representation.of(
                self.features, self.n_components, self.random_state, self.intercept, n_columns
            ),
            state=None,
            labels=Labels(),
            counts=np.zeros(0),
            n_seen=0,
            time=None,
            watch=Watch.start(n_watched),
            told=None,
            offset=None,
            spread=np.zeros(2),
            seed=seed,
            fitted=fitted,
        )

    # ---- learning -------------------------------------------------------------------------

    @interruptible
    def _learn(
        self,
        X: Any,
        targets: Targets,
        sample_weight: Any,
        time: Any,
        *,
        first: bool = False,
        whole: bool = False,
        predict: bool = False,
    ) -> tuple[Model, list[Any]]:
        """Learn a chunk: all of it is published in one step, or nothing.

        ``first`` forgets what was learned before; ``whole`` says that there will be no other rows;
        ``predict`` asks for predictions of the rows before they were learned. Returns the model
        after the rows, and the predictions of one piece of the rows after the other.
        """

        def change(model: Model | None) -> tuple[Model, tuple[Model, list[Any]]]:
            fitted = {} if model is None else model.fitted
            rows = self._rows(X, fitted, reset=model is None)
            chunk = self._chunk(model or self._fresh(fitted), rows, sample_weight, time, whole)
            model, predictions = self._after(*chunk, targets, predict)
            return model, (model, predictions)

        shared = None if first else self.__dict__.get("_published")
        if shared is None:
            model, result = change(None)
            made = Shared(model)
            if first:
                self._published = made
                return result
            shared = self.__dict__.setdefault("_published", made)
            if shared is made:
                return result
        return shared.update(change)

    def _chunk(
        self, model: Model, rows: Array, sample_weight: Any, time: Any, whole: bool
    ) -> tuple[Model, Chunk]:
        """The model, and rows that have been checked against it."""
        weight = read_weights(sample_weight, len(rows))
        if weight is not None and whole and not weight.any():
            raise InvalidInput("sample_weight is zero in every row: nothing to learn")
        return model, Chunk(rows, weight, *self._gaps(model, time, len(rows)))

    def _add_columns(self, n_columns: int) -> None:
        """Grow by columns that were missing (NaN) in all rows so far, behind the others."""
        prior_var = self._number("prior_var", 1.0)

        def change(model: Model) -> tuple[Model, None]:
            n_before = model.fitted["n_features_in_"]
            wider, state = model.representation.with_columns(n_columns), model.state
            if state is not None:
                m = model.representation.transform(np.zeros((1, n_before))).shape[1]
                n_new = wider.transform(np.zeros((1, n_before + n_columns))).shape[1] - m
                if n_new > 0:  # a transformer may mix its columns into as many features as before
                    size = self._policy_of_model(), m + n_new, len(state.seen), self.dtype
                    state = allocated(partial(state.add_features, n_new, prior_var), *size)
            fitted = {**model.fitted, "n_features_in_": n_before + n_columns}
            return replace(model, representation=wider, state=state, fitted=fitted), None

        self._published.update(change)

    def _after(
        self, model: Model, chunk: Chunk, targets: Targets, predict: bool
    ) -> tuple[Model, list[Any]]:
        """The model after a chunk, and the predictions of its rows if they are asked for."""
        policy, settings = self._policy_and_settings()
        predictions, start, n = [], 0, len(chunk.rows)
        targets.check(n)
        in_pieces = predict and self.transition == "example"
        while start < n:
            stop = min(n, targets.end_of_piece(model, start)) if in_pieces else n
            piece = slice(start, stop)
            model, prediction = self._after_piece(
                model, chunk[piece], targets, piece, policy, settings, predict
            )
            predictions.append(prediction)
            start = stop
        return model, predictions

    def _after_piece(
        self,
        before: Model,
        chunk: Chunk,
        targets: Targets,
        piece: slice,
        policy: Policy,
        settings: dict[str, Any],
        predict: bool,
    ) -> tuple[Model, Any]:
        """The model after rows of which the targets fit into it or make room, and predictions."""
        model, y, weight = targets.read(before, piece, chunk.weight)
        n, n_outputs = len(chunk.rows), self._n_outputs(model)
        representation, phi = model.representation.advance(chunk.rows)
        time = None if chunk.times is None else float(chunk.times[-1])
        model = model.but(representation=representation, n_seen=model.n_seen + n, time=time)
        if n_outputs == 0:
            # nothing to learn yet, and the prior does not change with time
            weights = at_start(policy, n)
            prior = settings["prior_var"] * np.einsum("bm,bm->b", phi, phi)
            watch = model.watch.after(weights, like(prior, weights))
            return model.but(watch=watch), self._prediction(before, None, n)
        state: Any = None if model.state is None else self._state(model)
        if state is None:
            size, prior_var = (phi.shape[1], n_outputs), settings["prior_var"]
            start = partial(policy.start, *size, prior_var=prior_var, dtype=self.dtype)
            state = allocated(start, policy, *size, self.dtype)
        elif len(state.seen) < n_outputs:
            state = state.add_outputs(_room_for(n_outputs) - len(state.seen))
        state, step = policy.step_chunk(
            state,
            phi,
            y,
            transition=self.transition,
            sample_weight=weight,
            time_gap=chunk.gap,
            **settings,
        )
        model = self._noted(model, state, step, weight, chunk.gap)
        return self._finished(before, model, chunk, step, y, predict)

    def _ahead_of(self, model: Model, chunk: Chunk) -> Any:
        """Moments of the rows of a chunk before any of it is learned; None if nothing is known."""
        if model.state is None:
            return None
        policy, settings = self._policy_and_settings()
        gap = 1.0 if chunk.times is None else (chunk.times - model.time) / self._unit()
        phi = model.representation.transform(chunk.rows)
        return policy.predict(model.state, phi, prior_var=settings["prior_var"], time_gap=gap)

    @abstractmethod
    def _prediction(self, model: Model, step: Any, n: int) -> Any:
        """Prediction of n rows by the filters; the step is None while nothing is known."""

    @abstractmethod
    def _finished(
        self, before: Model, model: Model, chunk: Chunk, step: Any, y: Any, predict: bool
    ) -> tuple[Model, Any]:
        """The model after all that is above the filters has learned too, and predictions."""

    @abstractmethod
    def _n_outputs(self, model: Model) -> int:
        """How many outputs the filters need; 0 while no target is known."""

    def _noted(
        self, model: Model, state: Any, step: Any, weight: Array | None, gap: Array | None
    ) -> Model:
        """The model with a new state, and what the step told."""
        if isinstance(step, MixtureStep):
            from kalstream.estimators._watch_scan import shares_and_variance

            order = order_of(state.half_lives)
            weights, variance = shares_and_variance(step.weights, step.logit_var, order)
            told: Any = step.told
        else:
            before = model.watch.now
            if not before.any():
                before = at_start(self._policy_of_model(), 1)[0]
            weights = half_life_weights(step, gap, self.transition == "chunk", before)
            variance, told = like(step.logit_var, weights), step
        watch = model.watch.after(weights, variance)
        return model.but(state=state, watch=watch, told=tail(told))

    # ---- predicting -----------------------------------------------------------------------

    @interruptible
    def _ahead(self, model: Model, X: Any, time: Any) -> tuple[Step | MixtureStep, Array]:
        """Moments of rows one step ahead, and their features (b, m)."""
        rows = self._rows(X, model.fitted)
        phi = model.representation.transform(rows)
        policy, settings = self._policy_and_settings()
        ahead = policy.predict(
            self._state(model),
            phi,
            prior_var=settings["prior_var"],
            time_gap=self._gap_ahead(model, time, len(rows)),
        )
        return ahead, phi

    def uncertainty(self, X: ArrayLike, time: Any = None) -> Array:
        """How little is known about each row (b,): 0 nothing left to learn, 1 nothing learned.

        The variance of the outputs that comes from not knowing the weights (epistemic), over
        what it was before any data.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> bool(model.uncertainty([[1.0]])[0] < 0.1)
        True
        """
        model = self._model
        ahead, phi = self._ahead(model, X, time)
        prior = self._number("prior_var", 1.0) * np.einsum("bm,bm->b", phi, phi)
        return _variance(ahead) / np.maximum(prior, np.finfo(np.float64).tiny)

    def is_novel(self, X: ArrayLike, factor: float = 3.0, time: Any = None) -> Array:
        """Whether each row (b,) is unlike what was learned from.

        True where the variance of the outputs that comes from not knowing the weights is more than
        ``factor`` times what it was for the rows of late, before they were learned (a geometric
        average over some 200 rows, for each filter). It sees rows where the features have not
        been seen before; a new class among known features shows as a low probability of
        every known class instead.

        Examples
        --------
        >>> from kalstream import KalmanClassifier
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.is_novel([[1.0], [100.0]])
        array([False,  True])
        """
        model = self._model
        ahead, phi = self._ahead(model, X, time)
        usual = np.exp(model.watch.levels)
        if isinstance(ahead, MixtureStep):
            expected = ahead.half_life_weights[:, order_of(ahead.half_lives)] @ usual
        else:
            expected = np.full(len(phi), usual[0])
        return _variance(ahead) > check.positive("factor", factor) * expected

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = False
        return tags


def _room_for(n_outputs: int) -> int:
    """How many outputs to have: of many classes, room for more, so that growing stays cheap.

    A class that has not come takes no part, so room changes no prediction.
    """
    return n_outputs if n_outputs <= _MANY_CLASSES else n_outputs + n_outputs // 4


def _variance(ahead: Any) -> Array:
    """Variance (b,) of the outputs that comes from not knowing the weights."""
    if isinstance(ahead, MixtureStep):
        return np.einsum("bj,jb->b", ahead.half_life_weights, ahead.logit_var)
    return ahead.logit_var


@lru_cache
def _columns_class(name: str) -> type:
    """What scikit-learn notes columns in; its messages hold the name."""
    return type(name, (BaseEstimator,), {})
