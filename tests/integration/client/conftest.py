"""The services behind a real HTTP server, since the synchronous client needs one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest
import structlog.testing
import uvicorn

from millpond.client.client import Client
from tests.integration.client.served import Served
from tests.integration.databases import MigratedDatabase
from tests.integration.services import run_services
from tests.waiting import eventually


async def _has_started(server: uvicorn.Server) -> bool:
    return server.started


@pytest.fixture
async def served(migrated: MigratedDatabase) -> AsyncIterator[Served]:
    """All services at one address, with an operator's client."""
    # The services of this process must not write into what a command line is seen to print.
    with structlog.testing.capture_logs():
        async with run_services(migrated) as services:
            app = cast(Any, cast(httpx.ASGITransport, services.transport).app)
            server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="warning"))
            running = asyncio.create_task(server.serve())
            await eventually(lambda: _has_started(server))
            port = server.servers[0].sockets[0].getsockname()[1]
            url = f"http://127.0.0.1:{port}"
            with Client(url, services.operator_key) as client:
                yield Served(url, services.operator_key, client)
            server.should_exit = True
            await running
