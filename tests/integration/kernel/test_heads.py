"""Request lines and headers without an end are refused while they come, and what is of a usual size passes."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from millpond_kernel.heads import MAX_HEAD_BYTES, BoundedHead

pytestmark = pytest.mark.integration

USUAL = b"GET /v1/me HTTP/1.1\r\nhost: millpond\r\nauthorization: Bearer " + b"x" * 4096 + b"\r\n\r\n"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server that answers anything with its path."""
    config = uvicorn.Config(PlainTextResponse("here"), http=BoundedHead, log_config=None, lifespan="off")
    config.load()
    state = ServerState()

    def protocol() -> BoundedHead:
        return BoundedHead(config=config, server_state=state, app_state={})

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def answer_to(port: int, *pieces: bytes) -> bytes:
    """What comes back until the server closes; pieces that it no longer takes are lost."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /", b"a" * 8192),
        (b"GET / HTTP/1.1\r\nx-long: ", b"a" * 8192),
        (b"GET / HTTP/1.1\r\n", b"x-many: a\r\n" * 800),
    ],
    ids=["a line", "one header", "many headers"],
)
async def test_head_when_it_has_no_end_then_431_and_closed(port: int, begin: bytes, more: bytes) -> None:
    pieces = (MAX_HEAD_BYTES // len(more)) + 1
    answer = await answer_to(port, begin, *[more] * pieces)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"content-type: application/problem+json" in answer
    assert b'"code":"kernel.head.too_large"' in answer


async def test_heads_when_usual_then_each_is_answered_however_much_was_sent_before(port: int) -> None:
    posted = b"POST / HTTP/1.1\r\nhost: millpond\r\ncontent-length: 200000\r\n\r\n" + b"b" * 200_000
    last = USUAL.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    answer = await answer_to(port, *[USUAL] * 20, posted, *[USUAL] * 20, last)
    assert answer.count(b"HTTP/1.1 200 OK") == 42
