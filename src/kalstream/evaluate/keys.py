"""How well the rows of each key are predicted, and how that grows with the rows of a key."""

from __future__ import annotations

import bisect
import math
from typing import Any, Final

from kalstream._json import from_number
from kalstream.evaluate.adapters import known
from kalstream.evaluate.metrics import Scored
from kalstream.streams import Batch

MOST_KEYS: Final = 5000  # of which sums are kept: those that came first
LEAST_ROWS: Final = 20  # scored rows of a key that can be among the best or the worst
_LISTED: Final = 10
# Last row of its key, counted among those with a label, in each step of the curve.
_STEPS: Final = (1, 5, 20, 100)


class KeyTracker:
    """Log-losses of classification by key, and by how many rows of a key had come before.

    Rows without a label are not counted. Of keys that come after `MOST_KEYS` others, only the
    number of rows is kept.

    Attributes
    ----------
    sums : {key: [rows with a label, rows scored, sum of their log-losses]}
    curve : list of [rows scored, sum of their log-losses]
        By the place of a row among those of its key: 1, 2 to 5, 6 to 20, 21 to 100, more.
    n_later : int
        Rows with a label of later keys.
    """

    def __init__(self) -> None:
        self.sums: dict[Any, list[Any]] = {}
        self.curve: list[list[Any]] = [[0, 0.0] for _ in (*_STEPS, None)]
        self.n_later = 0

    def update(self, batch: Batch, scored: Scored | None) -> None:
        """Take in rows and their scores."""
        if scored is None or batch.keys is None:
            return
        keys = batch.keys[known(batch.targets)].tolist()
        # Rows before the first label was learned are not scored.
        losses = [math.nan] * (len(keys) - len(scored.log_prob)) + (-scored.log_prob).tolist()
        for key, loss in zip(keys, losses, strict=True):
            self._add(key, loss)

    def _add(self, key: Any, loss: float) -> None:
        if key not in self.sums and len(self.sums) == MOST_KEYS:
            self.n_later += 1
            return
        own = self.sums.setdefault(key, [0, 0, 0.0])
        own[0] += 1
        if math.isfinite(loss):
            step = self.curve[bisect.bisect_left(_STEPS, own[0])]
            own[1], own[2] = own[1] + 1, own[2] + loss
            step[0], step[1] = step[0] + 1, step[1] + loss

    def line(self, learner: Any) -> dict[str, Any]:
        """Its part of the last line of metrics.jsonl; docs/files.md lists its fields."""
        often = ((key, n, total) for key, (_, n, total) in self.sums.items() if n >= LEAST_ROWS)
        means = [{"key": key, "rows": n, "log_loss": total / n} for key, n, total in often]
        ranked = sorted(means, key=lambda each: each["log_loss"])
        n_best = min(_LISTED, (len(ranked) + 1) // 2)
        weights = getattr(learner, "spread_weights_", {}).items()
        names = ("intercepts", "columns", "half_life", "weight")
        firsts = (1, *(last + 1 for last in _STEPS))
        return {
            "n": max(len(self.sums), getattr(learner, "n_keys_", 0)),
            "spread": getattr(learner, "spread_", None),
            "spread_weights": [
                dict(zip(names, map(from_number, (*each, weight)), strict=True))
                for each, weight in weights
            ],
            "best": ranked[:n_best],
            "worst": ranked[n_best:][::-1][:_LISTED],
            "curve": [
                {"first": first, "rows": n, "log_loss": total / n if n else None}
                for first, (n, total) in zip(firsts, self.curve, strict=True)
            ],
            "later_rows": self.n_later,
        }

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        sums = [[key, *own] for key, own in self.sums.items()]
        curve = [list(step) for step in self.curve]  # a checkpoint keeps it while rows go on
        return {"sums": sums, "curve": curve, "n_later": self.n_later}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.sums = {key: list(own) for key, *own in state["sums"]}
        self.curve = [list(step) for step in state["curve"]]
        self.n_later = state["n_later"]
