"""Result files of a run, read and checked; what is wrong is said with the file and the line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from kalstream.errors import InvalidInput

FORMATS = (1, 2, 3)
_LARGEST = 1e300  # differences of such numbers are still numbers
_HINT = "give the folder that `kalstream run` wrote"

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class HalfLife:
    """Posterior over half-lives, as a mean over one window.

    Attributes
    ----------
    half_lives, weights : tuple of float
        The half-lives in rows (infinite: never forgets) and their probabilities.
    median : float
        The median half-life; NaN if the file does not say.
    """

    half_lives: tuple[float, ...]
    weights: tuple[float, ...]
    median: float


@dataclass(frozen=True)
class Alarm:
    """A drift alarm: the row at which it began, and how sure the learner was (NaN: not said)."""

    row: int
    confidence: float


@dataclass(frozen=True)
class NewClass:
    """A label seen for the first time: its code, its text and its row."""

    code: int
    label: str
    row: int


@dataclass(frozen=True)
class Window:
    """One window of the stream, as one line of ``metrics.jsonl`` tells it.

    Attributes
    ----------
    row, n, missing : int
        Rows that had passed at its end, rows scored in it, and rows without target in it.
    scores : dict of str to float
        Every number, by the path to it: ``"window.accuracy"``, ``"total.log_loss"``,
        ``"no_change.total.accuracy"``, ``"clock.seconds"``. What is not defined is left out.
    half_life : HalfLife or None
        What the learner believed about forgetting.
    drift : tuple of Alarm
        The alarms that began in the window.
    new_classes : tuple of NewClass
        The labels first seen in the window.
    confusion : ndarray of shape (n_pairs, 3)
        True code, predicted code (-1: no prediction) and how often.
    reliability : ndarray of shape (3, n_bins), or None
        Count, sum of the top probability and number right, by bin of the top probability.
    pit : ndarray of shape (n_bins,), or None
        Histogram of the probability integral transform.
    """

    row: int
    n: int
    missing: int
    scores: dict[str, float]
    half_life: HalfLife | None
    drift: tuple[Alarm, ...]
    new_classes: tuple[NewClass, ...]
    confusion: IntArray
    reliability: FloatArray | None
    pit: FloatArray | None


@dataclass(frozen=True)
class Run:
    """A run as its files tell it.

    Attributes
    ----------
    path : Path
        The folder.
    config : dict
        The content of ``config.json``.
    windows : list of Window
        At least one, in the order of the stream.
    end : dict or None
        The line that closes a run; None if the run did not finish.
    cut : bool
        Whether the last line was incomplete and has been left out.
    """

    path: Path
    config: dict[str, Any]
    windows: list[Window]
    end: dict[str, Any] | None
    cut: bool

    @property
    def stream(self) -> dict[str, Any]:
        """What ``config.json`` says about the data."""
        return self.config["stream"]

    @property
    def name(self) -> str:
        """Name of the stream."""
        return str(self.stream.get("name") or self.path.resolve().name)

    @property
    def learner(self) -> str:
        """Name of the learner."""
        return str(self.config["learner"].get("name") or "the learner")

    @property
    def classification(self) -> bool:
        """Whether the targets are labels rather than numbers."""
        return self.stream["task"] == "classification"

    @property
    def timed(self) -> bool:
        """Whether forgetting goes by a column of times, so that half-lives are not in rows."""
        return bool(self.stream.get("time"))

    @property
    def rows(self) -> int:
        """Rows that have passed."""
        return self.windows[-1].row

    @property
    def n(self) -> int:
        """Rows that were scored."""
        return sum(window.n for window in self.windows)

    @property
    def scored(self) -> FloatArray:
        """Rows that were scored in every window, (n_windows,)."""
        return np.array([window.n for window in self.windows], dtype=float)

    @cached_property
    def baselines(self) -> tuple[str, ...]:
        """Names of the baselines, as in the files."""
        names = (key.split(".") for window in self.windows for key in window.scores)
        return tuple(dict.fromkeys(parts[0] for parts in names if len(parts) == 3))

    @cached_property
    def labels(self) -> dict[int, str]:
        """Text of each class, by its code."""
        names = {new.code: new.label for window in self.windows for new in window.new_classes}
        listed = (self.end or {}).get("classes") or []
        return {code: str(label) for code, label in enumerate(listed)} | names

    def column(self, key: str) -> FloatArray:
        """One score of every window.

        Parameters
        ----------
        key : str
            The path to it, as in `Window.scores`.

        Returns
        -------
        ndarray of shape (n_windows,)
            NaN where it is not defined.
        """
        return np.array([window.scores.get(key, math.nan) for window in self.windows])

    def total(self, metric: str, baseline: str | None = None) -> float:
        """A score over the whole run, of the learner or of a baseline.

        Parameters
        ----------
        metric : str
            For example ``"accuracy"``.
        baseline : str, optional
            For example ``"no_change"``; None is the learner.

        Returns
        -------
        float
            NaN if it is not defined.
        """
        prefix = "" if baseline is None else f"{baseline}."
        last = self.windows[-1].scores.get(f"{prefix}total.{metric}", math.nan)
        closing = (self.end or {}).get("total" if baseline is None else "baselines") or {}
        if baseline is not None:
            closing = closing.get(baseline) or {}
        return _number(closing[metric], metric) if closing.get(metric) is not None else last

    def clock(self, key: str) -> float:
        """Time or memory at the end of the run.

        Parameters
        ----------
        key : str
            For example ``"seconds"``.

        Returns
        -------
        float
            What the closing line says, or else the last window; NaN if neither does.
        """
        closing = ((self.end or {}).get("clock") or {}).get(key)
        last = self.windows[-1].scores.get(f"clock.{key}", math.nan)
        return last if closing is None else _number(closing, key)


def window_lines(run: Run, metric: str, values: FloatArray) -> list[dict[str, Any]]:
    """Values of a metric, one of each window, as `paired_test` takes them."""
    return [
        {"row": w.row, "n": w.n, "window": {metric: value if math.isfinite(value) else None}}
        for w, value in zip(run.windows, values.tolist(), strict=True)
    ]


def read_run(folder: Path) -> Run:
    """Read the result files of a run.

    Parameters
    ----------
    folder : Path
        The folder with ``config.json`` and ``metrics.jsonl``.

    Returns
    -------
    Run

    Raises
    ------
    InvalidInput
        If something is missing or damaged; the message names the file and the line. An incomplete
        last line is what a killed run leaves, and is no error.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "a file, not a folder" if folder.exists() else "no such folder"
        raise InvalidInput(f"{folder}: {what}; {_HINT}")
    config = _read_config(folder / "config.json")
    windows, end, cut = _read_metrics(folder / "metrics.jsonl")
    return Run(path=folder, config=config, windows=windows, end=end, cut=cut)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput(f"{path}: no such file; {_HINT}") from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _object(line: bytes) -> dict[str, Any]:
    value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object was expected, not {type(value).__name__}")
    return value


