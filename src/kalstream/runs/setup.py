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
from datetime import timedelta
from typing import Any, Final

import numpy as np

from kalstream import __version__, streams
from kalstream._optional import remedy_for
from kalstream._printable import quoted
from kalstream.errors import InvalidInput, InvalidOption
from kalstream.features.aggregates import KINDS_OF_AGGREGATES, Aggregates, Spec
from kalstream.features.values import NO_VALUE
from kalstream.runs.files import FORMAT
from kalstream.runs.options import (
    LARGEST_UNIT,
    LEAST_UNIT,
    OF_CLASSIFIERS,
    OF_ESTIMATORS,
    Options,
    delay_of,
    numbers_of,
    seconds_of,
    typed,
)
from kalstream.streams import REGRESSION, Columns, Stream, format_of

_STREAM_OPTIONS: Final = (
    *("target", "task", "time", "label_time", "id", "key", "ignore", "categorical", "bad_rows"),
    *("missing", "decimal", "date_format", "delimiter", "encoding", "order", "seed"),
)
# Most windows of a run whose length is known, the smallest window, and the window of other runs.
_N_WINDOWS: Final = 200
_LEAST_WINDOW: Final = 50
_USUAL_WINDOW: Final = 1000


def open_stream(options: Options, columns: Columns | None = None) -> Stream:
    """The stream of a run; ``columns`` is the encoder of a checkpoint."""
    _check_key(options)
    given = options.given(*_STREAM_OPTIONS)
    if options.aggregate:
        given["aggregate_keys"] = _aggregate_keys(options)
    if columns is not None:  # new data say themselves when labels come
        if columns.id is not None and columns.id.name == options.id:
            given.pop("id", None)  # the first row of a pipe may lack it
        given["columns"] = columns.with_late(options.label_time, options.id)
    elif options.label_time and not options.time and "time" in format_of(options.source).options:
        raise InvalidOption(
            f"--label-time is {quoted(options.label_time)}, but rows have no times; name their "
            "column with --time"
        )
    stream = streams.open(options.source, **given)
    if options.time_unit != "auto" and not stream.timed:
        raise InvalidOption(
            f"--time-unit is {quoted(options.time_unit)}, but rows have no times; name their "
            "column with --time, or leave --time-unit out"
        )
    _check_late(options, stream)
    if stream.keyed and stream.task == REGRESSION:
        raise InvalidOption(
            f"--key is {quoted(options.key)}, but the target is a number, and runs by key are "
            "classifications; leave --key out, or say --task classification"
        )
    return stream


def _aggregate_keys(options: Options) -> list[str]:
    """The columns of keys of aggregates; an error if they do not fit the other options."""
    specs = [Spec.of(text) for text in options.aggregate]
    if "aggregate_keys" not in format_of(options.source).options:
        raise InvalidOption(
            f"--aggregate does not apply to {quoted(options.source)}, which "
            f"{format_of(options.source).about}; leave it out, or give a table"
        )
    for text, spec in zip(options.aggregate, specs, strict=True):
        if spec.column == options.target and not KINDS_OF_AGGREGATES[spec.kind].of_targets:
            raise InvalidOption(
                f"--aggregate {quoted(text)} is of the target, which only the kind target is of; "
                "name another column or kind"
            )
    return list(dict.fromkeys(spec.key for spec in specs))


def _check_key(options: Options) -> None:
    """Refuse options that models by key do not have."""
    if options.key is None:
        return
    late = "models by key have no late labels"
    reasons = {
        **dict.fromkeys(("delay", "label_time", "id", "max_age"), late),
        "time": "models by key forget by rows",
        "transition": "models by key forget before every row",
        "aggregate": "models by key see no aggregates",
    }
    for name, value in options.given(*reasons).items():
        raise InvalidOption(
            f"{typed(name)} is {quoted(value)}, but {reasons[name]}; leave {typed(name)} or --key "
            "out"
        )


def _check_late(options: Options, stream: Stream) -> None:
    """Refuse options on late labels that do not fit together."""
    delay = delay_of(options.delay)
    if isinstance(delay, timedelta) and not stream.timed:
        raise InvalidOption(
            f"--delay is {quoted(options.delay)}, but rows have no times; name their column with "
            "--time, or give a number of rows"
        )
    ways = {"--delay": delay, "--label-time": options.label_time, "--id": options.id}
    given = [name for name, value in ways.items() if value]
    if len(given) > 1:
        raise InvalidOption(f"{' and '.join(given)} each say when labels come; give one of them")
    for name, usual in (("chunk", 1), ("cost", 1.0)):
        value = getattr(options, name)
        if value != usual and (options.id or (name == "cost" and _late_in_time(options))):
            raise InvalidOption(
                f"--{name} is {value}, but must be {usual:g} with {given[0]}; leave it out"
            )


