"""Sections of benchmarks/README.md, each written by the script that measured it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import wraps
from multiprocessing import get_context
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from kalstream._markdown import table  # noqa: F401  (the scripts import it from here)

PAGE = Path(__file__).with_name("README.md")


def machine() -> str:
    """Describe this machine in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    return f"{model}, {os.cpu_count()} cores, {platform.system()}, {versions}, one BLAS thread"


def wrapped(text: str) -> str:
    """Wrap prose at 100 characters; headings, tables and figures stay as they are."""
    return "\n".join(map(_wrapped_line, text.split("\n")))


def _wrapped_line(line: str) -> str:
    if line.startswith(("#", "|", "!", "    ", "```")):
        return line
    indent = "  " if line.startswith("- ") else ""
    return fill(line, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def write_section(name: str, body: str, page_file: Path = PAGE) -> None:
    """Replace or add one section of a page, and print it."""
    body = wrapped(body)
    print(body)
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = page_file.read_text()
    if begin in page:
        before, rest = page.split(begin)
        after = rest.split(end)[1]
    else:
        before, after = page.rstrip() + "\n\n", "\n"
    page_file.write_text(f"{before}{begin}\n\n{body}\n\n{end}{after}")


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables for the processes that start in this context."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def alone(measure: Callable[..., Any]) -> Callable[..., Any]:
    """Run each call of a module-level function in a fresh process with one BLAS thread."""

    @wraps(measure)
    def call(*arguments: Any) -> Any:
        if os.environ.get("KALSTREAM_ALONE"):
            with threadpool_limits(1):
                return measure(*arguments)
        with (
            environment(KALSTREAM_ALONE="1"),
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        ):
            return pool.submit(call, *arguments).result()

    return call


def interleaved(tasks: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Shortest time of each task in seconds; the tasks take turns.

    On a shared machine the shortest time is the one least disturbed by other programs.
    """
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():
        task()
    for _ in range(repeats):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            times[name].append(time.perf_counter() - start)
    return {name: min(value) for name, value in times.items()}
