"""Records of CSV: where they end, and their fields as columns of text."""

from __future__ import annotations

import re
from functools import lru_cache

import pyarrow as pa
import pyarrow.csv

from kalstream.errors import InvalidInput
from kalstream.streams._rows import Problem, no_duplicates

SMALL = 1 << 12  # bytes below which starting pyarrow costs more time than it saves
_DELIMITER_HINT = re.compile(rb"sep=([,;\t|])\r?\n")
_DELIMITERS = (",", ";", "\t", "|")


class Csv:
    """The dialect of one CSV file, and its header.

    The delimiter is the one of comma, semicolon, tab and | that occurs most often in the first
    line, unless it is given; of a .tsv file it is the tab. A line such as "sep=;", as Excel writes
    it, may come first. A field may be quoted with ", and a quote inside is doubled. As in pyarrow,
    a quote opens a quoted field only at its start; elsewhere it is text. A line ends with LF, CR LF
    or CR. The first line holds the names of the columns. The text is UTF-8, with or without a byte
    order mark; `_text` decompresses it and decodes others. `features.values` lists the texts that
    are missing values. `table` sets the tab for .tsv.
    """

    as_written = True

    def __init__(self, file: str, delimiter: str | None, start: bytes) -> None:
        hint = _DELIMITER_HINT.match(start)
        self.header = hint.group() if hint else b""
        if hint and delimiter is None:
            delimiter = hint[1].decode()
        start = start[len(self.header) :]
        line = start.lstrip().partition(b"\n")[0].decode(errors="replace")
        self.delimiter = delimiter or max(_DELIMITERS, key=line.count)
        self._records, self._record, self._field = _grammar(self.delimiter)
        self.names: list[str] = []
        for record in self._record.finditer(start[: self.end(start)]):
            self.header += record.group()
            if record.group().strip():
                self._read_header(file, record.group())
                break

    def _read_header(self, file: str, record: bytes) -> None:
        try:
            record.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{file}, line 1: {_not_utf8(record, error)}") from None
        self.names = no_duplicates(file, [name.strip() for name in self._fields(record)])

    def end(self, data: bytes) -> int:
        """How many bytes of ``data`` are whole records."""
        if b'"' not in data and (end := data.rfind(b"\n") + 1):
            return end
        match = self._records.match(data)
        return match.end() if match else 0

    def lines(self, data: bytes) -> list[int]:
        """The line in ``data``, counted from 0, where each record begins."""
        starts, line = [], 0
        for record in self._record.finditer(data):
            if record.group().strip(b"\r\n"):
                starts.append(line)
            line += breaks(record.group())
        return starts

    def parse(self, data: bytes, wanted: list[str]) -> tuple[pa.RecordBatch, list[Problem]]:
        """The wanted columns of whole records, as text, null where empty."""
        if len(data) > SMALL and _is_utf8(data):
            try:
                return self._parse_good(data, wanted), []
            except pa.ArrowInvalid:
                pass
        return self._parse_any(data, wanted)

    def _parse_good(self, data: bytes, wanted: list[str]) -> pa.RecordBatch:
        options = pa.csv.ConvertOptions(
            check_utf8=False,  # done for the whole block
            column_types={name: pa.string() for name in wanted},
            include_columns=wanted,
            null_values=[""],
            strings_can_be_null=True,
        )
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            pa.csv.ReadOptions(
                use_threads=False, block_size=len(data) or 1, column_names=self.names
            ),
            pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=b'"' in data),
            options,
        )
        return pa.RecordBatch.from_arrays([c.combine_chunks() for c in table.columns], wanted)

    def _parse_any(self, data: bytes, wanted: list[str]) -> tuple[pa.RecordBatch, list[Problem]]:
        """The same, one record at a time: slower, but finds the bad records."""
        rows: list[list[str]] = []
        problems: list[Problem] = []
        records = (match.group() for match in self._record.finditer(data))
        for number, record in enumerate(r for r in records if r.strip(b"\r\n")):
            fields = self._fields(record)
            if len(fields) != len(self.names):
                why = f"has {len(fields)} fields where the header has {len(self.names)}"
                problems.append(Problem(number, why))
                continue
            try:
                record.decode()
                rows.append(fields)
            except UnicodeDecodeError as error:
                problems.append(Problem(number, _not_utf8(record, error)))
        at = [self.names.index(name) for name in wanted]
        columns = [pa.array([row[k] or None for row in rows], pa.string()) for k in at]
        return pa.RecordBatch.from_arrays(columns, wanted), problems

    def _fields(self, record: bytes) -> list[str]:
        fields = []
        for match in self._field.finditer(record.rstrip(b"\r\n")):
            quoted, rest, plain, delimiter = match.groups()
            text = plain if quoted is None else quoted.replace(b'""', b'"') + rest
            fields.append(text.decode(errors="replace"))
            if not delimiter:
                break
        return fields


@lru_cache
def _grammar(delimiter: str) -> tuple[re.Pattern[bytes], re.Pattern[bytes], re.Pattern[bytes]]:
    """Patterns of all records, of one record, and of a field with its delimiter.

    All quantifiers are possessive, so that matching takes one pass without backtracking.
    """
    if len(delimiter) != 1 or not delimiter.isascii():
        raise InvalidInput(f"delimiter must be one ASCII character, got {delimiter!r}")
    d = re.escape(delimiter.encode())
    inside, tail = rb'[^"]*+(?:""[^"]*+)*+', rb"[^" + d + rb"\r\n]*+"
    quoted = rb'"' + inside + rb'"' + tail
    field = rb"(?:" + quoted + rb'|(?!")' + tail + rb")"
    fields = field + rb"(?:" + d + field + rb")*+"
    record = fields + rb"(?:\n|\r\n|\r)"
    # The \n after a \r at the end of the data may be in the next piece.
    records = rb"(?:" + fields + rb"(?:\n|\r\n|\r(?=[^\n])))*+"
    parts = rb'(?:"(' + inside + rb')"(' + tail + rb")|(" + tail + rb"))(" + d + rb"|\Z)"
    return re.compile(records), re.compile(record), re.compile(parts)


def breaks(data: bytes) -> int:
    r"""How many lines end in data, by \n, \r\n or \r."""
    lines = data.count(b"\n")
    return lines + data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else lines


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _not_utf8(record: bytes, error: UnicodeDecodeError) -> str:
    return (
        f"byte 0x{record[error.start]:02x} is not UTF-8; save the file as UTF-8, or name its "
        "encoding: encoding='cp1252' is that of Western Europe on Windows"
    )
