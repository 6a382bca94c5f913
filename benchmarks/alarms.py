"""False alarms on shuffled tables and heavy tails, and changes of a regression. Writes its section.

    KALSTREAM_DATA=FOLDER python benchmarks/alarms.py [--jobs 2]

A shuffled table has no change, so every alarm is false. benchmarks/peers/detect.py has the known
changes of a classification.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

import numpy as np
from page import machine, table, write_section
from threadpoolctl import threadpool_limits

from data import name_of, read, stream_files
from kalstream import KalmanClassifier, KalmanRegressor

SEEDS = (0, 1, 2)
ROWS = 40_000
BLOCK = 10  # rows of a call; two alarms within one call count as one
TABLES = ("elec2", "weather", "covtype")
TAILS = ("normal", "Student t, 3", "Student t, 2", "log-normal")
KINDS = ("none", "abrupt", "gradual", "recurring")
SIZES = (5, 20)
CHANGING, EVERY, SLOW, IN_TIME = 10_000, 2500, 2000, 1500  # as in benchmarks/peers/detect.py
Stream = tuple[np.ndarray, np.ndarray]


def shuffled(name: str, seed: int) -> Stream:
    """The first rows of a table, in random order."""
    path = next(path for path in stream_files() if name_of(path) == name)
    stream = read(path, ROWS)
    order = np.random.default_rng(seed).permutation(len(stream.rows))
    return stream.rows[order], stream.targets[order]


def noise(tail: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Noise (n,) with a tail of this kind."""
    if tail.startswith("Student"):
        return rng.standard_t(int(tail[-1]), n)
    return rng.standard_normal(n)


def fixed(tail: str, seed: int) -> Stream:
    """Targets of a linear rule that stays the same."""
    rng = np.random.default_rng([seed, TAILS.index(tail)])
    rows, rule = rng.standard_normal((ROWS, 5)), rng.standard_normal(5)
    if tail == "log-normal":
        return rows, np.exp(0.5 * rows @ rule + noise(tail, ROWS, rng))
    return rows, rows @ rule + noise(tail, ROWS, rng)


def changing(kind: str, tail: str, size: int, seed: int) -> Stream:
    """Targets of a linear rule that changes, every 2500 rows or once within 2000 rows."""
    rng = np.random.default_rng([seed, size, KINDS.index(kind), TAILS.index(tail)])
    rows, when = rng.standard_normal((CHANGING, size)), np.arange(CHANGING)
    rules = rng.standard_normal((CHANGING // EVERY, size)) / np.sqrt(size)
    rule = when // EVERY if kind == "abrupt" else when // EVERY % 2
    if kind == "gradual":
        rule = (rng.random(CHANGING) < (when - EVERY) / SLOW).astype(int)
    rule = rule * (kind != "none")
    return rows, np.einsum("nd,nd->n", rows, rules[rule]) + 0.5 * noise(tail, CHANGING, rng)


def changes_of(kind: str) -> list[int]:
    """Rows at which a rule changes."""
    known = {"none": [], "gradual": [EVERY]}
    return known.get(kind, list(range(EVERY, CHANGING, EVERY)))


def alarms_of(call: tuple[str, str, int, int]) -> tuple[int, list[int]]:
    """Number of rows of a stream, and the rows at which alarms began."""
    what, name, size, seed = call
    if what in KINDS:
        (rows, targets), model = (
            changing(what, name, size, seed),
            KalmanRegressor(features="scaled"),
        )
    elif what == "fixed":
        (rows, targets), model = fixed(name, seed), KalmanRegressor(random_state=seed)
    else:
        (rows, targets), model = shuffled(name, seed), KalmanClassifier(random_state=seed)
    began: list[int] = []
    with threadpool_limits(1):
        for start in range(0, len(rows), BLOCK):
            part = slice(start, start + BLOCK)
            report = model.partial_fit(rows[part], targets[part]).drift()
            if report.since is not None and report.since not in began[-1:]:
                began.append(report.since)
    print(*call, began[:10], flush=True)
    return len(rows), began


Found = dict[tuple[str, str, int, int], tuple[int, list[int]]]


def false_lines(found: Found, what: str, names: tuple[str, ...]) -> list[list[str]]:
    """Lines of the table of false alarms."""
    lines = []
    for name in names:
        mine = [found[call] for call in found if call[:2] == (what, name)]
        if mine:
            each = [1e4 * len(began) / n for n, began in mine]
            word = "shuffled table" if what == "shuffled" else "linear rule"
            lines.append([word, name, f"{np.mean(each):.2f}", f"{max(each):.2f}"])
    return lines


def change_line(found: Found, kind: str, tail: str) -> list[str]:
    """A line of the table of known changes."""
    delays, false, n, changes = [], 0, 0, changes_of(kind)
    for call, (rows, began) in found.items():
        if call[:2] != (kind, tail):
            continue
        n, false = n + rows, false + len(began)
        for change in changes:
            until = change + IN_TIME + (SLOW if kind == "gradual" else 0)
            mine = [row for row in began if change <= row < until]
            false -= len(mine)
            delays += [row - change for row in mine[:1] if row < change + IN_TIME]
    possible = len(changes) * len(SIZES) * len(SEEDS)
    noticed = [f"{len(delays)} of {possible}", f"{np.median(delays):.0f}"] if changes else ["", ""]
    return [kind, tail, *noticed, f"{1e4 * false / n:.1f}"]


def main() -> None:
    """Measure all streams and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    jobs = parser.parse_args().jobs
    here = set(map(name_of, stream_files()))
    todo = [("shuffled", name, 0, seed) for name in TABLES if name in here for seed in SEEDS]
    todo += [("fixed", tail, 5, seed) for tail in TAILS for seed in SEEDS]
    known = product(KINDS, TAILS[:2], SIZES, SEEDS)
    todo += list(known)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        found = dict(zip(todo, pool.map(alarms_of, todo), strict=True))
    false = [*false_lines(found, "shuffled", TABLES), *false_lines(found, "fixed", TAILS)]
    changes = [change_line(found, kind, tail) for kind, tail in product(KINDS, TAILS[:2])]
    body = [
        "## Drift alarms",
        f"`python benchmarks/alarms.py` on {machine()}.",
        table(["stream", "table or noise", "alarms in 10,000 rows", "most of three seeds"], false),
        "Streams without a change, so that every alarm is false: tables whose first 40,000 rows "
        "are in random order, under `KalmanClassifier()`, and 40,000 rows of a linear rule with "
        "noise of several kinds, under `KalmanRegressor()`. Log-normal targets are the exponential "
        "of the rule and normal noise.",
        table(
            ["change", "noise", "detected", "median delay", "false alarms in 10,000 rows"], changes
        ),
        "A linear rule of 5 and of 20 columns, three seeds each, under "
        '`KalmanRegressor(features="scaled")`. Abrupt and recurring changes come every 2,500 rows, '
        "a gradual one takes 2,000 rows. What counts as detected and as false, and the changes of "
        "a classification, are on [the page with the peers]"
        "(../docs/benchmarks.md#detecting-known-changes).",
    ]
    write_section("alarms", "\n\n".join(body))


if __name__ == "__main__":
    main()
