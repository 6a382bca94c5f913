"""Lines of metrics.jsonl: their schema, and the reader of the file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)

from kalstream._json import loads
from kalstream.errors import InvalidInput
from kalstream.runs.files import CHECKPOINT, METRICS, Count, remedy_for
from kalstream.runs.options import checked

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_LARGEST: Final = 1e300  # the difference of two such numbers is still finite


def _special(value: object) -> object:
    """NaN for null and infinity for "inf", as `kalstream._json` writes them."""
    if value is None:
        return math.nan
    return math.inf if isinstance(value, str) and value == "inf" else value


def _confusion(value: object) -> IntArray:
    if not value:
        return np.zeros((0, 3), dtype=np.int64)
    try:
        triples = np.array(value)
    except (ValueError, OverflowError):  # lists of different lengths, very large numbers
        triples = np.zeros(0)
    if triples.dtype != np.int64 or triples.ndim != 2 or triples.shape[1] != 3:
        raise ValueError("must be a list of [true code, predicted code, rows]")
    if triples.min() < -1 or triples[:, [0, 2]].min() < 0:
        raise ValueError("has a negative code or number of rows")
    return triples


Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
Weights = Annotated[list[Annotated[float, Field(ge=0.0, le=_LARGEST)]], Field(min_length=1)]
_NumberOrNan = Annotated[float, AllowInfNan(True), BeforeValidator(_special)]
_HalfLife = Annotated[float, AllowInfNan(True), Field(gt=0.0), BeforeValidator(_special)]
Metrics = dict[str, Number | None]


def _date(value: Any) -> np.datetime64 | None:
    try:
        return None if value is None else np.datetime64(value, "s")
    except (TypeError, ValueError):
        raise ValueError(f"is no date: {value!r}") from None


class _Line(BaseModel):
    """Fields of a line; further ones are kept, so that later versions may add some."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _HalfLives(_Line):
    """Weights of half-lives, on average over a window.

    Attributes
    ----------
    half_lives, weights : list of float
        Half-lives (infinite: never forgets), and their weights.
    median : float
        NaN if the file has none.
    """

    half_lives: Annotated[list[_HalfLife], Field(min_length=1)]
    weights: Weights
    median: _NumberOrNan = math.nan

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if len(self.half_lives) != len(self.weights):
            n, m = len(self.half_lives), len(self.weights)
            raise ValueError(f"has {n} half-lives and {m} weights")
        return self

    @property
    def typical(self) -> float:
        """The median; without one, the first half-life."""
        return self.half_lives[0] if math.isnan(self.median) else self.median


class Alarm(_Line):
    """A drift alarm: the row whose target raised it, when it was raised, and its confidence.

    ``raised`` is None if that is ``row``, and in earlier files. An unknown confidence is NaN.
    ``alarms`` is the number of alarms in rows that were learned at once, and the row that of the
    last one.
    """

    row: Count
    raised: Count | None = None
    confidence: _NumberOrNan = math.nan
    alarms: Count = 1

    @property
    def at(self) -> int:
        """The last row that had come when it was raised."""
        return self.row if self.raised is None else self.raised


class _NewClass(_Line):
    """First appearance of a label: its code, its text and its row."""

    code: Count
    label: Annotated[str, PlainValidator(str)]
    row: Count


class _Reliability(_Line):
    count: Weights
    confidence: Weights
    right: Weights

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if not len(self.count) == len(self.confidence) == len(self.right):
            raise ValueError("has lists of different lengths")
        return self


class _Pit(_Line):
    count: Weights


class _Speed(_Line):
    seconds: Number | None = None
    rows_per_second: Number | None = None
    memory_mb: Number | None = None
    wall_seconds: Number | None = None


class _Baseline(_Line):
    window: Metrics = {}
    total: Metrics = {}


class Window(_Line):
    """The line of a window; docs/files.md lists its fields.

    Examples
    --------
    >>> window = Window(kind="window", row=500, n=500, window={"accuracy": 0.8}, total={})
    >>> window.scores
    {'window.accuracy': 0.8}
    """

    kind: Literal["window"]
    row: Count
    date: Annotated[np.datetime64 | None, PlainValidator(_date)] = None
    n: Count
    missing: Count = 0
    waiting: Count | None = None
    window: Metrics
    total: Metrics
    baselines: dict[str, _Baseline] = {}
    half_life: _HalfLives | None = None
    drift: list[Alarm] = []
    new_classes: list[_NewClass] = []
    expected_new: Annotated[float, Field(ge=0.0, le=_LARGEST)] | None = None
    confusion: Annotated[Any, PlainValidator(_confusion)] = Field(
        default_factory=lambda: _confusion([])
    )
    reliability: _Reliability | None = None
    pit: _Pit | None = None
    clock: _Speed = _Speed()

    @cached_property
    def scores(self) -> dict[str, float]:
        """Every number by its path: ``"window.accuracy"``, ``"no_change.total.log_loss"``.

        Numbers that are not defined are left out.
        """
        parts: dict[str, Mapping[str, float | None]] = {"window": self.window, "total": self.total}
        parts["clock"] = {name: getattr(self.clock, name) for name in _Speed.model_fields}
        for name, baseline in self.baselines.items():
            parts[f"{name.replace('.', '_')}.window"] = baseline.window
            parts[f"{name.replace('.', '_')}.total"] = baseline.total
        return {
            f"{prefix}.{key}": float(value)
            for prefix, values in parts.items()
            for key, value in values.items()
            if value is not None
        }

    @cached_property
    def reliability_bins(self) -> FloatArray | None:
        """Rows, sum of confidences and rows right (3, n_bins), by bin of the confidence."""
        bins = self.reliability
        return None if bins is None else np.array([bins.count, bins.confidence, bins.right], float)

    @cached_property
    def pit_counts(self) -> FloatArray | None:
        """Histogram (n_bins,) of the probability integral transform."""
        return None if self.pit is None else np.array(self.pit.count, float)


