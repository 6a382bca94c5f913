"""Data sets that kalstream knows by name, and the files of those that come with it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kalstream.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Known:
    """A data set with a name.

    Attributes
    ----------
    name, description : str
    rows, classes : int or None
        None if it depends on the file, or if there are no classes.
    features : str
        Content of a row.
    source : str
        Origin of the data.
    layout : str
        How to get the data, and the files that the reader needs.
    target : str or None
        Column with the labels, for a packaged table.
    """

    name: str
    description: str
    rows: int | None
    classes: int | None
    features: str
    source: str
    layout: str
    target: str | None = None

    @property
    def packaged(self) -> bool:
        """Whether the data come with kalstream; `path_of` then gives their file."""
        return self.target is not None


_MULTIFLOW = "scikit-multiflow 0.4.1 (BSD-3-Clause)"
_PACKAGED = "comes with kalstream"

KNOWN: dict[str, Known] = {
    known.name: known
    for known in (
        Known(
            "elec2",
            "whether the price of electricity is above its mean of the last day, every half hour",
            45_312,
            2,
            "6 numbers",
            f"Harries 1999, from {_MULTIFLOW}",
            _PACKAGED,
            "target",
        ),
        Known(
            "weather",
            "whether it rained, each day for 50 years, at one station",
            18_159,
            2,
            "8 numbers",
            f"NOAA; Elwell and Polikar 2011, from {_MULTIFLOW}",
            _PACKAGED,
            "target",
        ),
        Known(
            "series",
            "a noisy mean that jumps seven times (regression)",
            3_058,
            None,
            "the constant 1",
            "the paper, appendix C",
            "generated from a seed: time_series(seed)",
        ),
        Known(
            "cifar100",
            "small images of 100 classes, shuffled or in 10 tasks of 10 classes",
            50_000,
            100,
            "32 x 32 x 3 pixels",
            "Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html",
            "cifar-100-python.tar.gz, or the folder that it unpacks to",
        ),
        Known(
            "cloc",
            "where was this image taken, nine years in time order",
            38_003_083,
            713,
            "images",
            "Cai, Sener and Koltun 2021, from YFCC100M",
            "release/train_{labels,time,userID,store_loc}.torchSave, or "
            "order_files/train_{image_paths,labels}.hdf5; images in release/dataset/images/",
        ),
        Known(
            "clear",
            "what is in this image, in buckets of about a year each",
            None,
            None,
            "images",
            "Lin et al. 2021, https://clear-benchmark.github.io",
            "{train,test}/labeled_metadata.json and class_names.txt, as the archives unpack",
        ),
        Known(
            "embeddings",
            "features computed by your own network, with labels",
            None,
            None,
            "numbers, as many as the file has",
            "your own",
            "X.npy and X-labels.npy, or X.safetensors or X.npz with `features` and `labels`",
        ),
    )
}


def path_of(name: str) -> Path:
    """Path of a packaged data set: CSV with a header, compressed by gzip.

    Parameters
    ----------
    name : str
        "elec2" or "weather".

    Examples
    --------
    >>> path_of("elec2").name
    'elec2.csv.gz'
    """
    known = KNOWN.get(name)
    if known is None or not known.packaged:
        packaged = ", ".join(each.name for each in KNOWN.values() if each.packaged)
        reason = "it is not a known data set" if known is None else f"it needs: {known.layout}"
        raise InvalidInput(f"{name!r} does not come with kalstream ({reason}); use: {packaged}")
    return _data() / f"{name}.csv.gz"


def attribution() -> str:
    """Origin and licence of the packaged data; the licence requires this text.

    Examples
    --------
    >>> "Copyright (c) 2017, scikit-multiflow" in attribution()
    True
    """
    return (_data() / "ATTRIBUTION.md").read_text(encoding="utf-8")


def _data() -> Path:
    return Path(str(files("kalstream.streams"))) / "data"
