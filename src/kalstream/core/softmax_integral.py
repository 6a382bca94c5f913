"""Fast kernels for E[softmax] under isotropic Gaussian logits, N(mean, std^2 I).

Let X = std * normal + Gumbel, F its distribution function and rho = d log F / dz. By the Gumbel-max
identity (core/README.md) eq. (11) of the paper is

    p_k = integral of rho(x - mean_k) E(x) dx,     E(x) = exp(sum_j log F(x - mean_j)).

Why this is fast:

* In u = z / c, c^2 = 1 + std^2 / KAPPA, F has about the same place and width for every std, so
  that one lattice u_i serves all std. ell = log(-log F), nearly linear in the tails, is tabulated
  over (std, u). One interpolation across std gives log F and rho of a row.
* Classes are spread onto the same lattice: "value at a class" is a `POINTS`-point Lagrange rule, so
  a sum over classes is a sum over lattice points with weights a_i (the rule's transpose). Hence
  sum_j log F(x - mean_j) is a short dot product, and all p_k are read off one correlation of rho
  with E. A row costs O(nodes * span + classes) instead of O(nodes * classes), and needs no exp per
  class and node.
* The integrand is analytic, so the trapezoid rule converges exponentially. Right of the last node
  E is nearly 1, so that the rest of the sum is a suffix sum of rho.

Import this module on first use: `import numba` takes 0.5 s.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from kalstream.core.jit import Floats, Labels, jit

# u = z / sqrt(1 + std^2 / KAPPA): a larger KAPPA resolves large std better on a longer lattice.
KAPPA = 14.0
# The error of the 8-point rule on exp(-slope u) is (1/2 3/2 5/2 7/2)^2 / 8! (STEP slope)^8. This is
# 3e-9 for a Gumbel tail. It is 1e-7 for a Gaussian tail, at the steepest part that matters for a
# probability of 1e-8.
POINTS = 8
LEFT = POINTS // 2 - 1  # points of a rule to the left of its interval
STEP = 0.2
U_MIN = -31.4  # left of every node: 8.4 standard deviations for std = 100, more for smaller std
LATTICE = 446  # up to u = 57.6, so that two classes 9 standard deviations apart are both on it

# std = STD_UNIT sinh(STD_STEP i), because log F varies on a scale of about 1/6 near std = 0, and on
# the scale of std elsewhere. ell is even in std, so points of a rule below 0 are mirrored.
# The error is 1e-8, and up to 2e-7 in the far tail at std ~ 4.
STD_MAX = 100.0  # above, the shape at 100 is scaled; it is Gaussian up to 1% of a deviation
STD_UNIT = 0.3
_STD_NODES = 128
STD_STEP = math.asinh(STD_MAX / STD_UNIT) / (_STD_NODES - 1)

# The mass left of the first node is at most exp(-36) = 2e-16, or 2e-8 of a probability of 1e-8.
_LOG_E_START = -36.0
# The suffix sum approximates E in the tail to first order. Its error is of order _LOG_E_STOP^2.
_LOG_E_STOP = -3e-4
# Number of nodes while log E goes from -36 to -1, if all K classes are level. No E is sharper. Many
# classes far below the top one cut E off as sharply, and the probabilities of unlikely classes
# depend on it. A Gumbel variable goes from -36 to -1 over log(36) = 3.6, which gives a step of 0.4
# and an error of 2 |Gamma(1 + 2 pi i / 0.4)| = 4e-10.
_NODES_TO_BEND = 8.5
_MAX_STRIDE = 7  # 1.4 u, 3/8 of the standard deviation of a Gaussian

_WORK_ROWS = 10
# Squares of larger logits and deviations would overflow, and NaN would become a wrong index.
LARGEST_LOGIT = 1e150
# Least curvature of the softmax, before shrinkage: a row whose label was certain counts a little.
LEAST_CURVATURE = 1e-6
# For two logits of at most this standard deviation, a one-dimensional integral needs few nodes.
_LARGEST_OF_TWO = 100.0
_WIDE_OF_TWO = 6.0


@lru_cache(maxsize=1)
def table() -> tuple[Floats, Floats]:
    """Return `(ell, slope)`, each (std nodes, lattice): log(-log F) and its derivative in u."""
    u = U_MIN + STEP * np.arange(LATTICE, dtype=np.float64)
    nodes = _STD_NODES + POINTS // 2  # so that the rule is centred up to STD_MAX
    rows = [_log_minus_log_cdf(STD_UNIT * math.sinh(STD_STEP * i), u) for i in range(nodes)]
    ell, slope = (np.ascontiguousarray(part) for part in zip(*rows, strict=True))
    for part in (ell, slope):
        part.setflags(write=False)
    return ell, slope


def workspace() -> Floats:
    """Return scratch space for one thread of kernel calls; its size does not depend on K."""
    return np.empty((_WORK_ROWS, LATTICE))


def _log_minus_log_cdf(std: float, u: Floats) -> tuple[Floats, Floats]:
    """Accurate ell and d ell/du at z = c u, by quadratures of positive terms (no cancellation)."""
    from scipy.special import ndtr, wrightomega

    scale = math.sqrt(1.0 + std * std / KAPPA)
    z = scale * u
    if std == 0.0:
        return -z, -np.ones_like(z)
    if std < 1.0:
        # F = E exp(-w), w = exp(std e - z), e normal. The integrand peaks where e = -std w; with
        # the trapezoid centred there, e = t - std peak, a factor exp(-(std peak)^2 / 2 - peak)
        # comes out and nothing underflows.
        t = np.arange(-12.0, 12.0, h := 0.15)
        peak = wrightomega(2.0 * math.log(std) - z)[:, None] / std**2
        growth = np.exp(std * t)
        term = np.exp(-0.5 * t * t - peak * (np.expm1(std * t) - std * t))
        mass = term.sum(axis=1)
        peak_ = peak[:, 0]
        log_cdf = np.log(mass * h / math.sqrt(2.0 * math.pi)) - 0.5 * (std * peak_) ** 2 - peak_
        rho = peak_ * (term @ growth) / mass
        e = t - std * peak
        tail = (np.exp(-0.5 * e * e) * -np.expm1(-peak * growth)).sum(axis=1)
        survival = tail * h / math.sqrt(2.0 * math.pi)
        right = log_cdf > -math.log(2.0)
        log_cdf[right] = np.log1p(-survival[right])
    else:
        # F = E Phi((z - y) / std), y Gumbel. The step of y divides that of z, so z - y runs over
        # one lattice and Phi is evaluated once per lattice point. For z > std^2 the mass of
        # 1 - F sits at y ~ z - std^2 +- std, and then falls like exp(-y): 36 more.
        step = z[1] - z[0]
        refine = math.ceil(step / 0.25)
        h = step / refine
        y_max = 36.0 + max(0.0, z[-1] - std * std + 9.0 * std)
        y = h * np.arange(math.floor(-6.5 / h), math.ceil(y_max / h))
        gumbel = h * np.exp(-y - np.exp(-y))[::-1]
        t = (z[0] - y[-1] + h * np.arange(y.size + (z.size - 1) * refine)) / std

        def smooth(values: Floats) -> Floats:
            windows = np.lib.stride_tricks.sliding_window_view(values, y.size)[::refine]
            return np.asarray(windows @ gumbel)

        cdf, survival = smooth(ndtr(t)), smooth(ndtr(-t))
        right = cdf > 0.5
        log_cdf = np.log(cdf)
        log_cdf[right] = np.log1p(-survival[right])
        rho = smooth(np.exp(-0.5 * t * t)) / (math.sqrt(2.0 * math.pi) * std) / np.exp(log_cdf)
    return np.log(-log_cdf), scale * rho / log_cdf


@jit
def _lagrange(t: float, weights: Floats) -> None:
    """Weights of the POINTS-point rule at fraction t of its middle interval (points -3..4)."""
    a, b, c, d = t + 3.0, t + 2.0, t + 1.0, t
    e, f, g, h = t - 1.0, t - 2.0, t - 3.0, t - 4.0
    ab, cd, ef, gh = a * b, c * d, e * f, g * h
    left, right = ab * cd, ef * gh
    weights[0] = b * cd * right / -5040.0
    weights[1] = a * cd * right / 720.0
    weights[2] = ab * d * right / -240.0
    weights[3] = ab * c * right / 144.0
    weights[4] = left * f * gh / -144.0
    weights[5] = left * e * gh / 240.0
    weights[6] = left * ef * h / -720.0
    weights[7] = left * ef * g / 5040.0


@jit
def _dot(a: Floats, b: Floats) -> float:
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@jit
def _fill_lattice(
    std: float, ell: Floats, slope: Floats, log_cdf: Floats, rho: Floats, weights: Floats
) -> None:
    """Interpolate the table across std: log F and rho (per unit of u) on the lattice."""
    # NaN must not become an index.
    v = math.asinh(min(std, STD_MAX) / STD_UNIT) / STD_STEP if std >= 0.0 else 0.0
    first = int(v)
    _lagrange(v - first, weights)
    log_cdf[:] = 0.0
    rho[:] = 0.0
    for m in range(POINTS):
        node = abs(first - LEFT + m)
        w = weights[m]
        ell_m, slope_m = ell[node], slope[node]
        for i in range(LATTICE):
            log_cdf[i] += w * ell_m[i]
            rho[i] += w * slope_m[i]
    for i in range(LATTICE):
        value = -math.exp(log_cdf[i])
        log_cdf[i] = value
        rho[i] *= value


@jit
def _first_above(level: float, spread: Floats, log_cdf: Floats, low: int, high: int) -> int:
    """Bisect for the shift in [low, high] at which sum_j log F, increasing, reaches `level`."""
    while high > low:
        middle = (low + high) // 2
        if _dot(spread, log_cdf[middle - LEFT : middle - LEFT + spread.size]) < level:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def _far_slope(gap: float, var: float) -> float:
    """-d log p / d gap of a class far below the top one: see `_far`."""
    return min(gap / (2.0 * var), 1.0) if var > 0.0 else 1.0


@jit
def _far(gap: float, var: float) -> float:
    """Leading term of -log p at a large gap: Gaussian up to 2 var, exponential from there on."""
    return gap * gap / (4.0 * var) if gap < 2.0 * var else gap - var


@jit
def _locate(gap: float, per_step: float, limit: int, var: float) -> tuple[int, float, float]:
    """Place a class `gap` below the top one: lattice offset, fraction, log of a factor.

    A class beyond `limit` is placed at `limit` and scaled by `_far`, so that tiny probabilities
    are smooth and monotone in the gap.
    """
    steps = gap * per_step
    if 0.0 <= steps < limit:
        offset = int(steps)
        return offset, steps - offset, 0.0
    return limit, 0.0, _far(limit / per_step, var) - _far(gap, var)


@jit
def _spread(
    mean: Floats,
    active: Labels,
    skip: int,
    pivot: float,
    top: float,
    per_step: float,
    limit: int,
    var: float,
    ones: Floats,
    lifts: Floats,
    weights: Floats,
) -> int:
    """Sum the rules of the active classes but `skip`: `ones`, and times mean - pivot, `lifts`."""
    ones[:] = 0.0
    lifts[:] = 0.0
    span = 0
    for k in active:
        if k == skip:
            continue
        offset, fraction, log_factor = _locate(top - mean[k], per_step, limit, var)
        _lagrange(fraction, weights)
        factor = math.exp(log_factor) if log_factor < 0.0 else 1.0
        lift = mean[k] - pivot
        for m in range(POINTS):
            w = factor * weights[m]
            ones[offset + m] += w
            lifts[offset + m] += w * lift
        span = max(span, offset + POINTS)
    return span


@jit
def _setup(
    mean: Floats,
    std: float,
    active: Labels,
    ell: Floats,
    slope: Floats,
    log_cdf: Floats,
    rho: Floats,
    weights: Floats,
) -> tuple[float, float, int, int]:
    """Fill the row's lattice; return top mean, lattice steps per logit, offset limit, stride."""
    _fill_lattice(std, ell, slope, log_cdf, rho, weights)
    top = mean[active[0]]
    for k in active:
        top = max(top, mean[k])
    weights[:] = 0.0
    weights[LEFT] = active.size
    # Assume all classes level with the top one. Every other E is less sharp, and reaches 1 earlier.
    level, high = weights[:POINTS], LATTICE - POINTS
    first = _first_above(_LOG_E_START, level, log_cdf, LEFT, high)
    bend = _first_above(-1.0, level, log_cdf, first, high)
    stride = min(max(int((bend - first) / _NODES_TO_BEND), 1), _MAX_STRIDE)
    end = _first_above(_LOG_E_STOP, level, log_cdf, bend, high) + _MAX_STRIDE
    limit = max(LATTICE - end - (POINTS - LEFT), 0)
    return top, 1.0 / (STEP * math.sqrt(1.0 + std * std / KAPPA)), limit, stride


