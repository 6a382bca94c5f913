"""CLEAR: images of ten years, one bucket after another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kalstream.errors import InvalidInput, MissingFile
from kalstream.streams.images import ImageStream

_AGAIN = "unpack the archive of CLEAR again"


class ClearStream(ImageStream):
    """CLEAR-10 or CLEAR-100, from the folder that its archives unpack to.

    Parameters
    ----------
    folder : path
        Holds ``{split}/labeled_metadata.json``, ``{split}/class_names.txt`` and the files in them.
    split : "train" or "test"
    seed : int
        Seed of the order within a bucket.
    size : int
        Images are cropped to the square in their middle and resized to (size, size).
    missing : "error" or "skip"
        Raise an error for an image that is missing, or leave it out and count it in `skipped`.
    batch_size : int

    Attributes
    ----------
    class_names : list of str
        Name of each label, as ``class_names.txt`` lists them.
    buckets : list of str
        Names of the buckets, in order.

    Notes
    -----
    Buckets are in the order of their numbers, and the rows of a bucket are shuffled. Rows are
    (b, size, size, 3), uint8, decoded one batch at a time by Pillow. Targets are ints. The
    fingerprint covers paths and labels, not the images.

    Examples
    --------
    Two buckets with one image each:

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     split = Path(folder) / "train"
    ...     split.mkdir()
    ...     _ = (split / "class_names.txt").write_text("cat")
    ...     for bucket in ("1", "2"):
    ...         images = {"0": {"IMG_PATH": f"{bucket}/cat.jpg"}}
    ...         _ = (split / f"{bucket}.json").write_text(json.dumps(images))
    ...     listing = {"1": {"cat": "1.json"}, "2": {"cat": "2.json"}}
    ...     _ = (split / "labeled_metadata.json").write_text(json.dumps(listing))
    ...     stream = ClearStream(folder)
    >>> stream.n_rows, stream.buckets, stream.boundaries
    (2, ['1', '2'], (0, 1))
    """

    def __init__(
        self,
        folder: str | Path,
        split: str = "train",
        seed: int = 0,
        *,
        size: int = 224,
        missing: str = "error",
        batch_size: int = 128,
    ) -> None:
        root = Path(folder) / split
        self.class_names = _text(root / "class_names.txt").split("\n")
        self.class_names = [name.strip() for name in self.class_names if name.strip()]
        listing = _json(root / "labeled_metadata.json")
        try:
            self.buckets = sorted(listing, key=int)
        except ValueError as error:
            raise InvalidInput(
                f"{root / 'labeled_metadata.json'}: buckets must be numbers, got {list(listing)}; "
                f"{_AGAIN}"
            ) from error
        rng = np.random.default_rng(seed)
        paths: list[str] = []
        labels: list[int] = []
        self._starts: list[int] = []
        for bucket in self.buckets:
            rows = _bucket(root, bucket, listing[bucket], self.class_names)
            self._starts.append(len(paths))
            for k in rng.permutation(len(rows)):
                paths.append(rows[k][0])
                labels.append(rows[k][1])
        super().__init__(
            root, paths, np.array(labels), size=size, missing=missing, batch_size=batch_size
        )
        self.name, self.split, self.seed = "clear", split, seed
        self.classes = sorted(set(labels))

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Rows where a bucket starts. With missing="skip" this checks every file."""
        return tuple(self._row(place) for place in self._starts)

    def describe(self) -> dict[str, Any]:
        """Name, task, size, split and seed, and a digest of paths and labels."""
        return self._describe(split=self.split, seed=self.seed)


def _bucket(root: Path, bucket: str, files: Any, names: list[str]) -> list[tuple[str, int]]:
    """Path and label of each image in a bucket."""
    rows = []
    for label, name in enumerate(names):
        if name not in files:
            raise InvalidInput(
                f"{root / 'labeled_metadata.json'}: bucket {bucket} has no class {name!r} "
                f"of class_names.txt, only {', '.join(files)}; {_AGAIN}"
            )
        for number, entry in _json(root / files[name]).items():
            if "IMG_PATH" not in entry:
                raise InvalidInput(
                    f"{root / files[name]}: image {number} has no IMG_PATH; {_AGAIN}"
                )
            rows.append((entry["IMG_PATH"], label))
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingFile(
            f"no file {path}; give the folder that CLEAR's archives unpack to, "
            "which holds train or test"
        ) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text(path))
    except ValueError as error:
        if isinstance(error, MissingFile):
            raise
        raise InvalidInput(f"{path} is not JSON: {error}; {_AGAIN}") from error
    if not isinstance(content, dict):
        raise InvalidInput(
            f"{path} must hold a JSON object, got {type(content).__name__}; {_AGAIN}"
        )
    return content
