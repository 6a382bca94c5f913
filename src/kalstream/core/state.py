"""What one step needs from the last (`Posterior`), and what a step reports (`Step`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import blas

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core._memory import Spares
from kalstream.errors import DonatedState, InvalidInput

if TYPE_CHECKING:
    from kalstream.core.predictive import Method

# Once the scale of the stored covariance has decayed this far, pending rows, stored divided by
# its square root, are folded before they lose half their digits to the larger shift.
SMALLEST_SCALE: Final = 1e-8
# The scale of the stored mean is multiplied in once it has decayed this far.
_WORN_SCALE: Final = 1e-3
# Chunks of more rows are folded at once: a rank-b update then costs no more than its deferral.
DEFERRED_ROWS: Final = 12


@dataclass(frozen=True, slots=True)
class Step:
    """Report of one step, or of every row of a chunk.

    The moments are those of the prediction made before the row's target was seen.

    Attributes
    ----------
    logit_mean : (K,) or (b, K)
        Predicted mean of the outputs, mu_n in the paper.
    logit_var : scalar or (b,)
        Their predicted variance, shared by all outputs, s_n^2 in the paper.
    gamma : scalar or (b,)
        Forgetting coefficient that the row's transition used (1 where it took none).
    noise_var : scalar or (b,)
        Noise variance of the row's target: divided by its weight, inf where nothing was learned.
        For a label that is observed through the softmax, one over the curvature.
    nis : scalar or (b,)
        Normalised innovation squared, averaged over outputs; near 1 for a well-specified
        filter, NaN where nothing was learned. For the softmax, the squared error of the
        probabilities over its expectation.
    calibration : (b,), optional
        Factor alpha that the policy had for the row's logits.

    Examples
    --------
    >>> from kalstream.core import init, step
    >>> given = {"gamma": 0.5, "noise_var": 1.0, "prior_var": 1.0}
    >>> _, seen = step(init(1, 1, prior_var=1.0), [1.0], 0.5, **given)
    >>> float(seen.logit_mean[0]), float(seen.logit_var), float(seen.half_life)
    (0.0, 1.0, 1.0)
    """

    logit_mean: Array
    logit_var: Array
    gamma: Array
    noise_var: Array
    nis: Array
    calibration: Array | None = None

    @property
    def half_life(self) -> Array:
        """Steps after which a weight has halved at this gamma, as gamma."""
        with np.errstate(divide="ignore"):
            steps: Array = np.log(0.5) / np.log(self.gamma)
        return np.where(self.gamma == 1.0, np.inf, steps)

    # What `policy.PolicyStep` asks for, of the rows of a chunk.

    @property
    def bank(self) -> BankStep:
        """The step as that of a bank of one filter."""
        # Not [None]: a stride of 0 would be saved as another order of the axes.
        parts = self.logit_mean, self.logit_var, self.gamma, self.noise_var, self.nis
        return BankStep(*(part.reshape(1, *part.shape) for part in parts))

    @property
    def mean(self) -> Array:
        """Predicted mean of the outputs (b, K)."""
        return self.logit_mean

    @property
    def weight_variance(self) -> Array:
        """Variance of the outputs (b,) that comes from not knowing the weights."""
        return self.logit_var

    def target_variance(self, noise_var: float, scale: float) -> Array:
        """Variance of the targets (b, K), noise included; all variances are multiples of scale."""
        variance = scale * (self.logit_var + noise_var)
        return np.repeat(variance[:, None], self.logit_mean.shape[1], axis=1)

    def keep_outputs(self, n_outputs: int) -> Step:
        """The same step, restricted to the first n_outputs outputs."""
        if self.logit_mean.shape[-1] == n_outputs:
            return self
        return replace(self, logit_mean=np.ascontiguousarray(self.logit_mean[..., :n_outputs]))

    def class_probabilities(
        self,
        *,
        method: Method = "exact",
        light: float = 0.0,
        n_samples: int = 100,
        random_state: int | np.random.Generator | None = None,
    ) -> Array:
        """Class probabilities (b, K); one filter has no light ones."""
        from kalstream.core.predictive import class_probabilities

        return class_probabilities(
            self.logit_mean,
            np.maximum(self.logit_var, 0.0),
            calibration=1.0 if self.calibration is None else self.calibration,
            method=method,
            n_samples=n_samples,
            random_state=random_state,
        )


@dataclass(slots=True)
class BankStep:
    """Report of every row of a chunk under each of J filters; see `Step`.

    Attributes
    ----------
    logit_mean, logit_var : (J, b, K), (J, b)
    gamma, noise_var, nis : (J, b)

    Examples
    --------
    >>> from kalstream.core import init, step_chunk
    >>> given = {"gamma": 0.5, "noise_var": 1.0, "prior_var": 1.0}
    >>> _, seen = step_chunk(init(1, 1, prior_var=1.0), [[1.0], [1.0]], [0.5, 0.5], **given)
    >>> seen.bank.logit_mean.shape  # one filter, two rows, one output
    (1, 2, 1)
    >>> (seen.bank.filters()[0].logit_mean == seen.logit_mean).all()
    np.True_
    """

    logit_mean: Array
    logit_var: Array
    gamma: Array
    noise_var: Array
    nis: Array

    def filters(self) -> tuple[Step, ...]:
        """The step of each filter by itself."""
        parts = self.logit_mean, self.logit_var, self.gamma, self.noise_var, self.nis
        return tuple(Step(*each) for each in zip(*parts, strict=True))

    def take(self, rows: Array) -> BankStep:
        """Some of the rows (n,), in this order."""
        every = self.logit_mean, self.logit_var, self.gamma, self.noise_var, self.nis
        return BankStep(*(np.take(part, rows, axis=1) for part in every))

    def tail(self, n_rows: int) -> BankStep:
        """The last rows, without their means if these are many: enough for `guard.health`."""
        n = self.nis.shape[1]
        if n <= n_rows and self.logit_mean.size <= 1000:
            return self
        cut = slice(max(0, n - n_rows), n)
        every = self.logit_var, self.gamma, self.noise_var, self.nis
        parts = [part[:, cut] for part in every]
        if n > n_rows:  # views would keep all rows in memory
            parts = [part.copy() for part in parts]
        return BankStep(np.empty((*parts[0].shape, 0)), *parts)


@final
class Posterior:
    """Gaussian over the weights: every output has its own mean, all share one covariance.

    Immutable to the caller. Inside it is stored so that forgetting costs O(1) and a rank-one
    update no pass over the covariance (core/README.md, "The lazy state")::

        cov = scale (B - U'U) + shift I        mean = mean_scale (Q + U'V)

    with B symmetric (only its lower triangle is kept, so that asymmetry cannot arise) and U, V
    the pending rows. `mean` and `cov` materialise.

    Parameters
    ----------
    mean : (m, K)
    cov : (m, m), symmetric and positive semi-definite

    Examples
    --------
    >>> import numpy as np
    >>> Posterior(np.zeros((3, 2)), np.eye(3))
    Posterior(n_features=3, n_outputs=2, dtype=float64)
    """

    __slots__ = ("_stored",)

    _stored: Stored | None

    def __init__(self, mean: ArrayLike, cov: ArrayLike) -> None:
        mean, cov = check.numeric("mean", mean), check.numeric("cov", cov)
        dtype = np.float32 if mean.dtype == cov.dtype == np.float32 else np.float64
        if mean.ndim != 2 or cov.shape != (len(mean), len(mean)) or not mean.size:
            raise InvalidInput(
                f"mean must be (m, K) and cov (m, m), got shapes {mean.shape} and {cov.shape}"
            )
        largest = check.LARGEST_FLOAT32 if dtype == np.float32 else check.LARGEST_VARIANCE
        check.limited("mean", mean, largest**3)
        check.limited("cov", cov, 1.01 * largest)  # as large as a prior may be, and rounded
        if np.abs(cov - cov.T).max() > 1e3 * np.finfo(dtype).eps * np.abs(cov).max():
            raise InvalidInput("cov must be symmetric; pass (cov + cov.T) / 2")
        if cov.diagonal().min() < 0.0:
            raise InvalidInput(f"cov has a negative variance, {cov.diagonal().min()}")
        own = np.array(mean, dtype, order="C"), np.array(cov, dtype, order="F")
        self._stored = Stored(Base(*own, spares=Spares()))

    @classmethod
    def _of(cls, stored: Stored) -> Posterior:
        posterior = object.__new__(cls)
        posterior._stored = stored
        return posterior

    @property
    def stored(self) -> Stored:
        """The parts behind `mean` and `cov`; continuing from a copy of them is bit-exact."""
        if self._stored is None:
            raise DonatedState(
                "this posterior was given away with donate=True; use the one that was returned"
            )
        return self._stored

    @property
    def n_features(self) -> int:
        """Number of features, m."""
        return int(self.stored.base.mean.shape[0])

    @property
    def n_outputs(self) -> int:
        """Number of outputs, K."""
        return int(self.stored.base.mean.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64, or float32 by choice."""
        return self.stored.base.mean.dtype

    @property
    def mean(self) -> Array:
        """Posterior mean, a fresh array (m, K)."""
        stored = self.stored
        if stored.rows is None:
            return stored.mean_scale * stored.base.mean
        return stored.mean_scale * (stored.base.mean + stored.rows.T @ stored.coefficients)

    @property
    def cov(self) -> Array:
        """Posterior covariance, a fresh and exactly symmetric array (m, m)."""
        lower = self.stored.folded(donate=False).base.cov
        return np.ascontiguousarray(np.tril(lower) + np.tril(lower, -1).T)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        return None, {"_stored": self.stored}  # a state that was given away cannot be saved

    def __copy__(self) -> Posterior:
        stored = self.stored
        stored.base.lent = True
        return Posterior._of(stored)

    def __repr__(self) -> str:
        if self._stored is None:
            return "Posterior(<given away>)"
        return (
            f"Posterior(n_features={self.n_features}, n_outputs={self.n_outputs}, "
            f"dtype={self.dtype})"
        )


