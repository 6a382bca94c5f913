"""Write the features of an image stream to an embedding file; resumable."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from kalstream import streams
from kalstream._arrays import Array
from kalstream._files import Lock, replacing, write_whole
from kalstream.deep import backbones
from kalstream.errors import InvalidInput, MissingFile
from kalstream.streams import REGRESSION, Batch, ImageStream, Stream

Preprocess = Callable[[Array], torch.Tensor]

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_TYPES = {"<f2": "F16", "<f4": "F32", "<f8": "F64", "<i8": "I64"}
_SAVE_SECONDS = 1.0
_PIECE = 1 << 16


class ImageFolderStream(ImageStream):
    """Images in a folder, with one subfolder per class.

    Parameters
    ----------
    folder : path
        Its subfolders are the classes, sorted by name. All images below a subfolder belong to its
        class, sorted by path. Other files and hidden folders are ignored.
    size : int
        Images are cropped to the central square and resized to (size, size).
    batch_size : int

    Attributes
    ----------
    class_names : list of str
        Name of each label.

    Notes
    -----
    Rows are (b, size, size, 3), uint8, decoded by Pillow one batch at a time. Targets are ints. The
    fingerprint covers paths and labels, not the images.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for name in ("cat", "dog"):
    ...         (Path(folder) / name).mkdir()
    ...         (Path(folder) / name / "1.png").touch()
    ...     stream = ImageFolderStream(folder, size=32)
    >>> stream.n_rows, stream.class_names
    (2, ['cat', 'dog'])
    """

    def __init__(self, folder: str | Path, size: int = 224, *, batch_size: int = 128) -> None:
        root = Path(folder)
        if not root.is_dir():
            raise MissingFile(f"no folder {root}; give a folder with one subfolder per class")
        inner = (path for path in root.iterdir() if path.is_dir())
        self.class_names = sorted(path.name for path in inner if path.name[0] != ".")
        paths: list[str] = []
        labels: list[int] = []
        for label, name in enumerate(self.class_names):
            files = (path for path in (root / name).rglob("*") if path.suffix.lower() in _SUFFIXES)
            paths += sorted(path.relative_to(root).as_posix() for path in files)
            labels += [label] * (len(paths) - len(labels))
        if not paths:
            raise MissingFile(
                f"no images ({', '.join(sorted(_SUFFIXES))}) in subfolders of {root}; "
                "put those of each class into a subfolder"
            )
        super().__init__(
            root, paths, np.array(labels), size=size, missing="error", batch_size=batch_size
        )
        self.name = root.resolve().name
        self.classes = sorted(set(labels))

    def describe(self) -> dict[str, Any]:
        """Name, task, size, and a digest of paths and labels."""
        return self._describe()


def embed(
    stream: Stream,
    backbone: nn.Module,
    out: str | Path,
    *,
    batch_size: int = 64,
    size: int | None = None,
    device: str | torch.device = "cpu",
    dtype: str = "float16",
    preprocess: Preprocess | None = None,
    progress: Callable[[int, int | None], object] | None = None,
    resume: bool = True,
) -> Path:
    """Write the features of all images of a stream to a file for `EmbeddingStream`.

    Parameters
    ----------
    stream : Stream
        Its rows are images, (b, height, width, 3), uint8.
    backbone : nn.Module
        Maps images (b, 3, height, width) to features (b, n_features). It is moved to the device and
        used in evaluation mode.
    out : path
        The ``.safetensors`` file to write, with ``features`` (n, n_features), ``labels`` (n,),
        int64, and ``times`` if the stream has them. String labels are numbered in order of first
        appearance. Their names, or the stream's ``class_names``, are stored in the metadata as
        ``label_names``.
    batch_size : int
        Number of images that go through the network at once.
    size : int, optional
        Resize images to (size, size) first.
    device
        Device of the network.
    dtype : "float16" or "float32"
        Data type of the features in the file.
    preprocess : callable, optional
        Maps images of the stream to inputs of the backbone. The default is
        `kalstream.deep.backbones.preprocess` with ImageNet's moments, or with the backbone's
        ``mean`` and ``std`` if it has them.
    progress : callable, optional
        Called after every batch with the number of rows done and of all rows (None if unknown).
    resume : bool
        Resume an earlier call that was stopped; otherwise start over and replace the file.

    Returns
    -------
    path
        The file.

    Raises
    ------
    InvalidInput
        If a feature is not finite, if memory runs out, or if ``out`` was made from another stream,
        backbone, preprocess or dtype. Rows that are done are kept.

    Notes
    -----
    Until the end there are two files: ``out.part`` with the rows, and ``out.part.json`` with their
    source. A resumed run writes the same bytes as one that was not stopped, on the same machine and
    with the same ``batch_size`` and ``device``. If these change, features differ by rounding. A
    `preprocess` of your own is identified by its name only.

    Examples
    --------
    >>> import tempfile
    >>> from kalstream.deep.backbones import slim_resnet18
    >>> from kalstream.streams import ArrayStream, EmbeddingStream
    >>> images = np.zeros((3, 8, 8, 3), np.uint8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stream = ArrayStream(images, ["cat", "dog", "cat"])
    ...     path = embed(stream, slim_resnet18(), f"{folder}/mine.safetensors")
    ...     next(EmbeddingStream(path).batches()).rows.shape
    (3, 160)
    """
    out = Path(out)
    if out.suffix != ".safetensors":
        raise InvalidInput(f"out must be a .safetensors file, got {out}")
    if batch_size < 1:
        raise InvalidInput(f"batch_size must be positive, got {batch_size}")
    if dtype not in ("float16", "float32"):
        raise InvalidInput(f'dtype must be "float16" or "float32", got {dtype!r}')
    preprocess, preprocess_name = _preprocess(preprocess, backbone, size, device)
    identity = {
        "stream": stream.describe(),
        "backbone": digest(backbone),
        "preprocess": preprocess_name,
        "dtype": dtype,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    remedy = "wait until it ends, stop it, or give another out"
    with Lock(out.with_name(f".{out.name}.lock"), str(out), remedy):
        # compared as JSON, where a tuple is a list
        rows = _UnfinishedFile(out, json.loads(json.dumps(identity, default=str)), resume)
        if rows.finished:
            return out
        with _evaluating(backbone, device), closing(rows):
            for batch in _rebatched(stream.batches(rows.done), batch_size):
                features = _features(batch, backbone, preprocess, device, dtype, stream.name)
                rows.append(batch, features, stream.task == REGRESSION)
                if progress is not None:
                    progress(rows.done, stream.n_rows)
            if not rows.done:
                raise InvalidInput(
                    f"the stream {stream.name!r} has no rows to embed; check its source"
                )
            rows.finish(getattr(stream, "class_names", None))
        return out


def _preprocess(
    preprocess: Preprocess | None,
    backbone: nn.Module,
    size: int | None,
    device: str | torch.device,
) -> tuple[Preprocess, Any]:
    """The function that prepares images, and what identifies it in the file."""
    if preprocess is None:
        settings: dict[str, Any] = {
            "mean": tuple(getattr(backbone, "mean", backbones.IMAGENET_MEAN)),
            "std": tuple(getattr(backbone, "std", backbones.IMAGENET_STD)),
            "size": size,
        }
        return partial(backbones.preprocess, device=device, **settings), settings
    if size is not None:
        raise InvalidInput(
            f"size={size} works with the default preprocess only; resize in your preprocess"
        )
    return preprocess, _plain(getattr(preprocess, "__qualname__", repr(preprocess)))


@contextmanager
def _evaluating(backbone: nn.Module, device: str | torch.device) -> Iterator[None]:
    """Move a network to the device and to evaluation mode; restore its modes afterwards."""
    modes = [(module, module.training) for module in backbone.modules()]
    try:
        _move(backbone, device)
        backbone.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def digest(backbone: nn.Module) -> str:
    """Digest of a network: its layers, and the names, types, shapes and values of its weights.

    Examples
    --------
    >>> one, two = (backbones.resnet18(stem="cifar", width=1, seed=seed) for seed in (0, 1))
    >>> digest(one) == digest(one), digest(one) == digest(two)
    (True, False)
    """
    value = sha256(_plain(repr(backbone)).encode())
    for name, tensor in backbone.state_dict().items():
        value.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        value.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{value.hexdigest()}"


def _plain(text: str) -> str:
    """A representation without addresses in memory."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _move(backbone: nn.Module, device: str | torch.device) -> None:
    try:
        backbone.to(device)
    except (AssertionError, RuntimeError) as error:  # torch was built without that device
        raise InvalidInput(
            f"device {str(device)!r} cannot be used: {error}; give a device that torch has, "
            'such as "cpu"'
        ) from error


def _rebatched(batches: Iterator[Batch], size: int) -> Iterator[Batch]:
    """The same rows in batches of ``size``; features then do not depend on the stream's batches."""
    held: Batch | None = None
    for batch in batches:
        held = batch if held is None else held.joined(batch)
        while len(held) >= size:
            yield held[:size]
            held = held[size:]
    if held:
        yield held


def _features(
    batch: Batch,
    backbone: nn.Module,
    preprocess: Preprocess,
    device: str | torch.device,
    dtype: str,
    name: str,
) -> Array:
    """Features (b, n_features) of a batch, all finite."""
    try:
        with torch.inference_mode():
            computed = backbone(preprocess(batch.rows).to(device)).float().cpu().numpy()
    except RuntimeError as error:
        full = isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not full:
            raise
        raise InvalidInput(
            f"{str(device)!r} has not enough memory for batch_size={len(batch)} of images "
            f"{batch.rows.shape[1:]}; give a smaller batch_size, such as "
            f"{max(1, len(batch) // 4)}. The rows before {batch.start} are kept. {error}"
        ) from error
    if computed.ndim != 2 or len(computed) != len(batch):
        raise InvalidInput(
            f"the backbone must return (b, n_features), got {computed.shape} for {len(batch)} "
            "images; see kalstream.deep.adapters"
        )
    with np.errstate(over="ignore"):
        features: Array = computed.astype(dtype)
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        row = int(finite.argmin())
        if np.isfinite(computed[row]).all():
            largest = np.abs(computed[row]).max()
            why = f'reach {largest:.4g}, beyond the range of float16; give dtype="float32"'
        else:
            why = "are not finite; check its image and the backbone's weights"
        raise InvalidInput(f"features of row {batch.start + row} of stream {name!r} {why}")
    return features


class _UnfinishedFile:
    """Rows of an unfinished file: features, labels and times, appended and saved."""

    def __init__(self, out: Path, identity: dict[str, Any], resume: bool) -> None:
        self.out, self.identity = out, identity
        self.part, self.side = (out.with_name(out.name + end) for end in (".part", ".part.json"))
        self.done = 0
        self.kinds: list[Any] | None = None  # numpy's description of a row
        self.names: dict[str, int] = {}
        self.saved = time.monotonic()
        self.file: BinaryIO | None = None
        self.finished = False
        if not resume:
            self._clear()
        elif self.side.exists():
            self._load()
        elif out.exists():
            self._check(out, _source(out))
            self._clear()
            self.finished = True

    def append(self, batch: Batch, features: Array, regression: bool) -> None:
        """Add rows: all of them, or none if an error is raised."""
        labels = batch.targets if regression else self._codes(batch)
        if self.kinds is None:
            self.kinds = [("labels", labels.dtype.newbyteorder("<").str)]
            if batch.times is not None:
                self.kinds.append(("times", "<f8"))
            kind = features.dtype.newbyteorder("<").str
            self.kinds.append(("features", kind, [features.shape[1]]))
        block = np.empty(len(batch), self._kind())
        block["labels"], block["features"] = labels, features
        if batch.times is not None:
            block["times"] = batch.times
        if self.file is None:
            self.file = self.part.open("r+b" if self.done else "wb")
            self.file.truncate(self.done * block.itemsize)
            self.file.seek(0, os.SEEK_END)
        self.file.write(block.tobytes())
        self.done += len(batch)
        if time.monotonic() - self.saved > _SAVE_SECONDS:
            self._save()

    def finish(self, class_names: list[str] | None) -> None:
        """Write the finished file and remove the partial ones."""
        self.close()
        names = list(self.names) or class_names
        metadata = {"source": json.dumps(self.identity, sort_keys=True)}
        if names:
            metadata["label_names"] = json.dumps(names)
        kind = self._kind()
        rows = np.memmap(self.part, kind, "r", shape=(self.done,))
        header: dict[str, Any] = {"__metadata__": metadata}
        offset = 0
        for name in kind.names or ():
            column = rows[name]
            end = offset + column.nbytes
            header[name] = {
                "dtype": _TYPES[column.dtype.str],
                "shape": column.shape,
                "data_offsets": [offset, end],
            }
            offset = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with replacing(self.out) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in kind.names or ():
                for first in range(0, self.done, _PIECE):
                    file.write(rows[name][first : first + _PIECE].tobytes())
        del rows
        self._clear()

    def close(self) -> None:
        """Save the rows that are done."""
        if self.file is not None:
            self._save()
            self.file.close()
            self.file = None

    def _codes(self, batch: Batch) -> Array:
        """Labels as int64: integers as they are, strings numbered by first appearance."""
        codes = np.empty(len(batch), np.int64)
        names = dict(self.names)
        for k, label in enumerate(batch.targets):
            row = batch.start + k
            if isinstance(label, str) and (names or not row):
                codes[k] = names.setdefault(label, len(names))
            elif isinstance(label, int | np.integer) and not names:
                codes[k] = label
            else:
                raise InvalidInput(
                    f"label of row {row} is {label!r}; every row of an embedding file needs a "
                    "label, all ints or all strings"
                )
        self.names = names
        return codes

    def _kind(self) -> np.dtype[Any]:
        assert self.kinds is not None
        return np.dtype([(name, kind, *map(tuple, shape)) for name, kind, *shape in self.kinds])

    def _load(self) -> None:
        try:
            state = json.loads(self.side.read_text(encoding="utf-8"))
            source, done, names = state["source"], int(state["done"]), state["names"]
            self.kinds = state["kinds"]
            n_stored = self.part.stat().st_size // self._kind().itemsize
            if n_stored < done:
                raise ValueError(f"{n_stored} of {done} rows are stored")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                f"{self.side} and {self.part} cannot be resumed: {error!r}; remove them, or start "
                "over with resume=False"
            ) from error
        self._check(self.side, source)
        self.done, self.names = done, {name: code for code, name in enumerate(names)}

    def _check(self, where: Path, source: Any) -> None:
        old, new = _flat(source), _flat(self.identity)
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        if changed:
            changes = (f"{key} was {old.get(key)}, is {new.get(key)}" for key in changed)
            raise InvalidInput(
                f"{where} was made with other settings: {'; '.join(changes)}; use those, give "
                "another out, or start over with resume=False"
            )

    def _save(self) -> None:
        assert self.file is not None
        self.file.flush()
        os.fsync(self.file.fileno())
        state = {
            "source": self.identity,
            "done": self.done,
            "kinds": self.kinds,
            "names": list(self.names),
        }
        write_whole(self.side, json.dumps(state))
        self.saved = time.monotonic()

    def _clear(self) -> None:
        for path in (self.side, self.part):
            path.unlink(missing_ok=True)


