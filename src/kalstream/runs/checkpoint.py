"""Checkpoints of a run: written while it runs, and read to resume it or to use its model.

A checkpoint is model-ROW.safetensors and progress.json, which names the model. progress.json is
replaced as a whole after the model was written: the checkpoint is valid from that moment on.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from kalstream._files import sha256_of
from kalstream.errors import InvalidInput, KalstreamError
from kalstream.runs.files import (
    CHECKPOINT,
    FORMAT,
    METRICS,
    PREDICTIONS,
    PROGRESS,
    holds_run,
    read_progress,
    remedy_for,
    write_progress,
)
from kalstream.runs.setup import describe_error
from kalstream.streams import Columns, Stream


class RunError(KalstreamError, RuntimeError):
    """A run could not continue; its last checkpoint holds what it had learned.

    Examples
    --------
    `Run.go` raises it, for example if the disk is full:

    >>> try:
    ...     raise RunError("runs/shop/metrics.jsonl: No space left on device")
    ... except RuntimeError as error:
    ...     print(error)
    runs/shop/metrics.jsonl: No space left on device
    """


def can_be_saved(learner: Any) -> bool:
    """Whether a learner can be saved to a file and loaded from it."""
    can_be_loaded = hasattr(type(learner), "load") or hasattr(learner, "restore")
    return hasattr(learner, "save") and can_be_loaded


class Resumable(Protocol):
    """What a checkpoint is made of; an `Evaluation` is one.

    Attributes
    ----------
    learner : object
        Saved with its method ``save``, if it has one.
    stream : Stream
        Its encoder and the rows that it left out are saved.
    n_rows, n_learned : int
        A checkpoint is written only if one of them has changed.
    is_fitted : bool
        Whether there is anything to save.
    """

    n_rows: int
    n_learned: int
    stream: Stream

    @property
    def learner(self) -> Any: ...  # noqa: D102

    @property
    def is_fitted(self) -> bool: ...  # noqa: D102

    def state(self) -> dict[str, Any]:
        """Everything to resume from but the learner and the encoder, as JSON."""
        ...


class CheckpointWriter:
    """Writes the checkpoints of a run.

    Parameters
    ----------
    folder : Path
    config : dict
        Content of config.json, of which ``run`` and ``stream`` are saved.
    source : Resumable
        What is saved.
    every : float
        Seconds after which the next checkpoint `is_due`.
    progress : dict or None
        Content of progress.json, if the run is resumed.
    """

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        source: Resumable,
        every: float,
        progress: dict[str, Any] | None = None,
    ) -> None:
        self.folder, self.config, self.progress = folder, config, progress
        self.source, self.every = source, every
        self._saved: tuple[int, int] | None = None  # rows predicted and learned at the last save
        self._saved_at = time.perf_counter()
        self._can_save = can_be_saved(source.learner)

    @property
    def is_due(self) -> bool:
        """Whether the last call of `save` is long ago."""
        return time.perf_counter() - self._saved_at > self.every

    def save(self, sizes: dict[str, int]) -> None:
        """Write the state to resume from, if it has changed and the learner can be saved.

        Parameters
        ----------
        sizes : {file: bytes}
            Lengths of metrics.jsonl and predictions.jsonl.
        """
        if not self._nothing_to_save():
            self._save_state(sizes)
        self._saved_at = time.perf_counter()

    def _save_state(self, sizes: dict[str, int]) -> None:
        model, digest = self._save_model()
        self._write(
            sizes=sizes,
            model=model,
            model_sha256=digest,
            evaluation=self.source.state(),
            result=None,
        )
        self._saved = self._position()

    def save_result(self) -> None:
        """Write the model to predict with, beside the state to resume from."""
        if self._nothing_to_save():
            return
        model, digest = self._save_model()
        start = {"sizes": {METRICS: 0, PREDICTIONS: 0}, "model": None, "model_sha256": None}
        state = self.progress or {**start, "evaluation": None}
        names = ("sizes", "model", "model_sha256", "evaluation")
        result = {"model": model, "sha256": digest, "row": self.source.n_rows}
        self._write(**{name: state[name] for name in names}, result=result)

    def remove(self) -> None:
        """Remove the checkpoint of a run that is replaced."""
        (self.folder / PROGRESS).unlink(missing_ok=True)
        self._remove_models(())

    def _position(self) -> tuple[int, int]:
        return self.source.n_rows, self.source.n_learned

    def _nothing_to_save(self) -> bool:
        is_new = not self.source.is_fitted
        return not self._can_save or is_new or self._position() == self._saved

    def _save_model(self) -> tuple[str, str]:
        """Write the learner to a new file; returns its name and digest."""
        learner, row, used = self.source.learner, self.source.n_rows, _models_of(self.progress)
        suffix = "pt" if hasattr(learner, "restore") else "safetensors"
        names = (f"model-{row}{end}.{suffix}" for end in ("", "-2", "-3"))
        name = next(name for name in names if name not in used)
        try:
            learner.save(self.folder / name)
        except (KalstreamError, OSError):
            raise
        except Exception as error:
            self._can_save = False
            raise RunError(
                f"{type(learner).__name__}.save failed at row {row}: "
                f"{describe_error(error)}; correct the method save, or remove it to run without "
                "checkpoints"
            ) from error
        return name, sha256_of(self.folder / name)

    def _write(self, **state: Any) -> None:
        """Replace progress.json, and remove the models that it no longer names."""
        stream = self.source.stream
        columns = stream.encoder
        self.progress = {
            "format": FORMAT,
            "run": self.config["run"],
            "learner": type(self.source.learner).__name__,
            "stream": self.config["stream"],
            "columns": None if columns is None else columns.to_json(),
            "skipped": {"n": stream.skipped, "why": list(stream.skipped_why)},
            **state,
        }
        write_progress(self.folder, self.progress)
        self._remove_models(_models_of(self.progress))

    def _remove_models(self, but: tuple[str, ...]) -> None:
        for pattern in ("model-*.safetensors", "model-*.pt", "*.part"):
            for old in self.folder.glob(pattern):
                if old.name not in but:
                    old.unlink(missing_ok=True)


def _models_of(progress: dict[str, Any] | None) -> tuple[str, ...]:
    """Names of the models that a checkpoint needs."""
    if progress is None:
        return ()
    result = progress["result"] or {}
    return tuple(name for name in (progress["model"], result.get("model")) if name is not None)


# ---- reading --------------------------------------------------------------------------------


def open_checkpoint(path: str | Path) -> tuple[Any, Columns | None, dict[str, Any] | None]:
    """The model to predict with, the encoder of its columns, and the content of progress.json.

    Parameters
    ----------
    path : path
        A run, its checkpoint folder, or a file that `save` wrote (then only the model is known).

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Options, Run
    >>> with TemporaryDirectory() as folder:
    ...     end = Run(folder, Options(source="weather", limit=300, features="raw")).go()
    ...     model, columns, progress = open_checkpoint(folder)
    >>> model.n_seen_, [column.name for column in columns.features][:2], progress["learner"]
    (300, ['feat_1', 'feat_2'], 'KalmanClassifier')
    """
    from kalstream.estimators import KalmanClassifier, KalmanRegressor, KeyedClassifier

    path = Path(path)
    kinds = {cls.__name__: cls for cls in (KalmanClassifier, KalmanRegressor, KeyedClassifier)}
    if path.is_file():
        from kalstream.estimators.checkpoint import kind_of

        return _kind(kinds, kind_of(path), path).load(path), None, None
    for folder in (path / CHECKPOINT, path):
        progress = read_progress(folder)
        while progress is not None:
            kind = _kind(kinds, progress["learner"], folder)
            try:
                model = kind.load(_checked_model(folder, *model_to_predict_with(progress)))
            except (KalstreamError, OSError):
                before, progress = progress, read_progress(folder)
                if progress == before:
                    raise
                continue  # a run that is under way has replaced the checkpoint in the meantime
            return model, columns_of(folder, progress), progress
    if holds_run(path):
        raise InvalidInput(
            f"{path} is a run without a checkpoint: it has learned nothing yet, or its learner "
            "cannot be saved; wait for its first checkpoint, or give another run"
        )
    raise InvalidInput(
        f"{path} holds no checkpoint; give a run, its checkpoint folder, or a file that save wrote"
    )


def model_to_predict_with(progress: dict[str, Any]) -> tuple[str | None, str | None]:
    """Name and digest of the model that has learned most, given progress.json."""
    if progress["result"] is not None:
        return progress["result"]["model"], progress["result"]["sha256"]
    return progress["model"], progress["model_sha256"]


def _kind(kinds: dict[str, Any], name: str, path: Path) -> Any:
    if name not in kinds:
        raise InvalidInput(
            f"{path} holds a {name}; give the folder of a run of {' or '.join(kinds)}"
        )
    return kinds[name]


def columns_of(folder: Path, progress: dict[str, Any]) -> Columns | None:
    """The encoder of a checkpoint's columns, if its stream has one."""
    if progress["columns"] is None:
        return None
    try:
        return Columns.from_json(progress["columns"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"{folder / PROGRESS} is damaged (entry columns: {error!r}); {remedy_for(folder)}"
        ) from error


def _checked_model(folder: Path, name: str | None, digest: str | None) -> Path:
    """The path of a checkpoint's model, whose digest is that in progress.json."""
    if name is None:
        raise InvalidInput(f"{folder} holds no model yet; resume the run first")
    path = folder / name
    if not path.is_file():
        raise InvalidInput(f"{path}, which {PROGRESS} names, is missing; {remedy_for(folder)}")
    if digest is not None and sha256_of(path) != digest:
        raise InvalidInput(
            f"{path} is not the model that {PROGRESS} names: it is damaged, or of another run; "
            f"{remedy_for(folder)}"
        )
    return path


def load_learner(learner: Any, folder: Path, progress: dict[str, Any]) -> Any:
    """The learner to resume with, given a new one of its kind."""
    kind = type(learner)
    if progress["learner"] != kind.__name__:
        raise InvalidInput(
            f"{folder} holds a {progress['learner']}, and the learner of the run is now a "
            f"{kind.__name__}; use the learner that the run was started with"
        )
    path = _checked_model(folder, progress["model"], progress["model_sha256"])
    restores = hasattr(learner, "restore")  # a network cannot be made from a file alone
    try:
        return (learner.restore if restores else kind.load)(path)
    except (KalstreamError, OSError):
        raise
    except Exception as error:
        name = "restore" if restores else "load"
        raise InvalidInput(
            f"{kind.__name__}.{name} failed on {path}: {describe_error(error)}; correct it, or "
            f"{remedy_for(folder)}"
        ) from error
