"""Cards of the first screen: one number each, with a sentence."""

from __future__ import annotations

import math

import numpy as np

from kalstream.report import format as fmt
from kalstream.report.markup import Markup, tag
from kalstream.report.read import RunRecord
from kalstream.report.sections.forgetting import HALVES, life_unit, typical_half_life
from kalstream.runs.lines import Alarm


def cards(run: RunRecord) -> list[Markup]:
    """All cards of a run."""
    if not run.n:
        return [_speed_card(run)]
    if run.classification:
        of_task = [_classes_card(run), _calibration_card(run)]
    else:
        of_task = [_explained_card(run), _coverage_card(run)]
    return [_drift_card(run), _forgetting_card(run), *of_task, _speed_card(run)]


def _drift_card(run: RunRecord) -> Markup:
    alarms, n_alarms = run.alarms, run.n_alarms
    life, fixed = typical_half_life(run)
    when = f" (at {_when(alarms[0])})" if alarms else ""
    if len(alarms) > 1:
        when = f" (first at {_when(alarms[0])}, last at {_when(alarms[-1])})"
    if alarms and math.isinf(life):
        value = fmt.plural(n_alarms, "alarm")
        text = (
            f"Forgetting helped for a while{when}. Over most of the stream, forgetting nothing was "
            "best: chance alone can raise an alarm."
        )
    elif alarms:
        value = fmt.plural(n_alarms, "alarm")
        text = f"The stream drifts: what predicts well changed {_times(n_alarms)}{when}."
    elif math.isfinite(life) and not fixed and (run.timed or life < run.rows):
        value, text = (
            "gradual",
            "There was no alarm, but old rows help less than recent ones.",
        )
    elif math.isnan(life) or fixed:
        value, text = (
            "no alarms",
            "This learner does not detect drift.",
        )
    else:
        value, text = "none seen", "There was no alarm, and no half-life shorter than the stream."
    return _card("Drift", value, text)


def _when(alarm: Alarm) -> str:
    """Row at which an alarm was raised and, if labels are late, the row whose label did it."""
    since = "" if alarm.at == alarm.row else f", since row {fmt.count(alarm.row)}"
    return f"row {fmt.count(alarm.at)}{since}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{fmt.count(number)} times")


def _forgetting_card(run: RunRecord) -> Markup:
    life, fixed = typical_half_life(run)
    if math.isnan(life):
        return _card(
            "Half-life", fmt.NOT_DEFINED, "This learner does not report how fast it forgets."
        )
    if math.isinf(life):
        text = "Over most of the stream, forgetting nothing was best."
        fixed_text = "The settings say to forget nothing."
        return _card("Median half-life", "never", fixed_text if fixed else text)
    start = "Fixed by the settings" if fixed else HALVES
    if run.timed:
        text = f"{start}, in the time unit of the settings."
    elif life > run.rows:
        text = f"{start}. The stream has only {fmt.count(run.rows)} rows."
    else:
        share = fmt.percent(life / run.rows, 0 if life > 0.1 * run.rows else 1)
        text = f"{start}. It is {share} of the stream."
    return _card("Median half-life", f"{fmt.half_life(life)} {life_unit(run)}", text)


def _classes_card(run: RunRecord) -> Markup:
    classes = {new.code for window in run.windows for new in window.new_classes}
    number = max(len(classes), len(run.labels))
    first = len(run.windows[0].new_classes)
    later = [new for window in run.windows[1:] for new in window.new_classes]
    if run.known_labels:
        known, added = fmt.count(len(run.known_labels)), fmt.count(len(classes))
        text = f"{known} were known from the start, {added} appeared in these data."
        return _card("Classes", fmt.count(number), text)
    if not later:
        return _card("Classes", fmt.count(number), "All of them appeared in the first window.")
    text = (
        f"{fmt.count(first)} appeared in the first window, {fmt.count(len(later))} later; the last "
        f"one at row {fmt.count(later[-1].row)}."
    )
    return _card("Classes", f"{fmt.count(number)}, {fmt.count(len(later))} new", text)


def _calibration_card(run: RunRecord) -> Markup:
    ece = run.total("ece")
    if math.isnan(ece):
        return _card("Calibration", fmt.NOT_DEFINED, "This learner gives no probabilities.")
    bins = [w.reliability_bins for w in run.windows if w.reliability_bins is not None]
    count, confidence, right = np.asarray(sum(bins, np.zeros((3, 1)))).sum(axis=1)
    lean = (confidence - right) / count if count else 0.0
    if abs(lean) < 0.005:
        text = "On average, its confidence equals its accuracy."
    else:
        side = "too confident" if lean > 0 else "not confident enough"
        text = f"On average {side}, by {fmt.fixed(100 * abs(lean), 1)} points."
    return _card("Calibration error (ECE)", fmt.percent(ece), text)


def _coverage_card(run: RunRecord) -> Markup:
    coverage = run.total("coverage")
    text = "of the values were in the central 90% interval that was predicted for them."
    if math.isnan(coverage):
        text = "This learner gives no intervals."
    return _card("Coverage", fmt.percent(coverage), text)


def _explained_card(run: RunRecord) -> Markup:
    ours, mean = run.total("rmse"), run.total("rmse", "mean")
    value = 1 - (ours / mean) ** 2 if mean > 0 else math.nan
    text = "of the squared error of the running mean is avoided."
    return _card("Explained", fmt.percent(value), text)


def _speed_card(run: RunRecord) -> Markup:
    used = run.clock("seconds")
    rate = run.rows / used if used > 0 else math.nan
    memory = fmt.count(run.clock("memory_mb"))
    text = f"{fmt.seconds(used)} of predicting and learning, {memory} MB of memory."
    return _card("Speed", f"{fmt.significant(rate)} rows/s", text)


def _card(label: str, value: str, text: str) -> Markup:
    return tag(
        "div", tag("dt", label), tag("dd", tag("b", value), tag("span", text)), class_="card"
    )
