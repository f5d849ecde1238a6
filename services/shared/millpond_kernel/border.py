"""The outermost layer of every application, pure ASGI: request id, body bound, strict JSON, queues for writes and reads
that have an end, last resort, metrics.

An http middleware of the framework would hide disconnects from the routes, and its parser takes NaN, keys given twice
and any depth.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millpond_contracts.errors import ErrorCode
from millpond_kernel.observability import REQUEST_SECONDS, REQUESTS, bound_request_id, log
from millpond_kernel.problem import ProblemError, problem_response

MAX_JSON_DEPTH = 64
_HOLDERS = frozenset({dict, list})
# Where in a request's scope the value of its JSON body lies.
READ_JSON = "millpond.json"
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# What agents and services say: a report that waits behind a flood of submits would cost a node its lease.
_NEVER_REFUSED = ("/v1/work/", "/v1/agent/", "/v1/nodes/join", "/internal/")


class Gate:
    """Lets so many requests of people through at once and so many wait; the others are refused.

    One for writes and one for reads: neither holds every connection of the process, and what agents and services say
    passes none, so that a flood of one kind does not keep the others from being answered.

    Args:
        what: what waits, for the caller.
        at_once: how many are through.
        waiting: how many may wait for that.
        longest_seconds: how long one may wait; None = as long as it takes.
    """

    def __init__(self, what: str, at_once: int, waiting: int, longest_seconds: float | None = None) -> None:
        self._what = what
        self._slots = asyncio.Semaphore(at_once)
        self._most_waiting = waiting
        self._longest_seconds = longest_seconds
        self._waiting = 0

    async def enter(self) -> None:
        """Returns when it is this one's turn; whoever entered has to leave.

        Raises:
            ProblemError: 429 when too many wait, or this one has for too long; nothing was begun.
        """
        if self._waiting >= self._most_waiting:
            raise self._full(f"{self._waiting} {self._what} wait already; try again.")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._longest_seconds):
                await self._slots.acquire()
        except TimeoutError as error:
            detail = f"The {self._what} before this one took over {self._longest_seconds:g} s; try again."
            raise self._full(detail) from error
        finally:
            self._waiting -= 1

    def leave(self) -> None:
        """Lets the next one through."""
        self._slots.release()

    def _full(self, detail: str) -> ProblemError:
        return ProblemError(ErrorCode.RATE_LIMITED, detail, retry_after_seconds=1)


@dataclass(frozen=True, slots=True)
class Gates:
    """What stands before the requests of people."""

    writes: Gate
    reads: Gate

    def of(self, method: str, path: str) -> Gate | None:
        """The gate of a request; None for agents, services, and those who ask how the service is."""
        if not path.startswith("/v1/") or path.startswith(_NEVER_REFUSED):
            return None
        return self.writes if method in _METHODS_WITH_BODY else self.reads


class Border:
    """Wraps an application; what leaves it is an answer of ours, whatever came in."""

    def __init__(self, app: ASGIApp, service: str, max_body_bytes: int, gates: Gates | None = None) -> None:
        self._app = app
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._gates = gates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Of a header that is given twice the framework reads the first, and what is checked must be what is read.
        headers = dict(reversed(scope["headers"]))
        request_id = _request_id(headers)
        started, status = time.perf_counter(), 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        with bound_request_id(request_id):
            try:
                await self._answer(scope, headers, receive, send_marked)
            except Exception as error:
                log.error("unexpected_error", service=self._service, path=scope["path"], exc_info=error)
                if status:
                    raise
                detail = "An unexpected error; the log of the service has the details."
                await problem_response(ErrorCode.INTERNAL, detail)(scope, receive, send_marked)
            finally:
                self._measure(scope, status, time.perf_counter() - started)

    async def _answer(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        if scope["method"] in _METHODS_WITH_BODY:
            try:
                body = await self._read(headers, receive)
                if body and _is_json(headers):
                    scope[READ_JSON] = check_json(body)
            except ProblemError as error:
                response = problem_response(error.code, error.detail)
                if error.code is ErrorCode.BODY_TOO_LARGE:
                    # The rest of the body is not read, so nothing can follow it on this connection.
                    response.headers["Connection"] = "close"
                await response(scope, receive, send)
                return
            if body is None:
                return
            receive = _replay(body, receive)
        gate = None if self._gates is None else self._gates.of(scope["method"], scope["path"])
        if gate is None:
            await self._app(scope, receive, send)
        else:
            await self._pass(gate, scope, receive, send)

    async def _pass(self, gate: Gate, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await gate.enter()
        except ProblemError as error:
            await problem_response(error.code, error.detail, (), error.retry_after_seconds)(scope, receive, send)
            return
        inside = True

        def leave() -> None:
            nonlocal inside
            if inside:
                inside = False
                gate.leave()

        async def send_and_leave(message: Message) -> None:
            # The work is done when an answer begins; a watch may then go on for hours.
            if message["type"] == "http.response.start":
                leave()
            await send(message)

        try:
            await self._app(scope, receive, send_and_leave)
        finally:
            leave()

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The whole body, or None when the caller has gone; a body without Content-Length is counted as it comes."""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self._max_body_bytes:
            raise self._too_large()
        parts: list[bytes] = []
        total = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            total += len(parts[-1])
            if total > self._max_body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> ProblemError:
        return ProblemError(ErrorCode.BODY_TOO_LARGE, f"The body may have at most {self._max_body_bytes} bytes.")

    def _measure(self, scope: Scope, status: int, seconds: float) -> None:
        # Labels come from closed sets; a caller must not be able to invent time series.
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        REQUESTS.labels(self._service, method, route, str(status or "gone")).inc()
        REQUEST_SECONDS.labels(self._service, method, route).observe(seconds)


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    if 1 <= len(given) <= 64 and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex


