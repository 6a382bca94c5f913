"""Tables in files, folders and pipes as streams."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from kalstream._printable import quoted
from kalstream.errors import InvalidInput, MissingFile
from kalstream.features.encoding import check_date_format, is_of_dates
from kalstream.features.frames import as_table, marked, mixed_columns
from kalstream.features.values import Bad, as_text, fails, is_string
from kalstream.streams._columns import (
    Columns,
    Role,
    check_known,
    listed,
)
from kalstream.streams._memory import in_memory
from kalstream.streams._notes import notes_on
from kalstream.streams._parquet import MAGIC, ParquetPart
from kalstream.streams._rows import EARLIER, BadRow, Block, Part, damaged
from kalstream.streams._text import (
    Arriving,
    TextPart,
    check_encoding,
    compression_of,
    pieces_as_they_come,
    pieces_of_file,
    pieces_of_pipe,
)
from kalstream.streams.base import Array, Batch, Stream
from kalstream.streams.files import forbidden
from kalstream.streams.fingerprint import of_files

__all__ = ["BadRow", "Columns", "TableStream", "as_table"]

STOP, SKIP = "stop", "skip"
_STANDARD_INPUT = "-"
_FIRST_ROWS = 10_000  # from which the kinds of columns are decided, if they take less than
_FIRST_BYTES = 1 << 26
_LIVE_SLOTS = 16  # columns of each category of standard input
_BATCH_ROWS = 8192
_BATCH_NUMBERS = 1 << 20
_EXAMPLES = 5  # skipped rows whose reason is kept
_FIRST_TIMES = 11  # of standard input, from which the unit of time is guessed
_PARQUET = (".parquet", ".pq")
_TEXT = (".csv", ".tsv", ".jsonl", ".ndjson")  # in a folder; the content decides for one file
_TABLES = _PARQUET + tuple(text + end for text in _TEXT for end in ("", ".gz", ".zst"))


class TableStream(Stream):
    r"""A table as a stream: CSV, JSON lines, Parquet, a folder of them, or standard input.

    Text may be compressed by gzip or zstd. The table may be larger than memory. The first 10,000
    rows decide whether a column is a number, boolean, category, text or date; for standard input
    the first row decides, and all rows that come with it decide the task. Infinities are kept; see
    `Batch.without_infinities`. A row with a number beyond 1e100 is a bad row.

    Parameters
    ----------
    source : str, path, file or table
        A file; a folder, whose files are read in the order of their names, 2 before 10; or "-" or
        an open file, whose rows are passed on as they arrive; or a table in memory, such as a
        frame of pandas or polars.
    target : str, optional
        The column to predict. Needed unless ``columns`` is given.
    task : "classification" or "regression", optional
        Guessed from the target if not given; `guess` says how.
    time : str, optional
        A column of numbers or dates that never decrease, which becomes `Batch.times`.
    label_time : str, optional
        A column that says when each target came, as ``time``; empty: never. Needs ``time``.
    id : str, optional
        A column of ids, compared as text. A row without a target waits for it; a later row with
        the same id brings it, and its other columns may be empty.
    key : str, optional
        A column of keys, such as customers, for models by key; it is no feature. Keys are texts.
    aggregate_keys : names
        Columns of keys, of which each also becomes a column of numbers for `Aggregates`.
    ignore : names
        Columns to leave out.
    categorical : names
        Columns of codes that look like numbers.
    missing : texts
        Texts that count as missing in every column.
    decimal : "," or ".", optional
        The decimal separator in texts, as ``1.234,56``; guessed from the first rows if not given.
    date_format : "day-first", "month-first" or a format of ``strptime``, optional
        How dates are written that are not ISO dates, such as ``%Y%m%d``; whether the day or the
        month comes first in 03/04/2024 is guessed if not given.
    bad_rows : "stop" or "skip"
        For a row that cannot be read: raise `BadRow` after the rows before it, or leave it out and
        count it.
    delimiter : str, optional
        Delimiter of CSV; guessed from the header if not given.
    encoding : str, optional
        Encoding of text, such as "cp1252" or "latin-1". It is UTF-8 if not given, or UTF-16 with a
        byte order mark.
    name : str, optional
    columns : Columns, optional
        The encoder of a checkpoint, or a frozen one for prediction. It replaces the parameters
        from ``target`` to ``date_format``.

    Attributes
    ----------
    encoder : Columns
        Kinds of the columns and the categories seen so far.
    skipped, skipped_why : int, list of str
        Rows left out since the last call of `batches`, and what was wrong with the first of them.

    Examples
    --------
    >>> import io
    >>> file = io.StringIO("color,size,y\nred,1,yes\nblue,2.5,no\n")
    >>> stream = TableStream(file, "y")
    >>> stream.columns[-2:]
    ('color[15]', 'size')
    >>> [(batch.start, batch.targets.tolist()) for batch in stream.batches()]
    [(0, ['yes']), (1, ['no'])]
    """

    def __init__(
        self,
        source: str | Path | IO[bytes] | IO[str],
        target: str | None = None,
        *,
        task: str | None = None,
        time: str | None = None,
        label_time: str | None = None,
        id: str | None = None,
        key: str | None = None,
        aggregate_keys: Iterable[str] = (),
        ignore: Iterable[str] = (),
        categorical: Iterable[str] = (),
        missing: Iterable[str] = (),
        decimal: str | None = None,
        date_format: str | None = None,
        bad_rows: str = STOP,
        delimiter: str | None = None,
        encoding: str | None = None,
        name: str | None = None,
        columns: Columns | None = None,
    ) -> None:
        if bad_rows not in (STOP, SKIP):
            raise InvalidInput(f'bad_rows must be "{STOP}" or "{SKIP}", got {bad_rows!r}')
        self.bad_rows, self.delimiter = bad_rows, delimiter
        self.encoding = check_encoding(encoding)
        self.ignore, self.categorical = _names(ignore), _names(categorical)
        self.aggregate_keys = _names(aggregate_keys)
        if decimal not in (None, ",", "."):
            raise InvalidInput(f'decimal must be "," or ".", got {decimal!r}')
        check_date_format(date_format)
        self._missing, self._decimal, self._date_format = _names(missing), decimal, date_format
        self.source = str(source) if isinstance(source, str | Path) else _STANDARD_INPUT
        memory = in_memory(source)
        self._arriving = None if memory else _arriving(source)
        self._parts: list[Part]
        if memory is not None:
            self.source, self.files, self._parts = "memory", [], [memory]
        elif self._arriving is None:
            self.files = _files(Path(self.source))
            self._parts = [_part(path, delimiter, self.encoding) for path in self.files]
        else:
            self.repeatable = False
            given = None if isinstance(source, io.StringIO) else self.encoding
            self._parts = [TextPart("standard input", self._arriving, delimiter, encoding=given)]
        from_file = Path(self.source).name.split(".")[0]
        self.name = name or ("stdin" if self._arriving else from_file)
        self._check_names()
        first = self._parts[0]
        check_known([] if id is None else [id], first.names, option="id", file=first.file)
        if columns is None:
            if self._arriving is not None and id is not None and isinstance(first, TextPart):
                first.expect_row({target, time, label_time, id, *self.ignore})  # labels before it
            self._expect(target, label_time if id is None else id)
            columns = self._decide(target, task, time, label_time, id, key)
        else:
            self._expect_known(columns)
        _check_fit(columns, target, task, time, label_time, id, key)
        self.encoder: Columns = columns
        self.timed = self.encoder.time is not None
        self.dated = self.encoder.time is not None and is_of_dates(self.encoder.time.kind)
        self.label_timed = self.encoder.label_time is not None
        self.named = self.encoder.id is not None and not self.encoder.is_frozen
        self.keyed = self.encoder.key is not None
        for part in self._parts:
            self.encoder.wanted(part.names, part.file)
        self.task, self.columns = self.encoder.task, self.encoder.names
        self.skipped, self.skipped_why = 0, list[str]()
        self._most = max(1, min(_BATCH_ROWS, _BATCH_NUMBERS // len(self.columns)))
        sizes = [part.n_rows for part in self._parts]
        self.n_rows = None if None in sizes else sum(size or 0 for size in sizes)
        self._started = False

    def _check_names(self) -> None:
        first = self._parts[0]
        for part in self._parts[1:]:
            differ = sorted(set(first.names) ^ set(part.names))
            if differ:
                raise InvalidInput(
                    f"{part.file} and {first.file} have different columns: only one of the two has "
                    f"{listed(differ)}; give all files of a folder the same columns"
                )

    def _expect(self, *names: str | None) -> None:
        """Expect columns that the first JSON lines may lack: targets, and when they came."""
        if names[-1] is None:
            return
        for part in self._parts:
            if isinstance(part, TextPart) and not part.as_written:
                part.names.extend(n for n in names if n is not None and n not in part.names)

    def _expect_known(self, columns: Columns) -> None:
        """Expect what JSON lines may lack if rows have ids: the first ones may be labels only."""
        features, names = [column.name for column in columns.features], set(self._parts[0].names)
        self._expect(_name(columns.target), _name(columns.id))
        if columns.is_frozen or columns.id is None:
            return
        only_labels = columns.id.name in names and not names & set(features)
        if self._arriving is not None or only_labels:
            self._expect(*features, _name(columns.time), columns.id.name)

    def _decide(
        self,
        target: str | None,
        task: str | None,
        time: str | None,
        label_time: str | None,
        id: str | None,
        key: str | None,
    ) -> Columns:
        names, file = self._parts[0].names, self._parts[0].file
        if target is None:
            raise InvalidInput(f"no target was given; name one of the columns: {listed(names)}")
        header = self._about_header()
        check_known([target], names, option="target", file=file, more=header)
        check_known([] if time is None else [time], names, option="time", file=file)
        check_known(self.ignore, names, option="ignore", file=file)
        check_known([] if key is None else [key], names, option="key", file=file)
        special = {"target": target, "time": time, "label_time": label_time, "id": id, "key": key}
        check_known(
            [] if label_time is None else [label_time], names, option="label_time", file=file
        )
        used = dict[str | None, str]()
        for option, name in special.items():
            if name is not None and name in used:
                raise InvalidInput(
                    f"{file}: {quoted(name)} is both {used[name]} and {option}; name two different "
                    "columns"
                )
            used[name] = option
        check_known(self.aggregate_keys, names, option="aggregate_keys", file=file)
        for name in set(self.aggregate_keys) & {target, label_time}:
            raise InvalidInput(
                f"{file}: {quoted(name)} is {used[name]}, which is not known when a row comes, so "
                "it is no key of aggregates; name another column"
            )
        if label_time is not None and time is None:
            raise InvalidInput(
                f"label_time={quoted(label_time)} needs the times of the rows; name their column "
                "with time="
            )
        wanted = [n for n in names if n in used or n not in self.ignore]
        table, numbered = self._first(wanted, [n for n in wanted if n not in used] if id else [])
        all_text = any(part.as_written for part in self._parts)
        as_written = set(wanted) if all_text else mixed_columns(table)
        targets = None
        if self._arriving is not None and id is None:
            more = self._at_once(target)
            targets, as_written = more.column(0), as_written | mixed_columns(more)
        semicolons = any(isinstance(p, TextPart) and p.delimiter == ";" for p in self._parts)
        columns, self.guess = Columns.of_table(
            table,
            target,
            task=task,
            time=time,
            label_time=label_time,
            id=id,
            key=key,
            categorical=self.categorical,
            missing=self._missing,
            decimal=self._decimal,
            date_format=self._date_format,
            semicolons=semicolons,
            as_written=as_written,
            n_slots=_LIVE_SLOTS if self._arriving else None,
            targets=targets,
        )
        self.notes = tuple(
            notes_on(
                columns,
                table,
                as_written,
                self.categorical,
                self._decimal,
                numbered,
                self._date_format,
                semicolons,
            )
        )
        return columns.with_keys(self.aggregate_keys)

    def _about_header(self) -> str:
        """What may be wrong with a first line that lacks the target."""
        first = self._parts[0]
        names = first.names if isinstance(first, TextPart) and first.as_written else []
        if names and not any(fails(float, name) for name in names):
            return ". The first line holds numbers: write the names of the columns above it"
        if len(names) == 1:
            return (
                ". The first line is taken for one name: remove the lines above the names of the "
                "columns, or give delimiter=' ' or another one"
            )
        return ""

    def _first(self, wanted: list[str], features: list[str]) -> tuple[pa.RecordBatch, bool]:
        """The first rows, of several files if the first one has few.

        And whether they are numbered as those of one file: all its rows from the first one on.
        The first row of a pipe must have one of the features, if some are given.
        """
        pieces: list[pa.RecordBatch] = []
        rows, size, most = 0, 0, 1 if self._arriving else _FIRST_ROWS
        error: InvalidInput | None = None
        try:
            for part, _, block in self._blocks(wanted):
                if block.problems and error is None:
                    error = block.error(part.file, block.problems[0].record, block.problems[0].why)
                start = self._labels_before(block.batch, features)
                pieces.append(block.batch.slice(start, most - rows))
                rows, size = rows + pieces[-1].num_rows, size + pieces[-1].nbytes
                if rows == most or size > _FIRST_BYTES:
                    break
        except InvalidInput as damage:  # raised again after the rows before it
            error = error or damage
        if rows == 0:
            raise error or InvalidInput(f"{self.source} has a header but no rows; add rows")
        mixed = set[str]().union(*map(mixed_columns, pieces))
        arrays = []
        for name in wanted:
            arrays.append(_joined([piece.column(name) for piece in pieces]))
            types = {piece.column(name).type for piece in pieces}
            if is_string(arrays[-1].type) and not all(map(_is_text, types)):
                mixed.add(name)
        numbered = error is None and len(self._parts) == 1
        return marked(arrays, wanted, mixed), numbered

    def _at_once(self, target: str) -> pa.RecordBatch:
        """The column of the target in those rows of a pipe that have come with the first one."""
        blocks = (block.batch for _, _, block in self._blocks([target]))
        return next(batch for batch in blocks if batch.num_rows).slice(0, _FIRST_ROWS)

    @property
    def later_notes(self) -> tuple[str, ...]:
        """Sentences on what the rows since the start have shown: keys that are no columns."""
        parts = (part for part in self._parts if isinstance(part, TextPart))
        new = list(dict.fromkeys(name for part in parts for name in part.new_names))
        if not new or self.encoder.is_frozen:
            return ()
        first = "the first row" if self._arriving else "the first rows"
        return (
            f"{listed(new)}: later rows have these keys and {first} had not, so they were left "
            "out; for a column give a first row that has its key, with null if it is unknown",
        )

    def _labels_before(self, table: pa.RecordBatch, features: list[str]) -> int:
        """How many rows of a pipe come before the first that has a feature."""
        if self._arriving is None or not features:
            return 0
        valid = [table.column(name).is_valid().to_numpy(zero_copy_only=False) for name in features]
        has_some = np.logical_or.reduce(valid)
        return int(np.argmax(has_some)) if has_some.any() else len(has_some)

    @property
    def approximate_rows(self) -> int | None:
        """Size of the files divided by the mean length of the first rows."""
        if self.n_rows is not None:
            return self.n_rows
        total = 0.0
        for part in self._parts:
            if not isinstance(part, TextPart) or part.size is None:
                return None
            total += part.size
        mean = self._parts[0].row_bytes if isinstance(self._parts[0], TextPart) else 0.0
        return round(total / mean) if mean else None

    def first_times(self) -> Array | None:
        """Times of the first batch; of standard input those of the first 11 rows with a time.

        This waits until they have arrived; `batches` passes the rows on afterwards.
        """
        time = self.encoder.time
        if time is None or self.repeatable:
            return super().first_times()
        times = np.empty(0)
        for _, _, block in self._blocks([time.name]):
            values, _ = time.reading.convert(block.batch.column(0))
            times = np.concatenate((times, values[np.isfinite(values)]))
            if len(times) >= _FIRST_TIMES:
                break
        return times[:_FIRST_TIMES]

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The rows from number ``start`` on. Standard input can be read only once.

        Raises
        ------
        BadRow
            If ``bad_rows="stop"``, after the rows before the bad one.
        """
        if self._arriving is not None:
            if self._started:
                raise InvalidInput("standard input can be read only once; save it as a file")
            self._arriving.forget()
        self._started = True
        self.skipped, self.skipped_why = 0, list[str]()
        return self._batches(start)

    def _batches(self, start: int) -> Iterator[Batch]:
        # Categories get their slots in the order of rows, so rows not seen before are encoded too.
        begin = start if self.encoder.complete else min(start, self.encoder.seen)
        stopping = self.bad_rows == STOP
        place = _Position(begin if stopping else 0)
        for part, first, block in self._blocks(None, place.begin):
            if stopping:
                place.row = first
            for batch in self._rows(part, block, place):
                if batch.stop > max(start, batch.start):
                    yield batch[max(0, start - batch.start) :]

    def records(self) -> Iterator[tuple[list[dict[str, Any]], Array]]:
        """Rows as objects {column: value}, for programs that encode them, and their targets (n,).

        A row that cannot be read is an error, after the rows before it.
        """
        for part, _, block in self._blocks(None):
            end, why = block.batch.num_rows, tuple[Any, ...]()
            if block.problems:
                end, why = block.problems[0].record, (block.problems[0].why,)
            for at in range(0, end, self._most):
                table, bad = block.batch.slice(at, min(self._most, end - at)), Bad()
                rows, targets = (
                    self.encoder.values(table, bad),
                    self.encoder.encode_targets(table, bad),
                )
                good = min(bad, default=len(rows))
                yield rows[:good], targets[:good]
                if bad:
                    column, value, wrong = bad[good]
                    raise block.error(part.file, block.record(at + good), wrong, column, value)
            if why:
                raise block.error(part.file, end, *why)

    def _blocks(self, wanted: list[str] | None, skip: int = 0) -> Iterator[tuple[Part, int, Block]]:
        """The blocks from row ``skip`` or earlier on, and the number of records before each."""
        before = 0
        for part in self._parts:
            if part.n_rows is not None and before + part.n_rows <= skip:
                before += part.n_rows
                continue
            names = wanted or self.encoder.wanted(part.names, part.file)
            end = 0
            for block in part.blocks(names, max(0, skip - before)):
                yield part, before + block.first, block
                end = block.first + block.batch.num_rows + len(block.problems)
            before += end

    def _rows(self, part: Part, block: Block, place: _Position) -> Iterator[Batch]:
        """The rows of a block, cut at each record that is no row."""
        done = 0
        for k, problem in enumerate(block.problems):
            yield from self._encoded(part, block, slice(done, problem.record - k), place)
            done = problem.record - k
            if self.bad_rows == STOP:
                raise block.error(part.file, problem.record, problem.why)
            self._skip(part, block, problem.record, problem.why)
        yield from self._encoded(part, block, slice(done, block.batch.num_rows), place)

    def _encoded(self, part: Part, block: Block, rows: slice, place: _Position) -> Iterator[Batch]:
        passed = min(max(0, place.begin - place.row), rows.stop - rows.start)
        place.row += passed
        for at in range(rows.start + passed, rows.stop, self._most):
            table = block.batch.slice(at, min(self._most, rows.stop - at))
            self.encoder = self.encoder.learn(table)
            numbers, targets, times, bad = self.encoder.encode(table)
            came, ids = self.encoder.encode_more(table, times, bad)
            keys = self.encoder.keys(table, bad)
            self._check_order(table, times, bad, place)
            keep: Any = slice(None)
            if bad and self.bad_rows == STOP:
                keep = slice(min(bad))
            elif bad:
                keep = np.setdiff1d(np.arange(len(numbers)), list(bad))
                for row in sorted(bad):
                    column, value, why = bad[row]
                    self._skip(part, block, block.record(at + row), why, column, value)
            more = (None if part is None else part[keep] for part in (times, came, ids, keys))
            batch = Batch(place.row, numbers[keep], targets[keep], *more)
            place.row = batch.stop
            if batch.times is not None and len(batch):
                place.time = float(np.fmax.reduce(batch.times, initial=place.time))
            self.encoder = replace(self.encoder, seen=max(self.encoder.seen, batch.stop))
            yield batch
            if bad and self.bad_rows == STOP:
                column, value, why = bad[len(batch)]
                raise block.error(part.file, block.record(at + len(batch)), why, column, value)

    def _skip(self, part: Part, block: Block, record: int, *why: Any) -> None:
        """Count a row that is left out, and keep the reason for the first ones."""
        self.skipped += 1
        if len(self.skipped_why) < _EXAMPLES:
            self.skipped_why = [*self.skipped_why, block.error(part.file, record, *why).what]

    def _check_order(
        self, table: pa.RecordBatch, times: Array | None, bad: Bad, place: _Position
    ) -> None:
        """Add rows whose time is before that of an earlier good row to the bad rows."""
        if times is None or self.encoder.time is None:
            return
        times = times.copy()
        times[list(bad)] = np.nan
        latest = np.fmax.accumulate(np.concatenate(([place.time], times)))[:-1]  # before each row
        name = self.encoder.time.name
        for row in np.flatnonzero(times < latest).tolist():
            value = table.column(name)[row].as_py()
            before = f"{latest[row]:.15g}"
            if is_of_dates(self.encoder.time.kind):
                before = str(np.datetime64(round(latest[row]), "s"))
            bad[row] = (name, value, f"{EARLIER} ({before})")

    def describe(self) -> dict[str, Any]:
        """Parameters, columns and a digest of the files (None for standard input)."""
        columns = self.encoder
        return {
            "name": self.name,
            "source": self.source,
            "task": self.task,
            "target": columns.target and columns.target.name,
            "time": columns.time and columns.time.name,
            **{k: v.name for k, v in _more_columns(columns).items()},
            "ignore": list(self.ignore),
            "categorical": list(self.categorical),
            **({"missing": list(columns.missing)} if columns.missing else {}),
            "bad_rows": self.bad_rows,
            "delimiter": self.delimiter,
            **({"encoding": self.encoding} if self.encoding else {}),
            "columns": [{"name": column.name, "kind": column.kind} for column in columns.features],
            "n_rows": self.n_rows,
            "fingerprint": of_files(self.files) if self.files else None,
        }


