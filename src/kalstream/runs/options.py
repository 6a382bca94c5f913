"""What a run is asked to do, and the stream and the learner that come of it."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import re
import sys
import traceback
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kalstream._printable import printable, quoted
from kalstream.errors import InvalidInput
from kalstream.streams import Columns, EmbeddingStream, Stream, TableStream, packaged, time_series
from kalstream.streams._base import CLASSIFICATION, REGRESSION
from kalstream.streams.embeddings import EMBEDDINGS

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNIT: Final = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+)\s*([smhdw]?)"
# Nanoseconds, and far more than the age of the universe in them.
_LEAST_UNIT: Final = 1e-9
_LARGEST_UNIT: Final = 1e30
# Options that embeddings have no use for, and what to do instead.
_NOT_OF_EMBEDDINGS: Final = {
    "target": "labels are what is called `labels` in it, or NAME-labels.npy beside it",
    "time": "times are what is called `times` in it, or NAME-times.npy beside it",
    "ignore": "leave columns out when you write the file",
    "categorical": "all columns are numbers",
    "bad_rows": "leave bad rows out when you write the file",
}
# Windows of a run whose length is known, and the smallest window.
_N_WINDOWS: Final = 200
_LEAST_WINDOW: Final = 50
_USUAL_WINDOW: Final = 1000
# A chunk, and the rows that wait for their targets, are in memory; rows are counted in 53 bits.
_MOST_IN_MEMORY: Final = 10**9
_MOST_ROWS: Final = 10**15

Kind = TypeVar("Kind", bound=BaseModel)


class Options(BaseModel):
    """Everything that decides what a run computes.

    Attributes
    ----------
    source : str
        A file, a folder, "-" for standard input, or the name of a known stream.
    target, time : str
        Columns.
    time_unit : str or float
        "auto" is the median gap of the first rows; "30s", "12h", "1d"; or a number.
    window : int
        0 is for about 200 windows.
    learner : str
        "package.module:factory"; empty for kalstream's own.
    """

    model_config = ConfigDict(extra="forbid")

    source: str = "elec2"
    target: str | None = None
    task: Literal["classification", "regression"] | None = None
    time: str | None = None
    time_unit: str | float = "auto"
    ignore: list[str] = []
    categorical: list[str] = []
    bad_rows: Literal["stop", "skip"] = "stop"
    order: Literal["as-is", "shuffled", "tasks"] = "as-is"
    forgetting: str = "mixture"
    features: str = "fourier"
    learner: str = ""
    chunk: Annotated[int, Field(ge=1, le=_MOST_IN_MEMORY)] = 1
    delay: Annotated[int, Field(ge=0, le=_MOST_IN_MEMORY)] = 0
    cost: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = 1.0
    window: Annotated[int, Field(ge=0, le=_MOST_ROWS)] = 0
    limit: Annotated[int, Field(ge=1, le=_MOST_ROWS)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    predictions: bool = False

    @classmethod
    def of(cls, **values: Any) -> Options:
        """Options, or an error that names the one that is wrong, its value and what it must be."""
        return checked(cls, values)

    # ---- the stream -----------------------------------------------------------------------

    def open_stream(self, columns: Columns | None = None) -> Stream:
        """The stream; ``columns`` is what an encoder had learned before."""
        stream = self._open(columns)
        if str(self.time_unit) != "auto" and not self.is_timed(stream):
            raise InvalidInput(
                f"time_unit is {quoted(self.time_unit)}, but rows have no times: name their column "
                "with --time, or leave --time-unit out"
            )
        return stream

    def _open(self, columns: Columns | None) -> Stream:
        known = packaged.KNOWN.get(self.source)
        if known is not None and not os.path.exists(self.source):
            if self.source == "series":
                names = ("target", "task", "time", "ignore", "categorical", "bad_rows", "order")
                self._refuse(dict.fromkeys(names, "leave it out"), "is made from a seed")
                return time_series(self.seed)
            if not known.packaged:
                raise InvalidInput(f"{self.source} is not part of kalstream: {known.layout}")
            stream = self._table(str(packaged.path_of(self.source)), known.target, columns)
            stream.name = stream.source = self.source
            stream.n_rows, stream.attribution = known.rows, known.source
            return stream
        if os.path.splitext(self.source)[1].lower() in EMBEDDINGS:
            self._refuse(_NOT_OF_EMBEDDINGS, "holds embeddings")
            task = self.task or CLASSIFICATION
            return EmbeddingStream(self.source, order=self.order, seed=self.seed, task=task)
        if "://" in self.source:
            raise InvalidInput(f"{self.source} is an address; fetch it first, and give the file")
        if self.target is None:
            raise InvalidInput(
                f"which column of {printable(self.source, 300)} is to be predicted? "
                "Name it with --target"
            )
        return self._table(self.source, self.target, columns)

    def _refuse(self, remedies: dict[str, str], why: str) -> None:
        """Refuse options that this source would ignore; each has its remedy."""
        for name, remedy in remedies.items():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise InvalidInput(
                    f"--{name.replace('_', '-')} does not apply to {printable(self.source, 300)}, "
                    f"which {why}: {remedy}"
                )

    def _table(self, source: str, target: str | None, columns: Columns | None) -> TableStream:
        if self.order != "as-is":
            raise InvalidInput(
                f"--order {self.order} is for embeddings; {printable(self.source, 300)} is a "
                "table, and is read in its own order. Shuffle the file first, and run it "
                "without --order: (head -n 1 data.csv; tail -n +2 data.csv | shuf) > shuffled.csv"
            )
        return TableStream(
            source,
            self.target or target,
            task=self.task,
            time=self.time,
            ignore=self.ignore,
            categorical=self.categorical,
            bad_rows=self.bad_rows,
            columns=columns,
        )

    def window_of(self, stream: Stream) -> int:
        """Rows of a window: as asked for, or a round number that makes some 200 of them."""
        if self.window:
            return self.window
        n = stream.n_rows or getattr(stream, "approximate_rows", None)
        if n is None:
            return _USUAL_WINDOW
        n = min(n, self.limit or n)
        wanted = max(n / _N_WINDOWS, _LEAST_WINDOW)
        size = 10.0 ** math.floor(math.log10(wanted))
        return int(next(size * step for step in (1, 2, 5, 10) if size * step >= wanted))

    # ---- the learner ----------------------------------------------------------------------

    def make_learner(self, stream: Stream) -> Any:
        """A learner that has learned nothing."""
        if self.learner:
            return _imported(self.learner, self.seed)
        from kalstream.estimators import KalmanClassifier, KalmanRegressor

        kind = KalmanRegressor if stream.task == REGRESSION else KalmanClassifier
        how: dict[str, Any] = {"random_state": self.seed}
        if self.is_timed(stream):
            how["time_unit"] = self.unit(stream)
        return kind(_forgetting(self.forgetting), self.features, **how)

    def is_timed(self, stream: Stream) -> bool:
        """Whether rows come with times."""
        return self.time is not None or getattr(stream, "timed", False)

    def unit(self, stream: Stream) -> float:
        """What times are counted in."""
        text = str(self.time_unit)
        if text == "auto":
            return _usual_gap(stream)
        found = re.fullmatch(_UNIT, text, re.ASCII)
        unit = float(found[1]) * _UNITS.get(found[2], 1.0) if found else 0.0
        if not _LEAST_UNIT <= unit <= _LARGEST_UNIT:
            raise InvalidInput(
                f"time_unit is {quoted(text)}; give a number from {_LEAST_UNIT:g} to "
                f"{_LARGEST_UNIT:g}, '30s', '12h', '1d' or 'auto'"
            )
        return unit


def _usual_gap(stream: Stream) -> float:
    """The median gap between the times of the first rows; 1 if there is none."""
    if isinstance(stream, TableStream) and not stream.repeatable:
        times: Any = stream.first_times()
    else:
        times = getattr(next(stream.batches(), None), "times", None)
    if times is None:
        return 1.0
    gaps = np.diff(times)
    gaps = gaps[gaps > 0.0]
    return float(np.clip(np.median(gaps), _LEAST_UNIT, _LARGEST_UNIT)) if gaps.size else 1.0


def _forgetting(text: str) -> str | float:
    """A policy by name, or gamma."""
    try:
        return float(text)
    except ValueError:
        return text


def _imported(path: str, seed: int) -> Any:
    """What a factory makes, given the seed if it takes one."""
    module, _, name = path.partition(":")
    if not (module and name):
        raise InvalidInput(f"learner is {path!r}; name it as package.module:factory")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a console script does not
    try:
        factory: Any = importlib.import_module(module)
        for part in name.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"learner {path!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise InvalidInput(
            f"learner {path!r} cannot be imported: {blamed(error)}; correct the module {module}"
        ) from error
    if not callable(factory):
        raise InvalidInput(f"{path} is {type(factory).__name__}; give something that can be called")
    try:
        takes = set(inspect.signature(factory).parameters)
    except ValueError:  # a function that is not written in Python
        takes = set()
    try:
        return factory(**dict.fromkeys(takes & {"random_state", "seed"}, seed))
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"learner {path!r} could not be made: {blamed(error)}") from error


def blamed(error: BaseException) -> str:
    """What somebody else's code raised, and where."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}, line {place.lineno}"
    return f"{type(error).__name__}: {error} ({where})"


def checked(kind: type[Kind], content: dict[str, Any]) -> Kind:
    """The content as a model, or an error that names the field, its value and what it must be."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or kind.__name__
        got = "" if first["type"] == "missing" else f", got {str(first['input'])[:100]}"
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise InvalidInput(f"{name}: {message}{got}") from None
