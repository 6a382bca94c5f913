"""Many runs: jobs, the place where they run, and the loop that starts and watches them.

A job is a name, a folder and options. Its folder is what ``kalstream run`` writes, so a job that
was killed is resumed, and one that has ended is skipped. `JobPlace` declares what a place must
offer; `Processes` runs jobs as processes of this machine.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from kalstream.errors import KalstreamError
from kalstream.runs.files import holds_run, report_is_outdated
from kalstream.runs.options import Options, arguments, as_typed
from kalstream.runs.resume import _size_warning, resumed_options, why_done

STOPPED: Final = "stopped before its end; give the same command again to resume it"
_COMMAND: Final = "KALSTREAM_JOB"  # in the environment of a job: the command of its config.json
_ONE_THREAD: Final = dict.fromkeys(
    (*("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "NUMBA_NUM_THREADS"), "1"
)
_PAUSE: Final = 0.1  # seconds


@dataclass(frozen=True)
class Job:
    """A run that is to be made.

    Attributes
    ----------
    name : str
    folder : Path
        The folder of the run.
    options : Options
    up_to : int, optional
        The row at which the run stops for now. It is no option: a run that continues from there
        gives the same numbers.
    checkpoint_every : float, optional
        Seconds between checkpoints.

    Examples
    --------
    >>> job = Job("weather", Path("runs/weather"), Options(source="weather", features="raw"))
    >>> job.command
    'kalstream run weather --features raw --out runs/weather'
    """

    name: str
    folder: Path
    options: Options
    up_to: int | None = None
    checkpoint_every: float | None = None

    @property
    def limit(self) -> int | None:
        """Rows of the run, for now."""
        return self.options.limit if self.up_to is None else self.up_to

    @property
    def command(self) -> str:
        """What the user would type to make the same run alone."""
        return shlex.join(["kalstream", *self._arguments])

    @property
    def argv(self) -> list[str]:
        """Arguments of ``kalstream`` that begin the run, or continue it."""
        return [*self._arguments, "--limit", str(self.limit or 0), "--resume", "--quiet"]

    @property
    def _arguments(self) -> list[str]:
        parts = ["run", *arguments(self.options), "--out", str(self.folder)]
        if self.checkpoint_every is not None:
            parts += ["--checkpoint-every", f"{self.checkpoint_every:g}"]
        return parts


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended: ``problem`` says why it did not reach its end, and is "" if it did.

    Examples
    --------
    >>> job = Job("shop", Path("runs/shop"), Options(source="weather"))
    >>> JobOutcome(job).problem, JobOutcome(job, "the disk is full").problem
    ('', 'the disk is full')
    """

    job: Job
    problem: str = ""


Watch = Callable[[Sequence[JobOutcome], Sequence[Job]], None]


class Started(Protocol):
    """A job that was started.

    Examples
    --------
    A job that ends at once, as in a test of a `JobPlace`:

    >>> class Ended:
    ...     def problem(self):
    ...         return ""
    ...
    ...     def stop(self):
    ...         pass
    >>> started: Started = Ended()
    >>> started.problem()
    ''
    """

    def problem(self) -> str | None:
        """None while the job runs; then why it did not reach its end, or ""."""

    def stop(self) -> None:
        """Ask the job to write a checkpoint and end."""


class JobPlace(Protocol):
    """Where jobs run. All places of a machine or a cluster see the same folders.

    Attributes
    ----------
    slots : int
        Jobs that run at once.

    Examples
    --------
    A place that runs jobs one after the other, in this process:

    >>> from types import SimpleNamespace
    >>> from kalstream.runs import Run
    >>> class Here:
    ...     slots = 1
    ...
    ...     def start(self, job):
    ...         Run(job.folder, job.options).go()
    ...         return SimpleNamespace(problem=lambda: "", stop=lambda: None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options = Options(source="weather", limit=300, features="raw")
    ...     [outcome] = run_jobs([Job("weather", Path(folder), options)], Here())
    >>> outcome.job.name, outcome.problem
    ('weather', '')
    """

    @property
    def slots(self) -> int: ...  # noqa: D102

    def start(self, job: Job) -> Started:
        """Start a job: ``kalstream`` with its `Job.argv`."""


# ---- processes ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Processes:
    """Jobs as processes of this machine, each on one thread.

    Examples
    --------
    >>> Processes(2).slots
    2
    """

    slots: int

    def start(self, job: Job) -> Started:
        """Start ``kalstream run``. The process ends when this one does."""
        return started_process([sys.executable, *_program(), *job.argv], job.command)