@jit
def _nodes(
    spread: Floats, stride: int, log_cdf: Floats, rho: Floats, suffix: Floats
) -> tuple[int, int]:
    """Choose the first node and the number of nodes; sum rho from each lattice point onwards."""
    last = LATTICE - spread.size + LEFT
    first = _first_above(_LOG_E_START, spread, log_cdf, LEFT, last)
    stop = _first_above(_LOG_E_STOP, spread, log_cdf, first, last)
    count = (stop - first + stride - 1) // stride
    ratio = rho[LATTICE - 1] / rho[LATTICE - 1 - stride]
    for i in range(LATTICE - 1, LATTICE - 1 - stride, -1):
        suffix[i] = rho[i] / (1.0 - ratio)
    for i in range(LATTICE - 1 - stride, -1, -1):
        suffix[i] = rho[i] + suffix[i + stride]
    return first, count


@jit
def _products(
    spread: Floats, log_cdf: Floats, first: int, stride: int, count: int, product: Floats
) -> tuple[float, float]:
    """Fill E at the nodes; return the E that goes with the suffix sum, and the tail's ratio."""
    before = total = 0.0
    for q in range(count + 1):
        start = first - LEFT + stride * q
        before = total
        total = min(_dot(spread, log_cdf[start : start + spread.size]), 0.0)
        product[q] = math.exp(total)
    # log E and rho both fall by `ratio` per node: the mean of log E over the tail, weighted by rho.
    ratio = total / before if before < 0.0 else 0.0
    return math.exp(total / (1.0 + ratio)), ratio


