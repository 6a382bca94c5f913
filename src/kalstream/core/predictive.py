"""From logit moments to predictions: class probabilities, label log-probabilities, densities.

The logits of one row are N(logit_mean, logit_var I): one variance, shared by all classes. Their
softmax has no closed-form mean, but the mean is a one-dimensional integral (core/README.md). It is
computed here to about 1e-6, with its derivatives. The paper's Monte Carlo estimate is here too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from kalstream.core import checks as check
from kalstream.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]
    Method = Literal["exact", "monte-carlo", "probit", "plug-in"]

METHODS = ("exact", "monte-carlo", "probit", "plug-in")
_LARGEST = 1e150  # its square is still finite
_CHUNK = 1 << 20  # Monte Carlo logits held at a time: 8 MiB


class LabelLogProb(NamedTuple):
    """Log-probability of a label and its gradients; batched when the logits were.

    Attributes
    ----------
    log_prob : (b,) or ()
    d_mean : (b, K) or (K,)
        Derivative with respect to `logit_mean`.
    d_var : (b,) or ()
        Derivative with respect to `logit_var`.
    d_calibration : (b,) or ()
        Derivative with respect to `calibration`.

    Examples
    --------
    >>> scored = label_log_prob([2.0, 0.0], 0.0, 0)
    >>> round(float(scored.log_prob), 3), scored.d_mean.round(3)
    (-0.127, array([ 0.119, -0.119]))
    """

    log_prob: Array
    d_mean: Array
    d_var: Array
    d_calibration: Array


def class_probabilities(
    logit_mean: ArrayLike,
    logit_var: ArrayLike,
    *,
    calibration: ArrayLike = 1.0,
    method: Method = "exact",
    n_samples: int = 100,
    random_state: int | np.random.Generator | None = None,
) -> Array:
    """Expected softmax of calibrated Gaussian logits, eq. (11) of the paper.

    Parameters
    ----------
    logit_mean : (K,) or (b, K)
    logit_var : scalar or (b,)
        Variance of every logit of a row; at least 0.
    calibration : scalar or (b,)
        Multiplies the logits (alpha in eq. (13)); positive.
    method : {"exact", "monte-carlo", "probit", "plug-in"}
        "exact" is the integral: relative error 1e-6 for probabilities above 1e-8 if
        calibration * std <= 100; for larger std the integrand's shape at 100 is scaled.
        "monte-carlo" is eq. (13). "probit" divides the logits by sqrt(1 + pi/8 variance).
        "plug-in" ignores the variance.
    n_samples : int
        Samples per row for "monte-carlo".
    random_state : int, Generator or None
        Seed for "monte-carlo".

    Returns
    -------
    (K,) or (b, K)
        Each row sums to 1.

    Examples
    --------
    >>> class_probabilities([2.0, 0.0, 0.0], 4.0).round(4)
    array([0.5865, 0.2068, 0.2068])
    """
    check.choice("method", method, METHODS)
    mean, std, _, shape = _calibrated(logit_mean, logit_var, calibration)
    if mean.shape[1] == 1:
        return np.ones(shape)
    if method == "exact":
        from kalstream.core import softmax_integral as kernels

        out = np.empty_like(mean)
        kernels.probabilities(mean, std, *kernels.table(), kernels.workspace(), out)
        out /= out.sum(axis=1, keepdims=True)
    elif method == "monte-carlo":
        n_samples = check.count("n_samples", n_samples)
        rng = check.generator("random_state", random_state)
        out = _monte_carlo(mean, std, n_samples, rng)
    elif method == "probit":
        out = _softmax(mean / probit_width(std**2)[:, None])
    else:
        out = _softmax(mean)
    return out.reshape(shape)


def label_log_prob(
    logit_mean: ArrayLike,
    logit_var: ArrayLike,
    labels: ArrayLike,
    *,
    calibration: ArrayLike = 1.0,
) -> LabelLogProb:
    """Exact log-probability of each row's label, eq. (11), and its analytic gradients.

    Always finite: where a probability would underflow, its logarithm is extrapolated linearly in
    the logits.

    Parameters
    ----------
    logit_mean : (K,) or (b, K)
    logit_var : scalar or (b,)
    labels : int or (b,) of int
        Class indices, 0 to K - 1.
    calibration : scalar or (b,)

    Returns
    -------
    LabelLogProb

    Examples
    --------
    >>> terms = label_log_prob([2.0, 0.0, 0.0], 4.0, 0)
    >>> float(terms.log_prob.round(4)), float(terms.d_var.round(4))
    (-0.5336, -0.0383)
    """
    mean, std, alpha, shape = _calibrated(logit_mean, logit_var, calibration)
    rows, n_classes = mean.shape
    index = check.numeric("labels", labels)
    if index.dtype.kind not in "iu" or index.shape != shape[:-1]:
        raise InvalidInput(
            f"labels have shape {index.shape} and dtype {index.dtype}; "
            f"give one integer per row, shape {shape[:-1]}"
        )
    index = np.ascontiguousarray(index.reshape(rows), dtype=np.int64)
    if index.min() < 0 or index.max() >= n_classes:
        raise InvalidInput(
            f"labels run from {index.min()} to {index.max()}; use 0 to {n_classes - 1}"
        )
    from kalstream.core import softmax_integral as kernels

    log_prob, d_var, d_mean = np.empty(rows), np.empty(rows), np.empty_like(mean)
    kernels.label_rows(
        mean, std, index, *kernels.table(), kernels.workspace(), log_prob, d_mean, d_var
    )
    # The kernel differentiates in alpha mu and alpha^2 s^2, eq. (13).
    d_calibration = ((d_mean * mean).sum(axis=1) + 2.0 * std**2 * d_var) / alpha
    d_mean *= alpha[:, None]
    d_var *= alpha**2
    return LabelLogProb(
        log_prob.reshape(shape[:-1]),
        d_mean.reshape(shape),
        d_var.reshape(shape[:-1]),
        d_calibration.reshape(shape[:-1]),
    )


def gaussian_log_density(target: ArrayLike, mean: ArrayLike, var: ArrayLike) -> Array:
    """Log-density of a Gaussian, eq. (6): there var is logit_var + noise_var.

    Parameters
    ----------
    target, mean, var : broadcastable; var positive

    Returns
    -------
    broadcast shape

    Examples
    --------
    >>> float(gaussian_log_density(1.0, 0.0, 1.0).round(4))
    -1.4189
    """
    y, mu, v = _floats("target", target), _floats("mean", mean), _floats("var", var)
    if not (v > 0.0).all():
        raise InvalidInput(f"var goes down to {v.min()}; every variance must be positive")
    _broadcast(target=y, mean=mu, var=v)
    with np.errstate(over="ignore", invalid="ignore"):  # a density of 0 has log -inf
        return np.asarray(-0.5 * (np.log(2.0 * np.pi) + np.log(v) + (y - mu) ** 2 / v))


def mixture_log_density(
    target: ArrayLike, means: ArrayLike, variances: ArrayLike, log_weights: ArrayLike
) -> Array:
    """Log-density of a mixture of J Gaussians (one per filter of a mixture of half-lives).

    Parameters
    ----------
    target : (...)
    means, variances : (J, ...)
    log_weights : (J,) or (J, ...)
        Logarithms of weights that sum to 1; -inf drops a component.

    Returns
    -------
    (...)

    Examples
    --------
    >>> float(mixture_log_density(0.0, [0.0, 9.0], [1.0, 1.0], np.log([0.5, 0.5])).round(4))
    -1.6121
    """
    terms = gaussian_log_density(target, means, variances)  # (J, ...)
    weights = _floats("log_weights", log_weights)
    if weights.ndim == 0 or terms.ndim == 0 or weights.shape[0] != terms.shape[0]:
        raise InvalidInput(
            f"log_weights have shape {weights.shape}; give one per component: {terms.shape[:1]}"
        )
    if weights.ndim == 1:
        weights = weights.reshape(-1, *[1] * (terms.ndim - 1))
    if not (weights < math.inf).all():
        raise InvalidInput("log_weights holds NaN or inf; give logarithms, -inf for a weight of 0")
    _broadcast(target=terms, log_weights=weights)
    total: Array = np.logaddexp.reduce(terms + weights, axis=0)
    return np.asarray(total)


def probit_width(var: Any) -> Any:
    """Divisor of logits of this variance in the probit approximation: sqrt(1 + pi/8 variance).

    For numbers, numpy arrays and torch tensors.

    Examples
    --------
    >>> round(probit_width(4.0), 4)
    1.6034
    """
    return (1.0 + math.pi / 8.0 * var) ** 0.5


def _broadcast(**arrays: Array) -> None:
    """Refuse arrays whose shapes cannot be broadcast."""
    try:
        np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InvalidInput(f"shapes cannot be broadcast: {shapes}; give shapes that can") from None


def _softmax(logits: Array) -> Array:
    """Softmax over the last axis, as a new array; it never overflows."""
    out = np.exp(logits - logits.max(axis=-1, keepdims=True))
    out /= out.sum(axis=-1, keepdims=True)
    return out


def _monte_carlo(mean: Array, std: Array, n_samples: int, rng: np.random.Generator) -> Array:
    """Eq. (13), a bounded number of logits at a time."""
    rows, n_classes = mean.shape
    out = np.zeros_like(mean)
    row_step = max(1, _CHUNK // (n_samples * n_classes))
    sample_step = min(n_samples, max(1, _CHUNK // n_classes))
    for start in range(0, rows, row_step):
        part = slice(start, start + row_step)
        for drawn in range(0, n_samples, sample_step):
            size = min(sample_step, n_samples - drawn)
            logits = rng.standard_normal((mean[part].shape[0], size, n_classes))
            logits *= std[part, None, None]
            logits += mean[part, None, :]
            out[part] += _softmax(logits).sum(axis=1)
    out /= n_samples
    return out / out.sum(axis=1, keepdims=True)


def _calibrated(
    logit_mean: ArrayLike, logit_var: ArrayLike, calibration: ArrayLike
) -> tuple[Array, Array, Array, tuple[int, ...]]:
    """Check and calibrate, eq. (13): mean (b, K), std (b,), alpha (b,), the shape to give back."""
    mean = _floats("logit_mean", logit_mean)
    shape = mean.shape
    if mean.ndim not in (1, 2) or mean.size == 0:
        raise InvalidInput(f"logit_mean has shape {shape}; give (K,) or (b, K), not empty")
    rows = 1 if mean.ndim == 1 else shape[0]
    var = _per_row("logit_var", logit_var, shape[:-1])
    alpha = _per_row("calibration", calibration, shape[:-1], positive=True)
    with np.errstate(over="ignore"):
        std = alpha * np.sqrt(var)
        mean = mean.reshape(rows, -1) * alpha[:, None]
    largest = max(np.abs(mean).max(), std.max())
    if not largest < _LARGEST:
        raise InvalidInput(
            f"logit_mean or logit_var reaches {largest} once calibrated; "
            f"give finite logits below {_LARGEST:g}"
        )
    return mean, std, alpha, shape


def _per_row(
    name: str, value: ArrayLike, batch: tuple[int, ...], *, positive: bool = False
) -> Array:
    """One value, or one per row, as finite non-negative floats (b,); (1,) for a single row."""
    array = _floats(name, value)
    if array.shape not in ((), batch):
        raise InvalidInput(f"{name} has shape {array.shape}; give a scalar or shape {batch}")
    if array.ndim == 0:  # no reductions, to keep a single prediction fast
        low = high = float(array)
        array = np.full(batch or 1, low)
    else:
        low, high = float(array.min()), float(array.max())
    if not 0.0 <= low <= high < math.inf or (positive and low == 0.0):
        bound = "above 0" if positive else "of at least 0"
        raise InvalidInput(f"{name} spans {low} to {high}; give finite values {bound}")
    return array


def _floats(name: str, value: ArrayLike) -> Array:
    return np.asarray(check.numeric(name, value), dtype=np.float64)
