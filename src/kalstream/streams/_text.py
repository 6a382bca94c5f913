"""Text files and standard input: pieces of bytes, cut into whole records."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from kalstream._printable import quoted
from kalstream.errors import InvalidInput
from kalstream.streams._csv import Csv, breaks
from kalstream.streams._json import JsonLines
from kalstream.streams._rows import Block, Problem, damaged

_PIECE = 1 << 20
_SMALL_PIECE = 1 << 10
_LONGEST = 1 << 24
_BOM = b"\xef\xbb\xbf"
_BOMS_OF_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
# First bytes of files that hold tables in another way -> what they are, and what to do.
_BINARY = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook; unpack it, or save the sheet as CSV",
    b"BZh": "compressed by bzip2; unpack it with bunzip2",
    b"\xfd7zXZ": "compressed by xz; unpack it with unxz",
    b"ARROW1": "a file of Feather or Arrow; write it as Parquet",
    b"SQLite format 3": "a database of SQLite; export the table as CSV",
}


def compression_of(start: bytes) -> str | None:
    """Compression of a file, by its first bytes."""
    return next((name for magic, name in _COMPRESSIONS.items() if start.startswith(magic)), None)


def pieces_of_file(path: Path) -> Iterator[bytes]:
    """The text of a file, decompressed if it is gzip or zstd."""
    with path.open("rb") as file:
        if (compression := compression_of(file.peek(4))) is not None:
            yield from _decompressed(file, compression)
            return
        while piece := file.read(_PIECE):
            yield piece


def _decompressed(file: IO[bytes], compression: str) -> Iterator[bytes]:
    # A read that fails loses its data: with small reads little is lost.
    stream = pa.CompressedInputStream(pa.PythonFile(file), compression)
    pieces: list[bytes] = []
    try:
        while piece := stream.read(_SMALL_PIECE):
            pieces.append(piece)
            if len(pieces) * _SMALL_PIECE >= _PIECE:
                yield b"".join(pieces)
                pieces = []
    except OSError:
        yield b"".join(pieces)
        raise
    yield b"".join(pieces)


class Arriving:
    """Pieces as they arrive. They can be read again from the start until `forget` is called."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._live = pieces
        self._kept: list[bytes] = []
        self._keep = True

    def __call__(self) -> Iterator[bytes]:
        """All pieces, beginning with the first that is kept."""
        yield from self._kept
        if not self._keep:
            self._kept = []
        for piece in self._live:
            if self._keep:
                self._kept.append(piece)
            yield piece

    def forget(self) -> None:
        """From now on, do not store arriving pieces."""
        self._keep = False


def pieces_of_pipe(path: Path) -> Iterator[bytes]:
    """The content of a named pipe, as it arrives."""
    with path.open("rb") as file:
        yield from pieces_as_they_come(file)


def pieces_as_they_come(file: Any) -> Iterator[bytes]:
    """The content of an open file of bytes or text, as it arrives."""
    file = getattr(file, "buffer", file)
    # read1 returns what has arrived, without waiting for more
    read = partial(file.read1, _PIECE) if hasattr(file, "read1") else file.readline
    while piece := read():
        yield piece.encode() if isinstance(piece, str) else piece


def check_encoding(encoding: str | None) -> str | None:
    """An encoding of text; None for UTF-8, which is read without decoding."""
    if encoding is None:
        return None
    try:
        codecs.getincrementaldecoder(encoding)
        " ".encode(encoding)  # some codecs are not of text
    except (LookupError, ValueError):
        raise InvalidInput(
            f"encoding is {quoted(encoding)}, which is none that Python knows; give one such as "
            "cp1252, latin-1, utf-16 or shift-jis"
        ) from None
    return None if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig") else encoding


