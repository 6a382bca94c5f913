"""CLOC: images in time order; the label is one of 713 regions of the world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kalstream._files import replacing
from kalstream._optional import require
from kalstream.errors import InvalidInput, MissingFile
from kalstream.streams.base import Array, Batch
from kalstream.streams.files import load_npy
from kalstream.streams.images import ImageStream

# list -> its type and its name in the release; the mirror has no user ids and no times
_LISTS: dict[str, tuple[type[np.generic], str]] = {
    "paths": (np.bytes_, "store_loc"),
    "labels": (np.int32, "labels"),
    "times": (np.float64, "time"),
    "users": (np.int64, "userID"),
}
_MIRROR = {"paths": "image_paths", "labels": "labels"}
_IMAGES = ("release/dataset/images", "dataset/images", "images", "data")


class ClocStream(ImageStream):
    """CLOC, from the lists and images of either published layout.

    Parameters
    ----------
    folder : path
        The release: ``release/{split}_{labels,time,userID,store_loc}.torchSave`` (needs torch);
        or its mirror: ``order_files/{split}_{image_paths,labels}.hdf5`` (needs h5py). It may
        also be ``release`` or ``order_files`` itself. Files of `pack_cloc` have precedence.
    split : str
        "train"; "cross_val" in the release; "test" or "pretrain" in the mirror.
    size : int
        Images are cropped to the square in their middle and resized to (size, size).
    images : path, optional
        Folder that the listed paths are relative to. By default the first of
        ``release/dataset/images``, ``dataset/images``, ``images`` and ``data`` that exists.
    missing : "error" or "skip"
        Raise an error for an image that is missing, or leave it out and count it in `skipped`.
        Files are checked as rows are read, so `n_rows` is None before the end.
    batch_size : int

    Notes
    -----
    Rows are (b, size, size, 3), uint8, decoded one batch at a time by Pillow. Targets are ints.
    Times are those of the release, in seconds. Rows are sorted by time; rows of the same second
    keep the order of the lists. The mirror is in time order and has no times.

    Memory: for 38 million rows the lists are about 3 GB of arrays, and reading them with torch
    takes minutes and 9 GB. Do that once, with `pack_cloc`: its files are memory-mapped.

    The fingerprint covers the lists, not the images.

    Examples
    --------
    Lists of two images, as `pack_cloc` writes them:

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/train_paths.npy", np.array([b"a.jpg", b"b.jpg"]))
    ...     np.save(f"{folder}/train_labels.npy", np.array([7, 3], np.int32))
    ...     stream = ClocStream(folder, images=folder)
    >>> stream.n_rows, stream.classes
    (2, [3, 7])
    """

    def __init__(
        self,
        folder: str | Path,
        split: str = "train",
        *,
        size: int = 224,
        images: str | Path | None = None,
        missing: str = "error",
        batch_size: int = 128,
    ) -> None:
        folder = Path(folder)
        lists = _read(folder, split)
        times = lists.get("times")
        if times is not None and (times[1:] < times[:-1]).any():
            order = np.argsort(times, kind="stable")
            lists = {name: values[order] for name, values in lists.items()}
        root = Path(images) if images is not None else _images(folder)
        paths, labels, times = lists["paths"], lists["labels"], lists.get("times")
        super().__init__(
            root, paths, labels, times, size=size, missing=missing, batch_size=batch_size
        )
        self.name, self.split = "cloc", split
        self._users = lists.get("users")
        self.classes = np.flatnonzero(np.bincount(labels)).tolist()

    def users(self, batch: Batch) -> Array | None:
        """Ids of the photographers of a batch, (b,); None in the mirror."""
        listed = self._listed(batch.start, batch.stop)
        return None if self._users is None else np.asarray(self._users[listed])

    def describe(self) -> dict[str, Any]:
        """Name, task, size, split, and a digest of the lists."""
        return self._describe(split=self.split)


def pack_cloc(folder: str | Path, split: str = "train", out: str | Path | None = None) -> Path:
    """Write the lists of CLOC as arrays that can be memory-mapped, so that later reads are fast.

    Parameters
    ----------
    folder, split
        As for `ClocStream`.
    out : path, optional
        Folder for ``{split}_{paths,labels,times,users}.npy``, by default ``folder``. If it is
        another one, `ClocStream` needs ``images``.

    Returns
    -------
    path
        The folder with the arrays, for `ClocStream`.

    Examples
    --------
    >>> pack_cloc("CLOC")  # doctest: +SKIP
    PosixPath('CLOC')
    >>> stream = ClocStream("CLOC")  # doctest: +SKIP
    """
    folder = Path(folder)
    out = folder if out is None else Path(out)
    lists = _read(folder, split)
    out.mkdir(parents=True, exist_ok=True)
    for name, values in lists.items():
        with replacing(out / f"{split}_{name}.npy") as file:
            np.save(file, values, allow_pickle=False)
    return out


def _images(folder: Path) -> Path:
    for name in _IMAGES:
        if (folder / name).is_dir():
            return folder / name
    raise MissingFile(
        f"{folder} holds none of the folders {', '.join(_IMAGES)}; name the folder with images="
    )


def _read(folder: Path, split: str) -> dict[str, Array]:
    """The lists as arrays of one length: paths and labels, and times and users if they exist."""
    lists: dict[str, Array] = {}
    for what, (kind, name) in _LISTS.items():
        packed = folder / f"{split}_{what}.npy"
        saved = _first(folder, "release", f"{split}_{name}.torchSave")
        stored = _first(folder, "order_files", f"{split}_{_MIRROR.get(what)}.hdf5")
        if packed.is_file():
            lists[what] = load_npy(packed)
        elif saved is not None:
            lists[what] = _load(saved, kind)
        elif stored is not None:
            lists[what] = _load(stored, kind)
        elif what in _MIRROR:
            raise MissingFile(
                f"no {split}_{name}.torchSave in {folder / 'release'} and no "
                f"{split}_{_MIRROR[what]}.hdf5 in {folder / 'order_files'}; "
                "give the folder that holds release or order_files, and a split that exists"
            )
    lengths = {what: len(values) for what, values in lists.items()}
    if len(set(lengths.values())) != 1:
        raise InvalidInput(
            f"the lists of {split} in {folder} differ in length: {lengths}; download them again"
        )
    if (lists["labels"] < 0).any():
        raise InvalidInput(
            f"labels of {split} in {folder} must be 0 or more, got a negative one; download the "
            "list of labels again"
        )
    return lists


def _first(folder: Path, below: str, name: str) -> Path | None:
    return next((p for p in (folder / below / name, folder / name) if p.is_file()), None)


def _load(path: Path, kind: type[np.generic]) -> Array:
    """The list in a file of torch or HDF5, as an array."""
    saved = path.suffix == ".torchSave"
    library = require("torch", "torch") if saved else require("h5py", "hdf5")
    try:
        if saved:
            values = library.load(path, map_location="cpu", weights_only=True)
        else:
            with library.File(path, "r") as file:
                values = file["store_list"][()]
        array = np.array(values, kind)
    except Exception as error:  # for a damaged file these libraries raise anything
        raise InvalidInput(
            f"{path} is not a list of {kind.__name__}: {error}; download it again"
        ) from error
    if array.ndim != 1:
        raise InvalidInput(
            f"{path} must be a plain list, got shape {array.shape}; download it again"
        )
    return array
