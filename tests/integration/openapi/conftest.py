"""One running world for all generated requests, apart from the hostile ones': these may change what they like."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from tests.integration.databases import Engines, clone, drop
from tests.integration.hostile.building import build_world
from tests.integration.hostile.world import World
from tests.integration.services import run_services


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def world(engines: Engines, template: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """All services over one database, with objects of two tenants."""
    migrated = await clone(engines, template)
    folder: Path = tmp_path_factory.mktemp("openapi")
    owner = await asyncpg.connect(migrated.owner_url)
    try:
        async with run_services(
            migrated,
            log_folder=folder / "logs",
            export_folder=folder / "exports",
            verdict_seconds=0.1,
            node_token_seconds=3600,
        ) as services:
            yield await asyncio.wait_for(build_world(services, migrated, owner), 90)
    finally:
        await owner.close()
        await drop(engines.postgres_url, migrated.name)
