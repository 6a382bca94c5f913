"""What may speak beside the filters of a mixture: `expert` declares it, one file for each."""

from kalstream.core.experts.expert import Expert, ExpertRows, ExpertState

__all__ = ["Expert", "ExpertRows", "ExpertState"]