@jit
def _correlate(
    rho: Floats, at_nodes: Floats, first: int, stride: int, count: int, out: Floats
) -> None:
    """Add sum_q at_nodes[q] rho(x_q - .) to `out`, at every lattice offset it has."""
    for q in range(count):
        w = at_nodes[q]
        part = rho[first - LEFT + stride * q :]
        for i in range(out.size):
            out[i] += w * part[i]


@jit
def _lesser_of_two(gap: float, std: float) -> float:
    """P(logistic < gap + std e), e normal, gap at most 0: E[softmax] of the lesser of two logits.

    The midpoint rule integrates over e or, if std is large, over the logistic variable. The
    distribution function of the latter has its poles at a distance of pi from the real line. Over
    e, the error falls as exp(-2 pi^2 / (std step)), and the integrand peaks between 0 and std.
    """
    total = 0.0
    if gap == 0.0:
        return 0.5
    if std == 0.0:
        return math.exp(gap) / (1.0 + math.exp(gap))
    if std > _WIDE_OF_TWO:
        # Above x = 746, after 1,177 nodes, the density of the logistic variable is 0 in float64.
        for i in range(math.ceil(min((37.0 - gap) / 0.65, 1177.0))):
            x = 0.65 * i - 18.5
            tail = math.exp(-abs(x))
            total += tail / (1.0 + tail) ** 2 * math.erfc(-(gap + x) / (math.sqrt(2.0) * std))
        return 0.325 * total
    step = min(0.5, 0.8 / std)
    for i in range(math.ceil((13.0 + std) / step)):
        e = step * (i + 0.5) - 6.5
        grown = math.exp(min(gap + std * e, 700.0))
        total += math.exp(-0.5 * e * e) * (grown / (1.0 + grown))
    return total * step / math.sqrt(2.0 * math.pi)


