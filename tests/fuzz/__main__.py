"""Run the fuzzer: ``python tests/fuzz/__main__.py --seconds 3600 --seed 1``.

Cases run in separate processes, so that a crash or a hang is reported like any other finding.
``--part P --seed S --case N`` repeats exactly one case.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PARTS = ("classifier", "regressor", "adapter", "checkpoints", "folders", "core")
HANG = 400.0  # seconds without a call that ends; the first call may compile
MEMORY = 8 * 2**30  # bytes of address space of a process
BATCH = 200  # cases of a process
CORE_SECONDS = 10.0  # duration of one case of the core
N_CALLS = 40  # number of last calls in the report of a finding


def run_cases(part: str, seed: int, first: int, count: int, until: float | None = None) -> list:
    """Run cases in separate processes; return the findings as texts."""
    findings: list[str] = []
    end = first + count
    while first < end and (until is None or time.time() < until):
        with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
            problem, calls, last = _one_process(part, seed, first, end, until, Path(folder))
        for line in calls:
            if line.startswith("FINDING "):
                findings.append(json.loads(line.removeprefix("FINDING ")))
        if problem is None:
            break
        start = max(i for i, line in enumerate(calls) if line.startswith("CASE "))
        findings.append(_report(problem, part, seed, last, calls[start + 1 :]))
        first = last + 1
    return findings


def _one_process(
    part: str, seed: int, first: int, end: int, until: float | None, folder: Path
) -> tuple[str | None, list[str], int]:
    """Problem that ended a process (None if it ran all its cases), its log, and its last case."""
    log, errors = folder / "log", folder / "errors"
    log.touch()
    args = [part, str(seed), str(first), str(end), str(until or 0.0), str(folder)]
    command = [sys.executable, str(HERE / "__main__.py"), "--worker", *args]
    with errors.open("wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)
        size, since, problem = -1, time.monotonic(), None
        while process.poll() is None:
            time.sleep(0.05)
            if log.stat().st_size != size:
                size, since = log.stat().st_size, time.monotonic()
            elif time.monotonic() - since > HANG:
                process.kill()
                problem = f"hangs: no answer for {HANG:g} s"
        code = process.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    cases = [int(line.split()[1]) for line in lines if line.startswith("CASE ")]
    if code != 0 and problem is None:
        output = errors.read_text(errors="replace")[-3000:]
        problem = f"the process ended with {code}:\n{output}"
        if not cases:
            raise SystemExit(f"a worker could not start:\n{output}")
    return problem, lines, cases[-1] if cases else first


def _report(problem: str, part: str, seed: int, case: int, calls: list[str]) -> str:
    skipped = [f"... {len(calls) - N_CALLS} calls before"] if len(calls) > N_CALLS else []
    shown = "\n".join(f"    {line}" for line in [*calls[:1], *skipped, *calls[1:][-N_CALLS:]])
    again = f"python tests/fuzz/__main__.py --part {part} --seed {seed} --case {case}"
    return f"{part}, seed {seed}, case {case}: {problem}\n  reproduce: {again}\n  calls:\n{shown}"


def _fast_folder() -> str | None:
    """A folder in memory, if there is one, because models are saved after every call."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# ---- in the process of the cases ----------------------------------------------------------


def worker(part: str, seed: str, first: str, end: str, until: str, folder: str) -> None:
    """Run the cases from first to end, and write them to the log in the folder."""
    from fuzz.cases import Case

    faulthandler.enable()
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(Path(folder) / "log", "w", encoding="utf-8", errors="replace") as log:

        def note(line: str) -> None:
            calls.append(line.replace("\n", " "))
            print(calls[-1], file=log, flush=True)

        for number in range(int(first), int(end)):
            if float(until) and time.time() > float(until):
                break
            print(f"CASE {number}", file=log, flush=True)
            calls: list[str] = []
            problem = _problem_of(part, Case(int(seed), part, number, Path(folder), note))
            if problem is not None:
                report = _report(problem, part, int(seed), number, calls)
                print(f"FINDING {json.dumps(report)}", file=log, flush=True)


def _problem_of(part: str, case: Any) -> str | None:
    """Run a case; return the problem that it found, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)
        try:
            _function_of(part)(case)
        except Exception as error:
            if type(error).__name__ == "Finding":
                return str(error)
            text = "".join(traceback.format_exception(error)[-6:])
            return f"{type(error).__name__} outside of a call that may fail: {text}"
    return None


def _function_of(part: str) -> Any:
    if part in ("classifier", "regressor"):
        from fuzz import api

        return getattr(api, part)
    module: Any = importlib.import_module(f"fuzz.{part}")
    if part == "core":
        return lambda case: module.run(case.rng, CORE_SECONDS)
    return module.case


# ---- the command --------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--case", type=int, help="run only the case of this number")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--worker", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
        return 0
    seed = int(time.time()) if options.seed is None else options.seed
    chosen = options.part or PARTS
    if options.case is not None:
        findings = [f for part in chosen for f in run_cases(part, seed, options.case, 1)]
        print("\n\n".join(findings) or "nothing found")
        return 1 if findings else 0
    return _until(time.time() + options.seconds, chosen, seed, options.workers)


def _until(until: float, chosen: Sequence[str], seed: int, workers: int) -> int:
    """Run all parts in turn until the time is over; print the findings."""
    print(f"seed {seed}, parts {', '.join(chosen)}", flush=True)

    def turns(first: int) -> int:
        n_found, turn = 0, first
        while time.time() < until:
            part, batch = chosen[turn % len(chosen)], turn // len(chosen)
            count = 2 if part == "core" else BATCH
            findings = run_cases(part, seed, batch * count, count, until)
            n_found, turn = n_found + len(findings), turn + workers
            reports = [f"\nFOUND {finding}" for finding in findings]
            print("\n".join([*reports, f"{part}: {len(findings)} findings"]), flush=True)
        return n_found

    with ThreadPoolExecutor(workers) as pool:
        n_found = sum(pool.map(turns, range(workers)))
    print(f"{n_found} findings with seed {seed}")
    return 1 if n_found else 0


# This folder has `core.py`, which must be imported as `fuzz.core`.
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE]
sys.path.insert(0, str(HERE.parent))

if __name__ == "__main__":
    sys.exit(main())
