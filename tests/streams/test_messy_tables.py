"""Tables as people have them: what is read from small messy files, and what the notes say."""

from __future__ import annotations

import numpy as np
import pytest

from kalstream.streams.table import Columns, TableStream, as_table

TOKENS = ["-", ".", "#N/A", "#NA", "missing", "Missing", "nil", "NaT", r"\N", "<NA>", "NA", "None"]


def table(tmp_path, rows, header, name="t.csv", end=""):
    path = tmp_path / name
    path.write_text("\n".join([header, *rows]) + "\n" + end)
    return path


def kinds(stream):
    return {column.name: column.kind for column in stream.encoder.features}


def read(stream):
    batches = list(stream.batches())
    return np.concatenate([b.rows for b in batches]), np.concatenate([b.targets for b in batches])


@pytest.mark.parametrize("token", TOKENS)
def test_texts_that_are_missing_values(tmp_path, token):
    rows = [f"{k},2024-01-01,true,{k % 2}" for k in range(10)]
    rows += [f"{token},{token},{token},{token}"] * 10
    stream = TableStream(table(tmp_path, rows, "n,d,b,y"), "y")
    assert kinds(stream) == {"n": "number", "d": "date", "b": "boolean"}
    numbers, targets = read(stream)
    assert np.isfinite(numbers[:10]).all()
    assert np.isnan(numbers[10:]).all()
    assert targets.tolist() == [0, 1] * 5 + [None] * 10
    assert stream.notes == (
        f"the target 'y' is missing ({token!r}) in 10 of the first 20 rows; such rows are "
        "predicted, but not scored or learned",
    )


def test_missing_tokens_are_categories_as_before(tmp_path):
    rows = [f"{mark},{label}" for mark, label in zip("+-.+-." * 5, "ab-ab-" * 5, strict=True)]
    stream = TableStream(table(tmp_path, rows, "strand,y"), "y")
    numbers, targets = read(stream)
    assert kinds(stream) == {"strand": "category"}
    assert list(stream.encoder.features[0].slots) == ["+", "-", "."]
    assert (numbers.sum(axis=1) == 1).all()
    assert targets.tolist() == [*"ab-ab-"] * 5
    assert stream.notes == ()
    # A row with an id brings a label if it has nothing else; "-" is a category here.
    columns = Columns.from_json(stream.encoder.to_json()).with_late(None, "id")
    later = as_table([{"strand": "-", "id": 1}, {"strand": "NA", "id": 1}], {"y": ["a", "b"]})
    assert np.isnan(columns.encode(later)[0]).all(axis=1).tolist() == [False, True]
