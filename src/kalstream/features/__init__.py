"""Features that need no torch: tables as numbers, online scaling and random Fourier features.

All learn online. `advance` of a scaler or of Fourier features transforms every row with the scale
learned before it, then learns the row. A chunk therefore gives the same numbers as its rows one by
one. `TableEncoder` turns tables into columns of numbers; a new category has its column at once.
`Aggregates` adds what the earlier rows of a row's key had.
"""

from typing import TYPE_CHECKING, Any

from kalstream.features.aggregates import Aggregates
from kalstream.features.fourier import RandomFourierFeatures
from kalstream.features.scaling import OnlineScaler

if TYPE_CHECKING:
    from kalstream.features.tables import TableEncoder

__all__ = ["Aggregates", "OnlineScaler", "RandomFourierFeatures", "TableEncoder"]


def __getattr__(name: str) -> Any:
    if name != "TableEncoder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kalstream.features.tables import TableEncoder  # it imports pyarrow, which takes long

    globals()[name] = TableEncoder
    return TableEncoder
