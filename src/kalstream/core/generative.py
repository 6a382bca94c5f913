"""Classes as Gaussians under a prior that all classes share, and the probability of a new class.

Columns of a class are Gaussian under a normal-inverse-Wishart prior, and labels are drawn by a
Chinese restaurant process. `core/README.md` has the equations, `generative_reference` the plain
version.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, Self

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.experts.expert import ExpertState
from kalstream.errors import InvalidInput

# What voices differ in: powers of the densities, since columns are never quite Gaussian;
# concentrations of the Chinese restaurant process; rows that the prior of a class's own
# covariance counts for, beside the covariance that all classes share.
_POWERS: Final = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 0.01])
_CONCENTRATIONS: Final = np.array([0.01, 0.1, 1.0, 10.0, 100.0, 1000.0])
_STRENGTHS: Final = np.array([10.0, 100.0])
# Probability, at each row, that another voice becomes the best one.
SHARE: Final = 0.001
# Rows that the prior of the shared covariance counts for, which is diagonal.
_SHARED_STRENGTH: Final = 10.0
# The prior is learned again when rows are this many times as many, and after so many rows.
_GROWTH: Final = 1.5
_MOST: Final = 1000
# A prior with this number of rows is never learned again.
NEVER: Final = 2**62


@dataclass(frozen=True, slots=True)
class GenerativeState(ExpertState):
    """What `Generative` knows. Never changed.

    Counts and scatters are kept as they were when ``clock[2]`` was 0; the true ones are
    exp(-clock[2]) times as large.

    Attributes
    ----------
    learned, due : int
        Rows learned, and that number at which the prior is learned again.
    clock : (3,)
        Rows in the pooled scatter; weight of all rows, none forgotten; time in half-lives, times
        ln 2, since the prior was learned.
    counts, means : (K,), (K, d)
        Rows of each class; 0 of a class that was never seen.
    pooled, scatters : (d, d), (K, d, d)
        Scatter about the mean of its class, of all rows and of each class. Without covariances of
        their own scatters is (0, d, d).
    centre, prior : (d,), (4,)
        m_0; then k_0, strength of the prior of the shared covariance, log|S| of the shared
        covariance, log|W|.
    strengths : (O,)
        nu_0 - d - 1 of each voice with covariances of their own.
    within : (d, d)
        inv(W), W the mean of the prior of a class's own covariance.
    shared, squares : (d, d), (K,)
        inv(S) of the shared covariance, and (mean - m_0)' inv(S) (mean - m_0).
    own, own_log_dets : (O, K, d, d), (O, K)
        inv(S) and log|S| of classes.
    known_belief, new_belief : (V, T), (V, T, A)
        Weights of voices. V is 1 + O.
    evidence : (V,)
        Log-marginal likelihood of the rows, given their labels, from the second row on.
    """

    tag: ClassVar[str] = "kalstream.GenerativeState"

    learned: int
    due: int
    clock: Array
    counts: Array
    means: Array
    pooled: Array
    scatters: Array
    centre: Array
    prior: Array
    strengths: Array
    within: Array
    shared: Array
    squares: Array
    own: Array
    own_log_dets: Array
    known_belief: Array
    new_belief: Array
    evidence: Array

    def __post_init__(self) -> None:
        sound = type(self.learned) is int and type(self.due) is int and np.ndim(self.means) == 2
        n_classes, d = np.shape(self.means) if sound else (0, 0)
        o = np.size(self.strengths)
        k, v = n_classes if o else 0, 1 + o
        known, new = np.shape(self.known_belief), np.shape(self.new_belief)
        shapes = {
            **{"clock": (3,), "counts": (n_classes,), "means": (n_classes, d)},
            **{"pooled": (d, d), "scatters": (k, d, d), "centre": (d,), "prior": (4,)},
            **{"strengths": (o,), "within": (d, d), "shared": (d, d), "squares": (n_classes,)},
            **{"own": (o, k, d, d), "own_log_dets": (o, k), "evidence": (v,)},
            **{"known_belief": (v, *known[1:2]), "new_belief": (v, *known[1:2], *new[2:3])},
        }
        for name, shape in shapes.items():
            part = getattr(self, name)
            sound = sound and check.is_block(part, shape, np.float64)
            sound = sound and bool(np.isfinite(part).all())
        if not (sound and (self.counts >= 0.0).all() and (self.prior[:2] > 0.0).all()):
            raise InvalidInput("the generative classifier holds bad numbers; start again")

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays: 24 d^2 + 8 K d, and 24 K d^2 with covariances of their own."""
        return sum(part.nbytes for part in self._arrays())

    def _arrays(self) -> list[Array]:
        parts = [getattr(self, field.name) for field in fields(self)]
        return parts[2:]

    def copy(self) -> Self:
        """The state with arrays of its own."""
        parts = [part.copy() for part in self._arrays()]
        return check.trusted(type(self), self.learned, self.due, *parts)

    def add_classes(self, n_classes: int) -> Self:
        """The state with ``n_classes`` classes; the new ones have not been seen."""
        more = n_classes - self.n_classes
        kept = more if len(self.strengths) else 0
        return replace(
            self,
            counts=np.pad(self.counts, (0, more)),
            means=np.pad(self.means, ((0, more), (0, 0))),
            squares=np.pad(self.squares, (0, more)),
            scatters=np.pad(self.scatters, ((0, kept), (0, 0), (0, 0))),
            own=np.pad(self.own, ((0, 0), (0, kept), (0, 0), (0, 0))),
            own_log_dets=np.pad(self.own_log_dets, ((0, 0), (0, kept))),
        )

    def keep_classes(self, columns: Array) -> Self:
        """The state with these classes only; what others taught about covariances stays."""
        own = columns if len(self.strengths) else columns[:0]
        return replace(
            self,
            counts=self.counts[columns],
            means=self.means[columns],
            squares=self.squares[columns],
            scatters=self.scatters[own],
            own=np.ascontiguousarray(self.own[:, own]),
            own_log_dets=np.ascontiguousarray(self.own_log_dets[:, own]),
        )

    def saved(self) -> Self:
        """The state, with arrays that lie in memory as those of a file will."""
        parts = {each.name: getattr(self, each.name) for each in fields(self)}
        arrays: dict[str, Any] = {
            name: np.array(part, order="C")
            for name, part in parts.items()
            if isinstance(part, np.ndarray)
        }
        return replace(self, **arrays)

    def add_columns(self, n_columns: int) -> Self:
        """The state with columns that were missing in all rows so far, behind the others."""
        more, square = (0, n_columns), ((0, n_columns), (0, n_columns))
        fresh = np.diag(np.pad(np.zeros(len(self.centre)), more, constant_values=1.0))
        log_det = n_columns * math.log(_SHARED_STRENGTH)
        grown = replace(
            self,
            means=np.pad(self.means, ((0, 0), more)),
            pooled=np.pad(self.pooled, square),
            scatters=np.pad(self.scatters, ((0, 0), *square)),
            centre=np.pad(self.centre, more),
            prior=self.prior + np.array([0.0, 0.0, log_det, 0.0]),
            within=np.pad(self.within, square) + fresh,
            shared=np.pad(self.shared, square) + fresh / _SHARED_STRENGTH,
            own=np.pad(self.own, ((0, 0), (0, 0), *square)),
        )
        return grown.with_prior()

    def with_prior(self) -> Self:
        """The state with the prior learned from the classes so far (empirical Bayes)."""
        live = self.counts > 0.0
        s = math.exp(-self.clock[2])
        n, means, total = s * self.counts[live], self.means[live], s * self.clock[0]
        pooled, n_live = s * self.pooled, int(live.sum())
        if not n_live:
            return self
        centre = means.mean(axis=0)
        apart = means - centre  # (L, d)
        inside, free = np.diag(pooled), max(total - n_live, 0.0)
        about = means - n @ means / n.sum()
        variance = (inside + n @ about**2) / max(total, 1.0)
        usual = (inside + 2.0 * variance) / (free + 2.0)
        usual = np.where(usual > 0.0, usual, 1.0)  # a column that has not varied
        start = np.diag(_SHARED_STRENGTH * usual)
        covariance = (start + pooled) / (_SHARED_STRENGTH + free)
        within, log_det = _inverse(covariance)
        k0 = _spread(apart, within, n)
        each = np.zeros(len(self.counts))
        each[live] = k0 * n / (k0 + n)
        away = np.where(live[:, None], self.means - centre, 0.0)  # (K, d)
        shared, shared_log_det = _inverse(start + pooled + (away.T * each) @ away)
        scatters, own, own_log_dets = s * self.scatters, self.own.copy(), self.own_log_dets.copy()
        for o, strength in enumerate(self.strengths):
            for k in np.flatnonzero(live):
                outer = each[k] * np.outer(away[k], away[k])
                made = _inverse(strength * covariance + scatters[k] + outer)
                own[o, k], own_log_dets[o, k] = made
        due = min(max(self.learned + 1, int(_GROWTH * self.learned)), self.learned + _MOST)
        return check.trusted(
            *(type(self), self.learned, due, np.array([total, self.clock[1], 0.0])),
            *(s * self.counts, self.means, pooled, scatters, centre),
            np.array([k0, _SHARED_STRENGTH, shared_log_det, log_det]),
            *(self.strengths, within, shared, ((away @ shared) * away).sum(axis=1)),
            *(own, own_log_dets, self.known_belief, self.new_belief, self.evidence),
        )


