"""Checks of what a checkpoint holds: arrays that compiled code reads must have the right shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kalstream.core.bank import Bank, BankArrays
from kalstream.core.checks import LARGEST_VARIANCE
from kalstream.core.motion import MotionBank, Pending
from kalstream.core.motion_reference import ORDERS
from kalstream.core.orders import MixedBank
from kalstream.core.state import Base, Posterior, Stored
from kalstream.features import OnlineScaler, RandomFourierFeatures

# As in a Posterior: products with features must not overflow.
_LARGEST_MEAN: Final = np.float64(1e150)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Attributes of an object whose class kalstream does not know; see `checkpoint.foreign`."""

    class_name: str
    attributes: dict[str, Any]


def need(condition: Any, part: str, what: str) -> None:
    """Refuse a part of a tree that is not what it must be."""
    if not condition:
        raise ValueError(f"{part} must be {what}")


def need_array(part: str, array: Any, shape: tuple[int, ...], dtype: Any = np.float64) -> None:
    """Refuse anything but an array of this shape and dtype, and floats that are not finite."""
    fits = isinstance(array, np.ndarray) and array.shape == shape and array.dtype == dtype
    need(fits, part, f"{np.dtype(dtype)} of shape {shape}")
    need(array.dtype.kind != "f" or np.isfinite(array).all(), part, "finite")


def _check_arrays(part: str, arrays: Any, scales: Any, n_scales: int) -> None:
    """Mean (..., m, K), cov (..., m, m) and scales (..., n) of the same filters."""
    mean = arrays.mean
    need(isinstance(mean, np.ndarray) and mean.size, f"{part}.mean", "an array with elements")
    *batch, m, _ = mean.shape
    need(mean.dtype in (np.float32, np.float64), f"{part}.mean", "float32 or float64")
    need_array(f"{part}.mean", mean, mean.shape, mean.dtype)
    need(np.abs(mean).max() <= _LARGEST_MEAN, f"{part}.mean", f"at most {_LARGEST_MEAN:g}")
    need_array(f"{part}.cov", arrays.cov, (*batch, m, m), mean.dtype)
    variances = np.einsum("...ii->...i", arrays.cov)
    need((variances >= 0.0).all(), f"{part}.cov", "without negative variances")
    need_array(f"{part}.scales", scales, (*batch, n_scales))
    need((scales >= 0.0).all(), f"{part}.scales", "at least 0")


def _check_filters(part: str, arrays: Any, rows: Any, coefficients: Any, scales: Any) -> None:
    """Mean (..., m, K), cov (..., m, m), pending rows and scales (..., 5) of the same filters."""
    _check_arrays(part, arrays, scales, 5)
    mean = arrays.mean
    *batch, m, n_outputs = mean.shape
    # Forgetting only lowers the scales of the mean and of the covariance.
    need((scales[..., :2] <= 1.0 + 1e-9).all(), f"{part}.scales", "at most 1 for mean and cov")
    if rows is None and coefficients is None:
        return
    need(isinstance(rows, np.ndarray) and rows.ndim == mean.ndim, f"{part}.rows", "an array")
    need_array(f"{part}.rows", rows, (*batch, rows.shape[-2], m), mean.dtype)
    shape = (*batch, rows.shape[-2], n_outputs)
    need_array(f"{part}.coefficients", coefficients, shape, mean.dtype)


def _check_stored(stored: Stored) -> None:
    need(isinstance(stored.base, Base), "Stored.base", "a Base")
    need(np.ndim(stored.base.mean) == 2, "Stored.mean", "of two dimensions")
    scales = stored.mean_scale, stored.scale, stored.shift, stored.ceiling, stored.folds
    need(all(type(scale) is float for scale in scales), "Stored.scales", "five floats")
    order = stored.base.mean.flags.c_contiguous and stored.base.cov.flags.f_contiguous
    need(order, "Stored.base", "in the order that BLAS takes")
    _check_filters("Stored", stored.base, stored.rows, stored.coefficients, np.array(scales))


def _check_bank(bank: Bank) -> None:
    need(isinstance(bank.stored, BankArrays), "Bank.stored", "BankArrays")
    need(np.ndim(bank.arrays.mean) == 3, "Bank.mean", "of three dimensions")
    order = bank.arrays.mean.flags.c_contiguous and bank.arrays.cov.flags.c_contiguous
    need(order, "Bank.stored", "in C order")
    _check_filters("Bank", bank.arrays, bank.rows, bank.coefficients, bank.scales)


