"""Clients of `kalstream serve`: rows to predict and to learn, over HTTP.

A call describes its request as data (`Call`); `Client` and `AsyncClient` only send it, and send it
again with the same ids if its answer is lost.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

from kalstream._optional import require
from kalstream.errors import InvalidInput, KalstreamError

httpx2 = require("httpx2", "serve")

__all__ = ["AsyncClient", "Client", "ServiceError"]

_BUSY: Final = (429, 503)  # nothing was acknowledged, and it is welcome later
_LONGEST_PAUSE: Final = 5.0  # seconds

Row = Mapping[str, Any]


class ServiceError(KalstreamError, RuntimeError):
    """A service refused a request with this ``status``, or could not be reached (None).

    Examples
    --------
    Here a function stands in for the service:

    >>> refusal = httpx2.Response(401, json={"error": "give a token"})
    >>> transport = httpx2.MockTransport(lambda request: refusal)
    >>> Client(http=httpx2.Client(transport=transport)).models()
    Traceback (most recent call last):
    kalstream.client.ServiceError: give a token
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Call(NamedTuple):
    """A request as data."""

    method: str
    path: str
    body: Any = None  # sent as JSON
    part: str | None = None  # of the answer, which is returned; all of it without
    repeats: bool = True  # whether it may be sent again if nobody knows whether it had an effect


