"""Time to save and load a model while rows wait: python benchmarks/waiting.py [--rows 1000000].

Writes its section.
"""

from __future__ import annotations

import argparse
from hashlib import md5
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from page import alone, machine, table, write_section

from kalstream import KalmanClassifier

ASKED = 10_000  # rows of a call


@alone
def measured(n: int) -> tuple[float, float, float]:
    """Seconds to save and to load n rows that wait, and bytes of the file."""
    rng = np.random.default_rng(0)
    model = KalmanClassifier(max_waiting=n)
    model.partial_fit(rng.normal(size=(500, 6)), rng.integers(0, 2, 500))
    for start in range(0, n, ASKED):
        ids = [md5(b"%d" % k).hexdigest() for k in range(start, min(n, start + ASKED))]
        model.ask(rng.normal(size=(len(ids), 6)), ids)
    with TemporaryDirectory() as folder:
        path, times = Path(folder) / "model.safetensors", [perf_counter()]
        model.save(path)
        times.append(perf_counter())
        KalmanClassifier.load(path)
        times.append(perf_counter())
        return times[1] - times[0], times[2] - times[1], path.stat().st_size


def main() -> None:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    n = parser.parse_args().rows
    save, load, size = measured(n)
    cells = [f"{n:,}", f"**{save:.1f} s** (target 10)", f"**{load:.1f} s** (target 10)"]
    body = [
        "## Rows that wait",
        f"`python benchmarks/waiting.py` on {machine()}.",
        table(["rows", "save", "load", "file"], [[*cells, f"{size / 1e6:.0f} MB"]]),
        "`KalmanClassifier()` after 500 labels of two classes; rows have six columns and "
        "ids of 32 characters.",
    ]
    write_section("waiting", "\n\n".join(body))


if __name__ == "__main__":
    main()