@dataclass(slots=True)
class Base:
    """Q and B of the lazy form: mean (m, K) C-ordered, cov (m, m) F-ordered.

    Only the lower triangle of cov is used.

    ``lent`` is set, and stays so, once two states share the arrays: neither may overwrite them.
    Copies are made in the memory of ``spares``; a view or a base read from a file has none yet.
    """

    mean: Array
    cov: Array
    lent: bool = False
    spares: Spares | None = None

    def copy(self) -> Base:
        """A copy with its own arrays, in memory that is free."""
        spares = Spares() if self.spares is None else self.spares
        mean, cov = spares.like(self.mean), spares.like(self.cov)
        np.copyto(mean, self.mean)
        np.copyto(cov, self.cov)  # of a triangle it would take longer
        return Base(mean, cov, spares=spares)


@dataclass(slots=True)
class Stored:
    """The lazy form of a posterior; see `Posterior` for the two equations. Never changed.

    Attributes
    ----------
    base : Base
    mean_scale, scale, shift : float
    ceiling : float
        Largest prior variance that the shift came from.
    folds : float
        Number of times the covariance was rounded. Past roundings count less, by the same factor
        as the covariance.
    rows, coefficients : (r, m), (r, K)
        Pending rows U and V.
    room : Room or None
        The buffer that `rows` and `coefficients` are the beginning of.
    """

    base: Base
    mean_scale: float = 1.0
    scale: float = 1.0
    shift: float = 0.0
    ceiling: float = 0.0
    folds: float = 1.0
    rows: Array | None = None
    coefficients: Array | None = None
    room: Room | None = None

    def products(self, features: Array) -> tuple[Array, Array, bool]:
        """Features times covariance (b, m) and times mean (b, K), nothing materialised.

        Also whether pending rows took away so much of a variance that what is left, a difference,
        has lost digits: then fold first.
        """
        if self.rows is not None and len(features) > DEFERRED_ROWS:
            return self.folded(donate=False).products(features)
        times_cov = times_symmetric(features, self.base.cov)
        times_mean = features @ self.base.mean
        lossy = False
        if self.rows is not None:
            from kalstream.core._kernels.chunk import apply_pending

            scales = self.scale, self.shift, self.mean_scale
            pending = self.rows, self.coefficients
            lossy = apply_pending(times_cov, times_mean, features, *pending, *scales)
        elif self.scale != 1.0 or self.shift != 0.0 or self.mean_scale != 1.0:
            times_cov *= self.scale
            times_cov += self.shift * features
            times_mean *= self.mean_scale
        return times_cov, times_mean, lossy

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept from row to row."""
        kept = [self.base.mean, self.base.cov]
        if self.room is not None:
            kept += [self.room.rows, self.room.coefficients]
        return sum(array.nbytes for array in kept)

    def variances(self) -> Array:
        """Upper bounds (m,) on the weights' variances: pending rows only lower them."""
        return self.scale * self.base.cov.diagonal() + self.shift

    def decayed(self, kept: float, lost: float, mean_kept: float, prior_var: float) -> Stored:
        """Forget, in O(1): kept * cov + lost * prior_var I, and mean_kept * mean."""
        return Stored(
            self.base,
            self.mean_scale * mean_kept,
            self.scale * kept,
            self.shift * kept + lost * prior_var,
            max(self.ceiling, prior_var) if lost else self.ceiling,
            self.folds * kept,
            self.rows,
            self.coefficients,
            self.room,
        )

    def with_mean_added(self, increment: Array) -> Stored:
        """The mean gains increment (m, K), the covariance stays."""
        own = self if self.mean_scale >= SMALLEST_SCALE else self.folded(donate=False)
        mean = own.base.mean + increment / own.mean_scale
        return replace(own, base=Base(mean, own.base.cov, own.base.lent, own.base.spares))

    def updated(self, rows: Array, coefficients: Array, *, donate: bool) -> Stored:
        """The covariance loses rows'rows (n, m), the mean gains rows'coefficients (n, K)."""
        n_after = len(rows) + (0 if self.rows is None else len(self.rows))
        if (
            len(rows) > DEFERRED_ROWS
            or n_after > pending_capacity(len(self.base.mean))
            or min(self.scale, self.mean_scale) < SMALLEST_SCALE
        ):
            return self.folded(rows, coefficients, donate=donate)
        return self._appended(rows, coefficients)

    def folded(
        self, rows: Array | None = None, coefficients: Array | None = None, *, donate: bool
    ) -> Stored:
        """The posterior with all pending rows added to its base.

        Its covariance also loses rows'rows, and its mean gains rows'coefficients. The scale and
        shift of the covariance become 1 and 0.
        """
        base = self.base if donate and not self.base.lent else self.base.copy()
        diagonal = base.cov.ravel(order="F")[:: len(base.cov) + 1]  # a view, cov is F-ordered
        # Forgetting averages a variance with the prior's; rounding must not exceed both.
        ceiling = np.maximum(diagonal, self.ceiling) if self.shift else None
        # The scale of the mean may stay, unlike the other it has no shift: it spares a pass.
        mean_scale = self.mean_scale if self.mean_scale > _WORN_SCALE else 1.0
        rescale = self.mean_scale / mean_scale
        if rescale != 1.0:
            base.mean *= rescale
        scale = self.scale
        if self.rows is not None:
            _subtract_square(base.cov, scale, self.rows, scale)
            _add_product(base.mean, self.rows, self.coefficients, rescale)
            scale = 1.0
        if rows is not None:
            _subtract_square(base.cov, scale, rows, 1.0)
            _add_product(base.mean, rows, coefficients, 1.0 / mean_scale)
        elif scale != 1.0:
            base.cov *= scale
        if ceiling is not None:
            diagonal += self.shift
            np.minimum(diagonal, ceiling, out=diagonal)
        return Stored(base, mean_scale, folds=self.folds + 1.0)

    def _appended(self, rows: Array, coefficients: Array) -> Stored:
        start = 0 if self.rows is None else len(self.rows)
        stop = start + len(rows)
        room = self.room
        if room is None or not room.claim(start):
            # Behind our rows there may be those of another continuation of the same state.
            shape = self.base.mean.shape
            room = Room((), pending_capacity(len(self.base.mean)), shape, self.base.mean.dtype)
            if self.rows is not None:
                room.rows[:start], room.coefficients[:start] = self.rows, self.coefficients
            room.claim(start)
        root = self.scale**0.5
        np.divide(rows, root, out=room.rows[start:stop])
        np.multiply(coefficients, root / self.mean_scale, out=room.coefficients[start:stop])
        return Stored(
            self.base,
            self.mean_scale,
            self.scale,
            self.shift,
            self.ceiling,
            self.folds,
            room.rows[:stop],
            room.coefficients[:stop],
            room,
        )


