"""A run folder, read for reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kalstream.errors import InvalidInput
from kalstream.runs.files import CONFIG, METRICS, read_config
from kalstream.runs.lines import Alarm, End, FloatArray, IntArray, Window, read_results
from kalstream.streams import CLASSIFICATION

__all__ = [
    "NOT_SCORED",
    "FloatArray",
    "IntArray",
    "RunRecord",
    "Window",
    "read_run",
    "window_lines",
]

NOT_SCORED = "No row was scored: no label came before the end."
_REMEDY = "give the folder that `kalstream run` wrote"


@dataclass(frozen=True)
class RunRecord:
    """A run, as its files describe it.

    Attributes
    ----------
    path : Path
        The run folder.
    config : dict
        The content of ``config.json``.
    windows : list of Window
        At least one, in the order of the stream.
    end : End or None
        The last line; None if the run did not finish.
    cut : bool
        Whether the last line was incomplete and is left out.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     end = Run(folder, Options(source="weather", limit=300, features="raw")).go()
    ...     run = read_run(Path(folder))
    >>> run.name, run.rows, run.total("accuracy") == end["total"]["accuracy"]
    ('weather', 300, True)
    """

    path: Path
    config: dict[str, Any]
    windows: list[Window]
    end: End | None
    cut: bool

    @property
    def stream(self) -> dict[str, Any]:
        """The data, as in ``config.json``."""
        return self.config["stream"]

    @property
    def extensions(self) -> list[tuple[int, str]]:
        """Data that were added to the run: the number of their first row, and their source."""
        added = [(each["row"], each["source"]) for each in self.config["extensions"]]
        names = {"-": "standard input"}
        return [(row, names.get(source, source)) for row, source in added if row < self.rows]

    @property
    def name(self) -> str:
        """Name of the stream."""
        return str(self.stream["name"] or self.path.resolve().name)

    @property
    def learner(self) -> str:
        """Name of the learner."""
        return str(self.config["learner"]["name"] or "the learner")

    @property
    def task(self) -> str:
        """``"classification"`` or ``"regression"``."""
        return str(self.stream["task"])

    @property
    def classification(self) -> bool:
        """Whether the targets are labels, not numbers."""
        return self.task == CLASSIFICATION

    @property
    def timed(self) -> bool:
        """Whether forgetting uses a column of times, so that half-lives are not in rows."""
        return bool(self.stream.get("time"))

    @cached_property
    def dates(self) -> dict[int, np.datetime64]:
        """Row -> date, at the ends of windows; empty if rows have no dates."""
        return {w.row: w.date for w in self.windows if w.date is not None and w.row}

    @property
    def rows(self) -> int:
        """Rows predicted."""
        return self.windows[-1].row

    @property
    def n(self) -> int:
        """Rows scored."""
        return sum(window.n for window in self.windows)

    @property
    def alarms(self) -> list[Alarm]:
        """The drift alarms, as entries of the files; see `n_alarms`."""
        return [alarm for window in self.windows for alarm in window.drift]

    @property
    def n_alarms(self) -> int:
        """Number of drift alarms."""
        return sum(alarm.alarms for alarm in self.alarms)

    @property
    def scored(self) -> FloatArray:
        """Rows scored in every window, (n_windows,)."""
        return np.array([window.n for window in self.windows], dtype=float)

    @cached_property
    def baselines(self) -> tuple[str, ...]:
        """Names of the baselines, as in the files."""
        keys = (key.split(".") for window in self.windows for key in window.scores)
        return tuple(dict.fromkeys(parts[0] for parts in keys if len(parts) == 3))

    @property
    def known_labels(self) -> list[Any]:
        """Labels that were known from the start, in the order of their codes."""
        origin = self.config["origin"]
        return [] if origin is None else list(origin["classes"])

    @cached_property
    def labels(self) -> dict[int, str]:
        """Text of each class, by its code."""
        names = {new.code: new.label for window in self.windows for new in window.new_classes}
        listed = self.end.classes if self.end is not None else self.known_labels
        return {code: str(label) for code, label in enumerate(listed)} | names

    def column(self, key: str) -> FloatArray:
        """One number of every window (n_windows,), by its path in `Window.scores`.

        NaN where it is not defined.
        """
        return np.array([window.scores.get(key, math.nan) for window in self.windows])

    def total(self, metric: str, baseline: str | None = None) -> float:
        """A metric over the whole run; NaN if it is not defined.

        Parameters
        ----------
        metric : str
            For example ``"accuracy"``.
        baseline : str, optional
            For example ``"no_change"``; by default the learner.
        """
        totals: dict[str, float | None] = {}
        if self.end is not None:
            totals = self.end.baselines.get(baseline, {}) if baseline else self.end.total
        value = totals.get(metric)
        if value is not None:
            return float(value)
        prefix = "" if baseline is None else f"{baseline}."
        return self.windows[-1].scores.get(f"{prefix}total.{metric}", math.nan)

    def clock(self, key: str) -> float:
        """Time or memory at the end of the run, for example ``"seconds"``; NaN if unknown."""
        value = None if self.end is None else getattr(self.end.clock, key)
        last = self.windows[-1].scores.get(f"clock.{key}", math.nan)
        return last if value is None else float(value)


def window_lines(run: RunRecord, metric: str, values: FloatArray) -> list[dict[str, Any]]:
    """Values of a metric, one for each window, in the form that `paired_test` takes."""
    return [
        {"row": w.row, "n": w.n, "window": {metric: value if math.isfinite(value) else None}}
        for w, value in zip(run.windows, values.tolist(), strict=True)
    ]


def read_run(folder: Path) -> RunRecord:
    """Read a run folder.

    Raises
    ------
    InvalidInput
        If something is missing or damaged; the message names the file and the line. An incomplete
        last line is no error: a killed run leaves one.

    Examples
    --------
    >>> read_run(Path("no/such/run"))
    Traceback (most recent call last):
    kalstream.errors.InvalidInput: no/such/run: no such folder; ...

    `RunRecord` shows what it returns.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "a file, not a folder" if folder.exists() else "no such folder"
        raise InvalidInput(f"{folder}: {what}; {_REMEDY}")
    try:
        config = read_config(folder)
        if config is None:
            raise InvalidInput(f"{folder / CONFIG}: no such file; {_REMEDY}")
        results = read_results(folder)
    except FileNotFoundError:
        raise InvalidInput(f"{folder / METRICS}: no such file; {_REMEDY}") from None
    except OSError as error:
        raise InvalidInput(f"{error.filename}: cannot be read: {error.strerror}") from error
    if not results.windows:
        message = results.end.message if results.end is not None else None
        reason = f"; the run ended with: {message}" if message else ""
        raise InvalidInput(f"{folder / METRICS}: it holds no window, nothing to report{reason}")
    return RunRecord(folder, config, results.windows, results.end, results.cut)
