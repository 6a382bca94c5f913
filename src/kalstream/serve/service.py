"""All models of a service: one thread learns, and what it learns is on disk before it is answered.

Requests that change a model wait in one queue. The thread takes all that are there, checks them,
writes them to the log in one transaction, learns them, and answers. Predictions do not wait.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from shutil import rmtree
from threading import Thread
from typing import Any, Final, NamedTuple

from kalstream._files import Lock
from kalstream._printable import quoted
from kalstream.errors import InvalidInput, InvalidOption, KalstreamError
from kalstream.runs.options import Options
from kalstream.serve.events import Event, Made, from_log, to_log
from kalstream.serve.served import Prepared, Served
from kalstream.serve.store import Entry, Store, StoreError

logger = logging.getLogger("kalstream.serve")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_GROUP: Final = 1024  # rows that are written together, at most
Answer = Callable[[Any], None]  # takes a result or an exception


class UnknownModel(KalstreamError, LookupError):
    """No model has this name."""


class Busy(KalstreamError, RuntimeError):
    """More rows wait to be learned than the service takes; ask again later."""


class NotReady(KalstreamError, RuntimeError):
    """The service cannot learn: it is stopping, or its disk does not take the log."""


class _Learn(NamedTuple):
    model: str
    events: Sequence[Event]
    answer: Answer


class _Call(NamedTuple):
    do: Callable[[], Any]
    answer: Answer


class Service:
    """Models by name, their log and their checkpoints.

    Parameters
    ----------
    folder : Path
        Where all is kept. One process at a time uses it.
    most_queued : int
        Rows that wait to be learned, at most; more are refused (`Busy`).
    checkpoint_every : float
        Seconds.
    keep_log : bool
        Whether entries that a checkpoint holds stay in the log.
    """

    def __init__(
        self,
        folder: Path,
        *,
        most_queued: int = 20_000,
        checkpoint_every: float = 30.0,
        keep_log: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.most_queued = folder, most_queued
        self._every, self._keep_log = checkpoint_every, keep_log
        self._lock = Lock(
            folder / "lock", str(folder), "stop the other service, or give --data another folder"
        )
        self._lock.acquire()
        self.store = Store(folder / "service.sqlite")
        self.models: dict[str, Served] = {}
        self._queue: SimpleQueue[_Learn | _Call | None] = SimpleQueue()
        self.n_queued = 0
        self.started, self.problem, self.checkpoint_problem = time.time(), "starting", ""
        self._checkpoints = ThreadPoolExecutor(1, "kalstream-checkpoint")
        self._writing: Future[None] | None = None
        self._saved_at, self._saved_rows = time.monotonic(), dict[str, int]()
        self._thread = Thread(target=self._work, name="kalstream-learn")

    # ---- beginning and end ----------------------------------------------------------------

    def start(self) -> None:
        """Restore all models, learn what came after their checkpoints, and begin to take rows."""
        for name, options in self.store.models().items():
            served = Served(name, Options.of(**json.loads(options)), self._folder_of(name))
            self._replay(served)
            self.models[name] = served
        self.problem = ""
        self._thread.start()
        logger.info("start %(folder)s", {"folder": str(self.folder), "models": len(self.models)})

    def _replay(self, served: Served) -> None:
        n_entries = 0
        for entry in self.store.entries(served.name, served.n_rows):
            self._learn(served, from_log(entry.body))
            n_entries += 1
        values = {"model": served.name, "rows": served.n_rows, "entries": n_entries}
        logger.info("restored %(model)s: %(rows)d rows, %(entries)d from the log", values)

    def stop(self) -> None:
        """Learn what waits, write checkpoints, and close all files; a second call does nothing."""
        if self.problem == "stopping":
            return
        self.problem = "stopping"
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._finish_checkpoint()
        for served in self.models.values():
            self._checkpoint(served)
            self._finish_checkpoint()
        self._checkpoints.shutdown()
        self.store.close()
        self._lock.release()
        logger.info("stop %(folder)s", {"folder": str(self.folder)})

    def _folder_of(self, name: str) -> Path:
        return self.folder / "models" / name

    # ---- models ---------------------------------------------------------------------------

    def model(self, name: str) -> Served:
        """A model by its name."""
        try:
            return self.models[name]
        except KeyError:
            known = ", ".join(list(self.models)[:5]) or "none yet"
            raise UnknownModel(
                f"no model is called {quoted(name)} (there is: {known}); make it with "
                f"PUT /models/{name}"
            ) from None

    def add(self, name: str, options: Options) -> Served:
        """Make a model, on the thread that learns (`call`)."""
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"a model cannot be called {quoted(name)}; take letters, digits, '.', '_' and '-'"
            )
        if name in self.models:
            raise InvalidInput(f"there is a model {quoted(name)} already; remove it first")
        rmtree(self._folder_of(name), ignore_errors=True)  # of a model that was removed
        served = Served(name, options, self._folder_of(name))
        self.store.add_model(name, json.dumps(options.model_dump(mode="json")))
        if options.origin is not None:  # from here on the model does not need it
            self._checkpoint(served)
            self._finish_checkpoint()
        self.models = {**self.models, name: served}
        return served

    def begin(self, name: str, options: Options) -> None:
        """Make a model that the service begins with, unless it is there already."""
        outcome: Future[Any] = Future()

        def make() -> None:
            if name not in self.models:
                self.add(name, options)
            elif options != Options() and options != self.models[name].options:
                raise InvalidOption(
                    f"{self.folder} has a model {quoted(name)} with other options; leave them out "
                    "to continue with it, or give another --name"
                )

        self.call(make, outcome.set_result)
        error = outcome.result()
        if error is not None:
            raise error

    def remove(self, name: str) -> None:
        """Remove a model, on the thread that learns (`call`)."""
        self.model(name)
        self._finish_checkpoint()
        self.store.remove_model(name)
        self.models = {each: served for each, served in self.models.items() if each != name}
        rmtree(self._folder_of(name), ignore_errors=True)

    def snapshot(self, name: str) -> dict[str, Any]:
        """Write a checkpoint now, on the thread that learns (`call`)."""
        served = self.model(name)
        self._finish_checkpoint()
        self._checkpoint(served)
        self._finish_checkpoint()
        if self.checkpoint_problem:
            raise NotReady(self.checkpoint_problem)
        return {"model": name, "rows": served.n_rows, "folder": str(served.folder)}

    # ---- the queue ------------------------------------------------------------------------

    def learn(self, model: str, events: Sequence[Event], answer: Answer) -> None:
        """Have events learned; ``answer`` gets a list of `Made`, or an exception, later."""
        served = self.model(model)
        if self.problem or served.failure:
            raise NotReady(f"the service takes no rows now: {self.problem or served.failure}")
        if self.n_queued + len(events) > self.most_queued:
            raise Busy(f"{self.n_queued:,} rows wait to be learned; send these again in a second")
        self.n_queued += len(events)
        self._queue.put(_Learn(model, events, answer))

    def call(self, do: Callable[[], Any], answer: Answer) -> None:
        """Have a function called on the thread that learns, between two groups of rows."""
        if self.problem == "stopping":
            raise NotReady("the service is stopping")
        self._queue.put(_Call(do, answer))

    def _work(self) -> None:
        while True:
            jobs, ended = self._next_jobs()
            group: list[_Learn] = []
            for job in jobs:
                if isinstance(job, _Learn):
                    group.append(job)
                    continue
                self._learn_group(group)
                group = []
                job.answer(_outcome(job.do))
            self._learn_group(group)
            if ended:
                return
            self._checkpoint_if_due()

    def _next_jobs(self) -> tuple[list[_Learn | _Call], bool]:
        """The jobs that are there, after waiting for one; and whether the service ends."""
        jobs: list[_Learn | _Call] = []
        n_rows = 0
        try:
            job = self._queue.get(timeout=1.0)
            while job is not None:
                jobs.append(job)
                n_rows += len(job.events) if isinstance(job, _Learn) else 0
                if n_rows >= _GROUP:
                    return jobs, False
                job = self._queue.get_nowait()
        except Empty:
            return jobs, False
        return jobs, True

    # ---- learning -------------------------------------------------------------------------

    def _learn_group(self, group: Sequence[_Learn]) -> None:
        """Check, log, learn and answer requests."""
        if not group:
            return
        results: dict[int, Any] = {}
        ready: dict[str, list[tuple[int, Prepared]]] = {}
        encoders: dict[str, Any] = {}
        for k, job in enumerate(group):
            try:
                served = self.model(job.model)
                before = encoders.get(job.model, served.encoder)
                prepared = served.prepare(job.events, before)
                encoders[job.model] = prepared.encoder
                ready.setdefault(job.model, []).append((k, prepared))
            except Exception as error:
                results[k] = error
        results |= self._logged_and_learned(group, ready)
        self.n_queued -= sum(len(job.events) for job in group)
        for k, job in enumerate(group):
            job.answer(results[k])

    def _logged_and_learned(
        self,
        group: Sequence[_Learn],
        ready: dict[str, list[tuple[int, Prepared]]],
    ) -> dict[int, Any]:
        entries = [
            Entry(name, self.models[name].n_rows, to_log([group[k].events for k, _ in parts]))
            for name, parts in ready.items()
        ]
        try:
            if entries:
                self.store.append(entries)
        except StoreError as error:
            logger.error("store_failed %(error)s", {"error": str(error)})
            failure = NotReady(str(error))
            return {k: failure for parts in ready.values() for k, _ in parts}
        results: dict[int, Any] = {}
        for name, parts in ready.items():
            made = self._learned(self.models[name], [p for _, p in parts])
            results |= {k: each for (k, _), each in zip(parts, made, strict=True)}
        return results

    def _learned(
        self, served: Served, requests: list[Prepared]
    ) -> Sequence[list[Made] | Exception]:
        try:
            made = served.learn(requests)
        except Exception as error:  # the state is not known any more: a restart replays the log
            logger.exception("model_failed %(model)s", {"model": served.name})
            served.failure = f"{served.name} failed ({error!r}); restart the service"
            return [NotReady(served.failure)] * len(requests)
        if served.lines:
            lines = [(line["row"], json.dumps(line)) for line in served.lines]
            served.lines = []
            try:
                self.store.add_windows(served.name, lines)
            except StoreError as error:  # only the page needs them
                logger.error("store_failed %(error)s", {"error": str(error)})
        return made

    def _learn(self, served: Served, requests: Sequence[Sequence[Event]]) -> None:
        """Learn an entry of the log again, as when it was written."""
        encoder, ready = served.encoder, list[Prepared]()
        for events in requests:
            ready.append(served.prepare(events, encoder))
            encoder = ready[-1].encoder
        self._learned(served, ready)

    # ---- checkpoints ----------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        if time.monotonic() - self._saved_at < self._every:
            return
        if self._writing is not None and not self._writing.done():
            return
        self._finish_checkpoint()
        changed = [
            served
            for name, served in self.models.items()
            if served.n_rows != self._saved_rows.get(name)
        ]
        if changed:  # one at a time, the one that has learned most since then
            self._checkpoint(
                max(changed, key=lambda each: each.n_rows - self._saved_rows.get(each.name, 0))
            )
        if len(changed) <= 1:
            self._saved_at = time.monotonic()

    def _checkpoint(self, served: Served) -> None:
        """Begin to write a checkpoint in the background."""
        if served.failure:
            return
        frozen = served.frozen()
        self._saved_rows[served.name] = served.n_rows
        if frozen is not None:
            self._writing = self._checkpoints.submit(self._write, served, frozen)

    def _write(self, served: Served, frozen: Any) -> None:
        begun = time.perf_counter()
        served.write(frozen)
        ms = round(1e3 * (time.perf_counter() - begun), 2)
        values = {"model": served.name, "rows": frozen.n_rows, "ms": ms}
        logger.info("checkpoint %(model)s: %(rows)d rows", values)
        if not self._keep_log:
            self.store.forget(served.name, frozen.n_rows)

    def _finish_checkpoint(self) -> None:
        """Wait for the checkpoint that is being written."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            writing.result()
        except Exception as error:  # whatever it is, the log has everything
            logger.error("checkpoint_failed %(error)s", {"error": str(error) or repr(error)})
            self.checkpoint_problem, self._saved_rows = str(error) or repr(error), {}
        else:
            self.checkpoint_problem = ""


def _outcome(do: Callable[[], Any]) -> Any:
    """What a function returns, or the exception that it raises."""
    try:
        return do()
    except Exception as error:
        return error
