"""Choosing by code length: the candidate that would have sent the labels in the fewest bits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kalstream.errors import InvalidInput
from kalstream.evaluate.prequential import Result, prequential
from kalstream.streams import Stream


@dataclass(frozen=True)
class Selection:
    """What `select` found.

    Attributes
    ----------
    name : str
        Of the best candidate.
    learner : object
        That candidate, after the stream.
    table : list of dicts
        For each candidate, best first: its name, the log probability of all targets together, and
        its metrics.
    results : dict of Result
    """

    name: str
    learner: Any
    table: list[dict[str, Any]]
    results: dict[str, Result]

    def __str__(self) -> str:
        wide = max(len(row["name"]) for row in self.table)
        second = "accuracy" if "accuracy" in self.table[0] else "rmse"
        return "\n".join(
            f"{row['name']:{wide}}  log probability {row['log_probability']:14.2f}"
            f"  {second} {row[second]:.4f}"
            for row in self.table
        )


def select(candidates: Mapping[str, Any], stream: Stream, **protocol: Any) -> Selection:
    """The candidate with the highest cumulative log probability: minimum description length.

    Every prediction is made before its target is seen, so the sum is an honest code length, and
    nothing has to be held out (appendix D of the paper).

    Parameters
    ----------
    candidates : {name: learner}
        Each is copied first and stays as it is; or a function without arguments that makes one.
    stream : Stream
    **protocol
        As of `prequential`.

    Examples
    --------
    >>> from kalstream import KalmanClassifier
    >>> from kalstream.streams import ArrayStream
    >>> stream = ArrayStream([[1.0], [-1.0]] * 50, ["up", "down"] * 25 + ["down", "up"] * 25)
    >>> made = {f"gamma {g}": KalmanClassifier(g, "raw") for g in (1.0, 0.9)}
    >>> select(made, stream).name
    'gamma 0.9'
    """
    if not candidates:
        raise InvalidInput("select needs one candidate at least")
    if not stream.repeatable:
        raise InvalidInput(f"stream {stream.name!r} passes only once; save it to a file first")
    learners: dict[str, Any] = {}
    results: dict[str, Result] = {}
    table: list[dict[str, Any]] = []
    for name, candidate in candidates.items():
        made = candidate() if _makes(candidate) else copy.deepcopy(candidate)
        learners[name], results[name] = made, prequential(made, stream, **protocol)
        loss = results[name].total.get("log_loss", results[name].total.get("nlpd"))
        if loss is None:
            raise InvalidInput(
                f"{name!r} gives no probabilities, so it has no code length; leave it out"
            )
        log_probability = -loss * results[name].n_scored
        table.append({"name": name, "log_probability": log_probability, **results[name].total})
    table.sort(key=lambda row: -row["log_probability"])
    best = table[0]["name"]
    return Selection(best, learners[best], table, results)


def _makes(candidate: Any) -> bool:
    """Whether this is something that makes a learner, not one."""
    return callable(candidate) and not hasattr(candidate, "predict")
