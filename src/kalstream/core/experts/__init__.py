"""What may speak beside the filters of a mixture: `expert` declares it, one file for each."""

from kalstream.core.experts.chains import LabelChain
from kalstream.core.experts.expert import Expert, ExpertRows, ExpertState
from kalstream.core.experts.generative import GaussianClasses
from kalstream.core.experts.linear import Linear
from kalstream.core.experts.neighbours import Neighbours

__all__ = [
    "Expert",
    "ExpertRows",
    "ExpertState",
    "GaussianClasses",
    "LabelChain",
    "Linear",
    "Neighbours",
]
