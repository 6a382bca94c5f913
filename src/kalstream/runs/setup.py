"""From options to the stream, the learner, the windows and the configuration of a run."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import os
import platform
import sys
import traceback
import uuid
from typing import Any, Final

import numpy as np

from kalstream import __version__, streams
from kalstream._optional import remedy_for
from kalstream._printable import quoted
from kalstream.errors import InvalidInput, InvalidOption
from kalstream.runs.files import FORMAT
from kalstream.runs.options import LARGEST_UNIT, LEAST_UNIT, Options, seconds_of
from kalstream.streams import REGRESSION, Columns, Stream

_STREAM_OPTIONS: Final = (
    *("target", "task", "time", "ignore", "categorical", "bad_rows", "order", "seed"),
)
# Most windows of a run whose length is known, the smallest window, and the window of other runs.
_N_WINDOWS: Final = 200
_LEAST_WINDOW: Final = 50
_USUAL_WINDOW: Final = 1000


def open_stream(options: Options, columns: Columns | None = None) -> Stream:
    """The stream of a run; ``columns`` is the encoder of a checkpoint."""
    encoder = {} if columns is None else {"columns": columns}
    stream = streams.open(options.source, **options.given(*_STREAM_OPTIONS), **encoder)
    if options.time_unit != "auto" and not stream.timed:
        raise InvalidOption(
            f"--time-unit is {quoted(options.time_unit)}, but rows have no times; name their "
            "column with --time, or leave --time-unit out"
        )
    return stream


def window_of(options: Options, stream: Stream) -> int:
    """Rows of a window: as given, or a round number that makes 80 to 200 windows."""
    if options.window:
        return options.window
    n = stream.approximate_rows
    if not n:
        return _USUAL_WINDOW
    n = min(n, options.limit or n)
    wanted = max(n / _N_WINDOWS, _LEAST_WINDOW)
    size = 10.0 ** math.floor(math.log10(wanted))
    return int(next(size * step for step in (1, 2, 5, 10) if size * step >= wanted))


def make_learner(options: Options, stream: Stream) -> Any:
    """A new learner."""
    if options.learner:
        return _imported(options.learner, options.seed)
    from kalstream.estimators import KalmanClassifier, KalmanRegressor

    more: dict[str, Any] = {"time_unit": time_unit_of(options, stream)} if stream.timed else {}
    more["random_state"] = options.seed
    orders = tuple(map(int, options.motion.split(",")))
    more["order"] = orders[0] if len(orders) == 1 else orders
    forgetting = _number_or_name(options.forgetting)
    if stream.task == REGRESSION:
        if options.likelihood != "auto":
            raise InvalidOption(
                f"--likelihood is {options.likelihood}, but the target is a number and has no "
                "classes; leave --likelihood out, or say --task classification"
            )
        return KalmanRegressor(forgetting, options.features, **more)
    more["likelihood"] = options.likelihood
    return KalmanClassifier(forgetting, options.features, **more)


def time_unit_of(options: Options, stream: Stream) -> float:
    """The unit of time: as given, or the median time step of the first rows."""
    if options.time_unit != "auto":
        return seconds_of(options.time_unit)
    times = stream.first_times()
    steps = np.diff(times) if times is not None else np.empty(0)
    steps = steps[steps > 0.0]
    return float(np.clip(np.median(steps), LEAST_UNIT, LARGEST_UNIT)) if steps.size else 1.0


def _number_or_name(forgetting: str) -> str | float:
    try:
        return float(forgetting)
    except ValueError:
        return forgetting


def _imported(path: str, seed: int) -> Any:
    """The learner that a factory returns; it gets the seed if it has a parameter for it."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a console script does not
    try:
        factory: Any = importlib.import_module(module)
        for part in name.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        remedy = remedy_for(error)
        raise InvalidInput(f"learner {path!r} cannot be imported: {error}{remedy}") from error
    except (Exception, SystemExit) as error:  # a module may raise anything when it is imported
        raise InvalidInput(
            f"learner {path!r} cannot be imported: {describe_error(error)}; correct the module "
            f"{module}"
        ) from error
    if not callable(factory):
        raise InvalidInput(f"{path} is {type(factory).__name__}; name a class or a function")
    try:
        parameters = set(inspect.signature(factory).parameters)
    except ValueError:  # a function that is not written in Python
        parameters = set()
    try:
        return factory(**dict.fromkeys(parameters & {"random_state", "seed"}, seed))
    except (Exception, SystemExit) as error:
        raise InvalidInput(
            f"learner {path!r} could not be made: {describe_error(error)}; correct the factory"
        ) from error


def describe_error(error: BaseException) -> str:
    """An error of code that is not ours, with the file and the line that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}, line {place.lineno}"
    return f"{type(error).__name__}: {error} ({where})"


def make_config(
    options: Options, stream: Stream, learner: Any, command: str, n_bytes: int
) -> dict[str, Any]:
    """The content of config.json for a new run."""
    return {
        "format": FORMAT,
        "version": __version__,
        "run": uuid.uuid4().hex,
        "command": command,
        "options": options.model_dump(),
        "stream": {**stream.describe(), "attribution": stream.attribution, "bytes": n_bytes},
        "learner": {"name": type(learner).__name__, "params": _params(learner)},
        "protocol": {
            "chunk": options.chunk,
            "delay": options.delay,
            "cost": options.cost,
            "window": window_of(options, stream),
            "limit": options.limit,
            "seed": options.seed,
        },
        "machine": _machine(),
    }


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }


def _params(learner: Any) -> dict[str, Any]:
    params = learner.get_params(deep=False) if hasattr(learner, "get_params") else {}
    return json.loads(json.dumps(params, default=lambda v: getattr(v, "__name__", repr(v))))
