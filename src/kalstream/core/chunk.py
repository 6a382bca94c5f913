"""The recursion of `recursion.step`, exact, a chunk of rows at a time.

Inside a chunk of b rows all work is in b-by-b matrices (core/README.md, "The chunk"). A *scan*
turns the Gram matrices of the chunk into one triangular system. Then the posterior takes one
rank-b update. `learned.Learned` has its own scan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import blas

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core._threads import OneThread
from kalstream.core.guard import ROUNDING_LIMITS, check_innovations, rounding_error
from kalstream.core.likelihoods import LIKELIHOODS, ONEHOT, check_likelihood
from kalstream.core.state import DEFERRED_ROWS, Posterior, Step, Stored

# Up to this many rows a compiled loop is faster than a BLAS call.
_FEW_ROWS: Final = 16
# With more outputs and fewer features, blocks are small; see `block_rows`.
_MANY_OUTPUTS: Final = 4096
_FEW_FEATURES: Final = 64

TRANSITIONS: Final = ("example", "chunk")
_NO_CLASSES: Final = np.empty(0, np.int64)


def step_chunk(
    posterior: Posterior,
    features: ArrayLike,
    targets: ArrayLike,
    *,
    gamma: ArrayLike,
    noise_var: float,
    prior_var: float,
    transition: str = "example",
    keep_mean: bool = False,
    sample_weight: ArrayLike | None = None,
    time_gap: ArrayLike | None = None,
    likelihood: str = "onehot",
    donate: bool = False,
) -> tuple[Posterior, Step]:
    """Run the recursion, eqs. (7) and (8), over the rows of a chunk.

    The result equals `recursion.step` row by row (with gamma ** time_gap and
    noise_var / sample_weight), for every way to cut the rows into chunks.

    Parameters
    ----------
    posterior : Posterior
    features : (b, m)
    targets : (b,) integer labels, (b, K) values, or (b,) values if K = 1
        Integers of shape (b,) are class labels, -1 if unknown, also if K = 1: for regression pass
        floats. Floats of shape (b,) are labels too if K > 1. A row with a NaN target, or with the
        label -1, is predicted but not learned.
    gamma : float or (b,)
        Forgetting coefficients in [0, 1].
    noise_var, prior_var : float
    transition : "example" or "chunk"
        Forget before every row, or only before the last row of this call ("Always" and "Last
        Step Markov" in the paper); the gamma and time_gap of the other rows are then not used.
    keep_mean : bool
        Leave the mean where it is when forgetting (appendix C).
    sample_weight : float or (b,), optional
        The noise variance of a row is divided by its weight; 0 is the same as no target.
    time_gap : float or (b,), optional
        Time since the row before, in steps: the row forgets with gamma ** time_gap.
    likelihood : "onehot", "softmax" or "softmax-label"
        How a label is observed: as its one-hot vector with Gaussian noise, or through the softmax,
        as in `update_softmax`; then noise_var is not used. All K classes count as seen.
    donate : bool
        Reuse the buffers of ``posterior``, which cannot be used afterwards.

    Returns
    -------
    posterior : Posterior
    step : Step
        With arrays over the rows: logit_mean (b, K), logit_var (b,), gamma (b,).

    Examples
    --------
    >>> from kalstream.core import init
    >>> posterior, seen = step_chunk(
    ...     init(1, 2, prior_var=1.0),
    ...     [[1.0], [1.0]],
    ...     [0, 1],
    ...     gamma=1.0,
    ...     noise_var=1.0,
    ...     prior_var=1.0,
    ... )
    >>> seen.logit_mean
    array([[0. , 0. ],
           [0.5, 0. ]])
    """
    check.instance("posterior", posterior, Posterior)
    rows = Rows.read(
        posterior,
        features,
        targets,
        noise_var=noise_var,
        prior_var=prior_var,
        transition=transition,
        keep_mean=keep_mean,
        sample_weight=sample_weight,
        time_gap=time_gap,
    )
    gammas = check.gammas(gamma, len(rows.gap)) ** rows.gap
    code = rows.likelihood(check_likelihood("likelihood", likelihood).word)
    return run(posterior, rows, fixed_scanner(rows, gammas, code), donate)


@dataclass(slots=True)  # not frozen: that triples the time to make one
class Rows:
    """The checked arguments of a chunk.

    Attributes
    ----------
    features : (b, m), in the dtype of the posterior
    targets : Targets
    noise_var : (b,)
        Divided by the weight; inf where the row is only predicted.
    weight : (b,)
    gap : (b,)
        Time before each row; 0 for all but the last row if the chunk forgets once.
    prior_var : float
    keep_mean : bool
    all_learned : bool
        Whether every row has a target and a weight.
    classes, n_seen : (K,), (b + 1,)
        The classes in the order in which they came, and how many had come before each row and
        after the last; empty if targets are values.
    """

    features: Array
    targets: check.Targets
    noise_var: Array
    weight: Array
    gap: Array
    prior_var: float
    keep_mean: bool
    all_learned: bool
    classes: Array
    n_seen: Array

    @classmethod
    def read(
        cls,
        state: Any,
        features: ArrayLike,
        targets: Any,
        *,
        noise_var: float,
        prior_var: float,
        transition: str = "example",
        keep_mean: bool = False,
        sample_weight: ArrayLike | None = None,
        time_gap: ArrayLike | None = None,
    ) -> Rows:
        """Check all arguments for a posterior or a policy's state.

        A posterior does not know which classes have come: for it, all have.
        """
        n_features, n_outputs, dtype = state.n_features, state.n_outputs, state.dtype
        phi = check.feature_rows(features, n_features, dtype)
        n = len(phi)
        read = check.targets(targets, n, n_outputs, dtype)
        noise = np.full(n, check.variance("noise_var", noise_var, dtype))
        weight = gap = np.ones(n)
        if sample_weight is not None:
            weight = check.non_negative_rows("sample_weight", sample_weight, n)
            with np.errstate(divide="ignore", over="ignore"):
                noise /= weight
            if weight.max() > 0.0:
                least = float(noise.min())
                check.variance("noise_var over the largest sample_weight", least, dtype)
        all_learned = bool(read.observed.all())
        if not all_learned:
            noise[~read.observed] = np.inf
        elif sample_weight is not None:
            all_learned = bool((noise < np.inf).all())
        if time_gap is not None:
            gap = check.non_negative_rows("time_gap", time_gap, n)
        if check.choice("transition", transition, TRANSITIONS) == "chunk":
            gap = np.where(np.arange(n) < n - 1, 0.0, gap)
        prior = check.variance("prior_var", prior_var, dtype)
        keep = check.flag("keep_mean", keep_mean)
        classes = n_seen = _NO_CLASSES
        if read.labels is not None:
            from kalstream.core._kernels.observing import arrivals

            seen = getattr(state, "seen", None)
            seen = np.ones(n_outputs, bool) if seen is None else seen
            classes, n_seen = arrivals(read.labels, noise, seen)
        return cls(phi, read, noise, weight, gap, prior, keep, all_learned, classes, n_seen)

    def __getitem__(self, part: slice) -> Rows:
        if part.stop - part.start == len(self.gap):
            return self
        return Rows(
            self.features[part],
            self.targets[part],
            self.noise_var[part],
            self.weight[part],
            self.gap[part],
            self.prior_var,
            self.keep_mean,
            self.all_learned,
            self.classes,
            self.n_seen[part.start : part.stop + 1],
        )

    def likelihood(self, word: str) -> int:
        """The number by which kernels know a likelihood; values have Gaussian noise always."""
        return (LIKELIHOODS[word] if self.targets.labels is not None else ONEHOT).code

    def observed(self) -> tuple[Array, ...]:
        """Labels, dense targets, noise variances, weights, classes and n_seen, for the kernels."""
        counts = self.noise_var, self.weight, self.classes, self.n_seen
        return *self.targets.arrays(), *counts

    def seen(self, before: Array) -> Array:
        """Which classes have come after these rows (K,), given those before (K,)."""
        if not len(self.n_seen) or self.n_seen[-1] == self.n_seen[0]:
            return before
        mask = np.zeros(len(before), bool)
        mask[self.classes[: self.n_seen[-1]]] = True
        return mask


@dataclass(slots=True)
class Grams:
    """The products of features and posterior that a scan reads, all float64.

    Attributes
    ----------
    cov : (b, b)
        Phi A Phi', G in core/README.md.
    eye : (b, b)
        Phi Phi', H.
    mean : (b, K)
        Phi M, F.
    """

    cov: Array
    eye: Array
    mean: Array


@dataclass(slots=True)
class Scan:
    """Result of a scan over the b rows of a block.

    Attributes
    ----------
    done : int
        Number of rows scanned. A scan stops before a row that would lose digits.
    gamma, logit_mean, logit_var : (b,), (b, K), (b,)
        Forgetting coefficient, and the prediction, of each row.
    noise_var : (b,)
        Of each row's target; inf where nothing was learned.
    system : (b, b)
        Lower triangular: ``system @ gains = predicted covariance @ features``; rows and columns
        of rows that are not learned are zero.
    innovations : (b, K)
        Residuals divided by their standard deviation.
    kept, lost : (b,)
        Product of gamma up to each row, and 1 minus its square.
    reach : (b,)
        Product of gamma after each learned row, to the end of the block.
    nis : (b,)
        Mean square of the innovations; NaN for rows that are not learned.
    """

    done: int
    gamma: Array
    logit_mean: Array
    logit_var: Array
    noise_var: Array
    system: Array
    innovations: Array
    kept: Array
    lost: Array
    reach: Array
    nis: Array

    def only_done(self) -> Scan:
        """The scan without the rows it did not reach."""
        n = self.done
        return Scan(
            n,
            self.gamma[:n],
            self.logit_mean[:n],
            self.logit_var[:n],
            self.noise_var[:n],
            self.system[:n, :n],
            *(
                array[:n]
                for array in (self.innovations, self.kept, self.lost, self.reach, self.nis)
            ),
        )


class _BlockScan(Protocol):
    """Scans the parts of a chunk in order."""

    def __call__(self, grams: Grams, part: slice) -> Scan:
        """Scan the rows of ``part``."""
        ...


def run(posterior: Posterior, rows: Rows, scan: _BlockScan, donate: bool) -> tuple[Posterior, Step]:
    """Learn all rows, block by block; the posterior stays unchanged if anything fails."""
    check.flag("donate", donate)
    original = stored = posterior.stored
    n, m = rows.features.shape
    size = block_rows(m, posterior.n_outputs)
    steps = []
    with OneThread(4.0 * min(n, size) * m * m):
        start = 0
        while start < n:
            part = slice(start, min(start + size, n))
            block = plan(stored, rows, scan, part, stored.base.cov is not original.base.cov)
            start += len(block.step.gamma)
            steps.append(block.step)
            # Arrays made here may be overwritten at any time, the caller's only by the last write.
            own = block.stored.base.cov is not original.base.cov
            stored = block.carried_out(own or (donate and start == n))
    return _handed_over(posterior, stored, donate), _joined(steps)


def _handed_over(posterior: Posterior, stored: Stored, donate: bool) -> Posterior:
    """The new posterior; the old one is given up, or now shares its arrays."""
    if donate:
        posterior._stored = None
    elif stored.base.cov is posterior.stored.base.cov:
        stored.base.lent = posterior.stored.base.lent = True
    return Posterior._of(stored)


def block_rows(n_features: int, n_outputs: int = 1) -> int:
    """Rows of a block: enough for products with the covariance to run at full speed.

    Work inside a block grows with its square. The products outweigh it only if m is large. A scan
    reads the innovations (b, K) of the block for every row: they must fit into the cache.
    """
    if n_outputs > _MANY_OUTPUTS and n_features <= _FEW_FEATURES:
        return 16  # above DEFERRED_ROWS: no row is left pending
    return 128 if n_features >= 1024 else 64


@dataclass(slots=True)
class Aside:
    """Rows that are predicted between the rows of a block, and not learned.

    Attributes
    ----------
    features, squares : (a, m), (a,), float64
        The features, and the sum of their squares.
    place : (a,)
        How many rows of the block come before each; not decreasing.
    times_cov, times_mean : (a, m), (a, K)
        Features times covariance and times mean before the block.
    mean, var : (a, K), (a,)
        What `predict` writes: moments under the posterior after the rows before.
    """

    features: Array
    squares: Array
    place: Array
    times_cov: Array
    times_mean: Array
    mean: Array
    var: Array

    def predict(
        self, scan: Scan, gains: Array, innovations: Array, learned: Array, prior_var: float
    ) -> None:
        """Moments from gains (n, m) and innovations (n, K) of the rows that are learned (n,)."""
        from kalstream.core._kernels.chunk import predict_aside

        base = np.einsum("am,am->a", self.times_cov, self.features)
        cross = gains @ self.features.T
        passed = scan.gamma, scan.kept, scan.lost
        moments = self.times_mean, base, self.squares, cross, innovations
        predict_aside(self.place, *passed, learned, *moments, prior_var, self.mean, self.var)


@dataclass(slots=True)
class _ChunkPlan:
    """The change that a block makes to a posterior. Planning may fail, carrying out may not.

    Attributes
    ----------
    stored : Stored
        The posterior after the block's forgetting, which changes no array.
    rows, coefficients : (n, m), (n, K)
        Arguments of `Stored.updated`.
    step : Step
    """

    stored: Stored
    rows: Array
    coefficients: Array
    step: Step

    def carried_out(self, donate: bool) -> Stored:
        """The posterior after the block; arrays are overwritten if donated."""
        if len(self.rows) == 0:
            return self.stored
        return self.stored.updated(self.rows, self.coefficients, donate=donate)


def plan(
    stored: Stored,
    rows: Rows,
    scan: _BlockScan,
    part: slice,
    own: bool,
    products: tuple[Array, Array, Array] | None = None,
    aside: Aside | None = None,
) -> _ChunkPlan:
    """Plan for as many rows of ``part`` as the scan covers; the length of the step says how many.

    ``products``, if given, are features times covariance, times mean and times features; the first
    is overwritten. Rows ``aside`` are predicted if the scan covers all rows.
    """
    from kalstream.core._kernels.chunk import rows_are_sound

    phi, dtype, prior_var = rows.features[part], rows.features.dtype, rows.prior_var
    gram_eye = None
    if products is not None:
        times_cov, times_mean, gram_eye = products
    else:
        if stored.rows is not None and len(phi) > DEFERRED_ROWS:
            stored = stored.folded(donate=own)
        times_cov, times_mean, lossy = stored.products(phi)
        if lossy:
            stored = stored.folded(donate=own)
            times_cov, times_mean, _ = stored.products(phi)
    variances = stored.variances()
    if dtype != np.float64:
        times_cov, times_mean = times_cov.astype(np.float64), times_mean.astype(np.float64)
        phi = phi.astype(np.float64)
    if gram_eye is None:
        gram_eye = phi @ phi.T
    scanned = scan(Grams(times_cov @ phi.T, gram_eye, times_mean), part)
    if scanned.done < len(phi):
        aside = None
        scanned, part = scanned.only_done(), slice(part.start, part.start + scanned.done)
        times_cov, phi = times_cov[: scanned.done], phi[: scanned.done]
    rows = rows[part]
    variances_of = scanned.logit_var, scanned.noise_var
    unit = float(np.finfo(dtype).eps)
    if not rows_are_sound(*variances_of, phi, variances, unit, stored.folds, ROUNDING_LIMITS):
        rounding = rounding_error(phi, variances)
        check_innovations(*variances_of, rounding, dtype, folds=stored.folds, first_row=part.start)

    system, innovations, reach = scanned.system, scanned.innovations, scanned.reach
    kept, lost = scanned.kept, scanned.lost
    if not rows.all_learned:
        learned = np.isfinite(rows.noise_var)
        system, innovations, reach = (
            system[learned][:, learned],
            innovations[learned],
            reach[learned],
        )
        times_cov, phi = times_cov[learned], phi[learned]
        kept, lost = kept[learned], lost[learned]
    # eq. (8), for all rows of the block at once
    gains = _gains(times_cov, phi, kept, prior_var * lost, system)
    if aside is not None:
        learned_rows = np.flatnonzero(np.isfinite(rows.noise_var))
        aside.predict(scanned, gains, innovations, learned_rows, prior_var)

    end = float(scanned.kept[-1])
    stored = stored.decayed(
        end * end, float(scanned.lost[-1]), 1.0 if rows.keep_mean else end, prior_var
    )
    if rows.keep_mean and len(gains):
        stored = stored.with_mean_added((gains.T @ innovations).astype(dtype))
        innovations = np.zeros_like(innovations)
    gains *= reach[:, None]
    moments = scanned.logit_mean, scanned.logit_var, scanned.gamma
    step = Step(*moments, scanned.noise_var, scanned.nis)
    return _ChunkPlan(
        stored, gains.astype(dtype, copy=False), innovations.astype(dtype, copy=False), step
    )


def fixed_scanner(rows: Rows, gammas: Array, likelihood: int) -> _BlockScan:
    """A scan with known coefficients gammas (b,)."""

    def scanner(grams: Grams, part: slice) -> Scan:
        return fixed_scan(grams, rows[part], gammas[part], likelihood)

    return scanner


def fixed_scan(grams: Grams, rows: Rows, gamma: Array, likelihood: int) -> Scan:
    """Scan with known coefficients gamma (b,); likelihood is that of `Rows.likelihood`."""
    from kalstream.core._kernels.chunk import scan_fixed

    fields = scan_fixed(
        grams.cov,
        grams.eye,
        grams.mean,
        *rows.observed(),
        gamma,
        rows.prior_var,
        rows.keep_mean,
        likelihood,
    )
    return Scan(*fields)


def scan_joint(
    joint: Array, prior_mean: Array, labels: Array, seen: Array
) -> tuple[Array, Array, Array, Array]:
    """Observe labels (b,) through the softmax, given the joint moments of a chunk's rows.

    A scan for a filter with covariances of its own, such as `kalstream.deep`.

    Parameters
    ----------
    joint, prior_mean : (b, b), (b, K)
        Covariance of the rows' outputs and their mean before the chunk, forgetting included.
    seen : (b, K) bool
        Classes that came before each row.

    Returns
    -------
    factor : (b, b)
        Cholesky factor of the covariance, noise included.
    innovations : (b, K)
        Residuals divided by their standard deviations.
    mean, var : (b, K), (b,)
        Moments of each row, given the labels before it. A variance that is too far below 0 gives
        NaN from its row on.
    """
    from kalstream.core._kernels.chunk import scan_joint as scan

    factor, mean = np.array(joint, np.float64), np.array(prior_mean, np.float64)
    rows = np.ascontiguousarray(labels), np.ascontiguousarray(seen)
    innovations, var = scan(factor, mean, *rows, -ROUNDING_LIMITS[0])
    return factor, innovations, mean, var


def _gains(times_cov: Array, features: Array, kept: Array, spread: Array, system: Array) -> Array:
    """Gains (n, m) of the learned rows.

    times_cov, features times covariance (n, m), is overwritten. The gains solve the triangular
    system (n, n) for the covariance of the weights with each row's target, kept^2 A phi +
    spread phi.
    """
    from kalstream.core._kernels.chunk import solve_lower, target_covariance

    target_covariance(times_cov, features, kept, spread)
    if len(times_cov) <= _FEW_ROWS:
        solve_lower(system, times_cov)
        return times_cov
    return blas.dtrsm(1.0, system.T, times_cov.T, side=1, lower=0, overwrite_b=1).T


def _joined(steps: list[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]
    return Step(
        *(
            np.concatenate([getattr(step, name) for step in steps])
            for name in ("logit_mean", "logit_var", "gamma", "noise_var", "nis")
        )
    )
