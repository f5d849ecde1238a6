"""Fixtures of billing's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millpond_billing.usecases.prices import ensure_example_prices
from millpond_kernel.db import SYSTEM, Database
from tests.integration.billing.stage import Stage, running_stage
from tests.integration.databases import MigratedDatabase


@pytest.fixture
async def stage(migrated: MigratedDatabase, tmp_path: Path) -> AsyncIterator[Stage]:
    """Quota, billing and stand-ins for its publishers, running."""
    async with running_stage(migrated, export_folder=tmp_path / "exports") as running:
        yield running


@pytest.fixture
async def database(migrated: MigratedDatabase) -> AsyncIterator[Database]:
    """The door of billing with the example prices, nothing else running."""
    door = migrated.database("billing")
    await door.open()
    async with door.begin(SYSTEM) as unit:
        await ensure_example_prices(unit)
    yield door
    await door.close()
