"""Results of short runs as flat dictionaries of numbers; no private name is used.

Times, sizes and words are left out. A change of structure must not change the other numbers.
"""

import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kalstream import KalmanClassifier, KalmanRegressor

ROOT = Path(__file__).parents[2]
SAVED = ROOT / "tests" / "data"
Numbers = dict[str, np.ndarray]

# These differ between two equal runs.
CLOCKS = {"clock", "seconds", "at", "wall_seconds", "version", "run", "command", "memory_mb"}


def packaged(name: str, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    path = ROOT / f"src/kalstream/streams/data/{name}.csv.gz"
    table = np.loadtxt(path, delimiter=",", skiprows=1, max_rows=n_rows)
    return table[:, :-1], table[:, -1].astype(int)


def blobs(n_rows: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    y = rng.integers(0, 1 + np.arange(n_rows) * n_classes // n_rows)
    return rng.standard_normal((n_rows, 4)) + np.eye(n_classes, 4)[y] * 2.0, y


def learned(model: Any, X: np.ndarray, y: np.ndarray, **more: np.ndarray) -> Numbers:
    """Learn rows in calls of all sizes, with and without predictions; return all results."""
    n, start, size, parts = len(X), 0, 1, []
    while start < n:
        part = slice(start, start + size)
        extra = {name: values[part] for name, values in more.items()}
        if size % 3:
            parts.append(model.predict_then_learn(X[part], y[part], **extra))
        else:
            model.partial_fit(X[part], y[part], **extra)
        start, size = part.stop, size % 70 + 1 if start > 40 else 1
    return {"width": np.array([len(parts)]), **flattened(parts, "p"), **attributes(model, X[-50:])}


def attributes(model: Any, X: np.ndarray) -> Numbers:
    drift = model.drift() if model.forgetting in ("mixture", "learned") else ()
    names = ("confidence", "peak", "alarms", "half_life", "usual_half_life")
    values = {
        "coef": model.coef_,
        "intercept": model.intercept_,
        "cov": model.cov_,
        "half_life": model.half_life_,
        "half_life_weights": list(model.half_life_weights_.items()),
        "calibration": model.calibration_,
        "filters": [(f.half_life, f.gamma, f.weight) for f in model.filters_],
        "means": [f.posterior.mean for f in model.filters_],
        "health": [getattr(model.health_, name) for name in ("nis", "asymmetry")],
        "drift": [float(getattr(drift, name)) for name in names] if drift else [],
        "uncertainty": model.uncertainty(X),
        "novel": model.is_novel(X, factor=1.2),
        "nbytes": model.nbytes_,
    }
    if isinstance(model, KalmanClassifier):
        values |= {"proba": model.predict_proba(X), "decision": model.decision_function(X)}
    else:
        mean, std = model.predict(X, return_std=True)
        values |= {"mean": mean, "std": std}
    return flattened(values)


def flattened(value: Any, path: str = "") -> Numbers:
    """Numbers of nested lists, dictionaries and arrays, by their path."""
    if isinstance(value, dict):
        pairs = [(str(key), part) for key, part in value.items() if key not in CLOCKS]
    elif isinstance(value, list | tuple):
        try:
            array = np.array([float(each) for each in value])
        except (TypeError, ValueError):
            pairs = [(str(i), part) for i, part in enumerate(value)]
        else:
            return {path: array}
    else:
        if isinstance(value, str):
            value = float("inf") if value == "inf" else None
        if value is None:
            return {}
        return {path: np.asarray(value, dtype=np.float64)}
    numbers: Numbers = {}
    for key, part in pairs:
        numbers |= flattened(part, f"{path}.{key}" if path else key)
    return numbers


def packed(numbers: Numbers) -> Numbers:
    """One array of all numbers, and their names and shapes, so that the file is small."""
    about = [[name, *array.shape] for name, array in numbers.items()]
    flat = [np.asarray(array, np.float64).ravel() for array in numbers.values()]
    return {"about": np.array(json.dumps(about)), "values": np.concatenate(flat)}


def unpacked(file: Any) -> Numbers:
    """Inverse of `packed`."""
    values, start, numbers = file["values"], 0, {}
    for name, *shape in json.loads(str(file["about"])):
        stop = start + int(np.prod(shape))
        numbers[name] = values[start:stop].reshape(shape)
        start = stop
    return numbers


def numbers_of(page: str) -> np.ndarray:
    """All numbers of a page of the report, including those of its pictures."""
    page = re.sub(r"<(style|script).*?</\1>|#[0-9a-f]{3,6}\b", " ", page, flags=re.DOTALL)
    texts = re.findall(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?(?![\w])", page)
    return np.array([float(each.replace(",", "")) for each in texts])


# ---- estimators ---------------------------------------------------------------------------


class Before(KalmanClassifier):
    """The classifier as it was: before the softmax, and before experts."""

    _SCALE_HALF_LIFE = math.inf


OneHot = partial(Before, likelihood="onehot", experts=[])


def elec2_mixture() -> Numbers:
    return learned(OneHot(random_state=0, n_components=100), *packaged("elec2", 1500))


def elec2_default(**more: Any) -> Numbers:
    model = KalmanClassifier(random_state=0, n_components=100, **more)
    return learned(model, *packaged("elec2", 1500))


def blobs_softmax() -> Numbers:
    X, y = blobs(400, 12)
    model = KalmanClassifier(0.99, "scaled", likelihood="softmax", class_weight="balanced")
    return learned(model, X, y)


def elec2_learned() -> Numbers:
    return learned(OneHot("learned", random_state=0, n_components=50), *packaged("elec2", 900))


def elec2_fixed() -> Numbers:
    return learned(OneHot(0.995, "scaled"), *packaged("elec2", 900))


def elec2_chunks() -> Numbers:
    return learned(
        OneHot(transition="chunk", n_components=50, random_state=0),
        *packaged("elec2", 900),
    )


def weather_mixture() -> Numbers:
    model = OneHot(class_weight="balanced", n_components=60, random_state=1)
    X, y = packaged("weather", 1500)
    weights = np.random.default_rng(3).integers(0, 3, len(X)).astype(float)
    return learned(model, X, y, sample_weight=weights)


def weather_by_time() -> Numbers:
    X, y = packaged("weather", 900)
    times = np.cumsum(np.random.default_rng(5).exponential(1.0, len(X)))
    return learned(OneHot(features="raw", stacking=False), X, y, time=times)


def growing_classes() -> Numbers:
    X, y = blobs(500, 70)
    model = OneHot(n_components=20, random_state=2)
    numbers = learned(model, X, y)
    model.retire_class(3).partial_fit(X[:40], y[:40])
    return numbers | flattened({"retired": model.predict_proba(X[:40])})


def series(forgetting: Any, **more: Any) -> Numbers:
    rng = np.random.default_rng(11)
    X = rng.standard_normal((700, 3))
    y = X[:, 0] * np.where(np.arange(700) < 300, 5.0, -5.0) + rng.standard_normal(700) + 40.0
    y[::50] = np.nan
    return learned(KalmanRegressor(forgetting, random_state=0, n_components=50, **more), X, y)


def river_adapter() -> Numbers:
    from kalstream.compat.river import KalmanClassifier as Classifier
    from kalstream.compat.river import KalmanRegressor as Regressor

    X, y = packaged("elec2", 250)
    classifier = Classifier(seed=0, likelihood="onehot", experts=[])
    regressor = Regressor(seed=0)
    parts = []
    for i, (x, label) in enumerate(zip(X, y, strict=True)):
        row = {f"x{j}": value for j, value in enumerate(x) if i > 100 or j < 4}
        parts.append([*classifier.predict_proba_one(row).values(), regressor.predict_one(row)])
        classifier.learn_one(row, int(label))
        regressor.learn_one(row, float(x[1] + x[3]))
    return flattened(parts)


def saved_files() -> Numbers:
    """Models of every file format, which continue to learn."""
    numbers: Numbers = {}
    rng = np.random.default_rng(0)
    for path in sorted(SAVED.glob("*-format-[123].safetensors")):
        for cls in (KalmanClassifier, KalmanRegressor):
            try:
                model = cls.load(path)
            except Exception as error:
                if "not a" not in str(error):
                    raise
                continue
            X = rng.standard_normal((60, model.n_features_in_))
            before = {"before": model.predict_proba(X)} if cls is KalmanClassifier else {}
            labels = model.classes_[rng.integers(0, len(model.classes_), 60)] if before else X[:, 0]
            timed = "given in earlier calls" in error_without_times(model, X, labels)
            model.partial_fit(X, labels, time=2e4 + np.arange(60.0) if timed else None)
            numbers |= flattened({path.stem: {**before, **attributes(model, X)}})
    return numbers


def error_without_times(model: Any, X: np.ndarray, y: np.ndarray) -> str:
    """Error of a copy of the model for rows without times, or an empty string."""
    try:
        model.snapshot().partial_fit(X, y)
    except ValueError as error:
        return str(error)
    return ""


# ---- command line -------------------------------------------------------------------------


def kalstream(folder: Path, *args: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "kalstream", *args]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"kalstream {' '.join(args)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def run_folder(folder: Path) -> Numbers:
    numbers: Numbers = {}
    for name in ("metrics.jsonl", "predictions.jsonl"):
        lines = (folder / name).read_text().splitlines()
        numbers |= flattened([json.loads(line) for line in lines], name)
    return numbers


def a_run(*args: str) -> Numbers:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kalstream(folder, "run", *args, "--predictions", "--out", "run")
        return run_folder(folder / "run")


def reports() -> Numbers:
    """Pages of saved runs, as numbers, and probabilities of a saved model."""
    with tempfile.TemporaryDirectory() as name:
        folder, runs = Path(name), SAVED / "run-format-1"
        pages = {}
        for each in ("ended", "limited", "stopped"):
            kalstream(folder, "report", str(runs / each), "--out", f"{each}.html")
            pages[each] = numbers_of((folder / f"{each}.html").read_text())
        for name, forgetting in (("a", "mixture"), ("b", "0.99")):
            shape = "--limit", "400", "--features", "scaled", "--forgetting", forgetting
            shape = *shape, "--likelihood", "onehot"
            kalstream(folder, "run", "elec2", *shape, "--out", name)
        pages["both"] = numbers_of(kalstream(folder, "compare", "a", "b", "--out", "both.html"))
        table = kalstream(folder, "predict", str(runs / "ended"), str(runs / "data.csv"))
        about = json.loads(kalstream(folder, "describe", str(runs / "ended"), "--json"))
        return flattened({"pages": pages, "table": list(cells(table)), "about": about})


def cells(table: str) -> Iterator[list[float]]:
    for line in io.StringIO(table).readlines()[1:]:
        yield [float(cell) for cell in line.split(",")[2:]]


def paper(name: str) -> Numbers:
    with tempfile.TemporaryDirectory() as folder:
        kalstream(Path(folder), "paper", name, "--quick", "--out", "p")
        result = json.loads((Path(folder) / "p" / f"{name}.json").read_text())
        return flattened(result)


CASES: dict[str, Callable[[], Numbers]] = {
    "elec2-mixture": elec2_mixture,
    "elec2-default": elec2_default,
    "elec2-filters": lambda: elec2_default(experts=[]),
    "blobs-softmax": blobs_softmax,
    "elec2-learned": elec2_learned,
    "elec2-fixed": elec2_fixed,
    "elec2-chunks": elec2_chunks,
    "weather-mixture": weather_mixture,
    "weather-by-time": weather_by_time,
    "growing-classes": growing_classes,
    "series-mixture": lambda: series("mixture"),
    "series-learned": lambda: series("learned", noise_var=1.0),
    "series-fixed": lambda: series(0.99),
    "river": river_adapter,
    "saved-files": saved_files,
    "run-elec2": lambda: a_run(
        *("elec2", "--limit", "700", "--delay", "5", "--chunk", "3", "--likelihood", "onehot")
    ),
    "run-weather": lambda: a_run(
        *("weather", "--limit", "700", "--features", "scaled", "--likelihood", "onehot")
    ),
    "run-series": lambda: a_run("series", "--limit", "700"),
    "reports": reports,
    "paper-figure1": lambda: paper("figure1"),
}
# Computed by torch in float32: equal on one machine, but not on others.
LOCAL: dict[str, Callable[[], Numbers]] = {
    "paper-table1": lambda: paper("table1"),
    "paper-initialisation": lambda: paper("initialisation"),
}
