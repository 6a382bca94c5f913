"""Classes that a checkpoint may hold, under explicit tags that never change."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from kalstream.errors import InvalidInput

# Classes by the tag that stands for them in a file.
TAGGED: dict[str, type] = {}


class Tagged(ABC):
    """A dataclass that checkpoints can hold. A subclass with a tag is known by importing it."""

    __slots__ = ()

    tag: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "tag" not in cls.__dict__:
            return
        other = TAGGED.setdefault(cls.tag, cls)
        # A dataclass with slots is made twice.
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidInput(
                f"the tag {cls.tag!r} of {cls.__qualname__} is that of {other.__qualname__} in "
                f"{other.__module__}; choose another tag"
            )
        TAGGED[cls.tag] = cls
