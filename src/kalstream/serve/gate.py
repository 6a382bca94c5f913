"""What every request passes: who asks, from which page, for what, and how much it sends."""

from __future__ import annotations

import json
import logging
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from starlette.requests import ClientDisconnect

from kalstream.serve.gauges import Gauges
from kalstream.serve.tokens import Tokens

logger = logging.getLogger("kalstream.serve.access")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]", "::1")
# The rights that POST to the last part of a path needs; reading needs "read", all else "admin".
_NEEDS: Final = {
    "predict": ("predict",),
    "learn": ("learn",),
    "stream": ("predict", "learn"),
    "snapshot": ("admin",),
}
_ADMIN: Final = ("admin",)
# Anybody may ask whether the service lives, and read the page, which has no data.
_OPEN: Final = ("/", "/health", "/ready")


def needed(method: str, path: str) -> tuple[str, ...]:
    """The rights that a request needs.

    Examples
    --------
    >>> needed("POST", "/models/a/learn"), needed("DELETE", "/models/learn"), needed("GET", "/")
    (('learn',), ('admin',), ())
    """
    if path in _OPEN and method in ("GET", "HEAD"):
        return ()
    if method in ("GET", "HEAD", "OPTIONS"):
        return ("read",)
    return _NEEDS.get(path.rsplit("/", 1)[-1], _ADMIN) if method == "POST" else _ADMIN


def _streams(method: str, path: str) -> bool:
    """Whether a body may be of any length, since it is read line by line."""
    return method == "POST" and path.endswith("/stream")


class Gate:
    """Refuse what must not pass, and count what passes.

    Parameters
    ----------
    app : ASGI application
    tokens : Tokens
        Without any, whoever reaches the service may do everything.
    hosts : tuple of str
        Names under which the service is asked, without a port. Pages of other hosts cannot reach
        it, whatever a browser lets them send.
    most_bytes : int
        Of a body.
    gauges : Gauges
    """

    def __init__(
        self, app: App, tokens: Tokens, hosts: tuple[str, ...], most_bytes: int, gauges: Gauges
    ) -> None:
        self.app, self.tokens, self.hosts = app, tokens, hosts
        self.most_bytes, self.gauges = most_bytes, gauges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, method, path = time.perf_counter(), scope["method"], scope["path"]
        status, n_bytes = 500, 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > self.most_bytes and not _streams(method, path):
                raise _TooLarge
            return message

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refusal = self._refusal(scope, method, path)
            if refusal is not None:
                await _answer(noted, *refusal)
            else:
                await self.app(scope, counted, noted)
        except _TooLarge:
            message = f"the body is larger than {self.most_bytes:,} bytes; send several requests"
            await _answer(noted, 413, message)
        except (ClientDisconnect, CancelledError):  # its body never came, or not before the stop
            status = 499
        finally:
            seconds = time.perf_counter() - begun
            self.gauges.request(path, method, status, seconds)
            _log(method, path, status, seconds)

    def _refusal(self, scope: Scope, method: str, path: str) -> tuple[int, str] | None:
        """Status and message for a request that must not pass."""
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        host = headers.get("host", "")
        if _name_of(host) not in self.hosts:
            return 421, f"this service is not {host!r}; start it with --allow-host, or use its name"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, f"a page of {origin!r} may not use this service"
        length = headers.get("content-length", "0")
        if length != "0" or "transfer-encoding" in headers:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in ("application/json", "application/x-ndjson", "application/jsonl"):
                return 415, "send the header Content-Type: application/json (curl: --json, not -d)"
        too_long = length.isdecimal() and int(length) > self.most_bytes
        if too_long and not _streams(method, path):
            return 413, f"the body is larger than {self.most_bytes:,} bytes; send several requests"
        needs = needed(method, path)
        if not needs or not self.tokens.rights:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        rights = self.tokens.of(token.strip()) if scheme.lower() == "bearer" else frozenset()
        if not rights:
            return 401, "send a token: Authorization: Bearer ks-...; kalstream token makes one"
        lacking = [right for right in needs if right not in rights]
        if lacking:
            return 403, f"the token lacks the right to {' and '.join(lacking)}"
        return None


def _log(method: str, path: str, status: int, seconds: float) -> None:
    level = logging.INFO if status < 400 else logging.WARNING if status < 500 else logging.ERROR
    if not logger.isEnabledFor(level):
        return
    values = {"method": method, "path": path, "status": status, "ms": round(1e3 * seconds, 2)}
    parts = path.split("/")
    if parts[1:2] == ["models"] and len(parts) > 2:
        values["model"] = parts[2]
    logger.log(level, "request %(method)s %(path)s %(status)d", values)


class _TooLarge(Exception):
    pass


def _name_of(host: str) -> str:
    """A host without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


async def _answer(send: Send, status: int, message: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    body = json.dumps({"error": message}).encode()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
