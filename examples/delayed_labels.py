"""Late and missing labels.

Each row is predicted when it arrives. Its label arrives `--delay` rows later. Until then the row
waits in a deque; it is learned together with its own label. The rule keeps turning. The example
prints the accuracy with and without delay, and with two mistakes: to forget nothing, and to learn a
late label with the row that is current when it arrives.

Then labels are missing for a while, and the uncertainty should grow. There are two ways. Pass None
as the label, which lets time pass and learns nothing. Or pass `time=` whenever the model learns or
predicts, and leave out rows without a label. Leaving them out without `time=` is a third mistake.
"""

from __future__ import annotations

import argparse
from collections import deque

import numpy as np

from kalstream import KalmanClassifier


def stream(rows: int, seed: int):
    """Rows (n, 6) and labels (n,) of a rule that makes one turn in 4000 rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 6))
    angle = 2.0 * np.pi * np.arange(rows) / 4000.0
    score = np.cos(angle) * X[:, 0] + np.sin(angle) * X[:, 1] + 0.3 * rng.normal(size=rows)
    return X, np.where(score > 0.0, "up", "down").astype(object)


def run(model, X, y, delay=0, *, clock=False, leave_out=False, wrong_row=False):
    """Predict each row on arrival, learn it with its label; returns which were right (n,)."""
    model.partial_fit(X[:1], y[:1], classes=["down", "up"], **({"time": [0]} if clock else {}))
    right = np.zeros(len(y), bool)
    waiting = deque()  # (when the label arrives, x, y); at most `delay` entries
    for now in range(1, len(y)):
        x = X[now : now + 1]
        time = {"time": [now]} if clock else {}
        right[now] = model.predict(x, **time)[0] == y[now]
        waiting.append((now + delay, x, y[now]))
        while waiting and waiting[0][0] <= now:
            _, its_x, its_y = waiting.popleft()
            if its_y is not None or not leave_out:
                model.partial_fit(x if wrong_row else its_x, [its_y], **time)
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--delay", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    X, y = stream(options.rows, options.seed)

    def accuracy(delay, forgetting="mixture", **settings) -> float:
        model = KalmanClassifier(forgetting, features="scaled")
        return run(model, X, y, delay, **settings)[2 * options.delay :].mean()

    print(f"accuracy, labels {options.delay} rows late")
    print(f"  no delay, for comparison       {accuracy(0):.3f}")
    print(f"  learned when the label arrives  {accuracy(options.delay):.3f}")
    print(f"  the same, nothing forgotten    {accuracy(options.delay, 1.0):.3f}")
    print(f"  learned with the wrong row      {accuracy(options.delay, wrong_row=True):.3f}")

    half, probe = options.rows // 2, np.random.default_rng(1).normal(size=(200, 6))
    missing = np.concatenate([y[:half], np.full(half, None, object)])
    print(f"uncertainty before and after {half} rows without a label")
    for name, settings in {
        "None passed": {},
        "left out, time given": {"clock": True, "leave_out": True},
        "left out, no time (wrong)": {"leave_out": True},
    }.items():
        model, levels = KalmanClassifier(features="scaled"), []
        for labels in (y[:half], missing):
            run(model.reset(), X[: len(labels)], labels, **settings)
            now = {"time": [len(labels)] * len(probe)} if "clock" in settings else {}
            levels.append(model.uncertainty(probe, **now).mean())
        print(f"  {name:28} {levels[0]:.4f}   {levels[1]:.4f}")


if __name__ == "__main__":
    main()