@dataclass(slots=True)
class _Position:
    """How far one pass over a table has come."""

    begin: int  # the first row that is encoded
    row: int = 0
    time: float = -math.inf  # of the last good row


def _arriving(source: str | Path | IO[bytes] | IO[str]) -> Arriving | None:
    """A source that is read as it arrives: standard input, an open file or a named pipe."""
    if not isinstance(source, str | Path):
        return Arriving(pieces_as_they_come(source))
    if str(source) == _STANDARD_INPUT:
        return Arriving(pieces_as_they_come(sys.stdin))
    try:
        if Path(source).is_fifo():
            return Arriving(pieces_of_pipe(Path(source)))
    except OSError:
        pass  # the reader of files raises the error
    return None


def _files(path: Path) -> list[Path]:
    """The file, or those files of a folder whose suffix is that of a table."""
    try:
        if path.is_file():
            return [path]
        if path.is_dir():
            tables = [p for p in path.iterdir() if p.name.lower().endswith(_TABLES)]
            tables = [p for p in tables if p.name[0] not in "._" and p.is_file()]
            if not tables:
                raise InvalidInput(
                    f"{path}: the folder holds no table; names must end in {', '.join(_PARQUET)}, "
                    f"or in {', '.join(_TEXT)}, perhaps with .gz or .zst"
                )
            return sorted(tables, key=_natural)
        if path.exists():
            raise InvalidInput(
                f"{path} is a device or a socket, not a file, a folder or a pipe; save its rows to "
                'a file, or pipe them in and pass "-"'
            )
        # A broken link is in the folder as well.
        others = [p.name for p in path.parent.glob("*") if p.name != path.name]
        near = get_close_matches(path.name, others, 1)
    except PermissionError:
        raise forbidden(path) from None
    hint = (
        f"did you mean {path.with_name(near[0])}?"
        if near
        else f"relative paths start from {Path.cwd()}"
    )
    raise MissingFile(f"{path}: no such file or folder; {hint}")


