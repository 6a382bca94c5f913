"""First screen of a report: state of the run, verdict, and the table of learner and baselines."""

from __future__ import annotations

import math

from kalstream.evaluate.metrics import Metric, Show, shown
from kalstream.report import format as fmt
from kalstream.report.elements import baseline_name, metric_text
from kalstream.report.markup import Markup, join, tag
from kalstream.report.read import RunRecord
from kalstream.report.sections.cards import cards
from kalstream.report.verdict import Lead, baseline_meaning, leads, verdict

_NOISE = (
    "± is half the width of the 95% confidence interval of the difference, from the paired test "
    "of `kalstream compare`. A smaller difference counts as none."
)


def headline(run: RunRecord) -> Markup:
    """The first screen of a report."""
    kind, sentence = verdict(run)
    signs = {"good": "✓", "mixed": "≈", "bad": "✗"}
    metrics = [m for m in shown(run.task, Show.VERDICT) if not math.isnan(run.total(m.name))]
    paragraphs = [_paragraph(run, metric) for metric in metrics]
    sign = tag("span", signs[kind], class_="sign", aria_hidden="true")
    return join(
        [
            _state_banner(run),
            _skipped_banner(run),
            tag("p", sign, sentence, class_=f"verdict {kind}"),
            tag("div", *paragraphs, _repeats(run) if run.classification else None, class_="prose"),
            _scoreboard(run) if run.n else None,
            tag("dl", *cards(run), class_="cards"),
        ]
    )


def state(run: RunRecord) -> tuple[str, str]:
    """Whether the run finished.

    Returns
    -------
    word : str
        ``"finished"``, ``"interrupted"``, ``"error"`` or ``"not finished"``.
    sentence : str
        An explanation; empty for a finished run.
    """
    rows = fmt.count(run.rows)
    if run.end is None:
        cut = " The last line of the file was cut off and is left out." if run.cut else ""
        return "not finished", (
            f"The files do not say how the run ended: it was killed, or is still running. This "
            f"report covers the first {rows} rows.{cut}"
        )
    reason, message = run.end.reason, run.end.message
    if reason == "interrupted":
        return (
            "interrupted",
            f"The run was interrupted. This report covers the first {rows} rows.",
        )
    if reason == "error":
        return (
            "error",
            f"The run stopped after {rows} rows with an error: {message or 'no message'}",
        )
    return "finished", ""


def _state_banner(run: RunRecord) -> Markup | None:
    word, sentence = state(run)
    if not sentence:
        return None
    kind = "bad" if word == "error" else "mixed"
    title = f"{word[0].upper()}{word[1:]}"
    return tag("p", tag("strong", f"{title}. "), sentence, class_=f"banner {kind}", role="status")


def _skipped_banner(run: RunRecord) -> Markup | None:
    """Rows that could not be read, if there are any."""
    skipped = (run.end.skipped if run.end is not None else 0) or 0
    if run.end is None or not skipped:
        return None
    reasons = run.end.skipped_why
    text = "; ".join(fmt.shortened(each, 200) for each in reasons)
    sentence = f"{fmt.plural(skipped, 'row')} could not be read and were left out"
    return tag(
        "p",
        tag("strong", "Warning. "),
        f"{sentence}: {text}{', and so on' if skipped > len(reasons) else ''}.",
        class_="banner mixed",
    )


def _paragraph(run: RunRecord, metric: Metric) -> Markup:
    """A paragraph on one metric: its value, and the differences to the baselines."""
    ours = metric_text(metric, run.total(metric.name))
    if metric.name == "accuracy":
        start = (
            f"{ours} of {fmt.count(run.n)} rows were predicted right, before their label was seen"
        )
    else:
        unit = f" {metric.unit} a row" if metric.unit in ("nats", "bits") else ""
        start = f"Its {metric.title} is {ours}{unit}"
    parts = []
    for lead in leads(run, metric.name):
        theirs = metric_text(metric, lead.theirs)
        parts.append(
            f"{_difference(lead, metric)} {baseline_meaning(run, lead.baseline)} ({theirs})"
        )
    return tag("p", f"{start}: {fmt.listed(parts)}." if parts else f"{start}.")


def _difference(lead: Lead, metric: Metric) -> str:
    """Difference to a baseline, with its uncertainty."""
    above = lead.ours >= lead.theirs
    if metric.unit == "share":
        size = fmt.fixed(100 * abs(lead.gain), 1)
        noise = f" ± {fmt.fixed(100 * lead.noise, 1)}" if lead.noise > 0 else ""
        return f"{size}{noise} points {'above' if above else 'below'}"
    unit = f" {metric.unit}" if metric.unit in ("nats", "bits") else ""
    size = fmt.plus_minus(abs(lead.gain), lead.noise)
    return f"{size}{unit} {'more' if above and lead.gain else 'less'} than"


def _repeats(run: RunRecord) -> Markup | None:
    """A warning if the labels of the stream repeat: then high accuracy is easy."""
    again, most = run.total("accuracy", "no_change"), run.total("accuracy", "majority")
    if not again > most + 0.05:
        return None
    text = (
        f"The labels of this stream come in stretches. Repeating the last label, without using the "
        f"features, is right {fmt.percent(again)} of the time. Compare the accuracy with that, not "
        f"with {fmt.percent(most)}."
    )
    return tag("p", text, class_="note")


def _scoreboard(run: RunRecord) -> Markup:
    """Table of the learner and the baselines."""
    metrics = shown(run.task, Show.BOARD)
    by_metric = {metric.name: leads(run, metric.name) for metric in metrics}
    all_leads = {(name, lead.baseline): lead for name in by_metric for lead in by_metric[name]}
    titles = [f"{metric.heading}, {metric.direction}" for metric in metrics]
    head = tag("tr", tag("td"), *(tag("th", title, scope="col") for title in titles))
    body = []
    for baseline in (None, *run.baselines):
        name = run.learner if baseline is None else baseline_name(baseline)
        cells = [
            _bar(run, metric, baseline, all_leads.get((metric.name, baseline or "")))
            for metric in metrics
        ]
        css = "ours" if baseline is None else None
        body.append(tag("tr", tag("th", fmt.shortened(name, 40), scope="row"), *cells, class_=css))
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="score")
    note = None
    if any(lead.noise for lead in all_leads.values()):
        note = tag("p", _NOISE, class_="caption")
    return join([tag("div", table, class_="scroll"), note])


def _bar(run: RunRecord, metric: Metric, baseline: str | None, lead: Lead | None) -> Markup:
    """A cell of the table: a value, its bar, and in how many windows the learner is better."""
    value = run.total(metric.name, baseline)
    totals = [run.total(metric.name, each) for each in (None, *run.baselines)]
    largest = max([total for total in totals if math.isfinite(total)], default=1.0)
    full = 1.0 if metric.unit == "share" else largest
    share = min(max(value / full, 0.0), 1.0) if math.isfinite(value) and full > 0 else 0.0
    bar = tag("i", style=f"width:{100 * share:.1f}%")
    often = None
    if lead is not None and not math.isnan(lead.ahead):
        often = tag("small", f"learner better in {fmt.percent(lead.ahead, 0)} of the windows")
    track = tag("span", bar, class_="track", aria_hidden="true")
    return tag("td", tag("span", metric_text(metric, value)), track, often)