def _check_motion(bank: MotionBank) -> None:
    need(isinstance(bank.stored, BankArrays), "MotionBank.stored", "BankArrays")
    arrays, order, pending = bank.arrays, bank.order, bank.pending
    need(np.ndim(arrays.mean) == 3, "MotionBank.mean", "of three dimensions")
    in_order = arrays.mean.flags.c_contiguous and arrays.cov.flags.c_contiguous
    need(in_order, "MotionBank.stored", "in C order")
    _check_arrays("MotionBank", arrays, bank.scales, 2)
    need(type(order) is int and order in ORDERS, "MotionBank.order", "1, 2 or 3")
    n_filters, size, n_outputs = arrays.mean.shape
    need(size % order == 0, "MotionBank.mean", f"of {order} components")
    for name, most in (("half_lives", math.inf), ("prior_vars", LARGEST_VARIANCE)):
        values = getattr(bank, name)
        fits = isinstance(values, tuple) and len(values) == n_filters
        fits = fits and all(type(value) is float and 0.0 < value <= most for value in values)
        need(fits, f"MotionBank.{name}", f"{n_filters} floats above 0")
    elapsed = bank.elapsed
    need(type(elapsed) is float and 0.0 <= elapsed < math.inf, "MotionBank.elapsed", "at least 0")
    if pending is None:
        return
    need(isinstance(pending, Pending), "MotionBank.pending", "Pending or None")
    n = len(np.atleast_1d(pending.ages))
    shapes = {
        "ages": (n,),
        "features": (n, size // order),
        "gains": (n_filters, n, size),
        "factor": (n_filters, n, n),
        "innovations": (n_filters, n, n_outputs),
        "noise": (n_filters, n, order),
    }
    for name, shape in shapes.items():
        array = getattr(pending, name)
        need_array(f"Pending.{name}", array, shape)
        need(array.flags.c_contiguous, f"Pending.{name}", "in C order")
    need(n > 0 and (pending.ages >= 0.0).all(), "Pending.ages", "at least 0")
    diagonals = np.einsum("jii->ji", pending.factor)
    need((diagonals > 0.0).all(), "Pending.factor", "above 0 on its diagonal")


def _check_mixed(bank: MixedBank) -> None:
    parts, orders = bank.banks, bank.orders
    fits = isinstance(parts, tuple) and all(isinstance(each, Bank | MotionBank) for each in parts)
    need(fits and len(parts) > 0, "MixedBank.banks", "banks")
    fits = isinstance(orders, tuple) and all(type(o) is int and o in ORDERS for o in orders)
    need(fits and len(orders) > 0, "MixedBank.orders", "1, 2 or 3 for each filter")


def _check_scaler(scaler: OnlineScaler) -> None:
    clip, half_life = scaler.clip, scaler.half_life
    need(isinstance(clip, float | int) and 0 < clip < math.inf, "OnlineScaler.clip", "above 0")
    need(isinstance(half_life, float | int) and half_life > 0, "OnlineScaler.half_life", "above 0")
    if not hasattr(scaler, "count_"):
        need(not hasattr(scaler, "n_features_in_"), "OnlineScaler.count_", "there")
        return
    shape = (scaler.n_features_in_,)
    for name in ("count_", "mean_", "_spread"):
        need_array(f"OnlineScaler.{name}", getattr(scaler, name), shape)
    need((scaler.count_ >= 0.0).all(), "OnlineScaler.count_", "at least 0")
    need((scaler._spread >= 0.0).all(), "OnlineScaler._spread", "at least 0")


def _check_waves(waves: RandomFourierFeatures) -> None:
    if not hasattr(waves, "scaler_"):
        learned = {"projection_", "n_features_in_"} & {*vars(waves)}
        need(not learned, "RandomFourierFeatures.scaler_", "there")
        return
    need(isinstance(waves.scaler_, OnlineScaler), "RandomFourierFeatures.scaler_", "a scaler")
    need(hasattr(waves.scaler_, "count_"), "RandomFourierFeatures.scaler_", "fitted")
    part = "RandomFourierFeatures.projection_"
    need(np.ndim(waves.projection_) == 2, part, "of two dimensions")
    shape = (waves.n_features_in_, np.shape(waves.projection_)[1])
    need_array(part, waves.projection_, shape)
    need(shape[1] > 0, part, "with at least one direction")
    size = waves._size
    need(
        isinstance(size, float) and 0.0 < size < math.inf, "RandomFourierFeatures._size", "above 0"
    )


def _check_foreign(saved: Foreign) -> None:
    need(isinstance(saved.class_name, str), "Foreign.class_name", "a string")
    need(isinstance(saved.attributes, dict), "Foreign.attributes", "a dict")


# Compiled code does not look whether arrays are as long as it takes them to be. What a dataclass
# checks when it is made (`FilterState`, `MixtureState`, `MovingState`, `Stack`, policies) is not
# checked again.
CHECKS: dict[type, Callable[[Any], None]] = {
    Stored: _check_stored,
    Bank: _check_bank,
    MotionBank: _check_motion,
    MixedBank: _check_mixed,
    Posterior: lambda p: need(isinstance(p.stored, Stored), "Posterior.stored", "a Stored"),
    Foreign: _check_foreign,
    OnlineScaler: _check_scaler,
    RandomFourierFeatures: _check_waves,
}
