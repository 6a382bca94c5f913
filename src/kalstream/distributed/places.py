"""Places on Ray: workers for keys, and jobs of sweeps. Nothing here imports Ray before it is used.

Ray runs on this machine, or on a cluster whose address is given. Each machine of a cluster needs
kalstream, and all of them one folder for what workers write.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from kalstream._optional import require
from kalstream.core import checks as check
from kalstream.core.keyed import Keyed
from kalstream.distributed._crew import Crew, Lost, SpreadRecords
from kalstream.distributed._shard import Shard
from kalstream.errors import KalstreamError
from kalstream.runs.jobs import Job, Started

_PATIENCE: Final = 60.0  # seconds until a worker runs


def connect(address: str | None = None) -> Any:
    """The module ray, connected to the cluster at an address, or to one on this machine.

    A connection that is there already is used.
    """
    ray = require("ray", "ray")
    if ray.is_initialized():
        return ray
    try:
        _knock(address)
        ray.init(address, log_to_driver=False, include_dashboard=False if address is None else None)
    except (OSError, RuntimeError, ValueError) as error:
        where = "on this machine" if address is None else f"at {check.shown(address)}"
        raise KalstreamError(
            f"no Ray cluster could be reached {where} ({check.error_text(error, 100)}); start one "
            "there with: ray start --head, or leave the address out"
        ) from error
    return ray


def _knock(address: str | None) -> None:
    """See whether somebody listens at an address; Ray would try for minutes."""
    host, _, port = (address or "").rpartition("/")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10.0).close()


@dataclass(frozen=True)
class OnRay:
    """Keys in workers of Ray; a place for `kalstream.KeyedClassifier.spread`.

    Parameters
    ----------
    shards : int
        Number of workers. Each has the keys with its remainder of a hash.
    address : str, optional
        Of a cluster; None: one on this machine, or the one this process is connected to.
    folder : str, optional
        Where workers write files from which they recover; all machines see it. None: the folder for
        temporary files, which is enough for one machine.
    every : int
        After how many rows a worker writes its file. The rows since then are kept in this process.
    cpus : float
        What Ray sets aside for each worker.

    Examples
    --------
    >>> OnRay(shards=4).shards
    4
    """

    shards: int = 2
    address: str | None = None
    folder: str | None = None
    every: int = 1_000_000
    cpus: float = 1.0

    def __post_init__(self) -> None:
        check.count("shards", self.shards)
        check.count("every", self.every)

    def records(self, keyed: Keyed, max_keys: int | None = None) -> SpreadRecords:
        """No records yet, in new workers."""
        most = None if max_keys is None else -(-max_keys // self.shards)
        workers = _RayWorkers(connect(self.address), self.cpus, (keyed, most))
        return Crew(workers, self.shards, self.every, self.folder).start()


class _RayWorkers:
    """Workers that are actors of Ray. They end when nobody refers to them any more."""

    def __init__(self, ray: Any, cpus: float, arguments: tuple[Any, ...]) -> None:
        self._ray, self._cpus, self._arguments = ray, cpus, arguments
        self._actor = ray.remote(Shard).options(num_cpus=cpus)

    def start(self) -> Any:
        worker = self._actor.remote(*self._arguments)
        try:
            self._ray.get(worker.process.remote(), timeout=_PATIENCE)
        except self._ray.exceptions.GetTimeoutError:
            free = self._ray.available_resources().get("CPU", 0.0)
            raise KalstreamError(
                f"no worker of Ray could be started in {_PATIENCE:.0f} s: it asks for "
                f"{self._cpus:g} CPU, and the cluster has {free:g} free; give fewer shards, or "
                "cpus=0.5"
            ) from None
        except self._ray.exceptions.RayError as error:
            if "No module named 'kalstream'" in str(error):
                raise KalstreamError(
                    "a worker of the Ray cluster has no kalstream; install the same version on "
                    "each of its machines"
                ) from None
            raise KalstreamError(
                f"no worker of Ray could be started ({check.error_text(error, 200)}); look at "
                "the logs of the cluster"
            ) from error
        return worker

    def call(self, worker: Any, method: str, *arguments: Any) -> Any:
        try:
            return getattr(worker, method).remote(*arguments)
        except self._ray.exceptions.RayActorError as error:
            raise Lost from error

    def answer(self, call: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.RayTaskError as error:
            raise error.cause from None
        except (errors.RayActorError, errors.ObjectLostError) as error:
            raise Lost from error


# ---- jobs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobsOnRay:
    """Jobs as tasks of Ray: a place for `kalstream.runs.jobs.run_jobs`.

    All machines of a cluster see the same folders under the same names.

    Parameters
    ----------
    address : str, optional
        As of `OnRay`.
    workers : int
        Jobs at once; 0: one for each core of the cluster, which `connected` counts.

    Examples
    --------
    >>> JobsOnRay(workers=3).slots
    3
    """

    address: str | None = None
    workers: int = 0

    def connected(self) -> Self:
        """Connect; a number of workers of 0 becomes the number of cores of the cluster."""
        cores = connect(self.address).cluster_resources().get("CPU", 1.0)
        return replace(self, workers=self.workers or max(1, int(cores)))

    @property
    def slots(self) -> int:
        """Jobs that run at once."""
        return self.workers

    def start(self, job: Job) -> Started:
        """Start ``kalstream run`` as a process of a worker."""
        ray = connect(self.address)
        actor = ray.remote(_Runner).options(num_cpus=1, max_concurrency=2).remote()
        return _RayJob(ray, actor, actor.run.remote(job.argv, job.command, os.getcwd()))


class _Runner:
    """A worker that runs one job as a process, which ends with it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def run(self, argv: Sequence[str], command: str, folder: str) -> str:
        """Why the job did not reach its end, or ""."""
        from kalstream.runs.jobs import started_process

        if self._is_stopped:
            return "stopped"
        process = started_process([sys.executable, "-m", "kalstream", *argv], command, folder)
        self._process = process.process
        process.process.wait()
        problem = process.problem()
        assert problem is not None
        return problem

    def stop(self) -> None:
        """Ask the job to write a checkpoint and end."""
        self._is_stopped = True
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.terminate()


@dataclass(frozen=True)
class _RayJob:
    ray: Any
    actor: Any
    result: Any

    def problem(self) -> str | None:
        done, _ = self.ray.wait([self.result], timeout=0)
        if not done:
            return None
        try:
            return self.ray.get(self.result)
        except self.ray.exceptions.RayError as error:
            return f"its worker of Ray was lost ({check.error_text(error, 100)})"

    def stop(self) -> None:
        self.actor.stop.remote()
