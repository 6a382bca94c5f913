"""Sweeps: every combination of options, and the rule that stops hopeless ones early.

A sweep pauses at a few rows that are fixed before it begins (`plan_pauses`). All combinations
run up to such a row. There each is compared with the best one so far, on the rows that both have
predicted, and those that `is_hopeless` finds do not continue. So what stops depends on the data
only, not on the order or the speed of the runs, and a sweep that was killed decides the same again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, Final, get_origin

import numpy as np

from kalstream.errors import InvalidOption
from kalstream.evaluate.metrics import log_probability_metric
from kalstream.runs.jobs import Job, JobOutcome, JobPlace, Watch, run_jobs
from kalstream.runs.lines import FloatArray, read_results
from kalstream.runs.options import Options, typed
from kalstream.runs.setup import open_stream, window_of

# Options that decide which rows are scored, or which files are written.
_NOT_SWEPT: Final = (
    *("source", "target", "task", "time", "label_time", "id", "key", "bad_rows", "order"),
    *("chunk", "delay", "cost", "window", "limit", "seed", "predictions"),
)
_PAUSES: Final = (1 / 4, 1 / 2)  # shares of the rows
_STRETCHES: Final = 10
_LEAST_WINDOWS: Final = 20  # before a combination is judged
_ERRORS: Final = 6.0  # standard errors
_LONGEST_NAME: Final = 100


@dataclass(frozen=True)
class Combination:
    """Values of the options of a grid, and a job for each seed."""

    name: str
    jobs: tuple[Job, ...]


@dataclass
class Sweep:
    """What a sweep resulted in.

    Attributes
    ----------
    outcomes : {str: JobOutcome}
        By the names of the jobs.
    hopeless : {str: int}
        Combinations that were stopped early, and the row at which they were.
    """

    outcomes: dict[str, JobOutcome] = field(default_factory=dict)
    hopeless: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Pauses:
    """Rows at which a sweep pauses, and the metric that decides there, in nats."""

    rows: tuple[int, ...]
    metric: str


def grid_of(texts: Sequence[str]) -> dict[str, list[Any]]:
    """The options of a grid, and their values.

    Examples
    --------
    >>> grid_of(["features=raw,fourier", "motion=0|0,1"])
    {'features': ['raw', 'fourier'], 'motion': ['0', '0,1']}
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        given, equals, values = text.partition("=")
        names = {typed(name).removeprefix("--"): name for name in Options.model_fields}
        name = names.get(given.removeprefix("--"), given.replace("-", "_"))
        parts = [part for part in values.split("|" if "|" in values else ",") if part]
        if not equals or not parts or name not in Options.model_fields or name in grid:
            raise InvalidOption(
                f"--grid is {text!r}; give an option of kalstream run once, and its values: "
                "--grid features=fourier,scaled (or a|b|c, if values hold commas)"
            )
        if name in _NOT_SWEPT:
            remedy = "give --seeds 3" if name == "seed" else f"give {typed(name)} once, for all"
            raise InvalidOption(
                f"--grid is {text!r}, but runs of a sweep predict the same rows and differ in "
                f"their learners; {remedy}"
            )
        is_list = get_origin(Options.model_fields[name].annotation) is list
        grid[name] = [[part] if is_list else part for part in dict.fromkeys(parts)]
    return grid


def combinations(
    options: Options, grid: dict[str, list[Any]], n_seeds: int, folder: Path, **more: Any
) -> list[Combination]:
    """All combinations of a grid.

    Parameters
    ----------
    options : Options
        Those that all runs have.
    grid : {option: values}
    n_seeds : int
        Runs of each combination.
    folder : Path
        Of the sweep. The run of a combination and a seed always has the same folder in it.
    **more
        Attributes of `Job`.

    Examples
    --------
    >>> made = combinations(Options(), {"features": ["raw", "scaled"]}, 2, Path("runs"))
    >>> [job.name for each in made for job in each.jobs][:3]
    ['features=raw,seed=0', 'features=raw,seed=1', 'features=scaled,seed=0']
    """
    given = {name: getattr(options, name) for name in options.model_fields_set}
    for name in set(given) & set(grid):
        raise InvalidOption(f"{typed(name)} is in --grid, too; give it once")
    made = []
    for values in product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        name = ",".join(f"{key}={_text(value)}" for key, value in chosen.items())
        jobs = []
        for seed in range(options.seed, options.seed + n_seeds):
            own = Options.of(**{**given, **chosen, "seed": seed})
            job = f"{name},seed={seed}".lstrip(",")
            jobs.append(Job(job, folder / as_folder(job), own, **more))
        made.append(Combination(name or "all", tuple(jobs)))
    return made


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def as_folder(name: str) -> str:
    """A name that every file system takes, and that differs from those of other names.

    Examples
    --------
    >>> as_folder("features=raw,seed=0"), as_folder("north/a")
    ('features=raw,seed=0', 'north_a-9c4db1ed')
    """
    safe = re.sub(r"[^\w.=,+-]", "_", name, flags=re.ASCII)[:_LONGEST_NAME]
    return safe if safe == name else f"{safe}-{sha256(name.encode()).hexdigest()[:8]}"


