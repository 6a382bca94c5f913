"""A mixture of filters with fixed half-lives, weighted by how well each predicts.

It needs no tuning where SGD on delta is fragile: see core/README.md, "The mixture".
"""

from kalstream.core.mixture.policy import Mixture
from kalstream.core.mixture.state import MixtureState
from kalstream.core.mixture.step import MixtureStep, mixture_probabilities, moments_of

__all__ = ["Mixture", "MixtureState", "MixtureStep", "mixture_probabilities", "moments_of"]
