"""Fused kernels (Triton) on a GPU: for learned forgetting, and for the softmax likelihood.

The mathematics of the first is that of `core.softmax_integral.label_terms`: classes are spread onto
a lattice, and all sums over classes become correlations with the lattice's log F and rho.
`predictive.slopes` uses these kernels if there are CUDA and Triton. Its plain version is the
reference. That of `scan_softmax` is `filter.plain_scan_softmax`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kalstream._optional import require
from kalstream.core import softmax_integral as lattice
from kalstream.core.guard import ROUNDING_LIMITS
from kalstream.core.likelihoods import LIKELIHOODS
from kalstream.core.single import LARGEST_DELTA

if TYPE_CHECKING:
    from kalstream.deep.filter import Products
    from kalstream.deep.kalman import KalmanHead

triton: Any = require("triton", "torch")
tl: Any = require("triton.language", "torch")

Tables = tuple[Tensor, Tensor]  # of the lattice, for all std

_LIMIT = 256
_SPAN = _LIMIT + lattice.POINTS
_NODES = (lattice.LATTICE - 1) // 2
_WIDTH = lattice.LATTICE + _SPAN  # of a row of the lattice, padded with zeros
# Triton treats a Python number as float32, so float64 constants are passed in an array.
_STEP, _STD_UNIT, _STD_STEP, _LEAST, _SHIFT, _CHANGE, _PRIOR, _NOISE, _RATE = (
    tl.constexpr(k) for k in range(9)
)
_PROBIT, _LEAST_CURVATURE, _LEAST_VAR = (tl.constexpr(k) for k in range(3))
# Rows that one call of the scan kernel learns, one after the other.
_SCAN_ROWS = 32


@triton.jit
def _weight(t, k: tl.constexpr):  # type: ignore[no-untyped-def]
    """Weight k of the 8-point rule (points -3 to 4) at fraction t."""
    out = t * 0.0 + 1.0
    scale = 1.0
    for j in tl.static_range(8):
        if j != k:
            out = out * (t - (j - 3.0))
            scale = scale * (k - j)
    return out / scale


@triton.jit
def _far(gap, var):  # type: ignore[no-untyped-def]
    return tl.where(gap < 2.0 * var, gap * gap / (4.0 * var), gap - var)


@triton.jit
def _locate(gap, per_step, var, least, LIMIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Place of a class ``gap`` below the top one: offset, fraction, logarithm of its factor."""
    steps = gap * per_step
    near = steps < LIMIT
    offset = tl.where(near, tl.floor(steps), LIMIT * 1.0)
    v = tl.maximum(var, least)
    log_factor = tl.where(near, 0.0, _far(LIMIT / per_step, v) - _far(gap, v))
    return offset.to(tl.int32), tl.where(near, steps - offset, 0.0), tl.minimum(log_factor, 0.0)