def _read_config(path: Path) -> dict[str, Any]:
    content = _bytes(path)
    try:
        config = _object(content)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: not a JSON object: {error}") from error
    if config.get("format") not in FORMATS:
        raise InvalidInput(
            f"{path}: format {config.get('format')!r}; this version of kalstream reads up to "
            f"{FORMATS[-1]}"
        )
    for part in ("stream", "learner", "protocol", "machine"):
        if not isinstance(config.setdefault(part, {}), dict):
            raise InvalidInput(f"{path}: {part} is not an object")
    for name in ("chunk", "delay", "cost"):
        try:
            _number(config["protocol"].get(name), f"protocol.{name}")
        except ValueError as error:
            raise InvalidInput(f"{path}: {error}") from error
    task = config["stream"].get("task")
    if task not in ("classification", "regression"):
        raise InvalidInput(
            f"{path}: stream.task is {task!r}, neither 'classification' nor 'regression'"
        )
    return config


def check_results(folder: Path, size: int) -> None:
    """Raise the error that `read_run` would raise about the first bytes of ``metrics.jsonl``.

    Parameters
    ----------
    folder : Path
    size : int
        How many bytes a run that goes on will keep.
    """
    path = Path(folder) / "metrics.jsonl"
    try:
        _read_lines(path, _bytes(path)[:size] if size > 0 and path.exists() else b"")
    except InvalidInput as error:
        raise InvalidInput(
            f"{error}; restore it from a copy, or delete {path.parent / 'checkpoint'} and resume: "
            "the run then starts over"
        ) from error


def _read_metrics(path: Path) -> tuple[list[Window], dict[str, Any] | None, bool]:
    windows, end, cut = _read_lines(path, _bytes(path))
    if not windows:
        told = f"; the run ended with: {end.get('message')}" if end and end.get("message") else ""
        raise InvalidInput(f"{path}: no window of the stream is in it, nothing to report{told}")
    return windows, end, cut


