"""The page of a report: one file without links to other files. `_SECTIONS` lists its sections.

To add a section, write sections/NAME.py with a function from a `RunRecord` (read.py) to `Children`,
made of the parts in elements.py (sections/cost.py is a short example), and add a `Section` to
`_SECTIONS`. headline.py and cards.py are the first screen, not sections.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from kalstream._files import write_whole
from kalstream.report import format as fmt
from kalstream.report.elements import Children, section
from kalstream.report.markup import Markup, join, tag
from kalstream.report.read import RunRecord, read_run
from kalstream.report.sections.calibration import calibration
from kalstream.report.sections.classes import classes
from kalstream.report.sections.code_length import code_length
from kalstream.report.sections.cost import cost
from kalstream.report.sections.forgetting import forgetting
from kalstream.report.sections.headline import headline, state
from kalstream.report.sections.keys import keys
from kalstream.report.sections.scores import scores
from kalstream.report.sections.settings import settings
from kalstream.streams import CLASSIFICATION


@dataclass(frozen=True)
class Section:
    """A section of a report.

    Attributes
    ----------
    anchor, title : str
    content : function of a run
        Its paragraphs, figures and tables.
    task : str, optional
        Only runs of this task have the section.
    keyed : bool
        Whether only runs with ``--key`` have the section.
    """

    anchor: str
    title: str
    content: Callable[[RunRecord], Children]
    task: str | None = None
    keyed: bool = False

    def is_of(self, run: RunRecord) -> bool:
        """Whether the report on a run has the section."""
        return self.task in (None, run.task) and (not self.keyed or bool(run.stream.get("key")))


#: the sections of a report, after the first screen, in their order
_SECTIONS = (
    Section("scores", "Scores over time", scores),
    Section("forgetting", "Forgetting and drift", forgetting),
    Section("calibration", "Calibration", calibration),
    Section("classes", "Classes", classes, task=CLASSIFICATION),
    Section("keys", "Keys", keys, keyed=True),
    Section("bits", "Code length", code_length),
    Section("cost", "Time and memory", cost),
    Section("settings", "Settings", settings),
)


def make_report(run: Path) -> str:
    """Report on a run, as the text of an HTML page.

    Parameters
    ----------
    run : Path
        The folder that ``kalstream run`` wrote.

    Returns
    -------
    str
        A page without links to scripts, styles, fonts or images elsewhere.

    Raises
    ------
    InvalidInput
        If the files are missing or damaged; the message names the file and the line.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     end = Run(folder, Options(source="weather", limit=300, features="raw")).go()
    ...     page = make_report(Path(folder))
    >>> page[:15], "Forgetting and drift" in page
    ('<!doctype html>', True)
    """
    read = read_run(run)
    sections = [each for each in _SECTIONS if each.is_of(read)]
    body = [section(each.anchor, each.title, *each.content(read)) for each in sections]
    top = join([_header(read), _links(sections)])
    return page(f"{read.name}: {read.learner}", top, join([headline(read), *body]))


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the report on a run to a file.

    Parameters
    ----------
    run : Path
        The folder that ``kalstream run`` wrote.
    out : Path, optional
        The file; by default ``report.html`` in that folder.

    Returns
    -------
    Path
        The file. It is replaced completely or not at all.

    Raises
    ------
    InvalidInput
        As `make_report`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     end = Run(folder, Options(source="weather", limit=300, features="raw")).go()
    ...     write_report(Path(folder)).name
    'report.html'
    """
    out = Path(run) / "report.html" if out is None else Path(out)
    write_whole(out, make_report(run))
    return out


def _resource(name: str) -> str:
    return resources.files("kalstream.report").joinpath(name).read_text(encoding="utf-8")


def page(title: str, top: Markup, body: Markup) -> str:
    """A page around its content.

    Parameters
    ----------
    title : str
        Title of the browser's tab.
    top, body : Markup
        The header and the sections.
    """
    style, script = _resource("style.css"), _resource("script.js")
    # The policy forbids every request, and every script but this one, by its hash. If a label were
    # not escaped by mistake, the browser would still not run it.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=Markup(policy)),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    foot = tag(
        "footer",
        "Made by kalstream from the files of the run. Make it again with ",
        tag("code", "kalstream report"),
        ".",
    )
    content = tag(
        "body", tag("header", top), tag("main", body), foot, tag("script", Markup(script))
    )
    return f"<!doctype html>\n{tag('html', head, content, lang='en')}\n"


def _links(sections: Sequence[Section]) -> Markup:
    links = [tag("a", each.title, href=f"#{each.anchor}") for each in sections]
    return tag("nav", *links, aria_label="Sections")


def _protocol(protocol: Mapping[str, Any], stream: Mapping[str, Any]) -> list[str]:
    """Chunks, late labels and cost, where they are not the defaults."""
    chunk, delay, cost = (protocol.get(name) for name in ("chunk", "delay", "cost"))
    facts = []
    if chunk and chunk != 1:
        facts.append(f"in chunks of {fmt.count(chunk)}")
    if delay:
        facts.append(f"labels are {fmt.plural(delay, 'row')} late")
    if protocol.get("delay_seconds"):
        facts.append(f"labels are {fmt.duration(protocol['delay_seconds'])} late")
    if stream.get("label_time"):
        column = fmt.shortened(stream["label_time"], 40)
        facts.append(f"labels come at the times in the column “{column}”")
    if stream.get("id"):
        facts.append(f"labels come with later rows (“{fmt.shortened(stream['id'], 40)}”)")
    if stream.get("key"):
        facts.append(f"a model for each “{fmt.shortened(stream['key'], 40)}”")
    if cost and cost != 1:
        facts.append(f"one of {cost:g} chunks is learned")
    return facts


def _history(run: RunRecord) -> list[str]:
    """The model that the run began with, and the rows at which new data begin."""
    facts, origin = [], run.config["origin"]
    if origin is not None:
        path, rows = fmt.shortened(origin["path"], 60), fmt.plural(origin["rows"], "row")
        facts.append(f"begins with the model of {path}, which had learned {rows}")
    if len(run.extensions) == 1:
        row, source = run.extensions[0]
        facts.append(f"extended by {fmt.shortened(source, 60)} after row {fmt.count(row)}")
    elif run.extensions:
        last = fmt.count(run.extensions[-1][0])
        facts.append(f"extended {fmt.count(len(run.extensions))} times, last after row {last}")
    return facts


def _rows(run: RunRecord) -> str:
    """How many rows the run has predicted; with ids, others only bring labels."""
    n_read = f"{fmt.count(run.rows)} rows"
    if run.end is None or not run.stream.get("id") or "asked" not in run.end.waiting:
        return n_read
    return f"{n_read}, {fmt.count(run.end.waiting['asked'])} of them to predict"


def _header(run: RunRecord) -> Markup:
    word, _ = state(run)
    kind = {"finished": "good", "error": "bad"}.get(word, "mixed")
    at_limit = run.end is not None and run.end.reason == "limit"
    chip = "finished at the limit that was set" if at_limit else word
    target = run.stream.get("target")
    facts = [
        _rows(run),
        f"{run.task} of “{fmt.shortened(target, 40)}”" if target else run.task,
        f"{run.learner}, each row predicted before it is learned",
        *_protocol(run.config["protocol"], run.stream),
        *_history(run),
    ]
    return join(
        [
            tag(
                "p",
                tag("span", "kalstream report"),
                tag("span", chip, class_=f"chip {kind}"),
                class_="over",
            ),
            tag("h1", fmt.shortened(run.name, 80)),
            tag("p", " · ".join(facts), class_="facts"),
        ]
    )
