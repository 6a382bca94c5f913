"""metrics.jsonl and predictions.jsonl while a run writes them, and the memory it uses."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from kalstream.evaluate import Record
from kalstream.evaluate.adapters import known
from kalstream.runs.files import METRICS, PREDICTIONS
from kalstream.streams import REGRESSION


class ResultFiles:
    """The files of lines of a run, open for writing.

    Parameters
    ----------
    folder : Path
    sizes : {file: bytes}
        Lengths at the checkpoint. What was written after it is cut off.
    task : "classification" or "regression"
    predictions : bool
        Whether to write predictions.jsonl.
    """

    def __init__(
        self, folder: Path, sizes: dict[str, int], *, task: str, predictions: bool
    ) -> None:
        self.folder, self.task, self.sizes = folder, task, dict(sizes)
        self.names = (METRICS, PREDICTIONS) if predictions else (METRICS,)
        self._files: dict[str, IO[bytes]] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            for name in self.names:
                path = self.folder / name
                file = opened.enter_context(path.open("r+b" if path.exists() else "w+b"))
                file.truncate(self.sizes[name])
                file.seek(0, os.SEEK_END)
                self._files[name] = file
            self._open = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def write_line(self, line: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        file = self._files[METRICS]
        file.write(_encoded(line))
        file.flush()

    def write_predictions(self, record: Record) -> None:
        """Add a line to predictions.jsonl for each row of a record, if the run writes that file."""
        if PREDICTIONS not in self._files:
            return
        for line in prediction_lines(record, self.task):
            self._files[PREDICTIONS].write(_encoded(line))

    def flush(self) -> None:
        """Let other processes read all lines."""
        for file in self._files.values():
            file.flush()

    def sync(self) -> dict[str, int]:
        """Write all lines to the disk; returns the lengths of the files."""
        for name, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            self.sizes[name] = file.tell()
        return dict(self.sizes)


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def prediction_lines(record: Record, task: str) -> list[dict[str, Any]]:
    """A line for each row of a record that was predicted."""
    batch, answer = record.batch, record.answer
    has_target = known(batch.targets).tolist()
    predictions = answer.point_predictions().tolist()
    rows = range(len(batch)) if record.asked is None else record.asked
    lines = []
    for k, (i, prediction) in enumerate(zip(rows, predictions, strict=True)):
        line: dict[str, Any] = {"row": batch.start + i}
        if batch.ids is not None:
            line["id"] = batch.ids[i]
        if batch.keys is not None:
            line["key"] = batch.keys[i]
        target = batch.targets[i]
        line["target"] = _plain(target) if has_target[i] else None
        if task == REGRESSION:
            std = None if answer.std is None else float(answer.std[k])
            line |= {"mean": _finite(prediction), "std": _finite(std)}
        else:
            line["prediction"] = prediction
            if answer.probabilities is not None:
                values = answer.probabilities[k].tolist()
                probabilities = dict(zip(map(str, answer.labels or ()), values, strict=True))
                line["probabilities"] = {k: p for k, p in probabilities.items() if p > 0.0}
        lines.append(line)
    return lines


def _plain(target: Any) -> Any:
    return target.item() if isinstance(target, np.generic) else target


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def with_clock(line: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl with the memory in use and the time of day."""
    line["clock"] |= {"memory_mb": memory_mb(), "at": datetime.now().isoformat("T", "seconds")}
    return line


def memory_mb(peak: bool = False) -> float:
    """Megabytes of memory that this process uses, or its largest use so far.

    On systems that report only the largest use, this is returned in both cases; 0 if none is known.
    """
    if not peak:
        with contextlib.suppress(OSError):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    try:
        import resource
    except ImportError:  # not on Windows
        return 0.0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most * (1.0 if sys.platform == "darwin" else 1024.0) / 1e6
