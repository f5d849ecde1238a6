"""What lies between nodes and the gateway: it can double requests, hold them back, lose answers, and be cut."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millpond_kernel.pausing import end_task
from tests.fakes.control_plane import serving

_KEPT_HEADERS = ("authorization", "content-type", "idempotency-key", "x-request-id")
_LONGEST_DELAY_SECONDS = 5.0


class WireClosed(Exception):
    """The run is over; what was on its way is not answered any more."""


@dataclass(slots=True)
class Wire:
    """One direction of trouble at a time; the ratios are of requests.

    Attributes:
        doubled: So many are sent once more, up to 5 s later, whatever happened meanwhile.
        delayed: So many reach the gateway up to 5 s late, after others that were sent later.
        lost_answers: So many are obeyed and answered with nothing.
        is_cut: Nothing passes.
    """

    upstream: httpx.AsyncClient
    rng: random.Random
    doubled: float = 0.0
    delayed: float = 0.0
    lost_answers: float = 0.0
    is_cut: bool = False
    _later: set[asyncio.Task[None]] = field(default_factory=set)
    _sent: set[asyncio.Task[httpx.Response]] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await (await self._answer(request))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        body = await request.body()
        if self._happens(self.delayed):
            await asyncio.sleep(self.rng.uniform(0, _LONGEST_DELAY_SECONDS))
        if self.is_cut:
            return Response(status_code=504)
        if self._happens(self.doubled):
            task = asyncio.create_task(self._send_again(request, body))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        is_lost = self._happens(self.lost_answers)
        try:
            answer = await self._send(request, body)
        except (httpx.HTTPError, WireClosed):
            return Response(status_code=502)
        if is_lost or self.is_cut:
            return Response(status_code=502)
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    async def _send_again(self, request: Request, body: bytes) -> None:
        await asyncio.sleep(self.rng.uniform(0, _LONGEST_DELAY_SECONDS))
        try:
            await self._send(request, body)
        except (httpx.HTTPError, WireClosed):
            return  # the same fault as for the first

    async def _send(self, request: Request, body: bytes) -> httpx.Response:
        headers = {name: value for name, value in request.headers.items() if name in _KEPT_HEADERS}
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        sending = asyncio.ensure_future(self.upstream.request(request.method, path, content=body, headers=headers))
        self._sent.add(sending)
        try:
            await asyncio.wait({sending})
        finally:
            self._sent.discard(sending)
        if sending.cancelled():
            raise WireClosed
        return sending.result()

    def _happens(self, ratio: float) -> bool:
        return ratio > 0 and self.rng.random() < ratio

    async def close(self) -> None:
        """Drops what is on its way and what was to be sent later."""
        for task in [*self._later, *self._sent]:
            await end_task(task)


@asynccontextmanager
async def open_wire(upstream_url: str, seed: int) -> AsyncIterator[tuple[Wire, str]]:
    """A wire to the gateway, and the base URL at which it takes requests."""
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=upstream_url, timeout=30, limits=limits) as upstream:
        wire = Wire(upstream, random.Random(seed))
        async with serving(wire) as url:
            try:
                yield wire, url
            finally:
                await wire.close()
