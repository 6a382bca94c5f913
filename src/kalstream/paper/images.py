"""Images on the device, in the orders of the experiments."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kalstream._arrays import Array
from kalstream.deep.backbones import CIFAR100_MEAN, CIFAR100_STD, preprocess
from kalstream.errors import InvalidInput
from kalstream.streams import Cifar100Stream, ClocStream
from kalstream.streams.files import tasks
from kalstream.streams.fingerprint import of_arrays

Pixels = NDArray[np.uint8]
Numbers = NDArray[np.int64]

ORDERS: Final = ("stationary", "tasks", "drift", "time")
_N_TASKS: Final = 10
# Of the substitute for CLOC: how uneven class frequencies, colours and brightness become.
_UNEVEN, _COLOUR, _BRIGHT = 2.0, 0.4, 0.5


class Images:
    """Images (n, 32, 32, 3), uint8, with labels (n,), held on the device.

    Parameters
    ----------
    pixels, labels : arrays
    device : str
    name : str
        Name of the data for tables.

    Attributes
    ----------
    n_rows, n_classes : int
    name, fingerprint : str
    """

    def __init__(self, pixels: Pixels, labels: Numbers, device: str, name: str) -> None:
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
        """The training images of CIFAR-100, or a subset of ``n_rows`` with all classes.

        ``folder`` is that of `Cifar100Stream`.
        """
        batches = list(Cifar100Stream(folder).batches())
        pixels = np.concatenate([batch.rows for batch in batches])
        labels = np.concatenate([batch.targets for batch in batches]).astype(np.int64)
        order = _canonical(pixels, labels)
        pixels, labels = pixels[order], labels[order]
        if n_rows is not None and n_rows < len(labels):
            by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
            in_turn = [row for rows in itertools.zip_longest(*by_class) for row in rows]
            subset = [row for row in in_turn if row is not None][:n_rows]
            pixels, labels = pixels[subset], labels[subset]
        return cls(pixels, labels, device, "CIFAR-100")

    @classmethod
    def synthetic(cls, n: int, device: str, n_classes: int = 20, seed: int = 0) -> Self:
        """Coloured blobs with noise, of the size of CIFAR's images, for a quick run."""
        rng = np.random.default_rng(seed)
        labels = rng.permutation(np.arange(n) % n_classes)
        colours = rng.uniform(0.0, 160.0, (n_classes, 2, 2, 3)).repeat(16, 1).repeat(16, 2)
        pixels = colours[labels] + rng.normal(48.0, 32.0, (n, 32, 32, 3))
        return cls(pixels.clip(0, 255).astype(np.uint8), labels, device, "synthetic images")

    def _rows(self, order: str, seed: int) -> tuple[Tensor, tuple[int, ...]]:
        """Row numbers (n,) in an order, and where its tasks begin."""
        if order not in ORDERS:
            raise InvalidInput(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        rows, boundaries = tasks(self.classes, _N_TASKS if order == "tasks" else 1, seed)
        if order == "drift":
            rows = drifting(self.classes, seed)
        elif order == "time":
            rows = np.arange(self.n_rows)
        return torch.from_numpy(rows).to(self.labels.device), boundaries

    def reader(self, size: int) -> None:
        """None: past chunks fit into memory and need not be read again."""

    def chunk(self, order: str, seed: int, start: int, size: int) -> tuple[Tensor, Tensor]:
        """Scaled images (size, 3, 32, 32) and labels from position ``start`` on."""
        rows = self.rows(order, seed)[0][start : start + size]
        scaled = (self.pixels[rows].float() / 255.0 - self.mean) / self.std
        if order == "drift":
            gain, offset = appearance(start / self.n_rows, seed)
            scaled = scaled * scaled.new_tensor(gain) + offset
        return scaled.permute(0, 3, 1, 2), self.labels[rows]


class Photographs:
    """CLOC in the order of time, read from disk chunk by chunk.

    Parameters
    ----------
    folder : path
        As for `ClocStream`.
    device : str
    size : int
        Width and height in pixels.
    """

    def __init__(self, folder: str | Path, device: str, size: int = 224) -> None:
        self.stream, self.device = ClocStream(folder, size=size, missing="skip"), device
        self.name, self.fingerprint = "CLOC", self.stream.describe()["fingerprint"]
        self.n_rows = self.stream.n_listed  # images without a file included
        self.n_classes = max(self.stream.classes or [0]) + 1
        self.at = -1
        self.left: Iterator[tuple[Array, int]] = iter(())

    def chunk(self, order: str, seed: int, start: int, size: int) -> tuple[Tensor, Tensor]:
        """Scaled images (size, 3, h, w) and labels; fewer at the end."""
        if start != self.at:
            self.at, self.left = start, self._rows(start)
        rows = list(itertools.islice(self.left, size))
        self.at += len(rows)
        return self._scaled(rows)

    def reader(self, size: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        """A function that reads the k-th chunk of this size again."""
        return lambda k: self._scaled(list(itertools.islice(self._rows(k * size), size)))

    def _scaled(self, rows: list[tuple[Array, int]]) -> tuple[Tensor, Tensor]:
        if not rows:
            return torch.zeros(0), torch.zeros(0, dtype=torch.int64)
        images = preprocess(np.stack([image for image, _ in rows]), device=self.device)
        return images, torch.tensor([label for _, label in rows], device=self.device)

    def _rows(self, start: int) -> Iterator[tuple[Array, int]]:
        for batch in self.stream.batches(start):
            yield from zip(batch.rows, batch.targets.tolist(), strict=True)


def _canonical(pixels: Pixels, labels: Numbers) -> NDArray[np.intp]:
    """An order (n,) by class and digest, which does not depend on how the rows are stored."""
    digests = [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in pixels]
    return np.lexsort((np.array(digests), labels))


def drifting(labels: Numbers, seed: int) -> NDArray[np.intp]:
    """An order (n,) of rows in which class frequencies change gradually; each row comes once.

    Class k has the intensity exp(2 sin(2 pi (c_k t + p_k))) at time t from 0 to 1. The number of
    turns c_k lies between 0.5 and 2. The times of its rows are drawn from that intensity.
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
    """Factors of the three colours, and an offset for all, at a time from 0 to 1."""
    rng = np.random.default_rng([seed, 1])
    turns, phases = rng.uniform(0.5, 2.0, 4), rng.uniform(size=4)
    waves = [math.sin(2.0 * math.pi * (c * time + p)) for c, p in zip(turns, phases, strict=True)]
    return [1.0 + _COLOUR * wave for wave in waves[:3]], _BRIGHT * waves[3]
