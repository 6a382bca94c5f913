"""Tables as streams: kinds, encoding, targets, times, standard input."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import threading
from dataclasses import replace
from decimal import Decimal
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalstream.errors import InvalidInput
from kalstream.streams.table import BadRow, Columns, TableStream

CIRCLES = {
    "time of day": 86400,
    "day of week": 604800,
    "day of year": 31556952,
    "20 years": 631139040,
}


def on_circles(seconds, circles=CIRCLES):
    angles = [2 * np.pi * seconds / CIRCLES[circle] for circle in circles]
    return np.array([wave(angle) for angle in angles for wave in (np.sin, np.cos)])


def csv(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def parquet(tmp_path, columns, name="t.parquet", **options):
    path = tmp_path / name
    pq.write_table(pa.table(columns), path, **options)
    return path


def joined(stream, start=0):
    batches = list(stream.batches(start))
    at = start
    for batch in batches:
        assert batch.start == at
        assert len(batch) > 0
        at = batch.stop
    rows = np.concatenate([b.rows for b in batches] or [np.empty((0, len(stream.columns)))])
    targets = np.concatenate([b.targets for b in batches] or [np.empty(0)])
    return rows, targets


def kinds(stream):
    return {column.name: column.kind for column in stream.encoder.features}


def test_kinds_of_text(tmp_path):
    path = csv(
        tmp_path,
        "n,b,c,d,e,y\n"
        "1,true,red,2024-01-31,,a\n"
        "NA,False,,2024-01-31T12:00:00+02:00,,b\n"
        " 2.5 ,,blue,1969-12-31 23:59:59.5,,a\n",
    )
    stream = TableStream(path, "y")
    assert kinds(stream) == {
        "n": "number",
        "b": "boolean",
        "c": "category",
        "d": "date",
        "e": "number",
    }
    rows, targets = joined(stream)
    date = [f"d[{c} {w}]" for c in CIRCLES for w in ("sin", "cos")]
    assert stream.columns == ("n", "b", *(f"c[{k}]" for k in range(5)), *date, "e")
    expected = [
        [1, 1, 1, 0, 0, 0, 0, *on_circles(1706659200), np.nan],
        [np.nan, 0, 0, 1, 0, 0, 0, *on_circles(1706695200), np.nan],
        [2.5, np.nan, 0, 0, 1, 0, 0, *on_circles(-0.5), np.nan],
    ]
    np.testing.assert_allclose(rows, expected, atol=1e-9)
    assert targets.tolist() == ["a", "b", "a"]
    assert stream.encoder.features[2].slots == {"red": 0, None: 1, "blue": 2}


def test_kinds_of_parquet(tmp_path):
    noon = dt.datetime(2024, 1, 31, 12)
    path = parquet(
        tmp_path,
        {
            "i": pa.array([1, None, 3], pa.int8()),
            "u": pa.array([2**64 - 1, 0, 1], pa.uint64()),
            "h": pa.array([1.5, None, 2], pa.float32()),
            "m": pa.array([Decimal("1.25"), None, Decimal("-3.00")]),
            "b": [True, None, False],
            "s": pa.array(["x", "y", "x"]).dictionary_encode(),
            "l": pa.array(["", None, "x"], pa.large_string()),
            "d": pa.array([dt.date(1970, 1, 2), None, dt.date(1970, 1, 1)]),
            "t": pa.array([noon, None, noon], pa.timestamp("ns", "Europe/Berlin")),
            "w": ["1970-01-02", None, "1970-01-01"],
            "k": pa.array([7, 8, 7]).dictionary_encode(),
            "0": pa.nulls(3),
            "y": [0.5, None, 2],
        },
    )
    stream = TableStream(path, "y")
    assert "".join(kind[0] for kind in kinds(stream).values()) == "nnnnbccdddnn"
    rows, targets = joined(stream)
    at = {name: k for k, name in enumerate(stream.columns)}
    np.testing.assert_array_equal(rows[:, at["i"]], [1, np.nan, 3])
    np.testing.assert_array_equal(rows[:, at["u"]], [2.0**64, 0, 1])
    np.testing.assert_array_equal(rows[:, at["h"]], [1.5, np.nan, 2])
    np.testing.assert_array_equal(rows[:, at["m"]], [1.25, np.nan, -3])
    np.testing.assert_array_equal(rows[:, at["b"]], [1, np.nan, 0])
    np.testing.assert_array_equal(rows[:, at["s[0]"]], [1, 0, 1])
    np.testing.assert_array_equal(rows[:, at["l[0]"]], [1, 1, 0])  # both are missing
    without_time = ("day of week", "day of year", "20 years")
    for name, circles, seconds in (
        ("d", without_time, [86400, np.nan, 0]),
        ("t", CIRCLES, [1706702400, np.nan, 1706702400]),
        ("w", without_time, [86400, np.nan, 0]),
    ):
        places = [k for each, k in at.items() if each.startswith(name)]
        expected = np.transpose(on_circles(np.array(seconds), circles))
        np.testing.assert_allclose(rows[:, places], expected, atol=1e-9)
    np.testing.assert_array_equal(rows[:, at["k"]], [7, 8, 7])
    np.testing.assert_array_equal(targets, [0.5, np.nan, 2])
    assert stream.task == "regression"
    assert stream.n_rows == stream.approximate_rows == 3


@pytest.mark.parametrize(
    ("first", "step", "n", "circles"),
    [
        ("2024-01-01T07:00", "h", 60, ["time of day", "day of week", "day of year"]),
        ("2024-01-01T07:00", "D", 60, ["day of week", "day of year"]),  # always at the same time
        ("2024-01-01", "D", 60, ["day of week", "day of year"]),
        ("2024-01-01", "W", 60, ["day of year"]),
        ("2020-01-01", "M", 60, ["day of year"]),  # first days of months
        ("1950-01-01", "Y", 60, []),
        ("2024-01-01T00:00", "D", 1, ["time of day", "day of week", "day of year"]),  # not known
    ],
)
def test_calendar_features_follow_the_resolution(tmp_path, first, step, n, circles):
    dates = np.arange(np.datetime64(first, step), n)
    dates = (dates.astype(f"M8[{'m' if 'T' in first else 'D'}]")).astype(str)
    if ("T" in first) and step == "D":
        dates = [f"{each[:10]}T{first[11:]}" for each in dates]
    stream = TableStream(csv(tmp_path, "d,y\n" + "".join(f"{d},a\n" for d in dates)), "y")
    circles = [*circles, "20 years"] if circles else []
    names = [f"d[{circle} {wave}]" for circle in circles for wave in ("sin", "cos")]
    assert list(stream.columns) == (names or ["d[seconds]"])
    if circles:
        assert np.abs(joined(stream)[0]).max() <= 1  # however long the stream is


def test_dates_without_order_are_also_a_number(tmp_path):
    days = np.random.default_rng(0).permutation(200) - 7000
    born = days.astype("M8[D]").astype(str)
    stream = TableStream(csv(tmp_path, "born,y\n" + "".join(f"{d},a\n" for d in born)), "y")
    assert stream.columns[-1] == "born[seconds]"
    np.testing.assert_array_equal(joined(stream)[0][:, -1], days * 86400.0)


@pytest.mark.parametrize(
    ("values", "task", "labels"),
    [
        (["1", "2", ""], "classification", [1, 2, None]),
        (["1.0", "2", "NA"], "classification", [1, 2, None]),
        (["1", "b", ""], "classification", ["1", "b", None]),
        (["true", " no ", "x"], "classification", ["true", "no", "x"]),
        (["1.5", "2", ""], "regression", [1.5, 2, np.nan]),
    ],
)
def test_target_of_csv(tmp_path, values, task, labels):
    stream = TableStream(csv(tmp_path, "x,y\n" + "".join(f"1,{v}\n" for v in values)), "y")
    assert stream.task == task
    assert task in stream.guess
    _, targets = joined(stream)
    np.testing.assert_array_equal(targets, labels)
    if task == "classification":
        assert [type(t) for t in targets] == [type(label) for label in labels]


def test_many_different_whole_numbers_are_a_regression_target(tmp_path):
    path = csv(tmp_path, "x,y\n" + "".join(f"1,{k}\n" for k in range(101)))
    assert TableStream(path, "y").task == "regression"
    stream = TableStream(path, "y", task="classification")
    assert stream.guess == ""
    assert joined(stream)[1].tolist() == list(range(101))


def test_rare_text_among_labels_or_numbers(tmp_path):
    labels = csv(tmp_path, "x,y\n" + "1,0\n2,1\n" * 30 + "3,other\n")
    stream = TableStream(labels, "y")
    assert stream.guess.startswith(
        "the target 'y' holds text in the first 61 rows, so the task is clas"
    )
    assert set(joined(stream)[1]) == {"0", "1", "other"}
    amounts = csv(tmp_path, "x,y\n" + "".join(f"1,{k}.5\n" for k in range(200)) + "3,oops\n")
    assert TableStream(amounts, "y").task == "regression"
    assert TableStream(amounts, "y", bad_rows="skip").task == "regression"


def test_target_of_parquet(tmp_path):
    columns = {
        "x": [1.0, 2],
        "b": [True, None],
        "s": ["1", "2"],
        "i": [2**60 + 1, 3],
        "f": [0.5, 1],
    }
    path = parquet(tmp_path, columns)
    for target, expected in (("b", [True, None]), ("s", ["1", "2"]), ("i", [2**60 + 1, 3])):
        stream = TableStream(path, target, ignore=[c for c in "bsif" if c != target])
        assert stream.task == "classification"
        assert joined(stream)[1].tolist() == expected
    assert joined(TableStream(path, "f", task="classification"))[1].tolist() == ["0.5", "1"]


def test_empty_target_needs_a_task(tmp_path):
    path = csv(tmp_path, "x,y\n1,\n2,\n")
    with pytest.raises(InvalidInput, match="give task="):
        TableStream(path, "y")
    assert joined(TableStream(path, "y", task="classification"))[1].tolist() == [None, None]
    assert np.isnan(joined(TableStream(path, "y", task="regression"))[1]).all()


def test_regression_of_text(tmp_path):
    with pytest.raises(InvalidInput, match="such as 'cat', but regression needs numbers"):
        TableStream(csv(tmp_path, "x,y\n1,cat\n"), "y", task="regression")


def test_slots_and_hash(tmp_path):
    first = [f"a{k}" for k in range(12)]
    rest = [f"b{k}" for k in range(9)]
    path = csv(tmp_path, "c,y\n" + "".join(f"{v},0\n" for v in first * 1000 + rest))
    stream = TableStream(path, "y")
    assert len(stream.columns) == 12 + 3
    rows, _ = joined(stream)
    slots = rows.argmax(axis=1)
    assert (rows.sum(axis=1) == 1).all()
    assert slots[:12].tolist() == list(range(12))
    expected = [12, 13, 14] + [crc32(v.encode()) % 15 for v in rest[3:]]
    assert slots[-9:].tolist() == expected
    many = csv(tmp_path, "c,y\n" + "".join(f"v{k},0\n" for k in range(100)), "many.csv")
    stream = TableStream(many, "y")
    assert len(stream.columns) == 64
    assert joined(stream)[0][-1].argmax() == crc32(b"v99") % 64


def test_categorical_and_ignore(tmp_path):
    path = csv(tmp_path, "id,zip,y\n1,01,0\n2,1,1\n")
    stream = TableStream(path, "y", ignore="id", categorical="zip")
    assert kinds(stream) == {"zip": "category"}
    assert list(stream.encoder.features[0].slots) == []
    joined(stream)
    assert list(stream.encoder.features[0].slots) == ["01", "1"]


def test_few_typos_do_not_make_a_column_a_category(tmp_path):
    path = csv(tmp_path, "x,y\n" + "1,0\n" * 30 + "oops,0\n" + "2,1\n")
    stream = TableStream(path, "y")
    assert kinds(stream) == {"x": "number"}
    with pytest.raises(BadRow, match=r"line 32: .*'x' holds 'oops', which is not a number \(if "):
        joined(stream)


def test_dictionary_of_parquet_is_in_the_order_of_the_rows(tmp_path):
    values = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 2]), ["a", "unused", "c"])
    stream = TableStream(parquet(tmp_path, {"c": values, "y": [0, 1, 0, 1]}), "y")
    joined(stream)
    assert stream.encoder.features[0].slots == {"c": 0, "a": 1, None: 2}


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()])
def test_every_type_of_text(text):
    table = pa.record_batch(
        {"c": pa.array(["p", None, "q"], text), "x": pa.array(["1", "NA", "2"], text)}
    )
    columns, _ = Columns.of_table(table, "c", as_written=["c", "x"])
    rows, targets, _, bad = columns.learn(table).encode(table)
    np.testing.assert_array_equal(rows[:, 0], [1, np.nan, 2])
    assert targets.tolist() == ["p", None, "q"]
    assert not bad


def test_learning_and_encoding_leave_the_columns_as_they_were():
    table = pa.record_batch({"c": ["p", "q"], "y": [0, 1]})
    columns, _ = Columns.of_table(table, "y")
    before = columns.to_json()
    learned = columns.learn(table)
    assert columns.encode(table)[0].tolist() == [[0.0] * 4] * 2  # nothing has a slot yet
    assert learned.encode(table)[0].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert columns.to_json() == before != learned.to_json()
    assert learned.learn(table) == learned
    assert learned.frozen().learn(pa.record_batch({"c": ["r"], "y": [0]})) == learned.frozen()


def test_infinities_can_count_as_missing(tmp_path):
    path = csv(tmp_path, "x,y\nInfinity,1.5\n-inf,2\nnan,inf\n3,1\n")
    stream = TableStream(path, "y", task="regression")
    for _ in range(2):
        (batch,) = stream.batches()
        np.testing.assert_array_equal(batch.rows[:, 0], [np.inf, -np.inf, np.nan, 3])
        batch, infinite = batch.without_infinities()
        np.testing.assert_array_equal(batch.rows[:, 0], [np.nan, np.nan, np.nan, 3])
        np.testing.assert_array_equal(batch.targets, [1.5, 2, np.nan, 1])
        assert infinite == 3
        assert batch.without_infinities() == (batch, 0)


def test_times(tmp_path):
    path = csv(tmp_path, "when,x,y\n2024-01-01,1,0\n2024-01-01,2,1\n2024-01-02T00:00Z,3,0\n")
    stream = TableStream(path, "y", time="when")
    (batch,) = stream.batches()
    assert stream.columns == ("x",)
    assert batch.times.tolist() == [1704067200, 1704067200, 1704153600]
    with pytest.raises(InvalidInput, match="the column 'x' given as time holds categories"):
        TableStream(csv(tmp_path, "x,z,y\na,1,1\n"), "y", time="x")


@pytest.mark.parametrize("bad", ["", "4", "inf"])
def test_bad_times(tmp_path, bad):
    path = csv(tmp_path, f"t,x,y\n1,1,0\n5,2,1\n{bad},3,0\n5,4,0\n")
    stream = TableStream(path, "y", time="t")
    batches = stream.batches()
    assert len(next(batches)) == 2
    with pytest.raises(BadRow, match=r"t.csv, line 4: column 't' holds") as caught:
        next(batches)
    assert (caught.value.line, caught.value.row, caught.value.column) == (4, 3, "t")
    stream = TableStream(path, "y", time="t", bad_rows="skip")
    assert joined(stream)[0][:, 0].tolist() == [1, 2, 4]
    assert stream.skipped == 1


def test_time_goes_back_between_batches(tmp_path):
    times = np.arange(20000.0)
    times[8192] = 100
    path = parquet(tmp_path, {"t": times, "x": times, "y": times % 2 == 0})
    stream = TableStream(path, "y", time="t")
    batches = stream.batches()
    assert len(next(batches)) == 8192
    with pytest.raises(
        BadRow, match=r"row 8193: column 't' holds 100.0, which is earlier .*\(8191"
    ):
        next(batches)


def test_columns_are_restored(tmp_path):
    names = [f"n{k}" for k in range(6)]
    text = "c,x,y\n" + "".join(f"{names[k % 3]},{k},0\n" for k in range(10_000))
    text += "".join(f"{v},1,1\n" for v in reversed(names * 2))
    for path in (csv(tmp_path, text),):
        whole, _ = joined(TableStream(path, "y"))
        first = TableStream(path, "y")
        next(first.batches())
        state = json.loads(json.dumps(first.encoder.to_json()))
        for start in (0, 1, 8192, 10_003, 10_012):
            resumed = TableStream(path, columns=Columns.from_json(state))
            np.testing.assert_array_equal(joined(resumed, start)[0], whole[start:])
            fresh = TableStream(path, "y")
            np.testing.assert_array_equal(joined(fresh, start)[0], whole[start:])
            # now the state is ahead of the row
            np.testing.assert_array_equal(joined(fresh, 5)[0], whole[5:])
    assert joined(TableStream(path, "y"), 10**6)[0].shape == (0, 6)


def test_parquet_skips_row_groups(tmp_path):
    names = ["a", "b", "c", "d"]
    columns = {
        "c": [names[k // 7000] for k in range(28_000)],
        "x": np.arange(28_000.0),
        "y": np.arange(28_000) % 2,
    }
    path = parquet(tmp_path, columns, row_group_size=3000)
    stream = TableStream(path, "y")
    whole, _ = joined(stream)
    for start in (1, 2999, 3000, 20_001, 27_999):
        np.testing.assert_array_equal(joined(stream, start)[0], whole[start:])
        np.testing.assert_array_equal(joined(TableStream(path, "y"), start)[0], whole[start:])


def test_memory_is_bounded_within_a_row_group(tmp_path):
    n = 1_500_000
    columns = {f"x{k}": np.random.default_rng(k).normal(size=n) for k in range(4)}
    path = parquet(tmp_path, columns | {"y": np.arange(n) % 2}, row_group_size=n)
    stream = TableStream(path, "y")
    del columns
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() for _ in stream.batches())
    assert most - before < 20 << 20  # of 48 MB


def test_frozen_for_prediction(tmp_path):
    trained = TableStream(csv(tmp_path, "c,x,t,y\nred,1,1,0\nblue,2,2,1\n"), "y", time="t")
    joined(trained)
    frozen = trained.encoder.frozen()
    path = csv(tmp_path, "more,x,c\n,5,blue\n,6,green\n", "p.csv")
    stream = TableStream(path, columns=Columns.from_json(frozen.to_json()))
    (batch,) = stream.batches()
    assert batch.rows.tolist() == [[0, 1, 0, 0, 5], [0, 0, 0, 0, 6]]
    assert batch.targets.tolist() == [None, None]
    assert batch.times is None
    assert stream.encoder.to_json() == frozen.to_json() | {"seen": 2}
    assert len(trained.encoder.features[0].slots) == 2
    with pytest.raises(InvalidInput, match=r"p.csv: there is no column 'y'"):
        TableStream(path, columns=trained.encoder)
    with pytest.raises(InvalidInput, match=r"q.csv: there is no column 'c'"):
        TableStream(csv(tmp_path, "x,y\n1,2\n", "q.csv"), columns=frozen)
    with pytest.raises(InvalidInput, match="target is 'x', but the given columns have target 'y'"):
        TableStream(path, "x", columns=frozen)
    full = [replace(column, n_slots=len(column.slots) or 1) for column in frozen.features]
    frozen = replace(frozen, features=tuple(full))  # all slots are used: a hash decides
    (batch,) = TableStream(path, columns=frozen).batches()
    assert batch.rows[1, crc32(b"green") % 2] == 1


def test_natural_order_of_a_folder(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for k in (10, 2, 1):
        parquet(folder, {"x": [float(k)], "y": [k]}, f"part-{k}.parquet")
    csv(folder, "y,x\n11,11.0\n", "part-11.csv")
    csv(folder, "not a table", "README.md")
    csv(folder, "", "_SUCCESS.csv")
    stream = TableStream(folder, "y")
    rows, targets = joined(stream)
    assert rows[:, 0].tolist() == [1, 2, 10, 11]
    assert targets.tolist() == [1, 2, 10, 11]
    assert stream.n_rows is None
    (folder / "part-11.csv").unlink()
    stream = TableStream(folder, "y")
    assert stream.n_rows == 3
    assert joined(stream, 2)[1].tolist() == [10]


def test_types_that_differ_between_files(tmp_path):
    parquet(tmp_path, {"x": [1, 2], "c": ["a", "b"], "y": [0, 1]}, "1.parquet")
    parquet(tmp_path, {"x": [0.5, None], "c": [3, 4], "y": [1, 0]}, "2.parquet")
    rows, _ = joined(TableStream(tmp_path, "y"))
    np.testing.assert_array_equal(rows[:, 0], [1, 2, 0.5, np.nan])
    assert rows[:, 1:5].tolist() == np.eye(4).tolist()


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters(tmp_path, delimiter):
    text = 'a,"b",y\n1,"2",x\n'.replace(",", delimiter)
    rows, targets = joined(TableStream(csv(tmp_path, text), "y"))
    assert rows.tolist() == [[1, 2]]
    assert targets.tolist() == ["x"]
    assert joined(TableStream(csv(tmp_path, "a~y\n1~x\n"), "y", delimiter="~"))[0].tolist() == [[1]]
    with pytest.raises(InvalidInput, match="one ASCII character"):
        TableStream(csv(tmp_path, text), "y", delimiter="::")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_line_ends_and_byte_order_mark(tmp_path, end, bom):
    text = bom + end.join(["", " a , y", "1,x", "", '2,"p', 'q"', "3,z"])
    rows, targets = joined(TableStream(csv(tmp_path, text.encode()), "y"))
    assert rows[:, 0].tolist() == [1, 2, 3]
    assert targets.tolist() == ["x", f"p{end}q", "z"]


def test_batches_of_wide_tables_are_small(tmp_path):
    columns = {f"x{k}": np.zeros(3000) for k in range(700)} | {"y": np.zeros(3000, int)}
    stream = TableStream(parquet(tmp_path, columns), "y")
    assert max(batch.rows.size for batch in stream.batches()) <= 1 << 20


def test_describe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    csv(tmp_path, "t,a,b,y\n1,1,2,x\n")
    stream = TableStream("t.csv", "y", time="t", ignore=["a"])
    description = stream.describe()
    assert description.pop("fingerprint").startswith("sha256:")
    assert description == {
        "name": "t",
        "source": "t.csv",
        "task": "classification",
        "target": "y",
        "time": "t",
        "ignore": ["a"],
        "categorical": [],
        "bad_rows": "stop",
        "delimiter": None,
        "columns": [{"name": "b", "kind": "number"}],
        "n_rows": None,
    }
    assert stream.approximate_rows == 2  # the header counts as a row
    json.dumps(stream.describe())


def pipe():
    read, write = os.pipe()
    return os.fdopen(read, "rb"), os.fdopen(write, "wb", buffering=0)


def test_standard_input_yields_rows_at_once():
    reader, writer = pipe()
    with reader, writer:
        writer.write(b"x,c,y\n")
        opened = []
        thread = threading.Thread(target=lambda: opened.append(TableStream(reader, "y")))
        thread.start()
        writer.write(b"1,re")
        writer.write(b"d,0\n2,")
        thread.join(10)
        (stream,) = opened
        assert not stream.repeatable
        assert len(stream.columns) == 17
        batches = stream.batches()
        assert next(batches).rows[:, 0].tolist() == [1]
        writer.write(b"blue,1\n")
        assert next(batches).targets.tolist() == [1]
        writer.write(b"3,red,0\n4,,1\n5")
        assert next(batches).rows[:, 0].tolist() == [3, 4]
        writer.write(b",x,2")
        writer.close()
        (last,) = batches
        assert last.start == 4
        assert last.targets.tolist() == [2]
        with pytest.raises(InvalidInput, match="only once"):
            stream.batches()
        assert stream.describe()["fingerprint"] is None
        assert stream.describe()["source"] == "-"


def test_json_lines_of_standard_input(monkeypatch):
    lines = b'{"x": 1, "c": "a", "y": true}\n{"y": false, "x": null, "new": 3}\n\n{"x": 2.5}'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    stream = TableStream("-", "y")
    assert stream.approximate_rows is None
    rows, targets = joined(stream)
    np.testing.assert_array_equal(rows[:, 0], [1, np.nan, 2.5])
    assert rows[:, 1:3].tolist() == [[1, 0], [0, 1], [0, 1]]
    assert targets.tolist() == [True, False, None]


def test_first_row_of_standard_input_decides():
    text = "x,e,y\n1,,3\noops,,3\n"
    stream = TableStream(io.StringIO(text), "y", bad_rows="skip")
    assert kinds(stream) == {"x": "number", "e": "number"}
    assert len(joined(stream)[0]) == 1
    assert stream.skipped == 1
    stream = TableStream(io.BytesIO(text.encode()), "y", categorical=["x"])
    assert joined(stream, 1)[0][:, 1].tolist() == [1]


def test_named_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    thread = threading.Thread(target=lambda: path.write_text("x,y\n1,a\n"))
    thread.start()
    stream = TableStream(path, "y")
    assert joined(stream)[0].tolist() == [[1]]
    assert not stream.repeatable
    thread.join()
