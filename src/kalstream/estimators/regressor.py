"""A regressor for streams that drift."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.guard import Health
from kalstream.core.policy import Policy
from kalstream.errors import InvalidInput
from kalstream.estimators._asking import AskingEstimator
from kalstream.estimators._model import Model
from kalstream.estimators._regression import Regression, r_squared, shaped
from kalstream.estimators._settings import VALUES, policy_of, store
from kalstream.estimators._value_row import learn_value
from kalstream.estimators.inputs import read_values


class KalmanRegressor(RegressorMixin, AskingEstimator[tuple[Array, Array]]):
    """Online regression with uncertainty: a Kalman filter over the weights of a linear readout.

    Parameters
    ----------
    forgetting, features, n_components, transition, order, calibration, intercept, time_unit, \
dtype, random_state, max_waiting, max_age
        As in `KalmanClassifier`; calibration and predictive are not used in regression.
    noise_var : "auto" or float
        Variance of the noise of a target; "auto" learns it online. With
        ``forgetting="learned"`` give a number, since the gradient of gamma depends on it.
    prior_var : "auto" or float
        Variance of a weight before any data; with noise_var="auto", in units of a scale that is
        learned with the noise.

    Attributes
    ----------
    coef_, intercept_, cov_ : (m,) or (K, m), scalar or (K,), (m, m)
    noise_var_ : float
        Estimated variance of the noise.
    filters_, half_life_weights_, gamma_, half_life_, n_seen_, n_rows_, health_, nbytes_
    waiting_, waiting_ids_
        As in `KalmanClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3.0, 3.0, (500, 1))
    >>> y = 100.0 + np.sin(X[:, 0]) + 0.1 * rng.standard_normal(500)
    >>> model = KalmanRegressor(random_state=0).partial_fit(X, y)
    >>> mean, std = model.predict([[0.0]], return_std=True)
    >>> bool(abs(mean[0] - 100.0) < 0.1), bool(0.08 < std[0] < 0.2)
    (True, True)
    """

    # Over the variance of a weight, when both are multiples of a scale that is learned.
    _NOISE_VAR = 0.03
    _read_targets = staticmethod(read_values)
    _NO_TARGETS = np.empty(0)

    def __init__(
        self,
        forgetting: Any = "mixture",
        features: Any = "fourier",
        *,
        n_components: int = 200,
        transition: str = "example",
        order: Any = 1,
        noise_var: float | str = "auto",
        prior_var: float | str = "auto",
        predictive: str = "exact",
        calibration: Any = "auto",
        intercept: bool = True,
        time_unit: Any = 1.0,
        dtype: Any = np.float64,
        random_state: Any = None,
        max_waiting: int = 100_000,
        max_age: float | None = None,
    ) -> None:
        store(locals())

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, time: Any = None
    ) -> Self:
        """Forget everything, then learn the rows in their order, once.

        Parameters
        ----------
        X : (b, d)
        y : (b,) or (b, K)
            Targets, none missing.
        sample_weight, time
            As in `partial_fit`.

        Examples
        --------
        >>> KalmanRegressor(features="raw", noise_var=0.01).fit([[0.0], [1.0]], [0.0, 1.0]).n_seen_
        2
        """
        values = read_values(y)
        if not np.isfinite(values).all():
            raise InvalidInput(
                "y contains NaN or infinity; fit needs all targets; use partial_fit if some are "
                "missing (NaN)"
            )
        self._learn(X, values, sample_weight, time, restart=True)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        time: Any = None,
    ) -> Self:
        """Learn a chunk of rows, in their order.

        Parameters
        ----------
        X : (b, d)
        y : (b,) or (b, K)
            Targets, NaN (a whole row of NaN) where unknown.
        sample_weight, time
            As in `KalmanClassifier.partial_fit`.

        Examples
        --------
        >>> model = KalmanRegressor(features="raw", noise_var=0.01)
        >>> model.partial_fit([[0.0], [1.0]], [0.0, 1.0]).partial_fit([[2.0]], [np.nan]).n_seen_
        3
        """
        self._learn(X, read_values(y), sample_weight, time)
        return self

    def _learn_row(self, *row: Any) -> tuple[Model, Any] | None:
        return learn_value(*row)

    def _task(self) -> Regression:
        small = check.float_dtype(self.dtype) == np.float32
        limit = check.LARGEST_FLOAT32 if small else check.LARGEST_FLOAT64
        return Regression(isinstance(self.noise_var, str), limit)

    def _policy(self) -> Policy:
        own = isinstance(self.forgetting, Policy)  # values have no likelihood to choose
        likelihood = "auto" if own else "onehot"
        # Whoever gives the size of the noise also says what a weight's variance is.
        known = not isinstance(self.noise_var, str)
        usual = None if known else VALUES
        policy = policy_of(self.forgetting, self.calibration, likelihood, self.order, usual)
        return policy.with_noise(known=known)

    def predict(self, X: ArrayLike, return_std: bool = False, time: Any = None) -> Any:
        """Predicted mean of each row (b,) or (b, K), one step ahead.

        Parameters
        ----------
        X : (b, d)
        return_std : bool
            Also return the standard deviation of each target, noise included. If noise_var is
            "auto", it is inf until three targets are known.
        time
            As in `KalmanClassifier.predict_proba`.

        Examples
        --------
        >>> model = KalmanRegressor(features="raw", noise_var=0.01)
        >>> model = model.partial_fit([[0.0], [1.0]], [0.0, 1.0])
        >>> mean, std = model.predict([[1.0], [3.0]], return_std=True)
        >>> bool(mean[1] > mean[0]), bool(std[1] > std[0])  # less certain further away
        (True, True)
        """
        check.flag("return_std", return_std)
        model = self._model
        ahead = self._ahead(model, X, time)
        if not return_std:
            return shaped(model, ahead.step.mean + model.targets.offset)
        settings = self._settings
        mean, std = settings.task.predict(model, ahead, settings)
        return shaped(model, mean), shaped(model, std)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R squared: the share of the variance of y that the predicted means explain.

        Parameters
        ----------
        X : (b, d)
        y : (b,) or (b, K)
            Targets, none missing.
        sample_weight : (b,), optional

        Examples
        --------
        >>> model = KalmanRegressor(features="raw", noise_var=0.01)
        >>> model = model.partial_fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])
        >>> model.score([[0.0], [1.0]], [0.0, 1.0]) > 0.9
        True
        """
        return r_squared(y, self.predict(X), sample_weight)

    def _health(self, model: Model) -> Health:
        report, settings = super()._health(model), self._settings
        scale = self._task().scale(model)
        if settings.policy.learns_scale:
            state = self._state(model)
            scale = float(settings.policy.scale(state)[state.heaviest])
        return replace(report, nis=report.nis / scale if scale > 0.0 else math.nan)

    @property
    def noise_var_(self) -> float:
        """Estimated variance of the noise of a target."""
        model, settings = self._model, self._settings
        state = self._state(model)
        scale = self._task().scale(model)
        if settings.policy.learns_scale:
            scale = float(state.half_life_weights @ settings.policy.scale(state))
        return scale * settings.noise_var

    @property
    def coef_(self) -> Array:
        """Coefficients (m,) or (K, m) of the filter with the largest weight, without intercepts."""
        model = self._model
        return shaped(model, self._weights(model)[0]).T

    @property
    def intercept_(self) -> Any:
        """Intercept, or intercepts (K,), of the filter with the largest weight."""
        model = self._model
        self._state(model)
        intercept = self._weights(model)[1] + model.targets.offset
        return float(intercept[0]) if model.targets.flat else intercept

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags
