"""Tables as people have them: what is read from small messy files, and what the notes say."""

from __future__ import annotations

import io
import json
import uuid
from hashlib import sha1

import numpy as np
import pytest

import kalstream.streams
from kalstream.errors import InvalidInput
from kalstream.features.calendar import encoded
from kalstream.streams import ArrayStream
from kalstream.streams.table import BadRow, Columns, TableStream, as_table

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


def test_a_column_that_is_mostly_numbers_is_named(tmp_path):
    rows = [f"{'n/v' if k % 8 == 5 else k % 50},{'u' if k % 2 else k}x,{k % 2}" for k in range(80)]
    path = table(tmp_path, rows, "n,text,y")
    stream = TableStream(path, "y")
    assert kinds(stream) == {"n": "category", "text": "category"}
    assert stream.notes == (
        "column 'n' is taken for text: 70 of 80 values are numbers, but not 'n/v' (row 6) and 9 "
        "others; if such texts stand for missing values, give missing=['n/v']; if they are codes, "
        "give categorical=['n']",
    )
    assert TableStream(path, "y", categorical=["n"]).notes == ()
    stream = TableStream(path, "y", missing=["n/v"])
    assert (kinds(stream)["n"], stream.notes) == ("number", ())
    assert np.isnan(read(stream)[0][:, 0]).sum() == 10


def test_a_target_that_is_mostly_numbers_is_named(tmp_path):
    rows = [f"{k // 2},{'n/v' if k % 9 == 5 else round(k / 7, 3)}" for k in range(300)]
    path = table(tmp_path, rows, "n,y")
    (note,) = TableStream(path, "y").notes
    assert "column 'y' is taken for text: 267 of 300 values are numbers" in note
    assert note.endswith('if they are labels, give task="classification"')
    stream = TableStream(path, "y", missing="n/v")
    assert (stream.task, stream.notes) == ("regression", ())


def test_texts_that_count_as_missing(tmp_path):
    rows = [f"{-999 if k % 3 else k},{'red' if k % 4 else 'x, y'},{k % 2}" for k in range(12)]
    path = table(tmp_path, [r.replace("x, y", '"x, y"') for r in rows], "n,c,y")
    missing = ("-999", "x, y", "1")
    stream = TableStream(path, "y", missing=missing)
    numbers, targets = read(stream)
    assert np.isnan(numbers[:, 0]).tolist() == [k % 3 > 0 for k in range(12)]
    assert list(stream.encoder.features[1].slots) == [None, "red"]
    assert targets.tolist() == [0, None] * 6
    assert stream.describe()["missing"] == list(missing)
    # The texts are saved with the columns, and other columns are saved as before.
    again = Columns.from_json(stream.encoder.to_json())
    assert again == stream.encoder
    rows = as_table([{"n": -999.0, "c": "x, y", "y": 1}, {"n": 3, "c": "red", "y": 0}])
    assert np.isnan(again.encode(rows)[0][:, 0]).tolist() == [True, False]
    assert again.encode(rows)[1].tolist() == [None, 0]
    plain = TableStream(path, "y")
    assert "missing" not in {**plain.encoder.to_json(), **plain.describe()}


def json_lines(tmp_path, xs):
    rows = [json.dumps({"x": x, "y": k % 2}) for k, x in enumerate(xs)]
    return table(tmp_path, rows[1:], rows[0], "t.jsonl")


def test_one_text_among_the_numbers_of_json_is_a_bad_row(tmp_path):
    path = json_lines(tmp_path, [k / 8 if k != 700 else "broken" for k in range(4000)])
    stream = TableStream(path, "y")
    assert kinds(stream) == {"x": "number"}
    with pytest.raises(BadRow, match=r"t.jsonl, line 701: column 'x' holds 'broken', which is not"):
        list(stream.batches())
    stream = TableStream(path, "y", bad_rows="skip")
    numbers = read(stream)[0][:, 0]
    assert stream.skipped == 1
    np.testing.assert_array_equal(numbers, np.delete(np.arange(4000) / 8, 700))


