"""Embeddings in files: features that a network computed, with their labels."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from kalstream.core import checks as check
from kalstream.core.checks import LARGEST_FLOAT64 as LARGEST
from kalstream.errors import InvalidInput, MissingFile
from kalstream.streams.base import CLASSIFICATION, Array, Batch, Stream, as_targets, check_task
from kalstream.streams.files import load_npy, tasks, unreadable
from kalstream.streams.fingerprint import of_files

EMBEDDINGS = (".npy", ".npz", ".safetensors")
# types of safetensors that numpy has
_TYPES = {"BOOL": "?", "U8": "u1", "I8": "i1"} | {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "FIU" for size in (2, 4, 8)
}


class EmbeddingStream(Stream):
    """Features and labels from files, memory-mapped.

    Parameters
    ----------
    path : path
        ``X.npy`` with features (n, d), or ``X.safetensors`` or ``X.npz`` with features and labels.
        An ``.npz`` is read into memory. Pickled objects are refused.
    labels : path, optional
        An ``.npy`` with labels (n,). By default the labels in ``path``, or else ``X-labels.npy``
        or ``X.labels.npy`` beside it. Times (n,) are found in the same way, if there are any.
    order : "as-is", "shuffled" or "tasks"
        "as-is" is the order of the file. "shuffled" shuffles all rows. "tasks" divides the classes
        at random into ``n_tasks`` tasks and shuffles the rows within each task. Only "as-is" keeps
        times.
    seed : int
        Seed of the shuffling.
    n_tasks : int
    names : 3 strings
        Names of features, labels and times in a ``.safetensors`` or ``.npz``.
    task : "classification" or "regression"
    batch_size : int

    Attributes
    ----------
    boundaries : tuple of int
        Rows where a task starts; (0,) unless the order is "tasks".

    Notes
    -----
    Numbers of any type, float16 included, become float64 one batch at a time. A row with a number
    that is not finite, or is beyond 1e100, raises an error when it is read.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/mine.npy", np.eye(4, dtype=np.float16))
    ...     np.save(f"{folder}/mine-labels.npy", ["cat", "dog", "cat", "dog"])
    ...     stream = EmbeddingStream(f"{folder}/mine.npy", order="tasks", n_tasks=2)
    ...     stream.boundaries, [batch.targets.tolist() for batch in stream.batches()]
    ((0, 2), [['cat', 'cat', 'dog', 'dog']])
    """

    def __init__(
        self,
        path: str | Path,
        labels: str | Path | None = None,
        order: str = "as-is",
        seed: int = 0,
        n_tasks: int = 10,
        *,
        names: tuple[str, str, str] = ("features", "labels", "times"),
        task: str = CLASSIFICATION,
        batch_size: int = 4096,
    ) -> None:
        self.path = Path(path)
        self.order = check.choice("order", order, ("as-is", "shuffled", "tasks"))
        self.task, self.name, self.seed = check_task(task), self.path.stem, seed
        self.batch_size = batch_size
        arrays = _read(self.path, names)
        self.files = [self.path]
        self._features = features = _checked(self.path, arrays.get(names[0]), names[0])
        targets = self._beside(arrays.get(names[1]), "labels", labels)
        if targets is None:
            raise MissingFile(
                f"no labels for {self.path}: it holds no {names[1]}, and there is no "
                f"{self.path.stem}-labels.npy beside it; save the labels there"
            )
        self._labels = targets
        self._rows: Array | None = None
        self.boundaries: tuple[int, ...] = (0,)
        self._times: Array | None = None
        if order == "as-is":
            self._times = self._beside(arrays.get(names[2]), "times", None)
            self._check_times()
        elif order == "tasks" and task != CLASSIFICATION:
            raise InvalidInput(
                f'order="tasks" needs classes, but the task is {task}; use order="shuffled", or '
                'task="classification"'
            )
        else:
            n_tasks = n_tasks if order == "tasks" else 1
            self._rows, self.boundaries = tasks(targets, n_tasks, seed)
        self.timed = self._times is not None
        self.n_rows = len(features)
        self.columns = tuple(f"x{k}" for k in range(features.shape[1]))
        self.classes = None
        if task == CLASSIFICATION:
            self.classes = [label for label in np.unique(targets).tolist() if label == label]

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The rows from number ``start`` on."""
        for first in range(start, len(self._features), self.batch_size):
            cut: Any = slice(first, first + self.batch_size)
            if self._rows is not None:
                cut = self._rows[cut]
            with np.errstate(invalid="ignore"):  # a NaN of damaged bytes, refused below
                rows = np.array(self._features[cut], np.float64)
            self._check("features", first, np.all(np.abs(rows) <= LARGEST, axis=1))
            targets = as_targets(self._labels[cut], self.task)
            if self.task != CLASSIFICATION:
                large = np.isfinite(targets) & (np.abs(targets) > LARGEST)
                self._check("labels", first, np.logical_not(large))
            times = None if self._times is None else np.array(self._times[cut], np.float64)
            yield Batch(first, rows, targets, times)

    def _check(self, what: str, first: int, good: Array) -> None:
        """Refuse a batch with numbers that cannot be learned; name the row of the file."""
        if not good.all():
            row = first + int(good.argmin())
            place = row if self._rows is None else self._rows[row]
            raise InvalidInput(
                f"{self.path}: {what} of row {place} (row {row} of the stream) contain NaN, "
                f"infinity or a number beyond {LARGEST:g}; compute them again, or remove such rows"
            )

    def _check_times(self) -> None:
        """Refuse times that are missing or decrease."""
        if self._times is None:
            return
        with np.errstate(invalid="ignore"):
            times = np.array(self._times, np.float64)
        good = np.abs(times) <= LARGEST
        good[1:] &= times[1:] >= times[:-1]
        if not good.all():
            row = int(good.argmin())
            raise InvalidInput(
                f"{self.path}: times must be numbers that never decrease, and that of row {row} is "
                f"{times[row]:.15g}; sort the rows by time"
            )

    def describe(self) -> dict[str, Any]:
        """Name, task, size, order and seed, and a digest of the files."""
        return {
            "name": self.name,
            "task": self.task,
            "n_rows": self.n_rows,
            "order": self.order,
            "seed": self.seed,
            "n_tasks": len(self.boundaries),
            "time": "times" if self.timed else None,
            "fingerprint": of_files(self.files),
        }

    def _beside(self, array: Array | None, what: str, given: str | Path | None) -> Array | None:
        """Labels or times: from the given file, else the array, else from a file beside."""
        path = None if given is None else Path(given)
        if path is None and array is None:
            beside = (self.path.with_name(f"{self.path.stem}{dot}{what}.npy") for dot in "-.")
            path = next((p for p in beside if p.is_file()), None)
        if path is not None:
            array = load_npy(path)
            self.files = [*self.files, path]
        if array is not None and array.shape != (len(self._features),):
            raise InvalidInput(
                f"{path or self.path}: {what} must be ({len(self._features)},), got {array.shape}; "
                "write the file again, with one for each row of features"
            )
        if array is not None:
            _check_kind(path or self.path, what, array, self.task)
        return array


