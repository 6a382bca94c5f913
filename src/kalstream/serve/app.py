"""The endpoints of a service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse

from kalstream import __version__
from kalstream.errors import InvalidInput, KalstreamError
from kalstream.runs.options import NOT_SERVED, Options
from kalstream.serve.events import (
    Answers,
    Event,
    Events,
    Made,
    as_labels,
    as_rows,
    encode,
    read_body,
    read_line,
)
from kalstream.serve.gate import LOOPBACK, App, Gate
from kalstream.serve.gauges import Gauges
from kalstream.serve.page import add_page
from kalstream.serve.service import Busy, NotReady, Service, UnknownModel
from kalstream.serve.tokens import Tokens

_STATUS: Final[dict[type[Exception], int]] = {
    UnknownModel: 404,
    Busy: 429,
    NotReady: 503,
    KalstreamError: 422,
    OSError: 503,  # the disk
}
_LINES: Final = 256  # of a stream that are learned together
_WINDOWS: Final = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one request may send."""

    rows: int = 10_000
    bytes: int = 16 * 1024 * 1024


def make_app(
    service: Service,
    *,
    tokens: Tokens | None = None,
    hosts: Sequence[str] = (),
    limits: Limits | None = None,
) -> App:
    """The ASGI application of a service that has been started.

    Parameters
    ----------
    service : Service
    tokens : Tokens, optional
        Without any, whoever reaches the service may do everything.
    hosts : names
        Under which the service is asked, besides those of the loopback.
    limits : Limits, optional
    """
    limits = limits or Limits()
    api = FastAPI(
        title="kalstream",
        version=__version__,
        description="Models that predict rows and learn their labels as they come.",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan(service),
        responses=_REFUSED,
    )
    gauges = Gauges()
    _add_rows(api, service, limits)
    _add_models(api, service)
    _add_results(api, service)
    _add_state(api, service, gauges)
    add_page(api)
    _add_errors(api)
    return Gate(api, tokens or Tokens({}), (*LOOPBACK, *hosts), limits.bytes, gauges)


def _lifespan(service: Service) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.stop)

    return lifespan


async def _learned(service: Service, name: str, events: Sequence[Event]) -> list[Made]:
    """What the thread that learns makes of events."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[Made]] = loop.create_future()
    service.learn(name, events, _answering(loop, future))
    return await future


async def _called(service: Service, do: Callable[[], Any]) -> Any:
    """The result of a function on the thread that learns."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    service.call(do, _answering(loop, future))
    return await future


def _answering(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]
) -> Callable[[Any], None]:
    def settle(result: Any) -> None:
        if future.done():  # the client has gone
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def answer(result: Any) -> None:
        loop.call_soon_threadsafe(settle, result)

    return answer


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _answer(made: Sequence[Made], is_list: bool) -> Response:
    return _json(encode(Answers(list(made)) if is_list else made[0]))


def _predicted(service: Service, name: str, events: Sequence[Event]) -> list[Made]:
    """Predictions of rows without ids, by what is learned now."""
    rows = [event.row for event in events if isinstance(event.row, dict)]
    return service.model(name).predict(rows)


def _has_id(events: Sequence[Event]) -> bool:
    return any(event.id is not msgspec.UNSET for event in events)


# ---- documentation of bodies: they are decoded without pydantic -------------------------------

_SCHEMAS = msgspec.json.schema_components(
    [Event, Events, Made, Answers], ref_template="#/components/schemas/{name}"
)[1]


def _documented(takes: str, *examples: Any, media: str = "application/json") -> dict[str, Any]:
    one, many = {"learn": ("Event", "Events")}.get(takes, (takes, takes))
    refs = [{"$ref": f"#/components/schemas/{name}"} for name in dict.fromkeys((one, many))]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    body = {"required": True, "content": {media: {"schema": schema}}}
    if examples:
        shown = {f"example {k}": {"value": each} for k, each in enumerate(examples, 1)}
        body["content"][media]["examples"] = shown  # type: ignore[index]
    return {"requestBody": body}


_Responses = dict[int | str, dict[str, Any]]
# Of every request.
_REFUSED: Final[_Responses] = {
    401: {"description": "A token is needed."},
    403: {"description": "The token lacks a right, or a page of another host asks."},
    421: {"description": "The service is not called by this name."},
    503: {"description": "The service cannot learn now."},
}
# Of requests to a model.
_OF_MODEL: Final[_Responses] = {
    404: {"description": "No such model."},
    413: {"description": "The body is too large."},
    415: {"description": "The body is not declared as JSON."},
    422: {"description": "The request cannot be used; nothing was learned."},
    429: {"description": "Too many rows wait; ask again later."},
}


