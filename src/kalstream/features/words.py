"""Texts as columns of numbers: words, hashed to a few slots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from sklearn.utils import murmurhash3_32

from kalstream.features.values import Array

# Columns that a text becomes; twice as many are better, and slower (benchmarks/tables.py).
N_SLOTS = 128
# Words of a mean text: fewer are the name of a category.
_LEAST_WORDS = 3
_CLEAR_WORDS = 8  # with fewer rows than the next number
_LEAST_ROWS = 50
_WORD = re.compile(r"\w+")


def are_texts(values: Sequence[str], counts: Array) -> bool:
    """Whether distinct values (n) that occur so often (n,) are mostly distinct texts of words."""
    total = int(counts.sum())
    if not total or 2 * len(values) < total:
        return False
    n_words = np.mean([len(value.split()) for value in values])
    return bool(n_words >= (_LEAST_WORDS if total >= _LEAST_ROWS else _CLEAR_WORDS))


def hashed(texts: Iterable[str | None], n_slots: int) -> Array:
    """Rows (n, n_slots) of length 1, in which each word adds 1 or -1 to the slot of its hash.

    Upper and lower case are one. A text without words is zeros, and so is a missing one.

    Examples
    --------
    >>> hashed(["Good, good wine", None], 3).round(3).tolist()
    [[0.0, 0.894, -0.447], [0.0, 0.0, 0.0]]
    """
    rows = []
    for text in texts:
        row = np.zeros(n_slots)
        for word in _WORD.findall((text or "").lower()):
            hash_ = murmurhash3_32(word)
            row[abs(hash_) % n_slots] += 1 if hash_ >= 0 else -1
        rows.append(row)
    made = np.array(rows).reshape(-1, n_slots)
    lengths = np.linalg.norm(made, axis=1, keepdims=True)
    return np.divide(made, lengths, out=made, where=lengths > 0)
