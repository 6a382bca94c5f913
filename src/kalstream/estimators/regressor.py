"""A regressor for streams that drift."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from kalstream.core import _checks as check
from kalstream.core.forgetting import Learned
from kalstream.core.guard import Health
from kalstream.core.mixture import Mixture, MixtureState, MixtureStep
from kalstream.errors import InvalidInput
from kalstream.estimators._base import KalmanEstimator, Policy
from kalstream.estimators._chunk import Chunk
from kalstream.estimators._input import read_values, read_weights
from kalstream.estimators._model import Model

Array = NDArray[Any]

# Variance of the noise over that of a weight, when both are multiples of a scale that is learned.
_NOISE_VAR: Final = 0.03


class KalmanRegressor(RegressorMixin, KalmanEstimator):
    """Online regression with uncertainty: a Kalman filter over the weights of a linear readout.

    Parameters
    ----------
    forgetting, features, n_components, transition, calibration, intercept, time_unit, dtype, \
random_state
        As in `KalmanClassifier`; calibration and predictive play no part in regression.
    noise_var : "auto" or float
        Variance of the targets' noise; "auto" learns it as the stream goes by. (With
        ``forgetting="learned"`` give a number: the gradient of gamma depends on it.)
    prior_var : "auto" or float
        Variance of a weight before any data; with noise_var="auto", in units of a scale that is
        learned with the noise.

    Attributes
    ----------
    coef_, intercept_, cov_ : (m,) or (K, m), scalar or (K,), (m, m)
    noise_var_ : float
        Variance of the noise as far as it is known.
    filters_, half_life_weights_, gamma_, half_life_, n_seen_, health_, nbytes_
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

    def __init__(
        self,
        forgetting: Any = "mixture",
        features: Any = "fourier",
        *,
        n_components: int = 200,
        transition: str = "example",
        noise_var: float | str = "auto",
        prior_var: float | str = "auto",
        predictive: str = "exact",
        calibration: Any = "auto",
        intercept: bool = True,
        time_unit: Any = 1.0,
        dtype: Any = np.float64,
        random_state: Any = None,
    ) -> None:
        self.forgetting = forgetting
        self.features = features
        self.n_components = n_components
        self.transition = transition
        self.noise_var = noise_var
        self.prior_var = prior_var
        self.predictive = predictive
        self.calibration = calibration
        self.intercept = intercept
        self.time_unit = time_unit
        self.dtype = dtype
        self.random_state = random_state

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
                "y contains NaN or infinity; fit needs every target, "
                "partial_fit lets time pass where one is NaN"
            )
        self._learn(X, self._targets(values), sample_weight, time, first=True, whole=True)
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
        self._learn(X, self._targets(read_values(y)), sample_weight, time)
        return self

    def predict_then_learn(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        time: Any = None,
    ) -> tuple[Array, Array]:
        """Predict each row before its target is seen, and learn it, row after row in one call.

        The same as `predict` and `partial_fit` of one row at a time (of the chunk as a whole, if
        transition is "chunk"), several times faster.

        Parameters
        ----------
        X, y, sample_weight, time
            As in `partial_fit`.

        Returns
        -------
        mean, std : (b,) or (b, K)
            As of `predict`; NaN and inf before any target was known.

        Examples
        --------
        >>> model = KalmanRegressor(features="raw", noise_var=0.01)
        >>> mean, _ = model.predict_then_learn([[1.0], [1.0], [1.0]], [2.0, 2.0, 2.0])
        >>> mean.round(2)
        array([nan,  2.,  2.])
        """
        values = read_values(y)
        model, parts = self._learn(X, self._targets(values), sample_weight, time, predict=True)
        mean, std = np.empty((2, len(values), 1 if values.ndim == 1 else values.shape[1]))
        start = 0
        for each in parts:
            piece = slice(start, start + len(each[0]))
            mean[piece], std[piece] = each
            start = piece.stop
        return _shaped(model, mean), _shaped(model, std)

    def _targets(self, values: Array) -> _ValueTargets:
        # A single filter does not tell its scale row by row.
        by_row = self._learns_scale() and not isinstance(self._policy_of_model(), Mixture)
        small = check.float_dtype(self.dtype) == np.float32
        limit = check.LARGEST_FLOAT32 if small else check.LARGEST_FLOAT64
        return _ValueTargets(values, limit, None if by_row else self._knows_scale)

    def _prediction(self, model: Model, step: Any, n: int) -> tuple[Array, Array]:
        if step is None or model.state is None:
            return np.full((n, 1), np.nan), np.full((n, 1), np.inf)
        return self._mean(model, step), np.sqrt(self._variance(model, step))

    def _finished(
        self, before: Model, model: Model, chunk: Chunk, step: Any, y: Any, predict: bool
    ) -> tuple[Model, Any]:
        if not predict:
            return model, None
        if self.transition == "chunk":
            step = self._ahead_of(before, chunk)
        return model, self._prediction(before, step, len(chunk.rows))

    def _n_outputs(self, model: Model) -> int:
        return 0 if model.offset is None else len(model.offset)

    def _learns_scale(self) -> bool:
        return isinstance(self.noise_var, str)

    def _auto_noise_var(self) -> float:
        return _NOISE_VAR

    def _policy(self) -> Policy:
        policy = super()._policy()
        if isinstance(policy, Mixture):
            return replace(policy, learn_scale=self._learns_scale())
        if isinstance(policy, Learned) and self._learns_scale():
            raise InvalidInput(
                "forgetting='learned' needs noise_var as a number, since the gradient of gamma "
                "depends on it; or use forgetting='mixture'"
            )
        return policy

    def _noted(
        self, model: Model, state: Any, step: Any, weight: Array | None, gap: Array | None
    ) -> Model:
        model = super()._noted(model, state, step, weight, gap)
        if isinstance(step, MixtureStep) or not self._learns_scale():
            return model
        from kalstream.core._kernels.mixture import KEEP_SCALE

        freedom, squares = model.spread.tolist()
        n_outputs = step.logit_mean.shape[1]
        weights = np.ones(len(step.nis)) if weight is None else weight
        for nis, w in zip(step.nis.tolist(), weights.tolist(), strict=True):
            if nis == nis and w > 0.0:
                freedom = KEEP_SCALE * freedom + w * n_outputs
                squares = KEEP_SCALE * squares + w * n_outputs * nis
        return replace(model, spread=np.array([freedom, squares]))

    def predict(self, X: ArrayLike, return_std: bool = False, time: Any = None) -> Any:
        """Predicted mean of each row (b,) or (b, K), one step ahead.

        Parameters
        ----------
        X : (b, d)
        return_std : bool
            Also return standard deviations of the targets, noise included, as the means; inf
            while less than two targets are known.
        time
            As in `KalmanClassifier.predict_proba`.

        Examples
        --------
        >>> model = KalmanRegressor(features="raw", noise_var=0.01)
        >>> model = model.partial_fit([[0.0], [1.0]], [0.0, 1.0])
        >>> mean, std = model.predict([[1.0], [3.0]], return_std=True)
        >>> bool(mean[1] > mean[0]), bool(std[1] > std[0])  # further off, and less sure
        (True, True)
        """
        check.flag("return_std", return_std)
        model = self._model
        ahead, _ = self._ahead(model, X, time)
        mean = _shaped(model, self._mean(model, ahead))
        if not return_std:
            return mean
        return mean, _shaped(model, np.sqrt(self._variance(model, ahead)))

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Share of the targets' variance that the predicted means explain, R squared.

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
        from sklearn.metrics import r2_score

        values, mean = read_values(y), self.predict(X)
        if np.atleast_2d(values.T).shape != np.atleast_2d(mean.T).shape:
            raise InvalidInput(f"y has shape {values.shape} for predictions of shape {mean.shape}")
        if not np.isfinite(values).all():
            raise InvalidInput("y contains NaN or infinity; a score needs every target")
        weight = read_weights(sample_weight, len(values))
        return float(r2_score(values, mean, sample_weight=weight))

    def _mean(self, model: Model, ahead: Any) -> Array:
        """Mean (b, K) of targets."""
        mean = ahead.mean if isinstance(ahead, MixtureStep) else ahead.logit_mean
        return mean + model.offset

    def _variance(self, model: Model, ahead: Any) -> Array:
        """Variance (b, K) of targets."""
        noise_var = self._number("noise_var", _NOISE_VAR)
        if isinstance(ahead, MixtureStep):
            noise = np.einsum("bj,bj->b", ahead.half_life_weights, ahead.scale) * noise_var
            variance = ahead.var + noise[:, None]
        else:
            scale = self._scale(model)
            variance = np.repeat(
                scale * (ahead.logit_var + noise_var)[:, None], ahead.logit_mean.shape[1], axis=1
            )
        known = self._knows_scale(model)
        return np.maximum(variance, 0.0) if known else np.full(variance.shape, np.inf)

    def _knows_scale(self, model: Model) -> bool:
        """Whether two targets at least have told how large the noise is."""
        return model.offset is not None and self._freedom(model) >= 2.0 * len(model.offset)

    def _scale(self, model: Model) -> float:
        if not self._learns_scale():
            return 1.0
        freedom, squares = model.spread.tolist()
        return squares / freedom if freedom > 0.0 else float("nan")

    def _freedom(self, model: Model) -> float:
        """How many targets the scale of the noise is known from; inf if it was given."""
        if not self._learns_scale():
            return math.inf
        if isinstance(model.state, MixtureState):
            return float(model.state.spread[0, 0])
        return float(model.spread[0])

    def _health(self, model: Model) -> Health:
        report, scale = super()._health(model), self._scale(model)
        policy = self._policy_of_model()
        if isinstance(policy, Mixture):
            scale = float(policy.scale(model.state)[model.state.heaviest])
        return replace(report, nis=report.nis / scale if scale > 0.0 else math.nan)

    @property
    def noise_var_(self) -> float:
        """Variance of the targets' noise, as far as it is known."""
        model = self._model
        state = self._state(model)
        noise_var = self._number("noise_var", _NOISE_VAR)
        policy = self._policy_of_model()
        if isinstance(policy, Mixture):
            return float(state.half_life_weights @ policy.scale(state)) * noise_var
        return self._scale(model) * noise_var

    @property
    def coef_(self) -> Array:
        """Weights (m,) or (K, m) of the most believed filter, without the intercepts."""
        model = self._model
        return _shaped(model, self._weights(model)[0]).T

    @property
    def intercept_(self) -> Any:
        """Intercept, or (K,), of the most believed filter."""
        model = self._model
        self._state(model)
        intercept = self._weights(model)[1] + model.offset
        return float(intercept[0]) if model.fitted["_flat"] else intercept

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


