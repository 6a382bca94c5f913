"""What the readers of data sets share: files, and the order of the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream._printable import printable
from kalstream.errors import InvalidInput, MissingFile, Unreadable


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> str:
    """The value, if it is one of the choices."""
    if value not in choices:
        raise InvalidInput(f"{what} must be one of {', '.join(choices)}, got {value!r}")
    return value


def load_npy(path: Path) -> NDArray[Any]:
    """The array of an .npy, memory-mapped; pickled objects are refused."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a damaged header can raise nearly anything
        raise unreadable(path, "a plain array, as np.save writes", error) from error


def unreadable(path: Path, what: str, error: Exception) -> InvalidInput:
    """The error for a file that could not be read, and should hold something."""
    if isinstance(error, FileNotFoundError):
        return MissingFile(f"no file {path}")
    if isinstance(error, PermissionError):
        return Unreadable(f"{path}: may not be read by this user; change its permissions")
    why = printable(error, 300) or type(error).__name__
    return InvalidInput(f"{path} must hold {what}: {why}")


def tasks(
    labels: NDArray[Any], n_tasks: int, seed: int
) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Rows in tasks: classes in a random order, cut into tasks, rows shuffled within each.

    Parameters
    ----------
    labels : (n,)
    n_tasks : int
        At most as many as classes, the first of them with one class more if it does not divide;
        1 is a plain shuffle.
    seed : int

    Returns
    -------
    order : (n,)
        Row numbers, task after task.
    boundaries : n_tasks numbers
        Where in `order` each task starts.
    """
    classes, codes = np.unique(labels, return_inverse=True)
    if not 1 <= n_tasks <= len(classes):
        raise InvalidInput(
            f"n_tasks must be from 1 to the number of classes, {len(classes)}, got {n_tasks}"
        )
    rng = np.random.default_rng(seed)
    task_of = np.empty(len(classes), np.int64)
    for task, group in enumerate(np.array_split(rng.permutation(len(classes)), n_tasks)):
        task_of[group] = task
    order = rng.permutation(len(labels))
    order = order[np.argsort(task_of[codes[order]], kind="stable")]
    sizes = np.bincount(task_of[codes], minlength=n_tasks)
    return order, tuple(np.cumsum([0, *sizes[:-1]]).tolist())