@pytest.mark.parametrize(
    ("xs", "kind"),
    [
        ([*range(18), "n/v"], "category"),  # as in CSV: more than one text in 20 values
        ([*range(20), "-", 0.5, "7"], "number"),
        ([True, False, 1, 0] * 5, "boolean"),
        (["1", "2", None, "3"] * 5, "category"),  # all are text: the type decides
        ([1, None, 2.5] * 5, "number"),
    ],
)
def test_mixed_types_of_json(tmp_path, xs, kind):
    assert kinds(TableStream(json_lines(tmp_path, xs), "y")) == {"x": kind}


def test_types_that_change_between_blocks(tmp_path):
    # The first megabyte has numbers only, and the next one text only.
    rows = [json.dumps({"x": k, "c": "c" * 150, "y": 1}) for k in range(7000)]
    rows += [json.dumps({"x": "n/v", "c": "c" * 150, "y": 1})] * 300
    stream = TableStream(table(tmp_path, rows[1:], rows[0], "t.jsonl"), "y")
    assert kinds(stream)["x"] == "number"
    with pytest.raises(BadRow, match="line 7001: column 'x' holds 'n/v'"):
        list(stream.batches())


def test_the_first_row_of_a_pipe_decides_also_if_a_later_value_is_text():
    lines = "".join(json.dumps({"x": x, "y": 1}) + "\n" for x in [0.5, 1.5, "broken", 2])
    stream = TableStream(io.BytesIO(lines.encode()), "y", bad_rows="skip")
    assert kinds(stream) == {"x": "number"}
    assert read(stream)[0].tolist() == [[0.5], [1.5], [2.0]]


def with_ids(path, tmp_path):
    """A table with a uuid, a hash and a counter that misses some rows."""
    header, *lines = path.read_text().splitlines()
    rows = [
        f"{uuid.UUID(int=k)},{sha1(bytes(k)).hexdigest()[:8]},{k + k // 50},{line}"
        for k, line in enumerate(lines)
    ]
    return table(tmp_path, rows, f"u,h,n,{header}")