@jit
def probabilities(
    mean: Floats, std: Floats, ell: Floats, slope: Floats, work: Floats, out: Floats
) -> None:
    """Write E[softmax] of each row of `mean` (b, K), with `std` (b,), to `out` (b, K)."""
    log_cdf, rho, suffix, spread, lifts = work[0], work[1], work[2], work[3], work[4]
    product, by_offset, weights = work[5], work[6], work[9, :POINTS]
    active = np.arange(mean.shape[1])
    for row in range(mean.shape[0]):
        mu, var = mean[row], std[row] * std[row]
        if mean.shape[1] == 2 and std[row] <= _LARGEST_OF_TWO:
            low = 0 if mu[0] < mu[1] else 1
            out[row, low] = _lesser_of_two(mu[low] - mu[1 - low], math.sqrt(2.0) * std[row])
            out[row, 1 - low] = 1.0 - out[row, low]
            continue
        top, per_step, limit, stride = _setup(
            mu, std[row], active, ell, slope, log_cdf, rho, weights
        )
        span = _spread(mu, active, -1, top, top, per_step, limit, var, spread, lifts, weights)
        first, count = _nodes(spread[:span], stride, log_cdf, rho, suffix)
        tail, _ = _products(spread[:span], log_cdf, first, stride, count, product)
        start = first - LEFT + stride * count
        for i in range(span):
            by_offset[i] = tail * suffix[start + i]
        _correlate(rho, product, first, stride, count, by_offset[:span])
        for k in active:
            offset, fraction, log_factor = _locate(top - mu[k], per_step, limit, var)
            _lagrange(fraction, weights)
            p = _dot(weights, by_offset[offset : offset + POINTS])
            out[row, k] = p * (STEP * stride) * math.exp(log_factor)