def _late_in_time(options: Options) -> bool:
    """Whether labels come at a time, not after a number of rows."""
    return bool(options.label_time) or isinstance(delay_of(options.delay), timedelta)


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
        for name in options.given(*OF_ESTIMATORS, *OF_CLASSIFIERS, "aggregate"):
            raise InvalidOption(
                f"{typed(name)} does not apply to --learner {options.learner}; leave it out, and "
                "set its parameters in the factory"
            )
        return _imported(options.learner, options.seed)
    from kalstream.estimators import KalmanClassifier, KalmanRegressor, KeyedClassifier

    more: dict[str, Any] = {"time_unit": time_unit_of(options, stream)} if stream.timed else {}
    more["random_state"] = options.seed
    more["max_waiting"], more["max_age"] = max_waiting_of(options), options.max_age
    orders = tuple(map(int, options.motion.split(",")))
    more["order"] = orders[0] if len(orders) == 1 else orders
    forgetting = _number_or_name(options.forgetting)
    more |= _parameters(options, OF_ESTIMATORS, stream)
    features: Any = options.features
    if options.aggregate:
        features = Aggregates(options.aggregate, stream.columns, features)
        features.width(len(stream.columns or ()))  # an error if a column is not there
    if stream.task != REGRESSION:
        more |= _parameters(options, OF_CLASSIFIERS, stream)
        of_all = KalmanClassifier(forgetting, features, **more)
        return KeyedClassifier(of_all) if stream.keyed else of_all
    for name in options.given(*OF_CLASSIFIERS):
        value = getattr(options, name)
        given = typed(name) if value is False else f"{typed(name)} is {_plain(value)}"
        raise InvalidOption(
            f"{given}, but the target is a number and has no classes; leave {typed(name)} out, or "
            "say --task classification"
        )
    return KalmanRegressor(forgetting, features, **more)


def _plain(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _parameters(options: Options, names: tuple[str, ...], stream: Stream) -> dict[str, Any]:
    """Parameters of an estimator, from the options of the same names that were given."""
    values = options.given(*names)
    for name in {"noise_var", "prior_var", "calibration"} & set(values):
        values[name] = numbers_of(values[name])
    if "class_weight" in values:
        values["class_weight"] = _class_weight(options.class_weight, stream)
    return values


def _class_weight(given: list[str], stream: Stream) -> str | dict[Any, float]:
    """The weights of classes that "balanced", or texts such as "yes=2", stand for."""
    if given == ["balanced"]:
        return "balanced"
    target = None if stream.encoder is None else stream.encoder.target
    read = _whole_or_text if target is None else target.reading.parse
    weights = {}
    for each in given:
        label, _, weight = each.rpartition("=")
        try:
            weights[read(label)] = float(weight)
        except NO_VALUE:
            raise InvalidOption(
                f"--class-weight is {quoted(each)}, but {quoted(label)} is no label of the target; "
                "write the label as it is in the data"
            ) from None
    return weights


def _whole_or_text(label: str) -> int | str:
    return int(label) if label.removeprefix("-").isdecimal() else label


def max_waiting_of(options: Options) -> int:
    """Rows that wait for their labels, at most: as given, or enough for the delay."""
    delay = delay_of(options.delay)
    longest = 0 if isinstance(delay, timedelta) else delay + options.chunk
    return max(options.max_waiting, longest)


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
        raise InvalidOption(f"learner {path!r} cannot be imported: {error}{remedy}") from error
    except (Exception, SystemExit) as error:  # a module may raise anything when it is imported
        raise InvalidOption(
            f"learner {path!r} cannot be imported: {describe_error(error)}; correct the module "
            f"{module}"
        ) from error
    if not callable(factory):
        raise InvalidOption(f"{path} is {type(factory).__name__}; name a class or a function")
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
    delay = delay_of(options.delay)
    return {
        "format": FORMAT,
        "version": __version__,
        "run": uuid.uuid4().hex,
        "command": command,
        "options": options.model_dump(),
        "origin": None,
        "stream": {**stream.describe(), "attribution": stream.attribution, "bytes": n_bytes},
        "extensions": [],
        "learner": {"name": type(learner).__name__, "params": _params(learner)},
        "protocol": {
            "chunk": options.chunk,
            "delay": 0 if isinstance(delay, timedelta) else delay,
            **({"delay_seconds": delay.total_seconds()} if isinstance(delay, timedelta) else {}),
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
