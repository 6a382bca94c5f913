"""Owns what runs on several machines, by Ray: models by key, and the jobs of sweeps."""

from kalstream.distributed.keyed import Keyed
from kalstream.distributed.places import JobsOnRay, OnRay

__all__ = ["JobsOnRay", "Keyed", "OnRay"]
