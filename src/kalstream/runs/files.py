"""The files of a run: their names, and one schema for writing and reading them.

config.json and checkpoint/progress.json are JSON objects. Each has a format, the id of its run and
a SHA-256 of everything else in it. `read_config` and `read_progress` return content that has the
fields below, or raise an error that names the file and the remedy.

Compatibility: every version of kalstream reads all earlier formats. To change a field, increase
`FORMAT` and add to `_MIGRATIONS` a function from the content of the old format to the new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kalstream._files import is_temporary, write_whole
from kalstream._json import loads
from kalstream.errors import InvalidInput
from kalstream.runs.options import Options, checked

FORMAT: Final = 6
LOCK: Final = ".lock"
CONFIG: Final = "config.json"
CHECKPOINT: Final = "checkpoint"  # a folder, which holds the models and
PROGRESS: Final = "progress.json"
METRICS: Final = "metrics.jsonl"
PREDICTIONS: Final = "predictions.jsonl"
REPORT: Final = "report.html"

_PIECE: Final = 1 << 20  # bytes

Count = Annotated[int, Field(ge=0, lt=1 << 53)]
_Positive = Annotated[int, Field(ge=1, lt=1 << 53)]
Seconds = Annotated[float, Field(ge=0.0)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_ModelName = Annotated[str, Field(pattern=r"^model-[0-9-]+\.(safetensors|pt)$")]  # never a path


class _Part(BaseModel):
    """Fields that must be present; others are kept."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Stream(_Part):
    name: str
    task: Literal["classification", "regression"]
    fingerprint: str | None


class _Learner(_Part):
    name: str
    params: dict[str, Any]


class _Protocol(_Part):
    chunk: _Positive
    delay: Count
    delay_seconds: Seconds | None = None
    cost: Annotated[float, Field(ge=1.0)]
    window: _Positive
    limit: _Positive | None
    seed: Annotated[int, Field(ge=0)]
    checkpoint_every: Seconds | None = None


class _Origin(_Part):
    path: str
    run: str | None
    rows: Count
    sha256: Digest | None
    classes: list[str | int | float | bool]


class _Extension(_Part):
    row: Count
    source: str
    command: str
    stream: _Stream
    skipped: Count
    skipped_why: list[str]


class Config(_Part):
    """config.json: the options, streams and learner of a run.

    Attributes
    ----------
    origin : {path, run, rows, sha256, classes}, optional
        Where the model came from, if the run did not begin with a new one. The classes are the
        labels that are known from the start, in the order of their codes.
    extensions : list of {row, source, command, stream, skipped, skipped_why}
        Data that were added later: the number of their first row, and the bad rows before it.
    """

    model_config = ConfigDict(extra="forbid")

    format: int
    version: str
    run: str
    command: str
    options: Options
    origin: _Origin | None
    stream: _Stream
    extensions: list[_Extension]
    learner: _Learner
    protocol: _Protocol
    machine: dict[str, Any]


class _Clock(_Part):
    seconds: Seconds
    before: Seconds


class _Late(_Part):
    again: Count = 0


class _Evaluation(_Part):
    n_rows: Count
    n_learned: Count
    rows_before: Count
    n_infinite: Count
    tracker: dict[str, Any]
    forgetting: dict[str, Any]
    clock: _Clock
    late: _Late | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if max(self.n_learned, self.rows_before) > self.n_rows:
            raise ValueError("n_learned and rows_before must not exceed n_rows")
        return self


class _Sizes(_Part):
    metrics: Count = Field(alias=METRICS)
    predictions: Count = Field(alias=PREDICTIONS)


class _Skipped(_Part):
    n: Count
    why: list[str]


class _Result(_Part):
    model: _ModelName
    sha256: Digest | None
    row: Count


class Progress(_Part):
    """checkpoint/progress.json: the state from which a run resumes, and the model to predict with.

    Attributes
    ----------
    model, model_sha256, evaluation, sizes
        The state to resume from: the learner, the evaluation, and the lengths of metrics.jsonl and
        predictions.jsonl. None and 0 if a resumed run starts over.
    result : {model, sha256, row}, optional
        The model to predict with, if it is not ``model``. At a limit it has also learned the rows
        with late labels, and those of the last chunk, which the limit has cut.
    skipped : {n, why}
        Bad rows so far. A file is read again and counted again; a pipe is not.
    """

    model_config = ConfigDict(extra="forbid")

    format: int
    run: str
    learner: str
    stream: _Stream
    columns: dict[str, Any] | None
    skipped: _Skipped
    sizes: _Sizes
    model: _ModelName | None
    model_sha256: Digest | None
    evaluation: _Evaluation | None
    result: _Result | None


def _with_ids(content: dict[str, Any]) -> dict[str, Any]:
    """Format 2: the id of the run, digests, and a result beside the state to resume from."""
    content = {**content, "run": "format 1"}
    if "evaluation" in content:
        content |= {"model_sha256": None, "result": None}
    return content


def _with_names(content: dict[str, Any]) -> dict[str, Any]:
    """Format 3: parts of the evaluation have other names."""
    evaluation = content.get("evaluation")
    if not isinstance(evaluation, dict) or "n_learnt" not in evaluation:
        return content
    names = {"n_learnt": "n_learned", "judge": "tracker", "watched": "forgetting"}
    renamed = {names.get(name, name): value for name, value in evaluation.items()}
    return {**content, "evaluation": renamed}