def _answered_with(description: str, media: str, *schemas: str) -> _Responses:
    refs = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    # {"rows": []} is of two schemas, so not oneOf
    schema = {"anyOf": refs} if refs else {"type": "string"}
    return {200: {"description": description, "content": {media: {"schema": schema}}}}


_ANSWER: Final[_Responses] = {
    **_OF_MODEL,
    **_answered_with("What became of each row.", "application/json", "Made", "Answers"),
}
# An error ends the lines.
_LINE: Final[_Responses] = {
    **_OF_MODEL,
    **_answered_with("A JSON line for each line.", "application/x-ndjson", "Made", "object"),
}
_TEXT: Final = _answered_with("Lines of text.", "text/plain")


def _add_rows(api: FastAPI, service: Service, limits: Limits) -> None:
    """Endpoints that take rows."""
    row = {"row": {"amount": 12.5, "country": "DE"}}

    @api.post(
        "/models/{name}/predict",
        responses=_ANSWER,
        openapi_extra=_documented("learn", row, {**row, "id": "order-7"}),
        summary="Predict rows. One with an id waits for its label.",
    )
    async def predict(name: str, request: Request) -> Response:
        events, is_list = read_body(await request.body(), limits.rows)
        service.model(name)
        as_rows(events)
        if _has_id(events):
            return _answer(await _learned(service, name, events), is_list)
        if len(events) > _LINES:
            made = await asyncio.to_thread(_predicted, service, name, events)
        else:
            made = _predicted(service, name, events)
        return _answer(made, is_list)

    @api.post(
        "/models/{name}/learn",
        responses=_ANSWER,
        openapi_extra=_documented(
            "learn", {**row, "label": "paid"}, {"id": "order-7", "label": "paid"}
        ),
        summary="Learn labels: with their rows, which are predicted first, or by their ids.",
    )
    async def learn(name: str, request: Request) -> Response:
        events, is_list = read_body(await request.body(), limits.rows)
        service.model(name)
        as_labels(events)
        return _answer(await _learned(service, name, events) if events else [], is_list)

    @api.post(
        "/models/{name}/stream",
        response_class=Response,
        responses=_LINE,
        openapi_extra=_documented("Event", media="application/x-ndjson"),
        summary="Predict and learn JSON lines in one connection, and answer each line.",
    )
    async def stream(name: str, request: Request) -> Response:
        service.model(name)
        lines = _lines(request.stream(), limits.bytes)
        return _WhileReading(_answered(service, name, lines), media_type="application/x-ndjson")


class _WhileReading(StreamingResponse):
    """An answer that begins before the request has ended, so the request must not be drained."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.stream_response(send)


async def _lines(chunks: AsyncIterator[bytes], most: int) -> AsyncIterator[list[bytes]]:
    """The lines of a body as they come."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > most:
            raise InvalidInput(f"a line is longer than {most:,} bytes; end lines with a newline")
        for k in range(0, len(lines), _LINES):
            yield [line for line in lines[k : k + _LINES] if line.strip()]
    if rest.strip():
        yield [rest]


async def _answered(
    service: Service, name: str, groups: AsyncIterator[list[bytes]]
) -> AsyncIterator[bytes]:
    """A line for each line; the first error ends the answer."""
    try:
        async for lines in groups:
            events = [read_line(line) for line in lines]
            as_rows([event for event in events if event.label is msgspec.UNSET])
            as_labels([event for event in events if event.label is not msgspec.UNSET])
            while True:
                try:
                    made = await _learned(service, name, events) if events else []
                    break
                except Busy:  # the client is not asked for more before these are learned
                    await asyncio.sleep(0.05)
            yield b"".join(encode(each) + b"\n" for each in made)
    except KalstreamError as error:
        yield encode({"error": str(error)}) + b"\n"


