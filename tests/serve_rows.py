"""Events for the tests of the service."""

from typing import Any

import numpy as np


def rows(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Events of a rule that depends on a number and on a category."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        x, color = float(rng.standard_normal()), ("red", "blue")[int(rng.integers(2))]
        label = "yes" if (x > 0) == (color == "red") else "no"
        out.append({"row": {"x": x, "color": color}, "label": label})
    return out
