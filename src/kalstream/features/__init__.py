"""Representations that need no torch: online scaling and random Fourier features.

Both learn from the rows as they pass. `advance` transforms every row with what was known before
it and then learns it, so that a chunk gives the same numbers as its rows one by one.
"""

from kalstream.features.fourier import RandomFourierFeatures
from kalstream.features.scaling import OnlineScaler

__all__ = ["OnlineScaler", "RandomFourierFeatures"]
