"""CIFAR-100 as a stream, shuffled or task after task."""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kalstream.core import checks as check
from kalstream.errors import InvalidInput, MissingFile
from kalstream.streams.base import CLASSIFICATION, Batch, Stream, as_targets
from kalstream.streams.files import tasks
from kalstream.streams.fingerprint import of_arrays

_FOLDER = "cifar-100-python"
_REMEDY = (
    "give the official cifar-100-python.tar.gz, its folder cifar-100-python or that folder's parent"
)
_AGAIN = "download it again from https://www.cs.toronto.edu/~kriz/cifar.html"


class Cifar100Stream(Stream):
    """CIFAR-100, from the official archive or its folder.

    The images stay in memory: 154 MB for the 50,000 of the training split.

    Parameters
    ----------
    folder : path
        ``cifar-100-python``, its parent, or the official archive, which need not be unpacked.
    order : "stationary" or "tasks"
        "stationary" shuffles all rows. "tasks" is the paper's non-stationary order (appendix D):
        10 tasks. Each has a tenth of the classes, chosen at random. Rows are shuffled within a
        task.
    seed : int
        Seed of the shuffling.
    split : "train" or "test"
    labels : "fine" or "coarse"
        100 or 20 classes.
    batch_size : int

    Attributes
    ----------
    class_names : list of str, or None
        Name of each label; None if the file ``meta`` is missing.
    boundaries : tuple of int
        Rows where a task starts; (0,) if stationary.

    Notes
    -----
    Rows are (b, 32, 32, 3), uint8, red, green, blue. Targets are ints, 0 to 99. The official
    files are pickles: only numpy arrays, containers, bytes, strings and numbers are unpickled.

    Examples
    --------
    >>> stream = Cifar100Stream("cifar-100-python.tar.gz", order="tasks")  # doctest: +SKIP
    >>> stream.n_rows, stream.boundaries[:3]  # doctest: +SKIP
    (50000, (0, 5000, 10000))
    """

    def __init__(
        self,
        folder: str | Path,
        order: str = "stationary",
        seed: int = 0,
        split: str = "train",
        labels: str = "fine",
        *,
        batch_size: int = 1024,
    ) -> None:
        self.order = check.choice("order", order, ("stationary", "tasks"))
        self.split = check.choice("split", split, ("train", "test"))
        self.labels = check.choice("labels", labels, ("fine", "coarse"))
        self.name, self.seed, self.batch_size = "cifar100", seed, batch_size
        where, data = _read(Path(folder), split)
        pixels = np.asarray(_entry(where, data, "data"))
        targets = np.asarray(_entry(where, data, f"{labels}_labels"))
        if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
            raise InvalidInput(
                f"{where}: data must be (n, 3072) of uint8, got {pixels.shape} of {pixels.dtype}; "
                f"{_AGAIN}"
            )
        if targets.shape != (len(pixels),) or targets.dtype.kind not in "iu":
            raise InvalidInput(
                f"{where}: {labels}_labels must be {len(pixels)} ints, one for each image, "
                f"got {targets.shape} of {targets.dtype}; {_AGAIN}"
            )
        self._images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # (n, 32, 32, 3)
        self._labels = targets
        self._rows, self.boundaries = tasks(targets, 10 if order == "tasks" else 1, seed)
        self.n_rows = len(targets)
        self.classes = np.unique(targets).tolist()
        self.class_names: list[str] | None = None
        try:
            where, meta = _read(Path(folder), "meta")
        except MissingFile:
            return
        names = meta.get(f"{labels}_label_names")
        if names is not None:
            self.class_names = [n.decode() if isinstance(n, bytes) else str(n) for n in names]

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The rows from number ``start`` on."""
        for first in range(start, len(self._rows), self.batch_size):
            rows = self._rows[first : first + self.batch_size]
            targets = as_targets(self._labels[rows], CLASSIFICATION)
            yield Batch(first, np.ascontiguousarray(self._images[rows]), targets)

    def describe(self) -> dict[str, Any]:
        """Name, task, size, order and seed, and a digest of images and labels."""
        return {
            "name": self.name,
            "task": self.task,
            "n_rows": self.n_rows,
            "split": self.split,
            "labels": self.labels,
            "order": self.order,
            "seed": self.seed,
            "fingerprint": of_arrays(self._images, self._labels),
        }


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numpy arrays and plain containers, and refuses every other global."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            if name == "_reconstruct":
                return np.empty(0).__reduce__()[0]
        elif (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        elif (module, name) == ("_codecs", "encode"):
            return _latin1  # Python 3 pickles bytes this way in protocol 2
        raise InvalidInput(f"it contains {module}.{name}, which the official file does not")


def _latin1(text: str, _: str) -> bytes:
    return text.encode("latin1")


def _read(folder: Path, name: str) -> tuple[str, dict[str, Any]]:
    """Path and content of one of the official files, its keys as str."""
    where, raw = _bytes(folder, name)
    try:
        content = _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
        return where, {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
    except Exception as error:  # a damaged pickle can raise anything
        raise InvalidInput(f"{where} is not a file of CIFAR-100: {error}; {_AGAIN}") from error


def _bytes(folder: Path, name: str) -> tuple[str, bytes]:
    if folder.is_file():
        member = f"{_FOLDER}/{name}"
        try:
            with tarfile.open(folder) as archive:
                file = archive.extractfile(member)
                if file is None:
                    raise KeyError(member)
                return f"{folder}:{member}", file.read()
        except KeyError as error:
            raise MissingFile(f"{folder} has no {member}; {_REMEDY}") from error
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise InvalidInput(f"{folder} is not a readable archive: {error}; {_REMEDY}") from error
    for path in (folder / name, folder / _FOLDER / name):
        if path.is_file():
            return str(path), path.read_bytes()
    raise MissingFile(f"no file {name} in {folder} or {folder / _FOLDER}; {_REMEDY}")


def _entry(where: str, data: dict[str, Any], key: str) -> Any:
    if key not in data:
        raise InvalidInput(f"{where} has no {key}, only {', '.join(map(str, data))}; {_AGAIN}")
    return data[key]
