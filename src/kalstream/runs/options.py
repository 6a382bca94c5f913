"""The options of a run, each declared once.

The declaration of an option holds its name, type, default, limits and help text. The parameters of
`kalstream run`, the entry `options` of config.json and the messages are made from it. This module
imports nothing heavy, so that `kalstream --help` is quick.
"""

from __future__ import annotations

import math
import re
import shlex
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic.config import JsonDict

from kalstream._printable import quoted
from kalstream.errors import InvalidInput, InvalidOption

# Chunks, and rows that wait for their targets, are in memory; rows are counted in 53 bits.
_MOST_IN_MEMORY: Final = 10**9
_MOST_ROWS: Final = 10**15

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNIT: Final = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+)\s*([smhdw]?)"
# Nanoseconds, and in them far more than the age of the universe.
LEAST_UNIT: Final = 1e-9
LARGEST_UNIT: Final = 1e30
_LONGEST_DELAY: Final = 1e12  # seconds
CHECKPOINT_EVERY: Final = 30.0  # seconds
# Parameters of the estimators that are options of the same name, and those of classifiers only.
OF_ESTIMATORS: Final = (
    "n_components",
    "transition",
    "noise_var",
    "prior_var",
    "intercept",
    "dtype",
)
OF_CLASSIFIERS: Final = (
    *("likelihood", "predictive", "calibration", "class_weight", "stacking", "recent_labels"),
    "preset",
)
# Options that config.json has only if they were given.
_LATER: Final = (
    *("key", "aggregate", "missing", "decimal", "date_format", "delimiter", "encoding"),
    *OF_ESTIMATORS,
    *(name for name in OF_CLASSIFIERS if name != "likelihood"),
)

# Options that say where rows come from, or when labels come: clients of a service decide that.
NOT_SERVED: Final = (
    *("source", "target", "label_time", "id", "key", "bad_rows", "order", "learner", "chunk"),
    *("delay", "cost", "limit", "predictions", "aggregate"),
)

Model = TypeVar("Model", bound=BaseModel)


def seconds_of(unit: str) -> float:
    """The number that a unit of time such as "12h" or "7" stands for."""
    match = re.fullmatch(_UNIT, unit, re.ASCII)
    number = float(match[1]) * _UNITS.get(match[2], 1.0) if match else 0.0
    if not LEAST_UNIT <= number <= LARGEST_UNIT:
        raise _bad_unit(unit)
    return number


def _as_unit(value: Any) -> str:
    """A unit of time as text, checked."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _bad_unit(value)
    if str(value) != "auto":
        seconds_of(str(value))
    return str(value)


def _bad_unit(value: Any) -> InvalidOption:
    return InvalidOption(
        f"--time-unit is {quoted(value)}; give a number from {LEAST_UNIT:g} to "
        f"{LARGEST_UNIT:g}, '30s', '12h', '1d' or 'auto'"
    )


def _as_delay(value: Any) -> str:
    """A delay as text, checked: a number of rows, or a time with its unit."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _bad_delay(value)
    delay_of(str(value))
    return str(value)