def started_process(argv: Sequence[str], command: str, folder: str | None = None) -> JobProcess:
    """Start the process of a job, in a folder; ``command`` is what its config.json names.

    Examples
    --------
    >>> process = started_process([sys.executable, "-c", "raise SystemExit(3)"], "kalstream run")
    >>> _ = process.process.wait()
    >>> process.problem()
    'its process ended with status 3: '
    """
    messages = tempfile.TemporaryFile()  # noqa: SIM115  (read when the process has ended)
    process = subprocess.Popen(
        argv,
        cwd=folder,
        env={**os.environ, **_ONE_THREAD, _COMMAND: command},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=messages,
        start_new_session=True,  # Ctrl-C comes to this process, which passes it on
    )
    return JobProcess(process, messages)


@dataclass(frozen=True)
class JobProcess:
    """A job that runs as a process of this machine.

    Examples
    --------
    >>> process = started_process([sys.executable, "-c", "input()"], "kalstream run")
    >>> process.problem() is None  # it still runs
    True
    >>> process.stop()
    >>> _ = process.process.wait()
    >>> process.problem()
    'its process ended with status -15: '
    """

    process: subprocess.Popen[bytes]
    messages: Any

    def problem(self) -> str | None:
        """See `Started`."""
        status = self.process.poll()
        if status is None:
            return None
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.messages.seek(0)
        text = self.messages.read().decode(errors="replace")
        self.messages.close()
        if status == 0:
            return ""
        _, found, message = text.rpartition("error: ")
        last = text.strip().rpartition("\n")[2]
        return message.strip() if found else f"its process ended with status {status}: {last}"

    def stop(self) -> None:
        """See `Started`."""
        self.process.terminate()


def _program() -> list[str]:
    """How the same program starts; a script of the user may have registered formats, metrics."""
    script = Path(sys.argv[0])
    own = script.suffix == ".py" and script.name != "__main__.py" and script.is_file()
    return [str(script)] if own else ["-m", "kalstream"]


def command_of_job() -> str | None:
    """The command that a job writes to config.json; None in a process that is no job.

    A job ends with the process that started it: its standard input is a pipe that ends then.

    Examples
    --------
    >>> command_of_job() is None  # this process is no job
    True
    """
    command = os.environ.get(_COMMAND)
    if command is not None:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    return command


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


# ---- the loop -------------------------------------------------------------------------------


def run_jobs(
    jobs: Sequence[Job],
    place: JobPlace,
    watch: Watch = lambda ended, running: None,
    stopped: Callable[[], object] = lambda: False,
) -> list[JobOutcome]:
    """Run jobs to their ends; those that have ended before are skipped.

    The first job runs alone until it has compiled its kernels, which the others then load.

    Parameters
    ----------
    jobs : sequence of Job
    place : JobPlace
    watch : function of the outcomes so far and the jobs that run
        Called about ten times a second.
    stopped : function
        Whether to stop: then no job is started, and those that run are asked to stop.

    Returns
    -------
    list of JobOutcome
        In the order of the jobs.

    Examples
    --------
    Here the user has stopped it at once:

    >>> jobs = [Job("weather", Path("runs/weather"), Options(source="weather"))]
    >>> [outcome.problem for outcome in run_jobs(jobs, Processes(2), stopped=lambda: True)]
    ['stopped before its end; give the same command again to resume it']

    `JobPlace` has an example whose job reaches its end.
    """
    outcomes = {job.name: ended for job in jobs if (ended := _ended_before(job))}
    waiting = [job for job in jobs if job.name not in outcomes]
    running: dict[str, tuple[Job, Started]] = {}
    is_compiled, is_stopping = False, False
    while waiting or running:
        if stopped() and not is_stopping:
            is_stopping = True
            outcomes |= {job.name: JobOutcome(job, STOPPED) for job in waiting}
            waiting = []
            for _, process in running.values():
                process.stop()
        slots = place.slots if is_compiled else 1
        for job in waiting[: max(0, slots - len(running))]:
            running[job.name] = job, place.start(job)
            waiting.remove(job)
        for name, (job, process) in list(running.items()):
            problem = process.problem()
            # A run writes its first file when its kernels are compiled.
            is_compiled = is_compiled or holds_run(job.folder) or problem is not None
            if problem is not None:
                del running[name]
                outcomes[name] = JobOutcome(job, STOPPED if problem and is_stopping else problem)
        watch(list(outcomes.values()), [job for job, _ in running.values()])
        time.sleep(_PAUSE)
    return [outcomes[job.name] for job in jobs]


def _ended_before(job: Job) -> JobOutcome | None:
    """The outcome of a job that has nothing left to do, or cannot be resumed."""
    if not holds_run(job.folder):
        return None
    changes = {name: getattr(job.options, name) for name in job.options.model_fields_set}
    changes["limit"] = job.limit
    try:
        done = why_done(job.folder, changes)
        if not done:
            return None
        config, _, _ = resumed_options(job.folder, changes)
        problem = _size_warning(config).removeprefix(". ")
    except KalstreamError as error:
        return JobOutcome(job, as_typed(str(error)))
    # A run without a report is started again, and then only writes its report.
    is_complete = problem or job.up_to is not None or not report_is_outdated(job.folder)
    return JobOutcome(job, problem) if is_complete else None
