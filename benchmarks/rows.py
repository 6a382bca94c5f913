"""Time of a row that comes alone, on elec2: python benchmarks/rows.py. Writes its section.

All ways take turns in one process, row by row for a few hundred rows, so that other programs slow
all of them. Peers that are not installed are left out. The times are processor times.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Any

import numpy as np
from page import alone, machine, table, write_section

from kalstream import KalmanClassifier, KalmanRegressor, streams
from kalstream.compat import river as adapters

BEFORE, ROWS, REPEATS = 2000, 500, 7
KINDS: dict[str, dict[str, Any]] = {
    "default: 6 columns, 200 waves": {},
    'features="scaled"': {"features": "scaled"},
    'features="raw"': {"features": "raw"},
}
Step = Callable[[Any, int], None]


def pairs(X: Any, y: Any) -> dict[str, tuple[Callable[[dict[str, Any]], Any], int, Step]]:
    """Ways to predict and learn rows: how to make a learner, rows of a call, and one call."""

    def together(model: Any, i: int, size: int) -> None:
        model.predict_then_learn(X[i : i + size], y[i : i + size])

    def apart(model: Any, i: int) -> None:
        model.predict_proba(X[i : i + 1])
        model.partial_fit(X[i : i + 1], y[i : i + 1])

    def late(model: Any, i: int) -> None:
        model.ask(X[i : i + 1], ids=[i])
        model.tell([i], y[i : i + 1])

    def by_river(model: Any, i: int) -> None:
        model.predict_proba_one(rows[i])
        model.learn_one(rows[i], labels[i])

    names = [f"x{k}" for k in range(X.shape[1])]
    rows, labels = [dict(zip(names, x, strict=True)) for x in X.tolist()], y.tolist()

    def classifier(settings: dict[str, Any]) -> Any:
        return KalmanClassifier(random_state=0, **settings).partial_fit(X[:BEFORE], y[:BEFORE])

    def adapter(settings: dict[str, Any]) -> Any:
        model = adapters.KalmanClassifier(seed=0, **settings)
        for i in range(BEFORE // 10):
            model.learn_one(rows[i], labels[i])
        return model

    return {
        "predict_then_learn, calls of 100": (classifier, 100, lambda m, i: together(m, i, 100)),
        "predict_then_learn, calls of 10": (classifier, 10, lambda m, i: together(m, i, 10)),
        "predict_then_learn": (classifier, 1, lambda m, i: together(m, i, 1)),
        "partial_fit": (classifier, 1, lambda m, i: m.partial_fit(X[i : i + 1], y[i : i + 1])),
        "predict_proba, partial_fit": (classifier, 1, apart),
        "ask, tell": (classifier, 1, late),
        "river's adapter: predict_proba_one, learn_one": (adapter, 1, by_river),
    }


def peers(X: Any, y: Any) -> Iterator[tuple[str, Any, Step]]:
    """Learners of other libraries, trained on the rows before."""
    names = [f"x{k}" for k in range(X.shape[1])]
    rows, labels = [dict(zip(names, x, strict=True)) for x in X.tolist()], y.tolist()

    def step(model: Any, i: int) -> None:
        model.predict_proba_one(rows[i])
        model.learn_one(rows[i], labels[i])

    forest, linear = (
        importlib.import_module(f"river.{name}") for name in ("forest", "linear_model")
    )
    scaler = importlib.import_module("river.preprocessing").StandardScaler
    for name, model in (
        ("river: ARF, 10 trees", forest.ARFClassifier(n_models=10, seed=0)),
        ("river: scaler and logistic regression", scaler() | linear.LogisticRegression()),
    ):
        for i in range(BEFORE):
            step(model, i)
        yield name, model, step
    try:
        moa = importlib.import_module("capymoa.classifier")
        data = importlib.import_module("capymoa.stream").NumpyStream(
            X, y, target_type="categorical"
        )
    except ImportError:
        return
    instances = [data.next_instance() for _ in range(BEFORE + ROWS)]

    def learn(model: Any, i: int) -> None:
        model.predict(instances[i])
        model.train(instances[i])

    for name, kind, settings in (
        ("CapyMOA: ARF, 10 trees", moa.AdaptiveRandomForestClassifier, {"ensemble_size": 10}),
        ("CapyMOA: SAM-kNN", moa.SAMkNN, {}),
    ):
        model = kind(schema=data.get_schema(), **settings)
        for i in range(BEFORE):
            learn(model, i)
        yield name, model, learn


def regression(X: Any) -> dict[str, tuple[Any, int, Step]]:
    """As `pairs`, with values for targets."""
    values = X @ np.arange(1.0, 1.0 + X.shape[1])

    def make() -> Any:
        return KalmanRegressor(random_state=0).fit(X[:BEFORE], values[:BEFORE])

    def step(model: Any, i: int, size: int) -> None:
        model.predict_then_learn(X[i : i + size], values[i : i + size])

    return {
        "KalmanRegressor.predict_then_learn, calls of 100": (make, 100, partial(step, size=100)),
        "KalmanRegressor.predict_then_learn": (make, 1, partial(step, size=1)),
    }


def shortest(ways: dict[str, tuple[Any, int, Step]]) -> dict[str, float]:
    """Microseconds a row of each way; the ways take turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, (make, size, step) in ways.items():
            model = make()
            step(model, BEFORE - size)  # compiles
            start = process_time()
            for i in range(BEFORE, BEFORE + ROWS, size):
                step(model, i)
            times[name].append((process_time() - start) / ROWS * 1e6)
    return {name: min(each) for name, each in times.items()}


@alone
def measured() -> tuple[dict[str, dict[str, float]], dict[str, float], dict[str, float]]:
    """Microseconds a row by kind and way, of a regression, and of the peers."""
    batches = [(batch.rows, batch.targets) for batch in streams.open("elec2").batches()]
    X, y = (np.concatenate(parts)[: BEFORE + ROWS] for parts in zip(*batches, strict=True))
    ways = {
        f"{kind}\t{name}": (lambda make=make, given=given: make(given), size, step)
        for kind, given in KINDS.items()
        for name, (make, size, step) in pairs(X, y).items()
    }
    for name, way in regression(X).items():
        ways[f"regression\t{name}"] = way
    for name, model, step in peers(X, y):
        ways[f"peers\t{name}"] = (lambda model=model: model), 1, step
    by_kind: dict[str, dict[str, float]] = {}
    for name, time in shortest(ways).items():
        kind, way = name.split("\t")
        by_kind.setdefault(kind, {})[way] = time
    return by_kind, by_kind.pop("regression"), by_kind.pop("peers")


def main() -> None:
    """Measure, and write the section."""
    by_kind, values, others = measured()
    ways = list(by_kind[next(iter(KINDS))])
    lines = []
    for way in ways:
        cells = []
        for each in by_kind.values():
            chunked = each["predict_then_learn, calls of 100"]
            cells.append(f"{each[way]:.0f} ({each[way] / chunked:.1f})")
        lines.append([way, *cells])
    rest = [[name, f"{time:.0f}"] for name, time in (values | others).items()]
    body = [
        "## Single rows",
        f"`python benchmarks/rows.py` on {machine()}.",
        table(["a row by", *by_kind], lines),
        table(["learner", "microseconds a row"], rest),
        f"Microseconds of processor time to predict and learn a row of elec2, after {BEFORE:,} "
        f"rows; {ROWS} rows, the shortest of {REPEATS} passes, in which all ways take turns. In "
        "brackets: times a row in calls of 100.",
    ]
    write_section("rows", "\n\n".join(body))


if __name__ == "__main__":
    main()
