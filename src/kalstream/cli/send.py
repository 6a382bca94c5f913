"""`kalstream send`: a file as a stream of requests to a service."""

from __future__ import annotations

import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Annotated, Any, Final

import typer

from kalstream._printable import quoted
from kalstream.cli.console import app, escaped, out
from kalstream.cli.run import options_of, with_options
from kalstream.errors import InvalidOption
from kalstream.runs.options import Options, delay_of

_HELP: Final = """
Send the rows of a file to a service (`kalstream serve`), which predicts and then learns them.

Each row has an id that is made from the content of the file. If the command is stopped, repeat it:
labels that were learned before count once.

[bold]Examples[/bold]

  kalstream send data.csv --target label --to http://localhost:8000

  kalstream send data.csv --target label --delay 100     labels come 100 rows later

  tail -f log.jsonl | kalstream send - --target ok --token ks-...
"""

_OPTIONS: Final = (
    *("source", "target", "task", "ignore", "categorical", "missing", "decimal"),
    *("delimiter", "encoding", "limit"),
)
_Pairs = Iterator[tuple[dict[str, Any], Any]]  # rows and labels


@app.command(help=_HELP)
@with_options(name for name in _OPTIONS if name in Options.model_fields)
def send(  # noqa: D103
    *,
    to: Annotated[str, typer.Option(help="Address of the service.")] = "http://localhost:8000",
    model: Annotated[str, typer.Option(help="Name of the model.")] = "default",
    token: Annotated[
        str | None, typer.Option(envvar="KALSTREAM_TOKEN", help="As `kalstream token` printed it.")
    ] = None,
    delay: Annotated[
        str, typer.Option(help="Labels are sent so many rows after their rows, or a batch more.")
    ] = "0",
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Rows of a request.")] = 100,
    patience: Annotated[
        float, typer.Option(min=0.0, help="Seconds for which a request is repeated.")
    ] = 60.0,
    **values: Any,
) -> None:
    from kalstream.client import Client
    from kalstream.runs.setup import open_stream
    from kalstream.streams import TableStream

    rows_late = delay_of(delay)
    if not isinstance(rows_late, int):
        raise InvalidOption(f"--delay is {quoted(delay)}; give a number of rows")
    options = options_of(values)
    stream = open_stream(options)
    if not isinstance(stream, TableStream):
        raise InvalidOption(
            f"{quoted(options.source)} is no table; send CSV, JSON lines, Parquet or '-'"
        )
    name = uuid.uuid4().hex if options.source == "-" else stream.name
    pairs = (pair for part in stream.records() for pair in zip(*part, strict=True))
    begun = time.perf_counter()
    with Client(to, model=model, token=token, patience=patience) as client:
        counts = _sent(client, islice(pairs, options.limit), name, rows_late, batch)
    seconds = time.perf_counter() - begun
    n = counts.pop("rows")
    made = ", ".join(f"{count:,} {status}" for status, count in counts.items()) or "none"
    out.print(
        f"{escaped(stream.name)}: {n:,} rows in {seconds:.1f} s ({n / seconds:,.0f} a second); "
        f"labels: {made}"
    )


def _sent(client: Any, pairs: _Pairs, name: str, delay: int, batch: int) -> Counter[str]:
    """Send rows and labels; how many rows there were, and results of labels by their status.

    A row without a label is only predicted.
    """
    counts: Counter[str] = Counter(rows=0)
    late: deque[tuple[str, Any]] = deque()  # ids and labels
    while some := list(islice(pairs, min(batch, delay or batch))):
        first = counts["rows"]
        counts["rows"] += len(some)
        whole = [
            (row, label, _id(name, first + k, row, label))
            for k, (row, label) in enumerate(some)
            if label is not None and label == label
        ]
        if len(whole) < len(some):
            client.predict([row for row, label in some if label is None or label != label])
        if not whole:
            continue
        rows, labels, ids = map(list, zip(*whole, strict=True))
        if delay:
            client.predict(rows, ids)
            late.extend(zip(ids, labels, strict=True))
            counts.update(_told(client, late, len(late) - delay))
        else:
            counts.update(each["status"] for each in client.learn(rows, labels, ids))
    while late:
        counts.update(_told(client, late, batch))
    return counts


def _id(*parts: Any) -> str:
    """The id of a row: the same while its file has the same row at the same place."""
    return blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def _told(client: Any, late: deque[tuple[str, Any]], n: int) -> list[str]:
    """Send the labels that have waited longest, at most n; their statuses."""
    some = [late.popleft() for _ in range(min(n, len(late)))]
    if not some:
        return []
    return [each["status"] for each in client.label(*map(list, zip(*some, strict=True)))]
