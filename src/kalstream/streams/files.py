"""Helpers of the readers of data sets: reading files, and dividing rows into tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalstream._printable import printable
from kalstream.errors import InvalidInput, MissingFile, Unreadable


def load_npy(path: Path) -> NDArray[Any]:
    """The array of an .npy, memory-mapped; pickled objects are refused."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a damaged header can raise nearly anything
        raise unreadable(path, "a plain array, as np.save writes it", error) from error


def unreadable(path: Path, what: str, error: Exception) -> InvalidInput:
    """The error for a file that could not be read, or does not hold what it should."""
    if isinstance(error, FileNotFoundError):
        return MissingFile(f"no file {path}")
    if isinstance(error, PermissionError):
        return forbidden(path)
    why = printable(error, 300) or type(error).__name__
    return InvalidInput(f"{path} must hold {what}: {why}")


def forbidden(path: str | Path) -> Unreadable:
    """The error for a file or folder that this user may not read."""
    return Unreadable(f"{path}: this user may not read it; change its permissions")


def tasks(
    labels: NDArray[Any], n_tasks: int, seed: int
) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Divide the classes at random into tasks, and shuffle the rows within each task.

    Parameters
    ----------
    labels : (n,)
    n_tasks : int
        At most the number of classes. If it does not divide that number, the first tasks get one
        class more. 1 is a plain shuffle.
    seed : int

    Returns
    -------
    order : (n,)
        Row numbers, one task after another.
    boundaries : n_tasks numbers
        Where in `order` each task starts.
    """
    classes, codes = np.unique(labels, return_inverse=True)
    if not 1 <= n_tasks <= len(classes):
        raise InvalidInput(
            f'order="tasks" makes {n_tasks} tasks, and there are {len(classes)} classes; make 1 to '
            f'{len(classes)} tasks, or use order="shuffled"'
        )
    rng = np.random.default_rng(seed)
    task_of = np.empty(len(classes), np.int64)
    for task, group in enumerate(np.array_split(rng.permutation(len(classes)), n_tasks)):
        task_of[group] = task
    order = rng.permutation(len(labels))
    order = order[np.argsort(task_of[codes[order]], kind="stable")]
    sizes = np.bincount(task_of[codes], minlength=n_tasks)
    return order, tuple(np.cumsum([0, *sizes[:-1]]).tolist())
