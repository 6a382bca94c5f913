"""One case of the fuzzer: its random numbers, the log of its calls, and the twins it calls.

A case depends only on a seed, the name of a part and a number. Each call is logged before it is
made, so that the log shows the call that crashed the interpreter.
"""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError

from kalstream.errors import KalstreamError

LONGEST_MESSAGE = 5000


class Finding(AssertionError):
    """Behaviour that must not happen; the text describes it."""


def expect(holds: Any, text: str) -> None:
    """Raise a finding with this text if the condition does not hold."""
    if not holds:
        raise Finding(text)


class Case:
    """Random numbers and log of one case, and a folder for its files."""

    def __init__(
        self,
        seed: int,
        part: str,
        number: int,
        folder: Path,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.rng = np.random.default_rng([seed, number, *part.encode()])
        self.folder, self.note = folder, log

    def pick(self, options: Any) -> Any:
        """One of the options, at random; numpy's choice would convert them to an array."""
        options = list(options)
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def attempt(
        self, name: str, call: Callable[[], Any], allowed: Any = ()
    ) -> tuple[Any, Exception | None]:
        """Return the result of a call or its error, which must be of kalstream or allowed."""
        self.note(name)
        try:
            return call(), None
        except (KalstreamError, *allowed) as error:
            if len(str(error)) > LONGEST_MESSAGE:
                raise Finding(f"{name}: a message of {len(str(error))} characters") from error
            self.note(f"  {type(error).__name__}: {str(error)[:200]}")
            return None, error
        except Finding:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            text = f"{type(error).__name__}: {str(error)[:300]}"
            raise Finding(f"{name}: not an error of kalstream: {text} ({where})") from error


def shown(value: Any) -> str:
    """Format an argument for the log."""
    if isinstance(value, np.ndarray):
        values = reprlib.repr(value.ravel()[:4].tolist())
        return f"{type(value).__name__}{value.shape}:{value.dtype}:{values}"
    try:
        return reprlib.repr(value).replace("\n", " ")[:120]
    except Exception:
        return f"<{type(value).__name__}>"


def call_text(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = [shown(a) for a in args]
    given += [f"{k}={shown(v)}" for k, v in kwargs.items() if v is not None]
    return f"{method}({', '.join(given)})"


def equal(one: Any, other: Any) -> bool:
    """Whether two results are equal bit for bit."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if hasattr(one, "to_numpy"):
        return type(one) is type(other) and equal(one.to_numpy(), other.to_numpy())
    if isinstance(one, np.ndarray) and one.dtype != object:
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and repr(one.tolist()) == repr(other.tolist())
    return repr(one) == repr(other)


class Twins:
    """Two equal models. Both get the good calls; only `tested` also gets the bad calls.

    Parameters
    ----------
    case : Case
    make : function
        Makes a model; two calls must give equal models.
    bytes_of : function of a model
        The state of a model, comparable.
    fitted : function of a model
    """

    def __init__(
        self,
        case: Case,
        make: Callable[[], Any],
        bytes_of: Callable[[Any], Any],
        fitted: Callable[[Any], bool],
    ) -> None:
        self.case, self.bytes_of, self.fitted = case, bytes_of, fitted
        self.steady, self.tested = make(), make()

    def _on(self, model: Any, mark: str, method: str, args: Any, kwargs: Any) -> Any:
        allowed = () if self.fitted(model) else (NotFittedError,)
        text = f"{mark} {call_text(method, args, kwargs)}"
        value, error = self.case.attempt(
            text, lambda: getattr(model, method)(*args, **kwargs), allowed
        )
        return (None if value is model else value), error

    def good(self, method: str, *args: Any, may: Any = (), **kwargs: Any) -> tuple[Any, Any]:
        """Call both models: equal results, or equal errors of a type in ``may``."""
        one, error = self._on(self.steady, "both", method, args, kwargs)
        text = f"{call_text(method, args, kwargs)} is a good call: {type(error).__name__}: {error}"
        expect(error is None or isinstance(error, may), text)
        other, second = self._on(self.tested, "   b", method, args, kwargs)
        expect(str(error) == str(second), f"{method} of equal models: {error!r} and {second!r}")
        expect(equal(one, other), f"{method} of equal models: {shown(one)} and {shown(other)}")
        self.check_equal(method)
        return one, error

    def bad(self, method: str, *args: Any, why: str, must: bool = True, **kwargs: Any) -> bool:
        """Call only `tested`: the call must raise and change nothing.

        If ``must`` is False the call may also succeed. Then the other model gets the call too, and
        the method returns True.
        """
        value, error = self._on(self.tested, f"bad ({why})", method, args, kwargs)
        accepted = f"{call_text(method, args, kwargs)} is bad ({why}), and was accepted"
        expect(error is not None or not must, accepted)
        if error is None:
            other, second = self._on(self.steady, "   a", method, args, kwargs)
            same = second is None and equal(value, other)
            expect(same, f"{method} ({why}) of equal models: {second or shown(other)}")
        self.check_equal(f"{method} ({why})")
        return error is None

    def alone(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call only `tested`, with a call that changes nothing."""
        value, error = self._on(self.tested, "only b", method, args, kwargs)
        text = f"{call_text(method, args, kwargs)}: {type(error).__name__}: {error}"
        expect(error is None or not self.fitted(self.tested), text)
        self.check_equal(f"{method}, which only predicts,")
        return value

    def check_equal(self, after: str) -> None:
        same = self.bytes_of(self.steady) == self.bytes_of(self.tested)
        expect(same, f"after {after} the models differ: twins save different bytes")
