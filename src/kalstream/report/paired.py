"""Paired tests of runs, from their files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from kalstream.errors import InvalidInput
from kalstream.evaluate import paired_test
from kalstream.report.compare import _check_same_data, _names
from kalstream.report.read import Run, read_run, window_lines


def compare_runs(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """Test each pair of runs, window by window, as `compare` takes it.

    Parameters
    ----------
    runs : sequence of Path
        At least two folders that ``kalstream run`` wrote, on the same data.

    Returns
    -------
    list of dict
        ``a``, ``b``, ``metric``, ``difference``, ``standard_error``, ``p_value``, ``n``,
        ``margin``; without metrics that one of two runs does not have, and runs of a single window.
    """
    if len(runs) < 2:
        raise InvalidInput(f"a comparison needs at least two runs, not {len(runs)}")
    read = [read_run(Path(run)) for run in runs]
    _check_same_data(read)
    metrics = ("log_loss", "accuracy") if read[0].classification else ("nlpd", "mae")
    return [
        {"a": a, "b": b, **asdict(paired_test(_lines(one, metric), _lines(two, metric), metric))}
        for (a, one), (b, two) in combinations(zip(_names(read), read, strict=True), 2)
        for metric in metrics
        if min(len(one.windows), len(two.windows)) > 1 and _has(one, metric) and _has(two, metric)
    ]


def _has(run: Run, metric: str) -> bool:
    return not math.isnan(run.total(metric))


def _lines(run: Run, metric: str) -> list[dict[str, Any]]:
    return window_lines(run, metric, run.column(f"window.{metric}"))