class _Spread(_Line):
    """How strongly keys may differ, as standard deviations, and how probable that is."""

    intercepts: Number
    columns: Number
    half_life: _HalfLife
    weight: Number


class Ranked(_Line):
    """A key, its rows that were scored, and their mean log-loss."""

    key: Any
    rows: Count
    log_loss: Number


class _Step(_Line):
    """Rows that were at least the ``first`` one of their key, up to the next step."""

    first: Count
    rows: Count
    log_loss: Number | None


class KeySummary(_Line):
    """Keys of rows, as `kalstream.evaluate.keys.KeyTracker` writes them."""

    n: Count
    spread: Annotated[float, Field(ge=0.0)] | None = None
    spread_weights: list[_Spread] = []
    best: list[Ranked] = []
    worst: list[Ranked] = []
    curve: list[_Step] = []
    later_rows: Count = 0


class End(_Line):
    """The last line of a run; docs/files.md lists its fields."""

    kind: Literal["end"]
    row: Count | None = None
    n: Count | None = None
    total: Metrics = {}
    baselines: dict[str, Metrics] = {}
    classes: list[Any] = []
    clock: _Speed = _Speed()
    reason: str | None = None
    message: str | None = None
    skipped: Count | None = None
    skipped_why: list[str] = []
    infinite: Count | None = None
    waiting: dict[str, Count] = {}
    keys: KeySummary | None = None


@dataclass(frozen=True)
class Results:
    """Content of metrics.jsonl.

    Attributes
    ----------
    windows : list of Window
    end : End or None
        None if the run did not come to an end.
    cut : bool
        Whether the last line is incomplete, and left out: the run was killed while it wrote.
    """

    windows: list[Window]
    end: End | None
    cut: bool


def read_results(folder: Path, size: int | None = None) -> Results:
    """Read metrics.jsonl.

    Parameters
    ----------
    folder : Path
        The run folder.
    size : int, optional
        Bytes to read, from the start of the file.

    Raises
    ------
    InvalidInput
        If the file is damaged; the message names the file and the line.
    OSError
    """
    path = folder / METRICS
    lines = path.read_bytes()[:size].split(b"\n")
    windows: list[Window] = []
    end: End | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            content = loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # no newline after it
                return Results(windows, end, cut=True)
            raise InvalidInput(f"{path}, line {number}: not JSON: {error}") from error
        try:
            end = _add(content, windows)
        except InvalidInput as error:
            raise InvalidInput(f"{path}, line {number}: {error}") from error
    return Results(windows, end, cut=False)


def _add(content: Any, windows: list[Window]) -> End | None:
    """Add the line of a window, or return the last line; a window after it: a resumed run."""
    if not isinstance(content, dict):
        raise InvalidInput(f"must be a JSON object, got {type(content).__name__}")
    if content.get("kind") == "end":
        return checked(End, content)
    if content.get("kind") != "window":
        raise InvalidInput(f"kind must be 'window' or 'end', got {content.get('kind')!r}")
    window = checked(Window, content)
    if windows and window.row < windows[-1].row:
        raise InvalidInput(f"row {window.row} comes after row {windows[-1].row}")
    windows.append(window)
    return None


def check_results(folder: Path, size: int) -> None:
    r"""Raise an error if the first bytes of metrics.jsonl are damaged.

    Parameters
    ----------
    folder : Path
        The run folder.
    size : int
        Number of bytes that a resumed run keeps.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / METRICS).write_text("no JSON\n")
    ...     check_results(Path(folder), 8)
    Traceback (most recent call last):
    kalstream.errors.InvalidInput: ...metrics.jsonl, line 1: ...
    """
    folder = Path(folder)
    if size <= 0 or not (folder / METRICS).exists():
        return
    try:
        read_results(folder, size)
    except InvalidInput as error:
        raise InvalidInput(f"{error}; {remedy_for(folder / CHECKPOINT)}") from error
