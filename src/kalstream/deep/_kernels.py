"""The derivatives of label log-probabilities on a GPU, in two fused kernels (Triton).

The mathematics is that of `core._softmax_integral.label_terms`: classes are spread onto a lattice,
and all sums over classes become correlations with the lattice's own log F and rho.
`predictive.slopes` calls this where there is CUDA and Triton; its plain version is the reference.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kalstream._optional import require
from kalstream.core import _softmax_integral as lattice

triton: Any = require("triton", "torch")
tl: Any = require("triton.language", "torch")

Tensor = Any

_LIMIT = 256
_SPAN = _LIMIT + lattice.POINTS
_NODES = (lattice.LATTICE - 1) // 2
_WIDTH = lattice.LATTICE + _SPAN  # of a row of the lattice, with zeros behind


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
def _spread_kernel(  # type: ignore[no-untyped-def]
    mean_ptr, known_ptr, top_ptr, var_ptr, label_ptr, out_ptr, n_classes,
    LIMIT: tl.constexpr, SPAN: tl.constexpr, STEP: tl.constexpr, KAPPA: tl.constexpr,
    LEAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the rules of known classes but the label to (2, SPAN) of the row: ones, and lifts."""
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(label_ptr + row)
    there = k < n_classes
    known = tl.load(known_ptr + row * n_classes + k, mask=there, other=0) != 0
    there = there & known & (k != label)
    mean = tl.load(mean_ptr + row * n_classes + k, mask=there, other=0.0)
    pivot = tl.load(mean_ptr + row * n_classes + label)
    top, var = tl.load(top_ptr + row), tl.load(var_ptr + row)
    per_step = 1.0 / (STEP * tl.sqrt(1.0 + var / KAPPA))
    gap = top - mean
    steps = gap * per_step
    near = steps < LIMIT
    offset = tl.where(near, tl.floor(steps), LIMIT * 1.0)
    t = tl.where(near, steps - offset, 0.0)
    v = tl.maximum(var, LEAST)
    log_factor = tl.where(near, 0.0, _far(LIMIT / per_step, v) - _far(gap, v))
    factor = tl.exp(tl.minimum(log_factor, 0.0))
    at = out_ptr + row * 2 * SPAN + offset.to(tl.int32)
    for m in tl.static_range(8):
        w = factor * _weight(t, m)
        tl.atomic_add(at + m, w, mask=there)
        tl.atomic_add(at + SPAN + m, w * (mean - pivot), mask=there)


@triton.jit
def _slopes_kernel(  # type: ignore[no-untyped-def]
    mean_ptr, top_ptr, var_ptr, label_ptr, there_ptr, spread_ptr, ell_ptr, slope_ptr,
    scratch_ptr, along_ptr, by_var_ptr, n_classes,
    LIMIT: tl.constexpr, SPAN: tl.constexpr, NODES: tl.constexpr, LATTICE: tl.constexpr,
    WIDTH: tl.constexpr, LEFT: tl.constexpr, STEP: tl.constexpr, KAPPA: tl.constexpr,
    STD_MAX: tl.constexpr, STD_UNIT: tl.constexpr, STD_STEP: tl.constexpr, LEAST: tl.constexpr,
    WIDE: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """One row: its lattice, E at the nodes, and the two derivatives."""
    row = tl.program_id(0)
    var = tl.load(var_ptr + row)
    std = tl.sqrt(tl.maximum(var, LEAST))
    # log F and rho of this std on the lattice, with zeros behind, into the row's scratch.
    r = tl.minimum(std, STD_MAX) / STD_UNIT
    place = tl.log(r + tl.sqrt(r * r + 1.0)) / STD_STEP
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
    per_step = 1.0 / (STEP * tl.sqrt(1.0 + var / KAPPA))
    gap = top - pivot
    steps = gap * per_step
    near = steps < LIMIT
    offset = tl.where(near, tl.floor(steps), LIMIT * 1.0)
    fraction = tl.where(near, steps - offset, 0.0)
    v = tl.maximum(var, LEAST)
    log_factor = tl.where(near, 0.0, _far(LIMIT / per_step, v) - _far(gap, v))
    factor = tl.exp(tl.minimum(log_factor, 0.0))
    o = offset.to(tl.int32)

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
    for m in tl.static_range(8):
        w = _weight(fraction, m)
        change = (_weight(fraction + 1e-3, m) - _weight(fraction - 1e-3, m)) * (500.0 / STEP)
        f = tl.load(scratch + at + o + m, mask=is_node, other=0.0)
        p = tl.load(scratch + WIDTH + at + o + m, mask=is_node, other=0.0)
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
    per_logit = per_step * STEP
    ok = (tl.load(there_ptr + row) != 0) & (mass > 0.0)
    safe_mass = tl.where(ok, mass, 1.0)
    tl.store(along_ptr + row, tl.where(ok, -per_logit * lift_sum / safe_mass, 0.0))
    value = 0.5 * per_logit * per_logit * var_sum / safe_mass
    tl.store(by_var_ptr + row, tl.where(ok, value, 0.0))


def slopes(
    mean: Tensor, var: Tensor, labels: Tensor, known: Tensor, there: Tensor, tables: Any
) -> tuple[Tensor, Tensor]:
    """As `predictive.slopes`, for the rows that are ``there``; ``tables`` are the lattice's."""
    b, n_classes = mean.shape
    mean, var = mean.double().contiguous(), var.double().contiguous()
    # The label is never above the top, known or not.
    shown = known.scatter(1, labels[:, None], True)
    top = mean.masked_fill(~shown, -math.inf).max(1).values
    spread = torch.zeros(b, 2, _SPAN, dtype=torch.float64, device=mean.device)
    scratch = torch.empty(b, 2, _WIDTH, dtype=torch.float64, device=mean.device)
    along, by_var = torch.empty_like(var), torch.empty_like(var)
    shared = {"LIMIT": _LIMIT, "SPAN": _SPAN, "STEP": lattice.STEP, "KAPPA": lattice.KAPPA}
    masks = known.to(torch.uint8).contiguous()
    _spread_kernel[(b, triton.cdiv(n_classes, 256))](
        mean, masks, top, var, labels, spread, n_classes, LEAST=1e-24, BLOCK=256, **shared
    )
    _slopes_kernel[(b,)](
        mean, top, var, labels, there.to(torch.uint8), spread, *tables, scratch, along, by_var,
        n_classes, NODES=_NODES, LATTICE=lattice.LATTICE, WIDTH=_WIDTH, LEFT=lattice.LEFT,
        STD_MAX=lattice.STD_MAX, STD_UNIT=lattice.STD_UNIT, STD_STEP=lattice.STD_STEP,
        LEAST=1e-24, WIDE=1024, Q=256, num_warps=8, **shared,
    )  # fmt: skip
    return along, by_var
