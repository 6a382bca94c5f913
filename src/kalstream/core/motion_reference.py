"""The plain version of `motion`: a dense Kalman filter on the companion form, row by row.

A weight moves as a Matérn process of half-integer order p: 1 is the Ornstein-Uhlenbeck process of
the paper, 2 is Matérn-3/2, 3 is Matérn-5/2. Its state is (w, w'/l, w''/l^2) with rate l, so that
all entries have the unit of a weight. Time enters as tau = l times the time gap. See `motion` for
the equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammainc

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.half_lives import gamma_of
from kalstream.errors import InvalidInput

ORDERS: Final = (1, 2, 3)
# Where the autocorrelation of each order is one half.
_HALF: Final = {1: 0.6931471805599453, 2: 1.6783469900166605, 3: 2.3302561921560074}
# The companion matrix plus the identity. Its power p is zero, since -1 is its only eigenvalue.
_NILPOTENT: Final = {
    1: np.zeros((1, 1)),
    2: np.array([[1.0, 1.0], [-1.0, -1.0]]),
    3: np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [-1.0, -3.0, -2.0]]),
}
_STATIONARY: Final = {
    1: np.eye(1),
    2: np.eye(2),
    3: np.array([[1.0, 0.0, -1.0 / 3.0], [0.0, 1.0 / 3.0, 0.0], [-1.0 / 3.0, 0.0, 1.0]]),
}
# Intensity of the white noise that drives the last entry of the state.
_INTENSITY: Final = {1: 2.0, 2: 4.0, 3: 16.0 / 3.0}
# The response exp(-s) times a polynomial in s (lowest power first) of each entry to that noise.
_RESPONSE: Final = {
    1: ((1.0,),),
    2: ((0.0, 1.0), (1.0, -1.0)),
    3: ((0.0, 0.0, 0.5), (0.0, 1.0, -0.5), (1.0, -2.0, 0.5)),
}


def check_order(order: Any) -> int:
    """An order of the motion: 1, 2 or 3."""
    is_number = isinstance(order, int | np.integer) and not isinstance(order, bool)
    if not is_number or order not in ORDERS:
        raise InvalidInput(f"order must be 1, 2 or 3, got {check.shown(order)}")
    return int(order)


def rate_of(order: int, half_life: float) -> float:
    """Rate l at which the autocorrelation is one half after ``half_life``; 0 if that is infinite.

    Examples
    --------
    >>> rate_of(1, 1.0), rate_of(2, 1.0), rate_of(3, 1.0)
    (0.6931471805599453, 1.6783469900166605, 2.3302561921560074)
    """
    gamma_of(half_life)  # checks it
    return _HALF[check_order(order)] / float(half_life)


def stationary_cov(order: int) -> Array:
    """Covariance P (p, p) of the state of a weight before any data, if prior_var = 1.

    Examples
    --------
    >>> stationary_cov(2)
    array([[1., 0.],
           [0., 1.]])
    """
    return _STATIONARY[check_order(order)].copy()


def transition_matrix(order: int, tau: float) -> Array:
    """F(tau) (p, p): the exponential of tau times the companion matrix, in closed form.

    Examples
    --------
    >>> transition_matrix(2, 0.0)
    array([[1., 0.],
           [0., 1.]])
    """
    nilpotent = _NILPOTENT[check_order(order)]
    tau = min(tau, 1e4)  # exp(-tau) is 0 long before
    series = np.eye(order) + tau * nilpotent + 0.5 * tau**2 * (nilpotent @ nilpotent)
    return math.exp(-tau) * series


def process_noise(order: int, tau: float) -> Array:
    """Q(tau) = P - F P F' (p, p), if prior_var = 1, with all digits at every tau.

    It is the integral over s from 0 to tau of intensity f(s) f(s)', where f(s) is the response to
    the driving noise: exp(-s) times polynomials. The integral of s^k exp(-2 s) is an incomplete
    gamma function.

    Examples
    --------
    >>> float(process_noise(2, 1e-6)[0, 0])  # 4/3 tau^3, where P - F P F' would have no digit
    1.333...e-18
    """
    tau = min(tau, 1e4)
    powers = np.arange(5)
    factorials = np.array([math.factorial(int(k)) for k in powers])
    integrals = factorials / 2.0 ** (powers + 1) * gammainc(powers + 1, 2.0 * tau)
    responses = _RESPONSE[check_order(order)]
    noise = np.empty((order, order))
    for a, left in enumerate(responses):
        for b, right in enumerate(responses):
            product = np.convolve(left, right)
            noise[a, b] = _INTENSITY[order] * product @ integrals[: len(product)]
    return noise


def correlation(order: int, tau: float) -> float:
    """Autocorrelation of a weight over a time gap: the Matérn kernel at tau.

    Examples
    --------
    >>> correlation(3, rate_of(3, 10.0) * 10.0)
    0.5...
    """
    polynomial = {1: 1.0, 2: 1.0 + tau, 3: 1.0 + tau + tau**2 / 3.0}[check_order(order)]
    return polynomial * math.exp(-tau)


@dataclass(frozen=True, slots=True)
class Moving:
    """Gaussian over weights and their scaled derivatives: mean (p m, K), cov (p m, p m).

    Entry a m + k is derivative a of weight k, divided by rate^a.
    """

    mean: Array
    cov: Array
    order: int

    @property
    def weight_mean(self) -> Array:
        """Mean of the weights themselves (m, K)."""
        return self.mean[: len(self.mean) // self.order]

    @property
    def weight_cov(self) -> Array:
        """Covariance of the weights themselves (m, m)."""
        m = len(self.mean) // self.order
        return self.cov[:m, :m]


def start_moving(n_features: int, n_outputs: int, *, order: int, prior_var: float) -> Moving:
    """State before any data: mean 0, and the covariance that the motion leaves as it is.

    Examples
    --------
    >>> start_moving(1, 1, order=2, prior_var=0.5).cov
    array([[0.5, 0. ],
           [0. , 0.5]])
    """
    cov = np.kron(prior_var * stationary_cov(order), np.eye(n_features))
    return Moving(np.zeros((order * n_features, n_outputs)), cov, order)


def moved(state: Moving, *, tau: float, prior_var: float) -> Moving:
    """State after a time gap of tau = rate times time: F x, and F cov F' + prior_var Q.

    Examples
    --------
    >>> start = start_moving(1, 1, order=2, prior_var=1.0)
    >>> moved(start, tau=0.3, prior_var=1.0).cov.diagonal().round(12)
    array([1., 1.])
    """
    eye = np.eye(len(state.mean) // state.order)
    F = np.kron(transition_matrix(state.order, tau), eye)
    Q = np.kron(prior_var * process_noise(state.order, tau), eye)
    return replace(state, mean=F @ state.mean, cov=F @ state.cov @ F.T + Q)


def predict_moving(state: Moving, features: ArrayLike) -> tuple[Array, float]:
    """Mean (K,) and variance of the outputs for features (m,).

    Examples
    --------
    >>> predict_moving(start_moving(1, 1, order=2, prior_var=1.0), [2.0])
    (array([0.]), 4.0)
    """
    phi = np.asarray(features, np.float64)
    return phi @ state.weight_mean, float(phi @ state.weight_cov @ phi)


def learn_moving(
    state: Moving, features: ArrayLike, innovation: ArrayLike, noise_var: float
) -> Moving:
    """Kalman update with an observation of the weights: innovation (K,), with this noise variance.

    Examples
    --------
    >>> state = learn_moving(start_moving(1, 1, order=2, prior_var=1.0), [1.0], [3.0], 1.0)
    >>> state.mean
    array([[1.5],
           [0. ]])
    """
    phi = np.asarray(features, np.float64)
    gain = state.cov[:, : len(phi)] @ phi  # (p m,)
    innovation_var = noise_var + phi @ gain[: len(phi)]
    mean = state.mean + np.outer(gain / innovation_var, np.asarray(innovation))
    cov = state.cov - np.outer(gain, gain) / innovation_var
    return replace(state, mean=mean, cov=(cov + cov.T) / 2.0)