def _natural(path: Path) -> list[Any]:
    """Key that sorts part-2 before part-10."""
    pieces = re.split(r"(\d+)", path.name)
    return [int(piece) if k % 2 else piece for k, piece in enumerate(pieces)]


def _part(path: Path, delimiter: str | None, encoding: str | None) -> Part:
    file = str(path)
    try:
        with path.open("rb") as opened:
            start = opened.read(4)
    except OSError as error:
        raise damaged(file, "at its start", error) from None
    if start == MAGIC:
        return ParquetPart(file, path)
    if path.suffix.lower() in _PARQUET:
        raise InvalidInput(
            f"{file} is {'not a Parquet file' if start else 'empty'}; write the file again"
        )
    if delimiter is None and ".tsv" in path.suffixes:
        delimiter = "\t"
    size = None if compression_of(start) else path.stat().st_size
    return TextPart(file, partial(pieces_of_file, path), delimiter, size, encoding)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _joined(arrays: list[pa.Array]) -> pa.Array:
    """Arrays concatenated, as text if their types differ too much."""
    arrays = [a.dictionary_decode() if pa.types.is_dictionary(a.type) else a for a in arrays]
    try:
        tables = [pa.table([array], ["x"]) for array in arrays]
        return pa.concat_tables(tables, promote_options="permissive").column(0).combine_chunks()
    except pa.ArrowException:
        return pa.concat_arrays([as_text(array) for array in arrays])


def _is_text(t: Any) -> bool:
    """Whether a column of this type of Arrow has only text or missing values."""
    return is_string(t) or pa.types.is_null(t) or pa.types.is_dictionary(t)


def _more_columns(columns: Columns) -> dict[str, Role]:
    """Columns of ids and keys, and those that say when targets come, by their options."""
    named = {"label_time": columns.label_time, "id": columns.id, "key": columns.key}
    return {name: column for name, column in named.items() if column is not None}


def _name(column: Role | None) -> str | None:
    return None if column is None else column.name


def _check_fit(columns: Columns, target: str | None, task: str | None, *more: str | None) -> None:
    """Refuse columns that do not fit the parameters."""
    options = "target", "task", "time", "label_time", "id", "key"
    special = columns.time, columns.label_time, columns.id, columns.key
    known = (_name(columns.target), columns.task, *map(_name, special))
    for name, value, column in zip(options, (target, task, *more), known, strict=True):
        if value not in (None, column):
            raise InvalidInput(
                f"{name} is {quoted(value)}, but the given columns have {name} "
                f"{quoted(column)}; give the same"
            )
