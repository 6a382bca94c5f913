"""Streams with hyper-parameters drawn at random, for property tests."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kalstream.core import Posterior, init

GAMMAS = (1.0, 1.0 - 1e-12, 0.999, 0.9, 0.5, 0.0)


@dataclass(frozen=True)
class Stream:
    """Rows, and the settings of the filter."""

    features: np.ndarray
    targets: np.ndarray
    n_outputs: int
    gamma: np.ndarray
    settings: dict[str, Any]

    def __len__(self) -> int:
        return len(self.features)

    @property
    def labels(self) -> bool:
        """Whether targets are class labels."""
        return self.targets.ndim == 1

    @property
    def prior(self) -> Posterior:
        """The posterior before the first row."""
        m = self.features.shape[1]
        return init(m, self.n_outputs, prior_var=self.settings["prior_var"])

    def __getitem__(self, rows: slice) -> "Stream":
        per_row = {
            name: value[rows] if name in ("sample_weight", "time_gap") else value
            for name, value in self.settings.items()
        }
        return Stream(
            self.features[rows], self.targets[rows], self.n_outputs, self.gamma[rows], per_row
        )

    def chunks(self, cuts) -> list["Stream"]:
        """The stream, cut before each of the given positions."""
        ends = sorted({0, len(self), *(c for c in cuts if c < len(self))})
        return [self[slice(a, b)] for a, b in pairwise(ends)]


def decades(low: float, high: float) -> st.SearchStrategy[float]:
    """A positive number with uniform logarithm."""
    return st.floats(np.log10(low), np.log10(high)).map(lambda x: float(10.0**x))


@st.composite
def streams(draw, max_rows=24, labels=None, keep_mean=None, gammas=GAMMAS, seeds=2**32 - 1):
    """Draw a `Stream`: labels or values, missing targets, weights with 0, gaps with 0 and 4000."""
    n, m = draw(st.integers(1, max_rows)), draw(st.integers(1, 6))
    n_outputs = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, seeds)))
    features = rng.standard_normal((n, m))
    missing = rng.random(n) < draw(st.sampled_from([0.0, 0.0, 0.3, 1.0]))
    if draw(st.booleans()) if labels is None else labels:
        targets = np.where(missing, -1, rng.integers(0, n_outputs, n))
    else:
        targets = np.where(missing[:, None], np.nan, rng.standard_normal((n, n_outputs)))
    each = draw(st.booleans())
    gamma = rng.choice(gammas, n) if each else np.full(n, draw(st.sampled_from(gammas)))
    noise_var = draw(decades(1e-2, 1e2))
    settings = {
        "noise_var": noise_var,
        # Their ratio is the condition number of the problem. If the posterior is 1e4 times smaller
        # than the prior, four digits are lost in any arithmetic. tests/numerics goes further.
        "prior_var": noise_var * draw(decades(1e-4, 1e2)),
        "keep_mean": draw(st.booleans()) if keep_mean is None else keep_mean,
    }
    if draw(st.booleans()):
        settings["sample_weight"] = rng.choice([0.0, 0.3, 1.0, 5.0], n)
    if draw(st.booleans()):
        settings["time_gap"] = rng.choice([0.0, 1.0, 1.0, 2.5, 4000.0], n)
    return Stream(features, targets, n_outputs, gamma, settings)
