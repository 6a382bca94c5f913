"""One case of the fuzzer: its random numbers, the list of its calls, and twins that get them.

A case is decided by a seed, the name of a part and a number. Whatever it does is noted before it
is done, so that the notes tell what led to a crash of the interpreter.
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
    """Something that must not happen; the text says what."""


def expect(holds: Any, text: str) -> None:
    """Raise a finding with this text unless it holds."""
    if not holds:
        raise Finding(text)


class Case:
    """Random numbers and notes of one case, and a folder for its files."""

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
        """One of the options; numpy would turn them into an array first."""
        options = list(options)
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def attempt(
        self, name: str, call: Callable[[], Any], allowed: Any = ()
    ) -> tuple[Any, Exception | None]:
        """Result of a call or its error, which must be one of kalstream or one that is allowed."""
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
            what = f"{type(error).__name__}: {str(error)[:300]}"
            raise Finding(f"{name}: not an error of kalstream: {what} ({where})") from error


def shown(value: Any) -> str:
    """An argument in a line of the list of calls."""
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
    """Whether two results are the same, bit for bit."""
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
    """Two equal models. Both get the good calls, one of them also gets the bad ones between.

    Parameters
    ----------
    case : Case
    make : function
        Makes one of the two; both must be equal.
    bytes_of : function of a model
        Everything that a model has learned; None before there is anything.
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
        """A call that both get: same result, or the same error if it is one that it may raise."""
        one, error = self._on(self.steady, "both", method, args, kwargs)
        text = f"{call_text(method, args, kwargs)} is a good call: {type(error).__name__}: {error}"
        expect(error is None or isinstance(error, may), text)
        other, second = self._on(self.tested, "   b", method, args, kwargs)
        expect(str(error) == str(second), f"{method} of equal models: {error!r} and {second!r}")
        expect(equal(one, other), f"{method} of equal models: {shown(one)} and {shown(other)}")
        self.check_equal(method)
        return one, error

    def bad(self, method: str, *args: Any, why: str, must: bool = True, **kwargs: Any) -> bool:
        """A call that one of them gets: it must raise, and then nothing has changed.

        Where ``must`` is False the call may also be taken; the other one then gets it as well, and
        the answer is True.
        """
        value, error = self._on(self.tested, f"bad ({why})", method, args, kwargs)
        taken = f"{call_text(method, args, kwargs)} is bad ({why}), and was taken"
        expect(error is not None or not must, taken)
        if error is None:
            other, second = self._on(self.steady, "   a", method, args, kwargs)
            same = second is None and equal(value, other)
            expect(same, f"{method} ({why}) of equal models: {second or shown(other)}")
        self.check_equal(f"{method} ({why})")
        return error is None

    def alone(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """A call that changes nothing, of one of them only."""
        value, error = self._on(self.tested, "only b", method, args, kwargs)
        text = f"{call_text(method, args, kwargs)}: {type(error).__name__}: {error}"
        expect(error is None or not self.fitted(self.tested), text)
        self.check_equal(f"{method}, which only predicts,")
        return value

    def check_equal(self, after: str) -> None:
        same = self.bytes_of(self.steady) == self.bytes_of(self.tested)
        expect(same, f"after {after} the model is another one: twins save different bytes")
