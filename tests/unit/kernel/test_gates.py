"""The queues before the requests of people: they end, and a long answer does not stand in them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from millpond_kernel.border import Border, Gate, Gates
from millpond_kernel.problem import ProblemError

pytestmark = pytest.mark.unit


async def test_gate_when_too_many_wait_then_the_next_is_refused_and_those_waiting_get_their_turn() -> None:
    gate = Gate("reads", 1, 1)
    await gate.enter()
    waiting = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    with pytest.raises(ProblemError) as refused:
        await gate.enter()
    assert (refused.value.code.status, refused.value.retry_after_seconds) == (429, 1)
    gate.leave()
    await waiting


async def test_gate_when_one_waits_too_long_then_it_is_refused_and_its_place_is_free_again() -> None:
    gate = Gate("reads", 1, 1, 0.01)
    await gate.enter()
    for _ in range(2):
        with pytest.raises(ProblemError):
            await gate.enter()
    gate.leave()
    await gate.enter()


def _app(stuck: Callable[[], asyncio.Event]) -> FastAPI:
    app = FastAPI()

    @app.get("/v1/jobs")
    async def read() -> None:
        await stuck().wait()

    @app.post("/v1/jobs")
    @app.post("/v1/agent/heartbeat")
    @app.get("/readyz/scheduler")
    async def answer() -> str:
        return "at once"

    @app.get("/v1/events")
    async def watch() -> StreamingResponse:
        async def follow() -> AsyncIterator[str]:
            yield "one"
            await stuck().wait()

        return StreamingResponse(follow())

    app.add_middleware(
        Border, service="x", max_body_bytes=1000, gates=Gates(writes=Gate("writes", 1, 1), reads=Gate("reads", 1, 1))
    )
    return app


async def test_reads_when_their_gate_is_full_then_refused_while_writes_agents_and_probes_are_answered() -> None:
    free = asyncio.Event()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(_app(lambda: free)), base_url="http://x") as http:
        reads = [asyncio.create_task(http.get("/v1/jobs")) for _ in range(5)]
        done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        refused = done.pop().result()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["code"] == "kernel.rate.limited"
        others = [
            await http.post("/v1/jobs"),
            await http.post("/v1/agent/heartbeat"),
            await http.get("/readyz/scheduler"),
        ]
        assert [answer.status_code for answer in others] == [200, 200, 200]
        free.set()
        assert sorted(answer.status_code for answer in await asyncio.gather(*reads)) == [200, 200, 429, 429, 429]


async def test_reads_when_a_watch_is_open_then_it_takes_no_place() -> None:
    free = asyncio.Event()
    app = _app(lambda: free)
    begun = asyncio.Event()

    async def send(message: object) -> None:
        begun.set()

    async def receive() -> dict[str, object]:
        await free.wait()
        return {"type": "http.disconnect"}

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/v1/events",
        "headers": [],
        "query_string": b"",
        "server": None,
    }
    watch = asyncio.create_task(app(scope, receive, send))
    await begun.wait()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
        read = asyncio.create_task(http.get("/v1/jobs"))
        await asyncio.sleep(0)
        free.set()
        assert (await read).status_code == 200
    await watch