def _check_kind(path: Path, what: str, array: Array, task: str) -> None:
    """Refuse labels or times of a type, or with values, that cannot be used."""
    text = what == "labels" and task == CLASSIFICATION
    if array.dtype.kind not in ("biufU" if text else "biuf"):
        raise InvalidInput(
            f"{path}: {what} are of type {array.dtype}; save them as numbers"
            f"{', or as text of numpy type U' if text else ''}"
        )
    if text and array.dtype.kind == "f" and np.isinf(array).any():
        raise InvalidInput(f"{path}: a label is infinite; save labels as whole numbers")
    if array.dtype.kind == "U" and array.dtype.itemsize:
        letters = np.array(array, f"=U{array.dtype.itemsize // 4}").view(np.uint32)
        if letters.max() > sys.maxunicode:
            raise InvalidInput(f"{path}: {what} are not Unicode; write the file again")


def read_features(path: str | Path, name: str = "features") -> Array:
    """Features (n, d) of an embedding file, which may lack labels."""
    path = Path(path)
    return _checked(path, _read(path, (name,)).get(name), name)


def _checked(path: Path, features: Array | None, name: str) -> Array:
    if features is None or features.ndim != 2 or features.dtype.kind not in "fiu":
        got = "none" if features is None else f"{features.shape} of {features.dtype}"
        raise InvalidInput(
            f"{path}: {name} must be (n, d) numbers, got {got}; save them under that name"
        )
    if 0 in features.shape:
        raise InvalidInput(f"{path}: {name} is empty, {features.shape}; write the file again")
    return features


def _read(path: Path, names: tuple[str, ...]) -> dict[str, Array]:
    """Those arrays of a file that have one of these names."""
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return _map_safetensors(path, names)
    if suffix == ".npy":
        return {names[0]: load_npy(path)}
    if suffix != ".npz":
        raise InvalidInput(
            f"{path} is not an embedding file; give a .npy, .npz or .safetensors file"
        )
    try:
        with path.open("rb") as file, np.lib.npyio.NpzFile(file) as arrays:
            return {name: arrays[name] for name in names if name in arrays}
    except Exception as error:  # zip, its compressions and numpy raise many kinds
        raise unreadable(path, "plain arrays, as np.savez writes them", error) from error


def _map_safetensors(path: Path, names: tuple[str, ...]) -> dict[str, Array]:
    """Arrays by name, memory-mapped: `safe_open` reads rows in the order of the file only."""
    try:
        with safe_open(path, framework="numpy"):
            pass  # the header is sound
    except (SafetensorError, OSError) as error:
        raise unreadable(path, "safetensors", error) from error
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    arrays: dict[str, Array] = {}
    for name in names:
        if name not in header:
            continue
        kind, shape = header[name]["dtype"], tuple(header[name]["shape"])
        if kind not in _TYPES:
            raise InvalidInput(f"{path}: {name} is {kind}; save it as one of {', '.join(_TYPES)}")
        if 0 in shape:
            raise InvalidInput(f"{path}: {name} is empty, {shape}; write the file again")
        offset = 8 + size + header[name]["data_offsets"][0]
        arrays[name] = np.memmap(path, _TYPES[kind], "r", offset, shape)
    return arrays
