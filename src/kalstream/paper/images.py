"""Pictures on the device, in the orders of the experiments."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from kalstream.deep.backbones import CIFAR100_MEAN, CIFAR100_STD, preprocess
from kalstream.errors import InvalidInput
from kalstream.streams import Cifar100Stream, ClocStream
from kalstream.streams.files import tasks
from kalstream.streams.fingerprint import of_arrays

Tensor = Any
Array = NDArray[Any]

ORDERS: Final = ("stationary", "tasks", "drift", "time")
N_TASKS: Final = 10
# Of the stand-in for CLOC: how uneven classes get, how far colours and brightness go.
_UNEVEN, _COLOUR, _BRIGHT = 2.0, 0.4, 0.5


class Images:
    """Pictures (n, 32, 32, 3) of bytes with labels (n,).

    Parameters
    ----------
    pixels, labels : arrays
    device : str

    Attributes
    ----------
    n_rows, n_classes : int
    name, fingerprint : str
    """

    def __init__(self, pixels: Array, labels: Array, device: str, name: str) -> None:
        self.name, self.fingerprint = name, of_arrays(pixels, labels)
        self.n_rows, self.n_classes = len(labels), int(labels.max()) + 1
        self.classes = labels
        self.pixels = torch.from_numpy(np.ascontiguousarray(pixels)).to(device)
        self.labels = torch.from_numpy(labels.astype(np.int64)).to(device)
        self.mean = torch.tensor(CIFAR100_MEAN, device=device)
        self.std = torch.tensor(CIFAR100_STD, device=device)
        self.rows = lru_cache(maxsize=64)(self._rows)

    @classmethod
    def cifar100(cls, folder: str | Path, device: str, n_rows: int | None = None) -> Self:
        """The 50,000 of CIFAR-100, or so many of all classes; the folder as of `Cifar100Stream`."""
        stream = Cifar100Stream(folder)
        pixels, labels = stream._images, np.asarray(stream._labels)
        order = _canonical(pixels, labels)
        pixels, labels = pixels[order], labels[order]
        if n_rows is not None and n_rows < len(labels):
            by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
            in_turn = [row for rows in itertools.zip_longest(*by_class) for row in rows]
            some = [row for row in in_turn if row is not None][:n_rows]
            pixels, labels = pixels[some], labels[some]
        return cls(pixels, labels, device, "CIFAR-100")

    @classmethod
    def made(cls, n: int, device: str, n_classes: int = 20, seed: int = 0) -> Self:
        """Blobs and noise, of the size of CIFAR's pictures, for a quick run."""
        rng = np.random.default_rng(seed)
        labels = rng.permutation(np.arange(n) % n_classes)
        colours = rng.uniform(0.0, 160.0, (n_classes, 2, 2, 3)).repeat(16, 1).repeat(16, 2)
        pixels = colours[labels] + rng.normal(48.0, 32.0, (n, 32, 32, 3))
        return cls(pixels.clip(0, 255).astype(np.uint8), labels, device, "made-up pictures")

    def _rows(self, order: str, seed: int) -> tuple[Tensor, tuple[int, ...]]:
        """Row numbers (n,) in an order, and where its tasks begin."""
        if order not in ORDERS:
            raise InvalidInput(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        rows, boundaries = tasks(self.classes, N_TASKS if order == "tasks" else 1, seed)
        if order == "drift":
            rows = drifting(self.classes, seed)
        elif order == "time":
            rows = np.arange(self.n_rows)
        return torch.from_numpy(rows).to(self.labels.device), boundaries

    def reader(self, size: int) -> None:
        """Nothing: chunks that have gone by fit into memory."""

    def chunk(self, order: str, seed: int, start: int, size: int) -> tuple[Tensor, Tensor]:
        """Pictures (size, 3, 32, 32), scaled, and labels from position ``start`` on."""
        rows = self.rows(order, seed)[0][start : start + size]
        scaled = (self.pixels[rows].float() / 255.0 - self.mean) / self.std
        if order == "drift":
            gain, offset = appearance(start / self.n_rows, seed)
            scaled = scaled * scaled.new_tensor(gain) + offset
        return scaled.permute(0, 3, 1, 2), self.labels[rows]


class Photographs:
    """CLOC as it comes: read from the disk in the order of time, chunk after chunk.

    Parameters
    ----------
    folder : path
        As of `ClocStream`.
    device : str
    size : int
        Pixels.
    """

    def __init__(self, folder: str | Path, device: str, size: int = 224) -> None:
        self.stream, self.device = ClocStream(folder, size=size, missing="skip"), device
        self.name, self.fingerprint = "CLOC", self.stream.describe()["fingerprint"]
        self.n_rows = len(self.stream._labels)  # those that are missing not yet left out
        self.n_classes = max(self.stream.classes or [0]) + 1
        self.at = -1
        self.left: Iterator[tuple[Array, int]] = iter(())

    def chunk(self, order: str, seed: int, start: int, size: int) -> tuple[Tensor, Tensor]:
        """Pictures (size, 3, h, w), scaled, and labels; fewer at the end."""
        if start != self.at:
            self.at, self.left = start, self._rows(start)
        found = list(itertools.islice(self.left, size))
        self.at += len(found)
        return self._scaled(found)

    def reader(self, size: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        """Reads the k-th chunk of this size again."""
        return lambda k: self._scaled(list(itertools.islice(self._rows(k * size), size)))

    def _scaled(self, found: list[tuple[Array, int]]) -> tuple[Tensor, Tensor]:
        if not found:
            return torch.zeros(0), torch.zeros(0, dtype=torch.int64)
        pictures = preprocess(np.stack([picture for picture, _ in found]), device=self.device)
        return pictures, torch.tensor([label for _, label in found], device=self.device)

    def _rows(self, start: int) -> Iterator[tuple[Array, int]]:
        for batch in self.stream.batches(start):
            yield from zip(batch.rows, batch.targets.tolist(), strict=True)


def _canonical(pixels: Array, labels: Array) -> Array:
    """An order (n,) that does not depend on how the rows were stored: by class and digest."""
    digests = [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in pixels]
    return np.lexsort((np.array(digests), labels))


def drifting(labels: Array, seed: int) -> Array:
    """An order (n,) of rows in which classes come and go gradually, each row once.

    Class k has the intensity exp(2 sin(2 pi (c_k t + p_k))) at time t from 0 to 1, with half a
    turn to two turns c_k; its rows come at times drawn from that.
    """
    rng = np.random.default_rng(seed)
    time, when = np.linspace(0.0, 1.0, 1001), np.empty(len(labels))
    for label in np.unique(labels):
        turns, phase = rng.uniform(0.5, 2.0), rng.uniform()
        density = np.exp(_UNEVEN * np.sin(2.0 * np.pi * (turns * time + phase)))
        share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
        mine = labels == label
        when[mine] = np.interp(rng.uniform(0.0, share[-1], mine.sum()), share, time)
    return np.argsort(when, kind="stable")


def appearance(time: float, seed: int) -> tuple[list[float], float]:
    """Factors of the three colours and what is added to all, at a time from 0 to 1."""
    rng = np.random.default_rng([seed, 1])
    turns, phases = rng.uniform(0.5, 2.0, 4), rng.uniform(size=4)
    waves = [math.sin(2.0 * math.pi * (c * time + p)) for c, p in zip(turns, phases, strict=True)]
    return [1.0 + _COLOUR * wave for wave in waves[:3]], _BRIGHT * waves[3]