@triton.jit
def _spread_kernel(  # type: ignore[no-untyped-def]
    mean_ptr, known_ptr, top_ptr, var_ptr, label_ptr, out_ptr, c_ptr, n_classes,
    LIMIT: tl.constexpr, SPAN: tl.constexpr, KAPPA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Spread the known classes except the label onto the row's (2, SPAN): ones, and lifts."""
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(label_ptr + row)
    there = k < n_classes
    known = tl.load(known_ptr + row * n_classes + k, mask=there, other=0) != 0
    there = there & known & (k != label)
    mean = tl.load(mean_ptr + row * n_classes + k, mask=there, other=0.0)
    pivot = tl.load(mean_ptr + row * n_classes + label)
    top, var = tl.load(top_ptr + row), tl.load(var_ptr + row)
    per_step = 1.0 / (tl.load(c_ptr + _STEP) * tl.sqrt(1.0 + var / KAPPA))
    gap = top - mean
    offset, t, log_factor = _locate(gap, per_step, var, tl.load(c_ptr + _LEAST), LIMIT)
    factor = tl.exp(log_factor)
    at = out_ptr + row * 2 * SPAN + offset
    for m in tl.static_range(8):
        w = factor * _weight(t, m)
        tl.atomic_add(at + m, w, mask=there)
        tl.atomic_add(at + SPAN + m, w * (mean - pivot), mask=there)


# over 80 lines: cut into several kernels, each part would pass the row's vectors through memory.
@triton.jit
def _slopes_kernel(  # type: ignore[no-untyped-def]
    mean_ptr, top_ptr, var_ptr, label_ptr, there_ptr, spread_ptr, ell_ptr, slope_ptr,
    scratch_ptr, along_ptr, by_var_ptr, log_p_ptr, c_ptr, n_classes, WHOLE: tl.constexpr,
    LIMIT: tl.constexpr, SPAN: tl.constexpr, NODES: tl.constexpr, LATTICE: tl.constexpr,
    WIDTH: tl.constexpr, LEFT: tl.constexpr, KAPPA: tl.constexpr, STD_MAX: tl.constexpr,
    WIDE: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """One row: its lattice, E at the nodes, and the two derivatives."""
    row = tl.program_id(0)
    var = tl.load(var_ptr + row)
    std = tl.sqrt(tl.maximum(var, tl.load(c_ptr + _LEAST)))
    # Store log F and rho of this std on the lattice, padded with zeros, in the row's scratch.
    r = tl.minimum(std, STD_MAX) / tl.load(c_ptr + _STD_UNIT)
    place = tl.log(r + tl.sqrt(r * r + 1.0)) / tl.load(c_ptr + _STD_STEP)
    first = tl.floor(place)
    t = place - first
    node = first.to(tl.int32) - LEFT
    i = tl.arange(0, WIDE)
    inside = i < LATTICE
    ell = tl.zeros([WIDE], tl.float64)
    slope = tl.zeros([WIDE], tl.float64)
    for m in tl.static_range(8):
        w = _weight(t, m)
        base = tl.abs(node + m) * LATTICE
        ell += w * tl.load(ell_ptr + base + i, mask=inside, other=0.0)
        slope += w * tl.load(slope_ptr + base + i, mask=inside, other=0.0)
    log_cdf = tl.where(inside, -tl.exp(ell), 0.0)
    rho = slope * log_cdf
    scratch = scratch_ptr + row * 2 * WIDTH
    tl.store(scratch + i, log_cdf, mask=i < WIDTH)
    tl.store(scratch + WIDTH + i, tl.where(inside, rho, 0.0), mask=i < WIDTH)
    tl.debug_barrier()

    label = tl.load(label_ptr + row)
    pivot, top = tl.load(mean_ptr + row * n_classes + label), tl.load(top_ptr + row)
    step = tl.load(c_ptr + _STEP)
    per_step = 1.0 / (step * tl.sqrt(1.0 + var / KAPPA))
    gap = top - pivot
    offset, fraction, log_factor = _locate(gap, per_step, var, tl.load(c_ptr + _LEAST), LIMIT)
    factor = tl.exp(log_factor)

    q = tl.arange(0, Q)
    at = 2 * q
    is_node = q < NODES
    total = tl.zeros([Q], tl.float64)
    pull = tl.zeros([Q], tl.float64)
    square = tl.zeros([Q], tl.float64)
    lift = tl.zeros([Q], tl.float64)
    spread = spread_ptr + row * 2 * SPAN
    for s in range(SPAN):
        a = tl.load(spread + s)
        b = tl.load(spread + SPAN + s)
        f = tl.load(scratch + at + s, mask=is_node, other=0.0)
        p = tl.load(scratch + WIDTH + at + s, mask=is_node, other=0.0)
        total += a * f
        pull += a * p
        square += a * p * p
        lift += b * p
    rho_label = tl.zeros([Q], tl.float64)
    growth = tl.zeros([Q], tl.float64)
    shift, per_shift = tl.load(c_ptr + _SHIFT), tl.load(c_ptr + _CHANGE)
    for m in tl.static_range(8):
        w = _weight(fraction, m)
        change = (_weight(fraction + shift, m) - _weight(fraction - shift, m)) * per_shift
        f = tl.load(scratch + at + offset + m, mask=is_node, other=0.0)
        p = tl.load(scratch + WIDTH + at + offset + m, mask=is_node, other=0.0)
        total += factor * w * f
        rho_label += w * p
        growth += change * p
    e = tl.where(is_node, tl.exp(tl.minimum(total, 0.0)), 0.0)
    w = rho_label * e
    mass = tl.sum(w, 0)
    safe = tl.where(rho_label > 0.0, rho_label, 1.0)
    bend = factor * rho_label + growth / safe
    lift_sum = tl.sum(w * lift, 0)
    var_sum = tl.sum(w * (square - pull * pull - 2.0 * pull * bend), 0)
    per_logit = per_step * step
    ok = (tl.load(there_ptr + row) != 0) & (mass > 0.0)
    safe_mass = tl.where(ok, mass, 1.0)
    tl.store(along_ptr + row, tl.where(ok, -per_logit * lift_sum / safe_mass, 0.0))
    value = 0.5 * per_logit * per_logit * var_sum / safe_mass
    tl.store(by_var_ptr + row, tl.where(ok, value, 0.0))
    if WHOLE:
        # For the gradient by every mean: correlate w and rho at the places of the classes.
        tl.store(log_p_ptr + row, tl.minimum(tl.log(2.0 * step * mass) + log_factor, 0.0))
        tl.store(scratch + q, -per_logit * w / safe_mass, mask=is_node)
        tl.debug_barrier()
        at_span = tl.arange(0, 2 * Q)
        in_span = at_span < SPAN
        total_by = tl.zeros([2 * Q], tl.float64)
        for node_number in range(NODES):
            weight = tl.load(scratch + node_number)
            here = tl.load(scratch + WIDTH + 2 * node_number + at_span, mask=in_span, other=0.0)
            total_by += weight * here
        tl.store(spread_ptr + row * 2 * SPAN + at_span, total_by, mask=in_span)


@triton.jit
def _gradient_kernel(  # type: ignore[no-untyped-def]
    mean_ptr, top_ptr, var_ptr, label_ptr, spread_ptr, out_ptr, c_ptr, n_classes,
    LIMIT: tl.constexpr, SPAN: tl.constexpr, KAPPA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Derivatives by the means of all classes; 0 for the label."""
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k < n_classes
    mean = tl.load(mean_ptr + row * n_classes + k, mask=inside, other=0.0)
    top, var = tl.load(top_ptr + row), tl.load(var_ptr + row)
    per_step = 1.0 / (tl.load(c_ptr + _STEP) * tl.sqrt(1.0 + var / KAPPA))
    gap = top - mean
    offset, t, log_factor = _locate(gap, per_step, var, tl.load(c_ptr + _LEAST), LIMIT)
    at = spread_ptr + row * 2 * SPAN + offset
    value = tl.zeros([BLOCK], tl.float64)
    for m in tl.static_range(8):
        value += _weight(t, m) * tl.load(at + m, mask=inside, other=0.0)
    value = value * tl.exp(log_factor)
    value = tl.where(k == tl.load(label_ptr + row), 0.0, value)
    tl.store(out_ptr + row * n_classes + k, value, mask=inside)


@triton.jit
def _begin_kernel(  # type: ignore[no-untyped-def]
    deltas_ptr, gamma_ptr, log_kept_ptr, n, ALL_MOVE: tl.constexpr, B: tl.constexpr
):
    """Forgetting coefficients of the rows, and logarithms of their running products."""
    i = tl.arange(0, B)
    inside = i < n
    moves = inside & (ALL_MOVE | (i == n - 1))
    delta = tl.where(moves, tl.load(deltas_ptr + i, mask=inside, other=0.0), 0.0)
    tl.store(gamma_ptr + i, tl.exp(-0.5 * delta), mask=inside)
    tl.store(log_kept_ptr + i, -0.5 * tl.cumsum(delta, 0), mask=inside)


@triton.jit
def _joint_kernel(  # type: ignore[no-untyped-def]
    gram_cov_ptr, gram_eye_ptr, log_kept_ptr, joint_ptr, c_ptr, n, B: tl.constexpr
):
    """One row of the joint covariance of the targets."""
    prior_var, noise_var = tl.load(c_ptr + _PRIOR), tl.load(c_ptr + _NOISE)
    row = tl.program_id(0)
    col = tl.arange(0, B)
    inside = col < n
    first, last = tl.minimum(row, col), tl.maximum(row, col)
    log_first = tl.load(log_kept_ptr + first, mask=inside, other=0.0)
    log_last = tl.load(log_kept_ptr + last, mask=inside, other=0.0)
    at = first * n + last
    g = tl.load(gram_cov_ptr + at, mask=inside, other=0.0).to(tl.float64)
    h = tl.load(gram_eye_ptr + at, mask=inside, other=0.0).to(tl.float64)
    kept2 = tl.exp(2.0 * log_first)
    value = tl.exp(log_last - log_first) * (kept2 * g + (1.0 - kept2) * prior_var * h)
    value += tl.where(col == row, noise_var, 0.0)
    tl.store(joint_ptr + row * n + col, value, mask=inside)


@triton.jit
def _expected_kernel(  # type: ignore[no-untyped-def]
    base_ptr, label_ptr, log_kept_ptr, out_ptr, n_classes, B: tl.constexpr
):
    """Target of one row minus its prior mean."""
    row = tl.program_id(0)
    k = tl.arange(0, B)
    inside = k < n_classes
    kept = tl.exp(tl.load(log_kept_ptr + row))
    base = tl.load(base_ptr + row * n_classes + k, mask=inside, other=0.0).to(tl.float64)
    target = tl.where(k == tl.load(label_ptr + row), 1.0, 0.0)
    tl.store(out_ptr + row * n_classes + k, target - kept * base, mask=inside)


@triton.jit
def _moments_kernel(  # type: ignore[no-untyped-def]
    scaled_ptr, factor_ptr, gram_eye_ptr, gamma_ptr, deltas_ptr, start_ptr, label_ptr, seen_ptr,
    mean_ptr, var_ptr, top_ptr, there_ptr, spread_ptr, c_ptr, n, n_classes,
    COLUMNS: tl.constexpr, SCANNED: tl.constexpr, ALL_MOVE: tl.constexpr, SPAN2: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """Moments of a row, predicted with the delta before it; also clears its lattice.

    If SCANNED, ``scaled`` and ``factor`` are means and variances with the new delta.
    """
    prior_var, noise_var = tl.load(c_ptr + _PRIOR), tl.load(c_ptr + _NOISE)
    row = tl.program_id(0)
    k = tl.arange(0, B)
    inside = k < n_classes
    label = tl.load(label_ptr + row)
    # The result of a triangular solve is stored column by column.
    at = row + k * n if COLUMNS else row * n_classes + k
    scaled = tl.load(scaled_ptr + at, mask=inside, other=0.0).to(tl.float64)
    deviation = tl.load(factor_ptr + (row if SCANNED else row * (n + 1))).to(tl.float64)
    size = tl.load(gram_eye_ptr + row * (n + 1)).to(tl.float64) * prior_var
    gamma = tl.load(gamma_ptr + row)
    before = tl.load(start_ptr)
    if row > 0:
        before = tl.load(deltas_ptr + row - 1)
    old = tl.exp(-0.5 * before)
    if not ALL_MOVE:
        old = tl.where(row == n - 1, tl.exp(-0.5 * tl.load(start_ptr)), 1.0)
    if SCANNED:
        mean, own = old * scaled / gamma, deviation
    else:
        target = tl.where(k == label, 1.0, 0.0)
        mean = old * (target - deviation * scaled) / gamma
        own = deviation * deviation - noise_var
    filtered = (own - (1.0 - gamma * gamma) * size) / (gamma * gamma)
    var = tl.maximum(old * old * filtered + (1.0 - old * old) * size, 0.0)
    tl.store(mean_ptr + row * n_classes + k, mean, mask=inside)
    tl.store(var_ptr + row, var)
    known = tl.load(seen_ptr + row * n_classes + k, mask=inside, other=0) != 0
    own_known = tl.max(tl.where(known & (k == label), 1, 0), 0)
    moves = ALL_MOVE | (row == n - 1)
    there = (own_known > 0) & (tl.sum(tl.where(known, 1, 0), 0) > 1) & moves
    tl.store(there_ptr + row, there.to(tl.uint8))
    shown = inside & (known | (k == label))
    tl.store(top_ptr + row, tl.max(tl.where(shown, mean, -1e300), 0))
    tl.store(spread_ptr + row * SPAN2 + k, tl.zeros([B], tl.float64), mask=k < SPAN2)


@triton.jit
def _end_kernel(  # type: ignore[no-untyped-def]
    along_ptr, by_var_ptr, gram_eye_ptr, var_ptr, start_ptr, deltas_ptr, left_ptr, c_ptr, n,
    LARGEST: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """New deltas from the slopes, clipped at 0, and their distance from the last ones."""
    prior_var, rate = tl.load(c_ptr + _PRIOR), tl.load(c_ptr + _RATE)
    i = tl.arange(0, B)
    inside = i < n
    size = tl.load(gram_eye_ptr + i * (n + 1), mask=inside, other=0.0).to(tl.float64) * prior_var
    var = tl.load(var_ptr + i, mask=inside, other=0.0)
    by_var = tl.load(by_var_ptr + i, mask=inside, other=0.0)
    slope = by_var * (size - var) - 0.5 * tl.load(along_ptr + i, mask=inside, other=0.0)
    start = tl.load(start_ptr)
    free = start + tl.cumsum(rate * slope, 0)
    lowest = tl.associative_scan(free, 0, _least)
    now = free - tl.minimum(lowest, 0.0)
    was = tl.load(deltas_ptr + i, mask=inside, other=0.0)
    left = tl.max(tl.where(inside, tl.abs(now - was), 0.0), 0)
    largest = tl.max(tl.where(inside, now, 0.0), 0)
    tl.store(left_ptr, tl.where(largest <= LARGEST, left / (1.0 + largest), 1e300))
    tl.store(deltas_ptr + i, now, mask=inside)


@triton.jit
def _scan_kernel(  # type: ignore[no-untyped-def]
    rest_ptr, mean_ptr, label_ptr, shown_ptr, others_ptr, factor_ptr, scaled_ptr, var_ptr, c_ptr,
    first, count, n, n_classes, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Learn ``count`` rows from ``first`` on through the softmax, one after the other.

    Each program does so for one filter.
    """
    number = tl.program_id(0).to(tl.int64)
    rest_ptr += number * n * n
    factor_ptr += number * n * n
    mean_ptr += number * n * n_classes
    scaled_ptr += number * n * n_classes
    var_ptr += number * n
    probit, least = tl.load(c_ptr + _PROBIT), tl.load(c_ptr + _LEAST_CURVATURE)
    least_var = tl.load(c_ptr + _LEAST_VAR)
    k = tl.arange(0, B)
    inside = k < n_classes
    i = tl.arange(0, R)
    rows = first + i
    there = rows < n
    both = there[:, None] & there[None, :]
    tile = tl.load(rest_ptr + rows[:, None] * n + rows[None, :], mask=both, other=0.0)
    for r in range(count):
        row = first + r
        mean = tl.load(mean_ptr + row * n_classes + k, mask=inside, other=0.0)
        for j in range(first, row):
            innovation = tl.load(scaled_ptr + j * n_classes + k, mask=inside, other=0.0)
            mean += tl.load(factor_ptr + row * n + j) * innovation
        tl.store(mean_ptr + row * n_classes + k, mean, mask=inside)
        column = tl.sum(tl.where(i[None, :] == r, tile, 0.0), 1)
        var = tl.sum(tl.where(i == r, column, 0.0), 0)
        tl.store(var_ptr + row, var)
        # Linearise the softmax; one class alone is compared with one whose logit is 0.
        own = k == tl.load(label_ptr + row)
        shown = tl.load(shown_ptr + row * n_classes + k, mask=inside, other=0) != 0
        n_others = tl.load(others_ptr + row)
        alone = n_others == 0.0
        shrink = 1.0 / tl.sqrt(1.0 + probit * tl.maximum(var, 0.0))
        top = tl.max(tl.where(shown, mean, float("-inf")), 0)
        top = tl.where(alone, tl.maximum(top, 0.0), top)
        odds = tl.where(shown, tl.exp(shrink * (mean - top)), 0.0)
        other = tl.where(alone, tl.exp(-shrink * top), 0.0)
        total = tl.sum(odds, 0) + other
        share = 1.0 / total  # one division, which takes long, for all classes
        p, q = odds * share, other * share
        spread = tl.sum(p * (1.0 - p), 0) + q * (1.0 - q)
        curvature = shrink * shrink * tl.maximum(spread / tl.maximum(n_others, 1.0), least)
        noise_var = 1.0 / curvature
        sound = var >= least_var * noise_var
        deviation = tl.sqrt(tl.where(sound, var + noise_var, -1.0))  # NaN if not
        # eq. (8)
        per_deviation = 1.0 / deviation
        residual = (tl.where(own, 1.0, 0.0) - p) * (shrink * noise_var)
        tl.store(scaled_ptr + row * n_classes + k, residual * per_deviation, mask=inside)
        below = tl.where(i > r, column * per_deviation, 0.0)
        own_column = tl.where(i == r, deviation, below)
        tl.store(factor_ptr + rows * n + row, own_column, mask=there & (i >= r))
        tile -= below[:, None] * below[None, :]
        tl.debug_barrier()  # the rows after it read what was stored


@triton.jit
def _least(a, b):  # type: ignore[no-untyped-def]
    return tl.minimum(a, b)


class Rounds:
    """One round of `KalmanHead._rounds` for learned coefficients, with its own buffers.

    Parameters
    ----------
    head : KalmanHead
    n_rows : int

    Attributes
    ----------
    deltas : (b,)
        Set them to the delta before the chunk; each round brings them closer to the solution.
    left : ()
        Relative change in the last round.
    """

    def __init__(self, head: KalmanHead, n_rows: int) -> None:
        k, device, dtype = head.n_classes, head.mean.device, head.mean.dtype
        self.head, self.n, self.k = head, n_rows, k

        def new(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.deltas, self.gamma, self.log_kept = new(n_rows), new(n_rows), new(n_rows)
        self.var, self.top, self.along, self.by_var = (new(n_rows) for _ in range(4))
        self.there, self.left = new(n_rows, dtype=torch.uint8), new()
        self.softmax = LIKELIHOODS[head.likelihood].is_softmax
        if self.softmax:
            dtype = torch.float64
        self.joint, self.expected = new(n_rows, n_rows, dtype=dtype), new(n_rows, k, dtype=dtype)
        self.scanned = self.expected, self.var
        self.mean, self.spread = new(n_rows, k), new(n_rows, 2, _SPAN)
        self.scratch = new(n_rows, 2, _WIDTH)
        ell, slope = lattice.table()
        self.tables = torch.tensor(ell, device=device), torch.tensor(slope, device=device)
        self.constants = constants(device, head.prior_var, head.noise_var, head.gamma_lr)

    def factorize(self, chunk: Products, labels: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The factor (b, b) and the innovations (b, K) for the current deltas.

        ``seen`` (b, K) are the classes known to each row, as uint8; only the softmax reads them.
        """
        head, n, k = self.head, self.n, self.k
        rows, all_move = triton.next_power_of_2(n), head.transition == "example"
        _begin_kernel[(1,)](self.deltas, self.gamma, self.log_kept, n, ALL_MOVE=all_move, B=rows)
        _joint_kernel[(n,)](
            chunk.gram_cov, chunk.gram_eye, self.log_kept, self.joint, self.constants, n, B=rows
        )
        if self.softmax:  # the joint covariance has no noise yet: noise_var is 0
            prior_mean = self.log_kept.exp()[:, None] * chunk.base_mean
            scan = scan_softmax(self.joint[None], prior_mean[None], labels, seen)
            factor, scaled, *moments = (each[0] for each in scan)
            self.scanned = moments[0], moments[1]
            return factor, scaled
        _expected_kernel[(n,)](
            chunk.base_mean, labels, self.log_kept, self.expected, k, B=triton.next_power_of_2(k)
        )
        factor, _ = torch.linalg.cholesky_ex(self.joint)
        return factor, torch.linalg.solve_triangular(factor, self.expected, upper=False)

    def moments(self, factor: Tensor, scaled: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Means (b, K) and variances (b,) of the rows, from the results of `factorize`."""
        if self.softmax:
            return self.scanned
        deviation = factor.diagonal()
        targets = torch.nn.functional.one_hot(labels, self.k)
        return targets - deviation[:, None] * scaled, deviation.square() - self.head.noise_var

    def round(self, chunk: Products, labels: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Improve the deltas; ``seen`` (b, K) are the classes known to each row, as uint8.

        Returns
        -------
        factor, innovations : (b, b), (b, K)
            For the deltas before the round.
        """
        head, n, k = self.head, self.n, self.k
        factor, scaled = self.factorize(chunk, labels, seen)
        rows, all_move = triton.next_power_of_2(n), head.transition == "example"
        means, variances = self.scanned if self.softmax else (scaled, factor)
        columns = means.stride(0) == 1 and k > 1
        wide = max(triton.next_power_of_2(k), triton.next_power_of_2(2 * _SPAN))
        _moments_kernel[(n,)](
            means, variances, chunk.gram_eye, self.gamma, self.deltas, head.delta, labels, seen,
            self.mean, self.var, self.top, self.there, self.spread, self.constants, n, k,
            COLUMNS=columns, SCANNED=self.softmax, ALL_MOVE=all_move, SPAN2=2 * _SPAN, B=wide,
        )  # fmt: skip
        _spread_and_slopes(
            self.mean, self.var, labels, seen, self.there, self.top, self.spread, self.scratch,
            self.along, self.by_var, self.constants, self.tables,
        )  # fmt: skip
        _end_kernel[(1,)](
            self.along, self.by_var, chunk.gram_eye, self.var, head.delta, self.deltas, self.left,
            self.constants, n, LARGEST=LARGEST_DELTA, B=rows,
        )  # fmt: skip
        return factor, scaled


def scan_softmax(
    joint: Tensor, prior_mean: Tensor, labels: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`filter.scan_softmax_bank`, in blocks of rows: a kernel inside, products between them."""
    j, n, k = prior_mean.shape
    rest, mean = joint.clone().contiguous(), prior_mean.clone().contiguous()
    factor, scaled = torch.zeros_like(rest), torch.zeros_like(mean)
    var = torch.empty_like(rest[..., 0])
    shown = seen.to(torch.uint8).scatter(1, labels[:, None], 1)
    others, wide = shown.sum(1, dtype=torch.float64) - 1.0, triton.next_power_of_2(k)
    size = min(_SCAN_ROWS, max(16, triton.next_power_of_2(n)))
    for first in range(0, n if j else 0, size):
        _scan_kernel[(j,)](
            rest, mean, labels, shown, others, factor, scaled, var, scan_constants(mean.device),
            first, min(size, n - first), n, k, R=size, B=wide, num_warps=4 if wide <= 512 else 8,
        )  # fmt: skip
        done, later = slice(first, first + size), slice(first + size, n)
        if first + size < n:
            own = factor[:, done, done].mT
            below = torch.linalg.solve_triangular(own, rest[:, later, done], upper=True, left=False)
            factor[:, later, done] = below
            rest[:, later, later] -= below @ below.mT
            mean[:, later] += below @ scaled[:, done]
    return factor, scaled, mean, var


@lru_cache(maxsize=8)
def scan_constants(device: torch.device) -> Tensor:
    """Constants of the scan kernel, as float64."""
    values = math.pi / 8.0, lattice.LEAST_CURVATURE, -ROUNDING_LIMITS[0]
    return torch.tensor(values, dtype=torch.float64, device=device)


def slopes(
    mean: Tensor, var: Tensor, labels: Tensor, known: Tensor, there: Tensor, tables: Tables,
    log_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`predictive.slopes` for the rows that are ``there``, with the lattice's ``tables``.

    ``log_p`` (b,), float64, is filled with their log-probabilities if given.
    """
    b = len(mean)
    mean, var = mean.double().contiguous(), var.double().contiguous()
    # The top class is at least as high as the label, known or not.
    shown = known.scatter(1, labels[:, None], True)
    top = mean.masked_fill(~shown, -math.inf).max(1).values
    spread = torch.zeros(b, 2, _SPAN, dtype=torch.float64, device=mean.device)
    scratch = torch.empty(b, 2, _WIDTH, dtype=torch.float64, device=mean.device)
    along, by_var = torch.empty_like(var), torch.empty_like(var)
    masks, there = known.to(torch.uint8).contiguous(), there.to(torch.uint8)
    _spread_and_slopes(
        mean, var, labels, masks, there, top, spread, scratch, along, by_var,
        constants(mean.device), tables, log_p,
    )  # fmt: skip
    return along, by_var


def label_terms(
    mean: Tensor, var: Tensor, labels: Tensor, tables: Tables
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities (b,) of labels, and their derivatives by mean (b, K) and var (b,)."""
    b, n_classes = mean.shape
    mean, var = mean.double().contiguous(), var.double().contiguous()
    top = mean.max(1).values
    spread = torch.zeros(b, 2, _SPAN, dtype=torch.float64, device=mean.device)
    scratch = torch.empty(b, 2, _WIDTH, dtype=torch.float64, device=mean.device)
    along, by_var, log_p = (torch.empty_like(var) for _ in range(3))
    all_known = torch.ones(b, n_classes, dtype=torch.uint8, device=mean.device)
    own = constants(mean.device)
    _spread_and_slopes(
        mean, var, labels, all_known, all_known, top, spread, scratch, along, by_var, own, tables,
        log_p,
    )  # fmt: skip
    by_mean = torch.empty_like(mean)
    _gradient_kernel[(b, triton.cdiv(n_classes, 256))](
        mean, top, var, labels, spread, by_mean, own, n_classes, LIMIT=_LIMIT, SPAN=_SPAN,
        KAPPA=lattice.KAPPA, BLOCK=256,
    )  # fmt: skip
    by_mean.scatter_(1, labels[:, None], -by_mean.sum(1, keepdim=True))
    return log_p, by_mean, by_var


def _spread_and_slopes(
    mean: Tensor, var: Tensor, labels: Tensor, known: Tensor, there: Tensor, top: Tensor,
    spread: Tensor, scratch: Tensor, along: Tensor, by_var: Tensor, constants: Tensor,
    tables: Tables, log_p: Tensor | None = None,
) -> None:  # fmt: skip
    b, n_classes = mean.shape
    shared = {"LIMIT": _LIMIT, "SPAN": _SPAN, "KAPPA": lattice.KAPPA}
    _spread_kernel[(b, triton.cdiv(n_classes, 256))](
        mean, known, top, var, labels, spread, constants, n_classes, BLOCK=256, **shared
    )
    _slopes_kernel[(b,)](
        mean, top, var, labels, there, spread, *tables, scratch, along, by_var,
        by_var if log_p is None else log_p, constants, n_classes, WHOLE=log_p is not None,
        NODES=_NODES, LATTICE=lattice.LATTICE, WIDTH=_WIDTH, LEFT=lattice.LEFT,
        STD_MAX=lattice.STD_MAX, WIDE=1024, Q=256, num_warps=8, **shared,
    )  # fmt: skip


@lru_cache(maxsize=64)
def constants(
    device: torch.device, prior_var: float = 0.0, noise_var: float = 0.0, rate: float = 0.0
) -> Tensor:
    """Constants that kernels read as float64, in the order of the names above."""
    own = lattice.STEP, lattice.STD_UNIT, lattice.STD_STEP, 1e-24, 1e-3, 500.0 / lattice.STEP
    values = (*own, prior_var, noise_var, rate)
    return torch.tensor(values, dtype=torch.float64, device=device)
