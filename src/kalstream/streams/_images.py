"""Streams of pictures in files: a list of paths and labels, decoded a batch at a time."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream._optional import require
from kalstream.errors import InvalidInput, MissingFile
from kalstream.streams._base import CLASSIFICATION, Array, Batch, Stream, as_targets
from kalstream.streams._files import check_choice
from kalstream.streams._fingerprint import of_arrays

_BLOCK = 1024


def decode(path: str | Path, size: int) -> NDArray[np.uint8]:
    """A picture as (size, size, 3): the square in its middle, resized, red, green, blue.

    Parameters
    ----------
    path : path
    size : int
    """
    image, ops = require("PIL.Image", "images"), require("PIL.ImageOps", "images")
    try:
        with image.open(path) as picture:
            fitted = ops.fit(picture.convert("RGB"), (size, size), image.Resampling.BILINEAR)
    except FileNotFoundError as error:
        raise MissingFile(f"no picture {path}; missing='skip' leaves such rows out") from error
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise InvalidInput(
            f"{path} cannot be decoded: {error}; remove it, and missing='skip' leaves its row out"
        ) from error
    return np.asarray(fitted)


class ImageStream(Stream):
    """What streams of picture files share; a subclass reads the lists and describes itself.

    Parameters
    ----------
    root : path
        What the paths are relative to.
    paths : n of str or bytes
    labels : (n,)
    times : (n,), optional
    size : int
    missing : "error" or "skip"
    batch_size : int
    """

    def __init__(
        self,
        root: Path,
        paths: Sequence[str] | Array,
        labels: Array,
        times: Array | None = None,
        *,
        size: int,
        missing: str,
        batch_size: int,
    ) -> None:
        self.root, self.size, self.batch_size = root, size, batch_size
        self.missing = check_choice("missing", missing, ("error", "skip"))
        if size < 1:
            raise InvalidInput(f"size must be a positive number of pixels, got {size}")
        self._paths, self._labels, self._times = paths, labels, times
        self._there = array("q")  # with "skip": which of the paths looked at so far have a file
        self._looked = 0
        self.n_rows = len(labels) if missing == "error" else None

    @property
    def n_listed(self) -> int:
        """Number of pictures listed, those without a file included."""
        return len(self._labels)

    @property
    def skipped(self) -> int:
        """How many missing pictures were left out so far."""
        return self._looked - len(self._there)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The rows from ``start`` on; with missing="skip" this looks for the files before it."""
        while len(listed := self._listed(start, start + self.batch_size)):
            rows = np.stack([decode(self._path(k), self.size) for k in listed])
            targets = as_targets(self._labels[listed], CLASSIFICATION)
            times = None if self._times is None else self._times[listed]
            yield Batch(start, rows, targets, times)
            start += len(listed)

    def _describe(self, **more: Any) -> dict[str, Any]:
        return {
            "name": self.name,
            "task": self.task,
            "n_rows": len(self._labels) if self.missing == "error" else None,
            "size": self.size,
            "missing": self.missing,
            **more,
            "fingerprint": of_arrays(np.asarray(self._paths), self._labels, self._times),
        }

    def _path(self, k: int) -> str:
        return os.path.join(self.root, os.fsdecode(self._paths[k]).strip().lstrip("/"))

    def _listed(self, start: int, stop: int) -> NDArray[np.int64]:
        """Places in the list of the rows from start to stop."""
        if self.missing == "error":
            return np.arange(start, min(stop, len(self._labels)))
        while len(self._there) < stop and self._looked < len(self._labels):
            self._look(self._looked + _BLOCK)
        return np.array(self._there[start:stop], np.int64)

    def _row(self, place: int) -> int:
        """The row of a place in the list, or of the next place that has a picture."""
        if self.missing == "error":
            return place
        self._look(place)
        return int(np.searchsorted(self._there, place))

    def _look(self, stop: int) -> None:
        stop = min(stop, len(self._labels))
        there = (k for k in range(self._looked, stop) if os.path.isfile(self._path(k)))
        self._there.extend(there)
        self._looked = max(self._looked, stop)
        if self._looked == len(self._labels):
            self.n_rows = len(self._there)
