"""A run: a stream, a learner and a protocol, in a folder from which it can be resumed.

The folder holds config.json, metrics.jsonl, checkpoint/ and, if wanted, predictions.jsonl. A
checkpoint also holds the lengths of the files of lines: what was written after it is cut off when
the run is resumed. One process at a time writes into the folder.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn.base import clone

from kalstream import __version__
from kalstream._files import Lock
from kalstream.errors import InvalidInput, InvalidOption, KalstreamError
from kalstream.evaluate import Evaluation, prequential
from kalstream.evaluate.prequential import TOGETHER
from kalstream.runs.checkpoint import (
    CheckpointWriter,
    RunError,
    can_be_saved,
    columns_of,
    load_learner,
)
from kalstream.runs.files import (
    CHECKPOINT,
    CONFIG,
    LOCK,
    METRICS,
    PREDICTIONS,
    PROGRESS,
    REPORT,
    check_lines,
    read_progress,
    refuse_run,
    remedy_for,
    write_config,
)
from kalstream.runs.loop import Loop, Outcome, Watch
from kalstream.runs.options import Options
from kalstream.runs.results import ResultFiles, memory_mb, with_clock
from kalstream.runs.resume import resumed_options, why_done
from kalstream.runs.setup import make_config, make_learner, open_stream
from kalstream.streams import REGRESSION, ArrayStream, Stream

_WARM_UP_ROWS: Final = 1024


class Run:
    """A run in its folder.

    Parameters
    ----------
    folder : Path
    options : Options
    command : str
        The command line that starts the same run.
    checkpoint_every : float
        Seconds between checkpoints.
    overwrite : bool
        Whether to replace a run that is in the folder. The old run stays as it is until the
        options, the stream and the learner of the new one have been checked.
    config : dict
        Content of config.json of a run that is resumed; see `resume`.

    Attributes
    ----------
    stream : Stream
    learner : object
    evaluation : Evaluation
    config : dict
        Content of config.json.
    resumed_at : int or None
        The row from which a resumed run continues; None if it starts over.
    notes : list of str
        What the user should know about the run.

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
            raise InvalidOption(f"--checkpoint-every must be 0 s or more, got {checkpoint_every!r}")
        self.folder, self.options, self.checkpoint_every = Path(folder), options, checkpoint_every
        self.lock = _lock_of(self.folder)
        self.notes: list[str] = []
        self.overwrite, self.is_new = overwrite, config is None
        checkpoint = self.folder / CHECKPOINT
        progress = None if config is None else self._progress_of(checkpoint, config)
        # A checkpoint may hold a result without a state to resume from: then the run starts over.
        state = progress if progress is not None and progress["evaluation"] is not None else None
        columns = None if state is None else columns_of(checkpoint, state)
        self.stream = open_stream(options, columns)
        self._files = _sizes_and_times(self.stream)
        if config is not None:
            self._check_data(config)
        self.learner = make_learner(options, self.stream)
        if state is not None:
            self.learner = load_learner(self.learner, checkpoint, state)
        self.config = config or make_config(
            options, self.stream, self.learner, command, _total_size(self._files)
        )
        protocol = self.config["protocol"]
        self.evaluation = Evaluation(
            self.learner,
            self.stream,
            together=max(1, TOGETHER // options.chunk),
            classes=self._classes(),
            **{name: protocol[name] for name in ("chunk", "delay", "cost", "window", "limit")},
        )
        self.checkpoint = CheckpointWriter(
            checkpoint, self.config, self.learner, self.evaluation, progress
        )
        self.resumed_at: int | None = None
        self._sizes = {METRICS: 0, PREDICTIONS: 0}
        if state is not None:
            self._restore(state)

    @classmethod
    def resume(
        cls, folder: str | Path, changes: Mapping[str, Any] | None = None, **parameters: Any
    ) -> Run | None:
        """Resume a run that was stopped or killed; None if nothing is left to do (`why_done`).

        Parameters
        ----------
        folder : path
        changes : {option: value}, optional
            ``limit`` and ``bad_rows`` may change, since they do not affect what has been learned.
            All others must be those of the run.
        **parameters
            Parameters of `Run`.
        """
        folder = Path(folder)
        if why_done(folder, changes):
            return None
        lock = _lock_of(folder)
        lock.acquire()
        try:
            # Read the options again: from here on no other process changes them.
            config, old, new = resumed_options(folder, changes or {})
            config["options"] = new.model_dump()
            config["protocol"]["limit"] = new.limit
            run = cls(folder, new, config=config, **parameters)
            if new != old:
                write_config(folder, config)
        except BaseException:
            lock.release()
            raise
        run.lock = lock
        if config["version"] != __version__:
            run.notes.append(
                f"started by kalstream {config['version']}: results may differ in the last digits"
            )
        return run

    def _classes(self) -> list[Any] | None:
        """All labels, read in a first pass if the learner must know them at its first call."""
        if hasattr(self.learner, "predict_then_learn") or self.stream.classes is not None:
            return self.stream.classes
        if self.stream.task == REGRESSION or not hasattr(self.learner, "partial_fit"):
            return None
        if not self.stream.repeatable:
            return None
        self.notes.append("the learner must know all classes: they are read in a first pass")
        labels = dict.fromkeys(
            label for batch in self.stream.batches() for label in batch.targets.tolist()
        )
        labels.pop(None, None)
        return sorted(labels, key=lambda label: (type(label).__name__, label))

    # ---- resuming -------------------------------------------------------------------------

    def _progress_of(self, checkpoint: Path, config: dict[str, Any]) -> dict[str, Any] | None:
        progress = read_progress(checkpoint)
        if progress is not None and progress["run"] != config["run"]:
            raise InvalidInput(
                f"{checkpoint / PROGRESS} belongs to another run than {self.folder / CONFIG}; "
                f"{remedy_for(checkpoint)}"
            )
        if progress is None or progress["evaluation"] is None:
            self.notes.append("there is no checkpoint yet: starting over")
        return progress

    def _check_data(self, config: dict[str, Any]) -> None:
        if self.stream.describe()["fingerprint"] != config["stream"]["fingerprint"]:
            raise InvalidInput(
                f"{self.options.source} has changed since {self.folder} was started; restore the "
                "data, or run again and give --out another folder"
            )

    def _restore(self, progress: dict[str, Any]) -> None:
        """Set the evaluation to the state of the checkpoint."""
        folder = self.checkpoint.folder
        try:
            self.evaluation.restore(progress["evaluation"])
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidInput(
                f"{folder / PROGRESS} is damaged (entry evaluation: {error!r}); "
                f"{remedy_for(folder)}"
            ) from error
        self._sizes.update(progress["sizes"])
        for name in (METRICS, *([PREDICTIONS] if self.options.predictions else [])):
            check_lines(self.folder / name, self._sizes[name])
        self.resumed_at = self.evaluation.n_rows

    # ---- running --------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Run the learner on random rows, so that compiling is not part of the measured time.

        This also finds parameters that the learner does not accept.
        """
        columns = self.stream.columns
        if not hasattr(self.learner, "predict_then_learn") or columns is None:
            return
        rng = np.random.default_rng(0)
        n = 2 * TOGETHER + min(self.options.chunk, _WARM_UP_ROWS)
        times = np.arange(n, dtype=np.float64) if self.stream.timed else None
        targets = rng.standard_normal(n) if self.stream.task == REGRESSION else np.arange(n) % 2
        rows = rng.standard_normal((n, len(columns)))
        stream = ArrayStream(rows, targets, times, task=self.stream.task)
        protocol = {name: self.config["protocol"][name] for name in ("chunk", "delay", "cost")}
        together = self.evaluation.together
        try:
            prequential(clone(self.learner), stream, together=together, **protocol)
        except InvalidInput as error:  # the rows are good, so an option is not
            raise InvalidOption(f"--{error}" if _names_option(error) else str(error)) from error

    def go(
        self,
        watch: Watch = lambda evaluation, record: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """Run to the end, or until ``stopped`` is true; returns the last line of metrics.jsonl.

        Parameters
        ----------
        watch : function of the evaluation and a record
            Called after every record.
        stopped : function
            Called after every record.
        """
        started = time.perf_counter()
        try:
            self.warm_up()
            self._take_folder()
            with ResultFiles(
                self.folder,
                self._sizes,
                task=self.stream.task,
                predictions=self.options.predictions,
            ) as results:
                outcome = Loop(
                    self.evaluation,
                    results,
                    self.checkpoint,
                    self.checkpoint_every,
                    watch,
                    stopped,
                ).run()
                end = self._end_line(outcome, time.perf_counter() - started)
                if self.evaluation.n_rows > self.evaluation.rows_before:
                    results.write_line(with_clock(self.evaluation.line()))
                results.write_line(end)
        except OSError as error:
            if isinstance(error, KalstreamError):
                raise
            raise self._disk_error(error) from error
        finally:
            self.lock.release()
        return end

    def _take_folder(self) -> None:
        """Lock the folder, and remove the run that is replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock.acquire()
        if self.is_new:
            if not self.overwrite:
                refuse_run(self.folder)
            # config.json comes last: until it is replaced, the folder belongs to the old run
            self.checkpoint.remove()
            for name in (METRICS, PREDICTIONS, REPORT):
                (self.folder / name).unlink(missing_ok=True)
            write_config(self.folder, self.config)
            self.is_new = False
        self.checkpoint.folder.mkdir(exist_ok=True)

    @property
    def has_checkpoint(self) -> bool:
        """Whether a model has been saved."""
        return self.checkpoint.progress is not None

    @property
    def can_be_resumed(self) -> bool:
        """Whether the stream can be read again and the learner can be saved."""
        return self.stream.repeatable and can_be_saved(self.learner)

    # ---- the end --------------------------------------------------------------------------

    def _end_line(self, outcome: Outcome, wall_seconds: float) -> dict[str, Any]:
        line = with_clock(self.evaluation.end_line())
        line["clock"] |= {"wall_seconds": wall_seconds, "memory_mb": memory_mb(peak=True)}
        return {
            **line,
            "reason": outcome.reason,
            "message": outcome.message,
            "skipped": self.stream.skipped,
            "skipped_why": list(self.stream.skipped_why),
            "data_changed": self._data_changed(),
        }

    def _data_changed(self) -> str | None:
        """A sentence about data that changed while they were read."""
        now = _sizes_and_times(self.stream)
        if now == self._files:
            return None
        try:
            if self.stream.describe()["fingerprint"] == self.config["stream"]["fingerprint"]:
                return None
        except OSError:  # the file is gone
            pass
        sizes = f"from {_total_size(self._files):,} to {_total_size(now):,} bytes"
        return (
            f"{self.options.source} changed while it was read ({sizes}), so the results mix two "
            "versions of it, and this run cannot be resumed. Run again, and give --out another "
            "folder"
        )

    def _disk_error(self, error: OSError) -> RunError:
        kept = "there is no checkpoint yet"
        with contextlib.suppress(InvalidInput, OSError):
            progress = read_progress(self.checkpoint.folder)
            if progress is not None and progress["evaluation"] is not None:
                kept = f"the checkpoint at row {progress['evaluation']['n_rows']} is complete"
        where = f" ({error.filename})" if error.filename else ""
        return RunError(
            f"{self.folder}: {error.strerror or error}{where}; {kept}. Correct the cause, then "
            f"resume with: kalstream run --resume --out {self.folder}"
        )


def _lock_of(folder: Path) -> Lock:
    remedy = "wait until it has ended, stop it, or give --out another folder"
    return Lock(folder / LOCK, str(folder), remedy)


def _names_option(error: InvalidInput) -> bool:
    """Whether a message begins with the name of an option, as "forgetting must be" does."""
    return str(error).partition(" ")[0] in Options.model_fields


def _sizes_and_times(stream: Stream) -> dict[str, tuple[int, int]]:
    """Size and time of last change of each file of a stream."""
    stats = {}
    for path in stream.files:
        with contextlib.suppress(OSError):
            status = path.stat()
            stats[str(path)] = (status.st_size, status.st_mtime_ns)
    return stats


def _total_size(files: dict[str, tuple[int, int]]) -> int:
    return sum(size for size, _ in files.values())
