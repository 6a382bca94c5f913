"""The data sets that kalstream knows by name, and the files of those it brings along."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kalstream.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Known:
    """A data set that has a name.

    Attributes
    ----------
    name, description : str
    rows, classes : int or None
        None where it depends on the file, or where there are no classes.
    features : str
        What a row is.
    source : str
        Where the data come from.
    layout : str
        How to get them, and where the reader looks for them.
    target : str or None
        Of a packaged table, the column with the labels.
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
        """Whether the data come with kalstream, as a file that `path_of` finds."""
        return self.target is not None


_MULTIFLOW = "scikit-multiflow 0.4.1 (BSD-3-Clause)"
_PACKAGED = "comes with kalstream"

KNOWN: dict[str, Known] = {
    known.name: known
    for known in (
        Known(
            "elec2",
            "is electricity dearer than its mean of the last day, every half hour",
            45_312,
            2,
            "6 numbers",
            f"Harries 1999, from {_MULTIFLOW}",
            _PACKAGED,
            "target",
        ),
        Known(
            "weather",
            "did it rain, daily for 50 years at one station",
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
            "made from a seed: time_series(seed)",
        ),
        Known(
            "cifar100",
            "small pictures of 100 kinds of things, shuffled or in 10 tasks of 10 classes",
            50_000,
            100,
            "32 x 32 x 3 pixels",
            "Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html",
            "cifar-100-python.tar.gz as it is, or what it unpacks to",
        ),
        Known(
            "cloc",
            "where was this photograph taken, nine years of photographs in time order",
            38_003_083,
            713,
            "photographs",
            "Cai, Sener and Koltun 2021, from YFCC100M",
            "release/train_{labels,time,userID,store_loc}.torchSave, or "
            "order_files/train_{image_paths,labels}.hdf5; pictures in release/dataset/images/",
        ),
        Known(
            "clear",
            "what is in this photograph, in buckets of about a year each",
            None,
            None,
            "photographs",
            "Lin et al. 2021, https://clear-benchmark.github.io",
            "{train,test}/labeled_metadata.json and class_names.txt, as the archives unpack",
        ),
        Known(
            "embeddings",
            "features of a network of your own, with labels",
            None,
            None,
            "as many numbers as the file has",
            "your own",
            "X.npy and X-labels.npy, or X.safetensors or X.npz with `features` and `labels`",
        ),
    )
}


def path_of(name: str) -> Path:
    """The packaged file of a data set: comma-separated with a header, compressed by gzip.

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
        how = "it is not a known data set" if known is None else f"get it as: {known.layout}"
        raise InvalidInput(f"{name!r} does not come with kalstream ({how}); packaged: {packaged}")
    return _data() / f"{name}.csv.gz"


def attribution() -> str:
    """Where the packaged data come from, and the licence that asks for this text.

    Examples
    --------
    >>> "Copyright (c) 2017, scikit-multiflow" in attribution()
    True
    """
    return (_data() / "ATTRIBUTION.md").read_text(encoding="utf-8")


def _data() -> Path:
    return Path(str(files("kalstream.streams"))) / "data"
