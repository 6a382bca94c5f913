"""`kalstream run` on all of elec2, and on millions of rows from a folder. Writes its section.

The folder is generated: ten numbers a row, and two labels by a rule that changes. `--rows` sets the
number of rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from page import machine, table, write_section

ROWS_PER_FILE = 100_000


def generate(folder: Path, rows: int) -> None:
    """Write Parquet files of ten numbers and a label; the rule changes from file to file."""
    rng = np.random.default_rng(0)
    rule = rng.standard_normal(10)
    folder.mkdir()
    for number in range(-(-rows // ROWS_PER_FILE)):
        n = min(ROWS_PER_FILE, rows - number * ROWS_PER_FILE)
        x = rng.standard_normal((n, 10)).astype(np.float32)
        rule += 0.3 * rng.standard_normal(10)
        label = np.where(x @ rule + 0.5 * rng.standard_normal(n) > 0.0, "yes", "no")
        columns = {f"x{k}": x[:, k] for k in range(10)}
        pa.parquet.write_table(
            pa.table({**columns, "label": label}), folder / f"part-{number}.parquet"
        )


def run(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run in a new process with one thread; return the lines of metrics.jsonl."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "kalstream", "run", *arguments, "--out", str(folder)]
    subprocess.run(command, check=True, env=environment)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def row(name: str, lines: list[dict[str, Any]]) -> list[str]:
    """Row of the table: scores, time and memory of a run, early and late."""
    *windows, end = lines
    # The first windows include the time to compile or load the kernels.
    part = max(1, len(windows) // 10)
    first, last = windows[part : 3 * part], windows[-2 * part :]
    speeds = [np.median([w["clock"]["rows_per_second"] for w in each]) for each in (first, last)]
    memory = [each[0]["clock"]["memory_mb"] for each in (first, windows[-1:])]
    clock, total, no_change = end["clock"], end["total"], end["baselines"]["no_change"]
    return [
        name,
        f"{end['row']:,}",
        f"{total['accuracy']:.4f} / {total['log_loss']:.4f}",
        f"{no_change['accuracy']:.4f} / {no_change['log_loss']:.4f}",
        f"{clock['seconds']:.1f} s",
        f"{clock['wall_seconds']:.1f} s",
        f"{speeds[0]:,.0f} / {speeds[1]:,.0f}",
        f"{memory[0]:.0f} / {memory[1]:.0f}",
        f"{clock['memory_mb']:.0f}",
    ]


def main() -> None:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows = parser.parse_args().rows
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run(folder / "warm", "--limit", "2000")
        tables = [row("elec2, one at a time", run(folder / "elec2"))]
        generate(folder / "parts", rows)
        big = run(folder / "big", str(folder / "parts"), "--target", "label", "--features", "raw")
        tables.append(row("Parquet folder, raw features", big))
    header = [
        *("run", "rows", "accuracy / log-loss", "no-change", "predict and learn", "whole run"),
        *("rows/s early / late", "MB early / late", "largest MB"),
    ]
    body = [
        "## Runs",
        f"`python benchmarks/run.py --rows {rows}` on {machine()}.",
        table(header, tables),
        "Targets: predict and learn elec2 in less than 15 s with constant memory; ten million rows "
        "below 1 GB at constant speed. Speeds are medians over windows: early is the second and "
        "third tenth of the run, late the last two tenths.",
    ]
    write_section("run", "\n\n".join(body))


if __name__ == "__main__":
    main()
