"""What stands before the HTTP processes of both versions: each request goes to the next one of those in turn."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tests.fakes.control_plane import serving

_OF_THE_CONNECTION = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "date", "server"}


@dataclass(slots=True)
class Front:
    """A proxy by turns.

    Attributes:
        upstreams: Base URLs; may change at any time.
        answered: Base URL -> how many requests it answered.
    """

    http: httpx.AsyncClient
    upstreams: Sequence[str] = ()
    answered: Counter[str] = field(default_factory=Counter)
    _turn: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await (await self._answer(request))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        body = await request.body()
        headers = [(name, value) for name, value in request.headers.items() if name not in _OF_THE_CONNECTION]
        query = f"?{request.url.query}" if request.url.query else ""
        upstreams = list(self.upstreams)
        self._turn += 1
        for number in range(len(upstreams)):
            upstream = upstreams[(self._turn + number) % len(upstreams)]
            try:
                answer = await self.http.request(
                    request.method, f"{upstream}{request.url.path}{query}", content=body, headers=headers
                )
            except httpx.ConnectError:
                continue  # it was not asked, so the next one may be
            except httpx.HTTPError:
                break  # it may have obeyed
            self.answered[upstream] += 1
            kept = {name: value for name, value in answer.headers.items() if name not in _OF_THE_CONNECTION}
            kept.pop("content-encoding", None)
            return Response(answer.content, answer.status_code, headers=kept)
        return Response(status_code=503, headers={"Retry-After": "1"})


@asynccontextmanager
async def open_front() -> AsyncIterator[tuple[Front, str]]:
    """A front without upstreams, and the base URL at which it takes requests."""
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(timeout=40, limits=limits) as http:
        front = Front(http)
        async with serving(front) as url:
            yield front, url