@dataclass(slots=True)  # not frozen: that triples the time to make one
class _ValueTargets:
    """Targets (b,) or (b, K) of a chunk, and whether a model knows how large the noise is."""

    values: Array
    limit: float
    knows_scale: Callable[[Model], bool] | None

    def check(self, n: int) -> None:
        values = self.values
        if values.ndim not in (1, 2) or len(values) != n or values.size == 0:
            raise InvalidInput(f"y has shape {values.shape} for the {n} rows of X")
        if np.isinf(values).any():
            raise InvalidInput("y contains infinity; use NaN where a target is unknown")
        # The first target is subtracted from all others: too large, it would spoil them as well.
        large = np.abs(values) > self.limit
        if large.any():
            place = tuple(np.argwhere(large)[0].tolist())
            raise InvalidInput(
                f"y holds {values[place]:g} at row {place[0]}, more than {self.limit:g}; scale it"
            )

    def end_of_piece(self, model: Model, start: int) -> int:
        """Row by row until the noise's scale is known."""
        known = self.knows_scale is not None and self.knows_scale(model)
        return len(self.values) if known and model.state is not None else start + 1

    def read(
        self, model: Model, piece: slice, weight: Array | None
    ) -> tuple[Model, Array, Array | None]:
        """Targets less an offset, the first target there was."""
        values = self.values[piece]
        dense = values.reshape(len(values), -1).astype(np.float64)
        if model.offset is None:
            missing = np.isnan(dense).any(axis=1)
            if weight is not None:
                missing |= weight == 0.0
            known = np.flatnonzero(~missing)
            if len(known):
                model = replace(model, offset=dense[known[0]].copy())
        elif dense.shape[1] != len(model.offset):
            raise InvalidInput(f"y has {dense.shape[1]} columns, before it had {len(model.offset)}")
        if model.fitted.get("_flat") is not (values.ndim == 1):
            model = model.but(fitted={**model.fitted, "_flat": values.ndim == 1})
        return model, dense if model.offset is None else dense - model.offset, weight


def _shaped(model: Model, values: Array) -> Array:
    """(b,) if targets were flat, else (b, K)."""
    return values[:, 0] if model.fitted["_flat"] else values
