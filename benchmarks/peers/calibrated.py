"""Reliability of predictions, before and after a calibration that is learned online."""

from __future__ import annotations

from typing import Any

import numpy as np

from kalstream.core import Calibration
from kalstream.evaluate.metrics import LabelScore, Scored
from kalstream.evaluate.prequential import Record

LEAST = 1e-6  # any power of a probability of 0 is 0, so that calibration could not correct it


class Calibrated:
    """Probabilities raised to a power alpha and normalised; alpha is learned after each row.

    This applies the calibration of kalstream's filters (`kalstream.core.Calibration`) to any
    learner.
    """

    def __init__(self) -> None:
        self.rule = Calibration()
        self.alpha, self.after = self.rule.start(), LabelScore()

    def add(self, record: Record) -> None:
        """Score the rows of a record, then learn from them."""
        scored, probabilities = record.scored, record.answer.probabilities
        if scored is None or probabilities is None or not len(scored.codes):
            return
        columns = {label: k for k, label in enumerate(record.answer.labels or [])}
        for i, label in enumerate(record.batch.targets.tolist()):
            one = Scored(*(getattr(scored, name)[i : i + 1] for name in Scored.__slots__))
            if label in columns and probabilities[i].sum() > 0.0:
                one = self._learn(one, probabilities[i], columns[label])
            self.after.add(one)

    def _learn(self, one: Scored, probabilities: Any, k: int) -> Scored:
        logs = np.log(np.maximum(probabilities / probabilities.sum(), LEAST))
        p = np.exp(self.alpha.value * (logs - logs.max()))
        p /= p.sum()
        # d log p_k / d log alpha
        gradient = self.alpha.value * (logs[k] - p @ logs)
        self.alpha = self.rule.learn(self.alpha, float(gradient))
        own = np.log(np.maximum(p[k], LEAST))
        brier = p @ p + 1.0 - 2.0 * p[k]
        values = own, p.max(), brier, np.nan
        return Scored(one.codes, one.predicted, *(np.array([value]) for value in values))

    def result(self, before: LabelScore) -> dict[str, Any] | None:
        """Log-loss, ECE and bins of the reliability diagram, before and after."""
        if not self.after.n:
            return None
        return {
            name: {
                "log_loss": score.values()["log_loss"],
                "ece": score.values()["ece"],
                "bins": score.reliability(),
            }
            for name, score in (("before", before), ("after", self.after))
        }