def like_covtype():
    """A stream of the shape of covtype: 10 numbers, 44 columns of 0 and 1, and 7 classes."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 4000, (2000, 10))
    one_hot = np.hstack(
        [np.eye(4)[rng.integers(0, 4, 2000)], np.eye(40)[rng.integers(0, 40, 2000)]]
    )
    return ArrayStream(np.hstack([numbers, one_hot]), rng.integers(1, 8, 2000))


@pytest.mark.parametrize("name", ["elec2", "weather", "like covtype"])
def test_columns_of_ids_are_named_and_measurements_are_not(tmp_path, name):
    stream = like_covtype() if name == "like covtype" else kalstream.streams.open(name)
    assert stream.notes == ()
    batch = next(stream.batches())
    rows = [",".join(map(str, row)) for row in np.column_stack([batch.rows, batch.targets])]
    plain = table(tmp_path, rows, ",".join([*stream.columns, "y"]))
    (note,) = TableStream(with_ids(plain, tmp_path), "y").notes
    assert note.startswith("'u', 'h', 'n' look like ids")
    assert note.endswith("so leave them out with ignore=['u', 'h', 'n']")
    assert TableStream(plain, "y", ignore=["u", "h", "n"]).notes == ()


def test_what_does_not_look_like_ids(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        f"2024-01-01T{k // 60:02}:{k % 60:02}:00,{rng.normal():.6f},{k // 2},{k % 24},"
        f"{k % 60 + 0.5},{rng.integers(1 << 40)},word{k // 2},{k % 2}"
        for k in range(200)
    ]
    path = table(tmp_path, rows, "time,normal,slow,hour,half,large,word,y")
    assert TableStream(path, "y").notes == ()
    # Measurements with texts among them are explained, and are no ids.
    broken = [f"{k / 7 if k % 9 else 'n/v'},{k % 2}" for k in range(200)]
    (note,) = TableStream(table(tmp_path, broken, "x,y"), "y").notes
    assert "177 of 200 values are numbers, but not 'n/v' (row 1)" in note
    counter = table(tmp_path, [f"{k};{k % 7},5;{k % 2}" for k in range(99)], "n;x;y")
    assert "'n' looks like ids" in TableStream(counter, "y").notes[1]
    infinite = table(tmp_path, [f"inf,{k % 2}" for k in range(99)], "x,y")
    assert TableStream(infinite, "y").notes == ()
    # Too few rows to know.
    few = table(tmp_path, [f"{k},text{k},{k % 2}" for k in range(30)], "n,c,y")
    assert TableStream(few, "y").notes == ()
    many = table(tmp_path, [f"{k},text{k},{k % 2}" for k in range(60)], "n,c,y")
    (note,) = TableStream(many, "y", categorical=["c"]).notes
    assert note.endswith("so leave it out with ignore=['n']")


@pytest.mark.parametrize("delimiter", [";", ","])
def test_decimal_commas(tmp_path, delimiter):
    def field(text):
        return text if delimiter == ";" else f'"{text}"'

    rows = [
        (f"{k},5", f"{k}.500" if k else "0", f"0.{k:03}", "", f"{k % 3}", f"-1.{k:03},25")
        for k in range(300)
    ]
    rows[7] = ("-", ",5", "0.007", "", "2", "")
    lines = [delimiter.join(map(field, row)) for row in rows]
    stream = TableStream(table(tmp_path, lines, delimiter.join("abcdey")), "y")
    assert stream.task == "regression"
    # Thousands in "b" are those of the table; 0.125 in "c" is no thousand.
    assert kinds(stream)["c"] == "number"
    assert (
        "'0,5' in 'a' is 0.5, '1.500' in 'b' is 1500, '-1.000,25' in 'y' is -1000.25"
        in (stream.notes[0])
    )
    numbers, targets = read(stream)
    expected = np.array([k + 0.5 for k in range(300)])
    expected[7] = np.nan
    np.testing.assert_array_equal(numbers[:, 0], expected)
    assert numbers[6:8, 1].tolist() == [6500, 0.5]
    np.testing.assert_array_equal(numbers[:, 2], np.arange(300) / 1000)
    np.testing.assert_array_equal(targets[8:], -1000.25 - np.arange(8, 300))
    again = Columns.from_json(json.loads(json.dumps(stream.encoder.to_json())))
    assert again == stream.encoder
    assert again.encode(as_table([{"a": "1.234,5", "b": 2.5, "c": 1, "d": 0, "e": 1, "y": 3.5}]))[
        0
    ].tolist() == [[1234.5, 2.5, 1, 0, 1]]
    # One value that is none is a bad row; the other separator is what the option says.
    (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text().replace("299,5", "2.99,5"))
    with pytest.raises(
        BadRow, match=r"holds '2\.99,5', which is not a number with a decimal comma"
    ):
        list(TableStream(tmp_path / "t.csv", "y").batches())
    assert TableStream(tmp_path / "t.csv", "y", decimal=".").task == "classification"


def test_commas_that_may_be_between_thousands(tmp_path):
    rows = [(f"{k * k % 97}", f"{k + 1},{k:03}") for k in range(200)]
    path = table(tmp_path, [f'{x},"{y}"' for x, y in rows], "x,y")
    stream = TableStream(path, "y")
    assert (stream.task, read(stream)[1][:2].tolist()) == ("regression", [1000, 2001])
    assert "commas may be decimal, or between thousands" in stream.notes[0]
    assert stream.notes[0].endswith(
        """'1,000' in 'y' is 1000; if that is wrong, give decimal=",\""""
    )
    stream = TableStream(path, "y", decimal=",")
    assert (stream.task, stream.notes) == ("regression", ())
    assert read(stream)[1][:3].tolist() == [1, 2.001, 3.002]
    path = table(tmp_path, [f"{x};{y}" for x, y in rows], "x;y")
    assert read(TableStream(path, "y"))[1][:3].tolist() == [1, 2.001, 3.002]


