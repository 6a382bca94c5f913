"""Random sweeps of made streams: is the winner dropped, and what does it save to stop early?

    python benchmarks/sweeps.py [--sweeps 50] [--dry]

So many of streams that do not change, and as many of streams that do. Each sweep has a stream and a
grid of its own. Every combination runs to its end, so that it is known which one wins. Then the
rule of `kalstream sweep` decides at its pauses. Writes its section.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from page import alone, machine, table, write_section

from kalstream import KalmanClassifier
from kalstream.evaluate import prequential
from kalstream.runs.sweep import find_hopeless, pause_rows
from kalstream.streams import ArrayStream

Array = np.ndarray[Any, Any]
ROWS, WINDOW = 5000, 50  # the window that `kalstream run` takes for so many rows
KINDS = ("none", "abrupt", "slow", "recurring")
GRID: dict[str, list[Any]] = {
    "features": ["raw", "scaled", "fourier"],
    "forgetting": ["mixture", 0.9, 0.99, 0.999, 1.0],
    "prior_var": ["auto", 0.01, 10.0],
}


class SweepOutcome(NamedTuple):
    """What early stopping did to a sweep.

    Attributes
    ----------
    kind : str
        How its stream changes.
    n : int
        Combinations of its grid.
    lost : float
        Log-loss of the best one that was not dropped, less that of the winner; 0 if it was kept.
    saved : float
        Share of the rows of all combinations that did not run.
    possible : float
        The share that dropping all but the winner at the first pause would save.
    """

    kind: str
    n: int
    lost: float
    saved: float
    possible: float


def made(kind: str, rng: np.random.Generator) -> ArrayStream:
    """A stream of two to four classes, whose logits are linear or wavy."""
    d, n_classes = rng.integers(2, 7), rng.integers(2, 5)
    X = rng.standard_normal((ROWS, d)) * np.exp(rng.standard_normal(d))
    scaled = X / X.std(axis=0)
    if rng.random() < 0.5:
        scaled = np.cos(scaled @ rng.standard_normal((d, 20)) + rng.uniform(0.0, 6.3, 20))
    first, second = rng.standard_normal((2, scaled.shape[1], n_classes)) / math.sqrt(d)
    time = np.arange(ROWS) / ROWS
    share = {
        "none": np.zeros(ROWS),
        "abrupt": time > rng.uniform(0.1, 0.9),
        "slow": time,
        "recurring": np.floor(time * rng.integers(2, 9)) % 2,
    }[kind][:, None]
    logits = (1.0 - share) * (scaled @ first) + share * (scaled @ second)
    logits *= np.exp(rng.uniform(0.0, 1.5))
    return ArrayStream(X, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1))


def drawn(rng: np.random.Generator) -> list[dict[str, Any]]:
    """The combinations of a grid: two or three values of features and of forgetting, and priors."""
    chosen = {}
    for name, values in GRID.items():
        n = rng.integers(1, 3) if name == "prior_var" else rng.integers(2, 4)
        chosen[name] = [values[k] for k in rng.permutation(len(values))[:n]]
    return [dict(zip(chosen, each, strict=True)) for each in product(*chosen.values())]


def losses_of(settings: dict[str, Any], stream: ArrayStream) -> Array:
    """Mean log-loss of each window, (n_windows,)."""
    model = KalmanClassifier(**settings, n_components=30, preset="fast", random_state=0)
    windows = prequential(model, stream, window=WINDOW).windows
    return np.array([line["window"]["log_loss"] for line in windows])


def sweep(kind: str, seed: int) -> SweepOutcome:
    """Run a random sweep, and then decide as `kalstream sweep` does."""
    rng = np.random.default_rng(seed)
    stream = made(kind, rng)
    losses = {str(each): losses_of(each, stream) for each in drawn(rng)}
    total = {name: float(loss.mean()) for name, loss in losses.items()}
    alive, saved, pauses = dict(losses), 0.0, pause_rows(ROWS, WINDOW)
    for row in pauses:
        known = {name: loss[: row // WINDOW] for name, loss in alive.items()}
        for name in find_hopeless(known):
            del alive[name]
            saved += 1.0 - row / ROWS
    n = len(losses)
    lost = min(total[name] for name in alive) - min(total.values())
    return SweepOutcome(kind, n, lost, saved / n, (1.0 - pauses[0] / ROWS) * (n - 1) / n)


@alone
def sweeps(n: int) -> list[SweepOutcome]:
    """So many random sweeps of streams that do not change, and as many of others."""
    still, *changing = KINDS
    same = [sweep(still, seed) for seed in range(n)]
    return same + [sweep(changing[seed % len(changing)], seed) for seed in range(n)]


def lines_of(outcomes: list[SweepOutcome]) -> Iterator[list[str]]:
    """A line for each kind of stream."""
    for kind in KINDS:
        some = [each for each in outcomes if each.kind == kind]
        n = np.array([each.n for each in some])
        saved, possible = (
            np.average(shares, weights=n)
            for shares in ([e.saved for e in some], [e.possible for e in some])
        )
        lost = [each.lost for each in some if each.lost > 0.0]
        dropped = f"{len(lost)}" + (f" (loss +{np.median(lost):.2f})" if lost else "")
        yield [kind, f"{len(some)}", f"{n.sum()}", dropped, f"{saved:.0%}", f"{possible:.0%}"]


def main() -> None:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=50)
    parser.add_argument("--dry", action="store_true", help="print the lines only")
    given = parser.parse_args()
    outcomes = sweeps(given.sweeps)
    heads = ["change", "sweeps", "combinations", "winners dropped", "rows saved", "possible"]
    made_table = table(heads, list(lines_of(outcomes)))
    if given.dry:
        print(*outcomes, made_table, sep="\n")
        return
    body = [
        "## Sweeps that stop hopeless combinations",
        f"`python benchmarks/sweeps.py --sweeps {given.sweeps}` on {machine()}.",
        made_table,
        "Random sweeps over features, forgetting and prior variance of `KalmanClassifier`, each on "
        f"a made stream of {ROWS:,} rows, which does not change, changes once at a random row, "
        "slowly, or to and fro. Winners dropped: how often the combination that would have won was "
        "stopped, and by how much the best that was left has a larger log-loss (median). Rows "
        "saved are those of all combinations that did not run. Possible is what dropping all but "
        "the winner at the first pause would save.",
    ]
    write_section("sweeps", "\n\n".join(body))


if __name__ == "__main__":
    main()
