"""The formats that streams are read from, and `open`, which finds the format of a source.

A new format is one entry of `FORMATS`: how a source is recognised, what opens it, and the options
that apply. The attributes of its `Stream` say what the stream can do. tests/runs/test_formats.py
has a complete one. Another file type of tables is a `Part` (_rows.py), chosen at the end of
table.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from kalstream._printable import printable
from kalstream.errors import InvalidInput, InvalidOption
from kalstream.streams.base import ArrayStream, Stream
from kalstream.streams.embeddings import EMBEDDINGS, EmbeddingStream, read_features
from kalstream.streams.packaged import KNOWN, path_of
from kalstream.streams.series import time_series
from kalstream.streams.table import TableStream

_TABLE_OPTIONS: Final = (
    *("target", "task", "time", "label_time", "id", "key", "ignore", "categorical", "bad_rows"),
    *("missing", "decimal", "date_format", "delimiter", "encoding", "columns"),
    "aggregate_keys",
)
_TABLE_REMEDIES: Final = {
    "order": "its rows are read in their own order. To shuffle them first: "
    "(head -n 1 data.csv; tail -n +2 data.csv | shuf) > shuffled.csv"
}


@dataclass(frozen=True)
class Format:
    """A format of streams.

    Attributes
    ----------
    name : str
    about : str
        What a source of this format is, as in "data.csv, which is a table".
    recognises : function
        Whether a source (str) is of this format.
    open : function
        The `Stream` of a source, given those of the ``options`` that the caller has set.
    options : names
        Options that apply. Others are refused, but for ``seed``, which is then ignored.
    remedies : {option: text}
        What to do instead, for options that do not apply.
    open_rows : function, optional
        The stream of a source whose rows have no targets, for predictions.

    Examples
    --------
    >>> squares = Format(
    ...     "squares",
    ...     "is generated",
    ...     recognises=lambda source: source.startswith("squares:"),
    ...     open=lambda source: ArrayStream([[k * k] for k in range(9)], [*"abc"] * 3),
    ... )
    >>> FORMATS.insert(0, squares)
    >>> open("squares:9").n_rows
    9
    >>> FORMATS.remove(squares)
    """

    name: str
    about: str
    recognises: Callable[[str], bool]
    open: Callable[..., Stream]
    options: tuple[str, ...] = ()
    remedies: Mapping[str, str] = field(default_factory=dict)
    open_rows: Callable[[str], Stream] | None = None


def open(source: Any, **options: Any) -> Stream:
    """Open a stream, whatever its format.

    Parameters
    ----------
    source : str, path or table
        A frame or a list of dicts; or a table (CSV, JSON lines, Parquet, a folder
        of such files, "-" for standard input), an embedding file
        (.npy, .npz, .safetensors), or the name of a stream that comes with kalstream.
    **options
        Parameters of `TableStream`, `EmbeddingStream` or `time_series`. One that does not apply to
        the format is refused, except that ``seed`` is ignored where nothing is random.

    Examples
    --------
    >>> open("elec2").columns
    ('feat_1', 'feat_2', 'feat_3', 'feat_4', 'feat_5', 'feat_6')
    >>> open("elec2", order="shuffled")
    Traceback (most recent call last):
        ...
    kalstream.errors.InvalidOption: order='shuffled' does not apply to elec2, which is a table: ...
    """
    if not isinstance(source, str | Path):
        return TableStream(source, **options)
    source = str(source)
    format = format_of(source)
    for name, value in options.items():
        if name not in (*format.options, "seed"):
            remedy = format.remedies.get(name, "leave it out")
            raise InvalidOption(
                f"{name}={value!r} does not apply to {printable(source, 300)}, which "
                f"{format.about}: {remedy}"
            )
    return format.open(source, **{k: v for k, v in options.items() if k in format.options})


def format_of(source: str) -> Format:
    """The first of `FORMATS` that recognises a source.

    Examples
    --------
    >>> [format_of(source).name for source in ("elec2", "data.csv", "features.npy")]
    ['packaged table', 'table', 'embeddings']
    """
    return next(format for format in FORMATS if format.recognises(source))


def _is_packaged(source: str) -> bool:
    return source in KNOWN and KNOWN[source].packaged and not os.path.exists(source)


def _open_packaged(source: str, **options: Any) -> Stream:
    known = KNOWN[source]
    stream = TableStream(path_of(source), **{"target": known.target, **options})
    stream.name = stream.source = source
    stream.n_rows, stream.attribution = known.rows, known.source
    return stream


def _open_series(source: str, seed: int = 0) -> Stream:
    return time_series(seed)


def _open_feature_rows(source: str) -> Stream:
    features = read_features(source)
    return ArrayStream(features, np.full(len(features), None))


def _open_table(source: str, **options: Any) -> Stream:
    if source in KNOWN and not os.path.exists(source):
        raise InvalidInput(
            f"{source} does not come with kalstream and cannot be run by name; you need: "
            f"{KNOWN[source].layout}; `kalstream embed` turns images into a file that can be run"
        )
    if "://" in source:
        raise InvalidInput(f"{source} is a web address; download the file first and give its path")
    if options.get("target") is None and options.get("columns") is None:
        raise InvalidInput(
            f"no target was given for {printable(source, 300)}; name the column to predict with "
            'target="COLUMN"'
        )
    return TableStream(source, **options)


FORMATS: Final[list[Format]] = [
    Format(
        "packaged table",
        "is a table",
        recognises=_is_packaged,
        open=_open_packaged,
        options=_TABLE_OPTIONS,
        remedies=_TABLE_REMEDIES,
    ),
    Format(
        "series",
        "is generated from a seed",
        recognises=lambda source: source == "series" and not os.path.exists(source),
        open=_open_series,
        options=("seed",),
    ),
    Format(
        "embeddings",
        "holds embeddings",
        recognises=lambda source: os.path.splitext(source)[1].lower() in EMBEDDINGS,
        open=EmbeddingStream,
        options=("labels", "order", "seed", "n_tasks", "names", "task"),
        remedies={
            "target": "labels are the array `labels` in it, or NAME-labels.npy beside it",
            "time": "times are the array `times` in it, or NAME-times.npy beside it",
            "label_time": "give a delay, or write a table",
            "id": "write a table",
            "ignore": "leave columns out when you write the file",
            "categorical": "all its columns are numbers",
            "decimal": "all its columns are numbers",
            "date_format": "all its columns are numbers",
            "delimiter": "it is no CSV",
            "encoding": "it is no text",
            "missing": "write NaN where a number is missing",
            "bad_rows": "leave bad rows out when you write the file",
        },
        open_rows=_open_feature_rows,
    ),
    Format(
        "table",
        "is a table",
        recognises=lambda source: True,
        open=_open_table,
        options=_TABLE_OPTIONS,
        remedies=_TABLE_REMEDIES,
    ),
]
"""The formats, in the order in which they are tried; insert a new one at the front."""