def _read_lines(path: Path, content: bytes) -> tuple[list[Window], dict[str, Any] | None, bool]:
    lines = content.split(b"\n")
    windows: list[Window] = []
    end: dict[str, Any] | None = None
    cut = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _object(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # no newline after it: the run was killed while it wrote
                cut = True
                break
            raise InvalidInput(f"{path}, line {number}: not a line of results: {error}") from error
        try:
            end = _take(record, windows)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise InvalidInput(f"{path}, line {number}: {reason}") from error
    return windows, end, cut


def _take(record: dict[str, Any], windows: list[Window]) -> dict[str, Any] | None:
    """Append a window, or return the closing line; a window after it means a resumed run."""
    kind = record.get("kind")
    if kind == "end":
        return _closing(record)
    if kind != "window":
        raise ValueError(f"kind is {kind!r}, neither 'window' nor 'end'")
    window = _window(record)
    if windows and window.row < windows[-1].row:
        raise ValueError(f"row {window.row} comes after row {windows[-1].row}")
    windows.append(window)
    return None


def _closing(record: dict[str, Any]) -> dict[str, Any]:
    """The line that ends a run, with its numbers checked."""
    baselines = record.get("baselines") or {}
    parts = {"total": record.get("total"), "clock": record.get("clock"), **baselines}
    for part, values in parts.items():
        if not isinstance(values or {}, dict):
            raise ValueError(f"{part} is not an object")
        for key, value in (values or {}).items():
            if key != "at":
                _number(value, f"{part}.{key}")
    if not isinstance(record.get("classes") or [], list):
        raise ValueError("classes is not a list")
    return record


def _number(value: object, name: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}, not a number")
    if not abs(value) <= _LARGEST:
        raise ValueError(f"{name} is {value!r}, too large to be drawn")
    return float(value)


def _life(value: object, name: str) -> float:
    """A half-life, which may be infinite."""
    return math.inf if value == "inf" else _number(value, name)


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        raise ValueError(f"{name} is {value!r}, not a whole number")
    return value


def _scores(record: Mapping[str, Any]) -> dict[str, float]:
    parts: dict[str, Mapping[str, Any]] = {
        "window": record["window"],
        "total": record["total"],
        "clock": {k: v for k, v in (record.get("clock") or {}).items() if k != "at"},
    }
    for name, both in (record.get("baselines") or {}).items():
        for part in ("window", "total"):
            parts[f"{name.replace('.', '_')}.{part}"] = both.get(part) or {}
    return {
        f"{prefix}.{key}": _number(value, f"{prefix}.{key}")
        for prefix, values in parts.items()
        for key, value in values.items()
        if value is not None
    }


def _window(record: dict[str, Any]) -> Window:
    return Window(
        row=_whole(record["row"], "row"),
        n=_whole(record["n"], "n"),
        missing=_whole(record.get("missing") or 0, "missing"),
        scores=_scores(record),
        half_life=_half_life(record.get("half_life")),
        drift=tuple(
            Alarm(_whole(one["row"], "drift.row"), _number(one.get("confidence"), "confidence"))
            for one in record.get("drift") or ()
        ),
        new_classes=tuple(
            NewClass(_whole(one["code"], "code"), str(one["label"]), _whole(one["row"], "row"))
            for one in record.get("new_classes") or ()
        ),
        confusion=_confusion(record.get("confusion") or []),
        reliability=_reliability(record.get("reliability")),
        pit=_counts(record["pit"]["count"], "pit.count") if record.get("pit") else None,
    )


def _half_life(value: Mapping[str, Any] | None) -> HalfLife | None:
    if value is None:
        return None
    lives = tuple(_life(one, "half_life.half_lives") for one in value["half_lives"])
    weights = tuple(_number(one, "half_life.weights") for one in value["weights"])
    if len(lives) != len(weights) or not lives:
        raise ValueError(f"half_life has {len(lives)} half-lives and {len(weights)} weights")
    if any(not life > 0 for life in lives) or any(not weight >= 0 for weight in weights):
        raise ValueError("half_life has a half-life that is not positive or a negative weight")
    return HalfLife(lives, weights, _life(value.get("median"), "half_life.median"))


def _confusion(value: list[Any]) -> IntArray:
    if not value:
        return np.zeros((0, 3), dtype=np.int64)
    pairs = np.array(value)  # a list that is not a table, or not of whole numbers, shows here
    if pairs.dtype != np.int64 or pairs.ndim != 2 or pairs.shape[1] != 3:
        raise ValueError("confusion is not a list of triples of whole numbers")
    if pairs.min() < -1 or pairs[:, [0, 2]].min() < 0:
        raise ValueError("confusion has a negative code or count")
    return pairs


def _counts(value: list[Any], name: str) -> FloatArray:
    counts = np.array([_number(one, name) for one in value])
    if counts.ndim != 1 or not counts.size or not np.all(counts >= 0):
        raise ValueError(f"{name} is not a list of counts")
    return counts


def _reliability(value: Mapping[str, Any] | None) -> FloatArray | None:
    if value is None:
        return None
    parts = [_counts(value[key], f"reliability.{key}") for key in ("count", "confidence", "right")]
    if len({len(part) for part in parts}) != 1:
        raise ValueError("reliability has lists of different lengths")
    return np.array(parts)
