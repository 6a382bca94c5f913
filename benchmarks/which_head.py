"""Each head by the recipe of the guide, on images, texts and a table. Writes its section.

The learners are those of examples/heads.py. Digits are those of this example, texts those of
examples/texts.py, and the table is the packaged stream elec2.
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page import machine, table, write_section

from data import read
from kalstream.streams.packaged import path_of

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import heads
import texts

SEEDS = (0, 1, 2)
ROWS = {"digits": 3000, "texts": 2000, "elec2": 4000}
CLASSES = {"digits": 10, "texts": len(texts.AREAS), "elec2": 2}


@cache
def stream(name: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (n, d) and labels (n,) of a stream."""
    if name == "digits":
        return heads.stream(ROWS[name], seed)
    if name == "texts":
        words, labels, _ = texts.stream(seed)
        return texts.hashed(words[: ROWS[name]]), torch.from_numpy(labels[: ROWS[name]])
    whole = read(path_of(name), ROWS[name])
    labels = np.unique(whole.targets, return_inverse=True)[1]
    return torch.from_numpy(whole.rows).float(), torch.from_numpy(labels)


def scores(learner: str, name: str) -> list[tuple[float, float]]:
    """Accuracy and log-loss for each seed."""
    each = []
    for seed in SEEDS:
        X, y = stream(name, seed)
        log_prob, right = heads.steps(learner, X, y, CLASSES[name], seed)
        each.append((float(right.mean()), -float(log_prob.mean())))
    return each


def line(learner: str) -> list[Any]:
    """The learner and its cells: means over seeds, and the lowest accuracy."""
    cells = [learner]
    for name in ROWS:
        accuracy, log_loss = np.array(scores(learner, name)).T
        cells.append(f"{accuracy.mean():.3f} ({accuracy.min():.3f}) / {log_loss.mean():.3f}")
    print(cells, flush=True)
    return cells


def main() -> None:
    """Measure and write the section."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    body = [
        "## Heads",
        f"`python benchmarks/which_head.py` on {machine()}, torch {torch.__version__}.",
        table(
            ["", *(f"{name}, {n:,} rows" for name, n in ROWS.items())],
            [line(learner) for learner in heads.LEARNERS],
        ),
        f"Mean accuracy (lowest) / mean log-loss over seeds {', '.join(map(str, SEEDS))}, in "
        f"chunks of {heads.CHUNK}, each predicted before it is learned. Digits turn in the middle, "
        "the words of texts change. All heads have the same network: one layer of "
        f"{heads.FEATURES} features, and a norm; `OnlineLearner`, published, has no norm.",
    ]
    write_section("heads", "\n\n".join(body))


if __name__ == "__main__":
    main()