def delay_of(value: str) -> int | timedelta:
    """The delay that an option such as "500" or "3d" stands for."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        if len(text) > 10 or int(text) > _MOST_IN_MEMORY:
            raise _bad_delay(value)
        return int(text)
    if not text.endswith(tuple(_UNITS)):
        raise _bad_delay(value)
    try:
        seconds = seconds_of(text)
    except InvalidOption:
        raise _bad_delay(value) from None
    if seconds > _LONGEST_DELAY:
        raise _bad_delay(value)
    return timedelta(seconds=seconds)


def _bad_delay(value: Any) -> InvalidOption:
    return InvalidOption(
        f"--delay is {quoted(value)}; give a number of rows from 0 to {_MOST_IN_MEMORY}, or a time "
        "such as 30s, 12h or 3d, with --time"
    )


def _as_forgetting(value: str) -> str:
    try:
        is_valid = 0.0 <= float(value) <= 1.0
    except ValueError:
        is_valid = value in ("mixture", "learned")
    if not is_valid:
        raise InvalidOption(
            f"--forgetting is {quoted(value)}; give mixture, learned, or a gamma from 0 to 1 "
            "(1 forgets nothing)"
        )
    return value


def _as_numbers(name: str, most: int) -> BeforeValidator:
    """Checks "auto" or numbers, separated by commas, all above 0."""

    def read(value: Any) -> str:
        parts = str(value).split(",")
        if str(value) != "auto" and not (
            len(parts) <= most and all(_is_positive(part) for part in parts)
        ):
            several = ", or several, such as 0.5,1,2" if most > 1 else ""
            raise InvalidOption(
                f"{typed(name)} is {quoted(value)}; give auto or a number above 0{several}"
            )
        return str(value)

    return BeforeValidator(read)


def _is_positive(text: str) -> bool:
    try:
        return 0.0 < float(text) < math.inf
    except ValueError:
        return False


def numbers_of(value: str) -> str | float | tuple[float, ...]:
    """The parameter that an option such as "auto", "0.1" or "0.5,1,2" stands for."""
    if value == "auto":
        return value
    numbers = tuple(map(float, value.split(",")))
    return numbers[0] if len(numbers) == 1 else numbers


def _as_class_weight(value: list[str]) -> list[str]:
    if value != ["balanced"]:
        for each in value:
            label, _, weight = each.rpartition("=")
            if not label or not _is_positive(weight):
                raise InvalidOption(
                    f"--class-weight is {quoted(each)}; give balanced alone, or LABEL=WEIGHT with "
                    "a weight above 0, and repeat the option for several labels"
                )
    return value


def _as_motion(value: str) -> str:
    orders = value.split(",")
    if not (set(orders) <= {"1", "2", "3"} and len(set(orders)) == len(orders)):
        raise InvalidOption(
            f"--motion is {quoted(value)}; give 1, 2 or 3, or several, such as 1,2, each once"
        )
    return value


def _as_likelihood(value: str) -> str:
    if value != "auto":  # the usual value needs no import
        from kalstream.core.likelihoods import LIKELIHOODS

        if value not in LIKELIHOODS:
            words = ", ".join(LIKELIHOODS)
            raise InvalidOption(f"--likelihood is {quoted(value)}; give auto, or one of {words}")
    return value


def _as_learner(value: str) -> str:
    if value and not all(value.partition(":")[::2]):
        raise InvalidOption(f"--learner is {quoted(value)}; name it as package.module:factory")
    return value


def option(
    default: Any,
    help: str,
    short: str | None = None,
    *,
    argument: bool = False,
    typed_as: str | None = None,
    repeated: bool = False,
    **limits: Any,
) -> Any:
    """Declare an option.

    Parameters
    ----------
    default : object
    help : str
    short : str, optional
        A second name, such as "-t". The first is the name of the field with "--" and hyphens.
    argument : bool
        Whether it is typed without a name.
    typed_as : str, optional
        Another first name, where that of the field would be a keyword of Python.
    repeated : bool
        Whether a list is typed by repeating the option only, since its texts may hold commas.
    **limits
        ge, le and more of pydantic's `Field`.
    """
    more: JsonDict = {"short": short, "argument": argument, "typed_as": typed_as}
    more["repeated"] = repeated
    return Field(default, description=help, json_schema_extra=more, **limits)


class Options(BaseModel):
    """Everything that decides what a run computes; `kalstream run --help` lists the options.

    Examples
    --------
    >>> options = Options(source="weather", forgetting="0.99", limit=300)
    >>> options.chunk, options.features
    (1, 'fourier')
    >>> Options(source="weather", chunk=0)
    Traceback (most recent call last):
    pydantic_core._pydantic_core.ValidationError: 1 validation error for Options...
    """

    model_config = ConfigDict(extra="forbid")

    source: str = option(
        "elec2",
        "CSV, JSON lines (.gz, .zst), Parquet, a folder of such files, embeddings (.npy, .npz, "
        ".safetensors), - for standard input; or elec2, weather or series.",
        argument=True,
    )
    origin: str | None = option(
        None,
        "Start with the model of a run, and its encoding of columns; or with a file that save "
        "wrote.",
        typed_as="--from",
    )
    target: str | None = option(None, "Column to predict. Needed for your own tables.", "-t")
    task: Literal["classification", "regression"] | None = option(
        None, "Task; guessed from the target if not given."
    )
    time: str | None = option(
        None, "Column of times. Forgetting then depends on time, not on rows."
    )
    time_unit: Annotated[str, BeforeValidator(_as_unit)] = option(
        "auto",
        "With --time: unit of half-lives, such as 30s, 12h, 1d or 7 (seconds for dates). auto: the "
        "median time step.",
    )
    label_time: str | None = option(
        None, "With --time: column of the times at which labels came; empty: never."
    )
    id: str | None = option(
        None,
        "Column of ids: a row without a label waits, and a later row with its id brings the label.",
    )
    key: str | None = option(
        None,
        "Column of keys, such as customers: one model of all rows, and a small one for each key.",
    )
    aggregate: list[str] = option(
        [],
        "KEY:COLUMN:KIND:WINDOW: a feature of the earlier rows of a row's KEY, such as "
        "customer:amount:mean:100. Kinds: lag, mean, ewm, count, target; repeat the option.",
        repeated=True,
    )
    ignore: list[str] = option(
        [], "Columns to leave out, separated by commas; or repeat the option."
    )
    categorical: list[str] = option([], "Columns whose numbers are codes of categories.")
    missing: list[str] = option(
        [], "A text that counts as missing in every column; repeat the option.", repeated=True
    )
    decimal: Literal[",", "."] | None = option(
        None, "Decimal separator of numbers in texts; guessed if not given."
    )
    date_format: str | None = option(
        None, "Dates that are no ISO dates: day-first, month-first, or a format such as %Y%m%d."
    )
    delimiter: str | None = option(None, "Delimiter of CSV; guessed from the header if not given.")
    encoding: str | None = option(
        None,
        "Encoding of text, such as cp1252; UTF-8 if not given, or UTF-16 with a byte order mark.",
    )
    bad_rows: Literal["stop", "skip"] = option(
        "stop", "Stop at a row that cannot be read, or skip it."
    )
    order: Literal["as-is", "shuffled", "tasks"] = option("as-is", "Order of an embedding file.")
    forgetting: Annotated[str, AfterValidator(_as_forgetting)] = option(
        "mixture", "mixture, learned, or a gamma from 0 to 1 (1 forgets nothing)."
    )
    likelihood: Annotated[str, AfterValidator(_as_likelihood)] = option(
        "auto",
        "How filters observe a label: auto, softmax, softmax-label or onehot (a one-hot vector).",
    )
    motion: Annotated[str, AfterValidator(_as_motion)] = option(
        "1", "Order of the motion of weights: 1, 2 or 3, or several, such as 1,2."
    )
    features: Literal["fourier", "scaled", "raw"] = option(
        "fourier", "Features that are computed from a row for the filter."
    )
    n_components: int = option(200, "Number of Fourier features.", ge=1, le=100_000)
    class_weight: Annotated[list[str], AfterValidator(_as_class_weight)] = option(
        [],
        "Weights of classes: balanced, which uses the class frequencies so far, or LABEL=WEIGHT; "
        "repeat the option.",
        repeated=True,
    )
    noise_var: Annotated[str, _as_numbers("noise_var", 1)] = option(
        "auto", "Variance of the noise of a target: auto, or a number."
    )
    prior_var: Annotated[str, _as_numbers("prior_var", 1)] = option(
        "auto", "Variance of a weight before any data: auto, or a number."
    )
    transition: Literal["example", "chunk"] = option(
        "example", "Forget before every row, or once per chunk."
    )
    predictive: Literal["auto", "exact", "probit", "monte-carlo", "plug-in"] = option(
        "auto", "How logits become probabilities."
    )
    calibration: Annotated[str, _as_numbers("calibration", 100)] = option(
        "auto",
        "Factor that multiplies logits: learned (auto), a number, or several for a mixture, such "
        "as 0.5,1,2.",
    )
    stacking: bool = option(
        True,
        "Without this, an online logistic regression combines the filters of a mixture.",
        typed_as="--no-stacking",
    )
    recent_labels: bool = option(
        True, "Without this, the stack uses recent labels.", typed_as="--no-recent-labels"
    )
    preset: Literal["fast", "default", "accurate"] = option(
        "default",
        "fast: the filters of a mixture alone. default: nearest rows, label transitions and a "
        "linear rule stand beside them. accurate: classes as Gaussians and boosted trees, too.",
    )
    intercept: bool = option(
        True, "Without this, a constant is one of the features.", typed_as="--no-intercept"
    )
    dtype: Literal["float64", "float32"] = option(
        "float64", "Numbers of the filter: float32 needs half the memory."
    )
    learner: Annotated[str, AfterValidator(_as_learner)] = option(
        "", "package.module:factory of your own learner."
    )
    chunk: int = option(
        1, "Rows that are predicted before any of them is learned.", ge=1, le=_MOST_IN_MEMORY
    )
    delay: Annotated[str, BeforeValidator(_as_delay)] = option(
        "0", "Labels are late: by a number of rows, or with --time by a time, such as 30s or 3d."
    )
    max_waiting: int = option(
        100_000,
        "Rows that wait for their labels, at most; the oldest are given up, and counted. At least "
        "--delay.",
        ge=1,
        le=_MOST_IN_MEMORY,
    )
    max_age: float | None = option(
        None,
        "How long a row waits for its label, at most: so many rows that came after it or, with "
        "--time, units of --time-unit. Then it is given up, and counted.",
        gt=0.0,
        allow_inf_nan=False,
    )
    cost: float = option(
        1.0,
        "Learn only every COST-th chunk, as if the learner were too slow for the stream.",
        ge=1.0,
        allow_inf_nan=False,
    )
    window: int = option(
        0,
        "Rows per window; 0 chooses a size that makes 80 to 200 windows.",
        ge=0,
        le=_MOST_ROWS,
    )
    limit: Annotated[int | None, AfterValidator(lambda limit: limit or None)] = option(
        None, "Stop after this many rows; 0 means no limit.", ge=0, le=_MOST_ROWS
    )
    seed: int = option(0, "Seed of all random numbers.", ge=0, le=2**32 - 1)
    predictions: bool = option(False, "Also write every prediction.")

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out later options that were not given: files of runs without them stay the same."""
        values: dict[str, Any] = handler(self)
        given = self.given(*_LATER)
        return {
            name: value for name, value in values.items() if name not in _LATER or name in given
        }

    @classmethod
    def of(cls, /, **values: Any) -> Options:
        """Options, or an `InvalidOption` that names the option, its value and the remedy."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problem = error.errors()[0]
            cause = problem.get("ctx", {}).get("error")
            if isinstance(cause, InvalidOption):
                raise cause from None
            name, message = _problem(problem, cls.__name__)
            raise InvalidOption(f"{typed(name)}: {message}") from None

    def given(self, *names: str) -> dict[str, Any]:
        """Those of some options that do not have their default."""
        values = {name: getattr(self, name) for name in names}
        return {k: v for k, v in values.items() if v != type(self).model_fields[k].default}


def typed(name: str) -> str:
    """An option as it is typed: ``--bad-rows``; an argument in capitals, as in the help."""
    if name in Options.model_fields:
        if declared(name)["argument"]:
            return name.upper()
        if declared(name)["typed_as"]:
            return str(declared(name)["typed_as"])
    return f"--{name.replace('_', '-')}"


def declared(name: str) -> dict[str, Any]:
    """How an option is typed: what its declaration says of that."""
    more = Options.model_fields[name].json_schema_extra
    assert isinstance(more, dict)
    return more


def arguments(options: Options) -> list[str]:
    """Options that were given, and the source, as `kalstream run` takes them.

    Examples
    --------
    >>> arguments(Options(source="a.csv", target="y", ignore=["id", "day"], intercept=False))
    ['a.csv', '--target', 'y', '--ignore', 'id', '--ignore', 'day', '--no-intercept']
    """
    parts = [options.source]
    for name, field in Options.model_fields.items():
        value = getattr(options, name)
        if name not in options.model_fields_set or declared(name)["argument"]:
            continue
        if isinstance(value, bool):
            parts += [typed(name)] if value != field.default else []
        elif value is not None:
            for each in value if isinstance(value, list) else [value]:
                text = str(each)
                parts += [f"{typed(name)}={text}"] if text[:1] == "-" else [typed(name), text]
    return parts


# What the library says of its arguments where the command has another option, or none.
_PHRASES: Final = {
    "resume=False": "--overwrite",
}
_VALUE: Final = r"""\[[^\]]*\]|"[^"]*"|'[^']*'|[0-9][0-9.e+-]*(?![\w(])|(?=[\s;,.:)]|$)"""


