"""The whole page: one file that needs nothing else and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from kalstream._files import write_whole
from kalstream.report import format as fmt
from kalstream.report.classes import classes
from kalstream.report.headline import headline, state
from kalstream.report.markup import Markup, join, tag
from kalstream.report.read import Run, read_run
from kalstream.report.sections import calibration, code_length, cost, forgetting, origin, scores


def make_report(run: Path) -> str:
    """Report on a run, as the text of an HTML page.

    Parameters
    ----------
    run : Path
        The folder that ``kalstream run`` wrote.

    Returns
    -------
    str
        A page that is complete in itself: no scripts, styles, fonts or images from elsewhere.

    Raises
    ------
    InvalidInput
        If the files are missing or damaged; the message names the file and the line.
    """
    read = read_run(run)
    links = [("scores", "Scores"), ("forgetting", "Forgetting"), ("calibration", "Calibration")]
    links += [("classes", "Classes")] if read.classification else []
    links += [("bits", "Code length"), ("cost", "Cost"), ("origin", "Settings")]
    body = [
        headline(read),
        scores(read),
        forgetting(read),
        calibration(read),
        classes(read) if read.classification else None,
        code_length(read),
        cost(read),
        origin(read),
    ]
    return page(f"{read.name}: {read.learner}", join([_header(read), _links(links)]), join(body))


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
        The file. It is replaced whole or not at all.

    Raises
    ------
    InvalidInput
        As `make_report`.
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
        What the browser's tab shows.
    top, body : Markup
        The header and the sections.

    Returns
    -------
    str
    """
    style, script = _resource("style.css"), _resource("script.js")
    # The policy forbids every request and every script but our own, by its hash: were a label ever
    # to slip through unescaped, the browser would still not run it.
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
        "Made by kalstream from the files of the run alone; make it again with ",
        tag("code", "kalstream report"),
        ".",
    )
    content = tag(
        "body", tag("header", top), tag("main", body), foot, tag("script", Markup(script))
    )
    return f"<!doctype html>\n{tag('html', head, content, lang='en')}\n"


def _links(links: Sequence[tuple[str, str]]) -> Markup:
    return tag(
        "nav", *(tag("a", text, href=f"#{anchor}") for anchor, text in links), aria_label="Sections"
    )


def _protocol(protocol: Mapping[str, Any]) -> list[str]:
    """What is not as usual: late targets, chunks, a learner too slow for the stream."""
    chunk, delay, cost = (protocol.get(name) for name in ("chunk", "delay", "cost"))
    told = []
    if chunk and chunk != 1:
        told.append(f"in chunks of {fmt.count(chunk)}")
    if delay:
        told.append(f"targets come {fmt.plural(delay, 'row')} late")
    if cost and cost != 1:
        told.append(f"of {cost:g} chunks one is learned")
    return told


def _header(run: Run) -> Markup:
    word, _ = state(run)
    kind = {"finished": "good", "error": "bad"}.get(word, "mixed")
    ended = (run.end or {}).get("reason")
    chip = "finished, at the limit that was set" if ended == "limit" else word
    target = run.stream.get("target")
    what = "classification" if run.classification else "regression"
    facts = [
        f"{fmt.count(run.rows)} rows",
        f"{what} of “{fmt.shortened(target, 40)}”" if target else what,
        f"{run.learner}, each row predicted before it is learned from",
        *_protocol(run.config["protocol"]),
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
