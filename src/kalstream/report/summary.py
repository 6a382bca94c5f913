"""The page of many runs: a line for each, first those that need attention."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final
from urllib.parse import quote

from kalstream._files import write_whole
from kalstream.errors import InvalidInput
from kalstream.evaluate.metrics import Metric, Show, shown
from kalstream.report import format as fmt
from kalstream.report.elements import metric_text, section, table
from kalstream.report.markup import join, tag
from kalstream.report.page import page
from kalstream.report.read import RunRecord, read_run
from kalstream.report.sections.headline import state
from kalstream.report.verdict import verdict
from kalstream.runs.files import REPORT

_AT_END: Final = 0.9  # share of the rows after which an alarm is one at the end


class Attention(IntEnum):
    """Why a run needs attention; the first reasons come first."""

    FAILED = 0
    WORSE = 1
    ALARM = 2
    BAD_ROWS = 3
    MIXED = 4
    GOOD = 5


@dataclass(frozen=True)
class SummaryEntry:
    """A run in a summary.

    Attributes
    ----------
    name : str
    folder : Path
    run : RunRecord or None
        None if there are no results.
    attention : Attention
    text : str
        Why it needs attention, or how it compares with the baselines.

    Examples
    --------
    `entries_of` makes them. This run has no results:

    >>> entry = SummaryEntry("shop", Path("runs/shop"), None, Attention.FAILED, "no such file")
    >>> entry.attention < Attention.GOOD, entry.metrics
    (True, {})
    """

    name: str
    folder: Path
    run: RunRecord | None
    attention: Attention
    text: str

    @property
    def metrics(self) -> dict[Metric, str]:
        """The metrics of the run as texts."""
        if self.run is None:
            return {}
        totals = {m: self.run.total(m.name) for m in shown(self.run.task, Show.VERDICT)}
        return {m: metric_text(m, value) for m, value in totals.items() if math.isfinite(value)}


def entries_of(runs: Mapping[str, tuple[Path, str]]) -> list[SummaryEntry]:
    """Runs, first those that need attention.

    Failed runs come first, then those that are worse than a baseline, those with a drift alarm in
    the last tenth of their rows, those with rows that could not be read, and the others.

    Parameters
    ----------
    runs : {name: (folder, problem)}
        The problem says why a run did not reach its end; "" if it did.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     end = Run(folder, Options(source="weather", limit=300, features="raw")).go()
    ...     entries = entries_of({"good": (Path(folder), ""), "lost": (Path(folder), "killed")})
    >>> [(entry.name, entry.attention.name) for entry in entries]
    [('lost', 'FAILED'), ('good', 'MIXED')]
    """
    entries = [_entry(name, folder, problem) for name, (folder, problem) in runs.items()]
    return sorted(entries, key=lambda entry: (entry.attention, entry.name))


def _entry(name: str, folder: Path, problem: str) -> SummaryEntry:
    try:
        run = read_run(folder)
    except InvalidInput as error:
        return SummaryEntry(name, folder, None, Attention.FAILED, problem or str(error))
    return SummaryEntry(name, folder, run, *_attention(run, problem))


def _attention(run: RunRecord, problem: str) -> tuple[Attention, str]:
    word, sentence = state(run)
    if problem or word != "finished":
        return Attention.FAILED, problem or sentence
    kind, sentence = verdict(run)
    if kind == "bad":
        return Attention.WORSE, sentence
    last = max((alarm.at for alarm in run.alarms), default=-1)
    if last >= _AT_END * run.rows:
        row = f"row {fmt.count(last)} of {fmt.count(run.rows)}"
        return Attention.ALARM, f"The stream was changing at its end: drift alarm at {row}."
    skipped = run.end.skipped if run.end is not None else None
    if skipped:
        return Attention.BAD_ROWS, f"{fmt.plural(skipped, 'row')} could not be read."
    return (Attention.GOOD if kind == "good" else Attention.MIXED), sentence


def write_summary(title: str, entries: Sequence[SummaryEntry], out: Path) -> Path:
    """Write the summary of runs to a file, with links to their reports.

    Parameters
    ----------
    title : str
    entries : sequence of SummaryEntry
        From `entries_of`.
    out : Path
        The file. It is replaced completely or not at all.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     entries = entries_of({"shop": (Path(folder) / "shop", "killed")})
    ...     page = write_summary("Shops", entries, Path(folder) / "summary.html")
    ...     "1 run, 1 failed" in page.read_text()
    True
    """
    n_failed = sum(entry.attention is Attention.FAILED for entry in entries)
    facts = f"{fmt.plural(len(entries), 'run')}, {fmt.count(n_failed)} failed"
    top = join(
        [
            tag("p", tag("span", "kalstream summary"), class_="over"),
            tag("h1", fmt.shortened(title, 80)),
            tag("p", facts, class_="facts"),
        ]
    )
    metrics = list(dict.fromkeys(metric for entry in entries for metric in entry.metrics))
    head = ["Run", "Rows", *(metric.heading for metric in metrics), "Alarms", "What to know"]
    rows = [_row(entry, metrics, Path(out).parent) for entry in entries]
    made = table(head, rows, row_heads=True, left=(len(head) - 1,))
    write_whole(out, page(title, top, section("runs", "Runs", made)))
    return Path(out)


def _row(entry: SummaryEntry, metrics: Sequence[Metric], folder: Path) -> list[object]:
    text = fmt.shortened(entry.text, 400)
    chip = {Attention.FAILED: "bad", Attention.GOOD: "good"}.get(entry.attention, "mixed")
    what = tag("span", entry.attention.name.lower().replace("_", " "), class_=f"chip {chip}")
    about = join([what, tag("span", f" {text}")])
    name: object = fmt.shortened(entry.name, 60)
    if entry.run is None:
        return [name, *[""] * (len(metrics) + 2), about]
    report = entry.folder / REPORT
    if report.exists():
        path = Path(os.path.relpath(report, folder)).as_posix()
        name = tag("a", name, href=quote(path))
    values = entry.metrics
    cells = [values.get(metric, "") for metric in metrics]
    return [name, fmt.count(entry.run.rows), *cells, fmt.count(entry.run.n_alarms), about]
