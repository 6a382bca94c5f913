"""Features that need no torch: online scaling and random Fourier features.

Both learn online. `advance` transforms every row with the scale learned before it, then learns the
row. A chunk therefore gives the same numbers as its rows one by one.
"""

from kalstream.features.fourier import RandomFourierFeatures
from kalstream.features.scaling import OnlineScaler

__all__ = ["OnlineScaler", "RandomFourierFeatures"]
