"""Choosing by code length: which settings give the labels of the weather the most probability.

The stream has 50 years of one station: eight measurements of each day, and whether it rained. Every
day is predicted before it is learned, so the sum of the log probabilities judges honestly, and no
days are held out. Minus the sum is a code length: the bits that are needed to send all labels.

The example prints the bits and the accuracy of each candidate, best first, and how many times as
probable the labels are by the best one as by the next.
"""

from __future__ import annotations

import argparse
from math import log

from kalstream import KalmanClassifier
from kalstream.evaluate import select
from kalstream.streams import TableStream
from kalstream.streams.packaged import path_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    candidates = {
        "default": KalmanClassifier(random_state=options.seed),
        "linear features": KalmanClassifier(features="scaled"),
        "preset fast": KalmanClassifier(preset="fast", random_state=options.seed),
        "half-life of 69 days": KalmanClassifier(0.99, random_state=options.seed),
        "nothing forgotten": KalmanClassifier(1.0, random_state=options.seed),
    }
    chosen = select(candidates, TableStream(path_of("weather"), "target"), limit=options.rows)
    print(f"{options.rows} days:{'bits':>20}  accuracy")
    for row in chosen.table:
        print(f"{row['name']:22}{row['code_length']:9.0f}{row['accuracy']:10.3f}")
    first, second = (row["log_probability"] for row in chosen.table[:2])
    print(f"chosen: {chosen.name}; labels 10^{(first - second) / log(10):.0f} times as probable")


if __name__ == "__main__":
    main()