def _as_utf8(pieces: Iterator[bytes], encoding: str, file: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for piece in pieces:
            yield decoder.decode(piece).encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        raise InvalidInput(
            f"{file} is not of the encoding {encoding} ({error}); give another encoding"
        ) from None


class TextPart:
    """A table of text; its first character decides whether CSV or JSON lines. See `Part`."""

    n_rows: int | None = None

    def __init__(
        self,
        file: str,
        pieces: Callable[[], Iterator[bytes]],
        delimiter: str | None = None,
        size: int | None = None,
        encoding: str | None = None,
    ) -> None:
        self.file, self.size = file, size
        self._pieces, self._live = pieces, isinstance(pieces, Arriving)
        self._encoding = encoding
        self._format = self._detected(delimiter)
        self.names, self.as_written = self._format.names, self._format.as_written
        self.delimiter = self._format.delimiter if isinstance(self._format, Csv) else None
        self.row_bytes = 0.0  # mean length of a row, once a block has been read

    @property
    def new_names(self) -> list[str]:
        """Keys of later JSON lines that are no columns."""
        return [] if isinstance(self._format, Csv) else list(self._format.new_names)

    def _detected(self, delimiter: str | None) -> Csv | JsonLines:
        """The format, from as many bytes as its columns need."""
        start = b""
        try:
            with closing(self._text()) as pieces:
                for piece in chain(pieces, (b"\n",)):
                    start += piece
                    # A header ends with a line: a long one is not parsed again before.
                    ends = len(start) <= _PIECE or breaks(piece) > 0
                    if ends and (table := self._format_of(start, delimiter)) is not None:
                        return table
                    if len(start) > _LONGEST:
                        raise InvalidInput(
                            f"{self.file}: its first {_LONGEST >> 20} MB hold no complete header; "
                            "give a table with a line of column names and a line for each row"
                        )
        except OSError as error:
            raise damaged(self.file, "at its start", error) from None
        if start.strip():
            raise InvalidInput(
                f"{self.file}, line 1: a quote is opened and never closed; close the quote"
            )
        raise InvalidInput(f"{self.file} is empty; give a header and rows")

    def _format_of(self, start: bytes, delimiter: str | None) -> Csv | JsonLines | None:
        for magic, what in _BINARY.items():
            if start.startswith(magic):
                raise InvalidInput(f"{self.file} is {what}")
        if b"\0" in start:
            raise InvalidInput(
                f"{self.file} is a binary file, not CSV, JSON lines or Parquet; "
                "text may be compressed by gzip or zstd, and is UTF-8 unless encoding= says "
                "otherwise"
            )
        first = start.lstrip()
        if not first:
            return None
        if not first.startswith(b"{"):
            if first.startswith(b"[") and first[1:].lstrip()[:1] in (b"{", b""):
                raise InvalidInput(
                    f"{self.file} is a JSON array; write JSON lines, one object per line, "
                    "as jq -c '.[]' does"
                )
            table = Csv(self.file, delimiter, start)
            return table if table.names else None
        if b"\n" not in first:
            return None
        # Standard input arrives in pieces of any size: only its first line is always the same.
        lines = JsonLines(first[: first.find(b"\n")] if self._live else start[: start.rfind(b"\n")])
        if not lines.names:
            raise InvalidInput(
                f"{self.file}: line 1 is not a JSON object; write one object per line"
            )
        return lines

    def expect_row(self, others: Container[str | None]) -> None:
        """Know the columns of the first JSON line that has more than some; waits until it comes."""
        if self.as_written or any(name not in others for name in self.names):
            return
        rest = b""
        with closing(self._text()) as pieces:
            for piece in chain(pieces, (b"\n",)):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    names = JsonLines(line).names
                    if any(name not in others for name in names):
                        self.names.extend(name for name in names if name not in self.names)
                        return

    def _text(self) -> Generator[bytes]:
        """The text in UTF-8: UTF-16 is recognised, other encodings are given."""
        pieces = self._pieces()
        first = next(pieces, b"")
        if self._encoding is None and first.startswith(_BOMS_OF_UTF16):
            self._encoding = "utf-16"
        pieces = chain((first,), pieces)
        if self._encoding is not None:
            pieces = _as_utf8(pieces, self._encoding, self.file)
        yield next(pieces, b"").removeprefix(_BOM)
        yield from pieces

    def blocks(self, wanted: list[str], skip: int = 0) -> Iterator[Block]:
        """All blocks, whatever ``skip`` is: the position of a row of text is not known."""
        record = 0
        for data, line, whole in self._cuts():
            batch, problems = self._format.parse(data if whole else b"", wanted)
            if not whole:
                problems = [Problem(0, "opens a quote that is never closed, or is too long")]
            count = batch.num_rows + len(problems)
            if count:
                self.row_bytes = self.row_bytes or self._size_in_file(data) / count
                line_of = partial(self._line, data if whole else b"", line)
                yield Block(batch, record, problems, line_of)
            record += count

    def _size_in_file(self, data: bytes) -> int:
        return len(data.decode().encode(self._encoding)) if self._encoding else len(data)

    def _line(self, data: bytes, line: int, record: int) -> int:
        return line + (self._format.lines(data)[record] if data else 0)

    def _cuts(self) -> Iterator[tuple[bytes, int, bool]]:
        """Pieces of whole records, the line where each begins, and whether it could be cut."""
        rest, line = b"", 1 + breaks(self._format.header)
        header = len(self._format.header)
        pieces = self._text()
        while True:
            try:
                piece = next(pieces, None)
            except OSError as error:
                raise damaged(self.file, f"after line {line - 1}", error) from None
            rest += (piece or b"")[header:]
            header = max(0, header - len(piece or b""))
            if piece is None and rest and not rest.endswith(b"\n"):
                rest += b"\n"
            while rest:
                end = self._format.end(rest)
                whole = end > 0
                if not whole:
                    if piece is not None and len(rest) < _LONGEST:
                        break
                    end = rest.find(b"\n") + 1 or len(rest)
                data, rest = rest[:end], rest[end:]
                yield data, line, whole
                line += breaks(data)
            if piece is None:
                return
