"""Files as people have them: what their columns are taken for, or the words of the error."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import json
import lzma
import re
import uuid
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from kalstream.errors import KalstreamError
from kalstream.runs.options import as_typed
from kalstream.streams.table import TableStream

N = 80
HOURS = [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=9 * k) for k in range(N)]
X = [(k * 37 % 101 - 50) / 8 for k in range(N)]
Y = ["yes" if k % 3 else "no" for k in range(N)]
PLAIN = {"x": X, "y": Y}


def text(
    columns: dict[str, list[Any]], delimiter: str = ",", end: str = "\n", quote: str = ""
) -> str:
    lines = [delimiter.join(columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(delimiter.join(f"{quote}{value}{quote}" for value in row))
    return end.join(lines) + end


def xs(write: Any, delimiter: str = ",", quote: str = "") -> str:
    """A file whose numbers are written in another way."""
    return text({"x": [write(x) for x in X], "y": Y}, delimiter, quote=quote)


def days(written: str) -> str:
    return text({"d": [f"{each:{written}}" for each in HOURS], "y": Y})


def two_formats(other: str) -> str:
    return text({"d": [f"{d:{'%Y-%m-%d' if d.hour % 2 else other}}" for d in HOURS], "y": Y})


def times() -> bytes:
    file = io.BytesIO()
    pa.parquet.write_table(pa.table({"d": [each.time() for each in HOURS], "y": Y}), file)
    return file.getvalue()


def lines(**columns: list[Any]) -> str:
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


def comma(x: float) -> str:
    return str(x).replace(".", ",")


def accounts(x: float) -> str:
    return f"({-x})" if x < 0 else str(x)


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.csv", xs(str))
    return file.getvalue()


def parquet() -> bytes:
    frame = pd.DataFrame({"y": Y, "x": pd.array([None, *range(1, N)], dtype="Int64")})
    frame["c"] = pd.Categorical([None if k % 9 == 0 else "abc"[k % 3] for k in range(N)])
    frame["t"] = pd.to_datetime(HOURS).tz_localize("Europe/Berlin")
    return frame.set_index("t").to_parquet()


def feather() -> bytes:
    file = io.BytesIO()
    pa.feather.write_feather(pa.table(PLAIN), file, compression="uncompressed")
    return file.getvalue()


NUMBER, DATE = {"x": "number"}, {"d": "date"}
COMMA, AMOUNT = {"x": "decimal comma"}, {"x": "amount"}
# Content, and the kinds of its columns. All of them have the values of X, if they have such.
READ: dict[str, tuple[str | bytes, dict[str, str]]] = {
    "byte order mark": (("\ufeff" + xs(str)).encode(), NUMBER),
    "windows": (text(PLAIN, end="\r\n"), NUMBER),
    "old mac": (text(PLAIN, end="\r"), NUMBER),
    "semicolons": (text(PLAIN, ";"), NUMBER),
    "tabs": (text(PLAIN, "\t"), NUMBER),
    "bars": (text(PLAIN, "|"), NUMBER),
    "spaces after commas": (text(PLAIN, ", "), NUMBER),
    "delimiter of a sheet": ("sep=;\r\n" + text(PLAIN, ";", "\r\n"), NUMBER),
    "spaces in the header": (text({" x ": X, " y ": Y}), NUMBER),
    "quotes": (xs(str, quote='"'), NUMBER),
    "gzip": (gzip.compress(xs(str).encode()), NUMBER),
    "UTF-16": (xs(str).encode("utf-16"), NUMBER),
    "decimal commas": (xs(comma, ";"), COMMA),
    "quoted commas": (xs(comma, quote='"'), COMMA),
    "per cent": (xs(lambda x: f"{x} %"), AMOUNT),
    "euros": (xs(lambda x: f"€ {x}"), AMOUNT),
    "accounts": (xs(accounts), AMOUNT),
    "minus at the end": (xs(lambda x: f"{-x}-" if x < 0 else x), AMOUNT),
    "minus sign": (xs(lambda x: str(x).replace("-", "\u2212")), AMOUNT),
    "commas and brackets": (xs(lambda x: comma(x) if x >= 0 else f"({comma(-x)})", ";"), COMMA),
    "JSON": (lines(x=X, y=Y), NUMBER),
    "booleans of JSON": (lines(b=[x > 0 for x in X], y=Y), {"b": "boolean"}),
    "not a number of JSON": (lines(x=[*X[:-1], float("nan")], y=Y), NUMBER),
    "TRUE and FALSE": (text({"b": ["TRUE", "FALSE"] * (N // 2), "y": Y}), {"b": "boolean"}),
    "yes and no": (text({"b": ["Y", "N"] * (N // 2), "y": Y}), {"b": "category"}),
    "empty column": (text({**PLAIN, "e": [""] * N}), {**NUMBER, "e": "number"}),
    "constant column": (text({**PLAIN, "c": ["a"] * N}), {**NUMBER, "c": "category"}),
    "delimiter at the end": (text({**PLAIN, "": [""] * N}), {**NUMBER, "": "number"}),
    "one row": ("x,y\n-6.25,yes\n", NUMBER),
    "lines in quotes": (text({**PLAIN, "t": ['"a ""b""\nc"'] * N}), {**NUMBER, "t": "category"}),
    "dates": (days("%Y-%m-%d %H:%M:%S"), DATE),
    "dates with slashes": (days("%Y/%m/%d"), DATE),
    "days first": (days("%d.%m.%Y %H:%M"), {"d": "day-first date"}),
    "months first": (days("%m/%d/%Y"), {"d": "month-first date"}),
    "zones": (days("%Y-%m-%dT%H:%M:%S+02:00"), DATE),
    "names of zones": (days("%Y-%m-%dT%H:%M:%S+01:00[Europe/Berlin]"), DATE),
    "dates of two formats": (two_formats("%d/%m/%Y"), {"d": "day-first date"}),
    "times of day": (days("%H:%M"), {"d": "time of day"}),
    "times of day, halves": (days("%I:%M:%S %p"), {"d": "time of day"}),
    "times of Arrow": (times(), {"d": "time of day"}),
    "Parquet": (parquet(), {"x": "number", "c": "category", "t": "date"}),
}


@pytest.mark.parametrize("name", READ)
def test_the_file_is_read(name: str, tmp_path: Path) -> None:
    content, kinds = READ[name]
    path = tmp_path / "t"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    stream = TableStream(path, "y")
    assert {column.name: column.kind for column in stream.encoder.features} == kinds
    numbers = np.concatenate([batch.rows for batch in stream.batches()])
    assert len(numbers) == (1 if name == "one row" else N)
    if "x" in kinds and name != "Parquet":
        known = np.isfinite(numbers[:, 0])
        assert known.sum() >= len(numbers) - 1
        np.testing.assert_array_equal(numbers[known, 0], np.array(X)[: len(numbers)][known])


UNITS = "values such as '-6.25 kg' are numbers with a text after them; write the numbers alone"
# Content, and what the notes say of it.
SAID: dict[str, tuple[str, str]] = {
    "units": (xs(lambda x: f"{x} kg"), UNITS),
    "dates of months": (days("%d-%b-%Y"), "such as '01-Jan-2024'; if so, give date_format='%d-%b-"),
    "short years": (days("%d/%m/%y"), "if so, give date_format='%d/%m/%y'"),
    "halves of days": (days("%m/%d/%Y %I:%M %p"), "give date_format='%m/%d/%Y %I:%M %p'"),
    "logs": (days("%d/%b/%Y:%H:%M:%S +0000"), "give date_format='%d/%b/%Y:%H:%M:%S %z'"),
    "two formats": (
        two_formats("%d/%m/%Y"),
        "'2024-01-01' is year-first and '01/01/2024' is taken",
    ),
    "two named formats": (
        two_formats("%d-%b-%Y"),
        "two formats: %d-%b-%Y as '01-Jan-2024', and %Y-%m-%d as '2024-01-01'; write all of them",
    ),
    "postal codes": (
        text({"zip": [f"{k * 977 % 90000:05}" for k in range(N)], "y": Y}),
        "such as '00000', may be codes, since they have leading zeros; if so, give categorical=",
    ),
    "dots": (
        text({"p": [f"{k * 7 % 900 + 1}.{k * 97 % 1000:03}" for k in range(N)], "y": Y}, ";"),
        """'1.000' is taken for 1; if they are between thousands, give decimal=",\"""",
    ),
    "dots and clear ones": (
        text({"p": [f"{k + 1}.{k * 97 % 1000:03}" for k in range(N)], **PLAIN}, ";"),
        "if they are between thousands, write them without dots",
    ),
    "compact dates": (days("%Y%m%d"), "taken for numbers, but may hold dates such as '20240101'"),
    "index": (text({"": list(range(N)), **PLAIN}), "leave it out with ignore=['']"),
    "falling counter": (text({"n": list(range(N, 0, -1)), **PLAIN}), "leave it out with ignore="),
    "uuid": (text({"u": [uuid.UUID(int=k) for k in range(N)], "y": Y}), "'u' looks like ids"),
    "epochs": (text({"t": [1700000000 + 7 * k for k in range(N)], **PLAIN}), "give time='t'; else"),
    "few texts": (xs(lambda x: x if abs(x) < 5 else "n/v"), "if such texts stand for missing"),
    "thousands": (
        xs(lambda x: f"{round(abs(x)) + 1},250", quote='"'),
        'is wrong, give decimal=","',
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_the_notes_name_the_remedy(name: str, tmp_path: Path) -> None:
    content, words = SAID[name]
    path = tmp_path / "t.csv"
    path.write_text(content)
    notes = TableStream(path, "y").notes
    assert words in " ".join(notes)
    if given := re.search(r"give date_format='(.*?)'", " ".join(notes)):
        stream = TableStream(path, "y", date_format=given[1])
        assert stream.encoder.features[0].kind == f"{given[1]} date"
        assert stream.notes == ()


def test_dates_that_show_late_which_of_day_and_month_comes_first(tmp_path: Path) -> None:
    days = [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=k) for k in range(330)]
    rows = [f"{day:%m/%d/%Y %I:%M %p},{k % 2}" for k, day in enumerate(days)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["d,y", *rows]))
    (note,) = TableStream(path, "y").notes
    assert note.endswith("if so, give date_format='%m/%d/%Y %I:%M %p'")
    assert sum(map(len, TableStream(path, "y", date_format="%m/%d/%Y %I:%M %p").batches())) == 330
    path.write_text("\n".join(["d,y", *rows[:280]]))
    (note,) = TableStream(path, "y").notes
    assert (
        "give date_format='%d/%m/%Y %I:%M %p' if the day comes first, or date_format='%m/" in note
    )
    # Both are understood as options of the command.
    assert "--date-format '%m/%d/%Y %I:%M %p' if the month does" in as_typed(note)


