"""Baselines: networks trained online by gradients alone (SGD, ER, ER++, ACE)."""

from kalstream._optional import require

require("torch", "torch")

from kalstream.baselines.learners import ACE, ExperienceReplay, OnlineSGD  # noqa: E402
from kalstream.deep.softmax import SoftmaxHead  # noqa: E402

__all__ = ["ACE", "ExperienceReplay", "OnlineSGD", "SoftmaxHead"]
