"""Whether a run can be resumed, and the options with which it continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kalstream.errors import InvalidInput
from kalstream.runs.files import CHECKPOINT, CONFIG, last_line, read_config, read_progress
from kalstream.runs.options import Options, typed

_MAY_CHANGE: Final = ("limit", "bad_rows")  # they do not affect what has been learned


def why_done(folder: str | Path, changes: Mapping[str, Any] | None = None) -> str:
    """The reason why a run cannot be resumed any further; "" if it can.

    Parameters
    ----------
    folder, changes
        As for `Run.resume`.
    """
    folder = Path(folder)
    config, _, options = resumed_options(folder, changes or {})
    last = last_line(folder)
    ended = last.get("kind") == "end"
    if ended and last.get("reason") == "end":
        warning = _size_warning(config)
        return f"{folder} has already ended, at row {last['row']:,}; nothing to do{warning}"
    if options.limit is None:
        return ""
    progress = read_progress(folder / CHECKPOINT)
    reached = last["row"] if ended else 0
    if progress is not None and progress["evaluation"] is not None:
        reached = max(reached, progress["evaluation"]["n_rows"])
    if options.limit < reached or (options.limit == reached and ended):
        return (
            f"{folder} has reached row {reached:,}, and the limit is {options.limit:,}; nothing to "
            "do. Resume with a higher --limit, or with --limit 0 for none"
        )
    return ""


def _size_warning(config: dict[str, Any]) -> str:
    """A warning if the file of a run that has ended now has another size."""
    size = config["stream"].get("bytes")
    source = Path(config["options"]["source"])
    if not size or not source.is_file() or source.stat().st_size == size:
        return ""
    return (
        f". {source} had {size:,} bytes and now has {source.stat().st_size:,}: run it again, and "
        "give --out another folder"
    )


def resumed_options(
    folder: Path, changes: Mapping[str, Any]
) -> tuple[dict[str, Any], Options, Options]:
    """The configuration of a run, its options, and those with which it is resumed."""
    config = read_config(folder)
    if config is None:
        raise InvalidInput(
            f"{folder} holds no run to resume: there is no {CONFIG}; give --out the folder of a run"
        )
    old = Options(**config["options"])
    for name, value in changes.items():
        if value != getattr(old, name) and name not in _MAY_CHANGE:
            option = typed(name)
            raise InvalidInput(
                f"{folder} was started with {option} {getattr(old, name)!r}, but {option} "
                f"{value!r} is given now; resume it with the same options, or run again and give "
                "--out another folder"
            )
    if old.source == "-":
        raise InvalidInput(
            f"{folder} read standard input, which cannot be read again; "
            "to be able to resume, save the input to a file and run that file"
        )
    return config, old, Options.of(**{**old.model_dump(), **changes})
