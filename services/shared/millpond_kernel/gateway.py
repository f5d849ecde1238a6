"""A small reverse proxy that joins separate service processes under one base URL, by the prefix table.

`python -m millpond_kernel.gateway --port 7070 registry=http://127.0.0.1:7101 …`. For a split stack on one machine;
containers use a real proxy with the same table. Internal routes never pass.
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

import httpx
import uvicorn
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from millpond_contracts.errors import ErrorCode
from millpond_contracts.routes import service_for_path
from millpond_kernel.heads import BoundedHead
from millpond_kernel.problem import problem_response

# Headers that concern one connection and are not passed on (RFC 9110 section 7.6.1).
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
     "upgrade", "host"}
)  # fmt: skip


class Gateway:
    """Passes each request on to the service that its path belongs to. `transport` lets tests answer in process."""

    def __init__(self, upstreams: Mapping[str, str], *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        limits = httpx.Limits(max_connections=4096, max_keepalive_connections=512)
        # A proxy of the environment is for the outside; services are reached directly.
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(60, connect=2), limits=limits, transport=transport, trust_env=False
        )
        self._upstreams = dict(upstreams)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        request = Request(scope, receive)
        upstream = self._upstreams.get(service_for_path(scope["path"]) or "")
        if upstream is None:
            response = problem_response(ErrorCode.ROUTE_NOT_FOUND, f"There is no route {scope['path'][:200]}.")
            await response(scope, receive, send)
            return
        try:
            answer = await self._answer(request, upstream)
        except httpx.HTTPError:
            response = problem_response(
                ErrorCode.DEPENDENCY_AWAY, "The service behind this route does not answer; try again.", (), 1
            )
            await response(scope, receive, send)
            return
        if answer is None:
            return
        headers = {key: value for key, value in answer.headers.items() if key not in _HOP_BY_HOP}
        await StreamingResponse(_body(answer), answer.status_code, headers)(scope, receive, send)

    async def _answer(self, request: Request, upstream: str) -> httpx.Response | None:
        """The beginning of the upstream's answer; None when the caller left first, as one that polls does."""
        passed_on = asyncio.Event()
        outgoing = self._outgoing(request, upstream, passed_on)
        sending = asyncio.create_task(self._client.send(outgoing, stream=True))
        leaving = asyncio.create_task(_until_gone(request, passed_on))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            return await sending if sending.done() else None
        finally:
            sending.cancel()
            leaving.cancel()

    def _outgoing(self, request: Request, upstream: str, passed_on: asyncio.Event) -> httpx.Request:
        headers = [(key, value) for key, value in request.headers.items() if key not in _HOP_BY_HOP]
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        # As it was written: decoded, an escaped `/` would name another object.
        target = upstream + request.scope["raw_path"].decode() + (f"?{request.url.query}" if request.url.query else "")
        if not has_body:
            passed_on.set()
        content = _incoming(request, passed_on) if has_body else None
        return self._client.build_request(request.method, target, headers=headers, content=content)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._client.aclose()
        await send({"type": "lifespan.shutdown.complete"})


async def _incoming(request: Request, passed_on: asyncio.Event) -> AsyncIterator[bytes]:
    async for part in request.stream():
        yield part
    passed_on.set()


async def _until_gone(request: Request, passed_on: asyncio.Event) -> None:
    """Returns when the caller has closed its connection; looks only once its body has been read."""
    await passed_on.wait()
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        # An upstream that dies in mid-answer ends the answer early, which the caller sees by its length.
        with contextlib.suppress(httpx.HTTPError):
            async for part in answer.aiter_raw():
                yield part
    finally:
        await answer.aclose()


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="millpond_kernel.gateway", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7070)
    parser.add_argument("upstreams", nargs="+", metavar="service=url")
    arguments = parser.parse_args(argv)
    upstreams = dict(item.split("=", 1) for item in arguments.upstreams)
    config = uvicorn.Config(
        Gateway(upstreams),
        host=arguments.host,
        port=arguments.port,
        log_config=None,
        access_log=False,
        http=BoundedHead,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
        server_header=False,
        date_header=False,
    )
    asyncio.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
