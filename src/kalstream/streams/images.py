"""Streams of images in files: a list of paths and labels, decoded one batch at a time."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream._optional import require
from kalstream.core import checks as check
from kalstream.errors import InvalidInput, MissingFile
from kalstream.streams.base import CLASSIFICATION, Array, Batch, Stream, as_targets
from kalstream.streams.fingerprint import of_arrays

_BLOCK = 1024


def decode(path: str | Path, size: int) -> NDArray[np.uint8]:
    """Read an image as (size, size, 3): its middle square, resized; red, green, blue.

    Parameters
    ----------
    path : path
    size : int
    """
    image, ops = require("PIL.Image", "images"), require("PIL.ImageOps", "images")
    try:
        with image.open(path) as opened:
            fitted = ops.fit(opened.convert("RGB"), (size, size), image.Resampling.BILINEAR)
    except FileNotFoundError as error:
        raise MissingFile(f"no image {path}; use missing='skip' to leave such rows out") from error
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise InvalidInput(
            f"{path} cannot be decoded: {error}; remove it, and use missing='skip'"
        ) from error
    return np.asarray(fitted)


class ImageStream(Stream):
    """Base of streams of image files; a subclass reads the lists and describes itself.

    Parameters
    ----------
    root : path
        Folder that the paths are relative to.
    paths : n of str or bytes
    labels : (n,)
    times : (n,), optional
    size : int
    missing : "error" or "skip"
    batch_size : int

    Examples
    --------
    >>> class Photos(ImageStream):
    ...     name = "photos"
    ...
    ...     def describe(self):
    ...         return self._describe()
    >>> paths, labels = ["cat.jpg", "dog.jpg"], np.array([0, 1])
    >>> photos = Photos(Path("photos"), paths, labels, size=32, missing="error", batch_size=64)
    >>> photos.n_rows, photos.describe()["size"]
    (2, 32)
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
        self.missing = check.choice("missing", missing, ("error", "skip"))
        if size < 1:
            raise InvalidInput(f"size must be a positive number of pixels, got {size}")
        self._paths, self._labels, self._times = paths, labels, times
        self.timed = times is not None
        self._present = array("q")  # with "skip": which of the paths checked so far have a file
        self._n_checked = 0
        self.n_rows = len(labels) if missing == "error" else None

    @property
    def n_listed(self) -> int:
        """Number of images listed, those without a file included."""
        return len(self._labels)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The rows from ``start`` on. With missing="skip" this checks all files before it."""
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
        """Positions in the lists of the rows from start to stop."""
        if self.missing == "error":
            return np.arange(start, min(stop, len(self._labels)))
        while len(self._present) < stop and self._n_checked < len(self._labels):
            self._check_files(self._n_checked + _BLOCK)
        return np.array(self._present[start:stop], np.int64)

    def _row(self, place: int) -> int:
        """The row of a position in the lists, or of the next position that has an image."""
        if self.missing == "error":
            return place
        self._check_files(place)
        return int(np.searchsorted(self._present, place))

    def _check_files(self, stop: int) -> None:
        """Find out which of the images before position ``stop`` exist."""
        stop = min(stop, len(self._labels))
        present = (k for k in range(self._n_checked, stop) if os.path.isfile(self._path(k)))
        self._present.extend(present)
        self._n_checked = max(self._n_checked, stop)
        self.skipped = self._n_checked - len(self._present)
        if self._n_checked == len(self._labels):
            self.n_rows = len(self._present)
