"""The type of an array of any kind of elements, which signatures name everywhere."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
