"""Whether a run can be resumed, and the options with which it continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kalstream.errors import InvalidInput, InvalidOption
from kalstream.runs.files import CHECKPOINT, CONFIG, last_line, read_config, read_progress
from kalstream.runs.options import Options, typed
from kalstream.streams import Stream

MAY_CHANGE: Final = ("limit", "bad_rows")  # they do not affect what has been learned
MAY_CHANGE_IN_EXTENSION: Final = (*MAY_CHANGE, "source")


def why_done(folder: str | Path, changes: Mapping[str, Any] | None = None) -> str:
    """The reason why a run cannot be resumed any further; "" if it can.

    Parameters
    ----------
    folder, changes
        As for `Run.resume`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from kalstream.runs import Run
    >>> with TemporaryDirectory() as folder:
    ...     end = Run(folder, Options(source="weather", limit=300, features="raw")).go()
    ...     why_done(folder, {"limit": 400})
    ...     print(why_done(folder))
    ''
    ...has reached row 300, and the limit is 300; nothing to do. ...
    """
    folder = Path(folder)
    config, _, options = resumed_options(folder, changes or {})
    last = last_line(folder)
    ended = _has_ended(config, last)
    if ended and last.get("reason") == "end" and not _reads_pipe(config):
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


def _has_ended(config: dict[str, Any], last: dict[str, Any]) -> bool:
    """Whether the last line of metrics.jsonl ends the run, with all data that were added to it."""
    n_parts = 1 + len(config["extensions"])
    return last.get("kind") == "end" and last.get("parts", 1) == n_parts


def current_stream(config: dict[str, Any]) -> dict[str, Any]:
    """Description of the data that a run reads: those that were added last."""
    latest: dict[str, Any] = config["extensions"][-1] if config["extensions"] else config
    return latest["stream"]


def _reads_pipe(config: dict[str, Any]) -> bool:
    """Whether a run reads data that cannot be read again; it continues with what comes next."""
    return current_stream(config)["fingerprint"] is None


def _size_warning(config: dict[str, Any]) -> str:
    """A warning if the file of a run that has ended now has another size."""
    size = current_stream(config).get("bytes")
    source = Path(config["options"]["source"])
    if not size or not source.is_file() or source.stat().st_size == size:
        return ""
    return (
        f". {source} had {size:,} bytes and now has {source.stat().st_size:,}: run it again, and "
        "give --out another folder; or write the new rows to a file and add it with --extend"
    )


def check_extendable(folder: Path, config: dict[str, Any], limit: int | None) -> None:
    """Refuse to add data to a run that has not read all the data that it has."""
    last = last_line(folder)
    if not _reads_pipe(config) and not (_has_ended(config, last) and last.get("reason") == "end"):
        reason = last.get("reason") if _has_ended(config, last) else None
        why = {
            "limit": f"it has stopped at its limit, row {last.get('row', 0):,}",
            "interrupted": "it was interrupted",
            "error": "it has stopped with an error",
        }.get(str(reason), "it was killed")
        remedy = " --limit 0" if reason == "limit" else ""
        raise InvalidInput(
            f"{folder} cannot be extended yet: {why}. Resume it first, with: kalstream run "
            f"--resume --out {folder}{remedy}"
        )
    progress = read_progress(folder / CHECKPOINT)
    if progress is None or progress["evaluation"] is None:
        raise InvalidInput(
            f"{folder} cannot be extended: it has no checkpoint to continue from, because it has "
            "learned nothing or its learner cannot be saved; run all the data again"
        )
    reached = progress["evaluation"]["n_rows"]
    if limit is not None and limit <= reached:
        raise InvalidOption(
            f"{folder} has reached row {reached:,}, and the limit of all its rows is {limit:,}; "
            "give a higher --limit, or --limit 0 for none"
        )


def add_extension(
    config: dict[str, Any], progress: dict[str, Any], stream: Stream, source: str, command: str
) -> None:
    """Add new data, which begin at the row of a checkpoint, to the configuration of a run."""
    row, about = progress["evaluation"]["n_rows"], stream.describe()
    known = [config["stream"], *(each["stream"] for each in config["extensions"])]
    if about["fingerprint"] is not None and about["fingerprint"] in [
        each["fingerprint"] for each in known
    ]:
        raise InvalidInput(
            f"{source} has the same content as data that the run has already learned; to learn it "
            "again, begin a new run with --from in place of --extend"
        )
    entry = {
        "row": row,
        "source": source,
        "command": command,
        "stream": about,
        "skipped": progress["skipped"]["n"],
        "skipped_why": progress["skipped"]["why"],
    }
    # Nothing was learned from data that began at the same row.
    config["extensions"] = [*(each for each in config["extensions"] if each["row"] < row), entry]


def resumed_options(
    folder: Path, changes: Mapping[str, Any], may_change: tuple[str, ...] = MAY_CHANGE
) -> tuple[dict[str, Any], Options, Options]:
    """The configuration of a run, its options, and those with which it is resumed."""
    config = read_config(folder)
    if config is None:
        raise InvalidInput(
            f"{folder} holds no run to resume: there is no {CONFIG}; give --out the folder of a run"
        )
    old = Options(**config["options"])
    for name, value in changes.items():
        if value != getattr(old, name) and name not in may_change:
            option = typed(name)
            raise InvalidInput(
                f"{folder} was started with {option} {getattr(old, name)!r}, but {option} "
                f"{value!r} is given now; resume it with the same options, or run again and give "
                "--out another folder"
            )
    return config, old, Options.of(**{**old.model_dump(), **changes})
