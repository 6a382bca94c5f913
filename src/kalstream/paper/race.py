"""Passes of several setups side by side over their streams."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from kalstream.deep import Fleet, Outcome
from kalstream.paper.images import Images, Photographs
from kalstream.paper.learners import make
from kalstream.paper.plan import Setup


@dataclass
class Pass:
    """Result of one pass over a stream, window by window.

    Attributes
    ----------
    window : int
        Rows of a window.
    right : list of int
        Number of correct predictions in each window.
    log_prob : list of float
        Sum of log-probabilities in each window.
    gamma, lowest : list of float
        Gamma at the end of each window, and its lowest value within the window.
    rows : int
        Rows learned; fewer than the stream has if the pass failed.
    failed : str or None
        Why the pass failed.
    seconds : float
        Time of all passes that ran together, divided by their number.
    experts : {name: (accuracy in percent, mean log-probability)}
        Scores of the experts of a stack.
    """

    window: int
    right: list[int]
    log_prob: list[float]
    gamma: list[float]
    lowest: list[float]
    rows: int = 0
    failed: str | None = None
    seconds: float = 0.0
    experts: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """Average online accuracy, in percent."""
        return 100.0 * sum(self.right) / max(self.rows, 1)

    @property
    def mean_log_prob(self) -> float:
        """Mean log-probability of a row; minus infinity if the pass failed."""
        return -float("inf") if self.failed else sum(self.log_prob) / max(self.rows, 1)

    def to_json(self) -> dict[str, Any]:
        """The pass as a result file stores it, rounded."""
        rounded = {"log_prob": [round(each, 3) for each in self.log_prob]}
        for name in ("gamma", "lowest"):
            rounded[name] = [round(each, 6) for each in getattr(self, name)]
        experts = {name: [round(a, 2), round(b, 4)] for name, (a, b) in self.experts.items()}
        return {**asdict(self), **rounded, "seconds": round(self.seconds, 2), "experts": experts}


class Race:
    """Setups that run together, chunk by chunk; some may be dropped on the way.

    Parameters
    ----------
    setups : sequence of Setup
        All with the same chunk size.
    images : Images or Photographs
    device : str
    window : int
        Rows of a window; a multiple of the chunk.
    """

    def __init__(
        self, setups: Sequence[Setup], images: Images | Photographs, device: str, window: int = 500
    ) -> None:
        self.setups, self.images, self.device = list(setups), images, device
        self.chunk, self.at = setups[0].chunk, 0
        self.window = max(self.chunk, window // self.chunk * self.chunk)
        learners = [
            make(each.options, images.n_classes, each.seed, device, images.reader(self.chunk))
            for each in setups
        ]
        self.fleet = Fleet(learners)
        torch.manual_seed(setups[0].seed)  # for samples of a Monte Carlo predictive
        self.passes = [Pass(self.window, [], [], [], []) for _ in setups]
        self.active = list(range(len(setups)))

    def advance(self, until: int) -> None:
        """Run the remaining setups up to a row."""
        begun, n_active = time.perf_counter(), max(len(self.active), 1)
        while self.at < until:
            end = min(self.at + self.window, until)
            outcomes: list[list[tuple[Outcome, Tensor]]] = [[] for _ in self.active]
            while self.at < end:
                size = min(self.chunk, end - self.at)
                chunks = self._chunks(size)
                if len(chunks[0][1]) == 0:  # the stream had fewer rows than it listed
                    end = until = self.at
                    break
                stepped = self.fleet.step(chunks)
                for mine, outcome, chunk in zip(outcomes, stepped, chunks, strict=True):
                    if outcome is not None:
                        mine.append((outcome, chunk[1]))
                self.at += len(chunks[0][1])
            for place, (number, mine) in enumerate(zip(self.active, outcomes, strict=True)):
                _add_window(self.passes[number], mine)
                names = getattr(self.fleet.learners[place].head, "names", ())
                _add_experts(self.passes[number], mine, names)
        spent = (time.perf_counter() - begun) / n_active
        for place, number in enumerate(self.active):
            self.passes[number].seconds += spent
            if place in self.fleet.failed:
                self.passes[number].failed = str(self.fleet.failed[place])

    def keep(self, numbers: Sequence[int]) -> None:
        """Drop all setups but these, numbered as in ``setups``."""
        places = [self.active.index(number) for number in numbers]
        failed = self.fleet.failed
        self.fleet = Fleet([self.fleet.learners[place] for place in places])
        self.fleet.failed = {new: failed[old] for new, old in enumerate(places) if old in failed}
        self.active = list(numbers)
        self._free_memory()

    def end(self) -> None:
        """Drop all learners and free their memory on the device."""
        self.fleet = Fleet([])
        self._free_memory()

    def _free_memory(self) -> None:
        if self.device.startswith("cuda"):  # graphs are in reference cycles, which hold memory
            gc.collect()
            torch.cuda.empty_cache()

    def _chunks(self, size: int) -> list[tuple[Tensor, Tensor]]:
        """The next chunk of each active setup; equal streams are read once."""
        chunks: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
        keys = [(self.setups[number].order, self.setups[number].seed) for number in self.active]
        for key in keys:
            if key not in chunks:
                chunks[key] = self.images.chunk(*key, self.at, size)
        return [chunks[key] for key in keys]


def _add_window(into: Pass, outcomes: list[tuple[Outcome, Tensor]]) -> None:
    """Add the scores of a window of chunks to a pass."""
    if not outcomes or into.failed is not None:
        return
    predicted = torch.cat([outcome.predicted for outcome, _ in outcomes])
    labels = torch.cat([labels for _, labels in outcomes])
    total = torch.cat([outcome.log_prob for outcome, _ in outcomes]).double().sum()
    if not bool(torch.isfinite(total)):  # a network trained in a CUDA graph raises no error itself
        into.failed = "a log-probability is not finite: the network has diverged"
        return
    gammas = torch.stack([outcome.gamma for outcome, _ in outcomes])
    into.right.append(int((predicted == labels).sum()))
    into.log_prob.append(float(total))
    into.gamma.append(float(gammas[-1]))
    into.lowest.append(float(gammas.min()))
    into.rows += len(labels)


def _add_experts(into: Pass, outcomes: list[tuple[Outcome, Tensor]], names: Sequence[str]) -> None:
    """Add the scores of the experts of a stack, whose window was added before."""
    if not (outcomes and names) or into.failed is not None:
        return
    experts = [outcome.experts for outcome, _ in outcomes if outcome.experts is not None]
    labels = torch.cat([labels for _, labels in outcomes])
    right = (torch.cat([each.predicted for each in experts], 1) == labels).double().mean(1)
    log_prob = torch.cat([each.log_prob for each in experts], 1).mean(1)
    new = len(labels) / into.rows
    for name, a, b in zip(names, (100.0 * right).tolist(), log_prob.tolist(), strict=True):
        old = into.experts.get(name, (0.0, 0.0))
        into.experts[name] = old[0] + new * (a - old[0]), old[1] + new * (b - old[1])
