"""A run: a stream, a learner and a protocol, in a folder from which it can be resumed.

The folder holds config.json, metrics.jsonl, checkpoint/ and, if wanted, predictions.jsonl. A
checkpoint also holds the lengths of the files of lines: what was written after it is cut off when
the run is resumed. One process at a time writes into the folder.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn.base import clone

from kalstream import __version__
from kalstream._files import Lock
from kalstream.errors import InUse, InvalidInput, InvalidOption, KalstreamError
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
    holds_run,
    read_progress,
    refuse_run,
    remedy_for,
    write_config,
)
from kalstream.runs.loop import Ending, Loop, Watch
from kalstream.runs.options import CHECKPOINT_EVERY, Options
from kalstream.runs.origin import Origin, check_fits, check_is_table
from kalstream.runs.results import ResultFiles, memory_mb, with_clock
from kalstream.runs.resume import (
    MAY_CHANGE,
    MAY_CHANGE_IN_EXTENSION,
    add_extension,
    check_extendable,
    current_stream,
    resumed_options,
    why_done,
)
from kalstream.runs.setup import make_config, make_learner, max_waiting_of, open_stream
from kalstream.streams import REGRESSION, ArrayStream, LaterRows, Stream

_NEVER: Final = 1e12  # seconds: JSON has no infinity
_WARM_UP_ROWS: Final = 1024
_WARM_UP_DELAY: Final = 20


class Run:
    """A run in its folder.

    Parameters
    ----------
    folder : Path
    options : Options
    command : str
        The command line that starts the same run.
    checkpoint_every : float, optional
        Seconds between checkpoints; those of the run that is resumed, or 30.
    overwrite : bool
        Whether to replace a run that is in the folder. The old run stays as it is until the
        options, the stream and the learner of the new one have been checked.
    config : dict
        Content of config.json of a run that is resumed; see `resume`.
    extends : bool
        Whether the source is new data, after those of the checkpoint; see `extend`.

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
        checkpoint_every: float | None = None,
        overwrite: bool = False,
        config: dict[str, Any] | None = None,
        extends: bool = False,
    ) -> None:
        if checkpoint_every is not None and not checkpoint_every >= 0.0:
            raise InvalidOption(f"--checkpoint-every must be 0 s or more, got {checkpoint_every!r}")
        self.folder = Path(folder)
        self.lock = _lock_of(self.folder)
        self.notes: list[str] = []
        self.overwrite, self.is_new, self.command = overwrite, config is None, command
        checkpoint = self.folder / CHECKPOINT
        progress = None if config is None else self._progress_of(checkpoint, config)
        # A checkpoint may hold a result without a state to resume from: then the run starts over.
        state = progress if progress is not None and progress["evaluation"] is not None else None
        self.origin = self._origin(options, config) if state is None else None
        if self.origin is not None and config is None:
            options = self.origin.options(options)
        self.options = options
        columns = None if self.origin is None else self.origin.columns
        if state is not None:
            columns = columns_of(checkpoint, state)
        if extends and columns is not None:
            check_is_table(options.source, str(self.folder))
        self.stream = open_stream(options, columns)
        self._files = _sizes_and_times(self.stream)
        if config is not None:
            self.stream = self._continued(self.stream, config, state, extends)
        self.learner = self._learner(checkpoint, state, extends)
        n_waiting = max_waiting_of(options)
        if n_waiting > options.max_waiting:
            self.notes.append(
                f"--max-waiting is {options.max_waiting:,}, but --delay {options.delay} makes up "
                f"to {n_waiting:,} rows wait: so many are kept"
            )
        self.config = config or make_config(
            options, self.stream, self.learner, command, _total_size(self._files)
        )
        protocol = self.config["protocol"]
        if checkpoint_every is not None:
            protocol["checkpoint_every"] = min(float(checkpoint_every), _NEVER)
        self.checkpoint_every: float = protocol.get("checkpoint_every", CHECKPOINT_EVERY)
        self.evaluation = Evaluation(
            self.learner,
            self.stream,
            together=max(1, TOGETHER // options.chunk),
            classes=self._classes(),
            delay=_delay_of(protocol),
            **{name: protocol[name] for name in ("chunk", "cost", "window", "limit")},
        )
        self.checkpoint = CheckpointWriter(
            checkpoint, self.config, self.evaluation, self.checkpoint_every, progress
        )
        self.resumed_at: int | None = None
        self._sizes = {METRICS: 0, PREDICTIONS: 0}
        if state is not None:
            self._restore(state)
        if self.origin is not None:
            self._begin_with(self.origin)

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
            Parameters of `Run`. The run keeps ``checkpoint_every`` if it is not given.
        """
        folder = Path(folder)
        if why_done(folder, changes):
            with contextlib.suppress(InUse, OSError), _lock_of(folder):
                pass  # taken and released, the lock that a killed run left is gone
            return None
        return cls._reopened(folder, changes or {}, extends=False, **parameters)

    @classmethod
    def extend(
        cls,
        folder: str | Path,
        source: str | Path,
        changes: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> Run:
        """Continue a run that has ended with more data of the same kind.

        Its rows, windows and predictions continue after those of the data before.

        Parameters
        ----------
        folder : path
        source : path
            The new data: whatever a run can read, with the columns of the run.
        changes, **parameters
            As for `resume`. ``limit`` counts all rows of the run.
        """
        if not holds_run(Path(folder)):
            raise InvalidInput(f"{folder} holds no run to extend; give --extend the folder of one")
        changes = {**(changes or {}), "source": str(source)}
        return cls._reopened(Path(folder), changes, extends=True, **parameters)

    @classmethod
    def _reopened(
        cls, folder: Path, changes: Mapping[str, Any], *, extends: bool, **parameters: Any
    ) -> Run:
        may_change = MAY_CHANGE_IN_EXTENSION if extends else MAY_CHANGE
        resumed_options(folder, changes, may_change)  # an error if there is no run
        lock = _lock_of(folder)
        lock.acquire()
        try:
            # Read the options again: from here on no other process changes them.
            config, old, new = resumed_options(folder, changes, may_change)
            if extends:
                check_extendable(folder, config, new.limit)
            extensions, protocol = config["extensions"], {**config["protocol"]}
            config["options"] = new.model_dump()
            config["protocol"]["limit"] = new.limit
            run = cls(folder, new, config=config, extends=extends, **parameters)
            same = config["extensions"] == extensions and config["protocol"] == protocol
            if new != old or not same:
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

    # ---- beginning with a saved model -----------------------------------------------------

    def _origin(self, options: Options, config: dict[str, Any] | None) -> Origin | None:
        """The model that a run begins with, unless it begins with a new one."""
        if options.origin is None:
            return None
        if self.overwrite and Path(options.origin).resolve().is_relative_to(self.folder.resolve()):
            raise InvalidOption(
                f"--from {options.origin} is in the folder that --overwrite replaces; give --out "
                f"another folder, or add the data to the run with --extend {self.folder}"
            )
        origin = Origin.read(options.origin)
        if config is not None:
            origin.check_unchanged(config["origin"])
        return origin

    def _learner(self, checkpoint: Path, state: dict[str, Any] | None, extends: bool) -> Any:
        """The learner: a new one, or the one to continue with."""
        source = self.options.source
        if self.origin is not None:
            self.origin.check_stream(self.stream, source)
            self.origin.model.max_waiting = max_waiting_of(self.options)
            if self.options.max_age is not None:
                self.origin.model.max_age = self.options.max_age
            return self.origin.model
        if state is None:
            return make_learner(self.options, self.stream)
        # A pipe is not waited for: the unit of time is in the model.
        options = self.options.model_copy(update={"time_unit": "1"} if self.stream.timed else {})
        learner = load_learner(make_learner(options, self.stream), checkpoint, state)
        if extends:
            check_fits(learner, self.stream, source, str(self.folder))
        return learner

    def _begin_with(self, origin: Origin) -> None:
        rows = f"{origin.model.n_seen_:,} rows"
        self.notes.append(f"begins with the model of {origin.path}, which has learned {rows}")
        progress = origin.progress or {"evaluation": None}
        n_waiting = origin.model.waiting_.waiting
        if n_waiting and self.evaluation.late is not None:
            self.notes.append(
                f"{n_waiting:,} of its rows still wait for labels, which are not expected here; to "
                "bring these labels, add the data to their run with --extend"
            )
        try:
            self.evaluation.begin_with(progress["evaluation"])
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidInput(
                f"--from {origin.path}: its checkpoint is damaged ({error!r}); restore it from a "
                "copy, or give another run"
            ) from error
        self.config["origin"] = {**origin.entry(), "classes": list(self.evaluation.tracker.codes)}

    # ---- resuming -------------------------------------------------------------------------

    def _continued(
        self, stream: Stream, config: dict[str, Any], state: dict[str, Any] | None, extends: bool
    ) -> Stream:
        """The stream of a run that is resumed, with the numbers that its rows have in the run."""
        n_rows = 0 if state is None else state["evaluation"]["n_rows"]
        is_new = extends or not stream.repeatable
        if state is None and stream.repeatable and config["extensions"]:
            raise InvalidInput(
                f"{self.folder} was extended, at row {config['extensions'][-1]['row']:,}, and its "
                f"checkpoint is missing; restore {CHECKPOINT}/ from a copy, or run all the data "
                "again and give --out another folder"
            )
        if not is_new:
            self._check_data(stream, config)
        elif n_rows or extends:
            assert state is not None  # `check_extendable`
            add_extension(config, state, stream, self.options.source, self.command)
            config["extensions"][-1]["stream"]["bytes"] = _total_size(self._files)
            source = "standard input" if self.options.source == "-" else self.options.source
            self.notes.append(f"the rows of {source} follow row {n_rows:,}")
        else:
            config["extensions"] = []  # a pipe, of which nothing was learned
        if not config["extensions"]:
            return stream
        latest = config["extensions"][-1]
        if stream.encoder is not None and n_rows == latest["row"]:
            stream.encoder = replace(
                stream.encoder, seen=0
            )  # the rows before were those of other data
        return LaterRows(stream, latest["row"], latest["skipped"], latest["skipped_why"])

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

    def _check_data(self, stream: Stream, config: dict[str, Any]) -> None:
        if stream.describe()["fingerprint"] != current_stream(config)["fingerprint"]:
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
        keys = ["key"] * n if self.stream.keyed else None
        stream = ArrayStream(rows, targets, times, keys=keys, task=self.stream.task)
        protocol = {name: self.config["protocol"][name] for name in ("chunk", "cost")}
        # Few rows wait here; how long they do has no effect on what is compiled.
        late = self.evaluation.late is not None or self.evaluation.delay
        protocol["delay"] = _WARM_UP_DELAY if late else 0
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
        if self.origin is not None:  # from here on the run does not need it
            self.checkpoint.save(self._sizes)

    @property
    def has_checkpoint(self) -> bool:
        """Whether a model has been saved."""
        return self.checkpoint.progress is not None

    @property
    def can_be_resumed(self) -> bool:
        """Whether the learner can be saved; a pipe continues with the rows that come then."""
        return can_be_saved(self.learner)

    # ---- the end --------------------------------------------------------------------------

    def _end_line(self, outcome: Ending, wall_seconds: float) -> dict[str, Any]:
        line = with_clock(self.evaluation.end_line())
        line["clock"] |= {"wall_seconds": wall_seconds, "memory_mb": memory_mb(peak=True)}
        n_parts = 1 + len(self.config["extensions"])
        return {
            **line,
            **({"parts": n_parts} if n_parts > 1 else {}),
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
            fingerprint = current_stream(self.config)["fingerprint"]
            if self.stream.describe()["fingerprint"] == fingerprint:
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


def _delay_of(protocol: dict[str, Any]) -> int | timedelta:
    """The delay of labels, in rows or in time."""
    seconds = protocol.get("delay_seconds")
    return protocol["delay"] if seconds is None else timedelta(seconds=seconds)


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
