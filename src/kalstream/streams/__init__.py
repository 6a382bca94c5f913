"""Where examples come from: arrays, tables in files, embeddings, the data sets of the paper."""

from kalstream.streams._base import ArrayStream, Batch, Stream

__all__ = ["ArrayStream", "Batch", "Stream"]
