"""Streams of rows: arrays, tables in files, embeddings, and the data sets of the paper."""

from kalstream.streams.base import (
    CLASSIFICATION,
    REGRESSION,
    ArrayStream,
    Batch,
    LaterRows,
    PushedRows,
    Stream,
)
from kalstream.streams.cifar import Cifar100Stream
from kalstream.streams.clear import ClearStream
from kalstream.streams.cloc import ClocStream, pack_cloc
from kalstream.streams.embeddings import EmbeddingStream
from kalstream.streams.formats import FORMATS, Format, format_of, open
from kalstream.streams.images import ImageStream
from kalstream.streams.series import time_series
from kalstream.streams.table import BadRow, Columns, TableStream, as_table

__all__ = [
    "CLASSIFICATION",
    "FORMATS",
    "REGRESSION",
    "ArrayStream",
    "BadRow",
    "Batch",
    "Cifar100Stream",
    "ClearStream",
    "ClocStream",
    "Columns",
    "EmbeddingStream",
    "Format",
    "ImageStream",
    "LaterRows",
    "PushedRows",
    "Stream",
    "TableStream",
    "as_table",
    "format_of",
    "open",
    "pack_cloc",
    "time_series",
]
