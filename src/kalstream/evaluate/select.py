"""Selection by code length: the candidate that gives the targets the highest probability."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kalstream.errors import InvalidInput
from kalstream.evaluate.adapters import is_learner
from kalstream.evaluate.metrics import METRICS, log_probability_metric
from kalstream.evaluate.prequential import Result, prequential
from kalstream.streams import Stream


@dataclass(frozen=True)
class Selection:
    """Result of `select`.

    Attributes
    ----------
    name : str
        Name of the best candidate.
    learner : object
        The best candidate, after the stream.
    table : list of dicts
        For each candidate, best first: its name, the log probability of all targets, and its
        metrics.
    results : dict of Result

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> from kalstream.streams import ArrayStream
    >>> stream = ArrayStream([[1.0], [-1.0]] * 50, ["up", "down"] * 25 + ["down", "up"] * 25)
    >>> how = {"features": "raw", "likelihood": "onehot"}
    >>> made = {f"gamma {g}": KalmanClassifier(g, **how) for g in (1.0, 0.9)}
    >>> selection = select(made, stream)
    >>> [row["name"] for row in selection.table], selection.learner.n_seen_
    (['gamma 0.9', 'gamma 1.0'], 100)
    """

    name: str
    learner: Any
    table: list[dict[str, Any]]
    results: dict[str, Result]

    def __str__(self) -> str:
        width = max(len(row["name"]) for row in self.table)
        first = next(metric for name, metric in METRICS.items() if name in self.table[0])
        return "\n".join(
            f"{row['name']:{width}}  log probability {row['log_probability']:14.2f}"
            f"  {first.name} {row[first.name]:.4f}"
            for row in self.table
        )


def select(candidates: Mapping[str, Any], stream: Stream, **protocol: Any) -> Selection:
    """Select the candidate with the highest cumulative log probability.

    Every prediction is made before its target is seen, so the sum is a code length (minimum
    description length), and no rows have to be held out (appendix D of the paper).

    Parameters
    ----------
    candidates : {name: learner}
        A learner, which is copied first and stays as it is, or a function without arguments that
        makes one.
    stream : Stream
    **protocol
        As for `prequential`.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> from kalstream.streams import ArrayStream
    >>> stream = ArrayStream([[1.0], [-1.0]] * 50, ["up", "down"] * 25 + ["down", "up"] * 25)
    >>> how = {"features": "raw", "likelihood": "onehot"}
    >>> made = {f"gamma {g}": KalmanClassifier(g, **how) for g in (1.0, 0.9)}
    >>> select(made, stream).name
    'gamma 0.9'
    """
    if not candidates:
        raise InvalidInput("select needs at least one candidate")
    if not stream.repeatable:
        raise InvalidInput(f"stream {stream.name!r} can be read only once; save it to a file first")
    learners: dict[str, Any] = {}
    results: dict[str, Result] = {}
    table: list[dict[str, Any]] = []
    for name, candidate in candidates.items():
        is_factory = callable(candidate) and not is_learner(candidate)
        learner = candidate() if is_factory else copy.deepcopy(candidate)
        learners[name], results[name] = learner, prequential(learner, stream, **protocol)
        loss = results[name].total[log_probability_metric(stream.task).name]
        if loss is None:
            raise InvalidInput(
                f"{name!r} gives no probabilities, so it has no code length; leave it out"
            )
        log_probability = -loss * results[name].n_scored
        table.append({"name": name, "log_probability": log_probability, **results[name].total})
    table.sort(key=lambda row: -row["log_probability"])
    best = table[0]["name"]
    return Selection(best, learners[best], table, results)
