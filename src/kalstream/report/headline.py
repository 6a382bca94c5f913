"""What the run came to, in plain words: first of all whether it beats repeating the last label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kalstream.evaluate.compare import LEVEL, paired_test
from kalstream.report import format as fmt
from kalstream.report.markup import Markup, join, tag
from kalstream.report.read import FloatArray, Run, window_lines

BASELINES = {
    "no_change": "no-change",
    "majority": "majority",
    "mean": "running mean",
}
# in the verdict itself, where a name would have to be explained
_PLAIN = {
    "no_change": "repeating the last {target}",
    "majority": "naming the commonest label",
    "mean": "giving the running mean",
}
_MEANING = {
    "no_change": "repeating the last {target}",
    "majority": "always naming the most frequent label so far",
    "mean": "always giving the mean so far",
}
METRICS = {
    "accuracy": "accuracy",
    "log_loss": "log-loss",
    "rmse": "RMSE",
    "mae": "MAE",
}
_NOISE = (
    "± is half the 95% confidence interval of the difference, by the paired test that "
    "`kalstream compare` uses; within it, learner and baseline count as level."
)


def baseline_name(key: str) -> str:
    """Name of a baseline as the page writes it."""
    return BASELINES.get(key, key.replace("_", " "))


def target_of(run: Run) -> str:
    """What is predicted, as one calls it."""
    return "label" if run.classification else "value"


@dataclass(frozen=True)
class Lead:
    """How far a run is ahead of a baseline.

    Attributes
    ----------
    baseline : str
        The baseline, as in the files.
    ours, theirs : float
        The two scores over the whole run.
    gain : float
        Their difference, positive where the run is better.
    noise : float
        Half the 95% confidence interval of the difference; 0 if it cannot be told.
    p_value : float
        Of the paired test that compares runs; 0 if it cannot be told.
    ahead : float
        Share of the windows in which the run was better.
    """

    baseline: str
    ours: float
    theirs: float
    gain: float
    noise: float
    p_value: float
    ahead: float

    @property
    def verdict(self) -> str:
        """Whether the run ``"beats"``, ``"is level with"`` or ``"is behind"`` the baseline."""
        rounding = 1e-9 * max(abs(self.ours), abs(self.theirs), 1e-3)
        if self.p_value >= LEVEL or abs(self.gain) <= rounding:
            return "is level with"
        return "beats" if self.gain > 0 else "is behind"


def leads(run: Run, metric: str) -> list[Lead]:
    """How far a run is ahead of each baseline in one metric.

    Parameters
    ----------
    run : Run
        The run.
    metric : str
        ``"accuracy"`` (more is better), or an error (less is better).

    Returns
    -------
    list of Lead
        None for a baseline that does not have the metric.
    """
    sign = 1.0 if metric == "accuracy" else -1.0
    found = []
    for baseline in run.baselines:
        ours, theirs = run.total(metric), run.total(metric, baseline)
        if math.isnan(ours) or math.isnan(theirs):
            continue
        pair = run.column(f"window.{metric}"), run.column(f"{baseline}.window.{metric}")
        ahead = sign * (pair[0] - pair[1])
        known = ahead[np.isfinite(ahead)]
        share = float(np.mean(known > 0)) if known.size else math.nan
        if metric == "rmse" and ours + theirs > 0:
            # the difference of two roots is not a mean over rows: linearise it about the totals
            pair = pair[0] ** 2 / (ours + theirs), pair[1] ** 2 / (ours + theirs)
        noise, p_value = _tested(run, metric, *pair)
        gain = sign * (ours - theirs)
        found.append(Lead(baseline, ours, theirs, gain, noise, p_value, share))
    return found


def _tested(run: Run, metric: str, ours: FloatArray, theirs: FloatArray) -> tuple[float, float]:
    """Margin and p-value of the paired test of two series of windows; 0 for too few windows."""
    if np.count_nonzero(np.isfinite(ours) & np.isfinite(theirs) & (run.scored > 0)) < 2:
        return 0.0, 0.0
    one, two = (window_lines(run, metric, values) for values in (ours, theirs))
    test = paired_test(one, two, metric)
    return test.margin, test.p_value


def _standing(found: Sequence[Lead], target: str, named: bool) -> str:
    """One clause: what is beaten and what is not; `named` if the baselines were named before."""
    by: dict[str, list[str]] = {}
    for lead in found:
        plain = _PLAIN.get(lead.baseline, baseline_name(lead.baseline)).format(target=target)
        by.setdefault(lead.verdict, []).append(plain)
    if len(found) == 2 and len(by) == 1:
        verdict, names = next(iter(by.items()))
        clause = "beats neither" if verdict == "is behind" else f"{verdict} both"
        if named:
            return clause
        plural = "s" if clause.endswith("both") else ""
        return f"{clause} baseline{plural} ({', '.join(names)})"
    order = [key for key in ("beats", "is level with", "is behind") if key in by]
    return fmt.listed([f"{key} {fmt.listed(by[key])}" for key in order], "but")


def verdict(run: Run) -> tuple[str, str]:
    """The verdict against the baselines.

    Parameters
    ----------
    run : Run
        The run.

    Returns
    -------
    kind : str
        ``"good"``: it beats them all, in all that is measured; ``"bad"``: in some metric it is
        behind one; ``"mixed"``: anything else.
    sentence : str
        The same in words.
    """
    measured = ("accuracy", "log_loss") if run.classification else ("rmse",)
    told = {metric: leads(run, metric) for metric in measured}
    told = {metric: found for metric, found in told.items() if found}
    if not told:
        return "mixed", "There is nothing to compare it with: the files hold no baselines."
    clauses: dict[str, list[str]] = {}
    for metric, found in told.items():
        # the same standing in two metrics is one clause, whether it names the baselines or not
        clauses.setdefault(_standing(found, target_of(run), False), []).append(metric)
    parts = []
    for i, (clause, metrics) in enumerate(clauses.items()):
        standing = clause if i == 0 else _standing(told[metrics[0]], target_of(run), True)
        parts.append(f"in {fmt.listed([METRICS[m] for m in metrics])} it {standing}")
    verdicts = {lead.verdict for found in told.values() for lead in found}
    kind = "good" if verdicts == {"beats"} else "bad" if "is behind" in verdicts else "mixed"
    sentence = "; ".join(parts) + "."
    return kind, sentence[0].upper() + sentence[1:]


def _difference(lead: Lead, metric: str) -> str:
    """How far apart, with its uncertainty."""
    if metric == "accuracy":
        size = f"{fmt.fixed(100 * abs(lead.gain), 1)} points"
        if lead.noise > 0:
            size = size.replace(" ", f" ± {fmt.fixed(100 * lead.noise, 1)} ")
        return f"{size} {'above' if lead.gain >= 0 else 'below'}"
    unit = " nats" if metric == "log_loss" else ""
    size = fmt.plus_minus(abs(lead.gain), lead.noise)
    return f"{size}{unit} {'less' if lead.gain >= 0 else 'more'} than"


def _against(run: Run, metric: str) -> Markup:
    """One paragraph on one metric."""
    found = leads(run, metric)
    show = fmt.percent if metric == "accuracy" else fmt.significant
    parts = []
    for lead in found:
        meaning = _MEANING.get(lead.baseline, baseline_name(lead.baseline)).format(
            target=target_of(run)
        )
        parts.append(f"{_difference(lead, metric)} {meaning} ({show(lead.theirs)})")
    ours = show(run.total(metric))
    if metric == "accuracy":
        start = (
            f"{ours} of {fmt.count(run.n)} rows were predicted right before their label was seen"
        )
    else:
        unit = " nats a row" if metric == "log_loss" else ""
        start = f"Its {METRICS[metric]} is {ours}{unit}"
    return tag("p", f"{start}: {fmt.listed(parts)}." if parts else f"{start}.")


def _repeats(run: Run) -> Markup | None:
    """The warning without which an accuracy on a stream of repeating labels is not honest."""
    again, most = run.total("accuracy", "no_change"), run.total("accuracy", "majority")
    if not again > most + 0.05:
        return None
    text = (
        f"The labels of this stream come in stretches: saying the last label again, without a look "
        f"at the features, is right {fmt.percent(again)} of the time. Accuracy is to be read "
        f"against that, not against {fmt.percent(most)}."
    )
    return tag("p", text, class_="note")


def state(run: Run) -> tuple[str, str]:
    """Whether the run finished.

    Parameters
    ----------
    run : Run
        The run.

    Returns
    -------
    word : str
        ``"finished"``, ``"interrupted"``, ``"error"`` or ``"not finished"``.
    sentence : str
        What that means here; empty for a finished run.
    """
    rows = fmt.count(run.rows)
    if run.end is None:
        cut = " Its last line was cut off and is left out." if run.cut else ""
        return "not finished", (
            f"The files have no closing line: the run was killed, or is still going on. What "
            f"follows is about the first {rows} rows.{cut}"
        )
    reason, message = run.end.get("reason"), run.end.get("message")
    if reason == "interrupted":
        return (
            "interrupted",
            f"The run was interrupted; what follows is about the first {rows} rows.",
        )
    if reason == "error":
        return "error", f"The run stopped after {rows} rows with an error: {message or 'not said'}"
    return "finished", ""


def _skipped_banner(run: Run) -> Markup | None:
    """Rows that could not be read, if some were left out."""
    skipped = (run.end or {}).get("skipped") or 0
    if not skipped:
        return None
    why = [str(each) for each in (run.end or {}).get("skipped_why") or ()]
    told = "; ".join(fmt.shortened(each, 200) for each in why)
    sentence = f"{fmt.plural(skipped, 'row')} could not be read and stayed out"
    return tag(
        "p",
        tag("strong", "Take care. "),
        f"{sentence}: {told}{', and so on' if skipped > len(why) else ''}.",
        class_="banner mixed",
    )


def _state_banner(run: Run) -> Markup | None:
    word, sentence = state(run)
    if not sentence:
        return None
    kind = "bad" if word == "error" else "mixed"
    title = f"{word[0].upper()}{word[1:]}"
    return tag("p", tag("strong", f"{title}. "), sentence, class_=f"banner {kind}", role="status")


def _scoreboard(run: Run) -> Markup:
    """The learner and the baselines, side by side."""
    if run.classification:
        columns = [
            ("accuracy", "Accuracy, more is better"),
            ("log_loss", "Log-loss, less is better"),
        ]
    else:
        columns = [("rmse", "RMSE, less is better"), ("mae", "MAE, less is better")]
    ahead = {(m, lead.baseline): lead for m, _ in columns for lead in leads(run, m)}
    who: list[str | None] = [None, *run.baselines]
    head = tag("tr", tag("td"), *(tag("th", title, scope="col") for _, title in columns))
    body = []
    for one in who:
        name = run.learner if one is None else baseline_name(one)
        cells = [
            _bar(run, metric, one, who, ahead.get((metric, one or ""))) for metric, _ in columns
        ]
        css = "ours" if one is None else None
        body.append(tag("tr", tag("th", fmt.shortened(name, 40), scope="row"), *cells, class_=css))
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="score")
    note = None
    if any(lead.noise for lead in ahead.values()):
        note = tag("p", _NOISE, class_="caption")
    return join([tag("div", table, class_="scroll"), note])


def _bar(
    run: Run, metric: str, one: str | None, who: Sequence[str | None], lead: Lead | None
) -> Markup:
    value = run.total(metric, one)
    known = [run.total(metric, other) for other in who]
    most = 1.0 if metric == "accuracy" else max([v for v in known if math.isfinite(v)], default=1.0)
    share = min(max(value / most, 0.0), 1.0) if math.isfinite(value) and most > 0 else 0.0
    text = fmt.percent(value) if metric == "accuracy" else fmt.significant(value)
    bar = tag("i", style=f"width:{100 * share:.1f}%")
    often = None
    if lead is not None and not math.isnan(lead.ahead):
        often = tag("small", f"learner ahead in {fmt.percent(lead.ahead, 0)} of the windows")
    track = tag("span", bar, class_="track", aria_hidden="true")
    return tag("td", tag("span", text), track, often)


def typical_half_life(run: Run) -> tuple[float, bool]:
    """Half-life at which the learner stood for most of the stream.

    Parameters
    ----------
    run : Run
        The run.

    Returns
    -------
    half_life : float
        The median over the rows of each window's median; NaN if there are none.
    fixed : bool
        Whether it never moved, and so tells about the settings, not the stream.
    """
    told = [(w.half_life, w.n) for w in run.windows if w.half_life is not None]
    told = [(h, n) for h, n in told if n]
    pairs = sorted((h.median if not math.isnan(h.median) else h.half_lives[0], n) for h, n in told)
    if not pairs:
        return math.nan, False
    weights = np.cumsum([n for _, n in pairs])
    middle = int(np.searchsorted(weights, weights[-1] / 2))
    single = all(len(h.half_lives) == 1 for h, _ in told)
    return pairs[middle][0], single and len({h.half_lives for h, _ in told}) == 1


def _drift_card(run: Run) -> Markup:
    alarms = [alarm for window in run.windows for alarm in window.drift]
    life, fixed = typical_half_life(run)
    when = f" (at row {fmt.count(alarms[0].row)})" if alarms else ""
    if len(alarms) > 1:
        first, last = fmt.count(alarms[0].row), fmt.count(alarms[-1].row)
        when = f" (first at row {first}, last at row {last})"
    if alarms and math.isinf(life):
        value = fmt.plural(len(alarms), "alarm")
        text = (
            f"For a while it did better by forgetting{when}, over most of the stream by forgetting "
            "nothing: chance alone raises an alarm now and then."
        )
    elif alarms:
        value = fmt.plural(len(alarms), "alarm")
        text = f"The stream drifts: what predicts well changed {_times(len(alarms))}{when}."
    elif math.isfinite(life) and not fixed and (run.timed or life < run.rows):
        value, text = (
            "gradual",
            "No change raised an alarm, but old rows help less than new ones.",
        )
    elif math.isnan(life) or fixed:
        value, text = (
            "no alarms",
            "This learner does not work out by itself whether the stream drifts.",
        )
    else:
        value, text = "none seen", "No alarm, and no half-life shorter than the stream."
    return _card("Drift", value, text)


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{fmt.count(number)} times")


def _forgetting_card(run: Run) -> Markup:
    life, fixed = typical_half_life(run)
    if math.isnan(life):
        return _card("Half-life", fmt.NOT_DEFINED, "This learner does not say how fast it forgets.")
    if math.isinf(life):
        text = "For most of the stream it did best by forgetting nothing."
        return _card("Median half-life", "never", text if not fixed else "Set to forget nothing.")
    how = "Fixed by the settings" if fixed else "A row counts half after so long"
    if run.timed:
        text = f"{how}; in the unit of time of the settings."
    elif life > run.rows:
        text = f"{how}; the stream has only {fmt.count(run.rows)} rows."
    else:
        share = fmt.percent(life / run.rows, 0 if life > 0.1 * run.rows else 1)
        text = f"{how}: {share} of the stream."
    return _card("Median half-life", f"{fmt.half_life(life)} {life_unit(run)}", text)


def life_unit(run: Run) -> str:
    """What half-lives are counted in."""
    return "units of time" if run.timed else "rows"


def _classes_card(run: Run) -> Markup:
    classes = {new.code for window in run.windows for new in window.new_classes}
    number = max(len(classes), len(run.labels))
    begun = len(run.windows[0].new_classes)
    later = [new for window in run.windows[1:] for new in window.new_classes]
    if not later:
        return _card(
            "Classes", fmt.count(number), "All of them were there from the first window on."
        )
    text = (
        f"{fmt.count(begun)} from the first window on, {fmt.count(len(later))} appeared later; "
        f"the last one at row {fmt.count(later[-1].row)}."
    )
    return _card("Classes", f"{fmt.count(number)}, {fmt.count(len(later))} new", text)


def _calibration_card(run: Run) -> Markup:
    ece = run.total("ece")
    if math.isnan(ece):
        return _card("Calibration", fmt.NOT_DEFINED, "This learner gives no probabilities.")
    sums = sum((w.reliability for w in run.windows if w.reliability is not None), np.zeros((3, 1)))
    count, confidence, right = np.asarray(sums).sum(axis=1)
    lean = (confidence - right) / count if count else 0.0
    if abs(lean) < 0.005:
        text = "On average as sure as it is right."
    else:
        side = "too sure" if lean > 0 else "not sure enough"
        text = f"On average {side}, by {fmt.fixed(100 * abs(lean), 1)} points."
    return _card("Calibration error (ECE)", fmt.percent(ece), text)


def _coverage_card(run: Run) -> Markup:
    coverage = run.total("coverage")
    text = "of the values lay in the central 90% interval that was given before them."
    if math.isnan(coverage):
        text = "This learner gives no intervals."
    return _card("Coverage", fmt.percent(coverage), text)


def _explained_card(run: Run) -> Markup:
    ours, mean = run.total("rmse"), run.total("rmse", "mean")
    value = 1 - (ours / mean) ** 2 if mean > 0 else math.nan
    text = "of the squared error that the running mean leaves is gone."
    return _card("Explained", fmt.percent(value), text)


def _speed_card(run: Run) -> Markup:
    used = run.clock("seconds")
    rate = run.rows / used if used > 0 else math.nan
    memory = fmt.count(run.clock("memory_mb"))
    text = f"{fmt.seconds(used)} of predicting and learning, {memory} MB of memory."
    return _card("Speed", f"{fmt.significant(rate)} rows/s", text)


def _card(label: str, value: str, text: str) -> Markup:
    return tag(
        "div", tag("dt", label), tag("dd", tag("b", value), tag("span", text)), class_="card"
    )


def headline(run: Run) -> Markup:
    """The first screen of the report.

    Parameters
    ----------
    run : Run
        The run.

    Returns
    -------
    Markup
    """
    kind, sentence = verdict(run)
    signs = {"good": "✓", "mixed": "≈", "bad": "✗"}
    metrics = ("accuracy", "log_loss") if run.classification else ("rmse",)
    paragraphs = [_against(run, m) for m in metrics if not math.isnan(run.total(m))]
    both = [_drift_card(run), _forgetting_card(run)]
    if run.classification:
        cards = [*both, _classes_card(run), _calibration_card(run)]
    else:
        cards = [*both, _explained_card(run), _coverage_card(run)]
    sign = tag("span", signs[kind], class_="sign", aria_hidden="true")
    return join(
        [
            _state_banner(run),
            _skipped_banner(run),
            tag("p", sign, sentence, class_=f"verdict {kind}"),
            tag("div", *paragraphs, _repeats(run) if run.classification else None, class_="prose"),
            _scoreboard(run),
            tag("dl", *cards, _speed_card(run), class_="cards"),
        ]
    )