class Claims:
    """Who continues the state of so many rows: buffers are written once, front to back.

    So states can share a prefix.
    """

    __slots__ = ("claims",)

    def __init__(self) -> None:
        self.claims: dict[int, object] = {}

    def claim(self, start: int) -> bool:
        """Reserve the rows behind the first ``start``, unless somebody has done so before.

        The dictionary decides between threads, and nothing is left locked by an interrupt.
        """
        mine = object()
        return self.claims.setdefault(start, mine) is mine

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_room, ()  # a copy of a state writes into room of its own


class Room(Claims):
    """Room for pending rows.

    Attributes
    ----------
    rows, coefficients : (..., capacity, m), (..., capacity, K)
    """

    __slots__ = ("coefficients", "rows")

    def __init__(
        self, batch: tuple[int, ...], capacity: int, shape: tuple[int, ...], dtype: Any
    ) -> None:
        self.rows = np.empty((*batch, capacity, shape[0]), dtype)
        self.coefficients = np.empty((*batch, capacity, shape[1]), dtype)
        super().__init__()


def _no_room() -> None:
    return None


def pending_capacity(n_features: int) -> int:
    """How many rows may be pending: many make folding cheap, few make products cheap."""
    return min(64, max(48, n_features // 4))


def add_outputs(posterior: Posterior, n_outputs: int) -> Posterior:
    """Add ``n_outputs`` outputs, as if they had been declared at the start.

    The target of a class that was never seen was 0 in all rows, so its mean is 0.

    Examples
    --------
    >>> import numpy as np
    >>> add_outputs(Posterior(np.ones((2, 1)), np.eye(2)), 2).mean
    array([[1., 0., 0.],
           [1., 0., 0.]])
    """
    check.instance("posterior", posterior, Posterior)
    stored = posterior.stored
    columns = ((0, 0), (0, check.count("n_outputs", n_outputs)))
    stored.base.lent = True
    base = Base(np.pad(stored.base.mean, columns), stored.base.cov, True, stored.base.spares)
    coefficients = None
    if stored.coefficients is not None:
        coefficients = np.pad(stored.coefficients, columns)
    return Posterior._of(replace(stored, base=base, coefficients=coefficients, room=None))


def keep_outputs(posterior: Posterior, columns: Array) -> Posterior:
    """Keep only these outputs (K',), in this order. They do not change: outputs are independent.

    Examples
    --------
    >>> import numpy as np
    >>> keep_outputs(Posterior(np.array([[1.0, 2.0, 3.0]]), np.eye(1)), np.array([2, 0])).mean
    array([[3., 1.]])
    """
    check.instance("posterior", posterior, Posterior)
    stored = posterior.stored
    columns = check.columns("columns", columns, posterior.n_outputs)
    stored.base.lent = True
    mean = stored.base.mean.take(columns, 1)
    coefficients = stored.coefficients
    coefficients = None if coefficients is None else coefficients.take(columns, 1)
    base = Base(mean, stored.base.cov, True, stored.base.spares)
    return Posterior._of(replace(stored, base=base, coefficients=coefficients, room=None))


def add_features(posterior: Posterior, n_features: int, prior_var: float) -> Posterior:
    """Add features that were 0 in all rows so far, as if they had been there from the start.

    Nothing is known about their weights, so these have the prior.

    Examples
    --------
    >>> import numpy as np
    >>> add_features(Posterior(np.ones((1, 1)), 0.5 * np.eye(1)), 1, 2.0).cov
    array([[0.5, 0. ],
           [0. , 2. ]])
    """
    check.instance("posterior", posterior, Posterior)
    m, new = posterior.n_features, check.count("n_features", n_features)
    prior_var = check.variance("prior_var", prior_var, posterior.dtype)
    cov = np.diag(np.full(m + new, prior_var, posterior.dtype))
    cov[:m, :m] = posterior.cov
    return Posterior(np.pad(posterior.mean, ((0, new), (0, 0))), cov)


def times_symmetric(features: Array, cov: Array) -> Array:
    """Features (b, m) times the symmetric matrix in the lower triangle of cov: (b, m)."""
    n_rows, n_features = features.shape
    symm, symv = (blas.dsymm, blas.dsymv) if cov.dtype == np.float64 else (blas.ssymm, blas.ssymv)
    # A packed product first copies cov; a few passes over half of it are cheaper.
    if n_rows == 1:
        return symv(1.0, cov, features[0], lower=1)[None]
    if n_rows <= min(12, n_features // 48):
        return np.stack([symv(1.0, cov, row, lower=1) for row in features])
    return symm(1.0, cov, features.T, lower=1).T


def _subtract_square(cov: Array, keep: float, rows: Array, scale: float) -> None:
    """Replace the lower triangle of cov by keep * cov - scale * rows'rows, in place."""
    syrk = blas.dsyrk if cov.dtype == np.float64 else blas.ssyrk
    syrk(-scale, rows.T, beta=keep, c=cov, lower=1, overwrite_c=1)


def _add_product(mean: Array, rows: Array, coefficients: Array | None, scale: float) -> None:
    """Add scale * rows'coefficients to mean, in place."""
    assert coefficients is not None
    gemm = blas.dgemm if mean.dtype == np.float64 else blas.sgemm
    gemm(scale, coefficients.T, rows.T, beta=1.0, c=mean.T, trans_b=1, overwrite_c=1)
