"""Likelihoods: how a label is observed. Everything that depends on one asks this table.

A new likelihood needs one entry in `LIKELIHOODS`. If its curvature is new, the compiled version
goes into `_kernels/observing.py`: a branch of `curvature_of`. tests/core/test_likelihoods.py
compares the two for all entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

# Not the package: compiled code is cached for as long as all files that it imports are the same.
from kalstream.core.checks import choice

# Probabilities (K,), the label, and how many classes take part; see `softmax_curvature`.
Curvature = Callable[[NDArray[Any], int, int], float]


def _mean_curvature(p: NDArray[Any], label: int, n_classes: int) -> float:
    """Mean of the eigenvalues that are not zero of diag(p) - p p'."""
    return float(p @ (1.0 - p)) / max(n_classes - 1, 1)


def _label_curvature(p: NDArray[Any], label: int, n_classes: int) -> float:
    """Curvature along the label and any other class."""
    return 2.0 * float(p[label] * (1.0 - p[label]))


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How a label is observed.

    Attributes
    ----------
    word : str
        What users pass, and files hold.
    code : int
        What compiled code has in its place.
    usual_prior_var : float
        A prior variance that suits features of norm about 1.
    curvature : callable or None
        The plain version of the curvature of a softmax. None: the label is observed as its one-hot
        vector with Gaussian noise, as values are.
    deep : bool
        Whether the heads of `kalstream.deep` have it.
    is_softmax : bool
        Whether the outputs are logits. They have the right size without a calibration.
    """

    word: str
    code: int
    usual_prior_var: float
    curvature: Curvature | None = None
    deep: bool = False

    @property
    def is_softmax(self) -> bool:
        """Whether the outputs are logits."""
        return self.curvature is not None


ONEHOT: Final = Likelihood("onehot", 0, 1.0, deep=True)
SOFTMAX: Final = Likelihood("softmax", 1, 100.0, _mean_curvature, deep=True)
SOFTMAX_LABEL: Final = Likelihood("softmax-label", 2, 100.0, _label_curvature)

LIKELIHOODS: Final = {each.word: each for each in (ONEHOT, SOFTMAX, SOFTMAX_LABEL)}


def check_likelihood(name: str, word: Any) -> Likelihood:
    """The entry of a word."""
    return LIKELIHOODS[choice(name, word, tuple(LIKELIHOODS))]
