"""What a learner says about its own forgetting, noted as the stream goes by."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kalstream.errors import KalstreamError


class Watched:
    """Half-lives on average over a window, and the alarms that began in it."""

    def __init__(self) -> None:
        self.drifts = True  # until the learner says that it cannot tell
        self.n_alarms = 0
        self.clear()

    def clear(self) -> None:
        """Begin a window."""
        self.n = 0
        self.sums: dict[float, float] = {}
        self.alarms: list[dict[str, Any]] = []

    def look(self, learner: Any) -> None:
        """Note half-lives and alarms, if the learner has them."""
        try:
            weights: Mapping[float, float] | None = getattr(learner, "half_life_weights_", None)
        except ValueError:  # not fitted yet
            return
        if weights is None:
            return
        self.n += 1
        if len(weights) == 1:  # one filter: its half-life moves, and the last one counts
            self.sums = {}
            weights = dict.fromkeys(weights, float(self.n))
        for half_life, weight in weights.items():
            self.sums[half_life] = self.sums.get(half_life, 0.0) + weight
        self._look_for_alarms(learner)

    def _look_for_alarms(self, learner: Any) -> None:
        if not (self.drifts and hasattr(learner, "drift")):
            return
        try:
            drift = learner.drift()
        except KalstreamError:
            self.drifts = False
            return
        if drift.alarms > self.n_alarms:
            self.n_alarms = drift.alarms
            self.alarms.append({"row": drift.since, "confidence": drift.peak})

    def line(self) -> dict[str, Any]:
        """Its part of a line about the window."""
        half_life = None
        if self.n:
            ranked = sorted((h, w / self.n) for h, w in self.sums.items())
            below = np.cumsum([w for _, w in ranked])
            median = ranked[int(np.searchsorted(below, 0.5 * below[-1]))][0]
            half_life = {
                "half_lives": [_plain(h) for h, _ in ranked],
                "weights": [w for _, w in ranked],
                "median": _plain(median),
            }
        return {"half_life": half_life, "drift": self.alarms}

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        sums = [[_plain(half_life), weight] for half_life, weight in self.sums.items()]
        return copy.deepcopy({**vars(self), "sums": sums})

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        vars(self).update(copy.deepcopy(state))
        self.sums = {float(half_life): weight for half_life, weight in state["sums"]}


def _plain(half_life: float) -> float | str:
    """A half-life as JSON takes it."""
    return float(half_life) if math.isfinite(half_life) else "inf"
