"""The loop of a run: predict, learn, write results, and save checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kalstream.errors import KalstreamError
from kalstream.evaluate import Evaluation, Record
from kalstream.runs.checkpoint import CheckpointWriter, RunError
from kalstream.runs.options import as_typed
from kalstream.runs.results import ResultFiles, with_clock
from kalstream.runs.setup import describe_error

Watch = Callable[[Evaluation, Record], None]


class Ending(NamedTuple):
    """Why a loop ended: "end", "limit", "interrupted" or "error", and the message of the error."""

    reason: str
    message: str | None = None


@dataclass
class Loop:
    """One pass of a run over its stream.

    Attributes
    ----------
    evaluation : Evaluation
    results : ResultFiles
    checkpoint : CheckpointWriter
    watch : function of the evaluation and a record
        Called after every record.
    stopped : function
        Whether to stop; called after every record.
    """

    evaluation: Evaluation
    results: ResultFiles
    checkpoint: CheckpointWriter
    watch: Watch
    stopped: Callable[[], bool]
    # Whether the state to resume from is saved, and only a result may be saved after it.
    _is_final: bool = field(default=False, init=False)

    @property
    def _repeatable(self) -> bool:
        return self.evaluation.stream.repeatable

    def run(self) -> Ending:
        """Predict and learn to the end, and save the last checkpoint."""
        outcome = self._to_the_end()
        if not self.evaluation.settled:  # an interrupt in the middle of a chunk
            return outcome
        try:
            if self._is_final:
                self.checkpoint.save_result()
            else:
                self._save()
        except RunError as error:  # the learner cannot be saved
            return Ending("error", outcome.message or str(error))
        return outcome

    def _to_the_end(self) -> Ending:
        evaluation = self.evaluation
        try:
            if self._was_stopped():
                return Ending("interrupted")
            at_limit = evaluation.limit is not None and evaluation.n_rows >= evaluation.limit
            if at_limit:
                self._save_final()  # a run that resumes does not learn late labels here
            evaluation.finish()
        except KeyboardInterrupt:  # while it waited for rows, or a second one
            return Ending("interrupted")
        except Exception as error:  # bad data or a bad learner: keep what was learned
            if isinstance(error, OSError) and not isinstance(error, KalstreamError):
                raise
            return Ending("error", self._message(error))
        return Ending("limit" if at_limit else "end")

    def _was_stopped(self) -> bool:
        """Predict and learn all rows, or until a stop is requested."""
        for record in self.evaluation.records(before_cut=self._save_final):
            self.results.write_predictions(record)
            if record.line is not None:
                self.results.write_line(with_clock(record.line))
            self.watch(self.evaluation, record)
            if self.stopped():
                return True
            if not self._repeatable:  # other processes may read along
                self.results.flush()
            if self.checkpoint.is_due and not self._is_final:
                self._save()
        return self.stopped() and not self._repeatable  # the same Ctrl-C closed the pipe

    def _save(self) -> None:
        self.checkpoint.save(self.results.sync())

    def _save_final(self) -> None:
        """Save the state before a limit cuts a chunk or ends the wait for late labels.

        Without the limit the run would continue differently from here.
        """
        if self._repeatable and not self._is_final:
            self._save()
            self._is_final = True

    def _message(self, error: Exception) -> str:
        """What went wrong, and where if it was in code that is not ours."""
        if isinstance(error, KalstreamError):
            return as_typed(str(error))
        return f"{type(self.evaluation.learner).__name__} failed: {describe_error(error)}"
