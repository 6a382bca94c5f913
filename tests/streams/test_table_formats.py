"""A table gives the same stream in every format."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream.streams import _csv
from kalstream.streams._csv import Csv
from kalstream.streams.table import Columns, TableStream

# Text that no reader reads as a number, a date or a missing value; with commas, quotes, newlines.
TEXTS = st.text(st.sampled_from('xyé,;"\n\r|{ 1'), max_size=5).map(lambda t: "x" + t + "x")
NUMBERS = st.floats(-1e100, 1e100)


@st.composite
def tables(draw):
    """Columns of each kind, with the target last."""
    n = draw(st.integers(1, 40))

    def column(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    table = {
        "n": column(st.none() | NUMBERS),
        "i": column(st.none() | st.integers(-(2**40), 2**40)),
        "c, or": column(st.none() | TEXTS),
        "b": [True, *column(st.none() | st.booleans())][:n],
        "d": ["2024-02-29", *column(st.none() | st.dates().map(str))][:n],
    }
    table["c, or"][0] = "x"
    target = draw(st.sampled_from([TEXTS, st.integers(-5, 5), NUMBERS.map(lambda x: x / 3 + 1e-9)]))
    table["y"] = column(st.none() | target)
    table["y"][0] = draw(target)
    return table


def as_csv(table):
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(table)
    for row in zip(*table.values(), strict=True):
        writer.writerow(repr(v) if isinstance(v, float) else v for v in row)
    return out.getvalue().encode()


def as_json(table):
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_all(folder, table):
    """Write the table in each format; return the paths."""
    text, lines = as_csv(table), as_json(table)
    (folder / "t.csv").write_bytes(text)
    (folder / "t.csv.gz").write_bytes(gzip.compress(text))
    with pa.CompressedOutputStream(str(folder / "t.csv.zst"), "zstd") as out:
        out.write(text)
    (folder / "t.jsonl").write_bytes(lines)
    (folder / "t.jsonl.gz").write_bytes(gzip.compress(lines))
    arrow = pa.table(table)
    pq.write_table(arrow, folder / "t.parquet", row_group_size=7)
    (folder / "parts").mkdir()
    for k, first in enumerate(range(0, arrow.num_rows, 3)):
        pq.write_table(arrow.slice(first, 3), folder / "parts" / f"part-{k}.parquet")
    return [path for path in sorted(folder.iterdir())]


def joined(stream, start=0):
    batches = list(stream.batches(start))
    if not batches:
        return np.empty((0, len(stream.columns))), []
    assert batches[0].start == start
    return (
        np.concatenate([batch.rows for batch in batches]),
        np.concatenate([batch.targets for batch in batches]).tolist(),
    )


@settings(max_examples=60, deadline=None)
@given(tables(), st.data())
def test_every_format_gives_the_same_stream(table, data):
    small = data.draw(st.sampled_from([0, _csv.SMALL]))  # written by pyarrow and by hand
    with tempfile.TemporaryDirectory() as name, mock.patch.object(_csv, "SMALL", small):
        paths = write_all(Path(name), table)
        expected = None
        for path in paths:
            stream = TableStream(path, "y")
            rows, targets = joined(stream)
            if expected is None:
                expected = stream.columns, stream.task, rows, targets
            assert (stream.columns, stream.task) == expected[:2], path
            np.testing.assert_array_equal(rows, expected[2], str(path))
            assert repr(targets) == repr(expected[3]), path
            start = data.draw(st.integers(0, len(rows)))
            state = json.loads(json.dumps(stream.encoder.to_json()))
            resumed = TableStream(path, columns=Columns.from_json(state))
            for again in (stream, resumed, TableStream(path, "y")):
                tail, tail_targets = joined(again, start)
                np.testing.assert_array_equal(tail, rows[start:])
                assert repr(tail_targets) == repr(targets[start:])


@settings(max_examples=60, deadline=None)
@given(tables(), st.lists(st.integers(1, 30), min_size=1))
def test_fragments_of_standard_input_do_not_matter(table, sizes):
    for text in (as_csv(table), as_json(table)):

        class Fragments:
            def __init__(self, text):
                self.text, self.turn = text, 0

            def read1(self, _):
                size = sizes[self.turn % len(sizes)]
                self.turn += 1
                piece, self.text = self.text[:size], self.text[size:]
                return piece

            read = read1

        # The columns are given: a pipe decides them by the rows that come at once.
        whole = TableStream(io.BytesIO(text), "y", task="classification", bad_rows="skip")
        parts = TableStream(Fragments(text), columns=whole.encoder, bad_rows="skip")
        rows, targets = joined(whole)
        again, targets_again = joined(parts)
        np.testing.assert_array_equal(rows, again)
        assert repr(targets) == repr(targets_again)
        assert whole.skipped == parts.skipped


FIELDS = st.sampled_from(["1", '"x,y"', '"p""q"', '"l\nm"', '"\r"', 'x"y', "", '"a"b', " ", "é"])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(FIELDS, min_size=2, max_size=4).map(",".join)),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.text(st.sampled_from('ab1,"\n\r é'), max_size=20),
)
def test_fast_and_slow_parsing_agree(records, end, rest):
    """The slow parser reads the same as pyarrow, and knows the line of each record."""
    table = Csv("t.csv", ",", b"a,b,c\n")
    data = (end.join(records) + end + rest + "\n").encode()
    data = data[: table.end(data)]
    slow, problems = table._parse_any(data, table.names)
    assert len(table.lines(data)) == slow.num_rows + len(problems)
    try:
        fast = table._parse_good(data, table.names)
    except pa.ArrowInvalid:
        assert problems or not slow.num_rows
    else:
        assert fast.to_pylist() == slow.to_pylist()
        assert not problems
