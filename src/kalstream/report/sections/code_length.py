"""Section on code length: the learner as a compressor of the labels."""

from __future__ import annotations

import math

import numpy as np

from kalstream.report import format as fmt
from kalstream.report.axes import linear, rows_axis
from kalstream.report.elements import (
    Children,
    baseline_name,
    baseline_style,
    mark_alarms,
    prose,
    table,
)
from kalstream.report.markup import Markup
from kalstream.report.read import NOT_SCORED, RunRecord
from kalstream.report.svg import Figure
from kalstream.report.timeline import Timeline


def code_length(run: RunRecord) -> Children:
    """Bits needed to send all labels, by learner and baselines."""
    if not run.n and run.classification:
        return [prose(NOT_SCORED)]
    ours = run.total("code_length")
    if math.isnan(ours):
        why = "regression" if not run.classification else "a learner without probabilities"
        return [prose(f"The code length is not defined for {why}.")]
    rows = [_bits(run, None, ours), *(_bits(run, name, ours) for name in run.baselines)]
    text = (
        "Bits needed to send all labels, each coded with its predicted probability: the sum of the "
        "log-losses in base 2. A shorter code means better predictions."
    )
    head = ("", "Bits", "Bits a row", "Compared with the learner")
    return [prose(text), table(head, rows, row_heads=True), _saved(run)]


def _bits(run: RunRecord, name: str | None, ours: float) -> tuple[str, ...]:
    bits = run.total("code_length", name)
    shown = run.learner if name is None else baseline_name(name)
    more = fmt.NOT_DEFINED if name is None or not ours > 0 else _more(bits / ours - 1)
    each = fmt.fixed(bits / run.n, 3) if run.n else fmt.NOT_DEFINED
    return fmt.shortened(shown, 40), fmt.count(bits), each, more


def _more(share: float) -> str:
    if math.isnan(share):
        return fmt.NOT_DEFINED
    return f"{fmt.percent(abs(share))} {'longer' if share >= 0 else 'shorter'}"


def _saved(run: RunRecord) -> Markup | None:
    """Figure of the bits saved so far against each baseline."""
    time = Timeline(run)
    ours = time.last(run.column("total.code_length"))
    curves = {n: time.last(run.column(f"{n}.total.code_length")) - ours for n in run.baselines}
    curves = {name: values for name, values in curves.items() if np.isfinite(values).any()}
    if not curves:
        return None
    values = np.concatenate([*curves.values(), [0.0]])
    figure = Figure(
        "Bits saved against the baselines",
        "Lines of the bits that the learner has saved so far against each baseline. Where a line "
        "rises, the learner predicts better than the baseline.",
        rows_axis(run.rows, run.dates),
        linear(float(np.nanmin(values)), float(np.nanmax(values))),
        height=180,
    )
    mark_alarms(figure, run)
    figure.across(0.0, "nominal")
    for name, saved in curves.items():
        shown, style = baseline_name(name), baseline_style(name)
        figure.line(time.right, saved, style, name=f"against {shown}", label=shown)
    return figure.render(
        "Where a line rises, the learner predicts better than the baseline; where it falls, worse."
    )
