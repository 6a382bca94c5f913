"""Late labels on synthetic streams that change, or do not. Writes its section.

    python benchmarks/late_changes.py [--rows N] [--alarms SEEDS]

Each stream has 10,000 rows, six columns and one seed. kalstream by `ask` and `tell` is compared
with the same classifier by `predict_proba` and `partial_fit`, and with the majority, the latter
outside blind stretches: a blind stretch begins with the stream or with a sudden change, and ends at
the row for which 250 labels of the new rule have come. Windows of 250 rows are compared with the
largest class share in the window. At last half of a rule is reversed, or nothing changes, with as
many seeds as ``--alarms`` says, and the drift alarms are counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from delays import BLOCK, DOCS, Table, cell, learned_later, majority, scored
from page import machine, table, wrapped, write_section

from kalstream import KalmanClassifier
from kalstream.evaluate import iter_prequential
from kalstream.streams import ArrayStream

Array = np.ndarray[Any, Any]

DELAYS = (0, 20, 100, 500, 1000, 5000)
ALARM_DELAYS = (100, 500, 1000)
ROWS = 10_000
WINDOW = 250
COLUMNS = 6


# ---- streams: each returns rows (n, 6), labels (n,), and the rows of sudden changes --------


def linear(rng: Any, X: Array, weights: Array, noise: float = 0.3) -> Array:
    """The class with the largest score, with Gumbel noise."""
    return (X @ weights + noise * rng.gumbel(size=(len(X), weights.shape[1]))).argmax(axis=1)


def changed(rng: Any, n: int, k: int, after: Callable[[Array], Array], at: Sequence[float]) -> Any:
    """A linear rule of k classes that changes at these parts of the stream, to and fro."""
    X, weights = rng.normal(size=(n, COLUMNS)), rng.normal(size=(COLUMNS, k))
    both, places = (weights, after(weights)), [int(part * n) for part in at]
    cuts, y = [0, *places, n], np.empty(n, int)
    for number, (a, b) in enumerate(pairwise(cuts)):
        y[a:b] = linear(rng, X[a:b], both[number % 2])
    return X, y, places


def half_reversed(weights: Array) -> Array:
    """Half of the columns count the other way."""
    return np.vstack([weights[:3, ::-1], weights[3:]])


def swinging(rng: Any, n: int, share: Array, distance: float) -> Any:
    """Two Gaussian classes whose shares swing; the rule within a class stays."""
    y = (rng.random(n) < share).astype(int)
    centre = rng.normal(size=COLUMNS) * distance
    return rng.normal(size=(n, COLUMNS)) + np.where(y[:, None] == 1, centre, -centre), y, []


def turning(rng: Any, n: int, period: int) -> Any:
    """A rule that turns."""
    X, angle = rng.normal(size=(n, COLUMNS)), 2.0 * np.pi * np.arange(n) / period
    a, b = rng.normal(size=(2, COLUMNS))
    score = X @ a * np.cos(angle) + X @ b * np.sin(angle) + 0.5 * rng.normal(size=n)
    return X, (score > 0.0).astype(int), []


def runs_of_labels(rng: Any, n: int) -> Any:
    """Three classes that come in runs of about fifty, weakly told by the columns."""
    moves = rng.random(n) > 0.97
    y = rng.integers(3, size=n)[np.maximum.accumulate(np.where(moves, np.arange(n), 0))]
    return rng.normal(size=(n, COLUMNS)) + 0.4 * rng.normal(size=(3, COLUMNS))[y], y, []


def hidden_level(rng: Any, n: int) -> Any:
    """A rule with an offset that no column shows and that changes slowly, as delays of flights."""
    X, level = rng.normal(size=(n, COLUMNS)), np.zeros(n)
    for i in range(1, n):
        level[i] = 0.995 * level[i - 1] + 0.15 * rng.normal()
    score = 0.5 * X @ rng.normal(size=COLUMNS) + level + rng.logistic(size=n)
    return X, (score > 0.8).astype(int), []


STREAMS: dict[str, Callable[[Any, int], Any]] = {
    "rule reversed": lambda rng, n: changed(rng, n, 2, lambda w: w[:, ::-1], [0.5]),
    "half of it reversed": lambda rng, n: changed(rng, n, 2, half_reversed, [0.5]),
    "reversed and back": lambda rng, n: changed(rng, n, 2, lambda w: w[:, ::-1], [0.4, 0.7]),
    "new rule, 3 classes": lambda rng, n: changed(
        rng, n, 3, lambda w: rng.normal(size=w.shape), [0.5]
    ),
    "5 classes permuted": lambda rng, n: changed(rng, n, 5, lambda w: np.roll(w, 1, 1), [0.5]),
    "no change": lambda rng, n: changed(rng, n, 2, lambda w: w, []),
    "chance": lambda rng, n: (rng.normal(size=(n, COLUMNS)), (rng.random(n) < 0.3) * 1, []),
    "shares swing slowly": lambda rng, n: swinging(
        rng, n, 0.5 + 0.4 * np.sin(np.pi * np.arange(n) / 1000), 0.7
    ),
    "shares swing fast": lambda rng, n: swinging(
        rng, n, 0.5 + 0.45 * np.sign(np.sin(np.pi * np.arange(n) / 300)), 0.4
    ),
    "rule turns slowly": lambda rng, n: turning(rng, n, n),
    "rule turns fast": lambda rng, n: turning(rng, n, 400),
    "labels in runs": runs_of_labels,
    "hidden level": hidden_level,
}


# ---- measuring ----------------------------------------------------------------------------


def asked(stream: Table, delay: int) -> tuple[dict[str, Any], Array]:
    """Scores of `ask` and `tell`, and whether each row (n,) was right; NaN where not scored."""
    records = iter_prequential(
        KalmanClassifier(random_state=0),
        ArrayStream(stream.rows, stream.labels),
        delay=delay,
        together=64,
    )
    parts = [record.scored for record in records if record.scored is not None]
    right = np.concatenate([part.codes == part.predicted for part in parts])
    whole = np.full(len(stream.labels), np.nan)
    whole[len(whole) - len(right) :] = right
    return cell(np.concatenate([part.log_prob for part in parts]), right, 0.0), whole


def sighted(starts: Array, size: int, changes: list[int], delay: int) -> Array:
    """Those parts of the stream (so many rows from each start) that are in no blind stretch."""
    stretches = [(at, at + delay + WINDOW) for at in [0, *changes]]
    blind = [(starts < stop) & (starts + size > start) for start, stop in stretches]
    return starts[~np.any(blind, axis=0)]


def below_majority(stream: Table, right: Array, changes: list[int], delay: int) -> str:
    """In how many windows, and of how many, accuracy is clearly below the largest class share.

    By more than three standard errors. Empty if there are no windows.
    """
    found = 0
    starts = sighted(np.arange(0, len(right) - WINDOW + 1, WINDOW), WINDOW, changes, delay)
    for start in starts:
        share = np.bincount(stream.codes[start : start + WINDOW]).max() / WINDOW
        error = np.sqrt(share * (1.0 - share) / WINDOW)
        if right[start : start + WINDOW].mean() < share - 3.0 * error:
            found += 1
    return f"{found} of {len(starts)}" if len(starts) else ""


def ahead(
    one: dict[str, Any], other: dict[str, Any], first: int, changes: list[int], delay: int
) -> tuple[float, float]:
    """How much smaller a log-loss is outside blind stretches, and the standard error.

    Both are from blocks; ``first`` is the first row that was scored. NaN if there are no blocks.
    """
    starts = first + BLOCK * np.arange(one["n"] // BLOCK)
    places = (sighted(starts, BLOCK, changes, delay) - first) // BLOCK
    if len(places) < 2:
        return np.nan, np.nan
    difference = (np.array(other["blocks"]) - np.array(one["blocks"]))[places]
    return difference.mean(), difference.std(ddof=1) / np.sqrt(len(places))


def compared(name: str, rows: int) -> list[list[str]]:
    """A line for each delay."""
    rng = np.random.default_rng(list(STREAMS).index(name))
    X, y, changes = STREAMS[name](rng, rows)
    stream, lines = Table(name, X, np.asarray(y)), []
    later, usual = learned_later(stream, DELAYS), majority(stream, DELAYS)
    for delay in DELAYS:
        own, right = asked(stream, delay)
        others = [scored(stream, delay, made[delay], 0.0) for made in (later, usual)]
        mean, error = ahead(own, others[1], len(y) - own["n"], changes, delay)
        shown = [f"{each['accuracy']:.4f} / {each['log_loss']:.4f}" for each in (own, *others)]
        shown.append("" if np.isnan(mean) else f"{mean:.4f} ± {error:.4f}")
        shown.append(below_majority(stream, right, changes, delay))
        lines.append([name, f"{delay:,}", *shown])
        print(*lines[-1], sep=" | ", flush=True)
    return lines


def against_later(lines: list[list[str]]) -> list[list[str]]:
    """For each stream, how much smaller the log-loss of ask and tell is at each delay but 0.

    Than that of predict, learn later; from the lines of `compared`.
    """
    gaps: dict[str, list[str]] = {}
    for name, delay, own, later, *_ in lines:
        if delay != "0":
            loss, other = (float(each.split(" / ")[1]) for each in (own, later))
            gaps.setdefault(name, []).append(f"{other - loss:+.3f}")
    return [[name, *each] for name, each in gaps.items()]


def alarms(seed: int, delay: int, rows: int, *, changes: bool) -> list[int]:
    """Rows since which a drift alarm was raised."""
    rng = np.random.default_rng(seed)
    at = [0.5] if changes else []
    X, y, _ = changed(rng, rows, 2, half_reversed, at)
    stream, found = ArrayStream(X, y), []
    for record in iter_prequential(
        KalmanClassifier(random_state=0), stream, delay=delay, window=WINDOW, together=64
    ):
        if record.line is not None:
            found += [alarm["row"] for alarm in record.line["drift"]]
    return found


def counted(seeds: int, rows: int) -> list[list[str]]:
    """For each delay: streams in which the change was noticed, and where; false alarms."""
    lines = []
    for delay in ALARM_DELAYS:
        with_change = [alarms(seed, delay, rows, changes=True) for seed in range(seeds)]
        without = [alarms(seed, delay, rows, changes=False) for seed in range(seeds)]
        middle = rows // 2
        late = [
            min(row for row in each if row >= middle) - middle
            for each in with_change
            if any(row >= middle for row in each)
        ]
        false = sum(any(row < middle for row in each) for each in with_change)
        lines.append(
            [
                f"{delay:,}",
                f"{len(late)} of {seeds}",
                f"{np.median(late):.0f} (at most {max(late)})" if late else "",
                f"{false} of {seeds}",
                f"{sum(map(bool, without))} of {seeds}",
            ]
        )
        print(*lines[-1], sep=" | ", flush=True)
    return lines


def main() -> None:
    """Measure all streams and alarms, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of a stream")
    parser.add_argument("--alarms", type=int, default=20, help="seeds of the drift alarms")
    parser.add_argument("--stream", default="", help="only streams whose names contain this text")
    options = parser.parse_args()
    lines = [x for name in STREAMS if options.stream in name for x in compared(name, options.rows)]
    found = counted(options.alarms, options.rows) if options.alarms else []
    methods = "ask and tell", "predict, learn later", "majority"
    parts = [
        f"`python benchmarks/late_changes.py` on {machine()}.",
        table(["stream", *(f"{delay:,} late" for delay in DELAYS[1:])], against_later(lines)),
        "By how much the log-loss of `ask` and `tell` is smaller than that of predict, learn "
        "later. Below 0, predict, learn later is better.",
        table(["stream", "delay", *methods, "ahead of majority", "windows below majority"], lines),
        "Accuracy / log-loss. Ahead of majority: by how much the log-loss of `ask` and `tell` is "
        "smaller, ± its standard error from blocks of 100 rows. Windows: of 250 rows in which they "
        "are less accurate than the largest class share of the window by more than three standard "
        "errors. Both leave out blind stretches, which begin with the stream or with a sudden "
        "change and end at the row for which 250 labels of the new rule have come; nothing is left "
        "of some streams at a delay of 5,000.",
        table(
            ["delay", "noticed", "rows after the change", "false before it", "false without one"],
            found,
        ),
        "Half of the rule is reversed, or nothing changes: drift alarms with as many seeds. The "
        "second column counts rows from the change to the row that the alarm names.",
    ]
    body = "\n\n".join(parts)
    if options.rows == ROWS and options.alarms == 20 and not options.stream:
        write_section("late_changes", f"## Late labels after a change\n\n{body}")
        write_section("late_changes", f"### After a change\n\n{body}", DOCS)
    else:  # a trial
        print(wrapped(body))


if __name__ == "__main__":
    main()
