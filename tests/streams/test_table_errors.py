"""Tables that cannot be read: the message, and the rows that came before the error."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalstream.errors import InvalidInput, MissingFile, Unreadable
from kalstream.streams.table import BadRow, TableStream


def write(tmp_path, content, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(stream):
    """The rows before the error, and the error."""
    rows = []
    try:
        for batch in stream.batches():
            rows.append(batch.rows)
    except InvalidInput as error:
        return np.concatenate(rows) if rows else np.empty((0, 0)), error
    raise AssertionError("no error")


GOOD = "".join(f"{k},{k % 3},a\n" for k in range(40))


@pytest.mark.parametrize(
    ("bad", "value", "message"),
    [
        ("1,2", None, "line 43: has 2 fields where the header has 3; correct it, or leave"),
        ("1,2,a,", None, "line 43: has 4 fields where the header has 3"),
        ("1,oops,a", "oops", "line 43: column 'b' holds 'oops', which is not a number"),
        (b"1,2,caf\xe9", None, "line 43: byte 0xe9 is not UTF-8; save the file as"),
        (b"\xe9,2,a", None, "line 43: byte 0xe9 is not UTF-8; save the file as"),
    ],
)
@pytest.mark.parametrize("more", [0, 60_000])
def test_bad_row_in_the_middle(tmp_path, bad, value, message, more):
    """Line 1 is the header, lines 2 and 3 are one row; blocks of 1 MB may come between."""
    head = 'a,b,y\n"7",1,"x\nz"\n' + GOOD + "123456,123456,some text\n" * more
    bad = bad if isinstance(bad, bytes) else bad.encode()
    path = write(tmp_path, head.encode() + bad + b"\n8,8,b\n" + bad + b"\n9,9,b\n")
    message = message.replace("line 43", f"line {44 + more}")
    rows, error = read(TableStream(path, "y"))
    assert len(rows) == 41 + more
    assert isinstance(error, BadRow)
    assert str(error).startswith(f"{path}, {message}")
    assert (error.file, error.line, error.row) == (str(path), 44 + more, 42 + more)
    assert error.value == value
    stream = TableStream(path, "y", bad_rows="skip")
    rows = np.concatenate([batch.rows for batch in stream.batches()])
    assert len(rows) == 43 + more
    assert rows[-2:].tolist() == [[8, 8], [9, 9]]
    assert stream.skipped == 2
    for start in (3, 41 + more, 42 + more):
        batches = list(stream.batches(start))
        assert batches[0].start == start
        np.testing.assert_array_equal(np.concatenate([b.rows for b in batches]), rows[start:])


def test_several_bad_records_before_a_bad_value(tmp_path):
    path = write(tmp_path, "a,y\n" + "1,x\n" * 30 + "2\n3,x\n4\n\noops,x\n5,x\n")
    stream = TableStream(path, "y", bad_rows="skip")
    assert sum(len(batch) for batch in stream.batches()) == 32
    assert stream.skipped == 3
    write(tmp_path, "a,y\n" + "1,x\n" * 30 + "3,x\n\noops,x\n2\n5,x\n")
    rows, error = read(TableStream(path, "y"))
    assert (len(rows), error.line, error.row) == (31, 34, 32)


def test_labels_must_be_integers(tmp_path):
    path = write(tmp_path, "x,y\n" + "1,1\n2,0\n" * 5000 + "3,cat\n")
    rows, error = read(TableStream(path, "y"))
    assert len(rows) == 10_000
    assert "line 10002: column 'y' holds 'cat', which is not a whole number, as the" in str(error)


def test_bad_value_in_parquet(tmp_path):
    pq.write_table(pa.table({"x": [1.0, 2], "y": ["a", "b"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"x": ["3", "bad"], "y": ["a", "b"]}), tmp_path / "2.parquet")
    first = TableStream(tmp_path / "1.parquet", "y").encoder
    rows, error = read(TableStream(tmp_path, columns=first))
    assert rows[:, 0].tolist() == [1, 2, 3]
    assert (error.line, error.row, error.value) == (None, 2, "bad")
    assert str(error).startswith(f"{tmp_path / '2.parquet'}, row 2: column 'x' holds 'bad'")


@pytest.mark.parametrize("name", ["t.jsonl", "t.ndjson.gz"])
def test_bad_json_line(tmp_path, name):
    good = b'{"x": 1, "y": "a"}\n'
    for bad, why in (
        (b'{"x": 1,', "is not a JSON object in UTF-8"),
        (b"[1]", "is not a JSON object"),
        (b'{"x": 1, "y": "\xe9"}', "is not a JSON object in UTF-8"),
        (b'{"x": [1], "y": "a"}', "column 'x' holds '[1]', which is not a number"),
        (b'{"x": {"z": 1}, "y": "a"}', "which is not a number"),
        (b'{"x": true, "y": 1}', "column 'x' holds 'true', which is not a number"),
        (b'{"x": "\\ud800", "y": 2}', "ud800', which is not a number"),
    ):
        data = good * 2 + b"\n" + good * 60_000 + bad + b"\n" + good
        path = write(tmp_path, gzip.compress(data, 1) if "gz" in name else data, name)
        rows, error = read(TableStream(path, "y"))
        assert len(rows) == 60_002
        assert f"{path}, line 60004: " in str(error)
        assert why in str(error)


@pytest.mark.parametrize(
    "split",
    [
        '{"x": [2,\n3], "y": "a"}',
        '{"x": 2\n"y": "a"}',
        '{"x": 2, "y": "a\nb"}',
        '{"x": 2, "y": [{}\n{}]}',
    ],
)
def test_objects_are_whole_and_alone_on_their_lines(tmp_path, split):
    """A line of two objects and an object over two lines: as many objects as lines."""
    good, two = '{"x": 1, "y": "a"}', '{"x": 2, "y": "a"}, {"x": 3, "y": "b"}'
    for lines, first_bad in (([good, two, split], 2), ([good, split, two, good], 2)):
        path = write(tmp_path, "\n".join(lines) + "\n", "t.jsonl")
        rows, error = read(TableStream(path, "y"))
        assert rows[:, 0].tolist() == [1]
        assert (error.line, error.row) == (first_bad, first_bad)
        assert "whole and alone on its line" in str(error)
        assert "bad_rows='skip'" in str(error)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("a,y\n", "has a header but no rows"),
        ("a,y\n1\n", "line 2: has 1 fields where the header has 2"),
        ("a,b,a,y\n1,2,3,4\n", "two columns are called 'a'; rename"),
        (b"\x7fELF\0\0\1\2" * 9, "is a binary file, not CSV"),
        ("a,y\n1,x\n".encode("utf-16-le"), "binary file.*UTF-8 unless encoding= says otherwise"),
        ("caf\xe9,y\n1,2\n".encode("latin-1"), "line 1: byte 0xe9 is not UTF-8"),
        ('"a,y\n1,2\n', "line 1: a quote is opened and never closed; close the quote"),
        ('[{"a": 1, "y": 2}]', "is a JSON array; write JSON lines"),
        ('{\n "a": 1}\n', "line 1 is not a JSON object"),
        ('{"a": [1], "y": 2}\n', r"column 'a' has the type list.*ignore=\['a'\]"),
        ("b,y\n1,x\n", r"target='a': there is no such column\. The columns are: b, y"),
    ],
)
def test_files_without_a_table(tmp_path, content, message):
    path = write(tmp_path, content)
    with pytest.raises(InvalidInput, match=message) as caught:
        TableStream(path, "a" if "target" in message else "y")
    assert "t.csv" in str(caught.value) or "column" in message


def test_unknown_columns(tmp_path):
    path = write(tmp_path, "colour,size,label\nred,1,a\n")
    for asked, what in (
        ({"target": "lable"}, "target='lable': there is no such column. Did you mean 'label'?"),
        (
            {"time": "when"},
            "time='when': there is no such column. The columns are: colour, size, label",
        ),
        ({"ignore": ["color"]}, "ignore='color': there is no such column. Did you mean 'colour'?"),
        (
            {"categorical": ["sise"]},
            "categorical='sise': there is no such column. Did you mean 'size'?",
        ),
        (
            {"categorical": ["label"]},
            "categorical='label': there is no such column. The columns are: colour, size",
        ),
        ({"target": None}, "no target was given; name one of the columns: colour, size, label"),
        ({"ignore": ["colour", "size"]}, "there is no column to predict 'label' from"),
        ({"task": "ranking"}, 'task must be "classification"'),
        ({"bad_rows": "keep"}, 'bad_rows must be "stop" or "skip"'),
    ):
        with pytest.raises(InvalidInput) as caught:
            TableStream(path, **({"target": "label"} | asked))
        assert what in str(caught.value)


def test_nested_and_other_types(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": [1], "v": [[1.0, 2.0]], "b": [b"\0"], "y": [0]}), path)
    for name in ("v", "b"):
        with pytest.raises(
            InvalidInput, match=rf"column '{name}' has the type .*ignore=\['{name}'\]"
        ):
            TableStream(path, "y", ignore=[other for other in "vb" if other != name])
    assert TableStream(path, "y", ignore=["v", "b"]).columns == ("x",)


def test_duplicate_columns_of_parquet(tmp_path):
    pq.write_table(pa.table([[1], [2], [3]], ["x", "x", "y"]), tmp_path / "t.parquet")
    with pytest.raises(InvalidInput, match="two columns are called 'x'"):
        TableStream(tmp_path / "t.parquet", "y")


def test_parquet_cut_short(tmp_path):
    path = tmp_path / "t.parquet"
    n = 20_000
    pq.write_table(pa.table({"x": np.arange(n), "y": np.arange(n) % 2}), path, row_group_size=5000)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput, match="incomplete: write or download it again"):
        TableStream(path, "y")
    path.write_bytes(b"")
    with pytest.raises(InvalidInput, match="is empty"):
        TableStream(path, "y")
    path.write_bytes(b"x,y\n1,2\n")
    with pytest.raises(InvalidInput, match="is not a Parquet file"):
        TableStream(path, "y")
    half = len(whole) * 2 // 3
    path.write_bytes(whole[:half] + b"\xff" * 200 + whole[half + 200 :])
    stream = TableStream(path, "y")
    rows, error = read(stream)
    assert 0 < len(rows) < n
    assert f"{path} cannot be read after row {len(rows)}" in str(error)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("harm", ["cut", "overwritten"])
def test_compressed_text_damaged_half_way(tmp_path, compression, harm):
    rng = np.random.default_rng(0)
    lines = [f"{k},{x:.17g},{k % 2}\n" for k, x in enumerate(rng.normal(size=100_000))]
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, compression) as out:
        out.write(("a,b,y\n" + "".join(lines)).encode())
    data = sink.getvalue().to_pybytes()
    half = len(data) // 2
    data = data[:half] + (b"" if harm == "cut" else b"\xff" * 100 + data[half + 100 :])
    path = write(tmp_path, data, "t.csv.zst")  # the content decides, not the name
    stream = TableStream(path, "y")
    rows, error = read(stream)
    if harm == "cut":
        assert 40_000 < len(rows) < 60_000
    assert rows[:, 0].tolist() == list(range(len(rows)))
    assert type(error) in (InvalidInput, BadRow)  # decompression may find the damage late
    if type(error) is InvalidInput:
        assert f"{path} cannot be read after line {len(rows) + 1} (" in str(error)


def test_compressed_header_damaged(tmp_path):
    path = write(tmp_path, gzip.compress(b"a,y\n1,2\n")[:12], "t.csv.gz")
    with pytest.raises(InvalidInput, match="cannot be read at its start"):
        TableStream(path, "y")


def test_quote_never_closed(tmp_path):
    path = write(tmp_path, 'a,y\n1,x\n2,"x\n3,x\n4,x\n')
    rows, error = read(TableStream(path, "y"))
    assert rows[:, 0].tolist() == [1]
    assert "line 3: opens a quote that is never closed" in str(error)
    stream = TableStream(path, "y", bad_rows="skip")
    assert np.concatenate([b.rows for b in stream.batches()])[:, 0].tolist() == [1, 3, 4]


def test_an_endless_line_raises_before_memory_is_full(tmp_path):
    path = write(tmp_path, b'a,y\n1,x\n2,"' + b"x" * (40 << 20))
    _, error = read(TableStream(path, "y"))
    assert error.line == 3


def test_folders(tmp_path):
    with pytest.raises(
        InvalidInput, match=r"the folder holds no table; names must end in .parquet"
    ):
        TableStream(tmp_path, "y")
    write(tmp_path, "a,b,y\n1,2,3\n", "1.csv")
    write(tmp_path, "a,c,y\n1,2,3\n", "2.csv")
    with pytest.raises(InvalidInput, match=r"2.csv and .*1.csv have different columns: .* b, c;"):
        TableStream(tmp_path, "y")
    write(tmp_path, "b,y,a\nx,y,z\n", "2.csv")
    stream = TableStream(tmp_path, columns=TableStream(tmp_path / "1.csv", "y").encoder)
    rows, error = read(stream)
    assert len(rows) == 1
    assert (error.file, error.line) == (str(tmp_path / "2.csv"), 2)


def test_missing_and_forbidden(tmp_path, monkeypatch):
    write(tmp_path, "a,y\n1,2\n", "table.csv")
    with pytest.raises(
        MissingFile, match=r"tabel.csv: no such file .* mean .*table.csv\?"
    ) as caught:
        TableStream(tmp_path / "tabel.csv", "y")
    assert isinstance(caught.value, FileNotFoundError | InvalidInput)
    with pytest.raises(FileNotFoundError, match="relative paths start from"):
        TableStream(tmp_path / "nowhere" / "else.csv", "y")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # the tests may run as a user who can read all files
    with pytest.raises(Unreadable, match=r"table.csv: this user may not read it"):
        TableStream(tmp_path / "table.csv", "y")
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(PermissionError, match="this user may not read it"):
        TableStream(tmp_path, "y")


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl"])
@pytest.mark.parametrize("number", ["1.1e100", "-1e308", "1e400", "-1e999", "9" * 150])
@pytest.mark.parametrize("column", ["x", "t", "y"])
def test_a_number_that_is_too_large(tmp_path, kind, number, column):
    """A row with a number beyond 1e100 is a bad row, for any number of digits."""
    rows = [{"t": str(k), "x": f"{k}.5", "y": f"{k}.25"} for k in range(30)]
    rows[20][column] = number
    if kind == "jsonl":
        lines = ["{" + ", ".join(f'"{k}": {v}' for k, v in row.items()) + "}" for row in rows]
    else:
        lines = ["t,x,y", *(",".join(row.values()) for row in rows)]
    data = "\n".join(lines).encode()
    path = write(tmp_path, gzip.compress(data) if "gz" in kind else data, f"t.{kind}")
    options = {"task": "regression", "time": "t"}
    if kind == "jsonl" and "9" * 150 in number:  # this column of its block has text
        options["columns"] = TableStream(
            write(tmp_path, "t,x,y\n0,0.5,0.5\n", "a.csv"), "y", **options
        ).encoder
    rows, error = read(TableStream(path, "y", **options))
    assert len(rows) == 20
    assert (error.line, error.column) == (21 if kind == "jsonl" else 22, column)
    assert f"{path}, line {error.line}: column {column!r} holds" in str(error)
    assert "beyond 1e+100" in str(error)
    stream = TableStream(path, "y", bad_rows="skip", **options)
    assert sum(len(batch) for batch in stream.batches()) == 29
    assert stream.skipped == 1
    assert f"column {column!r}" in stream.skipped_why[0]


def test_a_number_of_parquet_that_is_too_large(tmp_path):
    pq.write_table(
        pa.table({"x": [1.0, np.inf, 1e100, -2e100], "y": list("abab")}), tmp_path / "t.parquet"
    )
    rows, error = read(TableStream(tmp_path / "t.parquet", "y"))
    assert rows[:, 0].tolist() == [1.0, np.inf, 1e100]
    assert (error.row, error.column, error.value) == (4, "x", -2e100)


def test_a_column_of_too_large_numbers_does_not_become_a_category(tmp_path):
    path = write(tmp_path, "x,y\n" + "1e200,a\n1e400,b\n" * 20)
    stream = TableStream(path, "y")
    assert stream.columns == ("x",)
    rows, error = read(stream)
    assert (len(rows), error.line) == (0, 2)


@pytest.mark.parametrize(
    "header", ["x" * 5_000_000 + ",z", ",".join(f"c{k:07}" for k in range(100_000))]
)
def test_a_long_header_gives_a_short_message(tmp_path, header):
    path = write(tmp_path, header + "\n" + "1," * header.count(",") + "1\n")
    for asked in ({"target": "y"}, {"target": "x" * 5_000_000 + "y"}, {}):
        with pytest.raises(InvalidInput) as caught:
            TableStream(path, **asked)
        assert len(str(caught.value)) < 2500
    path = write(tmp_path, header + "," + header + "\n")
    with pytest.raises(InvalidInput, match="two columns are called") as caught:
        TableStream(path, "y")
    assert len(str(caught.value)) < 2500


def test_a_header_that_does_not_end(tmp_path):
    path = write(tmp_path, b"a," * (17 << 19))
    with pytest.raises(InvalidInput, match="its first 16 MB hold no complete header"):
        TableStream(path, "y")


def test_a_bad_value_of_megabytes_is_cut(tmp_path):
    path = write(tmp_path, "x,y\n" + "1,a\n" * 30 + "z" * 3_000_000 + ",a\n")
    _, error = read(TableStream(path, "y"))
    assert len(str(error)) < 1000
    assert error.value == "z" * 3_000_000
    folder = tmp_path / "parts"
    folder.mkdir()
    for name in ("a", "b"):
        write(folder, name * 1_000_000 + ",y\n1,2\n", f"{name}.csv")
    with pytest.raises(InvalidInput, match="have different columns") as caught:
        TableStream(folder, "y")
    assert len(str(caught.value)) < 1000


def test_the_target_is_not_the_time(tmp_path):
    with pytest.raises(InvalidInput, match="'y' is both target and time"):
        TableStream(write(tmp_path, "x,y\n1,2\n2,3\n"), "y", time="y")


def test_a_path_that_is_no_file_is_never_its_own_remedy(tmp_path):
    (tmp_path / "link.csv").symlink_to("nowhere.csv")
    with pytest.raises(MissingFile, match="no such file or folder; relative paths start"):
        TableStream(tmp_path / "link.csv", "y")
    with pytest.raises(InvalidInput, match=r"^/dev/null is a device or a socket.*pass \"-\""):
        TableStream("/dev/null", "y")