def as_typed(message: str) -> str:
    """A message with options as they are typed: ``bad_rows='skip'`` becomes ``--bad-rows skip``.

    ``time=`` becomes ``--time``, and ``max_waiting`` becomes ``--max-waiting``: a name without "="
    only if it has an underscore or the message begins with it, since others are words.
    """

    def replace(match: re.Match[str]) -> str:
        given = match[2]
        values = re.findall(r"""["']([^"']*)["']""", given) or [given.rstrip(".")]
        dot = "." * (len(given) - len(given.rstrip(".")))
        if not declared(match[1])["repeated"]:
            values = [",".join(values)]
        shown = [
            f"{typed(match[1])} {shlex.quote(v) if v or given else ''}".rstrip() for v in values
        ]
        return " ".join(shown) + dot

    for phrase, option_of_command in _PHRASES.items():
        message = message.replace(phrase, option_of_command)
    # The estimators' order of motion; the command's --order is that of rows.
    message = re.sub(r"\border=\(?([0-9](?:, ?[0-9])*)\)?", r"--motion \1", message)
    message = re.sub(r"\bgamma=([0-9.]+)", r"--forgetting \1", message)
    names = "|".join(Options.model_fields)
    message = re.sub(rf"(?<![\w.-])({names})=({_VALUE})", replace, message)
    message = re.sub(rf"^({names})(?= must )", lambda m: typed(m[1]), message)
    alone = "|".join(name for name in Options.model_fields if "_" in name)
    # A name in quotes, or in a path, is the user's.
    return re.sub(
        rf"""(?<![\w."'/\\-])({alone})(?![\w"'/\\=(]|\.\w)""", lambda m: typed(m[1]), message
    )


def checked(kind: type[Model], content: dict[str, Any]) -> Model:
    """The content as a model, or an error that names the field, its value and what is wrong."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        name, message = _problem(error.errors()[0], kind.__name__)
        raise InvalidInput(f"{name}: {message}") from None


def _problem(problem: Any, whole: str) -> tuple[str, str]:
    """The field of a validation error, and what is wrong with its value."""
    name = ".".join(map(str, problem["loc"])) or whole
    got = "" if problem["type"] == "missing" else f", got {str(problem['input'])[:100]}"
    return name, f"{problem['msg'][:1].lower()}{problem['msg'][1:]}{got}"
