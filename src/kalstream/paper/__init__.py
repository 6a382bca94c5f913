"""The paper's tables and figures. Each experiment is one file in ``experiments/``."""

from kalstream.paper.command import reproduce, shown
from kalstream.paper.plan import Plan, names

__all__ = ["Plan", "names", "reproduce", "shown"]