def test_text_of_json_with_decimal_commas(tmp_path):
    path = json_lines(tmp_path, [f"{k},25" for k in range(100)])
    assert read(TableStream(path, "y"))[0][:2].tolist() == [[0.25], [1.25]]
    assert kinds(TableStream(path, "y", decimal=".")) == {"x": "category"}


# Fields of one column, the options, and what the first one becomes: a number, a date, or an error.
MESSY = {
    "thousands": (["1,234.50", "12", "2,000"], {}, 1234.5),
    "thousands and decimal point": (["1,234,567", "1"], {}, 1234567),
    "thousands, said": (["1,234", "2,345"], {"decimal": "."}, 1234),
    "Swiss thousands": (["1'234.5", "12"], {}, 1234.5),
    "spaces between thousands": (["1 234", "12"], {}, 1234),
    "narrow spaces between thousands": (["1\u202f234,5", "12,5"], {}, 1234.5),
    "per cent": (["12.5%", "7%"], {}, 12.5),
    "per cent and a space": (["12 %", "7 %"], {}, 12),
    "per cent and commas": (["12,5 %", "7,25 %"], {}, 12.5),
    "dollars": (["$1,234.50", "-$5"], {}, 1234.5),
    "negative dollars": (["-$5.25", "$6"], {}, -5.25),
    "euros": (["1.234,50 €", "7,99 €"], {}, 1234.5),
    "pounds": (["£12", "£7.50"], {}, 12),
    "names of currencies": (["EUR 12", "EUR 7"], {}, 12),
    "exponents": (["1e3", "2.5E-1"], {}, 1000),
    "spaces around numbers": (["  7 ", "8"], {}, 7),
    "plus signs": (["+7", "-8"], {}, 7),
    "dots in dates": (["31.12.2024", "01.02.2024"], {}, "2024-12-31"),
    "slashes in dates": (["31/12/2024", "01/02/2024"], {}, "2024-12-31"),
    "month first": (["12/31/2024", "01/02/2024"], {}, "2024-12-31"),
    "month first, said": (["03/04/2024"], {"date_format": "month-first"}, "2024-03-04"),
    "day first, said": (["03/04/2024"], {"date_format": "day-first"}, "2024-04-03"),
    "day first with a time": (["31.12.2024 7:05", "1.2.2024 12:00"], {}, "2024-12-31T07:05"),
    "year first, slashes": (["2013/1/31", "2013/02/01"], {}, "2013-01-31"),
    "year first, dots": (["2013.01.31", "2013.02.01"], {}, "2013-01-31"),
    "a zone": (["2024-01-31 12:00:00 +01:00"], {}, "2024-01-31T11:00"),
    "UTC": (["2024-01-31 12:00:00 UTC"], {}, "2024-01-31T12:00"),
    "Z": (["2024-01-31T12:00:00Z"], {}, "2024-01-31T12:00"),
    "short hours": (["2024-01-31 7:05"], {}, "2024-01-31T07:05"),
    "compact dates": (["20241231"], {"date_format": "%Y%m%d"}, "2024-12-31"),
    "names of months": (["31 Dec 2024"], {"date_format": "%d %b %Y"}, "2024-12-31"),
    "another delimiter": (["7:8", "9:8"], {"delimiter": ":"}, 7),
    "no format of dates": (["20241231"], {"date_format": "%Q"}, 'date_format is "?.%Q'),
    "half a format": (["1231"], {"date_format": "%m%d"}, "date_format is .%m%d"),
    "two delimiters": (["1"], {"delimiter": "::"}, "delimiter must be one ASCII character"),
}


