"""The outermost layer of every application, pure ASGI: request id, body bound, strict JSON, a queue for writes that
has an end, last resort, metrics.

An http middleware of the framework would hide disconnects from the routes, and its parser takes NaN, keys given twice
and any depth.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millpond_contracts.errors import ErrorCode
from millpond_kernel.observability import REQUEST_SECONDS, REQUESTS, bound_request_id, log
from millpond_kernel.problem import ProblemError, problem_response

MAX_JSON_DEPTH = 64
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# What agents and services say: a report that waits behind a flood of submits would cost a node its lease.
_NEVER_REFUSED = ("/v1/work/", "/v1/agent/", "/v1/nodes/join", "/internal/")


class WriteGate:
    """Lets so many writes through at once and so many wait; the others are refused.

    Writes then never hold every connection of the process, so that reads are answered under a flood of them.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._most_waiting = waiting
        self._waiting = 0

    @asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """The time of one write, from its turn on.

        Raises:
            ProblemError: 429 when too many wait; nothing was begun.
        """
        if self._waiting >= self._most_waiting:
            raise ProblemError(
                ErrorCode.RATE_LIMITED, f"{self._waiting} writes wait already; try again.", retry_after_seconds=1
            )
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()


class Border:
    """Wraps an application; what leaves it is an answer of ours, whatever came in."""

    def __init__(self, app: ASGIApp, service: str, max_body_bytes: int, gate: WriteGate | None = None) -> None:
        self._app = app
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
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
                    check_json(body)
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
            if self._gate is not None and not scope["path"].startswith(_NEVER_REFUSED):
                await self._write(self._gate, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _write(self, gate: WriteGate, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with gate.passed():
                await self._app(scope, receive, send)
        except ProblemError as error:
            response = problem_response(error.code, error.detail, (), error.retry_after_seconds)
            await response(scope, receive, send)

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


def check_json(body: bytes) -> None:
    """Refuses what two readers could understand differently, or what no reader should have to hold.

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
    level: list[object] = [value]
    for _ in range(limit + 1):
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return False
    return True


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _has_bad_text(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value or any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return any(_has_bad_text(key) or _has_bad_text(inner) for key, inner in value.items())
    return isinstance(value, list) and any(_has_bad_text(inner) for inner in value)
