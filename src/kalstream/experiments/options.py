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

from kalstream.errors import InvalidInput
from kalstream.streams import Columns, EmbeddingStream, Stream, TableStream, packaged, time_series
from kalstream.streams._base import REGRESSION

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
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
        """The stream; ``columns`` is what an encoder had learnt before."""
        known = packaged.KNOWN.get(self.source)
        if known is not None and not os.path.exists(self.source):
            if self.source == "series":
                return time_series(self.seed)
            if not known.packaged:
                raise InvalidInput(f"{self.source} is not part of kalstream: {known.layout}")
            stream = self._table(str(packaged.path_of(self.source)), known.target, columns)
            stream.name = stream.source = self.source
            stream.n_rows, stream.attribution = known.rows, known.source
            return stream
        if os.path.splitext(self.source)[1] in (".npy", ".safetensors"):
            return EmbeddingStream(self.source, order=self.order, seed=self.seed)
        if "://" in self.source:
            raise InvalidInput(f"{self.source} is an address; fetch it first, and give the file")
        if self.target is None:
            raise InvalidInput(
                f"which column of {self.source} is to be predicted? Name it with --target"
            )
        return self._table(self.source, self.target, columns)

    def _table(self, source: str, target: str | None, columns: Columns | None) -> TableStream:
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
        """A learner that has learnt nothing."""
        if self.learner:
            return _imported(self.learner, self.seed)
        from kalstream.estimators import KalmanClassifier, KalmanRegressor

        kind = KalmanRegressor if stream.task == REGRESSION else KalmanClassifier
        how: dict[str, Any] = {"random_state": self.seed}
        if self.time is not None:
            how["time_unit"] = self.unit(stream)
        return kind(_forgetting(self.forgetting), self.features, **how)

    def unit(self, stream: Stream) -> float:
        """What times are counted in."""
        text = str(self.time_unit)
        found = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e[0-9]+)?)\s*([smhdw]?)", text)
        if found and 0.0 < float(found[1]) * _UNITS.get(found[2], 1.0) < math.inf:
            return float(found[1]) * _UNITS.get(found[2], 1.0)
        if text != "auto":
            raise InvalidInput(
                f"time_unit is {text!r}; give a number, '30s', '12h', '1d' or 'auto'"
            )
        first = next(stream.batches(), None)
        if first is None or first.times is None:
            return 1.0
        gaps = np.diff(first.times)
        return float(np.median(gaps[gaps > 0.0])) if (gaps > 0.0).any() else 1.0


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