def _add_models(api: FastAPI, service: Service) -> None:
    """Endpoints that make, show and remove models."""

    @api.get("/models", summary="All models.")
    async def models() -> Response:
        each = [
            {"name": m.name, "task": m.stream.task, "rows": m.n_rows}
            for m in service.models.values()
        ]
        return JSONResponse({"models": each})

    @api.put(
        "/models/{name}",
        status_code=201,
        responses={key: _OF_MODEL[key] for key in (413, 415, 422)},
        openapi_extra=_documented("object", {"task": "classification"}),
        summary="Make a model, with options of kalstream run.",
    )
    async def make(name: str, request: Request) -> Response:
        options = _options(await request.body())
        await _called(service, lambda: service.add(name, options))
        return JSONResponse({"model": name}, 201)

    @api.delete("/models/{name}", responses=_OF_MODEL, summary="Remove a model.")
    async def remove(name: str) -> Response:
        service.model(name)
        await _called(service, lambda: service.remove(name))
        return JSONResponse({"removed": name})

    @api.get("/models/{name}", responses=_OF_MODEL, summary="Options of a model.")
    async def model(name: str) -> Response:
        found = service.model(name)
        columns = found.encoder
        return JSONResponse(
            {
                "name": name,
                "task": found.stream.task,
                "rows": found.n_rows,
                "options": found.options.model_dump(mode="json", exclude=set(NOT_SERVED)),
                "columns": None
                if columns is None
                else {each.name: each.kind for each in columns.features},
            }
        )

    @api.post("/models/{name}/snapshot", responses=_OF_MODEL, summary="Write a checkpoint now.")
    async def snapshot(name: str) -> Response:
        service.model(name)
        return JSONResponse(await _called(service, lambda: service.snapshot(name)))


def _add_results(api: FastAPI, service: Service) -> None:
    """Endpoints that say how good a model is."""

    async def summary(name: str) -> dict[str, Any]:
        made: dict[str, Any] = await _called(service, service.model(name).summary)
        return made

    @api.get("/models/{name}/metrics", responses=_OF_MODEL, summary="How good a model is so far.")
    async def metrics(name: str) -> Response:
        made = await summary(name)
        return JSONResponse({**made, "queued": service.n_queued, "problem": service.problem})

    @api.get("/models/{name}/windows", responses=_OF_MODEL, summary="The last windows of a model.")
    async def windows(name: str) -> Response:
        service.model(name)
        lines = await asyncio.to_thread(service.store.windows, name, _WINDOWS)
        return _json(f'{{"windows": [{", ".join(lines)}]}}'.encode())

    @api.get("/models/{name}/drift", responses=_OF_MODEL, summary="The drift alarm of a model.")
    async def drift(name: str) -> Response:
        made = await summary(name)
        windows = [json.loads(line) for line in service.store.windows(name, _WINDOWS)]
        events = [alarm for line in (*windows, made["window"]) for alarm in line.get("drift", [])]
        return JSONResponse({**(made["drift"] or {}), "events": events})


def _add_state(api: FastAPI, service: Service, gauges: Gauges) -> None:
    """Endpoints for who watches the service."""

    @api.get(
        "/metrics",
        response_class=Response,
        responses=_TEXT,
        summary="Everything for Prometheus.",
    )
    async def prometheus() -> Response:
        def all_summaries() -> dict[str, Any]:
            return {name: model.summary() for name, model in service.models.items()}

        made = await _called(service, all_summaries)
        return Response(gauges.text(service, made), media_type="text/plain; version=0.0.4")

    @api.get("/health", summary="Whether the process lives.")
    async def health() -> Response:
        return JSONResponse({"alive": True, "version": __version__})

    @api.get("/ready", summary="Whether the service learns.")
    async def ready() -> Response:
        failures = [model.failure for model in service.models.values() if model.failure]
        problem = service.problem or next(iter(failures), "")
        return JSONResponse({"ready": not problem, "problem": problem}, 503 if problem else 200)


def _options(body: bytes) -> Options:
    """Options of a model, from a body that is an object."""
    try:
        values = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the request is not JSON ({error})") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InvalidInput('the options are not an object; send {"task": "classification"} or {}')
    for name in ("origin", "learner"):
        if values.get(name):  # paths and modules of this machine are for who starts the service
            raise InvalidInput(f"{name} can only be given where the service is started")
    return Options.of(**values)


def _add_errors(api: FastAPI) -> None:
    """Errors as {"error": message}; a refused request has taught nothing."""

    @api.exception_handler(KalstreamError)
    @api.exception_handler(OSError)
    async def ours(_: Request, error: Exception) -> Response:
        status = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
        headers = {"Retry-After": "1"} if status in (429, 503) else None
        return JSONResponse({"error": str(error)}, status, headers)

    @api.exception_handler(HTTPException)
    async def theirs(_: Request, error: HTTPException) -> Response:
        what = str(error.detail)
        if error.status_code in (404, 405):
            what = f"{what}: GET /openapi.json lists all requests"
        return JSONResponse({"error": what}, error.status_code, error.headers)

    @api.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"error": str(error.errors()[0]["msg"])}, 422)

    original = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            schema = original()
            schema.setdefault("components", {}).setdefault("schemas", {}).update(_SCHEMAS)
            schema["components"]["schemas"]["object"] = {"type": "object"}
        return api.openapi_schema or {}

    api.openapi = openapi  # type: ignore[method-assign]