def _with_likelihood(content: dict[str, Any]) -> dict[str, Any]:
    """Format 4: classifiers observed labels as one-hot vectors before there was a choice."""
    options, learner = content.get("options"), content.get("learner")
    if not (isinstance(options, dict) and isinstance(learner, dict)):
        return content
    word = "onehot" if learner.get("name") == "KalmanClassifier" else "auto"
    return {**content, "options": {"likelihood": word, **options}}


def _with_extensions(content: dict[str, Any]) -> dict[str, Any]:
    """Format 5: models from other runs, and data that were added to a run."""
    if "options" in content:
        return {**content, "origin": None, "extensions": []}
    return {**content, "skipped": {"n": 0, "why": []}}


def _with_calendars(content: dict[str, Any]) -> dict[str, Any]:
    """Format 6: a date has its parts of the calendar as categories; with none it is one number."""
    return content


_MIGRATIONS: Final[dict[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    1: _with_ids,
    2: _with_names,
    3: _with_likelihood,
    4: _with_extensions,
    5: _with_calendars,
}


# ---- reading and writing --------------------------------------------------------------------


def read_config(folder: Path) -> dict[str, Any] | None:
    """The content of config.json; None if there is none."""
    return _read(
        folder / CONFIG,
        Config,
        "restore it from a copy, or run again and give --out another folder",
    )


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Replace config.json."""
    _write(folder / CONFIG, Config, config, indent=1)


def read_progress(checkpoint: Path) -> dict[str, Any] | None:
    """The content of progress.json in the folder of a checkpoint; None if there is none."""
    return _read(
        checkpoint / PROGRESS,
        Progress,
        remedy_for(checkpoint),
    )


def write_progress(checkpoint: Path, progress: dict[str, Any]) -> None:
    """Replace progress.json."""
    _write(checkpoint / PROGRESS, Progress, progress)


def remedy_for(checkpoint: Path) -> str:
    """What to do about a file of a checkpoint that cannot be used."""
    return f"restore it from a copy, or delete {checkpoint} and resume (the run then starts over)"


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a run, perhaps one without any results."""
    return (folder / CONFIG).exists()


def refuse_run(folder: Path) -> None:
    """Refuse a folder that holds a run."""
    if holds_run(folder):
        raise InvalidInput(
            f"{folder} already holds a run; resume it with --resume, replace it with "
            "--overwrite, or give --out another folder"
        )


def refuse_other_files(folder: Path) -> None:
    """Refuse a path that is no folder, or a folder with files that do not belong to a run."""
    if not folder.exists():
        return
    ours = (CHECKPOINT, LOCK)  # a run that was killed before it wrote config.json leaves these
    if not folder.is_dir() or not all(
        path.name in ours or is_temporary(path) for path in folder.iterdir()
    ):
        raise InvalidInput(
            f"{folder} is a file, or a folder that is not a run; give --out another folder"
        )


def last_line(folder: Path) -> dict[str, Any]:
    """The last line of metrics.jsonl; empty if it is incomplete, as a resumed run cuts it off."""
    try:
        with (folder / METRICS).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _PIECE))
            end = file.read()
            if end.count(b"\n") < 2:  # one long line
                file.seek(0)
                end = file.read()
    except FileNotFoundError:
        return {}
    if not end.endswith(b"\n"):
        return {}
    try:
        line = json.loads(end.splitlines()[-1].decode())
    except (ValueError, RecursionError):
        return {}
    return line if isinstance(line, dict) and isinstance(line.get("row"), int) else {}


def report_is_outdated(folder: Path) -> bool:
    """Whether a run was killed between its last line and its report."""
    report, metrics = folder / REPORT, folder / METRICS
    return not report.exists() or report.stat().st_mtime_ns < metrics.stat().st_mtime_ns


def check_lines(path: Path, size: int) -> None:
    """Refuse a file of lines that is shorter than at the checkpoint, or has no line end there."""
    actual = path.stat().st_size if path.exists() else 0
    end = b"\n"
    if 0 < size <= actual:
        with path.open("rb") as file:
            file.seek(size - 1)
            end = file.read(1)
    if actual < size or end != b"\n":
        problem = f"has {actual} bytes" if actual < size else "is cut in the middle of a line"
        raise InvalidInput(
            f"{path} is damaged: it {problem}, but had {size} bytes at the checkpoint; "
            f"{remedy_for(path.parent / CHECKPOINT)}"
        )


def _read(path: Path, kind: type[BaseModel], remedy: str) -> dict[str, Any] | None:
    try:
        content = loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is damaged: {error}; {remedy}") from error
    number = content.get("format") if isinstance(content, dict) else None
    if type(number) is not int or number < 1:
        raise InvalidInput(f"{path} is damaged: it has no format; {remedy}")
    if number > FORMAT:
        raise InvalidInput(
            f"{path} has format {number}; this version of kalstream reads formats up to {FORMAT}; "
            "upgrade kalstream"
        )
    digest = content.pop("sha256", None)
    if digest is not None and digest != _digest(content):
        raise InvalidInput(
            f"{path} is damaged or was edited: its SHA-256 does not match its entry; {remedy}. "
            'If you edited it, delete its entry "sha256"'
        )
    for each in range(number, FORMAT):
        content = _MIGRATIONS[each](content)
    content["format"] = FORMAT
    try:
        checked(kind, content)
    except InvalidInput as error:
        raise InvalidInput(f"{path} is damaged: {error}; {remedy}") from error
    return content


def _write(
    path: Path, kind: type[BaseModel], content: dict[str, Any], indent: int | None = None
) -> None:
    content = json.loads(json.dumps(content, allow_nan=False))  # as a reader gets it
    checked(kind, content)
    content["sha256"] = _digest(content)
    write_whole(path, json.dumps(content, indent=indent) + "\n")


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()