@pytest.mark.parametrize("name", MESSY)
def test_messy_columns(tmp_path, name):
    fields, options, expected = MESSY[name]
    delimiter = options.get("delimiter", "|")
    rows = [delimiter.join((field, label)) for field in fields for label in "ab"]
    path = table(tmp_path, rows, delimiter.join("xzy" if ":" in rows[0][:2] else "xy"))
    if isinstance(expected, str) and not expected.startswith("20"):
        with pytest.raises(InvalidInput, match=expected):
            TableStream(path, "y", **options)
        return
    stream = TableStream(path, "y", **options)
    number = read(stream)[0][0]
    if isinstance(expected, str):
        seconds = np.datetime64(expected, "s").astype(float)
        slots = list(stream.encoder.features[0].slots)
        np.testing.assert_allclose(number, encoded(np.array([seconds]), slots)[0], atol=1e-9)
    else:
        assert number[0] == expected
    again = Columns.from_json(json.loads(json.dumps(stream.encoder.to_json())))
    assert again == stream.encoder


def test_dates_that_may_begin_with_the_month(tmp_path):
    path = table(tmp_path, ["03/04/2024,a", "05/06/2024,b"], "when,y")
    assert TableStream(path, "y").notes == (
        "the dates in 'when' may begin with the day or with the month: '03/04/2024' is taken for "
        'day-first; if that is wrong, give date_format="month-first"',
    )
    assert TableStream(path, "y", date_format="month-first").notes == ()
    path = table(tmp_path, ["03/04/2024,a", "13/06/2024,b"], "when,y")
    assert TableStream(path, "y").notes == ()
    path = table(tmp_path, ["03/04/2024,1,a", "13/06/2024,2,b"], "when,x,y")
    stream = TableStream(path, "y", time="when")
    assert np.diff(next(iter(stream.batches())).times).tolist() == [71 * 86400]
    assert stream.encoder.time.kind == "day-first date"
    with pytest.raises(BadRow, match="is not a date such as 31/12/2024"):
        list(TableStream(table(tmp_path, ["31/12/2024,a"] * 99 + ["x,b"], "d,y"), "y").batches())


@pytest.mark.parametrize(
    ("encoding", "given"),
    [
        ("utf-8", None),
        ("utf-8-sig", None),
        ("utf-16", None),
        ("utf-16-le", "utf-16-le"),
        ("latin-1", "latin-1"),
        ("cp1250", "CP1250"),
        ("shift-jis", "shift-jis"),
    ],
)
@pytest.mark.parametrize("lines", ["csv", "jsonl"])
def test_encodings(tmp_path, encoding, given, lines):
    word = "\u6771\u4eac" if encoding == "shift-jis" else "D\xfcse"
    rows = [(k, word if k % 3 else "b") for k in range(700)]
    if lines == "csv":
        text = "\n".join([f"n;{word}", *(f"{n};{w}" for n, w in rows), ""])
    else:
        text = "".join(json.dumps({"n": n, word: w}, ensure_ascii=False) + "\n" for n, w in rows)
    path = tmp_path / "t"
    path.write_bytes(text.encode(encoding))
    stream = TableStream(path, word, encoding=given)
    numbers, targets = read(stream)
    assert numbers[:, 0].tolist() == [n for n, _ in rows]
    assert targets.tolist() == [w for _, w in rows]
    assert stream.approximate_rows == pytest.approx(700, rel=0.05)
    piped = TableStream(
        io.BytesIO(text.encode(encoding)), word, encoding=given, task="classification"
    )
    assert read(piped)[1].tolist() == targets.tolist()


def test_text_that_was_decoded_has_no_encoding():
    stream = TableStream(io.StringIO("n,y\n1,\xe9\n"), "y", encoding="latin-1")
    assert read(stream)[1].tolist() == ["\xe9"]


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("nonsense", "encoding is 'nonsense', which is none that Python knows; give one such as"),
        ("hex", "which is none that Python knows"),
        ("cp1250", r"t.csv is not of the encoding cp1250 \(.*byte 0x81"),
        (None, "byte 0x81 is not UTF-8; save .* encoding='cp1252' is that of Western Europe"),
    ],
)
def test_encodings_that_cannot_be(tmp_path, encoding, message):
    path = tmp_path / "t.csv"
    path.write_bytes(b"n,y\n1,a\x81\n")
    with pytest.raises(InvalidInput, match=message):
        read(TableStream(path, "y", encoding=encoding))