def _source(path: Path) -> Any:
    """The source that an embedding file names in its metadata."""
    try:
        with safe_open(path, framework="numpy") as file:
            return json.loads((file.metadata() or {}).get("source", "null"))
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidInput(
            f"{path} exists and is not an embedding file: {error}; give another out, or replace it "
            "with resume=False"
        ) from error


def _flat(source: Any) -> dict[str, Any]:
    """Nested entries as ``outer.inner``."""
    flat: dict[str, Any] = {}
    for key, value in source.items() if isinstance(source, dict) else ():
        inner = value.items() if isinstance(value, dict) else ()
        flat |= {f"{key}.{k}": v for k, v in inner} or {key: value}
    return flat


def open_images(source: Path, layout: str, split: str, size: int) -> tuple[Stream, int | None]:
    """The stream, and the size to resize its images to (None if the stream does so).

    Examples
    --------
    >>> open_images(Path("no/such/folder"), "folder", "train", 32)
    Traceback (most recent call last):
    kalstream.errors.MissingFile: no folder ...; give a folder with one subfolder per class
    """
    if layout == "cifar100":
        return streams.Cifar100Stream(source, split=split), size
    if layout == "clear":
        return streams.ClearStream(source, split, size=size), None
    if layout == "cloc":
        return streams.ClocStream(source, split, size=size), None
    return ImageFolderStream(source, size), None


def named_backbone(name: str, weights: Path | None) -> Any:
    """A network of `kalstream.deep.backbones` with weights from a file, or timm:NAME.

    Examples
    --------
    >>> named_backbone("resnet18", Path("resnet18-f37072fd.pth")).n_features  # doctest: +SKIP
    512
    >>> named_backbone("resnet18", None)
    Traceback (most recent call last):
    kalstream.errors.InvalidInput: --backbone resnet18 needs --weights, ...
    """
    from kalstream.deep import adapters

    library, _, model = name.partition(":")
    if library == "timm" and model:
        if weights is not None:
            raise InvalidInput(
                f"--weights {weights} cannot be used with {name}, which timm loads itself; omit it"
            )
        return adapters.from_timm(model)
    builders = {n: getattr(backbones, n) for n in ("mobilenet_v2", "resnet18", "resnet50")}
    if name not in builders:
        raise InvalidInput(f"--backbone must be {', '.join(builders)} or timm:NAME, got {name!r}")
    if weights is None:
        raise InvalidInput(
            f"--backbone {name} needs --weights, a state dict of torchvision such as "
            "mobilenet_v2-b0353104.pth"
        )
    return backbones.load_weights(builders[name](), weights)
