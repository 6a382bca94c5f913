"""The learner against the baselines: differences, paired tests, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kalstream.evaluate.compare import LEVEL, paired_test
from kalstream.evaluate.metrics import METRICS, Show, shown
from kalstream.report import format as fmt
from kalstream.report.elements import baseline_name
from kalstream.report.read import NOT_SCORED, FloatArray, RunRecord, window_lines

_MEANING = {
    "no_change": "repeating the last {target}",
    "majority": "predicting the most frequent label so far",
    "mean": "predicting the mean so far",
}


def baseline_meaning(run: RunRecord, key: str) -> str:
    """Description of a baseline, to be used as a noun."""
    target = "label" if run.classification else "value"
    return _MEANING.get(key, baseline_name(key)).format(target=target)


@dataclass(frozen=True)
class Lead:
    """Difference between a run and a baseline in one metric.

    Attributes
    ----------
    baseline : str
        The baseline, as in the files.
    ours, theirs : float
        The metric of both over the whole run.
    gain : float
        Their difference, positive where the run is better.
    noise : float
        Half the width of the 95% confidence interval of the difference; 0 with too few windows.
    p_value : float
        Of the paired test that compares runs; 0 with too few windows.
    ahead : float
        Share of the windows in which the run is better.
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
        """The run ``"beats"``, ``"is as good as"`` or ``"is worse than"`` the baseline."""
        rounding = 1e-9 * max(abs(self.ours), abs(self.theirs), 1e-3)
        if self.p_value >= LEVEL or abs(self.gain) <= rounding:
            return "is as good as"
        return "beats" if self.gain > 0 else "is worse than"


def leads(run: RunRecord, metric: str) -> list[Lead]:
    """Differences between a run and each baseline in one metric.

    Parameters
    ----------
    run : RunRecord
    metric : str
        Name of a metric of `METRICS`.

    Returns
    -------
    list of Lead
        One for each baseline that has the metric; others are left out.
    """
    about = METRICS[metric]
    made = []
    for baseline in run.baselines:
        ours, theirs = run.total(metric), run.total(metric, baseline)
        if math.isnan(ours) or math.isnan(theirs):
            continue
        pair = run.column(f"window.{metric}"), run.column(f"{baseline}.window.{metric}")
        ahead = about.merit(pair[0]) - about.merit(pair[1])
        known = ahead[np.isfinite(ahead)]
        share = float(np.mean(known > 0)) if known.size else math.nan
        if about.average == "root" and ours + theirs > 0:
            # the difference of two roots is not a mean over rows: linearise it about the totals
            pair = pair[0] ** 2 / (ours + theirs), pair[1] ** 2 / (ours + theirs)
        noise, p_value = _tested(run, metric, *pair)
        gain = about.merit(ours) - about.merit(theirs)
        made.append(Lead(baseline, ours, theirs, gain, noise, p_value, share))
    return made


def _tested(
    run: RunRecord, metric: str, ours: FloatArray, theirs: FloatArray
) -> tuple[float, float]:
    """Margin and p-value of the paired test of two runs; 0 with too few windows."""
    if np.count_nonzero(np.isfinite(ours) & np.isfinite(theirs) & (run.scored > 0)) < 2:
        return 0.0, 0.0
    one, two = (window_lines(run, metric, values) for values in (ours, theirs))
    test = paired_test(one, two, metric)
    return test.margin, test.p_value


def verdict(run: RunRecord) -> tuple[str, str]:
    """The verdict against the baselines.

    Returns
    -------
    kind : str
        ``"good"``: better than every baseline in every metric; ``"bad"``: worse than a baseline in
        some metric; ``"mixed"``: anything else.
    sentence : str
        The same in words.
    """
    if not run.n:
        return "mixed", NOT_SCORED
    by_metric = {metric.title: leads(run, metric.name) for metric in shown(run.task, Show.VERDICT)}
    by_metric = {title: differences for title, differences in by_metric.items() if differences}
    if not by_metric:
        return "mixed", "The files hold no baselines to compare it with."
    clauses: dict[str, list[str]] = {}
    for title, differences in by_metric.items():
        # metrics with the same result share a clause
        clauses.setdefault(_clause(run, differences, named=False), []).append(title)
    parts = []
    for i, (clause, titles) in enumerate(clauses.items()):
        text = clause if i == 0 else _clause(run, by_metric[titles[0]], named=True)
        parts.append(f"in {fmt.listed(titles)} it {text}")
    verdicts = {lead.verdict for differences in by_metric.values() for lead in differences}
    kind = "good" if verdicts == {"beats"} else "bad" if "is worse than" in verdicts else "mixed"
    sentence = "; ".join(parts) + "."
    return kind, sentence[0].upper() + sentence[1:]


def _clause(run: RunRecord, differences: Sequence[Lead], *, named: bool) -> str:
    """Which baselines the run beats; `named`: an earlier clause has named the baselines."""
    by_verdict: dict[str, list[str]] = {}
    for lead in differences:
        by_verdict.setdefault(lead.verdict, []).append(baseline_meaning(run, lead.baseline))
    if len(differences) == 2 and len(by_verdict) == 1:
        verdict, names = next(iter(by_verdict.items()))
        clause = "beats neither" if verdict == "is worse than" else f"{verdict} both"
        if named:
            return clause
        plural = "s" if clause.endswith("both") else ""
        return f"{clause} baseline{plural} ({', '.join(names)})"
    order = [key for key in ("beats", "is as good as", "is worse than") if key in by_verdict]
    return fmt.listed([f"{key} {fmt.listed(by_verdict[key])}" for key in order], "but")
