"""A run: the prequential loop, written down as it goes, and continued after whatever stopped it.

The folder holds config.json, metrics.jsonl, checkpoint/ and, if asked for, predictions.jsonl. A
checkpoint is model-ROW.safetensors and progress.json, which names it and is replaced as a whole: it
counts once it is there. It also holds how long the other files were, so that what was written
after it is cut off when the run is resumed.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from sklearn.base import clone

from kalstream import __version__
from kalstream._files import write_whole
from kalstream.errors import InvalidInput, KalstreamError
from kalstream.evaluate import Evaluation, Record, prequential
from kalstream.evaluate.learners import known
from kalstream.evaluate.prequential import TOGETHER
from kalstream.experiments.options import Options
from kalstream.streams import ArrayStream, Columns
from kalstream.streams._base import REGRESSION

FORMAT: Final = 1
_MAY_CHANGE: Final = ("limit", "bad_rows")


class RunError(KalstreamError, RuntimeError):
    """A run could not go on; what it had learnt is in its last checkpoint."""


class Run:
    """A run in its folder.

    Parameters
    ----------
    folder : Path
    options : Options
    command : str
        What is to be typed to have the same run again.
    checkpoint_every : float
        Seconds.
    config : dict
        Of the run that is gone on with; see `resume`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     run = Run(Path(folder) / "run", Options(source="weather", limit=300, features="raw"))
    ...     end = run.go()
    ...     sorted(path.name for path in run.folder.iterdir())
    ['checkpoint', 'config.json', 'metrics.jsonl']
    >>> end["row"], end["reason"]
    (300, 'limit')
    """

    def __init__(
        self,
        folder: str | Path,
        options: Options,
        *,
        command: str = "",
        checkpoint_every: float = 30.0,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.folder, self.options, self.checkpoint_every = Path(folder), options, checkpoint_every
        self.checkpoint = self.folder / "checkpoint"
        self.notes: list[str] = []
        progress = None if config is None else self._progress()
        columns = progress and progress["columns"]
        self.stream = options.open_stream(Columns.from_json(columns) if columns else None)
        self.learner = options.make_learner(self.stream)
        if progress is not None:
            model = self.checkpoint / progress["model"]
            of_parts = hasattr(self.learner, "restore")  # a network cannot be made from a file
            self.learner = (self.learner.restore if of_parts else type(self.learner).load)(model)
        self.config = config or self._config(command)
        protocol = self.config["protocol"]
        self.evaluation = Evaluation(
            self.learner,
            self.stream,
            together=max(1, TOGETHER // options.chunk),
            classes=self._classes(),
            **{name: protocol[name] for name in ("chunk", "delay", "cost", "window", "limit")},
        )
        self.resumed_at: int | None = None
        self.sizes = {"metrics.jsonl": 0, "predictions.jsonl": 0}
        if progress is not None:
            self.evaluation.restore(progress["evaluation"])
            self.sizes.update(progress["sizes"])
            self.resumed_at = self.evaluation.n_rows

    # ---- beginning, or going on -----------------------------------------------------------

    @classmethod
    def resume(
        cls, folder: str | Path, changes: Mapping[str, Any] | None = None, **how: Any
    ) -> Run | None:
        """Go on with a run that was stopped or killed; None if it has come to its end.

        Parameters
        ----------
        folder : path
        changes : {option: value}, optional
            ``limit`` and ``bad_rows`` may be changed, since they do not touch what has been learnt;
            all others must be those of the run.
        **how
            As of `Run`.
        """
        folder = Path(folder)
        config = _read_json(folder / "config.json")
        if config is None:
            raise InvalidInput(f"{folder} holds no run to resume: there is no config.json")
        if config["format"] > FORMAT:
            raise InvalidInput(
                f"{folder} was written by kalstream {config['version']}; upgrade kalstream"
            )
        was = Options(**config["options"])
        for name, value in (changes or {}).items():
            if value != getattr(was, name) and name not in _MAY_CHANGE:
                raise InvalidInput(
                    f"{folder} was run with {name} {getattr(was, name)!r}, now it is {value!r}; "
                    "resume it with the same options, or give --out another folder"
                )
        now = was.model_copy(update=dict(changes or {}))
        if was.source == "-":
            raise InvalidInput(
                f"{folder} read standard input, which cannot be read again; "
                "save the stream to a file to have runs that can be resumed"
            )
        last = _last_line(folder / "metrics.jsonl") or {}
        if last.get("reason") == "end" or (
            last.get("reason") == "limit" and now.limit is not None and now.limit <= last["row"]
        ):
            return None
        config["options"] = now.model_dump()
        config["protocol"]["limit"] = now.limit
        run = cls(folder, now, config=config, **how)
        if run.stream.describe()["fingerprint"] != config["stream"]["fingerprint"]:
            raise InvalidInput(
                f"{was.source} has changed since {folder} was begun; give --out another folder"
            )
        if now != was:
            _write_json(folder / "config.json", config)
        if config["version"] != __version__:
            run.notes.append(f"begun by kalstream {config['version']}: bits may differ")
        return run

    def _config(self, command: str) -> dict[str, Any]:
        options, stream, learner = self.options, self.stream, self.learner
        return {
            "format": FORMAT,
            "version": __version__,
            "command": command,
            "options": options.model_dump(),
            "stream": stream.describe() | {"attribution": stream.attribution},
            "learner": {"name": type(learner).__name__, "params": _params(learner)},
            "protocol": {
                "chunk": options.chunk,
                "delay": options.delay,
                "cost": options.cost,
                "window": options.window_of(stream),
                "limit": options.limit,
                "seed": options.seed,
            },
            "machine": _machine(),
        }

    def _classes(self) -> list[Any] | None:
        """Labels in a first pass, for a learner that has to know them at its first call."""
        if hasattr(self.learner, "predict_then_learn") or self.stream.classes is not None:
            return self.stream.classes
        if self.stream.task == REGRESSION or not hasattr(self.learner, "partial_fit"):
            return None
        if not self.stream.repeatable:
            return None
        self.notes.append("the learner must know all classes: read them in a first pass")
        labels = dict.fromkeys(
            label for batch in self.stream.batches() for label in batch.targets.tolist()
        )
        labels.pop(None, None)
        return sorted(labels, key=lambda label: (type(label).__name__, label))

    def _progress(self) -> dict[str, Any] | None:
        progress = _read_json(self.checkpoint / "progress.json")
        if progress is None:
            self.notes.append("there was no checkpoint yet: starting over")
        return progress

    # ---- running --------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Compile or load what the learner needs, on rows that mean nothing, before time counts."""
        columns = self.stream.columns
        if not hasattr(self.learner, "predict_then_learn") or columns is None:
            return
        rng, n = np.random.default_rng(0), 2 * TOGETHER + self.options.chunk
        times = None if self.options.time is None else np.arange(n, dtype=np.float64)
        targets = rng.standard_normal(n) if self.stream.task == REGRESSION else np.arange(n) % 2
        rows = rng.standard_normal((n, len(columns)))
        stream = ArrayStream(rows, targets, times, task=self.stream.task)
        how = {name: self.config["protocol"][name] for name in ("chunk", "delay", "cost")}
        together = self.evaluation.together
        prequential(clone(self.learner), stream, together=together, **how)

    def go(
        self,
        watch: Callable[[Evaluation, Record], None] = lambda evaluation, record: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """Run to the end, or until ``stopped`` says so; returns the last line of metrics.jsonl.

        Parameters
        ----------
        watch : function of the evaluation and a record
            Called after every few rows.
        stopped : function
            Asked after every few rows.
        """
        begun = time.perf_counter()
        self.warm_up()
        reason, message = "end", None
        try:
            self._begin()
            with self._file("metrics.jsonl") as metrics, self._predictions() as predictions:
                files = [file for file in (metrics, predictions) if file is not None]
                try:
                    if self._learn(watch, stopped, metrics, predictions, files):
                        reason = "interrupted"
                except KeyboardInterrupt:  # while it waited for rows
                    reason = "interrupted"
                except OSError:
                    raise
                except Exception as error:  # bad data, a bad learner: what was learnt is kept
                    reason, message = "error", self._blamed(error)
                if reason == "end":
                    self.evaluation.finish()
                    if self.evaluation.limit == self.evaluation.n_rows:
                        reason = "limit"
                self._save(files)
                end = self._end(reason, message, time.perf_counter() - begun)
                if self.evaluation.n_rows > self.evaluation.rows_before:
                    _write_line(metrics, self._timed(self.evaluation.line()))
                _write_line(metrics, end)
        except OSError as error:
            raise self._disk_error(error) from error
        return end

    def _learn(
        self,
        watch: Callable[[Evaluation, Record], None],
        stopped: Callable[[], bool],
        metrics: IO[bytes],
        predictions: IO[bytes] | None,
        files: list[IO[bytes]],
    ) -> bool:
        """The loop; whether it was stopped."""
        saved = time.perf_counter()
        for record in self.evaluation.records():
            if predictions is not None:
                _write_predictions(predictions, record, self.stream.task)
            if record.line is not None:
                _write_line(metrics, self._timed(record.line))
            watch(self.evaluation, record)
            if stopped():
                return True
            if not self.stream.repeatable:  # others may be reading along
                for file in files:
                    file.flush()
            if time.perf_counter() - saved > self.checkpoint_every:
                self._save(files)
                saved = time.perf_counter()
        return stopped() and not self.stream.repeatable  # the pipe was closed by the same Ctrl-C

    def _blamed(self, error: Exception) -> str:
        """What went wrong, and of a learner of somebody else's where."""
        if isinstance(error, KalstreamError):
            return as_typed(str(error))
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        learner = type(self.learner).__name__
        return f"{learner} broke off: {type(error).__name__}: {error} ({where})"

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint.mkdir(exist_ok=True)
        if not (self.folder / "config.json").exists():
            _write_json(self.folder / "config.json", self.config)

    @contextlib.contextmanager
    def _file(self, name: str) -> Iterator[IO[bytes]]:
        """A file to which lines are added, behind those that the checkpoint knows of."""
        path = self.folder / name
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(self.sizes[name])
            file.seek(0, os.SEEK_END)
            yield file

    def _predictions(self) -> Any:
        wanted = self.options.predictions
        return self._file("predictions.jsonl") if wanted else contextlib.nullcontext()

    def _save(self, files: list[IO[bytes]]) -> None:
        """Write a checkpoint, if the learner can be saved."""
        for file in files:
            file.flush()
            os.fsync(file.fileno())
            self.sizes[Path(file.name).name] = file.tell()
        if not can_be_saved(self.learner) or not self.evaluation.adapter.taught:
            return
        suffix = "pt" if hasattr(self.learner, "restore") else "safetensors"
        model = f"model-{self.evaluation.n_rows}.{suffix}"
        self.learner.save(self.checkpoint / model)
        columns = getattr(self.stream, "encoder", None)
        progress = {
            "format": FORMAT,
            "model": model,
            "learner": type(self.learner).__name__,
            "stream": self.config["stream"],
            "columns": None if columns is None else columns.to_json(),
            "sizes": self.sizes,
            "evaluation": self.evaluation.state(),
        }
        _write_json(self.checkpoint / "progress.json", progress)
        for old in self.checkpoint.glob(f"model-*.{suffix}"):
            if old.name != model:
                old.unlink(missing_ok=True)

    @property
    def can_be_resumed(self) -> bool:
        """Whether the stream can be had again and the learner saved."""
        return self.stream.repeatable and can_be_saved(self.learner)

    # ---- what is told ---------------------------------------------------------------------

    def _timed(self, line: dict[str, Any]) -> dict[str, Any]:
        line["clock"] |= {"memory_mb": memory_mb(), "at": datetime.now().isoformat("T", "seconds")}
        return line

    def _end(self, reason: str, message: str | None, wall_seconds: float) -> dict[str, Any]:
        line = self._timed(self.evaluation.end_line())
        line["clock"] |= {"wall_seconds": wall_seconds, "memory_mb": memory_mb(peak=True)}
        skipped = getattr(self.stream, "skipped", 0)
        examples = list(getattr(self.stream, "skipped_why", ()))
        said = {"skipped": skipped, "skipped_why": examples}
        return {**line, "reason": reason, "message": message, **said}

    def _disk_error(self, error: OSError) -> RunError:
        progress = _read_json(self.checkpoint / "progress.json")
        kept = "there is no checkpoint yet"
        if progress is not None:
            kept = f"the checkpoint at row {progress['evaluation']['n_rows']} is whole"
        where = f" ({error.filename})" if error.filename else ""
        return RunError(
            f"{self.folder}: {error.strerror or error}{where}; {kept}. When that is mended, go on "
            f"with: kalstream run --resume --out {self.folder}"
        )


def open_checkpoint(path: str | Path) -> tuple[Any, Columns | None, dict[str, Any] | None]:
    """A model, the encoder of its columns and its progress.

    Parameters
    ----------
    path : path
        Of a run, of its checkpoint folder, or of a file that `save` wrote (which has no encoder).
    """
    from kalstream.estimators import KalmanClassifier, KalmanRegressor

    path = Path(path)
    kinds = {cls.__name__: cls for cls in (KalmanClassifier, KalmanRegressor)}
    if path.is_file():
        from kalstream.estimators._checkpoint import kind_of

        return _load(kinds, kind_of(path), path), None, None
    for folder in (path / "checkpoint", path):
        progress = _read_json(folder / "progress.json")
        if progress is not None:
            columns = progress["columns"]
            model = _load(kinds, progress["learner"], folder / progress["model"])
            return model, Columns.from_json(columns) if columns else None, progress
    raise InvalidInput(
        f"{path} holds no checkpoint; give a run, its checkpoint folder, or a file that save wrote"
    )


def _load(kinds: dict[str, Any], name: str, path: Path) -> Any:
    if name not in kinds:
        raise InvalidInput(f"{path} holds a {name}, which is not one of {', '.join(kinds)}")
    return kinds[name].load(path)


def as_typed(message: str) -> str:
    """A message about arguments as one about options of the command line."""

    def option(found: re.Match[str]) -> str:
        values = re.findall(r"""["']([^"']*)["']""", found[2])
        return f"--{found[1].replace('_', '-')} {','.join(values)}"

    names = "bad_rows|task|categorical|ignore|time|target|classes"
    message = message.replace("resume=False", "--overwrite")
    return re.sub(rf"""\b({names})=(\[[^\]]*\]|"[^"]*"|'[^']*')""", option, message)


def can_be_saved(learner: Any) -> bool:
    """Whether a learner can write itself to a file and be had back from it."""
    back = hasattr(type(learner), "load") or hasattr(learner, "restore")
    return hasattr(learner, "save") and back


def memory_mb(peak: bool = False) -> float:
    """Megabytes of memory that this process holds, or has held at most.

    Where a system does not say the first, it is the second; where neither, 0.
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


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }


def _params(learner: Any) -> dict[str, Any]:
    params = learner.get_params(deep=False) if hasattr(learner, "get_params") else {}
    return json.loads(json.dumps(params, default=lambda v: getattr(v, "__name__", repr(v))))


def _write_line(file: IO[bytes], line: dict[str, Any]) -> None:
    file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
    file.flush()


def _write_predictions(file: IO[bytes], record: Record, task: str) -> None:
    """A line for each row of a record, its target or not."""
    batch, answer = record.batch, record.answer
    there = known(batch.targets).tolist()
    said = answer.said().tolist()
    for i, (target, prediction) in enumerate(zip(batch.targets.tolist(), said, strict=True)):
        line = {"row": batch.start + i, "target": target if there[i] else None}
        if task == REGRESSION:
            std = None if answer.std is None else float(answer.std[i])
            line |= {"mean": _finite(prediction), "std": _finite(std)}
        else:
            line["prediction"] = prediction
            if answer.probabilities is not None:
                each = answer.probabilities[i].tolist()
                shown = dict(zip(map(str, answer.labels or ()), each, strict=True))
                line["probabilities"] = {k: p for k, p in shown.items() if p > 0.0}
        file.write(json.dumps(line, allow_nan=False).encode() + b"\n")


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a file as a whole."""
    indent = 1 if path.name == "config.json" else None
    write_whole(path, json.dumps(content, allow_nan=False, indent=indent) + "\n")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is damaged: {error}") from error


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file of lines."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    try:
        return json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        return None
