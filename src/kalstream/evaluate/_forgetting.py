"""Half-lives and drift alarms of a learner, window by window."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from kalstream._json import from_number, to_number
from kalstream.core.half_lives import weighted_median
from kalstream.errors import KalstreamError
from kalstream.evaluate.adapters import Adapter


class Place(NamedTuple):
    """Where an alarm is in the stream, in rows: the row whose target raised it, and when.

    Attributes
    ----------
    row : int
    raised : int
        The last row that had come; ``row`` itself if targets come at once.
    """

    row: int
    raised: int


class ForgettingTracker:
    """Mean weights of the half-lives over a window, and the drift alarms that began in it."""

    # The attributes are part of checkpoints, by their names.
    def __init__(self) -> None:
        self.drifts = True  # until the learner refuses to report drift
        self.n_alarms = 0
        self.n_alarms_before = 0  # alarms of the learner before the stream; n_alarms counts them
        self.n_before = 0  # rows that came to the learner before the stream
        self.clear()

    def begin_with(self, adapter: Adapter) -> None:
        """Count from here on: the learner may have learned before, and raised alarms."""
        learner = adapter.learner
        self.n_before = getattr(learner, "n_rows_", getattr(learner, "n_seen_", 0))
        try:
            drift = adapter.drift()
        except KalstreamError:
            self.drifts = False
            return
        self.n_alarms = self.n_alarms_before = 0 if drift is None else drift.alarms

    def clear(self) -> None:
        """Begin a window."""
        self.n = 0
        self.sums: dict[float, float] = {}
        self.alarms: list[dict[str, Any]] = []

    def update(self, adapter: Adapter, place: Callable[[int], Place]) -> None:
        """Add the learner's half-lives and alarms, if it has any.

        ``place`` finds an alarm in the stream, given how many rows came before its own.
        """
        weights = adapter.half_life_weights()
        if weights is None:
            return
        self.n += 1
        if len(weights) == 1:  # one filter, whose half-life changes: only the last one counts
            self.sums = {}
            weights = dict.fromkeys(weights, float(self.n))
        for half_life, weight in weights.items():
            self.sums[half_life] = self.sums.get(half_life, 0.0) + weight
        if self.drifts:
            self._update_alarms(adapter, place)

    def _update_alarms(self, adapter: Adapter, place: Callable[[int], Place]) -> None:
        try:
            drift = adapter.drift()
        except KalstreamError:
            self.drifts = False
            return
        if drift is not None and drift.alarms > self.n_alarms:
            n, self.n_alarms = drift.alarms - self.n_alarms, drift.alarms
            row, raised = place(max(0, drift.since - self.n_before))
            more: dict[str, Any] = {} if raised == row else {"raised": raised}
            if n > 1:  # in rows that were learned at once: the place is that of the last
                more["alarms"] = n
            self.alarms.append({"row": row, **more, "confidence": drift.peak})

    def line(self) -> dict[str, Any]:
        """Its part of the line of a window."""
        if not self.n:
            return {"half_life": None, "drift": self.alarms}
        ranked = sorted((half_life, sum_ / self.n) for half_life, sum_ in self.sums.items())
        half_lives, weights = [h for h, _ in ranked], [w for _, w in ranked]
        half_life = {
            "half_lives": [from_number(h) for h in half_lives],
            "weights": weights,
            "median": from_number(float(weighted_median(half_lives, weights))),
        }
        return {"half_life": half_life, "drift": self.alarms}

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        sums = [[from_number(half_life), weight] for half_life, weight in self.sums.items()]
        return copy.deepcopy({**vars(self), "sums": sums})

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        vars(self).update(copy.deepcopy(state))
        self.sums = {to_number(half_life): weight for half_life, weight in state["sums"]}