def test_dates_of_two_formats_and_times_of_day_become_the_right_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("t,d,y\n1:05,2024-02-01,1\n13:05:30,01/02/2024,0\n-,13/02/2024,1\n")
    stream = TableStream(path, "y", date_format="day-first")
    rows = next(stream.batches()).rows
    assert list(stream.columns[:2]) == ["t[time of day sin]", "t[time of day cos]"]
    turns = 2 * np.pi * np.array([3900, 47130]) / 86400
    np.testing.assert_allclose(rows[:2, :2], np.transpose([np.sin(turns), np.cos(turns)]))
    assert np.isnan(rows[2, :2]).all()
    np.testing.assert_array_equal(rows[0, 2:], rows[1, 2:])
    with pytest.raises(KalstreamError, match=r"'t' given as time holds times of day; name a"):
        TableStream(path, "y", time="t")
    # ISO dates stay what they are if the order of others is given.
    path.write_text("d,y\n2024-02-01,1\n2024-02-02,0\n")
    stream = TableStream(path, "y", date_format="day-first")
    assert stream.encoder.features[0].kind == "date"


def test_what_is_no_code(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{k % 12 + 1:02},{k % 7:03},{k * 37 % 80 * 0.001:.3f},{k % 2}" for k in range(N)]
    path.write_text("\n".join(["month,code,x,y", *rows]))
    (note,) = TableStream(path, "y", ignore=["x"]).notes
    assert note.startswith("the numbers in 'code', such as '000', may be codes")
    assert TableStream(path, "y", ignore=["x"], categorical=["code"]).notes == ()
    path.write_text("\n".join(["month;code;x;y", *(row.replace(",", ";") for row in rows)]))
    assert TableStream(path, "y", ignore=["code"]).notes == ()


NO_NAME = "The first line is taken for one name: remove the lines above the names of the columns"
# Content, and the words of the error.
REFUSED: dict[str, tuple[str | bytes, str]] = {
    "empty": (b"", "is empty; give a header and rows"),
    "blank lines": ("\n\n\n", "is empty; give a header and rows"),
    "header only": ("x,y\n", "has a header but no rows; add rows"),
    "title": ("Report of 2024\n\n" + xs(str), NO_NAME),
    "comment": ("# of a tool\n" + xs(str), NO_NAME),
    "spaces": (text(PLAIN, " "), r"or give delimiter=' '"),
    "page": ("<html>404</html>\n", NO_NAME),
    "no header": ("1,2\n3,4\n", "The first line holds numbers: write the names of the columns"),
    "other target": ("x,z\n1,2\n", "target='y': there is no such column.*The columns are: x, z"),
    "same names": ("x,x,y\n1,2,3\n", "two columns are called 'x'; rename one of them"),
    "too few fields": (xs(str) + "1\n", "line 82: has 1 fields where the header has 2; correct"),
    "too many fields": (xs(str) + "1,2,3\n", "line 82: has 3 fields where the header has 2"),
    "total": (xs(str) + "Total,3\n", r"holds 'Total', which .*give missing=\['Total'\]"),
    "too large": (xs(str) + "1e400,3\n", "the largest number that can be learned"),
    "one text of JSON": (lines(x=[*X[:-1], "bad"], y=Y), "line 80: column 'x' holds 'bad'"),
    "array of JSON": (json.dumps([{"x": 1, "y": 2}]), "is a JSON array; write JSON lines"),
    "nested JSON": (lines(a=[{"b": 1}] * N, y=Y), r"has the type struct.*ignore=\['a'\]"),
    "lists of JSON": (lines(a=[[1, 2]] * N, y=Y), r"has the type list.*ignore=\['a'\]"),
    "commas of JSON": ('{"x":1,"y":2},\n{"x":1,"y":2}\n', "line 1: is not a JSON object"),
    "Western Europe": ("x,y\n1,n\xf6\n".encode("cp1252"), "encoding='cp1252' is that of Western"),
    "UTF-16 without a mark": (xs(str).encode("utf-16-le"), "unless encoding= says otherwise"),
    "ZIP": (zipped(), "is a ZIP archive or an Excel workbook; unpack it"),
    "bzip2": (bz2.compress(xs(str).encode()), "is compressed by bzip2; unpack it with bunzip2"),
    "xz": (lzma.compress(xs(str).encode()), "is compressed by xz; unpack it with unxz"),
    "Feather": (feather(), "is a file of Feather or Arrow; write it as Parquet"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_error_names_the_remedy(name: str, tmp_path: Path) -> None:
    content, words = REFUSED[name]
    path = tmp_path / "t"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(KalstreamError, match=words):
        list(TableStream(path, "y").batches())


def test_times_of_another_format_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text({"d": [f"{each:%d-%b-%Y %H:%M}" for each in HOURS], **PLAIN}))
    with pytest.raises(KalstreamError, match="give date_format='%d-%b-%Y %H:%M'"):
        TableStream(path, "y", time="d")
    stream = TableStream(path, "y", time="d", date_format="%d-%b-%Y %H:%M")
    (batch,) = stream.batches()
    np.testing.assert_array_equal(np.diff(batch.times), 9 * 3600)