def _is_json(headers: dict[bytes, bytes]) -> bool:
    kind = headers.get(b"content-type", b"application/json").split(b";", 1)[0].strip().lower()
    return kind == b"application/json" or kind.endswith(b"+json")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, then whatever comes after it (the disconnect)."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


class ReadOnce(APIRoute):
    """A route that takes the body as the border has read it: of what agents send every few seconds, half the work."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework asks for it under this name."""
        handle = super().get_route_handler()

        async def handle_read(request: Request) -> Response:
            return await handle(_ReadRequest(request.scope, request.receive))

        return handle_read


class _ReadRequest(Request):
    async def json(self) -> Any:
        return self.scope[READ_JSON] if READ_JSON in self.scope else await super().json()


def check_json(body: bytes) -> Any:
    """The value of a body. Refuses what two readers could understand differently, or what no reader should have to
    hold.

    Raises:
        ProblemError: 422 for text that is not JSON, NaN or Infinity, a key given twice, too many levels, or text that
            no database holds.
    """
    try:
        value = json.loads(body, object_pairs_hook=_unique, parse_constant=_no_constant)
    except _NotStrict as error:
        raise ProblemError(ErrorCode.BODY_INVALID, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise ProblemError(ErrorCode.BODY_NOT_JSON, "The body could not be read as JSON.") from error
    if body.count(b"[") + body.count(b"{") > MAX_JSON_DEPTH and _depth_exceeds(value, MAX_JSON_DEPTH):
        raise ProblemError(ErrorCode.BODY_INVALID, f"The body has more than {MAX_JSON_DEPTH} levels.")
    # Only an escape can write them.
    if b"\\u" in body and _has_bad_text(value):
        raise ProblemError(ErrorCode.BODY_INVALID, "Text may hold neither the character U+0000 nor half a pair.")
    return value


class _NotStrict(Exception):
    """JSON by some readings only."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _NotStrict(f"The key {twice[:64]!r} is given twice in one object.")
    return found


def _no_constant(name: str) -> float:
    raise _NotStrict(f"{name} is not a JSON number.")


def _depth_exceeds(value: object, limit: int) -> bool:
    # Level by level, only what holds something: most of a body is numbers and text.
    level: list[Any] = [value] if type(value) in _HOLDERS else []
    for _ in range(limit):
        children = [outer.values() if type(outer) is dict else outer for outer in level]
        level = [inner for each in children for inner in each if type(inner) in _HOLDERS]
        if not level:
            return False
    return True


def _has_bad_text(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value or any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return any(_has_bad_text(key) or _has_bad_text(inner) for key, inner in value.items())
    return isinstance(value, list) and any(_has_bad_text(inner) for inner in value)