class _Calls:
    """The calls of both clients.

    Parameters
    ----------
    url : str
    model : str
        Of the calls about a model.
    token : str, optional
        As `kalstream token` printed it.
    patience : float
        Seconds for which a call is sent again while the service is busy or does not answer.
    timeout : float
        Seconds that one answer may take.
    http : client of httpx2, optional
        Your own, for certificates, proxies or tests.
    """

    _new_http: Callable[..., Any]

    def __init__(
        self,
        url: str = "http://localhost:8000",
        *,
        model: str = "default",
        token: str | None = None,
        patience: float = 30.0,
        timeout: float = 30.0,
        http: Any = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(f"{url} is no URL of a service; write it as http://localhost:8000")
        self.url, self.patience = url.rstrip("/"), patience
        self._model = f"/models/{quote(model, safe='')}"
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self.http = type(self)._new_http(timeout=timeout) if http is None else http

    def predict(self, row: Row | Sequence[Row], id: Any = None) -> Any:
        """Predict a row {column: value}, or a list of rows; with ids they wait for their labels.

        A row's answer has "prediction" and "probabilities" or "std", once something was learned.
        """
        return self._rows("/predict", isinstance(row, Mapping), row=row, id=id)

    def learn(self, row: Row | Sequence[Row], label: Any, id: Any = None) -> Any:
        """Predict a row, or a list of rows, and then learn the labels; answers as `predict`.

        Rows without ids get random ones, so that a label counts once if its answer was lost.
        """
        one = isinstance(row, Mapping)
        if id is None:
            id = uuid.uuid4().hex if one else [uuid.uuid4().hex for _ in row]
        return self._rows("/learn", one, row=row, id=id, label=label)

    def label(self, id: Any, label: Any) -> Any:
        """Learn the label of a row that waits, or labels of a list of ids.

        "status" says whether each was "learned", "repeated", "unknown" or "expired".
        """
        return self._rows("/learn", isinstance(id, str | int), id=id, label=label)

    def metrics(self) -> Any:
        """How good the model is so far."""
        return self._send(Call("GET", f"{self._model}/metrics"))

    def drift(self) -> Any:
        """The drift alarm of the model, and its events."""
        return self._send(Call("GET", f"{self._model}/drift"))

    def snapshot(self) -> Any:
        """Have a checkpoint written now."""
        return self._send(Call("POST", f"{self._model}/snapshot", {}))

    def models(self) -> Any:
        """Names, tasks and rows of all models."""
        return self._send(Call("GET", "/models", part="models"))

    def make(self, **options: Any) -> Any:
        """Make the model, with options of `kalstream run`."""
        return self._send(Call("PUT", self._model, options, repeats=False))

    def remove(self) -> Any:
        """Remove the model."""
        return self._send(Call("DELETE", self._model, repeats=False))

    def _rows(self, path: str, one: bool, **parts: Any) -> Any:
        """Send an event, or several from lists of their parts."""
        given = {key: part for key, part in parts.items() if part is not None}
        if one:
            return self._send(Call("POST", self._model + path, given))
        sizes = {key: len(part) for key, part in given.items()}
        if len(set(sizes.values())) > 1:
            raise InvalidInput(f"the lists differ in length ({sizes}); give one of each per row")
        events = [dict(zip(given, each, strict=True)) for each in zip(*given.values(), strict=True)]
        return self._send(Call("POST", self._model + path, {"rows": events}, "rows"))

    def _send(self, call: Call) -> Any:
        raise NotImplementedError

    def _request(self, call: Call) -> dict[str, Any]:
        """Arguments of `request` of httpx2."""
        content = None if call.body is None else json.dumps(_plain(call.body)).encode()
        where = {"method": call.method, "url": self.url + call.path}
        return {**where, "content": content, "headers": self._headers}

    def _pauses(self, call: Call) -> Generator[float, Any, Any]:
        """Yield seconds to wait before each attempt, take its outcome, and return the answer.

        An outcome is an answer of httpx2, or the error of its transport.
        """
        until, pause, longest = time.monotonic() + self.patience, 0.0, 0.1
        while True:
            outcome = yield pause
            error, again, after = _judged(outcome, self.url, call)
            if error is None:
                return outcome.json() if call.part is None else outcome.json()[call.part]
            # Random, since clients that were refused together should not come back together.
            pause = max(after, longest * random.uniform(0.5, 1.0))
            longest = min(2.0 * longest, _LONGEST_PAUSE)
            if not again or time.monotonic() + pause > until:
                raise error


def _judged(outcome: Any, url: str, call: Call) -> tuple[ServiceError | None, bool, float]:
    """What went wrong, whether the call may be sent again, and after how many seconds at least."""
    if isinstance(outcome, Exception):
        what = str(outcome) or type(outcome).__name__
        error = ServiceError(f"{url} does not answer ({what}); start the service, or correct it")
        return error, call.repeats or isinstance(outcome, httpx2.ConnectError), 0.0
    status = outcome.status_code
    try:
        content = outcome.json()
    except ValueError:
        content = {"error": f"{url} sent no JSON ({status}); check that it is kalstream's service"}
    if outcome.is_success and "error" not in content:
        return None, False, 0.0
    message = str(content.get("error", content))
    after = outcome.headers.get("retry-after", "")
    seconds = float(after) if after.isdecimal() else 0.0
    return ServiceError(message, status), status in _BUSY, seconds


def _plain(value: Any) -> Any:
    """A value as JSON has it: NumPy's as Python's, dates as text, NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Client(_Calls):
    """A client whose calls return answers.

    Examples
    --------
    The answers below come from a function in place of a service; leave ``http`` out for a real one.

    >>> def answer(request):
    ...     return httpx2.Response(200, json={"prediction": "up", "probabilities": {"up": 0.9}})
    >>> http = httpx2.Client(transport=httpx2.MockTransport(answer))
    >>> with Client("http://localhost:8000", http=http) as client:
    ...     client.predict({"price": 12.5}, id="row 1")["prediction"]
    'up'
    """

    _new_http = httpx2.Client

    def _send(self, call: Call) -> Any:
        request, pauses, outcome = self._request(call), self._pauses(call), None
        while True:
            try:
                time.sleep(pauses.send(outcome))
                outcome = self.http.request(**request)
            except StopIteration as end:
                return end.value
            except httpx2.TransportError as error:
                outcome = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()


class AsyncClient(_Calls):
    """A client whose calls are awaited.

    Examples
    --------
    >>> async def ask():
    ...     answer = httpx2.Response(200, json={"models": []})
    ...     transport = httpx2.MockTransport(lambda request: answer)
    ...     async with AsyncClient(http=httpx2.AsyncClient(transport=transport)) as client:
    ...         return await client.models()
    >>> asyncio.run(ask())
    []
    """

    _new_http = httpx2.AsyncClient

    async def _send(self, call: Call) -> Any:
        request, pauses, outcome = self._request(call), self._pauses(call), None
        while True:
            try:
                await asyncio.sleep(pauses.send(outcome))
                outcome = await self.http.request(**request)
            except StopIteration as end:
                return end.value
            except httpx2.TransportError as error:
                outcome = error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
