"""Where examples come from: arrays, tables in files, embeddings, the data sets of the paper."""

from kalstream.streams._base import CLASSIFICATION, REGRESSION, ArrayStream, Batch, Stream
from kalstream.streams.cifar import Cifar100Stream
from kalstream.streams.clear import ClearStream
from kalstream.streams.cloc import ClocStream, pack_cloc
from kalstream.streams.embeddings import EmbeddingStream
from kalstream.streams.series import time_series
from kalstream.streams.table import BadRow, Columns, TableStream

__all__ = [
    "CLASSIFICATION",
    "REGRESSION",
    "ArrayStream",
    "BadRow",
    "Batch",
    "Cifar100Stream",
    "ClearStream",
    "ClocStream",
    "Columns",
    "EmbeddingStream",
    "Stream",
    "TableStream",
    "pack_cloc",
    "time_series",
]
