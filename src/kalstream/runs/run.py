"""A run: the prequential loop, written down as it goes, and continued after whatever stopped it.

The folder holds config.json, metrics.jsonl, checkpoint/ and, if asked for, predictions.jsonl. A
checkpoint is model-ROW.safetensors and progress.json, which names it and is replaced as a whole: it
counts once it is there. It also holds how long the other files were, so that what was written
after it is cut off when the run is resumed. One process at a time writes into the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from sklearn.base import clone

from kalstream import __version__
from kalstream._files import Lock
from kalstream.errors import InvalidInput, KalstreamError
from kalstream.evaluate import Evaluation, Record, prequential
from kalstream.evaluate.adapters import known
from kalstream.evaluate.prequential import TOGETHER
from kalstream.runs.checkpoint import columns_of, load_learner, remedy
from kalstream.runs.files import (
    CONFIG,
    FORMAT,
    LOCK,
    METRICS,
    PREDICTIONS,
    PROGRESS,
    REPORT,
    check_lines,
    digest_of,
    last_line,
    read_config,
    read_progress,
    write_config,
    write_progress,
)
from kalstream.runs.options import Options, blamed, checked
from kalstream.streams import ArrayStream, Stream
from kalstream.streams._base import REGRESSION

_MAY_CHANGE: Final = ("limit", "bad_rows")
_WARM_UP_ROWS: Final = 1024


class RunError(KalstreamError, RuntimeError):
    """A run could not go on; what it had learned is in its last checkpoint."""


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
    overwrite : bool
        Whether to replace a run that is in the folder. It is left alone until this one has been
        checked: its options, its stream, its learner.
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
        overwrite: bool = False,
        config: dict[str, Any] | None = None,
    ) -> None:
        if not checkpoint_every >= 0.0:
            raise InvalidInput(f"checkpoint_every must be 0 s or more, got {checkpoint_every!r}")
        self.folder, self.options, self.checkpoint_every = Path(folder), options, checkpoint_every
        self.checkpoint = self.folder / "checkpoint"
        self.lock = _lock_of(self.folder)
        self.notes: list[str] = []
        self.overwrite, self.is_new = overwrite, config is None
        self._progress = None if config is None else self._old_progress(config)
        begun = self._progress is not None and self._progress["evaluation"] is not None
        columns = columns_of(self.checkpoint, self._progress) if self._progress and begun else None
        self.stream = options.open_stream(columns)
        self._stamps = _stamps(self.stream)
        if config is not None:
            self._check_data(config)
        self.learner = options.make_learner(self.stream)
        if self._progress is not None and begun:
            self.learner = load_learner(self.learner, self.checkpoint, self._progress)
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
        self.sizes = {METRICS: 0, PREDICTIONS: 0}
        self._saved: tuple[int, int] | None = None  # rows predicted and learned at the last save
        self._kept = False  # whether the state to go on from is saved, and only a result may follow
        self._savable = can_be_saved(self.learner)
        if self._progress is not None and begun:
            self._restore(self._progress)

    # ---- beginning, or going on -----------------------------------------------------------

    @classmethod
    def resume(
        cls, folder: str | Path, changes: Mapping[str, Any] | None = None, **how: Any
    ) -> Run | None:
        """Go on with a run that was stopped or killed; None if nothing is left to do (`why_done`).

        Parameters
        ----------
        folder : path
        changes : {option: value}, optional
            ``limit`` and ``bad_rows`` may be changed, since they do not touch what has been learned;
            all others must be those of the run.
        **how
            As of `Run`.
        """
        folder = Path(folder)
        if why_done(folder, changes):
            return None
        lock = _lock_of(folder)
        lock.acquire()
        try:
            config, was, now = _asked(folder, changes or {})  # nobody changes it from here on
            config["options"] = now.model_dump()
            config["protocol"]["limit"] = now.limit
            run = cls(folder, now, config=config, **how)
            if now != was:
                write_config(folder, config)
        except BaseException:
            lock.release()
            raise
        run.lock = lock
        if config["version"] != __version__:
            run.notes.append(f"begun by kalstream {config['version']}: bits may differ")
        return run

    def _config(self, command: str) -> dict[str, Any]:
        options, stream, learner = self.options, self.stream, self.learner
        about = {"attribution": stream.attribution, "bytes": _bytes(self._stamps)}
        return {
            "format": FORMAT,
            "version": __version__,
            "run": uuid.uuid4().hex,
            "command": command,
            "options": options.model_dump(),
            "stream": stream.describe() | about,
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

    def _old_progress(self, config: dict[str, Any]) -> dict[str, Any] | None:
        progress = read_progress(self.checkpoint)
        if progress is not None and progress["run"] != config["run"]:
            raise InvalidInput(
                f"{self.checkpoint / PROGRESS} is of another run than {self.folder / CONFIG}; "
                f"{remedy(self.checkpoint)}"
            )
        if progress is None or progress["evaluation"] is None:
            self.notes.append("there was no checkpoint yet: starting over")
        return progress

    def _check_data(self, config: dict[str, Any]) -> None:
        if self.stream.describe()["fingerprint"] != config["stream"]["fingerprint"]:
            raise InvalidInput(
                f"{self.options.source} has changed since {self.folder} was begun; restore it as "
                "it was, or give --out another folder"
            )

    def _restore(self, progress: dict[str, Any]) -> None:
        """Put the evaluation where the checkpoint has it."""
        try:
            self.evaluation.restore(progress["evaluation"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise InvalidInput(
                f"{self.checkpoint / PROGRESS} is damaged: evaluation: {error!r}; "
                f"{remedy(self.checkpoint)}"
            ) from error
        self.sizes.update(progress["sizes"])
        for name in (METRICS, *([PREDICTIONS] if self.options.predictions else [])):
            check_lines(self.folder / name, self.sizes[name])
        self.resumed_at = self.evaluation.n_rows

    # ---- running --------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Compile or load what the learner needs, on rows that mean nothing, before time counts.

        A parameter that the learner does not take is found here.
        """
        columns = self.stream.columns
        if not hasattr(self.learner, "predict_then_learn") or columns is None:
            return
        rng = np.random.default_rng(0)
        n = 2 * TOGETHER + min(self.options.chunk, _WARM_UP_ROWS)
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
        try:
            self.warm_up()
            self._begin()
            with self._file(METRICS) as metrics, self._predictions() as predictions:
                files = [file for file in (metrics, predictions) if file is not None]
                reason, message = self._to_the_end(watch, stopped, metrics, predictions, files)
                reason, message = self._save_last(reason, message, files)
                end = self._end(reason, message, time.perf_counter() - begun)
                if self.evaluation.n_rows > self.evaluation.rows_before:
                    _write_line(metrics, self._timed(self.evaluation.line()))
                _write_line(metrics, end)
        except OSError as error:
            if isinstance(error, KalstreamError):
                raise
            raise self._disk_error(error) from error
        finally:
            self.lock.release()
        return end

    def _to_the_end(
        self,
        watch: Callable[[Evaluation, Record], None],
        stopped: Callable[[], bool],
        metrics: IO[bytes],
        predictions: IO[bytes] | None,
        files: list[IO[bytes]],
    ) -> tuple[str, str | None]:
        """Predict and learn; returns why that came to its end, and what went wrong."""
        evaluation = self.evaluation
        try:
            if self._learn(watch, stopped, metrics, predictions, files):
                return "interrupted", None
            is_limit = evaluation.limit is not None and evaluation.n_rows >= evaluation.limit
            if is_limit and self.stream.repeatable:
                if not self._kept:
                    self._save(files)
                self._kept = True  # what is learned now is not learned before the next row
            evaluation.finish()
        except KeyboardInterrupt:  # while it waited for rows, or a second one
            return "interrupted", None
        except Exception as error:  # bad data, a bad learner: what was learned is kept
            if isinstance(error, OSError) and not isinstance(error, KalstreamError):
                raise
            return "error", self._blamed(error)
        return ("limit" if is_limit else "end"), None

    def _save_last(
        self, reason: str, message: str | None, files: list[IO[bytes]]
    ) -> tuple[str, str | None]:
        """Save the state at the end, unless an interrupt left it in the middle of a chunk."""
        if not self.evaluation.settled:
            return reason, message
        try:
            if self._kept:
                self._save_result()
            else:
                self._save(files)
        except RunError as error:  # of the learner
            return "error", message or str(error)
        return reason, message

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
        for record in self.evaluation.records(lambda: self._before_cut(files)):
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
            if time.perf_counter() - saved > self.checkpoint_every and not self._kept:
                self._save(files)
                saved = time.perf_counter()
        return stopped() and not self.stream.repeatable  # the pipe was closed by the same Ctrl-C

    def _blamed(self, error: Exception) -> str:
        """What went wrong, and of a learner of somebody else's where."""
        if isinstance(error, KalstreamError):
            return as_typed(str(error))
        return f"{type(self.learner).__name__} broke off: {blamed(error)}"

    def _begin(self) -> None:
        """Take the folder, and clear it of the run that is replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock.acquire()
        if self.is_new:
            if (self.folder / CONFIG).exists() and not self.overwrite:
                raise InvalidInput(
                    f"{self.folder} holds a run already; resume it, replace it with --overwrite, "
                    "or give --out another folder"
                )
            # config.json comes last: until it is replaced, the folder is that of the old run
            for name in (f"{self.checkpoint.name}/{PROGRESS}", METRICS, PREDICTIONS, REPORT):
                (self.folder / name).unlink(missing_ok=True)
            self._remove_models(())
            write_config(self.folder, self.config)
            self.is_new = False
        self.checkpoint.mkdir(exist_ok=True)

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

    def _before_cut(self, files: list[IO[bytes]]) -> None:
        """Save the state before a chunk that the limit cuts: without the limit it is longer."""
        if self.stream.repeatable:
            self._save(files)
            self._kept = True

    def _save(self, files: list[IO[bytes]]) -> None:
        """Write a checkpoint to go on from, if the learner can be saved."""
        for file in files:
            file.flush()
            os.fsync(file.fileno())
            self.sizes[Path(file.name).name] = file.tell()
        state = (self.evaluation.n_rows, self.evaluation.n_learned)
        if not self._savable or not self.evaluation.adapter.is_fitted or state == self._saved:
            return
        model, digest = self._save_model()
        self._write_progress(
            sizes=dict(self.sizes),
            model=model,
            model_sha256=digest,
            evaluation=self.evaluation.state(),
            result=None,
        )
        self._saved = state

    def _save_result(self) -> None:
        """Save the model to predict with, beside the one to go on from."""
        state = (self.evaluation.n_rows, self.evaluation.n_learned)
        if not self._savable or not self.evaluation.adapter.is_fitted or state == self._saved:
            return
        model, digest = self._save_model()
        nothing = {"sizes": dict.fromkeys(self.sizes, 0), "model": None, "model_sha256": None}
        before = self._progress or {**nothing, "evaluation": None}
        names = ("sizes", "model", "model_sha256", "evaluation")
        result = {"model": model, "sha256": digest, "row": state[0]}
        self._write_progress(**{name: before[name] for name in names}, result=result)

    def _save_model(self) -> tuple[str, str]:
        """Write the learner to a file that the checkpoint does not name; its name and digest."""
        suffix = "pt" if hasattr(self.learner, "restore") else "safetensors"
        row, used = self.evaluation.n_rows, _models_of(self._progress)
        names = (f"model-{row}{end}.{suffix}" for end in ("", "-2", "-3"))
        name = next(name for name in names if name not in used)
        try:
            self.learner.save(self.checkpoint / name)
        except (KalstreamError, OSError):
            raise
        except Exception as error:
            self._savable = False
            raise RunError(
                f"{type(self.learner).__name__}.save failed at row {row}: {blamed(error)}; "
                "correct it, or remove it to run without checkpoints"
            ) from error
        return name, digest_of(self.checkpoint / name)

    def _write_progress(self, **state: Any) -> None:
        """Replace progress.json, and remove the models that it does not name any more."""
        columns = getattr(self.stream, "encoder", None)
        self._progress = {
            "format": FORMAT,
            "run": self.config["run"],
            "learner": type(self.learner).__name__,
            "stream": self.config["stream"],
            "columns": None if columns is None else columns.to_json(),
            **state,
        }
        write_progress(self.checkpoint, self._progress)
        self._remove_models(_models_of(self._progress))

    def _remove_models(self, but: tuple[str, ...]) -> None:
        for pattern in ("model-*.safetensors", "model-*.pt", "*.part"):
            for old in self.checkpoint.glob(pattern):
                if old.name not in but:
                    old.unlink(missing_ok=True)

    @property
    def has_checkpoint(self) -> bool:
        """Whether a model has been saved."""
        return self._progress is not None

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
        said = {"skipped": skipped, "skipped_why": examples, "data_changed": self._data_changed()}
        return {**line, "reason": reason, "message": message, **said}

    def _data_changed(self) -> str | None:
        """A sentence about data that changed while they were read."""
        now = _stamps(self.stream)
        if now == self._stamps:
            return None
        try:
            if self.stream.describe()["fingerprint"] == self.config["stream"]["fingerprint"]:
                return None
        except OSError:  # it is gone
            pass
        sizes = f"from {_bytes(self._stamps):,} to {_bytes(now):,} bytes"
        return (
            f"{self.options.source} changed while it was read ({sizes}); these numbers belong to "
            "no one version of it, and this run cannot be resumed. Run again with --out another "
            "folder"
        )

    def _disk_error(self, error: OSError) -> RunError:
        kept = "there is no checkpoint yet"
        with contextlib.suppress(InvalidInput, OSError):
            progress = read_progress(self.checkpoint)
            if progress is not None and progress["evaluation"] is not None:
                kept = f"the checkpoint at row {progress['evaluation']['n_rows']} is whole"
        where = f" ({error.filename})" if error.filename else ""
        return RunError(
            f"{self.folder}: {error.strerror or error}{where}; {kept}. When that is mended, go on "
            f"with: kalstream run --resume --out {self.folder}"
        )


def why_done(folder: str | Path, changes: Mapping[str, Any] | None = None) -> str:
    """Why there is nothing left to do for a run; empty if there is something.

    Parameters
    ----------
    folder, changes
        As of `Run.resume`.
    """
    folder = Path(folder)
    config, _, now = _asked(folder, changes or {})
    last = last_line(folder)
    ended = last.get("kind") == "end"
    if ended and last.get("reason") == "end":
        more = _since(config)
        return f"{folder} has come to its end already, at row {last['row']:,}; nothing to do{more}"
    if now.limit is None:
        return ""
    progress = read_progress(folder / "checkpoint")
    reached = last["row"] if ended else 0
    if progress is not None and progress["evaluation"] is not None:
        reached = max(reached, progress["evaluation"]["n_rows"])
    if now.limit < reached or (now.limit == reached and ended):
        return (
            f"{folder} has reached row {reached:,}, and the limit is {now.limit:,}; nothing to do. "
            "Resume with a higher --limit, or with --limit 0 for none"
        )
    return ""


def _since(config: dict[str, Any]) -> str:
    """A warning if the file of a run that has ended has another size now."""
    if not config["stream"].get("bytes"):
        return ""
    source, size = Path(config["options"]["source"]), config["stream"]["bytes"]
    if not source.is_file() or source.stat().st_size == size:
        return ""
    return (
        f". {source} had {size:,} bytes and has {source.stat().st_size:,} now: run it again with "
        "--out another folder"
    )


def _asked(folder: Path, changes: Mapping[str, Any]) -> tuple[dict[str, Any], Options, Options]:
    """The configuration of a run that is to be resumed, its options, and those from now on."""
    config = read_config(folder)
    if config is None:
        raise InvalidInput(f"{folder} holds no run to resume: there is no config.json")
    was = Options(**config["options"])
    for name, value in changes.items():
        if value != getattr(was, name) and name not in _MAY_CHANGE:
            raise InvalidInput(
                f"{folder} was run with {name} {getattr(was, name)!r}, now it is {value!r}; "
                "resume it with the same options, or give --out another folder"
            )
    if was.source == "-":
        raise InvalidInput(
            f"{folder} read standard input, which cannot be read again; "
            "save the stream to a file to have runs that can be resumed"
        )
    return config, was, checked(Options, {**was.model_dump(), **changes})


def _lock_of(folder: Path) -> Lock:
    remedy = "wait until it has ended, stop it, or give --out another folder"
    return Lock(folder / LOCK, str(folder), remedy)


def _stamps(stream: Stream) -> dict[str, tuple[int, int]]:
    """Size and time of the last change of each file of a stream."""
    found = {}
    for path in getattr(stream, "_paths", ()):
        with contextlib.suppress(OSError):
            status = path.stat()
            found[str(path)] = (status.st_size, status.st_mtime_ns)
    return found


def _bytes(stamps: dict[str, tuple[int, int]]) -> int:
    return sum(size for size, _ in stamps.values())


def _models_of(progress: dict[str, Any] | None) -> tuple[str, ...]:
    """Names of the models that a checkpoint needs."""
    if progress is None:
        return ()
    result = progress["result"] or {}
    return tuple(name for name in (progress["model"], result.get("model")) if name is not None)


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
    said = answer.point_predictions().tolist()
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