@jit
def _label(
    mean: Floats,
    std: float,
    label: int,
    active: Labels,
    ell: Floats,
    slope: Floats,
    work: Floats,
) -> tuple[float, float, float, float, float, float, int, int, int, int, int]:
    """`label_terms`, and further values for `label_rows`; `work[8]` gets p w at the nodes."""
    log_cdf, rho, suffix, others, lifts = work[0], work[1], work[2], work[3], work[4]
    product, spread, squares, posterior = work[5], work[6], work[7], work[8]
    weights, change = work[9, :POINTS], work[9, POINTS : 2 * POINTS]
    back = work[9, 2 * POINTS : 3 * POINTS]
    var, pivot = std * std, mean[label]
    top, per_step, limit, stride = _setup(mean, std, active, ell, slope, log_cdf, rho, weights)
    span = _spread(mean, active, label, pivot, top, per_step, limit, var, others, lifts, weights)
    gap = top - pivot
    offset, fraction, log_factor = _locate(gap, per_step, limit, var)
    _lagrange(fraction, weights)
    # The rule of the derivative, by a central difference; its error is 1e-6 / 6 third derivatives
    # (in steps).
    _lagrange(fraction + 1e-3, change)
    _lagrange(fraction - 1e-3, back)
    for m in range(POINTS):
        change[m] = (change[m] - back[m]) * (500.0 / STEP)
    span = max(span, offset + POINTS)
    factor = math.exp(log_factor)
    for i in range(span):
        spread[i] = others[i]
    for m in range(POINTS):
        spread[offset + m] += factor * weights[m]
    first, count = _nodes(spread[:span], stride, log_cdf, rho, suffix)
    tail, ratio = _products(spread[:span], log_cdf, first, stride, count, product)
    for i in range(LATTICE):
        squares[i] = rho[i] * rho[i]

    mass = lift_sum = var_sum = 0.0
    for q in range(count + 1):
        start = first - LEFT + stride * q
        at = start + offset
        rho_label = _dot(weights, rho[at : at + POINTS])
        growth = _dot(change, rho[at : at + POINTS])
        pull = _dot(others[:span], rho[start : start + span])
        square = _dot(others[:span], squares[start : start + span])
        lift = _dot(lifts[:span], rho[start : start + span])
        w = rho_label * product[q]
        if q < count:
            mass += w
        else:
            mass += tail * _dot(weights, suffix[at : at + POINTS])
            w /= 1.0 - ratio * ratio  # rho_label rho_j falls by ratio^2 per node from here on
        posterior[q] = w
        lift_sum += w * lift
        bend = factor * rho_label + growth / rho_label  # h'/h
        var_sum += w * (square - pull * pull - 2.0 * pull * bend)
    per_logit = per_step * STEP
    log_p = min(math.log(mass * (STEP * stride)) + log_factor, 0.0)
    d_var = 0.5 * per_logit * per_logit * var_sum / mass
    steeper = 1.0
    if log_factor < 0.0:  # beyond the limit of the integrals: the derivatives of `_far`
        here, there = _far_slope(gap, var), _far_slope(limit / per_step, var)
        steeper = here / there
        d_var += here * here - there * there
    for_mean = -per_logit * steeper / mass
    lifted = for_mean * lift_sum
    return log_p, lifted, d_var, for_mean, top, per_step, limit, first, stride, count, span


