"""The model of a checkpoint: found by progress.json, checked against its digest, and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kalstream.errors import InvalidInput, KalstreamError
from kalstream.runs.files import digest_of, read_progress
from kalstream.runs.options import blamed
from kalstream.streams import Columns


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
        from kalstream.estimators.checkpoint import kind_of

        return _kind(kinds, kind_of(path), path).load(path), None, None
    for folder in (path / "checkpoint", path):
        progress = read_progress(folder)
        while progress is not None:
            named = progress["result"] or {
                "model": progress["model"],
                "sha256": progress["model_sha256"],
            }
            kind = _kind(kinds, progress["learner"], folder)
            try:
                model = kind.load(checked_model(folder, named["model"], named["sha256"]))
            except (KalstreamError, OSError):
                before, progress = progress, read_progress(folder)
                if progress == before:
                    raise
                continue  # a run that goes on has replaced the checkpoint in the meantime
            return model, columns_of(folder, progress), progress
    raise InvalidInput(
        f"{path} holds no checkpoint; give a run, its checkpoint folder, or a file that save wrote"
    )


def _kind(kinds: dict[str, Any], name: str, path: Path) -> Any:
    if name not in kinds:
        raise InvalidInput(f"{path} holds a {name}, which is not one of {', '.join(kinds)}")
    return kinds[name]


def columns_of(folder: Path, progress: dict[str, Any]) -> Columns | None:
    """The encoder of a checkpoint's columns, if its stream is a table."""
    if progress["columns"] is None:
        return None
    try:
        return Columns.from_json(progress["columns"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"{folder / 'progress.json'} is damaged: columns: {error!r}; {remedy(folder)}"
        ) from error


def checked_model(folder: Path, name: str | None, digest: str | None) -> Path:
    """The file of a checkpoint's model, if it is the one that progress.json means."""
    if name is None:
        raise InvalidInput(f"{folder} holds no model yet; resume the run first")
    path = folder / name
    if not path.is_file():
        raise InvalidInput(f"{path}, which progress.json names, is missing; {remedy(folder)}")
    if digest is not None and digest_of(path) != digest:
        raise InvalidInput(
            f"{path} is not the model that progress.json names: it is damaged, or of another run; "
            f"{remedy(folder)}"
        )
    return path


def load_learner(learner: Any, folder: Path, progress: dict[str, Any]) -> Any:
    """The learner of a checkpoint, given one that has learned nothing."""
    kind = type(learner)
    if progress["learner"] != kind.__name__:
        raise InvalidInput(
            f"{folder} holds a {progress['learner']}, and the run's learner is now a "
            f"{kind.__name__}; use the learner that the run was begun with"
        )
    path = checked_model(folder, progress["model"], progress["model_sha256"])
    of_parts = hasattr(learner, "restore")  # a network cannot be made from a file
    try:
        return (learner.restore if of_parts else kind.load)(path)
    except (KalstreamError, OSError):
        raise
    except Exception as error:
        name = "restore" if of_parts else "load"
        raise InvalidInput(
            f"{kind.__name__}.{name} failed on {path}: {blamed(error)}; correct it, or "
            f"{remedy(folder)}"
        ) from error


def remedy(folder: Path) -> str:
    """What to do about a checkpoint that cannot be used."""
    return f"restore it from a copy, or delete {folder} and resume: the run then starts over"
