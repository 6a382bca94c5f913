"""Setups run side by side over their streams, and what is kept of them."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from kalstream.deep import Fleet, Outcome
from kalstream.paper.images import Images, Photographs
from kalstream.paper.learners import make
from kalstream.paper.plan import Setup

Tensor = Any


@dataclass
class Pass:
    """What came of a pass.

    Attributes
    ----------
    window : int
        Rows of a window.
    right : list of int
        Rows predicted rightly, by window.
    log_prob : list of float
        Sum of log-probabilities, by window.
    gamma, lowest : list of float
        At the end of each window, and the lowest within it.
    rows : int
        Learned; fewer than there are if it failed.
    failed : str or None
        Why it could not go on.
    seconds : float
        Of the whole group, divided by its size.
    """

    window: int
    right: list[int]
    log_prob: list[float]
    gamma: list[float]
    lowest: list[float]
    rows: int = 0
    failed: str | None = None
    seconds: float = 0.0

    @property
    def accuracy(self) -> float:
        """Average online accuracy, in percent."""
        return 100.0 * sum(self.right) / max(self.rows, 1)

    @property
    def mean_log_prob(self) -> float:
        """Per row; the lowest there is if the pass failed."""
        return -float("inf") if self.failed else sum(self.log_prob) / max(self.rows, 1)

    def to_json(self) -> dict[str, Any]:
        """As it is kept in a file."""
        rounded = {"log_prob": [round(each, 3) for each in self.log_prob]}
        for name in ("gamma", "lowest"):
            rounded[name] = [round(each, 6) for each in getattr(self, name)]
        return {**asdict(self), **rounded, "seconds": round(self.seconds, 2)}


class Race:
    """Setups that are run together, chunk by chunk, and may leave on the way.

    Parameters
    ----------
    setups : sequence of Setup
        With chunks of one size.
    images : Images
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
        """Run all that are still there up to a row."""
        begun, n_active = time.perf_counter(), max(len(self.active), 1)
        while self.at < until:
            end = min(self.at + self.window, until)
            held: list[list[tuple[Outcome, Tensor]]] = [[] for _ in self.active]
            while self.at < end:
                size = min(self.chunk, end - self.at)
                chunks = self._chunks(size)
                if len(chunks[0][1]) == 0:  # there were fewer rows than were listed
                    end = until = self.at
                    break
                for mine, outcome, chunk in zip(held, self.fleet.step(chunks), chunks, strict=True):
                    if outcome is not None:
                        mine.append((outcome, chunk[1]))
                self.at += len(chunks[0][1])
            for number, mine in zip(self.active, held, strict=True):
                self._close(self.passes[number], mine)
        spent = (time.perf_counter() - begun) / n_active
        for place, number in enumerate(self.active):
            self.passes[number].seconds += spent
            if place in self.fleet.failed:
                self.passes[number].failed = str(self.fleet.failed[place])

    def keep(self, numbers: Sequence[int]) -> None:
        """Go on with these alone, numbered as the setups are."""
        places = [self.active.index(number) for number in numbers]
        failed = self.fleet.failed
        self.fleet = Fleet([self.fleet.learners[place] for place in places])
        self.fleet.failed = {new: failed[old] for new, old in enumerate(places) if old in failed}
        self.active = list(numbers)
        self._tidy()

    def end(self) -> None:
        """Let go of all learners, and of the device's memory that they had."""
        self.fleet = Fleet([])
        self._tidy()

    def _tidy(self) -> None:
        if self.device.startswith("cuda"):  # graphs are parts of cycles, and hold on to memory
            gc.collect()
            torch.cuda.empty_cache()

    def _chunks(self, size: int) -> list[tuple[Tensor, Tensor]]:
        made: dict[Any, Any] = {}
        for number in self.active:
            setup = self.setups[number]
            key = setup.order, setup.seed
            if key not in made:
                made[key] = self.images.chunk(*key, self.at, size)
        return [made[self.setups[n].order, self.setups[n].seed] for n in self.active]

    @staticmethod
    def _close(into: Pass, held: list[tuple[Outcome, Tensor]]) -> None:
        """Add a window."""
        if not held or into.failed is not None:
            return
        predicted = torch.cat([outcome.predicted for outcome, _ in held])
        labels = torch.cat([labels for _, labels in held])
        total = torch.cat([outcome.log_prob for outcome, _ in held]).double().sum()
        if not bool(torch.isfinite(total)):  # a network trained in a CUDA graph says nothing itself
            into.failed = "a log-probability is not finite: it has diverged"
            return
        gammas = torch.stack([outcome.gamma for outcome, _ in held])
        into.right.append(int((predicted == labels).sum()))
        into.log_prob.append(float(total))
        into.gamma.append(float(gammas[-1]))
        into.lowest.append(float(gammas.min()))
        into.rows += len(labels)