@jit
def label_terms(
    mean: Floats,
    std: float,
    label: int,
    active: Labels,
    ell: Floats,
    slope: Floats,
    work: Floats,
) -> tuple[float, float, float]:
    """Return log p_label, sum_j mean_j dlogp/dmean_j and dlogp/dvar, over the `active` classes.

    `mean` (K,) and `std` are those of the calibrated logits, and `label` is one of `active`. `ell`
    and `slope` are `table()`, and `work` is a `workspace()` with any content. Compiled code can
    call this function.

    With T = sum of rho_j over j != label, h = rho F of the label, and w = rho_label E / p (the
    density of the largest perturbed logit, given that it is the label's):

        dlogp/dmean_j = -integral of w rho_j   for j != label; all of them sum to zero,
        dlogp/dvar = 1/2 integral of w (sum_{j != label} rho_j^2 - T^2 - 2 T h'/h).

    The second equation is the heat equation, dp/dvar = 1/2 sum_j d2p/dmean_j^2, integrated by
    parts until only the label's factor is differentiated twice.
    """
    if active.size < 2:
        return 0.0, 0.0, 0.0
    terms = _label(mean, std, label, active, ell, slope, work)
    return terms[0], terms[1], terms[2]


@jit
def label_rows(
    mean: Floats,
    std: Floats,
    labels: Labels,
    ell: Floats,
    slope: Floats,
    work: Floats,
    log_prob: Floats,
    d_mean: Floats,
    d_var: Floats,
) -> None:
    """`label_terms` of each row of `mean` (b, K), K > 1, and the whole gradient `d_mean` (b, K)."""
    rho, posterior, weights = work[1], work[8], work[9, :POINTS]
    active = np.arange(mean.shape[1])
    for row in range(mean.shape[0]):
        mu, label, var = mean[row], labels[row], std[row] * std[row]
        log_prob[row], _, d_var[row], for_mean, top, per_step, limit, first, stride, count, span = (
            _label(mu, std[row], label, active, ell, slope, work)
        )
        by_offset = work[3, :span]
        by_offset[:] = 0.0
        _correlate(rho, posterior, first, stride, count + 1, by_offset)
        total = 0.0
        for k in active:
            if k != label:
                offset, fraction, log_factor = _locate(top - mu[k], per_step, limit, var)
                _lagrange(fraction, weights)
                value = _dot(weights, by_offset[offset : offset + POINTS])
                d_mean[row, k] = for_mean * value * math.exp(log_factor)
                total += d_mean[row, k]
        d_mean[row, label] = -total