def _inverse(matrix: Array) -> tuple[Array, float]:
    """The inverse of a covariance, symmetric, and its log-determinant."""
    scale = np.sqrt(np.diag(matrix))
    alike = matrix / np.outer(scale, scale)
    inverse = np.linalg.inv(alike) / np.outer(scale, scale)
    log_det = np.linalg.slogdet(alike)[1] + 2.0 * np.log(scale).sum()
    return 0.5 * (inverse + inverse.T), float(log_det)


def _spread(apart: Array, within: Array, n: Array) -> float:
    """k_0: one over how far means (L, d) are apart, in variances within classes.

    One class more counts as if its mean were as far from the centre as its rows are from it.
    """
    d, n_live = apart.shape[1], len(n)
    far = ((apart @ within) * apart).sum() / d
    by_chance = (1.0 - 1.0 / n_live) * (1.0 / np.maximum(n, 1e-3)).sum()
    return float(1.0 / min(max((1.0 + max(far - by_chance, 0.0)) / n_live, 1e-3), 1e6))


@dataclass(frozen=True)
class Generative:
    """Gaussian classes, and a class that was never seen as one more.

    Every voice has a covariance: one that all classes share, or one of each class, which its rows
    pull away from the shared one. It raises densities to a power, since columns are never quite
    Gaussian, and has a concentration. Voices are weighted by how well they have predicted: apart
    for which of the known classes comes, and for whether a new one comes.

    Attributes
    ----------
    half_life : float or None
        Rows, or units of time, after which a row counts half; None forgets nothing.
    most_columns : int
        With more columns all classes share one covariance.
    powers, concentrations, strengths : sequences of floats
        What voices differ in. Nothing has to be tuned.
    """

    half_life: float | None = None
    most_columns: int = 64
    powers: Sequence[float] = tuple(_POWERS.tolist())
    concentrations: Sequence[float] = tuple(_CONCENTRATIONS.tolist())
    strengths: Sequence[float] = tuple(_STRENGTHS.tolist())

    def __post_init__(self) -> None:
        if self.half_life is not None:
            check.positive("half_life", self.half_life)
        check.count("most_columns", self.most_columns)
        for name in ("powers", "concentrations", "strengths"):
            values = np.asarray(getattr(self, name), np.float64)
            if values.ndim != 1 or not bool((values > 0.0).all() and np.isfinite(values).all()):
                raise InvalidInput(
                    f"{name} must be positive numbers, got {check.shown(getattr(self, name))}"
                )

    def start(self, n_columns: int, n_classes: int) -> GenerativeState:
        """The state before any row."""
        d, few = n_columns, n_columns <= self.most_columns
        strengths = np.array(self.strengths if few else (), np.float64)
        o, k = len(strengths), n_classes if len(strengths) else 0
        sizes = 1 + o, len(self.powers), len(self.concentrations)
        known, new = np.ones(sizes[:2]), np.ones(sizes)
        return GenerativeState(
            *(0, 1, np.zeros(3), np.zeros(n_classes), np.zeros((n_classes, d))),
            *(np.zeros((d, d)), np.zeros((k, d, d)), np.zeros(d)),
            *(np.array([1.0, _SHARED_STRENGTH, d * math.log(_SHARED_STRENGTH), 0.0]), strengths),
            *(np.eye(d), np.eye(d) / _SHARED_STRENGTH, np.zeros(n_classes)),
            *(np.zeros((o, k, d, d)), np.zeros((o, k))),
            *(known / known.size, new / new.size, np.zeros(1 + o)),
        )

    def advance(
        self, state: GenerativeState, columns: Array, labels: Array, weight: Array, gap: Array
    ) -> tuple[GenerativeState, Array]:
        """Predict each row, then learn its label if it has one; the state given stays as it was.

        Parameters
        ----------
        columns : (b, d)
            NaN where a value is missing: it counts as the mean of the classes.
        labels : (b,) int
            -1 for a row that is only predicted.
        weight, gap : (b,)
            Sample weights, and the time since the last row that was learned.

        Returns
        -------
        state : GenerativeState
        probabilities : (b, K + 1)
            Of each class, and of one that was never seen; before the label was learned.
        """
        from kalstream.core._kernels.generative import pass_rows

        n, done = len(labels), 0
        out = np.empty((n, state.n_classes + 1))
        now = state.copy()
        rate = 0.0 if self.half_life is None else math.log(2.0) / self.half_life
        powers, concentrations = np.array(self.powers), np.array(self.concentrations)
        while done < n:
            parts: Any = now._arrays()
            passed, learned, stopped = pass_rows(
                *(columns[done:], labels[done:], weight[done:], gap[done:], rate),
                *(powers, concentrations, SHARE, now.learned, now.due, now.due < NEVER),
                *(*parts, out[done:]),
            )
            done += passed
            now = check.trusted(GenerativeState, learned, now.due, *parts)
            if stopped:
                now = now.with_prior()
        return now, out
