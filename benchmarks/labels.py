"""Time to learn rows that each bring a new label: python benchmarks/labels.py [--labels 20000].

Writes its section.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np
from page import alone, machine, table, write_section

from kalstream import KalmanClassifier

# likelihood, and rows of a call; 0 stands for one call with all rows
CASES = (("softmax", 0), ("softmax", 100), ("softmax", 1), ("onehot", 0), ("onehot", 1))


@alone
def seconds(n: int, likelihood: str, chunk: int) -> tuple[float, float]:
    """Time to learn n / 2 new labels, and n new labels; the shorter of two."""
    rows = np.random.default_rng(0).standard_normal((n, 2))
    times: dict[int, list[float]] = {100: [], n // 2: [], n: []}  # the first is the warm-up
    for _ in range(2):
        for size, measured in times.items():
            model = KalmanClassifier(1.0, "raw", likelihood=likelihood)
            step, start = chunk or size, perf_counter()
            for i in range(0, size, step):
                stop = min(size, i + step)
                model.partial_fit(rows[i:stop], np.arange(i, stop))
            measured.append(perf_counter() - start)
    return min(times[n // 2]), min(times[n])


def main() -> None:
    """Measure all cases, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=20_000)
    n = parser.parse_args().labels
    lines = []
    for likelihood, chunk in CASES:
        half, whole = seconds(n, likelihood, chunk)
        ratio = f"**{whole / half:.2f}** (target 4.4)"
        lines.append([likelihood, str(chunk or "all"), f"{half:.1f} s", f"{whole:.1f} s", ratio])
        print(lines[-1], flush=True)
    body = [
        "## New labels",
        f"`python benchmarks/labels.py` on {machine()}.",
        table(["likelihood", "rows a call", f"{n // 2:,} labels", f"{n:,} labels", "ratio"], lines),
        "Every row brings a new label: two columns, `KalmanClassifier(1.0, 'raw')`. A row costs as "
        "many operations as there are labels, so twice as many labels cost four times as much at "
        "best.",
    ]
    write_section("labels", "\n\n".join(body))


if __name__ == "__main__":
    main()