def plan_pauses(options: Options) -> tuple[Options, Pauses]:
    """Where a sweep pauses to stop hopeless combinations.

    Parameters
    ----------
    options : Options
        Those that all runs have.

    Returns
    -------
    options : Options
        The same, with the length of the windows, which must not depend on where runs pause.
    pauses : Pauses
        Without rows if the stream is short or its length unknown, if labels are late, and for
        learners that may not continue where they paused.
    """
    stream = open_stream(options)
    if not stream.repeatable:
        raise InvalidOption(
            f"a sweep reads its data several times, and {options.source} can be read once; save it "
            "to a file"
        )
    window, n = window_of(options, stream), stream.approximate_rows or 0
    n = min(n, options.limit or n)
    is_late = options.delay != "0" or options.label_time or options.id
    rows = () if is_late or options.learner else pause_rows(n, window, options.chunk)
    pauses = Pauses(rows, log_probability_metric(stream.task).name)
    return options.model_copy(update={"window": window}), pauses


def pause_rows(n_rows: int, window: int, chunk: int = 1) -> tuple[int, ...]:
    """The rows at which a sweep over so many rows pauses: ends of windows.

    Examples
    --------
    >>> pause_rows(20_000, 100)
    (5000, 10000)
    """
    rows = [int(n_rows * share) // window * window for share in _PAUSES]
    return tuple(row for row in rows if row >= (_LEAST_WINDOWS + 1) * max(window, chunk))


def run_sweep(
    made: Sequence[Combination],
    place: JobPlace,
    pauses: Pauses,
    watch: Watch = lambda ended, running: None,
    stopped: Callable[[], object] = lambda: False,
) -> Sweep:
    """Run all combinations, and stop hopeless ones at the pauses.

    Parameters
    ----------
    made : sequence of Combination
    place : JobPlace
    pauses : Pauses
    watch, stopped
        As for `run_jobs`.
    """
    sweep, alive = Sweep(), list(made)
    for row in (*pauses.rows, None):
        failed = {name for name, outcome in sweep.outcomes.items() if outcome.problem}
        jobs = [job for each in alive for job in each.jobs if job.name not in failed]
        outcomes = run_jobs([replace(job, up_to=row) for job in jobs], place, watch, stopped)
        sweep.outcomes |= {outcome.job.name: outcome for outcome in outcomes}
        if stopped():
            break
        if row is not None:
            behind = _hopeless(sweep, alive, pauses, row)
            sweep.hopeless |= dict.fromkeys(behind, row)
            alive = [each for each in alive if each.name not in behind]
    return sweep


def _hopeless(sweep: Sweep, alive: list[Combination], pauses: Pauses, row: int) -> set[str]:
    """The combinations that cannot catch up; those of which a run failed are not compared."""
    whole = [c for c in alive if not any(sweep.outcomes[job.name].problem for job in c.jobs)]
    losses = {each.name: _losses(each, pauses.metric, row) for each in whole}
    return find_hopeless(losses)


def find_hopeless(losses: Mapping[str, FloatArray]) -> set[str]:
    """The combinations that cannot catch up with the best one.

    Parameters
    ----------
    losses : {name: (n_windows,) array}
        Mean loss of each window so far; NaN or infinity is not compared.

    Examples
    --------
    >>> find_hopeless({"good": np.full(20, 0.5), "bad": np.full(20, 0.6)})
    {'bad'}
    """
    known = {name: loss for name, loss in losses.items() if np.isfinite(loss).all()}
    if len({loss.shape for loss in known.values()}) != 1:
        return set()  # runs without probabilities, or with other windows
    best = min(known.values(), key=lambda loss: float(loss.sum()))
    return {name for name, loss in known.items() if is_hopeless(loss - best)}


def _losses(combination: Combination, metric: str, row: int) -> FloatArray:
    """Mean loss of each window before a row, on average over seeds, (n_windows,)."""
    of_seeds = [
        [w.scores.get(f"window.{metric}", np.nan) for w in results.windows if w.row < row]
        for results in (read_results(job.folder) for job in combination.jobs)
    ]
    if len({len(losses) for losses in of_seeds}) != 1:
        return np.full(0, np.nan)
    return np.mean(np.array(of_seeds, dtype=float), axis=0)


def is_hopeless(behind: FloatArray) -> bool:
    """Whether a combination will not catch up with the best one.

    The windows are grouped into ten stretches, since neighbouring windows are similar. In the rest
    of the stream the combination is given the better of two rates: that of its best stretch, and
    its mean rate with six standard errors in its favour. It is hopeless if it loses at this rate,
    too. The bound is that high because several combinations are judged, twice, and because streams
    drift.

    Parameters
    ----------
    behind : (n_windows,) array
        Mean loss of each window in nats, less that of the best combination.

    Examples
    --------
    >>> is_hopeless(np.full(20, 0.1))
    True
    >>> is_hopeless(np.array([0.1] * 18 + [-0.01] * 2))
    False
    """
    if len(behind) < _LEAST_WINDOWS:
        return False
    rates = np.array([part.mean() for part in np.array_split(behind, _STRETCHES)])
    error = float(rates.std(ddof=1)) / _STRETCHES**0.5
    return min(float(rates.min()), float(behind.mean()) - _ERRORS * error) > 0.0
