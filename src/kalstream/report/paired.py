"""Runs on the same data, and paired tests of each pair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from kalstream.errors import InvalidInput
from kalstream.evaluate import paired_test
from kalstream.evaluate.metrics import Show, shown
from kalstream.report.format import listed
from kalstream.report.read import RunRecord, read_run, window_lines
from kalstream.runs.options import Options, typed

# Options that decide which rows are scored, and in which windows.
_PROTOCOL: Final = ("window", "chunk", "delay", "label_time", "id", "cost", "limit", "bad_rows")


def read_runs(folders: Sequence[Path]) -> dict[str, RunRecord]:
    """Runs on the same data, by names that tell them apart.

    Raises
    ------
    InvalidInput
        If there are fewer than two runs, files are missing or damaged, or the data differ.
    """
    if len(folders) < 2:
        raise InvalidInput(f"a comparison needs at least two runs, got {len(folders)}")
    runs = [read_run(Path(folder)) for folder in folders]
    first = runs[0]
    for run in runs[1:]:
        for key in ("fingerprint", "task", "target"):
            mine, other = first.stream.get(key), run.stream.get(key)
            if mine != other:
                raise InvalidInput(
                    f"{first.path} and {run.path} are not runs on the same data: their {key} is "
                    f"{mine!r} and {other!r}; compare runs on the same rows"
                )
        for mine, other in zip(*(_added(each) for each in (first, run)), strict=False):
            if mine != other:
                raise InvalidInput(
                    f"{first.path} and {run.path} were extended by different data, after rows "
                    f"{mine[0]:,} and {other[0]:,}; compare runs on the same rows"
                )
    return dict(zip(_names(runs), runs, strict=True))


def _added(run: RunRecord) -> list[tuple[int, str | None]]:
    """Row and fingerprint of each extension."""
    return [(each["row"], each["stream"]["fingerprint"]) for each in run.config["extensions"]]


def _names(runs: Sequence[RunRecord]) -> list[str]:
    """Names of the folders, with as much of their paths as tells them apart."""
    parts = [run.path.resolve().parts for run in runs]
    for depth in range(1, max(len(part) for part in parts) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{part[-1]} ({i})" for i, part in enumerate(parts, start=1)]  # a run given twice


def compare_runs(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """Test each pair of runs, window by window, for `compare`.

    Parameters
    ----------
    runs : sequence of Path
        At least two folders that ``kalstream run`` wrote, on the same data.

    Returns
    -------
    list of dict
        ``a``, ``b``, ``metric``, ``difference``, ``standard_error``, ``p_value``, ``n``,
        ``margin``. Metrics that a run does not have, and runs of one window, are left out.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     runs = [Path(folder) / forgetting for forgetting in ("0.9", "1.0")]
    ...     for run in runs:
    ...         options = {"forgetting": run.name, "window": 100, "limit": 300, "features": "raw"}
    ...         end = Run(run, Options(source="weather", **options)).go()
    ...     tests = compare_runs(runs)
    >>> [(test["a"], test["b"], test["metric"], test["n"]) for test in tests][:2]
    [('0.9', '1.0', 'log_loss', 3), ('0.9', '1.0', 'accuracy', 3)]
    """
    named = read_runs(runs)
    _check_protocols(named)
    metrics = shown(next(iter(named.values())).task, Show.TESTS)
    # log probabilities first: runs are selected by them
    metrics.sort(key=lambda metric: metric.unit != "nats")
    return [
        {"a": a, "b": b, **asdict(paired_test(_lines(one, name), _lines(two, name), name))}
        for (a, one), (b, two) in combinations(named.items(), 2)
        for name in (metric.name for metric in metrics)
        if min(len(one.windows), len(two.windows)) > 1 and _has(one, name) and _has(two, name)
    ]


def _check_protocols(runs: Mapping[str, RunRecord]) -> None:
    """Refuse runs whose windows do not hold the same rows, and name the options that differ."""
    (first, one), *others = runs.items()
    for name, other in others:
        if [(w.row, w.n) for w in one.windows] == [(w.row, w.n) for w in other.windows]:
            continue
        options = [Options(**run.config["options"]) for run in (one, other)]
        differ = [
            f"{typed(key)} ({', '.join(str(getattr(each, key)) for each in options)})"
            for key in _PROTOCOL
            if len({str(getattr(each, key)) for each in options}) > 1
        ]
        if differ:
            raise InvalidInput(
                f"{first} and {name} were not scored on the same rows in the same windows: they "
                f"differ in {listed(differ)}; run both with the same"
            )


def _has(run: RunRecord, metric: str) -> bool:
    return not math.isnan(run.total(metric))


def _lines(run: RunRecord, metric: str) -> list[dict[str, Any]]:
    return window_lines(run, metric, run.column(f"window.{metric}"))
